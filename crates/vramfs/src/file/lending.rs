//! Files whose memory another process uses where it is.
//!
//! Invariants: as long as a file is lent its runs stay where they are and nobody here changes a byte of them; while it is lent to
//! who writes nobody reads any either, its blocks are its own, and for who looks at blocks they were never written.
//! Elsewhere: to whom it is lent, and until when (`export`).

use rustix::io::Errno;

use super::{File, told};
use crate::control::Scrubbed;
use crate::engine::{Place, Work};
use crate::error::Error;
use crate::extents::{Extent, Part};
use crate::layout::{DATA_BYTES, PAGES};
use crate::medium::{Access as _, Medium};
use crate::store::Store;

/// Blocks that are looked at, or made right, at once.
const AT_ONCE: usize = 4096;

/// Who has a file's memory beside those who ask here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lent {
    #[default]
    No,
    /// So many read it.
    Readers(u32),
    /// One writes.
    Writer,
}

/// What somebody has of a file.
#[derive(Debug)]
pub(crate) struct Loan {
    /// Where its bytes are, in their order: from which byte of the file on, how many, in which block, and where in its data.
    pub pieces: Vec<Lending>,
    /// The file's size.
    pub size: u64,
    /// Its blocks, in the order of their numbers.
    pub blocks: Vec<u32>,
    /// Of who writes: their generations.
    generations: Vec<u64>,
}

/// Bytes of a file that lie side by side in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lending {
    pub offset: u64,
    pub bytes: u64,
    pub block: u32,
    pub within: u64,
}

impl<M: Medium> Store<M> {
    /// Lends a file's memory, all of which was looked at and is right. To who writes only if all chunks before the end are blocks of
    /// their own.
    ///
    /// # Errors
    /// `BUSY` if somebody has it who writes, or has it at all and this is to write; `INVAL` if not all chunks are blocks of their own;
    /// `IO` for what is lost, or where the device fails.
    pub(crate) fn lend(&self, file: &File, writes: bool) -> Result<Loan, Errno> {
        let mut layout = file.layout_alone();
        layout.lent = match (layout.lent, writes) {
            (Lent::No, true) => Lent::Writer,
            (Lent::No, false) => Lent::Readers(1),
            (Lent::Readers(others), false) => Lent::Readers(others + 1),
            _ => return Err(Errno::BUSY),
        };
        let size = file.size();
        let chunk = DATA_BYTES as u64;
        let mut pieces = Vec::new();
        for (at, extent) in layout.table.within(0..=u32::MAX) {
            let part = extent.part().bytes();
            let offset = u64::from(at) * chunk + part.start as u64;
            if offset < size {
                pieces.push(Lending {
                    offset,
                    bytes: (part.len() as u64).min(size - offset),
                    block: extent.run().block,
                    within: u64::from(extent.run().page) * (DATA_BYTES / PAGES) as u64,
                });
            }
        }
        let is_whole = |(_, it): (u32, Extent)| it.part() == Part::WHOLE;
        let is_own = pieces.len() as u64 == size.div_ceil(chunk)
            && layout.table.within(0..=u32::MAX).all(is_whole);
        let mut blocks: Vec<u32> = pieces.iter().map(|it| it.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        drop(layout);
        let mut loan = Loan {
            pieces,
            size,
            blocks,
            generations: Vec::new(),
        };
        // From here on nothing of it moves, so it is looked at without the file's lock.
        let looked = match writes && !is_own {
            true => Err(Errno::INVAL),
            false => self.look_at_loan(&loan),
        };
        if let Err(error) = looked {
            file.give_back();
            return Err(error);
        }
        if writes {
            let forget = |block: &u32| std::mem::take(&mut self.alone(*block)[1]);
            loan.generations = loan.blocks.iter().map(forget).collect();
        }
        Ok(loan)
    }

    fn look_at_loan(&self, loan: &Loan) -> Result<(), Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let mut found = Scrubbed::default();
        for blocks in loan.blocks.chunks(AT_ONCE) {
            let looked = self.look_at(way.access(), blocks, &mut found);
            looked.map_err(|error| told(&error))?;
        }
        match found.lost {
            0 => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Takes a loan back, which nobody uses any more. What was written is right from then on: who wrote it knows.
    ///
    /// # Errors
    /// The medium's; then what was written is not what the blocks say, and is lost or as it was before.
    pub(crate) fn take_back(&self, file: &File, loan: &Loan) -> Result<(), Error> {
        let mut made = Ok(());
        let generations = loan
            .blocks
            .chunks(AT_ONCE)
            .zip(loan.generations.chunks(AT_ONCE));
        for (blocks, generations) in generations {
            // Before any block: who waits for a way holds nothing that others wait for.
            let way = self.way();
            let mut guards: Vec<_> = blocks.iter().map(|block| self.alone(*block)).collect();
            for (guard, generation) in guards.iter_mut().zip(generations) {
                guard[1] = *generation;
            }
            let works = blocks.iter().zip(&guards).map(|(block, identity)| Work {
                block: *block as usize,
                rows: 0..0,
                place: Place::Staging(0),
                identity: Some(&**identity),
            });
            let works: Vec<Work<'_>> = works.collect();
            // Whatever became of the others.
            made = made.and(way.and_then(|mut way| way.access().refresh(&works)));
        }
        if !loan.generations.is_empty() {
            let mut layout = file.layout_alone();
            let all: Vec<(u32, Extent)> = layout.table.within(0..=u32::MAX).collect();
            for (chunk, extent) in &all {
                layout.table.set(*chunk, extent.with(u32::MAX));
            }
            // It has blocks to their ends.
            let end = all.last().map_or(0, |(chunk, _)| u64::from(*chunk) + 1);
            layout.dirty = layout.dirty.max(end * DATA_BYTES as u64);
        }
        file.give_back();
        made
    }
}

impl File {
    /// One less has it.
    fn give_back(&self) {
        let mut layout = self.layout_alone();
        layout.lent = match layout.lent {
            Lent::Readers(others @ 2..) => Lent::Readers(others - 1),
            Lent::No | Lent::Readers(_) | Lent::Writer => Lent::No,
        };
    }
}
