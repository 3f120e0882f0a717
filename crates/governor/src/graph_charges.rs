//! Records of executable graphs that allocate, and the parts of each device's reserve of graph
//! memory that tenants are charged for.
//!
//! Elsewhere: admission, and reading the reserve ([`crate::graph_memory`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fercuda_cuda_sys::types::CUgraphExec;
use fercuda_ledger::Tenant;
use rustc_hash::FxHashMap;

use crate::clock::lock;

/// An executable graph with allocation nodes.
#[derive(Clone, Debug)]
pub(crate) struct AllocatingGraph {
    /// The tenant that it is charged to.
    pub(crate) tenant: Tenant,
    /// The bytes that it needs of each device.
    pub(crate) needs: Vec<(u32, u64)>,
    /// Whether a launch or an upload of it was admitted.
    pub(crate) is_launched: bool,
}

/// The executable graphs of a process that allocate.
#[derive(Debug, Default)]
pub(crate) struct AllocatingGraphs {
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
    graphs: Mutex<FxHashMap<CUgraphExec, AllocatingGraph>>,
}

impl AllocatingGraph {
    fn need(&self, device: u32) -> u64 {
        let of_it = self.needs.iter().filter(|(of, _)| *of == device);
        of_it.map(|(_, bytes)| bytes).sum()
    }
}

impl AllocatingGraphs {
    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Records one, or that there is none with this handle; returns what was recorded before.
    pub(crate) fn set(
        &self,
        exec: CUgraphExec,
        graph: Option<AllocatingGraph>,
    ) -> Option<AllocatingGraph> {
        let mut graphs = lock(&self.graphs);
        let was = graphs.remove(&exec);
        graphs.extend(graph.map(|graph| (exec, graph)));
        self.count.store(graphs.len(), Relaxed);
        was
    }

    pub(crate) fn get(&self, exec: CUgraphExec) -> Option<AllocatingGraph> {
        lock(&self.graphs).get(&exec).cloned()
    }

    /// Records that a launch was admitted.
    pub(crate) fn note_launch(&self, exec: CUgraphExec) {
        if let Some(graph) = lock(&self.graphs).get_mut(&exec) {
            graph.is_launched = true;
        }
    }

    /// What all launched graphs but one need of a device.
    pub(crate) fn needs_but(&self, exec: CUgraphExec, device: u32) -> u64 {
        let graphs = lock(&self.graphs);
        let others = graphs
            .iter()
            .filter(|(it, graph)| **it != exec && graph.is_launched);
        others.map(|(_, graph)| graph.need(device)).sum()
    }

    /// What a tenant's launched graphs need of a device.
    pub(crate) fn needs_of(&self, tenant: Tenant, device: u32) -> u64 {
        let graphs = lock(&self.graphs);
        let its = graphs
            .values()
            .filter(|it| it.tenant == tenant && it.is_launched);
        its.map(|graph| graph.need(device)).sum()
    }
}

/// What is charged for the graphs of a device.
#[derive(Debug, Default)]
pub(crate) struct GraphCharges {
    pub(crate) charges: Mutex<ReserveCharges>,
}

/// Parts of a device's reserve.
#[derive(Debug, Default)]
pub(crate) struct ReserveCharges {
    /// By tenant.
    pub(crate) tenants: Vec<(Tenant, u64)>,
    /// Admitted for launches that have not returned.
    pub(crate) pending: u64,
    /// The needs of launched graphs that were destroyed: their memory may still be allocated.
    pub(crate) departed: u64,
}

impl ReserveCharges {
    /// Their sum.
    pub(crate) fn charged(&self) -> u64 {
        self.tenants.iter().map(|(_, bytes)| bytes).sum()
    }

    /// A tenant's part.
    pub(crate) fn of(&mut self, tenant: Tenant) -> &mut u64 {
        let at = self.tenants.iter().position(|(it, _)| *it == tenant);
        let at = at.unwrap_or_else(|| {
            self.tenants.push((tenant, 0));
            self.tenants.len() - 1
        });
        &mut self.tenants[at].1
    }
}

impl GraphCharges {
    /// The bytes charged.
    pub(crate) fn bytes(&self) -> u64 {
        let charges = lock(&self.charges);
        charges.charged() + charges.pending
    }
}

/// The size of the union of address ranges, given as start and length: nodes that are never
/// allocated at the same time may have one address.
pub(crate) fn union_bytes(ranges: &mut [(u64, u64)]) -> u64 {
    ranges.sort_unstable();
    let (mut sum, mut end) = (0u64, 0u64);
    for (start, bytes) in ranges {
        let from = end.max(*start);
        end = end.max(start.saturating_add(*bytes));
        sum = sum.saturating_add(end.saturating_sub(from));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::union_bytes;

    #[test]
    fn ranges_that_overlap_count_once() {
        assert_eq!(union_bytes(&mut []), 0);
        assert_eq!(union_bytes(&mut [(512, 512), (0, 512)]), 1024);
        assert_eq!(
            union_bytes(&mut [(0, 100), (0, 50), (50, 100), (400, 1)]),
            151
        );
        assert_eq!(union_bytes(&mut [(u64::MAX, 7)]), 0);
    }
}
