//! One pool for everything that wants memory of a device.
//!
//! A request looks, in this order, at: blocks freed in its own stream; ready
//! blocks; blocks that its stream waits for already; blocks whose marks the
//! device has passed meanwhile; more memory, up to the slack; blocks that threads
//! keep; what is one with ready memory beside its stream's own; blocks of other
//! streams, after a wait; blocks behind fresh marks; memory beyond the slack; what
//! others give up when told that there is none. Then it fails with a report of who
//! holds what.
//!
//! Before all that it looks among the few blocks that its thread has freed in the
//! same stream just now ([`crate::held`]), so that threads that allocate and free
//! all the time do not meet at one lock.
//!
//! A thread that finds others at the pool's lock again and again cuts small blocks
//! from chunks of its own ([`crate::arenas`]).
//!
//! Invariants: the driver is called only through [`Backing`] and [`Clock`], and
//! never with `order` locked; of the locks, `growth` comes before `order` and
//! before those of `held` and of arenas, and of these only one is held at a time.
//!
//! Elsewhere: which blocks may be taken when ([`crate::order`]), more memory and
//! less ([`crate::growth`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::arenas::{Arena, Arenas, CHUNK_BYTES, Chunks, Cut, Home, LARGEST_CUT};
use crate::blocks::{BlockId, SetId, Span, Want};
use crate::growth::{Backing, Budget, Growth, Refused, Size};
use crate::held::{Apart, Count, Freeing, Gone, Refusal, TENANTS, Table, mine};
use crate::order::{Due, Epoch, Order, Place, StreamId};

/// How often the lock of all is tried before a thread sleeps, with longer and
/// longer pauses: some microseconds together.
const SPINS: u32 = 10;

/// The order of the device's work. Every call may be refused (`None`, `false`),
/// as while a stream captures; refused is always safe.
pub trait Clock: Send + Sync {
    /// Something that the device passes.
    type Point: Send + Sync;

    /// A point behind all work queued at `place` so far.
    fn mark(&self, place: Place) -> Option<Self::Point>;

    /// Whether the device has passed a point.
    fn passed(&self, point: &Self::Point) -> bool;

    /// Makes work queued in `stream` from now on wait for a point.
    fn wait(&self, stream: StreamId, point: &Self::Point) -> bool;

    /// Waits on the host until the device has passed a point, no longer than
    /// about `patience`.
    fn join(&self, point: &Self::Point, patience: Duration) -> bool;
}

impl<C: Clock> Clock for Arc<C> {
    type Point = C::Point;

    fn mark(&self, place: Place) -> Option<C::Point> {
        C::mark(self, place)
    }

    fn passed(&self, point: &C::Point) -> bool {
        C::passed(self, point)
    }

    fn wait(&self, stream: StreamId, point: &C::Point) -> bool {
        C::wait(self, stream, point)
    }

    fn join(&self, point: &C::Point, patience: Duration) -> bool {
        C::join(self, point, patience)
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u16);

impl TenantId {
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0).min(TENANTS - 1)
    }
}

/// A request. What it notes is the caller's own; the pool keeps it with the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<N = ()> {
    /// How much.
    pub bytes: u64,
    /// The address is a multiple of this power of two, and of 256.
    pub align_bytes: u64,
    /// Where work will use it.
    pub place: Place,
    /// Whom to charge.
    pub tenant: TenantId,
    /// To be found again with the block.
    pub note: N,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live<N = ()> {
    /// Where it is.
    pub span: Span,
    /// Who is charged.
    pub tenant: TenantId,
    /// What the request noted.
    pub note: N,
    /// What was asked for, before it was rounded.
    pub requested_bytes: u64,
}

/// What a block was when it was freed.
pub type Freed<N = ()> = Live<N>;

/// What a tenant holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Bytes of its live blocks.
    pub live_bytes: u64,
    /// The most that it has held; without a limit, the most that was seen when
    /// somebody asked.
    pub peak_bytes: u64,
    /// The most that it may hold.
    pub limit_bytes: u64,
    /// Its live blocks.
    pub blocks: u64,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            live_bytes: 0,
            peak_bytes: 0,
            limit_bytes: u64::MAX,
            blocks: 0,
        }
    }
}

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All memory.
    pub bytes: u64,
    /// In live blocks.
    pub live_bytes: u64,
    /// Free for all.
    pub ready_bytes: u64,
    /// Freed, and waiting for the device.
    pub waiting_bytes: u64,
    /// Kept for the streams of threads: freed there, or free in what they cut
    /// blocks from.
    pub cached_bytes: u64,
    /// The largest block that is free for all has at least as much.
    pub largest_ready_bytes: u64,
    /// Live blocks.
    pub blocks: u64,
}

/// Why a request failed. The pool is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such block, and none can be made.
    #[error(
        "no memory for {}: {} in use, {} ready (largest block {}), {} kept by threads, {} waiting for the device, {} of {} granted; {refused}",
        Size(*.bytes), Size(.usage.live_bytes), Size(.usage.ready_bytes), Size(.usage.largest_ready_bytes),
        Size(.usage.cached_bytes), Size(.usage.waiting_bytes), Size(*.used_bytes), Size(*.limit_bytes)
    )]
    Exhausted {
        /// What was asked for.
        bytes: u64,
        /// What the pool holds.
        usage: Usage,
        /// Charged to the budget.
        used_bytes: u64,
        /// The budget.
        limit_bytes: u64,
        /// Why there is no more.
        refused: Refused,
    },
    /// The tenant's own limit.
    #[error(
        "no memory for {}: the tenant holds {} of its {}",
        Size(*.bytes), Size(.account.live_bytes), Size(.account.limit_bytes)
    )]
    Tenant {
        /// What was asked for.
        bytes: u64,
        /// What it holds.
        account: Account,
    },
    /// No live block begins there.
    #[error("no live block begins at {address:#x}")]
    Unknown {
        /// What was given.
        address: u64,
    },
    /// The caller's own condition of [`Pool::free_if`].
    #[error("the block at {address:#x} is not one to be freed this way; it stays")]
    Kept {
        /// What was given.
        address: u64,
    },
}

/// What is looked for.
pub(crate) struct Asked {
    pub(crate) place: Place,
    pub(crate) want: Want,
    /// Before they were rounded.
    pub(crate) bytes: u64,
}

/// A block that was found.
pub(crate) type Found = (BlockId, Span);

/// Something that can give memory back when there is none: told how much is
/// missing, it says whether it is worth trying again.
pub type OnExhausted = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// Memory that stays where it is whoever has it: where it begins, its end and
/// how often.
pub(crate) type Pins = BTreeMap<u64, (u64, u32)>;

/// See the module. In the order in which it is read.
#[repr(C)]
pub struct Pool<B, C: Clock, N = ()> {
    pub(crate) held: Table<N>,
    arenas: Arenas<Mutex<Option<Arena>>, AtomicU64>,
    order: Apart<Mutex<Order<C::Point>>>,
    pub(crate) pinned: Mutex<Pins>,
    pub(crate) growth: Mutex<Growth<B>>,
    /// Ready memory above this is given back; MAX for never.
    pub(crate) high_bytes: AtomicU64,
    pub(crate) clock: C,
    pub(crate) budget: Arc<Budget>,
    /// By priority, the lowest first.
    pub(crate) on_exhausted: Mutex<Vec<(i32, OnExhausted)>>,
}

impl<B: Backing, C: Clock, N: Copy> std::fmt::Debug for Pool<B, C, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("usage", &self.usage())
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is changed in steps that do not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The furthest of so many that `ask` finds, as far as few questions tell. Most
/// often that is the last, which is asked first, or one of the first ones: from
/// there it goes on by as much as lies behind, and back by halves. Answers may be in
/// any order and change meanwhile: what is returned has been found.
fn furthest<T>(len: usize, ask: impl Fn(usize) -> Option<T>) -> Option<T> {
    let last = len.checked_sub(1)?;
    let mut found = ask(last);
    if found.is_some() {
        return found;
    }
    let (mut begin, mut end) = (0, last);
    while begin < end {
        let at = begin + begin.saturating_sub(1).min((end - begin) / 2);
        match ask(at) {
            Some(one) => (found, begin) = (Some(one), at + 1),
            None => end = at,
        }
    }
    found
}

impl<B: Backing, C: Clock, N: Copy> Pool<B, C, N> {
    pub(crate) fn order(&self) -> MutexGuard<'_, Order<C::Point>> {
        // Whoever has it has it for less time than a thread takes to fall asleep
        // and to be woken, unless it was interrupted.
        for tries in 0..SPINS {
            match self.order.0.try_lock() {
                Ok(order) => return order,
                Err(TryLockError::Poisoned(order)) => return order.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    if tries == 0 {
                        self.arenas.meets(mine());
                    }
                    for _ in 0..1 << tries.min(5) {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        lock(&self.order.0)
    }

    /// Breaks a rule of reuse from now on, for tests that must see it.
    #[cfg(feature = "broken-rules")]
    pub fn break_rule(&self, rule: crate::order::Rule) {
        if rule == crate::order::Rule::ElsewhereIsLost {
            self.arenas.break_rule();
        }
        self.order().break_rule(rule);
    }

    /// What it holds. While others allocate and free, its figures are of
    /// slightly different times.
    pub fn usage(&self) -> Usage {
        let Count { bytes, blocks } = self.held.live();
        let order = self.order();
        let all = order.blocks();
        let ready = all.free_bytes(SetId::READY);
        let held = all.live_bytes();
        Usage {
            bytes: all.bytes(),
            live_bytes: bytes,
            ready_bytes: ready,
            waiting_bytes: all.bytes() - held - ready,
            cached_bytes: held.saturating_sub(bytes),
            largest_ready_bytes: all.largest_free_bytes(SetId::READY),
            blocks,
        }
    }

    /// What a tenant holds.
    pub fn account(&self, tenant: TenantId) -> Account {
        self.held.account(tenant)
    }

    /// How much a tenant may hold. What it holds already stays.
    pub fn set_tenant_limit(&self, tenant: TenantId, bytes: u64) {
        self.held.set_limit(tenant, bytes);
    }

    /// The live block that begins at `address`.
    pub fn live(&self, address: u64) -> Option<Live<N>> {
        self.held.get(address)
    }

    /// The live block that `address` lies in. Looks at all of them where it is
    /// not the beginning of one.
    pub fn containing(&self, address: u64) -> Option<Live<N>> {
        let around = |span: Span| span.address <= address && address < span.end();
        let found = || self.held.find(|live| around(live.span));
        self.live(address).or_else(found)
    }

    /// Shows all live blocks to `each`, in no order. Blocks that are allocated
    /// or freed meanwhile may be missed; `each` must not call the pool.
    pub fn for_each_live(&self, mut each: impl FnMut(&Live<N>)) {
        let none = self.held.find(|live| {
            each(live);
            false
        });
        debug_assert!(none.is_none());
    }

    /// Calls `on_exhausted` before a request fails; of several, those of lower
    /// priority first.
    pub fn on_exhausted(&self, priority: i32, on_exhausted: OnExhausted) {
        let mut all = lock(&self.on_exhausted);
        let at = all.partition_point(|(p, _)| *p <= priority);
        all.insert(at, (priority, on_exhausted));
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The budget that its memory is charged to.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    // ---- freeing ------------------------------------------------------------

    /// Has what is known of the block at `address` fetched from the host's
    /// memory while the caller does other things, before it frees the block.
    #[inline]
    pub fn touch(&self, address: u64) {
        self.held.touch(address);
    }

    /// Frees the block that begins at `address`, behind the work queued at
    /// `place` so far. Waits for nothing.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn free(&self, address: u64, place: Place) -> Result<Freed<N>, Error> {
        self.free_if(address, place, |_| true)
    }

    /// [`Pool::free`] of a block whose note is such that it may be freed so;
    /// `may` must not call the pool.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Kept`].
    pub fn free_if(
        &self,
        address: u64,
        place: Place,
        may: impl FnOnce(&N) -> bool,
    ) -> Result<Freed<N>, Error> {
        let freed = self.held.free(mine(), address, place, may);
        let (was, freeing) = freed.map_err(|refusal| match refusal {
            Refusal::Unknown => Error::Unknown { address },
            Refusal::Kept => Error::Kept { address },
        })?;
        match freeing {
            Freeing::Kept(None) => {}
            Freeing::Kept(Some(Gone { id, stream })) => self.give(id, Place::Stream(stream)),
            Freeing::Away(id, Home::POOL) => self.give(id, place),
            Freeing::Away(id, home) => {
                for (chunk, place) in self.arenas.give(home, id, place) {
                    self.give(chunk, place);
                }
            }
        }
        Ok(was)
    }

    /// Frees all live blocks whose note is such, as of a context that is gone.
    /// `which` must not call the pool.
    pub fn free_all(&self, place: Place, which: impl Fn(&N) -> bool) -> Vec<Freed<N>> {
        let mut found = Vec::new();
        self.for_each_live(|live| {
            if which(&live.note) {
                found.push(live.span.address);
            }
        });
        // Somebody may have freed one of them meanwhile.
        let free = |address| self.free_if(address, place, &which).ok();
        found.into_iter().filter_map(free).collect()
    }

    /// Puts a block into the queue of a place.
    fn give(&self, id: BlockId, place: Place) {
        let given = self.order().give(id, place);
        if let Some((_, Some(due))) = given {
            self.batch(place, due);
        }
    }

    /// Puts blocks into the queues of their places.
    #[cold]
    fn give_all(&self, given: Chunks) {
        if given.is_empty() {
            return;
        }
        let mut full = Vec::new();
        let mut order = self.order();
        for (id, place) in given {
            let given = order.give(id, place);
            full.extend(given.and_then(|(_, due)| Some((place, due?))));
        }
        drop(order);
        for (place, due) in full {
            self.batch(place, due);
        }
    }

    /// Keeps nothing that is not live any more; or nothing for a stream, which
    /// gets no more work.
    pub(crate) fn give_back_all(&self, stream: Option<StreamId>) {
        let kept = self.held.drain(stream).into_iter();
        let mut given: Chunks = kept
            .map(|Gone { id, stream }| (id, Place::Stream(stream)))
            .collect();
        given.extend(self.arenas.clear(stream));
        self.give_all(given);
    }

    /// Sets a mark where it is due.
    #[cold]
    fn batch(&self, place: Place, due: Due) {
        self.mark(place);
        // Who looks seldom would see too late that too much is ready.
        if due.looks || self.high_bytes.load(Relaxed) < u64::MAX {
            self.look(place);
            self.relieve();
        }
    }

    /// Sets a mark behind what was freed at `place`; whether there is one now.
    pub(crate) fn mark(&self, place: Place) -> bool {
        let Some(epoch) = self.order().begin_mark(place) else {
            return true;
        };
        let Some(point) = self.clock.mark(place) else {
            return false;
        };
        self.order().end_mark(place, epoch, point);
        true
    }

    /// Looks whether the oldest mark of a place has been passed; whether it had,
    /// though there may be nothing behind it any more.
    fn look(&self, place: Place) -> bool {
        let oldest = self.order().oldest_mark(place);
        let passed = oldest.filter(|mark| self.clock.passed(&mark.point));
        let passed = passed.map(|mark| self.order().passed(place, mark.epoch));
        passed.is_some()
    }

    /// Looks which marks of all places have been passed; whether any had.
    pub(crate) fn look_at_all(&self) -> bool {
        let places = self.order().places();
        let mut any = false;
        for place in places {
            if self.look(place) {
                any = true;
                // None is copied but the one that is asked: there may be hundreds.
                let marks = self.order().marks(place);
                let passed = furthest(marks, |at| {
                    let mark = self.order().mark_at(place, at)?;
                    self.clock.passed(&mark.point).then_some(mark)
                });
                if let Some(passed) = passed {
                    self.order().passed(place, passed.epoch);
                }
            }
        }
        any
    }

    // ---- what the host knows ------------------------------------------------

    /// To be called before the host waits for all work of `place`, or of all
    /// places; what it returns is told when it has.
    pub fn sync_begins(&self, place: Option<Place>) -> Vec<(Place, Epoch)> {
        let mut order = self.order();
        let places = match place {
            Some(place) => vec![place],
            None => order.places(),
        };
        let mut close = |place| Some((place, order.begin_sync(place)?));
        places.into_iter().filter_map(&mut close).collect()
    }

    /// The host has waited: what was freed there before it began is ready.
    pub fn sync_ended(&self, begun: &[(Place, Epoch)]) {
        let mut order = self.order();
        for (place, epoch) in begun {
            order.passed(*place, *epoch);
        }
        drop(order);
        self.relieve();
    }

    /// A stream gets no more work: to be called before it is destroyed.
    pub fn retire(&self, stream: StreamId) {
        let place = Place::Stream(stream);
        self.give_back_all(Some(stream));
        let begun = self.order().begin_mark(place);
        let mark = begun.and_then(|epoch| Some((epoch, self.clock.mark(place)?)));
        self.order().retire(stream, mark);
    }

    /// A stream is gone, and all that was queued in it is done: what was freed
    /// there is ready.
    pub fn end(&self, stream: StreamId) {
        self.give_back_all(Some(stream));
        let mut order = self.order();
        order.passed(Place::Stream(stream), Epoch::LAST);
        order.retire(stream, None);
    }

    // ---- pinning ------------------------------------------------------------

    /// Keeps the memory of a live block where it is, also after it is freed,
    /// until [`Pool::unpin`].
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn pin(&self, address: u64) -> Result<Span, Error> {
        let span = self.live(address).ok_or(Error::Unknown { address })?.span;
        self.pin_range(span);
        Ok(span)
    }

    /// Keeps memory where it is, whatever blocks are in it, until
    /// [`Pool::unpin`] of its first address.
    pub fn pin_range(&self, span: Span) {
        let mut pinned = lock(&self.pinned);
        let pin = pinned.entry(span.address).or_insert((span.end(), 0));
        pin.0 = pin.0.max(span.end());
        pin.1 += 1;
    }

    /// Takes one [`Pool::pin`] back.
    pub fn unpin(&self, address: u64) {
        let mut pinned = lock(&self.pinned);
        if let Some((_, count)) = pinned.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                pinned.remove(&address);
            }
        }
    }
}

impl<B: Backing, C: Clock, N: Copy> Pool<B, C, N> {
    /// An empty pool.
    pub fn new(backing: B, clock: C, budget: Arc<Budget>) -> Self {
        Self {
            held: Table::new(),
            arenas: Arenas::new(),
            order: Apart(Mutex::default()),
            pinned: Mutex::default(),
            growth: Mutex::new(Growth::new(backing)),
            high_bytes: AtomicU64::new(u64::MAX),
            clock,
            budget,
            on_exhausted: Mutex::default(),
        }
    }

    /// Takes a block of at least `bytes`, rounded up to 256.
    ///
    /// # Errors
    /// [`Error::Exhausted`], [`Error::Tenant`].
    #[inline]
    pub fn allocate(&self, request: &Request<N>) -> Result<Span, Error> {
        let want = Want::new(request.bytes, request.align_bytes);
        let Some(charged) = self.held.charge(request.tenant, want.bytes()) else {
            return Err(Error::Tenant {
                bytes: request.bytes,
                account: self.account(request.tenant),
            });
        };
        let thread = mine();
        let often = match self.held.take(thread, request, want, charged) {
            Ok(span) => return Ok(span),
            Err(often) => often,
        };
        let asked = Asked {
            place: request.place,
            want,
            bytes: request.bytes,
        };
        let (id, span, home) = match self.cut(thread, &asked) {
            Some(cut) => cut,
            None => match self
                .take(thread, &asked)
                .map_or_else(|| self.find(&asked), Ok)
            {
                Ok((id, span)) => (id, span, Home::POOL),
                Err(error) => {
                    self.held.refund(request.tenant, want.bytes(), charged);
                    return Err(error);
                }
            },
        };
        let block = (id, home);
        self.held
            .insert(thread, block, span, request, charged, often);
        Ok(span)
    }

    /// Cuts a block from the thread's arena, if it has one or should.
    #[inline]
    fn cut(&self, thread: usize, asked: &Asked) -> Option<(BlockId, Span, Home)> {
        match asked.place {
            Place::Stream(stream)
                if asked.want.bytes() <= LARGEST_CUT && self.arenas.is_worth_it(thread) =>
            {
                self.cut_from(thread, stream, asked)
            }
            _ => None,
        }
    }

    fn cut_from(
        &self,
        thread: usize,
        stream: StreamId,
        asked: &Asked,
    ) -> Option<(BlockId, Span, Home)> {
        for _ in 0..2 {
            match self.arenas.cut(thread, stream, asked.want) {
                Cut::Block(id, span, home) => return Some((id, span, home)),
                Cut::No => return None,
                Cut::Hungry => {}
            }
            let chunk = Asked {
                want: Want::new(CHUNK_BYTES, CHUNK_BYTES.min(asked.want.align_bytes())),
                bytes: CHUNK_BYTES,
                ..*asked
            };
            let has_room = self.arenas.has_room(self.budget.limit_bytes());
            let Some((id, span)) = has_room.then(|| self.find_soon(&chunk)).flatten() else {
                self.arenas.had_none(thread);
                return None;
            };
            if !self.arenas.add(thread, stream, id, span) {
                self.give(id, asked.place);
                return None;
            }
        }
        None
    }

    // Not part of `allocate`, whose short way would have to make room for it.
    #[inline(never)]
    fn take(&self, thread: usize, asked: &Asked) -> Option<Found> {
        self.arenas.meets_nobody(thread);
        self.take_locked(&mut self.order(), asked)
    }

    /// Takes a block that is there.
    pub(crate) fn take_now(&self, asked: &Asked) -> Option<Found> {
        self.take(mine(), asked)
    }

    #[inline]
    pub(crate) fn take_locked(&self, order: &mut Order<C::Point>, asked: &Asked) -> Option<Found> {
        let fit = order.find(asked.place, asked.want)?;
        // Its record will be in this part of the table.
        self.held.touch(order.blocks().address(&fit));
        let id = order.blocks_mut().take_of(fit);
        Some((id, order.blocks().span(id)?))
    }

    /// As if the calling thread had met others all the time; for tests.
    #[doc(hidden)]
    pub fn meets_others(&self) {
        self.arenas.meets_all_the_time(mine());
    }

    /// As if a stream alone had taken blocks for long; for tests.
    #[doc(hidden)]
    pub fn leave_alone(&self, stream: StreamId) {
        self.order().leave_alone(Place::Stream(stream));
    }

    /// Walks everything and says what does not hold; for tests.
    ///
    /// # Errors
    /// The first thing found.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let order = self.order();
        order.blocks().audit()?;
        let held = self.held.audit(|home, id| match home {
            Home::POOL => order.blocks().span(id),
            home => self.arenas.span(home, id),
        })?;
        let chunks = self.arenas.audit(&held)?;
        let live = order.blocks().live_blocks();
        match live == held[Home::POOL.number()] + chunks {
            true => Ok(()),
            false => Err(format!(
                "{live} blocks live, {} held, {chunks} chunks",
                held[0]
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_furthest_is_found_with_few_questions() {
        for len in 0..200_usize {
            for lead in 0..=len {
                let asked = Cell::new(0);
                let found = furthest(len, |at| {
                    asked.set(asked.get() + 1);
                    (at < lead).then_some(at)
                });
                assert_eq!(found, lead.checked_sub(1));
                let most = match lead {
                    lead if lead == len => len.min(1) as u32,
                    0 => 2,
                    lead => 3 + 2 * lead.ilog2(),
                };
                assert!(asked.get() <= most, "{} for {lead} of {len}", asked.get());
            }
        }
    }

    /// Marks that two threads end at the same time may be passed in any order, and
    /// a capture may begin between two questions.
    #[test]
    fn what_is_returned_was_found_whatever_is_answered() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let answers = Cell::new(random.u64(..));
            let last_found = Cell::new(None);
            let found = furthest(random.usize(..12), |at| {
                let answer = answers.get();
                answers.set(answer >> 1);
                (answer % 2 == 1).then(|| last_found.set(Some(at)))?;
                Some(at)
            });
            assert_eq!(found, last_found.get());
        }
    }
}
