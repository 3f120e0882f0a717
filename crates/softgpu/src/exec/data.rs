//! Data movement: `mov`, packing, `selp`, `slct`, address space conversions.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::ctx::{Ctx, LOCAL_TAG, PARAM_TAG, SHARED_TAG, TAG_MASK};
use super::lanes::{Exec, Handlers, PredOperand, handlers, handlers_plain, map1, map2, select};
use super::lower::{Lower, LowerError, Lowered, Mods, Opd, PredRef, bad, bits, rows, tag};
use super::program::Inst;

/// Declares behaviours that work lane by lane.
macro_rules! lane_ops {
    ($($name:ident = $map:ident($($t:ty),+) |$($p:ident),+| $e:expr;)*) => {$(
        pub(crate) struct $name;
        impl $crate::exec::lanes::Exec for $name {
            #[inline(always)]
            fn run<const FULL: bool>(ctx: &mut $crate::exec::ctx::Ctx<'_>, i: &$crate::exec::program::Inst) {
                $map::<$($t,)+ FULL>(ctx, i, |$($p),+| $e);
            }
        }
    )*};
}
pub(crate) use lane_ops;

lane_ops! {
    Copy32 = map1(u32, u32) |a| a;
    Copy64 = map1(u64, u64) |a| a;
    Narrow = map1(u64, u32) |a| a as u32;
    Widen = map1(u32, u64) |a| u64::from(a);
    WidenSigned = map1(i32, i64) |a| i64::from(a);
    Narrow16 = map1(u32, u16) |a| a as u16;
    Narrow8 = map1(u32, u8) |a| a as u8;
    Pack64 = map2(u32, u32, u64) |a, b| u64::from(a) | (u64::from(b) << 32);
    Pack32 = map2(u16, u16, u32) |a, b| u32::from(a) | (u32::from(b) << 16);
    Pack16 = map2(u8, u8, u16) |a, b| u16::from(a) | (u16::from(b) << 8);
    High32 = map1(u64, u32) |a| (a >> 32) as u32;
    High16 = map1(u32, u32) |a| a >> 16;
    Byte1 = map1(u32, u8) |a| (a >> 8) as u8;
    ToShared = map1(u64, u64) |a| a & 0xffff_ffff;
    FromShared = map1(u64, u64) |a| (a & 0xffff_ffff) | SHARED_TAG;
    FromLocal = map1(u64, u64) |a| (a & 0xffff_ffff) | LOCAL_TAG;
    FromParam = map1(u64, u64) |a| (a & 0xffff_ffff) | PARAM_TAG;
}

/// `d = p ? a : b`.
struct SelectLane<const WIDE: bool>;
impl<const WIDE: bool> Exec for SelectLane<WIDE> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let p = ctx.rows.pred(PredOperand::from_bits(i.x));
        if WIDE {
            select::<u64, FULL>(ctx, i, p);
        } else {
            select::<u32, FULL>(ctx, i, p);
        }
    }
}

/// Logic of predicates: `imm = d | b << 32`, `x = a`.
macro_rules! pred_logic {
    ($($name:ident |$a:ident, $b:ident| $e:expr;)*) => {$(
        struct $name;
        impl Exec for $name {
            #[inline(always)]
            fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
                let d = PredOperand::from_bits(i.imm as u32);
                let $a = ctx.rows.pred(PredOperand::from_bits(i.x));
                let $b = ctx.rows.pred(PredOperand::from_bits((i.imm >> 32) as u32));
                let mask = ctx.mask;
                ctx.rows.set_pred(d, $e, mask);
            }
        }
    )*};
}
pred_logic! {
    PredAnd |a, b| a & b;
    PredOr |a, b| a | b;
    PredXor |a, b| a ^ b;
}

/// `p = a != 0`.
struct NonZero;
impl Exec for NonZero {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let v = super::lanes::test2::<u32, u32>(ctx, i, |a, _| a != 0);
        let mask = ctx.mask;
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), v, mask);
    }
}

/// `d = p ? 1 : 0`, or all ones, by `imm`.
struct FromPred;
impl Exec for FromPred {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let p = ctx.rows.pred(PredOperand::from_bits(i.x));
        let one = i.imm as u32;
        let row = std::array::from_fn(|l| if (p >> l) & 1 != 0 { one } else { 0 });
        let mask = ctx.mask;
        ctx.rows.set_row::<u32>(i.d, &row, mask);
    }
}

/// Calls a lane function; see [`Lower::lane_fn`].
struct LaneCall;
impl Exec for LaneCall {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let f = &ctx.code.lane_fns[i.x as usize];
        let mut m = ctx.mask;
        while m != 0 {
            let l = m.trailing_zeros() as usize;
            m &= m - 1;
            let get = |ctx: &Ctx<'_>, o, bit: u32| {
                if i.imm >> bit & 1 != 0 {
                    ctx.rows.lane::<u64>(o, l)
                } else {
                    u64::from(ctx.rows.lane::<u32>(o, l))
                }
            };
            let v = f(get(ctx, i.a, 1), get(ctx, i.b, 2), get(ctx, i.c, 3));
            if i.imm & 1 != 0 {
                ctx.rows.set_lane::<u64>(i.d, l, v);
            } else {
                ctx.rows.set_lane::<u32>(i.d, l, v as u32);
            }
        }
    }
}

/// `p = address is in space imm`.
struct IsSpace;
impl Exec for IsSpace {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let a = ctx.rows.row::<u64>(i.a);
        let want = i.imm >> 32 << 32;
        let v = (0..32).fold(0u32, |v, l| v | (u32::from(a[l] & TAG_MASK == want) << l));
        let mask = ctx.mask;
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), v, mask);
    }
}

pub(crate) fn lane_call() -> Handlers {
    handlers_plain::<LaneCall>()
}
pub(crate) fn widen() -> Handlers {
    handlers::<Widen>()
}
pub(crate) fn widen_signed() -> Handlers {
    handlers::<WidenSigned>()
}
pub(crate) fn narrow() -> Handlers {
    handlers::<Narrow>()
}
pub(crate) fn from_pred() -> Handlers {
    handlers::<FromPred>()
}

/// Copies a register of `n` rows.
pub(crate) fn copy(l: &mut Lower<'_, '_>, d: Opd, a: Opd, n: u8) {
    match (n, d, a) {
        (1, ..) => {
            l.emit(handlers::<Copy32>(), d, a, Opd::None, Opd::None);
        }
        (4, Opd::Def(dv), Opd::Use(av)) => {
            l.emit(handlers::<Copy64>(), Opd::Def(dv), a, Opd::None, Opd::None);
            l.emit(
                handlers::<Copy64>(),
                Opd::DefHigh(dv),
                Opd::UseHigh(av),
                Opd::None,
                Opd::None,
            );
        }
        _ => {
            l.emit(handlers::<Copy64>(), d, a, Opd::None, Opd::None);
        }
    }
}

/// Sets predicate `d` where `a` is not zero.
pub(crate) fn to_pred(l: &mut Lower<'_, '_>, d: PredRef, a: Opd) {
    l.emit(handlers::<NonZero>(), Opd::None, a, Opd::None, Opd::None)
        .imm_lo = Some(d);
}

/// A vector operand as one value in a temporary.
pub(crate) fn pack(l: &mut Lower<'_, '_>, parts: &[Ast], ty: Ty) -> Lowered<Opd> {
    let t = l.temp_rows(rows(ty));
    let guard = std::mem::take(&mut l.guard);
    let done = pack_into(l, parts, ty, Opd::Def(t));
    l.guard = guard;
    done?;
    Ok(Opd::Use(t))
}

fn pack_into(l: &mut Lower<'_, '_>, parts: &[Ast], ty: Ty, d: Opd) -> Lowered<()> {
    match (bits(ty), parts) {
        (128, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B64)?, l.src(b, Ty::B64)?);
            let Opd::Def(v) = d else {
                return bad("a 128-bit destination must be a register");
            };
            l.emit(handlers::<Copy64>(), d, a, Opd::None, Opd::None);
            l.emit(
                handlers::<Copy64>(),
                Opd::DefHigh(v),
                b,
                Opd::None,
                Opd::None,
            );
        }
        (128, [_, _, _, _]) => {
            let (lo, hi) = (
                pack(l, &parts[..2], Ty::B64)?,
                pack(l, &parts[2..], Ty::B64)?,
            );
            let Opd::Def(v) = d else {
                return bad("a 128-bit destination must be a register");
            };
            l.emit(handlers::<Copy64>(), d, lo, Opd::None, Opd::None);
            l.emit(
                handlers::<Copy64>(),
                Opd::DefHigh(v),
                hi,
                Opd::None,
                Opd::None,
            );
        }
        (64, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B32)?, l.src(b, Ty::B32)?);
            l.emit(handlers::<Pack64>(), d, a, b, Opd::None);
        }
        (64, [_, _, _, _]) => {
            let (a, b) = (
                pack(l, &parts[..2], Ty::B32)?,
                pack(l, &parts[2..], Ty::B32)?,
            );
            l.emit(handlers::<Pack64>(), d, a, b, Opd::None);
        }
        (32, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B16)?, l.src(b, Ty::B16)?);
            l.emit(handlers::<Pack32>(), d, a, b, Opd::None);
        }
        (32, [_, _, _, _]) => {
            let (a, b) = (
                pack(l, &parts[..2], Ty::B16)?,
                pack(l, &parts[2..], Ty::B16)?,
            );
            l.emit(handlers::<Pack32>(), d, a, b, Opd::None);
        }
        (16, [a, b]) => {
            let (a, b) = (l.src(a, Ty::B8)?, l.src(b, Ty::B8)?);
            l.emit(handlers::<Pack16>(), d, a, b, Opd::None);
        }
        _ => return bad("a vector of this shape"),
    }
    Ok(())
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

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Mov => mov(l, i, m),
        Op::Selp => selp(l, i, m),
        Op::Slct => slct(l, i, m),
        Op::Cvta => cvta(l, i, m),
        Op::Isspacep => isspacep(l, i, m),
        Op::And | Op::Or | Op::Xor | Op::Not if m.ty(0).ok() == Some(Ty::Pred) => pred_logic(l, i),
        // A cluster has one block, so its shared memory is the block's own.
        Op::Mapa => (|| {
            let ty = m.ty(0)?;
            let (d, a) = (l.dst(&i.operands[0], ty)?, l.src(&i.operands[1], ty)?);
            copy(l, d, a, rows(ty));
            Ok(())
        })(),
        Op::Getctarank => (|| {
            let d = l.dst(&i.operands[0], Ty::U32)?;
            let zero = l.c32(0);
            copy(l, d, zero, 1);
            Ok(())
        })(),
        Op::Prefetch
        | Op::Prefetchu
        | Op::Applypriority
        | Op::Discard
        | Op::Pmevent
        | Op::Setmaxnreg
        | Op::Griddepcontrol => Ok(()),
        Op::Createpolicy => (|| {
            let d = l.dst(&i.operands[0], Ty::B64)?;
            let zero = l.c64(0);
            copy(l, d, zero, 2);
            Ok(())
        })(),
        _ => return None,
    })
}

fn mov(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let [d, a] = i.operands.as_slice() else {
        return bad("two operands are needed");
    };
    if m.any(&[Word::V2, Word::V4]).is_some() {
        return Err(LowerError::Unsupported);
    }
    if ty == Ty::Pred {
        let a = l.pred(a)?;
        let d = l.pred_dst(d)?;
        let x = l.emit(
            handlers::<PredAnd>(),
            Opd::None,
            Opd::None,
            Opd::None,
            Opd::None,
        );
        x.imm_lo = Some(d);
        x.x_pred = Some(a);
        x.imm_hi = Some(PredRef::True);
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
            copy(l, d, a, rows(ty));
            Ok(())
        }
    }
}

fn selp(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
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

fn slct(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
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

fn cvta(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
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
    let h = match (m.has(Word::To), tag(space)) {
        (_, Some(0)) => handlers::<Copy64>(),
        (true, _) => handlers::<ToShared>(),
        (false, Some(SHARED_TAG)) => handlers::<FromShared>(),
        (false, Some(LOCAL_TAG)) => handlers::<FromLocal>(),
        _ => handlers::<FromParam>(),
    };
    l.emit(h, d, a, Opd::None, Opd::None);
    Ok(())
}

fn isspacep(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let space = m
        .words()
        .next()
        .and_then(tag)
        .ok_or(LowerError::Unsupported)?;
    if m.has(Word::Const) {
        return Err(LowerError::Unsupported);
    }
    let a = l.src(&i.operands[1], Ty::B64)?;
    let d = l.pred_dst(&i.operands[0])?;
    let x = l.emit(
        handlers_plain::<IsSpace>(),
        Opd::None,
        a,
        Opd::None,
        Opd::None,
    );
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
    let h = match i.op {
        Op::And => handlers::<PredAnd>(),
        Op::Or => handlers::<PredOr>(),
        _ => handlers::<PredXor>(),
    };
    let x = l.emit(h, Opd::None, Opd::None, Opd::None, Opd::None);
    x.imm_lo = Some(d);
    x.x_pred = Some(a);
    x.imm_hi = Some(b);
    Ok(())
}

/// `d = a op b` on predicates.
pub(crate) fn logic(l: &mut Lower<'_, '_>, op: Op, d: PredRef, a: PredRef, b: PredRef) {
    let h = match op {
        Op::Or => handlers::<PredOr>(),
        Op::Xor => handlers::<PredXor>(),
        _ => handlers::<PredAnd>(),
    };
    let x = l.emit(h, Opd::None, Opd::None, Opd::None, Opd::None);
    x.imm_lo = Some(d);
    x.x_pred = Some(a);
    x.imm_hi = Some(b);
}

pub(crate) fn copy32() -> Handlers {
    handlers::<Copy32>()
}
