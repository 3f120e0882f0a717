//! Checks of accesses to global memory: bounds, initialisation, races and hazards.
//!
//! Accesses are checked in block order ([`super::super::check_order`]); a block whose turn has not
//! come logs them.

use std::sync::Arc;

use super::super::check_order::{AccessDetails, AccessLog, WarpAccess};
use super::super::ctx::{Ctx, DecodedInst, LaunchRun};
use super::super::registers::{ALL, LANES, each, eights};
use super::begin::shadow;
use super::conflict::{LaneAccess, lane_records};
use super::quick::{WordRun, quick, quick_atomic};
use super::site::{GlobalAccessSite, ThreadFinding};
use super::stores::{StoredValues, distinct};
use crate::check::views::ThreadViews;
use crate::check::{
    AccessRecord, BlockSegments, FREED, INITIALISED, RegionCursor, Shadow, Strength,
};
use crate::mem::{AddressShape, AddressSpace, AllocInfo, At, guard_bytes};
use crate::report::{Access, AccessKind, FindingKind, MemSpace};

/// An access of a warp, as far as its instruction says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckedAccess<'a> {
    pub(crate) size: u32,
    pub(crate) kind: AccessKind,
    pub(crate) strength: Strength,
    /// What a store writes.
    pub(crate) values: Option<StoredValues<'a>>,
    /// Number from 1 of the shared or local variable that it should stay in; 0 if it is not known.
    pub(crate) variable: u32,
}

impl CheckedAccess<'_> {
    /// One that is ordered with no other, of values that are not known.
    pub(crate) fn plain(size: u32, kind: AccessKind) -> Self {
        CheckedAccess {
            size,
            kind,
            strength: Strength::Weak,
            values: None,
            variable: 0,
        }
    }
}

/// Checks an access to global memory by its records; returns the lanes that may make it.
pub(super) fn judge_global(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    checked: CheckedAccess<'_>,
) -> u32 {
    let Some((shadow, _, _)) = shadow(ctx.run) else {
        return mask;
    };
    let stores = checked
        .values
        .and_then(|v| distinct(ctx, v, addr, mask, checked.size as usize));
    let warp = ctx.warp;
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let Some(own) = ctx.block.shadow.as_mut() else {
        return mask;
    };
    own.clocks.touch(warp);
    let access = WarpAccess {
        pc,
        warp: warp as u32,
        mask: stores.as_ref().map_or(mask, |s| s.mask),
        size: checked.size,
        kind: checked.kind,
        strength: checked.strength,
        time: own.clocks.time(warp),
    };
    let hashes = stores.as_ref().map(|s| &s.hashes);
    let allowed = if ctx.block.log.is_some() && !take_turn(ctx) {
        write_down(ctx, shadow, access, addr, hashes)
    } else {
        judge_now(ctx, shadow, access, addr, hashes)
    };
    match &stores {
        Some(stores) => stores.spread(allowed, mask),
        None => allowed,
    }
}

/// Checks an access immediately.
#[inline(always)]
fn judge_now(
    ctx: &mut Ctx<'_>,
    shadow: &Shadow,
    access: WarpAccess,
    addr: &[u64; LANES],
    hashes: Option<&[u8; LANES]>,
) -> u32 {
    let run = ctx.run;
    let block = &mut *ctx.block;
    let Some(clocks) = block.shadow.as_ref().map(|s| &s.clocks) else {
        return access.mask;
    };
    let segment = block.segments.of(run, block.linear, access.time.now);
    let site = GlobalAccessSite {
        run,
        block: block.linear,
        segment,
        before: block.segments.before(access.time),
        time: access.time,
        row: clocks.row(ctx.warp),
        views: clocks.views(ctx.warp),
        pc: access.pc,
        warp: access.warp,
        strength: access.strength,
    };
    judge(&site, shadow, access, addr, hashes)
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
        replay_into(run, block, &mut log, &mut ctx.block.segments);
    }
    true
}

/// Logs an access, to be checked in block order. The admitted lanes do not depend on that.
fn write_down(
    ctx: &mut Ctx<'_>,
    shadow: &Shadow,
    access: WarpAccess,
    addr: &[u64; LANES],
    hashes: Option<&[u8; LANES]>,
) -> u32 {
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
    let block = &mut *ctx.block;
    if let (Some(log), Some(own)) = (&mut block.log, &mut block.shadow)
        && !log.is_full()
    {
        let row = own.clocks.kept_row(ctx.warp);
        let views = own.clocks.kept_views(ctx.warp);
        let details = AccessDetails {
            row: row.as_ref(),
            views: views.as_ref(),
            hashes,
        };
        log.access(access, addr, details);
    }
    allowed
}

/// Checks a block's logged accesses, now that all lower blocks are checked.
pub(crate) fn replay(run: &LaunchRun, block: u64, log: &mut AccessLog) {
    replay_into(run, block, log, &mut BlockSegments::default());
}

fn replay_into(run: &LaunchRun, block: u64, log: &mut AccessLog, segments: &mut BlockSegments) {
    let Some((shadow, _, checks)) = shadow(run) else {
        return;
    };
    let none = ThreadViews::default();
    let judge = |access: WarpAccess, addr: &[u64; LANES], details: AccessDetails<'_>| {
        let site = GlobalAccessSite {
            run,
            block,
            segment: segments.of(run, block, access.time.now),
            before: segments.before(access.time),
            time: access.time,
            row: details.row.map_or(&[], |row| row),
            views: details.views.map_or(&none, |views| views),
            pc: access.pc,
            warp: access.warp,
            strength: access.strength,
        };
        judge(&site, shadow, access, addr, details.hashes);
    };
    log.replay(judge, |finding| checks.sink.add(finding));
}

/// Checks an access to global memory and records it; returns the admitted lanes.
pub(super) fn judge(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    access: WarpAccess,
    addr: &[u64; LANES],
    hashes: Option<&[u8; LANES]>,
) -> u32 {
    let (size, kind, mask) = (u64::from(access.size), access.kind, access.mask);
    let instruction = site.run.prepared.site(access.pc);
    let record = AccessRecord::new(
        site.segment,
        access.time.now,
        instruction,
        access.warp * 32,
        access.strength,
    );
    let mut cursor = shadow.records.cursor();
    let whole = |cursor: &mut RegionCursor<'_>, eights: &[[u64; 8]], first: usize| {
        WordRun::of_eights(eights, size, record.of(first), kind)
            .is_some_and(|run| quick(site, shadow, cursor, run, kind))
    };
    let eights = eights(addr);
    if mask == ALL && whole(&mut cursor, eights, 0) {
        return ALL;
    }
    let mut allowed = 0;
    for (n, eight) in eights.iter().enumerate() {
        let lanes = mask & 255 << (8 * n);
        if lanes == 255 << (8 * n) && whole(&mut cursor, std::slice::from_ref(eight), 8 * n) {
            allowed |= lanes;
            continue;
        }
        each(lanes, |l| {
            if kind == AccessKind::Atomic {
                let at = (addr[l], size);
                if quick_atomic(site, shadow, &mut cursor, at, record.of(l)) {
                    allowed |= 1 << l;
                    return;
                }
            }
            let hash = hashes.map(|h| h[l]);
            let shadowed = (shadow, &mut cursor);
            if lane(site, l, shadowed, addr[l], size, record.of(l), kind, hash) {
                allowed |= 1 << l;
            }
        });
    }
    allowed
}

/// Checks one lane's access to global memory; returns whether it is admitted.
#[expect(clippy::too_many_arguments, reason = "an access taken apart")]
pub(super) fn lane(
    site: &GlobalAccessSite<'_>,
    l: usize,
    (shadow, cursor): (&Shadow, &mut RegionCursor<'_>),
    addr: u64,
    size: u64,
    record: AccessRecord,
    kind: AccessKind,
    hash: Option<u8>,
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
        let lane = LaneAccess {
            lane: l,
            access,
            record,
            hash,
        };
        lane_records(site, shadow, cursor, lane);
    }
    ok
}

/// Bounds, use after free and initialisation of one lane's access; whether it may be made.
pub(super) fn lane_states(
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
pub(super) fn nearest(space: &AddressSpace, addr: u64) -> Option<Arc<AllocInfo>> {
    let (before, after) = space.neighbours(addr);
    let distance = |a: &Arc<AllocInfo>| {
        if addr < a.start {
            a.start - addr
        } else {
            addr.saturating_add(1).saturating_sub(a.end())
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
