//! Rows of elements along one axis, and the bounds of references of what is computed along it.

use fercuda_tensor::Dtype;

use crate::arrays::HostArray;
use crate::parameters::OpParameters;
use crate::row::ExpectedElement;

/// The axis of an op whose rule of results has accepted it.
pub(super) fn first_axis(op: &OpParameters, rank: usize) -> usize {
    op.axes_of(rank).first().copied().unwrap_or_default()
}

/// Elements of an array with another extent of one axis, from each row along that axis.
pub(super) fn by_rows(
    x: &HostArray,
    axis: usize,
    extent: usize,
    mut f: impl FnMut(&[f64]) -> Vec<ExpectedElement>,
) -> Vec<ExpectedElement> {
    let product = |shape: &[u64]| shape.iter().product::<u64>() as usize;
    let (outer, inner) = (product(&x.shape[..axis]), product(&x.shape[axis + 1..]));
    let len = x.shape[axis] as usize;
    let mut all = vec![(f64::NAN, 0.0); outer * extent * inner];
    for (a, b) in (0..outer).flat_map(|a| (0..inner).map(move |b| (a, b))) {
        let row = (0..len).map(|n| x.values[(a * len + n) * inner + b]);
        let result = f(&row.collect::<Vec<f64>>());
        for (n, element) in result.into_iter().enumerate() {
            all[(a * extent + n) * inner + b] = element;
        }
    }
    all
}

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
