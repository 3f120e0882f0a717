//! Addresses of shared memory in a cluster: of which block, and where in it.
//!
//! An address in `.shared::cluster` is an offset below 2^24 for the executing block, or has the
//! rank of a block, plus one, above that.

use super::checks;
use super::ctx::{Ctx, DecodedInst};
use super::tags::{SHARED_TAG, TAG_MASK};
use crate::report::{Access, FaultKind};

/// Bits of an offset in a block's shared memory.
pub(crate) const RANK_SHIFT: u32 = 24;

/// What an address in the shared memory of a cluster stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterPlace {
    /// An offset in the executing block's.
    Own(u32),
    /// The same in the block of that rank.
    Other { rank: u32, offset: u32 },
}

/// The rank of the executing block in its cluster, which is one block.
pub(crate) fn own_rank(_: &Ctx<'_>) -> u32 {
    0
}

/// Resolves an address in `.shared::cluster`.
pub(crate) fn cluster_place(ctx: &Ctx<'_>, address: u32) -> ClusterPlace {
    let offset = address & ((1 << RANK_SHIFT) - 1);
    match address >> RANK_SHIFT {
        0 => ClusterPlace::Own(offset),
        n if n == own_rank(ctx) + 1 => ClusterPlace::Own(offset),
        n => ClusterPlace::Other {
            rank: n - 1,
            offset,
        },
    }
}

/// The number of a generic or shared address in shared memory; `None` if it lies elsewhere.
pub(crate) fn shared_number(address: u64) -> Option<u32> {
    let is_shared =
        address & TAG_MASK == SHARED_TAG && (address & !TAG_MASK) >> 32 == 0 || address >> 32 == 0;
    is_shared.then_some(address as u32)
}

/// The offset in the own block of an aligned access to the shared memory of the cluster; faults if
/// it is another's, lies outside, or is misaligned.
pub(crate) fn own_offset(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    address: u64,
    (access, align): (Access, u32),
) -> Option<u32> {
    let access = Access {
        addr: address & !TAG_MASK,
        ..access
    };
    let Some(number) = shared_number(address) else {
        ctx.illegal(i, lane as u32, access);
        return None;
    };
    match cluster_place(ctx, number) {
        ClusterPlace::Other { rank, offset } => {
            let why = format!(
                "shared memory of block {rank} of the cluster at {offset:#x}, which has one block"
            );
            ctx.fail(i, lane as u32, FaultKind::IllegalInstruction(why));
            None
        }
        ClusterPlace::Own(offset) => {
            let access = Access {
                addr: offset.into(),
                ..access
            };
            let end = u64::from(offset) + access.len;
            if !offset.is_multiple_of(align) {
                checks::refused(ctx, i, lane, access, align);
                ctx.misaligned(i, lane as u32, access);
                None
            } else if end > ctx.block.shared.len() as u64 {
                checks::refused(ctx, i, lane, access, align);
                ctx.illegal(i, lane as u32, access);
                None
            } else {
                Some(offset)
            }
        }
    }
}
