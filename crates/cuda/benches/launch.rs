//! Launch overhead on the host: the safe launch against a bare loop over the driver's function,
//! alternating in one process.
//!
//! `cargo bench -p fercuda-cuda --bench launch`; with `FERCUDA_DEVICE=gpu` on a
//! GPU. Prints nanoseconds a launch and the ratio; fails if it is above 1.05.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::ffi::c_void;
use std::process::ExitCode;
use std::time::Instant;

use fercuda_cuda::sys::Symbol;
use fercuda_cuda::sys::signatures::cuLaunchKernel;
use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{Context, Cuda, DeviceBuffer, Function, Image, Launch, Module, Stream};

const KERNEL: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .f32 c, .param .u32 d) { ret; }
";

const ROUNDS: usize = 400;
const LAUNCHES: usize = 200;
const LIMIT: f64 = 1.05;

fn main() -> ExitCode {
    let cuda = Cuda::from_env().expect("a device");
    let context = Context::primary(cuda.device(0).expect("a device")).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let nothing = Module::load(&context, &Image::ptx(KERNEL))
        .and_then(|module| module.function("nothing"))
        .expect("the kernel");
    let a = DeviceBuffer::<f32>::zeroed(&stream, 16).expect("memory");
    let b = DeviceBuffer::<f32>::zeroed(&stream, 16).expect("memory");
    let address = cuda
        .driver()
        .address(Symbol::cuLaunchKernel)
        .expect("every driver has it");
    // SAFETY: the table gives this signature for this symbol.
    let bare: cuLaunchKernel = unsafe { std::mem::transmute(address) };

    let (mut safe_ns, mut bare_ns) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // The order alternates, so that neither always finds a warm queue.
        for turn in 0..2 {
            let started = Instant::now();
            if (round + turn) % 2 == 0 {
                launch_safely(&nothing, &stream, &a, &b);
                safe_ns.push(started.elapsed().as_nanos() as f64 / LAUNCHES as f64);
            } else {
                launch_barely(bare, &nothing, &stream, &a, &b);
                bare_ns.push(started.elapsed().as_nanos() as f64 / LAUNCHES as f64);
            }
            stream.synchronize().expect("the kernels do nothing");
        }
    }
    // The first rounds find cold caches and a clock that rises.
    let (safe, bare) = (
        figures(&mut safe_ns[ROUNDS / 10..]),
        figures(&mut bare_ns[ROUNDS / 10..]),
    );
    println!("device       {}", context.device());
    println!("launches     {ROUNDS} rounds of {LAUNCHES} each");
    println!(
        "bare loop    median {:8.1} ns   p99 {:8.1} ns",
        bare.0, bare.1
    );
    println!(
        "safe launch  median {:8.1} ns   p99 {:8.1} ns",
        safe.0, safe.1
    );
    let ratios = (safe.0 / bare.0, safe.1 / bare.1);
    println!(
        "ratio        median {:8.3}      p99 {:8.3}      limit {LIMIT}",
        ratios.0, ratios.1
    );
    if ratios.0 <= LIMIT {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn launch_safely(
    nothing: &Function,
    stream: &Stream,
    a: &DeviceBuffer<f32>,
    b: &DeviceBuffer<f32>,
) {
    let launch = Launch::new(1, 32);
    for index in 0..LAUNCHES {
        // SAFETY: the kernel does nothing.
        unsafe { launch.run(nothing, stream, (a, b, 1.0f32, index as u32)) }.expect("a launch");
    }
}

fn launch_barely(
    launch: cuLaunchKernel,
    nothing: &Function,
    stream: &Stream,
    a: &DeviceBuffer<f32>,
    b: &DeviceBuffer<f32>,
) {
    for index in 0..LAUNCHES {
        let (mut a, mut b, mut c, mut d) = (a.address().0, b.address().0, 1.0f32, index as u32);
        let mut arguments: [*mut c_void; 4] = [
            (&raw mut a).cast(),
            (&raw mut b).cast(),
            (&raw mut c).cast(),
            (&raw mut d).cast(),
        ];
        // SAFETY: the arguments are the kernel's and outlive the call.
        let answer = unsafe {
            launch(
                nothing.raw(),
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                stream.raw(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        assert_eq!(answer, CUresult::CUDA_SUCCESS);
    }
}

/// Median and 99th percentile.
fn figures(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() * 99 / 100])
}
