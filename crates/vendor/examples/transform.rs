//! A Fourier transform by cuFFT, NVIDIA's library, opened at run time.
//!
//! `cargo run -p fercuda-vendor --example transform`
//!
//! Finds the two tones in a signal of 1024 real samples, and transforms the spectrum back. Without
//! the library or a GPU it says what was tried and what to install.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::f32::consts::TAU;

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
use fercuda_vendor::cufft::{
    CufftLibrary, TransformDirection, TransformKind, TransformPlan, TransformPrecision,
    TransformSpec,
};
use fercuda_vendor::{Error, Result};

const SAMPLES: usize = 1024;

fn main() -> Result<()> {
    match run() {
        // These say what is missing; nothing is wrong with the program.
        Err(error @ (Error::NotFound(_) | Error::SoftwareDevice { .. })) => {
            println!("{error}");
            Ok(())
        }
        other => other,
    }
}

fn run() -> Result<()> {
    let library = CufftLibrary::find()?;
    println!("cuFFT {}: {}", library.version(), library.file().display());
    let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    let stream = Stream::new(&context)?;
    let plan = |kind| {
        let spec = TransformSpec::new(kind, TransformPrecision::F32, &[SAMPLES as u64]);
        TransformPlan::new(&library, &context, &spec)
    };
    let there = plan(TransformKind::RealToComplex)?;
    let back = plan(TransformKind::ComplexToReal)?;
    let workspace_bytes = there.workspace_bytes().max(back.workspace_bytes());
    println!("{workspace_bytes} bytes of workspace");

    let tone = |frequency: f32, at: usize| (TAU * frequency * at as f32 / SAMPLES as f32).sin();
    let signal: Vec<f32> = (0..SAMPLES)
        .map(|it| tone(50.0, it) + 0.5 * tone(120.0, it))
        .collect();
    let signal_there = DeviceBuffer::from_host(&signal, &stream)?;
    let mut spectrum = DeviceBuffer::<[f32; 2]>::zeroed(&stream, SAMPLES / 2 + 1)?;
    let mut result = DeviceBuffer::<f32>::zeroed(&stream, SAMPLES)?;
    let mut workspace = DeviceBuffer::<u8>::alloc(&context, workspace_bytes as usize)?;
    there.run(
        &stream,
        TransformDirection::Forward,
        signal_there.as_slice(),
        spectrum.as_slice_mut(),
        workspace.as_slice_mut(),
    )?;
    for (frequency, [re, im]) in spectrum.to_vec(&stream)?.into_iter().enumerate() {
        let amplitude = 2.0 * re.hypot(im) / SAMPLES as f32;
        if amplitude > 0.1 {
            println!("frequency {frequency}: amplitude {amplitude:.3}");
        }
    }
    // A transform to real values overwrites its input, and does not scale.
    back.run_overwriting(
        &stream,
        TransformDirection::Inverse,
        spectrum.as_slice_mut(),
        result.as_slice_mut(),
        workspace.as_slice_mut(),
    )?;
    let pairs = result.to_vec(&stream)?.into_iter().zip(&signal);
    let error = pairs
        .map(|(found, was)| (found / SAMPLES as f32 - was).abs())
        .fold(0.0, f32::max);
    println!("back, within {error:.1e} of the signal");
    Ok(())
}
