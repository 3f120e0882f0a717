//! Memory that a thread takes from its stack while it runs: `alloca`, `stacksave`, `stackrestore`.
//!
//! It lies behind the local variables of the function that takes it, and is given back when that
//! function returns. Each lane has a top of its own; a call's frame lies above the tops of all
//! lanes that make it.

use fercuda_ptx::ast::{Imm, Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty};

use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{Lower, Lowered, ModList, Opd, bad, operand};
use super::registers::{LANES, each};
use super::width::rows;
use crate::report::FaultKind;

/// Alignment of a block for which none is asked, bytes.
const DEFAULT_ALIGN: u64 = 8;

/// In `imm`, above the alignment: operands are 64 bits wide.
const WIDE: u64 = 1 << 32;

/// The tops of the lanes of the bound frame.
fn tops<'c>(ctx: &'c mut Ctx<'_>) -> Option<&'c mut [u32; LANES]> {
    let base = ctx.local_base + ctx.code.local_bytes;
    let frame = ctx.frame as usize;
    let frame = ctx.w().frames.get_mut(frame)?.as_mut()?;
    Some(frame.tops.get_or_insert_with(|| Box::new([base; LANES])))
}

fn source(ctx: &Ctx<'_>, i: &DecodedInst) -> [u64; LANES] {
    if i.imm & WIDE != 0 {
        ctx.rows.row::<u64>(i.a)
    } else {
        ctx.rows.row::<u32>(i.a).map(u64::from)
    }
}

fn give(ctx: &mut Ctx<'_>, i: &DecodedInst, row: [u64; LANES]) {
    let mask = ctx.mask;
    if i.imm & WIDE != 0 {
        ctx.rows.set_row::<u64>(i.d, &row, mask);
    } else {
        ctx.rows.set_row::<u32>(i.d, &row.map(|v| v as u32), mask);
    }
}

/// `d = a block of a bytes`, aligned to the lower half of `imm`.
struct Alloca;
impl Exec for Alloca {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let (mask, align) = (ctx.mask, u64::from(i.imm as u32));
        let limit = ctx.run.spec.device.stack_limit_bytes;
        let sizes = source(ctx, i);
        let Some(tops) = tops(ctx) else { return };
        let mut row = [0; LANES];
        let (mut end, mut beyond) = (0, None);
        each(mask, |l| {
            let at = u64::from(tops[l]).next_multiple_of(align);
            match at.checked_add(sizes[l]).filter(|&top| top <= limit) {
                Some(top) => {
                    row[l] = at;
                    tops[l] = top as u32;
                    end = end.max(top);
                }
                None => beyond = Some(l as u32),
            }
        });
        if let Some(lane) = beyond {
            ctx.fail(i, lane, FaultKind::StackOverflow { limit });
            return;
        }
        let checks = ctx.run.spec.checks.is_some();
        let w = ctx.w();
        let words = end.div_ceil(4) as usize * LANES;
        if w.local.len() < words {
            w.local.resize(words, 0);
        }
        if checks {
            w.local_init.resize(w.local.len(), 0);
            each(mask, |l| {
                // A block holds nothing, whatever lay there before.
                for word in row[l] / 4..(row[l] + sizes[l]).div_ceil(4) {
                    w.local_init[word as usize * LANES + l] = 0;
                }
            });
        }
        give(ctx, i, row);
    }
}

struct Stacksave;
impl Exec for Stacksave {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        if let Some(tops) = tops(ctx) {
            let row = tops.map(u64::from);
            give(ctx, i, row);
        }
    }
}

struct Stackrestore;
impl Exec for Stackrestore {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let (mask, saved) = (ctx.mask, source(ctx, i));
        let base = ctx.local_base + ctx.code.local_bytes;
        let Some(tops) = tops(ctx) else { return };
        let before = *tops;
        each(mask, |l| {
            // What is no saved top of this function is undefined; it stays within its frame.
            tops[l] = saved[l].clamp(u64::from(base), u64::from(tops[l])) as u32;
        });
        let after = *tops;
        if ctx.run.spec.checks.is_some() {
            ctx.w().forget_local(mask, |l| after[l]..before[l]);
        }
    }
}

fn alloca(l: &mut Lower<'_, '_>, i: &Tree, ty: Ty) -> Lowered<()> {
    let align = match i.operands.get(2) {
        None => DEFAULT_ALIGN,
        Some(Ast::Imm(Imm::Int { value, .. })) => *value as u64,
        Some(_) => return bad("the alignment must be a constant"),
    };
    if !align.is_power_of_two() || align > 1 << 16 {
        return bad(format!("an alignment of {align} bytes"));
    }
    let size = l.src(operand(i, 1)?, ty)?;
    let d = l.dst(operand(i, 0)?, ty)?;
    let x = l.emit(handlers_plain::<Alloca>(), d, size, Opd::None, Opd::None);
    x.imm = align | if rows(ty) == 2 { WIDE } else { 0 };
    Ok(())
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let wide = if rows(ty) == 2 { WIDE } else { 0 };
    let none = Opd::None;
    match i.op {
        Op::Alloca => return alloca(l, i, ty),
        Op::Stacksave => {
            let d = l.dst(operand(i, 0)?, ty)?;
            l.emit(handlers_plain::<Stacksave>(), d, none, none, none)
                .imm = wide;
        }
        _ => {
            let a = l.src(operand(i, 0)?, ty)?;
            l.emit(handlers_plain::<Stackrestore>(), none, a, none, none)
                .imm = wide;
        }
    }
    Ok(())
}
