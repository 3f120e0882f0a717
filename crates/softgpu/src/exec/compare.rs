//! Comparisons of numbers: `setp` and `set`.

use fercuda_ptx::ast::Inst as Tree;
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::basics;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, Handlers, Lane, handlers, handlers_any, lane_ops, map1, test2};
use super::lower::{Lower, LowerError, Lowered, ModList, Opd, PredRef};
use super::registers::PredOperand;
use super::scalar::float::{self, Compare};
use super::width::is_float;

lane_ops! {
    Flush = map1(f32, f32) |a| float::flush(a);
}

/// `setp`: `imm_lo`, `imm_hi` the destinations, `x` the predicate combined with.
struct SetP<C>(std::marker::PhantomData<C>);

trait LaneTest: 'static {
    fn test(ctx: &Ctx<'_>, i: &DecodedInst) -> u32;
}

impl<C: LaneTest> Exec for SetP<C> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let v = C::test(ctx, i);
        let mask = ctx.mask;
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), v, mask);
    }
}

/// The comparison alone, as a behaviour.
pub(crate) struct CompareOp<const KIND: usize, T>(std::marker::PhantomData<T>);

/// What `setp` compares, as numbers that a const parameter can have.
const KINDS: [Compare; 14] = [
    Compare::Eq,
    Compare::Ne,
    Compare::Lt,
    Compare::Le,
    Compare::Gt,
    Compare::Ge,
    Compare::Num,
    Compare::IsNan,
    Compare::Equ,
    Compare::Neu,
    Compare::Ltu,
    Compare::Leu,
    Compare::Gtu,
    Compare::Geu,
];

impl<const KIND: usize, T: Lane + PartialOrd + 'static> LaneTest for CompareOp<KIND, T> {
    #[inline(always)]
    fn test(ctx: &Ctx<'_>, i: &DecodedInst) -> u32 {
        test2::<T, T>(ctx, i, |a, b| KINDS[KIND].holds(a, b))
    }
}

/// Handlers that set a predicate from comparing `T`s.
pub(crate) fn compare<T: Lane + PartialOrd + 'static>(kind: usize) -> Handlers {
    fn h<const K: usize, T: Lane + PartialOrd + 'static>() -> Handlers {
        handlers_any::<SetP<CompareOp<K, T>>>()
    }
    match kind {
        0 => h::<0, T>(),
        1 => h::<1, T>(),
        2 => h::<2, T>(),
        3 => h::<3, T>(),
        4 => h::<4, T>(),
        5 => h::<5, T>(),
        6 => h::<6, T>(),
        7 => h::<7, T>(),
        8 => h::<8, T>(),
        9 => h::<9, T>(),
        10 => h::<10, T>(),
        11 => h::<11, T>(),
        12 => h::<12, T>(),
        _ => h::<13, T>(),
    }
}

/// The comparison of a modifier, as [`compare`] numbers them.
pub(crate) fn kind(w: Word, float: bool) -> Option<usize> {
    Some(match w {
        Word::Eq => 0,
        Word::Ne if !float => 9,
        Word::Ne => 1,
        Word::Lt | Word::Lo => 2,
        Word::Le | Word::Ls => 3,
        Word::Gt | Word::Hi => 4,
        Word::Ge | Word::Hs => 5,
        Word::Num => 6,
        Word::IsNan => 7,
        Word::Equ => 8,
        Word::Neu => 9,
        Word::Ltu => 10,
        Word::Leu => 11,
        Word::Gtu => 12,
        Word::Geu => 13,
        _ => return None,
    })
}

/// Compares two values into a fresh predicate.
pub(crate) fn compared(
    l: &mut Lower<'_, '_>,
    m: &ModList<'_>,
    ty: Ty,
    a: Opd,
    b: Opd,
    d: PredRef,
) -> Lowered<()> {
    let float = is_float(ty);
    let k = m
        .words()
        .find_map(|w| kind(w, float))
        .ok_or_else(|| LowerError::Bad("no comparison".to_owned()))?;
    let h = match ty {
        Ty::U16 | Ty::B16 => compare::<u16>(k),
        Ty::S16 => compare::<i16>(k),
        Ty::U32 | Ty::B32 => compare::<u32>(k),
        Ty::S32 => compare::<i32>(k),
        Ty::U64 | Ty::B64 => compare::<u64>(k),
        Ty::S64 => compare::<i64>(k),
        Ty::F32 => compare::<f32>(k),
        Ty::F64 => compare::<f64>(k),
        _ => return Err(LowerError::Unsupported),
    };
    l.emit(h, Opd::None, a, b, Opd::None).imm_lo = Some(d);
    Ok(())
}

pub(crate) fn setp(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let (first, second) = match &i.operands[0] {
        fercuda_ptx::ast::Operand::Pair(p, q) => ((**p).clone(), Some((**q).clone())),
        o => (o.clone(), None),
    };
    let (mut a, mut b) = (l.src(&i.operands[1], ty)?, l.src(&i.operands[2], ty)?);
    if ty == Ty::F32 && m.has(Word::Ftz) {
        a = flushed(l, a);
        b = flushed(l, b);
    }
    let logic = m.any(&[Word::And, Word::Or, Word::Xor]);
    if logic.is_none() && second.is_none() {
        let d = l.pred_dst(&first)?;
        return compared(l, m, ty, a, b, d);
    }
    let t = l.temp_pred();
    let guard = std::mem::take(&mut l.guard);
    let done = compared(l, m, ty, a, b, PredRef::Def(t));
    l.guard = guard;
    done?;
    let c = match (logic, i.operands.get(3)) {
        (Some(_), Some(c)) => l.pred(c)?,
        _ => PredRef::True,
    };
    let op = match logic {
        Some(Word::Or) => Op::Or,
        Some(Word::Xor) => Op::Xor,
        _ => Op::And,
    };
    let d = l.pred_dst(&first)?;
    let q = match second {
        Some(q) => Some(l.pred_dst(&q)?),
        None => None,
    };
    let Some(q) = q else {
        basics::logic(l, op, d, PredRef::Use(t, false), c);
        return Ok(());
    };
    // Either destination may be the source `c`; the first result waits in a place of its own.
    let first = l.temp_pred();
    let guard = std::mem::take(&mut l.guard);
    basics::logic(l, op, PredRef::Def(first), PredRef::Use(t, false), c);
    l.guard = guard;
    basics::logic(l, op, q, PredRef::Use(t, true), c);
    basics::logic(l, Op::And, d, PredRef::Use(first, false), PredRef::True);
    Ok(())
}

/// `set` with destination type `out` from comparing `ty`.
pub(crate) fn set_to(
    l: &mut Lower<'_, '_>,
    i: &Tree,
    m: &ModList<'_>,
    out: Ty,
    ty: Ty,
) -> Lowered<()> {
    let (a, b) = (l.src(&i.operands[1], ty)?, l.src(&i.operands[2], ty)?);
    let t = l.temp_pred();
    let guard = std::mem::take(&mut l.guard);
    let mut done = compared(l, m, ty, a, b, PredRef::Def(t));
    let mut p = PredRef::Use(t, false);
    if let (Some(w), Some(c)) = (m.any(&[Word::And, Word::Or, Word::Xor]), i.operands.get(3)) {
        let c = l.pred(c);
        if let Ok(c) = c {
            let u = l.temp_pred();
            let op = match w {
                Word::Or => Op::Or,
                Word::Xor => Op::Xor,
                _ => Op::And,
            };
            basics::logic(l, op, PredRef::Def(u), p, c);
            p = PredRef::Use(u, false);
        } else {
            done = c.map(|_| ());
        }
    }
    l.guard = guard;
    done?;
    let d = l.dst(&i.operands[0], out)?;
    let x = l.emit(basics::from_pred(), d, Opd::None, Opd::None, Opd::None);
    x.x_pred = Some(p);
    x.imm = if out == Ty::F32 {
        u64::from(1f32.to_bits())
    } else {
        0xffff_ffff
    };
    Ok(())
}

/// A value with its subnormals flushed, in a temporary.
pub(crate) fn flushed(l: &mut Lower<'_, '_>, a: Opd) -> Opd {
    let t = l.temp_rows(1);
    l.prepare(handlers::<Flush>(), Opd::Def(t), a, Opd::None, Opd::None);
    Opd::Use(t)
}
