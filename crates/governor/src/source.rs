//! Memory source of a pool region, which reports changes to the ledger.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use fercuda_ledger::{EventKind, Gauge, Ledger, LedgerDevice, LedgerEvent, Tenant};
use fercuda_pool::{GrowthRefused, MemoryBacking, Span};

use crate::clock::{read, write};
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

/// Address ranges of a device's regions, reserved or in slabs, readable by other threads.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct RegionExtents {
    /// The bounds that every free reads: those of both regions share a cache line.
    bounds: [Bounds; 2],
    ranges: PaddedRanges,
}

/// The ranges, apart from the bounds' cache line, which taking a lock would invalidate for all
/// other threads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PaddedRanges([RwLock<Vec<(u64, u64)>>; 2]);

/// The lowest start and the highest end that any range has ever had.
#[derive(Debug)]
struct Bounds {
    low: AtomicU64,
    high: AtomicU64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            low: AtomicU64::new(u64::MAX),
            high: AtomicU64::new(0),
        }
    }
}

impl RegionExtents {
    /// In each region, the start and length of the range that contains an address.
    pub(crate) fn around(&self, address: u64) -> [Option<(u64, u64)>; 2] {
        self.ranges.0.each_ref().map(|ranges| {
            let ranges = read(ranges);
            let mut ranges = ranges.iter();
            let found = ranges.find(|(at, bytes)| address >= *at && address - at < *bytes);
            found.copied()
        })
    }

    /// Whether an address is in one of these ranges.
    pub(crate) fn hold(&self, address: u64) -> bool {
        self.around(address).iter().any(Option::is_some)
    }

    /// Whether a block of a region's pool may be there; without a lock.
    #[inline]
    pub(crate) fn may_hold(&self, address: u64) -> [bool; 2] {
        self.bounds.each_ref().map(|Bounds { low, high }| {
            low.load(Relaxed) <= address && address < high.load(Relaxed)
        })
    }
}

/// One region's ranges.
#[derive(Clone, Debug)]
pub(crate) struct RegionExtent {
    all: Arc<RegionExtents>,
    region: usize,
}

impl RegionExtent {
    /// The ranges of the small and of the large region, and the view of both.
    pub(crate) fn new() -> ([RegionExtent; 2], Arc<RegionExtents>) {
        let all = Arc::new(RegionExtents::default());
        let of = |region| RegionExtent {
            all: all.clone(),
            region,
        };
        ([of(0), of(1)], all)
    }

    fn ranges(&self) -> &RwLock<Vec<(u64, u64)>> {
        &self.all.ranges.0[self.region]
    }

    /// Removes the range that begins there, which is about to be freed: the driver may reuse it.
    pub(crate) fn leave(&self, begin: u64) {
        write(self.ranges()).retain(|(at, _)| *at != begin);
    }

    /// Restores a range that the driver did not free.
    pub(crate) fn stay(&self, range: (u64, u64)) {
        write(self.ranges()).push(range);
    }

    /// Sets the ranges, before any block in them is allocated.
    fn set(&self, ranges: &[(u64, u64)]) {
        let mut held = write(self.ranges());
        held.clear();
        held.extend_from_slice(ranges);
        let Bounds { low, high } = &self.all.bounds[self.region];
        for (at, bytes) in ranges {
            low.fetch_min(*at, Relaxed);
            high.fetch_max(at + bytes, Relaxed);
        }
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
