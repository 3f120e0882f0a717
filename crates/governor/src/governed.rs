//! Registry of memory that the driver allocates itself, and its charges.
//!
//! Some memory cannot be suballocated from a pool: arrays, managed memory, memory that a program
//! creates and maps itself. It is passed through to the driver, charged when it is made and
//! refunded when it is released.
//!
//! Invariant: a charge to the budget is refunded exactly once, with the amount that was charged.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use fercuda_ledger::{Governed, Tenant};
use rustc_hash::FxHashMap;

use crate::clock::{ContextId, lock};

/// The driver's key of a piece of governed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GovernedKey {
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

/// One piece of governed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GovernedPiece {
    /// The device.
    pub device: u32,
    /// The tenant it is charged to.
    pub tenant: Tenant,
    /// Its kind.
    pub kind: Governed,
    /// Its size.
    pub bytes: u64,
    /// The context that it ends with, if any.
    pub context: Option<ContextId>,
}

impl GovernedPiece {
    /// Whether it is physical memory of the device that this process takes.
    pub fn is_on_device(&self) -> bool {
        // The size of loaded code is known from the driver's figures only.
        self.kind.is_on_device() && self.kind != Governed::Module
    }
}

/// Physical memory that the program creates and maps itself. It lives as long as it has a handle or
/// a mapping.
#[derive(Clone, Copy, Debug)]
struct ProgramMemory {
    piece: GovernedPiece,
    handles: usize,
    mappings: usize,
}

/// The pieces and mappings that a driver call is about to release, kept in case it fails.
#[derive(Debug, Default)]
pub struct PendingRelease {
    handle: Option<u64>,
    /// Start, length and handle of each mapping.
    mappings: Vec<(u64, u64, u64)>,
    ended: Vec<(u64, GovernedPiece)>,
}

impl PendingRelease {
    /// The pieces that end with the call.
    pub fn ended(&self) -> impl Iterator<Item = &GovernedPiece> {
        self.ended.iter().map(|(_, piece)| piece)
    }
}

#[derive(Debug, Default)]
struct GovernedTables {
    pieces: FxHashMap<GovernedKey, GovernedPiece>,
    physical: FxHashMap<u64, ProgramMemory>,
    /// Mappings by start: their length and handle.
    mapped: BTreeMap<u64, (u64, u64)>,
}

/// All governed memory of a process.
#[derive(Debug, Default)]
pub struct GovernedMemory {
    tables: Mutex<GovernedTables>,
}

impl GovernedMemory {
    fn tables(&self) -> MutexGuard<'_, GovernedTables> {
        lock(&self.tables)
    }

    /// Records a piece. Returns the piece previously recorded under the key: the driver has reused
    /// the key, so that piece is gone.
    pub fn insert(&self, key: GovernedKey, piece: GovernedPiece) -> Option<GovernedPiece> {
        self.tables().pieces.insert(key, piece)
    }

    /// Removes a piece that the driver has released.
    pub fn remove(&self, key: GovernedKey) -> Option<GovernedPiece> {
        self.tables().pieces.remove(&key)
    }

    /// Removes the pieces that ended with their contexts.
    pub fn remove_contexts(&self, contexts: &[ContextId]) -> Vec<GovernedPiece> {
        let is_gone =
            |piece: &GovernedPiece| piece.context.is_some_and(|it| contexts.contains(&it));
        let mut tables = self.tables();
        let gone = tables.pieces.extract_if(|_, piece| is_gone(piece));
        gone.map(|(_, piece)| piece).collect()
    }

    /// Records physical memory.
    pub fn created(&self, handle: u64, piece: GovernedPiece) -> Option<GovernedPiece> {
        let physical = ProgramMemory {
            piece,
            handles: 1,
            mappings: 0,
        };
        let before = self.tables().physical.insert(handle, physical);
        before.map(|physical| physical.piece)
    }

    /// Counts one more reference to the same handle.
    pub fn retained(&self, handle: u64) {
        if let Some(physical) = self.tables().physical.get_mut(&handle) {
            physical.handles += 1;
        }
    }

    /// Removes a reference of a handle that is about to be released: once the driver has released
    /// it, it may reuse the handle.
    pub fn released(&self, handle: u64) -> PendingRelease {
        let mut taken = PendingRelease::default();
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

    /// Restores what the driver did not release.
    pub fn put_back(&self, taken: PendingRelease) {
        let mut tables = self.tables();
        for (handle, piece) in taken.ended {
            let unused = ProgramMemory {
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

    /// Records a mapping of a handle.
    pub fn mapped(&self, address: u64, bytes: u64, handle: u64) {
        let mut tables = self.tables();
        if let Some(physical) = tables.physical.get_mut(&handle) {
            physical.mappings += 1;
            tables.mapped.insert(address, (bytes, handle));
        }
    }

    /// Removes the mappings of a range that is about to be unmapped.
    pub fn unmapped(&self, address: u64, bytes: u64) -> PendingRelease {
        let mut tables = self.tables();
        let range = address..address.saturating_add(bytes);
        let gone: Vec<u64> = tables.mapped.range(range).map(|(at, _)| *at).collect();
        let mut taken = PendingRelease::default();
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

    /// Bytes on a device that this process takes, according to the charges.
    pub fn on_device_bytes(&self, device: u32) -> u64 {
        let tables = self.tables();
        let physical = tables.physical.values().map(|physical| &physical.piece);
        let pieces = tables.pieces.values().chain(physical);
        pieces
            .filter(|piece| piece.device == device && piece.is_on_device())
            .map(|piece| piece.bytes)
            .sum()
    }

    /// Bytes of code given to the driver, which may use about as much memory for it.
    pub fn code_bytes(&self) -> u64 {
        let tables = self.tables();
        let pieces = tables.pieces.values();
        pieces
            .filter(|piece| piece.kind == Governed::Module)
            .map(|piece| piece.bytes)
            .sum()
    }
}

impl GovernedTables {
    /// Removes physical memory without handles and mappings.
    fn end(&mut self, handle: u64) -> Option<(u64, GovernedPiece)> {
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

    const PIECE: GovernedPiece = GovernedPiece {
        device: 0,
        tenant: Tenant::OTHERS,
        kind: Governed::Vmm,
        bytes: 2 << 20,
        context: None,
    };

    fn ended(taken: &PendingRelease) -> Vec<GovernedPiece> {
        taken.ended().copied().collect()
    }

    #[test]
    fn memory_that_the_driver_refuses_to_release_stays_recorded() {
        let governed = GovernedMemory::default();
        governed.created(7, PIECE);
        let refused = governed.released(7);
        assert_eq!(ended(&refused), [PIECE]);
        // Meanwhile the driver may reuse the handle.
        assert_eq!(governed.on_device_bytes(0), 0);
        governed.put_back(refused);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
        governed.mapped(0x1000, 2 << 20, 7);
        assert_eq!(ended(&governed.released(7)), []);
        // No reference is left that a refused call could have released.
        governed.put_back(governed.released(7));
        let refused = governed.unmapped(0x1000, 2 << 20);
        assert_eq!(ended(&refused), [PIECE]);
        governed.put_back(refused);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
        assert_eq!(ended(&governed.unmapped(0x1000, 2 << 20)), [PIECE]);
        assert_eq!(governed.on_device_bytes(0), 0);
    }

    #[test]
    fn pieces_of_a_context_end_with_it() {
        let governed = GovernedMemory::default();
        let of = |context| GovernedPiece {
            context: Some(ContextId(context)),
            ..PIECE
        };
        governed.insert(GovernedKey::Array(1), of(1));
        governed.insert(GovernedKey::Array(2), of(2));
        governed.insert(GovernedKey::Array(3), PIECE);
        assert_eq!(
            governed.remove_contexts(&[ContextId(2), ContextId(7)]),
            [of(2)]
        );
        assert_eq!(governed.remove_contexts(&[ContextId(2)]), []);
        assert_eq!(governed.remove(GovernedKey::Array(1)), Some(of(1)));
        assert_eq!(governed.remove(GovernedKey::Array(2)), None);
        assert_eq!(governed.remove(GovernedKey::Array(3)), Some(PIECE));
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
