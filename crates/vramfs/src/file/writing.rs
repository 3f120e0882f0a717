//! Writes of a file's bytes: in place where the file has them, else into runs that are allocated.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::File;
use super::loan::LoanState;
use super::range::{ChunkRange, SIZE_MAX, chunk_ranges, intersection, pages_of};
use super::steps::{AllocationPolicy, owner};
use crate::error::Error;
use crate::medium::{BlockAccess as _, Medium};
use crate::store::{Change, Content, Store};

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
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
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
            Err((0, error)) => Err(error.to_errno()),
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
            return Err(error.to_errno());
        }
        let written = steps[..good].iter().map(|it| it.len).sum();
        file.size.fetch_max(offset + written as u64, Relaxed);
        Ok(written)
    }
}

/// The lost block, if that is why the write failed.
fn lost_block(written: &Result<(), (usize, Error)>) -> Option<u32> {
    match written {
        Err((_, Error::Lost { block })) => Some(*block),
        _ => None,
    }
}
