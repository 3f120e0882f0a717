//! What the device takes to code blocks and to look at them.
//!
//! `cargo run --release -p fercuda-vramfs --example codes -- [BLOCKS]`, with `FERCUDA_DEVICE=gpu`
//! on a GPU. 16384 blocks otherwise, which are 2 GiB of data, all random; bytes of data a second,
//! by the host's clock from before a launch until its end was seen.

#![expect(clippy::print_stdout, reason = "it is for people to read")]

use std::time::Instant;

use fercuda_cuda::{Context, Cuda, Stream};
use fercuda_vramfs::layout::{DATA_BYTES, DATA_ROWS};
use fercuda_vramfs::{Blocks, Identity, Kernels, Place, Work, Worker};

/// Blocks that a worker takes at once.
const SLOTS: usize = 2048;

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
    let works = |rows: usize| -> Vec<Work<'_>> {
        let of = |(block, identity)| Work {
            block,
            rows: 0..rows,
            place: Place::Staging(block % slots * DATA_BYTES),
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
    match worst {
        0 => Ok(()),
        _ => Err(format!("{worst} blocks are not right").into()),
    }
}

fn wrong(outcomes: &[fercuda_vramfs::Outcome]) -> usize {
    outcomes.iter().filter(|it| !it.is_clean()).count()
}
