//! Findings about barriers: a thread, the place where it waits, and what is wrong.

use super::checks;
use super::ctx::Ctx;
use crate::report::{Finding, FindingActor, FindingKind};

/// Reports, with checks, `lane` of `warp` at the barrier that ends block `pc` of a function.
pub(crate) fn report(
    ctx: &mut Ctx<'_>,
    function: u32,
    pc: u32,
    warp: u32,
    lane: u32,
    note: String,
) {
    if ctx.run.spec.checks.is_none() {
        return;
    }
    let thread = ctx.run.thread_index(warp * 32 + lane);
    let term_pc = ctx.run.code().functions[function as usize].blocks[pc as usize].term_pc;
    let place = ctx
        .run
        .place(function as usize, term_pc, ctx.block.index, thread);
    let finding = Finding {
        kind: FindingKind::BarrierDivergence,
        access: None,
        actor: FindingActor::Thread(Box::new(place), None),
        note,
        allocation: None,
        other: None,
        count: 1,
    };
    checks::found(ctx, finding);
}

/// The function that the current split executes.
pub(crate) fn function_of(ctx: &Ctx<'_>) -> u32 {
    ctx.block.warps[ctx.warp]
        .frames
        .get(ctx.frame as usize)
        .and_then(Option::as_ref)
        .map_or(0, |f| f.function)
}
