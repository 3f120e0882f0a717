//! Virtual memory backing: addresses are reserved once, physical memory is mapped and unmapped in
//! handles.
//!
//! A handle is mapped and unmapped as a whole, and costs about the same whatever its size. So a
//! growth has few handles, however large it is; but while memory is remapped, handles are small, so
//! that few are held in place by a few live bytes. The smaller the pool, the smaller its minimum
//! growth, which keeps little unused.
//!
//! Handles can be exported as descriptors if the driver permits it, so that other processes can
//! open the blocks in them.
//!
//! Invariants: every chunk is one handle, mapped and accessible; reserved addresses are in chunks
//! or vacant; physical memory is in chunks or spare.

use std::collections::BTreeMap;
use std::sync::Arc;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CUdevice, CUdevice_attribute, CUdeviceptr, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};
use fercuda_pool::{GrowthRefused, MemoryBacking, Span};

use crate::driver_call::{RelaxedCapture, done, is_done};
use crate::peers::Peers;

/// How the memory of a growth is divided into handles.
struct HandleDivision {
    /// The size of handles is that of the growth divided by this.
    handles: u64,
    /// The largest handle.
    largest: u64,
}

/// While nothing is remapped.
const AT_REST: HandleDivision = HandleDivision {
    handles: 2,
    largest: 1 << 30,
};
/// While memory is remapped.
const MOVING: HandleDivision = HandleDivision {
    handles: 64,
    largest: 32 << 20,
};
/// Memory counts as being remapped for this many growths after one that has remapped some.
const GROWTHS_AFTER_MOVE: u32 = 64;
/// The smallest growth is the pool's memory divided by this. At most the slack of the pool, so that
/// such a growth never makes it wait.
const LEAST_GROWTH_PART: u64 = 64;
const LARGEST_LEAST_GROWTH: u64 = 128 << 20;
/// Addresses are reserved for the device's memory times this at once, or for half of that, and so
/// on: remapping leaves holes.
const RESERVED_TIMES: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct VmmHandle {
    raw: CUmemGenericAllocationHandle,
    bytes: u64,
}

/// The backing; see the module.
#[derive(Debug)]
pub struct VmmBacking {
    driver: &'static Driver,
    location: CUmemLocation,
    peers: Arc<Peers>,
    /// Whether handles are created exportable.
    exports: bool,
    granularity: u64,
    /// How many addresses are reserved at a time.
    reservation: u64,
    /// Reserved addresses without a mapping: length by start. No two are adjacent.
    vacant: BTreeMap<u64, u64>,
    /// All reservations.
    reserved: Vec<(u64, u64)>,
    chunks: BTreeMap<u64, VmmHandle>,
    mapped: u64,
    /// The growths left for which memory counts as being remapped.
    moving: u32,
    spare: Vec<VmmHandle>,
}

fn properties(location: CUmemLocation, exports: bool) -> CUmemAllocationProp {
    let types = match exports {
        true => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        false => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
    };
    CUmemAllocationProp {
        r#type: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: types,
        location,
        ..Default::default()
    }
}

/// Whether a device's memory can be exported as descriptors.
fn can_export(driver: &Driver, device: CUdevice) -> bool {
    use CUdevice_attribute as A;
    let attribute = A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let mut can = 0;
    // SAFETY: `can` outlives the call.
    let asked = unsafe { driver.cuDeviceGetAttribute(&mut can, attribute, device) };
    is_done(asked) && can != 0
}

impl VmmBacking {
    /// A backing for a device that can map memory, and that has a context.
    ///
    /// # Errors
    /// [`GrowthRefused`] if the driver or the device does not support it.
    pub fn new(driver: &'static Driver, device: CUdevice) -> Result<Self, GrowthRefused> {
        let peers = Arc::new(Peers::new(driver, device));
        Self::open_to(peers, driver, device)
    }

    /// As [`VmmBacking::new`], where peers may get access to the memory.
    pub(crate) fn open_to(
        peers: Arc<Peers>,
        driver: &'static Driver,
        device: CUdevice,
    ) -> Result<Self, GrowthRefused> {
        let location = CUmemLocation {
            r#type: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        };
        let exports = can_export(driver, device);
        let properties = properties(location, exports);
        let mut granularity = 0;
        // SAFETY: both outlive the call.
        done("cuMemGetAllocationGranularity", unsafe {
            driver.cuMemGetAllocationGranularity(
                &mut granularity,
                &properties,
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        })?;
        let mut total = 0;
        // SAFETY: `total` outlives the call.
        done("cuDeviceTotalMem", unsafe {
            driver.cuDeviceTotalMem_v2(&mut total, device)
        })?;
        let granularity = (granularity as u64).max(1);
        let reservation = (total as u64 * RESERVED_TIMES).next_multiple_of(granularity);
        Ok(Self {
            driver,
            reservation,
            location,
            peers,
            exports,
            granularity,
            vacant: BTreeMap::new(),
            reserved: Vec::new(),
            chunks: BTreeMap::new(),
            mapped: 0,
            moving: 0,
            spare: Vec::new(),
        })
    }

    /// All its reservations.
    pub(crate) fn reserved(&self) -> &[(u64, u64)] {
        &self.reserved
    }

    /// The sizes of the handles for a growth, the largest first.
    fn cut(&self, bytes: u64) -> impl Iterator<Item = u64> {
        let HandleDivision { handles, largest } = match self.moving {
            0 => AT_REST,
            _ => MOVING,
        };
        let most = (bytes / handles).clamp(self.granularity, largest.max(self.granularity));
        let mut size = most / self.granularity * self.granularity;
        let (mut left, granularity) = (bytes, self.granularity);
        std::iter::from_fn(move || {
            if left < size {
                size = left / granularity * granularity;
            }
            left -= size;
            (size > 0).then_some(size)
        })
    }

    /// Spare handles of at most `bytes` in total, large ones first.
    fn usable(&self, bytes: u64) -> Vec<VmmHandle> {
        let mut usable = self.spare.clone();
        usable.sort_by_key(|handle| std::cmp::Reverse(handle.bytes));
        let mut left = bytes;
        usable.retain(|handle| {
            let fits = handle.bytes <= left;
            left -= if fits { handle.bytes } else { 0 };
            fits
        });
        usable
    }

    fn create(&mut self, bytes: u64) -> Result<VmmHandle, GrowthRefused> {
        loop {
            let mut raw = 0;
            let properties = properties(self.location, self.exports);
            // SAFETY: both outlive the call.
            let created = unsafe {
                self.driver
                    .cuMemCreate(&mut raw, bytes as usize, &properties, 0)
            };
            match created {
                // A sandbox may forbid what the device supports.
                Ok(CUresult::CUDA_ERROR_NOT_SUPPORTED | CUresult::CUDA_ERROR_NOT_PERMITTED)
                    if self.exports =>
                {
                    self.exports = false;
                }
                _ => return done("cuMemCreate", created).map(|()| VmmHandle { raw, bytes }),
            }
        }
    }

    /// The address for a mapping of `bytes`: the highest vacant range, which is the largest, or
    /// else the first that suffices.
    fn fits(&self, bytes: u64) -> Option<u64> {
        let enough = |(at, len): (&u64, &u64)| (*len >= bytes).then_some(*at);
        let last = self.vacant.last_key_value().and_then(enough);
        last.or_else(|| self.vacant.iter().find_map(enough))
    }

    /// Reserves addresses for `bytes`.
    fn reserve(&mut self, bytes: u64) -> Result<u64, GrowthRefused> {
        if let Some(at) = self.fits(bytes) {
            return Ok(at);
        }
        // Both are whole granules, so that halving ends at `least`.
        let Some(least) = bytes.checked_next_multiple_of(self.granularity) else {
            return Err(GrowthRefused(format!(
                "there are no addresses for {bytes} bytes"
            )));
        };
        let whole = bytes.checked_next_multiple_of(self.reservation);
        let mut size = whole.unwrap_or(least);
        loop {
            let mut address: CUdeviceptr = Default::default();
            // SAFETY: `address` outlives the call.
            let answer = unsafe {
                self.driver.cuMemAddressReserve(
                    &mut address,
                    size as usize,
                    self.granularity as usize,
                    Default::default(),
                    0,
                )
            };
            match done("cuMemAddressReserve", answer) {
                Ok(()) => {
                    self.reserved.push((address, size));
                    self.vacate(address, size);
                    return Ok(self.fits(bytes).unwrap_or(address));
                }
                Err(refused) if size <= least => return Err(refused),
                Err(_) => {
                    let half = (size / 2).next_multiple_of(self.granularity);
                    size = half.max(least);
                }
            }
        }
    }

    /// Marks a range as unmapped.
    fn vacate(&mut self, mut at: u64, mut len: u64) {
        if let Some(above) = self.vacant.remove(&(at + len)) {
            len += above;
        }
        if let Some((below, below_len)) = self.vacant.range(..at).next_back()
            && below + below_len == at
        {
            (at, len) = (*below, below_len + len);
        }
        self.vacant.insert(at, len);
    }

    /// Marks a range as mapped.
    fn occupy(&mut self, at: u64, bytes: u64) {
        if let Some(len) = self.vacant.remove(&at)
            && len > bytes
        {
            self.vacant.insert(at + bytes, len - bytes);
        }
    }

    fn map(&self, at: u64, handle: VmmHandle) -> Result<(), GrowthRefused> {
        // SAFETY: `at` is reserved and unmapped for the handle's size.
        done("cuMemMap", unsafe {
            self.driver
                .cuMemMap(at, handle.bytes as usize, 0, handle.raw, 0)
        })
    }

    fn unmap(&self, at: u64, handle: VmmHandle) {
        // SAFETY: the caller guarantees that nothing uses the mapping.
        let answer = unsafe { self.driver.cuMemUnmap(at, handle.bytes as usize) };
        debug_assert!(done("cuMemUnmap", answer).is_ok());
    }
}

impl MemoryBacking for VmmBacking {
    fn piece_bytes(&self) -> u64 {
        self.granularity
    }

    fn rounded(&self, bytes: u64) -> u64 {
        let least = (self.mapped / LEAST_GROWTH_PART).min(LARGEST_LEAST_GROWTH);
        let bytes = bytes.max(least / self.granularity * self.granularity);
        bytes
            .checked_next_multiple_of(self.granularity)
            .unwrap_or(u64::MAX)
    }

    fn new_bytes(&self, bytes: u64) -> u64 {
        let spare: u64 = self.usable(bytes).iter().map(|handle| handle.bytes).sum();
        bytes - spare
    }

    fn site(&self, bytes: u64) -> Option<u64> {
        self.fits(bytes)
    }

    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        let _relaxed = RelaxedCapture::enter(self.driver);
        let address = self.reserve(bytes)?;
        let spare = self.usable(bytes);
        let reused: u64 = spare.iter().map(|handle| handle.bytes).sum();
        // Memory that is only returned to the driver leaves none spare.
        self.moving = match reused {
            0 => self.moving.saturating_sub(1),
            _ => GROWTHS_AFTER_MOVE,
        };
        let mut new = Vec::new();
        let mut grown = Ok(());
        let sizes: Vec<u64> = self.cut(bytes - reused).collect();
        for size in sizes {
            match self.create(size) {
                Ok(handle) => new.push(handle),
                Err(refused) => {
                    grown = Err(refused);
                    break;
                }
            }
        }
        let mut at = address;
        let mut mapped = Vec::new();
        for handle in spare.iter().chain(&new) {
            grown = grown.and_then(|()| self.map(at, *handle));
            if grown.is_err() {
                break;
            }
            mapped.push((at, *handle));
            at += handle.bytes;
        }
        let grown = grown.and_then(|()| {
            let pieces = mapped.iter().map(|(_, handle)| handle.bytes);
            self.peers.open(address, pieces)
        });
        if let Err(refused) = grown {
            for (at, handle) in mapped {
                self.unmap(at, handle);
            }
            for handle in new {
                self.destroy(handle);
            }
            return Err(refused);
        }
        self.spare
            .retain(|handle| spare.iter().all(|used| used.raw != handle.raw));
        self.chunks.extend(mapped);
        self.mapped += bytes;
        self.occupy(address, bytes);
        Ok(Span { address, bytes })
    }

    fn separable(&self, span: Span) -> Option<Span> {
        let inside = self.chunks.range(span.address..span.end());
        let mut inside = inside.filter(|(at, handle)| **at + handle.bytes <= span.end());
        let (first, handle) = inside.next()?;
        let end = inside.next_back().map(|(at, handle)| at + handle.bytes);
        let bytes = end.unwrap_or(first + handle.bytes) - first;
        Some(Span {
            address: *first,
            bytes,
        })
    }

    fn shrink(&mut self, span: Span) {
        let _relaxed = RelaxedCapture::enter(self.driver);
        let chunks = self.chunks.range(span.address..span.end());
        let chunks: Vec<(u64, VmmHandle)> = chunks.map(|(at, handle)| (*at, *handle)).collect();
        for (at, handle) in chunks {
            self.peers.remove_mapping(at);
            self.unmap(at, handle);
            self.chunks.remove(&at);
            self.mapped -= handle.bytes;
            self.spare.push(handle);
            self.vacate(at, handle.bytes);
        }
    }

    fn release(&mut self, but_for: u64) -> u64 {
        let kept = self.usable(but_for);
        let mut gone = std::mem::take(&mut self.spare);
        gone.retain(|handle| kept.iter().all(|kept| kept.raw != handle.raw));
        self.spare = kept;
        if gone.is_empty() {
            return 0;
        }
        let _relaxed = RelaxedCapture::enter(self.driver);
        let bytes = gone.iter().map(|handle| handle.bytes).sum();
        for handle in gone {
            self.destroy(handle);
        }
        bytes
    }
}

/// The dropping code has ensured that nothing uses the memory any more.
impl Drop for VmmBacking {
    fn drop(&mut self) {
        let _relaxed = RelaxedCapture::enter(self.driver);
        for (at, handle) in std::mem::take(&mut self.chunks) {
            self.peers.remove_mapping(at);
            self.unmap(at, handle);
            self.destroy(handle);
        }
        self.release(0);
        for (at, bytes) in std::mem::take(&mut self.reserved) {
            // SAFETY: from cuMemAddressReserve, and nothing is mapped there.
            let answer = unsafe { self.driver.cuMemAddressFree(at, bytes as usize) };
            debug_assert!(done("cuMemAddressFree", answer).is_ok());
        }
    }
}

impl VmmBacking {
    fn destroy(&self, handle: VmmHandle) {
        // SAFETY: from cuMemCreate, mapped nowhere, and forgotten by the caller.
        let answer = unsafe { self.driver.cuMemRelease(handle.raw) };
        debug_assert!(done("cuMemRelease", answer).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use fercuda_cuda_sys::types::CUresult;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn backing() -> VmmBacking {
        let driver = Box::leak(Box::new(fercuda_softgpu::driver()));
        // SAFETY: takes a number.
        assert_eq!(unsafe { driver.cuInit(0) }.unwrap(), CUresult::CUDA_SUCCESS);
        VmmBacking::new(driver, 0).unwrap()
    }

    #[test]
    fn a_growth_has_few_handles_except_while_memory_is_moved() {
        let mut backing = backing();
        let sizes = |backing: &VmmBacking, span: Span| -> Vec<u64> {
            let inside = backing.chunks.range(span.address..span.end());
            inside.map(|(_, handle)| handle.bytes / MIB).collect()
        };
        for _ in 0..3 {
            let span = backing.grow(256 * MIB).unwrap();
            assert_eq!(sizes(&backing, span), [128, 128]);
            // Returned to the driver.
            backing.shrink(span);
            assert_eq!(backing.release(0), 256 * MIB);
        }
        let small = backing.grow(6 * MIB).unwrap();
        assert_eq!(sizes(&backing, small), [2, 2, 2]);
        // Used elsewhere.
        backing.shrink(small);
        let span = backing.grow(262 * MIB).unwrap();
        assert_eq!(sizes(&backing, span)[..4], [2, 2, 2, 4]);
        for _ in 0..GROWTHS_AFTER_MOVE {
            let span = backing.grow(4 * MIB).unwrap();
            assert_eq!(sizes(&backing, span), [2, 2]);
        }
        let span = backing.grow(256 * MIB).unwrap();
        assert_eq!(sizes(&backing, span), [128, 128]);
    }

    #[test]
    fn growths_follow_the_size_of_the_pool() {
        let mut backing = backing();
        assert_eq!(backing.rounded(1), 2 * MIB);
        backing.grow(640 * MIB).unwrap();
        assert_eq!(backing.rounded(1), 10 * MIB);
        assert_eq!(backing.rounded(11 * MIB), 12 * MIB);
    }
}
