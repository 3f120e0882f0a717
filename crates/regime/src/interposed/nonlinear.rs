//! Memory that is not linear device memory: arrays, host memory, external memory.

use core::ffi::{c_uint, c_void};

use fercuda_cuda_sys::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUarray,
    CUarray_format, CUexternalMemory, CUmipmappedArray, CUresult,
};
use fercuda_governor::GovernedKey;
use fercuda_ledger::Governed;

use super::entry_stub;
use super::linear::{allocate_governed, release_governed, tenant_of};

entry_stub!(array_entry => array);
entry_stub!(array_3d_entry => array_3d);
entry_stub!(mipmapped_entry => mipmapped);
entry_stub!(alloc_host_entry => alloc_host);
entry_stub!(host_alloc_entry => host_alloc);
entry_stub!(host_register_entry => host_register);
entry_stub!(import_external_entry => import_external);

/// Flags of arrays (`CUDA_ARRAY3D_*`).
const LAYERED: c_uint = 1;
const CUBEMAP: c_uint = 4;
const SPARSE: c_uint = 0x40;
const DEFERRED: c_uint = 0x80;
/// No array has more levels.
const MOST_LEVELS: c_uint = 32;

/// The size of an element: the channel's size times the channels; for formats without
/// channels, that of a whole element (of compressed ones, an upper bound).
fn element_bytes(format: CUarray_format, channels: c_uint) -> u64 {
    let channel = match format {
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8 | CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => 1,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_HALF => 2,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_FLOAT => 4,
        _ => 8,
    };
    channel * u64::from(channels.max(1))
}

/// The size of an array; 0 of one to which the program maps memory itself.
fn array_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    if descriptor.Flags & (SPARSE | DEFERRED) != 0 {
        return 0;
    }
    let sizes = [descriptor.Width, descriptor.Height, descriptor.Depth];
    let elements = sizes.iter().map(|size| (*size as u64).max(1));
    let elements = elements.fold(1u64, u64::saturating_mul);
    elements.saturating_mul(element_bytes(descriptor.Format, descriptor.NumChannels))
}

unsafe extern "C" fn array(
    into: *mut CUarray,
    descriptor: *const CUDA_ARRAY_DESCRIPTOR,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: null or the program's descriptor.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |flat| {
        array_bytes(&CUDA_ARRAY3D_DESCRIPTOR {
            Width: flat.Width,
            Height: flat.Height,
            Depth: 0,
            Format: flat.Format,
            NumChannels: flat.NumChannels,
            Flags: 0,
        })
    });
    allocate_governed(
        Governed::Array,
        bytes,
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuArrayCreate_v2(into, descriptor) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Array(unsafe { *into }.0 as usize),
    )
}

unsafe extern "C" fn array_3d(
    into: *mut CUarray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: null or the program's descriptor.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, array_bytes);
    allocate_governed(
        Governed::Array,
        bytes,
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuArray3DCreate_v2(into, descriptor) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Array(unsafe { *into }.0 as usize),
    )
}

unsafe extern "C" fn mipmapped(
    into: *mut CUmipmappedArray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: null or the program's descriptor.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |descriptor| {
        let mut level = *descriptor;
        let mut bytes = 0u64;
        for _ in 0..levels.clamp(1, MOST_LEVELS) {
            bytes = bytes.saturating_add(array_bytes(&level));
            level.Width = (level.Width / 2).max(1);
            level.Height /= 2;
            // The depth of others is a number of layers.
            if level.Flags & (LAYERED | CUBEMAP) == 0 {
                level.Depth /= 2;
            }
        }
        bytes
    });
    allocate_governed(
        Governed::Array,
        bytes,
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMipmappedArrayCreate(into, descriptor, levels) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Array(unsafe { *into }.0 as usize),
    )
}

pub(super) unsafe extern "C" fn array_destroy(array: CUarray) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::Array(array.0 as usize), |driver| unsafe {
        driver.cuArrayDestroy(array)
    })
}

pub(super) unsafe extern "C" fn mipmapped_destroy(array: CUmipmappedArray) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::Array(array.0 as usize), |driver| unsafe {
        driver.cuMipmappedArrayDestroy(array)
    })
}

unsafe extern "C" fn alloc_host(
    into: *mut *mut c_void,
    bytes: usize,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    allocate_governed(
        Governed::Host,
        bytes as u64,
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemAllocHost_v2(into, bytes) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Host(unsafe { *into } as u64),
    )
}

unsafe extern "C" fn host_alloc(
    into: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    allocate_governed(
        Governed::Host,
        bytes as u64,
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemHostAlloc(into, bytes, flags) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Host(unsafe { *into } as u64),
    )
}

pub(super) unsafe extern "C" fn free_host(address: *mut c_void) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::Host(address as u64), |driver| unsafe {
        driver.cuMemFreeHost(address)
    })
}

unsafe extern "C" fn host_register(
    address: *mut c_void,
    bytes: usize,
    flags: c_uint,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    allocate_governed(
        Governed::Host,
        bytes as u64,
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemHostRegister_v2(address, bytes, flags) },
        || GovernedKey::Host(address as u64),
    )
}

pub(super) unsafe extern "C" fn host_unregister(address: *mut c_void) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::Host(address as u64), |driver| unsafe {
        driver.cuMemHostUnregister(address)
    })
}

unsafe extern "C" fn import_external(
    into: *mut CUexternalMemory,
    descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: null or the program's descriptor.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |descriptor| descriptor.size);
    allocate_governed(
        Governed::External,
        bytes,
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuImportExternalMemory(into, descriptor) },
        // SAFETY: the driver has just written it.
        || GovernedKey::External(unsafe { *into }.0 as usize),
    )
}

pub(super) unsafe extern "C" fn destroy_external(memory: CUexternalMemory) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::External(memory.0 as usize), |driver| unsafe {
        driver.cuDestroyExternalMemory(memory)
    })
}
