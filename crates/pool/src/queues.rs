//! Queues of freed blocks, by place.
//!
//! Most calls need the queue that the previous call needed, and find nothing of it in their
//! processor's caches: so that one is checked first, and the fields each call needs of a queue are
//! in one cache line.
//!
//! Elsewhere: the purpose of the queues ([`crate::order`]).

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::blocks::SetId;
use crate::place::PoolPlace;

/// A queue of freed blocks; fields are in the order in which they are read.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct FreeQueue<P> {
    pub(crate) place: PoolPlace,
    /// The epoch of blocks freed now.
    pub(crate) open: u64,
    /// Frees since the last fence was begun; an upper bound of the bytes that wait for one.
    pub(crate) unfenced: usize,
    pub(crate) unfenced_bytes: u64,
    pub(crate) set: SetId,
    pub(crate) retired: bool,
    /// Fences in the order of their epochs.
    pub(crate) fences: VecDeque<(u64, Arc<P>)>,
    /// Epochs of other queues that this stream waits for.
    pub(crate) waited_for: FxHashMap<PoolPlace, u64>,
}

impl<P> FreeQueue<P> {
    pub(crate) fn new(place: PoolPlace, set: SetId, open: u64) -> Self {
        Self {
            place,
            open,
            unfenced: 0,
            unfenced_bytes: 0,
            set,
            retired: false,
            fences: VecDeque::new(),
            waited_for: FxHashMap::default(),
        }
    }
}

/// All queues; see the module. Fields are in the order in which they are read.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FreeQueues<P> {
    all: Vec<FreeQueue<P>>,
    /// The index of the queue used last.
    last: usize,
    /// The index of each place's queue.
    places: FxHashMap<PoolPlace, usize>,
}

impl<P> Default for FreeQueues<P> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            last: 0,
            places: FxHashMap::default(),
        }
    }
}

impl<P> FreeQueues<P> {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FreeQueue<P>> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut FreeQueue<P>> {
        self.all.iter_mut()
    }

    #[inline]
    fn at(&self, place: &PoolPlace) -> Option<usize> {
        match self.all.get(self.last) {
            Some(last) if last.place == *place => Some(self.last),
            _ => self.places.get(place).copied(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, place: &PoolPlace) -> Option<&FreeQueue<P>> {
        self.all.get(self.at(place)?)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: &PoolPlace) -> Option<&mut FreeQueue<P>> {
        self.last = self.at(place)?;
        self.all.get_mut(self.last)
    }

    /// The queue of a place, created if missing.
    #[inline]
    pub(crate) fn get_or_insert(
        &mut self,
        place: PoolPlace,
        make: impl FnOnce() -> FreeQueue<P>,
    ) -> &mut FreeQueue<P> {
        self.last = self.at(&place).unwrap_or(self.all.len());
        if self.last == self.all.len() {
            self.places.insert(place, self.last);
            self.all.push(make());
        }
        &mut self.all[self.last]
    }

    pub(crate) fn remove(&mut self, place: &PoolPlace) {
        let Some(at) = self.places.remove(place) else {
            return;
        };
        self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at) {
            self.places.insert(moved.place, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::StreamId;

    /// Compared with a map, under random operations.
    #[test]
    fn queues_are_found_after_any_insertions_and_removals() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut queues, mut shadow) = (FreeQueues::<()>::default(), FxHashMap::default());
        // Miri takes some hundred times as long.
        for epoch in 0..if cfg!(miri) { 500 } else { 20_000 } {
            let place = match random.u64(..9) {
                0 => PoolPlace::Anywhere,
                stream => PoolPlace::Stream(StreamId(stream)),
            };
            let opened = |queue: &FreeQueue<()>| queue.open;
            assert_eq!(queues.get(&place).map(opened), shadow.get(&place).copied());
            match random.u8(..3) {
                0 => {
                    queues.remove(&place);
                    shadow.remove(&place);
                }
                1 => {
                    let made =
                        queues.get_or_insert(place, || FreeQueue::new(place, SetId::READY, epoch));
                    assert_eq!(made.open, *shadow.entry(place).or_insert(epoch));
                }
                _ => {
                    let found = queues.get_mut(&place).map(|queue| opened(queue));
                    assert_eq!(found, shadow.get(&place).copied());
                }
            }
            assert_eq!(queues.len(), shadow.len());
        }
    }

    #[test]
    fn the_fields_each_call_reads_fit_one_cache_line() {
        assert!(std::mem::offset_of!(FreeQueue<()>, fences) <= 64);
    }
}
