//! Launches of clusters, and what functions and nodes say of them.

use std::ffi::c_void;
use std::ptr::null_mut;

use fercuda_cuda_sys::types::*;

use crate::common::{Ctx, alloc, download, free};

/// `ring` leaves the sum of the ranks that a block and its neighbour write to each other's memory,
/// times the clusters' size; `rounds` has blocks wait for each other often.
const PTX: &std::ffi::CStr = c".version 8.6
.target sm_90
.address_size 64
.visible .entry ring(.param .u64 out) {
  .reg .b32 %r<12>; .reg .b64 %d<6>; .reg .pred %p;
  .shared .align 4 .u32 s;
  mov.u32 %r0, %cluster_ctarank;
  mov.u32 %r1, %cluster_nctarank;
  add.u32 %r2, %r0, 1;
  rem.u32 %r2, %r2, %r1;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r3, s, %r2;
  mul.lo.u32 %r4, %r0, 10;
  st.shared::cluster.u32 [%r3], %r4;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ld.shared.u32 %r5, [s];
  add.u32 %r5, %r5, %r1;
  mov.u32 %r6, %ctaid.x;
  mov.u32 %r7, %nctaid.x;
  mov.u32 %r8, %ctaid.y;
  mad.lo.u32 %r6, %r7, %r8, %r6;
  ld.param.u64 %d0, [out];
  mul.wide.u32 %d1, %r6, 4;
  add.u64 %d0, %d0, %d1;
  st.global.u32 [%d0], %r5;
  ret;
}
.visible .entry rounds(.param .u64 out) {
  .reg .b32 %r<12>; .reg .b64 %d<6>; .reg .pred %p;
  .shared .align 4 .u32 s;
  mov.u32 %r0, %cluster_ctarank;
  mov.u32 %r9, 0;
  st.shared.u32 [s], 0;
  xor.b32 %r1, %r0, 1;
  mapa.shared::cluster.u32 %r3, s, %r1;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
LOOP:
  add.u32 %r9, %r9, 1;
  // By turns: each polls what the other writes.
  setp.eq.u32 %p, %r0, 0;
  @%p st.release.cluster.shared::cluster.u32 [%r3], %r9;
POLL:
  ld.acquire.cluster.shared::cta.u32 %r4, [s];
  setp.lt.u32 %p, %r4, %r9;
  @%p bra POLL;
  setp.eq.u32 %p, %r0, 1;
  @%p st.release.cluster.shared::cluster.u32 [%r3], %r9;
  setp.lt.u32 %p, %r9, 200;
  @%p bra LOOP;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mov.u32 %r6, %ctaid.x;
  ld.param.u64 %d0, [out];
  mul.wide.u32 %d1, %r6, 4;
  add.u64 %d0, %d0, %d1;
  st.global.u32 [%d0], %r4;
  ret;
}
.visible .entry fixed() .explicitcluster .reqnctapercluster 2, 2, 1 { ret; }
.visible .entry explicit() .explicitcluster { ret; }
.visible .entry ranked() .explicitcluster .maxclusterrank 4 { ret; }
";

fn kernel(name: &std::ffi::CStr) -> CUfunction {
    let mut m = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut m, PTX.as_ptr().cast()));
    let mut f = CUfunction::NULL;
    ok!(cuModuleGetFunction(&mut f, m, name.as_ptr()));
    f
}

fn of_size([x, y, z]: [u32; 3]) -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        value: CUlaunchAttributeValue {
            clusterDim: CUlaunchAttributeValue_clusterDim { x, y, z },
        },
        ..Default::default()
    }
}

fn config(grid: [u32; 3], attributes: &mut [CUlaunchAttribute]) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
        ..Default::default()
    }
}

/// The code of a launch, and of the wait for it.
fn launch(f: CUfunction, grid: [u32; 3], cluster: Option<[u32; 3]>, at: u64) -> CUresult {
    let mut attributes: Vec<_> = cluster.map(of_size).into_iter().collect();
    let config = config(grid, &mut attributes);
    let mut at = at;
    let mut params: [*mut c_void; 1] = [(&raw mut at).cast()];
    let code = code!(cuLaunchKernelEx(
        &config,
        f,
        params.as_mut_ptr(),
        null_mut()
    ));
    match code {
        CUresult::CUDA_SUCCESS => code!(cuCtxSynchronize()),
        code => code,
    }
}

fn words(at: u64, n: usize) -> Vec<u32> {
    let bytes = download(at, n * 4);
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect()
}

#[test]
fn blocks_of_a_cluster_reach_each_other() {
    let _ctx = Ctx::new();
    let f = kernel(c"ring");
    let at = alloc(64 * 4);
    let mut setting = 0;
    ok!(cuFuncSetAttribute(
        f,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        1
    ));
    for size in [1, 2, 3, 4, 8, 16] {
        assert_eq!(
            launch(f, [48, 1, 1], Some([size, 1, 1]), at),
            CUresult::CUDA_SUCCESS
        );
        let before = |n: u32| (n % size + size - 1) % size;
        let want: Vec<u32> = (0..48).map(|n| before(n) * 10 + size).collect();
        assert_eq!(words(at, 48), want, "clusters of {size}");
    }
    // Ranks count along x first.
    assert_eq!(
        launch(f, [4, 4, 1], Some([2, 2, 1]), at),
        CUresult::CUDA_SUCCESS
    );
    let rank = |n: u32| n % 4 % 2 + 2 * (n / 4 % 2);
    let want: Vec<u32> = (0..16).map(|n| (rank(n) + 3) % 4 * 10 + 4).collect();
    assert_eq!(words(at, 16), want);
    ok!(cuFuncGetAttribute(
        &mut setting,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
        f
    ));
    assert_eq!(setting, 0);
    free(at);
}

#[test]
fn blocks_that_poll_each_other_have_their_turns() {
    let _ctx = Ctx::new();
    let f = kernel(c"rounds");
    let at = alloc(64 * 4);
    assert_eq!(
        launch(f, [64, 1, 1], Some([2, 1, 1]), at),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(words(at, 64), [200; 64]);
    free(at);
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let _ctx = Ctx::new();
    let (f, fixed) = (kernel(c"ring"), kernel(c"fixed"));
    let at = alloc(4096);
    let wrong = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    assert_eq!(launch(f, [3, 1, 1], Some([2, 1, 1]), at), wrong);
    assert_eq!(launch(f, [4, 1, 1], Some([0, 1, 1]), at), wrong);
    assert_eq!(launch(f, [16, 1, 1], Some([16, 1, 1]), at), wrong);
    assert_eq!(launch(fixed, [4, 4, 1], Some([4, 1, 1]), at), wrong);
    assert_eq!(launch(fixed, [4, 4, 1], None, at), CUresult::CUDA_SUCCESS);
    assert_eq!(launch(fixed, [4, 3, 1], None, at), wrong);
    assert_eq!(launch(kernel(c"explicit"), [4, 1, 1], None, at), wrong);
    let ranked = kernel(c"ranked");
    assert_eq!(launch(ranked, [8, 1, 1], Some([8, 1, 1]), at), wrong);
    assert_eq!(
        launch(ranked, [8, 1, 1], Some([4, 1, 1]), at),
        CUresult::CUDA_SUCCESS
    );
    free(at);
}

#[test]
fn occupancy_counts_clusters_that_fit_a_group() {
    let _ctx = Ctx::new();
    let f = kernel(c"ring");
    let active = |size: u32| {
        let mut attributes = [of_size([size, 1, 1])];
        let config = config([size, 1, 1], &mut attributes);
        let mut n = 0;
        ok!(cuOccupancyMaxActiveClusters(&mut n, f, &config));
        n
    };
    // 32 blocks fit each multiprocessor.
    assert_eq!([active(1), active(2), active(8)], [4224, 2112, 528]);
    let mut size = 0;
    let config = config([1, 1, 1], &mut []);
    ok!(cuOccupancyMaxPotentialClusterSize(&mut size, f, &config));
    assert_eq!(size, 8);
}

#[test]
fn a_node_keeps_its_cluster() {
    let _ctx = Ctx::new();
    let f = kernel(c"ring");
    let at = alloc(8 * 4);
    let mut graph = CUgraph::NULL;
    ok!(cuGraphCreate(&mut graph, 0));
    let mut value = at;
    let mut params: [*mut c_void; 1] = [(&raw mut value).cast()];
    let node_params = CUDA_KERNEL_NODE_PARAMS {
        func: f,
        gridDimX: 8,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: params.as_mut_ptr(),
        ..Default::default()
    };
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddKernelNode_v2(
        &mut node,
        graph,
        std::ptr::null(),
        0,
        &node_params
    ));
    let which = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    let four = of_size([4, 1, 1]).value;
    ok!(cuGraphKernelNodeSetAttribute(node, which, &four));
    let three = of_size([3, 1, 1]).value;
    fails!(
        CUDA_ERROR_INVALID_CLUSTER_SIZE,
        cuGraphKernelNodeSetAttribute(node, which, &three)
    );
    // Other parameters leave it.
    ok!(cuGraphKernelNodeSetParams_v2(node, &node_params));
    let mut run = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut run, graph, 0));
    ok!(cuGraphLaunch(run, CUstream::NULL));
    ok!(cuCtxSynchronize());
    let want: Vec<u32> = (0..8).map(|n| (n + 3) % 4 * 10 + 4).collect();
    assert_eq!(words(at, 8), want);
    free(at);
}
