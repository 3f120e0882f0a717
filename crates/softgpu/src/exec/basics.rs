//! Basic behaviours, which lowering needs for operands of every family: copies, changes of width,
//! packing, sums, logic of predicates.

use fercuda_ptx::words::Op;

use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, Handlers, handlers, lane_ops, map1, map2, select, test2};
use super::lower::{InstRole, Lower, Opd, PredRef};
use super::registers::PredOperand;
use super::tags::{LOCAL_TAG, PARAM_TAG, SHARED_TAG};

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
    Add32 = map2(u32, u32, u32) |a, b| a.wrapping_add(b);
    Add64 = map2(u64, u64, u64) |a, b| a.wrapping_add(b);
}

/// `d = p ? a : b`.
pub(crate) struct SelectLane<const WIDE: bool>;

impl<const WIDE: bool> Exec for SelectLane<WIDE> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let p = ctx.rows.pred(PredOperand::from_bits(i.x));
        if WIDE {
            select::<u64, FULL>(ctx, i, p);
        } else {
            select::<u32, FULL>(ctx, i, p);
        }
    }
}

/// Logic of predicates: `imm = d | b << 32`, `x = a`.
macro_rules! pred_behaviours {
    ($($name:ident |$a:ident, $b:ident| $e:expr;)*) => {$(
        struct $name;
        impl Exec for $name {
            #[inline(always)]
            fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
                let d = PredOperand::from_bits(i.imm as u32);
                let $a = ctx.rows.pred(PredOperand::from_bits(i.x));
                let $b = ctx.rows.pred(PredOperand::from_bits((i.imm >> 32) as u32));
                let mask = ctx.mask;
                ctx.rows.set_pred(d, $e, mask);
            }
        }
    )*};
}

pred_behaviours! {
    PredAnd |a, b| a & b;
    PredOr |a, b| a | b;
    PredXor |a, b| a ^ b;
}

/// `p = a != 0`.
struct NonZero;

impl Exec for NonZero {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let v = test2::<u32, u32>(ctx, i, |a, _| a != 0);
        let mask = ctx.mask;
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), v, mask);
    }
}

/// `d = p ? 1 : 0`, or all ones, by `imm`.
struct FromPred;

impl Exec for FromPred {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let p = ctx.rows.pred(PredOperand::from_bits(i.x));
        let one = i.imm as u32;
        let row = std::array::from_fn(|l| if (p >> l) & 1 != 0 { one } else { 0 });
        let mask = ctx.mask;
        ctx.rows.set_row::<u32>(i.d, &row, mask);
    }
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
            l.emit(handlers::<Copy32>(), d, a, Opd::None, Opd::None)
                .role = InstRole::Copy;
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
            let copy = l.emit(handlers::<Copy64>(), d, a, Opd::None, Opd::None);
            if n == 2 {
                copy.role = InstRole::Copy;
            }
        }
    }
}

/// Sets predicate `d` where `a` is not zero.
pub(crate) fn to_pred(l: &mut Lower<'_, '_>, d: PredRef, a: Opd) {
    l.emit(handlers::<NonZero>(), Opd::None, a, Opd::None, Opd::None)
        .imm_lo = Some(d);
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

pub(crate) fn add32() -> Handlers {
    handlers::<Add32>()
}

pub(crate) fn add64() -> Handlers {
    handlers::<Add64>()
}
