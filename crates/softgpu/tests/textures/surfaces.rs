//! Surfaces: bounds, formats, reductions, and what the checks say.

use fercuda_cuda_sys::types::*;
use fercuda_softgpu::control;

use crate::bench::{
    Bench, array, content, fill, kernel, launch, load, of_array, results, shape, surface, texture,
};
use crate::common::{alloc, free, upload};

const U8: CUarray_format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8;
const U32: CUarray_format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32;
const F32: CUarray_format = CUarray_format::CU_AD_FORMAT_FLOAT;
const LDST: u32 = CUDA_ARRAY3D_SURFACE_LDST;

#[test]
fn accesses_reach_every_byte_of_every_kind_of_surface() {
    let _bench = Bench::new();
    let seed = fercuda_trials::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let layered = CUDA_ARRAY3D_LAYERED;
    for (geometry, at, extent, flags) in [
        ("1d", "%v0", [9, 0, 0], 0),
        ("2d", "%v0, %v1", [9, 5, 0], 0),
        ("3d", "%v0, %v1, %v2, %v2", [9, 5, 3], 0),
        ("a1d", "%v2, %v0", [9, 0, 3], layered),
        ("a2d", "%v2, %v0, %v1, %v1", [9, 5, 3], layered),
    ] {
        for (ty, bytes) in [
            ("b8", 1),
            ("b16", 2),
            ("b32", 4),
            ("b64", 8),
            ("v2.b32", 8),
            ("v4.b32", 16),
            ("v2.b64", 16),
        ] {
            // A texel as wide as the access.
            let (format, channels) = match bytes {
                1 => (U8, 1),
                2 => (U8, 2),
                4 => (U32, 1),
                8 => (U32, 2),
                _ => (U32, 4),
            };
            let d = shape(extent, format, channels, flags | LDST);
            let (from, to) = (array(&d), array(&d));
            let count = extent.map(|n: usize| n.max(1)).iter().product::<usize>();
            let texels: Vec<u8> = (0..count * bytes).map(|_| random.u8(..)).collect();
            fill(from, &d, &texels);
            let registers = match ty {
                "b8" | "b16" => "%h0",
                "b32" => "%o4",
                "b64" => "%rd8",
                "v2.b32" => "{%o4, %o5}",
                "v4.b32" => "{%o4, %o5, %o6, %o7}",
                _ => "{%rd8, %rd9}",
            };
            // The second surface's handle is the fourth word and the one before the coordinates.
            let body = format!(
                "ld.param.u64 %rd5, [to];
                suld.b.{geometry}.{ty}.trap {registers}, [%rd0, {{{at}}}];
                sust.b.{geometry}.{ty}.trap [%rd5, {{{at}}}], {registers};"
            );
            let (from_handle, to_handle) = (surface(from), surface(to));
            let text = kernel("", &body).replace(
                "ld.param.u64 %rd5, [to];",
                &format!("mov.u64 %rd5, {to_handle};"),
            );
            let module = load(&text);
            let inputs: Vec<[u32; 4]> = (0..count)
                .map(|n| {
                    let (w, h) = (extent[0], extent[1].max(1));
                    [n % w * bytes, n / w % h, n / w / h, 0].map(|n| n as u32)
                })
                .collect();
            results(module, from_handle, &inputs);
            assert_eq!(content(to, &d), texels, "seed {seed}: {geometry} {ty}");
            ok!(cuSurfObjectDestroy(from_handle));
            ok!(cuSurfObjectDestroy(to_handle));
            ok!(cuArrayDestroy(from));
            ok!(cuArrayDestroy(to));
        }
    }
}

/// Positions inside and outside of a surface of 4 by 2 words.
fn around() -> Vec<[u32; 4]> {
    let places = [
        (0, 0),
        (12, 1),
        (16, 0),
        (-4, 0),
        (8, 2),
        (4, -1),
        (400, 400),
    ];
    places
        .map(|(x, y): (i32, i32)| [x as u32, y as u32, 7, 0])
        .to_vec()
}

#[test]
fn what_is_outside_is_clamped_or_zero_as_the_instruction_says() {
    let _bench = Bench::new();
    let d = shape([4, 2, 0], U32, 1, LDST);
    let image = array(&d);
    let words: Vec<u8> = (10u32..18).flat_map(u32::to_le_bytes).collect();
    fill(image, &d, &words);
    let object = surface(image);
    let read = |mode: &str| {
        let body = format!("suld.b.2d.b32.{mode} %o0, [%rd0, {{%v0, %v1}}];");
        let got = results(load(&kernel("", &body)), object, &around());
        got.into_iter().map(|o| o[0]).collect::<Vec<u32>>()
    };
    assert_eq!(read("zero"), [10, 17, 0, 0, 0, 0, 0]);
    assert_eq!(read("clamp"), [10, 17, 13, 10, 16, 11, 17]);
    let write = |mode: &str, at: [u32; 4]| {
        let body = format!("sust.b.2d.b32.{mode} [%rd0, {{%v0, %v1}}], %v2;");
        results(load(&kernel("", &body)), object, &[at]);
        let got = content(image, &d);
        fill(image, &d, &words);
        let changed = (0..8).filter(|n| got[4 * n..4 * n + 4] != words[4 * n..4 * n + 4]);
        changed.collect::<Vec<usize>>()
    };
    let outside = around()[2];
    assert_eq!(write("zero", outside), [0; 0]);
    assert_eq!(write("clamp", outside), [3]);
    ok!(cuSurfObjectDestroy(object));
    ok!(cuArrayDestroy(image));
}

#[test]
fn a_trap_outside_ends_the_kernel_and_names_the_place() {
    for (x, y, want) in [
        (16, 1, "byte 16 of 16, row 1 of 2"),
        (-4, 0, "byte -4 of 16, row 0 of 2"),
        (4, 2, "byte 4 of 16, row 2 of 2"),
    ] {
        let _bench = Bench::new();
        let d = shape([4, 2, 0], U32, 1, LDST);
        let image = array(&d);
        fill(image, &d, &[0; 32]);
        let body = "suld.b.2d.b32.trap %o0, [%rd0, {%v0, %v1}];";
        let module = load(&kernel("", body));
        let (input, output) = (
            upload(&[x as u32, y as u32, 0, 0].map(u32::to_le_bytes).concat()),
            alloc(16),
        );
        let code = launch(module, surface(image), input, output, 1);
        assert_eq!(code, CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let faults = control::take_faults();
        let text = faults[0].to_string();
        assert!(
            text.contains("outside the surface") && text.contains(want),
            "{text}"
        );
        assert!(text.contains("cuArray3DCreate"), "{text}");
    }
}

#[test]
fn a_handle_that_is_none_ends_the_kernel() {
    let _bench = Bench::new();
    let module = load(&kernel("", "suld.b.1d.b32.trap %o0, [%rd0, {%v0}];"));
    let (input, output) = (upload(&[0; 16]), alloc(16));
    let code = launch(module, 0x1234, input, output, 1);
    assert_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION);
    assert!(control::take_faults()[0].to_string().contains("0x1234"));
}

#[test]
fn formatted_stores_convert_to_the_format() {
    let _bench = Bench::new();
    let store = |format, channels, values: [u32; 4]| {
        let d = shape([3, 2, 0], format, channels, LDST);
        let image = array(&d);
        let object = surface(image);
        fill(image, &d, &vec![0; content_len(&d)]);
        let body = "mov.b32 %o4, 1; mov.b32 %o5, 1;
            sust.p.2d.v4.b32.trap [%rd0, {%o4, %o5}], {%v0, %v1, %v2, %v3};";
        results(load(&kernel("", body)), object, &[values]);
        let got = content(image, &d);
        let texel = got.len() / 6;
        ok!(cuSurfObjectDestroy(object));
        ok!(cuArrayDestroy(image));
        got[4 * texel..5 * texel].to_vec()
    };
    assert_eq!(store(U8, 4, [1, 255, 256, 0x8000_0000]), [1, 255, 255, 255]);
    let s8 = CUarray_format::CU_AD_FORMAT_SIGNED_INT8;
    let signed = [-1i32, 127, 128, -500].map(|n| n as u32);
    assert_eq!(store(s8, 4, signed), [0xff, 0x7f, 0x7f, 0x80]);
    let half = CUarray_format::CU_AD_FORMAT_HALF;
    let floats = [1.5f32, -2.0, 0.0, 0.0].map(f32::to_bits);
    let want = [1.5, -2.0].map(|x| half::f16::from_f32(x).to_le_bytes());
    assert_eq!(store(half, 2, floats), want.concat());
    assert_eq!(store(F32, 1, floats), 1.5f32.to_le_bytes());
}

fn content_len(d: &CUDA_ARRAY3D_DESCRIPTOR) -> usize {
    let bytes = crate::bench::component_bytes(d.Format) * d.NumChannels as usize;
    bytes * d.Width * d.Height.max(1) * d.Depth.max(1)
}

#[test]
fn reductions_of_many_threads_all_count() {
    let _bench = Bench::new();
    let d = shape([4, 1, 0], U32, 1, LDST);
    let image = array(&d);
    let object = surface(image);
    let inputs: Vec<[u32; 4]> = (0..1000).map(|n| [n % 4 * 4, n % 4, n, 0]).collect();
    let result = |op: &str, start: u32| -> Vec<u32> {
        fill(image, &d, &[start; 4].map(u32::to_le_bytes).concat());
        let body = format!("mov.b32 %o4, 0; sured.b.{op}.trap [%rd0, {{%v0, %o4}}], %v2;");
        results(load(&kernel("", &body)), object, &inputs);
        let bytes = content(image, &d);
        let words = bytes.as_chunks().0.iter();
        words.map(|&w| u32::from_le_bytes(w)).collect()
    };
    let sums: Vec<u32> = (0..4).map(|c| (c..1000).step_by(4).sum()).collect();
    assert_eq!(result("add.2d.u32", 0), sums);
    assert_eq!(result("max.2d.u32", 5), [996, 997, 998, 999]);
    assert_eq!(result("min.2d.s32", -3i32 as u32), [-3i32 as u32; 4]);
    assert_eq!(result("min.2d.u32", -3i32 as u32), [0, 1, 2, 3]);
    assert_eq!(
        result("or.2d.b32", 0)
            .iter()
            .map(|n| n & 3)
            .collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    // By samples: the coordinate counts texels.
    fill(image, &d, &[0; 16]);
    let body = "mov.b32 %o4, 0; sured.p.add.2d.b32.trap [%rd0, {%v1, %o4}], %v2;";
    results(load(&kernel("", body)), object, &inputs);
    assert_eq!(content(image, &d)[..4], sums[0].to_le_bytes());
    ok!(cuSurfObjectDestroy(object));
    ok!(cuArrayDestroy(image));
}

#[test]
fn a_surface_needs_an_array_made_for_it() {
    let _bench = Bench::new();
    let plain = array(&shape([4, 2, 0], U32, 1, 0));
    let mut object = 0;
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuSurfObjectCreate(&mut object, &of_array(plain))
    );
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuSurfObjectCreate(&mut object, &of_array(CUarray::NULL))
    );
    fails!(CUDA_ERROR_INVALID_VALUE, cuSurfObjectDestroy(0));
    ok!(cuArrayDestroy(plain));
}

#[test]
fn checks_see_arrays_that_were_not_written_and_textures_that_are() {
    let bench = Bench::new();
    let d = shape([64, 1, 0], U32, 1, LDST);
    let image = array(&d);
    let object = surface(image);
    let inputs: Vec<[u32; 4]> = (0..64).map(|n| [4 * n, 0, n, 0]).collect();
    let read = load(&kernel("", "suld.b.2d.b32.trap %o0, [%rd0, {%v0, %v1}];"));
    results(read, object, &inputs);
    let found = bench.findings();
    assert!(
        found.len() == 1 && found[0].contains("uninitialised"),
        "{found:?}"
    );
    fill(image, &d, &[1; 256]);
    results(read, object, &inputs);
    assert_eq!(bench.findings(), [""; 0]);
    // A thread may write what it has fetched before, and may not fetch what it has written.
    let t = CUDA_TEXTURE_DESC {
        flags: CU_TRSF_READ_AS_INTEGER,
        ..CUDA_TEXTURE_DESC::default()
    };
    let sampled = texture(&of_array(image), &t);
    let fetch = format!(
        "mov.u64 %rd6, {sampled}; tex.2d.v4.u32.s32 {{%o0, %o1, %o2, %o3}}, [%rd6, {{%v2, %v1}}];"
    );
    let write = "add.u32 %o4, %o0, 1; sust.b.2d.b32.trap [%rd0, {%v0, %v1}], %o4;";
    results(
        load(&kernel("", &format!("{fetch}{write}"))),
        object,
        &inputs,
    );
    assert_eq!(bench.findings(), [""; 0]);
    results(
        load(&kernel("", &format!("{write}{fetch}"))),
        object,
        &inputs,
    );
    let found = bench.findings();
    assert!(
        found.len() == 1 && found[0].contains("read-only"),
        "{found:?}"
    );
    // Threads that write one texel race.
    let same = "mov.b32 %o4, 0; sust.b.2d.b32.trap [%rd0, {%o4, %o4}], %v2;";
    results(load(&kernel("", same)), object, &inputs);
    let found = bench.findings();
    assert!(found.len() == 1 && found[0].contains("race"), "{found:?}");
    // The array is gone while a texture of it is used.
    ok!(cuArrayDestroy(image));
    let (input, output) = (upload(&[0; 16]), alloc(16));
    launch(load(&kernel("", &fetch)), object, input, output, 1);
    let found = bench.findings();
    assert!(
        found.len() == 1 && found[0].contains("use after free"),
        "{found:?}"
    );
    free(input);
    free(output);
}
