//! Arrays and mipmapped arrays: images in device memory that kernels reach through textures and
//! surfaces only.
//!
//! An array lies in memory row by row, each row a multiple of [`ROW_ALIGN`] bytes; the levels of a
//! mipmapped array lie one behind the other.

use std::sync::Arc;

use fercuda_cuda_sys::types::{
    CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SURFACE_LDST,
    CUDA_ARRAY3D_TEXTURE_GATHER, CUarray_format, CUdevice_attribute,
};

use super::attributes;
use super::image_objects::{SoftArray, SoftMipmap};
use super::memory::alloc_array;
use super::objects::SoftContext;
use super::release::free_array;
use super::{CuResult, Machine, SoftDevice, err};
use crate::exec::{ComponentType, ImageLevel, TexelFormat};

/// Rows begin at multiples of this, in bytes.
const ROW_ALIGN: u64 = 32;
/// Levels begin at multiples of this, in bytes.
const LEVEL_ALIGN: u64 = 512;

/// `CUDA_ARRAY3D_COLOR_ATTACHMENT`, which is for graphics and changes nothing here.
const COLOR_ATTACHMENT: u32 = 0x20;

/// The texel format of a driver's format, if the device has it.
pub(crate) fn texel_format(format: CUarray_format, channels: u32) -> CuResult<TexelFormat> {
    use CUarray_format as F;
    let plain = |component| (component, channels, false);
    let fraction = |component, channels| (component, channels, true);
    let (component, count, is_fraction) = match format {
        F::CU_AD_FORMAT_UNSIGNED_INT8 => plain(ComponentType::U8),
        F::CU_AD_FORMAT_UNSIGNED_INT16 => plain(ComponentType::U16),
        F::CU_AD_FORMAT_UNSIGNED_INT32 => plain(ComponentType::U32),
        F::CU_AD_FORMAT_SIGNED_INT8 => plain(ComponentType::S8),
        F::CU_AD_FORMAT_SIGNED_INT16 => plain(ComponentType::S16),
        F::CU_AD_FORMAT_SIGNED_INT32 => plain(ComponentType::S32),
        F::CU_AD_FORMAT_HALF => plain(ComponentType::F16),
        F::CU_AD_FORMAT_FLOAT => plain(ComponentType::F32),
        F::CU_AD_FORMAT_UNORM_INT8X1 => fraction(ComponentType::U8, 1),
        F::CU_AD_FORMAT_UNORM_INT8X2 => fraction(ComponentType::U8, 2),
        F::CU_AD_FORMAT_UNORM_INT8X4 => fraction(ComponentType::U8, 4),
        F::CU_AD_FORMAT_UNORM_INT16X1 => fraction(ComponentType::U16, 1),
        F::CU_AD_FORMAT_UNORM_INT16X2 => fraction(ComponentType::U16, 2),
        F::CU_AD_FORMAT_UNORM_INT16X4 => fraction(ComponentType::U16, 4),
        F::CU_AD_FORMAT_SNORM_INT8X1 => fraction(ComponentType::S8, 1),
        F::CU_AD_FORMAT_SNORM_INT8X2 => fraction(ComponentType::S8, 2),
        F::CU_AD_FORMAT_SNORM_INT8X4 => fraction(ComponentType::S8, 4),
        F::CU_AD_FORMAT_SNORM_INT16X1 => fraction(ComponentType::S16, 1),
        F::CU_AD_FORMAT_SNORM_INT16X2 => fraction(ComponentType::S16, 2),
        F::CU_AD_FORMAT_SNORM_INT16X4 => fraction(ComponentType::S16, 4),
        known if F::ALL.iter().any(|&(f, _)| f == known) => return Err(err::NOT_SUPPORTED),
        _ => return Err(err::INVALID_VALUE),
    };
    if count != channels || !matches!(channels, 1 | 2 | 4) {
        return Err(err::INVALID_VALUE);
    }
    Ok(TexelFormat {
        component,
        channels,
        fraction: is_fraction,
    })
}

/// The size of an array as its description says it.
#[derive(Debug, Clone, Copy)]
struct ArrayShape {
    extent: [u32; 3],
    layers: u32,
}

/// The device attributes that hold the largest size of a kind of array: width, height, depth or
/// layers. 0 stands for a dimension that it does not have.
fn limits(d: &CUDA_ARRAY3D_DESCRIPTOR) -> [u32; 3] {
    let has = |flag| d.Flags & flag != 0;
    let (layered, cube, surface) = (
        has(CUDA_ARRAY3D_LAYERED),
        has(CUDA_ARRAY3D_CUBEMAP),
        has(CUDA_ARRAY3D_SURFACE_LDST),
    );
    match (cube, layered, d.Height, d.Depth) {
        (true, false, ..) if surface => [66, 66, 0],
        (true, false, ..) => [52, 52, 0],
        (true, true, ..) if surface => [67, 67, 68],
        (true, true, ..) => [53, 53, 54],
        (_, true, 0, _) if surface => [61, 0, 62],
        (_, true, 0, _) => [42, 0, 43],
        (_, true, ..) if surface => [63, 64, 65],
        (_, true, ..) => [27, 28, 29],
        (.., 0, 0) if surface => [55, 0, 0],
        (.., 0, 0) => [21, 0, 0],
        (.., 0) if surface => [56, 57, 0],
        (.., 0) if has(CUDA_ARRAY3D_TEXTURE_GATHER) => [45, 46, 0],
        (.., 0) => [22, 23, 0],
        _ if surface => [58, 59, 60],
        _ => [24, 25, 26],
    }
}

fn shape(
    m: &Machine,
    device: &SoftDevice,
    d: &CUDA_ARRAY3D_DESCRIPTOR,
    mipmapped: bool,
) -> CuResult<ArrayShape> {
    let known = CUDA_ARRAY3D_LAYERED
        | CUDA_ARRAY3D_SURFACE_LDST
        | CUDA_ARRAY3D_CUBEMAP
        | CUDA_ARRAY3D_TEXTURE_GATHER
        | COLOR_ATTACHMENT;
    if d.Flags >= 0x200 {
        return Err(err::INVALID_VALUE);
    }
    if d.Flags & !known != 0 {
        return Err(err::NOT_SUPPORTED);
    }
    let has = |flag| d.Flags & flag != 0;
    let (layered, cube) = (has(CUDA_ARRAY3D_LAYERED), has(CUDA_ARRAY3D_CUBEMAP));
    let is_flat = d.Height > 0 && d.Depth == 0;
    let fits = match (cube, layered) {
        (true, false) => d.Width == d.Height && d.Depth == 6,
        (true, true) => d.Width == d.Height && d.Depth > 0 && d.Depth.is_multiple_of(6),
        (false, true) => d.Depth > 0,
        (false, false) => d.Height > 0 || d.Depth == 0,
    };
    let gathers = !has(CUDA_ARRAY3D_TEXTURE_GATHER) || is_flat;
    if d.Width == 0 || !fits || !gathers {
        return Err(err::INVALID_VALUE);
    }
    let sizes = [d.Width, d.Height, d.Depth];
    for (size, attribute) in sizes.into_iter().zip(limits(d)) {
        // Mipmapped arrays have a limit of their own in two dimensions.
        let attribute = match (mipmapped, attribute) {
            (true, 21) => 77,
            (true, 22) => 73,
            (true, 23) => 74,
            (_, attribute) => attribute,
        };
        if attribute == 0 {
            continue;
        }
        let limit = attributes::device(m, device.ordinal, CUdevice_attribute(attribute))?;
        if size > limit as usize {
            return Err(err::INVALID_VALUE);
        }
    }
    let has_layers = layered || cube;
    let at_least_one = |n: usize| (n as u32).max(1);
    Ok(ArrayShape {
        extent: [
            at_least_one(d.Width),
            at_least_one(d.Height),
            if has_layers { 1 } else { at_least_one(d.Depth) },
        ],
        layers: if has_layers { d.Depth as u32 } else { 0 },
    })
}

/// A level at `at`, and where it ends.
fn level(at: u64, format: TexelFormat, shape: ArrayShape) -> (ImageLevel, u64) {
    let [width, height, depth] = shape.extent.map(u64::from);
    let row = width * u64::from(format.bytes());
    let pitch = match height * depth * u64::from(shape.layers.max(1)) {
        1 => row,
        _ => row.next_multiple_of(ROW_ALIGN),
    };
    let slice = pitch * height;
    let end = at + slice * depth * u64::from(shape.layers.max(1));
    let level = ImageLevel {
        at,
        pitch,
        slice,
        extent: shape.extent,
    };
    (level, end)
}

/// Bytes that an array or a mipmapped array of `levels` levels takes.
fn bytes(format: TexelFormat, shape: ArrayShape, levels: u32) -> u64 {
    (0..levels).fold(0u64, |at, n| {
        level(at.next_multiple_of(LEVEL_ALIGN), format, smaller(shape, n)).1
    })
}

/// The shape of level `n`.
fn smaller(shape: ArrayShape, n: u32) -> ArrayShape {
    ArrayShape {
        extent: shape.extent.map(|size| (size >> n).max(1)),
        ..shape
    }
}

pub(crate) fn create(
    m: &Machine,
    ctx: &SoftContext,
    d: CUDA_ARRAY3D_DESCRIPTOR,
    call: &'static str,
) -> CuResult<usize> {
    let format = texel_format(d.Format, d.NumChannels)?;
    let shape = shape(m, &m.devices[ctx.device as usize], &d, false)?;
    let start = alloc_array(m, ctx, bytes(format, shape, 1), call)?;
    let (level, _) = level(start, format, shape);
    let make = |handle| {
        Arc::new(SoftArray {
            handle,
            ctx_id: ctx.id,
            description: d,
            format,
            level,
            layers: shape.layers,
            is_level: false,
        })
    };
    Ok(m.arrays.insert_with(make).0)
}

pub(crate) fn create_mipmapped(
    m: &Machine,
    ctx: &SoftContext,
    d: CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> CuResult<usize> {
    let format = texel_format(d.Format, d.NumChannels)?;
    let shape = shape(m, &m.devices[ctx.device as usize], &d, true)?;
    let largest = shape.extent.into_iter().max().unwrap_or(1);
    let levels = levels.clamp(1, 1 + largest.ilog2());
    let len = bytes(format, shape, levels);
    let start = alloc_array(m, ctx, len, "cuMipmappedArrayCreate")?;
    let mut at = start;
    let mut made = Vec::new();
    for n in 0..levels {
        let part = smaller(shape, n);
        let (level, end) = level(at.next_multiple_of(LEVEL_ALIGN), format, part);
        at = end;
        let halved = |size: usize, part: u32| if size == 0 { 0 } else { part as usize };
        let description = CUDA_ARRAY3D_DESCRIPTOR {
            Width: part.extent[0] as usize,
            Height: halved(d.Height, part.extent[1]),
            Depth: match shape.layers {
                0 => halved(d.Depth, part.extent[2]),
                layers => layers as usize,
            },
            ..d
        };
        let make = |handle| {
            Arc::new(SoftArray {
                handle,
                ctx_id: ctx.id,
                description,
                format,
                level,
                layers: shape.layers,
                is_level: true,
            })
        };
        made.push(m.arrays.insert_with(make).1);
    }
    let make = |handle| {
        Arc::new(SoftMipmap {
            handle,
            ctx_id: ctx.id,
            description: d,
            levels: made,
        })
    };
    Ok(m.mipmaps.insert_with(make).0)
}

/// `cuArrayDestroy`; the levels of a mipmapped array go with it only.
pub(crate) fn destroy(m: &Machine, handle: usize) -> CuResult {
    let array = m.arrays.get(handle).ok_or(err::INVALID_HANDLE)?;
    if array.is_level {
        return Err(err::INVALID_VALUE);
    }
    m.arrays.remove(handle).ok_or(err::INVALID_HANDLE)?;
    free_array(m, array.level.at, "cuArrayDestroy")
}

pub(crate) fn destroy_mipmapped(m: &Machine, handle: usize) -> CuResult {
    let mipmap = m.mipmaps.remove(handle).ok_or(err::INVALID_HANDLE)?;
    for level in &mipmap.levels {
        m.arrays.remove(level.handle);
    }
    free_array(m, mipmap.levels[0].level.at, "cuMipmappedArrayDestroy")
}

/// Removes the arrays of a context, of which the memory has been freed.
pub(crate) fn forget_context(m: &Machine, ctx_id: u64) {
    for array in m.arrays.all().iter().filter(|a| a.ctx_id == ctx_id) {
        m.arrays.remove(array.handle);
    }
    for mipmap in m.mipmaps.all().iter().filter(|a| a.ctx_id == ctx_id) {
        m.mipmaps.remove(mipmap.handle);
    }
}
