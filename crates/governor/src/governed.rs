//! What the driver gives by itself, and who answers for it.
//!
//! Some memory cannot be carved out of a pool: arrays, managed memory, what a
//! program makes and maps by itself. It is passed through, charged when it is
//! made and given back when the driver has it again.
//!
//! Invariant: what is charged to the budget is refunded exactly once, with the
//! figure that was charged.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use fercuda_ledger::{Governed, Tenant};
use rustc_hash::FxHashMap;

use crate::clock::{ContextId, lock};

/// What stands for a piece of governed memory to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A device address.
    Address(u64),
    /// A host address.
    Host(u64),
    /// An array or mipmapped array, by its handle.
    Array(usize),
    /// External memory, by its handle.
    External(usize),
    /// A module or library, by its handle.
    Code(usize),
}

/// One piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// On which device.
    pub device: u32,
    /// Whom it is charged to.
    pub tenant: Tenant,
    /// What it is.
    pub kind: Governed,
    /// How much.
    pub bytes: u64,
    /// The context that it ends with, if it does.
    pub context: Option<ContextId>,
}

impl Piece {
    /// Whether it is physical memory of the device that this process takes.
    pub fn is_on_device(&self) -> bool {
        // What code takes is known from the driver's figures only.
        self.kind.is_on_device() && self.kind != Governed::Module
    }
}

/// Physical memory that the program makes and maps by itself. It lives as long
/// as it has a handle or is mapped somewhere.
#[derive(Clone, Copy, Debug)]
struct Physical {
    piece: Piece,
    handles: usize,
    mappings: usize,
}

/// What a call of the driver is about to take, should it refuse.
#[derive(Debug, Default)]
pub struct Taken {
    handle: Option<u64>,
    /// From where on, how long, and of which handle.
    mappings: Vec<(u64, u64, u64)>,
    ended: Vec<(u64, Piece)>,
}

impl Taken {
    /// The pieces whose end it is.
    pub fn ended(&self) -> impl Iterator<Item = &Piece> {
        self.ended.iter().map(|(_, piece)| piece)
    }
}

#[derive(Debug, Default)]
struct Tables {
    pieces: FxHashMap<Key, Piece>,
    physical: FxHashMap<u64, Physical>,
    /// Mappings: how long from where on, and of which handle.
    mapped: BTreeMap<u64, (u64, u64)>,
}

/// All governed memory of a process.
#[derive(Debug, Default)]
pub struct GovernedMemory {
    tables: Mutex<Tables>,
}

impl GovernedMemory {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Notes a piece. What stood under the key before is returned: the driver
    /// has given the key anew, so that one is gone.
    pub fn insert(&self, key: Key, piece: Piece) -> Option<Piece> {
        self.tables().pieces.insert(key, piece)
    }

    /// The driver has it back.
    pub fn remove(&self, key: Key) -> Option<Piece> {
        self.tables().pieces.remove(&key)
    }

    /// Takes out what has ended with its context.
    pub fn gone_with(&self, contexts: &[ContextId]) -> Vec<Piece> {
        let is_gone = |piece: &Piece| piece.context.is_some_and(|it| contexts.contains(&it));
        let mut tables = self.tables();
        let gone = tables.pieces.extract_if(|_, piece| is_gone(piece));
        gone.map(|(_, piece)| piece).collect()
    }

    /// Notes physical memory.
    pub fn created(&self, handle: u64, piece: Piece) -> Option<Piece> {
        let physical = Physical {
            piece,
            handles: 1,
            mappings: 0,
        };
        let before = self.tables().physical.insert(handle, physical);
        before.map(|physical| physical.piece)
    }

    /// The same memory got one more handle of the same name.
    pub fn retained(&self, handle: u64) {
        if let Some(physical) = self.tables().physical.get_mut(&handle) {
            physical.handles += 1;
        }
    }

    /// A handle is about to be released: once the driver has it back, it may
    /// give it again.
    pub fn released(&self, handle: u64) -> Taken {
        let mut taken = Taken::default();
        let mut tables = self.tables();
        if let Some(physical) = tables.physical.get_mut(&handle)
            && physical.handles > 0
        {
            physical.handles -= 1;
            taken.handle = Some(handle);
            taken.ended.extend(tables.end(handle));
        }
        taken
    }

    /// The driver did not take it.
    pub fn put_back(&self, taken: Taken) {
        let mut tables = self.tables();
        for (handle, piece) in taken.ended {
            let unused = Physical {
                piece,
                handles: 0,
                mappings: 0,
            };
            tables.physical.insert(handle, unused);
        }
        if let Some(handle) = taken.handle
            && let Some(physical) = tables.physical.get_mut(&handle)
        {
            physical.handles += 1;
        }
        for (address, bytes, handle) in taken.mappings {
            if let Some(physical) = tables.physical.get_mut(&handle) {
                physical.mappings += 1;
                tables.mapped.insert(address, (bytes, handle));
            }
        }
    }

    /// A handle was mapped.
    pub fn mapped(&self, address: u64, bytes: u64, handle: u64) {
        let mut tables = self.tables();
        if let Some(physical) = tables.physical.get_mut(&handle) {
            physical.mappings += 1;
            tables.mapped.insert(address, (bytes, handle));
        }
    }

    /// A range is about to be unmapped.
    pub fn unmapped(&self, address: u64, bytes: u64) -> Taken {
        let mut tables = self.tables();
        let range = address..address.saturating_add(bytes);
        let gone: Vec<u64> = tables.mapped.range(range).map(|(at, _)| *at).collect();
        let mut taken = Taken::default();
        for at in gone {
            let Some((bytes, handle)) = tables.mapped.remove(&at) else {
                continue;
            };
            taken.mappings.push((at, bytes, handle));
            if let Some(physical) = tables.physical.get_mut(&handle) {
                physical.mappings = physical.mappings.saturating_sub(1);
            }
            taken.ended.extend(tables.end(handle));
        }
        taken
    }

    /// Bytes on a device that are this process's, by what was charged.
    pub fn on_device_bytes(&self, device: u32) -> u64 {
        let tables = self.tables();
        let physical = tables.physical.values().map(|physical| &physical.piece);
        let pieces = tables.pieces.values().chain(physical);
        pieces
            .filter(|piece| piece.device == device && piece.is_on_device())
            .map(|piece| piece.bytes)
            .sum()
    }

    /// Bytes of code that was given to the driver: it may use about as much.
    pub fn code_bytes(&self) -> u64 {
        let tables = self.tables();
        let pieces = tables.pieces.values();
        pieces
            .filter(|piece| piece.kind == Governed::Module)
            .map(|piece| piece.bytes)
            .sum()
    }
}

impl Tables {
    /// Forgets physical memory that nothing refers to.
    fn end(&mut self, handle: u64) -> Option<(u64, Piece)> {
        let physical = self.physical.get(&handle)?;
        if physical.handles > 0 || physical.mappings > 0 {
            return None;
        }
        let physical = self.physical.remove(&handle)?;
        Some((handle, physical.piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Piece = Piece {
        device: 0,
        tenant: Tenant::OTHERS,
        kind: Governed::Vmm,
        bytes: 2 << 20,
        context: None,
    };

    fn ended(taken: &Taken) -> Vec<Piece> {
        taken.ended().copied().collect()
    }

    #[test]
    fn what_the_driver_refuses_to_take_is_there_as_before() {
        let governed = GovernedMemory::default();
        governed.created(7, PIECE);
        let refused = governed.released(7);
        assert_eq!(ended(&refused), [PIECE]);
        // Meanwhile the handle is free to be given anew.
        assert_eq!(governed.on_device_bytes(0), 0);
        governed.put_back(refused);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
        governed.mapped(0x1000, 2 << 20, 7);
        assert_eq!(ended(&governed.released(7)), []);
        // There is no handle left that a refused call could have taken.
        governed.put_back(governed.released(7));
        let refused = governed.unmapped(0x1000, 2 << 20);
        assert_eq!(ended(&refused), [PIECE]);
        governed.put_back(refused);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
        assert_eq!(ended(&governed.unmapped(0x1000, 2 << 20)), [PIECE]);
        assert_eq!(governed.on_device_bytes(0), 0);
    }

    #[test]
    fn what_belongs_to_a_context_ends_with_it() {
        let governed = GovernedMemory::default();
        let of = |context| Piece {
            context: Some(ContextId(context)),
            ..PIECE
        };
        governed.insert(Key::Array(1), of(1));
        governed.insert(Key::Array(2), of(2));
        governed.insert(Key::Array(3), PIECE);
        assert_eq!(governed.gone_with(&[ContextId(2), ContextId(7)]), [of(2)]);
        assert_eq!(governed.gone_with(&[ContextId(2)]), []);
        assert_eq!(governed.remove(Key::Array(1)), Some(of(1)));
        assert_eq!(governed.remove(Key::Array(2)), None);
        assert_eq!(governed.remove(Key::Array(3)), Some(PIECE));
    }

    #[test]
    fn mapped_memory_lives_on_without_its_handle() {
        let governed = GovernedMemory::default();
        assert_eq!(governed.created(7, PIECE), None);
        governed.mapped(0x1000, 2 << 20, 7);
        assert_eq!(ended(&governed.released(7)), []);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
        assert_eq!(ended(&governed.unmapped(0x1000, 2 << 20)), [PIECE]);
        assert_eq!(governed.on_device_bytes(0), 0);
    }

    #[test]
    fn a_retained_handle_has_to_be_released_twice() {
        let governed = GovernedMemory::default();
        governed.created(7, PIECE);
        governed.retained(7);
        assert_eq!(ended(&governed.released(7)), []);
        assert_eq!(ended(&governed.released(7)), [PIECE]);
        assert_eq!(ended(&governed.released(7)), []);
    }

    #[test]
    fn one_call_may_unmap_several_handles() {
        let governed = GovernedMemory::default();
        for (handle, address) in [(1, 0x0), (2, 0x1000), (3, 0x2000)] {
            governed.created(handle, PIECE);
            governed.mapped(address, 0x1000, handle);
            assert_eq!(ended(&governed.released(handle)), []);
        }
        assert_eq!(ended(&governed.unmapped(0, 0x2000)).len(), 2);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
    }
}
