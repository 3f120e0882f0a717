//! Reference model of a filesystem: maps in memory. It predicts a call's answer and effects, and
//! knows nothing of blocks, runs or locks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rustix::io::Errno;

use crate::acl;
use crate::directory::NAME_MAX;
use crate::file::SIZE_MAX;
use crate::layout::PAGE_BYTES;
use crate::tree::{AttributeChange, Credentials, KIND, ROOT, RenameMode, SysResult, Time};

const PAGE: u64 = PAGE_BYTES as u64;
const DIRECTORY: u32 = libc::S_IFDIR;
const FILE: u32 = libc::S_IFREG;
const LINK: u32 = libc::S_IFLNK;
const PERMISSIONS: u32 = 0o777;
pub(super) const CAPABILITY: &[u8] = b"security.capability";
/// The metadata overhead of a name, a target or a value.
const TEXT: u64 = 64;

/// The time of the call that is being checked: somewhere between its start and its end.
pub(super) const NOW: Time = Time::MIN;

/// The pages that were written, and the size.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bytes {
    pub size: u64,
    pub pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

/// The numbers of the pages that overlap these bytes.
pub(super) fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    match bytes.start < bytes.end {
        true => bytes.start / PAGE..bytes.end.div_ceil(PAGE),
        false => 0..0,
    }
}

/// The part of these bytes that lies in a page, relative to that page.
fn within(page: u64, bytes: &Range<u64>) -> Range<usize> {
    let begin = page * PAGE;
    let end = (bytes.end - begin).min(PAGE);
    bytes.start.saturating_sub(begin) as usize..end as usize
}

impl Bytes {
    fn page(&mut self, page: u64) -> &mut [u8; PAGE_BYTES] {
        self.pages
            .entry(page)
            .or_insert_with(|| Box::new([0; PAGE_BYTES]))
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        let all = at..at + bytes.len() as u64;
        for page in pages_of(&all) {
            let part = within(page, &all);
            let from = (page * PAGE + part.start as u64 - at) as usize;
            self.page(page)[part.clone()].copy_from_slice(&bytes[from..][..part.len()]);
        }
        self.size = self.size.max(all.end);
    }

    /// Allocates memory for all of these bytes.
    pub(super) fn reserve(&mut self, bytes: &Range<u64>) {
        pages_of(bytes).for_each(|page| {
            self.page(page);
        });
    }

    /// Zeroes these bytes; pages that they cover completely become holes.
    pub(super) fn punch(&mut self, bytes: &Range<u64>) {
        if bytes.start >= bytes.end {
            return;
        }
        self.pages.retain(|page, all| {
            let is_met = *page * PAGE < bytes.end && (page + 1) * PAGE > bytes.start;
            if is_met {
                let part = within(*page, bytes);
                let is_whole = part.len() == PAGE_BYTES;
                all[part].fill(0);
                return !is_whole;
            }
            true
        });
    }

    pub(super) fn blank(&mut self, bytes: &Range<u64>) {
        for page in pages_of(bytes) {
            let part = within(page, bytes);
            if let Some(all) = self.pages.get_mut(&page) {
                all[part].fill(0);
            }
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size <= self.size {
            self.punch(&(size..SIZE_MAX));
        }
        self.size = size;
    }

    pub(super) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let end = self.size.min(at.saturating_add(len as u64));
        let mut all = vec![0; end.saturating_sub(at) as usize];
        for page in pages_of(&(at..end)) {
            if let Some(bytes) = self.pages.get(&page) {
                let part = within(page, &(at..end));
                let to = (page * PAGE + part.start as u64 - at) as usize;
                all[to..][..part.len()].copy_from_slice(&bytes[part]);
            }
        }
        all
    }

    pub(super) fn find(&self, from: u64, is_data: bool) -> SysResult<u64> {
        if from >= self.size {
            return Err(Errno::NXIO);
        }
        if is_data {
            let next = self.pages.range(from / PAGE..).next();
            let next = next.map(|(page, _)| from.max(page * PAGE));
            return next.filter(|at| *at < self.size).ok_or(Errno::NXIO);
        }
        let mut page = from / PAGE;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        Ok(from.max(page * PAGE).min(self.size))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub number: u64,
    pub name: Vec<u8>,
    pub inode: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    File(Bytes),
    Directory {
        entries: Vec<Entry>,
        last: u64,
        parent: u32,
        /// The entry after which the next listing resumes.
        cursor: u64,
    },
    Link(Vec<u8>),
    Other,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    pub device: u32,
    pub known: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub values: BTreeMap<Vec<u8>, Vec<u8>>,
    pub body: Body,
    /// Created without a name, and still has none.
    pub is_unnamed: bool,
}

impl Node {
    fn new(mode: u32, user: u32, group: u32, body: Body) -> Self {
        Self {
            mode,
            user,
            group,
            device: 0,
            known: 1,
            accessed: NOW,
            modified: NOW,
            changed: NOW,
            values: BTreeMap::new(),
            body,
            is_unnamed: false,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.mode & KIND == DIRECTORY
    }

    fn touch(&mut self) {
        self.modified = NOW;
        self.changed = NOW;
    }

    fn clear_set_id_bits(&mut self, is_of_group: bool) {
        if self.mode & libc::S_IXGRP != 0 || !is_of_group {
            self.mode &= !libc::S_ISGID;
        }
        self.mode &= !libc::S_ISUID;
    }

    /// Updates the inode after a write.
    pub(super) fn note_written(&mut self, clears_suid_for: Option<Credentials>) {
        self.touch();
        if let Some(clears_suid_for) = clears_suid_for {
            self.clear_set_id_bits(clears_suid_for.group == self.group);
        }
        self.values.remove(CAPABILITY);
    }

    /// Updates the access time after a read at `now`: after a change, and once a day.
    pub(super) fn note_read(&mut self, now: Time) {
        const DAY: Time = 86_400_000_000_000;
        let changed = self.modified.max(self.changed);
        if self.accessed <= changed || self.accessed.saturating_add(DAY) <= now {
            self.accessed = NOW;
        }
    }

    pub(super) fn change(&mut self, change: &AttributeChange) {
        if let Some(mode) = change.mode {
            self.mode = self.mode & KIND | mode & !KIND;
        }
        if change.user.is_some() || change.group.is_some() {
            self.user = change.user.unwrap_or(self.user);
            self.group = change.group.unwrap_or(self.group);
            if change.mode.is_none() && !self.is_directory() {
                self.clear_set_id_bits(true);
            }
            self.values.remove(CAPABILITY);
        }
        self.accessed = change.accessed.unwrap_or(self.accessed);
        self.modified = change.modified.unwrap_or(self.modified);
        self.changed = NOW;
    }

    /// Sets a value; an access list equivalent to a mode becomes that mode.
    pub(super) fn set_xattr(
        &mut self,
        name: &[u8],
        value: &[u8],
        must_be: Option<bool>,
        caller: Credentials,
    ) -> SysResult<()> {
        let is_known = [&b"user."[..], b"trusted.", b"security."];
        let is_list = name == acl::ACCESS;
        if !is_list && !is_known.iter().any(|it| name.starts_with(it)) {
            return Err(Errno::OPNOTSUPP);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::RANGE);
        }
        if value.len() > 64 << 10 {
            return Err(Errno::TOOBIG);
        }
        if is_list {
            // All lists here have three entries.
            let may = |at: usize| u32::from(value[4 + 8 * at + 2]);
            if value.len() != 28 {
                return Err(Errno::INVAL);
            }
            self.mode = self.mode & !PERMISSIONS | may(0) << 6 | may(1) << 3 | may(2);
            if caller.user != 0 && caller.group != self.group {
                self.mode &= !libc::S_ISGID;
            }
        } else {
            match (must_be, self.values.contains_key(name)) {
                (Some(true), false) => return Err(Errno::NODATA),
                (Some(false), true) => return Err(Errno::EXIST),
                _ => {}
            }
            let text = |(name, value): (&Vec<u8>, &Vec<u8>)| (name.len() + value.len() + 64) as u64;
            let others = self.values.iter().filter(|it| it.0 != name).map(text);
            if others.sum::<u64>() + (name.len() + value.len() + 64) as u64 > 1 << 20 {
                return Err(Errno::NOSPC);
            }
            self.values.insert(name.to_vec(), value.to_vec());
        }
        self.changed = NOW;
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Model {
    pub nodes: BTreeMap<u32, Node>,
    pub most: u64,
}

impl Model {
    pub(super) fn new(most: u64, mode: u32, caller: Credentials) -> Self {
        let root = Node::new(
            DIRECTORY | mode,
            caller.user,
            caller.group,
            Body::Directory {
                entries: Vec::new(),
                last: 0,
                parent: ROOT,
                cursor: 0,
            },
        );
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            most,
        }
    }

    pub(super) fn node(&self, inode: u32) -> SysResult<&Node> {
        self.nodes.get(&inode).ok_or(Errno::STALE)
    }

    pub(super) fn node_mut(&mut self, inode: u32) -> SysResult<&mut Node> {
        self.nodes.get_mut(&inode).ok_or(Errno::STALE)
    }

    pub(super) fn file(&self, inode: u32) -> SysResult<&Bytes> {
        match &self.node(inode)?.body {
            Body::File(bytes) => Ok(bytes),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn file_mut(&mut self, inode: u32) -> &mut Bytes {
        match self.nodes.get_mut(&inode).map(|it| &mut it.body) {
            Some(Body::File(bytes)) => bytes,
            other => panic!("no file: {other:?}"),
        }
    }

    fn entries(&self, directory: u32) -> SysResult<&[Entry]> {
        match &self.node(directory)?.body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn entries_mut(&mut self, directory: u32) -> (&mut Vec<Entry>, &mut u64) {
        match self.nodes.get_mut(&directory).map(|it| &mut it.body) {
            Some(Body::Directory { entries, last, .. }) => (entries, last),
            other => panic!("no directory: {other:?}"),
        }
    }

    /// The link count of each inode; a directory has two plus its subdirectories, or none.
    pub(super) fn links(&self) -> BTreeMap<u32, u32> {
        let mut all: BTreeMap<u32, u32> = self.nodes.keys().map(|it| (*it, 0)).collect();
        let mut within: BTreeMap<u32, u32> = BTreeMap::new();
        for (at, node) in &self.nodes {
            let Body::Directory { entries, .. } = &node.body else {
                continue;
            };
            for entry in entries {
                *all.entry(entry.inode).or_default() += 1;
                let is_directory = self.nodes[&entry.inode].is_directory();
                *within.entry(*at).or_default() += u32::from(is_directory);
            }
        }
        for (inode, links) in &mut all {
            let has_name = *links > 0 || *inode == ROOT;
            if self.nodes[inode].is_directory() && has_name {
                *links = 2 + within.get(inode).unwrap_or(&0);
            }
        }
        all
    }

    /// Inodes, and further names of files.
    pub(super) fn count(&self, links: &BTreeMap<u32, u32>) -> u64 {
        let files = self.nodes.iter().filter(|(_, it)| !it.is_directory());
        let further: u32 = files.map(|(it, _)| links[it].saturating_sub(1)).sum();
        self.nodes.len() as u64 + u64::from(further)
    }

    /// The metadata bytes of names, targets and values.
    pub(super) fn metadata_bytes(&self) -> u64 {
        let of = |node: &Node| {
            let values = node.values.iter();
            let values = values.map(|(name, value)| TEXT + (name.len() + value.len()) as u64);
            let body = match &node.body {
                Body::Directory { entries, .. } => {
                    let names = entries.iter().map(|it| TEXT + it.name.len() as u64);
                    names.sum()
                }
                Body::Link(target) => TEXT + target.len() as u64,
                _ => 0,
            };
            values.sum::<u64>() + body
        };
        self.nodes.values().map(of).sum()
    }

    /// Frees the inodes that have no name and no references; returns them.
    pub(super) fn reclaim(&mut self) {
        loop {
            let links = self.links();
            let is_gone = |(inode, node): (&u32, &Node)| {
                (links[inode] == 0 && node.known == 0).then_some(*inode)
            };
            let gone: BTreeSet<u32> = self.nodes.iter().filter_map(is_gone).collect();
            if gone.is_empty() {
                return;
            }
            self.nodes.retain(|inode, _| !gone.contains(inode));
        }
    }

    fn check_name(name: &[u8]) -> SysResult<()> {
        match name.len() {
            0 => Err(Errno::NOENT),
            1..=NAME_MAX => Ok(()),
            _ => Err(Errno::NAMETOOLONG),
        }
    }

    pub(super) fn get(&self, directory: u32, name: &[u8]) -> SysResult<u32> {
        Self::check_name(name)?;
        let entries = self.entries(directory)?;
        match (name, &self.node(directory)?.body) {
            (b".", _) => Ok(directory),
            (b"..", Body::Directory { parent, .. }) => Ok(*parent),
            _ => {
                let found = entries.iter().find(|it| it.name == name);
                Ok(found.ok_or(Errno::NOENT)?.inode)
            }
        }
    }

    fn check_lives(&self, directory: u32) -> SysResult<()> {
        self.entries(directory)?;
        match self.links()[&directory] {
            0 => Err(Errno::NOENT),
            _ => Ok(()),
        }
    }

    fn enter(&mut self, directory: u32, name: &[u8], inode: u32) {
        let (entries, last) = self.entries_mut(directory);
        *last += 1;
        entries.push(Entry {
            number: *last,
            name: name.to_vec(),
            inode,
        });
        self.nodes.get_mut(&directory).unwrap().touch();
    }

    fn leave(&mut self, directory: u32, name: &[u8]) {
        let (entries, _) = self.entries_mut(directory);
        entries.retain(|it| it.name != name);
        self.nodes.get_mut(&directory).unwrap().touch();
    }

    fn exchange(&mut self, directory: u32, name: &[u8], inode: u32) {
        let (entries, _) = self.entries_mut(directory);
        let entry = entries.iter_mut().find(|it| it.name == name);
        entry.unwrap().inode = inode;
        self.nodes.get_mut(&directory).unwrap().touch();
    }

    /// Whether an inode of this name can be created, and the inode.
    pub(super) fn may_make(
        &self,
        parent: u32,
        name: &[u8],
        mode: u32,
        caller: Credentials,
    ) -> SysResult<Node> {
        match self.get(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) if !name.is_empty() => {}
            Err(error) => return Err(error),
        }
        self.may_make_unnamed(parent, mode, caller)
    }

    /// Whether an inode without a name can be created there, and the inode.
    pub(super) fn may_make_unnamed(
        &self,
        parent: u32,
        mode: u32,
        caller: Credentials,
    ) -> SysResult<Node> {
        self.check_lives(parent)?;
        if self.count(&self.links()) >= self.most {
            return Err(Errno::NOSPC);
        }
        let within = self.node(parent)?;
        let (mut mode, mut group) = (mode, caller.group);
        if mode & KIND != LINK {
            mode &= !(caller.umask & PERMISSIONS);
        }
        if within.mode & libc::S_ISGID != 0 {
            group = within.group;
            if mode & KIND == DIRECTORY {
                mode |= libc::S_ISGID;
            }
        }
        let body = match mode & KIND {
            DIRECTORY => Body::Directory {
                entries: Vec::new(),
                last: 0,
                parent,
                cursor: 0,
            },
            FILE => Body::File(Bytes::default()),
            _ => Body::Other,
        };
        Ok(Node::new(mode, caller.user, group, body))
    }

    pub(super) fn made(&mut self, parent: u32, name: &[u8], inode: u32, node: Node) {
        self.nodes.insert(inode, node);
        self.enter(parent, name, inode);
    }

    pub(super) fn made_nameless(&mut self, inode: u32, node: Node) {
        let is_unnamed = true;
        self.nodes.insert(inode, Node { is_unnamed, ..node });
    }

    pub(super) fn link(&mut self, inode: u32, parent: u32, name: &[u8]) -> SysResult<()> {
        Self::check_name(name)?;
        let it = self.node(inode)?;
        if it.is_directory() {
            return Err(Errno::PERM);
        }
        let (links, is_first) = (self.links(), it.is_unnamed);
        if links[&inode] == 0 && !is_first {
            return Err(Errno::NOENT);
        }
        match self.get(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => self.check_lives(parent)?,
            Err(error) => return Err(error),
        }
        if self.count(&links) >= self.most && !is_first {
            return Err(Errno::NOSPC);
        }
        self.enter(parent, name, inode);
        let node = self.node_mut(inode)?;
        node.is_unnamed = false;
        node.changed = NOW;
        node.known += 1;
        Ok(())
    }

    pub(super) fn unlink(&mut self, parent: u32, name: &[u8]) -> SysResult<()> {
        let inode = self.get(parent, name)?;
        if self.node(inode)?.is_directory() {
            return Err(Errno::ISDIR);
        }
        self.leave(parent, name);
        self.node_mut(inode)?.changed = NOW;
        Ok(())
    }

    pub(super) fn remove_directory(&mut self, parent: u32, name: &[u8]) -> SysResult<()> {
        let inode = self.get(parent, name)?;
        if !self.entries(inode)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.leave(parent, name);
        self.node_mut(inode)?.changed = NOW;
        Ok(())
    }

    fn is_within(&self, mut at: u32, other: u32) -> bool {
        loop {
            if at == other {
                return true;
            }
            match self.nodes.get(&at).map(|it| &it.body) {
                Some(Body::Directory { parent, .. }) if *parent != at => at = *parent,
                _ => return false,
            }
        }
    }

    fn arrived(&mut self, inode: u32, directory: u32) {
        let node = self.nodes.get_mut(&inode).unwrap();
        node.changed = NOW;
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = directory;
        }
    }

    /// Moves a name; returns whether a whiteout is to take its place, for which see
    /// [`Model::add_whiteout`].
    pub(super) fn rename(
        &mut self,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        how: RenameMode,
        leaves: bool,
    ) -> SysResult<bool> {
        Self::check_name(to.1)?;
        let inode = self.get(from.0, from.1)?;
        let is_directory = self.node(inode)?.is_directory();
        self.check_lives(to.0)?;
        let other = match self.get(to.0, to.1) {
            Ok(other) => Some(other),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        if is_directory && self.is_within(to.0, inode) {
            return Err(Errno::INVAL);
        }
        let Some(other) = other else {
            if how == RenameMode::Exchange {
                return Err(Errno::NOENT);
            }
            self.check_room_for(leaves)?;
            self.enter(to.0, to.1, inode);
            if !leaves {
                self.leave(from.0, from.1);
            }
            self.arrived(inode, to.0);
            return Ok(leaves);
        };
        if how == RenameMode::NoReplace {
            return Err(Errno::EXIST);
        }
        if other == inode {
            return Ok(false);
        }
        let is_other_directory = self.node(other)?.is_directory();
        if how == RenameMode::Exchange {
            if is_other_directory && self.is_within(from.0, other) {
                return Err(Errno::INVAL);
            }
            self.exchange(to.0, to.1, inode);
            self.exchange(from.0, from.1, other);
            self.arrived(inode, to.0);
            self.arrived(other, from.0);
            return Ok(false);
        }
        match (is_directory, is_other_directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !self.entries(other)?.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.check_room_for(leaves)?;
        self.exchange(to.0, to.1, inode);
        if !leaves {
            self.leave(from.0, from.1);
        }
        self.node_mut(other)?.changed = NOW;
        self.arrived(inode, to.0);
        Ok(leaves)
    }

    fn check_room_for(&self, leaves: bool) -> SysResult<()> {
        match leaves && self.count(&self.links()) >= self.most {
            true => Err(Errno::NOSPC),
            false => Ok(()),
        }
    }

    /// Adds the whiteout under the old name.
    pub(super) fn add_whiteout(&mut self, at: u32, name: &[u8], inode: u32, caller: Credentials) {
        let within = &self.nodes[&at];
        let group = match within.mode & libc::S_ISGID {
            0 => caller.group,
            _ => within.group,
        };
        let node = Node::new(libc::S_IFCHR, caller.user, group, Body::Other);
        self.nodes.insert(inode, node);
        self.exchange(at, name, inode);
    }
}
