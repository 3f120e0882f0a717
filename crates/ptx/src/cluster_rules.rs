//! Rules of the forms of instructions about clusters: `mapa`, `getctarank`, `barrier.cluster`,
//! `st.async`, `red.async`, and the fence of mbarriers' initialisations.
//!
//! What is not described here is not refused.

use crate::ast::Inst;
use crate::operand_types::{bits, types};
use crate::words::{Mod, Op, ScalarType as Ty, Word};

fn has(inst: &Inst, word: Word) -> bool {
    inst.mods.contains(&Mod::Word(word))
}

fn first_of(inst: &Inst, words: &[Word]) -> Option<Word> {
    words.iter().copied().find(|&w| has(inst, w))
}

/// What is wrong with the form of an instruction about clusters.
pub(crate) fn refuse_cluster(inst: &Inst) -> Option<String> {
    match inst.op {
        Op::Mapa | Op::Getctarank => refuse_address(inst),
        Op::Barrier if has(inst, Word::Cluster) => refuse_barrier(inst),
        Op::St | Op::Red if has(inst, Word::Async) => refuse_async(inst),
        Op::Fence if has(inst, Word::MbarrierInit) => refuse_fence(inst),
        _ => None,
    }
}

/// `mapa` and `getctarank` take addresses of the cluster, or generic ones.
fn refuse_address(inst: &Inst) -> Option<String> {
    let op = inst.op;
    let others = [
        Word::Shared,
        Word::SharedCta,
        Word::Global,
        Word::Local,
        Word::Const,
        Word::Param,
    ];
    if let Some(word) = first_of(inst, &others) {
        return Some(format!(
            "state space .{word} of instruction `{op}`, expected .shared::cluster"
        ));
    }
    match types(inst).next() {
        Some(Ty::U32 | Ty::U64) => None,
        Some(ty) => Some(format!("unexpected type `.{ty}` of instruction `{op}`")),
        None => Some(format!("type required for `{op}`")),
    }
}

fn refuse_barrier(inst: &Inst) -> Option<String> {
    let arrives = has(inst, Word::Arrive);
    if arrives == has(inst, Word::Wait) {
        return Some("`barrier.cluster` needs one of `.arrive` and `.wait`".to_owned());
    }
    let wrong: &[Word] = match arrives {
        true => &[Word::Acquire, Word::AcqRel, Word::Sc],
        false => &[Word::Release, Word::Relaxed, Word::AcqRel, Word::Sc],
    };
    if let Some(word) = first_of(inst, wrong) {
        let which = if arrives { "arrive" } else { "wait" };
        return Some(format!(
            "illegal modifier `.{word}` for instruction `barrier.cluster.{which}`"
        ));
    }
    (!inst.operands.is_empty()).then(|| "`barrier.cluster` takes no operands".to_owned())
}

/// Asynchronous accesses to shared memory of the cluster, whose end an mbarrier tells of. Those to
/// global memory are of later targets, and are not described.
fn refuse_async(inst: &Inst) -> Option<String> {
    let op = inst.op;
    if has(inst, Word::Mmio) || has(inst, Word::Global) {
        let by_bytes = has(inst, Word::MbarrierCompleteTxBytes);
        return by_bytes
            .then(|| format!("illegal modifier `.mbarrier::complete_tx::bytes` for `{op}.async`"));
    }
    if !has(inst, Word::MbarrierCompleteTxBytes) {
        return Some(format!(
            "`{op}.async` requires a completion mechanism, `.mbarrier::complete_tx::bytes`"
        ));
    }
    // A store may name the block's own memory, a reduction may not.
    let wrong: &[Word] = match op {
        Op::Red => &[Word::Shared, Word::SharedCta, Word::Local],
        _ => &[Word::Local, Word::Const, Word::Param],
    };
    if let Some(word) = first_of(inst, wrong) {
        return Some(format!("state space .{word} of instruction `{op}.async`"));
    }
    let ty = types(inst).last()?;
    match op {
        Op::Red => refuse_reduction(inst, ty),
        _ => refuse_store(inst, ty),
    }
}

fn refuse_store(inst: &Inst, ty: Ty) -> Option<String> {
    let order = [Word::Relaxed, Word::Release, Word::Acquire, Word::Volatile];
    if let Some(word) = first_of(inst, &order) {
        return Some(format!("illegal modifier `.{word}` for `st.async`"));
    }
    let n = match first_of(inst, &[Word::V2, Word::V4, Word::V8]) {
        None => 1,
        Some(Word::V2) => 2,
        Some(Word::V4) => 4,
        Some(_) => 8,
    };
    let known = matches!(
        ty,
        Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64
    );
    if !known {
        return Some(format!("unexpected type `.{ty}` of instruction `st.async`"));
    }
    bits(ty)
        .is_some_and(|bits| n * bits > 128)
        .then(|| "a vector of more than 128 bits".to_owned())
}

fn refuse_reduction(inst: &Inst, ty: Ty) -> Option<String> {
    if !has(inst, Word::Relaxed) {
        return Some("order modifier required for `red.async`".to_owned());
    }
    if !has(inst, Word::Cluster) {
        return Some("the scope of `red.async` is `.cluster`".to_owned());
    }
    let operations = [
        Word::Add,
        Word::Inc,
        Word::Dec,
        Word::Min,
        Word::Max,
        Word::And,
        Word::Or,
        Word::Xor,
    ];
    let Some(operation) = first_of(inst, &operations) else {
        return Some("illegal reduction operation for `red.async`".to_owned());
    };
    let fits = match operation {
        Word::Add => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
        Word::Inc | Word::Dec => ty == Ty::U32,
        Word::Min | Word::Max => matches!(ty, Ty::U32 | Ty::S32),
        _ => ty == Ty::B32,
    };
    (!fits).then(|| format!("unexpected type `.{ty}` of operation `.{operation}` of `red.async`"))
}

fn refuse_fence(inst: &Inst) -> Option<String> {
    if !has(inst, Word::Release) {
        return Some("`fence.mbarrier_init` requires `.release`".to_owned());
    }
    (!has(inst, Word::Cluster))
        .then(|| "the scope of `fence.mbarrier_init` is `.cluster`".to_owned())
}
