//! Memory order of an instruction, as flags in its immediate.

use fercuda_ptx::words::Word;

use super::access::STRONG;
use super::lower::ModList;
use crate::check::{CheckOptions, Strength};

/// Flags beside those of [`super::access`].
pub(crate) const RELEASE: u64 = 1 << 34;

pub(crate) const ACQUIRE: u64 = 1 << 35;

/// Of a load or store that orders: for the host too.
pub(crate) const SYSTEM: u64 = 1 << 36;

/// Volatile: strong, unless checks are to take it for a plain access.
pub(crate) const VOLATILE: u64 = 1 << 37;

/// Of a strong access: with the scope of the block only.
pub(crate) const BLOCK_SCOPE: u64 = 1 << 38;

/// A load through the cache of read-only data.
pub(crate) const READ_ONLY: u64 = 1 << 39;

/// How the checks take an access with such flags.
#[inline(always)]
pub(crate) fn strength(flags: u64, options: CheckOptions) -> Strength {
    if flags & (STRONG | READ_ONLY) == 0 || flags & VOLATILE != 0 && options.volatile_races {
        Strength::Weak
    } else if flags & STRONG == 0 {
        Strength::ReadOnly
    } else if flags & BLOCK_SCOPE != 0 {
        Strength::Block
    } else {
        Strength::Strong
    }
}

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
    if m.has(Word::Volatile) {
        f |= VOLATILE;
    }
    if m.has(Word::Cta) {
        f |= BLOCK_SCOPE;
    }
    if m.has(Word::Nc) {
        f |= READ_ONLY;
    }
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
