//! Elementary functions of f64, computed with its arithmetic.
//!
//! Series truncated below a tenth of a unit in the last place, by Horner's rule with fused
//! multiply-adds; no tables, no branches. The error bounds that `op` states are of these.

use fercuda_ptx::build::Reg;

/// Evaluates by Horner's rule; lowest coefficient first.
fn polynomial<'k>(
    x: Reg<'k, f64>,
    coefficients: impl DoubleEndedIterator<Item = f64>,
) -> Reg<'k, f64> {
    let k = x.kernel();
    let mut rest = coefficients.rev();
    let last = k.value(rest.next().unwrap_or(0.0));
    rest.fold(last, |sum, c| sum.mul_add(x, k.value(c)))
}

/// `2^n e^r` with `|r| <= ln 2 / 2`: the exponential's Taylor series, to its 13th power.
pub(super) fn exp<'k>(x: Reg<'k, f64>) -> Reg<'k, f64> {
    // ln 2 in two parts: the first ends in 21 zero bits, so that its product with a whole
    // number of 11 bits is exact.
    const HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LO: f64 = 1.908_214_929_270_587_7e-10;
    let k = x.kernel();
    // Beyond these the result is 0 or infinity; NaN passes below.
    let bounded = x.max(-760.0).min(720.0);
    let n = (bounded * std::f64::consts::LOG2_E).round_even();
    let r = n.mul_add(-HI, bounded);
    let r = n.mul_add(-LO, r);
    let mut term = 1.0;
    let series = (0..14).map(|power| {
        if power > 0 {
            term /= f64::from(power);
        }
        term
    });
    let y = polynomial(r, series.collect::<Vec<_>>().into_iter());
    // In two steps, as 2^n alone may overflow or underflow.
    let n = n.to::<i64>();
    let half = n >> 1;
    let power = |n: Reg<'k, i64>| ((n + 1023) << 52).bitcast::<f64>();
    let y = y * power(half) * power(n - half);
    x.test_nan().select(k.value(f64::NAN), y)
}

/// `e ln 2 + ln m` with `m` from sqrt(1/2) to sqrt 2: twice the series of the inverse
/// hyperbolic tangent of `(m - 1) / (m + 1)`.
pub(super) fn ln<'k>(x: Reg<'k, f64>) -> Reg<'k, f64> {
    const HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LO: f64 = 1.908_214_929_270_587_7e-10;
    const ROOT_HALF: i64 = 0x3fe6_a09e_667f_3bcd;
    let k = x.kernel();
    let tiny = x.lt(f64::MIN_POSITIVE);
    let scaled = tiny.select(x * 18_014_398_509_481_984.0, x);
    let bits = scaled.bitcast::<i64>();
    let e = (bits - ROOT_HALF) >> 52;
    let f = (bits - (e << 52)).bitcast::<f64>() - 1.0;
    let e = e.to::<f64>() + tiny.select(k.value(-54.0), 0.0);
    let s = f / (f + 2.0);
    let square = s * s;
    // ln(1 + f) = 2s + s * rest; and 2s = f - s f, which keeps f exact.
    let rest = square * polynomial(square, (1..13).map(|n| 2.0 / f64::from(2 * n + 1)));
    let low = s * (rest - f);
    let low = e.mul_add(LO, low);
    let y = e.mul_add(HI, f + low);
    let y = x.equals(0.0).select(f64::NEG_INFINITY, y);
    let y = x.equals(f64::INFINITY).select(f64::INFINITY, y);
    x.ge(0.0).select(y, f64::NAN)
}

/// Near zero the continued fraction `x / (1 + x^2 / (3 + x^2 / (5 + ...)))`, as a quotient
/// of two polynomials; elsewhere by the exponential.
pub(super) fn tanh<'k>(x: Reg<'k, f64>) -> Reg<'k, f64> {
    let k = x.kernel();
    let size = x.abs();
    let square = x * x;
    // The tail a + square * b / c, from the innermost: numerator and denominator.
    let (mut above, mut below) = (k.value(17.0f64), k.value(1.0f64));
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        let next = above.mul_add(k.value(odd), square * below);
        (above, below) = (next, above);
    }
    // x / (1 + square * below / above), less what is near to x.
    let near = x - x * (square * below / (above + square * below));
    let power = exp(size.min(20.0) * 2.0);
    let far = (power + 1.0).recip().mul_add(-2.0, 1.0).copysign(x);
    let y = size.lt(0.6).select(near, far);
    x.test_nan().select(x, y)
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid<'k>(x: Reg<'k, f64>) -> Reg<'k, f64> {
    let e = exp(-x.abs());
    let k = x.kernel();
    let numerator = x.lt(0.0).select(e, k.value(1.0f64));
    numerator / (e + 1.0)
}
