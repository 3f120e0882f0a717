//! Allocation, pinned memory, pointer attributes, IPC.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fercuda_cuda_sys::types::*;

use super::{get, put, put_if, slice};
use crate::device::allocation::{Allocation, AllocationSource};
use crate::device::context::{current, current_any, current_handle};
use crate::device::memory;
use crate::device::objects::SoftContext;
use crate::device::{CuResult, Machine, err, event, ipc, machine, release, vmm};

/// The current context, for a call that a capture may forbid.
fn allocating() -> CuResult<(&'static Machine, Arc<SoftContext>)> {
    let (m, ctx) = current()?;
    m.captures.forbid_unsafe_call()?;
    Ok((m, ctx))
}

/// The machine, for a call that frees: it needs no current context, but one that is destroyed or
/// has failed forbids it.
fn freeing() -> CuResult<&'static Machine> {
    let m = machine()?;
    if current_handle() != 0 {
        current()?;
    }
    m.captures.forbid_unsafe_call()?;
    Ok(m)
}

fn pitched(width: u64, height: u64, element: u32) -> CuResult<(u64, u64)> {
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(err::INVALID_VALUE);
    }
    let pitch = width
        .checked_next_multiple_of(512)
        .ok_or(err::INVALID_VALUE)?;
    Ok((pitch, pitch.checked_mul(height).ok_or(err::OUT_OF_MEMORY)?))
}

/// The kernel-visible address of host memory.
fn device_pointer(m: &Machine, p: *mut c_void, flags: c_uint) -> CuResult<u64> {
    if flags != 0 || p.is_null() {
        return Err(err::INVALID_VALUE);
    }
    let found = m.memory.find(p as u64).ok_or(err::INVALID_VALUE)?;
    if found.is_host() || matches!(found.source, AllocationSource::Managed) {
        Ok(p as u64)
    } else {
        Err(err::INVALID_VALUE)
    }
}

/// The size of a pointer attribute's answer, and the answer; `None` if it does not apply to this
/// memory.
fn attribute(
    m: &Machine,
    a: &Allocation,
    which: CUpointer_attribute,
    ptr: u64,
) -> CuResult<Vec<u8>> {
    use CUpointer_attribute as P;
    let u64s = |v: u64| Ok(v.to_ne_bytes().to_vec());
    let u32s = |v: u32| Ok(v.to_ne_bytes().to_vec());
    let flag = |v: bool| Ok(u32::from(v).to_ne_bytes().to_vec());
    let managed = matches!(a.source, AllocationSource::Managed);
    match which {
        P::CU_POINTER_ATTRIBUTE_CONTEXT => u64s(a.ctx_handle as u64),
        P::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => u32s(if a.is_host() { 1 } else { 2 }),
        P::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
            current_any(m).map_err(|_| err::INVALID_CONTEXT)?;
            u64s(ptr)
        }
        P::CU_POINTER_ATTRIBUTE_HOST_POINTER if a.is_host() || managed => u64s(ptr),
        P::CU_POINTER_ATTRIBUTE_HOST_POINTER => Err(err::INVALID_VALUE),
        P::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => flag(a.sync_memops.load(Ordering::Acquire)),
        P::CU_POINTER_ATTRIBUTE_BUFFER_ID | P::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
            u64s(a.buffer_id)
        }
        P::CU_POINTER_ATTRIBUTE_IS_MANAGED => flag(managed),
        P::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => u32s(a.device),
        P::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            flag(matches!(a.source, AllocationSource::Device))
        }
        P::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => u64s(a.start),
        P::CU_POINTER_ATTRIBUTE_RANGE_SIZE => u64s(a.len),
        P::CU_POINTER_ATTRIBUTE_MAPPED => flag(true),
        P::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
            let mapped = matches!(a.source, AllocationSource::Mapped);
            let kinds = mapped.then(|| vmm::handle_types(m, ptr));
            u64s(u64::from(kinds.unwrap_or(0)))
        }
        P::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | P::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => flag(false),
        P::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let device = current_any(m).map_or(0, |c| c.device);
            u32s(match m.space.access_of(ptr, device) {
                // Also of another device's memory, before its access is
                // enabled, as the driver of two H200s says.
                _ if !matches!(a.source, AllocationSource::Mapped) => 3,
                (_, true) => 3,
                (true, false) => 1,
                _ => 0,
            })
        }
        P::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => u64s(match &a.source {
            AllocationSource::Pool(pool) => pool.handle as u64,
            _ => 0,
        }),
        P::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => u64s(a.len),
        P::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => u64s(a.start),
        P::CU_POINTER_ATTRIBUTE_P2P_TOKENS => Err(err::NOT_SUPPORTED),
        _ => Err(err::INVALID_VALUE),
    }
}

/// Bytes of an attribute's answer for memory that is not ours.
fn attribute_size(which: CUpointer_attribute) -> usize {
    match which.0 {
        2 | 6 | 8 | 9 | 10 | 13 | 15 | 16 | 21 => 4,
        _ => 8,
    }
}

fn range(m: &Machine, dptr: u64) -> CuResult<Arc<Allocation>> {
    m.memory.find(dptr).ok_or(err::NOT_FOUND)
}

driver_fns! {
    fn cuMemGetInfo_v2[](free: *mut usize, total: *mut usize) {
        let (m, ctx) = current()?;
        let phys = &m.devices[ctx.device as usize].phys;
        if free.is_null() && total.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put_if(free, phys.free() as usize);
        put_if(total, phys.capacity() as usize);
        Ok(())
    }

    fn cuMemAlloc_v2[](dptr: *mut CUdeviceptr, bytes: usize) {
        if dptr.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (m, ctx) = allocating()?;
        put(dptr, memory::alloc_device(m, &ctx, bytes as u64, "cuMemAlloc_v2")?)
    }

    fn cuMemAllocPitch_v2[](
        dptr: *mut CUdeviceptr, pitch: *mut usize, width_in_bytes: usize, height: usize, element_size_bytes: c_uint,
    ) {
        if dptr.is_null() || pitch.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (m, ctx) = allocating()?;
        let (row, bytes) = pitched(width_in_bytes as u64, height as u64, element_size_bytes)?;
        put(dptr, memory::alloc_device(m, &ctx, bytes, "cuMemAllocPitch_v2")?)?;
        put(pitch, row as usize)
    }

    fn cuMemFree_v2[](dptr: CUdeviceptr) {
        release::free_device(freeing()?, dptr)
    }

    fn cuMemGetAddressRange_v2[](base: *mut CUdeviceptr, size: *mut usize, dptr: CUdeviceptr) {
        let (m, _) = current()?;
        let a = range(m, dptr)?;
        put_if(base, a.start);
        put_if(size, a.len as usize);
        Ok(())
    }

    fn cuMemAllocHost_v2[](ptr: *mut *mut c_void, bytes: usize) {
        if ptr.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (m, ctx) = allocating()?;
        put(ptr, memory::alloc_host(m, &ctx, bytes as u64, 3, "cuMemAllocHost_v2")? as *mut c_void)
    }

    fn cuMemAllocHost[](ptr: *mut *mut c_void, bytes: c_uint) {
        if ptr.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (m, ctx) = allocating()?;
        put(ptr, memory::alloc_host(m, &ctx, u64::from(bytes), 3, "cuMemAllocHost")? as *mut c_void)
    }

    fn cuMemHostAlloc[](ptr: *mut *mut c_void, bytes: usize, flags: c_uint) {
        if ptr.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (m, ctx) = allocating()?;
        put(ptr, memory::alloc_host(m, &ctx, bytes as u64, flags, "cuMemHostAlloc")? as *mut c_void)
    }

    fn cuMemFreeHost[](p: *mut c_void) {
        let (m, _) = allocating()?;
        release::free_host(m, p as u64)
    }

    fn cuMemHostRegister_v2[](p: *mut c_void, bytes: usize, flags: c_uint) {
        let (m, ctx) = allocating()?;
        memory::register_host(m, &ctx, p as u64, bytes as u64, flags)
    }

    fn cuMemHostRegister[](p: *mut c_void, bytes: usize, flags: c_uint) {
        let (m, ctx) = allocating()?;
        memory::register_host(m, &ctx, p as u64, bytes as u64, flags)
    }

    fn cuMemHostUnregister[](p: *mut c_void) {
        let (m, _) = allocating()?;
        release::unregister_host(m, p as u64)
    }

    fn cuMemHostGetDevicePointer_v2[](dptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint) {
        let (m, _) = current()?;
        put(dptr, device_pointer(m, p, flags)?)
    }

    fn cuMemHostGetFlags[](flags: *mut c_uint, p: *mut c_void) {
        let (m, _) = current()?;
        let a = m.memory.find(p as u64).ok_or(err::INVALID_VALUE)?;
        match a.source {
            // Unified addressing maps all pinned memory.
            AllocationSource::Host(f) | AllocationSource::Registered(f) => put(flags, f | CU_MEMHOSTALLOC_DEVICEMAP),
            _ => Err(err::INVALID_VALUE),
        }
    }

    fn cuPointerGetAttribute[](data: *mut c_void, attribute_: CUpointer_attribute, ptr: CUdeviceptr) {
        let m = machine()?;
        if data.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let a = m.memory.find(ptr).ok_or(err::INVALID_VALUE)?;
        let answer = attribute(m, &a, attribute_, ptr)?;
        std::ptr::copy_nonoverlapping(answer.as_ptr(), data.cast(), answer.len());
        Ok(())
    }

    // Unlike the single question, memory that is not ours is no error: every answer is then zero.
    fn cuPointerGetAttributes[](
        num_attributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr,
    ) {
        let m = machine()?;
        let found = m.memory.find(ptr);
        let (attributes, data) = (slice(attributes, num_attributes as usize)?, slice(data, num_attributes as usize)?);
        for (&which, &out) in attributes.iter().zip(data) {
            if out.is_null() {
                return Err(err::INVALID_VALUE);
            }
            let answer = match &found {
                Some(a) => match attribute(m, a, which, ptr) {
                    Err(_) if matches!(which.0, 1..=21) => vec![0; attribute_size(which)],
                    other => other?,
                },
                None if which == CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => (-2i32).to_ne_bytes().to_vec(),
                None if matches!(which.0, 1..=21) => vec![0; attribute_size(which)],
                None => return Err(err::INVALID_VALUE),
            };
            std::ptr::copy_nonoverlapping(answer.as_ptr(), out.cast(), answer.len());
        }
        Ok(())
    }

    fn cuPointerSetAttribute[](value: *const c_void, attribute_: CUpointer_attribute, ptr: CUdeviceptr) {
        let m = machine()?;
        let value = get(value.cast::<c_int>())?;
        let a = m.memory.find(ptr).ok_or(err::INVALID_VALUE)?;
        if attribute_ != CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !matches!(a.source, AllocationSource::Device) {
            return Err(err::INVALID_VALUE);
        }
        a.sync_memops.store(*value != 0, Ordering::Release);
        Ok(())
    }

    fn cuMemGetHandleForAddressRange[](
        handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: CUmemRangeHandleType, flags: c_ulonglong,
    ) {
        let _ = (handle, dptr, size, handle_type, flags);
        current()?;
        // DMA buffers are for other devices on the bus, and there is no bus.
        Err(super::unsupported("cuMemGetHandleForAddressRange"))
    }

    fn cuIpcGetMemHandle[](handle: *mut CUipcMemHandle, dptr: CUdeviceptr) {
        let (m, _) = current()?;
        put(handle, CUipcMemHandle { reserved: m.ipc.export_memory(m, dptr)?.map(|b| b as _) })
    }

    fn cuIpcOpenMemHandle[](dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        let (m, ctx) = allocating()?;
        if dptr.is_null() || flags & !1 != 0 {
            return Err(err::INVALID_VALUE);
        }
        put(dptr, ipc::open_memory(m, &ctx, &handle.reserved.map(|b| b as u8))?)
    }

    fn cuIpcOpenMemHandle_v2[](dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        let (m, ctx) = allocating()?;
        if dptr.is_null() || flags & !1 != 0 {
            return Err(err::INVALID_VALUE);
        }
        put(dptr, ipc::open_memory(m, &ctx, &handle.reserved.map(|b| b as u8))?)
    }

    fn cuIpcCloseMemHandle[](dptr: CUdeviceptr) {
        let (m, _) = allocating()?;
        ipc::close_memory(m, dptr)
    }

    fn cuIpcGetEventHandle[](handle: *mut CUipcEventHandle, event: CUevent) {
        let (m, _) = current()?;
        let event = m.events.get(event.0 as usize).ok_or(err::INVALID_HANDLE)?;
        put(handle, CUipcEventHandle { reserved: m.ipc.export_event(&event)?.map(|b| b as _) })
    }

    fn cuIpcOpenEventHandle[](event: *mut CUevent, handle: CUipcEventHandle) {
        let (m, ctx) = current()?;
        if event.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let shared = ipc::open_event(&handle.reserved.map(|b| b as u8))?;
        let flags = event::INTERPROCESS | event::DISABLE_TIMING;
        let opened = event::add(m, &ctx, flags, Some(shared));
        put(event, CUevent(opened.handle as *mut _))
    }
}
