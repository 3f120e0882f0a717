//! Warp-level instructions: shuffle, vote, match, reduce, elect, and dispatch of the matrix ones.
//!
//! Invariant: each begins a block that starts only when the lanes of its member mask are together
//! ([`super::warp`]), so here all lanes that matter are active.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::checks;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_any, handlers_plain};
use super::lower::{Ext, Lower, LowerError, Lowered, ModList, Opd, PredRef, bad};
use super::registers::{LANES, PredOperand, RowOperand};
use super::rendezvous::together;
use super::width::bits;

/// The flag of a shuffle whose result is used whatever it is, with checks.
const USED: u64 = 1 << 40;

/// `d[l] = a[source(l)]`; `imm_lo` the predicate "in range". With `USED` a lane that reads one that
/// is not there is reported.
struct Shfl<const MODE: u8>;
impl<const MODE: u8> Exec for Shfl<MODE> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let a = ctx.rows.row::<u32>(i.a);
        let b = ctx.rows.row::<u32>(i.b);
        let c = ctx.rows.row::<u32>(i.c);
        let mut out = [0u32; LANES];
        let mut ok = 0u32;
        let mut from = [0u8; LANES];
        for l in 0..LANES as u32 {
            let (bval, cval, seg) = (
                b[l as usize] & 31,
                c[l as usize] & 31,
                (c[l as usize] >> 8) & 31,
            );
            let max = (l & seg) | (cval & !seg);
            let min = l & seg;
            let (j, inside) = match MODE {
                0 => (l.wrapping_sub(bval), l as i32 - bval as i32 >= max as i32),
                1 => (l + bval, l + bval <= max),
                2 => (l ^ bval, (l ^ bval) <= max),
                _ => (min | (bval & !seg), (min | (bval & !seg)) <= max),
            };
            let j = if inside { j } else { l };
            ok |= u32::from(inside) << l;
            out[l as usize] = a[(j & 31) as usize];
            from[l as usize] = j as u8 & 31;
        }
        let mask = ctx.mask;
        if i.imm & USED != 0 {
            shuffled(ctx, i, &from);
        }
        ctx.rows.set_row(i.d, &out, mask);
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), ok, mask);
    }
}

/// Reports a lane that reads one that is not there, or not in its mask, which is in `ext`.
#[cold]
fn shuffled(ctx: &mut Ctx<'_>, i: &DecodedInst, from: &[u8; LANES]) {
    let members = RowOperand::from_bits(ctx.code.ext[i.x as usize]);
    let members = ctx.rows.row::<u32>(members);
    let active = ctx.mask;
    for l in (0..LANES).filter(|&l| active >> l & 1 != 0) {
        let (source, mask) = (u32::from(from[l]), members[l]);
        if (mask & active) >> source & 1 == 0 && mask >> l & 1 != 0 {
            checks::absent(ctx, i, l as u32, source, mask);
            return;
        }
    }
}

/// `vote`: `x` the predicate; ballots go to `d`, the rest to predicate `imm_lo`; `b` the member
/// mask.
struct Vote<const MODE: u8>;
impl<const MODE: u8> Exec for Vote<MODE> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let p = ctx.rows.pred(PredOperand::from_bits(i.x));
        let member = ctx.rows.row::<u32>(i.b);
        let mask = ctx.mask;
        if MODE == 0 {
            let row = member.map(|m| p & m & mask);
            ctx.rows.set_row(i.d, &row, mask);
            return;
        }
        let mut out = 0;
        for (l, m) in member.iter().enumerate() {
            let (yes, all) = (p & m & mask, m & mask);
            let v = match MODE {
                1 => yes == all,
                2 => yes != 0,
                _ => yes == all || yes == 0,
            };
            out |= u32::from(v) << l;
        }
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), out, mask);
    }
}

struct Activemask;
impl Exec for Activemask {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let mask = ctx.mask;
        ctx.rows.set_row(i.d, &[mask; LANES], mask);
    }
}

/// `match.any` and `match.all`.
struct WarpMatch<const WIDE: bool, const ALL_OF: bool>;
impl<const WIDE: bool, const ALL_OF: bool> Exec for WarpMatch<WIDE, ALL_OF> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let value: [u64; LANES] = if WIDE {
            ctx.rows.row::<u64>(i.a)
        } else {
            ctx.rows.row::<u32>(i.a).map(u64::from)
        };
        let member = ctx.rows.row::<u32>(i.b);
        let mask = ctx.mask;
        let mut row = [0; LANES];
        let mut all = 0;
        for l in 0..LANES {
            let peers = member[l] & mask;
            let same = (0..LANES)
                .filter(|&k| peers >> k & 1 != 0 && value[k] == value[l])
                .fold(0, |m, k| m | 1u32 << k);
            if ALL_OF {
                if same == peers {
                    row[l] = peers;
                    all |= 1 << l;
                }
            } else {
                row[l] = same;
            }
        }
        ctx.rows.set_row(i.d, &row, mask);
        if ALL_OF {
            ctx.rows
                .set_pred(PredOperand::from_bits(i.imm as u32), all, mask);
        }
    }
}

/// `redux.sync`: `x` 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor; 8 more: signed; 16 more: f32, 32 NaN,
/// 64 abs.
struct Redux;
impl Exec for Redux {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let a = ctx.rows.row::<u32>(i.a);
        let member = ctx.rows.row::<u32>(i.b);
        let mask = ctx.mask;
        let mut row = [0u32; LANES];
        for l in 0..LANES {
            let peers = member[l] & mask;
            let values = (0..LANES).filter(|&k| peers >> k & 1 != 0).map(|k| a[k]);
            let r = if i.x & 16 != 0 {
                float_redux(values, i.x)
            } else {
                values.reduce(|x, y| match i.x {
                    0 | 8 => x.wrapping_add(y),
                    1 => x.min(y),
                    2 => x.max(y),
                    9 => (x as i32).min(y as i32) as u32,
                    10 => (x as i32).max(y as i32) as u32,
                    3 | 11 => x & y,
                    4 | 12 => x | y,
                    _ => x ^ y,
                })
            };
            row[l] = r.unwrap_or(0);
        }
        ctx.rows.set_row(i.d, &row, mask);
    }
}

fn float_redux(values: impl Iterator<Item = u32>, x: u32) -> Option<u32> {
    let v = values.map(|v| f32::from_bits(if x & 64 != 0 { v & 0x7fff_ffff } else { v }));
    v.reduce(|a, b| {
        if x & 32 != 0 && (a.is_nan() || b.is_nan()) {
            return f32::from_bits(0x7fff_ffff);
        }
        let first = (x & 7 == 1) == (a < b || a == b && a.is_sign_negative());
        if !a.is_nan() && (b.is_nan() || first) {
            a
        } else {
            b
        }
    })
    .map(f32::to_bits)
}

/// `elect.sync`: the lowest lane of the mask.
struct Elect;
impl Exec for Elect {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let member = ctx.rows.row::<u32>(i.b);
        let mask = ctx.mask;
        let row = member.map(|m| (m & mask).trailing_zeros() & 31);
        let out = (0..LANES)
            .filter(|&l| row[l] == l as u32)
            .fold(0, |m, l| m | 1u32 << l);
        ctx.rows.set_row(i.d, &row, mask);
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), out, mask);
    }
}

fn pair(o: &Ast) -> (Ast, Option<Ast>) {
    match o {
        Ast::Pair(a, b) => ((**a).clone(), Some((**b).clone())),
        o => (o.clone(), None),
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Shfl => shfl(l, i, m),
        Op::Vote => vote(l, i, m),
        Op::Activemask => (|| {
            let d = l.dst(&i.operands[0], Ty::B32)?;
            l.emit(
                handlers_plain::<Activemask>(),
                d,
                Opd::None,
                Opd::None,
                Opd::None,
            );
            Ok(())
        })(),
        Op::Match => matches(l, i, m),
        Op::Redux => redux(l, i, m),
        Op::Elect => (|| {
            let mask = l.src(&i.operands[1], Ty::B32)?;
            together(l, mask);
            let (d, p) = pair(&i.operands[0]);
            let p = match p {
                Some(p) => l.pred_dst(&p)?,
                None => PredRef::Def(l.temp_pred()),
            };
            let d = l.dst(&d, Ty::B32)?;
            l.emit(handlers_plain::<Elect>(), d, Opd::None, mask, Opd::None)
                .imm_lo = Some(p);
            Ok(())
        })(),
        Op::Mma | Op::Ldmatrix | Op::Stmatrix | Op::Movmatrix => super::matrix::lower(l, i, m),
        Op::Wmma => super::wmma::lower(l, i, m),
        Op::Wgmma => return super::wgmma::lower(l, i, m),
        _ => return None,
    })
}

fn shfl(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let (d, p) = pair(&i.operands[0]);
    let [_, a, b, c, rest @ ..] = i.operands.as_slice() else {
        return bad("too few operands");
    };
    let (a, b, c) = (l.src(a, Ty::B32)?, l.src(b, Ty::B32)?, l.src(c, Ty::B32)?);
    let mask = match rest.first() {
        Some(o) => l.src(o, Ty::B32)?,
        None => l.c32(u32::MAX),
    };
    together(l, mask);
    let h = match m.any(&[Word::Up, Word::Down, Word::Bfly, Word::Idx]) {
        Some(Word::Up) => handlers_any::<Shfl<0>>(),
        Some(Word::Down) => handlers_any::<Shfl<1>>(),
        Some(Word::Bfly) => handlers_any::<Shfl<2>>(),
        Some(_) => handlers_any::<Shfl<3>>(),
        None => return Err(LowerError::Unsupported),
    };
    let p = match p {
        Some(p) => l.pred_dst(&p)?,
        None => PredRef::True,
    };
    let d = l.dst(&d, Ty::B32)?;
    let used = l.k.checks && l.result_is_used(i.line);
    let x = l.emit(h, d, a, b, c);
    x.imm_lo = Some(p);
    if used {
        x.imm = USED;
        x.ext = vec![Ext::Row(mask)];
    }
    Ok(())
}

fn vote(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let p = l.pred(&i.operands[1])?;
    let mask = match i.operands.get(2) {
        Some(o) => l.src(o, Ty::B32)?,
        None => l.c32(u32::MAX),
    };
    together(l, mask);
    let none = Opd::None;
    match m.any(&[Word::Ballot, Word::All, Word::Any, Word::Uni]) {
        Some(Word::Ballot) => {
            let d = l.dst(&i.operands[0], Ty::B32)?;
            l.emit(handlers_plain::<Vote<0>>(), d, none, mask, none)
                .x_pred = Some(p);
        }
        Some(w) => {
            let h = match w {
                Word::All => handlers_plain::<Vote<1>>(),
                Word::Any => handlers_plain::<Vote<2>>(),
                _ => handlers_plain::<Vote<3>>(),
            };
            let d = l.pred_dst(&i.operands[0])?;
            let x = l.emit(h, none, none, mask, none);
            x.x_pred = Some(p);
            x.imm_lo = Some(d);
        }
        None => return Err(LowerError::Unsupported),
    }
    Ok(())
}

fn matches(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let (d, p) = pair(&i.operands[0]);
    let (a, mask) = (l.src(&i.operands[1], ty)?, l.src(&i.operands[2], Ty::B32)?);
    together(l, mask);
    let p = match p {
        Some(p) => l.pred_dst(&p)?,
        None => PredRef::Def(l.temp_pred()),
    };
    let h = match (bits(ty) == 64, m.has(Word::All)) {
        (false, false) => handlers_plain::<WarpMatch<false, false>>(),
        (false, true) => handlers_plain::<WarpMatch<false, true>>(),
        (true, false) => handlers_plain::<WarpMatch<true, false>>(),
        (true, true) => handlers_plain::<WarpMatch<true, true>>(),
    };
    let d = l.dst(&d, Ty::B32)?;
    l.emit(h, d, a, mask, Opd::None).imm_lo = Some(p);
    Ok(())
}

fn redux(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let op = match m.any(&[
        Word::Add,
        Word::Min,
        Word::Max,
        Word::And,
        Word::Or,
        Word::Xor,
    ]) {
        Some(Word::Add) => 0,
        Some(Word::Min) => 1,
        Some(Word::Max) => 2,
        Some(Word::And) => 3,
        Some(Word::Or) => 4,
        Some(_) => 5,
        None => return Err(LowerError::Unsupported),
    };
    let x = op
        | match ty {
            Ty::S32 => 8,
            Ty::F32 => {
                16 | if m.has(Word::PropagateNan) { 32 } else { 0 }
                    | if m.has(Word::Abs) { 64 } else { 0 }
            }
            _ => 0,
        };
    let (a, mask) = (
        l.src(&i.operands[1], Ty::B32)?,
        l.src(&i.operands[2], Ty::B32)?,
    );
    together(l, mask);
    let d = l.dst(&i.operands[0], Ty::B32)?;
    l.emit(handlers_plain::<Redux>(), d, a, mask, Opd::None).x = x;
    Ok(())
}
