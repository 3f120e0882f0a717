//! Checks of instructions that a whole warp executes together on matrices.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::{LANES, each};
use super::found::report;
use super::members;
use super::site::ThreadFinding;
use crate::mem::AllocKind;
use crate::report::{Access, AccessKind, FindingKind, MemSpace};

/// Reports that the active lanes execute an instruction of the whole warp without the rest of it.
#[cold]
pub(crate) fn part_of_warp(ctx: &mut Ctx<'_>, i: &DecodedInst) {
    let (mask, w) = (ctx.mask, &ctx.block.warps[ctx.warp]);
    let missing = !mask;
    let where_they_are = if missing & w.live != 0 {
        "which do not reach it with them"
    } else if missing & w.launched != 0 {
        "which have exited"
    } else {
        "which the block does not have"
    };
    let note = format!(
        "lanes {mask:#010x} of warp {} execute it without lanes {missing:#010x}, {where_they_are}",
        w.index
    );
    members::wrong(ctx, i, mask.trailing_zeros() & 31, note);
}

/// Where each lane says that a matrix lies, and what that has to be a multiple of.
pub(crate) struct MatrixPlace<'a> {
    /// Address of the first element.
    pub(crate) base: &'a [u64; LANES],
    /// Bits from a row or column to the next one.
    pub(crate) step: &'a [u64; LANES],
    /// Bytes of which the address is a multiple.
    pub(crate) align: u64,
    /// Bytes of which the step is a multiple.
    pub(crate) step_align: u64,
    pub(crate) kind: AccessKind,
    pub(crate) space: MemSpace,
}

/// Checks that a matrix in memory begins and continues at aligned addresses, and that all lanes
/// mean the same one.
pub(crate) fn matrix_place(ctx: &mut Ctx<'_>, i: &DecodedInst, place: &MatrixPlace<'_>) {
    let first = ctx.mask.trailing_zeros() as usize & 31;
    let (base, step) = (place.base[first], place.step[first]);
    let mut other = None;
    each(ctx.mask, |l| {
        if (place.base[l], place.step[l]) != (base, step) {
            other = other.or(Some(l as u32));
        }
    });
    if let Some(l) = other {
        let note = format!("lanes {first} and {l} name different matrices");
        wrong(ctx, i, l, place, (FindingKind::WarpMask, base, note));
    }
    if !base.is_multiple_of(place.align) && !is_aligned_in_variable(ctx, place, base) {
        let note = format!("a matrix must begin at a multiple of {} bytes", place.align);
        let what = (FindingKind::Misaligned, base, note);
        wrong(ctx, i, first as u32, place, what);
    }
    if !step.is_multiple_of(8 * place.step_align) {
        let note = format!(
            "the lines of the matrix are {} bytes apart, which must be a multiple of {}",
            step / 8,
            place.step_align
        );
        let what = (FindingKind::Misaligned, base, note);
        wrong(ctx, i, first as u32, place, what);
    }
}

/// Whether `at` is aligned from the start of the variable that it is in: the program does not
/// decide where that lies.
#[cold]
fn is_aligned_in_variable(ctx: &Ctx<'_>, place: &MatrixPlace<'_>, at: u64) -> bool {
    let start = if place.space == MemSpace::Shared {
        let variables = ctx.run.code().variables.iter();
        let mut holders = variables.filter(|v| {
            let start = u64::from(v.start);
            v.space == MemSpace::Shared && at >= start && at - start < u64::from(v.len)
        });
        holders.next().map(|v| u64::from(v.start))
    } else {
        let found = ctx.run.spec.space.find_live(at);
        found
            .filter(|a| a.kind == AllocKind::Global)
            .map(|a| a.start)
    };
    start.is_some_and(|start| (at - start).is_multiple_of(place.align))
}

#[cold]
fn wrong(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: u32,
    place: &MatrixPlace<'_>,
    (kind, addr, note): (FindingKind, u64, String),
) {
    let access = Access {
        kind: place.kind,
        space: place.space,
        addr,
        len: place.align,
    };
    let allocation = ctx.run.blame(&access);
    let finding = ThreadFinding {
        kind,
        access,
        note,
        allocation,
        other: None,
    };
    report(ctx, i, lane, finding);
}
