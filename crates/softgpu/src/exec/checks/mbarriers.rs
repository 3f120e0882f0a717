//! Checks of mbarriers: initialised before they are used, and not used afterwards.

use super::super::ctx::{Ctx, DecodedInst};
use super::found::report;
use super::site::ThreadFinding;
use crate::check::mbarriers::{MbarrierFault, MbarrierMark};
use crate::report::{Access, AccessKind, FindingActor, FindingKind, MemSpace};

/// Records that a lane uses the mbarrier at `at`, or initialises it (`changes` false) or
/// invalidates it (true).
pub(crate) fn mbarrier(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    at: u32,
    lane: u32,
    changes: Option<bool>,
) {
    let thread = ctx.warp as u32 * 32 + lane;
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let block = &mut *ctx.block;
    let Some(shadow) = block.shadow.as_mut() else {
        return;
    };
    let now = MbarrierMark::new(&mut shadow.clocks, pc, thread);
    let fault = match changes {
        Some(ends) => block.mbarriers.change(at, now, ends, &shadow.clocks),
        None => block.mbarriers.used(at, now, &shadow.clocks),
    };
    if let Some(fault) = fault {
        wrong(ctx, i, at, lane, changes, fault);
    }
}

#[cold]
fn wrong(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    at: u32,
    lane: u32,
    changes: Option<bool>,
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
            match changes {
                None => "no barrier between the mbarrier's initialisation and its use",
                Some(false) => "no barrier between the mbarrier's initialisation and other use",
                Some(true) => "no barrier between the mbarrier's use and its invalidation",
            },
            Some(originator(m)),
        ),
    };
    let access = Access {
        kind: if changes.is_some() {
            AccessKind::Write
        } else {
            AccessKind::Atomic
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
