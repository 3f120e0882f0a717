//! Arithmetic on big integers, rounded once, as IEEE 754 defines it.
//!
//! Nothing here uses floating-point operations to compute floating-point results, so it shares no
//! rounding with the results it checks. A [`Number`] is `sign * digits * 2^exponent`, exactly;
//! quotients and roots keep more digits than any format has, and a sticky digit for a nonzero
//! remainder.

/// Which way to round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// To nearest, ties to even.
    Near,
    /// To nearest, ties away from zero.
    Away,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

use Round::{Away, Down, Near, Up, Zero};

/// The four that instructions name, in the order in which kernels write them.
pub(crate) const FOUR: [Round; 4] = [Near, Zero, Down, Up];

/// A binary format: exponent bits, fraction bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format(pub(crate) u32, pub(crate) u32);

pub(crate) const F64: Format = Format(11, 52);
pub(crate) const F32: Format = Format(8, 23);
pub(crate) const F16: Format = Format(5, 10);
pub(crate) const BF16: Format = Format(8, 7);
pub(crate) const E5M2: Format = Format(5, 2);

#[derive(Debug, Clone)]
pub(crate) struct Number {
    negative: bool,
    digits: Vec<u32>,
    exponent: i32,
}

impl Number {
    /// A finite f64.
    pub(crate) fn of(v: f64) -> Number {
        assert!(v.is_finite());
        let bits = v.to_bits();
        let raw = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let (m, e) = if raw == 0 {
            (fraction, -1074)
        } else {
            (fraction | 1 << 52, raw - 1075)
        };
        Number {
            negative: bits >> 63 == 1,
            digits: trimmed(vec![m as u32, (m >> 32) as u32]),
            exponent: e,
        }
    }

    /// A whole number.
    pub(crate) fn whole(v: i128) -> Number {
        let m = v.unsigned_abs();
        Number {
            negative: v < 0,
            digits: trimmed((0..4).map(|i| (m >> (32 * i)) as u32).collect()),
            exponent: 0,
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    fn length_bits(&self) -> i32 {
        self.digits.last().map_or(0, |top| {
            self.digits.len() as i32 * 32 - top.leading_zeros() as i32
        })
    }

    pub(crate) fn times(&self, other: &Number) -> Number {
        let mut digits = vec![0u32; self.digits.len() + other.digits.len()];
        for (i, &a) in self.digits.iter().enumerate() {
            let mut carry = 0u64;
            for (j, &b) in other.digits.iter().enumerate() {
                let sum = u64::from(digits[i + j]) + u64::from(a) * u64::from(b) + carry;
                digits[i + j] = sum as u32;
                carry = sum >> 32;
            }
            digits[i + other.digits.len()] = carry as u32;
        }
        Number {
            negative: self.negative != other.negative,
            digits: trimmed(digits),
            exponent: self.exponent + other.exponent,
        }
    }

    pub(crate) fn plus(&self, other: &Number) -> Number {
        if self.is_zero() {
            return other.clone();
        }
        if other.is_zero() {
            return self.clone();
        }
        let exponent = self.exponent.min(other.exponent);
        let a = shifted(&self.digits, (self.exponent - exponent) as u32);
        let b = shifted(&other.digits, (other.exponent - exponent) as u32);
        let (negative, digits) = if self.negative == other.negative {
            (self.negative, sum(&a, &b))
        } else if less(&a, &b) {
            (other.negative, difference(&b, &a))
        } else {
            (self.negative, difference(&a, &b))
        };
        Number {
            negative,
            digits,
            exponent,
        }
    }

    /// The quotient to at least sixty digits, and one more if the division leaves a remainder.
    pub(crate) fn over(&self, other: &Number) -> Number {
        let (a, b) = (self.significant(), other.significant());
        let (a, by) = (
            (a.0 << a.0.leading_zeros(), a.1),
            a.0.leading_zeros() as i32,
        );
        let numerator = u128::from(a.0) << 64;
        let (q, r) = (numerator / u128::from(b.0), numerator % u128::from(b.0));
        let mut n = Number::whole(0);
        n.digits = trimmed(
            (0..5)
                .map(|i| {
                    if i < 4 {
                        ((q << 1 | u128::from(r != 0)) >> (32 * i)) as u32
                    } else {
                        (q >> 127) as u32
                    }
                })
                .collect(),
        );
        n.negative = self.negative != other.negative;
        n.exponent = a.1 - by - b.1 - 65;
        n
    }

    /// The square root to sixty-odd digits, and one more if it is not exact.
    pub(crate) fn root(&self) -> Number {
        let (m, e) = self.significant();
        let (mut m, mut e) = (u128::from(m), e);
        let room = m.leading_zeros() as i32 - 2;
        let by = if (e - room) % 2 == 0 { room } else { room - 1 };
        m <<= by;
        e -= by;
        let mut low = 0u128;
        for bit in (0..64).rev() {
            let next = low | 1 << bit;
            if next * next <= m {
                low = next;
            }
        }
        let mut n = Number::whole((low << 1 | u128::from(low * low != m)) as i128);
        n.exponent = e / 2 - 1;
        n
    }

    /// At most 64 digits; only for numbers that have no more.
    fn significant(&self) -> (u64, i32) {
        assert!(self.digits.len() <= 2, "an operand of a format");
        let digit = |i: usize| u64::from(self.digits.get(i).copied().unwrap_or(0));
        (digit(0) | digit(1) << 32, self.exponent)
    }

    /// To a whole number, in 128 bits; larger ones saturate.
    pub(crate) fn to_whole(&self, round: Round) -> i128 {
        if self.length_bits() + self.exponent > 120 {
            return if self.negative { i128::MIN } else { i128::MAX };
        }
        let m = self.cut(0, round) as i128;
        if self.negative { -m } else { m }
    }

    /// The magnitude divided by 2^`at`, rounded to a whole number that fits.
    fn cut(&self, at: i32, round: Round) -> u128 {
        let drop = at - self.exponent;
        let bit = |i: i32| {
            i >= 0
                && self
                    .digits
                    .get(i as usize / 32)
                    .is_some_and(|d| d >> (i % 32) & 1 == 1)
        };
        let mut kept = 0u128;
        for i in (drop.max(0)..self.length_bits().max(drop)).rev() {
            kept = kept << 1 | u128::from(bit(i));
        }
        if drop <= 0 {
            return if kept == 0 { 0 } else { kept << -drop };
        }
        let half = bit(drop - 1);
        let rest = (0..(drop - 1).min(self.length_bits())).any(bit);
        let up = match round {
            Near => half && (rest || kept & 1 == 1),
            Away => half,
            Zero => false,
            Down => self.negative && (half || rest),
            Up => !self.negative && (half || rest),
        };
        kept + u128::from(up)
    }

    /// The encoding in `format`, and whether rounding overflowed to or past infinity.
    pub(crate) fn round(&self, format: Format, round: Round) -> u64 {
        let Format(exponent_bits, fraction_bits) = format;
        let sign = u64::from(self.negative) << (exponent_bits + fraction_bits);
        if self.is_zero() {
            return sign;
        }
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let lowest = 1 - bias;
        let exponent = (self.length_bits() + self.exponent - 1).max(lowest);
        let mut m = self.cut(exponent - fraction_bits as i32, round) as u64;
        let mut exponent = exponent;
        if m >> (fraction_bits + 1) == 1 {
            m >>= 1;
            exponent += 1;
        }
        if exponent > bias {
            let infinite = match round {
                Near | Away => true,
                Zero => false,
                Down => self.negative,
                Up => !self.negative,
            };
            let top = (1u64 << exponent_bits) - 1;
            return sign
                | if infinite {
                    top << fraction_bits
                } else {
                    (top << fraction_bits) - 1
                };
        }
        if m >> fraction_bits == 0 {
            return sign | m;
        }
        sign | ((exponent + bias) as u64) << fraction_bits | (m & ((1 << fraction_bits) - 1))
    }
}

fn trimmed(mut digits: Vec<u32>) -> Vec<u32> {
    while digits.last() == Some(&0) {
        digits.pop();
    }
    digits
}

fn shifted(digits: &[u32], by: u32) -> Vec<u32> {
    let mut out = vec![0; by as usize / 32];
    let mut carry = 0u64;
    for &d in digits {
        carry |= u64::from(d) << (by % 32);
        out.push(carry as u32);
        carry >>= 32;
    }
    out.push(carry as u32);
    trimmed(out)
}

fn less(a: &[u32], b: &[u32]) -> bool {
    if a.len() != b.len() {
        a.len() < b.len()
    } else {
        a.iter().rev().lt(b.iter().rev())
    }
}

fn sum(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut carry = 0u64;
    let mut out = Vec::new();
    for i in 0..a.len().max(b.len()) {
        carry +=
            u64::from(a.get(i).copied().unwrap_or(0)) + u64::from(b.get(i).copied().unwrap_or(0));
        out.push(carry as u32);
        carry >>= 32;
    }
    out.push(carry as u32);
    trimmed(out)
}

fn difference(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut borrow = 0i64;
    let mut out = Vec::new();
    for (i, &d) in a.iter().enumerate() {
        borrow += i64::from(d) - i64::from(b.get(i).copied().unwrap_or(0));
        out.push(borrow as u32);
        borrow >>= 32;
    }
    trimmed(out)
}

/// The bits of a NaN, of an infinity and of a zero in `format`.
pub(crate) fn nan(format: Format) -> u64 {
    ((1u64 << (format.0 + 1)) - 1) << (format.1 - 1)
}

pub(crate) fn infinity(format: Format, negative: bool) -> u64 {
    u64::from(negative) << (format.0 + format.1) | ((1u64 << format.0) - 1) << format.1
}

pub(crate) fn zero(format: Format, negative: bool) -> u64 {
    u64::from(negative) << (format.0 + format.1)
}

/// Any f64, infinities and NaN included, in a narrower format.
pub(crate) fn narrow(v: f64, format: Format, round: Round) -> u64 {
    if v.is_nan() {
        nan(format)
    } else if v.is_infinite() {
        infinity(format, v < 0.0)
    } else {
        Number::of(v).round(format, round)
    }
}

/// a * b + c with one rounding. Operands are values of `format`.
pub(crate) fn fused(a: f64, b: f64, c: f64, format: Format, round: Round) -> u64 {
    let product_negative = a.is_sign_negative() != b.is_sign_negative();
    if a.is_nan()
        || b.is_nan()
        || c.is_nan()
        || (a.is_infinite() && b == 0.0)
        || (b.is_infinite() && a == 0.0)
    {
        return nan(format);
    }
    if a.is_infinite() || b.is_infinite() {
        let cancels = c.is_infinite() && c.is_sign_negative() != product_negative;
        return if cancels {
            nan(format)
        } else {
            infinity(format, product_negative)
        };
    }
    if c.is_infinite() {
        return infinity(format, c < 0.0);
    }
    let product = Number::of(a).times(&Number::of(b));
    let sum = product.plus(&Number::of(c));
    if sum.is_zero() {
        // Both parts zero of one sign keep it; anything else that cancels is +0, or -0 when
        // rounding down.
        let both = product.is_zero() && c == 0.0 && product_negative == c.is_sign_negative();
        return zero(
            format,
            if both {
                product_negative
            } else {
                round == Down
            },
        );
    }
    sum.round(format, round)
}

pub(crate) fn add(a: f64, b: f64, format: Format, round: Round) -> u64 {
    fused(a, 1.0, b, format, round)
}

pub(crate) fn subtract(a: f64, b: f64, format: Format, round: Round) -> u64 {
    fused(a, 1.0, -b, format, round)
}

pub(crate) fn multiply(a: f64, b: f64, format: Format, round: Round) -> u64 {
    let negative = a.is_sign_negative() != b.is_sign_negative();
    if a.is_nan() || b.is_nan() || (a.is_infinite() && b == 0.0) || (b.is_infinite() && a == 0.0) {
        nan(format)
    } else if a.is_infinite() || b.is_infinite() {
        infinity(format, negative)
    } else {
        let product = Number::of(a).times(&Number::of(b));
        if product.is_zero() {
            zero(format, negative)
        } else {
            product.round(format, round)
        }
    }
}

pub(crate) fn divide(a: f64, b: f64, format: Format, round: Round) -> u64 {
    let negative = a.is_sign_negative() != b.is_sign_negative();
    if a.is_nan() || b.is_nan() || (a == 0.0 && b == 0.0) || (a.is_infinite() && b.is_infinite()) {
        nan(format)
    } else if a.is_infinite() || b == 0.0 {
        infinity(format, negative)
    } else if b.is_infinite() || a == 0.0 {
        zero(format, negative)
    } else {
        Number::of(a).over(&Number::of(b)).round(format, round)
    }
}

pub(crate) fn square_root(a: f64, format: Format, round: Round) -> u64 {
    if a.is_nan() || a < 0.0 {
        nan(format)
    } else if a == 0.0 {
        zero(format, a.is_sign_negative())
    } else if a.is_infinite() {
        infinity(format, false)
    } else {
        Number::of(a).root().round(format, round)
    }
}

/// To an integer between `low` and `high`, saturating; NaN gives `of_nan`.
pub(crate) fn integer(v: f64, round: Round, low: i128, high: i128, of_nan: i128) -> i128 {
    if v.is_nan() {
        of_nan
    } else if v.is_infinite() {
        if v > 0.0 { high } else { low }
    } else {
        Number::of(v).to_whole(round).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_nearest_agrees_with_the_host_processor() {
        let mut rng = fercuda_trials::rng();
        for _ in 0..20_000 {
            let (a, b, c) = (
                f64::from_bits(rng.u64(..)),
                f64::from_bits(rng.u64(..)),
                f64::from_bits(rng.u64(..)),
            );
            let same = |got: u64, want: f64| {
                f64::from_bits(got).to_bits() == want.to_bits()
                    || (f64::from_bits(got).is_nan() && want.is_nan())
            };
            assert!(same(add(a, b, F64, Near), a + b), "{a:e} + {b:e}");
            assert!(same(multiply(a, b, F64, Near), a * b), "{a:e} * {b:e}");
            assert!(same(divide(a, b, F64, Near), a / b), "{a:e} / {b:e}");
            assert!(same(square_root(a, F64, Near), a.sqrt()), "sqrt {a:e}");
            assert!(
                same(fused(a, b, c, F64, Near), a.mul_add(b, c)),
                "fma {a:e} {b:e} {c:e}"
            );
            let few = f64::from(rng.u64(..9) as u32 + 1);
            assert!(
                same(divide(few, a, F64, Near), few / a)
                    && same(divide(a, few, F64, Near), a / few),
                "{few} and {a:e}"
            );
            let near = (a, a * (1.0 + (rng.f64() - 0.5) * 1e-15));
            assert!(
                same(subtract(near.0, near.1, F64, Near), near.0 - near.1),
                "{near:?}"
            );
            let single = (a as f32, b as f32);
            let (x, y) = (f64::from(single.0), f64::from(single.1));
            let same32 = |got: u64, want: f32| got as u32 == want.to_bits() || want.is_nan();
            assert!(
                same32(add(x, y, F32, Near), single.0 + single.1),
                "{single:?}"
            );
            assert!(same32(narrow(a, F32, Near), a as f32), "{a:e}");
            assert_eq!(
                integer(a, Zero, i64::MIN.into(), i64::MAX.into(), 0),
                i128::from(a as i64),
                "{a:e}"
            );
        }
    }
}
