//! Checks of mbarriers: initialised before they are used, and not used afterwards.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::{LANES, each};
use super::super::state::FailedWait;
use super::found::{found, report};
use super::site::ThreadFinding;
use crate::check::mbarriers::{MbarrierFault, MbarrierMark};
use crate::report::{Access, AccessKind, Finding, FindingActor, FindingKind, MemSpace};

/// What an instruction does to an mbarrier.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MbarrierStep {
    /// Initialises it, while arrivals or bytes of its phase are awaited or not.
    Init {
        under_way: bool,
    },
    Inval,
    Use,
}

/// Records what a lane does to the mbarrier at `at`.
pub(crate) fn mbarrier(ctx: &mut Ctx<'_>, i: &DecodedInst, at: u32, lane: u32, step: MbarrierStep) {
    let thread = ctx.warp as u32 * 32 + lane;
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let block = &mut *ctx.block;
    let Some(shadow) = block.shadow.as_mut() else {
        return;
    };
    let now = MbarrierMark::new(&mut shadow.clocks, pc, thread);
    let (lives, clocks) = (&mut block.mbarriers, &shadow.clocks);
    let fault = match step {
        MbarrierStep::Init { under_way } => lives.change(at, now, (false, under_way), clocks),
        MbarrierStep::Inval => lives.change(at, now, (true, false), clocks),
        MbarrierStep::Use => lives.used(at, now, clocks),
    };
    if let Some(fault) = fault {
        wrong(ctx, i, at, lane, step, fault);
    }
}

#[cold]
fn wrong(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    at: u32,
    lane: u32,
    step: MbarrierStep,
    fault: MbarrierFault,
) {
    let originator = |m: MbarrierMark| {
        let (function, pc) = ctx.run.prepared.locate(m.pc);
        let thread = ctx.run.thread_index(m.thread);
        let place = ctx.run.place(function, pc, ctx.block.index, thread);
        (
            AccessKind::Write,
            FindingActor::Thread(Box::new(place), None),
        )
    };
    let (kind, note, other) = match fault {
        MbarrierFault::NeverInitialised => (
            FindingKind::Uninitialised,
            "no thread has initialised this mbarrier",
            None,
        ),
        MbarrierFault::Invalidated(m) => (
            FindingKind::Uninitialised,
            "this mbarrier was invalidated, and not initialised again",
            Some(originator(m)),
        ),
        MbarrierFault::Unordered(m) => (
            FindingKind::SharedRace,
            match step {
                MbarrierStep::Use => "no barrier between the mbarrier's initialisation and its use",
                MbarrierStep::Init { .. } => {
                    "no barrier between the mbarrier's initialisation and other use"
                }
                MbarrierStep::Inval => "no barrier between the mbarrier's use and its invalidation",
            },
            Some(originator(m)),
        ),
        MbarrierFault::InUse(m) => (
            FindingKind::SharedRace,
            "initialised again while arrivals of its phase are awaited, and not invalidated",
            Some(originator(m)),
        ),
    };
    let access = Access {
        kind: match step {
            MbarrierStep::Use => AccessKind::Atomic,
            MbarrierStep::Init { .. } | MbarrierStep::Inval => AccessKind::Write,
        },
        space: MemSpace::Shared,
        addr: u64::from(at),
        len: 8,
    };
    let note = note.to_owned();
    let allocation = None;
    report(
        ctx,
        i,
        lane,
        ThreadFinding {
            kind,
            access,
            note,
            allocation,
            other,
        },
    );
}

fn access_to(at: u32) -> Access {
    Access {
        kind: AccessKind::Atomic,
        space: MemSpace::Shared,
        addr: u64::from(at),
        len: 8,
    }
}

/// Lanes of `mask` arrive at the mbarrier at `at`: what they did before is before the end of its
/// phase.
pub(crate) fn phase_release(ctx: &mut Ctx<'_>, at: u32, mask: u32) {
    let (warp, live) = (ctx.warp, ctx.w().live);
    let block = &mut *ctx.block;
    let Some(shadow) = block.shadow.as_mut() else {
        return;
    };
    let clocks = &mut shadow.clocks;
    clocks.set_live(warp, live);
    let known = clocks.known_to(warp, mask);
    clocks.released(warp);
    block.mbarriers.gather(at, &known);
}

/// The phase of the mbarrier at `at` is over.
pub(crate) fn phase_over(ctx: &mut Ctx<'_>, at: u32) {
    ctx.block.mbarriers.phase_over(at);
}

/// The lanes of `mask` have seen that the phases are over that they waited for; `acquires`: they
/// learn what is before that.
pub(crate) fn phase_seen(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    acquires: bool,
) {
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let (warp, live) = (ctx.warp, ctx.w().live);
    let mut rest = mask;
    while rest != 0 {
        let at = off[rest.trailing_zeros() as usize];
        let mut lanes = 0;
        each(rest, |l| lanes |= u32::from(off[l] == at) << l);
        rest &= !lanes;
        let block = &mut *ctx.block;
        let Some(shadow) = block.shadow.as_mut() else {
            return;
        };
        let clocks = &mut shadow.clocks;
        clocks.set_live(warp, live);
        if acquires && let Some(over) = block.mbarriers.over(at) {
            clocks.learn(warp, lanes, over, false);
        }
        if let Some(copies) = block.asyncs.as_mut() {
            let lane = lanes.trailing_zeros();
            copies.phase_seen(at, clocks, (warp, lane));
            each(lanes, |l| {
                copies.waited_at(at, warp as u32 * 32 + l as u32, pc)
            });
        }
    }
}

/// Reports more arrivals than the phase has pending.
#[cold]
pub(crate) fn surplus_arrival(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    (at, lane): (u32, u32),
    arrivals: i64,
    pending: i64,
) {
    let other = originator_of(ctx, at);
    if ctx.run.spec.checks.is_none() || other.is_none() {
        return;
    }
    let finding = ThreadFinding {
        kind: FindingKind::StuckMbarrier,
        access: access_to(at),
        note: format!("{arrivals} arrivals where {pending} are pending; initialised below"),
        allocation: None,
        other,
    };
    report(ctx, i, lane, finding);
}

/// Where the mbarrier at `at` was initialised.
fn originator_of(ctx: &Ctx<'_>, at: u32) -> Option<(AccessKind, FindingActor)> {
    let origin = ctx.block.book.origin(at)?;
    let (function, pc) = ctx.run.prepared.locate(origin.pc);
    let thread = ctx.run.thread_index(origin.thread);
    let place = ctx.run.place(function, pc, ctx.block.index, thread);
    let actor = FindingActor::Thread(Box::new(place), None);
    Some((AccessKind::Write, actor))
}

/// Reports a thread that waits for what never comes; `missing` says what that is.
#[cold]
pub(crate) fn never_completes(ctx: &mut Ctx<'_>, thread: u32, wait: FailedWait, missing: String) {
    let (function, pc) = ctx.run.prepared.locate(wait.pc);
    let index = ctx.run.thread_index(thread);
    let place = ctx.run.place(function, pc, ctx.block.index, index);
    let finding = Finding {
        kind: FindingKind::StuckMbarrier,
        access: Some(access_to(wait.at)),
        actor: FindingActor::Thread(Box::new(place), None),
        note: format!("no thread of the block goes on; {missing}"),
        allocation: None,
        other: originator_of(ctx, wait.at),
        count: 1,
    };
    found(ctx, finding);
}
