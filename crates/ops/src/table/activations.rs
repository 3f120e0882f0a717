//! Rows of activations, their derivatives and gated units.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::scalar::{erf, gelu, least, most, sigmoid, softplus};
use crate::row::OpOracle::Each;
use crate::row::{OpRow, op};

const SELU_ALPHA: f64 = 1.6732632423543772;
const SELU_SCALE: f64 = 1.0507009873554805;

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

fn elu(x: f64, alpha: f64) -> f64 {
    if x > 0.0 { x } else { alpha * x.exp_m1() }
}

fn hard_sigmoid(x: f64) -> f64 {
    least(most(x + 3.0, 0.0), 6.0) / 6.0
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    op!(Activation "relu" ("x") Numbers {} "relu(x)", Each(|x, _| most(x[0], 0.0)), "max(x, 0)"),
    op!(Activation "relu6" ("x") Numbers {} "min(max(x, 0), 6)",
        Each(|x, _| least(most(x[0], 0.0), 6.0)), "min(max(x, 0), 6)"),
    op!(Activation "leaky_relu" ("x") Floats { "slope": 0.01 } "select(x > 0, x, x * {slope})",
        Each(|x, n| if x[0] > 0.0 { x[0] } else { x[0] * n[0] }), "x, and slope x below 0"),
    op!(Activation "prelu" ("x", "slope") Floats {} "select(x > 0, x, x * slope)",
        Each(|x, _| if x[0] > 0.0 { x[0] } else { x[0] * x[1] }),
        "x, and slope x below 0, by an operand"),
    op!(Activation "threshold" ("x") Floats { "above": 0.0, "value": 0.0 }
        "select(x > {above}, x, {value})",
        Each(|x, n| if x[0] > n[0] { x[0] } else { n[1] }), "x above a threshold, else a number"),
    op!(Activation "hard_tanh" ("x") Numbers { "low": 0.0, "high": 1.0 }
        "min(max(x, {low}), {high})", Each(|x, n| least(most(x[0], n[0]), n[1])),
        "x between two numbers"),
    op!(Activation "hard_sigmoid" ("x") Floats {} "min(max(x + 3, 0), 6) / 6",
        Each(|x, _| hard_sigmoid(x[0])), "min(max(x + 3, 0), 6) / 6"),
    op!(Activation "hard_swish" ("x") Floats {} "x * (min(max(x + 3, 0), 6) / 6)",
        Each(|x, _| x[0] * hard_sigmoid(x[0])), "x hard_sigmoid(x)"),
    op!(Activation "hard_shrink" ("x") Floats { "lambd": 0.5 } "select(abs(x) <= {lambd}, 0, x)",
        Each(|x, n| if x[0].abs() <= n[0] { 0.0 } else { x[0] }), "0 near 0, else x"),
    op!(Activation "soft_shrink" ("x") Floats { "lambd": 0.5 }
        "select(abs(x) <= {lambd}, 0, select(x > 0, x - {lambd}, x + {lambd}))",
        Each(|x, n| match x[0] {
            x if x.abs() <= n[0] => 0.0,
            x if x > 0.0 => x - n[0],
            x => x + n[0],
        }), "0 near 0, else nearer to 0 by lambd"),
    op!(Activation "tanh" ("x") Floats {} "tanh(x)", Each(|x, _| x[0].tanh()),
        "hyperbolic tangent"),
    op!(Activation "tanh_shrink" ("x") Floats {} "x - tanh(x)", Each(|x, _| x[0] - x[0].tanh()),
        "x - tanh(x)"),
    op!(Activation "sigmoid" ("x") Floats {} "sigmoid(x)", Each(|x, _| sigmoid(x[0])),
        "1 / (1 + e^-x)"),
    op!(Activation "log_sigmoid" ("x") Floats {} "min(x, 0) - ln(exp(-abs(x)) + 1)",
        Each(|x, _| least(x[0], 0.0) - (-x[0].abs()).exp().ln_1p()), "ln(sigmoid(x))"),
    op!(Activation "silu" ("x") Floats {} "silu(x)", Each(|x, _| x[0] * sigmoid(x[0])),
        "x sigmoid(x)"),
    op!(Activation "quick_gelu" ("x") Floats {} "x * sigmoid(x * 1.702)",
        Each(|x, _| x[0] * sigmoid(1.702 * x[0])), "x sigmoid(1.702 x)"),
    op!(Activation "gelu" ("x") NotF64 {} "gelu(x)", Each(|x, _| gelu(x[0])),
        "x (1 + erf(x / √2)) / 2"),
    op!(Activation "gelu_tanh" ("x") Floats {}
        "t = tanh(fma(x * x * 0.044715, x, x) * 0.7978845608028654); x * 0.5 * (t + 1)",
        Each(|x, _| gelu_tanh(x[0])), "gelu by its approximation with tanh"),
    op!(Activation "softplus" ("x") Floats {} "max(x, 0) + ln(exp(-abs(x)) + 1)",
        Each(|x, _| softplus(x[0])), "ln(1 + e^x), with an absolute error of some ulp of 1"),
    op!(Activation "softsign" ("x") Floats {} "x / (abs(x) + 1)",
        Each(|x, _| x[0] / (1.0 + x[0].abs())), "x / (1 + |x|)"),
    op!(Activation "mish" ("x") Floats {} "x * tanh(max(x, 0) + ln(exp(-abs(x)) + 1))",
        Each(|x, _| x[0] * softplus(x[0]).tanh()), "x tanh(softplus(x))"),
    op!(Activation "elu" ("x") Floats { "alpha": 1.0 }
        "select(x > 0, x, tanh(x * 0.5) * (exp(x) + 1) * {alpha})",
        Each(|x, n| elu(x[0], n[0])), "x, and alpha (e^x - 1) below 0"),
    op!(Activation "celu" ("x") Floats { "alpha": 1.0 }
        "z = x / {alpha}; select(x > 0, x, tanh(z * 0.5) * (exp(z) + 1) * {alpha})",
        Each(|x, n| if x[0] > 0.0 { x[0] } else { n[0] * (x[0] / n[0]).exp_m1() }),
        "x, and alpha (e^(x / alpha) - 1) below 0"),
    op!(Activation "selu" ("x") Floats {}
        "select(x > 0, x, tanh(x * 0.5) * (exp(x) + 1) * 1.6732632423543772) * 1.0507009873554805",
        Each(|x, _| SELU_SCALE * elu(x[0], SELU_ALPHA)), "scaled elu, with its two constants"),
    op!(Activation "normal_cdf" ("x") NotF64 {} "e = erf(x * 0.7071067811865476); fma(e, 0.5, 0.5)",
        Each(|x, _| 0.5 + 0.5 * erf(x[0] * FRAC_1_SQRT_2)),
        "distribution function of the normal distribution"),
    op!(Activation "relu_backward" ("g", "x") Numbers {} "select(x > 0, g, 0)",
        Each(|x, _| if x[1] > 0.0 { x[0] } else { 0.0 }), "gradient of relu at x"),
    op!(Activation "leaky_relu_backward" ("g", "x") Floats { "slope": 0.01 }
        "select(x > 0, g, g * {slope})",
        Each(|x, n| if x[1] > 0.0 { x[0] } else { x[0] * n[0] }), "gradient of leaky_relu at x"),
    op!(Activation "sigmoid_backward" ("g", "y") Floats {} "g * (y * (1 - y))",
        Each(|x, _| x[0] * (x[1] * (1.0 - x[1]))), "gradient of sigmoid by its result y"),
    op!(Activation "tanh_backward" ("g", "y") Floats {} "g * (1 - y * y)",
        Each(|x, _| x[0] * (1.0 - x[1] * x[1])), "gradient of tanh by its result y"),
    op!(Activation "silu_backward" ("g", "x") Floats {}
        "s = sigmoid(x); g * (s * fma(x, 1 - s, 1))",
        Each(|x, _| {
            let s = sigmoid(x[1]);
            x[0] * (s * x[1].mul_add(1.0 - s, 1.0))
        }), "gradient of silu at x"),
    op!(Activation "gelu_backward" ("g", "x") NotF64 {}
        "c = fma(erf(x * 0.7071067811865476), 0.5, 0.5); \
         g * (c + x * (exp(x * x * -0.5) * 0.3989422804014327))",
        Each(|x, _| {
            let (g, x) = (x[0], x[1]);
            let density = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
            g * (0.5 + 0.5 * erf(x * FRAC_1_SQRT_2) + x * density)
        }), "gradient of gelu at x"),
    op!(Activation "softplus_backward" ("g", "x") Floats {} "g * sigmoid(x)",
        Each(|x, _| x[0] * sigmoid(x[1])), "gradient of softplus at x"),
    op!(Activation "elu_backward" ("g", "x") Floats { "alpha": 1.0 }
        "select(x > 0, g, g * (exp(x) * {alpha}))",
        Each(|x, n| if x[1] > 0.0 { x[0] } else { x[0] * (n[0] * x[1].exp()) }),
        "gradient of elu at x"),
    op!(Activation "glu" ("x", "gate") Floats {} "x * sigmoid(gate)",
        Each(|x, _| x[0] * sigmoid(x[1])), "x sigmoid(gate)"),
    op!(Activation "reglu" ("x", "gate") Floats {} "x * max(gate, 0)",
        Each(|x, _| x[0] * most(x[1], 0.0)), "x relu(gate)"),
    op!(Activation "swiglu" ("x", "gate") Floats {} "x * silu(gate)",
        Each(|x, _| x[0] * (x[1] * sigmoid(x[1]))), "x silu(gate)"),
    op!(Activation "geglu" ("x", "gate") NotF64 {} "x * gelu(gate)",
        Each(|x, _| x[0] * gelu(x[1])), "x gelu(gate)"),
    op!(Activation "geglu_tanh" ("x", "gate") Floats {}
        "t = tanh(fma(gate * gate * 0.044715, gate, gate) * 0.7978845608028654); \
         x * (gate * 0.5 * (t + 1))",
        Each(|x, _| x[0] * gelu_tanh(x[1])), "x gelu_tanh(gate)"),
    op!(Activation "swiglu_clamped" ("x", "gate") Floats { "alpha": 1.702, "limit": 7.0 }
        "g = min(gate, {limit}); u = max(min(x, {limit}), 0 - {limit}); \
         (u + 1) * (g * sigmoid(g * {alpha}))",
        Each(|x, n| {
            let (alpha, limit) = (n[0], n[1]);
            let (g, u) = (least(x[1], limit), most(least(x[0], limit), -limit));
            (u + 1.0) * (g * sigmoid(g * alpha))
        }),
        "(x + 1) gate sigmoid(alpha gate), of a gate not above the limit and x within it"),
    op!(Activation "soft_limit" ("x") Floats { "limit": 30.0 }
        "tanh(x / {limit}) * {limit}",
        Each(|x, n| (x[0] / n[0]).tanh() * n[0]), "limit tanh(x / limit)"),
];
