//! A pool's memory, with the ledger told of what comes and goes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use fercuda_ledger::{Device, Event, EventKind, Gauge, Ledger, Tenant};
use fercuda_pool::{Backing, Refused, Span};

use crate::clock::{read, write};
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

/// Addresses that a pool has reserved, as others may read them.
#[derive(Debug, Default)]
pub(crate) struct Extent(RwLock<Vec<(u64, u64)>>);

impl Extent {
    pub(crate) fn holds(&self, address: u64) -> bool {
        let ranges = read(&self.0);
        let mut ranges = ranges.iter();
        ranges.any(|(at, bytes)| address >= *at && address - at < *bytes)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Source {
    vmm: Vmm,
    ledger: Arc<Ledger>,
    device: Device,
    physical: Arc<Physical>,
    extent: Arc<Extent>,
}

impl Source {
    pub(crate) fn new(
        vmm: Vmm,
        ledger: Arc<Ledger>,
        device: Device,
        (physical, extent): (Arc<Physical>, Arc<Extent>),
    ) -> Self {
        Self {
            vmm,
            ledger,
            device,
            physical,
            extent,
        }
    }

    fn tell(&self, kind: EventKind, bytes: u64) {
        let mapped = self.physical.mapped.load(Relaxed);
        self.ledger.set(self.device, Gauge::Mapped, mapped);
        let has = self.physical.bytes();
        self.ledger.set(self.device, Gauge::Pooled, has);
        self.ledger.record(Event {
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
        self.vmm.piece_bytes()
    }

    fn rounded(&self, bytes: u64) -> u64 {
        self.vmm.rounded(bytes)
    }

    fn new_bytes(&self, bytes: u64) -> u64 {
        self.vmm.new_bytes(bytes)
    }

    fn site(&self, bytes: u64) -> Option<u64> {
        self.vmm.site(bytes)
    }

    fn grow(&mut self, bytes: u64) -> Result<Span, Refused> {
        let new = self.vmm.new_bytes(bytes);
        let span = self.vmm.grow(bytes)?;
        let mut ranges = write(&self.extent.0);
        ranges.clear();
        ranges.extend_from_slice(self.vmm.reserved());
        drop(ranges);
        self.physical.mapped.fetch_add(span.bytes, Relaxed);
        self.physical.has.fetch_add(new, Relaxed);
        self.tell(EventKind::Growth, new);
        Ok(span)
    }

    fn separable(&self, span: Span) -> Option<Span> {
        self.vmm.separable(span)
    }

    fn shrink(&mut self, span: Span) {
        self.vmm.shrink(span);
        self.physical.mapped.fetch_sub(span.bytes, Relaxed);
    }

    fn release(&mut self, but_for: u64) -> u64 {
        let bytes = self.vmm.release(but_for);
        self.physical.has.fetch_sub(bytes, Relaxed);
        if bytes > 0 {
            self.tell(EventKind::Trim, bytes);
        }
        bytes
    }
}
