//! Encoding of tensor maps: what the manual's rules allow, and another address for a map.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, d};

/// Arguments of a map of two dimensions.
#[derive(Clone, Copy)]
struct Map {
    kind: u32,
    rank: u32,
    at: u64,
    dims: [u64; 2],
    stride: u64,
    size: [u32; 2],
    steps: [u32; 2],
    interleave: u32,
    swizzle: u32,
    fill: u32,
}

const MAP: Map = Map {
    kind: 6,
    rank: 2,
    at: 4096,
    dims: [64, 32],
    stride: 128,
    size: [64, 8],
    steps: [1, 1],
    interleave: 0,
    swizzle: 3,
    fill: 0,
};

fn encode(m: Map) -> (CUresult, CUtensorMap) {
    let mut map = CUtensorMap { opaque: [0; 16] };
    let code = code!(cuTensorMapEncodeTiled(
        &mut map,
        CUtensorMapDataType(m.kind),
        m.rank,
        m.at as *mut c_void,
        m.dims.as_ptr(),
        &m.stride,
        m.size.as_ptr(),
        m.steps.as_ptr(),
        CUtensorMapInterleave(m.interleave),
        CUtensorMapSwizzle(m.swizzle),
        CUtensorMapL2promotion(0),
        CUtensorMapFloatOOBfill(m.fill),
    ));
    (code, map)
}

#[test]
fn a_map_within_the_rules_is_encoded_and_others_are_invalid() {
    d();
    let _ctx = Ctx::new();
    for fine in [
        MAP,
        Map {
            dims: [64, 1 << 32],
            ..MAP
        },
        Map {
            size: [64, 256],
            ..MAP
        },
        // A stride of elements in the innermost dimension changes nothing, but has to be one.
        Map {
            steps: [8, 8],
            ..MAP
        },
        Map { fill: 1, ..MAP },
    ] {
        assert_eq!(encode(fine).0, CUresult::CUDA_SUCCESS);
    }
    for (n, wrong) in [
        Map { kind: 13, ..MAP },
        Map { rank: 0, ..MAP },
        Map { rank: 6, ..MAP },
        Map { at: 4104, ..MAP },
        Map {
            dims: [64, 0],
            ..MAP
        },
        Map { stride: 136, ..MAP },
        Map {
            stride: 1 << 40,
            ..MAP
        },
        Map {
            size: [64, 257],
            ..MAP
        },
        Map {
            size: [68, 8],
            swizzle: 0,
            ..MAP
        },
        Map {
            size: [72, 8],
            ..MAP
        },
        Map {
            steps: [1, 9],
            ..MAP
        },
        Map {
            interleave: 1,
            ..MAP
        },
        Map {
            steps: [0, 1],
            ..MAP
        },
        // Of later devices.
        Map { swizzle: 4, ..MAP },
        Map { swizzle: 7, ..MAP },
        Map {
            fill: 1,
            kind: 1,
            ..MAP
        },
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(encode(wrong).0, CUresult::CUDA_ERROR_INVALID_VALUE, "{n}");
    }
}

#[test]
fn a_map_gets_another_address_and_memory_without_one_does_not() {
    d();
    let _ctx = Ctx::new();
    let (_, mut map) = encode(MAP);
    let moved = encode(Map { at: 8192, ..MAP }).1;
    ok!(cuTensorMapReplaceAddress(&mut map, 8192 as *mut c_void));
    assert_eq!(map.opaque, moved.opaque);
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTensorMapReplaceAddress(&mut map, 8200 as *mut c_void)
    );
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTensorMapReplaceAddress(null_mut(), 8192 as *mut c_void)
    );
    let mut none = CUtensorMap { opaque: [7; 16] };
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTensorMapReplaceAddress(&mut none, 8192 as *mut c_void)
    );
}

#[test]
fn a_map_of_pixels_has_corners_in_range() {
    d();
    let _ctx = Ctx::new();
    let encode = |lower: [i32; 2], channels: u32, pixels: u32| {
        let mut map = CUtensorMap { opaque: [0; 16] };
        let (dims, strides) = ([64u64, 9, 14, 3], [128u64, 1152, 16128]);
        code!(cuTensorMapEncodeIm2col(
            &mut map,
            CUtensorMapDataType(6),
            4,
            4096 as *mut c_void,
            dims.as_ptr(),
            strides.as_ptr(),
            lower.as_ptr(),
            [-1i32, -1].as_ptr(),
            channels,
            pixels,
            [1u32; 4].as_ptr(),
            CUtensorMapInterleave(0),
            CUtensorMapSwizzle(0),
            CUtensorMapL2promotion(0),
            CUtensorMapFloatOOBfill(0),
        ))
    };
    assert_eq!(encode([-1, -1], 8, 64), CUresult::CUDA_SUCCESS);
    for (lower, channels, pixels) in [
        ([-129, 0], 8, 64),
        ([9, 0], 8, 64),
        ([0, 0], 257, 64),
        ([0, 0], 4, 64),
        ([0, 0], 8, 1025),
        ([0, 0], 8, 0),
    ] {
        let code = encode(lower, channels, pixels);
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE, "{lower:?}");
    }
    let mut map = CUtensorMap { opaque: [0; 16] };
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTensorMapEncodeTiled(
            &mut map,
            CUtensorMapDataType(6),
            2,
            4096 as *mut c_void,
            null(),
            null(),
            null(),
            null(),
            CUtensorMapInterleave(0),
            CUtensorMapSwizzle(0),
            CUtensorMapL2promotion(0),
            CUtensorMapFloatOOBfill(0),
        )
    );
}
