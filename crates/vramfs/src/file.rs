//! The bytes of a file: which pages of which runs they are in, and what there is nothing of.
//!
//! A file is chunks of 128 KiB. A chunk has nothing, or extents: aligned parts of it, each in a run as long, in any block. As
//! long as there is room what is dense is one extent, so a chunk that is written has one, and a small file a few pages; where
//! there is none, whatever page is free is one. Pages of a run that were never written have zeros, so what is read
//! needs no look at which they are; they count as holes all the same.
//!
//! Locks: a file's own, shared by who reads or overwrites bytes before the end, and had alone by who changes the size or which
//! runs it has, or waits for those who write; blocks' locks (`store`) within it. Who needs a way to the memory has it before the file's lock: who waits
//! for a way holds nothing that the others wait for. Only who copies has two files' locks, in the order of their addresses.
//!
//! Invariants: bytes behind the end are zeros wherever there is a run, or lie before the file's `dirty` end, and the size does
//! not grow before those are zeros too, so that a file which grows shows nothing old; a run is one chunk's; pages that are
//! not called written have zeros. A write that fails may have changed any of the bytes that it was to change.
//! Elsewhere: copies and moves within the memory (`moving`), the table of extents (`extents`), what a run's pages are (`space`), how they are read and written (`store`).

mod lending;
mod moving;

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fercuda_cuda::sys::types::CUresult;
use rustix::io::Errno;

use crate::error::Error;
use crate::extents::{Extent, Part, Table, parts};
use crate::layout::{DATA_BYTES, PAGE_BYTES, PAGES, ROW_BYTES};
use crate::medium::{Access, Medium};
use crate::store::{Change, Content, Store, Wanted};
use lending::Lent;
pub(crate) use lending::{Lending, Loan};

/// No file has more bytes.
pub const SIZE_MAX: u64 = (DATA_BYTES as u64) << 32;

/// Bytes that are copied or cleared before others have a file again.
const COPY_BYTES: u64 = 1 << 20;

/// Pages of a chunk that have any of these bytes.
fn pages_of(bytes: &Range<usize>) -> u32 {
    let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
    let mask = |pages: usize| ((1u64 << pages) - 1) as u32;
    mask(end) & !mask(first)
}

/// A file's extents, how far bytes that a failed write has left may lie behind its end, and who else has its memory.
#[derive(Debug, Default)]
struct Layout {
    table: Table,
    dirty: u64,
    lent: Lent,
}

/// The bytes of a file. Whoever drops one gives its runs back before ([`Store::free`]).
#[derive(Debug, Default)]
pub struct File {
    layout: RwLock<Layout>,
    size: AtomicU64,
    pages: AtomicU64,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that was written.
    Data,
    /// The next that was not, or the end.
    Hole,
}

/// Part of a chunk.
struct Piece {
    chunk: u32,
    bytes: Range<usize>,
}

/// What both have.
fn both(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// The chunks that bytes of a file lie in, of which there are some.
fn chunks_of(bytes: &Range<u64>) -> RangeInclusive<u32> {
    let chunk = DATA_BYTES as u64;
    (bytes.start / chunk) as u32..=((bytes.end - 1) / chunk) as u32
}

/// What of a file's bytes is in a chunk, as bytes of that; there are some.
fn within_chunk(chunk: u32, bytes: &Range<u64>) -> Range<usize> {
    let begin = u64::from(chunk) * DATA_BYTES as u64;
    let end = (bytes.end - begin).min(DATA_BYTES as u64);
    bytes.start.saturating_sub(begin) as usize..end as usize
}

/// Those chunks, with what of each.
fn pieces(bytes: Range<u64>) -> impl Iterator<Item = Piece> {
    let chunk = DATA_BYTES as u64;
    let all = bytes.start / chunk..bytes.end.div_ceil(chunk);
    all.map(move |at| Piece {
        chunk: at as u32,
        bytes: within_chunk(at as u32, &bytes),
    })
}

/// What a caller of the system hears: lost data and a device that fails are both `EIO`; where the host or the device has no memory for what
/// a request needs beside the file's, trying again helps.
pub(crate) fn told(error: &Error) -> Errno {
    match error {
        Error::Cuda(error) if error.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
            Errno::NOMEM
        }
        _ => Errno::IO,
    }
}

impl File {
    /// Its bytes, holes among them.
    pub fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    /// Pages of memory that it has.
    pub fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }

    fn layout_shared(&self) -> RwLockReadGuard<'_, Layout> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn layout_alone(&self) -> RwLockWriteGuard<'_, Layout> {
        self.layout.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// For who reads bytes, which nobody else writes.
    fn reading(&self) -> Result<RwLockReadGuard<'_, Layout>, Errno> {
        let layout = self.layout_shared();
        match layout.lent {
            Lent::Writer => Err(Errno::BUSY),
            Lent::No | Lent::Readers(_) => Ok(layout),
        }
    }

    /// For who changes bytes or runs, of which nobody else has any.
    fn changing(&self) -> Result<RwLockWriteGuard<'_, Layout>, Errno> {
        let layout = self.layout_alone();
        match layout.lent {
            Lent::No => Ok(layout),
            Lent::Readers(_) | Lent::Writer => Err(Errno::BUSY),
        }
    }

    /// The next data or hole at or behind `from`.
    ///
    /// # Errors
    /// `NXIO` behind the end, or for data where there is none.
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
                // Nothing until there, or to the end.
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
    /// Reads at most `len` bytes from `offset` on, as many as a way's staging has room for, and gives them
    /// to `take` where they are.
    ///
    /// # Errors
    /// `IO` for what is lost, or where the device fails.
    pub fn read_file<R>(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        self.bring_file(file, offset, len, false, take)
    }

    /// As [`Store::read_file`]; surely looked at, for what will be coded again.
    fn bring_file<R>(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        is_sure: bool,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        let layout = file.reading()?;
        let table = &layout.table;
        let size = file.size();
        if offset >= size || len == 0 {
            return Ok(take(&[]));
        }
        let head = (offset % ROW_BYTES as u64) as usize;
        let room = access.data().len() - head;
        let len = (size - offset).min(len as u64).min(room as u64) as usize;
        // Bytes of the staging are those of the file from here on, whole rows.
        let begin = offset - head as u64;
        let mut wanted = Vec::new();
        for piece in pieces(offset..offset + len as u64) {
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
                let there = both(&rows, &extent.part().bytes());
                if there.start < there.end {
                    zeros(done..there.start);
                    done = there.end;
                    want(&mut wanted, extent, &there, place(there.start));
                }
            }
            zeros(done..rows.end);
        }
        for part in wanted.chunks(access.slots()) {
            let brought = match is_sure {
                true => self.read(access, part),
                false => self.show(access, part),
            };
            brought.map_err(|error| told(&error))?;
        }
        Ok(take(&access.data()[head..head + len]))
    }

    /// Writes bytes at `offset`; how many. Fewer than there are if there is no more room, no file is that long, or something fails.
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

    /// As [`Store::write_file`], and says how many to `tell`, once unless it is an error: as soon as that is sure, which may be before they are
    /// there. Who comes to their blocks then waits until they are.
    ///
    /// # Errors
    /// As [`Store::write_file`]. Also behind `tell`, `IO`, if the device has failed then: [`Store::sync_file`] says so too from then on.
    pub fn write_file_telling(
        &self,
        file: &File,
        inode: u32,
        offset: u64,
        bytes: &[u8],
        tell: &mut dyn FnMut(usize),
    ) -> Result<(), Errno> {
        let mut tell = Some(tell);
        let written = self.write_bytes(file, inode, offset, bytes, &mut tell)?;
        if let Some(tell) = tell {
            tell(written);
        }
        Ok(())
    }

    /// Writes bytes; how many. Who is to be told is, and is gone, if all are surely taken before they are there.
    fn write_bytes(
        &self,
        file: &File,
        inode: u32,
        offset: u64,
        bytes: &[u8],
        tell: &mut Option<&mut dyn FnMut(usize)>,
    ) -> Result<usize, Errno> {
        let (tells, mut nobody) = (tell.is_some(), None);
        let room = SIZE_MAX.checked_sub(offset).filter(|room| *room > 0);
        let len = room.ok_or(Errno::FBIG)?.min(bytes.len() as u64);
        let (bytes, end) = (&bytes[..len as usize], offset + len);
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        let mut done = 0;
        let is_roomy = self.is_roomy(pieces(offset..end).count() as u64);
        let mut lost = BTreeSet::new();
        while done < bytes.len() {
            let at = offset + done as u64;
            let part: Vec<Piece> = pieces(at..end).take(access.slots()).collect();
            let len: usize = part.iter().map(|it| it.bytes.len()).sum();
            let given = &bytes[done..done + len];
            let known = lost.len();
            let listener = match len == bytes.len() {
                true => &mut *tell,
                false => &mut nobody,
            };
            let written = match known {
                0 => self.overwrite(access, file, inode, at, &part, given, &mut lost, listener),
                _ => None,
            };
            let written = match written {
                Some(written) => written,
                None => {
                    self.write_alone(access, file, inode, at, &part, given, is_roomy, &mut lost)
                }
            };
            done += written.unwrap_or(0);
            match written {
                Ok(written) if written == len => {}
                // Nothing that could be tried elsewhere.
                _ if tells && tell.is_none() => return Err(Errno::IO),
                // What is lost is written elsewhere.
                _ if lost.len() > known => {}
                Err(error) if done == 0 => return Err(error),
                _ => break,
            }
        }
        Ok(done)
    }

    /// Waits for who is writing the file, and says whether all that was told to be written came to be there.
    ///
    /// # Errors
    /// `IO` from the first write on, to any file, whose device failed between that word and its bytes.
    pub fn sync_file(&self, file: &File) -> Result<(), Errno> {
        drop(file.layout_alone());
        match self.counters().unkept_writes.load(Relaxed) {
            0 => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Whether there is so much room that so many chunks may take more than they need at once. If not, each takes what it needs, and
    /// what is there stays where it is: so nothing is refused as long as there are as many free pages as it has.
    fn is_roomy(&self, chunks: u64) -> bool {
        self.space().free_pages() >= chunks.saturating_mul(PAGES as u64)
    }

    /// Writes what lies before the end and was written before; `None` if it is not that. Tells as [`Store::write_bytes`] does.
    #[expect(clippy::too_many_arguments, reason = "what, where to, and how")]
    fn overwrite(
        &self,
        access: &mut M::Access,
        file: &File,
        inode: u32,
        offset: u64,
        part: &[Piece],
        bytes: &[u8],
        lost: &mut BTreeSet<u32>,
        tell: &mut Option<&mut dyn FnMut(usize)>,
    ) -> Option<Result<usize, Errno>> {
        let layout = file.layout_shared();
        if layout.lent != Lent::No || offset + bytes.len() as u64 > file.size() {
            return None;
        }
        let mut changes = Vec::with_capacity(part.len());
        let mut rest = bytes;
        for piece in part {
            let mut left = pages_of(&piece.bytes);
            for extent in layout.table.of(piece.chunk) {
                let there = extent.part().bytes();
                let both = both(&piece.bytes, &there);
                if both.start < both.end {
                    left &= !extent.written();
                    let (bytes, behind) = rest.split_at(both.len());
                    rest = behind;
                    changes.push(Change {
                        run: extent.run(),
                        fresh: None,
                        owner: owner(inode, piece.chunk),
                        from: both.start - there.start,
                        content: Content::Bytes(bytes),
                    });
                }
            }
            if left != 0 {
                return None;
            }
        }
        let lens = |good: usize| changes[..good].iter().map(|it| it.content.len()).sum();
        let tells = tell.is_some();
        let mut taken = || {
            if let Some(tell) = tell.take() {
                tell(bytes.len());
            }
        };
        let written = self.write_telling(access, &changes, &mut taken);
        // While who comes to the file still waits.
        if tells && tell.is_none() && written.is_err() {
            self.counters().unkept_writes.fetch_add(1, Relaxed);
        }
        lost.extend(lost_block(&written));
        Some(match written {
            Ok(()) => Ok(bytes.len()),
            Err((0, error)) => Err(told(&error)),
            Err((good, _)) => Ok(lens(good)),
        })
    }

    /// Writes whatever it is, with the file for itself.
    #[expect(clippy::too_many_arguments, reason = "what, where to, and how")]
    fn write_alone(
        &self,
        access: &mut M::Access,
        file: &File,
        inode: u32,
        offset: u64,
        part: &[Piece],
        bytes: &[u8],
        is_roomy: bool,
        lost: &mut BTreeSet<u32>,
    ) -> Result<usize, Errno> {
        let mut layout = file.changing()?;
        let end = offset + bytes.len() as u64;
        if end > file.size() {
            self.clean(access, file, &mut layout)?;
        }
        let terms = Terms {
            is_roomy,
            lost,
            size: file.size(),
        };
        let mut steps = Vec::new();
        let mut rest = bytes;
        for piece in part {
            let (given, behind) = rest.split_at(piece.bytes.len());
            rest = behind;
            let table = &layout.table;
            match self.plan(access, table, piece, Some(given), &terms, &mut steps) {
                Ok(()) => {}
                // The beginning is written.
                Err(_) if !steps.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        let mut rest = bytes;
        let mut changes = Vec::with_capacity(steps.len());
        for step in &steps {
            let (given, behind) = rest.split_at(step.len);
            rest = behind;
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
                self.set(file, &mut layout.table, step);
            } else if step.fresh.is_some() {
                self.space().give(step.extent.run());
            } else {
                // Some of it may have been written.
                self.set(file, &mut layout.table, step);
                layout.dirty = layout.dirty.max(end);
            }
        }
        if let Err((0, error)) = written {
            return Err(told(&error));
        }
        let written = steps[..good].iter().map(|it| it.len).sum();
        file.size.fetch_max(offset + written as u64, Relaxed);
        Ok(written)
    }

    /// A step was taken: what is part of a run that it took is there now.
    fn set(&self, file: &File, table: &mut Table, step: &Step) {
        let (chunk, pages) = (step.chunk, step.extent.part().pages());
        if step.fresh.is_some() {
            let is_part = |it: &Extent| it.part().pages() & pages != 0;
            let before: Vec<Extent> = table.of(chunk).filter(is_part).collect();
            file.pages.fetch_add(u64::from(pages.count_ones()), Relaxed);
            for extent in before {
                table.remove(chunk, extent);
                // Nothing, unless it is lost and was replaced in part.
                let left = apart(extent, extent.written() & !pages);
                self.shorten(file, extent, &left);
                left.iter().for_each(|it| table.set(chunk, *it));
            }
        }
        table.set(chunk, step.extent);
    }

    /// Of an extent these are left.
    fn shorten(&self, file: &File, extent: Extent, left: &[Extent]) {
        let held = left.iter().fold(0, |all, it| all | it.part().pages());
        let gone = extent.part().pages() & !held;
        if gone != 0 {
            file.pages.fetch_sub(u64::from(gone.count_ones()), Relaxed);
            self.space()
                .narrow(extent.run(), held >> extent.part().first);
        }
    }

    /// Steps were not taken: nothing leads to the runs that they took.
    fn unset(&self, steps: &[Step]) {
        for step in steps.iter().filter(|it| it.fresh.is_some()) {
            self.space().give(step.extent.run());
        }
    }

    /// Has zeros where failed writes may have left something behind the end, before that moves on. No memory goes, as some of it
    /// may have just been reserved.
    fn clean(&self, access: &mut M::Access, file: &File, layout: &mut Layout) -> Result<(), Errno> {
        if layout.dirty > file.size() {
            self.blank(access, &layout.table, file.size()..layout.dirty)?;
        }
        layout.dirty = 0;
        Ok(())
    }

    /// The steps by which a piece has these bytes, or zeros where nothing was written; from its beginning on as many as there is
    /// room for. What is there and dense with it is joined in a longer run, if there is room for both. Pages of a lost block have
    /// others take their place if nothing of them stays.
    ///
    /// # Errors
    /// `NOSPC` if a page is missing, and none is free.
    fn plan(
        &self,
        access: &mut M::Access,
        table: &Table,
        piece: &Piece,
        content: Option<&[u8]>,
        terms: &Terms<'_>,
        steps: &mut Vec<Step>,
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
        // What grows behind the first chunk will be as long as a chunk.
        let is_prefix = all & all.wrapping_add(1) == 0;
        let grows = chunk > 0 && !there.is_empty() && is_prefix;
        let mut joins = terms.is_roomy && replaced == 0;
        let mut left = pages;
        while left != 0 {
            let page = left.trailing_zeros();
            let part = match grows {
                true => Part::WHOLE,
                false => Part::dense(all, page),
            };
            if joins && missing & part.pages() != 0 {
                let (run, generation) = self.space().take(part.order).ok_or(Errno::NOSPC)?;
                let merged = match u32::from(run.order) == part.order {
                    true => self.merged(access, part, &there, piece, content),
                    // Others have left gaps alone.
                    false => Err(Errno::NOSPC),
                };
                if let Ok(merged) = merged {
                    let extent = Extent::new(run, all & part.pages());
                    steps.push(Step::new(piece, extent, Some(generation), merged));
                    left &= !part.pages();
                    continue;
                }
                // What cannot be read stays where it is, too.
                self.space().give(run);
                joins = false;
            }
            let extent = there.iter().find(|it| it.part().pages() >> page & 1 != 0);
            let step = match extent.filter(|_| replaced >> page & 1 == 0) {
                Some(extent) => Step::new(piece, extent.with(pages), None, None),
                None => {
                    let part = Part::exact(left & missing);
                    let (run, generation) = self.space().take(part.order).ok_or(Errno::NOSPC)?;
                    let order = u32::from(run.order);
                    let extent = Extent::new(run, Part { order, ..part }.pages());
                    Step::new(piece, extent, Some(generation), None)
                }
            };
            left &= !step.extent.part().pages();
            steps.push(step);
        }
        Ok(())
    }

    /// What a part of a chunk has when a piece of it has these bytes; `None` if there is nothing else.
    fn merged(
        &self,
        access: &mut M::Access,
        part: Part,
        there: &[Extent],
        piece: &Piece,
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
            want(&mut wanted, *extent, &there, there.start - bytes.start);
        }
        for some in wanted.chunks(access.slots()) {
            self.read(access, some).map_err(|error| told(&error))?;
        }
        let mut all = vec![0; bytes.len()];
        for there in before {
            let there = there.start - bytes.start..there.end - bytes.start;
            all[there.clone()].copy_from_slice(&access.data()[there]);
        }
        if let Some(content) = content {
            let both = both(&piece.bytes, &bytes);
            let given = both.start - piece.bytes.start..both.end - piece.bytes.start;
            all[both.start - bytes.start..both.end - bytes.start].copy_from_slice(&content[given]);
        }
        Ok(Some(all))
    }

    /// Makes a file as long as that. What was behind the end is gone, also if it grows again.
    ///
    /// # Errors
    /// `FBIG`; `IO`, and the size is as it was, but bytes behind the new one may be zeros.
    pub fn truncate(&self, file: &File, size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        let mut layout = file.changing()?;
        if size <= file.size() {
            // Of the same size too: memory behind the end goes.
            self.clear(access, file, &mut layout.table, size..SIZE_MAX)?;
            layout.dirty = 0;
        } else {
            self.clean(access, file, &mut layout)?;
        }
        file.size.store(size, Relaxed);
        Ok(())
    }

    /// Makes a hole: zeros, and memory given back but for dense parts of each run that have the pages left.
    ///
    /// # Errors
    /// `IO`, and what is before the place where it failed is a hole.
    pub fn punch(&self, file: &File, bytes: Range<u64>) -> Result<(), Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        let mut layout = file.changing()?;
        let end = bytes.end.min(SIZE_MAX);
        match bytes.start < end {
            true => self.clear(access, file, &mut layout.table, bytes.start..end),
            false => Ok(()),
        }
    }

    /// Makes zeros, with memory for all of them. The size grows unless it is kept.
    ///
    /// # Errors
    /// As [`Store::allocate`], and then all bytes are as they were; `IO`, and some may be zeros.
    pub fn zero(
        &self,
        file: &File,
        inode: u32,
        bytes: Range<u64>,
        keeps_size: bool,
    ) -> Result<(), Errno> {
        self.allocate(file, inode, bytes.clone(), keeps_size)?;
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        // The file is left to others now and then.
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min(at + COPY_BYTES);
            self.blank(access, &file.changing()?.table, at..end)?;
            std::thread::yield_now();
            at = end;
        }
        Ok(())
    }

    /// Makes zeros of what is there.
    fn blank(&self, access: &mut M::Access, table: &Table, bytes: Range<u64>) -> Result<(), Errno> {
        let of_chunk = |(chunk, extent)| zeros(extent, &within_chunk(chunk, &bytes));
        let changes: Vec<Change<'_>> = table
            .within(chunks_of(&bytes))
            .filter_map(of_chunk)
            .collect();
        let written = self.write(access, &changes);
        written.map_err(|(_, error)| told(&error))
    }

    fn clear(
        &self,
        access: &mut M::Access,
        file: &File,
        table: &mut Table,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        if bytes.start >= bytes.end {
            return Ok(());
        }
        let all: Vec<(u32, Extent)> = table.within(chunks_of(&bytes)).collect();
        for (at, extent) in all {
            let bytes = within_chunk(at, &bytes);
            if zeros(extent, &bytes).is_none() {
                continue;
            }
            let (first, end) = (bytes.start.div_ceil(PAGE_BYTES), bytes.end / PAGE_BYTES);
            let gone = match first < end {
                true => pages_of(&(first * PAGE_BYTES..end * PAGE_BYTES)),
                false => 0,
            };
            let stays = extent.written() & !gone;
            let left = parts(stays).map(|it| extent.within(it, stays));
            let mut left: Vec<Extent> = left.collect();
            let changes: Vec<_> = left.iter().filter_map(|it| zeros(*it, &bytes)).collect();
            if let Err((_, error)) = self.write(access, &changes) {
                // Nothing can be written into what is lost, but whole pages of it can go.
                left = apart(extent, stays);
                let is_lost = matches!(error, Error::Lost { .. });
                if !is_lost || left.iter().any(|it| zeros(*it, &bytes).is_some()) {
                    return Err(told(&error));
                }
            }
            table.remove(at, extent);
            left.iter().for_each(|it| table.set(at, *it));
            self.shorten(file, extent, &left);
        }
        Ok(())
    }

    /// Has memory for all of these bytes; zeros where nothing was written. The size grows unless it is kept. Nobody waits
    /// for it longer than for a chunk: what is new is made before anything leads to it.
    ///
    /// # Errors
    /// `FBIG`; `NOSPC` and `IO`, and chunks without memory have none, but those with some may have more.
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
        self.with_others(|| self.allocate_once(file, inode, &bytes, keeps_size))
    }

    fn allocate_once(
        &self,
        file: &File,
        inode: u32,
        bytes: &Range<u64>,
        keeps_size: bool,
    ) -> Result<(), Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access();
        if bytes.start >= bytes.end {
            return Ok(());
        }
        let chunks = chunks_of(bytes);
        let is_roomy = self.is_roomy(u64::from(chunks.end() - chunks.start()) + 1);
        let mut fresh = Fresh {
            store: self,
            steps: Vec::new(),
        };
        let partial = self.take_holes(file, bytes, is_roomy, &mut fresh)?;
        for part in fresh.steps.chunks(access.slots()) {
            let steps = part.iter();
            let changes: Vec<Change<'_>> = steps
                .map(|step| step.change(inode, Content::Zeros(0)))
                .collect();
            let made = self.write(access, &changes);
            made.map_err(|(_, error)| told(&error))?;
        }
        for piece in partial {
            let mut layout = file.changing()?;
            self.fill(access, file, &mut layout.table, inode, &piece, is_roomy)?;
        }
        let mut layout = file.changing()?;
        if !keeps_size && bytes.end > file.size() {
            self.clean(access, file, &mut layout)?;
        }
        let table = &mut layout.table;
        let mut met = Vec::new();
        for step in std::mem::take(&mut fresh.steps) {
            if table.held(step.chunk) & step.extent.part().pages() == 0 {
                self.set(file, table, &step);
            } else {
                // Somebody has written there meanwhile.
                self.space().give(step.extent.run());
                met.push(step);
            }
        }
        for step in met {
            let first = step.extent.written().trailing_zeros() as usize * PAGE_BYTES;
            let pages = step.extent.written().count_ones() as usize;
            let piece = Piece {
                chunk: step.chunk,
                bytes: first..first + pages * PAGE_BYTES,
            };
            self.fill(access, file, table, inode, &piece, is_roomy)?;
        }
        if !keeps_size {
            file.size.fetch_max(bytes.end, Relaxed);
        }
        Ok(())
    }

    /// Takes runs for all chunks of these bytes that have none; the pieces of those that have some, but not all.
    fn take_holes(
        &self,
        file: &File,
        bytes: &Range<u64>,
        mut is_roomy: bool,
        fresh: &mut Fresh<'_, M>,
    ) -> Result<Vec<Piece>, Errno> {
        let layout = file.reading()?;
        let table = &layout.table;
        let pages_within = |chunk: u32| pages_of(&within_chunk(chunk, bytes));
        let had = |(chunk, it): (u32, Extent)| {
            let had = it.part().pages() & pages_within(chunk);
            u64::from(had.count_ones())
        };
        let had: u64 = table.within(chunks_of(bytes)).map(had).sum();
        // Before all of them are looked at, which may be very many.
        let page = PAGE_BYTES as u64;
        let needed = bytes.end.div_ceil(page) - bytes.start / page;
        if needed.saturating_sub(had) > self.space().free_pages() {
            return Err(Errno::NOSPC);
        }
        let mut partial = Vec::new();
        for piece in pieces(bytes.clone()) {
            let mut left = pages_of(&piece.bytes);
            if table.of(piece.chunk).next().is_some() {
                if left & !table.written(piece.chunk) != 0 {
                    partial.push(piece);
                }
                continue;
            }
            while left != 0 {
                let part = match is_roomy {
                    true => Part::dense(left, left.trailing_zeros()),
                    false => Part::exact(left),
                };
                let (run, generation) = self.space().take(part.order).ok_or(Errno::NOSPC)?;
                let order = u32::from(run.order);
                if order < part.order && is_roomy {
                    // Others have left gaps alone.
                    self.space().give(run);
                    is_roomy = false;
                    continue;
                }
                let part = Part { order, ..part };
                let extent = Extent::new(run, left & part.pages());
                let step = Step::new(&piece, extent, Some(generation), None);
                fresh.steps.push(step);
                left &= !part.pages();
            }
        }
        Ok(partial)
    }

    /// Has memory for all of a piece.
    fn fill(
        &self,
        access: &mut M::Access,
        file: &File,
        table: &mut Table,
        inode: u32,
        piece: &Piece,
        is_roomy: bool,
    ) -> Result<(), Errno> {
        if pages_of(&piece.bytes) & !table.written(piece.chunk) == 0 {
            return Ok(());
        }
        let mut steps = Vec::new();
        let terms = Terms::new(is_roomy);
        let planned = self.plan(access, table, piece, None, &terms, &mut steps);
        let made = planned.and_then(|()| {
            let fresh = steps.iter().filter(|it| it.fresh.is_some());
            let changes: Vec<Change<'_>> = fresh
                .map(|step| step.change(inode, Content::Zeros(0)))
                .collect();
            let made = self.write(access, &changes);
            made.map_err(|(_, error)| told(&error))
        });
        match made {
            Ok(()) => steps.iter().for_each(|step| self.set(file, table, step)),
            Err(_) => self.unset(&steps),
        }
        made
    }

    /// Blocks that it has runs in.
    pub(crate) fn blocks_of(&self, file: &File) -> Vec<u32> {
        let layout = file.layout_shared();
        let all = layout.table.within(0..=u32::MAX);
        let mut all: Vec<u32> = all.map(|(_, extent)| extent.run().block).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether it has anything in blocks from this one on.
    pub(crate) fn has_behind(&self, file: &File, first: u32) -> bool {
        let layout = file.layout_shared();
        let mut all = layout.table.within(0..=u32::MAX);
        all.any(|(_, extent)| extent.run().block >= first)
    }

    /// Gives all runs of a file back that nobody can reach any more; not if its memory is lent, and then it returns `false`.
    pub fn free(&self, file: &File) -> bool {
        let mut layout = file.layout_alone();
        if layout.lent != Lent::No {
            return false;
        }
        for (_, extent) in std::mem::take(&mut *layout).table.within(0..=u32::MAX) {
            self.space().give(extent.run());
        }
        file.pages.store(0, Relaxed);
        file.size.store(0, Relaxed);
        true
    }
}

/// Steps with runs that nothing leads to yet; those that are left go back.
struct Fresh<'s, M: Medium> {
    store: &'s Store<M>,
    steps: Vec<Step>,
}

impl<M: Medium> Drop for Fresh<'_, M> {
    fn drop(&mut self) {
        self.store.unset(&self.steps);
    }
}

/// How runs are taken for a piece.
struct Terms<'l> {
    /// See `is_roomy`.
    is_roomy: bool,
    /// Blocks that are lost.
    lost: &'l BTreeSet<u32>,
    /// The file's.
    size: u64,
}

impl Terms<'static> {
    fn new(is_roomy: bool) -> Self {
        static NONE: BTreeSet<u32> = BTreeSet::new();
        Self {
            is_roomy,
            lost: &NONE,
            size: 0,
        }
    }
}

impl Terms<'_> {
    /// Pages of which a piece has all that the file has of them.
    fn whole(&self, piece: &Piece) -> u32 {
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

/// The block that is lost, if that is why it was not written.
fn lost_block(written: &Result<(), (usize, Error)>) -> Option<u32> {
    match written {
        Err((_, Error::Lost { block })) => Some(*block),
        _ => None,
    }
}

/// Parts of an extent that have these pages of it and no others.
fn apart(extent: Extent, pages: u32) -> Vec<Extent> {
    let mut left = pages;
    let next = || {
        let part = (left != 0).then(|| Part::exact(left))?;
        left &= !part.pages();
        Some(extent.within(part, pages))
    };
    std::iter::from_fn(next).collect()
}

/// How part of a piece is written.
struct Step {
    chunk: u32,
    /// What there is then.
    extent: Extent,
    /// The generation of its run's block, if that was just taken.
    fresh: Option<u64>,
    /// Where in the run the piece's bytes begin, and how many they are.
    from: usize,
    len: usize,
    /// All that the run has then, if it takes others' place.
    merged: Option<Vec<u8>>,
}

impl Step {
    fn new(piece: &Piece, extent: Extent, fresh: Option<u64>, merged: Option<Vec<u8>>) -> Self {
        let there = extent.part().bytes();
        let both = both(&piece.bytes, &there);
        Self {
            chunk: piece.chunk,
            extent,
            fresh,
            from: both.start - there.start,
            len: both.len(),
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

/// These bytes of an extent are wanted, whole rows; with those before if they lie behind them.
fn want(all: &mut Vec<Wanted>, extent: Extent, bytes: &Range<usize>, at: usize) {
    let (block, rows) = (extent.run().block, extent.rows(bytes));
    if let Some(last) = all.last_mut()
        && (last.block, last.rows.end) == (block, rows.start)
        && last.at + last.rows.len() * ROW_BYTES == at
    {
        last.rows.end = rows.end;
        return;
    }
    all.push(Wanted { block, rows, at });
}

/// Zeros where an extent has these bytes of its chunk.
fn zeros(extent: Extent, bytes: &Range<usize>) -> Option<Change<'static>> {
    let there = extent.part().bytes();
    let both = both(bytes, &there);
    (both.start < both.end).then(|| Change {
        run: extent.run(),
        fresh: None,
        owner: 0,
        from: both.start - there.start,
        content: Content::Zeros(both.len()),
    })
}

/// Whose a page is, as its block's record says.
fn owner(inode: u32, chunk: u32) -> u64 {
    u64::from(inode) << 32 | u64::from(chunk)
}

#[cfg(test)]
pub(crate) mod tests;
