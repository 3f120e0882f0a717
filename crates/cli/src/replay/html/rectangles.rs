//! The largest blocks of a trace, as rectangles over time that do not overlap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A block's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockLife {
    pub(super) bytes: u64,
    /// The step of its allocation, 0 for a block from before, and the first step without it.
    pub(super) steps: (u64, u64),
    /// The times of these steps, in microseconds.
    pub(super) times_us: (u64, u64),
    pub(super) address: u64,
    pub(super) stream: u64,
    pub(super) thread: u64,
    pub(super) tenant: u32,
    pub(super) stack: Option<u32>,
    /// Whether it was live before the trace began.
    pub(super) is_held: bool,
    /// Whether it is live at the end of the trace.
    pub(super) is_live: bool,
}

/// A block in the order of importance: size, then a number that spreads equal ones evenly over
/// the steps, then the lower address.
type RankedBlock = (u64, u64, Reverse<u64>, BlockOrder);

/// A block that takes no part in comparisons.
#[derive(Debug)]
struct BlockOrder(BlockLife);

impl PartialEq for BlockOrder {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for BlockOrder {}

impl PartialOrd for BlockOrder {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BlockOrder {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// The largest blocks so far.
#[derive(Debug)]
pub(super) struct LargestBlocks {
    limit: usize,
    heap: BinaryHeap<Reverse<RankedBlock>>,
    /// Blocks that were left out.
    pub(super) omitted: u64,
}

impl LargestBlocks {
    pub(super) fn new(limit: usize) -> LargestBlocks {
        LargestBlocks {
            limit,
            heap: BinaryHeap::new(),
            omitted: 0,
        }
    }

    pub(super) fn add(&mut self, block: BlockLife) {
        let (spread, address) = (spread(block.steps.0), Reverse(block.address));
        let ranked = (block.bytes, spread, address, BlockOrder(block));
        self.heap.push(Reverse(ranked));
        self.shrink(self.limit);
    }

    /// The number of blocks that are kept.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Leaves at most `limit` blocks.
    pub(super) fn shrink(&mut self, limit: usize) {
        while self.heap.len() > limit {
            self.heap.pop();
            self.omitted += 1;
        }
    }

    /// The blocks by the step of their allocation, each with an offset in bytes, at which it
    /// overlaps no other that is live at the same time: the first gap that is large enough.
    pub(super) fn placed(self) -> Vec<(BlockLife, u128)> {
        let mut blocks: Vec<BlockLife> = self
            .heap
            .into_iter()
            .map(|Reverse((_, _, _, BlockOrder(block)))| block)
            .collect();
        blocks.sort_by_key(|it| (it.steps.0, Reverse(it.bytes), it.address));
        // Live blocks by offset: offset, end, last step.
        let mut live: Vec<(u128, u128, u64)> = Vec::new();
        let mut placed = Vec::with_capacity(blocks.len());
        for block in blocks {
            live.retain(|(_, _, until)| *until > block.steps.0);
            let bytes = u128::from(block.bytes);
            let (mut offset, mut at) = (0, live.len());
            for (place, (from, to, _)) in live.iter().enumerate() {
                if *from >= offset + bytes {
                    at = place;
                    break;
                }
                offset = *to;
            }
            live.insert(at, (offset, offset + bytes, block.steps.1));
            placed.push((block, offset));
        }
        placed
    }
}

/// Multiples of the golden ratio modulo 1, as 64 bits: the largest of any range of steps are spread
/// evenly over it.
fn spread(step: u64) -> u64 {
    step.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::super::super::random;
    use super::*;

    fn block(bytes: u64, steps: (u64, u64), address: u64) -> BlockLife {
        BlockLife {
            bytes,
            steps,
            times_us: (0, 0),
            address,
            stream: 0,
            thread: 0,
            tenant: 0,
            stack: None,
            is_held: false,
            is_live: false,
        }
    }

    #[test]
    fn of_equal_blocks_those_that_are_kept_are_spread_over_the_steps() {
        let mut largest = LargestBlocks::new(100);
        for step in 0..10_000 {
            largest.add(block(512, (step, step + 1), step));
        }
        let mut tenths = [0; 10];
        for (block, _) in largest.placed() {
            tenths[block.steps.0 as usize / 1000] += 1;
        }
        assert!(
            tenths.iter().all(|blocks| (8..=12).contains(blocks)),
            "{tenths:?}"
        );
    }

    #[test]
    fn the_largest_blocks_are_kept_and_do_not_overlap() {
        let mut random = random();
        for _ in 0..100 {
            let limit = random.usize(1..40);
            let mut largest = LargestBlocks::new(limit);
            let mut all = Vec::new();
            for address in 0..random.u64(1..100) {
                let from = random.u64(..50);
                let block = block(random.u64(1..30), (from, from + random.u64(1..20)), address);
                all.push(block);
                largest.add(block);
            }
            assert_eq!(largest.omitted, all.len().saturating_sub(limit) as u64);
            let placed = largest.placed();
            assert_eq!(placed.len(), all.len().min(limit));
            all.sort_by_key(|it| Reverse(it.bytes));
            let mut sizes: Vec<u64> = placed.iter().map(|(it, _)| it.bytes).collect();
            sizes.sort_by_key(|it| Reverse(*it));
            let expected: Vec<u64> = all.iter().take(limit).map(|it| it.bytes).collect();
            assert_eq!(sizes, expected);
            for (place, (a, low)) in placed.iter().enumerate() {
                for (b, other) in &placed[..place] {
                    let at_once = a.steps.0 < b.steps.1 && b.steps.0 < a.steps.1;
                    let apart =
                        *low >= other + u128::from(b.bytes) || *other >= low + u128::from(a.bytes);
                    assert!(!at_once || apart, "{a:?} at {low}, {b:?} at {other}");
                }
            }
        }
    }
}
