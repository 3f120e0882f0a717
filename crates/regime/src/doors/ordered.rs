//! Memory in the order of streams: `cuMemAllocAsync`, and the pools that it
//! comes from.
//!
//! What is captured belongs to a graph and is the driver's to give.

use core::ffi::c_void;

use fercuda_cuda_sys::types::{
    CUdevice, CUdeviceptr, CUmemAllocationHandleType, CUmemLocationType, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::PoolProvider;
use fercuda_ledger::Governed;
use fercuda_pool::PoolPlace;

use super::asked;
use super::linear::{give, governed, pass_free, tenant_of};
use crate::caller;
use crate::process::{around, ask, governor, guarded, seated};
use crate::trace;

asked!(alloc_entry => alloc);
asked!(alloc_per_thread_entry => alloc_per_thread);
asked!(alloc_from_pool_entry => alloc_from_pool);
asked!(alloc_from_pool_per_thread_entry => alloc_from_pool_per_thread);

/// Which pool an allocation is to come from.
#[derive(Clone, Copy)]
enum From {
    /// The current one of the stream's device.
    Current,
    /// This one.
    Pool(CUmemoryPool),
}

/// Allocates in a stream's order; none if the driver is to answer.
///
/// # Safety
/// As for [`caller::tenant`]; `into` is null or may be written.
#[inline]
unsafe fn pooled(
    into: *mut CUdeviceptr,
    bytes: usize,
    from: From,
    (stream, per_thread): (CUstream, bool),
    frame: *const usize,
) -> Option<CUresult> {
    if into.is_null() || bytes == 0 {
        return None;
    }
    seated(|seat| {
        let governor = seat.governor();
        let ordered = seat.ordered(stream, per_thread)?;
        let of = match from {
            From::Current => ordered.pool?,
            From::Pool(pool) => match governor.served(pool) {
                PoolProvider::Here(device, number) => (governor.device(device)?, number),
                PoolProvider::ByTheDriver => return None,
            },
        };
        // SAFETY: passed on.
        let tenant = unsafe { caller::tenant(governor, frame) };
        let got = seat.allocate_ordered(&ordered, tenant, of, bytes as u64);
        let place = PoolPlace::Stream(ordered.stream.id);
        // SAFETY: not null; the program's own.
        unsafe { give(seat, of.0.ordinal(), into, got, bytes, place) }
    })
}

/// Lets the driver allocate, and charges what a pool of its own gives.
///
/// # Safety
/// As for [`caller::tenant`]; `call` succeeds only if it has written `into`.
#[cold]
unsafe fn passed(
    into: *mut CUdeviceptr,
    bytes: usize,
    (stream, per_thread): (CUstream, bool),
    frame: *const usize,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let captured = guarded(|| {
        let governor = governor()?;
        Some(governor.anything_captures() && governor.is_capturing(stream, per_thread))
    });
    if captured == Some(true) {
        return ask(call);
    }
    // SAFETY: passed on.
    let tenant = || unsafe { tenant_of(frame) };
    governed(Governed::DriverPool, bytes as u64, tenant, call, || {
        // SAFETY: the driver has just written it.
        fercuda_governor::GovernedKey::Address(unsafe { *into })
    })
}

macro_rules! alloc {
    ($door:ident, $per_thread:literal, $real:ident) => {
        unsafe extern "C" fn $door(
            into: *mut CUdeviceptr,
            bytes: usize,
            stream: CUstream,
            _: usize,
            _: usize,
            frame: *const usize,
        ) -> CUresult {
            let named = (stream, $per_thread);
            // SAFETY: the entry gave the frame of the call that is under way;
            // the rest is the program's.
            let done = unsafe { pooled(into, bytes, From::Current, named, frame) };
            done.unwrap_or_else(|| {
                // SAFETY: as above; the driver writes `into`.
                unsafe {
                    passed(into, bytes, named, frame, |driver| {
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
    ($door:ident, $per_thread:literal, $real:ident) => {
        unsafe extern "C" fn $door(
            into: *mut CUdeviceptr,
            bytes: usize,
            pool: CUmemoryPool,
            stream: CUstream,
            _: usize,
            frame: *const usize,
        ) -> CUresult {
            let named = (stream, $per_thread);
            // SAFETY: as above.
            let done = unsafe { pooled(into, bytes, From::Pool(pool), named, frame) };
            done.unwrap_or_else(|| {
                // SAFETY: as above; the driver writes `into`.
                unsafe {
                    passed(into, bytes, named, frame, |driver| {
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

/// Frees a block behind the work of a stream; none if the driver is to answer.
#[inline]
fn freed(address: CUdeviceptr, stream: CUstream, per_thread: bool) -> Option<CUresult> {
    seated(|seat| {
        seat.touch(address);
        let ordered = seat.ordered(stream, per_thread)?;
        let (freed, place) = seat.free_ordered(&ordered, address)?;
        trace::freed(address, freed.requested_bytes, place);
        Some(CUresult::CUDA_SUCCESS)
    })
}

pub(super) unsafe extern "C" fn free(address: CUdeviceptr, stream: CUstream) -> CUresult {
    freed(address, stream, false).unwrap_or_else(|| {
        // SAFETY: the program's own arguments.
        pass_free(address, |driver, address| unsafe {
            driver.cuMemFreeAsync(address, stream)
        })
    })
}

pub(super) unsafe extern "C" fn free_per_thread(
    address: CUdeviceptr,
    stream: CUstream,
) -> CUresult {
    freed(address, stream, true).unwrap_or_else(|| {
        // SAFETY: the program's own arguments.
        pass_free(address, |driver, address| unsafe {
            driver.cuMemFreeAsync_ptsz(address, stream)
        })
    })
}

// ---- the driver's pools, as programs see them ----------------------------------

pub(super) unsafe extern "C" fn pool_create(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuMemPoolCreate(pool, properties) });
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
    guarded(|| {
        governor()?.record_pool(pool, device);
        Some(())
    });
    result
}

pub(super) unsafe extern "C" fn pool_destroy(pool: CUmemoryPool) -> CUresult {
    // SAFETY: the program's own argument.
    let destroy = |driver: &Driver| unsafe { driver.cuMemPoolDestroy(pool) };
    around(destroy, |governor, destroy| {
        governor.destroy_pool(pool, destroy)
    })
}

pub(super) unsafe extern "C" fn pool_trim_to(pool: CUmemoryPool, keep: usize) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuMemPoolTrimTo(pool, keep) });
    if result == CUresult::CUDA_SUCCESS {
        guarded(|| {
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
    let result = ask(|driver| unsafe { driver.cuMemPoolGetAttribute(pool, attribute, value) });
    let figure = match attribute {
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => 0,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => 1,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => 2,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => 3,
        _ => return result,
    };
    if result == CUresult::CUDA_SUCCESS {
        let figures = guarded(|| {
            tell_level();
            governor()?.pool_figures(pool)
        });
        if let Some(figures) = figures {
            // SAFETY: the driver has just written a figure of this size there.
            unsafe { *value.cast::<u64>() += figures[figure] };
        }
    }
    result
}

/// Tells what this thread has in use in streams' order.
fn tell_level() {
    seated(|seat| {
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
    let result = ask(|driver| unsafe { driver.cuMemPoolSetAttribute(pool, attribute, value) });
    let used = match attribute {
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => true,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => false,
        _ => return result,
    };
    if result == CUresult::CUDA_SUCCESS {
        guarded(|| {
            tell_level();
            governor()?.reset_pool_marks(pool, used);
            Some(())
        });
    }
    result
}

pub(super) unsafe extern "C" fn device_set_pool(device: CUdevice, pool: CUmemoryPool) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuDeviceSetMemPool(device, pool) });
    if result == CUresult::CUDA_SUCCESS {
        guarded(|| {
            governor()?.set_current_pool(device, pool);
            Some(())
        });
    }
    result
}
