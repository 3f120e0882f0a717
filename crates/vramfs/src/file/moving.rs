//! Bytes that go from one place of the memory to another, without a way through the host: copies, and runs that leave blocks which
//! are to go.
//!
//! Rows are looked at before they are taken, and again by what takes them: parity that was made of something wrong
//! would make it right for ever. What is wrong is read, which corrects it, and written.
//!
//! Invariant: nothing leads to a run before all of it was written; a run that was moved is given back when nothing leads
//! to it, which is when nobody can be reading it, since who reads shares the file's lock until he has done so.
//! Elsewhere: how rows are taken (`store`), what a file's bytes are (`file`).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::{
    COPY_BYTES, Change, Content, File, Piece, SIZE_MAX, Seek, Terms, both, chunks_of, owner,
    pieces, told, within_chunk,
};
use crate::error::Error;
use crate::extents::{Extent, Part, Table};
use crate::layout::{DATA_BYTES, ROW_BYTES};
use crate::medium::{Access, Medium};
use crate::store::{Store, Wanted};

/// Bytes of a file from the first that is copied on, whole rows; and the block and the row where they are, unless they are zeros.
struct Source {
    bytes: Range<u64>,
    place: Option<(u32, usize)>,
}

impl<M: Medium> Store<M> {
    /// Copies bytes from one place to another, which do not overlap; how many, fewer than there are if there
    /// is no more room, or something fails. What is a hole there is one here. Whole rows (1 KiB) do not leave the memory, if they lie
    /// as far in a row there as here.
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
            // It may have become shorter, and then that is no hole.
            let size = source.size();
            if at >= size {
                break;
            }
            let part = if data > at {
                let hole = data.min(size) - at;
                let hole = hole.min(len - done);
                let made = self.punch(target, to..to + hole);
                made.and_then(|()| self.lengthen(target, to + hole))
                    .map(|()| hole)
            } else {
                let hole = source.seek(at, Seek::Hole).unwrap_or(size);
                let left = hole.saturating_sub(at).min(len - done).min(COPY_BYTES);
                self.with_others(|| self.copy_data((source, at), (target, inode, to), left))
            };
            match part {
                // Also where the source has become shorter meanwhile.
                Ok(0) => break,
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies the first of these bytes, of which there are some; how many.
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
        let bytes = self.bring_file(source, at, len as usize, true, <[u8]>::to_vec)?;
        let written = self.write_file(target, inode, to, &bytes)?;
        Ok(written as u64)
    }

    /// Copies the first of these bytes, whole rows; how many. `None` if something is wrong with them.
    fn copy_rows(
        &self,
        (source, at): (&File, u64),
        (target, inode, to): (&File, u32, u64),
        len: u64,
    ) -> Result<Option<u64>, Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        let is_other = !std::ptr::eq(source, target);
        let is_first = std::ptr::from_ref(source) < std::ptr::from_ref(target);
        let before = (is_other && is_first).then(|| source.reading());
        let before = before.transpose()?;
        let mut layout = target.changing()?;
        let behind = (is_other && !is_first).then(|| source.reading());
        let behind = behind.transpose()?;
        let row = ROW_BYTES as u64;
        let len = len.min(source.size().saturating_sub(at) / row * row);
        if len == 0 {
            return Ok(Some(0));
        }
        let table = before.as_ref().or(behind.as_ref());
        let sources = sources(table.map_or(&layout.table, |it| &it.table), at..at + len);
        let end = to + len;
        if end > target.size() {
            self.clean(access, target, &mut layout)?;
        }
        let all: Vec<Piece> = pieces(to..end).collect();
        let terms = Terms::new(self.is_roomy(all.len() as u64));
        let mut steps = Vec::new();
        for piece in &all {
            match self.plan(access, &layout.table, piece, None, &terms, &mut steps) {
                Ok(()) => {}
                // The beginning is copied.
                Err(_) if !steps.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        // What was just taken is made first, unless all that it will have comes from one place.
        let (mut made, mut changes) = (Vec::new(), Vec::new());
        let (mut from, mut ends) = (0, Vec::new());
        for step in &steps {
            let bytes = from..from + step.len as u64;
            from = bytes.end;
            let parts = within(&sources, &bytes);
            let is_direct = matches!(&parts[..], [Source { place: Some(_), .. }])
                && step.merged.is_none()
                && (step.len == step.extent.part().bytes().len()
                    || step.extent.part() == Part::WHOLE);
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
            self.unset(&steps);
            return Err(told(&error));
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
                self.set(target, &mut layout.table, step);
            } else if step.fresh.is_some() {
                self.space().give(step.extent.run());
            } else {
                // Some of it may have been written.
                self.set(target, &mut layout.table, step);
                layout.dirty = layout.dirty.max(end);
            }
        }
        if copied > 0 {
            target.size.fetch_max(to + copied, Relaxed);
        }
        match written {
            // What is wrong is read, which corrects it; what is lost there is written elsewhere.
            Err((_, Error::Source { .. } | Error::Lost { .. })) if copied == 0 => Ok(None),
            Err((_, error)) if copied == 0 => Err(told(&error)),
            _ => Ok(Some(copied)),
        }
    }

    /// Moves what a file has in blocks from `first` on into others; how many pages. They are to be retired ([`Space::retire`]), so that
    /// nobody takes any of them. Who reads or writes the file waits for some blocks at a time, and sees nothing of it. What was taken
    /// before they were retired may come into the file behind this, so who asks looks whether any is left
    /// ([`Space::left`]) and does it again; a file that is given back meanwhile leaves nothing.
    ///
    /// # Errors
    /// `NOSPC` if there is no room elsewhere, and what was moved stays there; `IO` for what is lost, which stays where it is, when all else
    /// was moved, or where the device fails.
    ///
    /// [`Space::retire`]: crate::space::Space::retire
    /// [`Space::left`]: crate::space::Space::left
    pub fn evacuate(&self, file: &File, inode: u32, first: u32) -> Result<u64, Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        let (mut moved, mut is_lost) = (0, false);
        // A chunk, and a page in it.
        let mut next = (0, 0);
        loop {
            let mut layout = file.changing()?;
            let mut moves = Vec::new();
            let mut answer = Ok(());
            let is_there = |(chunk, it): &(u32, Extent)| {
                (*chunk, it.part().first) >= next && it.run().block >= first
            };
            let there = layout.table.within(next.0..=u32::MAX).filter(is_there);
            for (chunk, from) in there.take(access.slots()) {
                match self.homes(from) {
                    Ok(to) => moves.push(Move { chunk, from, to }),
                    Err(error) => {
                        answer = Err(error);
                        break;
                    }
                }
            }
            let row = |it: &Move, to: &Extent| Content::Rows {
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
                    moved += self.arrive(file, &mut layout.table, &it);
                    continue;
                }
                self.leave(&it);
                match &written {
                    Err((_, Error::Source { .. })) => {
                        let staged = self.move_staged(access, file, &mut layout.table, inode, &it);
                        match staged {
                            Ok(Some(pages)) => moved += pages,
                            Ok(None) => is_lost = true,
                            Err(error) => answer = Err(error),
                        }
                    }
                    // Where it was to go is lost, and nobody is given any more of that: it stays until the next time.
                    Err((_, Error::Lost { block })) if *block != it.from.run().block => {}
                    Err((_, error)) => answer = Err(told(error)),
                    Ok(()) => {}
                }
                break;
            }
            // Those behind what went wrong have another turn.
            let has_rest = rest.map(|it| self.leave(&it)).count() > 0;
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

    /// Runs for what an extent has, of which nothing leads to any yet: one as long, or where there is none several for the pages that
    /// were written.
    fn homes(&self, from: Extent) -> Result<Vec<(Extent, u64)>, Errno> {
        let space = self.space();
        let order = from.part().order;
        let (run, generation) = space.take(order).ok_or(Errno::NOSPC)?;
        if u32::from(run.order) == order {
            return Ok(vec![(Extent::new(run, from.written()), generation)]);
        }
        space.give(run);
        let (mut all, mut left) = (Vec::new(), from.written());
        while left != 0 {
            let part = Part::exact(left);
            let Some((run, generation)) = space.take(part.order) else {
                all.iter()
                    .for_each(|(it, _): &(Extent, u64)| space.give(it.run()));
                return Err(Errno::NOSPC);
            };
            let order = u32::from(run.order);
            let part = Part { order, ..part };
            all.push((Extent::new(run, part.pages()), generation));
            left &= !part.pages();
        }
        Ok(all)
    }

    /// What was moved is there now, and where it was nobody's; how many pages.
    fn arrive(&self, file: &File, table: &mut Table, it: &Move) -> u64 {
        table.remove(it.chunk, it.from);
        it.to.iter().for_each(|(to, _)| table.set(it.chunk, *to));
        let pages: u32 = it.to.iter().map(|(to, _)| to.run().pages()).sum();
        // First those that there are more of, so that nobody sees less than none.
        file.pages.fetch_add(u64::from(pages), Relaxed);
        let before = it.from.run();
        file.pages.fetch_sub(u64::from(before.pages()), Relaxed);
        self.space().give(before);
        u64::from(pages)
    }

    /// It was not moved.
    fn leave(&self, it: &Move) {
        it.to.iter().for_each(|(to, _)| self.space().give(to.run()));
    }

    /// Moves what is wrong, corrected; `None` if it is lost.
    fn move_staged(
        &self,
        access: &mut M::Access,
        file: &File,
        table: &mut Table,
        inode: u32,
        it: &Move,
    ) -> Result<Option<u64>, Errno> {
        let all = it.from.part().bytes();
        let wanted = Wanted {
            block: it.from.run().block,
            rows: it.from.rows(&all),
            at: 0,
        };
        match self.read(access, &[wanted]) {
            Ok(()) => {}
            Err(Error::Lost { .. }) => return Ok(None),
            Err(error) => return Err(told(&error)),
        }
        let bytes = access.data()[..all.len()].to_vec();
        let to = self.homes(it.from)?;
        let it = [Move { to, ..*it }];
        let part = |_: &Move, to: &Extent| {
            let there = to.part().bytes();
            Content::Bytes(&bytes[there.start - all.start..there.end - all.start])
        };
        match self.write(access, &changes(&it, inode, part)) {
            Ok(()) => Ok(Some(self.arrive(file, table, &it[0]))),
            Err((_, error)) => {
                self.leave(&it[0]);
                Err(told(&error))
            }
        }
    }

    /// Makes a file at least as long as that.
    fn lengthen(&self, file: &File, size: u64) -> Result<(), Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        let mut layout = file.changing()?;
        if size > file.size() {
            self.clean(access, file, &mut layout)?;
            file.size.store(size, Relaxed);
        }
        Ok(())
    }
}

/// Where an extent goes, in one or several runs with their blocks' generations.
struct Move {
    chunk: u32,
    from: Extent,
    to: Vec<(Extent, u64)>,
}

/// What is written for these, with the content that each run gets.
fn changes<'d>(
    moves: &[Move],
    inode: u32,
    content: impl Fn(&Move, &Extent) -> Content<'d>,
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

/// Where these bytes of a file are, whole rows, in order and without gaps.
fn sources(table: &Table, bytes: Range<u64>) -> Vec<Source> {
    let mut all = Vec::new();
    let mut done = 0;
    for (chunk, extent) in table.within(chunks_of(&bytes)) {
        let there = both(&within_chunk(chunk, &bytes), &extent.part().bytes());
        if there.start >= there.end {
            continue;
        }
        let of_chunk = u64::from(chunk) * DATA_BYTES as u64;
        let from = of_chunk + there.start as u64 - bytes.start;
        let to = of_chunk + there.end as u64 - bytes.start;
        let hole = Source {
            bytes: done..from,
            place: None,
        };
        all.extend((done < from).then_some(hole));
        all.push(Source {
            bytes: from..to,
            place: Some((extent.run().block, extent.rows(&there).start)),
        });
        done = to;
    }
    let hole = Source {
        bytes: done..bytes.end - bytes.start,
        place: None,
    };
    all.extend((done < bytes.end - bytes.start).then_some(hole));
    all
}

/// Those that have some of these bytes, and of each what they have.
fn within(all: &[Source], bytes: &Range<u64>) -> Vec<Source> {
    let first = all.partition_point(|it| it.bytes.end <= bytes.start);
    let some = all[first..]
        .iter()
        .take_while(|it| it.bytes.start < bytes.end);
    let part = |it: &Source| {
        let (start, end) = (it.bytes.start.max(bytes.start), it.bytes.end.min(bytes.end));
        let behind = (start - it.bytes.start) as usize / ROW_BYTES;
        Source {
            bytes: start..end,
            place: it.place.map(|(block, row)| (block, row + behind)),
        }
    };
    some.map(part).collect()
}
