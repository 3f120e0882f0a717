//! Slots of states: those that requests use, those that keep the state behind a prefix, and free
//! ones.
//!
//! Invariants: a slot is free, or one request's, or keeps the state behind one prefix. What a kept
//! slot has is written once, before it is kept. One that is held is not given to others: a step
//! that is not queued yet reads it.

use std::collections::{BTreeMap, HashMap};

use crate::blocks::PrefixNode;
use crate::step_inputs::StepLimits;

/// Number of a slot.
pub(crate) type SlotNumber = u32;

#[derive(Clone, Debug)]
struct KeptState {
    node: PrefixNode,
    /// When it was last kept or found.
    used: u64,
    /// Requests that read it in their next step.
    holders: u32,
}

/// Slots of states.
#[derive(Debug)]
pub(crate) struct StatePool {
    free: Vec<SlotNumber>,
    kept: HashMap<SlotNumber, KeptState>,
    by_node: HashMap<PrefixNode, SlotNumber>,
    /// Kept slots that are not held, by the time of their last use.
    idle: BTreeMap<u64, SlotNumber>,
    clock: u64,
}

impl StatePool {
    /// A pool whose slots are all free.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().collect(),
            kept: HashMap::new(),
            by_node: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Number of slots that no request uses.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Takes a slot for a new state: a free one, else the one that was kept unused for longest.
    pub(crate) fn take(&mut self) -> Option<SlotNumber> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let (_, slot) = self.idle.pop_first()?;
        self.forget(slot);
        Some(slot)
    }

    fn forget(&mut self, slot: SlotNumber) {
        if let Some(state) = self.kept.remove(&slot) {
            self.by_node.remove(&state.node);
            self.idle.remove(&state.used);
        }
    }

    /// Ends the use of a slot by its request.
    pub(crate) fn give_back(&mut self, slot: SlotNumber) {
        self.free.push(slot);
    }

    /// Whether the state behind a prefix is kept.
    pub(crate) fn has(&self, node: PrefixNode) -> bool {
        self.by_node.contains_key(&node)
    }

    /// The slot with the state behind a prefix, which is held until it is released.
    pub(crate) fn find(&mut self, node: PrefixNode) -> Option<SlotNumber> {
        let slot = *self.by_node.get(&node)?;
        let now = self.tick();
        let state = self.kept.get_mut(&slot)?;
        self.idle.remove(&state.used);
        state.holders += 1;
        state.used = now;
        Some(slot)
    }

    /// Ends one hold of a kept slot.
    pub(crate) fn release(&mut self, slot: SlotNumber) {
        let Some(state) = self.kept.get_mut(&slot) else {
            return;
        };
        state.holders = state.holders.saturating_sub(1);
        if state.holders == 0 {
            self.idle.insert(state.used, slot);
        }
    }

    /// Keeps a slot, which a request has used and whose state is written, for a prefix. If another
    /// one is kept for it, this one is free.
    pub(crate) fn keep(&mut self, slot: SlotNumber, node: PrefixNode) {
        if self.has(node) {
            self.give_back(slot);
            return;
        }
        let used = self.tick();
        self.by_node.insert(node, slot);
        self.idle.insert(used, slot);
        let state = KeptState {
            node,
            used,
            holders: 0,
        };
        self.kept.insert(slot, state);
    }

    /// Takes the slot that is kept for a prefix, for another state, unless it is held.
    pub(crate) fn take_kept(&mut self, node: PrefixNode) -> Option<SlotNumber> {
        let slot = *self.by_node.get(&node)?;
        if self.kept.get(&slot)?.holders > 0 {
            return None;
        }
        self.forget(slot);
        Some(slot)
    }
}

/// Slots of states that a model of these limits has, all of them free.
pub(crate) fn state_pool(limits: &StepLimits) -> Option<StatePool> {
    // There are far fewer than 2^32.
    (limits.slots > 0).then(|| StatePool::new(limits.slots as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BlockPool;

    /// Prefixes that differ.
    fn nodes(count: u32) -> Vec<PrefixNode> {
        let mut pool = BlockPool::new(count);
        let all = std::iter::from_fn(|| pool.take()).collect::<Vec<u32>>();
        let before = crate::blocks::BEGINNING;
        all.iter()
            .map(|block| pool.keep(*block, before, &[*block]))
            .collect()
    }

    #[test]
    fn the_state_that_was_unused_for_longest_goes_first() {
        let (mut pool, nodes) = (StatePool::new(3), nodes(4));
        for node in &nodes[..3] {
            let slot = pool.take().unwrap_or(99);
            pool.keep(slot, *node);
        }
        assert_eq!(pool.find(nodes[0]), Some(0));
        // Held, it does not go, though all others do.
        assert_eq!(pool.take(), Some(1));
        assert_eq!(pool.take(), Some(2));
        assert_eq!(pool.take(), None);
        assert_eq!(pool.take_kept(nodes[0]), None);
        pool.release(0);
        assert!(pool.has(nodes[0]) && !pool.has(nodes[1]));
        assert_eq!(pool.take_kept(nodes[0]), Some(0));
        assert_eq!(pool.free(), 0);
    }

    /// Random uses beside a model of what each slot has.
    #[test]
    fn slots_have_one_use_and_keep_what_they_had() {
        let mut random = fercuda_trials::rng();
        let (mut pool, nodes) = (StatePool::new(6), nodes(9));
        let (mut used, mut held): (Vec<SlotNumber>, Vec<SlotNumber>) = Default::default();
        let mut content: HashMap<SlotNumber, PrefixNode> = HashMap::new();
        for _ in 0..20_000 {
            let node = nodes[random.usize(..nodes.len())];
            match random.u32(..5) {
                0 => {
                    if let Some(slot) = pool.take() {
                        assert!(!used.contains(&slot) && !held.contains(&slot));
                        content.remove(&slot);
                        used.push(slot);
                    }
                }
                1 if !used.is_empty() => {
                    let slot = used.swap_remove(random.usize(..used.len()));
                    if !pool.has(node) {
                        content.insert(slot, node);
                    }
                    pool.keep(slot, node);
                }
                2 if !used.is_empty() => {
                    pool.give_back(used.swap_remove(random.usize(..used.len())));
                }
                3 => {
                    if let Some(slot) = pool.find(node) {
                        assert_eq!(content.get(&slot), Some(&node));
                        held.push(slot);
                    }
                }
                _ if !held.is_empty() => {
                    pool.release(held.swap_remove(random.usize(..held.len())));
                }
                _ => {}
            }
            assert_eq!(pool.free() + used.len(), 6);
        }
    }
}
