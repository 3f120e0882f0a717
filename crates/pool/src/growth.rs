//! Growing and trimming the pool's physical memory.
//!
//! Physical memory is scarce, addresses are not. A request that finds no block gets new memory as
//! long as the pool exceeds its peak of live bytes by little ([`RetentionPolicy`]). Beyond that it
//! gets ready memory in whole pieces from elsewhere, remapped at the pool's top, after waiting for
//! the device where that helps. Only if that is not enough is new memory added.
//!
//! Invariants: a thread that changes the pool's memory holds the lock of `growth`, and no thread
//! holds it through an unbounded wait; unmapped memory exists only while it is held; pinned memory
//! stays mapped where it is.
//!
//! Elsewhere: where a freed block may be reused ([`crate::order`]), the fast path to a block
//! ([`crate::pool`]).

use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::backing::{GrowthRefused, MemoryBacking};
use crate::blocks::{AllocLayout, BadRange, SetId, Span};
use crate::clock::DeviceClock;
use crate::error::Error;
use crate::order::{NewestFences, ReuseFence, ReuseOrder};
use crate::place::PoolPlace;
use crate::pool::{DevicePool, Pins};
use crate::request::{BlockRequest, FoundBlock};
use crate::retention::{PoolGrowth, RetentionPolicy, TIMEOUT};
use crate::rules::ReuseRules;
use crate::threads::lock;
use crate::usage::DisplaySize;

/// The most other streams that one request waits for.
const LENDERS: usize = 4;

/// A thread in an unbounded wait releases the lock whenever the device has made no progress for
/// this long.
const STEP: Duration = Duration::from_millis(10);

/// How often such a thread waits for all the work the device has then. Another thread may have
/// taken the memory it waited for; but while others continue there is always something to wait for,
/// and a request that is too large must fail.
const ROUNDS: usize = 16;

/// The most streams or threads that add to the slack.
const MOST_OTHERS: u64 = 64;

impl<B: MemoryBacking, C: DeviceClock, N: Copy, R: ReuseRules> DevicePool<B, C, N, R> {
    /// Sets how much memory the pool may retain beyond its live bytes.
    pub fn set_retention(&self, retention: RetentionPolicy) {
        lock(&self.growth).retention = retention;
        self.high_bytes.store(retention.high_bytes, Relaxed);
        self.order().watch(retention.high_bytes < u64::MAX);
    }

    /// The slow path to a block.
    #[cold]
    pub(crate) fn find(&self, wanted: &BlockRequest) -> Result<FoundBlock, Error> {
        let mut refused = match self.find_now(wanted) {
            Ok(found) => return Ok(found),
            Err(refused) => refused,
        };
        let callbacks = lock(&self.on_exhausted).clone();
        for (_, on_exhausted) in callbacks {
            if on_exhausted(wanted.layout.padded_bytes()) {
                match self.find_now(wanted) {
                    Ok(span) => return Ok(span),
                    Err(again) => refused = again,
                }
            }
        }
        Err(Error::Exhausted {
            bytes: wanted.bytes,
            usage: self.usage(),
            used_bytes: self.budget.used_bytes(),
            limit_bytes: self.budget.limit_bytes(),
            refused,
        })
    }

    fn find_now(&self, wanted: &BlockRequest) -> Result<FoundBlock, GrowthRefused> {
        // One thread at a time: a thread that waited here finds what the previous one made
        // available.
        let mut growth = lock(&self.growth);
        let take = || self.take_now(wanted);
        if let Some(span) = take().or_else(|| self.poll_all().then(take)?) {
            return Ok(span);
        }
        // Threads keep their caches as long as the pool may still grow a little.
        let (bytes, _) = self.addition(&growth.backing, wanted.layout);
        if self.is_within_slack(&growth, bytes)
            && let Ok(span) = self.extend(&mut growth.backing, wanted)
        {
            return Ok(span);
        }
        self.return_cached(None);
        let found = take().or_else(|| self.coalesce(wanted));
        let found = found.or_else(|| self.borrow(wanted)).or_else(|| {
            self.record_fences();
            self.poll_all().then(take)?
        });
        if let Some(span) = found {
            return Ok(span);
        }
        let refused = match self.grow(&mut growth, wanted, false) {
            Ok(span) => return Ok(span),
            Err(refused) => refused,
        };
        // All of the device's pending work is worth waiting for now.
        for _ in 0..ROUNDS {
            self.record_fences();
            let until = self.order().newest_fences();
            if until.is_empty() {
                break;
            }
            loop {
                let begun = Instant::now();
                if !self.wait_oldest(STEP, &until) {
                    if begun.elapsed() < STEP {
                        break;
                    }
                    // The device makes no progress. It may be waiting for the host, which may need
                    // a little memory: so other threads may proceed meanwhile.
                    drop(growth);
                    self.wait_oldest(STEP, &until);
                    growth = lock(&self.growth);
                }
                if let Some(span) = take() {
                    return Ok(span);
                }
            }
        }
        let found = self.coalesce(wanted);
        let found = found.or_else(|| self.grow(&mut growth, wanted, true).ok());
        // Other users may need the spare physical memory.
        self.budget.refund(growth.backing.release(0));
        found.ok_or(refused)
    }

    /// Takes a block that is available, or becomes available by a small growth, without waiting.
    #[cold]
    pub(crate) fn find_soon(&self, wanted: &BlockRequest) -> Option<FoundBlock> {
        self.take_now(wanted).or_else(|| {
            let mut growth = self.growth.try_lock().ok()?;
            let (bytes, _) = self.addition(&growth.backing, wanted.layout);
            let live = self.order().blocks().live_bytes() + wanted.layout.bytes();
            growth.peak_live = growth.peak_live.max(live);
            let modest = self.is_within_slack(&growth, bytes);
            modest.then(|| self.extend(&mut growth.backing, wanted).ok())?
        })
    }

    /// Takes a block of another stream, by making this stream wait for it.
    fn borrow(&self, wanted: &BlockRequest) -> Option<FoundBlock> {
        let PoolPlace::Stream(stream) = wanted.place else {
            return None;
        };
        for _ in 0..LENDERS {
            let lender = self.order().lender(stream, wanted.layout)?;
            let fence = match lender {
                Ok(fence) => fence,
                Err(place) => {
                    if !self.record_fence(place) {
                        return None;
                    }
                    continue;
                }
            };
            if !self.clock.wait(stream, &fence.point) {
                return None;
            }
            self.order().note_wait(stream, &fence);
            if let Some(span) = self.take_now(wanted) {
                return Some(span);
            }
        }
        None
    }

    /// Takes a block of the memory that the stream may use, merged with adjacent ready memory.
    fn coalesce(&self, wanted: &BlockRequest) -> Option<FoundBlock> {
        let PoolPlace::Stream(stream) = wanted.place else {
            return None;
        };
        self.order().coalesce(stream);
        self.take_now(wanted)
    }

    /// Records a fence wherever freed blocks wait for one.
    fn record_fences(&self) {
        let unfenced = self.order().unfenced();
        for place in unfenced {
            self.record_fence(place);
        }
    }

    /// Waits for the oldest fence of every place, as far as it is not behind that of `until`;
    /// returns whether one has been passed.
    fn wait_oldest(&self, timeout: Duration, until: &NewestFences) -> bool {
        let mut fences = self.order().oldest_fences();
        fences.retain(|fence| until.get(&fence.place) >= Some(&fence.epoch));
        let mut passed = false;
        for ReuseFence {
            place,
            epoch,
            point,
        } in fences
        {
            if self.clock.join(&point, timeout) {
                self.order().passed(place, epoch);
                passed = true;
            }
        }
        passed
    }

    /// Adds memory and takes a block of it; remaps ready memory if there is much. `sparing`: new
    /// memory is not available, or too little.
    fn grow(
        &self,
        growth: &mut PoolGrowth<B>,
        wanted: &BlockRequest,
        sparing: bool,
    ) -> Result<FoundBlock, GrowthRefused> {
        let layout = wanted.layout;
        let mut until = None;
        loop {
            let (bytes, site) = self.addition(&growth.backing, layout);
            let live = self.order().blocks().live_bytes() + layout.bytes();
            growth.peak_live = growth.peak_live.max(live);
            let fits = !sparing && self.budget.has_room(growth.backing.new_bytes(bytes));
            if fits && self.is_within_slack(growth, bytes) {
                break;
            }
            let backing = &mut growth.backing;
            self.empty_out(backing, backing.new_bytes(bytes), site);
            // Too little memory is pending to make a difference.
            let new = backing.new_bytes(bytes);
            let slack = growth.retention.slack(growth.peak_live);
            let waiting = self.order().waiting_bytes();
            if new == 0 || waiting <= slack.min(new) / 4 {
                break;
            }
            let until = match &until {
                Some(until) => until,
                None => {
                    if let Some(span) = self.coalesce(wanted) {
                        return Ok(span);
                    }
                    self.record_fences();
                    until.insert(self.order().newest_fences())
                }
            };
            let begun = Instant::now();
            let passed = self.wait_oldest(growth.timeout, until);
            growth.timeout = match begun.elapsed() < growth.timeout {
                true => (growth.timeout * 2).min(TIMEOUT),
                false => growth.timeout / 2,
            };
            if !passed {
                break;
            }
            if let Some(span) = self.take_now(wanted) {
                return Ok(span);
            }
        }
        self.extend(&mut growth.backing, wanted)
    }

    /// Adds memory that holds the request, and takes the block.
    fn extend(&self, backing: &mut B, wanted: &BlockRequest) -> Result<FoundBlock, GrowthRefused> {
        let layout = wanted.layout;
        let (bytes, _) = self.addition(backing, layout);
        if let Some(span) = self.add(backing, bytes, wanted)? {
            return Ok(span);
        }
        // The ready memory just below it was taken by another thread.
        let bytes = backing.rounded(layout.padded_bytes());
        let added = self.add(backing, bytes, wanted)?;
        added.ok_or_else(|| GrowthRefused(format!("{bytes} bytes were added and do not hold it")))
    }

    /// Whether the pool is within its slack, also after a growth of `bytes`.
    fn is_within_slack(&self, growth: &PoolGrowth<B>, bytes: u64) -> bool {
        let peak = growth.peak_live;
        let order = self.order();
        let bytes = order.blocks().bytes().saturating_add(bytes);
        let others = (order.queues() as u64).max(self.held.caching_threads());
        let others = others.clamp(1, MOST_OTHERS) - 1;
        let slack = growth.retention.slack(peak) + others * growth.retention.others_bytes;
        bytes <= peak.saturating_add(slack)
    }

    /// How many bytes to add, and the site if ready memory just below it is to be part of the
    /// block.
    fn addition(&self, backing: &B, layout: AllocLayout) -> (u64, Option<u64>) {
        let padding = layout.align_bytes().saturating_sub(backing.align_bytes());
        let bytes = backing.rounded(layout.bytes().saturating_add(padding));
        let Some(site) = backing.site(bytes) else {
            return (bytes, None);
        };
        let there = self.order().blocks().ready_below(site);
        let begin = (site - there).checked_next_multiple_of(layout.align_bytes());
        let end = begin.and_then(|begin| begin.checked_add(layout.bytes()));
        let Some(end) = end.filter(|_| there > 0) else {
            return (bytes, None);
        };
        let less = backing.rounded(end.saturating_sub(site).max(1));
        match less < bytes && backing.site(less) == Some(site) {
            true => (less, Some(site)),
            false => (bytes, None),
        }
    }

    /// Adds `bytes`, already rounded, and takes a block; `None` if the memory holds none.
    fn add(
        &self,
        backing: &mut B,
        bytes: u64,
        wanted: &BlockRequest,
    ) -> Result<Option<FoundBlock>, GrowthRefused> {
        // Spare memory of the wrong size is released before memory is added.
        self.budget.refund(backing.release(bytes));
        let new = backing.new_bytes(bytes);
        if self.budget.charge(new).is_err() {
            return Err(GrowthRefused(format!(
                "{} more are above the limit",
                DisplaySize(new)
            )));
        }
        let span = match backing.grow(bytes) {
            Ok(span) => span,
            Err(refused) => {
                self.budget.refund(new);
                return Err(refused);
            }
        };
        let mut order = self.order();
        let added = match backing.is_apart() {
            true => order.blocks_mut().add_apart(span),
            false => order.blocks_mut().add(span),
        };
        if let Err(BadRange(span)) = added {
            drop(order);
            backing.shrink(span);
            self.budget.refund(backing.release(0));
            return Err(GrowthRefused(format!(
                "{} bytes were added twice",
                span.bytes
            )));
        }
        // The lock has been held since, so no other thread gets it.
        Ok(self.take_locked(&mut order, wanted))
    }

    /// Unmaps ready memory of at least `bytes`, or as much as is separable, except the memory just
    /// below `site`.
    fn empty_out(&self, backing: &mut B, bytes: u64, site: Option<u64>) {
        if bytes > 0 {
            let pinned = lock(&self.pinned).clone();
            Self::empty(self.order(), backing, bytes, site, &pinned);
        }
    }

    fn empty(
        mut order: MutexGuard<'_, ReuseOrder<C::Point, R>>,
        backing: &mut B,
        bytes: u64,
        site: Option<u64>,
        pinned: &Pins,
    ) {
        let mut left = bytes;
        let mut gone = Vec::new();
        let mut ready: Vec<Span> = order.blocks().ready(backing.piece_bytes()).collect();
        ready.reverse();
        while let Some(around) = ready.pop().filter(|_| left > 0) {
            if site == Some(around.end()) {
                continue;
            }
            let mut gaps = gaps(around, pinned);
            let Some(span) = gaps.find_map(|gap| some_of(backing, gap, left)) else {
                continue;
            };
            if order.blocks_mut().remove(span, around) {
                left = left.saturating_sub(span.bytes);
                gone.push(span);
                ready.extend([
                    between(span.end(), around.end()),
                    between(around.address, span.address),
                ]);
            }
        }
        drop(order);
        for span in gone {
            backing.shrink(span);
        }
    }

    /// Returns all ready memory to the driver; returns the bytes released.
    pub fn trim(&self) -> u64 {
        self.trim_to(0)
    }

    /// As [`DevicePool::trim`], after waiting up to about `timeout` for the device's work on freed
    /// memory. Work queued during the call is not waited for.
    pub fn trim_within(&self, timeout: Duration) -> u64 {
        self.return_cached(None);
        self.record_fences();
        let until = self.order().newest_fences();
        let begun = Instant::now();
        while let Some(left) = timeout.checked_sub(begun.elapsed()) {
            let (step, began) = (STEP.min(left), Instant::now());
            // No fence is left, or a stream capture is active, during which the clock refuses.
            if !self.wait_oldest(step, &until) && began.elapsed() < step {
                break;
            }
        }
        self.trim()
    }

    /// Returns ready memory to the driver until at most `bytes` are ready, as far as it consists of
    /// whole pieces; returns the bytes released.
    pub fn trim_to(&self, bytes: u64) -> u64 {
        self.trim_now(&mut lock(&self.growth), bytes)
    }

    fn trim_now(&self, growth: &mut PoolGrowth<B>, bytes: u64) -> u64 {
        self.return_cached(None);
        self.record_fences();
        self.poll_all();
        let ready = self.order().blocks().free_bytes(SetId::READY);
        self.empty_out(&mut growth.backing, ready.saturating_sub(bytes), None);
        growth.peak_live = self.order().blocks().live_bytes();
        let released = growth.backing.release(0);
        self.budget.refund(released);
        released
    }

    /// The driver has reclaimed the memory itself, as when its context is destroyed: all memory
    /// that is not live is forgotten at once, pending and pinned memory included. Returns its
    /// bytes.
    pub fn abandon(&self) -> u64 {
        let growth = &mut *lock(&self.growth);
        self.return_cached(None);
        lock(&self.pinned).clear();
        // Under one lock, so that no other thread takes ready memory in between.
        let mut order = self.order();
        order.all_passed();
        Self::empty(order, &mut growth.backing, u64::MAX, None, &Pins::new());
        growth.peak_live = self.order().blocks().live_bytes();
        let released = growth.backing.release(0);
        self.budget.refund(released);
        released
    }

    /// Trims if more memory is ready than the high-water mark; skipped while another thread adds or
    /// removes memory.
    pub(crate) fn trim_excess(&self) {
        let high = self.high_bytes.load(Relaxed);
        if high < u64::MAX
            && self.order().blocks().free_bytes(SetId::READY) > high
            && let Ok(mut growth) = self.growth.try_lock()
        {
            let low = growth.retention.low_bytes;
            self.trim_now(&mut growth, low);
        }
    }

    /// Ready bytes that cannot be reused elsewhere: they share a piece of memory with live or
    /// pending blocks, or are pinned.
    pub fn stranded_bytes(&self) -> u64 {
        let PoolGrowth { backing, .. } = &*lock(&self.growth);
        let pinned = lock(&self.pinned).clone();
        let order = self.order();
        let ready = order.blocks().ready(backing.piece_bytes());
        let gaps = ready.flat_map(|span| gaps(span, &pinned));
        let whole = gaps.filter_map(|gap| backing.separable(gap));
        let whole: u64 = whole.map(|span| span.bytes).sum();
        order.blocks().free_bytes(SetId::READY) - whole
    }
}

fn between(address: u64, end: u64) -> Span {
    Span {
        address,
        bytes: end - address,
    }
}

/// The parts of a span that are not pinned. Pins are keyed by their start, and may overlap.
fn gaps(span: Span, pinned: &Pins) -> impl Iterator<Item = Span> {
    let before = pinned.range(..span.end());
    let mut at = span.address;
    let mut gaps = Vec::new();
    for (address, (end, _)) in before {
        if *end > at {
            gaps.extend((*address > at).then(|| between(at, *address)));
            at = *end;
        }
    }
    gaps.extend((at < span.end()).then(|| between(at, span.end())));
    gaps.into_iter()
}

/// Consecutive separable pieces of a span, `bytes` in total, or the first one.
fn some_of<B: MemoryBacking>(backing: &B, span: Span, bytes: u64) -> Option<Span> {
    let mut bytes = bytes.max(backing.piece_bytes()).min(span.bytes);
    loop {
        if let Some(some) = backing.separable(Span { bytes, ..span }) {
            return Some(some);
        }
        if bytes == span.bytes {
            return None;
        }
        bytes = (2 * bytes).min(span.bytes);
    }
}
