//! Which blocks and pages of the store are somebody's. Lock-free.
//!
//! A block is free, whole (one owner has all of it), or cut into runs of 1, 2, 4, 8 or 16 pages,
//! each at a multiple of its length, for what is small. Free blocks are on a stack; cut ones with
//! room on one of five, by the longest run that they had when they were put there. Who asks for a run gets a
//! shorter one where none that long is at hand, so nobody looks through all blocks unless there is nothing.
//!
//! What changes of a block is in one atomic word: which pages are used, whether it is off
//! the stack of free ones, whether it is on a stack of cut ones, whether it is to go, or nothing can be written into it. So whoever changes it
//! knows all of it; whoever sees the last page given back puts it on the stack, alone. Who takes a
//! block from the stack of free ones gives it its next generation; runs of a cut block have the same one,
//! and are told apart by their owners.
//!
//! Between two places a block is in somebody's hand for a moment. Who finds nothing says so only if
//! nothing was in any hand while he looked, and looks again otherwise.
//!
//! Invariant: a page is used by one owner or none; no block has a generation twice.
//! Elsewhere: the memory (`engine`). The words are the standard library's, but where `tests/orders.rs` runs this in every order that
//! they allow.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use crate::layout::PAGES;
use crate::pieces::Pieces;
use crate::words::{AtomicU32, AtomicU64, yield_now};

/// The order of a run that is a whole block.
pub const WHOLE: u32 = PAGES.trailing_zeros();

const USED: u64 = u32::MAX as u64;
/// It is not on the stack of free blocks.
const OUT: u64 = 1 << 32;
/// It is on a stack of cut ones.
const LISTED: u64 = 1 << 33;
/// It is not given out any more.
const RETIRED: u64 = 1 << 34;
/// Nor this one, until all of it was given back.
const SHUNNED: u64 = 1 << 35;
/// Nor this one, for ever, which is retired too: its memory is lost.
const GONE: u64 = 1 << 36;

/// Blocks of lower lists that are looked at again before a free one is cut.
const LOOKED_AT: usize = 8;

/// Nothing, where a block would be named.
const NONE: u32 = u32::MAX;

/// There are no more blocks than that: 2 TiB. Whoever keeps many runs packs them.
pub const BLOCKS_MAX: u32 = 1 << 24;

/// Pages side by side in one block, `1 << order` of them, from a multiple of that on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The block.
    pub block: u32,
    /// The first page in it.
    pub page: u8,
    /// See the structure.
    pub order: u8,
}

impl Run {
    /// How many pages.
    pub fn pages(self) -> u32 {
        1 << self.order
    }

    pub(crate) fn mask(self) -> u64 {
        run_mask(u32::from(self.order)) << self.page
    }
}

/// Pages of a block that are somebody's or can be.
fn counted(state: u64) -> u64 {
    match state & (RETIRED | SHUNNED | GONE) {
        0 => PAGES as u64,
        RETIRED => 0,
        both if both == RETIRED | SHUNNED => 0,
        _ => u64::from((state & USED).count_ones()),
    }
}

fn run_mask(order: u32) -> u64 {
    (1 << (1 << order)) - 1
}

/// A stack of blocks, linked by number. Its head has a count beside the number, so that a
/// head that has come back is not taken for the one that was.
#[derive(Debug)]
struct Stack {
    head: AtomicU64,
}

impl Stack {
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
            // What is read here is the next only if the head is still the same.
            let next = link(block).load(Relaxed);
            let now = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            match self.head.compare_exchange_weak(head, now, AcqRel, Acquire) {
                Ok(_) => return Some(block),
                Err(other) => head = other,
            }
        }
    }
}

/// A block.
#[derive(Debug)]
struct Block {
    state: AtomicU64,
    generation: AtomicU64,
    /// The next on the stack of free ones.
    free_link: AtomicU32,
    /// The next on one of cut ones.
    cut_link: AtomicU32,
}

/// See the module.
#[derive(Debug)]
pub struct Space {
    /// A device could have a million, and seldom has.
    blocks: Pieces<Block, 1024>,
    free: Stack,
    /// By the longest run that there was.
    cut: [Stack; WHOLE as usize],
    /// Blocks that are in somebody's hand, and how often one has been put down.
    in_hand: AtomicU64,
    put_down: AtomicU64,
    /// Pages that somebody has.
    used: AtomicU64,
    /// Pages of blocks that are given out.
    capacity: AtomicU64,
}

impl Space {
    /// Room for so many blocks, none of which is there yet.
    ///
    /// # Panics
    /// For more than [`BLOCKS_MAX`].
    pub fn new(most: u32) -> Self {
        assert!(
            most <= BLOCKS_MAX,
            "{most} blocks are more than {BLOCKS_MAX}"
        );
        Self {
            blocks: Pieces::new(most),
            free: Stack::new(),
            cut: std::array::from_fn(|_| Stack::new()),
            in_hand: AtomicU64::new(0),
            put_down: AtomicU64::new(0),
            used: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
        }
    }

    /// So many pages are somebody's.
    pub fn used_pages(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// So many pages there are.
    pub fn pages(&self) -> u64 {
        self.capacity.load(Relaxed)
    }

    /// So many of them are nobody's; 0 while more are somebody's than there are to be.
    pub fn free_pages(&self) -> u64 {
        self.pages().saturating_sub(self.used_pages())
    }

    /// Adds blocks that are not there, or were retired. Those of the lowest numbers are the first
    /// to be used.
    ///
    /// # Panics
    /// If one is beyond the room, or is there already.
    pub fn add(&self, blocks: Range<u32>) {
        for block in blocks.rev() {
            let _hand = Hand::on(self);
            // Nobody's, and on no stack: it goes there. Else it is where it belongs.
            let come = |was: u64| match was & (USED | OUT | GONE) {
                _ if was & GONE != 0 => was,
                OUT => was & !(RETIRED | OUT),
                _ => was & !RETIRED,
            };
            let was = self
                .state(block)
                .fetch_update(AcqRel, Acquire, |was| Some(come(was)));
            let was = was.unwrap_or_else(|was| was);
            assert!(was & RETIRED != 0, "block {block} is there already");
            if was & GONE != 0 {
                continue;
            }
            self.capacity.fetch_add(counted(come(was)), Relaxed);
            match was & (USED | OUT) {
                OUT => self.free.push(|it| &self.block(it).free_link, block),
                _ => self.list_if_room(block),
            }
        }
    }

    /// Gives these out no more. Those that are somebody's stay so until they are given back:
    /// [`Space::is_gone`] says.
    pub fn retire(&self, blocks: Range<u32>) {
        for block in blocks {
            // Where it is on a stack, whoever finds it there leaves it out.
            let was = self.state(block).fetch_or(RETIRED, AcqRel);
            let gone = counted(was) - counted(was | RETIRED);
            self.capacity.fetch_sub(gone, Relaxed);
        }
    }

    /// Gives no more of a block out until all of it was given back, and then as any other: nothing can be written into it, but
    /// it can be made anew. Its free pages are no pages of the store's as long. Whether it was given out until now.
    pub fn shun(&self, block: u32) -> bool {
        let mark = |was: u64| (was & USED != 0 && was & SHUNNED == 0).then_some(was | SHUNNED);
        let was = self.state(block).fetch_update(AcqRel, Acquire, mark);
        if let Ok(was) = was {
            let gone = counted(was) - counted(was | SHUNNED);
            self.capacity.fetch_sub(gone, Relaxed);
        }
        was.is_ok()
    }

    /// Gives a block out no more for ever. Pages of it that are somebody's count as long as they are; its free ones are none of the
    /// store's from now on.
    pub fn lose(&self, block: u32) {
        let mark = |was: u64| (was & GONE == 0).then_some(was | RETIRED | GONE);
        let was = self.state(block).fetch_update(AcqRel, Acquire, mark);
        if let Ok(was) = was {
            let (before, behind) = (counted(was), counted(was | RETIRED | GONE));
            self.capacity
                .fetch_add(behind.saturating_sub(before), Relaxed);
            self.capacity
                .fetch_sub(before.saturating_sub(behind), Relaxed);
        }
    }

    /// Whether the block is retired and nobody's.
    pub fn is_gone(&self, block: u32) -> bool {
        self.state(block).load(Acquire) & (RETIRED | USED) == RETIRED
    }

    /// How many of these are not gone: not retired, or somebody's still.
    pub fn left(&self, blocks: Range<u32>) -> u32 {
        blocks.filter(|block| !self.is_gone(*block)).count() as u32
    }

    /// Whether pages of a block are somebody's, who took the first of them in this generation.
    pub fn is_of(&self, block: u32, generation: u64) -> bool {
        // The generation was set before the first page was taken.
        self.used_of(block) != 0 && self.block(block).generation.load(Relaxed) == generation
    }

    /// Which pages of a block are somebody's, a bit each.
    pub fn used_of(&self, block: u32) -> u32 {
        (self.state(block).load(Acquire) & USED) as u32
    }

    /// A run of `1 << order` pages, or a shorter one if none of that length is at hand, and the block's generation;
    /// `None` if no page is nobody's.
    ///
    /// # Panics
    /// For an order beyond [`WHOLE`].
    pub fn take(&self, order: u32) -> Option<(Run, u64)> {
        assert!(
            order <= WHOLE,
            "a run of 2^{order} pages is more than a block"
        );
        loop {
            let before = self.put_down.load(SeqCst);
            let taken = match order {
                WHOLE => self.take_free(USED, WHOLE),
                _ => self.take_of_cut(order).or_else(|| self.take_of_free(order)),
            };
            let taken = taken
                .or_else(|| self.take_shorter(order))
                .or_else(|| self.take_of_any(order));
            if let Some(taken) = taken {
                self.used.fetch_add(u64::from(taken.0.pages()), Relaxed);
                return Some(taken);
            }
            // All that was in nobody's hand was looked at.
            if self.in_hand.load(SeqCst) == 0 && self.put_down.load(SeqCst) == before {
                return None;
            }
            yield_now();
        }
    }

    /// Gives those pages of a run back that are not kept, a bit for each from its first on.
    ///
    /// # Panics
    /// As for [`Space::give`].
    pub fn narrow(&self, run: Run, kept: u32) {
        self.give_pages(run.block, run.mask() & !(u64::from(kept) << run.page));
    }

    /// Gives a run back.
    ///
    /// # Panics
    /// If its pages are not somebody's.
    pub fn give(&self, run: Run) {
        self.give_pages(run.block, run.mask());
    }

    fn give_pages(&self, block: u32, pages: u64) {
        let _hand = Hand::on(self);
        let state = self.state(block);
        let mut was = state.load(Acquire);
        loop {
            assert!(
                was & pages == pages,
                "pages {pages:#x} of block {block} were given back before"
            );
            let left = was & !pages;
            let is_empty = left & USED == 0;
            let now = match (is_empty, was & (LISTED | RETIRED | SHUNNED)) {
                // Free, unless it is to go.
                (true, flags) if flags & RETIRED == 0 => left & !(OUT | SHUNNED),
                (true, _) => left & !SHUNNED,
                (false, 0) => left | LISTED,
                _ => left,
            };
            if let Err(other) = state.compare_exchange_weak(was, now, AcqRel, Acquire) {
                was = other;
                continue;
            }
            // In this order, so that nobody sees more free than there are.
            let (before, behind) = (counted(was), counted(now));
            self.capacity
                .fetch_sub(before.saturating_sub(behind), Relaxed);
            self.used.fetch_sub(u64::from(pages.count_ones()), Relaxed);
            self.capacity
                .fetch_add(behind.saturating_sub(before), Relaxed);
            if now & OUT == 0 {
                self.free.push(|it| &self.block(it).free_link, block);
            } else if now & !was & LISTED != 0 {
                self.list(block, now);
            }
            return;
        }
    }

    fn block(&self, block: u32) -> &Block {
        let nothing = |_| Block {
            state: AtomicU64::new(OUT | RETIRED),
            generation: AtomicU64::new(0),
            free_link: AtomicU32::new(NONE),
            cut_link: AtomicU32::new(NONE),
        };
        self.blocks.of(block, nothing)
    }

    fn state(&self, block: u32) -> &AtomicU64 {
        &self.block(block).state
    }

    /// Puts a block, whose mark is set, on the stack that is for it.
    fn list(&self, block: u32, state: u64) {
        let longest = (0..WHOLE).rev().find(|order| room(state, *order).is_some());
        self.cut[longest.unwrap_or(0) as usize].push(|it| &self.block(it).cut_link, block);
    }

    fn take_of_free(&self, order: u32) -> Option<(Run, u64)> {
        let (run, generation) = self.take_free(run_mask(order), order)?;
        self.list_if_room(run.block);
        Some((run, generation))
    }

    /// Takes a free block, and these pages of it.
    fn take_free(&self, pages: u64, order: u32) -> Option<(Run, u64)> {
        loop {
            let mut hand = Hand::on(self);
            let Some(block) = self.free.pop(|it| &self.block(it).free_link) else {
                hand.is_empty = true;
                return None;
            };
            // Nobody else can give it one, and nobody asks before it is taken.
            let generation = self.block(block).generation.load(Relaxed) + 1;
            self.block(block).generation.store(generation, Relaxed);
            let take = |was: u64| match was & RETIRED {
                0 => Some(was & LISTED | OUT | pages),
                _ => Some(was | OUT),
            };
            let was = self.state(block).fetch_update(AcqRel, Acquire, take);
            let was = was.unwrap_or_else(|was| was);
            if was & RETIRED == 0 {
                let run = Run {
                    block,
                    page: 0,
                    order: order as u8,
                };
                return Some((run, generation));
            }
        }
    }

    /// Puts a cut block with room on a stack, if it is on none.
    fn list_if_room(&self, block: u32) {
        let mark = |was: u64| {
            let is_cut = was & OUT != 0 && was & (LISTED | RETIRED | SHUNNED) == 0;
            (is_cut && was & USED != USED && was & USED != 0).then_some(was | LISTED)
        };
        if let Ok(was) = self.state(block).fetch_update(AcqRel, Acquire, mark) {
            self.list(block, was);
        }
    }

    /// From the stacks of blocks that had a run of that length; then from a few of the others,
    /// which may have one by now.
    fn take_of_cut(&self, order: u32) -> Option<(Run, u64)> {
        let of = |list: u32| self.take_listed(list, order..=order);
        let taken =
            (order..WHOLE).find_map(|list| std::iter::from_fn(|| of(list)).flatten().next());
        let others = (0..order).rev();
        taken.or_else(|| {
            let mut looked = others.flat_map(|list| std::iter::from_fn(move || of(list)));
            looked.by_ref().take(LOOKED_AT).flatten().next()
        })
    }

    /// From the stacks of blocks that had shorter ones, the longest that there is. What has become shorter there since is
    /// put on its own.
    fn take_shorter(&self, order: u32) -> Option<(Run, u64)> {
        (0..order).rev().find_map(|list| {
            let mut all = std::iter::from_fn(|| self.take_listed(list, list..=order));
            all.by_ref().flatten().next()
        })
    }

    /// From the block on top of a stack, the longest run of these orders; `None` if there is no block, within if it has none.
    fn take_listed(&self, list: u32, orders: RangeInclusive<u32>) -> Option<Option<(Run, u64)>> {
        // In no hand, since who finds nothing has looked at all cut blocks, on a stack or not.
        let block = self.cut[list as usize].pop(|it| &self.block(it).cut_link)?;
        let taken = self.take_pages(block, orders, LISTED);
        if taken.is_none() {
            self.state(block).fetch_and(!LISTED, AcqRel);
        }
        self.list_if_room(block);
        Some(taken)
    }

    /// From any block that has room: the slow way, when there is no other.
    fn take_of_any(&self, order: u32) -> Option<(Run, u64)> {
        let is_there = |block: &u32| self.blocks.known(*block).is_some();
        (0..self.blocks.count()).filter(is_there).find_map(|block| {
            let taken = self.take_pages(block, 0..=order, 0)?;
            self.list_if_room(block);
            Some(taken)
        })
    }

    /// Pages of a block that is cut, the longest run of these orders, and takes these marks from it.
    fn take_pages(
        &self,
        block: u32,
        orders: RangeInclusive<u32>,
        marks: u64,
    ) -> Option<(Run, u64)> {
        let longest = |was: u64| {
            let is_cut = was & OUT != 0 && was & (RETIRED | SHUNNED) == 0 && was & USED != 0;
            let mut orders = orders.clone().rev().filter(|_| is_cut);
            orders.find_map(|order| Some((room(was, order)?, order)))
        };
        let take = |was: u64| {
            let (page, order) = longest(was)?;
            Some((was | run_mask(order) << page) & !marks)
        };
        let was = self.state(block).fetch_update(AcqRel, Acquire, take).ok()?;
        let (page, order) = longest(was)?;
        let run = Run {
            block,
            page: page as u8,
            order: order as u8,
        };
        // It stays this one as long as the run is ours.
        Some((run, self.block(block).generation.load(Relaxed)))
    }
}

/// A block may be on no stack and in nobody's possession as long as this is there.
struct Hand<'s> {
    space: &'s Space,
    /// Nothing was taken in it.
    is_empty: bool,
}

impl<'s> Hand<'s> {
    fn on(space: &'s Space) -> Self {
        space.in_hand.fetch_add(1, SeqCst);
        Self {
            space,
            is_empty: false,
        }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        if !self.is_empty {
            self.space.put_down.fetch_add(1, SeqCst);
        }
        self.space.in_hand.fetch_sub(1, SeqCst);
    }
}

/// The first page of a free run in a block.
fn room(state: u64, order: u32) -> Option<u32> {
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
