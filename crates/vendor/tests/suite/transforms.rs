//! Transforms over a library that computes them by their definition.

use std::f64::consts::TAU;

use fercuda_cuda::{CaptureMode, Context, DeviceBuffer, Stream};
use fercuda_vendor::cufft::{
    CufftLibrary, SignalLayout, TransformDirection, TransformKind, TransformPlan,
    TransformPrecision, TransformSpec,
};

use crate::support::{FakeLibrary, context};

type Places = std::ops::Range<usize>;

fn plan(fake: &FakeLibrary, context: &Context, spec: &TransformSpec) -> TransformPlan {
    // SAFETY: the fake has the interface and works on the software device.
    let library = unsafe { CufftLibrary::open(&fake.file()) }.unwrap();
    TransformPlan::new(&library, context, spec).unwrap()
}

fn workspace(stream: &Stream) -> DeviceBuffer<u8> {
    DeviceBuffer::zeroed(stream, 512).unwrap()
}

#[test]
fn complex_transforms_of_any_layout_are_those_of_the_definition() {
    let fake = FakeLibrary::new("cufft", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut random = fercuda_trials::rng();
    for _ in 0..40 {
        let (n, batch) = (random.u64(1..=9), random.u64(1..=3));
        let mut side = || SignalLayout {
            extents: vec![n],
            stride: random.u64(1..=3),
            distance: 3 * n + random.u64(0..4),
        };
        let kind = TransformKind::ComplexToComplex;
        let mut spec = TransformSpec::new(kind, TransformPrecision::F64, &[n]).batch(batch);
        (spec.input, spec.output) = (side(), side());
        let plan = plan(&fake, &context, &spec);
        assert_eq!(plan.workspace_bytes(), 512);
        let len = |side: &SignalLayout| {
            ((batch - 1) * side.distance + (n - 1) * side.stride + 1) as usize
        };
        let input: Vec<[f64; 2]> = (0..len(&spec.input))
            .map(|_| [random.f64() - 0.5, random.f64() - 0.5])
            .collect();
        let filled = vec![[7.0, 7.0]; len(&spec.output)];
        let from = DeviceBuffer::from_host(&input, &stream).unwrap();
        let mut to = DeviceBuffer::from_host(&filled, &stream).unwrap();
        let mut work = workspace(&stream);
        stream.synchronize().unwrap();
        let (direction, sign) = match random.bool() {
            true => (TransformDirection::Forward, -TAU),
            false => (TransformDirection::Inverse, TAU),
        };
        let (from, to_slice) = (from.as_slice(), to.as_slice_mut());
        plan.run(&stream, direction, from, to_slice, work.as_slice_mut())
            .unwrap();
        let mut expected = filled;
        for (b, k) in (0..batch).flat_map(|b| (0..n).map(move |k| (b, k))) {
            let mut sum = [0.0; 2];
            for j in 0..n {
                let [re, im] = input[(b * spec.input.distance + j * spec.input.stride) as usize];
                let (sin, cos) = (sign * ((j * k % n) as f64) / n as f64).sin_cos();
                sum[0] += re * cos - im * sin;
                sum[1] += re * sin + im * cos;
            }
            expected[(b * spec.output.distance + k * spec.output.stride) as usize] = sum;
        }
        let found = to.to_vec(&stream).unwrap();
        // Each of the n terms is at most 0.71, with a few roundings of each sum.
        let bound = 8.0 * (n * n) as f64 * f64::EPSILON;
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (found[0] - expected[0])
                .abs()
                .max((found[1] - expected[1]).abs());
            assert!(
                error <= bound,
                "{index} of {spec:?}: {found:?}, {expected:?}"
            );
        }
    }
    assert_eq!((fake.count("create"), fake.count("destroy")), (40, 40));
    // Automatic allocation is off before the plan is made, and stream and work area are set.
    let log = fake.log();
    for (index, line) in log.iter().enumerate() {
        if let Some(plan) = line.strip_prefix("create ") {
            assert_eq!(log[index + 1], format!("auto {plan} 0"));
            assert!(
                log[index + 2].starts_with(&format!("make {plan} rank=1")),
                "{log:?}"
            );
            assert!(
                log[index + 3].starts_with(&format!("exec {plan} direction=")),
                "{log:?}"
            );
            assert!(
                log[index + 3].ends_with(" in_place=0 work=1 stream=1"),
                "{log:?}"
            );
        }
    }
}

#[test]
fn real_transforms_come_back_in_and_out_of_place() {
    let fake = FakeLibrary::new("cufft", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let lengths = [3, 2, 5];
    let (forward, inverse) = (TransformDirection::Forward, TransformDirection::Inverse);
    let new = |kind| TransformSpec::new(kind, TransformPrecision::F32, &lengths).batch(2);
    let there = plan(&fake, &context, &new(TransformKind::RealToComplex));
    let back = plan(&fake, &context, &new(TransformKind::ComplexToReal));
    let signal: Vec<f32> = (0..60).map(|it| ((it * 37) % 11) as f32).collect();
    let from = DeviceBuffer::from_host(&signal, &stream).unwrap();
    let mut spectrum = DeviceBuffer::<[f32; 2]>::zeroed(&stream, 2 * 3 * 2 * 3).unwrap();
    let mut result = DeviceBuffer::<f32>::zeroed(&stream, 60).unwrap();
    let mut work = workspace(&stream);
    stream.synchronize().unwrap();
    let run = |plan: &TransformPlan, spectrum: &mut DeviceBuffer<_>, work: &mut DeviceBuffer<_>| {
        let to = spectrum.as_slice_mut();
        plan.run(&stream, forward, from.as_slice(), to, work.as_slice_mut())
    };
    run(&there, &mut spectrum, &mut work).unwrap();
    let sum: f32 = signal[..30].iter().sum();
    assert!((spectrum.to_vec(&stream).unwrap()[0][0] - sum).abs() < 1e-3);
    let (input, output) = (spectrum.as_slice_mut(), result.as_slice_mut());
    back.run_overwriting(&stream, inverse, input, output, work.as_slice_mut())
        .unwrap();
    let check = |found: &[f32]| {
        for (found, expected) in found.iter().zip(&signal) {
            // Values below 11, and 30 terms each way.
            assert!((found / 30.0 - expected).abs() < 11.0 * 60.0 * f32::EPSILON);
        }
    };
    check(&result.to_vec(&stream).unwrap());

    let there = plan(&fake, &context, &new(TransformKind::RealToComplex).padded());
    let back = plan(&fake, &context, &new(TransformKind::ComplexToReal).padded());
    let rows = signal.chunks(5).flat_map(|row| [row, &[0.0]].concat());
    let mut data = DeviceBuffer::from_host(&rows.collect::<Vec<f32>>(), &stream).unwrap();
    stream.synchronize().unwrap();
    there
        .run_in_place(&stream, forward, data.as_slice_mut(), work.as_slice_mut())
        .unwrap();
    back.run_in_place(&stream, inverse, data.as_slice_mut(), work.as_slice_mut())
        .unwrap();
    let padded = data.to_vec(&stream).unwrap();
    check(
        &padded
            .chunks(6)
            .flat_map(|row| &row[..5])
            .copied()
            .collect::<Vec<f32>>(),
    );
    let expected = "make 2 rank=3 n=5 in=6,1,36 out=3,1,18 type=2a batch=2";
    assert_eq!(fake.count(expected), 1, "{:?}", fake.log());
}

#[test]
fn transforms_are_refused_before_the_library_is_called() {
    let fake = FakeLibrary::new("cufft", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (forward, inverse) = (TransformDirection::Forward, TransformDirection::Inverse);
    let new = |kind| TransformSpec::new(kind, TransformPrecision::F32, &[8]);
    let complex = plan(&fake, &context, &new(TransformKind::ComplexToComplex));
    let there = plan(&fake, &context, &new(TransformKind::RealToComplex));
    let back = plan(&fake, &context, &new(TransformKind::ComplexToReal));
    let input = DeviceBuffer::<f32>::zeroed(&stream, 64).unwrap();
    let mut output = DeviceBuffer::<f32>::zeroed(&stream, 64).unwrap();
    let mut work = DeviceBuffer::<u8>::zeroed(&stream, 1024).unwrap();
    stream.synchronize().unwrap();
    let mut refuse =
        |plan: &TransformPlan, direction, from: Places, to: Places, area: Places, part: &str| {
            let result = plan.run(
                &stream,
                direction,
                input.slice(from).unwrap(),
                output.slice_mut(to).unwrap(),
                work.slice_mut(area).unwrap(),
            );
            let text = result.unwrap_err().to_string();
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        };
    let all = 0..1024;
    refuse(
        &complex,
        forward,
        0..15,
        0..16,
        all.clone(),
        "the input has 60 bytes, and its layout reaches 64",
    );
    refuse(
        &complex,
        forward,
        0..16,
        0..15,
        all.clone(),
        "the output has 60 bytes",
    );
    refuse(
        &complex,
        inverse,
        1..17,
        0..16,
        all.clone(),
        "no multiple of 8 bytes",
    );
    refuse(
        &complex,
        inverse,
        0..16,
        0..16,
        0..511,
        "needs 512 bytes of workspace, and that has 511",
    );
    refuse(
        &complex,
        inverse,
        0..16,
        0..16,
        8..1024,
        "no multiple of 256 bytes",
    );
    refuse(
        &there,
        inverse,
        0..8,
        0..10,
        all.clone(),
        "RealToComplex is Forward only",
    );
    refuse(
        &there,
        forward,
        0..8,
        0..9,
        all.clone(),
        "the output has 36 bytes, and its layout reaches 40",
    );
    refuse(&back, inverse, 0..10, 0..8, all, "overwrites its input");
    let two = new(TransformKind::RealToComplex).batch(2);
    let data = output.as_slice_mut();
    let error = plan(&fake, &context, &two)
        .run_in_place(&stream, forward, data, work.as_slice_mut())
        .unwrap_err();
    assert!(
        error.to_string().contains("try: TransformSpec::padded"),
        "{error}"
    );
    // SAFETY: within `input`, which outlives it.
    let mut alias =
        unsafe { DeviceBuffer::<f32>::foreign(&context, input.address(), 64, || {}) }.unwrap();
    let (from, to) = (input.slice(8..24).unwrap(), alias.slice_mut(..16).unwrap());
    let error = complex
        .run(&stream, forward, from, to, work.as_slice_mut())
        .unwrap_err();
    assert!(error.to_string().contains("the output (0x"), "{error}");
    assert_eq!(fake.count("exec"), 0);

    let failing = FakeLibrary::new("cufft", &["STATUS_OF_MAKE=8"]);
    // SAFETY: the fake has the interface and works on the software device.
    let library = unsafe { CufftLibrary::open(&failing.file()) }.unwrap();
    let error = TransformPlan::new(&library, &context, &new(TransformKind::RealToComplex));
    let text = "cannot plan RealToComplex F32 [8] batch 1: cufftMakePlanMany64 of cuFFT returned \
                CUFFT_INVALID_SIZE (8)";
    assert_eq!(error.unwrap_err().to_string(), text);
    assert_eq!((failing.count("create"), failing.count("destroy")), (1, 1));
}

#[test]
fn a_captured_plan_is_kept_until_the_graph_is_dropped() {
    let fake = FakeLibrary::new("cufft", &[]);
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let spec = TransformSpec::new(
        TransformKind::ComplexToComplex,
        TransformPrecision::F32,
        &[4],
    );
    let plan = plan(&fake, &context, &spec);
    let mut data = DeviceBuffer::<[f32; 2]>::zeroed(&stream, 4).unwrap();
    let mut work = workspace(&stream);
    stream.synchronize().unwrap();
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    let forward = TransformDirection::Forward;
    plan.run_in_place(&stream, forward, data.as_slice_mut(), work.as_slice_mut())
        .unwrap();
    let graph = capture.end().unwrap();
    drop((plan, data, work));
    assert_eq!((fake.count("exec"), fake.count("destroy")), (1, 0));
    let exec = graph.instantiate().unwrap();
    drop(graph);
    assert_eq!(fake.count("destroy"), 0);
    drop(exec);
    assert_eq!(fake.count("destroy"), 1);
}
