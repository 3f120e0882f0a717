//! Loans of a file's memory to another process, which maps it in place.
//!
//! Invariants: while a file is lent its runs stay in place, and no thread of this process changes a
//! byte of them. While it is lent to a writer, no thread here reads them either, its blocks belong
//! to it alone, and a verifying pass sees them as blocks that were never written.
//! Elsewhere: the borrowing process, and when a loan ends (`export`).

use rustix::io::Errno;

use super::File;
use super::loan::LoanState;
use crate::control::ScrubResult;
use crate::engine::{BlockWork, RowLocation};
use crate::error::Error;
use crate::extents::{ChunkPart, Extent};
use crate::layout::{DATA_BYTES, PAGES};
use crate::medium::{BlockAccess as _, Medium};
use crate::store::Store;

/// Blocks that are verified, or recoded, at once.
const BLOCKS_PER_BATCH: usize = 4096;

/// The memory of a file that a process borrows.
#[derive(Debug)]
pub(crate) struct FileLoan {
    /// The ranges of the file, in order: offset in the file, length, block, and offset in the
    /// block's data.
    pub pieces: Vec<LentRange>,
    /// The file's size.
    pub size: u64,
    /// The blocks in use, in ascending order.
    pub blocks: Vec<u32>,
    /// The blocks' generations, for a writer only.
    generations: Vec<u64>,
}

/// Bytes of a file that are contiguous in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LentRange {
    pub offset: u64,
    pub bytes: u64,
    pub block: u32,
    pub within: u64,
}

impl<M: Medium> Store<M> {
    /// Lends a file's memory, all of it verified. A writer gets it only if each chunk before the
    /// end is a block of its own.
    ///
    /// # Errors
    /// `BUSY` if a process borrows it for writing, or borrows it at all and this loan is for
    /// writing; `INVAL` if a writer asks and not every chunk is a block of its own; `IO` if data is
    /// lost or the device fails.
    pub(crate) fn lend(&self, file: &File, writes: bool) -> Result<FileLoan, Errno> {
        let mut layout = file.layout_exclusive();
        layout.lent = match (layout.lent, writes) {
            (LoanState::No, true) => LoanState::Writer,
            (LoanState::No, false) => LoanState::Readers(1),
            (LoanState::Readers(others), false) => LoanState::Readers(others + 1),
            _ => return Err(Errno::BUSY),
        };
        let size = file.size();
        let chunk = DATA_BYTES as u64;
        let mut pieces = Vec::new();
        for (at, extent) in layout.table.within(0..=u32::MAX) {
            let part = extent.part().bytes();
            let offset = u64::from(at) * chunk + part.start as u64;
            if offset < size {
                pieces.push(LentRange {
                    offset,
                    bytes: (part.len() as u64).min(size - offset),
                    block: extent.run().block,
                    within: u64::from(extent.run().page) * (DATA_BYTES / PAGES) as u64,
                });
            }
        }
        let is_whole = |(_, it): (u32, Extent)| it.part() == ChunkPart::WHOLE;
        let is_own = pieces.len() as u64 == size.div_ceil(chunk)
            && layout.table.within(0..=u32::MAX).all(is_whole);
        let mut blocks: Vec<u32> = pieces.iter().map(|it| it.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        drop(layout);
        let mut loan = FileLoan {
            pieces,
            size,
            blocks,
            generations: Vec::new(),
        };
        // The runs stay in place from here on, so they are verified without the file's lock.
        let looked = match writes && !is_own {
            true => Err(Errno::INVAL),
            false => self.verify_loan(&loan),
        };
        if let Err(error) = looked {
            file.end_loan();
            return Err(error);
        }
        if writes {
            let forget = |block: &u32| std::mem::take(&mut self.alone(*block)[1]);
            loan.generations = loan.blocks.iter().map(forget).collect();
        }
        Ok(loan)
    }

    fn verify_loan(&self, loan: &FileLoan) -> Result<(), Errno> {
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let mut found = ScrubResult::default();
        for blocks in loan.blocks.chunks(BLOCKS_PER_BATCH) {
            let looked = self.scan_and_correct(way.access(), blocks, &mut found);
            looked.map_err(|error| error.to_errno())?;
        }
        match found.lost {
            0 => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Ends a loan that its borrower no longer uses. The bytes that it wrote count as correct from
    /// then on: only the borrower can check them.
    ///
    /// # Errors
    /// The medium's; then the bytes written do not match the blocks' codes, and are lost or revert
    /// to their earlier content.
    pub(crate) fn take_back(&self, file: &File, loan: &FileLoan) -> Result<(), Error> {
        let mut made = Ok(());
        let generations = loan
            .blocks
            .chunks(BLOCKS_PER_BATCH)
            .zip(loan.generations.chunks(BLOCKS_PER_BATCH));
        for (blocks, generations) in generations {
            // Acquired before any block: a thread that waits for an access holds nothing others
            // wait for.
            let way = self.acquire_access();
            let mut guards: Vec<_> = blocks.iter().map(|block| self.alone(*block)).collect();
            for (guard, generation) in guards.iter_mut().zip(generations) {
                guard[1] = *generation;
            }
            let works = blocks
                .iter()
                .zip(&guards)
                .map(|(block, identity)| BlockWork {
                    block: *block as usize,
                    rows: 0..0,
                    place: RowLocation::Staging(0),
                    identity: Some(&**identity),
                });
            let works: Vec<BlockWork<'_>> = works.collect();
            // Refreshes these even if others failed.
            made = made.and(way.and_then(|mut way| way.access().refresh(&works)));
        }
        if !loan.generations.is_empty() {
            let mut layout = file.layout_exclusive();
            let all: Vec<(u32, Extent)> = layout.table.within(0..=u32::MAX).collect();
            for (chunk, extent) in &all {
                layout.table.set(*chunk, extent.with(u32::MAX));
            }
            // Its blocks may be written up to their ends.
            let end = all.last().map_or(0, |(chunk, _)| u64::from(*chunk) + 1);
            layout.dirty = layout.dirty.max(end * DATA_BYTES as u64);
        }
        file.end_loan();
        made
    }
}

impl File {
    /// Ends one process's loan.
    fn end_loan(&self) {
        let mut layout = self.layout_exclusive();
        layout.lent = match layout.lent {
            LoanState::Readers(others @ 2..) => LoanState::Readers(others - 1),
            LoanState::No | LoanState::Readers(_) | LoanState::Writer => LoanState::No,
        };
    }
}
