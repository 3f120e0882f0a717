//! Contexts, their stacks, limits, peers.

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, alloc, d, event, free, stream};

#[test]
fn without_a_context_there_is_nothing_to_work_in() {
    d();
    std::thread::spawn(|| {
        let mut at = 0;
        fails!(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&mut at, 16));
        fails!(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
        fails!(
            CUDA_ERROR_INVALID_CONTEXT,
            cuCtxPopCurrent_v2(std::ptr::null_mut())
        );
    })
    .join()
    .unwrap();
}

#[test]
fn the_current_context_is_the_thread_s_own_and_a_stack() {
    let a = Ctx::new();
    let b = Ctx::new();
    let mut now = CUcontext::NULL;
    ok!(cuCtxGetCurrent(&mut now));
    assert_eq!(now, b.0);
    ok!(cuCtxPopCurrent_v2(&mut now));
    assert_eq!(now, b.0);
    ok!(cuCtxGetCurrent(&mut now));
    assert_eq!(now, a.0);
    std::thread::spawn(|| {
        let mut now = CUcontext::NULL;
        ok!(cuCtxGetCurrent(&mut now));
        assert!(now.is_null());
    })
    .join()
    .unwrap();
    ok!(cuCtxPushCurrent_v2(b.0));
}

#[test]
fn what_belongs_to_a_destroyed_context_is_stale() {
    let ctx = Ctx::new();
    let (s, e) = (stream(1), event(0));
    let at = alloc(4096);
    drop(ctx);
    let _other = Ctx::new();
    fails!(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(s));
    fails!(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(e));
    fails!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(at));
}

#[test]
fn a_destroyed_context_that_is_still_current_elsewhere_says_so() {
    let ctx = Ctx::new();
    let handle = ctx.0;
    std::thread::spawn(move || ok!(cuCtxDestroy_v2(handle)))
        .join()
        .unwrap();
    let mut at = 0;
    fails!(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&mut at, 16));
    fails!(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(handle));
    ok!(cuCtxPopCurrent_v2(std::ptr::null_mut()));
}

#[test]
fn limits_are_kept_and_rounded() {
    let _ctx = Ctx::new();
    let mut value = 0;
    ok!(cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 5000));
    ok!(cuCtxGetLimit(&mut value, CUlimit::CU_LIMIT_STACK_SIZE));
    assert!(value >= 5000);
    ok!(cuCtxSetLimit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20));
    ok!(cuCtxGetLimit(
        &mut value,
        CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE
    ));
    assert_eq!(value, 64 << 20);
    fails!(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CUlimit(77), 1));
}

#[test]
fn a_primary_context_keeps_its_handle_and_is_destroyed_between_users() {
    d();
    // Device 1's, which no other test of this file retains.
    let mut first = CUcontext::NULL;
    let mut second = CUcontext::NULL;
    ok!(cuDevicePrimaryCtxRetain(&mut first, 1));
    ok!(cuCtxSetCurrent(first));
    let at = alloc(1 << 20);
    ok!(cuDevicePrimaryCtxRetain(&mut second, 1));
    assert_eq!(first, second);
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    free(at);
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    let mut flags = 9;
    let mut active = 9;
    ok!(cuDevicePrimaryCtxGetState(1, &mut flags, &mut active));
    assert_eq!((flags, active), (0, 0));
    fails!(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    fails!(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(1));
    ok!(cuDevicePrimaryCtxRetain(&mut second, 1));
    assert_eq!(first, second);
    ok!(cuCtxSynchronize());
    // A reset ends it and releases nothing.
    ok!(cuDevicePrimaryCtxReset_v2(1));
    fails!(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    ok!(cuDevicePrimaryCtxRetain(&mut second, 1));
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    ok!(cuCtxSynchronize());
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    fails!(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    fails!(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(1));
    ok!(cuCtxSetCurrent(CUcontext::NULL));
}

#[test]
fn peer_access_is_enabled_once_and_disabled_once() {
    let there = Ctx::on(1);
    let here = Ctx::on(0);
    let mut can = 0;
    ok!(cuDeviceCanAccessPeer(&mut can, 0, 1));
    assert_eq!(can, 1);
    ok!(cuDeviceCanAccessPeer(&mut can, 0, 0));
    assert_eq!(can, 0);
    fails!(
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        cuCtxDisablePeerAccess(there.0)
    );
    ok!(cuCtxEnablePeerAccess(there.0, 0));
    fails!(
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        cuCtxEnablePeerAccess(there.0, 0)
    );
    ok!(cuCtxDisablePeerAccess(there.0));
    fails!(CUDA_ERROR_INVALID_DEVICE, cuCtxEnablePeerAccess(here.0, 0));
}

#[test]
fn a_context_s_end_leaves_others_their_peers() {
    let there = Ctx::on(0);
    let at = crate::common::upload(&1u32.to_ne_bytes());
    let here = Ctx::on(1);
    ok!(cuCtxEnablePeerAccess(there.0, 0));
    let other = Ctx::on(1);
    ok!(cuCtxEnablePeerAccess(there.0, 0));
    drop(other);
    ok!(cuCtxSetCurrent(here.0));
    let f = crate::common::function(crate::common::module(), c"add");
    crate::common::add(f, at, 41, CUstream::NULL);
    ok!(cuCtxSynchronize());
    assert_eq!(crate::common::download(at, 4), 42u32.to_ne_bytes());
    drop(here);
    drop(there);
}
