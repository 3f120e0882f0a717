//! Requests of the kernel, each answered from the tree and the store.
//!
//! A request names inodes by number, and is answered by the thread that has read it: names and attributes by the
//! tree, bytes by the store, out of the staging or into it. There are no open files here: all that a request needs is in it, but for where
//! a listing ends (`listings`).
//! Permissions are the kernel's (`default_permissions`), as are locks, pipes, sockets and devices.
//!
//! Invariants: the kernel hears of an inode as often as the tree counts (`Tree::look_up` and what makes names; entries
//! of a directory that it took); only this kernel changes anything, so it may keep what it was told, and hears of what
//! changed without its asking.
//! Elsewhere: what the kernel says and hears (`wire`, `calls`), the threads (`serve`), where it is mounted (`mount`).

mod calls;
mod crew;
mod listings;
mod serve;
mod wire;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use fuser::{INodeNo, Notifier};
use rustix::io::Errno;

use self::listings::Listings;
pub(crate) use self::serve::{Terms, serve};
use crate::control::Step;
use crate::error::Error;
use crate::export::{Exports, Lender};
use crate::file::{File, Seek, told};
use crate::layout::{DATA_BYTES, ORDERS, PAGE_BYTES};
use crate::medium::Medium;
use crate::meter::Meter;
use crate::store::Store;
use crate::tools::{FAULTS_MOST, Resize, STEP};
use crate::tree::{Answer, Attributes, Caller, Change, Move, ROOT, Time, Tree};

/// The kernel asks for no more bytes at once.
pub(crate) const REQUEST_BYTES: u32 = 1 << 20;
/// Blocks that a request's bytes lie in, which need not begin where one does.
pub(crate) const SLOTS: usize = REQUEST_BYTES as usize / DATA_BYTES + 1;
const _: () = assert!(SLOTS == ORDERS);
/// How long the kernel may keep what it was told.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Bytes that one request copies; who wants more asks again, and can be interrupted between.
const COPY_MAX: u64 = 64 << 20;
/// How long the kernel may be forgetting, and how long it may take between one and the next; also where those that are left were
/// not forgotten before.
const SETTLES: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_millis(20);
const PATIENCE_LESS: Duration = Duration::from_millis(5);
/// An attribute of the root that nobody has set: figures, a line each.
pub(crate) const FIGURES: &str = "fercuda.figures";

/// What the kernel may keep of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Nothing: each read and write comes here, many at a time.
    None,
    /// Pages, in the host's memory.
    Keep,
}

/// A tree and a store, as the kernel asks for them.
pub(crate) struct Requests<M: Medium> {
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Arc<Store<M>>,
    pub(crate) cache: Cache,
    /// What does not change, of the figures.
    pub(crate) facts: String,
    /// Where the kernel hears of what it did not ask.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    /// So many inodes without a name were not forgotten when that was waited for.
    pub(crate) held: AtomicU64,
    /// Threads that wait for some to be forgotten, of so many that answer.
    pub(crate) waiting: AtomicUsize,
    pub(crate) threads: usize,
    pub(crate) reads: Meter,
    pub(crate) writes: Meter,
    /// Who may have tools work on it, beside root.
    pub(crate) owner: u32,
    /// Files that are other processes' too.
    pub(crate) exports: Arc<Exports>,
    pub(crate) listings: Listings,
}

pub(crate) fn now() -> Time {
    let nanoseconds = |it: Duration| Time::try_from(it.as_nanos()).unwrap_or(Time::MAX);
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(behind) => nanoseconds(behind),
        Err(before) => -nanoseconds(before.duration()),
    }
}

impl<M: Medium + 'static> Requests<M> {
    /// Gives back what nobody can reach any more.
    fn sweep(&self) {
        self.tree.sweep(|file| self.store.free(file));
    }

    /// Waits for the kernel to forget what has just lost its last name: it says so behind the call that has removed
    /// the name, and another thread may be reading that. As long as something is forgotten every now and then; those that
    /// nobody forgets are open, and who asks next waits for them less long. Whether anything was forgotten.
    fn settle(&self) -> bool {
        let begin = self.tree.nameless();
        // One thread at least is left to read what is waited for.
        let waiting = self.waiting.fetch_add(1, Relaxed);
        if begin > 0 && waiting + 1 < self.threads {
            let held = self.held.fetch_min(begin, Relaxed).min(begin);
            let start = Instant::now();
            let (mut left, mut since) = (begin, start);
            while left > 0 && start.elapsed() < SETTLES {
                let patience = match left > held {
                    true => PATIENCE,
                    false => PATIENCE_LESS,
                };
                if since.elapsed() >= patience {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
                let now = self.tree.nameless();
                if now < left {
                    since = Instant::now();
                }
                left = now;
            }
            self.held.store(left, Relaxed);
        }
        self.waiting.fetch_sub(1, Relaxed);
        self.sweep();
        self.tree.nameless() < begin
    }

    /// Tries again what found no room, if there may be some now.
    fn with_room<R>(&self, mut work: impl FnMut() -> Answer<R>) -> Answer<R> {
        match work() {
            Err(Errno::NOSPC) if self.settle() => work(),
            answer => answer,
        }
    }

    /// Makes whatever the mode says.
    fn make(
        &self,
        parent: u32,
        name: &[u8],
        mode: u32,
        device: u32,
        caller: Caller,
    ) -> Answer<Attributes> {
        self.with_room(|| self.tree.make(parent, name, mode, device, caller, now()))
    }

    /// Makes a file that has no name.
    fn make_nameless(&self, parent: u32, mode: u32, caller: Caller) -> Answer<Attributes> {
        self.with_room(|| self.tree.make_nameless(parent, mode, caller, now()))
    }

    /// Makes a symbolic link.
    fn make_link(
        &self,
        parent: u32,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Answer<Attributes> {
        self.with_room(|| self.tree.make_link(parent, name, target, caller, now()))
    }

    /// Gives an inode another name.
    fn add_name(&self, inode: u32, parent: u32, name: &[u8]) -> Answer<Attributes> {
        self.with_room(|| self.tree.link(inode, parent, name, now()))
    }

    /// Removes a name of anything but a directory.
    fn remove_name(&self, parent: u32, name: &[u8]) -> Answer<()> {
        let answer = self.tree.unlink(parent, name, now());
        self.sweep();
        answer
    }

    /// Moves a name, as `renameat2` says.
    fn move_name(
        &self,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        flags: u32,
        caller: Caller,
    ) -> Answer<()> {
        let leaves = flags & libc::RENAME_WHITEOUT != 0;
        let how = match flags & !libc::RENAME_WHITEOUT {
            0 => Move::Replace,
            libc::RENAME_NOREPLACE => Move::KeepOther,
            libc::RENAME_EXCHANGE if !leaves => Move::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let whiteout = leaves.then_some(caller);
        let answer = self.with_room(|| self.tree.rename(from, to, how, whiteout, now()));
        self.sweep();
        answer
    }

    /// The kernel no longer knows an inode, as many times as it says.
    fn forget_inode(&self, inode: u32, times: u64) {
        self.tree.forget(inode, times);
        self.sweep();
    }

    /// See [`Tree::read_directory`].
    fn list(
        &self,
        inode: u32,
        behind: u64,
        is_told: bool,
        visit: impl FnMut(u64, &[u8], &Attributes) -> bool,
    ) -> Answer<()> {
        self.tree.note_read(inode, now())?;
        self.tree.read_directory(inode, behind, is_told, visit)
    }

    /// What a symbolic link says.
    fn follow(&self, inode: u32) -> Answer<Vec<u8>> {
        self.tree.note_read(inode, now())?;
        self.tree.target(inode)
    }

    /// Gives bytes of a file to `take` where they are.
    fn bring(
        &self,
        inode: u32,
        offset: u64,
        len: usize,
        is_noted: bool,
        take: impl FnOnce(&[u8]),
    ) -> Answer<()> {
        let file = self.tree.file(inode)?;
        if is_noted {
            self.tree.note_read(inode, now())?;
        }
        self.store.read_file(&file, offset, len, take)
    }

    /// Writes bytes into a file, and says how many to `tell`: not before they are there if who writes them `waits` for that. See
    /// [`Tree::note_written`] and [`Store::write_file_telling`].
    fn put(
        &self,
        inode: u32,
        offset: u64,
        bytes: &[u8],
        taker: Option<Caller>,
        waits: bool,
        tell: &mut dyn FnMut(usize),
    ) -> Answer<()> {
        let file = self.tree.file(inode)?;
        let mut noted = Ok(());
        let mut note = |written| {
            noted = self.note_written(inode, taker);
            if noted.is_ok() {
                tell(written);
            }
        };
        let (store, file) = (&self.store, &*file);
        self.with_room(|| match waits {
            true => store.write_file(file, inode, offset, bytes).map(&mut note),
            false => store.write_file_telling(file, inode, offset, bytes, &mut note),
        })?;
        noted
    }

    /// Copies bytes of one file into another; how many.
    fn copy(&self, from: (u32, u64), to: (u32, u64), len: u64) -> Answer<u64> {
        let (source, target) = (self.tree.file(from.0)?, self.tree.file(to.0)?);
        let (source, target) = ((&*source, from.1), (&*target, to.0, to.1));
        let copied = self.with_room(|| self.store.copy(source, target, len.min(COPY_MAX)))?;
        if copied > 0 {
            self.tree.note_read(from.0, now())?;
            self.note_written(to.0, None)?;
        }
        Ok(copied)
    }

    /// Where data or a hole begins.
    fn find(&self, inode: u32, offset: i64, whence: i32) -> Answer<u64> {
        let what = match whence {
            libc::SEEK_DATA => Ok(Seek::Data),
            libc::SEEK_HOLE => Ok(Seek::Hole),
            _ => Err(Errno::INVAL),
        };
        let from = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        self.tree.file(inode)?.seek(from, what?)
    }

    /// Sets an extended attribute, as `setxattr` says.
    fn set_value(
        &self,
        inode: u32,
        name: &[u8],
        value: &[u8],
        flags: i32,
        caller: Caller,
    ) -> Answer<()> {
        let must_be = match flags {
            libc::XATTR_CREATE => Some(false),
            libc::XATTR_REPLACE => Some(true),
            _ => None,
        };
        check_value_name(name)?;
        self.tree
            .set_value(inode, name, value, must_be, caller, now())
    }

    /// Bytes of a file have changed.
    fn note_written(&self, inode: u32, taker: Option<Caller>) -> Answer<()> {
        if self.tree.note_written(inode, taker, now())?
            && let Some(notifier) = self.notifier.get()
        {
            // Attributes alone, which the kernel forgets without waiting for anything. It fails if the
            // inode is not known there, and then there is nothing to forget.
            notifier
                .inval_inode(INodeNo(u64::from(inode)), -1, 0)
                .unwrap_or_default();
        }
        Ok(())
    }

    fn figures(&self) -> String {
        self.settle();
        let counters = self.store.counters();
        let space = self.store.space();
        let (inodes, most) = self.tree.inodes();
        let (text, most_text) = self.tree.text();
        let page = PAGE_BYTES as u64;
        let rows = [
            ("size_bytes", space.pages() * page),
            ("used_bytes", space.used_pages() * page),
            // What was given to it: also where a device has failed, or a block is lost.
            (
                "offered_bytes",
                u64::from(self.store.retired().start) * DATA_BYTES as u64,
            ),
            ("inodes", most),
            ("used_inodes", inodes),
            ("metadata_bytes", most_text),
            ("used_metadata_bytes", text),
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
        change: &mut Change,
        size: Option<u64>,
        now: Time,
    ) -> Answer<Attributes> {
        if let Some(size) = size {
            self.store.truncate(&*self.tree.file(inode)?, size)?;
            change.modified = change.modified.or(Some(now));
        }
        self.tree.change(inode, change, now)
    }

    /// A step of a tool's: what it answers, or an error with what it says of it.
    fn step(&self, inode: u32, user: u32, step: Step) -> Result<[u64; 4], (Errno, [u64; 2])> {
        let plain = |error: Errno| (error, [0; 2]);
        let failed = |error: Error| match error {
            Error::Room {
                needed_bytes,
                free_bytes,
                ..
            } => (Errno::NOMEM, [needed_bytes, free_bytes]),
            error => plain(told(&error)),
        };
        match step {
            Step::Scrub { from } => {
                let from = u32::try_from(from).unwrap_or(u32::MAX);
                let it = self.store.scrub(from, STEP, u32::MAX).map_err(failed)?;
                Ok([it.next, it.looked, it.corrected, it.lost])
            }
            Step::Inject { fault, count, seed } => {
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
                let count = count.min(FAULTS_MOST);
                let done = self.store.inject(&blocks, fault, count, &mut random);
                Ok([done.map_err(failed)?, blocks.len() as u64, 0, 0])
            }
            Step::Resize { blocks } => {
                self.settle();
                match self.store.resize(blocks) {
                    Ok(()) => Ok([0; 4]),
                    Err(Resize::Full(pages)) => Err((Errno::NOSPC, [pages, 0])),
                    Err(Resize::Most(blocks)) => Err((Errno::FBIG, [blocks, 0])),
                    Err(Resize::Memory(error)) => Err(failed(error)),
                }
            }
            Step::Move { from } => {
                let (next, moved) = self.empty(from).map_err(plain)?;
                Ok([next, moved, 0, 0])
            }
            Step::Trim => {
                self.sweep();
                let left = self.store.trim();
                Ok([u64::from(left), self.store.medium().bytes(), 0, 0])
            }
            Step::Export { name, writes } => {
                let lender = Lender {
                    store: self.store.clone(),
                    tree: self.tree.clone(),
                    exports: self.exports.clone(),
                    notifier: self.notifier.clone(),
                    file: self.tree.file(inode).map_err(plain)?,
                    inode,
                    writes,
                };
                lender.begin(name, user).map_err(plain)?;
                Ok([u64::from(self.owner), 0, 0, 0])
            }
        }
    }

    /// Moves what inodes from one on have in retired blocks, for a moment; where the next step begins, 0 at the end, and how many
    /// pages were moved.
    fn empty(&self, from: u64) -> Answer<(u64, u64)> {
        let begin = Instant::now();
        let most = self.tree.highest();
        let retired = self.store.retired();
        let (mut moved, mut is_lost, mut is_lent) = (0, false, false);
        let mut inode = u32::try_from(from).unwrap_or(u32::MAX).max(ROOT);
        while inode <= most {
            if let Ok(file) = self.tree.file(inode) {
                match self.store.evacuate(&file, inode, retired.start) {
                    Ok(pages) => moved += pages,
                    // Others are moved all the same.
                    Err(Errno::IO) => is_lost = true,
                    Err(Errno::BUSY) => is_lent |= self.store.has_behind(&file, retired.start),
                    Err(error) => return Err(error),
                }
            }
            inode += 1;
            if begin.elapsed() >= STEP {
                break;
            }
        }
        if inode > most {
            // They have no inode any more, and are lent.
            self.sweep();
            let is_behind = |file: &File| self.store.has_behind(file, retired.start);
            is_lent |= self.tree.keeps(is_behind);
        }
        match (is_lost, is_lent) {
            (true, _) => Err(Errno::IO),
            (_, true) => Err(Errno::BUSY),
            _ => Ok((if inode > most { 0 } else { u64::from(inode) }, moved)),
        }
    }

    fn allocate(&self, inode: u32, offset: u64, len: u64, mode: i32) -> Answer<()> {
        // The store refuses what no file can have; there is nothing to punch in it.
        let bytes = offset..offset.saturating_add(len);
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let file = self.tree.file(inode)?;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => self.with_room(|| self.store.allocate(&file, inode, bytes.clone(), keeps_size))?,
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => self.store.punch(&file, bytes)?,
            libc::FALLOC_FL_ZERO_RANGE => {
                self.with_room(|| self.store.zero(&file, inode, bytes.clone(), keeps_size))?;
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        self.note_written(inode, None)
    }
}

/// Names in `system.` mean something, and of those there are the access lists alone.
fn check_value_name(name: &[u8]) -> Answer<()> {
    let is_list = matches!(name, crate::acl::ACCESS | crate::acl::DEFAULT);
    let known = [&b"user."[..], b"trusted.", b"security."];
    match is_list || known.iter().any(|prefix| name.starts_with(prefix)) {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests;
