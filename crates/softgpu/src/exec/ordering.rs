//! Memory order of an instruction, as flags in its immediate.

use fercuda_ptx::words::Word;

use super::access::STRONG;
use super::lower::ModList;

/// Flags beside those of [`super::access`].
pub(crate) const RELEASE: u64 = 1 << 34;

pub(crate) const ACQUIRE: u64 = 1 << 35;

/// Of a load or store that orders: for the host too.
pub(crate) const SYSTEM: u64 = 1 << 36;

/// Order of a memory instruction as flags.
pub(crate) fn order_flags(m: &ModList<'_>) -> u64 {
    let strong = m.any(&[
        Word::Volatile,
        Word::Relaxed,
        Word::Acquire,
        Word::Release,
        Word::AcqRel,
        Word::Sc,
        Word::Mmio,
        Word::Cv,
    ]);
    let mut f = if strong.is_some() { STRONG } else { 0 };
    if m.any(&[Word::Release, Word::AcqRel, Word::Sc]).is_some() {
        f |= RELEASE;
    }
    if m.any(&[Word::Acquire, Word::AcqRel, Word::Sc]).is_some() {
        f |= ACQUIRE;
    }
    if f & (ACQUIRE | RELEASE) != 0 && m.has(Word::Sys) {
        f |= SYSTEM;
    }
    f
}
