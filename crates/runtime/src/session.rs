//! Sessions: owners of buffers, each with a stream that orders their work.
//!
//! Invariants: a buffer's handle names one buffer for ever, or nothing. The memory that a session
//! holds is within its limit. Freeing a handle invalidates it at once, and frees the memory behind
//! the last work that was queued with it.
//!
//! Elsewhere: asynchronous jobs (`jobs`), handles (`handles`), the limit (`account`), graphs,
//! expressions and dispatchers (`owned`), teardown (`teardown`).

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};

use bytemuck::Pod;
use fercuda_cuda::{
    Context, DeviceAddr, DeviceBuffer, Event, Function, Image, KernelArg, Module, PhysicalMemory,
    PinnedBuffer, Stream, VirtualRange, destroy_deferred,
};
use fercuda_tensor::{Dtype, Layout};

use crate::account::{SessionAccount, SessionCharge};
use crate::callbacks::{Allocator, SessionAllocator};
use crate::contiguous_runs::ContiguousRuns;
use crate::dispatcher::{DispatchError, DispatchOptions, TaskSet};
use crate::error::{EndReason, Error, Result};
use crate::handles::{HandleId, HandleTable};
use crate::jobs::{Job, SubmissionThread};
use crate::owned::SessionResources;
use crate::runtime::{RuntimeInner, lock};

mod teardown;

use teardown::LastHandle;
pub(crate) use teardown::tear_down_all;

/// Block granularity of the device's pool.
const BLOCK_BYTES: u64 = 512;
/// Maximum number of copies of one call.
const MAX_COPIES: u64 = 1 << 16;

/// Handle of a buffer.
pub type BufferId = HandleId;

/// Options of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionConfig {
    /// Limit of the device memory that it may hold, in bytes; `None` for no limit.
    pub limit_bytes: Option<u64>,
}

/// Kind of a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Regime {
    /// A block of the process's pool.
    Pool,
    /// Physical memory that the driver allocated and mapped for this buffer: whole allocation
    /// granules, which can be shared with other processes.
    Driver,
    /// Managed memory: one address for the host and all devices.
    Managed,
    /// Page-locked host memory.
    Pinned,
    /// Imported memory of another owner.
    Foreign,
    /// SessionMemory from the program's [`Allocator`].
    Callbacks,
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pool => "pool",
            Self::Driver => "driver",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
            Self::Foreign => "foreign",
            Self::Callbacks => "callbacks",
        })
    }
}

/// Type of values in a buffer.
pub trait Element: Pod {
    /// The element type.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {
        $(impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}

elements!(
    f64 => F64, f32 => F32, half::f16 => F16, half::bf16 => Bf16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64
);

/// SessionMemory that one or several handles refer to.
#[derive(Debug)]
pub(crate) struct SessionMemory {
    pub(crate) buffer: DeviceBuffer<u8>,
    bytes: u64,
    regime: Regime,
    charge: Arc<SessionCharge>,
}

impl SessionMemory {
    /// The memory is charged until the driver has it back, even if it outlives its handles.
    fn new(
        buffer: DeviceBuffer<u8>,
        bytes: u64,
        regime: Regime,
        charge: SessionCharge,
    ) -> Arc<Self> {
        let charge = Arc::new(charge);
        buffer.keep_until_returned(charge.clone());
        Arc::new(Self {
            buffer,
            bytes,
            regime,
            charge,
        })
    }
}

impl Drop for SessionMemory {
    fn drop(&mut self) {
        self.charge.note_freed();
    }
}

/// What a handle refers to.
#[derive(Clone, Debug)]
pub(crate) struct BufferEntry {
    pub(crate) memory: Arc<SessionMemory>,
    pub(crate) layout: Layout,
    /// Offset of the first element in the memory, in bytes.
    pub(crate) first: u64,
    exported: bool,
}

/// A buffer's exported address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Address of the first element.
    pub address: DeviceAddr,
    /// Layout of the elements.
    pub layout: Layout,
    /// Kind of the memory.
    pub regime: Regime,
}

/// Argument of a kernel.
#[derive(Clone, Debug)]
pub enum Argument {
    /// The address of a buffer's first element.
    Buffer(BufferId),
    /// A number of 1, 2, 4 or 8 bytes.
    Number(KernelArg<'static>),
    /// A structure, as C lays it out.
    Structure(Arc<[u8]>),
}

impl From<BufferId> for Argument {
    fn from(id: BufferId) -> Self {
        Self::Buffer(id)
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl From<$type> for Argument {
            fn from(number: $type) -> Self {
                Self::Number(KernelArg::number(number))
            }
        })*
    };
}

numbers!(f64 f32 i8 i16 i32 i64 u8 u16 u32 u64);

/// A session. Clones share it; it ends when it is closed, or when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) core: Arc<SessionCore>,
    _last_handle: Arc<LastHandle>,
}

/// State of a session, shared by its clones.
#[derive(Debug)]
pub(crate) struct SessionCore {
    runtime: Arc<RuntimeInner>,
    name: String,
    tenant: Option<u32>,
    process: u32,
    account: Arc<SessionAccount>,
    context: Context,
    stream: Stream,
    phase: Mutex<SessionPhase>,
    has_ended: Condvar,
    submission: Mutex<Option<Arc<SubmissionThread>>>,
    owned: SessionResources,
    allocator: Option<Arc<SessionAllocator>>,
}

#[derive(Debug)]
enum SessionPhase {
    Open(HandleTable<BufferEntry>),
    /// Its jobs are running to completion; only they still have access.
    Draining(HandleTable<BufferEntry>, EndReason),
    /// Its resources are being released.
    Releasing(EndReason),
    Ended(EndReason),
}

impl SessionCore {
    pub(crate) fn open(
        runtime: &Arc<RuntimeInner>,
        number: u16,
        name: &str,
        config: SessionConfig,
        allocator: Option<Arc<dyn Allocator>>,
    ) -> Result<Arc<Self>> {
        let tenant = runtime.tenant(name);
        let _tenant = runtime.act_as(tenant);
        runtime.tell_limit(tenant, config.limit_bytes.unwrap_or(0));
        let context = runtime.context();
        Ok(Arc::new(Self {
            name: name.to_owned(),
            tenant,
            process: std::process::id(),
            account: SessionAccount::new(name, config.limit_bytes),
            stream: Stream::new(&context)?,
            context,
            phase: Mutex::new(SessionPhase::Open(HandleTable::new(number))),
            has_ended: Condvar::new(),
            submission: Mutex::new(None),
            owned: SessionResources::default(),
            allocator: allocator.map(|it| SessionAllocator::new(name, runtime, it)),
            runtime: runtime.clone(),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The kernel for a dispatcher; that of the standard tasks is shared by the runtime's sessions.
    pub(crate) fn task_kernel(
        &self,
        set: &TaskSet,
        options: &DispatchOptions,
    ) -> std::result::Result<Function, DispatchError> {
        set.function_of(&self.runtime.standard_kernels, self.context(), options)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn account(&self) -> &Arc<SessionAccount> {
        &self.account
    }

    pub(crate) fn owned(&self) -> &SessionResources {
        &self.owned
    }

    /// Whether the teardown is complete.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(*lock(&self.phase), SessionPhase::Ended(_))
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(*lock(&self.phase), SessionPhase::Open(_))
    }

    /// Runs work with the session as the calling thread's tenant.
    pub(crate) fn as_tenant<R>(&self, work: impl FnOnce() -> R) -> R {
        let _tenant = self.runtime.act_as(self.tenant);
        work()
    }

    /// Calls `work` with the handle table.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut HandleTable<BufferEntry>) -> Result<R>,
    ) -> Result<R> {
        self.check_process()?;
        match &mut *lock(&self.phase) {
            SessionPhase::Open(table) => work(table),
            SessionPhase::Draining(table, _) if self.is_submission_thread() => work(table),
            SessionPhase::Draining(_, why)
            | SessionPhase::Releasing(why)
            | SessionPhase::Ended(why) => Err(self.ended(*why)),
        }
    }

    /// Calls `work` with the owned resources, unless the session is in teardown, even for its jobs.
    /// The teardown cannot begin during the call.
    pub(crate) fn while_open<R>(&self, work: impl FnOnce(&SessionResources) -> R) -> Result<R> {
        self.check_process()?;
        match &*lock(&self.phase) {
            SessionPhase::Open(_) => Ok(work(&self.owned)),
            SessionPhase::Draining(_, why)
            | SessionPhase::Releasing(why)
            | SessionPhase::Ended(why) => Err(self.ended(*why)),
        }
    }

    fn ended(&self, why: EndReason) -> Error {
        let session = self.name.clone();
        Error::Ended { session, why }
    }

    /// Whether the calling thread is the session's submission thread.
    fn is_submission_thread(&self) -> bool {
        lock(&self.submission)
            .as_ref()
            .is_some_and(|it| it.is_here())
    }

    /// Whether work queued now comes behind everything submitted before.
    pub(crate) fn is_idle(&self) -> bool {
        let submission = lock(&self.submission);
        submission
            .as_ref()
            .is_none_or(|it| it.is_here() || it.has_no_backlog())
    }

    /// Whether all jobs submitted before are complete; a job does not wait for itself.
    fn has_ended_all(&self) -> bool {
        let submission = lock(&self.submission);
        submission
            .as_ref()
            .is_none_or(|it| it.is_here() || it.has_ended_all())
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process != std::process::id() {
            return Err(Error::Forked {
                session: self.name.clone(),
                process: self.process,
            });
        }
        Ok(())
    }

    pub(crate) fn entry(&self, id: BufferId) -> Result<BufferEntry> {
        self.with(|table| Ok(table.get(id)?.clone()))
    }

    // Deferred frees may only wait for a thread to run them, as after a host callback.
    fn charge(&self, bytes: u64) -> Result<SessionCharge> {
        match self.account.charge(bytes) {
            Err(Error::Limit {
                freed_bytes: 1.., ..
            }) => {
                destroy_deferred();
                self.account.charge(bytes)
            }
            answer => answer,
        }
    }

    /// Turns memory of the pool, owned by a part of the session, into a buffer of bytes.
    pub(crate) fn adopt(&self, buffer: DeviceBuffer<u8>) -> Result<BufferId> {
        let bytes = buffer.len() as u64;
        let charge = self.charge(bytes.next_multiple_of(BLOCK_BYTES))?;
        let layout = Layout::contiguous(Dtype::U8, &[bytes])?;
        self.insert(BufferEntry {
            memory: SessionMemory::new(buffer, bytes, Regime::Pool, charge),
            layout,
            first: 0,
            exported: false,
        })
    }

    fn insert(&self, entry: BufferEntry) -> Result<BufferId> {
        // If the insert fails, the entry is dropped outside the lock: a deleter may call this
        // session.
        let _kept = entry.memory.clone();
        self.with(|table| Ok(table.insert(entry)?))
    }

    /// Allocates memory of a kind.
    fn memory(&self, bytes: u64, regime: Regime) -> Result<Arc<SessionMemory>> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let charged = match regime {
            Regime::Pool | Regime::Managed => bytes.next_multiple_of(BLOCK_BYTES),
            Regime::Driver => whole(&self.context, len)? as u64,
            Regime::Pinned | Regime::Foreign => 0,
            Regime::Callbacks => bytes,
        };
        let charge = self.charge(charged)?;
        let refused = |error| self.refused(error);
        let buffer = self.as_tenant(|| match regime {
            Regime::Pool => DeviceBuffer::alloc_ordered(&self.stream, len).map_err(refused),
            Regime::Managed => DeviceBuffer::managed(&self.context, len).map_err(refused),
            Regime::Pinned => PinnedBuffer::new(&self.context, len)
                .and_then(PinnedBuffer::into_device)
                .map_err(refused),
            Regime::Callbacks => self.allocate_from_program(bytes),
            // Foreign memory must be imported, not allocated.
            Regime::Driver | Regime::Foreign => mapped(&self.context, len).map_err(refused),
        })?;
        self.account.update_peak();
        Ok(SessionMemory::new(buffer, bytes, regime, charge))
    }

    /// Allocates memory from the program's allocator.
    fn allocate_from_program(&self, bytes: u64) -> Result<DeviceBuffer<u8>> {
        let allocator = self.allocator.as_ref().ok_or_else(|| Error::NoAllocator {
            session: self.name.clone(),
        })?;
        match bytes {
            0 => Ok(DeviceBuffer::alloc(&self.context, 0)?),
            bytes => allocator.lend(&self.stream, bytes),
        }
    }

    fn refused(&self, error: fercuda_cuda::Error) -> Error {
        match error {
            fercuda_cuda::Error::OutOfMemory(_) => Error::OutOfMemory {
                source: Arc::new(error),
                holders: self.runtime.holders(),
            },
            error => error.into(),
        }
    }

    /// Runs work in the session's order: at once, or behind other work that waits on the host.
    pub(crate) fn in_order<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Stream) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        if self.is_idle() {
            return self.as_tenant(|| work(&self.stream));
        }
        // The work's failure is returned here, and not reported again by the teardown.
        self.submit(|stream| Ok(work(stream)), Ok)?.wait()?
    }

    /// Submits work to the submission thread.
    pub(crate) fn submit<W: Send + 'static, R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Stream) -> Result<W> + Send + 'static,
        finish: impl FnOnce(W) -> Result<R> + Send + 'static,
    ) -> Result<Job<R>> {
        self.with(|_| Ok(()))?;
        let submission = {
            let mut submission = lock(&self.submission);
            match &*submission {
                Some(submission) => submission.clone(),
                None => submission.insert(SubmissionThread::begin(self)?).clone(),
            }
        };
        let core = Arc::downgrade(self);
        submission.submit(
            move |stream| match core.upgrade() {
                Some(core) => core.as_tenant(|| work(stream)),
                None => work(stream),
            },
            finish,
        )
    }
}

/// Size of a physical allocation for this many bytes: whole granules.
fn whole(context: &Context, bytes: usize) -> fercuda_cuda::Result<usize> {
    let granule = PhysicalMemory::granularity_bytes(context)?;
    Ok(bytes
        .checked_next_multiple_of(granule)
        .unwrap_or(usize::MAX / granule * granule))
}

/// Allocates and maps physical memory.
fn mapped(context: &Context, bytes: usize) -> fercuda_cuda::Result<DeviceBuffer<u8>> {
    if bytes == 0 {
        return DeviceBuffer::alloc(context, 0);
    }
    let whole = whole(context, bytes)?;
    let memory = PhysicalMemory::new(context, whole)?;
    let range = VirtualRange::reserve(context, whole)?;
    range.map(0, &memory, &[context.device()])
}

impl Session {
    pub(crate) fn of(core: Arc<SessionCore>) -> Self {
        let _last_handle = Arc::new(LastHandle(core.clone()));
        Self { core, _last_handle }
    }

    /// The session's name, which is also its tenant's.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The stream that orders the session's work. Work that is queued there directly is not ordered
    /// behind jobs that still wait on the host.
    pub fn stream(&self) -> &Stream {
        &self.core.stream
    }

    /// Device memory that it holds, in bytes; blocks are multiples of 512. Freed memory counts as
    /// long as it has another owner ([`Session::free`]).
    pub fn held_bytes(&self) -> u64 {
        self.core.account.held_bytes()
    }

    /// Peak of the held bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.core.account.peak_bytes()
    }

    /// Limit of the held bytes.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.core.account.limit_bytes()
    }

    /// The session's handles, in unspecified order.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn buffers(&self) -> Result<Vec<BufferId>> {
        let ids =
            |table: &mut HandleTable<BufferEntry>| Ok(table.iter().map(|(id, _)| id).collect());
        self.core.with(ids)
    }

    /// Waits for the session's work, and releases all resources. Other clones return
    /// [`Error::Ended`] from now on. If a session's teardown may be waiting for the calling thread
    /// (in a job, in a host callback, and in a deleter of lent memory), this does not wait: a
    /// separate thread tears the session down.
    ///
    /// # Errors
    /// The first error of its work; the session has ended all the same.
    pub fn close(&self) -> Result<()> {
        Self::close_all(std::slice::from_ref(self))
    }

    /// Closes sessions together, the last one first, as [`Session::close`] does. Resident kernels
    /// exit before any of the sessions ends, since another session's work may wait for the whole
    /// device.
    ///
    /// # Errors
    /// The first error of their work; all have ended all the same. [`Error::Forked`], and
    /// none has; [`Error::NoThread`].
    pub fn close_all(sessions: &[Self]) -> Result<()> {
        sessions.iter().try_for_each(|it| it.core.check_process())?;
        let cores: Vec<Arc<SessionCore>> = sessions.iter().map(|it| it.core.clone()).collect();
        tear_down_all(&cores, EndReason::Closed)
            .into_iter()
            .collect()
    }

    // ---- buffers ------------------------------------------------------------

    /// Allocates a buffer for the elements of a layout, initially uninitialised.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::OutOfMemory`], with the holders;
    /// [`Error::Overlap`]; [`Error::Allocator`]; [`Error::NoAllocator`]; [`Error::Ended`];
    /// [`Error::Forked`].
    pub fn alloc(&self, layout: Layout, regime: Regime) -> Result<BufferId> {
        self.core.with(|_| Ok(()))?;
        let reach = layout.reach_bytes();
        if layout.may_overlap() {
            return Err(overlap("allocate", &layout));
        }
        // The reach of a layout fits in 63 bits.
        let bytes = (reach.end - reach.start) as u64;
        let memory = self.core.memory(bytes, regime)?;
        self.core.insert(BufferEntry {
            memory,
            layout,
            first: reach.start.unsigned_abs(),
            exported: false,
        })
    }

    /// Allocates a buffer of the pool with this shape and these values. Waits for the copy.
    ///
    /// # Errors
    /// As for [`Session::alloc`] and [`Session::upload`].
    pub fn buffer<T: Element>(&self, shape: &[u64], values: &[T]) -> Result<BufferId> {
        let layout = Layout::contiguous(T::DTYPE, shape)?;
        let id = self.alloc(layout, Regime::Pool)?;
        let done = self.upload(id, values);
        if done.is_err() {
            self.free(id)?;
        }
        done.map(|()| id)
    }

    /// Invalidates a handle at once, and frees its memory behind the last work that was queued with
    /// it, unless another handle refers to it. Freeing memory of the pool and of an allocator does
    /// not wait; for the other kinds it waits for the work that uses them, and is deferred while a
    /// resident kernel runs on the device ([`Session::dispatcher`]). The session is charged until
    /// then, and for memory of graphs or other owners until they release it.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn free(&self, id: BufferId) -> Result<()> {
        let entry = self.core.with(|table| Ok(table.remove(id)?))?;
        self.core.as_tenant(|| drop(entry));
        Ok(())
    }

    /// Layout of a buffer.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn layout(&self, id: BufferId) -> Result<Layout> {
        Ok(self.core.entry(id)?.layout)
    }

    /// Kind of a buffer's memory.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn regime(&self, id: BufferId) -> Result<Regime> {
        Ok(self.core.entry(id)?.memory.regime)
    }

    /// Whether the buffer's address was exported.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn is_exported(&self, id: BufferId) -> Result<bool> {
        Ok(self.core.entry(id)?.exported)
    }

    /// Creates another handle to the same memory. `view` computes its layout from the buffer's, and
    /// the offset of its first element from the buffer's first one, in bytes. The memory lives
    /// until the last handle to it is gone.
    ///
    /// # Errors
    /// [`Error::Reach`] and [`Error::Alignment`] if the view is not inside the memory or is
    /// misaligned; [`Error::Layout`] from `view`; [`Error::Stale`]; [`Error::Ended`].
    pub fn view(
        &self,
        id: BufferId,
        view: impl FnOnce(&Layout) -> Result<(Layout, i64)>,
    ) -> Result<BufferId> {
        let whole = self.core.entry(id)?;
        let (layout, from) = view(&whole.layout)?;
        let begin = i64::try_from(whole.first).ok();
        let begin = begin.and_then(|first| first.checked_add(from));
        // A view without elements fits anywhere.
        let begin = if layout.is_empty() { Some(0) } else { begin };
        let reach = layout.reach_bytes();
        let reach =
            begin.and_then(|at| Some((at.checked_add(reach.start)?, at.checked_add(reach.end)?)));
        let bytes = whole.memory.bytes;
        let (Some(begin), Some((from, until))) = (begin, reach) else {
            return Err(Error::Reach {
                id: id.to_string(),
                from: i64::MIN,
                until: i64::MAX,
                bytes,
            });
        };
        if begin < 0 || from < 0 || until.unsigned_abs() > bytes || begin.unsigned_abs() > bytes {
            return Err(Error::Reach {
                id: id.to_string(),
                from,
                until,
                bytes,
            });
        }
        let size = layout.dtype().bytes();
        if !begin.unsigned_abs().is_multiple_of(size) {
            return Err(Error::Alignment {
                id: id.to_string(),
                at: begin,
                dtype: layout.dtype(),
                size,
            });
        }
        self.core.insert(BufferEntry {
            layout,
            first: begin.unsigned_abs(),
            ..whole
        })
    }

    /// Exports a buffer's address, for other libraries, and marks the buffer as exported. The
    /// address is valid until the buffer is freed; ordering other libraries' work with the
    /// session's stream is up to the caller.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn export(&self, id: BufferId) -> Result<Exported> {
        self.core.with(|table| {
            let entry = table.get_mut(id)?;
            entry.exported = true;
            let base = entry.memory.buffer.address();
            Ok(Exported {
                address: DeviceAddr(base.0 + entry.first),
                layout: entry.layout,
                regime: entry.memory.regime,
            })
        })
    }

    /// Imports memory of another owner as a buffer of this session. `end` is called once, in any
    /// thread, when the last handle is gone and all work that was queued with the memory is done; a
    /// panic of it is caught.
    ///
    /// # Errors
    /// [`Error::Cuda`] for an address of 0; [`Error::Ended`]. `end` is called then.
    ///
    /// # Safety
    /// From `address` minus the layout's reach before its first element, to its reach behind it,
    /// the session's device can use the memory until `end` is called.
    #[expect(unsafe_code, reason = "only the caller knows that the memory exists")]
    pub unsafe fn import(
        &self,
        address: DeviceAddr,
        layout: Layout,
        end: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<BufferId> {
        let reach = layout.reach_bytes();
        let before = reach.start.unsigned_abs();
        let bytes = (reach.end - reach.start) as u64;
        let begin = DeviceAddr(address.0.saturating_sub(before));
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let buffer = unsafe { DeviceBuffer::foreign(&self.core.context, begin, len, end) }?;
        let charge = self.core.account.charge(0)?;
        let memory = SessionMemory::new(buffer, bytes, Regime::Foreign, charge);
        self.core.insert(BufferEntry {
            memory,
            layout,
            first: before,
            exported: false,
        })
    }

    // ---- copies -------------------------------------------------------------

    /// Copies values into a buffer, in the order of its elements. Waits for the copy.
    ///
    /// # Errors
    /// [`Error::Type`]; [`Error::Length`]; [`Error::Overlap`]; [`Error::Strewn`];
    /// [`Error::Stale`]; [`Error::Cuda`] with the first error of the session's work.
    pub fn upload<T: Element>(&self, id: BufferId, values: &[T]) -> Result<()> {
        self.check_type::<T>("upload to", id)?;
        self.upload_bytes(id, bytemuck::cast_slice(values))
    }

    /// As [`Session::upload`], with the elements' bytes, of whatever type.
    ///
    /// # Errors
    /// As for [`Session::upload`]; [`Error::NotABool`].
    pub fn upload_bytes(&self, id: BufferId, bytes: &[u8]) -> Result<()> {
        let entry = self.target("upload to", id, bytes)?;
        if self.core.is_idle() {
            return self
                .core
                .as_tenant(|| put(&entry, bytes, &self.core.stream));
        }
        self.upload_job(entry, bytes.to_vec())?.wait().map(drop)
    }

    /// As [`Session::upload_bytes`], as a job, which owns the values and returns them.
    ///
    /// # Errors
    /// As for [`Session::upload`]; errors of the work are reported by the job.
    pub fn upload_async(&self, id: BufferId, bytes: Vec<u8>) -> Result<Job<Vec<u8>>> {
        let entry = self.target("upload to", id, &bytes)?;
        self.upload_job(entry, bytes)
    }

    fn upload_job(&self, entry: BufferEntry, bytes: Vec<u8>) -> Result<Job<Vec<u8>>> {
        let work = move |stream: &Stream| {
            if entry.layout.is_contiguous() {
                let mut part = granule(&entry, 0, bytes.len() as u64)?;
                let transfer = part.as_slice_mut().upload(bytes, stream)?;
                return Ok((Some(transfer), Vec::new()));
            }
            put(&entry, &bytes, stream)?;
            Ok((None, bytes))
        };
        self.core.submit(work, |(transfer, bytes)| match transfer {
            Some(transfer) => Ok(transfer.wait()?),
            None => Ok(bytes),
        })
    }

    /// Copies a buffer's values to the host, in the order of its elements. Waits for the session's
    /// work.
    ///
    /// # Errors
    /// [`Error::Type`]; [`Error::Strewn`]; [`Error::Stale`]; [`Error::Cuda`] with the
    /// first error of the session's work.
    pub fn download<T: Element>(&self, id: BufferId) -> Result<Vec<T>> {
        self.check_type::<T>("download", id)?;
        let bytes = self.download_bytes(id)?;
        let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes);
        Ok(values)
    }

    /// As [`Session::download`], as bytes, of whatever type.
    ///
    /// # Errors
    /// As for [`Session::download`].
    pub fn download_bytes(&self, id: BufferId) -> Result<Vec<u8>> {
        let entry = self.core.entry(id)?;
        copies(&entry.layout, &entry.layout)?;
        self.core.in_order(move |stream| get(&entry, stream))
    }

    /// As [`Session::download_bytes`], as a job, which returns the bytes.
    ///
    /// # Errors
    /// As for [`Session::download`]; errors of the work are reported by the job.
    pub fn download_async(&self, id: BufferId) -> Result<Job<Vec<u8>>> {
        let entry = self.core.entry(id)?;
        copies(&entry.layout, &entry.layout)?;
        let work = move |stream: &Stream| {
            if entry.layout.is_contiguous() {
                let part = granule(&entry, 0, entry.layout.bytes())?;
                let host = vec![0; part.len()];
                let transfer = part.as_slice().download(host, stream)?;
                return Ok((Some(transfer), Vec::new()));
            }
            Ok((None, get(&entry, stream)?))
        };
        self.core.submit(work, |(transfer, bytes)| match transfer {
            Some(transfer) => Ok(transfer.wait()?),
            None => Ok(bytes),
        })
    }

    /// Queues a copy of a buffer of `from`, which may be this session or one of another device. It
    /// is ordered behind the work of both sessions, and before later work of both. Does not wait
    /// for the device, but for jobs that wait on the host.
    ///
    /// # Errors
    /// [`Error::Unlike`]; [`Error::Overlap`]; [`Error::Strewn`]; [`Error::Stale`];
    /// [`Error::Ended`]; [`Error::Cuda`].
    pub fn copy(&self, to: BufferId, from: &Session, source: BufferId) -> Result<()> {
        let (target, source) = (self.core.entry(to)?, from.core.entry(source)?);
        let like = |entry: &BufferEntry| (entry.layout.dtype(), entry.layout.shape().to_vec());
        if like(&target) != like(&source) {
            let ((to, to_shape), (from, from_shape)) = (like(&target), like(&source));
            return Err(Error::Unlike {
                from,
                from_shape,
                to,
                to_shape,
            });
        }
        if target.layout.may_overlap() {
            return Err(overlap("copy", &target.layout));
        }
        let runs = copies(&target.layout, &source.layout)?;
        if Arc::ptr_eq(&target.memory, &source.memory) {
            return self.copy_within(&target, &source, &runs);
        }
        let other = from.core.clone();
        if Arc::ptr_eq(&other, &self.core) {
            return self
                .core
                .in_order(move |stream| copy_runs(&target, &source, &runs, stream));
        }
        // Behind earlier work of the other session, also if that waits on the host.
        let given = other.in_order(|stream| Ok(stream.record()?))?;
        self.core.in_order(move |stream| {
            stream.wait_for(&given)?;
            copy_runs(&target, &source, &runs, stream)?;
            // Later work of the other session comes behind the copy.
            Ok(other.stream.wait_for(&stream.record()?)?)
        })
    }

    /// Copies between two parts of one memory, through a temporary buffer, as they may overlap.
    fn copy_within(
        &self,
        target: &BufferEntry,
        source: &BufferEntry,
        runs: &ContiguousRuns,
    ) -> Result<()> {
        let between = self.core.memory(source.layout.bytes(), Regime::Pool)?;
        let (target, source, runs) = (target.clone(), source.clone(), runs.clone());
        self.core.in_order(move |stream| {
            let starts = (0..).map(|number| (number * runs.bytes) as usize);
            let len = runs.bytes as usize;
            for ((_, from), at) in runs.begins().zip(starts.clone()) {
                let mut into = between.buffer.part::<u8>(at, len)?;
                into.copy_from(granule(&source, from, runs.bytes)?.as_slice(), stream)?;
            }
            for ((to, _), at) in runs.begins().zip(starts) {
                let part = between.buffer.part::<u8>(at, len)?;
                let mut into = granule(&target, to, runs.bytes)?;
                into.copy_from(part.as_slice(), stream)?;
            }
            Ok(())
        })
    }

    /// Queues a fill of all bytes of a buffer with `byte`.
    ///
    /// # Errors
    /// [`Error::Strewn`]; [`Error::Stale`]; [`Error::Ended`]; [`Error::Cuda`].
    pub fn fill_bytes(&self, id: BufferId, byte: u8) -> Result<()> {
        let entry = self.core.entry(id)?;
        let runs = copies(&entry.layout, &entry.layout)?;
        self.core.in_order(move |stream| {
            for (at, _) in runs.begins() {
                granule(&entry, at, runs.bytes)?.fill_bytes(byte, stream)?;
            }
            Ok(())
        })
    }

    /// A buffer's memory from its first element on, for the caller's own work in the session's
    /// stream or another. It lives until the returned buffer and the last handle are gone. As with
    /// all parts of one memory, concurrent work on two of them is a data race.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn memory(&self, id: BufferId) -> Result<DeviceBuffer<u8>> {
        part(&self.core.entry(id)?)
    }

    /// Loads a module into the session's context, with the session as tenant of the driver's
    /// memory.
    ///
    /// # Errors
    /// [`Error::Cuda`], with the compiler's log; [`Error::Ended`]; [`Error::Forked`].
    pub fn load(&self, image: &Image<'_>) -> Result<Module> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        let load = || Module::load(&self.core.context, image);
        Ok(self.core.as_tenant(load)?)
    }

    /// Submits work to the session as a job: `work` is called with the stream, in the order of
    /// submission, and queues work there. The job is done when all of that is, and returns the
    /// result of `work`.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::Forked`]. Errors of the work are reported by the job.
    pub fn submit<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Stream) -> Result<R> + Send + 'static,
    ) -> Result<Job<R>> {
        self.core.submit(work, Ok)
    }

    /// Records an event behind all submitted work of the session, for other streams to wait for.
    /// Waits only while jobs wait on the host, which are in no stream yet.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::Forked`]; [`Error::Cuda`].
    pub fn record(&self) -> Result<Event> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        self.core.in_order(|stream| Ok(stream.record()?))
    }

    /// Orders the session's later work behind an event.
    ///
    /// # Errors
    /// As for [`Session::record`].
    pub fn wait_for(&self, event: Event) -> Result<()> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        let queue = move |stream: &Stream| Ok(stream.wait_for(&event)?);
        self.core.in_order(queue)
    }

    /// Waits for all submitted work of the session; its jobs are complete on return.
    ///
    /// # Errors
    /// The first error of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.core.with(|_| Ok(()))?;
        if !self.core.has_ended_all() {
            // Jobs complete in order.
            self.core.submit(|_| Ok(()), Ok)?.wait()?;
        }
        Ok(self.core.stream.synchronize()?)
    }

    fn check_type<T: Element>(&self, doing: &'static str, id: BufferId) -> Result<()> {
        let dtype = self.core.entry(id)?.layout.dtype();
        if dtype != T::DTYPE {
            return Err(Error::Type {
                doing,
                id: id.to_string(),
                dtype,
                given: T::DTYPE,
            });
        }
        Ok(())
    }

    /// Looks up a buffer that these bytes can be written to.
    fn target(&self, doing: &'static str, id: BufferId, bytes: &[u8]) -> Result<BufferEntry> {
        let entry = self.core.entry(id)?;
        let layout = &entry.layout;
        if layout.bytes() != bytes.len() as u64 {
            return Err(Error::Length {
                doing,
                id: id.to_string(),
                given: bytes.len() as u64,
                expected: layout.bytes(),
                shape: layout.shape().to_vec(),
                dtype: layout.dtype(),
            });
        }
        if layout.may_overlap() {
            return Err(overlap(doing, layout));
        }
        if layout.dtype() == Dtype::Bool
            && let Some(at) = bytes.iter().position(|byte| *byte > 1)
        {
            let value = bytes[at];
            return Err(Error::NotABool { at, value });
        }
        copies(layout, layout)?;
        Ok(entry)
    }
}

fn overlap(doing: &'static str, layout: &Layout) -> Error {
    Error::Overlap {
        doing,
        shape: layout.shape().to_vec(),
        strides: layout.strides().to_vec(),
    }
}

/// The contiguous runs to copy between two layouts.
fn copies(left: &Layout, right: &Layout) -> Result<ContiguousRuns> {
    let runs = ContiguousRuns::of(*left, *right);
    if runs.count() > MAX_COPIES {
        return Err(Error::Strewn {
            pieces: runs.count(),
            most: MAX_COPIES,
        });
    }
    Ok(runs)
}

/// A buffer's memory from its first element on.
fn part(entry: &BufferEntry) -> Result<DeviceBuffer<u8>> {
    let (first, rest) = (entry.first, entry.memory.bytes - entry.first);
    Ok(entry.memory.buffer.part(first as usize, rest as usize)?)
}

fn copy_runs(
    target: &BufferEntry,
    source: &BufferEntry,
    runs: &ContiguousRuns,
    stream: &Stream,
) -> Result<()> {
    for (to, from) in runs.begins() {
        let part = granule(source, from, runs.bytes)?;
        granule(target, to, runs.bytes)?.copy_from(part.as_slice(), stream)?;
    }
    Ok(())
}

/// The part of a buffer's memory at an offset from its first element.
fn granule(entry: &BufferEntry, at: i64, bytes: u64) -> Result<DeviceBuffer<u8>> {
    let begin = entry.first.wrapping_add_signed(at) as usize;
    Ok(entry.memory.buffer.part(begin, bytes as usize)?)
}

/// The contiguous layout of the elements on the host.
fn beside(layout: &Layout) -> Result<Layout> {
    Ok(Layout::contiguous(layout.dtype(), layout.shape())?)
}

fn put(entry: &BufferEntry, bytes: &[u8], stream: &Stream) -> Result<()> {
    let runs = ContiguousRuns::of(entry.layout, beside(&entry.layout)?);
    for (to, from) in runs.begins() {
        let from = from as usize;
        let mut part = granule(entry, to, runs.bytes)?;
        part.copy_from_host(&bytes[from..from + runs.bytes as usize], stream)?;
    }
    Ok(())
}

fn get(entry: &BufferEntry, stream: &Stream) -> Result<Vec<u8>> {
    let runs = ContiguousRuns::of(entry.layout, beside(&entry.layout)?);
    let mut bytes = vec![0; entry.layout.bytes() as usize];
    for (from, to) in runs.begins() {
        let to = to as usize;
        let part = granule(entry, from, runs.bytes)?;
        part.copy_to_host(&mut bytes[to..to + runs.bytes as usize], stream)?;
    }
    Ok(bytes)
}
