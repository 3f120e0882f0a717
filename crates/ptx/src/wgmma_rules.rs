//! Rules of `wgmma` and `setmaxnreg`, which one architecture has: shapes, types, numbers of
//! registers, constants.

use crate::ast::{Imm, Inst, Operand};
use crate::words::{Mod, Op, ScalarType as Ty, Word};

fn has(inst: &Inst, word: Word) -> bool {
    inst.mods.contains(&Mod::Word(word))
}

fn number(operand: Option<&Operand>) -> Option<i64> {
    match operand {
        Some(Operand::Imm(Imm::Int { value, .. })) => Some(*value),
        _ => None,
    }
}

/// What is wrong with such an instruction's form.
pub(crate) fn refuse_group_form(inst: &Inst, types: &[Ty]) -> Option<String> {
    match inst.op {
        Op::Setmaxnreg => match number(inst.operands.first()) {
            Some(n) if (24..=256).contains(&n) && n % 8 == 0 => None,
            Some(n) => Some(format!(
                "{n} registers of instruction `setmaxnreg`, expected a multiple of 8 in 24 to 256"
            )),
            None => Some("instruction `setmaxnreg` needs a constant".to_owned()),
        },
        Op::Wgmma if has(inst, Word::MmaAsync) => refuse_product(inst, types),
        Op::Wgmma if has(inst, Word::WaitGroup) => match number(inst.operands.first()) {
            Some(0..) => None,
            Some(n) => Some(format!("{n} groups of instruction `wgmma.wait_group`")),
            None => Some("instruction `wgmma.wait_group` needs a constant".to_owned()),
        },
        _ => None,
    }
}

/// Columns and depth of a shape such as `m64n8k16`.
fn shape(inst: &Inst) -> Option<(u32, u32)> {
    inst.mods.iter().find_map(|m| {
        let (columns, depth) = m.text().strip_prefix("m64n")?.split_once('k')?;
        Some((columns.parse().ok()?, depth.parse().ok()?))
    })
}

/// What the types of a product say of it.
struct ProductRules {
    /// Elements of 32 bytes.
    depth: u32,
    float: bool,
    /// Whether A and B may lie along M and N.
    transposes: bool,
    /// The last selector of a sparse A; absent if there is no such form.
    last_selector: Option<i64>,
}

fn rules([sums, left, right]: [Ty; 3]) -> Option<ProductRules> {
    let narrow = |ty| matches!(ty, Ty::E4m3 | Ty::E5m2);
    let byte = |ty| matches!(ty, Ty::S8 | Ty::U8);
    let float = |depth, transposes, last| ProductRules {
        depth,
        float: true,
        transposes,
        last_selector: Some(last),
    };
    let integer = |depth, last_selector| ProductRules {
        depth,
        float: false,
        transposes: false,
        last_selector,
    };
    Some(match (sums, left, right) {
        (Ty::F16 | Ty::F32, Ty::F16, Ty::F16) | (Ty::F32, Ty::Bf16, Ty::Bf16) => float(16, true, 1),
        (Ty::F32, Ty::Tf32, Ty::Tf32) => float(8, false, 1),
        (Ty::F16 | Ty::F32, a, b) if narrow(a) && narrow(b) => float(32, false, 0),
        (Ty::S32, a, b) if byte(a) && byte(b) => integer(32, Some(0)),
        (Ty::S32, Ty::B1, Ty::B1) => integer(256, None),
        _ => return None,
    })
}

fn refuse_product(inst: &Inst, types: &[Ty]) -> Option<String> {
    let op = "wgmma.mma_async";
    let Some((columns, depth)) = shape(inst) else {
        return Some(format!("shape required for `{op}`"));
    };
    let found = <[Ty; 3]>::try_from(types)
        .ok()
        .and_then(|t| Some((t, rules(t)?)));
    let Some(([sums, left, _], rules)) = found else {
        return Some(format!("unexpected types of instruction `{op}`"));
    };
    let is_sparse = has(inst, Word::Sp);
    let wanted = rules.depth * if is_sparse { 2 } else { 1 };
    let wide = !columns.is_multiple_of(16) && columns > 24;
    if depth != wanted || !rules.float && wide || is_sparse && rules.last_selector.is_none() {
        return Some(format!(
            "illegal shape `.m64n{columns}k{depth}` of instruction `{op}` with type `.{left}`"
        ));
    }
    if has(inst, Word::Satfinite) && (rules.float || left == Ty::B1) {
        return Some(format!(
            "illegal modifier `.satfinite` of `{op}` with type `.{left}`"
        ));
    }
    if (left == Ty::B1) != has(inst, Word::And) || (left == Ty::B1) != has(inst, Word::Popc) {
        return Some(format!("operation of `{op}` with type `.{left}`"));
    }
    let registers = columns / if sums == Ty::F16 { 4 } else { 2 };
    let in_registers = matches!(inst.operands.get(1), Some(Operand::Vector(_)));
    for (n, count) in [(0, registers), (1, 4)] {
        if let Some(Operand::Vector(items)) = inst.operands.get(n)
            && items.len() as u32 != count
        {
            let have = items.len();
            return Some(format!(
                "operand {n} of instruction `{op}` has {have} registers of {count}"
            ));
        }
    }
    let mut at = 3;
    if is_sparse {
        let last = rules.last_selector.unwrap_or(0);
        let selector = number(inst.operands.get(4));
        if !selector.is_some_and(|s| (0..=last).contains(&s)) {
            return Some(format!(
                "the selector of instruction `{op}.sp` with type `.{left}` is a constant of 0 to \
                 {last}"
            ));
        }
        at += 2;
    }
    let scales = if rules.float { 2 } else { 0 };
    let orders = match (rules.transposes, in_registers) {
        (false, _) => 0,
        (true, false) => 2,
        (true, true) => 1,
    };
    let want = at + 1 + scales + orders;
    if inst.operands.len() != want {
        let have = inst.operands.len();
        return Some(format!(
            "instruction `{op}` takes {want} operands here, {have} are given"
        ));
    }
    for n in at + 1..want {
        let allowed: &[i64] = if n <= at + scales { &[-1, 1] } else { &[0, 1] };
        if !number(inst.operands.get(n)).is_some_and(|v| allowed.contains(&v)) {
            return Some(format!(
                "operand {n} of instruction `{op}`, expected {allowed:?}"
            ));
        }
    }
    None
}
