//! Sizes, holes and reserved memory of files.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::range::{ChunkRange, SIZE_MAX, chunk_ranges, chunks_of, pages_of, within_chunk};
use super::steps::{AllocationPolicy, WriteStep, split_exact, zero_change};
use super::{COPY_BYTES, File};
use crate::error::Error;
use crate::extents::{ChunkPart, Extent, ExtentTable, parts};
use crate::layout::PAGE_BYTES;
use crate::medium::{BlockAccess as _, Medium};
use crate::store::{Change, Content, Store};

impl<M: Medium> Store<M> {
    /// Sets a file's size. Bytes past the new end are gone, even if the file grows again.
    ///
    /// # Errors
    /// `FBIG`; `IO`, and the size is unchanged, but bytes past the requested one may be zeros.
    pub fn truncate(&self, file: &File, size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        let mut layout = file.lock_for_write()?;
        if size <= file.size() {
            // Also for the same size: frees memory past the end.
            self.discard(access, file, &mut layout.table, size..SIZE_MAX)?;
            layout.dirty = 0;
        } else {
            self.zero_dirty_tail(access, file, &mut layout)?;
        }
        file.size.store(size, Relaxed);
        Ok(())
    }

    /// Punches a hole: the bytes become zeros, and their memory is freed except for the dense parts
    /// of each run that hold the remaining pages.
    ///
    /// # Errors
    /// `IO`, and the bytes before the point of failure are a hole.
    pub fn punch(&self, file: &File, bytes: Range<u64>) -> Result<(), Errno> {
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        let mut layout = file.lock_for_write()?;
        let end = bytes.end.min(SIZE_MAX);
        match bytes.start < end {
            true => self.discard(access, file, &mut layout.table, bytes.start..end),
            false => Ok(()),
        }
    }

    /// Zeroes a range and allocates memory for all of it. The file grows to include the range
    /// unless `keeps_size`.
    ///
    /// # Errors
    /// As [`Store::allocate`], and then all bytes are unchanged; `IO`, and some may be zeros.
    pub fn zero(
        &self,
        file: &File,
        inode: u32,
        bytes: Range<u64>,
        keeps_size: bool,
    ) -> Result<(), Errno> {
        self.allocate(file, inode, bytes.clone(), keeps_size)?;
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        // The file's lock is released between parts so that other threads make progress.
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min(at + COPY_BYTES);
            self.zero_existing(access, &file.lock_for_write()?.table, at..end)?;
            std::thread::yield_now();
            at = end;
        }
        Ok(())
    }

    fn discard(
        &self,
        access: &mut M::Access,
        file: &File,
        table: &mut ExtentTable,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        if bytes.start >= bytes.end {
            return Ok(());
        }
        let all: Vec<(u32, Extent)> = table.within(chunks_of(&bytes)).collect();
        for (at, extent) in all {
            let bytes = within_chunk(at, &bytes);
            if zero_change(extent, &bytes).is_none() {
                continue;
            }
            let (first, end) = (bytes.start.div_ceil(PAGE_BYTES), bytes.end / PAGE_BYTES);
            let freed = match first < end {
                true => pages_of(&(first * PAGE_BYTES..end * PAGE_BYTES)),
                false => 0,
            };
            let stays = extent.written() & !freed;
            let left = parts(stays).map(|it| extent.within(it, stays));
            let mut left: Vec<Extent> = left.collect();
            let changes: Vec<_> = left
                .iter()
                .filter_map(|it| zero_change(*it, &bytes))
                .collect();
            if let Err((_, error)) = self.write(access, &changes) {
                // Nothing can be written into a lost block, but whole pages of it can be freed.
                left = split_exact(extent, stays);
                let is_lost = matches!(error, Error::Lost { .. });
                if !is_lost || left.iter().any(|it| zero_change(*it, &bytes).is_some()) {
                    return Err(error.to_errno());
                }
            }
            table.remove(at, extent);
            left.iter().for_each(|it| table.set(at, *it));
            self.shrink_extent(file, extent, &left);
        }
        Ok(())
    }

    /// Allocates memory for all of these bytes, with zeros where nothing was written. The file
    /// grows to include the range unless `keeps_size`. Other threads wait for the file's lock for
    /// at most one chunk: new runs are initialised before the file refers to them.
    ///
    /// # Errors
    /// `FBIG`; `NOSPC` and `IO`, and chunks that had no memory still have none, but others may have
    /// more.
    pub fn allocate(
        &self,
        file: &File,
        inode: u32,
        bytes: Range<u64>,
        keeps_size: bool,
    ) -> Result<(), Errno> {
        if bytes.end > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        self.retry_on_device_loss(|| self.allocate_once(file, inode, &bytes, keeps_size))
    }

    fn allocate_once(
        &self,
        file: &File,
        inode: u32,
        bytes: &Range<u64>,
        keeps_size: bool,
    ) -> Result<(), Errno> {
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        if bytes.start >= bytes.end {
            return Ok(());
        }
        let chunks = chunks_of(bytes);
        let has_ample_space = self.has_ample_space(u64::from(chunks.end() - chunks.start()) + 1);
        let mut fresh = PendingSteps {
            store: self,
            steps: Vec::new(),
        };
        let partial = self.reserve_holes(file, bytes, has_ample_space, &mut fresh)?;
        for part in fresh.steps.chunks(access.slots()) {
            let steps = part.iter();
            let changes: Vec<Change<'_>> = steps
                .map(|step| step.change(inode, Content::Zeros(0)))
                .collect();
            let made = self.write(access, &changes);
            made.map_err(|(_, error)| error.to_errno())?;
        }
        for piece in partial {
            let mut layout = file.lock_for_write()?;
            self.allocate_partial(
                access,
                file,
                &mut layout.table,
                inode,
                &piece,
                has_ample_space,
            )?;
        }
        let mut layout = file.lock_for_write()?;
        if !keeps_size && bytes.end > file.size() {
            self.zero_dirty_tail(access, file, &mut layout)?;
        }
        let table = &mut layout.table;
        let mut overlapping = Vec::new();
        for step in std::mem::take(&mut fresh.steps) {
            if table.held(step.chunk) & step.extent.part().pages() == 0 {
                self.commit_step(file, table, &step);
            } else {
                // Another thread has written there meanwhile.
                self.space().free(step.extent.run());
                overlapping.push(step);
            }
        }
        for step in overlapping {
            let first = step.extent.written().trailing_zeros() as usize * PAGE_BYTES;
            let pages = step.extent.written().count_ones() as usize;
            let piece = ChunkRange {
                chunk: step.chunk,
                bytes: first..first + pages * PAGE_BYTES,
            };
            self.allocate_partial(access, file, table, inode, &piece, has_ample_space)?;
        }
        if !keeps_size {
            file.size.fetch_max(bytes.end, Relaxed);
        }
        Ok(())
    }

    /// Takes runs for all chunks of these bytes that have none; returns the ranges of the chunks
    /// that have some pages but not all.
    fn reserve_holes(
        &self,
        file: &File,
        bytes: &Range<u64>,
        mut has_ample_space: bool,
        fresh: &mut PendingSteps<'_, M>,
    ) -> Result<Vec<ChunkRange>, Errno> {
        let layout = file.lock_for_read()?;
        let table = &layout.table;
        let pages_within = |chunk: u32| pages_of(&within_chunk(chunk, bytes));
        let had = |(chunk, it): (u32, Extent)| {
            let had = it.part().pages() & pages_within(chunk);
            u64::from(had.count_ones())
        };
        let had: u64 = table.within(chunks_of(bytes)).map(had).sum();
        // Checked before visiting the chunks, of which there may be very many.
        let page = PAGE_BYTES as u64;
        let needed = bytes.end.div_ceil(page) - bytes.start / page;
        if needed.saturating_sub(had) > self.space().free_pages() {
            return Err(Errno::NOSPC);
        }
        let mut partial = Vec::new();
        for piece in chunk_ranges(bytes.clone()) {
            let mut left = pages_of(&piece.bytes);
            if table.of(piece.chunk).next().is_some() {
                if left & !table.written(piece.chunk) != 0 {
                    partial.push(piece);
                }
                continue;
            }
            while left != 0 {
                let part = match has_ample_space {
                    true => ChunkPart::dense(left, left.trailing_zeros()),
                    false => ChunkPart::exact(left),
                };
                let (run, generation) = self.space().allocate(part.order).ok_or(Errno::NOSPC)?;
                let order = u32::from(run.order);
                if order < part.order && has_ample_space {
                    // Other allocations have left only gaps.
                    self.space().free(run);
                    has_ample_space = false;
                    continue;
                }
                let part = ChunkPart { order, ..part };
                let extent = Extent::new(run, left & part.pages());
                let step = WriteStep::new(&piece, extent, Some(generation), None);
                fresh.steps.push(step);
                left &= !part.pages();
            }
        }
        Ok(partial)
    }

    /// Allocates memory for all of a range of a chunk.
    fn allocate_partial(
        &self,
        access: &mut M::Access,
        file: &File,
        table: &mut ExtentTable,
        inode: u32,
        piece: &ChunkRange,
        has_ample_space: bool,
    ) -> Result<(), Errno> {
        if pages_of(&piece.bytes) & !table.written(piece.chunk) == 0 {
            return Ok(());
        }
        let mut steps = Vec::new();
        let terms = AllocationPolicy::new(has_ample_space);
        let planned = self.plan_steps(access, table, piece, None, &terms, &mut steps);
        let made = planned.and_then(|()| {
            let fresh = steps.iter().filter(|it| it.fresh.is_some());
            let changes: Vec<Change<'_>> = fresh
                .map(|step| step.change(inode, Content::Zeros(0)))
                .collect();
            let made = self.write(access, &changes);
            made.map_err(|(_, error)| error.to_errno())
        });
        match made {
            Ok(()) => steps
                .iter()
                .for_each(|step| self.commit_step(file, table, step)),
            Err(_) => self.release_steps(&steps),
        }
        made
    }
}

/// Steps with fresh runs that no file refers to yet; dropping it frees those that are left.
struct PendingSteps<'s, M: Medium> {
    store: &'s Store<M>,
    steps: Vec<WriteStep>,
}

impl<M: Medium> Drop for PendingSteps<'_, M> {
    fn drop(&mut self) {
        self.store.release_steps(&self.steps);
    }
}
