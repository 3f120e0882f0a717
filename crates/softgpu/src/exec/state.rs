//! State of a block between two instructions: its warps, their splits and frames, its barriers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::check_order::AccessLog;
use super::registers::{FrameRows, LANES, each};
use crate::check::BlockSegments;
use crate::check::asynchronous::AsyncShadow;
use crate::check::known::KnownBlocks;
use crate::check::mbarriers::MbarrierLives;
use crate::check::shared::SharedShadow;

/// Lanes of a warp that stand at the same place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    pub(crate) mask: u32,
    /// Basic block.
    pub(crate) pc: u32,
    /// Index in [`WarpState::frames`].
    pub(crate) frame: u32,
    pub(crate) state: SplitState,
    /// Has used its time slice while others wait for theirs.
    pub(crate) tired: bool,
}

impl Split {
    /// Whether it can run.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(
            self.state,
            SplitState::Ready | SplitState::Alone | SplitState::Passed(..)
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SplitState {
    Ready,
    /// Waits for other lanes of its warp before block `pc`.
    Parked,
    /// Is to enter block `pc` without the lanes that it has waited for.
    Alone,
    /// Stands at the barrier that ends block `pc` without all of its warp.
    AtBarrier,
    /// Has arrived at barrier `.0`.
    Barrier(u32),
    /// Waits at the barrier of its cluster.
    ClusterBarrier,
    /// Barrier `.0` completed with result `.1`, still to be written.
    Passed(u32, u32),
    /// Waits until the four warps have committed so many groups of products; goes on at `next`.
    Products {
        groups: u32,
        next: u32,
    },
    /// Waits for so many registers for each thread; goes on at `next`.
    Registers {
        wanted: u32,
        next: u32,
    },
}

/// One activation of a function.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Index in [`super::ctx::KernelCode::functions`].
    pub(crate) function: u32,
    pub(crate) rows: FrameRows,
    pub(crate) parent: u32,
    /// Block of the parent with the call that created this frame.
    pub(crate) call_block: u32,
    pub(crate) depth: u32,
    /// Lanes still inside, or below.
    pub(crate) lanes: u32,
    pub(crate) local_base: u32,
    /// Where each lane's local memory ends, if the function has taken some from the stack.
    pub(crate) tops: Option<Box<[u32; 32]>>,
}

/// An asynchronous copy that has not landed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingCopy {
    pub(crate) lane: u8,
    pub(crate) group: u32,
    pub(crate) dst: u32,
    pub(crate) src: u64,
    pub(crate) len: u32,
    pub(crate) src_len: u32,
    /// The mbarrier that tells of its completion; `NOWHERE` if none does.
    pub(crate) barrier: u32,
    /// Its instruction, counted through all functions; 0 without checks.
    pub(crate) pc: u32,
}

/// 32 threads.
#[derive(Debug, Default)]
pub(crate) struct WarpState {
    pub(crate) index: u32,
    /// Threads that were launched.
    pub(crate) launched: u32,
    /// Threads that have not exited.
    pub(crate) live: u32,
    pub(crate) splits: Vec<Split>,
    pub(crate) frames: Vec<Option<Frame>>,
    /// Local memory: word `w` of lane `l` is `w * 32 + l`.
    pub(crate) local: Vec<u32>,
    /// Initialised bytes of each word, with checks.
    pub(crate) local_init: Vec<u8>,
    pub(crate) copies: Vec<PendingCopy>,
    pub(crate) groups: Vec<u32>,
    pub(crate) products: ProductGroups,
    /// Registers of a thread since `setmaxnreg`.
    pub(crate) registers: Option<u32>,
    /// Lanes that have arrived in the phase of the cluster's barrier at hand, and those that have
    /// in one that is complete and have not waited for it yet.
    pub(crate) cluster_arrived: u32,
    pub(crate) cluster_passed: u32,
}

/// A warp's part in the products of its group of four.
#[derive(Debug, Default)]
pub(crate) struct ProductGroups {
    /// Groups of products committed so far.
    pub(crate) committed: u32,
    /// With checks: products that have not been waited for, the oldest first.
    pub(crate) pending: Vec<PendingProduct>,
    /// With checks: whether there was a fence before the first product.
    pub(crate) fenced: bool,
    /// With checks: watched writes since the last fence, by number, with their instructions.
    pub(crate) unfenced: Vec<(u32, u32)>,
    /// With checks: products issued.
    pub(crate) issued: u32,
    /// With checks, of the first of four warps: what the first of them to issue each product has
    /// issued.
    pub(crate) sequence: VecDeque<IssuedProduct>,
    /// Products that all four have issued, which it holds no longer.
    pub(crate) agreed: u32,
}

/// A product that is under way, as far as its warp knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingProduct {
    /// Address of its function's code, and its number in that.
    pub(crate) function: usize,
    pub(crate) product: u32,
    /// Its instruction, counted through all functions.
    pub(crate) pc: u32,
    /// The group that it is of, from 1.
    pub(crate) group: u32,
}

/// A product as one of four warps has issued it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IssuedProduct {
    pub(crate) pc: u32,
    pub(crate) warp: u32,
    /// Of A, or 0, and of B.
    pub(crate) descriptors: [u64; 2],
}

impl WarpState {
    /// The bytes that `part` names of each lane's local memory hold nothing from now on.
    pub(crate) fn forget_local(&mut self, mask: u32, part: impl Fn(usize) -> Range<u32>) {
        each(mask, |l| {
            let bytes = part(l);
            for word in bytes.start / 4..bytes.end.div_ceil(4) {
                if let Some(init) = self.local_init.get_mut(word as usize * LANES + l) {
                    *init = 0;
                }
            }
        });
    }
}

/// A hardware barrier.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Barrier {
    pub(crate) arrived: u32,
    /// 0: every live thread.
    pub(crate) expected: u32,
    pub(crate) popc: u32,
    pub(crate) and: bool,
    pub(crate) or: bool,
}

/// Where an mbarrier was initialised, and how far it has come since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MbarrierOrigin {
    /// Its instruction, counted through all functions.
    pub(crate) pc: u32,
    /// Thread of the block.
    pub(crate) thread: u32,
    /// Arrivals that the first phase needs.
    pub(crate) arrivals: u32,
    /// Phases that have ended.
    pub(crate) phases: u64,
    /// Bytes that were added to what the phase at hand expects.
    pub(crate) expected_bytes: i64,
}

/// A wait for an mbarrier that found its phase not over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedWait {
    /// Offset of the mbarrier.
    pub(crate) at: u32,
    pub(crate) pc: u32,
    pub(crate) parity: u64,
}

/// How long a block has been watched for waits in vain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HangWatch {
    /// Changes of mbarriers when it began.
    pub(crate) seen: u64,
    /// Turns of all warps since.
    pub(crate) rounds: u32,
    /// Rounds to wait before the next look.
    pub(crate) patience: u32,
    /// Looks that found all threads waiting.
    pub(crate) found: u32,
    /// Whether what threads execute is looked at.
    pub(crate) looking: bool,
    /// Whether some thread has done more than waiting since the look began.
    pub(crate) is_alive: bool,
    /// Whether some thread reads a clock, and when the look began; nanoseconds of the launch.
    pub(crate) timed: Option<u64>,
}

/// What a block knows of its mbarriers beside their own bytes.
#[derive(Debug, Default)]
pub(crate) struct MbarrierBook {
    /// By the offset in shared memory.
    origins: FxHashMap<u32, MbarrierOrigin>,
    /// By thread of the block: the last wait in vain.
    pub(crate) waits: FxHashMap<u32, FailedWait>,
    pub(crate) changes: u64,
    pub(crate) watch: HangWatch,
}

impl MbarrierBook {
    pub(crate) fn clear(&mut self) {
        self.origins.clear();
        self.waits.clear();
        self.changes = 0;
        self.watch = HangWatch::default();
    }

    /// The mbarrier at `at` is initialised by (instruction, thread, arrivals), or invalidated.
    pub(crate) fn begun(&mut self, at: u32, by: Option<(u32, u32, u32)>) {
        self.changes += 1;
        match by {
            None => {
                self.origins.remove(&at);
            }
            Some((pc, thread, arrivals)) => {
                let origin = MbarrierOrigin {
                    pc,
                    thread,
                    arrivals,
                    phases: 0,
                    expected_bytes: 0,
                };
                self.origins.insert(at, origin);
            }
        }
    }

    /// The mbarrier at `at` has changed, and its phase is over if `ends`.
    pub(crate) fn changed(&mut self, at: u32, ends: bool) {
        self.changes += 1;
        if ends && let Some(origin) = self.origins.get_mut(&at) {
            origin.phases += 1;
            origin.expected_bytes = 0;
        }
    }

    pub(crate) fn expects(&mut self, at: u32, bytes: i64) {
        if let Some(origin) = self.origins.get_mut(&at) {
            origin.expected_bytes += bytes;
        }
    }

    pub(crate) fn origin(&self, at: u32) -> Option<MbarrierOrigin> {
        self.origins.get(&at).copied()
    }
}

/// The barrier of a cluster, beside what its warps hold of it; the block of rank 0 has it.
#[derive(Debug, Default)]
pub(crate) struct ClusterBarrier {
    /// Whether any thread has arrived in the phase at hand.
    pub(crate) has_arrivals: bool,
    /// With checks: what those that have arrived tell.
    pub(crate) gathering: Arc<KnownBlocks>,
    /// The same of the phase before.
    pub(crate) opened: Arc<KnownBlocks>,
}

/// Warps of a warpgroup, which form a product together.
pub(crate) const GROUP_WARPS: usize = 4;

/// A block in execution. Can be suspended and resumed.
#[derive(Debug, Default)]
pub(crate) struct BlockState {
    pub(crate) index: [u32; 3],
    pub(crate) linear: u64,
    pub(crate) warps: Vec<WarpState>,
    pub(crate) shared: Vec<u8>,
    pub(crate) barriers: Vec<Barrier>,
    /// Whether any thread has arrived at a barrier yet.
    pub(crate) has_arrivals: bool,
    pub(crate) cluster_barrier: ClusterBarrier,
    pub(crate) shadow: Option<Box<SharedShadow>>,
    pub(crate) book: MbarrierBook,
    /// Which mbarriers are valid, with checks.
    pub(crate) mbarriers: MbarrierLives,
    /// With checks, from the first copy of the asynchronous proxy on: what those access.
    pub(crate) asyncs: Option<Box<AsyncShadow>>,
    /// With checks: addresses among which are all sources of copies that have not landed.
    pub(crate) sources: Range<u64>,
    pub(crate) next_warp: usize,
    /// This block's segments in the shadow of global memory.
    pub(crate) segments: BlockSegments,
    /// The log of unchecked accesses; `None` if this block has the turn, or if all accesses are
    /// checked immediately.
    pub(crate) log: Option<Box<AccessLog>>,
}

pub(crate) enum SplitOutcome {
    /// The split is at this block.
    Go(u32),
    /// Choose another split: this one has ended, waits, or has become two.
    Choose,
    Yield(u32),
    Trouble,
}

/// A cluster in execution.
#[derive(Debug, Default)]
#[expect(
    clippy::vec_box,
    reason = "each changes places with the context's block, which is a box"
)]
pub(crate) struct ClusterState {
    /// By rank.
    pub(super) blocks: Vec<Box<BlockState>>,
    /// The rank of the block at work.
    pub(super) current: usize,
    /// Bit `rank`: the block has ended.
    pub(super) ended: u32,
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
