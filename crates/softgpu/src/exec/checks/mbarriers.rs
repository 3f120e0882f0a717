//! Checks of mbarriers: initialised before they are used, and not used afterwards.

use super::super::ctx::{Ctx, DecodedInst};
use super::found::report;
use super::site::ThreadFinding;
use crate::check::mbarriers::{MbarrierFault, MbarrierMark};
use crate::report::{Access, AccessKind, FindingActor, FindingKind, MemSpace};

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
