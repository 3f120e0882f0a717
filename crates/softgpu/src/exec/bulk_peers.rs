//! Bulk copies into the shared memory of other blocks of a cluster.
//!
//! What is delivered there is an access from afar, as `st.async` is: ordered before those that wait
//! for the mbarrier beside it ([`super::cluster_mbarrier`]).

use super::checks::{self, CheckedAccess};
use super::cluster::{ClusterPlace, cluster_place, in_memory_of, reachable};
use super::cluster_mbarrier::complete_tx;
use super::ctx::{Ctx, DecodedInst};
use super::tags::{offset_of, shared_number};
use crate::report::{Access, AccessKind, MemSpace};

/// A copy into another block's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerCopy {
    /// Generic or shared addresses of the destination and of the mbarrier.
    pub(crate) dst: u64,
    pub(crate) mbarrier: u64,
    /// Bytes from the destination on that it may write, and those that the mbarrier counts.
    pub(crate) reach: u32,
    pub(crate) bytes: u32,
    pub(crate) align: u32,
}

/// The rank of the block whose memory `address` is in, if that is not the own one.
pub(crate) fn other_rank(ctx: &Ctx<'_>, address: u64) -> Option<u32> {
    match cluster_place(ctx, shared_number(address)?) {
        ClusterPlace::Own(_) => None,
        ClusterPlace::Other { rank, .. } => Some(rank),
    }
}

/// Has `write` put a lane's copy into the memory of the block of another rank, which stands in the
/// place of the own one, from an offset on; then ends its transactions there.
pub(crate) fn deliver<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    copy: PeerCopy,
    write: impl FnOnce(&mut Ctx<'_>, u32) -> Option<()>,
) -> Option<()> {
    let (number, bar) = (shared_number(copy.dst)?, shared_number(copy.mbarrier)?);
    let access = CheckedAccess::plain(copy.reach, AccessKind::AsyncCopy);
    let rank = reachable(ctx, i, l, number, access)?;
    let of_bar = other_rank(ctx, copy.mbarrier).unwrap_or(ctx.rank());
    let (at, bar) = (offset_of(number), offset_of(bar));
    if of_bar != rank {
        checks::other_mbarrier(ctx, i, l as u32, (rank, at), of_bar, access);
    }
    // The mbarrier is taken for one of the block that the data go to.
    if CHECK && !checks::asynchronous(ctx, i, l as u32, (rank, at, bar), access) {
        return Some(());
    }
    let whole = Access {
        kind: AccessKind::AsyncCopy,
        space: MemSpace::Shared,
        addr: at.into(),
        len: copy.reach.into(),
    };
    in_memory_of(ctx, rank, |ctx| {
        let len = ctx.block.shared.len() as u64;
        if u64::from(at) + u64::from(copy.reach) > len || u64::from(bar) + 8 > len {
            ctx.illegal(i, l as u32, whole);
            return None;
        }
        if !at.is_multiple_of(copy.align) || !bar.is_multiple_of(8) {
            ctx.misaligned(i, l as u32, whole);
            return None;
        }
        write(ctx, at)
    })??;
    complete_tx(ctx, i, l, (rank, bar), copy.bytes);
    Some(())
}
