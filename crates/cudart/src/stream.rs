//! Streams, events and captures.
//!
//! Invariant: a stream's or an event's handle is the driver's, and the null stream is the legacy
//! default stream, or the thread's own in a per-thread twin. Elsewhere: graphs (`graph`).

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::call::{self, wanted};
use crate::error::{CudaResult, cudaError_t};
use crate::types::*;

runtime_fns! {
    fn cudaStreamCreate[](stream: *mut cudaStream_t) {
        wanted(stream)?;
        call::context()?;
        drv!(cuStreamCreate(stream, 0))
    }

    fn cudaStreamCreateWithFlags[](stream: *mut cudaStream_t, flags: c_uint) {
        wanted(stream)?;
        call::context()?;
        drv!(cuStreamCreate(stream, flags))
    }

    fn cudaStreamCreateWithPriority[](
        stream: *mut cudaStream_t, flags: c_uint, priority: c_int,
    ) {
        wanted(stream)?;
        call::context()?;
        drv!(cuStreamCreateWithPriority(stream, flags, priority))
    }

    fn cudaStreamDestroy[](stream: cudaStream_t) {
        call::context()?;
        drv!(cuStreamDestroy_v2(stream))
    }

    fn cudaStreamGetPriority[cudaStreamGetPriority_ptsz](
        stream: cudaStream_t, priority: *mut c_int,
    ) {
        call::context()?;
        drv2!(cuStreamGetPriority cuStreamGetPriority_ptsz(stream, priority))
    }

    fn cudaStreamGetFlags[cudaStreamGetFlags_ptsz](stream: cudaStream_t, flags: *mut c_uint) {
        call::context()?;
        drv2!(cuStreamGetFlags cuStreamGetFlags_ptsz(stream, flags))
    }

    fn cudaStreamGetId[cudaStreamGetId_ptsz](stream: cudaStream_t, id: *mut c_ulonglong) {
        call::context()?;
        drv2!(cuStreamGetId cuStreamGetId_ptsz(stream, id))
    }

    fn cudaStreamGetDevice[cudaStreamGetDevice_ptsz](stream: cudaStream_t, device: *mut c_int) {
        wanted(device)?;
        call::context()?;
        drv2!(cuStreamGetDevice cuStreamGetDevice_ptsz(stream, device))
    }

    fn cudaStreamCopyAttributes[cudaStreamCopyAttributes_ptsz](
        to: cudaStream_t, from: cudaStream_t,
    ) {
        call::context()?;
        drv2!(cuStreamCopyAttributes cuStreamCopyAttributes_ptsz(to, from))
    }

    fn cudaStreamGetAttribute[cudaStreamGetAttribute_ptsz](
        stream: cudaStream_t, attr: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue,
    ) {
        call::context()?;
        drv2!(cuStreamGetAttribute cuStreamGetAttribute_ptsz(stream, attr, value))
    }

    fn cudaStreamSetAttribute[cudaStreamSetAttribute_ptsz](
        stream: cudaStream_t, attr: CUlaunchAttributeID, value: *const CUlaunchAttributeValue,
    ) {
        call::context()?;
        drv2!(cuStreamSetAttribute cuStreamSetAttribute_ptsz(stream, attr, value))
    }

    fn cudaStreamWaitEvent[cudaStreamWaitEvent_ptsz](
        stream: cudaStream_t, event: cudaEvent_t, flags: c_uint,
    ) {
        call::context()?;
        drv2!(cuStreamWaitEvent cuStreamWaitEvent_ptsz(stream, event, flags))
    }

    fn cudaStreamAddCallback[cudaStreamAddCallback_ptsz](
        stream: cudaStream_t, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint,
    ) {
        call::context()?;
        // The status that the callback gets has the same numbers in both interfaces.
        drv2!(cuStreamAddCallback cuStreamAddCallback_ptsz(stream, callback, user_data, flags))
    }

    fn cudaStreamSynchronize[cudaStreamSynchronize_ptsz](stream: cudaStream_t) {
        call::context()?;
        drv2!(cuStreamSynchronize cuStreamSynchronize_ptsz(stream))
    }

    fn cudaStreamQuery[cudaStreamQuery_ptsz](stream: cudaStream_t) {
        call::context()?;
        drv2!(cuStreamQuery cuStreamQuery_ptsz(stream))
    }

    fn cudaStreamAttachMemAsync[cudaStreamAttachMemAsync_ptsz](
        stream: cudaStream_t, at: *mut c_void, bytes: usize, flags: c_uint,
    ) {
        call::context()?;
        drv2!(cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz(
            stream, call::address(at), bytes, flags
        ))
    }

    fn cudaStreamBeginCapture[cudaStreamBeginCapture_ptsz](stream: cudaStream_t, mode: c_uint) {
        call::context()?;
        let mode = CUstreamCaptureMode(mode as _);
        drv2!(cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz(stream, mode))
    }

    fn cudaStreamBeginCaptureToGraph[cudaStreamBeginCaptureToGraph_ptsz](
        stream: cudaStream_t, graph: cudaGraph_t, dependencies: *const cudaGraphNode_t,
        data: *const cudaGraphEdgeData, n: usize, mode: c_uint,
    ) {
        call::context()?;
        let mode = CUstreamCaptureMode(mode as _);
        drv2!(cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz(
            stream, graph, dependencies, data, n, mode
        ))
    }

    fn cudaThreadExchangeStreamCaptureMode[](mode: *mut CUstreamCaptureMode) {
        wanted(mode)?;
        drv!(cuThreadExchangeStreamCaptureMode(mode))
    }

    fn cudaStreamEndCapture[cudaStreamEndCapture_ptsz](
        stream: cudaStream_t, graph: *mut cudaGraph_t,
    ) {
        call::context()?;
        drv2!(cuStreamEndCapture cuStreamEndCapture_ptsz(stream, graph))
    }

    fn cudaStreamIsCapturing[cudaStreamIsCapturing_ptsz](
        stream: cudaStream_t, status: *mut CUstreamCaptureStatus,
    ) {
        call::context()?;
        drv2!(cuStreamIsCapturing cuStreamIsCapturing_ptsz(stream, status))
    }

    fn cudaStreamGetCaptureInfo[cudaStreamGetCaptureInfo_ptsz](
        stream: cudaStream_t, status: *mut CUstreamCaptureStatus, id: *mut c_ulonglong,
        graph: *mut cudaGraph_t, dependencies: *mut *const cudaGraphNode_t,
        data: *mut *const cudaGraphEdgeData, n: *mut usize,
    ) {
        call::context()?;
        drv2!(cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz(
            stream, status, id, graph, dependencies, data, n
        ))
    }

    fn cudaStreamUpdateCaptureDependencies[cudaStreamUpdateCaptureDependencies_ptsz](
        stream: cudaStream_t, dependencies: *mut cudaGraphNode_t, data: *const cudaGraphEdgeData,
        n: usize, flags: c_uint,
    ) {
        call::context()?;
        drv2!(cuStreamUpdateCaptureDependencies_v2 cuStreamUpdateCaptureDependencies_v2_ptsz(
            stream, dependencies, data, n, flags
        ))
    }

    fn cudaEventCreate[](event: *mut cudaEvent_t) {
        wanted(event)?;
        call::context()?;
        drv!(cuEventCreate(event, 0))
    }

    fn cudaEventCreateWithFlags[](event: *mut cudaEvent_t, flags: c_uint) {
        wanted(event)?;
        call::context()?;
        drv!(cuEventCreate(event, flags))
    }

    fn cudaEventRecord[cudaEventRecord_ptsz](event: cudaEvent_t, stream: cudaStream_t) {
        call::context()?;
        drv2!(cuEventRecord cuEventRecord_ptsz(event, stream))
    }

    fn cudaEventRecordWithFlags[cudaEventRecordWithFlags_ptsz](
        event: cudaEvent_t, stream: cudaStream_t, flags: c_uint,
    ) {
        call::context()?;
        drv2!(cuEventRecordWithFlags cuEventRecordWithFlags_ptsz(event, stream, flags))
    }

    fn cudaEventQuery[](event: cudaEvent_t) {
        call::context()?;
        drv!(cuEventQuery(event))
    }

    fn cudaEventSynchronize[](event: cudaEvent_t) {
        call::context()?;
        drv!(cuEventSynchronize(event))
    }

    fn cudaEventDestroy[](event: cudaEvent_t) {
        call::context()?;
        drv!(cuEventDestroy_v2(event))
    }

    fn cudaEventElapsedTime[](ms: *mut f32, start: cudaEvent_t, end: cudaEvent_t) {
        wanted(ms)?;
        call::context()?;
        if start.is_null() || end.is_null() {
            return Err(cudaError_t::INVALID_HANDLE);
        }
        drv!(cuEventElapsedTime(ms, start, end))
    }
}
