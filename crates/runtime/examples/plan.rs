//! Measurement of the time and the waste of plans: `cargo run --release -p fercuda-runtime
//! --example plan
//! [SEED]`.
#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::time::Instant;

use fastrand::Rng;
use fercuda_runtime::{Need, Plan, PlanError};

const COUNT: u32 = 10_000;

/// Sizes as tensors have them: from 256 bytes to 32 MiB, few of them large.
fn bytes(random: &mut Rng) -> u64 {
    256 << (random.u32(0..8) + random.u32(0..11))
}

fn need(bytes: u64, from: u32, until: u32) -> Need {
    Need {
        bytes,
        align_bytes: 256,
        from,
        until,
    }
}

/// Kept from a forward step to the backward one that mirrors it, with scratch memory of each step.
fn training(random: &mut Rng) -> Vec<Need> {
    let steps = COUNT / 2;
    let kept = (0..steps).map(|n| need(bytes(random), n, 2 * steps - n));
    let mut all: Vec<Need> = kept.collect();
    all.extend((0..steps).map(|_| {
        let from = random.u32(0..2 * steps);
        need(bytes(random), from, from + 1 + random.u32(0..3))
    }));
    all
}

/// Each is needed by the next few steps.
fn inference(random: &mut Rng) -> Vec<Need> {
    let of = |n: u32, random: &mut Rng| need(bytes(random), n, n + 1 + random.u32(0..8));
    (0..COUNT).map(|n| of(n, random)).collect()
}

/// From anywhere to anywhere.
fn anyhow(random: &mut Rng) -> Vec<Need> {
    let mut any = || {
        let (a, b) = (random.u32(0..COUNT), random.u32(0..COUNT));
        need(bytes(random), a.min(b), a.max(b) + 1)
    };
    (0..COUNT).map(|_| any()).collect()
}

/// All at once.
fn together(random: &mut Rng) -> Vec<Need> {
    (0..COUNT).map(|_| need(bytes(random), 0, 1)).collect()
}

fn main() -> Result<(), PlanError> {
    let named = std::env::args().nth(1).and_then(|seed| seed.parse().ok());
    let seed = named.unwrap_or_else(|| fastrand::u64(..));
    let mut random = Rng::with_seed(seed);
    println!("{COUNT} needs, seed {seed}; waste is the arena's excess over the peak of live bytes");
    println!("| needs | ms, median of 5 | arena, MiB | waste |");
    println!("|---|---|---|---|");
    type Make = fn(&mut Rng) -> Vec<Need>;
    let makes: [(&str, Make); 4] = [
        ("training", training),
        ("inference", inference),
        ("from anywhere to anywhere", anyhow),
        ("all at once", together),
    ];
    for (name, make) in makes {
        let needs = make(&mut random);
        let mut times = Vec::new();
        let mut plan = Plan::of(&needs)?;
        for _ in 0..5 {
            let begun = Instant::now();
            plan = Plan::of(std::hint::black_box(&needs))?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let waste = (plan.bytes() as f64 / plan.floor_bytes() as f64 - 1.0) * 100.0;
        println!(
            "| {name} | {:.1} | {} | {waste:.2} % |",
            times[2],
            plan.bytes() >> 20
        );
    }
    Ok(())
}
