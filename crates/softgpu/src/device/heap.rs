//! Heap: blocks cut out of granules, and the accounting of a device's physical memory.
//!
//! A chunk is a mapped run of whole granules: a large block has one of its own, small blocks share.
//! A chunk without blocks is released at once, unless its heap is configured to keep some.
//!
//! Invariants: free runs never span chunks. `reserved` is the bytes of all chunks, and what the
//! device's [`PhysicalBudget`] was charged for them. With checks a freed block waits in quarantine,
//! so that a stale pointer does not reach another block's data; a chunk with no other block is
//! withheld, and counts as free, since the quarantine is emptied before an allocation fails.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CuResult, err, lock};
use crate::mem::{AddressSpace, Backing, GRANULE, round_up};

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
    /// The part of that which only a quarantine holds.
    withheld: AtomicU64,
}

impl PhysicalBudget {
    pub(crate) fn new(capacity: u64) -> Self {
        PhysicalBudget {
            capacity,
            used: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.used.load(Ordering::Acquire).min(self.capacity)
    }

    /// The available bytes, some of them only after the quarantine is emptied.
    pub(crate) fn available(&self) -> u64 {
        let withheld = self.withheld.load(Ordering::Acquire);
        (self.free() + withheld).min(self.capacity)
    }

    fn withhold(&self, len: u64) {
        self.withheld.fetch_add(len, Ordering::AcqRel);
    }

    fn unwithhold(&self, len: u64) {
        self.withheld.fetch_sub(len, Ordering::AcqRel);
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
struct Chunk {
    len: u64,
    backing: Backing,
    blocks: u64,
    /// Blocks that are not in quarantine.
    live: u64,
}

#[derive(Debug, Default)]
struct HeapState {
    chunks: BTreeMap<u64, Chunk>,
    free: BTreeMap<u64, u64>,
    /// Length of each block, quarantined ones included.
    blocks: BTreeMap<u64, u64>,
    quarantine: VecDeque<(u64, u64)>,
    quarantined: u64,
    reserved: u64,
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
        let len = len
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .filter(|&n| n < 1 << 46)
            .ok_or(err::OUT_OF_MEMORY)?;
        let mut state = lock(&self.state);
        let state = &mut *state;
        if len <= SMALL
            && let Some((&start, &have)) = state.free.iter().find(|e| *e.1 >= len)
        {
            self.take(state, start, have, len);
            return Ok(start);
        }
        if len > SMALL
            && let Some((&start, &have)) = state
                .free
                .iter()
                .filter(|e| *e.1 >= len)
                .min_by_key(|e| *e.1)
            && (have - len < GRANULE || self.stride > GRANULE)
        {
            self.take(state, start, have, len);
            return Ok(start);
        }
        let sizes = [len.next_multiple_of(self.stride), round_up(len)];
        let is_taken = |size: &u64| self.phys.as_ref().is_none_or(|phys| phys.take(*size));
        let chunk = sizes.into_iter().find(is_taken).ok_or(err::OUT_OF_MEMORY)?;
        let devices = self.devices.load(Ordering::Acquire) as u32;
        let (start, backing) = space.map_new(chunk, devices).map_err(|e| {
            if let Some(phys) = &self.phys {
                phys.give(chunk);
            }
            super::say(&format!("software device: {e}"));
            err::OUT_OF_MEMORY
        })?;
        state.reserved += chunk;
        state.chunks.insert(
            start,
            Chunk {
                len: chunk,
                backing,
                blocks: 0,
                live: 0,
            },
        );
        state.free.insert(start, chunk);
        self.take(state, start, chunk, len);
        Ok(start)
    }

    fn take(&self, state: &mut HeapState, start: u64, have: u64, len: u64) {
        state.free.remove(&start);
        if have > len {
            state.free.insert(start + len, have - len);
        }
        state.blocks.insert(start, len);
        if let Some((_, chunk)) = state.chunks.range_mut(..=start).next_back() {
            if chunk.live == 0
                && chunk.blocks > 0
                && let Some(phys) = &self.phys
            {
                phys.unwithhold(chunk.len);
            }
            chunk.blocks += 1;
            chunk.live += 1;
        }
    }

    /// Frees a block. At most `keep` bytes of chunks stay mapped for later.
    pub(crate) fn free(&self, space: &AddressSpace, start: u64, keep: u64) {
        let mut state = lock(&self.state);
        if self.checks {
            let len = state.blocks.get(&start).copied().unwrap_or(0);
            state.quarantine.push_back((start, len));
            state.quarantined += len;
            if let Some((_, chunk)) = state.chunks.range_mut(..=start).next_back() {
                chunk.live -= 1;
                if chunk.live == 0
                    && let Some(phys) = &self.phys
                {
                    phys.withhold(chunk.len);
                }
            }
            while state.quarantined > QUARANTINE_BYTES {
                self.release_oldest(space, &mut state, keep);
            }
            return;
        }
        self.give(space, &mut state, start, keep);
    }

    fn release_oldest(&self, space: &AddressSpace, state: &mut HeapState, keep: u64) {
        if let Some((start, len)) = state.quarantine.pop_front() {
            state.quarantined -= len;
            self.give(space, state, start, keep);
        }
    }

    fn give(&self, space: &AddressSpace, state: &mut HeapState, start: u64, keep: u64) {
        let Some(len) = state.blocks.remove(&start) else {
            return;
        };
        let Some((&base, chunk)) = state.chunks.range_mut(..=start).next_back() else {
            return;
        };
        chunk.blocks -= 1;
        let end = base + chunk.len;
        let empty = chunk.blocks == 0;
        if !self.checks {
            chunk.live -= 1;
        } else if empty && let Some(phys) = &self.phys {
            // It was in quarantine, the last one there.
            phys.unwithhold(chunk.len);
        }
        let (mut at, mut run) = (start, len);
        if let Some((&before, &n)) = state.free.range(base..start).next_back()
            && before + n == start
        {
            state.free.remove(&before);
            at = before;
            run += n;
        }
        if start + len < end
            && let Some(n) = state.free.remove(&(start + len))
        {
            run += n;
        }
        state.free.insert(at, run);
        if empty && state.reserved > keep {
            self.unmap(space, state, base);
        }
    }

    fn unmap(&self, space: &AddressSpace, state: &mut HeapState, base: u64) {
        let Some(chunk) = state.chunks.remove(&base) else {
            return;
        };
        state.free.remove(&base);
        state.reserved -= chunk.len;
        // Our own range, mapped by `alloc`; if the system refuses, the addresses are lost and
        // nothing else.
        if space.unmap(base, chunk.len).is_ok() {
            drop(chunk.backing);
            space.release(base, chunk.len);
        }
        if let Some(phys) = &self.phys {
            phys.give(chunk.len);
        }
    }

    /// Empties the quarantine and unmaps empty chunks until at most `keep` bytes are reserved.
    pub(crate) fn trim(&self, space: &AddressSpace, keep: u64) {
        let mut state = lock(&self.state);
        while !state.quarantine.is_empty() {
            self.release_oldest(space, &mut state, u64::MAX);
        }
        let empty: Vec<u64> = state
            .chunks
            .iter()
            .filter(|e| e.1.blocks == 0)
            .map(|e| *e.0)
            .collect();
        for base in empty {
            if state.reserved > keep {
                self.unmap(space, &mut state, base);
            }
        }
    }

    pub(crate) fn reserved(&self) -> u64 {
        lock(&self.state).reserved
    }

    /// The physical memory behind an address: (chunk's backing, chunk's start, chunk's length).
    pub(crate) fn backing_of(&self, addr: u64) -> Option<(Backing, u64, u64)> {
        let state = lock(&self.state);
        let (&base, chunk) = state.chunks.range(..=addr).next_back()?;
        (addr < base + chunk.len).then(|| (chunk.backing.clone(), base, chunk.len))
    }

    /// Grants or revokes another device's access.
    pub(crate) fn set_device(&self, space: &AddressSpace, device: u32, read: bool, write: bool) {
        let state = lock(&self.state);
        if write {
            self.devices.fetch_or(1 << device, Ordering::AcqRel);
        } else {
            self.devices.fetch_and(!(1 << device), Ordering::AcqRel);
        }
        for (&base, chunk) in &state.chunks {
            // Our own chunks are always whole granules of this space.
            space.set_access(base, chunk.len, device, read, write).ok();
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
                            let before = live.range(..=at).next_back().is_none_or(|(s, l)| s + l <= at);
                            let after = live.range(at..).next().is_none_or(|(s, _)| at + len <= *s);
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
                let used = |at: &u64, chunk: &Chunk| live.range(*at..*at + chunk.len).next().is_some();
                let chunks = lock(&heap.state);
                let live: u64 = chunks.chunks.iter().filter(|(at, it)| used(at, it)).map(|(_, it)| it.len).sum();
                prop_assert_eq!(phys.capacity() - phys.available(), live);
            }
            for at in live.into_keys() {
                heap.free(&space, at, 0);
            }
            prop_assert_eq!(phys.available(), phys.capacity());
            heap.trim(&space, 0);
            prop_assert_eq!(phys.free(), phys.capacity());
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
