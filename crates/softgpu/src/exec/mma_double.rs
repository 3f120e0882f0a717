//! Products of matrices of f64: chains of fused multiply-adds in the order of the depth.
//!
//! Each multiply-add is that of `fma.f64`, also in which of several NaN it passes on.

use super::mma::{MAX_MN, Matrix, Mma};
use super::scalar::RoundMode;
use super::scalar::float::fma_f64;

/// Largest depth of a product in f64.
const MAX_DEPTH: usize = 16;

/// D = A * B + C in f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DoubleProduct {
    pub(crate) product: Mma,
    pub(crate) rounding: RoundMode,
}

impl DoubleProduct {
    /// Runs the operation, as [`Mma::run`] does.
    pub(crate) fn run(
        &self,
        counts: [u32; 4],
        a: impl Fn(u32, u32) -> u64,
        b: impl Fn(u32, u32) -> u64,
        c: impl Fn(u32, u32) -> u64,
        mut d: impl FnMut(u32, u32, u64),
    ) {
        let p = &self.product;
        let k = p.k as usize;
        let mut left = [[0f64; MAX_DEPTH]; MAX_MN];
        let mut right = [[0f64; MAX_MN]; MAX_DEPTH];
        p.spread(Matrix::A, p.a, counts[0], a, |row, column, raw| {
            left[row][column] = f64::from_bits(raw);
        });
        p.spread(Matrix::B, p.b, counts[1], b, |row, column, raw| {
            right[row][column] = f64::from_bits(raw);
        });
        for lane in 0..32 {
            for register in 0..counts[3] {
                let (row, column) = p.place(Matrix::C, lane, register, 0, 1);
                let start = f64::from_bits(c(register, lane));
                let terms = left[row as usize].iter().zip(&right).take(k);
                let sum = terms.fold(start, |sum, (x, right)| {
                    fma_f64(*x, right[column as usize], sum, self.rounding)
                });
                d(register, lane, sum.to_bits());
            }
        }
    }
}
