//! Streams: creation, waiting, capture, attributes, and stream-ordered memory operations.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fercuda_cuda_sys::types::*;

use super::{get, per_thread, put, put_if, slice};
use crate::device::context::current;
use crate::device::launch::{call_program, enqueue};
use crate::device::objects::{HostCall, MemOp, StreamAction, StreamKind};
use crate::device::stream::{self, Submission, of_call};
use crate::device::{CuResult, Machine, capture, err, machine};

fn raw(handles: &[CUgraphNode]) -> Vec<usize> {
    handles.iter().map(|h| h.0 as usize).collect()
}

unsafe fn info(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
    graph: *mut CUgraph,
    deps: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
) -> CuResult {
    let (_, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    capture::may_ask(&ctx, &stream)?;
    let info = capture::info(&stream);
    // SAFETY: the client promises room where it does not pass null.
    unsafe {
        put(status, CUstreamCaptureStatus(info.status))?;
        if info.status == 1 {
            put_if(id, info.id);
            put_if(graph, CUgraph(info.graph as *mut _));
            put_if(deps, info.deps);
            put_if(edges, info.edges);
            put_if(count, info.count);
        }
    }
    Ok(())
}

fn mem_ops(stream: CUstream, ops: Vec<MemOp>, call: &'static str) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    ops.iter().try_for_each(|op| op.check(m))?;
    enqueue(m, &ctx, &stream, StreamAction::MemOps(Arc::new(ops)), call)
}

fn wait_op(addr: u64, value: u64, wide: bool, flags: u32) -> CuResult<MemOp> {
    if flags & !0x4000_0003 != 0 {
        return Err(err::INVALID_VALUE);
    }
    Ok(MemOp::Wait {
        addr,
        value,
        wide,
        how: flags & 3,
    })
}

fn write_op(addr: u64, value: u64, wide: bool, flags: u32) -> CuResult<MemOp> {
    if flags & !1 != 0 {
        return Err(err::INVALID_VALUE);
    }
    Ok(MemOp::Write { addr, value, wide })
}

/// Reads a list of memory operations, for a stream or a graph's node.
pub(super) unsafe fn read_mem_ops(
    m: &Machine,
    params: *const CUstreamBatchMemOpParams,
    count: u32,
) -> CuResult<Vec<MemOp>> {
    if count == 0 || count > 256 {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the client promises `count` operations.
    let params = unsafe { slice(params, count as usize)? };
    let mut ops = Vec::new();
    for p in params {
        // SAFETY: every member begins with the operation, and the operation says which member is in
        // use.
        let op = unsafe {
            match p.operation {
                CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32 => wait_op(
                    p.waitValue.address,
                    u64::from(p.waitValue.u.value),
                    false,
                    p.waitValue.flags,
                )?,
                CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64 => wait_op(
                    p.waitValue.address,
                    p.waitValue.u.value64,
                    true,
                    p.waitValue.flags,
                )?,
                CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32 => write_op(
                    p.writeValue.address,
                    u64::from(p.writeValue.u.value),
                    false,
                    p.writeValue.flags,
                )?,
                CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64 => write_op(
                    p.writeValue.address,
                    p.writeValue.u.value64,
                    true,
                    p.writeValue.flags,
                )?,
                CUstreamBatchMemOpType::CU_STREAM_MEM_OP_BARRIER
                | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => MemOp::Barrier,
                _ => return Err(err::INVALID_VALUE),
            }
        };
        op.check(m)?;
        ops.push(op);
    }
    Ok(ops)
}

driver_fns! {
    fn cuStreamCreate[](stream: *mut CUstream, flags: c_uint) {
        let (m, ctx) = current()?;
        if stream.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(stream, CUstream(stream::create(m, &ctx, flags, 0)?.handle as *mut _))
    }

    fn cuStreamCreateWithPriority[](stream: *mut CUstream, flags: c_uint, priority: c_int) {
        let (m, ctx) = current()?;
        if stream.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(stream, CUstream(stream::create(m, &ctx, flags, priority)?.handle as *mut _))
    }

    fn cuStreamDestroy[](stream: CUstream) {
        stream::destroy(machine()?, stream.0 as usize)
    }

    fn cuStreamDestroy_v2[](stream: CUstream) {
        stream::destroy(machine()?, stream.0 as usize)
    }

    fn cuStreamGetPriority[cuStreamGetPriority_ptsz](stream: CUstream, priority: *mut c_int) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        put(priority, stream.priority.load(Ordering::Acquire))
    }

    fn cuStreamGetFlags[cuStreamGetFlags_ptsz](stream: CUstream, flags: *mut c_uint) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        put(flags, c_uint::from(stream.kind == StreamKind::NonBlocking))
    }

    fn cuStreamGetId[cuStreamGetId_ptsz](stream: CUstream, stream_id: *mut c_ulonglong) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        put(stream_id, stream.id)
    }

    fn cuStreamGetDevice[cuStreamGetDevice_ptsz](stream: CUstream, device: *mut CUdevice) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        put(device, stream.device as CUdevice)
    }

    fn cuStreamGetCtx[cuStreamGetCtx_ptsz](stream: CUstream, ctx: *mut CUcontext) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        put(ctx, CUcontext(stream.ctx_handle as *mut _))
    }

    fn cuStreamGetCtx_v2[cuStreamGetCtx_v2_ptsz](stream: CUstream, ctx: *mut CUcontext, green_ctx: *mut CUgreenCtx) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        put(ctx, CUcontext(stream.ctx_handle as *mut _))?;
        put_if(green_ctx, CUgreenCtx::NULL);
        Ok(())
    }

    fn cuStreamQuery[cuStreamQuery_ptsz](stream: CUstream) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        capture::gate(m, &ctx, &stream)?;
        m.captures.forbid_unsafe_call()?;
        stream.query(m, &ctx)
    }

    fn cuStreamSynchronize[cuStreamSynchronize_ptsz](stream: CUstream) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        capture::gate(m, &ctx, &stream)?;
        m.captures.forbid_unsafe_call()?;
        stream.synchronize(m, &ctx)
    }

    fn cuStreamWaitEvent[cuStreamWaitEvent_ptsz](stream: CUstream, event: CUevent, flags: c_uint) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        if flags > 1 {
            return Err(err::INVALID_VALUE);
        }
        let event = m.events.get(event.0 as usize).ok_or(err::INVALID_HANDLE)?;
        if flags == 1 && capture::place(&stream)?.is_some() {
            return enqueue(m, &ctx, &stream, StreamAction::Wait(event), "cuStreamWaitEvent");
        }
        if capture::wait(m, &stream, &event)? {
            return Ok(());
        }
        capture::gate(m, &ctx, &stream)?;
        if let Some(record) = event.current() {
            stream.wait_record(m, &ctx, &record);
        }
        Ok(())
    }

    fn cuStreamAddCallback[cuStreamAddCallback_ptsz](
        stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint,
    ) {
        let handle = stream;
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        let callback = callback.ok_or(err::INVALID_VALUE)?;
        if flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        // A callback receives errors, so no node can represent it.
        capture::gate(m, &ctx, &stream)?;
        let call = HostCall { function: None, data: user_data };
        let submission = Submission::call("cuStreamAddCallback").always();
        stream.submit(m, &ctx, submission, move |running| {
            let call = call;
            let status = running.health.check().err().unwrap_or(CUresult::CUDA_SUCCESS);
            // SAFETY: the program gave this function and its argument to be called here.
            call_program(|| unsafe { callback(handle, status, call.data) });
            call.run(m, running);
        });
        Ok(())
    }

    fn cuLaunchHostFunc[cuLaunchHostFunc_ptsz](stream: CUstream, func: CUhostFn, user_data: *mut c_void) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        if func.is_none() {
            return Err(err::INVALID_VALUE);
        }
        let action = StreamAction::Host(HostCall { function: func, data: user_data });
        enqueue(m, &ctx, &stream, action, "cuLaunchHostFunc")
    }

    fn cuStreamBeginCapture[cuStreamBeginCapture_ptsz](stream: CUstream) {
        let (m, _, stream) = of_call(stream.0 as usize, per_thread())?;
        capture::begin(m, &stream, capture::GLOBAL, None)
    }

    fn cuStreamBeginCapture_v2[cuStreamBeginCapture_v2_ptsz](stream: CUstream, mode: CUstreamCaptureMode) {
        let (m, _, stream) = of_call(stream.0 as usize, per_thread())?;
        capture::begin(m, &stream, mode.0, None)
    }

    fn cuStreamBeginCaptureToGraph[cuStreamBeginCaptureToGraph_ptsz](
        stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode,
    ) {
        let (m, _, stream) = of_call(stream.0 as usize, per_thread())?;
        let graph = m.graphs.get(graph.0 as usize).ok_or(err::INVALID_VALUE)?;
        let ids = graph.ids(m, &raw(slice(dependencies, num_dependencies)?))?;
        let data = if dependency_data.is_null() { &[] } else { slice(dependency_data, num_dependencies)? };
        let deps = ids.into_iter().enumerate().map(|(i, id)| (id, data.get(i).copied().unwrap_or_default())).collect();
        capture::begin(m, &stream, mode.0, Some((graph, deps)))
    }

    fn cuThreadExchangeStreamCaptureMode[](mode: *mut CUstreamCaptureMode) {
        machine()?;
        let new = get(mode)?.0;
        if new > capture::RELAXED {
            return Err(err::INVALID_VALUE);
        }
        put(mode, CUstreamCaptureMode(capture::exchange_mode(new)))
    }

    fn cuStreamEndCapture[cuStreamEndCapture_ptsz](stream: CUstream, graph: *mut CUgraph) {
        let (m, _, stream) = of_call(stream.0 as usize, per_thread())?;
        put_if(graph, CUgraph::NULL);
        let made = capture::end(m, &stream)?;
        put_if(graph, CUgraph(made.handle as *mut _));
        Ok(())
    }

    fn cuStreamIsCapturing[cuStreamIsCapturing_ptsz](stream: CUstream, capture_status: *mut CUstreamCaptureStatus) {
        let (_, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        capture::may_ask(&ctx, &stream)?;
        put(capture_status, CUstreamCaptureStatus(capture::info(&stream).status))
    }

    fn cuStreamGetCaptureInfo[cuStreamGetCaptureInfo_ptsz](
        stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64,
    ) {
        let none = std::ptr::null_mut;
        info(stream, capture_status_out, id_out, none(), std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut())
    }

    fn cuStreamGetCaptureInfo_v2[cuStreamGetCaptureInfo_v2_ptsz](
        stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize,
    ) {
        info(
            stream, capture_status_out, id_out, graph_out, dependencies_out, std::ptr::null_mut(), num_dependencies_out,
        )
    }

    fn cuStreamGetCaptureInfo_v3[cuStreamGetCaptureInfo_v3_ptsz](
        stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode, edge_data_out: *mut *const CUgraphEdgeData,
        num_dependencies_out: *mut usize,
    ) {
        info(stream, capture_status_out, id_out, graph_out, dependencies_out, edge_data_out, num_dependencies_out)
    }

    fn cuStreamUpdateCaptureDependencies[cuStreamUpdateCaptureDependencies_ptsz](
        stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: c_uint,
    ) {
        let (m, _, stream) = of_call(stream.0 as usize, per_thread())?;
        if flags > 1 {
            return Err(err::INVALID_VALUE);
        }
        capture::update_deps(m, &stream, &raw(slice(dependencies, num_dependencies)?), flags == 1)
    }

    fn cuStreamUpdateCaptureDependencies_v2[cuStreamUpdateCaptureDependencies_v2_ptsz](
        stream: CUstream, dependencies: *mut CUgraphNode, dependency_data: *const CUgraphEdgeData,
        num_dependencies: usize, flags: c_uint,
    ) {
        let (m, _, stream) = of_call(stream.0 as usize, per_thread())?;
        let _ = dependency_data;
        if flags > 1 {
            return Err(err::INVALID_VALUE);
        }
        capture::update_deps(m, &stream, &raw(slice(dependencies, num_dependencies)?), flags == 1)
    }

    fn cuStreamCopyAttributes[cuStreamCopyAttributes_ptsz](dst_stream: CUstream, src_stream: CUstream) {
        let (_, _, dst) = of_call(dst_stream.0 as usize, per_thread())?;
        let (_, _, src) = of_call(src_stream.0 as usize, per_thread())?;
        dst.sync_policy.store(src.sync_policy.load(Ordering::Acquire), Ordering::Release);
        dst.priority.store(src.priority.load(Ordering::Acquire), Ordering::Release);
        Ok(())
    }

    fn cuStreamGetAttribute[cuStreamGetAttribute_ptsz](
        stream: CUstream, attr: CUstreamAttrID, value: *mut CUstreamAttrValue,
    ) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        let mut answer = CUstreamAttrValue::default();
        match attr {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => {
                answer.syncPolicy = CUsynchronizationPolicy(stream.sync_policy.load(Ordering::Acquire) as _);
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                answer.priority = stream.priority.load(Ordering::Acquire);
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => {}
            _ => return Err(err::INVALID_VALUE),
        }
        put(value, answer)
    }

    fn cuStreamSetAttribute[cuStreamSetAttribute_ptsz](
        stream: CUstream, attr: CUstreamAttrID, param: *const CUstreamAttrValue,
    ) {
        let (_, _, stream) = of_call(stream.0 as usize, per_thread())?;
        let value = get(param)?;
        match attr {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => {
                stream.sync_policy.store(u64::from(value.syncPolicy.0), Ordering::Release);
                Ok(())
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                stream.priority.store(value.priority.clamp(stream::PRIORITY_GREATEST, 0), Ordering::Release);
                Ok(())
            }
            // Hints about a cache that is not there.
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => Ok(()),
            _ => Err(err::INVALID_VALUE),
        }
    }

    fn cuStreamWaitValue32[cuStreamWaitValue32_ptsz](stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint) {
        mem_ops(stream, vec![wait_op(addr, u64::from(value), false, flags)?], "cuStreamWaitValue32")
    }

    fn cuStreamWaitValue32_v2[cuStreamWaitValue32_v2_ptsz](
        stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint,
    ) {
        mem_ops(stream, vec![wait_op(addr, u64::from(value), false, flags)?], "cuStreamWaitValue32_v2")
    }

    fn cuStreamWaitValue64[cuStreamWaitValue64_ptsz](stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint) {
        mem_ops(stream, vec![wait_op(addr, value, true, flags)?], "cuStreamWaitValue64")
    }

    fn cuStreamWaitValue64_v2[cuStreamWaitValue64_v2_ptsz](
        stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint,
    ) {
        mem_ops(stream, vec![wait_op(addr, value, true, flags)?], "cuStreamWaitValue64_v2")
    }

    fn cuStreamWriteValue32[cuStreamWriteValue32_ptsz](
        stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint,
    ) {
        mem_ops(stream, vec![write_op(addr, u64::from(value), false, flags)?], "cuStreamWriteValue32")
    }

    fn cuStreamWriteValue32_v2[cuStreamWriteValue32_v2_ptsz](
        stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint,
    ) {
        mem_ops(stream, vec![write_op(addr, u64::from(value), false, flags)?], "cuStreamWriteValue32_v2")
    }

    fn cuStreamWriteValue64[cuStreamWriteValue64_ptsz](
        stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint,
    ) {
        mem_ops(stream, vec![write_op(addr, value, true, flags)?], "cuStreamWriteValue64")
    }

    fn cuStreamWriteValue64_v2[cuStreamWriteValue64_v2_ptsz](
        stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint,
    ) {
        mem_ops(stream, vec![write_op(addr, value, true, flags)?], "cuStreamWriteValue64_v2")
    }

    fn cuStreamBatchMemOp[cuStreamBatchMemOp_ptsz](
        stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint,
    ) {
        if flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        mem_ops(stream, read_mem_ops(machine()?, param_array, count)?, "cuStreamBatchMemOp")
    }

    fn cuStreamBatchMemOp_v2[cuStreamBatchMemOp_v2_ptsz](
        stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint,
    ) {
        if flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        mem_ops(stream, read_mem_ops(machine()?, param_array, count)?, "cuStreamBatchMemOp_v2")
    }

    fn cuGraphUpload[cuGraphUpload_ptsz](graph: CUgraphExec, stream: CUstream) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        let exec = m.execs.get(graph.0 as usize).ok_or(err::INVALID_HANDLE)?;
        capture::gate(m, &ctx, &stream)?;
        exec.upload(m)?;
        // Nothing else has to be brought anywhere; the stream has a place for it all the same.
        stream.submit(m, &ctx, Submission::call("cuGraphUpload"), |_| ());
        Ok(())
    }

    fn cuGraphLaunch[cuGraphLaunch_ptsz](graph: CUgraphExec, stream: CUstream) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        let exec = m.execs.get(graph.0 as usize).ok_or(err::INVALID_HANDLE)?;
        // Unlike the runtime's documents, an H200's driver captures no launch.
        capture::gate(m, &ctx, &stream)?;
        exec.launch(m, &ctx, &stream)
    }
}
