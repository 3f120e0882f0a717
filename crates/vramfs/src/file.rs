//! Bytes of a file: the runs of pages that hold them, and its holes.
//!
//! A file is a sequence of chunks of 128 KiB. A chunk is a hole or has extents: aligned parts of
//! it, each stored in a run of the same length, in any block. While space is ample a dense range is
//! one extent, so a written chunk has one extent and a small file a few pages; otherwise any free
//! page becomes an extent. Pages of a run that were never written contain zeros, so a read does not
//! check which pages those are; they still count as holes.
//!
//! Locks: each file has a reader-writer lock. Reads, and overwrites before the end of the file,
//! share it; changing the size or the set of runs takes it exclusively, as does waiting for
//! writers. Block locks (`store`) are taken inside it. An access to the memory is acquired before
//! the file's lock, so a thread that waits for an access holds nothing that other threads wait for.
//! Only a copy holds two files' locks; it takes them in address order.
//!
//! Invariants: bytes past the end that have a run are zeros, or lie before the file's `dirty` end;
//! the size does not grow before the dirty bytes are zeroed too, so a file that grows never exposes
//! old data. A run belongs to one chunk; pages that are not marked as written contain zeros. A
//! write that fails may have changed any of the bytes it covers.
//! Elsewhere: copies and moves within the memory (`moving`), the table of extents (`extents`), the
//! pages of a run (`space`), reading and writing them (`store`).

mod lending;
mod moving;

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fercuda_cuda::sys::types::CUresult;
use rustix::io::Errno;

use crate::error::Error;
use crate::extents::{ChunkPart, Extent, ExtentTable, parts};
use crate::layout::{DATA_BYTES, PAGE_BYTES, PAGES, ROW_BYTES};
use crate::medium::{BlockAccess, Medium};
use crate::store::{Change, Content, Store, WantedRows};
use lending::LoanState;
pub(crate) use lending::{FileLoan, LentRange};

/// The maximum size of a file.
pub const SIZE_MAX: u64 = (DATA_BYTES as u64) << 32;

/// Bytes that are copied or cleared before the file's lock is released for other threads.
const COPY_BYTES: u64 = 1 << 20;

/// The mask of a chunk's pages that overlap these bytes.
fn pages_of(bytes: &Range<usize>) -> u32 {
    let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
    let mask = |pages: usize| ((1u64 << pages) - 1) as u32;
    mask(end) & !mask(first)
}

/// A file's extents, the end of the bytes that a failed write may have left past the end of the
/// file, and whether its memory is lent.
#[derive(Debug, Default)]
struct FileLayout {
    table: ExtentTable,
    dirty: u64,
    lent: LoanState,
}

/// The bytes of a file. The owner returns its runs ([`Store::free`]) before it drops one.
#[derive(Debug, Default)]
pub struct File {
    layout: RwLock<FileLayout>,
    size: AtomicU64,
    pages: AtomicU64,
}

/// The target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that was written.
    Data,
    /// The next byte that was not written, or the end of the file.
    Hole,
}

/// A range of bytes within one chunk.
struct ChunkRange {
    chunk: u32,
    bytes: Range<usize>,
}

/// The intersection of two ranges.
fn intersection(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// The chunks that overlap a range of a file's bytes, which is not empty.
fn chunks_of(bytes: &Range<u64>) -> RangeInclusive<u32> {
    let chunk = DATA_BYTES as u64;
    (bytes.start / chunk) as u32..=((bytes.end - 1) / chunk) as u32
}

/// The part of a range of a file's bytes that lies in a chunk, relative to that chunk; not empty.
fn within_chunk(chunk: u32, bytes: &Range<u64>) -> Range<usize> {
    let begin = u64::from(chunk) * DATA_BYTES as u64;
    let end = (bytes.end - begin).min(DATA_BYTES as u64);
    bytes.start.saturating_sub(begin) as usize..end as usize
}

/// A range of a file's bytes, split at chunk boundaries.
fn chunk_ranges(bytes: Range<u64>) -> impl Iterator<Item = ChunkRange> {
    let chunk = DATA_BYTES as u64;
    let all = bytes.start / chunk..bytes.end.div_ceil(chunk);
    all.map(move |at| ChunkRange {
        chunk: at as u32,
        bytes: within_chunk(at as u32, &bytes),
    })
}

/// The errno that a system call returns for an error. Lost data and a failed device are both `EIO`;
/// `ENOMEM` if the host or the device has no memory for what a request needs besides the file's,
/// where a retry may succeed.
pub(crate) fn to_errno(error: &Error) -> Errno {
    match error {
        Error::Cuda(error) if error.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
            Errno::NOMEM
        }
        _ => Errno::IO,
    }
}

impl File {
    /// The size in bytes, holes included.
    pub fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    /// Pages of memory that the file has.
    pub fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }

    fn layout_shared(&self) -> RwLockReadGuard<'_, FileLayout> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn layout_exclusive(&self) -> RwLockWriteGuard<'_, FileLayout> {
        self.layout.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the layout for reading bytes; fails while the file is lent to a writer.
    fn lock_for_read(&self) -> Result<RwLockReadGuard<'_, FileLayout>, Errno> {
        let layout = self.layout_shared();
        match layout.lent {
            LoanState::Writer => Err(Errno::BUSY),
            LoanState::No | LoanState::Readers(_) => Ok(layout),
        }
    }

    /// Locks the layout for changing bytes or runs; fails while the file is lent.
    fn lock_for_write(&self) -> Result<RwLockWriteGuard<'_, FileLayout>, Errno> {
        let layout = self.layout_exclusive();
        match layout.lent {
            LoanState::No => Ok(layout),
            LoanState::Readers(_) | LoanState::Writer => Err(Errno::BUSY),
        }
    }

    /// The next data or hole at or after `from`.
    ///
    /// # Errors
    /// `NXIO` past the end, or for data where none follows.
    pub fn seek(&self, from: u64, what: Seek) -> Result<u64, Errno> {
        let layout = self.layout_shared();
        let table = &layout.table;
        let size = self.size();
        if from >= size {
            return Err(Errno::NXIO);
        }
        let page = PAGE_BYTES as u64;
        let mut at = from / page;
        while at * page < size {
            let chunk = (at / PAGES as u64) as u32;
            let written = match table.next(chunk) {
                Some(found) if found == chunk => table.written(chunk) >> (at % PAGES as u64),
                // A hole up to there, or up to the end.
                other => {
                    if what == Seek::Hole {
                        return Ok((at * page).max(from));
                    }
                    let found = other.ok_or(Errno::NXIO)?;
                    at = u64::from(found) * PAGES as u64;
                    continue;
                }
            };
            let skipped = match what {
                Seek::Data => written.trailing_zeros(),
                Seek::Hole => written.trailing_ones(),
            };
            let left = PAGES as u64 - at % PAGES as u64;
            if u64::from(skipped) < left {
                let found = ((at + u64::from(skipped)) * page).max(from);
                return match what {
                    Seek::Hole => Ok(found.min(size)),
                    Seek::Data if found < size => Ok(found),
                    Seek::Data => Err(Errno::NXIO),
                };
            }
            at += left;
        }
        match what {
            Seek::Hole => Ok(size),
            Seek::Data => Err(Errno::NXIO),
        }
    }
}

impl<M: Medium> Store<M> {
    /// Reads at most `len` bytes from `offset` on, limited by the staging buffer, and passes them
    /// to `take` in place.
    ///
    /// # Errors
    /// `IO` if the data is lost or the device fails.
    pub fn read_file<R>(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        self.stage_file(file, offset, len, false, take)
    }

    /// As [`Store::read_file`]. With `must_verify` the rows are verified in any case: parity is
    /// going to be computed from them.
    fn stage_file<R>(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        must_verify: bool,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        let mut way = self.acquire_access().map_err(|error| to_errno(&error))?;
        let access = way.access();
        let layout = file.lock_for_read()?;
        let table = &layout.table;
        let size = file.size();
        if offset >= size || len == 0 {
            return Ok(take(&[]));
        }
        let head = (offset % ROW_BYTES as u64) as usize;
        let room = access.data().len() - head;
        let len = (size - offset).min(len as u64).min(room as u64) as usize;
        // From here on the staging buffer maps to whole rows of the file.
        let begin = offset - head as u64;
        let mut wanted = Vec::new();
        for piece in chunk_ranges(offset..offset + len as u64) {
            let of_chunk = u64::from(piece.chunk) * DATA_BYTES as u64;
            let place = |byte: usize| (of_chunk + byte as u64 - begin) as usize;
            let rows = piece.bytes.start / ROW_BYTES * ROW_BYTES
                ..piece.bytes.end.next_multiple_of(ROW_BYTES);
            let mut zeros = |hole: Range<usize>| {
                let end = place(hole.end).min(access.data().len());
                access.data_mut()[place(hole.start)..end].fill(0);
            };
            let mut done = rows.start;
            for extent in table.of(piece.chunk) {
                let there = intersection(&rows, &extent.part().bytes());
                if there.start < there.end {
                    zeros(done..there.start);
                    done = there.end;
                    push_wanted(&mut wanted, extent, &there, place(there.start));
                }
            }
            zeros(done..rows.end);
        }
        for part in wanted.chunks(access.slots()) {
            let staged = match must_verify {
                true => self.read(access, part),
                false => self.read_by_policy(access, part),
            };
            staged.map_err(|error| to_errno(&error))?;
        }
        Ok(take(&access.data()[head..head + len]))
    }

    /// Writes bytes at `offset` and returns their number: fewer than requested if space runs out,
    /// the file would exceed [`SIZE_MAX`], or an operation fails.
    ///
    /// # Errors
    /// `FBIG`; `NOSPC` and `IO` if nothing was written.
    pub fn write_file(
        &self,
        file: &File,
        inode: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.write_bytes(file, inode, offset, bytes, &mut None)
    }

    /// As [`Store::write_file`], and acknowledges early: calls `ack` with the number of bytes, once
    /// unless an error is returned, as soon as the write cannot be refused any more, which may be
    /// before the bytes are written. A thread that accesses their blocks meanwhile waits until they
    /// are.
    ///
    /// # Errors
    /// As [`Store::write_file`]. After `ack` also `IO`, if the device has failed since:
    /// [`Store::sync_file`] reports that from then on.
    pub fn write_file_with_ack(
        &self,
        file: &File,
        inode: u32,
        offset: u64,
        bytes: &[u8],
        ack: &mut dyn FnMut(usize),
    ) -> Result<(), Errno> {
        let mut ack = Some(ack);
        let written = self.write_bytes(file, inode, offset, bytes, &mut ack)?;
        if let Some(ack) = ack {
            ack(written);
        }
        Ok(())
    }

    /// Writes bytes and returns their number. If all of them are accepted before they are written,
    /// `ack` is called and taken out of the option.
    fn write_bytes(
        &self,
        file: &File,
        inode: u32,
        offset: u64,
        bytes: &[u8],
        ack: &mut Option<&mut dyn FnMut(usize)>,
    ) -> Result<usize, Errno> {
        let (acks_early, mut no_ack) = (ack.is_some(), None);
        let room = SIZE_MAX.checked_sub(offset).filter(|room| *room > 0);
        let len = room.ok_or(Errno::FBIG)?.min(bytes.len() as u64);
        let (bytes, end) = (&bytes[..len as usize], offset + len);
        let mut way = self.acquire_access().map_err(|error| to_errno(&error))?;
        let access = way.access();
        let mut done = 0;
        let has_ample_space = self.has_ample_space(chunk_ranges(offset..end).count() as u64);
        let mut lost = BTreeSet::new();
        while done < bytes.len() {
            let at = offset + done as u64;
            let part: Vec<ChunkRange> = chunk_ranges(at..end).take(access.slots()).collect();
            let len: usize = part.iter().map(|it| it.bytes.len()).sum();
            let given = &bytes[done..done + len];
            let known = lost.len();
            let ack_if_whole = match len == bytes.len() {
                true => &mut *ack,
                false => &mut no_ack,
            };
            let written = match known {
                0 => self.overwrite(
                    access,
                    file,
                    inode,
                    at,
                    &part,
                    given,
                    &mut lost,
                    ack_if_whole,
                ),
                _ => None,
            };
            let written = match written {
                Some(written) => written,
                None => self.write_exclusive(
                    access,
                    file,
                    inode,
                    at,
                    &part,
                    given,
                    has_ample_space,
                    &mut lost,
                ),
            };
            done += written.unwrap_or(0);
            match written {
                Ok(written) if written == len => {}
                // Acknowledged already, so nothing can be retried elsewhere.
                _ if acks_early && ack.is_none() => return Err(Errno::IO),
                // Bytes in lost blocks are written elsewhere.
                _ if lost.len() > known => {}
                Err(error) if done == 0 => return Err(error),
                _ => break,
            }
        }
        Ok(done)
    }

    /// Waits for the file's writers, and reports whether every acknowledged write was completed.
    ///
    /// # Errors
    /// `IO` once the device has failed between the acknowledgement of any write, to any file, and
    /// its completion.
    pub fn sync_file(&self, file: &File) -> Result<(), Errno> {
        drop(file.layout_exclusive());
        match self.counters().unkept_writes.load(Relaxed) {
            0 => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Whether there is enough free space that this many chunks may take more pages than they need
    /// at once. If not, each takes just what it needs and existing pages stay in place: then
    /// nothing is refused as long as there are enough free pages.
    fn has_ample_space(&self, chunks: u64) -> bool {
        self.space().free_pages() >= chunks.saturating_mul(PAGES as u64)
    }

    /// Overwrites bytes before the end of the file that were written before; `None` if they are
    /// anything else. Acknowledges as [`Store::write_bytes`] does.
    #[expect(
        clippy::too_many_arguments,
        reason = "content, destination and policy are separate arguments"
    )]
    fn overwrite(
        &self,
        access: &mut M::Access,
        file: &File,
        inode: u32,
        offset: u64,
        part: &[ChunkRange],
        bytes: &[u8],
        lost: &mut BTreeSet<u32>,
        ack: &mut Option<&mut dyn FnMut(usize)>,
    ) -> Option<Result<usize, Errno>> {
        let layout = file.layout_shared();
        if layout.lent != LoanState::No || offset + bytes.len() as u64 > file.size() {
            return None;
        }
        let mut changes = Vec::with_capacity(part.len());
        let mut rest = bytes;
        for piece in part {
            let mut left = pages_of(&piece.bytes);
            for extent in layout.table.of(piece.chunk) {
                let there = extent.part().bytes();
                let overlap = intersection(&piece.bytes, &there);
                if overlap.start < overlap.end {
                    left &= !extent.written();
                    let (bytes, tail) = rest.split_at(overlap.len());
                    rest = tail;
                    changes.push(Change {
                        run: extent.run(),
                        fresh: None,
                        owner: owner(inode, piece.chunk),
                        from: overlap.start - there.start,
                        content: Content::Bytes(bytes),
                    });
                }
            }
            if left != 0 {
                return None;
            }
        }
        let lens = |good: usize| changes[..good].iter().map(|it| it.content.len()).sum();
        let acks_early = ack.is_some();
        let mut accepted = || {
            if let Some(ack) = ack.take() {
                ack(bytes.len());
            }
        };
        let written = self.write_with_ack(access, &changes, &mut accepted);
        // Counted while other threads still wait for the file's lock.
        if acks_early && ack.is_none() && written.is_err() {
            self.counters().unkept_writes.fetch_add(1, Relaxed);
        }
        lost.extend(lost_block(&written));
        Some(match written {
            Ok(()) => Ok(bytes.len()),
            Err((0, error)) => Err(to_errno(&error)),
            Err((good, _)) => Ok(lens(good)),
        })
    }

    /// Writes any bytes, holding the file's lock exclusively.
    #[expect(
        clippy::too_many_arguments,
        reason = "content, destination and policy are separate arguments"
    )]
    fn write_exclusive(
        &self,
        access: &mut M::Access,
        file: &File,
        inode: u32,
        offset: u64,
        part: &[ChunkRange],
        bytes: &[u8],
        has_ample_space: bool,
        lost: &mut BTreeSet<u32>,
    ) -> Result<usize, Errno> {
        let mut layout = file.lock_for_write()?;
        let end = offset + bytes.len() as u64;
        if end > file.size() {
            self.zero_dirty_tail(access, file, &mut layout)?;
        }
        let terms = AllocationPolicy {
            has_ample_space,
            lost,
            size: file.size(),
        };
        let mut steps = Vec::new();
        let mut rest = bytes;
        for piece in part {
            let (given, tail) = rest.split_at(piece.bytes.len());
            rest = tail;
            let table = &layout.table;
            match self.plan_steps(access, table, piece, Some(given), &terms, &mut steps) {
                Ok(()) => {}
                // Write the steps planned so far.
                Err(_) if !steps.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        let mut rest = bytes;
        let mut changes = Vec::with_capacity(steps.len());
        for step in &steps {
            let (given, tail) = rest.split_at(step.len);
            rest = tail;
            changes.push(step.change(inode, Content::Bytes(given)));
        }
        let written = self.write(access, &changes);
        lost.extend(lost_block(&written));
        let good = match &written {
            Ok(()) => steps.len(),
            Err((good, _)) => *good,
        };
        for (at, step) in steps.iter().enumerate() {
            if at < good {
                self.commit_step(file, &mut layout.table, step);
            } else if step.fresh.is_some() {
                self.space().free(step.extent.run());
            } else {
                // It may have been written in part.
                self.commit_step(file, &mut layout.table, step);
                layout.dirty = layout.dirty.max(end);
            }
        }
        if let Err((0, error)) = written {
            return Err(to_errno(&error));
        }
        let written = steps[..good].iter().map(|it| it.len).sum();
        file.size.fetch_max(offset + written as u64, Relaxed);
        Ok(written)
    }

    /// Records a completed step: its extent is part of the file from now on, and replaces the
    /// extents that its fresh run covers.
    fn commit_step(&self, file: &File, table: &mut ExtentTable, step: &WriteStep) {
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
    fn shrink_extent(&self, file: &File, extent: Extent, left: &[Extent]) {
        let held = left.iter().fold(0, |all, it| all | it.part().pages());
        let freed = extent.part().pages() & !held;
        if freed != 0 {
            file.pages.fetch_sub(u64::from(freed.count_ones()), Relaxed);
            self.space()
                .free_unkept(extent.run(), held >> extent.part().first);
        }
    }

    /// Frees the fresh runs of steps that were not completed, which nothing refers to.
    fn release_steps(&self, steps: &[WriteStep]) {
        for step in steps.iter().filter(|it| it.fresh.is_some()) {
            self.space().free(step.extent.run());
        }
    }

    /// Zeroes the bytes that failed writes may have left past the end of the file, before the end
    /// moves. Frees no memory, as some of it may have just been reserved.
    fn zero_dirty_tail(
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

    /// Plans the steps that store these bytes in a range of a chunk, or zeros where nothing was
    /// written; as many, from the start of the range, as there is space for. Existing pages that
    /// are dense together with the new ones are merged into a longer run if there is space for
    /// both. Pages of a lost block are replaced by others if no byte of them has to be kept.
    ///
    /// # Errors
    /// `NOSPC` if a page is needed and none is free.
    fn plan_steps(
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
    fn merge_content(
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
            self.read(access, some).map_err(|error| to_errno(&error))?;
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

    /// Sets a file's size. Bytes past the new end are gone, even if the file grows again.
    ///
    /// # Errors
    /// `FBIG`; `IO`, and the size is unchanged, but bytes past the requested one may be zeros.
    pub fn truncate(&self, file: &File, size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let mut way = self.acquire_access().map_err(|error| to_errno(&error))?;
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
        let mut way = self.acquire_access().map_err(|error| to_errno(&error))?;
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
        let mut way = self.acquire_access().map_err(|error| to_errno(&error))?;
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

    /// Zeroes the bytes of a range that have runs.
    fn zero_existing(
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
        written.map_err(|(_, error)| to_errno(&error))
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
                    return Err(to_errno(&error));
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
        let mut way = self.acquire_access().map_err(|error| to_errno(&error))?;
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
            made.map_err(|(_, error)| to_errno(&error))?;
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
            made.map_err(|(_, error)| to_errno(&error))
        });
        match made {
            Ok(()) => steps
                .iter()
                .for_each(|step| self.commit_step(file, table, step)),
            Err(_) => self.release_steps(&steps),
        }
        made
    }

    /// The blocks that contain runs of the file.
    pub(crate) fn blocks_of(&self, file: &File) -> Vec<u32> {
        let layout = file.layout_shared();
        let all = layout.table.within(0..=u32::MAX);
        let mut all: Vec<u32> = all.map(|(_, extent)| extent.run().block).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether the file has runs in blocks from this one on.
    pub(crate) fn uses_blocks_from(&self, file: &File, first: u32) -> bool {
        let layout = file.layout_shared();
        let mut all = layout.table.within(0..=u32::MAX);
        all.any(|(_, extent)| extent.run().block >= first)
    }

    /// Frees all runs of a file that can no longer be reached. Returns `false`, and frees nothing,
    /// while its memory is lent.
    pub fn free(&self, file: &File) -> bool {
        let mut layout = file.layout_exclusive();
        if layout.lent != LoanState::No {
            return false;
        }
        for (_, extent) in std::mem::take(&mut *layout).table.within(0..=u32::MAX) {
            self.space().free(extent.run());
        }
        file.pages.store(0, Relaxed);
        file.size.store(0, Relaxed);
        true
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

/// How runs are chosen for a range of a chunk.
struct AllocationPolicy<'l> {
    /// See `has_ample_space`.
    has_ample_space: bool,
    /// Blocks that are lost.
    lost: &'l BTreeSet<u32>,
    /// The size of the file.
    size: u64,
}

impl AllocationPolicy<'static> {
    fn new(has_ample_space: bool) -> Self {
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

/// The lost block, if that is why the write failed.
fn lost_block(written: &Result<(), (usize, Error)>) -> Option<u32> {
    match written {
        Err((_, Error::Lost { block })) => Some(*block),
        _ => None,
    }
}

/// Splits these pages of an extent into exact parts.
fn split_exact(extent: Extent, pages: u32) -> Vec<Extent> {
    let mut left = pages;
    let next = || {
        let part = (left != 0).then(|| ChunkPart::exact(left))?;
        left &= !part.pages();
        Some(extent.within(part, pages))
    };
    std::iter::from_fn(next).collect()
}

/// One planned write: a range of a chunk into one run.
struct WriteStep {
    chunk: u32,
    /// The extent after the write.
    extent: Extent,
    /// The generation of the run's block, if the run was just taken.
    fresh: Option<u64>,
    /// Where the range starts in the run, and its length.
    from: usize,
    len: usize,
    /// The run's whole content, if it replaces other extents.
    merged: Option<Vec<u8>>,
}

impl WriteStep {
    fn new(
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

    fn change<'d>(&'d self, inode: u32, content: Content<'d>) -> Change<'d> {
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

/// Requests these bytes of an extent, as whole rows; extends the last request if they follow it.
fn push_wanted(all: &mut Vec<WantedRows>, extent: Extent, bytes: &Range<usize>, at: usize) {
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
fn zero_change(extent: Extent, bytes: &Range<usize>) -> Option<Change<'static>> {
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
fn owner(inode: u32, chunk: u32) -> u64 {
    u64::from(inode) << 32 | u64::from(chunk)
}

#[cfg(test)]
pub(crate) mod tests;
