//! Streams, events, host functions, memory operations.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, alloc, download, event, free, stream};

/// Blocks a stream until the word is set.
unsafe extern "C" fn wait_for(flag: *mut c_void) {
    // SAFETY: every caller passes a live AtomicU32.
    let flag = unsafe { &*flag.cast::<AtomicU32>() };
    let begin = Instant::now();
    while flag.load(Ordering::Acquire) == 0 && begin.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_micros(100));
    }
}

unsafe extern "C" fn raise(flag: *mut c_void) {
    // SAFETY: as above.
    unsafe { &*flag.cast::<AtomicU32>() }.fetch_add(1, Ordering::AcqRel);
}

fn pointer(flag: &AtomicU32) -> *mut c_void {
    (flag as *const AtomicU32).cast_mut().cast()
}

#[test]
fn a_stream_runs_behind_the_host_and_beside_other_streams() {
    let _ctx = Ctx::new();
    let (a, b) = (stream(1), stream(1));
    let (gate, seen) = (AtomicU32::new(0), AtomicU32::new(0));
    ok!(cuLaunchHostFunc(a, Some(wait_for), pointer(&gate)));
    fails!(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    ok!(cuLaunchHostFunc(b, Some(raise), pointer(&seen)));
    ok!(cuStreamSynchronize(b));
    assert_eq!(seen.load(Ordering::Acquire), 1);
    fails!(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    gate.store(1, Ordering::Release);
    ok!(cuStreamSynchronize(a));
    ok!(cuStreamQuery(a));
    ok!(cuStreamDestroy_v2(a));
    ok!(cuStreamDestroy_v2(b));
    fails!(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(a));
}

#[test]
fn an_event_makes_one_stream_wait_for_another() {
    let _ctx = Ctx::new();
    let (a, b) = (stream(1), stream(1));
    let (gate, seen) = (AtomicU32::new(0), AtomicU32::new(0));
    let e = event(0);
    ok!(cuEventQuery(e));
    ok!(cuLaunchHostFunc(a, Some(wait_for), pointer(&gate)));
    ok!(cuEventRecord(e, a));
    ok!(cuStreamWaitEvent(b, e, 0));
    ok!(cuLaunchHostFunc(b, Some(raise), pointer(&seen)));
    fails!(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(seen.load(Ordering::Acquire), 0);
    gate.store(1, Ordering::Release);
    ok!(cuEventSynchronize(e));
    ok!(cuStreamSynchronize(b));
    assert_eq!(seen.load(Ordering::Acquire), 1);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let _ctx = Ctx::new();
    let (blocking, free_running) = (stream(0), stream(1));
    let (gate, on_default, on_blocking, on_free) = (
        AtomicU32::new(0),
        AtomicU32::new(0),
        AtomicU32::new(0),
        AtomicU32::new(0),
    );
    ok!(cuLaunchHostFunc(blocking, Some(wait_for), pointer(&gate)));
    ok!(cuLaunchHostFunc(
        CUstream::NULL,
        Some(raise),
        pointer(&on_default)
    ));
    let second = stream(0);
    ok!(cuLaunchHostFunc(second, Some(raise), pointer(&on_blocking)));
    ok!(cuLaunchHostFunc(
        free_running,
        Some(raise),
        pointer(&on_free)
    ));
    ok!(cuStreamSynchronize(free_running));
    std::thread::sleep(Duration::from_millis(20));
    let now = [&on_default, &on_blocking, &on_free].map(|f| f.load(Ordering::Acquire));
    assert_eq!(now, [0, 0, 1]);
    gate.store(1, Ordering::Release);
    ok!(cuCtxSynchronize());
    assert_eq!(on_blocking.load(Ordering::Acquire), 1);
}

#[test]
fn the_per_thread_default_stream_is_the_thread_s_own() {
    let ctx = Ctx::new();
    let id_of = |handle: CUstream| {
        let mut id = 0;
        ok!(cuStreamGetId_ptsz(handle, &mut id));
        id
    };
    let here = id_of(CUstream::NULL);
    assert_eq!(here, id_of(CU_STREAM_PER_THREAD));
    assert_ne!(here, id_of(CU_STREAM_LEGACY));
    let handle = ctx.0;
    let there = std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(handle));
        let mut id = 0;
        ok!(cuStreamGetId_ptsz(CUstream::NULL, &mut id));
        id
    })
    .join()
    .unwrap();
    assert_ne!(here, there);
}

#[test]
fn elapsed_time_spans_what_lies_between_two_events() {
    let _ctx = Ctx::new();
    let s = stream(1);
    let (a, b, untimed) = (event(0), event(0), event(2));
    unsafe extern "C" fn nap(_: *mut c_void) {
        std::thread::sleep(Duration::from_millis(30));
    }
    let mut ms = 0.0;
    fails!(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&mut ms, a, b));
    let gate = AtomicU32::new(0);
    let begun = Instant::now();
    ok!(cuEventRecord(a, s));
    ok!(cuLaunchHostFunc(s, Some(nap), std::ptr::null_mut()));
    ok!(cuLaunchHostFunc(s, Some(wait_for), pointer(&gate)));
    ok!(cuEventRecord(b, s));
    ok!(cuEventRecord(untimed, s));
    fails!(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&mut ms, a, b));
    gate.store(1, Ordering::Release);
    ok!(cuStreamSynchronize(s));
    ok!(cuEventElapsedTime(&mut ms, a, b));
    // What lies between took as long at least, and no longer than the host saw all of it take.
    let all_ms = begun.elapsed().as_secs_f32() * 1e3;
    assert!((30.0..=all_ms).contains(&ms), "{ms} of {all_ms}");
    fails!(
        CUDA_ERROR_INVALID_HANDLE,
        cuEventElapsedTime(&mut ms, a, untimed)
    );
}

#[test]
fn a_context_event_covers_every_stream_and_waiters() {
    let ctx = Ctx::new();
    let (a, b) = (stream(1), stream(1));
    let gate = AtomicU32::new(0);
    ok!(cuLaunchHostFunc(a, Some(wait_for), pointer(&gate)));
    ok!(cuLaunchHostFunc(b, Some(wait_for), pointer(&gate)));
    let e = event(2);
    ok!(cuCtxRecordEvent(ctx.0, e));
    fails!(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    gate.store(1, Ordering::Release);
    ok!(cuEventSynchronize(e));
    ok!(cuEventQuery(e));
}

#[test]
fn a_stream_waits_for_a_value_that_another_writes() {
    let _ctx = Ctx::new();
    let (a, b) = (stream(1), stream(1));
    let word = alloc(64);
    ok!(cuMemsetD8_v2(word, 0, 64));
    ok!(cuCtxSynchronize());
    let seen = AtomicU32::new(0);
    ok!(cuStreamWaitValue32_v2(a, word, 5, 0));
    ok!(cuLaunchHostFunc(a, Some(raise), pointer(&seen)));
    ok!(cuStreamWriteValue32_v2(b, word, 4, 0));
    ok!(cuStreamSynchronize(b));
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(seen.load(Ordering::Acquire), 0);
    ok!(cuStreamWriteValue32_v2(b, word, 6, 0));
    ok!(cuStreamSynchronize(a));
    assert_eq!(seen.load(Ordering::Acquire), 1);
    ok!(cuStreamWriteValue64_v2(
        b,
        word + 8,
        0x0102_0304_0506_0708,
        0
    ));
    ok!(cuStreamSynchronize(b));
    assert_eq!(download(word + 8, 8), [8, 7, 6, 5, 4, 3, 2, 1]);
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuStreamWriteValue32_v2(b, word + 2, 0, 0)
    );
    free(word);
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let _ctx = Ctx::new();
    let s = stream(1);
    let (gate, seen) = (AtomicU32::new(0), AtomicU32::new(0));
    ok!(cuLaunchHostFunc(s, Some(wait_for), pointer(&gate)));
    ok!(cuLaunchHostFunc(s, Some(raise), pointer(&seen)));
    ok!(cuStreamDestroy_v2(s));
    gate.store(1, Ordering::Release);
    let begin = Instant::now();
    while seen.load(Ordering::Acquire) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
}

#[test]
fn a_context_waits_also_for_the_work_of_destroyed_streams() {
    let _ctx = Ctx::new();
    let s = stream(1);
    let (gate, seen) = (AtomicU32::new(0), AtomicU32::new(0));
    ok!(cuLaunchHostFunc(s, Some(wait_for), pointer(&gate)));
    ok!(cuLaunchHostFunc(s, Some(raise), pointer(&seen)));
    ok!(cuStreamDestroy_v2(s));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            gate.store(1, Ordering::Release);
        });
        ok!(cuCtxSynchronize());
        assert_eq!(seen.load(Ordering::Acquire), 1);
    });
}

#[test]
fn priorities_are_clamped_to_the_range() {
    let _ctx = Ctx::new();
    let (mut least, mut greatest, mut got) = (9, 9, 9);
    ok!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    assert!(greatest < least);
    let mut s = CUstream::NULL;
    ok!(cuStreamCreateWithPriority(&mut s, 1, -1000));
    ok!(cuStreamGetPriority(s, &mut got));
    assert_eq!(got, greatest);
    fails!(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&mut s, 8));
}

/// Codes that driver functions gave to a host function.
struct Asked {
    stream: CUstream,
    codes: std::sync::Mutex<Vec<CUresult>>,
}

unsafe extern "C" fn ask(asked: *mut c_void) {
    // SAFETY: the one caller passes a live `Asked`.
    let asked = unsafe { &*asked.cast::<Asked>() };
    let mut version = 0;
    let codes = [
        code!(cuStreamSynchronize(asked.stream)),
        code!(cuStreamQuery(asked.stream)),
        code!(cuDriverGetVersion(&mut version)),
    ];
    if let Ok(mut all) = asked.codes.lock() {
        all.extend(codes);
    }
}

#[test]
fn a_host_function_that_calls_the_driver_gets_an_error_and_cannot_wait_for_itself() {
    let _ctx = Ctx::new();
    let s = stream(1);
    let asked = Asked {
        stream: s,
        codes: std::sync::Mutex::default(),
    };
    let data = (&raw const asked).cast_mut().cast();
    ok!(cuLaunchHostFunc(s, Some(ask), data));
    ok!(cuStreamSynchronize(s));
    let refused = CUresult::CUDA_ERROR_NOT_PERMITTED;
    assert_eq!(
        *asked.codes.lock().unwrap(),
        [refused, refused, CUresult::CUDA_SUCCESS]
    );
    // Afterwards the stream's thread is like any other.
    let at = alloc(4);
    ok!(cuMemsetD8Async(at, 1, 4, s));
    ok!(cuStreamSynchronize(s));
    assert_eq!(download(at, 4), [1; 4]);
    free(at);
}
