//! Floating-point arithmetic with every rounding and mode, on the edges of the formats.

use super::entry::Reference;
use super::exact::{
    self, BF16, F16, F32, F64, FOUR, Format, Round, add, divide, fused, multiply, nan, square_root,
    subtract,
};
use crate::data::{Expected, LaunchInputs};
use fercuda_tensor::Dtype;

pub(super) const TABLE: &[Reference] = &[
    Reference::new("rounding_f32", rounding_f32),
    Reference::new("special_f32", special_f32),
    Reference::new("rounding_f64", rounding_f64),
    Reference::new("f16_pairs", f16_pairs),
    Reference::new("bf16_pairs", bf16_pairs),
];

use Round::{Down, Near, Up, Zero};

fn rows(c: &LaunchInputs) -> Vec<[f64; 3]> {
    let (a, b, z) = (c.values("a"), c.values("b"), c.values("c"));
    (0..a.len()).map(|i| [a[i], b[i], z[i]]).collect()
}

fn words(bits: impl Iterator<Item = u64>) -> Vec<u32> {
    bits.map(|b| b as u32).collect()
}

fn rounding_f32(c: &LaunchInputs, e: &mut Expected) {
    let rows = rows(c);
    let each = |f: &dyn Fn(&[f64; 3], Round) -> u64| {
        words(rows.iter().flat_map(|v| FOUR.map(|r| f(v, r))))
    };
    e.exact(
        "sum",
        &words(rows.iter().flat_map(|[x, y, _]| {
            [
                add(*x, *y, F32, Near),
                add(*x, *y, F32, Zero),
                add(*x, *y, F32, Down),
                subtract(*x, *y, F32, Up),
            ]
        })),
    );
    e.exact("product", &each(&|[x, y, _], r| multiply(*x, *y, F32, r)));
    e.exact("fused", &each(&|[x, y, z], r| fused(*x, *y, *z, F32, r)));
    e.exact("quotient", &each(&|[x, y, _], r| divide(*x, *y, F32, r)));
    e.exact("root", &each(&|[x, _, _], r| square_root(x.abs(), F32, r)));
    e.exact("reciprocal", &each(&|[x, _, _], r| divide(1.0, *x, F32, r)));
}

fn rounding_f64(c: &LaunchInputs, e: &mut Expected) {
    let rows = rows(c);
    let each = |f: &dyn Fn(&[f64; 3], Round) -> u64| {
        rows.iter()
            .flat_map(|v| FOUR.map(|r| f(v, r)))
            .collect::<Vec<u64>>()
    };
    e.exact(
        "sum",
        &rows
            .iter()
            .flat_map(|[x, y, _]| {
                [
                    add(*x, *y, F64, Near),
                    add(*x, *y, F64, Zero),
                    add(*x, *y, F64, Down),
                    subtract(*x, *y, F64, Up),
                ]
            })
            .collect::<Vec<_>>(),
    );
    e.exact("product", &each(&|[x, y, _], r| multiply(*x, *y, F64, r)));
    e.exact("fused", &each(&|[x, y, z], r| fused(*x, *y, *z, F64, r)));
    e.exact(
        "quotient",
        &rows
            .iter()
            .flat_map(|[x, y, _]| {
                [
                    divide(*x, *y, F64, Near),
                    divide(*x, *y, F64, Zero),
                    divide(*x, *y, F64, Down),
                    divide(1.0, *y, F64, Up),
                ]
            })
            .collect::<Vec<_>>(),
    );
    e.exact("root", &each(&|[x, _, _], r| square_root(x.abs(), F64, r)));
    e.exact(
        "whole",
        &rows
            .iter()
            .flat_map(|[x, _, _]| [x.floor(), x.ceil(), x.trunc(), x.round_ties_even()])
            .collect::<Vec<_>>(),
    );
    e.exact(
        "ends",
        &rows
            .iter()
            .flat_map(|[x, y, _]| [low(*x, *y), high(*x, *y)])
            .collect::<Vec<_>>(),
    );
}

/// The smaller, -0 being less than +0; a number rather than a NaN.
fn low(x: f64, y: f64) -> f64 {
    if x.is_nan() {
        y
    } else if y.is_nan() || x < y || (x == y && x.is_sign_negative()) {
        x
    } else {
        y
    }
}

fn high(x: f64, y: f64) -> f64 {
    -low(-x, -y)
}

/// A subnormal f32 becomes a zero of its sign.
fn flush(v: f64) -> f64 {
    if v.abs() < f64::from(f32::MIN_POSITIVE) {
        0.0f64.copysign(v)
    } else {
        v
    }
}

fn flush_bits(bits: u64) -> u64 {
    if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    }
}

/// Into 0..=1; NaN and negative zero give +0.
fn saturate(format: Format, elem: Dtype, bits: u64) -> u64 {
    let v = elem.value(bits);
    if v > 1.0 {
        exact::narrow(1.0, format, Near)
    } else if v > 0.0 {
        bits
    } else {
        0
    }
}

fn special_f32(c: &LaunchInputs, e: &mut Expected) {
    let pairs: Vec<(f64, f64)> = c.values("a").into_iter().zip(c.values("b")).collect();
    let single = |v: f64| exact::narrow(v, F32, Near);
    let each = |f: &dyn Fn(f64, f64) -> u64| words(pairs.iter().map(|(x, y)| f(*x, *y)));
    e.exact("low", &each(&|x, y| single(low(x, y))));
    e.exact("high", &each(&|x, y| single(high(x, y))));
    e.exact(
        "nan_high",
        &each(&|x, y| {
            if x.is_nan() || y.is_nan() {
                nan(F32)
            } else {
                single(high(x, y))
            }
        }),
    );
    e.exact(
        "flushed",
        &words(pairs.iter().flat_map(|(x, y)| {
            let (x, y) = (flush(*x), flush(*y));
            [
                add(x, y, F32, Near),
                multiply(x, y, F32, Near),
                fused(x, y, x, F32, Zero),
            ]
            .map(flush_bits)
        })),
    );
    e.exact(
        "clamped",
        &words(pairs.iter().flat_map(|(x, y)| {
            [add(*x, *y, F32, Near), single(*y)].map(|b| saturate(F32, Dtype::F32, b))
        })),
    );
    e.exact(
        "signs",
        &words(pairs.iter().flat_map(|(x, y)| {
            [x.abs(), -y, x.copysign(*y)].map(|v| {
                if v.is_nan() {
                    nan(F32)
                } else {
                    u64::from((v as f32).to_bits())
                }
            })
        })),
    );
    e.exact(
        "whole",
        &words(
            pairs.iter().flat_map(|(x, _)| {
                [x.floor(), x.ceil(), x.trunc(), x.round_ties_even()].map(single)
            }),
        ),
    );
    e.exact(
        "compare",
        &pairs
            .iter()
            .map(|(x, y)| {
                let unordered = x.is_nan() || y.is_nan();
                let less_or_unordered = unordered || x < y;
                [
                    x < y,
                    x <= y,
                    x > y,
                    x >= y,
                    x == y,
                    x != y,
                    unordered || x >= y,
                    unordered || x < y,
                    x.is_nan(),
                    y.is_infinite(),
                    x.is_finite(),
                    y.is_sign_negative(),
                    unordered,
                ]
                .iter()
                .enumerate()
                .fold(0, |m, (i, bit)| m | u32::from(*bit) << i)
                    | if less_or_unordered { 1 } else { 6 } << 13
            })
            .collect::<Vec<u32>>(),
    );
}

fn halves(bits: impl Iterator<Item = u64>) -> Vec<u16> {
    bits.map(|b| b as u16).collect()
}

/// Negative results become +0; NaN stays.
fn relu(format: Format, bits: u64) -> u64 {
    let magnitude = bits & !exact::zero(format, true);
    if magnitude != bits && magnitude <= exact::infinity(format, false) {
        0
    } else {
        bits
    }
}

fn f16_pairs(c: &LaunchInputs, e: &mut Expected) {
    let rows = rows(c);
    let each =
        |f: &dyn Fn(f64, f64, f64) -> u64| halves(rows.iter().map(|[x, y, z]| f(*x, *y, *z)));
    e.exact("sum", &each(&|x, y, _| add(x, y, F16, Near)));
    e.exact("difference", &each(&|x, y, _| subtract(x, y, F16, Near)));
    e.exact("product", &each(&|x, y, _| multiply(x, y, F16, Near)));
    e.exact("fused", &each(&|x, y, z| fused(x, y, z, F16, Near)));
    e.exact(
        "relu",
        &each(&|x, y, z| relu(F16, fused(x, y, z, F16, Near))),
    );
    e.exact("low", &each(&|x, y, _| exact::narrow(low(x, y), F16, Near)));
    e.exact(
        "nan_high",
        &each(&|x, y, _| {
            if x.is_nan() || y.is_nan() {
                nan(F16)
            } else {
                exact::narrow(high(x, y), F16, Near)
            }
        }),
    );
    e.exact(
        "saturated",
        &each(&|x, y, _| saturate(F16, Dtype::F16, add(x, y, F16, Near))),
    );
    e.exact(
        "less",
        &rows
            .iter()
            .map(|[x, y, z]| {
                let less = if x < y { 0xffff } else { 0 };
                let not_less = if x < z { 0 } else { 0x0f0fu16 };
                less ^ not_less
            })
            .collect::<Vec<u16>>(),
    );
}

fn bf16_pairs(c: &LaunchInputs, e: &mut Expected) {
    let rows = rows(c);
    let each =
        |f: &dyn Fn(f64, f64, f64) -> u64| halves(rows.iter().map(|[x, y, z]| f(*x, *y, *z)));
    e.exact("fused", &each(&|x, y, z| fused(x, y, z, BF16, Near)));
    e.exact(
        "relu",
        &each(&|x, y, z| relu(BF16, fused(x, y, z, BF16, Near))),
    );
    e.exact(
        "high",
        &each(&|x, y, _| exact::narrow(high(x, y), BF16, Near)),
    );
    e.exact(
        "nan_low",
        &each(&|x, y, _| {
            if x.is_nan() || y.is_nan() {
                nan(BF16)
            } else {
                exact::narrow(low(x, y), BF16, Near)
            }
        }),
    );
    e.exact(
        "negated",
        &each(&|x, _, _| exact::narrow(-x.abs(), BF16, Near)),
    );
}
