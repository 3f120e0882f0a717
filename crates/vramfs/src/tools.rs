//! What tools have a store do while it is used: look at all blocks, make faults, have more memory or less.
//!
//! Each call does a part that takes a moment, and says where the next begins. Blocks are looked at by a way of their own, whose
//! work the device does when there is no other.
//!
//! Invariant: memory goes when its blocks are retired and nobody's, and nobody looks at blocks then (`extent`).
//! Elsewhere: who asks (`control`), what is done with one block (`store`).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::control::{Fault, Scrubbed};
use crate::engine::{BlockWork, RowLocation};
use crate::error::{Error, Result};
use crate::layout::{
    CODED_ROWS, PAGES, RECORD_OFFSET, RECORD_SUM_OFFSET, ROW_BYTES, WORDS, bit_position,
};
use crate::medium::{BlockAccess as _, Medium};
use crate::store::Store;

/// How long a step takes, about.
pub(crate) const STEP: Duration = Duration::from_millis(20);
/// Blocks that are looked at at once, to begin with; more while that takes no time.
const LOOKED_AT: u32 = 16;
const LOOKED_AT_MOST: u32 = 8192;
/// No more faults at once.
pub(crate) const FAULTS_MOST: u64 = 1024;
/// The longest burst.
const BURST_BYTES: usize = 3 << 10;

/// How many blocks there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// With memory.
    pub there: u32,
    /// Given out, or to be: those behind are retired.
    pub offered: u32,
}

/// More is in use than there is to be room for.
#[derive(Debug)]
pub(crate) enum Resize {
    /// So many pages.
    Full(u64),
    /// So many blocks are the most.
    Most(u64),
    /// The memory's.
    Memory(Error),
}

impl<M: Medium> Store<M> {
    /// Looks at blocks that are somebody's from one on, about so long and at no more than so many, and makes right what
    /// is not.
    ///
    /// # Errors
    /// The medium's.
    pub fn scrub(&self, from: u32, time: Duration, most: u32) -> Result<Scrubbed> {
        let begin = Instant::now();
        let mut background = self.background();
        if background.is_none() {
            *background = Some(self.medium().background()?);
        }
        let access = background.as_mut().ok_or(Error::Failed)?;
        let mut answer = Scrubbed::default();
        let mut at = from.min(self.extent().there);
        let mut step = LOOKED_AT;
        let done = loop {
            let extent = self.extent();
            let left = u64::from(most).saturating_sub(answer.looked);
            let end = at.saturating_add(step.min(left as u32)).min(extent.there);
            let used: Vec<u32> = (at..end)
                .filter(|block| self.space().used_of(*block) != 0)
                .collect();
            let looked = Instant::now();
            if let Err(error) = self.look_at(access, &used, &mut answer) {
                break Err(error);
            }
            at = end;
            if at >= extent.there {
                break Ok(0);
            }
            if begin.elapsed() >= time || answer.looked >= u64::from(most) {
                break Ok(u64::from(at));
            }
            if looked.elapsed() < time / 8 {
                step = (step * 2).min(LOOKED_AT_MOST);
            }
        };
        if background.as_ref().is_some_and(M::Access::is_spent) {
            // The next one has another.
            *background = None;
        }
        answer.next = done?;
        Ok(answer)
    }

    pub(crate) fn look_at(
        &self,
        access: &mut M::Access,
        used: &[u32],
        answer: &mut Scrubbed,
    ) -> Result<()> {
        let suspect = {
            // In the order in which all lock them. Who changes one waits for as long as the scan takes.
            let _shared: Vec<_> = used.iter().map(|block| self.shared(*block)).collect();
            access.scan(used)?
        };
        let looked = used.len() as u64;
        answer.looked += looked;
        self.counters().scrubbed_blocks.fetch_add(looked, Relaxed);
        for block in suspect {
            match self.look_again(access, block) {
                Ok(was_wrong) => answer.corrected += u64::from(was_wrong),
                Err(Error::Lost { .. }) => answer.lost += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks at a block that nobody changes meanwhile, and makes it right if it is somebody's; whether it was not.
    fn look_again(&self, access: &mut M::Access, block: u32) -> Result<bool> {
        let outcome = {
            let identity = self.shared(block);
            // Never written, nobody's, or not yet written since it was taken: there is nothing to be right.
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

    /// Makes something wrong in some of these blocks, so often; how often it was.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn inject(
        &self,
        blocks: &[u32],
        fault: Fault,
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
            let (at, mask) = spoilt(fault, random);
            access.flip_bits(*block as usize, at, &mask)?;
            done += 1;
        }
        Ok(done)
    }

    /// Blocks that are somebody's.
    pub(crate) fn used_blocks(&self) -> Vec<u32> {
        let all = 0..self.extent().there;
        all.filter(|block| self.space().used_of(*block) != 0)
            .collect()
    }

    /// There is room for so many blocks from now on; those behind are retired.
    pub(crate) fn resize(&self, blocks: u64) -> std::result::Result<(), Resize> {
        let most = self.blocks();
        let mut extent = self.extent_alone();
        let Some(blocks) = u32::try_from(blocks).ok().filter(|it| *it <= most) else {
            return Err(Resize::Most(u64::from(most)));
        };
        let space = self.space();
        if blocks >= extent.offered {
            if blocks > extent.there {
                let grown = self.medium().grow(blocks as usize);
                grown.map_err(Resize::Memory)?;
                extent.there = blocks;
            }
            space.add(extent.offered..blocks);
        } else {
            let used = space.used_pages();
            if used > u64::from(blocks) * PAGES as u64 {
                return Err(Resize::Full(used));
            }
            space.retire(blocks..extent.offered);
        }
        extent.offered = blocks;
        Ok(())
    }

    /// Blocks from here on have no room in the filesystem, and are to go.
    pub(crate) fn retired(&self) -> Range<u32> {
        let extent = self.extent();
        extent.offered..extent.there
    }

    /// Gives memory of retired blocks back if all of them are nobody's; how many are not.
    pub(crate) fn trim(&self) -> u32 {
        let mut extent = self.extent_alone();
        let beyond = extent.offered..extent.there;
        let left = self.space().count_undrained(beyond.clone());
        if left == 0 && !beyond.is_empty() {
            // Where there is memory again it was never written.
            beyond.for_each(|block| self.reset_identity(block));
            self.medium().shrink(extent.offered as usize);
            extent.there = extent.offered;
        }
        left
    }
}

/// Where in a block something becomes wrong, and which bits.
fn spoilt(fault: Fault, random: &mut Rng) -> (usize, Vec<u8>) {
    let filled = |random: &mut Rng, len: usize| -> Vec<u8> {
        // Every byte is another than it was, so every symbol of a row is wrong.
        std::iter::repeat_with(|| random.u8(1..))
            .take(len)
            .collect()
    };
    match fault {
        Fault::Symbol => {
            let row = random.usize(..CODED_ROWS);
            let (word, bits) = (random.usize(..WORDS), random.u8(1..));
            let mut mask = vec![0; ROW_BYTES];
            for bit in (0..8).filter(|bit| bits >> bit & 1 != 0) {
                let (byte, at) = bit_position(word, bit);
                mask[byte] |= 1 << at;
            }
            (row * ROW_BYTES, mask)
        }
        Fault::Row => {
            let row = random.usize(..CODED_ROWS);
            (row * ROW_BYTES, filled(random, ROW_BYTES))
        }
        Fault::Burst => {
            let len = random.usize(1..=BURST_BYTES);
            let at = random.usize(..=RECORD_OFFSET - len);
            (at, filled(random, len))
        }
        Fault::Metadata => {
            // What lies between the record's parts is nobody's, but its sum is not what it says then.
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
    fn faults_are_what_they_are_called_and_lie_within_a_block() {
        let mut random = Rng::new();
        for _ in 0..2000 {
            for (fault, most_rows) in [
                (Fault::Symbol, 1),
                (Fault::Row, 1),
                (Fault::Burst, 4),
                (Fault::Metadata, 1),
            ] {
                let (at, mask) = spoilt(fault, &mut random);
                let end = at + mask.len();
                assert!(end <= BLOCK_BYTES);
                assert_eq!(at >= RECORD_OFFSET, fault == Fault::Metadata);
                assert!(fault == Fault::Metadata || end <= RECORD_OFFSET);
                assert!(mask.iter().any(|byte| *byte != 0));
                assert!(end.div_ceil(ROW_BYTES) - at / ROW_BYTES <= most_rows);
                if fault == Fault::Symbol {
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
    fn what_was_taken_and_not_yet_written_is_not_looked_at() {
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
        let found = store.scrub(0, STEP, u32::MAX).unwrap();
        assert_eq!((found.looked, found.corrected, found.lost), (1, 0, 0));
        store.space().free(taken.0);
    }
}
