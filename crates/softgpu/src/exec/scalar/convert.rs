//! `cvt` between integers and floating point, and rounding to integral values.

use super::RoundMode;

/// An integer type: width in bits and signedness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct IntFormat {
    /// 8, 16, 32 or 64.
    pub(crate) bits: u32,
    /// Two's complement.
    pub(crate) signed: bool,
}

impl IntFormat {
    const fn min(self) -> i128 {
        if self.signed {
            -(1 << (self.bits - 1))
        } else {
            0
        }
    }

    const fn max(self) -> i128 {
        if self.signed {
            (1 << (self.bits - 1)) - 1
        } else {
            (1 << self.bits) - 1
        }
    }

    /// The low bits of `raw` as a value of this type.
    #[inline(always)]
    pub(crate) fn value(self, raw: u64) -> i128 {
        let shift = 64 - self.bits;
        if self.signed {
            i128::from((raw << shift) as i64 >> shift)
        } else {
            i128::from((raw << shift) >> shift)
        }
    }

    /// `value` clamped to the range of this type, as the low bits of a register (sign-extended to
    /// 64).
    #[inline(always)]
    pub(crate) fn clamp(self, value: i128) -> u64 {
        value.clamp(self.min(), self.max()) as u64
    }
}

/// `cvt{.sat}` between integers. Without `.sat` the low bits are kept and extended by the
/// destination's sign.
#[inline(always)]
pub(crate) fn int_to_int(to: IntFormat, from: IntFormat, raw: u64, sat: bool) -> u64 {
    let v = from.value(raw);
    if sat {
        to.clamp(v)
    } else {
        to.value(v as u64) as u64
    }
}

/// `x` rounded to an integral value in direction `r`; the sign of zero is kept.
#[inline(always)]
pub(crate) fn integral(x: f64, r: RoundMode) -> f64 {
    match r {
        RoundMode::Nearest => x.round_ties_even(),
        RoundMode::NearestAway => x.round(),
        RoundMode::Zero => x.trunc(),
        RoundMode::Down => x.floor(),
        RoundMode::Up => x.ceil(),
    }
}

/// `cvt.{rni,rzi,rmi,rpi}` from floating point: out of range clamps.
///
/// NaN becomes 0, but the most negative number when source or destination has 64 bits.
#[inline(always)]
pub(crate) fn float_to_int(to: IntFormat, x: f64, r: RoundMode, from_bits: u32) -> u64 {
    if x.is_nan() {
        return if to.bits == 64 || from_bits == 64 {
            to.value(1 << (to.bits - 1)) as u64
        } else {
            0
        };
    }
    // Casting saturates, and i128 holds every integer in question.
    to.clamp(integral(x, r) as i128)
}

/// An integer rounded to a format with `fraction_bits` and exponents up to 1023, as f64: exact from
/// there on.
///
/// # Panics
/// Never: an integer of 64 bits fits the exponent range of f32 and f64; callers round f16 and bf16
/// further.
#[inline(always)]
fn int_to_binary(v: i128, fraction_bits: u32, r: RoundMode) -> f64 {
    if v == 0 {
        return 0.0;
    }
    let (negative, magnitude) = (v < 0, v.unsigned_abs() as u64);
    let length = 64 - magnitude.leading_zeros();
    let cut = length.saturating_sub(fraction_bits + 1);
    let kept = magnitude >> cut;
    let rest = magnitude - (kept << cut);
    let order = if rest == 0 {
        None
    } else {
        Some(rest.cmp(&(1 << (cut - 1))))
    };
    let kept = kept + u64::from(r.increments(negative, kept, order));
    let x = kept as f64 * f64::from_bits(u64::from(1023 + cut) << 52);
    if negative { -x } else { x }
}

/// `cvt.r.f32` from an integer.
#[inline(always)]
pub(crate) fn int_to_f32(from: IntFormat, raw: u64, r: RoundMode) -> f32 {
    int_to_binary(from.value(raw), 23, r) as f32
}

/// `cvt.r.f64` from an integer.
#[inline(always)]
pub(crate) fn int_to_f64(from: IntFormat, raw: u64, r: RoundMode) -> f64 {
    int_to_binary(from.value(raw), 52, r)
}

/// `cvt.r` from an integer to f16 or bf16.
#[inline(always)]
pub(crate) fn int_to_half(
    format: super::half::HalfFormat,
    from: IntFormat,
    raw: u64,
    r: RoundMode,
) -> u16 {
    // 2^64 has 65 bits: round to odd at 53 bits first where the integer is longer, then once.
    let v = from.value(raw);
    let exact = int_to_binary(v, 52, RoundMode::Zero);
    let odd = if exact as i128 == v {
        exact
    } else {
        f64::from_bits(exact.to_bits() | 1)
    };
    format.round(odd, r, super::half::Overflow::Ieee) as u16
}
