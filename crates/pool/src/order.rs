//! Deferred reuse of freed blocks, ordered by streams, epochs and fences.
//!
//! The host runs ahead of the device: when a block is freed, work that was queued before may still
//! use it. So a freed block enters the queue of the place where it was freed: a stream, or
//! anywhere, which means that work of any stream may use it. Later work of the same stream runs
//! later, so the stream may take the block again at once. Every other stream needs a fence: a point
//! in the stream (an event) behind the free. Either the device has passed it, and the block is
//! ready for all; or the taker's own stream has been made to wait for it.
//!
//! A queue counts epochs. A fence closes the epoch and lies behind all blocks freed up to it, so
//! one fence serves many frees, and freeing calls no driver function.
//!
//! Invariant: a block leaves a queue only to its own stream, to a stream that waits for a fence not
//! before the block's epoch, or when such a fence has been passed.
//!
//! Nothing here calls the driver: the caller does, and reports what it did. Between
//! [`ReuseOrder::begin_fence`] and [`ReuseOrder::end_fence`] the fence is recorded; blocks freed
//! meanwhile belong to the next epoch, and are not behind it.
//!
//! Elsewhere: blocks ([`crate::blocks`]), the queues (`queues`), when fences are recorded and
//! polled ([`crate::pool`]).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::blocks::{AllocLayout, BlockAllocator, BlockId, Fit, SetId, Span};
use crate::place::{PoolPlace, StreamId};
use crate::queues::{FreeQueue, FreeQueues};
use crate::rules::{AllRules, ReuseRule, ReuseRules};

/// A fence is due after this many frees in one queue, or this many bytes, though no fewer than the
/// pool's bytes over the divisor. A stream reuses its own blocks without a fence; blocks freed
/// anywhere are reusable only behind one, and the pool's slack is no larger.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 32 << 20;
const BATCH_BYTES_ANYWHERE: u64 = 8 << 20;
const BATCH_DIVISOR: u64 = 64;

/// After this many frees since another place took a block, a stream is alone: no other stream waits
/// for what it frees. Then there are fewer fences, by this factor, no fence is polled before there
/// are so many, and a freed block is merged with adjacent ready memory, since only the stream's
/// next requests can tell the two apart; except ready blocks larger than this, which may be all
/// that is left for the next stream. If memory is returned as soon as too much is ready, there are
/// more fences, since memory becomes ready only behind one.
const ALONE: u32 = 1024;
const ALONE_BATCHES: u64 = 16;
const WATCHED_BATCHES: u64 = 4;
const ALONE_FENCES: usize = 32;
const ALONE_JOINS: u64 = BATCH_BYTES;

/// An interval of a queue's history, between two fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

impl Epoch {
    /// Later than every epoch.
    pub(crate) const LAST: Epoch = Epoch(u64::MAX);
}

/// A fence: a point behind all blocks of a queue up to an epoch.
#[derive(Debug)]
pub struct ReuseFence<P> {
    /// The queue's place.
    pub place: PoolPlace,
    /// The last epoch it is behind.
    pub epoch: Epoch,
    /// The point in the device's work.
    pub point: Arc<P>,
}

impl<P> Clone for ReuseFence<P> {
    fn clone(&self) -> Self {
        Self {
            point: self.point.clone(),
            ..*self
        }
    }
}

/// A fence is due at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceDue {
    /// Whether to poll earlier fences too: another stream may need what they are behind, or there
    /// are many.
    pub polls: bool,
}

/// The newest fence of each place, by its epoch.
pub(crate) type NewestFences = FxHashMap<PoolPlace, Epoch>;

/// The reuse order; see the module. Not thread-safe: shared users lock it. Fields are in the order
/// in which they are read.
#[derive(Debug)]
#[repr(C)]
pub struct ReuseOrder<P, R = AllRules> {
    /// The place that last took a block, and the number of frees since another did.
    taker: PoolPlace,
    freed: u32,
    watched: bool,
    queues: FreeQueues<P>,
    blocks: BlockAllocator,
    /// The first epoch of new queues. The epochs of removed queues are below it, so that a fence of
    /// a removed queue is never mistaken for one of the present queue.
    first: u64,
    rules: R,
}

impl<P, R: ReuseRules> Default for ReuseOrder<P, R> {
    fn default() -> Self {
        Self {
            blocks: BlockAllocator::new(),
            queues: FreeQueues::default(),
            first: 1,
            taker: PoolPlace::Anywhere,
            freed: 0,
            watched: false,
            rules: R::default(),
        }
    }
}

impl<P, R: ReuseRules> ReuseOrder<P, R> {
    /// The rules that hold.
    pub fn rules(&self) -> &R {
        &self.rules
    }

    /// The blocks.
    pub fn blocks(&self) -> &BlockAllocator {
        &self.blocks
    }

    /// The blocks, for adding and removing memory.
    pub fn blocks_mut(&mut self) -> &mut BlockAllocator {
        &mut self.blocks
    }

    /// Bytes that were freed and are not ready yet.
    pub fn waiting_bytes(&self) -> u64 {
        let blocks = &self.blocks;
        blocks.bytes() - blocks.live_bytes() - blocks.free_bytes(SetId::READY)
    }

    /// Takes a block that later work at `place` may use: of its own queue, of the ready ones, or of
    /// a queue that it waits for.
    #[inline]
    pub fn take(&mut self, place: PoolPlace, layout: AllocLayout) -> Option<BlockId> {
        let fit = self.find(place, layout)?;
        Some(self.blocks.take_of(fit))
    }

    /// The block that [`ReuseOrder::take`] would take from.
    #[inline]
    pub fn find(&mut self, place: PoolPlace, layout: AllocLayout) -> Option<Fit> {
        if self.taker != place {
            (self.taker, self.freed) = (place, 0);
        }
        let queue = match place {
            PoolPlace::Stream(_) => self.queues.get(&place),
            PoolPlace::Anywhere => None,
        };
        let Some(queue) = queue else {
            return self.blocks.fit(SetId::READY, layout, 0);
        };
        let found = match layout.is_large() {
            true => self.blocks.best_fit(queue.set, layout),
            false => {
                let own = self.blocks.fit(queue.set, layout, u64::MAX);
                own.or_else(|| self.blocks.fit(SetId::READY, layout, 0))
            }
        };
        found
            .or_else(|| {
                queue.waited_for.iter().find_map(|(other, epoch)| {
                    let other = self.queues.get(other)?;
                    let bounded = self.rules.is_kept(ReuseRule::WaitsHaveAnEnd);
                    let epoch = if bounded { *epoch } else { u64::MAX };
                    self.blocks.fit(other.set, layout, epoch)
                })
            })
            .or_else(|| {
                if self.rules.is_kept(ReuseRule::OthersWait) {
                    return None;
                }
                let mut others = self.queues.iter();
                others.find_map(|other| self.blocks.fit(other.set, layout, u64::MAX))
            })
    }

    /// Frees a block behind the work queued at `place` so far; `None` if it is not live. Also
    /// returns whether a fence is due there.
    #[inline]
    pub fn give(&mut self, id: BlockId, place: PoolPlace) -> Option<(Span, Option<FenceDue>)> {
        if place == PoolPlace::Anywhere && !self.rules.is_kept(ReuseRule::AnywhereWaits) {
            return Some((self.blocks.give(id, SetId::READY, 0)?, None));
        }
        self.freed = self.freed.saturating_add(1);
        let batch_bytes = match place {
            PoolPlace::Stream(_) => BATCH_BYTES,
            PoolPlace::Anywhere => BATCH_BYTES_ANYWHERE,
        };
        let alone = self.is_alone(place);
        let batches = match (alone, self.watched) {
            (true, false) => ALONE_BATCHES,
            (true, true) => WATCHED_BATCHES,
            (false, _) => 1,
        };
        let batch_bytes = batches * batch_bytes.max(self.blocks.bytes() / BATCH_DIVISOR);
        let queue = Self::queue(&mut self.queues, &mut self.blocks, self.first, place);
        let before = self.blocks.free_bytes(queue.set);
        let span = match alone {
            true => {
                let (set, epoch) = (queue.set, queue.open);
                self.blocks.give_with_ready(id, set, epoch, ALONE_JOINS)?
            }
            false => self.blocks.give(id, queue.set, queue.open)?,
        };
        queue.unfenced += 1;
        // Memory that the stream has taken again waits for no fence.
        let there = self.blocks.free_bytes(queue.set);
        queue.unfenced_bytes = there.min(queue.unfenced_bytes + (there - before));
        let due = queue.unfenced >= BATCH * batches as usize || queue.unfenced_bytes >= batch_bytes;
        let polls = !alone || queue.fences.len() >= ALONE_FENCES;
        Some((span, due.then_some(FenceDue { polls })))
    }

    /// Sets whether memory is returned as soon as too much is ready.
    pub fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }

    /// Simulates that `place` alone has taken blocks for long; for tests.
    #[doc(hidden)]
    pub fn assume_alone(&mut self, place: PoolPlace) {
        (self.taker, self.freed) = (place, ALONE);
    }

    /// Whether one stream alone has taken blocks for long.
    #[inline]
    fn is_alone(&self, place: PoolPlace) -> bool {
        self.freed >= ALONE && self.taker == place && place != PoolPlace::Anywhere
    }

    fn queue<'q>(
        queues: &'q mut FreeQueues<P>,
        blocks: &mut BlockAllocator,
        first: u64,
        place: PoolPlace,
    ) -> &'q mut FreeQueue<P> {
        queues.get_or_insert(place, || FreeQueue::new(place, blocks.new_set(), first))
    }

    // ---- marks --------------------------------------------------------------

    /// Closes the epoch of a queue, so that a point taken after this call is behind it; `None` if
    /// no block waits for one.
    pub fn begin_fence(&mut self, place: PoolPlace) -> Option<Epoch> {
        let queue = self.queues.get_mut(&place)?;
        let (_, newest) = self.blocks.epochs(queue.set)?;
        let fenced = queue.fences.back().map_or(0, |fence| fence.0);
        if newest <= fenced {
            return None;
        }
        queue.unfenced = 0;
        queue.unfenced_bytes = 0;
        let closed = queue.open;
        queue.open += u64::from(self.rules.is_kept(ReuseRule::FencesHaveAnEnd));
        Some(Epoch(closed))
    }

    /// The last epoch with a pending block, for a caller that waits on the host until all work
    /// queued so far is done: then blocks behind an earlier fence are ready too. `None` if no block
    /// is pending.
    pub fn begin_sync(&mut self, place: PoolPlace) -> Option<Epoch> {
        self.begin_fence(place).or_else(|| {
            // The epoch that its newest fence is behind is closed.
            let (_, newest) = self.blocks.epochs(self.queues.get(&place)?.set)?;
            Some(Epoch(newest))
        })
    }

    /// Records the fence's point.
    pub fn end_fence(&mut self, place: PoolPlace, epoch: Epoch, point: P) {
        let Some(queue) = self.queues.get_mut(&place) else {
            return;
        };
        // Fences begun by two threads may end in any order.
        let at = queue.fences.partition_point(|fence| fence.0 < epoch.0);
        queue.fences.insert(at, (epoch.0, Arc::new(point)));
    }

    /// The oldest fence of a queue.
    pub fn oldest_fence(&self, place: PoolPlace) -> Option<ReuseFence<P>> {
        self.fence_at(place, 0)
    }

    /// The fence of a queue that has `at` older ones.
    pub(crate) fn fence_at(&self, place: PoolPlace, at: usize) -> Option<ReuseFence<P>> {
        let (epoch, point) = self.queues.get(&place)?.fences.get(at)?;
        Some(ReuseFence {
            place,
            epoch: Epoch(*epoch),
            point: point.clone(),
        })
    }

    /// How many fences a queue has.
    pub(crate) fn fence_count(&self, place: PoolPlace) -> usize {
        self.queues
            .get(&place)
            .map_or(0, |queue| queue.fences.len())
    }

    /// The oldest fence of every queue.
    pub fn oldest_fences(&self) -> Vec<ReuseFence<P>> {
        let places = self.queues.iter().map(|queue| queue.place);
        places
            .filter_map(|place| self.oldest_fence(place))
            .collect()
    }

    /// The newest fence of every queue that has one.
    pub(crate) fn newest_fences(&self) -> NewestFences {
        let queues = self.queues.iter();
        queues
            .filter_map(|queue| Some((queue.place, Epoch(queue.fences.back()?.0))))
            .collect()
    }

    /// How many queues there are.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The places of all queues.
    pub fn places(&self) -> Vec<PoolPlace> {
        self.queues.iter().map(|queue| queue.place).collect()
    }

    /// Queues with blocks that wait for a fence.
    pub fn unfenced(&self) -> Vec<PoolPlace> {
        let places = self.queues.iter().filter(|queue| {
            let fenced = queue.fences.back().map_or(0, |fence| fence.0);
            let newest = self.blocks.epochs(queue.set);
            newest.is_some_and(|(_, newest)| newest > fenced)
        });
        places.map(|queue| queue.place).collect()
    }

    /// Reports that the device has done all work of a place up to the end of an epoch: its blocks
    /// become ready. Returns their bytes.
    pub fn passed(&mut self, place: PoolPlace, epoch: Epoch) -> u64 {
        let Some(queue) = self.queues.get_mut(&place) else {
            return 0;
        };
        queue.fences.retain(|fence| fence.0 > epoch.0);
        let (set, retired, open) = (queue.set, queue.retired, queue.open);
        let bytes = self.blocks.move_to(set, epoch.0, SetId::READY, 0);
        if retired && self.blocks.drop_set(set) {
            self.first = self.first.max(open + 1);
            self.queues.remove(&place);
            for queue in self.queues.iter_mut() {
                queue.waited_for.remove(&place);
            }
        }
        bytes
    }

    /// Reports that no work uses any freed memory: all of it becomes ready.
    pub fn all_passed(&mut self) {
        for place in self.places() {
            self.passed(place, Epoch::LAST);
        }
    }

    // ---- blocks of other streams ---------------------------------------------------

    /// A queue with a block that `stream` could take after a wait: the fence to wait for, or the
    /// place where one must be recorded first.
    pub fn lender(
        &self,
        stream: StreamId,
        layout: AllocLayout,
    ) -> Option<Result<ReuseFence<P>, PoolPlace>> {
        self.queues
            .iter()
            .filter(|queue| queue.place != PoolPlace::Stream(stream))
            .find_map(|queue| {
                let epoch = self.blocks.would_take(queue.set, layout)?;
                let fence = queue.fences.iter().find(|fence| fence.0 >= epoch);
                Some(fence.map_or(Err(queue.place), |(epoch, point)| {
                    Ok(ReuseFence {
                        place: queue.place,
                        epoch: Epoch(*epoch),
                        point: point.clone(),
                    })
                }))
            })
    }

    /// Reports that later work in `stream` runs behind `fence`.
    pub fn note_wait(&mut self, stream: StreamId, fence: &ReuseFence<P>) {
        let place = PoolPlace::Stream(stream);
        let queue = Self::queue(&mut self.queues, &mut self.blocks, self.first, place);
        let known = queue.waited_for.entry(fence.place).or_insert(0);
        *known = (*known).max(fence.epoch.0);
    }

    /// Moves all blocks that `stream` may use, and ready ones adjacent to them, into its own queue,
    /// so that they are merged.
    pub fn coalesce(&mut self, stream: StreamId) {
        let Some(own) = self.queues.get(&PoolPlace::Stream(stream)) else {
            return;
        };
        let (set, open) = (own.set, own.open);
        for (other, epoch) in &own.waited_for {
            if let Some(other) = self.queues.get(other) {
                self.blocks.move_to(other.set, *epoch, set, open);
            }
        }
        self.blocks.join_ready(set, open);
    }

    /// A stream ends. With `fence`, which is behind all its work, its blocks become ready when that
    /// is passed; without, when a fence of [`PoolPlace::Anywhere`] is.
    pub fn retire(&mut self, stream: StreamId, fence: Option<(Epoch, P)>) {
        let place = PoolPlace::Stream(stream);
        if let Some((epoch, point)) = fence {
            self.end_fence(place, epoch, point);
        }
        let Some(queue) = self.queues.get_mut(&place) else {
            return;
        };
        queue.retired = true;
        queue.waited_for.clear();
        let (set, fenced) = (queue.set, queue.fences.back().map_or(0, |fence| fence.0));
        let newest = self.blocks.epochs(set).map_or(0, |epochs| epochs.1);
        if newest > fenced {
            let anywhere = Self::queue(
                &mut self.queues,
                &mut self.blocks,
                self.first,
                PoolPlace::Anywhere,
            );
            let (into, open) = (anywhere.set, anywhere.open);
            anywhere.unfenced += 1;
            self.blocks.move_to(set, u64::MAX, into, open);
        }
        self.passed(place, Epoch(0));
    }
}
