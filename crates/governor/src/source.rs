//! Memory source of a pool region, which reports changes to the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fercuda_ledger::{EventKind, Gauge, Ledger, LedgerDevice, LedgerEvent, Tenant};
use fercuda_pool::{GrowthRefused, MemoryBacking, Span};

use crate::extent::RegionExtent;
use crate::slabs::Slabs;
use crate::vmm::VmmBacking;

/// Physical memory of a device's regions, readable by other threads.
#[derive(Debug, Default)]
pub(crate) struct PhysicalBytes {
    /// Mapped or spare.
    has: AtomicU64,
    mapped: AtomicU64,
}

impl PhysicalBytes {
    pub(crate) fn bytes(&self) -> u64 {
        self.has.load(Relaxed)
    }
}

/// The backing of a region.
#[derive(Debug)]
pub(crate) enum RegionMemory {
    Mapped(VmmBacking),
    Slabs(Slabs),
}

impl RegionMemory {
    fn backing(&self) -> &dyn MemoryBacking {
        match self {
            RegionMemory::Mapped(vmm) => vmm,
            RegionMemory::Slabs(slabs) => slabs,
        }
    }

    fn backing_mut(&mut self) -> &mut dyn MemoryBacking {
        match self {
            RegionMemory::Mapped(vmm) => vmm,
            RegionMemory::Slabs(slabs) => slabs,
        }
    }

    /// The address ranges of the pool.
    fn ranges(&self) -> Vec<(u64, u64)> {
        match self {
            RegionMemory::Mapped(vmm) => vmm.reserved().to_vec(),
            RegionMemory::Slabs(slabs) => slabs.ranges().collect(),
        }
    }
}

/// The source of a region's memory; see the module.
#[derive(Debug)]
pub struct RegionSource {
    memory: RegionMemory,
    ledger: Arc<Ledger>,
    device: LedgerDevice,
    physical: Arc<PhysicalBytes>,
    extent: RegionExtent,
}

impl RegionSource {
    pub(crate) fn new(
        memory: RegionMemory,
        ledger: Arc<Ledger>,
        device: LedgerDevice,
        (physical, extent): (Arc<PhysicalBytes>, RegionExtent),
    ) -> Self {
        Self {
            memory,
            ledger,
            device,
            physical,
            extent,
        }
    }

    /// Publishes the pool's address ranges.
    fn publish(&self) {
        self.extent.set(&self.memory.ranges());
    }

    fn tell(&self, kind: EventKind, bytes: u64) {
        let mapped = self.physical.mapped.load(Relaxed);
        self.ledger.set(self.device, Gauge::Mapped, mapped);
        let has = self.physical.bytes();
        self.ledger.set(self.device, Gauge::Pooled, has);
        self.ledger.record(LedgerEvent {
            kind,
            device: self.device,
            tenant: Tenant::OTHERS,
            bytes,
            address: 0,
            detail: has,
            stream: 0,
            thread: 0,
        });
    }
}

impl MemoryBacking for RegionSource {
    fn piece_bytes(&self) -> u64 {
        self.memory.backing().piece_bytes()
    }

    fn align_bytes(&self) -> u64 {
        self.memory.backing().align_bytes()
    }

    fn is_apart(&self) -> bool {
        self.memory.backing().is_apart()
    }

    fn rounded(&self, bytes: u64) -> u64 {
        self.memory.backing().rounded(bytes)
    }

    fn new_bytes(&self, bytes: u64) -> u64 {
        self.memory.backing().new_bytes(bytes)
    }

    fn site(&self, bytes: u64) -> Option<u64> {
        self.memory.backing().site(bytes)
    }

    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        let new = self.new_bytes(bytes);
        let span = self.memory.backing_mut().grow(bytes)?;
        self.publish();
        self.physical.mapped.fetch_add(span.bytes, Relaxed);
        self.physical.has.fetch_add(new, Relaxed);
        self.tell(EventKind::Growth, new);
        Ok(span)
    }

    fn separable(&self, span: Span) -> Option<Span> {
        self.memory.backing().separable(span)
    }

    fn shrink(&mut self, span: Span) {
        self.memory.backing_mut().shrink(span);
        self.publish();
        self.physical.mapped.fetch_sub(span.bytes, Relaxed);
    }

    fn release(&mut self, but_for: u64) -> u64 {
        let bytes = self.memory.backing_mut().release(but_for);
        self.physical.has.fetch_sub(bytes, Relaxed);
        if bytes > 0 {
            self.tell(EventKind::Trim, bytes);
        }
        bytes
    }
}
