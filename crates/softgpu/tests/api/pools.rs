//! Pools whose memory is in frees that streams have not run yet, on a device that has no other.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda_sys::types::*;

use crate::common::*;

const MIB: usize = 1 << 20;

/// The second device, with 64 MiB that are not taken.
struct Small {
    taken: CUmemGenericAllocationHandle,
    _ctx: Ctx,
    _one: MutexGuard<'static, ()>,
}

impl Small {
    fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let ctx = Ctx::on(1);
        let mut taken = 0;
        let mut props = CUmemAllocationProp::default();
        props.r#type.0 = 1;
        props.location.r#type.0 = 1;
        props.location.id = 1;
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        ok!(cuMemCreate(&mut taken, free - 64 * MIB, &props, 0));
        Small {
            taken,
            _ctx: ctx,
            _one: one,
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        code!(cuCtxSynchronize());
        code!(cuMemRelease(self.taken));
    }
}

fn ordered(len: usize, stream: CUstream) -> u64 {
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, len, stream));
    at
}

/// A word that a stream waits for, and no operation writes.
struct Gate(*mut c_void);

impl Gate {
    fn new(stream: CUstream) -> Self {
        let (mut host, mut at) = (null_mut(), 0);
        ok!(cuMemHostAlloc(&mut host, 4, CU_MEMHOSTALLOC_PORTABLE));
        let gate = Gate(host);
        gate.word().store(0, Ordering::SeqCst);
        ok!(cuMemHostGetDevicePointer_v2(&mut at, host, 0));
        ok!(cuStreamWaitValue32_v2(stream, at, 1, 0));
        gate
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: pinned memory of four bytes, which lives until the drop.
        unsafe { &*self.0.cast::<AtomicU32>() }
    }

    fn open(&self) {
        self.word().store(1, Ordering::SeqCst);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
        code!(cuCtxSynchronize());
        code!(cuMemFreeHost(self.0));
    }
}

#[test]
fn streams_that_allocate_and_free_faster_than_they_run_never_run_out_of_memory() {
    let small = Small::new();
    let seed = fercuda_trials::seed();
    let current = small._ctx.0;
    std::thread::scope(|scope| {
        for thread in 0..16 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ thread);
                ok!(cuCtxSetCurrent(current));
                let s = stream(1);
                for _ in 0..400 {
                    let at = ordered(random.usize(256..MIB), s);
                    ok!(cuMemFreeAsync(at, s));
                }
                ok!(cuStreamDestroy_v2(s));
            });
        }
    });
}

#[test]
fn a_block_whose_free_is_pending_serves_its_stream_and_lets_another_wait() {
    let _small = Small::new();
    let (a, b) = (stream(1), stream(1));
    let at = ordered(40 * MIB, a);
    let gate = Gate::new(a);
    ok!(cuMemFreeAsync(at, a));
    // As large as it was, also after it served a smaller request.
    for len in [30 * MIB, 40 * MIB, 36 * MIB] {
        assert_eq!(ordered(len, a), at);
        ok!(cuMemFreeAsync(at, a));
    }
    assert_eq!(ordered(40 * MIB, b), at);
    ok!(cuMemsetD8Async(at, 7, MIB, b));
    std::thread::sleep(Duration::from_millis(20));
    fails!(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    gate.open();
    ok!(cuStreamSynchronize(b));
    assert_eq!(download(at, MIB), vec![7; MIB]);
    ok!(cuMemFreeAsync(at, b));
}

#[test]
fn an_allocation_waits_for_a_free_that_its_stream_may_not_depend_on() {
    let _small = Small::new();
    let (a, b) = (stream(1), stream(1));
    let mut pool = CUmemoryPool::NULL;
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 1));
    let which = CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
    let mut allowed = 0u32;
    ok!(cuMemPoolSetAttribute(
        pool,
        which,
        (&raw mut allowed).cast()
    ));
    let at = ordered(40 * MIB, a);
    let gate = Gate::new(a);
    ok!(cuMemFreeAsync(at, a));
    let word = gate.word();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            word.store(1, Ordering::SeqCst);
        });
        let again = ordered(40 * MIB, b);
        assert_eq!(word.load(Ordering::SeqCst), 1);
        ok!(cuStreamQuery(b));
        ok!(cuMemFreeAsync(again, b));
    });
    allowed = 1;
    ok!(cuMemPoolSetAttribute(
        pool,
        which,
        (&raw mut allowed).cast()
    ));
}

#[test]
fn an_allocation_that_no_pending_free_can_serve_fails_at_once() {
    let _small = Small::new();
    let (a, b) = (stream(1), stream(1));
    let (live, at) = (ordered(40 * MIB, b), ordered(MIB, a));
    let _gate = Gate::new(a);
    ok!(cuMemFreeAsync(at, a));
    let begun = Instant::now();
    let mut none = 0;
    fails!(
        CUDA_ERROR_OUT_OF_MEMORY,
        cuMemAllocAsync(&mut none, 40 * MIB, b)
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
    ok!(cuMemFreeAsync(live, b));
}
