//! Planned writes: which run takes which bytes of a chunk, and the table after each.
//!
//! Invariant: no table refers to a fresh run before it is written; steps that were not completed
//! free theirs.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::range::{ChunkRange, chunks_of, intersection, pages_of, within_chunk};
use super::{File, FileLayout};
use crate::extents::{ChunkPart, Extent, ExtentTable};
use crate::layout::{DATA_BYTES, PAGE_BYTES, PAGES, ROW_BYTES};
use crate::medium::{BlockAccess as _, Medium};
use crate::store::{Change, Content, Store, WantedRows};

/// How runs are chosen for a range of a chunk.
pub(super) struct AllocationPolicy<'l> {
    /// See `has_ample_space`.
    pub(super) has_ample_space: bool,
    /// Blocks that are lost.
    pub(super) lost: &'l BTreeSet<u32>,
    /// The size of the file.
    pub(super) size: u64,
}

impl AllocationPolicy<'static> {
    pub(super) fn new(has_ample_space: bool) -> Self {
        static NONE: BTreeSet<u32> = BTreeSet::new();
        Self {
            has_ample_space,
            lost: &NONE,
            size: 0,
        }
    }
}

impl AllocationPolicy<'_> {
    /// Pages that a range covers up to the end of the file, so that no byte of them has to be kept.
    fn whole(&self, piece: &ChunkRange) -> u32 {
        let begin = u64::from(piece.chunk) * DATA_BYTES as u64;
        let first = piece.bytes.start.next_multiple_of(PAGE_BYTES);
        let end = match begin + piece.bytes.end as u64 >= self.size {
            true => piece.bytes.end.next_multiple_of(PAGE_BYTES),
            false => piece.bytes.end / PAGE_BYTES * PAGE_BYTES,
        };
        match first < end {
            true => pages_of(&(first..end)),
            false => 0,
        }
    }
}

/// One planned write: a range of a chunk into one run.
pub(super) struct WriteStep {
    pub(super) chunk: u32,
    /// The extent after the write.
    pub(super) extent: Extent,
    /// The generation of the run's block, if the run was just taken.
    pub(super) fresh: Option<u64>,
    /// Where the range starts in the run, and its length.
    pub(super) from: usize,
    pub(super) len: usize,
    /// The run's whole content, if it replaces other extents.
    pub(super) merged: Option<Vec<u8>>,
}

impl WriteStep {
    pub(super) fn new(
        piece: &ChunkRange,
        extent: Extent,
        fresh: Option<u64>,
        merged: Option<Vec<u8>>,
    ) -> Self {
        let there = extent.part().bytes();
        let overlap = intersection(&piece.bytes, &there);
        Self {
            chunk: piece.chunk,
            extent,
            fresh,
            from: overlap.start - there.start,
            len: overlap.len(),
            merged,
        }
    }

    pub(super) fn change<'d>(&'d self, inode: u32, content: Content<'d>) -> Change<'d> {
        let (from, content) = match &self.merged {
            Some(all) => (0, Content::Bytes(all)),
            None => (self.from, content),
        };
        Change {
            run: self.extent.run(),
            fresh: self.fresh,
            owner: owner(inode, self.chunk),
            from,
            content,
        }
    }
}

impl<M: Medium> Store<M> {
    /// Whether there is enough free space that this many chunks may take more pages than they need
    /// at once. If not, each takes just what it needs and existing pages stay in place: then
    /// nothing is refused as long as there are enough free pages.
    pub(super) fn has_ample_space(&self, chunks: u64) -> bool {
        self.space().free_pages() >= chunks.saturating_mul(PAGES as u64)
    }

    /// Plans the steps that store these bytes in a range of a chunk, or zeros where nothing was
    /// written; as many, from the start of the range, as there is space for. Existing pages that
    /// are dense together with the new ones are merged into a longer run if there is space for
    /// both. Pages of a lost block are replaced by others if no byte of them has to be kept.
    ///
    /// # Errors
    /// `NOSPC` if a page is needed and none is free.
    pub(super) fn plan_steps(
        &self,
        access: &mut M::Access,
        table: &ExtentTable,
        piece: &ChunkRange,
        content: Option<&[u8]>,
        terms: &AllocationPolicy<'_>,
        steps: &mut Vec<WriteStep>,
    ) -> Result<(), Errno> {
        let chunk = piece.chunk;
        let there: Vec<Extent> = table.of(chunk).collect();
        let pages = pages_of(&piece.bytes);
        let whole = terms.whole(piece);
        let is_replaced = |it: &&Extent| {
            let touched = it.part().pages() & pages;
            terms.lost.contains(&it.run().block) && touched & !whole == 0
        };
        let replaced = there.iter().filter(is_replaced);
        let replaced = replaced.fold(0, |all, it| all | it.part().pages()) & pages;
        let missing = pages & !table.held(chunk) | replaced;
        let all = pages | table.written(chunk);
        // A file that grows past its first chunk is expected to fill whole chunks.
        let is_prefix = all & all.wrapping_add(1) == 0;
        let grows = chunk > 0 && !there.is_empty() && is_prefix;
        let mut joins = terms.has_ample_space && replaced == 0;
        let mut left = pages;
        while left != 0 {
            let page = left.trailing_zeros();
            let part = match grows {
                true => ChunkPart::WHOLE,
                false => ChunkPart::dense(all, page),
            };
            if joins && missing & part.pages() != 0 {
                let (run, generation) = self.space().allocate(part.order).ok_or(Errno::NOSPC)?;
                let merged = match u32::from(run.order) == part.order {
                    true => self.merge_content(access, part, &there, piece, content),
                    // Other allocations have left only gaps.
                    false => Err(Errno::NOSPC),
                };
                if let Ok(merged) = merged {
                    let extent = Extent::new(run, all & part.pages());
                    steps.push(WriteStep::new(piece, extent, Some(generation), merged));
                    left &= !part.pages();
                    continue;
                }
                // Pages that cannot be read stay in place, too.
                self.space().free(run);
                joins = false;
            }
            let extent = there.iter().find(|it| it.part().pages() >> page & 1 != 0);
            let step = match extent.filter(|_| replaced >> page & 1 == 0) {
                Some(extent) => WriteStep::new(piece, extent.with(pages), None, None),
                None => {
                    let part = ChunkPart::exact(left & missing);
                    let (run, generation) =
                        self.space().allocate(part.order).ok_or(Errno::NOSPC)?;
                    let order = u32::from(run.order);
                    let extent = Extent::new(run, ChunkPart { order, ..part }.pages());
                    WriteStep::new(piece, extent, Some(generation), None)
                }
            };
            left &= !step.extent.part().pages();
            steps.push(step);
        }
        Ok(())
    }

    /// The content of a part of a chunk after a range of it gets these bytes; `None` if no other
    /// extent lies in that part.
    pub(super) fn merge_content(
        &self,
        access: &mut M::Access,
        part: ChunkPart,
        there: &[Extent],
        piece: &ChunkRange,
        content: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, Errno> {
        let bytes = part.bytes();
        let is_part = |it: &&Extent| it.part().pages() & part.pages() != 0;
        let before: Vec<Range<usize>> = there
            .iter()
            .filter(is_part)
            .map(|it| it.part().bytes())
            .collect();
        if before.is_empty() {
            return Ok(None);
        }
        let mut wanted = Vec::new();
        for extent in there.iter().filter(is_part) {
            let there = extent.part().bytes();
            push_wanted(&mut wanted, *extent, &there, there.start - bytes.start);
        }
        for some in wanted.chunks(access.slots()) {
            self.read(access, some).map_err(|error| error.to_errno())?;
        }
        let mut all = vec![0; bytes.len()];
        for there in before {
            let there = there.start - bytes.start..there.end - bytes.start;
            all[there.clone()].copy_from_slice(&access.data()[there]);
        }
        if let Some(content) = content {
            let overlap = intersection(&piece.bytes, &bytes);
            let given = overlap.start - piece.bytes.start..overlap.end - piece.bytes.start;
            all[overlap.start - bytes.start..overlap.end - bytes.start]
                .copy_from_slice(&content[given]);
        }
        Ok(Some(all))
    }

    /// Records a completed step: its extent is part of the file from now on, and replaces the
    /// extents that its fresh run covers.
    pub(super) fn commit_step(&self, file: &File, table: &mut ExtentTable, step: &WriteStep) {
        let (chunk, pages) = (step.chunk, step.extent.part().pages());
        if step.fresh.is_some() {
            let is_part = |it: &Extent| it.part().pages() & pages != 0;
            let before: Vec<Extent> = table.of(chunk).filter(is_part).collect();
            file.pages.fetch_add(u64::from(pages.count_ones()), Relaxed);
            for extent in before {
                table.remove(chunk, extent);
                // Not empty only if the extent is lost and was replaced in part.
                let left = split_exact(extent, extent.written() & !pages);
                self.shrink_extent(file, extent, &left);
                left.iter().for_each(|it| table.set(chunk, *it));
            }
        }
        table.set(chunk, step.extent);
    }

    /// Shrinks an extent to the ones in `left`.
    pub(super) fn shrink_extent(&self, file: &File, extent: Extent, left: &[Extent]) {
        let held = left.iter().fold(0, |all, it| all | it.part().pages());
        let freed = extent.part().pages() & !held;
        if freed != 0 {
            file.pages.fetch_sub(u64::from(freed.count_ones()), Relaxed);
            self.space()
                .free_unkept(extent.run(), held >> extent.part().first);
        }
    }

    /// Frees the fresh runs of steps that were not completed, which nothing refers to.
    pub(super) fn release_steps(&self, steps: &[WriteStep]) {
        for step in steps.iter().filter(|it| it.fresh.is_some()) {
            self.space().free(step.extent.run());
        }
    }

    /// Zeroes the bytes that failed writes may have left past the end of the file, before the end
    /// moves. Frees no memory, as some of it may have just been reserved.
    pub(super) fn zero_dirty_tail(
        &self,
        access: &mut M::Access,
        file: &File,
        layout: &mut FileLayout,
    ) -> Result<(), Errno> {
        if layout.dirty > file.size() {
            self.zero_existing(access, &layout.table, file.size()..layout.dirty)?;
        }
        layout.dirty = 0;
        Ok(())
    }

    /// Zeroes the bytes of a range that have runs.
    pub(super) fn zero_existing(
        &self,
        access: &mut M::Access,
        table: &ExtentTable,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        let of_chunk = |(chunk, extent)| zero_change(extent, &within_chunk(chunk, &bytes));
        let changes: Vec<Change<'_>> = table
            .within(chunks_of(&bytes))
            .filter_map(of_chunk)
            .collect();
        let written = self.write(access, &changes);
        written.map_err(|(_, error)| error.to_errno())
    }
}

/// Splits these pages of an extent into exact parts.
pub(super) fn split_exact(extent: Extent, pages: u32) -> Vec<Extent> {
    let mut left = pages;
    let next = || {
        let part = (left != 0).then(|| ChunkPart::exact(left))?;
        left &= !part.pages();
        Some(extent.within(part, pages))
    };
    std::iter::from_fn(next).collect()
}

/// Requests these bytes of an extent, as whole rows; extends the last request if they follow it.
pub(super) fn push_wanted(
    all: &mut Vec<WantedRows>,
    extent: Extent,
    bytes: &Range<usize>,
    at: usize,
) {
    let (block, rows) = (extent.run().block, extent.rows(bytes));
    if let Some(last) = all.last_mut()
        && (last.block, last.rows.end) == (block, rows.start)
        && last.at + last.rows.len() * ROW_BYTES == at
    {
        last.rows.end = rows.end;
        return;
    }
    all.push(WantedRows { block, rows, at });
}

/// A change that zeroes these bytes of the chunk, if the extent overlaps them.
pub(super) fn zero_change(extent: Extent, bytes: &Range<usize>) -> Option<Change<'static>> {
    let there = extent.part().bytes();
    let overlap = intersection(bytes, &there);
    (overlap.start < overlap.end).then(|| Change {
        run: extent.run(),
        fresh: None,
        owner: 0,
        from: overlap.start - there.start,
        content: Content::Zeros(overlap.len()),
    })
}

/// The owner of a page, as its block's record states it.
pub(super) fn owner(inode: u32, chunk: u32) -> u64 {
    u64::from(inode) << 32 | u64::from(chunk)
}
