//! Launches before `cuLaunchKernel`, and contexts that are attached to.

use std::ffi::c_void;
use std::ptr::null_mut;

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, add, alloc, download, free, function, module, stream, upload};

const PARAMETERS: &std::ffi::CStr = c".version 8.0
.target sm_80
.address_size 64
.extern .shared .b32 dynamic[];
.visible .entry k(.param .u64 p, .param .u32 i, .param .f32 f, .param .b8 v[6])
{
    .reg .b64 %a<3>; .reg .b32 %r<8>; .reg .b16 %h; .reg .f32 %f;
    ld.param.u64 %a0, [p];
    ld.param.u32 %r0, [i];
    ld.param.f32 %f, [f];
    ld.param.u8 %h, [v+5];
    mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x; mad.lo.u32 %r1, %r1, %r2, 0;
    mov.u32 %r2, %ctaid.x; add.u32 %r1, %r1, %r2;
    mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.y; mad.lo.u32 %r3, %r3, %r2, 0;
    mov.u32 %r4, %tid.x; add.u32 %r3, %r3, %r4;
    mov.u32 %r4, %ntid.y; mul.lo.u32 %r4, %r4, %r2;
    mad.lo.u32 %r1, %r1, %r4, %r3;
    mad.wide.u32 %a1, %r1, 4, %a0;
    cvt.rzi.u32.f32 %r5, %f; add.u32 %r0, %r0, %r5;
    cvt.u32.u16 %r5, %h; add.u32 %r0, %r0, %r5;
    mov.u32 %r5, %dynamic_smem_size; add.u32 %r0, %r0, %r5;
    add.u32 %r0, %r0, %r1;
    st.global.u32 [%a1], %r0;
    ret;
}
";

fn loaded() -> CUfunction {
    let mut module = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut module, PARAMETERS.as_ptr().cast()));
    function(module, c"k")
}

/// Sets everything but the block's shape.
fn set(f: CUfunction, at: u64) {
    let (mut at, mut bytes) = (at, [0u8, 0, 0, 0, 0, 9]);
    ok!(cuParamSetv(f, 0, (&raw mut at).cast::<c_void>(), 8));
    ok!(cuParamSeti(f, 8, 1000));
    ok!(cuParamSetf(f, 12, 20.5));
    ok!(cuParamSetv(f, 16, bytes.as_mut_ptr().cast::<c_void>(), 6));
    ok!(cuParamSetSize(f, 22));
    ok!(cuFuncSetSharedSize(f, 64));
}

fn expected(threads: u32) -> Vec<u8> {
    (0..threads)
        .flat_map(|t| (1000 + 20 + 9 + 64 + t).to_ne_bytes())
        .collect()
}

#[test]
fn a_function_is_launched_with_what_was_set_before() {
    let _ctx = Ctx::new();
    let (f, at) = (loaded(), alloc(4 * 8 * 6));
    set(f, at);
    ok!(cuFuncSetBlockShape(f, 4, 2, 1));
    ok!(cuLaunchGrid(f, 3, 2));
    ok!(cuCtxSynchronize());
    assert_eq!(download(at, 4 * 8 * 6), expected(48));
    // What is set stays set for the next launch.
    ok!(cuMemsetD8_v2(at, 0, 4 * 8 * 6));
    ok!(cuLaunch(f));
    ok!(cuCtxSynchronize());
    assert_eq!(download(at, 4 * 8), expected(8));
    assert_eq!(download(at + 4 * 8, 4), [0; 4]);
    let s = stream(1);
    ok!(cuLaunchGridAsync(f, 2, 1, s));
    ok!(cuStreamSynchronize(s));
    assert_eq!(download(at, 4 * 16), expected(16));
    free(at);
}

#[test]
fn what_is_missing_or_out_of_range_is_refused() {
    let _ctx = Ctx::new();
    let (f, at) = (loaded(), alloc(256));
    set(f, at);
    fails!(CUDA_ERROR_INVALID_VALUE, cuLaunch(f));
    ok!(cuFuncSetBlockShape(f, 8, 1, 1));
    for (x, y, z) in [(0, 1, 1), (-1, 1, 1), (1025, 1, 1), (32, 33, 1), (1, 1, 65)] {
        fails!(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(f, x, y, z));
    }
    for (x, y) in [(0, 1), (1, 0), (-3, 1)] {
        fails!(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(f, x, y));
    }
    fails!(CUDA_ERROR_INVALID_VALUE, cuFuncSetSharedSize(f, 1 << 20));
    fails!(CUDA_ERROR_INVALID_VALUE, cuParamSeti(f, -4, 1));
    fails!(CUDA_ERROR_INVALID_VALUE, cuParamSeti(f, 1 << 20, 1));
    fails!(CUDA_ERROR_INVALID_VALUE, cuParamSetSize(f, 1 << 20));
    fails!(CUDA_ERROR_INVALID_VALUE, cuParamSetv(f, 0, null_mut(), 8));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuParamSetTexRef(f, 0, CUtexref::NULL)
    );
    // Fewer bytes of parameters than the kernel has.
    ok!(cuParamSetSize(f, 16));
    fails!(CUDA_ERROR_INVALID_VALUE, cuLaunch(f));
    ok!(cuParamSetSize(f, 22));
    ok!(cuLaunch(f));
    let stale = CUfunction(0x1234 as *mut _);
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuFuncSetBlockShape(stale, 1, 1, 1)
    );
    fails!(CUDA_ERROR_INVALID_HANDLE, cuParamSetSize(stale, 1));
    fails!(CUDA_ERROR_INVALID_HANDLE, cuLaunch(stale));
    ok!(cuCtxSynchronize());
    free(at);
}

#[test]
fn a_launch_of_the_newer_kind_forgets_what_was_set() {
    let _ctx = Ctx::new();
    let f = function(module(), c"add");
    let mut at = upload(&1u32.to_ne_bytes());
    ok!(cuFuncSetBlockShape(f, 1, 1, 1));
    ok!(cuParamSetv(f, 0, (&raw mut at).cast::<c_void>(), 8));
    ok!(cuParamSeti(f, 8, 4));
    ok!(cuParamSetSize(f, 12));
    ok!(cuLaunch(f));
    add(f, at, 10, CUstream::NULL);
    fails!(CUDA_ERROR_INVALID_VALUE, cuLaunch(f));
    assert_eq!(download(at, 4), 15u32.to_ne_bytes());
    free(at);
}

#[test]
fn a_context_lives_until_its_last_user_detaches() {
    let ctx = Ctx::new();
    let mut again = CUcontext::NULL;
    fails!(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&mut again, 1));
    ok!(cuCtxAttach(&mut again, 0));
    assert_eq!(again, ctx.0);
    let at = alloc(64);
    ok!(cuCtxDetach(ctx.0));
    free(at);
    let other = Ctx::new();
    fails!(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(ctx.0));
    drop(other);
    ok!(cuCtxSetCurrent(ctx.0));
    ok!(cuCtxDetach(ctx.0));
    let mut version = 0;
    fails!(
        CUDA_ERROR_INVALID_CONTEXT,
        cuCtxGetApiVersion(ctx.0, &mut version)
    );
    fails!(CUDA_ERROR_INVALID_CONTEXT, cuCtxAttach(&mut again, 0));
}
