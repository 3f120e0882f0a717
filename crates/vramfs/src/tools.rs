//! Maintenance of a store in use: scrubbing, error injection, growing and shrinking.
//!
//! Each call does a short piece of work and returns where the next one begins. Scrubbing has an
//! access of its own, of low priority on the device.
//!
//! Invariant: memory is freed only when its blocks are retired and none is in use, and no thread
//! scans blocks meanwhile (`extent`). Elsewhere: requests for it (`control`), operations on one
//! block (`store`).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::control::{InjectedFault, ScrubResult};
use crate::engine::{BlockWork, RowLocation};
use crate::error::{Error, Result};
use crate::layout::{
    CODED_ROWS, PAGES, RECORD_OFFSET, RECORD_SUM_OFFSET, ROW_BYTES, WORDS, bit_position,
};
use crate::medium::{BlockAccess as _, Medium};
use crate::store::Store;

/// Approximate duration of one call.
pub(crate) const CALL_DURATION: Duration = Duration::from_millis(20);
/// Blocks of a call's first scan; later ones have more while a scan is short.
const FIRST_SCAN_BLOCKS: u32 = 16;
const MAX_SCAN_BLOCKS: u32 = 8192;
/// Maximum number of errors that one call injects.
pub(crate) const MAX_FAULTS: u64 = 1024;
/// Maximum length of a burst.
const BURST_BYTES: usize = 3 << 10;

/// Why a store cannot be resized.
#[derive(Debug)]
pub(crate) enum ResizeError {
    /// More than the new capacity is in use: pages in use.
    InUse(u64),
    /// More blocks than the store can have: the maximum.
    TooLarge(u64),
    /// The medium could not grow.
    Medium(Error),
}

impl<M: Medium> Store<M> {
    /// Verifies blocks in use, from the block `from` on, and corrects those with errors. Takes
    /// about `time`, and verifies no more than `most` blocks.
    ///
    /// # Errors
    /// The medium's.
    pub fn scrub(&self, from: u32, time: Duration, most: u32) -> Result<ScrubResult> {
        let begin = Instant::now();
        let mut background = self.background();
        if background.is_none() {
            *background = Some(self.medium().background()?);
        }
        let access = background.as_mut().ok_or(Error::Failed)?;
        let mut answer = ScrubResult::default();
        let mut at = from.min(self.extent().backed);
        let mut step = FIRST_SCAN_BLOCKS;
        let done = loop {
            let extent = self.extent();
            let left = u64::from(most).saturating_sub(answer.verified);
            let end = at.saturating_add(step.min(left as u32)).min(extent.backed);
            let used: Vec<u32> = (at..end)
                .filter(|block| self.space().used_of(*block) != 0)
                .collect();
            let scan_begin = Instant::now();
            if let Err(error) = self.scan_and_correct(access, &used, &mut answer) {
                break Err(error);
            }
            at = end;
            if at >= extent.backed {
                break Ok(0);
            }
            if begin.elapsed() >= time || answer.verified >= u64::from(most) {
                break Ok(u64::from(at));
            }
            if scan_begin.elapsed() < time / 8 {
                step = (step * 2).min(MAX_SCAN_BLOCKS);
            }
        };
        if background.as_ref().is_some_and(M::Access::is_spent) {
            // The next call makes another access.
            *background = None;
        }
        answer.next = done?;
        Ok(answer)
    }

    pub(crate) fn scan_and_correct(
        &self,
        access: &mut M::Access,
        used: &[u32],
        answer: &mut ScrubResult,
    ) -> Result<()> {
        let suspect = {
            // Locked in the order that all threads use. A writer of one of them waits for the whole
            // scan.
            let _shared: Vec<_> = used.iter().map(|block| self.shared(*block)).collect();
            access.scan(used)?
        };
        let scanned = used.len() as u64;
        answer.verified += scanned;
        self.counters().scrubbed_blocks.fetch_add(scanned, Relaxed);
        for block in suspect {
            match self.verify_and_correct(access, block) {
                Ok(was_wrong) => answer.corrected += u64::from(was_wrong),
                Err(Error::Lost { .. }) => answer.lost += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Verifies a block under its lock, and corrects it if it is in use. Returns whether it had
    /// errors.
    fn verify_and_correct(&self, access: &mut M::Access, block: u32) -> Result<bool> {
        let outcome = {
            let identity = self.shared(block);
            // A block that was never written, is free, or was not written since it was allocated
            // has no valid content.
            if !self.space().is_in_generation(block, identity[1]) {
                return Ok(false);
            }
            let work = BlockWork {
                block: block as usize,
                rows: 0..0,
                place: RowLocation::Staging(0),
                identity: Some(&identity),
            };
            access.verify(&[work])?[0]
        };
        if outcome.is_clean() {
            return Ok(false);
        }
        let identity = self.alone(block);
        if !self.space().is_in_generation(block, identity[1]) {
            return Ok(false);
        }
        self.correct(access, block, &identity).map(|()| true)
    }

    /// Injects up to `count` errors into some of these blocks. Returns how many it injected.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn inject(
        &self,
        blocks: &[u32],
        fault: InjectedFault,
        count: u64,
        random: &mut Rng,
    ) -> Result<u64> {
        let mut done = 0;
        let mut way = self.acquire_access()?;
        let access = way.access();
        let _extent = self.extent();
        for _ in 0..count {
            let Some(block) = random.choice(blocks) else {
                break;
            };
            let identity = self.alone(*block);
            if !self.space().is_in_generation(*block, identity[1]) {
                continue;
            }
            let (at, mask) = choose_fault(fault, random);
            access.flip_bits(*block as usize, at, &mask)?;
            done += 1;
        }
        Ok(done)
    }

    /// Blocks in use.
    pub(crate) fn used_blocks(&self) -> Vec<u32> {
        let all = 0..self.extent().backed;
        all.filter(|block| self.space().used_of(*block) != 0)
            .collect()
    }

    /// Sets the capacity to `blocks` blocks; those beyond it are retired.
    pub(crate) fn resize(&self, blocks: u64) -> std::result::Result<(), ResizeError> {
        let most = self.blocks();
        let mut extent = self.extent_alone();
        let Some(blocks) = u32::try_from(blocks).ok().filter(|it| *it <= most) else {
            return Err(ResizeError::TooLarge(u64::from(most)));
        };
        let space = self.space();
        if blocks >= extent.capacity {
            if blocks > extent.backed {
                let grown = self.medium().grow(blocks as usize);
                grown.map_err(ResizeError::Medium)?;
                extent.backed = blocks;
            }
            space.add(extent.capacity..blocks);
        } else {
            let used = space.used_pages();
            if used > u64::from(blocks) * PAGES as u64 {
                return Err(ResizeError::InUse(used));
            }
            space.retire(blocks..extent.capacity);
        }
        extent.capacity = blocks;
        Ok(())
    }

    /// The retired blocks that still have memory.
    pub(crate) fn retired(&self) -> Range<u32> {
        let extent = self.extent();
        extent.capacity..extent.backed
    }

    /// Frees the memory of retired blocks if none of them is in use. Returns how many are.
    pub(crate) fn trim(&self) -> u32 {
        let mut extent = self.extent_alone();
        let beyond = extent.capacity..extent.backed;
        let left = self.space().count_undrained(beyond.clone());
        if left == 0 && !beyond.is_empty() {
            // Memory that is added here later holds no block.
            beyond.for_each(|block| self.reset_identity(block));
            self.medium().shrink(extent.capacity as usize);
            extent.backed = extent.capacity;
        }
        left
    }
}

/// Where an injected error is in a block, and which bits it flips.
fn choose_fault(fault: InjectedFault, random: &mut Rng) -> (usize, Vec<u8>) {
    let filled = |random: &mut Rng, len: usize| -> Vec<u8> {
        // Every byte changes, so every symbol of a row is wrong.
        std::iter::repeat_with(|| random.u8(1..))
            .take(len)
            .collect()
    };
    match fault {
        InjectedFault::Symbol => {
            let row = random.usize(..CODED_ROWS);
            let (word, bits) = (random.usize(..WORDS), random.u8(1..));
            let mut mask = vec![0; ROW_BYTES];
            for bit in (0..8).filter(|bit| bits >> bit & 1 != 0) {
                let (byte, at) = bit_position(word, bit);
                mask[byte] |= 1 << at;
            }
            (row * ROW_BYTES, mask)
        }
        InjectedFault::Row => {
            let row = random.usize(..CODED_ROWS);
            (row * ROW_BYTES, filled(random, ROW_BYTES))
        }
        InjectedFault::Burst => {
            let len = random.usize(1..=BURST_BYTES);
            let at = random.usize(..=RECORD_OFFSET - len);
            (at, filled(random, len))
        }
        InjectedFault::Metadata => {
            // The gaps between the record's fields have no content, but the record's checksum
            // covers them.
            let len = random.usize(1..=RECORD_SUM_OFFSET);
            let at = random.usize(..=ROW_BYTES - len);
            (RECORD_OFFSET + at, filled(random, len))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{BLOCK_BYTES, DATA_BYTES};
    use crate::space::WHOLE;

    #[test]
    fn faults_match_their_kind_and_stay_within_a_block() {
        let mut random = Rng::new();
        for _ in 0..2000 {
            for (fault, most_rows) in [
                (InjectedFault::Symbol, 1),
                (InjectedFault::Row, 1),
                (InjectedFault::Burst, 4),
                (InjectedFault::Metadata, 1),
            ] {
                let (at, mask) = choose_fault(fault, &mut random);
                let end = at + mask.len();
                assert!(end <= BLOCK_BYTES);
                assert_eq!(at >= RECORD_OFFSET, fault == InjectedFault::Metadata);
                assert!(fault == InjectedFault::Metadata || end <= RECORD_OFFSET);
                assert!(mask.iter().any(|byte| *byte != 0));
                assert!(end.div_ceil(ROW_BYTES) - at / ROW_BYTES <= most_rows);
                if fault == InjectedFault::Symbol {
                    let is_wrong = |word: &usize| {
                        (0..8).any(|bit| {
                            let (byte, at) = bit_position(*word, bit);
                            mask[byte] >> at & 1 != 0
                        })
                    };
                    assert_eq!((0..WORDS).filter(is_wrong).count(), 1);
                }
            }
        }
    }
    #[test]
    fn block_allocated_and_not_yet_written_is_not_verified() {
        let (memory, store) = crate::file::tests::memory(1);
        let file = crate::file::File::default();
        assert_eq!(
            store.write_file(&file, 1, 0, &[1; DATA_BYTES]),
            Ok(DATA_BYTES)
        );
        store.free(&file);
        // What the block has is what it had before, and that may be anything.
        memory.lost.store(0, Relaxed);
        let taken = store.space().allocate(WHOLE).unwrap();
        let found = store.scrub(0, CALL_DURATION, u32::MAX).unwrap();
        assert_eq!((found.verified, found.corrected, found.lost), (1, 0, 0));
        store.space().free(taken.0);
    }
}
