//! Sums of `wgmma` of e4m3 and e5m2: 16 rows of A with eight columns of B.
//!
//! All terms of a sum, C among them, are truncated to a grid 13 bits below the largest exponent and
//! added exactly. A sum in f32 keeps 13 bits of its fraction, the rest is truncated; one in f16 is
//! rounded once to the nearest. A product's exponent is that of its factors added; those of
//! subnormal numbers are the smallest. What comes to pass is in [`NarrowProduct::sum`]; the same in
//! f32 for eight columns at a time is in [`NarrowProduct::run`], as far as that is exact.

use super::dot::NO_TERM;
use super::mma::{Accumulator, Mma, MmaElement};
use super::mma_sparse::SparseProduct;
use super::mma_vectors::Registers;
use super::registers::LANES;
use super::scalar::RoundMode;
use super::scalar::float::{canonical, narrow};
use super::scalar::half::{F16, Overflow};

/// The terms of a sum are cut at this many bits below the largest one's exponent, and a sum in f32
/// has as many bits of a fraction.
const GRID_BITS: i32 = 13;
/// Elements of a row of A that are multiplied.
const DEPTH: usize = 32;
/// The same of a column of B, with those that a sparse A has no element for.
const MAX_DEPTH: usize = 64;
/// Largest exponents between which f32 holds a unit of the grid, and each term in units.
const LEAST_TOP: i32 = -100;

/// What a byte stands for: its value, and the exponent that it is aligned by.
#[derive(Debug, Clone, Copy)]
struct ByteValues {
    values: [f32; 256],
    exponents: [i32; 256],
}

const fn bytes(fraction_bits: u32, bias: i32, has_infinity: bool) -> ByteValues {
    let mut out = ByteValues {
        values: [0.0; 256],
        exponents: [NO_TERM; 256],
    };
    let last = 0x7f >> fraction_bits;
    let mut byte = 0;
    while byte < 256 {
        let magnitude = byte as u32 & 0x7f;
        let (field, fraction) = (
            magnitude >> fraction_bits,
            magnitude & ((1 << fraction_bits) - 1),
        );
        let exponent = if field == 0 { 1 } else { field as i32 } - bias;
        let significand = fraction + if field == 0 { 0 } else { 1 << fraction_bits };
        let unit = f32::from_bits(((exponent - fraction_bits as i32 + 127) as u32) << 23);
        let value = if has_infinity && field == last {
            if fraction == 0 {
                f32::INFINITY
            } else {
                f32::NAN
            }
        } else if !has_infinity && magnitude == 0x7f {
            f32::NAN
        } else {
            significand as f32 * unit
        };
        out.values[byte] = if byte >= 128 { -value } else { value };
        if magnitude != 0 {
            out.exponents[byte] = exponent;
        }
        byte += 1;
    }
    out
}

static E4M3_BYTES: ByteValues = bytes(3, 7, false);
static E5M2_BYTES: ByteValues = bytes(2, 15, true);

fn table(element: MmaElement) -> &'static ByteValues {
    match element {
        MmaElement::E4m3 => &E4M3_BYTES,
        _ => &E5M2_BYTES,
    }
}

/// A number with the exponent that it is aligned by.
#[derive(Debug, Clone, Copy, Default)]
struct Term {
    value: f64,
    exponent: i32,
}

impl Term {
    fn new(value: f64, field: u32, bias: i32) -> Self {
        Term {
            value,
            exponent: if value == 0.0 {
                NO_TERM
            } else {
                field.max(1) as i32 - bias
            },
        }
    }
}

/// A product of such elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct NarrowProduct<'a> {
    product: &'a Mma,
    sparse: Option<SparseProduct>,
}

impl<'a> NarrowProduct<'a> {
    pub(super) fn of(product: &'a Mma, selector: Option<u32>) -> Self {
        let sparse = selector.map(|selector| SparseProduct {
            product: *product,
            selector,
        });
        NarrowProduct { product, sparse }
    }

    fn has_halves(&self) -> bool {
        self.product.d == Accumulator::F16
    }

    /// C at a place of a block.
    fn addend(&self, c: &Registers, row: usize, column: usize) -> Term {
        let (upper, lane) = (row / 8, row % 8 * 4 + column / 2);
        if self.has_halves() {
            let bits = c[upper][lane] >> (16 * (column % 2)) & 0xffff;
            Term::new(F16.value(bits), bits >> 10 & 31, 15)
        } else {
            let bits = c[2 * upper + column % 2][lane];
            Term::new(f32::from_bits(bits).into(), bits >> 23 & 255, 127)
        }
    }

    /// Puts the exact sum of the cut terms, or what it is instead, into D.
    fn put(&self, d: &mut Registers, row: usize, column: usize, sum: f64) {
        let (upper, lane) = (row / 8, row % 8 * 4 + column / 2);
        if self.has_halves() {
            let shift = 16 * (column % 2);
            let bits = F16.round(sum, RoundMode::Nearest, Overflow::Ieee);
            let word = &mut d[upper][lane];
            *word = *word & !(0xffff << shift) | bits << shift;
        } else {
            let cut = match sum.is_finite() {
                true => sum.to_bits() & !((1 << (52 - GRID_BITS)) - 1),
                false => sum.to_bits(),
            };
            let sum = narrow(f64::from_bits(cut), RoundMode::Zero);
            d[2 * upper + column % 2][lane] = canonical(sum).to_bits();
        }
    }

    /// One sum.
    fn sum(c: Term, pairs: impl Iterator<Item = (Term, Term)> + Clone) -> f64 {
        let top = pairs
            .clone()
            .fold(c.exponent, |top, (x, y)| top.max(x.exponent + y.exponent));
        let plain = pairs
            .clone()
            .fold(c.value, |sum, (x, y)| sum + x.value * y.value);
        if !plain.is_finite() || top < -1000 {
            // Infinities and NaN decide alone, and so does C if every product has a zero factor.
            return if plain.is_finite() { c.value } else { plain };
        }
        let power = |e: i32| f64::from_bits(((e + 1023) as u64) << 52);
        let (unit, per_unit) = (power(top - GRID_BITS), power(GRID_BITS - top));
        let total = pairs.fold((c.value * per_unit).trunc(), |t, (x, y)| {
            t + (x.value * y.value * per_unit).trunc()
        });
        total * unit
    }

    /// D = A * B + C of a block.
    #[inline(always)]
    pub(super) fn run(
        &self,
        a: &Registers,
        b: &Registers,
        c: &Registers,
        metadata: &[u32; LANES],
        d: &mut Registers,
    ) {
        let (of_a, of_b) = (table(self.product.a), table(self.product.b));
        let pieces = if self.sparse.is_some() { 4 } else { 2 };
        let mut right = [[0u8; 8]; MAX_DEPTH];
        for (piece, words) in b.iter().enumerate().take(pieces) {
            for (l, word) in words.iter().enumerate() {
                for (i, byte) in word.to_le_bytes().into_iter().enumerate() {
                    right[16 * piece + l % 4 * 4 + i][l / 4] = byte;
                }
            }
        }
        let mut values = [[0f32; 8]; MAX_DEPTH];
        let mut exponents = [[0i32; 8]; MAX_DEPTH];
        for (k, bytes) in right.iter().enumerate().take(16 * pieces) {
            values[k] = bytes.map(|b| of_b.values[usize::from(b)]);
            exponents[k] = bytes.map(|b| of_b.exponents[usize::from(b)]);
        }
        for row in 0..16 {
            let mut left = [0u8; DEPTH];
            for (piece, words) in [&a[row / 8], &a[row / 8 + 2]].into_iter().enumerate() {
                for (n, word) in words[row % 8 * 4..][..4].iter().enumerate() {
                    left[16 * piece + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
                }
            }
            let mut columns: [usize; DEPTH] = std::array::from_fn(|k| k);
            if let Some(sparse) = &self.sparse {
                let e = |l: u32| metadata[l as usize & 31];
                columns = std::array::from_fn(|s| sparse.column(row, s, &e) % MAX_DEPTH);
            }
            let addends: [Term; 8] = std::array::from_fn(|j| self.addend(c, row, j));
            let mut top = addends.map(|c| c.exponent);
            let mut plain = addends.map(|c| c.value as f32);
            for (x, &k) in left.iter().zip(&columns) {
                let (value, e) = (
                    of_a.values[usize::from(*x)],
                    of_a.exponents[usize::from(*x)],
                );
                for j in 0..8 {
                    top[j] = top[j].max(e + exponents[k][j]);
                    plain[j] += value * values[k][j];
                }
            }
            let exact = top.iter().all(|&t| t >= LEAST_TOP) && plain.iter().all(|s| s.is_finite());
            if !exact {
                for (j, &c) in addends.iter().enumerate() {
                    let pairs = left.iter().zip(&columns).map(|(x, &k)| {
                        let term = |t: &ByteValues, byte: u8| Term {
                            value: t.values[usize::from(byte)].into(),
                            exponent: t.exponents[usize::from(byte)],
                        };
                        (term(of_a, *x), term(of_b, right[k][j]))
                    });
                    self.put(d, row, j, Self::sum(c, pairs));
                }
                continue;
            }
            let power = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
            let per_unit = top.map(|t| power(GRID_BITS - t));
            // Fewer than 2^21 units in all: sums of whole numbers in f32 are exact.
            let mut total: [f32; 8] =
                std::array::from_fn(|j| (addends[j].value as f32 * per_unit[j]).trunc());
            for (x, &k) in left.iter().zip(&columns) {
                let value = of_a.values[usize::from(*x)];
                for j in 0..8 {
                    total[j] += (value * values[k][j] * per_unit[j]).trunc();
                }
            }
            for j in 0..8 {
                let unit = f64::from_bits(((top[j] - GRID_BITS + 1023) as u64) << 52);
                self.put(d, row, j, f64::from(total[j]) * unit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mma::{BitOp, FragmentLayout};
    use super::*;

    #[test]
    fn bytes_stand_for_what_the_formats_say() {
        for byte in 0..=255u8 {
            for (element, table) in [
                (MmaElement::E4m3, &E4M3_BYTES),
                (MmaElement::E5m2, &E5M2_BYTES),
            ] {
                let (value, want) = (table.values[usize::from(byte)], element.float(byte.into()));
                assert!(
                    f64::from(value) == want || value.is_nan() && want.is_nan(),
                    "{byte:#x}"
                );
            }
        }
    }

    #[test]
    fn eight_columns_at_a_time_have_the_sums_of_one() {
        let mut random = fercuda_trials::rng();
        for round in 0..400 {
            let types = [MmaElement::E4m3, MmaElement::E5m2];
            let mut sums = || {
                if random.bool() {
                    Accumulator::F16
                } else {
                    Accumulator::F32
                }
            };
            let d = sums();
            let product = Mma {
                m: 16,
                n: 8,
                k: 32,
                a: types[random.usize(0..2)],
                b: types[random.usize(0..2)],
                c: d,
                d,
                saturate: false,
                bit_op: BitOp::And,
                layout: FragmentLayout::Mma,
            };
            let mut registers = || -> Registers {
                std::array::from_fn(|_| {
                    std::array::from_fn(|_| {
                        // Mostly numbers near one, and at times any bits.
                        let word = random.u32(..);
                        if round % 4 == 0 {
                            word
                        } else {
                            word & 0x8f8f_8f8f | 0x3030_3030
                        }
                    })
                })
            };
            let (a, b, c) = (registers(), registers(), registers());
            let p = NarrowProduct::of(&product, None);
            let (mut got, mut want) = ([[0; LANES]; 8], [[0; LANES]; 8]);
            p.run(&a, &b, &c, &[0; LANES], &mut got);
            for row in 0..16 {
                for column in 0..8 {
                    let byte =
                        |r: &Registers, n: usize, l: usize, i: usize| r[n][l].to_le_bytes()[i];
                    let pairs = (0..DEPTH).map(|k| {
                        let (piece, lane, i) = (k / 16, k % 16 / 4, k % 4);
                        let x = byte(&a, row / 8 + 2 * piece, row % 8 * 4 + lane, i);
                        let y = byte(&b, piece, column * 4 + lane, i);
                        let term = |e: MmaElement, byte: u8| {
                            let (bits, bias) = if e == MmaElement::E4m3 {
                                (3, 7)
                            } else {
                                (2, 15)
                            };
                            let field = u32::from(byte) >> bits & (0x7f >> bits);
                            Term::new(e.float(byte.into()), field, bias)
                        };
                        (term(product.a, x), term(product.b, y))
                    });
                    let sum = NarrowProduct::sum(p.addend(&c, row, column), pairs);
                    p.put(&mut want, row, column, sum);
                }
            }
            let used = if d == Accumulator::F16 { 2 } else { 4 };
            assert_eq!(got[..used], want[..used], "{product:?}");
        }
    }
}
