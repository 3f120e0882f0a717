//! The entries of a directory: compact, by name and in an order that lasts.
//!
//! A million entries take some thirty bytes each and their names. Each has a number that no
//! entry had before, in the order in which they came; so who reads the directory in parts goes
//! on behind the last number that he saw, whatever came and went meanwhile, and meets each
//! entry that was there all the time once.
//!
//! Invariant: `slots` are sorted by number; the index has exactly those that are not empty.
//! Elsewhere: what an entry leads to (`tree`).

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// What an empty slot leads to.
const NOTHING: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    /// Where its name begins in `names`: a byte of length, and the name.
    name: u32,
    inode: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Directory {
    slots: Vec<Slot>,
    names: Vec<u8>,
    index: HashTable<u32>,
    hasher: RandomState,
    next: u64,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'d> {
    /// Its number; more than 0.
    pub number: u64,
    /// Its name.
    pub name: &'d [u8],
    /// What it leads to.
    pub inode: u32,
}

/// There is no room for more names: 4 GiB of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

fn name_at(names: &[u8], at: u32) -> &[u8] {
    let at = at as usize;
    &names[at + 1..][..usize::from(names[at])]
}

impl Directory {
    /// How many entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// What a name leads to.
    pub fn get(&self, name: &[u8]) -> Option<u32> {
        self.find(name).map(|at| self.slots[at as usize].inode)
    }

    /// Adds an entry; false, and nothing is changed, if there is one of that name.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// If the name is empty or longer than [`NAME_MAX`], or the inode 0.
    pub fn insert(&mut self, name: &[u8], inode: u32) -> Result<bool, Full> {
        assert!(
            (1..=NAME_MAX).contains(&name.len()),
            "a name of {} bytes",
            name.len()
        );
        assert!(inode != NOTHING, "an entry leads to something");
        if self.find(name).is_some() {
            return Ok(false);
        }
        if self.names.len() + 1 + name.len() > u32::MAX as usize {
            self.compact();
        }
        let at = u32::try_from(self.names.len()).map_err(|_| Full)?;
        let slot = u32::try_from(self.slots.len()).map_err(|_| Full)?;
        self.names.push(name.len() as u8);
        self.names.extend_from_slice(name);
        self.next += 1;
        self.slots.push(Slot {
            number: self.next,
            name: at,
            inode,
        });
        let (names, slots, hasher) = (&self.names, &self.slots, &self.hasher);
        let hash = |slot: &u32| hasher.hash_one(name_at(names, slots[*slot as usize].name));
        self.index.insert_unique(hasher.hash_one(name), slot, hash);
        Ok(true)
    }

    /// Has a name lead elsewhere; to what it has led.
    pub fn replace(&mut self, name: &[u8], inode: u32) -> Option<u32> {
        let at = self.find(name)?;
        Some(std::mem::replace(&mut self.slots[at as usize].inode, inode))
    }

    /// Removes a name; what it has led to.
    pub fn remove(&mut self, name: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        let (names, slots) = (&self.names, &self.slots);
        let is_it = |slot: &u32| name_at(names, slots[*slot as usize].name) == name;
        let found = self.index.find_entry(hash, is_it).ok()?;
        let (at, _) = found.remove();
        let inode = std::mem::replace(&mut self.slots[at as usize].inode, NOTHING);
        if self.slots.len() >= 32 && self.index.len() < self.slots.len() / 2 {
            self.compact();
        }
        Some(inode)
    }

    /// The number of the last entry that there was; those that come get higher ones.
    pub fn last(&self) -> u64 {
        self.next
    }

    /// The entries behind a number, in order; all behind 0.
    pub fn behind(&self, number: u64) -> impl Iterator<Item = Entry<'_>> {
        let from = self.slots.partition_point(|slot| slot.number <= number);
        let there = self.slots[from..]
            .iter()
            .filter(|slot| slot.inode != NOTHING);
        there.map(|slot| Entry {
            number: slot.number,
            name: name_at(&self.names, slot.name),
            inode: slot.inode,
        })
    }

    fn find(&self, name: &[u8]) -> Option<u32> {
        let is_it = |slot: &u32| name_at(&self.names, self.slots[*slot as usize].name) == name;
        self.index.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// Leaves out what was removed.
    fn compact(&mut self) {
        let mut names = Vec::with_capacity(self.names.len().min(self.len() * 32));
        let mut slots = Vec::with_capacity(self.len());
        for slot in self.slots.iter().filter(|slot| slot.inode != NOTHING) {
            let name = name_at(&self.names, slot.name);
            slots.push(Slot {
                name: names.len() as u32,
                ..*slot
            });
            names.push(name.len() as u8);
            names.extend_from_slice(name);
        }
        names.shrink_to_fit();
        (self.names, self.slots) = (names, slots);
        self.index.clear();
        let (names, slots, hasher) = (&self.names, &self.slots, &self.hasher);
        let hash = |slot: &u32| hasher.hash_one(name_at(names, slots[*slot as usize].name));
        self.index.shrink_to(slots.len(), hash);
        for slot in 0..slots.len() as u32 {
            self.index.insert_unique(hash(&slot), slot, hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn random_programs_are_as_a_map_and_a_reader_meets_what_stays_once() {
        let mut random = fastrand::Rng::new();
        eprintln!("seed {}", random.get_seed());
        for _ in 0..100 {
            let mut it = Directory::default();
            let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            // What a reader that began when the directory was as `before` has met.
            let (mut before, mut met, mut last) = (model.clone(), BTreeMap::new(), 0);
            let many = random.u32(1..400);
            for _ in 0..2000 {
                let mut name = random.u32(..many).to_string().into_bytes();
                if random.u32(..50) == 0 {
                    name = vec![b'x'; random.usize(1..=NAME_MAX)];
                }
                let inode = random.u32(1..);
                assert_eq!(it.get(&name), model.get(&name).copied());
                match random.u32(..10) {
                    0..4 => {
                        let is_new = !model.contains_key(&name);
                        assert_eq!(it.insert(&name, inode), Ok(is_new));
                        model.entry(name).or_insert(inode);
                    }
                    4..8 => {
                        assert_eq!(it.remove(&name), model.remove(&name));
                        before.remove(&name);
                    }
                    8 => {
                        let there = model.get_mut(&name);
                        let was = there.map(|there| std::mem::replace(there, inode));
                        assert_eq!(it.replace(&name, inode), was);
                    }
                    _ => {
                        let part: Vec<_> = it.behind(last).take(random.usize(..20)).collect();
                        for entry in &part {
                            assert!(entry.number > last);
                            last = entry.number;
                            *met.entry(entry.name.to_vec()).or_insert(0) += 1;
                            assert_eq!(model.get(entry.name), Some(&entry.inode));
                        }
                        if it.behind(last).next().is_none() {
                            for name in before.keys() {
                                assert_eq!(met.get(name), Some(&1), "{name:?}");
                            }
                            (before, met, last) = (model.clone(), BTreeMap::new(), 0);
                        }
                    }
                }
                assert_eq!(it.len(), model.len());
            }
            let all: BTreeMap<Vec<u8>, u32> = it
                .behind(0)
                .map(|entry| (entry.name.to_vec(), entry.inode))
                .collect();
            assert_eq!(all, model);
        }
    }

    #[test]
    fn what_was_removed_takes_no_room() {
        let mut it = Directory::default();
        for round in 0..20_000u32 {
            let name = format!("a file with a name of some length, {round}");
            assert_eq!(it.insert(name.as_bytes(), 1 + round), Ok(true));
            if round >= 10 {
                let old = format!("a file with a name of some length, {}", round - 10);
                assert_eq!(it.remove(old.as_bytes()), Some(round - 9));
            }
        }
        assert_eq!(it.len(), 10);
        assert!(it.slots.len() <= 64 && it.names.len() < 4096);
    }
}
