//! Tests of the memory of graphs: when it is taken and returned, and what is refused. The codes and
//! the figures of a pool were seen on an H200.

use std::ptr::null_mut;

use fercuda_cuda_sys::types::*;

use crate::alone;
use crate::common::{Ctx, stream};

const MIB: u64 = 1 << 20;
const STRIDE: u64 = 32 * MIB;

fn figure(which: CUgraphMem_attribute) -> u64 {
    let mut bytes = 0u64;
    ok!(cuDeviceGetGraphMemAttribute(
        0,
        which,
        (&raw mut bytes).cast()
    ));
    bytes
}

fn reserved() -> u64 {
    figure(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
}

fn used() -> u64 {
    figure(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
}

fn free_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free as u64
}

/// A graph of allocations, each freed again behind it or not, one behind the other; and the
/// addresses.
fn graph_of(sizes: &[(u64, bool)]) -> (CUgraph, Vec<CUdeviceptr>) {
    let s = stream(1);
    let mut graph = CUgraph::NULL;
    let mut all = Vec::new();
    ok!(cuStreamBeginCapture_v2(s, CUstreamCaptureMode(2)));
    for (bytes, is_freed) in sizes {
        let mut at = 0;
        ok!(cuMemAllocAsync(&mut at, *bytes as usize, s));
        ok!(cuMemsetD8Async(at, 1, 1, s));
        if *is_freed {
            ok!(cuMemFreeAsync(at, s));
        }
        all.push(at);
    }
    ok!(cuStreamEndCapture(s, &mut graph));
    ok!(cuStreamDestroy_v2(s));
    (graph, all)
}

fn instantiate(graph: CUgraph, flags: u64) -> CUgraphExec {
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
    exec
}

fn destroy(graph: CUgraph, exec: CUgraphExec) {
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    ok!(cuCtxSynchronize());
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!((reserved(), used()), (0, 0));
}

#[test]
fn a_graph_with_an_allocation_has_one_executable_graph_at_a_time_and_no_clone() {
    let _one = alone();
    let _ctx = Ctx::new();
    let (graph, _) = graph_of(&[(1, true)]);
    let exec = instantiate(graph, 0);
    let mut other = CUgraphExec::NULL;
    fails!(
        CUDA_ERROR_NOT_SUPPORTED,
        cuGraphInstantiateWithFlags(&mut other, graph, 0)
    );
    let mut clone = CUgraph::NULL;
    fails!(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&mut clone, graph));
    ok!(cuGraphExecDestroy(exec));
    let exec = instantiate(graph, 0);
    destroy(graph, exec);
    // Others may have several.
    let mut plain = CUgraph::NULL;
    ok!(cuGraphCreate(&mut plain, 0));
    let (first, second) = (instantiate(plain, 0), instantiate(plain, 0));
    ok!(cuGraphClone(&mut clone, plain));
    ok!(cuGraphExecDestroy(first));
    ok!(cuGraphExecDestroy(second));
    ok!(cuGraphDestroy(clone));
    ok!(cuGraphDestroy(plain));
}

#[test]
fn a_graph_is_launched_again_once_its_memory_is_freed() {
    let _one = alone();
    let _ctx = Ctx::new();
    let s = stream(1);
    for by_stream in [false, true] {
        let (graph, at) = graph_of(&[(1000, false)]);
        let exec = instantiate(graph, 0);
        for _ in 0..3 {
            ok!(cuGraphLaunch(exec, s));
            // Whether the first has run by now or not.
            fails!(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, s));
            if by_stream {
                ok!(cuMemFreeAsync(at[0], s));
                fails!(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(at[0], s));
            } else {
                ok!(cuMemFree_v2(at[0]));
                fails!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(at[0]));
            }
        }
        ok!(cuStreamSynchronize(s));
        destroy(graph, exec);
    }
    // One that frees what an earlier launch left.
    let (graph, at) = graph_of(&[(1000, false)]);
    let exec = instantiate(graph, 1);
    ok!(cuGraphLaunch(exec, s));
    ok!(cuGraphLaunch(exec, s));
    ok!(cuMemFreeAsync(at[0], s));
    ok!(cuStreamSynchronize(s));
    destroy(graph, exec);
    ok!(cuStreamDestroy_v2(s));
}

#[test]
fn memory_is_taken_by_a_launch_and_returned_by_a_trim() {
    let _one = alone();
    let _ctx = Ctx::new();
    let before = free_bytes();
    let (graph, at) = graph_of(&[(1, false)]);
    let exec = instantiate(graph, 0);
    assert_eq!((reserved(), free_bytes()), (0, before));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!((reserved(), free_bytes()), (STRIDE, before - STRIDE));
    assert!(used() > 0);
    // It is allocated, so nothing is returned.
    ok!(cuCtxSynchronize());
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!((reserved(), free_bytes()), (STRIDE, before - STRIDE));
    ok!(cuMemFree_v2(at[0]));
    assert_eq!((reserved(), used()), (STRIDE, 0));
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!((reserved(), free_bytes()), (0, before));
    // An upload takes it too.
    ok!(cuGraphUpload(exec, CUstream::NULL));
    assert_eq!(reserved(), STRIDE);
    destroy(graph, exec);
    assert_eq!(free_bytes(), before);
}

#[test]
fn what_is_freed_in_a_graph_serves_its_later_nodes_and_other_graphs() {
    let _one = alone();
    let _ctx = Ctx::new();
    let (graph, at) = graph_of(&[(20 * MIB, true), (20 * MIB, true), (20 * MIB, false)]);
    assert_eq!(at, [at[0]; 3]);
    let exec = instantiate(graph, 0);
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    ok!(cuCtxSynchronize());
    assert_eq!((reserved(), used()), (STRIDE, 20 * MIB));
    ok!(cuMemFree_v2(at[0]));
    let (other, at) = graph_of(&[(30 * MIB, true), (10 * MIB, false), (10 * MIB, true)]);
    assert_ne!(at[1], at[2]);
    let its = instantiate(other, 0);
    ok!(cuGraphLaunch(its, CUstream::NULL));
    ok!(cuCtxSynchronize());
    assert_eq!(reserved(), STRIDE);
    // The first needs more than is left now.
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!(reserved(), 2 * STRIDE);
    ok!(cuMemFree_v2(at[1]));
    ok!(cuMemFree_v2(match &graph_addresses(graph)[..] {
        [at, ..] => *at,
        [] => 0,
    }));
    ok!(cuGraphExecDestroy(its));
    ok!(cuGraphDestroy(other));
    destroy(graph, exec);
}

/// The addresses of a graph's allocation nodes.
fn graph_addresses(graph: CUgraph) -> Vec<CUdeviceptr> {
    let mut count = 0;
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    let mut nodes = vec![CUgraphNode::NULL; count];
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    let address = |node: &CUgraphNode| {
        let mut of = CUDA_MEM_ALLOC_NODE_PARAMS::default();
        let found = code!(cuGraphMemAllocNodeGetParams(*node, &mut of));
        (found == CUresult::CUDA_SUCCESS).then_some(of.dptr)
    };
    nodes.iter().filter_map(address).collect()
}

#[test]
fn a_launch_without_memory_is_refused_and_takes_none() {
    let _one = alone();
    let _ctx = Ctx::new();
    let whole = free_bytes();
    let (graph, _) = graph_of(&[(whole + 1, true)]);
    let exec = instantiate(graph, 0);
    fails!(
        CUDA_ERROR_OUT_OF_MEMORY,
        cuGraphLaunch(exec, CUstream::NULL)
    );
    fails!(
        CUDA_ERROR_OUT_OF_MEMORY,
        cuGraphUpload(exec, CUstream::NULL)
    );
    assert_eq!(free_bytes(), whole);
    destroy(graph, exec);
}

#[test]
fn a_pool_counts_the_bytes_that_it_gave_and_grows_in_strides() {
    let _one = alone();
    let _ctx = Ctx::new();
    let mut props = CUmemPoolProps::default();
    props.allocType.0 = 1;
    props.location.r#type.0 = 1;
    let mut pool = CUmemoryPool::NULL;
    ok!(cuMemPoolCreate(&mut pool, &props));
    let ask = |which: CUmemPool_attribute| {
        let mut value = 0u64;
        ok!(cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()));
        value
    };
    let both = || {
        (
            ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
            ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        )
    };
    let (mut at, mut large, s) = (0, 0, stream(1));
    ok!(cuMemAllocFromPoolAsync(&mut at, 1, pool, s));
    assert_eq!(both(), (1, STRIDE));
    // Large blocks share what there is.
    ok!(cuMemAllocFromPoolAsync(&mut large, 20 << 20, pool, s));
    assert_eq!(both(), (1 + 20 * MIB, STRIDE));
    ok!(cuMemFreeAsync(at, s));
    ok!(cuMemFreeAsync(large, s));
    ok!(cuStreamSynchronize(s));
    assert_eq!(both().0, 0);
    ok!(cuMemPoolDestroy(pool));
    ok!(cuStreamDestroy_v2(s));
}

#[test]
fn access_is_of_whole_mappings() {
    let _one = alone();
    let _ctx = Ctx::new();
    let granule = 2 << 20;
    let mut prop = CUmemAllocationProp::default();
    prop.r#type.0 = 1;
    prop.location.r#type.0 = 1;
    let mut base = 0;
    ok!(cuMemAddressReserve(&mut base, 4 * granule, 0, 0, 0));
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, 2 * granule, &prop, 0));
    ok!(cuMemMap(base, 2 * granule, 0, handle, 0));
    ok!(cuMemMap(
        base + 2 * granule as u64,
        2 * granule,
        0,
        handle,
        0
    ));
    let access = CUmemAccessDesc {
        location: prop.location,
        flags: CUmemAccess_flags(3),
    };
    let set = |at: usize, bytes: usize| code!(cuMemSetAccess(base + at as u64, bytes, &access, 1));
    let (done, refused) = (CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(set(0, granule), refused);
    assert_eq!(set(granule, granule), refused);
    assert_eq!(set(granule, 2 * granule), refused);
    assert_eq!(set(0, 3 * granule), refused);
    assert_eq!(set(0, 2 * granule), done);
    assert_eq!(set(2 * granule, 2 * granule), done);
    assert_eq!(set(0, 4 * granule), done);
    ok!(cuMemUnmap(base, 4 * granule));
    ok!(cuMemRelease(handle));
    ok!(cuMemAddressFree(base, 4 * granule));
}
