//! Products of matrices that an instruction of a warp forms, of any kind.

use super::mma::{Mma, MmaElement};
use super::mma_double::DoubleProduct;
use super::mma_quad::QuadProduct;
use super::mma_sparse::SparseProduct;
use super::scalar::RoundMode;

/// What is multiplied, and how it lies in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Product {
    Dense(Mma),
    Double(DoubleProduct),
    Sparse(SparseProduct),
    Quads(QuadProduct),
}

impl Product {
    /// That of dense matrices; `rounding` is of products in f64, which alone have a choice.
    pub(crate) fn dense(product: Mma, rounding: RoundMode) -> Product {
        if product.a == MmaElement::F64 {
            Product::Double(DoubleProduct { product, rounding })
        } else {
            Product::Dense(product)
        }
    }

    /// Whether registers are 64 bits wide.
    pub(crate) fn is_double(&self) -> bool {
        matches!(self, Product::Double(_))
    }

    /// Runs the operation: `get` gives a register of a lane, by its number among those of A, B, C
    /// and, if A is sparse, its metadata; `put` takes one of D. `counts` are the numbers of
    /// registers of A, B, C and D.
    pub(crate) fn run(
        &self,
        counts: [u32; 4],
        get: impl Fn(u32, u32) -> u64,
        put: impl FnMut(u32, u32, u64),
    ) {
        let (b, c) = (counts[0], counts[0] + counts[1]);
        let e = c + counts[2];
        let read_a = |r, l| get(r, l);
        let read_b = |r, l| get(b + r, l);
        let read_c = |r, l| get(c + r, l);
        match self {
            Product::Dense(p) => p.run(counts, read_a, read_b, read_c, put),
            Product::Double(p) => p.run(counts, read_a, read_b, read_c, put),
            Product::Quads(p) => p.run(read_a, read_b, read_c, put),
            Product::Sparse(p) => {
                p.run(counts, read_a, read_b, read_c, |l| get(e, l) as u32, put);
            }
        }
    }
}
