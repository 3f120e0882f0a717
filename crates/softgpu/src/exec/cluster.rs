//! Shared memory of other blocks of a cluster: where an address points, and access to it.
//!
//! Invariant: what is done in another block's memory is done while that stands in the place of the
//! own one; a block that has ended keeps its shared memory until the cluster has.
//!
//! Elsewhere: the blocks themselves ([`super::state::ClusterState`]), their turns
//! ([`super::cluster_turns`]).

use super::access::inside;
use super::checks::{self, CheckedAccess};
use super::ctx::{Ctx, DecodedInst, LaunchRun};
use super::registers::{LANES, each};
use super::tags::{CLUSTER_OFFSET, RANK_SHIFT, TAG_MASK, shared_number};
use crate::report::{Access, FaultKind, MemSpace};

/// Most blocks of a cluster.
pub(crate) const MOST_BLOCKS: u32 = 16;
/// Where an address of shared memory of a cluster points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterPlace {
    /// An offset in the executing block's own.
    Own(u32),
    /// The same in the block of that rank, which the cluster need not have.
    Other { rank: u32, offset: u32 },
}

/// Resolves an address of `.shared::cluster`.
#[inline(always)]
pub(crate) fn cluster_place(ctx: &Ctx<'_>, address: u32) -> ClusterPlace {
    let (rank, offset) = (address >> RANK_SHIFT, address & CLUSTER_OFFSET);
    match rank.checked_sub(1) {
        None => ClusterPlace::Own(offset),
        Some(rank) if rank == ctx.rank() => ClusterPlace::Own(offset),
        Some(rank) => ClusterPlace::Other { rank, offset },
    }
}

/// Lanes by whose shared memory they access.
pub(crate) struct PlacedLanes {
    /// Those that access the block's own.
    pub(crate) own: u32,
    /// Where, in whichever it is.
    pub(crate) at: [u32; LANES],
    /// The others.
    pub(crate) away: u32,
}

/// Resolves the addresses of the lanes of `mask`.
#[inline(always)]
pub(crate) fn placed(ctx: &Ctx<'_>, address: &[u32; LANES], mask: u32) -> PlacedLanes {
    if address.iter().fold(0, |x, a| x | a) >> RANK_SHIFT == 0 {
        return PlacedLanes {
            own: mask,
            at: *address,
            away: 0,
        };
    }
    let mut own = 0;
    each(mask, |l| {
        let is_own = matches!(cluster_place(ctx, address[l]), ClusterPlace::Own(_));
        own |= u32::from(is_own) << l;
    });
    PlacedLanes {
        own,
        at: address.map(|a| a & CLUSTER_OFFSET),
        away: mask & !own,
    }
}

/// Has the lanes of `mask` access the shared memory of other blocks, block by block: `f` gets the
/// lanes whose access is admitted with their offsets, while that memory stands in the place of the
/// own one.
#[cold]
pub(crate) fn with_peers<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    address: &[u32; LANES],
    mask: u32,
    access: CheckedAccess<'_>,
    mut f: impl FnMut(&mut Ctx<'_>, &[u32; LANES], u32),
) {
    let at = address.map(|a| a & CLUSTER_OFFSET);
    let mut rest = mask;
    while rest != 0 {
        let first = rest.trailing_zeros() as usize & 31;
        let part = address[first] >> RANK_SHIFT;
        let mut lanes = 0;
        each(rest, |l| {
            lanes |= u32::from(address[l] >> RANK_SHIFT == part) << l;
        });
        rest &= !lanes;
        let Some(rank) = reachable(ctx, i, first, address[first], access) else {
            continue;
        };
        if CHECK {
            lanes = checks::peer(ctx, i, rank, &at, lanes, access);
        }
        in_memory_of(ctx, rank, |ctx| {
            let (size, kind) = (access.size, access.kind);
            let len = ctx.block.shared.len();
            let lanes = inside(ctx, i, &at, lanes, size, len, kind, MemSpace::Shared);
            f(ctx, &at, lanes);
        });
    }
}

/// The rank of the other block in whose memory the access of lane `lane` lies. Faults if there is
/// no such block, or if it has ended.
pub(crate) fn reachable(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    address: u32,
    access: CheckedAccess<'_>,
) -> Option<u32> {
    let ClusterPlace::Other { rank, offset } = cluster_place(ctx, address) else {
        return None;
    };
    if rank >= ctx.run.cluster_size {
        checks::no_such_rank(ctx, i, lane as u32, rank);
        let access = Access {
            kind: access.kind,
            space: MemSpace::Shared,
            addr: address.into(),
            len: access.size.into(),
        };
        ctx.illegal(i, lane as u32, access);
        return None;
    }
    if ctx.cluster.as_ref().is_some_and(|c| c.has_ended(rank)) {
        checks::peer_has_ended(ctx, i, lane as u32, (rank, offset), access);
        let block = ctx.index_of(rank);
        ctx.fail(i, lane as u32, FaultKind::AbsentPeer { block, rank });
        return None;
    }
    Some(rank)
}

/// Calls `f` while the shared memory of the block of `rank` stands in the place of the own one;
/// not at all if there is no such block.
pub(crate) fn in_memory_of<R>(
    ctx: &mut Ctx<'_>,
    rank: u32,
    f: impl FnOnce(&mut Ctx<'_>) -> R,
) -> Option<R> {
    if rank == ctx.rank() {
        return Some(f(ctx));
    }
    exchange_memory(ctx, rank).then(|| {
        let result = f(ctx);
        exchange_memory(ctx, rank);
        result
    })
}

/// Exchanges the own shared memory and that of the block of `rank`.
fn exchange_memory(ctx: &mut Ctx<'_>, rank: u32) -> bool {
    let peer = ctx.cluster.as_mut().and_then(|c| c.peer(rank));
    peer.map(|peer| std::mem::swap(&mut ctx.block.shared, &mut peer.shared))
        .is_some()
}

impl Ctx<'_> {
    /// The index of the block of `rank` of the cluster.
    pub(crate) fn index_of(&mut self, rank: u32) -> [u32; 3] {
        let own = self.block.index;
        let peer = self.cluster.as_mut().and_then(|c| c.peer(rank));
        peer.map_or(own, |peer| peer.index)
    }

    /// The rank of the block at work in its cluster.
    #[inline(always)]
    pub(crate) fn rank(&self) -> u32 {
        self.cluster.as_ref().map_or(0, |c| c.current as u32)
    }
}

impl LaunchRun {
    /// Blocks of the cluster along each axis, clusters of the grid.
    pub(crate) fn cluster_shape(&self) -> ([u32; 3], [u32; 3]) {
        let cluster = self.spec.cluster;
        let count = std::array::from_fn(|axis| self.spec.grid[axis] / cluster[axis].max(1));
        (cluster, count)
    }
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
