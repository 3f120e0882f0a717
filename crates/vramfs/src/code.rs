//! The Reed-Solomon code RS(136, 128): 128 data symbols followed by 8 parity symbols.
//!
//! The symbol of row `r` is the coefficient of x^(135-r); a codeword has the roots alpha^-4 ..
//! alpha^3. The minimum distance is nine, so four errors can be corrected, or eight erasures.
//!
//! The roots are centred on alpha^0: Horner's rule multiplies by each root once a row, and
//! multiplication by a root near 1 costs two or three exclusive ors instead of twenty.
//!
//! Elsewhere: the arithmetic (`gf`), the layout of rows (`layout`), the kernels (`source`).

use crate::gf;

/// Data symbols of a codeword.
pub const DATA: usize = 128;
/// Parity symbols of a codeword.
pub const PARITY: usize = 8;
/// Symbols of a codeword.
pub const WORD: usize = DATA + PARITY;
/// The exponent of the first root.
pub const FIRST_ROOT: i32 = -4;

/// The mask that is added to a block's parity, times a factor of the block's own. Without it, zeros
/// would be a codeword, and so would the rows of any other block. No word with up to four errors
/// looks like one with a different factor, so blocks are not mistaken for one another.
pub const MASK: [u8; PARITY] = [1, 2, 3, 4, 5, 6, 7, 8];

/// The values of the mask alone at the roots.
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

/// Row `i`, column `j`: the contribution of the data's value at root `j` (by Horner's rule over the
/// data rows alone) to parity symbol `i`.
///
/// The codeword's value there is `data(root) * root^8 + parity(root)`, which must vanish: eight
/// equations for eight symbols, solved by Gauss-Jordan elimination.
pub fn parity_of_values() -> [[u8; PARITY]; PARITY] {
    // Left: powers of the root; right: the right-hand sides.
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
        // The roots differ, so a pivot exists.
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

/// The contribution of each data symbol to each parity symbol: row `r`, column `i`.
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
    fn every_data_symbol_contributes_to_every_parity_symbol() {
        // Otherwise the minimum distance would be below nine.
        assert!(parity_of_data().iter().flatten().all(|part| *part != 0));
    }
}
