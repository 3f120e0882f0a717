//! Order between accesses, as checks learn it: fences, atomics, barriers, copies that landed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::ctx::Ctx;
use super::super::registers::LANES;
use super::super::state::PendingCopy;
use super::super::tags::SHARED_TAG;
use super::begin::shadow;
use crate::check::SegmentOwner;

/// Records that the active lanes have passed a fence.
pub(crate) fn fence(ctx: &mut Ctx<'_>) {
    let Some((shadow, check, checks)) = shadow(ctx.run) else {
        return;
    };
    let block = ctx.block.linear as u32;
    let clock = &mut ctx.block.clock;
    let mut known = (*clock.known).clone();
    known.insert(block, ctx.block.segment);
    clock.fenced = Some(Arc::new(known));
    if clock.dirty {
        clock.dirty = false;
        let owner = SegmentOwner {
            op: checks.op,
            launch: Some(check.identity.clone()),
            block,
            spread: false,
        };
        ctx.block.segment = shadow.begin(owner, 1);
    }
}

/// Records that a lane has acquired from the host (system scope).
pub(crate) fn acquire_from_host(ctx: &mut Ctx<'_>) {
    let Some((_, check, checks)) = shadow(ctx.run) else {
        return;
    };
    let known = check.host_version.load(Ordering::Relaxed);
    let version = checks.order.learn_from_host(checks.op, known);
    check.host_version.store(version, Ordering::Relaxed);
}

/// Records that a lane has released to the host (system scope).
pub(crate) fn tells_host(ctx: &mut Ctx<'_>) {
    if let Some((_, _, checks)) = shadow(ctx.run) {
        checks.order.tell_host(checks.op);
    }
}

/// Atomics at each lane's address: each acquires the location's clock and releases the block's
/// clock as of its last fence.
pub(crate) fn synchronise(ctx: &mut Ctx<'_>, addr: &[u64; LANES], mask: u32, shared: bool) {
    one_way(ctx, addr, mask, shared, true);
    one_way(ctx, addr, mask, shared, false);
}

/// One direction of that.
pub(crate) fn one_way(
    ctx: &mut Ctx<'_>,
    addr: &[u64; LANES],
    mask: u32,
    shared: bool,
    acquire: bool,
) {
    let mut m = mask;
    let mut last = u64::MAX;
    let warp = ctx.warp;
    let run = ctx.run;
    while m != 0 {
        let l = m.trailing_zeros() as usize;
        m &= m - 1;
        if addr[l] == last {
            continue;
        }
        last = addr[l];
        if shared {
            let at = (addr[l] & !SHARED_TAG) as u32;
            if let Some(s) = ctx.block.shadow.as_mut() {
                if acquire {
                    s.acquire(warp, at)
                } else {
                    s.release(warp, at)
                }
            }
        } else if let Some(check) = &run.checked {
            let clock = &mut ctx.block.clock;
            if acquire {
                check.locations.acquire(addr[l], clock)
            } else {
                check.locations.release(addr[l], clock)
            }
        }
    }
}

pub(crate) fn synchronise_release(ctx: &mut Ctx<'_>, addr: &[u64; LANES], mask: u32) {
    one_way(ctx, addr, mask, true, false);
}

pub(crate) fn synchronise_acquire(ctx: &mut Ctx<'_>, addr: &[u64; LANES], mask: u32) {
    one_way(ctx, addr, mask, true, true);
}

pub(crate) fn warp_synced(ctx: &mut Ctx<'_>) {
    let w = ctx.warp;
    if let Some(s) = ctx.block.shadow.as_mut() {
        s.warp_synced(w);
    }
}

pub(crate) fn arrived(ctx: &mut Ctx<'_>, id: u32, waits: bool) {
    let w = ctx.warp;
    if ctx.run.spec.checks.is_some()
        && let Some(s) = ctx.block.shadow.as_mut()
    {
        s.arrived(w, id, waits);
    }
}

pub(crate) fn opened(ctx: &mut Ctx<'_>, id: u32, whole: bool) {
    if ctx.run.spec.checks.is_some()
        && let Some(s) = ctx.block.shadow.as_mut()
    {
        s.opened(id, whole);
    }
}

pub(crate) fn landed(ctx: &mut Ctx<'_>, c: PendingCopy) {
    if let Some(s) = ctx.block.shadow.as_mut() {
        s.landed(c.dst, c.len);
    }
}

pub(crate) fn initialised(ctx: &mut Ctx<'_>, at: u32, len: u32) {
    if let Some(s) = ctx.block.shadow.as_mut() {
        s.initialise(at, len);
    }
}
