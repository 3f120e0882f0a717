//! Sessions: who owns buffers, and in which order they are worked with.
//!
//! Invariants: a buffer's handle means one buffer for ever, or nothing. What a session
//! holds of a device is within its limit. A handle's end ends the name at once, and
//! the memory behind the last work that was queued with it.
//!
//! Elsewhere: work that the caller does not wait for (`jobs`), handles (`handles`), the limit
//! (`account`), graphs, expressions and dispatchers (`owned`), how a session ends (`ending`).

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};

use bytemuck::Pod;
use fercuda_cuda::{
    Context, DeviceAddr, DeviceBuffer, Event, Function, Image, KernelArg, Module, PhysicalMemory,
    PinnedBuffer, Stream, VirtualRange, destroy_deferred,
};
use fercuda_tensor::{Dtype, Layout};

use crate::account::{Account, Charge};
use crate::callbacks::{Allocator, Lender};
use crate::dispatcher::{DispatchError, DispatchOptions, TaskSet};
use crate::error::{Error, Result, Why};
use crate::handles::{Id, Table};
use crate::jobs::{Clerk, Job};
use crate::machine::{Machine, lock};
use crate::owned::Owned;
use crate::pieces::Pieces;

mod ending;

use ending::LastName;
pub(crate) use ending::end_all;

/// The device's pool gives blocks in multiples of so many bytes.
const BLOCK_BYTES: u64 = 512;
/// One call makes at most so many copies.
const MOST_COPIES: u64 = 1 << 16;

/// A buffer's name.
pub type BufferId = Id;

/// What a session may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionConfig {
    /// What it may hold of the device, in bytes; none for no limit.
    pub limit_bytes: Option<u64>,
}

/// What a buffer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Regime {
    /// A block of the process's pool.
    Pool,
    /// Physical memory of its own that the driver gave and mapped: whole pieces, which can
    /// be handed to other processes.
    Driver,
    /// Managed memory: one address for the host and all devices.
    Managed,
    /// Page-locked memory of the host.
    Pinned,
    /// Somebody else's.
    Foreign,
    /// What an [`Allocator`] of the program's own gives.
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

/// Values that a buffer can hold.
pub trait Element: Pod {
    /// Their type.
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

/// Memory that one or several handles lead to.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) buffer: DeviceBuffer<u8>,
    bytes: u64,
    regime: Regime,
    charge: Arc<Charge>,
}

impl Memory {
    /// It is charged until the driver has it back, whoever holds it beside its handles.
    fn new(buffer: DeviceBuffer<u8>, bytes: u64, regime: Regime, charge: Charge) -> Arc<Self> {
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

impl Drop for Memory {
    fn drop(&mut self) {
        self.charge.note_freed();
    }
}

/// What a handle means.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) memory: Arc<Memory>,
    pub(crate) layout: Layout,
    /// Where its first element lies in the memory.
    pub(crate) first: u64,
    exported: bool,
}

/// A buffer's address, as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Where its first element lies.
    pub address: DeviceAddr,
    /// Where its elements lie from there on.
    pub layout: Layout,
    /// What its memory is.
    pub regime: Regime,
}

/// What a kernel is given.
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

/// A session. Cloning gives another name for it; it ends when it is closed, or with the
/// last name.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) core: Arc<Core>,
    _name: Arc<LastName>,
}

/// What a session is.
#[derive(Debug)]
pub(crate) struct Core {
    machine: Arc<Machine>,
    name: String,
    tenant: Option<u32>,
    process: u32,
    account: Arc<Account>,
    context: Context,
    stream: Stream,
    table: Mutex<Names>,
    has_ended: Condvar,
    clerk: Mutex<Option<Arc<Clerk>>>,
    owned: Owned,
    lender: Option<Arc<Lender>>,
}

#[derive(Debug)]
enum Names {
    Open(Table<Entry>),
    /// Its jobs are being done; they alone see what there is.
    Ending(Table<Entry>, Why),
    /// What it had is being given back.
    Leaving(Why),
    Ended(Why),
}

impl Core {
    pub(crate) fn open(
        machine: &Arc<Machine>,
        number: u16,
        name: &str,
        config: SessionConfig,
        allocator: Option<Arc<dyn Allocator>>,
    ) -> Result<Arc<Self>> {
        let tenant = machine.tenant(name);
        let _acting = machine.act_as(tenant);
        machine.tell_limit(tenant, config.limit_bytes.unwrap_or(0));
        let context = machine.context();
        Ok(Arc::new(Self {
            name: name.to_owned(),
            tenant,
            process: std::process::id(),
            account: Account::new(name, config.limit_bytes),
            stream: Stream::new(&context)?,
            context,
            table: Mutex::new(Names::Open(Table::new(number))),
            has_ended: Condvar::new(),
            clerk: Mutex::new(None),
            owned: Owned::default(),
            lender: allocator.map(|it| Lender::new(name, machine, it)),
            machine: machine.clone(),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The kernel for a dispatcher; that of the standard tasks is the runtime's.
    pub(crate) fn task_kernel(
        &self,
        set: &TaskSet,
        options: &DispatchOptions,
    ) -> std::result::Result<Function, DispatchError> {
        set.function_of(&self.machine.standard, self.context(), options)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(crate) fn owned(&self) -> &Owned {
        &self.owned
    }

    /// Whether there is nothing left of it.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(*lock(&self.table), Names::Ended(_))
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(*lock(&self.table), Names::Open(_))
    }

    /// Runs work in whose calls the session is the tenant.
    pub(crate) fn acting<R>(&self, work: impl FnOnce() -> R) -> R {
        let _acting = self.machine.act_as(self.tenant);
        work()
    }

    /// With the table of what there is.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Table<Entry>) -> Result<R>) -> Result<R> {
        self.check_process()?;
        match &mut *lock(&self.table) {
            Names::Open(table) => work(table),
            Names::Ending(table, _) if self.is_clerk() => work(table),
            Names::Ending(_, why) | Names::Leaving(why) | Names::Ended(why) => {
                Err(self.ended(*why))
            }
        }
    }

    /// With what it owns, unless it is being ended: then it is not there for its jobs either.
    /// It is not ended in between.
    pub(crate) fn while_open<R>(&self, work: impl FnOnce(&Owned) -> R) -> Result<R> {
        self.check_process()?;
        match &*lock(&self.table) {
            Names::Open(_) => Ok(work(&self.owned)),
            Names::Ending(_, why) | Names::Leaving(why) | Names::Ended(why) => {
                Err(self.ended(*why))
            }
        }
    }

    fn ended(&self, why: Why) -> Error {
        let session = self.name.clone();
        Error::Ended { session, why }
    }

    /// Whether the calling thread is the session's clerk.
    fn is_clerk(&self) -> bool {
        lock(&self.clerk).as_ref().is_some_and(|it| it.is_here())
    }

    /// Whether what is queued now is behind all that was given before.
    pub(crate) fn is_idle(&self) -> bool {
        let clerk = lock(&self.clerk);
        clerk
            .as_ref()
            .is_none_or(|it| it.is_here() || it.has_no_backlog())
    }

    /// Whether all jobs that were given before are over; a job does not wait for itself.
    fn has_ended_all(&self) -> bool {
        let clerk = lock(&self.clerk);
        clerk
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

    pub(crate) fn entry(&self, id: BufferId) -> Result<Entry> {
        self.with(|table| Ok(table.get(id)?.clone()))
    }

    /// What was freed may wait for nothing but that somebody comes by, as after a host callback.
    fn charge(&self, bytes: u64) -> Result<Charge> {
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

    /// Memory of the pool that a part of the session has, as a buffer of bytes.
    pub(crate) fn adopt(&self, buffer: DeviceBuffer<u8>) -> Result<BufferId> {
        let bytes = buffer.len() as u64;
        let charge = self.charge(bytes.next_multiple_of(BLOCK_BYTES))?;
        let layout = Layout::contiguous(Dtype::U8, &[bytes])?;
        self.insert(Entry {
            memory: Memory::new(buffer, bytes, Regime::Pool, charge),
            layout,
            first: 0,
            exported: false,
        })
    }

    fn insert(&self, entry: Entry) -> Result<BufferId> {
        // What finds no place goes outside the lock: who has lent it may call this session.
        let _kept = entry.memory.clone();
        self.with(|table| Ok(table.insert(entry)?))
    }

    /// Memory of a kind.
    fn memory(&self, bytes: u64, regime: Regime) -> Result<Arc<Memory>> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let charged = match regime {
            Regime::Pool | Regime::Managed => bytes.next_multiple_of(BLOCK_BYTES),
            Regime::Driver => whole(&self.context, len)? as u64,
            Regime::Pinned | Regime::Foreign => 0,
            Regime::Callbacks => bytes,
        };
        let charge = self.charge(charged)?;
        let refused = |error| self.refused(error);
        let buffer = self.acting(|| match regime {
            Regime::Pool => DeviceBuffer::alloc_ordered(&self.stream, len).map_err(refused),
            Regime::Managed => DeviceBuffer::managed(&self.context, len).map_err(refused),
            Regime::Pinned => PinnedBuffer::new(&self.context, len)
                .and_then(PinnedBuffer::into_device)
                .map_err(refused),
            Regime::Callbacks => self.lent(bytes),
            // What is imported is made elsewhere.
            Regime::Driver | Regime::Foreign => mapped(&self.context, len).map_err(refused),
        })?;
        self.account.lift_peak();
        Ok(Memory::new(buffer, bytes, regime, charge))
    }

    /// Memory of the program's own allocator.
    fn lent(&self, bytes: u64) -> Result<DeviceBuffer<u8>> {
        let lender = self.lender.as_ref().ok_or_else(|| Error::NoAllocator {
            session: self.name.clone(),
        })?;
        match bytes {
            0 => Ok(DeviceBuffer::alloc(&self.context, 0)?),
            bytes => lender.lend(&self.stream, bytes),
        }
    }

    fn refused(&self, error: fercuda_cuda::Error) -> Error {
        match error {
            fercuda_cuda::Error::OutOfMemory(_) => Error::OutOfMemory {
                source: Arc::new(error),
                holders: self.machine.holders(),
            },
            error => error.into(),
        }
    }

    /// Runs work in the session's order: at once, or if other work waits on the host,
    /// behind that.
    pub(crate) fn in_order<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Stream) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        if self.is_idle() {
            return self.acting(|| work(&self.stream));
        }
        // What it fails with is told here, and not once more when the session ends.
        self.submit(|stream| Ok(work(stream)), Ok)?.wait()?
    }

    /// Gives work to the clerk.
    pub(crate) fn submit<W: Send + 'static, R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Stream) -> Result<W> + Send + 'static,
        finish: impl FnOnce(W) -> Result<R> + Send + 'static,
    ) -> Result<Job<R>> {
        self.with(|_| Ok(()))?;
        let clerk = {
            let mut clerk = lock(&self.clerk);
            match &*clerk {
                Some(clerk) => clerk.clone(),
                None => clerk.insert(Clerk::begin(self)?).clone(),
            }
        };
        let core = Arc::downgrade(self);
        clerk.submit(
            move |stream| match core.upgrade() {
                Some(core) => core.acting(|| work(stream)),
                None => work(stream),
            },
            finish,
        )
    }
}

/// What physical memory for so many bytes has: whole pieces.
fn whole(context: &Context, bytes: usize) -> fercuda_cuda::Result<usize> {
    let piece = PhysicalMemory::granularity_bytes(context)?;
    Ok(bytes
        .checked_next_multiple_of(piece)
        .unwrap_or(usize::MAX / piece * piece))
}

/// Physical memory of its own.
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
    pub(crate) fn of(core: Arc<Core>) -> Self {
        let _name = Arc::new(LastName(core.clone()));
        Self { core, _name }
    }

    /// Its name, which is its tenant's.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The stream in which its work is ordered. Work that is put there directly is not
    /// behind jobs that still wait on the host.
    pub fn stream(&self) -> &Stream {
        &self.core.stream
    }

    /// What it holds of the device, in bytes; blocks are of 512. What was freed is among it
    /// as long as somebody has it ([`Session::free`]).
    pub fn held_bytes(&self) -> u64 {
        self.core.account.held_bytes()
    }

    /// The most that it has held.
    pub fn peak_bytes(&self) -> u64 {
        self.core.account.peak_bytes()
    }

    /// What it may hold.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.core.account.limit_bytes()
    }

    /// The handles that it has, in no order that means anything.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn buffers(&self) -> Result<Vec<BufferId>> {
        let ids = |table: &mut Table<Entry>| Ok(table.iter().map(|(id, _)| id).collect());
        self.core.with(ids)
    }

    /// Ends it, having waited for its work, and gives everything back. Its other names
    /// answer [`Error::Ended`] from now on. Where a session may be waiting for the thread, it
    /// does not wait, and a thread of its own ends the session: in a job, in a host callback,
    /// and where lent memory is given back.
    ///
    /// # Errors
    /// The first error of its work; it has ended all the same.
    pub fn close(&self) -> Result<()> {
        Self::close_all(std::slice::from_ref(self))
    }

    /// Closes sessions together, the last one first, as [`Session::close`] does. Kernels that
    /// stay end before any of the sessions does, since what another has may wait for the whole
    /// device.
    ///
    /// # Errors
    /// The first error of their work; all have ended all the same. [`Error::Forked`], and
    /// none has; [`Error::NoThread`].
    pub fn close_all(sessions: &[Self]) -> Result<()> {
        sessions.iter().try_for_each(|it| it.core.check_process())?;
        let cores: Vec<Arc<Core>> = sessions.iter().map(|it| it.core.clone()).collect();
        end_all(&cores, Why::Closed).into_iter().collect()
    }

    // ---- buffers ------------------------------------------------------------

    /// A buffer for the elements of a layout; what is in it at first is unspecified.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::OutOfMemory`], with who holds what;
    /// [`Error::Overlap`]; [`Error::Allocator`]; [`Error::NoAllocator`]; [`Error::Ended`];
    /// [`Error::Forked`].
    pub fn alloc(&self, layout: Layout, regime: Regime) -> Result<BufferId> {
        self.core.with(|_| Ok(()))?;
        let reach = layout.reach_bytes();
        if layout.may_overlap() {
            return Err(overlap("allocate", &layout));
        }
        // Reach of a layout fits into 63 bits.
        let bytes = (reach.end - reach.start) as u64;
        let memory = self.core.memory(bytes, regime)?;
        self.core.insert(Entry {
            memory,
            layout,
            first: reach.start.unsigned_abs(),
            exported: false,
        })
    }

    /// A buffer of that shape with these values, of the pool. Waits for the copy.
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

    /// Ends a handle at once, and its memory behind the last work that was queued with
    /// it, unless another handle leads there. Memory of the pool and of an allocator is not
    /// waited for; of the other kinds the work that uses it is, and the driver gets those
    /// back when no kernel stays on the device ([`Session::dispatcher`]). The session is
    /// charged until then, and for what graphs or others have of it, until they let it go.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn free(&self, id: BufferId) -> Result<()> {
        let entry = self.core.with(|table| Ok(table.remove(id)?))?;
        self.core.acting(|| drop(entry));
        Ok(())
    }

    /// Where a buffer's elements lie.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn layout(&self, id: BufferId) -> Result<Layout> {
        Ok(self.core.entry(id)?.layout)
    }

    /// What a buffer's memory is.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn regime(&self, id: BufferId) -> Result<Regime> {
        Ok(self.core.entry(id)?.memory.regime)
    }

    /// Whether its address was given out.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn is_exported(&self, id: BufferId) -> Result<bool> {
        Ok(self.core.entry(id)?.exported)
    }

    /// Another handle to the same memory. `view` makes its layout of the buffer's, and
    /// says where its first element lies from the buffer's first one, in bytes. The
    /// memory lives until the last handle to it is gone.
    ///
    /// # Errors
    /// [`Error::Reach`] and [`Error::Alignment`] if it does not lie within;
    /// [`Error::Layout`] from `view`; [`Error::Stale`]; [`Error::Ended`].
    pub fn view(
        &self,
        id: BufferId,
        view: impl FnOnce(&Layout) -> Result<(Layout, i64)>,
    ) -> Result<BufferId> {
        let whole = self.core.entry(id)?;
        let (layout, from) = view(&whole.layout)?;
        let begin = i64::try_from(whole.first).ok();
        let begin = begin.and_then(|first| first.checked_add(from));
        // What has no elements lies anywhere.
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
        self.core.insert(Entry {
            layout,
            first: begin.unsigned_abs(),
            ..whole
        })
    }

    /// A buffer's address, for other libraries; the buffer remembers that it was asked
    /// for. Until it is freed the address is good; what orders their work with the
    /// session's stream is theirs to see to.
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

    /// Somebody else's memory as a buffer of this session. `end` is called once, when the
    /// last handle is gone and no work that was queued with it runs any more, in
    /// whatever thread; a panic of it ends there.
    ///
    /// # Errors
    /// [`Error::Cuda`] for an address of 0; [`Error::Ended`]. `end` is called then.
    ///
    /// # Safety
    /// From `address` less what the layout reaches before its first element, to what it
    /// reaches behind it, the session's device can use the memory until `end` is called.
    #[expect(unsafe_code, reason = "only who lends memory knows that it is there")]
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
        let memory = Memory::new(buffer, bytes, Regime::Foreign, charge);
        self.core.insert(Entry {
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

    /// The same with the elements' bytes, of whatever type.
    ///
    /// # Errors
    /// As for [`Session::upload`]; [`Error::NotABool`].
    pub fn upload_bytes(&self, id: BufferId, bytes: &[u8]) -> Result<()> {
        let entry = self.target("upload to", id, bytes)?;
        if self.core.is_idle() {
            return self.core.acting(|| put(&entry, bytes, &self.core.stream));
        }
        self.upload_job(entry, bytes.to_vec())?.wait().map(drop)
    }

    /// Queues the same: the values are the job's, which gives them back.
    ///
    /// # Errors
    /// As for [`Session::upload`], but for those of the work, which are the job's.
    pub fn upload_async(&self, id: BufferId, bytes: Vec<u8>) -> Result<Job<Vec<u8>>> {
        let entry = self.target("upload to", id, &bytes)?;
        self.upload_job(entry, bytes)
    }

    fn upload_job(&self, entry: Entry, bytes: Vec<u8>) -> Result<Job<Vec<u8>>> {
        let work = move |stream: &Stream| {
            if entry.layout.is_contiguous() {
                let mut part = piece(&entry, 0, bytes.len() as u64)?;
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

    /// A buffer's values, in the order of its elements. Waits for the session's work.
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

    /// The same as bytes, of whatever type.
    ///
    /// # Errors
    /// As for [`Session::download`].
    pub fn download_bytes(&self, id: BufferId) -> Result<Vec<u8>> {
        let entry = self.core.entry(id)?;
        copies(&entry.layout, &entry.layout)?;
        self.core.in_order(move |stream| get(&entry, stream))
    }

    /// Queues the same; the job has the bytes.
    ///
    /// # Errors
    /// As for [`Session::download`], but for those of the work, which are the job's.
    pub fn download_async(&self, id: BufferId) -> Result<Job<Vec<u8>>> {
        let entry = self.core.entry(id)?;
        copies(&entry.layout, &entry.layout)?;
        let work = move |stream: &Stream| {
            if entry.layout.is_contiguous() {
                let part = piece(&entry, 0, entry.layout.bytes())?;
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

    /// Queues a copy of a buffer of `from`, which may be this session or one of another
    /// device, behind the work of both, and the next work of both behind it. The device
    /// is not waited for; jobs that wait on the host are.
    ///
    /// # Errors
    /// [`Error::Unlike`]; [`Error::Overlap`]; [`Error::Strewn`]; [`Error::Stale`];
    /// [`Error::Ended`]; [`Error::Cuda`].
    pub fn copy(&self, to: BufferId, from: &Session, source: BufferId) -> Result<()> {
        let (target, source) = (self.core.entry(to)?, from.core.entry(source)?);
        let like = |entry: &Entry| (entry.layout.dtype(), entry.layout.shape().to_vec());
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
        let pieces = copies(&target.layout, &source.layout)?;
        if Arc::ptr_eq(&target.memory, &source.memory) {
            return self.copy_within(&target, &source, &pieces);
        }
        let other = from.core.clone();
        if Arc::ptr_eq(&other, &self.core) {
            return self
                .core
                .in_order(move |stream| copy_pieces(&target, &source, &pieces, stream));
        }
        // Behind what the other session was given before, also if that waits on the host.
        let given = other.in_order(|stream| Ok(stream.record()?))?;
        self.core.in_order(move |stream| {
            stream.wait_for(&given)?;
            copy_pieces(&target, &source, &pieces, stream)?;
            // And its next work behind the copy.
            Ok(other.stream.wait_for(&stream.record()?)?)
        })
    }

    /// A copy between two parts of one memory, by way of memory between them, as they may
    /// overlap.
    fn copy_within(&self, target: &Entry, source: &Entry, pieces: &Pieces) -> Result<()> {
        let between = self.core.memory(source.layout.bytes(), Regime::Pool)?;
        let (target, source, pieces) = (target.clone(), source.clone(), pieces.clone());
        self.core.in_order(move |stream| {
            let starts = (0..).map(|number| (number * pieces.bytes) as usize);
            let len = pieces.bytes as usize;
            for ((_, from), at) in pieces.begins().zip(starts.clone()) {
                let mut into = between.buffer.part::<u8>(at, len)?;
                into.copy_from(piece(&source, from, pieces.bytes)?.as_slice(), stream)?;
            }
            for ((to, _), at) in pieces.begins().zip(starts) {
                let part = between.buffer.part::<u8>(at, len)?;
                let mut into = piece(&target, to, pieces.bytes)?;
                into.copy_from(part.as_slice(), stream)?;
            }
            Ok(())
        })
    }

    /// Queues that all bytes of a buffer become `byte`.
    ///
    /// # Errors
    /// [`Error::Strewn`]; [`Error::Stale`]; [`Error::Ended`]; [`Error::Cuda`].
    pub fn fill_bytes(&self, id: BufferId, byte: u8) -> Result<()> {
        let entry = self.core.entry(id)?;
        let pieces = copies(&entry.layout, &entry.layout)?;
        self.core.in_order(move |stream| {
            for (at, _) in pieces.begins() {
                piece(&entry, at, pieces.bytes)?.fill_bytes(byte, stream)?;
            }
            Ok(())
        })
    }

    /// A buffer's memory from its first element on, for work of the caller's own in the
    /// session's stream or another. It lives until that and the last handle are gone; as
    /// with all parts of one memory, what two are given to at once can garble values.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::Ended`].
    pub fn memory(&self, id: BufferId) -> Result<DeviceBuffer<u8>> {
        part(&self.core.entry(id)?)
    }

    /// Loads a module into the session's context; what the driver takes for it is the
    /// session's tenant's.
    ///
    /// # Errors
    /// [`Error::Cuda`], with the compiler's log; [`Error::Ended`]; [`Error::Forked`].
    pub fn load(&self, image: &Image<'_>) -> Result<Module> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        let load = || Module::load(&self.core.context, image);
        Ok(self.core.acting(load)?)
    }

    /// Gives work to the session: `work` is called with the stream, in the order in which
    /// work was given, and queues what it likes there. The job is done when all of that
    /// is, and has then what `work` has returned.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::Forked`]. Those of the work are the job's.
    pub fn submit<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Stream) -> Result<R> + Send + 'static,
    ) -> Result<Job<R>> {
        self.core.submit(work, Ok)
    }

    /// An event behind all work that the session was given, for other streams to wait
    /// for. Waits only while jobs wait on the host, which are in no stream yet.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::Forked`]; [`Error::Cuda`].
    pub fn record(&self) -> Result<Event> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        self.core.in_order(|stream| Ok(stream.record()?))
    }

    /// Lets what the session is given from now on wait for an event.
    ///
    /// # Errors
    /// As for [`Session::record`].
    pub fn wait_for(&self, event: Event) -> Result<()> {
        self.core.check_process()?;
        self.core.with(|_| Ok(()))?;
        let queue = move |stream: &Stream| Ok(stream.wait_for(&event)?);
        self.core.in_order(queue)
    }

    /// Waits for all work that the session was given; its jobs are over then, and say so.
    ///
    /// # Errors
    /// The first error of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.core.with(|_| Ok(()))?;
        if !self.core.has_ended_all() {
            // Jobs end in their order.
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

    /// A buffer that such bytes can be written to.
    fn target(&self, doing: &'static str, id: BufferId, bytes: &[u8]) -> Result<Entry> {
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

/// The copies by which elements come from one layout to the other.
fn copies(left: &Layout, right: &Layout) -> Result<Pieces> {
    let pieces = Pieces::of(*left, *right);
    if pieces.count() > MOST_COPIES {
        return Err(Error::Strewn {
            pieces: pieces.count(),
            most: MOST_COPIES,
        });
    }
    Ok(pieces)
}

/// A buffer's memory from its first element on.
fn part(entry: &Entry) -> Result<DeviceBuffer<u8>> {
    let (first, rest) = (entry.first, entry.memory.bytes - entry.first);
    Ok(entry.memory.buffer.part(first as usize, rest as usize)?)
}

fn copy_pieces(target: &Entry, source: &Entry, pieces: &Pieces, stream: &Stream) -> Result<()> {
    for (to, from) in pieces.begins() {
        let part = piece(source, from, pieces.bytes)?;
        piece(target, to, pieces.bytes)?.copy_from(part.as_slice(), stream)?;
    }
    Ok(())
}

/// A piece of a buffer's memory, which lies within it as its layout does.
fn piece(entry: &Entry, at: i64, bytes: u64) -> Result<DeviceBuffer<u8>> {
    let begin = entry.first.wrapping_add_signed(at) as usize;
    Ok(entry.memory.buffer.part(begin, bytes as usize)?)
}

/// The host's elements, side by side.
fn beside(layout: &Layout) -> Result<Layout> {
    Ok(Layout::contiguous(layout.dtype(), layout.shape())?)
}

fn put(entry: &Entry, bytes: &[u8], stream: &Stream) -> Result<()> {
    let pieces = Pieces::of(entry.layout, beside(&entry.layout)?);
    for (to, from) in pieces.begins() {
        let from = from as usize;
        let mut part = piece(entry, to, pieces.bytes)?;
        part.copy_from_host(&bytes[from..from + pieces.bytes as usize], stream)?;
    }
    Ok(())
}

fn get(entry: &Entry, stream: &Stream) -> Result<Vec<u8>> {
    let pieces = Pieces::of(entry.layout, beside(&entry.layout)?);
    let mut bytes = vec![0; entry.layout.bytes() as usize];
    for (from, to) in pieces.begins() {
        let to = to as usize;
        let part = piece(entry, from, pieces.bytes)?;
        part.copy_to_host(&mut bytes[to..to + pieces.bytes as usize], stream)?;
    }
    Ok(bytes)
}
