//! Knowledge of a warp's threads besides the times of their block's warps.

use std::sync::Arc;

use super::known::{FencedBlocks, KnownBlocks, is_known};

/// What a lane knows besides its warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaneView {
    pub(super) known: Arc<KnownBlocks>,
    pub(super) fenced: FencedBlocks,
}

/// What a warp's threads know besides the times of the block's warps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadViews {
    block: u32,
    /// Of other blocks, and of single threads of its own, all of them.
    pub(super) common: Arc<KnownBlocks>,
    /// Single lanes, in no order.
    pub(super) lanes: Vec<(u32, LaneView)>,
}

impl ThreadViews {
    /// Those of threads of `block` that know nothing yet.
    pub(super) fn of(block: u32) -> Self {
        ThreadViews {
            block,
            ..ThreadViews::default()
        }
    }

    /// Whether they know no more than their warp's row of times.
    pub(crate) fn is_empty(&self) -> bool {
        self.common.is_empty() && self.lanes.is_empty()
    }

    /// Whether what `thread` of `block` did at `time` is known to `lane` to be before.
    pub(crate) fn has(&self, lane: u32, block: u32, thread: u32, time: u32) -> bool {
        is_known(&self.common, block, thread, time)
            || self
                .lanes
                .iter()
                .any(|(l, v)| *l == lane && is_known(&v.known, block, thread, time))
    }

    /// Whether that is known to any of them.
    pub(crate) fn any_has(&self, block: u32, thread: u32, time: u32) -> bool {
        let mut lanes = self.lanes.iter();
        is_known(&self.common, block, thread, time)
            || lanes.any(|(_, v)| is_known(&v.known, block, thread, time))
    }

    /// Whether anything that `lane` knows is of `block`: then that has begun.
    pub(crate) fn has_block(&self, lane: u32, block: u32) -> bool {
        let mut lanes = self.lanes.iter();
        self.common.contains_key(&block)
            || lanes.any(|(l, v)| *l == lane && v.known.contains_key(&block))
    }

    /// The same of a thread of the own block.
    pub(crate) fn has_own(&self, lane: u32, thread: u32, time: u32) -> bool {
        self.has(lane, self.block, thread, time)
    }

    pub(super) fn lane_mut(&mut self, lane: u32) -> &mut LaneView {
        let at = match self.lanes.iter().position(|(l, _)| *l == lane) {
            Some(at) => at,
            None => {
                self.lanes.push((lane, LaneView::default()));
                self.lanes.len() - 1
            }
        };
        &mut self.lanes[at].1
    }
}
