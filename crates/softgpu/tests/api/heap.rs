//! `malloc` and `free` in kernels.

use std::ptr::null_mut;

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, alloc, download, free, function};

const PTX: &std::ffi::CStr = c".version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.visible .entry take(.param .u64 slots, .param .u64 bytes)
{
    .reg .b64 %d<6>; .reg .b32 %r<4>; .reg .pred %p;
    ld.param.u64 %d0, [slots]; ld.param.u64 %d1, [bytes];
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    mad.wide.u32 %d2, %r0, 8, %d0;
    { .param .b64 n; .param .b64 r; st.param.b64 [n], %d1;
      call.uni (r), malloc, (n); ld.param.b64 %d3, [r]; }
    st.global.u64 [%d2], %d3;
    setp.eq.u64 %p, %d3, 0;
    @%p ret;
    st.u32 [%d3], %r0;
    ret;
}
.visible .entry read(.param .u64 slots, .param .u64 values)
{
    .reg .b64 %d<6>; .reg .b32 %r<4>;
    ld.param.u64 %d0, [slots]; ld.param.u64 %d1, [values];
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    mad.wide.u32 %d2, %r0, 8, %d0; ld.global.u64 %d3, [%d2];
    mad.wide.u32 %d2, %r0, 4, %d1; ld.u32 %r1, [%d3]; st.global.u32 [%d2], %r1;
    { .param .b64 p; st.param.b64 [p], %d3; call.uni free, (p); }
    ret;
}
.visible .entry drop(.param .u64 p)
{
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [p];
    { .param .b64 p1; st.param.b64 [p1], %d0; call.uni free, (p1); }
    ret;
}
";

fn launch(f: CUfunction, blocks: u32, threads: u32, mut a: u64, mut b: u64) -> CUresult {
    let mut params = [(&raw mut a).cast(), (&raw mut b).cast()];
    code!(cuLaunchKernel(
        f,
        blocks,
        1,
        1,
        threads,
        1,
        1,
        0,
        CUstream::NULL,
        params.as_mut_ptr(),
        null_mut()
    ))
}

fn kernels() -> [CUfunction; 3] {
    let mut module = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    [c"take", c"read", c"drop"].map(|name| function(module, name))
}

fn addresses(at: u64, n: usize) -> Vec<u64> {
    let bytes = download(at, 8 * n);
    bytes
        .as_chunks()
        .0
        .iter()
        .copied()
        .map(u64::from_ne_bytes)
        .collect()
}

#[test]
fn what_one_kernel_takes_another_reads_and_gives_back() {
    let _ctx = Ctx::new();
    let [take, read, drop_one] = kernels();
    let (slots, values) = (alloc(8 * 256), alloc(4 * 256));
    for _ in 0..3 {
        assert_eq!(launch(take, 4, 64, slots, 100), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
        let mut all = addresses(slots, 256);
        assert_eq!(launch(read, 4, 64, slots, values), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
        let expected: Vec<u8> = (0..256u32).flat_map(u32::to_ne_bytes).collect();
        assert_eq!(download(values, 4 * 256), expected);
        all.sort_unstable();
        assert!(all[0] != 0 && all.iter().all(|a| a % 16 == 0), "{all:x?}");
        assert!(all.windows(2).all(|w| w[1] - w[0] >= 100), "{all:x?}");
    }
    // Nothing is freed by freeing nothing.
    assert_eq!(launch(drop_one, 1, 1, 0, 0), CUresult::CUDA_SUCCESS);
    ok!(cuCtxSynchronize());
    free(slots);
    free(values);
}

#[test]
fn a_full_heap_gives_null_and_what_is_freed_can_be_taken_again() {
    let _ctx = Ctx::new();
    let [take, read, _] = kernels();
    let limit = CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;
    let mut bytes = 0;
    ok!(cuCtxGetLimit(&mut bytes, limit));
    assert_eq!(bytes, 8 << 20);
    ok!(cuCtxSetLimit(limit, 5 << 20));
    let (slots, values) = (alloc(8 * 64), alloc(4 * 64));
    for _ in 0..4 {
        assert_eq!(launch(take, 1, 64, slots, 1 << 20), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
        let given = addresses(slots, 64).into_iter().filter(|&a| a != 0).count();
        assert!((4..=5).contains(&given), "{given}");
        assert!(addresses(slots, given).iter().all(|&a| a != 0));
        assert_eq!(
            launch(read, 1, given as u32, slots, values),
            CUresult::CUDA_SUCCESS
        );
        ok!(cuCtxSynchronize());
    }
    // The size is fixed once a kernel that allocates was launched.
    fails!(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(limit, 16 << 20));
    for size in [0, u64::MAX, 6 << 20] {
        assert_eq!(launch(take, 1, 1, slots, size), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
        assert_eq!(addresses(slots, 1), [0], "{size}");
    }
    free(slots);
    free(values);
}

#[test]
fn a_heap_is_taken_from_the_device_s_memory_and_returned() {
    let free_bytes = || {
        let (mut left, mut all) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut left, &mut all));
        left
    };
    let outer = Ctx::on(1);
    let before = free_bytes();
    let inner = Ctx::on(1);
    ok!(cuCtxSetLimit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20));
    let [take, ..] = kernels();
    let slots = alloc(8);
    assert_eq!(launch(take, 1, 1, slots, 4), CUresult::CUDA_SUCCESS);
    ok!(cuCtxSynchronize());
    assert!(before - free_bytes() >= 64 << 20);
    drop(inner);
    assert!(before - free_bytes() < 64 << 20);
    drop(outer);
}

#[test]
fn freeing_what_was_not_taken_ends_the_context() {
    let ctx = Ctx::new();
    let [_, _, drop_one] = kernels();
    let at = alloc(64);
    assert_eq!(launch(drop_one, 1, 1, at, 0), CUresult::CUDA_SUCCESS);
    fails!(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    drop(ctx);
}
