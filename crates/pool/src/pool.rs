//! One pool for everything that wants memory of a device.
//!
//! A request looks, in this order, at: blocks freed in its own stream; ready
//! blocks; blocks that its stream waits for already; blocks whose marks the
//! device has passed meanwhile; blocks of other streams, after a wait; blocks
//! behind fresh marks; more memory; what others give up when told that there is
//! none. Then it fails with a report of who holds what.
//!
//! Before all that it looks among the few blocks that its thread has freed in the
//! same stream just now ([`crate::magazine`]), so that threads that allocate and
//! free all the time do not meet at one lock.
//!
//! Invariants: the driver is called only through [`Backing`] and [`Clock`], and
//! never with `order` locked; of the locks, `growth` comes before a magazine's,
//! that before `order`, and that before one of `held`.
//!
//! Elsewhere: which blocks may be taken when ([`crate::order`]), more memory and
//! less ([`crate::growth`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::blocks::{BlockId, SetId, Span, Want};
use crate::growth::{Backing, Budget, Growth, Refused};
use crate::magazine::{Cached, Magazines};
use crate::order::{Epoch, Order, Place, StreamId};

/// Tenants that are told apart; further ones count as the last.
const TENANTS: usize = 64;
/// Parts of the table of live blocks, each with a lock.
const SHARDS: usize = 64;

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
    fn index(self) -> usize {
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
    /// The most that it has held.
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
    /// Freed, and kept for the stream that did.
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
        "no memory for {bytes} bytes: {} in use, {} ready (largest block {}), {} waiting for the device, {used_bytes} of {limit_bytes} granted; {refused}",
        .usage.live_bytes, .usage.ready_bytes, .usage.largest_ready_bytes, .usage.waiting_bytes
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
        "no memory for {bytes} bytes: the tenant holds {} of its {}",
        .account.live_bytes, .account.limit_bytes
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

/// A block that is live or in a magazine, as the pool keeps it.
#[derive(Clone, Copy, Debug)]
struct Held<N> {
    id: BlockId,
    tenant: TenantId,
    bytes: u64,
    requested_bytes: u64,
    note: N,
    /// In a magazine: not live to the program.
    cached: bool,
}

impl<N: Copy> Held<N> {
    /// What the program knows, if it is live.
    fn live(&self, address: u64) -> Option<Live<N>> {
        (!self.cached).then_some(Live {
            span: Span {
                address,
                bytes: self.bytes,
            },
            tenant: self.tenant,
            note: self.note,
            requested_bytes: self.requested_bytes,
        })
    }
}

/// An [`Account`] that threads share.
#[derive(Debug)]
struct Shared {
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    limit_bytes: AtomicU64,
    blocks: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            live_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            limit_bytes: AtomicU64::new(u64::MAX),
            blocks: AtomicU64::new(0),
        }
    }
}

impl Shared {
    fn read(&self) -> Account {
        Account {
            live_bytes: self.live_bytes.load(Relaxed),
            peak_bytes: self.peak_bytes.load(Relaxed),
            limit_bytes: self.limit_bytes.load(Relaxed),
            blocks: self.blocks.load(Relaxed),
        }
    }

    #[inline]
    fn charge(&self, bytes: u64) -> bool {
        let before = self.live_bytes.fetch_add(bytes, Relaxed);
        let fits = before
            .checked_add(bytes)
            .is_some_and(|sum| sum <= self.limit_bytes.load(Relaxed));
        if fits {
            self.blocks.fetch_add(1, Relaxed);
            self.peak_bytes.fetch_max(before + bytes, Relaxed);
        } else {
            self.live_bytes.fetch_sub(bytes, Relaxed);
        }
        fits
    }

    #[inline]
    fn refund(&self, bytes: u64) {
        self.live_bytes.fetch_sub(bytes, Relaxed);
        self.blocks.fetch_sub(1, Relaxed);
    }
}

/// Blocks that are live or in magazines, by where they begin.
#[derive(Debug)]
struct Table<N>([Mutex<FxHashMap<u64, Held<N>>>; SHARDS]);

impl<N> Table<N> {
    #[inline]
    fn shard(&self, address: u64) -> MutexGuard<'_, FxHashMap<u64, Held<N>>> {
        // Neighbouring blocks are in different parts.
        let mixed = (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        lock(&self.0[(mixed >> 58) as usize])
    }
}

/// Something that can give memory back when there is none: told how much is
/// missing, it says whether it is worth trying again.
pub type OnExhausted = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// See the module.
pub struct Pool<B, C: Clock, N = ()> {
    order: Mutex<Order<C::Point>>,
    held: Table<N>,
    magazines: Magazines,
    accounts: [Shared; TENANTS],
    /// Memory that stays where it is whoever has it: its end and how often.
    pub(crate) pinned: Mutex<BTreeMap<u64, (u64, u32)>>,
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

impl<B: Backing, C: Clock, N: Copy> Pool<B, C, N> {
    pub(crate) fn order(&self) -> MutexGuard<'_, Order<C::Point>> {
        lock(&self.order)
    }

    fn shared(&self, tenant: TenantId) -> &Shared {
        &self.accounts[tenant.index()]
    }

    /// Breaks a rule of reuse from now on, for tests that must see it.
    #[cfg(feature = "broken-rules")]
    pub fn break_rule(&self, rule: crate::order::Rule) {
        self.order().break_rule(rule);
    }

    /// What it holds. While others allocate and free, its figures are of
    /// slightly different times.
    pub fn usage(&self) -> Usage {
        let accounts = self.accounts.iter().map(Shared::read);
        let (live, blocks) = accounts.fold((0, 0), |(live, blocks), account| {
            (live + account.live_bytes, blocks + account.blocks)
        });
        let cached = self.magazines.bytes();
        let order = self.order();
        let all = order.blocks();
        let ready = all.free_bytes(SetId::READY);
        Usage {
            bytes: all.bytes(),
            live_bytes: live,
            ready_bytes: ready,
            waiting_bytes: all.bytes().saturating_sub(live + ready + cached),
            cached_bytes: cached,
            largest_ready_bytes: all.largest_free_bytes(SetId::READY),
            blocks,
        }
    }

    /// What a tenant holds.
    pub fn account(&self, tenant: TenantId) -> Account {
        self.shared(tenant).read()
    }

    /// How much a tenant may hold. What it holds already stays.
    pub fn set_tenant_limit(&self, tenant: TenantId, bytes: u64) {
        self.shared(tenant).limit_bytes.store(bytes, Relaxed);
    }

    /// The live block that begins at `address`.
    pub fn live(&self, address: u64) -> Option<Live<N>> {
        self.held.shard(address).get(&address)?.live(address)
    }

    /// The live block that `address` lies in. Looks at all of them where it is
    /// not the beginning of one.
    pub fn containing(&self, address: u64) -> Option<Live<N>> {
        let around = |span: Span| span.address <= address && address < span.end();
        self.live(address).or_else(|| {
            self.held.0.iter().find_map(|shard| {
                let shard = lock(shard);
                let mut all = shard.iter().filter_map(|(at, held)| held.live(*at));
                all.find(|live| around(live.span))
            })
        })
    }

    /// Shows all live blocks to `each`, in no order. Blocks that are allocated
    /// or freed meanwhile may be missed; `each` must not call the pool.
    pub fn for_each_live(&self, mut each: impl FnMut(&Live<N>)) {
        for shard in &self.held.0 {
            let shard = lock(shard);
            let all = shard.iter().filter_map(|(at, held)| held.live(*at));
            all.for_each(|live| each(&live));
        }
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
        let (id, was, kept) = {
            let mut shard = self.held.shard(address);
            let held = shard.get_mut(&address);
            let known = held.and_then(|held| Some((held.live(address)?, held)));
            let Some((was, held)) = known else {
                return Err(Error::Unknown { address });
            };
            if !may(&was.note) {
                return Err(Error::Kept { address });
            }
            let (id, bytes) = (held.id, held.bytes);
            let kept = matches!(place, Place::Stream(_)) && Magazines::keeps(bytes);
            // From here on nobody else can free it.
            if kept {
                held.cached = true;
            } else {
                shard.remove(&address);
            }
            (id, was, kept)
        };
        let span = was.span;
        self.shared(was.tenant).refund(span.bytes);
        match place {
            Place::Stream(stream) if kept => {
                if let Some(gone) = self.magazines.put(Cached { stream, span }) {
                    self.give_back(&[gone]);
                }
            }
            _ => self.give(id, place),
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
        if given.is_some_and(|(_, due)| due) {
            self.batch(place);
        }
    }

    /// Puts blocks of magazines into the queues of their streams.
    fn give_back(&self, cached: &[Cached]) {
        let mut full = Vec::new();
        let mut order = (!cached.is_empty()).then(|| self.order());
        for Cached { stream, span } in cached {
            let held = self.held.shard(span.address).remove(&span.address);
            if let (Some(order), Some(held)) = (&mut order, held) {
                let place = Place::Stream(*stream);
                let given = order.give(held.id, place);
                full.extend(given.and_then(|(_, due)| due.then_some(place)));
            }
        }
        drop(order);
        for place in full {
            self.batch(place);
        }
    }

    /// Empties all magazines.
    pub(crate) fn empty_magazines(&self) {
        self.give_back(&self.magazines.drain(None));
    }

    /// Sets a mark where it is due.
    #[cold]
    fn batch(&self, place: Place) {
        self.mark(place);
        self.look(place);
        self.relieve();
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

    /// Looks whether the oldest mark of a place has been passed.
    fn look(&self, place: Place) {
        let mark = self.order().oldest_mark(place);
        if let Some(mark) = mark.filter(|mark| self.clock.passed(&mark.point)) {
            self.order().passed(place, mark.epoch);
        }
    }

    /// Looks at the oldest marks of all places until none has been passed;
    /// whether any had.
    pub(crate) fn look_at_all(&self) -> bool {
        let mut any = false;
        let mut marks = self.order().oldest_marks();
        while !marks.is_empty() {
            marks.retain(|mark| self.clock.passed(&mark.point));
            let mut order = self.order();
            for mark in &marks {
                order.passed(mark.place, mark.epoch);
                any = true;
            }
            let places: Vec<Place> = marks.iter().map(|mark| mark.place).collect();
            marks = order.oldest_marks();
            marks.retain(|mark| places.contains(&mark.place));
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
        let mut close = |place| Some((place, order.begin_mark(place)?));
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
        self.give_back(&self.magazines.drain(Some(stream)));
        let begun = self.order().begin_mark(place);
        let mark = begun.and_then(|epoch| Some((epoch, self.clock.mark(place)?)));
        self.order().retire(stream, mark);
    }

    // ---- pinning ------------------------------------------------------------

    /// Keeps the memory of a live block where it is, also after it is freed,
    /// until [`Pool::unpin`].
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn pin(&self, address: u64) -> Result<Span, Error> {
        let span = self.live(address).ok_or(Error::Unknown { address })?.span;
        let mut pinned = lock(&self.pinned);
        let pin = pinned.entry(address).or_insert((span.end(), 0));
        pin.0 = pin.0.max(span.end());
        pin.1 += 1;
        Ok(span)
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
            order: Mutex::default(),
            held: Table(std::array::from_fn(|_| Mutex::default())),
            magazines: Magazines::default(),
            accounts: std::array::from_fn(|_| Shared::default()),
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
        let shared = self.shared(request.tenant);
        if !shared.charge(want.bytes()) {
            return Err(Error::Tenant {
                bytes: request.bytes,
                account: shared.read(),
            });
        }
        let found = self.take_cached(request, want);
        let found = found.or_else(|| self.take(request, want));
        if let Some(span) = found {
            return Ok(span);
        }
        let found = self.find(request, want);
        if found.is_err() {
            shared.refund(want.bytes());
        }
        found
    }

    /// Takes a block that this thread has freed in the same stream.
    #[inline]
    fn take_cached(&self, request: &Request<N>, want: Want) -> Option<Span> {
        let Place::Stream(stream) = request.place else {
            return None;
        };
        if !Magazines::keeps(want.bytes()) {
            return None;
        }
        let span = self.magazines.take(stream, want)?;
        let mut shard = self.held.shard(span.address);
        let held = shard.get_mut(&span.address)?;
        held.cached = false;
        held.tenant = request.tenant;
        held.requested_bytes = request.bytes;
        held.note = request.note;
        Some(span)
    }

    #[inline]
    pub(crate) fn take(&self, request: &Request<N>, want: Want) -> Option<Span> {
        self.take_locked(self.order(), request, want)
    }

    #[inline]
    pub(crate) fn take_locked(
        &self,
        mut order: MutexGuard<'_, Order<C::Point>>,
        request: &Request<N>,
        want: Want,
    ) -> Option<Span> {
        let id = order.take(request.place, want)?;
        let span = order.blocks().span(id)?;
        drop(order);
        let held = Held {
            id,
            tenant: request.tenant,
            bytes: span.bytes,
            requested_bytes: request.bytes,
            note: request.note,
            cached: false,
        };
        self.held.shard(span.address).insert(span.address, held);
        Some(span)
    }

    /// Walks everything and says what does not hold; for tests.
    ///
    /// # Errors
    /// The first thing found.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let order = self.order();
        order.blocks().audit()?;
        let (mut blocks, mut cached) = (0, 0);
        let mut accounts = vec![(0, 0); TENANTS];
        for shard in &self.held.0 {
            for (address, held) in lock(shard).iter() {
                let span = order.blocks().span(held.id);
                let expected = Span {
                    address: *address,
                    bytes: held.bytes,
                };
                if span != Some(expected) {
                    let id = held.id;
                    return Err(format!("{span:?} begins at {address:#x}, as {id:?}"));
                }
                blocks += 1;
                if held.cached {
                    cached += held.bytes;
                    continue;
                }
                let account = &mut accounts[held.tenant.index()];
                *account = (account.0 + held.bytes, account.1 + 1);
            }
        }
        let kept = self.accounts.iter().map(Shared::read);
        if !kept.map(|a| (a.live_bytes, a.blocks)).eq(accounts)
            || blocks != order.blocks().live_blocks()
            || cached != self.magazines.bytes()
        {
            return Err(format!(
                "{blocks} blocks and {cached} cached bytes are not what is kept"
            ));
        }
        Ok(())
    }
}
