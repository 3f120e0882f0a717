//! Scalar functions that rows share, mostly of references in f64.

use crate::parameters::{Misfit, OpParameters};

/// The error function: the series of positive terms, `e^(-x^2) 2 x / sqrt(pi) (1 + 2x^2/3 + ...)`.
pub(super) fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut total, mut odd) = (x, x, 1.0);
    while term.abs() > total.abs() * 1e-18 {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        total += term;
    }
    total * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

/// The smaller; NaN if either is.
pub(super) fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.min(b)
    }
}

/// The larger; NaN if either is.
pub(super) fn most(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// 1 / (1 + e^-x).
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(1 + e^x).
pub(super) fn softplus(x: f64) -> f64 {
    most(x, 0.0) + (-x.abs()).exp().ln_1p()
}

/// x (1 + erf(x / sqrt 2)) / 2.
pub(super) fn gelu(x: f64) -> f64 {
    x * (0.5 + 0.5 * erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// The sum, compensated as by Neumaier, so that its error does not grow with the length.
pub(super) fn total(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0);
    for value in values {
        let next = sum + value;
        lost += match sum.abs() >= value.abs() {
            true => (sum - next) + value,
            false => (value - next) + sum,
        };
        sum = next;
    }
    if sum.is_finite() { sum + lost } else { sum }
}

/// The mean.
pub(super) fn mean(values: &[f64]) -> f64 {
    total(values.iter().copied()) / values.len() as f64
}

/// 1 where it holds.
pub(super) fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// One of an op's numbers, if it is whole.
pub(super) fn whole_number(op: &OpParameters, name: &str) -> Result<i64, Misfit> {
    let value = op.number_of(name);
    match value.fract() == 0.0 && value.abs() < (1u64 << 53) as f64 {
        true => Ok(value as i64),
        false => Err(Misfit::new(format!("{name} is {value}"), "a whole number")),
    }
}
