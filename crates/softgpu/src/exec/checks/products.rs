//! Checks of products of four warps: registers under way, fences, the four warps together, and the
//! descriptors of operands.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::{LANES, each};
use super::super::state::GROUP_WARPS;
use super::super::state::{IssuedProduct, PendingProduct};
use super::super::wgmma_layout::MatrixDescriptor;
use super::found::{found, report};
use super::members;
use super::proxy::actor;
use super::site::ThreadFinding;
use crate::check::asynchronous::{AsyncShadow, MetCopy, products_complete};
use crate::check::shared::{ProxyFinding, SharedFinding, SharedRecord};
use crate::report::{Access, AccessKind, Finding, FindingActor, FindingKind, MemSpace};

/// What a register of a product is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FragmentUse {
    /// Of the sums, which the product writes.
    Sums,
    /// Of A, which it reads.
    Factor,
}

/// Bytes of a row of a core of a matrix.
const ROW_BYTES: u32 = 16;

fn global_pc(ctx: &Ctx<'_>, i: &DecodedInst) -> u32 {
    ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i))
}

fn first_lane(ctx: &Ctx<'_>) -> u32 {
    ctx.mask.trailing_zeros() & 31
}

/// Reports something about registers, against the instruction with number `pc`.
#[cold]
fn wrong(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    kind: FindingKind,
    note: String,
    other: Option<(AccessKind, u32)>,
) {
    let lane = first_lane(ctx);
    let place = ctx.place(ctx.pc_of(i), lane);
    let thread = ctx.linear_thread(lane);
    let finding = Finding {
        kind,
        access: None,
        actor: FindingActor::Thread(Box::new(place), None),
        note,
        allocation: None,
        other: other.map(|(kind, pc)| (kind, actor(ctx, pc, thread))),
        count: 1,
    };
    found(ctx, finding);
}

/// Reports that an instruction touches a register of product `product`, if that is under way.
pub(crate) fn touches_product(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    product: u32,
    writes: bool,
    kind: FragmentUse,
) {
    let code = std::ptr::from_ref(ctx.code) as usize;
    let pending = &ctx.block.warps[ctx.warp].products.pending;
    let found = pending
        .iter()
        .rev()
        .find(|p| (p.function, p.product) == (code, product));
    let Some(&PendingProduct { pc, .. }) = found else {
        return;
    };
    let (what, by) = match kind {
        FragmentUse::Sums => ("an accumulator", AccessKind::Write),
        FragmentUse::Factor => ("a register of A", AccessKind::Read),
    };
    let verb = if writes { "written" } else { "read" };
    let note = format!(
        "{what} is {verb} while the wgmma that uses it is under way: no wgmma.wait_group between \
         the two covers its group"
    );
    wrong(
        ctx,
        i,
        FindingKind::MissingProductWait,
        note,
        Some((by, pc)),
    );
}

/// Reports that a product reads a register that instruction `pc` of the function has written since
/// the last fence.
pub(crate) fn reads_unfenced(ctx: &mut Ctx<'_>, i: &DecodedInst, pc: u32) {
    let pc = ctx.run.prepared.global_pc(ctx.code, pc);
    let note = "no wgmma.fence between the write of its register and the wgmma".to_owned();
    wrong(
        ctx,
        i,
        FindingKind::MissingProductFence,
        note,
        Some((AccessKind::Write, pc)),
    );
}

/// The operands of a product in shared memory.
pub(crate) struct CheckedProduct {
    /// Descriptors, of A if it is not in registers.
    pub(crate) a: Option<u64>,
    pub(crate) b: u64,
    /// Its number in its function.
    pub(crate) product: u32,
}

/// Checks a product before it is formed, and takes it down; its number among what the asynchronous
/// proxy does.
pub(crate) fn product(ctx: &mut Ctx<'_>, i: &DecodedInst, operands: &CheckedProduct) -> u32 {
    let pc = global_pc(ctx, i);
    let function = std::ptr::from_ref(ctx.code) as usize;
    let products = &mut ctx.w().products;
    let is_first = !std::mem::replace(&mut products.fenced, true);
    let group = products.committed + 1;
    products.pending.push(PendingProduct {
        function,
        product: operands.product,
        pc,
        group,
    });
    if is_first {
        let note = "no wgmma.fence before the warp's first wgmma".to_owned();
        wrong(ctx, i, FindingKind::MissingProductFence, note, None);
    }
    together(ctx, i, pc, operands);
    for (name, bits) in [("A", operands.a), ("B", Some(operands.b))] {
        if let Some(bits) = bits {
            descriptor(ctx, i, name, bits);
        }
    }
    let thread = ctx.linear_thread(first_lane(ctx));
    let warps = (ctx.warp / GROUP_WARPS) as u32;
    let (bytes, block) = (ctx.block.shared.len(), ctx.block.linear as u32);
    let asyncs = &mut ctx.block.asyncs;
    let asyncs = asyncs.get_or_insert_with(|| Box::new(AsyncShadow::new(bytes)));
    asyncs.by_product(pc, thread, products_complete(block, warps, group))
}

/// Checks that what product `number` reads, rows of 16 bytes inside shared memory, was written,
/// and that the asynchronous proxy sees it.
pub(crate) fn product_reads(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    number: u32,
    name: &str,
    rows: &[u32; 8],
) {
    let (lane, warp, live) = (first_lane(ctx), ctx.warp, ctx.w().live);
    for &at in rows {
        let block = &mut *ctx.block;
        let (Some(asyncs), Some(shadow)) = (block.asyncs.as_mut(), block.shadow.as_mut()) else {
            return;
        };
        shadow.clocks.set_live(warp, live);
        let met = asyncs.meets(&shadow.clocks, (warp, lane), (at, ROW_BYTES), false);
        let found = shadow.copied_out((warp, lane), (at, ROW_BYTES));
        asyncs.touch(number, at, ROW_BYTES, false);
        if met.is_some() || found.is_some() {
            met_operand(ctx, i, (name, at), met, found);
        }
    }
}

/// What a product finds where it reads.
#[cold]
fn met_operand(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    (name, at): (&str, u32),
    met: Option<MetCopy>,
    found: Option<ProxyFinding>,
) {
    let of = |m: SharedRecord| actor(ctx, m.pc(), m.thread());
    let (kind, what, other) = match (met, found) {
        (Some(MetCopy::Writer(copy) | MetCopy::Reader(copy)), _) => (
            FindingKind::MissingAsyncWait,
            "the copy that writes it has not been waited for",
            Some((AccessKind::AsyncCopy, actor(ctx, copy.pc, copy.thread))),
        ),
        (None, Some(ProxyFinding::Unseen(m))) => (
            FindingKind::MissingProxyFence,
            "no fence.proxy.async between the write of the thread and the wgmma",
            Some((AccessKind::Write, of(m))),
        ),
        (None, Some(ProxyFinding::Thread(SharedFinding::Uninitialised))) => (
            FindingKind::Uninitialised,
            "no thread of the block wrote it",
            None,
        ),
        (None, Some(ProxyFinding::Thread(SharedFinding::Pending(m)))) => (
            FindingKind::MissingAsyncWait,
            "the copy that writes it has not been waited for",
            Some((AccessKind::AsyncCopy, of(m))),
        ),
        (
            None,
            Some(ProxyFinding::Thread(SharedFinding::Race(m, _) | SharedFinding::SameValue(m))),
        ) => (
            FindingKind::SharedRace,
            "nothing orders the wgmma behind the thread that writes it",
            Some((AccessKind::Write, of(m))),
        ),
        (None, None) => return,
    };
    let finding = ThreadFinding {
        kind,
        access: Access {
            kind: AccessKind::Read,
            space: MemSpace::Shared,
            addr: at.into(),
            len: ROW_BYTES.into(),
        },
        note: format!("of matrix {name}: {what}"),
        allocation: None,
        other,
    };
    report(ctx, i, first_lane(ctx), finding);
}

/// The current warp has waited until that many groups of products of its four warps are complete.
pub(crate) fn products_done(ctx: &mut Ctx<'_>, groups: u32) {
    let (warp, mask, live) = (ctx.warp, ctx.mask, ctx.w().live);
    let warps = (warp / GROUP_WARPS) as u32;
    let done = products_complete(ctx.block.linear as u32, warps, groups);
    if groups != 0
        && let Some(shadow) = ctx.block.shadow.as_mut()
    {
        shadow.clocks.set_live(warp, live);
        shadow.clocks.learn(warp, mask, &done.known(), false);
    }
}

/// Checks that four warps execute one product with the same descriptors.
fn together(ctx: &mut Ctx<'_>, i: &DecodedInst, pc: u32, operands: &CheckedProduct) {
    let warp = ctx.warp;
    let first = warp / GROUP_WARPS * GROUP_WARPS;
    let warps = ctx.block.warps.len();
    if warps < first + GROUP_WARPS {
        let note = format!(
            "warps {first} to {} form a product together, and the block has only {warps}",
            first + GROUP_WARPS - 1
        );
        members::wrong(ctx, i, first_lane(ctx), note);
    }
    let now = IssuedProduct {
        pc,
        warp: warp as u32,
        descriptors: [operands.a.unwrap_or(0), operands.b],
    };
    ctx.w().products.issued += 1;
    let Some(was) = issued_before(ctx, first, now) else {
        return;
    };
    if was.pc != pc {
        let line = |pc: u32| {
            let (function, pc) = ctx.run.prepared.locate(pc);
            ctx.run.code().functions[function].origins[pc as usize].line
        };
        let note = format!(
            "warp {} executes the wgmma at line {} where warp {} executes that at line {}: the four \
             warps must execute the same",
            now.warp,
            line(pc),
            was.warp,
            line(was.pc)
        );
        members::wrong(ctx, i, first_lane(ctx), note);
    } else if was.descriptors != now.descriptors {
        let which = usize::from(was.descriptors[0] == now.descriptors[0]);
        let note = format!(
            "warp {} has the descriptor {:#x} of {}, and warp {} has {:#x}: the four warps must have \
             the same",
            now.warp,
            now.descriptors[which],
            ["A", "B"][which],
            was.warp,
            was.descriptors[which]
        );
        members::wrong(ctx, i, first_lane(ctx), note);
    }
}

/// The same product as the first of the four warps has issued it, unless this is the first: then it
/// is taken down.
fn issued_before(ctx: &mut Ctx<'_>, first: usize, now: IssuedProduct) -> Option<IssuedProduct> {
    let issued = ctx.w().products.issued;
    let end = (first + GROUP_WARPS).min(ctx.block.warps.len());
    let group = &mut ctx.block.warps[first..end];
    let least = group
        .iter()
        .filter(|w| w.live != 0)
        .map(|w| w.products.issued);
    let least = least.min().unwrap_or(issued);
    let all = &mut group[0].products;
    let at = (issued - 1 - all.agreed) as usize;
    let was = all.sequence.get(at).copied();
    if was.is_none() {
        // A warp issues its products in order, so this is the next of the four's.
        all.sequence.push_back(now);
    }
    while all.agreed < least && all.sequence.pop_front().is_some() {
        all.agreed += 1;
    }
    was
}

/// Checks that the lanes of a warp have one descriptor.
pub(crate) fn same_descriptor(ctx: &mut Ctx<'_>, i: &DecodedInst, row: &[u64; LANES]) {
    let first = first_lane(ctx);
    let mut other = None;
    each(ctx.mask, |l| {
        if row[l] != row[first as usize] {
            other = other.or(Some(l as u32));
        }
    });
    if let Some(l) = other {
        let note = format!(
            "lanes {first} and {l} have different descriptors, {:#x} and {:#x}",
            row[first as usize], row[l as usize]
        );
        members::wrong(ctx, i, l, note);
    }
}

/// Checks that a matrix begins in the first row of its pattern.
fn descriptor(ctx: &mut Ctx<'_>, i: &DecodedInst, name: &str, bits: u64) {
    let d = MatrixDescriptor::of(bits);
    let row = (d.start >> 7).wrapping_sub(d.base_offset) & (d.period() / 128 - 1);
    if row == 0 {
        return;
    }
    let note = format!(
        "matrix {name} begins in row {row} of the pattern of {} bytes: its address must be a \
         multiple of {}, or its descriptor have the base offset {}",
        d.width,
        d.period(),
        d.start >> 7 & 7
    );
    operand(ctx, i, (FindingKind::Misaligned, d.start, note));
}

/// Reports that a matrix lies in part outside of the block's shared memory.
#[cold]
pub(crate) fn operand_outside(ctx: &mut Ctx<'_>, i: &DecodedInst, name: &str, at: u32) {
    let note = format!(
        "by its descriptor matrix {name} reaches it, and the block has {} bytes of shared memory",
        ctx.run.shared_bytes
    );
    operand(ctx, i, (FindingKind::OutOfBounds, at, note));
}

#[cold]
fn operand(ctx: &mut Ctx<'_>, i: &DecodedInst, (kind, at, note): (FindingKind, u32, String)) {
    let finding = ThreadFinding {
        kind,
        access: Access {
            kind: AccessKind::Read,
            space: MemSpace::Shared,
            addr: at.into(),
            len: 16,
        },
        note,
        allocation: None,
        other: None,
    };
    report(ctx, i, first_lane(ctx), finding);
}

/// A warp waits for a group of products: those of the four warps that have exited must have taken
/// part.
pub(crate) fn left_group(ctx: &mut Ctx<'_>, pc: u32, gone: u32) {
    let lane = first_lane(ctx);
    let place = ctx.place(pc, lane);
    let note = format!(
        "warp {gone} has exited without the products that warp {} waits for: the four warps must \
         execute the same",
        ctx.warp
    );
    let finding = Finding {
        kind: FindingKind::WarpMask,
        access: None,
        actor: FindingActor::Thread(Box::new(place), None),
        note,
        allocation: None,
        other: None,
        count: 1,
    };
    found(ctx, finding);
}
