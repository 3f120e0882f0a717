//! Cached results of a thread context are valid only as long as nothing changes, on the software
//! device. Each test resolves twice before the change, so that the result is cached.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

#[macro_use]
mod support;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::*;
use fercuda_governor::{CaptureKey, Governor, GovernorConfig, PoolNumber, ThreadContext};
use fercuda_ledger::Ledger;
use fercuda_pool::{PoolPlace, StreamId};
use fercuda_softgpu::control::{self, Config as Soft};

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let mut config = Soft::default();
        config.quiet = true;
        assert!(control::configure(config));
        fercuda_softgpu::driver()
    })
}

/// Serialises the tests; a governor and two contexts of the first device, of which the first is
/// current.
fn with_two_contexts() -> (MutexGuard<'static, ()>, Governor, [CUcontext; 2]) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    ok!(cuInit(0));
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    let contexts = [(); 2].map(|()| {
        let mut context = CUcontext::NULL;
        ok!(cuCtxCreate_v2(&mut context, 0, 0));
        governor.record_context(context);
        let mut popped = CUcontext::NULL;
        ok!(cuCtxPopCurrent_v2(&mut popped));
        context
    });
    ok!(cuCtxSetCurrent(contexts[0]));
    (one, governor, contexts)
}

fn stream() -> CUstream {
    let mut raw = CUstream::NULL;
    ok!(cuStreamCreate(&mut raw, 1));
    raw
}

/// The stream that a handle resolves to, and the pool that would serve it.
fn resolve(
    thread: &mut ThreadContext<'_>,
    raw: CUstream,
) -> Option<(StreamId, Option<PoolNumber>)> {
    let got = thread.ordered(raw, false)?;
    Some((got.stream.id, got.pool.map(|(_, number)| number)))
}

/// Resolves twice, the second time from the cache.
fn resolve_cached(thread: &mut ThreadContext<'_>, raw: CUstream) -> (StreamId, PoolNumber) {
    let first = resolve(thread, raw).unwrap();
    assert_eq!(resolve(thread, raw), Some(first));
    (first.0, first.1.unwrap())
}

#[test]
fn a_default_stream_is_the_current_contexts() {
    let (_one, governor, [first, second]) = with_two_contexts();
    let mut thread = ThreadContext::new(&governor, 1);
    let of_first = resolve_cached(&mut thread, CUstream::NULL);
    ok!(cuCtxSetCurrent(second));
    let of_second = resolve_cached(&mut thread, CUstream::NULL);
    assert_ne!(of_first, of_second);
    ok!(cuCtxSetCurrent(first));
    assert_eq!(resolve_cached(&mut thread, CUstream::NULL), of_first);
    ok!(cuCtxSetCurrent(CUcontext::NULL));
    assert_eq!(resolve(&mut thread, CUstream::NULL), None);
    // A thread's own stream differs from every other thread's.
    ok!(cuCtxSetCurrent(first));
    let own = thread.ordered(CUstream::NULL, true).unwrap().stream.id;
    assert_ne!(own, of_first.0);
    assert_eq!(resolve_cached(&mut thread, CUstream::NULL), of_first);
}

/// Serialises the tests; a governor and the only context that it knows of, which is current.
fn with_one_context() -> (MutexGuard<'static, ()>, Governor, CUcontext) {
    let (one, _, [context, _]) = with_two_contexts();
    let governor = Governor::new(driver(), Ledger::in_memory(), GovernorConfig::default());
    governor.record_context(context);
    (one, governor, context)
}

#[test]
fn an_only_context_is_current_until_the_thread_reports_otherwise() {
    let (_one, governor, context) = with_one_context();
    let mut thread = ThreadContext::new(&governor, 1);
    let raw = stream();
    let here = resolve_cached(&mut thread, CUstream::NULL);
    for _ in 0..3 {
        ok!(cuCtxSetCurrent(CUcontext::NULL));
        // The driver was not queried.
        assert_eq!(resolve(&mut thread, CUstream::NULL).unwrap().0, here.0);
        assert!(thread.has_current());
        thread.forget_current();
        assert_eq!(resolve(&mut thread, CUstream::NULL), None);
        assert!(!thread.has_current());
        ok!(cuCtxSetCurrent(context));
        thread.forget_current();
        // The driver is queried once.
        assert_eq!(resolve_cached(&mut thread, CUstream::NULL), here);
    }
    // A created stream does not depend on the current context; whether there is one, is known too.
    resolve_cached(&mut thread, raw);
    assert!(thread.has_current());
    ok!(cuCtxSetCurrent(CUcontext::NULL));
    assert!(thread.has_current());
    thread.forget_current();
    assert!(!thread.has_current());
    resolve_cached(&mut thread, raw);
    assert!(!thread.has_current());
    ok!(cuCtxSetCurrent(context));
    ok!(cuStreamDestroy_v2(raw));
}

#[test]
fn with_several_contexts_the_driver_reports_which_is_current() {
    let (_one, governor, context) = with_one_context();
    let mut thread = ThreadContext::new(&governor, 1);
    let (of_it, _) = resolve_cached(&mut thread, CUstream::NULL);
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, 0));
    governor.record_context(other);
    let (of_other, _) = resolve_cached(&mut thread, CUstream::NULL);
    assert_ne!(of_other, of_it);
    // It was pushed on top of the other one, which stays below it.
    let mut popped = CUcontext::NULL;
    ok!(cuCtxPopCurrent_v2(&mut popped));
    for _ in 0..2 {
        ok!(cuCtxSetCurrent(context));
        assert_eq!(resolve_cached(&mut thread, CUstream::NULL).0, of_it);
        ok!(cuCtxSetCurrent(other));
        assert_eq!(resolve_cached(&mut thread, CUstream::NULL).0, of_other);
        ok!(cuCtxSetCurrent(CUcontext::NULL));
        assert_eq!(resolve(&mut thread, CUstream::NULL), None);
    }
    ok!(cuCtxSetCurrent(context));
    ok!(cuCtxDestroy_v2(other));
}

#[test]
fn with_possibly_unknown_contexts_the_driver_is_queried() {
    let (_one, governor, context) = with_one_context();
    let mut thread = ThreadContext::new(&governor, 1);
    let (of_it, _) = resolve_cached(&mut thread, CUstream::NULL);
    governor.may_have_other_contexts();
    assert_eq!(resolve_cached(&mut thread, CUstream::NULL).0, of_it);
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, 0));
    assert_ne!(resolve_cached(&mut thread, CUstream::NULL).0, of_it);
    ok!(cuCtxSetCurrent(context));
    ok!(cuCtxDestroy_v2(other));
}

#[test]
fn a_destroyed_stream_does_not_resolve() {
    let (_one, governor, _) = with_two_contexts();
    let mut thread = ThreadContext::new(&governor, 1);
    let raw = stream();
    resolve_cached(&mut thread, raw);
    governor.remove_stream(raw);
    ok!(cuStreamDestroy_v2(raw));
    assert_eq!(resolve(&mut thread, raw), None);
}

#[test]
fn a_capturing_stream_is_left_to_the_driver() {
    const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let (_one, governor, [context, _]) = with_two_contexts();
    let of = governor.context(context).unwrap().0;
    let mut thread = ThreadContext::new(&governor, 1);
    let (raw, other) = (stream(), stream());
    let before = resolve_cached(&mut thread, raw);
    let named = CaptureKey::new(raw, false);
    governor.begin_capture(named, (of, MODE), || {
        ok!(cuStreamBeginCapture_v2(raw, MODE));
        CUresult::CUDA_SUCCESS
    });
    assert_eq!(resolve(&mut thread, raw), None);
    // Other streams still resolve, and nothing is cached for them meanwhile.
    resolve_cached(&mut thread, other);
    assert_eq!(resolve(&mut thread, raw), None);
    governor.end_capture(named, || {
        let mut graph = CUgraph::NULL;
        ok!(cuStreamEndCapture(raw, &mut graph));
        ok!(cuGraphDestroy(graph));
        CUresult::CUDA_SUCCESS
    });
    assert_eq!(resolve_cached(&mut thread, raw), before);
}

#[test]
fn the_current_pool_is_the_one_that_is_current_now() {
    let (_one, governor, _) = with_two_contexts();
    let mut thread = ThreadContext::new(&governor, 1);
    let (_, before) = resolve_cached(&mut thread, CUstream::NULL);
    let (mut default, mut made) = (CUmemoryPool::NULL, [CUmemoryPool::NULL; 2]);
    ok!(cuDeviceGetDefaultMemPool(&mut default, 0));
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation {
            r#type: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            ..Default::default()
        },
        ..Default::default()
    };
    for pool in &mut made {
        ok!(cuMemPoolCreate(pool, &properties));
    }
    governor.record_pool(made[0], None);
    governor.set_current_pool(0, made[0]);
    assert_eq!(resolve(&mut thread, CUstream::NULL).unwrap().1, None);
    governor.record_pool(made[1], Some(0));
    governor.set_current_pool(0, made[1]);
    assert_ne!(resolve_cached(&mut thread, CUstream::NULL).1, before);
    governor.set_current_pool(0, default);
    assert_eq!(resolve_cached(&mut thread, CUstream::NULL).1, before);
    for pool in made {
        ok!(cuMemPoolDestroy(pool));
    }
}

#[test]
fn faulted_or_ended_contexts_are_left_to_the_driver() {
    let (_one, governor, [first, second]) = with_two_contexts();
    let mut thread = ThreadContext::new(&governor, 1);
    resolve_cached(&mut thread, CUstream::NULL);
    governor.failed(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(resolve(&mut thread, CUstream::NULL), None);
    ok!(cuCtxSetCurrent(second));
    let before = resolve_cached(&mut thread, CUstream::NULL);
    let raw = stream();
    resolve_cached(&mut thread, raw);
    governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(first));
        (vec![first], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(resolve_cached(&mut thread, CUstream::NULL), before);
    resolve_cached(&mut thread, raw);
    governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(second));
        (vec![second], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(resolve(&mut thread, raw), None);
}

#[test]
fn a_block_is_freed_wherever_and_however_it_was_allocated() {
    let (_one, governor, [context, _]) = with_two_contexts();
    let mut thread = ThreadContext::new(&governor, 1);
    let (tenant, of) = (
        governor.tenant("tenant"),
        governor.context(context).unwrap(),
    );
    resolve_cached(&mut thread, CUstream::NULL);
    let ordered = thread.ordered(CUstream::NULL, false).unwrap();
    let pool = ordered.pool.unwrap();
    let here = PoolPlace::Stream(ordered.stream.id);
    for bytes in [512, 3 << 20] {
        let block = thread
            .allocate_ordered(&ordered, tenant, pool, bytes)
            .unwrap();
        assert_eq!(thread.free_ordered(&ordered, block).unwrap().place, here);
        assert!(thread.free_ordered(&ordered, block).is_none());
        let plain = thread.allocate(tenant, of, PoolPlace::Anywhere, PoolNumber::NONE, bytes);
        let place = thread.free_ordered(&ordered, plain.unwrap()).unwrap().place;
        assert_eq!(place, PoolPlace::Anywhere);
    }
    assert_eq!(governor.device(0).unwrap().usage().live_bytes, 0);
}

#[test]
fn blocks_of_a_destroyed_context_are_live_in_no_account() {
    let (_one, governor, [first, second]) = with_two_contexts();
    let mut thread = ThreadContext::new(&governor, 1);
    let tenant = governor.tenant("tenant");
    for context in [first, second] {
        let of = governor.context(context).unwrap();
        let block = thread.allocate(tenant, of, PoolPlace::Anywhere, PoolNumber::NONE, 3 << 20);
        block.unwrap();
    }
    let live = || {
        let snapshot = governor.ledger().snapshot().unwrap();
        let named = snapshot.tenants.iter().find(|it| it.name == "tenant");
        let account = &named.unwrap().accounts[0];
        (account.blocks, account.live_bytes)
    };
    assert_eq!(live(), (2, 6 << 20));
    governor.while_destroying(|| {
        ok!(cuCtxDestroy_v2(first));
        (vec![first], CUresult::CUDA_SUCCESS)
    });
    assert_eq!(live(), (1, 3 << 20));
}
