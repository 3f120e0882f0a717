//! Placement of blocks in chunks: bookkeeping of addresses, which may be of any kind.
//!
//! A chunk is a run of whole granules: a large block has one of its own, small blocks share.
//!
//! Invariants: free runs never span chunks. `reserved` is the bytes of all chunks.
//!
//! Elsewhere: the memory behind the chunks, and its charges (`heap`).

use std::collections::BTreeMap;

#[derive(Debug)]
struct PlacedChunk {
    len: u64,
    blocks: u64,
}

/// Chunks, the blocks in them and the free runs between those.
#[derive(Debug, Default)]
pub(super) struct Placement {
    chunks: BTreeMap<u64, PlacedChunk>,
    free: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, u64>,
    reserved: u64,
}

impl Placement {
    /// Bytes of all chunks.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Places a block in a chunk that is there. One that shares takes the first free run that
    /// holds it; a large one takes the smallest, if it leaves less than `most_left` bytes of that.
    pub(super) fn place(&mut self, len: u64, shares: bool, most_left: u64) -> Option<u64> {
        let mut fits = self.free.iter().filter(|e| *e.1 >= len);
        let (&start, &have) = if shares {
            fits.next()?
        } else {
            fits.min_by_key(|e| *e.1)
                .filter(|e| *e.1 - len < most_left)?
        };
        self.take(start, have, len);
        Some(start)
    }

    /// Places a block at the start of a new chunk, of which it takes `len` bytes.
    pub(super) fn place_in_new(&mut self, start: u64, chunk_len: u64, len: u64) {
        self.reserved += chunk_len;
        let chunk = PlacedChunk {
            len: chunk_len,
            blocks: 0,
        };
        self.chunks.insert(start, chunk);
        self.take(start, chunk_len, len);
    }

    /// The lowest address, from 0, at which a chunk of `len` bytes would overlap no other.
    pub(super) fn vacant(&self, len: u64) -> u64 {
        let mut at = 0;
        for (&base, chunk) in &self.chunks {
            if base - at >= len {
                break;
            }
            at = base + chunk.len;
        }
        at
    }

    fn take(&mut self, start: u64, have: u64, len: u64) {
        self.free.remove(&start);
        if have > len {
            self.free.insert(start + len, have - len);
        }
        self.blocks.insert(start, len);
        if let Some((_, chunk)) = self.chunks.range_mut(..=start).next_back() {
            chunk.blocks += 1;
        }
    }

    /// Takes a block out; returns its chunk's start if that has no other block.
    pub(super) fn give(&mut self, start: u64) -> Option<u64> {
        let len = self.blocks.remove(&start)?;
        let (&base, chunk) = self.chunks.range_mut(..=start).next_back()?;
        chunk.blocks -= 1;
        let end = base + chunk.len;
        let is_empty = chunk.blocks == 0;
        let (mut at, mut run) = (start, len);
        if let Some((&before, &n)) = self.free.range(base..start).next_back()
            && before + n == start
        {
            self.free.remove(&before);
            at = before;
            run += n;
        }
        if start + len < end
            && let Some(n) = self.free.remove(&(start + len))
        {
            run += n;
        }
        self.free.insert(at, run);
        is_empty.then_some(base)
    }

    /// Takes out an empty chunk; returns its length.
    pub(super) fn remove_chunk(&mut self, base: u64) -> Option<u64> {
        let chunk = self.chunks.remove(&base)?;
        self.free.remove(&base);
        self.reserved -= chunk.len;
        Some(chunk.len)
    }

    /// The starts of the chunks without blocks.
    pub(super) fn empty_chunks(&self) -> Vec<u64> {
        let empty = self.chunks.iter().filter(|e| e.1.blocks == 0);
        empty.map(|e| *e.0).collect()
    }

    /// The start and length of the chunk that holds an address.
    pub(super) fn chunk_of(&self, addr: u64) -> Option<(u64, u64)> {
        let (&base, chunk) = self.chunks.range(..=addr).next_back()?;
        (addr < base + chunk.len).then_some((base, chunk.len))
    }

    /// The start and length of each chunk.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.chunks.iter().map(|(&base, chunk)| (base, chunk.len))
    }
}
