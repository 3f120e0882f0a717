//! Copies and moves within the memory, without a round trip through the host.
//!
//! A copy transfers bytes between files; a move evacuates runs from blocks that are going to be
//! removed. Rows are verified before they are taken, and again by the transfer: parity that was
//! computed from corrupt data would make the corruption undetectable for ever. Corrupt rows are
//! read through the host, which corrects them, and written.
//!
//! Invariant: a file refers to a run only after all of it was written; a run that was moved is
//! freed once no file refers to it, which is when no thread can be reading it, since a reader
//! shares the file's lock until it is done.
//! Elsewhere: how rows are transferred (`store`), what a file's bytes are (`file`).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::range::{ChunkRange, SIZE_MAX, chunk_ranges, chunks_of, intersection, within_chunk};
use super::steps::{AllocationPolicy, owner};
use super::{COPY_BYTES, File, Seek};
use crate::error::Error;
use crate::extents::{ChunkPart, Extent, ExtentTable};
use crate::layout::{DATA_BYTES, ROW_BYTES};
use crate::medium::{BlockAccess, Medium};
use crate::store::{Change, Content, Store, WantedRows};

/// Whole rows of a copy's source: their bytes, relative to the first byte that is copied, and the
/// block and row that hold them, or `None` for zeros.
struct CopySource {
    bytes: Range<u64>,
    place: Option<(u32, usize)>,
}

impl<M: Medium> Store<M> {
    /// Copies bytes between ranges that do not overlap, and returns their number: fewer than
    /// requested if space runs out or an operation fails. Holes stay holes. Whole rows (1 KiB) do
    /// not leave the memory if source and target have the same offset within a row.
    ///
    /// # Errors
    /// As [`Store::read_file`] and [`Store::write_file`], if nothing was copied.
    pub fn copy(&self, from: (&File, u64), to: (&File, u32, u64), len: u64) -> Result<u64, Errno> {
        let ((source, begin), (target, inode, place)) = (from, to);
        let len = len.min(source.size().saturating_sub(begin));
        let end = place.checked_add(len).filter(|end| *end <= SIZE_MAX);
        end.ok_or(Errno::FBIG)?;
        let mut done = 0;
        while done < len {
            let (at, to) = (begin + done, place + done);
            let data = source.seek(at, Seek::Data).unwrap_or(u64::MAX);
            // The source may have been truncated, and the rest is not a hole then.
            let size = source.size();
            if at >= size {
                break;
            }
            let part = if data > at {
                let hole = data.min(size) - at;
                let hole = hole.min(len - done);
                let made = self.punch(target, to..to + hole);
                made.and_then(|()| self.extend_to(target, to + hole))
                    .map(|()| hole)
            } else {
                let hole = source.seek(at, Seek::Hole).unwrap_or(size);
                let left = hole.saturating_sub(at).min(len - done).min(COPY_BYTES);
                self.retry_on_device_loss(|| {
                    self.copy_data((source, at), (target, inode, to), left)
                })
            };
            match part {
                // Also if the source was truncated meanwhile.
                Ok(0) => break,
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies a prefix of these bytes, which are not empty, and returns its length.
    fn copy_data(
        &self,
        (source, at): (&File, u64),
        (target, inode, to): (&File, u32, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let row = ROW_BYTES as u64;
        let is_aligned = at % row == to % row;
        let rows = len / row * row;
        if is_aligned && at.is_multiple_of(row) && rows > 0 {
            let copied = self.copy_rows((source, at), (target, inode, to), rows)?;
            if let Some(copied) = copied {
                return Ok(copied);
            }
        }
        let len = match is_aligned && !at.is_multiple_of(row) {
            true => len.min(row - at % row),
            false => len,
        };
        let bytes = self.stage_file(source, at, len as usize, true, <[u8]>::to_vec)?;
        let written = self.write_file(target, inode, to, &bytes)?;
        Ok(written as u64)
    }

    /// Copies a prefix of these whole rows and returns its length; `None` if rows are corrupt.
    fn copy_rows(
        &self,
        (source, at): (&File, u64),
        (target, inode, to): (&File, u32, u64),
        len: u64,
    ) -> Result<Option<u64>, Errno> {
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        let is_other = !std::ptr::eq(source, target);
        let is_first = std::ptr::from_ref(source) < std::ptr::from_ref(target);
        let locked_before = (is_other && is_first).then(|| source.lock_for_read());
        let locked_before = locked_before.transpose()?;
        let mut layout = target.lock_for_write()?;
        let locked_after = (is_other && !is_first).then(|| source.lock_for_read());
        let locked_after = locked_after.transpose()?;
        let row = ROW_BYTES as u64;
        let len = len.min(source.size().saturating_sub(at) / row * row);
        if len == 0 {
            return Ok(Some(0));
        }
        let table = locked_before.as_ref().or(locked_after.as_ref());
        let sources = copy_sources(table.map_or(&layout.table, |it| &it.table), at..at + len);
        let end = to + len;
        if end > target.size() {
            self.zero_dirty_tail(access, target, &mut layout)?;
        }
        let all: Vec<ChunkRange> = chunk_ranges(to..end).collect();
        let terms = AllocationPolicy::new(self.has_ample_space(all.len() as u64));
        let mut steps = Vec::new();
        for piece in &all {
            match self.plan_steps(access, &layout.table, piece, None, &terms, &mut steps) {
                Ok(()) => {}
                // Copy the steps planned so far.
                Err(_) if !steps.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        // A fresh run is initialised first, unless all of its content comes from one source.
        let (mut made, mut changes) = (Vec::new(), Vec::new());
        let (mut from, mut ends) = (0, Vec::new());
        for step in &steps {
            let bytes = from..from + step.len as u64;
            from = bytes.end;
            let parts = clip_sources(&sources, &bytes);
            let is_direct = matches!(&parts[..], [CopySource { place: Some(_), .. }])
                && step.merged.is_none()
                && (step.len == step.extent.part().bytes().len()
                    || step.extent.part() == ChunkPart::WHOLE);
            if step.fresh.is_some() && !is_direct {
                made.push(step.change(inode, Content::Zeros(0)));
            }
            for part in parts {
                let len = part.bytes.end - part.bytes.start;
                changes.push(Change {
                    run: step.extent.run(),
                    fresh: step.fresh.filter(|_| is_direct),
                    owner: owner(inode, step.chunk),
                    from: step.from + (part.bytes.start - bytes.start) as usize,
                    content: match part.place {
                        Some((block, row)) => Content::Rows {
                            block,
                            row,
                            count: len as usize / ROW_BYTES,
                        },
                        None => Content::Zeros(len as usize),
                    },
                });
            }
            ends.push(changes.len());
        }
        if let Err((_, error)) = self.write(access, &made) {
            self.release_steps(&steps);
            return Err(error.to_errno());
        }
        let written = self.write(access, &changes);
        let good = match &written {
            Ok(()) => changes.len(),
            Err((good, _)) => *good,
        };
        let mut copied = 0;
        for (step, end_of_step) in steps.iter().zip(ends) {
            if end_of_step <= good {
                copied += step.len as u64;
                self.commit_step(target, &mut layout.table, step);
            } else if step.fresh.is_some() {
                self.space().free(step.extent.run());
            } else {
                // It may have been written in part.
                self.commit_step(target, &mut layout.table, step);
                layout.dirty = layout.dirty.max(end);
            }
        }
        if copied > 0 {
            target.size.fetch_max(to + copied, Relaxed);
        }
        match written {
            // Corrupt rows are read, which corrects them; bytes in lost blocks are written
            // elsewhere.
            Err((_, Error::Source { .. } | Error::Lost { .. })) if copied == 0 => Ok(None),
            Err((_, error)) if copied == 0 => Err(error.to_errno()),
            _ => Ok(Some(copied)),
        }
    }

    /// Moves a file's extents out of blocks from `first` on, and returns the number of pages moved.
    /// Those blocks have to be retired before ([`PageAllocator::retire`]), so that no allocation
    /// takes any
    /// of them. Threads that read or write the file wait for a few blocks at a time, and see no
    /// other effect. A run that was taken before its block was retired may be added to the file
    /// behind this pass, so the caller checks whether any is left
    /// ([`PageAllocator::count_undrained`]) and repeats; a
    /// file that is freed meanwhile leaves nothing.
    ///
    /// # Errors
    /// `NOSPC` if there is no space elsewhere, and what was moved stays moved; `IO` for lost data,
    /// which stays in place while all else is moved, or if the device fails.
    ///
    /// [`PageAllocator::retire`]: crate::space::PageAllocator::retire
    /// [`PageAllocator::count_undrained`]: crate::space::PageAllocator::count_undrained
    pub fn evacuate(&self, file: &File, inode: u32, first: u32) -> Result<u64, Errno> {
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        let (mut moved, mut is_lost) = (0, false);
        // The next chunk, and the next page in it.
        let mut next = (0, 0);
        loop {
            let mut layout = file.lock_for_write()?;
            let mut moves = Vec::new();
            let mut answer = Ok(());
            let is_there = |(chunk, it): &(u32, Extent)| {
                (*chunk, it.part().first) >= next && it.run().block >= first
            };
            let there = layout.table.within(next.0..=u32::MAX).filter(is_there);
            for (chunk, from) in there.take(access.slots()) {
                match self.take_destinations(from) {
                    Ok(to) => moves.push(ExtentMove { chunk, from, to }),
                    Err(error) => {
                        answer = Err(error);
                        break;
                    }
                }
            }
            let row = |it: &ExtentMove, to: &Extent| Content::Rows {
                block: it.from.run().block,
                row: it.from.rows(&to.part().bytes()).start,
                count: to.part().bytes().len() / ROW_BYTES,
            };
            let written = self.write(access, &changes(&moves, inode, row));
            let mut good = match &written {
                Ok(()) => usize::MAX,
                Err((good, _)) => *good,
            };
            let mut rest = moves.into_iter();
            for it in rest.by_ref() {
                next = (it.chunk, it.from.part().pages().ilog2() + 1);
                if it.to.len() <= good {
                    good = good.saturating_sub(it.to.len());
                    moved += self.publish_move(file, &mut layout.table, &it);
                    continue;
                }
                self.abandon_move(&it);
                match &written {
                    Err((_, Error::Source { .. })) => {
                        let staged =
                            self.move_corrected(access, file, &mut layout.table, inode, &it);
                        match staged {
                            Ok(Some(pages)) => moved += pages,
                            Ok(None) => is_lost = true,
                            Err(error) => answer = Err(error),
                        }
                    }
                    // The destination is lost and no longer allocated from: the extent stays until
                    // the next pass.
                    Err((_, Error::Lost { block })) if *block != it.from.run().block => {}
                    Err((_, error)) => answer = Err(error.to_errno()),
                    Ok(()) => {}
                }
                break;
            }
            // The moves after the failed one are planned again.
            let has_rest = rest.map(|it| self.abandon_move(&it)).count() > 0;
            let is_end = layout
                .table
                .within(next.0..=u32::MAX)
                .all(|it| (it.0, it.1.part().first) < next || it.1.run().block < first);
            drop(layout);
            answer?;
            if is_end && !has_rest {
                break;
            }
            std::thread::yield_now();
        }
        match is_lost {
            true => Err(Errno::IO),
            false => Ok(moved),
        }
    }

    /// Takes runs for an extent, which no file refers to yet: one of the same length, or, if there
    /// is none, several for its written pages.
    fn take_destinations(&self, from: Extent) -> Result<Vec<(Extent, u64)>, Errno> {
        let space = self.space();
        let order = from.part().order;
        let (run, generation) = space.allocate(order).ok_or(Errno::NOSPC)?;
        if u32::from(run.order) == order {
            return Ok(vec![(Extent::new(run, from.written()), generation)]);
        }
        space.free(run);
        let (mut all, mut left) = (Vec::new(), from.written());
        while left != 0 {
            let part = ChunkPart::exact(left);
            let Some((run, generation)) = space.allocate(part.order) else {
                all.iter()
                    .for_each(|(it, _): &(Extent, u64)| space.free(it.run()));
                return Err(Errno::NOSPC);
            };
            let order = u32::from(run.order);
            let part = ChunkPart { order, ..part };
            all.push((Extent::new(run, part.pages()), generation));
            left &= !part.pages();
        }
        Ok(all)
    }

    /// Publishes a completed move and frees its old run; returns the number of pages.
    fn publish_move(&self, file: &File, table: &mut ExtentTable, it: &ExtentMove) -> u64 {
        table.remove(it.chunk, it.from);
        it.to.iter().for_each(|(to, _)| table.set(it.chunk, *to));
        let pages: u32 = it.to.iter().map(|(to, _)| to.run().pages()).sum();
        // The larger count first, so that no reader sees a negative number.
        file.pages.fetch_add(u64::from(pages), Relaxed);
        let before = it.from.run();
        file.pages.fetch_sub(u64::from(before.pages()), Relaxed);
        self.space().free(before);
        u64::from(pages)
    }

    /// Frees the destinations of a move that was not done.
    fn abandon_move(&self, it: &ExtentMove) {
        it.to.iter().for_each(|(to, _)| self.space().free(to.run()));
    }

    /// Moves a corrupt extent after correcting it; `None` if it is lost.
    fn move_corrected(
        &self,
        access: &mut M::Access,
        file: &File,
        table: &mut ExtentTable,
        inode: u32,
        it: &ExtentMove,
    ) -> Result<Option<u64>, Errno> {
        let all = it.from.part().bytes();
        let wanted = WantedRows {
            block: it.from.run().block,
            rows: it.from.rows(&all),
            at: 0,
        };
        match self.read(access, &[wanted]) {
            Ok(()) => {}
            Err(Error::Lost { .. }) => return Ok(None),
            Err(error) => return Err(error.to_errno()),
        }
        let bytes = access.data()[..all.len()].to_vec();
        let to = self.take_destinations(it.from)?;
        let it = [ExtentMove { to, ..*it }];
        let part = |_: &ExtentMove, to: &Extent| {
            let there = to.part().bytes();
            Content::Bytes(&bytes[there.start - all.start..there.end - all.start])
        };
        match self.write(access, &changes(&it, inode, part)) {
            Ok(()) => Ok(Some(self.publish_move(file, table, &it[0]))),
            Err((_, error)) => {
                self.abandon_move(&it[0]);
                Err(error.to_errno())
            }
        }
    }

    /// Grows a file to at least this size.
    fn extend_to(&self, file: &File, size: u64) -> Result<(), Errno> {
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        let mut layout = file.lock_for_write()?;
        if size > file.size() {
            self.zero_dirty_tail(access, file, &mut layout)?;
            file.size.store(size, Relaxed);
        }
        Ok(())
    }
}

/// An extent and its destination: one or several runs, with their blocks' generations.
struct ExtentMove {
    chunk: u32,
    from: Extent,
    to: Vec<(Extent, u64)>,
}

/// The changes that write these moves, with the content of each destination.
fn changes<'d>(
    moves: &[ExtentMove],
    inode: u32,
    content: impl Fn(&ExtentMove, &Extent) -> Content<'d>,
) -> Vec<Change<'d>> {
    let mut all = Vec::new();
    for it in moves {
        for (to, generation) in &it.to {
            all.push(Change {
                run: to.run(),
                fresh: Some(*generation),
                owner: owner(inode, it.chunk),
                from: 0,
                content: content(it, to),
            });
        }
    }
    all
}

/// The locations of these bytes of a file, whole rows, in order and without gaps.
fn copy_sources(table: &ExtentTable, bytes: Range<u64>) -> Vec<CopySource> {
    let mut all = Vec::new();
    let mut done = 0;
    for (chunk, extent) in table.within(chunks_of(&bytes)) {
        let there = intersection(&within_chunk(chunk, &bytes), &extent.part().bytes());
        if there.start >= there.end {
            continue;
        }
        let of_chunk = u64::from(chunk) * DATA_BYTES as u64;
        let from = of_chunk + there.start as u64 - bytes.start;
        let to = of_chunk + there.end as u64 - bytes.start;
        let hole = CopySource {
            bytes: done..from,
            place: None,
        };
        all.extend((done < from).then_some(hole));
        all.push(CopySource {
            bytes: from..to,
            place: Some((extent.run().block, extent.rows(&there).start)),
        });
        done = to;
    }
    let hole = CopySource {
        bytes: done..bytes.end - bytes.start,
        place: None,
    };
    all.extend((done < bytes.end - bytes.start).then_some(hole));
    all
}

/// The sources that overlap these bytes, clipped to them.
fn clip_sources(all: &[CopySource], bytes: &Range<u64>) -> Vec<CopySource> {
    let first = all.partition_point(|it| it.bytes.end <= bytes.start);
    let some = all[first..]
        .iter()
        .take_while(|it| it.bytes.start < bytes.end);
    let part = |it: &CopySource| {
        let (start, end) = (it.bytes.start.max(bytes.start), it.bytes.end.min(bytes.end));
        let skipped = (start - it.bytes.start) as usize / ROW_BYTES;
        CopySource {
            bytes: start..end,
            place: it.place.map(|(block, row)| (block, row + skipped)),
        }
    };
    some.map(part).collect()
}
