//! Products of matrices that an instruction of a warp forms, of any kind.

use super::mma::{Mma, MmaElement};
use super::mma_quad::QuadProduct;
use super::mma_sparse::SparseProduct;

/// What is multiplied, and how it lies in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Product {
    Dense(Mma),
    Sparse(SparseProduct),
    Quads(QuadProduct),
}

impl Product {
    /// Whether registers are 64 bits wide.
    pub(crate) fn is_double(&self) -> bool {
        matches!(self, Product::Dense(p) if p.a == MmaElement::F64)
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
            Product::Quads(p) => p.run(read_a, read_b, read_c, put),
            Product::Sparse(p) => {
                p.run(counts, read_a, read_b, read_c, |l| get(e, l) as u32, put);
            }
        }
    }
}
