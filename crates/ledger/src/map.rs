//! The writer's memory: a mapped file, anonymous memory, or none to be had.
//!
//! All the `unsafe` of this crate. The memory is only ever seen as atomic
//! words, for which any content is valid and which others may change.
//!
//! Invariant: the words stay where they are until the mapping is dropped.
//! Elsewhere: the file (`folder`), what the words mean (`format`). Readers map
//! nothing: a file that shrinks under a mapping would kill them.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Pid;

use crate::format::{FILE_BYTES, Layout};

/// Words of a ledger.
pub(crate) const WORDS: usize = FILE_BYTES / size_of::<u64>();

/// Memory for a process that cannot even map some. Its ledgers share it.
static LAST_RESORT: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Counts what changes in a process, from 1 on; in the child of a fork it says 0.
/// Whoever keeps it beside what is true as long as nothing changes sees by one load
/// that it is true still.
#[derive(Debug)]
#[repr(transparent)]
pub struct Changes(AtomicU64);

impl Changes {
    /// The count. What was true of a change is seen by who sees it counted.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Counts one, after it was made; none in the child of a fork.
    pub fn add(&self) {
        let more = |count: u64| (count != 0).then(|| count + 1);
        let _none_in_a_child = self.0.fetch_update(Release, Relaxed, more);
    }
}

/// A ledger's words.
#[derive(Debug)]
pub(crate) struct Map {
    /// At least [`WORDS`] words, readable and writable, zero when made.
    words: NonNull<AtomicU64>,
    /// Whether `drop` unmaps them.
    owned: bool,
    guard: Guard,
}

// SAFETY: the memory is seen only as atomics, from any thread alike, and is
// not tied to the thread that mapped it.
unsafe impl Send for Map {}
// SAFETY: as above; `Map` has no other content that `&self` could change.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `file`, which the caller has made [`FILE_BYTES`] long.
    pub(crate) fn file(file: &File) -> io::Result<Map> {
        // SAFETY: a null address lets the kernel choose, so no memory in use
        // is replaced. The result is used as atomics only, since other
        // processes may have the file mapped too.
        let address = unsafe {
            rustix::mm::mmap(
                null_mut(),
                FILE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        Self::owning(address.cast())
    }

    /// Memory that no other process sees.
    pub(crate) fn anonymous() -> Map {
        map_private(FILE_BYTES)
            .and_then(Self::owning)
            .unwrap_or(Map {
                words: NonNull::from(&LAST_RESORT).cast(),
                owned: false,
                guard: Guard::asking(),
            })
    }

    fn owning(address: *mut AtomicU64) -> io::Result<Map> {
        Ok(Map {
            words: NonNull::new(address).ok_or(io::ErrorKind::OutOfMemory)?,
            owned: true,
            guard: Guard::new(),
        })
    }

    /// The words by name.
    #[inline]
    pub(crate) fn layout(&self) -> &Layout<AtomicU64> {
        // SAFETY: `words` leads to `FILE_BYTES` bytes, the size of a `Layout`,
        // that live as long as `self`. Mappings are aligned to pages and
        // `LAST_RESORT` as an `AtomicU64`, which is the alignment of `Layout`
        // (asserted in `format`). It consists of atomics only, so every
        // content is valid and may change.
        unsafe { self.words.cast::<Layout<AtomicU64>>().as_ref() }
    }

    /// The words by number.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: as for `layout`: `WORDS` aligned atomics that outlive the
        // borrow.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), WORDS) }
    }

    /// Whether this is the process that made it, and not a child of a fork.
    #[inline]
    pub(crate) fn is_mine(&self) -> bool {
        self.guard.is_mine()
    }

    /// What changes in this process; none where a fork is known otherwise.
    pub(crate) fn changes(&self) -> Option<&Changes> {
        self.guard.changes()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: `owning` got the address from a mapping of this length,
            // nothing else unmaps it, and every borrow of it has ended.
            let unmapped = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), FILE_BYTES) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

/// Knows a fork without asking the kernel: a page of its own which the kernel
/// empties in the child.
#[derive(Debug)]
struct Guard {
    /// In such a page; none where the kernel does not do that (before Linux
    /// 4.14).
    changes: Option<NonNull<Changes>>,
    pid: Pid,
}

const PAGE_BYTES: usize = 4096;

impl Guard {
    fn new() -> Guard {
        let mut guard = Guard::asking();
        let Ok(page) = map_private(PAGE_BYTES) else {
            return guard;
        };
        // SAFETY: the page was mapped just now, so that nothing else uses it;
        // the advice changes only what a child will find in it.
        let advised =
            unsafe { rustix::mm::madvise(page.cast(), PAGE_BYTES, Advice::LinuxWipeOnFork) };
        guard.changes = NonNull::new(page.cast()).filter(|_| advised.is_ok());
        match guard.changes() {
            Some(Changes(count)) => count.store(1, Relaxed),
            None => unmap_page(page),
        }
        guard
    }

    /// One that asks the kernel each time.
    fn asking() -> Guard {
        Guard {
            changes: None,
            pid: rustix::process::getpid(),
        }
    }

    #[inline]
    fn changes(&self) -> Option<&Changes> {
        // SAFETY: it leads to the start of the page, which is mapped, aligned and
        // seen as an atomic only, until `drop`; a child has it too, emptied.
        self.changes.map(|changes| unsafe { changes.as_ref() })
    }

    #[inline]
    fn is_mine(&self) -> bool {
        match self.changes() {
            Some(Changes(count)) => count.load(Relaxed) != 0,
            None => rustix::process::getpid() == self.pid,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(changes) = self.changes {
            unmap_page(changes.as_ptr().cast());
        }
    }
}

/// Unmaps a guard's page, which nobody uses any more.
fn unmap_page(page: *mut AtomicU64) {
    // SAFETY: both callers pass a page that `Guard::new` mapped, and forget it.
    let unmapped = unsafe { rustix::mm::munmap(page.cast(), PAGE_BYTES) };
    debug_assert!(unmapped.is_ok(), "{unmapped:?}");
}

/// Maps `len_bytes` of zeros that are this process's own.
fn map_private(len_bytes: usize) -> io::Result<*mut AtomicU64> {
    // SAFETY: a null address lets the kernel choose, so no memory in use is
    // replaced.
    let address = unsafe {
        rustix::mm::mmap_anonymous(
            null_mut(),
            len_bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    Ok(address.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_layout_are_the_same_memory() {
        let map = Map::anonymous();
        assert!(map.owned && map.guard.changes.is_some() && map.is_mine());
        assert_eq!(map.words().len(), WORDS);
        map.layout().header.pid.store(7, Relaxed);
        map.layout().devices[15].level_bytes.store(8, Relaxed);
        assert_eq!(map.words()[3].load(Relaxed), 7);
        assert_eq!(map.words()[64 + 15 * 64].load(Relaxed), 8);
    }

    #[test]
    fn changes_are_counted_but_in_a_child() {
        let changes = Changes(AtomicU64::new(1));
        changes.add();
        assert_eq!(changes.now(), 2);
        let in_a_child = Changes(AtomicU64::new(0));
        in_a_child.add();
        assert_eq!(in_a_child.now(), 0);
    }

    #[test]
    fn a_guard_without_its_page_knows_its_process_too() {
        assert!(Guard::asking().is_mine());
    }
}
