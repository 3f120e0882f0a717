//! Allocations: what each is, and the records of those that live and of those freed last.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const FREED_KEPT: usize = 8192;

/// A driver call, named so that two runs of a program name it alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DriverCallSite {
    /// Driver function.
    pub call: &'static str,
    /// Ordinal of this call among its thread's calls of that function, from 1.
    pub ordinal: u64,
    /// Host thread.
    pub thread: Arc<str>,
    /// Where the program called: an address of its code, 0 if that is not known.
    pub caller: usize,
}

impl fmt::Display for DriverCallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, call {} of thread {}",
            self.call, self.ordinal, self.thread
        )
    }
}

/// What an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocKind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync`.
    Pool,
    /// Mapped by `cuMemMap`.
    Vmm,
    /// `cuMemHostAlloc` and registered host memory.
    Pinned,
    /// `cuMemAllocManaged`.
    Managed,
    /// A module's variable.
    Global,
    /// Opened from another process.
    Ipc,
    /// `malloc` in a kernel.
    Heap,
}

impl fmt::Display for AllocKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AllocKind::Device => "device",
            AllocKind::Pool => "pool",
            AllocKind::Vmm => "mapped",
            AllocKind::Pinned => "pinned host",
            AllocKind::Managed => "managed",
            AllocKind::Global => "module variable",
            AllocKind::Ipc => "imported",
            AllocKind::Heap => "device heap",
        })
    }
}

/// The record of one allocation, retained for a while after its free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocInfo {
    /// Ordinal in this address space, from 1.
    pub id: u64,
    /// First address.
    pub start: u64,
    /// Bytes asked for.
    pub len: u64,
    /// What it is.
    pub kind: AllocKind,
    /// Device ordinal.
    pub device: u32,
    /// The variable's name, for [`AllocKind::Global`].
    pub name: Option<Arc<str>>,
    /// Where it was made.
    pub made: DriverCallSite,
    /// Where it was freed, if it was.
    pub freed: Option<DriverCallSite>,
}

impl AllocInfo {
    /// One past its last address.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

#[derive(Debug, Default)]
struct RecordTables {
    live: BTreeMap<u64, Arc<AllocInfo>>,
    freed: BTreeMap<(u64, u64), Arc<AllocInfo>>,
    freed_order: VecDeque<(u64, u64)>,
    next_id: u64,
}

/// The allocations of an address space.
#[derive(Debug, Default)]
pub(crate) struct AllocationRecords(RwLock<RecordTables>);

impl AllocationRecords {
    fn read(&self) -> RwLockReadGuard<'_, RecordTables> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, RecordTables> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an allocation that lives, under a number of its own.
    pub(super) fn add(
        &self,
        start: u64,
        len: u64,
        kind: AllocKind,
        device: u32,
        name: Option<Arc<str>>,
        made: DriverCallSite,
    ) -> Arc<AllocInfo> {
        let mut records = self.write();
        records.next_id += 1;
        let info = Arc::new(AllocInfo {
            id: records.next_id,
            start,
            len,
            kind,
            device,
            name,
            made,
            freed: None,
        });
        records.live.insert(start, info.clone());
        info
    }

    /// Moves the allocation that starts at `start` to those that are freed.
    pub(super) fn retire(&self, start: u64, freed: DriverCallSite) -> Option<Arc<AllocInfo>> {
        let mut records = self.write();
        let old = records.live.remove(&start)?;
        let info = Arc::new(AllocInfo {
            freed: Some(freed),
            ..(*old).clone()
        });
        records.freed.insert((start, info.id), info.clone());
        records.freed_order.push_back((start, info.id));
        if records.freed_order.len() > FREED_KEPT
            && let Some(oldest) = records.freed_order.pop_front()
        {
            records.freed.remove(&oldest);
        }
        Some(info)
    }

    /// The live allocation that holds `addr`.
    pub(crate) fn find_live(&self, addr: u64) -> Option<Arc<AllocInfo>> {
        let records = self.read();
        records
            .live
            .range(..=addr)
            .next_back()
            .map(|e| e.1)
            .filter(|a| addr < a.end().max(a.start + 1))
            .cloned()
    }

    /// The allocation that holds `addr`, else the one freed last that did.
    pub(crate) fn find(&self, addr: u64) -> Option<Arc<AllocInfo>> {
        self.find_live(addr).or_else(|| {
            let records = self.read();
            records
                .freed
                .values()
                .filter(|a| a.start <= addr && addr < a.end())
                .max_by_key(|a| a.id)
                .cloned()
        })
    }

    /// The live allocations on either side of `addr`: the last that starts at or before it, the
    /// first after.
    pub(crate) fn neighbours(&self, addr: u64) -> (Option<Arc<AllocInfo>>, Option<Arc<AllocInfo>>) {
        let records = self.read();
        (
            records.live.range(..=addr).next_back().map(|e| e.1.clone()),
            records
                .live
                .range((Bound::Excluded(addr), Bound::Unbounded))
                .next()
                .map(|e| e.1.clone()),
        )
    }

    /// Every live allocation, by address.
    pub(crate) fn live(&self) -> Vec<Arc<AllocInfo>> {
        self.read().live.values().cloned().collect()
    }
}
