//! Per-thread context, through which all calls of a thread go.
//!
//! Between two calls of ours a program evicts most of what a call reads from its processor's
//! caches. So a thread context keeps the result of the previous call together ([`ResolvedStream`]),
//! and checks with one counter that nothing has changed that it depends on: the meaning of handles,
//! captures, contexts that fail or end, the current pools, and that this is not the child of a
//! fork.
//!
//! The current context is per-thread state of the driver, which is queried for it, unless there is
//! only one: then it is current until the thread may have none any more, which the caller reports
//! ([`ThreadContext::forget_current`]).
//!
//! Invariant: cached state was valid when the count stored beside it was read, and any code that
//! changes that state counts the change afterwards ([`Governor::changed`]).

use std::sync::atomic::Ordering::Relaxed;
use std::thread::ThreadId;

use fercuda_cuda_sys::types::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUstream};
use fercuda_ledger::{
    CellId, ChangeCount, EventKind, LedgerEvent, STEP_BYTES, Tenant, ThreadLedger,
};
use fercuda_pool::{AllocationRequest, Error, FreedBlock, PoolPlace, StreamId};

use crate::clock::{ContextId, StreamOrigin, lock, read, write};
use crate::device::GovernedDevice;
use crate::driver_call::is_done;
use crate::governor::{AllocationDenied, Governor, StreamInfo, StreamKey, UNNAMED};
use crate::note::{BlockNote, id};
use crate::pool_number::PoolNumber;
use crate::released_block::ReleasedBlock;
use crate::sharing::UnshareOutcome;

/// The alignment of blocks, as frameworks expect it.
const ALIGN_BYTES: u64 = 512;
/// Blocks of whole pieces of mapped memory begin with one, so that what is free between them can be
/// used elsewhere, and a limit be reached whole.
const PIECE_BYTES: u64 = 2 << 20;
/// How many buffer ids a thread takes at a time.
const BUFFERS: u64 = 1024;
/// A count of changes that is never reached.
const NEVER: u64 = u64::MAX;
/// The most default streams of ended threads that await retirement.
const ENDED: usize = 64;

/// A stream handle resolved for a stream-ordered call; the stream is not being captured.
#[derive(Clone, Copy, Debug)]
pub struct ResolvedStream<'g> {
    /// The stream.
    pub stream: StreamInfo,
    /// Its device, and the number of the current pool there, if ours serves it.
    pub pool: Option<(&'g GovernedDevice, PoolNumber)>,
    /// No other process can have blocks there open.
    unshared: bool,
}

/// The result of the last call.
#[derive(Debug)]
struct CachedCall<'g> {
    /// The count of changes it is valid for, never 0; or [`NEVER`], if it was valid for that call
    /// only.
    seen: u64,
    handle: CUstream,
    per_thread: bool,
    /// The current context, if the handle is that of its default stream.
    context: Option<CUcontext>,
    ordered: ResolvedStream<'g>,
}

/// Records that the only context was current, and still is.
#[derive(Clone, Copy, Debug)]
struct OnlyContext {
    /// The count of changes it is valid for, never 0; or [`NEVER`], if it is unknown.
    seen: u64,
    context: CUcontext,
    device: u32,
}

impl OnlyContext {
    const UNKNOWN: Self = Self {
        seen: NEVER,
        context: CUcontext::NULL,
        device: 0,
    };
}

/// A thread's change of a pool's usage that is not yet published.
#[derive(Clone, Copy, Debug, Default)]
struct PendingLevel<'g> {
    of: Option<(&'g GovernedDevice, PoolNumber)>,
    bytes: i64,
    peak: i64,
}

/// One thread's context; fields are in the order in which they are read, the most frequent first.
#[derive(Debug)]
#[repr(C)]
pub struct ThreadContext<'g> {
    governor: &'g Governor,
    /// `None` where the kernel zeroes nothing in a child: then nothing is cached.
    changes: Option<&'g ChangeCount>,
    only: OnlyContext,
    cached: Option<CachedCall<'g>>,
    /// `None` during thread teardown, when nothing may be kept.
    local: Option<ThreadLedger<'g>>,
    buffers: std::ops::Range<u64>,
    /// The unpublished change of a pool's usage, and its peak.
    pending: PendingLevel<'g>,
    thread: ThreadId,
    number: u64,
    /// The count of changes that the cached handles are valid for.
    seen: u64,
    stream: Option<(StreamKey, StreamInfo)>,
    context: Option<(CUcontext, (ContextId, u32))>,
    /// The thread's default streams.
    own: Vec<StreamId>,
}

impl<'g> ThreadContext<'g> {
    /// A context for the calling thread, which has this number.
    pub fn new(governor: &'g Governor, number: u64) -> Self {
        let mut context = Self::for_teardown(governor, number);
        context.local = Some(governor.ledger.local(number));
        context
    }

    /// A context for one call of a thread that is being torn down.
    pub fn for_teardown(governor: &'g Governor, number: u64) -> Self {
        Self {
            governor,
            local: None,
            thread: std::thread::current().id(),
            number,
            buffers: 0..0,
            changes: governor.ledger().changes(),
            only: OnlyContext::UNKNOWN,
            cached: None,
            seen: 0,
            stream: None,
            context: None,
            pending: PendingLevel::default(),
            own: Vec::new(),
        }
    }

    /// The governor.
    pub fn governor(&self) -> &'g Governor {
        self.governor
    }

    /// Whether this process created it, and not one that it was forked from.
    #[inline]
    pub fn is_mine(&self) -> bool {
        match self.changes {
            Some(changes) => changes.now() != 0,
            None => self.governor.ledger.is_mine(),
        }
    }

    /// The count of changes; 0 if nothing may be cached.
    #[inline]
    fn now(&self) -> u64 {
        self.changes.map_or(0, ChangeCount::now)
    }

    /// Forgets cached handles if any may have changed its meaning.
    #[inline]
    fn refresh(&mut self) {
        let now = self.now();
        if now == 0 || self.seen != now {
            self.seen = now;
            self.stream = None;
            self.context = None;
        }
    }

    /// Prefetches the table entry of the block at an address while the caller does other work
    /// before it frees the block.
    #[inline]
    pub fn touch(&self, address: u64) {
        // Memory between a device's ranges may belong to another, for which nothing is prefetched
        // then; the slots of further devices are not searched for this.
        let cached = self.cached.as_ref().and_then(|cached| cached.ordered.pool);
        let _found = cached.is_some_and(|(device, _)| device.touch(address))
            || self.governor.devices().any(|device| device.touch(address));
    }

    /// Resolves a handle for a stream-ordered call; `None` if the driver is to answer it: the
    /// stream is being captured, its context has faulted, or there is no such stream. `per_thread`:
    /// which default stream the null handle means.
    #[inline]
    pub fn ordered(&mut self, raw: CUstream, per_thread: bool) -> Option<ResolvedStream<'g>> {
        if !self.check_cached(raw, per_thread) {
            self.order(raw, per_thread)?;
        }
        // Read from one place, on the fast and the slow path alike.
        Some(self.cached.as_ref()?.ordered)
    }

    #[inline]
    fn check_cached(&mut self, raw: CUstream, per_thread: bool) -> bool {
        let now = self.now();
        let cached = self.cached.as_ref().filter(|cached| {
            (cached.handle, cached.per_thread) == (raw, per_thread) && cached.seen == now
        });
        match cached {
            None => false,
            Some(cached) => match cached.context {
                None => true,
                // A context may be ending that is not counted yet, and this may be another.
                Some(of) if self.only.seen == now && self.only.context == of => true,
                of => self.find_current() == of,
            },
        }
    }

    /// Reports that the thread may have no current context any more, for callers that see the
    /// program's calls: if there is one context only, the driver is not queried otherwise.
    pub fn forget_current(&mut self) {
        self.only = OnlyContext::UNKNOWN;
    }

    /// Queries the driver for the current context; the result is kept if it is the only one.
    fn find_current(&mut self) -> Option<CUcontext> {
        // The count first: another context may be created meanwhile.
        let (seen, only) = (self.now(), self.governor.only_context());
        let current = self.current_raw();
        self.only = OnlyContext::UNKNOWN;
        if seen != 0
            && !only.is_null()
            && current == Some(only)
            && let Some((_, device)) = self.known(only)
        {
            let context = only;
            self.only = OnlyContext {
                seen,
                context,
                device,
            };
        }
        current
    }

    /// The device of the current context; `None` if there is none, or it has ended.
    #[inline]
    pub fn current_device(&mut self) -> Option<u32> {
        if self.only.seen == self.now() {
            return Some(self.only.device);
        }
        self.find_device()
    }

    #[cold]
    fn find_device(&mut self) -> Option<u32> {
        let current = self.find_current()?;
        Some(self.known(current)?.1)
    }

    /// Resolves a handle, and caches the result if it is valid for later calls.
    #[cold]
    fn order(&mut self, raw: CUstream, per_thread: bool) -> Option<()> {
        let governor = self.governor;
        let seen = self.now();
        let captures = governor.anything_captures();
        if captures && governor.is_capturing(raw, per_thread) {
            return None;
        }
        let stream = self.stream(raw, per_thread)?;
        if governor.is_lost(stream.context) {
            return None;
        }
        let device = governor.device(stream.device);
        let device = device.filter(|it| !governor.passes_ordered(it.ordinal()));
        let ordered = ResolvedStream {
            stream,
            pool: device.map(|it| (it, governor.current_pool(it.ordinal()))),
            // Only slabs, which belong to a context, can be opened by other processes.
            unshared: device.is_some_and(|it| it.owner().is_none()),
        };
        let is_default = [CUstream::NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&raw);
        let context = if is_default {
            self.find_current()
        } else {
            None
        };
        // While anything captures or has faulted, each call resolves anew.
        let holds = seen != 0 && !captures && !governor.has_lost_any();
        let holds = holds && is_default == context.is_some();
        self.cached = Some(CachedCall {
            seen: if holds { seen } else { NEVER },
            handle: raw,
            per_thread,
            context,
            ordered,
        });
        Some(())
    }

    #[inline]
    fn current_raw(&self) -> Option<CUcontext> {
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call.
        let asked = unsafe { self.governor.driver.cuCtxGetCurrent(&mut raw) };
        is_done(asked).then_some(raw)
    }

    /// Whether a context is current.
    #[inline]
    pub fn has_current(&mut self) -> bool {
        self.only.seen == self.now() || self.find_current().is_some_and(|raw| !raw.is_null())
    }

    /// The current context and its device; `None` if there is none.
    #[inline]
    pub fn current(&mut self) -> Option<(ContextId, u32)> {
        let raw = self.current_raw()?;
        self.known(raw)
    }

    /// A context, and its device.
    #[inline]
    fn known(&mut self, raw: CUcontext) -> Option<(ContextId, u32)> {
        self.refresh();
        if let Some((known, context)) = self.context
            && known == raw
        {
            return Some(context);
        }
        let context = self.governor.context(raw)?;
        self.context = Some((raw, context));
        Some(context)
    }

    /// Queries whether the current context has ended or faulted: then the driver answers every
    /// call. If no context is current it does not.
    #[inline]
    pub fn query_current_over(&mut self) -> bool {
        self.governor.anything_over.load(Relaxed) && self.has_ended_or_failed()
    }

    #[cold]
    fn has_ended_or_failed(&mut self) -> bool {
        if self.current_raw().is_some_and(CUcontext::is_null) {
            return false;
        }
        let current = self.current();
        current.is_none_or(|(context, _)| self.governor.is_lost(context))
    }

    /// Resolves a stream handle; `None` if the driver does not know it. `per_thread`: which default
    /// stream the null handle means.
    #[inline]
    pub fn stream(&mut self, raw: CUstream, per_thread: bool) -> Option<StreamInfo> {
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
    fn look_up(&mut self, key: StreamKey) -> Option<StreamInfo> {
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
                // SAFETY: the results outlive the calls; the driver refuses handles that are not
                // streams.
                let known = unsafe {
                    is_done(governor.driver.cuStreamGetCtx(raw, &mut context))
                        && is_done(governor.driver.cuStreamGetId(raw, &mut number))
                };
                if !known || number >= UNNAMED {
                    return None;
                }
                (context, StreamOrigin::Created(raw), number)
            }
            StreamKey::Legacy(_) | StreamKey::OfThread(..) => {
                let kind = match key {
                    StreamKey::OfThread(_, thread) => StreamOrigin::OfThread(thread),
                    _ => StreamOrigin::Legacy,
                };
                let number = governor.next_unnamed.fetch_add(1, Relaxed);
                (self.context?.0, kind, number)
            }
        };
        let (context, device) = governor.context(raw_context)?;
        let stream = StreamInfo {
            id: StreamId(number),
            context,
            device,
        };
        let mut streams = write(&governor.streams);
        // Two threads may have come here with one stream.
        let stream = *streams.entry(key).or_insert(stream);
        // SAFETY: the driver has just confirmed it; the stream is removed before it is destroyed.
        unsafe { governor.clock.add_stream(stream.id, raw_context, kind) };
        if matches!(key, StreamKey::OfThread(..)) {
            self.own.push(stream.id);
        }
        Some(stream)
    }

    /// Allocates on a device, for a context, at a place. `pool`: the pool named by a stream-ordered
    /// call. A denial is not recorded, as another attempt may follow: see
    /// [`ThreadContext::record_denied`].
    ///
    /// # Errors
    /// [`AllocationDenied`].
    #[inline]
    pub fn allocate(
        &mut self,
        tenant: Tenant,
        (context, device): (ContextId, u32),
        place: PoolPlace,
        pool: PoolNumber,
        bytes: u64,
    ) -> Result<u64, AllocationDenied> {
        let governor = self.governor;
        if governor.is_lost(context) {
            return Err(AllocationDenied::Driver);
        }
        let device = governor.device(device).ok_or(AllocationDenied::Driver)?;
        self.allocate_of(device, tenant, context, place, pool, bytes)
    }

    /// Allocates for a stream-ordered call, from a pool of a device. A denial is not recorded: see
    /// [`ThreadContext::record_denied`].
    ///
    /// # Errors
    /// [`AllocationDenied`].
    #[inline]
    pub fn allocate_ordered(
        &mut self,
        ordered: &ResolvedStream<'g>,
        tenant: Tenant,
        (device, pool): (&'g GovernedDevice, PoolNumber),
        bytes: u64,
    ) -> Result<u64, AllocationDenied> {
        let StreamInfo { id, context, .. } = ordered.stream;
        let place = PoolPlace::Stream(id);
        self.allocate_of(device, tenant, context, place, pool, bytes)
    }

    /// As [`ThreadContext::allocate_ordered`], for a caller that tries another way on failure.
    #[inline]
    pub fn try_allocate_ordered(
        &mut self,
        ordered: &ResolvedStream<'g>,
        tenant: Tenant,
        (device, pool): (&'g GovernedDevice, PoolNumber),
        bytes: u64,
    ) -> Option<u64> {
        self.allocate_ordered(ordered, tenant, (device, pool), bytes)
            .ok()
    }

    #[inline]
    fn allocate_of(
        &mut self,
        device: &'g GovernedDevice,
        tenant: Tenant,
        context: ContextId,
        place: PoolPlace,
        pool: PoolNumber,
        bytes: u64,
    ) -> Result<u64, AllocationDenied> {
        let governor = self.governor;
        if !device.serves(context, || governor.memory_owner(context, device)) {
            return Err(AllocationDenied::Driver);
        }
        let stream = number_of(place);
        let charge = match &mut self.local {
            Some(local) => local.cell(device.row, tenant, stream),
            None => governor.ledger.cell(device.row, tenant),
        };
        let request = AllocationRequest {
            bytes,
            align_bytes: match device.owner() {
                None if bytes.is_multiple_of(PIECE_BYTES) => PIECE_BYTES,
                _ => ALIGN_BYTES,
            },
            place,
            tenant: id(tenant),
            note: BlockNote {
                charge,
                context,
                pool,
                buffer: self.buffer(),
            },
        };
        let (region, other) = device.region(bytes);
        let mut allocated = region.allocate(&request);
        // Memory that the other region can release, or that is no longer in use, may suffice.
        if allocated.is_err()
            && (governor.retire_ended() | governor.end_lingering() | (other.trim() > 0))
        {
            allocated = region.allocate(&request);
        }
        let released = match &allocated {
            Ok(_) => false,
            Err(Error::Tenant { .. }) => governor.trim_graphs(device) > 0,
            // A limit can be reached whole, whatever is pending elsewhere.
            Err(_) => governor.release_unused(device),
        };
        if released {
            allocated = region.allocate(&request);
        }
        match allocated {
            Ok(span) => {
                // No other thread knows the address yet; a refused allocation is not counted.
                match &mut self.local {
                    Some(local) => local.count(charge, span.bytes),
                    None => governor.ledger.count(charge, span.bytes),
                }
                if pool != PoolNumber::NONE {
                    self.level(device, pool, bytes as i64);
                }
                Ok(span.address)
            }
            Err(error) => Err(AllocationDenied::OutOfMemory(error)),
        }
    }

    /// Records an allocation that was denied for lack of memory.
    #[cold]
    pub fn record_denied(
        &self,
        device: &GovernedDevice,
        tenant: Tenant,
        bytes: u64,
        place: PoolPlace,
        error: &Error,
    ) {
        let (kind, detail) = match error {
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
        self.governor.ledger.record(LedgerEvent {
            kind,
            device: device.row,
            tenant,
            bytes,
            address: 0,
            detail,
            stream: number_of(place),
            thread: self.number,
        });
    }

    /// Frees the block at an address, of any device, if `may` permits it for its note; `None` if
    /// there is no such block. The block of a faulted context is the driver's to free; a block that
    /// belongs to no context is freed.
    #[inline]
    pub fn free(
        &mut self,
        address: u64,
        place: PoolPlace,
        if_so: impl Fn(&BlockNote) -> bool,
    ) -> Option<ReleasedBlock<'g>> {
        let governor = self.governor;
        let may = |note: &BlockNote| note.is_ordered() || !governor.is_lost(note.context);
        let if_so = |note: &BlockNote| may(note) && if_so(note);
        if governor.sharing.is_used() {
            match governor.unshare(address, if_so) {
                UnshareOutcome::Free => {}
                UnshareOutcome::Unknown => return None,
                UnshareOutcome::Later(device, block) => {
                    return Some(ReleasedBlock {
                        device,
                        block,
                        place,
                    });
                }
            }
        }
        let mut devices = governor.devices();
        let free = |device: &GovernedDevice| device.free_if(address, place, if_so);
        let (device, block) = devices.find_map(|device| Some((device, free(device)?)))?;
        self.settle(device, &block);
        Some(ReleasedBlock {
            device,
            block,
            place,
        })
    }

    /// Frees a block for a stream-ordered call, in whatever order it was allocated.
    #[inline]
    pub fn free_ordered(
        &mut self,
        ordered: &ResolvedStream<'g>,
        address: u64,
    ) -> Option<ReleasedBlock<'g>> {
        let place = PoolPlace::Stream(ordered.stream.id);
        if ordered.unshared
            && let Some((device, _)) = ordered.pool
            && let Some(block) = device.free_if(address, place, BlockNote::is_ordered)
        {
            self.settle(device, &block);
            return Some(ReleasedBlock {
                device,
                block,
                place,
            });
        }
        if let Some(released) = self.free(address, place, BlockNote::is_ordered) {
            return Some(released);
        }
        // Memory that is not stream-ordered may be freed this way too; work of other streams may
        // still use it.
        self.free(address, PoolPlace::Anywhere, |_| true)
    }

    /// Refunds a block's charge.
    #[inline]
    fn settle(&mut self, device: &'g GovernedDevice, freed: &FreedBlock<BlockNote>) {
        self.discharge(freed.note.charge, freed.span.bytes);
        if freed.note.is_ordered() {
            self.level(device, freed.note.pool, -(freed.requested_bytes as i64));
        }
    }

    /// Counts a change of a pool's usage; published in steps, so that threads with small blocks do
    /// not contend.
    #[inline]
    fn level(&mut self, device: &'g GovernedDevice, pool: PoolNumber, change: i64) {
        let is_same =
            |of: (&GovernedDevice, PoolNumber)| std::ptr::eq(of.0, device) && of.1 == pool;
        if !self.pending.of.is_some_and(is_same) {
            self.publish_level();
            self.pending.of = Some((device, pool));
        }
        self.pending.bytes += change;
        self.pending.peak = self.pending.peak.max(self.pending.bytes);
        if self.pending.bytes.unsigned_abs() >= STEP_BYTES || self.local.is_none() {
            self.publish_level();
        }
    }

    /// Publishes the pending change of a pool's usage.
    #[inline]
    pub fn publish_level(&mut self) {
        let PendingLevel { of, bytes, peak } = std::mem::take(&mut self.pending);
        self.pending.of = of;
        if let Some((device, pool)) = of
            && (peak != 0 || bytes != 0)
        {
            device.watermarks.change(pool, bytes, peak);
        }
    }

    #[inline]
    fn discharge(&mut self, charge: CellId, bytes: u64) {
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

/// The stream's number of a place, as reported in events.
#[inline]
fn number_of(place: PoolPlace) -> u64 {
    match place {
        PoolPlace::Stream(stream) => stream.0,
        PoolPlace::Anywhere => 0,
    }
}

impl Drop for ThreadContext<'_> {
    fn drop(&mut self) {
        // In a forked child, locks may be held by threads that do not exist there.
        if !self.is_mine() {
            return;
        }
        self.publish_level();
        if self.own.is_empty() {
            return;
        }
        // No thread can name these streams any more; their work belongs to their contexts.
        for stream in &self.own {
            self.governor.clock.remove_stream(*stream);
        }
        let thread = self.thread;
        let of_it = |key: &StreamKey| matches!(key, StreamKey::OfThread(_, of) if *of == thread);
        write(&self.governor.streams).retain(|key, _| !of_it(key));
        lock(&self.governor.ended).append(&mut self.own);
    }
}
