//! Stream-ordered allocation and pools.

use std::ffi::{c_ulonglong, c_void};
use std::sync::Arc;

use fercuda_cuda_sys::types::*;

use super::{get, per_thread, put, slice};
use crate::device::context::current;
use crate::device::objects::{MemPool, SoftContext, SoftStream, StreamAction};
use crate::device::pool;
use crate::device::stream::of_call;
use crate::device::{CuResult, Machine, capture, err, graph_memory, lock, machine};

fn find(m: &Machine, handle: CUmemoryPool) -> CuResult<Arc<MemPool>> {
    m.pools.get(handle.0 as usize).ok_or(err::INVALID_VALUE)
}

fn alloc(
    m: &'static Machine,
    ctx: &SoftContext,
    stream: &Arc<SoftStream>,
    pool: &Arc<MemPool>,
    bytes: usize,
    call: &'static str,
) -> CuResult<u64> {
    if bytes == 0 {
        return Err(err::INVALID_VALUE);
    }
    if let Some((graph, deps)) = capture::place(stream)? {
        let deps: Vec<_> = deps.iter().map(|dep| dep.0).collect();
        let memory = graph_memory::for_node(m, &graph, &deps, pool.device, bytes as u64)?;
        let start = memory.start;
        capture::add(m, ctx, stream, &StreamAction::MemAlloc(memory))?;
        return Ok(start);
    }
    capture::gate(m, ctx, stream)?;
    m.captures.forbid_unsafe_call()?;
    pool.alloc(m, ctx, stream, bytes as u64, call)
}

/// A pool for a location, for the functions that name places rather than devices.
unsafe fn device_pool(
    m: &Machine,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CuResult<Arc<MemPool>> {
    // SAFETY: the client promises a location.
    let location = unsafe { get(location.cast_const())? };
    if location.r#type.0 != 1 || kind.0 != 1 {
        return Err(err::NOT_SUPPORTED);
    }
    Ok(pool::default_pool(m, m.device(location.id)?))
}

driver_fns! {
    fn cuMemAllocAsync[cuMemAllocAsync_ptsz](dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream) {
        if dptr.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        let pool = pool::current_pool(m, &m.devices[ctx.device as usize]);
        put(dptr, alloc(m, &ctx, &stream, &pool, bytes, "cuMemAllocAsync")?)
    }

    fn cuMemAllocFromPoolAsync[cuMemAllocFromPoolAsync_ptsz](
        dptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    ) {
        if dptr.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        let pool = find(m, pool)?;
        put(dptr, alloc(m, &ctx, &stream, &pool, bytes, "cuMemAllocFromPoolAsync")?)
    }

    fn cuMemFreeAsync[cuMemFreeAsync_ptsz](dptr: CUdeviceptr, stream: CUstream) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        if capture::place(&stream)?.is_some() {
            m.memory.find(dptr).filter(|a| a.start == dptr).ok_or(err::INVALID_VALUE)?;
            capture::add(m, &ctx, &stream, &StreamAction::MemFree(dptr))?;
            return Ok(());
        }
        capture::gate(m, &ctx, &stream)?;
        m.captures.forbid_unsafe_call()?;
        pool::free_async(m, &ctx, &stream, dptr)
    }

    fn cuMemPoolCreate[](pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps) {
        let m = machine()?;
        if pool.is_null() {
            return Err(err::INVALID_VALUE);
        }
        m.captures.forbid_unsafe_call()?;
        put(pool, CUmemoryPool(pool::create(m, get(pool_props)?)?.handle as *mut _))
    }

    fn cuMemPoolDestroy[](pool: CUmemoryPool) {
        pool::destroy(machine()?, pool.0 as usize)
    }

    fn cuMemPoolTrimTo[](pool: CUmemoryPool, min_bytes_to_keep: usize) {
        let m = machine()?;
        let pool = find(m, pool)?;
        m.captures.forbid_unsafe_call()?;
        pool.trim(m, min_bytes_to_keep as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute[](pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) {
        let answer = find(machine()?, pool)?.attribute(attr)?;
        // The first three are C ints, the others 64 bits.
        if attr.0 <= 3 { put(value.cast::<i32>(), answer as i32) } else { put(value.cast::<u64>(), answer) }
    }

    fn cuMemPoolSetAttribute[](pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) {
        let pool = find(machine()?, pool)?;
        let value = if attr.0 <= 3 { *get(value.cast::<i32>())? as u64 } else { *get(value.cast::<u64>())? };
        pool.set_attribute(attr, value)
    }

    fn cuMemPoolSetAccess[](pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) {
        let m = machine()?;
        let pool = find(m, pool)?;
        for desc in slice(map, count)? {
            if desc.location.r#type.0 != 1 {
                return Err(err::INVALID_VALUE);
            }
            let device = m.device(desc.location.id)?.ordinal;
            let (read, write) = match desc.flags.0 {
                0 if device == pool.device => return Err(err::INVALID_VALUE),
                0 => (false, false),
                3 => (true, true),
                _ => return Err(err::INVALID_VALUE),
            };
            pool.heap.set_device(&m.space, device, read, write);
        }
        Ok(())
    }

    fn cuMemPoolGetAccess[](flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation) {
        let m = machine()?;
        let pool = find(m, mem_pool)?;
        let location = get(location.cast_const())?;
        let device = m.device(location.id)?.ordinal;
        put(flags, CUmemAccess_flags(if pool.heap.devices() & (1 << device) != 0 { 3 } else { 0 }))
    }

    fn cuMemGetDefaultMemPool[](pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType) {
        let m = machine()?;
        put(pool_out, CUmemoryPool(device_pool(m, location, kind)?.handle as *mut _))
    }

    fn cuMemGetMemPool[](pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType) {
        let m = machine()?;
        let default = device_pool(m, location, kind)?;
        let current = pool::current_pool(m, &m.devices[default.device as usize]);
        put(pool, CUmemoryPool(current.handle as *mut _))
    }

    fn cuMemSetMemPool[](location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool) {
        let m = machine()?;
        let default = device_pool(m, location, kind)?;
        let pool = find(m, pool)?;
        *lock(&m.devices[default.device as usize].current_pool) = Some(pool);
        Ok(())
    }

    fn cuMemPoolExportToShareableHandle[](
        handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType, flags: c_ulonglong,
    ) {
        current()?;
        let pool = find(machine()?, pool)?;
        if flags != 0 || handle_type.0 != 1 || pool.props.handleTypes.0 & 1 == 0 || handle_out.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(handle_out.cast::<i32>(), pool.export()?)
    }

    fn cuMemPoolImportFromShareableHandle[](
        pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType, flags: c_ulonglong,
    ) {
        let (m, ctx) = current()?;
        if flags != 0 || handle_type.0 != 1 || pool_out.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(pool_out, CUmemoryPool(pool::import(m, &ctx, handle as usize as i32)?.handle as *mut _))
    }

    fn cuMemPoolExportPointer[](share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr) {
        let m = machine()?;
        put(share_data_out, CUmemPoolPtrExportData { reserved: m.ipc.export_pool_memory(m, ptr)? })
    }

    fn cuMemPoolImportPointer[](
        ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut CUmemPoolPtrExportData,
    ) {
        let (m, ctx) = current()?;
        if !find(m, pool)?.imported || ptr_out.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let bytes = get(share_data.cast_const())?.reserved;
        put(ptr_out, crate::device::ipc::open_memory(m, &ctx, &bytes)?)
    }
}
