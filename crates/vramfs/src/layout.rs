//! Layout of a block in device memory, to the byte.
//!
//! A block is 137 rows of 1 KiB: 128 of data, 8 of parity, and a record that describes them. 2048
//! blocks are 274 MiB, whole pieces of 2 MiB.
//!
//! Elsewhere: the specification for other readers (`docs/vramfs-format.md`).

use crate::code;

/// Bytes of a row.
pub const ROW_BYTES: usize = 1024;
/// Rows of data in a block.
pub const DATA_ROWS: usize = code::DATA;
/// Rows that are words of the code: data and parity.
pub const CODED_ROWS: usize = code::WORD;
/// All rows of a block.
pub const ROWS: usize = CODED_ROWS + 1;
/// Bytes of data in a block.
pub const DATA_BYTES: usize = DATA_ROWS * ROW_BYTES;
/// Bytes that a block takes.
pub const BLOCK_BYTES: usize = ROWS * ROW_BYTES;
/// Offset of its last row, the record.
pub const RECORD_OFFSET: usize = CODED_ROWS * ROW_BYTES;
/// Words of the code in a block: one for each byte of a row.
pub const WORDS: usize = ROW_BYTES;
/// Bytes of a page, the smallest unit with an owner.
pub const PAGE_BYTES: usize = 4096;
/// Pages of a block.
pub const PAGES: usize = DATA_BYTES / PAGE_BYTES;

/// In the record: the CRC32C of each coded row.
pub const SUMS_OFFSET: usize = 0;
/// In the record: the magic number.
pub const MAGIC_OFFSET: usize = 4 * CODED_ROWS;
/// `VRB1`, as four bytes in this order.
pub const MAGIC: u32 = u32::from_le_bytes(*b"VRB1");
/// In the record: the block's identity, [`IDENTITY_WORDS`] words of 64 bits.
pub const IDENTITY_OFFSET: usize = MAGIC_OFFSET + 8;
/// The block's number, its generation, and the owner of each page.
pub const IDENTITY_WORDS: usize = 2 + PAGES;
/// In the record: its own CRC32C, computed with zeros in this place. The bytes between the fields
/// are zero.
pub const RECORD_SUM_OFFSET: usize = ROW_BYTES - 4;

/// Jobs that fit a launch's parameters: a request's blocks.
pub(crate) const INLINE_JOBS_MAX: usize = 9;

/// Words before the block numbers that a sweep kernel reports: their count, and how many blocks
/// were claimed.
pub(crate) const SWEEP_WORDS: usize = 2;

/// Bytes of shared memory of the kernels: values at the roots, and a few words.
pub(crate) const SHARED_BYTES: usize = 4 * (8 * 4 * 8 * 32 + 8 * 8 * 32 + 3 + 8);
/// As before, with the prefetched jobs and the checksum tables.
pub(crate) const SHARED_WITH_TABLES_BYTES: usize =
    SHARED_BYTES.next_multiple_of(16) + JOB_BUFFER_BYTES + 4 * (8 * 32 * 4);
/// As before, with the prefetched jobs.
pub(crate) const SHARED_WITH_JOBS_BYTES: usize =
    SHARED_BYTES.next_multiple_of(16) + JOB_BUFFER_BYTES;
/// The checksum tables, and for each of eight warps eight bits of each row's checksum from each
/// lane, half a record, and four prefetched rows.
pub(crate) const SHARED_TO_REFRESH_BYTES: usize =
    4 * ((8 + 2) * 32 * 4) + 8 * (CODED_ROWS * 32 + ROW_BYTES / 2 + 4 * ROW_BYTES);
/// Two jobs, and a block's identity.
const JOB_BUFFER_BYTES: usize = 2 * 48 + 8 * IDENTITY_WORDS;

const _: () = assert!(IDENTITY_OFFSET.is_multiple_of(8));
const _: () = assert!(IDENTITY_OFFSET + 8 * IDENTITY_WORDS <= RECORD_SUM_OFFSET);
const _: () = assert!(2048 * BLOCK_BYTES == 137 << 21);

/// Constants that derive the factors from the block's number and generation: odd numbers of
/// SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
/// 2014).
pub(crate) const MIX: [u64; 3] = [
    0x9E37_79B9_7F4A_7C15,
    0xBF58_476D_1CE4_E5B9,
    0x94D0_49BB_1331_11EB,
];

/// Returns the factor of [`code::MASK`] in the words `32 lane ..` of a block; never 0.
pub const fn factor(number: u64, generation: u64, lane: usize) -> u8 {
    let mut x = number
        .wrapping_mul(MIX[1])
        .wrapping_add(generation)
        .wrapping_mul(MIX[2])
        .wrapping_add((lane as u64 + 1).wrapping_mul(MIX[0]));
    x = (x ^ x >> 30).wrapping_mul(MIX[1]);
    x = (x ^ x >> 27).wrapping_mul(MIX[2]);
    x ^= x >> 31;
    1 + (x % 255) as u8
}

/// Returns the byte of a row, and the bit in it, that holds bit `bit` of code word `word`'s symbol:
/// code words are bits of words of 32 bits. Eight words of 32 bits, four here and four half a row
/// on, are the bits of the symbols of 32 code words.
pub const fn bit_position(word: usize, bit: usize) -> (usize, u32) {
    let (lane, at) = (word / 32, word % 32);
    let plane = 16 * lane + 4 * (bit % 4) + ROW_BYTES / 2 * (bit / 4);
    (plane + at / 8, (at % 8) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_row_is_one_bit_of_one_word() {
        let mut met = [0u8; ROW_BYTES];
        for word in 0..WORDS {
            for bit in 0..8 {
                let (byte, at) = bit_position(word, bit);
                met[byte] |= 1 << at;
            }
        }
        assert_eq!(met, [0xFF; ROW_BYTES]);
    }
}
