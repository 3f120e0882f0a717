//! What is kept under a key, within a budget of bytes: the least recently used
//! goes first.
//!
//! Who uses a value takes it out and gives it back, so that a use holds no lock.
//! A value whose key has been let go meanwhile is not taken back: it is for who
//! has it to end it.
//!
//! Invariant: the bytes are those of the keys that are there, whether their values
//! are in or out; and they are within the budget after every call that could add
//! any. Elsewhere: locking, waiting for a value that is out (`graphs`).

use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::FxBuildHasher;

/// A value's place while it is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    place: u32,
    turn: u32,
}

/// What there is under a key.
pub(super) enum Taken<V> {
    /// It is out now.
    It(Token, V),
    /// Somebody else has it.
    Out,
    Absent,
}

#[derive(Debug)]
struct Place<K, V> {
    /// None of a place that is vacant.
    key: Option<K>,
    /// None while it is out.
    value: Option<V>,
    bytes: u64,
    /// When it was used last.
    used: u64,
    /// Moves on when a key is let go.
    turn: u32,
}

#[derive(Debug)]
pub(super) struct Shelf<K, V> {
    places: Vec<Place<K, V>>,
    vacant: Vec<u32>,
    by_key: HashMap<K, u32, FxBuildHasher>,
    clock: u64,
    bytes: u64,
    budget_bytes: u64,
}

impl<K: Eq + Hash + Clone, V> Shelf<K, V> {
    pub(super) fn new(budget_bytes: u64) -> Self {
        Self {
            places: Vec::new(),
            vacant: Vec::new(),
            by_key: HashMap::default(),
            clock: 0,
            bytes: 0,
            budget_bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// Takes a value out; it is the most recently used then.
    #[inline]
    pub(super) fn take(&mut self, key: &K) -> Taken<V> {
        let Some(&place) = self.by_key.get(key) else {
            return Taken::Absent;
        };
        let it = &mut self.places[place as usize];
        match it.value.take() {
            Some(value) => {
                self.clock += 1;
                it.used = self.clock;
                let turn = it.turn;
                Taken::It(Token { place, turn }, value)
            }
            None => Taken::Out,
        }
    }

    /// Takes a value out that was given back with `token`, without a use of it.
    /// None if it is out, or was let go.
    pub(super) fn take_again(&mut self, token: Token) -> Option<V> {
        self.at(token)?.value.take()
    }

    /// Gives a value back.
    ///
    /// # Errors
    /// The value, if its key has been let go.
    #[inline]
    pub(super) fn give_back(&mut self, token: Token, value: V) -> Result<(), V> {
        match self.at(token) {
            Some(place) => {
                place.value = Some(value);
                Ok(())
            }
            None => Err(value),
        }
    }

    /// Gives a value back that has `bytes` now, which fit the budget, and lets go
    /// of what no longer does.
    ///
    /// # Errors
    /// The value, if its key has been let go.
    pub(super) fn give_back_as(&mut self, token: Token, value: V, bytes: u64) -> Result<Vec<V>, V> {
        let Some(place) = self.at(token) else {
            return Err(value);
        };
        let before = std::mem::replace(&mut place.bytes, bytes);
        place.value = Some(value);
        self.bytes = self.bytes - before + bytes;
        Ok(self.shrink())
    }

    /// Lets go of the key of a value that is out and does not come back.
    pub(super) fn abandon(&mut self, token: Token) {
        if self.at(token).is_some() {
            drop(self.vacate(token.place));
        }
    }

    /// Whether the key of a value that is out has been let go.
    pub(super) fn is_let_go(&mut self, token: Token) -> bool {
        self.at(token).is_none()
    }

    #[inline]
    fn at(&mut self, token: Token) -> Option<&mut Place<K, V>> {
        let place = &mut self.places[token.place as usize];
        (place.turn == token.turn).then_some(place)
    }

    /// Puts a value of `bytes`, which fit the budget, under a key that is not
    /// there, and lets go of what no longer fits. The values of those let go come
    /// back, unless they are out.
    pub(super) fn insert(&mut self, key: K, value: V, bytes: u64) -> (Token, Vec<V>) {
        debug_assert!(!self.contains(&key) && bytes <= self.budget_bytes);
        self.clock += 1;
        let used = self.clock;
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place {
                key: None,
                value: None,
                bytes: 0,
                used: 0,
                turn: 0,
            });
            (self.places.len() - 1) as u32
        });
        let it = &mut self.places[place as usize];
        (it.key, it.value, it.bytes, it.used) = (Some(key.clone()), Some(value), bytes, used);
        let turn = it.turn;
        self.by_key.insert(key, place);
        self.bytes += bytes;
        (Token { place, turn }, self.shrink())
    }

    /// Changes the budget, and lets go of what no longer fits.
    pub(super) fn set_budget(&mut self, bytes: u64) -> Vec<V> {
        self.budget_bytes = bytes;
        self.shrink()
    }

    /// Lets go of the keys of which `which` says so. Says how many they were, and
    /// gives the values that are not out.
    pub(super) fn let_go(&mut self, which: impl Fn(&K) -> bool) -> (usize, Vec<V>) {
        let is_one = |place: &u32| {
            let key = &self.places[*place as usize].key;
            key.as_ref().is_some_and(&which)
        };
        let places: Vec<u32> = (0..self.places.len() as u32).filter(is_one).collect();
        let values = places.iter().filter_map(|place| self.vacate(*place));
        let values = values.collect();
        (places.len(), values)
    }

    /// Lets go of the least recently used until the rest fits.
    fn shrink(&mut self) -> Vec<V> {
        let mut gone = Vec::new();
        while self.bytes > self.budget_bytes {
            let places = (0_u32..).zip(&self.places);
            let taken = places.filter(|(_, place)| place.key.is_some());
            let Some((oldest, _)) = taken.min_by_key(|(_, place)| place.used) else {
                break;
            };
            gone.extend(self.vacate(oldest));
        }
        gone
    }

    fn vacate(&mut self, place: u32) -> Option<V> {
        let it = &mut self.places[place as usize];
        it.turn = it.turn.wrapping_add(1);
        self.bytes -= std::mem::take(&mut it.bytes);
        self.vacant.push(place);
        if let Some(key) = it.key.take() {
            self.by_key.remove(&key);
        }
        it.value.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut shelf = Shelf::<u8, u32>::new(most);
        let mut model = Model {
            budget_bytes: most,
            ..Model::default()
        };
        // Values that are out, and whether they are still wanted.
        let mut out: Vec<(Token, u8, u32, bool)> = Vec::new();
        // A key that is not there after a step has been let go.
        let forget = |out: &mut Vec<(Token, u8, u32, bool)>, model: &Model| {
            for (_, key, _, wanted) in out {
                *wanted &= model.find(*key).is_some();
            }
        };
        for step in 0..300_u32 {
            let key = random.u8(..12);
            let bytes = random.u64(0..=model.budget_bytes);
            let sorted = |mut values: Vec<u32>| {
                values.sort_unstable();
                values
            };
            match random.u8(..10) {
                0..3 => match shelf.take(&key) {
                    Taken::It(token, value) => {
                        let at = model.use_it(key).expect("it is there");
                        assert_eq!(model.keys[at].2.take(), Some(value));
                        out.push((token, key, value, true));
                    }
                    Taken::Out => {
                        let at = model.find(key).expect("it is there");
                        assert_eq!(model.keys[at].2, None);
                    }
                    Taken::Absent => assert_eq!(model.find(key), None),
                },
                3..6 if !out.is_empty() => {
                    let (token, key, value, wanted) = out.swap_remove(random.usize(..out.len()));
                    assert_eq!(shelf.is_let_go(token), !wanted);
                    let at = model.find(key);
                    if random.bool() {
                        assert_eq!(shelf.give_back(token, value).is_ok(), wanted);
                        if let (Some(at), true) = (at, wanted) {
                            model.keys[at].2 = Some(value);
                        }
                    } else {
                        let gone = shelf.give_back_as(token, value, bytes);
                        assert_eq!(gone.is_ok(), wanted);
                        if let (Some(at), Ok(gone)) = (at, gone) {
                            (model.keys[at].1, model.keys[at].2) = (bytes, Some(value));
                            assert_eq!(sorted(gone), sorted(model.shrink()));
                        }
                    }
                }
                6 | 7 if !shelf.contains(&key) => {
                    model.keys.push((key, bytes, Some(step)));
                    let (token, gone) = shelf.insert(key, step, bytes);
                    assert_eq!(sorted(gone), sorted(model.shrink()));
                    if random.bool() {
                        assert_eq!(shelf.take_again(token), Some(step));
                        assert_eq!(shelf.take_again(token), None);
                        shelf.give_back(token, step).expect("it was not let go");
                    }
                }
                8 => {
                    let (low, high) = (random.u8(..12), random.u8(..12));
                    let which = |key: &u8| (low..high).contains(key);
                    let (count, values) = shelf.let_go(which);
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
            forget(&mut out, &model);
            assert_eq!(shelf.len(), model.keys.len());
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
}
