//! The position of an access to global memory in the order of its launch.

use std::cell::Cell;
use std::sync::Arc;

use super::super::ctx::LaunchRun;
use super::begin::shadow;
use crate::check::clock::AccessTime;
use crate::check::views::ThreadViews;
use crate::check::{
    AccessRecord, BlockSegments, CheckContext, SEGMENT_TIMES, SegmentOwner, Strength,
};
use crate::mem::AllocInfo;
use crate::order::OpId;
use crate::report::{Access, AccessKind, ExecutionPoint, Finding, FindingActor, FindingKind};

pub(super) struct ThreadFinding {
    pub(super) kind: FindingKind,
    pub(super) access: Access,
    pub(super) note: String,
    pub(super) allocation: Option<Arc<AllocInfo>>,
    pub(super) other: Option<(AccessKind, FindingActor)>,
}

impl ThreadFinding {
    pub(super) fn by(self, place: ExecutionPoint) -> Finding {
        Finding {
            kind: self.kind,
            access: Some(self.access),
            actor: FindingActor::Thread(Box::new(place), None),
            note: self.note,
            allocation: self.allocation,
            other: self.other,
            count: 1,
        }
    }
}

impl BlockSegments {
    /// The segment that holds time `now` of the block.
    #[inline(always)]
    pub(super) fn of(&mut self, run: &LaunchRun, block: u64, now: u32) -> u32 {
        let n = (now / SEGMENT_TIMES) as usize;
        match self.taken.get(n) {
            Some(&s) if s != 0 => s,
            _ => self.take(run, block, n),
        }
    }

    #[cold]
    fn take(&mut self, run: &LaunchRun, block: u64, n: usize) -> u32 {
        let Some((shadow, check, checks)) = shadow(run) else {
            return 0;
        };
        if self.taken.len() <= n {
            self.taken.resize(n + 1, 0);
        }
        let segment = if n == 0 {
            check.first_segment + block as u32
        } else {
            let owner = SegmentOwner {
                op: checks.op,
                launch: Some(check.identity.clone()),
                block: block as u32,
                spread: false,
                from: n as u32 * SEGMENT_TIMES,
            };
            shadow.begin(owner, 1)
        };
        self.taken[n] = segment;
        segment
    }

    /// The segment before that of an access, if all in it is before the access; else 0.
    #[inline(always)]
    pub(super) fn before(&self, time: AccessTime) -> u32 {
        let n = (time.now / SEGMENT_TIMES) as usize;
        if n == 0 || time.floor + 1 < n as u32 * SEGMENT_TIMES {
            return 0;
        }
        self.taken.get(n - 1).copied().unwrap_or(0)
    }
}

/// The position of a warp's access to global memory.
pub(super) struct GlobalAccessSite<'a> {
    pub(super) run: &'a LaunchRun,
    pub(super) block: u64,
    pub(super) segment: u32,
    /// A segment of the block of which all is before; 0 if there is none.
    pub(super) before: u32,
    pub(super) time: AccessTime,
    /// Times of the block's warps up to which they are before; empty if all are the floor.
    pub(super) row: &'a [u32],
    /// What the warp's threads know besides: of other blocks, and of single threads.
    pub(super) views: &'a ThreadViews,
    /// Instruction, counted through all functions.
    pub(super) pc: u32,
    pub(super) warp: u32,
    pub(super) strength: Strength,
}

impl GlobalAccessSite<'_> {
    /// Whether an access of the same block is before one of this warp, by `thread` if that is
    /// known, as far as the warp knows it. `from` is the first time of the record's segment, or 0
    /// for the segment at hand.
    pub(super) fn follows(&self, was: AccessRecord, from: u32, thread: Option<u32>) -> bool {
        let from = if was.segment() == self.segment {
            self.time.now / SEGMENT_TIMES * SEGMENT_TIMES
        } else {
            from
        };
        let (time, warp) = (from + was.time(), was.thread() / 32);
        thread == Some(was.thread())
            || time <= self.time.floor
            || if warp == self.warp {
                time <= self.time.lanes
            } else {
                self.row.get(warp as usize).is_some_and(|&k| time <= k)
            }
    }

    /// The same, as far as lane `lane` knows it, for an access of any block.
    pub(super) fn lane_follows(
        &self,
        was: AccessRecord,
        (block, from): (u32, u32),
        lane: u32,
    ) -> bool {
        let time = from + was.time();
        self.views.has(lane, block, was.thread(), time)
    }

    #[cold]
    pub(super) fn report(&self, lane: u32, r: ThreadFinding) {
        let Some(checks) = &self.run.spec.checks else {
            return;
        };
        let (function, pc) = self.run.prepared.locate(self.pc);
        let thread = self.run.thread_index(self.warp * 32 + lane);
        let block = self.run.block_index(self.block);
        checks
            .sink
            .add(r.by(self.run.place(function, pc, block, thread)));
    }
}

/// What the fast path takes for ordered before an access, by its record alone.
#[derive(Clone, Copy)]
pub(super) struct OrderedRecords {
    /// The first record of the segment.
    base: u64,
    /// How many behind it are of times before.
    span: u64,
    before: u32,
    /// Whether the thread itself counts.
    own: bool,
}

impl OrderedRecords {
    #[inline(always)]
    pub(super) fn of(site: &GlobalAccessSite<'_>) -> Self {
        // Data that is read as if no thread wrote it may not even be written before.
        if site.strength.is_cached() {
            return OrderedRecords {
                base: 0,
                span: 0,
                before: u32::MAX,
                own: false,
            };
        }
        let start = site.time.now / SEGMENT_TIMES * SEGMENT_TIMES;
        OrderedRecords {
            base: AccessRecord::first(site.segment, 0),
            span: AccessRecord::first(0, (site.time.floor + 1).saturating_sub(start)),
            before: if site.before == 0 {
                u32::MAX
            } else {
                site.before
            },
            own: true,
        }
    }

    /// Whether the access that left `raw` is before, or with `own` the same thread's as `now`.
    #[inline(always)]
    pub(super) fn has(self, raw: u64, now: AccessRecord, own: bool) -> bool {
        raw == 0
            || raw.wrapping_sub(self.base) < self.span
            || own && self.own && AccessRecord(raw).same_thread(now)
            || (raw >> 32) as u32 == self.before
    }
}

/// Ranges of segments of operations found to be before the one at hand: a kernel reads what several
/// operations wrote, by turns.
pub(super) struct OrderedSegments {
    op: Cell<u64>,
    /// First segment of each, and how many.
    ranges: [Cell<(u32, u32)>; 4],
    /// The one to be replaced next.
    oldest: Cell<usize>,
}

thread_local! {
    static ORDERED: OrderedSegments = const {
        OrderedSegments {
            op: Cell::new(0),
            ranges: [const { Cell::new((0, 0)) }; 4],
            oldest: Cell::new(0),
        }
    };
}

impl OrderedSegments {
    /// Whether an operation's segment was found to be before operation `op`.
    #[inline(always)]
    pub(super) fn has(op: u64, segment: u32) -> bool {
        ORDERED.with(|known| {
            let within = |(from, count): (u32, u32)| segment.wrapping_sub(from) < count;
            known.op.get() == op && known.ranges.iter().any(|r| within(r.get()))
        })
    }

    /// Whether an operation is before that of `checks`; then its segments, `from` up to `to`, are
    /// kept.
    pub(super) fn learn(checks: &CheckContext, (owner, from, to): (OpId, u32, u32)) -> bool {
        let is_before = owner != checks.op && checks.order.happens_before(owner, checks.op);
        if is_before {
            Self::keep(checks.op.to_bits(), from, to);
        }
        is_before
    }

    #[cold]
    fn keep(op: u64, from: u32, to: u32) {
        ORDERED.with(|known| {
            if known.op.replace(op) != op {
                known.ranges.iter().for_each(|r| r.set((0, 0)));
            }
            // Operations one after the other leave neighbours.
            for range in &known.ranges {
                let (first, count) = range.get();
                if count != 0 && first + count == from {
                    return range.set((first, to - first));
                }
                if count != 0 && to == first {
                    return range.set((from, first + count - from));
                }
            }
            let at = known.oldest.get();
            known.oldest.set((at + 1) % known.ranges.len());
            known.ranges[at].set((from, to - from));
        });
    }

    /// Keeps nothing.
    #[cfg(test)]
    pub(super) fn clear() {
        ORDERED.with(|known| known.op.set(0));
    }
}
