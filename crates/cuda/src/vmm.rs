//! Virtual memory management: address ranges and physical memory, mapped explicitly.
//!
//! A [`VirtualRange`] is addresses without memory, [`PhysicalMemory`] is memory without addresses.
//! Mapping one into the other (`mapped`) returns a buffer, and dropping that unmaps it after its
//! last use.
//!
//! Invariant: no two mappings of a range overlap, and range and memory live at
//! least as long as every mapping of them.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUresult, c_int,
    c_void,
};

use crate::address::DeviceAddr;
use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::deferred::{self, DestroyOutcome};
use crate::device::Device;
use crate::error::{ByteSize, Error, OutOfMemory, Result, call, check};
use crate::lock::lock;

fn properties(device: &Device, shareable: bool) -> CUmemAllocationProp {
    CUmemAllocationProp {
        r#type: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if shareable {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        },
        location: device.location(),
        ..Default::default()
    }
}

/// Physical memory of a device. Clones are handles to the same memory.
#[derive(Clone, Debug)]
pub struct PhysicalMemory {
    inner: Arc<PhysicalInner>,
}

#[derive(Debug)]
struct PhysicalInner {
    context: Context,
    raw: CUmemGenericAllocationHandle,
    bytes: usize,
}

impl Drop for PhysicalInner {
    fn drop(&mut self) {
        let (context, raw) = (self.context.clone(), self.raw);
        deferred::destroy_or_defer(move || {
            // SAFETY: from cuMemCreate or an import, released once; every mapping of it is gone,
            // since each holds `self`.
            context.destroy_even_after_reset(|driver| unsafe { driver.cuMemRelease(raw) })
        });
    }
}

impl PhysicalMemory {
    /// The granularity: sizes, offsets and addresses must be multiples of it.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device does not support virtual memory management.
    pub fn granularity_bytes(context: &Context) -> Result<usize> {
        let driver = context.bind()?;
        let props = properties(&context.device(), true);
        let mut bytes = 0;
        // SAFETY: both outlive the call.
        unsafe {
            call!(
                driver,
                cuMemGetAllocationGranularity(
                    &mut bytes,
                    &props,
                    CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
                ),
                "ask the granularity of {}",
                context.device()
            )?;
        }
        Ok(bytes)
    }

    /// `bytes` of memory, a multiple of the granularity.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Driver`] for a size that is not a multiple.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        Self::create(context, bytes, false)
    }

    /// As [`PhysicalMemory::new`], for [`PhysicalMemory::export`].
    ///
    /// # Errors
    /// As [`PhysicalMemory::new`].
    pub fn shareable(context: &Context, bytes: usize) -> Result<Self> {
        Self::create(context, bytes, true)
    }

    fn create(context: &Context, bytes: usize, shareable: bool) -> Result<Self> {
        deferred::drain();
        let driver = context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let props = properties(&context.device(), shareable);
        let mut raw = 0;
        // SAFETY: both outlive the call.
        let answer = unsafe { driver.cuMemCreate(&mut raw, bytes, &props, 0) };
        if let Ok(CUresult::CUDA_ERROR_OUT_OF_MEMORY) = answer {
            return Err(Error::OutOfMemory(Box::new(OutOfMemory {
                call: "cuMemCreate",
                asked_bytes: bytes as u64,
                free_and_total_bytes: context.memory_info().ok(),
                deferred_free_bytes: context.deferred_free_bytes(),
                device: context.device().to_string(),
            })));
        }
        check(answer, "cuMemCreate", || {
            format!(
                "allocate {} of physical memory on {}",
                ByteSize(bytes as u64),
                context.device()
            )
        })?;
        Ok(Self {
            inner: Arc::new(PhysicalInner {
                context: context.clone(),
                raw,
                bytes,
            }),
        })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// A file descriptor by which other processes can import it.
    ///
    /// # Errors
    /// [`Error::Driver`] unless made by [`PhysicalMemory::shareable`].
    pub fn export(&self) -> Result<OwnedFd> {
        let driver = self.inner.context.bind()?;
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes an int, and `fd`
        // outlives the call.
        unsafe {
            call!(
                driver,
                cuMemExportToShareableHandle(
                    (&raw mut fd).cast::<c_void>(),
                    self.inner.raw,
                    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                    0,
                ),
                "share physical memory"
            )?;
        }
        // SAFETY: the driver opened the descriptor for its caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The memory of `bytes`, a size reported by the other process, that it exported as `fd`. The
    /// memory lives as long as any process holds it.
    ///
    /// # Errors
    /// [`Error::Driver`] if the descriptor is something else.
    pub fn import(context: &Context, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let driver = context.bind()?;
        let mut raw = 0;
        let handle = std::ptr::without_provenance_mut::<c_void>(fd.as_raw_fd() as usize);
        // SAFETY: for this handle type the driver reads the descriptor from
        // the pointer's value and dereferences nothing.
        unsafe {
            call!(
                driver,
                cuMemImportFromShareableHandle(
                    &mut raw,
                    handle,
                    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                ),
                "open shared physical memory"
            )?;
        }
        Ok(Self {
            inner: Arc::new(PhysicalInner {
                context: context.clone(),
                raw,
                bytes,
            }),
        })
    }
}

/// A range of device addresses. Clones are handles to the same range.
#[derive(Clone, Debug)]
pub struct VirtualRange {
    inner: Arc<RangeInner>,
}

#[derive(Debug)]
struct RangeInner {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
    /// Mapped parts: start to end, as offsets.
    mapped: Mutex<BTreeMap<usize, usize>>,
}

impl Drop for RangeInner {
    fn drop(&mut self) {
        let (context, address, bytes) = (self.context.clone(), self.address, self.bytes);
        deferred::destroy_or_defer(move || {
            // SAFETY: from cuMemAddressReserve with this size, freed once, and nothing is mapped:
            // each mapping holds `self`.
            let free = |driver: &Driver| unsafe { driver.cuMemAddressFree(address, bytes) };
            context.destroy_even_after_reset(free)
        });
    }
}

impl VirtualRange {
    /// Reserves `bytes` of addresses, a multiple of the granularity.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn reserve(context: &Context, bytes: usize) -> Result<Self> {
        let driver = context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        unsafe {
            call!(
                driver,
                cuMemAddressReserve(&mut address, bytes, 0, 0, 0),
                "reserve {} of addresses",
                ByteSize(bytes as u64)
            )?;
        }
        let mapped = Mutex::new(BTreeMap::new());
        Ok(Self {
            inner: Arc::new(RangeInner {
                context: context.clone(),
                address,
                bytes,
                mapped,
            }),
        })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Its first address.
    pub fn address(&self) -> DeviceAddr {
        DeviceAddr(self.inner.address)
    }

    /// Maps all of `memory` at `offset`, readable and writable from `devices`. `own` makes the
    /// owner
    /// of the mapping, of these bytes at this address; it unmaps them when dropped, also if the
    /// devices cannot be given access.
    ///
    /// # Errors
    /// [`Error::Value`] if it would reach outside the range or into another
    /// mapping; [`Error::Driver`] if the offset is no multiple of the
    /// granularity.
    pub(crate) fn map_owned<O>(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        devices: &[Device],
        own: impl FnOnce(&Context, CUdeviceptr, usize, VirtualMapping) -> O,
    ) -> Result<O> {
        let bytes = memory.bytes();
        let end = offset
            .checked_add(bytes)
            .filter(|end| *end <= self.inner.bytes)
            .ok_or_else(|| Error::Value {
                operation: "map memory",
                reason: format!(
                    "{bytes} bytes at {offset} reach outside the range of {}",
                    self.inner.bytes
                ),
            })?;
        let context = &self.inner.context;
        context.same_driver("map memory", &memory.inner.context)?;
        context.device().refuse_foreign("map memory", devices)?;
        let driver = context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let address = self.inner.address + offset as u64;
        {
            let mut mapped = lock(&self.inner.mapped);
            if let Some((start, stop)) = mapped
                .range(..end)
                .next_back()
                .filter(|(_, stop)| **stop > offset)
            {
                return Err(Error::Value {
                    operation: "map memory",
                    reason: format!("{offset}..{end} overlaps {start}..{stop}, which is mapped"),
                });
            }
            // SAFETY: the range is reserved and this part free; the memory is all of `memory`,
            // which `mapping` below holds.
            unsafe {
                call!(
                    driver,
                    cuMemMap(address, bytes, 0, memory.inner.raw, 0),
                    "map {} at offset {offset}",
                    ByteSize(bytes as u64)
                )?;
            }
            mapped.insert(offset, end);
        }
        let mapping = VirtualMapping {
            range: self.clone(),
            offset,
            memory: memory.clone(),
        };
        let owner = own(context, address, bytes, mapping);
        let access: Vec<CUmemAccessDesc> = devices.iter().map(Device::full_access).collect();
        // SAFETY: `access` has the length given and outlives the call.
        unsafe {
            call!(
                driver,
                cuMemSetAccess(address, bytes, access.as_ptr(), access.len()),
                "give access to mapped memory"
            )?;
        }
        Ok(owner)
    }
}

/// One mapping, held by its allocation.
#[derive(Debug)]
pub(crate) struct VirtualMapping {
    range: VirtualRange,
    offset: usize,
    memory: PhysicalMemory,
}

impl VirtualMapping {
    /// Unmaps; called until it succeeds, when no work uses the memory.
    pub(crate) fn unmap(&self) -> DestroyOutcome {
        let range = &self.range.inner;
        let (address, bytes) = (range.address + self.offset as u64, self.memory.bytes());
        // SAFETY: mapped by `VirtualRange::map` with this size, and unmapped once.
        let unmap = |driver: &Driver| unsafe { driver.cuMemUnmap(address, bytes) };
        // Without the lock: the part stays in `mapped` until the driver call has succeeded, so no
        // thread maps anything there.
        let answer = range.context.destroy_even_after_reset(unmap);
        if answer == DestroyOutcome::Done {
            lock(&range.mapped).remove(&self.offset);
        }
        answer
    }
}
