//! The bytes of a file: which pages of which runs they are in, and what there is nothing of.
//!
//! A file is chunks of 128 KiB. A chunk has nothing, or one run: a whole block, or 1 to 16 pages that hold an aligned part
//! of it, so that a small file takes a few pages. Pages of a run that were never written have zeros, so what is read
//! needs no look at which they are; they count as holes all the same.
//!
//! Locks: a file's own, shared by who reads or overwrites bytes before the end, and had alone by who changes the size or which
//! runs it has; blocks' locks (`store`) within it. Who needs a way to the memory has it before the file's lock: who waits
//! for a way holds nothing that the others wait for.
//!
//! Invariants: bytes behind the end are zeros wherever there is a run, or lie before the file's `dirty` end, and the size does
//! not grow before those are zeros too, so that a file which grows shows nothing old; a run is one chunk's; pages that are
//! not called written have zeros. A write that fails may have changed any of the bytes that it was to change.
//! Elsewhere: what a run's pages are (`space`), how they are read and written (`store`).

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::error::Error;
use crate::layout::{DATA_BYTES, PAGE_BYTES, PAGES, ROW_BYTES};
use crate::medium::{Access, Medium};
use crate::space::{Run, WHOLE};
use crate::store::{Change, Content, Store, Wanted};

/// No file has more bytes.
pub const SIZE_MAX: u64 = (DATA_BYTES as u64) << 32;

/// Bytes that are copied at once.
const COPY_BYTES: u64 = 1 << 20;

/// A run, and which pages of its chunk were written; a block's number has 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    run: Run,
    written: u32,
}

impl Chunk {
    /// The first page of the chunk that the run has.
    fn first(self) -> u32 {
        window(self.written, u32::from(self.run.order))
    }

    /// The bytes of the chunk that the run has.
    fn bytes(self) -> Range<usize> {
        let first = self.first() as usize * PAGE_BYTES;
        first..first + self.run.pages() as usize * PAGE_BYTES
    }

    /// The shortest part of its run that has all pages that were written.
    fn shortest(self) -> Run {
        let order = order_for(self.written);
        Run {
            page: self.run.page + (window(self.written, order) - self.first()) as u8,
            order: order as u8,
            ..self.run
        }
    }

    /// Whether the run has room for these pages.
    fn has(self, pages: u32) -> bool {
        let all = self.written | pages;
        order_for(all) <= u32::from(self.run.order)
            && window(all, u32::from(self.run.order)) == self.first()
    }
}

/// The first page of the aligned part of `1 << order` pages that has the lowest of these.
fn window(pages: u32, order: u32) -> u32 {
    pages.trailing_zeros() >> order << order
}

/// The shortest aligned part that has all of these pages.
fn order_for(pages: u32) -> u32 {
    let (first, last) = (pages.trailing_zeros(), 31 - pages.leading_zeros());
    32 - (first ^ last).leading_zeros()
}

/// Pages of a chunk that have any of these bytes.
fn pages_of(bytes: &Range<usize>) -> u32 {
    let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
    let mask = |pages: usize| ((1u64 << pages) - 1) as u32;
    mask(end) & !mask(first)
}

/// A file's runs, and how far bytes that a failed write has left may lie behind its end.
#[derive(Debug, Default)]
struct Layout {
    table: Table,
    dirty: u64,
}

/// A file's runs by chunk. Most files have one.
#[derive(Debug, Default)]
enum Table {
    #[default]
    Empty,
    First(Chunk),
    Many(BTreeMap<u32, Chunk>),
}

impl Table {
    fn get(&self, at: u32) -> Option<Chunk> {
        match self {
            Self::First(chunk) if at == 0 => Some(*chunk),
            Self::Many(all) => all.get(&at).copied(),
            _ => None,
        }
    }

    fn set(&mut self, at: u32, chunk: Option<Chunk>) {
        match (&mut *self, chunk) {
            (Self::Many(all), Some(chunk)) => {
                all.insert(at, chunk);
            }
            (Self::Many(all), None) => {
                all.remove(&at);
                if all.is_empty() {
                    *self = Self::Empty;
                }
            }
            (_, Some(chunk)) if at == 0 => *self = Self::First(chunk),
            (Self::First(first), Some(chunk)) => {
                *self = Self::Many(BTreeMap::from([(0, *first), (at, chunk)]));
            }
            (Self::Empty, Some(chunk)) => *self = Self::Many(BTreeMap::from([(at, chunk)])),
            (Self::First(_), None) if at == 0 => *self = Self::Empty,
            (_, None) => {}
        }
    }

    /// Those of these chunks that have a run, in order.
    fn within(&self, chunks: RangeInclusive<u32>) -> Vec<(u32, Chunk)> {
        match self {
            Self::First(chunk) if *chunks.start() == 0 => vec![(0, *chunk)],
            Self::Many(all) => {
                let all = all.range(chunks);
                all.map(|(at, chunk)| (*at, *chunk)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The first chunk from one on that has a run.
    fn next(&self, at: u32) -> Option<(u32, Chunk)> {
        match self {
            Self::First(chunk) if at == 0 => Some((0, *chunk)),
            Self::Many(all) => all.range(at..).next().map(|(at, chunk)| (*at, *chunk)),
            _ => None,
        }
    }
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

impl Piece {
    /// The first half of its pages, which a shorter run may have room for.
    fn begin(&self) -> Option<Self> {
        let first = self.bytes.start / PAGE_BYTES;
        let pages = self.bytes.end.div_ceil(PAGE_BYTES) - first;
        let end = (first + pages / 2) * PAGE_BYTES;
        (pages > 1).then_some(Self {
            chunk: self.chunk,
            bytes: self.bytes.start..end,
        })
    }
}

/// The chunks that bytes of a file lie in, of which there are some.
fn chunks_of(bytes: &Range<u64>) -> RangeInclusive<u32> {
    let chunk = DATA_BYTES as u64;
    (bytes.start / chunk) as u32..=((bytes.end - 1) / chunk) as u32
}

/// Those chunks, with what of each.
fn pieces(bytes: Range<u64>) -> impl Iterator<Item = Piece> {
    let chunk = DATA_BYTES as u64;
    let all = bytes.start / chunk..bytes.end.div_ceil(chunk);
    all.map(move |at| {
        let begin = at * chunk;
        let from = bytes.start.max(begin) - begin;
        let to = bytes.end.min(begin + chunk) - begin;
        Piece {
            chunk: at as u32,
            bytes: from as usize..to as usize,
        }
    })
}

/// What a caller of the system hears: lost data and a device that fails are both `EIO`.
pub(crate) fn told(_error: &Error) -> Errno {
    Errno::IO
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

    fn reading(&self) -> RwLockReadGuard<'_, Layout> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> RwLockWriteGuard<'_, Layout> {
        self.layout.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next data or hole at or behind `from`.
    ///
    /// # Errors
    /// `NXIO` behind the end, or for data where there is none.
    pub fn seek(&self, from: u64, what: Seek) -> Result<u64, Errno> {
        let layout = self.reading();
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
                Some((found, it)) if found == chunk => it.written >> (at % PAGES as u64),
                // Nothing until there, or to the end.
                other => {
                    if what == Seek::Hole {
                        return Ok((at * page).max(from));
                    }
                    let Some((found, _)) = other else {
                        return Err(Errno::NXIO);
                    };
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
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access().ok_or(Errno::IO)?;
        let layout = file.reading();
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
            let chunk = table.get(piece.chunk);
            let there = chunk.map_or(0..0, Chunk::bytes);
            let rows = piece.bytes.start / ROW_BYTES * ROW_BYTES
                ..piece.bytes.end.next_multiple_of(ROW_BYTES);
            let both = rows.start.max(there.start)..rows.end.min(there.end);
            let has_any = both.start < both.end;
            if let (Some(chunk), true) = (chunk, has_any) {
                let first = usize::from(chunk.run.page) * PAGE_BYTES;
                let in_block = |byte: usize| (first + byte - there.start) / ROW_BYTES;
                wanted.push(Wanted {
                    block: chunk.run.block,
                    rows: in_block(both.start)..in_block(both.end),
                    at: place(both.start),
                });
            }
            let (from, to) = match has_any {
                true => (both.start, both.end),
                false => (rows.start, rows.start),
            };
            for hole in [rows.start..from, to..rows.end] {
                if hole.start < hole.end {
                    let end = place(hole.end).min(access.data().len());
                    access.data_mut()[place(hole.start)..end].fill(0);
                }
            }
        }
        for part in wanted.chunks(access.slots()) {
            self.read(access, part).map_err(|error| told(&error))?;
        }
        Ok(take(&access.data()[head..head + len]))
    }

    /// Writes bytes at `offset`; how many. Fewer than there are if there is no more room, or something fails.
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
        let end = offset.checked_add(bytes.len() as u64);
        let end = end.filter(|end| *end <= SIZE_MAX).ok_or(Errno::FBIG)?;
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access().ok_or(Errno::IO)?;
        let mut done = 0;
        let all: Vec<Piece> = pieces(offset..end).collect();
        for part in all.chunks(access.slots()) {
            let len: usize = part.iter().map(|it| it.bytes.len()).sum();
            let given = &bytes[done..done + len];
            let at = offset + done as u64;
            let written = match self.overwrite(access, file, inode, at, part, given) {
                Some(written) => written,
                None => self.write_alone(access, file, inode, at, part, given),
            };
            match written {
                Ok(written) => {
                    done += written;
                    if written < len {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes what lies before the end and was written before; `None` if it is not that.
    fn overwrite(
        &self,
        access: &mut M::Access,
        file: &File,
        inode: u32,
        offset: u64,
        part: &[Piece],
        bytes: &[u8],
    ) -> Option<Result<usize, Errno>> {
        let layout = file.reading();
        if offset + bytes.len() as u64 > file.size() {
            return None;
        }
        let there = |piece: &Piece| {
            let pages = pages_of(&piece.bytes);
            let chunk = layout.table.get(piece.chunk);
            chunk.filter(|chunk| chunk.written & pages == pages)
        };
        let chunks: Vec<Chunk> = part.iter().map(there).collect::<Option<_>>()?;
        let changes: Vec<Change<'_>> = chunks
            .iter()
            .zip(part)
            .zip(contents(part, bytes))
            .map(|((chunk, piece), bytes)| Change {
                run: chunk.run,
                fresh: None,
                owner: owner(inode, piece.chunk),
                from: piece.bytes.start - chunk.bytes().start,
                content: Content::Bytes(bytes),
            })
            .collect();
        Some(counted(self.write(access, &changes), part))
    }

    /// Writes whatever it is, with the file for itself.
    fn write_alone(
        &self,
        access: &mut M::Access,
        file: &File,
        inode: u32,
        offset: u64,
        part: &[Piece],
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let mut layout = file.changing();
        let end = offset + bytes.len() as u64;
        if end > file.size() {
            self.clean(access, file, &mut layout)?;
        }
        let given = bytes;
        let bytes = contents(part, given);
        let mut plans = Vec::new();
        for (piece, bytes) in part.iter().zip(&bytes) {
            match self.plan(access, &layout.table, piece, bytes) {
                // It is written where what was there is: alone, so that it is known whether it was.
                Ok(plan) if plan.is_widened => {
                    match plans.is_empty() {
                        true => plans.push(plan),
                        false => self.unset(&plan),
                    }
                    break;
                }
                Ok(plan) => plans.push(plan),
                Err(_) if !plans.is_empty() => break,
                Err(error) => {
                    let begin = piece.begin().filter(|_| error == Errno::NOSPC);
                    let begin = begin.ok_or(error)?;
                    drop(layout);
                    let given = &given[..begin.bytes.len()];
                    return self.write_alone(access, file, inode, offset, &[begin], given);
                }
            }
        }
        let changes: Vec<Change<'_>> = plans
            .iter()
            .zip(part)
            .zip(&bytes)
            .map(|((plan, piece), bytes)| Change {
                run: plan.chunk.run,
                fresh: plan.fresh,
                owner: owner(inode, piece.chunk),
                from: plan.from,
                content: Content::Bytes(plan.merged.as_deref().unwrap_or(bytes)),
            })
            .collect();
        let written = self.write(access, &changes);
        let good = match &written {
            Ok(()) => plans.len(),
            Err((good, _)) => *good,
        };
        for (at, plan) in plans.iter().enumerate() {
            match at < good {
                true => self.set(file, &mut layout.table, part[at].chunk, plan),
                false if plan.fresh.is_some() => self.unset(plan),
                // Some of it may have been written.
                false => {
                    layout.table.set(part[at].chunk, Some(plan.chunk));
                    layout.dirty = layout.dirty.max(end);
                }
            }
        }
        let written = counted(written, &part[..plans.len()])?;
        if written > 0 {
            file.size.fetch_max(offset + written as u64, Relaxed);
        }
        Ok(written)
    }

    /// A plan was carried out.
    fn set(&self, file: &File, table: &mut Table, chunk: u32, plan: &Plan) {
        if plan.fresh.is_some() {
            let pages = plan.chunk.run.pages();
            file.pages.fetch_add(u64::from(pages), Relaxed);
        }
        table.set(chunk, Some(plan.chunk));
        if let Some(before) = plan.before {
            file.pages.fetch_sub(u64::from(before.pages()), Relaxed);
            if !plan.is_widened {
                self.space().give(before);
            }
        }
    }

    /// A plan was not carried out: nothing leads to the run that it took.
    fn unset(&self, plan: &Plan) {
        match plan.before {
            Some(before) if plan.is_widened => self.space().narrow(plan.chunk.run, before),
            _ => self.space().give(plan.chunk.run),
        }
    }

    /// Has zeros where failed writes may have left something behind the end, before that moves on.
    fn clean(&self, access: &mut M::Access, file: &File, layout: &mut Layout) -> Result<(), Errno> {
        if layout.dirty > file.size() {
            let left = file.size()..layout.dirty;
            self.clear(access, file, &mut layout.table, left, false)?;
        }
        layout.dirty = 0;
        Ok(())
    }

    /// How a piece that has no room yet, or has pages that were not written, is written.
    fn plan(
        &self,
        access: &mut M::Access,
        table: &Table,
        piece: &Piece,
        bytes: &[u8],
    ) -> Result<Plan, Errno> {
        let pages = pages_of(&piece.bytes);
        let before = table.get(piece.chunk);
        if let Some(chunk) = before.filter(|chunk| chunk.has(pages)) {
            return Ok(Plan {
                chunk: Chunk {
                    written: chunk.written | pages,
                    ..chunk
                },
                fresh: None,
                before: None,
                is_widened: false,
                from: piece.bytes.start - chunk.bytes().start,
                merged: None,
            });
        }
        let written = pages | before.map_or(0, |chunk| chunk.written);
        // What grows behind the first chunk will be as long as a chunk.
        let order = match before.is_some() && piece.chunk > 0 {
            true => WHOLE,
            false => order_for(written),
        };
        let old = match before {
            None => None,
            Some(chunk) => Some((chunk, self.content_of(access, chunk)?)),
        };
        let space = self.space();
        let least = order_for(written);
        let taken = space.take(order).or_else(|| space.take(least));
        // Only as a last resort: what is there has to be written anew where it is.
        let widened = |chunk: Chunk| space.widen(chunk.run, least);
        let is_widened = taken.is_none();
        let taken = taken.or_else(|| before.and_then(widened));
        let (run, generation) = taken.ok_or(Errno::NOSPC)?;
        let chunk = Chunk { run, written };
        let first = chunk.bytes().start;
        let merged = old.map(|(before, old)| {
            let mut all = vec![0; chunk.bytes().len()];
            all[before.bytes().start - first..][..old.len()].copy_from_slice(&old);
            all[piece.bytes.start - first..][..bytes.len()].copy_from_slice(bytes);
            all
        });
        Ok(Plan {
            chunk,
            fresh: Some(generation),
            before: before.map(|chunk| chunk.run),
            is_widened,
            from: match merged {
                None => piece.bytes.start - first,
                Some(_) => 0,
            },
            merged,
        })
    }

    fn content_of(&self, access: &mut M::Access, chunk: Chunk) -> Result<Vec<u8>, Errno> {
        let rows_of_page = PAGE_BYTES / ROW_BYTES;
        let first = usize::from(chunk.run.page) * rows_of_page;
        let count = chunk.run.pages() as usize * rows_of_page;
        let wanted = Wanted {
            block: chunk.run.block,
            rows: first..first + count,
            at: 0,
        };
        self.read(access, &[wanted]).map_err(|error| told(&error))?;
        Ok(access.data()[..count * ROW_BYTES].to_vec())
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
        let access = way.access().ok_or(Errno::IO)?;
        let mut layout = file.changing();
        if size <= file.size() {
            // Of the same size too: memory behind the end goes.
            self.clear(access, file, &mut layout.table, size..SIZE_MAX, false)?;
            layout.dirty = 0;
        } else {
            self.clean(access, file, &mut layout)?;
        }
        file.size.store(size, Relaxed);
        Ok(())
    }

    /// Makes a hole: zeros, and memory given back but for the shortest part of each chunk's run that has the pages left.
    ///
    /// # Errors
    /// `IO`, and what is before the place where it failed is a hole.
    pub fn punch(&self, file: &File, bytes: Range<u64>) -> Result<(), Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access().ok_or(Errno::IO)?;
        let mut layout = file.changing();
        let end = bytes.end.min(SIZE_MAX);
        match bytes.start < end {
            true => self.clear(access, file, &mut layout.table, bytes.start..end, false),
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
        let access = way.access().ok_or(Errno::IO)?;
        // The file is left to others now and then.
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min(at + COPY_BYTES);
            let mut layout = file.changing();
            self.clear(access, file, &mut layout.table, at..end, true)?;
            drop(layout);
            std::thread::yield_now();
            at = end;
        }
        Ok(())
    }

    /// Copies bytes from one place to another, which do not overlap; how many, fewer than there are if there
    /// is no more room, or something fails. What is a hole there is one here.
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
            let part = if data > at {
                let hole = (data - at).min(len - done);
                let made = self.punch(target, to..to + hole);
                made.and_then(|()| self.lengthen(target, to + hole))
                    .map(|()| (hole, hole))
            } else {
                let hole = source.seek(at, Seek::Hole).unwrap_or(u64::MAX);
                let left = (hole - at).min(len - done).min(COPY_BYTES);
                self.read_file(source, at, left as usize, <[u8]>::to_vec)
                    .and_then(|bytes| {
                        let written = self.write_file(target, inode, to, &bytes)?;
                        Ok((written as u64, bytes.len() as u64))
                    })
            };
            match part {
                Ok((written, given)) => {
                    done += written;
                    // Also where the source has become shorter meanwhile.
                    if written < given || given == 0 {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Makes a file at least as long as that.
    fn lengthen(&self, file: &File, size: u64) -> Result<(), Errno> {
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access().ok_or(Errno::IO)?;
        let mut layout = file.changing();
        if size > file.size() {
            self.clean(access, file, &mut layout)?;
            file.size.store(size, Relaxed);
        }
        Ok(())
    }

    fn clear(
        &self,
        access: &mut M::Access,
        file: &File,
        table: &mut Table,
        bytes: Range<u64>,
        keeps_memory: bool,
    ) -> Result<(), Errno> {
        if bytes.start >= bytes.end {
            return Ok(());
        }
        let chunk_bytes = DATA_BYTES as u64;
        for (at, chunk) in table.within(chunks_of(&bytes)) {
            let begin = u64::from(at) * chunk_bytes;
            let from = bytes.start.saturating_sub(begin) as usize;
            let to = (bytes.end - begin).min(chunk_bytes) as usize;
            let (first, end) = (from.div_ceil(PAGE_BYTES), to / PAGE_BYTES);
            let gone = match first < end && !keeps_memory {
                true => pages_of(&(first * PAGE_BYTES..end * PAGE_BYTES)),
                false => 0,
            };
            let written = chunk.written & !gone;
            if written == 0 {
                table.set(at, None);
                file.pages.fetch_sub(u64::from(chunk.run.pages()), Relaxed);
                self.space().give(chunk.run);
                continue;
            }
            let left = Chunk { written, ..chunk };
            let run = match keeps_memory {
                true => chunk.run,
                false => left.shortest(),
            };
            let left = Chunk { run, ..left };
            let there = left.bytes();
            let both = from.max(there.start)..to.min(there.end);
            if both.start < both.end {
                let change = Change {
                    run,
                    fresh: None,
                    owner: 0,
                    from: both.start - there.start,
                    content: Content::Zeros(both.len()),
                };
                self.write(access, &[change])
                    .map_err(|(_, error)| told(&error))?;
            }
            table.set(at, Some(left));
            if run != chunk.run {
                let gone = chunk.run.pages() - run.pages();
                file.pages.fetch_sub(u64::from(gone), Relaxed);
                self.space().narrow(chunk.run, run);
            }
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
        let mut way = self.way().map_err(|error| told(&error))?;
        let access = way.access().ok_or(Errno::IO)?;
        let mut fresh = Fresh {
            store: self,
            runs: Vec::new(),
        };
        let partial = self.take_holes(file, &bytes, &mut fresh)?;
        for part in fresh.runs.chunks(access.slots()) {
            let changes: Vec<Change<'_>> = part
                .iter()
                .map(|(piece, new, generation)| Change {
                    run: new.run,
                    fresh: Some(*generation),
                    owner: owner(inode, piece.chunk),
                    from: 0,
                    content: Content::Zeros(0),
                })
                .collect();
            let made = self.write(access, &changes);
            made.map_err(|(_, error)| told(&error))?;
        }
        for piece in partial {
            let mut layout = file.changing();
            self.fill(access, file, &mut layout.table, inode, &piece)?;
        }
        let mut layout = file.changing();
        if !keeps_size && bytes.end > file.size() {
            self.clean(access, file, &mut layout)?;
        }
        let table = &mut layout.table;
        let mut met = Vec::new();
        for (piece, new, _) in std::mem::take(&mut fresh.runs) {
            if table.get(piece.chunk).is_none() {
                table.set(piece.chunk, Some(new));
                file.pages.fetch_add(u64::from(new.run.pages()), Relaxed);
            } else {
                // Somebody has written there meanwhile.
                self.space().give(new.run);
                met.push(piece);
            }
        }
        for piece in met {
            self.fill(access, file, table, inode, &piece)?;
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
        fresh: &mut Fresh<'_, M>,
    ) -> Result<Vec<Piece>, Errno> {
        let layout = file.reading();
        if bytes.start >= bytes.end {
            return Ok(Vec::new());
        }
        let there = layout.table.within(chunks_of(bytes)).into_iter();
        let had: u64 = there
            .map(|(_, chunk)| u64::from(chunk.written.count_ones()))
            .sum();
        // Before all of them are looked at, which may be very many.
        let page = PAGE_BYTES as u64;
        let needed = bytes.end.div_ceil(page).saturating_sub(bytes.start / page);
        if needed.saturating_sub(had) > self.space().free_pages() {
            return Err(Errno::NOSPC);
        }
        let mut partial = Vec::new();
        for piece in pieces(bytes.clone()) {
            let pages = pages_of(&piece.bytes);
            match layout.table.get(piece.chunk) {
                None => {
                    let taken = self.space().take(order_for(pages));
                    let (run, generation) = taken.ok_or(Errno::NOSPC)?;
                    let new = Chunk {
                        run,
                        written: pages,
                    };
                    fresh.runs.push((piece, new, generation));
                }
                Some(chunk) if chunk.written & pages != pages => partial.push(piece),
                Some(_) => {}
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
    ) -> Result<(), Errno> {
        let has = table.get(piece.chunk).map_or(0, |chunk| chunk.written);
        let missing = pages_of(&piece.bytes) & !has;
        if missing == 0 {
            return Ok(());
        }
        let plan = self.plan_zeros(access, table, piece.chunk, missing)?;
        if let Some(generation) = plan.fresh {
            let merged = plan.merged.as_deref();
            let change = Change {
                run: plan.chunk.run,
                fresh: Some(generation),
                owner: owner(inode, piece.chunk),
                from: 0,
                content: merged.map_or(Content::Zeros(0), Content::Bytes),
            };
            if let Err((_, error)) = self.write(access, &[change]) {
                self.unset(&plan);
                return Err(told(&error));
            }
        }
        self.set(file, table, piece.chunk, &plan);
        Ok(())
    }

    fn plan_zeros(
        &self,
        access: &mut M::Access,
        table: &Table,
        chunk: u32,
        missing: u32,
    ) -> Result<Plan, Errno> {
        let first = missing.trailing_zeros() as usize * PAGE_BYTES;
        let end = (PAGES - missing.leading_zeros() as usize) * PAGE_BYTES;
        let piece = Piece {
            chunk,
            bytes: first..end,
        };
        self.plan(access, table, &piece, &[])
    }

    /// Gives all runs of a file back that nobody can reach any more.
    pub fn free(&self, file: &File) {
        let mut layout = file.changing();
        for (_, chunk) in std::mem::take(&mut *layout).table.within(0..=u32::MAX) {
            self.space().give(chunk.run);
        }
        file.pages.store(0, Relaxed);
        file.size.store(0, Relaxed);
    }
}

/// Runs that nothing leads to yet, for which chunks; those that are left go back.
struct Fresh<'s, M: Medium> {
    store: &'s Store<M>,
    runs: Vec<(Piece, Chunk, u64)>,
}

impl<M: Medium> Drop for Fresh<'_, M> {
    fn drop(&mut self) {
        for (_, chunk, _) in &self.runs {
            self.store.space().give(chunk.run);
        }
    }
}

/// How a piece is to be written.
struct Plan {
    chunk: Chunk,
    /// The generation of a run that was just taken.
    fresh: Option<u64>,
    /// A run that the new one takes the place of.
    before: Option<Run>,
    /// It is part of the new one.
    is_widened: bool,
    /// Where in the run.
    from: usize,
    /// All that the run has then, if it takes another's place.
    merged: Option<Vec<u8>>,
}

/// Whose a page is, as its block's record says.
fn owner(inode: u32, chunk: u32) -> u64 {
    u64::from(inode) << 32 | u64::from(chunk)
}

/// The bytes of each of these pieces.
fn contents<'b>(part: &[Piece], mut bytes: &'b [u8]) -> Vec<&'b [u8]> {
    let mut next = |piece: &Piece| {
        let (first, rest) = bytes.split_at(piece.bytes.len());
        bytes = rest;
        first
    };
    part.iter().map(&mut next).collect()
}

/// Bytes that were written of these pieces.
fn counted(written: Result<(), (usize, Error)>, part: &[Piece]) -> Result<usize, Errno> {
    let good = match written {
        Ok(()) => part.len(),
        Err((0, error)) => return Err(told(&error)),
        Err((good, _)) => good,
    };
    Ok(part[..good].iter().map(|it| it.bytes.len()).sum())
}

#[cfg(test)]
pub(crate) mod tests;
