//! Copies and fills, synchronous and not.

use std::ffi::{c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use fercuda_cuda_sys::types::*;

use super::{get, per_thread, put_if, slice};
use crate::device::copy::{array_side, plan_2d, plan_3d};
use crate::device::launch::{copy, enqueue, run_now};
use crate::device::memory::is_ours;
use crate::device::objects::{CopyPlan, CopySide, FillPlan, StreamAction};
use crate::device::range::{ByteRows, HostAccess, check_range};
use crate::device::stream::of_call;
use crate::device::{CuResult, Machine, capture, err};

/// Which sides of a copy must be device memory.
#[derive(Clone, Copy)]
struct CopySides {
    dst: bool,
    src: bool,
}

const TO_DEVICE: CopySides = CopySides {
    dst: true,
    src: false,
};
const TO_HOST: CopySides = CopySides {
    dst: false,
    src: true,
};
const DEVICE_ONLY: CopySides = CopySides {
    dst: true,
    src: true,
};
/// Found out from the addresses.
const ANY: CopySides = CopySides {
    dst: false,
    src: false,
};

fn linear(
    dst: u64,
    src: u64,
    len: usize,
    sides: CopySides,
    stream: CUstream,
    wait: bool,
    call: &'static str,
) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    let len = len as u64;
    if len == 0 {
        return Ok(());
    }
    if dst == 0 || src == 0 {
        return Err(err::INVALID_VALUE);
    }
    // An address of ours must be all ours, also on a side that may be the program's.
    if sides.dst || is_ours(m, dst) {
        check_range(m, ByteRows::linear(dst, len), HostAccess::write(call))?;
    }
    if sides.src || is_ours(m, src) {
        check_range(m, ByteRows::linear(src, len), HostAccess::read(call))?;
    }
    copy(
        m,
        &ctx,
        &stream,
        CopyPlan::linear(dst, src, len),
        wait,
        call,
    )
}

fn planned(
    stream: CUstream,
    wait: bool,
    call: &'static str,
    plan: impl FnOnce(&Machine, &'static str) -> CuResult<CopyPlan>,
) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    copy(m, &ctx, &stream, plan(m, call)?, wait, call)
}

fn fill(plan: FillPlan, stream: CUstream, wait: bool, call: &'static str) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    if plan.width == 0 || plan.height == 0 {
        return Ok(());
    }
    plan.check(m, call)?;
    // Filling device memory never waits; filling pinned memory synchronously does.
    if wait && m.memory.find(plan.dst).is_some_and(|a| a.is_host()) {
        return run_now(m, &ctx, &stream, &StreamAction::Fill(plan), call);
    }
    if wait {
        capture::gate(m, &ctx, &stream)?;
    }
    enqueue(m, &ctx, &stream, StreamAction::Fill(plan), call)
}

fn row(dst: u64, value: u32, element: u64, width: usize) -> FillPlan {
    let width = width as u64;
    FillPlan {
        dst,
        pitch: width * element,
        value,
        element,
        width,
        height: 1,
    }
}

fn rows(dst: u64, pitch: usize, value: u32, element: u64, width: usize, height: usize) -> FillPlan {
    FillPlan {
        dst,
        pitch: pitch as u64,
        value,
        element,
        width: width as u64,
        height: height as u64,
    }
}

fn peer(c: &CUDA_MEMCPY3D_PEER) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: c.srcXInBytes,
        srcY: c.srcY,
        srcZ: c.srcZ,
        srcLOD: c.srcLOD,
        srcMemoryType: c.srcMemoryType,
        srcHost: c.srcHost,
        srcDevice: c.srcDevice,
        srcArray: c.srcArray,
        srcPitch: c.srcPitch,
        srcHeight: c.srcHeight,
        dstXInBytes: c.dstXInBytes,
        dstY: c.dstY,
        dstZ: c.dstZ,
        dstLOD: c.dstLOD,
        dstMemoryType: c.dstMemoryType,
        dstHost: c.dstHost,
        dstDevice: c.dstDevice,
        dstArray: c.dstArray,
        dstPitch: c.dstPitch,
        dstHeight: c.dstHeight,
        WidthInBytes: c.WidthInBytes,
        Height: c.Height,
        Depth: c.Depth,
        ..CUDA_MEMCPY3D::default()
    }
}

/// Bytes of a texel of an operand that is an array.
unsafe fn texel_bytes(m: &Machine, o: &CUmemcpy3DOperand) -> CuResult<Option<u64>> {
    if o.r#type != CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_ARRAY {
        return Ok(None);
    }
    // SAFETY: the type says that the array is the member in use.
    let array = unsafe { o.op.array.array.0 as usize };
    let array = m.arrays.get(array).ok_or(err::INVALID_HANDLE)?;
    Ok(Some(u64::from(array.format.bytes())))
}

/// One side of a batched three-dimensional copy; widths count elements of `unit` bytes.
unsafe fn operand(
    m: &Machine,
    o: &CUmemcpy3DOperand,
    e: &CUextent3D,
    unit: u64,
) -> CuResult<CopySide> {
    let bytes = |n: usize| (n as u64).checked_mul(unit).ok_or(err::INVALID_VALUE);
    let width = bytes(e.width)?;
    if o.r#type == CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_ARRAY {
        // SAFETY: the type says that the array is the member in use.
        let a = unsafe { o.op.array };
        let origin = [bytes(a.offset.x)?, a.offset.y as u64, a.offset.z as u64];
        let size = [width, e.height as u64, e.depth as u64];
        return array_side(m, a.array.0 as usize, origin, size);
    }
    if o.r#type != CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the type says that the pointer is the member in use.
    let p = unsafe { o.op.ptr };
    let pitch = if p.rowLength == 0 {
        width
    } else {
        bytes(p.rowLength)?
    };
    let height = if p.layerHeight == 0 {
        e.height
    } else {
        p.layerHeight
    } as u64;
    if pitch < width || height < e.height as u64 || p.ptr == 0 {
        return Err(err::INVALID_VALUE);
    }
    Ok(CopySide {
        at: p.ptr,
        pitch,
        slice: pitch.checked_mul(height).ok_or(err::INVALID_VALUE)?,
    })
}

unsafe fn batch_3d(
    count: usize,
    ops: *mut CUDA_MEMCPY3D_BATCH_OP,
    flags: u64,
    stream: CUstream,
) -> Result<(), (CUresult, usize)> {
    if flags != 0 || stream.is_null() {
        return Err((err::INVALID_VALUE, usize::MAX));
    }
    // SAFETY: the client promises `count` operations.
    let ops = unsafe { slice(ops.cast_const(), count) }.map_err(|e| (e, usize::MAX))?;
    for (i, op) in ops.iter().enumerate() {
        let one = || -> CuResult {
            planned(stream, false, "cuMemcpy3DBatchAsync", |m, call| {
                // SAFETY: both read the member that an operand's type names.
                let (unit, src, dst) = unsafe {
                    let unit = texel_bytes(m, &op.src)?.or(texel_bytes(m, &op.dst)?);
                    let unit = unit.unwrap_or(1);
                    let side = |o| operand(m, o, &op.extent, unit);
                    (unit, side(&op.src)?, side(&op.dst)?)
                };
                let plan = CopyPlan {
                    dst,
                    src,
                    width: op.extent.width as u64 * unit,
                    height: op.extent.height as u64,
                    depth: op.extent.depth as u64,
                    staged: None,
                };
                let sides = [
                    (src, HostAccess::read(call)),
                    (dst, HostAccess::write(call)),
                ];
                for (side, access) in sides {
                    if is_ours(m, side.at) {
                        plan.check_side(m, side, access)?;
                    }
                }
                Ok(plan)
            })
        };
        one().map_err(|e| (e, i))?;
    }
    Ok(())
}

unsafe fn batch(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    num_attrs: usize,
    stream: CUstream,
) -> Result<(), (CUresult, usize)> {
    if count == 0 || num_attrs == 0 || num_attrs > count || stream.is_null() {
        return Err((err::INVALID_VALUE, usize::MAX));
    }
    let whole = |e| (e, usize::MAX);
    // SAFETY: the client promises `count` of each.
    let (dsts, srcs, sizes) = unsafe {
        (
            slice(dsts.cast_const(), count).map_err(whole)?,
            slice(srcs.cast_const(), count).map_err(whole)?,
            slice(sizes.cast_const(), count).map_err(whole)?,
        )
    };
    for i in 0..count {
        linear(
            dsts[i],
            srcs[i],
            sizes[i],
            ANY,
            stream,
            false,
            "cuMemcpyBatchAsync",
        )
        .map_err(|e| (e, i))?;
    }
    Ok(())
}

fn code(done: Result<(), (CUresult, usize)>, fail_idx: *mut usize) -> CuResult {
    done.map_err(|(code, index)| {
        // SAFETY: the client promises room for an index, or passes null.
        unsafe { put_if(fail_idx, index) };
        code
    })
}

driver_fns! {
    fn cuMemcpy[cuMemcpy_ptds](dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) {
        linear(dst, src, byte_count, ANY, CUstream::NULL, true, "cuMemcpy")
    }

    fn cuMemcpyAsync[cuMemcpyAsync_ptsz](dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, stream: CUstream) {
        linear(dst, src, byte_count, ANY, stream, false, "cuMemcpyAsync")
    }

    fn cuMemcpyHtoD_v2[cuMemcpyHtoD_v2_ptds](dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize) {
        linear(dst_device, src_host as u64, byte_count, TO_DEVICE, CUstream::NULL, true, "cuMemcpyHtoD_v2")
    }

    fn cuMemcpyDtoH_v2[cuMemcpyDtoH_v2_ptds](dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize) {
        linear(dst_host as u64, src_device, byte_count, TO_HOST, CUstream::NULL, true, "cuMemcpyDtoH_v2")
    }

    fn cuMemcpyDtoD_v2[cuMemcpyDtoD_v2_ptds](dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize) {
        linear(dst_device, src_device, byte_count, DEVICE_ONLY, CUstream::NULL, true, "cuMemcpyDtoD_v2")
    }

    fn cuMemcpyHtoDAsync_v2[cuMemcpyHtoDAsync_v2_ptsz](dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream) {
        linear(dst_device, src_host as u64, byte_count, TO_DEVICE, stream, false, "cuMemcpyHtoDAsync_v2")
    }

    fn cuMemcpyDtoHAsync_v2[cuMemcpyDtoHAsync_v2_ptsz](dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream) {
        linear(dst_host as u64, src_device, byte_count, TO_HOST, stream, false, "cuMemcpyDtoHAsync_v2")
    }

    fn cuMemcpyDtoDAsync_v2[cuMemcpyDtoDAsync_v2_ptsz](dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream) {
        linear(dst_device, src_device, byte_count, DEVICE_ONLY, stream, false, "cuMemcpyDtoDAsync_v2")
    }

    fn cuMemcpyPeer[cuMemcpyPeer_ptds](dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize) {
        let m = crate::device::machine()?;
        for ctx in [dst_context, src_context] {
            crate::device::context::named(m, ctx.0 as usize)?;
        }
        linear(dst_device, src_device, byte_count, DEVICE_ONLY, CUstream::NULL, true, "cuMemcpyPeer")
    }

    fn cuMemcpyPeerAsync[cuMemcpyPeerAsync_ptsz](dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, stream: CUstream) {
        let m = crate::device::machine()?;
        for ctx in [dst_context, src_context] {
            crate::device::context::named(m, ctx.0 as usize)?;
        }
        linear(dst_device, src_device, byte_count, DEVICE_ONLY, stream, false, "cuMemcpyPeerAsync")
    }

    fn cuMemcpy2D_v2[cuMemcpy2D_v2_ptds](copy_: *const CUDA_MEMCPY2D) {
        let c = get(copy_)?;
        planned(CUstream::NULL, true, "cuMemcpy2D_v2", |m, call| plan_2d(m, c, call))
    }

    fn cuMemcpy2DUnaligned_v2[cuMemcpy2DUnaligned_v2_ptds](copy_: *const CUDA_MEMCPY2D) {
        let c = get(copy_)?;
        planned(CUstream::NULL, true, "cuMemcpy2DUnaligned_v2", |m, call| plan_2d(m, c, call))
    }

    fn cuMemcpy3D_v2[cuMemcpy3D_v2_ptds](copy_: *const CUDA_MEMCPY3D) {
        let c = get(copy_)?;
        planned(CUstream::NULL, true, "cuMemcpy3D_v2", |m, call| plan_3d(m, c, call))
    }

    fn cuMemcpy2DAsync_v2[cuMemcpy2DAsync_v2_ptsz](copy_: *const CUDA_MEMCPY2D, stream: CUstream) {
        let c = get(copy_)?;
        planned(stream, false, "cuMemcpy2DAsync_v2", |m, call| plan_2d(m, c, call))
    }

    fn cuMemcpy3DAsync_v2[cuMemcpy3DAsync_v2_ptsz](copy_: *const CUDA_MEMCPY3D, stream: CUstream) {
        let c = get(copy_)?;
        planned(stream, false, "cuMemcpy3DAsync_v2", |m, call| plan_3d(m, c, call))
    }

    fn cuMemcpy3DPeer[cuMemcpy3DPeer_ptds](copy_: *const CUDA_MEMCPY3D_PEER) {
        let c = peer(get(copy_)?);
        planned(CUstream::NULL, true, "cuMemcpy3DPeer", |m, call| plan_3d(m, &c, call))
    }

    fn cuMemcpy3DPeerAsync[cuMemcpy3DPeerAsync_ptsz](copy_: *const CUDA_MEMCPY3D_PEER, stream: CUstream) {
        let c = peer(get(copy_)?);
        planned(stream, false, "cuMemcpy3DPeerAsync", |m, call| plan_3d(m, &c, call))
    }

    fn cuMemcpyBatchAsync[cuMemcpyBatchAsync_ptsz](dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes,
        attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, stream: CUstream) {
        let _ = (attrs, attrs_idxs);
        code(batch(dsts, srcs, sizes, count, num_attrs, stream), fail_idx)
    }

    fn cuMemcpyBatchAsync_v2[cuMemcpyBatchAsync_v2_ptsz](dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes,
        attrs_idxs: *mut usize, num_attrs: usize, stream: CUstream) {
        let _ = (attrs, attrs_idxs);
        code(batch(dsts, srcs, sizes, count, num_attrs, stream), std::ptr::null_mut())
    }

    fn cuMemcpy3DBatchAsync[cuMemcpy3DBatchAsync_ptsz](num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong, stream: CUstream) {
        code(batch_3d(num_ops, op_list, flags, stream), fail_idx)
    }

    fn cuMemcpy3DBatchAsync_v2[cuMemcpy3DBatchAsync_v2_ptsz](num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream) {
        code(batch_3d(num_ops, op_list, flags, stream), std::ptr::null_mut())
    }

    fn cuMemsetD8_v2[cuMemsetD8_v2_ptds](dst_device: CUdeviceptr, uc: c_uchar, n: usize) {
        fill(row(dst_device, u32::from(uc), 1, n), CUstream::NULL, true, "cuMemsetD8_v2")
    }

    fn cuMemsetD8Async[cuMemsetD8Async_ptsz](dst_device: CUdeviceptr, uc: c_uchar, n: usize, stream: CUstream) {
        fill(row(dst_device, u32::from(uc), 1, n), stream, false, "cuMemsetD8Async")
    }

    fn cuMemsetD2D8_v2[cuMemsetD2D8_v2_ptds](dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize) {
        fill(rows(dst_device, dst_pitch, u32::from(uc), 1, width, height), CUstream::NULL, true, "cuMemsetD2D8_v2")
    }

    fn cuMemsetD2D8Async[cuMemsetD2D8Async_ptsz](dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize,
        stream: CUstream) {
        fill(rows(dst_device, dst_pitch, u32::from(uc), 1, width, height), stream, false, "cuMemsetD2D8Async")
    }

    fn cuMemsetD16_v2[cuMemsetD16_v2_ptds](dst_device: CUdeviceptr, us: c_ushort, n: usize) {
        fill(row(dst_device, u32::from(us), 2, n), CUstream::NULL, true, "cuMemsetD16_v2")
    }

    fn cuMemsetD16Async[cuMemsetD16Async_ptsz](dst_device: CUdeviceptr, us: c_ushort, n: usize, stream: CUstream) {
        fill(row(dst_device, u32::from(us), 2, n), stream, false, "cuMemsetD16Async")
    }

    fn cuMemsetD2D16_v2[cuMemsetD2D16_v2_ptds](dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize) {
        fill(rows(dst_device, dst_pitch, u32::from(us), 2, width, height), CUstream::NULL, true, "cuMemsetD2D16_v2")
    }

    fn cuMemsetD2D16Async[cuMemsetD2D16Async_ptsz](dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize,
        stream: CUstream) {
        fill(rows(dst_device, dst_pitch, u32::from(us), 2, width, height), stream, false, "cuMemsetD2D16Async")
    }

    fn cuMemsetD32_v2[cuMemsetD32_v2_ptds](dst_device: CUdeviceptr, ui: c_uint, n: usize) {
        fill(row(dst_device, ui, 4, n), CUstream::NULL, true, "cuMemsetD32_v2")
    }

    fn cuMemsetD32Async[cuMemsetD32Async_ptsz](dst_device: CUdeviceptr, ui: c_uint, n: usize, stream: CUstream) {
        fill(row(dst_device, ui, 4, n), stream, false, "cuMemsetD32Async")
    }

    fn cuMemsetD2D32_v2[cuMemsetD2D32_v2_ptds](dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize) {
        fill(rows(dst_device, dst_pitch, ui, 4, width, height), CUstream::NULL, true, "cuMemsetD2D32_v2")
    }

    fn cuMemsetD2D32Async[cuMemsetD2D32Async_ptsz](dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize,
        stream: CUstream) {
        fill(rows(dst_device, dst_pitch, ui, 4, width, height), stream, false, "cuMemsetD2D32Async")
    }
}
