//! Corruption in blocks of host memory, and the places of files' extents, for tests of the layers
//! above.

use super::*;
use crate::layout::{BLOCK_BYTES, CODED_ROWS};

/// The flipped bits of a block, and the rows that have any; both empty if none were ever flipped.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Corruption {
    bits: Vec<u8>,
    rows: Vec<bool>,
}

impl Corruption {
    pub(super) fn add(&mut self, at: usize, mask: &[u8]) {
        self.bits.resize(BLOCK_BYTES, 0);
        self.rows.resize(ROWS, false);
        for (bits, mask) in self.bits[at..].iter_mut().zip(mask) {
            *bits ^= mask;
        }
        for row in at / ROW_BYTES..(at + mask.len()).div_ceil(ROW_BYTES) {
            let bits = &self.bits[row * ROW_BYTES..][..ROW_BYTES];
            self.rows[row] = bits.iter().any(|bits| *bits != 0);
        }
    }

    /// The number of corrupt rows among these.
    pub(super) fn rows(&self, rows: Range<usize>) -> usize {
        let some = self.rows.get(rows).unwrap_or(&[]);
        some.iter().filter(|is_wrong| **is_wrong).count()
    }

    /// Eight rows with valid checksums can be corrected, three without.
    pub(super) fn is_lost(&self) -> bool {
        let most = match self.rows(CODED_ROWS..ROWS) {
            0 => 8,
            _ => 3,
        };
        self.rows(0..CODED_ROWS) > most
    }

    pub(super) fn flip(&self, bytes: &mut [u8]) {
        for (byte, wrong) in bytes.iter_mut().zip(&self.bits) {
            *byte ^= wrong;
        }
    }
}

impl HostAccess {
    /// Marks work items with a corrupt row among these as not clean.
    pub(super) fn look_at(
        &mut self,
        work: &[BlockWork<'_>],
        rows: impl Fn(&BlockWork<'_>) -> Range<usize>,
    ) {
        for (it, outcome) in work.iter().zip(&mut self.outcomes) {
            if self.memory.is_wrong(it.block, rows(it)) {
                *outcome = outcome.with(BlockOutcome::WRONG);
            }
        }
    }

    pub(super) fn correct_blocks(&mut self, work: &[BlockWork<'_>]) -> crate::Result<()> {
        self.lost(work)?;
        for (it, outcome) in work.iter().zip(&mut self.outcomes) {
            let mut block = self.memory.blocks[it.block]
                .try_write()
                .expect("the block is in use");
            let (bytes, _, wrong) = &mut *block;
            if wrong.is_lost() {
                *outcome = self.memory.report_lost();
            } else if wrong.rows(0..ROWS) > 0 {
                wrong.flip(bytes);
                *wrong = Corruption::default();
                *outcome = outcome.with(BlockOutcome::WRONG).marked_corrected();
            }
        }
        Ok(())
    }

    pub(super) fn corrupt_bits(
        &mut self,
        block: usize,
        at: usize,
        mask: &[u8],
    ) -> crate::Result<()> {
        self.may_fail()?;
        let mut block = self.memory.blocks[block]
            .try_write()
            .expect("the block is in use");
        let (bytes, _, wrong) = &mut *block;
        wrong.add(at, mask);
        for (byte, mask) in bytes.iter_mut().skip(at).zip(mask) {
            *byte ^= mask;
        }
        Ok(())
    }
}

impl TestMemory {
    /// Whether a block is corrupt, and whether it cannot be corrected.
    pub(crate) fn state(&self, block: u32) -> (bool, bool) {
        let block = self.blocks[block as usize].read().unwrap();
        (block.2.rows(0..ROWS) > 0, block.2.is_lost())
    }

    pub(crate) fn is_wrong(&self, block: usize, rows: Range<usize>) -> bool {
        let block = self.blocks[block].try_read();
        block.expect("the block is being changed").2.rows(rows) > 0
    }

    /// The outcome that prevents a change of a block, if any.
    pub(super) fn refused(&self, it: &BlockWork<'_>, clears: bool) -> Option<BlockOutcome> {
        let is_wrong = |rows| self.is_wrong(it.block, rows);
        let is_lost = self.lost.load(Relaxed) as usize == it.block;
        let source = match it.place {
            RowLocation::Block(source, row) => Some((source, row..row + it.rows.len())),
            RowLocation::Staging(_) | RowLocation::Nowhere => None,
        };
        let wrong = self.corrupt_at_copy.load(Relaxed) as usize;
        let is_wrong_source = |(block, rows)| block == wrong || self.is_wrong(block, rows);
        if !clears && is_lost {
            Some(BlockOutcome::LOST)
        } else if !clears && (is_wrong(it.rows.clone()) || is_wrong(DATA_ROWS..ROWS)) {
            Some(BlockOutcome::WRONG)
        } else {
            let is_refused = source.is_some_and(is_wrong_source);
            is_refused.then_some(BlockOutcome::WRONG_SOURCE)
        }
    }

    pub(super) fn report_lost(&self) -> BlockOutcome {
        self.losses.fetch_add(1, Relaxed);
        BlockOutcome::LOST
    }
}

/// The extents of each chunk that has any.
pub(crate) fn places(file: &File) -> Vec<(u32, Extent)> {
    let layout = file.layout_shared();
    layout.table.within(0..=u32::MAX).collect()
}
