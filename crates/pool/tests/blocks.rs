//! The blocks compared with an interval map that knows nothing of free lists.
use std::collections::BTreeMap;

use fercuda_pool::{AllocLayout, BlockAllocator, BlockId, SetId, Span, UNIT_BYTES};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Op {
    Take {
        set: usize,
        bytes: u64,
        align_log: u32,
        epochs_ago: u64,
    },
    TakeBest {
        set: usize,
        bytes: u64,
    },
    Give {
        which: Index,
        set: usize,
    },
    GiveWithReady {
        which: Index,
        set: usize,
        most: u64,
    },
    GiveAgain {
        which: Index,
    },
    Move {
        from: usize,
        into: usize,
        epochs_ago: u64,
    },
    Join {
        set: usize,
    },
    Add {
        slot: u64,
        slots: u64,
    },
    Remove {
        slot: u64,
        slots: u64,
    },
    NextEpoch,
}

const SETS: usize = 4;
/// Memory is added and removed in multiples of this, so that ranges can be adjacent.
const SLOT_BYTES: u64 = 1 << 18;
const SLOTS: u64 = 24;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = prop_oneof![3 => 0..4096u64, 3 => 4096..200_000u64, 1 => 200_000..3_000_000u64];
    let op = prop_oneof![
        10 => (0..SETS, bytes, 0..17u32, 0..3u64).prop_map(|(set, bytes, align_log, epochs_ago)| {
            Op::Take { set, bytes, align_log, epochs_ago }
        }),
        2 => (1..SETS, 0..3_000_000u64).prop_map(|(set, bytes)| Op::TakeBest { set, bytes }),
        9 => (any::<Index>(), 0..SETS).prop_map(|(which, set)| Op::Give { which, set }),
        3 => (any::<Index>(), 1..SETS, prop_oneof![0..200_000u64, Just(u64::MAX)])
            .prop_map(|(which, set, most)| Op::GiveWithReady { which, set, most }),
        1 => any::<Index>().prop_map(|which| Op::GiveAgain { which }),
        2 => (1..SETS, 0..SETS, 0..3u64)
            .prop_map(|(from, into, epochs_ago)| Op::Move { from, into, epochs_ago }),
        1 => (1..SETS).prop_map(|set| Op::Join { set }),
        2 => (0..SLOTS, 1..8u64).prop_map(|(slot, slots)| Op::Add { slot, slots }),
        2 => (0..SLOTS, 1..8u64).prop_map(|(slot, slots)| Op::Remove { slot, slots }),
        2 => Just(Op::NextEpoch),
    ];
    prop::collection::vec(op, 1..400)
}

/// The state of a unit of memory: live, or free in a set since an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    LiveBlock,
    Free(usize, u64),
}

#[derive(Default)]
struct Model {
    units: BTreeMap<u64, Unit>,
}

impl Model {
    fn fill(&mut self, span: Span, unit: Option<Unit>) {
        for at in span.address / UNIT_BYTES..span.end() / UNIT_BYTES {
            match unit {
                Some(unit) => self.units.insert(at, unit),
                None => self.units.remove(&at),
            };
        }
    }

    fn all(&self, span: Span, is: impl Fn(Unit) -> bool) -> bool {
        (span.address / UNIT_BYTES..span.end() / UNIT_BYTES)
            .all(|at| self.units.get(&at).is_some_and(|unit| is(*unit)))
    }

    /// How many ready bytes are adjacent to a span, below and above.
    fn ready_beside(&self, span: Span) -> [u64; 2] {
        let is_ready = |at: &u64| matches!(self.units.get(at), Some(Unit::Free(0, _)));
        let below = (0..span.address / UNIT_BYTES).rev().take_while(is_ready);
        let above = (span.end() / UNIT_BYTES..).take_while(is_ready);
        [below.count(), above.count()].map(|units| units as u64 * UNIT_BYTES)
    }

    /// The longest run of free units of a set, in bytes.
    fn longest(&self, set: usize) -> u64 {
        let (mut longest, mut run, mut last) = (0, 0, None);
        for (at, unit) in &self.units {
            let free = matches!(unit, Unit::Free(in_set, _) if *in_set == set);
            run = if !free {
                0
            } else if last.map(|at: u64| at + 1) == Some(*at) {
                run + 1
            } else {
                1
            };
            last = Some(*at);
            longest = longest.max(run);
        }
        longest * UNIT_BYTES
    }

    fn bytes(&self, is: impl Fn(Unit) -> bool) -> u64 {
        self.units.values().filter(|unit| is(**unit)).count() as u64 * UNIT_BYTES
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]
    #[test]
    fn every_unit_is_where_an_interval_map_has_it(ops in ops()) {
        let (mut blocks, mut model) = (BlockAllocator::new(), Model::default());
        let sets = [SetId::READY, blocks.new_set(), blocks.new_set(), blocks.new_set()];
        let mut live: Vec<(BlockId, Span)> = Vec::new();
        let mut gone: Vec<BlockId> = Vec::new();
        let mut epoch = 10;
        for op in ops {
            match op {
                Op::Take { set, bytes, align_log, epochs_ago } => {
                    let align = 1u64 << align_log;
                    let wanted = bytes.max(1).next_multiple_of(align.clamp(256, 512));
                    let until = epoch - epochs_ago;
                    if let Some(id) = blocks.take(sets[set], AllocLayout::new(bytes, align), until) {
                        let span = blocks.span(id).expect("it is live");
                        prop_assert_eq!(span.bytes, wanted);
                        prop_assert!(span.address.is_multiple_of(align.max(UNIT_BYTES)));
                        prop_assert!(
                            model.all(span, |unit| matches!(unit, Unit::Free(s, e) if s == set && (s == 0 || e <= until))),
                            "{span:?} was not free in {set} at {until}"
                        );
                        model.fill(span, Some(Unit::LiveBlock));
                        live.push((id, span));
                    } else if epochs_ago == 0 {
                        // A run of this size, plus its alignment and a thirty-second, would have
                        // been found.
                        let padded = wanted + align.max(UNIT_BYTES) - UNIT_BYTES;
                        let sure = padded + padded / 32;
                        prop_assert!(model.longest(set) <= sure, "{} is free, {sure} suffice", model.longest(set));
                    }
                }
                Op::TakeBest { set, bytes } => {
                    let want = AllocLayout::new(bytes, UNIT_BYTES);
                    if let Some(fit) = blocks.best_fit(sets[set], want) {
                        let address = blocks.address(&fit);
                        let id = blocks.take_of(fit);
                        let span = blocks.span(id).expect("it is live");
                        prop_assert_eq!(span.address, address);
                        prop_assert_eq!(span.bytes, want.bytes());
                        let is_in = |set| model.all(span, |unit| matches!(unit, Unit::Free(s, _) if s == set));
                        prop_assert!(is_in(set) || is_in(0), "{span:?} was not free in {set}, nor ready");
                        model.fill(span, Some(Unit::LiveBlock));
                        live.push((id, span));
                    } else {
                        let longest = model.longest(set).max(model.longest(0));
                        prop_assert!(longest <= want.bytes() + want.bytes() / 32, "{longest} is free");
                    }
                }
                Op::GiveWithReady { which, set, most } => {
                    if !live.is_empty() {
                        let (id, span) = live.swap_remove(which.index(live.len()));
                        let [below, above] = model.ready_beside(span).map(|bytes| if bytes <= most { bytes } else { 0 });
                        prop_assert_eq!(blocks.give_with_ready(id, sets[set], epoch, most), Some(span));
                        let all = Span { address: span.address - below, bytes: below + span.bytes + above };
                        model.fill(all, Some(Unit::Free(set, epoch)));
                        prop_assert_eq!(blocks.free_set(all), Some(sets[set]), "it is one block");
                        gone.push(id);
                    }
                }
                Op::Give { which, set } => {
                    if !live.is_empty() {
                        let (id, span) = live.swap_remove(which.index(live.len()));
                        prop_assert_eq!(blocks.give(id, sets[set], epoch), Some(span));
                        model.fill(span, Some(Unit::Free(set, epoch)));
                        gone.push(id);
                    }
                }
                Op::GiveAgain { which } => {
                    if !gone.is_empty() {
                        let id = gone[which.index(gone.len())];
                        prop_assert_eq!(blocks.span(id), None);
                        prop_assert_eq!(blocks.give(id, sets[1], epoch), None);
                    }
                }
                Op::Move { from, into, epochs_ago } => {
                    let until = epoch - epochs_ago;
                    let moved = blocks.move_to(sets[from], until, sets[into], epoch);
                    // A block that was merged with a later one moved with it.
                    let most = model.bytes(|unit| matches!(unit, Unit::Free(s, e) if s == from && e <= until));
                    prop_assert!(moved <= most && (epochs_ago != 0 || from == into || moved == most));
                    // The set of each unit shows whether it stayed or moved.
                    let stays = |span: &Span| blocks.free_set(*span) == Some(sets[from]);
                    let mut moved_units = Vec::new();
                    for (at, unit) in &model.units {
                        let span = Span { address: at * UNIT_BYTES, bytes: UNIT_BYTES };
                        if matches!(unit, Unit::Free(s, _) if *s == from) && !stays(&span) {
                            moved_units.push(*at);
                        }
                    }
                    prop_assert_eq!(moved_units.len() as u64 * UNIT_BYTES, moved);
                    for at in moved_units {
                        prop_assert!(matches!(model.units[&at], Unit::Free(_, e) if e <= until));
                        model.units.insert(at, Unit::Free(into, epoch));
                    }
                }
                Op::Join { set } => {
                    let joined = blocks.join_ready(sets[set], epoch);
                    let mut units = Vec::new();
                    for (at, unit) in &model.units {
                        let span = Span { address: at * UNIT_BYTES, bytes: UNIT_BYTES };
                        if matches!(unit, Unit::Free(0, _)) && blocks.free_set(span) == Some(sets[set]) {
                            units.push(*at);
                        }
                    }
                    prop_assert_eq!(units.len() as u64 * UNIT_BYTES, joined);
                    for at in units {
                        model.units.insert(at, Unit::Free(set, epoch));
                    }
                }
                Op::Add { slot, slots } => {
                    let span = Span { address: slot * SLOT_BYTES, bytes: slots * SLOT_BYTES };
                    let there = model.units.range(span.address / UNIT_BYTES..span.end() / UNIT_BYTES).next().is_some();
                    prop_assert_eq!(blocks.add(span).is_err(), there);
                    if !there {
                        model.fill(span, Some(Unit::Free(0, 0)));
                    }
                }
                Op::Remove { slot, slots } => {
                    let span = Span { address: slot * SLOT_BYTES, bytes: slots * SLOT_BYTES };
                    let ready = model.all(span, |unit| matches!(unit, Unit::Free(0, _)));
                    let holds = |around: &Span| around.address <= span.address && span.end() <= around.end();
                    let around = blocks.ready(1).find(holds);
                    prop_assert_eq!(blocks.remove(span, around.unwrap_or(span)), ready);
                    if ready {
                        model.fill(span, None);
                    }
                }
                Op::NextEpoch => epoch += 1,
            }
            blocks.audit().map_err(TestCaseError::fail)?;
            prop_assert_eq!(blocks.bytes(), model.bytes(|_| true));
            prop_assert_eq!(blocks.live_blocks(), live.len());
            for (set, id) in sets.iter().enumerate() {
                let free = model.bytes(|unit| matches!(unit, Unit::Free(s, _) if s == set));
                prop_assert_eq!(blocks.free_bytes(*id), free);
                let longest = model.longest(set);
                let largest = blocks.largest_free_bytes(*id);
                prop_assert!(largest <= longest && largest >= longest - longest / 32);
            }
            let most = blocks.ready(SLOT_BYTES).map(|span| span.bytes).sum::<u64>();
            prop_assert!(most <= blocks.free_bytes(SetId::READY));
        }
    }
}

#[test]
fn a_hole_of_exactly_the_size_is_found_although_searches_round_up() {
    let mut blocks = BlockAllocator::new();
    // 1000 units are not the width of a second level: the search begins at 1008.
    let span = Span {
        address: 0,
        bytes: 1000 * UNIT_BYTES,
    };
    blocks.add(span).expect("a range");
    let id = blocks
        .take(SetId::READY, AllocLayout::new(span.bytes, 1), 0)
        .expect("it fits");
    assert_eq!(blocks.span(id), Some(span));
    assert_eq!(blocks.free_bytes(SetId::READY), 0);
}

#[test]
fn a_block_of_terabytes_is_taken_and_given_back() {
    let mut blocks = BlockAllocator::new();
    let most = 1u64 << 46;
    let span = Span {
        address: most,
        bytes: most,
    };
    blocks.add(span).expect("a range");
    for bytes in [8 << 30, 16 << 30, 80 << 30, most / 2] {
        let id = blocks
            .take(SetId::READY, AllocLayout::new(bytes, 2 << 20), 0)
            .expect("it fits");
        blocks.give(id, SetId::READY, 0).expect("it is live");
    }
    blocks.audit().expect("sound");
    assert!(blocks.remove(span, span));
}

#[test]
fn impossible_ranges_and_layouts_are_refused() {
    let mut blocks = BlockAllocator::new();
    for (address, bytes) in [
        (0, 0),
        (1, UNIT_BYTES),
        (0, UNIT_BYTES + 1),
        (u64::MAX - UNIT_BYTES + 1, 2 * UNIT_BYTES),
        (0, 1 << 62),
    ] {
        assert!(blocks.add(Span { address, bytes }).is_err());
    }
    blocks
        .add(Span {
            address: 1 << 30,
            bytes: 1 << 30,
        })
        .expect("a range");
    for (bytes, align) in [
        (u64::MAX, 1),
        (u64::MAX, 1 << 63),
        (1, 1 << 63),
        (1, u64::MAX),
        (1 << 31, 1),
    ] {
        assert_eq!(
            blocks.take(SetId::READY, AllocLayout::new(bytes, align), 0),
            None
        );
    }
    blocks.audit().expect("sound");
}
