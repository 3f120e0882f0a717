//! Values that the lanes of a store write: which lanes write the same, and hashes of them.

use super::super::ctx::Ctx;
use super::super::registers::{ALL, LANES, RegisterFile, RowOperand, each, eights};
use crate::mem::{AddressShape, At};

/// Bytes that a lane stores at most.
const MOST_BYTES: usize = 32;

/// The registers that a store writes to memory, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredValues<'a> {
    pub(crate) parts: &'a [u32],
    /// Bytes of each.
    pub(crate) element: usize,
}

impl StoredValues<'_> {
    /// What `lane` writes; bytes beyond are 0.
    fn of(&self, rows: &RegisterFile, lane: usize) -> [u8; MOST_BYTES] {
        let mut out = [0; MOST_BYTES];
        for (&d, at) in self.parts.iter().zip(out.chunks_mut(self.element)) {
            let d = RowOperand::from_bits(d);
            let v = match self.element {
                8 => rows.lane::<u64>(d, lane),
                _ => u64::from(rows.lane::<u32>(d, lane)),
            };
            at.copy_from_slice(&v.to_le_bytes()[..self.element]);
        }
        out
    }

    /// Whether `lane` writes what `memory` holds.
    pub(super) fn is(&self, rows: &RegisterFile, lane: usize, memory: &[u8]) -> bool {
        self.of(rows, lane)[..self.element * self.parts.len()] == *memory
    }
}

/// Lanes of a store, those that write the same bytes to the same place taken together.
pub(super) struct DistinctStores {
    /// One lane of each, the first: the last one may be the last that read there.
    pub(super) mask: u32,
    /// For each other lane, the one that stands for it.
    stands: [u8; LANES],
    /// A hash of what each lane of the mask writes.
    pub(super) hashes: [u8; LANES],
}

impl DistinctStores {
    /// The lanes of `all` of which those that stand for them are in `allowed`.
    pub(super) fn spread(&self, allowed: u32, all: u32) -> u32 {
        let mut out = allowed;
        each(all & !self.mask, |l| {
            out |= (allowed >> self.stands[l] & 1) << l;
        });
        out
    }
}

/// Takes the lanes of `mask` together; `None` if their places are all different and in a row, as
/// those of most stores are.
#[inline(always)]
pub(super) fn distinct<A: At + PartialEq + Into<u64>>(
    ctx: &Ctx<'_>,
    values: StoredValues<'_>,
    at: &[A; LANES],
    mask: u32,
    size: usize,
) -> Option<DistinctStores> {
    if mask == ALL && in_a_row(at, size) {
        return None;
    }
    Some(taken_together(ctx, values, at, mask))
}

#[inline(always)]
fn in_a_row<A: At + Into<u64>>(at: &[A; LANES], size: usize) -> bool {
    let eights = eights(at);
    let run = 8 * size as u64;
    let first: [u64; 4] = std::array::from_fn(|n| eights[n][0].into());
    let apart = |a: u64, b: u64| a.abs_diff(b) >= run;
    eights
        .iter()
        .all(|e| A::shape(e, size) == AddressShape::Step)
        && (0..3).all(|n| (n + 1..4).all(|m| apart(first[n], first[m])))
}

fn taken_together<A: At + PartialEq + Into<u64>>(
    ctx: &Ctx<'_>,
    values: StoredValues<'_>,
    at: &[A; LANES],
    mask: u32,
) -> DistinctStores {
    const NONE: u8 = LANES as u8;
    let mut out = DistinctStores {
        mask: 0,
        stands: [0; LANES],
        hashes: [0; LANES],
    };
    // Lanes by a hash of their place; twice as many as there are lanes.
    let mut places = [NONE; 2 * LANES];
    let mut m = mask;
    while m != 0 {
        let l = m.trailing_zeros() as usize;
        m &= m - 1;
        let value = values.of(&ctx.rows, l);
        let place: u64 = at[l].into();
        let mut slot = (mixed(place) >> 58) as usize;
        let mut same = None;
        while places[slot] != NONE {
            let other = usize::from(places[slot]);
            if at[other] == at[l] && values.of(&ctx.rows, other) == value {
                same = Some(other);
                break;
            }
            slot = (slot + 1) % places.len();
        }
        if let Some(other) = same {
            out.stands[l] = other as u8;
            continue;
        }
        places[slot] = l as u8;
        out.mask |= 1 << l;
        let words = value.as_chunks::<8>().0;
        let hash = words
            .iter()
            .fold(0, |h, w| mixed(h ^ u64::from_le_bytes(*w)));
        out.hashes[l] = (hash >> 56) as u8;
    }
    out
}

/// Spreads the bits of a number, into the high ones above all.
fn mixed(x: u64) -> u64 {
    let x = (x ^ x >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
