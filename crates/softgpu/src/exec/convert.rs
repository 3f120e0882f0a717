//! `cvt`: between all numeric types, with rounding, saturation and flushing.

use fercuda_ptx::ast::Inst as Tree;
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::alu_float::{round_of, saturate32, saturate64};
use super::basics;
use super::halves::{f16_to_f32, f32_to_bf16, f32_to_f16};
use super::lanes::{handlers, lane_ops, map1};
use super::lower::{Lower, LowerError, Lowered, ModList, Opd, bad};
use super::scalar::convert::{
    IntFormat, float_to_int, int_to_f32, int_to_f64, int_to_half, int_to_int, integral,
};
use super::scalar::half::{self, BF16, E4M3, E5M2, F16, HalfFormat, Overflow, TF32};
use super::scalar::{RoundMode, float};
use super::width::{bits, is_signed, rows};

lane_ops! {
    F32FromS32 = map1(i32, f32) |a| a as f32;
    F32FromU32 = map1(u32, f32) |a| a as f32;
    F32FromS64 = map1(i64, f32) |a| a as f32;
    F32FromU64 = map1(u64, f32) |a| a as f32;
    F32FromU16 = map1(u16, f32) |a| f32::from(a);
    F32FromS16 = map1(i16, f32) |a| f32::from(a);
    F32FromU8 = map1(u8, f32) |a| f32::from(a);
    F32FromS8 = map1(i8, f32) |a| f32::from(a);
    F64FromS32 = map1(i32, f64) |a| f64::from(a);
    F64FromU32 = map1(u32, f64) |a| f64::from(a);
    F64FromS64 = map1(i64, f64) |a| a as f64;
    F64FromU64 = map1(u64, f64) |a| a as f64;
    F64FromF32 = map1(f32, f64) |a| float::f32_to_f64(a);
    F32FromF64 = map1(f64, f32) |a| float::f64_to_f32(a, RoundMode::Nearest);
    F32FromF16 = map1(u16, f32) |a| f16_to_f32(a);
    F16FromF32 = map1(f32, u16) |a| f32_to_f16(a);
    F32FromBf16 = map1(u16, f32) |a| half::bf16_value(a);
    Bf16FromF32 = map1(f32, u16) |a| f32_to_bf16(a);
    S32FromF32Zero = map1(f32, i32) |a| a as i32;
    U32FromF32Zero = map1(f32, u32) |a| a as u32;
    S64FromF32Zero = map1(f32, i64) |a| if a.is_nan() { i64::MIN } else { a as i64 };
    S32FromF64Zero = map1(f64, i32) |a| if a.is_nan() { i32::MIN } else { a as i32 };
    S64FromF64Zero = map1(f64, i64) |a| if a.is_nan() { i64::MIN } else { a as i64 };
    FloorF32 = map1(f32, f32) |a| if a.is_nan() { f32::from_bits(0x7fff_ffff) } else { a.floor() };
    CeilF32 = map1(f32, f32) |a| if a.is_nan() { f32::from_bits(0x7fff_ffff) } else { a.ceil() };
    TruncF32 = map1(f32, f32) |a| if a.is_nan() { f32::from_bits(0x7fff_ffff) } else { a.trunc() };
    RintF32 = map1(f32, f32) |a| if a.is_nan() { f32::from_bits(0x7fff_ffff) } else { a.round_ties_even() };
    FloorF64 = map1(f64, f64) |a| float::quiet(a.floor());
    CeilF64 = map1(f64, f64) |a| float::quiet(a.ceil());
    TruncF64 = map1(f64, f64) |a| float::quiet(a.trunc());
    RintF64 = map1(f64, f64) |a| float::quiet(a.round_ties_even());
    Sext8 = map1(i8, i32) |a| i32::from(a);
    Zext8 = map1(u8, u32) |a| u32::from(a);
    Sext16 = map1(i16, i32) |a| i32::from(a);
    Zext16 = map1(u16, u32) |a| u32::from(a);
    Sext8To16 = map1(i8, i16) |a| i16::from(a);
}

/// The narrow formats; f32 and f64 are not among them.
fn format(ty: Ty) -> Option<HalfFormat> {
    Some(match ty {
        Ty::F16 | Ty::F16x2 => F16,
        Ty::Bf16 | Ty::Bf16x2 => BF16,
        Ty::Tf32 => TF32,
        Ty::E4m3 | Ty::E4m3x2 => E4M3,
        Ty::E5m2 | Ty::E5m2x2 => E5M2,
        _ => return None,
    })
}

fn is_float(ty: Ty) -> bool {
    matches!(ty, Ty::F32 | Ty::F64) || format(ty).is_some()
}

fn int(ty: Ty) -> IntFormat {
    IntFormat {
        bits: bits(ty),
        signed: is_signed(ty),
    }
}

/// The value of a floating-point operand; exact.
fn value(ty: Ty, raw: u64, ftz: bool) -> f64 {
    match ty {
        Ty::F32 => f64::from(float::flush_if(ftz, f32::from_bits(raw as u32))),
        Ty::F64 => f64::from_bits(raw),
        Ty::Bf16 => f64::from(half::bf16_value(raw as u16)),
        _ => half::f16_value(raw as u16),
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    (i.op == Op::Cvt).then(|| cvt(l, i, m))
}

fn cvt(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if m.has(Word::Pack) {
        return pack_sat(l, i, m);
    }
    let (to, from) = (m.ty(0)?, m.ty(1)?);
    if matches!(to, Ty::E4m3x2 | Ty::E5m2x2)
        || matches!(from, Ty::E4m3x2 | Ty::E5m2x2)
        || i.operands.len() == 3
    {
        return pairs(l, i, m, to, from);
    }
    match (is_float(to), is_float(from)) {
        (false, false) => int_int(l, i, m, to, from),
        (true, false) => int_float(l, i, m, to, from),
        (false, true) => float_int(l, i, m, to, from),
        (true, true) => float_float(l, i, m, to, from),
    }
}

fn int_like(ty: Ty) -> bool {
    matches!(
        ty,
        Ty::U8
            | Ty::S8
            | Ty::U16
            | Ty::S16
            | Ty::U32
            | Ty::S32
            | Ty::U64
            | Ty::S64
            | Ty::B8
            | Ty::B16
            | Ty::B32
            | Ty::B64
    )
}

/// A sign-extended value as a register of type `reg` holds it: cut to 16 or 8 bits, no more than
/// 64.
fn in_register(value: u64, reg: Ty) -> u64 {
    match bits(reg) {
        8 => value & 0xff,
        16 => value & 0xffff,
        32 => value & 0xffff_ffff,
        _ => value,
    }
}

fn int_int(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, to: Ty, from: Ty) -> Lowered<()> {
    if !int_like(to) || !int_like(from) {
        return Err(LowerError::Unsupported);
    }
    let a = l.src(&i.operands[1], from)?;
    let (v, reg) = l.dst_reg(&i.operands[0], to)?;
    let d = Opd::Def(v);
    if m.has(Word::Sat) {
        let none = (Opd::None, false);
        l.lane_fn(
            (d, rows(reg) == 2),
            (a, rows(from) == 2),
            none,
            none,
            move |x, _, _| in_register(int_to_int(int(to), int(from), x, true), reg),
        );
        return Ok(());
    }
    // Without saturation: cut to the narrower of the two, then extend by the sign of that.
    let narrow = if bits(to) <= bits(from) { to } else { from };
    let none = Opd::None;
    match (bits(narrow), is_signed(narrow), rows(reg), bits(reg)) {
        (64, ..) => {
            basics::copy(l, d, a, 2);
        }
        (32, s, 2, _) => {
            let a = if rows(from) == 2 {
                l.resize(a, 2, 1, false)
            } else {
                a
            };
            l.emit(
                if s {
                    basics::widen_signed()
                } else {
                    basics::widen()
                },
                d,
                a,
                none,
                none,
            );
        }
        (32, _, _, _) => {
            let h = if rows(from) == 2 {
                basics::narrow()
            } else {
                basics::copy32()
            };
            l.emit(h, d, a, none, none);
        }
        (n @ (8 | 16), s, r, b) => {
            let a = if rows(from) == 2 {
                l.resize(a, 2, 1, false)
            } else {
                a
            };
            let h = match (n, s, b) {
                (8, true, 16) => handlers::<Sext8To16>(),
                (8, true, 8) | (8, false, _) => handlers::<Zext8>(),
                (8, true, _) => handlers::<Sext8>(),
                (_, true, 32 | 64) => handlers::<Sext16>(),
                _ => handlers::<Zext16>(),
            };
            if r == 2 {
                let t = l.temp_rows(1);
                l.prepare(h, Opd::Def(t), a, none, none);
                l.emit(
                    if s {
                        basics::widen_signed()
                    } else {
                        basics::widen()
                    },
                    d,
                    Opd::Use(t),
                    none,
                    none,
                );
            } else {
                l.emit(h, d, a, none, none);
            }
        }
        _ => return Err(LowerError::Unsupported),
    }
    Ok(())
}

fn int_float(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = round_of(m);
    let a = l.src(&i.operands[1], from)?;
    let (d, wide) = l.dst_wide(&i.operands[0], to)?;
    let h = match (to, from, round) {
        (Ty::F32, Ty::S32, RoundMode::Nearest) => Some(handlers::<F32FromS32>()),
        (Ty::F32, Ty::U32, RoundMode::Nearest) => Some(handlers::<F32FromU32>()),
        (Ty::F32, Ty::S64, RoundMode::Nearest) => Some(handlers::<F32FromS64>()),
        (Ty::F32, Ty::U64, RoundMode::Nearest) => Some(handlers::<F32FromU64>()),
        (Ty::F32, Ty::U16, _) => Some(handlers::<F32FromU16>()),
        (Ty::F32, Ty::S16, _) => Some(handlers::<F32FromS16>()),
        (Ty::F32, Ty::U8, _) => Some(handlers::<F32FromU8>()),
        (Ty::F32, Ty::S8, _) => Some(handlers::<F32FromS8>()),
        (Ty::F64, Ty::S32, _) => Some(handlers::<F64FromS32>()),
        (Ty::F64, Ty::U32, _) => Some(handlers::<F64FromU32>()),
        (Ty::F64, Ty::S64, RoundMode::Nearest) => Some(handlers::<F64FromS64>()),
        (Ty::F64, Ty::U64, RoundMode::Nearest) => Some(handlers::<F64FromU64>()),
        _ => None,
    };
    if let Some(h) = h {
        l.emit(h, d, a, Opd::None, Opd::None);
    } else {
        let f = format(to);
        let none = (Opd::None, false);
        l.lane_fn(
            (d, rows(to) == 2),
            (a, rows(from) == 2),
            none,
            none,
            move |x, _, _| match (to, f) {
                (Ty::F32, _) => u64::from(int_to_f32(int(from), x, round).to_bits()),
                (_, Some(f)) => u64::from(int_to_half(f, int(from), x, round)),
                _ => int_to_f64(int(from), x, round).to_bits(),
            },
        );
    }
    after(l, i, m, to)?;
    l.finish(wide, false);
    Ok(())
}

/// `.sat` of a float destination.
fn after(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, to: Ty) -> Lowered<()> {
    if m.has(Word::Sat) {
        let (v, _) = l.dst_reg(&i.operands[0], to)?;
        let h = match to {
            Ty::F32 => saturate32(),
            Ty::F64 => saturate64(),
            _ => return Err(LowerError::Unsupported),
        };
        l.emit(h, Opd::Both(v), Opd::Use(v), Opd::None, Opd::None);
    }
    Ok(())
}

fn float_int(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = round_of(m);
    let ftz = m.has(Word::Ftz) && from == Ty::F32;
    let a = l.src(&i.operands[1], from)?;
    let (v, reg) = l.dst_reg(&i.operands[0], to)?;
    let d = Opd::Def(v);
    let h = match (to, from, round) {
        (Ty::S32, Ty::F32, RoundMode::Zero) => Some(handlers::<S32FromF32Zero>()),
        (Ty::U32, Ty::F32, RoundMode::Zero) => Some(handlers::<U32FromF32Zero>()),
        (Ty::S64, Ty::F32, RoundMode::Zero) => Some(handlers::<S64FromF32Zero>()),
        (Ty::S32, Ty::F64, RoundMode::Zero) => Some(handlers::<S32FromF64Zero>()),
        (Ty::S64, Ty::F64, RoundMode::Zero) => Some(handlers::<S64FromF64Zero>()),
        _ => None,
    };
    if let Some(h) = h
        && bits(reg) == bits(to)
        && !ftz
    {
        l.emit(h, d, a, Opd::None, Opd::None);
        return Ok(());
    }
    let none = (Opd::None, false);
    l.lane_fn(
        (d, rows(reg) == 2),
        (a, rows(from) == 2),
        none,
        none,
        move |x, _, _| {
            in_register(
                float_to_int(int(to), value(from, x, ftz), round, bits(from)),
                reg,
            )
        },
    );
    Ok(())
}

fn float_float(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = round_of(m);
    let ftz = m.has(Word::Ftz);
    let integral_word = m.any(&[Word::Rni, Word::Rzi, Word::Rmi, Word::Rpi]);
    let (sat, relu) = (m.has(Word::Sat), m.has(Word::Relu));
    let a = l.src(&i.operands[1], from)?;
    let (d, wide) = l.dst_wide(&i.operands[0], to)?;
    let simple = !ftz && !relu && !m.has(Word::Satfinite);
    let h = match (to, from, integral_word) {
        (Ty::F32, Ty::F32, Some(w)) => Some(match w {
            Word::Rni => handlers::<RintF32>(),
            Word::Rzi => handlers::<TruncF32>(),
            Word::Rmi => handlers::<FloorF32>(),
            _ => handlers::<CeilF32>(),
        }),
        (Ty::F64, Ty::F64, Some(w)) => Some(match w {
            Word::Rni => handlers::<RintF64>(),
            Word::Rzi => handlers::<TruncF64>(),
            Word::Rmi => handlers::<FloorF64>(),
            _ => handlers::<CeilF64>(),
        }),
        (Ty::F64, Ty::F32, None) => Some(handlers::<F64FromF32>()),
        (Ty::F32, Ty::F64, None) if round == RoundMode::Nearest => Some(handlers::<F32FromF64>()),
        (Ty::F32, Ty::F16, None) => Some(handlers::<F32FromF16>()),
        (Ty::F16, Ty::F32, None) if round == RoundMode::Nearest => Some(handlers::<F16FromF32>()),
        (Ty::F32, Ty::Bf16, None) => Some(handlers::<F32FromBf16>()),
        (Ty::Bf16, Ty::F32, None) if round == RoundMode::Nearest => Some(handlers::<Bf16FromF32>()),
        _ => None,
    };
    if let Some(h) = h
        && simple
        && !(sat && matches!(to, Ty::F16 | Ty::Bf16))
    {
        l.emit(h, d, a, Opd::None, Opd::None);
        after(l, i, m, to)?;
        l.finish(wide, false);
        return Ok(());
    }
    let f = format(to);
    if from == Ty::Tf32 {
        return Err(LowerError::Unsupported);
    }
    let overflow = if m.has(Word::Satfinite) {
        Overflow::Finite
    } else {
        Overflow::Ieee
    };
    let none = (Opd::None, false);
    l.lane_fn(
        (d, rows(to) == 2),
        (a, rows(from) == 2),
        none,
        none,
        move |x, _, _| {
            // Narrower results see subnormal operands, whatever `.ftz` says.
            let flushed = ftz && matches!(to, Ty::F32 | Ty::F64);
            let mut v = value(from, x, flushed);
            if integral_word.is_some() {
                v = integral(v, round);
            }
            let r = match (to, f) {
                (Ty::F64, _) if from == Ty::F16 => half::f16_to_f64(x as u16).to_bits(),
                (Ty::F64, _) if from == Ty::F32 && v.is_nan() => {
                    float::f32_to_f64(float::canonical(v as f32)).to_bits()
                }
                (Ty::F64, _) => v.to_bits(),
                (Ty::F32, _) => {
                    let y = if from == Ty::F64 {
                        float::f64_to_f32(v, round)
                    } else {
                        half::to_f32(v)
                    };
                    u64::from(float::flush_if(ftz, y).to_bits())
                }
                (Ty::F16, _) if from == Ty::F64 => u64::from(half::f16_from_f64(v, round)),
                (_, Some(f)) if from == Ty::F32 => {
                    // The operand itself where it is not rounded: a NaN keeps its bits.
                    let y = if integral_word.is_some() {
                        v as f32
                    } else {
                        f32::from_bits(x as u32)
                    };
                    u64::from(half::from_f32(f, y, round, relu, overflow))
                }
                (_, Some(f)) => u64::from(f.round(v, round, overflow)),
                _ => 0,
            };
            if !sat {
                return r;
            }
            match (to, f) {
                (Ty::F32, _) => u64::from(float::saturate(f32::from_bits(r as u32)).to_bits()),
                (_, Some(f)) if f.value(r as u32) > 1.0 => {
                    u64::from(f.round(1.0, RoundMode::Nearest, overflow))
                }
                (_, Some(f)) if f.value(r as u32) > 0.0 => r,
                (Ty::F64, _) => float::saturate_f64(f64::from_bits(r)).to_bits(),
                _ => 0,
            }
        },
    );
    l.finish(wide, false);
    Ok(())
}

/// Two values into or out of one register: `cvt.rn.f16x2.f32 d, a, b` and the 8-bit pairs.
fn pairs(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = round_of(m);
    let relu = m.has(Word::Relu);
    let overflow = if m.has(Word::Satfinite) {
        Overflow::Finite
    } else {
        Overflow::Ieee
    };
    let Some(f) = format(to) else {
        return Err(LowerError::Unsupported);
    };
    let tiny = |ty| matches!(ty, Ty::E4m3x2 | Ty::E5m2x2);
    let none = (Opd::None, false);
    match i.operands.as_slice() {
        // The first source goes to the upper part.
        [d, a, b] if from == Ty::F32 => {
            let (a, b) = (l.src(a, from)?, l.src(b, from)?);
            let (d, wide) = l.dst_wide(d, to)?;
            l.lane_fn((d, false), (a, false), (b, false), none, move |a, b, _| {
                let one = |x: u64| {
                    let x = f32::from_bits(x as u32);
                    if tiny(to) {
                        u64::from(half::to_fp8(f, f64::from(x), relu))
                    } else {
                        u64::from(half::from_f32(f, x, round, relu, overflow))
                    }
                };
                (one(a) << if tiny(to) { 8 } else { 16 }) | one(b)
            });
            l.finish(wide, false);
        }
        [d, a] if tiny(to) && from == Ty::F16x2 => {
            let a = l.src(a, from)?;
            let (d, wide) = l.dst_wide(d, to)?;
            l.lane_fn((d, false), (a, false), none, none, move |a, _, _| {
                let one = |x: u64| u64::from(half::to_fp8(f, half::f16_value(x as u16), relu));
                one(a) | (one(a >> 16) << 8)
            });
            l.finish(wide, false);
        }
        [d, a] if tiny(from) && to == Ty::F16x2 => {
            let Some(g) = format(from) else {
                return Err(LowerError::Unsupported);
            };
            let a = l.src(a, from)?;
            let (d, wide) = l.dst_wide(d, to)?;
            l.lane_fn((d, false), (a, false), none, none, move |a, _, _| {
                let one = |x: u64| u64::from(half::fp8_to_f16(g, x as u8, relu));
                one(a) | (one(a >> 8) << 16)
            });
            l.finish(wide, false);
        }
        _ => return Err(LowerError::Unsupported),
    }
    Ok(())
}

/// `cvt.pack.sat.u8.s32.b32 d, a, b, c`.
fn pack_sat(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let (to, from) = (m.ty(0)?, m.ty(1)?);
    let n = bits(to);
    let [d, a, b, rest @ ..] = i.operands.as_slice() else {
        return bad("too few operands");
    };
    let (a, b) = (l.src(a, from)?, l.src(b, from)?);
    let c = match rest.first() {
        Some(c) => l.src(c, Ty::B32)?,
        None => l.c32(0),
    };
    let d = l.dst(d, Ty::B32)?;
    l.lane_fn(
        (d, false),
        (a, false),
        (b, false),
        (c, false),
        move |a, b, c| {
            let one = |x| int_to_int(int(to), int(from), x, true) & ((1 << n) - 1);
            let pair = (one(a) << n) | one(b);
            if n == 16 {
                pair
            } else {
                pair | (c << (2 * n)) & 0xffff_ffff
            }
        },
    );
    Ok(())
}

/// Sign extension of a loaded value to its register.
pub(crate) fn sign_extend(l: &mut Lower<'_, '_>, d: Opd, a: Opd, from: Ty, reg: Ty) {
    let h = match (bits(from), bits(reg)) {
        (8, 16) => handlers::<Sext8To16>(),
        (8, 8) => handlers::<Zext8>(),
        (8, _) => handlers::<Sext8>(),
        (16, 16) => handlers::<Zext16>(),
        _ => handlers::<Sext16>(),
    };
    l.emit(h, d, a, Opd::None, Opd::None);
}
