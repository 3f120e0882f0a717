//! LRU cache of values by key, within a budget of bytes.
//!
//! A value is in a slot, behind a try-lock with a contention flag, together with its key. The
//! index, under a lock, maps keys to slots. Most values are in a slot near the key's home, which
//! its hash gives: trying the locks there and comparing the keys takes no index lock, the fast
//! path. If a key is evicted while its value is checked out, the key leaves the index at once. The
//! value goes to [`LruCache::take_removed`] when its user checks it in and finds the contention
//! flag set.
//!
//! Invariants: a slot that the index names has that key; the bytes are those of the keys in the
//! index, and within the budget after every call that could add any. A slot's contention flag is
//! set under the index's lock alone, and a user that finds it set unlocks the slot under that
//! lock, so no wake-up is lost. Elsewhere: destroying evicted values (`graphs`).

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda::{ContendedGuard, ContendedLock};
use rustc_hash::FxBuildHasher;

use crate::lock::lock;

/// Number of home slots; a power of two. With many more keys, the others are found through the
/// index.
const HOMES: usize = 256;

/// Maximum distance of a value from its home at which it is found without the index.
const NEAR: u32 = 4;

/// The driver evicts the core's caches on each use: so the data that a use reads are in one cache
/// line, and those it writes in the next, which is prefetched with it, if key and value are as
/// small as they ideally are.
#[repr(C, align(128))]
struct CacheSlot<K, V> {
    content: ContendedLock<SlotContent<K, V>>,
    /// Clock of the last use. This and the next field are written by the holder of the lock.
    used: AtomicU64,
    uses: AtomicU64,
}

// The discriminant comes first, rather than in a niche of `V`.
#[repr(C, u32)]
enum SlotContent<K, V> {
    Empty,
    Occupied(K, V),
}

impl<K, V> SlotContent<K, V> {
    #[inline]
    fn key(&self) -> Option<&K> {
        match self {
            Self::Occupied(key, _) => Some(key),
            Self::Empty => None,
        }
    }

    fn take(&mut self) -> Option<V> {
        match std::mem::replace(self, Self::Empty) {
            Self::Occupied(_, value) => Some(value),
            Self::Empty => None,
        }
    }
}

/// A key's slot and size in the index.
#[derive(Clone, Copy)]
struct IndexEntry {
    slot: u32,
    bytes: u64,
}

struct KeyIndex<K, V> {
    by_key: HashMap<K, IndexEntry, FxBuildHasher>,
    /// Number of slots in use so far; the first ones are homes.
    made: u32,
    /// Empty slots that are not homes.
    vacant: Vec<u32>,
    /// Slots of keys that were evicted while their values were checked out.
    removed_while_out: Vec<u32>,
    /// Values of those that have been checked in since.
    gone: Vec<V>,
    bytes: u64,
    budget_bytes: u64,
}

type SlotRow<K, V> = Box<[CacheSlot<K, V>]>;

// Fields that each use reads come first.
#[repr(C)]
pub(super) struct LruCache<K, V> {
    /// Advances with each use. Concurrent threads may set it back; then the evicted entry is not
    /// exactly the least recently used.
    clock: AtomicU64,
    /// Rows of slots, each twice as long as the one before. The first has the homes.
    rows: [OnceLock<SlotRow<K, V>>; 24],
    index: Mutex<KeyIndex<K, V>>,
    /// Notified when a contended value was checked in.
    returned: Condvar,
}

/// A checked-out value. [`CheckedOut::check_in`] checks it in, as dropping does, and reports
/// contention.
pub(super) struct CheckedOut<'s, K: Eq + Hash + Clone, V> {
    cache: &'s LruCache<K, V>,
    number: u32,
    slot: &'s CacheSlot<K, V>,
    /// `None` only after it was checked in.
    content: Option<ContendedGuard<'s, SlotContent<K, V>>>,
}

impl<K: Eq + Hash + Clone, V> LruCache<K, V> {
    pub(super) fn new(budget_bytes: u64) -> Self {
        Self {
            clock: AtomicU64::new(0),
            rows: [const { OnceLock::new() }; 24],
            index: Mutex::new(KeyIndex {
                by_key: HashMap::default(),
                made: HOMES as u32,
                vacant: Vec::new(),
                removed_while_out: Vec::new(),
                gone: Vec::new(),
                bytes: 0,
                budget_bytes,
            }),
            returned: Condvar::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.index).by_key.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        lock(&self.index).bytes
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        lock(&self.index).budget_bytes
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        lock(&self.index).by_key.contains_key(key)
    }

    /// Whether a slot is occupied, or its value checked out.
    pub(super) fn has(&self, number: u32) -> bool {
        let _index = lock(&self.index);
        let content = self.slot(number).map(|slot| slot.content.try_lock());
        content.is_some_and(|content| content.is_none_or(|content| content.key().is_some()))
    }

    /// Total number of [`CheckedOut::note_use`] calls.
    pub(super) fn uses(&self) -> u64 {
        let made = lock(&self.index).made;
        let places = (0..made).filter_map(|number| self.slot(number));
        places.map(|it| it.uses.load(Ordering::Relaxed)).sum()
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&CacheSlot<K, V>> {
        let at = number as usize + HOMES;
        let row = (at / HOMES).ilog2() as usize;
        self.rows.get(row)?.get()?.get(at - (HOMES << row))
    }

    /// A slot that the index names.
    fn made(&self, number: u32) -> &CacheSlot<K, V> {
        match self.slot(number) {
            Some(slot) => slot,
            None => unreachable!("the index names places that were made"),
        }
    }

    /// Fast path: checks the value out if it is in its home slot and not in use. `None` is not
    /// conclusive; [`LruCache::check_out`] is.
    #[inline]
    pub(super) fn check_out_at_home(&self, key: &K) -> Option<CheckedOut<'_, K, V>> {
        let homes = self.rows[0].get()?;
        let home = FxBuildHasher.hash_one(key) as u32 % HOMES as u32;
        let out = self.out(home, homes.get(home as usize)?)?;
        // The value of another key is checked in again.
        (out.content().key() == Some(key)).then_some(out)
    }

    /// The same for the slots near the home.
    pub(super) fn check_out_near(&self, key: &K) -> Option<CheckedOut<'_, K, V>> {
        Self::near(key).find_map(|number| {
            let out = self.out(number, self.slot(number)?)?;
            (out.content().key() == Some(key)).then_some(out)
        })
    }

    /// Slots in which a key is looked up before the index, the home first.
    fn near(key: &K) -> impl Iterator<Item = u32> {
        let home = FxBuildHasher.hash_one(key) as u32;
        (0..NEAR).map(move |far| home.wrapping_add(far) % HOMES as u32)
    }

    /// Checks the value out, and waits while another thread has it. `None` if there is none.
    pub(super) fn check_out(&self, key: &K) -> Option<CheckedOut<'_, K, V>> {
        let mut index = lock(&self.index);
        loop {
            let number = index.by_key.get(key)?.slot;
            let slot = self.made(number);
            if let Some(out) = self.out(number, slot) {
                return Some(out);
            }
            if slot.content.mark_contended() {
                index = wait(&self.returned, index);
            }
        }
    }

    /// Checks out the value in a slot, if it is not in use.
    pub(super) fn check_out_at(&self, number: u32) -> Option<CheckedOut<'_, K, V>> {
        let out = self.out(number, self.slot(number)?)?;
        out.content().key().is_some().then_some(out)
    }

    #[inline]
    fn out<'s>(&'s self, number: u32, slot: &'s CacheSlot<K, V>) -> Option<CheckedOut<'s, K, V>> {
        let content = slot.content.try_lock()?;
        Some(CheckedOut {
            cache: self,
            number,
            slot,
            content: Some(content),
        })
    }

    /// Slow path of a check-in: the contention flag is set.
    #[cold]
    fn check_in_contended(&self, number: u32, mut content: ContendedGuard<'_, SlotContent<K, V>>) {
        let mut index = lock(&self.index);
        if index.has_left(number) {
            let value = index.empty(number, &mut content);
            index.gone.extend(value);
        }
        drop(content);
        drop(index);
        self.returned.notify_all();
    }

    /// Inserts a value of `bytes`, which fit the budget, under a key that is absent, and evicts
    /// what does not fit any more. Returns the value's slot, and the evicted values that are not
    /// checked out.
    pub(super) fn insert(&self, key: K, value: V, bytes: u64) -> (u32, Vec<V>) {
        let mut index = lock(&self.index);
        debug_assert!(!index.by_key.contains_key(&key) && bytes <= index.budget_bytes);
        let (number, mut content) = self.vacant(&mut index, &key);
        *content = SlotContent::Occupied(key.clone(), value);
        self.note_use(self.made(number));
        drop(content);
        let entry = IndexEntry {
            slot: number,
            bytes,
        };
        index.by_key.insert(key, entry);
        index.bytes += bytes;
        (number, self.shrink(&mut index, Some(number)))
    }

    /// Returns an empty slot, near the key's home if there is one.
    fn vacant(
        &self,
        index: &mut KeyIndex<K, V>,
        key: &K,
    ) -> (u32, ContendedGuard<'_, SlotContent<K, V>>) {
        let row = |long| (0..long).map(|_| CacheSlot::default()).collect();
        let homes = self.rows[0].get_or_init(|| row(HOMES));
        // A lookup of another key may hold a slot's lock right now, here and below.
        let near = Self::near(key).find_map(|number| {
            let content = homes[number as usize].content.try_lock()?;
            content.key().is_none().then_some((number, content))
        });
        let further = near.or_else(|| {
            let at = (0..index.vacant.len()).rev().find_map(|at| {
                let content = self.made(index.vacant[at]).content.try_lock()?;
                Some((at, content))
            });
            at.map(|(at, content)| (index.vacant.swap_remove(at), content))
        });
        further.unwrap_or_else(|| {
            loop {
                let number = index.made;
                let at = (number as usize / HOMES + 1).ilog2() as usize;
                self.rows[at].get_or_init(|| row(HOMES << at));
                index.made += 1;
                match self.made(number).content.try_lock() {
                    Some(content) => return (number, content),
                    None => index.vacant.push(number),
                }
            }
        })
    }

    /// Changes the budget, and evicts what does not fit any more.
    pub(super) fn set_budget(&self, bytes: u64) -> Vec<V> {
        let mut index = lock(&self.index);
        index.budget_bytes = bytes;
        self.shrink(&mut index, None)
    }

    /// Removes the keys that match `which`. Returns their number, and the values that are not
    /// checked out.
    pub(super) fn remove_if(&self, which: impl Fn(&K) -> bool) -> (usize, Vec<V>) {
        let mut index = lock(&self.index);
        // `which` is user code: it is called for all keys before the first is removed.
        let keys = index.by_key.keys().filter(|key| which(key));
        let keys: Vec<K> = keys.cloned().collect();
        let gone = keys.iter().filter_map(|key| index.by_key.remove(key));
        let gone: Vec<IndexEntry> = gone.collect();
        let values = gone
            .iter()
            .filter_map(|entry| self.vacate(&mut index, *entry));
        let values = values.collect();
        (gone.len(), values)
    }

    /// Takes the values that were checked in after their keys had been removed.
    pub(super) fn take_removed(&self) -> Vec<V> {
        std::mem::take(&mut lock(&self.index).gone)
    }

    /// Evicts the least recently used keys until the rest fits; never the one in slot `but`, which
    /// fits alone.
    fn shrink(&self, index: &mut KeyIndex<K, V>, but: Option<u32>) -> Vec<V> {
        let mut gone = Vec::new();
        while index.bytes > index.budget_bytes {
            let used = |entry: &IndexEntry| self.made(entry.slot).used.load(Ordering::Relaxed);
            let others = index.by_key.iter().filter(|(_, it)| Some(it.slot) != but);
            let oldest = others.min_by_key(|(_, entry)| used(entry));
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            // A key is not found if its hash or equality has changed.
            let Some(entry) = index.by_key.remove(&oldest) else {
                break;
            };
            gone.extend(self.vacate(index, entry));
        }
        gone
    }

    /// Empties the slot of a key that was removed from the index, or leaves that to the thread that
    /// has its value checked out.
    fn vacate(&self, index: &mut KeyIndex<K, V>, entry: IndexEntry) -> Option<V> {
        index.bytes -= entry.bytes;
        let slot = self.made(entry.slot);
        loop {
            if let Some(mut content) = slot.content.try_lock() {
                return index.empty(entry.slot, &mut content);
            }
            if slot.content.mark_contended() {
                index.removed_while_out.push(entry.slot);
                // Waiters for the removed key must look again.
                self.returned.notify_all();
                return None;
            }
        }
    }

    #[inline]
    fn note_use(&self, slot: &CacheSlot<K, V>) {
        let now = self.clock.load(Ordering::Relaxed) + 1;
        self.clock.store(now, Ordering::Relaxed);
        slot.used.store(now, Ordering::Relaxed);
    }
}

impl<K, V> Default for CacheSlot<K, V> {
    fn default() -> Self {
        Self {
            content: ContendedLock::new(SlotContent::Empty),
            used: AtomicU64::new(0),
            uses: AtomicU64::new(0),
        }
    }
}

impl<K, V> KeyIndex<K, V> {
    /// Whether the key of a slot was removed while its value was checked out; clears that state.
    fn has_left(&mut self, number: u32) -> bool {
        let at = self
            .removed_while_out
            .iter()
            .position(|removed_while_out| *removed_while_out == number);
        at.map(|at| self.removed_while_out.swap_remove(at))
            .is_some()
    }

    fn empty(&mut self, number: u32, content: &mut SlotContent<K, V>) -> Option<V> {
        if number >= HOMES as u32 {
            self.vacant.push(number);
        }
        content.take()
    }
}

impl<'s, K: Eq + Hash + Clone, V> CheckedOut<'s, K, V> {
    #[inline]
    fn content(&self) -> &SlotContent<K, V> {
        match &self.content {
            Some(content) => content,
            None => unreachable!("only its end takes it"),
        }
    }

    #[inline]
    pub(super) fn value(&mut self) -> &mut V {
        match self.content.as_deref_mut() {
            Some(SlotContent::Occupied(_, value)) => value,
            Some(SlotContent::Empty) | None => {
                unreachable!("a key that is there has a value, and only an end takes it")
            }
        }
    }

    /// The slot's number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Marks the value as most recently used, and counts the use.
    #[inline]
    pub(super) fn note_use(&mut self) {
        self.cache.note_use(self.slot);
        let uses = self.slot.uses.load(Ordering::Relaxed) + 1;
        self.slot.uses.store(uses, Ordering::Relaxed);
    }

    /// Checks the value in; returns whether [`LruCache::take_removed`] may have values.
    #[inline]
    pub(super) fn check_in(mut self) -> bool {
        self.unlock()
    }

    #[inline]
    fn unlock(&mut self) -> bool {
        match self.content.take().map(ContendedGuard::release) {
            Some(Err(content)) => {
                self.cache.check_in_contended(self.number, content);
                true
            }
            Some(Ok(())) | None => false,
        }
    }

    /// Checks the value in with a new size, which fits the budget, as most recently used, and
    /// evicts what does not fit any more.
    ///
    /// # Errors
    /// The value, if its key has been removed.
    pub(super) fn keep_as(mut self, bytes: u64) -> Result<Vec<V>, V> {
        let mut index = lock(&self.cache.index);
        let entry = self
            .content()
            .key()
            .and_then(|key| index.by_key.get_mut(key));
        let Some(entry) = entry.filter(|entry| entry.slot == self.number) else {
            drop(index);
            return Err(self.end());
        };
        let before = std::mem::replace(&mut entry.bytes, bytes);
        index.bytes = index.bytes - before + bytes;
        self.cache.note_use(self.slot);
        let gone = self.cache.shrink(&mut index, Some(self.number));
        drop(index);
        self.unlock();
        Ok(gone)
    }

    /// Removes the value from the cache, if it still is in it.
    pub(super) fn end(mut self) -> V {
        let Some(mut content) = self.content.take() else {
            unreachable!("only its end takes it")
        };
        let mut index = lock(&self.cache.index);
        if !index.has_left(self.number) {
            let entry = content.key().and_then(|key| index.by_key.remove(key));
            index.bytes -= entry.map_or(0, |entry| entry.bytes);
        }
        let value = index.empty(self.number, &mut content);
        drop(content);
        drop(index);
        self.cache.returned.notify_all();
        match value {
            Some(value) => value,
            None => unreachable!("it was out with its value"),
        }
    }
}

impl<K: Eq + Hash + Clone, V> Drop for CheckedOut<'_, K, V> {
    #[inline]
    fn drop(&mut self) {
        self.unlock();
    }
}

fn wait<'l, T>(condvar: &Condvar, content: MutexGuard<'l, T>) -> MutexGuard<'l, T> {
    condvar
        .wait(content)
        .unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    /// Keys of two homes, so that most are elsewhere.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Name(u8);

    impl Hash for Name {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            (self.0 % 2).hash(state);
        }
    }

    /// Reference model: all keys with their bytes and values, the most recently used last; the
    /// value is `None` while checked out.
    #[derive(Default)]
    struct Model {
        keys: Vec<(u8, u64, Option<u32>)>,
        budget_bytes: u64,
    }

    impl Model {
        fn bytes(&self) -> u64 {
            self.keys.iter().map(|(_, bytes, _)| bytes).sum()
        }

        fn shrink(&mut self) -> Vec<u32> {
            let mut gone = Vec::new();
            while self.bytes() > self.budget_bytes {
                gone.extend(self.keys.remove(0).2);
            }
            gone
        }

        fn find(&self, key: u8) -> Option<usize> {
            self.keys.iter().position(|it| it.0 == key)
        }

        fn use_it(&mut self, key: u8) -> Option<usize> {
            let at = self.find(key)?;
            let it = self.keys.remove(at);
            self.keys.push(it);
            Some(self.keys.len() - 1)
        }
    }

    fn run(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let most = random.u64(1..200);
        let cache = LruCache::<Name, u32>::new(most);
        let mut model = Model {
            budget_bytes: most,
            ..Model::default()
        };
        // Checked-out values, and whether their keys are still in the cache.
        let mut out: Vec<(CheckedOut<'_, Name, u32>, u8, u32, bool)> = Vec::new();
        // Values that were checked in after their keys had been removed.
        let (mut gone, mut expected) = (Vec::new(), Vec::new());
        let mut uses = 0;
        for step in 0..300_u32 {
            let key = random.u8(..12);
            let bytes = random.u64(0..=model.budget_bytes);
            let sorted = |mut values: Vec<u32>| {
                values.sort_unstable();
                values
            };
            match random.u8(..10) {
                0..3 => {
                    let at = model.find(key);
                    let is_out = at.is_some_and(|at| model.keys[at].2.is_none());
                    let near = cache
                        .check_out_at_home(&Name(key))
                        .or_else(|| cache.check_out_near(&Name(key)));
                    assert!(near.is_none() || (at.is_some() && !is_out));
                    // Checking out a value that is checked out would block.
                    let taken = near.or_else(|| match is_out {
                        true => None,
                        false => cache.check_out(&Name(key)),
                    });
                    assert_eq!(taken.is_some(), at.is_some() && !is_out);
                    if let Some(mut taken) = taken {
                        taken.note_use();
                        uses += 1;
                        let at = model.use_it(key).expect("it is there");
                        let value = *taken.value();
                        assert_eq!(model.keys[at].2.take(), Some(value));
                        out.push((taken, key, value, true));
                    }
                }
                3..6 if !out.is_empty() => {
                    let at = random.usize(..out.len());
                    let (taken, key, value, wanted) = out.swap_remove(at);
                    let at = model.find(key);
                    match random.u8(..3) {
                        0 => {
                            taken.check_in();
                            match (at, wanted) {
                                (Some(at), true) => model.keys[at].2 = Some(value),
                                _ => expected.push(value),
                            }
                        }
                        1 => {
                            let gone = taken.keep_as(bytes);
                            assert_eq!(gone.is_ok(), wanted);
                            if let (true, Ok(gone)) = (wanted, gone) {
                                let at = model.use_it(key).expect("it is there");
                                (model.keys[at].1, model.keys[at].2) = (bytes, Some(value));
                                assert_eq!(sorted(gone), sorted(model.shrink()));
                            }
                        }
                        _ => {
                            assert_eq!(taken.end(), value);
                            if let (Some(at), true) = (at, wanted) {
                                model.keys.remove(at);
                            }
                        }
                    }
                }
                6 | 7 if !cache.contains(&Name(key)) => {
                    model.keys.push((key, bytes, Some(step)));
                    let (number, gone) = cache.insert(Name(key), step, bytes);
                    assert_eq!(sorted(gone), sorted(model.shrink()));
                    if random.bool() {
                        let mut taken = cache.check_out_at(number).expect("it is in");
                        assert_eq!(*taken.value(), step);
                        assert!(cache.check_out_at(number).is_none());
                        taken.check_in();
                    }
                }
                8 => {
                    let (low, high) = (random.u8(..12), random.u8(..12));
                    let which = |key: &u8| (low..high).contains(key);
                    let (count, values) = cache.remove_if(|name| which(&name.0));
                    let (gone, rest) = std::mem::take(&mut model.keys)
                        .into_iter()
                        .partition(|it| which(&it.0));
                    let gone: Vec<_> = gone;
                    model.keys = rest;
                    assert_eq!(count, gone.len());
                    let gone = gone.into_iter().filter_map(|it| it.2).collect();
                    assert_eq!(sorted(values), sorted(gone));
                }
                9 => {
                    model.budget_bytes = random.u64(1..200);
                    let gone = cache.set_budget(model.budget_bytes);
                    assert_eq!(sorted(gone), sorted(model.shrink()));
                }
                _ => {}
            }
            // A key that is absent after a step has been removed.
            for (_, key, _, wanted) in &mut out {
                *wanted &= model.find(*key).is_some();
            }
            gone.extend(cache.take_removed());
            assert_eq!(sorted(gone.clone()), sorted(expected.clone()));
            assert_eq!((cache.len(), cache.uses()), (model.keys.len(), uses));
            assert_eq!(cache.bytes(), model.bytes());
            assert!(cache.bytes() <= cache.budget_bytes());
        }
    }

    #[test]
    fn lru_cache_matches_its_reference_model() {
        for _ in 0..300 {
            let seed = fastrand::u64(..);
            let result = std::panic::catch_unwind(|| run(seed));
            assert!(result.is_ok(), "seed {seed}");
        }
    }

    /// A value that asserts exclusive use, and counts its drops.
    struct Counted {
        key: u8,
        is_used: AtomicBool,
        ended: Arc<AtomicU32>,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            assert!(!*self.is_used.get_mut());
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Threads use, resize, remove and evict a few keys. Use is exclusive, no thread blocks for
    /// ever, and each value is dropped once.
    #[test]
    fn concurrent_use_and_eviction_lose_no_value() {
        let cache = LruCache::new(10);
        let ended = Arc::new(AtomicU32::new(0));
        let (made, seed) = (AtomicU32::new(0), fastrand::u64(..));
        // Serialises inserts, as the graph cache does.
        let adding = Mutex::new(());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (cache, ended, made, adding) = (&cache, &ended, &made, &adding);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed ^ thread);
                    for _ in 0..20_000 {
                        let key = random.u8(..6);
                        match random.u8(..20) {
                            0 => drop(cache.remove_if(|other: &Name| other.0 == key)),
                            1 => drop(cache.set_budget(random.u64(2..12))),
                            2 => drop(cache.take_removed()),
                            3 => {
                                let _adding = lock(adding);
                                if cache.contains(&Name(key)) {
                                    continue;
                                }
                                made.fetch_add(1, Ordering::Relaxed);
                                let value = Counted {
                                    key,
                                    is_used: AtomicBool::new(false),
                                    ended: ended.clone(),
                                };
                                drop(cache.insert(Name(key), value, 1));
                            }
                            way => {
                                let out = cache
                                    .check_out_at_home(&Name(key))
                                    .or_else(|| cache.check_out_near(&Name(key)));
                                let Some(mut out) = out.or_else(|| cache.check_out(&Name(key)))
                                else {
                                    continue;
                                };
                                let value = out.value();
                                assert_eq!(value.key, key, "seed {seed}");
                                assert!(!value.is_used.swap(true, Ordering::Relaxed));
                                if random.u8(..8) == 0 {
                                    std::thread::yield_now();
                                }
                                value.is_used.store(false, Ordering::Relaxed);
                                match way {
                                    4 => drop(out.end()),
                                    5 => drop(out.keep_as(2)),
                                    _ => drop(out.check_in()),
                                }
                            }
                        }
                    }
                });
            }
        });
        drop(cache);
        assert_eq!(
            ended.load(Ordering::Relaxed),
            made.into_inner(),
            "seed {seed}"
        );
    }
}
