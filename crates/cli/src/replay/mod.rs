//! `fercuda replay`: replays an allocation trace on our pool and on the driver's allocators, or
//! converts the trace.
//!
//! Invariant: each allocator gets the same operations in the same order, on the same device,
//! and frees everything before the next begins. Nothing in a trace is executed.

mod history;
mod html;
mod input;
mod live;
mod log;
mod pickle;
#[cfg(test)]
mod property;
mod row;
mod snapshot;
#[cfg(test)]
mod tests;
mod trace;

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::memory::{
    AllocatedBlock, Allocator, AsyncAllocator, DeviceUnderTest, Latencies, PoolAllocator,
    SyncAllocator, latency,
};
use crate::out::say;
use crate::output::{OutputFile, is_stream};
use crate::run::DeviceKind;
use crate::status::ExitStatus;
use crate::terminal::{Paint, bytes, clipped, count};
use snapshot::MemorySnapshot;
use trace::{AllocationTrace, TraceOp};

/// Streams that are created; a trace with more shares them.
const STREAMS: u32 = 64;

/// Replays an allocation trace on our pool and the driver's allocators.
#[derive(clap::Args)]
#[command(after_help = "\
A trace is the output of `fercuda run --trace` or of RMM's logging adaptor
(lines of Thread,Time,Action,Pointer,Size,Stream), or a PyTorch memory snapshot
(torch.cuda.memory._dump_snapshot), of which nothing is executed.

Operations run back to back, without kernels between them: latencies are the
allocators' own, times in the trace are ignored.
  PHYSICAL   peak device memory taken by the allocator
  STRANDED   the part of it that was in no live block (fragmentation)
A failed operation is counted, and is not in PHYSICAL.

The operations of each device of the trace are replayed on the same device, one
after the other. What is left out of a trace is printed, with its count.

--snapshot converts the trace to a PyTorch memory snapshot instead: its events,
and the blocks live at its end. pytorch.org/memory_viz shows such files. The
trace of a running process works too, except for its last lines. Segments are
runs of adjacent live blocks.

--html writes a timeline: live memory by tenant, its peak, failed allocations
and the largest blocks, in one file that loads nothing.

Exit status: 0; 1 if the device failed; 2 if the trace cannot be read.

Examples:
  fercuda run --trace /tmp/trace.csv -- python train.py
  fercuda replay /tmp/trace.csv
  fercuda replay /tmp/trace.csv --html /tmp/timeline.html
  fercuda replay /tmp/trace.csv --snapshot /tmp/memory.pickle
  fercuda replay snapshot.pickle --device gpu --json")]
pub(crate) struct Args {
    /// Trace file to replay, or - for standard input.
    #[arg(value_name = "TRACE")]
    file: PathBuf,
    /// Device to replay on [default: FERCUDA_DEVICE, or auto].
    #[arg(long, value_enum)]
    device: Option<DeviceKind>,
    /// Convert the trace to a PyTorch memory snapshot in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "json"])]
    snapshot: Option<PathBuf>,
    /// Write a memory timeline as one HTML file that a browser opens alone.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "json", "snapshot"])]
    html: Option<PathBuf>,
    /// Replace the file of --snapshot or --html if it exists.
    #[arg(long)]
    force: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct ReplayOutcome {
    device: String,
    driver: String,
    /// What was left out, besides what has a count.
    notes: Vec<String>,
    /// By device of the trace. All are replayed on the same device, one after the other.
    traces: Vec<TraceOutcome>,
}

/// The result of one device's operations.
#[derive(Debug, Serialize)]
struct TraceOutcome {
    /// The device in the trace.
    trace_device: u32,
    allocations: u32,
    frees: usize,
    streams: u32,
    /// Frees of addresses that the trace never allocated.
    unmatched_frees: u64,
    /// Blocks that were live before the trace began, which are allocated first.
    held_blocks: u32,
    /// Allocations that failed in the trace, which are not replayed.
    trace_failures: u64,
    peak_live_bytes: u64,
    allocators: Vec<ReplayRow>,
}

/// The result of one allocator.
#[derive(Debug, Serialize)]
struct ReplayRow {
    name: &'static str,
    peak_live_bytes: u64,
    peak_physical_bytes: u64,
    /// In no live block at the peak.
    stranded_bytes: u64,
    allocate_p50_ns: Option<f64>,
    allocate_p99_ns: Option<f64>,
    allocate_p999_ns: Option<f64>,
    free_p50_ns: Option<f64>,
    free_p99_ns: Option<f64>,
    free_p999_ns: Option<f64>,
    failures: u64,
    first_failure: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let unread = || match is_stream(&args.file) {
        true => "cannot read the trace on standard input".to_owned(),
        false => format!("cannot read the trace {}", args.file.display()),
    };
    if let Some(file) = &args.snapshot {
        let out = OutputFile::open(file, args.force, &[&args.file])?;
        let mut snapshot = MemorySnapshot::default();
        let read = input::rows(&args.file, false, &mut |row| {
            snapshot.add(*row);
            Ok(())
        });
        return match read.with_context(unread) {
            Ok(reading) => {
                write(&snapshot, out, file)?;
                if !is_stream(file) {
                    reading.notes().iter().for_each(|note| say!("{note}"));
                }
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => Ok(crate::errors::report(&error, ExitStatus::Usage)),
        };
    }
    if let Some(file) = &args.html {
        let out = OutputFile::open(file, args.force, &[&args.file])?;
        let mut timeline = html::Timeline::default();
        let read = input::rows(&args.file, true, &mut |row| {
            timeline.add(row);
            Ok(())
        });
        return match read.with_context(unread) {
            Ok(reading) => write_html(timeline, &reading, &args.file, (out, file)),
            Err(error) => Ok(crate::errors::report(&error, ExitStatus::Usage)),
        };
    }
    let file = match input::traces(&args.file).with_context(unread) {
        Ok(file) => file,
        Err(error) => return Ok(crate::errors::report(&error, ExitStatus::Usage)),
    };
    let kind = args.device.map_or_else(DeviceKind::from_env, Ok)?;
    let streams = file.devices.iter().map(|trace| trace.streams).max();
    let streams = streams.unwrap_or(1).min(STREAMS) as usize;
    let machine = DeviceUnderTest::open(kind.into(), streams)?;
    let traces = file.devices.iter().map(|trace| replay_all(trace, &machine));
    let outcome = ReplayOutcome {
        device: machine.name.clone(),
        driver: machine.origin.clone(),
        notes: file.notes.clone(),
        traces: traces.collect::<Result<_>>()?,
    };
    if args.json {
        say!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print(&outcome);
    }
    Ok(ExitCode::SUCCESS)
}

/// Replays one device's operations on each allocator.
fn replay_all(trace: &AllocationTrace, machine: &DeviceUnderTest) -> Result<TraceOutcome> {
    // One after the other: each has the whole device, address space included.
    let allocators = vec![
        {
            let pool = PoolAllocator::new(machine)?;
            replay(trace, &pool)
        },
        replay(trace, &SyncAllocator::new(machine)),
        replay(trace, &AsyncAllocator::new(machine)?),
    ];
    Ok(TraceOutcome {
        trace_device: trace.device,
        allocations: trace.blocks,
        frees: trace.ops.len() - trace.blocks as usize,
        streams: trace.streams,
        unmatched_frees: trace.unmatched,
        held_blocks: trace.held,
        trace_failures: trace.failures,
        peak_live_bytes: trace.peak_live_bytes(),
        allocators,
    })
}

/// Writes a timeline.
fn write_html(
    timeline: html::Timeline,
    reading: &row::TraceReading,
    trace: &Path,
    (mut out, file): (OutputFile, &Path),
) -> Result<ExitCode> {
    let unwritten = || format!("cannot write the timeline {}", file.display());
    let name = trace.file_name().unwrap_or_default().to_string_lossy();
    html::write(timeline, reading, &name, &mut out).with_context(unwritten)?;
    out.finish()?;
    if !is_stream(file) {
        say!("{}: open it in a browser", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a snapshot, and prints its counts.
fn write(snapshot: &MemorySnapshot, mut out: OutputFile, file: &Path) -> Result<()> {
    let unwritten = || format!("cannot write the snapshot {}", file.display());
    let written = snapshot
        .write(BufWriter::new(&mut out))
        .with_context(unwritten)?;
    out.finish()?;
    if !is_stream(file) {
        say!(
            "{}: {} live in {}, {} in all; {}",
            file.display(),
            count(written.blocks, "block"),
            count(written.segments, "segment"),
            bytes(written.live_bytes),
            count(written.events, "event"),
        );
    }
    Ok(())
}

/// The peak of live memory, if no operation fails.
fn replay(trace: &AllocationTrace, allocator: &dyn Allocator) -> ReplayRow {
    let mut blocks: Vec<Option<(AllocatedBlock, u64)>> = Vec::new();
    blocks.resize_with(trace.blocks as usize, || None);
    let (mut allocating, mut freeing) = (Latencies::default(), Latencies::default());
    let (mut live, mut peak_live, mut physical, mut stranded) = (0_u64, 0, 0, 0);
    let mut failures = 0;
    let mut first_failure = None;
    let mut fail = |error: String| {
        failures += 1;
        first_failure.get_or_insert(error);
    };
    for op in &trace.ops {
        match *op {
            TraceOp::Allocate {
                block,
                bytes,
                stream,
            } => {
                let begun = Instant::now();
                let given = allocator.allocate(bytes, stream as usize);
                let took = begun.elapsed();
                match given {
                    Ok(given) => {
                        allocating.push(took);
                        blocks[block as usize] = Some((given, bytes));
                        live = live.saturating_add(bytes);
                        peak_live = peak_live.max(live);
                        let now = allocator.physical_bytes();
                        if now > physical {
                            physical = now;
                            stranded = now.saturating_sub(live);
                        }
                    }
                    Err(error) => fail(error),
                }
            }
            TraceOp::Free { block, stream } => {
                // A failed allocation has nothing to free.
                let Some((given, bytes)) = blocks[block as usize].take() else {
                    continue;
                };
                let begun = Instant::now();
                let freed = allocator.free(given, stream as usize);
                freeing.push(begun.elapsed());
                live = live.saturating_sub(bytes);
                if let Err(error) = freed {
                    fail(error);
                }
            }
        }
    }
    // Blocks that the trace never freed.
    for (given, _) in blocks.into_iter().flatten() {
        if let Err(error) = allocator.free(given, 0) {
            fail(error);
        }
    }
    ReplayRow {
        name: allocator.name(),
        peak_live_bytes: peak_live,
        peak_physical_bytes: physical,
        stranded_bytes: stranded,
        allocate_p50_ns: allocating.at(0.5),
        allocate_p99_ns: allocating.at(0.99),
        allocate_p999_ns: allocating.at(0.999),
        free_p50_ns: freeing.at(0.5),
        free_p99_ns: freeing.at(0.99),
        free_p999_ns: freeing.at(0.999),
        failures,
        first_failure,
    }
}

fn print(outcome: &ReplayOutcome) {
    outcome.notes.iter().for_each(|note| say!("{note}"));
    for (number, trace) in outcome.traces.iter().enumerate() {
        if outcome.traces.len() > 1 {
            let gap = if number > 0 { "\n" } else { "" };
            say!("{gap}device {} of the trace", trace.trace_device);
        }
        print_trace(trace, &outcome.device);
    }
}

fn print_trace(outcome: &TraceOutcome, device: &str) {
    let paint = Paint::stdout();
    say!(
        "{}, {}, {}",
        count(outcome.allocations as usize, "allocation"),
        count(outcome.frees, "free"),
        count(outcome.streams as usize, "stream"),
    );
    for (number, what) in [
        (
            outcome.unmatched_frees,
            "of memory that the trace never allocated",
        ),
        (
            u64::from(outcome.held_blocks),
            "live before the trace began",
        ),
        (outcome.trace_failures, "failed in the trace, not replayed"),
    ] {
        if number > 0 {
            say!("{number} {what}");
        }
    }
    let device = format!("peak live {} on {device}", bytes(outcome.peak_live_bytes));
    say!("{}\n", clipped(&device, 80));
    let line = |cells: [&str; 8]| {
        let [name, physical, stranded, rest @ ..] = cells;
        let mut line = format!("{name:<15}{physical:>10}{stranded:>10}");
        for cell in rest {
            line.push_str(&format!("{cell:>8}"));
        }
        line.truncate(line.trim_end().len());
        line
    };
    let head = line(["", "", "", "ALLOC", "", "", "FREE", ""]);
    say!("{}", paint.strong(&head));
    let head = line([
        "ALLOCATOR",
        "PHYSICAL",
        "STRANDED",
        "P50",
        "P99",
        "P99.9",
        "P50",
        "FAILED",
    ]);
    say!("{}", paint.strong(&head));
    for row in &outcome.allocators {
        say!(
            "{}",
            line([
                row.name,
                &bytes(row.peak_physical_bytes),
                &bytes(row.stranded_bytes),
                &latency(row.allocate_p50_ns),
                &latency(row.allocate_p99_ns),
                &latency(row.allocate_p999_ns),
                &latency(row.free_p50_ns),
                &row.failures.to_string(),
            ])
        );
    }
    for row in &outcome.allocators {
        if let Some(error) = &row.first_failure {
            say!("\nfirst failure of {}: {error}", row.name);
        }
    }
}

/// A random generator for tests that prints its seed.
#[cfg(test)]
fn random() -> fastrand::Rng {
    fercuda_trials::rng()
}
