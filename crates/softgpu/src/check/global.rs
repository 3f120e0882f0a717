//! Shadow of global memory: a state per byte ([`super::states`]), the last writer and the last two
//! readers of each word.
//!
//! Invariants: a record names a segment, which holds [`SEGMENT_TIMES`] times of one block or is a
//! whole driver operation. Concurrent accesses to one word may lose a record (a missed finding),
//! never invent one.
//!
//! Elsewhere: the order between threads ([`super::clock`]), between operations ([`crate::order`]).

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::CheckContext;
use super::states::{ALLOCATED, FREED, INITIALISED, States};
use crate::mem::{AllocInfo, AllocKind, AllocationRecords, MemError, ShadowTable};
use crate::order::OpId;
use crate::report::{
    Access, AccessKind, ExecutionPoint, Finding, FindingActor, FindingKind, MemSpace,
};

/// How an access is ordered with others to the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strength {
    /// Not at all.
    Weak,
    /// A read through the cache of data that no thread of the kernel writes.
    ReadOnly,
    /// A texture's read through such a cache, of data that a thread may write afterwards.
    Texture,
    /// Those of the same block.
    Block,
    /// Those of every thread that may touch the memory.
    Strong,
}

impl Strength {
    pub(crate) fn is_strong(self) -> bool {
        matches!(self, Strength::Block | Strength::Strong)
    }

    /// Whether a read may give what was there before an earlier write of the same kernel.
    pub(crate) fn is_cached(self) -> bool {
        matches!(self, Strength::ReadOnly | Strength::Texture)
    }
}

/// Times of a block that one segment holds.
pub(crate) const SEGMENT_TIMES: u32 = 8;
/// The place of an instruction that is one of too many.
pub(crate) const UNKNOWN_SITE: u32 = (1 << 13) - 1;

/// The last access to a word in 64 bits: segment (32), time in it (3), thread (10), instruction
/// (13), strong, marked, and the bytes (4). Marked: of a plain write, that the value is known; of a
/// plain read, that it was a read-only one; of a strong access, that its scope is the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccessRecord(pub(crate) u64);

impl AccessRecord {
    const TIME_SHIFT: u32 = 29;
    const THREAD_SHIFT: u32 = 19;
    const SITE_SHIFT: u32 = 6;
    const STRONG: u64 = 1 << 5;
    pub(crate) const MARK: u64 = 1 << 4;

    /// The part that all words of one access by one thread share. `time` is that in the segment.
    #[inline(always)]
    pub(crate) fn new(segment: u32, time: u32, site: u32, thread: u32, strength: Strength) -> Self {
        let order = match strength {
            Strength::Weak | Strength::Texture => 0,
            Strength::ReadOnly => Self::MARK,
            Strength::Block => Self::STRONG | Self::MARK,
            Strength::Strong => Self::STRONG,
        };
        AccessRecord(
            (u64::from(segment) << 32)
                | (u64::from(time % SEGMENT_TIMES) << Self::TIME_SHIFT)
                | (u64::from(thread & 1023) << Self::THREAD_SHIFT)
                | (u64::from(site.min(UNKNOWN_SITE)) << Self::SITE_SHIFT)
                | order,
        )
    }
    /// The same of the thread `n` further on.
    #[inline(always)]
    pub(crate) fn of(self, n: usize) -> Self {
        AccessRecord(self.0 + ((n as u64) << Self::THREAD_SHIFT))
    }
    /// The least records of a segment's times from `time` on.
    #[inline(always)]
    pub(crate) fn first(segment: u32, time: u32) -> u64 {
        (u64::from(segment) << 32) + (u64::from(time) << Self::TIME_SHIFT)
    }
    #[inline(always)]
    pub(crate) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// In the segment.
    pub(crate) fn time(self) -> u32 {
        (self.0 >> Self::TIME_SHIFT) as u32 % SEGMENT_TIMES
    }
    pub(crate) fn site(self) -> u32 {
        (self.0 >> Self::SITE_SHIFT) as u32 & UNKNOWN_SITE
    }
    pub(crate) fn thread(self) -> u32 {
        (self.0 >> Self::THREAD_SHIFT) as u32 & 1023
    }
    #[inline(always)]
    pub(crate) fn strong(self) -> bool {
        self.0 & Self::STRONG != 0
    }
    #[inline(always)]
    pub(crate) fn marked(self) -> bool {
        self.0 & Self::MARK != 0
    }
    #[inline(always)]
    pub(crate) fn bytes(self) -> u8 {
        self.0 as u8 & 15
    }
    /// Whether the same thread left both at the same time.
    #[inline(always)]
    pub(crate) fn same_thread(self, other: AccessRecord) -> bool {
        (self.0 ^ other.0) >> Self::THREAD_SHIFT == 0
    }
    /// Whether warps of the same segment left both.
    #[inline(always)]
    pub(crate) fn same_warp(self, other: AccessRecord) -> bool {
        let differ = self.0 ^ other.0;
        differ >> 32 == 0 && (differ >> (Self::THREAD_SHIFT + 5)) & 31 == 0
    }
    /// Of a reader: whether it took the data for read-only.
    #[inline(always)]
    pub(crate) fn read_only(self) -> bool {
        self.0 & (Self::MARK | Self::STRONG) == Self::MARK
    }
    /// Whether a reader is to stay known besides a later one, before which it is or not: a writer
    /// that meets it may be ordered after the later one, or it took the data for read-only.
    #[inline(always)]
    pub(crate) fn stays(self, later: AccessRecord, ordered: bool) -> bool {
        !ordered && !self.same_warp(later) || self.read_only() && !later.read_only()
    }
    /// Whether one instruction of one thread left both.
    #[inline(always)]
    pub(crate) fn same_access(self, other: AccessRecord) -> bool {
        (self.0 ^ other.0) >> 5 == 0
    }
}

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
    pub(crate) writes: ShadowTable<AtomicU64>,
    pub(crate) reads: ShadowTable<AtomicU64>,
    /// A reader before the last, of another warp and not ordered before it, or one that took the
    /// data for read-only: a writer that is the last reader itself still meets this one. Or the
    /// plain write before the last strong one.
    pub(crate) earlier_reads: ShadowTable<AtomicU64>,
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
            writes: ShadowTable::new(size as usize / 4)?,
            reads: ShadowTable::new(size as usize / 4)?,
            earlier_reads: ShadowTable::new(size as usize / 4)?,
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

    /// Records a driver operation that reads a word.
    fn note_read(&self, w: usize, record: AccessRecord) {
        let before = AccessRecord(self.reads[w].load(Ordering::Relaxed));
        if before.segment() != record.segment() && before.0 != 0 {
            self.earlier_reads[w].store(before.0, Ordering::Relaxed);
        }
        self.reads[w].store(record.0, Ordering::Relaxed);
    }

    fn forget(&self, addr: u64, len: u64) {
        let words = self.index(addr) / 4..(self.index(addr) + len as usize).div_ceil(4);
        for table in [&self.writes, &self.reads, &self.earlier_reads] {
            for w in &table[words.clone()] {
                // Untouched pages of the table stay untouched.
                if w.load(Ordering::Relaxed) != 0 {
                    w.store(0, Ordering::Relaxed);
                }
            }
        }
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
        let mut last_ok = 0u32;
        let words = self.index(addr) / 4..(self.index(addr) + len as usize).div_ceil(4);
        let mut reported = false;
        for w in words {
            let check = |record: AccessRecord, last_ok: &mut u32| -> bool {
                if record.0 == 0 || record.segment() == *last_ok {
                    return true;
                }
                let Some((owner, _)) = self.owner(record.segment()) else {
                    return true;
                };
                // What the host frees it has got from the allocation, whatever its stream has done.
                let is_known = !note.is_empty()
                    && ctx.op.is_of_host()
                    && owner.launch.is_none()
                    && ctx.order.is_allocation(owner.op);
                let ok =
                    owner.op == ctx.op || is_known || ctx.order.happens_before(owner.op, ctx.op);
                if ok {
                    *last_ok = record.segment();
                }
                ok
            };
            let before = AccessRecord(self.writes[w].load(Ordering::Relaxed));
            let mut bad = (!check(before, &mut last_ok)).then_some(before);
            for reads in [&self.reads, &self.earlier_reads] {
                if write && bad.is_none() {
                    let before = AccessRecord(reads[w].load(Ordering::Relaxed));
                    bad = (!check(before, &mut last_ok)).then_some(before);
                }
            }
            if let Some(record) = bad
                && !reported
            {
                reported = true;
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
            let record = AccessRecord((u64::from(segment) << 32) | 15);
            if write {
                self.writes[w].store(record.0, Ordering::Relaxed);
            } else {
                self.note_read(w, record);
            }
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
