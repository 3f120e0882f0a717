//! What is kept under a key, within a budget of bytes: the least recently used
//! goes first.
//!
//! A value lies in a place, where who uses it has it alone ([`ContendedLock`]), with the key
//! that it is kept under. Which place a key has is the index's to say, under a lock.
//! Most lie near a home that their hash says: who takes the places there and looks at
//! the keys in them needs no lock. A key that is let go while its value is out leaves the index at once. The
//! value is for [`Shelf::gone`], when who has it gives it back and finds that it was
//! called.
//!
//! Invariants: a place that the index names has that key; the bytes are those of the
//! keys in the index, and within the budget after every call that could add any. A
//! place is called under the index's lock alone, and who finds it called lets it go
//! under that, so nobody waits for a call that came too late. Elsewhere: what ends
//! what is gone (`graphs`).

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda::{ContendedGuard, ContendedLock};
use rustc_hash::FxBuildHasher;

use super::lock;

/// Places that are keys' homes; a power of two. A program with many more graphs finds
/// the others by the index.
const HOMES: usize = 256;

/// So far from its home a value may lie, and be found without the index.
const NEAR: u32 = 4;

/// The driver fills the core's caches with what is its own before each use: so what a
/// use looks at lies in one line, and what it notes in the next, which is fetched with
/// it, if key and value are as small as they best are.
#[repr(C, align(128))]
struct Place<K, V> {
    held: ContendedLock<Held<K, V>>,
    /// When it was used last. It and the next are written by who has it.
    used: AtomicU64,
    uses: AtomicU64,
}

// What tells them apart comes first, and not where the compiler finds room in `V`.
#[repr(C, u32)]
enum Held<K, V> {
    Nothing,
    Kept(K, V),
}

impl<K, V> Held<K, V> {
    #[inline]
    fn key(&self) -> Option<&K> {
        match self {
            Self::Kept(key, _) => Some(key),
            Self::Nothing => None,
        }
    }

    fn take(&mut self) -> Option<V> {
        match std::mem::replace(self, Self::Nothing) {
            Self::Kept(_, value) => Some(value),
            Self::Nothing => None,
        }
    }
}

/// A key's place in the index.
#[derive(Clone, Copy)]
struct Kept {
    place: u32,
    bytes: u64,
}

struct Index<K, V> {
    by_key: HashMap<K, Kept, FxBuildHasher>,
    /// Places that have been used; the first are homes.
    made: u32,
    /// Those of them that are no homes and in which there is nothing.
    vacant: Vec<u32>,
    /// Places whose keys were let go while their values were out.
    leaving: Vec<u32>,
    /// What those were.
    gone: Vec<V>,
    bytes: u64,
    budget_bytes: u64,
}

type Row<K, V> = Box<[Place<K, V>]>;

// What each use looks at lies first.
#[repr(C)]
pub(super) struct Shelf<K, V> {
    /// Moves on with each use. Threads at once may set it back; then what goes first is
    /// not for sure what was used least recently.
    clock: AtomicU64,
    /// Rows of places, each twice as long as the one before. The first is the homes.
    rows: [OnceLock<Row<K, V>>; 24],
    index: Mutex<Index<K, V>>,
    /// Something was given back that somebody waits for.
    returned: Condvar,
}

/// A value that is out. [`Out::give_back`] says more than dropping it.
pub(super) struct Out<'s, K: Eq + Hash + Clone, V> {
    shelf: &'s Shelf<K, V>,
    number: u32,
    place: &'s Place<K, V>,
    /// `None` only once it has ended.
    held: Option<ContendedGuard<'s, Held<K, V>>>,
}

impl<K: Eq + Hash + Clone, V> Shelf<K, V> {
    pub(super) fn new(budget_bytes: u64) -> Self {
        Self {
            clock: AtomicU64::new(0),
            rows: [const { OnceLock::new() }; 24],
            index: Mutex::new(Index {
                by_key: HashMap::default(),
                made: HOMES as u32,
                vacant: Vec::new(),
                leaving: Vec::new(),
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

    /// Whether a place is some key's, or its value is out.
    pub(super) fn has(&self, number: u32) -> bool {
        let _index = lock(&self.index);
        let held = self.place(number).map(|place| place.held.try_lock());
        held.is_some_and(|held| held.is_none_or(|held| held.key().is_some()))
    }

    /// All that [`Out::note_use`] has noted.
    pub(super) fn uses(&self) -> u64 {
        let made = lock(&self.index).made;
        let places = (0..made).filter_map(|number| self.place(number));
        places.map(|it| it.uses.load(Ordering::Relaxed)).sum()
    }

    #[inline]
    fn place(&self, number: u32) -> Option<&Place<K, V>> {
        let at = number as usize + HOMES;
        let row = (at / HOMES).ilog2() as usize;
        self.rows.get(row)?.get()?.get(at - (HOMES << row))
    }

    /// A place that the index names.
    fn made(&self, number: u32) -> &Place<K, V> {
        match self.place(number) {
            Some(place) => place,
            None => unreachable!("the index names places that were made"),
        }
    }

    /// Takes the value out if it is at its home and in. None says nothing:
    /// [`Shelf::take`] does.
    #[inline]
    pub(super) fn take_at_home(&self, key: &K) -> Option<Out<'_, K, V>> {
        let homes = self.rows[0].get()?;
        let home = FxBuildHasher.hash_one(key) as u32 % HOMES as u32;
        let out = self.out(home, homes.get(home as usize)?)?;
        // Somebody else's goes back.
        (out.held().key() == Some(key)).then_some(out)
    }

    /// The same near its home.
    pub(super) fn take_near(&self, key: &K) -> Option<Out<'_, K, V>> {
        Self::near(key).find_map(|number| {
            let out = self.out(number, self.place(number)?)?;
            (out.held().key() == Some(key)).then_some(out)
        })
    }

    /// Places where a key's value is looked for before the index is, the home first.
    fn near(key: &K) -> impl Iterator<Item = u32> {
        let home = FxBuildHasher.hash_one(key) as u32;
        (0..NEAR).map(move |far| home.wrapping_add(far) % HOMES as u32)
    }

    /// Takes the value out, waiting while somebody else has it. None if there is none.
    pub(super) fn take(&self, key: &K) -> Option<Out<'_, K, V>> {
        let mut index = lock(&self.index);
        loop {
            let number = index.by_key.get(key)?.place;
            let place = self.made(number);
            if let Some(out) = self.out(number, place) {
                return Some(out);
            }
            if place.held.mark_contended() {
                index = wait(&self.returned, index);
            }
        }
    }

    /// Takes out what is in a place, if that is in.
    pub(super) fn take_at(&self, number: u32) -> Option<Out<'_, K, V>> {
        let out = self.out(number, self.place(number)?)?;
        out.held().key().is_some().then_some(out)
    }

    #[inline]
    fn out<'s>(&'s self, number: u32, place: &'s Place<K, V>) -> Option<Out<'s, K, V>> {
        let held = place.held.try_lock()?;
        Some(Out {
            shelf: self,
            number,
            place,
            held: Some(held),
        })
    }

    /// Does what is wanted of who has a place and found it called.
    #[cold]
    fn settle(&self, number: u32, mut held: ContendedGuard<'_, Held<K, V>>) {
        let mut index = lock(&self.index);
        if index.has_left(number) {
            let value = index.empty(number, &mut held);
            index.gone.extend(value);
        }
        drop(held);
        drop(index);
        self.returned.notify_all();
    }

    /// Puts a value of `bytes`, which fit the budget, under a key that is not
    /// there, and lets go of what no longer fits. Says which place it has; the values
    /// of those let go come back, unless they are out.
    pub(super) fn insert(&self, key: K, value: V, bytes: u64) -> (u32, Vec<V>) {
        let mut index = lock(&self.index);
        debug_assert!(!index.by_key.contains_key(&key) && bytes <= index.budget_bytes);
        let (number, mut held) = self.vacant(&mut index, &key);
        *held = Held::Kept(key.clone(), value);
        self.note_use(self.made(number));
        drop(held);
        let kept = Kept {
            place: number,
            bytes,
        };
        index.by_key.insert(key, kept);
        index.bytes += bytes;
        (number, self.shrink(&mut index, Some(number)))
    }

    /// A place in which there is nothing, near the key's home if there is one.
    fn vacant(&self, index: &mut Index<K, V>, key: &K) -> (u32, ContendedGuard<'_, Held<K, V>>) {
        let row = |long| (0..long).map(|_| Place::default()).collect();
        let homes = self.rows[0].get_or_init(|| row(HOMES));
        // Who looks for another key may have a place just now, here and below.
        let near = Self::near(key).find_map(|number| {
            let held = homes[number as usize].held.try_lock()?;
            held.key().is_none().then_some((number, held))
        });
        let further = near.or_else(|| {
            let at = (0..index.vacant.len()).rev().find_map(|at| {
                let held = self.made(index.vacant[at]).held.try_lock()?;
                Some((at, held))
            });
            at.map(|(at, held)| (index.vacant.swap_remove(at), held))
        });
        further.unwrap_or_else(|| {
            loop {
                let number = index.made;
                let at = (number as usize / HOMES + 1).ilog2() as usize;
                self.rows[at].get_or_init(|| row(HOMES << at));
                index.made += 1;
                match self.made(number).held.try_lock() {
                    Some(held) => return (number, held),
                    None => index.vacant.push(number),
                }
            }
        })
    }

    /// Changes the budget, and lets go of what no longer fits.
    pub(super) fn set_budget(&self, bytes: u64) -> Vec<V> {
        let mut index = lock(&self.index);
        index.budget_bytes = bytes;
        self.shrink(&mut index, None)
    }

    /// Lets go of the keys of which `which` says so. Says how many they were, and
    /// gives the values that are not out.
    pub(super) fn let_go(&self, which: impl Fn(&K) -> bool) -> (usize, Vec<V>) {
        let mut index = lock(&self.index);
        // All are asked before the first goes: the question is the user's.
        let keys = index.by_key.keys().filter(|key| which(key));
        let keys: Vec<K> = keys.cloned().collect();
        let gone = keys.iter().filter_map(|key| index.by_key.remove(key));
        let gone: Vec<Kept> = gone.collect();
        let values = gone
            .iter()
            .filter_map(|kept| self.vacate(&mut index, *kept));
        let values = values.collect();
        (gone.len(), values)
    }

    /// The values of keys that were let go while they were out, and have been given
    /// back.
    pub(super) fn gone(&self) -> Vec<V> {
        std::mem::take(&mut lock(&self.index).gone)
    }

    /// Lets go of the least recently used until the rest fits; of the one at `but` never,
    /// which fits alone.
    fn shrink(&self, index: &mut Index<K, V>, but: Option<u32>) -> Vec<V> {
        let mut gone = Vec::new();
        while index.bytes > index.budget_bytes {
            let used = |kept: &Kept| self.made(kept.place).used.load(Ordering::Relaxed);
            let others = index.by_key.iter().filter(|(_, it)| Some(it.place) != but);
            let oldest = others.min_by_key(|(_, kept)| used(kept));
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            // A key that is no longer what it was is not found.
            let Some(kept) = index.by_key.remove(&oldest) else {
                break;
            };
            gone.extend(self.vacate(index, kept));
        }
        gone
    }

    /// Empties the place of a key that the index no longer has; or has that done, by
    /// who has its value out.
    fn vacate(&self, index: &mut Index<K, V>, kept: Kept) -> Option<V> {
        index.bytes -= kept.bytes;
        let place = self.made(kept.place);
        loop {
            if let Some(mut held) = place.held.try_lock() {
                return index.empty(kept.place, &mut held);
            }
            if place.held.mark_contended() {
                index.leaving.push(kept.place);
                // Who waits for it waits for nothing any more.
                self.returned.notify_all();
                return None;
            }
        }
    }

    #[inline]
    fn note_use(&self, place: &Place<K, V>) {
        let now = self.clock.load(Ordering::Relaxed) + 1;
        self.clock.store(now, Ordering::Relaxed);
        place.used.store(now, Ordering::Relaxed);
    }
}

impl<K, V> Default for Place<K, V> {
    fn default() -> Self {
        Self {
            held: ContendedLock::new(Held::Nothing),
            used: AtomicU64::new(0),
            uses: AtomicU64::new(0),
        }
    }
}

impl<K, V> Index<K, V> {
    /// Whether the key of a place was let go while its value was out; asked once.
    fn has_left(&mut self, number: u32) -> bool {
        let at = self.leaving.iter().position(|leaving| *leaving == number);
        at.map(|at| self.leaving.swap_remove(at)).is_some()
    }

    fn empty(&mut self, number: u32, held: &mut Held<K, V>) -> Option<V> {
        if number >= HOMES as u32 {
            self.vacant.push(number);
        }
        held.take()
    }
}

impl<'s, K: Eq + Hash + Clone, V> Out<'s, K, V> {
    #[inline]
    fn held(&self) -> &Held<K, V> {
        match &self.held {
            Some(held) => held,
            None => unreachable!("only its end takes it"),
        }
    }

    #[inline]
    pub(super) fn value(&mut self) -> &mut V {
        match self.held.as_deref_mut() {
            Some(Held::Kept(_, value)) => value,
            Some(Held::Nothing) | None => {
                unreachable!("a key that is there has a value, and only an end takes it")
            }
        }
    }

    /// Where it is.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// It is the most recently used now, and counts as used once more.
    #[inline]
    pub(super) fn note_use(&mut self) {
        self.shelf.note_use(self.place);
        let uses = self.place.uses.load(Ordering::Relaxed) + 1;
        self.place.uses.store(uses, Ordering::Relaxed);
    }

    /// Gives it back; says whether there may be something in [`Shelf::gone`].
    #[inline]
    pub(super) fn give_back(mut self) -> bool {
        self.let_go()
    }

    #[inline]
    fn let_go(&mut self) -> bool {
        match self.held.take().map(ContendedGuard::release) {
            Some(Err(held)) => {
                self.shelf.settle(self.number, held);
                true
            }
            Some(Ok(())) | None => false,
        }
    }

    /// Gives it back as one that has `bytes` now, which fit the budget, and was used
    /// just now, and lets go of what no longer fits.
    ///
    /// # Errors
    /// The value, if its key has been let go.
    pub(super) fn keep_as(mut self, bytes: u64) -> Result<Vec<V>, V> {
        let mut index = lock(&self.shelf.index);
        let kept = self.held().key().and_then(|key| index.by_key.get_mut(key));
        let Some(kept) = kept.filter(|kept| kept.place == self.number) else {
            drop(index);
            return Err(self.end());
        };
        let before = std::mem::replace(&mut kept.bytes, bytes);
        index.bytes = index.bytes - before + bytes;
        self.shelf.note_use(self.place);
        let gone = self.shelf.shrink(&mut index, Some(self.number));
        drop(index);
        self.let_go();
        Ok(gone)
    }

    /// Ends its being kept, if it still is.
    pub(super) fn end(mut self) -> V {
        let Some(mut held) = self.held.take() else {
            unreachable!("only its end takes it")
        };
        let mut index = lock(&self.shelf.index);
        if !index.has_left(self.number) {
            let kept = held.key().and_then(|key| index.by_key.remove(key));
            index.bytes -= kept.map_or(0, |kept| kept.bytes);
        }
        let value = index.empty(self.number, &mut held);
        drop(held);
        drop(index);
        self.shelf.returned.notify_all();
        match value {
            Some(value) => value,
            None => unreachable!("it was out with its value"),
        }
    }
}

impl<K: Eq + Hash + Clone, V> Drop for Out<'_, K, V> {
    #[inline]
    fn drop(&mut self) {
        self.let_go();
    }
}

fn wait<'l, T>(condvar: &Condvar, held: MutexGuard<'l, T>) -> MutexGuard<'l, T> {
    condvar.wait(held).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    /// Keys of two homes, so that most lie elsewhere.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Name(u8);

    impl Hash for Name {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            (self.0 % 2).hash(state);
        }
    }

    /// All keys with their bytes and values, the most recently used last; a value that
    /// is out is None.
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
        let shelf = Shelf::<Name, u32>::new(most);
        let mut model = Model {
            budget_bytes: most,
            ..Model::default()
        };
        // Values that are out, and whether they are still wanted.
        let mut out: Vec<(Out<'_, Name, u32>, u8, u32, bool)> = Vec::new();
        // What was let go while it was out, and given back.
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
                    let near = shelf
                        .take_at_home(&Name(key))
                        .or_else(|| shelf.take_near(&Name(key)));
                    assert!(near.is_none() || (at.is_some() && !is_out));
                    // Who takes what is out waits.
                    let taken = near.or_else(|| match is_out {
                        true => None,
                        false => shelf.take(&Name(key)),
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
                            taken.give_back();
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
                6 | 7 if !shelf.contains(&Name(key)) => {
                    model.keys.push((key, bytes, Some(step)));
                    let (number, gone) = shelf.insert(Name(key), step, bytes);
                    assert_eq!(sorted(gone), sorted(model.shrink()));
                    if random.bool() {
                        let mut taken = shelf.take_at(number).expect("it is in");
                        assert_eq!(*taken.value(), step);
                        assert!(shelf.take_at(number).is_none());
                        taken.give_back();
                    }
                }
                8 => {
                    let (low, high) = (random.u8(..12), random.u8(..12));
                    let which = |key: &u8| (low..high).contains(key);
                    let (count, values) = shelf.let_go(|name| which(&name.0));
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
                    let gone = shelf.set_budget(model.budget_bytes);
                    assert_eq!(sorted(gone), sorted(model.shrink()));
                }
                _ => {}
            }
            // A key that is not there after a step has been let go.
            for (_, key, _, wanted) in &mut out {
                *wanted &= model.find(*key).is_some();
            }
            gone.extend(shelf.gone());
            assert_eq!(sorted(gone.clone()), sorted(expected.clone()));
            assert_eq!((shelf.len(), shelf.uses()), (model.keys.len(), uses));
            assert_eq!(shelf.bytes(), model.bytes());
            assert!(shelf.bytes() <= shelf.budget_bytes());
        }
    }

    #[test]
    fn a_shelf_keeps_what_the_plainest_one_would() {
        for _ in 0..300 {
            let seed = fastrand::u64(..);
            let result = std::panic::catch_unwind(|| run(seed));
            assert!(result.is_ok(), "seed {seed}");
        }
    }

    /// A value that is used by one at a time, and counted where it ends.
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

    /// Threads use, keep, end and let go of a few keys. Nobody has what another has,
    /// nobody waits for ever, and each value ends once.
    #[test]
    fn threads_that_take_let_go_and_wait_lose_nothing() {
        let shelf = Shelf::new(10);
        let ended = Arc::new(AtomicU32::new(0));
        let (made, seed) = (AtomicU32::new(0), fastrand::u64(..));
        // As a cache does, whoever adds a key has this.
        let adding = Mutex::new(());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (shelf, ended, made, adding) = (&shelf, &ended, &made, &adding);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed ^ thread);
                    for _ in 0..20_000 {
                        let key = random.u8(..6);
                        match random.u8(..20) {
                            0 => drop(shelf.let_go(|other: &Name| other.0 == key)),
                            1 => drop(shelf.set_budget(random.u64(2..12))),
                            2 => drop(shelf.gone()),
                            3 => {
                                let _adding = lock(adding);
                                if shelf.contains(&Name(key)) {
                                    continue;
                                }
                                made.fetch_add(1, Ordering::Relaxed);
                                let value = Counted {
                                    key,
                                    is_used: AtomicBool::new(false),
                                    ended: ended.clone(),
                                };
                                drop(shelf.insert(Name(key), value, 1));
                            }
                            way => {
                                let out = shelf
                                    .take_at_home(&Name(key))
                                    .or_else(|| shelf.take_near(&Name(key)));
                                let Some(mut out) = out.or_else(|| shelf.take(&Name(key))) else {
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
                                    _ => drop(out.give_back()),
                                }
                            }
                        }
                    }
                });
            }
        });
        drop(shelf);
        assert_eq!(
            ended.load(Ordering::Relaxed),
            made.into_inner(),
            "seed {seed}"
        );
    }
}
