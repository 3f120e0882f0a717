//! Outcome of a kernel for one block, as the kernel writes it.

/// [`BlockOutcome::is_corrected`], among the kernels' bits.
const CORRECTED: u32 = 16;
/// [`BlockOutcome::is_lost`], among the kernels' bits.
const LOST: u32 = 32;
/// [`BlockOutcome::has_wrong_source`], among the kernels' bits.
const WRONG_SOURCE: u32 = 64;
/// Instead of such bits: the kernel has written no result yet.
pub(super) const PENDING: u32 = u32::MAX;
/// Also without a result, but the block is verified and is being changed.
pub(super) const COMMITTED: u32 = u32::MAX - 1;

/// Result of a kernel for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockOutcome {
    pub(super) state: u32,
    pub(super) symbols: u32,
    pub(super) rows: u32,
    pub(super) words: u32,
}

impl BlockOutcome {
    /// Of a block without errors.
    pub(crate) const CLEAN: Self = Self {
        state: 0,
        symbols: 0,
        rows: 0,
        words: 0,
    };

    /// Of a block that cannot be corrected.
    pub(crate) const LOST: Self = Self {
        state: LOST,
        ..Self::CLEAN
    };

    /// Of a block that was to get rows that are wrong.
    #[cfg(test)]
    pub(crate) const WRONG_SOURCE: Self = Self {
        state: WRONG_SOURCE,
        ..Self::CLEAN
    };

    /// Of a block with a wrong row.
    #[cfg(test)]
    pub(crate) const WRONG: Self = Self {
        state: 8,
        symbols: 1,
        rows: 1,
        words: 1,
    };

    /// Merges the outcomes of one block in two places.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            state: self.state | other.state,
            symbols: self.symbols + other.symbols,
            rows: self.rows + other.rows,
            words: self.words + other.words,
        }
    }

    /// Marks errors that could not be corrected in place as corrected.
    pub(crate) fn marked_corrected(self) -> Self {
        Self {
            state: self.state & !LOST | CORRECTED,
            ..self
        }
    }

    /// Returns whether the block has no errors.
    pub fn is_clean(&self) -> bool {
        self.state == 0
    }

    /// Returns whether words of the code were wrong.
    pub fn has_wrong_words(&self) -> bool {
        self.state & 1 != 0
    }

    /// Returns whether the record failed its own checksum.
    pub fn has_wrong_record(&self) -> bool {
        self.state & 2 != 0
    }

    /// Returns whether the block has another identity than expected.
    pub fn has_wrong_identity(&self) -> bool {
        self.state & 4 != 0
    }

    /// Returns whether rows failed their checksums.
    pub fn has_wrong_rows(&self) -> bool {
        self.state & 8 != 0
    }

    /// Returns whether errors were corrected.
    pub fn is_corrected(&self) -> bool {
        self.state & CORRECTED != 0
    }

    /// Returns whether there are more errors than can be corrected; the block was left unchanged.
    pub fn is_lost(&self) -> bool {
        self.state & LOST != 0
    }

    /// Returns whether rows of another block, to be copied here, fail that block's checksums.
    pub fn has_wrong_source(&self) -> bool {
        self.state & WRONG_SOURCE != 0
    }

    /// Returns the number of corrected symbols.
    pub fn symbols(&self) -> u32 {
        self.symbols
    }

    /// Returns the number of rows that failed their checksums; for a refused update, of those
    /// detected until then.
    pub fn wrong_rows(&self) -> u32 {
        self.rows
    }

    /// Returns the number of wrong words of the code.
    pub fn wrong_words(&self) -> u32 {
        self.words
    }
}

/// Words of 32 bits of an outcome, the state first.
pub(super) const OUTCOME_WORDS: usize = size_of::<BlockOutcome>() / 4;
