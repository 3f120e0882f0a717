//! Findings of a block at work.

use super::super::ctx::{Ctx, DecodedInst};
use super::global::take_turn;
use super::site::ThreadFinding;
use crate::report::Finding;

/// Reports a finding in the current block.
#[cold]
pub(crate) fn found(ctx: &mut Ctx<'_>, finding: Finding) {
    if ctx.block.log.as_ref().is_some_and(|log| log.is_full()) && !take_turn(ctx) {
        // The launch was stopped: later accesses of the block are not logged.
        return;
    }
    match (&mut ctx.block.log, &ctx.run.spec.checks) {
        (Some(log), _) => log.found(finding),
        (None, Some(checks)) => checks.sink.add(finding),
        (None, None) => {}
    }
}

pub(super) fn report(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: u32, r: ThreadFinding) {
    let finding = r.by(ctx.place(ctx.pc_of(i), lane));
    found(ctx, finding);
}
