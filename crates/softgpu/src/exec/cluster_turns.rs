//! Turns of the blocks of a cluster.
//!
//! The blocks of a cluster are begun together and run by turns, on one thread of the host, until
//! all have ended: so each may wait for any other, and an access to the shared memory of another
//! is one like any other. A cluster is suspended and resumed as a whole.
//!
//! Invariant: the context has the block at work, and [`ClusterState`](super::state::ClusterState)
//! the others; what stands in the place of the block at work means nothing.

use super::block;
use super::checks;
use super::ctx::{Ctx, LaunchRun};
use super::warp::WarpStop;
use crate::report::{Fault, FaultKind};

impl LaunchRun {
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
