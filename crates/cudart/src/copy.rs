//! Copies and fills: one line, rows, boxes, arrays, symbols, between devices.
//!
//! A kind of copy names where source and destination are; the driver's functions of that kind are
//! called, and its general ones where the addresses have to say which kind it is.
//!
//! Invariant: an unknown kind is an invalid direction. Elsewhere: arrays (`array`), variables
//! (`registry`), graph nodes (`graph_nodes`).

use core::ffi::{c_int, c_ulonglong, c_void};

use crate::array::{descriptor, texel_bytes};
use crate::call::{self, address, get, pointer};
use crate::device::peer;
use crate::error::{CudaResult, cudaError_t};
use crate::registry::variable;
use crate::types::*;

/// Where source and destination of a copy are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyKind {
    HostToHost,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    /// As the addresses say.
    Default,
}

impl CopyKind {
    pub(crate) fn of(number: c_int) -> CudaResult<Self> {
        Ok(match number {
            0 => Self::HostToHost,
            1 => Self::HostToDevice,
            2 => Self::DeviceToHost,
            3 => Self::DeviceToDevice,
            4 => Self::Default,
            _ => return Err(cudaError_t::INVALID_DIRECTION),
        })
    }

    /// The driver's types of memory of source and destination.
    fn memory(self) -> (CUmemorytype, CUmemorytype) {
        let (host, device) = (
            CUmemorytype::CU_MEMORYTYPE_HOST,
            CUmemorytype::CU_MEMORYTYPE_DEVICE,
        );
        match self {
            Self::HostToHost => (host, host),
            Self::HostToDevice => (host, device),
            Self::DeviceToHost => (device, host),
            Self::DeviceToDevice => (device, device),
            Self::Default => (
                CUmemorytype::CU_MEMORYTYPE_UNIFIED,
                CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            ),
        }
    }
}

/// When a copy or fill is done: before the call returns, or in a stream's order.
#[derive(Clone, Copy)]
enum When {
    Now,
    In(cudaStream_t),
}

/// Copies bytes.
///
/// # Safety
/// The program's own pointers.
unsafe fn line(
    to: *mut c_void,
    from: *const c_void,
    n: usize,
    kind: CopyKind,
    when: When,
) -> CudaResult {
    call::context()?;
    if n == 0 {
        return Ok(());
    }
    let (dst, src) = (address(to), address(from));
    // SAFETY: the caller's promise.
    unsafe {
        match (kind, when) {
            (CopyKind::HostToDevice, When::Now) => {
                drv2!(cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds(dst, from, n))
            }
            (CopyKind::DeviceToHost, When::Now) => {
                drv2!(cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds(to, src, n))
            }
            (_, When::Now) => drv2!(cuMemcpy cuMemcpy_ptds(dst, src, n)),
            (CopyKind::HostToDevice, When::In(stream)) => {
                drv2!(cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz(dst, from, n, stream))
            }
            (CopyKind::DeviceToHost, When::In(stream)) => {
                drv2!(cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz(to, src, n, stream))
            }
            (_, When::In(stream)) => drv2!(cuMemcpyAsync cuMemcpyAsync_ptsz(dst, src, n, stream)),
        }
    }
}

/// One side of a copy of rows.
#[derive(Clone, Copy)]
enum CopyEnd {
    Memory {
        at: u64,
        pitch: usize,
    },
    Array {
        array: cudaArray_t,
        x_bytes: usize,
        y: usize,
    },
}

/// Copies rows.
///
/// # Safety
/// The program's own pointers.
unsafe fn rows(
    to: CopyEnd,
    from: CopyEnd,
    width: usize,
    height: usize,
    kind: CopyKind,
    when: When,
) -> CudaResult {
    call::context()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let (source, target) = kind.memory();
    let mut it = CUDA_MEMCPY2D {
        WidthInBytes: width,
        Height: height,
        ..Default::default()
    };
    match from {
        CopyEnd::Memory { at, pitch } => {
            if pitch < width && height > 1 {
                return Err(cudaError_t::INVALID_PITCH);
            }
            it.srcMemoryType = source;
            it.srcHost = pointer(at);
            it.srcDevice = at;
            it.srcPitch = pitch;
        }
        CopyEnd::Array { array, x_bytes, y } => {
            it.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
            it.srcArray = array;
            it.srcXInBytes = x_bytes;
            it.srcY = y;
        }
    }
    match to {
        CopyEnd::Memory { at, pitch } => {
            if pitch < width && height > 1 {
                return Err(cudaError_t::INVALID_PITCH);
            }
            it.dstMemoryType = target;
            it.dstHost = pointer(at);
            it.dstDevice = at;
            it.dstPitch = pitch;
        }
        CopyEnd::Array { array, x_bytes, y } => {
            it.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
            it.dstArray = array;
            it.dstXInBytes = x_bytes;
            it.dstY = y;
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match when {
            When::Now => drv2!(cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds(&it)),
            When::In(stream) => drv2!(cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz(&it, stream)),
        }
    }
}

fn memory(at: *const c_void, pitch: usize) -> CopyEnd {
    CopyEnd::Memory {
        at: address(at),
        pitch,
    }
}

fn texels(array: cudaArray_t, x_bytes: usize, y: usize) -> CopyEnd {
    CopyEnd::Array { array, x_bytes, y }
}

/// Copies a line of bytes to or from an array, row by row from a position on.
///
/// # Safety
/// The program's own pointers.
unsafe fn wrapped(to: CopyEnd, from: CopyEnd, n: usize, kind: CopyKind, when: When) -> CudaResult {
    call::context()?;
    let array_of = |side: CopyEnd| match side {
        CopyEnd::Array { array, .. } => Some(array),
        CopyEnd::Memory { .. } => None,
    };
    let array = array_of(to)
        .or(array_of(from))
        .ok_or(cudaError_t::INVALID_VALUE)?;
    let row = descriptor(array)?.Width * texel_bytes(array)?;
    // How far a side's row goes on from the `done`th byte, and where that is.
    let part = |side: CopyEnd, done: usize| match side {
        CopyEnd::Memory { at, .. } => (
            usize::MAX,
            CopyEnd::Memory {
                at: at + done as u64,
                pitch: row,
            },
        ),
        CopyEnd::Array { array, x_bytes, y } => {
            let at = x_bytes + done;
            let (y, x_bytes) = (y + at / row, at % row);
            (row - x_bytes, CopyEnd::Array { array, x_bytes, y })
        }
    };
    let mut done = 0;
    while done < n {
        let (room, target) = part(to, done);
        let (there, source) = part(from, done);
        let len = room.min(there).min(n - done);
        // SAFETY: the caller's promise.
        unsafe { rows(target, source, len, 1, kind, when) }?;
        done += len;
    }
    Ok(())
}

/// The driver's description of a copy of boxes.
pub(crate) fn boxes(it: &cudaMemcpy3DParms) -> CudaResult<CUDA_MEMCPY3D> {
    let (source, target) = CopyKind::of(it.kind)?.memory();
    let unit = |array: cudaArray_t| match array.is_null() {
        true => Ok(1),
        false => texel_bytes(array),
    };
    let (from, to) = (unit(it.srcArray)?, unit(it.dstArray)?);
    let is_array = |array: cudaArray_t, other| match array.is_null() {
        true => other,
        false => CUmemorytype::CU_MEMORYTYPE_ARRAY,
    };
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: it.srcPos.x * from,
        srcY: it.srcPos.y,
        srcZ: it.srcPos.z,
        srcMemoryType: is_array(it.srcArray, source),
        srcHost: it.srcPtr.ptr,
        srcDevice: address(it.srcPtr.ptr),
        srcArray: it.srcArray,
        srcPitch: it.srcPtr.pitch,
        srcHeight: it.srcPtr.ysize,
        dstXInBytes: it.dstPos.x * to,
        dstY: it.dstPos.y,
        dstZ: it.dstPos.z,
        dstMemoryType: is_array(it.dstArray, target),
        dstHost: it.dstPtr.ptr,
        dstDevice: address(it.dstPtr.ptr),
        dstArray: it.dstArray,
        dstPitch: it.dstPtr.pitch,
        dstHeight: it.dstPtr.ysize,
        WidthInBytes: it.extent.width * from.max(to),
        Height: it.extent.height,
        Depth: it.extent.depth,
        ..Default::default()
    })
}

/// The runtime's description of a driver's copy of boxes.
pub(crate) fn runtime_boxes(it: &CUDA_MEMCPY3D) -> CudaResult<cudaMemcpy3DParms> {
    let unit = |array: cudaArray_t| match array.is_null() {
        true => Ok(1),
        false => texel_bytes(array),
    };
    let (from, to) = (unit(it.srcArray)?, unit(it.dstArray)?);
    let side = |kind: CUmemorytype, host: *mut c_void, at: u64| match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => (host, true),
        CUmemorytype::CU_MEMORYTYPE_ARRAY => (core::ptr::null_mut(), false),
        _ => (pointer(at), false),
    };
    let (source, from_host) = side(it.srcMemoryType, it.srcHost.cast_mut(), it.srcDevice);
    let (target, to_host) = side(it.dstMemoryType, it.dstHost, it.dstDevice);
    let unified = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
    let is_default = it.srcMemoryType == unified || it.dstMemoryType == unified;
    let kind = match (is_default, from_host, to_host) {
        (true, ..) => 4,
        (_, true, true) => 0,
        (_, true, false) => 1,
        (_, false, true) => 2,
        (_, false, false) => 3,
    };
    let pitched = |ptr, pitch, ysize| cudaPitchedPtr {
        ptr,
        pitch,
        xsize: pitch,
        ysize,
    };
    let mut out = cudaMemcpy3DParms::zero();
    out.srcArray = it.srcArray;
    out.srcPos = cudaPos {
        x: it.srcXInBytes / from,
        y: it.srcY,
        z: it.srcZ,
    };
    out.srcPtr = pitched(source, it.srcPitch, it.srcHeight);
    out.dstArray = it.dstArray;
    out.dstPos = cudaPos {
        x: it.dstXInBytes / to,
        y: it.dstY,
        z: it.dstZ,
    };
    out.dstPtr = pitched(target, it.dstPitch, it.dstHeight);
    out.extent = cudaExtent {
        width: it.WidthInBytes / from.max(to),
        height: it.Height,
        depth: it.Depth,
    };
    out.kind = kind;
    Ok(out)
}

/// The description of a copy of `n` bytes as a box.
pub(crate) fn line_box(
    to: *mut c_void,
    from: *const c_void,
    n: usize,
    kind: c_int,
) -> CudaResult<CUDA_MEMCPY3D> {
    let side = |ptr| cudaPitchedPtr {
        ptr,
        pitch: n,
        xsize: n,
        ysize: 1,
    };
    let mut it = cudaMemcpy3DParms::zero();
    it.srcPtr = side(from.cast_mut());
    it.dstPtr = side(to);
    it.extent = cudaExtent {
        width: n,
        height: 1,
        depth: 1,
    };
    it.kind = kind;
    boxes(&it)
}

fn peer_boxes(it: &cudaMemcpy3DPeerParms) -> CudaResult<CUDA_MEMCPY3D_PEER> {
    let boxes = boxes(&cudaMemcpy3DParms {
        srcArray: it.srcArray,
        srcPos: it.srcPos,
        srcPtr: it.srcPtr,
        dstArray: it.dstArray,
        dstPos: it.dstPos,
        dstPtr: it.dstPtr,
        extent: it.extent,
        kind: 3,
    })?;
    Ok(CUDA_MEMCPY3D_PEER {
        srcXInBytes: boxes.srcXInBytes,
        srcY: boxes.srcY,
        srcZ: boxes.srcZ,
        srcMemoryType: boxes.srcMemoryType,
        srcDevice: boxes.srcDevice,
        srcArray: boxes.srcArray,
        srcContext: peer(it.srcDevice)?,
        srcPitch: boxes.srcPitch,
        srcHeight: boxes.srcHeight,
        dstXInBytes: boxes.dstXInBytes,
        dstY: boxes.dstY,
        dstZ: boxes.dstZ,
        dstMemoryType: boxes.dstMemoryType,
        dstDevice: boxes.dstDevice,
        dstArray: boxes.dstArray,
        dstContext: peer(it.dstDevice)?,
        dstPitch: boxes.dstPitch,
        dstHeight: boxes.dstHeight,
        WidthInBytes: boxes.WidthInBytes,
        Height: boxes.Height,
        Depth: boxes.Depth,
        ..Default::default()
    })
}

/// The address in a variable, `offset` bytes behind its start, of which `n` bytes are there.
pub(crate) fn in_symbol(symbol: *const c_void, offset: usize, n: usize) -> CudaResult<*mut c_void> {
    let (at, size) = variable(symbol)?;
    match offset.checked_add(n) {
        Some(end) if end <= size => Ok(pointer(at + offset as u64)),
        _ => Err(cudaError_t::INVALID_VALUE),
    }
}

/// The kind of a copy to or from a variable: the variable's side is the device's.
pub(crate) fn symbol_kind(kind: c_int, is_target: bool) -> CudaResult<CopyKind> {
    match (CopyKind::of(kind)?, is_target) {
        (CopyKind::HostToDevice, true) | (CopyKind::DeviceToHost, false) => CopyKind::of(kind),
        (CopyKind::DeviceToDevice | CopyKind::Default, _) => CopyKind::of(kind),
        _ => Err(cudaError_t::INVALID_DIRECTION),
    }
}

/// Fills a box by its slices, or all of it at once if they lie one behind the other.
///
/// # Safety
/// The program's own pointers.
unsafe fn fill_box(it: cudaPitchedPtr, byte: u8, extent: cudaExtent, when: When) -> CudaResult {
    call::context()?;
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Ok(());
    }
    let slice = it.pitch * it.ysize;
    let is_dense = it.ysize == extent.height;
    let (slices, height) = match is_dense {
        true => (1, extent.height * extent.depth),
        false => (extent.depth, extent.height),
    };
    for z in 0..slices {
        let at = address(it.ptr) + (z * slice) as u64;
        // SAFETY: the caller's promise.
        unsafe { fill_rows(at, it.pitch, byte, extent.width, height, when) }?;
    }
    Ok(())
}

/// Fills rows with a byte.
///
/// # Safety
/// The program's own address.
unsafe fn fill_rows(
    at: u64,
    pitch: usize,
    byte: u8,
    width: usize,
    height: usize,
    when: When,
) -> CudaResult {
    // SAFETY: the caller's promise.
    unsafe {
        match when {
            When::Now => {
                drv2!(cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds(at, pitch, byte, width, height))
            }
            When::In(stream) => drv2!(cuMemsetD2D8Async cuMemsetD2D8Async_ptsz(
                at, pitch, byte, width, height, stream
            )),
        }
    }
}

runtime_fns! {
    fn cudaMemcpy[cudaMemcpy_ptds](to: *mut c_void, from: *const c_void, n: usize, kind: c_int) {
        line(to, from, n, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpyAsync[cudaMemcpyAsync_ptsz](
        to: *mut c_void, from: *const c_void, n: usize, kind: c_int, stream: cudaStream_t,
    ) {
        line(to, from, n, CopyKind::of(kind)?, When::In(stream))
    }

    fn cudaMemcpyPeer[](
        to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, n: usize,
    ) {
        call::context()?;
        let (target, source) = (peer(to_device)?, peer(from_device)?);
        drv!(cuMemcpyPeer(address(to), target, address(from), source, n))
    }

    fn cudaMemcpyPeerAsync[](
        to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, n: usize,
        stream: cudaStream_t,
    ) {
        call::context()?;
        let (target, source) = (peer(to_device)?, peer(from_device)?);
        drv!(cuMemcpyPeerAsync(address(to), target, address(from), source, n, stream))
    }

    fn cudaMemcpy2D[cudaMemcpy2D_ptds](
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize,
        height: usize, kind: c_int,
    ) {
        let (to, from) = (memory(to, to_pitch), memory(from, from_pitch));
        rows(to, from, width, height, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpy2DAsync[cudaMemcpy2DAsync_ptsz](
        to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize,
        height: usize, kind: c_int, stream: cudaStream_t,
    ) {
        let (to, from) = (memory(to, to_pitch), memory(from, from_pitch));
        rows(to, from, width, height, CopyKind::of(kind)?, When::In(stream))
    }

    fn cudaMemcpy2DToArray[cudaMemcpy2DToArray_ptds](
        to: cudaArray_t, x: usize, y: usize, from: *const c_void, pitch: usize, width: usize,
        height: usize, kind: c_int,
    ) {
        let (to, from) = (texels(to, x, y), memory(from, pitch));
        rows(to, from, width, height, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpy2DToArrayAsync[cudaMemcpy2DToArrayAsync_ptsz](
        to: cudaArray_t, x: usize, y: usize, from: *const c_void, pitch: usize, width: usize,
        height: usize, kind: c_int, stream: cudaStream_t,
    ) {
        let (to, from) = (texels(to, x, y), memory(from, pitch));
        rows(to, from, width, height, CopyKind::of(kind)?, When::In(stream))
    }

    fn cudaMemcpy2DFromArray[cudaMemcpy2DFromArray_ptds](
        to: *mut c_void, pitch: usize, from: cudaArray_t, x: usize, y: usize, width: usize,
        height: usize, kind: c_int,
    ) {
        let (to, from) = (memory(to, pitch), texels(from, x, y));
        rows(to, from, width, height, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpy2DFromArrayAsync[cudaMemcpy2DFromArrayAsync_ptsz](
        to: *mut c_void, pitch: usize, from: cudaArray_t, x: usize, y: usize, width: usize,
        height: usize, kind: c_int, stream: cudaStream_t,
    ) {
        let (to, from) = (memory(to, pitch), texels(from, x, y));
        rows(to, from, width, height, CopyKind::of(kind)?, When::In(stream))
    }

    fn cudaMemcpy2DArrayToArray[cudaMemcpy2DArrayToArray_ptds](
        to: cudaArray_t, to_x: usize, to_y: usize, from: cudaArray_t, from_x: usize, from_y: usize,
        width: usize, height: usize, kind: c_int,
    ) {
        let (to, from) = (texels(to, to_x, to_y), texels(from, from_x, from_y));
        rows(to, from, width, height, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpyToArray[cudaMemcpyToArray_ptds](
        to: cudaArray_t, x: usize, y: usize, from: *const c_void, n: usize, kind: c_int,
    ) {
        wrapped(texels(to, x, y), memory(from, 0), n, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpyToArrayAsync[cudaMemcpyToArrayAsync_ptsz](
        to: cudaArray_t, x: usize, y: usize, from: *const c_void, n: usize, kind: c_int,
        stream: cudaStream_t,
    ) {
        wrapped(texels(to, x, y), memory(from, 0), n, CopyKind::of(kind)?, When::In(stream))
    }

    fn cudaMemcpyFromArray[cudaMemcpyFromArray_ptds](
        to: *mut c_void, from: cudaArray_t, x: usize, y: usize, n: usize, kind: c_int,
    ) {
        wrapped(memory(to, 0), texels(from, x, y), n, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpyFromArrayAsync[cudaMemcpyFromArrayAsync_ptsz](
        to: *mut c_void, from: cudaArray_t, x: usize, y: usize, n: usize, kind: c_int,
        stream: cudaStream_t,
    ) {
        wrapped(memory(to, 0), texels(from, x, y), n, CopyKind::of(kind)?, When::In(stream))
    }

    fn cudaMemcpyArrayToArray[cudaMemcpyArrayToArray_ptds](
        to: cudaArray_t, to_x: usize, to_y: usize, from: cudaArray_t, from_x: usize, from_y: usize,
        n: usize, kind: c_int,
    ) {
        let (to, from) = (texels(to, to_x, to_y), texels(from, from_x, from_y));
        wrapped(to, from, n, CopyKind::of(kind)?, When::Now)
    }

    fn cudaMemcpy3D[cudaMemcpy3D_ptds](it: *const cudaMemcpy3DParms) {
        call::context()?;
        let it = boxes(&get(it)?)?;
        drv2!(cuMemcpy3D_v2 cuMemcpy3D_v2_ptds(&it))
    }

    fn cudaMemcpy3DAsync[cudaMemcpy3DAsync_ptsz](
        it: *const cudaMemcpy3DParms, stream: cudaStream_t,
    ) {
        call::context()?;
        let it = boxes(&get(it)?)?;
        drv2!(cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz(&it, stream))
    }

    fn cudaMemcpy3DPeer[cudaMemcpy3DPeer_ptds](it: *const cudaMemcpy3DPeerParms) {
        call::context()?;
        let it = peer_boxes(&get(it)?)?;
        drv2!(cuMemcpy3DPeer cuMemcpy3DPeer_ptds(&it))
    }

    fn cudaMemcpy3DPeerAsync[cudaMemcpy3DPeerAsync_ptsz](
        it: *const cudaMemcpy3DPeerParms, stream: cudaStream_t,
    ) {
        call::context()?;
        let it = peer_boxes(&get(it)?)?;
        drv2!(cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz(&it, stream))
    }

    fn cudaMemcpyBatchAsync[cudaMemcpyBatchAsync_ptsz](
        to: *const *mut c_void, from: *const *const c_void, sizes: *const usize, n: usize,
        attrs: *mut CUmemcpyAttributes, indices: *mut usize, num_attrs: usize,
        stream: cudaStream_t,
    ) {
        call::context()?;
        drv2!(cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz(
            to.cast_mut().cast(), from.cast_mut().cast(), sizes.cast_mut(), n, attrs, indices,
            num_attrs, stream
        ))
    }

    fn cudaMemcpy3DBatchAsync[cudaMemcpy3DBatchAsync_ptsz](
        n: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: cudaStream_t,
    ) {
        call::context()?;
        drv2!(cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz(n, list, flags, stream))
    }

    fn cudaMemcpyToSymbol[cudaMemcpyToSymbol_ptds](
        symbol: *const c_void, from: *const c_void, n: usize, offset: usize, kind: c_int,
    ) {
        let kind = symbol_kind(kind, true)?;
        line(in_symbol(symbol, offset, n)?, from, n, kind, When::Now)
    }

    fn cudaMemcpyToSymbolAsync[cudaMemcpyToSymbolAsync_ptsz](
        symbol: *const c_void, from: *const c_void, n: usize, offset: usize, kind: c_int,
        stream: cudaStream_t,
    ) {
        let kind = symbol_kind(kind, true)?;
        line(in_symbol(symbol, offset, n)?, from, n, kind, When::In(stream))
    }

    fn cudaMemcpyFromSymbol[cudaMemcpyFromSymbol_ptds](
        to: *mut c_void, symbol: *const c_void, n: usize, offset: usize, kind: c_int,
    ) {
        let kind = symbol_kind(kind, false)?;
        line(to, in_symbol(symbol, offset, n)?, n, kind, When::Now)
    }

    fn cudaMemcpyFromSymbolAsync[cudaMemcpyFromSymbolAsync_ptsz](
        to: *mut c_void, symbol: *const c_void, n: usize, offset: usize, kind: c_int,
        stream: cudaStream_t,
    ) {
        let kind = symbol_kind(kind, false)?;
        line(to, in_symbol(symbol, offset, n)?, n, kind, When::In(stream))
    }

    fn cudaMemset[cudaMemset_ptds](at: *mut c_void, value: c_int, n: usize) {
        call::context()?;
        match n {
            0 => Ok(()),
            n => drv2!(cuMemsetD8_v2 cuMemsetD8_v2_ptds(address(at), value as u8, n)),
        }
    }

    fn cudaMemsetAsync[cudaMemsetAsync_ptsz](
        at: *mut c_void, value: c_int, n: usize, stream: cudaStream_t,
    ) {
        call::context()?;
        match n {
            0 => Ok(()),
            n => drv2!(cuMemsetD8Async cuMemsetD8Async_ptsz(address(at), value as u8, n, stream)),
        }
    }

    fn cudaMemset2D[cudaMemset2D_ptds](
        at: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize,
    ) {
        call::context()?;
        match width == 0 || height == 0 {
            true => Ok(()),
            false => fill_rows(address(at), pitch, value as u8, width, height, When::Now),
        }
    }

    fn cudaMemset2DAsync[cudaMemset2DAsync_ptsz](
        at: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize,
        stream: cudaStream_t,
    ) {
        call::context()?;
        match width == 0 || height == 0 {
            true => Ok(()),
            false => fill_rows(address(at), pitch, value as u8, width, height, When::In(stream)),
        }
    }

    fn cudaMemset3D[cudaMemset3D_ptds](it: cudaPitchedPtr, value: c_int, extent: cudaExtent) {
        fill_box(it, value as u8, extent, When::Now)
    }

    fn cudaMemset3DAsync[cudaMemset3DAsync_ptsz](
        it: cudaPitchedPtr, value: c_int, extent: cudaExtent, stream: cudaStream_t,
    ) {
        fill_box(it, value as u8, extent, When::In(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_to_a_variable_goes_to_the_device() {
        assert_eq!(symbol_kind(1, true), Ok(CopyKind::HostToDevice));
        assert_eq!(symbol_kind(2, false), Ok(CopyKind::DeviceToHost));
        assert_eq!(symbol_kind(4, true), Ok(CopyKind::Default));
        for (kind, is_target) in [(1, false), (2, true), (0, true), (5, true), (-1, false)] {
            assert_eq!(
                symbol_kind(kind, is_target),
                Err(cudaError_t::INVALID_DIRECTION)
            );
        }
    }

    #[test]
    fn a_line_is_a_box_of_one_row() {
        let (to, from) = (pointer(4096), pointer(8192));
        let it = line_box(to, from, 100, 2).expect("kind 2 is known");
        assert_eq!((it.WidthInBytes, it.Height, it.Depth), (100, 1, 1));
        assert_eq!(it.srcMemoryType, CUmemorytype::CU_MEMORYTYPE_DEVICE);
        assert_eq!(it.dstMemoryType, CUmemorytype::CU_MEMORYTYPE_HOST);
        let back = runtime_boxes(&it).expect("no array is read");
        assert_eq!((back.kind, back.extent.width), (2, 100));
        assert_eq!((back.srcPtr.ptr, back.dstPtr.ptr), (from, to));
    }
}
