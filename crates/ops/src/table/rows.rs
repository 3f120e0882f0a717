//! Rows of softmax and norms, which go along one axis.

use fercuda_jit::TypeClass;

use super::scalar::{mean, most, sigmoid, total};
use crate::row::OpOracle::Rows;
use crate::row::{BLANK, OpFamily, OpRow, op};

/// Distances from the maximum, and the sum of their powers of e.
fn shifted(x: &[f64]) -> (Vec<f64>, f64) {
    let highest = x.iter().copied().fold(f64::NEG_INFINITY, most);
    let shift = if highest == f64::NEG_INFINITY {
        0.0
    } else {
        highest
    };
    let shifted: Vec<f64> = x.iter().map(|x| x - shift).collect();
    let sum = total(shifted.iter().map(|x| x.exp()));
    (shifted, sum)
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let (shifted, sum) = shifted(x);
    shifted.iter().map(|x| x.exp() / sum).collect()
}

fn log_softmax(x: &[f64]) -> Vec<f64> {
    let (shifted, sum) = shifted(x);
    shifted.iter().map(|x| x - sum.ln()).collect()
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// Divided by the root of the mean square, then by `gamma` and `beta`.
fn normed(x: Vec<f64>, vectors: &[Vec<f64>], eps: f64) -> Vec<f64> {
    let square = total(x.iter().map(|x| x * x)) / x.len() as f64;
    let by = 1.0 / (square + eps).sqrt();
    let along = x.iter().enumerate().map(|(at, x)| match vectors {
        [] => x * by,
        [gamma] => x * by * gamma[at],
        [gamma, beta, ..] => (x * by).mul_add(gamma[at], beta[at]),
    });
    along.collect()
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    op!(Normalisation "softmax" ("x") Floats {} "softmax(x, axis={axis})",
        Rows(|x, _| softmax(&x[0])), "e^x by the sum of e^x along an axis"),
    op!(Normalisation "softmin" ("x") Floats {} "softmax(-x, axis={axis})",
        Rows(|x, _| softmax(&x[0].iter().map(|x| -x).collect::<Vec<f64>>())), "softmax of -x"),
    op!(Normalisation "log_softmax" ("x") Floats {} "log_softmax(x, axis={axis})",
        Rows(|x, _| log_softmax(&x[0])), "logarithm of softmax"),
    op!(Normalisation "masked_softmax" ("condition", "x") Floats {}
        "softmax(select(condition, x, -inf), axis={axis})",
        Rows(|x, _| {
            let pairs = x[0].iter().zip(&x[1]);
            let kept = pairs.map(|(c, x)| if *c != 0.0 { *x } else { f64::NEG_INFINITY });
            softmax(&kept.collect::<Vec<f64>>())
        }), "softmax of the elements for which the condition holds; NaN where it holds for none"),
    op!(Normalisation "softmax_backward" ("g", "y") Floats {}
        "y * (g - sum(g * y, axis=[{axis}], keep=true))",
        Rows(|x, _| {
            let dot = total(x[0].iter().zip(&x[1]).map(|(g, y)| g * y));
            x[0].iter().zip(&x[1]).map(|(g, y)| y * (g - dot)).collect()
        }), "gradient of softmax by its result y"),
    op!(Normalisation "log_softmax_backward" ("g", "y") Floats {}
        "g - exp(y) * sum(g, axis=[{axis}], keep=true)",
        Rows(|x, _| {
            let sum = total(x[0].iter().copied());
            x[0].iter().zip(&x[1]).map(|(g, y)| g - y.exp() * sum).collect()
        }), "gradient of log_softmax by its result y"),
    op!(Normalisation "normalize" ("x") Floats { "eps": 0.000000000001 }
        "x / max(sqrt(sum(x * x, axis=[{axis}], keep=true)), {eps})",
        Rows(|x, n| {
            let length = most(total(x[0].iter().map(|x| x * x)).sqrt(), n[0]);
            x[0].iter().map(|x| x / length).collect()
        }), "x by its L2 norm along an axis"),
    op!(Normalisation "rms_norm_gated" ("x", "gamma", "gate") Floats { "eps": 1e-6 }
        "rms_norm(x, axis={axis}, eps={eps}) * gamma * silu(gate)",
        Rows(|x, n| {
            let own = normed(x[0].clone(), &[], n[0]);
            let by = x[1].iter().zip(&x[2]).map(|(gamma, gate)| gamma * silu(*gate));
            own.iter().zip(by).map(|(x, by)| x * by).collect()
        }), "rms_norm along an axis, by gamma and silu(gate)"),
    op!(Normalisation "rms_norm_of_gated" ("x", "gamma", "gate") Floats { "eps": 1e-5 }
        "rms_norm(x * silu(gate), axis={axis}, eps={eps}) * gamma",
        Rows(|x, n| {
            let gated = x[0].iter().zip(&x[2]).map(|(x, gate)| x * silu(*gate));
            let own = normed(gated.collect(), &[], n[0]);
            own.iter().zip(&x[1]).map(|(x, gamma)| x * gamma).collect()
        }), "rms_norm of x silu(gate) along an axis, by gamma"),
    OpRow {
        name: "layer_norm",
        family: OpFamily::Normalisation,
        doc: "(x - mean) / √(variance + eps) gamma + beta along an axis",
        operands: &["x", "gamma", "beta"],
        optional: 2,
        types: TypeClass::Floats,
        numbers: &[("eps", 1e-5)],
        text: "layer_norm({operands}, axis={axis}, eps={eps})",
        oracle: Rows(|x, n| {
            let centre = mean(&x[0]);
            normed(x[0].iter().map(|x| x - centre).collect(), &x[1..], n[0])
        }),
        ..BLANK
    },
    OpRow {
        name: "rms_norm",
        family: OpFamily::Normalisation,
        doc: "x / √(mean of squares + eps) gamma along an axis",
        operands: &["x", "gamma"],
        optional: 1,
        types: TypeClass::Floats,
        numbers: &[("eps", 1e-5)],
        text: "rms_norm({operands}, axis={axis}, eps={eps})",
        oracle: Rows(|x, n| normed(x[0].clone(), &x[1..], n[0])),
        ..BLANK
    },
];
