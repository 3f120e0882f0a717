//! Rows of discrete Fourier transforms. Complex numbers are arrays whose last dimension is 2.
//!
//! A transform of radices 2 to 7 has, for each doubling of the length, an error of at most
//! `LEVEL` unit roundoffs of the result's 2-norm (Higham, Accuracy and Stability, 24.2, with roots
//! of six roundoffs); that norm bounds each element. Of other lengths it is a convolution of a
//! chirp by three transforms of up to four times the length, whose spectrum is below four roots of
//! the length: seven times the error of one of them. Transforms along several axes add up.

use fercuda_kernels::{KernelError, NativeProgram, fft};
use fercuda_tensor::{Dtype, Layout};

use super::bounds::{magnitudes, rounded, unit_roundoff};
use super::scalar::{total, whole_number};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, native};

type FourierResults = Result<Vec<(Dtype, Vec<u64>)>, Misfit>;
type FourierLowered = Result<(), KernelError>;

/// Error of the transforms for each doubling of the length, in unit roundoffs.
const LEVEL: f64 = 16.0;

/// A transform along one of an op's axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FourierStage {
    pub(crate) axis: usize,
    pub(crate) len: u64,
    pub(crate) kind: fft::FourierKind,
}

pub(crate) fn is_inverse(op: &OpParameters) -> bool {
    matches!(op.name(), "ifft" | "irfft")
}

/// Length of the real rows of a half spectrum.
fn real_length(op: &OpParameters, half: u64) -> Result<u64, Misfit> {
    let n = whole_number(op, "n")?;
    let len = match u64::try_from(n) {
        Ok(0) => 2 * half.saturating_sub(1),
        Ok(n) => n,
        Err(_) => 0,
    };
    if len == 0 || len / 2 + 1 != half {
        let what = format!("{len} elements do not have a half spectrum of {half}");
        let hint = format!("n of {} or {}", 2 * half.max(2) - 2, 2 * half.max(1) - 1);
        return Err(Misfit::new(what, hint));
    }
    Ok(len)
}

/// The transforms of an op in their order, of an operand of that shape, and the result's shape.
pub(crate) fn stages(
    op: &OpParameters,
    shape: &[u64],
) -> Result<(Vec<FourierStage>, Vec<u64>), Misfit> {
    let is_real = op.name() == "rfft";
    let parts = usize::from(!is_real);
    let mut own = shape.to_vec();
    if !is_real && own.pop() != Some(2) {
        let what = format!("the last dimension of {shape:?} is not 2, of real and imaginary parts");
        return Err(Misfit::new(what, "complex numbers as pairs"));
    }
    let rank = own.len();
    if rank == 0 {
        let hint = format!("an operand of at least {} dimensions", 1 + parts);
        return Err(Misfit::new(format!("{shape:?} has no axis"), hint));
    }
    let axes = op.axes.clone().unwrap_or_else(|| vec![rank - 1]);
    for (at, axis) in axes.iter().enumerate() {
        if *axis >= rank || axes[..at].contains(axis) {
            let what = format!("there is no axis {axis} in {own:?}, or it is there twice");
            return Err(Misfit::new(what, format!("each axis below {rank} once")));
        }
        if own[*axis] == 0 {
            let what = "the transform of an empty axis is undefined";
            return Err(Misfit::new(what, "axes of at least 1"));
        }
    }
    let Some((last, others)) = axes.split_last() else {
        return Err(Misfit::new("there are no axes", "at least one axis"));
    };
    let mut all: Vec<FourierStage> = others
        .iter()
        .map(|axis| FourierStage {
            axis: *axis,
            len: own[*axis],
            kind: fft::FourierKind::Complex,
        })
        .collect();
    let (kind, len) = match op.name() {
        "rfft" => (fft::FourierKind::RealToHalf, own[*last]),
        "irfft" => (fft::FourierKind::HalfToReal, real_length(op, own[*last])?),
        _ => (fft::FourierKind::Complex, own[*last]),
    };
    let stage = FourierStage {
        axis: *last,
        len,
        kind,
    };
    match is_real {
        // Half of the spectrum is computed first, and transformed along the other axes.
        true => all.insert(0, stage),
        false => all.push(stage),
    }
    own[*last] = match kind {
        fft::FourierKind::RealToHalf => len / 2 + 1,
        _ => len,
    };
    if op.name() != "irfft" {
        own.push(2);
    }
    Ok((all, own))
}

/// The factor of a transform of so many elements in all.
pub(crate) fn scale(op: &OpParameters, stages: &[FourierStage]) -> f64 {
    let elements: f64 = stages.iter().map(|stage| stage.len as f64).product();
    match (op.choice_of("norm"), is_inverse(op)) {
        ("ortho", _) => 1.0 / elements.sqrt(),
        ("forward", false) | ("backward", true) => 1.0 / elements,
        _ => 1.0,
    }
}

fn results(op: &OpParameters, operands: &[Layout]) -> FourierResults {
    let (_, shape) = stages(op, operands[0].shape())?;
    Ok(vec![(operands[0].dtype(), shape)])
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> FourierLowered {
    let (x, out) = (program.input(0), program.output(0));
    // The rule of results has accepted it.
    let Ok((stages, _)) = stages(op, x.shape()) else {
        return Ok(());
    };
    let scale = scale(op, &stages);
    let mut from = x;
    for (at, stage) in stages.iter().enumerate() {
        let is_last = at + 1 == stages.len();
        let to = match is_last {
            true => out,
            // Complex numbers, of the extents so far.
            false if at == 0 && op.name() == "rfft" => {
                fft::between(program, x.dtype(), out.shape())?
            }
            false => fft::between(program, x.dtype(), from.shape())?,
        };
        let spec = fft::FourierSpec {
            axis: stage.axis,
            len: stage.len,
            is_inverse: is_inverse(op),
            scale: if is_last { scale } else { 1.0 },
            kind: stage.kind,
        };
        fft::along(program, spec, &from, &to)?;
        from = to;
    }
    Ok(())
}

/// Complex numbers of a shape on the host.
struct ComplexArray {
    shape: Vec<u64>,
    numbers: Vec<[f64; 2]>,
}

/// e^(2 pi i k / n), from the angle in the first eighth of a turn.
fn root(k: u64, n: u64) -> [f64; 2] {
    let (k, n) = (u128::from(k % n), u128::from(n));
    let eighth = 8 * k / n;
    // Distance from the nearest quarter, in turns times n.
    let quarter = eighth.div_ceil(2);
    let angle = (4 * k) as f64 - (quarter * n) as f64;
    let (sine, cosine) = (angle / (4 * n) as f64 * std::f64::consts::TAU).sin_cos();
    match quarter % 4 {
        0 => [cosine, sine],
        1 => [-sine, cosine],
        2 => [-cosine, -sine],
        _ => [sine, -cosine],
    }
}

/// The sums of the definition along one axis; `len` elements are given of each row of `own`.
fn transformed(x: &ComplexArray, stage: &FourierStage, sign: f64) -> ComplexArray {
    let (own, n) = (x.shape[stage.axis] as usize, stage.len as usize);
    let is_half = |kind| stage.kind == kind;
    let wanted = match is_half(fft::FourierKind::RealToHalf) {
        true => n / 2 + 1,
        false => n,
    };
    let product = |shape: &[u64]| shape.iter().product::<u64>() as usize;
    let outer = product(&x.shape[..stage.axis]);
    let inner = product(&x.shape[stage.axis + 1..]);
    let roots: Vec<[f64; 2]> = (0..stage.len).map(|k| root(k, stage.len)).collect();
    let mut numbers = vec![[0.0; 2]; outer * wanted * inner];
    for (a, b) in (0..outer).flat_map(|a| (0..inner).map(move |b| (a, b))) {
        let element = |j: usize| match is_half(fft::FourierKind::HalfToReal) && j > n / 2 {
            true => {
                let [re, im] = x.numbers[(a * own + n - j) * inner + b];
                [re, -im]
            }
            false => x.numbers[(a * own + j) * inner + b],
        };
        let row: Vec<[f64; 2]> = (0..n).map(element).collect();
        for k in 0..wanted {
            let term = |j: usize, part: usize| {
                let ([re, im], [c, s]) = (row[j], roots[j * k % n]);
                match part {
                    0 => re * c - sign * im * s,
                    _ => im * c + sign * re * s,
                }
            };
            let sum = |part: usize| total((0..n).map(|j| term(j, part)));
            numbers[(a * wanted + k) * inner + b] = [sum(0), sum(1)];
        }
    }
    let mut shape = x.shape.clone();
    shape[stage.axis] = wanted as u64;
    ComplexArray { shape, numbers }
}

/// Error of a transform of that length, in unit roundoffs of the 2-norm of the result.
fn roundoffs(len: u64) -> f64 {
    let mut rest = len;
    for radix in [2, 3, 5, 7] {
        while rest.is_multiple_of(radix) {
            rest /= radix;
        }
    }
    let levels = (len as f64).log2().max(1.0);
    match rest {
        1 => LEVEL * levels,
        _ => 7.0 * LEVEL * (levels + 3.0),
    }
}

/// 2-norms of the numbers that go into each result: over the transformed axes, by the others.
fn norms(x: &ComplexArray, stages: &[FourierStage], result: &[u64]) -> Vec<f64> {
    let is_along = |axis: usize| stages.iter().any(|stage| stage.axis == axis);
    let key = |shape: &[u64], mut place: u64| {
        let (mut key, mut size) = (0, 1);
        for (axis, extent) in shape.iter().enumerate().rev() {
            if !is_along(axis) {
                key += place % extent * size;
                size *= extent;
            }
            place /= extent;
        }
        key as usize
    };
    let mut squares = vec![0.0; x.numbers.len().max(1)];
    let half = stages
        .iter()
        .any(|stage| stage.kind == fft::FourierKind::HalfToReal);
    for (place, [re, im]) in x.numbers.iter().enumerate() {
        squares[key(&x.shape, place as u64)] += re * re + im * im;
    }
    let count = result.iter().product::<u64>();
    let twice = if half { 2.0 } else { 1.0 };
    let norm = |place| (twice * squares[key(result, place)]).sqrt();
    (0..count).map(norm).collect()
}

fn expected(op: &OpParameters, x: &[HostArray], results: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let Ok((stages, shape)) = stages(op, &x[0].shape) else {
        return Vec::new();
    };
    let is_real = op.name() == "rfft";
    let mut own = ComplexArray {
        shape: x[0].shape.clone(),
        numbers: match is_real {
            true => x[0].values.iter().map(|re| [*re, 0.0]).collect(),
            false => {
                let pairs = x[0].values.chunks_exact(2);
                pairs.map(|pair| [pair[0], pair[1]]).collect()
            }
        },
    };
    let mut of_numbers = shape;
    if !is_real {
        own.shape.pop();
    }
    let parts = match op.name() {
        "irfft" => 1,
        _ => {
            of_numbers.pop();
            2
        }
    };
    let norms = norms(&own, &stages, &of_numbers);
    let sign = if is_inverse(op) { 1.0 } else { -1.0 };
    for stage in &stages {
        own = transformed(&own, stage, sign);
    }
    let (scale, dtype) = (scale(op, &stages), results[0].dtype());
    let elements: f64 = stages.iter().map(|stage| stage.len as f64).product();
    let levels: f64 = stages.iter().map(|stage| roundoffs(stage.len)).sum();
    let (most, least) = magnitudes(dtype);
    let numbers = own.numbers.iter().zip(norms);
    let all = numbers.flat_map(|(number, norm)| {
        // Of the unscaled result, and of what underflows.
        let whole = norm * elements.sqrt();
        let error =
            unit_roundoff(dtype) * (levels + 2.0) * whole * scale + 4.0 * least * (elements + 1.0);
        let is_bounded = whole * elements.sqrt() * 8.0 < most;
        (0..parts).map(move |part| match is_bounded {
            true => rounded(dtype, number[part] * scale, error),
            false => (number[part] * scale, f64::INFINITY),
        })
    });
    vec![all.collect()]
}

const NORMS: &[(&str, &[&str])] = &[("norm", &["backward", "ortho", "forward"])];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Transform "fft" ("x") Floats {} ["axes"] { choices: NORMS }
        "cuda.fft", results, lower, expected,
        "discrete Fourier transform of complex numbers, along the last axis before their parts or along `axes`"),
    native!(Transform "ifft" ("x") Floats {} ["axes"] { choices: NORMS }
        "cuda.fft", results, lower, expected,
        "inverse of `fft`"),
    native!(Transform "rfft" ("x") Floats {} ["axes"] { choices: NORMS }
        "cuda.fft", results, lower, expected,
        "first half of the discrete Fourier transform of real numbers along the last of `axes`, transformed along the others"),
    native!(Transform "irfft" ("x") Floats { "n": 0.0 } ["axes"] { choices: NORMS }
        "cuda.fft", results, lower, expected,
        "inverse of `rfft`: `n` real numbers along the last of `axes`, by default an even number"),
];
