//! Graphs built node by node, executed, updated.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use fercuda_cuda_sys::types::*;

use crate::alone;
use crate::common::{Ctx, alloc, download, event, free, function, module, stream, upload};

fn graph() -> CUgraph {
    let mut g = CUgraph::NULL;
    ok!(cuGraphCreate(&mut g, 0));
    g
}

fn fill(g: CUgraph, deps: &[CUgraphNode], dst: u64, value: u32, width: usize) -> CUgraphNode {
    let params = CUDA_MEMSET_NODE_PARAMS {
        dst,
        pitch: width,
        value,
        elementSize: 1,
        width,
        height: 1,
    };
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddMemsetNode(
        &mut node,
        g,
        deps.as_ptr(),
        deps.len(),
        &params,
        CUcontext::NULL
    ));
    node
}

fn instantiate(g: CUgraph) -> CUgraphExec {
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, g, 0));
    exec
}

unsafe extern "C" fn raise(flag: *mut c_void) {
    // SAFETY: every caller passes a live AtomicU32.
    unsafe { &*flag.cast::<AtomicU32>() }.fetch_add(1, Ordering::AcqRel);
}

#[test]
fn nodes_run_behind_those_they_wait_for() {
    let _one = alone();
    let _ctx = Ctx::new();
    let at = alloc(64);
    let g = graph();
    let last = fill(g, &[], at, 3, 64);
    let first = fill(g, &[], at, 1, 64);
    ok!(cuGraphAddDependencies(g, &first, &last, 1));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuGraphAddDependencies(g, &last, &first, 1)
    );
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuGraphAddDependencies(g, &first, &first, 1)
    );
    let seen = AtomicU32::new(0);
    let host = CUDA_HOST_NODE_PARAMS {
        r#fn: Some(raise),
        userData: (&raw const seen).cast_mut().cast(),
    };
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddHostNode(&mut node, g, &last, 1, &host));
    let exec = instantiate(g);
    for round in 1..=3 {
        ok!(cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!(
            (download(at, 64), seen.load(Ordering::Acquire)),
            (vec![3; 64], round)
        );
    }
    let mut kind = CUgraphNodeType(99);
    ok!(cuGraphNodeGetType(node, &mut kind));
    assert_eq!(kind, CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST);
    ok!(cuGraphDestroyNode(node));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuGraphNodeGetType(node, &mut kind)
    );
    // What was instantiated does not change with the graph.
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    ok!(cuCtxSynchronize());
    assert_eq!(seen.load(Ordering::Acquire), 4);
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(g));
    free(at);
}

#[test]
fn an_executable_graph_takes_new_parameters() {
    let _one = alone();
    let _ctx = Ctx::new();
    let at = alloc(64);
    let g = graph();
    let node = fill(g, &[], at, 1, 64);
    let exec = instantiate(g);
    let params = CUDA_MEMSET_NODE_PARAMS {
        dst: at,
        pitch: 8,
        value: 5,
        elementSize: 1,
        width: 8,
        height: 1,
    };
    ok!(cuGraphExecMemsetNodeSetParams(
        exec,
        node,
        &params,
        CUcontext::NULL
    ));
    ok!(cuMemsetD8_v2(at, 0, 64));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!(download(at, 64)[6..10], [5, 5, 0, 0]);
    ok!(cuGraphNodeSetEnabled(exec, node, 0));
    ok!(cuMemsetD8_v2(at, 0, 64));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!(download(at, 64), [0; 64]);
    ok!(cuGraphNodeSetEnabled(exec, node, 1));

    let other = graph();
    fill(other, &[], at, 7, 64);
    let mut info = CUgraphExecUpdateResultInfo::default();
    ok!(cuGraphExecUpdate_v2(exec, other, &mut info));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!(download(at, 64), [7; 64]);
    fill(other, &[], at, 8, 64);
    fails!(
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        cuGraphExecUpdate_v2(exec, other, &mut info)
    );
    assert_eq!(
        info.result,
        CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
    );
    free(at);
}

#[test]
fn a_clone_remembers_whose_nodes_it_copied() {
    let _one = alone();
    let _ctx = Ctx::new();
    let at = alloc(64);
    let inner = graph();
    fill(inner, &[], at, 1, 8);
    let g = graph();
    let (mut child, mut last) = (CUgraphNode::NULL, CUgraphNode::NULL);
    ok!(cuGraphAddChildGraphNode(
        &mut child,
        g,
        std::ptr::null(),
        0,
        inner
    ));
    ok!(cuGraphAddEmptyNode(&mut last, g, &child, 1));
    let after = fill(g, &[last], at, 2, 4);
    let mut clone = CUgraph::NULL;
    ok!(cuGraphClone(&mut clone, g));
    let mut found = CUgraphNode::NULL;
    ok!(cuGraphNodeFindInClone(&mut found, after, clone));
    assert_ne!(found, after);
    ok!(cuGraphDestroy(g));
    ok!(cuGraphDestroy(inner));
    ok!(cuMemsetD8_v2(at, 0, 64));
    ok!(cuGraphLaunch(instantiate(clone), CUstream::NULL));
    assert_eq!(download(at, 10), [2, 2, 2, 2, 1, 1, 1, 1, 0, 0]);
    let path = tempfile::NamedTempFile::new().unwrap();
    let name = std::ffi::CString::new(path.path().to_str().unwrap()).unwrap();
    ok!(cuGraphDebugDotPrint(clone, name.as_ptr(), 0));
    assert!(std::fs::read_to_string(path.path()).unwrap().contains("->"));
    free(at);
}

#[test]
fn an_event_recorded_by_a_graph_is_complete_with_it() {
    let _one = alone();
    let _ctx = Ctx::new();
    let s = stream(1);
    let e = event(0);
    let g = graph();
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddEventRecordNode(
        &mut node,
        g,
        std::ptr::null(),
        0,
        e
    ));
    ok!(cuGraphLaunch(instantiate(g), s));
    ok!(cuEventSynchronize(e));
    ok!(cuEventQuery(e));
    let mut back = CUevent::NULL;
    ok!(cuGraphEventRecordNodeGetEvent(node, &mut back));
    assert_eq!(back, e);
}

#[test]
fn a_user_object_lives_as_long_as_the_last_graph_that_uses_it() {
    let _one = alone();
    let _ctx = Ctx::new();
    let gone = AtomicU32::new(0);
    let g = graph();
    let mut object = CUuserObject::NULL;
    ok!(cuUserObjectCreate(
        &mut object,
        (&raw const gone).cast_mut().cast(),
        Some(raise),
        1,
        1
    ));
    ok!(cuGraphRetainUserObject(g, object, 1, 0));
    let exec = instantiate(g);
    ok!(cuUserObjectRelease(object, 1));
    ok!(cuGraphDestroy(g));
    assert_eq!(gone.load(Ordering::Acquire), 0);
    ok!(cuGraphExecDestroy(exec));
    assert_eq!(gone.load(Ordering::Acquire), 1);
    fails!(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 1));
}

#[test]
fn a_kernel_node_keeps_the_arguments_of_its_making() {
    let _one = alone();
    let _ctx = Ctx::new();
    let f = function(module(), c"add");
    let at = upload(&1u32.to_ne_bytes());
    let (mut p, mut n) = (at, 10u32);
    let mut list: [*mut c_void; 2] = [(&raw mut p).cast(), (&raw mut n).cast()];
    let params = CUDA_KERNEL_NODE_PARAMS {
        func: f,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: list.as_mut_ptr(),
        ..CUDA_KERNEL_NODE_PARAMS::default()
    };
    let g = graph();
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddKernelNode_v2(
        &mut node,
        g,
        std::ptr::null(),
        0,
        &params
    ));
    n = 0;
    let mut back = CUDA_KERNEL_NODE_PARAMS::default();
    ok!(cuGraphKernelNodeGetParams_v2(node, &mut back));
    assert_eq!(back.func, f);
    // SAFETY: the node shows one pointer for each of its two parameters.
    let shown = unsafe { *(*back.kernelParams.add(1)).cast::<u32>() };
    assert_eq!((shown, n), (10, 0));
    let exec = instantiate(g);
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    *std::hint::black_box(&mut n) = 100;
    ok!(cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!(download(at, 4), 121u32.to_ne_bytes());
    assert!(list.iter().all(|p| !p.is_null()));
    free(at);
}

#[test]
fn a_child_goes_with_its_node() {
    let _one = alone();
    let _ctx = Ctx::new();
    let (parent, inside) = (graph(), graph());
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddEmptyNode(&mut node, inside, std::ptr::null(), 0));
    ok!(cuGraphAddChildGraphNode(
        &mut node,
        parent,
        std::ptr::null(),
        0,
        inside
    ));
    let (mut child, mut count) = (CUgraph::NULL, 0);
    ok!(cuGraphChildGraphNodeGetGraph(node, &mut child));
    ok!(cuGraphGetNodes(child, std::ptr::null_mut(), &mut count));
    ok!(cuGraphDestroyNode(node));
    fails!(
        CUDA_ERROR_INVALID_VALUE,
        cuGraphGetNodes(child, std::ptr::null_mut(), &mut count)
    );
    ok!(cuGraphDestroy(parent));
    ok!(cuGraphDestroy(inside));
}

#[test]
fn a_node_that_becomes_cooperative_must_fit_the_device() {
    let _one = alone();
    let _ctx = Ctx::new();
    let g = graph();
    let params = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: function(module(), c"idle"),
        gridDimX: 1 << 20,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1024,
        blockDimY: 1,
        blockDimZ: 1,
        ..Default::default()
    };
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddKernelNode(
        &mut node,
        g,
        std::ptr::null(),
        0,
        &params
    ));
    let mut value = CUkernelNodeAttrValue::default();
    value.cooperative = 1;
    let attribute = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    fails!(
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        cuGraphKernelNodeSetAttribute(node, attribute, &value)
    );
    let mut now = CUkernelNodeAttrValue::default();
    ok!(cuGraphKernelNodeGetAttribute(node, attribute, &mut now));
    // SAFETY: the attribute's identity says which member is in use.
    assert_eq!(unsafe { now.cooperative }, 0);
    ok!(cuGraphDestroy(g));
}
