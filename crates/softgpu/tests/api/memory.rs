//! Allocation, copies, fills, pools, pointers.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, MEMORY, alloc, download, free, stream, upload};
use crate::vmm::{GRANULE, access, prop};

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(total as u64, MEMORY);
    free
}

#[test]
fn copies_bring_back_what_was_sent() {
    let _ctx = Ctx::new();
    for len in [1usize, 511, 4096, (3 << 20) + 7] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let a = upload(&bytes);
        let b = alloc(len);
        ok!(cuMemcpyDtoD_v2(b, a, len));
        assert_eq!(download(b, len), bytes);
        free(a);
        free(b);
    }
}

#[test]
fn a_range_that_leaves_its_allocation_is_refused() {
    let _ctx = Ctx::new();
    let at = alloc(100);
    let bytes = [0u8; 200];
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), 101)
    );
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemcpyHtoD_v2(at + 1, bytes.as_ptr().cast(), 100)
    );
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemcpyDtoD_v2(at, at + (1 << 40), 8)
    );
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(at, 0, 101));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(at + 2, 0, 4));
    free(at);
}

#[test]
fn memory_runs_out_at_the_limit_and_none_is_lost() {
    // Device 1, so that other tests of this process do not disturb the count.
    let _ctx = Ctx::on(1);
    let before = free_bytes();
    let mut blocks = Vec::new();
    loop {
        let mut at = 0;
        match code!(cuMemAlloc_v2(&mut at, 128 << 20)) {
            CUresult::CUDA_SUCCESS => blocks.push(at),
            other => {
                assert_eq!(other, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
                break;
            }
        }
    }
    assert_eq!(blocks.len(), before / (128 << 20));
    for at in blocks {
        free(at);
    }
    assert_eq!(free_bytes(), before);
    free(alloc(512 << 20));
}

#[test]
fn a_pitched_copy_moves_rows_and_leaves_the_gaps() {
    let _ctx = Ctx::new();
    let (mut at, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 100, 7, 4));
    assert!(pitch >= 100 && pitch % 512 == 0);
    ok!(cuMemsetD8_v2(at, 0xAA, pitch * 7));
    let rows: Vec<u8> = (0..700).map(|i| (i % 250) as u8).collect();
    let mut copy = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: rows.as_ptr().cast(),
        srcPitch: 100,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: at,
        dstPitch: pitch,
        WidthInBytes: 100,
        Height: 7,
        ..CUDA_MEMCPY2D::default()
    };
    ok!(cuMemcpy2D_v2(&copy));
    let all = download(at, pitch * 7);
    for (y, row) in all.chunks(pitch).enumerate() {
        assert_eq!(row[..100], rows[y * 100..(y + 1) * 100]);
        assert!(row[100..].iter().all(|&b| b == 0xAA));
    }
    copy.dstPitch = 50;
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
    free(at);
}

#[test]
fn a_box_is_copied_out_of_a_volume() {
    let _ctx = Ctx::new();
    let (w, h, d) = (20usize, 10usize, 5usize);
    let volume: Vec<u8> = (0..w * h * d).map(|i| (i % 241) as u8).collect();
    let at = upload(&volume);
    let mut out = vec![0u8; 4 * 3 * 2];
    let copy = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: at,
        srcPitch: w,
        srcHeight: h,
        srcXInBytes: 5,
        srcY: 2,
        srcZ: 1,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: out.as_mut_ptr().cast(),
        dstPitch: 4,
        dstHeight: 3,
        WidthInBytes: 4,
        Height: 3,
        Depth: 2,
        ..CUDA_MEMCPY3D::default()
    };
    ok!(cuMemcpy3D_v2(&copy));
    for (i, &byte) in out.iter().enumerate() {
        let (x, y, z) = (i % 4 + 5, i / 4 % 3 + 2, i / 12 + 1);
        assert_eq!(byte, volume[x + y * w + z * w * h]);
    }
    free(at);
}

#[test]
fn fills_write_elements_of_every_width() {
    let _ctx = Ctx::new();
    let at = alloc(64);
    ok!(cuMemsetD8_v2(at, 1, 64));
    ok!(cuMemsetD16_v2(at + 16, 0x0302, 4));
    ok!(cuMemsetD32_v2(at + 32, 0x0706_0504, 2));
    let bytes = download(at, 64);
    assert!(bytes[..16].iter().all(|&b| b == 1));
    assert_eq!(bytes[16..24], [2, 3, 2, 3, 2, 3, 2, 3]);
    assert_eq!(bytes[32..40], [4, 5, 6, 7, 4, 5, 6, 7]);
    assert!(bytes[40..].iter().all(|&b| b == 1));
    free(at);
}

#[test]
fn pageable_memory_may_be_changed_as_soon_as_an_asynchronous_copy_returns() {
    let _ctx = Ctx::new();
    let s = stream(1);
    let at = alloc(1 << 20);
    for round in 0..20u8 {
        let mut bytes = vec![round; 1 << 20];
        ok!(cuMemcpyHtoDAsync_v2(
            at,
            bytes.as_ptr().cast(),
            bytes.len(),
            s
        ));
        bytes.fill(0xFF);
        let mut back = vec![0u8; 1 << 20];
        ok!(cuMemcpyDtoHAsync_v2(
            back.as_mut_ptr().cast(),
            at,
            back.len(),
            s
        ));
        // Into pageable memory the copy is complete on return.
        assert!(back.iter().all(|&b| b == round));
    }
    ok!(cuStreamDestroy_v2(s));
    free(at);
}

#[test]
fn pinned_memory_is_known_by_its_address() {
    let _ctx = Ctx::new();
    let mut p: *mut c_void = null_mut();
    ok!(cuMemHostAlloc(&mut p, 10_000, CU_MEMHOSTALLOC_PORTABLE));
    let mut flags = 0;
    ok!(cuMemHostGetFlags(&mut flags, p));
    assert_eq!(flags & CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
    let mut at = 0;
    ok!(cuMemHostGetDevicePointer_v2(&mut at, p, 0));
    let mut kind = 0u32;
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    ok!(cuPointerGetAttribute((&raw mut kind).cast(), which, at));
    assert_eq!(kind, 1);
    ok!(cuMemFreeHost(p));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p));
    let mut own = vec![0u8; 1 << 16];
    let q: *mut c_void = own.as_mut_ptr().cast();
    ok!(cuMemHostRegister_v2(q, own.len(), 0));
    fails!(
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        cuMemHostRegister_v2(q, 16, 0)
    );
    ok!(cuMemHostUnregister(q));
    fails!(
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        cuMemHostUnregister(q)
    );
}

#[test]
fn managed_memory_is_the_host_s_and_remembers_advice() {
    let _ctx = Ctx::new();
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, 4096, 1));
    // SAFETY: managed memory is host memory too, and 4096 bytes long.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 4096) }.fill(9);
    assert_eq!(download(at, 4096), [9; 4096]);
    let ask = |which: CUmem_range_attribute| {
        let mut value = 0i32;
        ok!(cuMemRangeGetAttribute(
            (&raw mut value).cast(),
            4,
            which,
            at,
            4096
        ));
        value
    };
    assert_eq!(
        ask(CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION),
        -2
    );
    ok!(cuMemAdvise(
        at,
        4096,
        CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        0
    ));
    assert_eq!(
        ask(CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION),
        0
    );
    ok!(cuMemPrefetchAsync(at, 4096, -1, CUstream::NULL));
    assert_eq!(
        ask(CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION),
        -1
    );
    free(at);
}

#[test]
fn a_pool_counts_what_it_gives_and_reuses_what_comes_back() {
    let _ctx = Ctx::new();
    let mut props = CUmemPoolProps::default();
    props.allocType.0 = 1;
    props.location.r#type.0 = 1;
    let mut pool = CUmemoryPool::NULL;
    ok!(cuMemPoolCreate(&mut pool, &props));
    let mut keep = u64::MAX;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    ok!(cuMemPoolSetAttribute(
        pool,
        threshold,
        (&raw mut keep).cast()
    ));
    let ask = |which: CUmemPool_attribute| {
        let mut value = 0u64;
        ok!(cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()));
        value
    };
    let s = stream(1);
    let mut at = 0;
    ok!(cuMemAllocFromPoolAsync(&mut at, 3 << 20, pool, s));
    assert_eq!(
        ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        3 << 20
    );
    assert_eq!(
        ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        32 << 20
    );
    ok!(cuMemFreeAsync(at, s));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(at, s));
    ok!(cuStreamSynchronize(s));
    assert_eq!(
        ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        0
    );
    assert_eq!(
        ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH),
        3 << 20
    );
    assert_eq!(
        ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        32 << 20
    );
    let mut again = 0;
    ok!(cuMemAllocFromPoolAsync(&mut again, 3 << 20, pool, s));
    assert_eq!(at, again);
    ok!(cuMemFreeAsync(again, s));
    ok!(cuStreamSynchronize(s));
    ok!(cuMemPoolTrimTo(pool, 0));
    assert_eq!(
        ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        0
    );
    ok!(cuMemPoolDestroy(pool));
    ok!(cuStreamDestroy_v2(s));
}

#[test]
fn memory_of_a_pool_outlives_the_context_in_whose_stream_it_was_allocated() {
    let ctx = Ctx::new();
    let mut props = CUmemPoolProps::default();
    props.allocType.0 = 1;
    props.location.r#type.0 = 1;
    let mut pool = CUmemoryPool::NULL;
    ok!(cuMemPoolCreate(&mut pool, &props));
    let used = || {
        let which = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        let mut value = 0u64;
        ok!(cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()));
        value
    };
    let s = stream(1);
    let (mut at, mut second, mut third) = (0, 0, 0);
    for (block, value) in [(&mut at, 5), (&mut second, 6), (&mut third, 7)] {
        ok!(cuMemAllocFromPoolAsync(block, 3 << 20, pool, s));
        ok!(cuMemsetD8Async(*block, value, 3 << 20, s));
    }
    // What is freed behind the context's work is free with its end.
    ok!(cuMemFreeAsync(third, s));
    let plain = alloc(4096);
    let context = |of| {
        let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT;
        let mut owner = CUcontext(std::ptr::dangling_mut());
        ok!(cuPointerGetAttribute((&raw mut owner).cast(), which, of));
        owner
    };
    assert_eq!((context(at), context(plain)), (CUcontext::NULL, ctx.0));
    drop(ctx);
    assert_eq!(used(), 6 << 20);
    assert_eq!(context(at), CUcontext::NULL);
    let device_pointer = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    let mut there = 0u64;
    fails!(
        CUDA_ERROR_INVALID_CONTEXT,
        cuPointerGetAttribute((&raw mut there).cast(), device_pointer, at)
    );
    fails!(
        CUDA_ERROR_INVALID_CONTEXT,
        cuMemFreeAsync(at, CUstream::NULL)
    );
    // Freeing at once takes no context.
    free(second);
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(second));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(plain));
    let _other = Ctx::new();
    assert_eq!(download(at, 3 << 20), vec![5; 3 << 20]);
    ok!(cuMemFreeAsync(at, CUstream::NULL));
    ok!(cuCtxSynchronize());
    assert_eq!(used(), 0);
    ok!(cuMemPoolDestroy(pool));
}

#[test]
fn pointer_attributes_of_foreign_memory_are_zero_when_asked_together() {
    let _ctx = Ctx::new();
    let local = 0u64;
    let mut which = [
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    ];
    let (mut kind, mut ctx, mut device) = (7u32, 7u64, 7i32);
    let mut out: [*mut c_void; 3] = [
        (&raw mut kind).cast(),
        (&raw mut ctx).cast(),
        (&raw mut device).cast(),
    ];
    ok!(cuPointerGetAttributes(
        3,
        which.as_mut_ptr(),
        out.as_mut_ptr(),
        (&raw const local) as u64
    ));
    assert_eq!((kind, ctx, device), (0, 0, -2));
    assert!(null::<u8>().is_null());
}

#[test]
fn a_described_copy_stays_inside_its_allocation_whatever_it_calls_the_memory() {
    let _ctx = Ctx::new();
    // In addresses of its own, so that no other test's memory lies behind it.
    let (mut base, mut handle) = (0, 0);
    ok!(cuMemAddressReserve(&mut base, 2 * GRANULE, 0, 0, 0));
    ok!(cuMemCreate(&mut handle, GRANULE, &prop(false), 0));
    ok!(cuMemMap(base, GRANULE, 0, handle, 0));
    ok!(cuMemSetAccess(base, GRANULE, &access(), 1));
    ok!(cuMemRelease(handle));
    let at = base + GRANULE as u64 - 4096;
    let source = vec![7u8; 1 << 20];
    for kind in [1, 2, 4] {
        let mut c = CUDA_MEMCPY2D::default();
        c.srcMemoryType.0 = 1;
        c.srcHost = source.as_ptr().cast();
        c.srcPitch = 1024;
        c.dstMemoryType.0 = kind;
        (c.dstHost, c.dstDevice) = (at as *mut _, at);
        c.dstPitch = 1024;
        (c.WidthInBytes, c.Height) = (1024, 5);
        fails!(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&c));
        c.Height = 4;
        ok!(cuMemcpy2D_v2(&c));
        // Sizes that wrap around are no small sizes.
        (c.dstXInBytes, c.dstPitch) = (usize::MAX - 100, 0);
        fails!(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&c));
    }
    assert_eq!(download(at, 4096), [7; 4096]);
    ok!(cuMemUnmap(base, GRANULE));
    ok!(cuMemAddressFree(base, 2 * GRANULE));
}

#[test]
fn only_memory_that_is_there_can_be_registered() {
    let ctx = Ctx::new();
    const LEN: usize = 1 << 16;
    let map = |may: i32| {
        // SAFETY: a fresh anonymous mapping.
        let at = unsafe {
            libc::mmap(
                null_mut(),
                LEN,
                may,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at
    };
    let gone = map(libc::PROT_NONE);
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(gone, LEN, 0));
    let constant = map(libc::PROT_READ);
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemHostRegister_v2(constant, LEN, 0)
    );
    ok!(cuMemHostRegister_v2(constant, LEN, 8));
    let mut own = vec![0u8; LEN];
    ok!(cuMemHostRegister_v2(own.as_mut_ptr().cast(), LEN, 0));
    ok!(cuMemHostUnregister(own.as_mut_ptr().cast()));
    // A kernel that writes what is registered for reading faults, and the process goes on.
    let f = crate::common::function(crate::common::module(), c"add");
    crate::common::add(f, constant as u64, 1, CUstream::NULL);
    fails!(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    drop(ctx);
    // SAFETY: mapped above, registered no more.
    unsafe {
        libc::munmap(gone, LEN);
        libc::munmap(constant, LEN);
    }
}
