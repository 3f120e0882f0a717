//! Lowering of instructions with one destination and one, two or three sources.

use fercuda_ptx::ast::Inst as Tree;
use fercuda_ptx::words::ScalarType as Ty;

use super::lanes::Handlers;
use super::lower::{Lower, Lowered, Opd, bad};
use super::width::rows;

pub(crate) fn one(l: &mut Lower<'_, '_>, i: &Tree, d: Ty, a: Ty, h: Handlers) -> Lowered<()> {
    let [od, oa] = i.operands.as_slice() else {
        return bad("two operands are needed");
    };
    let a = l.src(oa, a)?;
    let d = l.dst(od, d)?;
    l.emit(h, d, a, Opd::None, Opd::None);
    Ok(())
}

pub(crate) fn two(l: &mut Lower<'_, '_>, i: &Tree, ty: Ty, h: Handlers) -> Lowered<()> {
    let [od, oa, ob] = i.operands.as_slice() else {
        return bad("three operands are needed");
    };
    let (a, b) = (l.src(oa, ty)?, l.src(ob, ty)?);
    let d = l.dst(od, ty)?;
    l.emit(h, d, a, b, Opd::None);
    Ok(())
}

/// Types: destination, then sources.
pub(crate) fn three(l: &mut Lower<'_, '_>, i: &Tree, t: [Ty; 4], h: Handlers) -> Lowered<()> {
    let [od, oa, ob, oc] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    let (a, b, c) = (l.src(oa, t[1])?, l.src(ob, t[2])?, l.src(oc, t[3])?);
    let d = l.dst(od, t[0])?;
    l.emit(h, d, a, b, c);
    Ok(())
}

pub(crate) fn fun3(
    l: &mut Lower<'_, '_>,
    i: &Tree,
    t: [Ty; 3],
    f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static,
) -> Lowered<()> {
    let [od, oa, ob] = i.operands.as_slice() else {
        return bad("three operands are needed");
    };
    let (a, b) = (l.src(oa, t[1])?, l.src(ob, t[2])?);
    let d = l.dst(od, t[0])?;
    let w = |n: usize| rows(t[n]) == 2;
    l.lane_fn((d, w(0)), (a, w(1)), (b, w(2)), (Opd::None, false), f);
    Ok(())
}

pub(crate) fn fun4(
    l: &mut Lower<'_, '_>,
    i: &Tree,
    t: [Ty; 4],
    f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static,
) -> Lowered<()> {
    let [od, oa, ob, oc] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    let (a, b, c) = (l.src(oa, t[1])?, l.src(ob, t[2])?, l.src(oc, t[3])?);
    let d = l.dst(od, t[0])?;
    let w = |n: usize| rows(t[n]) == 2;
    l.lane_fn((d, w(0)), (a, w(1)), (b, w(2)), (c, w(3)), f);
    Ok(())
}
