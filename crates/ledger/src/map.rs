//! The writer's memory: a mapped file, anonymous memory, or a static as a last resort.
//!
//! All the `unsafe` of this crate. The memory is accessed only as atomic words, for which any
//! content is valid and which other processes may change.
//!
//! Invariant: the words do not move until the mapping is dropped. Elsewhere: the file (`folder`),
//! the meaning of the words (`format`). Readers map nothing: a file that shrinks under a mapping
//! would kill them with SIGBUS.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Pid;

use crate::format::{FILE_BYTES, LedgerLayout};

/// The number of words in a ledger.
pub(crate) const WORDS: usize = FILE_BYTES / size_of::<u64>();

/// Memory for a process in which even an anonymous mapping fails. Its ledgers share it.
static LAST_RESORT: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// A counter of changes in a process, starting at 1; it reads as 0 in the child of a fork. Data
/// cached together with the count is valid as long as the count is the same, which one load checks.
#[derive(Debug)]
#[repr(transparent)]
pub struct ChangeCount(AtomicU64);

impl ChangeCount {
    /// The current count. A thread that sees a change counted also sees the change.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Counts a change, after it was made; does nothing in the child of a fork.
    pub fn add(&self) {
        let more = |count: u64| (count != 0).then(|| count + 1);
        let _none_in_a_child = self.0.fetch_update(Release, Relaxed, more);
    }
}

/// A ledger's words.
#[derive(Debug)]
pub(crate) struct LedgerMap {
    /// At least [`WORDS`] words, readable and writable, zero when made.
    words: NonNull<AtomicU64>,
    /// Whether `drop` unmaps them.
    owned: bool,
    guard: ForkGuard,
}

// SAFETY: the memory is accessed only as atomics, from any thread alike, and is not tied to the
// thread that mapped it.
unsafe impl Send for LedgerMap {}
// SAFETY: as above; `LedgerMap` has no other content that `&self` could change.
unsafe impl Sync for LedgerMap {}

impl LedgerMap {
    /// Maps `file`, which the caller has made [`FILE_BYTES`] long.
    pub(crate) fn file(file: &File) -> io::Result<LedgerMap> {
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

    /// Anonymous memory that no other process sees.
    pub(crate) fn anonymous() -> LedgerMap {
        map_private(FILE_BYTES)
            .and_then(Self::owning)
            .unwrap_or(LedgerMap {
                words: NonNull::from(&LAST_RESORT).cast(),
                owned: false,
                guard: ForkGuard::asking(),
            })
    }

    fn owning(address: *mut AtomicU64) -> io::Result<LedgerMap> {
        Ok(LedgerMap {
            words: NonNull::new(address).ok_or(io::ErrorKind::OutOfMemory)?,
            owned: true,
            guard: ForkGuard::new(),
        })
    }

    /// The words as named fields.
    #[inline]
    pub(crate) fn layout(&self) -> &LedgerLayout<AtomicU64> {
        // SAFETY: `words` points to `FILE_BYTES` bytes, the size of a `LedgerLayout`, that live as
        // long as `self`. Mappings are page-aligned and `LAST_RESORT` is aligned as an `AtomicU64`,
        // which is the alignment of `LedgerLayout` (asserted in `format`). It consists of atomics
        // only, so every content is valid and may change.
        unsafe { self.words.cast::<LedgerLayout<AtomicU64>>().as_ref() }
    }

    /// The words as a slice.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: as for `layout`: `WORDS` aligned atomics that outlive the
        // borrow.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), WORDS) }
    }

    /// Whether this is the process that created it, and not a child of a fork.
    #[inline]
    pub(crate) fn is_mine(&self) -> bool {
        self.guard.is_mine()
    }

    /// The process's change counter; `None` where forks are detected in another way.
    pub(crate) fn changes(&self) -> Option<&ChangeCount> {
        self.guard.changes()
    }
}

impl Drop for LedgerMap {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: `owning` got the address from a mapping of this length,
            // nothing else unmaps it, and every borrow of it has ended.
            let unmapped = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), FILE_BYTES) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

/// Detects a fork without a system call: a page of its own that the kernel zeroes in the child.
#[derive(Debug)]
struct ForkGuard {
    /// In that page; `None` where the kernel does not support wiping it (before Linux 4.14).
    changes: Option<NonNull<ChangeCount>>,
    pid: Pid,
}

const PAGE_BYTES: usize = 4096;

impl ForkGuard {
    fn new() -> ForkGuard {
        let mut guard = ForkGuard::asking();
        let Ok(page) = map_private(PAGE_BYTES) else {
            return guard;
        };
        // SAFETY: the page was mapped just above, so nothing else uses it; the advice changes only
        // the child's copy.
        let advised =
            unsafe { rustix::mm::madvise(page.cast(), PAGE_BYTES, Advice::LinuxWipeOnFork) };
        guard.changes = NonNull::new(page.cast()).filter(|_| advised.is_ok());
        match guard.changes() {
            Some(ChangeCount(count)) => count.store(1, Relaxed),
            None => unmap_page(page),
        }
        guard
    }

    /// A guard that calls the kernel each time.
    fn asking() -> ForkGuard {
        ForkGuard {
            changes: None,
            pid: rustix::process::getpid(),
        }
    }

    #[inline]
    fn changes(&self) -> Option<&ChangeCount> {
        // SAFETY: it points to the start of the page, which is mapped, aligned and accessed as an
        // atomic only, until `drop`; a child has it too, zeroed.
        self.changes.map(|changes| unsafe { changes.as_ref() })
    }

    #[inline]
    fn is_mine(&self) -> bool {
        match self.changes() {
            Some(ChangeCount(count)) => count.load(Relaxed) != 0,
            None => rustix::process::getpid() == self.pid,
        }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        if let Some(changes) = self.changes {
            unmap_page(changes.as_ptr().cast());
        }
    }
}

/// Unmaps a guard's page, which is not used any more.
fn unmap_page(page: *mut AtomicU64) {
    // SAFETY: both callers pass a page that `ForkGuard::new` mapped, and forget it.
    let unmapped = unsafe { rustix::mm::munmap(page.cast(), PAGE_BYTES) };
    debug_assert!(unmapped.is_ok(), "{unmapped:?}");
}

/// Maps `len_bytes` of private zeroed memory.
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
    #[cfg_attr(
        miri,
        ignore = "Miri has no madvise, by which the guard's page is made"
    )]
    fn words_and_layout_are_the_same_memory() {
        let map = LedgerMap::anonymous();
        assert!(map.owned && map.guard.changes.is_some() && map.is_mine());
        assert_eq!(map.words().len(), WORDS);
        map.layout().header.pid.store(7, Relaxed);
        map.layout().devices[15].level_bytes.store(8, Relaxed);
        assert_eq!(map.words()[3].load(Relaxed), 7);
        assert_eq!(map.words()[64 + 15 * 64].load(Relaxed), 8);
    }

    #[test]
    fn changes_are_counted_except_in_a_forked_child() {
        let changes = ChangeCount(AtomicU64::new(1));
        changes.add();
        assert_eq!(changes.now(), 2);
        let in_a_child = ChangeCount(AtomicU64::new(0));
        in_a_child.add();
        assert_eq!(in_a_child.now(), 0);
    }

    #[test]
    fn a_guard_without_its_page_recognizes_its_process_too() {
        assert!(ForkGuard::asking().is_mine());
    }
}
