//! `fercuda bench`: latency of allocations by our pool and by the driver, measured in one
//! run; other libraries (`frameworks`), and language models (`llm`).
//!
//! Invariant: rows that are compared were measured on the same device in the same process. The
//! exit status does not depend on the measured values.

mod frameworks;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use fastrand::Rng;
use fercuda_pool::{AllocLayout, BlockAllocator, SetId, Span, UNIT_BYTES};
use serde::Serialize;

use crate::llm::{self, bench::ModelBenchArgs, perplexity::PerplexityArgs};
use crate::memory::{
    Allocator, AsyncAllocator, DeviceUnderTest, Latencies, PoolAllocator, SyncAllocator, latency,
};
use crate::out::{say, step};
use crate::run::DeviceKind;
use crate::terminal::{Paint, clipped};
use frameworks::FrameworkBenchArgs;

/// Measures the pool against what it replaces, other libraries on it, and language models.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(clap::Subcommand)]
enum BenchCommand {
    Alloc(AllocArgs),
    Model(ModelBenchArgs),
    Perplexity(PerplexityArgs),
    Frameworks(FrameworkBenchArgs),
}

/// Measures the latency of an allocation and its free, and of pool growth.
#[derive(clap::Args)]
#[command(after_help = "\
Sizes are random, up to 1 MiB. For \"core\" rows, half of the blocks are holes.
Pairs that take less than a microsecond are timed in batches of 64, to amortise
the clock read: their percentiles are of batch means. The driver's calls are
timed one by one. This is one run: repeat it before you quote it, and quote the
ratio.

The targets are this project's own, for an H200; - means no target. The driver's
calls go to whatever library the loader finds: under `fercuda run` they go
through the hook, so that its overhead is measured.

Exit status: 0 when measured, 1 when the device failed.

Examples:
  fercuda bench alloc
  fercuda bench alloc --device soft
  fercuda run -- fercuda bench alloc --device gpu     # through the hook
  fercuda bench alloc --json | python3 -m json.tool")]
struct AllocArgs {
    /// Device to measure [default: FERCUDA_DEVICE, or auto].
    #[arg(long, value_enum)]
    device: Option<DeviceKind>,
    /// Threads that allocate at once in the multi-threaded rows.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Samples per row; fewer are faster and less precise.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    samples: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct BenchOutcome {
    device: String,
    driver: String,
    samples: u32,
    threads: u16,
    rows: Vec<BenchRow>,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct BenchRow {
    what: String,
    p50_ns: Option<f64>,
    p99_ns: Option<f64>,
    p999_ns: Option<f64>,
    /// Throughput of all threads together.
    pairs_per_second: Option<f64>,
    target: &'static str,
}

impl BenchRow {
    fn of(what: impl Into<String>, mut latencies: Latencies, target: &'static str) -> BenchRow {
        let what = what.into();
        step!("measured {what}");
        BenchRow {
            what,
            p50_ns: latencies.at(0.5),
            p99_ns: latencies.at(0.99),
            p999_ns: latencies.at(0.999),
            pairs_per_second: None,
            target,
        }
    }
}

/// Pairs per sample where a pair takes less than a microsecond.
const BATCH: usize = 64;
/// Sizes of pool growth.
const GROWTHS: [(u64, &str); 4] = [
    (2 << 20, "2 MiB"),
    (32 << 20, "32 MiB"),
    (256 << 20, "256 MiB"),
    (4 << 30, "4 GiB"),
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let args = match &args.what {
        BenchCommand::Alloc(args) => args,
        BenchCommand::Model(args) => return llm::bench::run(args),
        BenchCommand::Perplexity(args) => return llm::perplexity::run(args),
        BenchCommand::Frameworks(args) => return frameworks::run(args),
    };
    let threads = usize::from(args.threads);
    let kind = args.device.map_or_else(DeviceKind::from_env, Ok)?;
    let machine = DeviceUnderTest::open(kind.into(), threads)?;
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
        rows.push(BenchRow::of(what, core(holes, samples)?, target));
    }
    {
        let pool = PoolAllocator::new(&machine)?;
        let warm = pairs(&pool, 0, BATCH, samples.min(50))?;
        drop(warm);
        rows.push(BenchRow::of(
            "pool: pair in a stream",
            pairs(&pool, 0, BATCH, samples)?,
            "200 ns",
        ));
        let plain = timed(BATCH, samples, |bytes| pool.plain_pair(bytes))?;
        rows.push(BenchRow::of("pool: pair in no stream", plain, "1 us"));
        rows.push(together(
            &machine,
            &pool,
            threads,
            "5 M pairs/s, p99 2 us",
            BATCH,
        )?);
    }
    {
        let ordered = AsyncAllocator::new(&machine)?;
        let what = "cuMemAllocAsync + cuMemFreeAsync";
        rows.push(BenchRow::of(
            what,
            pairs(&ordered, 0, 1, samples)?,
            "200 ns under the hook",
        ));
        rows.push(together(&machine, &ordered, threads, "-", 1)?);
    }
    {
        let plain = SyncAllocator::new(&machine);
        let few = samples.min(1000);
        rows.push(BenchRow::of(
            "cuMemAlloc + cuMemFree",
            pairs(&plain, 0, 1, few)?,
            "1 us under the hook",
        ));
    }
    for (bytes, size) in GROWTHS {
        if bytes > machine.free_bytes() / 2 {
            step!("growth by {size} was left out: the device has not twice that free");
            continue;
        }
        rows.push(BenchRow::of(
            format!("pool: growth by {size}, and back"),
            growth(&PoolAllocator::new(&machine)?, bytes, samples.min(50))?,
            "-",
        ));
        let plain = SyncAllocator::new(&machine);
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
        rows.push(BenchRow::of(
            format!("cuMemAlloc + cuMemFree of {size}"),
            latencies,
            "-",
        ));
    }
    let outcome = BenchOutcome {
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

fn print(outcome: &BenchOutcome) {
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

/// Draws the sizes of a batch, outside of the timed section.
fn draw(sizes: &mut [u64], random: &mut Rng) {
    sizes.fill_with(|| random_bytes(random));
}

fn failed(allocator: &dyn Allocator, error: &str) -> anyhow::Error {
    anyhow!(
        "{} failed during the measurement: {error}\n\
         try: close other programs on the device; on the software device, set FERCUDA_SOFT_MEMORY=16GiB",
        allocator.name()
    )
}

/// Takes `samples` samples of `batch` pairs each, with random sizes in bytes.
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

/// The block allocator alone, with `holes` holes in its free lists.
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
            .ok_or_else(|| "no free block is large enough".to_owned())
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

/// All threads at once, each in its own stream.
fn together(
    machine: &DeviceUnderTest,
    allocator: &dyn Allocator,
    threads: usize,
    target: &'static str,
    batch: usize,
) -> Result<BenchRow> {
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
    let mut row = BenchRow::of(what, latencies, target);
    row.pairs_per_second = Some(rate);
    Ok(row)
}

/// Growth of the pool by memory that is then returned to the driver.
fn growth(pool: &PoolAllocator<'_>, bytes: u64, samples: usize) -> Result<Latencies> {
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
