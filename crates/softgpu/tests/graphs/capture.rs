//! Tests of captures: their operations, what they forbid, and their end. The codes were seen on an
//! H200.

use std::ptr::null_mut;

use fercuda_cuda_sys::types::*;

use crate::alone;
use crate::common::{Ctx, alloc, download, event, free, stream};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode(0);
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode(1);
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode(2);

fn begin(mode: CUstreamCaptureMode) -> CUstream {
    let s = stream(1);
    ok!(cuStreamBeginCapture_v2(s, mode));
    s
}

fn status(s: CUstream) -> u32 {
    let mut status = CUstreamCaptureStatus(9);
    ok!(cuStreamIsCapturing(s, &mut status));
    status.0
}

/// The call's code, the capture's state after it, the code of its end.
fn outcome(mode: CUstreamCaptureMode, call: impl FnOnce(CUstream) -> CUresult) -> (u32, u32, u32) {
    let s = begin(mode);
    let code = call(s);
    let state = status(s);
    let mut graph = CUgraph::NULL;
    let end = code!(cuStreamEndCapture(s, &mut graph));
    assert_eq!(graph.is_null(), end != CUresult::CUDA_SUCCESS);
    ok!(cuStreamDestroy_v2(s));
    (code.0, state, end.0)
}

#[test]
fn calls_that_a_capture_forbids_lose_it_by_mode() {
    let _one = alone();
    let ctx = Ctx::new();
    let e = event(2);
    ok!(cuEventRecord(e, CUstream::NULL));
    ok!(cuCtxSynchronize());
    let lost = (900, 2, 901);
    let fine = (0, 1, 0);
    for (mode, unsafe_calls) in [(GLOBAL, lost), (THREAD_LOCAL, lost), (RELAXED, fine)] {
        ok!(cuCtxSynchronize());
        let allocated = outcome(mode, |_| {
            let mut at = 0;
            code!(cuMemAlloc_v2(&mut at, 64))
        });
        assert_eq!(allocated, unsafe_calls);
        assert_eq!(outcome(mode, |_| code!(cuEventQuery(e))), unsafe_calls);
        assert_eq!(outcome(mode, |s| code!(cuStreamSynchronize(s))), lost);
        assert_eq!(outcome(mode, |s| code!(cuStreamQuery(s))), lost);
        assert_eq!(outcome(mode, |_| code!(cuCtxSynchronize())), lost);
        assert_eq!(outcome(mode, |_| code!(cuCtxRecordEvent(ctx.0, e))), lost);
        assert_eq!(
            outcome(mode, |s| code!(cuStreamWaitEvent(s, e, 0))),
            (905, 2, 901)
        );
        assert_eq!(
            outcome(mode, |s| code!(cuStreamBeginCapture_v2(s, mode))),
            (401, 1, 0)
        );
        assert_eq!(
            outcome(mode, |_| code!(cuEventRecord(e, CUstream::NULL))),
            fine
        );
        let info = outcome(mode, |_| {
            let (mut free, mut total) = (0, 0);
            code!(cuMemGetInfo_v2(&mut free, &mut total))
        });
        assert_eq!(info, fine);
    }
}

#[test]
fn another_thread_is_forbidden_only_by_a_global_capture_and_only_if_it_is_not_relaxed() {
    let _one = alone();
    let ctx = Ctx::new();
    let handle = ctx.0;
    let elsewhere = |relaxed: bool| {
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(handle));
            let mut mode = if relaxed { RELAXED } else { GLOBAL };
            ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
            assert_eq!(mode, GLOBAL);
            let mut at = 0;
            code!(cuMemAlloc_v2(&mut at, 64))
        })
        .join()
        .unwrap()
    };
    assert_eq!(outcome(GLOBAL, |_| elsewhere(false)), (900, 2, 901));
    assert_eq!(outcome(GLOBAL, |_| elsewhere(true)), (0, 1, 0));
    assert_eq!(outcome(THREAD_LOCAL, |_| elsewhere(false)), (0, 1, 0));
}

/// `cuMemAllocAsync`, `cuStreamQuery` and `cuStreamSynchronize` on a stream that is not captured.
#[test]
fn calls_on_other_streams_lose_a_capture_as_unsafe_calls_do() {
    let _one = alone();
    let ctx = Ctx::new();
    let other = stream(1);
    let calls: [fn(CUstream) -> CUresult; 3] = [
        |s| {
            let mut at = 0;
            let code = code!(cuMemAllocAsync(&mut at, 64, s));
            if code == CUresult::CUDA_SUCCESS {
                ok!(cuMemFreeAsync(at, s));
            }
            code
        },
        |s| match code!(cuStreamQuery(s)) {
            CUresult::CUDA_ERROR_NOT_READY => CUresult::CUDA_SUCCESS,
            code => code,
        },
        |s| code!(cuStreamSynchronize(s)),
    ];
    let (handle, named) = (ctx.0.0 as usize, other.0 as usize);
    let elsewhere = |call: fn(CUstream) -> CUresult| {
        let thread = std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(CUcontext(handle as *mut _)));
            call(CUstream(named as *mut _))
        });
        thread.join().unwrap()
    };
    let (lost, fine) = ((900, 2, 901), (0, 1, 0));
    let by_mode = [
        (GLOBAL, lost, lost),
        (THREAD_LOCAL, lost, fine),
        (RELAXED, fine, fine),
    ];
    for call in calls {
        for (mode, here, there) in by_mode {
            assert_eq!(outcome(mode, |_| call(other)), here, "{mode:?}");
            assert_eq!(outcome(mode, |_| elsewhere(call)), there, "{mode:?}");
        }
    }
    ok!(cuStreamDestroy_v2(other));
}

#[test]
fn a_capture_spreads_by_events_and_must_be_joined() {
    let _one = alone();
    let _ctx = Ctx::new();
    let at = alloc(64);
    let (origin, other) = (begin(RELAXED), stream(1));
    let (fork, join) = (event(2), event(2));
    ok!(cuMemsetD8Async(at, 1, 64, origin));
    ok!(cuEventRecord(fork, origin));
    ok!(cuStreamWaitEvent(other, fork, 0));
    assert_eq!(status(other), 1);
    ok!(cuMemsetD8Async(at + 8, 2, 8, other));
    let mut graph = CUgraph::NULL;
    fails!(
        CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        cuStreamEndCapture(other, &mut graph)
    );
    ok!(cuEventRecord(join, other));
    ok!(cuStreamWaitEvent(origin, join, 0));
    ok!(cuStreamEndCapture(origin, &mut graph));
    assert_eq!((status(origin), status(other)), (0, 0));
    let mut nodes = 0;
    ok!(cuGraphGetNodes(graph, null_mut(), &mut nodes));
    let mut edges = 0;
    ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges));
    assert_eq!((nodes, edges), (2, 1));
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(cuMemsetD8_v2(at, 9, 64));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    let bytes = download(at, 64);
    assert_eq!((bytes[0], bytes[8], bytes[16]), (1, 2, 1));
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    free(at);

    let (origin, other) = (begin(RELAXED), stream(1));
    let at = 0;
    ok!(cuEventRecord(fork, origin));
    ok!(cuStreamWaitEvent(other, fork, 0));
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    ok!(cuLaunchHostFunc(other, Some(nothing), at as *mut _));
    fails!(
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        cuStreamEndCapture(origin, &mut graph)
    );
    fails!(
        CUDA_ERROR_ILLEGAL_STATE,
        cuStreamEndCapture(other, &mut graph)
    );
}

#[test]
fn an_event_of_a_capture_is_not_the_host_s() {
    let _one = alone();
    let _ctx = Ctx::new();
    let e = event(2);
    let seen = outcome(RELAXED, |s| {
        ok!(cuEventRecord(e, s));
        code!(cuEventQuery(e))
    });
    assert_eq!(seen, (907, 2, 901));
}

#[test]
fn the_default_stream_cannot_be_captured_and_disturbs_blocking_streams_that_are() {
    let _one = alone();
    let _ctx = Ctx::new();
    fails!(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        cuStreamBeginCapture_v2(CUstream::NULL, RELAXED)
    );
    let at = alloc(16);
    let s = stream(0);
    ok!(cuStreamBeginCapture_v2(s, RELAXED));
    fails!(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        cuMemsetD8Async(at, 0, 16, CUstream::NULL)
    );
    let mut graph = CUgraph::NULL;
    fails!(
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        cuStreamEndCapture(s, &mut graph)
    );
    free(at);
}

#[test]
fn allocation_in_a_capture_belongs_to_the_graph() {
    let _one = alone();
    let _ctx = Ctx::new();
    let s = begin(GLOBAL);
    let mut at = 0;
    let out = alloc_before();
    ok!(cuMemAllocAsync(&mut at, 4096, s));
    ok!(cuMemsetD8Async(at, 0x42, 4096, s));
    ok!(cuMemcpyDtoDAsync_v2(out, at, 4096, s));
    ok!(cuMemFreeAsync(at, s));
    let mut graph = CUgraph::NULL;
    ok!(cuStreamEndCapture(s, &mut graph));
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    for _ in 0..3 {
        ok!(cuMemsetD8_v2(out, 0, 4096));
        // The stream does not wait for the default stream.
        ok!(cuCtxSynchronize());
        ok!(cuGraphLaunch(exec, s));
        ok!(cuStreamSynchronize(s));
        assert!(download(out, 4096).iter().all(|&b| b == 0x42));
    }
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    free(out);
}

/// Memory that may be had before the capture forbids it: by a relaxed thread.
fn alloc_before() -> u64 {
    let mut mode = RELAXED;
    ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
    let at = alloc(4096);
    ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
    at
}

#[test]
fn capture_info_names_the_graph_and_what_comes_next() {
    let _one = alone();
    let _ctx = Ctx::new();
    let at = alloc(64);
    let s = begin(THREAD_LOCAL);
    ok!(cuMemsetD8Async(at, 1, 64, s));
    let (mut state, mut id, mut graph, mut deps, mut count) = (
        CUstreamCaptureStatus(0),
        0,
        CUgraph::NULL,
        std::ptr::null(),
        0,
    );
    ok!(cuStreamGetCaptureInfo_v2(
        s, &mut state, &mut id, &mut graph, &mut deps, &mut count
    ));
    assert_eq!((state.0, count), (1, 1));
    assert!(id != 0 && !graph.is_null());
    // Without dependencies the next node is a root.
    ok!(cuStreamUpdateCaptureDependencies(s, null_mut(), 0, 1));
    ok!(cuMemsetD8Async(at, 2, 8, s));
    let mut ended = CUgraph::NULL;
    ok!(cuStreamEndCapture(s, &mut ended));
    assert_eq!(ended, graph);
    let mut roots = 0;
    ok!(cuGraphGetRootNodes(ended, null_mut(), &mut roots));
    assert_eq!(roots, 2);
    ok!(cuGraphDestroy(ended));
    free(at);
}

#[test]
fn a_launch_of_a_graph_is_not_captured_and_loses_the_capture() {
    let _one = alone();
    let _ctx = Ctx::new();
    let at = alloc(64);
    let (mut inner, mut outer, mut exec) = (CUgraph::NULL, CUgraph::NULL, CUgraphExec::NULL);
    let s = begin(RELAXED);
    ok!(cuMemsetD8Async(at, 1, 64, s));
    ok!(cuStreamEndCapture(s, &mut inner));
    ok!(cuGraphInstantiateWithFlags(&mut exec, inner, 0));
    for upload in [false, true] {
        ok!(cuStreamBeginCapture_v2(s, RELAXED));
        let answer = match upload {
            true => code!(cuGraphUpload(exec, s)),
            false => code!(cuGraphLaunch(exec, s)),
        };
        assert_eq!(answer, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        let end = code!(cuStreamEndCapture(s, &mut outer));
        assert_eq!(end, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    ok!(cuGraphLaunch(exec, s));
    ok!(cuStreamSynchronize(s));
    assert_eq!(download(at, 2), [1, 1]);
    free(at);
}
