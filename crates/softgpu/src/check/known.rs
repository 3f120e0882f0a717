//! Times of blocks, by warp and by thread, up to which accesses are known to be before.
//!
//! A time of a warp says that all accesses of its lanes up to then are before. A thread that tells
//! others something without having met the rest of its warp tells a later time of its own.

use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Time of each warp of a block.
pub(crate) type WarpTimes = Arc<Vec<u32>>;

/// For each block, up to when its threads' accesses are before now. Absent: none.
pub(crate) type KnownBlocks = FxHashMap<u32, Arc<BlockTimes>>;

/// What is before a fence, by its scope: at 0 the device or more, at 1 the block.
pub(crate) type FencedBlocks = [Option<Arc<KnownBlocks>>; 2];

/// Times of a block up to which accesses are before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockTimes {
    warps: Vec<u32>,
    /// Of single threads, where they are later than their warp's; in the order of the threads.
    threads: Vec<(u32, u32)>,
}

impl BlockTimes {
    pub(crate) fn of_warps(warps: Vec<u32>) -> Self {
        BlockTimes {
            warps,
            threads: Vec::new(),
        }
    }

    fn of_warp(&self, warp: u32) -> u32 {
        self.warps.get(warp as usize).copied().unwrap_or(0)
    }

    pub(crate) fn warps(&self) -> &[u32] {
        &self.warps
    }

    /// The time up to which a thread's accesses are before.
    pub(crate) fn until(&self, thread: u32) -> u32 {
        let own = match self.threads.binary_search_by_key(&thread, |t| t.0) {
            Ok(at) => self.threads[at].1,
            Err(_) => 0,
        };
        own.max(self.of_warp(thread / 32))
    }

    /// The lanes of `mask` are before up to `time`.
    pub(crate) fn raise_lanes(&mut self, warp: u32, mask: u32, time: u32) {
        if self.of_warp(warp) >= time || mask == 0 {
            return;
        }
        if mask == u32::MAX {
            self.raise_warp(warp, time);
            return;
        }
        let lanes = (0..32).filter(|l| mask >> l & 1 != 0);
        self.raise_threads(lanes.map(|l| (warp * 32 + l, time)));
    }

    fn raise_warp(&mut self, warp: u32, time: u32) {
        let at = warp as usize;
        if self.warps.len() <= at {
            self.warps.resize(at + 1, 0);
        }
        self.warps[at] = self.warps[at].max(time);
        self.prune();
    }

    /// Threads, in their order.
    fn raise_threads(&mut self, later: impl Iterator<Item = (u32, u32)>) {
        for (thread, time) in later {
            match self.threads.binary_search_by_key(&thread, |t| t.0) {
                Ok(at) => self.threads[at].1 = self.threads[at].1.max(time),
                Err(at) if time > self.of_warp(thread / 32) => {
                    self.threads.insert(at, (thread, time));
                }
                Err(_) => {}
            }
        }
        if self.threads.len() >= 32 {
            self.promote();
        }
    }

    /// What all lanes of a warp have is the warp's.
    fn promote(&mut self) {
        let mut raised = Vec::new();
        for run in self.threads.chunk_by(|a, b| a.0 / 32 == b.0 / 32) {
            if run.len() == 32 {
                let least = run.iter().map(|t| t.1).min();
                raised.push((run[0].0 / 32, least.unwrap_or(0)));
            }
        }
        for (warp, time) in raised {
            self.raise_warp(warp, time);
        }
    }

    fn prune(&mut self) {
        let mut threads = std::mem::take(&mut self.threads);
        threads.retain(|&(thread, time)| time > self.of_warp(thread / 32));
        self.threads = threads;
    }

    fn raise(&mut self, other: &BlockTimes) {
        if self.warps.len() < other.warps.len() {
            self.warps.resize(other.warps.len(), 0);
        }
        for (a, b) in self.warps.iter_mut().zip(&other.warps) {
            *a = (*a).max(*b);
        }
        self.raise_threads(other.threads.iter().copied());
        self.prune();
    }

    /// Whether all that `other` has before is before here.
    fn covers(&self, other: &BlockTimes) -> bool {
        let mut warps = (0..).zip(&other.warps);
        warps.all(|(w, &time)| self.of_warp(w) >= time)
            && other.threads.iter().all(|&(t, time)| self.until(t) >= time)
    }
}

/// Adds times of one block.
pub(crate) fn raise_block(into: &mut Arc<KnownBlocks>, block: u32, times: BlockTimes) {
    match into.get(&block) {
        Some(have) if have.covers(&times) => {}
        Some(have) if !times.covers(have) => {
            let mut both = (**have).clone();
            both.raise(&times);
            Arc::make_mut(into).insert(block, Arc::new(both));
        }
        _ => {
            Arc::make_mut(into).insert(block, Arc::new(times));
        }
    }
}

/// Whether what `thread` of `block` did at `time` is before what knows `known`.
pub(crate) fn is_known(known: &KnownBlocks, block: u32, thread: u32, time: u32) -> bool {
    known.get(&block).is_some_and(|t| time <= t.until(thread))
}

pub(crate) fn join_fenced(into: &mut Option<Arc<KnownBlocks>>, from: Option<&Arc<KnownBlocks>>) {
    match (into, from) {
        (Some(into), Some(from)) => join(into, from),
        (into @ None, Some(from)) => *into = Some(from.clone()),
        (_, None) => {}
    }
}

pub(crate) fn join_scopes(into: &mut FencedBlocks, from: &FencedBlocks) {
    for (into, from) in into.iter_mut().zip(from) {
        join_fenced(into, from.as_ref());
    }
}

/// Adds to what a location tells.
pub(crate) fn release_to<K: Hash + Eq>(
    locations: &mut FxHashMap<K, Arc<KnownBlocks>>,
    at: K,
    known: &Arc<KnownBlocks>,
) {
    match locations.get_mut(&at) {
        Some(old) => join(old, known),
        None => {
            locations.insert(at, known.clone());
        }
    }
}

/// Whether `b` has all that `a` has.
fn within(a: &KnownBlocks, b: &KnownBlocks) -> bool {
    a.len() <= b.len()
        && a.iter().all(|(block, times)| {
            let have = b.get(block);
            have.is_some_and(|have| Arc::ptr_eq(have, times) || have.covers(times))
        })
}

/// Whether `b` has all that `a` has, and `times` of a block.
pub(crate) fn has_all(b: &KnownBlocks, a: &KnownBlocks, block: u32, times: &BlockTimes) -> bool {
    b.get(&block).is_some_and(|have| have.covers(times)) && within(a, b)
}

/// Takes the later of both for each thread of each block.
pub(crate) fn join(into: &mut Arc<KnownBlocks>, from: &Arc<KnownBlocks>) {
    if Arc::ptr_eq(into, from) || within(from, into) {
        return;
    }
    if within(into, from) {
        *into = from.clone();
        return;
    }
    let all = Arc::make_mut(into);
    for (&block, times) in from.iter() {
        match all.get_mut(&block) {
            None => {
                all.insert(block, times.clone());
            }
            Some(old) if old.covers(times) => {}
            Some(old) if times.covers(old) => *old = times.clone(),
            Some(old) => Arc::make_mut(old).raise(times),
        }
    }
}

const SHARDS: usize = 64;

/// The clocks of one launch's locations in global memory.
#[derive(Debug)]
pub(crate) struct LocationClocks {
    shards: Vec<Mutex<FxHashMap<u64, Arc<KnownBlocks>>>>,
    /// Whether none has a clock.
    empty: AtomicBool,
}

impl Default for LocationClocks {
    fn default() -> Self {
        LocationClocks {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            empty: AtomicBool::new(true),
        }
    }
}

impl LocationClocks {
    /// Whether nothing was released yet. Threads that have synchronised agree on it.
    pub(crate) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Relaxed)
    }

    fn shard(&self, addr: u64) -> MutexGuard<'_, FxHashMap<u64, Arc<KnownBlocks>>> {
        self.shards[(addr >> 3) as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn release(&self, addr: u64, known: &Arc<KnownBlocks>) {
        self.empty.store(false, Ordering::Relaxed);
        release_to(&mut self.shard(addr), addr, known);
    }

    pub(crate) fn get(&self, addr: u64) -> Option<Arc<KnownBlocks>> {
        self.shard(addr).get(&addr).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WARPS: u32 = 3;

    fn times() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
        let mask = prop_oneof![Just(u32::MAX), Just(1), Just(0xffff), any::<u32>()];
        prop::collection::vec((0..WARPS, mask, 1u32..6), 0..6)
    }

    fn built(steps: &[(u32, u32, u32)]) -> (BlockTimes, Vec<u32>) {
        let mut times = BlockTimes::default();
        let mut model = vec![0; WARPS as usize * 32];
        for &(warp, mask, time) in steps {
            times.raise_lanes(warp, mask, time);
            for l in (0..32).filter(|l| mask >> l & 1 != 0) {
                let at = &mut model[(warp * 32 + l) as usize];
                *at = time.max(*at);
            }
        }
        (times, model)
    }

    proptest! {
        #[test]
        fn times_are_those_of_each_thread(a in times(), b in times()) {
            let ((mut x, mut of_x), (y, of_y)) = (built(&a), built(&b));
            let all = |t: &BlockTimes| (0..WARPS * 32).map(|n| t.until(n)).collect::<Vec<_>>();
            prop_assert_eq!(&all(&x), &of_x);
            let covers = of_x.iter().zip(&of_y).all(|(a, b)| a >= b);
            prop_assert_eq!(x.covers(&y), covers);
            x.raise(&y);
            of_x.iter_mut().zip(&of_y).for_each(|(a, b)| *a = (*a).max(*b));
            prop_assert_eq!(&all(&x), &of_x);
            prop_assert!(x.covers(&y));
        }
    }
}
