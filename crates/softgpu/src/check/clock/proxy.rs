//! Accesses that the asynchronous proxy may see: those behind a proxy fence, and its own operations
//! that are complete.
//!
//! Both are known, passed on and learned like accesses of threads: a block's number with a mark
//! stands for them among the blocks that a thread knows of. What is known of `block` with
//! [`SEEN_SHARED`] is behind a fence of the proxy for shared memory; with [`COMPLETE`] the times
//! are those of operations, of each mbarrier or group that tells of them.

use std::sync::Arc;

use super::WarpClocks;
use crate::check::known::{BlockTimes, KnownBlocks, join, raise_block};

/// Marks of a block's number.
const MARKS: u32 = 3 << 30;
/// Accesses that the asynchronous proxy sees, of shared memory.
pub(crate) const SEEN_SHARED: u32 = 2 << 30;
/// The same of global memory.
pub(crate) const SEEN_GLOBAL: u32 = 1 << 30;
/// Complete operations of the asynchronous proxy.
const COMPLETE: u32 = MARKS;

/// How an operation of the asynchronous proxy is known to be complete: `time` of the operations of
/// `actor` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    /// The block with the mbarrier or the thread that tells of it.
    pub(crate) block: u32,
    pub(crate) actor: u32,
    pub(crate) time: u32,
}

impl Completion {
    /// The same as knowledge.
    pub(crate) fn known(self) -> Arc<KnownBlocks> {
        let mut times = BlockTimes::default();
        times.raise_lanes(self.actor / 32, 1 << (self.actor % 32), self.time);
        let mut known = Arc::default();
        raise_block(&mut known, self.block & !MARKS | COMPLETE, times);
        known
    }

    /// The same, and that what lane `lane` of warp `w` of the own block has done is before.
    pub(crate) fn known_with(
        self,
        clocks: &WarpClocks,
        (w, lane): (usize, u32),
    ) -> Arc<KnownBlocks> {
        let mut times = BlockTimes::default();
        times.raise_lanes(w as u32, 1 << lane, clocks.now(w));
        let mut known = self.known();
        raise_block(&mut known, clocks.block, times);
        known
    }

    /// Whether lane `lane` of warp `w` knows it.
    pub(crate) fn is_known(self, clocks: &WarpClocks, w: usize, lane: u32) -> bool {
        let block = self.block & !MARKS | COMPLETE;
        clocks.views(w).has(lane, block, self.actor, self.time)
    }
}

impl WarpClocks {
    /// The block whose clocks these are.
    pub(crate) fn block(&self) -> u32 {
        self.block
    }

    /// Lanes of warp `w` have passed a fence of the asynchronous proxy: that sees what is before
    /// it, in the memories that `seen` marks, where what the lanes did is known.
    pub(crate) fn proxy_fence(&mut self, w: usize, mask: u32, seen: &[u32]) {
        if self.live[w] & !mask == 0 {
            let more = self.seen_by(w, mask, seen);
            join(&mut self.views[w].common, &more);
        } else {
            for lane in super::lanes_of(mask) {
                let more = self.seen_by(w, 1 << lane, seen);
                join(&mut self.views[w].lane_mut(lane).known, &more);
            }
        }
        self.tick(w);
    }

    fn seen_by(&self, w: usize, mask: u32, seen: &[u32]) -> Arc<KnownBlocks> {
        let known = self.known_to(w, mask);
        let accesses = known.iter().filter(|(block, _)| **block & MARKS == 0);
        let marked = accesses
            .flat_map(|(block, times)| seen.iter().map(move |mark| (block | mark, times.clone())));
        Arc::new(marked.collect())
    }

    /// Whether the asynchronous proxy, at the hand of a lane, sees what `thread` of `block` did at
    /// `time`.
    pub(crate) fn is_seen(
        &self,
        (w, lane): (usize, u32),
        mark: u32,
        block: u32,
        (thread, time): (u32, u32),
    ) -> bool {
        self.views[w].has(lane, block & !MARKS | mark, thread, time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks() -> WarpClocks {
        let mut c = WarpClocks::default();
        c.start(7, 2);
        c
    }

    #[test]
    fn the_proxy_sees_what_is_before_a_fence_and_what_others_pass_on() {
        let mut c = clocks();
        c.touch(0);
        let before = c.now(0);
        c.proxy_fence(0, u32::MAX, &[SEEN_SHARED]);
        c.touch(0);
        let after = c.now(0);
        let sees = |c: &WarpClocks, w, time| c.is_seen((w, 3), SEEN_SHARED, 7, (5, time));
        assert!(sees(&c, 0, before) && !sees(&c, 0, after) && !sees(&c, 1, before));
        assert!(!c.is_seen((0, 3), SEEN_GLOBAL, 7, (5, before)));
        (0..2).for_each(|w| c.arrived(w, 0, true));
        c.opened(0, true);
        assert!(sees(&c, 1, before) && !sees(&c, 1, after));
        // A fence behind the barrier does for what all did before it.
        c.proxy_fence(1, 1, &[SEEN_SHARED]);
        assert!(c.is_seen((1, 0), SEEN_SHARED, 7, (5, after)) && !sees(&c, 1, after));
    }

    #[test]
    fn completions_are_passed_on_like_accesses() {
        let mut c = clocks();
        let done = Completion {
            block: 7,
            actor: 70_001,
            time: 3,
        };
        c.learn(0, 2, &done.known(), false);
        let earlier = Completion { time: 2, ..done };
        let later = Completion { time: 4, ..done };
        assert!(done.is_known(&c, 0, 1) && earlier.is_known(&c, 0, 1));
        assert!(!later.is_known(&c, 0, 1) && !done.is_known(&c, 0, 0));
        c.warp_synced(0, u32::MAX);
        assert!(done.is_known(&c, 0, 0) && !done.is_known(&c, 1, 0));
    }
}
