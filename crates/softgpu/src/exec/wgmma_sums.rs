//! Sums of `wgmma`: 16 rows of A, as a warp has them, with eight columns of B.
//!
//! The fragments are those of `mma.m16n8`, and so are the sums, but for those of e4m3 and e5m2
//! ([`super::wgmma_narrow`]). Each kind of sum is formed in one place.

use super::mma::{Accumulator, BitOp, Mma, MmaElement};
use super::mma_sparse::SparseProduct;
use super::mma_vectors::{Registers, VectorProduct};
use super::registers::LANES;
use super::wgmma_layout::MajorOrder;
use super::wgmma_narrow::NarrowProduct;

/// A product of four warps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupProduct {
    /// What a warp does with eight columns: m is 16, n is 8.
    pub(crate) product: Mma,
    /// Columns of B and D.
    pub(crate) columns: u32,
    /// Of a sparse A: which lanes have the metadata.
    pub(crate) selector: Option<u32>,
    pub(crate) a_in_registers: bool,
    /// Whether products are negated.
    pub(crate) negate: bool,
    /// How A and B lie in memory.
    pub(crate) orders: [MajorOrder; 2],
}

/// The fragments of a block of 16 by 8 sums.
pub(crate) struct BlockFragments<'a> {
    pub(crate) a: &'a Registers,
    pub(crate) b: &'a Registers,
    pub(crate) c: &'a Registers,
    /// Metadata of a sparse A.
    pub(crate) metadata: &'a [u32; LANES],
}

impl GroupProduct {
    /// Pieces of 16 bytes of a row of B.
    pub(crate) fn depth_of_b(&self) -> u32 {
        if self.selector.is_some() { 4 } else { 2 }
    }

    /// Registers of D that eight columns take.
    pub(crate) fn registers_a_block(&self) -> u32 {
        if self.product.d == Accumulator::F16 {
            2
        } else {
            4
        }
    }

    /// Registers of A, B, C and D of a block.
    fn counts(&self) -> [u32; 4] {
        let sums = self.registers_a_block();
        [4, self.depth_of_b(), sums, sums]
    }

    fn is_narrow(&self) -> bool {
        matches!(self.product.a, MmaElement::E4m3 | MmaElement::E5m2)
    }

    /// The bits that negate the elements of a register of A.
    pub(crate) fn signs(&self) -> u32 {
        match (self.negate, self.product.a.bits()) {
            (false, _) => 0,
            (_, 32) => 0x8000_0000,
            (_, 16) => 0x8000_8000,
            _ => 0x8080_8080,
        }
    }

    /// The same in vectors, where the product has such a form.
    pub(crate) fn in_vectors(&self) -> Option<VectorProduct<'_>> {
        if self.selector.is_some() || self.is_narrow() {
            return None;
        }
        VectorProduct::of(&self.product, self.counts())
    }

    /// D = A * B + C of a block, on any processor.
    #[inline(always)]
    pub(crate) fn run(&self, f: &BlockFragments<'_>, d: &mut Registers) {
        let p = &self.product;
        let get = |r: &Registers, n: u32, l: u32| u64::from(r[n as usize & 7][l as usize & 31]);
        let (a, b, c) = (
            |n, l| get(f.a, n, l),
            |n, l| get(f.b, n, l),
            |n, l| get(f.c, n, l),
        );
        match (p.a, self.selector) {
            (MmaElement::E4m3 | MmaElement::E5m2, _) => {
                NarrowProduct::of(p, self.selector).run(f.a, f.b, f.c, f.metadata, d);
            }
            (MmaElement::B1, _) => add_bits(p.bit_op, f, d),
            (_, None) => p.run(self.counts(), a, b, c, |n, l, v| {
                d[n as usize & 7][l as usize & 31] = v as u32;
            }),
            (_, Some(selector)) => {
                let p = SparseProduct {
                    product: *p,
                    selector,
                };
                let e = |l: u32| f.metadata[l as usize & 31];
                p.run(self.counts(), a, b, c, e, |n, l, v| {
                    d[n as usize & 7][l as usize & 31] = v as u32;
                });
            }
        }
    }
}

/// Sums of ones in common bits, or in bits that differ.
#[inline]
fn add_bits(op: BitOp, f: &BlockFragments<'_>, d: &mut Registers) {
    for row in 0..16 {
        let (lane, upper) = (row % 8 * 4, row / 8);
        for column in 0..8 {
            let mut ones = 0;
            for (r, four) in [upper, upper + 2].into_iter().enumerate() {
                for n in 0..4 {
                    let (x, y) = (f.a[four][lane + n], f.b[r][column * 4 + n]);
                    let both = match op {
                        BitOp::And => x & y,
                        BitOp::Xor => x ^ y,
                    };
                    ones += both.count_ones();
                }
            }
            let (register, at) = (2 * upper + column % 2, lane + column / 2);
            d[register][at] = f.c[register][at].wrapping_add(ones);
        }
    }
}
