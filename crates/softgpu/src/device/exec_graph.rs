//! Executable graphs: a graph's nodes in topological order, launched as one operation of a stream.
//!
//! Nodes run one after another, which a program can distinguish from concurrent execution only by
//! time. For the checks each branch is an actor of its own, so unordered nodes count as unordered.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use super::graph_memory::{is_taken, most_allocated, take_and_free};
use super::objects::{
    ExecGraph, ExecGraphState, ExecNode, ForeignRecording, GraphMemory, QueueTicket, SoftContext,
    SoftGraph, SoftStream, StreamAction, StreamRun,
};
use super::stream::Submission;
use super::{CuResult, Machine, SoftDevice, err, lock};
use crate::order::{ActorId, OpId, OpKind};

pub(crate) const AUTO_FREE: u64 = 1;

fn flatten(graph: &SoftGraph, before: &[usize], out: &mut Vec<ExecNode>) -> Vec<usize> {
    let state = lock(&graph.state);
    let mut index: FxHashMap<u64, usize> = FxHashMap::default();
    let mut has_dependent: Vec<bool> = Vec::new();
    let first = out.len();
    for id in state.sorted() {
        let node = &state.nodes[&id];
        let mut deps: Vec<usize> = node
            .deps
            .iter()
            .filter_map(|d| index.get(&d.0).copied())
            .collect();
        if deps.is_empty() {
            deps = before.to_vec();
        }
        let action = match &node.action {
            StreamAction::Child(child) => {
                let ends = flatten(child, &deps, out);
                if !ends.is_empty() {
                    deps = ends;
                }
                StreamAction::Empty
            }
            other => other.clone(),
        };
        index.insert(id, out.len());
        out.push(ExecNode {
            handle: node.handle,
            action,
            deps,
            enabled: true,
            chain: 0,
        });
    }
    has_dependent.resize(out.len() - first, false);
    for node in &out[first..] {
        for &d in node.deps.iter().filter(|&&d| d >= first) {
            has_dependent[d - first] = true;
        }
    }
    index
        .values()
        .copied()
        .filter(|&i| !has_dependent[i - first])
        .collect()
}

fn chains(nodes: &mut [ExecNode]) -> usize {
    let mut tails: Vec<usize> = Vec::new();
    for (i, node) in nodes.iter_mut().enumerate() {
        let free = node
            .deps
            .iter()
            .find_map(|&d| tails.iter().position(|&t| t == d));
        let chain = free.unwrap_or_else(|| {
            tails.push(i);
            tails.len() - 1
        });
        tails[chain] = i;
        node.chain = chain;
    }
    tails.len()
}

pub(crate) fn instantiate(m: &Machine, graph: &SoftGraph, flags: u64) -> CuResult<Arc<ExecGraph>> {
    // A graph launched from the device cannot free what the host allocates.
    if flags & !15 != 0 || flags & 5 == 5 {
        return Err(err::INVALID_VALUE);
    }
    if flags & 4 != 0 {
        super::say("not implemented on the software device: graphs launched from a kernel");
        return Err(err::NOT_SUPPORTED);
    }
    let mut nodes = Vec::new();
    flatten(graph, &[], &mut nodes);
    // Its nodes' memory is one, so only one of its executable graphs may exist.
    let earlier = lock(&graph.state).exec.upgrade();
    if graph.allocates() && earlier.is_some_and(|exec| m.execs.get(exec.handle).is_some()) {
        return Err(err::NOT_SUPPORTED);
    }
    let chains = chains(&mut nodes);
    let objects = graph.objects();
    for object in &objects {
        object.retain(1);
    }
    let state = ExecGraphState {
        nodes,
        chains,
        actors: Vec::new(),
        last: None,
        objects,
    };
    let make = |handle| {
        Arc::new(ExecGraph {
            handle,
            flags,
            state: Mutex::new(state),
        })
    };
    let (_, exec) = m.execs.insert_with(make);
    lock(&graph.state).exec = Arc::downgrade(&exec);
    Ok(exec)
}

impl ExecGraph {
    /// `cuGraphLaunch`.
    pub(crate) fn launch(
        self: &Arc<Self>,
        m: &'static Machine,
        ctx: &SoftContext,
        stream: &Arc<SoftStream>,
    ) -> CuResult {
        let mut state = lock(&self.state);
        let nodes = state.nodes.clone();
        if self.flags & AUTO_FREE == 0 && is_taken(&nodes) {
            return Err(err::INVALID_VALUE);
        }
        let held = self.hold_memory(m, &nodes)?;
        let left = take_and_free(&nodes);
        let mut after: Vec<QueueTicket> = state
            .last
            .iter()
            .filter(|t| !t.is_done())
            .cloned()
            .collect();
        let mut foreign = Vec::new();
        for node in nodes.iter().filter(|n| n.enabled) {
            if let StreamAction::Wait(event) = &node.action
                && let Some(record) = event.current()
            {
                after.extend(record.tickets.iter().filter(|t| !t.is_done()).cloned());
                foreign.extend(record.foreign.clone());
                if m.config.checks {
                    m.order.wait(stream.actor, &record.snapshot);
                }
            }
        }
        if m.config.checks {
            if let Some(last) = &state.last {
                m.order.wait_for(stream.actor, last.stream.actor);
            }
            while state.actors.len() + 1 < state.chains {
                let name = format!("graph branch {}", state.actors.len() + 2);
                state.actors.push(m.order.add_actor(&name));
            }
        }
        let stamps: Vec<Option<Arc<AtomicU64>>> = nodes
            .iter()
            .map(|n| matches!(n.action, StreamAction::Record(_)).then(Arc::default))
            .collect();
        let actors = state.actors.clone();
        let recorded: Vec<_> = nodes
            .iter()
            .zip(&stamps)
            .filter_map(|(n, stamp)| match (&n.action, stamp) {
                (StreamAction::Record(event), Some(stamp)) if n.enabled => {
                    Some((event.clone(), stamp.clone()))
                }
                _ => None,
            })
            .collect();
        let submission = Submission::call("cuGraphLaunch").after(after);
        let actor = stream.actor;
        let ticket = stream.submit_with(m, ctx, submission, move |op| {
            let ops = begin_all(m, op, actor, &actors, &nodes);
            Box::new(move |running: &StreamRun| {
                foreign.iter().for_each(ForeignRecording::wait);
                for (i, node) in nodes.iter().enumerate() {
                    if running.health.check().is_err() {
                        break;
                    }
                    if node.enabled {
                        let op = ops.get(i).copied().unwrap_or(OpId::NONE);
                        node.action.run(
                            m,
                            &StreamRun {
                                op,
                                health: running.health,
                            },
                        );
                    }
                    if let Some(stamp) = &stamps[i] {
                        super::event::stamp_now(m, stamp);
                    }
                }
            })
        });
        for (event, stamp) in recorded {
            event.recorded_by_graph(m, stream, ticket.clone(), stamp);
        }
        for device in held {
            let of_it = |memory: &&Arc<GraphMemory>| memory.device == device.ordinal;
            let left = left.iter().filter(of_it).cloned().collect();
            let ticket = Some(ticket.clone());
            device.graph_pool.launched(self.handle, ticket, left);
        }
        state.last = Some(ticket);
        Ok(())
    }

    /// Takes the physical memory that a launch of `nodes` needs; returns the devices that have it.
    fn hold_memory<'m>(&self, m: &'m Machine, nodes: &[ExecNode]) -> CuResult<Vec<&'m SoftDevice>> {
        let mut held: Vec<&SoftDevice> = Vec::new();
        for device in &m.devices {
            let bytes = most_allocated(nodes, device.ordinal);
            if bytes == 0 {
                continue;
            }
            let reclaim = || device.reclaim(m);
            let pool = &device.graph_pool;
            if let Err(refused) = pool.hold(&device.phys, self.handle, bytes, reclaim) {
                for device in held {
                    device.graph_pool.launched(self.handle, None, Vec::new());
                }
                return Err(refused);
            }
            held.push(device);
        }
        Ok(held)
    }

    /// `cuGraphUpload`: takes the physical memory that the next launch needs.
    pub(crate) fn upload(&self, m: &Machine) -> CuResult {
        let nodes = lock(&self.state).nodes.clone();
        for device in self.hold_memory(m, &nodes)? {
            device.graph_pool.launched(self.handle, None, Vec::new());
        }
        Ok(())
    }

    /// Changes what a node does; its kind stays.
    pub(crate) fn set(
        &self,
        node: usize,
        change: impl FnOnce(&mut StreamAction) -> CuResult,
    ) -> CuResult {
        let mut state = lock(&self.state);
        let found = state
            .nodes
            .iter_mut()
            .find(|n| n.handle == node)
            .ok_or(err::INVALID_VALUE)?;
        change(&mut found.action)
    }

    pub(crate) fn set_enabled(&self, node: usize, enabled: bool) -> CuResult {
        let mut state = lock(&self.state);
        let found = state
            .nodes
            .iter_mut()
            .find(|n| n.handle == node)
            .ok_or(err::INVALID_VALUE)?;
        if !matches!(
            found.action,
            StreamAction::Kernel(_) | StreamAction::Copy(_) | StreamAction::Fill(_)
        ) {
            return Err(err::INVALID_VALUE);
        }
        found.enabled = enabled;
        Ok(())
    }

    pub(crate) fn is_enabled(&self, node: usize) -> CuResult<bool> {
        let state = lock(&self.state);
        state
            .nodes
            .iter()
            .find(|n| n.handle == node)
            .map(|n| n.enabled)
            .ok_or(err::INVALID_VALUE)
    }

    /// Takes over the parameters of a graph of the same shape. On failure: (result, the offending
    /// node of `graph`).
    pub(crate) fn update(&self, graph: &SoftGraph) -> Result<(), (u32, usize)> {
        let mut new = Vec::new();
        flatten(graph, &[], &mut new);
        let mut state = lock(&self.state);
        if new.len() != state.nodes.len() {
            return Err((2, 0));
        }
        for (a, b) in state.nodes.iter().zip(&new) {
            if std::mem::discriminant(&a.action) != std::mem::discriminant(&b.action) {
                return Err((3, b.handle));
            }
            if a.deps != b.deps {
                return Err((2, b.handle));
            }
            let changed = match (&a.action, &b.action) {
                (StreamAction::Kernel(x), StreamAction::Kernel(y)) => {
                    x.function.module.ctx_id != y.function.module.ctx_id
                }
                (StreamAction::MemAlloc(x), StreamAction::MemAlloc(y)) => x.start != y.start,
                (StreamAction::MemFree(x), StreamAction::MemFree(y)) => x != y,
                _ => false,
            };
            if changed {
                return Err((5, b.handle));
            }
        }
        for (a, b) in state.nodes.iter_mut().zip(new) {
            a.action = b.action;
        }
        Ok(())
    }

    pub(crate) fn destroy(&self, m: &Machine) {
        m.execs.remove(self.handle);
        let mut state = lock(&self.state);
        let objects = std::mem::take(&mut state.objects);
        for actor in state.actors.drain(..) {
            m.order.remove_actor(actor);
        }
        drop(state);
        for object in objects {
            object.release(m, 1);
        }
    }
}

/// Begins an operation for every node, each on its chain's actor, and lets the stream follow the
/// ends.
fn begin_all(
    m: &Machine,
    launch: OpId,
    stream: ActorId,
    branches: &[ActorId],
    nodes: &[ExecNode],
) -> Vec<OpId> {
    if !m.config.checks {
        return Vec::new();
    }
    let order = &m.order;
    let start = order.through(launch);
    for &branch in branches {
        order.wait(branch, &start);
    }
    let actor = |chain: usize| {
        if chain == 0 {
            stream
        } else {
            branches[chain - 1]
        }
    };
    let mut ops: Vec<OpId> = Vec::with_capacity(nodes.len());
    for node in nodes {
        for &dep in &node.deps {
            if nodes[dep].chain != node.chain {
                order.wait(actor(node.chain), &order.through(ops[dep]));
            }
        }
        let what = match &node.action {
            StreamAction::Kernel(k) => OpKind::Kernel(k.function.name.clone()),
            other => OpKind::Call(other.node_call()),
        };
        ops.push(order.begin_unhosted(actor(node.chain), what));
    }
    for &branch in branches {
        order.wait_for(stream, branch);
    }
    ops
}
