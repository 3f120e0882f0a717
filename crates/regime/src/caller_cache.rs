//! Set-associative cache of what a thread knows of its callers, keyed by return address.
//!
//! Associative because load addresses differ from run to run, so callers that are
//! always needed together may fall into one set.

use std::cell::Cell;
use std::fmt;

/// Entries per set.
const WAYS: usize = 4;

/// A cache with `SETS` sets; in each the newest entry comes first, and a new entry
/// evicts the oldest.
pub struct CallerCache<V, const SETS: usize>([CacheSet<V>; SETS]);

impl<V, const SETS: usize> fmt::Debug for CallerCache<V, SETS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerCache").finish_non_exhaustive()
    }
}

type CacheSet<V> = [Cell<Option<(usize, V)>>; WAYS];

impl<V: Copy, const SETS: usize> Default for CallerCache<V, SETS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Copy, const SETS: usize> CallerCache<V, SETS> {
    /// An empty cache.
    pub const fn new() -> Self {
        Self([const { [const { Cell::new(None) }; WAYS] }; SETS])
    }

    /// The value of the caller with this return address, if it is cached.
    #[inline]
    pub fn get(&self, address: usize) -> Option<V> {
        let mut known = self.set(address).iter().filter_map(Cell::get);
        known.find_map(|(of, value)| (of == address).then_some(value))
    }

    /// Inserts a value as the newest of its set. It replaces the entry of the same
    /// address, or else the oldest entry.
    pub fn put(&self, address: usize, value: V) {
        let set = self.set(address);
        let is_same =
            |known: &Cell<Option<(usize, V)>>| known.get().is_some_and(|(of, _)| of == address);
        let same = set.iter().position(is_same);
        for older in (1..=same.unwrap_or(WAYS - 1)).rev() {
            set[older].set(set[older - 1].get());
        }
        set[0].set(Some((address, value)));
    }

    /// Drops all values.
    pub fn clear(&self) {
        self.0.iter().flatten().for_each(|known| known.set(None));
    }

    #[inline]
    fn set(&self, address: usize) -> &CacheSet<V> {
        &self.0[Self::set_index(address)]
    }

    #[inline]
    fn set_index(address: usize) -> usize {
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) % SETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller and its own caller share a set in some runs, depending on their load
    /// addresses: neither may evict the other.
    #[test]
    fn callers_of_one_set_are_cached_beside_each_other() {
        const { assert!(WAYS >= 2, "a call through a library needs two") };
        let known = CallerCache::<usize, 16>::new();
        let set_index = CallerCache::<usize, 16>::set_index;
        let of_a_set = |&address: &usize| set_index(address) == set_index(0x4000);
        let mut same = (0x4000..).step_by(16).filter(of_a_set);
        let all: Vec<usize> = same.by_ref().take(WAYS).collect();
        let are_known = |all: &[usize]| {
            let mut all = all.iter();
            all.all(|address| known.get(*address) == Some(address + 1))
        };
        for address in &all {
            assert_eq!(known.get(*address), None);
            known.put(*address, 0);
            known.put(*address, address + 1);
        }
        assert!(are_known(&all));
        // Another evicts the one that came first.
        let another = same.next().unwrap();
        known.put(another, another + 1);
        assert!(are_known(&all[1..]) && are_known(&[another]));
        assert_eq!(known.get(all[0]), None);
        known.clear();
        assert!(all.iter().all(|address| known.get(*address).is_none()));
        assert_eq!(known.get(another), None);
    }
}
