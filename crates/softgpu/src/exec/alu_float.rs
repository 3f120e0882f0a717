//! Floating-point arithmetic, `.approx` functions, comparisons of halves.
//!
//! Elsewhere: what one lane computes ([`super::scalar`]). Written out here are only the cases that
//! the processor does in one instruction, with the same bits.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::arity::{fun3, fun4, one, three, two};
use super::basics;
use super::compare::{Flush, setp};
use super::ctx::{Ctx, DecodedInst};
use super::halves::f16_to_f32;
use super::lanes::{Exec, Handlers, handlers, lane_ops, map1, map1_loop, map2, map2_loop, map3};
use super::lower::{Lower, LowerError, Lowered, ModList, Opd, PredRef, bad};
use super::scalar::float::{self, Extremum, FloatClass, FloatFinish, canonical as c};
use super::scalar::{RoundMode, approx, half};
use super::width::{is_float, rows};

const NEAR: FloatFinish = FloatFinish {
    ftz: false,
    sat: false,
};
const FLUSH: FloatFinish = FloatFinish {
    ftz: true,
    sat: false,
};

const fn rule(max: bool, ftz: bool) -> Extremum {
    Extremum {
        max,
        nan: false,
        xorsign: false,
        ftz,
    }
}

lane_ops! {
    AddF32 = map2(f32, f32, f32) |a, b| c(a + b);
    SubF32 = map2(f32, f32, f32) |a, b| c(a - b);
    MulF32 = map2(f32, f32, f32) |a, b| c(a * b);
    FmaF32 = map3(f32, f32, f32, f32) |a, b, x| c(a.mul_add(b, x));
    DivF32 = map2(f32, f32, f32) |a, b| c(a / b);
    AddF32Z = map2(f32, f32, f32) |a, b| float::add(a, b, RoundMode::Nearest, FLUSH);
    SubF32Z = map2(f32, f32, f32) |a, b| float::add(a, -b, RoundMode::Nearest, FLUSH);
    MulF32Z = map2(f32, f32, f32) |a, b| float::mul(a, b, RoundMode::Nearest, FLUSH);
    FmaF32Z = map3(f32, f32, f32, f32) |a, b, x| float::fma(a, b, x, RoundMode::Nearest, FLUSH);
    DivF32Z = map2(f32, f32, f32) |a, b| float::div(a, b, RoundMode::Nearest, true);
    MinF32 = map2(f32, f32, f32) |a, b| float::extremum(a, b, rule(false, false));
    MaxF32 = map2(f32, f32, f32) |a, b| float::extremum(a, b, rule(true, false));
    MinF32Z = map2(f32, f32, f32) |a, b| float::extremum(a, b, rule(false, true));
    MaxF32Z = map2(f32, f32, f32) |a, b| float::extremum(a, b, rule(true, true));
    SqrtF32 = map1(f32, f32) |a| c(a.sqrt());
    SqrtF32Z = map1(f32, f32) |a| float::sqrt(a, RoundMode::Nearest, true);
    RcpF32 = map1(f32, f32) |a| c(1.0 / a);
    RcpF32Z = map1(f32, f32) |a| float::rcp(a, RoundMode::Nearest, true);
    RsqrtF32 = map1_loop(f32, f32) |a| approx::rsqrt(a, false);
    RsqrtF32Z = map1_loop(f32, f32) |a| approx::rsqrt(a, true);
    DivApprox = map2_loop(f32, f32, f32) |a, b| approx::div(a, b, false);
    DivApproxZ = map2_loop(f32, f32, f32) |a, b| approx::div(a, b, true);
    DivFull = map2_loop(f32, f32, f32) |a, b| approx::div_full(a, b, false);
    DivFullZ = map2_loop(f32, f32, f32) |a, b| approx::div_full(a, b, true);
    RcpApprox = map1_loop(f32, f32) |a| approx::rcp(a, false);
    RcpApproxZ = map1_loop(f32, f32) |a| approx::rcp(a, true);
    SqrtApprox = map1_loop(f32, f32) |a| approx::sqrt(a, false);
    SqrtApproxZ = map1_loop(f32, f32) |a| approx::sqrt(a, true);
    AbsF32 = map1(f32, f32) |a| c(a.abs());
    NegF32 = map1(f32, f32) |a| c(-a);
    Saturate = map1(f32, f32) |a| float::saturate(a);
    Saturate64 = map1(f64, f64) |a| float::saturate_f64(a);
    Relu = map1(f32, f32) |a| if a.is_nan() { c(a) } else if a > 0.0 { a } else { 0.0 };
    AddF64 = map2(f64, f64, f64) |a, b| float::add_f64(a, b, RoundMode::Nearest);
    SubF64 = map2(f64, f64, f64) |a, b| float::sub_f64(a, b, RoundMode::Nearest);
    MulF64 = map2(f64, f64, f64) |a, b| float::mul_f64(a, b, RoundMode::Nearest);
    FmaF64 = map3(f64, f64, f64, f64) |a, b, x| float::fma_f64(a, b, x, RoundMode::Nearest);
    DivF64 = map2(f64, f64, f64) |a, b| float::div_f64(a, b, RoundMode::Nearest);
    SqrtF64 = map1(f64, f64) |a| float::sqrt_f64(a, RoundMode::Nearest);
    RcpF64 = map1(f64, f64) |a| float::rcp_f64(a, RoundMode::Nearest);
    MinF64 = map2(f64, f64, f64) |a, b| float::extremum_f64(a, b, rule(false, false));
    MaxF64 = map2(f64, f64, f64) |a, b| float::extremum_f64(a, b, rule(true, false));
    AbsF64 = map1(f64, f64) |a| float::abs_f64(a);
    NegF64 = map1(f64, f64) |a| float::neg_f64(a);
    CopysignF32 = map2(f32, f32, f32) |a, b| b.copysign(a);
    CopysignF64 = map2(f64, f64, f64) |a, b| b.copysign(a);
    Ex2 = map1_loop(f32, f32) |a| approx::ex2(a, false);
    Ex2Z = map1_loop(f32, f32) |a| approx::ex2(a, true);
    Lg2 = map1_loop(f32, f32) |a| approx::lg2(a, false);
    Lg2Z = map1_loop(f32, f32) |a| approx::lg2(a, true);
    Sin = map1_loop(f32, f32) |a| approx::sin(a);
    Cos = map1_loop(f32, f32) |a| approx::cos(a);
    Tanh = map1_loop(f32, f32) |a| approx::tanh(a);
    RcpApprox64 = map1_loop(f64, f64) |a| approx::rcp_f64(a);
    RsqrtApprox64 = map1_loop(f64, f64) |a| approx::rsqrt_f64(a, false);
    RsqrtApprox64Z = map1_loop(f64, f64) |a| approx::rsqrt_f64(a, true);
    Ex2F16 = map1_loop(u16, u16) |a| approx::ex2_half(half::F16, a);
    Ex2F16x2 = map1_loop(u32, u32) |a| each(a, |a| approx::ex2_half(half::F16, a));
    Ex2Bf16 = map1_loop(u16, u16) |a| approx::ex2_half(half::BF16, a);
    Ex2Bf16x2 = map1_loop(u32, u32) |a| each(a, |a| approx::ex2_half(half::BF16, a));
    TanhF16 = map1_loop(u16, u16) |a| approx::tanh_half(half::F16, a);
    TanhF16x2 = map1_loop(u32, u32) |a| each(a, |a| approx::tanh_half(half::F16, a));
    TanhBf16 = map1_loop(u16, u16) |a| approx::tanh_half(half::BF16, a);
    TanhBf16x2 = map1_loop(u32, u32) |a| each(a, |a| approx::tanh_half(half::BF16, a));
    HalfToFloat = map1(u16, f32) |a| f16_to_f32(a);
    BrainToFloat = map1(u16, f32) |a| half::bf16_value(a);
    HighHalfToFloat = map1(u32, f32) |a| f16_to_f32((a >> 16) as u16);
    HighBrainToFloat = map1(u32, f32) |a| half::bf16_value((a >> 16) as u16);
}

/// `f` of both halves of a register.
#[inline(always)]
fn each(a: u32, f: impl Fn(u16) -> u16) -> u32 {
    u32::from(f(a as u16)) | u32::from(f((a >> 16) as u16)) << 16
}

/// Two halves of a register, one after the other.
#[inline(always)]
fn both(a: u32, b: u32, x: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16, x as u16))
        | (u32::from(f((a >> 16) as u16, (b >> 16) as u16, (x >> 16) as u16)) << 16)
}

const PLAIN: half::HalfFinish = half::HalfFinish {
    ftz: false,
    sat: false,
    relu: false,
};

/// Arithmetic of halves as the compiler emits it most; `B` selects bf16.
macro_rules! half_ops {
    ($($name:ident $name2:ident = |$f:ident, $a:ident, $b:ident, $x:ident| $e:expr;)*) => {$(
        struct $name<const B: bool>;
        impl<const B: bool> Exec for $name<B> {
            #[inline(always)]
            fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
                let $f = if B { half::BF16 } else { half::F16 };
                map3::<u16, u16, u16, u16, FULL>(ctx, i, |$a, $b, $x| $e);
            }
        }
        struct $name2<const B: bool>;
        impl<const B: bool> Exec for $name2<B> {
            #[inline(always)]
            fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
                let $f = if B { half::BF16 } else { half::F16 };
                map3::<u32, u32, u32, u32, FULL>(ctx, i, |a, b, x| both(a, b, x, |$a, $b, $x| $e));
            }
        }
    )*};
}
half_ops! {
    AddHalf AddHalves = |f, a, b, _x| half::add(f, a, b, PLAIN);
    SubHalf SubHalves = |f, a, b, _x| half::sub(f, a, b, PLAIN);
    MulHalf MulHalves = |f, a, b, _x| half::mul(f, a, b, PLAIN);
    FmaHalf FmaHalves = |f, a, b, x| half::fma(f, a, b, x, PLAIN);
}

pub(crate) fn round_of(m: &ModList<'_>) -> RoundMode {
    match m.any(&[
        Word::Rz,
        Word::Rm,
        Word::Rp,
        Word::Rna,
        Word::Rzi,
        Word::Rmi,
        Word::Rpi,
    ]) {
        Some(Word::Rz | Word::Rzi) => RoundMode::Zero,
        Some(Word::Rm | Word::Rmi) => RoundMode::Down,
        Some(Word::Rp | Word::Rpi) => RoundMode::Up,
        Some(_) => RoundMode::NearestAway,
        None => RoundMode::Nearest,
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
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
        _ => Err(LowerError::Unsupported),
    })
}

fn f32_op(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
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
    if round != RoundMode::Nearest {
        let finish = if ftz { FLUSH } else { NEAR };
        let f = |x: u64| f32::from_bits(x as u32);
        let r = |x: f32| u64::from(x.to_bits());
        match i.op {
            Op::Add => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::add(f(a), f(b), round, finish))
            })?,
            Op::Sub => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::add(f(a), -f(b), round, finish))
            })?,
            Op::Mul => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::mul(f(a), f(b), round, finish))
            })?,
            Op::Div => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::div(f(a), f(b), round, ftz))
            })?,
            Op::Fma | Op::Mad => {
                fun4(l, i, [ty; 4], move |a, b, x| {
                    r(float::fma(f(a), f(b), f(x), round, finish))
                })?;
            }
            Op::Sqrt | Op::Rcp => {
                let a = l.src(&i.operands[1], ty)?;
                let d = l.dst(&i.operands[0], ty)?;
                let rcp = i.op == Op::Rcp;
                let none = (Opd::None, false);
                l.lane_fn((d, false), (a, false), none, none, move |a, _, _| {
                    r(if rcp {
                        float::rcp(f(a), round, ftz)
                    } else {
                        float::sqrt(f(a), round, ftz)
                    })
                });
            }
            _ => return Err(LowerError::Unsupported),
        }
        return saturate(l, i, m);
    }
    let approx = m.has(Word::Approx);
    match i.op {
        Op::Add => two(l, i, ty, z!(AddF32 AddF32Z))?,
        Op::Sub => two(l, i, ty, z!(SubF32 SubF32Z))?,
        Op::Mul => two(l, i, ty, z!(MulF32 MulF32Z))?,
        Op::Fma | Op::Mad => three(l, i, [ty; 4], z!(FmaF32 FmaF32Z))?,
        Op::Div if m.has(Word::Full) => two(l, i, ty, z!(DivFull DivFullZ))?,
        Op::Div if approx => two(l, i, ty, z!(DivApprox DivApproxZ))?,
        Op::Div => two(l, i, ty, z!(DivF32 DivF32Z))?,
        Op::Min | Op::Max => return min_max32(l, i, m, ftz),
        Op::Sqrt if approx => one(l, i, ty, ty, z!(SqrtApprox SqrtApproxZ))?,
        Op::Sqrt => one(l, i, ty, ty, z!(SqrtF32 SqrtF32Z))?,
        Op::Rcp if approx => one(l, i, ty, ty, z!(RcpApprox RcpApproxZ))?,
        Op::Rcp => one(l, i, ty, ty, z!(RcpF32 RcpF32Z))?,
        Op::Rsqrt => one(l, i, ty, ty, z!(RsqrtF32 RsqrtF32Z))?,
        Op::Ex2 => one(l, i, ty, ty, z!(Ex2 Ex2Z))?,
        Op::Lg2 => one(l, i, ty, ty, z!(Lg2 Lg2Z))?,
        Op::Sin => one(l, i, ty, ty, handlers::<Sin>())?,
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
        _ => return Err(LowerError::Unsupported),
    }
    saturate(l, i, m)
}

fn saturate(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
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

fn min_max32(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ftz: bool) -> Lowered<()> {
    let max = i.op == Op::Max;
    let (nan, xorsign) = (m.has(Word::PropagateNan), m.has(Word::Xorsign));
    if !nan && !xorsign && i.operands.len() == 3 {
        let h = match (max, ftz) {
            (false, false) => handlers::<MinF32>(),
            (true, false) => handlers::<MaxF32>(),
            (false, true) => handlers::<MinF32Z>(),
            (true, true) => handlers::<MaxF32Z>(),
        };
        return two(l, i, Ty::F32, h);
    }
    let rule = Extremum {
        max,
        nan,
        xorsign,
        ftz,
    };
    let f = move |a: u64, b: u64, _: u64| {
        u64::from(
            float::extremum(f32::from_bits(a as u32), f32::from_bits(b as u32), rule).to_bits(),
        )
    };
    if i.operands.len() == 4 {
        return fun4(l, i, [Ty::F32; 4], move |a, b, x| f(f(a, b, 0), x, 0));
    }
    fun3(l, i, [Ty::F32; 3], f)
}

fn f64_op(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let round = round_of(m);
    let ty = Ty::F64;
    if round != RoundMode::Nearest {
        let f = f64::from_bits;
        let r = f64::to_bits;
        return match i.op {
            Op::Add => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::add_f64(f(a), f(b), round))
            }),
            Op::Sub => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::sub_f64(f(a), f(b), round))
            }),
            Op::Mul => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::mul_f64(f(a), f(b), round))
            }),
            Op::Div => fun3(l, i, [ty; 3], move |a, b, _| {
                r(float::div_f64(f(a), f(b), round))
            }),
            Op::Fma | Op::Mad => fun4(l, i, [ty; 4], move |a, b, x| {
                r(float::fma_f64(f(a), f(b), f(x), round))
            }),
            Op::Sqrt | Op::Rcp => {
                let a = l.src(&i.operands[1], ty)?;
                let d = l.dst(&i.operands[0], ty)?;
                let rcp = i.op == Op::Rcp;
                let none = (Opd::None, false);
                l.lane_fn((d, true), (a, true), none, none, move |a, _, _| {
                    r(if rcp {
                        float::rcp_f64(f(a), round)
                    } else {
                        float::sqrt_f64(f(a), round)
                    })
                });
                Ok(())
            }
            _ => Err(LowerError::Unsupported),
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
        Op::Rsqrt if m.has(Word::Ftz) => one(l, i, ty, ty, handlers::<RsqrtApprox64Z>()),
        Op::Rsqrt => one(l, i, ty, ty, handlers::<RsqrtApprox64>()),
        Op::Min => two(l, i, ty, handlers::<MinF64>()),
        Op::Max => two(l, i, ty, handlers::<MaxF64>()),
        Op::Abs => one(l, i, ty, ty, handlers::<AbsF64>()),
        Op::Neg => one(l, i, ty, ty, handlers::<NegF64>()),
        Op::Copysign => two(l, i, ty, handlers::<CopysignF64>()),
        Op::Setp => setp(l, i, m, ty),
        Op::Testp => testp(l, i, m, ty),
        _ => Err(LowerError::Unsupported),
    }
}

pub(crate) fn saturate64() -> Handlers {
    handlers::<Saturate64>()
}
pub(crate) fn saturate32() -> Handlers {
    handlers::<Saturate>()
}

fn testp(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let words = [
        Word::Finite,
        Word::Infinite,
        Word::Number,
        Word::Notanumber,
        Word::Normal,
        Word::Subnormal,
    ];
    let what = match m.any(&words) {
        Some(Word::Finite) => FloatClass::Finite,
        Some(Word::Infinite) => FloatClass::Infinite,
        Some(Word::Number) => FloatClass::Number,
        Some(Word::Notanumber) => FloatClass::NotANumber,
        Some(Word::Normal) => FloatClass::Normal,
        Some(_) => FloatClass::Subnormal,
        None => return Err(LowerError::Unsupported),
    };
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
            u64::from(what.test(class))
        },
    );
    l.guard = guard;
    let d = l.pred_dst(&i.operands[0])?;
    basics::to_pred(l, d, Opd::Use(t));
    Ok(())
}

/// What is done to one half.
#[derive(Clone, Copy)]
struct Half {
    format: half::HalfFormat,
    finish: half::HalfFinish,
    nan: bool,
    xorsign: bool,
}

impl Half {
    fn extremum(self, a: u16, b: u16, max: bool) -> u16 {
        let rule = Extremum {
            max,
            nan: self.nan,
            xorsign: self.xorsign,
            ftz: self.finish.ftz,
        };
        half::extremum(self.format, a, b, rule)
    }
}

fn half_op(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let two_of = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
    let brain = matches!(ty, Ty::Bf16 | Ty::Bf16x2);
    let finish = half::HalfFinish {
        ftz: m.has(Word::Ftz),
        sat: m.has(Word::Sat),
        relu: m.has(Word::Relu),
    };
    let h = Half {
        format: if brain { half::BF16 } else { half::F16 },
        finish,
        nan: m.has(Word::PropagateNan),
        xorsign: m.has(Word::Xorsign),
    };
    if round_of(m) != RoundMode::Nearest {
        return Err(LowerError::Unsupported);
    }
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
    macro_rules! fast {
        ($one:ident $two:ident) => {
            match (two_of, brain) {
                (false, false) => handlers::<$one<false>>(),
                (false, true) => handlers::<$one<true>>(),
                (true, false) => handlers::<$two<false>>(),
                (true, true) => handlers::<$two<true>>(),
            }
        };
    }
    match i.op {
        Op::Add if finish == PLAIN => two(l, i, ty, fast!(AddHalf AddHalves)),
        Op::Sub if finish == PLAIN => two(l, i, ty, fast!(SubHalf SubHalves)),
        Op::Mul if finish == PLAIN => two(l, i, ty, fast!(MulHalf MulHalves)),
        Op::Fma if finish == PLAIN => three(l, i, [ty; 4], fast!(FmaHalf FmaHalves)),
        Op::Add => fun3(
            l,
            i,
            [ty; 3],
            split(|h, a, b, _| half::add(h.format, a, b, h.finish)),
        ),
        Op::Sub => fun3(
            l,
            i,
            [ty; 3],
            split(|h, a, b, _| half::sub(h.format, a, b, h.finish)),
        ),
        Op::Mul => fun3(
            l,
            i,
            [ty; 3],
            split(|h, a, b, _| half::mul(h.format, a, b, h.finish)),
        ),
        Op::Fma => fun4(
            l,
            i,
            [ty; 4],
            split(|h, a, b, x| half::fma(h.format, a, b, x, h.finish)),
        ),
        Op::Min if i.operands.len() == 3 => {
            fun3(l, i, [ty; 3], split(|h, a, b, _| h.extremum(a, b, false)))
        }
        Op::Max if i.operands.len() == 3 => {
            fun3(l, i, [ty; 3], split(|h, a, b, _| h.extremum(a, b, true)))
        }
        Op::Neg => unary(l, |h, a, _, _| half::neg(h.format, a, h.finish.ftz)),
        Op::Abs => unary(l, |h, a, _, _| half::abs(h.format, a, h.finish.ftz)),
        Op::Ex2 | Op::Tanh => {
            let h = match (i.op == Op::Tanh, ty) {
                (false, Ty::F16) => handlers::<Ex2F16>(),
                (false, Ty::F16x2) => handlers::<Ex2F16x2>(),
                (false, Ty::Bf16) => handlers::<Ex2Bf16>(),
                (false, _) => handlers::<Ex2Bf16x2>(),
                (true, Ty::F16) => handlers::<TanhF16>(),
                (true, Ty::F16x2) => handlers::<TanhF16x2>(),
                (true, Ty::Bf16) => handlers::<TanhBf16>(),
                (true, _) => handlers::<TanhBf16x2>(),
            };
            one(l, i, ty, ty, h)
        }
        Op::Setp => setp_half(l, i, m, ty),
        _ => Err(LowerError::Unsupported),
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
    m: &ModList<'_>,
    ty: Ty,
    high_half: bool,
) -> Lowered<PredRef> {
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
    let done = super::compare::compared(l, m, Ty::F32, a, b, PredRef::Def(t));
    l.guard = guard;
    done?;
    Ok(PredRef::Use(t, false))
}

fn setp_half(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, ty: Ty) -> Lowered<()> {
    let (first, second) = match &i.operands[0] {
        Ast::Pair(p, q) => ((**p).clone(), Some((**q).clone())),
        o => (o.clone(), None),
    };
    let logic = m.any(&[Word::And, Word::Or, Word::Xor]);
    let c = match (logic, i.operands.get(3)) {
        (Some(_), Some(c)) => l.pred(c)?,
        _ => PredRef::True,
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
            PredRef::Use(v, n) => Some(PredRef::Use(v, !n)),
            _ => None,
        },
    };
    if let (Some(q), Some(other)) = (second, other) {
        let q = l.pred_dst(&q)?;
        basics::logic(l, op, q, other, c);
    }
    let d = l.pred_dst(&first)?;
    basics::logic(l, op, d, low, c);
    Ok(())
}

pub(crate) fn set(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let (out, ty) = (m.ty(0)?, m.ty(1)?);
    if !matches!(ty, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2) {
        return super::compare::set_to(l, i, m, out, ty);
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
        let x = l.emit(basics::from_pred(), d, Opd::None, Opd::None, Opd::None);
        x.x_pred = Some(low);
        x.imm = one;
        return Ok(());
    }
    let upper = compared_halves(l, i, m, ty, true)?;
    let (t, u) = (l.temp_rows(1), l.temp_rows(1));
    for (v, p, one) in [(t, low, one), (u, upper, one << 16)] {
        let x = l.prepare(
            basics::from_pred(),
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
        super::basics::add32(),
        d,
        Opd::Use(t),
        Opd::Use(u),
        Opd::None,
    );
    Ok(())
}
