//! Bounds of sums that a device rounds in its own order.

/// Half an ulp of one in f32: the largest relative error of one rounding.
pub(super) const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// How far a sum of `terms` rounded f32 operations can be from the truth, the magnitudes adding up
/// to `size`.
pub(super) fn rounded(terms: usize, size: f64) -> f64 {
    let nu = terms as f64 * UNIT;
    nu / (1.0 - nu) * size + f64::from(f32::MIN_POSITIVE)
}

/// A sum and its bound, from the values and the longest chain of roundings any of them meets.
pub(super) fn summed(values: impl Iterator<Item = f64>, chain: usize) -> (f64, f64) {
    let (sum, size) = values.fold((0.0, 0.0), |(s, a), v| (s + v, a + f64::abs(v)));
    (sum, rounded(chain, size))
}
