//! Lives of a block's mbarriers: the initialisation of each, its last use, whether it is valid.
//!
//! Invariant: an mbarrier is used between its initialisation and its invalidation, and a barrier
//! or another order stands between those and its use by other threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::clock::WarpClocks;
use super::known::{KnownBlocks, join};

/// What a thread did to an mbarrier, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MbarrierMark {
    /// Instruction, counted through all functions.
    pub(crate) pc: u32,
    /// Thread of the block.
    pub(crate) thread: u32,
    /// Time of its warp.
    time: u32,
}

impl MbarrierMark {
    /// What `thread` does now by instruction `pc`.
    pub(crate) fn new(clocks: &mut WarpClocks, pc: u32, thread: u32) -> Self {
        let warp = (thread / 32) as usize;
        clocks.touch(warp);
        let time = clocks.now(warp);
        MbarrierMark { pc, thread, time }
    }

    /// The time of its warp.
    pub(crate) fn time(self) -> u32 {
        self.time
    }

    /// Whether it is before what `now` is of.
    fn is_before(self, now: MbarrierMark, clocks: &WarpClocks) -> bool {
        clocks.follows(now.thread, self.thread, self.time)
    }
}

/// What is wrong with an operation on an mbarrier.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MbarrierFault {
    /// Nothing has initialised it.
    NeverInitialised,
    /// That has invalidated it.
    Invalidated(MbarrierMark),
    /// Nothing orders it behind that initialisation, or that use before its initialisation or
    /// invalidation.
    Unordered(MbarrierMark),
    /// That has initialised it before, and its phase is not complete.
    InUse(MbarrierMark),
}

#[derive(Debug, Default)]
struct MbarrierLife {
    born: Option<MbarrierMark>,
    ended: Option<MbarrierMark>,
    /// The last use by each thread since.
    uses: BTreeMap<u32, MbarrierMark>,
    /// What is before the end of the phase at hand, as far as it is known by now.
    gathering: Arc<KnownBlocks>,
    /// What is before the end of the last phase.
    over: Arc<KnownBlocks>,
}

/// See the module; by the offset in shared memory.
#[derive(Debug, Default)]
pub(crate) struct MbarrierLives(BTreeMap<u32, MbarrierLife>);

impl MbarrierLives {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The initialisation of the mbarrier at `at`, if it is valid.
    pub(crate) fn born(&self, at: u32) -> Option<MbarrierMark> {
        self.0.get(&at)?.born
    }

    /// The mbarrier at `at`, of which the phase is under way or not, is initialised, or invalidated
    /// if `ends`.
    pub(crate) fn change(
        &mut self,
        at: u32,
        now: MbarrierMark,
        (ends, under_way): (bool, bool),
        clocks: &WarpClocks,
    ) -> Option<MbarrierFault> {
        let life = self.0.entry(at).or_default();
        let found = match (life.born, life.ended) {
            (None, None) if ends => Some(MbarrierFault::NeverInitialised),
            (None, Some(end)) if ends => Some(MbarrierFault::Invalidated(end)),
            _ => std::mem::take(&mut life.uses)
                .into_values()
                .chain(life.born)
                .find(|was| !was.is_before(now, clocks))
                .map(MbarrierFault::Unordered)
                .or_else(|| {
                    let in_use = life.born.filter(|_| !ends && under_way);
                    in_use.map(MbarrierFault::InUse)
                }),
        };
        *life = MbarrierLife {
            born: (!ends).then_some(now),
            ended: ends.then_some(now),
            ..MbarrierLife::default()
        };
        found
    }

    /// What is before an arrival, or the end of a copy, at the mbarrier at `at`.
    pub(crate) fn gather(&mut self, at: u32, known: &Arc<KnownBlocks>) {
        join(&mut self.0.entry(at).or_default().gathering, known);
    }

    /// The phase of the mbarrier at `at` ends.
    pub(crate) fn phase_over(&mut self, at: u32) {
        let life = self.0.entry(at).or_default();
        life.over = life.gathering.clone();
    }

    /// What is before the end of the last phase of the mbarrier at `at`.
    pub(crate) fn over(&self, at: u32) -> Option<&Arc<KnownBlocks>> {
        self.0.get(&at).map(|life| &life.over)
    }

    /// A thread arrives at the mbarrier at `at`, or asks for its phase.
    pub(crate) fn used(
        &mut self,
        at: u32,
        now: MbarrierMark,
        clocks: &WarpClocks,
    ) -> Option<MbarrierFault> {
        let life = self.0.entry(at).or_default();
        life.uses.insert(now.thread, now);
        match (life.born, life.ended) {
            (Some(born), _) if born.is_before(now, clocks) => None,
            (Some(born), _) => Some(MbarrierFault::Unordered(born)),
            (None, Some(end)) => Some(MbarrierFault::Invalidated(end)),
            (None, None) => Some(MbarrierFault::NeverInitialised),
        }
    }
}
