//! Rows of quantisation: small numbers and the scales by which they stand for elements.
//!
//! A scale is for all elements along the axes: of all axes it is per tensor, of the last one per
//! token, of all but one per channel. Scales keep the axes with extent 1; they are f32, of f64 f64.
//! A number is x / scale + zero, rounded, ties to even, and not outside of its range; NaN gives 0.

use fercuda_jit::TypeClass;
use fercuda_kernels::quantise::{self, DelayedScales, QuantisedRange, scale_type};
use fercuda_kernels::{KernelError, MemoryView, NativeProgram};
use fercuda_tensor::{Dtype, Layout};

use super::approx::{Approx, ApproxType};
use super::scalar::{most, whole_number};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters, joined};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

const TYPED: &[(&str, TypeClass)] = &[("scale", TypeClass::Floats), ("zero", TypeClass::Integers)];

/// The range of numbers of a type.
fn range(op: &OpParameters, dtype: Dtype) -> Result<QuantisedRange, Misfit> {
    if dtype.is_float() {
        return Ok(QuantisedRange {
            low: 0.0,
            high: largest(dtype),
        });
    }
    let bits = whole_number(op, "bits")?;
    if !(2..=8).contains(&bits) {
        return Err(Misfit::new(format!("{bits} bits"), "2 to 8"));
    }
    let all = f64::exp2(bits as f64);
    Ok(match (op.name(), dtype.is_signed()) {
        ("quantise", _) => QuantisedRange {
            low: 1.0 - all / 2.0,
            high: all / 2.0 - 1.0,
        },
        (_, true) => QuantisedRange {
            low: -all / 2.0,
            high: all / 2.0 - 1.0,
        },
        (_, false) => QuantisedRange {
            low: 0.0,
            high: all - 1.0,
        },
    })
}

/// The largest number of an eight-bit float.
fn largest(dtype: Dtype) -> f64 {
    dtype.nearest(f64::INFINITY)
}

/// The type of the numbers.
fn number_type(op: &OpParameters) -> Result<Dtype, Misfit> {
    let (default, allowed): (Dtype, &[Dtype]) = match op.name() {
        "quantise_asymmetric" => (Dtype::U8, &[Dtype::U8, Dtype::I8]),
        "quantise_f8" | "f8_scales" => (Dtype::F8E4m3, &[Dtype::F8E4m3, Dtype::F8E5m2]),
        "quantise_with" => (
            Dtype::I8,
            &[Dtype::I8, Dtype::U8, Dtype::F8E4m3, Dtype::F8E5m2],
        ),
        _ => (Dtype::I8, &[Dtype::I8]),
    };
    let dtype = op.target().unwrap_or(default);
    match allowed.contains(&dtype) {
        true => Ok(dtype),
        false => {
            let names: Vec<&str> = allowed.iter().map(|it| it.name()).collect();
            Err(Misfit::new(format!("numbers of {dtype}"), names.join(", ")))
        }
    }
}

/// The axes of a scale, and the others.
fn split_axes(op: &OpParameters, rank: usize) -> Result<(Vec<usize>, Vec<usize>), Misfit> {
    let axes = op.axes_of(rank);
    for (at, axis) in axes.iter().enumerate() {
        if *axis >= rank || axes[..at].contains(axis) {
            let what = format!("axis {axis} of {rank} dimensions, or twice");
            return Err(Misfit::new(
                what,
                "each axis once, below the number of dimensions",
            ));
        }
    }
    let others = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    Ok((axes, others))
}

fn quantise_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (x, to) = (&operands[0], number_type(op)?);
    range(op, to)?;
    let (axes, _) = split_axes(op, x.shape().len())?;
    let mut shape = x.shape().to_vec();
    axes.iter().for_each(|axis| shape[*axis] = 1);
    let mut results = vec![
        (to, x.shape().to_vec()),
        (scale_type(x.dtype()), shape.clone()),
    ];
    if op.name() == "quantise_asymmetric" {
        results.push((Dtype::I32, shape));
    }
    Ok(results)
}

fn quantise(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let x = program.input(0);
    let (to, scales) = (program.output(0), program.output(1));
    let zeros = (op.name() == "quantise_asymmetric").then(|| program.output(2));
    // The results' rule has accepted both.
    let (Ok((axes, others)), Ok(range)) = (split_axes(op, x.shape().len()), range(op, to.dtype()))
    else {
        return Ok(());
    };
    let order: Vec<usize> = others.iter().chain(&axes).copied().collect();
    let groups: Vec<u64> = others.iter().map(|axis| x.shape()[*axis]).collect();
    let grouped = |view: &MemoryView| -> Result<MemoryView, KernelError> {
        Ok(view.permute(&order)?.reshape(&groups)?)
    };
    let of_groups = zeros.as_ref().map(grouped).transpose()?;
    quantise::scales(
        program,
        &x.permute(&order)?,
        others.len(),
        &grouped(&scales)?,
        of_groups.as_ref(),
        range,
    )?;
    let zeros = zeros.map(|zeros| zeros.broadcast(x.shape())).transpose()?;
    let scales = scales.broadcast(x.shape())?;
    quantise::quantise(program, [&x, &scales, &to], zeros.as_ref(), range)
}

/// What is near a value when it is rounded to a whole number, and how far it may be off.
fn whole_near(value: f64, error: f64) -> (f64, f64) {
    let near = value.round_ties_even();
    let high = (value + error).round_ties_even() - near;
    let low = near - (value - error).round_ties_even();
    (near, high.max(low))
}

/// A number by a scale and a zero that may be off.
fn number(
    dtype: Dtype,
    range: QuantisedRange,
    x: f64,
    scale: Approx,
    (zero, off): (f64, f64),
    t: ApproxType,
) -> ExpectedElement {
    let value = t.exact(x) / scale;
    if dtype.is_float() {
        // A device rounds to f32 on the way; the nearest numbers to both ends are what it may give.
        let error = value.error + f64::exp2(-24.0) * value.value.abs();
        let near = dtype.nearest(value.value);
        let [low, high] = [-error, error].map(|error| dtype.nearest(value.value + error));
        let error = (high - near).abs().max((near - low).abs());
        return (near, if error.is_nan() { 0.0 } else { error });
    }
    if value.value.is_nan() {
        return (0.0, 0.0);
    }
    let (near, error) = whole_near(value.value, value.error);
    ((near + zero).clamp(range.low, range.high), error + off)
}

fn quantise_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (x, to, state) = (&x[0], results[0].dtype(), results[1].dtype());
    let t = ApproxType::of(state);
    let (Ok((axes, _)), Ok(range)) = (split_axes(op, x.shape.len()), range(op, to)) else {
        return Vec::new();
    };
    let is_asymmetric = results.len() > 2;
    let shape = results[1].shape();
    let group = |index: &[u64]| {
        let place = index.iter().zip(shape).enumerate();
        place.fold(0, |place, (axis, (at, extent))| {
            place * extent + if axes.contains(&axis) { 0 } else { *at }
        }) as usize
    };
    let all = indices(&x.shape);
    let mut ranges = vec![(0.0, 0.0); results[1].len() as usize];
    for (index, value) in all.iter().zip(&x.values) {
        let (above, below) = &mut ranges[group(index)];
        (*above, *below) = (most(*above, *value), most(*below, -value));
    }
    let scale = |(above, below): &(f64, f64)| {
        let scale = match is_asymmetric {
            // Divided first: the range of finite numbers may be infinite.
            true => {
                let steps = t.exact(range.high - range.low);
                t.exact(*above) / steps + t.exact(*below) / steps
            }
            false => t.exact(most(*above, *below)) / t.exact(range.high),
        };
        let least = match state {
            Dtype::F64 => f64::MIN_POSITIVE,
            _ => f32::MIN_POSITIVE.into(),
        };
        if scale.value < least {
            t.exact(least)
        } else {
            scale
        }
    };
    let scales: Vec<Approx> = ranges.iter().map(scale).collect();
    let zero = |((_, below), scale): (&(f64, f64), &Approx)| {
        let value = t.exact(*below) / *scale;
        if !is_asymmetric {
            return (0.0, 0.0);
        }
        if value.value.is_nan() {
            return (range.low, 0.0);
        }
        let (near, off) = whole_near(value.value, value.error);
        ((range.low + near).clamp(range.low, range.high), off)
    };
    let zeros: Vec<(f64, f64)> = ranges.iter().zip(&scales).map(zero).collect();
    let numbers = all.iter().zip(&x.values).map(|(index, value)| {
        let group = group(index);
        number(to, range, *value, scales[group], zeros[group], t)
    });
    let mut expected = vec![
        numbers.collect(),
        scales.iter().map(|scale| scale.stored(state)).collect(),
    ];
    if is_asymmetric {
        expected.push(zeros);
    }
    expected
}

// By scales that are given.

fn check_broadcast(layout: &Layout, shape: &[u64], what: &str) -> Result<(), Misfit> {
    match joined(layout.shape(), shape).as_deref() == Some(shape) {
        true => Ok(()),
        false => {
            let what = format!("{what} is {:?} for {shape:?}", layout.shape());
            Err(Misfit::new(what, "a shape that is broadcast to x's"))
        }
    }
}

fn check_scales(operands: &[Layout]) -> Result<(), Misfit> {
    let shape = operands[0].shape();
    check_broadcast(&operands[1], shape, "the scale")?;
    operands
        .get(2)
        .map_or(Ok(()), |zero| check_broadcast(zero, shape, "the zero"))
}

fn with_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let to = number_type(op)?;
    range(op, to)?;
    check_scales(operands)?;
    let (own, wanted) = (operands[1].dtype(), scale_type(operands[0].dtype()));
    if own != wanted {
        return Err(Misfit::new(
            format!("a scale of {own}"),
            format!("{wanted}"),
        ));
    }
    if to.is_float() && operands.len() > 2 {
        return Err(Misfit::new("a zero of floats", "no zero"));
    }
    Ok(vec![(to, operands[0].shape().to_vec())])
}

/// Scale and zero, broadcast to the operand's shape.
fn given_scales(program: &NativeProgram) -> Result<(MemoryView, Option<MemoryView>), KernelError> {
    let x = program.input(0);
    let zero = (program.operands() > 2).then(|| program.input(2));
    let zero = zero.map(|zero| zero.broadcast(x.shape())).transpose()?;
    Ok((program.input(1).broadcast(x.shape())?, zero))
}

fn quantise_with(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let (scale, zero) = given_scales(program)?;
    match range(op, to.dtype()) {
        Ok(range) => quantise::quantise(program, [&x, &scale, &to], zero.as_ref(), range),
        Err(_) => Ok(()),
    }
}

fn with_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (to, t) = (results[0].dtype(), ApproxType::of(x[1].dtype));
    let Ok(range) = range(op, to) else {
        return Vec::new();
    };
    let one = |(index, value): (&Vec<u64>, &f64)| {
        let zero = x.get(2).map_or(0.0, |zero| zero.at(index));
        number(to, range, *value, t.exact(x[1].at(index)), (zero, 0.0), t)
    };
    vec![
        indices(&x[0].shape)
            .iter()
            .zip(&x[0].values)
            .map(one)
            .collect(),
    ]
}

fn dequantise_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_scales(operands)?;
    let state = operands[1].dtype();
    if state != scale_type(state) {
        return Err(Misfit::new(format!("a scale of {state}"), "f32 or f64"));
    }
    let to = op.target().unwrap_or(state);
    match to.is_float() {
        true => Ok(vec![(to, operands[0].shape().to_vec())]),
        false => Err(Misfit::new(format!("it gives no {to}"), "a float")),
    }
}

fn dequantise(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let (scale, zero) = given_scales(program)?;
    quantise::dequantise(program, [&x, &scale, &to], zero.as_ref())
}

fn dequantise_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let t = ApproxType::of(x[1].dtype);
    let one = |(index, value): (&Vec<u64>, &f64)| {
        let value = match x.get(2) {
            Some(zero) => t.number(*value) - t.number(zero.at(index)),
            None => t.number(*value),
        };
        (value * t.exact(x[1].at(index))).stored(results[0].dtype())
    };
    vec![
        indices(&x[0].shape)
            .iter()
            .zip(&x[0].values)
            .map(one)
            .collect(),
    ]
}

// Four bits.

fn pack_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let mut shape = operands[0].shape().to_vec();
    match shape.last_mut() {
        Some(last) => *last = last.div_ceil(2),
        None => return Err(Misfit::new("no dimension to pack", "one dimension or more")),
    }
    Ok(vec![(Dtype::U8, shape)])
}

fn pack(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    quantise::pack(program, &x, &to)
}

/// The low bits of a whole number.
fn low_bits(value: f64, bits: i32) -> u8 {
    value.rem_euclid(f64::from(bits).exp2()) as u8
}

fn pack_expected(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let len = x[0].shape.last().copied().unwrap_or(1).max(1) as usize;
    let byte = |pair: &[f64]| {
        let high = pair.get(1).map_or(0, |value| low_bits(*value, 4));
        (f64::from(low_bits(pair[0], 4) | high << 4), 0.0)
    };
    let rows = x[0].values.chunks(len);
    vec![rows.flat_map(|row| row.chunks(2).map(byte)).collect()]
}

fn unpack_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let to = op.target().unwrap_or(Dtype::I8);
    if to.is_float() || to == Dtype::Bool {
        return Err(Misfit::new(format!("it gives no {to}"), "an integer"));
    }
    let mut shape = operands[0].shape().to_vec();
    let doubled = shape.last().and_then(|last| last.checked_mul(2));
    match (shape.last_mut(), doubled) {
        (Some(last), Some(doubled)) => *last = doubled,
        _ => {
            return Err(Misfit::new(
                "no dimension to unpack",
                "one dimension or more",
            ));
        }
    }
    Ok(vec![(to, shape)])
}

fn unpack(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    quantise::unpack(program, &x, &to, op.choice_of("numbers") == "signed")
}

fn unpack_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let is_signed = op.choice_of("numbers") == "signed";
    let number = |half: u8| {
        let value = match is_signed && half > 7 {
            true => f64::from(half) - 16.0,
            false => f64::from(half),
        };
        (super::bounds::wrapped(results[0].dtype(), value), 0.0)
    };
    let both = |value: &f64| {
        let byte = low_bits(*value, 8);
        [number(byte & 15), number(byte >> 4)]
    };
    vec![x[0].values.iter().flat_map(both).collect()]
}

// Delayed scales.

fn factor(op: &OpParameters) -> Result<f64, Misfit> {
    let margin = op.number_of("margin");
    match margin.abs() <= 64.0 {
        true => Ok(margin.exp2() / largest(number_type(op)?)),
        false => Err(Misfit::new(format!("a margin of {margin}"), "-64 to 64")),
    }
}

fn delayed_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    factor(op)?;
    let [history, latest, scale] = [0, 1, 2].map(|at| operands[at].shape());
    let [_, shape @ ..] = history else {
        return Err(Misfit::new("the history has no dimension", "[steps, ..]"));
    };
    if latest != shape || scale != shape {
        let what = format!("{latest:?} and {scale:?} for a history of {history:?}");
        return Err(Misfit::new(
            what,
            "the history's shape without its first dimension",
        ));
    }
    let dtype = operands[0].dtype();
    Ok(vec![(dtype, history.to_vec()), (dtype, shape.to_vec())])
}

fn delayed(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let views = DelayedScales {
        history: program.input(0),
        latest: program.input(1),
        scales: program.input(2),
        history_to: program.output(0),
        scales_to: program.output(1),
    };
    let factor = factor(op).unwrap_or_default();
    quantise::delayed_scales(program, &views, factor, op.choice_of("by") == "latest")
}

fn delayed_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let count = x[1].values.len();
    let kept = x[0].values.len().saturating_sub(count);
    let history: Vec<f64> = match x[0].values.is_empty() {
        true => Vec::new(),
        false => x[1]
            .values
            .iter()
            .chain(&x[0].values[..kept])
            .copied()
            .collect(),
    };
    let scale = |at: usize| {
        let own = history.iter().skip(at).step_by(count.max(1)).copied();
        let largest = match op.choice_of("by") {
            "latest" => x[1].values[at],
            _ => own.fold(x[1].values[at], most),
        };
        match largest > 0.0 && largest.is_finite() {
            true => (t.exact(largest) * t.number(factor(op).unwrap_or(f64::NAN))).stored(dtype),
            false => (x[2].values[at], 0.0),
        }
    };
    let scales = (0..count).map(scale).collect();
    vec![history.iter().map(|value| (*value, 0.0)).collect(), scales]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Quantisation "quantise" ("x") Floats { "bits": 8.0 } ["axes"]
        { typed: TYPED, results: &["out", "scale"] }
        "cuda.quantise", quantise_results, quantise, quantise_expected,
        "i8 of 2 to 8 bits, symmetric, and their scale: the largest magnitude along the axes by the largest number"),
    native!(Quantisation "quantise_asymmetric" ("x") Floats { "bits": 8.0 } ["axes", "to"]
        { typed: TYPED, results: &["out", "scale", "zero"] }
        "cuda.quantise", quantise_results, quantise, quantise_expected,
        "u8 or i8 of 2 to 8 bits, their scale, and the number that stands for 0, of the range of x and 0 along the axes"),
    native!(Quantisation "quantise_f8" ("x") Floats {} ["axes", "to"]
        { typed: TYPED, results: &["out", "scale"] }
        "cuda.quantise", quantise_results, quantise, quantise_expected,
        "f8e4m3 or f8e5m2, and their scale: the largest magnitude along the axes by the largest number"),
    native!(Quantisation "quantise_with" ("x", "scale", "zero") Floats { "bits": 8.0 } ["to"]
        { typed: TYPED, optional: 1 }
        "cuda.quantise", with_results, quantise_with, with_expected,
        "i8, u8, f8e4m3 or f8e5m2 by a scale, and of integers a zero, that are broadcast to x"),
    native!(Quantisation "dequantise" ("x", "scale", "zero") Numbers {} ["to"]
        { typed: TYPED, optional: 1 }
        "cuda.quantise", dequantise_results, dequantise, dequantise_expected,
        "(x - zero) scale; of the scale's type without `to`"),
    native!(Quantisation "pack_int4" ("x") Integers {} [] {}
        "cuda.quantise", pack_results, pack, pack_expected,
        "u8 of the low 4 bits of two neighbours along the last dimension, the first in the low bits"),
    native!(Quantisation "unpack_int4" ("x") Integers {} ["to"]
        { choices: &[("numbers", &["signed", "unsigned"])] }
        "cuda.quantise", unpack_results, unpack, unpack_expected,
        "two numbers of 4 bits of each byte, neighbours along the last dimension; i8 without `to`"),
    native!(Quantisation "f8_scales" ("history", "latest", "scale") Floats { "margin": 0.0 } ["to"]
        { results: &["history", "scale"], choices: &[("by", &["largest", "latest"])] }
        "cuda.quantise", delayed_results, delayed, delayed_expected,
        "delayed scaling: the latest magnitude before the history[steps, ..], and 2^margin times the largest by the largest number of the type as scale; unless that is 0 or not finite"),
];
