//! Blocks of a cache: those in use, those that keep a prefix for later, and free ones.
//!
//! A full block is known by its tokens and by the block before it, so a request whose prompt begins
//! with them takes it instead of computing it.
//!
//! Invariants: a block is free, or kept without users, or has users. What a kept block has is
//! written once, before it is kept.

use std::collections::{BTreeMap, HashMap};

/// Number of a block.
pub(crate) type BlockNumber = u32;

/// What stands before the first block of a request.
pub(crate) const BEGINNING: PrefixNode = PrefixNode(0);

/// A prefix that ends with a full block. No two have one number, also of blocks that are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PrefixNode(u64);

impl PrefixNode {
    /// What stands before the first block of a request with that adapter: what it computes is no
    /// other's. Numbers of adapters come from above, those of prefixes from below.
    pub(crate) fn beginning(adapter: Option<u32>) -> Self {
        match adapter {
            None => BEGINNING,
            Some(number) => Self(u64::MAX - u64::from(number)),
        }
    }
}

/// A prefix, and the tokens of the block behind it.
type BlockContent = (PrefixNode, Vec<u32>);

#[derive(Clone, Debug, Default)]
struct CacheBlock {
    users: u32,
    kept: Option<(PrefixNode, BlockContent)>,
    /// When it lost its last user.
    idle_since: u64,
}

/// Blocks of a cache.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<CacheBlock>,
    free: Vec<BlockNumber>,
    /// Kept blocks without users, by the time when they lost the last one.
    idle: BTreeMap<u64, BlockNumber>,
    by_content: HashMap<BlockContent, BlockNumber>,
    clock: u64,
}

impl BlockPool {
    /// A pool whose blocks are all free.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            blocks: vec![CacheBlock::default(); count as usize],
            // The lowest one is given out first.
            free: (0..count).rev().collect(),
            idle: BTreeMap::new(),
            by_content: HashMap::new(),
            clock: 0,
        }
    }

    /// Number of all blocks.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks without users.
    pub(crate) fn free(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Number of those that keep a prefix.
    pub(crate) fn kept(&self) -> usize {
        self.idle.len()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Takes a block for new content: a free one, else the one that was kept unused for longest.
    pub(crate) fn take(&mut self) -> Option<BlockNumber> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.idle.pop_first()?;
                self.forget(block);
                block
            }
        };
        self.blocks[block as usize].users = 1;
        Some(block)
    }

    fn forget(&mut self, block: BlockNumber) {
        if let Some((_, content)) = self.blocks[block as usize].kept.take() {
            self.by_content.remove(&content);
        }
    }

    /// Uses the kept block of these tokens behind a prefix.
    pub(crate) fn find(
        &mut self,
        before: PrefixNode,
        tokens: &[u32],
    ) -> Option<(BlockNumber, PrefixNode)> {
        let block = *self.by_content.get(&(before, tokens.to_vec()))?;
        let state = &mut self.blocks[block as usize];
        let (node, _) = state.kept.as_ref()?;
        let node = *node;
        if state.users == 0 {
            self.idle.remove(&state.idle_since);
        }
        state.users += 1;
        Some((block, node))
    }

    /// Keeps a block in use, which is full and written, under its tokens. Another one may be kept
    /// under them; then the prefix is that one's.
    pub(crate) fn keep(
        &mut self,
        block: BlockNumber,
        before: PrefixNode,
        tokens: &[u32],
    ) -> PrefixNode {
        let content = (before, tokens.to_vec());
        if let Some(other) = self.by_content.get(&content)
            && let Some((node, _)) = &self.blocks[*other as usize].kept
        {
            return *node;
        }
        let node = PrefixNode(self.tick());
        self.forget(block);
        self.by_content.insert(content.clone(), block);
        self.blocks[block as usize].kept = Some((node, content));
        node
    }

    /// Ends the use of a request's blocks, the last one first: prefixes are kept longer than what
    /// follows them.
    pub(crate) fn give_back(&mut self, blocks: Vec<BlockNumber>) {
        for block in blocks.into_iter().rev() {
            let now = self.tick();
            let Some(state) = self.blocks.get_mut(block as usize) else {
                continue;
            };
            if state.users == 0 {
                continue;
            }
            state.users -= 1;
            if state.users > 0 {
                continue;
            }
            state.idle_since = now;
            match state.kept {
                Some(_) => {
                    self.idle.insert(now, block);
                }
                None => self.free.push(block),
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
        pool.give_back(vec![1, 1, 7]);
        assert_eq!(pool.free(), 1);
        assert_eq!(pool.take(), Some(1));
        assert_eq!(pool.take(), None);
    }

    /// A request of the model below: its blocks, and the tokens of each.
    type Held = Vec<(BlockNumber, Vec<u32>)>;

    /// Requests over few tokens, so that prefixes are shared: what a block has never changes while
    /// a request uses it, and a block that is found has the tokens that were looked for.
    #[test]
    fn found_blocks_have_the_prefix_that_was_looked_for() {
        let mut random = fercuda_trials::rng();
        let mut pool = BlockPool::new(12);
        // Prefixes that were written in each block.
        let mut written: Vec<Vec<Vec<u32>>> = vec![Vec::new(); 12];
        let mut held: Vec<Held> = Vec::new();
        let mut found = 0;
        for _ in 0..20_000 {
            if held.len() > 3 || random.u32(..4) == 0 && !held.is_empty() {
                let ended = held.swap_remove(random.usize(..held.len()));
                for (at, (block, _)) in ended.iter().enumerate() {
                    let prefix: Vec<Vec<u32>> =
                        ended[..=at].iter().map(|(_, own)| own.clone()).collect();
                    assert_eq!(written[*block as usize], prefix);
                }
                pool.give_back(ended.into_iter().map(|(block, _)| block).collect());
            }
            let (mut node, mut own) = (BEGINNING, Held::new());
            let mut prefix = Vec::new();
            let mut is_found = true;
            for _ in 0..random.usize(1..5) {
                let tokens = vec![random.u32(..2), random.u32(..2)];
                prefix.push(tokens.clone());
                let known = if is_found {
                    pool.find(node, &tokens)
                } else {
                    None
                };
                is_found = known.is_some();
                let block = match known {
                    Some((block, next)) => {
                        assert_eq!(written[block as usize], prefix);
                        (node, found) = (next, found + 1);
                        block
                    }
                    None => {
                        let Some(block) = pool.take() else {
                            break;
                        };
                        assert!(held.iter().flatten().all(|(other, _)| *other != block));
                        assert!(own.iter().all(|(other, _)| *other != block));
                        written[block as usize] = prefix.clone();
                        node = pool.keep(block, node, &tokens);
                        block
                    }
                };
                own.push((block, tokens));
            }
            held.push(own);
            let mut used: Vec<BlockNumber> =
                held.iter().flatten().map(|(block, _)| *block).collect();
            used.sort_unstable();
            used.dedup();
            assert_eq!(pool.free() + used.len(), pool.count());
        }
        assert!(found > 1000, "{found}");
    }
}
