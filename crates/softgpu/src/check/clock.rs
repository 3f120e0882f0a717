//! What a block knows of the others, and what locations in memory pass on.
//!
//! A block's time is its segment. A release puts into a location what the block knew at its last
//! fence; an acquire takes what is there. Atomics do both.

use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// For each block, the last segment known to be before now. Absent: none.
pub(crate) type Known = FxHashMap<u32, u32>;

/// A block's knowledge.
#[derive(Debug, Default)]
pub(crate) struct BlockClock {
    /// Of other blocks.
    pub(crate) known: Arc<Known>,
    /// As of the last fence, with the block's own segment then.
    pub(crate) fenced: Option<Arc<Known>>,
    /// Whether the block has touched memory since its segment began.
    pub(crate) dirty: bool,
}

const SHARDS: usize = 64;

/// What the locations of one launch pass on.
#[derive(Debug)]
pub(crate) struct Locations {
    shards: Vec<Mutex<FxHashMap<u64, Arc<Known>>>>,
}

impl Default for Locations {
    fn default() -> Self {
        Locations {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Locations {
    fn shard(&self, addr: u64) -> MutexGuard<'_, FxHashMap<u64, Arc<Known>>> {
        self.shards[(addr >> 3) as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn release(&self, addr: u64, clock: &BlockClock) {
        let Some(fenced) = &clock.fenced else { return };
        let mut shard = self.shard(addr);
        match shard.get_mut(&addr) {
            None => {
                shard.insert(addr, fenced.clone());
            }
            Some(old) => join(old, fenced),
        }
    }

    pub(crate) fn acquire(&self, addr: u64, clock: &mut BlockClock) {
        let found = self.shard(addr).get(&addr).cloned();
        if let Some(found) = found {
            join(&mut clock.known, &found);
        }
    }
}

/// Takes the later of both for each block.
fn join(into: &mut Arc<Known>, from: &Arc<Known>) {
    if Arc::ptr_eq(into, from)
        || from
            .iter()
            .all(|(b, s)| into.get(b).is_some_and(|old| old >= s))
    {
        return;
    }
    if into
        .iter()
        .all(|(b, s)| from.get(b).is_some_and(|new| new >= s))
    {
        *into = from.clone();
        return;
    }
    let all = Arc::make_mut(into);
    for (&b, &s) in from.iter() {
        let old = all.entry(b).or_insert(s);
        *old = (*old).max(s);
    }
}
