//! A shard of the table: its blocks, and those that it caches.

use rustc_hash::FxHashMap;

use crate::blocks::{BlockId, Span};
use crate::origin::BlockOrigin;
use crate::place::StreamId;
use crate::request::{LiveBlock, TenantId};

/// How many blocks are stored in the shard itself.
const HERE: usize = 3;
/// How many blocks a shard caches, how many bytes, and the size of the largest.
pub(super) const CACHED: usize = 16;
pub(super) const CACHED_BYTES: u64 = 2 << 20;
pub(super) const LARGEST_CACHED: u64 = 1 << 20;

/// A block in a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldBlock<N> {
    pub(super) id: BlockId,
    pub(super) origin: BlockOrigin,
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) note: N,
    pub(super) tenant: TenantId,
    /// Whether its size is requested repeatedly.
    pub(super) frequent: bool,
    /// If cached: its index in the list plus one.
    pub(super) cached: u8,
}

impl<N: Copy> HeldBlock<N> {
    /// The block as its user knows it, if it is live.
    pub(super) fn live(&self, address: u64) -> Option<LiveBlock<N>> {
        (self.cached == 0).then_some(LiveBlock {
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

/// A block that was evicted from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvictedBlock {
    pub(crate) id: BlockId,
    pub(crate) stream: StreamId,
}

/// Blocks by address. In a program that does other work between two calls none of this is in the
/// processor's caches, and each cache miss takes as long as all the rest of a call: so the first
/// blocks are stored beside the lock of their shard, where a hash map's would be three lines
/// further on.
#[repr(C)]
pub(super) struct BlockMap<N> {
    more: FxHashMap<u64, HeldBlock<N>>,
    here: [Option<(u64, HeldBlock<N>)>; HERE],
}

impl<N> BlockMap<N> {
    fn new() -> Self {
        Self {
            more: FxHashMap::default(),
            here: [const { None }; HERE],
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, address: u64) -> Option<&mut HeldBlock<N>> {
        let mut here = self.here.iter_mut().flatten();
        match here.find(|(at, _)| *at == address) {
            Some((_, held)) => Some(held),
            None if self.more.is_empty() => None,
            None => self.more.get_mut(&address),
        }
    }

    /// Inserts a block that is not present.
    #[inline]
    pub(super) fn insert(&mut self, address: u64, held: HeldBlock<N>) {
        match self.here.iter_mut().find(|here| here.is_none()) {
            Some(here) => *here = Some((address, held)),
            None => {
                self.more.insert(address, held);
            }
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, address: u64) -> Option<HeldBlock<N>> {
        let is_it = |here: &mut (u64, _)| here.0 == address;
        let mut here = self.here.iter_mut();
        match here.find_map(|here| here.take_if(is_it)) {
            Some((_, held)) => Some(held),
            None => self.more.remove(&address),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &HeldBlock<N>)> {
        let here = self.here.iter().flatten().map(|(at, held)| (*at, held));
        here.chain(self.more.iter().map(|(at, held)| (*at, held)))
    }
}

/// A shard of the table; fields are in the order in which they are read.
#[repr(C)]
pub(crate) struct Shard<N> {
    /// A bit for each occupied slot of cached blocks.
    pub(super) taken: u32,
    /// The slot to evict next when all are occupied.
    pub(super) oldest: u32,
    pub(super) cached_bytes: u64,
    pub(super) blocks: BlockMap<N>,
    /// Cached blocks: their addresses and streams.
    pub(super) cached: [(u64, StreamId); CACHED],
}

impl<N: Copy> Shard<N> {
    pub(super) fn new() -> Self {
        Self {
            taken: 0,
            oldest: 0,
            cached_bytes: 0,
            blocks: BlockMap::new(),
            cached: [(0, StreamId(0)); CACHED],
        }
    }

    /// Evicts the oldest cached block.
    #[cold]
    pub(super) fn evict_oldest(&mut self) -> Option<EvictedBlock> {
        let at = self.oldest as usize;
        self.oldest = (self.oldest + 1) % CACHED as u32;
        self.evict(at)
    }

    /// Evicts a cached block.
    pub(super) fn evict(&mut self, at: usize) -> Option<EvictedBlock> {
        let (address, stream) = self.cached[at];
        self.taken &= !(1 << at);
        let held = self.blocks.remove(address)?;
        self.cached_bytes -= held.bytes;
        Some(EvictedBlock {
            id: held.id,
            stream,
        })
    }
}
