//! One memory pool per device, shared by all its users.
//!
//! A request searches, in this order: blocks freed in its own stream; ready blocks; blocks that its
//! stream waits for already; blocks behind fences that the device has passed since; new memory,
//! within the slack; blocks cached by threads; its own blocks merged with adjacent ready memory;
//! blocks of other streams, after a wait; blocks behind fresh fences; memory beyond the slack;
//! memory that the `on_exhausted` callbacks release. Then it fails with a report of the pool's
//! usage.
//!
//! Before all that it searches the few blocks that its thread has recently freed in the same stream
//! ([`crate::held`]), so that threads that allocate and free constantly do not contend for one
//! lock.
//!
//! A thread that repeatedly finds the pool's lock held cuts small blocks from chunks of its own
//! ([`crate::arenas`]).
//!
//! Invariants: the driver is called only through [`MemoryBacking`] and [`DeviceClock`], and never
//! with `order` locked; lock order: `growth` before `order` before those of `held` and of arenas,
//! and of the latter only one is held at a time.
//!
//! Elsewhere: where a freed block may be reused ([`crate::order`]), growing and trimming
//! ([`crate::growth`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::arenas::{Arenas, CHUNK_BYTES, CutOutcome, LARGEST_CUT, ReturnedChunks, StreamArena};
use crate::backing::MemoryBacking;
use crate::blocks::{AllocLayout, BlockId, SetId, Span};
use crate::budget::MemoryBudget;
use crate::clock::DeviceClock;
use crate::error::Error;
use crate::held::{BlockTable, EvictedBlock, FreeOutcome, FreeRefusal};
use crate::order::{Epoch, FenceDue, ReuseOrder};
use crate::origin::BlockOrigin;
use crate::place::{PoolPlace, StreamId};
use crate::request::{
    AllocationRequest, BlockRequest, FoundBlock, FreedBlock, LiveBlock, TenantId,
};
use crate::retention::PoolGrowth;
use crate::rules::{AllRules, BreakableRules, ReuseRule, ReuseRules};
use crate::threads::{CachePadded, lock, thread_number};
use crate::usage::{LiveCount, PoolUsage, TenantUsage};

/// How often the pool's lock is tried before a thread sleeps, with growing pauses: some
/// microseconds in total.
const SPINS: u32 = 10;

/// A callback that can release memory when there is none: it receives the number of missing bytes,
/// and returns whether another try is worthwhile.
pub type OnExhausted = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// Pinned memory, by its start: its end, and how often it is pinned.
pub(crate) type Pins = BTreeMap<u64, (u64, u32)>;

/// The pool; see the module. Fields are in the order in which they are read.
#[repr(C)]
pub struct DevicePool<B, C: DeviceClock, N = (), R = AllRules> {
    pub(crate) held: BlockTable<N>,
    arenas: Arenas<Mutex<Option<StreamArena>>, AtomicU64, R>,
    order: CachePadded<Mutex<ReuseOrder<C::Point, R>>>,
    pub(crate) pinned: Mutex<Pins>,
    pub(crate) growth: Mutex<PoolGrowth<B>>,
    /// The high-water mark: ready memory above this is returned; MAX for never.
    pub(crate) high_bytes: AtomicU64,
    pub(crate) clock: C,
    pub(crate) budget: Arc<MemoryBudget>,
    /// By priority, the lowest first.
    pub(crate) on_exhausted: Mutex<Vec<(i32, OnExhausted)>>,
}

impl<B: MemoryBacking, C: DeviceClock, N: Copy, R: ReuseRules> std::fmt::Debug
    for DevicePool<B, C, N, R>
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevicePool")
            .field("usage", &self.usage())
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// The furthest of `len` items for which `ask` returns something, as far as few calls tell. Most
/// often that is the last, which is tried first, or one of the first: from there the search gallops
/// forward, and back by halves. Answers may be in any order and change meanwhile: the returned item
/// was found.
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

impl<B: MemoryBacking, C: DeviceClock, N: Copy, R: ReuseRules> DevicePool<B, C, N, R> {
    pub(crate) fn order(&self) -> MutexGuard<'_, ReuseOrder<C::Point, R>> {
        // The lock is held for less time than a thread takes to sleep and be woken, unless its
        // holder is preempted.
        for tries in 0..SPINS {
            match self.order.0.try_lock() {
                Ok(order) => return order,
                Err(TryLockError::Poisoned(order)) => return order.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    if tries == 0 {
                        self.arenas.note_contention(thread_number());
                    }
                    for _ in 0..1 << tries.min(5) {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        lock(&self.order.0)
    }

    /// The pool's usage. While other threads allocate and free, its figures are of slightly
    /// different times.
    pub fn usage(&self) -> PoolUsage {
        let LiveCount { bytes, blocks } = self.held.live();
        let order = self.order();
        let all = order.blocks();
        let ready = all.free_bytes(SetId::READY);
        let held = all.live_bytes();
        PoolUsage {
            bytes: all.bytes(),
            live_bytes: bytes,
            ready_bytes: ready,
            waiting_bytes: all.bytes() - held - ready,
            cached_bytes: held.saturating_sub(bytes),
            largest_ready_bytes: all.largest_free_bytes(SetId::READY),
            blocks,
        }
    }

    /// A tenant's usage.
    pub fn account(&self, tenant: TenantId) -> TenantUsage {
        self.held.account(tenant)
    }

    /// Sets a tenant's limit, in the budget: it holds for all pools that have this budget and for
    /// which it was set, and for what other code charges there. Blocks it holds already stay, and
    /// count.
    pub fn set_tenant_limit(&self, tenant: TenantId, bytes: u64) {
        self.budget.tenant(tenant).set_limit(bytes);
        self.held.charge_live(tenant);
    }

    /// The live block that begins at `address`.
    pub fn live(&self, address: u64) -> Option<LiveBlock<N>> {
        self.held.get(address)
    }

    /// The live block that contains `address`. Visits all blocks if the address is not the start of
    /// one.
    pub fn containing(&self, address: u64) -> Option<LiveBlock<N>> {
        let around = |span: Span| span.address <= address && address < span.end();
        let found = || self.held.find(|live| around(live.span));
        self.live(address).or_else(found)
    }

    /// Calls `each` for all live blocks, in no order. Blocks that are allocated or freed meanwhile
    /// may be missed; `each` must not call the pool.
    pub fn for_each_live(&self, mut each: impl FnMut(&LiveBlock<N>)) {
        let none = self.held.find(|live| {
            each(live);
            false
        });
        debug_assert!(none.is_none());
    }

    /// Registers a callback to be called before a request fails; callbacks of lower priority are
    /// called first.
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
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    // ---- freeing ------------------------------------------------------------

    /// Prefetches the table entry of the block at `address` while the caller does other work,
    /// before it frees the block.
    #[inline]
    pub fn touch(&self, address: u64) {
        self.held.touch(address);
    }

    /// Frees the block that begins at `address`, behind the work queued at `place` so far. Never
    /// waits.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn free(&self, address: u64, place: PoolPlace) -> Result<FreedBlock<N>, Error> {
        self.free_if(address, place, |_| true)
    }

    /// As [`DevicePool::free`], only if `may` returns true for the block's note; `may` must not
    /// call the pool.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::NotPermitted`].
    pub fn free_if(
        &self,
        address: u64,
        place: PoolPlace,
        may: impl FnOnce(&N) -> bool,
    ) -> Result<FreedBlock<N>, Error> {
        let freed = self.held.free(thread_number(), address, place, may);
        let (was, freeing) = freed.map_err(|refusal| match refusal {
            FreeRefusal::Unknown => Error::Unknown { address },
            FreeRefusal::NotPermitted => Error::NotPermitted { address },
        })?;
        match freeing {
            FreeOutcome::Cached(None) => {}
            FreeOutcome::Cached(Some(EvictedBlock { id, stream })) => {
                self.give(id, PoolPlace::Stream(stream))
            }
            FreeOutcome::Away(id, BlockOrigin::POOL) => self.give(id, place),
            FreeOutcome::Away(id, origin) => {
                for (chunk, place) in self.arenas.give(origin, id, place) {
                    self.give(chunk, place);
                }
            }
        }
        Ok(was)
    }

    /// Frees all live blocks with a note for which `which` returns true, as those of a destroyed
    /// context. `which` must not call the pool.
    pub fn free_all(&self, place: PoolPlace, which: impl Fn(&N) -> bool) -> Vec<FreedBlock<N>> {
        let mut found = Vec::new();
        self.for_each_live(|live| {
            if which(&live.note) {
                found.push(live.span.address);
            }
        });
        // Another thread may have freed one of them meanwhile.
        let free = |address| self.free_if(address, place, &which).ok();
        found.into_iter().filter_map(free).collect()
    }

    /// Puts a block into the queue of a place.
    fn give(&self, id: BlockId, place: PoolPlace) {
        let given = self.order().give(id, place);
        if let Some((_, Some(due))) = given {
            self.record_due_fence(place, due);
        }
    }

    /// Puts blocks into the queues of their places.
    #[cold]
    fn give_all(&self, given: ReturnedChunks) {
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
            self.record_due_fence(place, due);
        }
    }

    /// Returns all cached blocks and arenas without live blocks to the queues; or those of a
    /// stream, which has ended.
    pub(crate) fn return_cached(&self, stream: Option<StreamId>) {
        let kept = self.held.drain(stream).into_iter();
        let mut given: ReturnedChunks = kept
            .map(|EvictedBlock { id, stream }| (id, PoolPlace::Stream(stream)))
            .collect();
        given.extend(self.arenas.clear(stream));
        self.give_all(given);
    }

    /// Records a fence where it is due.
    #[cold]
    fn record_due_fence(&self, place: PoolPlace, due: FenceDue) {
        self.record_fence(place);
        // Polling seldom would detect too late that too much is ready.
        if due.polls || self.high_bytes.load(Relaxed) < u64::MAX {
            self.poll(place);
            self.trim_excess();
        }
    }

    /// Records a fence behind what was freed at `place`; returns whether there is one now.
    pub(crate) fn record_fence(&self, place: PoolPlace) -> bool {
        let Some(epoch) = self.order().begin_fence(place) else {
            return true;
        };
        let Some(point) = self.clock.record_fence(place) else {
            return false;
        };
        self.order().end_fence(place, epoch, point);
        true
    }

    /// Polls the oldest fence of a place; returns whether it was passed, even if no block is behind
    /// it any more.
    fn poll(&self, place: PoolPlace) -> bool {
        let oldest = self.order().oldest_fence(place);
        let passed = oldest.filter(|fence| self.clock.passed(&fence.point));
        let passed = passed.map(|fence| self.order().passed(place, fence.epoch));
        passed.is_some()
    }

    /// Polls the fences of all places; returns whether any was passed.
    pub(crate) fn poll_all(&self) -> bool {
        let places = self.order().places();
        let mut any = false;
        for place in places {
            if self.poll(place) {
                any = true;
                // Only the fence to be polled is copied: there may be hundreds.
                let fences = self.order().fence_count(place);
                let passed = furthest(fences, |at| {
                    let fence = self.order().fence_at(place, at)?;
                    self.clock.passed(&fence.point).then_some(fence)
                });
                if let Some(passed) = passed {
                    self.order().passed(place, passed.epoch);
                }
            }
        }
        any
    }

    // ---- synchronisation by the host ------------------------------------------------

    /// To be called before the host waits for all work of `place`, or of all places; the result is
    /// passed to [`DevicePool::end_host_wait`] afterwards.
    pub fn begin_host_wait(&self, place: Option<PoolPlace>) -> Vec<(PoolPlace, Epoch)> {
        let mut order = self.order();
        let places = match place {
            Some(place) => vec![place],
            None => order.places(),
        };
        let mut close = |place| Some((place, order.begin_sync(place)?));
        places.into_iter().filter_map(&mut close).collect()
    }

    /// The host has waited: blocks freed there before the wait began are ready.
    pub fn end_host_wait(&self, begun: &[(PoolPlace, Epoch)]) {
        let mut order = self.order();
        for (place, epoch) in begun {
            order.passed(*place, *epoch);
        }
        drop(order);
        self.trim_excess();
    }

    /// A stream ends: to be called before it is destroyed.
    pub fn retire(&self, stream: StreamId) {
        let place = PoolPlace::Stream(stream);
        self.return_cached(Some(stream));
        let begun = self.order().begin_fence(place);
        let fence = begun.and_then(|epoch| Some((epoch, self.clock.record_fence(place)?)));
        self.order().retire(stream, fence);
    }

    /// A stream is destroyed, and all its work is done: blocks freed there are ready.
    pub fn end(&self, stream: StreamId) {
        self.return_cached(Some(stream));
        let mut order = self.order();
        order.passed(PoolPlace::Stream(stream), Epoch::LAST);
        order.retire(stream, None);
    }

    // ---- pinning ------------------------------------------------------------

    /// Pins the memory of a live block where it is, also after it is freed, until
    /// [`DevicePool::unpin`].
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn pin(&self, address: u64) -> Result<Span, Error> {
        let span = self.live(address).ok_or(Error::Unknown { address })?.span;
        self.pin_range(span);
        Ok(span)
    }

    /// Pins memory where it is, whatever blocks are in it, until [`DevicePool::unpin`] of its first
    /// address.
    pub fn pin_range(&self, span: Span) {
        let mut pinned = lock(&self.pinned);
        let pin = pinned.entry(span.address).or_insert((span.end(), 0));
        pin.0 = pin.0.max(span.end());
        pin.1 += 1;
    }

    /// Reverts one [`DevicePool::pin`].
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

impl<B: MemoryBacking, C: DeviceClock, N: Copy> DevicePool<B, C, N> {
    /// An empty pool, in which all rules of reuse hold.
    pub fn new(backing: B, clock: C, budget: Arc<MemoryBudget>) -> Self {
        Self::with_rules(backing, clock, budget)
    }
}

impl<B: MemoryBacking, C: DeviceClock, N: Copy> DevicePool<B, C, N, BreakableRules> {
    /// Breaks a rule of reuse from here on, for tests that must detect it.
    pub fn break_rule(&self, rule: ReuseRule) {
        self.arenas.rules().break_rule(rule);
        self.order().rules().break_rule(rule);
    }
}

impl<B: MemoryBacking, C: DeviceClock, N: Copy, R: ReuseRules> DevicePool<B, C, N, R> {
    /// An empty pool whose type says which rules of reuse hold.
    pub fn with_rules(backing: B, clock: C, budget: Arc<MemoryBudget>) -> Self {
        Self {
            held: BlockTable::new(budget.clone()),
            arenas: Arenas::new(),
            order: CachePadded(Mutex::default()),
            pinned: Mutex::default(),
            growth: Mutex::new(PoolGrowth::new(backing)),
            high_bytes: AtomicU64::new(u64::MAX),
            clock,
            budget,
            on_exhausted: Mutex::default(),
        }
    }

    /// Allocates a block of at least `bytes`, rounded up to 256.
    ///
    /// # Errors
    /// [`Error::Exhausted`], [`Error::Tenant`].
    #[inline]
    pub fn allocate(&self, request: &AllocationRequest<N>) -> Result<Span, Error> {
        let layout = AllocLayout::new(request.bytes, request.align_bytes);
        let charged = self.held.charge(request.tenant, layout.bytes());
        let charged = charged.map_err(|account| Error::Tenant {
            bytes: request.bytes,
            account,
        })?;
        let thread = thread_number();
        let often = match self.held.take(thread, request, layout, charged) {
            Ok(span) => return Ok(span),
            Err(often) => often,
        };
        let wanted = BlockRequest {
            place: request.place,
            layout,
            bytes: request.bytes,
        };
        let (id, span, origin) = match self.cut(thread, &wanted) {
            Some(cut) => cut,
            None => match self
                .take(thread, &wanted)
                .map_or_else(|| self.find(&wanted), Ok)
            {
                Ok((id, span)) => (id, span, BlockOrigin::POOL),
                Err(error) => {
                    self.held.refund(request.tenant, layout.bytes(), charged);
                    return Err(error);
                }
            },
        };
        let block = (id, origin);
        self.held
            .insert(thread, block, span, request, charged, often);
        Ok(span)
    }

    /// Cuts a block from the thread's arena, if it has one or should have one.
    #[inline]
    fn cut(&self, thread: usize, wanted: &BlockRequest) -> Option<(BlockId, Span, BlockOrigin)> {
        match wanted.place {
            PoolPlace::Stream(stream)
                if wanted.layout.bytes() <= LARGEST_CUT && self.arenas.is_contended(thread) =>
            {
                self.cut_from(thread, stream, wanted)
            }
            _ => None,
        }
    }

    fn cut_from(
        &self,
        thread: usize,
        stream: StreamId,
        wanted: &BlockRequest,
    ) -> Option<(BlockId, Span, BlockOrigin)> {
        for _ in 0..2 {
            match self.arenas.cut(thread, stream, wanted.layout) {
                CutOutcome::Block(id, span, origin) => return Some((id, span, origin)),
                CutOutcome::No => return None,
                CutOutcome::NeedsChunk => {}
            }
            let chunk = BlockRequest {
                layout: AllocLayout::new(CHUNK_BYTES, CHUNK_BYTES.min(wanted.layout.align_bytes())),
                bytes: CHUNK_BYTES,
                ..*wanted
            };
            let has_room = self.arenas.has_room(self.budget.limit_bytes());
            let Some((id, span)) = has_room.then(|| self.find_soon(&chunk)).flatten() else {
                self.arenas.reset_contention(thread);
                return None;
            };
            if !self.arenas.add(thread, stream, id, span) {
                self.give(id, wanted.place);
                return None;
            }
        }
        None
    }

    // Not inlined into `allocate`: its fast path would have to reserve registers for it.
    #[inline(never)]
    fn take(&self, thread: usize, wanted: &BlockRequest) -> Option<FoundBlock> {
        self.arenas.note_no_contention(thread);
        self.take_locked(&mut self.order(), wanted)
    }

    /// Takes a block that is available at once.
    pub(crate) fn take_now(&self, wanted: &BlockRequest) -> Option<FoundBlock> {
        self.take(thread_number(), wanted)
    }

    #[inline]
    pub(crate) fn take_locked(
        &self,
        order: &mut ReuseOrder<C::Point, R>,
        wanted: &BlockRequest,
    ) -> Option<FoundBlock> {
        let fit = order.find(wanted.place, wanted.layout)?;
        // Its record will be in this shard of the table.
        self.held.touch(order.blocks().address(&fit));
        let id = order.blocks_mut().take_of(fit);
        Some((id, order.blocks().span(id)?))
    }

    /// Simulates constant lock contention of the calling thread; for tests.
    #[doc(hidden)]
    pub fn assume_contention(&self) {
        self.arenas.assume_contention(thread_number());
    }

    /// Simulates that a stream alone has taken blocks for long; for tests.
    #[doc(hidden)]
    pub fn assume_alone(&self, stream: StreamId) {
        self.order().assume_alone(PoolPlace::Stream(stream));
    }

    /// Checks all invariants; for tests.
    ///
    /// # Errors
    /// The first violation.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let order = self.order();
        order.blocks().audit()?;
        let held = self.held.audit(|origin, id| match origin {
            BlockOrigin::POOL => order.blocks().span(id),
            origin => self.arenas.span(origin, id),
        })?;
        let chunks = self.arenas.audit(&held)?;
        let live = order.blocks().live_blocks();
        match live == held[BlockOrigin::POOL.number()] + chunks {
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
    fn the_furthest_is_found_with_few_calls() {
        // Miri takes some hundred times as long.
        for len in 0..if cfg!(miri) { 20 } else { 200_usize } {
            for lead in 0..=len {
                let wanted = Cell::new(0);
                let found = furthest(len, |at| {
                    wanted.set(wanted.get() + 1);
                    (at < lead).then_some(at)
                });
                assert_eq!(found, lead.checked_sub(1));
                let most = match lead {
                    lead if lead == len => len.min(1) as u32,
                    0 => 2,
                    lead => 3 + 2 * lead.ilog2(),
                };
                assert!(wanted.get() <= most, "{} for {lead} of {len}", wanted.get());
            }
        }
    }

    /// Fences that two threads end at the same time may be passed in any order, and a capture may
    /// begin between two calls.
    #[test]
    fn the_returned_item_was_found_whatever_the_answers() {
        let mut random = fastrand::Rng::with_seed(1);
        // Miri takes some hundred times as long.
        for _ in 0..if cfg!(miri) { 500 } else { 100_000 } {
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
