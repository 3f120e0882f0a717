//! A thread's way in.
//!
//! Between two calls of ours a program does so much else that little of what a
//! call reads is in its processor's caches. So a seat keeps together what the call
//! before came to ([`Ordered`]), and by one count sees that nothing has changed
//! since that it was made of: what handles mean, captures, contexts that fail or
//! end, whose the current pools are, and that this is not the child of a fork.
//!
//! Which context is current is the thread's own affair, and the driver is asked for
//! it, unless there is no other: then it is current until the thread may have none
//! any more, which it says ([`Seat::turned`]).
//!
//! Invariant: what is kept was true when the count that stands beside it was read,
//! and whoever changes that counts it afterwards ([`Governor::changed`]).

use std::sync::atomic::Ordering::Relaxed;
use std::thread::ThreadId;

use fercuda_cuda_sys::types::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUstream};
use fercuda_ledger::{
    CellId, ChangeCount, EventKind, LedgerEvent, STEP_BYTES, Tenant, ThreadLedger,
};
use fercuda_pool::{Error, Freed, Place, Request, StreamId};

use crate::clock::{ContextId, Kind, lock, read, write};
use crate::device::Device;
use crate::governor::{Denied, Governor, Note, Stream, StreamKey, UNNAMED, id, is_done};
use crate::memory_pools::PoolNumber;
use crate::sharing::Unshared;

/// Blocks begin at multiples of so much, as frameworks expect.
const ALIGN_BYTES: u64 = 512;
/// Numbers of buffers that a thread takes at a time.
const BUFFERS: u64 = 1024;
/// A count of changes that there will not be.
const NEVER: u64 = u64::MAX;
/// Default streams of ended threads that may wait to be retired.
const ENDED: usize = 64;

/// What a call comes to that is ordered in a stream, while that is not captured.
#[derive(Clone, Copy, Debug)]
pub struct Ordered<'g> {
    /// The stream.
    pub stream: Stream,
    /// Its device, and the number of the current pool there, if ours serves that.
    pub pool: Option<(&'g Device, PoolNumber)>,
    /// Nobody else has blocks there open.
    unshared: bool,
}

/// What the last call came to.
#[derive(Debug)]
struct Kept<'g> {
    /// As of this count of changes, which is not 0; or it was good for that call.
    seen: u64,
    handle: CUstream,
    per_thread: bool,
    /// The current context, where the handle is of one's default stream.
    context: Option<CUcontext>,
    ordered: Ordered<'g>,
}

/// That the only context that there is was current, and is still.
#[derive(Clone, Copy, Debug)]
struct Only {
    /// As of this count of changes, which is not 0; or it is not known.
    seen: u64,
    context: CUcontext,
    device: u32,
}

impl Only {
    const UNKNOWN: Self = Self {
        seen: NEVER,
        context: CUcontext::NULL,
        device: 0,
    };
}

/// What a thread has allocated of a pool and freed since it last told.
#[derive(Clone, Copy, Debug, Default)]
struct Untold<'g> {
    of: Option<(&'g Device, PoolNumber)>,
    bytes: i64,
    peak: i64,
}

/// One thread's way in: what it needs most often is at hand, in the order in which
/// it is read.
#[derive(Debug)]
#[repr(C)]
pub struct Seat<'g> {
    governor: &'g Governor,
    /// None where the kernel empties nothing in a child: then nothing is kept.
    changes: Option<&'g ChangeCount>,
    only: Only,
    kept: Option<Kept<'g>>,
    /// None at the thread's end, when nothing may be kept for it.
    local: Option<ThreadLedger<'g>>,
    buffers: std::ops::Range<u64>,
    /// What the level of a pool has not heard of, and the most of it.
    untold: Untold<'g>,
    thread: ThreadId,
    number: u64,
    /// As of this count of changes.
    seen: u64,
    stream: Option<(StreamKey, Stream)>,
    context: Option<(CUcontext, (ContextId, u32))>,
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
            changes: governor.ledger().changes(),
            only: Only::UNKNOWN,
            kept: None,
            seen: 0,
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

    /// Whether this process made it, and not one that it was forked from.
    #[inline]
    pub fn is_mine(&self) -> bool {
        match self.changes {
            Some(changes) => changes.now() != 0,
            None => self.governor.ledger.is_mine(),
        }
    }

    /// The count of changes; 0 if nothing may be kept.
    #[inline]
    fn now(&self) -> u64 {
        self.changes.map_or(0, ChangeCount::now)
    }

    /// Forgets what handles meant if any may mean something else by now.
    #[inline]
    fn refresh(&mut self) {
        let now = self.now();
        if now == 0 || self.seen != now {
            self.seen = now;
            self.stream = None;
            self.context = None;
        }
    }

    /// Has what is known of the block at an address fetched from the host's memory
    /// while the caller does what comes before it frees the block.
    #[inline]
    pub fn touch(&self, address: u64) {
        // What lies between a device's addresses may be another's, which then has
        // nothing fetched; slots of further devices are not looked at for it.
        let kept = self.kept.as_ref().and_then(|kept| kept.ordered.pool);
        let _found = kept.is_some_and(|(device, _)| device.touch(address))
            || self.governor.devices().any(|device| device.touch(address));
    }

    /// What a call comes to that is ordered in a stream; none if the driver is to
    /// answer it: the stream captures, or its context has failed, or there is no
    /// such. `per_thread`: what the null handle means.
    #[inline]
    pub fn ordered(&mut self, raw: CUstream, per_thread: bool) -> Option<Ordered<'g>> {
        if !self.is_kept(raw, per_thread) {
            self.order(raw, per_thread)?;
        }
        // Read from one place, whichever way it came there.
        Some(self.kept.as_ref()?.ordered)
    }

    #[inline]
    fn is_kept(&mut self, raw: CUstream, per_thread: bool) -> bool {
        let now = self.now();
        let kept = self
            .kept
            .as_ref()
            .filter(|kept| (kept.handle, kept.per_thread) == (raw, per_thread) && kept.seen == now);
        match kept {
            None => false,
            Some(kept) => match kept.context {
                None => true,
                // One may be ending that is not counted yet, and this another.
                Some(of) if self.only.seen == now && self.only.context == of => true,
                of => self.find_current() == of,
            },
        }
    }

    /// The thread may have no current context any more. Who sees the program's calls
    /// says so: where there is one context the driver is not asked.
    pub fn turned(&mut self) {
        self.only = Only::UNKNOWN;
    }

    /// The current context, which the driver is asked for, and need not be again if
    /// it is the only one.
    fn find_current(&mut self) -> Option<CUcontext> {
        // The count first: another may be made meanwhile.
        let (seen, only) = (self.now(), self.governor.only_context());
        let current = self.current_raw();
        self.only = Only::UNKNOWN;
        if seen != 0
            && !only.is_null()
            && current == Some(only)
            && let Some((_, device)) = self.known(only)
        {
            let context = only;
            self.only = Only {
                seen,
                context,
                device,
            };
        }
        current
    }

    /// The device of the current context; none if there is none, or it has ended.
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

    /// Finds out what a call comes to, and keeps it if that holds for the next.
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
        let ordered = Ordered {
            stream,
            pool: device.map(|it| (it, governor.current_pool(it.ordinal()))),
            // Only slabs, which are a context's, can be opened by others.
            unshared: device.is_some_and(|it| it.owner().is_none()),
        };
        let is_default = [CUstream::NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&raw);
        let context = if is_default {
            self.find_current()
        } else {
            None
        };
        // While anything captures or has failed, each call asks.
        let holds = seen != 0 && !captures && !governor.has_lost_any();
        let holds = holds && is_default == context.is_some();
        self.kept = Some(Kept {
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

    /// The current context and its device; none if there is none.
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

    /// Whether the current context has ended or failed: then the driver answers
    /// whatever is asked of it. Where none is current it does not.
    #[inline]
    pub fn is_current_over(&mut self) -> bool {
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
        let got = self.allocate_of(device, tenant, context, place, pool, bytes);
        got.map_err(|denied| self.recorded(device, tenant, bytes, place, denied))
    }

    /// Allocates for a call that is ordered in a stream, of a pool of a device.
    ///
    /// # Errors
    /// [`Denied`].
    #[inline]
    pub fn allocate_ordered(
        &mut self,
        ordered: &Ordered<'g>,
        tenant: Tenant,
        (device, pool): (&'g Device, PoolNumber),
        bytes: u64,
    ) -> Result<u64, Denied> {
        let Stream { id, context, .. } = ordered.stream;
        let place = Place::Stream(id);
        let got = self.allocate_of(device, tenant, context, place, pool, bytes);
        got.map_err(|denied| self.recorded(device, tenant, bytes, place, denied))
    }

    /// The same for who asks in another way if there is none: then it is not
    /// recorded that there was none.
    #[inline]
    pub fn try_allocate_ordered(
        &mut self,
        ordered: &Ordered<'g>,
        tenant: Tenant,
        (device, pool): (&'g Device, PoolNumber),
        bytes: u64,
    ) -> Option<u64> {
        let Stream { id, context, .. } = ordered.stream;
        let place = Place::Stream(id);
        let got = self.allocate_of(device, tenant, context, place, pool, bytes);
        got.ok()
    }

    #[inline]
    fn allocate_of(
        &mut self,
        device: &'g Device,
        tenant: Tenant,
        context: ContextId,
        place: Place,
        pool: PoolNumber,
        bytes: u64,
    ) -> Result<u64, Denied> {
        let governor = self.governor;
        if !device.serves(context, || governor.memory_owner(context, device)) {
            return Err(Denied::Driver);
        }
        let stream = number_of(place);
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
            Err(error) => Err(Denied::OutOfMemory(error)),
        }
    }

    /// What was denied, and recorded if it was for want of memory.
    #[cold]
    fn recorded(
        &self,
        device: &Device,
        tenant: Tenant,
        bytes: u64,
        place: Place,
        denied: Denied,
    ) -> Denied {
        let Denied::OutOfMemory(error) = &denied else {
            return denied;
        };
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
        denied
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
        self.settle(device, &freed);
        Some(freed)
    }

    /// Frees a block for a call that is ordered in a stream, whatever order it was
    /// allocated in; with where it is freed.
    #[inline]
    pub fn free_ordered(
        &mut self,
        ordered: &Ordered<'g>,
        address: u64,
    ) -> Option<(Freed<Note>, Place)> {
        let place = Place::Stream(ordered.stream.id);
        if ordered.unshared
            && let Some((device, _)) = ordered.pool
            && let Some(freed) = device.free_if(address, place, Note::is_ordered)
        {
            self.settle(device, &freed);
            return Some((freed, place));
        }
        if let Some(freed) = self.free(address, place, Note::is_ordered) {
            return Some((freed, place));
        }
        // Memory that belongs to no stream may be freed so too; work of other
        // streams may use it yet.
        let freed = self.free(address, Place::Anywhere, |_| true)?;
        Some((freed, Place::Anywhere))
    }

    /// Gives back what a block was charged.
    #[inline]
    fn settle(&mut self, device: &'g Device, freed: &Freed<Note>) {
        self.discharge(freed.note.charge, freed.span.bytes);
        if freed.note.is_ordered() {
            self.level(device, freed.note.pool, -(freed.span.bytes as i64));
        }
    }

    /// What is in use of a pool has changed; told in steps, so that threads with
    /// small blocks do not meet there.
    #[inline]
    fn level(&mut self, device: &'g Device, pool: PoolNumber, change: i64) {
        let is_same = |of: (&Device, PoolNumber)| std::ptr::eq(of.0, device) && of.1 == pool;
        if !self.untold.of.is_some_and(is_same) {
            self.tell_level();
            self.untold.of = Some((device, pool));
        }
        self.untold.bytes += change;
        self.untold.peak = self.untold.peak.max(self.untold.bytes);
        if self.untold.bytes.unsigned_abs() >= STEP_BYTES || self.local.is_none() {
            self.tell_level();
        }
    }

    /// Tells the level what it has not heard of.
    #[inline]
    pub fn tell_level(&mut self) {
        let Untold { of, bytes, peak } = std::mem::take(&mut self.untold);
        self.untold.of = of;
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

/// The stream of a place, as figures name it.
#[inline]
fn number_of(place: Place) -> u64 {
    match place {
        Place::Stream(stream) => stream.0,
        Place::Anywhere => 0,
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        // In a child that was forked, locks may be held by nobody who is there.
        if !self.is_mine() {
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
