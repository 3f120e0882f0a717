//! Segregated-fit allocator of blocks, and the sets of free blocks.
//!
//! Two-level segregated fit (Masmano, Ripoll, Crespo and Real, 2004), with all bookkeeping beside
//! the memory instead of in it: the host cannot write device memory. A set keeps its free blocks in
//! free lists by size: a first level for each power of two, divided into 32 second levels, with bit
//! maps of the nonempty lists. A search rounds its size up to the next second level, so that the
//! first block it finds fits; only if that finds nothing, or for large blocks, does it examine a
//! few blocks of the list below. So taking and giving back touch a bounded number of blocks,
//! however many there are.
//!
//! All sets share one table of adjacent blocks: a block that moves from one set to another is
//! merged there with its neighbours.
//!
//! Invariants: every unit of every range is in exactly one block; no two adjacent blocks are free
//! in the same set; the blocks of a set are in the order of their epochs.
//!
//! Elsewhere: the lists of a set (`free_set`), units and layouts (`layout`), adding and removing
//! memory (`ranges`), size classes (`classes`), the meaning of sets and epochs ([`crate::order`]),
//! checking all invariants (`audit`).

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::classes::{SECOND, SizeClass};

mod audit;
mod free_set;
mod layout;
mod ranges;

pub use free_set::SetId;
use free_set::{BlockNode, FreeSet, ListPosition, NONE, NodeState};
pub use layout::{AllocLayout, BadRange, Span, UNIT_BYTES};

/// How many blocks of the list below the rounded-up size are examined.
const PEEK: usize = 8;

/// The identifier of a live block. It becomes invalid when the block is given back, and stays so
/// when its slot is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    index: u32,
    generation: u32,
}

/// A free block that satisfies a request, valid until any block changes.
#[derive(Debug)]
pub struct Fit {
    index: u32,
    layout: AllocLayout,
}

/// A contiguous run of blocks, keyed by its start.
#[derive(Clone, Copy, Debug)]
struct MemoryRange {
    first: u32,
    end: u32,
}

/// The block allocator; see the module. Not thread-safe: shared users lock it. Fields are in the
/// order in which they are read.
#[derive(Debug)]
#[repr(C)]
pub struct BlockAllocator {
    nodes: Vec<BlockNode>,
    sets: Vec<FreeSet>,
    units: u64,
    /// The first vacant slot.
    vacant: u32,
    /// By start address, in units.
    ranges: BTreeMap<u64, MemoryRange>,
}

impl Default for BlockAllocator {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            vacant: NONE,
            sets: vec![FreeSet::default()],
            ranges: BTreeMap::new(),
            units: 0,
        }
    }
}

impl BlockAllocator {
    /// An allocator without memory, with the set of ready blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves host memory for `blocks` blocks, so that taking and giving back that many allocates
    /// nothing.
    pub fn reserve(&mut self, blocks: usize) {
        self.nodes.reserve(blocks);
    }

    /// Creates an empty set.
    pub fn new_set(&mut self) -> SetId {
        let vacant = self.sets.iter().position(|set| !set.there);
        let at = vacant.unwrap_or(self.sets.len());
        match self.sets.get_mut(at) {
            Some(set) => set.there = true,
            None => self.sets.push(FreeSet::default()),
        }
        SetId(at as u32)
    }

    /// Drops a set if it is empty; returns whether it was. The set of ready blocks stays.
    pub fn drop_set(&mut self, set: SetId) -> bool {
        let empty = set != SetId::READY && self.set(set).units == 0;
        if empty {
            self.set_mut(set).there = false;
        }
        empty
    }

    /// Total bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.units * UNIT_BYTES
    }

    /// Bytes of the free blocks of a set.
    pub fn free_bytes(&self, set: SetId) -> u64 {
        self.set(set).units * UNIT_BYTES
    }

    /// Bytes of live blocks.
    pub fn live_bytes(&self) -> u64 {
        let free: u64 = self.sets.iter().map(|set| set.units).sum();
        (self.units - free) * UNIT_BYTES
    }

    /// The number of live blocks; for tests, as it visits all of them.
    #[doc(hidden)]
    pub fn live_blocks(&self) -> usize {
        let live = |node: &&BlockNode| node.state == NodeState::LiveBlock;
        self.nodes.iter().filter(live).count()
    }

    /// A lower bound of the largest free block in `set`; zero if there is none.
    pub fn largest_free_bytes(&self, set: SetId) -> u64 {
        let set = self.set(set);
        if set.first == 0 {
            return 0;
        }
        let first = set.first.ilog2() as usize;
        let second = set.second[first].ilog2() as usize;
        self.nodes[set.heads[first * SECOND + second] as usize].len * UNIT_BYTES
    }

    /// The epochs of the oldest and the newest block of a set.
    pub fn epochs(&self, set: SetId) -> Option<(u64, u64)> {
        let set = self.set(set);
        let oldest = self.nodes.get(set.oldest as usize)?.epoch;
        Some((oldest, self.nodes.get(set.newest as usize)?.epoch))
    }

    // ---- memory -------------------------------------------------------------

    /// Ready blocks of at least `bytes`, larger size classes first.
    pub fn ready(&self, bytes: u64) -> impl Iterator<Item = Span> {
        let least = SizeClass::of(AllocLayout::new(bytes, 1).units);
        let set = self.set(SetId::READY);
        // No list holds blocks larger than the maximum.
        let heads = set.heads.get(least.0..).unwrap_or_default();
        let blocks = heads.iter().rev().flat_map(|head| self.list_at(*head));
        blocks
            .map(|(_, node)| node.span())
            .filter(move |span| span.bytes >= bytes)
    }

    /// How many bytes are ready just below `address`, where a range ends.
    pub fn ready_below(&self, address: u64) -> u64 {
        let end = address / UNIT_BYTES;
        let Some((_, range)) = self.ranges.range(..end).next_back() else {
            return 0;
        };
        let BlockNode { start, below, .. } = self.nodes[range.end as usize];
        match start == end && self.is_free(below, SetId::READY) {
            true => self.nodes[below as usize].len * UNIT_BYTES,
            false => 0,
        }
    }

    /// The ready block at `around`, if it contains all of `span`.
    fn ready_at(&self, around: Span, span: Span) -> Option<u32> {
        if span.bytes == 0 || span.address < around.address || span.end() > around.end() {
            return None;
        }
        let class = SizeClass::of(NonZeroU64::new(around.bytes / UNIT_BYTES)?);
        let mut nodes = self.list_at(self.set(SetId::READY).head(class)?);
        nodes.find_map(|(index, node)| (node.span() == around).then_some(index))
    }

    // ---- taking and giving back ---------------------------------------------

    /// Takes a block from `set`, of an epoch up to `epoch`; `None` if the bounded search finds
    /// none.
    #[inline(always)]
    pub fn take(&mut self, set: SetId, layout: AllocLayout, epoch: u64) -> Option<BlockId> {
        let fit = self.fit(set, layout, epoch)?;
        Some(self.take_of(fit))
    }

    /// The block that [`BlockAllocator::take`] would take from.
    #[inline(always)]
    pub fn fit(&self, set: SetId, layout: AllocLayout, epoch: u64) -> Option<Fit> {
        let index = self.find(set, layout, epoch)?;
        Some(Fit { index, layout })
    }

    /// As [`BlockAllocator::fit`], or a ready block if that fits better.
    #[inline]
    pub fn best_fit(&self, set: SetId, layout: AllocLayout) -> Option<Fit> {
        let len = |index: u32| self.nodes[index as usize].len;
        let own = self.find(set, layout, u64::MAX);
        let index = match own {
            Some(own) if len(own) == layout.units.get() => own,
            own => {
                // Among larger blocks none fits better.
                let nearest = self
                    .set(SetId::READY)
                    .first_class(SizeClass::of(layout.units));
                let is_nearer = nearest.is_some_and(|class| {
                    own.is_none_or(|own| class <= SizeClass::of_some(len(own)))
                });
                let ready = is_nearer.then(|| self.find(SetId::READY, layout, u64::MAX));
                let fits = own.into_iter().chain(ready.flatten());
                fits.min_by_key(|index| (len(*index), self.nodes[*index as usize].start))?
            }
        };
        Some(Fit { index, layout })
    }

    /// The start of the block that [`BlockAllocator::take_of`] would cut.
    #[inline]
    pub fn address(&self, fit: &Fit) -> u64 {
        self.begin(fit.index, fit.layout) * UNIT_BYTES
    }

    /// Cuts the requested block from the free block that holds it.
    #[inline(always)]
    pub fn take_of(&mut self, Fit { index, layout }: Fit) -> BlockId {
        debug_assert_eq!(self.nodes[index as usize].state, NodeState::Free);
        debug_assert!(self.fits(index, layout, u64::MAX));
        let start = self.begin(index, layout);
        let index = match self.nodes[index as usize].start == start {
            true => self.take_front(index, layout.units),
            false => {
                let was = self.unlist(index);
                let index = self.cut_front(index, start, &was);
                self.cut_back(index, layout.units.get(), &was);
                index
            }
        };
        let node = &mut self.nodes[index as usize];
        node.state = NodeState::LiveBlock;
        BlockId {
            index,
            generation: node.generation,
        }
    }

    /// The epoch of the block that [`BlockAllocator::take`] would take if it ignored epochs.
    pub fn would_take(&self, set: SetId, layout: AllocLayout) -> Option<u64> {
        let index = self.find(set, layout, u64::MAX)?;
        Some(self.nodes[index as usize].epoch)
    }

    /// The span of a live block.
    #[inline]
    pub fn span(&self, id: BlockId) -> Option<Span> {
        let node = self.nodes.get(id.index as usize)?;
        let live = node.state == NodeState::LiveBlock && node.generation == id.generation;
        live.then(|| node.span())
    }

    /// Puts a live block into `set` at `epoch`, which is no earlier than that of any other block
    /// there; `None` if it is not live.
    #[inline(always)]
    pub fn give(&mut self, id: BlockId, set: SetId, epoch: u64) -> Option<Span> {
        let span = self.span(id)?;
        self.give_live(id, set, epoch);
        Some(span)
    }

    #[inline(always)]
    fn give_live(&mut self, id: BlockId, set: SetId, epoch: u64) {
        // Invalidates the identifier, whichever block reuses the slot.
        let node = &mut self.nodes[id.index as usize];
        node.generation = node.generation.wrapping_add(1);
        self.settle(id.index, set, epoch);
    }

    /// As [`BlockAllocator::give`], merged with ready blocks of up to `most` bytes on either side.
    #[inline]
    pub fn give_with_ready(
        &mut self,
        id: BlockId,
        set: SetId,
        epoch: u64,
        most: u64,
    ) -> Option<Span> {
        let span = self.span(id)?;
        let BlockNode { below, above, .. } = self.nodes[id.index as usize];
        if self.is_ready_and_small(below, most) {
            self.join(below, set, epoch);
        }
        if self.is_ready_and_small(above, most) {
            self.join(above, set, epoch);
        }
        self.give_live(id, set, epoch);
        Some(span)
    }

    #[inline]
    fn is_ready_and_small(&self, index: u32, most: u64) -> bool {
        self.is_free(index, SetId::READY) && self.nodes[index as usize].len * UNIT_BYTES <= most
    }

    /// Moves a free block to another set, merging it with free neighbours there.
    #[inline(never)]
    fn join(&mut self, index: u32, set: SetId, epoch: u64) {
        self.unlist(index);
        self.settle(index, set, epoch);
    }

    /// Moves the blocks of `from` with epochs up to `epoch` to `into`, at epoch `at`. Returns their
    /// bytes.
    pub fn move_to(&mut self, from: SetId, epoch: u64, into: SetId, at: u64) -> u64 {
        let before = self.set(from).units;
        while let Some(node) = self.nodes.get(self.set(from).oldest as usize)
            && node.epoch <= epoch
            && from != into
        {
            let index = self.set(from).oldest;
            self.unlist(index);
            self.settle(index, into, at);
        }
        (before - self.set(from).units) * UNIT_BYTES
    }

    /// Moves ready memory adjacent to blocks of `set` into the set at epoch `at`, merged with them.
    /// Returns its bytes.
    pub fn join_ready(&mut self, set: SetId, at: u64) -> u64 {
        let before = self.set(set).units;
        let mut beside = Vec::new();
        let mut index = self.set(set).oldest;
        while let Some(node) = self.nodes.get(index as usize) {
            beside.extend([node.below, node.above]);
            index = node.later;
        }
        for index in beside {
            if set != SetId::READY && self.is_free(index, SetId::READY) {
                self.unlist(index);
                self.settle(index, set, at);
            }
        }
        (self.set(set).units - before) * UNIT_BYTES
    }

    /// A free block of `set` that holds `layout`: usually the first one of the first list of larger
    /// sizes.
    #[inline(always)]
    fn find(&self, set: SetId, layout: AllocLayout, epoch: u64) -> Option<u32> {
        if self.set(set).units < layout.units.get() {
            return None;
        }
        if !layout.is_large()
            && let Some(index) = self.set(set).first_from(SizeClass::holding(layout.units))
            && self.fits(index, layout, epoch)
        {
            return Some(index);
        }
        let found = self.find_among(set, layout.units, layout, epoch);
        found.or_else(|| {
            // If no list from this size on has a block, the search ends.
            self.set(set).first_from(SizeClass::of(layout.units))?;
            // A block at an arbitrary address must be larger by the alignment's padding.
            let padded = (layout.align > 1).then(|| layout.units.checked_add(layout.align - 1));
            self.find_among(set, padded??, layout, epoch)
        })
    }

    /// The address in a block at which `layout` would start.
    #[inline]
    fn begin(&self, index: u32, layout: AllocLayout) -> u64 {
        // The alignment is a power of two; a division would take longer than the rest.
        (self.nodes[index as usize].start + (layout.align - 1)) & !(layout.align - 1)
    }

    /// Whether a block holds `layout`, and has an epoch up to `epoch`.
    #[inline]
    fn fits(&self, index: u32, layout: AllocLayout, epoch: u64) -> bool {
        let node = &self.nodes[index as usize];
        let end = self.begin(index, layout) + layout.units.get();
        end <= node.start + node.len && node.epoch <= epoch
    }

    /// Searches the blocks of at least `least` units in `set` for one that holds `layout`.
    #[cold]
    fn find_among(
        &self,
        set: SetId,
        least: NonZeroU64,
        layout: AllocLayout,
        epoch: u64,
    ) -> Option<u32> {
        let lists = self.set(set);
        let fits = |index: u32| self.fits(index, layout, epoch);
        if layout.is_large() {
            return self.find_best(lists, least, fits);
        }
        let larger = lists.first_from(SizeClass::holding(least));
        larger.filter(|index| fits(*index)).or_else(|| {
            let mut nodes = self.list_at(lists.head(SizeClass::of(least))?).take(PEEK);
            nodes.find_map(|(index, _)| fits(index).then_some(index))
        })
    }

    /// Of the first blocks of two lists, the one that `fits` with the least left over; the lowest
    /// address of several, so that requests repeated in the same order get the same blocks, in
    /// whatever order those were freed.
    fn find_best(
        &self,
        lists: &FreeSet,
        least: NonZeroU64,
        fits: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let best = |head: u32| {
            let nodes = self.list_at(head).take(PEEK);
            let fitting = nodes
                .filter_map(|(index, node)| fits(index).then_some((node.len, node.start, index)));
            Some(fitting.min()?.2)
        };
        best(lists.head(SizeClass::of(least))?)
            .or_else(|| best(lists.first_from(SizeClass::holding(least))?))
    }

    /// The blocks of a list.
    fn list_at(&self, head: u32) -> impl Iterator<Item = (u32, &BlockNode)> {
        let get = |index: u32| Some((index, self.nodes.get(index as usize)?));
        std::iter::successors(get(head), move |(_, node)| get(node.next))
    }

    // ---- inside -------------------------------------------------------------

    #[inline]
    fn set(&self, set: SetId) -> &FreeSet {
        &self.sets[set.0 as usize]
    }

    #[inline]
    fn set_mut(&mut self, set: SetId) -> &mut FreeSet {
        &mut self.sets[set.0 as usize]
    }

    /// Makes two nodes adjacent.
    #[inline]
    fn link(&mut self, below: u32, above: u32) {
        if let Some(node) = self.nodes.get_mut(below as usize) {
            node.above = above;
        }
        if let Some(node) = self.nodes.get_mut(above as usize) {
            node.below = below;
        }
    }

    /// Cuts `len` off the front of a free block, and keeps the rest in its place; returns the node
    /// of the front, which is in no list.
    #[inline(always)]
    fn take_front(&mut self, index: u32, len: NonZeroU64) -> u32 {
        let new = self.vacant_slot();
        let nodes = &mut self.nodes[..];
        let node = &nodes[index as usize];
        let (start, whole, epoch) = (node.start, node.len, node.epoch);
        let (below, above, id) = (node.below, node.above, node.set);
        let set = &mut self.sets[id.0 as usize];
        set.units -= len.get();
        let class = SizeClass::of_some(whole);
        let Some(rest) = NonZeroU64::new(whole - len.get()) else {
            set.remove(nodes, index, class);
            if id != SetId::READY {
                set.forget(nodes, index);
            }
            return index;
        };
        let vacant = &mut nodes[new as usize];
        self.vacant = vacant.next;
        let rests = SizeClass::of(rest);
        // The first block of a range is recorded in the range.
        if rests == class && below != NONE {
            vacant.start = start;
            vacant.len = len.get();
            (vacant.below, vacant.above) = (below, index);
            nodes[below as usize].above = new;
            let node = &mut nodes[index as usize];
            node.below = new;
            node.start = start + len.get();
            node.len = rest.get();
            return new;
        }
        vacant.start = start + len.get();
        vacant.len = rest.get();
        vacant.epoch = epoch;
        (vacant.below, vacant.above) = (index, above);
        (vacant.set, vacant.state) = (id, NodeState::Free);
        nodes[above as usize].below = new;
        let node = &mut nodes[index as usize];
        node.len = len.get();
        node.above = new;
        set.remove(nodes, index, class);
        set.insert(nodes, new, rests);
        if id != SetId::READY {
            set.replace(nodes, index, new);
        }
        index
    }

    /// Makes a node that is in no list free in `set`, merged with its neighbours there.
    #[inline(always)]
    fn settle(&mut self, index: u32, id: SetId, epoch: u64) {
        let node = &self.nodes[index as usize];
        let (start, len, below, above) = (node.start, node.len, node.below, node.above);
        match (self.is_free(below, id), self.is_free(above, id)) {
            (false, false) => self.list(index, id, epoch, NONE),
            (true, true) => {
                self.unlist(above);
                self.merge_above(index);
                self.unlist(below);
                self.merge_above(below);
                self.list(below, id, epoch, NONE);
            }
            (low, _) => {
                let nodes = &mut self.nodes[..];
                let set = &mut self.sets[id.0 as usize];
                set.units += len;
                let into = if low { below } else { above };
                let before = nodes[into as usize].len;
                let (was, class) = (SizeClass::of_some(before), SizeClass::of_some(before + len));
                // One of the two nodes remains: the one that keeps its list position, if any; else
                // the lower one, which a range may refer to.
                let stays = if low || (was == class && below != NONE) {
                    into
                } else {
                    index
                };
                if was != class || stays == index {
                    set.remove(nodes, into, was);
                    set.insert(nodes, stays, class);
                }
                if id != SetId::READY {
                    if stays == index {
                        set.replace(nodes, into, index);
                    }
                    set.renew(nodes, stays);
                }
                let (lower, upper, gone) = if low {
                    (below, above, index)
                } else if stays == index {
                    (index, nodes[above as usize].above, above)
                } else {
                    (above, nodes[above as usize].above, index)
                };
                let node = &mut nodes[lower as usize];
                node.len = before + len;
                node.epoch = epoch;
                node.above = upper;
                (node.set, node.state) = (id, NodeState::Free);
                if !low {
                    node.start = start;
                    node.below = below;
                }
                nodes[upper as usize].below = lower;
                if lower == above
                    && let Some(beneath) = nodes.get_mut(below as usize)
                {
                    beneath.above = lower;
                }
                self.vacate(gone);
            }
        }
    }

    /// Merges with the block above, which is in no list either.
    #[inline]
    fn merge_above(&mut self, index: u32) {
        let gone = self.nodes[index as usize].above;
        let BlockNode { len, above, .. } = self.nodes[gone as usize];
        self.nodes[index as usize].len += len;
        self.link(index, above);
        self.vacate(gone);
    }

    /// Makes the memory before `start` a free block of its own, in the former position `was` of the
    /// whole; returns the rest.
    #[inline]
    fn cut_front(&mut self, index: u32, start: u64, was: &ListPosition) -> u32 {
        let node = &self.nodes[index as usize];
        let above = node.above;
        if node.start == start {
            return index;
        }
        let front = start - node.start;
        let rest = self.occupy(start, node.len - front, NodeState::LiveBlock);
        self.link(rest, above);
        self.link(index, rest);
        self.nodes[index as usize].len = front;
        self.list(index, was.set, was.epoch, was.later);
        rest
    }

    /// Makes the memory behind `len` units a free block of its own, in the former position `was` of
    /// the whole.
    #[inline]
    fn cut_back(&mut self, index: u32, len: u64, was: &ListPosition) {
        let node = &self.nodes[index as usize];
        let above = node.above;
        if node.len == len {
            return;
        }
        let rest = self.occupy(node.start + len, node.len - len, NodeState::LiveBlock);
        self.link(rest, above);
        self.link(index, rest);
        self.nodes[index as usize].len = len;
        self.list(rest, was.set, was.epoch, was.later);
    }

    #[inline]
    fn is_free(&self, index: u32, set: SetId) -> bool {
        self.nodes
            .get(index as usize)
            .is_some_and(|node| node.state == NodeState::Free && node.set == set)
    }

    /// Puts a node into the lists of a set; in the order just before `later`, or as the newest.
    #[inline]
    fn list(&mut self, index: u32, id: SetId, epoch: u64, later: u32) {
        let nodes = &mut self.nodes[..];
        let set = &mut self.sets[id.0 as usize];
        let node = &mut nodes[index as usize];
        (node.set, node.epoch, node.state) = (id, epoch, NodeState::Free);
        let len = node.len;
        set.units += len;
        set.insert(nodes, index, SizeClass::of_some(len));
        if id != SetId::READY {
            set.remember(nodes, index, later);
        }
    }

    /// Removes a free block from its lists; returns its former position.
    #[inline]
    fn unlist(&mut self, index: u32) -> ListPosition {
        let nodes = &mut self.nodes[..];
        let node = &mut nodes[index as usize];
        node.state = NodeState::LiveBlock;
        let (len, id) = (node.len, node.set);
        let was = ListPosition {
            set: id,
            epoch: node.epoch,
            later: node.later,
        };
        let set = &mut self.sets[id.0 as usize];
        set.units -= len;
        set.remove(nodes, index, SizeClass::of_some(len));
        if id != SetId::READY {
            set.forget(nodes, index);
        }
        was
    }

    /// Returns the first vacant slot.
    #[inline]
    fn vacant_slot(&mut self) -> u32 {
        if self.vacant == NONE {
            self.add_slot();
        }
        self.vacant
    }

    #[cold]
    fn add_slot(&mut self) {
        let index = self.nodes.len();
        assert!(index < NONE as usize, "more than 2^32 - 2 blocks");
        self.nodes.push(BlockNode {
            start: 0,
            len: 0,
            epoch: 0,
            below: NONE,
            above: NONE,
            previous: NONE,
            next: NONE,
            earlier: NONE,
            later: NONE,
            generation: 0,
            set: SetId::READY,
            state: NodeState::Vacant,
        });
        self.vacant = index as u32;
    }

    /// Takes a slot for a node, which is in no list and has no neighbours yet.
    fn occupy(&mut self, start: u64, len: u64, state: NodeState) -> u32 {
        let index = self.vacant_slot();
        let node = &mut self.nodes[index as usize];
        self.vacant = node.next;
        (node.start, node.len, node.state) = (start, len, state);
        (node.below, node.above) = (NONE, NONE);
        index
    }

    fn vacate(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = NodeState::Vacant;
        node.generation = node.generation.wrapping_add(1);
        node.next = std::mem::replace(&mut self.vacant, index);
    }
}
