//! Rows of gradients of activations and of losses, element by element.
//!
//! The gradient of a loss is that of each term: of a mean, the caller divides `g` by the number of
//! elements, or gives it as an operand that is broadcast. That of a gated unit by `x` is the unit
//! itself, of `g` and the gate.

use std::cmp::Ordering;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::scalar::{erf, most, sigmoid, softplus, total};
use crate::row::OpOracle::{Each, Rows};
use crate::row::{OpRow, op};

/// Slope of the Gaussian unit.
fn gelu_slope(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
    0.5 + 0.5 * erf(x * FRAC_1_SQRT_2) + x * density
}

/// Slope of its approximation with tanh.
fn gelu_tanh_slope(x: f64) -> f64 {
    let factor = (2.0 / PI).sqrt();
    let t = (factor * (x + 0.044715 * x * x * x)).tanh();
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * factor * (1.0 + 3.0 * 0.044715 * x * x)
}

fn silu_slope(x: f64) -> f64 {
    let s = sigmoid(x);
    s * (1.0 + x * (1.0 - s))
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    op!(Activation "relu6_backward" ("g", "x") Floats {} "select((x > 0) & (x < 6), g, 0)",
        Each(|x, _| if x[1] > 0.0 && x[1] < 6.0 { x[0] } else { 0.0 }), "gradient of relu6 at x"),
    op!(Activation "prelu_backward" ("g", "x", "slope") Floats {} "select(x > 0, g, g * slope)",
        Each(|x, _| if x[1] > 0.0 { x[0] } else { x[0] * x[2] }), "gradient of prelu by x"),
    op!(Activation "prelu_slope_backward" ("g", "x") Floats {} "select(x > 0, 0, g * x)",
        Each(|x, _| if x[1] > 0.0 { 0.0 } else { x[0] * x[1] }),
        "gradient of prelu by the slope, of each element"),
    op!(Activation "threshold_backward" ("g", "x") Floats { "above": 0.0 } "select(x > {above}, g, 0)",
        Each(|x, n| if x[1] > n[0] { x[0] } else { 0.0 }), "gradient of threshold at x"),
    op!(Activation "hard_tanh_backward" ("g", "x") Floats { "low": 0.0, "high": 1.0 }
        "select((x > {low}) & (x < {high}), g, 0)",
        Each(|x, n| if x[1] > n[0] && x[1] < n[1] { x[0] } else { 0.0 }),
        "gradient of hard_tanh at x"),
    op!(Activation "hard_sigmoid_backward" ("g", "x") Floats {} "select((x > -3) & (x < 3), g / 6, 0)",
        Each(|x, _| if x[1] > -3.0 && x[1] < 3.0 { x[0] / 6.0 } else { 0.0 }),
        "gradient of hard_sigmoid at x"),
    op!(Activation "hard_swish_backward" ("g", "x") Floats {}
        "select(x <= -3, 0, select(x < 3, g * (x / 3 + 0.5), g))",
        Each(|x, _| match x[1] {
            low if low <= -3.0 => 0.0,
            low if low < 3.0 => x[0] * (low / 3.0 + 0.5),
            _ => x[0],
        }), "gradient of hard_swish at x"),
    op!(Activation "hard_shrink_backward" ("g", "x") Floats { "lambd": 0.5 }
        "select(abs(x) <= {lambd}, 0, g)",
        Each(|x, n| if x[1].abs() <= n[0] { 0.0 } else { x[0] }), "gradient of hard_shrink at x"),
    op!(Activation "soft_shrink_backward" ("g", "x") Floats { "lambd": 0.5 }
        "select(abs(x) <= {lambd}, 0, g)",
        Each(|x, n| if x[1].abs() <= n[0] { 0.0 } else { x[0] }), "gradient of soft_shrink at x"),
    op!(Activation "tanh_shrink_backward" ("g", "x") Floats {} "t = tanh(x); g * (t * t)",
        Each(|x, _| x[0] * x[1].tanh().powi(2)), "gradient of tanh_shrink at x"),
    op!(Activation "log_sigmoid_backward" ("g", "x") Floats {} "g * sigmoid(-x)",
        Each(|x, _| x[0] * sigmoid(-x[1])), "gradient of log_sigmoid at x"),
    op!(Activation "quick_gelu_backward" ("g", "x") Floats {}
        "z = x * 1.702; s = sigmoid(z); g * (s * fma(z, 1 - s, 1))",
        Each(|x, _| x[0] * silu_slope(1.702 * x[1])), "gradient of quick_gelu at x"),
    op!(Activation "gelu_tanh_backward" ("g", "x") Floats {}
        "t = tanh(fma(x * x * 0.044715, x, x) * 0.7978845608028654); \
         d = fma(x * x, 0.134145 * 1, 1) * 0.7978845608028654; \
         g * (fma(t, 0.5, 0.5) + x * 0.5 * (1 - t * t) * d)",
        Each(|x, _| x[0] * gelu_tanh_slope(x[1])), "gradient of gelu_tanh at x"),
    op!(Activation "softsign_backward" ("g", "x") Floats {} "d = abs(x) + 1; g / d / d",
        Each(|x, _| x[0] / (1.0 + x[1].abs()).powi(2)), "gradient of softsign at x"),
    op!(Activation "mish_backward" ("g", "x") Floats {}
        "t = tanh(max(x, 0) + ln(exp(-abs(x)) + 1)); g * (t + x * sigmoid(x) * (1 - t * t))",
        Each(|x, _| {
            let t = softplus(x[1]).tanh();
            x[0] * (t + x[1] * sigmoid(x[1]) * (1.0 - t * t))
        }), "gradient of mish at x"),
    op!(Activation "celu_backward" ("g", "x") Floats { "alpha": 1.0 }
        "select(x > 0, g, g * exp(x / {alpha}))",
        Each(|x, n| if x[1] > 0.0 { x[0] } else { x[0] * (x[1] / n[0]).exp() }),
        "gradient of celu at x"),
    op!(Activation "selu_backward" ("g", "x") Floats {}
        "select(x > 0, g, g * (exp(x) * 1.6732632423543772)) * 1.0507009873554805",
        Each(|x, _| {
            let slope = if x[1] > 0.0 { 1.0 } else { 1.6732632423543772 * x[1].exp() };
            x[0] * slope * 1.0507009873554805
        }), "gradient of selu at x"),
    op!(Activation "normal_cdf_backward" ("g", "x") NotF64 {}
        "g * (exp(x * x * -0.5) * 0.3989422804014327)",
        Each(|x, _| x[0] * (-0.5 * x[1] * x[1]).exp() / (2.0 * PI).sqrt()),
        "gradient of normal_cdf at x"),
    op!(Activation "glu_gate_backward" ("g", "x", "gate") Floats {}
        "s = sigmoid(gate); g * x * (s * (1 - s))",
        Each(|x, _| x[0] * x[1] * sigmoid(x[2]) * sigmoid(-x[2])), "gradient of glu by the gate"),
    op!(Activation "reglu_gate_backward" ("g", "x", "gate") Floats {} "select(gate > 0, g * x, 0)",
        Each(|x, _| if x[2] > 0.0 { x[0] * x[1] } else { 0.0 }), "gradient of reglu by the gate"),
    op!(Activation "swiglu_gate_backward" ("g", "x", "gate") Floats {}
        "s = sigmoid(gate); g * x * (s * fma(gate, 1 - s, 1))",
        Each(|x, _| x[0] * x[1] * silu_slope(x[2])), "gradient of swiglu by the gate"),
    op!(Activation "geglu_gate_backward" ("g", "x", "gate") NotF64 {}
        "c = fma(erf(gate * 0.7071067811865476), 0.5, 0.5); \
         g * x * (c + gate * (exp(gate * gate * -0.5) * 0.3989422804014327))",
        Each(|x, _| x[0] * x[1] * gelu_slope(x[2])), "gradient of geglu by the gate"),
    op!(Activation "geglu_tanh_gate_backward" ("g", "x", "gate") Floats {}
        "t = tanh(fma(gate * gate * 0.044715, gate, gate) * 0.7978845608028654); \
         d = fma(gate * gate, 0.134145 * 1, 1) * 0.7978845608028654; \
         g * x * (fma(t, 0.5, 0.5) + gate * 0.5 * (1 - t * t) * d)",
        Each(|x, _| x[0] * x[1] * gelu_tanh_slope(x[2])), "gradient of geglu_tanh by the gate"),
    op!(Normalisation "normalize_backward" ("g", "x") Floats { "eps": 0.000000000001 }
        "n = sqrt(sum(x * x, axis=[{axis}], keep=true)); \
         select(n <= {eps}, g / {eps}, (g - x / n * sum(g * (x / n), axis=[{axis}], keep=true)) / n)",
        Rows(|x, n| {
            let length = total(x[1].iter().map(|x| x * x)).sqrt();
            if length <= n[0] {
                return x[0].iter().map(|g| g / n[0]).collect();
            }
            let unit: Vec<f64> = x[1].iter().map(|x| x / length).collect();
            let along = total(x[0].iter().zip(&unit).map(|(g, x)| g * x));
            x[0].iter().zip(&unit).map(|(g, x)| (g - x * along) / length).collect()
        }), "gradient of normalize at x"),
    op!(Loss "mse_loss_backward" ("g", "x", "target") Floats {} "g * ((x - target) * 2)",
        Each(|x, _| x[0] * 2.0 * (x[1] - x[2])), "gradient of each term of mse_loss"),
    op!(Loss "l1_loss_backward" ("g", "x", "target") Floats {}
        "select(x > target, g, select(x < target, -g, 0))",
        Each(|x, _| match x[1].partial_cmp(&x[2]) {
            Some(Ordering::Greater) => x[0],
            Some(Ordering::Less) => -x[0],
            _ => 0.0,
        }), "gradient of each term of l1_loss"),
    op!(Loss "huber_loss_backward" ("g", "x", "target") Floats { "delta": 1.0 }
        "g * min(max(x - target, -{delta}), {delta})",
        Each(|x, n| x[0] * (x[1] - x[2]).clamp(-n[0].abs(), n[0].abs())), "gradient of each term of huber_loss"),
    op!(Loss "smooth_l1_loss_backward" ("g", "x", "target") Floats { "beta": 1.0 }
        "g * min(max((x - target) / {beta}, -1), 1)",
        Each(|x, n| x[0] * ((x[1] - x[2]) / n[0]).clamp(-1.0, 1.0)),
        "gradient of each term of smooth_l1_loss"),
    op!(Loss "log_cosh_loss_backward" ("g", "x", "target") Floats {} "g * tanh(x - target)",
        Each(|x, _| x[0] * (x[1] - x[2]).tanh()), "gradient of each term of log_cosh_loss"),
    op!(Loss "bce_with_logits_backward" ("g", "x", "target") Floats {} "g * (sigmoid(x) - target)",
        Each(|x, _| x[0] * (sigmoid(x[1]) - x[2])), "gradient of each term of bce_with_logits"),
    op!(Loss "bce_loss_backward" ("g", "x", "target") Floats {}
        "g * (x - target) / max(x * (1 - x), 0.000000000001)",
        Each(|x, _| x[0] * (x[1] - x[2]) / most(x[1] * (1.0 - x[1]), 1e-12)),
        "gradient of each term of bce_loss; x (1 - x) not below 1e-12"),
    op!(Loss "kl_div_backward" ("g", "target") Floats {} "-(g * target)",
        Each(|x, _| -(x[0] * x[1])), "gradient of each term of kl_div by the log-probabilities"),
    op!(Loss "hinge_loss_backward" ("g", "x", "target") Floats {}
        "select(1 - x * target > 0, -(g * target), 0)",
        Each(|x, _| if 1.0 - x[1] * x[2] > 0.0 { -(x[0] * x[2]) } else { 0.0 }),
        "gradient of each term of hinge_loss"),
    op!(Loss "squared_hinge_loss_backward" ("g", "x", "target") Floats {}
        "g * target * (max(1 - x * target, 0) * -2)",
        Each(|x, _| x[0] * x[2] * -2.0 * most(1.0 - x[1] * x[2], 0.0)),
        "gradient of each term of squared_hinge_loss"),
    op!(Loss "soft_margin_loss_backward" ("g", "x", "target") Floats {}
        "-(g * target * sigmoid(-(x * target)))",
        Each(|x, _| -(x[0] * x[2] * sigmoid(-(x[1] * x[2])))),
        "gradient of each term of soft_margin_loss"),
    op!(Loss "poisson_nll_loss_backward" ("g", "x", "target") Floats {} "g * (exp(x) - target)",
        Each(|x, _| x[0] * (x[1].exp() - x[2])), "gradient of each term of poisson_nll_loss"),
    op!(Loss "gaussian_nll_loss_backward" ("g", "x", "target", "variance") Floats { "eps": 0.000001 }
        "g * ((x - target) / max(variance, {eps}))",
        Each(|x, n| x[0] * (x[1] - x[2]) / most(x[3], n[0])),
        "gradient of each term of gaussian_nll_loss by x"),
];
