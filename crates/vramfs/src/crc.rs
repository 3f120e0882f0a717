//! CRC32C (Castagnoli), and the tables with which a warp computes it for a row.
//!
//! Bits come least significant first; the register begins and ends inverted. Without those
//! inversions it is linear: the CRC of a row is the exclusive or of the CRCs of its parts, each
//! followed by as many zero bytes as bytes follow it in the row, and of a constant.

pub use ::crc32c::crc32c;
pub(crate) use ::crc32c::crc32c_append;

/// The polynomial without x^32, its bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The register after a zero byte.
const fn after_zero_byte(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        let carry = register & 1;
        register >>= 1;
        if carry != 0 {
            register ^= POLYNOMIAL;
        }
        bit += 1;
    }
    register
}

/// The register after `bytes` zero bytes.
pub(crate) fn after_zeros(register: u32, bytes: usize) -> u32 {
    (0..bytes).fold(register, |register, _| after_zero_byte(register))
}

/// For each byte of a register, the register that it alone becomes after `bytes` zero bytes; the
/// exclusive or of the four is what the whole register becomes.
pub(crate) fn shift_tables(bytes: usize) -> [[u32; 256]; 4] {
    let columns: [u32; 32] = std::array::from_fn(|bit| after_zeros(1 << bit, bytes));
    std::array::from_fn(|byte| {
        std::array::from_fn(|value| {
            (0..8)
                .filter(|bit| value >> bit & 1 != 0)
                .fold(0, |sum, bit| sum ^ columns[8 * byte + bit])
        })
    })
}

/// The contribution of each bit of a row to the register after the row, in the tensor cores'
/// format: a bit of the checksum is the parity of the number of bits that the row and a matrix row
/// have in common.
///
/// `fragments[t][h][lane]` is a lane's fragment of the matrix of 16 by 256 bits for the words `2 t`
/// and `2 t + 1` of four lanes and the register's bits from `16 h` on (the PTX ISA's layout of
/// `mma.m16n8k256`), as if those lanes were the last four. `columns[lane]` are the contributions of
/// the result bits that a lane receives: each belongs to four lanes, and is shifted by the zeros
/// for the bytes that follow them.
///
/// `joins[h][lane]` is a second matrix that turns these bits into checksums, eight rows at once: a
/// row's bits are a column of 256, of which its four lanes supply 64 each, the bits of eight lanes
/// in sequence.
pub(crate) struct BitTables {
    pub(crate) fragments: [[[[u32; 4]; 32]; 2]; 4],
    pub(crate) columns: [[u32; 8]; 32],
    pub(crate) joins: [[[u32; 4]; 32]; 2],
}

/// Computes the tables for rows of `row_bytes`, of which a lane has words at `16 lane` and at
/// `row_bytes / 2 + 16 lane`.
pub(crate) fn bit_tables(row_bytes: usize) -> BitTables {
    // The contribution of bit `bit` of word `word` of a lane, after the row.
    let adds = |lane: usize, word: usize, bit: usize| {
        let at = word / 4 * (row_bytes / 2) + 16 * lane + 4 * (word % 4);
        after_zeros(1 << bit, row_bytes - at)
    };
    let fragments = std::array::from_fn(|t| {
        let all: [[u32; 32]; 8] = std::array::from_fn(|k| {
            let (lane, word) = (28 + k % 4, 2 * t + k / 4);
            std::array::from_fn(|bit| adds(lane, word, bit))
        });
        std::array::from_fn(|h| {
            std::array::from_fn(|lane| {
                std::array::from_fn(|register| {
                    let row = 16 * h + lane / 4 + 8 * (register % 2);
                    let k = register / 2 * 4 + lane % 4;
                    (0..32).fold(0, |word, bit| word | (all[k][bit] >> row & 1) << bit)
                })
            })
        })
    });
    let columns: [[u32; 8]; 32] = std::array::from_fn(|lane| {
        std::array::from_fn(|at| {
            let row = 16 * (at / 4) + lane / 4 + 8 * (at % 4 / 2);
            let column = 2 * (lane % 4) + at % 2;
            after_zeros(1 << row, 64 * (7 - column))
        })
    });
    let joins = std::array::from_fn(|h| {
        std::array::from_fn(|lane| {
            std::array::from_fn(|register| {
                let row = 16 * h + lane / 4 + 8 * (register % 2);
                let first = 8 * (lane % 4) + register / 2 * 4;
                (0..32).fold(0, |word, bit| {
                    word | (columns[first + bit / 8][bit % 8] >> row & 1) << bit
                })
            })
        })
    });
    BitTables {
        fragments,
        columns,
        joins,
    }
}

/// Returns, for each of the first words of 32 bits of `bytes` bytes, by how much the CRC32C changes
/// with each of its bits.
pub(crate) fn word_columns(bytes: usize, words: usize) -> Vec<[u32; 32]> {
    let mut columns = vec![[0; 32]; words];
    let mut of_word = std::array::from_fn(|bit| after_zeros(1 << bit, bytes - 4 * words));
    for word in columns.iter_mut().rev() {
        of_word = of_word.map(|column| after_zeros(column, 4));
        *word = of_word;
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_standard_says() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46DD_794E);
    }

    #[test]
    fn tables_shift() {
        let tables = shift_tables(16);
        let register = fastrand::u32(..);
        let bytes = register.to_le_bytes();
        let sum = (0..4).fold(0, |sum, at| sum ^ tables[at][usize::from(bytes[at])]);
        assert_eq!(sum, after_zeros(register, 16), "{register:#x}");
    }

    #[test]
    fn columns_say_what_a_bit_changes() {
        let (mut bytes, words) = ([0; 100], 20);
        let seed = fastrand::u64(..);
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        let sum = crc32c(&bytes);
        for (word, columns) in word_columns(bytes.len(), words).iter().enumerate() {
            for (bit, column) in columns.iter().enumerate() {
                let mut other = bytes;
                other[4 * word + bit / 8] ^= 1 << (bit % 8);
                let where_ = format!("bit {bit} of word {word}, seed {seed}");
                assert_eq!(crc32c(&other) ^ sum, *column, "{where_}");
            }
        }
    }
}
