//! The machine: every device of this process, and a table for each kind of handle.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use fercuda_cuda_sys::types::CUresult;

use super::allocation::Allocation;
use super::config::{Config, LeakPolicy};
use super::handle::{HandleKind, ObjectTable};
use super::leaks::Leaks;
use super::output::say;
use super::report_file::ReportFile;
use super::site::trace_callers;
use super::status::{CuResult, err};
use super::{allocation, board, frees, graph_pool, heap, image_objects, objects};
use crate::check::CheckContext;
use crate::exec::{BindingTable, Executor};
use crate::lock::lock;
use crate::mem::AddressSpace;
use crate::order::{OpId, Order};
use crate::report::{Fault, Finding, FindingKind, FindingSink};

/// One simulated GPU.
pub(crate) struct SoftDevice {
    pub(crate) ordinal: u32,
    pub(crate) phys: Arc<heap::PhysicalBudget>,
    pub(crate) blocks: heap::BlockHeap,
    /// Managed memory, which every device can reach.
    pub(crate) managed_blocks: heap::BlockHeap,
    pub(crate) primary: Mutex<objects::Primary>,
    pub(crate) default_pool: OnceLock<Arc<objects::MemPool>>,
    pub(crate) current_pool: Mutex<Option<Arc<objects::MemPool>>>,
    /// The addresses of allocation nodes.
    pub(crate) graph_blocks: heap::BlockHeap,
    /// The physical memory behind those.
    pub(crate) graph_pool: graph_pool::GraphPool,
    /// Frees that its streams have yet to run.
    pub(crate) frees: frees::QueuedFrees,
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
    /// Receives findings and faults in place of standard error.
    pub(crate) report: Option<Arc<ReportFile>>,
    pub(crate) executor: Arc<Executor>,
    /// The last faults of kernels, oldest first.
    pub(crate) faults: Mutex<Vec<Fault>>,
    pub(crate) devices: Vec<SoftDevice>,
    pub(crate) host_blocks: heap::BlockHeap,
    pub(crate) memory: allocation::AllocationTable,
    pub(crate) vmm: objects::Vmm,
    pub(crate) ipc: board::Ipc,
    pub(crate) captures: objects::Captures,
    pub(crate) contexts: ObjectTable<objects::SoftContext>,
    pub(crate) streams: ObjectTable<objects::SoftStream>,
    pub(crate) events: ObjectTable<objects::SoftEvent>,
    pub(crate) modules: ObjectTable<objects::SoftModule>,
    pub(crate) functions: ObjectTable<objects::SoftFunction>,
    pub(crate) libraries: ObjectTable<objects::Library>,
    pub(crate) kernels: ObjectTable<objects::SoftKernel>,
    pub(crate) graphs: ObjectTable<objects::SoftGraph>,
    pub(crate) nodes: ObjectTable<objects::NodeRef>,
    pub(crate) execs: ObjectTable<objects::ExecGraph>,
    pub(crate) pools: ObjectTable<objects::MemPool>,
    pub(crate) allocations: ObjectTable<objects::Physical>,
    pub(crate) links: ObjectTable<objects::Link>,
    pub(crate) user_objects: ObjectTable<objects::UserObject>,
    pub(crate) arrays: ObjectTable<image_objects::SoftArray>,
    pub(crate) mipmaps: ObjectTable<image_objects::SoftMipmap>,
    pub(crate) textures: ObjectTable<image_objects::SoftTexture>,
    pub(crate) surfaces: ObjectTable<image_objects::SoftSurface>,
    pub(crate) texture_references: ObjectTable<image_objects::TextureReference>,
    pub(crate) surface_references: ObjectTable<image_objects::SurfaceReference>,
    /// What kernels find by the handles of textures and surfaces.
    pub(crate) bindings: Arc<BindingTable>,
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
    m.report_leaks();
    m.print_findings();
    if let Some(report) = &m.report {
        report.write_counts();
    }
    if !m.config.print_findings {
        return;
    }
    let is_counted =
        |it: &&Finding| it.kind != FindingKind::Leak || m.config.leaks == LeakPolicy::Counted;
    let count = lock(&m.printed).iter().filter(is_counted).count();
    if m.report.is_none() {
        let plural = if count == 1 { "" } else { "s" };
        say(&format!("software device: {count} finding{plural}"));
    }
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
        let of_it = |ctx: &Arc<objects::SoftContext>| ctx.device == device.ordinal;
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
        if config.checks && config.leaks != LeakPolicy::Ignored {
            trace_callers();
        }
        let report = config.report_file.as_deref().and_then(open_report);
        let observed = report.clone().filter(|_| config.print_findings);
        let checks = config.checks;
        let all = ((1u64 << devices) - 1) as u32;
        let made: Vec<SoftDevice> = (0..config.devices)
            .map(|ordinal| {
                let phys = Arc::new(heap::PhysicalBudget::new(config.memory_bytes));
                SoftDevice {
                    ordinal,
                    blocks: heap::BlockHeap::new(1 << ordinal, Some(phys.clone()), checks),
                    managed_blocks: heap::BlockHeap::new(all, Some(phys.clone()), checks),
                    graph_blocks: heap::BlockHeap::new(1 << ordinal, None, checks),
                    graph_pool: graph_pool::GraphPool::default(),
                    phys,
                    primary: Mutex::default(),
                    default_pool: OnceLock::new(),
                    current_pool: Mutex::new(None),
                    frees: frees::QueuedFrees::default(),
                    left: AtomicU64::new(match config.lost {
                        Some((lost, after)) if lost == ordinal => after,
                        _ => u64::MAX,
                    }),
                }
            })
            .collect();
        Ok(Machine {
            sink: Arc::new(match observed {
                Some(report) => FindingSink::observed(Box::new(move |it| report.write_running(it))),
                None => FindingSink::new(),
            }),
            report,
            printed: Mutex::default(),
            faults: Mutex::default(),
            executor: Executor::new(config.threads as usize),
            space,
            order: Arc::new(Order::new()),
            devices: made,
            host_blocks: heap::BlockHeap::new(all, None, checks),
            memory: allocation::AllocationTable::default(),
            vmm: objects::Vmm::default(),
            ipc: board::Ipc::default(),
            captures: objects::Captures::default(),
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
            arrays: ObjectTable::new(HandleKind::Array),
            mipmaps: ObjectTable::new(HandleKind::MipmappedArray),
            textures: ObjectTable::new(HandleKind::Texture),
            surfaces: ObjectTable::new(HandleKind::Surface),
            texture_references: ObjectTable::new(HandleKind::TextureReference),
            surface_references: ObjectTable::new(HandleKind::SurfaceReference),
            bindings: Arc::default(),
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
            options: self.config.check_options,
        })
    }

    /// Whether leaks are looked for.
    fn wants_leaks(&self) -> bool {
        self.config.checks && self.config.leaks != LeakPolicy::Ignored
    }

    fn add_blocks(&self, leaks: &mut Leaks, wanted: impl Fn(&Allocation) -> bool) {
        for allocation in self.memory.all().iter().filter(|it| wanted(it)) {
            leaks.add_block(allocation, self.space.find_live(allocation.start));
        }
    }

    /// Adds a finding for each place whose memory goes with a context; `heap` are the addresses
    /// from which its kernels took memory.
    pub(crate) fn report_context_leaks(&self, ctx_id: u64, heap: std::ops::Range<u64>) {
        if !self.wants_leaks() {
            return;
        }
        let mut leaks = Leaks::default();
        self.add_blocks(&mut leaks, |it| it.ctx_id == ctx_id);
        leaks.add_heap(&self.space.live(), heap);
        for leak in leaks.findings("its context ended") {
            self.sink.add(leak);
        }
    }

    /// Adds a finding for each place whose memory the program has left at its end.
    fn report_leaks(&self) {
        if !self.wants_leaks() {
            return;
        }
        let mut leaks = Leaks::default();
        self.add_blocks(&mut leaks, |_| true);
        leaks.add_heap(&self.space.live(), 0..u64::MAX);
        // Physical memory: what has a handle, and what is only mapped any more.
        let mut physical = self.allocations.all();
        for mapping in lock(&self.vmm.mapped).values() {
            if !physical.iter().any(|it| Arc::ptr_eq(it, &mapping.physical)) {
                physical.push(mapping.physical.clone());
            }
        }
        let is_its_own = |it: &&Arc<objects::Physical>| it.made.call == "cuMemCreate";
        for memory in physical.iter().filter(is_its_own) {
            leaks.add(&memory.made, memory.size, None);
        }
        for leak in leaks.findings("the program ended") {
            self.sink.add(leak);
        }
    }

    /// Keeps a fault for the caller, and prints it or appends it to the report file.
    pub(crate) fn keep_fault(&self, fault: &Fault) {
        let report = self.report.as_ref();
        let is_written = report.is_some_and(|report| report.write_fault(fault).is_ok());
        if self.config.print_faults && !is_written {
            say(&fault.to_string());
        }
        let mut faults = lock(&self.faults);
        if faults.len() == FAULTS_KEPT {
            faults.remove(0);
        }
        faults.push(fault.clone());
    }

    /// Prints new findings or appends them to the report file, if they are to be printed.
    pub(crate) fn print_findings(&self) {
        if !self.config.print_findings || self.sink.is_empty() {
            return;
        }
        let mut printed = lock(&self.printed);
        for finding in self.sink.take() {
            let report = self.report.as_ref();
            let is_written = report.is_some_and(|report| report.write_finding(&finding).is_ok());
            let again = printed
                .iter()
                .any(|old| old.kind == finding.kind && old.actor == finding.actor);
            if !again {
                if !is_written {
                    say(&finding.to_string());
                }
                printed.push(finding);
            }
        }
    }
}

/// The report file; if it cannot be written, findings are printed instead.
fn open_report(path: &Path) -> Option<Arc<ReportFile>> {
    // SAFETY: reads a value that the system gave at the start.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // It would append with its owner's rights to what the caller names.
        say("a set-user-ID program prints findings, and writes them to no file");
        return None;
    }
    let opened = ReportFile::open(path);
    let report = opened.map_err(|error| {
        say(&format!(
            "cannot write findings to {}: {error}",
            path.display()
        ));
    });
    report.ok().map(Arc::new)
}

const FAULTS_KEPT: usize = 64;
