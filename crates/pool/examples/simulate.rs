//! Random programs on the pool and the shadow model, on all cores, for as many operations as given.
//!
//! `cargo run --release -p fercuda-pool --example simulate -- [OPERATIONS] [SEED]` Without a number
//! of operations, FERCUDA_SIM_OPS is used, else a hundred million. Each thread has the next seed.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

#[path = "../tests/model/mod.rs"]
mod model;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use model::{Counts, Kind, Op, World};

const OPERATIONS: u64 = 100_000_000;
/// Operations per program; then another begins, in an empty pool.
const PROGRAM: u64 = 1_000_000;
const AUDIT: u64 = 10_000;

/// One thread's programs.
fn run(seed: u64, operations: u64, all: &AtomicU64) -> Result<Counts, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut done, mut counts) = (0, Counts::default());
    while done < operations {
        // Every other program uses slabs.
        let is_odd = done / PROGRAM % 2 == 1;
        let kind = if is_odd { Kind::Slabs } else { Kind::Pieces };
        let mut world = World::new(kind);
        let until = (done + PROGRAM).min(operations);
        while done < until {
            let (op, at) = (Op::from_bits(random.u64(..)), done);
            let failed = |e| format!("seed {seed}, operation {at}, {op:?}: {e}");
            world.step(op).map_err(failed)?;
            done += 1;
            if done % AUDIT == 0 {
                world.audit().map_err(failed)?;
                all.fetch_add(AUDIT, Relaxed);
            }
        }
        counts.add(&world.counts);
        world
            .end()
            .map_err(|e| format!("seed {seed}, at the end of operation {done}: {e}"))?;
    }
    Ok(counts)
}

fn main() -> Result<(), String> {
    let number = |text: String| {
        let number = text.parse();
        number.map_err(|_| format!("`{text}` is not a number of operations, nor a seed"))
    };
    let mut arguments = std::env::args().skip(1);
    let operations = arguments.next().or(std::env::var("FERCUDA_SIM_OPS").ok());
    let operations = operations.map_or(Ok(OPERATIONS), number)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = arguments.next().map_or(
        Ok(now.map_or(1, |now| now.as_nanos() as u64 / 1_000_000)),
        number,
    )?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    println!("{operations} operations, seed {seed}, {threads} threads");
    let begun = Instant::now();
    let all = AtomicU64::new(0);
    let counts = std::thread::scope(|scope| {
        let all = &all;
        let share = operations.div_ceil(threads);
        let each = |n| scope.spawn(move || run(seed + n, share, all));
        let running: Vec<_> = (0..threads).map(each).collect();
        let mut counts = Counts::default();
        for thread in running {
            let done = thread.join().map_err(|_| "a thread panicked".to_owned())?;
            counts.add(&done?);
        }
        Ok::<_, String>(counts)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let done = all.load(Relaxed);
    let rate = done as f64 / seconds / 1e6;
    println!("{done} done in {seconds:.0} s, {rate:.2} M/s: {counts:?}");
    Ok(())
}
