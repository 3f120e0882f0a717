//! Directory entries: compact, indexed by name, in a stable order.
//!
//! An entry takes some thirty bytes and its name, with a million entries too. Each has a number
//! that no entry had before, in the order of insertion; so a program that reads the directory in
//! parts resumes after the last number it saw, whatever was added and removed meanwhile, and sees
//! each entry that was there all the time exactly once.
//!
//! Invariant: `slots` are sorted by number; the index has exactly those that are not empty.
//! Elsewhere: the inodes that entries lead to (`tree`).

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

/// The maximum length of a name, in bytes.
pub const NAME_MAX: usize = 255;

/// The inode of an empty slot.
const NOTHING: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct EntrySlot {
    number: u64,
    /// The offset of its name in `names`: a length byte, then the name.
    name: u32,
    inode: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Directory {
    slots: Vec<EntrySlot>,
    names: Vec<u8>,
    index: HashTable<u32>,
    hasher: RandomState,
    next: u64,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'d> {
    /// Its number; greater than 0.
    pub number: u64,
    /// Its name.
    pub name: &'d [u8],
    /// The inode it leads to.
    pub inode: u32,
}

/// The names have reached their limit of 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryFull;

fn name_at(names: &[u8], at: u32) -> &[u8] {
    let at = at as usize;
    &names[at + 1..][..usize::from(names[at])]
}

impl Directory {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The inode a name leads to.
    pub fn get(&self, name: &[u8]) -> Option<u32> {
        self.find(name).map(|at| self.slots[at as usize].inode)
    }

    /// Adds an entry; returns `false`, without a change, if the name exists.
    ///
    /// # Errors
    /// [`DirectoryFull`].
    ///
    /// # Panics
    /// If the name is empty or longer than [`NAME_MAX`], or the inode 0.
    pub fn insert(&mut self, name: &[u8], inode: u32) -> Result<bool, DirectoryFull> {
        assert!(
            (1..=NAME_MAX).contains(&name.len()),
            "a name of {} bytes",
            name.len()
        );
        assert!(inode != NOTHING, "the inode of an entry is not 0");
        if self.find(name).is_some() {
            return Ok(false);
        }
        if self.names.len() + 1 + name.len() > u32::MAX as usize {
            self.compact();
        }
        let at = u32::try_from(self.names.len()).map_err(|_| DirectoryFull)?;
        let slot = u32::try_from(self.slots.len()).map_err(|_| DirectoryFull)?;
        self.names.push(name.len() as u8);
        self.names.extend_from_slice(name);
        self.next += 1;
        self.slots.push(EntrySlot {
            number: self.next,
            name: at,
            inode,
        });
        let (names, slots, hasher) = (&self.names, &self.slots, &self.hasher);
        let hash = |slot: &u32| hasher.hash_one(name_at(names, slots[*slot as usize].name));
        self.index.insert_unique(hasher.hash_one(name), slot, hash);
        Ok(true)
    }

    /// Makes a name lead to another inode; returns the previous one.
    pub fn replace(&mut self, name: &[u8], inode: u32) -> Option<u32> {
        let at = self.find(name)?;
        Some(std::mem::replace(&mut self.slots[at as usize].inode, inode))
    }

    /// Removes a name; returns the inode it led to.
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

    /// The highest number given so far; new entries get higher ones.
    pub fn last(&self) -> u64 {
        self.next
    }

    /// The entries after a number, in order; 0 for all.
    pub fn after(&self, number: u64) -> impl Iterator<Item = DirectoryEntry<'_>> {
        let from = self.slots.partition_point(|slot| slot.number <= number);
        let there = self.slots[from..]
            .iter()
            .filter(|slot| slot.inode != NOTHING);
        there.map(|slot| DirectoryEntry {
            number: slot.number,
            name: name_at(&self.names, slot.name),
            inode: slot.inode,
        })
    }

    fn find(&self, name: &[u8]) -> Option<u32> {
        let is_it = |slot: &u32| name_at(&self.names, self.slots[*slot as usize].name) == name;
        self.index.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// Drops the removed entries' slots and names.
    fn compact(&mut self) {
        let mut names = Vec::with_capacity(self.names.len().min(self.len() * 32));
        let mut slots = Vec::with_capacity(self.len());
        for slot in self.slots.iter().filter(|slot| slot.inode != NOTHING) {
            let name = name_at(&self.names, slot.name);
            slots.push(EntrySlot {
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
    fn random_operations_match_a_map_and_a_reader_meets_each_lasting_entry_once() {
        let mut random = fastrand::Rng::new();
        eprintln!("seed {}", random.get_seed());
        for _ in 0..100 {
            let mut it = Directory::default();
            let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            // The entries met by a reader that started when the directory was as in `before`.
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
                        let part: Vec<_> = it.after(last).take(random.usize(..20)).collect();
                        for entry in &part {
                            assert!(entry.number > last);
                            last = entry.number;
                            *met.entry(entry.name.to_vec()).or_insert(0) += 1;
                            assert_eq!(model.get(entry.name), Some(&entry.inode));
                        }
                        if it.after(last).next().is_none() {
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
                .after(0)
                .map(|entry| (entry.name.to_vec(), entry.inode))
                .collect();
            assert_eq!(all, model);
        }
    }

    #[test]
    fn removed_entries_take_no_memory() {
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
