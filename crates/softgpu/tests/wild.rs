//! Calls at random, from several threads, with handles that are live, stale or another kind's.
//! Whatever they answer, it is never an internal error, and every thread comes back.
#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "the macros call the driver; their callers argue the pointers"
)]
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by several test programs, each of which uses a part"
)]
#[macro_use]
#[path = "api/common.rs"]
mod common;

use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Ctx, PTX, d};
use fercuda_cuda_sys::types::*;

/// A generator good enough for picking (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[test]
fn random_calls_end_and_are_never_internal_errors() {
    let seed = fercuda_trials::seed() | 1;
    let ctx = Ctx::new();
    // Everything any thread ever made, live or not; all threads draw from it.
    let handles: Mutex<Vec<usize>> = Mutex::new(vec![0, 1, 2, 3, usize::MAX, ctx.0.0 as usize]);
    let memory: Mutex<Vec<u64>> = Mutex::new(vec![0, 0x1234]);
    let (done, all_done) = channel();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (handles, memory, done) = (&handles, &memory, done.clone());
            let current = ctx.0;
            scope.spawn(move || {
                ok!(cuCtxSetCurrent(current));
                let mut random = Random(seed.wrapping_mul(2 * thread + 1) | 1);
                for step in 0..1500 {
                    let code = one_call(&mut random, handles, memory);
                    assert_ne!(
                        code,
                        CUresult::CUDA_ERROR_UNKNOWN,
                        "step {step} of thread {thread}"
                    );
                }
                done.send(()).unwrap();
            });
        }
        for _ in 0..4 {
            all_done
                .recv_timeout(Duration::from_secs(40))
                .expect("a thread hangs or failed");
        }
    });
    // The context may have been lost to a fault of its making; it can always be left.
    code!(cuCtxSynchronize());
    drop(ctx);
    let fresh = Ctx::new();
    ok!(cuCtxSynchronize());
    drop(fresh);
}

fn one_call(
    random: &mut Random,
    handles: &Mutex<Vec<usize>>,
    memory: &Mutex<Vec<u64>>,
) -> CUresult {
    let pick = |list: &Mutex<Vec<usize>>, random: &mut Random| {
        let list = list.lock().unwrap();
        let recent = list.len().saturating_sub(24);
        let from = if random.below(4) == 0 { 0 } else { recent };
        list[from + random.below((list.len() - from) as u64) as usize] as *mut std::ffi::c_void
    };
    let h = pick(handles, random);
    let g = pick(handles, random);
    let at = {
        let memory = memory.lock().unwrap();
        memory[random.below(memory.len() as u64) as usize] + random.below(3) * 100
    };
    let len = random.below(300_000) as usize;
    let keep = |handle: *mut std::ffi::c_void| handles.lock().unwrap().push(handle as usize);
    let host = [0u8; 64];
    let mut out: *mut std::ffi::c_void = null_mut();
    let mut address = 0;
    let mut word = 0u64;
    let code = match random.below(40) {
        0 | 1 => code!(cuMemAlloc_v2(&mut address, len)),
        2 => code!(cuMemFree_v2(at)),
        3 => code!(cuMemAllocAsync(&mut address, len, CUstream(h))),
        4 => code!(cuMemFreeAsync(at, CUstream(h))),
        5 | 6 => code!(cuMemsetD8Async(at, 1, len.min(4096), CUstream(h))),
        7 => code!(cuMemcpyDtoDAsync_v2(
            at,
            at + 512,
            len.min(512),
            CUstream(h)
        )),
        8 => code!(cuMemcpyHtoDAsync_v2(
            at,
            host.as_ptr().cast(),
            len.min(64),
            CUstream(h)
        )),
        9 | 10 => code!(cuStreamCreate(
            (&raw mut out).cast(),
            (random.next() & 1) as u32
        )),
        11 => code!(cuStreamDestroy_v2(CUstream(h))),
        12 => code!(cuStreamSynchronize(CUstream(h))),
        13 => code!(cuStreamQuery(CUstream(h))),
        14 | 15 => code!(cuEventCreate(
            (&raw mut out).cast(),
            (random.next() & 2) as u32
        )),
        16 => code!(cuEventDestroy_v2(CUevent(h))),
        17 | 18 => code!(cuEventRecord(CUevent(h), CUstream(g))),
        19 | 20 => code!(cuStreamWaitEvent(CUstream(h), CUevent(g), 0)),
        21 => code!(cuEventQuery(CUevent(h))),
        22 => code!(cuEventSynchronize(CUevent(h))),
        23 => code!(cuStreamBeginCapture_v2(
            CUstream(h),
            CUstreamCaptureMode(random.below(4) as u32)
        )),
        24 => code!(cuStreamEndCapture(CUstream(h), (&raw mut out).cast())),
        25 => code!(cuGraphInstantiateWithFlags(
            (&raw mut out).cast(),
            CUgraph(h),
            0
        )),
        26 => code!(cuGraphLaunch(CUgraphExec(h), CUstream(g))),
        27 => code!(cuGraphDestroy(CUgraph(h))),
        28 => code!(cuGraphExecDestroy(CUgraphExec(h))),
        29 => code!(cuModuleLoadData((&raw mut out).cast(), PTX.as_ptr().cast())),
        30 => code!(cuModuleUnload(CUmodule(h))),
        31 => code!(cuModuleGetFunction(
            (&raw mut out).cast(),
            CUmodule(h),
            c"idle".as_ptr()
        )),
        32 | 33 => {
            code!(cuLaunchKernel(
                CUfunction(h),
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                CUstream(g),
                null_mut(),
                null_mut()
            ))
        }
        34 => code!(cuCtxSynchronize()),
        35 => code!(cuPointerGetAttribute(
            (&raw mut word).cast(),
            CUpointer_attribute(random.below(24) as u32),
            at
        )),
        36 => code!(cuGraphCreate((&raw mut out).cast(), 0)),
        37 => code!(cuGraphAddEmptyNode(
            (&raw mut out).cast(),
            CUgraph(h),
            (&raw const g).cast(),
            random.next() as usize & 1
        )),
        38 => code!(cuGraphDestroyNode(CUgraphNode(h))),
        _ => code!(cuGraphClone((&raw mut out).cast(), CUgraph(h))),
    };
    if code == CUresult::CUDA_SUCCESS {
        if !out.is_null() {
            keep(out);
        }
        if address != 0 {
            memory.lock().unwrap().push(address);
        }
    }
    d();
    code
}
