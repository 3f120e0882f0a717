//! Address ranges of a device's regions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use crate::clock::{read, write};

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
    pub(crate) fn set(&self, ranges: &[(u64, u64)]) {
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
