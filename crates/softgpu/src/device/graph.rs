//! Graphs: nodes with their actions and dependencies.
//!
//! Invariant: edges join nodes of one graph and never form a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::{CUgraphEdgeData, CUhostFn};
use rustc_hash::FxHashMap;

use super::objects::{
    GraphMemory, GraphState, Node, NodeId, NodeRef, SoftGraph, StreamAction, UserObject,
};
use super::{CuResult, Machine, err, lock};

pub(crate) fn create(m: &Machine, is_child: bool) -> Arc<SoftGraph> {
    m.graphs
        .insert_with(|handle| {
            Arc::new(SoftGraph {
                handle,
                state: Mutex::default(),
                is_child,
            })
        })
        .1
}

/// A node and its graph.
pub(crate) fn node(m: &Machine, handle: usize) -> CuResult<(Arc<SoftGraph>, NodeId)> {
    let found = m.nodes.get(handle).ok_or(err::INVALID_VALUE)?;
    Ok((found.graph.upgrade().ok_or(err::INVALID_VALUE)?, found.id))
}

impl SoftGraph {
    /// Adds a node behind `deps`.
    pub(crate) fn add(
        self: &Arc<Self>,
        m: &Machine,
        ctx_handle: usize,
        action: StreamAction,
        deps: &[(NodeId, CUgraphEdgeData)],
    ) -> CuResult<(NodeId, usize)> {
        let mut state = lock(&self.state);
        let distinct: BTreeSet<NodeId> = deps.iter().map(|d| d.0).collect();
        if distinct.len() != deps.len() || !distinct.iter().all(|d| state.nodes.contains_key(d)) {
            return Err(err::INVALID_VALUE);
        }
        state.next += 1;
        let id = state.next;
        let (handle, _) = m.nodes.insert_with(|_| {
            Arc::new(NodeRef {
                graph: Arc::downgrade(self),
                id,
            })
        });
        state.nodes.insert(
            id,
            Node {
                handle,
                action,
                deps: deps.to_vec(),
                original: None,
                ctx_handle,
            },
        );
        Ok((id, handle))
    }

    /// Ids of handles, all of which must be this graph's.
    pub(crate) fn ids(self: &Arc<Self>, m: &Machine, handles: &[usize]) -> CuResult<Vec<NodeId>> {
        handles
            .iter()
            .map(|&h| {
                let (graph, id) = node(m, h)?;
                if Arc::ptr_eq(&graph, self) {
                    Ok(id)
                } else {
                    Err(err::INVALID_VALUE)
                }
            })
            .collect()
    }

    pub(crate) fn with<R>(
        &self,
        id: NodeId,
        f: impl FnOnce(&mut Node) -> CuResult<R>,
    ) -> CuResult<R> {
        f(lock(&self.state)
            .nodes
            .get_mut(&id)
            .ok_or(err::INVALID_VALUE)?)
    }

    /// Whether it has an allocation node, or a child graph with one.
    pub(crate) fn allocates(&self) -> bool {
        lock(&self.state)
            .nodes
            .values()
            .any(|node| match &node.action {
                StreamAction::MemAlloc(_) => true,
                StreamAction::Child(child) => child.allocates(),
                _ => false,
            })
    }

    /// Memory of this graph that is free again before a node behind `deps` runs, and that a new
    /// node of the same length may have therefore.
    pub(crate) fn freed_before(
        &self,
        deps: &[NodeId],
        device: u32,
        len: u64,
    ) -> Option<Arc<GraphMemory>> {
        let state = lock(&self.state);
        let mut before = BTreeSet::new();
        let mut todo = deps.to_vec();
        while let Some(node) = todo.pop().and_then(|id| Some((id, state.nodes.get(&id)?))) {
            if before.insert(node.0) {
                todo.extend(node.1.deps.iter().map(|dep| dep.0));
            }
        }
        let allocated = state.nodes.values().filter_map(|node| match &node.action {
            StreamAction::MemAlloc(it) if (it.device, it.len) == (device, len) => Some(it),
            _ => None,
        });
        let mut all = allocated.clone();
        all.find(|memory| {
            let of_it = |node: &Node| match &node.action {
                StreamAction::MemFree(at) => *at == memory.start,
                _ => false,
            };
            let freed = before.iter().filter(|id| of_it(&state.nodes[id])).count();
            let times = allocated.clone().filter(|it| it.start == memory.start);
            freed == times.count()
        })
        .cloned()
    }

    pub(crate) fn handle_of(&self, id: NodeId) -> usize {
        lock(&self.state).nodes.get(&id).map_or(0, |n| n.handle)
    }

    pub(crate) fn add_edge(&self, from: NodeId, to: NodeId, data: CUgraphEdgeData) -> CuResult {
        let mut state = lock(&self.state);
        if from == to || !state.nodes.contains_key(&from) || state.reaches(to, from) {
            return Err(err::INVALID_VALUE);
        }
        let node = state.nodes.get_mut(&to).ok_or(err::INVALID_VALUE)?;
        if node.deps.iter().any(|d| d.0 == from) {
            return Err(err::INVALID_VALUE);
        }
        node.deps.push((from, data));
        Ok(())
    }

    pub(crate) fn remove_edge(&self, from: NodeId, to: NodeId) -> CuResult {
        let mut state = lock(&self.state);
        let node = state.nodes.get_mut(&to).ok_or(err::INVALID_VALUE)?;
        let at = node
            .deps
            .iter()
            .position(|d| d.0 == from)
            .ok_or(err::INVALID_VALUE)?;
        node.deps.remove(at);
        Ok(())
    }

    pub(crate) fn remove(&self, m: &Machine, id: NodeId) -> CuResult {
        let mut state = lock(&self.state);
        let node = state.nodes.remove(&id).ok_or(err::INVALID_VALUE)?;
        for other in state.nodes.values_mut() {
            other.deps.retain(|d| d.0 != id);
        }
        drop(state);
        m.nodes.remove(node.handle);
        if let StreamAction::Child(child) = node.action {
            child.destroy(m);
        }
        Ok(())
    }

    /// Every edge, by the second node.
    pub(crate) fn edges(&self) -> Vec<(usize, usize, CUgraphEdgeData)> {
        let state = lock(&self.state);
        let handle = |id: &NodeId| state.nodes.get(id).map_or(0, |n| n.handle);
        state
            .nodes
            .values()
            .flat_map(|n| {
                n.deps
                    .iter()
                    .map(|(d, e)| (handle(d), n.handle, *e))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// A copy with new nodes, which remember the old ones.
    pub(crate) fn copy(&self, m: &Machine, is_child: bool) -> Arc<SoftGraph> {
        let copy = create(m, is_child);
        let state = lock(&self.state);
        let mut nodes = BTreeMap::new();
        for (&id, node) in &state.nodes {
            let (handle, _) = m.nodes.insert_with(|_| {
                Arc::new(NodeRef {
                    graph: Arc::downgrade(&copy),
                    id,
                })
            });
            let action = match &node.action {
                StreamAction::Child(child) => StreamAction::Child(child.copy(m, true)),
                other => other.clone(),
            };
            nodes.insert(
                id,
                Node {
                    handle,
                    action,
                    deps: node.deps.clone(),
                    original: Some(node.handle),
                    ctx_handle: node.ctx_handle,
                },
            );
        }
        let mut new = lock(&copy.state);
        new.nodes = nodes;
        new.next = state.next;
        drop(new);
        copy
    }

    /// Keeps `count` references of an object as long as the graph lives.
    pub(crate) fn retain_object(&self, object: &Arc<UserObject>, count: u32) {
        lock(&self.state).objects.push((object.clone(), count));
    }

    pub(crate) fn release_object(
        &self,
        m: &Machine,
        object: &Arc<UserObject>,
        mut count: u32,
    ) -> CuResult {
        let mut state = lock(&self.state);
        let held: u32 = state
            .objects
            .iter()
            .filter(|o| Arc::ptr_eq(&o.0, object))
            .map(|o| o.1)
            .sum();
        if held < count {
            return Err(err::INVALID_VALUE);
        }
        let total = count;
        for entry in state
            .objects
            .iter_mut()
            .filter(|o| Arc::ptr_eq(&o.0, object))
        {
            let n = entry.1.min(count);
            entry.1 -= n;
            count -= n;
        }
        state.objects.retain(|o| o.1 > 0);
        drop(state);
        object.release(m, total);
        Ok(())
    }

    /// Removes the handles and releases what the graph keeps alive.
    pub(crate) fn destroy(&self, m: &Machine) {
        m.graphs.remove(self.handle);
        let mut state = lock(&self.state);
        let nodes = std::mem::take(&mut state.nodes);
        let objects = std::mem::take(&mut state.objects);
        drop(state);
        for node in nodes.into_values() {
            m.nodes.remove(node.handle);
            if let StreamAction::Child(child) = node.action {
                child.destroy(m);
            }
        }
        for (object, count) in objects {
            object.release(m, count);
        }
    }

    /// The objects of the graph with one more reference each, for instantiation.
    pub(crate) fn objects(&self) -> Vec<Arc<UserObject>> {
        lock(&self.state)
            .objects
            .iter()
            .map(|o| o.0.clone())
            .collect()
    }

    /// The graph in the language of Graphviz.
    pub(crate) fn dot(&self) -> String {
        let state = lock(&self.state);
        let mut out = "digraph dot {\n".to_owned();
        for (id, node) in &state.nodes {
            let label = match &node.action {
                StreamAction::Kernel(k) => {
                    let ([gx, gy, gz], [bx, by, bz]) = (k.grid, k.block);
                    format!(
                        "{}\\n<<<({gx},{gy},{gz}), ({bx},{by},{bz}), {}>>>",
                        k.function.name, k.shared_bytes
                    )
                }
                StreamAction::Copy(c) => format!("MEMCPY\\n{} bytes", c.width * c.height * c.depth),
                StreamAction::Fill(f) => {
                    format!("MEMSET\\n{} x {} bytes", f.width * f.height, f.element)
                }
                other => other.node_call().to_owned(),
            };
            // Writing to a String cannot fail.
            writeln!(out, "  n{id} [shape=\"record\" label=\"{id}: {label}\"];").ok();
            for (dep, _) in &node.deps {
                writeln!(out, "  n{dep} -> n{id};").ok();
            }
        }
        out.push_str("}\n");
        out
    }
}

impl GraphState {
    /// Whether `to` comes behind `from`.
    pub(crate) fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        let mut seen = BTreeSet::new();
        let mut todo = vec![to];
        while let Some(at) = todo.pop() {
            if at == from {
                return true;
            }
            if seen.insert(at)
                && let Some(node) = self.nodes.get(&at)
            {
                todo.extend(node.deps.iter().map(|d| d.0));
            }
        }
        false
    }

    /// Ids in an order in which every node comes behind those it waits for; otherwise by id.
    pub(crate) fn sorted(&self) -> Vec<NodeId> {
        let mut waiting: FxHashMap<NodeId, usize> = self
            .nodes
            .iter()
            .map(|(&id, n)| (id, n.deps.len()))
            .collect();
        let mut dependents: FxHashMap<NodeId, Vec<NodeId>> = FxHashMap::default();
        for (&id, node) in &self.nodes {
            for (dep, _) in &node.deps {
                dependents.entry(*dep).or_default().push(id);
            }
        }
        let mut ready: BTreeSet<NodeId> =
            waiting.iter().filter(|e| *e.1 == 0).map(|e| *e.0).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(id) = ready.pop_first() {
            order.push(id);
            for &next in dependents.get(&id).into_iter().flatten() {
                if let Some(n) = waiting.get_mut(&next) {
                    *n -= 1;
                    if *n == 0 {
                        ready.insert(next);
                    }
                }
            }
        }
        order
    }
}

impl UserObject {
    pub(crate) fn create(
        m: &Machine,
        data: *mut c_void,
        destroy: CUhostFn,
        count: u32,
    ) -> Arc<Self> {
        let make = |handle| {
            Arc::new(UserObject {
                handle,
                data,
                destroy,
                references: AtomicU64::new(u64::from(count)),
            })
        };
        m.user_objects.insert_with(make).1
    }

    pub(crate) fn retain(&self, count: u32) {
        self.references
            .fetch_add(u64::from(count), Ordering::AcqRel);
    }

    pub(crate) fn release(&self, m: &Machine, count: u32) {
        let count = u64::from(count);
        let before = self
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                Some(n.saturating_sub(count))
            })
            .unwrap_or_else(|n| n);
        if before > 0 && before <= count {
            m.user_objects.remove(self.handle);
            if let Some(destroy) = self.destroy {
                // SAFETY: the program gave the destructor and its argument; the count reached zero
                // once.
                unsafe { destroy(self.data) }
            }
        }
    }
}
