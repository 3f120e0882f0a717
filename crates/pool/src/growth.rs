//! More memory, and less.
//!
//! Physical memory is dear, addresses are not. A request that finds no block gets
//! new memory as long as there is little more than was ever live ([`Thrift`]).
//! From then on it gets what is ready in whole pieces elsewhere, mapped anew at
//! the pool's top, after waiting for the device where that helps. Only where
//! there is not enough of that, there is new memory.
//!
//! Invariants: `growth` is locked by whoever changes what memory there is, and
//! by nobody who waits without an end;
//! memory that is mapped nowhere is there only as long; memory that is pinned
//! stays mapped where it is.
//!
//! Elsewhere: which blocks may be taken when ([`crate::order`]), blocks that
//! are found at once ([`crate::pool`]).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::blocks::{BadRange, SetId, Span, Want};
use crate::order::{Mark, Newest, Order, Place};
use crate::pool::{Asked, Clock, Error, Found, Pins, Pool, lock};

/// Other streams that one request waits for at most.
const LENDERS: usize = 4;
/// How long a request waits for thrift's sake. A device may wait for what the
/// host does after the request, so there is an end to it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who waits for as long as it takes lets others in when a device has not gone
/// on for so long.
const STEP: Duration = Duration::from_millis(10);

/// How often such a one waits for all that the device has to do then. What it
/// waited for another thread may have taken; but while others go on there is
/// always something to wait for, and who asks for too much is to be told.
const ROUNDS: usize = 16;

/// Streams and threads that add to the slack, at most.
const MOST_OTHERS: u64 = 64;

/// Why there is no more memory to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Where memory comes from.
pub trait Backing: Send {
    /// The least memory that could come or go by itself.
    fn piece_bytes(&self) -> u64;

    /// What growths begin at multiples of.
    fn align_bytes(&self) -> u64 {
        self.piece_bytes()
    }

    /// Whether a growth stays apart from memory that it happens to lie beside,
    /// as one allocation of the driver's does from another.
    fn is_apart(&self) -> bool {
        false
    }

    /// How many bytes a growth by `bytes` really adds.
    fn rounded(&self, bytes: u64) -> u64;

    /// How many of them are not there yet as physical memory.
    fn new_bytes(&self, bytes: u64) -> u64;

    /// Where a growth by `bytes`, which were rounded, would begin, if that is
    /// known.
    fn site(&self, bytes: u64) -> Option<u64>;

    /// Adds memory of `bytes`, which were rounded, at their site.
    ///
    /// # Errors
    /// [`Refused`]; then nothing was added.
    fn grow(&mut self, bytes: u64) -> Result<Span, Refused>;

    /// The part of `span` that could go away by itself.
    fn separable(&self, span: Span) -> Option<Span>;

    /// Takes memory away that was separable. Physically it stays, for the next
    /// growth.
    fn shrink(&mut self, span: Span);

    /// Gives physical memory that is nowhere mapped back to the driver, but for
    /// what a growth by `but_for` bytes would use; how many bytes.
    fn release(&mut self, but_for: u64) -> u64;
}

/// How much physical memory a process may have on a device, and has.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Budget {
    /// Of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicU64::new(limit_bytes),
            used: AtomicU64::new(0),
        })
    }

    /// How much there may be.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// How much there is.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Sets another limit. What is there already stays.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Whether there is room for so many.
    fn has_room(&self, bytes: u64) -> bool {
        let sum = self.used_bytes().checked_add(bytes);
        sum.is_some_and(|sum| sum <= self.limit_bytes())
    }

    /// Charges `bytes` if there is room for them.
    pub fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit_bytes();
        let room = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.fetch_update(Relaxed, Relaxed, room).is_ok()
    }

    /// Takes a charge back.
    pub fn refund(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _always = self.used.fetch_update(Relaxed, Relaxed, less);
    }
}

/// A size in words: `1.5 GiB`.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, unit)) => {
                let size = self.0 as f64 / (1u64 << shift) as f64;
                write!(f, "{size:.1} {unit}")
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

/// How much memory a pool may hold beside what is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thrift {
    /// Before there is more than this beside the most that was ever live, or
    /// than `slack_part` of that, memory that is ready is used elsewhere, and
    /// memory that waits for the device is waited for.
    pub slack_bytes: u64,
    /// One part of so many.
    pub slack_part: u64,
    /// So much more for each stream, or each thread that keeps what it freed, but
    /// the first: else they take it from each other all the time.
    pub others_bytes: u64,
    /// When more than this is ready, memory is given back to the driver.
    pub high_bytes: u64,
    /// So much of it stays then.
    pub low_bytes: u64,
}

impl Default for Thrift {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Thrift {
    /// 8 MiB or one part of 64, and 2 MiB for each of the others; nothing is
    /// given back unasked.
    pub const DEFAULT: Self = Self {
        slack_bytes: 8 << 20,
        slack_part: 64,
        others_bytes: 2 << 20,
        high_bytes: u64::MAX,
        low_bytes: u64::MAX,
    };

    fn slack(&self, live: u64) -> u64 {
        self.slack_bytes.max(live / self.slack_part.max(1))
    }
}

/// What is locked while memory comes and goes.
pub(crate) struct Growth<B> {
    backing: B,
    thrift: Thrift,
    /// The most that was seen live when memory came, since some was given back.
    peak_live: u64,
    /// How long the next request waits for thrift's sake.
    patience: Duration,
}

impl<B> Growth<B> {
    pub(crate) fn new(backing: B) -> Self {
        Self {
            backing,
            thrift: Thrift::default(),
            peak_live: 0,
            patience: PATIENCE,
        }
    }
}

impl<B: Backing, C: Clock, N: Copy> Pool<B, C, N> {
    /// How much memory it may hold that is not live, from now on.
    pub fn set_thrift(&self, thrift: Thrift) {
        lock(&self.growth).thrift = thrift;
        self.high_bytes.store(thrift.high_bytes, Relaxed);
        self.order().watch(thrift.high_bytes < u64::MAX);
    }

    /// The long way to a block.
    #[cold]
    pub(crate) fn find(&self, asked: &Asked) -> Result<Found, Error> {
        let mut refused = match self.find_now(asked) {
            Ok(found) => return Ok(found),
            Err(refused) => refused,
        };
        let callbacks = lock(&self.on_exhausted).clone();
        for (_, on_exhausted) in callbacks {
            if on_exhausted(asked.want.padded_bytes()) {
                match self.find_now(asked) {
                    Ok(span) => return Ok(span),
                    Err(again) => refused = again,
                }
            }
        }
        Err(Error::Exhausted {
            bytes: asked.bytes,
            usage: self.usage(),
            used_bytes: self.budget.used_bytes(),
            limit_bytes: self.budget.limit_bytes(),
            refused,
        })
    }

    fn find_now(&self, asked: &Asked) -> Result<Found, Refused> {
        // One at a time: who waited here finds what the one before has made.
        let mut growth = lock(&self.growth);
        let take = || self.take_now(asked);
        if let Some(span) = take().or_else(|| self.look_at_all().then(take)?) {
            return Ok(span);
        }
        // What threads keep stays theirs while there may be a little more.
        let (bytes, _) = self.addition(&growth.backing, asked.want);
        if self.is_modest(&growth, bytes)
            && let Ok(span) = self.extend(&mut growth.backing, asked)
        {
            return Ok(span);
        }
        self.give_back_all(None);
        let found = take().or_else(|| self.gather(asked));
        let found = found.or_else(|| self.borrow(asked)).or_else(|| {
            self.mark_all();
            self.look_at_all().then(take)?
        });
        if let Some(span) = found {
            return Ok(span);
        }
        let refused = match self.grow(&mut growth, asked, false) {
            Ok(span) => return Ok(span),
            Err(refused) => refused,
        };
        // Whatever the device has still to do is worth waiting for now.
        for _ in 0..ROUNDS {
            self.mark_all();
            let until = self.order().newest_marks();
            if until.is_empty() {
                break;
            }
            loop {
                let begun = Instant::now();
                if !self.join_oldest(STEP, &until) {
                    if begun.elapsed() < STEP {
                        break;
                    }
                    // It does not go on. It may be waiting for the host itself, and
                    // that for a little memory: so others have their way meanwhile.
                    drop(growth);
                    self.join_oldest(STEP, &until);
                    growth = lock(&self.growth);
                }
                if let Some(span) = take() {
                    return Ok(span);
                }
            }
        }
        let found = self.gather(asked);
        let found = found.or_else(|| self.grow(&mut growth, asked, true).ok());
        // Others may want what is mapped nowhere.
        self.budget.refund(growth.backing.release(0));
        found.ok_or(refused)
    }

    /// Takes a block that is there, or that a little more memory makes, if that
    /// needs no waiting.
    #[cold]
    pub(crate) fn find_soon(&self, asked: &Asked) -> Option<Found> {
        self.take_now(asked).or_else(|| {
            let mut growth = self.growth.try_lock().ok()?;
            let (bytes, _) = self.addition(&growth.backing, asked.want);
            let live = self.order().blocks().live_bytes() + asked.want.bytes();
            growth.peak_live = growth.peak_live.max(live);
            let modest = self.is_modest(&growth, bytes);
            modest.then(|| self.extend(&mut growth.backing, asked).ok())?
        })
    }

    /// Takes a block of another stream, after a wait.
    fn borrow(&self, asked: &Asked) -> Option<Found> {
        let Place::Stream(stream) = asked.place else {
            return None;
        };
        for _ in 0..LENDERS {
            let lender = self.order().lender(stream, asked.want)?;
            let mark = match lender {
                Ok(mark) => mark,
                Err(place) => {
                    if !self.mark(place) {
                        return None;
                    }
                    continue;
                }
            };
            if !self.clock.wait(stream, &mark.point) {
                return None;
            }
            self.order().waits(stream, &mark);
            if let Some(span) = self.take_now(asked) {
                return Some(span);
            }
        }
        None
    }

    /// Takes a block of what the stream may use and what is ready beside it.
    fn gather(&self, asked: &Asked) -> Option<Found> {
        let Place::Stream(stream) = asked.place else {
            return None;
        };
        self.order().gather(stream);
        self.take_now(asked)
    }

    /// Sets a mark wherever something waits for one.
    fn mark_all(&self) {
        let unmarked = self.order().unmarked();
        for place in unmarked {
            self.mark(place);
        }
    }

    /// Waits for the oldest mark of every place that is not behind the one of
    /// `until`; whether one has been passed.
    fn join_oldest(&self, patience: Duration, until: &Newest) -> bool {
        let mut marks = self.order().oldest_marks();
        marks.retain(|mark| until.get(&mark.place) >= Some(&mark.epoch));
        let mut passed = false;
        for Mark {
            place,
            epoch,
            point,
        } in marks
        {
            if self.clock.join(&point, patience) {
                self.order().passed(place, epoch);
                passed = true;
            }
        }
        passed
    }

    /// Takes a block of memory that comes, from elsewhere if there is much.
    /// `sparing`: there is no more new memory, or too little.
    fn grow(&self, growth: &mut Growth<B>, asked: &Asked, sparing: bool) -> Result<Found, Refused> {
        let want = asked.want;
        let mut until = None;
        loop {
            let (bytes, site) = self.addition(&growth.backing, want);
            let live = self.order().blocks().live_bytes() + want.bytes();
            growth.peak_live = growth.peak_live.max(live);
            let fits = !sparing && self.budget.has_room(growth.backing.new_bytes(bytes));
            if fits && self.is_modest(growth, bytes) {
                break;
            }
            let backing = &mut growth.backing;
            self.empty_out(backing, backing.new_bytes(bytes), site);
            // Little that waits would not change much.
            let new = backing.new_bytes(bytes);
            let slack = growth.thrift.slack(growth.peak_live);
            let waiting = self.order().waiting_bytes();
            if new == 0 || waiting <= slack.min(new) / 4 {
                break;
            }
            let until = match &until {
                Some(until) => until,
                None => {
                    if let Some(span) = self.gather(asked) {
                        return Ok(span);
                    }
                    self.mark_all();
                    until.insert(self.order().newest_marks())
                }
            };
            let begun = Instant::now();
            let passed = self.join_oldest(growth.patience, until);
            growth.patience = match begun.elapsed() < growth.patience {
                true => (growth.patience * 2).min(PATIENCE),
                false => growth.patience / 2,
            };
            if !passed {
                break;
            }
            if let Some(span) = self.take_now(asked) {
                return Ok(span);
            }
        }
        self.extend(&mut growth.backing, asked)
    }

    /// Adds memory that holds what is asked for, and takes it.
    fn extend(&self, backing: &mut B, asked: &Asked) -> Result<Found, Refused> {
        let want = asked.want;
        let (bytes, _) = self.addition(backing, want);
        if let Some(span) = self.add(backing, bytes, asked)? {
            return Ok(span);
        }
        // What was ready below it has been taken meanwhile.
        let bytes = backing.rounded(want.padded_bytes());
        let added = self.add(backing, bytes, asked)?;
        added.ok_or_else(|| Refused(format!("{bytes} bytes were added and do not hold it")))
    }

    /// Whether there is little more memory than was ever live, also after a
    /// growth.
    fn is_modest(&self, growth: &Growth<B>, bytes: u64) -> bool {
        let peak = growth.peak_live;
        let order = self.order();
        let bytes = order.blocks().bytes().saturating_add(bytes);
        let others = (order.queues() as u64).max(self.held.keepers());
        let others = others.clamp(1, MOST_OTHERS) - 1;
        let slack = growth.thrift.slack(peak) + others * growth.thrift.others_bytes;
        bytes <= peak.saturating_add(slack)
    }

    /// How many bytes to add, and where what is ready just below is part of the
    /// block to be.
    fn addition(&self, backing: &B, want: Want) -> (u64, Option<u64>) {
        let padding = want.align_bytes().saturating_sub(backing.align_bytes());
        let bytes = backing.rounded(want.bytes().saturating_add(padding));
        let Some(site) = backing.site(bytes) else {
            return (bytes, None);
        };
        let there = self.order().blocks().ready_below(site);
        let begin = (site - there).checked_next_multiple_of(want.align_bytes());
        let end = begin.and_then(|begin| begin.checked_add(want.bytes()));
        let Some(end) = end.filter(|_| there > 0) else {
            return (bytes, None);
        };
        let less = backing.rounded(end.saturating_sub(site).max(1));
        match less < bytes && backing.site(less) == Some(site) {
            true => (less, Some(site)),
            false => (bytes, None),
        }
    }

    /// Adds `bytes`, which were rounded, and takes a block; none if there is
    /// none with them.
    fn add(&self, backing: &mut B, bytes: u64, asked: &Asked) -> Result<Option<Found>, Refused> {
        // Spare memory of the wrong size is given back before there is more.
        self.budget.refund(backing.release(bytes));
        let new = backing.new_bytes(bytes);
        if !self.budget.charge(new) {
            return Err(Refused(format!("{} more are above the limit", Size(new))));
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
            return Err(Refused(format!("{} bytes were added twice", span.bytes)));
        }
        // Nobody else gets it.
        Ok(self.take_locked(&mut order, asked))
    }

    /// Unmaps ready memory of at least `bytes`, or as much as can go by
    /// itself, without what lies just below `site`.
    fn empty_out(&self, backing: &mut B, bytes: u64, site: Option<u64>) {
        if bytes > 0 {
            let pinned = lock(&self.pinned).clone();
            Self::empty(self.order(), backing, bytes, site, &pinned);
        }
    }

    fn empty(
        mut order: MutexGuard<'_, Order<C::Point>>,
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

    /// Gives all memory that is ready back to the driver; how many bytes.
    pub fn trim(&self) -> u64 {
        self.trim_to(0)
    }

    /// The same, once what was given back is behind no work of the device any more, for
    /// which it waits about `patience` at most. Work that comes meanwhile is not waited
    /// for.
    pub fn trim_within(&self, patience: Duration) -> u64 {
        self.give_back_all(None);
        self.mark_all();
        let until = self.order().newest_marks();
        let begun = Instant::now();
        while let Some(left) = patience.checked_sub(begun.elapsed()) {
            let (step, asked) = (STEP.min(left), Instant::now());
            // There is nothing more, or somebody captures, who can not be asked.
            if !self.join_oldest(step, &until) && asked.elapsed() < step {
                break;
            }
        }
        self.trim()
    }

    /// Gives ready memory back to the driver until no more than `bytes` is
    /// ready, as far as whole pieces of it are; how many bytes.
    pub fn trim_to(&self, bytes: u64) -> u64 {
        self.trim_now(&mut lock(&self.growth), bytes)
    }

    fn trim_now(&self, growth: &mut Growth<B>, bytes: u64) -> u64 {
        self.give_back_all(None);
        self.mark_all();
        self.look_at_all();
        let ready = self.order().blocks().free_bytes(SetId::READY);
        self.empty_out(&mut growth.backing, ready.saturating_sub(bytes), None);
        growth.peak_live = self.order().blocks().live_bytes();
        let released = growth.backing.release(0);
        self.budget.refund(released);
        released
    }

    /// The driver has taken the memory back by itself, as when the context ends
    /// that it belonged to: whatever is not live is forgotten at once, also
    /// what waits or is pinned. How many bytes.
    pub fn abandon(&self) -> u64 {
        let growth = &mut *lock(&self.growth);
        self.give_back_all(None);
        lock(&self.pinned).clear();
        // Under one lock, so that nobody takes what is ready in between.
        let mut order = self.order();
        order.all_passed();
        Self::empty(order, &mut growth.backing, u64::MAX, None, &Pins::new());
        growth.peak_live = self.order().blocks().live_bytes();
        let released = growth.backing.release(0);
        self.budget.refund(released);
        released
    }

    /// Gives memory back if more is ready than may be; unless memory comes or
    /// goes just now.
    pub(crate) fn relieve(&self) {
        let high = self.high_bytes.load(Relaxed);
        if high < u64::MAX
            && self.order().blocks().free_bytes(SetId::READY) > high
            && let Ok(mut growth) = self.growth.try_lock()
        {
            let low = growth.thrift.low_bytes;
            self.trim_now(&mut growth, low);
        }
    }

    /// Bytes that are ready and cannot be used elsewhere: they share a piece
    /// of memory with what is not ready, or are pinned.
    pub fn stranded_bytes(&self) -> u64 {
        let Growth { backing, .. } = &*lock(&self.growth);
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

/// What of a span is not pinned. Pins are by where they begin, and may overlap.
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

/// Pieces of a span of `bytes` together, or the first one.
fn some_of<B: Backing>(backing: &B, span: Span, bytes: u64) -> Option<Span> {
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
