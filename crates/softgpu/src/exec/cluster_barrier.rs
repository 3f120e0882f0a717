//! The barrier of a cluster: `barrier.cluster.arrive` and `.wait`.
//!
//! A phase of it is complete when every thread of the cluster that has not exited has arrived; each
//! then waits for it, at once or later. A thread that arrives in one phase arrives in the next only
//! after it has waited, so what a phase publishes is kept until the next is complete.
//!
//! Invariant: no lane is in both masks of its warp: those that have arrived in the phase at hand,
//! and those that have passed one without having waited.

use std::sync::Arc;

use super::barrier_report;
use super::ctx::{Ctx, LaunchRun};
use super::program::Terminator;
use super::state::{BlockState, ClusterBarrier, SplitState};
use crate::check::known::KnownBlocks;

/// The barrier's own state.
fn state<'a>(ctx: &'a mut Ctx<'_>) -> &'a mut ClusterBarrier {
    let block = match &mut ctx.cluster {
        Some(cluster) => cluster.peer(0).unwrap_or(&mut ctx.block),
        None => &mut *ctx.block,
    };
    &mut block.cluster_barrier
}

/// Split `s` of the current warp arrives, at the end of block `pc`. `relaxed`: that publishes
/// nothing of what its lanes did before.
pub(crate) fn arrive(ctx: &mut Ctx<'_>, s: usize, relaxed: bool) {
    let split = ctx.w().splits[s];
    let mask = split.mask;
    let again = mask & (ctx.w().cluster_arrived | ctx.w().cluster_passed);
    if again != 0 {
        let note = "arrives again without having waited for the phase before".to_owned();
        report(ctx, split.pc, again, note);
    }
    ctx.w().cluster_arrived |= mask & !ctx.w().cluster_passed;
    publish(ctx, mask, relaxed);
    state(ctx).has_arrivals = true;
    open_if_complete(ctx);
}

/// Split `s` waits, at the end of block `pc`. Returns whether it goes on at once.
pub(crate) fn wait(ctx: &mut Ctx<'_>, s: usize) -> bool {
    let split = ctx.w().splits[s];
    let mask = split.mask;
    let w = ctx.w();
    let absent = mask & !(w.cluster_arrived | w.cluster_passed);
    let all_passed = mask & !w.cluster_passed == 0;
    if absent != 0 {
        let note = "waits without having arrived".to_owned();
        report(ctx, split.pc, absent, note);
    }
    if all_passed {
        ctx.w().cluster_passed &= !mask;
        let opened = state(ctx).opened.clone();
        let warp = ctx.warp;
        learn(&mut ctx.block, warp, mask, &opened);
        return true;
    }
    ctx.w().splits[s].state = SplitState::ClusterBarrier;
    false
}

/// Handles exited lanes: the barrier does not wait for them.
pub(crate) fn exited(ctx: &mut Ctx<'_>) {
    let warp = ctx.w();
    warp.cluster_arrived &= warp.live;
    warp.cluster_passed &= warp.live;
    if state(ctx).has_arrivals {
        open_if_complete(ctx);
    }
}

/// Whether all threads of the block that have not exited have arrived.
fn is_complete(block: &BlockState) -> bool {
    let mut warps = block.warps.iter();
    warps.all(|w| w.live & !w.cluster_arrived == 0)
}

fn open_if_complete(ctx: &mut Ctx<'_>) {
    if !is_complete(&ctx.block) {
        return;
    }
    if let Some(cluster) = &mut ctx.cluster
        && !cluster.peers().all(|block| is_complete(block))
    {
        return;
    }
    let it = state(ctx);
    it.has_arrivals = false;
    let opened = std::mem::take(&mut it.gathering);
    it.opened = opened.clone();
    open(ctx.run, &mut ctx.block, &opened);
    if let Some(cluster) = &mut ctx.cluster {
        let run = ctx.run;
        cluster.peers().for_each(|block| open(run, block, &opened));
    }
}

/// The threads of a block pass.
fn open(run: &LaunchRun, block: &mut BlockState, opened: &Arc<KnownBlocks>) {
    for n in 0..block.warps.len() {
        let w = &mut block.warps[n];
        w.cluster_passed |= std::mem::take(&mut w.cluster_arrived);
        let mut gone = 0;
        for s in &mut w.splits {
            if s.state == SplitState::ClusterBarrier
                && let Some(f) = &w.frames[s.frame as usize]
                && let Terminator::Barrier(site) =
                    &run.code().functions[f.function as usize].blocks[s.pc as usize].term
            {
                s.state = SplitState::Ready;
                s.pc = site.next;
                gone |= s.mask;
            }
        }
        w.cluster_passed &= !gone;
        if gone != 0 {
            learn(block, n, gone, opened);
        }
    }
}

/// With checks: what is before the arrival of the lanes is before what follows the phase.
fn publish(ctx: &mut Ctx<'_>, mask: u32, relaxed: bool) {
    let (warp, live) = (ctx.warp, ctx.w().live);
    let Some(shadow) = &mut ctx.block.shadow else {
        return;
    };
    shadow.clocks.set_live(warp, live);
    let published = shadow.clocks.arrival(warp, mask, relaxed);
    crate::check::known::join(&mut state(ctx).gathering, &published);
}

/// With checks: lanes of a warp get to know what a phase tells.
fn learn(block: &mut BlockState, warp: usize, mask: u32, opened: &Arc<KnownBlocks>) {
    let live = block.warps[warp].live;
    if let Some(shadow) = &mut block.shadow {
        shadow.clocks.set_live(warp, live);
        shadow.clocks.passes(warp, mask, opened);
    }
}

fn report(ctx: &mut Ctx<'_>, pc: u32, lanes: u32, note: String) {
    let function = barrier_report::function_of(ctx);
    let warp = ctx.warp as u32;
    barrier_report::report(ctx, function, pc, warp, lanes.trailing_zeros(), note);
}
