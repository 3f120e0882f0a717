//! `fercuda bench alloc`: what an allocation costs, ours beside the driver's,
//! measured in one run.
//!
//! Invariant: what stands beside each other was measured on the same device in
//! the same process. A figure is no verdict: the exit status does not depend on
//! it.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use fastrand::Rng;
use fercuda_pool::{AllocLayout, BlockAllocator, SetId, Span, UNIT_BYTES};
use serde::Serialize;

use crate::memory::{Allocator, Latencies, Machine, Ordered, Plain, Pooled, latency};
use crate::out::say;
use crate::run::DeviceKind;
use crate::terminal::{Paint, clipped};

/// Measures what we do to be fast, beside what it replaces.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Alloc(Alloc),
}

/// What a pair of allocation and free costs, and a growth.
#[derive(clap::Args)]
#[command(after_help = "\
Sizes are random up to 1 MiB, half of them holes where holes are counted. Pairs
of less than a microsecond are timed 64 at a time, so that reading the clock
does not count: their tails are those of means. The driver's are timed singly.
One run each; repeat it before you quote it, and quote the ratio.

The targets are for an H200 and this project's own; - where there is none. Rows
of the driver's calls go to whatever the loader finds: under `fercuda run` they
go through the hook, which is how its cost is measured.

Exit status: 0 when measured, 1 when the device failed.

Examples:
  fercuda bench alloc
  fercuda bench alloc --device soft
  fercuda run -- fercuda bench alloc --device gpu     # through the hook
  fercuda bench alloc --json | python3 -m json.tool")]
struct Alloc {
    /// Which device; as FERCUDA_DEVICE says, or auto, without this.
    #[arg(long, value_enum)]
    device: Option<DeviceKind>,
    /// How many threads allocate at once in the rows that say so.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Samples of each row; fewer are quicker and say less.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    samples: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Outcome {
    device: String,
    driver: String,
    samples: u32,
    threads: u16,
    rows: Vec<Row>,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    p50_ns: Option<f64>,
    p99_ns: Option<f64>,
    p999_ns: Option<f64>,
    /// Of all threads together.
    pairs_per_second: Option<f64>,
    target: &'static str,
}

impl Row {
    fn of(what: impl Into<String>, mut latencies: Latencies, target: &'static str) -> Row {
        Row {
            what: what.into(),
            p50_ns: latencies.at(0.5),
            p99_ns: latencies.at(0.99),
            p999_ns: latencies.at(0.999),
            pairs_per_second: None,
            target,
        }
    }
}

/// Pairs in a sample of what takes less than a microsecond.
const BATCH: usize = 64;
/// Sizes of growth.
const GROWTHS: [(u64, &str); 3] = [
    (2 << 20, "2 MiB"),
    (32 << 20, "32 MiB"),
    (256 << 20, "256 MiB"),
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let What::Alloc(args) = &args.what;
    let threads = usize::from(args.threads);
    let kind = args.device.map_or_else(DeviceKind::from_env, Ok)?;
    let machine = Machine::open(kind.into(), threads)?;
    let samples = args.samples as usize;
    let mut rows = Vec::new();
    for (holes, what, target) in [
        (
            4 << 10,
            "core: take and give, 4k holes",
            "50 ns, p99.9 500 ns",
        ),
        (64 << 10, "core: take and give, 64k holes", "as with 4k"),
    ] {
        rows.push(Row::of(what, core(holes, samples)?, target));
    }
    {
        let pool = Pooled::new(&machine)?;
        let warm = pairs(&pool, 0, BATCH, samples.min(50))?;
        drop(warm);
        rows.push(Row::of(
            "pool: pair in a stream",
            pairs(&pool, 0, BATCH, samples)?,
            "200 ns",
        ));
        let plain = timed(BATCH, samples, |bytes| pool.plain_pair(bytes))?;
        rows.push(Row::of("pool: pair in no stream", plain, "1 us"));
        rows.push(together(
            &machine,
            &pool,
            threads,
            "5 M pairs/s, p99 2 us",
            BATCH,
        )?);
    }
    {
        let ordered = Ordered::new(&machine)?;
        let what = "cuMemAllocAsync + cuMemFreeAsync";
        rows.push(Row::of(
            what,
            pairs(&ordered, 0, 1, samples)?,
            "200 ns under the hook",
        ));
        rows.push(together(&machine, &ordered, threads, "-", 1)?);
    }
    {
        let plain = Plain::new(&machine);
        let few = samples.min(1000);
        rows.push(Row::of(
            "cuMemAlloc + cuMemFree",
            pairs(&plain, 0, 1, few)?,
            "1 us under the hook",
        ));
    }
    for (bytes, size) in GROWTHS {
        rows.push(Row::of(
            format!("pool: growth by {size}, and back"),
            growth(&Pooled::new(&machine)?, bytes, samples.min(50))?,
            "-",
        ));
        let plain = Plain::new(&machine);
        let mut latencies = Latencies::default();
        for _ in 0..samples.min(50) {
            let begun = Instant::now();
            let block = plain
                .allocate(bytes, 0)
                .map_err(|error| failed(&plain, &error))?;
            plain
                .free(block, 0)
                .map_err(|error| failed(&plain, &error))?;
            latencies.push(begun.elapsed());
        }
        rows.push(Row::of(
            format!("cuMemAlloc + cuMemFree of {size}"),
            latencies,
            "-",
        ));
    }
    let outcome = Outcome {
        device: machine.name.clone(),
        driver: machine.origin.clone(),
        samples: args.samples,
        threads: args.threads,
        rows,
    };
    if args.json {
        say!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print(&outcome);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(outcome: &Outcome) {
    let paint = Paint::stdout();
    say!(
        "{}",
        clipped(&format!("{} by {}", outcome.device, outcome.driver), 80)
    );
    let head = format!(
        "{:<33}{:>8}{:>8}{:>8}  {}",
        "", "P50", "P99", "P99.9", "TARGET"
    );
    say!("{}", paint.strong(&head));
    for row in &outcome.rows {
        let line = format!(
            "{:<33}{:>8}{:>8}{:>8}  {}",
            clipped(&row.what, 33),
            latency(row.p50_ns),
            latency(row.p99_ns),
            latency(row.p999_ns),
            row.target
        );
        say!("{}", line.trim_end());
        if let Some(rate) = row.pairs_per_second {
            say!(
                "{:<33}{:>8}",
                "  together",
                format!("{:.2} M/s", rate / 1e6)
            );
        }
    }
}

fn random_bytes(random: &mut Rng) -> u64 {
    random.u64(1..=4096) * UNIT_BYTES
}

/// Draws the sizes of a batch, which is no part of what is measured.
fn draw(sizes: &mut [u64], random: &mut Rng) {
    sizes.fill_with(|| random_bytes(random));
}

fn failed(allocator: &dyn Allocator, error: &str) -> anyhow::Error {
    anyhow!(
        "{} failed while it was measured: {error}\n\
         try: with nothing else on the device; for the software device FERCUDA_SOFT_MEMORY=16GiB",
        allocator.name()
    )
}

/// So many samples of `batch` pairs each, of random sizes in bytes.
fn timed(
    batch: usize,
    samples: usize,
    mut pair: impl FnMut(u64) -> Result<(), String>,
) -> Result<Latencies> {
    let mut random = Rng::with_seed(1);
    let mut sizes = vec![0; batch];
    let mut latencies = Latencies::default();
    for _ in 0..samples {
        draw(&mut sizes, &mut random);
        let begun = Instant::now();
        for bytes in &sizes {
            pair(*bytes).map_err(|error| anyhow!("{error}"))?;
        }
        latencies.push_mean(begun.elapsed(), batch);
    }
    Ok(latencies)
}

fn pairs(
    allocator: &dyn Allocator,
    stream: usize,
    batch: usize,
    samples: usize,
) -> Result<Latencies> {
    timed(batch, samples, |bytes| {
        let block = allocator.allocate(bytes, stream)?;
        allocator.free(black_box(block), stream)
    })
    .map_err(|error| failed(allocator, &error.to_string()))
}

/// The bookkeeping alone, among so many holes.
fn core(holes: usize, samples: usize) -> Result<Latencies> {
    let mut random = Rng::with_seed(1);
    let mut blocks = BlockAllocator::new();
    let span = Span {
        address: 1 << 40,
        bytes: 1 << 46,
    };
    blocks.add(span).map_err(|error| anyhow!("{error:?}"))?;
    let take = |blocks: &mut BlockAllocator, bytes| {
        let want = AllocLayout::new(bytes, 512);
        blocks
            .take(SetId::READY, want, 0)
            .ok_or_else(|| "no block is left".to_owned())
    };
    let mut every_other = Vec::new();
    for number in 0..2 * holes {
        let bytes = random_bytes(&mut random);
        let id = take(&mut blocks, bytes).map_err(|error| anyhow!("{error}"))?;
        if number % 2 == 0 {
            every_other.push(id);
        }
    }
    Rng::with_seed(2).shuffle(&mut every_other);
    for id in every_other {
        blocks.give(id, SetId::READY, 0);
    }
    timed(BATCH, samples, |bytes| {
        let id = take(&mut blocks, bytes)?;
        blocks.give(black_box(id), SetId::READY, 0);
        Ok(())
    })
}

/// All threads at once, each in a stream of its own.
fn together(
    machine: &Machine,
    allocator: &dyn Allocator,
    threads: usize,
    target: &'static str,
    batch: usize,
) -> Result<Row> {
    const LASTING: Duration = Duration::from_millis(300);
    let start = Barrier::new(threads);
    let work = |stream: usize| -> Result<(Latencies, usize, Duration)> {
        machine.enter()?;
        let mut latencies = Latencies::default();
        let mut random = Rng::with_seed(stream as u64);
        let mut sizes = vec![0; batch];
        let mut count = 0;
        start.wait();
        let begun = Instant::now();
        while begun.elapsed() < LASTING {
            draw(&mut sizes, &mut random);
            let batch_begun = Instant::now();
            for bytes in &sizes {
                let done = allocator
                    .allocate(*bytes, stream)
                    .and_then(|block| allocator.free(black_box(block), stream));
                done.map_err(|error| failed(allocator, &error))?;
            }
            latencies.push_mean(batch_begun.elapsed(), batch);
            count += batch;
        }
        Ok((latencies, count, begun.elapsed()))
    };
    let mut latencies = Latencies::default();
    let mut rate = 0.0;
    let done: Vec<_> = std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..threads)
            .map(|stream| scope.spawn(move || work(stream)))
            .collect();
        all.into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect()
    });
    for one in done {
        let (own, count, took) = one.map_err(|_| anyhow!("a thread panicked"))??;
        latencies.append(own);
        rate += count as f64 / took.as_secs_f64();
    }
    let what = format!("{}: {threads} threads", allocator.name());
    let mut row = Row::of(what, latencies, target);
    row.pairs_per_second = Some(rate);
    Ok(row)
}

/// Memory that is not there yet, and goes back to the driver after.
fn growth(pool: &Pooled<'_>, bytes: u64, samples: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..samples {
        let begun = Instant::now();
        let block = pool
            .allocate(bytes, 0)
            .map_err(|error| failed(pool, &error))?;
        pool.free(block, 0).map_err(|error| failed(pool, &error))?;
        pool.trim();
        latencies.push(begun.elapsed());
    }
    Ok(latencies)
}
