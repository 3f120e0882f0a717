//! Sharded table of live blocks, and per-thread caches of freed ones.
//!
//! The table is divided into shards, each with a lock. A block that was freed in a stream may stay
//! cached here: later work of the stream runs later, so the stream may have the block again at
//! once, and neither is the lock of [`crate::order`] taken nor the block merged and split again. A
//! thread finds such a block through its own hints, which are words without a lock: they may be
//! wrong, since the truth is decided under the lock of the shard.
//!
//! Only blocks of sizes that a thread requests repeatedly are cached, so that sizes requested once
//! cost nothing here.
//!
//! Invariants: a block is live, or cached and in the list of its shard, which holds a bounded
//! number of blocks and of bytes; a thread that runs out of memory evicts all cached blocks. Live
//! bytes are counted per thread, each change under the lock of the block's shard; for a tenant with
//! a limit in its account besides ([`MemoryBudget::tenant`]), before the block exists.
//!
//! Elsewhere: a shard's blocks (`shard`), checking all invariants (`audit`), the blocks themselves
//! ([`crate::blocks`]), when they may be reused ([`crate::order`]).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex};

use crate::blocks::{AllocLayout, BlockId, Span};
use crate::budget::{ChargeRefused, MemoryBudget};
use crate::origin::BlockOrigin;
use crate::place::{PoolPlace, StreamId};
use crate::request::{AllocationRequest, LiveBlock, TENANTS, TenantId};
use crate::threads::{CachePadded, Lock, SharedWord};
use crate::usage::{LiveCount, TenantUsage};

mod audit;
mod shard;

pub(crate) use shard::EvictedBlock;
use shard::{CACHED, CACHED_BYTES, HeldBlock, LARGEST_CACHED, Shard};

/// The number of shards: enough that the blocks of some dozen threads are seldom in one, since
/// writes to the same cache line contend.
const SHARDS: usize = 1024;
/// The number of threads with hints and counts of their own; further ones share them.
const THREADS: usize = 64;
/// Bytes of one size that a thread caches in a stream, up to twice as many: cached blocks fragment
/// memory for larger ones.
const HINTED_BYTES: u64 = 2 << 20;
/// The hint sets of a thread, and the hints per set.
const SETS: usize = 32;
// The state space of the loom model grows with every shared word.
const WAYS: usize = if cfg!(test) { 2 } else { 8 };
/// How many recently requested sizes a thread remembers.
const REQUESTED: usize = 128;

/// A shard and its lock.
#[repr(C)]
struct LockedShard<L, W> {
    /// Has no meaning: stores to it prefetch the lock's cache line.
    line: W,
    shard: L,
}

/// A thread's hints to cached blocks.
struct CacheHints<W> {
    /// Addresses of cached blocks with eight bits of their stream's and size's hash; in each set
    /// the newest first, followed by zeros (almost always, where threads share a set).
    sets: [[W; WAYS]; SETS],
    /// Hashes that were requested and not found; the lowest bit: twice.
    requested: [W; REQUESTED],
}

/// The table; see the module. Fields are in the order in which they are read.
#[repr(C, align(64))]
pub(crate) struct BlockTable<N, L = Mutex<Shard<N>>, W = AtomicU64> {
    shards: Box<[CachePadded<LockedShard<L, W>>]>,
    hints: Box<[CachePadded<CacheHints<W>>]>,
    /// Live counts by thread and tenant; changed under the lock of the block's shard. The last one
    /// is shared by all threads without their own.
    counts: Box<[CachePadded<[W; TENANTS]>]>,
    /// A bit for each shard, 0 if it caches nothing; changed under its lock.
    caching: Box<[W]>,
    /// A bit for each tenant that has a limit. If none has, this word is all that is read of
    /// limits.
    limited: AtomicU64,
    /// A bit for each thread with hints that has cached a block since the last drain.
    caching_threads: W,
    /// Has the accounts of tenants that have a limit.
    budget: Arc<MemoryBudget>,
    note: std::marker::PhantomData<fn(N) -> N>,
}

/// Whether a request was charged to its tenant's limit before its block exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantCharge(bool);

/// What happened to a freed block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FreeOutcome {
    /// It is cached; the block evicted for it, if any.
    Cached(Option<EvictedBlock>),
    /// It is not in the table any more.
    Away(BlockId, BlockOrigin),
}

/// Why a block is not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeRefusal {
    /// No live block begins there.
    Unknown,
    /// The caller's condition does not hold.
    NotPermitted,
}

#[inline]
fn hash(stream: StreamId, bytes: u64) -> u64 {
    (stream.0 ^ bytes.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Encodes a hint: addresses are multiples of 256.
#[inline]
fn hint(address: u64, hash: u64) -> u64 {
    address | (hash >> 40 & 0xff)
}

impl<N: Copy, L: Lock<Shard<N>>, W: SharedWord> BlockTable<N, L, W> {
    /// An empty table.
    pub(crate) fn new(budget: Arc<MemoryBudget>) -> Self {
        Self::of(SHARDS, THREADS, budget)
    }

    /// With `shards` shards, for `threads` threads; both are powers of two.
    fn of(shards: usize, threads: usize, budget: Arc<MemoryBudget>) -> Self {
        let hints = || CacheHints {
            sets: std::array::from_fn(|_| std::array::from_fn(|_| W::default())),
            requested: std::array::from_fn(|_| W::default()),
        };
        let shard = |_| {
            let (line, shard) = (W::default(), L::new(Shard::new()));
            CachePadded(LockedShard { line, shard })
        };
        let none = || std::array::from_fn(|_| W::default());
        Self {
            shards: (0..shards).map(shard).collect(),
            caching: (0..shards.div_ceil(64)).map(|_| W::default()).collect(),
            caching_threads: W::default(),
            hints: (0..threads).map(|_| CachePadded(hints())).collect(),
            counts: (0..=threads).map(|_| CachePadded(none())).collect(),
            limited: AtomicU64::new(0),
            budget,
            note: std::marker::PhantomData,
        }
    }

    #[inline]
    fn shard(&self, address: u64) -> &L {
        &self.shards[self.place(address)].0.shard
    }

    /// Prefetches the cache line of a block's lock while the caller does other work.
    #[inline]
    pub(crate) fn touch(&self, address: u64) {
        // A store does not stall, as a load would.
        self.shards[self.place(address)].0.line.set(0);
    }

    #[inline]
    fn place(&self, address: u64) -> usize {
        // Adjacent blocks are in different shards.
        let mixed = (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn hints(&self, thread: usize) -> &CacheHints<W> {
        &self.hints[thread & (self.hints.len() - 1)].0
    }

    #[inline]
    fn set(&self, thread: usize, hash: u64) -> &[W; WAYS] {
        &self.hints(thread).sets[(hash >> 59) as usize % SETS]
    }

    // ---- limits -------------------------------------------------------------

    /// Whether a tenant has a limit; that does not change while a shard is locked.
    #[inline]
    fn is_limited(&self, tenant: TenantId) -> bool {
        self.limited.load(Acquire) >> tenant.index() & 1 != 0
    }

    /// Charges a tenant that has a limit.
    ///
    /// # Errors
    /// [`ChargeRefused`].
    #[inline]
    pub(crate) fn charge(
        &self,
        tenant: TenantId,
        bytes: u64,
    ) -> Result<TenantCharge, ChargeRefused> {
        let is_charged = self.is_limited(tenant);
        if is_charged {
            self.budget.tenant(tenant).charge(bytes)?;
        }
        Ok(TenantCharge(is_charged))
    }

    /// Reverts a charge for which no block was made.
    pub(crate) fn refund(&self, tenant: TenantId, bytes: u64, charged: TenantCharge) {
        if charged.0 {
            self.budget.tenant(tenant).refund(bytes);
        }
    }

    /// Counts a block as live; under the lock of its shard.
    #[inline]
    fn settle(&self, tenant: TenantId, bytes: u64, charged: TenantCharge) {
        // The limit may have been set after the charge.
        if !charged.0 && self.is_limited(tenant) {
            self.budget.tenant(tenant).add(bytes);
        }
    }

    /// Stops counting a block as live; under the lock of its shard.
    #[inline]
    fn unsettle(&self, tenant: TenantId, bytes: u64) {
        self.refund(tenant, bytes, TenantCharge(self.is_limited(tenant)));
    }

    /// From now on the tenant's live blocks, those that exist included, are in its account.
    pub(crate) fn charge_live(&self, tenant: TenantId) {
        if !self.is_limited(tenant) {
            // All shards are locked, so every block is charged once from one moment on.
            self.charge_live_from(tenant, 0);
        }
    }

    /// With the shards from `at` on locked here, and those before by the caller.
    fn charge_live_from(&self, tenant: TenantId, at: usize) {
        if let Some(shard) = self.shards.get(at) {
            return shard
                .0
                .shard
                .with(|_| self.charge_live_from(tenant, at + 1));
        }
        if !self.is_limited(tenant) {
            self.budget.tenant(tenant).add(self.count(tenant).bytes);
            // A thread that sees this bit changes the account that was changed above, also if other
            // tenants have got a limit since.
            self.limited.fetch_or(1 << tenant.index(), Release);
        }
    }

    /// The live blocks of a tenant.
    fn count(&self, tenant: TenantId) -> LiveCount {
        let counts = self.counts.iter().map(|of| of.0[tenant.index()].get());
        LiveCount::unpack(counts.fold(0, u64::wrapping_add))
    }

    /// A tenant's usage.
    pub(crate) fn account(&self, tenant: TenantId) -> TenantUsage {
        let live = self.count(tenant);
        TenantUsage {
            live_bytes: live.bytes,
            limit_bytes: self.budget.tenant(tenant).limit_bytes(),
            blocks: live.blocks,
        }
    }

    /// All live blocks.
    pub(crate) fn live(&self) -> LiveCount {
        let mut live = LiveCount::default();
        for tenant in 0..TENANTS {
            live.add(self.count(TenantId(tenant as u16)));
        }
        live
    }

    /// Adds to the counts of a thread; under the lock of a shard.
    #[inline]
    fn add(&self, thread: usize, tenant: TenantId, change: u64) {
        let shared = self.counts.len() - 1;
        let count = |of: usize| &self.counts[of].0[tenant.index()];
        match thread < shared {
            true => count(thread).add_own(change),
            false => count(shared).add(change),
        }
    }

    // ---- blocks -------------------------------------------------------------

    /// Makes a block live that was found elsewhere.
    #[inline]
    pub(crate) fn insert(
        &self,
        thread: usize,
        (id, origin): (BlockId, BlockOrigin),
        span: Span,
        request: &AllocationRequest<N>,
        charged: TenantCharge,
        frequent: bool,
    ) {
        let held = HeldBlock {
            id,
            origin,
            bytes: span.bytes,
            requested_bytes: request.bytes,
            note: request.note,
            tenant: request.tenant,
            frequent,
            cached: 0,
        };
        self.shard(span.address).with(|shard| {
            shard.blocks.insert(span.address, held);
            self.add(thread, request.tenant, LiveCount::packed(span.bytes));
            self.settle(request.tenant, span.bytes, charged);
        });
    }

    /// Takes a block that is cached for the stream; otherwise returns whether the size is requested
    /// repeatedly.
    #[inline]
    pub(crate) fn take(
        &self,
        thread: usize,
        request: &AllocationRequest<N>,
        layout: AllocLayout,
        charged: TenantCharge,
    ) -> Result<Span, bool> {
        let PoolPlace::Stream(stream) = request.place else {
            return Err(false);
        };
        if layout.bytes() > LARGEST_CACHED {
            return Err(false);
        }
        let hash = hash(stream, layout.bytes());
        let ways = self.set(thread, hash);
        for way in 0..WAYS {
            let found = ways[way].get();
            if found == 0 {
                // Hints behind an empty one are ignored until they are overwritten.
                break;
            }
            if found & 0xff != hint(0, hash) {
                continue;
            }
            let address = found & !0xff;
            if address & (layout.align_bytes() - 1) != 0 {
                continue;
            }
            // Removes the hint, whether the block is found or not.
            for way in way + 1..WAYS {
                ways[way - 1].set(ways[way].get());
            }
            ways[WAYS - 1].set(0);
            if self.retake(thread, address, stream, request, layout, charged) {
                return Ok(Span {
                    address,
                    bytes: layout.bytes(),
                });
            }
        }
        let requested = &self.hints(thread).requested[(hash >> 50) as usize % REQUESTED];
        // A second request may be chance, a third shows a pattern.
        let (first, again) = (hash & !1, hash | 1);
        match requested.get() {
            before if before == again => Err(true),
            before => {
                requested.set(if before == first { again } else { first });
                Err(false)
            }
        }
    }

    /// Makes a cached block live, if it is present and matches; returns whether it did.
    #[inline]
    fn retake(
        &self,
        thread: usize,
        address: u64,
        stream: StreamId,
        request: &AllocationRequest<N>,
        layout: AllocLayout,
        charged: TenantCharge,
    ) -> bool {
        self.shard(address).with(|shard| {
            let Some(held) = shard.blocks.get_mut(address) else {
                return false;
            };
            let at = usize::from(held.cached);
            if at == 0 || held.bytes != layout.bytes() || shard.cached[at - 1].1 != stream {
                return false;
            }
            held.cached = 0;
            held.tenant = request.tenant;
            held.requested_bytes = request.bytes;
            held.note = request.note;
            shard.taken &= !(1 << (at - 1));
            shard.cached_bytes -= layout.bytes();
            self.add(thread, request.tenant, LiveCount::packed(layout.bytes()));
            self.settle(request.tenant, layout.bytes(), charged);
            true
        })
    }

    /// Frees a live block if `may` permits it; returns the block, and what happened to it.
    #[inline]
    pub(crate) fn free(
        &self,
        thread: usize,
        address: u64,
        place: PoolPlace,
        may: impl FnOnce(&N) -> bool,
    ) -> Result<(LiveBlock<N>, FreeOutcome), FreeRefusal> {
        let place_of_it = self.place(address);
        let (was, freeing) = self.shards[place_of_it].0.shard.with(|shard| {
            let held = shard.blocks.get_mut(address).ok_or(FreeRefusal::Unknown)?;
            let was = held.live(address).ok_or(FreeRefusal::Unknown)?;
            if !may(&was.note) {
                return Err(FreeRefusal::NotPermitted);
            }
            let bytes = was.span.bytes;
            // An arena's block is cheap to cut, and caching it would clutter the arena.
            let fits = held.frequent
                && held.origin == BlockOrigin::POOL
                && shard.cached_bytes + bytes <= CACHED_BYTES;
            let freeing = match place {
                PoolPlace::Stream(stream) if fits && !self.is_full(thread, stream, bytes) => {
                    let vacant = shard.taken.trailing_ones() as usize;
                    let at = if vacant < CACHED {
                        vacant
                    } else {
                        shard.oldest as usize
                    };
                    held.cached = at as u8 + 1;
                    let other = (vacant >= CACHED).then(|| shard.evict_oldest()).flatten();
                    shard.cached[at] = (address, stream);
                    shard.taken |= 1 << at;
                    shard.cached_bytes += bytes;
                    // Load first: other threads load this word constantly.
                    let (caching, bit) = (&self.caching[place_of_it / 64], 1 << (place_of_it % 64));
                    if caching.get() & bit == 0 {
                        caching.change(bit, true);
                    }
                    FreeOutcome::Cached(other)
                }
                _ => {
                    let (id, origin) = (held.id, held.origin);
                    shard.blocks.remove(address);
                    FreeOutcome::Away(id, origin)
                }
            };
            self.add(thread, was.tenant, LiveCount::packed(bytes).wrapping_neg());
            self.unsettle(was.tenant, bytes);
            Ok((was, freeing))
        })?;
        if let (FreeOutcome::Cached(None), PoolPlace::Stream(stream)) = (freeing, place) {
            let other = self.remember(thread, stream, was.span);
            return Ok((was, FreeOutcome::Cached(other)));
        }
        Ok((was, freeing))
    }

    /// Whether the maximum number of hints refers to blocks of this size, as when a program frees
    /// many at once: another would only evict one of them.
    #[inline]
    fn is_full(&self, thread: usize, stream: StreamId, bytes: u64) -> bool {
        let hash = hash(stream, bytes);
        let most = (HINTED_BYTES >> bytes.ilog2()).clamp(1, WAYS as u64) as usize;
        let last = self.set(thread, hash)[most - 1].get();
        last != 0 && last & 0xff == hint(0, hash)
    }

    /// Adds a hint to a block; evicts the block of the hint that is dropped for it.
    #[inline]
    fn remember(&self, thread: usize, stream: StreamId, span: Span) -> Option<EvictedBlock> {
        let hash = hash(stream, span.bytes);
        let bit = 1 << (thread % THREADS);
        if self.caching_threads.get() & bit == 0 {
            self.caching_threads.change(bit, true);
        }
        let ways = self.set(thread, hash);
        let forgotten = ways[WAYS - 1].get() & !0xff;
        for way in (1..WAYS).rev() {
            ways[way].set(ways[way - 1].get());
        }
        ways[0].set(hint(span.address, hash));
        if forgotten == 0 {
            return None;
        }
        self.shard(forgotten).with(|shard| {
            let at = usize::from(shard.blocks.get_mut(forgotten)?.cached);
            shard.evict(at.checked_sub(1)?)
        })
    }

    /// About how many threads cache blocks.
    pub(crate) fn caching_threads(&self) -> u64 {
        u64::from(self.caching_threads.get().count_ones())
    }

    /// Evicts all cached blocks, or those of a stream.
    pub(crate) fn drain(&self, stream: Option<StreamId>) -> Vec<EvictedBlock> {
        if stream.is_none() {
            self.caching_threads.set(0);
        }
        let mut gone = Vec::new();
        for (word, caching) in self.caching.iter().enumerate() {
            let mut bits = caching.get();
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits &= !bit;
                let place = 64 * word + bit.trailing_zeros() as usize;
                self.shards[place].0.shard.with(|shard| {
                    for at in 0..CACHED {
                        let is_meant = stream.is_none_or(|stream| shard.cached[at].1 == stream);
                        if shard.taken >> at & 1 == 1 && is_meant {
                            gone.extend(shard.evict(at));
                        }
                    }
                    if shard.taken == 0 {
                        caching.change(bit, false);
                    }
                });
            }
        }
        gone
    }

    /// The live block that begins at `address`.
    pub(crate) fn get(&self, address: u64) -> Option<LiveBlock<N>> {
        self.shard(address)
            .with(|shard| shard.blocks.get_mut(address)?.live(address))
    }

    /// The first live block that satisfies `is`, shard by shard.
    pub(crate) fn find(&self, mut is: impl FnMut(&LiveBlock<N>) -> bool) -> Option<LiveBlock<N>> {
        self.shards.iter().find_map(|shard| {
            shard.0.shard.with(|shard| {
                let mut all = shard.blocks.iter().filter_map(|(at, held)| held.live(at));
                all.find(|live| is(live))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc as StdArc;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::blocks::{BlockAllocator, SetId};

    type Modelled = BlockTable<(), loom::sync::Mutex<Shard<()>>, loom::sync::atomic::AtomicU64>;

    /// A thread without hints and counts of its own.
    const THREAD: usize = 1;
    const STREAM: StreamId = StreamId(1);
    const REQUEST: AllocationRequest = AllocationRequest {
        bytes: 4096,
        align_bytes: 256,
        place: PoolPlace::Stream(STREAM),
        tenant: TenantId(1),
        note: (),
    };

    fn layout() -> AllocLayout {
        AllocLayout::new(REQUEST.bytes, REQUEST.align_bytes)
    }

    /// Live blocks of repeatedly requested sizes, in a table of one shard and with one thread's
    /// hints, so that threads contend.
    fn table(blocks: usize) -> (Modelled, BlockAllocator, Vec<(BlockId, Span)>) {
        let budget = MemoryBudget::new(u64::MAX);
        let (table, mut memory) = (Modelled::of(1, 1, budget), BlockAllocator::new());
        let span = Span {
            address: 1 << 20,
            bytes: 1 << 20,
        };
        memory.add(span).expect("a range");
        let block = |_| {
            let id = memory
                .take(SetId::READY, layout(), 0)
                .expect("there is room");
            (id, memory.span(id).expect("it is live"))
        };
        let blocks: Vec<(BlockId, Span)> = (0..blocks).map(block).collect();
        for (id, span) in &blocks {
            let charged = table.charge(REQUEST.tenant, span.bytes);
            let charged = charged.expect("there is no limit");
            table.insert(
                THREAD,
                (*id, BlockOrigin::POOL),
                *span,
                &REQUEST,
                charged,
                true,
            );
        }
        (table, memory, blocks)
    }

    fn take(table: &Modelled) -> Option<u64> {
        take_as(table, THREAD)
    }

    fn take_as(table: &Modelled, thread: usize) -> Option<u64> {
        let charged = table.charge(REQUEST.tenant, REQUEST.bytes).ok()?;
        let taken = table.take(thread, &REQUEST, layout(), charged);
        if taken.is_err() {
            table.refund(REQUEST.tenant, REQUEST.bytes, charged);
        }
        Some(taken.ok()?.address)
    }

    /// Frees a block in its stream; returns whether it was live, and the evicted blocks.
    fn free(table: &Modelled, address: u64) -> (bool, Vec<BlockId>) {
        free_as(table, THREAD, address)
    }

    fn free_as(table: &Modelled, thread: usize, address: u64) -> (bool, Vec<BlockId>) {
        match table.free(thread, address, REQUEST.place, |()| true) {
            Ok((_, FreeOutcome::Away(id, _))) => (true, vec![id]),
            Ok((_, FreeOutcome::Cached(other))) => {
                (true, other.map(|gone| gone.id).into_iter().collect())
            }
            Err(_) => (false, Vec::new()),
        }
    }

    /// Explores every order with at most `preemptions` preemptions.
    fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_cached_block_goes_to_one_thread_or_is_evicted() {
        explore(3, || {
            let (table, memory, blocks) = table(1);
            let address = blocks[0].1.address;
            assert_eq!(free(&table, address), (true, vec![]));
            let table = Arc::new(table);
            let run = |work: fn(&Modelled) -> bool| {
                let table = table.clone();
                thread::spawn(move || work(&table))
            };
            let others = [
                run(|table| take(table).is_some()),
                run(|table| !table.drain(None).is_empty()),
            ];
            let thread_number = take(&table).is_some();
            let others = others.map(|thread| thread.join().expect("it does not panic"));
            let got = [thread_number, others[0], others[1]];
            // Hints may be lost: then the block stays cached.
            let shards = table.shards.iter();
            let cached = shards
                .map(|shard| shard.0.shard.with(|shard| shard.cached_bytes))
                .sum::<u64>()
                > 0;
            let hands = got.iter().filter(|got| **got).count() + usize::from(cached);
            assert_eq!(hands, 1, "{got:?}, cached: {cached}");
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_block_is_freed_once() {
        explore(3, || {
            let (table, memory, blocks) = table(1);
            let (table, address) = (Arc::new(table), blocks[0].1.address);
            let other = {
                let table = table.clone();
                thread::spawn(move || free(&table, address).0)
            };
            let thread_number = free(&table, address).0;
            let other = other.join().expect("it does not panic");
            assert!(thread_number ^ other, "{thread_number} {other}");
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn threads_that_share_hints_never_get_the_same_block() {
        explore(3, || {
            let (table, memory, blocks) = table(2);
            let table = Arc::new(table);
            let work = |address: u64| {
                let table = table.clone();
                thread::spawn(move || {
                    let gone = free(&table, address).1;
                    (take(&table), gone)
                })
            };
            let threads = [work(blocks[0].1.address), work(blocks[1].1.address)];
            let got = threads.map(|thread| thread.join().expect("it does not panic"));
            let [(one, gone), (other, gone_too)] = got;
            assert!(one.is_none() || one != other, "{one:?} twice");
            let away = gone.len() + gone_too.len() + table.drain(None).len();
            let live = usize::from(one.is_some()) + usize::from(other.is_some());
            assert_eq!(live + away, 2, "a block is lost");
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }

    /// There are two hints here, so the third block is one too many, unless another thread has
    /// taken one.
    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_block_beyond_the_cache_is_evicted_or_cached() {
        explore(3, || {
            let (table, memory, blocks) = table(3);
            let address = |n: usize| blocks[n].1.address;
            assert_eq!(free(&table, address(0)), (true, vec![]));
            assert_eq!(free(&table, address(1)), (true, vec![]));
            let table = Arc::new(table);
            let other = {
                let table = table.clone();
                thread::spawn(move || take(&table))
            };
            let (was_live, gone) = free(&table, address(2));
            assert!(was_live);
            let thread_number = take(&table);
            let other = other.join().expect("it does not panic");
            assert!(
                thread_number.is_none() || thread_number != other,
                "{thread_number:?} twice"
            );
            let away = gone.len() + table.drain(None).len();
            let live = usize::from(thread_number.is_some()) + usize::from(other.is_some());
            assert_eq!(live + away, 3, "a block is lost");
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_limit_counts_blocks_made_and_freed_while_it_is_set() {
        explore(3, || {
            let (table, memory, blocks) = table(2);
            let memory = StdArc::new(memory);
            let table = Arc::new(table);
            let (first, second) = (blocks[0].1.address, blocks[1].1.address);
            assert!(free(&table, first).0);
            let other = {
                let table = table.clone();
                thread::spawn(move || {
                    // Thread 0 has counts of its own.
                    take_as(&table, 0);
                    free_as(&table, 0, second);
                })
            };
            table.budget.tenant(REQUEST.tenant).set_limit(1 << 20);
            table.charge_live(REQUEST.tenant);
            other.join().expect("it does not panic");
            // Compares the account with the blocks.
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }
}
