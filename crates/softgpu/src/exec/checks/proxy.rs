//! Checks of copies by the asynchronous proxy: fences before them, waits behind them.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::{LANES, each};
use super::found::{found, report};
use super::mbarriers::{self, MbarrierStep};
use super::site::ThreadFinding;
use crate::check::asynchronous::{AsyncCopy, AsyncShadow, MetCopy};
use crate::check::clock::{SEEN_GLOBAL, SEEN_SHARED};
use crate::check::shared::{ProxyFinding, SharedFinding, SharedRecord};
use crate::report::{Access, AccessKind, Finding, FindingActor, FindingKind, MemSpace};

/// A place of the own block's code as the other side of a finding.
pub(super) fn actor(ctx: &Ctx<'_>, pc: u32, thread: u32) -> FindingActor {
    let (function, pc) = ctx.run.prepared.locate(pc);
    let thread = ctx.run.thread_index(thread);
    let place = ctx.run.place(function, pc, ctx.block.index, thread);
    FindingActor::Thread(Box::new(place), None)
}

/// Begins a copy that a lane issues, of which the mbarrier at that offset tells, or else the
/// thread's bulk group; its number, 0 without checks.
pub(crate) fn begin_copy(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    mbarrier: Option<u32>,
) -> u32 {
    if let Some(at) = mbarrier {
        mbarriers::mbarrier(ctx, i, at, lane as u32, MbarrierStep::Use);
    }
    let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    let thread = ctx.linear_thread(lane as u32);
    let bytes = ctx.block.shared.len();
    let block = ctx.block.linear as u32;
    let copies = ctx
        .block
        .asyncs
        .get_or_insert_with(|| Box::new(AsyncShadow::new(bytes)));
    match mbarrier {
        Some(at) => copies.by_mbarrier(pc, thread, (block, at)),
        None => copies.by_group(pc, block, thread),
    }
}

/// The mbarrier at `at` is about to be notified that copy `number`, which a lane has issued, is
/// complete. A wait for it is behind the copy, and what its thread did before.
pub(crate) fn complete_copy(ctx: &mut Ctx<'_>, lane: usize, at: u32, number: u32) {
    let warp = ctx.warp;
    let block = &mut *ctx.block;
    if let (Some(copies), Some(shadow)) = (&block.asyncs, block.shadow.as_mut()) {
        let clocks = &mut shadow.clocks;
        let known = copies
            .copy(number)
            .done
            .known_with(clocks, (warp, lane as u32));
        clocks.released(warp);
        block.mbarriers.gather(at, &known);
    }
}

/// Records that the lanes have passed a fence of the asynchronous proxy.
pub(crate) fn proxy_fence(ctx: &mut Ctx<'_>, shared: bool, global: bool) {
    let (warp, mask, live) = (ctx.warp, ctx.mask, ctx.w().live);
    let seen: &[u32] = match (shared, global) {
        (true, false) => &[SEEN_SHARED],
        (false, true) => &[SEEN_GLOBAL],
        _ => &[SEEN_SHARED, SEEN_GLOBAL],
    };
    if let Some(shadow) = ctx.block.shadow.as_mut() {
        shadow.clocks.set_live(warp, live);
        shadow.clocks.proxy_fence(warp, mask, seen);
    }
}

/// The lanes end their bulk groups.
pub(crate) fn commit_bulk(ctx: &mut Ctx<'_>) {
    let (first, mask) = (ctx.warp as u32 * 32, ctx.mask);
    if let Some(copies) = ctx.block.asyncs.as_mut() {
        each(mask, |l| copies.commit(first + l as u32));
    }
}

/// The lanes have waited until all but their last `keep` bulk groups are complete, or have `read`.
pub(crate) fn wait_bulk(ctx: &mut Ctx<'_>, keep: u32, read: bool) {
    let (warp, mask, live) = (ctx.warp, ctx.mask, ctx.w().live);
    let block = &mut *ctx.block;
    let number = block.linear as u32;
    let (Some(copies), Some(shadow)) = (block.asyncs.as_mut(), block.shadow.as_mut()) else {
        return;
    };
    shadow.clocks.set_live(warp, live);
    each(mask, |l| {
        let thread = warp as u32 * 32 + l as u32;
        for done in copies
            .waited(number, thread, keep, read)
            .into_iter()
            .flatten()
        {
            shadow.clocks.learn(warp, 1 << l, &done.known(), false);
        }
    });
}

/// Checks an access of copy `number`, which a lane issues, to `len` bytes of shared memory at `at`,
/// inside it, and records it.
pub(crate) fn copy_shared(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    number: u32,
    (at, len): (u32, u32),
    writes: bool,
) {
    let (warp, live) = (ctx.warp, ctx.w().live);
    let issuer = (warp, lane as u32);
    let block = &mut *ctx.block;
    let (Some(copies), Some(shadow)) = (block.asyncs.as_mut(), block.shadow.as_mut()) else {
        return;
    };
    shadow.clocks.set_live(warp, live);
    let met = copies.meets(&shadow.clocks, issuer, (at, len), writes);
    let found = match writes {
        true => shadow.copied_in(issuer, (at, len)),
        false => shadow.copied_out(issuer, (at, len)),
    };
    copies.touch(number, at, len, writes);
    let access = Access {
        kind: AccessKind::AsyncCopy,
        space: MemSpace::Shared,
        addr: at.into(),
        len: len.into(),
    };
    if let Some(met) = met {
        met_copy(ctx, i, lane, access, met);
    }
    if let Some(found) = found {
        met_thread(ctx, i, lane, access, (found, writes));
    }
}

#[cold]
fn met_thread(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    access: Access,
    (found, writes): (ProxyFinding, bool),
) {
    let of = |m: SharedRecord| actor(ctx, m.pc(), m.thread());
    let (kind, note, other) = match found {
        ProxyFinding::Thread(SharedFinding::Uninitialised) => (
            FindingKind::Uninitialised,
            "no thread of the block wrote all of it",
            None,
        ),
        ProxyFinding::Thread(SharedFinding::Race(m, kind)) => (
            FindingKind::SharedRace,
            match kind {
                AccessKind::Read => "nothing orders the copy behind the thread that reads there",
                _ => "nothing orders the copy behind the thread that writes there",
            },
            Some((kind, of(m))),
        ),
        ProxyFinding::Thread(SharedFinding::SameValue(m)) => (
            FindingKind::SharedRace,
            "nothing orders the copy behind the thread that writes there",
            Some((AccessKind::Write, of(m))),
        ),
        ProxyFinding::Thread(SharedFinding::Pending(m)) => (
            FindingKind::MissingAsyncWait,
            "the copy has not been waited for",
            Some((AccessKind::AsyncCopy, of(m))),
        ),
        ProxyFinding::Unseen(m) => (
            FindingKind::MissingProxyFence,
            if writes {
                "no fence.proxy.async between the write of the thread and that of the copy"
            } else {
                "no fence.proxy.async between the write of the thread and the copy that reads it"
            },
            Some((AccessKind::Write, of(m))),
        ),
    };
    let finding = ThreadFinding {
        kind,
        access,
        note: note.to_owned(),
        allocation: None,
        other,
    };
    report(ctx, i, lane as u32, finding);
}

/// Reports an access to what a copy that was not waited for still reads or writes.
#[cold]
pub(super) fn met_copy(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    access: Access,
    met: MetCopy,
) {
    let (copy, note) = match met {
        MetCopy::Writer(copy) => (copy, "the copy that writes this has not been waited for"),
        MetCopy::Reader(copy) if copy.is_product() => (
            copy,
            "the wgmma that reads this has not been waited for, by wgmma.wait_group and what \
             orders this access behind it",
        ),
        MetCopy::Reader(copy) => (copy, "the copy that reads this has not been waited for"),
    };
    let mut note = note.to_owned();
    if let Some(line) = earlier_wait(ctx, copy, lane) {
        note += &format!("; the last wait for its mbarrier, at {line}, was for an earlier phase");
    }
    let (kind, by) = match copy.is_product() {
        true => (FindingKind::MissingProductWait, AccessKind::Read),
        false => (FindingKind::MissingAsyncWait, AccessKind::AsyncCopy),
    };
    let finding = ThreadFinding {
        kind,
        access,
        note,
        allocation: match access.space {
            MemSpace::Global => ctx.run.blame(&access),
            _ => None,
        },
        other: Some((by, actor(ctx, copy.pc, copy.thread))),
    };
    report(ctx, i, lane as u32, finding);
}

/// The line of a wait of the lane for the mbarrier of a copy, which was over too early.
fn earlier_wait(ctx: &Ctx<'_>, copy: AsyncCopy, lane: usize) -> Option<String> {
    let thread = ctx.linear_thread(lane as u32);
    let pc = ctx.block.asyncs.as_ref()?.wait_for(copy, thread)?;
    let FindingActor::Thread(place, _) = actor(ctx, pc, thread) else {
        return None;
    };
    Some(match place.source_name() {
        Some(source) => format!("{source} (PTX line {})", place.ptx_line),
        None => format!("PTX line {}", place.ptx_line),
    })
}

/// Checks accesses of threads to shared memory, inside it, against copies.
#[inline]
pub(super) fn beside_copies(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    (size, kind): (u32, AccessKind),
) {
    let Some(copies) = &ctx.block.asyncs else {
        return;
    };
    let mut near = 0;
    each(mask, |l| {
        near |= u32::from(copies.is_touched(off[l], size)) << l
    });
    if near == 0 {
        return;
    }
    let writes = kind != AccessKind::Read;
    let warp = ctx.warp;
    each(near, |l| {
        let block = &mut *ctx.block;
        let (Some(copies), Some(shadow)) = (block.asyncs.as_mut(), block.shadow.as_ref()) else {
            return;
        };
        let met = copies.meets(&shadow.clocks, (warp, l as u32), (off[l], size), writes);
        match met {
            None if writes => copies.overwritten(off[l], size),
            None => {}
            Some(met) => {
                let access = Access {
                    kind,
                    space: MemSpace::Shared,
                    addr: off[l].into(),
                    len: size.into(),
                };
                met_copy(ctx, i, l, access, met);
            }
        }
    });
}

/// The same of global memory.
pub(super) fn beside_copies_of_global(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    (size, kind): (u32, AccessKind),
) {
    let writes = kind != AccessKind::Read;
    let warp = ctx.warp;
    each(mask, |l| {
        let (Some(copies), Some(shadow)) = (&ctx.block.asyncs, &ctx.block.shadow) else {
            return;
        };
        let bytes = addr[l]..addr[l].saturating_add(size.into());
        let met = copies.meets_global(&shadow.clocks, (warp, l as u32), bytes, writes);
        if let Some(met) = met {
            let access = Access {
                kind,
                space: MemSpace::Global,
                addr: addr[l],
                len: size.into(),
            };
            met_copy(ctx, i, l, access, met);
        }
    });
}

/// Reports copies that may still read or write the shared memory of a block that has ended.
pub(crate) fn copies_left(ctx: &mut Ctx<'_>) {
    let Some(copies) = ctx.block.asyncs.take() else {
        return;
    };
    for copy in copies.unobserved() {
        let note = if copy.done == copy.read {
            "the block ends before any thread has waited for the copy"
        } else {
            "the block ends before the copy is known to have read its shared memory"
        };
        let finding = Finding {
            kind: FindingKind::MissingAsyncWait,
            access: None,
            actor: actor(ctx, copy.pc, copy.thread),
            note: note.to_owned(),
            allocation: None,
            other: None,
            count: 1,
        };
        found(ctx, finding);
    }
}

/// Reports a copy that its tensor map does not allow, or that lies outside of the tensor, with
/// checks. `access` is to the memory of the other side.
#[cold]
pub(crate) fn tensor_misuse(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    access: Access,
    note: String,
) {
    if ctx.run.spec.checks.is_none() {
        return;
    }
    let allocation = match access.space {
        MemSpace::Global => ctx.run.blame(&access),
        _ => None,
    };
    let finding = ThreadFinding {
        kind: FindingKind::TensorMap,
        access,
        note,
        allocation,
        other: None,
    };
    report(ctx, i, lane as u32, finding);
}

/// Reports an access of a copy that is not a multiple of `align`, or outside of shared memory, with
/// checks.
#[cold]
pub(crate) fn refused(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: usize, access: Access, align: u32) {
    if ctx.run.spec.checks.is_none() {
        return;
    }
    let is_misaligned = !access.addr.is_multiple_of(align.into());
    let (kind, note) = match is_misaligned {
        true => (
            FindingKind::Misaligned,
            format!("must be a multiple of {align}"),
        ),
        false => (
            FindingKind::OutOfBounds,
            format!(
                "the block has {} bytes of shared memory",
                ctx.block.shared.len()
            ),
        ),
    };
    let finding = ThreadFinding {
        kind,
        access,
        note,
        allocation: match access.space {
            MemSpace::Global => ctx.run.blame(&access),
            _ => None,
        },
        other: None,
    };
    report(ctx, i, lane as u32, finding);
}
