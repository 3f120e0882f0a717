//! Virtual memory management.

use std::ffi::{c_ulonglong, c_void};

use fercuda_cuda_sys::types::*;

use super::{get, put, slice};
use crate::device::context::current;
use crate::device::{CuResult, err, machine, vmm};

driver_fns! {
    fn cuMemAddressReserve[](
        ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong,
    ) {
        let m = machine()?;
        if ptr.is_null() || flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        put(ptr, vmm::reserve(m, size as u64, alignment as u64, addr)?)
    }

    fn cuMemAddressFree[](ptr: CUdeviceptr, size: usize) {
        vmm::free_addresses(machine()?, ptr, size as u64)
    }

    fn cuMemCreate[](
        handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong,
    ) {
        let m = machine()?;
        if handle.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(handle, vmm::create(m, size as u64, get(prop)?, flags)? as u64)
    }

    fn cuMemRelease[](handle: CUmemGenericAllocationHandle) {
        vmm::release(machine()?, handle as usize)
    }

    fn cuMemMap[](ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) {
        vmm::map(machine()?, ptr, size as u64, offset as u64, handle as usize, flags)
    }

    fn cuMemUnmap[](ptr: CUdeviceptr, size: usize) {
        vmm::unmap(machine()?, ptr, size as u64)
    }

    fn cuMemSetAccess[](ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) {
        vmm::set_access(machine()?, ptr, size as u64, slice(desc, count)?)
    }

    fn cuMemGetAccess[](flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr) {
        let location = get(location)?;
        put(flags, vmm::access(machine()?, location.r#type.0, location.id, ptr)?)
    }

    fn cuMemExportToShareableHandle[](
        shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle, handle_type: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        if shareable_handle.is_null() || flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        put(shareable_handle.cast::<i32>(), vmm::export(machine()?, handle as usize, handle_type.0)?)
    }

    fn cuMemImportFromShareableHandle[](
        handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void, sh_handle_type: CUmemAllocationHandleType,
    ) {
        let (m, ctx) = current()?;
        if handle.is_null() || sh_handle_type.0 != 1 {
            return Err(err::INVALID_VALUE);
        }
        put(handle, vmm::import(m, &ctx, os_handle as usize as i32)? as u64)
    }

    fn cuMemGetAllocationGranularity[](
        granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags,
    ) {
        if option.0 > 1 {
            return Err(err::INVALID_VALUE);
        }
        put(granularity, vmm::granularity(machine()?, get(prop)?)? as usize)
    }

    fn cuMemGetAllocationPropertiesFromHandle[](prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) {
        let physical = machine()?.allocations.get(handle as usize).ok_or(err::INVALID_VALUE)?;
        let mut answer = CUmemAllocationProp::default();
        answer.r#type.0 = 1;
        answer.requestedHandleTypes.0 = physical.handle_types as _;
        answer.location.r#type.0 = physical.location.0 as _;
        answer.location.id = physical.location.1;
        answer.allocFlags.compressionType = physical.compression;
        put(prop, answer)
    }

    fn cuMemRetainAllocationHandle[](handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) {
        if handle.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(handle, vmm::retain(machine()?, addr as u64)? as u64)
    }
}
