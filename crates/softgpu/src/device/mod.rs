//! Device model: the driver's state between calls.
//!
//! One [`Machine`] per process, created by `cuInit`. Every object with a handle is in a table here.
//! Work runs on streams' threads ([`stream`]); memory is cut by [`heap`] out of [`crate::mem`].
//!
//! Invariant: no lock here is held while work runs or while a host function of the program runs.
//!
//! Elsewhere: the C functions ([`crate::abi`]), executing kernels ([`crate::exec`]).

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda_sys::types::CUresult;

use crate::check::CheckContext;
use crate::exec::{Executor, PrintSink};
use crate::mem::AddressSpace;
use crate::order::{OpId, Order};
use crate::report::{Fault, Finding, FindingSink};

pub(crate) mod attributes;
pub(crate) mod capture;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod event;
pub(crate) mod exec_graph;
pub(crate) mod fatbin;
pub(crate) mod graph;
pub(crate) mod handle;
pub(crate) mod heap;
pub(crate) mod image;
pub(crate) mod ipc;
pub(crate) mod launch;
pub(crate) mod link;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pool;
pub(crate) mod site;
pub(crate) mod stream;
pub(crate) mod vmm;

use config::Config;
use handle::{HandleKind, ObjectTable};

pub(crate) type CuResult<T = ()> = Result<T, CUresult>;

/// The driver's codes, by their short names.
pub(crate) mod err {
    use fercuda_cuda_sys::types::CUresult as C;
    pub(crate) const INVALID_VALUE: C = C::CUDA_ERROR_INVALID_VALUE;
    pub(crate) const OUT_OF_MEMORY: C = C::CUDA_ERROR_OUT_OF_MEMORY;
    pub(crate) const NOT_INITIALIZED: C = C::CUDA_ERROR_NOT_INITIALIZED;
    pub(crate) const INVALID_DEVICE: C = C::CUDA_ERROR_INVALID_DEVICE;
    pub(crate) const INVALID_IMAGE: C = C::CUDA_ERROR_INVALID_IMAGE;
    pub(crate) const INVALID_CONTEXT: C = C::CUDA_ERROR_INVALID_CONTEXT;
    pub(crate) const NO_BINARY_FOR_GPU: C = C::CUDA_ERROR_NO_BINARY_FOR_GPU;
    pub(crate) const INVALID_PTX: C = C::CUDA_ERROR_INVALID_PTX;
    pub(crate) const FILE_NOT_FOUND: C = C::CUDA_ERROR_FILE_NOT_FOUND;
    pub(crate) const OPERATING_SYSTEM: C = C::CUDA_ERROR_OPERATING_SYSTEM;
    pub(crate) const INVALID_HANDLE: C = C::CUDA_ERROR_INVALID_HANDLE;
    pub(crate) const ILLEGAL_STATE: C = C::CUDA_ERROR_ILLEGAL_STATE;
    pub(crate) const NOT_FOUND: C = C::CUDA_ERROR_NOT_FOUND;
    pub(crate) const NOT_READY: C = C::CUDA_ERROR_NOT_READY;
    pub(crate) const PEER_ALREADY_ENABLED: C = C::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    pub(crate) const PEER_NOT_ENABLED: C = C::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    pub(crate) const CONTEXT_IS_DESTROYED: C = C::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    pub(crate) const HOST_ALREADY_REGISTERED: C = C::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pub(crate) const HOST_NOT_REGISTERED: C = C::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    pub(crate) const COOPERATIVE_TOO_LARGE: C = C::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    pub(crate) const INVALID_CLUSTER: C = C::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    pub(crate) const NOT_PERMITTED: C = C::CUDA_ERROR_NOT_PERMITTED;
    pub(crate) const NOT_SUPPORTED: C = C::CUDA_ERROR_NOT_SUPPORTED;
    pub(crate) const CAPTURE_UNSUPPORTED: C = C::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pub(crate) const CAPTURE_INVALIDATED: C = C::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    pub(crate) const CAPTURE_MERGE: C = C::CUDA_ERROR_STREAM_CAPTURE_MERGE;
    pub(crate) const CAPTURE_UNMATCHED: C = C::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    pub(crate) const CAPTURE_UNJOINED: C = C::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    pub(crate) const CAPTURE_ISOLATION: C = C::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    pub(crate) const CAPTURE_IMPLICIT: C = C::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    pub(crate) const CAPTURED_EVENT: C = C::CUDA_ERROR_CAPTURED_EVENT;
    pub(crate) const CAPTURE_WRONG_THREAD: C = C::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    pub(crate) const GRAPH_UPDATE_FAILURE: C = C::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    pub(crate) const UNKNOWN: C = C::CUDA_ERROR_UNKNOWN;
}

/// One simulated GPU.
pub(crate) struct SoftDevice {
    pub(crate) ordinal: u32,
    pub(crate) phys: Arc<heap::PhysicalBudget>,
    pub(crate) blocks: heap::BlockHeap,
    /// Managed memory, which every device can reach.
    pub(crate) managed_blocks: heap::BlockHeap,
    pub(crate) primary: Mutex<context::Primary>,
    pub(crate) default_pool: OnceLock<Arc<pool::MemPool>>,
    pub(crate) current_pool: Mutex<Option<Arc<pool::MemPool>>>,
    pub(crate) graph_blocks: heap::BlockHeap,
    /// Operations left before it is lost; `u64::MAX` if it never is.
    left: AtomicU64,
}

/// The state of the driver in this process.
pub(crate) struct Machine {
    pub(crate) config: Config,
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) order: Arc<Order>,
    pub(crate) sink: Arc<FindingSink>,
    /// Findings already printed on standard error.
    pub(crate) printed: Mutex<Vec<Finding>>,
    pub(crate) executor: Arc<Executor>,
    /// The last faults of kernels, oldest first.
    pub(crate) faults: Mutex<Vec<Fault>>,
    pub(crate) devices: Vec<SoftDevice>,
    pub(crate) host_blocks: heap::BlockHeap,
    pub(crate) memory: memory::AllocationTable,
    pub(crate) vmm: vmm::Vmm,
    pub(crate) ipc: ipc::Ipc,
    pub(crate) captures: capture::Captures,
    pub(crate) contexts: ObjectTable<context::SoftContext>,
    pub(crate) streams: ObjectTable<stream::SoftStream>,
    pub(crate) events: ObjectTable<event::SoftEvent>,
    pub(crate) modules: ObjectTable<module::SoftModule>,
    pub(crate) functions: ObjectTable<module::SoftFunction>,
    pub(crate) libraries: ObjectTable<module::Library>,
    pub(crate) kernels: ObjectTable<module::SoftKernel>,
    pub(crate) graphs: ObjectTable<graph::SoftGraph>,
    pub(crate) nodes: ObjectTable<graph::NodeRef>,
    pub(crate) execs: ObjectTable<exec_graph::ExecGraph>,
    pub(crate) pools: ObjectTable<pool::MemPool>,
    pub(crate) allocations: ObjectTable<vmm::Physical>,
    pub(crate) links: ObjectTable<link::Link>,
    pub(crate) user_objects: ObjectTable<graph::UserObject>,
    next_id: AtomicU64,
    pub(crate) epoch: std::time::Instant,
}

static MACHINE: OnceLock<Result<Machine, CUresult>> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);
static EARLY: Mutex<Option<Config>> = Mutex::new(None);

/// Sets the settings to use instead of the environment's; false after `cuInit`.
pub(crate) fn configure(config: Config) -> bool {
    let mut early = lock(&EARLY);
    if MACHINE.get().is_some() {
        return false;
    }
    *early = Some(config);
    true
}

/// `cuInit`.
pub(crate) fn init() -> CuResult<&'static Machine> {
    if FORKED.load(Ordering::Acquire) {
        return Err(err::NOT_INITIALIZED);
    }
    let made = MACHINE.get_or_init(|| {
        let config = lock(&EARLY).clone().unwrap_or_else(Config::from_env);
        Machine::new(config)
    });
    made.as_ref().map_err(|&e| e)
}

/// The machine, once `cuInit` has been called in this process (and not only in its parent).
pub(crate) fn machine() -> CuResult<&'static Machine> {
    if FORKED.load(Ordering::Acquire) {
        return Err(err::NOT_INITIALIZED);
    }
    match MACHINE.get() {
        Some(made) => made.as_ref().map_err(|&e| e),
        None => Err(err::NOT_INITIALIZED),
    }
}

extern "C" fn forked_child() {
    FORKED.store(true, Ordering::Release);
}

extern "C" fn at_exit() {
    if FORKED.load(Ordering::Acquire) {
        return;
    }
    let Some(Ok(m)) = MACHINE.get() else { return };
    if !m.config.print_findings {
        return;
    }
    m.print_findings();
    let count = lock(&m.printed).len();
    let plural = if count == 1 { "" } else { "s" };
    say(&format!("software device: {count} finding{plural}"));
    if let Some(code) = m.config.exit_code.filter(|_| count > 0) {
        // SAFETY: ends the process at once, after the program's own exit handlers but before the C
        // library writes out what the program has printed, which is therefore done here.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(code)
        }
    }
}

impl Machine {
    /// Marks a device as lost: every context there returns an error from now on, and running work
    /// ends.
    pub(crate) fn lose(&self, device: &SoftDevice) {
        device.left.store(0, Ordering::Release);
        let of_it = |ctx: &Arc<context::SoftContext>| ctx.device == device.ordinal;
        for ctx in self.contexts.all().into_iter().filter(of_it) {
            ctx.health.fail(err::UNKNOWN);
        }
    }

    /// Counts one more operation of a device, which may be the one at which it is lost.
    pub(crate) fn spend(&self, ordinal: u32) {
        let Some(device) = self.devices.get(ordinal as usize) else {
            return;
        };
        let fewer = |left: u64| (left != u64::MAX).then(|| left.saturating_sub(1));
        if device.left.load(Ordering::Relaxed) != u64::MAX
            && device
                .left
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer)
                == Ok(0)
        {
            self.lose(device);
        }
    }

    fn new(config: Config) -> CuResult<Self> {
        let devices = u64::from(config.devices);
        // Addresses: all memory of all devices, again for managed, pinned and quarantined, and room
        // for VMM reservations.
        let space_bytes = (config
            .memory_bytes
            .saturating_mul(devices)
            .saturating_mul(4))
        .clamp(256 << 30, 4 << 40);
        let space = AddressSpace::new(space_bytes, config.checks).map_err(|e| {
            say(&format!("software device: {e}"));
            err::OUT_OF_MEMORY
        })?;
        // SAFETY: registers functions with the C library; both are `extern "C"` and never unwind.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked_child));
            libc::atexit(at_exit);
        }
        let checks = config.checks;
        let all = ((1u64 << devices) - 1) as u32;
        let made: Vec<SoftDevice> = (0..config.devices)
            .map(|ordinal| {
                let phys = Arc::new(heap::PhysicalBudget::new(config.memory_bytes));
                SoftDevice {
                    ordinal,
                    blocks: heap::BlockHeap::new(1 << ordinal, Some(phys.clone()), checks),
                    managed_blocks: heap::BlockHeap::new(all, Some(phys.clone()), checks),
                    graph_blocks: heap::BlockHeap::new(1 << ordinal, Some(phys.clone()), checks),
                    phys,
                    primary: Mutex::default(),
                    default_pool: OnceLock::new(),
                    current_pool: Mutex::new(None),
                    left: AtomicU64::new(match config.lost {
                        Some((lost, after)) if lost == ordinal => after,
                        _ => u64::MAX,
                    }),
                }
            })
            .collect();
        Ok(Machine {
            sink: Arc::new(FindingSink::new()),
            printed: Mutex::default(),
            faults: Mutex::default(),
            executor: Executor::new(config.threads as usize),
            space,
            order: Arc::new(Order::new()),
            devices: made,
            host_blocks: heap::BlockHeap::new(all, None, checks),
            memory: memory::AllocationTable::default(),
            vmm: vmm::Vmm::default(),
            ipc: ipc::Ipc::default(),
            captures: capture::Captures::default(),
            contexts: ObjectTable::new(HandleKind::Context),
            streams: ObjectTable::new(HandleKind::Stream),
            events: ObjectTable::new(HandleKind::Event),
            modules: ObjectTable::new(HandleKind::Module),
            functions: ObjectTable::new(HandleKind::Function),
            libraries: ObjectTable::new(HandleKind::Library),
            kernels: ObjectTable::new(HandleKind::Kernel),
            graphs: ObjectTable::new(HandleKind::Graph),
            nodes: ObjectTable::new(HandleKind::Node),
            execs: ObjectTable::new(HandleKind::GraphExec),
            pools: ObjectTable::new(HandleKind::Pool),
            allocations: ObjectTable::new(HandleKind::Allocation),
            links: ObjectTable::new(HandleKind::Link),
            user_objects: ObjectTable::new(HandleKind::UserObject),
            next_id: AtomicU64::new(1),
            epoch: std::time::Instant::now(),
            config,
        })
    }

    pub(crate) fn device(&self, ordinal: i32) -> CuResult<&SoftDevice> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.devices.get(i))
            .ok_or(err::INVALID_DEVICE)
    }

    pub(crate) fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Bit `d` for every device.
    pub(crate) fn all_devices(&self) -> u32 {
        ((1u64 << self.devices.len()) - 1) as u32
    }

    /// The check context of an operation; `None` with checks off.
    pub(crate) fn check(&self, op: OpId) -> Option<CheckContext> {
        self.config.checks.then(|| CheckContext {
            op,
            order: self.order.clone(),
            sink: self.sink.clone(),
        })
    }

    pub(crate) fn keep_fault(&self, fault: &Fault) {
        let mut faults = lock(&self.faults);
        if faults.len() == FAULTS_KEPT {
            faults.remove(0);
        }
        faults.push(fault.clone());
    }

    /// Prints new findings, if they are to be printed.
    pub(crate) fn print_findings(&self) {
        if !self.config.print_findings || self.sink.is_empty() {
            return;
        }
        let mut printed = lock(&self.printed);
        for finding in self.sink.take() {
            let again = printed
                .iter()
                .any(|old| old.kind == finding.kind && old.actor == finding.actor);
            if !again {
                say(&finding.to_string());
                printed.push(finding);
            }
        }
    }
}

static PRINT: Mutex<Option<PrintSink>> = Mutex::new(None);

pub(crate) fn set_print(sink: Option<PrintSink>) {
    *lock(&PRINT) = sink;
}

/// Where kernels' `printf` goes now.
pub(crate) fn print_sink() -> PrintSink {
    lock(&PRINT)
        .clone()
        .unwrap_or_else(|| Arc::new(print_to_stdout))
}

/// A kernel's output goes where the program's own `printf` output goes.
fn print_to_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    // A closed standard output cannot be reported.
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

const FAULTS_KEPT: usize = 64;

/// Prints one line on standard error, the driver's only means of reporting.
pub(crate) fn say(text: &str) {
    // A closed standard error cannot be reported.
    drop(writeln!(std::io::stderr().lock(), "feRcuda: {text}"));
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
