//! Memory: device, stream-ordered, managed and host allocations, pools, sharing, pointers.
//!
//! Invariant: an allocation of 0 bytes succeeds with a null pointer, and freeing null succeeds.
//! Elsewhere: copies (`copy`), arrays (`array`).

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::call::{self, address, pointer, put, put_if, wanted};
use crate::device::existing;
use crate::error::{CudaResult, cudaError_t};
use crate::types::*;

/// Bytes that a row of pitched memory is made of, for the driver's choice of a pitch.
const PITCH_ELEMENT_BYTES: c_uint = 4;

const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE: c_int = 2;
const MANAGED: c_int = 3;

/// Allocates; 0 bytes give null.
///
/// # Safety
/// `out` is null or may be written.
unsafe fn allocate(
    out: *mut *mut c_void,
    bytes: usize,
    take: impl FnOnce(&mut u64) -> CudaResult,
) -> CudaResult {
    wanted(out)?;
    call::context()?;
    let mut at = 0;
    if bytes > 0 {
        take(&mut at)?;
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { put(out, pointer(at)) }
}

/// An attribute of an address.
fn attribute<T: Copy>(which: CUpointer_attribute, at: u64, mut value: T) -> CudaResult<T> {
    // SAFETY: each caller's value has the type of its attribute.
    unsafe { drv!(cuPointerGetAttribute((&raw mut value).cast(), which, at)) }?;
    Ok(value)
}

fn attributes(at: u64) -> CudaResult<cudaPointerAttributes> {
    use CUpointer_attribute as A;
    let kind = attribute(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, 0u32);
    let Ok(kind) = kind else {
        return Ok(cudaPointerAttributes {
            r#type: UNREGISTERED,
            device: -2,
            devicePointer: core::ptr::null_mut(),
            hostPointer: pointer(at),
            reserved: [0; 8],
        });
    };
    let is_managed = attribute(A::CU_POINTER_ATTRIBUTE_IS_MANAGED, at, 0u32).unwrap_or(0) != 0;
    let device = attribute(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at, 0i32);
    let on_device = attribute(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at, 0u64);
    let on_host = attribute(A::CU_POINTER_ATTRIBUTE_HOST_POINTER, at, 0u64);
    let is_host = CUmemorytype(kind) == CUmemorytype::CU_MEMORYTYPE_HOST;
    Ok(cudaPointerAttributes {
        r#type: match (is_managed, is_host) {
            (true, _) => MANAGED,
            (false, true) => HOST,
            (false, false) => DEVICE,
        },
        device: device.unwrap_or(-2),
        devicePointer: pointer(on_device.unwrap_or(if is_host { 0 } else { at })),
        hostPointer: pointer(on_host.unwrap_or(if is_managed || is_host { at } else { 0 })),
        reserved: [0; 8],
    })
}

/// Pitched memory of this many bytes a row.
fn pitched(width: usize, rows: usize) -> CudaResult<(u64, usize)> {
    call::context()?;
    let (mut at, mut pitch) = (0, 0);
    if width == 0 || rows == 0 {
        return Ok((0, 0));
    }
    // SAFETY: the outputs outlive the call.
    unsafe {
        drv!(cuMemAllocPitch_v2(
            &mut at,
            &mut pitch,
            width,
            rows,
            PITCH_ELEMENT_BYTES
        ))
    }?;
    Ok((at, pitch))
}

runtime_fns! {
    fn cudaMalloc[](out: *mut *mut c_void, size: usize) {
        allocate(out, size, |at| drv!(cuMemAlloc_v2(at, size)))
    }

    fn cudaMallocManaged[](out: *mut *mut c_void, size: usize, flags: c_uint) {
        if size == 0 {
            return Err(cudaError_t::INVALID_VALUE);
        }
        allocate(out, size, |at| drv!(cuMemAllocManaged(at, size, flags)))
    }

    fn cudaMallocAsync[cudaMallocAsync_ptsz](
        out: *mut *mut c_void, size: usize, stream: cudaStream_t,
    ) {
        allocate(out, size, |at| drv2!(cuMemAllocAsync cuMemAllocAsync_ptsz(at, size, stream)))
    }

    fn cudaMallocFromPoolAsync[cudaMallocFromPoolAsync_ptsz](
        out: *mut *mut c_void, size: usize, pool: cudaMemPool_t, stream: cudaStream_t,
    ) {
        allocate(out, size, |at| {
            drv2!(cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz(at, size, pool, stream))
        })
    }

    fn cudaMallocPitch[](out: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) {
        wanted(out)?;
        wanted(pitch)?;
        let (at, bytes) = pitched(width, height)?;
        put(out, pointer(at))?;
        put(pitch, bytes)
    }

    fn cudaMalloc3D[](out: *mut cudaPitchedPtr, extent: cudaExtent) {
        wanted(out)?;
        let rows = extent.height.checked_mul(extent.depth).ok_or(cudaError_t::INVALID_VALUE)?;
        let (at, pitch) = pitched(extent.width, rows)?;
        put(out, cudaPitchedPtr {
            ptr: pointer(at), pitch, xsize: extent.width, ysize: extent.height,
        })
    }

    fn cudaFree[](at: *mut c_void) {
        call::context()?;
        match at.is_null() {
            true => Ok(()),
            false => drv!(cuMemFree_v2(address(at))),
        }
    }

    fn cudaFreeAsync[cudaFreeAsync_ptsz](at: *mut c_void, stream: cudaStream_t) {
        call::context()?;
        drv2!(cuMemFreeAsync cuMemFreeAsync_ptsz(address(at), stream))
    }

    fn cudaMallocHost[](out: *mut *mut c_void, size: usize) {
        wanted(out)?;
        call::context()?;
        match size {
            0 => put(out, core::ptr::null_mut()),
            size => drv!(cuMemHostAlloc(out, size, 0)),
        }
    }

    fn cudaHostAlloc[](out: *mut *mut c_void, size: usize, flags: c_uint) {
        wanted(out)?;
        call::context()?;
        match size {
            0 => put(out, core::ptr::null_mut()),
            size => drv!(cuMemHostAlloc(out, size, flags)),
        }
    }

    fn cudaFreeHost[](at: *mut c_void) {
        call::context()?;
        match at.is_null() {
            true => Ok(()),
            false => drv!(cuMemFreeHost(at)),
        }
    }

    fn cudaHostRegister[](at: *mut c_void, size: usize, flags: c_uint) {
        call::context()?;
        drv!(cuMemHostRegister_v2(at, size, flags))
    }

    fn cudaHostUnregister[](at: *mut c_void) {
        call::context()?;
        drv!(cuMemHostUnregister(at))
    }

    fn cudaHostGetDevicePointer[](out: *mut *mut c_void, host: *mut c_void, flags: c_uint) {
        wanted(out)?;
        call::context()?;
        let mut at = 0;
        drv!(cuMemHostGetDevicePointer_v2(&mut at, host, flags))?;
        put(out, pointer(at))
    }

    fn cudaHostGetFlags[](flags: *mut c_uint, host: *mut c_void) {
        wanted(flags)?;
        call::context()?;
        drv!(cuMemHostGetFlags(flags, host))
    }

    fn cudaPointerGetAttributes[](out: *mut cudaPointerAttributes, at: *const c_void) {
        wanted(out)?;
        call::context()?;
        put(out, attributes(address(at))?)
    }

    fn cudaMemPrefetchAsync[cudaMemPrefetchAsync_ptsz](
        at: *const c_void, bytes: usize, location: cudaMemLocation, flags: c_uint,
        stream: cudaStream_t,
    ) {
        call::context()?;
        drv2!(cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz(
            address(at), bytes, location, flags, stream
        ))
    }

    fn cudaMemPrefetchBatchAsync[cudaMemPrefetchBatchAsync_ptsz](
        pointers: *mut *mut c_void, sizes: *mut usize, n: usize, locations: *mut cudaMemLocation,
        indices: *mut usize, num_locations: usize, flags: c_ulonglong, stream: cudaStream_t,
    ) {
        call::context()?;
        drv2!(cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz(
            pointers.cast(), sizes, n, locations, indices, num_locations, flags, stream
        ))
    }

    fn cudaMemDiscardBatchAsync[cudaMemDiscardBatchAsync_ptsz](
        pointers: *mut *mut c_void, sizes: *mut usize, n: usize, flags: c_ulonglong,
        stream: cudaStream_t,
    ) {
        call::context()?;
        drv2!(cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz(
            pointers.cast(), sizes, n, flags, stream
        ))
    }

    fn cudaMemDiscardAndPrefetchBatchAsync[cudaMemDiscardAndPrefetchBatchAsync_ptsz](
        pointers: *mut *mut c_void, sizes: *mut usize, n: usize, locations: *mut cudaMemLocation,
        indices: *mut usize, num_locations: usize, flags: c_ulonglong, stream: cudaStream_t,
    ) {
        call::context()?;
        drv2!(cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz(
            pointers.cast(), sizes, n, locations, indices, num_locations, flags, stream
        ))
    }

    fn cudaMemAdvise[](
        at: *const c_void, bytes: usize, advice: c_uint, location: cudaMemLocation,
    ) {
        call::context()?;
        drv!(cuMemAdvise_v2(address(at), bytes, CUmem_advise(advice as _), location))
    }

    fn cudaMemRangeGetAttribute[](
        data: *mut c_void, size: usize, attr: c_uint, at: *const c_void, bytes: usize,
    ) {
        call::context()?;
        drv!(cuMemRangeGetAttribute(
            data, size, CUmem_range_attribute(attr as _), address(at), bytes
        ))
    }

    fn cudaMemRangeGetAttributes[](
        data: *mut *mut c_void, sizes: *mut usize, attrs: *mut CUmem_range_attribute, n: usize,
        at: *const c_void, bytes: usize,
    ) {
        call::context()?;
        drv!(cuMemRangeGetAttributes(data, sizes, attrs, n, address(at), bytes))
    }

    fn cudaMemPoolTrimTo[](pool: cudaMemPool_t, keep: usize) {
        drv!(cuMemPoolTrimTo(pool, keep))
    }

    fn cudaMemPoolSetAttribute[](pool: cudaMemPool_t, attr: c_uint, value: *mut c_void) {
        drv!(cuMemPoolSetAttribute(pool, CUmemPool_attribute(attr as _), value))
    }

    fn cudaMemPoolGetAttribute[](pool: cudaMemPool_t, attr: c_uint, value: *mut c_void) {
        drv!(cuMemPoolGetAttribute(pool, CUmemPool_attribute(attr as _), value))
    }

    fn cudaMemPoolSetAccess[](pool: cudaMemPool_t, list: *const cudaMemAccessDesc, n: usize) {
        drv!(cuMemPoolSetAccess(pool, list, n))
    }

    fn cudaMemPoolGetAccess[](
        flags: *mut CUmemAccess_flags, pool: cudaMemPool_t, location: *mut cudaMemLocation,
    ) {
        drv!(cuMemPoolGetAccess(flags, pool, location))
    }

    fn cudaMemPoolCreate[](pool: *mut cudaMemPool_t, props: *const cudaMemPoolProps) {
        wanted(pool)?;
        call::context()?;
        drv!(cuMemPoolCreate(pool, props))
    }

    fn cudaMemPoolDestroy[](pool: cudaMemPool_t) {
        drv!(cuMemPoolDestroy(pool))
    }

    fn cudaMemPoolExportToShareableHandle[](
        handle: *mut c_void, pool: cudaMemPool_t, kind: c_uint, flags: c_uint,
    ) {
        drv!(cuMemPoolExportToShareableHandle(
            handle, pool, CUmemAllocationHandleType(kind as _), c_ulonglong::from(flags)
        ))
    }

    fn cudaMemPoolImportFromShareableHandle[](
        pool: *mut cudaMemPool_t, handle: *mut c_void, kind: c_uint, flags: c_uint,
    ) {
        call::context()?;
        drv!(cuMemPoolImportFromShareableHandle(
            pool, handle, CUmemAllocationHandleType(kind as _), c_ulonglong::from(flags)
        ))
    }

    fn cudaMemPoolExportPointer[](data: *mut CUmemPoolPtrExportData, at: *mut c_void) {
        drv!(cuMemPoolExportPointer(data, address(at)))
    }

    fn cudaMemPoolImportPointer[](
        out: *mut *mut c_void, pool: cudaMemPool_t, data: *mut CUmemPoolPtrExportData,
    ) {
        wanted(out)?;
        let mut at = 0;
        drv!(cuMemPoolImportPointer(&mut at, pool, data))?;
        put(out, pointer(at))
    }

    fn cudaDeviceGetDefaultMemPool[](pool: *mut cudaMemPool_t, device: c_int) {
        let device = existing(device)?;
        drv!(cuDeviceGetDefaultMemPool(pool, device))
    }

    fn cudaDeviceSetMemPool[](device: c_int, pool: cudaMemPool_t) {
        let device = existing(device)?;
        drv!(cuDeviceSetMemPool(device, pool))
    }

    fn cudaDeviceGetMemPool[](pool: *mut cudaMemPool_t, device: c_int) {
        let device = existing(device)?;
        drv!(cuDeviceGetMemPool(pool, device))
    }

    fn cudaMemGetDefaultMemPool[](
        pool: *mut cudaMemPool_t, location: *mut cudaMemLocation, kind: c_uint,
    ) {
        drv!(cuMemGetDefaultMemPool(pool, location, CUmemAllocationType(kind as _)))
    }

    fn cudaMemGetMemPool[](
        pool: *mut cudaMemPool_t, location: *mut cudaMemLocation, kind: c_uint,
    ) {
        drv!(cuMemGetMemPool(pool, location, CUmemAllocationType(kind as _)))
    }

    fn cudaMemSetMemPool[](
        location: *mut cudaMemLocation, kind: c_uint, pool: cudaMemPool_t,
    ) {
        drv!(cuMemSetMemPool(location, CUmemAllocationType(kind as _), pool))
    }

    fn cudaIpcGetEventHandle[](handle: *mut CUipcEventHandle, event: cudaEvent_t) {
        call::context()?;
        drv!(cuIpcGetEventHandle(handle, event))
    }

    fn cudaIpcOpenEventHandle[](event: *mut cudaEvent_t, handle: CUipcEventHandle) {
        call::context()?;
        drv!(cuIpcOpenEventHandle(event, handle))
    }

    fn cudaIpcGetMemHandle[](handle: *mut CUipcMemHandle, at: *mut c_void) {
        call::context()?;
        drv!(cuIpcGetMemHandle(handle, address(at)))
    }

    fn cudaIpcOpenMemHandle[](out: *mut *mut c_void, handle: CUipcMemHandle, flags: c_uint) {
        wanted(out)?;
        call::context()?;
        let mut at = 0;
        drv!(cuIpcOpenMemHandle_v2(&mut at, handle, flags))?;
        put(out, pointer(at))
    }

    fn cudaIpcCloseMemHandle[](at: *mut c_void) {
        call::context()?;
        drv!(cuIpcCloseMemHandle(address(at)))
    }

    fn cudaDeviceGraphMemTrim[](device: c_int) {
        let device = existing(device)?;
        drv!(cuDeviceGraphMemTrim(device))
    }

    fn cudaDeviceGetGraphMemAttribute[](device: c_int, attr: c_uint, value: *mut c_void) {
        let device = existing(device)?;
        drv!(cuDeviceGetGraphMemAttribute(device, CUgraphMem_attribute(attr as _), value))
    }

    fn cudaDeviceSetGraphMemAttribute[](device: c_int, attr: c_uint, value: *mut c_void) {
        let device = existing(device)?;
        drv!(cuDeviceSetGraphMemAttribute(device, CUgraphMem_attribute(attr as _), value))
    }

    fn cudaGetSymbolAddress[](out: *mut *mut c_void, symbol: *const c_void) {
        wanted(out)?;
        put(out, pointer(crate::registry::variable(symbol)?.0))
    }

    fn cudaGetSymbolSize[](size: *mut usize, symbol: *const c_void) {
        wanted(size)?;
        let (_, bytes) = crate::registry::variable(symbol)?;
        put_if(size, bytes);
        Ok(())
    }
}
