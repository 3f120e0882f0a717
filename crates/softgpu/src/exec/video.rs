//! The video instructions: one, two or four small integers in a register.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast, Sym};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::lower::{Lower, LowerError, Lowered, ModList, Opd, bad};
use super::width::is_signed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    Average,
    ShiftLeft { wrap: bool },
    ShiftRight { wrap: bool },
    Set(usize),
}

impl VideoOp {
    /// The operation, and on how many integers of a register.
    fn of(op: Op, m: &ModList<'_>) -> Option<(VideoOp, u32)> {
        let set = || {
            m.words()
                .find_map(|w| super::compare::kind(w, false))
                .map(VideoOp::Set)
        };
        let wrap = m.has(Word::Wrap);
        Some(match op {
            Op::Vadd => (VideoOp::Add, 1),
            Op::Vadd2 => (VideoOp::Add, 2),
            Op::Vadd4 => (VideoOp::Add, 4),
            Op::Vsub => (VideoOp::Sub, 1),
            Op::Vsub2 => (VideoOp::Sub, 2),
            Op::Vsub4 => (VideoOp::Sub, 4),
            Op::Vabsdiff => (VideoOp::AbsDiff, 1),
            Op::Vabsdiff2 => (VideoOp::AbsDiff, 2),
            Op::Vabsdiff4 => (VideoOp::AbsDiff, 4),
            Op::Vmin => (VideoOp::Min, 1),
            Op::Vmin2 => (VideoOp::Min, 2),
            Op::Vmin4 => (VideoOp::Min, 4),
            Op::Vmax => (VideoOp::Max, 1),
            Op::Vmax2 => (VideoOp::Max, 2),
            Op::Vmax4 => (VideoOp::Max, 4),
            Op::Vavrg2 => (VideoOp::Average, 2),
            Op::Vavrg4 => (VideoOp::Average, 4),
            Op::Vshl => (VideoOp::ShiftLeft { wrap }, 1),
            Op::Vshr => (VideoOp::ShiftRight { wrap }, 1),
            Op::Vset => (set()?, 1),
            Op::Vset2 => (set()?, 2),
            Op::Vset4 => (set()?, 4),
            _ => return None,
        })
    }

    fn apply(self, x: i64, y: i64) -> i128 {
        // Shifts by up to 32 of 32 bits, and sums of 33.
        let wide = i128::from(x);
        let count = |wrap: bool| if wrap { y & 31 } else { y.clamp(0, 32) };
        match self {
            VideoOp::Add => wide + i128::from(y),
            VideoOp::Sub => wide - i128::from(y),
            VideoOp::AbsDiff => (wide - i128::from(y)).abs(),
            VideoOp::Min => i128::from(x.min(y)),
            VideoOp::Max => i128::from(x.max(y)),
            // Halves away from zero.
            VideoOp::Average => i128::from((x + y + (x + y).signum()) / 2),
            VideoOp::ShiftLeft { wrap } => wide << count(wrap),
            VideoOp::ShiftRight { wrap } => wide >> count(wrap),
            VideoOp::Set(kind) => i128::from(match kind {
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

/// A few bits of a register, read as an integer.
#[derive(Debug, Clone, Copy)]
struct BitField {
    shift: u32,
    width: u32,
}

impl BitField {
    const WHOLE: BitField = BitField {
        shift: 0,
        width: 32,
    };

    /// The byte or half of a selector such as `b1` or `h0`.
    fn named(selector: &str) -> Lowered<BitField> {
        let (shift, width) = match selector {
            "h0" => (0, 16),
            "h1" => (16, 16),
            "b0" => (0, 8),
            "b1" => (8, 8),
            "b2" => (16, 8),
            "b3" => (24, 8),
            _ => return bad(format!("`.{selector}` selects no part of a register")),
        };
        Ok(BitField { shift, width })
    }

    fn mask(self) -> u64 {
        ((1u64 << self.width) - 1) << self.shift
    }

    fn get(self, v: u64, signed: bool) -> i64 {
        let x = (v & self.mask()) >> self.shift;
        let unused = 64 - self.width;
        if signed {
            ((x << unused) as i64) >> unused
        } else {
            x as i64
        }
    }

    /// `old` with these bits replaced by the lowest of `v`.
    fn set(self, old: u64, v: i128) -> u64 {
        old & !self.mask() | ((v as u64) << self.shift) & self.mask()
    }

    /// The least and the greatest integer of this width.
    fn limits(self, signed: bool) -> (i128, i128) {
        if signed {
            (-(1 << (self.width - 1)), (1 << (self.width - 1)) - 1)
        } else {
            (0, (1 << self.width) - 1)
        }
    }
}

/// An operand without its selector, and the selector.
fn selected(operand: &Ast) -> (Ast, Option<Sym>) {
    match operand {
        Ast::Select(name, selector) => (Ast::Name(*name), Some(*selector)),
        other => (other.clone(), None),
    }
}

/// The register and the part of it that an operand such as `a.b1` names.
fn part(l: &Lower<'_, '_>, operand: &Ast) -> Lowered<(Ast, BitField)> {
    let (name, selector) = selected(operand);
    let field = match selector {
        Some(selector) => BitField::named(l.name(selector))?,
        None => BitField::WHOLE,
    };
    Ok((name, field))
}

/// The second operation of an instruction on one integer: with the third source, on 33 bits.
fn second_operation(op: Option<Word>, v: i128, c: i64) -> i128 {
    let c = i128::from(c);
    match op {
        Some(Word::Add) => v + c,
        Some(Word::Min) => v.min(c),
        Some(_) => v.max(c),
        None => v,
    }
}

/// One operation on 32 bits or a part of them, then a second one (`.add`, `.min`, `.max`) with the
/// third source, or a merge of the result into a part of it.
fn single(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, what: VideoOp) -> Lowered<()> {
    let types: Vec<Ty> = m.types().collect();
    let (d, a, b) = match types.as_slice() {
        [d, a, b] => (*d, *a, *b),
        // What a comparison gives is unsigned.
        [a, b] if matches!(what, VideoOp::Set(_)) => (Ty::U32, *a, *b),
        _ => return bad("the types of the destination and of two sources are needed"),
    };
    let (sd, sa, sb) = (is_signed(d), is_signed(a), is_signed(b));
    let sat = m.has(Word::Sat);
    let second = m.any(&[Word::Add, Word::Min, Word::Max]);
    let [od, oa, ob, rest @ ..] = i.operands.as_slice() else {
        return bad("a destination and two sources are needed");
    };
    let (od, field) = part(l, od)?;
    let merges = field.width < 32;
    if rest.len() != usize::from(second.is_some() || merges) || second.is_some() && merges {
        return bad("a second operation and a merge take one more source each");
    }
    let ((oa, field_a), (ob, field_b)) = (part(l, oa)?, part(l, ob)?);
    let (a, b) = (l.src(&oa, Ty::B32)?, l.src(&ob, Ty::B32)?);
    let c = match rest.first() {
        Some(c) => l.src(c, Ty::B32)?,
        None => l.c32(0),
    };
    let d = l.dst(&od, Ty::B32)?;
    let narrow = |o: Opd| (o, false);
    l.lane_fn(
        narrow(d),
        narrow(a),
        narrow(b),
        narrow(c),
        move |a, b, c| {
            let v = what.apply(field_a.get(a, sa), field_b.get(b, sb));
            let (least, most) = field.limits(sd);
            let v = if sat { v.clamp(least, most) } else { v };
            if merges {
                field.set(c, v)
            } else {
                let c = BitField::WHOLE.get(c, sd);
                BitField::WHOLE.set(0, second_operation(second, v, c))
            }
        },
    );
    Ok(())
}

/// How the factors and the summand of `vmad` are negated.
#[derive(Debug, Clone, Copy)]
struct MadSigns {
    product: bool,
    summand: bool,
    plus_one: bool,
}

/// `vmad`: a product of parts, a sum, a shift and perhaps saturation.
fn multiply_add(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let types: Vec<Ty> = m.types().collect();
    let ([_, a, b], [od, oa, ob, oc]) = (types.as_slice(), i.operands.as_slice()) else {
        return bad("three types and four operands are needed");
    };
    let (sa, sb) = (is_signed(*a), is_signed(*b));
    let plain = |o: &Ast| match o {
        Ast::Negated(inner) => ((**inner).clone(), true),
        o => (o.clone(), false),
    };
    let ((oa, neg_a), (ob, neg_b), (oc, neg_c)) = (plain(oa), plain(ob), plain(oc));
    let ((oa, field_a), (ob, field_b)) = (part(l, &oa)?, part(l, &ob)?);
    let signs = MadSigns {
        product: neg_a ^ neg_b,
        summand: neg_c,
        plus_one: m.has(Word::Po),
    };
    let signed = sa || sb || signs.product || signs.summand;
    let sat = m.has(Word::Sat);
    let shift = match m.any(&[Word::Shr7, Word::Shr15]) {
        Some(Word::Shr7) => 7,
        Some(_) => 15,
        None => 0,
    };
    let (a, b) = (l.src(&oa, Ty::B32)?, l.src(&ob, Ty::B32)?);
    let c = l.src(&oc, Ty::B32)?;
    let d = l.dst(od, Ty::B32)?;
    l.lane_fn(
        (d, false),
        (a, false),
        (b, false),
        (c, false),
        move |a, b, c| {
            let product = i128::from(field_a.get(a, sa)) * i128::from(field_b.get(b, sb));
            let (product, c, one) = if signs.plus_one {
                (product, c as u32, 1)
            } else if signs.product {
                (!product, c as u32, 1)
            } else if signs.summand {
                (product, !(c as u32), 1)
            } else {
                (product, c as u32, 0)
            };
            let c = if signed {
                i128::from(c as i32)
            } else {
                i128::from(c)
            };
            let v = (product + c + one) >> shift;
            let (least, most) = BitField::WHOLE.limits(signed);
            BitField::WHOLE.set(0, if sat { v.clamp(least, most) } else { v })
        },
    );
    Ok(())
}

/// The integers of a source of an instruction on `n`: for each its number among those of the two
/// sources, the first source's before the second's.
fn lanes(l: &Lower<'_, '_>, selector: Option<Sym>, n: usize, first: usize) -> Lowered<[usize; 4]> {
    let mut out = [0; 4];
    for (k, o) in out.iter_mut().enumerate() {
        *o = first + k;
    }
    let Some(selector) = selector else {
        return Ok(out);
    };
    let text = l.name(selector);
    let digits = text[1..].bytes().rev().map(|d| usize::from(d - b'0'));
    if text.len() != n + 1
        || text.starts_with('h') != (n == 2)
        || digits.clone().any(|d| d >= 2 * n)
    {
        return bad(format!("`.{text}` does not select {n} integers"));
    }
    for (o, d) in out.iter_mut().zip(digits) {
        *o = d;
    }
    Ok(out)
}

/// The integers of the destination that are written, as bits.
fn written(l: &Lower<'_, '_>, mask: Option<Sym>, n: usize) -> Lowered<u32> {
    let Some(mask) = mask else {
        return Ok((1 << n) - 1);
    };
    let text = l.name(mask);
    let mut out = 0;
    for d in text[1..].bytes().map(|d| u32::from(d - b'0')) {
        if text.starts_with('h') != (n == 2) || d >= n as u32 || out >> d & 1 != 0 {
            return bad(format!("`.{text}` is no mask of {n} integers"));
        }
        out |= 1 << d;
    }
    Ok(out)
}

/// Two or four operations at once, whose results are added to the third source, or replace those
/// of its integers that the destination's mask names.
fn several(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>, what: VideoOp, n: u32) -> Lowered<()> {
    let types: Vec<Ty> = m.types().collect();
    let (d, a, b) = match types.as_slice() {
        [d, a, b] => (*d, *a, *b),
        [a, b] if matches!(what, VideoOp::Set(_)) => (Ty::U32, *a, *b),
        _ => return bad("the types of the destination and of two sources are needed"),
    };
    let (sd, sa, sb) = (is_signed(d), is_signed(a), is_signed(b));
    let (sat, add) = (m.has(Word::Sat), m.has(Word::Add));
    let [od, oa, ob, oc] = i.operands.as_slice() else {
        return bad("four operands are needed");
    };
    let ((od, mask), (oa, from_a), (ob, from_b)) = (selected(od), selected(oa), selected(ob));
    let mask = written(l, mask, n as usize)?;
    let lanes_a = lanes(l, from_a, n as usize, 0)?;
    let lanes_b = lanes(l, from_b, n as usize, n as usize)?;
    let (a, b, c) = (
        l.src(&oa, Ty::B32)?,
        l.src(&ob, Ty::B32)?,
        l.src(oc, Ty::B32)?,
    );
    let d = l.dst(&od, Ty::B32)?;
    let width = 32 / n;
    l.lane_fn(
        (d, false),
        (a, false),
        (b, false),
        (c, false),
        move |a, b, c| {
            let both = a & 0xffff_ffff | b << 32;
            let field = |lane: usize| BitField {
                shift: lane as u32 * width,
                width,
            };
            let mut out = c;
            for k in (0..n as usize).filter(|k| mask >> k & 1 != 0) {
                let (x, y) = (
                    field(lanes_a[k]).get(both, sa),
                    field(lanes_b[k]).get(both, sb),
                );
                let (least, most) = field(k).limits(sd);
                let v = what.apply(x, y);
                let v = if sat { v.clamp(least, most) } else { v };
                out = if add {
                    out.wrapping_add(v as u64)
                } else {
                    field(k).set(out, v)
                };
            }
            out
        },
    );
    Ok(())
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    match VideoOp::of(i.op, m) {
        Some((what, 1)) => single(l, i, m, what),
        Some((what, n)) => several(l, i, m, what, n),
        None if i.op == Op::Vmad => multiply_add(l, i, m),
        None => Err(LowerError::Unsupported),
    }
}
