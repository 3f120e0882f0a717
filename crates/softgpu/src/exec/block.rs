//! Execution of a block: round-robin scheduling of its warps.
//!
//! Invariant: a block in which no warp can make progress ends the kernel with a deadlock.

use super::barrier_report;
use super::checks;
use super::ctx::{Ctx, LaunchRun};
use super::hang;
use super::state::{Barrier, BlockState, ClusterBarrier, Frame, Split, SplitState};
use super::warp::{self, WarpStop};
use crate::report::{ExecutionPoint, Fault, FaultKind};

/// The time slice of a warp, in basic blocks.
const WARP_TURN: u32 = 1 << 15;
/// Time slices after which a block that may be waiting, by atomics or volatile loads, yields to
/// other blocks.
const BLOCK_TURN: u32 = 64;
/// Instructions that may be waits (atomics, volatile loads) after which it yields sooner.
const BLOCK_WAITS: u32 = 1 << 14;
/// Instructions of its warps after which a block may have been busy-waiting for another by plain
/// loads.
const BLOCK_LONG: u64 = 1 << 22;

/// Sets a block up in `ctx`.
pub(crate) fn start(ctx: &mut Ctx<'_>, linear: u64) {
    let run = ctx.run;
    let b = &mut ctx.block;
    b.linear = linear;
    b.index = run.block_index(linear);
    b.shared.clear();
    b.shared.resize(run.all_shared_bytes() as usize, 0);
    b.barriers.clear();
    b.barriers.resize(16, Barrier::default());
    b.has_arrivals = false;
    b.book.clear();
    b.cluster_barrier = ClusterBarrier::default();
    b.next_warp = 0;
    let threads = run.threads();
    let warps = threads.div_ceil(32) as usize;
    b.warps.resize_with(warps, Default::default);
    checks::start_block(ctx);
    for w in 0..warps {
        let n = (threads - w as u32 * 32).min(32);
        warp::start(ctx, w, u32::MAX >> (32 - n));
    }
}

/// Runs the block until it is done, yields, or fails. `lend_a_thread` is called when it runs long:
/// it may wait for a block that no thread is free to begin.
pub(crate) fn run(ctx: &mut Ctx<'_>, lend_a_thread: impl Fn()) -> WarpStop {
    let n = ctx.block.warps.len();
    let mut turns = 0;
    let mut idle = 0;
    let mut done = 0;
    // Warps one after another that had nothing to do, and whether one of them rests.
    let (mut quiet, mut resting) = (0, false);
    ctx.idle = false;
    let mut long = ctx.instructions + BLOCK_LONG;
    ctx.waits = 0;
    let at = ctx.block.next_warp;
    let mut w = if at < n { at } else { 0 };
    // The blocks of a cluster wait for each other more often than those of a grid.
    let in_cluster = ctx.run.cluster_size > 1;
    let turn = match in_cluster {
        true => BLOCK_TURN.min(2 * n as u32),
        false => BLOCK_TURN,
    };
    loop {
        if ctx.block.warps[w].live == 0 {
            done += 1;
            idle += 1;
            quiet += 1;
        } else {
            let mut budget = WARP_TURN;
            let before = ctx.instructions;
            ctx.napped = false;
            let stop = warp::run(ctx, w, &mut budget);
            let rests = stop == WarpStop::Yielded && ctx.napped && warp::has_nothing_else(ctx);
            if rests || stop == WarpStop::Blocked && ctx.instructions == before {
                quiet += 1;
                resting |= rests;
            } else {
                (quiet, resting) = (0, false);
            }
            match stop {
                WarpStop::Done => {
                    done = 0;
                    idle = 0;
                }
                WarpStop::Blocked => {
                    done = 0;
                    // Having run at all, it may have let others go on.
                    idle = if ctx.instructions == before {
                        idle + 1
                    } else {
                        0
                    };
                }
                WarpStop::Yielded => {
                    done = 0;
                    idle = 0;
                }
                WarpStop::Trouble => return WarpStop::Trouble,
            }
            turns += 1;
        }
        if done >= n {
            for w in 0..n {
                warp::finish(ctx, w);
            }
            return WarpStop::Done;
        }
        if idle > n {
            if in_cluster && awaits_cluster(&ctx.block) {
                ctx.block.next_warp = w;
                return WarpStop::Blocked;
            }
            if !enter_alone(ctx) {
                deadlock(ctx);
                return WarpStop::Trouble;
            }
            idle = 0;
        }
        w = if w + 1 < n { w + 1 } else { 0 };
        if w == 0 && hang::is_stuck(ctx) {
            return WarpStop::Trouble;
        }
        if turns % 4 == 0 && ctx.run.must_stop() {
            ctx.block.next_warp = w;
            return WarpStop::Yielded;
        }
        if ctx.run.turns.is_some() {
            // Without inter-block communication it can only wait for a plain word that another
            // block writes: a race, which is to be reported and must not hang.
            if ctx.instructions > long {
                long = ctx.instructions + BLOCK_LONG;
                (turns, ctx.waits) = (0, 0);
                lend_a_thread();
            }
        } else if resting && quiet >= n {
            ctx.block.next_warp = w;
            ctx.idle = true;
            return WarpStop::Yielded;
        } else if turns >= turn && ctx.waits > 0
            || ctx.waits > BLOCK_WAITS
            || ctx.instructions > long
        {
            ctx.block.next_warp = w;
            return WarpStop::Yielded;
        }
    }
}

/// Whether a thread of it waits at the barrier of its cluster.
fn awaits_cluster(block: &BlockState) -> bool {
    let mut splits = block.warps.iter().flat_map(|w| &w.splits);
    splits.any(|s| s.state == SplitState::ClusterBarrier)
}

/// Whether lanes of a warp go on that waited for the rest of it in vain.
pub(crate) fn enter_alone(ctx: &mut Ctx<'_>) -> bool {
    (0..ctx.block.warps.len()).any(|w| {
        ctx.warp = w;
        warp::enter_alone(ctx)
    })
}

/// Function and instruction at which a split stands.
fn position(run: &LaunchRun, frames: &[Option<Frame>], s: &Split) -> Option<(usize, u32)> {
    let function = frames[s.frame as usize].as_ref()?.function as usize;
    let block = &run.code().functions[function].blocks[s.pc as usize];
    let is_before = matches!(
        s.state,
        SplitState::Parked | SplitState::Ready | SplitState::Passed(..)
    );
    let pc = match is_before && block.start < block.end {
        true => block.start,
        false => block.term_pc,
    };
    Some((function, pc))
}

/// Where a block stands that was stopped: threads that could go on, such as one that polls, before
/// those that wait for them at a barrier.
pub(crate) fn whereabouts(run: &LaunchRun, block: &BlockState) -> Option<ExecutionPoint> {
    let splits = block
        .warps
        .iter()
        .flat_map(|w| w.splits.iter().map(move |s| (w, s)));
    let waits = |s: &Split| !matches!(s.state, SplitState::Ready | SplitState::Passed(..));
    let (w, s) = splits.min_by_key(|(w, s)| (waits(s), w.index, s.mask.trailing_zeros()))?;
    let (function, pc) = position(run, &w.frames, s)?;
    let thread = run.thread_index(w.index * 32 + s.mask.trailing_zeros());
    Some(run.place(function, pc, block.index, thread))
}

/// Where threads of the block wait, and for what.
pub(crate) fn waiting(run: &LaunchRun, block: &BlockState) -> Vec<(ExecutionPoint, String)> {
    let mut out = Vec::new();
    for w in &block.warps {
        for s in &w.splits {
            let Some((function, pc)) = position(run, &w.frames, s) else {
                continue;
            };
            let line = run.code().functions[function].origins[pc as usize].line;
            let what = match s.state {
                SplitState::Parked => "wait for the rest of their mask".to_owned(),
                SplitState::Barrier(id) => format!("wait at barrier {id}"),
                SplitState::Registers { wanted, .. } => format!("wait for {wanted} registers each"),
                SplitState::Products { .. } => "wait for the rest of their four warps".to_owned(),
                SplitState::ClusterBarrier => "wait at the barrier of the cluster".to_owned(),
                _ => "wait".to_owned(),
            };
            let thread = run.thread_index(w.index * 32 + s.mask.trailing_zeros());
            let place = run.place(function, pc, block.index, thread);
            let lanes = format!("lanes {:#010x} of warp {}", s.mask, w.index);
            out.push((place, format!("{lanes} {what} at line {line}")));
        }
    }
    out
}

/// Reports the first barrier at which threads of the block wait in vain, if there is one.
pub(crate) fn report_vain_wait(ctx: &mut Ctx<'_>) -> bool {
    let at_barrier =
        |s: &Split| matches!(s.state, SplitState::Barrier(_) | SplitState::ClusterBarrier);
    let found = ctx.block.warps.iter().find_map(|w| {
        let s = w.splits.iter().find(|s| at_barrier(s))?;
        let frame = w.frames[s.frame as usize].as_ref()?;
        Some((frame.function, s.pc, w.index, s.mask.trailing_zeros()))
    });
    let Some((function, pc, warp, lane)) = found else {
        return false;
    };
    let note = "the threads it waits for never arrive".to_owned();
    barrier_report::report(ctx, function, pc, warp, lane, note);
    true
}

fn deadlock(ctx: &mut Ctx<'_>) {
    let mut found = waiting(ctx.run, &ctx.block);
    report_vain_wait(ctx);
    found.truncate(8);
    let text: Vec<String> = found.iter().map(|(_, what)| what.clone()).collect();
    ctx.trouble = Some(Box::new(Fault {
        kind: FaultKind::Deadlock(text.join("; ")),
        place: found.into_iter().next().map(|(place, _)| place),
        allocation: None,
    }));
}
