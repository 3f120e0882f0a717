//! Operations on blocks: which rows, where they come from or go to, and how blocks are accessed.

use std::ops::Range;

use crate::layout::IDENTITY_WORDS;

/// A block's identity: its number, its generation, the owner of each page.
pub type Identity = [u64; IDENTITY_WORDS];

/// One operation on a block.
#[derive(Clone, Debug)]
pub struct BlockWork<'a> {
    /// The block's index.
    pub block: usize,
    /// Rows of data.
    pub rows: Range<usize>,
    /// Where the rows come from or go to.
    pub place: RowLocation,
    /// The identity that the block gets, or must have.
    pub identity: Option<&'a Identity>,
}

/// Where rows come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLocation {
    /// The worker's page-locked memory from this byte on, a multiple of 16.
    Staging(usize),
    /// Rows of another block, or other rows of the same one, from this one on. With the code they
    /// are copied if they match their checksums; the caller keeps other threads from changing them
    /// meanwhile. Not of a block that the same call changes, except the same block where only some
    /// of its rows change.
    Block(usize, usize),
    /// Rows are verified, and not returned.
    Nowhere,
}

/// How a call accesses blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessMode {
    Reads,
    /// Changes some rows of each.
    Changes,
    /// Writes all of each.
    Makes,
    /// Writes all of each: zeros where no row is named.
    Clears,
}
