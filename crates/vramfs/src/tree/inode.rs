//! Inode: its attributes, and what it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;

use crate::directory::Directory;
use crate::file::File;

/// The result of an operation; the error is the errno that the system call returns.
pub type SysResult<T> = Result<T, Errno>;

/// The file type bits of a mode.
pub const KIND: u32 = libc::S_IFMT;
pub(super) const DIRECTORY: u32 = libc::S_IFDIR;
pub(super) const FILE: u32 = libc::S_IFREG;
pub(super) const LINK: u32 = libc::S_IFLNK;
pub(super) const SET_GROUP: u32 = libc::S_ISGID;
pub(super) const SET_USER: u32 = libc::S_ISUID;
pub(super) const GROUP_EXECUTES: u32 = libc::S_IXGRP;

/// The user that may do what others may not.
pub(crate) const SUPERUSER: u32 = 0;

/// The metadata bytes that a name or a value costs besides its own.
pub const METADATA_OVERHEAD_BYTES: usize = 64;

/// The link count of an inode that was created without a name, and may get one.
pub(super) const UNNAMED: u32 = u32::MAX;

/// Nanoseconds since 1970.
pub type Time = i64;

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

#[derive(Debug)]
pub(super) enum InodeBody {
    /// `None` until the data is first accessed.
    File(Option<Arc<File>>),
    Directory(Box<DirectoryBody>),
    Link(Box<Box<[u8]>>),
    Device(u32),
    Other,
}

#[derive(Debug, Default)]
pub(super) struct DirectoryBody {
    pub(super) entries: Directory,
    pub(super) parent: u32,
}

pub(super) type XattrMap = BTreeMap<Box<[u8]>, Box<[u8]>>;

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) mode: u32,
    /// The number of names, or [`UNNAMED`].
    pub(super) links: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    /// The references that the kernel holds: lookups it was answered, less those it has forgotten.
    pub(super) lookups: u64,
    pub(super) accessed: Time,
    pub(super) modified: Time,
    pub(super) changed: Time,
    pub(super) xattrs: Option<Box<XattrMap>>,
    pub(super) body: InodeBody,
}

#[derive(Debug, Default)]
pub(super) struct InodeSlot {
    pub(super) generation: AtomicU32,
    pub(super) inode: Mutex<Option<Inode>>,
}

impl Inode {
    pub(super) fn attributes(&self, inode: u32, generation: u32) -> InodeAttributes {
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

    pub(super) fn has_name(&self) -> bool {
        !matches!(self.links, 0 | UNNAMED)
    }

    /// No name leads to it, and the kernel does not reference it.
    pub(super) fn is_gone(&self) -> bool {
        !self.has_name() && self.lookups == 0
    }

    pub(super) fn directory(&mut self) -> SysResult<&mut DirectoryBody> {
        match &mut self.body {
            InodeBody::Directory(inner) => Ok(inner),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.body, InodeBody::Directory(_))
    }

    /// Clears the set-user-ID bit, and the set-group-ID bit: that one stays for a caller of its
    /// group if the group cannot execute the file.
    pub(super) fn clear_set_id_bits(&mut self, is_of_group: bool) {
        self.mode &= !SET_USER;
        if self.mode & GROUP_EXECUTES != 0 || !is_of_group {
            self.mode &= !SET_GROUP;
        }
    }

    pub(super) fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.as_ref()?.get(name).map(|value| &**value)
    }

    /// The metadata bytes of its attributes, and of its target if it is a link.
    pub(super) fn metadata_bytes(&self) -> u64 {
        let target = match &self.body {
            InodeBody::Link(target) => metadata_cost(target.len()),
            _ => 0,
        };
        target + self.xattrs.as_ref().map_or(0, |xattrs| xattr_bytes(xattrs))
    }

    /// Updates the times after a change of its entries or bytes.
    pub(super) fn touch(&mut self, now: Time) {
        self.modified = now;
        self.changed = now;
    }
}

/// The metadata bytes of a text of this length.
pub(super) fn metadata_cost(bytes: usize) -> u64 {
    (bytes + METADATA_OVERHEAD_BYTES) as u64
}

pub(super) fn xattr_bytes(xattrs: &XattrMap) -> u64 {
    let each = xattrs
        .iter()
        .map(|(name, value)| metadata_cost(name.len() + value.len()));
    each.sum()
}
