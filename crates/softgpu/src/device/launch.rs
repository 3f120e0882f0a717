//! Actions of streams and graph nodes, and their execution.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fercuda_cuda_sys::types::{CUlimit, CUresult};

use super::attributes;
use super::capture;
use super::objects::{
    CopyPlan, HostCall, KernelLaunch, MemOp, SoftContext, SoftStream, StreamAction, StreamRun,
};
use super::stream::Submission;
use super::{CuResult, Machine, err, lock};
use crate::exec::{DeviceInfo, KernelHeap, LaunchBindings, LaunchSpec};
use crate::order::OpKind;
use crate::report::{Fault, FaultKind};

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of the program from a stream. Meanwhile driver calls of this thread return an
/// error: a function that waited for its own stream would deadlock.
pub(crate) fn call_program(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// Whether a stream's host function is running on this thread.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}

impl HostCall {
    pub(crate) fn run(&self, m: &Machine, running: &StreamRun) {
        // From its start on, a host function may pass on what it has observed: another thread may
        // proceed before the function returns.
        if m.config.checks {
            m.order.tell_host(running.op);
        }
        if let Some(function) = self.function {
            // SAFETY: the program gave this function and its argument to be called here.
            call_program(|| unsafe { function(self.data) });
        }
    }
}

impl MemOp {
    pub(crate) fn check(&self, m: &Machine) -> CuResult {
        match *self {
            MemOp::Barrier => Ok(()),
            MemOp::Write { addr, wide, .. } | MemOp::Wait { addr, wide, .. } => {
                let len = if wide { 8 } else { 4 };
                if !addr.is_multiple_of(len) || !m.memory.covers(addr, len) {
                    Err(err::INVALID_VALUE)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn run(&self, m: &Machine, running: &StreamRun) {
        match *self {
            MemOp::Barrier => {}
            MemOp::Write { addr, value, wide } => {
                if m.config.checks {
                    let snapshot = m.order.through(running.op);
                    lock(&WRITTEN).insert(addr, snapshot);
                    if let Some(shadow) = m.space.shadow() {
                        shadow.mark_initialised(addr, if wide { 8 } else { 4 });
                    }
                }
                // SAFETY: aligned and live when enqueued (`check`); memory of the address space
                // stays mapped.
                unsafe {
                    if wide {
                        (*(addr as *const AtomicU64)).store(value, Ordering::Release);
                    } else {
                        (*(addr as *const AtomicU32)).store(value as u32, Ordering::Release);
                    }
                }
            }
            MemOp::Wait {
                addr,
                value,
                wide,
                how,
            } => {
                let mut spins = 0u32;
                loop {
                    // SAFETY: as for writes.
                    let now = unsafe {
                        if wide {
                            (*(addr as *const AtomicU64)).load(Ordering::Acquire)
                        } else {
                            u64::from((*(addr as *const AtomicU32)).load(Ordering::Acquire))
                        }
                    };
                    let met = match how & 3 {
                        0 if wide => (now.wrapping_sub(value) as i64) >= 0,
                        0 => ((now as u32).wrapping_sub(value as u32) as i32) >= 0,
                        1 => now == value,
                        2 => now & value != 0,
                        _ if wide => !(now | value) != 0,
                        _ => !(now as u32 | value as u32) != 0,
                    };
                    if met || running.health.check().is_err() {
                        break;
                    }
                    spins += 1;
                    if spins < 100 {
                        std::thread::yield_now();
                    } else {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                    }
                }
                if m.config.checks
                    && let Some(snapshot) = lock(&WRITTEN).get(&addr)
                {
                    m.order.wait_late(running.op, snapshot);
                }
            }
        }
    }
}

/// The operation that wrote a word that streams wait for, for the checks.
static WRITTEN: std::sync::Mutex<std::collections::BTreeMap<u64, crate::order::OrderSnapshot>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

impl KernelLaunch {
    /// Checks a launch against the device's limits, in the order that gives the driver's codes.
    pub(crate) fn check(&self) -> CuResult {
        let kernel = self.function.kernel();
        let [x, y, z] = self.block;
        let threads = u64::from(x) * u64::from(y) * u64::from(z);
        if self.grid.contains(&0) || self.block.contains(&0) {
            return Err(err::INVALID_VALUE);
        }
        if self.grid[0] > 0x7fff_ffff
            || self.grid[1] > 65535
            || self.grid[2] > 65535
            || z > 64
            || threads > 1024
        {
            return Err(err::INVALID_VALUE);
        }
        let limit = kernel
            .max_threads
            .map_or(1024, |t| t.iter().map(|&n| u64::from(n.max(1))).product());
        if threads > limit {
            return Err(err::INVALID_VALUE);
        }
        if let Some(required) = kernel.required_threads
            && required.map(|n| n.max(1)) != self.block
        {
            return Err(err::INVALID_VALUE);
        }
        if self.shared_bytes > self.function.dynamic_shared_limit() {
            return Err(err::INVALID_VALUE);
        }
        self.check_cluster()?;
        if self.cooperative {
            let per_sm =
                attributes::blocks_per_multiprocessor(kernel, threads as u32, self.shared_bytes);
            let blocks: u64 = self.grid.iter().map(|&n| u64::from(n)).product();
            if blocks > u64::from(per_sm) * u64::from(attributes::MULTIPROCESSORS) {
                return Err(err::COOPERATIVE_TOO_LARGE);
            }
        }
        Ok(())
    }

    /// The size of clusters that the launch or its kernel asks for; `None` if neither does.
    fn asked_cluster(&self) -> Option<[u32; 3]> {
        self.cluster
            .or(self.function.kernel().required_cluster)
            .or_else(|| self.function.cluster_setting())
    }

    /// Blocks of its clusters along each axis.
    pub(crate) fn effective_cluster(&self) -> [u32; 3] {
        self.asked_cluster().unwrap_or([1; 3])
    }

    /// Whether that was asked for.
    pub(crate) fn is_explicit_cluster(&self) -> bool {
        self.asked_cluster().is_some()
    }

    /// The size of clusters against the kernel's, the grid's and the device's.
    fn check_cluster(&self) -> CuResult {
        let kernel = self.function.kernel();
        if kernel.blocks_are_clusters {
            super::say("not implemented on the software device: .blocksareclusters");
            return Err(err::NOT_SUPPORTED);
        }
        let Some(cluster) = self.asked_cluster() else {
            // `.explicitcluster` without a size leaves it to the launch.
            return match kernel.explicit_cluster {
                true => Err(err::INVALID_CLUSTER),
                false => Ok(()),
            };
        };
        let fixed = kernel.required_cluster;
        if fixed.is_some_and(|required| required != cluster) {
            return Err(err::INVALID_CLUSTER);
        }
        let divides = |axis: usize| self.grid[axis].checked_rem(cluster[axis]) == Some(0);
        if !(0..3).all(divides) {
            return Err(err::INVALID_CLUSTER);
        }
        let blocks: u64 = cluster.iter().map(|&n| u64::from(n)).product();
        let most = kernel.max_cluster_rank.unwrap_or(attributes::MAX_CLUSTER);
        if blocks > u64::from(self.function.largest_cluster().min(most)) {
            return Err(err::INVALID_CLUSTER);
        }
        let preferred = self.preferred_cluster;
        let multiple = |axis: usize| preferred[axis].checked_rem(cluster[axis]) == Some(0);
        if preferred != [0; 3] && !(0..3).all(multiple) {
            return Err(err::INVALID_CLUSTER);
        }
        let threads = self.block.iter().product();
        let fits = attributes::active_clusters(kernel, threads, self.shared_bytes, blocks as u32);
        if blocks > 1 && fits == 0 {
            return Err(err::INVALID_CLUSTER);
        }
        Ok(())
    }

    /// The addresses of the parameters' values, as a node shows them.
    pub(crate) fn pointers(&self) -> &[usize] {
        let base = self.params.as_ptr() as usize;
        self.pointers.get_or_init(|| {
            self.function
                .kernel()
                .params
                .iter()
                .map(|p| base + p.offset as usize)
                .collect()
        })
    }

    /// The heap that the kernel may allocate from, if it allocates at all.
    fn heap(&self, m: &Machine) -> CuResult<Option<Arc<KernelHeap>>> {
        let module = &self.function.module;
        if !module.loaded.image().uses_heap() {
            return Ok(None);
        }
        let ctx = m.contexts.get(module.ctx_handle);
        ctx.map(|ctx| ctx.heap(m)).transpose()
    }

    fn run(&self, m: &Machine, running: &StreamRun) {
        if let Some(report) = &m.report {
            report.count_launch();
        }
        let heap = match self.heap(m) {
            Ok(heap) => heap,
            Err(code) => return running.health.fail(code),
        };
        let spec = LaunchSpec {
            grid: self.grid,
            block: self.block,
            cluster: self.effective_cluster(),
            explicit_cluster: self.is_explicit_cluster(),
            dynamic_shared_bytes: self.shared_bytes,
            params: self.params.clone(),
            device: DeviceInfo {
                ordinal: self.function.module.device,
                multiprocessors: attributes::MULTIPROCESSORS,
                max_shared_bytes: attributes::MAX_SHARED_OPTIN,
                stack_limit_bytes: self.stack_bytes,
            },
            cooperative: self.cooperative,
            space: m.space.clone(),
            checks: m.check(running.op),
            watchdog: m.config.watchdog,
            late_copies: m.config.late_copies,
            print: super::print_sink(),
            heap,
            bindings: LaunchBindings {
                objects: m.bindings.clone(),
                references: self.references.clone(),
            },
            cancel: Some(running.health.lost()),
        };
        if let Err(fault) = m
            .executor
            .run(&self.function.module.loaded, self.function.index, &spec)
        {
            // Before the program can see the error and end.
            m.keep_fault(&fault);
            running.health.fail(code_of(&fault));
        }
    }
}

/// The driver's code for a fault.
fn code_of(fault: &Fault) -> CUresult {
    match fault.kind {
        FaultKind::IllegalAddress(_) => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        FaultKind::Misaligned(_) => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        FaultKind::IllegalInstruction(_) => CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        FaultKind::Assert { .. } => CUresult::CUDA_ERROR_ASSERT,
        FaultKind::Timeout { .. } => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
        FaultKind::StackOverflow { .. } => CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        FaultKind::NotImplemented { .. } => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        FaultKind::Internal => err::UNKNOWN,
        _ => CUresult::CUDA_ERROR_LAUNCH_FAILED,
    }
}

impl StreamAction {
    pub(crate) fn what(&self, call: &'static str) -> OpKind {
        match self {
            StreamAction::Kernel(k) => OpKind::Kernel(k.function.name.clone()),
            _ => OpKind::Call(call),
        }
    }

    /// The name of a node's operation in reports.
    pub(crate) fn node_call(&self) -> &'static str {
        match self {
            StreamAction::Kernel(_) => "kernel node",
            StreamAction::Copy(_) => "memcpy node",
            StreamAction::Fill(_) => "memset node",
            StreamAction::Host(_) => "host node",
            StreamAction::MemOps(_) => "batch memory operation node",
            StreamAction::Empty => "empty node",
            StreamAction::Record(_) => "event record node",
            StreamAction::Wait(_) => "event wait node",
            StreamAction::Child(_) => "child graph node",
            StreamAction::MemAlloc(_) => "memory allocation node",
            StreamAction::MemFree(_) => "memory free node",
        }
    }

    /// Executes it, on a stream's thread.
    pub(crate) fn run(&self, m: &Machine, running: &StreamRun) {
        match self {
            StreamAction::Kernel(kernel) => kernel.run(m, running),
            StreamAction::Copy(copy) => copy.run(m, running),
            StreamAction::Fill(fill) => fill.run(m, running),
            StreamAction::Host(host) => host.run(m, running),
            StreamAction::MemOps(ops) => ops.iter().for_each(|op| op.run(m, running)),
            StreamAction::MemAlloc(memory) => memory.begin(m, running),
            StreamAction::MemFree(addr) => super::graph_memory::end_graph_memory(m, running, *addr),
            // Events and children are resolved when a graph is launched.
            StreamAction::Empty
            | StreamAction::Record(_)
            | StreamAction::Wait(_)
            | StreamAction::Child(_) => {}
        }
    }
}

/// Enqueues an action on a stream, or adds it to the graph that the stream is being captured into.
pub(crate) fn enqueue(
    m: &'static Machine,
    ctx: &SoftContext,
    stream: &Arc<SoftStream>,
    action: StreamAction,
    call: &'static str,
) -> CuResult {
    if capture::add(m, ctx, stream, &action)? {
        return Ok(());
    }
    let submission = Submission {
        what: action.what(call),
        after: Vec::new(),
        always: false,
    };
    stream.submit(m, ctx, submission, move |running| action.run(m, running));
    Ok(())
}

/// Runs an action in stream order and waits for it.
pub(crate) fn run_now(
    m: &'static Machine,
    ctx: &SoftContext,
    stream: &Arc<SoftStream>,
    action: &StreamAction,
    call: &'static str,
) -> CuResult {
    capture::gate(m, ctx, stream)?;
    let submission = Submission {
        what: action.what(call),
        after: Vec::new(),
        always: false,
    };
    stream.run_now(m, ctx, submission, |running| action.run(m, running));
    ctx.health.check()
}

/// Copies with the driver's rules: the program's own memory is read before an asynchronous call
/// returns, and written before it does.
pub(crate) fn copy(
    m: &'static Machine,
    ctx: &SoftContext,
    stream: &Arc<SoftStream>,
    mut plan: CopyPlan,
    wait: bool,
    call: &'static str,
) -> CuResult {
    if plan.is_empty() {
        return Ok(());
    }
    let from_host = plan.is_pageable(m, plan.src);
    let to_host = plan.is_pageable(m, plan.dst);
    if wait {
        let device_only = !from_host
            && !to_host
            && [plan.src, plan.dst]
                .iter()
                .all(|s| m.memory.find(s.at).is_some_and(|a| !a.is_host()));
        // Between device memory the driver does not wait.
        if !device_only {
            return run_now(m, ctx, stream, &StreamAction::Copy(plan), call);
        }
        capture::gate(m, ctx, stream)?;
    }
    if !wait && lock(&stream.capture).is_none() {
        if to_host {
            return run_now(m, ctx, stream, &StreamAction::Copy(plan), call);
        }
        if from_host {
            // SAFETY: the caller of an asynchronous copy promises a readable source.
            unsafe { plan.stage() }
        }
    }
    enqueue(m, ctx, stream, StreamAction::Copy(plan), call)
}

/// Stack bytes that a context's kernels may have.
pub(crate) fn stack_bytes(ctx: &SoftContext) -> u64 {
    // Recursion on hardware is bounded by the configured limit; a generous minimum keeps programs
    // that never set it running.
    ctx.limit(CUlimit::CU_LIMIT_STACK_SIZE)
        .map_or(512 << 10, |n| (n as u64).max(64 << 10))
}
