//! Writes of a file's bytes: in place where the file has them, else into runs that are allocated.

use std::collections::BTreeSet;
use std::sync::RwLockReadGuard;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::loan::LoanState;
use super::range::{ChunkRange, SIZE_MAX, chunk_ranges, intersection, pages_of};
use super::steps::{AllocationPolicy, owner};
use super::{File, FileLayout};
use crate::error::Error;
use crate::medium::{BlockAccess as _, Medium};
use crate::store::{AccessGuard, Change, Content, StartedWrite, Store};

/// A write of a file that was started ([`Store::start_write_file`]).
///
/// It holds the locks of what it changes, so another thread that accesses those bytes waits until
/// it is finished; its own thread finishes it before another call of the store. Dropped, it is
/// finished; a failure of which the caller was not informed is counted then, and reported by
/// [`Store::sync_file`].
#[must_use = "dropped, it reports a failure to `sync_file` alone"]
pub struct PendingWrite<'a, M: Medium> {
    state: WriteState<'a>,
    /// Whether the caller has the result.
    is_reported: bool,
    store: &'a Store<M>,
    file: &'a File,
    inode: u32,
    offset: u64,
    bytes: &'a [u8],
    access: AccessGuard<'a, M>,
}

/// How far a write has come.
enum WriteState<'a> {
    /// The memory was given all of it.
    Started(StartedOverwrite<'a>),
    /// As before, and only a failure of the memory can lose any of it.
    Committed(StartedOverwrite<'a>),
    /// It has ended.
    Done(Result<usize, Errno>),
}

/// Bytes before the end of a file that are being overwritten in place.
struct StartedOverwrite<'a> {
    write: StartedWrite<'a>,
    changes: Vec<Change<'a>>,
    layout: RwLockReadGuard<'a, FileLayout>,
}

impl<M: Medium> PendingWrite<'_, M> {
    /// Waits until only a crash or a failure of the device can lose the bytes, and returns their
    /// number. That may be before they are in their blocks.
    ///
    /// # Errors
    /// As [`Store::write_file`]; then the write has ended.
    pub fn committed(&mut self) -> Result<usize, Errno> {
        // Only looked at until it is known: a panic leaves what `drop` has to finish.
        let is_committed = match &self.state {
            WriteState::Started(it) => {
                Store::<M>::is_write_committed(self.access.access(), &it.changes, &it.write)
            }
            WriteState::Committed(_) => true,
            WriteState::Done(_) => false,
        };
        if !is_committed {
            return self.written();
        }
        let done = WriteState::Done(Err(Errno::IO));
        self.state = match std::mem::replace(&mut self.state, done) {
            WriteState::Started(it) => WriteState::Committed(it),
            other => other,
        };
        self.is_reported = true;
        Ok(self.bytes.len())
    }

    /// Waits until the bytes are written, and returns their number.
    ///
    /// # Errors
    /// As [`Store::write_file`]; `IO` if the device has failed since the write was committed, which
    /// [`Store::sync_file`] reports from then on.
    pub fn written(&mut self) -> Result<usize, Errno> {
        let done = WriteState::Done(Err(Errno::IO));
        let written = match std::mem::replace(&mut self.state, done) {
            WriteState::Started(it) => self.store.write_parts(
                self.access.access(),
                self.file,
                self.inode,
                self.offset,
                self.bytes,
                Some(Some(it)),
            ),
            WriteState::Committed(it) => {
                // The caller was informed, so nothing can be retried elsewhere.
                let access = self.access.access();
                self.store.finish_committed(access, it, self.bytes.len())
            }
            WriteState::Done(written) => written,
        };
        self.state = WriteState::Done(written);
        self.is_reported = true;
        written
    }

    /// Waits until the bytes are written, and ends the write: other threads may access them.
    ///
    /// # Errors
    /// As [`PendingWrite::written`].
    pub fn finish(mut self) -> Result<usize, Errno> {
        self.written()
    }
}

impl<M: Medium> Drop for PendingWrite<'_, M> {
    fn drop(&mut self) {
        let was_reported = self.is_reported;
        let written = self.written();
        if !was_reported && written != Ok(self.bytes.len()) {
            let unkept = &self.store.counters().unkept_writes;
            unkept.fetch_add(1, Relaxed);
        }
    }
}

impl<M: Medium> Store<M> {
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
        self.start_write_file(file, inode, offset, bytes)?.finish()
    }

    /// As [`Store::write_file`], but returns while the device is at it, if the bytes have their
    /// pages already and one launch overwrites all of them. Any other write has ended.
    ///
    /// # Errors
    /// `FBIG`; the medium's, without an access to it. What else prevents the write is reported by
    /// the value.
    pub fn start_write_file<'a>(
        &'a self,
        file: &'a File,
        inode: u32,
        offset: u64,
        bytes: &'a [u8],
    ) -> Result<PendingWrite<'a, M>, Errno> {
        let room = SIZE_MAX.checked_sub(offset).filter(|room| *room > 0);
        let len = room.ok_or(Errno::FBIG)?.min(bytes.len() as u64);
        let (bytes, end) = (&bytes[..len as usize], offset + len);
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        let part: Vec<ChunkRange> = chunk_ranges(offset..end).take(access.slots() + 1).collect();
        let first = (1..=access.slots())
            .contains(&part.len())
            .then(|| self.start_overwrite(access, file, inode, offset, &part, bytes));
        let state = match first {
            Some(Some(it)) => WriteState::Started(it),
            first => WriteState::Done(self.write_parts(access, file, inode, offset, bytes, first)),
        };
        Ok(PendingWrite {
            state,
            is_reported: false,
            store: self,
            file,
            inode,
            offset,
            bytes,
            access: way,
        })
    }

    /// Writes bytes, as many at a time as an access has slots, and returns their number. `first` is
    /// the result of [`Store::start_overwrite`] for all of them, if that was tried.
    fn write_parts(
        &self,
        access: &mut M::Access,
        file: &File,
        inode: u32,
        offset: u64,
        bytes: &[u8],
        mut first: Option<Option<StartedOverwrite<'_>>>,
    ) -> Result<usize, Errno> {
        let end = offset + bytes.len() as u64;
        let mut done = 0;
        let mut has_ample_space = None;
        let mut lost = BTreeSet::new();
        while done < bytes.len() {
            let at = offset + done as u64;
            let part: Vec<ChunkRange> = chunk_ranges(at..end).take(access.slots()).collect();
            let len: usize = part.iter().map(|it| it.bytes.len()).sum();
            let given = &bytes[done..done + len];
            let known = lost.len();
            let overwrite = match (first.take(), known) {
                (Some(tried), _) => tried,
                (None, 0) => self.start_overwrite(access, file, inode, at, &part, given),
                (None, _) => None,
            };
            let written = match overwrite {
                Some(it) => self.finish_overwrite(access, it, &mut lost),
                None => {
                    let chunks = || chunk_ranges(offset..end).count() as u64;
                    let has_ample_space =
                        *has_ample_space.get_or_insert_with(|| self.has_ample_space(chunks()));
                    self.write_exclusive(
                        access,
                        file,
                        inode,
                        at,
                        &part,
                        given,
                        has_ample_space,
                        &mut lost,
                    )
                }
            };
            done += written.unwrap_or(0);
            match written {
                Ok(written) if written == len => {}
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

    /// Starts to overwrite bytes before the end of the file that were written before; `None` if
    /// they are anything else.
    fn start_overwrite<'a>(
        &'a self,
        access: &mut M::Access,
        file: &'a File,
        inode: u32,
        offset: u64,
        part: &[ChunkRange],
        bytes: &'a [u8],
    ) -> Option<StartedOverwrite<'a>> {
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
        Some(StartedOverwrite {
            write: self.start_write(access, &changes),
            changes,
            layout,
        })
    }

    /// Waits for an overwrite, and returns the number of its first bytes that were written. Adds
    /// the block that was found lost to `lost`.
    fn finish_overwrite(
        &self,
        access: &mut M::Access,
        it: StartedOverwrite<'_>,
        lost: &mut BTreeSet<u32>,
    ) -> Result<usize, Errno> {
        let written = self.finish_write(access, &it.changes, it.write);
        lost.extend(lost_block(&written));
        let lens = |good: usize| it.changes[..good].iter().map(|it| it.content.len()).sum();
        match written {
            Ok(()) => Ok(lens(it.changes.len())),
            Err((0, error)) => Err(error.to_errno()),
            Err((good, _)) => Ok(lens(good)),
        }
    }

    /// As [`Store::finish_overwrite`], of `len` bytes of which the caller knows that they are
    /// committed.
    fn finish_committed(
        &self,
        access: &mut M::Access,
        it: StartedOverwrite<'_>,
        len: usize,
    ) -> Result<usize, Errno> {
        let StartedOverwrite {
            write,
            changes,
            layout,
        } = it;
        // Counted while other threads still wait for the file's lock, also by a panic.
        let mut failure = CountedFailure(Some(&self.counters().unkept_writes));
        let written = self.finish_write(access, &changes, write);
        if written.is_ok() {
            failure.0 = None;
        }
        drop(failure);
        drop(layout);
        written.map(|()| len).map_err(|_| Errno::IO)
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
            return Err(error.to_errno());
        }
        let written = steps[..good].iter().map(|it| it.len).sum();
        file.size.fetch_max(offset + written as u64, Relaxed);
        Ok(written)
    }
}

/// Failure of an acknowledged write, counted when this is dropped unless it is disarmed before.
struct CountedFailure<'a>(Option<&'a AtomicU64>);

impl Drop for CountedFailure<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_add(1, Relaxed);
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
