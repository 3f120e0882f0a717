//! Request handler: answers each FUSE request from the tree and the store.
//!
//! A request names inodes by number, and is answered by the worker thread that has read it: names
//! and attributes by the tree, bytes by the store, through a staging buffer. Open files have no
//! state here: a request carries all that it needs, except where a directory listing ends
//! (`listings`). The kernel checks permissions (`default_permissions`) and implements locks, pipes,
//! sockets and devices.
//!
//! Invariants: the tree counts each inode reference that the kernel holds (`Tree::look_up`, the
//! operations that create names, and directory entries the kernel took); only requests change
//! anything, so the kernel may cache what it was answered, and is notified of changes that it did
//! not ask for.
//! Elsewhere: the protocol (`wire`, `calls`), the worker threads (`serve`), the mount point
//! (`mount`).

mod calls;
mod listings;
mod serve;
mod wire;
mod workers;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fastrand::Rng;
use fuser::{INodeNo, Notifier};
use rustix::io::Errno;

use self::listings::Listings;
pub(crate) use self::serve::{InitHandshake, serve};
use crate::clock::now;
use crate::control::ControlRequest;
use crate::error::Error;
use crate::export::{Exports, FileLender};
use crate::file::{File, PendingWrite, Seek};
use crate::layout::{DATA_BYTES, INLINE_JOBS_MAX, PAGE_BYTES};
use crate::medium::Medium;
use crate::meter::Meter;
use crate::store::Store;
use crate::tools::{CALL_DURATION, MAX_FAULTS, ResizeError};
use crate::tree::{
    AttributeChange, Credentials, InodeAttributes, ROOT, RenameMode, SysResult, Time, Tree,
};

/// The maximum size of a request's data.
pub(crate) const REQUEST_BYTES: u32 = 1 << 20;
/// Blocks that a request's bytes can overlap; they need not start at a block's start.
pub(crate) const SLOTS: usize = REQUEST_BYTES as usize / DATA_BYTES + 1;
const _: () = assert!(SLOTS == INLINE_JOBS_MAX);
/// How long the kernel may cache names and attributes.
const CACHE_TTL: Duration = Duration::from_secs(24 * 3600);
/// Bytes that one request copies at most: the caller repeats the call for more, and can be
/// interrupted in between.
const COPY_MAX: u64 = 64 << 20;
/// The longest wait for the kernel to forget inodes, and the longest pause between two of them; the
/// shorter pause holds if the remaining inodes were not forgotten during the last wait.
const FORGET_TIMEOUT: Duration = Duration::from_secs(1);
const FORGET_PAUSE: Duration = Duration::from_millis(300);
const FORGET_PAUSE_SHORT: Duration = Duration::from_millis(5);
/// A virtual attribute of the root: statistics, a line each.
pub(crate) const FIGURES: &str = "fercuda.figures";

/// What the kernel caches of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// Nothing: each read and write becomes a request, many in flight at a time.
    None,
    /// Pages, in host memory.
    Keep,
}

/// A tree and a store, served to the kernel.
pub(crate) struct RequestHandler<M: Medium> {
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Arc<Store<M>>,
    pub(crate) cache: PageCache,
    /// The constant part of the statistics.
    pub(crate) facts: String,
    /// Sends the kernel notifications that it did not ask for.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    /// Orphans that were not forgotten during the last wait for that.
    pub(crate) unforgotten: AtomicU64,
    /// Workers that wait for inodes to be forgotten, and the number of all workers.
    pub(crate) forget_waiters: AtomicUsize,
    pub(crate) threads: usize,
    pub(crate) reads: Meter,
    pub(crate) writes: Meter,
    /// The user that may run administrative commands, besides root.
    pub(crate) owner: u32,
    /// Files that are shared with other processes.
    pub(crate) exports: Arc<Exports>,
    pub(crate) listings: Listings,
}

impl<M: Medium + 'static> RequestHandler<M> {
    /// Frees data that can no longer be reached.
    fn reclaim(&self) {
        self.tree.reclaim(|file| self.store.free(file));
    }

    /// Waits for the kernel to forget orphans, inodes that have just lost their last name. The
    /// kernel sends the forget after the call that removes the name, and another worker may be
    /// reading it. The wait goes on as long as inodes are forgotten at short intervals; those that
    /// are not are open, and the next call waits for them for a shorter time.
    fn wait_for_forgets(&self) {
        let begin = self.tree.orphans();
        // At least one worker is left to read the forgets.
        let waiting = self.forget_waiters.fetch_add(1, Relaxed);
        if begin > 0 && waiting + 1 < self.threads {
            let unforgotten = self.unforgotten.fetch_min(begin, Relaxed).min(begin);
            let start = Instant::now();
            let (mut left, mut since) = (begin, start);
            while left > 0 && start.elapsed() < FORGET_TIMEOUT {
                let pause = match left > unforgotten {
                    true => FORGET_PAUSE,
                    false => FORGET_PAUSE_SHORT,
                };
                if since.elapsed() >= pause {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
                let now = self.tree.orphans();
                if now < left {
                    since = Instant::now();
                }
                left = now;
            }
            self.unforgotten.store(left, Relaxed);
        }
        self.forget_waiters.fetch_sub(1, Relaxed);
        self.reclaim();
    }

    /// Retries an operation that found no space. The last orphan may have been forgotten since it
    /// looked, so a wait that finds none is no reason to give up.
    fn retry_after_forgets<R>(&self, mut work: impl FnMut() -> SysResult<R>) -> SysResult<R> {
        match work() {
            Err(Errno::NOSPC) => {
                self.wait_for_forgets();
                work()
            }
            answer => answer,
        }
    }

    /// Creates an inode of the kind in `mode`.
    fn make(
        &self,
        parent: u32,
        name: &[u8],
        mode: u32,
        device: u32,
        caller: Credentials,
    ) -> SysResult<InodeAttributes> {
        self.retry_after_forgets(|| self.tree.make(parent, name, mode, device, caller, now()))
    }

    /// Creates a file without a name.
    fn make_unnamed(
        &self,
        parent: u32,
        mode: u32,
        caller: Credentials,
    ) -> SysResult<InodeAttributes> {
        self.retry_after_forgets(|| self.tree.make_unnamed(parent, mode, caller, now()))
    }

    /// Creates a symbolic link.
    fn make_link(
        &self,
        parent: u32,
        name: &[u8],
        target: &[u8],
        caller: Credentials,
    ) -> SysResult<InodeAttributes> {
        self.retry_after_forgets(|| self.tree.make_link(parent, name, target, caller, now()))
    }

    /// Adds a name to an inode.
    fn add_name(&self, inode: u32, parent: u32, name: &[u8]) -> SysResult<InodeAttributes> {
        self.retry_after_forgets(|| self.tree.link(inode, parent, name, now()))
    }

    /// Removes a name of anything but a directory.
    fn remove_name(&self, parent: u32, name: &[u8]) -> SysResult<()> {
        let answer = self.tree.unlink(parent, name, now());
        self.reclaim();
        answer
    }

    /// Moves a name, as `renameat2` defines it.
    fn move_name(
        &self,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        flags: u32,
        caller: Credentials,
    ) -> SysResult<()> {
        let leaves_whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let how = match flags & !libc::RENAME_WHITEOUT {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE if !leaves_whiteout => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let whiteout = leaves_whiteout.then_some(caller);
        let answer = self.retry_after_forgets(|| self.tree.rename(from, to, how, whiteout, now()));
        self.reclaim();
        answer
    }

    /// Drops references that the kernel held to an inode.
    fn forget_inode(&self, inode: u32, times: u64) {
        self.tree.forget(inode, times);
        self.reclaim();
    }

    /// See [`Tree::read_directory`].
    fn list(
        &self,
        inode: u32,
        after: u64,
        with_attributes: bool,
        visit: impl FnMut(u64, &[u8], &InodeAttributes) -> bool,
    ) -> SysResult<()> {
        self.tree.note_read(inode, now())?;
        self.tree
            .read_directory(inode, after, with_attributes, visit)
    }

    /// The target of a symbolic link.
    fn read_link(&self, inode: u32) -> SysResult<Vec<u8>> {
        self.tree.note_read(inode, now())?;
        self.tree.target(inode)
    }

    /// Reads bytes of a file and passes them to `take` in place.
    fn read(
        &self,
        inode: u32,
        offset: u64,
        len: usize,
        is_noted: bool,
        take: impl FnOnce(&[u8]),
    ) -> SysResult<()> {
        let file = self.tree.file(inode)?;
        if is_noted {
            self.tree.note_read(inode, now())?;
        }
        self.store.read_file(&file, offset, len, take)
    }

    /// Writes bytes into a file, and returns their number and the write, once they are committed:
    /// if `is_sync`, once they are written. See [`Tree::note_written`] and [`PendingWrite`].
    fn write<'a>(
        &'a self,
        (inode, file): (u32, &'a File),
        offset: u64,
        bytes: &'a [u8],
        clears_suid_for: Option<Credentials>,
        is_sync: bool,
    ) -> SysResult<(usize, PendingWrite<'a, M>)> {
        let (written, pending) = self.retry_after_forgets(|| {
            let mut pending = self.store.start_write_file(file, inode, offset, bytes)?;
            let written = match is_sync {
                true => pending.written()?,
                false => pending.committed()?,
            };
            Ok((written, pending))
        })?;
        self.note_write(inode, clears_suid_for)?;
        Ok((written, pending))
    }

    /// Copies bytes of one file into another; returns their number.
    fn copy(&self, from: (u32, u64), to: (u32, u64), len: u64) -> SysResult<u64> {
        let (source, target) = (self.tree.file(from.0)?, self.tree.file(to.0)?);
        let (source, target) = ((&*source, from.1), (&*target, to.0, to.1));
        let copied =
            self.retry_after_forgets(|| self.store.copy(source, target, len.min(COPY_MAX)))?;
        if copied > 0 {
            self.tree.note_read(from.0, now())?;
            self.note_write(to.0, None)?;
        }
        Ok(copied)
    }

    /// The offset of the next data or hole.
    fn seek(&self, inode: u32, offset: i64, whence: i32) -> SysResult<u64> {
        let what = match whence {
            libc::SEEK_DATA => Ok(Seek::Data),
            libc::SEEK_HOLE => Ok(Seek::Hole),
            _ => Err(Errno::INVAL),
        };
        let from = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        self.tree.file(inode)?.seek(from, what?)
    }

    /// Sets an extended attribute, as `setxattr` defines it.
    fn set_xattr(
        &self,
        inode: u32,
        name: &[u8],
        value: &[u8],
        flags: i32,
        caller: Credentials,
    ) -> SysResult<()> {
        let must_be = match flags {
            libc::XATTR_CREATE => Some(false),
            libc::XATTR_REPLACE => Some(true),
            _ => None,
        };
        check_xattr_name(name)?;
        self.tree
            .set_xattr(inode, name, value, must_be, caller, now())
    }

    /// Updates the attributes of a file after its bytes have changed.
    fn note_write(&self, inode: u32, clears_suid_for: Option<Credentials>) -> SysResult<()> {
        if self.tree.note_written(inode, clears_suid_for, now())?
            && let Some(notifier) = self.notifier.get()
        {
            // Only attributes, which the kernel invalidates without blocking. It fails if the
            // kernel does not know the inode, and then there is nothing to invalidate.
            notifier
                .inval_inode(INodeNo(u64::from(inode)), -1, 0)
                .unwrap_or_default();
        }
        Ok(())
    }

    fn figures(&self) -> String {
        self.wait_for_forgets();
        let counters = self.store.counters();
        let space = self.store.space();
        let (inodes, max_inodes) = self.tree.inodes();
        let (metadata, max_metadata) = self.tree.metadata_bytes();
        let page = PAGE_BYTES as u64;
        let rows = [
            ("size_bytes", space.pages() * page),
            ("used_bytes", space.used_pages() * page),
            // All blocks offered to it, including those on a failed device, and lost ones.
            (
                "offered_bytes",
                u64::from(self.store.retired().start) * DATA_BYTES as u64,
            ),
            ("inodes", max_inodes),
            ("used_inodes", inodes),
            ("metadata_bytes", max_metadata),
            ("used_metadata_bytes", metadata),
            ("corrected_blocks", counters.corrected_blocks.load(Relaxed)),
            (
                "corrected_symbols",
                counters.corrected_symbols.load(Relaxed),
            ),
            ("corrected_rows", counters.corrected_rows.load(Relaxed)),
            (
                "corrected_records",
                counters.corrected_records.load(Relaxed),
            ),
            ("lost_blocks", counters.lost_blocks.load(Relaxed)),
            ("scrubbed_blocks", counters.scrubbed_blocks.load(Relaxed)),
            ("scrub_rounds", counters.scrub_rounds.load(Relaxed)),
            ("scrub_failures", counters.scrub_failures.load(Relaxed)),
            ("unkept_writes", counters.unkept_writes.load(Relaxed)),
            ("device_bytes", self.store.medium().bytes()),
            ("exported_files", self.exports.count() as u64),
            ("read_bytes", self.reads.bytes()),
            ("written_bytes", self.writes.bytes()),
        ];
        let rows = rows.iter().map(|(name, value)| format!("{name} {value}\n"));
        let mut all = self.facts.clone() + &rows.collect::<String>();
        for (name, meter) in [("read", &self.reads), ("write", &self.writes)] {
            all += &format!("{name}_latency {}\n", meter.times());
        }
        all + &self.store.medium().figures()
    }

    fn set(
        &self,
        inode: u32,
        change: &mut AttributeChange,
        size: Option<u64>,
        now: Time,
    ) -> SysResult<InodeAttributes> {
        if let Some(size) = size {
            self.store.truncate(&*self.tree.file(inode)?, size)?;
            change.modified = change.modified.or(Some(now));
        }
        self.tree.change(inode, change, now)
    }

    /// Runs one step of an administrative command; returns its answer, or an error with details.
    fn step(
        &self,
        inode: u32,
        user: u32,
        step: ControlRequest,
    ) -> Result<[u64; 4], (Errno, [u64; 2])> {
        let plain = |error: Errno| (error, [0; 2]);
        let failed = |error: Error| match error {
            Error::Room {
                needed_bytes,
                free_bytes,
                ..
            } => (Errno::NOMEM, [needed_bytes, free_bytes]),
            error => plain(error.to_errno()),
        };
        match step {
            ControlRequest::Scrub { from } => {
                let from = u32::try_from(from).unwrap_or(u32::MAX);
                let it = self
                    .store
                    .scrub(from, CALL_DURATION, u32::MAX)
                    .map_err(failed)?;
                Ok([it.next, it.verified, it.corrected, it.lost])
            }
            ControlRequest::Inject { fault, count, seed } => {
                if !self.store.medium().has_code() {
                    return Err(plain(Errno::OPNOTSUPP));
                }
                let blocks = match inode {
                    ROOT => self.store.used_blocks(),
                    _ => {
                        let file = self.tree.file(inode).map_err(plain)?;
                        self.store.blocks_of(&file)
                    }
                };
                let mut random = Rng::with_seed(seed);
                let count = count.min(MAX_FAULTS);
                let done = self.store.inject(&blocks, fault, count, &mut random);
                Ok([done.map_err(failed)?, blocks.len() as u64, 0, 0])
            }
            ControlRequest::Resize { blocks } => {
                self.wait_for_forgets();
                match self.store.resize(blocks) {
                    Ok(()) => Ok([0; 4]),
                    Err(ResizeError::InUse(pages)) => Err((Errno::NOSPC, [pages, 0])),
                    Err(ResizeError::TooLarge(blocks)) => Err((Errno::FBIG, [blocks, 0])),
                    Err(ResizeError::Medium(error)) => Err(failed(error)),
                }
            }
            ControlRequest::Move { from } => {
                let (next, moved) = self.evacuate_slice(from).map_err(plain)?;
                Ok([next, moved, 0, 0])
            }
            ControlRequest::Trim => {
                self.reclaim();
                let left = self.store.trim();
                Ok([u64::from(left), self.store.medium().bytes(), 0, 0])
            }
            ControlRequest::Export { name, writes } => {
                let lender = FileLender {
                    store: self.store.clone(),
                    tree: self.tree.clone(),
                    exports: self.exports.clone(),
                    notifier: self.notifier.clone(),
                    file: self.tree.file(inode).map_err(plain)?,
                    inode,
                    writes,
                };
                lender.start(name, user).map_err(plain)?;
                Ok([u64::from(self.owner), 0, 0, 0])
            }
        }
    }

    /// Moves extents out of retired blocks for one time slice, for inodes from `from` on; returns
    /// where the next step begins, 0 at the end, and the number of pages moved.
    fn evacuate_slice(&self, from: u64) -> SysResult<(u64, u64)> {
        let begin = Instant::now();
        let last_inode = self.tree.highest();
        let retired = self.store.retired();
        let (mut moved, mut is_lost, mut is_lent) = (0, false, false);
        let mut inode = u32::try_from(from).unwrap_or(u32::MAX).max(ROOT);
        while inode <= last_inode {
            if let Ok(file) = self.tree.file(inode) {
                match self.store.evacuate(&file, inode, retired.start) {
                    Ok(pages) => moved += pages,
                    // The remaining inodes are moved all the same.
                    Err(Errno::IO) => is_lost = true,
                    Err(Errno::BUSY) => {
                        is_lent |= self.store.uses_blocks_from(&file, retired.start)
                    }
                    Err(error) => return Err(error),
                }
            }
            inode += 1;
            if begin.elapsed() >= CALL_DURATION {
                break;
            }
        }
        if inode > last_inode {
            // Files without an inode that are still lent.
            self.reclaim();
            let is_retired = |file: &File| self.store.uses_blocks_from(file, retired.start);
            is_lent |= self.tree.has_unreclaimed(is_retired);
        }
        match (is_lost, is_lent) {
            (true, _) => Err(Errno::IO),
            (_, true) => Err(Errno::BUSY),
            _ => Ok((
                if inode > last_inode {
                    0
                } else {
                    u64::from(inode)
                },
                moved,
            )),
        }
    }

    fn allocate(&self, inode: u32, offset: u64, len: u64, mode: i32) -> SysResult<()> {
        // The store rejects ranges that no file can have; punching a hole there does nothing.
        let bytes = offset..offset.saturating_add(len);
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let file = self.tree.file(inode)?;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => self.retry_after_forgets(|| {
                self.store.allocate(&file, inode, bytes.clone(), keeps_size)
            })?,
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => self.store.punch(&file, bytes)?,
            libc::FALLOC_FL_ZERO_RANGE => {
                self.retry_after_forgets(|| {
                    self.store.zero(&file, inode, bytes.clone(), keeps_size)
                })?;
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        self.note_write(inode, None)
    }
}

/// Names in `system.` have defined meanings; of those only the access lists are supported.
fn check_xattr_name(name: &[u8]) -> SysResult<()> {
    let is_list = matches!(name, crate::acl::ACCESS | crate::acl::DEFAULT);
    let known = [&b"user."[..], b"trusted.", b"security."];
    match is_list || known.iter().any(|prefix| name.starts_with(prefix)) {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests;
