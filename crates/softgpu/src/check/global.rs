//! Shadow of global memory: a state per byte ([`super::states`]), the last writer and the last two
//! readers of each word ([`super::records`]).
//!
//! Invariants: a record names a segment, which holds [`super::access_record::SEGMENT_TIMES`] times
//! of one block or is a whole driver operation. Concurrent accesses to one word may lose a record
//! (a missed finding), never invent one.
//!
//! Elsewhere: the order between threads ([`super::clock`]), between operations ([`crate::order`]).

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::CheckContext;
use super::access_record::AccessRecord;
use super::records::{RecordOf, WordRecords};
use super::states::{ALLOCATED, FREED, INITIALISED, States};
use crate::mem::{AllocInfo, AllocKind, AllocationRecords, MemError, ShadowTable};
use crate::order::OpId;
use crate::report::{
    Access, AccessKind, ExecutionPoint, Finding, FindingActor, FindingKind, MemSpace,
};

/// Resolves a record's position from its instruction and thread.
pub(crate) trait LaunchNaming: std::fmt::Debug + Send + Sync {
    /// The position of `thread` of `block` at the memory instruction `site`, and the kind of
    /// access.
    fn place(&self, block: u32, thread: u32, site: u32) -> (ExecutionPoint, AccessKind);
}

#[derive(Debug, Clone)]
pub(crate) struct SegmentOwner {
    pub(crate) op: OpId,
    /// `None` for a driver operation.
    pub(crate) launch: Option<Arc<dyn LaunchNaming>>,
    /// Block of the first segment; later segments are later blocks when `spread`, else the same
    /// one.
    pub(crate) block: u32,
    pub(crate) spread: bool,
    /// The first time of the block that these segments hold.
    pub(crate) from: u32,
}

/// The segments of a running block, by the times that they hold; 0: none yet.
#[derive(Debug, Default)]
pub(crate) struct BlockSegments {
    pub(crate) taken: Vec<u32>,
}

#[derive(Debug)]
struct Segments {
    start: u32,
    owner: SegmentOwner,
}

/// The shadow of an address space.
#[derive(Debug)]
pub struct Shadow {
    base: u64,
    pub(crate) states: States,
    pub(crate) records: WordRecords,
    /// A hash of what was last written, where the record of the writer is marked.
    pub(crate) values: ShadowTable<AtomicU8>,
    segments: RwLock<Vec<Segments>>,
    next: AtomicU32,
}

impl Shadow {
    pub(crate) fn new(base: u64, size: u64) -> Result<Self, MemError> {
        Ok(Shadow {
            base,
            states: States::new(size as usize)?,
            records: WordRecords::new(size as usize / 4),
            values: ShadowTable::new(size as usize / 4)?,
            segments: RwLock::default(),
            next: AtomicU32::new(1),
        })
    }

    /// Takes `count` segment numbers.
    pub(crate) fn begin(&self, owner: SegmentOwner, count: u32) -> u32 {
        let mut all = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let start = self.next.fetch_add(count, Ordering::Relaxed);
        all.push(Segments { start, owner });
        start
    }

    /// The owner of a segment: (owner, block).
    pub(crate) fn owner(&self, segment: u32) -> Option<(SegmentOwner, u32)> {
        let all = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let at = all.partition_point(|s| s.start <= segment).checked_sub(1)?;
        let s = &all[at];
        let block = if s.owner.spread {
            s.owner.block + (segment - s.start)
        } else {
            s.owner.block
        };
        Some((s.owner.clone(), block))
    }

    /// The operation that a segment belongs to, and the run of segments around it that do.
    pub(crate) fn range(&self, segment: u32) -> Option<(OpId, u32, u32)> {
        let all = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let at = all.partition_point(|s| s.start <= segment).checked_sub(1)?;
        let end = all
            .get(at + 1)
            .map_or(self.next.load(Ordering::Relaxed), |s| s.start);
        Some((all[at].owner.op, all[at].start, end))
    }

    /// Bytes that the shadow covers from `addr`, as indices.
    #[inline(always)]
    pub(crate) fn index(&self, addr: u64) -> usize {
        (addr - self.base) as usize
    }

    fn covers(&self, addr: u64, len: u64) -> bool {
        addr >= self.base && addr - self.base + len <= self.states.len() as u64
    }

    fn set_state(&self, addr: u64, len: u64, state: u8) {
        self.states.set(self.index(addr), len as usize, state);
    }

    /// Marks a range as never allocated.
    pub(crate) fn clear(&self, addr: u64, len: u64) {
        if self.covers(addr, len) {
            self.states.clear(self.index(addr), len as usize);
        }
    }

    /// Marks a range as written by a writer that the shadow does not track.
    pub fn mark_initialised(&self, addr: u64, len: u64) {
        if self.covers(addr, len) {
            self.set_state(addr, len, INITIALISED);
        }
    }

    pub(crate) fn allocated(
        &self,
        records: &AllocationRecords,
        info: &AllocInfo,
        initialised: bool,
        ctx: Option<&CheckContext>,
    ) {
        if !self.covers(info.start, info.len) {
            return;
        }
        let host_visible = matches!(
            info.kind,
            AllocKind::Pinned | AllocKind::Managed | AllocKind::Ipc
        );
        if let Some(ctx) = ctx {
            self.pass(
                records,
                info.start,
                info.len,
                true,
                ctx,
                "allocated before that work was complete",
            );
        } else {
            self.forget(info.start, info.len);
        }
        self.set_state(
            info.start,
            info.len,
            if initialised || host_visible {
                INITIALISED
            } else {
                ALLOCATED
            },
        );
    }

    /// The words that a range touches.
    fn words(&self, addr: u64, len: u64) -> std::ops::Range<usize> {
        self.index(addr) / 4..(self.index(addr) + len as usize).div_ceil(4)
    }

    /// Drops the records of accesses to a range.
    pub(crate) fn forget(&self, addr: u64, len: u64) {
        if !self.covers(addr, len) {
            return;
        }
        let words = self.words(addr, len);
        self.records.forget(words.start, words.end);
    }

    pub(crate) fn freed(
        &self,
        records: &AllocationRecords,
        info: &AllocInfo,
        ctx: Option<&CheckContext>,
    ) {
        if !self.covers(info.start, info.len) {
            return;
        }
        if let Some(ctx) = ctx {
            self.pass(
                records,
                info.start,
                info.len,
                true,
                ctx,
                "freed before that work was complete",
            );
        }
        self.set_state(info.start, info.len, FREED);
    }

    pub(crate) fn copied(
        &self,
        records: &AllocationRecords,
        dst: u64,
        src: u64,
        len: u64,
        ctx: &CheckContext,
    ) {
        let (from, to) = (self.covers(src, len), self.covers(dst, len));
        if from {
            self.pass(records, src, len, false, ctx, "");
        }
        if !to {
            return;
        }
        self.pass(records, dst, len, true, ctx, "");
        let (at, len) = (self.index(dst), len as usize);
        if from {
            // Copies propagate uninitialised bytes: copying padding is no error, reading it is.
            self.states.copy(at, len, self.index(src));
        } else {
            self.states.initialise(at, len);
        }
    }

    pub(crate) fn written(
        &self,
        records: &AllocationRecords,
        addr: u64,
        len: u64,
        ctx: &CheckContext,
    ) {
        if self.covers(addr, len) {
            self.pass(records, addr, len, true, ctx, "");
            self.states.initialise(self.index(addr), len as usize);
        }
    }

    pub(crate) fn read(
        &self,
        records: &AllocationRecords,
        addr: u64,
        len: u64,
        ctx: &CheckContext,
    ) {
        if self.covers(addr, len) {
            self.pass(records, addr, len, false, ctx, "");
        }
    }

    /// Whether a range is allocated and nothing of it was ever written.
    pub(crate) fn holds_nothing(&self, addr: u64, len: u64) -> bool {
        self.covers(addr, len) && self.states.unwritten(self.index(addr), len as usize)
    }

    /// Checks a driver operation's access to a range for bounds, use after free and hazards, and
    /// records it as the last access.
    fn pass(
        &self,
        records: &AllocationRecords,
        addr: u64,
        len: u64,
        write: bool,
        ctx: &CheckContext,
        note: &str,
    ) {
        if len == 0 {
            return;
        }
        let owner = SegmentOwner {
            op: ctx.op,
            launch: None,
            block: 0,
            spread: false,
            from: 0,
        };
        let segment = self.begin(owner, 1);
        let kind = if write {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let access = |addr, len| {
            Some(Access {
                kind,
                space: MemSpace::Global,
                addr,
                len,
            })
        };
        let actor = || FindingActor::Operation(ctx.order.describe(ctx.op));
        if note.is_empty()
            && let Some(at) = self
                .states
                .first_unallocated(self.index(addr), len as usize)
        {
            let freed = self.states.get(at) == FREED;
            let at = self.base + at as u64;
            let nearest = if freed {
                records.find(at)
            } else {
                records.neighbours(at).0
            };
            ctx.sink.add(Finding {
                kind: if freed {
                    FindingKind::UseAfterFree
                } else {
                    FindingKind::OutOfBounds
                },
                access: access(at, addr + len - at),
                actor: actor(),
                note: String::new(),
                allocation: nearest,
                other: None,
                count: 1,
            });
        }
        // The operations of these segments are before this one: often a writer and a reader.
        let mut ordered = [0..0, 0..0];
        let mut fine = |record: AccessRecord| -> bool {
            let at = record.segment();
            if record.0 == 0 || ordered.iter().any(|o| o.contains(&at)) {
                return true;
            }
            let Some((op, from, to)) = self.range(at) else {
                return true;
            };
            // What the host frees it has got from the allocation, whatever its stream has done.
            let is_known =
                || !note.is_empty() && ctx.op.is_of_host() && ctx.order.is_allocation(op);
            let fine = op == ctx.op || ctx.order.happens_before(op, ctx.op) || is_known();
            if fine {
                ordered.swap(0, 1);
                ordered[0] = from..to;
            }
            fine
        };
        // A reader meets writers only.
        let tables: &[RecordOf] = if write {
            &RecordOf::ALL
        } else {
            &[RecordOf::Write]
        };
        let record = AccessRecord::of_operation(segment);
        let mut bad = None;
        let (first, end) = (self.index(addr), self.index(addr) + len as usize);
        let whole = (first.div_ceil(4), end / 4);
        // Words of which it accesses a part: others may access the rest at the same time.
        let part = |word: usize| {
            let bytes = |at: usize| 15u64 >> (4 - at.saturating_sub(4 * word).min(4));
            (word, bytes(end) & !bytes(first))
        };
        let ends = [first / 4, end / 4].map(part);
        let ends = if ends[0].0 == ends[1].0 {
            &ends[..1]
        } else {
            &ends[..]
        };
        for &(word, bytes) in ends.iter().filter(|(_, bytes)| !matches!(bytes, 0 | 15)) {
            let record = AccessRecord::of_bytes(segment, bytes as u8);
            self.records.each(word, word + 1, |region, _, (at, _)| {
                let meets = |of: &RecordOf| {
                    let was = region.get(*of, at);
                    (u64::from(was.bytes()) & bytes != 0 && !fine(was)).then_some((word, was))
                };
                let met = tables.iter().find_map(meets);
                let of = if write {
                    RecordOf::Write
                } else {
                    RecordOf::Read
                };
                let was = region.get(of, at);
                let lost = u64::from(was.bytes()) & !bytes != 0 || !write && was.0 != 0;
                if lost && fine(region.get(RecordOf::Earlier, at)) {
                    let unmarked = if write {
                        was.0 & !AccessRecord::MARK
                    } else {
                        was.0
                    };
                    region.set(RecordOf::Earlier, at, AccessRecord(unmarked));
                }
                region.set(of, at, record);
                bad = bad.or(met);
            });
        }
        if whole.0 < whole.1 {
            self.records
                .each(whole.0, whole.1, |region, start, (i, j)| {
                    if bad.is_none() {
                        let met = region.first_bad(tables, (i, j), &mut fine);
                        bad = met.map(|(w, record)| (start + w, record));
                    }
                    if write {
                        region.fill(RecordOf::Write, i, j, record);
                    } else {
                        region.read_by_operation(i, j, record);
                    }
                });
        }
        if let Some((w, record)) = bad {
            let at = self.base + w as u64 * 4;
            ctx.sink.add(Finding {
                kind: FindingKind::StreamHazard,
                access: access(at.max(addr), (addr + len).min(at + 4) - at.max(addr)),
                actor: actor(),
                note: if note.is_empty() {
                    "not ordered after the access below".to_owned()
                } else {
                    note.to_owned()
                },
                allocation: records.find(at),
                other: self.actor_of(record, ctx, true),
                count: 1,
            });
        }
    }

    /// The originator of a record.
    pub(crate) fn actor_of(
        &self,
        record: AccessRecord,
        ctx: &CheckContext,
        name_launch: bool,
    ) -> Option<(AccessKind, FindingActor)> {
        let (owner, block) = self.owner(record.segment())?;
        Some(match &owner.launch {
            None => {
                // Only the table that it stands in says which; callers that care pass it on.
                (
                    AccessKind::Write,
                    FindingActor::Operation(ctx.order.describe(owner.op)),
                )
            }
            Some(launch) => {
                let (place, kind) = launch.place(block, record.thread(), record.site());
                (
                    kind,
                    FindingActor::Thread(
                        Box::new(place),
                        name_launch.then(|| ctx.order.describe(owner.op)),
                    ),
                )
            }
        })
    }
}
