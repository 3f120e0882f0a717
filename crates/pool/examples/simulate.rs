//! Random programs on the pool and the shadow, for as long as one likes.
//!
//! `cargo run --release -p fercuda-pool --example simulate -- [OPERATIONS] [SEED]`
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

#[path = "../tests/model/mod.rs"]
mod model;

use std::time::{Instant, SystemTime};

use model::{Op, World};

/// Operations of one program; then another begins, in an empty pool.
const PROGRAM: u64 = 1_000_000;
const AUDIT: u64 = 10_000;

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| match arguments.next() {
        Some(text) => text.parse().map_err(|_| format!("`{text}` is no number")),
        None => Ok(default),
    };
    let operations = number(10_000_000)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = number(now.map_or(1, |now| now.as_nanos() as u64))?;
    println!("{operations} operations, seed {seed}");
    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut done = 0;
    while done < operations {
        let mut world = World::new();
        let until = (done + PROGRAM).min(operations);
        while done < until {
            let (op, at) = (Op::from_bits(random.u64(..)), done);
            let failed = |e| format!("seed {seed}, operation {at}, {op:?}: {e}");
            world.step(op).map_err(failed)?;
            done += 1;
            if done % AUDIT == 0 {
                world.audit().map_err(failed)?;
            }
        }
        let counts = world.counts;
        world
            .end()
            .map_err(|e| format!("seed {seed}, at the end of operation {done}: {e}"))?;
        let rate = done as f64 / begun.elapsed().as_secs_f64() / 1e6;
        println!("{done} done, {rate:.2} M/s: {counts:?}");
    }
    Ok(())
}
