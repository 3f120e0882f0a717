//! Rules of bulk copies, of mbarriers and of tensor maps: targets, modifiers and types that go
//! together, and constants in range.

use crate::ast::{Imm, Inst, Operand};
use crate::form_rules::PtxTarget;
use crate::words::{Mod, Op, ScalarType as Ty, Word};

fn has(inst: &Inst, word: Word) -> bool {
    inst.mods.contains(&Mod::Word(word))
}

fn first_of(inst: &Inst, words: &[Word]) -> Option<Word> {
    words.iter().copied().find(|&w| has(inst, w))
}

/// The element type of a reduction or of a field.
fn element(inst: &Inst) -> Option<Ty> {
    inst.mods.iter().rev().find_map(|m| match m {
        Mod::Type(ty) => Some(*ty),
        Mod::Word(_) => None,
    })
}

fn number(inst: &Inst, n: usize) -> Option<i64> {
    match inst.operands.get(n) {
        Some(Operand::Imm(Imm::Int { value, .. })) => Some(*value),
        _ => None,
    }
}

/// The name of an instruction with its first words.
fn name(inst: &Inst) -> String {
    let words = inst.mods.iter().map(|m| m.text());
    let leading = ["async", "reduce", "bulk", "tensor", "prefetch", "replace"];
    let mut text = inst.op.text().to_owned();
    for word in words.take_while(|w| leading.contains(w)) {
        text += &format!(".{word}");
    }
    text
}

/// What is wrong with the form of a bulk copy, an mbarrier's or a tensor map's instruction.
pub(crate) fn refuse_bulk(inst: &Inst, target: PtxTarget) -> Option<String> {
    match inst.op {
        Op::Cp if has(inst, Word::Bulk) => refuse_later(inst, target)
            .or_else(|| refuse_copy(inst))
            .or_else(|| refuse_reduction(inst)),
        Op::Mbarrier => refuse_mbarrier(inst, target),
        Op::Tensormap => refuse_map(inst, target),
        _ => None,
    }
}

/// Modifiers that only targets after sm_90 have.
fn refuse_later(inst: &Inst, target: PtxTarget) -> Option<String> {
    let later = [
        Word::CpMask,
        Word::TileGather4,
        Word::TileScatter4,
        Word::Im2colW,
        Word::Im2colW128,
        Word::CtaGroup1,
        Word::CtaGroup2,
    ];
    let word = first_of(inst, &later)?;
    let capability = target.capability?;
    let name = name(inst);
    (capability < 100)
        .then(|| format!("modifier `.{word}` of `{name}` requires .target sm_100 or higher"))
}

/// Dimensions that an instruction names.
fn rank(inst: &Inst) -> Option<usize> {
    let ranks = [Word::N1d, Word::N2d, Word::N3d, Word::N4d, Word::N5d];
    ranks.iter().position(|w| has(inst, *w)).map(|n| n + 1)
}

fn refuse_copy(inst: &Inst) -> Option<String> {
    if first_of(inst, &[Word::CommitGroup, Word::WaitGroup]).is_some() {
        return None;
    }
    let name = name(inst);
    let tells = [Word::BulkGroup, Word::MbarrierCompleteTxBytes];
    if !has(inst, Word::Prefetch) && first_of(inst, &tells).is_none() {
        return Some(format!("completion mechanism required for `{name}`"));
    }
    if !has(inst, Word::Tensor) {
        let at = if has(inst, Word::Prefetch) { 1 } else { 2 };
        let size = number(inst, at).filter(|n| n % 16 != 0)?;
        return Some(format!("a copy of {size} bytes, expected a multiple of 16"));
    }
    let rank = rank(inst)?;
    let pixels = first_of(inst, &[Word::Im2col, Word::Im2colNoOffs]);
    if let Some(word) = pixels.filter(|_| rank < 3) {
        return Some(format!(
            "modifiers `.{rank}d` and `.{word}` of `{name}` together"
        ));
    }
    if has(inst, Word::BulkGroup) && has(inst, Word::Im2col) {
        return Some(format!(
            "illegal modifier `.im2col` for instruction `{name}`"
        ));
    }
    let wide = first_of(inst, &[Word::TileGather4, Word::TileScatter4]).is_some();
    let wanted = if wide { 5 } else { rank };
    let coordinates = inst.operands.iter().find_map(|o| match o {
        Operand::Bracket(parts) => match parts.as_slice() {
            [_, Operand::Vector(c)] => Some(c.len()),
            _ => None,
        },
        _ => None,
    })?;
    if coordinates != wanted {
        return Some(format!(
            "{coordinates} coordinates of `{name}`, expected {wanted}"
        ));
    }
    let offsets = inst.operands.iter().find_map(|o| match o {
        Operand::Vector(offsets) if has(inst, Word::Im2col) => Some(offsets.len()),
        _ => None,
    });
    let offsets = offsets.filter(|n| *n != rank - 2)?;
    let wanted = rank - 2;
    Some(format!("{offsets} offsets of `{name}`, expected {wanted}"))
}

fn refuse_reduction(inst: &Inst) -> Option<String> {
    if !has(inst, Word::Reduce) || has(inst, Word::Tensor) {
        return None;
    }
    let operations = [
        Word::Add,
        Word::Min,
        Word::Max,
        Word::Inc,
        Word::Dec,
        Word::And,
        Word::Or,
        Word::Xor,
    ];
    let (op, ty) = (first_of(inst, &operations)?, element(inst)?);
    let between = has(inst, Word::MbarrierCompleteTxBytes);
    let short = matches!(ty, Ty::F16 | Ty::Bf16);
    let fits = match op {
        Word::Add if between => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64),
        Word::Add => short || matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::F32 | Ty::F64),
        Word::Inc | Word::Dec => ty == Ty::U32,
        Word::Min | Word::Max if between => matches!(ty, Ty::U32 | Ty::S32),
        Word::Min | Word::Max => short || matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
        _ if between => ty == Ty::B32,
        _ => matches!(ty, Ty::B32 | Ty::B64),
    };
    let name = name(inst);
    if !fits {
        return Some(format!(
            "unexpected type `.{ty}` for operation `.{op}` of `{name}`"
        ));
    }
    match (has(inst, Word::Noftz), short && op == Word::Add) {
        (false, true) => Some(format!("`.noftz` is required for `{name}.{op}.{ty}`")),
        (true, false) => Some(format!("illegal modifier `.noftz` for `{name}.{op}`")),
        _ => None,
    }
}

fn refuse_mbarrier(inst: &Inst, target: PtxTarget) -> Option<String> {
    let bytes = first_of(inst, &[Word::ExpectTx, Word::CompleteTx]);
    let later = bytes.or(first_of(inst, &[Word::SharedCluster]));
    if let Some(word) = later.filter(|_| target.capability.is_some_and(|c| c < 90)) {
        return Some(format!(
            "modifier `.{word}` of `mbarrier` requires .target sm_90 or higher"
        ));
    }
    let arrives = first_of(inst, &[Word::Arrive, Word::ArriveDrop]);
    let waits = first_of(inst, &[Word::TestWait, Word::TryWait]);
    let illegal = |word: Word| {
        Some(format!(
            "illegal modifier `.{word}` for instruction `mbarrier`"
        ))
    };
    let orders: &[Word] = match (arrives, waits) {
        (Some(_), _) => &[Word::Release, Word::Relaxed],
        (_, Some(_)) => &[Word::Acquire, Word::Relaxed],
        _ => &[Word::Relaxed],
    };
    let all = [Word::Release, Word::Acquire, Word::Relaxed, Word::AcqRel];
    if let Some(word) = first_of(inst, &all).filter(|w| !orders.contains(w)) {
        return illegal(word);
    }
    if let Some(word) = first_of(inst, &[Word::Gpu, Word::Sys]) {
        return illegal(word);
    }
    let remote = has(inst, Word::SharedCluster);
    if remote && arrives.is_none() && bytes.is_none() {
        return illegal(Word::SharedCluster);
    }
    let operands = inst.operands.len();
    let gives = matches!(inst.operands.first(), Some(Operand::Name(_)));
    let rest = operands - usize::from(gives && operands > 0);
    if arrives.is_some() {
        if has(inst, Word::NoComplete) && (has(inst, Word::ExpectTx) || rest < 2) {
            return illegal(Word::NoComplete);
        }
        if has(inst, Word::ExpectTx) && rest < 2 {
            return Some("arguments mismatch for instruction `mbarrier.arrive.expect_tx`".into());
        }
    }
    (has(inst, Word::TestWait) && operands > 3)
        .then(|| "arguments mismatch for instruction `mbarrier.test_wait`".into())
}

fn refuse_map(inst: &Inst, target: PtxTarget) -> Option<String> {
    let name = name(inst);
    if has(inst, Word::CpFenceproxy) {
        let size = number(inst, 2).filter(|n| *n != 128)?;
        return Some(format!("a tensor map of {size} bytes, expected 128"));
    }
    if !target.is_specific {
        return Some(format!(
            "instruction `{name}` requires a .target of one architecture, such as sm_90a"
        ));
    }
    let later = target.capability.is_some_and(|c| c >= 100);
    if has(inst, Word::SwizzleAtomicity) && !later {
        return Some(format!(
            "modifier `.swizzle_atomicity` of `{name}` requires .target sm_100a or higher"
        ));
    }
    let fields = [
        (Word::Elemtype, if later { 15 } else { 12 }),
        (Word::InterleaveLayout, 2),
        (Word::SwizzleMode, if later { 4 } else { 3 }),
        (Word::SwizzleAtomicity, 3),
        (Word::FillMode, 1),
        (Word::BoxDim, 4),
        (Word::GlobalDim, 4),
        (Word::GlobalStride, 4),
        (Word::ElementStride, 4),
    ];
    let (field, last) = *fields.iter().find(|(word, _)| has(inst, *word))?;
    let Some(value) = number(inst, 1) else {
        return Some(format!("a constant is needed for `.{field}` of `{name}`"));
    };
    if !(0..=last).contains(&value) {
        return Some(format!(
            "operand 1 of instruction `{name}` is {value}, not in 0 to {last} for `.{field}`"
        ));
    }
    let wide = first_of(inst, &[Word::GlobalAddress, Word::GlobalStride]).is_some();
    let ty = element(inst).filter(|ty| *ty != if wide { Ty::B64 } else { Ty::B32 })?;
    Some(format!(
        "unexpected type `.{ty}` for `.{field}` of `{name}`"
    ))
}
