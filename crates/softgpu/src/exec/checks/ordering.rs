//! Order between accesses, as checks learn it: fences, atomics, barriers, copies that landed.

use std::sync::atomic::Ordering;

use super::super::ctx::Ctx;
use super::super::registers::LANES;
use super::super::state::PendingCopy;
use super::super::tags::SHARED_TAG;
use super::begin::shadow;

/// Records that the active lanes have passed a fence; `near`: one with the scope of the block.
pub(crate) fn fence(ctx: &mut Ctx<'_>, near: bool) {
    let warp = ctx.warp;
    if let Some(s) = ctx.block.shadow.as_mut() {
        s.clocks.fence(warp, near);
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

/// Atomics at each lane's address: each acquires the location's clock and releases the warp's.
/// `known`: the lanes get to know what was there, and so what others of them have released.
pub(crate) fn synchronise(
    ctx: &mut Ctx<'_>,
    addr: &[u64; LANES],
    mask: u32,
    shared: bool,
    known: bool,
) {
    one_way(ctx, addr, mask, shared, true);
    one_way(ctx, addr, mask, shared, false);
    if known && mask & mask.wrapping_sub(1) != 0 {
        one_way(ctx, addr, mask, shared, true);
    }
}

/// One direction of that.
pub(crate) fn one_way(
    ctx: &mut Ctx<'_>,
    addr: &[u64; LANES],
    mask: u32,
    shared: bool,
    acquire: bool,
) {
    let (warp, run) = (ctx.warp, ctx.run);
    let (Some(s), Some(check)) = (ctx.block.shadow.as_mut(), &run.checked) else {
        return;
    };
    let clocks = &mut s.clocks;
    let idle = match (shared, acquire) {
        (true, _) => false,
        (false, true) => !clocks.may_acquire(&check.locations),
        (false, false) => !clocks.has_fenced(warp),
    };
    if mask == 0 || idle {
        return;
    }
    let (mut m, mut last) = (mask, u64::MAX);
    let places = std::iter::from_fn(|| {
        while m != 0 {
            let at = addr[m.trailing_zeros() as usize];
            m &= m - 1;
            if std::mem::replace(&mut last, at) != at {
                return Some(at);
            }
        }
        None
    });
    let in_block = |at: u64| (at & !SHARED_TAG) as u32;
    match (shared, acquire) {
        (true, true) => clocks.acquire_shared(warp, places.map(in_block)),
        (true, false) => clocks.release_shared(warp, places.map(in_block)),
        (false, true) => places.for_each(|at| clocks.acquire(warp, at, &check.locations)),
        (false, false) => places.for_each(|at| clocks.release(warp, at, &check.locations)),
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
        s.clocks.warp_synced(w);
    }
}

pub(crate) fn arrived(ctx: &mut Ctx<'_>, id: u32, waits: bool) {
    let w = ctx.warp;
    if ctx.run.spec.checks.is_some()
        && let Some(s) = ctx.block.shadow.as_mut()
    {
        s.clocks.arrived(w, id, waits);
    }
}

pub(crate) fn opened(ctx: &mut Ctx<'_>, id: u32, whole: bool) {
    if ctx.run.spec.checks.is_some()
        && let Some(s) = ctx.block.shadow.as_mut()
    {
        s.clocks.opened(id, whole);
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
