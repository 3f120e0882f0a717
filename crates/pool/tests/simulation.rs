//! The pool compared with the shadow model: random programs, reproducible by their seed.
mod model;

use fercuda_pool::ReuseRule;
use model::{Kind, Op, World};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
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
