//! Vector clocks of blocks, and of the memory locations through which they synchronise.
//!
//! A block's time is its segment. A release stores the block's clock as of its last fence at a
//! location; an acquire joins the location's clock. Atomics do both.

use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// For each block, the last segment known to be before now. Absent: none.
pub(crate) type KnownSegments = FxHashMap<u32, u32>;

/// A block's vector clock.
#[derive(Debug, Default)]
pub(crate) struct BlockClock {
    /// Known segments of other blocks.
    pub(crate) known: Arc<KnownSegments>,
    /// As of the last fence, with the block's own segment then.
    pub(crate) fenced: Option<Arc<KnownSegments>>,
    /// Whether the block has touched memory since its segment began.
    pub(crate) dirty: bool,
}

const SHARDS: usize = 64;

/// The clocks of one launch's locations.
#[derive(Debug)]
pub(crate) struct LocationClocks {
    shards: Vec<Mutex<FxHashMap<u64, Arc<KnownSegments>>>>,
}

impl Default for LocationClocks {
    fn default() -> Self {
        LocationClocks {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl LocationClocks {
    fn shard(&self, addr: u64) -> MutexGuard<'_, FxHashMap<u64, Arc<KnownSegments>>> {
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
fn join(into: &mut Arc<KnownSegments>, from: &Arc<KnownSegments>) {
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
