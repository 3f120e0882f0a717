//! Memory of graphs: allocation nodes' addresses, and the ends of their lives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::allocation::AllocationSource;
use super::memory::{give_back, host_op, retire};
use super::objects::{GraphMemory, StreamRun};
use super::site::site;
use super::{CuResult, Machine, err, lock, machine};
use crate::mem::AllocKind;
use crate::order::OpId;

static GRAPH_MEMORY: Mutex<BTreeMap<u64, Weak<GraphMemory>>> = Mutex::new(BTreeMap::new());

impl GraphMemory {
    pub(crate) fn new(m: &Machine, device: u32, len: u64) -> CuResult<Arc<Self>> {
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
            live: AtomicBool::new(false),
        });
        lock(&GRAPH_MEMORY).insert(start, Arc::downgrade(&memory));
        Ok(memory)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
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

    fn end(&self, m: &Machine, call: &'static str, op: OpId) -> bool {
        let was = self.live.swap(false, Ordering::AcqRel);
        if was {
            m.space.retire(self.start, site(call), m.check(op).as_ref());
        }
        was
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

/// Frees memory of a graph that was launched, outside any graph.
pub(crate) fn free_graph_memory(m: &Machine, start: u64) -> CuResult {
    let memory = lock(&GRAPH_MEMORY)
        .get(&start)
        .and_then(Weak::upgrade)
        .ok_or(err::INVALID_VALUE)?;
    if memory.end(m, "cuMemFreeAsync", host_op(m, "cuMemFreeAsync")) {
        Ok(())
    } else {
        Err(err::INVALID_VALUE)
    }
}

/// A free node runs.
pub(crate) fn end_graph_memory(m: &Machine, running: &StreamRun, start: u64) {
    let memory = lock(&GRAPH_MEMORY).get(&start).and_then(Weak::upgrade);
    match memory {
        Some(memory) => {
            memory.end(m, "cuGraphLaunch", running.op);
        }
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
