//! Heap: blocks in mapped chunks, and the accounting of a device's physical memory.
//!
//! A chunk without blocks is released at once, unless its heap is configured to keep some.
//!
//! With checks each block lies between two guards, so that an access that runs out of it reaches no
//! other block, and a freed block waits in quarantine, so that a stale pointer does not either.
//! Neither is charged: a second placement, of no addresses, has the chunks that a heap without
//! checks would have, and these are what the device's [`PhysicalBudget`] is charged for.
//!
//! Elsewhere: which addresses a block gets (`placement`), how wide a guard is (`crate::mem`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::placement::Placement;
use super::{CuResult, err, lock};
use crate::mem::{AddressSpace, Backing, GRANULE, guard_bytes, round_up};

/// Alignment of every block, in bytes.
pub(crate) const ALIGN: u64 = 512;
const SMALL: u64 = GRANULE / 2;
/// Memory pools, and the memory of graphs, grow in multiples of this, as an H200's do.
pub(crate) const POOL_STRIDE: u64 = 32 << 20;
const QUARANTINE_BYTES: u64 = 256 << 20;

/// A device's physical memory, as a number of bytes.
#[derive(Debug)]
pub(crate) struct PhysicalBudget {
    capacity: u64,
    used: AtomicU64,
}

impl PhysicalBudget {
    pub(crate) fn new(capacity: u64) -> Self {
        PhysicalBudget {
            capacity,
            used: AtomicU64::new(0),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.used.load(Ordering::Acquire).min(self.capacity)
    }

    pub(crate) fn take(&self, len: u64) -> bool {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(len).filter(|&sum| sum <= self.capacity)
            })
            .is_ok()
    }

    pub(crate) fn give(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::AcqRel);
    }
}

#[derive(Debug)]
struct HeapBlock {
    len: u64,
    /// Where its guard begins: the start of what it takes of its chunk.
    span: u64,
    /// Its place among the charged chunks, with checks.
    charge: u64,
}

#[derive(Debug, Default)]
struct HeapState {
    placed: Placement,
    backings: BTreeMap<u64, Backing>,
    /// Quarantined ones included.
    blocks: BTreeMap<u64, HeapBlock>,
    /// With checks: the chunks that are charged.
    charged: Placement,
    quarantine: VecDeque<u64>,
    quarantined: u64,
}

#[derive(Debug)]
pub(crate) struct BlockHeap {
    /// Devices that may access the blocks, bit `d`.
    devices: AtomicU64,
    phys: Option<Arc<PhysicalBudget>>,
    checks: bool,
    /// Chunks are multiples of this, where there is that much memory.
    stride: u64,
    state: Mutex<HeapState>,
}

impl BlockHeap {
    pub(crate) fn new(devices: u32, phys: Option<Arc<PhysicalBudget>>, checks: bool) -> Self {
        BlockHeap {
            devices: AtomicU64::new(u64::from(devices)),
            phys,
            checks,
            stride: GRANULE,
            state: Mutex::default(),
        }
    }

    /// The same with chunks in multiples of [`POOL_STRIDE`], in which large blocks share too.
    pub(crate) fn in_strides(self) -> Self {
        BlockHeap {
            stride: POOL_STRIDE,
            ..self
        }
    }

    /// Allocates a block of at least `len` bytes, uninitialised.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`; nothing has changed.
    pub(crate) fn alloc(&self, space: &AddressSpace, len: u64) -> CuResult<u64> {
        let asked = len;
        let len = len
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .filter(|&n| n < 1 << 46)
            .ok_or(err::OUT_OF_MEMORY)?;
        let shares = len <= SMALL;
        let mut state = lock(&self.state);
        let state = &mut *state;
        if !self.checks {
            let start = match state.placed.place(len, shares, self.most_left()) {
                Some(start) => start,
                None => {
                    let chunk = self.charge_chunk(len)?;
                    self.map_chunk(space, state, len, chunk)
                        .inspect_err(|_| self.refund_chunk(chunk))?
                }
            };
            let block = HeapBlock {
                len,
                span: start,
                charge: 0,
            };
            state.blocks.insert(start, block);
            return Ok(start);
        }
        let charge = self.charge(state, len, shares)?;
        let guard = guard_bytes(len);
        // A large block begins at a granule, as it does without a guard.
        let before = if shares { guard } else { round_up(guard) };
        let span_len = before + len + guard;
        let placed = state.placed.place(span_len, shares, self.most_left());
        let map = || self.map_chunk(space, state, span_len, round_up(span_len));
        let span = match placed.map_or_else(map, Ok) {
            Ok(span) => span,
            Err(e) => {
                self.discharge(state, charge, 0);
                return Err(e);
            }
        };
        let start = span + before;
        // What was freed here before may be marked so.
        space.set_guard(span, before);
        space.set_guard(start + asked, len - asked + guard);
        // The free of its last owner has met these; the next one has no part in them.
        space.forget_accesses(start, len);
        state.blocks.insert(start, HeapBlock { len, span, charge });
        Ok(start)
    }

    /// The bytes held for a block, which are as many as its owner asked for or a few more.
    pub(crate) fn room(&self, start: u64) -> u64 {
        lock(&self.state).blocks.get(&start).map_or(0, |b| b.len)
    }

    /// What a large block may leave free of a run, in bytes, so as to be placed there.
    fn most_left(&self) -> u64 {
        match self.stride {
            GRANULE => GRANULE,
            _ => u64::MAX,
        }
    }

    /// Charges a chunk for a block of `len` bytes: in strides, or else as small as can be. Returns
    /// its length.
    fn charge_chunk(&self, len: u64) -> CuResult<u64> {
        let sizes = [len.next_multiple_of(self.stride), round_up(len)];
        let is_taken = |size: &u64| self.phys.as_ref().is_none_or(|phys| phys.take(*size));
        sizes.into_iter().find(is_taken).ok_or(err::OUT_OF_MEMORY)
    }

    fn refund_chunk(&self, len: u64) {
        if let Some(phys) = &self.phys {
            phys.give(len);
        }
    }

    /// Maps a new chunk and places a block of `len` bytes at its start.
    fn map_chunk(
        &self,
        space: &AddressSpace,
        state: &mut HeapState,
        len: u64,
        chunk: u64,
    ) -> CuResult<u64> {
        let devices = self.devices.load(Ordering::Acquire) as u32;
        let (start, backing) = space.map_new(chunk, devices).map_err(|e| {
            super::say(&format!("software device: {e}"));
            err::OUT_OF_MEMORY
        })?;
        state.backings.insert(start, backing);
        state.placed.place_in_new(start, chunk, len);
        Ok(start)
    }

    /// Charges a block as a heap without guards and quarantine would; returns its place there.
    fn charge(&self, state: &mut HeapState, len: u64, shares: bool) -> CuResult<u64> {
        if let Some(at) = state.charged.place(len, shares, self.most_left()) {
            return Ok(at);
        }
        let chunk = self.charge_chunk(len)?;
        let at = state.charged.vacant(chunk);
        state.charged.place_in_new(at, chunk, len);
        Ok(at)
    }

    fn discharge(&self, state: &mut HeapState, charge: u64, keep: u64) {
        if let Some(base) = state.charged.give(charge)
            && state.charged.reserved() > keep
        {
            self.refund_charged(state, base);
        }
    }

    fn refund_charged(&self, state: &mut HeapState, base: u64) {
        if let Some(len) = state.charged.remove_chunk(base) {
            self.refund_chunk(len);
        }
    }

    /// Frees a block. At most `keep` bytes of chunks stay charged for later.
    pub(crate) fn free(&self, space: &AddressSpace, start: u64, keep: u64) {
        let mut state = lock(&self.state);
        if !self.checks {
            self.give(space, &mut state, start, keep);
            return;
        }
        let Some((len, charge)) = state.blocks.get(&start).map(|b| (b.len, b.charge)) else {
            return;
        };
        self.discharge(&mut state, charge, keep);
        state.quarantine.push_back(start);
        state.quarantined += len;
        while state.quarantined > QUARANTINE_BYTES {
            self.release_oldest(space, &mut state);
        }
    }

    fn release_oldest(&self, space: &AddressSpace, state: &mut HeapState) {
        if let Some(start) = state.quarantine.pop_front() {
            state.quarantined -= state.blocks.get(&start).map_or(0, |b| b.len);
            self.give(space, state, start, 0);
        }
    }

    fn give(&self, space: &AddressSpace, state: &mut HeapState, start: u64, keep: u64) {
        let Some(block) = state.blocks.remove(&start) else {
            return;
        };
        if let Some(base) = state.placed.give(block.span)
            && state.placed.reserved() > keep
        {
            self.unmap(space, state, base);
        }
    }

    fn unmap(&self, space: &AddressSpace, state: &mut HeapState, base: u64) {
        let Some(len) = state.placed.remove_chunk(base) else {
            return;
        };
        let backing = state.backings.remove(&base);
        // Our own range, mapped by `alloc`; if the system refuses, the addresses are lost and
        // nothing else.
        if space.unmap(base, len).is_ok() {
            drop(backing);
            space.release(base, len);
        }
        if !self.checks {
            self.refund_chunk(len);
        }
    }

    /// Empties the quarantine and releases empty chunks until at most `keep` bytes are reserved.
    pub(crate) fn trim(&self, space: &AddressSpace, keep: u64) {
        let mut state = lock(&self.state);
        while !state.quarantine.is_empty() {
            self.release_oldest(space, &mut state);
        }
        for base in state.placed.empty_chunks() {
            if state.placed.reserved() > keep {
                self.unmap(space, &mut state, base);
            }
        }
        for base in state.charged.empty_chunks() {
            if state.charged.reserved() > keep {
                self.refund_charged(&mut state, base);
            }
        }
    }

    /// The bytes charged.
    pub(crate) fn reserved(&self) -> u64 {
        let state = lock(&self.state);
        if self.checks {
            state.charged.reserved()
        } else {
            state.placed.reserved()
        }
    }

    /// The physical memory behind an address: (chunk's backing, chunk's start, chunk's length).
    pub(crate) fn backing_of(&self, addr: u64) -> Option<(Backing, u64, u64)> {
        let state = lock(&self.state);
        let (base, len) = state.placed.chunk_of(addr)?;
        Some((state.backings.get(&base)?.clone(), base, len))
    }

    /// Grants or revokes another device's access.
    pub(crate) fn set_device(&self, space: &AddressSpace, device: u32, read: bool, write: bool) {
        let state = lock(&self.state);
        if write {
            self.devices.fetch_or(1 << device, Ordering::AcqRel);
        } else {
            self.devices.fetch_and(!(1 << device), Ordering::AcqRel);
        }
        for (base, len) in state.placed.chunks() {
            // Our own chunks are always whole granules of this space.
            space.set_access(base, len, device, read, write).ok();
        }
    }

    pub(crate) fn devices(&self) -> u32 {
        self.devices.load(Ordering::Acquire) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn live_blocks_never_overlap_and_everything_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 1u64..6_000_000, any::<prop::sample::Index>()), 1..80),
            checks in any::<bool>(),
        ) {
            let space = AddressSpace::new(1 << 30, false).unwrap();
            let phys = Arc::new(PhysicalBudget::new(64 << 20));
            let heap = BlockHeap::new(1, Some(phys.clone()), checks);
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            for (make, len, which) in steps {
                if make || live.is_empty() {
                    match heap.alloc(&space, len) {
                        Ok(at) => {
                            prop_assert_eq!(at % ALIGN, 0);
                            let guard = |len: u64| if checks { guard_bytes(len) } else { 0 };
                            let apart = guard(len);
                            let before = live.range(..=at).next_back().is_none_or(|(s, l)| s + l + guard(*l) + apart <= at);
                            let after = live.range(at..).next().is_none_or(|(s, l)| at + len + apart + guard(*l) <= *s);
                            prop_assert!(before && after);
                            live.insert(at, len);
                        }
                        Err(e) => prop_assert_eq!(e, err::OUT_OF_MEMORY),
                    }
                } else {
                    let at = *live.keys().nth(which.index(live.len())).unwrap();
                    live.remove(&at);
                    heap.free(&space, at, 0);
                }
                prop_assert_eq!(phys.capacity() - phys.free(), heap.reserved());
            }
            for at in live.into_keys() {
                heap.free(&space, at, 0);
            }
            prop_assert_eq!(phys.free(), phys.capacity());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn checks_change_no_figure(
            steps in proptest::collection::vec((0u8..5, 1u64..6_000_000, any::<prop::sample::Index>()), 1..80),
            keep in prop::sample::select(vec![0, 5 << 20, u64::MAX]),
            in_strides in any::<bool>(),
        ) {
            let heaps = [false, true].map(|checks| {
                let phys = Arc::new(PhysicalBudget::new(64 << 20));
                let space = AddressSpace::new(2 << 30, false).unwrap();
                let heap = BlockHeap::new(1, Some(phys.clone()), checks);
                let heap = if in_strides { heap.in_strides() } else { heap };
                (heap, phys, space)
            });
            let mut live: Vec<[u64; 2]> = Vec::new();
            for (what, len, which) in steps {
                if what == 0 {
                    heaps.iter().for_each(|(heap, _, space)| heap.trim(space, 0));
                } else if what < 4 || live.is_empty() {
                    match heaps.each_ref().map(|(heap, _, space)| heap.alloc(space, len)) {
                        [Ok(bare), Ok(checked)] => live.push([bare, checked]),
                        [bare, checked] => prop_assert_eq!(bare, checked),
                    }
                } else {
                    let both = live.swap_remove(which.index(live.len()));
                    for ((heap, _, space), at) in heaps.iter().zip(both) {
                        heap.free(space, at, keep);
                    }
                }
                let [bare, checked] = heaps.each_ref().map(|(heap, phys, _)| (phys.free(), heap.reserved()));
                prop_assert_eq!(bare, checked);
            }
        }
    }

    #[test]
    fn a_quarantined_block_is_not_handed_out_until_it_is_trimmed() {
        let space = AddressSpace::new(1 << 30, false).unwrap();
        let heap = BlockHeap::new(1, None, true);
        let a = heap.alloc(&space, 4096).unwrap();
        heap.free(&space, a, 0);
        assert_ne!(heap.alloc(&space, 4096).unwrap(), a);
        heap.trim(&space, 0);
        assert_eq!(heap.alloc(&space, 4096).unwrap(), a);
    }
}
