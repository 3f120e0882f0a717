//! Extended attributes of inodes, including the access list, which determines permission bits.

use rustix::io::Errno;

use super::Tree;
use super::inode::{
    Credentials, Inode, SET_GROUP, SUPERUSER, SysResult, Time, metadata_cost, xattr_bytes,
};
use crate::acl::{self, AccessList, PERMISSIONS};
use crate::directory::NAME_MAX;

/// The maximum size of a value, and of all of an inode's attributes with their names.
pub(super) const XATTR_MAX: usize = 64 << 10;
pub(super) const XATTRS_MAX: usize = 1 << 20;
/// The limit of an inode's zero-terminated attribute names: the kernel lists no more.
const NAMES_MAX: usize = 64 << 10;

impl Tree {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NODATA`.
    pub fn xattr(&self, inode: u32, name: &[u8]) -> SysResult<Vec<u8>> {
        self.with(inode, |it, _| {
            Ok(it.xattr(name).ok_or(Errno::NODATA)?.to_vec())
        })
    }

    /// The zero-terminated names of all extended attributes.
    ///
    /// # Errors
    /// `STALE`.
    pub fn xattr_names(&self, inode: u32) -> SysResult<Vec<u8>> {
        self.with(inode, |it, _| {
            let names = it.xattrs.iter().flat_map(|xattrs| xattrs.keys());
            Ok(names
                .flat_map(|name| name.iter().copied().chain([0]))
                .collect())
        })
    }

    /// Sets an extended attribute. `must_be` requires that it exists, or that it does not. Setting
    /// an access list clears the set-group-ID bit unless the caller is root or in the inode's
    /// group; only the caller's primary group is known here.
    ///
    /// # Errors
    /// `EXIST`, `NODATA`, `RANGE` for a name, `NOSPC` or `TOOBIG` beyond a limit, `INVAL` for a
    /// malformed access list.
    pub fn set_xattr(
        &self,
        inode: u32,
        name: &[u8],
        value: &[u8],
        must_be: Option<bool>,
        caller: Credentials,
        now: Time,
    ) -> SysResult<()> {
        if !(1..=NAME_MAX).contains(&name.len()) {
            return Err(Errno::RANGE);
        }
        if value.len() > XATTR_MAX {
            return Err(Errno::TOOBIG);
        }
        let is_list = matches!(name, acl::ACCESS | acl::DEFAULT);
        let list = is_list.then(|| AccessList::parse(value).ok_or(Errno::INVAL));
        let list = list.transpose()?;
        self.with(inode, |it, _| {
            let list = list.filter(|_| name == acl::ACCESS);
            let is_mode = list.as_ref().is_some_and(AccessList::is_mode);
            if is_mode {
                self.drop_xattr(it, name);
            } else {
                let before = it
                    .xattr(name)
                    .map(|value| metadata_cost(name.len() + value.len()));
                match (must_be, before) {
                    (Some(true), None) => return Err(Errno::NODATA),
                    (Some(false), Some(_)) => return Err(Errno::EXIST),
                    _ => {}
                }
                if before.is_none() {
                    let names = it.xattrs.iter().flat_map(|xattrs| xattrs.keys());
                    let all: usize = names.map(|name| name.len() + 1).sum();
                    if all + name.len() + 1 > NAMES_MAX {
                        return Err(Errno::NOSPC);
                    }
                }
                let (after, before) =
                    (metadata_cost(name.len() + value.len()), before.unwrap_or(0));
                let all = it.xattrs.as_ref().map_or(0, |xattrs| xattr_bytes(xattrs));
                if all - before + after > XATTRS_MAX as u64 {
                    return Err(Errno::NOSPC);
                }
                self.reserve_metadata(after.saturating_sub(before))?;
                self.release_metadata(before.saturating_sub(after));
                let xattrs = it.xattrs.get_or_insert_default();
                xattrs.insert(name.into(), value.into());
            }
            if let Some(list) = list {
                it.mode = it.mode & !PERMISSIONS | list.mode();
                if caller.user != SUPERUSER && caller.group != it.group {
                    it.mode &= !SET_GROUP;
                }
            }
            it.changed = now;
            Ok(())
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NODATA`.
    pub fn remove_xattr(&self, inode: u32, name: &[u8], now: Time) -> SysResult<()> {
        self.with(inode, |it, _| {
            self.drop_xattr(it, name).ok_or(Errno::NODATA)?;
            it.changed = now;
            Ok(())
        })
    }

    pub(super) fn drop_xattr(&self, it: &mut Inode, name: &[u8]) -> Option<()> {
        let value = it.xattrs.as_mut()?.remove(name)?;
        it.xattrs.take_if(|xattrs| xattrs.is_empty());
        self.release_metadata(metadata_cost(name.len() + value.len()));
        Some(())
    }
}
