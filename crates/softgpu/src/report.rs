//! Faults and findings of kernels: a [`Fault`] ends a kernel, after a [`Finding`] it goes on.
//!
//! Invariants: the text of a report is the same in every run of a deterministic program. Findings
//! are deduplicated by (kind, kernel, PTX line): the one of the lowest block and thread, with a
//! count.
//!
//! Elsewhere: finding them ([`crate::check`], [`crate::exec`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::mem::AllocInfo;

/// Findings kept by a sink; more are only counted.
pub const MAX_FINDINGS: usize = 256;

/// A position in a kernel's execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionPoint {
    /// Kernel.
    pub kernel: Arc<str>,
    /// Device function, when not the kernel itself.
    pub function: Option<Arc<str>>,
    /// 1-based line of the PTX; 0 if it was built rather than parsed.
    pub ptx_line: u32,
    /// The instruction's opcode with its modifiers.
    pub opcode: Arc<str>,
    /// Path as the compiler was given it, and line, where `.loc` is given.
    pub source: Option<(Arc<str>, u32)>,
    /// The same of the code of CUDA's headers that was inlined there, if it is such.
    pub inlined: Option<(Arc<str>, u32)>,
    /// Block index.
    pub block: [u32; 3],
    /// Thread index.
    pub thread: [u32; 3],
}

/// The state space of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemSpace {
    /// Device, pinned and managed memory.
    Global,
    /// A block's.
    Shared,
    /// A thread's.
    Local,
    /// Parameters.
    Param,
}

/// The kind of a memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Load.
    Read,
    /// Store.
    Write,
    /// Atomic read-modify-write.
    Atomic,
    /// Asynchronous copy into shared memory.
    AsyncCopy,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Atomic => "atomic",
            AccessKind::AsyncCopy => "asynchronous copy",
        })
    }
}

impl fmt::Display for MemSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemSpace::Global => "global",
            MemSpace::Shared => "shared",
            MemSpace::Local => "local",
            MemSpace::Param => "parameter",
        })
    }
}

/// One access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Its kind.
    pub kind: AccessKind,
    /// Where.
    pub space: MemSpace,
    /// Address; for shared, local and parameter memory an offset.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// Why a kernel stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access to unmapped memory.
    IllegalAddress(Access),
    /// Not a multiple of the access's size.
    Misaligned(Access),
    /// An instruction with invalid operands, or a jump to an invalid target.
    IllegalInstruction(String),
    /// A surface access outside the surface that is to end the kernel: what and where.
    OutsideSurface(String),
    /// `trap`.
    Trap,
    /// `assert` failed.
    Assert {
        /// The expression.
        message: String,
        /// Where, in the source.
        file: String,
        /// 1-based.
        line: u32,
        /// Function.
        function: String,
    },
    /// The watchdog ran out.
    Timeout {
        /// Milliseconds allowed.
        limit_ms: u64,
    },
    /// Deadlock: no thread of a block can make progress.
    Deadlock(String),
    /// An access to the shared memory of a block of the cluster that has ended.
    AbsentPeer {
        /// Its index.
        block: [u32; 3],
        /// Its rank in the cluster.
        rank: u32,
    },
    /// Local memory for calls ran out.
    StackOverflow {
        /// Bytes a thread may have.
        limit: u64,
    },
    /// Valid PTX that this device does not execute.
    NotImplemented {
        /// With modifiers.
        opcode: String,
        /// 1-based.
        line: u32,
    },
    /// The simulator failed, not the program: a defect to report.
    Internal,
}

/// The end of a kernel. A result of the simulated program, not a failure of the simulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Why.
    pub kind: FaultKind,
    /// Where; absent if no thread caused it.
    pub place: Option<ExecutionPoint>,
    /// The allocation at the address, or nearest to it, live or freed.
    pub allocation: Option<Arc<AllocInfo>>,
}

impl FaultKind {
    /// Its class, in a few words.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::IllegalAddress(_) => "illegal address",
            FaultKind::Misaligned(_) => "misaligned address",
            FaultKind::IllegalInstruction(_) => "illegal instruction",
            FaultKind::OutsideSurface(_) => "outside the surface",
            FaultKind::Trap => "trap",
            FaultKind::Assert { .. } => "assertion failed",
            FaultKind::Timeout { .. } => "time-out",
            FaultKind::Deadlock(_) => "deadlock",
            FaultKind::AbsentPeer { .. } => "cluster peer has exited",
            FaultKind::StackOverflow { .. } => "stack overflow",
            FaultKind::NotImplemented { .. } => "not implemented",
            FaultKind::Internal => "internal error",
        }
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FaultKind::IllegalAddress(a) => {
                write!(
                    f,
                    "illegal address: {}-byte {} {} at {:#x}",
                    a.len, a.space, a.kind, a.addr
                )?;
            }
            FaultKind::Misaligned(a) => {
                write!(
                    f,
                    "misaligned address: {}-byte {} {} at {:#x}",
                    a.len, a.space, a.kind, a.addr
                )?;
            }
            FaultKind::IllegalInstruction(why) => write!(f, "illegal instruction: {why}")?,
            FaultKind::OutsideSurface(what) => write!(f, "outside the surface: {what}")?,
            FaultKind::Trap => f.write_str("trap")?,
            FaultKind::Assert {
                message,
                file,
                line,
                function,
            } => {
                write!(f, "{file}:{line}: {function}: assertion `{message}` failed")?;
            }
            FaultKind::Timeout { limit_ms } => {
                write!(
                    f,
                    "the kernel did not end within the watchdog's {limit_ms} ms"
                )?;
                if self.place.is_some() {
                    f.write_str("; its first block that had not ended was here")?;
                }
            }
            FaultKind::Deadlock(why) => write!(f, "deadlock: {why}")?,
            FaultKind::AbsentPeer {
                block: [x, y, z],
                rank,
            } => write!(
                f,
                "cluster peer has exited: block ({x},{y},{z}) of rank {rank}, whose shared memory this \
                 is"
            )?,
            FaultKind::StackOverflow { limit } => {
                write!(
                    f,
                    "stack overflow: calls need more than the {limit} bytes of local memory a thread has"
                )?;
            }
            FaultKind::NotImplemented { opcode, line } => {
                write!(
                    f,
                    "not implemented on the software device: {opcode} at line {line}"
                )?;
            }
            FaultKind::Internal => f.write_str("internal error; please report it")?,
        }
        if let Some(place) = &self.place {
            write!(f, "\n{place}")?;
        }
        if let Some(a) = &self.allocation {
            let addr = match &self.kind {
                FaultKind::IllegalAddress(x) | FaultKind::Misaligned(x) => Some(x.addr),
                _ => None,
            };
            write_allocation(f, a, addr)?;
        }
        Ok(())
    }
}

/// The class of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// Outside every allocation.
    OutOfBounds,
    /// Not a multiple of the access's size.
    Misaligned,
    /// A read of uninitialised bytes.
    Uninitialised,
    /// Inside a freed allocation.
    UseAfterFree,
    /// A data race between two threads of a block or cluster in shared memory.
    SharedRace,
    /// A data race between two threads of a launch in global memory.
    GlobalRace,
    /// Some threads of a block wait at a barrier that others never reach.
    BarrierDivergence,
    /// Shared memory read before the asynchronous copy into it was waited for.
    MissingAsyncWait,
    /// Two operations on device memory that no stream order, event or synchronisation orders.
    StreamHazard,
    /// A read-only load (`ld.global.nc`) of data that the same kernel writes.
    ReadOnlyData,
    /// Atomics of several blocks on one address, one of them with the scope of its block only.
    NarrowScope,
    /// A lane at a warp's instruction, or read by one, that is not among the lanes of its mask.
    WarpMask,
    /// An access to the shared memory of a block of the cluster that may not have begun, or may
    /// have ended.
    AbsentPeer,
    /// A freeing of what is no allocation, or no longer.
    InvalidFree,
    /// A register of a product of four warps (`wgmma`) that is accessed while that is under way.
    MissingProductWait,
    /// A product of four warps that reads registers as they were before a `wgmma.fence` that is
    /// not there.
    MissingProductFence,
    /// `setmaxnreg` for more registers than a block has, or in the wrong direction.
    RegisterFile,
    /// Memory that nothing freed before its context or the program ended; on request only.
    Leak,
    /// The asynchronous proxy accesses what threads have written, with no fence of the proxy
    /// between.
    MissingProxyFence,
    /// Threads wait for a phase of an mbarrier that nothing can end, or arrive more often than it
    /// expects.
    StuckMbarrier,
    /// A copy that its tensor map does not allow, or that lies outside of the tensor.
    TensorMap,
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FindingKind::OutOfBounds => "out of bounds",
            FindingKind::Misaligned => "misaligned",
            FindingKind::Uninitialised => "uninitialised read",
            FindingKind::UseAfterFree => "use after free",
            FindingKind::SharedRace => "shared memory race",
            FindingKind::GlobalRace => "global memory race",
            FindingKind::BarrierDivergence => "barrier divergence",
            FindingKind::MissingAsyncWait => "missing wait for an asynchronous copy",
            FindingKind::StreamHazard => "stream hazard",
            FindingKind::ReadOnlyData => "read-only load of written data",
            FindingKind::NarrowScope => "atomic scope too narrow",
            FindingKind::WarpMask => "wrong warp mask",
            FindingKind::AbsentPeer => "absent cluster peer",
            FindingKind::InvalidFree => "invalid free",
            FindingKind::MissingProductWait => "missing wait for a wgmma",
            FindingKind::MissingProductFence => "missing wgmma.fence",
            FindingKind::RegisterFile => "wrong register count",
            FindingKind::Leak => "leaked memory",
            FindingKind::MissingProxyFence => "missing proxy fence",
            FindingKind::StuckMbarrier => "mbarrier that never completes",
            FindingKind::TensorMap => "misuse of a tensor map",
        })
    }
}

/// The originator of an access: a thread of a kernel or an operation of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingActor {
    /// A thread; the text names the launch if it is another one.
    Thread(Box<ExecutionPoint>, Option<String>),
    /// Such as ``cuMemcpyDtoHAsync_v2, call 3 on stream 2``.
    Operation(String),
}

/// Undefined behaviour that was detected; the kernel went on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Class.
    pub kind: FindingKind,
    /// The access, absent for [`FindingKind::BarrierDivergence`].
    pub access: Option<Access>,
    /// Its originator.
    pub actor: FindingActor,
    /// One line more about this case, or empty.
    pub note: String,
    /// The allocation concerned or nearest.
    pub allocation: Option<Arc<AllocInfo>>,
    /// The other access of a race or hazard, with its originator.
    pub other: Option<(AccessKind, FindingActor)>,
    /// The number of occurrences.
    pub count: u64,
}

impl fmt::Display for ExecutionPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "   kernel: {}", self.kernel)?;
        if let Some(function) = &self.function {
            write!(f, ", in {function}")?;
        }
        if self.ptx_line != 0 {
            write!(f, ", PTX line {}", self.ptx_line)?;
        }
        if !self.opcode.is_empty() {
            write!(f, ": {}", self.opcode)?;
        }
        if let Some(source) = self.source_name() {
            write!(f, "\n   source: {source}")?;
        }
        if let Some(inlined) = &self.inlined {
            write!(f, "\n   inlined: {}", name_and_line(inlined))?;
        }
        let (b, t) = (self.block, self.thread);
        write!(
            f,
            "\n   thread: ({},{},{}) of block ({},{},{})",
            t[0], t[1], t[2], b[0], b[1], b[2]
        )
    }
}

impl ExecutionPoint {
    /// `file.cu:7`, without the folders of the machine that compiled it.
    #[must_use]
    pub fn source_name(&self) -> Option<String> {
        self.source.as_ref().map(name_and_line)
    }
}

fn name_and_line((path, line): &(Arc<str>, u32)) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    format!("{name}:{line}")
}

impl FindingActor {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindingActor::Thread(place, launch) => {
                if let Some(launch) = launch {
                    write!(f, "   launch: {launch}\n{place}")
                } else {
                    write!(f, "{place}")
                }
            }
            FindingActor::Operation(text) => write!(f, "   driver: {text}"),
        }
    }

    pub(crate) fn key(&self) -> (Arc<str>, u32) {
        match self {
            FindingActor::Thread(place, _) => (place.kernel.clone(), place.ptx_line),
            FindingActor::Operation(text) => (text.as_str().into(), 0),
        }
    }

    fn rank(&self) -> ([u32; 3], [u32; 3]) {
        match self {
            FindingActor::Thread(p, _) => (
                [p.block[2], p.block[1], p.block[0]],
                [p.thread[2], p.thread[1], p.thread[0]],
            ),
            FindingActor::Operation(_) => ([0; 3], [0; 3]),
        }
    }
}

fn write_allocation(f: &mut fmt::Formatter<'_>, a: &AllocInfo, addr: Option<u64>) -> fmt::Result {
    write!(f, "\n   memory: ")?;
    if let Some(addr) = addr {
        if addr < a.start {
            write!(f, "{} bytes before ", a.start - addr)?;
        } else if addr >= a.end() {
            write!(f, "{} bytes past the end of ", addr - a.end())?;
        } else {
            write!(f, "byte {} of ", addr - a.start)?;
        }
    }
    write!(f, "{} allocation {}", a.kind, a.id)?;
    if let Some(name) = &a.name {
        write!(f, " `{name}`")?;
    }
    write!(
        f,
        " ({} bytes at {:#x} on device {})",
        a.len, a.start, a.device
    )?;
    write!(f, "\n     made: {}", a.made)?;
    if let Some(freed) = &a.freed {
        write!(f, "\n     freed: {freed}")?;
    }
    Ok(())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(a) = &self.access {
            write!(
                f,
                ": {}-byte {} {} at {:#x}",
                a.len, a.space, a.kind, a.addr
            )?;
        }
        if !self.note.is_empty() {
            write!(
                f,
                "{} {}",
                if self.access.is_some() { "," } else { ":" },
                self.note
            )?;
        }
        writeln!(f)?;
        self.actor.write(f)?;
        if let Some((kind, other)) = &self.other {
            let article = match kind {
                AccessKind::Read | AccessKind::Write => "a",
                AccessKind::Atomic | AccessKind::AsyncCopy => "an",
            };
            write!(f, "\n  against {article} {kind} by\n")?;
            other.write(f)?;
        }
        if let Some(a) = &self.allocation {
            write_allocation(f, a, self.access.map(|x| x.addr))?;
        }
        if self.count > 1 {
            write!(f, "\n   seen {} times", self.count)?;
        }
        Ok(())
    }
}

type FindingKey = (FindingKind, Arc<str>, u32);

#[derive(Debug, Default)]
struct CollectedFindings {
    findings: BTreeMap<FindingKey, Finding>,
    order: Vec<FindingKey>,
    dropped: u64,
}

/// Receives a finding that the sink does not have yet, while its kernel runs.
pub(crate) type FindingObserver = Box<dyn Fn(&Finding) + Send + Sync>;

/// Collects findings. Shared by everything that runs in one process.
#[derive(Default)]
pub struct FindingSink {
    kept: Mutex<CollectedFindings>,
    observer: Option<FindingObserver>,
}

impl fmt::Debug for FindingSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FindingSink")
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

impl FindingSink {
    /// An empty sink.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty sink whose new findings `observer` receives.
    pub(crate) fn observed(observer: FindingObserver) -> Self {
        FindingSink {
            observer: Some(observer),
            ..Self::default()
        }
    }

    /// Adds a finding, or counts it with the one of the same kind, kernel and line.
    pub fn add(&self, finding: Finding) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (kernel, line) = finding.actor.key();
        let key = (finding.kind, kernel, line);
        if let Some(old) = kept.findings.get_mut(&key) {
            let count = old.count + finding.count;
            if finding.actor.rank() < old.actor.rank() {
                *old = finding;
            }
            old.count = count;
            return;
        }
        if kept.findings.len() >= MAX_FINDINGS {
            kept.dropped += 1;
            return;
        }
        kept.order.push(key.clone());
        let observed = self.observer.as_ref().map(|it| (it, finding.clone()));
        kept.findings.insert(key, finding);
        drop(kept);
        if let Some((observer, finding)) = observed {
            observer(&finding);
        }
    }

    /// The number of distinct findings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .order
            .len()
    }

    /// Whether there are no findings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns all findings, sorted by kernel, PTX line and kind.
    #[must_use]
    pub fn take(&self) -> Vec<Finding> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = std::mem::take(&mut *kept);
        let mut all: Vec<(FindingKey, Finding)> = kept.findings.into_iter().collect();
        all.sort_by(|a, b| (&a.0.1, a.0.2, a.0.0).cmp(&(&b.0.1, b.0.2, b.0.0)));
        all.into_iter().map(|e| e.1).collect()
    }
}
