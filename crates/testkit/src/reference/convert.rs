//! Conversions between number formats, by the exact arithmetic of [`super::exact`].

use super::entry::Reference;
use super::exact::{
    BF16, E5M2, F16, F32, F64, FOUR, Format, Number, Round, infinity, integer, narrow, zero,
};
use crate::data::{Expected, LaunchInputs};
use fercuda_tensor::Dtype;

pub(super) const TABLE: &[Reference] = &[
    Reference::new("f16_to_all", f16_to_all),
    Reference::new("all_to_f16", all_to_f16),
    Reference::new("bf16_to_all", bf16_to_all),
    Reference::new("f32_to_bf16", f32_to_bf16),
    Reference::new("fp8_to_all", fp8_to_all),
    Reference::new("f16_to_fp8", f16_to_fp8),
    Reference::new("f32_to_fp8", f32_to_fp8),
    Reference::new("float_to_int", float_to_int),
    Reference::new("int_to_float", int_to_float),
    Reference::new("f64_to_f32", f64_to_f32),
];

const NEAR: Round = Round::Near;

/// Smallest and largest of a signed and an unsigned integer of `bits`.
fn signed(bits: u32) -> (i128, i128) {
    (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
}

fn unsigned(bits: u32) -> (i128, i128) {
    (0, (1 << bits) - 1)
}

/// NaN converts to zero, and to the smallest signed number where a 64-bit format is on either side.
fn to_int(v: f64, round: Round, (low, high): (i128, i128), wide: bool) -> i128 {
    let bits = 128 - (high - low).leading_zeros();
    integer(v, round, low, high, if wide { 1 << (bits - 1) } else { 0 })
}

fn f16_to_all(_: &LaunchInputs, e: &mut Expected) {
    let all: Vec<f64> = (0..65536).map(|b| Dtype::F16.value(b)).collect();
    e.exact(
        "f",
        &all.iter()
            .map(|v| narrow(*v, F32, NEAR) as u32)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "d",
        &all.iter()
            .map(|v| narrow(*v, F64, NEAR))
            .collect::<Vec<_>>(),
    );
    e.exact(
        "i",
        &all.iter()
            .map(|v| to_int(*v, Round::Zero, signed(32), false) as i32)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "u",
        &all.iter()
            .map(|v| to_int(*v, NEAR, unsigned(32), false) as u32)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "s",
        &all.iter()
            .map(|v| to_int(*v, Round::Down, signed(16), false) as i16)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "l",
        &all.iter()
            .map(|v| to_int(*v, Round::Up, signed(64), true) as i64)
            .collect::<Vec<_>>(),
    );
    e.exact("whole", &all.iter().map(|v| if v.is_finite() { narrow(v.round_ties_even(), F16, NEAR) } else { narrow(*v, F16, NEAR) } as u16).collect::<Vec<_>>());
}

fn all_to_f16(c: &LaunchInputs, e: &mut Expected) {
    let f = c.values("f");
    let by = |round| {
        f.iter()
            .map(|v| narrow(*v, F16, round) as u16)
            .collect::<Vec<_>>()
    };
    for (name, round) in ["near", "zero", "down", "up"].into_iter().zip(FOUR) {
        e.exact(name, &by(round));
    }
    e.exact(
        "from_f64",
        &c.values("d")
            .iter()
            .map(|v| narrow(*v, F16, NEAR) as u16)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "from_i32",
        &c.get::<i32>("i")
            .iter()
            .map(|v| Number::whole((*v).into()).round(F16, NEAR) as u16)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "from_u16",
        &(0..f.len() as u32)
            .map(|t| Number::whole((t * 5 % 65536).into()).round(F16, NEAR) as u16)
            .collect::<Vec<_>>(),
    );
}

fn bf16_to_all(_: &LaunchInputs, e: &mut Expected) {
    let all: Vec<f64> = (0..65536).map(|b| Dtype::Bf16.value(b)).collect();
    e.exact(
        "f",
        &all.iter()
            .map(|v| narrow(*v, F32, NEAR) as u32)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "i",
        &all.iter()
            .map(|v| to_int(*v, Round::Zero, signed(32), false) as i32)
            .collect::<Vec<_>>(),
    );
    e.exact(
        "u",
        &all.iter()
            .map(|v| to_int(*v, Round::Zero, unsigned(32), false) as u32)
            .collect::<Vec<_>>(),
    );
}

fn f32_to_bf16(c: &LaunchInputs, e: &mut Expected) {
    let f = c.values("f");
    let near: Vec<u16> = f.iter().map(|v| narrow(*v, BF16, NEAR) as u16).collect();
    e.exact("pair", &near);
    e.exact(
        "relu",
        &f.iter()
            .zip(&near)
            .map(|(v, b)| {
                if v.is_sign_negative() && !v.is_nan() {
                    0
                } else {
                    *b
                }
            })
            .collect::<Vec<u16>>(),
    );
    e.exact("near", &near);
    e.exact(
        "zero",
        &f.iter()
            .map(|v| narrow(*v, BF16, Round::Zero) as u16)
            .collect::<Vec<_>>(),
    );
}

/// Saturating to the largest finite; NaN stays NaN.
fn to_e5m2(v: f64) -> u8 {
    let bits = narrow(v, E5M2, NEAR);
    let negative = v < 0.0;
    if bits == infinity(E5M2, negative) {
        (zero(E5M2, negative) | 0x7b) as u8
    } else {
        bits as u8
    }
}

/// The top exponent is an ordinary one here, so large values are rounded in a format with one more
/// bit of exponent.
fn to_e4m3(v: f64) -> u8 {
    let sign = u8::from(v.is_sign_negative()) << 7;
    if v.is_nan() {
        0x7f
    } else if v.abs() < 1.0 {
        narrow(v, Format(4, 3), NEAR) as u8
    } else {
        let bits = narrow(v.abs(), Format(5, 3), NEAR) as u8;
        sign | (bits - (8 << 3)).min(0x7e)
    }
}

fn fp8_to_all(_: &LaunchInputs, e: &mut Expected) {
    for (elem, f, h) in [(Dtype::F8E4m3, "f4", "h4"), (Dtype::F8E5m2, "f5", "h5")] {
        let all: Vec<f64> = (0..256).map(|b| elem.value(b)).collect();
        e.exact(
            f,
            &all.iter()
                .map(|v| narrow(*v, F32, NEAR) as u32)
                .collect::<Vec<_>>(),
        );
        e.exact(
            h,
            &all.iter()
                .map(|v| narrow(*v, F16, NEAR) as u16)
                .collect::<Vec<_>>(),
        );
    }
}

fn f16_to_fp8(_: &LaunchInputs, e: &mut Expected) {
    let all: Vec<f64> = (0..65536).map(|b| Dtype::F16.value(b)).collect();
    e.exact("e4", &all.iter().map(|v| to_e4m3(*v)).collect::<Vec<_>>());
    e.exact("e5", &all.iter().map(|v| to_e5m2(*v)).collect::<Vec<_>>());
}

fn f32_to_fp8(c: &LaunchInputs, e: &mut Expected) {
    let f = c.values("f");
    let e4: Vec<u8> = f.iter().map(|v| to_e4m3(*v)).collect();
    e.exact("pair4", &e4);
    e.exact("e4", &e4);
    e.exact("e5", &f.iter().map(|v| to_e5m2(*v)).collect::<Vec<_>>());
}

fn float_to_int(c: &LaunchInputs, e: &mut Expected) {
    let (f, d) = (c.values("f"), c.values("d"));
    e.exact(
        "i",
        &f.iter()
            .flat_map(|v| FOUR.map(|r| to_int(*v, r, signed(32), false) as i32))
            .collect::<Vec<_>>(),
    );
    e.exact(
        "u",
        &f.iter()
            .flat_map(|v| FOUR.map(|r| to_int(*v, r, unsigned(32), false) as u32))
            .collect::<Vec<_>>(),
    );
    e.exact(
        "l",
        &f.iter()
            .flat_map(|v| {
                [NEAR, Round::Zero, Round::Down]
                    .map(|r| to_int(*v, r, signed(64), true) as i64)
                    .into_iter()
                    .chain([to_int(*v, Round::Up, unsigned(64), true) as i64])
            })
            .collect::<Vec<_>>(),
    );
    e.exact(
        "from_d",
        &d.iter()
            .flat_map(|v| {
                [
                    to_int(*v, NEAR, signed(32), true) as i32,
                    to_int(*v, Round::Down, unsigned(32), true) as i32,
                ]
            })
            .collect::<Vec<_>>(),
    );
    e.exact(
        "wide_d",
        &d.iter()
            .flat_map(|v| {
                [
                    to_int(*v, Round::Zero, signed(64), true) as u64,
                    to_int(*v, Round::Up, unsigned(64), true) as u64,
                ]
            })
            .collect::<Vec<_>>(),
    );
    e.exact(
        "narrow",
        &f.iter()
            .flat_map(|v| {
                [
                    to_int(*v, NEAR, signed(16), false) as i16,
                    to_int(*v, Round::Zero, unsigned(16), false) as i16,
                ]
            })
            .collect::<Vec<_>>(),
    );
}

fn int_to_float(c: &LaunchInputs, e: &mut Expected) {
    use Round::{Down, Up, Zero};
    let (i, l) = (c.get::<i32>("i"), c.get::<i64>("l"));
    let single = |v: i128, r| Number::whole(v).round(F32, r) as u32;
    let double = |v: i128, r| Number::whole(v).round(F64, r);
    e.exact(
        "f",
        &i.iter()
            .flat_map(|&v| {
                [
                    single(v.into(), NEAR),
                    single(v.into(), Zero),
                    single((v as u32).into(), Down),
                    single((v as u32).into(), Up),
                ]
            })
            .collect::<Vec<_>>(),
    );
    e.exact(
        "g",
        &l.iter()
            .flat_map(|&v| {
                [
                    single(v.into(), NEAR),
                    single(v.into(), Down),
                    single((v as u64).into(), Up),
                    single((v as u64).into(), Zero),
                ]
            })
            .collect::<Vec<_>>(),
    );
    e.exact(
        "d",
        &i.iter()
            .zip(&l)
            .flat_map(|(&a, &b)| {
                [
                    double(a.into(), NEAR),
                    double(b.into(), NEAR),
                    double((b as u64).into(), Down),
                    double(b.into(), Up),
                ]
            })
            .collect::<Vec<_>>(),
    );
}

fn f64_to_f32(c: &LaunchInputs, e: &mut Expected) {
    let d = c.values("d");
    e.exact(
        "f",
        &d.iter()
            .flat_map(|v| FOUR.map(|r| narrow(*v, F32, r) as u32))
            .collect::<Vec<_>>(),
    );
    e.exact(
        "flushed",
        &d.iter()
            .map(|v| {
                let bits = narrow(*v, F32, NEAR) as u32;
                if bits & 0x7f80_0000 == 0 {
                    bits & 0x8000_0000
                } else {
                    bits
                }
            })
            .collect::<Vec<_>>(),
    );
}
