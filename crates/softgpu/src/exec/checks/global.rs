//! Checks of accesses to global memory: bounds, initialisation, races and hazards.
//!
//! Accesses are checked in block order ([`super::super::check_order`]); a block whose turn has not
//! come logs them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::check_order::{AccessLog, WarpAccess};
use super::super::ctx::{Ctx, DecodedInst, LaunchRun};
use super::super::registers::{LANES, each, eights};
use super::begin::shadow;
use crate::check::clock::KnownSegments;
use crate::check::{AccessRecord, FREED, INITIALISED, Shadow};
use crate::mem::{AddressShape, AddressSpace, AllocInfo, At, guard_bytes};
use crate::report::{
    Access, AccessKind, ExecutionPoint, Finding, FindingActor, FindingKind, MemSpace,
};

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

/// Checks an access to global memory; returns the lanes that may make it.
pub(crate) fn global(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    size: u64,
    kind: AccessKind,
    strong: bool,
) -> u32 {
    let Some((shadow, _, _)) = shadow(ctx.run) else {
        return mask;
    };
    ctx.block.clock.dirty = true;
    let access = WarpAccess {
        pc: ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i)),
        warp: ctx.warp as u32,
        mask,
        size: size as u32,
        kind,
        strong,
    };
    if ctx.block.log.is_some() && !take_turn(ctx) {
        return write_down(ctx, shadow, access, addr);
    }
    let site = GlobalAccessSite {
        run: ctx.run,
        block: ctx.block.linear,
        segment: ctx.block.segment,
        known: &ctx.block.clock.known,
        pc: access.pc,
        warp: access.warp,
    };
    judge(&site, shadow, access, addr)
}

/// Whether accesses of the current block are checked immediately from now on.
pub(super) fn take_turn(ctx: &mut Ctx<'_>) -> bool {
    let (run, block) = (ctx.run, ctx.block.linear);
    let Some(turns) = &run.turns else {
        return true;
    };
    let full = ctx.block.log.as_ref().is_some_and(|log| log.is_full());
    let has = turns.has(block) || full && turns.wait(block, || run.must_stop());
    if !has {
        return false;
    }
    if let Some(mut log) = ctx.block.log.take() {
        replay(run, block, &mut log);
    }
    true
}

/// Logs an access, to be checked in block order. The admitted lanes do not depend on that.
fn write_down(ctx: &mut Ctx<'_>, shadow: &Shadow, access: WarpAccess, addr: &[u64; LANES]) -> u32 {
    let space = &ctx.run.spec.space;
    let (size, mask) = (u64::from(access.size), access.mask);
    let mut allowed = 0;
    let may = |at: u64, len: u64| {
        at.is_multiple_of(size.next_power_of_two())
            && (!space.contains(at, len) || shadow.states.allocated(shadow.index(at), len as usize))
    };
    for (n, eight) in eights(addr).iter().enumerate() {
        let lanes = mask & 255 << (8 * n);
        let run = match u64::shape(eight, size as usize) {
            AddressShape::Step => Some(8 * size),
            AddressShape::Same => Some(size),
            AddressShape::Scattered => None,
        };
        // An access that leaves the space is checked lane by lane.
        if lanes == 255 << (8 * n)
            && run.is_some_and(|len| space.contains(eight[0], len) && may(eight[0], len))
        {
            allowed |= lanes;
        } else {
            each(lanes, |l| allowed |= u32::from(may(addr[l], size)) << l);
        }
    }
    // A full log stays as it is: the launch was stopped.
    if let Some(log) = &mut ctx.block.log
        && !log.is_full()
    {
        log.access(access, addr);
    }
    allowed
}

/// Checks a block's logged accesses, now that all lower blocks are checked.
pub(crate) fn replay(run: &LaunchRun, block: u64, log: &mut AccessLog) {
    let Some((shadow, check, checks)) = shadow(run) else {
        return;
    };
    let known = KnownSegments::default();
    let judge = |access: WarpAccess, addr: &[u64; LANES]| {
        let site = GlobalAccessSite {
            run,
            block,
            segment: check.first_segment + block as u32,
            known: &known,
            pc: access.pc,
            warp: access.warp,
        };
        judge(&site, shadow, access, addr);
    };
    log.replay(judge, |finding| checks.sink.add(finding));
}

/// The position of a warp's access to global memory.
struct GlobalAccessSite<'a> {
    run: &'a LaunchRun,
    block: u64,
    segment: u32,
    /// The block's vector clock.
    known: &'a KnownSegments,
    /// Instruction, counted through all functions.
    pc: u32,
    warp: u32,
}

impl GlobalAccessSite<'_> {
    #[cold]
    fn report(&self, lane: u32, r: ThreadFinding) {
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

/// Checks an access to global memory and records it; returns the admitted lanes.
fn judge(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    access: WarpAccess,
    addr: &[u64; LANES],
) -> u32 {
    let (size, kind, mask) = (u64::from(access.size), access.kind, access.mask);
    let record = AccessRecord::new(site.segment, access.pc, access.warp * 32, access.strong);
    let mut allowed = 0;
    for (n, eight) in eights(addr).iter().enumerate() {
        let lanes = mask & 255 << (8 * n);
        if lanes == 255 << (8 * n) && quick(site, shadow, eight, size, record.of(8 * n), kind) {
            allowed |= lanes;
            continue;
        }
        each(lanes, |l| {
            if lane(site, l, shadow, addr[l], size, record.of(l), kind) {
                allowed |= 1 << l;
            }
        });
    }
    allowed
}

/// Checks one lane's access to global memory; returns whether it is admitted.
fn lane(
    site: &GlobalAccessSite<'_>,
    l: usize,
    shadow: &Shadow,
    addr: u64,
    size: u64,
    record: AccessRecord,
    kind: AccessKind,
) -> bool {
    let (l, space) = (l as u32, &site.run.spec.space);
    let access = Access {
        kind,
        space: MemSpace::Global,
        addr,
        len: size,
    };
    if !addr.is_multiple_of(size.next_power_of_two()) {
        let r = ThreadFinding {
            kind: FindingKind::Misaligned,
            access,
            note: format!("must be a multiple of {}", size.next_power_of_two()),
            allocation: space.find(addr),
            other: None,
        };
        site.report(l, r);
        return false;
    }
    if !space.contains(addr, size) {
        // Registered host memory is not shadowed; anything else has no memory behind it.
        let (device, write) = (site.run.spec.device.ordinal, kind != AccessKind::Read);
        if space.translate(device, addr, size, write).is_none() {
            let r = ThreadFinding {
                kind: FindingKind::OutOfBounds,
                access,
                note: String::new(),
                allocation: nearest(space, addr),
                other: None,
            };
            site.report(l, r);
        }
        // The finding is also the fault that it would be without checks.
        return true;
    }
    let ok = lane_states(site, l, shadow, access, kind);
    if ok {
        lane_records(site, l, shadow, access, record);
    }
    ok
}

/// The fast path: eight lanes that access a run of whole words, which only this block has accessed
/// since this launch began. Returns whether it applied; then the access is recorded.
#[inline(always)]
fn quick(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    at: &[u64; 8],
    size: u64,
    record: AccessRecord,
    kind: AccessKind,
) -> bool {
    let (len, record) = match (u64::shape(at, size as usize), kind) {
        (AddressShape::Step, _) => (8 * size, record),
        // The last lane's is the record that stays.
        (AddressShape::Same, AccessKind::Read) => (size, record.of(7)),
        _ => return false,
    };
    let at = at[0];
    if !size.is_multiple_of(4)
        || !at.is_multiple_of(size.next_power_of_two())
        || !site.run.spec.space.contains(at, len)
    {
        return false;
    }
    let first = shadow.index(at);
    let (states, len) = (&shadow.states, len as usize);
    let words = first / 4..(first + len) / 4;
    let own = site.segment;
    let fine = |raw: u64| raw == 0 || (raw >> 32) as u32 == own;
    // Records of operations that are ordered before count as absent.
    let unmet = |tables: &[&[AtomicU64]], writes: bool| {
        let mut met = false;
        for table in tables {
            for w in &table[words.clone()] {
                met |= !fine(w.load(Ordering::Relaxed));
            }
        }
        !met || quick_ordered(site, shadow, words.clone(), writes)
    };
    let ok = match kind {
        AccessKind::Read => states.initialised(first, len) && unmet(&[&shadow.writes], false),
        AccessKind::Write => {
            states.allocated(first, len)
                && unmet(
                    &[&shadow.writes, &shadow.reads, &shadow.earlier_reads],
                    true,
                )
        }
        _ => false,
    };
    if !ok {
        return false;
    }
    let record = AccessRecord(record.0 | 15);
    let per = size as usize / 4;
    if kind == AccessKind::Read {
        let (last, earlier) = (&shadow.reads[words.clone()], &shadow.earlier_reads[words]);
        for (l, (last, earlier)) in last.chunks(per).zip(earlier.chunks(per)).enumerate() {
            for (last, earlier) in last.iter().zip(earlier) {
                // The reader so far becomes the earlier one, but for a block that reads again.
                let was = last.load(Ordering::Relaxed);
                if !fine(was) {
                    earlier.store(was, Ordering::Relaxed);
                }
                last.store(record.of(l).0, Ordering::Relaxed);
            }
        }
    } else {
        for (l, lane) in shadow.writes[words].chunks(per).enumerate() {
            for w in lane {
                w.store(record.of(l).0, Ordering::Relaxed);
            }
        }
        states.initialise(first, len);
    }
    true
}

thread_local! {
    /// (operation running, segments from, to): operations' segments found to be before it.
    static ORDERED: std::cell::Cell<(u64, u32, u32)> = const { std::cell::Cell::new((0, 0, 0)) };
}

fn quick_ordered(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    words: std::ops::Range<usize>,
    reads_too: bool,
) -> bool {
    let Some(checks) = &site.run.spec.checks else {
        return false;
    };
    let own = site.segment;
    let op = checks.op.to_bits();
    let fine = |raw: u64| {
        let segment = (raw >> 32) as u32;
        if raw == 0 || segment == own {
            return true;
        }
        let (for_op, lo, hi) = ORDERED.get();
        if for_op == op && lo <= segment && segment < hi {
            return true;
        }
        let Some((owner, lo, hi)) = shadow.range(segment) else {
            return true;
        };
        if owner == checks.op || !checks.order.happens_before(owner, checks.op) {
            return false;
        }
        ORDERED.set((op, lo, hi));
        true
    };
    shadow.writes[words.clone()]
        .iter()
        .all(|w| fine(w.load(Ordering::Relaxed)))
        && (!reads_too
            || [&shadow.reads, &shadow.earlier_reads].iter().all(|table| {
                table[words.clone()]
                    .iter()
                    .all(|w| fine(w.load(Ordering::Relaxed)))
            }))
}

/// Bounds, use after free and initialisation of one lane's access; whether it may be made.
fn lane_states(
    site: &GlobalAccessSite<'_>,
    l: u32,
    shadow: &Shadow,
    access: Access,
    kind: AccessKind,
) -> bool {
    let first = shadow.index(access.addr);
    let (states, len) = (&shadow.states, access.len as usize);
    let space = &site.run.spec.space;
    if let Some(at) = states.first_unallocated(first, len) {
        let a = access.addr + (at - first) as u64;
        let freed = states.get(at) == FREED;
        let allocation = if freed {
            space.find(a)
        } else {
            nearest(space, a)
        };
        site.report(
            l,
            ThreadFinding {
                kind: if freed {
                    FindingKind::UseAfterFree
                } else {
                    FindingKind::OutOfBounds
                },
                access,
                note: String::new(),
                allocation,
                other: None,
            },
        );
        return false;
    }
    if kind != AccessKind::Write {
        let unread = (first..first + len)
            .filter(|&at| states.get(at) != INITIALISED)
            .count();
        if unread != 0 {
            site.report(
                l,
                ThreadFinding {
                    kind: FindingKind::Uninitialised,
                    access,
                    note: format!("{unread} of its bytes were never written"),
                    allocation: space.find(access.addr),
                    other: None,
                },
            );
        }
    }
    if kind != AccessKind::Read {
        states.initialise(first, len);
    }
    true
}

/// The allocation that an address outside every one belongs to by its guard, else the nearest, if
/// one is near at all.
fn nearest(space: &AddressSpace, addr: u64) -> Option<Arc<AllocInfo>> {
    let (before, after) = space.neighbours(addr);
    let distance = |a: &Arc<AllocInfo>| {
        if addr < a.start {
            a.start - addr
        } else {
            (addr + 1).saturating_sub(a.end())
        }
    };
    let beyond_guard = |a: &Arc<AllocInfo>| distance(a).saturating_sub(guard_bytes(a.len));
    [before, after]
        .into_iter()
        .flatten()
        .filter(|a| distance(a) <= NEAR_BYTES.max(guard_bytes(a.len)))
        .min_by_key(|a| (beyond_guard(a), distance(a)))
}

/// How far an address may be from an allocation that a report names, beside the guard.
const NEAR_BYTES: u64 = 1 << 20;

/// Checks one lane's access for races and hazards with recorded accesses, then records it.
fn lane_records(
    site: &GlobalAccessSite<'_>,
    l: u32,
    shadow: &Shadow,
    access: Access,
    record: AccessRecord,
) {
    let record = record.0;
    let write = access.kind != AccessKind::Read;
    let mut at = access.addr;
    let end = access.addr + access.len;
    while at < end {
        let next = ((at & !3) + 4).min(end);
        let bytes = (((1u64 << (next - at)) - 1) << (at & 3)) as u8;
        let w = shadow.index(at) / 4;
        let meets = |was: &AtomicU64, kind| {
            let was = AccessRecord(was.load(Ordering::Relaxed));
            conflict(
                site,
                l,
                shadow,
                access,
                AccessRecord(record),
                was,
                bytes,
                kind,
            )
        };
        let mut met = meets(&shadow.writes[w], AccessKind::Write);
        if write {
            met |= meets(&shadow.reads[w], AccessKind::Read);
            // A further one only if it adds information.
            if !met {
                meets(&shadow.earlier_reads[w], AccessKind::Read);
            }
        }
        let table = if write { &shadow.writes } else { &shadow.reads };
        let old = table[w].load(Ordering::Relaxed);
        // Bytes of the same word that this thread touched just before stay recorded.
        let keep = if old >> 4 == record >> 4 { old & 15 } else { 0 };
        let now = AccessRecord(record | u64::from(bytes) | keep);
        if write {
            shadow.writes[w].store(now.0, Ordering::Relaxed);
        } else {
            Shadow::note_read(&shadow.reads[w], &shadow.earlier_reads[w], now);
        }
        at = next;
    }
}

/// Whether an access conflicts with a recorded one that is not ordered before it; then the conflict
/// has been reported.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "both sides of a comparison")]
fn conflict(
    site: &GlobalAccessSite<'_>,
    l: u32,
    shadow: &Shadow,
    access: Access,
    now: AccessRecord,
    was: AccessRecord,
    bytes: u8,
    was_kind: AccessKind,
) -> bool {
    if was.0 == 0
        || was.segment() == site.segment
        || was.bytes() & bytes == 0
        || was.strong() && now.strong()
    {
        return false;
    }
    conflict_slow(site, l, shadow, access, was, was_kind)
}

/// The cold half of `conflict`.
fn conflict_slow(
    site: &GlobalAccessSite<'_>,
    l: u32,
    shadow: &Shadow,
    access: Access,
    was: AccessRecord,
    was_kind: AccessKind,
) -> bool {
    let Some(checks) = &site.run.spec.checks else {
        return false;
    };
    let op = checks.op.to_bits();
    let (for_op, lo, hi) = ORDERED.get();
    if for_op == op && lo <= was.segment() && was.segment() < hi {
        return false;
    }
    let Some((owner, block)) = shadow.owner(was.segment()) else {
        return false;
    };
    let kind = if owner.op == checks.op && owner.launch.is_some() {
        let own = u64::from(block) == site.block;
        if own || site.known.get(&block).is_some_and(|&s| s >= was.segment()) {
            return false;
        }
        FindingKind::GlobalRace
    } else {
        if checks.order.happens_before(owner.op, checks.op) {
            if let Some((_, lo, hi)) = shadow.range(was.segment()) {
                ORDERED.set((op, lo, hi));
            }
            return false;
        }
        FindingKind::StreamHazard
    };
    let other = shadow.actor_of(was, checks, kind == FindingKind::StreamHazard);
    let other = other.map(|(k, a)| {
        (
            if matches!(k, AccessKind::Atomic | AccessKind::AsyncCopy) {
                k
            } else {
                was_kind
            },
            a,
        )
    });
    site.report(
        l,
        ThreadFinding {
            kind,
            access,
            note: match kind {
                FindingKind::GlobalRace => "nothing orders the two blocks".to_owned(),
                _ => "not ordered after the access below".to_owned(),
            },
            allocation: site.run.spec.space.find(access.addr),
            other,
        },
    );
    true
}
