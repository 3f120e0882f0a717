//! Integer and bitwise instructions.

use fercuda_ptx::ast::Inst as Tree;
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::arity::{fun3, fun4, one, three, two};
use super::basics::{self, Add32, Add64};
use super::compare::setp;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, Handlers, handlers, lane_ops, map1, map2, map3};
use super::lower::{InstRole, Lower, LowerError, Lowered, ModList, Opd, PredRef, bad};
use super::registers::PredOperand;
use super::scalar::int::{self, Permute};
use super::width::{bits, is_float, is_signed, rows};

lane_ops! {
    Add16 = map2(u16, u16, u16) |a, b| a.wrapping_add(b);
    AddSat = map2(i32, i32, i32) |a, b| a.saturating_add(b);
    Sub32 = map2(u32, u32, u32) |a, b| a.wrapping_sub(b);
    Sub64 = map2(u64, u64, u64) |a, b| a.wrapping_sub(b);
    Sub16 = map2(u16, u16, u16) |a, b| a.wrapping_sub(b);
    SubSat = map2(i32, i32, i32) |a, b| a.saturating_sub(b);
    Mul32 = map2(u32, u32, u32) |a, b| a.wrapping_mul(b);
    Mul64 = map2(u64, u64, u64) |a, b| a.wrapping_mul(b);
    Mul16 = map2(u16, u16, u16) |a, b| a.wrapping_mul(b);
    MulHiU32 = map2(u32, u32, u32) |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32;
    MulHiS32 = map2(i32, i32, i32) |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32;
    MulHiU64 = map2(u64, u64, u64) |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64;
    MulHiS64 = map2(i64, i64, i64) |a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64;
    MulHiU16 = map2(u16, u16, u16) |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16;
    MulHiS16 = map2(i16, i16, i16) |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16;
    MulWideU32 = map2(u32, u32, u64) |a, b| u64::from(a) * u64::from(b);
    MulWideS32 = map2(i32, i32, i64) |a, b| i64::from(a) * i64::from(b);
    MulWideU16 = map2(u16, u16, u32) |a, b| u32::from(a) * u32::from(b);
    MulWideS16 = map2(i16, i16, i32) |a, b| i32::from(a) * i32::from(b);
    Mul24U = map2(u32, u32, u32) |a, b| int::mul24(a, b, false, false);
    Mul24S = map2(u32, u32, u32) |a, b| int::mul24(a, b, false, true);
    Mul24HiU = map2(u32, u32, u32) |a, b| int::mul24(a, b, true, false);
    Mul24HiS = map2(u32, u32, u32) |a, b| int::mul24(a, b, true, true);
    Mad32 = map3(u32, u32, u32, u32) |a, b, c| a.wrapping_mul(b).wrapping_add(c);
    Mad64 = map3(u64, u64, u64, u64) |a, b, c| a.wrapping_mul(b).wrapping_add(c);
    Mad16 = map3(u16, u16, u16, u16) |a, b, c| a.wrapping_mul(b).wrapping_add(c);
    MadHiU32 = map3(u32, u32, u32, u32) |a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c);
    MadHiS32 = map3(i32, i32, i32, i32) |a, b, c| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c);
    MadWideU32 = map3(u32, u32, u64, u64) |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c);
    MadWideS32 = map3(i32, i32, i64, i64) |a, b, c| (i64::from(a) * i64::from(b)).wrapping_add(c);
    MadWideU16 = map3(u16, u16, u32, u32) |a, b, c| (u32::from(a) * u32::from(b)).wrapping_add(c);
    MadWideS16 = map3(i16, i16, i32, i32) |a, b, c| (i32::from(a) * i32::from(b)).wrapping_add(c);
    DivU32 = map2(u32, u32, u32) |a, b| a.checked_div(b).unwrap_or(u32::MAX);
    DivS32 = map2(i32, i32, i32) |a, b| if b == 0 { -1 } else { a.wrapping_div(b) };
    DivU64 = map2(u64, u64, u64) |a, b| a.checked_div(b).unwrap_or(u64::MAX);
    DivS64 = map2(i64, i64, i64) |a, b| if b == 0 { -1 } else { a.wrapping_div(b) };
    DivU16 = map2(u16, u16, u16) |a, b| a.checked_div(b).unwrap_or(u16::MAX);
    DivS16 = map2(i16, i16, i16) |a, b| if b == 0 { -1 } else { a.wrapping_div(b) };
    RemU32 = map2(u32, u32, u32) |a, b| a.checked_rem(b).unwrap_or(u32::MAX);
    RemS32 = map2(i32, i32, i32) |a, b| if b == 0 { -1 } else { a.wrapping_rem(b) };
    RemU64 = map2(u64, u64, u64) |a, b| a.checked_rem(b).unwrap_or(u64::MAX);
    RemS64 = map2(i64, i64, i64) |a, b| if b == 0 { -1 } else { a.wrapping_rem(b) };
    RemU16 = map2(u16, u16, u16) |a, b| a.checked_rem(b).unwrap_or(u16::MAX);
    RemS16 = map2(i16, i16, i16) |a, b| if b == 0 { -1 } else { a.wrapping_rem(b) };
    MinU32 = map2(u32, u32, u32) |a, b| a.min(b);
    MinS32 = map2(i32, i32, i32) |a, b| a.min(b);
    MinU64 = map2(u64, u64, u64) |a, b| a.min(b);
    MinS64 = map2(i64, i64, i64) |a, b| a.min(b);
    MinU16 = map2(u16, u16, u16) |a, b| a.min(b);
    MinS16 = map2(i16, i16, i16) |a, b| a.min(b);
    MaxU32 = map2(u32, u32, u32) |a, b| a.max(b);
    MaxS32 = map2(i32, i32, i32) |a, b| a.max(b);
    MaxU64 = map2(u64, u64, u64) |a, b| a.max(b);
    MaxS64 = map2(i64, i64, i64) |a, b| a.max(b);
    MaxU16 = map2(u16, u16, u16) |a, b| a.max(b);
    MaxS16 = map2(i16, i16, i16) |a, b| a.max(b);
    Abs32 = map1(i32, i32) |a| a.wrapping_abs();
    Abs64 = map1(i64, i64) |a| a.wrapping_abs();
    Abs16 = map1(i16, i16) |a| a.wrapping_abs();
    Neg32 = map1(i32, i32) |a| a.wrapping_neg();
    Neg64 = map1(i64, i64) |a| a.wrapping_neg();
    Neg16 = map1(i16, i16) |a| a.wrapping_neg();
    And32 = map2(u32, u32, u32) |a, b| a & b;
    And64 = map2(u64, u64, u64) |a, b| a & b;
    Or32 = map2(u32, u32, u32) |a, b| a | b;
    Or64 = map2(u64, u64, u64) |a, b| a | b;
    Xor32 = map2(u32, u32, u32) |a, b| a ^ b;
    Xor64 = map2(u64, u64, u64) |a, b| a ^ b;
    Not32 = map1(u32, u32) |a| !a;
    Not64 = map1(u64, u64) |a| !a;
    Not16 = map1(u16, u16) |a| !a;
    Cnot32 = map1(u32, u32) |a| u32::from(a == 0);
    Cnot64 = map1(u64, u64) |a| u64::from(a == 0);
    Shl32 = map2(u32, u32, u32) |a, b| if b > 31 { 0 } else { a << (b & 31) };
    Shl64 = map2(u64, u32, u64) |a, b| if b > 63 { 0 } else { a << (b & 63) };
    Shl16 = map2(u16, u32, u16) |a, b| if b > 15 { 0 } else { a << (b & 15) };
    ShrU32 = map2(u32, u32, u32) |a, b| if b > 31 { 0 } else { a >> (b & 31) };
    ShrU64 = map2(u64, u32, u64) |a, b| if b > 63 { 0 } else { a >> (b & 63) };
    ShrU16 = map2(u16, u32, u16) |a, b| if b > 15 { 0 } else { a >> (b & 15) };
    ShrS32 = map2(i32, u32, i32) |a, b| a >> b.min(31);
    ShrS64 = map2(i64, u32, i64) |a, b| a >> b.min(63);
    ShrS16 = map2(i16, u32, i16) |a, b| a >> b.min(15);
    ShfLWrap = map3(u32, u32, u32, u32) |a, b, c| int::shf(a, b, c, true, true);
    ShfRWrap = map3(u32, u32, u32, u32) |a, b, c| int::shf(a, b, c, false, true);
    ShfLClamp = map3(u32, u32, u32, u32) |a, b, c| int::shf(a, b, c, true, false);
    ShfRClamp = map3(u32, u32, u32, u32) |a, b, c| int::shf(a, b, c, false, false);
    Popc32 = map1(u32, u32) |a| a.count_ones();
    Popc64 = map1(u64, u32) |a| a.count_ones();
    Clz32 = map1(u32, u32) |a| a.leading_zeros();
    Clz64 = map1(u64, u32) |a| a.leading_zeros();
    Brev32 = map1(u32, u32) |a| a.reverse_bits();
    Brev64 = map1(u64, u64) |a| a.reverse_bits();
    BfeU32 = map3(u32, u32, u32, u32) |a, b, c| int::bfe_unsigned(u64::from(a), b, c, 32) as u32;
    BfeS32 = map3(i32, u32, u32, u32) |a, b, c| int::bfe_signed(i64::from(a), b, c, 32) as u32;
    BfeU64 = map3(u64, u32, u32, u64) |a, b, c| int::bfe_unsigned(a, b, c, 64);
    BfeS64 = map3(i64, u32, u32, i64) |a, b, c| int::bfe_signed(a, b, c, 64);
    Dp4aUU = map3(u32, u32, u32, u32) |a, b, c| int::dp4a(a, b, c, false, false);
    Dp4aSS = map3(u32, u32, u32, u32) |a, b, c| int::dp4a(a, b, c, true, true);
    Dp4aUS = map3(u32, u32, u32, u32) |a, b, c| int::dp4a(a, b, c, false, true);
    Dp4aSU = map3(u32, u32, u32, u32) |a, b, c| int::dp4a(a, b, c, true, false);
    SadU32 = map3(u32, u32, u32, u32) |a, b, c| a.abs_diff(b).wrapping_add(c);
    SadS32 = map3(i32, i32, u32, u32) |a, b, c| a.abs_diff(b).wrapping_add(c);
    SadU16 = map3(u16, u16, u16, u16) |a, b, c| a.abs_diff(b).wrapping_add(c);
    SadS16 = map3(i16, i16, u16, u16) |a, b, c| a.abs_diff(b).wrapping_add(c);
    SadU64 = map3(u64, u64, u64, u64) |a, b, c| a.abs_diff(b).wrapping_add(c);
    SadS64 = map3(i64, i64, u64, u64) |a, b, c| a.abs_diff(b).wrapping_add(c);
    Prmt = map3(u32, u32, u32, u32) |a, b, c| int::prmt(a, b, c, Permute::Index);
    AddU16x2 = map2(u32, u32, u32) |a, b| pair(a, b, |x, y| x.wrapping_add(y));
    MinU16x2 = map2(u32, u32, u32) |a, b| pair(a, b, |x, y| x.min(y));
    MaxU16x2 = map2(u32, u32, u32) |a, b| pair(a, b, |x, y| x.max(y));
    MinS16x2 = map2(u32, u32, u32) |a, b| pair(a, b, |x, y| (x as i16).min(y as i16) as u16);
    MaxS16x2 = map2(u32, u32, u32) |a, b| pair(a, b, |x, y| (x as i16).max(y as i16) as u16);
    Relu32 = map1(i32, i32) |a| a.max(0);
    Relu16x2 = map1(u32, u32) |a| pair(a, 0, |x, _| (x as i16).max(0) as u16);
}

#[inline(always)]
fn pair(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | (u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16)
}

/// Addition and subtraction in a chain: `x` the carry read, `imm_lo` the carry written. A
/// difference is `a + !b + carry`, so the flag is set when nothing was borrowed.
struct CarryAdd<const WIDE: bool, const SUB: bool>;
impl<const WIDE: bool, const SUB: bool> Exec for CarryAdd<WIDE, SUB> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let carry = ctx.rows.pred(PredOperand::from_bits(i.x));
        let mut out = 0;
        let mut m = ctx.mask;
        while m != 0 {
            let l = m.trailing_zeros() as usize;
            m &= m - 1;
            let set = carry >> l & 1 != 0;
            let c = if WIDE {
                let (a, b) = (ctx.rows.lane::<u64>(i.a, l), ctx.rows.lane::<u64>(i.b, l));
                let (x, c1) = a.overflowing_add(if SUB { !b } else { b });
                let (r, c2) = x.overflowing_add(u64::from(set));
                ctx.rows.set_lane::<u64>(i.d, l, r);
                c1 | c2
            } else {
                let (a, b) = (ctx.rows.lane::<u32>(i.a, l), ctx.rows.lane::<u32>(i.b, l));
                let (x, c1) = a.overflowing_add(if SUB { !b } else { b });
                let (r, c2) = x.overflowing_add(u32::from(set));
                ctx.rows.set_lane::<u32>(i.d, l, r);
                c1 | c2
            };
            out |= u32::from(c) << l;
        }
        let mask = ctx.mask;
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), out, mask);
    }
}

/// `lop3` by its table in `imm`.
struct Lop3;
impl Exec for Lop3 {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let table = i.imm as u8;
        map3::<u32, u32, u32, u32, FULL>(ctx, i, |a, b, c| int::lop3(a, b, c, table));
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    let ty = m.ty(0).ok()?;
    if is_float(ty) && !matches!(i.op, Op::Prmt) {
        return None;
    }
    let (s, n) = (is_signed(ty), bits(ty));
    macro_rules! h {
        ($t:ident) => {
            handlers::<$t>()
        };
    }
    // (signed?, bits) -> handlers
    macro_rules! by {
        ($u16:ident $s16:ident $u32:ident $s32:ident $u64:ident $s64:ident) => {
            match (n, s) {
                (16, false) => h!($u16),
                (16, true) => h!($s16),
                (32, false) => h!($u32),
                (32, true) => h!($s32),
                (64, false) => h!($u64),
                (64, true) => h!($s64),
                _ => return Some(Err(LowerError::Unsupported)),
            }
        };
    }
    let cc = m.has(Word::Cc);
    let packed = matches!(ty, Ty::U16x2 | Ty::S16x2);
    Some(match i.op {
        Op::Add if packed => two(l, i, ty, h!(AddU16x2)),
        Op::Min | Op::Max if packed => {
            let h = match (i.op, ty) {
                (Op::Min, Ty::U16x2) => h!(MinU16x2),
                (Op::Min, _) => h!(MinS16x2),
                (_, Ty::U16x2) => h!(MaxU16x2),
                _ => h!(MaxS16x2),
            };
            relu_after(l, i, ty, m, h)
        }
        Op::Addc | Op::Subc => carry(l, i, m, ty, true),
        Op::Add | Op::Sub if cc => carry(l, i, m, ty, false),
        Op::Add if m.has(Word::Sat) => two(l, i, ty, h!(AddSat)),
        Op::Sub if m.has(Word::Sat) => two(l, i, ty, h!(SubSat)),
        Op::Add => {
            let done = two(l, i, ty, by!(Add16 Add16 Add32 Add32 Add64 Add64));
            if done.is_ok() && bits(ty) == 64 {
                l.last_is(InstRole::Sum);
            }
            done
        }
        Op::Sub => two(l, i, ty, by!(Sub16 Sub16 Sub32 Sub32 Sub64 Sub64)),
        Op::Mul => mul(l, i, m, ty),
        Op::Mad | Op::Madc => mad(l, i, m, ty),
        Op::Mul24 => {
            let h = match (m.has(Word::Hi), s) {
                (false, false) => h!(Mul24U),
                (false, true) => h!(Mul24S),
                (true, false) => h!(Mul24HiU),
                (true, true) => h!(Mul24HiS),
            };
            two(l, i, ty, h)
        }
        Op::Mad24 => mad24(l, i, m, ty),
        Op::Div => two(l, i, ty, by!(DivU16 DivS16 DivU32 DivS32 DivU64 DivS64)),
        Op::Rem => two(l, i, ty, by!(RemU16 RemS16 RemU32 RemS32 RemU64 RemS64)),
        Op::Min | Op::Max => {
            let h = if i.op == Op::Min {
                by!(MinU16 MinS16 MinU32 MinS32 MinU64 MinS64)
            } else {
                by!(MaxU16 MaxS16 MaxU32 MaxS32 MaxU64 MaxS64)
            };
            relu_after(l, i, ty, m, h)
        }
        Op::Abs => one(l, i, ty, ty, by!(Abs16 Abs16 Abs32 Abs32 Abs64 Abs64)),
        Op::Neg => one(l, i, ty, ty, by!(Neg16 Neg16 Neg32 Neg32 Neg64 Neg64)),
        Op::And => two(l, i, ty, by!(And32 And32 And32 And32 And64 And64)),
        Op::Or => two(l, i, ty, by!(Or32 Or32 Or32 Or32 Or64 Or64)),
        Op::Xor => two(l, i, ty, by!(Xor32 Xor32 Xor32 Xor32 Xor64 Xor64)),
        Op::Not => one(l, i, ty, ty, by!(Not16 Not16 Not32 Not32 Not64 Not64)),
        Op::Cnot => one(l, i, ty, ty, by!(Cnot32 Cnot32 Cnot32 Cnot32 Cnot64 Cnot64)),
        Op::Shl => shift(l, i, ty, by!(Shl16 Shl16 Shl32 Shl32 Shl64 Shl64)),
        Op::Shr => shift(l, i, ty, by!(ShrU16 ShrS16 ShrU32 ShrS32 ShrU64 ShrS64)),
        Op::Shf => {
            let h = match (m.has(Word::L), m.has(Word::Wrap)) {
                (true, true) => h!(ShfLWrap),
                (false, true) => h!(ShfRWrap),
                (true, false) => h!(ShfLClamp),
                (false, false) => h!(ShfRClamp),
            };
            three(l, i, [Ty::B32; 4], h)
        }
        Op::Popc => one(
            l,
            i,
            Ty::U32,
            ty,
            if n == 64 { h!(Popc64) } else { h!(Popc32) },
        ),
        Op::Clz => one(
            l,
            i,
            Ty::U32,
            ty,
            if n == 64 { h!(Clz64) } else { h!(Clz32) },
        ),
        Op::Brev => one(l, i, ty, ty, if n == 64 { h!(Brev64) } else { h!(Brev32) }),
        Op::Bfind => bfind(l, i, m, ty),
        Op::Bfe => three(
            l,
            i,
            [ty, ty, Ty::U32, Ty::U32],
            by!(BfeU32 BfeU32 BfeU32 BfeS32 BfeU64 BfeS64),
        ),
        Op::Bfi => bfi(l, i, ty),
        Op::Bmsk => {
            let wrap = m.has(Word::Wrap);
            fun3(l, i, [Ty::B32, Ty::U32, Ty::U32], move |a, b, _| {
                u64::from(int::bmsk(a as u32, b as u32, wrap))
            })
        }
        Op::Szext => {
            let wrap = m.has(Word::Wrap);
            fun3(l, i, [ty, ty, Ty::U32], move |a, b, _| {
                u64::from(int::szext(a as u32, b as u32, wrap, s))
            })
        }
        Op::Fns => fun4(
            l,
            i,
            [Ty::B32, Ty::B32, Ty::B32, Ty::S32],
            |mask, base, offset| u64::from(int::fns(mask as u32, base as u32, offset as i32)),
        ),
        Op::Sad => three(
            l,
            i,
            [ty, ty, ty, ty],
            by!(SadU16 SadS16 SadU32 SadS32 SadU64 SadS64),
        ),
        Op::Lop3 => lop3(l, i, m),
        Op::Prmt => {
            let mode = match m.any(&[Word::B4e, Word::Rc8, Word::Ecl, Word::Ecr, Word::Rc16]) {
                Some(Word::B4e) => Permute::Backward4,
                Some(Word::Rc8) => Permute::Replicate8,
                Some(Word::Ecl) => Permute::EdgeClampLeft,
                Some(Word::Ecr) => Permute::EdgeClampRight,
                Some(_) => Permute::Replicate16,
                // `.f4e` reads like a number to no table of words.
                None if m.0.len() > 1 => Permute::Forward4,
                None => Permute::Index,
            };
            if mode == Permute::Index {
                return Some(three(l, i, [Ty::B32; 4], h!(Prmt)));
            }
            fun4(l, i, [Ty::B32; 4], move |a, b, c| {
                u64::from(int::prmt(a as u32, b as u32, c as u32, mode))
            })
        }
        Op::Dp4a => {
            let h = match (is_signed(ty), m.ty(1).is_ok_and(is_signed)) {
                (false, false) => h!(Dp4aUU),
                (true, true) => h!(Dp4aSS),
                (false, true) => h!(Dp4aUS),
                (true, false) => h!(Dp4aSU),
            };
            three(l, i, [Ty::B32; 4], h)
        }
        Op::Dp2a => {
            let (sa, sb, hi) = (is_signed(ty), m.ty(1).is_ok_and(is_signed), m.has(Word::Hi));
            fun4(l, i, [Ty::B32; 4], move |a, b, c| {
                u64::from(int::dp2a(a as u32, b as u32, c as u32, sa, sb, hi))
            })
        }
        Op::Setp => setp(l, i, m, ty),
        Op::Vabsdiff
        | Op::Vadd
        | Op::Vsub
        | Op::Vmin
        | Op::Vmax
        | Op::Vshl
        | Op::Vshr
        | Op::Vmad
        | Op::Vset
        | Op::Vabsdiff2
        | Op::Vabsdiff4
        | Op::Vadd2
        | Op::Vadd4
        | Op::Vsub2
        | Op::Vsub4
        | Op::Vavrg2
        | Op::Vavrg4
        | Op::Vmax2
        | Op::Vmax4
        | Op::Vmin2
        | Op::Vmin4
        | Op::Vset2
        | Op::Vset4 => super::video::lower(l, i, m),
        _ => return None,
    })
}

fn shift(l: &mut Lower<'_, '_>, i: &Tree, ty: Ty, h: Handlers) -> Lowered<()> {
    let [od, oa, ob] = i.operands.as_slice() else {
        return bad("three operands are needed");
    };
    let (a, b) = (l.src(oa, ty)?, l.src(ob, Ty::U32)?);
    let d = l.dst(od, ty)?;
    l.emit(h, d, a, b, Opd::None);
    Ok(())
}

fn relu_after(
    l: &mut Lower<'_, '_>,
    i: &Tree,
    ty: Ty,
    m: &ModList<'_>,
    h: Handlers,
) -> Lowered<()> {
    two(l, i, ty, h)?;
    if m.has(Word::Relu) {
        let (v, _) = l.dst_reg(&i.operands[0], ty)?;
        let h = if ty == Ty::S16x2 {
            handlers::<Relu16x2>()
        } else {
            handlers::<Relu32>()
        };
        l.emit(h, Opd::Both(v), Opd::Use(v), Opd::None, Opd::None);
    }
    Ok(())
}

fn wider(ty: Ty) -> Ty {
    match ty {
        Ty::U16 => Ty::U32,
        Ty::S16 => Ty::S32,
        Ty::U32 => Ty::U64,
        _ => Ty::S64,
    }
}

fn mul(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let (s, n) = (is_signed(ty), bits(ty));
    let h = match (m.any(&[Word::Lo, Word::Hi, Word::Wide]), n, s) {
        (Some(Word::Hi), 16, false) => handlers::<MulHiU16>(),
        (Some(Word::Hi), 16, true) => handlers::<MulHiS16>(),
        (Some(Word::Hi), 32, false) => handlers::<MulHiU32>(),
        (Some(Word::Hi), 32, true) => handlers::<MulHiS32>(),
        (Some(Word::Hi), 64, false) => handlers::<MulHiU64>(),
        (Some(Word::Hi), 64, true) => handlers::<MulHiS64>(),
        (Some(Word::Lo), 16, _) => handlers::<Mul16>(),
        (Some(Word::Lo), 32, _) => handlers::<Mul32>(),
        (Some(Word::Lo), 64, _) => handlers::<Mul64>(),
        (Some(Word::Wide), 16, false) => handlers::<MulWideU16>(),
        (Some(Word::Wide), 16, true) => handlers::<MulWideS16>(),
        (Some(Word::Wide), 32, false) => handlers::<MulWideU32>(),
        (Some(Word::Wide), 32, true) => handlers::<MulWideS32>(),
        _ => return Err(LowerError::Unsupported),
    };
    let [od, oa, ob] = i.operands.as_slice() else {
        return bad("three operands are needed");
    };
    let (a, b) = (l.src(oa, ty)?, l.src(ob, ty)?);
    let d = l.dst(od, if m.has(Word::Wide) { wider(ty) } else { ty })?;
    l.emit(h, d, a, b, Opd::None);
    Ok(())
}

fn mad(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let (s, n) = (is_signed(ty), bits(ty));
    let [od, oa, ob, oc] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    let wide = m.has(Word::Wide);
    let out = if wide { wider(ty) } else { ty };
    let (a, b, c) = (l.src(oa, ty)?, l.src(ob, ty)?, l.src(oc, out)?);
    let chained = m.has(Word::Cc) || i.op == Op::Madc;
    let part = if wide {
        Word::Wide
    } else if m.has(Word::Hi) {
        Word::Hi
    } else {
        Word::Lo
    };
    if !chained && !m.has(Word::Sat) {
        let h = match (part, n, s) {
            (Word::Lo, 16, _) => Some(handlers::<Mad16>()),
            (Word::Lo, 32, _) => Some(handlers::<Mad32>()),
            (Word::Lo, 64, _) => Some(handlers::<Mad64>()),
            (Word::Hi, 32, false) => Some(handlers::<MadHiU32>()),
            (Word::Hi, 32, true) => Some(handlers::<MadHiS32>()),
            (Word::Wide, 32, false) => Some(handlers::<MadWideU32>()),
            (Word::Wide, 32, true) => Some(handlers::<MadWideS32>()),
            (Word::Wide, 16, false) => Some(handlers::<MadWideU16>()),
            (Word::Wide, 16, true) => Some(handlers::<MadWideS16>()),
            _ => None,
        };
        if let Some(h) = h {
            let d = l.dst(od, out)?;
            l.emit(h, d, a, b, c);
            return Ok(());
        }
    }
    let h = match (part, n, s) {
        (Word::Lo, 16, _) => handlers::<Mul16>(),
        (Word::Lo, 32, _) => handlers::<Mul32>(),
        (Word::Lo, 64, _) => handlers::<Mul64>(),
        (Word::Hi, 16, false) => handlers::<MulHiU16>(),
        (Word::Hi, 16, true) => handlers::<MulHiS16>(),
        (Word::Hi, 32, false) => handlers::<MulHiU32>(),
        (Word::Hi, 32, true) => handlers::<MulHiS32>(),
        (Word::Hi, 64, false) => handlers::<MulHiU64>(),
        (Word::Hi, 64, true) => handlers::<MulHiS64>(),
        _ => return Err(LowerError::Unsupported),
    };
    let t = l.temp_rows(rows(ty));
    l.prepare(h, Opd::Def(t), a, b, Opd::None);
    let d = l.dst(od, ty)?;
    if m.has(Word::Sat) {
        l.emit(handlers::<AddSat>(), d, Opd::Use(t), c, Opd::None);
    } else if chained {
        chain(
            l,
            d,
            Opd::Use(t),
            c,
            ty,
            false,
            i.op == Op::Madc,
            m.has(Word::Cc),
        );
    } else {
        let h = match n {
            16 => handlers::<Add16>(),
            32 => handlers::<Add32>(),
            _ => handlers::<Add64>(),
        };
        l.emit(h, d, Opd::Use(t), c, Opd::None);
    }
    Ok(())
}

fn mad24(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let [od, oa, ob, oc] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    let (a, b, c) = (l.src(oa, ty)?, l.src(ob, ty)?, l.src(oc, ty)?);
    let h = match (m.has(Word::Hi), is_signed(ty)) {
        (false, false) => handlers::<Mul24U>(),
        (false, true) => handlers::<Mul24S>(),
        (true, false) => handlers::<Mul24HiU>(),
        (true, true) => handlers::<Mul24HiS>(),
    };
    let t = l.temp_rows(1);
    l.prepare(h, Opd::Def(t), a, b, Opd::None);
    let d = l.dst(od, ty)?;
    let add = if m.has(Word::Sat) {
        handlers::<AddSat>()
    } else {
        handlers::<Add32>()
    };
    l.emit(add, d, Opd::Use(t), c, Opd::None);
    Ok(())
}

fn carry(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty, with: bool) -> Lowered<()> {
    let [od, oa, ob] = i.operands.as_slice() else {
        return bad("three operands are needed");
    };
    let (a, b) = (l.src(oa, ty)?, l.src(ob, ty)?);
    let d = l.dst(od, ty)?;
    let sub = matches!(i.op, Op::Sub | Op::Subc);
    chain(l, d, a, b, ty, sub, with, m.has(Word::Cc));
    Ok(())
}

#[expect(
    clippy::too_many_arguments,
    reason = "three operands, a type and three switches"
)]
fn chain(l: &mut Lower<'_, '_>, d: Opd, a: Opd, b: Opd, ty: Ty, sub: bool, with: bool, out: bool) {
    let cc = l.carry();
    let h = match (rows(ty) == 2, sub) {
        (false, false) => handlers::<CarryAdd<false, false>>(),
        (false, true) => handlers::<CarryAdd<false, true>>(),
        (true, false) => handlers::<CarryAdd<true, false>>(),
        (true, true) => handlers::<CarryAdd<true, true>>(),
    };
    let guarded = l.guard != PredRef::True;
    let sink = if out {
        if guarded {
            PredRef::Both(cc)
        } else {
            PredRef::Def(cc)
        }
    } else {
        PredRef::Def(l.temp_pred())
    };
    let x = l.emit(h, d, a, b, Opd::None);
    x.x_pred = Some(match (with, sub) {
        (true, _) => PredRef::Use(cc, false),
        (false, true) => PredRef::True,
        (false, false) => PredRef::False,
    });
    x.imm_lo = Some(sink);
}

fn bfind(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let [od, oa] = i.operands.as_slice() else {
        return bad("two operands are needed");
    };
    let a = l.src(oa, ty)?;
    let d = l.dst(od, Ty::U32)?;
    let (n, s, amount) = (bits(ty), is_signed(ty), m.has(Word::Shiftamt));
    let none = (Opd::None, false);
    l.lane_fn((d, false), (a, n == 64), none, none, move |a, _, _| {
        u64::from(int::bfind(a, n, s, amount))
    });
    Ok(())
}

fn bfi(l: &mut Lower<'_, '_>, i: &Tree, ty: Ty) -> Lowered<()> {
    let [od, oa, ob, oc, ol] = i.operands.as_slice() else {
        return bad("five operands are needed");
    };
    let wide = rows(ty) == 2;
    let (a, b) = (l.src(oa, ty)?, l.src(ob, ty)?);
    let (c, n) = (l.src(oc, Ty::U32)?, l.src(ol, Ty::U32)?);
    // Position and length travel together: three operands are all a lane function has.
    let pl = l.temp_rows(1);
    l.prepare(handlers::<PosLen>(), Opd::Def(pl), c, n, Opd::None);
    let d = l.dst(od, ty)?;
    if wide {
        l.emit(handlers::<Bfi64>(), d, a, b, Opd::Use(pl));
    } else {
        l.emit(handlers::<Bfi32>(), d, a, b, Opd::Use(pl));
    }
    Ok(())
}

lane_ops! {
    PosLen = map2(u32, u32, u32) |a, b| (a & 0xff) | ((b & 0xff) << 8);
    Bfi32 = map3(u32, u32, u32, u32) |a, b, c| int::bfi(u64::from(a), u64::from(b), c & 0xff, c >> 8, 32) as u32;
    Bfi64 = map3(u64, u64, u32, u64) |a, b, c| int::bfi(a, b, c & 0xff, c >> 8, 64);
}

/// `lop3`, also with a predicate that combines "the result is not zero" with another.
fn lop3(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let combine = match m.any(&[Word::And, Word::Or, Word::Xor]) {
        Some(Word::And) => Some(Op::And),
        Some(Word::Or) => Some(Op::Or),
        Some(_) => Some(Op::Xor),
        None => None,
    };
    let [od, oa, ob, oc, ot, rest @ ..] = i.operands.as_slice() else {
        return bad("five operands are needed");
    };
    if rest.len() != usize::from(combine.is_some()) {
        return bad("a predicate is needed with, and only with, an operation on predicates");
    }
    let (a, b, c) = (
        l.src(oa, Ty::B32)?,
        l.src(ob, Ty::B32)?,
        l.src(oc, Ty::B32)?,
    );
    let fercuda_ptx::ast::Operand::Imm(fercuda_ptx::ast::Imm::Int { value, .. }) = ot else {
        return bad("the table must be a constant");
    };
    let table = *value as u64 & 0xff;
    let (Some(combine), Some(q)) = (combine, rest.first()) else {
        let d = l.dst(od, Ty::B32)?;
        l.emit(handlers::<Lop3>(), d, a, b, c).imm = table;
        return Ok(());
    };
    let fercuda_ptx::ast::Operand::Pair(od, op) = od else {
        return bad("a register and a predicate are needed as destinations");
    };
    let q = l.pred(q)?;
    let (d, p) = (l.dst(od, Ty::B32)?, l.pred_dst(op)?);
    let value = l.temp_rows(1);
    l.prepare(handlers::<Lop3>(), Opd::Def(value), a, b, c).imm = table;
    let nonzero = l.temp_pred();
    basics::to_pred(l, PredRef::Def(nonzero), Opd::Use(value));
    basics::logic(l, combine, p, PredRef::Use(nonzero, false), q);
    basics::copy(l, d, Opd::Use(value), 1);
    Ok(())
}
