//! Names and what they lead to: inodes, directories, links, attributes. No data.
//!
//! Permissions are the kernel's business, which asks for modes, owners and access lists and
//! checks them; what is left are the rules of the tree: what may replace what, which
//! bits and times change, when an inode goes.
//!
//! Locks: whoever changes names has `names` for himself, whoever reads them shares it; an
//! inode's own lock is held for a moment, with at most that of names around it, never two.
//!
//! Whatever a caller makes that stays in the host's memory is counted: a link as an inode, names and values by their bytes.
//!
//! Invariants: an inode is there as long as a name leads to it or the kernel knows it; the count of
//! links of a directory is two and its subdirectories; no directory is within itself.
//! Elsewhere: extended attributes (`values`), entries (`directory`), data (`file`).

mod values;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::acl::{self, List, PERMISSIONS};
use crate::directory::{Directory, NAME_MAX};
use crate::file::File;
use crate::pieces::Pieces;

/// A result here: the error is what the caller of the system call gets.
pub type Answer<T> = Result<T, Errno>;

/// The inode of the root.
pub const ROOT: u32 = 1;

/// What kind of thing an inode is, in a mode.
pub const KIND: u32 = libc::S_IFMT;
const DIRECTORY: u32 = libc::S_IFDIR;
const FILE: u32 = libc::S_IFREG;
const LINK: u32 = libc::S_IFLNK;
const SET_GROUP: u32 = libc::S_ISGID;
const SET_USER: u32 = libc::S_ISUID;
const GROUP_RUNS: u32 = libc::S_IXGRP;

/// Who may do what others may not.
pub(crate) const SUPERUSER: u32 = 0;

/// All names, targets of links and values together may have so many bytes, and so many more for each inode that there can be.
const TEXT_MAX: u64 = 64 << 20;
/// Those for each inode.
pub const TEXT_MAX_OF_INODE: u64 = 512;
/// What a name or a value costs beside its bytes.
pub const TEXT_COST: usize = 64;
/// Links that an inode may have.
const LINK_MAX: u32 = i32::MAX as u32;
/// In the place of its links: it was made without a name, and may get one.
const UNNAMED: u32 = u32::MAX;

/// Nanoseconds since 1970.
pub type Time = i64;
/// When something was read is noted if that is so long ago, or was before it changed.
const DAY: Time = 24 * 3600 * 1_000_000_000;
/// Of a file that was written, no privilege that somebody gave it stays.
const CAPABILITY: &[u8] = b"security.capability";

/// What is known of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub inode: u32,
    /// Which of those that had the number it is.
    pub generation: u32,
    /// Kind and permissions.
    pub mode: u32,
    /// Names that lead to it.
    pub links: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// The device that it stands for.
    pub device: u32,
    /// Bytes.
    pub size: u64,
    /// Pages of memory that it has.
    pub pages: u64,
    /// When it was last read.
    pub accessed: Time,
    /// When its data last changed.
    pub modified: Time,
    /// When anything of it last changed.
    pub changed: Time,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// Permissions that what it makes does not have, unless a directory's default list says which.
    pub umask: u32,
}

/// What is to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Permissions; the kind stays.
    pub mode: Option<u32>,
    /// The owner.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// When it was last read.
    pub accessed: Option<Time>,
    /// When its data last changed.
    pub modified: Option<Time>,
}

/// How a name is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// What has the new name goes.
    Replace,
    /// There must be nothing of the new name.
    KeepOther,
    /// Both names exchange what they lead to.
    Exchange,
}

#[derive(Debug)]
enum Body {
    /// None as long as nothing was written.
    File(Option<Arc<File>>),
    Directory(Box<Inner>),
    Link(Box<Box<[u8]>>),
    Device(u32),
    Other,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Directory,
    parent: u32,
}

type Values = BTreeMap<Box<[u8]>, Box<[u8]>>;

#[derive(Debug)]
struct Inode {
    mode: u32,
    /// Names that lead to it, or [`UNNAMED`].
    links: u32,
    user: u32,
    group: u32,
    /// How often the kernel was told of it and has not forgotten it.
    known: u64,
    accessed: Time,
    modified: Time,
    changed: Time,
    values: Option<Box<Values>>,
    body: Body,
}

#[derive(Debug, Default)]
struct Node {
    generation: AtomicU32,
    inode: Mutex<Option<Inode>>,
}

/// See the module.
#[derive(Debug)]
pub struct Tree {
    nodes: Pieces<Node, 4096>,
    names: RwLock<()>,
    free: Mutex<Vec<u32>>,
    next: AtomicU32,
    /// Inodes, and the names of files behind the first of each.
    count: AtomicU64,
    /// Bytes of names, targets and values, with what each costs.
    text: AtomicU64,
    /// Inodes without a name that are still known, and data in `left` or on the way from there.
    nameless: AtomicU64,
    most: u32,
    /// Data of inodes that have gone, until the store takes it.
    left: Mutex<Vec<Arc<File>>>,
    /// Whoever has taken those out to give them back.
    sweeping: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_name(name: &[u8]) -> Answer<()> {
    match name.len() {
        0 => Err(Errno::NOENT),
        1..=NAME_MAX => Ok(()),
        _ => Err(Errno::NAMETOOLONG),
    }
}

/// What a text of so many bytes takes.
fn cost(bytes: usize) -> u64 {
    (bytes + TEXT_COST) as u64
}

fn text_of(values: &Values) -> u64 {
    let each = values
        .iter()
        .map(|(name, value)| cost(name.len() + value.len()));
    each.sum()
}

impl Inode {
    fn attributes(&self, inode: u32, generation: u32) -> Attributes {
        Attributes {
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
                Body::Device(device) => device,
                _ => 0,
            },
            size: match &self.body {
                Body::File(file) => file.as_ref().map_or(0, |file| file.size()),
                Body::Link(target) => target.len() as u64,
                _ => 0,
            },
            pages: match &self.body {
                Body::File(Some(file)) => file.pages(),
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

    /// No name leads to it, and the kernel does not know it.
    fn is_gone(&self) -> bool {
        !self.has_name() && self.known == 0
    }

    fn directory(&mut self) -> Answer<&mut Inner> {
        match &mut self.body {
            Body::Directory(inner) => Ok(inner),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    /// What it may do for others than its owner is off; of one that its group cannot run, its group keeps the bit.
    fn lose_rights(&mut self, is_of_group: bool) {
        self.mode &= !SET_USER;
        if self.mode & GROUP_RUNS != 0 || !is_of_group {
            self.mode &= !SET_GROUP;
        }
    }

    fn value(&self, name: &[u8]) -> Option<&[u8]> {
        self.values.as_ref()?.get(name).map(|value| &**value)
    }

    /// What its values, and its target if it is a link, take.
    fn text(&self) -> u64 {
        let target = match &self.body {
            Body::Link(target) => cost(target.len()),
            _ => 0,
        };
        target + self.values.as_ref().map_or(0, |values| text_of(values))
    }

    /// A name in it came or went, or its bytes were written.
    fn touch(&mut self, now: Time) {
        self.modified = now;
        self.changed = now;
    }
}

impl Tree {
    /// A root that belongs to the caller, and room for so many inodes with it.
    pub fn new(most: u32, mode: u32, caller: Caller, now: Time) -> Self {
        let most = most.clamp(1, u32::MAX - 1);
        let it = Self {
            nodes: Pieces::new(most + 1),
            names: RwLock::new(()),
            free: Mutex::new(Vec::new()),
            next: AtomicU32::new(ROOT + 1),
            count: AtomicU64::new(1),
            text: AtomicU64::new(0),
            nameless: AtomicU64::new(0),
            most,
            left: Mutex::new(Vec::new()),
            sweeping: Mutex::new(()),
        };
        let root = Inode {
            mode: DIRECTORY | mode & !KIND,
            links: 2,
            user: caller.user,
            group: caller.group,
            known: 1,
            accessed: now,
            modified: now,
            changed: now,
            values: None,
            body: Body::Directory(Box::new(Inner {
                entries: Directory::default(),
                parent: ROOT,
            })),
        };
        *lock(&it.node(ROOT).inode) = Some(root);
        it
    }

    /// How many inodes there are, and how many there can be. Each further name of a file counts as one.
    pub fn inodes(&self) -> (u64, u64) {
        (self.count.load(Relaxed), u64::from(self.most))
    }

    /// No inode has a higher number.
    pub fn highest(&self) -> u32 {
        self.next.load(Relaxed) - 1
    }

    /// How many bytes names, targets of links and values take, and how many they can.
    pub fn text(&self) -> (u64, u64) {
        let most = TEXT_MAX + TEXT_MAX_OF_INODE * u64::from(self.most);
        (self.text.load(Relaxed), most)
    }

    fn take_text(&self, bytes: u64) -> Answer<()> {
        let most = self.text().1;
        let more = |was: u64| was.checked_add(bytes).filter(|now| *now <= most);
        let taken = self.text.fetch_update(Relaxed, Relaxed, more);
        taken.map(drop).map_err(|_| Errno::NOSPC)
    }

    fn give_text(&self, bytes: u64) {
        self.text.fetch_sub(bytes, Relaxed);
    }

    /// One inode or name more.
    fn take_one(&self) -> Answer<()> {
        let more = |was: u64| (was < u64::from(self.most)).then_some(was + 1);
        let taken = self.count.fetch_update(Relaxed, Relaxed, more);
        taken.map(drop).map_err(|_| Errno::NOSPC)
    }

    /// How many inodes have no name any more, and go when the kernel forgets them; those that have gone as long as their
    /// data are not given back.
    pub fn nameless(&self) -> u64 {
        self.nameless.load(Relaxed)
    }

    /// Gives data back that nobody can reach any more; what cannot be given back yet stays until the next time.
    pub fn sweep(&self, free: impl Fn(&File) -> bool) {
        // Who asks what is left has not to miss what somebody has in his hands.
        let _sweeping = lock(&self.sweeping);
        let left = std::mem::take(&mut *lock(&self.left));
        for file in left {
            match free(&file) {
                true => drop(self.nameless.fetch_sub(1, Relaxed)),
                false => lock(&self.left).push(file),
            }
        }
    }

    /// Whether any data is such of those that nobody can reach any more, and could not be given back yet.
    pub fn keeps(&self, is_such: impl Fn(&File) -> bool) -> bool {
        let _sweeping = lock(&self.sweeping);
        lock(&self.left).iter().any(|file| is_such(file))
    }

    /// What is known of an inode.
    ///
    /// # Errors
    /// `STALE` if there is none of that number.
    pub fn attributes(&self, inode: u32) -> Answer<Attributes> {
        self.with(inode, |it, generation| Ok(it.attributes(inode, generation)))
    }

    /// What a name leads to. The kernel knows it from then on.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `NAMETOOLONG`.
    pub fn look_up(&self, parent: u32, name: &[u8]) -> Answer<Attributes> {
        let _names = self.reading();
        let inode = self.find(parent, name)?;
        self.know(inode)
    }

    /// The kernel no longer knows an inode, as many times as it says.
    pub fn forget(&self, inode: u32, times: u64) {
        let gone = self.with(inode, |it, _| {
            it.known = it.known.saturating_sub(times);
            Ok(it.is_gone())
        });
        if gone == Ok(true) {
            self.remove(inode);
        }
    }

    /// Makes a file, a directory, a FIFO, a socket or a device, as the mode says. The kernel knows it
    /// from then on.
    ///
    /// # Errors
    /// `EXIST`, `NOENT`, `NOTDIR`, `NAMETOOLONG`, `NOSPC` without room, `MLINK`.
    pub fn make(
        &self,
        parent: u32,
        name: &[u8],
        mode: u32,
        device: u32,
        caller: Caller,
        now: Time,
    ) -> Answer<Attributes> {
        let body = match mode & KIND {
            DIRECTORY => Body::Directory(Box::new(Inner {
                entries: Directory::default(),
                parent,
            })),
            libc::S_IFBLK | libc::S_IFCHR => Body::Device(device),
            FILE | 0 => Body::File(None),
            _ => Body::Other,
        };
        let mode = if mode & KIND == 0 { mode | FILE } else { mode };
        self.add(parent, name, mode, body, caller, now)
    }

    /// Makes a file that no name leads to, as [`Tree::make`] would there. It may get one ([`Tree::link`]), and goes when the kernel
    /// forgets it without.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`, `NOSPC` without room.
    pub fn make_nameless(
        &self,
        parent: u32,
        mode: u32,
        caller: Caller,
        now: Time,
    ) -> Answer<Attributes> {
        let _names = self.reading();
        let (mode, caller, values) = self.inherited(parent, mode, caller)?;
        let inode = self.place(mode, UNNAMED, Body::File(None), values, caller, now)?;
        self.nameless.fetch_add(1, Relaxed);
        self.know(inode)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As for [`Tree::make`].
    pub fn make_link(
        &self,
        parent: u32,
        name: &[u8],
        target: &[u8],
        caller: Caller,
        now: Time,
    ) -> Answer<Attributes> {
        match target.len() {
            0 => return Err(Errno::NOENT),
            1..4096 => {}
            _ => return Err(Errno::NAMETOOLONG),
        }
        let body = Body::Link(Box::new(target.into()));
        self.add(parent, name, LINK | 0o777, body, caller, now)
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// `ISDIR` for a directory, `INVAL` for anything else that has none.
    pub fn file(&self, inode: u32) -> Answer<Arc<File>> {
        self.with(inode, |it, _| match &mut it.body {
            Body::File(file) => Ok(file.get_or_insert_default().clone()),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        })
    }

    /// A file's bytes were written, by somebody who takes what it may do for others than its owner, or by nobody who
    /// does. Whether its mode has changed.
    ///
    /// # Errors
    /// `STALE`.
    pub fn note_written(&self, inode: u32, taker: Option<Caller>, now: Time) -> Answer<bool> {
        self.with(inode, |it, _| {
            it.touch(now);
            let before = it.mode;
            if let Some(taker) = taker {
                it.lose_rights(taker.group == it.group);
            }
            self.drop_value(it, CAPABILITY);
            Ok(it.mode != before)
        })
    }

    /// Something was read. That is noted seldom: once a day, and once after each change.
    ///
    /// # Errors
    /// `STALE`.
    pub fn note_read(&self, inode: u32, now: Time) -> Answer<()> {
        self.with(inode, |it, _| {
            let changed = it.modified.max(it.changed);
            if it.accessed <= changed || it.accessed.saturating_add(DAY) <= now {
                it.accessed = now;
            }
            Ok(())
        })
    }

    /// What a symbolic link says.
    ///
    /// # Errors
    /// `INVAL` if it is none.
    pub fn target(&self, inode: u32) -> Answer<Vec<u8>> {
        self.with(inode, |it, _| match &it.body {
            Body::Link(target) => Ok(target.to_vec()),
            _ => Err(Errno::INVAL),
        })
    }

    /// Gives an inode another name, or one that was made without any its first.
    ///
    /// # Errors
    /// `PERM` for a directory; `NOENT` for what has no name any more; `MLINK`; as for [`Tree::make`].
    pub fn link(&self, inode: u32, parent: u32, name: &[u8], now: Time) -> Answer<Attributes> {
        check_name(name)?;
        let _names = self.writing();
        let links = self.with(inode, |it, _| match (it.is_directory(), it.links) {
            (true, _) => Err(Errno::PERM),
            // It is about to go.
            (_, 0) => Err(Errno::NOENT),
            (_, UNNAMED) => Ok(0),
            (_, LINK_MAX..) => Err(Errno::MLINK),
            (_, links) => Ok(links),
        })?;
        match self.find(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => self.check_lives(parent)?,
            Err(error) => return Err(error),
        }
        // The first name is the inode's own.
        let is_first = links == 0;
        if !is_first {
            self.take_one()?;
        }
        if let Err(error) = self.enter(parent, name, inode, 0, now) {
            self.count.fetch_sub(u64::from(!is_first), Relaxed);
            return Err(error);
        }
        self.nameless.fetch_sub(u64::from(is_first), Relaxed);
        self.with(inode, |it, _| {
            it.links = links + 1;
            it.changed = now;
            Ok(())
        })?;
        self.know(inode)
    }

    /// Removes a name that leads to anything but a directory.
    ///
    /// # Errors
    /// `ISDIR`, `NOENT`, `NOTDIR`, `NAMETOOLONG`.
    pub fn unlink(&self, parent: u32, name: &[u8], now: Time) -> Answer<()> {
        let _names = self.writing();
        let inode = self.find(parent, name)?;
        if self.with(inode, |it, _| Ok(it.is_directory()))? {
            return Err(Errno::ISDIR);
        }
        self.leave(parent, name, now)?;
        self.lose_link(inode, now);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NOTEMPTY`, `NOTDIR`, `NOENT`, `NAMETOOLONG`, `INVAL` for `.`.
    pub fn remove_directory(&self, parent: u32, name: &[u8], now: Time) -> Answer<()> {
        match name {
            b"." => return Err(Errno::INVAL),
            b".." => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let _names = self.writing();
        let inode = self.find(parent, name)?;
        self.check_empty(inode)?;
        self.leave(parent, name, now)?;
        self.lose_directory(inode, parent, now);
        Ok(())
    }

    /// Moves a name. With somebody's `whiteout` a device of his without number stays where it was, which filesystems laid over
    /// this one take for nothing; not with an exchange.
    ///
    /// # Errors
    /// `NOENT`; `EXIST` if nothing may be replaced; `ISDIR`, `NOTDIR` and `NOTEMPTY` if what is there
    /// cannot be; `INVAL` for a directory into itself; as for [`Tree::make`].
    pub fn rename(
        &self,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        how: Move,
        whiteout: Option<Caller>,
        now: Time,
    ) -> Answer<()> {
        check_name(to.1)?;
        let _names = self.writing();
        let inode = self.find(from.0, from.1)?;
        let is_directory = self.with(inode, |it, _| Ok(it.is_directory()))?;
        self.check_lives(to.0)?;
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
                Move::KeepOther => Err(Errno::EXIST),
                _ => Ok(()),
            };
        }
        let Some(other) = other else {
            if how == Move::Exchange {
                return Err(Errno::NOENT);
            }
            let left = self.whiteout(from.0, whiteout, now)?;
            let given = left.map_or(cost(from.1.len()), |_| 0);
            if let Err(error) = self.enter(to.0, to.1, inode, given, now) {
                left.map_or(Ok(()), |left| self.unplace(left))?;
                return Err(error);
            }
            self.vacate(from.0, from.1, left, now)?;
            self.moved(inode, is_directory, from.0, to.0, now);
            return Ok(());
        };
        let is_other_directory = self.with(other, |it, _| Ok(it.is_directory()))?;
        match how {
            Move::KeepOther => return Err(Errno::EXIST),
            Move::Exchange => {
                if is_other_directory && self.is_within(from.0, other)? {
                    return Err(Errno::INVAL);
                }
                self.exchange(to.0, to.1, inode, now)?;
                self.exchange(from.0, from.1, other, now)?;
                self.moved(inode, is_directory, from.0, to.0, now);
                self.moved(other, is_other_directory, to.0, from.0, now);
                return Ok(());
            }
            Move::Replace => {}
        }
        match (is_directory, is_other_directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) => self.check_empty(other)?,
            (false, false) => {}
        }
        let left = self.whiteout(from.0, whiteout, now)?;
        self.exchange(to.0, to.1, inode, now)?;
        self.vacate(from.0, from.1, left, now)?;
        match is_other_directory {
            true => self.lose_directory(other, to.0, now),
            false => self.lose_link(other, now),
        }
        self.moved(inode, is_directory, from.0, to.0, now);
        Ok(())
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `STALE`.
    pub fn change(&self, inode: u32, change: &Change, now: Time) -> Answer<Attributes> {
        self.with(inode, |it, generation| {
            if let Some(mode) = change.mode {
                it.mode = it.mode & KIND | mode & !KIND;
                if let Some(mut list) = it.value(acl::ACCESS).and_then(List::parse) {
                    list.set_mode(mode);
                    let values = it.values.get_or_insert_default();
                    values.insert(acl::ACCESS.into(), list.value());
                }
            }
            if change.user.is_some() || change.group.is_some() {
                it.user = change.user.unwrap_or(it.user);
                it.group = change.group.unwrap_or(it.group);
                // Who has it now did not ask for what it may do.
                if change.mode.is_none() && !it.is_directory() {
                    it.lose_rights(true);
                }
                self.drop_value(it, CAPABILITY);
            }
            it.accessed = change.accessed.unwrap_or(it.accessed);
            it.modified = change.modified.unwrap_or(it.modified);
            it.changed = now;
            Ok(it.attributes(inode, generation))
        })
    }

    /// The entries of a directory behind a number, as `visit` takes them: the number, the name, what it leads
    /// to. Those of the directory itself and of its parent come first. One that it does not take ends it. If
    /// the kernel is told of them, it knows from then on what it took, but for these two.
    ///
    /// # Errors
    /// `NOTDIR`.
    pub fn read_directory(
        &self,
        inode: u32,
        behind: u64,
        is_told: bool,
        mut visit: impl FnMut(u64, &[u8], &Attributes) -> bool,
    ) -> Answer<()> {
        let _names = self.reading();
        let mut part = Vec::new();
        let parent = self.with(inode, |it, _| Ok(it.directory()?.parent))?;
        for (number, name, inode) in [(1, &b"."[..], inode), (2, &b".."[..], parent)] {
            if behind < number {
                // The parent of one that was removed may be gone.
                let there = self.attributes(inode);
                let there = there.or_else(|_| self.attributes(ROOT))?;
                if !visit(number, name, &Attributes { inode, ..there }) {
                    return Ok(());
                }
            }
        }
        let mut behind = behind.saturating_sub(2);
        loop {
            part.clear();
            self.with(inode, |it, _| {
                let entries = it.directory()?.entries.behind(behind).take(64);
                part.extend(entries.map(|it| (it.number, it.name.to_vec(), it.inode)));
                Ok(())
            })?;
            let Some((last, ..)) = part.last() else {
                return Ok(());
            };
            behind = *last;
            for (number, name, inode) in &part {
                // An entry leads to something as long as names stay as they are.
                let there = self.attributes(*inode)?;
                if !visit(number + 2, name, &there) {
                    return Ok(());
                }
                if is_told {
                    self.know(*inode)?;
                }
            }
        }
    }

    /// The number of a directory's last entry, as [`Tree::read_directory`] gives it.
    ///
    /// # Errors
    /// `NOTDIR`.
    pub fn last_entry(&self, inode: u32) -> Answer<u64> {
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

    fn node(&self, inode: u32) -> &Node {
        self.nodes.of(inode, |_| Node::default())
    }

    fn with<R>(&self, inode: u32, work: impl FnOnce(&mut Inode, u32) -> Answer<R>) -> Answer<R> {
        if inode == 0 || inode > self.most {
            return Err(Errno::STALE);
        }
        let node = self.node(inode);
        let mut it = lock(&node.inode);
        let generation = node.generation.load(Relaxed);
        work(it.as_mut().ok_or(Errno::STALE)?, generation)
    }

    fn know(&self, inode: u32) -> Answer<Attributes> {
        self.with(inode, |it, generation| {
            it.known += 1;
            Ok(it.attributes(inode, generation))
        })
    }

    fn find(&self, parent: u32, name: &[u8]) -> Answer<u32> {
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

    /// Adds a name. Of what it takes there has to be room for what is more than `given`, which the caller gives back next.
    fn enter(&self, parent: u32, name: &[u8], inode: u32, given: u64, now: Time) -> Answer<()> {
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EXIST);
        }
        self.check_lives(parent)?;
        let taken = cost(name.len()).saturating_sub(given);
        self.take_text(taken)?;
        let entered = self.with(parent, |it, _| {
            match it.directory()?.entries.insert(name, inode) {
                Ok(true) => {}
                Ok(false) => return Err(Errno::EXIST),
                Err(_) => return Err(Errno::NOSPC),
            }
            it.touch(now);
            Ok(())
        });
        match entered {
            Ok(()) => _ = self.text.fetch_add(cost(name.len()) - taken, Relaxed),
            Err(_) => self.give_text(taken),
        }
        entered
    }

    fn leave(&self, parent: u32, name: &[u8], now: Time) -> Answer<()> {
        self.with(parent, |it, _| {
            it.directory()?.entries.remove(name).ok_or(Errno::NOENT)?;
            self.give_text(cost(name.len()));
            it.touch(now);
            Ok(())
        })
    }

    /// As [`Tree::leave`]; or another inode has the name from then on.
    fn vacate(&self, parent: u32, name: &[u8], left: Option<u32>, now: Time) -> Answer<()> {
        match left {
            Some(inode) => self.exchange(parent, name, inode, now),
            None => self.leave(parent, name, now),
        }
    }

    fn exchange(&self, parent: u32, name: &[u8], inode: u32, now: Time) -> Answer<()> {
        self.with(parent, |it, _| {
            let entries = &mut it.directory()?.entries;
            entries.replace(name, inode).ok_or(Errno::NOENT)?;
            it.touch(now);
            Ok(())
        })
    }

    /// An inode has been moved from one directory to another.
    fn moved(&self, inode: u32, is_directory: bool, from: u32, to: u32, now: Time) {
        let counted = |directory: u32, by: i32| {
            self.with(directory, |it, _| {
                it.links = it.links.saturating_add_signed(by);
                Ok(())
            })
        };
        if is_directory && from != to {
            // Both are there: names have just been changed in them.
            counted(from, -1).and(counted(to, 1)).unwrap_or(());
        }
        let known = self.with(inode, |it, _| {
            it.changed = now;
            if let Body::Directory(inner) = &mut it.body {
                inner.parent = to;
            }
            Ok(())
        });
        debug_assert_eq!(known, Ok(()));
    }

    /// A directory that was removed takes no names.
    fn check_lives(&self, directory: u32) -> Answer<()> {
        self.with(directory, |it, _| {
            it.directory()?;
            match it.links {
                0 => Err(Errno::NOENT),
                _ => Ok(()),
            }
        })
    }

    fn check_empty(&self, inode: u32) -> Answer<()> {
        self.with(inode, |it, _| match it.directory()?.entries.is_empty() {
            true => Ok(()),
            false => Err(Errno::NOTEMPTY),
        })
    }

    /// Whether a directory is another or within it.
    fn is_within(&self, directory: u32, other: u32) -> Answer<bool> {
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

    /// One name less leads to it.
    fn lose_link(&self, inode: u32, now: Time) {
        let gone = self.with(inode, |it, _| {
            it.links -= 1;
            it.changed = now;
            match it.links {
                0 => self.nameless.fetch_add(1, Relaxed),
                _ => self.count.fetch_sub(1, Relaxed),
            };
            Ok(it.is_gone())
        });
        if gone == Ok(true) {
            self.remove(inode);
        }
    }

    /// A directory without entries has no name any more.
    fn lose_directory(&self, inode: u32, parent: u32, now: Time) {
        let counted = self.with(parent, |it, _| {
            it.links -= 1;
            Ok(())
        });
        debug_assert_eq!(counted, Ok(()));
        let gone = self.with(inode, |it, _| {
            it.links = 0;
            it.changed = now;
            self.nameless.fetch_add(1, Relaxed);
            Ok(it.known == 0)
        });
        if gone == Ok(true) {
            self.remove(inode);
        }
    }

    /// Group, permissions and access lists that a directory passes on.
    fn inherited(
        &self,
        parent: u32,
        mode: u32,
        caller: Caller,
    ) -> Answer<(u32, Caller, Option<Box<Values>>)> {
        self.check_lives(parent)?;
        let kind = mode & KIND;
        self.with(parent, |it, _| {
            let (mut mode, mut caller, mut values) = (mode, caller, None);
            match it.value(acl::DEFAULT).and_then(List::parse) {
                _ if kind == LINK => {}
                None => mode &= !(caller.umask & PERMISSIONS),
                Some(default) => {
                    let mut list = default.clone();
                    list.limit(mode);
                    mode = mode & !PERMISSIONS | list.mode();
                    let mut all = Values::default();
                    if !list.is_mode() {
                        all.insert(acl::ACCESS.into(), list.value());
                    }
                    if kind == DIRECTORY {
                        all.insert(acl::DEFAULT.into(), default.value());
                    }
                    values = Some(Box::new(all)).filter(|all| !all.is_empty());
                }
            }
            if it.mode & SET_GROUP != 0 {
                caller.group = it.group;
                if kind == DIRECTORY {
                    mode |= SET_GROUP;
                }
            }
            Ok((mode, caller, values))
        })
    }

    fn add(
        &self,
        parent: u32,
        name: &[u8],
        mode: u32,
        body: Body,
        caller: Caller,
        now: Time,
    ) -> Answer<Attributes> {
        let is_directory = matches!(body, Body::Directory(_));
        let _names = self.writing();
        match self.find(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) if !name.is_empty() => {}
            Err(error) => return Err(error),
        }
        let (mode, caller, values) = self.inherited(parent, mode, caller)?;
        if is_directory && self.with(parent, |it, _| Ok(it.links))? >= LINK_MAX {
            return Err(Errno::MLINK);
        }
        let inode = self.place(mode, 1 + u32::from(is_directory), body, values, caller, now)?;
        if let Err(error) = self.enter(parent, name, inode, 0, now) {
            self.unplace(inode)?;
            return Err(error);
        }
        if is_directory {
            self.with(parent, |it, _| {
                it.links += 1;
                Ok(())
            })?;
        }
        self.know(inode)
    }

    /// Takes an inode back that nothing leads to yet.
    fn unplace(&self, inode: u32) -> Answer<()> {
        self.with(inode, |it, _| {
            it.links = 0;
            Ok(())
        })?;
        self.nameless.fetch_add(1, Relaxed);
        self.remove(inode);
        Ok(())
    }

    /// What stays where a name was, for who asks for it.
    fn whiteout(&self, parent: u32, of: Option<Caller>, now: Time) -> Answer<Option<u32>> {
        let Some(caller) = of else {
            return Ok(None);
        };
        let (mode, caller, values) = self.inherited(parent, libc::S_IFCHR, caller)?;
        let inode = self.place(mode, 1, Body::Device(0), values, caller, now)?;
        Ok(Some(inode))
    }

    /// A new inode.
    fn place(
        &self,
        mode: u32,
        links: u32,
        body: Body,
        values: Option<Box<Values>>,
        caller: Caller,
        now: Time,
    ) -> Answer<u32> {
        let it = Inode {
            mode,
            links,
            user: caller.user,
            group: caller.group,
            known: 0,
            accessed: now,
            modified: now,
            changed: now,
            values,
            body,
        };
        let text = it.text();
        self.take_one()?;
        let free = || lock(&self.free).pop();
        let new = || {
            let next = |next: u32| (next <= self.most).then(|| next + 1);
            self.next.fetch_update(AcqRel, Relaxed, next).ok()
        };
        let placed = self.take_text(text).and_then(|()| {
            let number = free().or_else(new).ok_or(Errno::NOSPC);
            if number.is_err() {
                self.give_text(text);
            }
            number
        });
        match placed {
            Ok(inode) => *lock(&self.node(inode).inode) = Some(it),
            Err(_) => {
                self.count.fetch_sub(1, Relaxed);
            }
        }
        placed
    }

    /// Nothing leads to it, and nobody knows it.
    fn remove(&self, inode: u32) {
        let node = self.node(inode);
        let mut place = lock(&node.inode);
        // Somebody who was as quick has done it.
        let Some(gone) = place.take_if(|it| it.is_gone()) else {
            return;
        };
        node.generation.fetch_add(1, AcqRel);
        drop(place);
        self.give_text(gone.text());
        // Whoever may have one more finds its number.
        lock(&self.free).push(inode);
        self.count.fetch_sub(1, Relaxed);
        match gone.body {
            Body::File(Some(file)) => lock(&self.left).push(file),
            _ => {
                self.nameless.fetch_sub(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
