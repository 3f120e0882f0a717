//! What freed blocks wait for.
//!
//! The host runs ahead of the device: when a block is freed, work that was
//! queued before may still use it. So a freed block goes to the queue of the
//! place where it was freed: a stream, or nowhere in particular, which means
//! that work of any stream may use it. Work queued in that same stream later
//! runs later, so the stream may take the block again at once. Everybody else
//! needs a mark: a point in the stream (an event) behind the free. Either the
//! device has passed it, then the block is ready for all; or the taker's own
//! stream has been told to wait for it.
//!
//! A queue counts epochs. A mark closes the epoch and stands behind all blocks
//! freed up to it, so one mark does for many frees, and freeing makes no call
//! of the driver's.
//!
//! Invariant: a block leaves a queue only to its own stream, to a stream that
//! waits for a mark not before the block's epoch, or when such a mark has been
//! passed.
//!
//! Nothing here calls the driver: who does tells what it did. Between
//! [`Order::begin_mark`] and [`Order::end_mark`] the mark is set; blocks freed
//! meanwhile are of the next epoch, and not behind it.
//!
//! Elsewhere: blocks ([`crate::blocks`]), the queues (`queues`), when marks are set and asked after
//! ([`crate::pool`]).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::blocks::{BlockId, Blocks, Fit, SetId, Span, Want};
use crate::queues::{Queue, Queues};

/// Frees in one queue after which a mark is due; or bytes, so many at least,
/// and one part of all. A stream has its own blocks again without a mark; nobody
/// has what was freed anywhere, and a pool's slack is no larger.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 32 << 20;
const BATCH_BYTES_ANYWHERE: u64 = 8 << 20;
const BATCH_PART: u64 = 64;

/// After so many frees since anybody else took a block, a stream is alone: what it
/// frees nobody else waits for. Then there are fewer marks, by this, nobody looks
/// whether they have been passed before there are so many, and what is freed is
/// one with what is ready beside it, since only the stream's next requests can
/// tell the two apart: but for what is larger than this, which may be all that
/// there is for who comes next. Where memory is given back as soon as too much is
/// ready there are more marks, since without one nothing is.
const ALONE: u32 = 1024;
const ALONE_BATCHES: u64 = 16;
const WATCHED_BATCHES: u64 = 4;
const ALONE_MARKS: usize = 32;
const ALONE_JOINS: u64 = BATCH_BYTES;

/// A stream, by a number that no other stream ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Where a block is taken or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// In the order of a stream.
    Stream(StreamId),
    /// In no stream's: taken for work anywhere, the host's included; freed
    /// behind all work queued so far.
    Anywhere,
}

/// A stretch of a queue's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

impl Epoch {
    /// Behind everything.
    pub(crate) const LAST: Epoch = Epoch(u64::MAX);
}

/// A point behind all blocks of a queue up to an epoch.
#[derive(Debug)]
pub struct Mark<P> {
    /// Where.
    pub place: Place,
    /// The last epoch it is behind.
    pub epoch: Epoch,
    /// The point.
    pub point: Arc<P>,
}

impl<P> Clone for Mark<P> {
    fn clone(&self) -> Self {
        Self {
            point: self.point.clone(),
            ..*self
        }
    }
}

/// A mark is due at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// And a look whether earlier ones have been passed: somebody else may want
    /// what they are behind, or there are many.
    pub looks: bool,
}

/// The newest marks that there were, by what they are behind.
pub(crate) type Newest = FxHashMap<Place, Epoch>;

/// A rule of reuse that a test may break, to show that it would see it.
#[cfg(feature = "broken-rules")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A stream takes another's blocks only after a wait.
    OthersWait,
    /// A wait covers what was freed before its mark, and no more.
    WaitsHaveAnEnd,
    /// A mark covers what was freed before it was begun, and no more.
    MarksHaveAnEnd,
    /// What was freed in no stream waits for all streams.
    AnywhereWaits,
    /// An arena's blocks that were freed elsewhere are not cut again.
    ElsewhereIsLost,
}

/// See the module. Not for several threads at a time; whoever shares it locks. In
/// the order in which it is read.
#[derive(Debug)]
#[repr(C)]
pub struct Order<P> {
    /// Who took a block last, and how many were freed since another did.
    taker: Place,
    freed: u32,
    watched: bool,
    queues: Queues<P>,
    blocks: Blocks,
    /// Queues begin with this epoch. Those of queues that are gone are below it,
    /// so that nobody who still has a mark of one takes it for a mark of the
    /// queue that is there now.
    first: u64,
    #[cfg(feature = "broken-rules")]
    broken: Option<Rule>,
}

impl<P> Default for Order<P> {
    fn default() -> Self {
        Self {
            blocks: Blocks::new(),
            queues: Queues::default(),
            first: 1,
            taker: Place::Anywhere,
            freed: 0,
            watched: false,
            #[cfg(feature = "broken-rules")]
            broken: None,
        }
    }
}

/// Whether a rule holds: without tests that break it, it does.
macro_rules! holds {
    ($order:expr, $rule:ident) => {{
        #[cfg(feature = "broken-rules")]
        let holds = $order.broken != Some(Rule::$rule);
        #[cfg(not(feature = "broken-rules"))]
        let holds = true;
        holds
    }};
}

impl<P> Order<P> {
    /// Breaks a rule from now on.
    #[cfg(feature = "broken-rules")]
    pub fn break_rule(&mut self, rule: Rule) {
        self.broken = Some(rule);
    }

    /// The blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The blocks, to add memory and take it away.
    pub fn blocks_mut(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    /// Bytes that were freed and are not ready.
    pub fn waiting_bytes(&self) -> u64 {
        let blocks = &self.blocks;
        blocks.bytes() - blocks.live_bytes() - blocks.free_bytes(SetId::READY)
    }

    /// Takes a block that work queued at `place` from now on may use: of its
    /// own queue, of the ready ones, or of a queue that it waits for.
    #[inline]
    pub fn take(&mut self, place: Place, want: Want) -> Option<BlockId> {
        let fit = self.find(place, want)?;
        Some(self.blocks.take_of(fit))
    }

    /// What [`Order::take`] takes of.
    #[inline]
    pub fn find(&mut self, place: Place, want: Want) -> Option<Fit> {
        if self.taker != place {
            (self.taker, self.freed) = (place, 0);
        }
        let queue = match place {
            Place::Stream(_) => self.queues.get(&place),
            Place::Anywhere => None,
        };
        let Some(queue) = queue else {
            return self.blocks.fit(SetId::READY, want, 0);
        };
        let found = match want.is_large() {
            true => self.blocks.best_fit(queue.set, want),
            false => {
                let own = self.blocks.fit(queue.set, want, u64::MAX);
                own.or_else(|| self.blocks.fit(SetId::READY, want, 0))
            }
        };
        found
            .or_else(|| {
                queue.knows.iter().find_map(|(other, epoch)| {
                    let other = self.queues.get(other)?;
                    let bounded = holds!(self, WaitsHaveAnEnd);
                    let epoch = if bounded { *epoch } else { u64::MAX };
                    self.blocks.fit(other.set, want, epoch)
                })
            })
            .or_else(|| {
                if holds!(self, OthersWait) {
                    return None;
                }
                let mut others = self.queues.iter();
                others.find_map(|other| self.blocks.fit(other.set, want, u64::MAX))
            })
    }

    /// Frees a block behind the work queued at `place` so far; none if it is
    /// not live. With whether a mark is due there.
    #[inline]
    pub fn give(&mut self, id: BlockId, place: Place) -> Option<(Span, Option<Due>)> {
        if place == Place::Anywhere && !holds!(self, AnywhereWaits) {
            return Some((self.blocks.give(id, SetId::READY, 0)?, None));
        }
        self.freed = self.freed.saturating_add(1);
        let batch_bytes = match place {
            Place::Stream(_) => BATCH_BYTES,
            Place::Anywhere => BATCH_BYTES_ANYWHERE,
        };
        let alone = self.is_alone(place);
        let batches = match (alone, self.watched) {
            (true, false) => ALONE_BATCHES,
            (true, true) => WATCHED_BATCHES,
            (false, _) => 1,
        };
        let batch_bytes = batches * batch_bytes.max(self.blocks.bytes() / BATCH_PART);
        let queue = Self::queue(&mut self.queues, &mut self.blocks, self.first, place);
        let before = self.blocks.free_bytes(queue.set);
        let span = match alone {
            true => {
                let (set, epoch) = (queue.set, queue.open);
                self.blocks.give_with_ready(id, set, epoch, ALONE_JOINS)?
            }
            false => self.blocks.give(id, queue.set, queue.open)?,
        };
        queue.unmarked += 1;
        // What the stream has taken again waits for no mark.
        let there = self.blocks.free_bytes(queue.set);
        queue.unmarked_bytes = there.min(queue.unmarked_bytes + (there - before));
        let due = queue.unmarked >= BATCH * batches as usize || queue.unmarked_bytes >= batch_bytes;
        let looks = !alone || queue.marks.len() >= ALONE_MARKS;
        Some((span, due.then_some(Due { looks })))
    }

    /// Whether memory is given back as soon as too much is ready.
    pub fn watch(&mut self, watched: bool) {
        self.watched = watched;
    }

    /// As if somebody alone had taken blocks for long; for tests.
    #[doc(hidden)]
    pub fn leave_alone(&mut self, place: Place) {
        (self.taker, self.freed) = (place, ALONE);
    }

    /// Whether nobody but a stream has taken blocks for long.
    #[inline]
    fn is_alone(&self, place: Place) -> bool {
        self.freed >= ALONE && self.taker == place && place != Place::Anywhere
    }

    fn queue<'q>(
        queues: &'q mut Queues<P>,
        blocks: &mut Blocks,
        first: u64,
        place: Place,
    ) -> &'q mut Queue<P> {
        queues.get_or_insert(place, || Queue::new(place, blocks.new_set(), first))
    }

    // ---- marks --------------------------------------------------------------

    /// Closes the epoch of a queue, so that a point taken from now on is
    /// behind it; none if no block waits for one.
    pub fn begin_mark(&mut self, place: Place) -> Option<Epoch> {
        let queue = self.queues.get_mut(&place)?;
        let (_, newest) = self.blocks.epochs(queue.set)?;
        let marked = queue.marks.back().map_or(0, |mark| mark.0);
        if newest <= marked {
            return None;
        }
        queue.unmarked = 0;
        queue.unmarked_bytes = 0;
        let closed = queue.open;
        queue.open += u64::from(holds!(self, MarksHaveAnEnd));
        Some(Epoch(closed))
    }

    /// The last epoch of which a block waits, for who waits on the host until all
    /// that is queued so far is done: then also what is behind a mark is ready. None
    /// if no block waits.
    pub fn begin_sync(&mut self, place: Place) -> Option<Epoch> {
        self.begin_mark(place).or_else(|| {
            // That which its newest mark is behind is closed.
            let (_, newest) = self.blocks.epochs(self.queues.get(&place)?.set)?;
            Some(Epoch(newest))
        })
    }

    /// The point is taken.
    pub fn end_mark(&mut self, place: Place, epoch: Epoch, point: P) {
        let Some(queue) = self.queues.get_mut(&place) else {
            return;
        };
        // Marks that two threads have begun may end in any order.
        let at = queue.marks.partition_point(|mark| mark.0 < epoch.0);
        queue.marks.insert(at, (epoch.0, Arc::new(point)));
    }

    /// The oldest mark of a queue.
    pub fn oldest_mark(&self, place: Place) -> Option<Mark<P>> {
        self.mark_at(place, 0)
    }

    /// The mark of a queue that so many are older than.
    pub(crate) fn mark_at(&self, place: Place, at: usize) -> Option<Mark<P>> {
        let (epoch, point) = self.queues.get(&place)?.marks.get(at)?;
        Some(Mark {
            place,
            epoch: Epoch(*epoch),
            point: point.clone(),
        })
    }

    /// How many marks a queue has.
    pub(crate) fn marks(&self, place: Place) -> usize {
        self.queues.get(&place).map_or(0, |queue| queue.marks.len())
    }

    /// The oldest mark of every queue.
    pub fn oldest_marks(&self) -> Vec<Mark<P>> {
        let places = self.queues.iter().map(|queue| queue.place);
        places.filter_map(|place| self.oldest_mark(place)).collect()
    }

    /// The newest mark of every queue that has one.
    pub(crate) fn newest_marks(&self) -> Newest {
        let queues = self.queues.iter();
        queues
            .filter_map(|queue| Some((queue.place, Epoch(queue.marks.back()?.0))))
            .collect()
    }

    /// How many queues there are.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// All queues.
    pub fn places(&self) -> Vec<Place> {
        self.queues.iter().map(|queue| queue.place).collect()
    }

    /// Queues with blocks that wait for a mark.
    pub fn unmarked(&self) -> Vec<Place> {
        let places = self.queues.iter().filter(|queue| {
            let marked = queue.marks.back().map_or(0, |mark| mark.0);
            let newest = self.blocks.epochs(queue.set);
            newest.is_some_and(|(_, newest)| newest > marked)
        });
        places.map(|queue| queue.place).collect()
    }

    /// The device has done all work of a place up to the end of an epoch: its
    /// blocks are ready. How many bytes.
    pub fn passed(&mut self, place: Place, epoch: Epoch) -> u64 {
        let Some(queue) = self.queues.get_mut(&place) else {
            return 0;
        };
        queue.marks.retain(|mark| mark.0 > epoch.0);
        let (set, retired, open) = (queue.set, queue.retired, queue.open);
        let bytes = self.blocks.move_to(set, epoch.0, SetId::READY, 0);
        if retired && self.blocks.drop_set(set) {
            self.first = self.first.max(open + 1);
            self.queues.remove(&place);
            for queue in self.queues.iter_mut() {
                queue.knows.remove(&place);
            }
        }
        bytes
    }

    /// No work uses anything that was freed: all of it is ready.
    pub fn all_passed(&mut self) {
        for place in self.places() {
            self.passed(place, Epoch::LAST);
        }
    }

    // ---- blocks of others ---------------------------------------------------

    /// A queue with a block that would do for `stream`, were it to wait: the
    /// mark to wait for, or the place where one is to be set first.
    pub fn lender(&self, stream: StreamId, want: Want) -> Option<Result<Mark<P>, Place>> {
        self.queues
            .iter()
            .filter(|queue| queue.place != Place::Stream(stream))
            .find_map(|queue| {
                let epoch = self.blocks.would_take(queue.set, want)?;
                let mark = queue.marks.iter().find(|mark| mark.0 >= epoch);
                Some(mark.map_or(Err(queue.place), |(epoch, point)| {
                    Ok(Mark {
                        place: queue.place,
                        epoch: Epoch(*epoch),
                        point: point.clone(),
                    })
                }))
            })
    }

    /// Work queued in `stream` from now on runs behind `mark`.
    pub fn waits(&mut self, stream: StreamId, mark: &Mark<P>) {
        let place = Place::Stream(stream);
        let queue = Self::queue(&mut self.queues, &mut self.blocks, self.first, place);
        let known = queue.knows.entry(mark.place).or_insert(0);
        *known = (*known).max(mark.epoch.0);
    }

    /// Makes all blocks that `stream` waits for, and ready ones beside them,
    /// its own, so that they are one where they lie side by side.
    pub fn gather(&mut self, stream: StreamId) {
        let Some(own) = self.queues.get(&Place::Stream(stream)) else {
            return;
        };
        let (set, open) = (own.set, own.open);
        for (other, epoch) in &own.knows {
            if let Some(other) = self.queues.get(other) {
                self.blocks.move_to(other.set, *epoch, set, open);
            }
        }
        self.blocks.join_ready(set, open);
    }

    /// A stream will get no more work. With `mark`, which is behind all of it,
    /// its blocks become ready when that is passed; without, when a mark of
    /// [`Place::Anywhere`] is.
    pub fn retire(&mut self, stream: StreamId, mark: Option<(Epoch, P)>) {
        let place = Place::Stream(stream);
        if let Some((epoch, point)) = mark {
            self.end_mark(place, epoch, point);
        }
        let Some(queue) = self.queues.get_mut(&place) else {
            return;
        };
        queue.retired = true;
        queue.knows.clear();
        let (set, marked) = (queue.set, queue.marks.back().map_or(0, |mark| mark.0));
        let newest = self.blocks.epochs(set).map_or(0, |epochs| epochs.1);
        if newest > marked {
            let anywhere = Self::queue(
                &mut self.queues,
                &mut self.blocks,
                self.first,
                Place::Anywhere,
            );
            let (into, open) = (anywhere.set, anywhere.open);
            anywhere.unmarked += 1;
            self.blocks.move_to(set, u64::MAX, into, open);
        }
        self.passed(place, Epoch(0));
    }
}
