//! The queues of freed blocks, by place.
//!
//! Most calls want the queue that the call before wanted, and have nothing of it in
//! their processor's caches: so that one is looked at first, and what each call
//! needs of a queue is one line.
//!
//! Elsewhere: what the queues are for ([`crate::order`]).

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::blocks::SetId;
use crate::order::Place;

/// In the order in which it is read.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Queue<P> {
    pub(crate) place: Place,
    /// Blocks freed now are of this epoch.
    pub(crate) open: u64,
    /// Frees since the last mark was begun; bytes that wait for one, at most.
    pub(crate) unmarked: usize,
    pub(crate) unmarked_bytes: u64,
    pub(crate) set: SetId,
    pub(crate) retired: bool,
    /// In the order of their epochs.
    pub(crate) marks: VecDeque<(u64, Arc<P>)>,
    /// Epochs of other queues that this stream waits for.
    pub(crate) knows: FxHashMap<Place, u64>,
}

impl<P> Queue<P> {
    pub(crate) fn new(place: Place, set: SetId, open: u64) -> Self {
        Self {
            place,
            open,
            unmarked: 0,
            unmarked_bytes: 0,
            set,
            retired: false,
            marks: VecDeque::new(),
            knows: FxHashMap::default(),
        }
    }
}

/// See the module. In the order in which it is read.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Queues<P> {
    all: Vec<Queue<P>>,
    /// Where the one is that was wanted last.
    last: usize,
    /// Where all are.
    places: FxHashMap<Place, usize>,
}

impl<P> Default for Queues<P> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            last: 0,
            places: FxHashMap::default(),
        }
    }
}

impl<P> Queues<P> {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queue<P>> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Queue<P>> {
        self.all.iter_mut()
    }

    #[inline]
    fn at(&self, place: &Place) -> Option<usize> {
        match self.all.get(self.last) {
            Some(last) if last.place == *place => Some(self.last),
            _ => self.places.get(place).copied(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, place: &Place) -> Option<&Queue<P>> {
        self.all.get(self.at(place)?)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: &Place) -> Option<&mut Queue<P>> {
        self.last = self.at(place)?;
        self.all.get_mut(self.last)
    }

    /// The queue of a place; made, if there is none yet.
    #[inline]
    pub(crate) fn get_or_insert(
        &mut self,
        place: Place,
        make: impl FnOnce() -> Queue<P>,
    ) -> &mut Queue<P> {
        self.last = self.at(&place).unwrap_or(self.all.len());
        if self.last == self.all.len() {
            self.places.insert(place, self.last);
            self.all.push(make());
        }
        &mut self.all[self.last]
    }

    pub(crate) fn remove(&mut self, place: &Place) {
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
    use crate::order::StreamId;

    /// Against a map of the same, by chance.
    #[test]
    fn queues_are_found_whatever_came_and_went() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut queues, mut shadow) = (Queues::<()>::default(), FxHashMap::default());
        for epoch in 0..20_000 {
            let place = match random.u64(..9) {
                0 => Place::Anywhere,
                stream => Place::Stream(StreamId(stream)),
            };
            let opened = |queue: &Queue<()>| queue.open;
            assert_eq!(queues.get(&place).map(opened), shadow.get(&place).copied());
            match random.u8(..3) {
                0 => {
                    queues.remove(&place);
                    shadow.remove(&place);
                }
                1 => {
                    let made =
                        queues.get_or_insert(place, || Queue::new(place, SetId::READY, epoch));
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
    fn what_each_call_reads_of_a_queue_is_a_line() {
        assert!(std::mem::offset_of!(Queue<()>, marks) <= 64);
    }
}
