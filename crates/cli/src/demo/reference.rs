//! f64 references for the tour's kernels, and error bounds for f32 computations.
//!
//! A bound is derived from sizes and data by the standard model of rounding (each operation
//! errs by a factor of at most 1 + u, u = 2^-24; n in sequence by at most gamma(n)), never
//! fitted to the results of a device.
//!
//! Invariant: only [`judge`] looks at a device's result.

/// Half the distance between 1 and the next f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Relative error of `ex2.approx.f32`, as the PTX ISA documents it: 2^-22.
const EX2: f64 = 4.0 * U;

/// The error bound of n successive roundings.
fn gamma(n: usize) -> f64 {
    let nu = n as f64 * U;
    nu / (1.0 - nu)
}

/// A reference with, for each element, the error that rounding can explain.
#[derive(Debug)]
pub(crate) struct ReferenceResult {
    values: Vec<f64>,
    allowed: Vec<f64>,
}

/// A comparison with a reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ReferenceComparison {
    /// Largest error, in ulp of the largest value.
    pub error_ulp: f64,
    /// Largest allowed error, in the same unit.
    pub bound_ulp: f64,
    /// Largest ratio of an element's error to its bound.
    pub part_of_bound: f64,
}

impl ReferenceComparison {
    /// Whether every element is within its own bound.
    pub(crate) fn passed(&self) -> bool {
        self.part_of_bound <= 1.0
    }
}

/// Compares element by element; a NaN or a wrong length counts as an infinite error.
pub(crate) fn judge(got: &[f32], expected: &ReferenceResult) -> ReferenceComparison {
    let largest = expected.values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let ulp = ulp(largest);
    let mut verdict = ReferenceComparison {
        error_ulp: 0.0,
        bound_ulp: 0.0,
        part_of_bound: 0.0,
    };
    if got.len() != expected.values.len() {
        verdict.error_ulp = f64::INFINITY;
        verdict.part_of_bound = f64::INFINITY;
        return verdict;
    }
    let elements = expected.values.iter().zip(&expected.allowed);
    for (got, (value, allowed)) in got.iter().zip(elements) {
        let mut error = (f64::from(*got) - value).abs();
        if error.is_nan() {
            error = f64::INFINITY;
        }
        let part = if error == 0.0 { 0.0 } else { error / allowed };
        verdict.error_ulp = verdict.error_ulp.max(error / ulp);
        verdict.bound_ulp = verdict.bound_ulp.max(allowed / ulp);
        verdict.part_of_bound = verdict.part_of_bound.max(part);
    }
    verdict
}

/// The distance between f32 neighbours at `value`.
fn ulp(value: f64) -> f64 {
    let exponent = value.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (exponent - 23.0).exp2()
}

/// `a + b`: one rounding.
pub(crate) fn sum(a: &[f32], b: &[f32]) -> ReferenceResult {
    let values: Vec<f64> = a
        .iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) + f64::from(*b))
        .collect();
    // Half the distance between f32 neighbours at the exact sum.
    let allowed = values.iter().map(|value| ulp(*value) / 2.0).collect();
    ReferenceResult { values, allowed }
}

/// Values that f32 represents exactly.
pub(crate) fn exactly(values: Vec<f64>) -> ReferenceResult {
    let allowed = vec![0.0; values.len()];
    ReferenceResult { values, allowed }
}

/// `a` (m x k) times `b` (k x n), row-major: each product and each addition rounds at most
/// once, so an element errs by gamma(k) of its sum of magnitudes.
pub(crate) fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> ReferenceResult {
    let mut values = vec![0.0; m * n];
    let mut allowed = vec![0.0; m * n];
    for i in 0..m {
        for p in 0..k {
            let x = f64::from(a[i * k + p]);
            for j in 0..n {
                let term = x * f64::from(b[p * n + j]);
                values[i * n + j] += term;
                allowed[i * n + j] += term.abs();
            }
        }
    }
    for allowed in &mut allowed {
        *allowed *= gamma(k + 1);
    }
    ReferenceResult { values, allowed }
}

/// The relative error of `exp(x - max)` when computed as `ex2.approx((x - max) * log2(e))` with
/// |x - max| <= `range`, where each argument already errs by `slack` absolutely.
fn exponential(range: f64, slack: f64) -> f64 {
    // Subtraction, the constant's own rounding and the product each add u of the argument; exp
    // turns an absolute error into a relative one.
    ((slack + 3.0 * U * range).exp() - 1.0) + EX2
}

/// Softmax of each row of `columns` elements, where the maximum may be raised, and the running
/// sum rescaled, at most `steps` times.
pub(crate) fn softmax(x: &[f32], columns: usize, steps: usize) -> ReferenceResult {
    let mut values = Vec::with_capacity(x.len());
    let mut allowed = Vec::with_capacity(x.len());
    for row in x.chunks(columns) {
        let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min = row.iter().copied().fold(f64::INFINITY, f64::min);
        let total: f64 = row.iter().map(|x| (x - max).exp()).sum();
        // The element's own exponential; the sum's, with one more and a product for each
        // rescaling; its additions; the reciprocal and its product.
        let relative =
            2.0 * exponential(max - min, 0.0) + steps as f64 * (EX2 + U) + gamma(columns) + 4.0 * U;
        for x in row {
            let value = (x - max).exp() / total;
            values.push(value);
            allowed.push(value * relative + f64::from(f32::MIN_POSITIVE));
        }
    }
    ReferenceResult { values, allowed }
}

/// The size of an attention problem: one head, row-major.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape {
    /// Rows of queries, keys and values.
    pub length: usize,
    /// Columns.
    pub width: usize,
    /// Whether a query attends only to its own and earlier keys.
    pub causal: bool,
    /// Keys per tile, which share one rescaling.
    pub tile: usize,
}

/// softmax(q kT / sqrt(width)) v.
pub(crate) fn attention(q: &[f32], k: &[f32], v: &[f32], shape: AttentionShape) -> ReferenceResult {
    let AttentionShape {
        length,
        width,
        causal,
        tile,
    } = shape;
    let scale = 1.0 / (width as f64).sqrt();
    let mut values = Vec::with_capacity(length * width);
    let mut allowed = Vec::with_capacity(length * width);
    for i in 0..length {
        let seen = if causal { i + 1 } else { length };
        let query = &q[i * width..][..width];
        let mut scores = Vec::with_capacity(seen);
        let mut slack = 0.0f64;
        for j in 0..seen {
            let key = &k[j * width..][..width];
            let (mut score, mut magnitude) = (0.0, 0.0);
            for (a, b) in query.iter().zip(key) {
                let term = f64::from(*a) * f64::from(*b);
                score += term;
                magnitude += term.abs();
            }
            scores.push(score * scale);
            // The dot product's additions, the scale's rounding, its product.
            slack = slack.max(gamma(width + 4) * magnitude * scale);
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        // A running maximum rescales sums and outputs: a partial weight gets one more
        // exponential and one more product per tile.
        let steps = seen.div_ceil(tile) as f64;
        let weight =
            2.0 * exponential(max - min, slack) + steps * (EX2 + U) + gamma(seen) + 4.0 * U;
        for c in 0..width {
            let (mut value, mut magnitude) = (0.0, 0.0);
            for (j, weight) in weights.iter().enumerate() {
                let term = weight / total * f64::from(v[j * width + c]);
                value += term;
                magnitude += term.abs();
            }
            values.push(value);
            // Once for the weights, once for their sum, and the products' own errors.
            allowed.push((2.0 * weight + gamma(seen)) * magnitude);
        }
    }
    ReferenceResult { values, allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correct_f32_product_is_within_the_bound_and_a_wrong_one_is_not() {
        let (m, n, k) = (5, 4, 33);
        let a: Vec<f32> = (0..m * k).map(|i| ((i * 37 % 101) as f32).sin()).collect();
        let b: Vec<f32> = (0..k * n).map(|i| ((i * 53 % 97) as f32).cos()).collect();
        let mut c = vec![0.0f32; m * n];
        for i in 0..m {
            for j in 0..n {
                for p in 0..k {
                    c[i * n + j] += a[i * k + p] * b[p * n + j];
                }
            }
        }
        let expected = product(&a, &b, m, n, k);
        assert!(judge(&c, &expected).passed());
        // One term left out of one element.
        c[7] -= a[k + 3] * b[3 * n + 3];
        assert!(!judge(&c, &expected).passed());
    }

    #[test]
    fn a_result_with_nan_or_of_another_length_never_passes() {
        let expected = sum(&[1.0, 2.0], &[3.0, 4.0]);
        assert!(judge(&[4.0, 6.0], &expected).passed());
        assert!(!judge(&[4.0, f32::NAN], &expected).passed());
        assert!(!judge(&[4.0], &expected).passed());
    }

    #[test]
    fn softmax_of_equal_elements_is_uniform_and_its_bound_is_small() {
        let expected = softmax(&[3.0; 8], 4, 1);
        let verdict = judge(&[0.25; 8], &expected);
        assert_eq!(verdict.error_ulp, 0.0);
        assert!(verdict.bound_ulp < 20.0, "{verdict:?}");
    }

    #[test]
    fn causal_attention_depends_only_on_earlier_keys() {
        let shape = AttentionShape {
            length: 2,
            width: 1,
            causal: true,
            tile: 1,
        };
        let expected = attention(&[1.0, 1.0], &[0.0, 0.0], &[5.0, 7.0], shape);
        assert!(judge(&[5.0, 6.0], &expected).passed());
        assert!(!judge(&[6.0, 6.0], &expected).passed());
    }

    #[test]
    fn ulp_is_the_step_of_f32() {
        assert_eq!(ulp(1.0), f64::from(f32::EPSILON));
        assert_eq!(ulp(3.9), 2.0 * f64::from(f32::EPSILON));
    }
}
