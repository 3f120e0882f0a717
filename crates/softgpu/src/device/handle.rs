//! Handles that cannot be forged or outlive their object unnoticed.
//!
//! A handle is a number: kind, generation, slot. It is looked up, never dereferenced, so a stale,
//! foreign or invented one is an error. Its low four bits are zero and it is never null, 1 or 2,
//! which clients take for pointers and for the default streams.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 20;
const LOW_BITS: u32 = 4;

/// What a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    Context = 0x41,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Kernel,
    Graph,
    GraphExec,
    Pool,
    Allocation,
    Link,
    UserObject,
    Node,
    Array,
    MipmappedArray,
    Texture,
    Surface,
    TextureReference,
    SurfaceReference,
}

pub(crate) struct ObjectTable<T> {
    kind: HandleKind,
    slots: RwLock<HandleSlots<T>>,
}

struct HandleSlots<T> {
    entries: Vec<(u32, Option<Arc<T>>)>,
    free: VecDeque<u32>,
}

impl<T> ObjectTable<T> {
    pub(crate) const fn new(kind: HandleKind) -> Self {
        ObjectTable {
            kind,
            slots: RwLock::new(HandleSlots {
                entries: Vec::new(),
                free: VecDeque::new(),
            }),
        }
    }

    /// Stores what `make` makes of its own handle. Slots come back oldest first, so a stale handle
    /// stays stale for long.
    pub(crate) fn insert_with(&self, make: impl FnOnce(usize) -> Arc<T>) -> (usize, Arc<T>) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.free.pop_front() {
            Some(index) => index,
            None => {
                slots.entries.push((0, None));
                (slots.entries.len() - 1) as u32
            }
        };
        let entry = &mut slots.entries[index as usize];
        entry.0 = (entry.0 + 1) & ((1 << GENERATION_BITS) - 1);
        let handle = ((self.kind as usize) << (INDEX_BITS + GENERATION_BITS + LOW_BITS))
            | ((entry.0 as usize) << (INDEX_BITS + LOW_BITS))
            | ((index as usize) << LOW_BITS);
        let made = make(handle);
        slots.entries[index as usize].1 = Some(made.clone());
        (handle, made)
    }

    fn index(&self, handle: usize) -> Option<(usize, u32)> {
        let kind = handle >> (INDEX_BITS + GENERATION_BITS + LOW_BITS);
        (kind == self.kind as usize && handle & ((1 << LOW_BITS) - 1) == 0).then(|| {
            let index = (handle >> LOW_BITS) & ((1 << INDEX_BITS) - 1);
            let generation = (handle >> (INDEX_BITS + LOW_BITS)) & ((1 << GENERATION_BITS) - 1);
            (index, generation as u32)
        })
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(handle)?;
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots
            .entries
            .get(index)
            .filter(|e| e.0 == generation)?
            .1
            .clone()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(handle)?;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let old = slots
            .entries
            .get_mut(index)
            .filter(|e| e.0 == generation)?
            .1
            .take()?;
        slots.free.push_back(index as u32);
        Some(old)
    }

    /// Puts another object behind a live handle.
    pub(crate) fn replace(&self, handle: usize, new: Arc<T>) {
        if let Some((index, generation)) = self.index(handle) {
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(entry) = slots.entries.get_mut(index).filter(|e| e.0 == generation) {
                entry.1 = Some(new);
            }
        }
    }

    /// Everything there is now.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.entries.iter().filter_map(|e| e.1.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nothing_even_when_its_slot_is_used_again() {
        let table: ObjectTable<u32> = ObjectTable::new(HandleKind::Event);
        let (a, _) = table.insert_with(|_| Arc::new(1));
        assert!(table.remove(a).is_some());
        let (b, _) = table.insert_with(|_| Arc::new(2));
        assert_ne!(a, b);
        assert!(table.get(a).is_none() && table.remove(a).is_none());
        assert_eq!(table.get(b).as_deref(), Some(&2));
    }

    #[test]
    fn a_number_that_is_no_handle_of_this_kind_finds_nothing() {
        let table: ObjectTable<u32> = ObjectTable::new(HandleKind::Event);
        let (a, _) = table.insert_with(|_| Arc::new(1));
        let other: ObjectTable<u32> = ObjectTable::new(HandleKind::Stream);
        for wrong in [0, 1, 2, 8, a + 1, a + 16, usize::MAX, 1 << 52] {
            assert!(table.get(wrong).is_none());
        }
        assert!(other.get(a).is_none());
    }
}
