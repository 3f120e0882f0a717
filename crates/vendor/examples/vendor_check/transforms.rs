//! Random transforms, and their reference: sums by the definition along each dimension, in f64.
//!
//! The bound is on the root of the sum of squares, relative to the output's: each of the log2(N)
//! stages of a fast transform rounds a few times, and a prime length takes three transforms of at
//! least twice the length.

use std::f64::consts::TAU;

use fastrand::Rng;
use fercuda_cuda::{CaptureMode, DeviceBuffer, DeviceSliceMut, Stream};
use fercuda_vendor::Result;
use fercuda_vendor::cufft::{
    CufftLibrary, SignalLayout, TransformDirection, TransformKind, TransformPlan,
    TransformPrecision, TransformSpec,
};

type Complex = [f64; 2];

/// Transforms `signal` along every dimension of `lengths`.
fn reference(signal: &[Complex], lengths: &[usize], sign: f64) -> Vec<Complex> {
    let mut values = signal.to_vec();
    for (dimension, n) in lengths.iter().enumerate() {
        let inner: usize = lengths[dimension + 1..].iter().product();
        let turns: Vec<(f64, f64)> = (0..*n)
            .map(|it| (sign * TAU * it as f64 / *n as f64).sin_cos())
            .collect();
        let before = values.clone();
        for (index, value) in values.iter_mut().enumerate() {
            let k = index / inner % n;
            let first = index - k * inner;
            let mut sum = [0.0; 2];
            for j in 0..*n {
                let [re, im] = before[first + j * inner];
                let (sin, cos) = turns[j * k % n];
                sum[0] += re * cos - im * sin;
                sum[1] += re * sin + im * cos;
            }
            *value = sum;
        }
    }
    values
}

/// The places of a signal's elements, in the order of `signal`'s extents.
fn places(layout: &SignalLayout, signal: &[usize], batch: usize) -> Vec<usize> {
    let count: usize = signal.iter().product();
    let place = |number: usize| {
        let (mut place, mut inner) = (0, count);
        for (index, extent) in signal.iter().enumerate() {
            inner /= extent;
            let scale = if index == 0 {
                1
            } else {
                layout.extents[index] as usize
            };
            place = place * scale + number / inner % extent;
        }
        batch * layout.distance as usize + place * layout.stride as usize
    };
    (0..count).map(place).collect()
}

/// A random layout around a signal.
fn layout(random: &mut Rng, signal: &[usize]) -> SignalLayout {
    let extents: Vec<u64> = signal
        .iter()
        .map(|it| *it as u64 + random.u64(0..3))
        .collect();
    let stride = random.u64(1..=2);
    let distance = extents.iter().product::<u64>() * stride + 2 * random.u64(0..4);
    SignalLayout {
        extents,
        stride,
        distance,
    }
}

struct Case {
    spec: TransformSpec,
    direction: TransformDirection,
    in_place: bool,
    lengths: Vec<usize>,
    /// Extents of the signals of input and output.
    sides: [Vec<usize>; 2],
}

fn case(random: &mut Rng) -> Case {
    const LENGTHS: [usize; 16] = [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 48, 64, 127, 131];
    let kinds = [
        TransformKind::ComplexToComplex,
        TransformKind::RealToComplex,
        TransformKind::ComplexToReal,
    ];
    let kind = kinds[random.usize(0..3)];
    let precision = [TransformPrecision::F32, TransformPrecision::F64][random.usize(0..2)];
    let rank = random.usize(1..=3);
    let mut lengths: Vec<usize> = (0..rank).map(|_| LENGTHS[random.usize(0..16)]).collect();
    while lengths.iter().product::<usize>() > 20_000 {
        let index = random.usize(0..rank);
        lengths[index] = LENGTHS[random.usize(0..8)];
    }
    if rank == 1 && random.bool() {
        lengths[0] = random.usize(1..=4096);
    }
    let mut half = lengths.clone();
    half[rank - 1] = half[rank - 1] / 2 + 1;
    let sides = match kind {
        TransformKind::ComplexToComplex => [lengths.clone(), lengths.clone()],
        TransformKind::RealToComplex => [lengths.clone(), half],
        TransformKind::ComplexToReal => [half, lengths.clone()],
    };
    let wide: Vec<u64> = lengths.iter().map(|it| *it as u64).collect();
    let mut spec = TransformSpec::new(kind, precision, &wide).batch(random.u64(1..=4));
    let in_place = random.u8(0..3) == 0;
    if in_place {
        spec = spec.padded();
        if kind == TransformKind::ComplexToComplex {
            spec.input = layout(random, &sides[0]);
            spec.output = spec.input.clone();
        }
    } else if random.bool() {
        spec.input = layout(random, &sides[0]);
        spec.output = layout(random, &sides[1]);
    }
    let direction = match kind {
        TransformKind::RealToComplex => TransformDirection::Forward,
        TransformKind::ComplexToReal => TransformDirection::Inverse,
        TransformKind::ComplexToComplex if random.bool() => TransformDirection::Forward,
        TransformKind::ComplexToComplex => TransformDirection::Inverse,
    };
    Case {
        spec,
        direction,
        in_place,
        lengths,
        sides,
    }
}

/// Which of input and output are real.
fn real_sides(kind: TransformKind) -> [bool; 2] {
    match kind {
        TransformKind::ComplexToComplex => [false, false],
        TransformKind::RealToComplex => [true, false],
        TransformKind::ComplexToReal => [false, true],
    }
}

/// The parts in memory, real values being one each and complex ones two, of a side that holds
/// these values; 7 between them.
fn parts(
    layout: &SignalLayout,
    signal: &[usize],
    is_real: bool,
    values: &[Vec<Complex>],
) -> Vec<f64> {
    let width = if is_real { 1 } else { 2 };
    let mut parts = Vec::new();
    for (batch, values) in values.iter().enumerate() {
        for (place, value) in places(layout, signal, batch).into_iter().zip(values) {
            let end = (place + 1) * width;
            if parts.len() < end {
                parts.resize(end, 7.0);
            }
            parts[place * width..end].copy_from_slice(&value[..width]);
        }
    }
    parts
}

/// Random values of a side that a transform can have, and the values of its output.
fn values(random: &mut Rng, case: &Case) -> (Vec<Vec<Complex>>, Vec<Vec<Complex>>) {
    let count: usize = case.lengths.iter().product();
    let round = |value: f64| match case.spec.precision {
        TransformPrecision::F32 => f64::from(value as f32),
        TransformPrecision::F64 => value,
    };
    let is_complex = case.spec.kind == TransformKind::ComplexToComplex;
    let sign = match case.direction {
        TransformDirection::Forward => -1.0,
        TransformDirection::Inverse => 1.0,
    };
    // The first half of a spectrum along the last dimension.
    let last = *case.lengths.last().unwrap_or(&1);
    let half = |all: &[Complex]| -> Vec<Complex> {
        let rows = all.chunks(last);
        rows.flat_map(|row| row[..last / 2 + 1].to_vec()).collect()
    };
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for _ in 0..case.spec.batch {
        let mut part = |is_there: bool| {
            if is_there {
                round(random.f64() - 0.5)
            } else {
                0.0
            }
        };
        let signal: Vec<Complex> = (0..count).map(|_| [part(true), part(is_complex)]).collect();
        match case.spec.kind {
            TransformKind::ComplexToComplex => {
                outputs.push(reference(&signal, &case.lengths, sign));
                inputs.push(signal);
            }
            TransformKind::RealToComplex => {
                outputs.push(half(&reference(&signal, &case.lengths, sign)));
                inputs.push(signal);
            }
            TransformKind::ComplexToReal => {
                let spectrum = reference(&signal, &case.lengths, -1.0);
                inputs.push(half(&spectrum));
                let scaled = signal.iter().map(|it| [it[0] * count as f64, 0.0]);
                outputs.push(scaled.collect());
            }
        }
    }
    (inputs, outputs)
}

fn to_bytes(parts: &[f64], precision: TransformPrecision) -> Vec<u8> {
    match precision {
        TransformPrecision::F32 => parts
            .iter()
            .flat_map(|it| (*it as f32).to_le_bytes())
            .collect(),
        TransformPrecision::F64 => parts.iter().flat_map(|it| it.to_le_bytes()).collect(),
    }
}

fn from_bytes(bytes: &[u8], precision: TransformPrecision) -> Vec<f64> {
    let mut word = [0; 8];
    let size = precision.bytes() as usize;
    bytes
        .chunks(size)
        .map(|chunk| {
            word[..size].copy_from_slice(chunk);
            match precision {
                TransformPrecision::F32 => {
                    f64::from(f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                }
                TransformPrecision::F64 => f64::from_le_bytes(word),
            }
        })
        .collect()
}

/// Queues one run.
fn queue(
    plan: &TransformPlan,
    case: &Case,
    stream: &Stream,
    from: DeviceSliceMut<'_, u8>,
    to: DeviceSliceMut<'_, u8>,
    work: DeviceSliceMut<'_, u8>,
) -> Result<()> {
    match (case.in_place, case.spec.kind) {
        (true, _) => plan.run_in_place(stream, case.direction, to, work),
        (false, TransformKind::ComplexToReal) => {
            plan.run_overwriting(stream, case.direction, from, to, work)
        }
        (false, _) => plan.run(stream, case.direction, from.as_slice(), to, work),
    }
}

/// Runs one case and compares; returns the error as a part of its bound.
fn run(
    library: &CufftLibrary,
    stream: &Stream,
    random: &mut Rng,
    case: &Case,
    is_captured: bool,
) -> Result<std::result::Result<f64, String>> {
    let spec = &case.spec;
    let [real_in, real_out] = real_sides(spec.kind);
    let (inputs, outputs) = values(random, case);
    let input = parts(&spec.input, &case.sides[0], real_in, &inputs);
    let output = parts(&spec.output, &case.sides[1], real_out, &outputs);
    let plan = TransformPlan::new(library, stream.context(), spec)?;
    let mut work = DeviceBuffer::<u8>::alloc(
        stream.context(),
        usize::try_from(plan.workspace_bytes()).unwrap_or(usize::MAX),
    )?;
    let mut before = vec![7.0; output.len()];
    if case.in_place {
        before.resize(output.len().max(input.len()), 7.0);
        before[..input.len()].copy_from_slice(&input);
    }
    let mut from = DeviceBuffer::from_host(&to_bytes(&input, spec.precision), stream)?;
    let mut to = DeviceBuffer::from_host(&to_bytes(&before, spec.precision), stream)?;
    let (from_slice, work_slice) = (from.as_slice_mut(), work.as_slice_mut());
    if is_captured {
        let capture = stream.begin_capture(CaptureMode::Global)?;
        queue(
            &plan,
            case,
            stream,
            from_slice,
            to.as_slice_mut(),
            work_slice,
        )?;
        let graph = capture.end()?;
        drop(plan);
        graph.instantiate()?.launch(stream)?;
    } else {
        queue(
            &plan,
            case,
            stream,
            from_slice,
            to.as_slice_mut(),
            work_slice,
        )?;
    }
    let found = from_bytes(&to.to_vec(stream)?, spec.precision);
    let width = if real_out { 1 } else { 2 };
    let mut is_element = vec![false; found.len()];
    let (mut error, mut norm) = (0.0, 0.0);
    for (batch, values) in outputs.iter().enumerate() {
        for (place, value) in places(&spec.output, &case.sides[1], batch)
            .iter()
            .zip(values)
        {
            for (part, expected) in value.iter().take(width).enumerate() {
                let index = place * width + part;
                is_element[index] = true;
                error += (found[index] - expected).powi(2);
                norm += expected.powi(2);
            }
        }
    }
    if !case.in_place {
        let is_gap_written = |index: &usize| !is_element[*index] && found[*index] != 7.0;
        if let Some(index) = (0..found.len()).find(is_gap_written) {
            return Ok(Err(format!(
                "part {index}, which is in no element, was written"
            )));
        }
    }
    let eps = match spec.precision {
        TransformPrecision::F32 => 2f64.powi(-24),
        TransformPrecision::F64 => 2f64.powi(-53),
    };
    let count: usize = case.lengths.iter().product();
    let terms: usize = case.lengths.iter().sum();
    let reference_error = terms as f64 * 2f64.powi(-53);
    let relative = 16.0 * eps * ((count as f64).log2() + 2.0) + reference_error;
    let (error, bound) = (error.sqrt(), relative * norm.sqrt() + f64::MIN_POSITIVE);
    Ok(match error <= bound {
        true => Ok(error / bound),
        false => Err(format!("error {error:.3e} is over the bound {bound:.3e}")),
    })
}

/// Checks `count` transforms, prints a summary, and returns the number of failures.
pub(crate) fn check(
    library: &CufftLibrary,
    stream: &Stream,
    random: &mut Rng,
    count: usize,
) -> Result<usize> {
    let (mut right, mut wrong, mut in_place, mut captured, mut worst) = (0, 0, 0, 0, 0f64);
    for index in 0..count {
        let case = case(random);
        let is_captured = random.u8(0..5) == 0;
        let failure = match run(library, stream, random, &case, is_captured) {
            Ok(Ok(error)) => {
                worst = worst.max(error);
                right += 1;
                in_place += usize::from(case.in_place);
                captured += usize::from(is_captured);
                continue;
            }
            Ok(Err(reason)) => reason,
            Err(error) => error.to_string(),
        };
        wrong += 1;
        println!(
            "transform {index}: {:?}, {:?}, in place {}, captured {is_captured}\n  {failure}",
            case.spec, case.direction, case.in_place
        );
    }
    println!(
        "transforms: {right} right ({in_place} in place, {captured} captured), {wrong} wrong, \
         worst error {worst:.3} of its bound"
    );
    Ok(wrong)
}
