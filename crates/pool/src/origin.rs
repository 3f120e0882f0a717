//! Origins of blocks: the pool, or one of its arenas.
//!
//! Elsewhere: the arenas ([`crate::arenas`]).

/// The number of arenas; more threads than that share them.
pub(crate) const ARENAS: usize = 64;

/// The origin of a block: the pool, or an arena it was cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockOrigin(u8);

impl BlockOrigin {
    /// The pool itself.
    pub(crate) const POOL: BlockOrigin = BlockOrigin(0);

    /// The arena with this index, below [`ARENAS`].
    pub(crate) fn of_arena(index: usize) -> Self {
        BlockOrigin(index as u8 + 1)
    }

    /// Its number, below [`ARENAS`] + 1.
    pub(crate) fn number(self) -> usize {
        usize::from(self.0)
    }
}
