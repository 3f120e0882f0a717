//! Vector clocks of a block's warps, and of the locations through which threads synchronise.
//!
//! A warp's time is a number that grows when it synchronises after having touched memory. Its clock
//! holds for every warp of its block the time up to which that warp's accesses are before what it
//! does now, and the same for other blocks ([`super::known`]). Barriers join clocks. A release
//! stores what its thread did, and what is before that, at a location; an acquire joins what
//! the location has; atomics do both. A relaxed access releases what is before its thread's last
//! fence. A fence or a release with the scope of the block counts for the threads of its own block
//! alone.
//!
//! Invariant: what a lane does, fences, and acquires is its own until the lanes of the warp meet,
//! all of them or those of a mask. Only what differs from the warp's clock is held for a lane.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use super::known::{
    BlockTimes, FencedBlocks, KnownBlocks, LocationClocks, WarpTimes, has_all, join, join_fenced,
    join_scopes, raise_block, release_to,
};
use super::views::{LaneView, ThreadViews};

mod proxy;
pub(crate) use proxy::{Completion, SEEN_GLOBAL, SEEN_SHARED};

/// What is before a point in the execution of a warp.
#[derive(Debug, Clone, Default)]
struct ClockView {
    /// In the block itself.
    within: Vec<u32>,
    /// In other blocks, and of single threads of the block itself.
    foreign: Arc<KnownBlocks>,
    /// What of both is before a fence, and so before what a relaxed access tells others.
    fenced: FencedBlocks,
}

impl ClockView {
    fn join(&mut self, other: &ClockView) {
        for (a, b) in self.within.iter_mut().zip(&other.within) {
            *a = (*a).max(*b);
        }
        join(&mut self.foreign, &other.foreign);
        join_scopes(&mut self.fenced, &other.fenced);
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

/// The times at which a warp's lanes have passed a fence since the lanes last met; 0: none.
type FenceTimes = [u32; 32];

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
    /// Lanes that have not exited.
    live: Vec<u32>,
    /// `known[w * warps + v]`: time of `v` up to which `w` follows it.
    known: Vec<u32>,
    /// Least of `known[w]`, `w` itself left out.
    lowest: Vec<u32>,
    /// `known[w]` for logs, where its numbers differ.
    rows: Vec<Option<WarpTimes>>,
    views: Vec<ThreadViews>,
    fenced: Vec<FencedBlocks>,
    /// By lane, of each scope.
    fences: Vec<[FenceTimes; 2]>,
    /// Whether `fences` has any.
    passed: Vec<bool>,
    /// Whether nothing was touched since all warps met.
    settled: bool,
    /// The views of arrived warps, by barrier.
    gathering: FxHashMap<u32, (ClockView, Vec<usize>)>,
    /// What a location in shared memory tells: behind fences of the device, and of the block.
    locations: [FxHashMap<u32, Arc<KnownBlocks>>; 2],
    /// What a location in global memory tells this block alone.
    near: FxHashMap<u64, Arc<KnownBlocks>>,
}

fn lanes_of(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |l| mask >> l & 1 != 0)
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
        fill(&mut self.live, warps, u32::MAX);
        fill(&mut self.known, warps * warps, 0);
        fill(
            &mut self.lowest,
            warps,
            if warps == 1 { u32::MAX } else { 0 },
        );
        fill(&mut self.rows, warps, None);
        let none = ThreadViews::of(block);
        fill(&mut self.views, warps, none);
        fill(&mut self.fenced, warps, FencedBlocks::default());
        fill(&mut self.fences, warps, [[0; 32]; 2]);
        fill(&mut self.passed, warps, false);
        self.settled = true;
        self.gathering.clear();
        self.locations.iter_mut().for_each(FxHashMap::clear);
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

    /// The lanes of warp `w` that have not exited, from now on.
    #[inline(always)]
    pub(crate) fn set_live(&mut self, w: usize, live: u32) {
        self.live[w] = live;
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

    /// What the threads of warp `w` know besides.
    #[inline(always)]
    pub(crate) fn views(&self, w: usize) -> &ThreadViews {
        &self.views[w]
    }

    /// The same to be kept; `None` if they know no more than their warp's row.
    pub(crate) fn kept_views(&self, w: usize) -> Option<Arc<ThreadViews>> {
        let views = &self.views[w];
        (!views.is_empty()).then(|| Arc::new(views.clone()))
    }

    /// Whether what `of` did at `time` is before what `thread` does now; both are of the block.
    pub(crate) fn follows(&self, thread: u32, of: u32, time: u32) -> bool {
        let (w, v) = ((thread / 32) as usize, (of / 32) as usize);
        let by_warp = if v == w {
            time <= self.lanes(w)
        } else {
            self.row(w).get(v).is_none_or(|&k| time <= k)
        };
        thread == of || by_warp || self.views[w].has_own(thread % 32, of, time)
    }

    fn tick(&mut self, w: usize) {
        if self.dirty[w] {
            self.own[w] += 1;
            self.dirty[w] = false;
        }
    }

    /// The time up to which what warp `w` has done is before what it does after an event now.
    fn upto(&self, w: usize) -> u32 {
        self.own[w] - u32::from(!self.dirty[w])
    }

    /// The lanes of `mask` of warp `w` have met.
    pub(crate) fn warp_synced(&mut self, w: usize, mask: u32) {
        if self.live[w] & !mask == 0 {
            self.fold(w);
            self.tick(w);
            self.synced[w] = self.own[w];
            return;
        }
        let same = self.views[w].lanes.is_empty() && !self.passed[w];
        if mask.count_ones() <= 1 || same && !self.dirty[w] && self.synced[w] == self.own[w] {
            return;
        }
        let known = self.known_to(w, mask);
        let fenced = [false, true].map(|near| self.fenced_of(w, mask, near));
        for l in lanes_of(mask & self.live[w]) {
            *self.views[w].lane_mut(l) = LaneView {
                known: known.clone(),
                fenced: fenced.clone(),
            };
        }
        self.tick(w);
    }

    /// What single lanes of warp `w` know and have fenced becomes the warp's.
    fn fold(&mut self, w: usize) {
        for (_, view) in std::mem::take(&mut self.views[w].lanes) {
            self.learn_blocks(w, &view.known);
            join_scopes(&mut self.fenced[w], &view.fenced);
        }
        if !self.passed[w] {
            return;
        }
        for near in [false, true] {
            let times = std::mem::take(&mut self.fences[w][usize::from(near)]);
            let mut of_block = BlockTimes::of_warps(vec![0; self.warps()]);
            let live = self.live[w];
            // Lanes that have exited fence nothing more; they are no reason to tell threads apart.
            let least = lanes_of(live).map(|l| times[l as usize]).min().unwrap_or(0);
            of_block.raise_lanes(w as u32, u32::MAX, least);
            for l in lanes_of(live) {
                of_block.raise_lanes(w as u32, 1 << l, times[l as usize]);
            }
            if times.iter().any(|&t| t != 0) {
                let fenced = &mut self.fenced[w][usize::from(near)];
                raise_block(fenced.get_or_insert_default(), self.block, of_block);
            }
        }
        self.passed[w] = false;
    }

    /// Times of the block's threads up to which their accesses are before what the lanes of `mask`
    /// of warp `w` do next, as far as the warp knows it.
    fn times(&self, w: usize, mask: u32) -> BlockTimes {
        let mut warps = self.row(w).to_vec();
        warps[w] = self.lanes(w);
        let mut times = BlockTimes::of_warps(warps);
        times.raise_lanes(w as u32, mask, self.upto(w));
        times
    }

    /// All that is before what any of the lanes of `mask` of warp `w` does next.
    pub(crate) fn known_to(&self, w: usize, mask: u32) -> Arc<KnownBlocks> {
        let views = &self.views[w];
        let mut all = views.common.clone();
        for (_, view) in views.lanes.iter().filter(|(l, _)| mask >> l & 1 != 0) {
            join(&mut all, &view.known);
        }
        raise_block(&mut all, self.block, self.times(w, mask));
        all
    }

    /// What of that is before a fence of any of the lanes; `near`: one with the scope of the block.
    fn fenced_of(&self, w: usize, mask: u32, near: bool) -> Option<Arc<KnownBlocks>> {
        let scope = usize::from(near);
        let mut all = self.fenced[w][scope].clone();
        for (_, view) in self.views[w]
            .lanes
            .iter()
            .filter(|(l, _)| mask >> l & 1 != 0)
        {
            join_fenced(&mut all, view.fenced[scope].as_ref());
        }
        if self.passed[w] {
            let times = &self.fences[w][scope];
            let mut own = BlockTimes::of_warps(Vec::new());
            for l in lanes_of(mask) {
                own.raise_lanes(w as u32, 1 << l, times[l as usize]);
            }
            if lanes_of(mask).any(|l| times[l as usize] != 0) {
                raise_block(all.get_or_insert_default(), self.block, own);
            }
        }
        all
    }

    fn view(&self, w: usize) -> ClockView {
        let mut within = self.row(w).to_vec();
        within[w] = self.upto(w);
        ClockView {
            within,
            foreign: self.views[w].common.clone(),
            fenced: self.fenced[w].clone(),
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

    fn learn_blocks(&mut self, w: usize, found: &Arc<KnownBlocks>) {
        if let Some(times) = found.get(&self.block) {
            self.learn_within(w, times.warps());
        }
        join(&mut self.views[w].common, found);
    }

    /// Warp `w` arrives at barrier `id`, and waits for it or not.
    pub(crate) fn arrived(&mut self, w: usize, id: u32, waits: bool) {
        self.fold(w);
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
            self.learn_within(w, &view.within);
            join(&mut self.views[w].common, &view.foreign);
            join_scopes(&mut self.fenced[w], &view.fenced);
            self.warp_synced(w, u32::MAX);
        }
    }

    /// Everything so far is before everything from now on. `view` is that of all warps that met.
    fn all_met(&mut self, view: &ClockView) {
        for w in 0..self.warps() {
            join(&mut self.views[w].common, &view.foreign);
            join_scopes(&mut self.fenced[w], &view.fenced);
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

    /// Lanes of warp `w` release what is before their last fence to a location of shared memory.
    pub(crate) fn release_shared(&mut self, w: usize, mask: u32, at: u32) {
        for near in [false, true] {
            if let Some(view) = self.fenced_of(w, mask, near) {
                release_to(&mut self.locations[usize::from(near)], at, &view);
            }
        }
    }

    /// Lanes of warp `w` release all that is before to a location of shared memory. Then
    /// [`WarpClocks::released`] follows.
    pub(crate) fn release_shared_all(&mut self, w: usize, mask: u32, at: u32) {
        let view = self.known_to(w, mask);
        release_to(&mut self.locations[0], at, &view);
    }

    /// What warp `w` does from now on is not in what it has released.
    pub(crate) fn released(&mut self, w: usize) {
        self.tick(w);
    }

    /// Lanes of warp `w` acquire the clock of a location of shared memory, behind a fence as wide
    /// as that before its release.
    pub(crate) fn acquire_shared(&mut self, w: usize, mask: u32, at: u32) {
        for near in [false, true] {
            if let Some(found) = self.locations[usize::from(near)].get(&at).cloned() {
                self.learn(w, mask, &found, near);
            }
        }
    }

    /// What the arrival of lanes of warp `w` at their cluster's barrier tells: all that they have
    /// done and know, or with `relaxed` what is before their last fence. That the block has begun
    /// is published in any case.
    pub(crate) fn arrival(&mut self, w: usize, mask: u32, relaxed: bool) -> Arc<KnownBlocks> {
        if !relaxed {
            let all = self.known_to(w, mask);
            self.tick(w);
            return all;
        }
        let mut known = self.fenced_of(w, mask, false).unwrap_or_default();
        raise_block(&mut known, self.block, BlockTimes::default());
        known
    }

    /// What lanes of warp `w` tell another block, all that they have done and know.
    pub(crate) fn published(&mut self, w: usize, mask: u32) -> Arc<KnownBlocks> {
        let all = self.known_to(w, mask);
        self.tick(w);
        all
    }

    /// What is before a fence of theirs.
    pub(crate) fn told_fenced(&self, w: usize, mask: u32) -> Option<Arc<KnownBlocks>> {
        self.fenced_of(w, mask, false)
    }

    /// A location of shared memory gets what a thread of another block tells.
    pub(crate) fn receive(&mut self, at: u32, known: &Arc<KnownBlocks>) {
        release_to(&mut self.locations[0], at, known);
    }

    /// What a location of shared memory has for threads of other blocks.
    pub(crate) fn offered(&self, at: u32) -> Option<Arc<KnownBlocks>> {
        self.locations[0].get(&at).cloned()
    }

    /// The location at `at` tells what `actor` of `block` has done up to `time`, which is returned.
    pub(crate) fn completes(
        &mut self,
        at: u32,
        block: u32,
        actor: u32,
        time: u32,
    ) -> Arc<KnownBlocks> {
        let mut times = BlockTimes::default();
        times.raise_lanes(actor / 32, 1 << (actor % 32), time);
        let mut known = Arc::default();
        raise_block(&mut known, block, times);
        self.receive(at, &known);
        known
    }

    /// Lanes of warp `w` get to know what a location in another block's memory tells.
    pub(crate) fn learns(&mut self, w: usize, mask: u32, known: &Arc<KnownBlocks>) {
        self.learn(w, mask, known, false);
    }

    /// Lanes of warp `w` pass their cluster's barrier, whose phase tells `opened`.
    pub(crate) fn passes(&mut self, w: usize, mask: u32, opened: &Arc<KnownBlocks>) {
        self.learn(w, mask, opened, false);
        self.learn(w, mask, opened, true);
    }

    /// Lanes of warp `w` have passed a fence: what is before it now is before what a relaxed access
    /// of theirs tells others; `near`: those of its block alone.
    pub(crate) fn fence(&mut self, w: usize, mask: u32, near: bool) {
        let (upto, scope) = (self.upto(w), usize::from(near));
        for l in lanes_of(mask & self.views[w].lanes.iter().fold(0, |m, (l, _)| m | 1 << l)) {
            let known = self.known_to(w, 1 << l);
            join_fenced(&mut self.views[w].lane_mut(l).fenced[scope], Some(&known));
        }
        let times = &mut self.fences[w][scope];
        let mut again = self.passed[w];
        for l in lanes_of(mask) {
            again &= times[l as usize] == upto;
            times[l as usize] = upto;
        }
        self.passed[w] = true;
        let times = self.times(w, 0);
        let fenced = &mut self.fenced[w][scope];
        let mut all = self.views[w].common.clone();
        if again
            && fenced
                .as_ref()
                .is_some_and(|f| has_all(f, &all, self.block, &times))
        {
            return;
        }
        raise_block(&mut all, self.block, times);
        join_fenced(fenced, Some(&all));
        self.tick(w);
    }

    /// Whether some address of global memory may have anything for warps of this block.
    pub(crate) fn may_acquire(&self, locations: &LocationClocks) -> bool {
        !self.near.is_empty() || !locations.is_empty()
    }

    /// The same of shared memory.
    pub(crate) fn may_acquire_shared(&self) -> bool {
        self.locations.iter().any(|l| !l.is_empty())
    }

    /// Whether lanes of warp `w` have anything to release by a relaxed access.
    pub(crate) fn has_fenced(&self, w: usize) -> bool {
        self.passed[w]
            || self.fenced[w].iter().any(Option::is_some)
            || !self.views[w].lanes.is_empty()
    }

    /// Lanes of warp `w` release what is before their last fence to an address of global memory.
    pub(crate) fn release(&mut self, w: usize, mask: u32, addr: u64, locations: &LocationClocks) {
        if let Some(fenced) = self.fenced_of(w, mask, false) {
            locations.release(addr, &fenced);
        }
        if let Some(fenced) = self.fenced_of(w, mask, true) {
            release_to(&mut self.near, addr, &fenced);
        }
    }

    /// The same of all that is before; `near`: to the block alone. Then [`WarpClocks::released`]
    /// follows.
    pub(crate) fn release_all(
        &mut self,
        w: usize,
        mask: u32,
        addr: u64,
        near: bool,
        locations: &LocationClocks,
    ) {
        let view = self.known_to(w, mask);
        if near {
            release_to(&mut self.near, addr, &view);
        } else {
            locations.release(addr, &view);
        }
    }

    /// Lanes of warp `w` acquire what an address of global memory has.
    pub(crate) fn acquire(&mut self, w: usize, mask: u32, addr: u64, locations: &LocationClocks) {
        if let Some(found) = locations.get(addr) {
            self.learn(w, mask, &found, false);
        }
        if !self.near.is_empty()
            && let Some(found) = self.near.get(&addr).cloned()
        {
            self.learn(w, mask, &found, true);
        }
    }

    /// Lanes of warp `w` learn what others have released. What was acquired so counts as fenced.
    pub(crate) fn learn(&mut self, w: usize, mask: u32, found: &Arc<KnownBlocks>, near: bool) {
        let scope = usize::from(near);
        if self.live[w] & !mask == 0 {
            self.learn_blocks(w, found);
            join_fenced(&mut self.fenced[w][scope], Some(found));
            return;
        }
        for l in lanes_of(mask) {
            let view = self.views[w].lane_mut(l);
            join(&mut view.known, found);
            join_fenced(&mut view.fenced[scope], Some(found));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = u32::MAX;

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
        a.release(0, ALL, 64, &places);
        b.acquire(0, ALL, 64, &places);
        assert!(b.views(0).is_empty());
        a.fence(0, ALL, false);
        let after = touched(&mut a, 0);
        a.release(0, ALL, 64, &places);
        b.acquire(0, ALL, 64, &places);
        let has = |thread, time| b.views(0).has(0, 0, thread, time);
        assert!(has(0, before) && !has(0, after) && !has(32, 1));
    }

    #[test]
    fn a_fence_of_one_warp_counts_for_another_that_it_meets() {
        let places = LocationClocks::default();
        let (mut a, mut b) = (clocks(0, 2), clocks(1, 1));
        let wrote = touched(&mut a, 1);
        a.fence(1, ALL, false);
        (0..2).for_each(|w| a.arrived(w, 0, true));
        a.opened(0, true);
        a.release(0, ALL, 64, &places);
        b.acquire(0, ALL, 64, &places);
        assert!(b.views(0).has(0, 0, 32, wrote));
    }

    #[test]
    fn a_fence_of_the_block_tells_its_own_warps_and_no_other_block() {
        let places = LocationClocks::default();
        let (mut a, mut b) = (clocks(0, 3), clocks(1, 1));
        let wrote = touched(&mut a, 0);
        a.fence(0, ALL, true);
        a.release(0, ALL, 64, &places);
        b.acquire(0, ALL, 64, &places);
        assert!(b.views(0).is_empty());
        a.acquire(1, ALL, 64, &places);
        assert!(a.row(1)[0] >= wrote);
        // The one that has learned of it passes it on to other blocks by a fence of the device.
        a.release(1, ALL, 72, &places);
        b.acquire(0, ALL, 72, &places);
        assert!(b.views(0).is_empty());
        a.fence(1, ALL, false);
        a.release(1, ALL, 72, &places);
        b.acquire(0, ALL, 72, &places);
        assert!(b.views(0).has(0, 0, 0, wrote));
    }

    #[test]
    fn a_fence_does_not_order_the_lanes_of_a_warp_and_a_meeting_of_them_does() {
        let mut c = clocks(0, 1);
        let wrote = touched(&mut c, 0);
        c.fence(0, ALL, false);
        assert!(c.time(0).lanes < wrote);
        c.warp_synced(0, ALL);
        assert!(c.time(0).lanes >= wrote);
    }

    #[test]
    fn a_lane_that_acquires_what_another_released_is_behind_it() {
        let places = LocationClocks::default();
        let mut c = clocks(0, 2);
        let wrote = touched(&mut c, 0);
        c.fence(0, ALL, false);
        c.release(0, ALL, 64, &places);
        c.acquire(0, ALL, 64, &places);
        c.acquire(1, ALL, 64, &places);
        assert!(c.time(0).lanes >= wrote && c.row(1)[0] >= wrote);
    }

    #[test]
    fn what_a_lane_releases_is_its_own_until_its_warp_has_met() {
        let places = LocationClocks::default();
        let (mut a, mut b) = (clocks(0, 1), clocks(1, 1));
        let before = touched(&mut a, 0);
        a.warp_synced(0, ALL);
        let wrote = touched(&mut a, 0);
        a.fence(0, 1, false);
        a.release(0, 1, 64, &places);
        b.acquire(0, ALL, 64, &places);
        let has = |b: &WarpClocks, thread, time| b.views(0).has(0, 0, thread, time);
        assert!(has(&b, 0, wrote) && !has(&b, 1, wrote) && has(&b, 1, before));
        // A fence of another lane counts once they have met, and not what follows it.
        a.fence(0, 2, false);
        let after = touched(&mut a, 0);
        a.warp_synced(0, 3);
        a.release(0, 1, 64, &places);
        b.acquire(0, ALL, 64, &places);
        assert!(has(&b, 1, wrote) && !has(&b, 1, after) && !has(&b, 2, wrote));
        a.warp_synced(0, ALL);
        a.fence(0, 1, false);
        a.release(0, 1, 64, &places);
        b.acquire(0, ALL, 64, &places);
        assert!((0..32).all(|l| has(&b, l, after)));
    }

    #[test]
    fn what_a_lane_acquires_is_its_own_until_its_warp_has_met() {
        let places = LocationClocks::default();
        let (mut a, mut b) = (clocks(0, 1), clocks(1, 2));
        let wrote = touched(&mut a, 0);
        a.fence(0, ALL, false);
        a.release(0, ALL, 64, &places);
        b.acquire(0, 1 << 3, 64, &places);
        let has = |b: &WarpClocks, w, lane| b.views(w).has(lane, 0, 9, wrote);
        assert!(has(&b, 0, 3) && !has(&b, 0, 4) && !has(&b, 1, 3));
        b.warp_synced(0, 0xff);
        assert!(has(&b, 0, 4) && !has(&b, 0, 8));
        (0..2).for_each(|w| b.arrived(w, 0, true));
        b.opened(0, true);
        assert!((0..32).all(|l| has(&b, 0, l) && has(&b, 1, l)));
    }

    #[test]
    fn lanes_of_a_mask_meet_and_no_others() {
        let mut c = clocks(0, 1);
        let wrote = touched(&mut c, 0);
        c.warp_synced(0, 0xffff);
        assert!(c.follows(3, 15, wrote) && !c.follows(3, 16, wrote) && !c.follows(16, 3, wrote));
        let again = touched(&mut c, 0);
        c.warp_synced(0, 3);
        assert!(c.follows(0, 1, again) && !c.follows(0, 2, again) && c.follows(0, 2, wrote));
        // The lanes that are left are all of them.
        c.set_live(0, 7);
        c.warp_synced(0, 7);
        assert!(c.follows(0, 2, again) && c.time(0).lanes >= again);
    }
}
