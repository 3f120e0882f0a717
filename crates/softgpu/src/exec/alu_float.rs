//! Floating-point arithmetic, `.approx` functions, comparisons of halves.
//!
//! Invariant: apart from `.approx`, every result is the exact one rounded once, as the ISA says; a NaN
//! result of a 32- or 16-bit operation is NVIDIA's canonical one.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::alu_int::{fun3, fun4, is_float, one, setp, three, two};
use super::data::{self, lane_ops};
use super::float::{
    BF16, F16, F32, F64, Format, Round, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16,
};
use super::lanes::{Handlers, handlers, map1, map2, map3};
use super::lower::{Lower, Lowered, Mods, Opd, P, Reason, bad, rows};

/// The canonical NaN for any NaN.
#[inline(always)]
fn c(x: f32) -> f32 {
    if x.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        x
    }
}

/// Subnormals to zero of the same sign.
#[inline(always)]
pub(crate) fn fz(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE {
        f32::from_bits(x.to_bits() & 0x8000_0000)
    } else {
        x
    }
}

#[inline(always)]
fn sat(x: f32) -> f32 {
    // NaN and everything not above zero becomes +0.
    if x > 0.0 {
        if x < 1.0 { x } else { 1.0 }
    } else {
        0.0
    }
}

/// IEEE minimum number: a NaN loses, -0 is less than +0.
#[inline(always)]
fn min32(a: f32, b: f32) -> f32 {
    let m = if a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    };
    if a.is_nan() {
        c(b)
    } else if b.is_nan() {
        a
    } else {
        m
    }
}
#[inline(always)]
fn max32(a: f32, b: f32) -> f32 {
    let m = if a > b || (a == b && b.is_sign_negative()) {
        a
    } else {
        b
    };
    if a.is_nan() {
        c(b)
    } else if b.is_nan() {
        a
    } else {
        m
    }
}
#[inline(always)]
fn min64(a: f64, b: f64) -> f64 {
    let m = if a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        m
    }
}
#[inline(always)]
fn max64(a: f64, b: f64) -> f64 {
    let m = if a > b || (a == b && b.is_sign_negative()) {
        a
    } else {
        b
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        m
    }
}

lane_ops! {
    AddF32 = map2(f32, f32, f32) |a, b| c(a + b);
    SubF32 = map2(f32, f32, f32) |a, b| c(a - b);
    MulF32 = map2(f32, f32, f32) |a, b| c(a * b);
    FmaF32 = map3(f32, f32, f32, f32) |a, b, x| c(a.mul_add(b, x));
    DivF32 = map2(f32, f32, f32) |a, b| c(a / b);
    AddF32Z = map2(f32, f32, f32) |a, b| c(fz(fz(a) + fz(b)));
    SubF32Z = map2(f32, f32, f32) |a, b| c(fz(fz(a) - fz(b)));
    MulF32Z = map2(f32, f32, f32) |a, b| c(fz(fz(a) * fz(b)));
    FmaF32Z = map3(f32, f32, f32, f32) |a, b, x| c(fz(fz(a).mul_add(fz(b), fz(x))));
    DivF32Z = map2(f32, f32, f32) |a, b| c(fz(fz(a) / fz(b)));
    MinF32 = map2(f32, f32, f32) |a, b| min32(a, b);
    MaxF32 = map2(f32, f32, f32) |a, b| max32(a, b);
    MinF32Z = map2(f32, f32, f32) |a, b| min32(fz(a), fz(b));
    MaxF32Z = map2(f32, f32, f32) |a, b| max32(fz(a), fz(b));
    SqrtF32 = map1(f32, f32) |a| c(a.sqrt());
    SqrtF32Z = map1(f32, f32) |a| c(fz(a).sqrt());
    RcpF32 = map1(f32, f32) |a| c(1.0 / a);
    RcpF32Z = map1(f32, f32) |a| c(fz(1.0 / fz(a)));
    RsqrtF32 = map1(f32, f32) |a| c((1.0 / f64::from(a).sqrt()) as f32);
    RsqrtF32Z = map1(f32, f32) |a| c((1.0 / f64::from(fz(a)).sqrt()) as f32);
    AbsF32 = map1(f32, f32) |a| a.abs();
    NegF32 = map1(f32, f32) |a| -a;
    Flush = map1(f32, f32) |a| fz(a);
    Saturate = map1(f32, f32) |a| sat(a);
    Saturate64 = map1(f64, f64) |a| if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 };
    Relu = map1(f32, f32) |a| if a.is_nan() { c(a) } else if a > 0.0 { a } else { 0.0 };
    AddF64 = map2(f64, f64, f64) |a, b| a + b;
    SubF64 = map2(f64, f64, f64) |a, b| a - b;
    MulF64 = map2(f64, f64, f64) |a, b| a * b;
    FmaF64 = map3(f64, f64, f64, f64) |a, b, x| a.mul_add(b, x);
    DivF64 = map2(f64, f64, f64) |a, b| a / b;
    SqrtF64 = map1(f64, f64) |a| a.sqrt();
    RcpF64 = map1(f64, f64) |a| 1.0 / a;
    MinF64 = map2(f64, f64, f64) |a, b| min64(a, b);
    MaxF64 = map2(f64, f64, f64) |a, b| max64(a, b);
    AbsF64 = map1(f64, f64) |a| a.abs();
    NegF64 = map1(f64, f64) |a| -a;
    CopysignF32 = map2(f32, f32, f32) |a, b| b.copysign(a);
    CopysignF64 = map2(f64, f64, f64) |a, b| b.copysign(a);
    Ex2 = map1(f32, f32) |a| c(f64::from(a).exp2() as f32);
    Ex2Z = map1(f32, f32) |a| c(fz(f64::from(fz(a)).exp2() as f32));
    Lg2 = map1(f32, f32) |a| c(f64::from(a).log2() as f32);
    Lg2Z = map1(f32, f32) |a| c(f64::from(fz(a)).log2() as f32);
    Sin = map1(f32, f32) |a| c(f64::from(a).sin() as f32);
    SinZ = map1(f32, f32) |a| c(fz(f64::from(fz(a)).sin() as f32));
    Cos = map1(f32, f32) |a| c(f64::from(a).cos() as f32);
    Tanh = map1(f32, f32) |a| c(f64::from(a).tanh() as f32);
    RcpApprox64 = map1(f64, f64) |a| high(fz64(1.0 / high(fz64(a))));
    RsqrtApprox64 = map1(f64, f64) |a| high(fz64(1.0 / high(fz64(a)).sqrt()));
    AddH = map2(u16, u16, u16) |a, b| f32_to_f16(f16_to_f32(a) + f16_to_f32(b));
    SubH = map2(u16, u16, u16) |a, b| f32_to_f16(f16_to_f32(a) - f16_to_f32(b));
    MulH = map2(u16, u16, u16) |a, b| f32_to_f16(f16_to_f32(a) * f16_to_f32(b));
    FmaH = map3(u16, u16, u16, u16) |a, b, x| fma_f16(a, b, x);
    AddH2 = map2(u32, u32, u32) |a, b| both(a, b, |x, y| f32_to_f16(f16_to_f32(x) + f16_to_f32(y)));
    SubH2 = map2(u32, u32, u32) |a, b| both(a, b, |x, y| f32_to_f16(f16_to_f32(x) - f16_to_f32(y)));
    MulH2 = map2(u32, u32, u32) |a, b| both(a, b, |x, y| f32_to_f16(f16_to_f32(x) * f16_to_f32(y)));
    FmaH2 = map3(u32, u32, u32, u32) |a, b, x| {
        u32::from(fma_f16(a as u16, b as u16, x as u16))
            | (u32::from(fma_f16((a >> 16) as u16, (b >> 16) as u16, (x >> 16) as u16)) << 16)
    };
    Neg16 = map1(u16, u16) |a| a ^ 0x8000;
    Abs16 = map1(u16, u16) |a| a & 0x7fff;
    Neg16x2 = map1(u32, u32) |a| a ^ 0x8000_8000;
    Abs16x2 = map1(u32, u32) |a| a & 0x7fff_7fff;
    HalfToFloat = map1(u16, f32) |a| f16_to_f32(a);
    BrainToFloat = map1(u16, f32) |a| bf16_to_f32(a);
    HighHalfToFloat = map1(u32, f32) |a| f16_to_f32((a >> 16) as u16);
    HighBrainToFloat = map1(u32, f32) |a| bf16_to_f32((a >> 16) as u16);
}

#[inline(always)]
fn both(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | (u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16)
}

/// The product is exact in f64; the sum is rounded to odd there, so that rounding it again to 11 bits is rounding once.
#[inline(always)]
fn fma_f16(a: u16, b: u16, x: u16) -> u16 {
    let p = f64::from(f16_to_f32(a)) * f64::from(f16_to_f32(b));
    let y = f64::from(f16_to_f32(x));
    let s = p + y;
    let t = s - p;
    let err = (p - (s - t)) + (y - t);
    // f32 keeps 24 bits, more than twice 11 and two: one more rounding to odd, from f64 to f32, is harmless too.
    let odd = |v: f64, err: f64| {
        if err != 0.0 && v.to_bits() & 1 == 0 {
            if (err > 0.0) == (v > 0.0) {
                f64::from_bits(v.to_bits() + 1)
            } else {
                f64::from_bits(v.to_bits() - 1)
            }
        } else {
            v
        }
    };
    if !s.is_finite() || s == 0.0 {
        return f32_to_f16(s as f32);
    }
    let s = odd(s, err);
    let f = s as f32;
    let f = if f64::from(f) != s && f.to_bits() & 1 == 0 {
        if (s > f64::from(f)) == (f > 0.0) {
            f32::from_bits(f.to_bits() + 1)
        } else {
            f32::from_bits(f.to_bits() - 1)
        }
    } else {
        f
    };
    f32_to_f16(f)
}

/// `rcp.approx.ftz.f64` and its kin see and make only the upper word.
#[inline(always)]
fn high(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000)
}
#[inline(always)]
fn fz64(x: f64) -> f64 {
    if x.abs() < f64::MIN_POSITIVE {
        f64::from_bits(x.to_bits() & (1 << 63))
    } else {
        x
    }
}

pub(crate) fn round_of(m: &Mods<'_>) -> Round {
    match m.any(&[Word::Rz, Word::Rm, Word::Rp, Word::Rna]) {
        Some(Word::Rz) => Round::Zero,
        Some(Word::Rm) => Round::Down,
        Some(Word::Rp) => Round::Up,
        Some(_) => Round::Away,
        None => Round::Near,
    }
}

/// A value with its subnormals flushed, in a temporary.
pub(crate) fn flushed(l: &mut Lower<'_, '_>, a: Opd) -> Opd {
    let t = l.temp_rows(1);
    l.prepare(handlers::<Flush>(), Opd::Def(t), a, Opd::None, Opd::None);
    Opd::Use(t)
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Option<Lowered<()>> {
    let ty = m.ty(0).ok()?;
    if i.op == Op::Set {
        return Some(set(l, i, m));
    }
    if !is_float(ty) {
        return None;
    }
    Some(match ty {
        Ty::F32 => f32_op(l, i, m),
        Ty::F64 => f64_op(l, i, m),
        Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => half_op(l, i, m, ty),
        _ => Err(Reason::Unsupported),
    })
}

fn f32_op(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let ftz = m.has(Word::Ftz);
    let round = round_of(m);
    let ty = Ty::F32;
    macro_rules! z {
        ($plain:ident $flush:ident) => {
            if ftz {
                handlers::<$flush>()
            } else {
                handlers::<$plain>()
            }
        };
    }
    let flush = move |x: u64| {
        if ftz {
            u64::from(fz(f32::from_bits(x as u32)).to_bits())
        } else {
            x
        }
    };
    if round != Round::Near {
        let f3 = move |f: fn(Format, u64, u64, Round) -> u64| {
            move |a: u64, b: u64, _: u64| flush(f(F32, flush(a), flush(b), round))
        };
        match i.op {
            Op::Add => fun3(l, i, [ty; 3], f3(|f, a, b, r| f.add(a, b, r)))?,
            Op::Sub => fun3(l, i, [ty; 3], f3(|f, a, b, r| f.add(a, b ^ 0x8000_0000, r)))?,
            Op::Mul => fun3(l, i, [ty; 3], f3(|f, a, b, r| f.mul(a, b, r)))?,
            Op::Div => fun3(l, i, [ty; 3], f3(|f, a, b, r| f.div(a, b, r)))?,
            Op::Fma | Op::Mad => {
                fun4(l, i, [ty; 4], move |a, b, x| {
                    flush(F32.fma(flush(a), flush(b), flush(x), round))
                })?;
            }
            Op::Sqrt | Op::Rcp => {
                let a = l.src(&i.operands[1], ty)?;
                let d = l.dst(&i.operands[0], ty)?;
                let rcp = i.op == Op::Rcp;
                let none = (Opd::None, false);
                l.lane_fn((d, false), (a, false), none, none, move |a, _, _| {
                    let a = flush(a);
                    flush(if rcp {
                        F32.div(u64::from(1f32.to_bits()), a, round)
                    } else {
                        F32.sqrt(a, round)
                    })
                });
            }
            _ => return Err(Reason::Unsupported),
        }
        return saturate(l, i, m);
    }
    match i.op {
        Op::Add => two(l, i, ty, z!(AddF32 AddF32Z))?,
        Op::Sub => two(l, i, ty, z!(SubF32 SubF32Z))?,
        Op::Mul => two(l, i, ty, z!(MulF32 MulF32Z))?,
        Op::Fma | Op::Mad => three(l, i, [ty; 4], z!(FmaF32 FmaF32Z))?,
        Op::Div => two(l, i, ty, z!(DivF32 DivF32Z))?,
        Op::Min | Op::Max => return min_max32(l, i, m, ftz),
        Op::Sqrt => one(l, i, ty, ty, z!(SqrtF32 SqrtF32Z))?,
        Op::Rcp => one(l, i, ty, ty, z!(RcpF32 RcpF32Z))?,
        Op::Rsqrt => one(l, i, ty, ty, z!(RsqrtF32 RsqrtF32Z))?,
        Op::Ex2 => one(l, i, ty, ty, z!(Ex2 Ex2Z))?,
        Op::Lg2 => one(l, i, ty, ty, z!(Lg2 Lg2Z))?,
        Op::Sin => one(l, i, ty, ty, z!(Sin SinZ))?,
        Op::Cos => one(l, i, ty, ty, handlers::<Cos>())?,
        Op::Tanh => one(l, i, ty, ty, handlers::<Tanh>())?,
        Op::Abs | Op::Neg => {
            let h = if i.op == Op::Abs {
                handlers::<AbsF32>()
            } else {
                handlers::<NegF32>()
            };
            one(l, i, ty, ty, h)?;
            if ftz {
                let (v, _) = l.dst_reg(&i.operands[0], ty)?;
                l.emit(
                    handlers::<Flush>(),
                    Opd::Both(v),
                    Opd::Use(v),
                    Opd::None,
                    Opd::None,
                );
            }
        }
        Op::Copysign => two(l, i, ty, handlers::<CopysignF32>())?,
        Op::Setp => return setp(l, i, m, ty),
        Op::Testp => return testp(l, i, m, ty),
        _ => return Err(Reason::Unsupported),
    }
    saturate(l, i, m)
}

fn saturate(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    for (w, h) in [
        (Word::Sat, handlers::<Saturate>()),
        (Word::Relu, handlers::<Relu>()),
    ] {
        if m.has(w) {
            let (v, _) = l.dst_reg(&i.operands[0], Ty::F32)?;
            l.emit(h, Opd::Both(v), Opd::Use(v), Opd::None, Opd::None);
        }
    }
    Ok(())
}

fn min_max32(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, ftz: bool) -> Lowered<()> {
    let max = i.op == Op::Max;
    let (nan, xor) = (m.has(Word::PropagateNan), m.has(Word::Xorsign));
    if !nan && !xor && i.operands.len() == 3 {
        let h = match (max, ftz) {
            (false, false) => handlers::<MinF32>(),
            (true, false) => handlers::<MaxF32>(),
            (false, true) => handlers::<MinF32Z>(),
            (true, true) => handlers::<MaxF32Z>(),
        };
        return two(l, i, Ty::F32, h);
    }
    let f = move |a: u64, b: u64, _: u64| {
        let (mut a, mut b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        if ftz {
            (a, b) = (fz(a), fz(b));
        }
        let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
        if xor {
            (a, b) = (a.abs(), b.abs());
        }
        if nan && (a.is_nan() || b.is_nan()) {
            return 0x7fff_ffff;
        }
        let r = if max { max32(a, b) } else { min32(a, b) };
        u64::from(if xor && !r.is_nan() {
            r.to_bits() | sign
        } else {
            r.to_bits()
        })
    };
    if i.operands.len() == 4 {
        return fun4(l, i, [Ty::F32; 4], move |a, b, x| f(f(a, b, 0), x, 0));
    }
    fun3(l, i, [Ty::F32; 3], f)
}

fn f64_op(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let round = round_of(m);
    let ty = Ty::F64;
    if round != Round::Near {
        return match i.op {
            Op::Add => fun3(l, i, [ty; 3], move |a, b, _| F64.add(a, b, round)),
            Op::Sub => fun3(l, i, [ty; 3], move |a, b, _| {
                F64.add(a, b ^ (1 << 63), round)
            }),
            Op::Mul => fun3(l, i, [ty; 3], move |a, b, _| F64.mul(a, b, round)),
            Op::Div => fun3(l, i, [ty; 3], move |a, b, _| F64.div(a, b, round)),
            Op::Fma | Op::Mad => fun4(l, i, [ty; 4], move |a, b, x| F64.fma(a, b, x, round)),
            Op::Sqrt | Op::Rcp => {
                let a = l.src(&i.operands[1], ty)?;
                let d = l.dst(&i.operands[0], ty)?;
                let rcp = i.op == Op::Rcp;
                let none = (Opd::None, false);
                l.lane_fn((d, true), (a, true), none, none, move |a, _, _| {
                    if rcp {
                        F64.div(1f64.to_bits(), a, round)
                    } else {
                        F64.sqrt(a, round)
                    }
                });
                Ok(())
            }
            _ => Err(Reason::Unsupported),
        };
    }
    match i.op {
        Op::Add => two(l, i, ty, handlers::<AddF64>()),
        Op::Sub => two(l, i, ty, handlers::<SubF64>()),
        Op::Mul => two(l, i, ty, handlers::<MulF64>()),
        Op::Fma | Op::Mad => three(l, i, [ty; 4], handlers::<FmaF64>()),
        Op::Div => two(l, i, ty, handlers::<DivF64>()),
        Op::Sqrt => one(l, i, ty, ty, handlers::<SqrtF64>()),
        Op::Rcp if m.has(Word::Approx) => one(l, i, ty, ty, handlers::<RcpApprox64>()),
        Op::Rcp => one(l, i, ty, ty, handlers::<RcpF64>()),
        Op::Rsqrt => one(l, i, ty, ty, handlers::<RsqrtApprox64>()),
        Op::Min => two(l, i, ty, handlers::<MinF64>()),
        Op::Max => two(l, i, ty, handlers::<MaxF64>()),
        Op::Abs => one(l, i, ty, ty, handlers::<AbsF64>()),
        Op::Neg => one(l, i, ty, ty, handlers::<NegF64>()),
        Op::Copysign => two(l, i, ty, handlers::<CopysignF64>()),
        Op::Setp => setp(l, i, m, ty),
        Op::Testp => testp(l, i, m, ty),
        _ => Err(Reason::Unsupported),
    }
}

pub(crate) fn saturate64() -> Handlers {
    handlers::<Saturate64>()
}
pub(crate) fn saturate32() -> Handlers {
    handlers::<Saturate>()
}

fn testp(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, ty: Ty) -> Lowered<()> {
    let what = m
        .any(&[
            Word::Finite,
            Word::Infinite,
            Word::Number,
            Word::Notanumber,
            Word::Normal,
            Word::Subnormal,
        ])
        .ok_or(Reason::Unsupported)?;
    let a = l.src(&i.operands[1], ty)?;
    let wide = rows(ty) == 2;
    let t = l.temp_rows(1);
    let guard = std::mem::take(&mut l.guard);
    let none = (Opd::None, false);
    l.lane_fn(
        (Opd::Def(t), false),
        (a, wide),
        none,
        none,
        move |a, _, _| {
            let class = if wide {
                f64::from_bits(a).classify()
            } else {
                f32::from_bits(a as u32).classify()
            };
            use std::num::FpCategory as C;
            u64::from(match what {
                Word::Finite => !matches!(class, C::Nan | C::Infinite),
                Word::Infinite => class == C::Infinite,
                Word::Number => class != C::Nan,
                Word::Notanumber => class == C::Nan,
                Word::Normal => class == C::Normal,
                _ => class == C::Subnormal,
            })
        },
    );
    l.guard = guard;
    let d = l.pred_dst(&i.operands[0])?;
    data::to_pred(l, d, Opd::Use(t));
    Ok(())
}

/// What is done to one half.
#[derive(Clone, Copy)]
struct Half {
    format: Format,
    ftz: bool,
    sat: bool,
    relu: bool,
    nan: bool,
    xorsign: bool,
    round: Round,
}

impl Half {
    fn value(self, x: u16) -> f32 {
        if self.format == F16 {
            f16_to_f32(x)
        } else {
            bf16_to_f32(x)
        }
    }
    fn make(self, x: f32) -> u16 {
        if self.format == F16 {
            f32_to_f16(x)
        } else {
            f32_to_bf16(x)
        }
    }
    fn flush(self, x: u16) -> u64 {
        let least = 1u16 << self.format.frac;
        u64::from(if self.ftz && x & 0x7fff < least {
            x & 0x8000
        } else {
            x
        })
    }
    fn last(self, x: u64) -> u16 {
        let x = self.flush(x as u16) as u16;
        let v = self.value(x);
        if self.relu && !v.is_nan() && v <= 0.0 {
            return 0;
        }
        if self.sat { self.make(sat(v)) } else { x }
    }
    fn min_max(self, a: u16, b: u16, max: bool) -> u16 {
        let (mut x, mut y) = (
            self.value(self.flush(a) as u16),
            self.value(self.flush(b) as u16),
        );
        if self.nan && (x.is_nan() || y.is_nan()) {
            return 0x7fff;
        }
        let sign = (a ^ b) & 0x8000;
        if self.xorsign {
            (x, y) = (x.abs(), y.abs());
        }
        let r = self.make(if max { max32(x, y) } else { min32(x, y) });
        self.last(u64::from(if self.xorsign && r & 0x7fff <= 0x7c00 {
            r | sign
        } else {
            r
        }))
    }
}

fn half_op(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, ty: Ty) -> Lowered<()> {
    let two_of = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
    let h = Half {
        format: if matches!(ty, Ty::F16 | Ty::F16x2) {
            F16
        } else {
            BF16
        },
        ftz: m.has(Word::Ftz),
        sat: m.has(Word::Sat),
        relu: m.has(Word::Relu),
        nan: m.has(Word::PropagateNan),
        xorsign: m.has(Word::Xorsign),
        round: round_of(m),
    };
    let plain = !(h.ftz || h.sat || h.relu) && h.format == F16 && h.round == Round::Near;
    let split = move |f: fn(Half, u16, u16, u16) -> u16| {
        move |a: u64, b: u64, x: u64| {
            let low = u64::from(f(h, a as u16, b as u16, x as u16));
            if two_of {
                low | (u64::from(f(h, (a >> 16) as u16, (b >> 16) as u16, (x >> 16) as u16)) << 16)
            } else {
                low
            }
        }
    };
    let unary = |l: &mut Lower<'_, '_>, f: fn(Half, u16, u16, u16) -> u16| -> Lowered<()> {
        let a = l.src(&i.operands[1], ty)?;
        let d = l.dst(&i.operands[0], ty)?;
        let none = (Opd::None, false);
        l.lane_fn((d, false), (a, false), none, none, split(f));
        Ok(())
    };
    match (i.op, two_of) {
        (Op::Add, false) if plain => two(l, i, ty, handlers::<AddH>()),
        (Op::Add, true) if plain => two(l, i, ty, handlers::<AddH2>()),
        (Op::Sub, false) if plain => two(l, i, ty, handlers::<SubH>()),
        (Op::Sub, true) if plain => two(l, i, ty, handlers::<SubH2>()),
        (Op::Mul, false) if plain => two(l, i, ty, handlers::<MulH>()),
        (Op::Mul, true) if plain => two(l, i, ty, handlers::<MulH2>()),
        (Op::Fma, false) if plain => three(l, i, [ty; 4], handlers::<FmaH>()),
        (Op::Fma, true) if plain => three(l, i, [ty; 4], handlers::<FmaH2>()),
        (Op::Add, _) => fun3(
            l,
            i,
            [ty; 3],
            split(|h, a, b, _| h.last(h.format.add(h.flush(a), h.flush(b), h.round))),
        ),
        (Op::Sub, _) => fun3(
            l,
            i,
            [ty; 3],
            split(|h, a, b, _| h.last(h.format.add(h.flush(a), h.flush(b ^ 0x8000), h.round))),
        ),
        (Op::Mul, _) => fun3(
            l,
            i,
            [ty; 3],
            split(|h, a, b, _| h.last(h.format.mul(h.flush(a), h.flush(b), h.round))),
        ),
        (Op::Fma, _) => fun4(
            l,
            i,
            [ty; 4],
            split(|h, a, b, x| h.last(h.format.fma(h.flush(a), h.flush(b), h.flush(x), h.round))),
        ),
        (Op::Min, _) if i.operands.len() == 3 => {
            fun3(l, i, [ty; 3], split(|h, a, b, _| h.min_max(a, b, false)))
        }
        (Op::Max, _) if i.operands.len() == 3 => {
            fun3(l, i, [ty; 3], split(|h, a, b, _| h.min_max(a, b, true)))
        }
        (Op::Neg, false) if !h.ftz => one(l, i, ty, ty, handlers::<Neg16>()),
        (Op::Neg, true) if !h.ftz => one(l, i, ty, ty, handlers::<Neg16x2>()),
        (Op::Abs, false) if !h.ftz => one(l, i, ty, ty, handlers::<Abs16>()),
        (Op::Abs, true) if !h.ftz => one(l, i, ty, ty, handlers::<Abs16x2>()),
        (Op::Neg, _) => unary(l, |h, a, _, _| h.flush(a ^ 0x8000) as u16),
        (Op::Abs, _) => unary(l, |h, a, _, _| h.flush(a & 0x7fff) as u16),
        (Op::Ex2, _) => unary(l, |h, a, _, _| {
            h.last(u64::from(
                h.make(f64::from(h.value(h.flush(a) as u16)).exp2() as f32),
            ))
        }),
        (Op::Tanh, _) => unary(l, |h, a, _, _| {
            h.last(u64::from(
                h.make(f64::from(h.value(h.flush(a) as u16)).tanh() as f32),
            ))
        }),
        (Op::Setp, _) => setp_half(l, i, m, ty),
        _ => Err(Reason::Unsupported),
    }
}

/// One half of an operand as f32, in a temporary.
fn as_float(l: &mut Lower<'_, '_>, a: Opd, ty: Ty, high_half: bool) -> Opd {
    let t = l.temp_rows(1);
    let h = match (matches!(ty, Ty::F16 | Ty::F16x2), high_half) {
        (true, false) => handlers::<HalfToFloat>(),
        (true, true) => handlers::<HighHalfToFloat>(),
        (false, false) => handlers::<BrainToFloat>(),
        (false, true) => handlers::<HighBrainToFloat>(),
    };
    l.prepare(h, Opd::Def(t), a, Opd::None, Opd::None);
    Opd::Use(t)
}

fn compared_halves(
    l: &mut Lower<'_, '_>,
    i: &Tree,
    m: &Mods<'_>,
    ty: Ty,
    high_half: bool,
) -> Lowered<P> {
    let (a, b) = (l.src(&i.operands[1], ty)?, l.src(&i.operands[2], ty)?);
    let (mut a, mut b) = (as_float(l, a, ty, high_half), as_float(l, b, ty, high_half));
    if m.has(Word::Ftz) && matches!(ty, Ty::F16 | Ty::F16x2) {
        // Flushing happens at the half's own scale: anything below 2^-14.
        for x in [&mut a, &mut b] {
            let t = l.temp_rows(1);
            let none = (Opd::None, false);
            let guard = std::mem::take(&mut l.guard);
            l.lane_fn((Opd::Def(t), false), (*x, false), none, none, |x, _, _| {
                let v = f32::from_bits(x as u32);
                if v.abs() < 6.103_515_6e-5 {
                    x & 0x8000_0000
                } else {
                    x
                }
            });
            l.guard = guard;
            *x = Opd::Use(t);
        }
    }
    let t = l.temp_pred();
    let guard = std::mem::take(&mut l.guard);
    let done = super::alu_int::compared(l, m, Ty::F32, a, b, P::Def(t));
    l.guard = guard;
    done?;
    Ok(P::Use(t, false))
}

fn setp_half(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, ty: Ty) -> Lowered<()> {
    let (first, second) = match &i.operands[0] {
        Ast::Pair(p, q) => ((**p).clone(), Some((**q).clone())),
        o => (o.clone(), None),
    };
    let logic = m.any(&[Word::And, Word::Or, Word::Xor]);
    let c = match (logic, i.operands.get(3)) {
        (Some(_), Some(c)) => l.pred(c)?,
        _ => P::True,
    };
    let op = match logic {
        Some(Word::Or) => Op::Or,
        Some(Word::Xor) => Op::Xor,
        _ => Op::And,
    };
    let low = compared_halves(l, i, m, ty, false)?;
    let other = match ty {
        Ty::F16x2 | Ty::Bf16x2 => Some(compared_halves(l, i, m, ty, true)?),
        _ => match low {
            P::Use(v, n) => Some(P::Use(v, !n)),
            _ => None,
        },
    };
    if let (Some(q), Some(other)) = (second, other) {
        let q = l.pred_dst(&q)?;
        data::logic(l, op, q, other, c);
    }
    let d = l.pred_dst(&first)?;
    data::logic(l, op, d, low, c);
    Ok(())
}

fn set(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let (out, ty) = (m.ty(0)?, m.ty(1)?);
    if !matches!(ty, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2) {
        return super::alu_int::set_to(l, i, m, out, ty);
    }
    if i.operands.len() != 3 {
        return bad("a combining set of halves");
    }
    let one = match out {
        Ty::F16 | Ty::F16x2 => 0x3c00u64,
        Ty::Bf16 | Ty::Bf16x2 => 0x3f80,
        Ty::F32 => u64::from(1f32.to_bits()),
        Ty::U16 | Ty::S16 => 0xffff,
        _ if matches!(ty, Ty::F16x2 | Ty::Bf16x2) => 0xffff,
        _ => 0xffff_ffff,
    };
    let low = compared_halves(l, i, m, ty, false)?;
    if !matches!(ty, Ty::F16x2 | Ty::Bf16x2) {
        let d = l.dst(&i.operands[0], out)?;
        let x = l.emit(data::from_pred(), d, Opd::None, Opd::None, Opd::None);
        x.x_pred = Some(low);
        x.imm = one;
        return Ok(());
    }
    let upper = compared_halves(l, i, m, ty, true)?;
    let (t, u) = (l.temp_rows(1), l.temp_rows(1));
    for (v, p, one) in [(t, low, one), (u, upper, one << 16)] {
        let x = l.prepare(
            data::from_pred(),
            Opd::Def(v),
            Opd::None,
            Opd::None,
            Opd::None,
        );
        x.x_pred = Some(p);
        x.imm = one;
    }
    let d = l.dst(&i.operands[0], out)?;
    l.emit(
        super::alu_int::add32(),
        d,
        Opd::Use(t),
        Opd::Use(u),
        Opd::None,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_half_multiply_add_rounds_once() {
        let mut s = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64;
        let start = s;
        let mut next = || {
            s = s
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (s >> 40) as u16
        };
        for _ in 0..500_000 {
            let (a, b, x) = (next(), next(), next());
            let want = F16.fma(u64::from(a), u64::from(b), u64::from(x), Round::Near) as u16;
            assert_eq!(
                fma_f16(a, b, x),
                want,
                "seed {start}: {a:#x} * {b:#x} + {x:#x}"
            );
        }
    }

    #[test]
    fn minimum_and_maximum_follow_the_isa() {
        assert_eq!(min32(f32::NAN, 2.0), 2.0);
        assert_eq!(max32(2.0, f32::NAN), 2.0);
        assert_eq!(min32(0.0, -0.0).to_bits(), 0x8000_0000);
        assert_eq!(max32(-0.0, 0.0).to_bits(), 0);
        assert_eq!(min32(f32::NAN, f32::NAN).to_bits(), 0x7fff_ffff);
    }
}
