//! Physical memory that programs make and map themselves: governed, since its
//! handles are theirs to share and to map where they like.

use core::ffi::{c_ulonglong, c_void};

use fercuda_cuda_sys::types::{
    CUdeviceptr, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocationType, CUmulticastObjectProp, CUresult,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{GovernedMemory, GovernedPiece, PendingRelease};
use fercuda_ledger::Governed;

use super::asked;
use super::linear::{admitted, tenant_of};
use crate::process::{around, ask, governor, guarded};

asked!(create_entry => create);
asked!(multicast_entry => multicast);

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
        return ask(make);
    }
    let mut granule = 0;
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: `granule` outlives the call; the program promises properties there.
    let known = ask(|driver| unsafe {
        driver.cuMemGetAllocationGranularity(&mut granule, properties, least)
    });
    // What cannot be made at all is not refused for want of room.
    if known != CUresult::CUDA_SUCCESS || granule == 0 || !bytes.is_multiple_of(granule) {
        return ask(make);
    }
    // SAFETY: not null; the program promises properties there.
    let location = unsafe { (*properties).location };
    // Memory of the host, which some libraries ask for to see whether they may.
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
    admitted(&piece, make, |governor| {
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
    let result = ask(|driver| unsafe { driver.cuMulticastCreate(handle, properties) });
    if result == CUresult::CUDA_SUCCESS {
        // SAFETY: the call is under way; the driver has just read one and
        // written the other.
        guarded(|| unsafe {
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

/// Lets the driver take back what `take` takes out. That is first: once the
/// driver has it, another thread may be given the same handle or address.
fn taken(
    take: impl FnOnce(&GovernedMemory) -> PendingRelease,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    around(call, |governor, call| {
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
    taken(
        |governed| governed.released(handle),
        // SAFETY: the program's own argument.
        |driver| unsafe { driver.cuMemRelease(handle) },
    )
}

pub(super) unsafe extern "C" fn map(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuMemMap(address, bytes, offset, handle, flags) });
    if result == CUresult::CUDA_SUCCESS {
        guarded(|| {
            let governed = governor()?.governed();
            governed.mapped(address, bytes as u64, handle);
            Some(())
        });
    }
    result
}

pub(super) unsafe extern "C" fn unmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    taken(
        |governed| governed.unmapped(address, bytes as u64),
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemUnmap(address, bytes) },
    )
}

pub(super) unsafe extern "C" fn retain(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuMemRetainAllocationHandle(handle, address) });
    if result == CUresult::CUDA_SUCCESS {
        guarded(|| {
            let governor = governor()?;
            // SAFETY: the driver has just written it.
            governor.governed().retained(unsafe { *handle });
            // Memory of the pool that the program holds by its own handle stays
            // where it is.
            let (device, live) = governor.find(address as u64)?;
            device.pin(live.span.address);
            Some(())
        });
    }
    result
}
