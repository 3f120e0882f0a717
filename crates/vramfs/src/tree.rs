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
//! Elsewhere: extended attributes (`xattr`), entries (`directory`), data (`file`).

mod xattr;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::acl::{self, AccessList, PERMISSIONS};
use crate::directory::{Directory, NAME_MAX};
use crate::file::File;
use crate::pieces::LazyTable;

/// The result of an operation; the error is the errno that the system call returns.
pub type SysResult<T> = Result<T, Errno>;

/// The inode of the root.
pub const ROOT: u32 = 1;

/// The file type bits of a mode.
pub const KIND: u32 = libc::S_IFMT;
const DIRECTORY: u32 = libc::S_IFDIR;
const FILE: u32 = libc::S_IFREG;
const LINK: u32 = libc::S_IFLNK;
const SET_GROUP: u32 = libc::S_ISGID;
const SET_USER: u32 = libc::S_ISUID;
const GROUP_EXECUTES: u32 = libc::S_IXGRP;

/// The user that may do what others may not.
pub(crate) const SUPERUSER: u32 = 0;

/// The limit for the metadata bytes of all names, link targets and attribute values together; it
/// grows with the maximum number of inodes.
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// The growth of the metadata limit for each inode that there can be.
pub const METADATA_BYTES_PER_INODE: u64 = 512;
/// The metadata bytes that a name or a value costs besides its own.
pub const METADATA_OVERHEAD_BYTES: usize = 64;
/// The maximum link count of an inode.
const LINK_MAX: u32 = i32::MAX as u32;
/// The link count of an inode that was created without a name, and may get one.
const UNNAMED: u32 = u32::MAX;

/// Nanoseconds since 1970.
pub type Time = i64;
/// A read updates the access time if that is this old, or older than the last change.
const ACCESS_TIME_AGE: Time = 24 * 3600 * 1_000_000_000;
/// The privilege attribute, which a file loses when it is written.
const CAPABILITY: &[u8] = b"security.capability";

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeAttributes {
    /// The inode's number.
    pub inode: u32,
    /// The generation: distinguishes inodes that had the same number.
    pub generation: u32,
    /// File type and permissions.
    pub mode: u32,
    /// The number of names that lead to it.
    pub links: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The device number of a device node.
    pub device: u32,
    /// The size in bytes.
    pub size: u64,
    /// Pages of memory that it has.
    pub pages: u64,
    /// Access time.
    pub accessed: Time,
    /// Modification time: the last change of its data.
    pub modified: Time,
    /// Change time: the last change of data or attributes.
    pub changed: Time,
}

/// The credentials of a request's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// Permissions to mask out of what the caller creates, unless the directory has a default
    /// access list.
    pub umask: u32,
}

/// The attributes to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttributeChange {
    /// Permissions; the file type stays.
    pub mode: Option<u32>,
    /// The owner.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// Access time.
    pub accessed: Option<Time>,
    /// Modification time.
    pub modified: Option<Time>,
}

/// What a rename does if the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// The target is replaced.
    Replace,
    /// The rename fails.
    NoReplace,
    /// The two names are exchanged.
    Exchange,
}

#[derive(Debug)]
enum InodeBody {
    /// `None` until the data is first accessed.
    File(Option<Arc<File>>),
    Directory(Box<DirectoryBody>),
    Link(Box<Box<[u8]>>),
    Device(u32),
    Other,
}

#[derive(Debug, Default)]
struct DirectoryBody {
    entries: Directory,
    parent: u32,
}

type XattrMap = BTreeMap<Box<[u8]>, Box<[u8]>>;

#[derive(Debug)]
struct Inode {
    mode: u32,
    /// The number of names, or [`UNNAMED`].
    links: u32,
    user: u32,
    group: u32,
    /// The references that the kernel holds: lookups it was answered, less those it has forgotten.
    lookups: u64,
    accessed: Time,
    modified: Time,
    changed: Time,
    xattrs: Option<Box<XattrMap>>,
    body: InodeBody,
}

#[derive(Debug, Default)]
struct InodeSlot {
    generation: AtomicU32,
    inode: Mutex<Option<Inode>>,
}

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

/// The metadata bytes of a text of this length.
fn metadata_cost(bytes: usize) -> u64 {
    (bytes + METADATA_OVERHEAD_BYTES) as u64
}

fn xattr_bytes(xattrs: &XattrMap) -> u64 {
    let each = xattrs
        .iter()
        .map(|(name, value)| metadata_cost(name.len() + value.len()));
    each.sum()
}

impl Inode {
    fn attributes(&self, inode: u32, generation: u32) -> InodeAttributes {
        InodeAttributes {
            inode,
            generation,
            mode: self.mode,
            links: match self.has_name() {
                true => self.links,
                false => 0,
            },
            user: self.user,
            group: self.group,
            device: match self.body {
                InodeBody::Device(device) => device,
                _ => 0,
            },
            size: match &self.body {
                InodeBody::File(file) => file.as_ref().map_or(0, |file| file.size()),
                InodeBody::Link(target) => target.len() as u64,
                _ => 0,
            },
            pages: match &self.body {
                InodeBody::File(Some(file)) => file.pages(),
                _ => 0,
            },
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
        }
    }

    fn has_name(&self) -> bool {
        !matches!(self.links, 0 | UNNAMED)
    }

    /// No name leads to it, and the kernel does not reference it.
    fn is_gone(&self) -> bool {
        !self.has_name() && self.lookups == 0
    }

    fn directory(&mut self) -> SysResult<&mut DirectoryBody> {
        match &mut self.body {
            InodeBody::Directory(inner) => Ok(inner),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, InodeBody::Directory(_))
    }

    /// Clears the set-user-ID bit, and the set-group-ID bit: that one stays for a caller of its
    /// group if the group cannot execute the file.
    fn clear_set_id_bits(&mut self, is_of_group: bool) {
        self.mode &= !SET_USER;
        if self.mode & GROUP_EXECUTES != 0 || !is_of_group {
            self.mode &= !SET_GROUP;
        }
    }

    fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.as_ref()?.get(name).map(|value| &**value)
    }

    /// The metadata bytes of its attributes, and of its target if it is a link.
    fn metadata_bytes(&self) -> u64 {
        let target = match &self.body {
            InodeBody::Link(target) => metadata_cost(target.len()),
            _ => 0,
        };
        target + self.xattrs.as_ref().map_or(0, |xattrs| xattr_bytes(xattrs))
    }

    /// Updates the times after a change of its entries or bytes.
    fn touch(&mut self, now: Time) {
        self.modified = now;
        self.changed = now;
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

    /// Creates a file, a directory, a FIFO, a socket or a device node, by the type in `mode`. The
    /// kernel references it from then on.
    ///
    /// # Errors
    /// `EXIST`, `NOENT`, `NOTDIR`, `NAMETOOLONG`, `NOSPC` if a limit is reached, `MLINK`.
    pub fn make(
        &self,
        parent: u32,
        name: &[u8],
        mode: u32,
        device: u32,
        caller: Credentials,
        now: Time,
    ) -> SysResult<InodeAttributes> {
        let body = match mode & KIND {
            DIRECTORY => InodeBody::Directory(Box::new(DirectoryBody {
                entries: Directory::default(),
                parent,
            })),
            libc::S_IFBLK | libc::S_IFCHR => InodeBody::Device(device),
            FILE | 0 => InodeBody::File(None),
            _ => InodeBody::Other,
        };
        let mode = if mode & KIND == 0 { mode | FILE } else { mode };
        self.create_entry(parent, name, mode, body, caller, now)
    }

    /// Creates a file without a name, as [`Tree::make`] would in that directory. It may get a name
    /// ([`Tree::link`]); without one it is freed when the kernel forgets it.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `NOSPC` if a limit is reached.
    pub fn make_unnamed(
        &self,
        parent: u32,
        mode: u32,
        caller: Credentials,
        now: Time,
    ) -> SysResult<InodeAttributes> {
        let _names = self.reading();
        let (mode, caller, xattrs) = self.inherit(parent, mode, caller)?;
        let inode =
            self.allocate_inode(mode, UNNAMED, InodeBody::File(None), xattrs, caller, now)?;
        self.orphans.fetch_add(1, Relaxed);
        self.add_lookup(inode)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As for [`Tree::make`].
    pub fn make_link(
        &self,
        parent: u32,
        name: &[u8],
        target: &[u8],
        caller: Credentials,
        now: Time,
    ) -> SysResult<InodeAttributes> {
        match target.len() {
            0 => return Err(Errno::NOENT),
            1..4096 => {}
            _ => return Err(Errno::NAMETOOLONG),
        }
        let body = InodeBody::Link(Box::new(target.into()));
        self.create_entry(parent, name, LINK | 0o777, body, caller, now)
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

    /// Adds a name to an inode, the first one if it was created without.
    ///
    /// # Errors
    /// `PERM` for a directory; `NOENT` if it has lost its last name; `MLINK`; as for
    /// [`Tree::make`].
    pub fn link(
        &self,
        inode: u32,
        parent: u32,
        name: &[u8],
        now: Time,
    ) -> SysResult<InodeAttributes> {
        check_name(name)?;
        let _names = self.writing();
        let links = self.with(inode, |it, _| match (it.is_directory(), it.links) {
            (true, _) => Err(Errno::PERM),
            // It is about to be freed.
            (_, 0) => Err(Errno::NOENT),
            (_, UNNAMED) => Ok(0),
            (_, LINK_MAX..) => Err(Errno::MLINK),
            (_, links) => Ok(links),
        })?;
        match self.find(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => self.check_not_removed(parent)?,
            Err(error) => return Err(error),
        }
        // The first name is counted with the inode.
        let is_first = links == 0;
        if !is_first {
            self.reserve_inode()?;
        }
        if let Err(error) = self.add_entry(parent, name, inode, 0, now) {
            self.count.fetch_sub(u64::from(!is_first), Relaxed);
            return Err(error);
        }
        self.orphans.fetch_sub(u64::from(is_first), Relaxed);
        self.with(inode, |it, _| {
            it.links = links + 1;
            it.changed = now;
            Ok(())
        })?;
        self.add_lookup(inode)
    }

    /// Removes a name that leads to anything but a directory.
    ///
    /// # Errors
    /// `ISDIR`, `NOENT`, `NOTDIR`, `NAMETOOLONG`.
    pub fn unlink(&self, parent: u32, name: &[u8], now: Time) -> SysResult<()> {
        let _names = self.writing();
        let inode = self.find(parent, name)?;
        if self.with(inode, |it, _| Ok(it.is_directory()))? {
            return Err(Errno::ISDIR);
        }
        self.remove_entry(parent, name, now)?;
        self.drop_link(inode, now);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NOTEMPTY`, `NOTDIR`, `NOENT`, `NAMETOOLONG`, `INVAL` for `.`.
    pub fn remove_directory(&self, parent: u32, name: &[u8], now: Time) -> SysResult<()> {
        match name {
            b"." => return Err(Errno::INVAL),
            b".." => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let _names = self.writing();
        let inode = self.find(parent, name)?;
        self.check_empty(inode)?;
        self.remove_entry(parent, name, now)?;
        self.drop_directory(inode, parent, now);
        Ok(())
    }

    /// Moves a name. With `whiteout`, a device node with number 0 and these credentials stays under
    /// the old name, which overlay filesystems treat as absent; not valid for an exchange.
    ///
    /// # Errors
    /// `NOENT`; `EXIST` if nothing may be replaced; `ISDIR`, `NOTDIR` and `NOTEMPTY` if the target
    /// cannot be replaced; `INVAL` for moving a directory into itself; as for [`Tree::make`].
    pub fn rename(
        &self,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        how: RenameMode,
        whiteout: Option<Credentials>,
        now: Time,
    ) -> SysResult<()> {
        check_name(to.1)?;
        let _names = self.writing();
        let inode = self.find(from.0, from.1)?;
        let is_directory = self.with(inode, |it, _| Ok(it.is_directory()))?;
        self.check_not_removed(to.0)?;
        let other = match self.find(to.0, to.1) {
            Ok(other) => Some(other),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        if is_directory && self.is_within(to.0, inode)? {
            return Err(Errno::INVAL);
        }
        if other == Some(inode) {
            return match how {
                RenameMode::NoReplace => Err(Errno::EXIST),
                _ => Ok(()),
            };
        }
        let Some(other) = other else {
            if how == RenameMode::Exchange {
                return Err(Errno::NOENT);
            }
            let left = self.make_whiteout(from.0, whiteout, now)?;
            let released = left.map_or(metadata_cost(from.1.len()), |_| 0);
            if let Err(error) = self.add_entry(to.0, to.1, inode, released, now) {
                left.map_or(Ok(()), |left| self.discard_inode(left))?;
                return Err(error);
            }
            self.vacate_entry(from.0, from.1, left, now)?;
            self.update_moved(inode, is_directory, from.0, to.0, now);
            return Ok(());
        };
        let is_other_directory = self.with(other, |it, _| Ok(it.is_directory()))?;
        match how {
            RenameMode::NoReplace => return Err(Errno::EXIST),
            RenameMode::Exchange => {
                if is_other_directory && self.is_within(from.0, other)? {
                    return Err(Errno::INVAL);
                }
                self.replace_entry(to.0, to.1, inode, now)?;
                self.replace_entry(from.0, from.1, other, now)?;
                self.update_moved(inode, is_directory, from.0, to.0, now);
                self.update_moved(other, is_other_directory, to.0, from.0, now);
                return Ok(());
            }
            RenameMode::Replace => {}
        }
        match (is_directory, is_other_directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) => self.check_empty(other)?,
            (false, false) => {}
        }
        let left = self.make_whiteout(from.0, whiteout, now)?;
        self.replace_entry(to.0, to.1, inode, now)?;
        self.vacate_entry(from.0, from.1, left, now)?;
        match is_other_directory {
            true => self.drop_directory(other, to.0, now),
            false => self.drop_link(other, now),
        }
        self.update_moved(inode, is_directory, from.0, to.0, now);
        Ok(())
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

    /// Adds a name. Reserves its metadata bytes except for `released` bytes, which the caller is
    /// about
    /// to free.
    fn add_entry(
        &self,
        parent: u32,
        name: &[u8],
        inode: u32,
        released: u64,
        now: Time,
    ) -> SysResult<()> {
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EXIST);
        }
        self.check_not_removed(parent)?;
        let taken = metadata_cost(name.len()).saturating_sub(released);
        self.reserve_metadata(taken)?;
        let added = self.with(parent, |it, _| {
            match it.directory()?.entries.insert(name, inode) {
                Ok(true) => {}
                Ok(false) => return Err(Errno::EXIST),
                Err(_) => return Err(Errno::NOSPC),
            }
            it.touch(now);
            Ok(())
        });
        match added {
            Ok(()) => {
                _ = self
                    .metadata
                    .fetch_add(metadata_cost(name.len()) - taken, Relaxed)
            }
            Err(_) => self.release_metadata(taken),
        }
        added
    }

    fn remove_entry(&self, parent: u32, name: &[u8], now: Time) -> SysResult<()> {
        self.with(parent, |it, _| {
            it.directory()?.entries.remove(name).ok_or(Errno::NOENT)?;
            self.release_metadata(metadata_cost(name.len()));
            it.touch(now);
            Ok(())
        })
    }

    /// As [`Tree::remove_entry`]; or the name leads to another inode from then on.
    fn vacate_entry(
        &self,
        parent: u32,
        name: &[u8],
        left: Option<u32>,
        now: Time,
    ) -> SysResult<()> {
        match left {
            Some(inode) => self.replace_entry(parent, name, inode, now),
            None => self.remove_entry(parent, name, now),
        }
    }

    fn replace_entry(&self, parent: u32, name: &[u8], inode: u32, now: Time) -> SysResult<()> {
        self.with(parent, |it, _| {
            let entries = &mut it.directory()?.entries;
            entries.replace(name, inode).ok_or(Errno::NOENT)?;
            it.touch(now);
            Ok(())
        })
    }

    /// Updates an inode that was moved from one directory to another.
    fn update_moved(&self, inode: u32, is_directory: bool, from: u32, to: u32, now: Time) {
        let counted = |directory: u32, by: i32| {
            self.with(directory, |it, _| {
                it.links = it.links.saturating_add_signed(by);
                Ok(())
            })
        };
        if is_directory && from != to {
            // Both exist: entries in them have just been changed.
            counted(from, -1).and(counted(to, 1)).unwrap_or(());
        }
        let known = self.with(inode, |it, _| {
            it.changed = now;
            if let InodeBody::Directory(inner) = &mut it.body {
                inner.parent = to;
            }
            Ok(())
        });
        debug_assert_eq!(known, Ok(()));
    }

    /// Fails for a removed directory, which takes no names.
    fn check_not_removed(&self, directory: u32) -> SysResult<()> {
        self.with(directory, |it, _| {
            it.directory()?;
            match it.links {
                0 => Err(Errno::NOENT),
                _ => Ok(()),
            }
        })
    }

    fn check_empty(&self, inode: u32) -> SysResult<()> {
        self.with(inode, |it, _| match it.directory()?.entries.is_empty() {
            true => Ok(()),
            false => Err(Errno::NOTEMPTY),
        })
    }

    /// Whether a directory is another or within it.
    fn is_within(&self, directory: u32, other: u32) -> SysResult<bool> {
        let mut at = directory;
        loop {
            if at == other {
                return Ok(true);
            }
            let parent = self.with(at, |it, _| Ok(it.directory()?.parent))?;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
    }

    /// Drops one link of an inode.
    fn drop_link(&self, inode: u32, now: Time) {
        let gone = self.with(inode, |it, _| {
            it.links -= 1;
            it.changed = now;
            match it.links {
                0 => self.orphans.fetch_add(1, Relaxed),
                _ => self.count.fetch_sub(1, Relaxed),
            };
            Ok(it.is_gone())
        });
        if gone == Ok(true) {
            self.free_inode(inode);
        }
    }

    /// Drops the only link of an empty directory.
    fn drop_directory(&self, inode: u32, parent: u32, now: Time) {
        let counted = self.with(parent, |it, _| {
            it.links -= 1;
            Ok(())
        });
        debug_assert_eq!(counted, Ok(()));
        let gone = self.with(inode, |it, _| {
            it.links = 0;
            it.changed = now;
            self.orphans.fetch_add(1, Relaxed);
            Ok(it.lookups == 0)
        });
        if gone == Ok(true) {
            self.free_inode(inode);
        }
    }

    /// The mode, credentials and access lists of a new inode, as inherited from its directory.
    fn inherit(
        &self,
        parent: u32,
        mode: u32,
        caller: Credentials,
    ) -> SysResult<(u32, Credentials, Option<Box<XattrMap>>)> {
        self.check_not_removed(parent)?;
        let kind = mode & KIND;
        self.with(parent, |it, _| {
            let (mut mode, mut caller, mut xattrs) = (mode, caller, None);
            match it.xattr(acl::DEFAULT).and_then(AccessList::parse) {
                _ if kind == LINK => {}
                None => mode &= !(caller.umask & PERMISSIONS),
                Some(default) => {
                    let mut list = default.clone();
                    list.limit(mode);
                    mode = mode & !PERMISSIONS | list.mode();
                    let mut all = XattrMap::default();
                    if !list.is_mode() {
                        all.insert(acl::ACCESS.into(), list.value());
                    }
                    if kind == DIRECTORY {
                        all.insert(acl::DEFAULT.into(), default.value());
                    }
                    xattrs = Some(Box::new(all)).filter(|all| !all.is_empty());
                }
            }
            if it.mode & SET_GROUP != 0 {
                caller.group = it.group;
                if kind == DIRECTORY {
                    mode |= SET_GROUP;
                }
            }
            Ok((mode, caller, xattrs))
        })
    }

    fn create_entry(
        &self,
        parent: u32,
        name: &[u8],
        mode: u32,
        body: InodeBody,
        caller: Credentials,
        now: Time,
    ) -> SysResult<InodeAttributes> {
        let is_directory = matches!(body, InodeBody::Directory(_));
        let _names = self.writing();
        match self.find(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) if !name.is_empty() => {}
            Err(error) => return Err(error),
        }
        let (mode, caller, xattrs) = self.inherit(parent, mode, caller)?;
        if is_directory && self.with(parent, |it, _| Ok(it.links))? >= LINK_MAX {
            return Err(Errno::MLINK);
        }
        let inode =
            self.allocate_inode(mode, 1 + u32::from(is_directory), body, xattrs, caller, now)?;
        if let Err(error) = self.add_entry(parent, name, inode, 0, now) {
            self.discard_inode(inode)?;
            return Err(error);
        }
        if is_directory {
            self.with(parent, |it, _| {
                it.links += 1;
                Ok(())
            })?;
        }
        self.add_lookup(inode)
    }

    /// Frees a new inode that no name leads to yet.
    fn discard_inode(&self, inode: u32) -> SysResult<()> {
        self.with(inode, |it, _| {
            it.links = 0;
            Ok(())
        })?;
        self.orphans.fetch_add(1, Relaxed);
        self.free_inode(inode);
        Ok(())
    }

    /// Creates the whiteout that stays under the old name, if one is requested.
    fn make_whiteout(
        &self,
        parent: u32,
        of: Option<Credentials>,
        now: Time,
    ) -> SysResult<Option<u32>> {
        let Some(caller) = of else {
            return Ok(None);
        };
        let (mode, caller, xattrs) = self.inherit(parent, libc::S_IFCHR, caller)?;
        let inode = self.allocate_inode(mode, 1, InodeBody::Device(0), xattrs, caller, now)?;
        Ok(Some(inode))
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
