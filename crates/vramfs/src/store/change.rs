//! Changes of runs, and rows to read, as the layers above ask for them.

use std::ops::Range;

use crate::engine::{BlockWork, Identity, RowLocation};
use crate::layout::{PAGE_BYTES, ROW_BYTES};
use crate::space::{PageRun, WHOLE};

/// Rows of a block to read, and their offset in the staging buffer.
#[derive(Clone, Debug)]
pub(crate) struct WantedRows {
    pub block: u32,
    pub rows: Range<usize>,
    pub at: usize,
}

impl WantedRows {
    pub(super) fn work<'i>(&self, identity: Option<&'i Identity>) -> BlockWork<'i> {
        BlockWork {
            block: self.block as usize,
            rows: self.rows.clone(),
            place: RowLocation::Staging(self.at),
            identity,
        }
    }
}

/// New bytes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'d> {
    Bytes(&'d [u8]),
    Zeros(usize),
    /// Rows of a block, none of which any change of the same call changes. They go to whole rows,
    /// and to all of a newly allocated run, unless that is a block.
    Rows {
        block: u32,
        row: usize,
        count: usize,
    },
}

impl Content<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => len,
            Self::Rows { count, .. } => count * ROW_BYTES,
        }
    }

    /// Returns the block that is copied from.
    pub(super) fn source(self) -> Option<u32> {
        match self {
            Self::Rows { block, .. } => Some(block),
            Self::Bytes(_) | Self::Zeros(_) => None,
        }
    }
}

/// Overwritten bytes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'d> {
    pub run: PageRun,
    /// The block's generation, if the run is newly allocated: its other bytes become zeros.
    pub fresh: Option<u64>,
    /// The pages' owner.
    pub owner: u64,
    /// First byte of the run that is overwritten.
    pub from: usize,
    pub content: Content<'d>,
}

impl Change<'_> {
    /// Returns the rows of the block that are written.
    pub(super) fn rows(&self) -> Range<usize> {
        let first = usize::from(self.run.page) * (PAGE_BYTES / ROW_BYTES);
        // The rest of a whole block is cleared with it.
        if self.fresh.is_some() && u32::from(self.run.order) != WHOLE {
            return first..first + self.run.pages() as usize * (PAGE_BYTES / ROW_BYTES);
        }
        let end = self.from + self.content.len();
        first + self.from / ROW_BYTES..first + end.div_ceil(ROW_BYTES)
    }

    /// Returns the content's offset in the rows.
    pub(super) fn offset(&self) -> usize {
        let first = usize::from(self.run.page) * PAGE_BYTES;
        first + self.from - self.rows().start * ROW_BYTES
    }

    /// Returns the rows that keep some of their bytes: the first and the last, or one.
    pub(super) fn kept(&self) -> impl Iterator<Item = usize> {
        let (rows, offset) = (self.rows(), self.offset());
        let end = offset + self.content.len();
        let first = (!offset.is_multiple_of(ROW_BYTES)).then_some(rows.start);
        let last = (!end.is_multiple_of(ROW_BYTES)).then_some(rows.end.wrapping_sub(1));
        let last = last.filter(|last| first != Some(*last));
        let is_kept = self.fresh.is_none() && self.content.len() > 0;
        first.into_iter().chain(last).filter(move |_| is_kept)
    }
}
