//! Stream-ordered memory: `cuMemAllocAsync` and the memory pools it allocates from.
//!
//! A captured allocation belongs to a graph and is left to the driver.

use core::ffi::c_void;

use fercuda_cuda_sys::types::{
    CUdevice, CUdeviceptr, CUmemAllocationHandleType, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::PoolProvider;
use fercuda_ledger::Governed;
use fercuda_pool::PoolPlace;

use super::entry_stub;
use super::linear::{
    AllocationAttempt, allocate_governed, attempted, finish_allocation, free_with_driver, tenant_of,
};
use crate::caller;
use crate::process::{call_driver, catch_panic, govern_call, governor, with_thread_context};
use crate::trace::{self, TracedRequest};

entry_stub!(alloc_entry => alloc);
entry_stub!(alloc_per_thread_entry => alloc_per_thread);
entry_stub!(alloc_from_pool_entry => alloc_from_pool);
entry_stub!(alloc_from_pool_per_thread_entry => alloc_from_pool_per_thread);

/// The memory pool to allocate from.
#[derive(Clone, Copy)]
enum PoolChoice {
    /// The current one of the stream's device.
    Current,
    /// This one.
    Named(CUmemoryPool),
}

/// Allocates in a stream's order; `None` if the driver has to handle the call.
///
/// # Safety
/// As for [`caller::tenant`]; `into` is null or may be written.
#[inline]
unsafe fn allocate_pooled(
    into: *mut CUdeviceptr,
    bytes: usize,
    from: PoolChoice,
    (stream, per_thread): (CUstream, bool),
    frame: *const usize,
    attempt: &AllocationAttempt,
) -> Option<CUresult> {
    if into.is_null() || bytes == 0 {
        return None;
    }
    with_thread_context(|seat| {
        let governor = seat.governor();
        let ordered = seat.ordered(stream, per_thread)?;
        // During a capture that forbids the call the driver decides its result.
        if governor.may_not_wait() {
            return None;
        }
        let of = match from {
            PoolChoice::Current => ordered.pool?,
            PoolChoice::Named(pool) => match governor.served(pool) {
                PoolProvider::Here(device, number) => (governor.device(device)?, number),
                PoolProvider::ByTheDriver => return None,
            },
        };
        // SAFETY: passed on.
        let tenant = unsafe { caller::tenant(governor, frame) };
        let allocated = seat.allocate_ordered(&ordered, tenant, of, bytes as u64);
        let request = TracedRequest {
            device: of.0.ordinal(),
            tenant,
            bytes: bytes as u64,
            place: PoolPlace::Stream(ordered.stream.id),
        };
        // SAFETY: not null; the program's own.
        unsafe { finish_allocation(seat, into, allocated, request, attempt) }
    })
}

/// Allocates with the driver, and charges the allocation unless it is captured.
///
/// # Safety
/// As for [`caller::tenant`]; `call` succeeds only if it has written `into`.
#[cold]
unsafe fn allocate_with_driver(
    into: *mut CUdeviceptr,
    bytes: usize,
    (stream, per_thread): (CUstream, bool),
    frame: *const usize,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let captured = catch_panic(|| {
        let governor = governor()?;
        Some(governor.anything_captures() && governor.is_capturing(stream, per_thread))
    });
    if captured == Some(true) {
        return call_driver(call);
    }
    // SAFETY: passed on.
    let tenant = || unsafe { tenant_of(frame) };
    allocate_governed(Governed::DriverPool, bytes as u64, tenant, call, || {
        // SAFETY: the driver has just written it.
        fercuda_governor::GovernedKey::Address(unsafe { *into })
    })
}

macro_rules! alloc {
    ($function:ident, $per_thread:literal, $real:ident) => {
        unsafe extern "C" fn $function(
            into: *mut CUdeviceptr,
            bytes: usize,
            stream: CUstream,
            _: usize,
            _: usize,
            frame: *const usize,
        ) -> CUresult {
            let stream_handle = (stream, $per_thread);
            let pool = PoolChoice::Current;
            // SAFETY: the entry gave the frame of the call that is under way;
            // the rest is the program's.
            let done = attempted(|attempt| unsafe {
                allocate_pooled(into, bytes, pool, stream_handle, frame, attempt)
            });
            done.unwrap_or_else(|| {
                // SAFETY: as above; the driver writes `into`.
                unsafe {
                    allocate_with_driver(into, bytes, stream_handle, frame, |driver| {
                        driver.$real(into, bytes, stream)
                    })
                }
            })
        }
    };
}

alloc!(alloc, false, cuMemAllocAsync);
alloc!(alloc_per_thread, true, cuMemAllocAsync_ptsz);

macro_rules! alloc_from_pool {
    ($function:ident, $per_thread:literal, $real:ident) => {
        unsafe extern "C" fn $function(
            into: *mut CUdeviceptr,
            bytes: usize,
            pool: CUmemoryPool,
            stream: CUstream,
            _: usize,
            frame: *const usize,
        ) -> CUresult {
            let stream_handle = (stream, $per_thread);
            let pool_choice = PoolChoice::Named(pool);
            // SAFETY: as above.
            let done = attempted(|attempt| unsafe {
                allocate_pooled(into, bytes, pool_choice, stream_handle, frame, attempt)
            });
            done.unwrap_or_else(|| {
                // SAFETY: as above; the driver writes `into`.
                unsafe {
                    allocate_with_driver(into, bytes, stream_handle, frame, |driver| {
                        driver.$real(into, bytes, pool, stream)
                    })
                }
            })
        }
    };
}

alloc_from_pool!(alloc_from_pool, false, cuMemAllocFromPoolAsync);
alloc_from_pool!(
    alloc_from_pool_per_thread,
    true,
    cuMemAllocFromPoolAsync_ptsz
);

/// Frees a block behind the queued work of a stream; `None` if the driver has to handle the
/// call.
#[inline]
fn free_pooled(address: CUdeviceptr, stream: CUstream, per_thread: bool) -> Option<CUresult> {
    with_thread_context(|seat| {
        seat.touch(address);
        let ordered = seat.ordered(stream, per_thread)?;
        // During a capture that forbids the call the driver decides its result.
        if seat.governor().may_not_wait() {
            return None;
        }
        let freed = seat.free_ordered(&ordered, address)?;
        trace::record_free(seat.governor(), &freed);
        Some(CUresult::CUDA_SUCCESS)
    })
}

pub(super) unsafe extern "C" fn free(address: CUdeviceptr, stream: CUstream) -> CUresult {
    free_pooled(address, stream, false).unwrap_or_else(|| {
        // SAFETY: the program's own arguments.
        free_with_driver(address, |driver, address| unsafe {
            driver.cuMemFreeAsync(address, stream)
        })
    })
}

pub(super) unsafe extern "C" fn free_per_thread(
    address: CUdeviceptr,
    stream: CUstream,
) -> CUresult {
    free_pooled(address, stream, true).unwrap_or_else(|| {
        // SAFETY: the program's own arguments.
        free_with_driver(address, |driver, address| unsafe {
            driver.cuMemFreeAsync_ptsz(address, stream)
        })
    })
}

// ---- memory pools --------------------------------------------------------------

pub(super) unsafe extern "C" fn pool_create(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe { driver.cuMemPoolCreate(pool, properties) });
    if result != CUresult::CUDA_SUCCESS {
        return result;
    }
    // SAFETY: the driver has just read one and written the other.
    let (pool, properties) = unsafe { (*pool, &*properties) };
    let exported = properties.handleTypes != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    let location = properties.location;
    let on_device = location.r#type == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let device = match u32::try_from(location.id) {
        Ok(device) if on_device && !exported => Some(device),
        _ => None,
    };
    catch_panic(|| {
        governor()?.record_pool(pool, device);
        Some(())
    });
    result
}

pub(super) unsafe extern "C" fn pool_destroy(pool: CUmemoryPool) -> CUresult {
    // SAFETY: the program's own argument.
    let destroy = |driver: &Driver| unsafe { driver.cuMemPoolDestroy(pool) };
    govern_call(destroy, |governor, destroy| {
        governor.destroy_pool(pool, destroy)
    })
}

pub(super) unsafe extern "C" fn pool_trim_to(pool: CUmemoryPool, keep: usize) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe { driver.cuMemPoolTrimTo(pool, keep) });
    if result == CUresult::CUDA_SUCCESS {
        catch_panic(|| {
            let governor = governor()?;
            let PoolProvider::Here(device, _) = governor.served(pool) else {
                return None;
            };
            governor.device(device)?.trim();
            Some(())
        });
    }
    result
}

pub(super) unsafe extern "C" fn pool_get_attribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result =
        call_driver(|driver| unsafe { driver.cuMemPoolGetAttribute(pool, attribute, value) });
    let figure = match attribute {
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => 0,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => 1,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => 2,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => 3,
        _ => return result,
    };
    if result == CUresult::CUDA_SUCCESS {
        let figures = catch_panic(|| {
            publish_level();
            governor()?.pool_figures(pool)
        });
        if let Some(figures) = figures {
            // SAFETY: the driver has just written a figure of this size there.
            unsafe { *value.cast::<u64>() += figures[figure] };
        }
    }
    result
}

/// Publishes how much stream-ordered memory this thread has in use.
fn publish_level() {
    with_thread_context(|seat| {
        seat.publish_level();
        Some(())
    });
}

pub(super) unsafe extern "C" fn pool_set_attribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result =
        call_driver(|driver| unsafe { driver.cuMemPoolSetAttribute(pool, attribute, value) });
    let used = match attribute {
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => true,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => false,
        _ => return result,
    };
    if result == CUresult::CUDA_SUCCESS {
        catch_panic(|| {
            publish_level();
            governor()?.reset_pool_marks(pool, used);
            Some(())
        });
    }
    result
}

pub(super) unsafe extern "C" fn device_set_pool(device: CUdevice, pool: CUmemoryPool) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe { driver.cuDeviceSetMemPool(device, pool) });
    if result == CUresult::CUDA_SUCCESS {
        catch_panic(|| {
            governor()?.set_current_pool(device, pool);
            Some(())
        });
    }
    result
}
