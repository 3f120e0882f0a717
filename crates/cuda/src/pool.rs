//! Pools from which stream-ordered memory is taken.

use std::sync::Arc;

use fercuda_cuda_sys::types::{
    CUmemAccessDesc, CUmemAllocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, c_void,
};

use crate::callback;
use crate::context::{Context, Relaxed};
use crate::device::Device;
use crate::error::{Result, call};

/// A pool of device memory. Cloning gives another name for the same pool;
/// buffers taken from it hold it.
#[derive(Clone, Debug)]
pub struct MemoryPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    raw: CUmemoryPool,
    /// Whether it is ours to destroy; a device's own pool is not.
    owned: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let (context, raw) = (self.context.clone(), self.raw);
        callback::outside(move || {
            // SAFETY: from cuMemPoolCreate, destroyed once. What is still
            // being freed in some stream is the driver's to wait for.
            context.destroy(|driver| unsafe { driver.cuMemPoolDestroy(raw) })
        });
    }
}

impl MemoryPool {
    /// The pool [`DeviceBuffer::alloc_ordered`](crate::DeviceBuffer::alloc_ordered)
    /// takes from.
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
            inner: Arc::new(Inner {
                context: context.clone(),
                raw,
                owned: false,
            }),
        })
    }

    /// A pool of its own; `max_bytes` of zero leaves its size to the device.
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
            inner: Arc::new(Inner {
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

    /// Bytes the pool holds on to when streams synchronise; more is given back
    /// to the device.
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

    /// Lets kernels and copies of other devices reach the pool's memory, now
    /// and later.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if one cannot reach this
    /// device; [`Error::Value`](crate::Error::Value) for a device of another
    /// driver.
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
                "let other devices reach a pool of {}",
                context.device()
            )
        }
    }

    /// Bytes held by buffers.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn used_bytes(&self) -> Result<u64> {
        self.figure(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Bytes the pool has taken from the device, used or not.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.figure(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Gives unused memory back to the device until `keep_bytes` are left.
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

    fn figure(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        let driver = self.inner.context.bind()?;
        // NVIDIA's driver counts a question about a pool among what a capture may not see.
        let _relaxed = Relaxed::enter(driver);
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
