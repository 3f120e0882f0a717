//! Arguments and results of kernels, in page-locked memory.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed},
};

use bytemuck::{Pod, Zeroable};
use fercuda_cuda::{PinnedBuffer, SharedWords};

use super::outcome::{BlockOutcome, COMMITTED, OUTCOME_WORDS, PENDING};
use super::work::Identity;
use crate::layout::IDENTITY_WORDS;

/// A job, as kernels read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockJob {
    pub(super) block: u64,
    pub(super) data: u64,
    pub(super) identity: u64,
    /// Address of the checksums that the rows at `data` must have, or 0.
    pub(super) sums: u64,
    pub(super) first: u32,
    pub(super) rows: u32,
    /// Not 0 if rows that are not named become zeros.
    pub(super) clears: u32,
    /// Pads to a multiple of 16 bytes, which kernels load at once.
    pub(super) reserved: u32,
}

/// A job in the launch's parameters, with the block's identity, as kernels read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct InlineJob {
    pub(super) job: BlockJob,
    pub(super) identity: Identity,
}

/// Arguments and results of kernels, in page-locked memory.
#[derive(Debug)]
pub(super) struct LaunchMailbox {
    pub(super) jobs: PinnedBuffer<BlockJob>,
    /// One outcome for each job, or for each of its parts. Kernels write them while the host polls.
    pub(super) outcomes: SharedWords,
    pub(super) identities: PinnedBuffer<u64>,
    /// Rows and a record that the host verifies.
    pub(super) host_rows: PinnedBuffer<u8>,
}

impl LaunchMailbox {
    /// Returns the job of a slot, with the block's identity.
    pub(super) fn inline_job(&self, slot: usize) -> InlineJob {
        let mut identity = [0; IDENTITY_WORDS];
        identity.copy_from_slice(&self.identities[slot * IDENTITY_WORDS..][..IDENTITY_WORDS]);
        InlineJob {
            job: self.jobs[slot],
            identity,
        }
    }

    /// Returns the words of the first `count` outcomes.
    fn outcomes(&self, count: usize) -> impl Iterator<Item = &[AtomicU32]> {
        self.outcomes
            .words()
            .chunks_exact(OUTCOME_WORDS)
            .take(count)
    }

    /// Marks the first `count` outcomes as pending.
    pub(super) fn reset(&self, count: usize) {
        self.outcomes(count)
            .for_each(|it| it[0].store(PENDING, Relaxed));
    }

    /// Returns whether `count` results have been written. The first word is the last one that a
    /// kernel writes.
    pub(super) fn are_answered(&self, count: usize) -> bool {
        self.outcomes(count)
            .all(|it| !matches!(it[0].load(Acquire), PENDING | COMMITTED))
    }

    /// Returns whether `count` blocks are changed, or verified and being changed.
    pub(super) fn are_committed(&self, count: usize) -> bool {
        self.outcomes(count)
            .all(|it| matches!(it[0].load(Relaxed), COMMITTED | 0))
    }

    /// Reads the results, merging those of each job. A missing result is no success.
    pub(super) fn read(&self, parts: usize, jobs: &mut [BlockOutcome]) {
        let read = |it: &[AtomicU32]| match it[0].load(Acquire) {
            PENDING | COMMITTED => BlockOutcome::LOST,
            state => BlockOutcome {
                state,
                symbols: it[1].load(Relaxed),
                rows: it[2].load(Relaxed),
                words: it[3].load(Relaxed),
            },
        };
        let mut all = self.outcomes(jobs.len() * parts).map(read);
        for job in jobs {
            let of_parts = all.by_ref().take(parts);
            *job = of_parts.fold(BlockOutcome::CLEAN, BlockOutcome::with);
        }
    }
}
