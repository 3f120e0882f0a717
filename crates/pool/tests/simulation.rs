//! Comparison of the pool with the shadow model on random programs, repeatable by their seed.
mod model;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use fercuda_pool::ReuseRule;
use fercuda_trials::{Budget, Work, corpus, seeds};
use model::{Counts, Kind, Op, World, run_program};
use proptest::prelude::*;

const SIMULATOR: Work = Work {
    name: "pool-simulator",
    least: 100_000,
    ci_seconds: 20,
    soak: 100_000_000,
};
/// Operations of one program; then another begins, in an empty pool.
const PROGRAM: u64 = 1_000_000;
/// Miri takes some hundred times as long.
const SLOWER: u64 = if cfg!(miri) { 100 } else { 1 };
const AUDIT: u64 = 10_000 / SLOWER;

/// Programs of one thread, until the budget of all threads is spent.
fn simulate(seed: u64, budget: &Budget, all: &AtomicU64) -> Result<Counts, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut done, mut counts) = (0_u64, Counts::default());
    while budget.has_left(all.load(Relaxed)) {
        // Every other program uses slabs.
        let is_odd = done / PROGRAM % 2 == 1;
        let kind = if is_odd { Kind::Slabs } else { Kind::Pieces };
        let mut world = World::new(kind);
        loop {
            let (op, at) = (Op::from_bits(random.u64(..)), done);
            let failed = |e| format!("FERCUDA_SEED={seed}: operation {at}, {op:?}: {e}");
            world.step(op).map_err(failed)?;
            done += 1;
            if done.is_multiple_of(AUDIT) {
                world.audit().map_err(failed)?;
                all.fetch_add(AUDIT, Relaxed);
                if done.is_multiple_of(PROGRAM) || !budget.has_left(all.load(Relaxed)) {
                    break;
                }
            }
        }
        counts.add(&world.counts);
        world
            .end()
            .map_err(|e| format!("FERCUDA_SEED={seed}: at the end of operation {done}: {e}"))?;
    }
    Ok(counts)
}

/// Programs that failed once, or that a fuzzer begins with.
#[test]
fn kept_programs_keep_to_the_shadow_model() {
    for program in corpus(env!("CARGO_MANIFEST_DIR"), "pool-programs") {
        assert_eq!(run_program(&program), Ok(()));
    }
}

/// On all cores; each thread has the next seed.
#[test]
fn random_programs_on_all_cores_keep_to_the_shadow_model() {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    for (name, seed) in seeds(env!("CARGO_MANIFEST_DIR"), SIMULATOR) {
        let (budget, begun) = (Budget::begin(SIMULATOR), Instant::now());
        let all = AtomicU64::new(0);
        let counts = std::thread::scope(|scope| {
            let (all, budget) = (&all, &budget);
            let each = |n| scope.spawn(move || simulate(seed.wrapping_add(n), budget, all));
            let running: Vec<_> = (0..threads).map(each).collect();
            let mut counts = Counts::default();
            for thread in running {
                let found = thread.join().expect("a thread panicked");
                counts.add(&found.unwrap_or_else(|error| panic!("{name}: {error}")));
            }
            counts
        });
        let (seconds, done) = (begun.elapsed().as_secs_f64(), all.load(Relaxed));
        let rate = done as f64 / seconds / 1e6;
        println!("{name}: {done} operations in {seconds:.0} s, {rate:.2} M/s: {counts:?}");
        assert!(done >= SIMULATOR.least / SLOWER);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200 / SLOWER as u32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_block_is_reused_before_its_uses_are_over(
        bits in prop::collection::vec(any::<u64>(), 1..600),
        kind in prop_oneof![Just(Kind::Pieces), Just(Kind::Slabs)],
    ) {
        let ops: Vec<Op> = bits.iter().map(|bits| Op::from_bits(*bits)).collect();
        let mut world = World::new(kind);
        for (n, op) in ops.iter().enumerate() {
            world.step(*op).map_err(|e| TestCaseError::fail(format!("{e} at {n}: {op:?} of {ops:?}")))?;
            world.audit().map_err(TestCaseError::fail)?;
        }
        world.end().map_err(TestCaseError::fail)?;
    }
}

#[test]
#[cfg_attr(
    miri,
    ignore = "a violation is rare: it takes up to two million operations"
)]
fn each_broken_rule_of_reuse_is_detected() {
    for rule in [
        ReuseRule::OthersWait,
        ReuseRule::WaitsHaveAnEnd,
        ReuseRule::FencesHaveAnEnd,
        ReuseRule::AnywhereWaits,
        ReuseRule::ElsewhereIsLost,
    ] {
        let mut world = World::new(Kind::Pieces);
        world.break_rule(rule);
        let mut random = fastrand::Rng::with_seed(1);
        let seen = (0..2_000_000).find_map(|_| world.step(Op::from_bits(random.u64(..))).err());
        let seen =
            seen.unwrap_or_else(|| panic!("{rule:?} is broken, and no violation was detected"));
        assert!(seen.contains("too early"), "{rule:?}: {seen}");
    }
}

#[test]
fn memory_in_thread_caches_is_available_to_requests_that_find_nothing_else() {
    let mut world = World::new(Kind::Pieces);
    let allocate = |stream, bytes| Op::Allocate {
        stream,
        bytes,
        align: 512,
        tenant: 0,
    };
    // Most of the device, freed in one stream: some of it is in the thread cache.
    let megabytes = 22;
    let fill = [allocate(Some(0), 1 << 20)].repeat(megabytes);
    let free = [Op::Free {
        which: 0,
        stream: Some(0),
    }]
    .repeat(megabytes);
    for op in fill.into_iter().chain(free) {
        world.step(op).expect("sound");
    }
    world.step(allocate(None, 22 << 20)).expect("sound");
    assert_eq!((world.counts.allocated, world.counts.exhausted), (23, 0));
    world.end().expect("sound");
}
