//! Graphs as a whole: nodes and edges, copies, instantiation, updates, objects.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::path::Path;
use std::sync::Arc;

use fercuda_cuda_sys::types::*;

use super::{files, get, put, put_if, slice, text};
use crate::device::exec_graph;
use crate::device::graph;
use crate::device::objects::{ExecGraph, SoftGraph, StreamAction, UserObject};
use crate::device::{CuResult, err, lock, machine};

pub(super) fn find(handle: CUgraph) -> CuResult<Arc<SoftGraph>> {
    machine()?
        .graphs
        .get(handle.0 as usize)
        .ok_or(err::INVALID_VALUE)
}

pub(super) fn exec(handle: CUgraphExec) -> CuResult<Arc<ExecGraph>> {
    machine()?
        .execs
        .get(handle.0 as usize)
        .ok_or(err::INVALID_VALUE)
}

pub(super) fn raw(handles: &[CUgraphNode]) -> Vec<usize> {
    handles.iter().map(|h| h.0 as usize).collect()
}

/// Writes a list the way graph queries do: without an array only the count, with one at most
/// `count`.
unsafe fn list<T: Copy + Default>(out: *mut T, count: *mut usize, all: &[T]) -> CuResult {
    // SAFETY: the client promises a count, and as many places as it says.
    unsafe {
        let room = *get(count.cast_const())?;
        if out.is_null() {
            return put(count, all.len());
        }
        for i in 0..room {
            *out.add(i) = all.get(i).copied().unwrap_or_default();
        }
        put(count, all.len().min(room))
    }
}

unsafe fn edges(
    all: &[(usize, usize, CUgraphEdgeData)],
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CuResult {
    // SAFETY: the client promises a count, and as many places as it says in each array it passes.
    unsafe {
        let room = *get(count.cast_const())?;
        if from.is_null() && to.is_null() {
            return put(count, all.len());
        }
        if from.is_null() || to.is_null() {
            return Err(err::INVALID_VALUE);
        }
        for (i, &(a, b, edge)) in all.iter().take(room).enumerate() {
            *from.add(i) = CUgraphNode(a as *mut _);
            *to.add(i) = CUgraphNode(b as *mut _);
            if !data.is_null() {
                *data.add(i) = edge;
            }
        }
        put(count, all.len().min(room))
    }
}

/// Neighbours of a node: (handle, edge).
fn neighbours(node: CUgraphNode, forward: bool) -> CuResult<Vec<(usize, CUgraphEdgeData)>> {
    let (graph, id) = graph::node(machine()?, node.0 as usize)?;
    let state = lock(&graph.state);
    let handle = |id: u64| state.nodes.get(&id).map_or(0, |n| n.handle);
    if forward {
        let behind = state
            .nodes
            .values()
            .flat_map(|n| n.deps.iter().filter(|d| d.0 == id).map(|d| (n.handle, d.1)));
        return Ok(behind.collect());
    }
    let own = state.nodes.get(&id).ok_or(err::INVALID_VALUE)?;
    Ok(own.deps.iter().map(|d| (handle(d.0), d.1)).collect())
}

unsafe fn show_neighbours(
    node: CUgraphNode,
    forward: bool,
    out: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CuResult {
    let all = neighbours(node, forward)?;
    let handles: Vec<CUgraphNode> = all.iter().map(|n| CUgraphNode(n.0 as *mut _)).collect();
    // SAFETY: the client promises a count, and as many places as it says in each array it passes.
    unsafe {
        if !data.is_null() && !out.is_null() {
            let room = *get(count.cast_const())?;
            for (i, n) in all.iter().take(room).enumerate() {
                *data.add(i) = n.1;
            }
        }
        list(out, count, &handles)
    }
}

unsafe fn change_edges(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    add: bool,
) -> CuResult {
    let graph = find(graph)?;
    let m = machine()?;
    // SAFETY: the client promises `count` of each.
    let (from, to) = unsafe { (slice(from, count)?, slice(to, count)?) };
    let data = if data.is_null() {
        &[]
    } else {
        // SAFETY: likewise.
        unsafe { slice(data, count)? }
    };
    let (from, to) = (graph.ids(m, &raw(from))?, graph.ids(m, &raw(to))?);
    for (i, (&a, &b)) in from.iter().zip(&to).enumerate() {
        if add {
            graph.add_edge(a, b, data.get(i).copied().unwrap_or_default())?;
        } else {
            graph.remove_edge(a, b)?;
        }
    }
    Ok(())
}

unsafe fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> CuResult {
    let graph = find(graph)?;
    if out.is_null() {
        return Err(err::INVALID_VALUE);
    }
    let m = machine()?;
    m.captures.forbid_unsafe_call()?;
    // SAFETY: checked for null above.
    unsafe {
        put(
            out,
            CUgraphExec(exec_graph::instantiate(m, &graph, flags)?.handle as *mut _),
        )
    }
}

driver_fns! {
    fn cuGraphCreate[](graph: *mut CUgraph, flags: c_uint) {
        let m = machine()?;
        if graph.is_null() || flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        put(graph, CUgraph(graph::create(m, false).handle as *mut _))
    }

    fn cuGraphDestroy[](graph: CUgraph) {
        let graph = find(graph)?;
        if graph.is_child {
            return Err(err::INVALID_VALUE);
        }
        graph.destroy(machine()?);
        Ok(())
    }

    fn cuGraphClone[](graph_clone: *mut CUgraph, original_graph: CUgraph) {
        let original = find(original_graph)?;
        if graph_clone.is_null() {
            return Err(err::INVALID_VALUE);
        }
        if original.allocates() {
            return Err(err::NOT_SUPPORTED);
        }
        put(graph_clone, CUgraph(original.copy(machine()?, false).handle as *mut _))
    }

    fn cuGraphNodeFindInClone[](node: *mut CUgraphNode, original_node: CUgraphNode, cloned_graph: CUgraph) {
        let clone = find(cloned_graph)?;
        let state = lock(&clone.state);
        let wanted = original_node.0 as usize;
        let found = state.nodes.values().find(|n| n.original == Some(wanted)).ok_or(err::INVALID_VALUE)?;
        put(node, CUgraphNode(found.handle as *mut _))
    }

    fn cuGraphGetNodes[](graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize) {
        let graph = find(graph)?;
        let all: Vec<_> = lock(&graph.state).nodes.values().map(|n| CUgraphNode(n.handle as *mut _)).collect();
        list(nodes, num_nodes, &all)
    }

    fn cuGraphGetRootNodes[](graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize) {
        let graph = find(graph)?;
        let state = lock(&graph.state);
        let roots: Vec<_> =
            state.nodes.values().filter(|n| n.deps.is_empty()).map(|n| CUgraphNode(n.handle as *mut _)).collect();
        drop(state);
        list(root_nodes, num_root_nodes, &roots)
    }

    fn cuGraphGetEdges[](graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize) {
        edges(&find(graph)?.edges(), from, to, std::ptr::null_mut(), num_edges)
    }

    fn cuGraphGetEdges_v2[](
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
        num_edges: *mut usize,
    ) {
        edges(&find(graph)?.edges(), from, to, edge_data, num_edges)
    }

    fn cuGraphNodeGetDependencies[](
        node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize,
    ) {
        show_neighbours(node, false, dependencies, std::ptr::null_mut(), num_dependencies)
    }

    fn cuGraphNodeGetDependencies_v2[](
        node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
        num_dependencies: *mut usize,
    ) {
        show_neighbours(node, false, dependencies, edge_data, num_dependencies)
    }

    fn cuGraphNodeGetDependentNodes[](
        node: CUgraphNode, dependent_nodes: *mut CUgraphNode, num_dependent_nodes: *mut usize,
    ) {
        show_neighbours(node, true, dependent_nodes, std::ptr::null_mut(), num_dependent_nodes)
    }

    fn cuGraphNodeGetDependentNodes_v2[](
        node: CUgraphNode, dependent_nodes: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
        num_dependent_nodes: *mut usize,
    ) {
        show_neighbours(node, true, dependent_nodes, edge_data, num_dependent_nodes)
    }

    fn cuGraphAddDependencies[](
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize,
    ) {
        change_edges(graph, from, to, std::ptr::null(), num_dependencies, true)
    }

    fn cuGraphAddDependencies_v2[](
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData,
        num_dependencies: usize,
    ) {
        change_edges(graph, from, to, edge_data, num_dependencies, true)
    }

    fn cuGraphRemoveDependencies[](
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize,
    ) {
        change_edges(graph, from, to, std::ptr::null(), num_dependencies, false)
    }

    fn cuGraphRemoveDependencies_v2[](
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData,
        num_dependencies: usize,
    ) {
        change_edges(graph, from, to, edge_data, num_dependencies, false)
    }

    fn cuGraphDestroyNode[](node: CUgraphNode) {
        let m = machine()?;
        let (graph, id) = graph::node(m, node.0 as usize)?;
        graph.remove(m, id)
    }

    fn cuGraphNodeGetType[](node: CUgraphNode, kind: *mut CUgraphNodeType) {
        let (graph, id) = graph::node(machine()?, node.0 as usize)?;
        let number = graph.with(id, |n| Ok(match n.action {
            StreamAction::Kernel(_) => 0,
            StreamAction::Copy(_) => 1,
            StreamAction::Fill(_) => 2,
            StreamAction::Host(_) => 3,
            StreamAction::Child(_) => 4,
            StreamAction::Empty => 5,
            StreamAction::Wait(_) => 6,
            StreamAction::Record(_) => 7,
            StreamAction::MemAlloc(_) => 10,
            StreamAction::MemFree(_) => 11,
            StreamAction::MemOps(_) => 12,
        }))?;
        put(kind, CUgraphNodeType(number))
    }

    fn cuGraphInstantiateWithFlags[](graph_exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) {
        instantiate(graph_exec, graph, flags)
    }

    fn cuGraphInstantiate[](
        graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log_buffer: *mut c_char,
        buffer_size: usize,
    ) {
        put_if(error_node, CUgraphNode::NULL);
        if buffer_size > 0 {
            put_if(log_buffer, 0);
        }
        instantiate(graph_exec, graph, 0)
    }

    fn cuGraphInstantiate_v2[](
        graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log_buffer: *mut c_char,
        buffer_size: usize,
    ) {
        put_if(error_node, CUgraphNode::NULL);
        if buffer_size > 0 {
            put_if(log_buffer, 0);
        }
        instantiate(graph_exec, graph, 0)
    }

    fn cuGraphInstantiateWithParams[cuGraphInstantiateWithParams_ptsz](
        graph_exec: *mut CUgraphExec, graph: CUgraph, instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) {
        let flags = get(instantiate_params.cast_const())?.flags;
        let done = instantiate(graph_exec, graph, flags);
        (*instantiate_params).hErrNode_out = CUgraphNode::NULL;
        (*instantiate_params).result_out = CUgraphInstantiateResult(match done {
            Ok(()) => 0,
            Err(err::NOT_SUPPORTED) => 3,
            Err(_) => 1,
        });
        done
    }

    fn cuGraphExecGetFlags[](graph_exec: CUgraphExec, flags: *mut u64) {
        put(flags, exec(graph_exec)?.flags)
    }

    fn cuGraphExecDestroy[](graph_exec: CUgraphExec) {
        // Work already launched keeps what it needs.
        exec(graph_exec)?.destroy(machine()?);
        Ok(())
    }

    fn cuGraphExecUpdate_v2[](graph_exec: CUgraphExec, graph: CUgraph, result_info: *mut CUgraphExecUpdateResultInfo) {
        let (exec, graph) = (exec(graph_exec)?, find(graph)?);
        if result_info.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let done = exec.update(&graph);
        let (result, node) = done.err().unwrap_or((0, 0));
        put(result_info, CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult(result),
            errorNode: CUgraphNode(node as *mut _),
            errorFromNode: CUgraphNode::NULL,
        })?;
        done.map_err(|_| err::GRAPH_UPDATE_FAILURE)
    }

    fn cuGraphExecUpdate[](
        graph_exec: CUgraphExec, graph: CUgraph, error_node_out: *mut CUgraphNode,
        update_result_out: *mut CUgraphExecUpdateResult,
    ) {
        let (exec, graph) = (exec(graph_exec)?, find(graph)?);
        let done = exec.update(&graph);
        let (result, node) = done.err().unwrap_or((0, 0));
        put_if(error_node_out, CUgraphNode(node as *mut _));
        put_if(update_result_out, CUgraphExecUpdateResult(result));
        done.map_err(|_| err::GRAPH_UPDATE_FAILURE)
    }

    fn cuGraphNodeSetEnabled[](graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: c_uint) {
        exec(graph_exec)?.set_enabled(node.0 as usize, is_enabled != 0)
    }

    fn cuGraphNodeGetEnabled[](graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: *mut c_uint) {
        put(is_enabled, c_uint::from(exec(graph_exec)?.is_enabled(node.0 as usize)?))
    }

    fn cuGraphDebugDotPrint[](graph: CUgraph, path: *const c_char, flags: c_uint) {
        // Everything that the flags can ask for beyond this would be noise in a picture.
        let _ = flags;
        let dot = find(graph)?.dot();
        files::write(Path::new(text(path)?), dot.as_bytes()).map_err(|_| err::OPERATING_SYSTEM)
    }

    fn cuUserObjectCreate[](
        object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint, flags: c_uint,
    ) {
        let m = machine()?;
        if object_out.is_null() || destroy.is_none() || initial_refcount == 0 || flags != 1 {
            return Err(err::INVALID_VALUE);
        }
        put(object_out, CUuserObject(UserObject::create(m, ptr, destroy, initial_refcount).handle as *mut _))
    }

    fn cuUserObjectRetain[](object: CUuserObject, count: c_uint) {
        let m = machine()?;
        m.user_objects.get(object.0 as usize).ok_or(err::INVALID_VALUE)?.retain(count);
        Ok(())
    }

    fn cuUserObjectRelease[](object: CUuserObject, count: c_uint) {
        let m = machine()?;
        m.user_objects.get(object.0 as usize).ok_or(err::INVALID_VALUE)?.release(m, count);
        Ok(())
    }

    fn cuGraphRetainUserObject[](graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let m = machine()?;
        let graph = find(graph)?;
        let object = m.user_objects.get(object.0 as usize).ok_or(err::INVALID_VALUE)?;
        if count == 0 || flags > 1 {
            return Err(err::INVALID_VALUE);
        }
        // With the MOVE flag the caller's references become the graph's.
        if flags == 0 {
            object.retain(count);
        }
        graph.retain_object(&object, count);
        Ok(())
    }

    fn cuGraphReleaseUserObject[](graph: CUgraph, object: CUuserObject, count: c_uint) {
        let m = machine()?;
        let object = m.user_objects.get(object.0 as usize).ok_or(err::INVALID_VALUE)?;
        find(graph)?.release_object(m, &object, count)
    }
}
