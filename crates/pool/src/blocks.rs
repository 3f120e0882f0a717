//! Blocks of memory and the sets in which free ones wait.
//!
//! Two-level segregated fit (Masmano, Ripoll, Crespo and Real, 2004), with all
//! bookkeeping beside the memory instead of in it: device memory is not the
//! host's to write to. A set keeps its free blocks in lists by size: a first
//! level for each power of two, cut into 32 second levels, with bit maps that
//! say which lists hold something. A search rounds its size up to the next
//! second level, so that the first block it finds fits; only where that finds
//! nothing, or for large blocks, are a few of the list below looked at. So taking and giving
//! back touch a bounded number of blocks, however many there are.
//!
//! All sets share one table of neighbours: a block that moves from one set to
//! another is joined there with what it lies beside.
//!
//! Invariants: every unit of every range is in exactly one block; no two
//! neighbours are free in the same set; the blocks of a set stand in the order
//! of their epochs.
//!
//! Elsewhere: what sets and epochs mean ([`crate::order`]).

use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// What addresses and sizes are multiples of.
pub const UNIT_BYTES: u64 = 256;

/// Second levels of a first level, as a power of two.
const SECOND_BITS: u32 = 5;
const SECOND: usize = 1 << SECOND_BITS;
/// First levels: blocks below 32 units, and one for each power of two up to
/// 2^40 units, which is 256 TiB.
const FIRST: usize = 40 - SECOND_BITS as usize + 2;
/// Blocks that are looked at in the list below the one a search rounds up to.
const PEEK: usize = 8;

/// From this size on, the block that fits best is taken of those looked at: a
/// large block that is cut without need is seldom whole again.
const LARGE_UNITS: u64 = 4096;

const NONE: u32 = u32::MAX;

/// Names a live block. One that was given back names nothing, also after its
/// place is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    index: u32,
    generation: u32,
}

/// A stretch of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Where it begins, a multiple of [`UNIT_BYTES`].
    pub address: u64,
    /// Its size, a multiple of [`UNIT_BYTES`].
    pub bytes: u64,
}

impl Span {
    /// Where it ends.
    pub fn end(self) -> u64 {
        self.address + self.bytes
    }
}

/// A set of free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(u32);

impl SetId {
    /// The set of blocks that anybody may take; it knows no epochs.
    pub const READY: SetId = SetId(0);
}

/// A range that was refused: it is empty, not made of whole units, too long,
/// or shares addresses with memory that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} bytes at {:#x} cannot be added: empty, uneven, too many or there already", .0.bytes, .0.address)]
pub struct BadRange(pub Span);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No block: the place is free to be used.
    Vacant,
    Free,
    Live,
    /// Not a block but where a range ends; of no length.
    End,
}

/// A block, or a vacant place: a cache line. Addresses and sizes are in units.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node {
    start: u64,
    len: u64,
    /// When a free block came to its set.
    epoch: u64,
    /// Physical neighbours in the same range.
    below: u32,
    above: u32,
    /// Neighbours in the list of its size, or of vacant places.
    previous: u32,
    next: u32,
    /// Neighbours in the order of its set.
    earlier: u32,
    later: u32,
    generation: u32,
    set: SetId,
    state: State,
}

impl Node {
    fn span(&self) -> Span {
        Span {
            address: self.start * UNIT_BYTES,
            bytes: self.len * UNIT_BYTES,
        }
    }
}

/// Where a free block was.
#[derive(Clone, Copy, Debug)]
struct Was {
    set: SetId,
    epoch: u64,
    later: u32,
}

/// A list of free blocks: (first level, second level).
type Class = (usize, usize);

/// The class of blocks of `len` units.
fn class_of(len: NonZeroU64) -> Class {
    let log = len.ilog2();
    if log < SECOND_BITS {
        return (0, len.get() as usize);
    }
    let second = (len.get() >> (log - SECOND_BITS)) as usize & (SECOND - 1);
    ((log - SECOND_BITS + 1) as usize, second)
}

/// The least size of any block of `class`.
fn least_of((first, second): Class) -> u64 {
    match first {
        0 => second as u64,
        _ => ((SECOND + second) as u64) << (first - 1),
    }
}

/// The first class of which every block has at least `len` units.
fn class_holding(len: NonZeroU64) -> Class {
    let (first, second) = class_of(len);
    if least_of((first, second)) >= len.get() {
        (first, second)
    } else if second + 1 < SECOND {
        (first, second + 1)
    } else {
        (first + 1, 0)
    }
}

fn same_class(len: u64, other: NonZeroU64) -> bool {
    NonZeroU64::new(len).is_some_and(|len| class_of(len) == class_of(other))
}

/// The free blocks of one set.
#[derive(Debug)]
struct Set {
    first: u64,
    second: [u32; FIRST],
    heads: [[u32; SECOND]; FIRST],
    /// The ends of the order; not kept for the set of ready blocks.
    oldest: u32,
    newest: u32,
    units: u64,
    /// Not dropped.
    there: bool,
}

impl Default for Set {
    fn default() -> Self {
        Self {
            first: 0,
            second: [0; FIRST],
            heads: [[NONE; SECOND]; FIRST],
            oldest: NONE,
            newest: NONE,
            units: 0,
            there: true,
        }
    }
}

impl Set {
    /// The first block of the first list from `class` on that has one.
    #[inline]
    fn first_from(&self, (first, second): Class) -> Option<u32> {
        let here = self.second.get(first)? & (u32::MAX << second);
        if here != 0 {
            return Some(self.heads[first][here.trailing_zeros() as usize]);
        }
        let higher = self.first & u64::MAX.checked_shl(first as u32 + 1)?;
        if higher == 0 {
            return None;
        }
        let first = higher.trailing_zeros() as usize;
        Some(self.heads[first][self.second[first].trailing_zeros() as usize])
    }
}

/// A run of neighbours; known by the address where it begins.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    end: u32,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    units: NonZeroU64,
    /// In units.
    align: u64,
}

impl Want {
    /// `bytes`, one unit at least, at a multiple of `align_bytes`, which is a
    /// power of two (one that is none is rounded up to one).
    #[inline]
    pub fn new(bytes: u64, align_bytes: u64) -> Self {
        let units = bytes.div_ceil(UNIT_BYTES);
        let align = align_bytes.max(UNIT_BYTES);
        let align = align.checked_next_power_of_two().unwrap_or(1 << 63);
        Self {
            units: NonZeroU64::new(units).unwrap_or(NonZeroU64::MIN),
            align: align / UNIT_BYTES,
        }
    }

    /// How many bytes a block has that answers it.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.units.get().saturating_mul(UNIT_BYTES)
    }

    /// What its address is a multiple of.
    #[inline]
    pub fn align_bytes(self) -> u64 {
        self.align.saturating_mul(UNIT_BYTES)
    }

    /// How many bytes memory must have that surely holds such a block.
    pub fn padded_bytes(self) -> u64 {
        let units = self.units.get().saturating_add(self.align - 1);
        units.saturating_mul(UNIT_BYTES)
    }
}

/// See the module. Not for several threads at a time; whoever shares it locks.
#[derive(Debug)]
pub struct Blocks {
    nodes: Vec<Node>,
    /// The first vacant place.
    vacant: u32,
    sets: Vec<Set>,
    /// By where they begin, in units.
    ranges: BTreeMap<u64, Range>,
    units: u64,
    live: usize,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            vacant: NONE,
            sets: vec![Set::default()],
            ranges: BTreeMap::new(),
            units: 0,
            live: 0,
        }
    }
}

impl Blocks {
    /// No memory, and the set of ready blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `blocks` blocks, so that taking and giving back that
    /// many allocates nothing on the host.
    pub fn reserve(&mut self, blocks: usize) {
        self.nodes.reserve(blocks);
    }

    /// Another set, empty.
    pub fn new_set(&mut self) -> SetId {
        let vacant = self.sets.iter().position(|set| !set.there);
        let at = vacant.unwrap_or(self.sets.len());
        match self.sets.get_mut(at) {
            Some(set) => set.there = true,
            None => self.sets.push(Set::default()),
        }
        SetId(at as u32)
    }

    /// Forgets a set that is empty; whether it was. The set of ready blocks
    /// stays.
    pub fn drop_set(&mut self, set: SetId) -> bool {
        let empty = set != SetId::READY && self.set(set).units == 0;
        if empty {
            self.set_mut(set).there = false;
        }
        empty
    }

    /// Bytes of all ranges.
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

    /// How many blocks are live.
    pub fn live_blocks(&self) -> usize {
        self.live
    }

    /// A size that a free block of `set` has at least; zero if there is none.
    pub fn largest_free_bytes(&self, set: SetId) -> u64 {
        let set = self.set(set);
        if set.first == 0 {
            return 0;
        }
        let first = set.first.ilog2() as usize;
        let second = set.second[first].ilog2() as usize;
        self.nodes[set.heads[first][second] as usize].len * UNIT_BYTES
    }

    /// The epochs of the oldest and the newest block of a set.
    pub fn epochs(&self, set: SetId) -> Option<(u64, u64)> {
        let set = self.set(set);
        let oldest = self.nodes.get(set.oldest as usize)?.epoch;
        Some((oldest, self.nodes.get(set.newest as usize)?.epoch))
    }

    // ---- memory -------------------------------------------------------------

    /// Adds memory, ready; it becomes one with what it lies beside.
    ///
    /// # Errors
    /// [`BadRange`]; nothing has changed then.
    pub fn add(&mut self, span: Span) -> Result<(), BadRange> {
        let refused = BadRange(span);
        let Span { address, bytes } = span;
        let (start, len) = (address / UNIT_BYTES, bytes / UNIT_BYTES);
        let end = address.checked_add(bytes).ok_or(refused)? / UNIT_BYTES;
        let even = address.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES);
        let class = class_of(NonZeroU64::new(len).ok_or(refused)?);
        // Sums of a size and an alignment must not wrap either.
        if !even || class.0 >= FIRST {
            return Err(refused);
        }
        let before = self.ranges.range(..end).next_back();
        let before = before.map(|(at, range)| (*at, *range));
        if before.is_some_and(|(_, range)| self.nodes[range.end as usize].start > start) {
            return Err(refused);
        }
        let below = before.filter(|(_, range)| self.nodes[range.end as usize].start == start);
        let new = self.occupy(start, len, State::Live);
        let last = match self.ranges.remove(&end) {
            Some(above) => {
                self.link(new, above.first);
                above.end
            }
            None => {
                let last = self.occupy(end, 0, State::End);
                self.link(new, last);
                last
            }
        };
        let (at, first) = match below {
            Some((at, range)) => {
                let beneath = self.nodes[range.end as usize].below;
                self.link(beneath, new);
                self.vacate(range.end);
                (at, range.first)
            }
            None => (start, new),
        };
        self.ranges.insert(at, Range { first, end: last });
        self.units += len;
        self.settle(new, SetId::READY, 0);
        Ok(())
    }

    /// Takes memory away that is part of the ready block at `around`; whether
    /// it was.
    pub fn remove(&mut self, span: Span, around: Span) -> bool {
        let Some(node) = self.ready_at(around, span) else {
            return false;
        };
        let (start, len) = (span.address / UNIT_BYTES, span.bytes / UNIT_BYTES);
        let was = self.unlist(node);
        let node = self.cut_front(node, start, &was);
        self.cut_back(node, len, &was);
        let Node { below, above, .. } = self.nodes[node as usize];
        let Some((&at, &range)) = self.ranges.range(..=start).next_back() else {
            unreachable!("a block lies in a range");
        };
        let rest = self.nodes[above as usize].state != State::End;
        if rest {
            self.nodes[above as usize].below = NONE;
            let end = range.end;
            self.ranges.insert(start + len, Range { first: above, end });
        }
        if below == NONE {
            // Where something is left it begins further on, and is there.
            self.ranges.remove(&at);
            if !rest {
                self.vacate(range.end);
            }
        } else {
            let end = match rest {
                true => self.occupy(start, 0, State::End),
                false => {
                    self.nodes[range.end as usize].start = start;
                    range.end
                }
            };
            self.link(below, end);
            let first = range.first;
            self.ranges.insert(at, Range { first, end });
        }
        self.vacate(node);
        self.units -= len;
        true
    }

    /// Ready blocks of at least `bytes`, the larger sizes first.
    pub fn ready(&self, bytes: u64) -> impl Iterator<Item = Span> {
        let least = class_of(Want::new(bytes, 1).units);
        let set = self.set(SetId::READY);
        (least.0..FIRST)
            .rev()
            .flat_map(|first| (0..SECOND).rev().map(move |second| (first, second)))
            .filter(move |class| *class >= least)
            .flat_map(move |(first, second)| {
                let head = set.heads[first][second];
                std::iter::successors(self.nodes.get(head as usize), |node| {
                    self.nodes.get(node.next as usize)
                })
            })
            .map(Node::span)
            .filter(move |span| span.bytes >= bytes)
    }

    /// How many bytes are ready just below `address`, where a range ends.
    pub fn ready_below(&self, address: u64) -> u64 {
        let end = address / UNIT_BYTES;
        let Some((_, range)) = self.ranges.range(..end).next_back() else {
            return 0;
        };
        let Node { start, below, .. } = self.nodes[range.end as usize];
        match start == end && self.is_free(below, SetId::READY) {
            true => self.nodes[below as usize].len * UNIT_BYTES,
            false => 0,
        }
    }

    /// The ready block at `around`, if it holds all of `span`.
    fn ready_at(&self, around: Span, span: Span) -> Option<u32> {
        if span.bytes == 0 || span.address < around.address || span.end() > around.end() {
            return None;
        }
        let (first, second) = class_of(NonZeroU64::new(around.bytes / UNIT_BYTES)?);
        let mut index = *self.set(SetId::READY).heads.get(first)?.get(second)?;
        while let Some(node) = self.nodes.get(index as usize) {
            if node.span() == around {
                return Some(index);
            }
            index = node.next;
        }
        None
    }

    // ---- taking and giving back ---------------------------------------------

    /// Takes a block from `set`, of an epoch up to `epoch`; none if there is
    /// none that is found at once.
    #[inline]
    pub fn take(&mut self, set: SetId, want: Want, epoch: u64) -> Option<BlockId> {
        let (index, start) = self.find_aligned(set, want, epoch)?;
        let index = self
            .take_front(index, start, want.units)
            .unwrap_or_else(|| {
                let was = self.unlist(index);
                let index = self.cut_front(index, start, &was);
                self.cut_back(index, want.units.get(), &was);
                index
            });
        let node = &mut self.nodes[index as usize];
        node.state = State::Live;
        self.live += 1;
        Some(BlockId {
            index,
            generation: node.generation,
        })
    }

    /// The epoch of the block that [`Blocks::take`] would take without regard
    /// to epochs.
    pub fn would_take(&self, set: SetId, want: Want) -> Option<u64> {
        let (index, _) = self.find_aligned(set, want, u64::MAX)?;
        Some(self.nodes[index as usize].epoch)
    }

    /// A live block.
    #[inline]
    pub fn span(&self, id: BlockId) -> Option<Span> {
        let node = self.nodes.get(id.index as usize)?;
        let live = node.state == State::Live && node.generation == id.generation;
        live.then(|| node.span())
    }

    /// Puts a live block into `set` at `epoch`, which is no earlier than that
    /// of any other there; none if it is not live.
    #[inline]
    pub fn give(&mut self, id: BlockId, set: SetId, epoch: u64) -> Option<Span> {
        let span = self.span(id)?;
        self.live -= 1;
        // The identifier names nothing any more, whoever has the place next.
        let node = &mut self.nodes[id.index as usize];
        node.generation = node.generation.wrapping_add(1);
        self.settle(id.index, set, epoch);
        Some(span)
    }

    /// Moves the blocks of `from` that came up to `epoch` to `into`, where
    /// they come at `at`. How many bytes that were.
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

    /// Moves what is ready beside blocks of `set` to it, where it comes at
    /// `at`, so that they are one. How many bytes that were.
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

    /// Of the first blocks of two lists, that which `fits` with the least left.
    #[cold]
    fn find_best(
        &self,
        lists: &Set,
        least: NonZeroU64,
        fits: impl Fn(u32) -> Option<(u32, u64)>,
    ) -> Option<(u32, u64)> {
        let best = |head: u32| {
            let nodes = std::iter::successors(self.get(head), |(_, node)| self.get(node.next));
            let fitting = nodes.take(PEEK).filter_map(|(index, node)| {
                let (index, start) = fits(index)?;
                Some((node.len, index, start))
            });
            let (_, index, start) = fitting.min()?;
            Some((index, start))
        };
        let (first, second) = class_of(least);
        best(*lists.heads.get(first)?.get(second)?)
            .or_else(|| best(lists.first_from(class_holding(least))?))
    }

    fn get(&self, index: u32) -> Option<(u32, &Node)> {
        Some((index, self.nodes.get(index as usize)?))
    }

    /// A free block of `set` that holds `want`, and where in it.
    #[inline]
    fn find_aligned(&self, set: SetId, want: Want, epoch: u64) -> Option<(u32, u64)> {
        self.find(set, want.units, want, epoch).or_else(|| {
            // Where blocks begin anywhere, one must be as much larger.
            let padded = (want.align > 1).then(|| want.units.checked_add(want.align - 1));
            self.find(set, padded??, want, epoch)
        })
    }

    /// A free block of `set` that holds `want`, and where in it; looked for
    /// among blocks of `least` and more.
    #[inline]
    fn find(&self, set: SetId, least: NonZeroU64, want: Want, epoch: u64) -> Option<(u32, u64)> {
        let fits = |index: u32| {
            let node = &self.nodes[index as usize];
            // A power of two; a division would take longer than all the rest.
            let start = (node.start + (want.align - 1)) & !(want.align - 1);
            let fits = start + want.units.get() <= node.start + node.len;
            (fits && node.epoch <= epoch).then_some((index, start))
        };
        let lists = self.set(set);
        if want.units.get() >= LARGE_UNITS {
            return self.find_best(lists, least, fits);
        }
        if let Some(index) = lists.first_from(class_holding(least))
            && let Some(found) = fits(index)
        {
            return Some(found);
        }
        let (first, second) = class_of(least);
        let mut index = *lists.heads.get(first)?.get(second)?;
        for _ in 0..PEEK {
            if index == NONE {
                break;
            }
            if let Some(found) = fits(index) {
                return Some(found);
            }
            index = self.nodes[index as usize].next;
        }
        None
    }

    // ---- inside -------------------------------------------------------------

    #[inline]
    fn set(&self, set: SetId) -> &Set {
        &self.sets[set.0 as usize]
    }

    #[inline]
    fn set_mut(&mut self, set: SetId) -> &mut Set {
        &mut self.sets[set.0 as usize]
    }

    /// Makes two nodes neighbours.
    #[inline]
    fn link(&mut self, below: u32, above: u32) {
        if let Some(node) = self.nodes.get_mut(below as usize) {
            node.above = above;
        }
        if let Some(node) = self.nodes.get_mut(above as usize) {
            node.below = below;
        }
    }

    /// Cuts `len` off the front of a free block that stays in its lists, if
    /// what is left belongs there; a new node, in no list.
    #[inline]
    fn take_front(&mut self, index: u32, start: u64, len: NonZeroU64) -> Option<u32> {
        let node = &self.nodes[index as usize];
        let (below, set) = (node.below, node.set);
        let rest = NonZeroU64::new(node.len - len.get())?;
        // The first block of a range is known to the range.
        if node.start != start || below == NONE || !same_class(node.len, rest) {
            return None;
        }
        let new = self.occupy(start, len.get(), State::Live);
        self.link(below, new);
        self.link(new, index);
        self.set_mut(set).units -= len.get();
        let node = &mut self.nodes[index as usize];
        node.start += len.get();
        node.len = rest.get();
        Some(new)
    }

    /// Makes a node that is in no list part of a free neighbour in `set`, if
    /// that then stays in its lists; whether it was.
    #[inline]
    fn join(&mut self, index: u32, set: SetId, epoch: u64) -> bool {
        let Node {
            start,
            len,
            below,
            above,
            ..
        } = self.nodes[index as usize];
        let (low, high) = (self.is_free(below, set), self.is_free(above, set));
        let into = match (low, high) {
            (true, false) => below,
            (false, true) if below != NONE => above,
            _ => return false,
        };
        let whole = NonZeroU64::new(self.nodes[into as usize].len + len);
        let Some(whole) = whole.filter(|whole| same_class(self.nodes[into as usize].len, *whole))
        else {
            return false;
        };
        self.link(below, above);
        if high {
            self.nodes[above as usize].start = start;
        }
        self.nodes[into as usize].len = whole.get();
        self.set_mut(set).units += len;
        self.vacate(index);
        if set != SetId::READY {
            self.renew(into, epoch);
        }
        true
    }

    /// Makes a free block the newest of its set.
    #[inline]
    fn renew(&mut self, index: u32, epoch: u64) {
        let Node {
            earlier,
            later,
            set,
            ..
        } = self.nodes[index as usize];
        self.nodes[index as usize].epoch = epoch;
        if later == NONE {
            return;
        }
        self.nodes[later as usize].earlier = earlier;
        match self.nodes.get_mut(earlier as usize) {
            Some(node) => node.later = later,
            None => self.set_mut(set).oldest = later,
        }
        let newest = std::mem::replace(&mut self.set_mut(set).newest, index);
        self.nodes[newest as usize].later = index;
        let node = &mut self.nodes[index as usize];
        (node.earlier, node.later) = (newest, NONE);
    }

    /// A node that is in no list becomes free in `set`, one with its
    /// neighbours there.
    #[inline]
    fn settle(&mut self, mut index: u32, set: SetId, epoch: u64) {
        if self.join(index, set, epoch) {
            return;
        }
        let Node { below, above, .. } = self.nodes[index as usize];
        if self.is_free(above, set) {
            self.unlist(above);
            self.swallow_above(index);
        }
        if self.is_free(below, set) {
            self.unlist(below);
            self.swallow_above(below);
            index = below;
        }
        self.list(index, set, epoch, NONE);
    }

    /// Joins the neighbour above, which is in no list either.
    #[inline]
    fn swallow_above(&mut self, index: u32) {
        let gone = self.nodes[index as usize].above;
        let Node { len, above, .. } = self.nodes[gone as usize];
        self.nodes[index as usize].len += len;
        self.link(index, above);
        self.vacate(gone);
    }

    /// Makes what is before `start` a free block of its own, where the whole
    /// `was`; returns the rest.
    #[inline]
    fn cut_front(&mut self, index: u32, start: u64, was: &Was) -> u32 {
        let node = &self.nodes[index as usize];
        let above = node.above;
        if node.start == start {
            return index;
        }
        let front = start - node.start;
        let rest = self.occupy(start, node.len - front, State::Live);
        self.link(rest, above);
        self.link(index, rest);
        self.nodes[index as usize].len = front;
        self.list(index, was.set, was.epoch, was.later);
        rest
    }

    /// Makes what is behind `len` units a free block of its own, where the
    /// whole `was`.
    #[inline]
    fn cut_back(&mut self, index: u32, len: u64, was: &Was) {
        let node = &self.nodes[index as usize];
        let above = node.above;
        if node.len == len {
            return;
        }
        let rest = self.occupy(node.start + len, node.len - len, State::Live);
        self.link(rest, above);
        self.link(index, rest);
        self.nodes[index as usize].len = len;
        self.list(rest, was.set, was.epoch, was.later);
    }

    #[inline]
    fn is_free(&self, index: u32, set: SetId) -> bool {
        self.nodes
            .get(index as usize)
            .is_some_and(|node| node.state == State::Free && node.set == set)
    }

    /// Puts a node into the lists of a set; in its order just before `later`,
    /// or as the newest.
    #[inline]
    fn list(&mut self, index: u32, id: SetId, epoch: u64, later: u32) {
        let Some(len) = NonZeroU64::new(self.nodes[index as usize].len) else {
            unreachable!("a block has a unit at least");
        };
        let (first, second) = class_of(len);
        let set = self.set_mut(id);
        set.units += len.get();
        set.first |= 1 << first;
        set.second[first] |= 1 << second;
        let next = std::mem::replace(&mut set.heads[first][second], index);
        let mut earlier = NONE;
        if id != SetId::READY {
            if later == NONE {
                earlier = std::mem::replace(&mut set.newest, index);
            }
            if let Some(node) = self.nodes.get_mut(later as usize) {
                earlier = std::mem::replace(&mut node.earlier, index);
            }
            match self.nodes.get_mut(earlier as usize) {
                Some(node) => node.later = index,
                None => self.set_mut(id).oldest = index,
            }
        }
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = index;
        }
        let node = &mut self.nodes[index as usize];
        (node.previous, node.next) = (NONE, next);
        (node.earlier, node.later) = (earlier, later);
        (node.set, node.epoch, node.state) = (id, epoch, State::Free);
    }

    /// Takes a free block out of its lists; where it was.
    #[inline]
    fn unlist(&mut self, index: u32) -> Was {
        // Field by field: the processor waits where it copies a node of which
        // a part has just been written.
        let node = &self.nodes[index as usize];
        let Some(len) = NonZeroU64::new(node.len) else {
            unreachable!("a block has a unit at least");
        };
        let (previous, next) = (node.previous, node.next);
        let (earlier, later) = (node.earlier, node.later);
        let (id, epoch) = (node.set, node.epoch);
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = previous;
        }
        if let Some(previous) = self.nodes.get_mut(previous as usize) {
            previous.next = next;
        }
        let (first, second) = class_of(len);
        if id != SetId::READY {
            if let Some(later) = self.nodes.get_mut(later as usize) {
                later.earlier = earlier;
            }
            if let Some(earlier) = self.nodes.get_mut(earlier as usize) {
                earlier.later = later;
            }
        }
        let set = self.set_mut(id);
        set.units -= len.get();
        if set.newest == index {
            set.newest = earlier;
        }
        if set.oldest == index {
            set.oldest = later;
        }
        if previous == NONE {
            set.heads[first][second] = next;
            if next == NONE {
                set.second[first] &= !(1 << second);
                if set.second[first] == 0 {
                    set.first &= !(1 << first);
                }
            }
        }
        self.nodes[index as usize].state = State::Live;
        Was {
            set: id,
            epoch,
            later,
        }
    }

    /// A place for a node, which is in no list and has no neighbours yet.
    #[inline]
    fn occupy(&mut self, start: u64, len: u64, state: State) -> u32 {
        let node = |generation| Node {
            start,
            len,
            epoch: 0,
            below: NONE,
            above: NONE,
            previous: NONE,
            next: NONE,
            earlier: NONE,
            later: NONE,
            generation,
            set: SetId::READY,
            state,
        };
        let index = self.vacant;
        if let Some(place) = self.nodes.get_mut(index as usize) {
            self.vacant = place.next;
            *place = node(place.generation);
            return index;
        }
        let index = self.nodes.len();
        assert!(index < NONE as usize, "four thousand million blocks");
        self.nodes.push(node(0));
        index as u32
    }

    fn vacate(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Vacant;
        node.generation = node.generation.wrapping_add(1);
        node.next = std::mem::replace(&mut self.vacant, index);
    }
}

impl Blocks {
    /// The set in which all of a stretch is free, as part of one block; for
    /// tests.
    #[doc(hidden)]
    pub fn free_set(&self, span: Span) -> Option<SetId> {
        let mut free = self.nodes.iter().filter(|node| node.state == State::Free);
        let around = free.find(|node| {
            let here = node.span();
            here.address <= span.address && span.end() <= here.end()
        });
        around.map(|node| node.set)
    }

    /// Walks everything and says what does not hold; for tests.
    ///
    /// # Errors
    /// The first thing found.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let (mut live, mut units, mut seen) = (0, 0, 0);
        let mut free = vec![0; self.sets.len()];
        for (start, range) in &self.ranges {
            let (mut at, mut below, mut index) = (*start, NONE, range.first);
            let mut last = None;
            loop {
                let Some(node) = self.nodes.get(index as usize) else {
                    return Err(format!("the range at {start} does not end"));
                };
                seen += 1;
                if node.start != at || node.below != below {
                    return Err(format!("block {index} is not where it should be: {node:?}"));
                }
                if node.state == State::End {
                    if index != range.end || node.len != 0 {
                        return Err(format!("{index} ends the range at {start}: {node:?}"));
                    }
                    break;
                }
                let set = (node.state == State::Free).then_some(node.set);
                match node.state {
                    _ if node.len == 0 => return Err(format!("block {index} is empty")),
                    State::Free if last == set => {
                        return Err(format!("free neighbours of one set at {index}"));
                    }
                    State::Free => free[node.set.0 as usize] += node.len,
                    State::Live => live += 1,
                    State::Vacant | State::End => return Err(format!("block {index} is vacant")),
                }
                last = set;
                at += node.len;
                units += node.len;
                below = index;
                index = node.above;
            }
        }
        for (id, set) in self.sets.iter().enumerate() {
            let listed = self.audit_set(SetId(id as u32), set)?;
            if free[id] != listed || set.units != listed || !set.there && listed != 0 {
                return Err(format!("set {id}: {listed} units in lists: {set:?}"));
            }
        }
        if (live, units) != (self.live, self.units) {
            return Err(format!(
                "{live} live, {units} units; kept {}, {}",
                self.live, self.units
            ));
        }
        let vacant = self.nodes.iter().filter(|node| node.state == State::Vacant);
        if seen + vacant.count() != self.nodes.len() {
            return Err(format!("{seen} of {} nodes are seen", self.nodes.len()));
        }
        Ok(())
    }

    fn audit_set(&self, id: SetId, set: &Set) -> Result<u64, String> {
        let (mut listed, mut count) = (0, 0u32);
        for first in 0..FIRST {
            if (set.first >> first & 1 == 1) != (set.second[first] != 0) {
                return Err(format!("{id:?}: level {first} is not what its second says"));
            }
            for second in 0..SECOND {
                let (mut index, mut previous) = (set.heads[first][second], NONE);
                if (set.second[first] >> second & 1 == 1) != (index != NONE) {
                    return Err(format!("{id:?}: list {first}, {second}, is not as mapped"));
                }
                while let Some(node) = self.nodes.get(index as usize) {
                    let class = NonZeroU64::new(node.len).map(class_of);
                    let there = (node.state, node.set, node.previous, class);
                    if there != (State::Free, id, previous, Some((first, second))) {
                        return Err(format!("block {index} is in the wrong list: {node:?}"));
                    }
                    listed += node.len;
                    count += 1;
                    previous = index;
                    index = node.next;
                }
            }
        }
        if id == SetId::READY {
            return Ok(listed);
        }
        let (mut index, mut earlier, mut epoch) = (set.oldest, NONE, 0);
        while let Some(node) = self.nodes.get(index as usize) {
            if node.earlier != earlier || node.epoch < epoch || node.set != id || count == 0 {
                return Err(format!("block {index} is out of order: {node:?}"));
            }
            count -= 1;
            (earlier, epoch) = (index, node.epoch);
            index = node.later;
        }
        match (earlier == set.newest, count) {
            (true, 0) => Ok(listed),
            _ => Err(format!("{id:?}: its order is not its lists")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).expect("not zero")
    }

    #[test]
    fn classes_are_in_order_and_hold_what_they_say() {
        let mut last = (0, 0);
        for len in (1..100_000).chain((17..40).map(|log| 1 << log)) {
            let class = class_of(units(len));
            assert!(class >= last, "{len}");
            assert!(least_of(class) <= len);
            let holding = class_holding(units(len));
            assert!(least_of(holding) >= len);
            // No more than a second level is lost.
            assert!(least_of(holding) - len <= len / 32, "{len}");
            last = class;
        }
    }

    #[test]
    fn the_bookkeeping_of_a_block_is_a_cache_line() {
        assert!(size_of::<Node>() <= 64, "{}", size_of::<Node>());
    }
}
