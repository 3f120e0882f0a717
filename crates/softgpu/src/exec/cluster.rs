//! Clusters: blocks that run side by side and reach each other's shared memory.
//!
//! The blocks of a cluster are begun together and run by turns, on one thread of the host, until
//! all have ended: so each may wait for any other, and an access to the shared memory of another
//! is one like any other. A cluster is suspended and resumed as a whole.
//!
//! Invariants: the context has the block at work, and [`ClusterState`] the others; what stands in
//! the place of the block at work means nothing. A block that has ended keeps its shared memory
//! until the cluster has.

use super::access::inside;
use super::block;
use super::checks::{self, CheckedAccess};
use super::ctx::{Ctx, DecodedInst, LaunchRun};
use super::registers::{LANES, each};
use super::state::BlockState;
use super::tags::{SHARED_TAG, TAG_MASK};
use super::warp::WarpStop;
use crate::report::{Access, Fault, FaultKind, MemSpace};

/// Most blocks of a cluster.
pub(crate) const MOST_BLOCKS: u32 = 16;
/// Where the rank, plus one, begins in an address of shared memory of a cluster.
pub(crate) const RANK_SHIFT: u32 = 24;
/// The offset in an address of shared memory of a cluster.
const OFFSET: u32 = (1 << RANK_SHIFT) - 1;

/// A cluster in execution.
#[derive(Debug, Default)]
#[expect(
    clippy::vec_box,
    reason = "each changes places with the context's block, which is a box"
)]
pub(crate) struct ClusterState {
    /// By rank.
    blocks: Vec<Box<BlockState>>,
    /// The rank of the block at work.
    current: usize,
    /// Bit `rank`: the block has ended.
    ended: u32,
}

impl ClusterState {
    /// The block of `rank`, if it is another than the one at work.
    pub(crate) fn peer(&mut self, rank: u32) -> Option<&mut BlockState> {
        let is_current = rank as usize == self.current;
        let found = self.blocks.get_mut(rank as usize);
        found.filter(|_| !is_current).map(|block| &mut **block)
    }

    /// All blocks but the one at work.
    pub(crate) fn peers(&mut self) -> impl Iterator<Item = &mut BlockState> {
        let current = self.current;
        let others = self.blocks.iter_mut().enumerate();
        others
            .filter(move |(rank, _)| *rank != current)
            .map(|(_, block)| &mut **block)
    }

    /// Whether the block of `rank` has ended.
    pub(crate) fn has_ended(&self, rank: u32) -> bool {
        self.ended >> rank & 1 != 0
    }
}

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
    let (rank, offset) = (address >> RANK_SHIFT, address & OFFSET);
    match rank.checked_sub(1) {
        None => ClusterPlace::Own(offset),
        Some(rank) if rank == ctx.rank() => ClusterPlace::Own(offset),
        Some(rank) => ClusterPlace::Other { rank, offset },
    }
}

/// The number of a generic or shared address in shared memory; `None` if it lies elsewhere.
pub(crate) fn shared_number(address: u64) -> Option<u32> {
    let is_shared =
        address & TAG_MASK == SHARED_TAG && (address & !TAG_MASK) >> 32 == 0 || address >> 32 == 0;
    is_shared.then_some(address as u32)
}

/// An address of `.shared::cluster`: `at` in the block of `rank`.
pub(crate) fn cluster_address(rank: u32, at: u32) -> u32 {
    (rank.min(0xfe) + 1) << RANK_SHIFT | at & OFFSET
}

/// The offset of an address of `.shared::cluster` in whichever block's shared memory it is in.
pub(crate) fn offset_of(address: u32) -> u32 {
    address & OFFSET
}

/// The rank that an address of `.shared::cluster` names; `None` if it is the executing block's.
pub(crate) fn rank_of(address: u32) -> Option<u32> {
    (address >> RANK_SHIFT).checked_sub(1)
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
        at: address.map(|a| a & OFFSET),
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
    let at = address.map(|a| a & OFFSET);
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

    /// The linear number of the block of `rank` in cluster `n`.
    fn block_of(&self, n: u64, rank: u32) -> u64 {
        let (cluster, count) = self.cluster_shape();
        let at = |n: u64, d: [u32; 3]| {
            let (x, y) = (u64::from(d[0]), u64::from(d[1]));
            [n % x, n / x % y, n / x / y]
        };
        let (first, inner) = (at(n, count), at(rank.into(), cluster));
        let index: [u64; 3] =
            std::array::from_fn(|axis| first[axis] * u64::from(cluster[axis]) + inner[axis]);
        let [x, y, _] = self.spec.grid.map(u64::from);
        index[0] + x * (index[1] + y * index[2])
    }
}

/// Makes the block of `rank` the one at work.
fn switch_to(ctx: &mut Ctx<'_>, rank: usize) {
    let Some(cluster) = &mut ctx.cluster else {
        return;
    };
    if cluster.current != rank {
        std::mem::swap(&mut ctx.block, &mut cluster.blocks[cluster.current]);
        std::mem::swap(&mut ctx.block, &mut cluster.blocks[rank]);
        cluster.current = rank;
    }
}

/// Sets cluster `n` up in `ctx`, with all of its blocks.
pub(crate) fn start(ctx: &mut Ctx<'_>, n: u64) {
    let run = ctx.run;
    if run.cluster_size == 1 {
        return block::start(ctx, n);
    }
    let cluster = ctx.cluster.get_or_insert_default();
    cluster.ended = 0;
    let size = run.cluster_size as usize;
    cluster.blocks.resize_with(size, Default::default);
    for rank in 0..size {
        switch_to(ctx, rank);
        block::start(ctx, run.block_of(n, rank as u32));
    }
}

/// Runs the blocks of the cluster by turns, until all have ended, one fails, or others should have
/// their turn. `lend_a_thread` is as in [`block::run`].
pub(crate) fn run(ctx: &mut Ctx<'_>, lend_a_thread: impl Fn()) -> WarpStop {
    let size = ctx.run.cluster_size as usize;
    if size == 1 {
        return block::run(ctx, lend_a_thread);
    }
    let all = u32::MAX >> (32 - size);
    let mut rank = ctx.rank() as usize;
    // Blocks one after another that could not go on, and that had nothing to do for a while.
    let (mut stuck, mut quiet, mut turns) = (0, 0, 0);
    loop {
        let ended = ctx.cluster.as_ref().map_or(all, |c| c.ended);
        if ended == all {
            return WarpStop::Done;
        }
        if ended >> rank & 1 != 0 {
            rank = (rank + 1) % size;
            continue;
        }
        let left = (all & !ended).count_ones();
        switch_to(ctx, rank);
        let before = ctx.instructions;
        match block::run(ctx, &lend_a_thread) {
            WarpStop::Trouble => return WarpStop::Trouble,
            WarpStop::Done => {
                checks::leaves_cluster(ctx);
                checks::end_block(ctx);
                if let Some(cluster) = &mut ctx.cluster {
                    cluster.ended |= 1 << rank;
                }
                (stuck, quiet) = (0, 0);
            }
            WarpStop::Blocked if ctx.instructions == before => stuck += 1,
            WarpStop::Blocked => (stuck, quiet) = (0, 0),
            WarpStop::Yielded => {
                stuck = 0;
                quiet = if ctx.idle { quiet + 1 } else { 0 };
                turns += 1;
            }
        }
        if ctx.run.must_stop() {
            return WarpStop::Yielded;
        }
        if stuck > left {
            if !enter_alone(ctx) {
                deadlock(ctx);
                return WarpStop::Trouble;
            }
            stuck = 0;
        }
        rank = (rank + 1) % size;
        // A round in which blocks have yielded: they may wait for other clusters.
        ctx.idle = quiet >= left;
        if ctx.idle || turns > 4 * left {
            return WarpStop::Yielded;
        }
    }
}

/// Whether lanes of some block go on that waited for the rest of their warp in vain.
fn enter_alone(ctx: &mut Ctx<'_>) -> bool {
    let size = ctx.run.cluster_size as usize;
    (0..size).any(|rank| {
        switch_to(ctx, rank);
        block::enter_alone(ctx)
    })
}

/// Ends the kernel: no thread of the cluster can go on.
fn deadlock(ctx: &mut Ctx<'_>) {
    let size = ctx.run.cluster_size as usize;
    let (mut text, mut place) = (Vec::new(), None);
    for rank in 0..size {
        switch_to(ctx, rank);
        let waiting = block::waiting(ctx.run, &ctx.block);
        let [x, y, z] = ctx.block.index;
        for (at, what) in waiting {
            if text.len() < 8 {
                text.push(format!("block ({x},{y},{z}): {what}"));
            }
            place.get_or_insert(at);
        }
    }
    // One report for all of them.
    for rank in 0..size {
        switch_to(ctx, rank);
        if block::report_vain_wait(ctx) {
            break;
        }
    }
    ctx.trouble = Some(Box::new(Fault {
        kind: FaultKind::Deadlock(text.join("; ")),
        place,
        allocation: None,
    }));
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
