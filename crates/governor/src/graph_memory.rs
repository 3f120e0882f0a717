//! Charges of the memory that graphs take when they are launched.
//!
//! Allocation nodes have addresses from the start, and physical memory from the first launch or
//! upload on. The driver takes it from a reserve of the device, from which graphs that do not run
//! at the same time share, and which shrinks only when it is trimmed. So a launch is admitted by
//! how much that reserve may grow: by what the graph's nodes need and the reserve has not free, but
//! not above what all graphs need together. Afterwards the driver's figure is what is charged.
//!
//! Invariants: the charges of a device's tenants are, in the budget and in the ledger alike, the
//! reserve as it was last read; growths that are admitted and not read yet are charged besides.
//! While anything captures, the driver is not queried: what was read before counts.

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice, CUgraph, CUgraphExec, CUgraphMem_attribute, CUgraphNode,
    CUgraphNodeType, CUresult, CUstream,
};
use fercuda_ledger::{Governed, Tenant};

use crate::clock::lock;
use crate::device::GovernedDevice;
use crate::driver_call::{RelaxedCapture, is_done};
use crate::governed::GovernedPiece;
use crate::governor::Governor;
use crate::graph_charges::{AllocatingGraph, union_bytes};
use crate::note::id;

/// Physical memory comes in multiples of this.
const PIECE_BYTES: u64 = 2 << 20;
/// Child graphs deeper than this count as empty.
const MOST_NESTED: usize = 16;

/// A launch that was admitted.
#[derive(Debug)]
struct AdmittedLaunch {
    tenant: Tenant,
    /// The growth charged on each device of the graph.
    growths: Vec<(u32, u64)>,
}

/// The nodes of a graph.
fn nodes(driver: &Driver, graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    // SAFETY: `count` outlives the call; the driver checks the graph.
    let counted = unsafe { driver.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) };
    let mut nodes = vec![CUgraphNode::NULL; if is_done(counted) { count } else { 0 }];
    if !nodes.is_empty() {
        // SAFETY: there are `count` places.
        let listed = unsafe { driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) };
        nodes.truncate(if is_done(listed) { count } else { 0 });
    }
    nodes
}

/// Collects the device, address and size of each allocation node.
fn allocations(driver: &Driver, graph: CUgraph, nested: usize, into: &mut Vec<(u32, u64, u64)>) {
    for node in nodes(driver, graph) {
        let mut kind = CUgraphNodeType::default();
        // SAFETY: `kind` outlives the call; the node is the graph's.
        let known = unsafe { driver.cuGraphNodeGetType(node, &mut kind) };
        if !is_done(known) {
            continue;
        }
        match kind {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                let mut node_params = CUDA_MEM_ALLOC_NODE_PARAMS::default();
                // SAFETY: the parameters outlive the call; it is an allocation node.
                let known = unsafe { driver.cuGraphMemAllocNodeGetParams(node, &mut node_params) };
                let device = u32::try_from(node_params.poolProps.location.id);
                if let (true, Ok(device)) = (is_done(known), device) {
                    into.push((device, node_params.dptr, node_params.bytesize as u64));
                }
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH if nested < MOST_NESTED => {
                let mut child = CUgraph::NULL;
                // SAFETY: `child` outlives the call; it is a node with a graph.
                let known = unsafe { driver.cuGraphChildGraphNodeGetGraph(node, &mut child) };
                if is_done(known) {
                    allocations(driver, child, nested + 1, into);
                }
            }
            _ => {}
        }
    }
}

impl Governor {
    /// The record of a graph for a tenant, if it allocates.
    fn allocating_graph(&self, graph: CUgraph, tenant: Tenant) -> Option<AllocatingGraph> {
        let mut found = Vec::new();
        allocations(self.driver, graph, 0, &mut found);
        let mut devices: Vec<u32> = found.iter().map(|it| it.0).collect();
        devices.sort_unstable();
        devices.dedup();
        let need = |device: u32| {
            let of_it = found.iter().filter(|it| it.0 == device);
            let mut ranges: Vec<(u64, u64)> = of_it.map(|it| (it.1, it.2)).collect();
            (device, union_bytes(&mut ranges))
        };
        let needs: Vec<(u32, u64)> = devices.into_iter().map(need).collect();
        (!needs.is_empty()).then_some(AllocatingGraph {
            tenant,
            needs,
            is_launched: false,
        })
    }

    /// Records an executable graph that was made of a graph for a tenant.
    pub fn record_graph(&self, exec: CUgraphExec, graph: CUgraph, tenant: Tenant) {
        self.graphs.set(exec, self.allocating_graph(graph, tenant));
    }

    /// Runs the driver call that makes an executable graph of a graph for a tenant and uploads it,
    /// if the memory that it takes is within the limits. `make` returns its handle besides.
    pub fn make_uploaded_graph(
        &self,
        graph: CUgraph,
        tenant: Tenant,
        make: impl FnOnce() -> (CUresult, CUgraphExec),
    ) -> CUresult {
        let Some(mut record) = self.allocating_graph(graph, tenant) else {
            return make().0;
        };
        let Some(admitted) = self.admit_launch(CUgraphExec::NULL, &record) else {
            return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        };
        let (result, exec) = make();
        if result == CUresult::CUDA_SUCCESS {
            record.is_launched = true;
            self.graphs.set(exec, Some(record));
        }
        self.settle_launch(&admitted);
        result
    }

    /// Runs the driver call that destroys an executable graph.
    pub fn destroy_graph(&self, exec: CUgraphExec, destroy: impl FnOnce() -> CUresult) -> CUresult {
        if self.graphs.is_empty() {
            return destroy();
        }
        // Removed first: once it is destroyed another may get its handle.
        let was = self.graphs.set(exec, None);
        let result = destroy();
        match was {
            Some(graph) if result != CUresult::CUDA_SUCCESS => {
                self.graphs.set(exec, Some(graph));
            }
            Some(graph) if graph.is_launched => {
                for (device, bytes) in &graph.needs {
                    if let Some(device) = self.device(*device) {
                        lock(&device.account.graphs.charges).departed += bytes;
                    }
                }
            }
            _ => {}
        }
        result
    }

    /// Runs the driver call that launches an executable graph in a stream, or uploads it, if the
    /// memory that it takes is within the limits. `per_thread`: which default stream the null
    /// handle means.
    pub fn launch_graph(
        &self,
        exec: CUgraphExec,
        (stream, per_thread): (CUstream, bool),
        launch: impl FnOnce() -> CUresult,
    ) -> CUresult {
        if self.graphs.is_empty() {
            return launch();
        }
        let Some(graph) = self.graphs.get(exec) else {
            return launch();
        };
        // A captured launch takes no memory.
        if self.anything_captures() && self.is_capturing(stream, per_thread) {
            return launch();
        }
        let Some(admitted) = self.admit_launch(exec, &graph) else {
            return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        };
        let result = launch();
        self.settle_launch(&admitted);
        result
    }

    /// Runs the driver call that trims the memory of graphs of a device.
    pub fn trim_graphs_by(&self, device: CUdevice, trim: impl FnOnce() -> CUresult) -> CUresult {
        let result = trim();
        let device = u32::try_from(device).ok().and_then(|it| self.device(it));
        if let (CUresult::CUDA_SUCCESS, Some(device)) = (result, device) {
            self.read_reserve(device, Tenant::OTHERS, 0);
        }
        result
    }

    /// Has the driver return the memory of graphs that none needs; returns the bytes returned.
    pub(crate) fn trim_graphs(&self, device: &GovernedDevice) -> u64 {
        let before = device.account.graphs.bytes();
        if before == 0 || self.anything_captures() {
            return 0;
        }
        let relaxed = RelaxedCapture::enter(self.driver);
        // SAFETY: takes a number.
        let trimmed = unsafe { self.driver.cuDeviceGraphMemTrim(device.ordinal as CUdevice) };
        drop(relaxed);
        if is_done(trimmed) {
            self.read_reserve(device, Tenant::OTHERS, 0);
        }
        before.saturating_sub(device.account.graphs.bytes())
    }

    /// The reserve of a device's graphs and how much of it is used, according to the driver; `None`
    /// while anything captures, or if the driver has no such figures.
    fn reserve(&self, device: &GovernedDevice) -> Option<(u64, u64)> {
        if self.anything_captures() {
            return None;
        }
        let _relaxed = RelaxedCapture::enter(self.driver);
        let figure = |which| {
            let mut bytes = 0u64;
            let into = (&raw mut bytes).cast();
            let device = device.ordinal as CUdevice;
            // SAFETY: `bytes` outlives the call and is as large as these attributes are.
            let asked = unsafe {
                self.driver
                    .cuDeviceGetGraphMemAttribute(device, which, into)
            };
            is_done(asked).then_some(bytes)
        };
        let reserved = figure(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?;
        let used = figure(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?;
        Some((reserved, used))
    }

    /// By how much the reserve of a device may grow if the graph is launched.
    fn growth(&self, device: &GovernedDevice, exec: CUgraphExec, need: u64) -> u64 {
        let most = |departed: u64, reserved: u64| {
            let all = self.graphs.needs_but(exec, device.ordinal) + need + departed;
            all.saturating_sub(reserved)
        };
        let (charged, departed, pending) = {
            let charges = lock(&device.account.graphs.charges);
            (charges.charged(), charges.departed, charges.pending)
        };
        if most(departed, charged) == 0 {
            return 0;
        }
        // What is free is not known while anything captures.
        let (reserved, used) = self.reserve(device).unwrap_or((charged, charged));
        let free = reserved.saturating_sub(used).saturating_sub(pending);
        let growth = need.saturating_sub(free).min(most(departed, reserved));
        growth
            .checked_next_multiple_of(PIECE_BYTES)
            .unwrap_or(growth)
    }

    /// Charges what a launch may take; a refusal charges nothing.
    fn admit_launch(&self, exec: CUgraphExec, graph: &AllocatingGraph) -> Option<AdmittedLaunch> {
        let mut admitted = AdmittedLaunch {
            tenant: graph.tenant,
            growths: Vec::new(),
        };
        for (ordinal, need) in &graph.needs {
            let Some(device) = self.device(*ordinal) else {
                continue;
            };
            let mut bytes = self.growth(device, exec, *need);
            let budget = device.budget();
            let its = budget.tenant(id(graph.tenant));
            if !(budget.has_room(bytes) && its.has_room(bytes)) {
                // What other graphs do not need may suffice.
                self.trim_graphs(device);
                bytes = self.growth(device, exec, *need);
            }
            let piece = GovernedPiece {
                device: *ordinal,
                tenant: graph.tenant,
                kind: Governed::Graph,
                bytes,
                context: None,
            };
            if bytes > 0 && !self.admit(&piece) {
                self.settle_launch(&admitted);
                return None;
            }
            lock(&device.account.graphs.charges).pending += bytes;
            admitted.growths.push((*ordinal, bytes));
        }
        self.graphs.note_launch(exec);
        Some(admitted)
    }

    /// Replaces what was charged for a launch by what the driver has taken.
    fn settle_launch(&self, admitted: &AdmittedLaunch) {
        for (ordinal, bytes) in &admitted.growths {
            if let Some(device) = self.device(*ordinal) {
                self.read_reserve(device, admitted.tenant, *bytes);
            }
        }
    }

    /// Charges the reserve of a device's graphs as the driver reports it. `tenant` is charged what
    /// it has grown by, of which `admitted` bytes are pending.
    pub(crate) fn read_reserve(&self, device: &GovernedDevice, tenant: Tenant, admitted: u64) {
        let figures = self.reserve(device);
        let mut charges = lock(&device.account.graphs.charges);
        charges.pending -= admitted;
        let was = charges.charged();
        let (mut now, used) = figures.unwrap_or((was + admitted, u64::MAX));
        if charges.pending > 0 {
            // The rest may be the growth of another launch, which will read it too.
            now = now.min(was + admitted);
        }
        if used == 0 {
            charges.departed = 0;
        }
        let budget = device.budget();
        let refund = |of: Tenant, bytes: u64| {
            budget.refund(bytes);
            budget.tenant(id(of)).refund(bytes);
        };
        let grown = now.saturating_sub(was);
        *charges.of(tenant) += grown;
        self.ledger
            .govern(device.row, tenant, Governed::Graph, grown);
        if grown >= admitted {
            budget.add(grown - admitted);
            budget.tenant(id(tenant)).add(grown - admitted);
        } else {
            refund(tenant, admitted - grown);
        }
        // Which tenant's part was returned is not known: first those that have more than their
        // graphs need.
        let mut less = was.saturating_sub(now);
        for is_spare in [true, false] {
            for (of, bytes) in &mut charges.tenants {
                let needed = match is_spare {
                    true => self.graphs.needs_of(*of, device.ordinal),
                    false => 0,
                };
                let returned = bytes.saturating_sub(needed).min(less);
                *bytes -= returned;
                less -= returned;
                refund(*of, returned);
                self.ledger
                    .release(device.row, *of, Governed::Graph, returned);
            }
        }
        charges.tenants.retain(|(_, bytes)| *bytes > 0);
    }
}
