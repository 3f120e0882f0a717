//! Graphs: structure, instantiation, launch, update, user objects.
//!
//! Invariant: graphs, nodes and executable graphs are the driver's handles. Elsewhere: what nodes
//! do (`graph_nodes`), captures (`stream`).

use core::ffi::{c_char, c_uint, c_ulonglong, c_void};

use crate::call::{self, wanted};
use crate::error::CudaResult;
use crate::types::*;

runtime_fns! {
    fn cudaGraphCreate[](graph: *mut cudaGraph_t, flags: c_uint) {
        wanted(graph)?;
        drv!(cuGraphCreate(graph, flags))
    }

    fn cudaGraphClone[](clone: *mut cudaGraph_t, original: cudaGraph_t) {
        wanted(clone)?;
        drv!(cuGraphClone(clone, original))
    }

    fn cudaGraphDestroy[](graph: cudaGraph_t) {
        drv!(cuGraphDestroy(graph))
    }

    fn cudaGraphDestroyNode[](node: cudaGraphNode_t) {
        drv!(cuGraphDestroyNode(node))
    }

    fn cudaGraphNodeFindInClone[](
        node: *mut cudaGraphNode_t, original: cudaGraphNode_t, clone: cudaGraph_t,
    ) {
        drv!(cuGraphNodeFindInClone(node, original, clone))
    }

    fn cudaGraphNodeGetType[](node: cudaGraphNode_t, kind: *mut CUgraphNodeType) {
        drv!(cuGraphNodeGetType(node, kind))
    }

    fn cudaGraphGetNodes[](graph: cudaGraph_t, nodes: *mut cudaGraphNode_t, n: *mut usize) {
        drv!(cuGraphGetNodes(graph, nodes, n))
    }

    fn cudaGraphGetRootNodes[](graph: cudaGraph_t, nodes: *mut cudaGraphNode_t, n: *mut usize) {
        drv!(cuGraphGetRootNodes(graph, nodes, n))
    }

    fn cudaGraphGetEdges[](
        graph: cudaGraph_t, from: *mut cudaGraphNode_t, to: *mut cudaGraphNode_t,
        data: *mut cudaGraphEdgeData, n: *mut usize,
    ) {
        drv!(cuGraphGetEdges_v2(graph, from, to, data, n))
    }

    fn cudaGraphNodeGetDependencies[](
        node: cudaGraphNode_t, nodes: *mut cudaGraphNode_t, data: *mut cudaGraphEdgeData,
        n: *mut usize,
    ) {
        drv!(cuGraphNodeGetDependencies_v2(node, nodes, data, n))
    }

    fn cudaGraphNodeGetDependentNodes[](
        node: cudaGraphNode_t, nodes: *mut cudaGraphNode_t, data: *mut cudaGraphEdgeData,
        n: *mut usize,
    ) {
        drv!(cuGraphNodeGetDependentNodes_v2(node, nodes, data, n))
    }

    fn cudaGraphAddDependencies[](
        graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t,
        data: *const cudaGraphEdgeData, n: usize,
    ) {
        drv!(cuGraphAddDependencies_v2(graph, from, to, data, n))
    }

    fn cudaGraphRemoveDependencies[](
        graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t,
        data: *const cudaGraphEdgeData, n: usize,
    ) {
        drv!(cuGraphRemoveDependencies_v2(graph, from, to, data, n))
    }

    fn cudaGraphInstantiate[](
        exec: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: c_ulonglong,
    ) {
        wanted(exec)?;
        call::context()?;
        drv!(cuGraphInstantiateWithFlags(exec, graph, flags))
    }

    fn cudaGraphInstantiateWithFlags[](
        exec: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: c_ulonglong,
    ) {
        wanted(exec)?;
        call::context()?;
        drv!(cuGraphInstantiateWithFlags(exec, graph, flags))
    }

    fn cudaGraphInstantiateWithParams[cudaGraphInstantiateWithParams_ptsz](
        exec: *mut cudaGraphExec_t, graph: cudaGraph_t, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) {
        wanted(exec)?;
        call::context()?;
        drv2!(cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz(exec, graph, params))
    }

    fn cudaGraphExecGetFlags[](exec: cudaGraphExec_t, flags: *mut c_ulonglong) {
        drv!(cuGraphExecGetFlags(exec, flags))
    }

    fn cudaGraphExecUpdate[](
        exec: cudaGraphExec_t, graph: cudaGraph_t, info: *mut CUgraphExecUpdateResultInfo,
    ) {
        call::context()?;
        drv!(cuGraphExecUpdate_v2(exec, graph, info))
    }

    fn cudaGraphUpload[cudaGraphUpload_ptsz](exec: cudaGraphExec_t, stream: cudaStream_t) {
        call::context()?;
        drv2!(cuGraphUpload cuGraphUpload_ptsz(exec, stream))
    }

    fn cudaGraphLaunch[cudaGraphLaunch_ptsz](exec: cudaGraphExec_t, stream: cudaStream_t) {
        call::context()?;
        drv2!(cuGraphLaunch cuGraphLaunch_ptsz(exec, stream))
    }

    fn cudaGraphExecDestroy[](exec: cudaGraphExec_t) {
        drv!(cuGraphExecDestroy(exec))
    }

    fn cudaGraphNodeSetEnabled[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, is_enabled: c_uint,
    ) {
        drv!(cuGraphNodeSetEnabled(exec, node, is_enabled))
    }

    fn cudaGraphNodeGetEnabled[](
        exec: cudaGraphExec_t, node: cudaGraphNode_t, is_enabled: *mut c_uint,
    ) {
        drv!(cuGraphNodeGetEnabled(exec, node, is_enabled))
    }

    fn cudaGraphDebugDotPrint[](graph: cudaGraph_t, path: *const c_char, flags: c_uint) {
        drv!(cuGraphDebugDotPrint(graph, path, flags))
    }

    fn cudaGraphConditionalHandleCreate[](
        handle: *mut CUgraphConditionalHandle, graph: cudaGraph_t, default: c_uint, flags: c_uint,
    ) {
        let context = call::context()?;
        drv!(cuGraphConditionalHandleCreate(handle, graph, context, default, flags))
    }

    fn cudaUserObjectCreate[](
        object: *mut cudaUserObject_t, value: *mut c_void, destroy: CUhostFn, count: c_uint,
        flags: c_uint,
    ) {
        wanted(object)?;
        drv!(cuUserObjectCreate(object, value, destroy, count, flags))
    }

    fn cudaUserObjectRetain[](object: cudaUserObject_t, count: c_uint) {
        drv!(cuUserObjectRetain(object, count))
    }

    fn cudaUserObjectRelease[](object: cudaUserObject_t, count: c_uint) {
        drv!(cuUserObjectRelease(object, count))
    }

    fn cudaGraphRetainUserObject[](
        graph: cudaGraph_t, object: cudaUserObject_t, count: c_uint, flags: c_uint,
    ) {
        drv!(cuGraphRetainUserObject(graph, object, count, flags))
    }

    fn cudaGraphReleaseUserObject[](
        graph: cudaGraph_t, object: cudaUserObject_t, count: c_uint,
    ) {
        drv!(cuGraphReleaseUserObject(graph, object, count))
    }

    fn cudaGraphKernelNodeCopyAttributes[](to: cudaGraphNode_t, from: cudaGraphNode_t) {
        drv!(cuGraphKernelNodeCopyAttributes(to, from))
    }

    fn cudaGraphKernelNodeGetAttribute[](
        node: cudaGraphNode_t, attr: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue,
    ) {
        drv!(cuGraphKernelNodeGetAttribute(node, attr, value))
    }

    fn cudaGraphKernelNodeSetAttribute[](
        node: cudaGraphNode_t, attr: CUlaunchAttributeID, value: *const CUlaunchAttributeValue,
    ) {
        drv!(cuGraphKernelNodeSetAttribute(node, attr, value))
    }
}
