//! The video instructions: one, two or four small integers in a register.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::lower::{Lower, Lowered, Mods, Reason, bad, is_signed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    Average,
    Set(u8),
}

fn what(op: Op, m: &Mods<'_>) -> Option<(What, u32)> {
    let set = || {
        m.words()
            .find_map(|w| super::alu_int::kind(w, false))
            .map(What::Set)
    };
    Some(match op {
        Op::Vadd2 => (What::Add, 2),
        Op::Vadd4 => (What::Add, 4),
        Op::Vsub2 => (What::Sub, 2),
        Op::Vsub4 => (What::Sub, 4),
        Op::Vabsdiff2 => (What::AbsDiff, 2),
        Op::Vabsdiff4 => (What::AbsDiff, 4),
        Op::Vmin2 => (What::Min, 2),
        Op::Vmin4 => (What::Min, 4),
        Op::Vmax2 => (What::Max, 2),
        Op::Vmax4 => (What::Max, 4),
        Op::Vavrg2 => (What::Average, 2),
        Op::Vavrg4 => (What::Average, 4),
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

/// Two or four at once, without selectors or masks: what `__vadd4` and its kin become.
pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let (what, n) = what(i.op, m).ok_or(Reason::Unsupported)?;
    let types: Vec<Ty> = m.types().collect();
    let [d, a, b] = types.as_slice() else {
        return Err(Reason::Unsupported);
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
        return Err(Reason::Unsupported);
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
                let v = match what {
                    What::Add => x + y,
                    What::Sub => x - y,
                    What::AbsDiff => (x - y).abs(),
                    What::Min => x.min(y),
                    What::Max => x.max(y),
                    What::Average => {
                        let s = x + y;
                        // Rounds half away from zero.
                        if s >= 0 {
                            (s + 1) >> 1
                        } else {
                            -((-s + 1) >> 1)
                        }
                    }
                    What::Set(kind) => i64::from(match kind {
                        0 => x == y,
                        9 => x != y,
                        2 => x < y,
                        3 => x <= y,
                        4 => x > y,
                        _ => x >= y,
                    }),
                };
                let v = if sat { v.clamp(lo, hi) } else { v };
                sum = sum.wrapping_add(v as u32);
                out |= (v as u64 & ((1 << width) - 1)) << (k * width);
            }
            if add { u64::from(sum) } else { out }
        },
    );
    Ok(())
}
