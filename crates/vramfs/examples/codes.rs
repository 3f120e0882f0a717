//! Throughput and latency benchmark of the error-correcting code's kernels.
//!
//! `cargo run --release -p fercuda-vramfs --example codes -- [BLOCKS]`, with `FERCUDA_DEVICE=gpu`
//! on a GPU. The default is 16384 blocks, 2 GiB of random data. Prints bytes of data per second, by
//! the host's clock from before a launch until its completion is observed; then the latency of
//! requests of 4 KiB and 1 MiB, by one thread and by several, each with a stream of its own.

#![expect(clippy::print_stdout, reason = "it is for people to read")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, Cuda, Stream};
use fercuda_vramfs::layout::{DATA_BYTES, DATA_ROWS, PAGE_BYTES, ROW_BYTES};
use fercuda_vramfs::{BlockWork, Blocks, Copier, Identity, Kernels, Mover, RowLocation, Worker};

/// Maximum number of blocks in one call of a worker.
const SLOTS: usize = 2048;
/// Blocks of a large request.
const LARGE: usize = 8;
const THREADS: [usize; 2] = [1, 16];
/// Random blocks that a thread cycles through, one in each request.
const RANDOM_BLOCKS: usize = 256;
const DURATION: Duration = Duration::from_millis(300);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let count = match std::env::args().nth(1) {
        Some(count) => count.parse::<usize>()?.max(1),
        None => 16384,
    };
    let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    let kernels = Kernels::load(&context)?;
    let slots = count.min(SLOTS);
    let mut worker = Worker::new(&kernels, slots, Stream::new(&context)?)?;
    let blocks = Blocks::new(&context, count, count, true)?;
    println!("device   {}", context.device());
    println!(
        "blocks   {count}, {} MiB of data",
        (count * DATA_BYTES) >> 20
    );
    let identities: Vec<Identity> = (0..count)
        .map(|number| std::array::from_fn(|at| (number * (at + 1)) as u64))
        .collect();
    let works = |rows: usize| -> Vec<BlockWork<'_>> {
        let of = |(block, identity)| BlockWork {
            block,
            rows: 0..rows,
            place: RowLocation::Staging(block % slots * DATA_BYTES),
            identity: Some(identity),
        };
        identities.iter().enumerate().map(of).collect()
    };
    let mut random = fastrand::Rng::new();
    for part in works(DATA_ROWS).chunks(slots) {
        random.fill(worker.data_mut());
        worker.encode(&blocks, part)?;
    }
    let in_place = works(0);
    let numbers: Vec<u32> = (0..count as u32).collect();
    let mut worst = 0;
    for (what, each) in [
        ("scan", count),
        ("refresh", count),
        ("verify", slots),
        ("encode", slots),
    ] {
        let mut times = Vec::new();
        for _ in 0..20 {
            for part in in_place.chunks(each) {
                let began = Instant::now();
                let wrong = match what {
                    "scan" => worker.scan(&blocks, &numbers)?.len(),
                    "refresh" => worker.refresh(&blocks, &numbers)?.len(),
                    "verify" => wrong(worker.verify(&blocks, part)?),
                    _ => wrong(worker.encode(&blocks, part)?),
                };
                worst = worst.max(wrong);
                if part.len() == each {
                    times.push(began.elapsed().as_secs_f64());
                }
            }
        }
        times.sort_by(f64::total_cmp);
        let rate = |time: f64| (each * DATA_BYTES) as f64 / time / 1e9;
        println!(
            "{what:8} {each} at once: median {:9.1} us, {:7.1} GB/s; best {:7.1} GB/s",
            times[times.len() / 2] * 1e6,
            rate(times[times.len() / 2]),
            rate(times[0])
        );
    }
    let all = RequestBenchmark {
        kernels: &kernels,
        mover: Mover::load(&context)?,
        blocks: &blocks,
        identities: &identities,
    };
    for threads in THREADS.into_iter().filter(|it| count >= it * LARGE) {
        for what in ["fetch", "read", "check", "put", "update", "encode"] {
            for large in [false, true] {
                if !matches!((what, large), ("encode", false) | ("update", true)) {
                    all.measure(what, large, threads)?;
                }
            }
        }
    }
    match worst {
        0 => Ok(()),
        _ => Err(format!("{worst} blocks have errors").into()),
    }
}

/// Latency of a filesystem's requests.
struct RequestBenchmark<'a> {
    kernels: &'a Kernels,
    mover: Mover,
    blocks: &'a Blocks,
    identities: &'a [Identity],
}

impl RequestBenchmark<'_> {
    /// Repeats a request for four rows of one random block, or for eight whole blocks, on `threads`
    /// threads with separate blocks.
    fn measure(&self, what: &str, large: bool, threads: usize) -> Result<()> {
        let (blocks, rows) = match large {
            true => (LARGE, 0..DATA_ROWS),
            false => (1, 0..PAGE_BYTES / ROW_BYTES),
        };
        let bytes = blocks * rows.len() * ROW_BYTES;
        let ready = Barrier::new(threads);
        let one = |thread: usize| -> std::result::Result<Vec<f64>, String> {
            let to_text = |error: fercuda_vramfs::Error| error.to_string();
            let stream = || Stream::new(self.blocks.context()).map_err(|it| it.to_string());
            let mut worker = Worker::new(self.kernels, LARGE, stream()?).map_err(to_text)?;
            let mut copier = Copier::new(LARGE, stream()?, Some(&self.mover)).map_err(to_text)?;
            let mut random = fastrand::Rng::with_seed(thread as u64);
            let each = self.identities.len() / threads;
            let of = |first: usize, slot: usize| BlockWork {
                block: first,
                rows: rows.clone(),
                place: RowLocation::Staging(slot * rows.len() * ROW_BYTES),
                identity: Some(&self.identities[first]),
            };
            let all: Vec<Vec<BlockWork<'_>>> = match large {
                true => vec![(0..blocks).map(|at| of(thread * LARGE + at, at)).collect()],
                false => (0..RANDOM_BLOCKS)
                    .map(|at| vec![of(thread * each + random.usize(..each), at)])
                    .collect(),
            };
            // So that `put`, which does not update the code, writes what the blocks have.
            for work in &all {
                copier.fetch(self.blocks, work).map_err(to_text)?;
            }
            ready.wait();
            let (begin, mut times) = (Instant::now(), Vec::new());
            for work in all.iter().cycle() {
                if begin.elapsed() >= DURATION && !times.is_empty() {
                    break;
                }
                let began = Instant::now();
                let wrong = match what {
                    "fetch" => copier.fetch(self.blocks, work).map(|()| 0),
                    "put" => copier.put(self.blocks, work).map(|()| 0),
                    "read" => worker.read(self.blocks, work).map(wrong),
                    "check" => worker.check(self.blocks, work).map(wrong),
                    "update" => worker.update(self.blocks, work).map(wrong),
                    _ => worker.encode_anew(self.blocks, work).map(wrong),
                };
                times.push(began.elapsed().as_secs_f64());
                match wrong.map_err(to_text)? {
                    0 => {}
                    wrong => return Err(format!("{what}: {wrong} blocks have errors")),
                }
            }
            Ok(times)
        };
        let mut times = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|it| scope.spawn(move || one(it)))
                .collect();
            let mut times = Vec::new();
            for each in all {
                times.extend(each.join().map_err(|_| "a thread has panicked")??);
            }
            Result::Ok(times)
        })?;
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        println!(
            "{what:8} {:>5} KiB, {threads:2} threads: median {:7.1} us, {:6.2} GB/s together",
            bytes >> 10,
            times[times.len() / 2] * 1e6,
            (threads * bytes) as f64 / mean / 1e9
        );
        Ok(())
    }
}

fn wrong(outcomes: &[fercuda_vramfs::BlockOutcome]) -> usize {
    outcomes.iter().filter(|it| !it.is_clean()).count()
}
