//! Arrays and mipmapped arrays, and copies of one row to and from arrays.

use std::ffi::{c_uint, c_void};

use fercuda_cuda_sys::types::*;

use super::{get, per_thread, put};
use crate::device::array;
use crate::device::context::current;
use crate::device::copy::array_side;
use crate::device::image_objects::SoftArray;
use crate::device::launch::copy;
use crate::device::memory::is_ours;
use crate::device::objects::{CopyPlan, CopySide};
use crate::device::range::{ByteRows, HostAccess, check_range};
use crate::device::stream::of_call;
use crate::device::{CuResult, Machine, err, machine};

fn find(m: &Machine, array: CUarray) -> CuResult<std::sync::Arc<SoftArray>> {
    m.arrays.get(array.0 as usize).ok_or(err::INVALID_HANDLE)
}

/// A side of a copy between an array and something else.
#[derive(Clone, Copy)]
enum RowSide {
    Array(CUarray, usize),
    Device(u64),
    Host(u64),
}

impl RowSide {
    /// Where `len` bytes are.
    fn place(self, m: &Machine, len: u64, access: HostAccess) -> CuResult<CopySide> {
        let (at, is_device) = match self {
            RowSide::Array(array, offset) => {
                let found = find(m, array)?;
                // Rows one behind the other count as one where nothing lies between them.
                let (row, pitch) = (found.row_bytes(), found.level.pitch);
                let rows = u64::from(found.level.extent[1]) * found.slices();
                if rows > 1 && row == pitch && row > 0 {
                    let offset = offset as u64;
                    let end = offset.checked_add(len).ok_or(err::INVALID_VALUE)?;
                    let texel = u64::from(found.format.bytes());
                    let is_whole = offset.is_multiple_of(texel) && len.is_multiple_of(texel);
                    if end > row * rows || !is_whole {
                        return Err(err::INVALID_VALUE);
                    }
                    return Ok(run(found.level.at + offset, len));
                }
                return array_side(m, array.0 as usize, [offset as u64, 0, 0], [len, 1, 1]);
            }
            RowSide::Device(at) => (at, true),
            RowSide::Host(at) => (at, false),
        };
        if at == 0 {
            return Err(err::INVALID_VALUE);
        }
        if is_device || is_ours(m, at) {
            check_range(m, ByteRows::linear(at, len), access)?;
        }
        Ok(run(at, len))
    }
}

fn run(at: u64, len: u64) -> CopySide {
    CopySide {
        at,
        pitch: len,
        slice: len,
    }
}

fn row(
    dst: RowSide,
    src: RowSide,
    len: usize,
    stream: CUstream,
    wait: bool,
    call: &'static str,
) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    let len = len as u64;
    if len == 0 {
        return Ok(());
    }
    let plan = CopyPlan {
        dst: dst.place(m, len, HostAccess::write(call))?,
        src: src.place(m, len, HostAccess::read(call))?,
        width: len,
        height: 1,
        depth: 1,
        staged: None,
    };
    copy(m, &ctx, &stream, plan, wait, call)
}

fn flat(d: &CUDA_ARRAY3D_DESCRIPTOR) -> CUDA_ARRAY_DESCRIPTOR {
    CUDA_ARRAY_DESCRIPTOR {
        Width: d.Width,
        Height: d.Height,
        Format: d.Format,
        NumChannels: d.NumChannels,
    }
}

fn requirements(bytes: u64) -> CUDA_ARRAY_MEMORY_REQUIREMENTS {
    CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: bytes as usize,
        alignment: 512,
        ..CUDA_ARRAY_MEMORY_REQUIREMENTS::default()
    }
}

driver_fns! {
    fn cuArrayCreate_v2[](handle: *mut CUarray, allocate_array: *const CUDA_ARRAY_DESCRIPTOR) {
        let (m, ctx) = current()?;
        let d = get(allocate_array)?;
        if handle.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let wide = CUDA_ARRAY3D_DESCRIPTOR {
            Width: d.Width,
            Height: d.Height,
            Format: d.Format,
            NumChannels: d.NumChannels,
            ..CUDA_ARRAY3D_DESCRIPTOR::default()
        };
        put(handle, CUarray(array::create(m, &ctx, wide, "cuArrayCreate_v2")? as *mut _))
    }

    fn cuArray3DCreate_v2[](handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR) {
        let (m, ctx) = current()?;
        let d = *get(allocate_array)?;
        if handle.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(handle, CUarray(array::create(m, &ctx, d, "cuArray3DCreate_v2")? as *mut _))
    }

    fn cuArrayGetDescriptor_v2[](array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) {
        put(array_descriptor, flat(&find(current()?.0, array)?.description))
    }

    fn cuArray3DGetDescriptor_v2[](array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) {
        put(array_descriptor, find(current()?.0, array)?.description)
    }

    fn cuArrayDestroy[](array: CUarray) {
        array::destroy(machine()?, array.0 as usize)
    }

    fn cuArrayGetMemoryRequirements[](
        memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice,
    ) {
        let m = machine()?;
        m.device(device)?;
        let array = find(m, array)?;
        put(memory_requirements, requirements(array.level.slice * array.slices()))
    }

    fn cuMipmappedArrayGetMemoryRequirements[](
        memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray, device: CUdevice,
    ) {
        let m = machine()?;
        m.device(device)?;
        let mipmap = m.mipmaps.get(mipmap.0 as usize).ok_or(err::INVALID_HANDLE)?;
        let bytes = mipmap.levels.iter().map(|a| (a.level.slice * a.slices()).next_multiple_of(512)).sum();
        put(memory_requirements, requirements(bytes))
    }

    fn cuMipmappedArrayCreate[](
        handle: *mut CUmipmappedArray, mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR, num_mipmap_levels: c_uint,
    ) {
        let (m, ctx) = current()?;
        let d = *get(mipmapped_array_desc)?;
        if handle.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let made = array::create_mipmapped(m, &ctx, d, num_mipmap_levels)?;
        put(handle, CUmipmappedArray(made as *mut _))
    }

    fn cuMipmappedArrayGetLevel[](level_array: *mut CUarray, mipmapped_array: CUmipmappedArray, level: c_uint) {
        let (m, _) = current()?;
        let mipmap = m.mipmaps.get(mipmapped_array.0 as usize).ok_or(err::INVALID_HANDLE)?;
        let array = mipmap.levels.get(level as usize).ok_or(err::INVALID_VALUE)?;
        put(level_array, CUarray(array.handle as *mut _))
    }

    fn cuMipmappedArrayDestroy[](mipmapped_array: CUmipmappedArray) {
        array::destroy_mipmapped(machine()?, mipmapped_array.0 as usize)
    }

    fn cuMemcpyDtoA_v2[cuMemcpyDtoA_v2_ptds](dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize) {
        let (dst, src) = (RowSide::Array(dst_array, dst_offset), RowSide::Device(src_device));
        row(dst, src, byte_count, CUstream::NULL, true, "cuMemcpyDtoA_v2")
    }

    fn cuMemcpyAtoD_v2[cuMemcpyAtoD_v2_ptds](dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize) {
        let (dst, src) = (RowSide::Device(dst_device), RowSide::Array(src_array, src_offset));
        row(dst, src, byte_count, CUstream::NULL, true, "cuMemcpyAtoD_v2")
    }

    fn cuMemcpyHtoA_v2[cuMemcpyHtoA_v2_ptds](dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize) {
        let (dst, src) = (RowSide::Array(dst_array, dst_offset), RowSide::Host(src_host as u64));
        row(dst, src, byte_count, CUstream::NULL, true, "cuMemcpyHtoA_v2")
    }

    fn cuMemcpyAtoH_v2[cuMemcpyAtoH_v2_ptds](dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize) {
        let (dst, src) = (RowSide::Host(dst_host as u64), RowSide::Array(src_array, src_offset));
        row(dst, src, byte_count, CUstream::NULL, true, "cuMemcpyAtoH_v2")
    }

    fn cuMemcpyAtoA_v2[cuMemcpyAtoA_v2_ptds](
        dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize, byte_count: usize,
    ) {
        let (dst, src) = (RowSide::Array(dst_array, dst_offset), RowSide::Array(src_array, src_offset));
        row(dst, src, byte_count, CUstream::NULL, true, "cuMemcpyAtoA_v2")
    }

    fn cuMemcpyHtoAAsync_v2[cuMemcpyHtoAAsync_v2_ptsz](
        dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, stream: CUstream,
    ) {
        let (dst, src) = (RowSide::Array(dst_array, dst_offset), RowSide::Host(src_host as u64));
        row(dst, src, byte_count, stream, false, "cuMemcpyHtoAAsync_v2")
    }

    fn cuMemcpyAtoHAsync_v2[cuMemcpyAtoHAsync_v2_ptsz](
        dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, stream: CUstream,
    ) {
        let (dst, src) = (RowSide::Host(dst_host as u64), RowSide::Array(src_array, src_offset));
        row(dst, src, byte_count, stream, false, "cuMemcpyAtoHAsync_v2")
    }
}
