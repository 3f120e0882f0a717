//! Memory of graphs: allocation nodes' addresses, and the ends of their lives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::allocation::AllocationSource;
use super::heap::ALIGN;
use super::memory::{give_back, retire};
use super::objects::{ExecNode, GraphMemory, NodeId, SoftGraph, StreamAction, StreamRun};
use super::site::site;
use super::{CuResult, Machine, err, lock, machine};
use crate::mem::AllocKind;
use crate::order::OpId;

static GRAPH_MEMORY: Mutex<BTreeMap<u64, Weak<GraphMemory>>> = Mutex::new(BTreeMap::new());

impl GraphMemory {
    fn new(m: &Machine, device: u32, len: u64) -> CuResult<Arc<Self>> {
        if len == 0 {
            return Err(err::INVALID_VALUE);
        }
        let owner = &m.devices[device as usize];
        let start = owner.graph_blocks.alloc(&m.space, len).or_else(|_| {
            owner.reclaim(m);
            owner.graph_blocks.alloc(&m.space, len)
        })?;
        m.memory
            .insert_unowned(m, start, len, AllocationSource::Graph, device);
        let memory = Arc::new(GraphMemory {
            start,
            len,
            device,
            pool_location: (1, device as i32),
            taken: AtomicBool::new(false),
            live: AtomicBool::new(false),
        });
        lock(&GRAPH_MEMORY).insert(start, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// The node runs: the memory is allocated from here on.
    pub(crate) fn begin(&self, m: &Machine, running: &StreamRun) {
        if self.live.swap(true, Ordering::AcqRel) {
            m.space.retire(
                self.start,
                site("cuGraphLaunch"),
                m.check(running.op).as_ref(),
            );
        }
        let made = site("cuGraphLaunch");
        let check = m.check(running.op);
        m.space.add(
            self.start,
            self.len,
            AllocKind::Pool,
            self.device,
            None,
            made,
            false,
            check.as_ref(),
        );
    }

    /// What frees it runs.
    pub(crate) fn end(&self, m: &Machine, call: &'static str, op: OpId) {
        if self.live.swap(false, Ordering::AcqRel) {
            m.space.retire(self.start, site(call), m.check(op).as_ref());
        }
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        if let Ok(m) = machine() {
            lock(&GRAPH_MEMORY).remove(&self.start);
            m.memory
                .take(self.start, |a| matches!(a.source, AllocationSource::Graph));
            self.end(m, "cuGraphDestroy", OpId::NONE);
            m.devices[self.device as usize]
                .graph_blocks
                .free(&m.space, self.start, 0);
        }
    }
}

/// The memory of a new allocation node of a graph behind `deps`: what is free again there, or new.
pub(crate) fn for_node(
    m: &Machine,
    graph: &SoftGraph,
    deps: &[NodeId],
    device: u32,
    len: u64,
) -> CuResult<Arc<GraphMemory>> {
    let freed = graph.freed_before(deps, device, len);
    freed.map_or_else(|| GraphMemory::new(m, device, len), Ok)
}

fn find(start: u64) -> Option<Arc<GraphMemory>> {
    lock(&GRAPH_MEMORY).get(&start).and_then(Weak::upgrade)
}

/// Memory that a launch has allocated, and that a call outside any graph is about to free: from
/// here on its graph may be launched again.
pub(crate) fn take_graph_memory(start: u64) -> CuResult<Arc<GraphMemory>> {
    let memory = find(start).ok_or(err::INVALID_VALUE)?;
    match memory.taken.swap(false, Ordering::AcqRel) {
        true => Ok(memory),
        false => Err(err::INVALID_VALUE),
    }
}

/// The most bytes of a device that are allocated at once by a launch of `nodes`, which run in this
/// order; 0 if they allocate none.
pub(crate) fn most_allocated(nodes: &[ExecNode], device: u32) -> u64 {
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut sum, mut most) = (0, 0);
    for node in nodes {
        match &node.action {
            StreamAction::MemAlloc(memory) if memory.device == device => {
                let bytes = memory.len.next_multiple_of(ALIGN);
                if live.insert(memory.start, bytes).is_none() {
                    sum += bytes;
                }
                most = most.max(sum);
            }
            StreamAction::MemFree(start) => sum -= live.remove(start).unwrap_or(0),
            _ => {}
        }
    }
    most
}

/// Whether a launch of `nodes` would allocate memory that an earlier one has allocated and that is
/// not freed.
pub(crate) fn is_taken(nodes: &[ExecNode]) -> bool {
    nodes.iter().any(|node| match &node.action {
        StreamAction::MemAlloc(memory) => memory.taken.load(Ordering::Acquire),
        _ => false,
    })
}

/// Accounts for a launch of `nodes`; returns the memory that is allocated after it.
pub(crate) fn take_and_free(nodes: &[ExecNode]) -> Vec<Arc<GraphMemory>> {
    let mut left: Vec<Arc<GraphMemory>> = Vec::new();
    for node in nodes {
        match &node.action {
            StreamAction::MemAlloc(memory) => {
                memory.taken.store(true, Ordering::Release);
                left.push(memory.clone());
            }
            StreamAction::MemFree(start) => {
                left.retain(|memory| memory.start != *start);
                if let Some(memory) = find(*start) {
                    memory.taken.store(false, Ordering::Release);
                }
            }
            _ => {}
        }
    }
    left
}

/// A free node runs.
pub(crate) fn end_graph_memory(m: &Machine, running: &StreamRun, start: u64) {
    match find(start) {
        Some(memory) => memory.end(m, "cuGraphLaunch", running.op),
        None => {
            // Memory of a pool, freed by a graph.
            if let Some(a) = m.memory.take(start, |a| {
                matches!(
                    a.source,
                    AllocationSource::Pool(_) | AllocationSource::Device
                )
            }) {
                retire(m, &a, "cuGraphLaunch", running.op);
                if let AllocationSource::Pool(pool) = &a.source {
                    pool.note_freed(a.len);
                }
                give_back(m, &a);
            }
        }
    }
}
