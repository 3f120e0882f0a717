//! `fercuda ops tune`: times of all kernels of one op, and the fastest kept for later plans.
//!
//! Invariant: kernels run in turns on the same sets of buffers, which together exceed the L2 cache
//! where that is possible. Elsewhere: measuring and keeping (`fercuda_ops::OpTuner`).

use std::process::ExitCode;

use anyhow::Result;
use fercuda_cuda::sys::types::CUdevice_attribute;
use fercuda_cuda::{Context, DeviceBuffer, Stream};
use fercuda_jit::BoundArg;
use fercuda_ops::{OpDevice, OpTuner, TuneSet};
use fercuda_tensor::Layout;
use serde::Serialize;

use super::bench::{BenchArena, SIMULATED, rate};
use super::parameters::{ParameterArgs, find, usage};
use super::plan::refusal;
use super::run::operands;
use crate::arrays::input::{ArrayInput, random_seed, scattered};
use crate::arrays::limits::{available_host_bytes, check_device_memory, reach_len};
use crate::out::{say, step};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{Paint, bytes, clipped, count, duration, wrapped};

/// Largest number of sets of buffers.
const MOST_SETS: u64 = 1024;

/// Measures each kernel of an op, and keeps the fastest for plans that ask for it.
#[derive(clap::Args)]
#[command(after_help = "\
Inputs are as for `fercuda ops run`. All kernels that compute the op on these
layouts run in turns, each algorithm of a library as one, on buffers in rotation
that exceed the L2 cache. The fastest is kept in the cache folder, for this op,
layouts, device, driver and version; plans with the policy `Measured` use it.

Exit status: 0 when measured, 1 when the device failed, 2 the op could not be
run.

Examples:
  fercuda ops tune linear -i 'x:bf16[1,4096]' -i 'weight:bf16[14336,4096]'
  fercuda ops tune matmul -i 'x:f16[512,512]' -i 'y:f16[512,512]' --json")]
pub(super) struct OpTuneArgs {
    /// Name of the op; `fercuda ops list` has all.
    op: String,
    /// Operand as NAME:TYPE[SHAPE]; see `fercuda ops run --help`.
    #[arg(long = "input", short = 'i', value_name = "SPEC")]
    inputs: Vec<String>,
    #[command(flatten)]
    parameters: ParameterArgs,
    /// Seed of random elements [default: a random one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct OpTuneReport {
    op: &'static str,
    operands: Vec<String>,
    device: String,
    /// Whether the times are of a simulation.
    simulated: bool,
    seed: u64,
    necessary_bytes: u64,
    /// Sets of buffers in rotation.
    buffer_sets: usize,
    /// The fastest first; it is kept.
    kernels: Vec<TunedKernel>,
    rejected: Vec<RefusedKernel>,
}

#[derive(Serialize)]
struct TunedKernel {
    kernel: String,
    median_us: f64,
    gb_per_s: f64,
    /// Of a product.
    #[serde(skip_serializing_if = "Option::is_none")]
    tflop_per_s: Option<f64>,
    workspace_bytes: u64,
}

#[derive(Serialize)]
struct RefusedKernel {
    kernel: &'static str,
    reason: String,
}

pub(super) fn run(args: &OpTuneArgs) -> Result<ExitCode> {
    let row = find(&args.op)?;
    let operands = operands(row, &args.inputs)?;
    let layouts: Vec<Layout> = operands.iter().map(|it| it.layout).collect();
    let ranks = layouts.iter().map(|layout| layout.shape().len());
    let rank = ranks.max().unwrap_or_default();
    let op = args.parameters.describe(row, rank)?;
    let cuda = fercuda_cuda::Cuda::from_env()?;
    let device = cuda.device(0)?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    let of_ops = OpDevice::new(&context).map_err(refusal)?;
    let tuner = OpTuner::new(&of_ops, &op, &layouts, &[]).map_err(refusal)?;
    let seed = args.seed.unwrap_or_else(random_seed);
    let outputs = tuner.outputs();
    let sizes = layouts.iter().chain(outputs).map(Layout::bytes);
    let necessary_bytes: u64 = sizes.fold(0, u64::saturating_add);
    let l2 = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
    let memory = TuneMemory::new(
        &context,
        &stream,
        &operands,
        outputs,
        l2.unsigned_abs(),
        seed,
    )?;
    let workspace = match tuner.workspace_bytes() {
        0 => None,
        bytes => Some(DeviceBuffer::<u8>::alloc(
            &context,
            usize::try_from(bytes)?,
        )?),
    };
    let sets: Vec<TuneSet<'_>> = memory.sets().collect();
    let measured = tuner
        .measure(&stream, &sets, workspace.as_ref().map(BoundArg::of))
        .map_err(refusal)?;
    let flops = product_flops(op.name(), &layouts, outputs);
    let kernels = measured.kernels.iter().map(|it| {
        let seconds = it.time.as_secs_f64().max(1e-9);
        TunedKernel {
            kernel: it.id.clone(),
            median_us: seconds * 1e6,
            gb_per_s: necessary_bytes as f64 / seconds / 1e9,
            tflop_per_s: flops.map(|flops| flops / seconds / 1e12),
            workspace_bytes: it.workspace_bytes,
        }
    });
    let rejected = measured.rejected.into_iter();
    let report = OpTuneReport {
        op: op.name(),
        operands: layouts.iter().map(Layout::to_string).collect(),
        device: device.to_string(),
        simulated: cuda.is_software(),
        seed,
        necessary_bytes,
        buffer_sets: sets.len(),
        kernels: kernels.collect(),
        rejected: rejected
            .map(|it| RefusedKernel {
                kernel: it.id,
                reason: it.reason,
            })
            .collect(),
    };
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&report)?),
        false => print(&report, Paint::stdout()),
    }
    Ok(ExitStatus::Success.into())
}

/// Refuses operands whose elements do not fit the host, which has eight bytes for each.
fn check_host(operands: &[ArrayInput]) -> Result<()> {
    let sizes = operands.iter().map(|it| {
        let elements = it.layout.len().saturating_mul(8);
        elements.saturating_add(reach_len(&it.layout))
    });
    let needed = sizes.fold(0, u64::saturating_add);
    if let Some(available) = available_host_bytes().filter(|it| *it < needed) {
        bail_usage!(
            "the operands need {} of host memory, and {} are available\ntry: smaller shapes",
            bytes(needed),
            bytes(available)
        );
    }
    Ok(())
}

/// Operations of a product: two for each element of the result and of the depth.
fn product_flops(op: &str, operands: &[Layout], outputs: &[Layout]) -> Option<f64> {
    let depth = match (op, operands.first()?.shape()) {
        ("matmul" | "linear", [.., depth]) => *depth,
        _ => return None,
    };
    Some(2.0 * depth as f64 * outputs.first()?.len() as f64)
}

/// Buffers of one run.
struct TuneBuffers {
    /// Each with the place of its first element.
    operands: Vec<(DeviceBuffer<u8>, u64)>,
    outputs: Vec<DeviceBuffer<u8>>,
}

/// Sets of buffers in one allocation, with the same contents.
struct TuneMemory {
    sets: Vec<TuneBuffers>,
}

impl TuneMemory {
    fn new(
        context: &Context,
        stream: &Stream,
        operands: &[ArrayInput],
        outputs: &[Layout],
        l2_bytes: u32,
        seed: u64,
    ) -> Result<Self> {
        let sizes = operands.iter().map(|it| reach_len(&it.layout));
        let sizes = sizes.chain(outputs.iter().map(Layout::bytes));
        let set_bytes = sizes
            .map(|bytes| bytes.saturating_add(BenchArena::ALIGNMENT))
            .fold(0, u64::saturating_add);
        check_host(operands)?;
        let wanted = 2 + 4 * u64::from(l2_bytes) / set_bytes.max(1);
        let count_of_sets = wanted.min(MOST_SETS);
        let needed = count_of_sets.saturating_mul(set_bytes);
        check_device_memory(context.device(), needed, "")?;
        let shown = count(count_of_sets as usize, "set");
        step!("{shown} of buffers, {}", bytes(needed));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut contents = Vec::new();
        for operand in operands {
            let mut bits = operand.elements(&mut random).map_err(usage)?;
            contents.push(scattered(&operand.layout, &mut bits));
        }
        let mut arena = BenchArena::new(context, needed.max(1))?;
        let sets = (0..count_of_sets).map(|_| {
            let mut bound = Vec::new();
            for (content, first) in &contents {
                let mut buffer = arena.take(content.len() as u64)?;
                buffer.copy_from_host(content, stream)?;
                bound.push((buffer, *first));
            }
            let outputs = outputs.iter().map(|it| arena.take(it.bytes()));
            Ok(TuneBuffers {
                operands: bound,
                outputs: outputs.collect::<Result<_>>()?,
            })
        });
        Ok(Self {
            sets: sets.collect::<Result<_>>()?,
        })
    }

    fn sets(&self) -> impl Iterator<Item = TuneSet<'_>> {
        self.sets.iter().map(|set| TuneSet {
            operands: set
                .operands
                .iter()
                .map(|(buffer, first)| BoundArg::of(buffer).first_at(*first))
                .collect(),
            outputs: set.outputs.iter().map(BoundArg::of).collect(),
        })
    }
}

fn print(report: &OpTuneReport, paint: Paint) {
    say!("{}", clipped(&report.device, 80));
    let operands = report.operands.join(", ");
    for line in wrapped(&format!("{} of {operands}", report.op), 80) {
        say!("{line}");
    }
    if report.simulated {
        for line in wrapped(SIMULATED, 80) {
            say!("{}", paint.strong(&line));
        }
    }
    let head = format!(
        "{:<20}{:>10}{:>9}{:>9}{:>8}{:>14}",
        "KERNEL", "MEDIAN", "GB/s", "TFLOP/s", "RATIO", "WORKSPACE"
    );
    say!("{}", paint.strong(&head));
    let fastest = report.kernels.first().map_or(0.0, |it| it.median_us);
    for row in &report.kernels {
        say!(
            "{:<20}{:>10}{:>9}{:>9}{:>8.3}{:>14}",
            clipped(&row.kernel, 20),
            duration(row.median_us / 1e6),
            rate(row.gb_per_s),
            row.tflop_per_s.map_or_else(|| "-".to_owned(), rate),
            row.median_us / fastest.max(1e-9),
            bytes(row.workspace_bytes)
        );
    }
    for other in &report.rejected {
        for line in wrapped(&format!("not {}: {}", other.kernel, other.reason), 78) {
            say!("  {line}");
        }
    }
    say!("The first is kept for plans that ask for the measured kernel.");
}
