//! f32 and f64 arithmetic in every rounding direction.
//!
//! Rust has no access to the processor's rounding mode, and changing it under a compiler is unsound
//! anyway. So an inexact result is first formed with *round to odd* in a wider or equal format,
//! from which one more rounding in any direction is exact (Boldo and Melquiond, "Emulation of FMA
//! and correctly rounded sums", 2008).

use super::RoundMode;

/// The NaN that every f32 instruction produces.
pub(crate) const NAN_F32: u32 = 0x7fff_ffff;
/// The NaN that f64 instructions produce when no operand supplies one.
pub(crate) const NAN_F64: u64 = 0xfff8_0000_0000_0000;

/// Replaces a subnormal by a zero of the same sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits & 0x7f80_0000 == 0 {
        f32::from_bits(bits & 0x8000_0000)
    } else {
        x
    }
}

/// `flush` if `ftz`.
#[inline(always)]
pub(crate) fn flush_if(ftz: bool, x: f32) -> f32 {
    if ftz { flush(x) } else { x }
}

/// The canonical NaN in place of any NaN.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    // On the bits: a compiler may take any NaN for any other, and drop a choice between
    // floating-point values.
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 {
        NAN_F32
    } else {
        bits
    })
}

/// `.sat`: into [0, 1]; NaN becomes +0.
#[inline(always)]
pub(crate) fn saturate(x: f32) -> f32 {
    if x >= 1.0 {
        1.0
    } else if x > 0.0 {
        x
    } else {
        0.0
    }
}

/// `.sat` for f64.
#[inline(always)]
pub(crate) fn saturate_f64(x: f64) -> f64 {
    if x >= 1.0 {
        1.0
    } else if x > 0.0 {
        x
    } else {
        0.0
    }
}

/// How the result of an f32 instruction is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FloatFinish {
    /// `.ftz`
    pub(crate) ftz: bool,
    /// `.sat`
    pub(crate) sat: bool,
}

impl FloatFinish {
    #[inline(always)]
    fn apply(self, x: f32) -> f32 {
        let x = flush_if(self.ftz, x);
        if self.sat { saturate(x) } else { canonical(x) }
    }
}

/// `x + error`, where `|error|` is below half a unit in the last place of `x`, as f64 rounded to
/// odd.
#[inline(always)]
fn to_odd(x: f64, error: f64) -> f64 {
    if error == 0.0 || !x.is_finite() {
        return x;
    }
    // Truncate toward zero, then set the last bit: it stands for everything cut off.
    let bits = x.to_bits();
    let truncated = if (error > 0.0) == (x > 0.0) {
        bits
    } else {
        bits - 1
    };
    f64::from_bits(truncated | 1)
}

/// The sum of two f64 and its rounding error (Knuth's TwoSum).
#[inline(always)]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let bb = s - a;
    (s, (a - (s - bb)) + (b - bb))
}

/// `cvt.r.f32.f64`: the payload of a NaN is cut, its sign kept.
#[inline(always)]
pub(crate) fn f64_to_f32(x: f64, r: RoundMode) -> f32 {
    if x.is_nan() {
        let bits = x.to_bits();
        return f32::from_bits(
            (bits >> 32) as u32 & 0x8000_0000 | 0x7fc0_0000 | (bits >> 29) as u32 & 0x003f_ffff,
        );
    }
    narrow(x, r)
}

/// `cvt.f64.f32`: exact; the payload of a NaN is kept.
#[inline(always)]
pub(crate) fn f32_to_f64(x: f32) -> f64 {
    if x.is_nan() {
        let bits = u64::from(x.to_bits());
        return f64::from_bits(
            (bits & 0x8000_0000) << 32 | 0x7ff8 << 48 | (bits & 0x003f_ffff) << 29,
        );
    }
    x.into()
}

/// f64 to f32 in direction `r`.
#[inline(always)]
pub(crate) fn narrow(x: f64, r: RoundMode) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    match r {
        RoundMode::Nearest | RoundMode::NearestAway => near,
        _ if back == x || x.is_nan() => near,
        RoundMode::Zero if back.abs() > x.abs() => f32::from_bits(near.to_bits() - 1),
        RoundMode::Down if back > x => near.next_down(),
        RoundMode::Up if back < x => near.next_up(),
        _ => near,
    }
}

/// The smallest normal f32 as the result of `.ftz` arithmetic: zero if `exact` rounded to 24 bits
/// without a bound on the exponent is still below it. `exact` is rounded to odd.
#[inline(always)]
fn flush_if_tiny(result: f32, exact: impl FnOnce() -> f64, r: RoundMode, ftz: bool) -> f32 {
    if ftz
        && result.abs() == f32::MIN_POSITIVE
        && narrow(exact() * 2f64.powi(64), r).abs() < f32::MIN_POSITIVE * 2f32.powi(64)
    {
        return 0f32.copysign(result);
    }
    result
}

/// The sign of an exact zero sum of `a` and `b`.
#[inline(always)]
fn zero_sum(a: f64, b: f64, r: RoundMode) -> f64 {
    if a.is_sign_negative() == b.is_sign_negative() {
        a
    } else if r == RoundMode::Down {
        -0.0
    } else {
        0.0
    }
}

/// `a + b` for values that came from f32, rounded once to f32.
#[inline(always)]
fn sum_to_f32(a: f64, b: f64, r: RoundMode) -> f32 {
    let (s, e) = two_sum(a, b);
    if s == 0.0 && e == 0.0 {
        let exact_zeros = a == 0.0 && b == 0.0;
        return if exact_zeros {
            zero_sum(a, b, r)
        } else {
            zero_sum(1.0, -1.0, r)
        } as f32;
    }
    narrow(to_odd(s, if s.is_finite() { e } else { 0.0 }), r)
}

/// `add.r{.ftz}{.sat}.f32`
#[inline(always)]
pub(crate) fn add(a: f32, b: f32, r: RoundMode, f: FloatFinish) -> f32 {
    let (a, b) = (flush_if(f.ftz, a), flush_if(f.ftz, b));
    f.apply(match r {
        RoundMode::Nearest | RoundMode::NearestAway => a + b,
        _ => sum_to_f32(a.into(), b.into(), r),
    })
}

/// `mul.r{.ftz}{.sat}.f32`
#[inline(always)]
pub(crate) fn mul(a: f32, b: f32, r: RoundMode, f: FloatFinish) -> f32 {
    let (a, b) = (flush_if(f.ftz, a), flush_if(f.ftz, b));
    let p = match r {
        RoundMode::Nearest | RoundMode::NearestAway => a * b,
        _ => narrow(f64::from(a) * f64::from(b), r),
    };
    f.apply(flush_if_tiny(p, || f64::from(a) * f64::from(b), r, f.ftz))
}

/// `fma.r{.ftz}{.sat}.f32`
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32, r: RoundMode, f: FloatFinish) -> f32 {
    let (a, b, c) = (flush_if(f.ftz, a), flush_if(f.ftz, b), flush_if(f.ftz, c));
    let sum = match r {
        RoundMode::Nearest | RoundMode::NearestAway => a.mul_add(b, c),
        _ => sum_to_f32(f64::from(a) * f64::from(b), c.into(), r),
    };
    let exact = || {
        let (s, e) = two_sum(f64::from(a) * f64::from(b), c.into());
        to_odd(s, e)
    };
    f.apply(flush_if_tiny(sum, exact, r, f.ftz))
}

/// `div.r{.ftz}.f32`
#[inline(always)]
pub(crate) fn div(a: f32, b: f32, r: RoundMode, ftz: bool) -> f32 {
    let (a, b) = (flush_if(ftz, a), flush_if(ftz, b));
    let exact = || {
        let (x, y) = (f64::from(a), f64::from(b));
        let q = x / y;
        if q == 0.0 || !q.is_finite() || y.is_infinite() {
            return q;
        }
        // The remainder of a correctly rounded quotient is exact; its sign says where the quotient
        // lies.
        let rest = (-q).mul_add(y, x);
        to_odd(q, if y > 0.0 { rest } else { -rest })
    };
    let q = match r {
        RoundMode::Nearest | RoundMode::NearestAway => a / b,
        _ => narrow(exact(), r),
    };
    canonical(flush_if(ftz, flush_if_tiny(q, exact, r, ftz)))
}

/// `rcp.r{.ftz}.f32`
#[inline(always)]
pub(crate) fn rcp(a: f32, r: RoundMode, ftz: bool) -> f32 {
    div(1.0, a, r, ftz)
}

/// `sqrt.r{.ftz}.f32`
#[inline(always)]
pub(crate) fn sqrt(a: f32, r: RoundMode, ftz: bool) -> f32 {
    let a = flush_if(ftz, a);
    let s = match r {
        RoundMode::Nearest | RoundMode::NearestAway => a.sqrt(),
        _ => {
            let x = f64::from(a);
            let s = x.sqrt();
            if s == 0.0 || !s.is_finite() {
                s as f32
            } else {
                narrow(to_odd(s, (-s).mul_add(s, x)), r)
            }
        }
    };
    canonical(flush_if(ftz, s))
}

/// Which of the optional rules of `min` and `max` hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Extremum {
    /// `max` rather than `min`.
    pub(crate) max: bool,
    /// `.NaN`: a NaN operand makes the result NaN instead of losing.
    pub(crate) nan: bool,
    /// `.xorsign.abs`: compare magnitudes, sign is the exclusive or of the signs.
    pub(crate) xorsign: bool,
    /// `.ftz`
    pub(crate) ftz: bool,
}

/// `min` and `max` on anything with IEEE order, as the ISA has them: -0 is below +0.
macro_rules! extremum {
    ($(#[$meta:meta])* $name:ident, $ty:ty, $bits:ty, $sign:expr, $both_nan:expr) => {
        $(#[$meta])*
        #[inline(always)]
        pub(crate) fn $name(a: $ty, b: $ty, rule: Extremum) -> $ty {
            let sign: $bits = (a.to_bits() ^ b.to_bits()) & $sign;
            let (x, y) = if rule.xorsign { (a.abs(), b.abs()) } else { (a, b) };
            let chosen = if x.is_nan() || y.is_nan() {
                if rule.nan || (x.is_nan() && y.is_nan()) {
                    return $both_nan(x, y);
                }
                if x.is_nan() { y } else { x }
            } else if x == y {
                // Equal, so they differ in the sign of zero at most.
                if (x.is_sign_negative()) == rule.max { y } else { x }
            } else if (x < y) == rule.max {
                y
            } else {
                x
            };
            if rule.xorsign { <$ty>::from_bits(chosen.to_bits() & !$sign | sign) } else { chosen }
        }
    };
}

extremum!(
    /// `min.f64`, `max.f64`
    extremum_f64, f64, u64, 1u64 << 63, |x: f64, y: f64| nan_of(&[x, y])
);
extremum!(
    /// `min.f32`, `max.f32` after flushing.
    extremum_unflushed, f32, u32, 1u32 << 31, |_: f32, _: f32| f32::from_bits(NAN_F32)
);

/// `min{.ftz}{.NaN}{.xorsign.abs}.f32` and `max`.
#[inline(always)]
pub(crate) fn extremum(a: f32, b: f32, rule: Extremum) -> f32 {
    extremum_unflushed(flush_if(rule.ftz, a), flush_if(rule.ftz, b), rule)
}

/// A NaN made quiet, payload and sign kept; anything else unchanged.
#[inline(always)]
pub(crate) fn quiet(x: f64) -> f64 {
    if x.is_nan() {
        f64::from_bits(x.to_bits() | 1 << 51)
    } else {
        x
    }
}

/// The NaN that an f64 instruction passes on, quieted: the last in the list; the list's order is
/// the instruction's own.
#[inline(always)]
fn nan_of(operands: &[f64]) -> f64 {
    operands
        .iter()
        .rev()
        .find(|x| x.is_nan())
        .map_or(f64::from_bits(NAN_F64), |&x| quiet(x))
}

/// `abs.f64`; a NaN keeps its sign.
#[inline(always)]
pub(crate) fn abs_f64(a: f64) -> f64 {
    if a.is_nan() { quiet(a) } else { a.abs() }
}

/// `neg.f64`; a NaN keeps its sign.
#[inline(always)]
pub(crate) fn neg_f64(a: f64) -> f64 {
    if a.is_nan() { quiet(a) } else { -a }
}

/// Normalised parts of a finite nonzero f64: value = mantissa * 2^exponent with bit 52 of the
/// mantissa set.
#[inline(always)]
fn parts(x: f64) -> (bool, i32, u64) {
    let bits = x.to_bits();
    let (field, fraction) = ((bits >> 52) as i32 & 0x7ff, bits & ((1 << 52) - 1));
    let negative = bits >> 63 == 1;
    if field == 0 {
        let shift = fraction.leading_zeros() - 11;
        (negative, -1074 - shift as i32, fraction << shift)
    } else {
        (negative, field - 1075, fraction | 1 << 52)
    }
}

/// mantissa * 2^exponent, plus a little more if `sticky`, rounded to f64.
fn pack(negative: bool, exponent: i32, mantissa: u128, sticky: bool, r: RoundMode) -> f64 {
    use std::cmp::Ordering::Less;
    debug_assert!(mantissa != 0);
    let top = 127 - mantissa.leading_zeros() as i32;
    // Bits to cut so that 53 remain, or fewer for a subnormal.
    let cut = (top - 52).max(-1074 - exponent);
    let (mut kept, rest) = if cut > 127 {
        (0u64, Some(Less))
    } else if cut > 0 {
        let rest = mantissa & ((1u128 << cut) - 1);
        let half = 1u128 << (cut - 1);
        let order = rest.cmp(&half);
        let order = if order.is_eq() && sticky {
            std::cmp::Ordering::Greater
        } else {
            order
        };
        (
            (mantissa >> cut) as u64,
            if rest == 0 && !sticky {
                None
            } else {
                Some(order)
            },
        )
    } else {
        (
            (mantissa << -cut) as u64,
            if sticky { Some(Less) } else { None },
        )
    };
    let mut exponent = exponent + cut;
    if r.increments(negative, kept, rest) {
        kept += 1;
        if kept == 1 << 53 {
            kept >>= 1;
            exponent += 1;
        }
    }
    let magnitude = if kept < 1 << 52 {
        kept // subnormal: exponent is -1074
    } else if exponent + 1075 >= 0x7ff {
        let inf = 0x7ffu64 << 52;
        let overflow_to_max = matches!(
            (r, negative),
            (RoundMode::Zero, _) | (RoundMode::Down, false) | (RoundMode::Up, true)
        );
        if overflow_to_max { inf - 1 } else { inf }
    } else {
        ((exponent + 1075) as u64) << 52 | (kept & ((1 << 52) - 1))
    };
    f64::from_bits(magnitude | u64::from(negative) << 63)
}

/// `fma.r.f64`
#[inline(always)]
pub(crate) fn fma_f64(a: f64, b: f64, c: f64, r: RoundMode) -> f64 {
    let near = a.mul_add(b, c);
    if near.is_nan() {
        return if a.is_nan() || b.is_nan() || c.is_nan() {
            nan_of(&[a, c, b])
        } else {
            f64::from_bits(NAN_F64)
        };
    }
    if r == RoundMode::Nearest {
        near
    } else {
        fma_f64_directed(a, b, c, near, r)
    }
}

#[inline(never)]
fn fma_f64_directed(a: f64, b: f64, c: f64, near: f64, r: RoundMode) -> f64 {
    if !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return near;
    }
    let product_negative = a.is_sign_negative() != b.is_sign_negative();
    if a == 0.0 || b == 0.0 {
        if c != 0.0 {
            return c;
        }
        return zero_sum(if product_negative { -0.0 } else { 0.0 }, c, r);
    }
    let ((_, ea, ma), (_, eb, mb)) = (parts(a), parts(b));
    let (product, ep) = (u128::from(ma) * u128::from(mb), ea + eb);
    if c == 0.0 {
        return pack(product_negative, ep, product, false, r);
    }
    let (c_negative, ec, mc) = parts(c);
    let d = ec - ep;
    // Both on one grid of 128 bits: exact where they can cancel, sticky where they cannot.
    let (p, q, e, sticky_p, sticky_q) = if d > 73 {
        let k = (d - 73) as u32;
        let lost = k > 127 || product & ((1u128 << k.min(127)) - 1) != 0;
        (
            if k > 127 { 0 } else { product >> k },
            u128::from(mc) << 73,
            ec - 73,
            lost,
            false,
        )
    } else if d >= 0 {
        (product, u128::from(mc) << d, ep, false, false)
    } else if d >= -20 {
        (product << -d, u128::from(mc), ec, false, false)
    } else {
        let k = (-d - 20) as u32;
        let lost = k > 63 || mc & ((1u64 << k.min(63)) - 1) != 0;
        (
            product << 20,
            u128::from(if k > 63 { 0 } else { mc >> k }),
            ep - 20,
            false,
            lost,
        )
    };
    if product_negative == c_negative {
        return pack(product_negative, e, p + q, sticky_p || sticky_q, r);
    }
    let (negative, big, small, sticky) = if p > q || (p == q && sticky_p) {
        (product_negative, p, q, sticky_q)
    } else {
        (c_negative, q, p, sticky_p)
    };
    let difference = big - small;
    if difference == 0 && !sticky {
        return if r == RoundMode::Down { -0.0 } else { 0.0 };
    }
    if sticky {
        pack(negative, e, difference - 1, true, r)
    } else {
        pack(negative, e, difference, false, r)
    }
}

/// `add.r.f64`
#[inline(always)]
pub(crate) fn add_f64(a: f64, b: f64, r: RoundMode) -> f64 {
    let near = a + b;
    if near.is_nan() {
        return nan_of(&[a, b]);
    }
    if r == RoundMode::Nearest {
        near
    } else {
        fma_f64_directed(a, 1.0, b, near, r)
    }
}

/// `sub.r.f64`
#[inline(always)]
pub(crate) fn sub_f64(a: f64, b: f64, r: RoundMode) -> f64 {
    if b.is_nan() {
        nan_of(&[a, b])
    } else {
        add_f64(a, -b, r)
    }
}

/// `mul.r.f64`
#[inline(always)]
pub(crate) fn mul_f64(a: f64, b: f64, r: RoundMode) -> f64 {
    let near = a * b;
    if near.is_nan() {
        return nan_of(&[a, b]);
    }
    if r == RoundMode::Nearest {
        return near;
    }
    let zero = if a.is_sign_negative() != b.is_sign_negative() {
        -0.0
    } else {
        0.0
    };
    fma_f64_directed(a, b, zero, near, r)
}

/// `div.r.f64`
#[inline(always)]
pub(crate) fn div_f64(a: f64, b: f64, r: RoundMode) -> f64 {
    let near = a / b;
    if near.is_nan() {
        return nan_of(&[b, a]);
    }
    if r == RoundMode::Nearest || a == 0.0 || b == 0.0 || !a.is_finite() || !b.is_finite() {
        return near;
    }
    let ((na, ea, ma), (nb, eb, mb)) = (parts(a), parts(b));
    let wide = u128::from(ma) << 72;
    let (q, rest) = (wide / u128::from(mb), wide % u128::from(mb));
    pack(na != nb, ea - eb - 72, q, rest != 0, r)
}

/// `rcp.r.f64`
#[inline(always)]
pub(crate) fn rcp_f64(a: f64, r: RoundMode) -> f64 {
    div_f64(1.0, a, r)
}

/// `sqrt.r.f64`
#[inline(always)]
pub(crate) fn sqrt_f64(a: f64, r: RoundMode) -> f64 {
    let near = a.sqrt();
    if near.is_nan() {
        return nan_of(&[a]);
    }
    if r == RoundMode::Nearest || a == 0.0 || !a.is_finite() {
        return near;
    }
    // Scaled so that the remainder cannot underflow.
    let (x, unscale) = if a < f64::from_bits(0x0400 << 52) {
        (a * 2f64.powi(512), 2f64.powi(-256))
    } else {
        (a, 1.0)
    };
    let s = x.sqrt();
    let rest = (-s).mul_add(s, x);
    let s = match r {
        RoundMode::Down | RoundMode::Zero if rest < 0.0 => s.next_down(),
        RoundMode::Up if rest > 0.0 => s.next_up(),
        _ => s,
    };
    s * unscale
}

/// `testp`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FloatClass {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

impl FloatClass {
    /// Whether `x` is of the class. Zero is neither normal nor subnormal to IEEE, but `.normal` to
    /// the ISA excludes it.
    #[inline(always)]
    pub(crate) fn test(self, category: std::num::FpCategory) -> bool {
        use std::num::FpCategory as C;
        match self {
            FloatClass::Finite => !matches!(category, C::Nan | C::Infinite),
            FloatClass::Infinite => category == C::Infinite,
            FloatClass::Number => category != C::Nan,
            FloatClass::NotANumber => category == C::Nan,
            FloatClass::Normal => matches!(category, C::Normal | C::Zero),
            FloatClass::Subnormal => category == C::Subnormal,
        }
    }
}

/// Comparisons of `set` and `setp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    IsNan,
}

impl Compare {
    /// The comparison of ordered or unordered values.
    #[inline(always)]
    pub(crate) fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        let unordered = a.partial_cmp(&b).is_none();
        match self {
            Compare::Eq => a == b,
            Compare::Ne => !unordered && a != b,
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Gt => a > b,
            Compare::Ge => a >= b,
            Compare::Equ => unordered || a == b,
            Compare::Neu => a != b,
            Compare::Ltu => unordered || a < b,
            Compare::Leu => unordered || a <= b,
            Compare::Gtu => unordered || a > b,
            Compare::Geu => unordered || a >= b,
            Compare::Num => !unordered,
            Compare::IsNan => unordered,
        }
    }
}
