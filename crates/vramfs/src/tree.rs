//! Inode tree: inodes, directories, links and attributes, without file data.
//!
//! The kernel checks permissions, for which it asks for modes, owners and access lists; this module
//! implements the tree's rules: what may replace what, which bits and times change, when an inode
//! is freed.
//!
//! Locks: changing names takes `names` exclusively, reading them shares it; an inode's own lock is
//! held for a moment, inside `names` at most, never two of them at a time.
//!
//! Whatever a caller creates that stays in host memory is counted: a link as an inode, names and
//! attribute values by their bytes.
//!
//! Invariants: an inode exists as long as a name leads to it or the kernel references it; the link
//! count of a directory is two plus its subdirectories; no directory is within itself.
//! Elsewhere: one inode (`inode`), changes of names (`names`), extended attributes (`xattr`),
//! entries (`directory`), data (`file`).

mod inode;
mod names;
mod xattr;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

pub(crate) use self::inode::SUPERUSER;
pub use self::inode::{
    AttributeChange, Credentials, InodeAttributes, KIND, METADATA_OVERHEAD_BYTES, SysResult, Time,
};
use self::inode::{DIRECTORY, DirectoryBody, Inode, InodeBody, InodeSlot, XattrMap};
pub use self::names::RenameMode;
use crate::acl::{self, AccessList};
use crate::directory::{Directory, NAME_MAX};
use crate::file::File;
use crate::pieces::LazyTable;

/// The inode of the root.
pub const ROOT: u32 = 1;

/// The limit for the metadata bytes of all names, link targets and attribute values together; it
/// grows with the maximum number of inodes.
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// The growth of the metadata limit for each inode that there can be.
pub const METADATA_BYTES_PER_INODE: u64 = 512;

/// A read updates the access time if that is this old, or older than the last change.
const ACCESS_TIME_AGE: Time = 24 * 3600 * 1_000_000_000;
/// The privilege attribute, which a file loses when it is written.
const CAPABILITY: &[u8] = b"security.capability";

/// See the module.
#[derive(Debug)]
pub struct Tree {
    nodes: LazyTable<InodeSlot, 4096>,
    names: RwLock<()>,
    free: Mutex<Vec<u32>>,
    next: AtomicU32,
    /// Inodes, plus the names of files after the first of each.
    count: AtomicU64,
    /// Bytes of names, targets and values, with the overhead of each.
    metadata: AtomicU64,
    /// Inodes without a name that the kernel still references, plus the data in `unreclaimed` and
    /// the data that is being reclaimed.
    orphans: AtomicU64,
    max_inodes: u32,
    /// Data of freed inodes, until the store takes it.
    unreclaimed: Mutex<Vec<Arc<File>>>,
    /// Held while data is taken out of `unreclaimed` to be freed.
    reclaiming: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_name(name: &[u8]) -> SysResult<()> {
    match name.len() {
        0 => Err(Errno::NOENT),
        1..=NAME_MAX => Ok(()),
        _ => Err(Errno::NAMETOOLONG),
    }
}

impl Tree {
    /// A tree with a root that belongs to the caller, for at most `max_inodes` inodes including it.
    pub fn new(max_inodes: u32, mode: u32, caller: Credentials, now: Time) -> Self {
        let max_inodes = max_inodes.clamp(1, u32::MAX - 1);
        let it = Self {
            nodes: LazyTable::new(max_inodes + 1),
            names: RwLock::new(()),
            free: Mutex::new(Vec::new()),
            next: AtomicU32::new(ROOT + 1),
            count: AtomicU64::new(1),
            metadata: AtomicU64::new(0),
            orphans: AtomicU64::new(0),
            max_inodes,
            unreclaimed: Mutex::new(Vec::new()),
            reclaiming: Mutex::new(()),
        };
        let root = Inode {
            mode: DIRECTORY | mode & !KIND,
            links: 2,
            user: caller.user,
            group: caller.group,
            lookups: 1,
            accessed: now,
            modified: now,
            changed: now,
            xattrs: None,
            body: InodeBody::Directory(Box::new(DirectoryBody {
                entries: Directory::default(),
                parent: ROOT,
            })),
        };
        *lock(&it.node(ROOT).inode) = Some(root);
        it
    }

    /// The number of inodes, and the maximum. Each further name of a file counts as one.
    pub fn inodes(&self) -> (u64, u64) {
        (self.count.load(Relaxed), u64::from(self.max_inodes))
    }

    /// The highest inode number in use so far.
    pub fn highest(&self) -> u32 {
        self.next.load(Relaxed) - 1
    }

    /// The metadata bytes of names, link targets and attribute values, and their limit.
    pub fn metadata_bytes(&self) -> (u64, u64) {
        let max_bytes = METADATA_BYTES_MAX + METADATA_BYTES_PER_INODE * u64::from(self.max_inodes);
        (self.metadata.load(Relaxed), max_bytes)
    }

    fn reserve_metadata(&self, bytes: u64) -> SysResult<()> {
        let max_bytes = self.metadata_bytes().1;
        let more = |was: u64| was.checked_add(bytes).filter(|now| *now <= max_bytes);
        let taken = self.metadata.fetch_update(Relaxed, Relaxed, more);
        taken.map(drop).map_err(|_| Errno::NOSPC)
    }

    fn release_metadata(&self, bytes: u64) {
        self.metadata.fetch_sub(bytes, Relaxed);
    }

    /// Reserves one inode or name.
    fn reserve_inode(&self) -> SysResult<()> {
        let more = |was: u64| (was < u64::from(self.max_inodes)).then_some(was + 1);
        let taken = self.count.fetch_update(Relaxed, Relaxed, more);
        taken.map(drop).map_err(|_| Errno::NOSPC)
    }

    /// The number of orphans: inodes without a name, which are freed when the kernel forgets them.
    /// A freed inode counts until its data is reclaimed.
    pub fn orphans(&self) -> u64 {
        self.orphans.load(Relaxed)
    }

    /// Frees data that can no longer be reached; what `free` refuses is tried again the next time.
    pub fn reclaim(&self, free: impl Fn(&File) -> bool) {
        // A caller of `has_unreclaimed` must not miss data that another thread has taken out.
        let _reclaiming = lock(&self.reclaiming);
        let files = std::mem::take(&mut *lock(&self.unreclaimed));
        for file in files {
            match free(&file) {
                true => drop(self.orphans.fetch_sub(1, Relaxed)),
                false => lock(&self.unreclaimed).push(file),
            }
        }
    }

    /// Whether any data that could not be freed yet satisfies `matches`.
    pub fn has_unreclaimed(&self, matches: impl Fn(&File) -> bool) -> bool {
        let _reclaiming = lock(&self.reclaiming);
        lock(&self.unreclaimed).iter().any(|file| matches(file))
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// `STALE` if there is no inode of that number.
    pub fn attributes(&self, inode: u32) -> SysResult<InodeAttributes> {
        self.with(inode, |it, generation| Ok(it.attributes(inode, generation)))
    }

    /// Looks a name up. The kernel references the inode from then on.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `NAMETOOLONG`.
    pub fn look_up(&self, parent: u32, name: &[u8]) -> SysResult<InodeAttributes> {
        let _names = self.reading();
        let inode = self.find(parent, name)?;
        self.add_lookup(inode)
    }

    /// Drops references that the kernel held to an inode.
    pub fn forget(&self, inode: u32, times: u64) {
        let gone = self.with(inode, |it, _| {
            it.lookups = it.lookups.saturating_sub(times);
            Ok(it.is_gone())
        });
        if gone == Ok(true) {
            self.free_inode(inode);
        }
    }

    /// The data of a file.
    ///
    /// # Errors
    /// `ISDIR` for a directory, `INVAL` for any other inode without data.
    pub fn file(&self, inode: u32) -> SysResult<Arc<File>> {
        self.with(inode, |it, _| match &mut it.body {
            InodeBody::File(file) => Ok(file.get_or_insert_default().clone()),
            InodeBody::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        })
    }

    /// Updates the inode of a file that was written; clears its set-user-ID and set-group-ID bits
    /// if the write came with credentials for that. Returns whether the mode has changed.
    ///
    /// # Errors
    /// `STALE`.
    pub fn note_written(
        &self,
        inode: u32,
        clears_set_id_for: Option<Credentials>,
        now: Time,
    ) -> SysResult<bool> {
        self.with(inode, |it, _| {
            it.touch(now);
            let before = it.mode;
            if let Some(clears_set_id_for) = clears_set_id_for {
                it.clear_set_id_bits(clears_set_id_for.group == it.group);
            }
            self.drop_xattr(it, CAPABILITY);
            Ok(it.mode != before)
        })
    }

    /// Updates the access time after a read, with relatime rules: once a day, and once after each
    /// change.
    ///
    /// # Errors
    /// `STALE`.
    pub fn note_read(&self, inode: u32, now: Time) -> SysResult<()> {
        self.with(inode, |it, _| {
            let changed = it.modified.max(it.changed);
            if it.accessed <= changed || it.accessed.saturating_add(ACCESS_TIME_AGE) <= now {
                it.accessed = now;
            }
            Ok(())
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `INVAL` if it is none.
    pub fn target(&self, inode: u32) -> SysResult<Vec<u8>> {
        self.with(inode, |it, _| match &it.body {
            InodeBody::Link(target) => Ok(target.to_vec()),
            _ => Err(Errno::INVAL),
        })
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `STALE`.
    pub fn change(
        &self,
        inode: u32,
        change: &AttributeChange,
        now: Time,
    ) -> SysResult<InodeAttributes> {
        self.with(inode, |it, generation| {
            if let Some(mode) = change.mode {
                it.mode = it.mode & KIND | mode & !KIND;
                if let Some(mut list) = it.xattr(acl::ACCESS).and_then(AccessList::parse) {
                    list.set_mode(mode);
                    let xattrs = it.xattrs.get_or_insert_default();
                    xattrs.insert(acl::ACCESS.into(), list.value());
                }
            }
            if change.user.is_some() || change.group.is_some() {
                it.user = change.user.unwrap_or(it.user);
                it.group = change.group.unwrap_or(it.group);
                // The new owner did not ask for the privileges of the file.
                if change.mode.is_none() && !it.is_directory() {
                    it.clear_set_id_bits(true);
                }
                self.drop_xattr(it, CAPABILITY);
            }
            it.accessed = change.accessed.unwrap_or(it.accessed);
            it.modified = change.modified.unwrap_or(it.modified);
            it.changed = now;
            Ok(it.attributes(inode, generation))
        })
    }

    /// Passes a directory's entries numbered above `after` to `visit`: number, name, attributes.
    /// Those of the directory itself and of its parent come first. The listing ends when `visit`
    /// refuses an entry. If `with_attributes` are passed on to the kernel, it references each inode
    /// that it took from then on, except these two.
    ///
    /// # Errors
    /// `NOTDIR`.
    pub fn read_directory(
        &self,
        inode: u32,
        after: u64,
        with_attributes: bool,
        mut visit: impl FnMut(u64, &[u8], &InodeAttributes) -> bool,
    ) -> SysResult<()> {
        let _names = self.reading();
        let mut part = Vec::new();
        let parent = self.with(inode, |it, _| Ok(it.directory()?.parent))?;
        for (number, name, inode) in [(1, &b"."[..], inode), (2, &b".."[..], parent)] {
            if after < number {
                // The parent of a removed directory may have been freed.
                let there = self.attributes(inode);
                let there = there.or_else(|_| self.attributes(ROOT))?;
                if !visit(number, name, &InodeAttributes { inode, ..there }) {
                    return Ok(());
                }
            }
        }
        let mut after = after.saturating_sub(2);
        loop {
            part.clear();
            self.with(inode, |it, _| {
                let entries = it.directory()?.entries.after(after).take(64);
                part.extend(entries.map(|it| (it.number, it.name.to_vec(), it.inode)));
                Ok(())
            })?;
            let Some((last, ..)) = part.last() else {
                return Ok(());
            };
            after = *last;
            for (number, name, inode) in &part {
                // The inode of an entry exists as long as names do not change.
                let there = self.attributes(*inode)?;
                if !visit(number + 2, name, &there) {
                    return Ok(());
                }
                if with_attributes {
                    self.add_lookup(*inode)?;
                }
            }
        }
    }

    /// The number of a directory's last entry, as in [`Tree::read_directory`].
    ///
    /// # Errors
    /// `NOTDIR`.
    pub fn last_entry(&self, inode: u32) -> SysResult<u64> {
        let of_itself = 2;
        self.with(
            inode,
            |it, _| Ok(it.directory()?.entries.last() + of_itself),
        )
    }

    fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, ()> {
        self.names.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, inode: u32) -> &InodeSlot {
        self.nodes.of(inode, |_| InodeSlot::default())
    }

    fn with<R>(
        &self,
        inode: u32,
        work: impl FnOnce(&mut Inode, u32) -> SysResult<R>,
    ) -> SysResult<R> {
        if inode == 0 || inode > self.max_inodes {
            return Err(Errno::STALE);
        }
        let node = self.node(inode);
        let mut it = lock(&node.inode);
        let generation = node.generation.load(Relaxed);
        work(it.as_mut().ok_or(Errno::STALE)?, generation)
    }

    fn add_lookup(&self, inode: u32) -> SysResult<InodeAttributes> {
        self.with(inode, |it, generation| {
            it.lookups += 1;
            Ok(it.attributes(inode, generation))
        })
    }

    fn find(&self, parent: u32, name: &[u8]) -> SysResult<u32> {
        check_name(name)?;
        self.with(parent, |it, _| {
            let inner = it.directory()?;
            match name {
                b"." => Ok(parent),
                b".." => Ok(inner.parent),
                _ => inner.entries.get(name).ok_or(Errno::NOENT),
            }
        })
    }

    /// Allocates an inode.
    fn allocate_inode(
        &self,
        mode: u32,
        links: u32,
        body: InodeBody,
        xattrs: Option<Box<XattrMap>>,
        caller: Credentials,
        now: Time,
    ) -> SysResult<u32> {
        let it = Inode {
            mode,
            links,
            user: caller.user,
            group: caller.group,
            lookups: 0,
            accessed: now,
            modified: now,
            changed: now,
            xattrs,
            body,
        };
        let metadata = it.metadata_bytes();
        self.reserve_inode()?;
        let free = || lock(&self.free).pop();
        let new = || {
            let next = |next: u32| (next <= self.max_inodes).then(|| next + 1);
            self.next.fetch_update(AcqRel, Relaxed, next).ok()
        };
        let allocated = self.reserve_metadata(metadata).and_then(|()| {
            let number = free().or_else(new).ok_or(Errno::NOSPC);
            if number.is_err() {
                self.release_metadata(metadata);
            }
            number
        });
        match allocated {
            Ok(inode) => *lock(&self.node(inode).inode) = Some(it),
            Err(_) => {
                self.count.fetch_sub(1, Relaxed);
            }
        }
        allocated
    }

    /// Frees an inode that no name leads to and the kernel does not reference.
    fn free_inode(&self, inode: u32) {
        let node = self.node(inode);
        let mut slot = lock(&node.inode);
        // Another thread has freed it already.
        let Some(gone) = slot.take_if(|it| it.is_gone()) else {
            return;
        };
        node.generation.fetch_add(1, AcqRel);
        drop(slot);
        self.release_metadata(gone.metadata_bytes());
        // Pushed before the count drops: a caller that may reserve an inode finds a number.
        lock(&self.free).push(inode);
        self.count.fetch_sub(1, Relaxed);
        match gone.body {
            InodeBody::File(Some(file)) => lock(&self.unreclaimed).push(file),
            _ => {
                self.orphans.fetch_sub(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
