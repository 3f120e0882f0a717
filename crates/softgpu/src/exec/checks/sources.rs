//! Checks of accesses to global memory, and of the sources of asynchronous copies: unchanged until
//! the copy has been waited for.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::{LANES, each};
use super::super::state::PendingCopy;
use super::found::report;
use super::global::{CheckedAccess, judge_global};
use super::proxy;
use super::site::ThreadFinding;
use crate::report::{Access, AccessKind, FindingActor, FindingKind, MemSpace};

/// Checks an access to global memory; returns the lanes that may make it.
#[inline(always)]
pub(crate) fn global(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    checked: CheckedAccess<'_>,
) -> u32 {
    if checked.kind != AccessKind::Read && !ctx.block.sources.is_empty() {
        overwritten(ctx, i, addr, mask, checked.size, checked.kind);
    }
    if ctx.block.asyncs.as_ref().is_some_and(|a| a.has_pieces()) {
        proxy::beside_copies_of_global(ctx, i, addr, mask, (checked.size, checked.kind));
    }
    judge_global(ctx, i, addr, mask, checked)
}

/// Reports the first lane that writes bytes which a copy of its block may still have to read.
fn overwritten(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    size: u32,
    kind: AccessKind,
) {
    let size = u64::from(size);
    let sources = &ctx.block.sources;
    let mut near = 0;
    each(mask, |l| {
        let meets = addr[l] < sources.end && addr[l].saturating_add(size) > sources.start;
        near |= u32::from(meets) << l;
    });
    if near == 0 {
        return;
    }
    let (mut first, mut last) = (u64::MAX, 0);
    each(near, |l| {
        first = first.min(addr[l]);
        last = last.max(addr[l]);
    });
    let mut met: Option<(u32, usize, PendingCopy)> = None;
    for (w, warp) in ctx.block.warps.iter().enumerate() {
        let end = |c: &PendingCopy| c.src + u64::from(c.src_len);
        let copies = warp.copies.iter();
        for copy in copies.filter(|c| c.src < last.saturating_add(size) && end(c) > first) {
            each(near, |l| {
                let meets = copy.src < addr[l] + size && end(copy) > addr[l];
                if meets && met.is_none_or(|(lane, ..)| (l as u32) < lane) {
                    met = Some((l as u32, w, *copy));
                }
            });
        }
    }
    if let Some((lane, warp, copy)) = met {
        let thread = warp as u32 * 32 + u32::from(copy.lane);
        wrong(
            ctx,
            i,
            lane,
            (addr[lane as usize], size, kind),
            (thread, copy.pc),
        );
    }
}

#[cold]
fn wrong(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: u32,
    (addr, len, kind): (u64, u64, AccessKind),
    (thread, pc): (u32, u32),
) {
    let (function, pc) = ctx.run.prepared.locate(pc);
    let thread = ctx.run.thread_index(thread);
    let copy = ctx.run.place(function, pc, ctx.block.index, thread);
    let access = Access {
        kind,
        space: MemSpace::Global,
        addr,
        len,
    };
    let finding = ThreadFinding {
        kind: FindingKind::GlobalRace,
        access,
        note: "the copy that reads this has not been waited for".to_owned(),
        allocation: ctx.run.blame(&access),
        other: Some((
            AccessKind::AsyncCopy,
            FindingActor::Thread(Box::new(copy), None),
        )),
    };
    report(ctx, i, lane, finding);
}
