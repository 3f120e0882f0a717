//! Graph nodes: creation, queries and updates, in a graph or an executable graph.

use std::sync::Arc;

use fercuda_cuda_sys::types::*;

use super::graph::{exec, find, raw};
use super::launch::{pack, plain, scheduling_policy};
use super::stream::read_mem_ops;
use super::{get, put, slice};
use crate::device::context::named;
use crate::device::copy::{plan_3d, to_params};
use crate::device::module::resolve;
use crate::device::objects::{
    FillPlan, GraphMemory, HostCall, KernelLaunch, SoftContext, SoftEvent, StreamAction,
};
use crate::device::{CuResult, Machine, err, machine};
use crate::device::{graph, graph_memory};

/// Adds a node behind others.
unsafe fn add(
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    ctx: &SoftContext,
    action: StreamAction,
) -> CuResult {
    let m = machine()?;
    let graph = find(graph)?;
    if out.is_null() {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the client promises `count` of each array that it passes.
    let (deps, data) = unsafe {
        (
            slice(deps, count)?,
            if data.is_null() {
                &[][..]
            } else {
                slice(data, count)?
            },
        )
    };
    let ids = graph.ids(m, &raw(deps))?;
    let deps: Vec<_> = ids
        .into_iter()
        .enumerate()
        .map(|(i, id)| (id, data.get(i).copied().unwrap_or_default()))
        .collect();
    let (_, handle) = graph.add(m, ctx.handle, action, &deps)?;
    // SAFETY: checked for null above.
    unsafe { put(out, CUgraphNode(handle as *mut _)) }
}

/// Looks at a node's action.
fn look<R>(node: CUgraphNode, f: impl FnOnce(&StreamAction) -> CuResult<R>) -> CuResult<R> {
    let (graph, id) = graph::node(machine()?, node.0 as usize)?;
    graph.with(id, |n| f(&n.action))
}

/// Gives a node another action of the same kind.
fn change(node: CUgraphNode, new: StreamAction) -> CuResult {
    let (graph, id) = graph::node(machine()?, node.0 as usize)?;
    graph.with(id, |n| replace(&mut n.action, new))
}

fn change_exec(exec_: CUgraphExec, node: CUgraphNode, new: StreamAction) -> CuResult {
    exec(exec_)?.set(node.0 as usize, |old| replace(old, new))
}

fn replace(old: &mut StreamAction, new: StreamAction) -> CuResult {
    if std::mem::discriminant(old) != std::mem::discriminant(&new) {
        return Err(err::INVALID_VALUE);
    }
    let attributes = match old {
        StreamAction::Kernel(k) => Some(k.clone()),
        _ => None,
    };
    *old = new;
    // A node's attributes are none of its parameters.
    if let (Some(from), StreamAction::Kernel(to)) = (attributes, old) {
        copy_attributes(&from, Arc::make_mut(to));
    }
    Ok(())
}

/// Gives a kernel node the attributes of another.
fn copy_attributes(from: &KernelLaunch, to: &mut KernelLaunch) {
    (to.cooperative, to.priority) = (from.cooperative, from.priority);
    (to.cluster, to.cluster_policy) = (from.cluster, from.cluster_policy);
    to.preferred_cluster = from.preferred_cluster;
}

/// A kernel node's parameters as a launch.
unsafe fn kernel(p: &CUDA_KERNEL_NODE_PARAMS) -> CuResult<StreamAction> {
    let m = machine()?;
    let ctx = named(m, p.ctx.0 as usize)?;
    ctx.health.check()?;
    let handle = if p.func.is_null() {
        p.kern.0 as usize
    } else {
        p.func.0 as usize
    };
    let function = resolve(m, &ctx, handle)?;
    let grid = [p.gridDimX, p.gridDimY, p.gridDimZ];
    let block = [p.blockDimX, p.blockDimY, p.blockDimZ];
    let mut launch = plain(&ctx, function, handle, grid, block, p.sharedMemBytes);
    // SAFETY: the client's arguments are those of a launch.
    launch.params = unsafe { pack(launch.function.kernel(), p.kernelParams, p.extra)? };
    launch.check()?;
    Ok(StreamAction::Kernel(Arc::new(launch)))
}

fn widen(p: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: p.func,
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

fn narrow(p: &CUDA_KERNEL_NODE_PARAMS_v3) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: p.func,
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
        kern: p.kern,
        ctx: p.ctx,
    }
}

/// A kernel node as the client described it. Its argument pointers lead into the node and stay good
/// while it is unchanged.
fn describe(node: CUgraphNode) -> CuResult<CUDA_KERNEL_NODE_PARAMS> {
    look(node, |action| {
        let StreamAction::Kernel(k) = action else {
            return Err(err::INVALID_VALUE);
        };
        let is_kernel = machine()?.kernels.get(k.named).is_some();
        Ok(CUDA_KERNEL_NODE_PARAMS {
            func: CUfunction(if is_kernel { 0 } else { k.named } as *mut _),
            gridDimX: k.grid[0],
            gridDimY: k.grid[1],
            gridDimZ: k.grid[2],
            blockDimX: k.block[0],
            blockDimY: k.block[1],
            blockDimZ: k.block[2],
            sharedMemBytes: k.shared_bytes,
            kernelParams: k.pointers().as_ptr().cast_mut().cast(),
            extra: std::ptr::null_mut(),
            kern: CUkernel(if is_kernel { k.named } else { 0 } as *mut _),
            ctx: CUcontext(k.function.module.ctx_handle as *mut _),
        })
    })
}

/// Changes a kernel node's settings.
fn adjust(node: CUgraphNode, f: impl FnOnce(&mut KernelLaunch)) -> CuResult {
    let (graph, id) = graph::node(machine()?, node.0 as usize)?;
    graph.with(id, |n| match &mut n.action {
        StreamAction::Kernel(k) => {
            let mut new = KernelLaunch::clone(k);
            new.pointers = std::sync::OnceLock::new();
            f(&mut new);
            // Being cooperative limits the grid.
            new.check()?;
            *k = Arc::new(new);
            Ok(())
        }
        _ => Err(err::INVALID_VALUE),
    })
}

fn copy(m: &Machine, c: &CUDA_MEMCPY3D, call: &'static str) -> CuResult<StreamAction> {
    Ok(StreamAction::Copy(plan_3d(m, c, call)?))
}

fn fill(m: &Machine, p: &CUDA_MEMSET_NODE_PARAMS, call: &'static str) -> CuResult<StreamAction> {
    let plan = FillPlan::from_params(p);
    plan.check(m, call)?;
    Ok(StreamAction::Fill(plan))
}

fn host(p: &CUDA_HOST_NODE_PARAMS) -> CuResult<StreamAction> {
    if p.r#fn.is_none() {
        return Err(err::INVALID_VALUE);
    }
    Ok(StreamAction::Host(HostCall {
        function: p.r#fn,
        data: p.userData,
    }))
}

fn event(m: &Machine, handle: CUevent) -> CuResult<Arc<SoftEvent>> {
    m.events.get(handle.0 as usize).ok_or(err::INVALID_HANDLE)
}

unsafe fn mem_ops(m: &Machine, p: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> CuResult<StreamAction> {
    // SAFETY: the client promises `count` operations.
    Ok(StreamAction::MemOps(Arc::new(unsafe {
        read_mem_ops(m, p.paramArray, p.count)?
    })))
}

/// What a node of the general form does; its results are written back.
unsafe fn general(
    m: &Machine,
    p: &mut CUgraphNodeParams,
    call: &'static str,
) -> CuResult<(Arc<SoftContext>, StreamAction)> {
    use CUgraphNodeType as T;
    let current = || named(m, 0);
    // SAFETY: the type says which member is in use.
    unsafe {
        Ok(match p.r#type {
            T::CU_GRAPH_NODE_TYPE_KERNEL => {
                let k = narrow(&p.u.kernel);
                (named(m, k.ctx.0 as usize)?, kernel(&k)?)
            }
            T::CU_GRAPH_NODE_TYPE_MEMCPY => (
                named(m, p.u.memcpy.copyCtx.0 as usize)?,
                copy(m, &p.u.memcpy.copyParams, call)?,
            ),
            T::CU_GRAPH_NODE_TYPE_MEMSET => {
                let s = p.u.memset;
                let plain = CUDA_MEMSET_NODE_PARAMS {
                    dst: s.dst,
                    pitch: s.pitch,
                    value: s.value,
                    elementSize: s.elementSize,
                    width: s.width,
                    height: s.height,
                };
                (named(m, s.ctx.0 as usize)?, fill(m, &plain, call)?)
            }
            T::CU_GRAPH_NODE_TYPE_HOST => {
                let h = p.u.host;
                (
                    current()?,
                    host(&CUDA_HOST_NODE_PARAMS {
                        r#fn: h.r#fn,
                        userData: h.userData,
                    })?,
                )
            }
            T::CU_GRAPH_NODE_TYPE_GRAPH => {
                let child = find(p.u.graph.graph)?.copy(m, true);
                p.u.graph.graph = CUgraph(child.handle as *mut _);
                (current()?, StreamAction::Child(child))
            }
            T::CU_GRAPH_NODE_TYPE_EMPTY => (current()?, StreamAction::Empty),
            T::CU_GRAPH_NODE_TYPE_WAIT_EVENT => (
                current()?,
                StreamAction::Wait(event(m, p.u.eventWait.event)?),
            ),
            T::CU_GRAPH_NODE_TYPE_EVENT_RECORD => (
                current()?,
                StreamAction::Record(event(m, p.u.eventRecord.event)?),
            ),
            T::CU_GRAPH_NODE_TYPE_MEM_FREE => (current()?, StreamAction::MemFree(p.u.free.dptr)),
            T::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
                let b = p.u.memOp;
                let plain = CUDA_BATCH_MEM_OP_NODE_PARAMS {
                    ctx: b.ctx,
                    count: b.count,
                    paramArray: b.paramArray,
                    flags: b.flags,
                };
                (named(m, b.ctx.0 as usize)?, mem_ops(m, &plain)?)
            }
            _ => {
                super::unsupported("cuGraphAddNode with a node of this type");
                return Err(err::NOT_SUPPORTED);
            }
        })
    }
}

/// The context and the memory of an allocation node behind others.
fn allocation(
    m: &Machine,
    graph: CUgraph,
    deps: &[CUgraphNode],
    (location, bytes): (CUmemLocation, usize),
) -> CuResult<(Arc<SoftContext>, Arc<GraphMemory>)> {
    if location.r#type != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(err::INVALID_VALUE);
    }
    let graph = find(graph)?;
    let deps = graph.ids(m, &raw(deps))?;
    let device = m.device(location.id)?.ordinal;
    let memory = graph_memory::for_node(m, &graph, &deps, device, bytes as u64)?;
    Ok((named(m, 0)?, memory))
}

unsafe fn add_general(
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> CuResult {
    let m = machine()?;
    // SAFETY: the client promises parameters that may be written.
    unsafe {
        let params = params.as_mut().ok_or(err::INVALID_VALUE)?;
        if params.r#type == CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC {
            let alloc = &mut params.u.alloc;
            let of = (alloc.poolProps.location, alloc.bytesize);
            let (ctx, memory) = allocation(m, graph, slice(deps, count)?, of)?;
            alloc.dptr = memory.start;
            let action = StreamAction::MemAlloc(memory);
            return add(out, graph, deps, data, count, &ctx, action);
        }
        let (ctx, action) = general(m, params, "cuGraphAddNode")?;
        add(out, graph, deps, data, count, &ctx, action)
    }
}

driver_fns! {
    fn cuGraphAddKernelNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        let m = machine()?;
        let ctx = named(m, 0)?;
        let action = kernel(&widen(get(node_params)?))?;
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddKernelNode_v2[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_KERNEL_NODE_PARAMS,
    ) {
        let m = machine()?;
        let ctx = named(m, get(node_params)?.ctx.0 as usize)?;
        let action = kernel(get(node_params)?)?;
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddMemcpyNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext,
    ) {
        let m = machine()?;
        let ctx = named(m, ctx.0 as usize)?;
        let action = copy(m, get(copy_params)?, "cuGraphAddMemcpyNode")?;
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddMemsetNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext,
    ) {
        let m = machine()?;
        let ctx = named(m, ctx.0 as usize)?;
        let action = fill(m, get(memset_params)?, "cuGraphAddMemsetNode")?;
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddHostNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_HOST_NODE_PARAMS,
    ) {
        let m = machine()?;
        let ctx = named(m, 0)?;
        let action = host(get(node_params)?)?;
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddChildGraphNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        child_graph: CUgraph,
    ) {
        let m = machine()?;
        let ctx = named(m, 0)?;
        let action = StreamAction::Child(find(child_graph)?.copy(m, true));
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddEmptyNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
    ) {
        let m = machine()?;
        let ctx = named(m, 0)?;
        let action = StreamAction::Empty;
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddEventRecordNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        event_: CUevent,
    ) {
        let m = machine()?;
        let ctx = named(m, 0)?;
        let action = StreamAction::Record(event(m, event_)?);
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddEventWaitNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        event_: CUevent,
    ) {
        let m = machine()?;
        let ctx = named(m, 0)?;
        let action = StreamAction::Wait(event(m, event_)?);
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddBatchMemOpNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) {
        let m = machine()?;
        let ctx = named(m, get(node_params)?.ctx.0 as usize)?;
        let action = mem_ops(m, get(node_params)?)?;
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddMemFreeNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        dptr: CUdeviceptr,
    ) {
        let m = machine()?;
        let ctx = named(m, 0)?;
        let action = StreamAction::MemFree(m.memory.find(dptr).filter(|a| a.start == dptr).ok_or(err::INVALID_VALUE)?.start);
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddMemAllocNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    ) {
        let m = machine()?;
        let p = node_params.as_mut().ok_or(err::INVALID_VALUE)?;
        let of = (p.poolProps.location, p.bytesize);
        let (ctx, memory) = allocation(m, graph, slice(dependencies, num_dependencies)?, of)?;
        p.dptr = memory.start;
        let action = StreamAction::MemAlloc(memory);
        add(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, &ctx, action)
    }

    fn cuGraphAddNode[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *mut CUgraphNodeParams,
    ) {
        add_general(graph_node, graph, dependencies, std::ptr::null(), num_dependencies, node_params)
    }

    fn cuGraphAddNode_v2[](
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, node_params: *mut CUgraphNodeParams,
    ) {
        add_general(graph_node, graph, dependencies, dependency_data, num_dependencies, node_params)
    }

    fn cuGraphNodeSetParams[](node: CUgraphNode, node_params: *mut CUgraphNodeParams) {
        let p = node_params.as_mut().ok_or(err::INVALID_VALUE)?;
        change(node, general(machine()?, p, "cuGraphNodeSetParams")?.1)
    }

    fn cuGraphExecNodeSetParams[](graph_exec: CUgraphExec, node: CUgraphNode, node_params: *mut CUgraphNodeParams) {
        let p = node_params.as_mut().ok_or(err::INVALID_VALUE)?;
        change_exec(graph_exec, node, general(machine()?, p, "cuGraphExecNodeSetParams")?.1)
    }

    fn cuGraphKernelNodeGetParams_v2[](node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS) {
        put(node_params, describe(node)?)
    }

    fn cuGraphKernelNodeGetParams[](node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v1) {
        let p = describe(node)?;
        put(node_params, CUDA_KERNEL_NODE_PARAMS_v1 {
            func: p.func,
            gridDimX: p.gridDimX,
            gridDimY: p.gridDimY,
            gridDimZ: p.gridDimZ,
            blockDimX: p.blockDimX,
            blockDimY: p.blockDimY,
            blockDimZ: p.blockDimZ,
            sharedMemBytes: p.sharedMemBytes,
            kernelParams: p.kernelParams,
            extra: p.extra,
        })
    }

    fn cuGraphKernelNodeSetParams[](node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1) {
        change(node, kernel(&widen(get(node_params)?))?)
    }

    fn cuGraphKernelNodeSetParams_v2[](node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS) {
        change(node, kernel(get(node_params)?)?)
    }

    fn cuGraphExecKernelNodeSetParams[](graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1) {
        change_exec(graph_exec, node, kernel(&widen(get(node_params)?))?)
    }

    fn cuGraphExecKernelNodeSetParams_v2[](graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS) {
        change_exec(graph_exec, node, kernel(get(node_params)?)?)
    }

    fn cuGraphMemcpyNodeGetParams[](node: CUgraphNode, node_params: *mut CUDA_MEMCPY3D) {
        let m = machine()?;
        let found = look(node, |a| match a {
            StreamAction::Copy(plan) => Ok(to_params(m, plan)),
            _ => Err(err::INVALID_VALUE),
        })?;
        put(node_params, found)
    }

    fn cuGraphMemcpyNodeSetParams[](node: CUgraphNode, node_params: *const CUDA_MEMCPY3D) {
        change(node, copy(machine()?, get(node_params)?, "cuGraphMemcpyNodeSetParams")?)
    }

    fn cuGraphExecMemcpyNodeSetParams[](graph_exec: CUgraphExec, node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext) {
        let m = machine()?;
        named(m, ctx.0 as usize)?;
        change_exec(graph_exec, node, copy(m, get(copy_params)?, "cuGraphExecMemcpyNodeSetParams")?)
    }

    fn cuGraphMemsetNodeGetParams[](node: CUgraphNode, node_params: *mut CUDA_MEMSET_NODE_PARAMS) {
        let found = look(node, |a| match a {
            StreamAction::Fill(plan) => Ok(plan.to_params()),
            _ => Err(err::INVALID_VALUE),
        })?;
        put(node_params, found)
    }

    fn cuGraphMemsetNodeSetParams[](node: CUgraphNode, node_params: *const CUDA_MEMSET_NODE_PARAMS) {
        change(node, fill(machine()?, get(node_params)?, "cuGraphMemsetNodeSetParams")?)
    }

    fn cuGraphExecMemsetNodeSetParams[](
        graph_exec: CUgraphExec, node: CUgraphNode, memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext,
    ) {
        let m = machine()?;
        named(m, ctx.0 as usize)?;
        change_exec(graph_exec, node, fill(m, get(memset_params)?, "cuGraphExecMemsetNodeSetParams")?)
    }

    fn cuGraphHostNodeGetParams[](node: CUgraphNode, node_params: *mut CUDA_HOST_NODE_PARAMS) {
        let found = look(node, |a| match a {
            StreamAction::Host(call) => Ok(CUDA_HOST_NODE_PARAMS { r#fn: call.function, userData: call.data }),
            _ => Err(err::INVALID_VALUE),
        })?;
        put(node_params, found)
    }

    fn cuGraphHostNodeSetParams[](node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS) {
        change(node, host(get(node_params)?)?)
    }

    fn cuGraphExecHostNodeSetParams[](graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS) {
        change_exec(graph_exec, node, host(get(node_params)?)?)
    }

    fn cuGraphChildGraphNodeGetGraph[](node: CUgraphNode, graph: *mut CUgraph) {
        let found = look(node, |a| match a {
            StreamAction::Child(child) => Ok(child.handle),
            _ => Err(err::INVALID_VALUE),
        })?;
        put(graph, CUgraph(found as *mut _))
    }

    fn cuGraphEventRecordNodeGetEvent[](node: CUgraphNode, event_out: *mut CUevent) {
        let found = look(node, |a| match a {
            StreamAction::Record(event) => Ok(event.handle),
            _ => Err(err::INVALID_VALUE),
        })?;
        put(event_out, CUevent(found as *mut _))
    }

    fn cuGraphEventRecordNodeSetEvent[](node: CUgraphNode, event_: CUevent) {
        change(node, StreamAction::Record(event(machine()?, event_)?))
    }

    fn cuGraphExecEventRecordNodeSetEvent[](graph_exec: CUgraphExec, node: CUgraphNode, event_: CUevent) {
        change_exec(graph_exec, node, StreamAction::Record(event(machine()?, event_)?))
    }

    fn cuGraphEventWaitNodeGetEvent[](node: CUgraphNode, event_out: *mut CUevent) {
        let found = look(node, |a| match a {
            StreamAction::Wait(event) => Ok(event.handle),
            _ => Err(err::INVALID_VALUE),
        })?;
        put(event_out, CUevent(found as *mut _))
    }

    fn cuGraphEventWaitNodeSetEvent[](node: CUgraphNode, event_: CUevent) {
        change(node, StreamAction::Wait(event(machine()?, event_)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent[](graph_exec: CUgraphExec, node: CUgraphNode, event_: CUevent) {
        change_exec(graph_exec, node, StreamAction::Wait(event(machine()?, event_)?))
    }

    fn cuGraphBatchMemOpNodeSetParams[](node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) {
        change(node, mem_ops(machine()?, get(node_params)?)?)
    }

    fn cuGraphExecBatchMemOpNodeSetParams[](
        graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) {
        change_exec(graph_exec, node, mem_ops(machine()?, get(node_params)?)?)
    }

    fn cuGraphMemAllocNodeGetParams[](node: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) {
        let found = look(node, |a| match a {
            StreamAction::MemAlloc(memory) => {
                let mut p = CUDA_MEM_ALLOC_NODE_PARAMS { bytesize: memory.len as usize, dptr: memory.start, ..Default::default() };
                p.poolProps.allocType.0 = 1;
                p.poolProps.location.r#type.0 = memory.pool_location.0;
                p.poolProps.location.id = memory.pool_location.1;
                Ok(p)
            }
            _ => Err(err::INVALID_VALUE),
        })?;
        put(params_out, found)
    }

    fn cuGraphMemFreeNodeGetParams[](node: CUgraphNode, dptr_out: *mut CUdeviceptr) {
        let found = look(node, |a| match a {
            StreamAction::MemFree(at) => Ok(*at),
            _ => Err(err::INVALID_VALUE),
        })?;
        put(dptr_out, found)
    }

    fn cuGraphKernelNodeCopyAttributes[](dst: CUgraphNode, src: CUgraphNode) {
        let from = look(src, |a| match a {
            StreamAction::Kernel(k) => Ok(k.clone()),
            _ => Err(err::INVALID_VALUE),
        })?;
        adjust(dst, |k| copy_attributes(&from, k))
    }

    fn cuGraphKernelNodeGetAttribute[](node: CUgraphNode, attr: CUkernelNodeAttrID, value_out: *mut CUkernelNodeAttrValue) {
        let answer = look(node, |a| {
            let StreamAction::Kernel(k) = a else { return Err(err::INVALID_VALUE) };
            let mut answer = CUkernelNodeAttrValue::default();
            match attr {
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => answer.cooperative = i32::from(k.cooperative),
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => answer.priority = k.priority,
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                    let [x, y, z] = k.cluster.unwrap_or([0; 3]);
                    answer.clusterDim = CUlaunchAttributeValue_clusterDim { x, y, z };
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION => {
                    let [x, y, z] = k.preferred_cluster;
                    answer.preferredClusterDim = CUlaunchAttributeValue_preferredClusterDim { x, y, z };
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                    answer.clusterSchedulingPolicyPreference = k.cluster_policy;
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW => {}
                _ => return Err(err::INVALID_VALUE),
            }
            Ok(answer)
        })?;
        put(value_out, answer)
    }

    fn cuGraphKernelNodeSetAttribute[](node: CUgraphNode, attr: CUkernelNodeAttrID, value: *const CUkernelNodeAttrValue) {
        let value = *get(value)?;
        match attr {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                let on = value.cooperative != 0;
                adjust(node, |k| k.cooperative = on)
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                let priority = value.priority;
                adjust(node, |k| k.priority = priority)
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let c = value.clusterDim;
                adjust(node, |k| k.cluster = Some([c.x, c.y, c.z]))
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION => {
                let c = value.preferredClusterDim;
                adjust(node, |k| k.preferred_cluster = [c.x, c.y, c.z])
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                let policy = scheduling_policy(value.clusterSchedulingPolicyPreference)?;
                adjust(node, |k| k.cluster_policy = policy)
            }
            // A hint about a cache that is not there.
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW => adjust(node, |_| ()),
            _ => Err(err::INVALID_VALUE),
        }
    }
}
