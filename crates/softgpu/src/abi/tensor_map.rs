//! Tensor maps of programs: encoding, and another address for one.

use std::ffi::{c_int, c_void};

use fercuda_cuda_sys::types::*;

use super::{get, slice};
use crate::device::context::current;
use crate::device::{CuResult, err};
use crate::tensor_map::{
    Interleave, MAX_RANK, MapElement, MapMode, Swizzle, TENSOR_MAP_BYTES, TensorMap,
};

/// What both kinds of maps have.
struct MapArguments {
    element: CUtensorMapDataType,
    rank: u32,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    steps: *const u32,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    promotion: CUtensorMapL2promotion,
    fill: CUtensorMapFloatOOBfill,
}

/// The first of an array of the client's, and what the rest of a map has.
unsafe fn padded<T: Copy, const N: usize>(at: *const T, len: usize, rest: T) -> CuResult<[T; N]> {
    let mut out = [rest; N];
    // SAFETY: the client promises `len` of `T` there.
    let found = unsafe { slice(at, len)? };
    out.get_mut(..found.len())
        .ok_or(err::INVALID_VALUE)?
        .copy_from_slice(found);
    Ok(out)
}

/// A map of these arguments, of which the box is still to be given.
unsafe fn common(mode: MapMode, a: &MapArguments) -> CuResult<TensorMap> {
    let rank = a.rank as usize;
    if !(1..=MAX_RANK).contains(&rank) || a.promotion.0 > 3 || a.fill.0 > 1 {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the client promises arrays as long as the manual says.
    let (dims, strides, steps) = unsafe {
        (
            padded(a.dims, rank, 1)?,
            padded(a.strides, rank - 1, 0)?,
            padded(a.steps, rank, 1)?,
        )
    };
    let mut steps: [u32; MAX_RANK] = steps;
    let interleave = Interleave::of(a.interleave.0).ok_or(err::INVALID_VALUE)?;
    if !(1..=8).contains(&steps[0]) {
        return Err(err::INVALID_VALUE);
    }
    if interleave == Interleave::None {
        // There is no stride in the innermost dimension.
        steps[0] = 1;
    }
    let swizzle = Swizzle::of(a.swizzle.0).ok_or(err::INVALID_VALUE)?;
    if swizzle.has_atoms() {
        // Of later devices alone.
        return Err(err::INVALID_VALUE);
    }
    Ok(TensorMap {
        mode,
        element: MapElement::of_driver(a.element.0).ok_or(err::INVALID_VALUE)?,
        rank: a.rank,
        interleave,
        swizzle,
        fills_nan: a.fill.0 == 1,
        address: a.address as u64,
        dims,
        strides,
        box_dims: [1; MAX_RANK],
        steps,
        lower: [0; 3],
        upper: [0; 3],
        channels: 1,
        pixels: 1,
    })
}

/// Writes a map that breaks no rule.
unsafe fn finish(out: *mut CUtensorMap, map: &TensorMap) -> CuResult {
    if out.is_null() || !out.addr().is_multiple_of(64) || map.fault().is_some() {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: not null, and the client promises room for a map; alignment is not required.
    unsafe {
        out.cast::<[u8; TENSOR_MAP_BYTES]>()
            .write_unaligned(map.pack())
    };
    Ok(())
}

driver_fns! {
    fn cuTensorMapEncodeTiled[](
        tensor_map: *mut CUtensorMap, tensor_data_type: CUtensorMapDataType, tensor_rank: u32,
        global_address: *mut c_void, global_dim: *const u64, global_strides: *const u64,
        box_dim: *const u32, element_strides: *const u32, interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle, l2_promotion: CUtensorMapL2promotion,
        oob_fill: CUtensorMapFloatOOBfill,
    ) {
        current()?;
        let mut map = common(MapMode::Tiled, &MapArguments {
            element: tensor_data_type,
            rank: tensor_rank,
            address: global_address,
            dims: global_dim,
            strides: global_strides,
            steps: element_strides,
            interleave,
            swizzle,
            promotion: l2_promotion,
            fill: oob_fill,
        })?;
        map.box_dims = padded(box_dim, tensor_rank as usize, 1)?;
        finish(tensor_map, &map)
    }

    fn cuTensorMapEncodeIm2col[](
        tensor_map: *mut CUtensorMap, tensor_data_type: CUtensorMapDataType, tensor_rank: u32,
        global_address: *mut c_void, global_dim: *const u64, global_strides: *const u64,
        pixel_box_lower_corner: *const c_int, pixel_box_upper_corner: *const c_int,
        channels_per_pixel: u32, pixels_per_column: u32, element_strides: *const u32,
        interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
        l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill,
    ) {
        current()?;
        let rank = tensor_rank as usize;
        if !(3..=MAX_RANK).contains(&rank) {
            return Err(err::INVALID_VALUE);
        }
        let mut map = common(MapMode::Im2col, &MapArguments {
            element: tensor_data_type,
            rank: tensor_rank,
            address: global_address,
            dims: global_dim,
            strides: global_strides,
            steps: element_strides,
            interleave,
            swizzle,
            promotion: l2_promotion,
            fill: oob_fill,
        })?;
        map.lower = padded(pixel_box_lower_corner, rank - 2, 0)?;
        map.upper = padded(pixel_box_upper_corner, rank - 2, 0)?;
        map.channels = channels_per_pixel;
        map.pixels = pixels_per_column;
        finish(tensor_map, &map)
    }

    fn cuTensorMapReplaceAddress[](tensor_map: *mut CUtensorMap, global_address: *mut c_void) {
        current()?;
        if tensor_map.is_null() || !tensor_map.addr().is_multiple_of(64) {
            return Err(err::INVALID_VALUE);
        }
        let bytes = get(tensor_map.cast::<[u8; TENSOR_MAP_BYTES]>().cast_const())?;
        let mut map = TensorMap::unpack(bytes).ok_or(err::INVALID_VALUE)?;
        map.address = global_address as u64;
        finish(tensor_map, &map)
    }
}
