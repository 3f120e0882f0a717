//! The code RS(136, 128): 128 symbols of data, and 8 of parity behind them.
//!
//! The symbol of row `r` is the coefficient of x^(135-r); a word of the code has the roots
//! alpha^-4 .. alpha^3. Nine symbols differ at least between two words, so four wrong ones
//! are corrected wherever they are, and eight at known positions.
//!
//! Roots around alpha^0: Horner's rule multiplies by each root once a row, and a root near
//! 1 is two or three exclusive ors where another is twenty.
//!
//! Elsewhere: the arithmetic (`gf`), where rows lie (`layout`), the kernels (`source`).

use crate::gf;

/// Symbols of data in a word.
pub const DATA: usize = 128;
/// Symbols of parity.
pub const PARITY: usize = 8;
/// All of them.
pub const WORD: usize = DATA + PARITY;
/// The exponent of the first root.
pub const FIRST_ROOT: i32 = -4;

/// What a block's parity has added to it, times a factor of the block's own. Without it zeros would
/// be a word of the code, and so would any other block's rows. No word with up to four wrong
/// symbols looks like one with this added, whatever the factor, so one is not taken for the other.
pub const MASK: [u8; PARITY] = [1, 2, 3, 4, 5, 6, 7, 8];

/// The values at the roots of the mask alone.
pub const fn mask_values() -> [u8; PARITY] {
    let mut values = [0; PARITY];
    let mut j = 0;
    while j < PARITY {
        let mut i = 0;
        while i < PARITY {
            values[j] = gf::mul(values[j], gf::alpha(root(j))) ^ MASK[i];
            i += 1;
        }
        j += 1;
    }
    values
}

/// The exponent of root `index`.
pub const fn root(index: usize) -> i32 {
    FIRST_ROOT + index as i32
}

/// Row `i`, column `j`: what the data's value at root `j` (Horner's rule over the rows of
/// data alone) contributes to parity symbol `i`.
///
/// The word's value there is `data(root) * root^8 + parity(root)`, which has to vanish: eight
/// equations for eight symbols, which Gauss and Jordan solve.
pub fn parity_of_values() -> [[u8; PARITY]; PARITY] {
    // Left: powers of the root, right: what they have to come to.
    let mut rows: [[u8; 2 * PARITY]; PARITY] = std::array::from_fn(|j| {
        std::array::from_fn(|column| match column {
            _ if column < PARITY => gf::alpha(root(j) * (PARITY - 1 - column) as i32),
            _ if column - PARITY == j => gf::alpha(root(j) * PARITY as i32),
            _ => 0,
        })
    });
    for pivot in 0..PARITY {
        let found = (pivot..PARITY).find(|row| rows[*row][pivot] != 0);
        rows.swap(pivot, found.unwrap_or(pivot));
        // The roots differ, so there is one.
        let scale = gf::inverse(rows[pivot][pivot]).unwrap_or(1);
        rows[pivot] = rows[pivot].map(|x| gf::mul(x, scale));
        let from = rows[pivot];
        for (at, row) in rows.iter_mut().enumerate() {
            if at != pivot {
                let factor = row[pivot];
                for (x, y) in row.iter_mut().zip(from) {
                    *x ^= gf::mul(factor, y);
                }
            }
        }
    }
    rows.map(|row| std::array::from_fn(|j| row[PARITY + j]))
}

/// What each symbol of data contributes to each of parity: row `r`, column `i`.
pub fn parity_of_data() -> [[u8; PARITY]; DATA] {
    let of_values = parity_of_values();
    std::array::from_fn(|row| {
        let value = |j| gf::alpha(root(j) * (DATA - 1 - row) as i32);
        of_values.map(|parts| (0..PARITY).fold(0, |sum, j| sum ^ gf::mul(parts[j], value(j))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_vanishes_at_every_root() {
        let parity = parity_of_data();
        let mut random = fastrand::Rng::new();
        let seed = random.get_seed();
        for _ in 0..100 {
            let mut word = [0u8; WORD];
            word[..DATA].fill_with(|| random.u8(..));
            for (row, parts) in parity.iter().enumerate() {
                for (at, part) in parts.iter().enumerate() {
                    word[DATA + at] ^= gf::mul(*part, word[row]);
                }
            }
            for j in 0..PARITY {
                let x = gf::alpha(root(j));
                let value = word.iter().fold(0, |sum, symbol| gf::mul(sum, x) ^ symbol);
                assert_eq!(value, 0, "root {j}, seed {seed}");
            }
        }
    }

    #[test]
    fn no_symbol_of_data_is_without_part_in_any_of_parity() {
        // Else fewer than nine symbols would differ.
        assert!(parity_of_data().iter().flatten().all(|part| *part != 0));
    }
}
