//! The process's pools, one for each device, and who asked for what.
//!
//! Follow an allocation: a [`Seat`] (one a thread) says which stream and context
//! a handle means; the device's pool answers; the ledger is charged. What no
//! pool can serve is the driver's, and charged as governed.
//!
//! Invariants: a block's note says which cell of the ledger holds its charge,
//! and it is given back there. A stream's number is never given to another
//! stream, though its handle may be. While anything captures, the driver is
//! asked nothing that a capture forbids.
//!
//! Elsewhere: a device's pool (`device`), reuse ([`fercuda_pool`]), events
//! (`clock`), memory (`vmm`, `slabs`), what the driver gives by itself
//! (`governed`), its figures (`reconcile`), ends (`ends`), turns (`lifetimes`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::thread::ThreadId;

use fercuda_cuda_sys::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_ledger::{
    Charge, Device as Row, Event, EventKind, Governed, Ledger, Local, STEP_BYTES, Tenant,
};
use fercuda_pool::{Epoch, Error, Freed, Live, Place, Refused, Request, Span, StreamId, TenantId};
use rustc_hash::FxHashMap;

use crate::clock::{ContextId, DriverClock, Kind, lock, read, write};
use crate::config::Config;
use crate::device::Device;
use crate::governed::{GovernedMemory, Key, Piece};
use crate::lifetimes::{Lifetimes, Turn};
use crate::memory_pools::{Numbers, PoolNumber, Served};
use crate::sharing::{Sharing, Unshared};
use crate::vmm::thread_capture_mode;

/// Devices that have pools; memory of further ones is the driver's.
pub(crate) const DEVICES: usize = 16;
/// Blocks begin at multiples of so much, as frameworks expect.
const ALIGN_BYTES: u64 = 512;
/// Numbers of buffers that a thread takes at a time.
const BUFFERS: u64 = 1024;
/// Default streams of ended threads that may wait to be retired.
const ENDED: usize = 64;
/// The first number of streams that have no handle of their own: default
/// streams, of contexts and of threads.
pub const UNNAMED: u64 = 1 << 63;

/// Answers after which a context answers nothing else.
const FATAL: [CUresult; 11] = [
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
];

/// A wait of the host that goes on: what each region said of its beginning.
#[derive(Debug)]
pub struct Waiting(Vec<(u32, [Begun; 2])>);

type Begun = Vec<(Place, Epoch)>;

/// What is kept with each block.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// Where it is charged.
    pub charge: Charge,
    /// The context in which it was allocated. It belongs to that one, unless it
    /// is in a stream's order: such a block is its pool's, and outlives it.
    pub context: ContextId,
    /// The pool that it was asked of, if it was in a stream's order.
    pub pool: PoolNumber,
    /// Its own number, different from that of every other.
    pub buffer: u64,
}

impl Note {
    /// Whether it was allocated in a stream's order.
    #[inline]
    pub fn is_ordered(&self) -> bool {
        self.pool != PoolNumber::NONE
    }
}

/// What a stream's handle means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its number.
    pub id: StreamId,
    /// Its context.
    pub context: ContextId,
    /// The device of that.
    pub device: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StreamKey {
    Created(CUstream),
    Legacy(ContextId),
    OfThread(ContextId, ThreadId),
}

/// A stream that captures; a thread's own, with the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capturing(CUstream, Option<ThreadId>);

impl Capturing {
    /// By its handle as this thread names it. `per_thread`: what the null
    /// handle means.
    pub fn new(raw: CUstream, per_thread: bool) -> Self {
        let own = raw == CU_STREAM_PER_THREAD || (raw.is_null() && per_thread);
        if own {
            // By one name: what begins by one handle may end by the other.
            Self(CU_STREAM_PER_THREAD, Some(std::thread::current().id()))
        } else {
            Self(raw, None)
        }
    }
}

/// A capture that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    pub(crate) context: ContextId,
    mode: CUstreamCaptureMode,
    /// Who began it.
    thread: ThreadId,
}

/// Why there is no block.
#[derive(Clone, Debug)]
pub enum Denied {
    /// This memory is the driver's to give.
    Driver,
    /// There is none, or no more is allowed.
    OutOfMemory(Error),
}

/// A device, once it was asked for; none if it has no pool.
type Slot = OnceLock<Option<Box<Device>>>;

/// See the module.
#[derive(Debug)]
pub struct Governor {
    pub(crate) driver: &'static Driver,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) clock: Arc<DriverClock>,
    config: Config,
    tell: OnceLock<fn(&str)>,
    devices: [Slot; DEVICES],
    pub(crate) governed: GovernedMemory,
    pub(crate) sharing: Sharing,
    /// Taken before any other lock.
    lifetimes: Lifetimes,
    pub(crate) streams: RwLock<FxHashMap<StreamKey, Stream>>,
    pub(crate) contexts: RwLock<FxHashMap<CUcontext, (ContextId, u32)>>,
    /// Primary contexts, by device.
    pub(crate) primaries: Mutex<FxHashMap<CUdevice, CUcontext>>,
    pub(crate) greens: Mutex<Vec<CUcontext>>,
    /// Green contexts that are gone; what they allocated is not.
    pub(crate) orphans: Mutex<Vec<(CUdevice, ContextId)>>,
    /// Contexts that have failed.
    pub(crate) lost: Mutex<Vec<ContextId>>,
    anything_lost: AtomicBool,
    /// Some context has failed or ended.
    pub(crate) anything_over: AtomicBool,
    /// Counts what makes handles mean something else.
    pub(crate) changes: AtomicU64,
    pub(crate) pools: RwLock<FxHashMap<CUmemoryPool, Served>>,
    pub(crate) pool_numbers: Numbers,
    /// Devices whose current pool is the driver's, a bit each.
    pub(crate) passing_devices: AtomicU64,
    /// Streams that capture.
    pub(crate) capturing: Mutex<FxHashMap<Capturing, Capture>>,
    /// Default streams of threads that have ended.
    ended: Mutex<Vec<StreamId>>,
    tenants: Mutex<FxHashMap<String, Tenant>>,
    /// Tenants that may hold so much on each device. Their rows in the ledger
    /// are theirs from the first on, before others can take the last.
    pub(crate) limited: Vec<(Tenant, u64)>,
    next_unnamed: AtomicU64,
    next_buffer: AtomicU64,
}

/// What the driver answered; that it has no such function is an answer too.
pub fn answer(result: Result<CUresult, Missing>) -> CUresult {
    result.unwrap_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

pub(crate) fn is_done(result: Result<CUresult, Missing>) -> bool {
    answer(result) == CUresult::CUDA_SUCCESS
}

impl Governor {
    /// Over a driver's table, charging a ledger.
    pub fn new(driver: &'static Driver, ledger: Ledger, config: Config) -> Self {
        let limits = config.tenant_limits.iter();
        let named = limits.map(|it| (it.tenant.clone(), ledger.tenant(&it.tenant)));
        let tenants: FxHashMap<String, Tenant> = named.collect();
        // Whoever shares a row with others is not limited by it, nor are they.
        let limits = config.tenant_limits.iter();
        let limited = limits.map(|it| (tenants[&it.tenant], it.limit.get()));
        let limited = limited.filter(|(tenant, _)| *tenant != Tenant::OTHERS);
        let limited = limited.collect();
        Self {
            driver,
            ledger: Arc::new(ledger),
            clock: Arc::new(DriverClock::new(driver)),
            config,
            tell: OnceLock::new(),
            devices: std::array::from_fn(|_| OnceLock::new()),
            governed: GovernedMemory::default(),
            sharing: Sharing::default(),
            lifetimes: Lifetimes::default(),
            streams: RwLock::default(),
            contexts: RwLock::default(),
            primaries: Mutex::default(),
            greens: Mutex::default(),
            orphans: Mutex::default(),
            lost: Mutex::default(),
            anything_lost: AtomicBool::new(false),
            anything_over: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            pools: RwLock::default(),
            pool_numbers: Numbers::default(),
            passing_devices: AtomicU64::new(0),
            capturing: Mutex::default(),
            ended: Mutex::default(),
            tenants: Mutex::new(tenants),
            limited,
            next_unnamed: AtomicU64::new(UNNAMED),
            next_buffer: AtomicU64::new(1),
        }
    }

    /// The ledger that is charged.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The driver below.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// What the driver gave by itself.
    pub fn governed(&self) -> &GovernedMemory {
        &self.governed
    }

    // ---- devices and tenants ------------------------------------------------

    /// A device, made when it is first asked for; none if its memory cannot be
    /// pooled: mapping and events of contexts are needed.
    #[inline]
    pub fn device(&self, ordinal: u32) -> Option<&Device> {
        let slot = self.devices.get(ordinal as usize)?;
        let device = match slot.get() {
            Some(device) => device,
            None => self.fill(slot, ordinal),
        };
        device.as_deref()
    }

    /// Makes a device for its slot, while nobody waits for it. Of two that are
    /// made at once one is dropped, and has had no memory.
    #[cold]
    fn fill<'s>(&self, slot: &'s Slot, ordinal: u32) -> &'s Option<Box<Device>> {
        let made = self.make(ordinal);
        slot.get_or_init(|| match made? {
            Ok(device) => Some(Box::new(device)),
            Err(Refused(why)) => {
                if let Some(tell) = self.tell.get() {
                    tell(&format!(
                        "GPU {ordinal}: no pool and no limit, its memory is the driver's alone: {why}"
                    ));
                }
                None
            }
        })
    }

    /// Has what is known of the block at an address fetched from the host's
    /// memory while the caller does what comes before it frees the block.
    #[inline]
    pub fn touch(&self, address: u64) {
        // What lies between a device's addresses may be another's, which then has
        // nothing fetched; slots of further devices are not looked at for it.
        let _found = self.devices().any(|device| device.touch(address));
    }

    /// How a user is told, once, that a device has no pool, and why. Nobody is
    /// before this is called.
    pub fn tell_by(&self, tell: fn(&str)) {
        self.tell.get_or_init(|| tell);
    }

    /// The devices that have pools by now.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices
            .iter()
            .filter_map(|slot| slot.get()?.as_deref())
    }

    /// The tenant of this name.
    pub fn tenant(&self, name: &str) -> Tenant {
        let mut tenants = lock(&self.tenants);
        if let Some(tenant) = tenants.get(name) {
            return *tenant;
        }
        let tenant = self.ledger.tenant(name);
        tenants.insert(name.to_owned(), tenant);
        tenant
    }

    // ---- contexts -----------------------------------------------------------

    /// Runs a call of the driver that may make or destroy contexts with what is
    /// noted of it, while no other thread does the like.
    pub fn in_turn<R>(&self, work: impl FnOnce() -> R) -> R {
        let _turn = self.turn();
        work()
    }

    pub(crate) fn turn(&self) -> Turn<'_> {
        self.lifetimes.hold()
    }

    /// The same for who may not wait; none if another thread has its turn.
    pub(crate) fn turn_now(&self) -> Option<Turn<'_>> {
        self.lifetimes.try_hold()
    }

    /// A context that the driver made or gave.
    pub fn context(&self, raw: CUcontext) -> Option<(ContextId, u32)> {
        if raw.is_null() {
            return None;
        }
        let known = || read(&self.contexts).get(&raw).copied();
        known().or_else(|| {
            // Another thread may have noted it, or be destroying it.
            let _turn = self.turn();
            known().or_else(|| self.add_context(raw))
        })
    }

    #[cold]
    fn add_context(&self, raw: CUcontext) -> Option<(ContextId, u32)> {
        let (mut device, mut least, mut greatest) = (0, 0, 0);
        let mut popped = CUcontext::NULL;
        // One that was destroyed can be made current and says whose it was; what
        // its streams may be it does not say.
        // SAFETY: the driver says which handles are contexts; the rest outlives the calls.
        let found = unsafe {
            is_done(self.driver.cuCtxPushCurrent_v2(raw)) && {
                let driver = self.driver;
                let found = is_done(driver.cuCtxGetDevice(&mut device));
                let asked = driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest);
                let is_gone = answer(asked) == CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
                is_done(driver.cuCtxPopCurrent_v2(&mut popped)) && found && !is_gone
            }
        };
        let device = u32::try_from(device).ok().filter(|_| found)?;
        let id = self.clock.add_context(raw);
        let mut contexts = write(&self.contexts);
        contexts.insert(raw, (id, device));
        Some((id, device))
    }

    /// The driver made a context, or gave out a primary one again: what it takes
    /// is charged the first time.
    pub fn context_made(&self, raw: CUcontext) {
        let _turn = self.turn();
        if self.clock.context(raw).is_none() {
            self.charge_new_context(raw);
        }
    }

    /// The driver gave out a device's primary context.
    pub fn primary_made(&self, device: CUdevice, raw: CUcontext) {
        let _turn = self.turn();
        lock(&self.primaries).insert(device, raw);
        self.context_made(raw);
    }

    /// A device's primary context, if it was given out.
    pub fn primary(&self, device: CUdevice) -> Option<CUcontext> {
        lock(&self.primaries).get(&device).copied()
    }

    /// The handle of a context to which memory of a device belongs: of none that
    /// is green, whose memory is the primary one's, or another device's, which
    /// may ask in a stream's order.
    fn memory_owner(&self, context: ContextId, device: &Device) -> Option<CUcontext> {
        let is_it = |it: &(ContextId, u32)| *it == (context, device.ordinal);
        let contexts = read(&self.contexts);
        let raw = contexts
            .iter()
            .find_map(|(raw, it)| is_it(it).then_some(*raw))?;
        drop(contexts);
        (!lock(&self.greens).contains(&raw)).then_some(raw)
    }

    /// A green context was made, and converted to this one.
    pub fn green_made(&self, raw: CUcontext) {
        let _turn = self.turn();
        lock(&self.greens).push(raw);
        self.context_made(raw);
    }

    /// The handle of a context that is there.
    pub fn raw(&self, context: ContextId) -> Option<CUcontext> {
        let contexts = read(&self.contexts);
        let mut all = contexts.iter();
        all.find_map(|(raw, (id, _))| (*id == context).then_some(*raw))
    }

    /// Some context of a device, which is there as long as the caller has its
    /// turn.
    pub(crate) fn context_of(&self, device: u32) -> Option<CUcontext> {
        let contexts = read(&self.contexts);
        let mut all = contexts.iter();
        all.find_map(|(raw, (_, of))| (*of == device).then_some(*raw))
    }

    /// A wait of the host begins: for a stream, or for all work of the current
    /// context. What it returns is told when it has ended.
    pub fn wait_begins(&self, stream: Option<StreamId>) -> Waiting {
        // Which context that is matters only if there are several.
        if stream.is_none() && self.clock.contexts() != 1 {
            return Waiting(Vec::new());
        }
        let place = stream.map(Place::Stream);
        let begun = |device: &Device| {
            let regions = device.regions();
            (
                device.ordinal,
                regions.map(|region| region.sync_begins(place)),
            )
        };
        Waiting(self.devices().map(begun).collect())
    }

    /// It has ended: what was freed there before it began is ready.
    pub fn wait_ended(&self, waiting: &Waiting) {
        for (ordinal, begun) in &waiting.0 {
            let regions = self.device(*ordinal).map(Device::regions);
            for (region, begun) in regions.into_iter().flatten().zip(begun) {
                if !begun.is_empty() {
                    region.sync_ended(begun);
                }
            }
        }
    }

    /// The driver answered so in the current context. If that says that the
    /// context has failed for good, the driver answers for its memory from now
    /// on, as it does for everything else.
    pub fn failed(&self, code: CUresult) {
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call.
        let asked = unsafe { self.driver.cuCtxGetCurrent(&mut raw) };
        if FATAL.contains(&code)
            && is_done(asked)
            && let Some(context) = self.clock.context(raw)
        {
            let mut lost = lock(&self.lost);
            if !lost.contains(&context) {
                lost.push(context);
            }
            self.anything_lost.store(true, Relaxed);
            self.anything_over.store(true, Relaxed);
        }
    }

    /// Whether a context has failed.
    #[inline]
    pub fn is_lost(&self, context: ContextId) -> bool {
        self.anything_lost.load(Relaxed) && lock(&self.lost).contains(&context)
    }

    // ---- streams ------------------------------------------------------------

    /// A stream is about to be destroyed: nothing of ours is queued there any more.
    pub fn remove_stream(&self, raw: CUstream) {
        let capturing = Capturing::new(raw, false);
        self.end_capture(capturing, || CUresult::CUDA_SUCCESS);
        let mut streams = write(&self.streams);
        let Some(stream) = streams.remove(&StreamKey::Created(raw)) else {
            return;
        };
        drop(streams);
        self.changes.fetch_add(1, Relaxed);
        for device in self.devices() {
            device.retire(stream.id);
        }
        self.clock.remove_stream(stream.id);
    }

    /// Retires the default streams of threads that have ended, for who finds no
    /// memory or too many of them; whether there were any.
    fn retire_ended(&self) -> bool {
        let ended = std::mem::take(&mut *lock(&self.ended));
        for stream in &ended {
            for device in self.devices() {
                device.retire(*stream);
            }
        }
        !ended.is_empty()
    }

    // ---- captures -----------------------------------------------------------

    /// Runs the call of the driver that begins a capture of a stream of a
    /// context, in a mode.
    pub fn begin_capture(
        &self,
        stream: Capturing,
        (context, mode): (ContextId, CUstreamCaptureMode),
        begin: impl FnOnce() -> CUresult,
    ) -> CUresult {
        self.clock.change_captures(|count| {
            let result = begin();
            let mut capturing = lock(&self.capturing);
            if result == CUresult::CUDA_SUCCESS {
                let thread = std::thread::current().id();
                let capture = Capture {
                    context,
                    mode,
                    thread,
                };
                capturing.insert(stream, capture);
            }
            *count = capturing.len();
            result
        })
    }

    /// Runs a call of the driver that may end a capture of a stream.
    pub fn end_capture(&self, stream: Capturing, end: impl FnOnce() -> CUresult) -> CUresult {
        if !lock(&self.capturing).contains_key(&stream) {
            return end();
        }
        self.clock.change_captures(|count| {
            let result = end();
            let Capturing(raw, thread) = stream;
            let mut capturing = lock(&self.capturing);
            // A capture that was lost has ended too.
            if result == CUresult::CUDA_SUCCESS || !self.is_capturing(raw, thread.is_some()) {
                capturing.remove(&stream);
            }
            *count = capturing.len();
            result
        })
    }

    /// Whether work for a stream is captured now. `per_thread`: what the null
    /// handle means.
    pub fn is_capturing(&self, raw: CUstream, per_thread: bool) -> bool {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` outlives the call; the driver refuses what is no stream.
        let asked = unsafe {
            if per_thread {
                self.driver.cuStreamIsCapturing_ptsz(raw, &mut status)
            } else {
                self.driver.cuStreamIsCapturing(raw, &mut status)
            }
        };
        // What the driver does not tell is taken for a capture: it is let do.
        !is_done(asked) || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Whether some capture forbids this thread calls that may wait, such as an
    /// allocation in no stream: such a call would end that capture.
    pub fn may_not_wait(&self) -> bool {
        const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        if !self.anything_captures() {
            return false;
        }
        let Some(mode) = thread_capture_mode(self.driver) else {
            return true;
        };
        let this = std::thread::current().id();
        let capturing = lock(&self.capturing);
        mode != RELAXED
            && capturing.values().any(|capture| {
                (capture.thread == this && capture.mode != RELAXED)
                    || (capture.mode == GLOBAL && mode == GLOBAL)
            })
    }

    /// Whether anything captures.
    #[inline]
    pub fn anything_captures(&self) -> bool {
        self.clock.captures() > 0
    }

    // ---- governed memory ----------------------------------------------------

    /// Makes room for memory that the driver gives by itself: charges it to the
    /// budget, and shrinks the pool if it must.
    pub fn admit(&self, piece: &Piece) -> bool {
        let Some(device) = self.charged(piece) else {
            return true;
        };
        let budget = device.budget();
        if budget.charge(piece.bytes) {
            return true;
        }
        device.trim();
        let admitted = budget.charge(piece.bytes);
        if !admitted {
            self.record(EventKind::Refused, device.row, piece, budget.limit_bytes());
        }
        admitted
    }

    /// The device whose budget a piece is charged to.
    fn charged(&self, piece: &Piece) -> Option<&Device> {
        let device = piece.is_on_device().then(|| self.device(piece.device));
        device.flatten()
    }

    /// What was admitted was not made.
    pub fn forgo(&self, piece: &Piece) {
        if let Some(device) = self.charged(piece) {
            device.budget().refund(piece.bytes);
        }
    }

    /// What was admitted was made.
    pub fn made(&self, key: Key, piece: Piece) {
        self.count(&piece);
        if let Some(before) = self.governed.insert(key, piece) {
            self.ended(&before);
        }
    }

    /// Code was given to the driver, who takes memory for it when it likes.
    pub fn code_given(&self, key: Key, device: u32, bytes: u64) {
        let piece = Piece {
            // Libraries are no context's.
            context: None,
            device,
            tenant: Tenant::OTHERS,
            kind: Governed::Module,
            bytes,
        };
        self.governed.insert(key, piece);
    }

    /// Physical memory that was admitted was made.
    pub fn made_physical(&self, handle: u64, piece: Piece) {
        self.count(&piece);
        if let Some(before) = self.governed.created(handle, piece) {
            self.ended(&before);
        }
    }

    fn count(&self, piece: &Piece) {
        let row = Row::new(piece.device);
        self.ledger
            .govern(row, piece.tenant, piece.kind, piece.bytes);
        // Instead of the pool, which is for this kind.
        if piece.kind == Governed::Linear {
            self.record(EventKind::Fallback, row, piece, 0);
        }
    }

    /// A piece that was made is gone.
    pub fn ended(&self, piece: &Piece) {
        // What code takes is charged when the driver's figures show it.
        if piece.kind == Governed::Module {
            return;
        }
        let row = Row::new(piece.device);
        self.ledger
            .release(row, piece.tenant, piece.kind, piece.bytes);
        self.forgo(piece);
    }

    fn record(&self, kind: EventKind, device: Row, piece: &Piece, detail: u64) {
        self.ledger.record(Event {
            kind,
            device,
            tenant: piece.tenant,
            bytes: piece.bytes,
            address: 0,
            detail,
            stream: 0,
            thread: 0,
        });
    }

    // ---- blocks -------------------------------------------------------------

    /// The live block at an address, or around it.
    pub fn find(&self, address: u64) -> Option<(&Device, Live<Note>)> {
        // One that others have open, and that was freed, is none.
        let is_there = |live: &Live<Note>| !self.sharing.lingers(live.span.address);
        let mut devices = self.devices();
        devices.find_map(|device| Some((device, device.find(address).filter(is_there)?)))
    }

    /// Whether an address is one that a pool has reserved.
    pub fn is_pooled(&self, address: u64) -> bool {
        self.devices().any(|device| device.holds(address))
    }

    /// Keeps a range of the pool's addresses where it is for good, whoever has
    /// blocks there.
    pub fn pin_range(&self, address: u64, bytes: u64) {
        let bytes = bytes.min(u64::MAX - address);
        for region in self.devices().flat_map(|device| device.regions()) {
            region.pin_range(Span { address, bytes });
        }
    }

    /// Whether an address is in memory that the driver would free if it were
    /// asked to: a slab, which is the pool's.
    pub fn is_slab(&self, address: u64) -> bool {
        self.devices().any(|device| device.slab(address).is_some())
    }

    /// A number that no other buffer has.
    pub(crate) fn next_buffer(&self) -> u64 {
        self.next_buffer.fetch_add(1, Relaxed)
    }

    /// Who holds what, for who is refused memory.
    pub fn report(&self, device: &Device, error: &Error) -> String {
        use std::fmt::Write as _;
        let mut text = format!("GPU {}: {error}", device.ordinal);
        let Ok(snapshot) = self.ledger.snapshot() else {
            return text;
        };
        let mut tenants: Vec<(u64, &str)> = snapshot
            .tenants
            .iter()
            .map(|tenant| {
                let accounts = tenant.accounts.iter();
                let here = accounts.filter(|account| account.device == device.ordinal);
                let bytes = here.map(|account| account.live_bytes + account.governed_bytes);
                (bytes.sum(), tenant.name.as_str())
            })
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        tenants.sort_unstable_by(|a, b| b.cmp(a));
        for (bytes, name) in tenants {
            let _never_fails = write!(text, "\n  {name} holds {:.1} MiB", mib(bytes));
        }
        if let Some(hint) = self.hint(error) {
            text.push_str("\ntry: ");
            text.push_str(hint);
        }
        text
    }

    /// Which limit was in the way, if one was.
    fn hint(&self, error: &Error) -> Option<&'static str> {
        match error {
            Error::Exhausted {
                bytes,
                used_bytes,
                limit_bytes,
                ..
            } if used_bytes + bytes > *limit_bytes => {
                // Else it is the device's memory that is at its end.
                self.config().limit?;
                Some("a higher limit (fercuda run --limit or FERCUDA_LIMIT)")
            }
            Error::Tenant { .. } => {
                Some("a higher limit of its own (fercuda run --tenant or FERCUDA_TENANT_LIMITS)")
            }
            _ => None,
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A tenant as the pool numbers it.
pub(crate) fn id(tenant: Tenant) -> TenantId {
    TenantId(tenant.index() as u16)
}

/// What a thread has allocated of a pool and freed since it last told.
#[derive(Clone, Copy, Debug, Default)]
struct Untold {
    device: u32,
    pool: PoolNumber,
    bytes: i64,
    peak: i64,
}

/// One thread's way in: what it needs most often is at hand.
#[derive(Debug)]
pub struct Seat<'g> {
    governor: &'g Governor,
    /// None at the thread's end, when nothing may be kept for it.
    local: Option<Local<'g>>,
    thread: ThreadId,
    number: u64,
    buffers: std::ops::Range<u64>,
    /// As of this count of changes.
    seen: u64,
    stream: Option<(StreamKey, Stream)>,
    context: Option<(CUcontext, (ContextId, u32))>,
    /// What the level of a pool has not heard of, and the most of it.
    untold: Untold,
    /// Its default streams.
    own: Vec<StreamId>,
}

impl<'g> Seat<'g> {
    /// For the calling thread, which has this number.
    pub fn new(governor: &'g Governor, number: u64) -> Self {
        let mut seat = Self::passing(governor, number);
        seat.local = Some(governor.ledger.local(number));
        seat
    }

    /// For one call of a thread that is at its end.
    pub fn passing(governor: &'g Governor, number: u64) -> Self {
        Self {
            governor,
            local: None,
            thread: std::thread::current().id(),
            number,
            buffers: 0..0,
            seen: u64::MAX,
            stream: None,
            context: None,
            untold: Untold::default(),
            own: Vec::new(),
        }
    }

    /// The governor.
    pub fn governor(&self) -> &'g Governor {
        self.governor
    }

    /// Forgets what handles meant if any may mean something else by now.
    #[inline]
    fn refresh(&mut self) {
        let changes = self.governor.changes.load(Relaxed);
        if self.seen != changes {
            self.seen = changes;
            self.stream = None;
            self.context = None;
        }
    }

    /// The current context and its device; none if there is none.
    #[inline]
    pub fn current(&mut self) -> Option<(ContextId, u32)> {
        self.refresh();
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call.
        if !is_done(unsafe { self.governor.driver.cuCtxGetCurrent(&mut raw) }) {
            return None;
        }
        if let Some((known, context)) = self.context
            && known == raw
        {
            return Some(context);
        }
        let context = self.governor.context(raw)?;
        self.context = Some((raw, context));
        Some(context)
    }

    /// Whether the current context has ended or failed: then the driver answers
    /// whatever is asked of it. Where none is current it does not.
    #[inline]
    pub fn is_current_over(&mut self) -> bool {
        self.governor.anything_over.load(Relaxed) && self.has_ended_or_failed()
    }

    #[cold]
    fn has_ended_or_failed(&mut self) -> bool {
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call.
        let asked = unsafe { self.governor.driver.cuCtxGetCurrent(&mut raw) };
        if is_done(asked) && raw.is_null() {
            return false;
        }
        let current = self.current();
        current.is_none_or(|(context, _)| self.governor.is_lost(context))
    }

    /// What a stream's handle means; none if the driver does not know it.
    /// `per_thread`: what the null handle means.
    #[inline]
    pub fn stream(&mut self, raw: CUstream, per_thread: bool) -> Option<Stream> {
        let key = if raw == CU_STREAM_PER_THREAD || (raw.is_null() && per_thread) {
            StreamKey::OfThread(self.current()?.0, self.thread)
        } else if raw == CU_STREAM_LEGACY || raw.is_null() {
            StreamKey::Legacy(self.current()?.0)
        } else {
            self.refresh();
            StreamKey::Created(raw)
        };
        if let Some((known, stream)) = self.stream
            && known == key
        {
            return Some(stream);
        }
        let stream = self.look_up(key)?;
        self.stream = Some((key, stream));
        Some(stream)
    }

    #[cold]
    fn look_up(&mut self, key: StreamKey) -> Option<Stream> {
        let governor = self.governor;
        let streams = read(&governor.streams);
        if let Some(stream) = streams.get(&key) {
            return Some(*stream);
        }
        drop(streams);
        if lock(&governor.ended).len() > ENDED {
            governor.retire_ended();
        }
        let (raw_context, kind, number) = match key {
            StreamKey::Created(raw) => {
                let (mut context, mut number) = (CUcontext::NULL, 0);
                // SAFETY: the results outlive the calls; the driver refuses
                // what is no stream.
                let known = unsafe {
                    is_done(governor.driver.cuStreamGetCtx(raw, &mut context))
                        && is_done(governor.driver.cuStreamGetId(raw, &mut number))
                };
                if !known || number >= UNNAMED {
                    return None;
                }
                (context, Kind::Created(raw), number)
            }
            StreamKey::Legacy(_) | StreamKey::OfThread(..) => {
                let kind = match key {
                    StreamKey::OfThread(_, thread) => Kind::OfThread(thread),
                    _ => Kind::Legacy,
                };
                let number = governor.next_unnamed.fetch_add(1, Relaxed);
                (self.context?.0, kind, number)
            }
        };
        let (context, device) = governor.context(raw_context)?;
        let stream = Stream {
            id: StreamId(number),
            context,
            device,
        };
        let mut streams = write(&governor.streams);
        // Two threads may have come here with one stream.
        let stream = *streams.entry(key).or_insert(stream);
        // SAFETY: the driver has just said so; who destroys it takes it out first.
        unsafe { governor.clock.add_stream(stream.id, raw_context, kind) };
        if matches!(key, StreamKey::OfThread(..)) {
            self.own.push(stream.id);
        }
        Some(stream)
    }

    /// Allocates on a device, for a context, at a place. `pool`: by a call that
    /// is ordered in a stream, of the pool that it names.
    ///
    /// # Errors
    /// [`Denied`].
    #[inline]
    pub fn allocate(
        &mut self,
        tenant: Tenant,
        (context, device): (ContextId, u32),
        place: Place,
        pool: PoolNumber,
        bytes: u64,
    ) -> Result<u64, Denied> {
        let governor = self.governor;
        if governor.is_lost(context) {
            return Err(Denied::Driver);
        }
        let device = governor.device(device).ok_or(Denied::Driver)?;
        if !device.serves(context, || governor.memory_owner(context, device)) {
            return Err(Denied::Driver);
        }
        let stream = match place {
            Place::Stream(stream) => stream.0,
            Place::Anywhere => 0,
        };
        let charge = match &mut self.local {
            Some(local) => local.cell(device.row, tenant, stream),
            None => governor.ledger.cell(device.row, tenant),
        };
        let request = Request {
            bytes,
            align_bytes: ALIGN_BYTES,
            place,
            tenant: id(tenant),
            note: Note {
                charge,
                context,
                pool,
                buffer: self.buffer(),
            },
        };
        let (region, other) = device.region(tenant, bytes);
        let mut allocated = region.allocate(&request);
        // What the other could do without, or nobody needs any more, may do.
        if allocated.is_err()
            && (governor.retire_ended() | governor.end_lingering() | (other.trim() > 0))
        {
            allocated = region.allocate(&request);
        }
        match allocated {
            Ok(span) => {
                // Nobody knows the address yet; what is refused counts nowhere.
                match &mut self.local {
                    Some(local) => local.count(charge, span.bytes),
                    None => governor.ledger.count(charge, span.bytes),
                }
                if pool != PoolNumber::NONE {
                    self.level(device, pool, span.bytes as i64);
                }
                Ok(span.address)
            }
            Err(error) => Err(self.denied(device, tenant, bytes, stream, error)),
        }
    }

    #[cold]
    fn denied(
        &self,
        device: &Device,
        tenant: Tenant,
        bytes: u64,
        stream: u64,
        error: Error,
    ) -> Denied {
        let (kind, detail) = match &error {
            Error::Tenant { account, .. } => (EventKind::TenantLimit, account.limit_bytes),
            Error::Exhausted {
                used_bytes,
                limit_bytes,
                ..
            } if *limit_bytes < device.total_bytes && used_bytes + bytes > *limit_bytes => {
                (EventKind::Refused, *limit_bytes)
            }
            Error::Exhausted { usage, .. } => (EventKind::OutOfMemory, usage.largest_ready_bytes),
            _ => (EventKind::OutOfMemory, 0),
        };
        self.governor.ledger.record(Event {
            kind,
            device: device.row,
            tenant,
            bytes,
            address: 0,
            detail,
            stream,
            thread: self.number,
        });
        Denied::OutOfMemory(error)
    }

    /// Frees the block at an address, of whatever device, if its note is to the
    /// caller's liking; none if there is no such block. What belongs to a context
    /// that has failed is the driver's to free; what belongs to none is freed.
    #[inline]
    pub fn free(
        &mut self,
        address: u64,
        place: Place,
        if_so: impl Fn(&Note) -> bool,
    ) -> Option<Freed<Note>> {
        let governor = self.governor;
        let may = |note: &Note| note.is_ordered() || !governor.is_lost(note.context);
        let if_so = |note: &Note| may(note) && if_so(note);
        if governor.sharing.is_used() {
            match governor.unshare(address, if_so) {
                Unshared::Free => {}
                Unshared::Unknown => return None,
                Unshared::Later(freed) => return Some(freed),
            }
        }
        let mut devices = governor.devices();
        let free = |device: &Device| device.free_if(address, place, if_so);
        let (device, freed) = devices.find_map(|device| Some((device, free(device)?)))?;
        self.discharge(freed.note.charge, freed.span.bytes);
        if freed.note.is_ordered() {
            self.level(device, freed.note.pool, -(freed.span.bytes as i64));
        }
        Some(freed)
    }

    /// What is in use of a pool has changed; told in steps, so that threads with
    /// small blocks do not meet there.
    #[inline]
    fn level(&mut self, device: &Device, pool: PoolNumber, change: i64) {
        if (self.untold.device, self.untold.pool) != (device.ordinal, pool) {
            self.tell_level();
            (self.untold.device, self.untold.pool) = (device.ordinal, pool);
        }
        self.untold.bytes += change;
        self.untold.peak = self.untold.peak.max(self.untold.bytes);
        if self.untold.bytes.unsigned_abs() >= STEP_BYTES || self.local.is_none() {
            self.tell_level();
        }
    }

    /// Tells the level what it has not heard of.
    pub fn tell_level(&mut self) {
        let Untold {
            device,
            pool,
            bytes,
            peak,
        } = std::mem::take(&mut self.untold);
        (self.untold.device, self.untold.pool) = (device, pool);
        if peak != 0 || bytes != 0 {
            let device = self.governor.device(device);
            device.inspect(|device| device.watermarks.change(pool, bytes, peak));
        }
    }

    fn discharge(&mut self, charge: Charge, bytes: u64) {
        match &mut self.local {
            Some(local) => local.discharge(charge, bytes),
            None => self.governor.ledger.discharge(charge, bytes),
        }
    }

    fn buffer(&mut self) -> u64 {
        self.buffers.next().unwrap_or_else(|| {
            let first = self.governor.next_buffer.fetch_add(BUFFERS, Relaxed);
            self.buffers = first + 1..first + BUFFERS;
            first
        })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        // In a child that was forked, locks may be held by nobody who is there.
        if !self.governor.ledger.is_mine() {
            return;
        }
        self.tell_level();
        if self.own.is_empty() {
            return;
        }
        // Nobody can name them any more; their work is their contexts'.
        for stream in &self.own {
            self.governor.clock.remove_stream(*stream);
        }
        let thread = self.thread;
        let of_it = |key: &StreamKey| matches!(key, StreamKey::OfThread(_, of) if *of == thread);
        write(&self.governor.streams).retain(|key, _| !of_it(key));
        lock(&self.governor.ended).append(&mut self.own);
    }
}
