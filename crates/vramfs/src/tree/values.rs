//! Extended attributes of inodes, an access list among them: it says the permissions too.

use rustix::io::Errno;

use super::{Answer, Caller, Inode, SET_GROUP, SUPERUSER, Time, Tree, cost, text_of};
use crate::acl::{self, List, PERMISSIONS};
use crate::directory::NAME_MAX;

/// The longest value of one, and all of an inode's together with their names.
pub(super) const VALUE_MAX: usize = 64 << 10;
pub(super) const VALUES_MAX: usize = 1 << 20;
/// Names of an inode's, each with a zero behind it: the kernel lists no more.
const NAMES_MAX: usize = 64 << 10;

impl Tree {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NODATA`.
    pub fn value(&self, inode: u32, name: &[u8]) -> Answer<Vec<u8>> {
        self.with(inode, |it, _| {
            Ok(it.value(name).ok_or(Errno::NODATA)?.to_vec())
        })
    }

    /// The names of all extended attributes, each with a zero behind it.
    ///
    /// # Errors
    /// `STALE`.
    pub fn value_names(&self, inode: u32) -> Answer<Vec<u8>> {
        self.with(inode, |it, _| {
            let names = it.values.iter().flat_map(|values| values.keys());
            Ok(names
                .flat_map(|name| name.iter().copied().chain([0]))
                .collect())
        })
    }

    /// Sets an extended attribute. `must_be` says whether there has to be one. An access list of somebody who is not of the
    /// group takes its bit; other groups of his than his first are not known here.
    ///
    /// # Errors
    /// `EXIST`, `NODATA`, `RANGE` for a name, `NOSPC` or `TOOBIG` for more than there may be, or can be listed, `INVAL` for
    /// an access list that is none.
    pub fn set_value(
        &self,
        inode: u32,
        name: &[u8],
        value: &[u8],
        must_be: Option<bool>,
        caller: Caller,
        now: Time,
    ) -> Answer<()> {
        if !(1..=NAME_MAX).contains(&name.len()) {
            return Err(Errno::RANGE);
        }
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        let is_list = matches!(name, acl::ACCESS | acl::DEFAULT);
        let list = is_list.then(|| List::parse(value).ok_or(Errno::INVAL));
        let list = list.transpose()?;
        self.with(inode, |it, _| {
            let list = list.filter(|_| name == acl::ACCESS);
            let is_mode = list.as_ref().is_some_and(List::is_mode);
            if is_mode {
                self.drop_value(it, name);
            } else {
                let before = it.value(name).map(|value| cost(name.len() + value.len()));
                match (must_be, before) {
                    (Some(true), None) => return Err(Errno::NODATA),
                    (Some(false), Some(_)) => return Err(Errno::EXIST),
                    _ => {}
                }
                if before.is_none() {
                    let names = it.values.iter().flat_map(|values| values.keys());
                    let all: usize = names.map(|name| name.len() + 1).sum();
                    if all + name.len() + 1 > NAMES_MAX {
                        return Err(Errno::NOSPC);
                    }
                }
                let (after, before) = (cost(name.len() + value.len()), before.unwrap_or(0));
                let all = it.values.as_ref().map_or(0, |values| text_of(values));
                if all - before + after > VALUES_MAX as u64 {
                    return Err(Errno::NOSPC);
                }
                self.take_text(after.saturating_sub(before))?;
                self.give_text(before.saturating_sub(after));
                let values = it.values.get_or_insert_default();
                values.insert(name.into(), value.into());
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
    pub fn remove_value(&self, inode: u32, name: &[u8], now: Time) -> Answer<()> {
        self.with(inode, |it, _| {
            self.drop_value(it, name).ok_or(Errno::NODATA)?;
            it.changed = now;
            Ok(())
        })
    }

    pub(super) fn drop_value(&self, it: &mut Inode, name: &[u8]) -> Option<()> {
        let value = it.values.as_mut()?.remove(name)?;
        it.values.take_if(|values| values.is_empty());
        self.give_text(cost(name.len() + value.len()));
        Some(())
    }
}
