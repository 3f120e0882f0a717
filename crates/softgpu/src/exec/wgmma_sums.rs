//! Sums of `wgmma`: 16 rows of A, as a warp has them, with eight columns of B.
//!
//! The fragments are those of `mma.m16n8`, and so are the sums, but for those of e4m3 and e5m2:
//! the terms of these, C among them, are cut to a grid 13 bits below the largest exponent, and a
//! sum in f32 keeps 13 bits of its fraction. Each kind of sum is formed in one place.

use super::mma::{Accumulator, BitOp, Mma, MmaElement, NO_TERM};
use super::mma_sparse::SparseProduct;
use super::mma_vectors::{Registers, VectorProduct};
use super::registers::LANES;
use super::scalar::RoundMode;
use super::scalar::float::{canonical, narrow};
use super::scalar::half::{F16, Overflow};
use super::wgmma_layout::MajorOrder;

/// The terms of a sum of 8-bit numbers are cut at this many bits below the largest one's exponent,
/// and a sum in f32 has as many bits of a fraction.
const NARROW_GRID_BITS: i32 = 13;

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
    #[inline]
    pub(crate) fn run(&self, f: &BlockFragments<'_>, d: &mut Registers) {
        let p = &self.product;
        let get = |r: &Registers, n: u32, l: u32| u64::from(r[n as usize & 7][l as usize & 31]);
        let (a, b, c) = (
            |n, l| get(f.a, n, l),
            |n, l| get(f.b, n, l),
            |n, l| get(f.c, n, l),
        );
        match (p.a, self.selector) {
            (MmaElement::E4m3 | MmaElement::E5m2, _) => self.add_narrow(f, d),
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

    /// Sums of products of 8-bit floating point numbers.
    #[inline]
    fn add_narrow(&self, f: &BlockFragments<'_>, d: &mut Registers) {
        let p = &self.product;
        let depth = 16 * self.depth_of_b() as usize;
        let mut right = [[NarrowTerm::ZERO; 8]; 64];
        for (l, k, column) in (0..LANES).flat_map(|l| (0..depth / 16).map(move |r| (l, r, l / 4))) {
            for (i, byte) in f.b[k][l].to_le_bytes().into_iter().enumerate() {
                right[16 * k + l % 4 * 4 + i][column] = NarrowTerm::of(p.b, byte);
            }
        }
        let sums = p.d == Accumulator::F16;
        for row in 0..16 {
            let mut left = [NarrowTerm::ZERO; 32];
            for (r, four) in [row / 8, row / 8 + 2].into_iter().enumerate() {
                for (n, l) in (row % 8 * 4..).take(4).enumerate() {
                    for (i, byte) in f.a[four][l].to_le_bytes().into_iter().enumerate() {
                        left[16 * r + 4 * n + i] = NarrowTerm::of(p.a, byte);
                    }
                }
            }
            let mut chosen = [[NarrowTerm::ZERO; 8]; 32];
            for (s, terms) in chosen.iter_mut().enumerate() {
                let column = match self.selector {
                    None => s,
                    Some(selector) => {
                        let p = SparseProduct {
                            product: *p,
                            selector,
                        };
                        p.column(row, s, &|l: u32| f.metadata[l as usize & 31])
                    }
                };
                *terms = right[column & 63];
            }
            for column in 0..8 {
                let (lane, upper) = (row % 8 * 4 + column / 2, row / 8);
                if sums {
                    let shift = 16 * (column as u32 % 2);
                    let raw = f.c[upper][lane] >> shift & 0xffff;
                    let c = NarrowTerm::of_half(raw);
                    let (exact, special) = narrow_sum(&left, &chosen, column, c);
                    let total = special.unwrap_or(exact);
                    let bits = F16.round(total, RoundMode::Nearest, Overflow::Ieee);
                    let word = &mut d[upper][lane];
                    *word = *word & !(0xffff << shift) | bits << shift;
                } else {
                    let register = 2 * upper + column % 2;
                    let c = NarrowTerm::of_sum(f.c[register][lane]);
                    let (exact, special) = narrow_sum(&left, &chosen, column, c);
                    let total = special.unwrap_or_else(|| cut(exact));
                    d[register][lane] = canonical(narrow(total, RoundMode::Zero)).to_bits();
                }
            }
        }
    }
}

/// A number with the exponent that it is aligned by.
#[derive(Debug, Clone, Copy)]
struct NarrowTerm {
    value: f64,
    exponent: i32,
}

impl NarrowTerm {
    const ZERO: Self = NarrowTerm {
        value: 0.0,
        exponent: NO_TERM,
    };

    fn new(value: f64, field: u32, bias: i32) -> Self {
        NarrowTerm {
            value,
            exponent: if value == 0.0 {
                NO_TERM
            } else {
                field.max(1) as i32 - bias
            },
        }
    }

    #[inline]
    fn of(element: MmaElement, byte: u8) -> Self {
        let value = element.float(byte.into());
        match element {
            MmaElement::E4m3 => Self::new(value, u32::from(byte) >> 3 & 15, 7),
            _ => Self::new(value, u32::from(byte) >> 2 & 31, 15),
        }
    }

    fn of_half(bits: u32) -> Self {
        Self::new(F16.value(bits), bits >> 10 & 31, 15)
    }

    fn of_sum(bits: u32) -> Self {
        Self::new(f32::from_bits(bits).into(), bits >> 23 & 255, 127)
    }
}

/// The sum of a column: the exact one of the cut terms, and what it is instead if a term is
/// infinite or no number.
#[inline]
fn narrow_sum(
    left: &[NarrowTerm; 32],
    right: &[[NarrowTerm; 8]; 32],
    column: usize,
    c: NarrowTerm,
) -> (f64, Option<f64>) {
    let pairs = || left.iter().zip(right.iter().map(|r| r[column]));
    let top = pairs().fold(c.exponent, |top, (x, y)| top.max(x.exponent + y.exponent));
    let plain = pairs().fold(c.value, |sum, (x, y)| sum + x.value * y.value);
    if !plain.is_finite() {
        return (0.0, Some(plain));
    }
    if top < -1000 {
        // Every product has a zero factor, and the sum is zero.
        return (c.value, None);
    }
    let power = |e: i32| f64::from_bits(((e + 1023) as u64) << 52);
    let (unit, per_unit) = (power(top - NARROW_GRID_BITS), power(NARROW_GRID_BITS - top));
    let total = pairs().fold((c.value * per_unit).trunc(), |t, (x, y)| {
        t + (x.value * y.value * per_unit).trunc()
    });
    (total * unit, None)
}

/// A sum with as many bits of a fraction as f32 sums of 8-bit numbers have.
fn cut(sum: f64) -> f64 {
    f64::from_bits(sum.to_bits() & !((1 << (52 - NARROW_GRID_BITS)) - 1))
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
