//! The video instructions: one, two or four small integers in a register.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::lower::{Lower, LowerError, Lowered, ModList, bad};
use super::width::is_signed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    Average,
    Set(usize),
}

fn what(op: Op, m: &ModList<'_>) -> Option<(VideoOp, u32)> {
    let set = || {
        m.words()
            .find_map(|w| super::compare::kind(w, false))
            .map(VideoOp::Set)
    };
    Some(match op {
        Op::Vadd2 => (VideoOp::Add, 2),
        Op::Vadd4 => (VideoOp::Add, 4),
        Op::Vsub2 => (VideoOp::Sub, 2),
        Op::Vsub4 => (VideoOp::Sub, 4),
        Op::Vabsdiff2 => (VideoOp::AbsDiff, 2),
        Op::Vabsdiff4 => (VideoOp::AbsDiff, 4),
        Op::Vmin2 => (VideoOp::Min, 2),
        Op::Vmin4 => (VideoOp::Min, 4),
        Op::Vmax2 => (VideoOp::Max, 2),
        Op::Vmax4 => (VideoOp::Max, 4),
        Op::Vavrg2 => (VideoOp::Average, 2),
        Op::Vavrg4 => (VideoOp::Average, 4),
        Op::Vset2 => (set()?, 2),
        Op::Vset4 => (set()?, 4),
        _ => return None,
    })
}

fn field(v: u64, n: u32, width: u32, signed: bool) -> i64 {
    let x = (v >> (n * width)) & ((1 << width) - 1);
    if signed {
        ((x << (64 - width)) as i64) >> (64 - width)
    } else {
        x as i64
    }
}

/// The part of a register that an operand such as `a.b1` or `a.h0` takes, as (shift, width).
fn part(l: &Lower<'_, '_>, operand: &Ast) -> Lowered<(Ast, u32, u32)> {
    let Ast::Select(name, selector) = operand else {
        return Ok((operand.clone(), 0, 32));
    };
    let (shift, width) = match l.name(*selector) {
        "h0" => (0, 16),
        "h1" => (16, 16),
        "b0" => (0, 8),
        "b1" => (8, 8),
        "b2" => (16, 8),
        "b3" => (24, 8),
        _ => return Err(LowerError::Unsupported),
    };
    Ok((Ast::Name(*name), shift, width))
}

/// `vadd`, `vsub`, `vabsdiff`, `vmin`, `vmax`, `vset`: one operation on 32 bits or a part of them,
/// with an optional second one (`.add`, `.min`, `.max`) that takes the third source.
fn single(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let what = match i.op {
        Op::Vadd => VideoOp::Add,
        Op::Vsub => VideoOp::Sub,
        Op::Vabsdiff => VideoOp::AbsDiff,
        Op::Vmin => VideoOp::Min,
        Op::Vmax => VideoOp::Max,
        _ => return Err(LowerError::Unsupported),
    };
    let types: Vec<Ty> = m.types().collect();
    let [d, a, b] = types.as_slice() else {
        return Err(LowerError::Unsupported);
    };
    let (sd, sa, sb) = (is_signed(*d), is_signed(*a), is_signed(*b));
    let sat = m.has(Word::Sat);
    let second = m.any(&[Word::Add, Word::Min, Word::Max]);
    let (od, oa, ob, oc) = match i.operands.as_slice() {
        [d, a, b] if second.is_none() => (d, a, b, None),
        [d, a, b, c] if second.is_some() => (d, a, b, Some(c)),
        _ => return Err(LowerError::Unsupported),
    };
    let ((oa, shift_a, width_a), (ob, shift_b, width_b)) = (part(l, oa)?, part(l, ob)?);
    let (a, b) = (l.src(&oa, Ty::B32)?, l.src(&ob, Ty::B32)?);
    let c = match oc {
        Some(c) => l.src(c, Ty::B32)?,
        None => l.c32(0),
    };
    let d = l.dst(od, Ty::B32)?;
    l.lane_fn(
        (d, false),
        (a, false),
        (b, false),
        (c, false),
        move |a, b, c| {
            let (x, y) = (
                field(a >> shift_a, 0, width_a, sa),
                field(b >> shift_b, 0, width_b, sb),
            );
            let v = what.of(x, y);
            let (lo, hi) = if sd {
                (i64::from(i32::MIN), i64::from(i32::MAX))
            } else {
                (0, i64::from(u32::MAX))
            };
            let v = (if sat { v.clamp(lo, hi) } else { v }) as u32;
            let c = c as u32;
            let ordered = |x: u32| {
                if sd {
                    i64::from(x as i32)
                } else {
                    i64::from(x)
                }
            };
            u64::from(match second {
                Some(Word::Add) => v.wrapping_add(c),
                Some(Word::Min) => {
                    if ordered(c) < ordered(v) {
                        c
                    } else {
                        v
                    }
                }
                Some(_) => {
                    if ordered(c) > ordered(v) {
                        c
                    } else {
                        v
                    }
                }
                None => v,
            })
        },
    );
    Ok(())
}

impl VideoOp {
    fn of(self, x: i64, y: i64) -> i64 {
        match self {
            VideoOp::Add => x + y,
            VideoOp::Sub => x - y,
            VideoOp::AbsDiff => (x - y).abs(),
            VideoOp::Min => x.min(y),
            VideoOp::Max => x.max(y),
            // Halves away from zero.
            VideoOp::Average => (x + y + (x + y).signum()) / 2,
            VideoOp::Set(kind) => i64::from(match kind {
                0 => x == y,
                9 => x != y,
                2 => x < y,
                3 => x <= y,
                4 => x > y,
                _ => x >= y,
            }),
        }
    }
}

/// Two or four at once, without selectors or masks: what `__vadd4` and its kin become.
pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let Some((what, n)) = what(i.op, m) else {
        return single(l, i, m);
    };
    let types: Vec<Ty> = m.types().collect();
    let (d, a, b) = match types.as_slice() {
        [d, a, b] => (d, a, b),
        [a, b] if matches!(what, VideoOp::Set(_)) => (&Ty::U32, a, b),
        _ => return Err(LowerError::Unsupported),
    };
    let (sd, sa, sb) = (is_signed(*d), is_signed(*a), is_signed(*b));
    let (sat, add) = (m.has(Word::Sat), m.has(Word::Add));
    let [od, oa, ob, oc] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    if matches!(od, Ast::Member(..))
        || matches!(oa, Ast::Member(..))
        || matches!(ob, Ast::Member(..))
    {
        return Err(LowerError::Unsupported);
    }
    let (a, b, c) = (
        l.src(oa, Ty::B32)?,
        l.src(ob, Ty::B32)?,
        l.src(oc, Ty::B32)?,
    );
    let d = l.dst(od, Ty::B32)?;
    let width = 32 / n;
    l.lane_fn(
        (d, false),
        (a, false),
        (b, false),
        (c, false),
        move |a, b, c| {
            let (lo, hi) = if sd {
                (-(1i64 << (width - 1)), (1i64 << (width - 1)) - 1)
            } else {
                (0, (1i64 << width) - 1)
            };
            let mut out = 0u64;
            let mut sum = c as u32;
            for k in 0..n {
                let (x, y) = (field(a, k, width, sa), field(b, k, width, sb));
                let v = what.of(x, y);
                let v = if sat { v.clamp(lo, hi) } else { v };
                sum = sum.wrapping_add(v as u32);
                out |= (v as u64 & ((1 << width) - 1)) << (k * width);
            }
            if add { u64::from(sum) } else { out }
        },
    );
    Ok(())
}
