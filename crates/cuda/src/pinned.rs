//! Page-locked host memory, which devices copy from and to at full bandwidth.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use fercuda_cuda_sys::types::CU_MEMHOSTALLOC_PORTABLE;

use crate::address::DeviceAddr;
use crate::buffer::DeviceBuffer;
use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::deferred::{self, NoResidentKernels};
use crate::error::{ByteSize, Error, Result, call};

/// Page-locked host memory, all bytes zero at first; it dereferences to a slice.
///
/// No queued work of this crate refers to it while it can be accessed: a copy that the host does
/// not wait for owns or borrows it until it is done.
pub struct PinnedBuffer<T> {
    context: Context,
    values: NonNull<T>,
    len: usize,
    /// The memory of the values, possibly shared with other buffers; `None` if they need none.
    memory: Option<Arc<PinnedMemory>>,
    owns: PhantomData<T>,
}

/// Memory allocated by the driver, freed on drop.
struct PinnedMemory {
    context: Context,
    address: usize,
    /// Its device address in that context, once that was queried.
    for_kernels: OnceLock<u64>,
}

// SAFETY: its part of the memory is exclusively its own, and any thread may use and free it.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: a shared reference to it gives shared references to the values only.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// Memory for `len` values.
    ///
    /// # Errors
    /// [`Error::Driver`] if host memory is exhausted.
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        let too_large = || Error::Value {
            operation: "allocate pinned memory",
            reason: format!("{len} values of {} bytes are too many", size_of::<T>()),
        };
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(too_large)?;
        if bytes == 0 {
            let values = NonNull::dangling();
            return Ok(Self {
                context: context.clone(),
                values,
                len,
                memory: None,
                owns: PhantomData,
            });
        }
        deferred::drain();
        let driver = context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: `address` outlives the call.
        unsafe {
            call!(
                driver,
                cuMemHostAlloc(&mut address, bytes, CU_MEMHOSTALLOC_PORTABLE),
                "pin {} of host memory",
                ByteSize(bytes as u64)
            )?;
        }
        let values = NonNull::new(address.cast::<T>())
            .filter(|values| values.as_ptr().addr().is_multiple_of(align_of::<T>()))
            .ok_or_else(|| Error::Value {
                operation: "allocate pinned memory",
                reason: format!(
                    "the driver returned {address:?}, which is not aligned for these values"
                ),
            })?;
        // SAFETY: the driver allocated `bytes` for this call alone.
        unsafe { values.cast::<u8>().write_bytes(0, bytes) };
        let memory = PinnedMemory {
            context: context.clone(),
            address: values.as_ptr().expose_provenance(),
            for_kernels: OnceLock::new(),
        };
        Ok(Self {
            context: context.clone(),
            values,
            len,
            memory: Some(Arc::new(memory)),
            owns: PhantomData,
        })
    }

    /// `count` buffers of `len` values each, in memory that the driver allocates at once, rounded
    /// to its own granularity, and frees when the last of them is dropped.
    ///
    /// # Errors
    /// As [`PinnedBuffer::new`].
    pub fn several(context: &Context, count: usize, len: usize) -> Result<Vec<Self>> {
        let all = Self::new(context, len.saturating_mul(count))?;
        let part = |at: usize| Self {
            context: context.clone(),
            // SAFETY: `all` has `count` times `len` values. No two parts overlap, and `all` itself
            // is not accessed.
            values: unsafe { all.values.add(at * len) },
            len,
            memory: all.memory.clone(),
            owns: PhantomData,
        };
        Ok((0..count).map(part).collect())
    }

    /// A copy of `values`.
    ///
    /// # Errors
    /// As [`PinnedBuffer::new`].
    pub fn from_slice(context: &Context, values: &[T]) -> Result<Self> {
        let mut buffer = Self::new(context, values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }

    /// The address at which kernels can read and write it. They are launched by `unsafe` code,
    /// which ensures that the host does not access it meanwhile.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device cannot access host memory.
    pub fn device_address(&self) -> Result<DeviceAddr> {
        self.device_address_in(&self.context)
    }

    /// As [`PinnedBuffer::device_address`], for kernels and copies in another context: the memory
    /// is page-locked for all of them.
    ///
    /// # Errors
    /// As there.
    pub fn device_address_in(&self, context: &Context) -> Result<DeviceAddr> {
        let memory = match &self.memory {
            Some(memory) if self.len * size_of::<T>() != 0 => memory,
            _ => return Ok(DeviceAddr(0)),
        };
        let within = (self.values.as_ptr().addr() - memory.address) as u64;
        let is_own = *context == memory.context;
        if let Some(known) = memory.for_kernels.get().filter(|_| is_own) {
            return Ok(DeviceAddr(known + within));
        }
        let driver = context.bind()?;
        let mut address = 0;
        let first = std::ptr::with_exposed_provenance_mut::<c_void>(memory.address);
        // SAFETY: `address` outlives the call; the memory was allocated by the driver.
        unsafe {
            call!(
                driver,
                cuMemHostGetDevicePointer_v2(&mut address, first, 0),
                "ask the device address of pinned memory"
            )?;
        }
        if is_own {
            memory.for_kernels.get_or_init(|| address);
        }
        Ok(DeviceAddr(address + within))
    }
}

impl<T: Pod + Send + Sync> PinnedBuffer<T> {
    /// The same memory as a device buffer, accessed by copies and kernels alone; the host no longer
    /// accesses it directly.
    ///
    /// # Errors
    /// As [`PinnedBuffer::device_address`].
    pub fn into_device(self) -> Result<DeviceBuffer<T>> {
        let (context, address, len) = (self.context.clone(), self.device_address()?, self.len);
        if address.0 == 0 {
            return DeviceBuffer::alloc(&context, len);
        }
        // SAFETY: pinned memory at its device address, which nothing else refers to any more; it
        // stays until `self` is dropped.
        unsafe { DeviceBuffer::foreign(&context, address, len, move || drop(self)) }
    }
}

impl<T> PinnedBuffer<T> {
    /// The address of the first value, without a reference to any.
    pub(crate) fn address(&self) -> *mut T {
        self.values.as_ptr()
    }

    /// How many values there are, without a reference to any.
    pub(crate) fn capacity(&self) -> usize {
        self.len
    }
}

impl<T> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `values` is memory for `len` values, aligned and initialised
        // in `new`, owned by `self`.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr(), self.len) }
    }
}

/// Page-locked words that host and kernels access concurrently, all zero at first. To the host they
/// are atomic; a kernel that runs at the same time uses strong operations of system scope, such as
/// `ld.acquire.sys`.
#[derive(Debug)]
pub struct SharedWords(PinnedBuffer<u32>);

impl SharedWords {
    /// `len` words.
    ///
    /// # Errors
    /// As [`PinnedBuffer::new`].
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        PinnedBuffer::new(context, len).map(Self)
    }

    /// The words as the host accesses them.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: memory for as many words, initialised and aligned, lives as long as `self`, which
        // gives out no other reference to it; an atomic word has the layout of a word.
        unsafe { std::slice::from_raw_parts(self.0.address().cast(), self.0.capacity()) }
    }

    /// The address at which kernels access them. The caller that launches such a kernel keeps the
    /// words until it is done.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device cannot access host memory.
    pub fn device_address(&self) -> Result<DeviceAddr> {
        self.0.device_address()
    }
}

impl<T: fmt::Debug> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let (context, address) = (self.context.clone(), self.address);
        deferred::destroy_or_defer(move || {
            let _none_resident = match NoResidentKernels::acquire() {
                Ok(none_resident) => none_resident,
                Err(retry) => return retry,
            };
            let address = std::ptr::with_exposed_provenance_mut::<c_void>(address);
            // SAFETY: from cuMemHostAlloc and freed once. Queued work that uses it owns it, so
            // there is none.
            context.destroy(|driver| unsafe { driver.cuMemFreeHost(address) })
        });
    }
}
