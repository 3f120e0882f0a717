//! Rows of losses: means over the axes that are reduced, all without a choice.

use super::scalar::{most, softplus, total};
use crate::row::OpOracle::Fold;
use crate::row::{OpRow, op};

/// The mean of a function of each pair.
fn pairs(x: &[Vec<f64>], f: impl Fn(f64, f64) -> f64) -> f64 {
    total(x[0].iter().zip(&x[1]).map(|(x, y)| f(*x, *y))) / x[0].len() as f64
}

/// t ln(t), and 0 at 0.
fn entropy(t: f64) -> f64 {
    if t == 0.0 { 0.0 } else { t * t.ln() }
}

/// ln(p), not below -100.
fn bounded_ln(p: f64) -> f64 {
    most(p.ln(), -100.0)
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    op!(Loss "mse_loss" ("x", "target") Floats {}
        "d = x - target; mean(d * d, axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| (x - t).powi(2))), "mean of squared differences"),
    op!(Loss "l1_loss" ("x", "target") Floats {}
        "mean(abs(x - target), axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| (x - t).abs())), "mean of absolute differences"),
    op!(Loss "huber_loss" ("x", "target") Floats { "delta": 1.0 }
        "d = abs(x - target); \
         mean(select(d <= {delta}, d * 0.5 * d, (d - {delta} * 0.5) * {delta}), axis={axes}, keep={keep})",
        Fold(|x, n| pairs(x, |x, t| match (x - t).abs() {
            d if d <= n[0] => 0.5 * d * d,
            d => n[0] * (d - 0.5 * n[0]),
        })), "squared below delta, linear above"),
    op!(Loss "smooth_l1_loss" ("x", "target") Floats { "beta": 1.0 }
        "d = abs(x - target); \
         mean(select(d < {beta}, d * 0.5 * d / {beta}, d - {beta} * 0.5), axis={axes}, keep={keep})",
        Fold(|x, n| pairs(x, |x, t| match (x - t).abs() {
            d if d < n[0] => 0.5 * d * d / n[0],
            d => d - 0.5 * n[0],
        })), "huber_loss by beta"),
    op!(Loss "log_cosh_loss" ("x", "target") Floats {}
        "d = abs(x - target); \
         mean(d + ln(exp(d * -2) + 1) - 0.6931471805599453 * 1, axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| {
            let d = (x - t).abs();
            d + (-2.0 * d).exp().ln_1p() - std::f64::consts::LN_2
        })), "mean of ln(cosh(x - target))"),
    op!(Loss "bce_with_logits" ("x", "target") Floats {}
        "mean(max(x, 0) - x * target + ln(exp(-abs(x)) + 1), axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| most(x, 0.0) - x * t + (-x.abs()).exp().ln_1p())),
        "binary cross-entropy of logits"),
    op!(Loss "bce_loss" ("x", "target") Floats {}
        "mean(-(target * max(ln(x), -100) + (1 - target) * max(ln(1 - x), -100)), \
         axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |p, t| -(t * bounded_ln(p) + (1.0 - t) * bounded_ln(1.0 - p)))),
        "binary cross-entropy of probabilities; logarithms not below -100"),
    op!(Loss "kl_div" ("x", "target") Floats {}
        "mean(select(target == 0, 0, target * ln(target)) - target * x, axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| entropy(t) - t * x)),
        "Kullback-Leibler divergence of log-probabilities x"),
    op!(Loss "hinge_loss" ("x", "target") Floats {}
        "mean(max(1 - x * target, 0), axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| most(1.0 - x * t, 0.0))), "mean of max(0, 1 - x target)"),
    op!(Loss "squared_hinge_loss" ("x", "target") Floats {}
        "h = max(1 - x * target, 0); mean(h * h, axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| most(1.0 - x * t, 0.0).powi(2))), "mean of the hinge squared"),
    op!(Loss "soft_margin_loss" ("x", "target") Floats {}
        "z = x * target; mean(max(-z, 0) + ln(exp(-abs(z)) + 1), axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| softplus(-(x * t)))), "mean of ln(1 + e^(-x target))"),
    op!(Loss "poisson_nll_loss" ("x", "target") Floats {}
        "mean(exp(x) - target * x, axis={axes}, keep={keep})",
        Fold(|x, _| pairs(x, |x, t| x.exp() - t * x)),
        "Poisson's negative log-likelihood of the logarithm x of the rate"),
    op!(Loss "gaussian_nll_loss" ("x", "target", "variance") Floats { "eps": 0.000001 }
        "v = max(variance, {eps}); d = x - target; \
         mean((ln(v) + d * d / v) * 0.5, axis={axes}, keep={keep})",
        Fold(|x, n| {
            let all = x[0].iter().zip(&x[1]).zip(&x[2]).map(|((x, t), v)| {
                let v = most(*v, n[0]);
                0.5 * (v.ln() + (x - t).powi(2) / v)
            });
            total(all) / x[0].len() as f64
        }), "negative log-likelihood of a normal distribution"),
    op!(Loss "margin_ranking_loss" ("x", "y", "target") Floats { "margin": 0.0 }
        "mean(max((y - x) * target + {margin}, 0), axis={axes}, keep={keep})",
        Fold(|x, n| {
            let all = x[0].iter().zip(&x[1]).zip(&x[2]);
            let all = all.map(|((x, y), t)| most(t * (y - x) + n[0], 0.0));
            total(all) / x[0].len() as f64
        }), "mean of max(0, target (y - x) + margin)"),
    op!(Loss "cross_entropy_probabilities" ("x", "target") Floats {}
        "h = max(x, axis={axes}, keep=true); z = x - h; \
         -sum(target * (z - ln(sum(exp(z), axis={axes}, keep=true))), axis={axes}, keep={keep})",
        Fold(|x, _| {
            let highest = x[0].iter().copied().fold(f64::NEG_INFINITY, most);
            let sum = total(x[0].iter().map(|x| (x - highest).exp())).ln();
            -total(x[0].iter().zip(&x[1]).map(|(x, t)| t * ((x - highest) - sum)))
        }), "cross-entropy of logits with target probabilities, over the axes"),
    op!(Loss "focal_loss" ("x", "target") Floats { "alpha": 0.25, "gamma": 2.0 }
        "z = x * (target * 2 - 1); s = max(-z, 0) + ln(exp(-abs(z)) + 1); \
         a = target * {alpha} + (1 - target) * (1 - {alpha}); \
         mean(a * exp((z + s) * -{gamma}) * s, axis={axes}, keep={keep})",
        Fold(|x, n| pairs(x, |x, t| {
            let z = x * (2.0 * t - 1.0);
            let weight = n[0] * t + (1.0 - n[0]) * (1.0 - t);
            weight * (-n[1] * softplus(z)).exp() * softplus(-z)
        })), "mean of alpha (1 - p)^gamma (-ln p), p the probability of the label 0 or 1 by the logit x"),
    op!(Loss "triplet_loss" ("anchor", "positive", "negative") Floats { "margin": 1.0 }
        "p = anchor - positive; n = anchor - negative; \
         max(sqrt(sum(p * p, axis={axes}, keep={keep})) - sqrt(sum(n * n, axis={axes}, keep={keep})) \
         + {margin}, 0)",
        Fold(|x, n| {
            let distance = |other: &[f64]| {
                total(x[0].iter().zip(other).map(|(x, y)| (x - y).powi(2))).sqrt()
            };
            most(distance(&x[1]) - distance(&x[2]) + n[0], 0.0)
        }), "max(0, distance to the positive - distance to the negative + margin), over the axes"),
    op!(Loss "cosine_embedding_loss" ("x", "y", "target") Floats { "margin": 0.0, "eps": 0.00000001 }
        "c = sum(x * y, axis={axes}, keep={keep}) / max(sqrt(sum(x * x, axis={axes}, keep={keep})) \
         * sqrt(sum(y * y, axis={axes}, keep={keep})), {eps}); \
         select(max(target, axis={axes}, keep={keep}) > 0, 1 - c, max(c - {margin}, 0))",
        Fold(|x, n| {
            let dot = |a: &[f64], b: &[f64]| total(a.iter().zip(b).map(|(a, b)| a * b));
            let size = dot(&x[0], &x[0]).sqrt() * dot(&x[1], &x[1]).sqrt();
            let cosine = dot(&x[0], &x[1]) / most(size, n[1]);
            match x[2].iter().copied().fold(f64::NEG_INFINITY, most) > 0.0 {
                true => 1.0 - cosine,
                false => most(cosine - n[0], 0.0),
            }
        }), "1 - cosine where the largest target is above 0, else max(0, cosine - margin), over the axes"),
];
