//! Blocks of a cache, free and used.
//!
//! Invariant: a block is in the list of free ones or was given out, and never both.

/// Number of a block.
pub(crate) type BlockNumber = u32;

/// Free blocks of a cache.
#[derive(Debug)]
pub(crate) struct BlockPool {
    free: Vec<BlockNumber>,
    is_used: Vec<bool>,
}

impl BlockPool {
    /// A pool whose blocks are all free.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            // The lowest one is given out first.
            free: (0..count).rev().collect(),
            is_used: vec![false; count as usize],
        }
    }

    /// Number of all blocks.
    pub(crate) fn count(&self) -> usize {
        self.is_used.len()
    }

    /// Number of free blocks.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a block.
    pub(crate) fn take(&mut self) -> Option<BlockNumber> {
        let block = self.free.pop()?;
        self.is_used[block as usize] = true;
        Some(block)
    }

    /// Gives blocks back. One that is free already is left alone.
    pub(crate) fn give_back(&mut self, blocks: impl IntoIterator<Item = BlockNumber>) {
        for block in blocks {
            if let Some(is_used) = self.is_used.get_mut(block as usize)
                && std::mem::take(is_used)
            {
                self.free.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_out_once_and_come_back_once() {
        let mut pool = BlockPool::new(3);
        let all: Vec<BlockNumber> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all, [0, 1, 2]);
        assert_eq!((pool.free(), pool.count()), (0, 3));
        pool.give_back([1, 1, 7]);
        assert_eq!(pool.free(), 1);
        assert_eq!(pool.take(), Some(1));
        assert_eq!(pool.take(), None);
    }
}
