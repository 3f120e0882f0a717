//! Physical memory that programs allocate and map themselves (`cuMemCreate`).
//!
//! Governed and not pooled, since its handles are the program's to share and to map
//! anywhere.

use core::ffi::{c_ulonglong, c_void};

use fercuda_cuda_sys::types::{
    CUdeviceptr, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocationType, CUmulticastObjectProp, CUresult,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{GovernedMemory, GovernedPiece, Governor, PendingRelease, PhysicalHold};
use fercuda_ledger::Governed;

use super::entry_stub;
use super::linear::{admit_and_call, tenant_of};
use crate::process::{call_driver, catch_panic, govern_call, governor};

entry_stub!(create_entry => create);
entry_stub!(multicast_entry => multicast);

unsafe extern "C" fn create(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let make = |driver: &Driver| unsafe { driver.cuMemCreate(handle, bytes, properties, flags) };
    if handle.is_null() || properties.is_null() {
        return call_driver(make);
    }
    let mut granule = 0;
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: `granule` outlives the call; the program promises properties there.
    let known = call_driver(|driver| unsafe {
        driver.cuMemGetAllocationGranularity(&mut granule, properties, least)
    });
    // The driver reports invalid requests; they are not refused for lack of memory.
    if known != CUresult::CUDA_SUCCESS || granule == 0 || !bytes.is_multiple_of(granule) {
        return call_driver(make);
    }
    // SAFETY: not null; the program promises properties there.
    let location = unsafe { (*properties).location };
    // Host memory has no device; some libraries allocate it to probe for support.
    let device = match location.r#type {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => u32::try_from(location.id).ok(),
        _ => None,
    };
    let piece = GovernedPiece {
        device: device.unwrap_or(0),
        // SAFETY: the call is under way.
        tenant: unsafe { tenant_of(frame) },
        kind: device.map_or(Governed::Host, |_| Governed::Vmm),
        bytes: bytes as u64,
        context: None,
    };
    admit_and_call(&piece, make, |governor| {
        // SAFETY: the driver has just written it.
        governor.charge_physical(unsafe { *handle }, piece);
    })
}

/// A multicast object is an address space over memory that is charged already.
unsafe extern "C" fn multicast(
    handle: *mut CUmemGenericAllocationHandle,
    properties: *const CUmulticastObjectProp,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe { driver.cuMulticastCreate(handle, properties) });
    if result == CUresult::CUDA_SUCCESS {
        // SAFETY: the call is under way; the driver has just read one and
        // written the other.
        catch_panic(|| unsafe {
            let piece = GovernedPiece {
                device: 0,
                tenant: tenant_of(frame),
                kind: Governed::Multicast,
                bytes: (*properties).size as u64,
                context: None,
            };
            governor()?.charge_physical(*handle, piece);
            Some(())
        });
    }
    result
}

/// Removes what `take` selects from the books, then calls the driver to release it. In this
/// order, since once the driver has released it another thread may be given the same handle
/// or address.
fn release_physical(
    take: impl FnOnce(&GovernedMemory) -> PendingRelease,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    govern_call(call, |governor, call| {
        let taken = take(governor.governed());
        let result = call();
        if result == CUresult::CUDA_SUCCESS {
            taken.ended().for_each(|piece| governor.ended(piece));
        } else {
            governor.governed().put_back(taken);
        }
        result
    })
}

pub(super) unsafe extern "C" fn release(handle: CUmemGenericAllocationHandle) -> CUresult {
    release_physical(
        |governed| governed.released(handle),
        // SAFETY: the program's own argument.
        |driver| unsafe { driver.cuMemRelease(handle) },
    )
}

/// Calls the driver to refer to memory once more, by a mapping or a handle. The memory is held
/// during the call: `hold` finds it, `record` is called if the call succeeded.
fn refer_to_physical(
    hold: impl FnOnce(&GovernedMemory) -> Option<PhysicalHold>,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
    record: impl FnOnce(&Governor, PhysicalHold),
) -> CUresult {
    govern_call(call, |governor, call| {
        let held = hold(governor.governed());
        let result = call();
        match held {
            Some(held) if result == CUresult::CUDA_SUCCESS => record(governor, held),
            Some(held) => {
                let ended = governor.governed().release_hold(held);
                ended.iter().for_each(|piece| governor.ended(piece));
            }
            None => {}
        }
        result
    })
}

pub(super) unsafe extern "C" fn map(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    refer_to_physical(
        |governed| governed.hold_handle(handle),
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemMap(address, bytes, offset, handle, flags) },
        |governor, held| governor.governed().mapped(held, address, bytes as u64),
    )
}

pub(super) unsafe extern "C" fn unmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    release_physical(
        |governed| governed.unmapped(address, bytes as u64),
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemUnmap(address, bytes) },
    )
}

pub(super) unsafe extern "C" fn retain(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    let result = refer_to_physical(
        |governed| governed.hold_address(address as u64),
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemRetainAllocationHandle(handle, address) },
        |governor, held| {
            // SAFETY: the driver has just written it.
            let gone = governor.governed().retained(held, unsafe { *handle });
            gone.iter().for_each(|piece| governor.ended(piece));
        },
    );
    if result == CUresult::CUDA_SUCCESS {
        catch_panic(|| {
            // Pool memory for which the program holds a handle must not be remapped.
            let (device, live) = governor()?.find(address as u64)?;
            device.pin(live.span.address);
            Some(())
        });
    }
    result
}
