//! Allocations: what is recorded of each.
//!
//! Elsewhere: the table's operations (`memory`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::sync::{Arc, RwLock};

use super::objects::MemPool;

/// Where an allocation's bytes come from and how they are released.
pub(crate) enum AllocationSource {
    /// `cuMemAlloc` and friends: from the device's heap.
    Device,
    /// A pool's block.
    Pool(Arc<MemPool>),
    /// Pinned host memory, with its `CU_MEMHOSTALLOC_*` flags.
    Host(u32),
    /// The program's own memory, with its `CU_MEMHOSTREGISTER_*` flags.
    Registered(u32),
    Managed,
    /// An array's texels.
    Array,
    /// A module's variable.
    Global,
    /// `cuMemMap`.
    Mapped,
    /// Another process's memory.
    Ipc(IpcMapping),
    /// A graph's allocation node.
    Graph,
}

/// Where another process's memory is mapped here.
pub(crate) struct IpcMapping {
    pub(crate) base: u64,
    pub(crate) backing: crate::mem::Backing,
}

pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) source: AllocationSource,
    pub(crate) device: u32,
    pub(crate) ctx_id: u64,
    pub(crate) ctx_handle: usize,
    pub(crate) buffer_id: u64,
    pub(crate) sync_memops: AtomicBool,
    /// `cuMemAdvise` on the whole of it: read mostly, preferred location, accessed-by mask, last
    /// prefetch.
    pub(crate) read_mostly: AtomicBool,
    pub(crate) preferred: AtomicI32,
    pub(crate) accessed_by: AtomicU32,
    pub(crate) prefetched: AtomicI32,
}

impl Allocation {
    pub(crate) fn is_host(&self) -> bool {
        matches!(
            self.source,
            AllocationSource::Host(_) | AllocationSource::Registered(_)
        )
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }
}

#[derive(Default)]
pub(crate) struct AllocationTable {
    pub(super) live: RwLock<BTreeMap<u64, Arc<Allocation>>>,
}
