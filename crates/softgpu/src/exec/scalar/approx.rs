//! The `.approx` functions, with the bits of an H200.
//!
//! A multifunction unit takes the leading bits of a mantissa, or of an angle, as the number of an
//! interval, looks up a value, a slope and a curvature, and adds `value + slope * x + curve * x^2`
//! in fixed point for the rest `x`; its squarer cuts each row of the product (Oberman and Siu, "A
//! high-performance area-efficient multifunction interpolator", 2005; patent US 7366745). What
//! surrounds the unit (subnormals are scaled, angles become revolutions, `rsqrt.approx.f64` has a
//! Newton step) is what NVIDIA's compiler emits for `sm_90`.
//!
//! The results of all operands of f32, f16 and bf16, and of all upper halves of f64, add up to what
//! an H200 gave (`tests`); so do those of 2^32 quotients.
//!
//! Elsewhere: the coefficients, and where they come from ([`tables`]).

mod tables;
#[cfg(test)]
mod tests;

use tables::Interval;

use super::RoundMode::Nearest;
use super::float::{self, FloatFinish, NAN_F32, NAN_F64, canonical, quiet};
use super::half::{F16, HalfFormat};
use crate::exec::halves::f16_to_f32;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;
/// 1.0 in the scale of a mantissa.
const ONE: u32 = 1 << 23;
/// 2^24, which makes subnormals normal, and its square root.
const UP: f32 = 16_777_216.0;
const ROOT_UP: f32 = 4096.0;
/// 2^126: reciprocals of greater numbers are subnormal.
const GREAT: f32 = 8.507_059e37;
const FLUSH: FloatFinish = FloatFinish {
    ftz: true,
    sat: false,
};

/// `x` squared in units of 2^19: the squarer of 17 bits adds the products of two bits that weigh at
/// least 2^18. Those of two upper bits all do, of two lower bits none.
#[inline(always)]
fn square(x: u32) -> u32 {
    let (upper, lower) = (x >> 9, x & 511);
    let mut mixed = 0;
    for i in 1..8 {
        let row = lower >> (9 - i);
        mixed += row & ((upper << (31 - i)) as i32 >> 31) as u32;
    }
    ((upper * upper) >> 1) + mixed
}

/// How a function adds up an interval's coefficients.
#[derive(Clone, Copy)]
struct Scale {
    /// Places that the value is shifted up.
    value: u32,
    /// Factor of the slope: its sign.
    slope: i64,
    /// Factor of the curvature: its sign and weight.
    curve: i64,
}

const RCP: Scale = scale(13, -1, 1);
const RSQRT: Scale = scale(14, -1, 4);
const SQRT: Scale = scale(15, 1, -2);
const EX2: Scale = scale(13, 1, 1);
const LG2: Scale = scale(12, 1, -2);
const SIN: Scale = scale(11, 1, -1);
const TANH: Scale = scale(15, 1, -2);

const fn scale(value: u32, slope: i64, curve: i64) -> Scale {
    Scale {
        value,
        slope,
        curve,
    }
}

impl Scale {
    #[inline(always)]
    fn sum(self, interval: Interval, x: u32, square: u32) -> i64 {
        (i64::from(interval.value()) << self.value)
            + self.slope * (u64::from(interval.slope()) * u64::from(x)) as i64
            + self.curve * (u64::from(interval.curve()) * u64::from(square)) as i64
    }

    /// The sum at the position `at` of 23 bits of a table that divides them by their upper 6.
    #[inline(always)]
    fn at(self, table: &[Interval; 64], at: u32) -> i64 {
        let x = at & 0x1_ffff;
        self.sum(table[(at >> 17) as usize & 63], x, square(x))
    }

    /// The sum at the position `at` of 24 bits of a table that divides them by their upper 7.
    #[inline(always)]
    fn at_root(self, table: &[Interval; 128], at: u32) -> i64 {
        let x = at & 0x1_ffff;
        self.sum(table[(at >> 17) as usize & 127], x, square(x))
    }
}

/// `yes` if `condition`, else `no`; without a branch, for code in vectors.
#[inline(always)]
fn pick(condition: bool, yes: u32, no: u32) -> u32 {
    let mask = u32::from(condition).wrapping_neg();
    yes & mask | no & !mask
}

/// [`pick`] for f32.
#[inline(always)]
fn pick_f32(condition: bool, yes: f32, no: f32) -> f32 {
    f32::from_bits(pick(condition, yes.to_bits(), no.to_bits()))
}

/// Sign, exponent field and mantissa.
#[inline(always)]
fn fields(bits: u32) -> (u32, i32, u32) {
    (bits & SIGN, (bits >> 23 & 255) as i32, bits & (ONE - 1))
}

#[inline(always)]
fn is_nan(bits: u32) -> bool {
    bits & !SIGN > INFINITY
}

/// Twice the reciprocal of `1.mantissa`, as a mantissa from [`ONE`] to twice that.
#[inline(always)]
fn rcp_mantissa(mantissa: u32) -> u32 {
    let x = mantissa & 0xffff;
    let interval = tables::RCP[(mantissa >> 16) as usize & 127];
    ((RCP.sum(interval, x, square(x << 1)) + 0x47e7) >> 15) as u32
}

/// Twice the reciprocal square root of `1.mantissa`, or of twice that if `odd` is 1.
#[inline(always)]
fn rsqrt_mantissa(mantissa: u32, odd: u32) -> u32 {
    let at = mantissa | odd << 23;
    // Of 1 exactly 2 - 2^-23 without the addition.
    ((RSQRT.at_root(&tables::RSQRT, at) + 0x7fff) >> 16) as u32 + u32::from(at == 0)
}

#[inline(always)]
fn rcp_unit(bits: u32) -> u32 {
    let (sign, exponent, mantissa) = fields(bits);
    let result = ((253 - exponent) << 23) + (rcp_mantissa(mantissa) - ONE) as i32;
    let result = pick(result < ONE as i32, 0, result as u32);
    let result = pick(exponent == 0, INFINITY, result);
    let result = pick(exponent == 255, 0, result);
    pick(is_nan(bits), NAN_F32, sign | result)
}

#[inline(always)]
fn rsqrt_unit(bits: u32) -> u32 {
    let (sign, exponent, mantissa) = fields(bits);
    let e = exponent - 127;
    let result = ((126 - (e >> 1)) << 23) as u32 + (rsqrt_mantissa(mantissa, e as u32 & 1) - ONE);
    let result = pick(bits > INFINITY, NAN_F32, result);
    let result = pick(bits == INFINITY, 0, result);
    pick(exponent == 0, sign | INFINITY, result)
}

#[inline(always)]
fn sqrt_unit(bits: u32) -> u32 {
    let (sign, exponent, mantissa) = fields(bits);
    let e = exponent - 127;
    let at = mantissa | (e as u32 & 1) << 23;
    let root = ((SQRT.at_root(&tables::SQRT, at) + 0x7fff) >> 17) as u32;
    let result = (((e >> 1) + 127) << 23) as u32 + (root - ONE);
    let result = pick(bits > INFINITY, NAN_F32, result);
    let result = pick(bits == INFINITY, INFINITY, result);
    pick(exponent == 0, sign, result)
}

#[inline(always)]
fn ex2_unit(bits: u32) -> u32 {
    let (sign, exponent, mantissa) = fields(bits);
    // Fixed point of 23 fractional bits; what is below is cut, and a fraction is negated by
    // inverting its bits.
    let (up, down) = ((exponent - 127).clamp(0, 6), (127 - exponent).clamp(0, 31));
    let magnitude = pick(exponent == 0, 0, (mantissa | ONE) << up >> down);
    let has_fraction = magnitude & (ONE - 1) != 0;
    let negative = (!magnitude).wrapping_add(u32::from(!has_fraction));
    let fixed = pick(sign == 0, magnitude, negative);
    let power = ((EX2.at(&tables::EX2, fixed & (ONE - 1)) + 0x77e2) >> 15) as i32;
    let result = ((fixed as i32 >> 23) + 127) * ONE as i32 + (power - ONE as i32);
    let result = pick(result < ONE as i32, 0, result as u32);
    let beyond = pick(sign == 0, INFINITY, 0);
    let result = pick(exponent >= 134, beyond, result);
    pick(is_nan(bits), NAN_F32, result)
}

/// `magnitude * 2^scale` as the bits of an f32, those beyond 24 cut. `magnitude` is below 2^52.
#[inline(always)]
fn cut(magnitude: u64, scale: i32) -> u32 {
    const WHOLE: u64 = 0x4330_0000_0000_0000;
    let exact = f64::from_bits(magnitude | WHOLE) - f64::from_bits(WHOLE);
    (cut_to_f32(exact) * f32::from_bits(((127 + scale) as u32) << 23)).to_bits()
}

/// A number, the bits beyond 24 cut, if it is no subnormal f32.
#[inline(always)]
fn cut_to_f32(x: f64) -> f32 {
    f64::from_bits(x.to_bits() & !((1 << 29) - 1)) as f32
}

#[inline(always)]
fn lg2_unit(bits: u32) -> u32 {
    let (_, exponent, mantissa) = fields(bits);
    let fraction = (LG2.at(&tables::LG2, mantissa) + 0x3345) >> 2;
    let fraction = fraction & -i64::from(bits != 127 << 23);
    let whole = (i64::from(exponent - 127) << 36) + fraction;
    let inverted = (whole >> 63) as u64;
    let result = inverted as u32 & SIGN | cut(whole as u64 ^ inverted, -36);
    let result = pick(bits > INFINITY, NAN_F32, result);
    let result = pick(bits == INFINITY, INFINITY, result);
    let result = pick(exponent == 0, SIGN | INFINITY, result);
    pick(is_nan(bits), NAN_F32, result)
}

/// The sine of `bits` revolutions, or the cosine.
#[inline(always)]
fn sine_unit(bits: u32, cosine: bool) -> u32 {
    let (sign, exponent, mantissa) = fields(bits);
    // Quarters of a revolution with 23 fractional bits; what is below is cut.
    let (up, down) = ((exponent - 125).clamp(0, 31), (125 - exponent).clamp(0, 31));
    let fixed = pick(exponent == 0, 0, (mantissa | ONE) << up >> down);
    let quarter = (fixed >> 23) + u32::from(cosine);
    let within = (fixed ^ (quarter & 1).wrapping_neg()) & (ONE - 1);
    let sum = SIN.at(&tables::SIN, within);
    let sign = pick(cosine, 0, sign) ^ (quarter & 2) << 30;
    pick(exponent == 255, NAN_F32, sign | cut(sum as u64, -37))
}

/// Revolutions of an angle in radians, cut to f32.
#[inline(always)]
fn revolutions(a: f32) -> f32 {
    const TURN: f32 = 0.159_154_94;
    cut_to_f32(f64::from(a) * f64::from(TURN))
}

#[inline(always)]
fn tanh_unit(bits: u32) -> u32 {
    let (sign, exponent, mantissa) = fields(bits);
    let octave = tables::TANH_OCTAVES[(exponent - 119).clamp(0, 10) as usize];
    let x = mantissa >> (6 - octave.divisions) & 0x1_ffff;
    let at = u32::from(octave.first) + (mantissa >> (23 - octave.divisions));
    let sum = TANH.sum(tables::TANH[(at as usize).min(50)], x, square(x));
    let result = cut(sum as u64, octave.scale);
    let result = pick(exponent >= 130, 127 << 23, result);
    let result = pick(exponent < 119, bits, result);
    pick(is_nan(bits), NAN_F32, sign | result)
}

/// Whether the code around the unit scales `a` up: it is subnormal, and not taken as zero.
#[inline(always)]
fn is_scaled(a: f32, ftz: bool) -> bool {
    !ftz && a.abs() < f32::MIN_POSITIVE
}

/// `rcp.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn rcp(a: f32, ftz: bool) -> f32 {
    let scale = pick_f32(is_scaled(a, ftz), UP, 1.0);
    let scale = pick_f32(!ftz && a.abs() > GREAT, 0.25, scale);
    canonical(f32::from_bits(rcp_unit((a * scale).to_bits())) * scale)
}

/// `sqrt.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn sqrt(a: f32, ftz: bool) -> f32 {
    let scaled = is_scaled(a, ftz);
    let root = sqrt_unit((a * pick_f32(scaled, UP, 1.0)).to_bits());
    canonical(f32::from_bits(root) * pick_f32(scaled, 1.0 / ROOT_UP, 1.0))
}

/// `rsqrt.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn rsqrt(a: f32, ftz: bool) -> f32 {
    let scaled = is_scaled(a, ftz);
    let root = rsqrt_unit((a * pick_f32(scaled, UP, 1.0)).to_bits());
    canonical(f32::from_bits(root) * pick_f32(scaled, ROOT_UP, 1.0))
}

/// `ex2.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn ex2(a: f32, ftz: bool) -> f32 {
    let low = !ftz && a < -126.0;
    let power = f32::from_bits(ex2_unit((a * pick_f32(low, 0.5, 1.0)).to_bits()));
    canonical(power * pick_f32(low, power, 1.0))
}

/// `lg2.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn lg2(a: f32, ftz: bool) -> f32 {
    let scaled = is_scaled(a, ftz);
    let result = lg2_unit((a * pick_f32(scaled, UP, 1.0)).to_bits());
    canonical(f32::from_bits(result) + pick_f32(scaled, -24.0, -0.0))
}

/// `sin.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn sin(a: f32) -> f32 {
    f32::from_bits(sine_unit(revolutions(a).to_bits(), false))
}

/// `cos.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn cos(a: f32) -> f32 {
    f32::from_bits(sine_unit(revolutions(a).to_bits(), true))
}

/// `tanh.approx.f32`
#[inline(always)]
pub(crate) fn tanh(a: f32) -> f32 {
    f32::from_bits(tanh_unit(a.to_bits()))
}

/// `div.approx{.ftz}.f32`
#[inline(always)]
pub(crate) fn div(a: f32, b: f32, ftz: bool) -> f32 {
    quotient(a, b, pick_f32(is_scaled(b, ftz), UP, 1.0), ftz)
}

/// `div.full{.ftz}.f32`
#[inline(always)]
pub(crate) fn div_full(a: f32, b: f32, ftz: bool) -> f32 {
    let scale = pick_f32(is_scaled(b, ftz), UP, 1.0);
    quotient(a, b, pick_f32(b.abs() > GREAT, 0.25, scale), ftz)
}

/// The quotient of `a * scale` and `b * scale`.
#[inline(always)]
fn quotient(a: f32, b: f32, scale: f32, ftz: bool) -> f32 {
    let times = |a: f32, b: f32| match ftz {
        true => float::mul(a, b, Nearest, FLUSH),
        false => canonical(a * b),
    };
    let reciprocal = f32::from_bits(rcp_unit(times(b, scale).to_bits()));
    times(times(a, scale), reciprocal)
}

/// An f32 as a half, what does not fit cut.
#[inline(always)]
fn cut_to_half(format: HalfFormat, x: f32) -> u16 {
    let bits = x.to_bits();
    if format != F16 {
        return (bits >> 16) as u16;
    }
    let (sign, magnitude) = ((bits >> 16) as u16 & 0x8000, bits & !SIGN);
    let result = if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        (f32::from_bits(magnitude) * UP) as u16
    } else {
        ((magnitude - 0x3800_0000) >> 13) as u16
    };
    if is_nan(bits) { 0x7fff } else { sign | result }
}

#[inline(always)]
fn half_value(format: HalfFormat, a: u16) -> f32 {
    if format == F16 {
        f16_to_f32(a)
    } else {
        f32::from_bits(u32::from(a) << 16)
    }
}

/// `ex2.approx.f16`, `ex2.approx.ftz.bf16`
#[inline(always)]
pub(crate) fn ex2_half(format: HalfFormat, a: u16) -> u16 {
    cut_to_half(format, ex2(half_value(format, a), true))
}

/// `tanh.approx.f16`, `tanh.approx.bf16`
#[inline(always)]
pub(crate) fn tanh_half(format: HalfFormat, a: u16) -> u16 {
    cut_to_half(format, tanh(half_value(format, a)))
}

/// The upper half of the bits of an f64, split as [`fields`] does.
#[inline(always)]
fn fields_f64(high: u32) -> (u32, i32, u32) {
    (high & SIGN, (high >> 20 & 2047) as i32, high & 0xf_ffff)
}

/// `rcp.approx.ftz.f64`: of the upper half of the bits; the result has no others.
#[inline(always)]
pub(crate) fn rcp_f64(a: f64) -> f64 {
    let high = (a.to_bits() >> 32) as u32;
    let (sign, exponent, mantissa) = fields_f64(high);
    let result = ((2045 - exponent) << 20) + ((rcp_mantissa(mantissa << 3) - ONE) >> 3) as i32;
    let result = if result < 1 << 20 { 0 } else { result as u32 };
    let result = match exponent {
        0 => sign | 0x7ff0_0000,
        2047 if mantissa != 0 => NAN_F32,
        2047 => sign,
        _ => sign | result,
    };
    f64::from_bits(u64::from(result) << 32)
}

/// `rsqrt.approx{.ftz}.f64`. With `.ftz` of the upper half of the bits, and the result has no
/// others; else a step of Newton's follows.
#[inline(always)]
pub(crate) fn rsqrt_f64(a: f64, ftz: bool) -> f64 {
    if ftz {
        return rsqrt_f64_unit(a);
    }
    if a.is_nan() {
        quiet(a)
    } else if a == 0.0 {
        f64::INFINITY.copysign(a)
    } else if a < 0.0 {
        f64::from_bits(NAN_F64)
    } else if a == f64::INFINITY {
        0.0
    } else if a < f64::MIN_POSITIVE {
        rsqrt_f64_step(a * 2f64.powi(54)) * 2f64.powi(27)
    } else {
        rsqrt_f64_step(a)
    }
}

#[inline(always)]
fn rsqrt_f64_step(a: f64) -> f64 {
    let y = rsqrt_f64_unit(a);
    let rest = a.mul_add(-(y * y), 1.0);
    rest.mul_add(0.375, 0.5).mul_add(y * rest, y)
}

#[inline(always)]
fn rsqrt_f64_unit(a: f64) -> f64 {
    let high = (a.to_bits() >> 32) as u32;
    let (sign, exponent, mantissa) = fields_f64(high);
    let e = exponent - 1023;
    let root = rsqrt_mantissa(mantissa << 3, e as u32 & 1);
    let result = match exponent {
        0 => sign | 0x7ff0_0000,
        2047 if mantissa != 0 => NAN_F32,
        _ if sign != 0 => NAN_F32,
        2047 => 0,
        _ => ((1022 - (e >> 1)) << 20) as u32 + ((root - ONE) >> 3),
    };
    f64::from_bits(u64::from(result) << 32)
}
