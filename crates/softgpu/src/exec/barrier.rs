//! Hardware barriers of a block.
//!
//! Invariants: a barrier counts lanes. Without a thread count it opens when all live threads of the
//! block have arrived: those that have exited are not waited for.

use super::barrier_report::{function_of, report};
use super::checks;
use super::cluster_barrier;
use super::ctx::Ctx;
use super::program::{BarrierOp, BarrierSite, Terminator};
use super::state::{Barrier, Split, SplitOutcome, SplitState};

/// Barriers of a block.
const BARRIERS: u32 = 16;

/// Reports a barrier that no block has, and a number of threads that is not one of whole warps.
fn invalid_operands(ctx: &mut Ctx<'_>, split: &Split, id: u32, count: Option<u32>) {
    let (function, warp) = (function_of(ctx), ctx.warp as u32);
    let lane = split.mask.trailing_zeros() & 31;
    if id >= BARRIERS {
        let note = format!("barrier {id}: a block has barriers 0 to {}", BARRIERS - 1);
        report(ctx, function, split.pc, warp, lane, note);
    }
    if let Some(count) = count.filter(|n| !n.is_multiple_of(32)) {
        let note = format!("barrier {id} for {count} threads, which must be a multiple of 32");
        report(ctx, function, split.pc, warp, lane, note);
    }
}

fn live_threads(ctx: &Ctx<'_>) -> u32 {
    ctx.block.warps.iter().map(|w| w.live.count_ones()).sum()
}

/// Split `s` arrives at the barrier that ends block `pc`.
pub(crate) fn barrier(ctx: &mut Ctx<'_>, s: usize, pc: u32, site: &BarrierSite) -> SplitOutcome {
    ctx.w().splits[s].pc = pc;
    if site.aligned && ctx.mask != ctx.w().live {
        ctx.w().splits[s].state = SplitState::AtBarrier;
        // Others at the same barrier join it there.
        let me = ctx.w().splits[s];
        let w = ctx.w();
        let mut mask = me.mask;
        w.splits.retain(|o| {
            let same = o.state == SplitState::AtBarrier
                && o.frame == me.frame
                && o.pc == pc
                && o.mask & me.mask == 0;
            if same {
                mask |= o.mask;
            }
            !same
        });
        let Some(at) = w.splits.iter().position(|o| o.mask & me.mask != 0) else {
            return SplitOutcome::Choose;
        };
        w.splits[at].mask = mask;
        if mask == w.live {
            ctx.set_mask(mask);
            arrive(ctx, at);
        }
        return SplitOutcome::Choose;
    }
    if arrive(ctx, s) {
        SplitOutcome::Go(site.next)
    } else {
        SplitOutcome::Choose
    }
}

/// Counts the lanes of split `s` at the barrier of its block, and opens the barrier if it is
/// complete. Returns whether they go on at once; then they are ready to.
pub(crate) fn arrive(ctx: &mut Ctx<'_>, s: usize) -> bool {
    let split = ctx.w().splits[s];
    let code = ctx.code;
    let Terminator::Barrier(site) = &code.blocks[split.pc as usize].term else {
        return false;
    };
    // What opens may have other lanes join this split: it goes on first.
    let goes_on = |ctx: &mut Ctx<'_>| {
        ctx.w().splits[s].state = SplitState::Ready;
        ctx.w().splits[s].pc = site.next;
    };
    match site.op {
        BarrierOp::ClusterArrive | BarrierOp::ClusterArriveRelaxed => {
            cluster_barrier::arrive(ctx, s, site.op == BarrierOp::ClusterArriveRelaxed);
            goes_on(ctx);
            return true;
        }
        BarrierOp::Cluster => {
            let passes = cluster_barrier::wait(ctx, s);
            if passes {
                goes_on(ctx);
            }
            return passes;
        }
        _ => {}
    }
    let lane = split.mask.trailing_zeros() as usize & 31;
    let named = ctx.rows.lane::<u32>(site.id, lane);
    let id = named.min(BARRIERS - 1);
    let expected = site.count.map_or(0, |c| ctx.rows.lane::<u32>(c, lane));
    if ctx.run.spec.checks.is_some() {
        invalid_operands(ctx, &split, named, site.count.map(|_| expected));
    }
    let p = ctx.rows.pred(site.pred) & split.mask;
    let whole = split.mask == ctx.w().live;
    let fresh = ctx.block.barriers[id as usize].arrived == 0;
    if fresh {
        ctx.block.barriers[id as usize] = Barrier {
            and: true,
            ..Barrier::default()
        };
    }
    ctx.block.has_arrivals = true;
    let b = &mut ctx.block.barriers[id as usize];
    // A counted barrier counts whole warps as 32.
    b.arrived += if expected != 0 && whole {
        32
    } else {
        split.mask.count_ones()
    };
    b.expected = expected;
    b.popc += p.count_ones();
    b.and &= p == split.mask;
    b.or |= p != 0;
    let waits = site.op != BarrierOp::Arrive;
    checks::arrived(ctx, id, waits);
    if waits {
        ctx.w().splits[s].state = SplitState::Barrier(id);
    }
    open_if_complete(ctx, id);
    if !waits {
        goes_on(ctx);
    }
    !waits
}

fn open_if_complete(ctx: &mut Ctx<'_>, id: u32) {
    let b = ctx.block.barriers[id as usize];
    let live = live_threads(ctx);
    let want = if b.expected == 0 { live } else { b.expected };
    if b.arrived == 0 || b.arrived < want {
        return;
    }
    let value = b.popc | (u32::from(b.and) << 16) | (u32::from(b.or) << 17);
    ctx.block.barriers[id as usize] = Barrier::default();
    let whole = b.expected == 0;
    checks::opened(ctx, id, whole);
    if whole && ctx.run.spec.checks.is_some() {
        different_barriers(ctx, id);
    }
    let run = ctx.run;
    for w in &mut ctx.block.warps {
        for s in &mut w.splits {
            if s.state == SplitState::Barrier(id)
                && let Some(f) = &w.frames[s.frame as usize]
                && let Terminator::Barrier(site) =
                    &run.code().functions[f.function as usize].blocks[s.pc as usize].term
            {
                s.state = SplitState::Passed(s.pc, value);
                s.pc = site.next;
            }
        }
    }
}

/// Writes a barrier's result into the lanes of the split that has just been chosen.
pub(crate) fn give_result(ctx: &mut Ctx<'_>, block: u32, value: u32) {
    let code = ctx.code;
    let Terminator::Barrier(site) = &code.blocks[block as usize].term else {
        return;
    };
    let mask = ctx.mask;
    let all = |b: bool| if b { u32::MAX } else { 0 };
    match site.op {
        BarrierOp::RedPopc => ctx.rows.set_row(site.dest, &[value & 0xffff; 32], mask),
        BarrierOp::RedAnd => ctx
            .rows
            .set_pred(site.dest_pred, all(value >> 16 & 1 != 0), mask),
        BarrierOp::RedOr => ctx
            .rows
            .set_pred(site.dest_pred, all(value >> 17 & 1 != 0), mask),
        _ => {}
    }
}

/// Handles exited lanes: barriers that waited for them may open.
pub(crate) fn exited(ctx: &mut Ctx<'_>) {
    cluster_barrier::exited(ctx);
    if !ctx.block.has_arrivals {
        return;
    }
    for id in 0..ctx.block.barriers.len() as u32 {
        if ctx.block.barriers[id as usize].arrived != 0
            && ctx.block.barriers[id as usize].expected == 0
        {
            open_if_complete(ctx, id);
        }
    }
}

/// Threads that open one barrier from different places in the code.
fn different_barriers(ctx: &mut Ctx<'_>, id: u32) {
    let mut places: Vec<(u32, u32, u32, u32)> = Vec::new();
    for w in &ctx.block.warps {
        for s in w
            .splits
            .iter()
            .filter(|s| s.state == SplitState::Barrier(id))
        {
            let Some(f) = w.frames[s.frame as usize].as_ref() else {
                continue;
            };
            if !places.iter().any(|p| (p.0, p.1) == (f.function, s.pc)) {
                places.push((f.function, s.pc, w.index, s.mask.trailing_zeros()));
            }
        }
    }
    let [first, other, ..] = places.as_slice() else {
        return;
    };
    let code = &ctx.run.code().functions[other.0 as usize];
    let line = code.origins[code.blocks[other.1 as usize].term_pc as usize].line;
    let t = ctx.run.thread_index(other.2 * 32 + other.3);
    let note = format!(
        "thread ({},{},{}) is at another one, at line {line}",
        t[0], t[1], t[2]
    );
    report(ctx, first.0, first.1, first.2, first.3, note);
}

/// Reports that lanes `mask` of the current warp are at an aligned barrier without the rest.
pub(crate) fn diverged(ctx: &mut Ctx<'_>, pc: u32, mask: u32) {
    let code = ctx.code;
    if !matches!(&code.blocks[pc as usize].term, Terminator::Barrier(t) if t.aligned) {
        return;
    }
    let w = &ctx.block.warps[ctx.warp];
    let function = function_of(ctx);
    let note = format!(
        "lanes {mask:#010x} of warp {} reached it without lanes {:#010x}",
        w.index,
        w.live & !mask
    );
    report(ctx, function, pc, w.index, mask.trailing_zeros(), note);
}
