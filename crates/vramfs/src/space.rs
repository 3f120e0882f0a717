//! Lock-free allocator of a store's blocks, and of aligned power-of-two runs of their pages.
//!
//! A block is free, whole (one owner has all of it), or split into runs of 1, 2, 4, 8 or 16 pages,
//! each aligned to its length, for small extents. Free blocks are on a stack; split ones with room
//! on one of five, by the longest free run that they had when they were pushed. An allocation gets
//! a shorter run where none that long is at hand, so all blocks are searched only if the stacks
//! have nothing.
//!
//! A block's state is one atomic word: which pages are used, whether the block is off the stack of
//! free ones, on a stack of split ones, retired, quarantined or lost. So each transition sees all
//! of it: only the thread that frees the last page pushes the block. A thread that pops a block
//! from the stack of free ones starts its next generation; runs of a split block have the same
//! generation, and are distinguished by their owners.
//!
//! Between two stacks a block is in transit for a moment. An allocation fails only if no block was
//! in transit during its search; otherwise it searches again.
//!
//! Invariant: a page is used by one owner or none; no block has a generation twice.
//! Elsewhere: the memory (`engine`). The primitives are the standard library's, except in
//! `tests/orders.rs`, which runs this module in every interleaving that its atomics allow.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use crate::layout::PAGES;
use crate::pieces::LazyTable;
use crate::sync::{AtomicU32, AtomicU64, yield_now};

/// The order of a run that is a whole block.
pub const WHOLE: u32 = PAGES.trailing_zeros();

const USED: u64 = u32::MAX as u64;
/// The block is not on the stack of free blocks.
const OUT: u64 = 1 << 32;
/// The block is on a stack of split ones.
const LISTED: u64 = 1 << 33;
/// The block is not allocated from, until it is added again.
const RETIRED: u64 = 1 << 34;
/// The block is not allocated from until all of it is free.
const QUARANTINED: u64 = 1 << 35;
/// The block's memory is lost for good; it is retired too.
const LOST: u64 = 1 << 36;

/// Blocks of the stacks for shorter runs that are probed before a free block is split.
const PROBES_MAX: usize = 8;

/// End of a stack, in place of a block's number.
const NONE: u32 = u32::MAX;

/// The most blocks: 2 TiB of data. The number fits 24 bits, into which tables of runs pack it.
pub const BLOCKS_MAX: u32 = 1 << 24;

/// Adjacent pages of one block: `1 << order` of them, aligned to their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRun {
    /// The block.
    pub block: u32,
    /// The first page in it.
    pub page: u8,
    /// Binary logarithm of the number of pages.
    pub order: u8,
}

impl PageRun {
    /// Returns the number of pages.
    pub fn pages(self) -> u32 {
        1 << self.order
    }

    pub(crate) fn mask(self) -> u64 {
        run_mask(u32::from(self.order)) << self.page
    }
}

/// Pages that a block in this state adds to the capacity: those in use or allocatable.
fn capacity_of(state: u64) -> u64 {
    match state & (RETIRED | QUARANTINED | LOST) {
        0 => PAGES as u64,
        RETIRED => 0,
        both if both == RETIRED | QUARANTINED => 0,
        _ => u64::from((state & USED).count_ones()),
    }
}

fn run_mask(order: u32) -> u64 {
    (1 << (1 << order)) - 1
}

/// Treiber stack of blocks, linked by number. Its head has a count beside the number, against ABA.
#[derive(Debug)]
struct BlockStack {
    head: AtomicU64,
}

impl BlockStack {
    fn new() -> Self {
        Self {
            head: AtomicU64::new(NONE as u64),
        }
    }

    fn push<'l>(&self, link: impl Fn(u32) -> &'l AtomicU32, block: u32) {
        let mut head = self.head.load(Relaxed);
        loop {
            link(block).store(head as u32, Relaxed);
            let now = (head >> 32).wrapping_add(1) << 32 | u64::from(block);
            match self.head.compare_exchange_weak(head, now, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }

    fn pop<'l>(&self, link: impl Fn(u32) -> &'l AtomicU32) -> Option<u32> {
        let mut head = self.head.load(Acquire);
        loop {
            let block = head as u32;
            if block == NONE {
                return None;
            }
            // Valid only if the head is unchanged, which the exchange below checks.
            let next = link(block).load(Relaxed);
            let now = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            match self.head.compare_exchange_weak(head, now, AcqRel, Acquire) {
                Ok(_) => return Some(block),
                Err(other) => head = other,
            }
        }
    }
}

/// Allocation state of one block.
#[derive(Debug)]
struct BlockEntry {
    state: AtomicU64,
    generation: AtomicU64,
    /// The next on the stack of free blocks.
    free_link: AtomicU32,
    /// The next on a stack of split blocks.
    split_link: AtomicU32,
}

/// Lock-free allocator of blocks and of runs of their pages.
#[derive(Debug)]
pub struct PageAllocator {
    /// Created lazily: a device could have a million, and seldom has.
    blocks: LazyTable<BlockEntry, 1024>,
    free: BlockStack,
    /// By the longest free run that a block had when it was pushed.
    split: [BlockStack; WHOLE as usize],
    /// Blocks that are in transit between two stacks.
    in_transit: AtomicU64,
    /// How many transits have ended.
    arrivals: AtomicU64,
    /// Pages in use.
    used: AtomicU64,
    /// Pages in use or allocatable.
    capacity: AtomicU64,
}

impl PageAllocator {
    /// Creates an allocator with room for `most` blocks, none of which is there yet.
    ///
    /// # Panics
    /// If `most` is more than [`BLOCKS_MAX`].
    pub fn new(most: u32) -> Self {
        assert!(
            most <= BLOCKS_MAX,
            "{most} blocks are more than {BLOCKS_MAX}"
        );
        Self {
            blocks: LazyTable::new(most),
            free: BlockStack::new(),
            split: std::array::from_fn(|_| BlockStack::new()),
            in_transit: AtomicU64::new(0),
            arrivals: AtomicU64::new(0),
            used: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
        }
    }

    /// Returns the number of pages in use.
    pub fn used_pages(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the capacity in pages.
    pub fn pages(&self) -> u64 {
        self.capacity.load(Relaxed)
    }

    /// Returns the number of free pages; 0 while more are in use than the capacity.
    pub fn free_pages(&self) -> u64 {
        self.pages().saturating_sub(self.used_pages())
    }

    /// Adds blocks that are not there, or were retired. The lowest numbers are allocated first.
    ///
    /// # Panics
    /// If a block is beyond the room, or is there already.
    pub fn add(&self, blocks: Range<u32>) {
        for block in blocks.rev() {
            let _transit = TransitGuard::new(self);
            // A free block on no stack is pushed. Any other is where it belongs.
            let added = |was: u64| match was & (USED | OUT | LOST) {
                _ if was & LOST != 0 => was,
                OUT => was & !(RETIRED | OUT),
                _ => was & !RETIRED,
            };
            let was = self
                .state(block)
                .fetch_update(AcqRel, Acquire, |was| Some(added(was)));
            let was = was.unwrap_or_else(|was| was);
            assert!(was & RETIRED != 0, "block {block} is there already");
            if was & LOST != 0 {
                continue;
            }
            self.capacity.fetch_add(capacity_of(added(was)), Relaxed);
            match was & (USED | OUT) {
                OUT => self.free.push(|it| &self.block(it).free_link, block),
                _ => self.list_if_room(block),
            }
        }
    }

    /// Stops allocation from these blocks. Their pages in use stay so until they are freed
    /// ([`PageAllocator::is_drained`]).
    pub fn retire(&self, blocks: Range<u32>) {
        for block in blocks {
            // If it is on a stack, the thread that pops it skips it.
            let was = self.state(block).fetch_or(RETIRED, AcqRel);
            let removed = capacity_of(was) - capacity_of(was | RETIRED);
            self.capacity.fetch_sub(removed, Relaxed);
        }
    }

    /// Stops allocation from a block until all of it is free: its content cannot be updated, only
    /// replaced as a whole. Its free pages do not count as capacity meanwhile. Returns whether the
    /// block was in use and not quarantined before.
    pub fn quarantine(&self, block: u32) -> bool {
        let mark =
            |was: u64| (was & USED != 0 && was & QUARANTINED == 0).then_some(was | QUARANTINED);
        let was = self.state(block).fetch_update(AcqRel, Acquire, mark);
        if let Ok(was) = was {
            let removed = capacity_of(was) - capacity_of(was | QUARANTINED);
            self.capacity.fetch_sub(removed, Relaxed);
        }
        was.is_ok()
    }

    /// Stops allocation from a block for good. Its pages in use count as capacity until they are
    /// freed; its free ones do not from now on.
    pub fn mark_lost(&self, block: u32) {
        let mark = |was: u64| (was & LOST == 0).then_some(was | RETIRED | LOST);
        let was = self.state(block).fetch_update(AcqRel, Acquire, mark);
        if let Ok(was) = was {
            let (before, after) = (capacity_of(was), capacity_of(was | RETIRED | LOST));
            self.capacity
                .fetch_add(after.saturating_sub(before), Relaxed);
            self.capacity
                .fetch_sub(before.saturating_sub(after), Relaxed);
        }
    }

    /// Returns whether the block is retired and none of its pages is in use.
    pub fn is_drained(&self, block: u32) -> bool {
        self.state(block).load(Acquire) & (RETIRED | USED) == RETIRED
    }

    /// Returns how many of these blocks are not drained: not retired, or still in use.
    pub fn count_undrained(&self, blocks: Range<u32>) -> u32 {
        blocks.filter(|block| !self.is_drained(*block)).count() as u32
    }

    /// Returns whether pages of a block are in use, and the block is in this generation.
    pub fn is_in_generation(&self, block: u32, generation: u64) -> bool {
        // The generation was set before the first page was allocated.
        self.used_of(block) != 0 && self.block(block).generation.load(Relaxed) == generation
    }

    /// Returns which pages of a block are in use, a bit each.
    pub fn used_of(&self, block: u32) -> u32 {
        (self.state(block).load(Acquire) & USED) as u32
    }

    /// Allocates a run of `1 << order` pages, or a shorter one if none of that length is at hand,
    /// and returns it with the block's generation; `None` if no page is free.
    ///
    /// # Panics
    /// If `order` is beyond [`WHOLE`].
    pub fn allocate(&self, order: u32) -> Option<(PageRun, u64)> {
        assert!(
            order <= WHOLE,
            "a run of 2^{order} pages is more than a block"
        );
        loop {
            let before = self.arrivals.load(SeqCst);
            let taken = match order {
                WHOLE => self.take_free(USED, WHOLE),
                _ => self
                    .take_from_split(order)
                    .or_else(|| self.split_free(order)),
            };
            let taken = taken
                .or_else(|| self.take_shorter(order))
                .or_else(|| self.take_from_any(order));
            if let Some(taken) = taken {
                self.used.fetch_add(u64::from(taken.0.pages()), Relaxed);
                return Some(taken);
            }
            // No block was in transit during the search, so it has covered all of them.
            if self.in_transit.load(SeqCst) == 0 && self.arrivals.load(SeqCst) == before {
                return None;
            }
            yield_now();
        }
    }

    /// Frees the pages of a run that are not in `kept`, which has a bit for each from the first on.
    ///
    /// # Panics
    /// As for [`PageAllocator::free`].
    pub fn free_unkept(&self, run: PageRun, kept: u32) {
        self.free_pages_of(run.block, run.mask() & !(u64::from(kept) << run.page));
    }

    /// Frees a run.
    ///
    /// # Panics
    /// If its pages are not in use.
    pub fn free(&self, run: PageRun) {
        self.free_pages_of(run.block, run.mask());
    }

    fn free_pages_of(&self, block: u32, pages: u64) {
        let _transit = TransitGuard::new(self);
        let state = self.state(block);
        let mut was = state.load(Acquire);
        loop {
            assert!(
                was & pages == pages,
                "pages {pages:#x} of block {block} were freed before"
            );
            let left = was & !pages;
            let is_empty = left & USED == 0;
            let now = match (is_empty, was & (LISTED | RETIRED | QUARANTINED)) {
                // Free, unless it is retired.
                (true, flags) if flags & RETIRED == 0 => left & !(OUT | QUARANTINED),
                (true, _) => left & !QUARANTINED,
                (false, 0) => left | LISTED,
                _ => left,
            };
            if let Err(other) = state.compare_exchange_weak(was, now, AcqRel, Acquire) {
                was = other;
                continue;
            }
            // In this order, so that no thread sees more free pages than there are.
            let (before, after) = (capacity_of(was), capacity_of(now));
            self.capacity
                .fetch_sub(before.saturating_sub(after), Relaxed);
            self.used.fetch_sub(u64::from(pages.count_ones()), Relaxed);
            self.capacity
                .fetch_add(after.saturating_sub(before), Relaxed);
            if now & OUT == 0 {
                self.free.push(|it| &self.block(it).free_link, block);
            } else if now & !was & LISTED != 0 {
                self.list(block, now);
            }
            return;
        }
    }

    fn block(&self, block: u32) -> &BlockEntry {
        let absent = |_| BlockEntry {
            state: AtomicU64::new(OUT | RETIRED),
            generation: AtomicU64::new(0),
            free_link: AtomicU32::new(NONE),
            split_link: AtomicU32::new(NONE),
        };
        self.blocks.of(block, absent)
    }

    fn state(&self, block: u32) -> &AtomicU64 {
        &self.block(block).state
    }

    /// Pushes a split block, with `LISTED` set before, on the stack for its longest free run.
    fn list(&self, block: u32, state: u64) {
        let longest = (0..WHOLE)
            .rev()
            .find(|order| first_free(state, *order).is_some());
        self.split[longest.unwrap_or(0) as usize].push(|it| &self.block(it).split_link, block);
    }

    /// Splits a free block, and takes its first run of this order.
    fn split_free(&self, order: u32) -> Option<(PageRun, u64)> {
        let (run, generation) = self.take_free(run_mask(order), order)?;
        self.list_if_room(run.block);
        Some((run, generation))
    }

    /// Pops a free block, and takes these pages of it.
    fn take_free(&self, pages: u64, order: u32) -> Option<(PageRun, u64)> {
        loop {
            let mut transit = TransitGuard::new(self);
            let Some(block) = self.free.pop(|it| &self.block(it).free_link) else {
                transit.is_empty = true;
                return None;
            };
            // No other thread sets it, and none reads it before the pages are taken.
            let generation = self.block(block).generation.load(Relaxed) + 1;
            self.block(block).generation.store(generation, Relaxed);
            let take = |was: u64| match was & RETIRED {
                0 => Some(was & LISTED | OUT | pages),
                _ => Some(was | OUT),
            };
            let was = self.state(block).fetch_update(AcqRel, Acquire, take);
            let was = was.unwrap_or_else(|was| was);
            if was & RETIRED == 0 {
                let run = PageRun {
                    block,
                    page: 0,
                    order: order as u8,
                };
                return Some((run, generation));
            }
        }
    }

    /// Pushes a split block with room on a stack, if it is on none.
    fn list_if_room(&self, block: u32) {
        let mark = |was: u64| {
            let is_split = was & OUT != 0 && was & (LISTED | RETIRED | QUARANTINED) == 0;
            (is_split && was & USED != USED && was & USED != 0).then_some(was | LISTED)
        };
        if let Ok(was) = self.state(block).fetch_update(AcqRel, Acquire, mark) {
            self.list(block, was);
        }
    }

    /// Takes from the stacks of blocks that had a run of that length; then from a few of the
    /// others, which may have one since.
    fn take_from_split(&self, order: u32) -> Option<(PageRun, u64)> {
        let of = |list: u32| self.take_listed(list, order..=order);
        let taken =
            (order..WHOLE).find_map(|list| std::iter::from_fn(|| of(list)).flatten().next());
        let others = (0..order).rev();
        taken.or_else(|| {
            let mut probed = others.flat_map(|list| std::iter::from_fn(move || of(list)));
            probed.by_ref().take(PROBES_MAX).flatten().next()
        })
    }

    /// Takes the longest run from the stacks of blocks that had shorter ones. A block that has none
    /// of its stack's length any more is pushed on the right one.
    fn take_shorter(&self, order: u32) -> Option<(PageRun, u64)> {
        (0..order).rev().find_map(|list| {
            let mut all = std::iter::from_fn(|| self.take_listed(list, list..=order));
            all.by_ref().flatten().next()
        })
    }

    /// Takes the longest run of these orders from the block on top of a stack; `None` if the stack
    /// is empty, `Some(None)` if the block has no such run.
    fn take_listed(
        &self,
        list: u32,
        orders: RangeInclusive<u32>,
    ) -> Option<Option<(PageRun, u64)>> {
        // Not in transit, since a failing search covers all split blocks, on a stack or not.
        let block = self.split[list as usize].pop(|it| &self.block(it).split_link)?;
        let taken = self.take_pages(block, orders, LISTED);
        if taken.is_none() {
            self.state(block).fetch_and(!LISTED, AcqRel);
        }
        self.list_if_room(block);
        Some(taken)
    }

    /// Takes from any block that has room: the slow path, a linear search.
    fn take_from_any(&self, order: u32) -> Option<(PageRun, u64)> {
        let is_there = |block: &u32| self.blocks.known(*block).is_some();
        (0..self.blocks.count()).filter(is_there).find_map(|block| {
            let taken = self.take_pages(block, 0..=order, 0)?;
            self.list_if_room(block);
            Some(taken)
        })
    }

    /// Takes the longest run of these orders from a split block, and clears these marks.
    fn take_pages(
        &self,
        block: u32,
        orders: RangeInclusive<u32>,
        marks: u64,
    ) -> Option<(PageRun, u64)> {
        let longest = |was: u64| {
            let is_split = was & OUT != 0 && was & (RETIRED | QUARANTINED) == 0 && was & USED != 0;
            let mut orders = orders.clone().rev().filter(|_| is_split);
            orders.find_map(|order| Some((first_free(was, order)?, order)))
        };
        let take = |was: u64| {
            let (page, order) = longest(was)?;
            Some((was | run_mask(order) << page) & !marks)
        };
        let was = self.state(block).fetch_update(AcqRel, Acquire, take).ok()?;
        let (page, order) = longest(was)?;
        let run = PageRun {
            block,
            page: page as u8,
            order: order as u8,
        };
        // It does not change while the run is in use.
        Some((run, self.block(block).generation.load(Relaxed)))
    }
}

/// While this exists, a block may be in transit: neither on a stack nor in use.
struct TransitGuard<'s> {
    space: &'s PageAllocator,
    /// No block was popped.
    is_empty: bool,
}

impl<'s> TransitGuard<'s> {
    fn new(space: &'s PageAllocator) -> Self {
        space.in_transit.fetch_add(1, SeqCst);
        Self {
            space,
            is_empty: false,
        }
    }
}

impl Drop for TransitGuard<'_> {
    fn drop(&mut self) {
        if !self.is_empty {
            self.space.arrivals.fetch_add(1, SeqCst);
        }
        self.space.in_transit.fetch_sub(1, SeqCst);
    }
}

/// Returns the first page of a free run of this order in a block.
fn first_free(state: u64, order: u32) -> Option<u32> {
    let length = 1 << order;
    let mut page = 0;
    while page < PAGES as u32 {
        if state & run_mask(order) << page == 0 {
            return Some(page);
        }
        page += length;
    }
    None
}
