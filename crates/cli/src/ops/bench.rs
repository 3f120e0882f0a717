//! `fercuda ops bench`: times of ops by the device's own clock, beside copies in the same run.
//!
//! Invariant: an op and the copy that it is compared with move the same number of bytes and are
//! measured in turns. Buffers are used in rotation, so that none is in the L2 cache from its last
//! use; a row for which they are too small says so. The exit status does not depend on the
//! measured values.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use fercuda_cuda::sys::types::CUdevice_attribute;
use fercuda_cuda::{Context, Cuda, DeviceBuffer, Event, Stream};
use fercuda_jit::{BoundArg, TypeClass};
use fercuda_ops::{OpDescriptor, OpDevice, OpOracle, OpRow};
use fercuda_tensor::{Dtype, Layout};
use serde::Serialize;

use super::parameters::{dtype_parser, find, shape};
use super::plan::{PreparedOp, prepare, refusal};
use super::torch::{TorchBench, TorchBenchRequest, TorchBenchSpec};
use crate::arrays::input::{random_elements, random_seed};
use crate::arrays::value::element_size;
use crate::out::{note, say, step};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{Paint, bytes, clipped, count, duration, wrapped};

/// Measures the time of ops, and how near they are to a copy of as many bytes.
#[derive(clap::Args)]
#[command(after_help = "\
Operands are random, contiguous and of one shape; vectors of norms are of the
last extent. Reductions go along the last axis; cast converts to f32, or of f32
to f16. GB/s is of necessary traffic: each operand read once, the result written
once, in units of 10^9 bytes. The copy, from device to device, moves as many
bytes, and is measured in turns with the op. A sample is several runs queued
behind each other if one is short. This is one run: repeat it before you quote
it, and quote the ratio.

With --torch each op is measured by PyTorch, eager, right after ours, with as
many runs a sample and buffers in rotation; its results are allocated by it.

Exit status: 0 when measured, 1 when the device failed, 2 for arguments that do
not go together.

Examples:
  fercuda ops bench
  fercuda ops bench softmax layer_norm --dtype bf16 --shape 8192x1024
  fercuda ops bench --torch python3 --dtype bf16
  fercuda ops bench add --json | python3 -m json.tool")]
pub(super) struct OpBenchArgs {
    /// Ops to measure [default: a small set].
    ops: Vec<String>,
    /// Type of the operands.
    #[arg(long, value_name = "TYPE", value_parser = dtype_parser(), default_value = "f16")]
    dtype: Dtype,
    /// Shape of the operands [default: 4096x4096; 256x256 on the software device].
    #[arg(long, value_name = "SHAPE")]
    shape: Option<String>,
    /// Samples of each op.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(30..=10_000))]
    samples: u32,
    /// Seed of the random elements [default: a random one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Measure PyTorch's ops beside ours, by that Python.
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The ops that are measured if none is named.
const STANDARD: [&str; 11] = [
    "copy",
    "permute",
    "cast",
    "add",
    "gelu",
    "swiglu",
    "sum",
    "argmax",
    "softmax",
    "layer_norm",
    "rms_norm",
];

/// Said of all times on the software device.
pub(super) const SIMULATED: &str =
    "These times are of a simulation on the processor: they say nothing of a GPU.";

#[derive(Serialize)]
struct OpBenchReport {
    device: String,
    /// Whether the times are of a simulation.
    simulated: bool,
    dtype: &'static str,
    shape: Vec<u64>,
    seed: u64,
    samples: u32,
    l2_bytes: u64,
    /// PyTorch's version, if it was measured.
    torch: Option<String>,
    rows: Vec<OpTiming>,
}

#[derive(Serialize)]
struct OpTiming {
    op: &'static str,
    kernel: &'static str,
    median_us: f64,
    p10_us: f64,
    p90_us: f64,
    copy_median_us: f64,
    necessary_bytes: u64,
    gb_per_s: f64,
    copy_gb_per_s: f64,
    /// Time of the copy by that of the op.
    fraction_of_copy: f64,
    runs_per_sample: u32,
    /// Sets of buffers in rotation.
    buffer_sets: usize,
    /// Whether a set may be in the L2 cache when it is used again.
    fits_l2: bool,
    /// PyTorch's median, where it has the op and was measured.
    torch_us: Option<f64>,
}

/// The device and what is the same for all ops.
struct OpBench<'a> {
    context: Context,
    stream: Stream,
    ops: OpDevice,
    l2_bytes: u64,
    shape: &'a [u64],
    dtype: Dtype,
    samples: u32,
}

/// Memory that is handed out part by part, in one allocation of the driver.
pub(super) struct BenchArena {
    memory: DeviceBuffer<u8>,
    next: u64,
}

impl BenchArena {
    pub(super) const ALIGNMENT: u64 = 256;

    /// One of that size.
    pub(super) fn new(context: &Context, bytes: u64) -> Result<Self> {
        Ok(Self {
            memory: DeviceBuffer::alloc(context, usize::try_from(bytes)?)?,
            next: 0,
        })
    }

    /// A part of that size.
    pub(super) fn take(&mut self, bytes: u64) -> Result<DeviceBuffer<u8>> {
        let part = self.memory.part(self.next as usize, bytes as usize)?;
        self.next += bytes.next_multiple_of(Self::ALIGNMENT);
        Ok(part)
    }
}

/// Buffers of one run.
struct BufferSet {
    operands: Vec<DeviceBuffer<u8>>,
    outputs: Vec<DeviceBuffer<u8>>,
    /// Source and destination of the copy.
    source: DeviceBuffer<u8>,
    destination: DeviceBuffer<u8>,
}

pub(super) fn run(args: &OpBenchArgs) -> Result<ExitCode> {
    let rows = rows(args)?;
    let cuda = Cuda::from_env()?;
    let device = cuda.device(0)?;
    let simulated = cuda.is_software();
    let default = if simulated { "256x256" } else { "4096x4096" };
    let shape = shape(args.shape.as_deref().unwrap_or(default))?;
    if shape.is_empty() || shape.contains(&0) {
        bail_usage!("a shape without elements or dimensions takes no time\ntry: --shape {default}");
    }
    let context = Context::primary(device)?;
    let l2 = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
    let bench = OpBench {
        stream: Stream::new(&context)?,
        ops: OpDevice::new(&context).map_err(refusal)?,
        l2_bytes: u64::try_from(l2).unwrap_or_default(),
        context,
        shape: &shape,
        dtype: args.dtype,
        samples: args.samples,
    };
    let spec = TorchBenchSpec {
        dtype: args.dtype.name(),
        shape: &shape,
        samples: args.samples,
        l2_bytes: bench.l2_bytes,
    };
    let torch = args.torch.as_ref();
    let mut torch = torch
        .map(|python| TorchBench::start(python, &spec))
        .transpose()?;
    let seed = args.seed.unwrap_or_else(random_seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut timings = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        note!("measuring {} ({} of {}) ...", row.name, at + 1, rows.len());
        timings.push(bench.measure(row, &mut random, torch.as_mut())?);
    }
    let report = OpBenchReport {
        device: device.to_string(),
        simulated,
        dtype: args.dtype.name(),
        shape: shape.clone(),
        seed,
        samples: args.samples,
        l2_bytes: bench.l2_bytes,
        torch: torch.map(|torch| torch.version.clone()),
        rows: timings,
    };
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&report)?),
        false => print(&report, Paint::stdout()),
    }
    Ok(ExitStatus::Success.into())
}

/// The ops to measure; of the standard set those that accept the type.
fn rows(args: &OpBenchArgs) -> Result<Vec<&'static OpRow>> {
    if args.ops.is_empty() {
        let all = STANDARD.iter().map(|name| find(name));
        let mut all = all.collect::<Result<Vec<_>>>()?;
        all.retain(|row| {
            let accepts = row.types.has(args.dtype);
            if !accepts {
                note!("{} is left out: it takes no {}", row.name, args.dtype);
            }
            accepts
        });
        return Ok(all);
    }
    let all = args.ops.iter().map(|name| find(name));
    let all = all.collect::<Result<Vec<_>>>()?;
    for row in &all {
        if !row.types.has(args.dtype) {
            let types: Vec<&str> = row.dtypes().map(Dtype::name).collect();
            bail_usage!(
                "{} takes {}, not {}\ntry: --dtype with one of {}",
                row.name,
                row.types,
                args.dtype,
                types.join(" ")
            );
        }
    }
    Ok(all)
}

/// Size of all outputs.
fn output_bytes(prepared: &PreparedOp) -> u64 {
    prepared.outputs.iter().map(Layout::bytes).sum()
}

impl OpBench<'_> {
    /// The op with parameters for the shape, and layouts of its operands.
    fn describe(&self, row: &OpRow) -> Result<(OpDescriptor, Vec<Layout>)> {
        let has_lists = row
            .lists
            .iter()
            .any(|(list, _)| !matches!(*list, "seed" | "subsequence"));
        if has_lists || row.has_indices() || !row.typed.is_empty() {
            bail_usage!(
                "{} has parameters or operands that bench does not draw\ntry: fercuda ops run",
                row.name
            );
        }
        let mut op = OpDescriptor::new(row.name).map_err(refusal)?;
        let last = self.shape.len() - 1;
        if row.has("axes") {
            op = op.axes(&[last]).map_err(refusal)?;
        }
        if row.has("to") && row.is_expression() {
            let to = match self.dtype {
                Dtype::F32 => Dtype::F16,
                _ => Dtype::F32,
            };
            op = op.to(to).map_err(refusal)?;
        }
        if row.has("shape") {
            op = op.shape(self.shape).map_err(refusal)?;
        }
        let has_vectors = row.has("operands");
        let layouts = (0..row.operands.len()).map(|at| {
            let dtype = match row.types_of(row.operand(at)) {
                TypeClass::Bool => Dtype::Bool,
                _ => self.dtype,
            };
            let is_vector = has_vectors && at > 0 || matches!(row.oracle, OpOracle::Broadcast);
            let shape = if is_vector {
                &self.shape[last..]
            } else {
                self.shape
            };
            Layout::contiguous(dtype, shape)
        });
        Ok((op, layouts.collect::<Result<_, _>>()?))
    }

    fn measure(
        &self,
        row: &'static OpRow,
        random: &mut fastrand::Rng,
        torch: Option<&mut TorchBench>,
    ) -> Result<OpTiming> {
        let (op, layouts) = self.describe(row)?;
        let prepared = prepare(&self.ops, &op, &layouts, None)?;
        let operand_bytes: u64 = layouts.iter().map(Layout::bytes).sum();
        let necessary_bytes = operand_bytes + output_bytes(&prepared);
        let mut sets = self.buffer_sets(&prepared, &layouts, necessary_bytes, random)?;
        let workspace = match prepared.workspace_bytes {
            0 => None,
            bytes => Some(self.alloc(bytes)?),
        };
        let queue = |set: &BufferSet| {
            let operands: Vec<BoundArg<'_>> = set.operands.iter().map(BoundArg::of).collect();
            let workspace = workspace.as_ref().map(BoundArg::of);
            let outputs: Vec<BoundArg<'_>> = set.outputs.iter().map(BoundArg::of).collect();
            (prepared.queue)(&self.stream, &operands, &outputs, workspace)
        };
        let (times, copies, runs) = self.sample(&mut sets, queue)?;
        let request = TorchBenchRequest {
            op: row.name,
            shapes: layouts.iter().map(Layout::shape).collect(),
            necessary_bytes,
            runs,
        };
        let torch_us = torch.map(|torch| torch.measure(&request)).transpose()?;
        let per_s = |seconds: f64| necessary_bytes as f64 / seconds.max(1e-9) / 1e9;
        let (median, copy) = (quantile(&times, 0.5), quantile(&copies, 0.5));
        let us = |seconds: f64| seconds * 1e6;
        Ok(OpTiming {
            op: row.name,
            kernel: prepared.chosen.kernel,
            median_us: us(median),
            p10_us: us(quantile(&times, 0.1)),
            p90_us: us(quantile(&times, 0.9)),
            copy_median_us: us(copy),
            necessary_bytes,
            gb_per_s: per_s(median),
            copy_gb_per_s: per_s(copy),
            fraction_of_copy: copy / median.max(1e-9),
            runs_per_sample: runs,
            buffer_sets: sets.len(),
            fits_l2: sets.len() as u64 * necessary_bytes <= 2 * self.l2_bytes,
            torch_us: torch_us.flatten(),
        })
    }

    fn alloc(&self, bytes: u64) -> Result<DeviceBuffer<u8>> {
        Ok(DeviceBuffer::alloc(&self.context, usize::try_from(bytes)?)?)
    }

    /// Buffers that are together more than four times as large as the L2 cache: at least two sets,
    /// and so many at most that small ones need not be filled for minutes.
    fn buffer_sets(
        &self,
        prepared: &PreparedOp,
        layouts: &[Layout],
        necessary_bytes: u64,
        random: &mut fastrand::Rng,
    ) -> Result<Vec<BufferSet>> {
        const MOST_SETS: u64 = 1024;
        let sets = (2 + 4 * self.l2_bytes / necessary_bytes).min(MOST_SETS);
        let copied = (necessary_bytes / 2).max(1);
        let sizes = layouts.iter().map(Layout::bytes);
        let sizes = sizes.chain(prepared.outputs.iter().map(Layout::bytes));
        let sizes = sizes.chain([copied, copied]);
        let set_bytes: u64 = sizes
            .map(|bytes| bytes.next_multiple_of(BenchArena::ALIGNMENT))
            .sum();
        let needed = sets.saturating_mul(set_bytes);
        let (free, _) = self.context.memory_info()?;
        if needed.saturating_add(prepared.workspace_bytes) > free {
            bail_usage!(
                "buffers beyond the L2 cache take {}, and the device has {} free\n\
                 try: a smaller --shape",
                bytes(needed),
                bytes(free)
            );
        }
        step!(
            "{} of buffers, {}",
            count(sets as usize, "set"),
            bytes(needed)
        );
        let mut arena = BenchArena::new(&self.context, needed)?;
        let contents: Vec<Vec<u8>> = layouts
            .iter()
            .map(|layout| random_bytes(random, layout))
            .collect();
        let all = contents.iter().flatten().copied().cycle();
        let copied_content: Vec<u8> = all.take(copied as usize).collect();
        (0..sets)
            .map(|_| {
                let mut filled = |content: &Vec<u8>| -> Result<DeviceBuffer<u8>> {
                    let mut buffer = arena.take(content.len() as u64)?;
                    buffer.copy_from_host(content, &self.stream)?;
                    Ok(buffer)
                };
                let operands = contents.iter().map(&mut filled).collect::<Result<_>>()?;
                let source = filled(&copied_content)?;
                let outputs = prepared.outputs.iter().map(|it| arena.take(it.bytes()));
                Ok(BufferSet {
                    operands,
                    source,
                    outputs: outputs.collect::<Result<_>>()?,
                    destination: arena.take(copied)?,
                })
            })
            .collect()
    }

    /// Times of the op and of the copy in seconds, in turns, and the runs of a sample.
    fn sample(
        &self,
        sets: &mut [BufferSet],
        queue: impl Fn(&BufferSet) -> Result<()>,
    ) -> Result<(Vec<f64>, Vec<f64>, u32)> {
        let mut next = 0;
        let mut timed = |runs: u32, is_copy: bool| -> Result<(Event, Event)> {
            let begin = Event::timed(&self.context)?;
            let end = Event::timed(&self.context)?;
            begin.record(&self.stream)?;
            for _ in 0..runs {
                next = (next + 1) % sets.len();
                let set = &mut sets[next];
                match is_copy {
                    true => {
                        let source = set.source.as_slice();
                        set.destination.copy_from(source, &self.stream)?;
                    }
                    false => queue(set)?,
                }
            }
            end.record(&self.stream)?;
            Ok((begin, end))
        };
        // The first runs load the code.
        let mut warm = Vec::new();
        for is_copy in [false, true, false] {
            warm.push(timed(1, is_copy)?);
        }
        self.stream.synchronize()?;
        let (begin, end) = &warm[2];
        let runs = runs_per_sample(end.since(begin)?.as_secs_f64());
        let mut events = Vec::new();
        for _ in 0..self.samples {
            events.push((timed(runs, false)?, timed(runs, true)?));
        }
        self.stream.synchronize()?;
        let seconds = |(begin, end): &(Event, Event)| -> Result<f64> {
            Ok(end.since(begin)?.as_secs_f64() / f64::from(runs))
        };
        let mut times = Vec::new();
        let mut copies = Vec::new();
        for (op, copy) in &events {
            times.push(seconds(op)?);
            copies.push(seconds(copy)?);
        }
        times.sort_by(f64::total_cmp);
        copies.sort_by(f64::total_cmp);
        Ok((times, copies, runs))
    }
}

/// As many runs as take 200 microseconds, so that the resolution of events does not matter.
fn runs_per_sample(seconds: f64) -> u32 {
    (200e-6 / seconds.max(1e-9)).ceil().clamp(1.0, 64.0) as u32
}

/// The value below which that part of sorted values is.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

fn random_bytes(random: &mut fastrand::Rng, layout: &Layout) -> Vec<u8> {
    let (dtype, size) = (layout.dtype(), element_size(layout.dtype()));
    let mut all = Vec::with_capacity(layout.bytes() as usize);
    for bits in random_elements(random, dtype, layout.len()) {
        all.extend_from_slice(&bits.to_le_bytes()[..size]);
    }
    all
}

/// GB/s in at most seven characters: those of a simulated device are far below 1.
pub(super) fn rate(gb_per_s: f64) -> String {
    match gb_per_s {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 0.1 => format!("{rate:.2}"),
        rate => format!("{rate:.5}"),
    }
}

fn print(report: &OpBenchReport, paint: Paint) {
    say!("{}", clipped(&report.device, 80));
    say!(
        "{}{:?}, {} samples, --seed {}",
        report.dtype,
        report.shape,
        report.samples,
        report.seed
    );
    if report.simulated {
        for line in wrapped(SIMULATED, 80) {
            say!("{}", paint.strong(&line));
        }
    }
    if let Some(version) = &report.torch {
        print_beside(report, version, paint);
        return;
    }
    let head = format!(
        "{:<22} {:<13}{:>9}{:>9}{:>8}{:>8}{:>7}",
        "OP", "KERNEL", "MEDIAN", "P90", "GB/s", "COPY", "RATIO"
    );
    say!("{}", paint.strong(&head));
    for row in &report.rows {
        say!(
            "{:<22} {:<13}{:>9}{:>9}{:>8}{:>8}{:>7.3}{}",
            clipped(row.op, 22),
            clipped(row.kernel, 13),
            duration(row.median_us / 1e6),
            duration(row.p90_us / 1e6),
            rate(row.gb_per_s),
            rate(row.copy_gb_per_s),
            row.fraction_of_copy,
            if row.fits_l2 { "*" } else { "" }
        );
    }
    say!("GB/s: necessary traffic, of the op and of a copy; RATIO: op by copy.");
    say_what_fits(report);
}

fn say_what_fits(report: &OpBenchReport) {
    if report.rows.iter().any(|row| row.fits_l2) {
        say!("*: the buffers in rotation fit the L2 cache; try a larger --shape");
    }
}

/// The table with PyTorch's times.
fn print_beside(report: &OpBenchReport, version: &str, paint: Paint) {
    let head = format!(
        "{:<20} {:<13}{:>9}{:>8}{:>7}{:>11}{:>9}",
        "OP", "KERNEL", "MEDIAN", "GB/s", "RATIO", "PYTORCH", "SPEEDUP"
    );
    say!("{}", paint.strong(&head));
    let mut speedups = Vec::new();
    for row in &report.rows {
        let speedup = row.torch_us.map(|torch| torch / row.median_us.max(1e-9));
        speedups.extend(speedup);
        say!(
            "{:<20} {:<13}{:>9}{:>8}{:>7.3}{:>11}{:>9}{}",
            clipped(row.op, 20),
            clipped(row.kernel, 13),
            duration(row.median_us / 1e6),
            rate(row.gb_per_s),
            row.fraction_of_copy,
            row.torch_us.map_or("-".to_owned(), |us| duration(us / 1e6)),
            speedup.map_or("-".to_owned(), |speedup| format!("{speedup:.2}")),
            if row.fits_l2 { "*" } else { "" }
        );
    }
    say!("GB/s: necessary traffic; RATIO: of a copy's; PYTORCH: eager, {version}.");
    if !speedups.is_empty() {
        let logarithms: f64 = speedups.iter().map(|it| it.ln()).sum();
        let mean = (logarithms / speedups.len() as f64).exp();
        say!("SPEEDUP by geometric mean: {mean:.2}");
    }
    say_what_fits(report);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_values_and_short_runs_are_repeated() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&sorted, 0.5), 50.0);
        assert_eq!(quantile(&sorted, 0.9), 90.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(runs_per_sample(1.0), 1);
        assert_eq!(runs_per_sample(20e-6), 10);
        assert_eq!(runs_per_sample(0.0), 64);
    }
}
