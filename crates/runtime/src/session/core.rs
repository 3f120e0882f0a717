//! State of a session, shared by its clones: its memory, its order of work, and its phase.

use std::sync::{Arc, Condvar, Mutex};

use fercuda_cuda::{
    Context, DeviceBuffer, PhysicalMemory, PinnedBuffer, Stream, VirtualRange, destroy_deferred,
};
use fercuda_dispatcher::{DispatchError, DispatchOptions, TaskKernel, TaskSet};
use fercuda_tensor::{Dtype, Layout};

use super::entry::{BufferEntry, BufferId, Regime, SessionMemory};
use crate::account::{LimitExceeded, SessionAccount, SessionCharge};
use crate::callbacks::{MemoryAllocator, SessionAllocator};
use crate::error::{EndReason, Error, Result};
use crate::handles::GenerationalTable;
use crate::jobs::{Job, SubmissionThread};
use crate::lock::lock;
use crate::resources::SessionResources;
use crate::shared_device::SharedDevice;

/// Block granularity of the device's pool.
const BLOCK_BYTES: u64 = 512;

/// Options of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionConfig {
    /// Limit of the device memory that it may hold, in bytes; `None` for no limit.
    pub limit_bytes: Option<u64>,
}

/// State of a session, shared by its clones.
#[derive(Debug)]
pub(crate) struct SessionCore {
    pub(super) device: Arc<SharedDevice>,
    pub(super) name: String,
    pub(super) tenant: Option<u32>,
    pub(super) process: u32,
    pub(super) account: Arc<SessionAccount>,
    pub(super) context: Context,
    pub(super) stream: Stream,
    pub(super) phase: Mutex<SessionPhase>,
    pub(super) has_ended: Condvar,
    pub(super) submission: Mutex<Option<Arc<SubmissionThread>>>,
    pub(super) owned: SessionResources,
    pub(super) allocator: Option<Arc<SessionAllocator>>,
}

#[derive(Debug)]
pub(super) enum SessionPhase {
    Open(GenerationalTable<BufferEntry>),
    /// Its jobs are running to completion; only they still have access.
    Draining(GenerationalTable<BufferEntry>, EndReason),
    /// Its resources are being released.
    Releasing(EndReason),
    Ended(EndReason),
}

impl SessionCore {
    pub(crate) fn open(
        device: &Arc<SharedDevice>,
        number: u16,
        name: &str,
        config: SessionConfig,
        allocator: Option<Arc<dyn MemoryAllocator>>,
    ) -> Result<Arc<Self>> {
        let tenant = device.tenant(name);
        let _tenant = device.act_as(tenant);
        device.tell_limit(tenant, config.limit_bytes.unwrap_or(0));
        let context = device.context();
        Ok(Arc::new(Self {
            name: name.to_owned(),
            tenant,
            process: std::process::id(),
            account: SessionAccount::new(name, config.limit_bytes),
            stream: Stream::new(&context)?,
            context,
            phase: Mutex::new(SessionPhase::Open(GenerationalTable::new(number))),
            has_ended: Condvar::new(),
            submission: Mutex::new(None),
            owned: SessionResources::default(),
            allocator: allocator.map(|it| SessionAllocator::new(name, device, it)),
            device: device.clone(),
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
    ) -> std::result::Result<TaskKernel, DispatchError> {
        set.kernel_of(&self.device.standard_kernels, self.context(), options)
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
        let _tenant = self.device.act_as(self.tenant);
        work()
    }

    /// Calls `work` with the handle table.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut GenerationalTable<BufferEntry>) -> Result<R>,
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
    pub(super) fn has_ended_all(&self) -> bool {
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
            Err(LimitExceeded {
                freed_bytes: 1.., ..
            }) => {
                destroy_deferred();
                Ok(self.account.charge(bytes)?)
            }
            answer => Ok(answer?),
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

    pub(super) fn insert(&self, entry: BufferEntry) -> Result<BufferId> {
        // If the insert fails, the entry is dropped outside the lock: a deleter may call this
        // session.
        let _kept = entry.memory.clone();
        self.with(|table| Ok(table.insert(entry)?))
    }

    /// Allocates memory of a kind.
    pub(super) fn memory(&self, bytes: u64, regime: Regime) -> Result<Arc<SessionMemory>> {
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
                holders: self.device.holders(),
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
                None => submission
                    .insert(SubmissionThread::begin(&self.stream)?)
                    .clone(),
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
