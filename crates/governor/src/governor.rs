//! The process's governor: one pool per device, tenants, contexts and captures.
//!
//! Path of an allocation: a thread context (`thread_context`) resolves the handle to a stream and
//! context; the device's pool allocates; the ledger is charged. Memory that no pool can serve is
//! allocated by the driver, and charged as governed.
//!
//! Invariants: a block's note names the ledger cell that holds its charge, which is given back
//! there. A stream's number is never reused, though its handle may be. During a capture, no driver
//! call is made that a capture forbids.
//!
//! Elsewhere: a device's pool (`device`), reuse ([`fercuda_pool`]), events (`clock`), memory
//! (`vmm`, `slabs`), the driver's own allocations (`governed`), its figures (`reconcile`), context
//! teardown (`teardown`), the lifecycle lock (`lifecycle`).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::thread::ThreadId;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUmemAccess_flags, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};
use fercuda_ledger::{Ledger, Tenant};
use fercuda_pool::{Epoch, Error, GrowthRefused, LiveBlock, PoolPlace, Span, StreamId};
use rustc_hash::FxHashMap;

use crate::clock::{ContextId, DriverClock, lock, read, write};
use crate::config::GovernorConfig;
use crate::device::{DeviceSetup, GovernedDevice};
use crate::driver_call::{RelaxedCapture, answer, is_done, thread_capture_mode};
use crate::governed::GovernedMemory;
use crate::graph_charges::AllocatingGraphs;
use crate::lifecycle::{LifecycleGuard, LifecycleLock};
use crate::note::BlockNote;
use crate::pool_number::{DEVICES, PoolNumbers, PoolProvider};
use crate::released_block::ReleasedBlock;
use crate::shared_blocks::BlockSharing;

/// The first number of streams without a unique handle: default streams, of contexts and of
/// threads.
pub const UNNAMED: u64 = 1 << 63;

/// Results after which a context returns nothing else.
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

/// A host wait in progress: the epochs of each region when it began.
#[derive(Debug)]
pub struct HostWait(Vec<(u32, [BegunEpochs; 2])>);

type BegunEpochs = Vec<(PoolPlace, Epoch)>;

/// A resolved stream handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its number.
    pub id: StreamId,
    /// Its context.
    pub context: ContextId,
    /// The context's device.
    pub device: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StreamKey {
    Created(CUstream),
    Legacy(ContextId),
    OfThread(ContextId, ThreadId),
}

/// Identifies a capturing stream; a thread's own default stream, together with the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CaptureKey(CUstream, Option<ThreadId>);

impl CaptureKey {
    /// By its handle as this thread names it. `per_thread`: which default stream the null handle
    /// means.
    pub fn new(raw: CUstream, per_thread: bool) -> Self {
        let own = raw == CU_STREAM_PER_THREAD || (raw.is_null() && per_thread);
        if own {
            // Normalised to one name: a capture that begins by one handle may end by the other.
            Self(CU_STREAM_PER_THREAD, Some(std::thread::current().id()))
        } else {
            Self(raw, None)
        }
    }
}

/// A capture in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveCapture {
    pub(crate) context: ContextId,
    mode: CUstreamCaptureMode,
    /// The thread that began it.
    thread: ThreadId,
}

/// Why no block was allocated.
#[derive(Clone, Debug)]
pub enum AllocationDenied {
    /// This memory has to be allocated by the driver.
    Driver,
    /// Memory is exhausted, or a limit is reached.
    OutOfMemory(Error),
}

/// A device, created on first use; `None` if it has no pool.
type DeviceSlot = OnceLock<Option<Box<GovernedDevice>>>;

/// The governor; see the module.
#[derive(Debug)]
pub struct Governor {
    pub(crate) driver: &'static Driver,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) clock: Arc<DriverClock>,
    config: GovernorConfig,
    tell: OnceLock<fn(&str)>,
    /// Called with the blocks that end with their context.
    pub(crate) on_ended: OnceLock<fn(&Governor, &ReleasedBlock<'_>)>,
    devices: [DeviceSlot; DEVICES],
    pub(crate) governed: GovernedMemory,
    pub(crate) graphs: AllocatingGraphs,
    pub(crate) sharing: BlockSharing,
    /// Taken before any other lock.
    lifecycle: LifecycleLock,
    pub(crate) streams: RwLock<FxHashMap<StreamKey, StreamInfo>>,
    pub(crate) contexts: RwLock<FxHashMap<CUcontext, (ContextId, u32)>>,
    /// The context among these, if there is exactly one.
    only: AtomicPtr<c_void>,
    /// There may be contexts that are not among these.
    may_have_others: AtomicBool,
    /// Primary contexts, by device.
    pub(crate) primaries: Mutex<FxHashMap<CUdevice, CUcontext>>,
    pub(crate) greens: Mutex<Vec<CUcontext>>,
    /// Destroyed green contexts with remaining allocations.
    pub(crate) orphans: Mutex<Vec<(CUdevice, ContextId)>>,
    /// Contexts that have faulted.
    pub(crate) lost: Mutex<Vec<ContextId>>,
    anything_lost: AtomicBool,
    /// Set once any context has faulted or ended.
    pub(crate) anything_over: AtomicBool,
    pub(crate) pools: RwLock<FxHashMap<CUmemoryPool, PoolProvider>>,
    pub(crate) pool_numbers: PoolNumbers,
    /// Devices with a current pool of the driver's, a bit each.
    pub(crate) passing_devices: AtomicU64,
    /// Capturing streams.
    pub(crate) capturing: Mutex<FxHashMap<CaptureKey, ActiveCapture>>,
    /// Default streams of threads that have ended.
    pub(crate) ended: Mutex<Vec<StreamId>>,
    tenants: Mutex<FxHashMap<String, Tenant>>,
    /// Tenants with a limit on each device. Their rows in the ledger are reserved from the start,
    /// before other tenants can take the last.
    pub(crate) limited: Vec<(Tenant, u64)>,
    pub(crate) next_unnamed: AtomicU64,
    pub(crate) next_buffer: AtomicU64,
}

impl Governor {
    /// A governor over a driver's table, which charges a ledger.
    pub fn new(driver: &'static Driver, ledger: Ledger, config: GovernorConfig) -> Self {
        let limits = config.tenant_limits.iter();
        let named = limits.map(|it| (it.tenant.clone(), ledger.tenant(&it.tenant)));
        let tenants: FxHashMap<String, Tenant> = named.collect();
        // A tenant that shares a row with others has no limit, nor have they.
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
            on_ended: OnceLock::new(),
            devices: std::array::from_fn(|_| OnceLock::new()),
            governed: GovernedMemory::default(),
            graphs: AllocatingGraphs::default(),
            sharing: BlockSharing::default(),
            lifecycle: LifecycleLock::default(),
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
            pool_numbers: PoolNumbers::default(),
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

    pub(crate) fn config(&self) -> &GovernorConfig {
        &self.config
    }

    /// The driver below.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The driver's own allocations.
    pub fn governed(&self) -> &GovernedMemory {
        &self.governed
    }

    // ---- devices and tenants ------------------------------------------------

    /// A device, created on first use; `None` if its memory cannot be pooled: mapping and events of
    /// contexts are needed.
    #[inline]
    pub fn device(&self, ordinal: u32) -> Option<&GovernedDevice> {
        let slot = self.devices.get(ordinal as usize)?;
        let device = match slot.get() {
            Some(device) => device,
            None => self.fill(slot, ordinal),
        };
        device.as_deref()
    }

    /// Creates a device for its slot, while no other thread waits for it. Of two created
    /// concurrently one is dropped before it has had memory.
    #[cold]
    fn fill<'s>(&self, slot: &'s DeviceSlot, ordinal: u32) -> &'s Option<Box<GovernedDevice>> {
        let setup = DeviceSetup {
            driver: self.driver,
            ledger: &self.ledger,
            clock: &self.clock,
            config: &self.config,
            limited: &self.limited,
        };
        let made = setup.make(ordinal);
        slot.get_or_init(|| match made? {
            Ok(device) => Some(Box::new(device)),
            Err(GrowthRefused(why)) => {
                self.tell(&format!(
                    "GPU {ordinal}: no pool and no limit, its memory is the driver's alone: {why}"
                ));
                None
            }
        })
    }

    /// Sets the function that notifies the user, once, that a device has no pool, and why. Without
    /// it there is no notification.
    pub fn on_missing_pool(&self, tell: fn(&str)) {
        self.tell.get_or_init(|| tell);
    }

    /// Notifies the user.
    pub(crate) fn tell(&self, text: &str) {
        if let Some(tell) = self.tell.get() {
            tell(text);
        }
    }

    /// Sets the function that is called once for each block that ends with its context. No context
    /// is made or destroyed while it runs.
    pub fn on_ended_block(&self, record: fn(&Governor, &ReleasedBlock<'_>)) {
        self.on_ended.get_or_init(|| record);
    }

    /// The devices that have pools.
    pub fn devices(&self) -> impl Iterator<Item = &GovernedDevice> {
        self.devices
            .iter()
            .filter_map(|slot| slot.get()?.as_deref())
    }

    /// The tenant with this name.
    pub fn tenant(&self, name: &str) -> Tenant {
        let mut tenants = lock(&self.tenants);
        if let Some(tenant) = tenants.get(name) {
            return *tenant;
        }
        let tenant = self.ledger.tenant(name);
        tenants.insert(name.to_owned(), tenant);
        tenant
    }

    /// All tenants named so far.
    pub fn tenants(&self) -> Vec<(Tenant, String)> {
        let tenants = lock(&self.tenants);
        tenants
            .iter()
            .map(|(name, it)| (*it, name.clone()))
            .collect()
    }

    // ---- peers --------------------------------------------------------------

    /// Grants a device access to the pooled memory of another; returns the driver's result, or
    /// `None` if that memory is not mapped, so that the driver's own peer access applies. Access is
    /// never revoked: a program that has disabled it will not use it.
    pub fn grant(&self, owner: u32, to: CUdevice, flags: CUmemAccess_flags) -> Option<CUresult> {
        let Some(device) = self.device(owner) else {
            return Some(CUresult::CUDA_SUCCESS);
        };
        let peers = device.peers.as_ref()?;
        let _relaxed = RelaxedCapture::enter(self.driver);
        Some(peers.grant(to, flags))
    }

    // ---- contexts -----------------------------------------------------------

    /// Runs a driver call that may create or destroy contexts, together with its bookkeeping, while
    /// no other thread does the same.
    pub fn with_lifecycle_lock<R>(&self, work: impl FnOnce() -> R) -> R {
        let _turn = self.lock_lifecycle();
        work()
    }

    pub(crate) fn lock_lifecycle(&self) -> LifecycleGuard<'_> {
        self.register_thread();
        self.lifecycle.acquire()
    }

    /// As [`Governor::lock_lifecycle`], without waiting for a thread that holds the lock; `None` if
    /// there is one.
    pub(crate) fn try_lock_lifecycle(&self) -> Option<LifecycleGuard<'_>> {
        self.register_thread();
        self.lifecycle.try_acquire()
    }

    /// Has the driver create the state that it keeps for the calling thread. To be called before
    /// the lifecycle lock is taken: a driver registers the destructor of such state when a thread
    /// first uses it, for which the C library takes the loader's lock. A library's constructor,
    /// which runs under that one, may be waiting for ours.
    fn register_thread(&self) {
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call.
        let _whatever_is_current = unsafe { self.driver.cuCtxGetCurrent(&mut raw) };
    }

    /// The number and device of a context created or returned by the driver.
    pub fn context(&self, raw: CUcontext) -> Option<(ContextId, u32)> {
        if raw.is_null() {
            return None;
        }
        let known = || read(&self.contexts).get(&raw).copied();
        known().or_else(|| {
            // Another thread may have recorded it, or be destroying it.
            let _turn = self.lock_lifecycle();
            known().or_else(|| self.add_context(raw))
        })
    }

    #[cold]
    fn add_context(&self, raw: CUcontext) -> Option<(ContextId, u32)> {
        let (mut device, mut least, mut greatest) = (0, 0, 0);
        let mut popped = CUcontext::NULL;
        // A destroyed context can be made current and still reports its device, but not its
        // streams.
        // SAFETY: the driver checks which handles are contexts; the rest outlives the
        // calls.
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

    /// The program's only context; null if it has several, or none.
    #[inline]
    pub(crate) fn only_context(&self) -> CUcontext {
        CUcontext(self.only.load(Relaxed))
    }

    /// Updates the only context; called under the lock of `contexts`.
    pub(crate) fn note_only(&self, contexts: &FxHashMap<CUcontext, (ContextId, u32)>) {
        let mut all = contexts.keys();
        let only = match (all.next(), all.next()) {
            (Some(only), None) if !self.may_have_others.load(Relaxed) => *only,
            _ => CUcontext::NULL,
        };
        self.only.store(only.0, Relaxed);
    }

    /// Records that the program has a driver function that creates contexts unnoticed.
    pub fn may_have_other_contexts(&self) {
        self.may_have_others.store(true, Relaxed);
        self.note_only(&write(&self.contexts));
        self.changed();
    }

    /// Records a context that the driver created, or a primary one that it returned again: its
    /// memory is charged the first time.
    pub fn record_context(&self, raw: CUcontext) {
        let _turn = self.lock_lifecycle();
        if self.clock.context(raw).is_none() {
            self.charge_new_context(raw);
        }
    }

    /// Records that the driver returned a device's primary context.
    pub fn record_primary(&self, device: CUdevice, raw: CUcontext) {
        let _turn = self.lock_lifecycle();
        lock(&self.primaries).insert(device, raw);
        self.record_context(raw);
    }

    /// A device's primary context, if it was returned.
    pub fn primary(&self, device: CUdevice) -> Option<CUcontext> {
        lock(&self.primaries).get(&device).copied()
    }

    /// The handle of a context that memory of a device belongs to: not of a green one, since its
    /// memory belongs to the primary one, and not of another device's, which may make
    /// stream-ordered allocations.
    pub(crate) fn memory_owner(
        &self,
        context: ContextId,
        device: &GovernedDevice,
    ) -> Option<CUcontext> {
        let is_it = |it: &(ContextId, u32)| *it == (context, device.ordinal);
        let contexts = read(&self.contexts);
        let raw = contexts
            .iter()
            .find_map(|(raw, it)| is_it(it).then_some(*raw))?;
        drop(contexts);
        (!lock(&self.greens).contains(&raw)).then_some(raw)
    }

    /// Records a green context, and the context that it was converted to.
    pub fn record_green(&self, raw: CUcontext) {
        let _turn = self.lock_lifecycle();
        lock(&self.greens).push(raw);
        self.record_context(raw);
    }

    /// The handle of a context that exists.
    pub fn raw(&self, context: ContextId) -> Option<CUcontext> {
        let contexts = read(&self.contexts);
        let mut all = contexts.iter();
        all.find_map(|(raw, (id, _))| (*id == context).then_some(*raw))
    }

    /// Some context of a device, valid as long as the caller holds the lifecycle lock.
    pub(crate) fn context_of(&self, device: u32) -> Option<CUcontext> {
        let contexts = read(&self.contexts);
        let mut all = contexts.iter();
        all.find_map(|(raw, (_, of))| (*of == device).then_some(*raw))
    }

    /// Begins a host wait: for a stream, or for all work of the current context. The result is
    /// passed to [`Governor::end_wait`] afterwards.
    pub fn begin_wait(&self, stream: Option<StreamId>) -> HostWait {
        // Which context is current matters only if there are several.
        if stream.is_none() && self.clock.contexts() != 1 {
            return HostWait(Vec::new());
        }
        let place = stream.map(PoolPlace::Stream);
        let begun = |device: &GovernedDevice| {
            let regions = device.regions();
            (
                device.ordinal,
                regions.map(|region| region.begin_host_wait(place)),
            )
        };
        HostWait(self.devices().map(begun).collect())
    }

    /// Ends a host wait: blocks freed there before it began are ready.
    pub fn end_wait(&self, waiting: &HostWait) {
        for (ordinal, begun) in &waiting.0 {
            let regions = self.device(*ordinal).map(GovernedDevice::regions);
            for (region, begun) in regions.into_iter().flatten().zip(begun) {
                if !begun.is_empty() {
                    region.end_host_wait(begun);
                }
            }
        }
    }

    /// Handles an error of the driver in the current context. If it means that the context has
    /// faulted for good, the driver answers for its memory from here on, as for everything else.
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

    /// Counts a change of state that thread contexts cache (see `thread_context`).
    pub fn changed(&self) {
        if let Some(changes) = self.ledger.changes() {
            changes.add();
        }
    }

    /// Whether any context has faulted.
    #[inline]
    pub(crate) fn has_lost_any(&self) -> bool {
        self.anything_lost.load(Relaxed)
    }

    /// Whether a context has faulted.
    #[inline]
    pub fn is_lost(&self, context: ContextId) -> bool {
        self.has_lost_any() && lock(&self.lost).contains(&context)
    }

    // ---- streams ------------------------------------------------------------

    /// Removes a stream that is about to be destroyed: nothing of ours is queued there any more.
    pub fn remove_stream(&self, raw: CUstream) {
        let capturing = CaptureKey::new(raw, false);
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

    /// Retires the default streams of ended threads, when memory is exhausted or there are too many
    /// of them; returns whether there were any.
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

    /// Runs the driver call that begins a capture of a context's stream, in a mode.
    pub fn begin_capture(
        &self,
        stream: CaptureKey,
        (context, mode): (ContextId, CUstreamCaptureMode),
        begin: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let result = self.clock.change_captures(|count| {
            let result = begin();
            let mut capturing = lock(&self.capturing);
            if result == CUresult::CUDA_SUCCESS {
                let thread = std::thread::current().id();
                let capture = ActiveCapture {
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

    /// Runs a driver call that may end a capture of a stream.
    pub fn end_capture(&self, stream: CaptureKey, end: impl FnOnce() -> CUresult) -> CUresult {
        if !lock(&self.capturing).contains_key(&stream) {
            return end();
        }
        let result = self.clock.change_captures(|count| {
            let result = end();
            let CaptureKey(raw, thread) = stream;
            let mut capturing = lock(&self.capturing);
            // An invalidated capture has ended too.
            if result == CUresult::CUDA_SUCCESS || !self.is_capturing(raw, thread.is_some()) {
                capturing.remove(&stream);
            }
            *count = capturing.len();
            result
        });
        self.changed();
        result
    }

    /// Whether work for a stream is being captured. `per_thread`: which default stream the null
    /// handle means.
    pub fn is_capturing(&self, raw: CUstream, per_thread: bool) -> bool {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` outlives the call; the driver refuses handles that are not streams.
        let asked = unsafe {
            if per_thread {
                self.driver.cuStreamIsCapturing_ptsz(raw, &mut status)
            } else {
                self.driver.cuStreamIsCapturing(raw, &mut status)
            }
        };
        // An unknown status counts as a capture: the call is passed to the driver.
        !is_done(asked) || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Whether some capture forbids this thread calls that may wait, such as an allocation outside
    /// a stream or in a stream that is not captured: such a call would invalidate that capture.
    #[inline]
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

    // ---- blocks -------------------------------------------------------------

    /// The live block that begins at an address, or contains it.
    pub fn find(&self, address: u64) -> Option<(&GovernedDevice, LiveBlock<BlockNote>)> {
        // A freed block that other processes have open is not live.
        let is_there = |live: &LiveBlock<BlockNote>| !self.sharing.is_lingering(live.span.address);
        let mut devices = self.devices();
        devices.find_map(|device| Some((device, device.find(address).filter(is_there)?)))
    }

    /// Whether an address is in a range that a pool has reserved.
    pub fn is_pooled(&self, address: u64) -> bool {
        self.devices().any(|device| device.holds(address))
    }

    /// Pins a range of the pool's addresses where it is for good, whatever blocks are there.
    pub fn pin_range(&self, address: u64, bytes: u64) {
        let bytes = bytes.min(u64::MAX - address);
        for region in self.devices().flat_map(|device| device.regions()) {
            region.pin_range(Span { address, bytes });
        }
    }

    /// Whether an address is in memory that the driver would free if called: a slab, which belongs
    /// to the pool.
    pub fn is_slab(&self, address: u64) -> bool {
        self.devices().any(|device| device.slab(address).is_some())
    }

    /// A buffer id that is never reused.
    pub(crate) fn next_buffer(&self) -> u64 {
        self.next_buffer.fetch_add(1, Relaxed)
    }

    /// A report of all tenants' usage, for an allocation that was refused.
    pub fn report(&self, device: &GovernedDevice, error: &Error) -> String {
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

    /// The limit that caused the refusal, if any.
    fn hint(&self, error: &Error) -> Option<&'static str> {
        match error {
            Error::Exhausted {
                bytes,
                used_bytes,
                limit_bytes,
                ..
            } if used_bytes + bytes > *limit_bytes => {
                // Otherwise the device's memory is exhausted.
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
