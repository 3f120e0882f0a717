//! Host-side latency of an allocate/free pair among holes.
//!
//! `cargo bench -p fercuda-pool`. Nanoseconds per pair: median, 99th and 99.9th percentile of
//! batches of 64 pairs, so that reading the clock does not count; one core. Sizes are random up to
//! 1 MiB; half of the blocks were freed before, in random order, which leaves the holes.
#![expect(clippy::print_stdout, reason = "printing is what this program does")]

#[path = "../tests/idle/mod.rs"]
mod idle;

use std::hint::black_box;
use std::time::Instant;

use fastrand::Rng;
use fercuda_pool::{
    AllocLayout, AllocationRequest, BlockAllocator, DevicePool, GrowthRefused, MemoryBacking,
    MemoryBudget, PoolPlace, SetId, Span, StreamId, TenantId, UNIT_BYTES,
};
use idle::Idle;

const BATCH: usize = 64;
const BATCHES: usize = 20_000;

fn random_bytes(random: &mut Rng) -> u64 {
    random.u64(1..=4096) * UNIT_BYTES
}

/// Sorted nanoseconds per pair; `batch` runs the given number of pairs.
fn measure(mut batch: impl FnMut(usize)) -> Vec<f64> {
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let begun = Instant::now();
            batch(BATCH);
            begun.elapsed().as_secs_f64() * 1e9 / BATCH as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

fn print(what: &str, holes: usize, times: &[f64]) {
    let at = |part: f64| times[(part * (times.len() - 1) as f64) as usize];
    println!(
        "{what:<28} {holes:>7} holes  {:>7.1}  {:>7.1}  {:>7.1}",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn core(holes: usize) {
    let mut random = Rng::with_seed(1);
    let mut blocks = BlockAllocator::new();
    let span = Span {
        address: 1 << 40,
        bytes: 1 << 46,
    };
    blocks.add(span).expect("a range");
    let mut live: Vec<_> = (0..2 * holes)
        .map(|_| {
            blocks
                .take(
                    SetId::READY,
                    AllocLayout::new(random_bytes(&mut random), 512),
                    0,
                )
                .expect("there is room")
        })
        .collect();
    // Every other block, in random order.
    let mut gone: Vec<_> = live.iter().copied().step_by(2).collect();
    for n in (1..gone.len()).rev() {
        gone.swap(n, random.usize(..=n));
    }
    for id in gone {
        blocks.give(id, SetId::READY, 0);
    }
    live.clear();
    let times = measure(|n| {
        for _ in 0..n {
            let id = blocks.take(
                SetId::READY,
                AllocLayout::new(random_bytes(&mut random), 512),
                0,
            );
            blocks.give(black_box(id).expect("there is room"), SetId::READY, 0);
        }
    });
    print("core: take + give", holes, &times);
}

/// A backing with unlimited memory.
struct Endless(u64);

impl MemoryBacking for Endless {
    fn piece_bytes(&self) -> u64 {
        2 << 20
    }
    fn rounded(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(2 << 20)
    }
    fn new_bytes(&self, bytes: u64) -> u64 {
        bytes
    }
    fn site(&self, _: u64) -> Option<u64> {
        Some(self.0)
    }
    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        let address = self.0;
        self.0 += bytes;
        Ok(Span { address, bytes })
    }
    fn separable(&self, _: Span) -> Option<Span> {
        None
    }
    fn shrink(&mut self, _: Span) {}
    fn release(&mut self, _: u64) -> u64 {
        0
    }
}

/// Blocks of any size, or (`one`) of a single size.
fn pool(holes: usize, place: PoolPlace, one: bool, what: &str) {
    let mut random = Rng::with_seed(1);
    let pool = DevicePool::new(Endless(1 << 40), Idle, MemoryBudget::new(u64::MAX));
    let mut allocate = |one: bool| {
        let request = AllocationRequest {
            bytes: if one { 4096 } else { random_bytes(&mut random) },
            align_bytes: 512,
            place,
            tenant: TenantId(0),
            note: (),
        };
        pool.allocate(&request).expect("there is room").address
    };
    let live: Vec<u64> = (0..2 * holes).map(|_| allocate(false)).collect();
    for address in live.iter().step_by(2) {
        pool.free(*address, place).expect("it is live");
    }
    let times = measure(|n| {
        for _ in 0..n {
            let address = black_box(allocate(one));
            pool.free(address, place).expect("it is live");
        }
    });
    print(what, holes, &times);
}

/// Threads with a stream each, and blocks of ten sizes or of any, with a constant number live.
/// Prints the total throughput in pairs per second, and the latency of single pairs, the clock
/// included.
fn threads(count: u64, any: bool, live: usize) {
    const PAIRS: u64 = 200_000;
    let pool = DevicePool::new(Endless(1 << 40), Idle, MemoryBudget::new(u64::MAX));
    let pool = &pool;
    let work = move |n: u64, mut each: Option<&mut Vec<f64>>| {
        let place = PoolPlace::Stream(StreamId(n));
        let mut random = Rng::with_seed(n);
        let mut live = vec![0; live];
        let count = live.len();
        for _ in 0..PAIRS {
            let bits = random.u64(..);
            let request = AllocationRequest {
                bytes: if any {
                    (bits % 4096 + 1) * UNIT_BYTES
                } else {
                    512 << (bits % 10)
                },
                align_bytes: 512,
                place,
                tenant: TenantId(n as u16 % 4),
                note: (),
            };
            let begun = each.is_some().then(Instant::now);
            let address = pool.allocate(&request).expect("there is room").address;
            let gone = std::mem::replace(&mut live[(bits >> 32) as usize % count], address);
            if gone != 0 {
                pool.free(gone, place).expect("it is live");
            }
            if let (Some(times), Some(begun)) = (&mut each, begun) {
                times.push(begun.elapsed().as_secs_f64() * 1e9);
            }
        }
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..count {
            scope.spawn(move || work(n, None));
        }
    });
    let rate = (count * PAIRS) as f64 / begun.elapsed().as_secs_f64() / 1e6;
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        let timed = |n| {
            scope.spawn(move || {
                let mut times = Vec::with_capacity(PAIRS as usize);
                work(count + n, Some(&mut times));
                times
            })
        };
        let running: Vec<_> = (0..count).map(timed).collect();
        let done = running
            .into_iter()
            .flat_map(|thread| thread.join().expect("it measures"));
        done.collect()
    });
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[(part * (times.len() - 1) as f64) as usize];
    println!(
        "{count:>3} threads, {}, {live} live each {rate:>8.2} M pairs/s   {:.0} {:.0} {:.0} ns",
        if any { "any size" } else { "ten sizes" },
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn main() {
    println!("{:<47} median     99 %   99.9 %  ns per pair", "");
    for holes in [4 << 10, 16 << 10, 64 << 10] {
        core(holes);
    }
    for holes in [4 << 10, 16 << 10, 64 << 10] {
        let stream = PoolPlace::Stream(StreamId(7));
        pool(holes, stream, true, "pool, one size in a stream");
        pool(holes, stream, false, "pool, any size in a stream");
        pool(holes, PoolPlace::Anywhere, false, "pool, any size anywhere");
    }
    for (any, live) in [(false, 8), (true, 1), (true, 8)] {
        for count in [1, 4, 16, 32] {
            threads(count, any, live);
        }
    }
}
