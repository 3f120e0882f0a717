//! Blocks that programs hold, and those kept for whoever freed them.
//!
//! The table is in parts, each with a lock. A block that was freed in a stream
//! may stay here: work that the stream gets later runs later, so it may have the
//! block again at once, and neither the lock of [`crate::order`] is taken nor
//! the block joined and cut again. Where such a block is, a thread finds by its
//! own hints, which are words without a lock: they may be wrong, as what is so is
//! decided under the lock of the part.
//!
//! Only blocks of sizes that a thread asks for again and again stay, so that
//! sizes that come once cost nothing here.
//!
//! Invariants: a block is live, or kept and in the list of its part, which holds
//! so many and so many bytes at most; whoever runs out of memory takes all kept
//! blocks away. What is live is counted by threads, each change under the lock of
//! the block's part; for a tenant with a limit in one counter besides, before
//! there is a block.
//!
//! Elsewhere: what blocks are ([`crate::blocks`]), when they may be reused
//! ([`crate::order`]).

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;

use crate::arenas::{ARENAS, Home};
use crate::blocks::{BlockId, Span, UNIT_BYTES, Want};
use crate::order::{Place, StreamId};
use crate::pool::{Account, Live, Request, TenantId};

/// Tenants that are told apart; further ones count as the last.
pub(crate) const TENANTS: usize = u64::BITS as usize;
/// Parts of the table: so many that the blocks of some dozen threads are seldom
/// in one, since processors that write the same lines wait for each other.
const PARTS: usize = 1024;
/// Threads that have hints of their own.
const THREADS: usize = 64;
/// Blocks that lie in their part itself.
const HERE: usize = 3;
/// Blocks that a part keeps, their bytes, and those of the largest.
const KEPT: usize = 16;
const KEPT_BYTES: u64 = 2 << 20;
const LARGEST_KEPT: u64 = 1 << 20;
/// Bytes of one size that a thread keeps in a stream, or up to twice as many: what
/// is kept is in the way of larger blocks.
const HINTED_BYTES: u64 = 2 << 20;
/// Hints of a thread: so many sets, and so many hints of one.
const SETS: usize = 32;
// The model's orders grow with every word that is shared.
const WAYS: usize = if cfg!(test) { 2 } else { 8 };
/// Sizes that a thread has asked for lately.
const ASKED: usize = 128;

/// What is locked.
pub(crate) trait Lock<T> {
    fn new(value: T) -> Self;
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// A word that threads share without order.
pub(crate) trait Word: Default {
    fn get(&self) -> u64;
    fn set(&self, value: u64);
    /// Sets these bits, or takes them away.
    fn change(&self, bits: u64, there: bool);
    /// Adds, and wraps.
    fn add(&self, value: u64);
    /// The same to one that nobody else writes.
    #[inline]
    fn add_own(&self, value: u64) {
        self.set(self.get().wrapping_add(value));
    }
}

impl<T> Lock<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Mutex::new(value)
    }
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // What is behind it is changed in steps that do not panic.
        f(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Word for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        self.load(Relaxed)
    }
    #[inline]
    fn set(&self, value: u64) {
        self.store(value, Relaxed);
    }
    fn change(&self, bits: u64, there: bool) {
        match there {
            true => self.fetch_or(bits, Relaxed),
            false => self.fetch_and(!bits, Relaxed),
        };
    }
    #[inline]
    fn add(&self, value: u64) {
        self.fetch_add(value, Relaxed);
    }
}

/// A block of a part.
#[derive(Clone, Copy, Debug)]
struct Held<N> {
    id: BlockId,
    home: Home,
    bytes: u64,
    requested_bytes: u64,
    note: N,
    tenant: TenantId,
    /// Its size is asked for again and again.
    often: bool,
    /// If it is kept: one more than where in the list.
    kept: u8,
}

impl<N: Copy> Held<N> {
    /// What the program knows, if it is live.
    fn live(&self, address: u64) -> Option<Live<N>> {
        (self.kept == 0).then_some(Live {
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

/// A kept block that nobody will take here any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) id: BlockId,
    pub(crate) stream: StreamId,
}

/// What is live of a tenant, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// A count as it is summed: blocks above, units below. Sums of some threads may
/// be below nothing, that of all is not.
const BLOCK: u64 = 1 << 36;

impl Count {
    fn unpack(sum: u64) -> Self {
        Self {
            bytes: sum % BLOCK * UNIT_BYTES,
            blocks: sum / BLOCK,
        }
    }

    /// One block of so many bytes.
    #[inline]
    fn packed(bytes: u64) -> u64 {
        BLOCK + bytes / UNIT_BYTES
    }

    fn add(&mut self, other: Count) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
    }
}

/// Blocks by address. A program that does other work between two calls finds
/// none of this in its processor's caches, and each line that it must fetch takes
/// as long as all the rest of a call: so the first blocks lie beside the lock of
/// their part, where a map's would be three lines further on.
#[repr(C)]
struct Blocks<N> {
    more: FxHashMap<u64, Held<N>>,
    here: [Option<(u64, Held<N>)>; HERE],
}

impl<N> Blocks<N> {
    fn new() -> Self {
        Self {
            more: FxHashMap::default(),
            here: [const { None }; HERE],
        }
    }

    #[inline]
    fn get_mut(&mut self, address: u64) -> Option<&mut Held<N>> {
        let mut here = self.here.iter_mut().flatten();
        match here.find(|(at, _)| *at == address) {
            Some((_, held)) => Some(held),
            None if self.more.is_empty() => None,
            None => self.more.get_mut(&address),
        }
    }

    /// One that is not there.
    #[inline]
    fn insert(&mut self, address: u64, held: Held<N>) {
        match self.here.iter_mut().find(|here| here.is_none()) {
            Some(here) => *here = Some((address, held)),
            None => {
                self.more.insert(address, held);
            }
        }
    }

    #[inline]
    fn remove(&mut self, address: u64) -> Option<Held<N>> {
        let is_it = |here: &mut (u64, _)| here.0 == address;
        let mut here = self.here.iter_mut();
        match here.find_map(|here| here.take_if(is_it)) {
            Some((_, held)) => Some(held),
            None => self.more.remove(&address),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &Held<N>)> {
        let here = self.here.iter().flatten().map(|(at, held)| (*at, held));
        here.chain(self.more.iter().map(|(at, held)| (*at, held)))
    }
}

/// A part of the table, in the order in which it is read.
#[repr(C)]
pub(crate) struct Part<N> {
    /// Which places of kept blocks are taken.
    taken: u32,
    /// The next that must go when there is no place.
    oldest: u32,
    kept_bytes: u64,
    blocks: Blocks<N>,
    /// Kept blocks: where, and for which stream.
    kept: [(u64, StreamId); KEPT],
}

impl<N: Copy> Part<N> {
    fn new() -> Self {
        Self {
            taken: 0,
            oldest: 0,
            kept_bytes: 0,
            blocks: Blocks::new(),
            kept: [(0, StreamId(0)); KEPT],
        }
    }

    /// Takes the oldest kept block out.
    #[cold]
    fn evict_oldest(&mut self) -> Option<Gone> {
        let at = self.oldest as usize;
        self.oldest = (self.oldest + 1) % KEPT as u32;
        self.evict(at)
    }

    /// Takes a kept block out.
    fn evict(&mut self, at: usize) -> Option<Gone> {
        let (address, stream) = self.kept[at];
        self.taken &= !(1 << at);
        let held = self.blocks.remove(address)?;
        self.kept_bytes -= held.bytes;
        Some(Gone {
            id: held.id,
            stream,
        })
    }
}

/// On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// A part and its lock.
#[repr(C)]
struct Locked<L, W> {
    /// Means nothing: written by who will want the lock's line soon.
    line: W,
    part: L,
}

/// What a thread remembers.
struct Hints<W> {
    /// Addresses of kept blocks with eight bits of their stream's and size's
    /// hash, in each set the newest first, and zeros behind them (where threads share
    /// a set, most often).
    sets: [[W; WAYS]; SETS],
    /// Hashes that were asked for and not found; the lowest bit: twice.
    asked: [W; ASKED],
}

/// The counter of a tenant that has a limit.
#[derive(Default)]
struct Exact {
    bytes: AtomicU64,
    peak: AtomicU64,
}

/// See the module. In the order in which it is read.
#[repr(C, align(64))]
pub(crate) struct Table<N, L = Mutex<Part<N>>, W = AtomicU64> {
    parts: Box<[Apart<Locked<L, W>>]>,
    hints: Box<[Apart<Hints<W>>]>,
    /// What is live, by thread and tenant; changed under the lock of the block's
    /// part. The last are of all threads that have none of their own.
    counts: Box<[Apart<[W; TENANTS]>]>,
    /// A bit for each part, 0 if it keeps nothing; changed under its lock.
    keeps: Box<[W]>,
    /// A bit for each tenant that has a limit. Where none has, no more than this
    /// word is read of limits.
    limited: AtomicU64,
    /// A bit for each thread with hints that has kept something since all was
    /// taken away.
    keepers: W,
    limits: Box<[AtomicU64]>,
    exact: Box<[Apart<Exact>]>,
    note: std::marker::PhantomData<fn(N) -> N>,
}

/// How a request was charged before there is a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged(bool);

/// What became of a freed block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Freeing {
    /// It is kept, instead of another.
    Kept(Option<Gone>),
    /// It is here no more.
    Away(BlockId, Home),
}

/// Why a block is not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No live block begins there.
    Unknown,
    /// It may not be freed so.
    Kept,
}

/// The calling thread's number, which no other has. Those above [`THREADS`] share
/// hints and counts.
#[inline]
pub(crate) fn mine() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is at its end has no such variable any more.
    let mine = MINE.try_with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed));
        }
        mine.get()
    });
    mine.unwrap_or(usize::MAX)
}

#[inline]
fn hash(stream: StreamId, bytes: u64) -> u64 {
    (stream.0 ^ bytes.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A hint: addresses are multiples of 256.
#[inline]
fn hint(address: u64, hash: u64) -> u64 {
    address | (hash >> 40 & 0xff)
}

impl<N: Copy, L: Lock<Part<N>>, W: Word> Table<N, L, W> {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self::of(PARTS, THREADS)
    }

    /// Of `parts` parts, for `threads` threads; both are powers of two.
    fn of(parts: usize, threads: usize) -> Self {
        let hints = || Hints {
            sets: std::array::from_fn(|_| std::array::from_fn(|_| W::default())),
            asked: std::array::from_fn(|_| W::default()),
        };
        let part = |_| {
            let (line, part) = (W::default(), L::new(Part::new()));
            Apart(Locked { line, part })
        };
        let none = || std::array::from_fn(|_| W::default());
        Self {
            parts: (0..parts).map(part).collect(),
            keeps: (0..parts.div_ceil(64)).map(|_| W::default()).collect(),
            keepers: W::default(),
            hints: (0..threads).map(|_| Apart(hints())).collect(),
            counts: (0..=threads).map(|_| Apart(none())).collect(),
            limited: AtomicU64::new(0),
            limits: (0..TENANTS).map(|_| AtomicU64::new(u64::MAX)).collect(),
            exact: (0..TENANTS).map(|_| Apart(Exact::default())).collect(),
            note: std::marker::PhantomData,
        }
    }

    #[inline]
    fn part(&self, address: u64) -> &L {
        &self.parts[self.place(address)].0.part
    }

    /// Has the line of a block's lock fetched while its caller does other things.
    #[inline]
    pub(crate) fn touch(&self, address: u64) {
        // Nobody waits for a store, as one would for a load.
        self.parts[self.place(address)].0.line.set(0);
    }

    #[inline]
    fn place(&self, address: u64) -> usize {
        // Neighbouring blocks are in different parts.
        let mixed = (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.parts.len() - 1)
    }

    #[inline]
    fn hints(&self, thread: usize) -> &Hints<W> {
        &self.hints[thread & (self.hints.len() - 1)].0
    }

    #[inline]
    fn set(&self, thread: usize, hash: u64) -> &[W; WAYS] {
        &self.hints(thread).sets[(hash >> 59) as usize % SETS]
    }

    // ---- limits -------------------------------------------------------------

    /// Whether a tenant has a limit; while a part is locked that does not change.
    #[inline]
    fn is_limited(&self, tenant: TenantId) -> bool {
        self.limited.load(Acquire) >> tenant.index() & 1 != 0
    }

    /// Charges a tenant that has a limit; none if it may not have as much.
    #[inline]
    pub(crate) fn charge(&self, tenant: TenantId, bytes: u64) -> Option<Charged> {
        if !self.is_limited(tenant) {
            return Some(Charged(false));
        }
        let Exact { bytes: live, peak } = &self.exact[tenant.index()].0;
        let limit = self.limits[tenant.index()].load(Relaxed);
        let fits = |live: u64| live.checked_add(bytes).filter(|sum| *sum <= limit);
        let before = live.fetch_update(Relaxed, Relaxed, fits).ok()?;
        peak.fetch_max(before + bytes, Relaxed);
        Some(Charged(true))
    }

    /// Takes a charge back for which there is no block.
    pub(crate) fn refund(&self, tenant: TenantId, bytes: u64, charged: Charged) {
        if charged.0 {
            self.exact[tenant.index()].0.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// A block is live; under the lock of its part.
    #[inline]
    fn settle(&self, tenant: TenantId, bytes: u64, charged: Charged) {
        // The limit may have come after the charge.
        if !charged.0 && self.is_limited(tenant) {
            self.exact[tenant.index()].0.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// A block is live no more; under the lock of its part.
    #[inline]
    fn unsettle(&self, tenant: TenantId, bytes: u64) {
        self.refund(tenant, bytes, Charged(self.is_limited(tenant)));
    }

    /// How much a tenant may hold. What it holds already stays.
    pub(crate) fn set_limit(&self, tenant: TenantId, bytes: u64) {
        self.limits[tenant.index()].store(bytes, Relaxed);
        if !self.is_limited(tenant) {
            // From one moment on every block is counted in one place.
            self.count_exactly(tenant, 0);
        }
    }

    /// With the parts locked from `at` on, and those before by the caller.
    fn count_exactly(&self, tenant: TenantId, at: usize) {
        if let Some(part) = self.parts.get(at) {
            return part.0.part.with(|_| self.count_exactly(tenant, at + 1));
        }
        if !self.is_limited(tenant) {
            let Exact { bytes, .. } = &self.exact[tenant.index()].0;
            bytes.store(self.count(tenant).bytes, Relaxed);
            // Who sees this adds to what was stored before, also if others have
            // got a limit since.
            self.limited.fetch_or(1 << tenant.index(), Release);
        }
    }

    /// What is live of a tenant.
    fn count(&self, tenant: TenantId) -> Count {
        let counts = self.counts.iter().map(|of| of.0[tenant.index()].get());
        Count::unpack(counts.fold(0, u64::wrapping_add))
    }

    /// What a tenant holds.
    pub(crate) fn account(&self, tenant: TenantId) -> Account {
        let live = self.count(tenant);
        let peak = &self.exact[tenant.index()].0.peak;
        Account {
            live_bytes: live.bytes,
            peak_bytes: peak.fetch_max(live.bytes, Relaxed).max(live.bytes),
            limit_bytes: self.limits[tenant.index()].load(Relaxed),
            blocks: live.blocks,
        }
    }

    /// What all hold.
    pub(crate) fn live(&self) -> Count {
        let mut live = Count::default();
        for tenant in 0..TENANTS {
            live.add(self.count(TenantId(tenant as u16)));
        }
        live
    }

    /// Adds to what is counted for a thread; under the lock of some part.
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

    /// A block that was found elsewhere is live.
    #[inline]
    pub(crate) fn insert(
        &self,
        thread: usize,
        (id, home): (BlockId, Home),
        span: Span,
        request: &Request<N>,
        charged: Charged,
        often: bool,
    ) {
        let held = Held {
            id,
            home,
            bytes: span.bytes,
            requested_bytes: request.bytes,
            note: request.note,
            tenant: request.tenant,
            often,
            kept: 0,
        };
        self.part(span.address).with(|part| {
            part.blocks.insert(span.address, held);
            self.add(thread, request.tenant, Count::packed(span.bytes));
            self.settle(request.tenant, span.bytes, charged);
        });
    }

    /// Takes a block that was kept for the stream; else says whether the size
    /// is asked for again and again.
    #[inline]
    pub(crate) fn take(
        &self,
        thread: usize,
        request: &Request<N>,
        want: Want,
        charged: Charged,
    ) -> Result<Span, bool> {
        let Place::Stream(stream) = request.place else {
            return Err(false);
        };
        if want.bytes() > LARGEST_KEPT {
            return Err(false);
        }
        let hash = hash(stream, want.bytes());
        let ways = self.set(thread, hash);
        for way in 0..WAYS {
            let found = ways[way].get();
            if found == 0 {
                // So are those behind it, or they go unfound until they are in the way.
                break;
            }
            if found & 0xff != hint(0, hash) {
                continue;
            }
            let address = found & !0xff;
            if address & (want.align_bytes() - 1) != 0 {
                continue;
            }
            // Found or not, there is nothing any more.
            for way in way + 1..WAYS {
                ways[way - 1].set(ways[way].get());
            }
            ways[WAYS - 1].set(0);
            if self.retake(thread, address, stream, request, want, charged) {
                return Ok(Span {
                    address,
                    bytes: want.bytes(),
                });
            }
        }
        let asked = &self.hints(thread).asked[(hash >> 50) as usize % ASKED];
        // Twice may be by chance, three times is a habit.
        let (first, again) = (hash & !1, hash | 1);
        match asked.get() {
            before if before == again => Err(true),
            before => {
                asked.set(if before == first { again } else { first });
                Err(false)
            }
        }
    }

    /// Makes a kept block live, if it is there and such; whether it was.
    #[inline]
    fn retake(
        &self,
        thread: usize,
        address: u64,
        stream: StreamId,
        request: &Request<N>,
        want: Want,
        charged: Charged,
    ) -> bool {
        self.part(address).with(|part| {
            let Some(held) = part.blocks.get_mut(address) else {
                return false;
            };
            let at = usize::from(held.kept);
            if at == 0 || held.bytes != want.bytes() || part.kept[at - 1].1 != stream {
                return false;
            }
            held.kept = 0;
            held.tenant = request.tenant;
            held.requested_bytes = request.bytes;
            held.note = request.note;
            part.taken &= !(1 << (at - 1));
            part.kept_bytes -= want.bytes();
            self.add(thread, request.tenant, Count::packed(want.bytes()));
            self.settle(request.tenant, want.bytes(), charged);
            true
        })
    }

    /// Frees a live block that may be freed so; with what else goes away for it.
    #[inline]
    pub(crate) fn free(
        &self,
        thread: usize,
        address: u64,
        place: Place,
        may: impl FnOnce(&N) -> bool,
    ) -> Result<(Live<N>, Freeing), Refusal> {
        let place_of_it = self.place(address);
        let (was, freeing) = self.parts[place_of_it].0.part.with(|part| {
            let held = part.blocks.get_mut(address).ok_or(Refusal::Unknown)?;
            let was = held.live(address).ok_or(Refusal::Unknown)?;
            if !may(&was.note) {
                return Err(Refusal::Kept);
            }
            let bytes = was.span.bytes;
            // An arena's block costs little, and what is kept would clutter it.
            let fits =
                held.often && held.home == Home::POOL && part.kept_bytes + bytes <= KEPT_BYTES;
            let freeing = match place {
                Place::Stream(stream) if fits && !self.is_full(thread, stream, bytes) => {
                    let vacant = part.taken.trailing_ones() as usize;
                    let at = if vacant < KEPT {
                        vacant
                    } else {
                        part.oldest as usize
                    };
                    held.kept = at as u8 + 1;
                    let other = (vacant >= KEPT).then(|| part.evict_oldest()).flatten();
                    part.kept[at] = (address, stream);
                    part.taken |= 1 << at;
                    part.kept_bytes += bytes;
                    // Read first: others read it all the time.
                    let (keeps, bit) = (&self.keeps[place_of_it / 64], 1 << (place_of_it % 64));
                    if keeps.get() & bit == 0 {
                        keeps.change(bit, true);
                    }
                    Freeing::Kept(other)
                }
                _ => {
                    let (id, home) = (held.id, held.home);
                    part.blocks.remove(address);
                    Freeing::Away(id, home)
                }
            };
            self.add(thread, was.tenant, Count::packed(bytes).wrapping_neg());
            self.unsettle(was.tenant, bytes);
            Ok((was, freeing))
        })?;
        if let (Freeing::Kept(None), Place::Stream(stream)) = (freeing, place) {
            let other = self.remember(thread, stream, was.span);
            return Ok((was, Freeing::Kept(other)));
        }
        Ok((was, freeing))
    }

    /// Whether as many hints are at blocks of this size as may be, as when a
    /// program frees many at once: then one more would only make another go.
    #[inline]
    fn is_full(&self, thread: usize, stream: StreamId, bytes: u64) -> bool {
        let hash = hash(stream, bytes);
        let most = (HINTED_BYTES >> bytes.ilog2()).clamp(1, WAYS as u64) as usize;
        let last = self.set(thread, hash)[most - 1].get();
        last != 0 && last & 0xff == hint(0, hash)
    }

    /// Hints at a block; the one that nothing hints at any more goes.
    #[inline]
    fn remember(&self, thread: usize, stream: StreamId, span: Span) -> Option<Gone> {
        let hash = hash(stream, span.bytes);
        let bit = 1 << (thread % THREADS);
        if self.keepers.get() & bit == 0 {
            self.keepers.change(bit, true);
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
        self.part(forgotten).with(|part| {
            let at = usize::from(part.blocks.get_mut(forgotten)?.kept);
            part.evict(at.checked_sub(1)?)
        })
    }

    /// How many threads keep something, about.
    pub(crate) fn keepers(&self) -> u64 {
        u64::from(self.keepers.get().count_ones())
    }

    /// Takes all kept blocks away, or those of a stream.
    pub(crate) fn drain(&self, stream: Option<StreamId>) -> Vec<Gone> {
        if stream.is_none() {
            self.keepers.set(0);
        }
        let mut gone = Vec::new();
        for (word, keeps) in self.keeps.iter().enumerate() {
            let mut bits = keeps.get();
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits &= !bit;
                let place = 64 * word + bit.trailing_zeros() as usize;
                self.parts[place].0.part.with(|part| {
                    for at in 0..KEPT {
                        let is_meant = stream.is_none_or(|stream| part.kept[at].1 == stream);
                        if part.taken >> at & 1 == 1 && is_meant {
                            gone.extend(part.evict(at));
                        }
                    }
                    if part.taken == 0 {
                        keeps.change(bit, false);
                    }
                });
            }
        }
        gone
    }

    /// The live block that begins at `address`.
    pub(crate) fn get(&self, address: u64) -> Option<Live<N>> {
        self.part(address)
            .with(|part| part.blocks.get_mut(address)?.live(address))
    }

    /// The first live block that is such, part by part.
    pub(crate) fn find(&self, mut is: impl FnMut(&Live<N>) -> bool) -> Option<Live<N>> {
        self.parts.iter().find_map(|part| {
            part.0.part.with(|part| {
                let mut all = part.blocks.iter().filter_map(|(at, held)| held.live(at));
                all.find(|live| is(live))
            })
        })
    }

    /// Walks everything; how many blocks of each home there are. `span` knows them
    /// otherwise.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub(crate) fn audit(
        &self,
        span: impl Fn(Home, BlockId) -> Option<Span>,
    ) -> Result<[usize; ARENAS + 1], String> {
        let mut blocks = [0; ARENAS + 1];
        let mut all = [Count::default(); TENANTS];
        for part in &self.parts {
            part.0.part.with(|part| {
                let (mut kept, mut taken) = (0, 0);
                for (address, held) in part.blocks.iter() {
                    let here = Span {
                        address,
                        bytes: held.bytes,
                    };
                    if span(held.home, held.id) != Some(here) {
                        return Err(format!("{here:?} is not what {:?} is", held.id));
                    }
                    blocks[held.home.number()] += 1;
                    if let Some(at) = usize::from(held.kept).checked_sub(1) {
                        if part.kept[at].0 != address {
                            return Err(format!("{here:?} is not in the list of its part"));
                        }
                        taken |= 1 << at;
                        kept += held.bytes;
                        continue;
                    }
                    let one = Count {
                        bytes: held.bytes,
                        blocks: 1,
                    };
                    all[held.tenant.index()].add(one);
                }
                match (kept, taken) == (part.kept_bytes, part.taken) {
                    true => Ok(()),
                    false => Err(format!("{kept} kept bytes are not as counted")),
                }
            })?;
        }
        for (tenant, count) in all.iter().enumerate() {
            let account = self.account(TenantId(tenant as u16));
            let exact = self.is_limited(TenantId(tenant as u16));
            let charged = self.exact[tenant].0.bytes.load(Relaxed);
            if (account.live_bytes, account.blocks) != (count.bytes, count.blocks)
                || exact && charged != count.bytes
            {
                return Err(format!(
                    "tenant {tenant}: {count:?}, charged {charged}: {account:?}"
                ));
            }
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc as StdArc;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::blocks::{Blocks, SetId};

    impl<T> Lock<T> for loom::sync::Mutex<T> {
        fn new(value: T) -> Self {
            loom::sync::Mutex::new(value)
        }
        fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            f(&mut self.lock().expect("no test panics while it holds this"))
        }
    }

    impl Word for loom::sync::atomic::AtomicU64 {
        fn get(&self) -> u64 {
            self.load(Relaxed)
        }
        fn set(&self, value: u64) {
            self.store(value, Relaxed);
        }
        fn change(&self, bits: u64, there: bool) {
            match there {
                true => self.fetch_or(bits, Relaxed),
                false => self.fetch_and(!bits, Relaxed),
            };
        }
        fn add(&self, value: u64) {
            self.fetch_add(value, Relaxed);
        }
    }

    type Modelled = Table<(), loom::sync::Mutex<Part<()>>, loom::sync::atomic::AtomicU64>;

    /// One without hints and counts of its own.
    const THREAD: usize = 1;
    const STREAM: StreamId = StreamId(1);
    const REQUEST: Request = Request {
        bytes: 4096,
        align_bytes: 256,
        place: Place::Stream(STREAM),
        tenant: TenantId(1),
        note: (),
    };

    fn want() -> Want {
        Want::new(REQUEST.bytes, REQUEST.align_bytes)
    }

    /// Live blocks of sizes that are asked for often, in a table of one part and
    /// with one thread's hints, so that threads meet.
    fn table(blocks: usize) -> (Modelled, Blocks, Vec<(BlockId, Span)>) {
        let (table, mut memory) = (Modelled::of(1, 1), Blocks::new());
        let span = Span {
            address: 1 << 20,
            bytes: 1 << 20,
        };
        memory.add(span).expect("a range");
        let block = |_| {
            let id = memory.take(SetId::READY, want(), 0).expect("there is room");
            (id, memory.span(id).expect("it is live"))
        };
        let blocks: Vec<(BlockId, Span)> = (0..blocks).map(block).collect();
        for (id, span) in &blocks {
            let charged = table.charge(REQUEST.tenant, span.bytes);
            let charged = charged.expect("there is no limit");
            table.insert(THREAD, (*id, Home::POOL), *span, &REQUEST, charged, true);
        }
        (table, memory, blocks)
    }

    fn take(table: &Modelled) -> Option<u64> {
        take_as(table, THREAD)
    }

    fn take_as(table: &Modelled, thread: usize) -> Option<u64> {
        let charged = table.charge(REQUEST.tenant, REQUEST.bytes)?;
        let taken = table.take(thread, &REQUEST, want(), charged);
        if taken.is_err() {
            table.refund(REQUEST.tenant, REQUEST.bytes, charged);
        }
        Some(taken.ok()?.address)
    }

    /// Frees a block in its stream; whether it was live, and what goes away.
    fn free(table: &Modelled, address: u64) -> (bool, Vec<BlockId>) {
        free_as(table, THREAD, address)
    }

    fn free_as(table: &Modelled, thread: usize, address: u64) -> (bool, Vec<BlockId>) {
        match table.free(thread, address, REQUEST.place, |()| true) {
            Ok((_, Freeing::Away(id, _))) => (true, vec![id]),
            Ok((_, Freeing::Kept(other))) => {
                (true, other.map(|gone| gone.id).into_iter().collect())
            }
            Err(_) => (false, Vec::new()),
        }
    }

    /// Every order in which a thread is interrupted at most so often.
    fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    fn a_kept_block_goes_to_one_thread_or_away() {
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
            let mine = take(&table).is_some();
            let others = others.map(|thread| thread.join().expect("it does not panic"));
            let got = [mine, others[0], others[1]];
            // Hints may be lost: then it is kept still.
            let parts = table.parts.iter();
            let kept = parts
                .map(|part| part.0.part.with(|part| part.kept_bytes))
                .sum::<u64>()
                > 0;
            let hands = got.iter().filter(|got| **got).count() + usize::from(kept);
            assert_eq!(hands, 1, "{got:?}, kept: {kept}");
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }

    #[test]
    fn a_block_is_freed_once() {
        explore(3, || {
            let (table, memory, blocks) = table(1);
            let (table, address) = (Arc::new(table), blocks[0].1.address);
            let other = {
                let table = table.clone();
                thread::spawn(move || free(&table, address).0)
            };
            let mine = free(&table, address).0;
            let other = other.join().expect("it does not panic");
            assert!(mine ^ other, "{mine} {other}");
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }

    #[test]
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

    /// There are two hints here, so the third block is one too many, unless another
    /// thread has taken one.
    #[test]
    fn a_block_that_is_one_too_many_goes_away_or_is_kept() {
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
            let mine = take(&table);
            let other = other.join().expect("it does not panic");
            assert!(mine.is_none() || mine != other, "{mine:?} twice");
            let away = gone.len() + table.drain(None).len();
            let live = usize::from(mine.is_some()) + usize::from(other.is_some());
            assert_eq!(live + away, 3, "a block is lost");
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }

    #[test]
    fn a_limit_counts_what_comes_and_goes_while_it_is_set() {
        explore(3, || {
            let (table, memory, blocks) = table(2);
            let memory = StdArc::new(memory);
            let table = Arc::new(table);
            let (first, second) = (blocks[0].1.address, blocks[1].1.address);
            assert!(free(&table, first).0);
            let other = {
                let table = table.clone();
                thread::spawn(move || {
                    // It has counts of its own.
                    take_as(&table, 0);
                    free_as(&table, 0, second);
                })
            };
            table.set_limit(REQUEST.tenant, 1 << 20);
            other.join().expect("it does not panic");
            // Compares the counter with the blocks.
            table.audit(|_, id| memory.span(id)).expect("sound");
        });
    }
}
