//! Nodes of graphs: adding them, reading and changing what they do.
//!
//! Structures that the two interfaces share are passed on; kernels, copies and nodes of any type
//! are translated.
//!
//! Invariant: a kernel node's function is the host's function when the program reads it.
//! Elsewhere: the graphs themselves (`graph`).

use core::ffi::{c_int, c_void};

use crate::call::{self, address, get, pointer, put, wanted};
use crate::copy::{boxes, in_symbol, line_box, runtime_boxes, symbol_kind};
use crate::error::CudaResult;
use crate::launch::{kernel_node, runtime_kernel_node};
use crate::types::*;

/// The driver's parameters of a node of any type.
///
/// # Safety
/// The member of the union that the type names was set.
unsafe fn driver_node(it: &cudaGraphNodeParams) -> CudaResult<CUgraphNodeParams> {
    let context = call::context()?;
    let mut out = CUgraphNodeParams {
        r#type: CUgraphNodeType(it.r#type as _),
        ..Default::default()
    };
    // SAFETY: the caller's promise; every member accepts all bytes.
    unsafe {
        match it.r#type {
            0 => {
                let kernel = kernel_node(&it.u.kernel)?;
                out.u.kernel = CUDA_KERNEL_NODE_PARAMS_v3 {
                    func: kernel.func,
                    gridDimX: kernel.gridDimX,
                    gridDimY: kernel.gridDimY,
                    gridDimZ: kernel.gridDimZ,
                    blockDimX: kernel.blockDimX,
                    blockDimY: kernel.blockDimY,
                    blockDimZ: kernel.blockDimZ,
                    sharedMemBytes: kernel.sharedMemBytes,
                    kernelParams: kernel.kernelParams,
                    extra: kernel.extra,
                    kern: CUkernel::NULL,
                    ctx: CUcontext::NULL,
                };
            }
            1 => {
                out.u.memcpy = CUDA_MEMCPY_NODE_PARAMS {
                    flags: it.u.memcpy.flags,
                    copyCtx: context,
                    copyParams: boxes(&it.u.memcpy.copyParams)?,
                    ..Default::default()
                };
            }
            2 => {
                let fill = it.u.memset;
                out.u.memset = CUDA_MEMSET_NODE_PARAMS_v2 {
                    dst: fill.dst,
                    pitch: fill.pitch,
                    value: fill.value,
                    elementSize: fill.elementSize,
                    width: fill.width,
                    height: fill.height,
                    ctx: context,
                };
            }
            3 => {
                out.u.host = CUDA_HOST_NODE_PARAMS_v2 {
                    r#fn: it.u.host.r#fn,
                    userData: it.u.host.userData,
                };
            }
            4 => out.u.graph = it.u.graph,
            5 => {}
            6 => out.u.eventWait = it.u.eventWait,
            7 => out.u.eventRecord = it.u.eventRecord,
            10 => out.u.alloc = it.u.alloc,
            11 => out.u.free = it.u.free,
            13 => {
                let condition = it.u.conditional;
                out.u.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
                    handle: condition.handle,
                    r#type: CUgraphConditionalNodeType(condition.r#type as _),
                    size: condition.size,
                    phGraph_out: core::ptr::null_mut(),
                    ctx: context,
                };
            }
            _ => call::refuse("a graph node of an external semaphore")?,
        }
    }
    Ok(out)
}

/// Where a node is added: graph, dependencies, their number, and the node that comes of it.
struct NewNode {
    node: *mut cudaGraphNode_t,
    graph: cudaGraph_t,
    after: *const cudaGraphNode_t,
    n: usize,
}

/// Adds a copy.
///
/// # Safety
/// The program's own pointers.
unsafe fn add_copy(place: &NewNode, it: &CUDA_MEMCPY3D) -> CudaResult {
    let context = call::context()?;
    // SAFETY: the caller's promise.
    unsafe {
        drv!(cuGraphAddMemcpyNode(
            place.node,
            place.graph,
            place.after,
            place.n,
            it,
            context
        ))
    }
}

runtime_fns! {
    fn cudaGraphAddKernelNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        params: *const cudaKernelNodeParams,
    ) {
        let params = kernel_node(&get(params)?)?;
        drv!(cuGraphAddKernelNode_v2(node, graph, after, n, &params))
    }

    fn cudaGraphKernelNodeGetParams[](node: cudaGraphNode_t, params: *mut cudaKernelNodeParams) {
        wanted(params)?;
        let mut it = CUDA_KERNEL_NODE_PARAMS::default();
        drv!(cuGraphKernelNodeGetParams_v2(node, &mut it))?;
        put(params, runtime_kernel_node(&it))
    }

    fn cudaGraphKernelNodeSetParams[](node: cudaGraphNode_t, params: *const cudaKernelNodeParams) {
        let params = kernel_node(&get(params)?)?;
        drv!(cuGraphKernelNodeSetParams_v2(node, &params))
    }

    fn cudaGraphExecKernelNodeSetParams[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, params: *const cudaKernelNodeParams,
    ) {
        let params = kernel_node(&get(params)?)?;
        drv!(cuGraphExecKernelNodeSetParams_v2(exec, node, &params))
    }

    fn cudaGraphAddMemcpyNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        params: *const cudaMemcpy3DParms,
    ) {
        call::context()?;
        add_copy(&NewNode { node, graph, after, n }, &boxes(&get(params)?)?)
    }

    fn cudaGraphAddMemcpyNode1D[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int,
    ) {
        add_copy(&NewNode { node, graph, after, n }, &line_box(to, from, bytes, kind)?)
    }

    fn cudaGraphAddMemcpyNodeToSymbol[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        symbol: *const c_void, from: *const c_void, bytes: usize, offset: usize, kind: c_int,
    ) {
        symbol_kind(kind, true)?;
        let to = in_symbol(symbol, offset, bytes)?;
        add_copy(&NewNode { node, graph, after, n }, &line_box(to, from, bytes, kind)?)
    }

    fn cudaGraphAddMemcpyNodeFromSymbol[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        to: *mut c_void, symbol: *const c_void, bytes: usize, offset: usize, kind: c_int,
    ) {
        symbol_kind(kind, false)?;
        let from = in_symbol(symbol, offset, bytes)?;
        add_copy(&NewNode { node, graph, after, n }, &line_box(to, from, bytes, kind)?)
    }

    fn cudaGraphMemcpyNodeGetParams[](node: cudaGraphNode_t, params: *mut cudaMemcpy3DParms) {
        wanted(params)?;
        let mut it = CUDA_MEMCPY3D::default();
        drv!(cuGraphMemcpyNodeGetParams(node, &mut it))?;
        put(params, runtime_boxes(&it)?)
    }

    fn cudaGraphMemcpyNodeSetParams[](node: cudaGraphNode_t, params: *const cudaMemcpy3DParms) {
        let it = boxes(&get(params)?)?;
        drv!(cuGraphMemcpyNodeSetParams(node, &it))
    }

    fn cudaGraphMemcpyNodeSetParams1D[](
        node: cudaGraphNode_t, to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int,
    ) {
        let it = line_box(to, from, bytes, kind)?;
        drv!(cuGraphMemcpyNodeSetParams(node, &it))
    }

    fn cudaGraphMemcpyNodeSetParamsToSymbol[](
        node: cudaGraphNode_t, symbol: *const c_void, from: *const c_void, bytes: usize,
        offset: usize, kind: c_int,
    ) {
        symbol_kind(kind, true)?;
        let it = line_box(in_symbol(symbol, offset, bytes)?, from, bytes, kind)?;
        drv!(cuGraphMemcpyNodeSetParams(node, &it))
    }

    fn cudaGraphMemcpyNodeSetParamsFromSymbol[](
        node: cudaGraphNode_t, to: *mut c_void, symbol: *const c_void, bytes: usize,
        offset: usize, kind: c_int,
    ) {
        symbol_kind(kind, false)?;
        let it = line_box(to, in_symbol(symbol, offset, bytes)?, bytes, kind)?;
        drv!(cuGraphMemcpyNodeSetParams(node, &it))
    }

    fn cudaGraphExecMemcpyNodeSetParams[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, params: *const cudaMemcpy3DParms,
    ) {
        let context = call::context()?;
        let it = boxes(&get(params)?)?;
        drv!(cuGraphExecMemcpyNodeSetParams(exec, node, &it, context))
    }

    fn cudaGraphExecMemcpyNodeSetParams1D[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, to: *mut c_void, from: *const c_void,
        bytes: usize, kind: c_int,
    ) {
        let context = call::context()?;
        let it = line_box(to, from, bytes, kind)?;
        drv!(cuGraphExecMemcpyNodeSetParams(exec, node, &it, context))
    }

    fn cudaGraphExecMemcpyNodeSetParamsToSymbol[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, symbol: *const c_void, from: *const c_void,
        bytes: usize, offset: usize, kind: c_int,
    ) {
        symbol_kind(kind, true)?;
        let context = call::context()?;
        let it = line_box(in_symbol(symbol, offset, bytes)?, from, bytes, kind)?;
        drv!(cuGraphExecMemcpyNodeSetParams(exec, node, &it, context))
    }

    fn cudaGraphExecMemcpyNodeSetParamsFromSymbol[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, to: *mut c_void, symbol: *const c_void,
        bytes: usize, offset: usize, kind: c_int,
    ) {
        symbol_kind(kind, false)?;
        let context = call::context()?;
        let it = line_box(to, in_symbol(symbol, offset, bytes)?, bytes, kind)?;
        drv!(cuGraphExecMemcpyNodeSetParams(exec, node, &it, context))
    }

    fn cudaGraphAddMemsetNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        params: *const cudaMemsetParams,
    ) {
        let context = call::context()?;
        drv!(cuGraphAddMemsetNode(node, graph, after, n, params, context))
    }

    fn cudaGraphMemsetNodeGetParams[](node: cudaGraphNode_t, params: *mut cudaMemsetParams) {
        drv!(cuGraphMemsetNodeGetParams(node, params))
    }

    fn cudaGraphMemsetNodeSetParams[](node: cudaGraphNode_t, params: *const cudaMemsetParams) {
        drv!(cuGraphMemsetNodeSetParams(node, params))
    }

    fn cudaGraphExecMemsetNodeSetParams[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, params: *const cudaMemsetParams,
    ) {
        let context = call::context()?;
        drv!(cuGraphExecMemsetNodeSetParams(exec, node, params, context))
    }

    fn cudaGraphAddHostNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        params: *const cudaHostNodeParams,
    ) {
        drv!(cuGraphAddHostNode(node, graph, after, n, params))
    }

    fn cudaGraphHostNodeGetParams[](node: cudaGraphNode_t, params: *mut cudaHostNodeParams) {
        drv!(cuGraphHostNodeGetParams(node, params))
    }

    fn cudaGraphHostNodeSetParams[](node: cudaGraphNode_t, params: *const cudaHostNodeParams) {
        drv!(cuGraphHostNodeSetParams(node, params))
    }

    fn cudaGraphExecHostNodeSetParams[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, params: *const cudaHostNodeParams,
    ) {
        drv!(cuGraphExecHostNodeSetParams(exec, node, params))
    }

    fn cudaGraphAddChildGraphNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        child: cudaGraph_t,
    ) {
        drv!(cuGraphAddChildGraphNode(node, graph, after, n, child))
    }

    fn cudaGraphChildGraphNodeGetGraph[](node: cudaGraphNode_t, graph: *mut cudaGraph_t) {
        drv!(cuGraphChildGraphNodeGetGraph(node, graph))
    }

    fn cudaGraphExecChildGraphNodeSetParams[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, child: cudaGraph_t,
    ) {
        drv!(cuGraphExecChildGraphNodeSetParams(exec, node, child))
    }

    fn cudaGraphAddEmptyNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
    ) {
        drv!(cuGraphAddEmptyNode(node, graph, after, n))
    }

    fn cudaGraphAddEventRecordNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        event: cudaEvent_t,
    ) {
        drv!(cuGraphAddEventRecordNode(node, graph, after, n, event))
    }

    fn cudaGraphEventRecordNodeGetEvent[](node: cudaGraphNode_t, event: *mut cudaEvent_t) {
        drv!(cuGraphEventRecordNodeGetEvent(node, event))
    }

    fn cudaGraphEventRecordNodeSetEvent[](node: cudaGraphNode_t, event: cudaEvent_t) {
        drv!(cuGraphEventRecordNodeSetEvent(node, event))
    }

    fn cudaGraphExecEventRecordNodeSetEvent[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, event: cudaEvent_t,
    ) {
        drv!(cuGraphExecEventRecordNodeSetEvent(exec, node, event))
    }

    fn cudaGraphAddEventWaitNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        event: cudaEvent_t,
    ) {
        drv!(cuGraphAddEventWaitNode(node, graph, after, n, event))
    }

    fn cudaGraphEventWaitNodeGetEvent[](node: cudaGraphNode_t, event: *mut cudaEvent_t) {
        drv!(cuGraphEventWaitNodeGetEvent(node, event))
    }

    fn cudaGraphEventWaitNodeSetEvent[](node: cudaGraphNode_t, event: cudaEvent_t) {
        drv!(cuGraphEventWaitNodeSetEvent(node, event))
    }

    fn cudaGraphExecEventWaitNodeSetEvent[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, event: cudaEvent_t,
    ) {
        drv!(cuGraphExecEventWaitNodeSetEvent(exec, node, event))
    }

    fn cudaGraphAddMemAllocNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        params: *mut cudaMemAllocNodeParams,
    ) {
        call::context()?;
        drv!(cuGraphAddMemAllocNode(node, graph, after, n, params))
    }

    fn cudaGraphMemAllocNodeGetParams[](
        node: cudaGraphNode_t, params: *mut cudaMemAllocNodeParams,
    ) {
        drv!(cuGraphMemAllocNodeGetParams(node, params))
    }

    fn cudaGraphAddMemFreeNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t, n: usize,
        at: *mut c_void,
    ) {
        call::context()?;
        drv!(cuGraphAddMemFreeNode(node, graph, after, n, address(at)))
    }

    fn cudaGraphMemFreeNodeGetParams[](node: cudaGraphNode_t, out: *mut c_void) {
        wanted(out)?;
        let mut at = 0;
        drv!(cuGraphMemFreeNodeGetParams(node, &mut at))?;
        put(out.cast::<*mut c_void>(), pointer(at))
    }

    fn cudaGraphAddNode[](
        node: *mut cudaGraphNode_t, graph: cudaGraph_t, after: *const cudaGraphNode_t,
        data: *const cudaGraphEdgeData, n: usize, params: *mut cudaGraphNodeParams,
    ) {
        let it = get(params)?;
        let mut driver = driver_node(&it)?;
        drv!(cuGraphAddNode_v2(node, graph, after, data, n, &mut driver))?;
        match it.r#type {
            10 => (*params).u.alloc.dptr = driver.u.alloc.dptr,
            13 => (*params).u.conditional.phGraph_out = driver.u.conditional.phGraph_out,
            _ => {}
        }
        Ok(())
    }

    fn cudaGraphNodeSetParams[](node: cudaGraphNode_t, params: *mut cudaGraphNodeParams) {
        let mut driver = driver_node(&get(params)?)?;
        drv!(cuGraphNodeSetParams(node, &mut driver))
    }

    fn cudaGraphExecNodeSetParams[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, params: *mut cudaGraphNodeParams,
    ) {
        let mut driver = driver_node(&get(params)?)?;
        drv!(cuGraphExecNodeSetParams(exec, node, &mut driver))
    }
}
