//! Values of references with the bound of a device's error, through single operations.
//!
//! Each operation adds one rounding of the type in which a device computes, so a device may fuse a
//! product with a sum. Nothing is promised where a value may overflow, or a divisor may be 0.

use fercuda_tensor::Dtype;

use super::bounds::{magnitudes, stored, unit_roundoff};
use crate::row::ExpectedElement;

/// A value in f64, and how far a device's one may be from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Approx {
    pub(super) value: f64,
    pub(super) error: f64,
    unit: f64,
    least: f64,
    most: f64,
}

/// The type in which floats of a type are computed, as a source of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApproxType {
    unit: f64,
    least: f64,
    most: f64,
}

impl ApproxType {
    /// Of the type in which floats of that type are computed.
    pub(super) fn of(dtype: Dtype) -> Self {
        let (most, ordinary) = magnitudes(dtype);
        let unit = unit_roundoff(dtype);
        Self {
            unit,
            least: ordinary * 2.0 * unit,
            most,
        }
    }

    /// An element that the type has.
    pub(super) fn exact(self, value: f64) -> Approx {
        let Self { unit, least, most } = self;
        Approx {
            value,
            error: 0.0,
            unit,
            least,
            most,
        }
    }

    /// A number that is rounded to the type.
    pub(super) fn number(self, value: f64) -> Approx {
        self.exact(value).rounded(1.0)
    }

    /// A sum of values in any order.
    pub(super) fn sum(self, values: impl IntoIterator<Item = Approx>) -> Approx {
        let (mut count, mut size, mut error) = (0.0, 0.0, 0.0);
        let values = values.into_iter().map(|it| {
            count += 1.0;
            size += it.value.abs() + it.error;
            error += it.error;
            it.value
        });
        let value = super::scalar::total(values);
        let mut sum = self.exact(value);
        sum.error = error + count * self.unit * size;
        sum.rounded(1.0)
    }
}

impl Approx {
    /// Rounded so many times more.
    pub(super) fn rounded(mut self, times: f64) -> Self {
        self.error += times * (self.unit * (self.value.abs() + self.error) + self.least);
        if self.value.abs() + self.error > self.most {
            self.error = f64::INFINITY;
        }
        self
    }

    fn with(self, value: f64, error: f64) -> Self {
        let joined = Self {
            value,
            error,
            ..self
        };
        joined.rounded(1.0)
    }

    /// The root; of what may be negative nothing is promised.
    pub(super) fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        // Of a bound above the value, the root of both is further away.
        let error = match self.value > self.error {
            true => self.error / value,
            false if self.error == 0.0 => 0.0,
            false => (2.0 * self.error).sqrt(),
        };
        self.with(value, error).rounded(1.0)
    }

    /// The larger, which is not rounded.
    pub(super) fn most(self, other: Self) -> Self {
        let error = self.error.max(other.error);
        let value = self.value.max(other.value);
        Self {
            value,
            error,
            ..self
        }
    }

    /// The smaller, which is not rounded.
    pub(super) fn least(self, other: Self) -> Self {
        let error = self.error.max(other.error);
        let value = self.value.min(other.value);
        Self {
            value,
            error,
            ..self
        }
    }

    /// An element of a type; the bound is doubled for the reference's own roundings.
    pub(super) fn stored(self, dtype: Dtype) -> ExpectedElement {
        let error = if self.error.is_nan() {
            f64::INFINITY
        } else {
            self.error
        };
        if error.is_finite() && dtype.bytes() > 1 {
            // The neighbour of the largest one is infinite.
            let most = dtype.value(dtype.encode(f64::INFINITY) - 1);
            if self.value.is_finite() && self.value.abs() + 2.0 * error >= most * (1.0 - 1e-3) {
                return (self.value, f64::INFINITY);
            }
        }
        stored(dtype, self.value, 2.0 * error)
    }
}

impl std::ops::Add for Approx {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(self.value + other.value, self.error + other.error)
    }
}

impl std::ops::Sub for Approx {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.with(self.value - other.value, self.error + other.error)
    }
}

impl std::ops::Mul for Approx {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let (a, b) = (self.value.abs(), other.value.abs());
        let error = a * other.error + b * self.error + self.error * other.error;
        self.with(self.value * other.value, error)
    }
}

impl std::ops::Div for Approx {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        let nearest = other.value.abs() - other.error;
        let error = match nearest > 0.0 {
            true => (self.error + value.abs() * other.error) / nearest,
            false if other.error == 0.0 => 0.0,
            false => f64::INFINITY,
        };
        self.with(value, error)
    }
}
