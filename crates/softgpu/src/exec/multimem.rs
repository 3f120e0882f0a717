//! `multimem`: accesses to one address of several devices.
//!
//! The software device has no multicast objects, so an address is one device's alone: a reduction
//! over all its copies is a load, and a store to all of them a store.

use fercuda_ptx::ast::Inst as Tree;
use fercuda_ptx::words::{Mod, Op, Word};

use super::lower::{Lower, LowerError, Lowered, ModList};

/// The operations of a reduction, and what they are computed in.
const REDUCTIONS: [Word; 8] = [
    Word::Add,
    Word::Min,
    Word::Max,
    Word::And,
    Word::Or,
    Word::Xor,
    Word::AccF32,
    Word::AccF16,
];

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree) -> Lowered<()> {
    let kind = i.mods.first().copied();
    let (op, dropped): (Op, &[Word]) = match kind {
        Some(Mod::Word(Word::LdReduce)) => (Op::Ld, &REDUCTIONS),
        Some(Mod::Word(Word::St)) => (Op::St, &[]),
        Some(Mod::Word(Word::Red)) => (Op::Red, &[]),
        _ => return Err(LowerError::Unsupported),
    };
    let keep = |m: &Mod| !matches!(m, Mod::Word(w) if dropped.contains(w));
    let single = Tree {
        op,
        mods: i.mods.iter().skip(1).copied().filter(keep).collect(),
        ..i.clone()
    };
    let m = ModList(&single.mods);
    super::memory::lower(l, &single, &m).unwrap_or(Err(LowerError::Unsupported))
}
