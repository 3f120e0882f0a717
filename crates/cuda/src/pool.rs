//! Pools of stream-ordered memory.

use std::sync::Arc;

use fercuda_cuda_sys::types::{
    CUmemAccessDesc, CUmemAllocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, c_void,
};

use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::deferred;
use crate::device::Device;
use crate::error::{Result, call};

/// A pool of device memory. Clones are handles to the same pool; buffers allocated from it hold it.
#[derive(Clone, Debug)]
pub struct MemoryPool {
    inner: Arc<PoolInner>,
}

#[derive(Debug)]
struct PoolInner {
    context: Context,
    raw: CUmemoryPool,
    /// Whether this destroys it; a device's own pool is not destroyed.
    owned: bool,
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let (context, raw) = (self.context.clone(), self.raw);
        deferred::destroy_or_defer(move || {
            // SAFETY: from cuMemPoolCreate, destroyed once. The driver itself waits for frees that
            // are pending in a stream.
            context.destroy(|driver| unsafe { driver.cuMemPoolDestroy(raw) })
        });
    }
}

impl MemoryPool {
    /// The pool from which [`DeviceBuffer::alloc_ordered`](crate::DeviceBuffer::alloc_ordered)
    /// allocates.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the device has no pools.
    pub fn of_device(context: &Context) -> Result<Self> {
        let driver = context.bind()?;
        let mut raw = CUmemoryPool::NULL;
        // SAFETY: `raw` outlives the call.
        unsafe {
            call!(
                driver,
                cuDeviceGetDefaultMemPool(&mut raw, context.device().raw()),
                "ask for the pool of {}",
                context.device()
            )?;
        }
        Ok(Self {
            inner: Arc::new(PoolInner {
                context: context.clone(),
                raw,
                owned: false,
            }),
        })
    }

    /// A new pool; `max_bytes` of zero leaves its maximum size to the device.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the device has no pools.
    pub fn new(context: &Context, max_bytes: usize) -> Result<Self> {
        let driver = context.bind()?;
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: context.device().location(),
            maxSize: max_bytes,
            ..Default::default()
        };
        let mut raw = CUmemoryPool::NULL;
        // SAFETY: both outlive the call.
        unsafe {
            call!(
                driver,
                cuMemPoolCreate(&mut raw, &props),
                "make a pool on {}",
                context.device()
            )?;
        }
        Ok(Self {
            inner: Arc::new(PoolInner {
                context: context.clone(),
                raw,
                owned: true,
            }),
        })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUmemoryPool {
        self.inner.raw
    }

    /// The bytes that the pool retains when streams synchronise; memory above that is released to
    /// the device.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        let mut bytes = bytes;
        let driver = self.inner.context.bind()?;
        // SAFETY: this attribute is a u64, and `bytes` outlives the call.
        unsafe {
            call!(
                driver,
                cuMemPoolSetAttribute(
                    self.raw(),
                    CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    (&raw mut bytes).cast::<c_void>(),
                ),
                "let a pool keep {bytes} bytes"
            )
        }
    }

    /// Lets kernels and copies of other devices access the pool's memory, existing and future.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if one cannot access this device;
    /// [`Error::Value`](crate::Error::Value) for a device of another driver.
    pub fn allow(&self, devices: &[Device]) -> Result<()> {
        let context = &self.inner.context;
        context.device().refuse_foreign("share a pool", devices)?;
        let driver = context.bind()?;
        let access: Vec<CUmemAccessDesc> = devices.iter().map(Device::full_access).collect();
        // SAFETY: the pool is alive; `access` has the length given.
        unsafe {
            call!(
                driver,
                cuMemPoolSetAccess(self.raw(), access.as_ptr(), access.len()),
                "let other devices access a pool of {}",
                context.device()
            )
        }
    }

    /// Bytes allocated to buffers.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn used_bytes(&self) -> Result<u64> {
        self.read_attribute(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Bytes that the pool has reserved from the device, used or not.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.read_attribute(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Releases unused memory to the device until `keep_bytes` are left.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn trim(&self, keep_bytes: usize) -> Result<()> {
        let driver = self.inner.context.bind()?;
        // SAFETY: the pool is alive.
        unsafe {
            call!(
                driver,
                cuMemPoolTrimTo(self.raw(), keep_bytes),
                "trim a pool to {keep_bytes} bytes"
            )
        }
    }

    fn read_attribute(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        let driver = self.inner.context.bind()?;
        // NVIDIA's driver counts a query of a pool among the calls that a capture forbids.
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let mut bytes = 0u64;
        // SAFETY: the attributes asked for are u64, and `bytes` outlives the call.
        unsafe {
            call!(
                driver,
                cuMemPoolGetAttribute(self.raw(), attribute, (&raw mut bytes).cast::<c_void>()),
                "ask {attribute:?} of a pool"
            )?;
        }
        Ok(bytes)
    }
}
