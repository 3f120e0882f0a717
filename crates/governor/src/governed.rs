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

/// Physical memory that the program creates and maps itself. It lives as long as any handle or
/// mapping refers to it: several handles may name one allocation.
#[derive(Clone, Copy, Debug)]
struct ProgramMemory {
    piece: GovernedPiece,
    /// References through handles, and mappings.
    references: usize,
}

/// A handle of an allocation.
#[derive(Clone, Copy, Debug)]
struct ProgramHandle {
    /// The number of the allocation.
    allocation: u64,
    /// How often it has to be released.
    references: usize,
}

/// A reference to an allocation, held through a driver call that maps it or makes a handle of it:
/// meanwhile another thread may release all others.
#[derive(Debug)]
#[must_use = "the allocation is charged until the hold is passed on"]
pub struct PhysicalHold {
    allocation: u64,
}

/// The pieces and mappings that a driver call is about to release, kept in case it fails.
#[derive(Debug, Default)]
pub struct PendingRelease {
    /// A handle and its allocation.
    handle: Option<(u64, u64)>,
    /// Start, length and allocation of each mapping.
    mappings: Vec<(u64, u64, u64)>,
    /// Each with the number of its allocation.
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
    /// The program's physical memory, by numbers that are never reused, as handles are.
    physical: FxHashMap<u64, ProgramMemory>,
    next_allocation: u64,
    handles: FxHashMap<u64, ProgramHandle>,
    /// Mappings by start: their length and allocation.
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

    /// Records physical memory. Returns the piece that a handle of the same number was the last
    /// reference to: the driver has reused the number, so that piece is gone.
    pub fn created(&self, handle: u64, piece: GovernedPiece) -> Option<GovernedPiece> {
        let mut tables = self.tables();
        let gone = tables.forget_handle(handle);
        tables.next_allocation += 1;
        let allocation = tables.next_allocation;
        let references = 1;
        let physical = ProgramMemory { piece, references };
        tables.physical.insert(allocation, physical);
        let named = ProgramHandle {
            allocation,
            references,
        };
        tables.handles.insert(handle, named);
        gone
    }

    /// Holds the allocation of a handle that is about to be mapped.
    pub fn hold_handle(&self, handle: u64) -> Option<PhysicalHold> {
        let mut tables = self.tables();
        let allocation = tables.handles.get(&handle)?.allocation;
        tables.hold(allocation)
    }

    /// Holds the allocation that is mapped at an address, of which a handle is about to be made.
    pub fn hold_address(&self, address: u64) -> Option<PhysicalHold> {
        let mut tables = self.tables();
        let (start, (bytes, allocation)) = tables.mapped.range(..=address).next_back()?;
        let allocation = (address - start < *bytes).then_some(*allocation)?;
        tables.hold(allocation)
    }

    /// Records a mapping of a held allocation.
    pub fn mapped(&self, held: PhysicalHold, address: u64, bytes: u64) {
        let mut tables = self.tables();
        tables.mapped.insert(address, (bytes, held.allocation));
    }

    /// Records that the driver returned a handle of a held allocation, whether it is a new one or
    /// one that the program has already. Returns the piece that a handle of the same number was the
    /// last reference to, as [`GovernedMemory::created`].
    pub fn retained(&self, held: PhysicalHold, handle: u64) -> Option<GovernedPiece> {
        let mut tables = self.tables();
        let PhysicalHold { allocation } = held;
        let mut gone = None;
        match tables.handles.get_mut(&handle) {
            Some(named) if named.allocation == allocation => named.references += 1,
            _ => {
                gone = tables.forget_handle(handle);
                let named = ProgramHandle {
                    allocation,
                    references: 1,
                };
                tables.handles.insert(handle, named);
            }
        }
        gone
    }

    /// Ends a hold: the call failed. Returns the piece if all other references have ended
    /// meanwhile.
    pub fn release_hold(&self, held: PhysicalHold) -> Option<GovernedPiece> {
        self.tables().end(held.allocation, 1)
    }

    /// Removes a reference of a handle that is about to be released: once the driver has released
    /// it, it may reuse the handle.
    pub fn released(&self, handle: u64) -> PendingRelease {
        let mut taken = PendingRelease::default();
        let mut tables = self.tables();
        let Some(named) = tables.handles.get_mut(&handle) else {
            return taken;
        };
        let allocation = named.allocation;
        named.references -= 1;
        if named.references == 0 {
            tables.handles.remove(&handle);
        }
        taken.handle = Some((handle, allocation));
        let ended = tables.end(allocation, 1);
        taken.ended.extend(ended.map(|piece| (allocation, piece)));
        taken
    }

    /// Restores what the driver did not release.
    pub fn put_back(&self, taken: PendingRelease) {
        let mut tables = self.tables();
        for (allocation, piece) in taken.ended {
            let references = 0;
            let unused = ProgramMemory { piece, references };
            tables.physical.insert(allocation, unused);
        }
        if let Some((handle, allocation)) = taken.handle
            && let Some(physical) = tables.physical.get_mut(&allocation)
        {
            physical.references += 1;
            let named = tables.handles.entry(handle).or_insert(ProgramHandle {
                allocation,
                references: 0,
            });
            named.references += 1;
        }
        for (address, bytes, allocation) in taken.mappings {
            if let Some(physical) = tables.physical.get_mut(&allocation) {
                physical.references += 1;
                tables.mapped.insert(address, (bytes, allocation));
            }
        }
    }

    /// Removes the mappings of a range that is about to be unmapped.
    pub fn unmapped(&self, address: u64, bytes: u64) -> PendingRelease {
        let mut tables = self.tables();
        let range = address..address.saturating_add(bytes);
        let gone: Vec<u64> = tables.mapped.range(range).map(|(at, _)| *at).collect();
        let mut taken = PendingRelease::default();
        for at in gone {
            let Some((bytes, allocation)) = tables.mapped.remove(&at) else {
                continue;
            };
            taken.mappings.push((at, bytes, allocation));
            let ended = tables.end(allocation, 1);
            taken.ended.extend(ended.map(|piece| (allocation, piece)));
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
    /// Adds a reference to an allocation.
    fn hold(&mut self, allocation: u64) -> Option<PhysicalHold> {
        self.physical.get_mut(&allocation)?.references += 1;
        Some(PhysicalHold { allocation })
    }

    /// Ends references of an allocation; returns its piece if they were the last.
    fn end(&mut self, allocation: u64, references: usize) -> Option<GovernedPiece> {
        let physical = self.physical.get_mut(&allocation)?;
        physical.references = physical.references.saturating_sub(references);
        if physical.references > 0 {
            return None;
        }
        let physical = self.physical.remove(&allocation)?;
        Some(physical.piece)
    }

    /// Forgets a handle, the number of which the driver has reused.
    fn forget_handle(&mut self, handle: u64) -> Option<GovernedPiece> {
        let named = self.handles.remove(&handle)?;
        self.end(named.allocation, named.references)
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

    fn map(governed: &GovernedMemory, handle: u64, address: u64) {
        let held = governed.hold_handle(handle).unwrap();
        governed.mapped(held, address, 2 << 20);
    }

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
        map(&governed, 7, 0x1000);
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
        map(&governed, 7, 0x1000);
        assert_eq!(ended(&governed.released(7)), []);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
        assert_eq!(ended(&governed.unmapped(0x1000, 2 << 20)), [PIECE]);
        assert_eq!(governed.on_device_bytes(0), 0);
    }

    #[test]
    fn a_retained_handle_has_to_be_released_twice() {
        let governed = GovernedMemory::default();
        governed.created(7, PIECE);
        map(&governed, 7, 0x1000);
        let held = governed.hold_address(0x1fff).unwrap();
        assert_eq!(governed.retained(held, 7), None);
        assert_eq!(ended(&governed.unmapped(0x1000, 2 << 20)), []);
        assert_eq!(ended(&governed.released(7)), []);
        assert_eq!(ended(&governed.released(7)), [PIECE]);
        assert_eq!(ended(&governed.released(7)), []);
    }

    /// A driver returns a new number where all handles of the memory were released.
    #[test]
    fn memory_is_held_by_a_handle_of_another_number() {
        let governed = GovernedMemory::default();
        governed.created(7, PIECE);
        map(&governed, 7, 2 << 20);
        assert_eq!(ended(&governed.released(7)), []);
        assert!(governed.hold_address((2 << 20) - 1).is_none());
        assert!(governed.hold_address(4 << 20).is_none());
        let held = governed.hold_address(3 << 20).unwrap();
        assert_eq!(governed.retained(held, 8), None);
        assert_eq!(ended(&governed.unmapped(2 << 20, 2 << 20)), []);
        map(&governed, 8, 8 << 20);
        assert_eq!(ended(&governed.released(7)), []);
        assert_eq!(ended(&governed.released(8)), []);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
        assert_eq!(ended(&governed.unmapped(8 << 20, 2 << 20)), [PIECE]);
    }

    #[test]
    fn memory_lives_through_a_call_that_refers_to_it() {
        let governed = GovernedMemory::default();
        governed.created(7, PIECE);
        let held = governed.hold_handle(7).unwrap();
        // Another thread releases the handle while this one maps it.
        assert_eq!(ended(&governed.released(7)), []);
        assert_eq!(governed.release_hold(held), Some(PIECE));
        assert!(governed.hold_handle(7).is_none());
    }

    #[test]
    fn a_reused_number_ends_what_only_it_referred_to() {
        let governed = GovernedMemory::default();
        governed.created(7, PIECE);
        let other = GovernedPiece {
            bytes: 4 << 20,
            ..PIECE
        };
        assert_eq!(governed.created(7, other), Some(PIECE));
        map(&governed, 7, 0x1000);
        assert_eq!(governed.created(7, PIECE), None);
        assert_eq!(ended(&governed.unmapped(0x1000, 1)), [other]);
    }

    #[test]
    fn one_call_may_unmap_several_handles() {
        let governed = GovernedMemory::default();
        for (handle, address) in [(1, 0), (2, 2 << 20), (3, 4 << 20)] {
            governed.created(handle, PIECE);
            map(&governed, handle, address);
            assert_eq!(ended(&governed.released(handle)), []);
        }
        assert_eq!(ended(&governed.unmapped(0, 4 << 20)).len(), 2);
        assert_eq!(governed.on_device_bytes(0), 2 << 20);
    }
}
