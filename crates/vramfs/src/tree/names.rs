//! Creation, removal and moves of names.
//!
//! Invariant: each change holds `names` exclusively, so what it has checked stays true.

use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::inode::{
    Credentials, DIRECTORY, DirectoryBody, FILE, InodeAttributes, InodeBody, KIND, LINK, SET_GROUP,
    SysResult, Time, UNNAMED, XattrMap, metadata_cost,
};
use super::{Tree, check_name};
use crate::acl::{self, AccessList, PERMISSIONS};
use crate::directory::Directory;

/// The maximum link count of an inode.
const LINK_MAX: u32 = i32::MAX as u32;

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

impl Tree {
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
}
