//! Errors of the `.approx` functions, which the PTX ISA bounds.
//!
//! Elsewhere: the bits, by sums over all operands (`testkit/tests/approx.rs`).

use super::super::half::{BF16, F16};
use super::*;

/// `2^p`
fn power(p: f64) -> f64 {
    p.exp2()
}

/// The worst of `error` over random operands from `low` to `high`.
fn worst(low: f32, high: f32, error: impl Fn(f32) -> f64) -> f64 {
    let mut random = fercuda_trials::rng();
    (0..200_000)
        .map(|_| low + random.f32() * (high - low))
        .map(error)
        .fold(0.0, f64::max)
}

/// The distance of `got` from `exact`, relative to `exact`.
fn relative(got: f32, exact: f64) -> f64 {
    (f64::from(got) - exact).abs() / exact.abs()
}

#[test]
fn errors_are_within_the_bounds_of_the_isa() {
    for ftz in [false, true] {
        let reciprocal = worst(1.0, 2.0, |x| relative(rcp(x, ftz), 1.0 / f64::from(x)));
        assert!(reciprocal < power(-23.0), "rcp: {reciprocal:e}");
        let root = worst(1.0, 4.0, |x| relative(sqrt(x, ftz), f64::from(x).sqrt()));
        assert!(root < power(-23.0), "sqrt: {root:e}");
        let inverse = worst(1.0, 4.0, |x| {
            relative(rsqrt(x, ftz), f64::from(x).sqrt().recip())
        });
        assert!(inverse < power(-22.9), "rsqrt: {inverse:e}");
        let exponential = worst(-120.0, 120.0, |x| {
            relative(ex2(x, ftz), f64::from(x).exp2())
        });
        assert!(exponential < power(-22.0), "ex2: {exponential:e}");
        let logarithm = worst(0.5, 2.0, |x| {
            (f64::from(lg2(x, ftz)) - f64::from(x).log2()).abs()
        });
        assert!(logarithm < power(-22.0), "lg2: {logarithm:e}");
        for divide in [div, div_full] {
            let quotient = worst(1.0, 4.0, |x| {
                relative(divide(3.0, x, ftz), 3.0 / f64::from(x))
            });
            assert!(quotient < power(-22.0), "div: {quotient:e}");
        }
    }
    let pi = std::f32::consts::PI;
    let sine = worst(-pi, pi, |x| (f64::from(sin(x)) - f64::from(x).sin()).abs());
    assert!(sine < power(-20.5), "sin: {sine:e}");
    let cosine = worst(-pi, pi, |x| (f64::from(cos(x)) - f64::from(x).cos()).abs());
    assert!(cosine < power(-20.5), "cos: {cosine:e}");
    let tangent = worst(-9.0, 9.0, |x| relative(tanh(x), f64::from(x).tanh()));
    assert!(tangent < power(-11.0), "tanh: {tangent:e}");
    let wide = |x: f32| f64::from(x) * (1.0 + power(-30.0));
    let inverse = worst(1.0, 4.0, |x| {
        let x = wide(x);
        (rsqrt_f64(x, false) * x.sqrt() - 1.0).abs()
    });
    assert!(inverse < power(-50.0), "rsqrt of f64: {inverse:e}");
    let reciprocal = worst(1.0, 2.0, |x| (rcp_f64(wide(x)) * wide(x) - 1.0).abs());
    assert!(reciprocal < power(-19.0), "rcp of f64: {reciprocal:e}");
}

#[test]
fn halves_are_those_of_f32_cut() {
    for bits in 0..=u16::MAX {
        let value = half::f16::from_bits(bits).to_f32();
        let got = half::f16::from_bits(ex2_half(F16, bits));
        let exact = f32::from_bits(ex2_unit(value.to_bits()));
        if value.is_nan() {
            assert_eq!(got.to_bits(), 0x7fff);
        } else if got.is_infinite() {
            assert!(exact >= 65536.0, "ex2 of {value}: {got}, exactly {exact}");
        } else {
            let next = half::f16::from_bits(got.to_bits() + 1).to_f32();
            let within = got.to_f32() <= exact && exact < next.min(65536.0);
            assert!(within, "ex2 of {value}: {got}, exactly {exact}");
        }
        let value = half::bf16::from_bits(bits).to_f32();
        let got = u32::from(tanh_half(BF16, bits));
        assert_eq!(got, tanh(value).to_bits() >> 16, "tanh of {value}");
    }
}
