//! Live blocks of a trace, by device and address.

use std::collections::{HashMap, VecDeque};

/// What a free refers to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FreeTarget<T> {
    /// A block that is live.
    Live(T),
    /// A block from before the trace: the first time that its address occurs.
    Earlier,
    /// No block: its address is not allocated any more, or its size is unknown.
    Unknown,
}

/// The blocks that are live, and every address that has occurred.
#[derive(Debug)]
pub(super) struct LiveBlocks<T> {
    /// Lines of several threads may be out of order, so an address can be allocated again
    /// before its free. A list that is empty belongs to an address that has occurred.
    blocks: HashMap<(u32, u64), VecDeque<T>>,
}

impl<T> Default for LiveBlocks<T> {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
        }
    }
}

impl<T> LiveBlocks<T> {
    pub(super) fn allocate(&mut self, device: u32, address: u64, block: T) {
        let blocks = self.blocks.entry((device, address)).or_default();
        blocks.push_back(block);
    }

    /// Ends the oldest block at an address. `bytes` is the size in the row, 0 if unknown.
    pub(super) fn free(&mut self, device: u32, address: u64, bytes: u64) -> FreeTarget<T> {
        let Some(blocks) = self.blocks.get_mut(&(device, address)) else {
            self.blocks.insert((device, address), VecDeque::new());
            return match bytes {
                0 => FreeTarget::Unknown,
                _ => FreeTarget::Earlier,
            };
        };
        blocks
            .pop_front()
            .map_or(FreeTarget::Unknown, FreeTarget::Live)
    }

    /// All that are live, with device and address, in no order.
    pub(super) fn into_live(self) -> impl Iterator<Item = ((u32, u64), T)> {
        let all = self.blocks.into_iter();
        all.flat_map(|(place, blocks)| blocks.into_iter().map(move |block| (place, block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_ends_the_oldest_block_of_its_address() {
        let mut live = LiveBlocks::default();
        live.allocate(0, 16, 'a');
        live.allocate(0, 16, 'b');
        live.allocate(1, 16, 'c');
        assert_eq!(live.free(0, 16, 1), FreeTarget::Live('a'));
        assert_eq!(live.free(0, 16, 1), FreeTarget::Live('b'));
        assert_eq!(live.into_live().collect::<Vec<_>>(), [((1, 16), 'c')]);
    }

    #[test]
    fn a_free_of_a_new_address_is_of_an_earlier_block_and_a_second_free_of_none() {
        let mut live: LiveBlocks<()> = LiveBlocks::default();
        assert_eq!(live.free(0, 16, 512), FreeTarget::Earlier);
        assert_eq!(live.free(0, 16, 512), FreeTarget::Unknown);
        assert_eq!(live.free(0, 32, 0), FreeTarget::Unknown);
        live.allocate(0, 16, ());
        assert_eq!(live.free(0, 16, 512), FreeTarget::Live(()));
        assert_eq!(live.free(0, 16, 512), FreeTarget::Unknown);
    }
}
