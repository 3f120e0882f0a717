//! Ranges of a file's bytes, and their parts in chunks.

use std::ops::{Range, RangeInclusive};

use crate::layout::{DATA_BYTES, PAGE_BYTES};

/// The maximum size of a file.
pub const SIZE_MAX: u64 = (DATA_BYTES as u64) << 32;

/// A range of bytes within one chunk.
pub(super) struct ChunkRange {
    pub(super) chunk: u32,
    pub(super) bytes: Range<usize>,
}

/// The mask of a chunk's pages that overlap these bytes.
pub(super) fn pages_of(bytes: &Range<usize>) -> u32 {
    let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
    let mask = |pages: usize| ((1u64 << pages) - 1) as u32;
    mask(end) & !mask(first)
}

/// The intersection of two ranges.
pub(super) fn intersection(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// The chunks that overlap a range of a file's bytes, which is not empty.
pub(super) fn chunks_of(bytes: &Range<u64>) -> RangeInclusive<u32> {
    let chunk = DATA_BYTES as u64;
    (bytes.start / chunk) as u32..=((bytes.end - 1) / chunk) as u32
}

/// The part of a range of a file's bytes that lies in a chunk, relative to that chunk; not empty.
pub(super) fn within_chunk(chunk: u32, bytes: &Range<u64>) -> Range<usize> {
    let begin = u64::from(chunk) * DATA_BYTES as u64;
    let end = (bytes.end - begin).min(DATA_BYTES as u64);
    bytes.start.saturating_sub(begin) as usize..end as usize
}

/// A range of a file's bytes, split at chunk boundaries.
pub(super) fn chunk_ranges(bytes: Range<u64>) -> impl Iterator<Item = ChunkRange> {
    let chunk = DATA_BYTES as u64;
    let all = bytes.start / chunk..bytes.end.div_ceil(chunk);
    all.map(move |at| ChunkRange {
        chunk: at as u32,
        bytes: within_chunk(at as u32, &bytes),
    })
}
