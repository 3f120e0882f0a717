//! `cvt`: between all numeric types, with rounding, saturation and flushing.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::alu_float::{fz, saturate32, saturate64};
use super::data::{self, lane_ops};
use super::float::{
    BF16, E4M3, E5M2, F16, F32, F64, Format, Parts, Round, TF32, bf16_to_f32, f16_to_f32,
    f32_to_bf16, f32_to_f16,
};
use super::lanes::{handlers, map1};
use super::lower::{Lower, Lowered, Mods, Opd, Reason, bad, bits, is_signed, rows};

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
    F64FromF32 = map1(f32, f64) |a| f64::from(a);
    F32FromF64 = map1(f64, f32) |a| if a.is_nan() { f32::from_bits(0x7fff_ffff) } else { a as f32 };
    F32FromF16 = map1(u16, f32) |a| f16_to_f32(a);
    F16FromF32 = map1(f32, u16) |a| f32_to_f16(a);
    F32FromBf16 = map1(u16, f32) |a| bf16_to_f32(a);
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
    FloorF64 = map1(f64, f64) |a| a.floor();
    CeilF64 = map1(f64, f64) |a| a.ceil();
    TruncF64 = map1(f64, f64) |a| a.trunc();
    RintF64 = map1(f64, f64) |a| a.round_ties_even();
    Sext8 = map1(i8, i32) |a| i32::from(a);
    Zext8 = map1(u8, u32) |a| u32::from(a);
    Sext16 = map1(i16, i32) |a| i32::from(a);
    Zext16 = map1(u16, u32) |a| u32::from(a);
    Sext8To16 = map1(i8, i16) |a| i16::from(a);
}

pub(crate) fn format(ty: Ty) -> Option<Format> {
    Some(match ty {
        Ty::F16 | Ty::F16x2 => F16,
        Ty::Bf16 | Ty::Bf16x2 => BF16,
        Ty::F32 => F32,
        Ty::F64 => F64,
        Ty::Tf32 => TF32,
        Ty::E4m3 | Ty::E4m3x2 => E4M3,
        Ty::E5m2 | Ty::E5m2x2 => E5M2,
        _ => return None,
    })
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Option<Lowered<()>> {
    (i.op == Op::Cvt).then(|| cvt(l, i, m))
}

fn cvt(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    if m.has(Word::Pack16b) || m.types().count() > 2 {
        return pack_sat(l, i, m);
    }
    let (to, from) = (m.ty(0)?, m.ty(1)?);
    if matches!(to, Ty::E4m3x2 | Ty::E5m2x2)
        || matches!(from, Ty::E4m3x2 | Ty::E5m2x2)
        || i.operands.len() == 3
    {
        return pairs(l, i, m, to, from);
    }
    match (format(to), format(from)) {
        (None, None) => int_int(l, i, m, to, from),
        (Some(_), None) => int_float(l, i, m, to, from),
        (None, Some(_)) => float_int(l, i, m, to, from),
        (Some(_), Some(_)) => float_float(l, i, m, to, from),
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

fn range(ty: Ty) -> (i128, i128) {
    let n = bits(ty);
    if is_signed(ty) {
        (-(1i128 << (n - 1)), (1i128 << (n - 1)) - 1)
    } else {
        (0, (1i128 << n) - 1)
    }
}

fn int_value(x: u64, ty: Ty) -> i128 {
    let n = bits(ty);
    let x = x & (u64::MAX >> (64 - n));
    if is_signed(ty) {
        i128::from((x << (64 - n)) as i64 >> (64 - n))
    } else {
        i128::from(x)
    }
}

/// `value` of type `ty` as a register of type `reg` holds it: extended to 32 or 64 bits, cut to 16 or 8.
fn in_register(value: i128, reg: Ty) -> u64 {
    match bits(reg) {
        8 => value as u8 as u64,
        16 => value as u16 as u64,
        32 => value as u32 as u64,
        _ => value as u64,
    }
}

fn int_int(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, to: Ty, from: Ty) -> Lowered<()> {
    if !int_like(to) || !int_like(from) {
        return Err(Reason::Unsupported);
    }
    // The source register may be wider than its type.
    let wide_src = match &i.operands[1] {
        Ast::Imm(_) => from,
        _ => from,
    };
    let a = l.src(&i.operands[1], wide_src)?;
    let (v, reg) = l.dst_reg(&i.operands[0], to)?;
    let d = Opd::Def(v);
    if m.has(Word::Sat) {
        let (lo, hi) = range(to);
        l.lane_fn(
            (d, rows(reg) == 2),
            (a, rows(from) == 2),
            (Opd::None, false),
            (Opd::None, false),
            move |x, _, _| in_register(int_value(x, from).clamp(lo, hi), reg),
        );
        return Ok(());
    }
    // Without saturation: cut to the narrower of the two, then extend by the sign of that.
    let narrow = if bits(to) < bits(from) { to } else { from };
    let none = Opd::None;
    match (bits(narrow), is_signed(narrow), rows(reg), bits(reg)) {
        (64, ..) => {
            data::copy(l, d, a, 2);
        }
        (32, s, 2, _) => {
            let a = if rows(from) == 2 {
                l.resize(a, 2, 1, false)
            } else {
                a
            };
            l.emit(
                if s {
                    data::widen_signed()
                } else {
                    data::widen()
                },
                d,
                a,
                none,
                none,
            );
        }
        (32, _, _, _) => {
            let h = if rows(from) == 2 {
                data::narrow()
            } else {
                data::copy32()
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
                        data::widen_signed()
                    } else {
                        data::widen()
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
        _ => return Err(Reason::Unsupported),
    }
    Ok(())
}

fn rounding(m: &Mods<'_>) -> Round {
    match m.any(&[
        Word::Rn,
        Word::Rz,
        Word::Rm,
        Word::Rp,
        Word::Rna,
        Word::Rni,
        Word::Rzi,
        Word::Rmi,
        Word::Rpi,
    ]) {
        Some(Word::Rz | Word::Rzi) => Round::Zero,
        Some(Word::Rm | Word::Rmi) => Round::Down,
        Some(Word::Rp | Word::Rpi) => Round::Up,
        Some(Word::Rna) => Round::Away,
        _ => Round::Near,
    }
}

fn int_float(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = rounding(m);
    let a = l.src(&i.operands[1], from)?;
    let (d, wide) = l.dst_wide(&i.operands[0], to)?;
    let h = match (to, from, round) {
        (Ty::F32, Ty::S32, Round::Near) => Some(handlers::<F32FromS32>()),
        (Ty::F32, Ty::U32, Round::Near) => Some(handlers::<F32FromU32>()),
        (Ty::F32, Ty::S64, Round::Near) => Some(handlers::<F32FromS64>()),
        (Ty::F32, Ty::U64, Round::Near) => Some(handlers::<F32FromU64>()),
        (Ty::F32, Ty::U16, _) => Some(handlers::<F32FromU16>()),
        (Ty::F32, Ty::S16, _) => Some(handlers::<F32FromS16>()),
        (Ty::F32, Ty::U8, _) => Some(handlers::<F32FromU8>()),
        (Ty::F32, Ty::S8, _) => Some(handlers::<F32FromS8>()),
        (Ty::F64, Ty::S32, _) => Some(handlers::<F64FromS32>()),
        (Ty::F64, Ty::U32, _) => Some(handlers::<F64FromU32>()),
        (Ty::F64, Ty::S64, Round::Near) => Some(handlers::<F64FromS64>()),
        (Ty::F64, Ty::U64, Round::Near) => Some(handlers::<F64FromU64>()),
        _ => None,
    };
    if let Some(h) = h {
        l.emit(h, d, a, Opd::None, Opd::None);
    } else {
        let f = format(to).ok_or(Reason::Unsupported)?;
        let none = (Opd::None, false);
        l.lane_fn(
            (d, rows(to) == 2),
            (a, rows(from) == 2),
            none,
            none,
            move |x, _, _| {
                let v = int_value(x, from);
                f.pack(v < 0, v.unsigned_abs(), 0, false, round)
            },
        );
    }
    after(l, i, m, to)?;
    l.finish(wide, false);
    Ok(())
}

/// `.sat` of a float destination.
fn after(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, to: Ty) -> Lowered<()> {
    if m.has(Word::Sat) {
        let (v, _) = l.dst_reg(&i.operands[0], to)?;
        let h = match to {
            Ty::F32 => saturate32(),
            Ty::F64 => saturate64(),
            _ => return Err(Reason::Unsupported),
        };
        l.emit(h, Opd::Both(v), Opd::Use(v), Opd::None, Opd::None);
    }
    Ok(())
}

fn float_int(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = rounding(m);
    let ftz = m.has(Word::Ftz) && from == Ty::F32;
    let a = l.src(&i.operands[1], from)?;
    let (v, reg) = l.dst_reg(&i.operands[0], to)?;
    let d = Opd::Def(v);
    let h = match (to, from, round) {
        (Ty::S32, Ty::F32, Round::Zero) => Some(handlers::<S32FromF32Zero>()),
        (Ty::U32, Ty::F32, Round::Zero) => Some(handlers::<U32FromF32Zero>()),
        (Ty::S64, Ty::F32, Round::Zero) => Some(handlers::<S64FromF32Zero>()),
        (Ty::S32, Ty::F64, Round::Zero) => Some(handlers::<S32FromF64Zero>()),
        (Ty::S64, Ty::F64, Round::Zero) => Some(handlers::<S64FromF64Zero>()),
        _ => None,
    };
    if let Some(h) = h
        && bits(reg) == bits(to)
        && !ftz
    {
        l.emit(h, d, a, Opd::None, Opd::None);
        return Ok(());
    }
    let f = format(from).ok_or(Reason::Unsupported)?;
    let (lo, hi) = range(to);
    // What the hardware makes of NaN: zero, or the far end where 64 bits are on either side.
    let nan = if bits(to) == 64 || from == Ty::F64 {
        if is_signed(to) {
            lo
        } else {
            i128::from(1u64 << (bits(to) - 1))
        }
    } else {
        0
    };
    let none = (Opd::None, false);
    l.lane_fn(
        (d, rows(reg) == 2),
        (a, rows(from) == 2),
        none,
        none,
        move |x, _, _| {
            let x = if ftz {
                u64::from(fz(f32::from_bits(x as u32)).to_bits())
            } else {
                x
            };
            let v = match f.unpack(x) {
                Parts::Nan => nan,
                Parts::Inf(n) => {
                    if n {
                        lo
                    } else {
                        hi
                    }
                }
                Parts::Num(n, s, e) => to_int(n, s, e, round).clamp(lo, hi),
            };
            in_register(v, reg)
        },
    );
    Ok(())
}

/// Rounds `s * 2^e` to an integer, which saturates far beyond 64 bits.
fn to_int(negative: bool, s: u64, e: i32, round: Round) -> i128 {
    let sign = |m: i128| if negative { -m } else { m };
    if e >= 0 {
        return sign(if e > 62 && s != 0 {
            i128::from(u64::MAX) << 32
        } else {
            i128::from(s) << e.min(62)
        });
    }
    let drop = (-e) as u32;
    let (whole, half, rest) = if drop > 64 {
        (0, false, s != 0)
    } else if drop == 64 {
        (0, s >> 63 != 0, s << 1 != 0)
    } else {
        (
            s >> drop,
            (s >> (drop - 1)) & 1 != 0,
            s & ((1 << (drop - 1)) - 1) != 0,
        )
    };
    let up = match round {
        Round::Near => half && (rest || whole & 1 != 0),
        Round::Away => half,
        Round::Zero => false,
        Round::Up => (half || rest) && !negative,
        Round::Down => (half || rest) && negative,
    };
    sign(i128::from(whole) + i128::from(up))
}

fn float_float(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = rounding(m);
    let ftz = m.has(Word::Ftz);
    let integral = m.any(&[Word::Rni, Word::Rzi, Word::Rmi, Word::Rpi]);
    let (sat, relu) = (m.has(Word::Sat), m.has(Word::Relu));
    let a = l.src(&i.operands[1], from)?;
    let (d, wide) = l.dst_wide(&i.operands[0], to)?;
    let simple = !ftz && !relu && !m.has(Word::Satfinite);
    let h = match (to, from, integral) {
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
        (Ty::F32, Ty::F64, None) if round == Round::Near => Some(handlers::<F32FromF64>()),
        (Ty::F32, Ty::F16, None) => Some(handlers::<F32FromF16>()),
        (Ty::F16, Ty::F32, None) if round == Round::Near => Some(handlers::<F16FromF32>()),
        (Ty::F32, Ty::Bf16, None) => Some(handlers::<F32FromBf16>()),
        (Ty::Bf16, Ty::F32, None) if round == Round::Near => Some(handlers::<Bf16FromF32>()),
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
    let (f, g) = (
        format(to).ok_or(Reason::Unsupported)?,
        format(from).ok_or(Reason::Unsupported)?,
    );
    let satfinite = m.has(Word::Satfinite);
    let tf32 = to == Ty::Tf32;
    let none = (Opd::None, false);
    l.lane_fn(
        (d, rows(to) == 2),
        (a, rows(from) == 2),
        none,
        none,
        move |x, _, _| {
            let x = if ftz && from == Ty::F32 {
                u64::from(fz(f32::from_bits(x as u32)).to_bits())
            } else {
                x
            };
            let mut r = if integral.is_some() {
                match g.unpack(x) {
                    Parts::Num(n, s, e) if e < 0 => {
                        let v = to_int(n, s, e, round);
                        f.pack(n, v.unsigned_abs(), 0, false, Round::Near)
                    }
                    _ => f.convert(g, x, round, satfinite),
                }
            } else {
                f.convert(g, x, round, satfinite)
            };
            if tf32 {
                // 19 bits at the top of 32.
                r = if r == TF32.nan() {
                    0x7fff_ffff
                } else {
                    r << 13
                };
            }
            if ftz && to == Ty::F32 {
                r = u64::from(fz(f32::from_bits(r as u32)).to_bits());
            }
            let parts = if tf32 { f.unpack(r >> 13) } else { f.unpack(r) };
            if relu && matches!(parts, Parts::Num(true, ..) | Parts::Inf(true)) {
                r = 0;
            }
            if sat {
                let one = F32.convert(f, r, Round::Near, false);
                let v = f32::from_bits(one as u32);
                let v = if v > 0.0 { v.min(1.0) } else { 0.0 };
                if v == 0.0 || v == 1.0 {
                    r = f.convert(F32, u64::from(v.to_bits()), Round::Near, false);
                }
            }
            r
        },
    );
    l.finish(wide, false);
    Ok(())
}

/// Two values into or out of one register: `cvt.rn.f16x2.f32 d, a, b` and the 8-bit pairs.
fn pairs(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>, to: Ty, from: Ty) -> Lowered<()> {
    let round = rounding(m);
    let (relu, satfinite) = (m.has(Word::Relu), m.has(Word::Satfinite));
    let (Some(f), Some(g)) = (format(to), format(from)) else {
        return Err(Reason::Unsupported);
    };
    let convert = move |x: u64| {
        let r = f.convert(g, x, round, satfinite);
        if relu && matches!(f.unpack(r), Parts::Num(true, ..) | Parts::Inf(true)) {
            0
        } else {
            r
        }
    };
    let none = (Opd::None, false);
    let half = f.bits();
    match i.operands.as_slice() {
        // The first source goes to the upper half.
        [d, a, b] if from == Ty::F32 => {
            let (a, b) = (l.src(a, from)?, l.src(b, from)?);
            let (d, wide) = l.dst_wide(d, to)?;
            l.lane_fn((d, false), (a, false), (b, false), none, move |a, b, _| {
                (convert(a) << half) | convert(b)
            });
            l.finish(wide, false);
        }
        [d, a] => {
            let a = l.src(a, from)?;
            let (d, wide) = l.dst_wide(d, to)?;
            let n = g.bits();
            l.lane_fn((d, false), (a, false), none, none, move |a, _, _| {
                convert(a & ((1 << n) - 1)) | (convert((a >> n) & ((1 << n) - 1)) << half)
            });
            l.finish(wide, false);
        }
        _ => return bad("operands of this shape"),
    }
    Ok(())
}

/// `cvt.pack.sat.u8.s32.b32 d, a, b, c`.
fn pack_sat(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let (to, from) = (m.ty(0)?, m.ty(1)?);
    let (lo, hi) = range(to);
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
            let one = |x| int_value(x, from).clamp(lo, hi) as u64 & ((1 << n) - 1);
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
