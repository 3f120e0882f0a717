//! Rows of reductions.

use super::scalar::{least, mean, most, total, truth};
use crate::row::OpOracle::Fold;
use crate::row::{OpRow, op};

/// Sum of squared distances from the mean.
fn spread(x: &[f64]) -> f64 {
    let centre = mean(x);
    total(x.iter().map(|x| (x - centre).powi(2)))
}

fn degrees(x: &[f64], correction: f64) -> f64 {
    (x.len() as f64 - correction).max(0.0)
}

/// Index of the first element that none is better than; NaN is the best.
fn first(x: &[f64], is_better: fn(f64, f64) -> bool) -> f64 {
    let mut best = 0;
    for (at, value) in x.iter().enumerate() {
        if !x[best].is_nan() && (value.is_nan() || is_better(*value, x[best])) {
            best = at;
        }
    }
    best as f64
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let highest = x.iter().copied().fold(f64::NEG_INFINITY, most);
    let shift = if highest.is_finite() { highest } else { 0.0 };
    total(x.iter().map(|x| (x - shift).exp())).ln() + shift
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    op!(Reduction "sum" ("x") All {} "sum(x, axis={axes}, keep={keep})",
        Fold(|x, _| total(x[0].iter().copied())), "sum; of integers and bool in 64 bits"),
    op!(Reduction "mean" ("x") Floats {} "mean(x, axis={axes}, keep={keep})",
        Fold(|x, _| mean(&x[0])), "mean"),
    op!(Reduction "prod" ("x") Numbers {} "prod(x, axis={axes}, keep={keep})",
        Fold(|x, _| x[0].iter().product()), "product; of integers in 64 bits"),
    op!(Reduction "amin" ("x") Numbers {} "min(x, axis={axes}, keep={keep})",
        Fold(|x, _| x[0].iter().copied().reduce(least).unwrap_or(f64::NAN)),
        "smallest; NaN if one is"),
    op!(Reduction "amax" ("x") Numbers {} "max(x, axis={axes}, keep={keep})",
        Fold(|x, _| x[0].iter().copied().reduce(most).unwrap_or(f64::NAN)),
        "largest; NaN if one is"),
    op!(Reduction "argmin" ("x") Numbers {} "argmin(x, axis={axes}, keep={keep})",
        Fold(|x, _| first(&x[0], |a, b| a < b)), "index of the first smallest; of NaN if there is one"),
    op!(Reduction "argmax" ("x") Numbers {} "argmax(x, axis={axes}, keep={keep})",
        Fold(|x, _| first(&x[0], |a, b| a > b)), "index of the first largest; of NaN if there is one"),
    op!(Reduction "any" ("x") All {} "sum(bool(x), axis={axes}, keep={keep}) != 0",
        Fold(|x, _| truth(x[0].iter().any(|x| *x != 0.0))), "whether one is not 0; of none false"),
    op!(Reduction "all" ("x") All {} "sum(!bool(x), axis={axes}, keep={keep}) == 0",
        Fold(|x, _| truth(x[0].iter().all(|x| *x != 0.0))), "whether none is 0; of none true"),
    op!(Reduction "count_nonzero" ("x") All {} "sum(bool(x), axis={axes}, keep={keep})",
        Fold(|x, _| x[0].iter().filter(|x| **x != 0.0).count() as f64), "number that are not 0"),
    op!(Reduction "count_nan" ("x") Floats {} "sum(isnan(x), axis={axes}, keep={keep})",
        Fold(|x, _| x[0].iter().filter(|x| x.is_nan()).count() as f64), "number that are NaN"),
    op!(Reduction "norm_l1" ("x") Floats {} "sum(abs(x), axis={axes}, keep={keep})",
        Fold(|x, _| total(x[0].iter().map(|x| x.abs()))), "sum of magnitudes"),
    op!(Reduction "norm_l2" ("x") Floats {} "sqrt(sum(x * x, axis={axes}, keep={keep}))",
        Fold(|x, _| total(x[0].iter().map(|x| x * x)).sqrt()),
        "root of the sum of squares, which are not scaled: they may overflow"),
    op!(Reduction "norm_inf" ("x") Floats {} "max(abs(x), axis={axes}, keep={keep})",
        Fold(|x, _| x[0].iter().map(|x| x.abs()).reduce(most).unwrap_or(f64::NAN)),
        "largest magnitude"),
    op!(Reduction "sum_square" ("x") Floats {} "sum(x * x, axis={axes}, keep={keep})",
        Fold(|x, _| total(x[0].iter().map(|x| x * x))), "sum of squares"),
    op!(Reduction "mean_square" ("x") Floats {} "mean(x * x, axis={axes}, keep={keep})",
        Fold(|x, _| total(x[0].iter().map(|x| x * x)) / x[0].len() as f64), "mean of squares"),
    op!(Reduction "mean_abs" ("x") Floats {} "mean(abs(x), axis={axes}, keep={keep})",
        Fold(|x, _| total(x[0].iter().map(|x| x.abs())) / x[0].len() as f64), "mean of magnitudes"),
    op!(Reduction "var" ("x") Floats { "correction": 1.0 }
        "d = x - mean(x, axis={axes}, keep=true); sum(d * d, axis={axes}, keep={keep}) / {dof}",
        Fold(|x, n| spread(&x[0]) / degrees(&x[0], n[0])),
        "variance: sum of squared distances from the mean by their number less `correction`"),
    op!(Reduction "std" ("x") Floats { "correction": 1.0 }
        "d = x - mean(x, axis={axes}, keep=true); \
         sqrt(sum(d * d, axis={axes}, keep={keep}) / {dof})",
        Fold(|x, n| (spread(&x[0]) / degrees(&x[0], n[0])).sqrt()), "root of the variance"),
    op!(Reduction "logsumexp" ("x") Floats {}
        "h = max(x, axis={axes}, keep=true); l = max(x, axis={axes}, keep={keep}); \
         ln(sum(exp(x - select(abs(h) < inf, h, 0)), axis={axes}, keep={keep})) \
         + select(abs(l) < inf, l, 0)",
        Fold(|x, _| log_sum_exp(&x[0])), "ln of the sum of e^x"),
    op!(Reduction "dot" ("x", "y") Floats {} "sum(x * y, axis={axes}, keep={keep})",
        Fold(|x, _| total(x[0].iter().zip(&x[1]).map(|(x, y)| x * y))), "sum of products"),
    op!(Reduction "cosine_similarity" ("x", "y") Floats { "eps": 0.00000001 }
        "sum(x * y, axis={axes}, keep={keep}) / max(sqrt(sum(x * x, axis={axes}, keep={keep})) \
         * sqrt(sum(y * y, axis={axes}, keep={keep})), {eps})",
        Fold(|x, n| {
            let dot = total(x[0].iter().zip(&x[1]).map(|(x, y)| x * y));
            let length = |x: &[f64]| total(x.iter().map(|x| x * x)).sqrt();
            dot / most(length(&x[0]) * length(&x[1]), n[0])
        }), "cosine of the angle between vectors"),
    op!(Reduction "pairwise_distance" ("x", "y") Floats {}
        "d = x - y; sqrt(sum(d * d, axis={axes}, keep={keep}))",
        Fold(|x, _| total(x[0].iter().zip(&x[1]).map(|(x, y)| (x - y).powi(2))).sqrt()),
        "distance of vectors"),
];
