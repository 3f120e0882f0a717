//! Sums of products as the tensor cores of compute capability 9.0 form them.
//!
//! All terms of an element, the accumulator among them, are aligned to the largest exponent among
//! them, truncated at a fixed number of bits below it, added exactly, and rounded once. The
//! exponent of a product is that of its factors added; subnormal factors have the smallest exponent
//! of their format and are not normalised. A zero result is +0, every NaN the canonical one.
//!
//! NVIDIA documents none of this. The rule is that of "MMA-Sim" (arXiv 2511.10909) and of arXiv
//! 2512.07004, with the smallest exponent of a grid and the signs of zeros taken from recordings of
//! an H200 (`docs/software-device.md`).

use super::mma_types::{Accumulator, MAX_MN, MmaElement};
use super::scalar::RoundMode;
use super::scalar::float::narrow;
use super::scalar::half::{F16, Overflow};

/// The exponent of a zero, far below that of any product.
pub(crate) const NO_TERM: i32 = -5000;

/// How one kind of sum is formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DotRule {
    /// Smallest exponents of elements of A, of B and of sums.
    pub(super) lowest: [i32; 3],
    /// The exponent that a grid is aligned to at least.
    pub(super) floor: i32,
    /// Bits of a term below the largest exponent; the rest is cut off.
    pub(super) grid_bits: i32,
    /// Bits of the fraction of a result in f32, whose rest is cut off.
    pub(super) fraction: u32,
    /// The result is an f16, rounded to nearest even.
    pub(super) half: bool,
}

impl DotRule {
    /// The rule of `mma.sync` and `wmma`, and of `wgmma` but for elements of 8 bits. Elements of 8
    /// bits are taken as f16, which `mma.sync` turns them into.
    pub(crate) const fn of(a: MmaElement, b: MmaElement, sums: Accumulator) -> DotRule {
        Self::with([lowest_as_half(a), lowest_as_half(b)], sums, 25, 23)
    }

    /// The rule of `wgmma` for e4m3 and e5m2.
    #[cfg_attr(not(test), expect(dead_code, reason = "`wgmma` forms its sums by it"))]
    pub(crate) const fn of_group_fp8(a: MmaElement, b: MmaElement, sums: Accumulator) -> DotRule {
        Self::with([lowest(a), lowest(b)], sums, 13, 13)
    }

    const fn with([a, b]: [i32; 2], sums: Accumulator, grid_bits: i32, fraction: u32) -> DotRule {
        let half = matches!(sums, Accumulator::F16);
        let c = if half { -14 } else { -126 };
        DotRule {
            lowest: [a, b, c],
            floor: c - 7,
            grid_bits,
            fraction,
            half,
        }
    }

    /// Adds to each of a row of sums the product of `left` with its column of `right`, which has a
    /// row for each element of `left`. Sums are values of the format that the rule is for, and stay
    /// so.
    pub(crate) fn add(&self, sums: &mut [f64], left: &[f64], right: &[[f64; MAX_MN]]) {
        let mut top = [NO_TERM; MAX_MN];
        let mut finite = true;
        for (t, s) in top.iter_mut().zip(&*sums) {
            *t = exponent(*s, self.lowest[2]);
            finite &= s.is_finite();
        }
        for (x, right) in left.iter().zip(right) {
            let e = exponent(*x, self.lowest[0]);
            finite &= x.is_finite();
            for (t, y) in top.iter_mut().zip(right).take(sums.len()) {
                finite &= y.is_finite();
                *t = (*t).max(e + exponent(*y, self.lowest[1]));
            }
        }
        for (j, s) in sums.iter_mut().enumerate() {
            let pairs = left.iter().zip(right.iter().map(|right| right[j]));
            if !finite {
                // Infinities and NaN decide alone; the grid has no say.
                let plain = pairs.clone().fold(*s, |total, (x, y)| total + x * y);
                if !plain.is_finite() {
                    *s = plain;
                    continue;
                }
            }
            if top[j] < -1000 {
                *s = 0.0;
                continue;
            }
            let top = top[j].max(self.floor);
            let per_unit = power(self.grid_bits - top);
            let total = pairs.fold((*s * per_unit).trunc(), |t, (x, y)| {
                t + (x * y * per_unit).trunc()
            });
            *s = self.round(total * power(top - self.grid_bits));
        }
    }

    /// The result of an exact sum.
    fn round(&self, total: f64) -> f64 {
        if self.half {
            // Adding a zero makes of -0 a +0.
            let bits = F16.round(total, RoundMode::Nearest, Overflow::Ieee);
            return F16.value(bits) + 0.0;
        }
        let total = if self.fraction == 23 {
            total
        } else if total.abs() < 2f64.powi(-126) {
            let units = 126 + self.fraction as i32;
            (total * power(units)).trunc() * power(-units)
        } else {
            f64::from_bits(total.to_bits() & !0 << (52 - self.fraction))
        };
        if total.abs() < 2f64.powi(128) {
            f64::from(narrow(total, RoundMode::Zero)) + 0.0
        } else {
            f64::INFINITY.copysign(total)
        }
    }
}

/// Smallest exponent of a format, which its subnormal numbers have too.
const fn lowest(element: MmaElement) -> i32 {
    match element {
        MmaElement::F16 | MmaElement::E5m2 => -14,
        MmaElement::E4m3 => -6,
        _ => -126,
    }
}

/// The same of the format in which the elements are multiplied by `mma.sync`.
const fn lowest_as_half(element: MmaElement) -> i32 {
    match element {
        MmaElement::E4m3 => -14,
        _ => lowest(element),
    }
}

/// 2^e of a normal f64.
#[inline(always)]
fn power(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

#[inline(always)]
fn exponent(x: f64, lowest: i32) -> i32 {
    if x == 0.0 {
        NO_TERM
    } else {
        ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MmaElement::{Bf16, E4m3, F16 as Half, Tf32};

    /// `c + left . right` by a rule.
    fn sum(rule: DotRule, c: f64, terms: &[(f64, f64)]) -> f64 {
        let left: Vec<f64> = terms.iter().map(|t| t.0).collect();
        let right: Vec<[f64; MAX_MN]> = terms.iter().map(|t| [t.1; MAX_MN]).collect();
        let mut sums = [c];
        rule.add(&mut sums, &left, &right);
        sums[0]
    }

    fn p(e: i32) -> f64 {
        2f64.powi(e)
    }

    #[test]
    fn terms_are_cut_25_bits_below_the_largest() {
        let rule = DotRule::of(Half, Half, Accumulator::F32);
        // Each alone is lost, though both would reach the result.
        let small = (p(-13), p(-13));
        let lost = [
            (1.0, 1.0),
            small,
            small,
            small,
            small,
            small,
            small,
            small,
            small,
        ];
        assert_eq!(sum(rule, 0.0, &lost), 1.0);
        let kept = [
            (1.0, 1.0),
            (p(-12), p(-13)),
            (p(-12), p(-13)),
            (p(-12), p(-13)),
            (p(-12), p(-13)),
        ];
        assert_eq!(sum(rule, 0.0, &kept), 1.0 + p(-23));
        // A negative term is cut toward zero too, and so is the sum.
        assert_eq!(sum(rule, 1.0, &[(-p(-13), p(-13))]), 1.0);
        assert_eq!(sum(rule, 1.0, &[(-p(-12), p(-13))]), 1.0 - p(-24));
    }

    #[test]
    fn subnormal_factors_have_the_smallest_exponent() {
        let rule = DotRule::of(Half, Half, Accumulator::F32);
        assert_eq!(sum(rule, p(-40), &[(p(-24), 1.0)]), p(-24));
        assert_eq!(sum(rule, p(-39), &[(p(-24), 1.0)]), p(-24) + p(-39));
        // As an element of tf32 the same number is normal.
        let rule = DotRule::of(Tf32, Tf32, Accumulator::F32);
        assert_eq!(sum(rule, p(-47), &[(p(-24), 1.0)]), p(-24) + p(-47));
    }

    #[test]
    fn no_grid_is_finer_than_that_of_the_smallest_exponent() {
        let rule = DotRule::of(Tf32, Tf32, Accumulator::F32);
        let small = (p(-79), p(-80));
        assert_eq!(sum(rule, 0.0, &[(p(-79), p(-79)); 512]), p(-149));
        assert_eq!(sum(rule, 0.0, &[small; 1024]), 0.0);
    }

    #[test]
    fn halves_are_rounded_once_from_cut_terms() {
        let rule = DotRule::of(Half, Half, Accumulator::F16);
        // Recorded: a tie, once the other term is cut off.
        let terms = [(-0.000_854_492_187_5, p(-12)), (-p(-24), -p(-24))];
        assert_eq!(sum(rule, 0.0, &terms), -4.0 * p(-24));
        assert_eq!(sum(rule, 1.0, &[(p(-11), 1.0)]), 1.0);
        assert_eq!(
            sum(rule, 1.0, &[(p(-11), 1.0), (p(-12), p(-12))]),
            1.0 + p(-10)
        );
        assert_eq!(sum(rule, 65504.0, &[(16.0, 1.0)]), f64::INFINITY);
    }

    #[test]
    fn groups_of_four_warps_cut_8_bit_terms_at_13_bits() {
        let rule = DotRule::of_group_fp8(E4m3, E4m3, Accumulator::F32);
        assert_eq!(sum(rule, 1.0, &[(p(-7), p(-7))]), 1.0);
        assert_eq!(sum(rule, 1.0, &[(p(-7), p(-6))]), 1.0 + p(-13));
        assert_eq!(sum(rule, 1.0 + p(-14), &[]), 1.0);
    }

    #[test]
    fn zeros_have_no_sign_and_infinities_decide() {
        let rule = DotRule::of(Bf16, Bf16, Accumulator::F32);
        for (c, terms) in [
            (-0.0, vec![(-0.0, 1.0)]),
            (0.0, vec![(-p(-100), p(-100))]),
            (1.0, vec![(-1.0, 1.0)]),
        ] {
            assert_eq!(sum(rule, c, &terms).to_bits(), 0);
        }
        assert_eq!(sum(rule, 0.0, &[(-p(127), 2.0)]), f64::NEG_INFINITY);
        assert_eq!(
            sum(rule, f64::INFINITY, &[(-p(127), p(127))]),
            f64::INFINITY
        );
        assert!(sum(rule, 0.0, &[(f64::INFINITY, 0.0)]).is_nan());
    }
}
