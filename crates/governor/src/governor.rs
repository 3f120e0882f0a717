//! The process's pools, one for each device, and who asked for what.
//!
//! Follow an allocation: a seat (one a thread, `seat`) says which stream and context
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

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::thread::ThreadId;

use fercuda_cuda_sys::types::{
    CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_ledger::{CellId, EventKind, Governed, Ledger, LedgerDevice, LedgerEvent, Tenant};
use fercuda_pool::{Epoch, Error, Live, Place, Refused, Span, StreamId, TenantId};
use rustc_hash::FxHashMap;

use crate::clock::{ContextId, DriverClock, lock, read, write};
use crate::config::Config;
use crate::device::Device;
use crate::governed::{GovernedMemory, Key, Piece};
use crate::lifetimes::{Lifetimes, Turn};
use crate::memory_pools::{Numbers, PoolNumber, Served};
use crate::sharing::Sharing;
use crate::vmm::thread_capture_mode;

/// Devices that have pools; memory of further ones is the driver's.
pub(crate) const DEVICES: usize = 16;
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
    pub charge: CellId,
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
    /// Of these, if there is one alone.
    only: AtomicPtr<c_void>,
    /// There may be contexts that are not among these.
    may_have_others: AtomicBool,
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
    pub(crate) pools: RwLock<FxHashMap<CUmemoryPool, Served>>,
    pub(crate) pool_numbers: Numbers,
    /// Devices whose current pool is the driver's, a bit each.
    pub(crate) passing_devices: AtomicU64,
    /// Streams that capture.
    pub(crate) capturing: Mutex<FxHashMap<Capturing, Capture>>,
    /// Default streams of threads that have ended.
    pub(crate) ended: Mutex<Vec<StreamId>>,
    tenants: Mutex<FxHashMap<String, Tenant>>,
    /// Tenants that may hold so much on each device. Their rows in the ledger
    /// are theirs from the first on, before others can take the last.
    pub(crate) limited: Vec<(Tenant, u64)>,
    pub(crate) next_unnamed: AtomicU64,
    pub(crate) next_buffer: AtomicU64,
}

/// What the driver answered; that it has no such function is an answer too.
#[inline]
pub fn answer(result: Result<CUresult, Missing>) -> CUresult {
    result.unwrap_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

#[inline]
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
            only: AtomicPtr::default(),
            may_have_others: AtomicBool::new(false),
            greens: Mutex::default(),
            orphans: Mutex::default(),
            lost: Mutex::default(),
            anything_lost: AtomicBool::new(false),
            anything_over: AtomicBool::new(false),
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

    /// All tenants that were named so far.
    pub fn tenants(&self) -> Vec<(Tenant, String)> {
        let tenants = lock(&self.tenants);
        tenants
            .iter()
            .map(|(name, it)| (*it, name.clone()))
            .collect()
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
        self.note_only(&contexts);
        drop(contexts);
        self.changed();
        Some((id, device))
    }

    /// The only context that the program has; null if it has several, or none.
    #[inline]
    pub(crate) fn only_context(&self) -> CUcontext {
        CUcontext(self.only.load(Relaxed))
    }

    /// Which is the only one now; under the lock of all, which this is of.
    pub(crate) fn note_only(&self, contexts: &FxHashMap<CUcontext, (ContextId, u32)>) {
        let mut all = contexts.keys();
        let only = match (all.next(), all.next()) {
            (Some(only), None) if !self.may_have_others.load(Relaxed) => *only,
            _ => CUcontext::NULL,
        };
        self.only.store(only.0, Relaxed);
    }

    /// The program has a function from the driver that makes contexts and tells
    /// nobody here.
    pub fn may_have_other_contexts(&self) {
        self.may_have_others.store(true, Relaxed);
        self.note_only(&write(&self.contexts));
        self.changed();
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
    pub(crate) fn memory_owner(&self, context: ContextId, device: &Device) -> Option<CUcontext> {
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
            self.changed();
        }
    }

    /// Something has changed of what seats keep in mind (see `seat`).
    pub fn changed(&self) {
        if let Some(changes) = self.ledger.changes() {
            changes.add();
        }
    }

    /// Whether any context has failed.
    #[inline]
    pub(crate) fn has_lost_any(&self) -> bool {
        self.anything_lost.load(Relaxed)
    }

    /// Whether a context has failed.
    #[inline]
    pub fn is_lost(&self, context: ContextId) -> bool {
        self.has_lost_any() && lock(&self.lost).contains(&context)
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
        self.changed();
        for device in self.devices() {
            device.retire(stream.id);
        }
        self.clock.remove_stream(stream.id);
    }

    /// Retires the default streams of threads that have ended, for who finds no
    /// memory or too many of them; whether there were any.
    pub(crate) fn retire_ended(&self) -> bool {
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
        let result = self.clock.change_captures(|count| {
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
        });
        self.changed();
        result
    }

    /// Runs a call of the driver that may end a capture of a stream.
    pub fn end_capture(&self, stream: Capturing, end: impl FnOnce() -> CUresult) -> CUresult {
        if !lock(&self.capturing).contains_key(&stream) {
            return end();
        }
        let result = self.clock.change_captures(|count| {
            let result = end();
            let Capturing(raw, thread) = stream;
            let mut capturing = lock(&self.capturing);
            // A capture that was lost has ended too.
            if result == CUresult::CUDA_SUCCESS || !self.is_capturing(raw, thread.is_some()) {
                capturing.remove(&stream);
            }
            *count = capturing.len();
            result
        });
        self.changed();
        result
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
        let row = LedgerDevice::new(piece.device);
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
        let row = LedgerDevice::new(piece.device);
        self.ledger
            .release(row, piece.tenant, piece.kind, piece.bytes);
        self.forgo(piece);
    }

    fn record(&self, kind: EventKind, device: LedgerDevice, piece: &Piece, detail: u64) {
        self.ledger.record(LedgerEvent {
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
