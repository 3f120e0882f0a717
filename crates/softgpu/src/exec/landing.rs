//! Completion of `cp.async` that was put off: at waits for groups, and for mbarriers.

use super::access::NOWHERE;
use super::checks;
use super::ctx::Ctx;
use super::registers::LANES;
use super::state::PendingCopy;

/// Forgets the range of all sources if no copy is left.
fn forget_sources(ctx: &mut Ctx<'_>) {
    if !ctx.block.sources.is_empty() && ctx.block.warps.iter().all(|w| w.copies.is_empty()) {
        ctx.block.sources = 0..0;
    }
}

/// Does a copy that was put off.
pub(crate) fn land(ctx: &mut Ctx<'_>, c: PendingCopy) {
    let mut bytes = [0u8; 16];
    let window = ctx
        .run
        .spec
        .space
        .window(ctx.run.spec.device.ordinal, c.src, false);
    if c.src_len > 0
        && let Some(w) = window
        && w.holds(c.src, u64::from(c.src_len))
    {
        w.read_bytes(c.src, &mut bytes[..c.src_len as usize]);
    }
    let at = c.dst as usize;
    ctx.block.shared[at..at + c.len as usize].copy_from_slice(&bytes[..c.len as usize]);
    if ctx.run.spec.checks.is_some() {
        checks::landed(ctx, c);
    }
}

/// Completes the copies of the active lanes in groups that are done: all but the last `keep`
/// committed groups.
pub(crate) fn land_groups(ctx: &mut Ctx<'_>, mask: u32, keep: Option<u32>) {
    let warp = ctx.warp;
    let w = &mut ctx.block.warps[warp];
    if w.copies.is_empty() {
        return;
    }
    let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut w.copies).into_iter().partition(|c| {
        let lane = usize::from(c.lane);
        (mask >> lane) & 1 != 0
            && keep.is_none_or(|n| c.group + n < w.groups.get(lane).copied().unwrap_or(0))
    });
    w.copies = rest;
    for c in done {
        land(ctx, c);
    }
    forget_sources(ctx);
}

/// Has the copies of the active lanes, as far as no other mbarrier does, complete with the one at
/// each lane's offset.
pub(crate) fn attach(ctx: &mut Ctx<'_>, mask: u32, off: &[u32; LANES]) {
    for copy in &mut ctx.w().copies {
        let lane = usize::from(copy.lane);
        if (mask >> lane) & 1 != 0 && copy.barrier == NOWHERE {
            copy.barrier = off[lane];
        }
    }
}

/// Completes the copies that the mbarrier at `at`, whose phase a thread has seen to be over, tells
/// of.
pub(crate) fn land_of_barrier(ctx: &mut Ctx<'_>, at: u32) {
    for warp in 0..ctx.block.warps.len() {
        let copies = &mut ctx.block.warps[warp].copies;
        if copies.iter().any(|c| c.barrier == at) {
            let (done, rest) = std::mem::take(copies)
                .into_iter()
                .partition::<Vec<_>, _>(|c| c.barrier == at);
            *copies = rest;
            done.into_iter().for_each(|c| land(ctx, c));
        }
    }
    forget_sources(ctx);
}
