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
//! From the bottom up: parts of a range (`range`), states of a loan (`loan`), planned writes
//! (`steps`), reads and writes (`reading`, `writing`), sizes and holes (`allocation`), copies and
//! moves within the memory (`moving`), loans (`lending`). Elsewhere: the table of extents
//! (`extents`), the pages of a run (`space`), reading and writing them (`store`).

mod allocation;
mod lending;
mod loan;
mod moving;
mod range;
mod reading;
mod steps;
mod writing;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

pub(crate) use self::lending::{FileLoan, LentRange};
use self::loan::LoanState;
pub use self::range::SIZE_MAX;
pub use self::writing::PendingWrite;
use crate::extents::ExtentTable;
use crate::layout::{PAGE_BYTES, PAGES};
use crate::medium::Medium;
use crate::store::Store;

/// Bytes that are copied or cleared before the file's lock is released for other threads.
const COPY_BYTES: u64 = 1 << 20;

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

#[cfg(test)]
pub(crate) mod tests;
