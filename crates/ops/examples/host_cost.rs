//! Measurement of what a plan costs its thread: runs beside bare launches, and making one.
//!
//! `host_cost [--rounds N]`: on whichever device `FERCUDA_DEVICE` says. A round queues 64 runs of
//! each kind, in turns, and waits for the device outside of the measured time; the medians of the
//! rounds are printed. Bare is a launch by `fercuda-cuda` of a kernel with three parameters. Plans
//! are made with an empty cache in `FERCUDA_CACHE`, which must be named, and again with what that
//! left.
#![expect(clippy::print_stdout, reason = "figures for people")]

use std::time::{Duration, Instant};

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Image, Launch, Module, Stream};
use fercuda_jit::BoundArg;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpDevice, OpPlan};
use fercuda_tensor::{Dtype, Layout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs that are queued between two waits: fewer than fill a stream's queue.
const QUEUED: u32 = 64;

/// A kernel that does nothing with three parameters.
const BARE: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry bare(.param .u64 x, .param .u64 y, .param .u32 rows) { ret; }
";

/// A plan with its memory.
struct HostCase {
    name: &'static str,
    operands: Vec<Layout>,
    memory: Vec<DeviceBuffer<u8>>,
    outputs: Vec<DeviceBuffer<u8>>,
    workspace: Option<DeviceBuffer<u8>>,
    plan: OpPlan,
    cold: Duration,
}

/// Ops of every backend, with the shapes of their operands.
const CASES: [(&str, &[&[u64]]); 8] = [
    ("relu", &[&[64, 256]]),
    ("add", &[&[64, 256], &[64, 256]]),
    ("softmax", &[&[64, 256]]),
    ("layer_norm", &[&[64, 256], &[256], &[256]]),
    ("cumsum", &[&[64, 256]]),
    ("sort", &[&[64, 256]]),
    ("flip", &[&[64, 256]]),
    ("linear", &[&[16, 256], &[256, 256], &[256]]),
];

fn bytes(layout: &Layout) -> usize {
    let elements: u64 = layout.shape().iter().product();
    usize::try_from(elements * layout.dtype().bytes()).unwrap_or(usize::MAX)
}

fn descriptor(name: &str, operands: &[Layout]) -> Result<OpDescriptor> {
    let op = OpDescriptor::new(name)?;
    let last = operands[0].shape().len() - 1;
    // The ops that have axes go along the last one.
    Ok(op.clone().axes(&[last]).unwrap_or(op))
}

fn prepare(
    device: &OpDevice,
    stream: &Stream,
    name: &'static str,
    shapes: &[&[u64]],
) -> Result<HostCase> {
    let operands = shapes
        .iter()
        .map(|shape| Layout::contiguous(Dtype::F32, shape))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let op = descriptor(name, &operands)?;
    let begun = Instant::now();
    let plan = OpPlan::new(device, &op, &operands, &[], KernelPolicy::Auto)?;
    let cold = begun.elapsed();
    let zeroed = |layout: &Layout| DeviceBuffer::<u8>::zeroed(stream, bytes(layout));
    let memory = operands
        .iter()
        .map(zeroed)
        .collect::<std::result::Result<_, _>>()?;
    let outputs = plan.outputs().iter().map(zeroed);
    let outputs = outputs.collect::<std::result::Result<_, _>>()?;
    let workspace = usize::try_from(plan.workspace_bytes())?;
    let workspace = (workspace > 0).then(|| DeviceBuffer::<u8>::zeroed(stream, workspace));
    Ok(HostCase {
        name,
        operands,
        memory,
        outputs,
        workspace: workspace.transpose()?,
        plan,
        cold,
    })
}

/// Time of one of several calls.
fn each(stream: &Stream, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..QUEUED {
        call()?;
    }
    let taken = begun.elapsed();
    stream.synchronize()?;
    Ok(taken.as_secs_f64() * 1e6 / f64::from(QUEUED))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--rounds"), Some(rounds)) => rounds.parse()?,
        _ => 200,
    };
    std::env::var_os("FERCUDA_CACHE").ok_or("FERCUDA_CACHE names no empty folder")?;
    let cuda = Cuda::from_env()?;
    let device = cuda.device(0)?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    println!("{}, driver {:?}", device.name()?, cuda.version()?);
    let module = Module::load(&context, &Image::ptx(BARE))?;
    let function = module.function("bare")?;
    let launch = Launch::new(1, 32);
    let scratch = DeviceBuffer::<u8>::zeroed(&stream, 64)?;
    // The first plan also opens the libraries.
    let first = OpDevice::new(&context)?;
    let opened = Instant::now();
    drop(prepare(&first, &stream, "cumsum", &[&[3, 3]])?);
    println!(
        "first plan, with the opening of NVRTC: {:.1?}",
        opened.elapsed()
    );
    let mut cases = Vec::new();
    for (name, shapes) in CASES {
        cases.push(prepare(&first, &stream, name, shapes)?);
    }
    let second = OpDevice::new(&context)?;
    println!("op | kernel | launches | run us | over bare us | cold ms | from disk ms | known ms");
    for case in &cases {
        let op = descriptor(case.name, &case.operands)?;
        let make = || -> Result<f64> {
            let begun = Instant::now();
            OpPlan::new(&second, &op, &case.operands, &[], KernelPolicy::Auto)?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        };
        let (disk, known) = (make()?, make()?);
        let operands: Vec<BoundArg<'_>> = case.memory.iter().map(BoundArg::of).collect();
        let outputs: Vec<BoundArg<'_>> = case.outputs.iter().map(BoundArg::of).collect();
        let workspace = case.workspace.as_ref().map(BoundArg::of);
        let (mut runs, mut bares) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            runs.push(each(&stream, || {
                Ok(case.plan.run(&stream, &operands, &outputs, workspace)?)
            })?);
            bares.push(each(&stream, || {
                // SAFETY: the kernel has these parameters and accesses nothing.
                #[expect(unsafe_code, reason = "a kernel that does nothing")]
                unsafe {
                    launch.run(&function, &stream, (&scratch, &scratch, 0u32))?;
                }
                Ok(())
            })?);
        }
        let (run, bare) = (median(runs), median(bares));
        println!(
            "{} | {} | {} | {run:.2} | {:.2} | {:.1} | {disk:.2} | {known:.3}",
            case.name,
            case.plan.sku().id,
            case.plan.sku().launches,
            run - bare,
            case.cold.as_secs_f64() * 1e3,
        );
    }
    Ok(())
}
