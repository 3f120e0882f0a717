//! A pool's memory, with the ledger told of what comes and goes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use fercuda_ledger::{EventKind, Gauge, Ledger, LedgerDevice, LedgerEvent, Tenant};
use fercuda_pool::{Backing, Refused, Span};

use crate::clock::{read, write};
use crate::slabs::Slabs;
use crate::vmm::Vmm;

/// Physical memory that a device's regions have, as others may read it.
#[derive(Debug, Default)]
pub(crate) struct Physical {
    /// Mapped or spare.
    has: AtomicU64,
    mapped: AtomicU64,
}

impl Physical {
    pub(crate) fn bytes(&self) -> u64 {
        self.has.load(Relaxed)
    }
}

/// Addresses that the pools of a device's regions have reserved, or slabs, as
/// others may read them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Extents {
    /// What every free reads: of both on one cache line.
    bounds: [Bounds; 2],
    ranges: Apart,
}

/// Not on the bounds' line, which a reader's lock would take from all others.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Apart([RwLock<Vec<(u64, u64)>>; 2]);

/// No range has ever begun below the first or ended above the second.
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

impl Extents {
    /// The piece of each region's that an address is in: where it begins, how
    /// much.
    pub(crate) fn around(&self, address: u64) -> [Option<(u64, u64)>; 2] {
        self.ranges.0.each_ref().map(|ranges| {
            let ranges = read(ranges);
            let mut ranges = ranges.iter();
            let found = ranges.find(|(at, bytes)| address >= *at && address - at < *bytes);
            found.copied()
        })
    }

    /// Whether an address is in one of these pieces.
    pub(crate) fn hold(&self, address: u64) -> bool {
        self.around(address).iter().any(Option::is_some)
    }

    /// Whether a block that a region's pool gave may be there; without a lock.
    #[inline]
    pub(crate) fn may_hold(&self, address: u64) -> [bool; 2] {
        self.bounds.each_ref().map(|Bounds { low, high }| {
            low.load(Relaxed) <= address && address < high.load(Relaxed)
        })
    }
}

/// One region's part of them.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    all: Arc<Extents>,
    region: usize,
}

impl Extent {
    /// Of the small or of the large region, and whoever asks for both.
    pub(crate) fn new() -> ([Extent; 2], Arc<Extents>) {
        let all = Arc::new(Extents::default());
        let of = |region| Extent {
            all: all.clone(),
            region,
        };
        ([of(0), of(1)], all)
    }

    fn ranges(&self) -> &RwLock<Vec<(u64, u64)>> {
        &self.all.ranges.0[self.region]
    }

    /// The range that begins there is about to be the driver's, who may give it
    /// to anybody.
    pub(crate) fn leave(&self, begin: u64) {
        write(self.ranges()).retain(|(at, _)| *at != begin);
    }

    /// The driver did not take it.
    pub(crate) fn stay(&self, range: (u64, u64)) {
        write(self.ranges()).push(range);
    }

    /// Before any block of them is given.
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

/// Where a pool's memory comes from.
#[derive(Debug)]
pub(crate) enum Memory {
    Mapped(Vmm),
    Slabs(Slabs),
}

impl Memory {
    fn backing(&self) -> &dyn Backing {
        match self {
            Memory::Mapped(vmm) => vmm,
            Memory::Slabs(slabs) => slabs,
        }
    }

    fn backing_mut(&mut self) -> &mut dyn Backing {
        match self {
            Memory::Mapped(vmm) => vmm,
            Memory::Slabs(slabs) => slabs,
        }
    }

    /// Addresses that are the pool's.
    fn ranges(&self) -> Vec<(u64, u64)> {
        match self {
            Memory::Mapped(vmm) => vmm.reserved().to_vec(),
            Memory::Slabs(slabs) => slabs.ranges().collect(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Source {
    memory: Memory,
    ledger: Arc<Ledger>,
    device: LedgerDevice,
    physical: Arc<Physical>,
    extent: Extent,
}

impl Source {
    pub(crate) fn new(
        memory: Memory,
        ledger: Arc<Ledger>,
        device: LedgerDevice,
        (physical, extent): (Arc<Physical>, Extent),
    ) -> Self {
        Self {
            memory,
            ledger,
            device,
            physical,
            extent,
        }
    }

    /// Says which addresses are the pool's.
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

impl Backing for Source {
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

    fn grow(&mut self, bytes: u64) -> Result<Span, Refused> {
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
