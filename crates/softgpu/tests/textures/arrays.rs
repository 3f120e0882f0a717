//! Arrays: descriptions, memory, copies.

use fercuda_cuda_sys::types::*;

use crate::bench::{Bench, array, content, fill, shape};

const U8: CUarray_format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8;
const F32: CUarray_format = CUarray_format::CU_AD_FORMAT_FLOAT;

#[test]
fn what_no_array_can_be_is_refused() {
    let _bench = Bench::new();
    let mut out = CUarray::NULL;
    let layered = CUDA_ARRAY3D_LAYERED;
    let cube = CUDA_ARRAY3D_CUBEMAP;
    for (extent, format, channels, flags) in [
        ([0, 1, 1], F32, 1, 0),
        ([4, 0, 4], F32, 1, 0),
        ([4, 4, 0], F32, 3, 0),
        ([4, 4, 0], F32, 0, 0),
        ([4, 4, 0], CUarray_format(77), 1, 0),
        ([4, 4, 0], F32, 1, layered),
        ([4, 5, 6], F32, 1, cube),
        ([4, 4, 5], F32, 1, cube),
        ([4, 4, 8], F32, 1, cube | layered),
        ([1 << 18, 0, 0], F32, 1, 0),
        ([4, 4, 4096], F32, 1, layered),
        ([20000, 4, 4], F32, 1, 0),
        ([4, 4, 4], F32, 1, CUDA_ARRAY3D_TEXTURE_GATHER),
        ([4, 4, 4], F32, 1, 1 << 20),
    ] {
        let d = shape(extent, format, channels, flags);
        fails!(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate_v2(&mut out, &d));
    }
    // Compressed textures are a kind of array that this device does not have.
    let d = shape([4, 4, 0], CUarray_format::CU_AD_FORMAT_BC1_UNORM, 4, 0);
    fails!(CUDA_ERROR_NOT_SUPPORTED, cuArray3DCreate_v2(&mut out, &d));
    let d = shape([16384, 16384, 16384], F32, 4, 0);
    fails!(CUDA_ERROR_OUT_OF_MEMORY, cuArray3DCreate_v2(&mut out, &d));
    fails!(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(CUarray::NULL));
    let d = shape([8, 8, 0], F32, 1, 0);
    let gone = array(&d);
    ok!(cuArrayDestroy(gone));
    fails!(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(gone));
}

#[test]
fn an_array_is_what_its_description_says_and_takes_memory() {
    let _bench = Bench::new();
    let free = || {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        free
    };
    let before = free();
    let d = shape([1024, 1024, 8], F32, 4, CUDA_ARRAY3D_LAYERED);
    let made = array(&d);
    assert!(before - free() >= 1024 * 1024 * 8 * 16);
    let mut got = CUDA_ARRAY3D_DESCRIPTOR::default();
    ok!(cuArray3DGetDescriptor_v2(&mut got, made));
    assert_eq!(format!("{got:?}"), format!("{d:?}"));
    let mut flat = CUDA_ARRAY_DESCRIPTOR::default();
    ok!(cuArrayGetDescriptor_v2(&mut flat, made));
    assert_eq!((flat.Width, flat.Height, flat.NumChannels), (1024, 1024, 4));
    ok!(cuArrayDestroy(made));
    assert_eq!(free(), before);
    // Levels of a mipmapped array are arrays that live as long as it does.
    let mut mipmap = CUmipmappedArray::NULL;
    ok!(cuMipmappedArrayCreate(
        &mut mipmap,
        &shape([32, 16, 0], U8, 1, 0),
        99
    ));
    let mut level = CUarray::NULL;
    for (n, size) in [(0, (32, 16)), (1, (16, 8)), (4, (2, 1)), (5, (1, 1))] {
        ok!(cuMipmappedArrayGetLevel(&mut level, mipmap, n));
        ok!(cuArray3DGetDescriptor_v2(&mut got, level));
        assert_eq!((got.Width, got.Height, got.Depth), (size.0, size.1, 0));
    }
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMipmappedArrayGetLevel(&mut level, mipmap, 6)
    );
    fails!(CUDA_ERROR_INVALID_VALUE, cuArrayDestroy(level));
    ok!(cuMipmappedArrayDestroy(mipmap));
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuArrayGetDescriptor_v2(&mut flat, level)
    );
    assert_eq!(free(), before);
}

#[test]
fn copies_reach_every_part_of_an_array() {
    let _bench = Bench::new();
    let seed = fercuda_trials::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for flags in [0, CUDA_ARRAY3D_LAYERED] {
        let d = shape([7, 5, 3], U8, 2, flags);
        let image = array(&d);
        let mut want: Vec<u8> = (0..7 * 5 * 3 * 2).map(|_| random.u8(..)).collect();
        fill(image, &d, &want);
        for _ in 0..20 {
            let (x, y, z) = (random.usize(..7), random.usize(..5), random.usize(..3));
            let (w, h, n) = (
                random.usize(1..=7 - x),
                random.usize(1..=5 - y),
                random.usize(1..=3 - z),
            );
            let part: Vec<u8> = (0..w * h * n * 2).map(|_| random.u8(..)).collect();
            let c = CUDA_MEMCPY3D {
                srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
                srcHost: part.as_ptr().cast(),
                srcPitch: 2 * w,
                srcHeight: h,
                dstMemoryType: CUmemorytype::CU_MEMORYTYPE_ARRAY,
                dstArray: image,
                dstXInBytes: 2 * x,
                dstY: y,
                dstZ: z,
                WidthInBytes: 2 * w,
                Height: h,
                Depth: n,
                ..CUDA_MEMCPY3D::default()
            };
            ok!(cuMemcpy3D_v2(&c));
            for (k, row) in part.chunks(2 * w).enumerate() {
                let at = (((z + k / h) * 5 + y + k % h) * 7 + x) * 2;
                want[at..at + row.len()].copy_from_slice(row);
            }
        }
        assert_eq!(content(image, &d), want, "seed {seed}");
        ok!(cuArrayDestroy(image));
    }
}

#[test]
fn copies_that_leave_an_array_are_refused() {
    let bench = Bench::new();
    let d = shape([8, 4, 0], F32, 1, 0);
    let image = array(&d);
    fill(image, &d, &[1; 8 * 4 * 4]);
    let bytes = [0u8; 64];
    let copy = |x, y, width, height| CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: bytes.as_ptr().cast(),
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_ARRAY,
        dstArray: image,
        dstXInBytes: x,
        dstY: y,
        WidthInBytes: width,
        Height: height,
        ..CUDA_MEMCPY2D::default()
    };
    ok!(cuMemcpy2D_v2(&copy(16, 3, 16, 1)));
    // Beyond the row, beyond the rows, and parts of texels.
    for c in [
        copy(20, 0, 16, 1),
        copy(0, 3, 8, 2),
        copy(2, 0, 4, 1),
        copy(0, 0, 6, 1),
    ] {
        fails!(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&c));
    }
    let mut wrong = copy(0, 0, 4, 1);
    wrong.dstArray = CUarray::NULL;
    fails!(CUDA_ERROR_INVALID_HANDLE, cuMemcpy2D_v2(&wrong));
    assert_eq!(bench.findings(), [""; 0]);
}

#[test]
fn rows_are_copied_to_and_from_arrays_of_one_dimension() {
    let _bench = Bench::new();
    let d = shape([16, 0, 0], F32, 1, 0);
    let (one, two) = (array(&d), array(&d));
    let bytes: Vec<u8> = (0..64).collect();
    ok!(cuMemcpyHtoA_v2(one, 0, bytes.as_ptr().cast(), 64));
    let memory = crate::common::upload(&[0xAA; 64]);
    ok!(cuMemcpyAtoD_v2(memory + 8, one, 16, 32));
    ok!(cuMemcpyAtoA_v2(two, 0, one, 32, 32));
    ok!(cuMemcpyDtoA_v2(two, 32, memory, 32));
    let mut got = vec![0u8; 64];
    ok!(cuMemcpyAtoH_v2(got.as_mut_ptr().cast(), two, 0, 64));
    assert_eq!(got[..32], bytes[32..]);
    assert_eq!(got[32..], [&[0xAA; 8][..], &bytes[16..40]].concat());
    let stream = crate::common::stream(0);
    ok!(cuMemcpyHtoAAsync_v2(
        one,
        4,
        [7u8; 4].as_ptr().cast(),
        4,
        stream
    ));
    ok!(cuMemcpyAtoHAsync_v2(
        got.as_mut_ptr().cast(),
        one,
        4,
        4,
        stream
    ));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(got[..4], [7; 4]);
    for (offset, len) in [(0, 68), (60, 8), (2, 4), (0, 6)] {
        fails!(
            CUDA_ERROR_INVALID_VALUE,
            cuMemcpyHtoA_v2(one, offset, bytes.as_ptr().cast(), len)
        );
    }
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuMemcpyHtoA_v2(CUarray::NULL, 0, bytes.as_ptr().cast(), 4)
    );
}

#[test]
fn a_node_copies_to_an_array_and_says_so() {
    let bench = Bench::new();
    let d = shape([8, 4, 2], U8, 4, CUDA_ARRAY3D_LAYERED);
    let image = array(&d);
    fill(image, &d, &[0; 256]);
    let memory = crate::common::upload(&(0..64).collect::<Vec<u8>>());
    let mut graph = CUgraph::NULL;
    ok!(cuGraphCreate(&mut graph, 0));
    let c = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: memory,
        srcPitch: 16,
        srcHeight: 2,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_ARRAY,
        dstArray: image,
        dstXInBytes: 12,
        dstY: 1,
        dstZ: 1,
        WidthInBytes: 16,
        Height: 2,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    let (mut node, mut ctx) = (CUgraphNode::NULL, CUcontext::NULL);
    ok!(cuCtxGetCurrent(&mut ctx));
    ok!(cuGraphAddMemcpyNode(
        &mut node,
        graph,
        std::ptr::null(),
        0,
        &c,
        ctx
    ));
    let mut got = CUDA_MEMCPY3D::default();
    ok!(cuGraphMemcpyNodeGetParams(node, &mut got));
    assert_eq!(got.dstMemoryType, c.dstMemoryType);
    assert_eq!(got.dstArray.0, image.0);
    assert_eq!((got.dstXInBytes, got.dstY, got.dstZ), (12, 1, 1));
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    ok!(cuCtxSynchronize());
    let bytes = content(image, &d);
    assert_eq!(
        bytes[(4 + 1) * 32 + 12..][..16],
        (0..16).collect::<Vec<u8>>()
    );
    assert_eq!(
        bytes[(4 + 2) * 32 + 12..][..16],
        (16..32).collect::<Vec<u8>>()
    );
    assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), 31);
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    assert_eq!(bench.findings(), [""; 0]);
}

#[test]
fn what_a_context_made_goes_with_it() {
    let (image, object) = {
        let _bench = Bench::new();
        let image = array(&shape([8, 8, 0], F32, 1, 0));
        let r = crate::bench::of_array(image);
        (
            image,
            crate::bench::texture(&r, &CUDA_TEXTURE_DESC::default()),
        )
    };
    let _bench = Bench::new();
    let mut d = CUDA_ARRAY_DESCRIPTOR::default();
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuArrayGetDescriptor_v2(&mut d, image)
    );
    fails!(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(object));
}
