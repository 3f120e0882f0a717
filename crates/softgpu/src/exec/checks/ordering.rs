//! Order between accesses, as checks learn it: fences, atomics, barriers, copies that landed.

use std::sync::atomic::Ordering;

use super::super::ctx::Ctx;
use super::super::registers::{LANES, each};
use super::super::state::PendingCopy;
use super::super::tags::SHARED_TAG;
use super::super::tags::{offset_of, rank_of};
use super::begin::shadow;
use crate::check::clock::WarpClocks;

/// The clocks of a block with checks. The warp's live lanes are known to them.
fn clocks<'a>(ctx: &'a mut Ctx<'_>) -> Option<&'a mut WarpClocks> {
    let (warp, live) = (ctx.warp, ctx.w().live);
    let clocks = &mut ctx.block.shadow.as_mut()?.clocks;
    clocks.set_live(warp, live);
    Some(clocks)
}

/// Records that the active lanes have passed a fence; `near`: one with the scope of the block.
pub(crate) fn fence(ctx: &mut Ctx<'_>, near: bool) {
    let (warp, mask) = (ctx.warp, ctx.mask);
    if let Some(clocks) = clocks(ctx) {
        clocks.fence(warp, mask, near);
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

/// What of a thread's accesses a release tells others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    /// What is before its last fence.
    Fenced,
    /// All that is before.
    All,
    /// The same, to threads of the block alone.
    AllNear,
}

/// Atomics at each lane's address: each acquires the location's clock and releases the thread's.
/// `known`: the lanes get to know what was there, and so what others of them have released.
pub(crate) fn synchronise(
    ctx: &mut Ctx<'_>,
    addr: &[u64; LANES],
    mask: u32,
    published: Published,
    known: bool,
) {
    // An atomic whose result nothing reads passes on what others have released, and learns nothing.
    if known {
        acquire(ctx, addr, mask);
    }
    release(ctx, addr, mask, published);
    if known && mask & mask.wrapping_sub(1) != 0 {
        acquire(ctx, addr, mask);
    }
}

/// The lanes of `mask` at each address, of lanes that have one in a row.
fn places(addr: &[u64; LANES], mask: u32) -> impl Iterator<Item = (u64, u32)> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let at = addr.get(rest.trailing_zeros() as usize)?;
        let mut lanes = 0;
        while rest != 0 && addr[rest.trailing_zeros() as usize] == *at {
            lanes |= rest & rest.wrapping_neg();
            rest &= rest - 1;
        }
        Some((*at, lanes))
    })
}

fn is_shared(at: u64) -> bool {
    at & SHARED_TAG != 0
}

/// The lanes whose addresses are in the shared memory of other blocks of the cluster; those in the
/// own one become offsets.
fn away(ctx: &Ctx<'_>, addr: &mut [u64; LANES], mask: u32) -> u32 {
    let mut away = 0;
    each(mask, |l| {
        let number = addr[l] as u32;
        if is_shared(addr[l]) && offset_of(number) != number {
            match rank_of(number).filter(|&rank| rank != ctx.rank()) {
                Some(_) => away |= 1 << l,
                None => addr[l] = u64::from(offset_of(number)) | SHARED_TAG,
            }
        }
    });
    away
}

/// The clocks of the block at work and of the one of `rank`.
fn both_clocks<'a>(
    ctx: &'a mut Ctx<'_>,
    rank: u32,
) -> Option<(&'a mut WarpClocks, &'a mut WarpClocks)> {
    let (warp, live) = (ctx.warp, ctx.w().live);
    let own = &mut ctx.block.shadow.as_mut()?.clocks;
    own.set_live(warp, live);
    let peer = ctx.cluster.as_mut()?.peer(rank)?;
    Some((own, &mut peer.shadow.as_mut()?.clocks))
}

/// The lanes acquire what a place in another block's memory has.
fn acquire_afar(ctx: &mut Ctx<'_>, lanes: u32, number: u32) {
    let warp = ctx.warp;
    if let Some(rank) = rank_of(number)
        && let Some((own, theirs)) = both_clocks(ctx, rank)
        && let Some(known) = theirs.offered(offset_of(number))
    {
        own.learns(warp, lanes, &known);
    }
}

/// The lanes release to a place in another block's memory.
fn release_afar(ctx: &mut Ctx<'_>, lanes: u32, number: u32, published: Published) {
    let warp = ctx.warp;
    let Some(rank) = rank_of(number) else { return };
    let Some((own, theirs)) = both_clocks(ctx, rank) else {
        return;
    };
    let known = match published {
        Published::Fenced => own.told_fenced(warp, lanes),
        Published::All => Some(own.published(warp, lanes)),
        Published::AllNear => None,
    };
    if let Some(known) = known {
        theirs.receive(offset_of(number), &known);
    }
}

/// The lanes acquire what their addresses, of global or shared memory, have.
pub(crate) fn acquire(ctx: &mut Ctx<'_>, addr: &[u64; LANES], mask: u32) {
    let (warp, run) = (ctx.warp, ctx.run);
    let mut addr = *addr;
    let mut mask = mask;
    if run.cluster_size > 1 {
        let away = away(ctx, &mut addr, mask);
        mask &= !away;
        places(&addr, away).for_each(|(at, lanes)| acquire_afar(ctx, lanes, at as u32));
    }
    let addr = &addr;
    let (Some(clocks), Some(check)) = (clocks(ctx), &run.checked) else {
        return;
    };
    let (global, shared) = (
        clocks.may_acquire(&check.locations),
        clocks.may_acquire_shared(),
    );
    if !(global || shared) {
        return;
    }
    for (at, lanes) in places(addr, mask) {
        if is_shared(at) {
            clocks.acquire_shared(warp, lanes, (at & !SHARED_TAG) as u32);
        } else if global {
            clocks.acquire(warp, lanes, at, &check.locations);
        }
    }
}

/// The lanes release to their addresses, of global or shared memory.
pub(crate) fn release(ctx: &mut Ctx<'_>, addr: &[u64; LANES], mask: u32, published: Published) {
    let (warp, run) = (ctx.warp, ctx.run);
    let mut addr = *addr;
    let mut mask = mask;
    if run.cluster_size > 1 {
        let away = away(ctx, &mut addr, mask);
        mask &= !away;
        places(&addr, away).for_each(|(at, lanes)| release_afar(ctx, lanes, at as u32, published));
    }
    let addr = &addr;
    let (Some(clocks), Some(check)) = (clocks(ctx), &run.checked) else {
        return;
    };
    let fenced = published == Published::Fenced;
    if mask == 0 || fenced && !clocks.has_fenced(warp) {
        return;
    }
    let locations = &check.locations;
    for (at, lanes) in places(addr, mask) {
        let in_block = (at & !SHARED_TAG) as u32;
        match (is_shared(at), fenced) {
            (true, true) => clocks.release_shared(warp, lanes, in_block),
            (true, false) => clocks.release_shared_all(warp, lanes, in_block),
            (false, true) => clocks.release(warp, lanes, at, locations),
            (false, false) => {
                clocks.release_all(warp, lanes, at, published == Published::AllNear, locations);
            }
        }
    }
    if !fenced {
        clocks.released(warp);
    }
}

/// Lanes of `mask` have met, those of each member mask: `members` says each one's.
pub(crate) fn lanes_met(ctx: &mut Ctx<'_>, mask: u32, members: &[u32; LANES]) {
    let (warp, mut rest) = (ctx.warp, mask);
    let Some(clocks) = clocks(ctx) else {
        return;
    };
    while rest != 0 {
        let mask = members[rest.trailing_zeros() as usize];
        let same = (0..LANES).filter(|&l| members[l] == mask);
        let group = rest & same.fold(0, |all, l| all | 1 << l);
        rest &= !group;
        clocks.warp_synced(warp, group);
    }
}

pub(crate) fn arrived(ctx: &mut Ctx<'_>, id: u32, waits: bool) {
    let w = ctx.warp;
    if ctx.run.spec.checks.is_some()
        && let Some(clocks) = clocks(ctx)
    {
        clocks.arrived(w, id, waits);
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
