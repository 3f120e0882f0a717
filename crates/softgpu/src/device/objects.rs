//! Objects of the driver that handles name: their data.
//!
//! A stream holds its part of a capture, a capture its graph, a graph's node an action, an action
//! an event, and a recording of an event the streams that it waits for. So their types stand
//! together, below the machine that keeps a table of each.
//!
//! Elsewhere: what calls do with them, in a file for each kind (`context`, `stream`, `graph`, ...).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::Instant;

use fercuda_cuda_sys::types::{CUgraphEdgeData, CUgraphNode, CUhostFn, CUmemPoolProps, CUresult};
use rustc_hash::FxHashMap;

use super::board::SharedEvent;
use super::heap::{BlockHeap, PhysicalBudget};
use super::{CuResult, err};
use crate::exec::{CompiledModule, ImageBinding, KernelHeap, Loaded, ReferenceKind};
use crate::mem::{Backing, DriverCallSite};
use crate::order::{ActorId, OpId, OrderSnapshot};

/// Whether a context can still be used; shared with the threads of its streams.
#[derive(Debug, Default)]
pub(crate) struct Health {
    pub(super) sticky: AtomicU32,
    pub(super) dead: AtomicBool,
    /// Set with the first error: kernels that run then are ended, as on hardware, lest they wait
    /// for the failed one.
    pub(super) lost: Arc<AtomicBool>,
}

impl Health {
    /// Makes `error` the result of every later call; the first error stays.
    pub(crate) fn fail(&self, error: CUresult) {
        self.sticky
            .compare_exchange(0, error.0, Ordering::AcqRel, Ordering::Acquire)
            .ok();
        self.lost.store(true, Ordering::Release);
    }

    /// The flag by which running kernels learn that the context has failed.
    pub(crate) fn lost(&self) -> Arc<AtomicBool> {
        self.lost.clone()
    }

    pub(crate) fn check(&self) -> CuResult {
        if self.dead.load(Ordering::Acquire) {
            return Err(err::CONTEXT_IS_DESTROYED);
        }
        match self.sticky.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
}

pub(crate) struct SoftContext {
    pub(crate) handle: usize,
    pub(crate) id: u64,
    pub(crate) device: u32,
    pub(crate) primary: bool,
    /// How often it was created or attached to, less how often it was detached from.
    pub(crate) attached: AtomicU32,
    pub(crate) flags: AtomicU32,
    pub(crate) health: Arc<Health>,
    /// Also the order of submission: held while an operation is enqueued.
    pub(crate) streams: Mutex<Vec<Arc<SoftStream>>>,
    pub(super) legacy: OnceLock<Arc<SoftStream>>,
    pub(super) per_thread: Mutex<FxHashMap<ThreadId, Arc<SoftStream>>>,
    /// Devices with memory made accessible by `cuCtxEnablePeerAccess`.
    pub(crate) peers: Mutex<BTreeSet<u32>>,
    pub(super) limits: Mutex<FxHashMap<u32, usize>>,
    pub(crate) cache_config: AtomicU32,
    pub(crate) shared_config: AtomicU32,
    pub(crate) modules: Mutex<Vec<usize>>,
    pub(crate) events: Mutex<BTreeSet<usize>>,
    /// What kernels allocate from, made when the first is launched that does.
    pub(super) heap: Mutex<Option<Arc<KernelHeap>>>,
}

/// The state of a device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    /// Created by the first retain, and the same from then on.
    pub(crate) handle: Option<usize>,
    pub(crate) active: Option<Arc<SoftContext>>,
    pub(crate) retained: u32,
    pub(crate) flags: u32,
}

/// How a stream relates to the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Legacy,
    PerThread,
    Blocking,
    NonBlocking,
}

/// What runs on a stream's thread.
pub(crate) type StreamWork = Box<dyn FnOnce(&StreamRun) + Send>;

/// The arguments of work when it runs.
pub(crate) struct StreamRun<'a> {
    pub(crate) op: OpId,
    pub(crate) health: &'a Health,
}

pub(super) struct QueuedOp {
    pub(super) after: Vec<QueueTicket>,
    pub(super) op: OpId,
    /// Runs also in a context that has failed.
    pub(super) always: bool,
    /// `None` keeps the place of work that the submitting thread runs itself.
    pub(super) work: Option<StreamWork>,
}

#[derive(Default)]
pub(super) struct StreamQueue {
    pub(super) ops: VecDeque<QueuedOp>,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    pub(super) closing: bool,
    pub(super) working: bool,
    /// The stream's thread waits for `wake`, which has not been signalled yet.
    pub(super) asleep: bool,
    /// Threads that wait for `done`.
    pub(super) waiting: u32,
}

pub(crate) struct SoftStream {
    pub(crate) handle: usize,
    pub(crate) id: u64,
    pub(crate) ctx_id: u64,
    pub(crate) ctx_handle: usize,
    pub(crate) device: u32,
    pub(crate) kind: StreamKind,
    pub(crate) priority: AtomicI32,
    pub(crate) name: String,
    pub(crate) actor: ActorId,
    pub(crate) health: Arc<Health>,
    pub(crate) capture: Mutex<Option<Captured>>,
    pub(crate) sync_policy: AtomicU64,
    pub(super) queue: Mutex<StreamQueue>,
    pub(super) wake: Condvar,
    pub(super) done: Condvar,
}

/// A place in a stream's queue.
#[derive(Clone)]
pub(crate) struct QueueTicket {
    pub(crate) stream: Arc<SoftStream>,
    pub(crate) seq: u64,
}

/// One recording of an event. Waiters hold it, so recording again does not move them.
#[derive(Debug)]
pub(crate) struct EventRecord {
    pub(crate) tickets: Vec<QueueTicket>,
    pub(crate) snapshot: OrderSnapshot,
    /// Nanoseconds since the machine's epoch, the latest of the stamps; 0 before.
    pub(super) stamp: Arc<AtomicU64>,
    /// The recording is another process's.
    pub(crate) foreign: Option<ForeignRecording>,
}

/// A recording that another process made, by its number.
#[derive(Debug, Clone)]
pub(crate) struct ForeignRecording {
    pub(crate) event: Arc<SharedEvent>,
    pub(crate) number: u64,
}

#[derive(Default)]
pub(super) struct EventState {
    pub(super) record: Option<Arc<EventRecord>>,
    pub(super) captured: Option<CapturedEvent>,
}

pub(crate) struct SoftEvent {
    pub(crate) handle: usize,
    pub(crate) flags: u32,
    pub(crate) ctx_id: u64,
    pub(crate) ctx_handle: usize,
    pub(super) state: Mutex<EventState>,
    /// Set for events that other processes may open, and for opened ones.
    pub(crate) shared: Mutex<Option<Arc<SharedEvent>>>,
    pub(crate) imported: bool,
}

pub(super) type Deps = Vec<(NodeId, CUgraphEdgeData)>;

pub(crate) struct CaptureSession {
    pub(crate) id: u64,
    pub(super) mode: u32,
    pub(super) thread: ThreadId,
    pub(super) ctx_id: u64,
    pub(super) origin: Weak<SoftStream>,
    pub(crate) graph: Arc<SoftGraph>,
    /// The graph was the client's before, and stays so.
    pub(super) borrowed: bool,
    pub(super) lost: AtomicBool,
    pub(super) streams: Mutex<Vec<Weak<SoftStream>>>,
    /// The last nodes of streams that took part and were destroyed.
    pub(crate) ends: Mutex<Vec<NodeId>>,
}

/// A stream's part in a capture.
pub(crate) struct Captured {
    pub(crate) capture: Arc<CaptureSession>,
    pub(super) deps: Deps,
    /// The dependencies that `cuStreamGetCaptureInfo` points to.
    pub(super) shown: (Vec<CUgraphNode>, Vec<CUgraphEdgeData>),
}

/// The state of an event that was recorded in a capture.
#[derive(Clone)]
pub(crate) struct CapturedEvent {
    pub(super) capture: Arc<CaptureSession>,
    pub(super) deps: Deps,
}

#[derive(Default)]
pub(crate) struct Captures {
    pub(super) active: Mutex<Vec<Arc<CaptureSession>>>,
    pub(super) count: AtomicUsize,
}

pub(crate) type NodeId = u64;

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: usize,
    pub(crate) action: StreamAction,
    pub(crate) deps: Vec<(NodeId, CUgraphEdgeData)>,
    /// The node it was cloned from.
    pub(crate) original: Option<usize>,
    pub(crate) ctx_handle: usize,
}

#[derive(Default)]
pub(crate) struct GraphState {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(super) next: NodeId,
    pub(super) objects: Vec<(Arc<UserObject>, u32)>,
    /// Made of it last.
    pub(super) exec: Weak<ExecGraph>,
}

pub(crate) struct SoftGraph {
    pub(crate) handle: usize,
    pub(crate) state: Mutex<GraphState>,
    /// The node of another graph that owns this one.
    pub(crate) is_child: bool,
}

/// Where a node's handle leads.
pub(crate) struct NodeRef {
    pub(crate) graph: Weak<SoftGraph>,
    pub(crate) id: NodeId,
}

/// An object of the program that lives as long as the graphs that use it.
pub(crate) struct UserObject {
    pub(crate) handle: usize,
    pub(super) data: *mut c_void,
    pub(super) destroy: CUhostFn,
    pub(super) references: AtomicU64,
}

// SAFETY: the driver's contract lets the destructor run on any thread; the pointer is only handed
// to it.
unsafe impl Send for UserObject {}
// SAFETY: as above.
unsafe impl Sync for UserObject {}

/// Memory that an allocation node owns: its address is fixed when the node is made.
pub(crate) struct GraphMemory {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) device: u32,
    pub(crate) pool_location: (u32, i32),
    /// From the launch that allocates it to the call that frees it.
    pub(super) taken: AtomicBool,
    /// From the run of its node to the run of what frees it.
    pub(super) live: AtomicBool,
}

#[derive(Clone)]
pub(crate) struct ExecNode {
    /// Of the node in the graph it came from.
    pub(crate) handle: usize,
    pub(crate) action: StreamAction,
    /// Indices of earlier nodes.
    pub(super) deps: Vec<usize>,
    pub(crate) enabled: bool,
    /// Nodes of one chain are ordered by it.
    pub(super) chain: usize,
}

pub(super) struct ExecGraphState {
    pub(super) nodes: Vec<ExecNode>,
    pub(super) chains: usize,
    /// The checks' actors of the chains; the first is the stream's.
    pub(super) actors: Vec<ActorId>,
    pub(super) last: Option<QueueTicket>,
    pub(super) objects: Vec<Arc<UserObject>>,
}

pub(crate) struct ExecGraph {
    pub(crate) handle: usize,
    pub(crate) flags: u64,
    pub(super) state: Mutex<ExecGraphState>,
}

/// An action of a stream or of a graph node.
#[derive(Clone)]
pub(crate) enum StreamAction {
    Kernel(Arc<KernelLaunch>),
    Copy(CopyPlan),
    Fill(FillPlan),
    Host(HostCall),
    MemOps(Arc<Vec<MemOp>>),
    Empty,
    Record(Arc<SoftEvent>),
    Wait(Arc<SoftEvent>),
    Child(Arc<SoftGraph>),
    MemAlloc(Arc<GraphMemory>),
    MemFree(u64),
}

/// A function of the program.
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: CUhostFn,
    pub(crate) data: *mut c_void,
}

// SAFETY: the driver's contract for host functions is that they may be called from any thread.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

/// A write to memory, or a wait for a value in it, in stream order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemOp {
    Write {
        addr: u64,
        value: u64,
        wide: bool,
    },
    Wait {
        addr: u64,
        value: u64,
        wide: bool,
        how: u32,
    },
    Barrier,
}

/// A kernel with everything it needs.
#[derive(Clone)]
pub(crate) struct KernelLaunch {
    pub(crate) function: Arc<SoftFunction>,
    /// The handle the client launched, a function's or a kernel's.
    pub(crate) named: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) cooperative: bool,
    /// As the launch asks for them; else the kernel says.
    pub(crate) cluster: Option<[u32; 3]>,
    /// Zeros: none.
    pub(crate) preferred_cluster: [u32; 3],
    pub(crate) cluster_policy: fercuda_cuda_sys::types::CUclusterSchedulingPolicy,
    pub(crate) priority: i32,
    pub(crate) params: Vec<u8>,
    pub(crate) stack_bytes: u64,
    /// What the module's references stand for.
    pub(crate) references: Arc<FxHashMap<u64, Arc<ImageBinding>>>,
    /// Where each parameter is in `params`, for a client that asks a node.
    pub(crate) pointers: OnceLock<Vec<usize>>,
}

/// One side of a copy: the address of its first byte, and the pitches of rows and slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopySide {
    pub(crate) at: u64,
    pub(crate) pitch: u64,
    pub(crate) slice: u64,
}

/// `depth` slices of `height` rows of `width` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyPlan {
    pub(crate) dst: CopySide,
    pub(crate) src: CopySide,
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    /// The source's bytes, taken when the call was made: rows without gaps.
    pub(crate) staged: Option<Arc<[u8]>>,
}

/// A fill of `height` rows of `width` elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FillPlan {
    pub(crate) dst: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    /// Bytes: 1, 2 or 4.
    pub(crate) element: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

pub(crate) struct SoftModule {
    pub(crate) handle: usize,
    pub(crate) ctx_id: u64,
    pub(crate) ctx_handle: usize,
    pub(crate) device: u32,
    pub(crate) loaded: Arc<Loaded>,
    pub(super) globals: FxHashMap<Arc<str>, (u64, u64)>,
    /// Texture, sampler and surface references with their handles.
    pub(super) references: FxHashMap<Arc<str>, (ReferenceKind, usize)>,
    /// Handles given out, by kernel.
    pub(super) functions: Mutex<FxHashMap<usize, usize>>,
    /// The library it was made for, 0 if none.
    pub(crate) library: usize,
}

/// Settings that `cuFuncSetAttribute` and `cuKernelSetAttribute` change.
#[derive(Debug)]
pub(crate) struct FunctionSettings {
    pub(super) max_dynamic: AtomicI32,
    pub(super) carveout: AtomicI32,
    pub(super) cluster: [AtomicI32; 3],
    pub(super) non_portable: AtomicI32,
    pub(super) policy: AtomicI32,
    pub(crate) cache_config: AtomicU32,
}

impl Default for FunctionSettings {
    fn default() -> Self {
        FunctionSettings {
            max_dynamic: AtomicI32::new(-1),
            carveout: AtomicI32::new(-1),
            cluster: [const { AtomicI32::new(0) }; 3],
            non_portable: AtomicI32::new(0),
            policy: AtomicI32::new(0),
            cache_config: AtomicU32::new(0),
        }
    }
}

/// What the launch functions before `cuLaunchKernel` set one after another.
#[derive(Debug, Clone, Default)]
pub(crate) struct LegacyLaunch {
    /// Threads of a block; `None` before they are set.
    pub(crate) block: Option<[u32; 3]>,
    pub(crate) shared_bytes: u32,
    /// The parameter block as far as it was written.
    pub(crate) params: Vec<u8>,
    /// Its length, as set.
    pub(crate) param_bytes: usize,
}

pub(crate) struct SoftFunction {
    pub(crate) handle: usize,
    pub(crate) module: Arc<SoftModule>,
    pub(crate) index: usize,
    pub(crate) name: Arc<str>,
    pub(crate) c_name: CString,
    pub(crate) settings: FunctionSettings,
    pub(crate) legacy: Mutex<LegacyLaunch>,
}

pub(crate) struct Library {
    pub(crate) handle: usize,
    pub(crate) image: Arc<CompiledModule>,
    pub(super) modules: Mutex<FxHashMap<u64, usize>>,
    pub(super) kernels: OnceLock<Vec<usize>>,
}

/// A kernel of a library, in no particular context.
pub(crate) struct SoftKernel {
    pub(crate) library: usize,
    pub(crate) image: Arc<CompiledModule>,
    pub(crate) index: usize,
    pub(crate) c_name: CString,
    pub(crate) settings: FunctionSettings,
}

/// A block freed on a stream that has not reached the free.
pub(super) struct PendingFree {
    pub(super) stream: u64,
    pub(super) start: u64,
    /// The bytes that the heap holds for it, which may be more than its owner had asked for.
    pub(super) room: u64,
    pub(super) state: Arc<PendingState>,
}

/// What a pending free and the operation that will run it share.
#[derive(Debug, Default)]
pub(super) struct PendingState {
    /// Whether the block has a new owner, or is back in the heap.
    pub(super) taken: AtomicBool,
    /// The free's place in its stream, once it is queued.
    pub(super) ticket: OnceLock<QueueTicket>,
}

pub(crate) struct MemPool {
    pub(crate) handle: usize,
    pub(crate) device: u32,
    pub(crate) heap: BlockHeap,
    pub(crate) props: CUmemPoolProps,
    pub(crate) is_default: bool,
    /// Another process's: pointers can be imported into it, nothing is allocated from it.
    pub(crate) imported: bool,
    pub(super) pending: Mutex<Vec<PendingFree>>,
    pub(super) threshold: AtomicU64,
    pub(super) used: AtomicU64,
    pub(super) used_high: AtomicU64,
    pub(super) reserved_high: AtomicU64,
    pub(super) reuse: [AtomicBool; 3],
}

// SAFETY: the only raw pointer is the Windows attribute in `props`, which is kept for
// `cuMemPoolGet...` and never followed.
unsafe impl Send for MemPool {}
// SAFETY: as above.
unsafe impl Sync for MemPool {}

/// Physical memory that `cuMemCreate` made, or that came from another process.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) backing: Backing,
    pub(crate) size: u64,
    pub(crate) device: u32,
    /// `CUmemAllocationHandleType` asked for.
    pub(crate) handle_types: u32,
    pub(crate) location: (u32, i32),
    pub(crate) compression: u8,
    /// The call that created or imported it.
    pub(crate) made: DriverCallSite,
    /// Handles given out for it: created, imported, retained.
    pub(super) references: Mutex<u32>,
    pub(super) charged: Option<Arc<PhysicalBudget>>,
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(phys) = &self.charged {
            phys.give(self.size);
        }
    }
}

pub(super) struct Mapping {
    pub(super) len: u64,
    pub(super) physical: Arc<Physical>,
    pub(super) handle: usize,
}

#[derive(Default)]
pub(crate) struct Vmm {
    pub(super) reserved: Mutex<BTreeMap<u64, u64>>,
    pub(super) mapped: Mutex<BTreeMap<u64, Mapping>>,
}

/// The client's log buffers and the few options that mean something here.
#[derive(Default)]
pub(crate) struct Jit {
    pub(super) info: Option<(*mut c_char, usize)>,
    pub(super) error: Option<(*mut c_char, usize)>,
    pub(super) verbose: bool,
    pub(super) values: Vec<(u32, *mut *mut c_void)>,
    pub(super) info_len: usize,
    pub(super) error_len: usize,
    pub(super) started: Option<Instant>,
}

pub(crate) struct Link {
    pub(crate) state: Mutex<LinkState>,
}

pub(crate) struct LinkState {
    pub(crate) jit: Jit,
    pub(crate) inputs: Vec<String>,
    /// The output of `cuLinkComplete`; the client reads it until `cuLinkDestroy`.
    pub(crate) output: Option<Box<[u8]>>,
}

// SAFETY: the pointers inside are the client's log buffers, used only in calls on this link, under
// its lock.
unsafe impl Send for LinkState {}
