//! Layers, levels, cubes, gathers, queries and views.

use std::ptr::null;

use fercuda_cuda_sys::types::*;

use crate::bench::{Bench, array, fetched, fill, kernel, load, of_array, results, shape, texture};

const U8: CUarray_format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8;
const F32: CUarray_format = CUarray_format::CU_AD_FORMAT_FLOAT;
const LINEAR: CUfilter_mode = CUfilter_mode::CU_TR_FILTER_MODE_LINEAR;
const CLAMP: [CUaddress_mode; 3] = [CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP; 3];

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn first(words: Vec<[u32; 4]>) -> Vec<f32> {
    words.into_iter().map(|o| f32::from_bits(o[0])).collect()
}

#[test]
fn a_layer_is_taken_by_its_number_and_never_mixed_with_others() {
    let _bench = Bench::new();
    let d = shape([4, 3, 5], F32, 1, CUDA_ARRAY3D_LAYERED);
    let image = array(&d);
    fill(image, &d, &floats((0..60).map(|n| n as f32)));
    let t = CUDA_TEXTURE_DESC {
        addressMode: CLAMP,
        filterMode: LINEAR,
        ..CUDA_TEXTURE_DESC::default()
    };
    let object = texture(&of_array(image), &t);
    let fetch = "tex.a2d.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%v2, %f0, %f1, %f1}];";
    let module = load(&kernel("", fetch));
    let at = |x: f32, y: f32, layer: i32| [x.to_bits(), y.to_bits(), layer as u32, 0];
    let asked = [
        at(0.5, 0.5, 0),
        at(2.0, 1.5, 3),
        at(3.5, 2.5, 99),
        at(1.0, 1.0, -7),
    ];
    let got = first(results(module, object, &asked));
    assert_eq!(got, [0.0, 36.0 + 4.0 + 1.5, 59.0, 2.5]);
    // In one dimension.
    let d = shape([4, 0, 3], F32, 1, CUDA_ARRAY3D_LAYERED);
    let line = array(&d);
    fill(line, &d, &floats((0..12).map(|n| n as f32)));
    let object = texture(&of_array(line), &t);
    let fetch = "tex.a1d.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%v2, %f0}];";
    let got = results(
        load(&kernel("", fetch)),
        object,
        &[at(1.0, 0.0, 2), at(9.0, 0.0, 0)],
    );
    assert_eq!(first(got), [8.5, 3.0]);
}

/// A mipmapped array of 8 by 8 floats, of which level `n` is `n` everywhere, plus the column.
fn pyramid() -> (CUmipmappedArray, CUDA_RESOURCE_DESC) {
    let mut mipmap = CUmipmappedArray::NULL;
    ok!(cuMipmappedArrayCreate(
        &mut mipmap,
        &shape([8, 8, 0], F32, 1, 0),
        4
    ));
    for n in 0..4 {
        let mut level = CUarray::NULL;
        ok!(cuMipmappedArrayGetLevel(&mut level, mipmap, n));
        let size = 8 >> n;
        let d = shape([size, size, 0], F32, 1, 0);
        let texels = (0..size * size).map(|k| (100 * n) as f32 + (k % size) as f32);
        fill(level, &d, &floats(texels));
    }
    let mut r = CUDA_RESOURCE_DESC {
        resType: CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
        ..CUDA_RESOURCE_DESC::default()
    };
    r.res.mipmap.hMipmappedArray = mipmap;
    (mipmap, r)
}

#[test]
fn levels_are_chosen_biased_bounded_and_mixed() {
    let _bench = Bench::new();
    let (mipmap, r) = pyramid();
    let plain = CUDA_TEXTURE_DESC {
        addressMode: CLAMP,
        flags: CU_TRSF_NORMALIZED_COORDINATES,
        maxMipmapLevelClamp: 99.0,
        ..CUDA_TEXTURE_DESC::default()
    };
    let fetch = "tex.level.2d.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%f0, %f1}], %f2;";
    let module = load(&kernel("", fetch));
    let levels = |t: &CUDA_TEXTURE_DESC, at: &[f32]| {
        let at: Vec<[f32; 4]> = at.iter().map(|&level| [0.0, 0.0, level, 0.0]).collect();
        first(fetched(module, texture(&r, t), &at))
    };
    let asked = [0.0, 0.49, 0.51, 1.0, 2.25, 7.0, -3.0];
    assert_eq!(
        levels(&plain, &asked),
        [0.0, 0.0, 100.0, 100.0, 200.0, 300.0, 0.0]
    );
    let mixed = CUDA_TEXTURE_DESC {
        mipmapFilterMode: LINEAR,
        ..plain
    };
    assert_eq!(levels(&mixed, &asked[3..]), [100.0, 225.0, 300.0, 0.0]);
    let moved = CUDA_TEXTURE_DESC {
        mipmapLevelBias: 0.5,
        minMipmapLevelClamp: 0.75,
        maxMipmapLevelClamp: 2.0,
        ..mixed
    };
    assert_eq!(
        levels(&moved, &[0.0, 0.5, 1.0, 3.0]),
        [75.0, 100.0, 150.0, 200.0]
    );
    // By the change of the coordinates: a quarter of the image is two texels of the first level.
    let fetch = "mov.b32 %f4, 0f00000000;
        tex.grad.2d.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%f0, %f1}], {%f2, %f4}, {%f4, %f3};";
    let graded = load(&kernel("", fetch));
    let at = [
        [0.0, 0.0, 0.25, 0.0],
        [0.0, 0.0, 0.125, 0.5],
        [0.0, 0.0, 0.01, 0.01],
    ];
    let got = first(fetched(graded, texture(&r, &mixed), &at));
    assert_eq!(got, [100.0, 200.0, 0.0]);
    // Without a level it is the first, and the base is the first whatever the bounds are.
    for (form, want) in [("tex", 75.0), ("tex.base", 0.0)] {
        let fetch = format!("{form}.2d.v4.f32.f32 {{%o0, %o1, %o2, %o3}}, [%rd0, {{%f0, %f1}}];");
        let module = load(&kernel("", &fetch));
        let bounded = CUDA_TEXTURE_DESC {
            mipmapLevelBias: 0.0,
            ..moved
        };
        let got = first(fetched(module, texture(&r, &bounded), &[[0.0; 4]]));
        assert_eq!(got, [want]);
    }
    let mut object = 0;
    let counted = CUDA_TEXTURE_DESC { flags: 0, ..plain };
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTexObjectCreate(&mut object, &r, &counted, null())
    );
    // A view of some levels.
    let view = CUDA_RESOURCE_VIEW_DESC {
        width: 4,
        height: 4,
        firstMipmapLevel: 1,
        lastMipmapLevel: 2,
        ..CUDA_RESOURCE_VIEW_DESC::default()
    };
    ok!(cuTexObjectCreate(&mut object, &r, &plain, &view));
    let at = [0.0, 1.0, 2.0].map(|level| [0.9, 0.9, level, 0.0]);
    assert_eq!(first(fetched(module, object, &at)), [103.0, 201.0, 201.0]);
    let mut got = CUDA_RESOURCE_VIEW_DESC::default();
    ok!(cuTexObjectGetResourceViewDesc(&mut got, object));
    assert_eq!(format!("{got:?}"), format!("{view:?}"));
    let wrong = CUDA_RESOURCE_VIEW_DESC {
        lastMipmapLevel: 4,
        ..view
    };
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTexObjectCreate(&mut object, &r, &plain, &wrong)
    );
    ok!(cuMipmappedArrayDestroy(mipmap));
}

#[test]
fn a_direction_finds_its_face_of_a_cube() {
    let _bench = Bench::new();
    let d = shape(
        [2, 2, 12],
        F32,
        1,
        CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED,
    );
    let image = array(&d);
    // Cube, face and quadrant in the digits.
    let texels = (0..48).map(|n| (n / 24 * 100 + n / 4 % 6 * 10 + n % 4) as f32);
    fill(image, &d, &floats(texels));
    let t = CUDA_TEXTURE_DESC {
        addressMode: CLAMP,
        flags: CU_TRSF_NORMALIZED_COORDINATES,
        ..CUDA_TEXTURE_DESC::default()
    };
    let object = texture(&of_array(image), &t);
    let fetch = "tex.acube.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%v3, %f0, %f1, %f2}];";
    let module = load(&kernel("", fetch));
    let cases = [
        ([2.0f32, 0.5, 0.5], 0),
        ([2.0, -0.5, -0.5], 3),
        ([-2.0, 0.5, 0.5], 11),
        ([0.5, 2.0, 0.5], 23),
        ([0.5, -2.0, 0.5], 31),
        ([0.5, 0.5, 2.0], 41),
        ([0.5, 0.5, -2.0], 50),
    ];
    for cube in [0, 1] {
        let asked: Vec<[u32; 4]> = cases
            .iter()
            .map(|(c, _)| [c[0].to_bits(), c[1].to_bits(), c[2].to_bits(), cube])
            .collect();
        let want: Vec<f32> = cases.iter().map(|c| (c.1 + 100 * cube) as f32).collect();
        assert_eq!(first(results(module, object, &asked)), want);
    }
}

#[test]
fn four_texels_are_gathered_counter_clockwise() {
    let _bench = Bench::new();
    let d = shape([4, 4, 0], U8, 4, CUDA_ARRAY3D_TEXTURE_GATHER);
    let image = array(&d);
    fill(image, &d, &(0..64).collect::<Vec<u8>>());
    let t = CUDA_TEXTURE_DESC {
        addressMode: CLAMP,
        flags: CU_TRSF_READ_AS_INTEGER,
        ..CUDA_TEXTURE_DESC::default()
    };
    let object = texture(&of_array(image), &t);
    for (component, c) in ["r", "g", "b", "a"].into_iter().zip(0..) {
        let fetch =
            format!("tld4.{component}.2d.v4.u32.f32 {{%o0, %o1, %o2, %o3}}, [%rd0, {{%f0, %f1}}];");
        let module = load(&kernel("", &fetch));
        let got = fetched(
            module,
            object,
            &[[2.0, 1.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]],
        );
        let texel = |x: u32, y: u32| (y * 4 + x) * 4 + c;
        assert_eq!(got[0], [texel(1, 1), texel(2, 1), texel(2, 0), texel(1, 0)]);
        assert_eq!(got[1], [texel(0, 3); 4]);
    }
}

#[test]
fn queries_answer_what_was_described() {
    let _bench = Bench::new();
    let d = shape(
        [6, 5, 3],
        CUarray_format::CU_AD_FORMAT_HALF,
        2,
        CUDA_ARRAY3D_LAYERED,
    );
    let image = array(&d);
    let object = texture(&of_array(image), &CUDA_TEXTURE_DESC::default());
    let ask = |object: u64, text: &str| results(load(&kernel("", text)), object, &[[0; 4]])[0];
    let got = ask(
        object,
        "txq.width.b32 %o0, [%rd0]; txq.height.b32 %o1, [%rd0]; txq.array_size.b32 %o2, [%rd0];
         txq.num_mipmap_levels.b32 %o3, [%rd0];",
    );
    assert_eq!(got, [6, 5, 3, 1]);
    // OpenCL's numbers of halves and of two components.
    let got = ask(
        object,
        "txq.channel_data_type.b32 %o0, [%rd0]; txq.channel_order.b32 %o1, [%rd0];
         txq.normalized_coords.b32 %o2, [%rd0];",
    );
    assert_eq!(got, [0x10dd, 0x10b2, 0, 0]);
    let (_, r) = pyramid();
    let t = CUDA_TEXTURE_DESC {
        flags: CU_TRSF_NORMALIZED_COORDINATES,
        ..CUDA_TEXTURE_DESC::default()
    };
    let got = ask(
        texture(&r, &t),
        "txq.level.width.b32 %o0, [%rd0], 2; txq.num_mipmap_levels.b32 %o1, [%rd0];
         istypep.texref %p1, %rd0; selp.u32 %o2, 1, 0, %p1;
         istypep.surfref %p1, %rd0; selp.u32 %o3, 1, 0, %p1;",
    );
    assert_eq!(got, [2, 4, 1, 0]);
}

#[test]
fn offsets_halves_and_residency_are_forms_of_a_fetch() {
    let _bench = Bench::new();
    let d = shape([4, 4, 0], F32, 4, 0);
    let image = array(&d);
    fill(image, &d, &floats((0..64).map(|n| n as f32)));
    let t = CUDA_TEXTURE_DESC {
        addressMode: CLAMP,
        ..CUDA_TEXTURE_DESC::default()
    };
    let object = texture(&of_array(image), &t);
    let body = "tex.2d.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%f0, %f1}], {%v2, %v3};";
    let asked = [[0.5f32.to_bits(), 1.5f32.to_bits(), 2, -1i32 as u32]];
    let got = results(load(&kernel("", body)), object, &asked);
    assert_eq!(got[0].map(f32::from_bits), [8.0, 9.0, 10.0, 11.0]);
    let body = "tex.2d.v2.f16x2.f32 {%o0, %o1}, [%rd0, {%f0, %f1}];";
    let got = results(load(&kernel("", body)), object, &asked);
    let half = |x: f32| u32::from(half::f16::from_f32(x).to_bits());
    assert_eq!(got[0][0], half(16.0) | half(17.0) << 16);
    assert_eq!(got[0][1], half(18.0) | half(19.0) << 16);
    let body = "tex.2d.v4.f16.f32 {%h0, %h1, %h2, %h3}, [%rd0, {%f0, %f1}];
        mov.b32 %o0, {%h0, %h1}; mov.b32 %o1, {%h2, %h3};";
    assert_eq!(results(load(&kernel("", body)), object, &asked)[0], got[0]);
    let body = "tex.2d.v4.f32.f32 {%o0, %o1, %o2, %o3}|%p1, [%rd0, {%f0, %f1}];
        selp.b32 %o3, 5, 6, %p1;";
    let got = results(load(&kernel("", body)), object, &asked);
    assert_eq!(got[0][3], 5);
    // A guard leaves the other threads' registers alone.
    let body = "setp.eq.u32 %p1, %v2, 2; mov.b32 %o0, 9;
        @%p1 tex.2d.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%f0, %f1}];";
    let got = results(load(&kernel("", body)), object, &[asked[0], [0; 4]]);
    assert_eq!([got[0][0], got[1][0]], [16.0f32.to_bits(), 9]);
}

#[test]
fn objects_tell_what_they_were_made_of_and_refuse_what_cannot_be() {
    let _bench = Bench::new();
    let image = array(&shape([4, 4, 0], U8, 4, 0));
    let r = of_array(image);
    let t = CUDA_TEXTURE_DESC {
        flags: CU_TRSF_SRGB,
        borderColor: [1.0, 2.0, 3.0, 4.0],
        ..CUDA_TEXTURE_DESC::default()
    };
    let object = texture(&r, &t);
    let mut sampling = CUDA_TEXTURE_DESC::default();
    ok!(cuTexObjectGetTextureDesc(&mut sampling, object));
    assert_eq!(format!("{sampling:?}"), format!("{t:?}"));
    let mut resource = CUDA_RESOURCE_DESC::default();
    ok!(cuTexObjectGetResourceDesc(&mut resource, object));
    // SAFETY: the type says that the array is the member in use.
    let found = unsafe { resource.res.array.hArray };
    assert_eq!((resource.resType, found.0), (r.resType, image.0));
    let mut view = CUDA_RESOURCE_VIEW_DESC::default();
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuTexObjectGetResourceViewDesc(&mut view, object)
    );
    let mut out = 0;
    let wrong = [
        CUDA_TEXTURE_DESC {
            flags: 1 << 20,
            ..t
        },
        CUDA_TEXTURE_DESC {
            addressMode: [CUaddress_mode(4); 3],
            ..t
        },
        CUDA_TEXTURE_DESC {
            filterMode: CUfilter_mode(2),
            ..t
        },
    ];
    for t in wrong {
        fails!(
            CUDA_ERROR_INVALID_VALUE,
            cuTexObjectCreate(&mut out, &r, &t, null())
        );
    }
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuTexObjectCreate(&mut out, &of_array(CUarray::NULL), &t, null())
    );
    ok!(cuTexObjectDestroy(object));
    fails!(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(object));
    // Linear memory: aligned, live, in whole.
    let memory = crate::common::upload(&(0..=255).collect::<Vec<u8>>());
    let mut r = CUDA_RESOURCE_DESC {
        resType: CUresourcetype::CU_RESOURCE_TYPE_LINEAR,
        ..CUDA_RESOURCE_DESC::default()
    };
    for (at, len, fits) in [
        (memory, 256, true),
        (memory + 4, 16, false),
        (memory, 1 << 20, false),
        (memory, 0, false),
        (0, 16, false),
    ] {
        r.res.linear = CUDA_RESOURCE_DESC_res_linear {
            devPtr: at,
            format: U8,
            numChannels: 1,
            sizeInBytes: len,
        };
        let code = code!(cuTexObjectCreate(&mut out, &r, &t, null()));
        assert_eq!(code == CUresult::CUDA_SUCCESS, fits, "{at:#x} {len}");
        if fits {
            let fetch = "tex.1d.v4.f32.s32 {%o0, %o1, %o2, %o3}, [%rd0, {%v0}];";
            let asked = [[255, 0, 0, 0], [256, 0, 0, 0], [u32::MAX, 0, 0, 0]];
            let got = first(results(load(&kernel("", fetch)), out, &asked));
            assert_eq!(got, [1.0, 0.0, 0.0]);
        }
    }
}

#[test]
fn colours_are_converted_from_srgb_before_they_are_mixed() {
    let _bench = Bench::new();
    let d = shape([2, 0, 0], U8, 4, 0);
    let image = array(&d);
    fill(image, &d, &[0, 255, 188, 128, 255, 255, 188, 128]);
    let t = CUDA_TEXTURE_DESC {
        addressMode: [CUaddress_mode::CU_TR_ADDRESS_MODE_BORDER; 3],
        filterMode: LINEAR,
        flags: CU_TRSF_SRGB,
        borderColor: [0.25, 0.5, 0.75, 1.0],
        ..CUDA_TEXTURE_DESC::default()
    };
    let object = texture(&of_array(image), &t);
    let fetch = "tex.1d.v4.f32.f32 {%o0, %o1, %o2, %o3}, [%rd0, {%f0}];";
    let got = fetched(load(&kernel("", fetch)), object, &[[1.0; 4], [9.0; 4]]);
    let got = got
        .into_iter()
        .map(|o| o.map(f32::from_bits))
        .collect::<Vec<_>>();
    let light = ((188.0f64 / 255.0 + 0.055) / 1.055).powf(2.4) as f32;
    assert_eq!(got[0], [0.5, 1.0, light, 128.0 / 255.0]);
    assert_eq!(got[1], [0.25, 0.5, 0.75, 1.0]);
}
