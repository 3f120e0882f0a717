//! Data movement: `mov`, packing, `selp`, `slct`, address space conversions.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::basics::{
    Byte1, Copy64, FromLocal, FromParam, FromShared, High16, High32, Narrow, Narrow8, Narrow16,
    SelectLane, ToShared, copy, logic,
};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, Handlers, handlers, handlers_plain};
use super::layout::VariableSpace;
use super::lower::{Lower, LowerError, Lowered, ModList, Opd, PredRef, bad, pack_into};
use super::registers::PredOperand;
use super::tags::rank_of;
use super::tags::{LOCAL_TAG, NO_TAG, SHARED_TAG, TAG_MASK, tag};
use super::width::{bits, rows};

/// `p = address is in space imm`; with `OWN` in the part of shared memory that is the block's own.
struct IsSpace<const OWN: bool>;
impl<const OWN: bool> Exec for IsSpace<OWN> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let a = ctx.rows.row::<u64>(i.a);
        let want = i.imm >> 32 << 32;
        let is_own = |a: u64| !OWN || rank_of(a as u32).is_none_or(|rank| rank == ctx.rank());
        let v = (0..32).fold(0u32, |v, l| {
            v | (u32::from(a[l] & TAG_MASK == want && is_own(a[l])) << l)
        });
        let mask = ctx.mask;
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), v, mask);
    }
}

fn unpack(l: &mut Lower<'_, '_>, parts: &[Ast], ty: Ty, a: Opd) -> Lowered<()> {
    let halves = |l: &mut Lower<'_, '_>, lo: Handlers, hi: Handlers, part: Ty| -> Lowered<()> {
        for (n, p) in parts.iter().enumerate() {
            if !is_sink(l, p) {
                let d = l.dst(p, part)?;
                l.emit(if n == 0 { lo } else { hi }, d, a, Opd::None, Opd::None);
            }
        }
        Ok(())
    };
    let quarters = |l: &mut Lower<'_, '_>, lo: Handlers, hi: Handlers, part: Ty| -> Lowered<()> {
        for (n, pair) in parts.chunks(2).enumerate() {
            let t = l.temp_rows(1);
            l.prepare(
                if n == 0 { lo } else { hi },
                Opd::Def(t),
                a,
                Opd::None,
                Opd::None,
            );
            unpack(l, pair, part, Opd::Use(t))?;
        }
        Ok(())
    };
    match (bits(ty), parts.len()) {
        (128, 2) => {
            let Opd::Use(v) = a else {
                return bad("a 128-bit source must be a register");
            };
            for (p, o) in parts.iter().zip([a, Opd::UseHigh(v)]) {
                if !is_sink(l, p) {
                    let d = l.dst(p, Ty::B64)?;
                    l.emit(handlers::<Copy64>(), d, o, Opd::None, Opd::None);
                }
            }
            Ok(())
        }
        (64, 2) => halves(l, handlers::<Narrow>(), handlers::<High32>(), Ty::B32),
        (64, 4) => quarters(l, handlers::<Narrow>(), handlers::<High32>(), Ty::B32),
        (32, 2) => halves(l, handlers::<Narrow16>(), handlers::<High16>(), Ty::B16),
        (32, 4) => quarters(l, handlers::<Narrow16>(), handlers::<High16>(), Ty::B16),
        (16, 2) => halves(l, handlers::<Narrow8>(), handlers::<Byte1>(), Ty::B8),
        _ => bad("a vector of this shape"),
    }
}

fn is_sink(l: &Lower<'_, '_>, o: &Ast) -> bool {
    matches!(o, Ast::Name(s) if l.name(*s) == "_")
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Mov => mov(l, i, m),
        Op::Selp => selp(l, i, m),
        Op::Slct => slct(l, i, m),
        Op::Cvta => cvta(l, i, m),
        Op::Isspacep => isspacep(l, i, m),
        Op::And | Op::Or | Op::Xor | Op::Not if m.ty(0).ok() == Some(Ty::Pred) => pred_logic(l, i),
        Op::Mapa | Op::Getctarank => super::cluster_address::lower(l, i, m),
        Op::Prefetch
        | Op::Prefetchu
        | Op::Applypriority
        | Op::Discard
        | Op::Pmevent
        | Op::Griddepcontrol => Ok(()),
        Op::Setmaxnreg => super::register_pool::lower(l, i, m),
        Op::Createpolicy => (|| {
            let d = l.dst(&i.operands[0], Ty::B64)?;
            let zero = l.c64(0);
            copy(l, d, zero, 2);
            Ok(())
        })(),
        _ => return None,
    })
}

fn mov(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let [d, a] = i.operands.as_slice() else {
        return bad("two operands are needed");
    };
    if let Some(word) = m.any(&[Word::V2, Word::V4, Word::V8]) {
        let n = match word {
            Word::V2 => 2,
            Word::V4 => 4,
            _ => 8,
        };
        return mov_each(l, d, a, n, ty);
    }
    if ty == Ty::Pred {
        let a = l.pred(a)?;
        let d = l.pred_dst(d)?;
        logic(l, Op::And, d, a, PredRef::True);
        return Ok(());
    }
    match (d, a) {
        (Ast::Vector(parts), _) => {
            let a = l.src(a, ty)?;
            unpack(l, parts, ty, a)
        }
        (_, Ast::Vector(parts)) => {
            let d = l.dst(d, ty)?;
            pack_into(l, parts, ty, d)
        }
        _ => {
            let a = l.src(a, ty)?;
            let d = l.dst(d, ty)?;
            // A special register is read into a temporary: into the destination at once, then.
            if !l.redirect(a, d) {
                copy(l, d, a, rows(ty));
            }
            Ok(())
        }
    }
}

/// `mov.v2` and `mov.v4`: each element alone. All are read before any is written, since a register
/// may stand on both sides.
fn mov_each(l: &mut Lower<'_, '_>, d: &Ast, a: &Ast, n: usize, ty: Ty) -> Lowered<()> {
    let (Ast::Vector(to), Ast::Vector(from)) = (d, a) else {
        return bad("two vectors are needed");
    };
    if to.len() != n || from.len() != n {
        return bad("a vector of the wrong length");
    }
    let mut values = Vec::new();
    for o in from {
        let a = l.src(o, ty)?;
        let t = l.temp_rows(rows(ty));
        let guard = std::mem::take(&mut l.guard);
        copy(l, Opd::Def(t), a, rows(ty));
        l.guard = guard;
        values.push(Opd::Use(t));
    }
    for (o, value) in to.iter().zip(values) {
        if !is_sink(l, o) {
            let d = l.dst(o, ty)?;
            copy(l, d, value, rows(ty));
        }
    }
    Ok(())
}

fn selp(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let [d, a, b, p] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    let (a, b, p) = (l.src(a, ty)?, l.src(b, ty)?, l.pred(p)?);
    let d = l.dst(d, ty)?;
    let h = if rows(ty) == 2 {
        handlers::<SelectLane<true>>()
    } else {
        handlers::<SelectLane<false>>()
    };
    l.emit(h, d, a, b, Opd::None).x_pred = Some(p);
    Ok(())
}

fn slct(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let (ty, sel) = (m.ty(0)?, m.ty(1)?);
    let [d, a, b, c] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    let (a, b, c) = (l.src(a, ty)?, l.src(b, ty)?, l.src(c, sel)?);
    let d = l.dst(d, ty)?;
    let wide = rows(ty) == 2;
    let float = sel == Ty::F32;
    let ftz = m.has(Word::Ftz);
    l.lane_fn(
        (d, wide),
        (a, wide),
        (b, wide),
        (c, false),
        move |a, b, c| {
            let pick = if float {
                super::scalar::float::flush_if(ftz, f32::from_bits(c as u32)) >= 0.0
            } else {
                c as i32 >= 0
            };
            if pick { a } else { b }
        },
    );
    Ok(())
}

fn cvta(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let space = m
        .any(&[
            Word::Shared,
            Word::SharedCta,
            Word::SharedCluster,
            Word::Local,
            Word::Global,
            Word::Const,
            Word::Param,
            Word::ParamEntry,
        ])
        .ok_or(LowerError::Unsupported)?;
    if rows(ty) != 2 {
        return Err(LowerError::Unsupported);
    }
    let a = l.src(&i.operands[1], ty)?;
    let d = l.dst(&i.operands[0], ty)?;
    if tag(space) == Some(0) {
        copy(l, d, a, 2);
        return Ok(());
    }
    let h = match (m.has(Word::To), tag(space)) {
        (true, _) => handlers::<ToShared>(),
        (false, Some(SHARED_TAG)) => handlers::<FromShared>(),
        (false, Some(LOCAL_TAG)) => handlers::<FromLocal>(),
        _ => handlers::<FromParam>(),
    };
    l.emit(h, d, a, Opd::None, Opd::None);
    Ok(())
}

fn isspacep(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let space = m
        .words()
        .next()
        .and_then(tag)
        .ok_or(LowerError::Unsupported)?;
    let mut constants = l.k.info.variables.values();
    let is_const = m.has(Word::Const);
    if is_const && constants.any(|place| *place == VariableSpace::Const) {
        return Err(LowerError::Unsupported);
    }
    let a = l.src(&i.operands[1], Ty::B64)?;
    let d = l.pred_dst(&i.operands[0])?;
    // No address is in a bank of constants that has none.
    let space = if is_const { NO_TAG } else { space };
    let is_own = space == SHARED_TAG && !m.has(Word::SharedCluster);
    let h = match is_own {
        true => handlers_plain::<IsSpace<true>>(),
        false => handlers_plain::<IsSpace<false>>(),
    };
    let x = l.emit(h, Opd::None, a, Opd::None, Opd::None);
    x.imm = space;
    x.imm_lo = Some(d);
    Ok(())
}

fn pred_logic(l: &mut Lower<'_, '_>, i: &Tree) -> Lowered<()> {
    let a = l.pred(&i.operands[1])?;
    let b = if i.op == Op::Not {
        PredRef::True
    } else {
        l.pred(&i.operands[2])?
    };
    let d = l.pred_dst(&i.operands[0])?;
    // The negation is the exclusive disjunction with truth.
    let op = if i.op == Op::Not { Op::Xor } else { i.op };
    logic(l, op, d, a, b);
    Ok(())
}
