//! Vector clocks of a block's warps, and of the locations through which threads synchronise.
//!
//! A warp's time is a number that grows when the warp synchronises after having touched memory. Its
//! clock holds for every warp of its block the time up to which that warp's accesses are before
//! what it does now, and the same for the warps of other blocks. Barriers join clocks. A release
//! stores what its thread did, and what is before that, at a location; an acquire joins what
//! the location has; atomics do both. In global memory a relaxed access releases what is before
//! the last fence, in shared memory everything. A fence or a release with the scope of the block
//! counts for the warps of its own block alone.
//!
//! Lanes of a warp share a clock, so a race between two of them may be missed where one has
//! synchronised, and none is invented. A fence alone does not order lanes of a warp.

use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Time of each warp of a block.
pub(crate) type WarpTimes = Arc<Vec<u32>>;

/// For each block, up to when its warps' accesses are before now. Absent: none.
pub(crate) type KnownBlocks = FxHashMap<u32, WarpTimes>;

/// What is before a point in the execution of a warp.
#[derive(Debug, Clone, Default)]
struct ClockView {
    /// In the block itself.
    within: Vec<u32>,
    /// In other blocks.
    foreign: Arc<KnownBlocks>,
    /// What of both is before a fence, and so before what a relaxed access tells others.
    fenced: Option<Arc<KnownBlocks>>,
    /// The same of a fence with the scope of the block.
    fenced_near: Option<Arc<KnownBlocks>>,
}

impl ClockView {
    /// Whether `other` surely has all that this has: it may say no where only what is known of
    /// other blocks would have to be compared.
    fn is_within(&self, other: &ClockView) -> bool {
        let same = |a: &Option<Arc<KnownBlocks>>, b: &Option<Arc<KnownBlocks>>| match (a, b) {
            (None, _) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (Some(_), None) => false,
        };
        same(&self.fenced, &other.fenced)
            && same(&self.fenced_near, &other.fenced_near)
            && Arc::ptr_eq(&self.foreign, &other.foreign)
            && self.within.iter().zip(&other.within).all(|(a, b)| a <= b)
    }

    fn join(&mut self, other: &ClockView) {
        for (a, b) in self.within.iter_mut().zip(&other.within) {
            *a = (*a).max(*b);
        }
        join(&mut self.foreign, &other.foreign);
        join_fenced(&mut self.fenced, other.fenced.as_ref());
        join_fenced(&mut self.fenced_near, other.fenced_near.as_ref());
    }
}

/// The place of an access in the order of its block's accesses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AccessTime {
    /// Time of the warp.
    pub(crate) now: u32,
    /// All accesses of the block up to then are before.
    pub(crate) floor: u32,
    /// All accesses of other lanes of the warp up to then are before.
    pub(crate) lanes: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WarpClocks {
    block: u32,
    /// Time of each warp; from 1.
    own: Vec<u32>,
    /// The time at which the warp's lanes were last ordered.
    synced: Vec<u32>,
    /// Whether the warp has touched memory at this time.
    dirty: Vec<bool>,
    /// `known[w * warps + v]`: time of `v` up to which `w` follows it.
    known: Vec<u32>,
    /// Least of `known[w]`, `w` itself left out.
    lowest: Vec<u32>,
    /// `known[w]` for logs, where its numbers differ.
    rows: Vec<Option<WarpTimes>>,
    foreign: Vec<Arc<KnownBlocks>>,
    fenced: Vec<Option<Arc<KnownBlocks>>>,
    /// What was known of other blocks at the last fence.
    fenced_from: Vec<Arc<KnownBlocks>>,
    /// What is before a later fence with the scope of the block.
    fenced_near: Vec<Option<Arc<KnownBlocks>>>,
    /// Whether nothing was touched since all warps met.
    settled: bool,
    /// The views of arrived warps, by barrier.
    gathering: FxHashMap<u32, (ClockView, Vec<usize>)>,
    /// The view of a location in shared memory.
    locations: FxHashMap<u32, Arc<ClockView>>,
    /// What a location in global memory tells this block alone.
    near: FxHashMap<u64, Arc<KnownBlocks>>,
}

impl WarpClocks {
    pub(crate) fn start(&mut self, block: u32, warps: usize) {
        fn fill<T: Clone>(v: &mut Vec<T>, n: usize, x: T) {
            v.clear();
            v.resize(n, x);
        }
        self.block = block;
        fill(&mut self.own, warps, 1);
        fill(&mut self.synced, warps, 1);
        fill(&mut self.dirty, warps, false);
        fill(&mut self.known, warps * warps, 0);
        fill(
            &mut self.lowest,
            warps,
            if warps == 1 { u32::MAX } else { 0 },
        );
        fill(&mut self.rows, warps, None);
        let none = Arc::new(KnownBlocks::default());
        fill(&mut self.foreign, warps, none.clone());
        fill(&mut self.fenced_from, warps, none);
        fill(&mut self.fenced, warps, None);
        fill(&mut self.fenced_near, warps, None);
        self.settled = true;
        self.gathering.clear();
        self.locations.clear();
        self.near.clear();
    }

    fn warps(&self) -> usize {
        self.own.len()
    }

    /// Warp `w` is about to touch memory.
    #[inline(always)]
    pub(crate) fn touch(&mut self, w: usize) {
        self.dirty[w] = true;
        self.settled = false;
    }

    /// Time of warp `w`.
    #[inline(always)]
    pub(crate) fn now(&self, w: usize) -> u32 {
        self.own[w]
    }

    /// The time up to which other lanes of warp `w` are before.
    #[inline(always)]
    fn lanes(&self, w: usize) -> u32 {
        (self.synced[w] - 1).max(self.known[w * self.warps() + w])
    }

    /// The time up to which every other thread of the block is before warp `w`.
    #[inline(always)]
    pub(crate) fn floor(&self, w: usize) -> u32 {
        self.lowest[w].min(self.lanes(w))
    }

    /// The place of what warp `w` does now.
    #[inline(always)]
    pub(crate) fn time(&self, w: usize) -> AccessTime {
        let lanes = self.lanes(w);
        AccessTime {
            now: self.own[w],
            floor: self.lowest[w].min(lanes),
            lanes,
        }
    }

    /// What warp `w` knows of the warps of its block.
    #[inline(always)]
    pub(crate) fn row(&self, w: usize) -> &[u32] {
        let n = self.warps();
        &self.known[w * n..(w + 1) * n]
    }

    /// The same to be kept; `None` if it says nothing that the floor does not say.
    pub(crate) fn kept_row(&mut self, w: usize) -> Option<WarpTimes> {
        let row = self.row(w);
        let lowest = self.lowest[w];
        if row.iter().enumerate().all(|(v, &k)| v == w || k == lowest) {
            return None;
        }
        if self.rows[w].is_none() {
            self.rows[w] = Some(Arc::new(row.to_vec()));
        }
        self.rows[w].clone()
    }

    /// What warp `w` knows of other blocks.
    #[inline(always)]
    pub(crate) fn foreign(&self, w: usize) -> &KnownBlocks {
        &self.foreign[w]
    }

    fn tick(&mut self, w: usize) {
        if self.dirty[w] {
            self.own[w] += 1;
            self.dirty[w] = false;
        }
    }

    /// Lanes of warp `w` have synchronised.
    pub(crate) fn warp_synced(&mut self, w: usize) {
        self.tick(w);
        self.synced[w] = self.own[w];
    }

    /// Times of the block's warps up to which their accesses are before what warp `w` does next.
    fn times(&self, w: usize) -> Vec<u32> {
        let mut v = self.row(w).to_vec();
        v[w] = self.own[w] - u32::from(!self.dirty[w]);
        v
    }

    fn view(&self, w: usize) -> ClockView {
        ClockView {
            within: self.times(w),
            foreign: self.foreign[w].clone(),
            fenced: self.fenced[w].clone(),
            fenced_near: self.fenced_near[w].clone(),
        }
    }

    fn learn_within(&mut self, w: usize, times: &[u32]) {
        let n = self.warps();
        let known = &mut self.known[w * n..(w + 1) * n];
        let mut changed = false;
        for (k, t) in known.iter_mut().zip(times) {
            changed |= *t > *k;
            *k = (*k).max(*t);
        }
        if changed {
            let others = known.iter().enumerate().filter(|(v, _)| *v != w);
            self.lowest[w] = others.map(|(_, k)| *k).min().unwrap_or(u32::MAX);
            self.rows[w] = None;
        }
    }

    fn learn(&mut self, w: usize, view: &ClockView) {
        self.learn_within(w, &view.within);
        join(&mut self.foreign[w], &view.foreign);
        self.learn_fenced(w, view);
    }

    fn learn_fenced(&mut self, w: usize, view: &ClockView) {
        join_fenced(&mut self.fenced[w], view.fenced.as_ref());
        join_fenced(&mut self.fenced_near[w], view.fenced_near.as_ref());
    }

    /// Warp `w` arrives at barrier `id`, and waits for it or not.
    pub(crate) fn arrived(&mut self, w: usize, id: u32, waits: bool) {
        let view = self.view(w);
        match self.gathering.get_mut(&id) {
            Some(entry) => entry.0.join(&view),
            None => {
                self.gathering.insert(id, (view, Vec::new()));
            }
        }
        if !waits {
            self.tick(w);
        } else if let Some(entry) = self.gathering.get_mut(&id) {
            entry.1.push(w);
        }
    }

    /// Barrier `id` opens. `whole`: for every warp of the block.
    pub(crate) fn opened(&mut self, id: u32, whole: bool) {
        let Some((view, mut warps)) = self.gathering.remove(&id) else {
            return;
        };
        if whole {
            self.all_met(&view);
            return;
        }
        warps.sort_unstable();
        warps.dedup();
        for w in warps {
            self.learn(w, &view);
            self.warp_synced(w);
        }
    }

    /// Everything so far is before everything from now on. `view` is that of all warps that met.
    fn all_met(&mut self, view: &ClockView) {
        for w in 0..self.warps() {
            join(&mut self.foreign[w], &view.foreign);
            self.learn_fenced(w, view);
        }
        if self.settled {
            return;
        }
        self.settled = true;
        let all = self.own.iter().copied().max().unwrap_or(0);
        self.known.fill(all);
        self.own.fill(all + 1);
        self.synced.fill(all + 1);
        self.dirty.fill(false);
        self.lowest
            .fill(if self.own.len() == 1 { u32::MAX } else { all });
        self.rows.fill(None);
    }

    /// Warp `w` releases its clock to locations of shared memory, one at least.
    pub(crate) fn release_shared(&mut self, w: usize, at: impl Iterator<Item = u32>) {
        let view = Arc::new(self.view(w));
        for at in at {
            match self.locations.entry(at) {
                Entry::Vacant(none) => {
                    none.insert(view.clone());
                }
                Entry::Occupied(mut old) if old.get().is_within(&view) => {
                    old.insert(view.clone());
                }
                Entry::Occupied(mut old) => {
                    if !view.is_within(old.get()) {
                        Arc::make_mut(old.get_mut()).join(&view);
                    }
                }
            }
        }
        self.tick(w);
    }

    /// Warp `w` acquires the clocks of locations of shared memory.
    pub(crate) fn acquire_shared(&mut self, w: usize, at: impl Iterator<Item = u32>) {
        let locations = std::mem::take(&mut self.locations);
        let mut last = None;
        for view in at.filter_map(|at| locations.get(&at)) {
            let again = last.is_some_and(|last| Arc::ptr_eq(last, view));
            if !again {
                self.learn(w, view);
            }
            last = Some(view);
        }
        self.locations = locations;
    }

    /// Warp `w` has passed a fence: what is before it now is before what a relaxed access of its
    /// tells others; `near`: those of its block alone.
    pub(crate) fn fence(&mut self, w: usize, near: bool) {
        let times = self.times(w);
        let of_block = |fenced: &KnownBlocks| fenced.get(&self.block).is_some_and(|t| **t == times);
        if let Some(fenced) = &self.fenced[w]
            && Arc::ptr_eq(&self.fenced_from[w], &self.foreign[w])
            && of_block(fenced)
        {
            if !near {
                self.fenced_near[w] = None;
            }
            return;
        }
        let mut all = self.foreign[w].clone();
        for fenced in [&self.fenced[w], &self.fenced_near[w]]
            .into_iter()
            .flatten()
        {
            join(&mut all, fenced);
        }
        Arc::make_mut(&mut all).insert(self.block, Arc::new(times));
        if near {
            self.fenced_near[w] = Some(all);
        } else {
            self.fenced[w] = Some(all);
            self.fenced_near[w] = None;
            self.fenced_from[w] = self.foreign[w].clone();
        }
        self.tick(w);
    }

    /// Whether some address of global memory may have anything for warps of this block.
    pub(crate) fn may_acquire(&self, locations: &LocationClocks) -> bool {
        !self.near.is_empty() || !locations.is_empty()
    }

    /// Whether warp `w` has anything to release to an address of global memory.
    pub(crate) fn has_fenced(&self, w: usize) -> bool {
        self.fenced[w].is_some() || self.fenced_near[w].is_some()
    }

    /// Warp `w` releases what is before its last fence to an address of global memory.
    pub(crate) fn release(&mut self, w: usize, addr: u64, locations: &LocationClocks) {
        if let Some(fenced) = &self.fenced[w] {
            locations.release(addr, fenced);
        }
        if let Some(fenced) = &self.fenced_near[w] {
            match self.near.get_mut(&addr) {
                None => {
                    self.near.insert(addr, fenced.clone());
                }
                Some(old) => join(old, fenced),
            }
        }
    }

    /// Warp `w` acquires what an address of global memory has.
    pub(crate) fn acquire(&mut self, w: usize, addr: u64, locations: &LocationClocks) {
        if let Some(found) = locations.get(addr) {
            self.learn_blocks(w, &found);
            join_fenced(&mut self.fenced[w], Some(&found));
        }
        if !self.near.is_empty()
            && let Some(found) = self.near.get(&addr).cloned()
        {
            self.learn_blocks(w, &found);
            join_fenced(&mut self.fenced_near[w], Some(&found));
        }
    }

    fn learn_blocks(&mut self, w: usize, found: &Arc<KnownBlocks>) {
        if let Some(times) = found.get(&self.block) {
            self.learn_within(w, times);
        }
        join(&mut self.foreign[w], found);
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
    fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Relaxed)
    }

    fn shard(&self, addr: u64) -> MutexGuard<'_, FxHashMap<u64, Arc<KnownBlocks>>> {
        self.shards[(addr >> 3) as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, addr: u64, known: &Arc<KnownBlocks>) {
        self.empty.store(false, Ordering::Relaxed);
        let mut shard = self.shard(addr);
        match shard.get_mut(&addr) {
            None => {
                shard.insert(addr, known.clone());
            }
            Some(old) => join(old, known),
        }
    }

    fn get(&self, addr: u64) -> Option<Arc<KnownBlocks>> {
        self.shard(addr).get(&addr).cloned()
    }
}

fn join_fenced(into: &mut Option<Arc<KnownBlocks>>, from: Option<&Arc<KnownBlocks>>) {
    match (into, from) {
        (Some(into), Some(from)) => join(into, from),
        (into @ None, Some(from)) => *into = Some(from.clone()),
        (_, None) => {}
    }
}

/// Whether `a` is at least `b`, warp by warp.
fn covers(a: &WarpTimes, b: &WarpTimes) -> bool {
    Arc::ptr_eq(a, b) || a.iter().zip(b.iter()).all(|(x, y)| x >= y)
}

/// Takes the later of both for each warp of each block.
fn join(into: &mut Arc<KnownBlocks>, from: &Arc<KnownBlocks>) {
    let within = |a: &KnownBlocks, b: &KnownBlocks| {
        a.len() <= b.len()
            && a.iter()
                .all(|(block, times)| b.get(block).is_some_and(|have| covers(have, times)))
    };
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
            Some(old) if covers(old, times) => {}
            Some(old) if covers(times, old) => *old = times.clone(),
            Some(old) => {
                let later = old.iter().zip(times.iter()).map(|(x, y)| *x.max(y));
                *old = Arc::new(later.collect());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(block: u32, warps: usize) -> WarpClocks {
        let mut c = WarpClocks::default();
        c.start(block, warps);
        c
    }

    /// Warp `w` touches memory; the time at which it did.
    fn touched(c: &mut WarpClocks, w: usize) -> u32 {
        c.touch(w);
        c.now(w)
    }

    #[test]
    fn a_barrier_orders_all_warps_and_a_named_one_those_that_met() {
        let mut c = clocks(0, 3);
        let first = touched(&mut c, 0);
        assert!(c.floor(1) < first);
        (0..2).for_each(|w| c.arrived(w, 1, true));
        c.opened(1, false);
        assert!(c.row(1)[0] >= first && c.row(2)[0] < first);
        (0..3).for_each(|w| c.arrived(w, 0, true));
        c.opened(0, true);
        assert!((0..3).all(|w| c.floor(w) >= first && c.kept_row(w).is_none()));
        assert!(touched(&mut c, 2) > c.floor(0));
    }

    #[test]
    fn a_relaxed_access_tells_what_is_before_the_last_fence_and_no_more() {
        let places = LocationClocks::default();
        let (mut a, mut b) = (clocks(0, 2), clocks(1, 1));
        let before = touched(&mut a, 0);
        a.release(0, 64, &places);
        b.acquire(0, 64, &places);
        assert!(b.foreign(0).is_empty());
        a.fence(0, false);
        let after = touched(&mut a, 0);
        a.release(0, 64, &places);
        b.acquire(0, 64, &places);
        let times = &b.foreign(0)[&0];
        assert!(times[0] >= before && times[0] < after && times[1] == 0);
    }

    #[test]
    fn a_fence_of_one_warp_counts_for_another_that_it_meets() {
        let places = LocationClocks::default();
        let (mut a, mut b) = (clocks(0, 2), clocks(1, 1));
        let wrote = touched(&mut a, 1);
        a.fence(1, false);
        (0..2).for_each(|w| a.arrived(w, 0, true));
        a.opened(0, true);
        a.release(0, 64, &places);
        b.acquire(0, 64, &places);
        assert!(b.foreign(0)[&0][1] >= wrote);
    }

    #[test]
    fn a_fence_of_the_block_tells_its_own_warps_and_no_other_block() {
        let places = LocationClocks::default();
        let (mut a, mut b) = (clocks(0, 3), clocks(1, 1));
        let wrote = touched(&mut a, 0);
        a.fence(0, true);
        a.release(0, 64, &places);
        b.acquire(0, 64, &places);
        assert!(b.foreign(0).is_empty());
        a.acquire(1, 64, &places);
        assert!(a.row(1)[0] >= wrote);
        // The one that has learned of it passes it on to other blocks by a fence of the device.
        a.release(1, 72, &places);
        b.acquire(0, 72, &places);
        assert!(b.foreign(0).is_empty());
        a.fence(1, false);
        a.release(1, 72, &places);
        b.acquire(0, 72, &places);
        assert!(b.foreign(0)[&0][0] >= wrote);
    }

    #[test]
    fn a_fence_does_not_order_the_lanes_of_a_warp_and_a_meeting_of_them_does() {
        let mut c = clocks(0, 1);
        let wrote = touched(&mut c, 0);
        c.fence(0, false);
        assert!(c.time(0).lanes < wrote);
        c.warp_synced(0);
        assert!(c.time(0).lanes >= wrote);
    }

    #[test]
    fn a_lane_that_acquires_what_another_released_is_behind_it() {
        let places = LocationClocks::default();
        let mut c = clocks(0, 2);
        let wrote = touched(&mut c, 0);
        c.fence(0, false);
        c.release(0, 64, &places);
        c.acquire(0, 64, &places);
        c.acquire(1, 64, &places);
        assert!(c.time(0).lanes >= wrote && c.row(1)[0] >= wrote);
    }
}
