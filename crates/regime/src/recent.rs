//! What a thread found out of its callers last, by their return addresses.
//!
//! In sets of a few: where code is loaded differs from run to run, and some that
//! are always needed together may come to lie in one set.

use std::cell::Cell;
use std::fmt;

const IN_A_SET: usize = 4;

/// So many sets, in each the newest first.
pub struct Recent<V, const SETS: usize>([Set<V>; SETS]);

impl<V, const SETS: usize> fmt::Debug for Recent<V, SETS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent").finish_non_exhaustive()
    }
}

type Set<V> = [Cell<Option<(usize, V)>>; IN_A_SET];

impl<V: Copy, const SETS: usize> Default for Recent<V, SETS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Copy, const SETS: usize> Recent<V, SETS> {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self([const { [const { Cell::new(None) }; IN_A_SET] }; SETS])
    }

    #[inline]
    /// What was found out of the caller with this return address.
    pub fn get(&self, address: usize) -> Option<V> {
        let mut known = self.set(address).iter().filter_map(Cell::get);
        known.find_map(|(of, value)| (of == address).then_some(value))
    }

    /// In the place of what was known of that address, or else of the oldest.
    pub fn put(&self, address: usize, value: V) {
        let set = self.set(address);
        let is_same =
            |known: &Cell<Option<(usize, V)>>| known.get().is_some_and(|(of, _)| of == address);
        let same = set.iter().position(is_same);
        for older in (1..=same.unwrap_or(IN_A_SET - 1)).rev() {
            set[older].set(set[older - 1].get());
        }
        set[0].set(Some((address, value)));
    }

    #[inline]
    fn set(&self, address: usize) -> &Set<V> {
        &self.0[Self::place(address)]
    }

    #[inline]
    fn place(address: usize) -> usize {
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) % SETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller and who calls it share a set in some runs, by where they were
    /// loaded: neither may make the other unknown.
    #[test]
    fn callers_of_one_set_are_known_beside_each_other() {
        const { assert!(IN_A_SET >= 2, "a call through a library needs two") };
        let known = Recent::<usize, 16>::new();
        let place = Recent::<usize, 16>::place;
        let of_a_set = |&address: &usize| place(address) == place(0x4000);
        let mut same = (0x4000..).step_by(16).filter(of_a_set);
        let all: Vec<usize> = same.by_ref().take(IN_A_SET).collect();
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
        // Another takes the place of the one that came first.
        let another = same.next().unwrap();
        known.put(another, another + 1);
        assert!(are_known(&all[1..]) && are_known(&[another]));
        assert_eq!(known.get(all[0]), None);
    }
}
