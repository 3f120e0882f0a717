//! The narrow formats: f16, bf16, tf32, fp8 e4m3 and e5m2.
//!
//! Their products are exact in f64, so an operation is one f64 sum rounded to odd and then once to
//! the format.

use super::RoundMode;
use super::float::{Extremum, narrow};

/// A binary format narrower than f32, by its field widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HalfFormat {
    exponent_bits: u32,
    fraction_bits: u32,
    /// The NaN that instructions produce.
    nan: u32,
    /// Largest finite value; what lies above it is infinity where the format has one.
    max: u32,
}

/// IEEE binary16.
pub(crate) const F16: HalfFormat = HalfFormat {
    exponent_bits: 5,
    fraction_bits: 10,
    nan: 0x7fff,
    max: 0x7bff,
};
/// The upper half of an f32.
pub(crate) const BF16: HalfFormat = HalfFormat {
    exponent_bits: 8,
    fraction_bits: 7,
    nan: 0x7fff,
    max: 0x7f7f,
};
/// 19 bits, held in the upper bits of 32.
pub(crate) const TF32: HalfFormat = HalfFormat {
    exponent_bits: 8,
    fraction_bits: 10,
    nan: 0x3ffff,
    max: 0x3fbff,
};
/// fp8 with 4 exponent bits: no infinity, one NaN a sign.
pub(crate) const E4M3: HalfFormat = HalfFormat {
    exponent_bits: 4,
    fraction_bits: 3,
    nan: 0x7f,
    max: 0x7e,
};
/// fp8 with 5 exponent bits.
pub(crate) const E5M2: HalfFormat = HalfFormat {
    exponent_bits: 5,
    fraction_bits: 2,
    nan: 0x7f,
    max: 0x7b,
};

/// What a result above the largest finite value becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Overflow {
    /// Infinity, or the largest finite value where the rounding direction says so.
    Ieee,
    /// `.satfinite`: the largest finite value, also for infinities.
    Finite,
}

impl HalfFormat {
    const fn bits(self) -> u32 {
        1 + self.exponent_bits + self.fraction_bits
    }

    const fn sign(self) -> u32 {
        1 << (self.bits() - 1)
    }

    const fn infinity(self) -> u32 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    /// The bits of `x` rounded to this format.
    #[inline(always)]
    pub(crate) fn round(self, x: f64, r: RoundMode, overflow: Overflow) -> u32 {
        let bits = x.to_bits();
        let negative = bits >> 63 == 1;
        let sign = if negative { self.sign() } else { 0 };
        if x.is_nan() {
            return self.nan;
        }
        if x.is_infinite() {
            return sign
                | if overflow == Overflow::Finite {
                    self.max
                } else {
                    self.infinity()
                };
        }
        if x == 0.0 {
            return sign;
        }
        let field = (bits >> 52) as i32 & 0x7ff;
        let (e, mantissa) = if field == 0 {
            (-1022, bits & ((1 << 52) - 1))
        } else {
            (field - 1023, bits & ((1 << 52) - 1) | 1 << 52)
        };
        let e_min = 2 - (1 << (self.exponent_bits - 1));
        let cut = (52 - self.fraction_bits as i32 + (e_min - e).max(0)).min(63) as u32;
        let kept = mantissa >> cut;
        let rest = mantissa & ((1 << cut) - 1);
        let order = if rest == 0 {
            None
        } else {
            Some(rest.cmp(&(1 << (cut - 1))))
        };
        let kept = kept + u64::from(r.increments(negative, kept, order));
        let magnitude = if e < e_min {
            kept
        } else {
            (((e - e_min) as u64) << self.fraction_bits) + kept
        } as u32;
        if magnitude <= self.max {
            return sign | magnitude;
        }
        let to_max = overflow == Overflow::Finite
            || matches!(
                (r, negative),
                (RoundMode::Zero, _) | (RoundMode::Down, false) | (RoundMode::Up, true)
            );
        sign | if to_max { self.max } else { self.infinity() }
    }

    /// The value of `bits`; exact.
    #[inline(always)]
    pub(crate) fn value(self, bits: u32) -> f64 {
        let magnitude = bits & (self.sign() - 1);
        let field = magnitude >> self.fraction_bits;
        let fraction = magnitude & ((1 << self.fraction_bits) - 1);
        let e_min = 2 - (1 << (self.exponent_bits - 1));
        let unit = |e: i32| f64::from_bits(((e - self.fraction_bits as i32 + 1023) as u64) << 52);
        let v = if magnitude > self.max {
            if magnitude == self.infinity() && self.max != 0x7e {
                f64::INFINITY
            } else {
                f64::NAN
            }
        } else if field == 0 {
            f64::from(fraction) * unit(e_min)
        } else {
            f64::from(fraction | 1 << self.fraction_bits) * unit(field as i32 + e_min - 1)
        };
        if bits & self.sign() != 0 { -v } else { v }
    }

    /// `bits`, which is `x` rounded, made zero if `x` rounded without a bound on the exponent is
    /// below the normals.
    #[inline(always)]
    fn flush_tiny(self, bits: u32, x: f64) -> u32 {
        let smallest = 1 << self.fraction_bits;
        let magnitude = bits & (self.sign() - 1);
        let scaled = || self.round(x * 4.0, RoundMode::Nearest, Overflow::Ieee) & (self.sign() - 1);
        if magnitude < smallest || magnitude == smallest && scaled() < smallest + 2 * smallest {
            bits & self.sign()
        } else {
            bits
        }
    }

    /// `bits` with a subnormal made zero.
    #[inline(always)]
    fn flush(self, bits: u32) -> u32 {
        if bits & self.infinity() == 0 {
            bits & self.sign()
        } else {
            bits
        }
    }
}

/// The value of f16 bits.
#[inline(always)]
pub(crate) fn f16_value(bits: u16) -> f64 {
    F16.value(bits.into())
}

/// The value of bf16 bits.
#[inline(always)]
pub(crate) fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// How a half-precision result is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HalfFinish {
    /// `.ftz`: subnormal operands and results are zero.
    pub(crate) ftz: bool,
    /// `.sat`: into [0, 1], NaN becomes +0.
    pub(crate) sat: bool,
    /// `.relu`: below zero becomes +0, NaN the canonical NaN.
    pub(crate) relu: bool,
}

impl HalfFinish {
    /// `x`, exact or rounded to odd, as a result.
    #[inline(always)]
    fn round(self, format: HalfFormat, x: f64) -> u16 {
        let bits = format.round(x, RoundMode::Nearest, Overflow::Ieee);
        let bits = if self.ftz {
            format.flush_tiny(bits, x)
        } else {
            bits
        };
        let nan = bits & (format.sign() - 1) > format.infinity();
        let negative = bits & format.sign() != 0;
        let one = format.round(1.0, RoundMode::Nearest, Overflow::Ieee);
        (if self.sat && (nan || negative) || self.relu && negative && !nan {
            0
        } else if self.sat && bits > one {
            one
        } else {
            bits
        }) as u16
    }

    #[inline(always)]
    fn operand(self, format: HalfFormat, bits: u16) -> f64 {
        format.value(if self.ftz {
            format.flush(bits.into())
        } else {
            bits.into()
        })
    }
}

/// `a * b + c` of values that came from a narrow format, rounded to odd.
#[inline(always)]
fn fused(a: f64, b: f64, c: f64) -> f64 {
    // The product of two 11-bit significands is exact; two_sum gives the error of the sum.
    let p = a * b;
    let s = p + c;
    let bb = s - p;
    let error = (p - (s - bb)) + (c - bb);
    if error != 0.0 && s.is_finite() && error.is_finite() {
        let bits = s.to_bits();
        f64::from_bits(
            (if (error > 0.0) == (s > 0.0) {
                bits
            } else {
                bits - 1
            }) | 1,
        )
    } else {
        s
    }
}

/// `add`, `a + b`
#[inline(always)]
pub(crate) fn add(format: HalfFormat, a: u16, b: u16, f: HalfFinish) -> u16 {
    f.round(
        format,
        fused(f.operand(format, a), 1.0, f.operand(format, b)),
    )
}

/// `sub`, `a - b`
#[inline(always)]
pub(crate) fn sub(format: HalfFormat, a: u16, b: u16, f: HalfFinish) -> u16 {
    f.round(
        format,
        fused(f.operand(format, b), -1.0, f.operand(format, a)),
    )
}

/// `mul`
#[inline(always)]
pub(crate) fn mul(format: HalfFormat, a: u16, b: u16, f: HalfFinish) -> u16 {
    f.round(format, f.operand(format, a) * f.operand(format, b))
}

/// `fma`
#[inline(always)]
pub(crate) fn fma(format: HalfFormat, a: u16, b: u16, c: u16, f: HalfFinish) -> u16 {
    f.round(
        format,
        fused(
            f.operand(format, a),
            f.operand(format, b),
            f.operand(format, c),
        ),
    )
}

/// `min` and `max`
#[inline(always)]
pub(crate) fn extremum(format: HalfFormat, a: u16, b: u16, rule: Extremum) -> u16 {
    let prepare = |x: u16| {
        if rule.ftz {
            format.flush(x.into()) as u16
        } else {
            x
        }
    };
    let (a, b) = (prepare(a), prepare(b));
    let sign = format.sign() as u16;
    let strip = |x: u16| if rule.xorsign { x & !sign } else { x };
    let (x, y) = (strip(a), strip(b));
    let is_nan = |x: u16| u32::from(x & !sign) > format.infinity();
    let chosen = match (is_nan(x), is_nan(y)) {
        (true, true) => return format.nan as u16,
        (true, false) | (false, true) if rule.nan => return format.nan as u16,
        (true, false) => y,
        (false, true) => x,
        (false, false) => {
            // Sign and magnitude to an ordered integer, with -0 just below +0.
            let order = |x: u16| {
                if x & sign != 0 {
                    -i32::from(x & !sign) - 1
                } else {
                    i32::from(x)
                }
            };
            if (order(x) < order(y)) == rule.max {
                y
            } else {
                x
            }
        }
    };
    if rule.xorsign {
        chosen & !sign | ((a ^ b) & sign)
    } else {
        chosen
    }
}

/// `neg`, NaN included.
#[inline(always)]
pub(crate) fn neg(format: HalfFormat, a: u16, ftz: bool) -> u16 {
    let a = if ftz {
        format.flush(a.into()) as u16
    } else {
        a
    };
    nan_or(format, a, a ^ format.sign() as u16)
}

/// `abs`
#[inline(always)]
pub(crate) fn abs(format: HalfFormat, a: u16, ftz: bool) -> u16 {
    let a = if ftz {
        format.flush(a.into()) as u16
    } else {
        a
    };
    nan_or(format, a, a & !(format.sign() as u16))
}

#[inline(always)]
fn nan_or(format: HalfFormat, a: u16, result: u16) -> u16 {
    if u32::from(a) & (format.sign() - 1) > format.infinity() {
        format.nan as u16
    } else {
        result
    }
}

/// `cvt` from f32 to f16, bf16 or tf32 (its result is in the upper 19 of 32 bits).
#[inline(always)]
pub(crate) fn from_f32(
    format: HalfFormat,
    x: f32,
    r: RoundMode,
    relu: bool,
    overflow: Overflow,
) -> u32 {
    if relu && x < 0.0 {
        return 0;
    }
    let bits = format.round(x.into(), r, overflow);
    let bits = if relu && bits == format.sign() {
        0
    } else {
        bits
    };
    if format != TF32 {
        bits
    } else if x.is_nan() && r == RoundMode::NearestAway {
        x.to_bits() & 0xffff_e000
    } else {
        bits << 13
    }
}

/// `cvt.r.f16.f64`: the payload of a NaN is cut, its sign kept.
#[inline(always)]
pub(crate) fn f16_from_f64(x: f64, r: RoundMode) -> u16 {
    if x.is_nan() {
        let bits = x.to_bits();
        return (bits >> 48) as u16 & 0x8000 | 0x7e00 | (bits >> 42) as u16 & 0x01ff;
    }
    F16.round(x, r, Overflow::Ieee) as u16
}

/// `cvt.f64.f16`: exact; the payload of a NaN is kept.
#[inline(always)]
pub(crate) fn f16_to_f64(x: u16) -> f64 {
    let v = F16.value(x.into());
    if v.is_nan() {
        let bits = u64::from(x);
        return f64::from_bits((bits & 0x8000) << 48 | 0x7ff8 << 48 | (bits & 0x01ff) << 42);
    }
    v
}

/// `cvt.rn.satfinite.{e4m3x2,e5m2x2}`: one element.
#[inline(always)]
pub(crate) fn to_fp8(format: HalfFormat, x: f64, relu: bool) -> u8 {
    if relu && x <= 0.0 {
        return 0;
    }
    format.round(x, RoundMode::Nearest, Overflow::Finite) as u8
}

/// `cvt.rn.f16x2.{e4m3x2,e5m2x2}`: one element; every fp8 value is an f16 value.
#[inline(always)]
pub(crate) fn fp8_to_f16(format: HalfFormat, x: u8, relu: bool) -> u16 {
    let v = format.value(x.into());
    if relu && v <= 0.0 {
        return 0;
    }
    F16.round(v, RoundMode::Nearest, Overflow::Ieee) as u16
}

/// f32 rounded from the value of a narrow format.
#[inline(always)]
pub(crate) fn to_f32(v: f64) -> f32 {
    super::float::canonical(narrow(v, RoundMode::Nearest))
}
