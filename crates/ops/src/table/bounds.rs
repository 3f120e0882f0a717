//! Bounds of references: roundings of types, and what is stored near a computed value.

use fercuda_tensor::Dtype;

use crate::row::ExpectedElement;

/// Half of a unit in the last place of 1, of the type that floats of a type are computed in.
pub(super) fn unit_roundoff(dtype: Dtype) -> f64 {
    f64::exp2(if dtype == Dtype::F64 { -53.0 } else { -24.0 })
}

/// Largest and smallest ordinary magnitude of the type that floats of a type are computed in.
pub(super) fn magnitudes(dtype: Dtype) -> (f64, f64) {
    match dtype {
        Dtype::F64 => (f64::MAX, f64::MIN_POSITIVE),
        _ => (f32::MAX.into(), f32::MIN_POSITIVE.into()),
    }
}

/// A unit in the last place of 1, of a float type.
pub(super) fn last_place(dtype: Dtype) -> f64 {
    let fraction = dtype.float_format().map_or(0, |(_, fraction)| fraction);
    f64::from(-(fraction as i32)).exp2()
}

/// A float stored as a type, near a value whose error before it is stored is known. The result may
/// be rounded once more than the reference's, and underflow.
pub(super) fn stored(dtype: Dtype, value: f64, error: f64) -> ExpectedElement {
    let least = dtype.float_format().map_or(0.0, |(exponent, fraction)| {
        f64::from(2 - (1 << (exponent - 1)) - fraction as i32).exp2()
    });
    let error = error + last_place(dtype) * value.abs() + least;
    (dtype.nearest(value), error)
}

/// The low bits of a whole number as an integer type of at most 32 bits; other types have the
/// value.
pub(super) fn wrapped(dtype: Dtype, value: f64) -> f64 {
    let width = 8 * dtype.bytes() as u32;
    if dtype.is_float() || width == 64 {
        return value;
    }
    let modulus = f64::from(width).exp2();
    let low = value.rem_euclid(modulus);
    match dtype.is_signed() && low >= modulus / 2.0 {
        true => low - modulus,
        false => low,
    }
}

/// A computed float, stored as a type. The bound is doubled, for the reference's own roundings.
pub(super) fn rounded(dtype: Dtype, value: f64, error: f64) -> ExpectedElement {
    let stored = match dtype {
        Dtype::F64 => value,
        _ => dtype.nearest((value as f32).into()),
    };
    let Some((exponent, fraction)) = dtype.float_format().filter(|_| value.is_finite()) else {
        return (stored, error.min(0.0));
    };
    let bias = (1 << (exponent - 1)) - 1;
    let least = f64::from(1 - bias - fraction as i32).exp2();
    let last = match dtype {
        Dtype::F64 | Dtype::F32 => 0.0,
        _ => (stored.abs() * f64::from(-(fraction as i32)).exp2()).max(least),
    };
    let error = 2.0 * error + 4.0 * f64::exp2(-53.0) * stored.abs() + last;
    let is_saturating = dtype.bytes() == 1;
    let most = dtype.value(dtype.encode(f64::INFINITY) - 1);
    match is_saturating || value.abs() + error < most {
        true => (stored, error),
        // The neighbour is infinite.
        false => (stored, f64::INFINITY),
    }
}

/// An integer, for which nothing is promised where f64 does not have it.
pub(super) fn whole(dtype: Dtype, bits: u64) -> ExpectedElement {
    let value = match dtype {
        Dtype::I64 => i128::from(bits.cast_signed()),
        _ => i128::from(bits),
    };
    let is_exact = value.unsigned_abs() <= 1 << 53;
    (value as f64, if is_exact { 0.0 } else { f64::INFINITY })
}
