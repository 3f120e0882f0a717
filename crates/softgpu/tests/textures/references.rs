//! Texture and surface references of modules.

use std::ptr::null_mut;

use fercuda_cuda_sys::types::*;

use crate::bench::{Bench, array, content, fill, kernel, load, results, shape};
use crate::common::{alloc, upload};

const U8: CUarray_format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8;
const U32: CUarray_format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32;

const DECLARED: &str = ".global .texref t;\n.global .surfref s;\n.tex .u64 old;";
const FETCH: &str = "tex.1d.v4.u32.s32 {%o0, %o1, %o2, %o3}, [t, {%v0}];";

fn reference(module: CUmodule, name: &std::ffi::CStr) -> CUtexref {
    let mut found = CUtexref::NULL;
    ok!(cuModuleGetTexRef(&mut found, module, name.as_ptr()));
    found
}

fn first(module: CUmodule, at: &[u32]) -> Vec<u32> {
    let inputs: Vec<[u32; 4]> = at.iter().map(|&x| [x, 0, 0, 0]).collect();
    results(module, 0, &inputs)
        .into_iter()
        .map(|o| o[0])
        .collect()
}

#[test]
fn a_reference_is_found_by_its_name_and_kind() {
    let _bench = Bench::new();
    let module = load(&kernel(DECLARED, FETCH));
    let (mut texture, mut surface) = (CUtexref::NULL, CUsurfref::NULL);
    for name in [c"t", c"old"] {
        ok!(cuModuleGetTexRef(&mut texture, module, name.as_ptr()));
    }
    ok!(cuModuleGetSurfRef(&mut surface, module, c"s".as_ptr()));
    for name in [c"s", c"nothing", c"k"] {
        fails!(
            CUDA_ERROR_NOT_FOUND,
            cuModuleGetTexRef(&mut texture, module, name.as_ptr())
        );
    }
    fails!(
        CUDA_ERROR_NOT_FOUND,
        cuModuleGetSurfRef(&mut surface, module, c"t".as_ptr())
    );
    // It is no variable with bytes.
    fails!(
        CUDA_ERROR_NOT_FOUND,
        cuModuleGetGlobal_v2(null_mut(), &mut 0, module, c"t".as_ptr())
    );
    let kept = reference(module, c"t");
    ok!(cuModuleUnload(module));
    fails!(CUDA_ERROR_INVALID_HANDLE, cuTexRefSetFlags(kept, 0));
}

#[test]
fn what_is_set_is_what_is_read_back() {
    let _bench = Bench::new();
    let mut made = CUtexref::NULL;
    ok!(cuTexRefCreate(&mut made));
    let image = array(&shape([4, 4, 0], U8, 4, 0));
    let (mut mode, mut filter) = (CUaddress_mode(9), CUfilter_mode(9));
    ok!(cuTexRefGetFlags(&mut 7, made));
    ok!(cuTexRefSetAddressMode(
        made,
        1,
        CUaddress_mode::CU_TR_ADDRESS_MODE_BORDER
    ));
    ok!(cuTexRefGetAddressMode(&mut mode, made, 1));
    assert_eq!(mode, CUaddress_mode::CU_TR_ADDRESS_MODE_BORDER);
    ok!(cuTexRefSetFilterMode(
        made,
        CUfilter_mode::CU_TR_FILTER_MODE_LINEAR
    ));
    ok!(cuTexRefGetFilterMode(&mut filter, made));
    assert_eq!(filter, CUfilter_mode::CU_TR_FILTER_MODE_LINEAR);
    ok!(cuTexRefSetMipmapLevelClamp(made, 1.0, 2.0));
    let (mut least, mut most) = (0.0, 0.0);
    ok!(cuTexRefGetMipmapLevelClamp(&mut least, &mut most, made));
    assert_eq!((least, most), (1.0, 2.0));
    let mut color = [1.0f32, 2.0, 3.0, 4.0];
    ok!(cuTexRefSetBorderColor(made, color.as_mut_ptr()));
    let mut got = [0.0f32; 4];
    ok!(cuTexRefGetBorderColor(got.as_mut_ptr(), made));
    assert_eq!(got, color);
    let mut bound = CUarray::NULL;
    fails!(CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&mut bound, made));
    fails!(CUDA_ERROR_INVALID_VALUE, cuTexRefSetArray(made, image, 0));
    ok!(cuTexRefSetArray(made, image, CU_TRSA_OVERRIDE_FORMAT));
    ok!(cuTexRefGetArray(&mut bound, made));
    assert_eq!(bound.0, image.0);
    let (mut format, mut channels) = (CUarray_format(0), 0);
    ok!(cuTexRefGetFormat(&mut format, &mut channels, made));
    assert_eq!((format, channels), (U8, 4));
    fails!(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFormat(made, U8, 3));
    fails!(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFlags(made, 1 << 20));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTexRefSetAddressMode(made, 3, CUaddress_mode(0))
    );
    ok!(cuTexRefDestroy(made));
    fails!(CUDA_ERROR_INVALID_HANDLE, cuTexRefGetFlags(&mut 0, made));
}

#[test]
fn a_kernel_reads_what_its_references_are_bound_to() {
    let _bench = Bench::new();
    let module = load(&kernel(DECLARED, FETCH));
    // Bound to nothing it reads as zero.
    assert_eq!(first(module, &[0, 1]), [0, 0]);
    let t = reference(module, c"t");
    let d = shape([8, 0, 0], U32, 1, 0);
    let image = array(&d);
    fill(
        image,
        &d,
        &(0..8u32)
            .flat_map(|n| (n * 5).to_le_bytes())
            .collect::<Vec<u8>>(),
    );
    ok!(cuTexRefSetArray(t, image, CU_TRSA_OVERRIDE_FORMAT));
    ok!(cuTexRefSetFlags(t, CU_TRSF_READ_AS_INTEGER));
    assert_eq!(first(module, &[0, 7, 9]), [0, 35, 35]);
    // Memory, from an address that is no multiple of the alignment.
    let bytes: Vec<u8> = (0..=255).collect();
    let memory = upload(&bytes);
    let mut before = 0;
    ok!(cuTexRefSetFormat(t, U8, 1));
    ok!(cuTexRefSetAddress_v2(&mut before, t, memory + 100, 100));
    assert_eq!(before, 100);
    assert_eq!(first(module, &[100, 199, 200]), [100, 199, 0]);
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTexRefSetAddress_v2(null_mut(), t, memory + 100, 100)
    );
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTexRefSetAddress_v2(&mut before, t, memory, 1 << 20)
    );
    let mut at = 0;
    ok!(cuTexRefGetAddress_v2(&mut at, t));
    assert_eq!(at, memory);
    // A copy of the reference's address is the reference too.
    let moved = "mov.u64 %rd5, t; tex.1d.v4.u32.s32 {%o0, %o1, %o2, %o3}, [%rd5, {%v0}];";
    let other = load(&kernel(DECLARED, moved));
    ok!(cuTexRefSetArray(
        reference(other, c"t"),
        image,
        CU_TRSA_OVERRIDE_FORMAT
    ));
    ok!(cuTexRefSetFlags(
        reference(other, c"t"),
        CU_TRSF_READ_AS_INTEGER
    ));
    assert_eq!(first(other, &[3]), [15]);
}

#[test]
fn rows_in_memory_are_a_texture_of_two_dimensions() {
    let _bench = Bench::new();
    let fetch = "tex.2d.v4.u32.s32 {%o0, %o1, %o2, %o3}, [t, {%v0, %v1}];";
    let module = load(&kernel(DECLARED, fetch));
    let t = reference(module, c"t");
    let memory = upload(&(0..=255).collect::<Vec<u8>>());
    let d = CUDA_ARRAY_DESCRIPTOR {
        Width: 20,
        Height: 4,
        Format: U8,
        NumChannels: 1,
    };
    ok!(cuTexRefSetFlags(t, CU_TRSF_READ_AS_INTEGER));
    ok!(cuTexRefSetAddressMode(
        t,
        0,
        CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP
    ));
    ok!(cuTexRefSetAddress2D_v3(t, &d, memory, 64));
    let got = results(module, 0, &[[3, 2, 0, 0], [25, 9, 0, 0]]);
    assert_eq!([got[0][0], got[1][0]], [131, 211]);
    for (at, pitch) in [(memory + 4, 64), (memory, 60), (memory, 16), (memory, 96)] {
        fails!(
            CUDA_ERROR_INVALID_VALUE,
            cuTexRefSetAddress2D_v3(t, &d, at, pitch)
        );
    }
}

#[test]
fn a_launch_takes_the_references_of_its_time() {
    let _bench = Bench::new();
    let write = "sust.b.1d.b32.trap [s, {%v0}], %v1;";
    let module = load(&kernel(DECLARED, write));
    let mut s = CUsurfref::NULL;
    ok!(cuModuleGetSurfRef(&mut s, module, c"s".as_ptr()));
    let d = shape([4, 0, 0], U32, 1, CUDA_ARRAY3D_SURFACE_LDST);
    let images = [array(&d), array(&d)];
    for image in images {
        fill(image, &d, &[0; 16]);
    }
    let f = crate::common::function(module, c"k");
    let input = upload(&[4u32, 77, 0, 0].map(u32::to_le_bytes).concat());
    let output = alloc(16);
    let plain = array(&shape([4, 0, 0], U32, 1, 0));
    fails!(CUDA_ERROR_INVALID_VALUE, cuSurfRefSetArray(s, plain, 0));
    // Unbound, a store goes nowhere.
    results(module, 0, &[[4, 77, 0, 0]]);
    for image in images {
        ok!(cuSurfRefSetArray(s, image, 0));
        let mut values = [0, input, output, 1];
        let mut params = values.each_mut().map(|v| (&raw mut *v).cast());
        let (stream, extra) = (CUstream::NULL, null_mut());
        let params = params.as_mut_ptr();
        ok!(cuLaunchKernel(
            f, 1, 1, 1, 1, 1, 1, 0, stream, params, extra
        ));
    }
    let mut bound = CUarray::NULL;
    ok!(cuSurfRefGetArray(&mut bound, s));
    assert_eq!(bound.0, images[1].0);
    ok!(cuCtxSynchronize());
    for image in images {
        assert_eq!(content(image, &d)[4..8], 77u32.to_le_bytes());
    }
}
