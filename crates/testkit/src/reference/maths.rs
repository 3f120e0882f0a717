//! Elementary functions: true values in f64, bounds as documented for the device.

use super::bounds::UNIT;
use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};

pub(super) const TABLE: &[Reference] = &[
    Reference::new("approx_f32", approx_f32),
    Reference::new("math_f32", math_f32),
    Reference::new("math_f64", math_f64),
];

fn approx_f32(c: &LaunchInputs, e: &mut Expected) {
    let (x, p) = (c.values("x"), c.values("p"));
    let over = |v: &[f64], f: fn(f64) -> f64| v.iter().map(|v| f(*v)).collect::<Vec<_>>();
    // Within [-pi, pi] the absolute error is at most 2^-20.5; elsewhere it is not promised.
    let absolute = 2f64.powf(-20.5);
    e.near(
        "sine",
        over(&x, f64::sin).into_iter().map(|v| (v, absolute)),
    );
    e.near(
        "cosine",
        over(&x, f64::cos).into_iter().map(|v| (v, absolute)),
    );
    e.truth("power", over(&x, f64::exp2));
    e.near(
        "logarithm",
        p.iter()
            .map(|v| (v.log2(), 2f64.powi(-22) * v.log2().abs().max(1.0))),
    );
    e.truth("root", over(&p, f64::sqrt));
    e.truth("reciprocal_root", p.iter().map(|v| 1.0 / v.sqrt()));
    e.truth("reciprocal", p.iter().map(|v| 1.0 / v));
    e.truth("quotient", x.iter().zip(&p).map(|(a, b)| a / b));
    e.near(
        "tangent",
        x.iter()
            .map(|v| (v.tanh(), 2f64.powf(-10.9) * v.tanh().abs())),
    );
    // 2^(x log2 e): the product's rounding is magnified by its size.
    e.near(
        "exponential",
        x.iter()
            .map(|v| (v.exp(), v.exp() * (4.0 + 2.0 * v.abs()) * UNIT)),
    );
}

/// By its series; its terms stay below 10^4 for |x| <= 3.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn math_f32(c: &LaunchInputs, e: &mut Expected) {
    let (x, p, u) = (c.values("x"), c.values("p"), c.values("u"));
    let with_large = |f: fn(f64) -> f64| {
        x.iter()
            .enumerate()
            .map(move |(t, v)| f(if t == 0 { f64::from(123_456.79f32) } else { *v }))
            .collect::<Vec<_>>()
    };
    e.truth("sine", with_large(f64::sin));
    e.truth("cosine", with_large(f64::cos));
    e.truth("tangent", x.iter().map(|v| v.tan()));
    e.truth("exponential", x.iter().map(|v| v.exp()));
    e.truth("logarithm", p.iter().map(|v| v.ln()));
    e.truth("power", p.iter().zip(&u).map(|(q, w)| q.powf(w * 8.0)));
    // Products that the kernel rounds to f32 first.
    let product = |v: f64, by: f32| f64::from(v as f32 * by);
    e.truth("tanh_", x.iter().map(|v| product(*v, 0.1).tanh()));
    e.truth("error", u.iter().map(|w| erf(product(*w, 3.0))));
    e.truth("arc", x.iter().zip(&p).map(|(v, q)| v.atan2(*q)));
    e.truth("cube_root", x.iter().map(|v| v.cbrt()));
    e.exact(
        "remainder",
        &x.iter()
            .zip(&p)
            .map(|(v, q)| (v % q) as f32)
            .collect::<Vec<f32>>(),
    );
    e.truth("length", x.iter().zip(&p).map(|(v, q)| v.hypot(*q)));
    e.exact(
        "scaled",
        &x.iter().map(|v| (v * 8.0) as f32).collect::<Vec<f32>>(),
    );
}

fn math_f64(c: &LaunchInputs, e: &mut Expected) {
    let (x, p) = (c.values("x"), c.values("p"));
    e.truth(
        "sine",
        x.iter()
            .enumerate()
            .map(|(t, v)| if t == 0 { 1e9f64.sin() } else { v.sin() }),
    );
    e.truth("exponential", x.iter().map(|v| v.exp()));
    e.truth("logarithm", p.iter().map(|v| v.ln()));
    e.truth("power", x.iter().zip(&p).map(|(v, q)| q.powf(v * 0.25)));
    e.truth("reciprocal_root", p.iter().map(|v| 1.0 / v.sqrt()));
    e.truth("tanh_", x.iter().map(|v| (v * 0.1).tanh()));
    e.truth("cube_root", p.iter().map(|v| v.cbrt()));
    e.truth("arc", x.iter().zip(&p).map(|(v, q)| v.atan2(*q)));
}
