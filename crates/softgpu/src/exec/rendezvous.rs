//! Points that lanes of a warp pass together.

use super::checks;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{Lower, Opd};
use super::registers::ALL;

/// With checks: the lanes of the warp that are here have synchronised, as their masks in `a` say.
struct RecordWarpSync;

impl Exec for RecordWarpSync {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let members = ctx.rows.row::<u32>(i.a);
        checks::lanes_met(ctx, ctx.mask, &members);
        checks::members(ctx, i, &members);
    }
}

/// With checks: the whole warp has to be here.
struct RequireWarp;

impl Exec for RequireWarp {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        if ctx.mask != ALL {
            checks::part_of_warp(ctx, i);
        }
    }
}

/// Begins a block that all lanes of `mask` enter together.
pub(crate) fn together(l: &mut Lower<'_, '_>, mask: Opd) {
    l.sync_point(mask);
    if l.k.checks {
        l.emit(
            handlers_plain::<RecordWarpSync>(),
            Opd::None,
            mask,
            Opd::None,
            Opd::None,
        );
    }
}

/// The same for `.aligned` instructions; their mask is the whole warp.
pub(crate) fn whole_warp(l: &mut Lower<'_, '_>) {
    let all = l.c32(u32::MAX);
    together(l, all);
    let block = l.cur;
    l.blocks[block].whole = true;
    if l.k.checks {
        let none = Opd::None;
        l.emit(handlers_plain::<RequireWarp>(), none, none, none, none);
    }
}
