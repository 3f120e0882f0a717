//! Random operations checked against a model of a tree, and the cases that they do not reach.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::inode::{FILE, metadata_cost};
use super::xattr::{XATTR_MAX, XATTRS_MAX};
use super::*;

const ME: Credentials = Credentials {
    user: 7,
    group: 8,
    umask: 0,
};

/// The model: each inode's type, and the entries of each directory.
#[derive(Default)]
struct Model {
    directories: HashMap<u32, BTreeMap<Vec<u8>, u32>>,
    kinds: HashMap<u32, u32>,
    known: HashMap<u32, u64>,
}

impl Model {
    fn new() -> Self {
        let mut it = Self::default();
        it.directories.insert(ROOT, BTreeMap::new());
        it.kinds.insert(ROOT, DIRECTORY);
        it.known.insert(ROOT, 1);
        it
    }

    fn is_directory(&self, inode: u32) -> bool {
        self.kinds[&inode] == DIRECTORY
    }

    /// The link count of an inode.
    fn links(&self, inode: u32) -> u32 {
        let all = self.directories.values().flat_map(BTreeMap::values);
        let names = all.filter(|it| **it == inode).count() as u32;
        if !self.is_directory(inode) {
            return names;
        }
        if names == 0 && inode != ROOT {
            return 0;
        }
        let within = self.directories[&inode].values();
        2 + within.filter(|it| self.is_directory(**it)).count() as u32
    }

    /// Inodes, and further names of files.
    fn count(&self) -> u64 {
        let files = self.kinds.keys().filter(|it| !self.is_directory(**it));
        let further: u32 = files.map(|it| self.links(*it).saturating_sub(1)).sum();
        self.kinds.len() as u64 + u64::from(further)
    }

    fn parent(&self, inode: u32) -> Option<u32> {
        let mut all = self.directories.iter();
        all.find(|(_, entries)| entries.values().any(|it| *it == inode))
            .map(|(at, _)| *at)
    }

    fn is_within(&self, mut at: u32, other: u32) -> bool {
        loop {
            if at == other {
                return true;
            }
            match self.parent(at) {
                Some(parent) => at = parent,
                None => return false,
            }
        }
    }

    /// Checks that names can be created in a directory.
    fn lives(&self, directory: u32) -> SysResult<()> {
        match self.links(directory) {
            _ if !self.is_directory(directory) => Err(Errno::NOTDIR),
            0 => Err(Errno::NOENT),
            _ => Ok(()),
        }
    }

    fn get(&self, directory: u32, name: &[u8]) -> SysResult<u32> {
        let entries = self.directories.get(&directory).ok_or(Errno::NOTDIR)?;
        entries.get(name).copied().ok_or(Errno::NOENT)
    }

    fn set(&mut self, directory: u32, name: &[u8], inode: u32) {
        let entries = self.directories.get_mut(&directory);
        entries.unwrap().insert(name.to_vec(), inode);
    }

    fn unset(&mut self, directory: u32, name: &[u8]) {
        self.directories.get_mut(&directory).unwrap().remove(name);
    }

    fn rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), how: RenameMode) -> SysResult<()> {
        let inode = self.get(from.0, from.1)?;
        self.lives(to.0)?;
        let other = match self.get(to.0, to.1) {
            Ok(other) => Some(other),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        if self.is_directory(inode) && self.is_within(to.0, inode) {
            return Err(Errno::INVAL);
        }
        match (other, how) {
            (Some(_), RenameMode::NoReplace) => return Err(Errno::EXIST),
            (Some(other), _) if other == inode => return Ok(()),
            (None, RenameMode::Exchange) => return Err(Errno::NOENT),
            (None, _) => {}
            (Some(other), RenameMode::Exchange) => {
                if self.is_directory(other) && self.is_within(from.0, other) {
                    return Err(Errno::INVAL);
                }
                self.set(from.0, from.1, other);
                self.set(to.0, to.1, inode);
                return Ok(());
            }
            (Some(other), RenameMode::Replace) => {
                match (self.is_directory(inode), self.is_directory(other)) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    (true, true) if !self.directories[&other].is_empty() => {
                        return Err(Errno::NOTEMPTY);
                    }
                    _ => {}
                }
            }
        }
        self.unset(from.0, from.1);
        self.set(to.0, to.1, inode);
        Ok(())
    }

    /// Frees the inodes without a name that the kernel does not reference.
    fn reclaim(&mut self) {
        let all: Vec<u32> = self.kinds.keys().copied().collect();
        for inode in all {
            if self.links(inode) == 0 && self.known.get(&inode).is_none_or(|it| *it == 0) {
                self.kinds.remove(&inode);
                self.directories.remove(&inode);
                self.known.remove(&inode);
            }
        }
    }
}

fn same(tree: &Tree, model: &Model) {
    assert_eq!(tree.inodes().0, model.count());
    let names: usize = model.directories.values().map(BTreeMap::len).sum();
    assert_eq!(tree.metadata_bytes().0, names as u64 * metadata_cost(1));
    let nameless = model.kinds.keys().filter(|it| model.links(**it) == 0);
    assert_eq!(tree.orphans(), nameless.count() as u64);
    for (inode, kind) in &model.kinds {
        let attributes = tree.attributes(*inode).unwrap();
        assert_eq!(
            (attributes.mode & KIND, attributes.links),
            (*kind, model.links(*inode))
        );
        let Some(entries) = model.directories.get(inode) else {
            continue;
        };
        let mut got = BTreeMap::new();
        let mut numbers = BTreeSet::new();
        let mut visit = |number: u64, name: &[u8], it: &InodeAttributes| {
            assert!(numbers.insert(number) && numbers.last() == Some(&number));
            got.insert(name.to_vec(), (it.inode, it.mode));
            true
        };
        tree.read_directory(*inode, 0, false, &mut visit).unwrap();
        assert_eq!(got.remove(&b"."[..]).unwrap().0, *inode);
        let parent = got.remove(&b".."[..]).unwrap().0;
        if model.links(*inode) > 0 {
            assert_eq!(parent, model.parent(*inode).unwrap_or(ROOT));
        }
        let got: BTreeMap<_, _> = got.into_iter().map(|(name, it)| (name, it.0)).collect();
        assert_eq!(got, *entries);
    }
}

#[test]
fn random_operations_match_the_model() {
    let mut random = fastrand::Rng::new();
    eprintln!("seed {}", random.get_seed());
    for _ in 0..60 {
        let tree = Tree::new(60, 0o755, ME, 1);
        let mut model = Model::new();
        for now in 2..600 {
            let all: Vec<u32> = model.kinds.keys().copied().collect();
            let any = |random: &mut fastrand::Rng| all[random.usize(..all.len())];
            // In most cases a directory.
            let place = |random: &mut fastrand::Rng| {
                let directories: Vec<u32> = model.directories.keys().copied().collect();
                match random.u32(..12) {
                    0 => all[random.usize(..all.len())],
                    _ => directories[random.usize(..directories.len())],
                }
            };
            let name = |random: &mut fastrand::Rng| random.u32(..6).to_string().into_bytes();
            let (at, called) = (place(&mut random), name(&mut random));
            match random.u32(..8) {
                0 | 1 => {
                    let kinds = [FILE, DIRECTORY, DIRECTORY, libc::S_IFIFO, libc::S_IFCHR];
                    let kind = kinds[random.usize(..kinds.len())];
                    let got = tree.make(at, &called, kind | 0o644, 5, ME, now);
                    let expected = match model.get(at, &called) {
                        Ok(_) => Err(Errno::EXIST),
                        Err(Errno::NOENT) => model.lives(at).and(match model.count() {
                            60.. => Err(Errno::NOSPC),
                            _ => Ok(()),
                        }),
                        Err(error) => Err(error),
                    };
                    assert_eq!(got.map(|_| ()), expected);
                    if let Ok(it) = got {
                        assert_eq!((it.mode, it.user, it.modified), (kind | 0o644, 7, now));
                        model.kinds.insert(it.inode, kind);
                        if kind == DIRECTORY {
                            model.directories.insert(it.inode, BTreeMap::new());
                        }
                        model.set(at, &called, it.inode);
                        model.known.insert(it.inode, 1);
                    }
                }
                2 => {
                    let inode = any(&mut random);
                    let got = tree.link(inode, at, &called, now).map(|it| it.inode);
                    let expected = match model.get(at, &called) {
                        _ if model.is_directory(inode) => Err(Errno::PERM),
                        _ if model.links(inode) == 0 => Err(Errno::NOENT),
                        Err(Errno::NOTDIR) => Err(Errno::NOTDIR),
                        found => model.lives(at).and(match found {
                            Ok(_) => Err(Errno::EXIST),
                            Err(_) if model.count() >= 60 => Err(Errno::NOSPC),
                            Err(_) => Ok(inode),
                        }),
                    };
                    assert_eq!(got, expected);
                    if got.is_ok() {
                        model.set(at, &called, inode);
                        *model.known.entry(inode).or_default() += 1;
                    }
                }
                3 => {
                    let got = tree.unlink(at, &called, now);
                    let expected =
                        model
                            .get(at, &called)
                            .and_then(|inode| match model.is_directory(inode) {
                                true => Err(Errno::ISDIR),
                                false => Ok(()),
                            });
                    assert_eq!(got, expected);
                    if got.is_ok() {
                        model.unset(at, &called);
                    }
                }
                4 => {
                    let got = tree.remove_directory(at, &called, now);
                    let expected = model.get(at, &called).and_then(|inode| {
                        let entries = model.directories.get(&inode).ok_or(Errno::NOTDIR)?;
                        match entries.is_empty() {
                            true => Ok(()),
                            false => Err(Errno::NOTEMPTY),
                        }
                    });
                    assert_eq!(got, expected);
                    if got.is_ok() {
                        model.unset(at, &called);
                    }
                }
                5 | 6 => {
                    let (to, other) = (place(&mut random), name(&mut random));
                    let how = [
                        RenameMode::Replace,
                        RenameMode::Replace,
                        RenameMode::NoReplace,
                        RenameMode::Exchange,
                    ];
                    let how = how[random.usize(..4)];
                    let leaves = how != RenameMode::Exchange && random.bool();
                    let whiteout = leaves.then_some(ME);
                    let got = tree.rename((at, &called), (to, &other), how, whiteout, now);
                    let (from, to) = ((at, &*called), (to, &*other));
                    let expected = match leaves && model.count() >= 60 {
                        // Another error may come first.
                        true if got == Err(Errno::NOSPC) => got,
                        _ => model.rename(from, to, how),
                    };
                    assert_eq!(got, expected, "{how:?}");
                    let is_gone = || model.get(at, &called) == Err(Errno::NOENT);
                    if got.is_ok() && leaves && is_gone() {
                        let left = tree.look_up(at, &called).unwrap();
                        assert_eq!((left.mode, left.device), (libc::S_IFCHR, 0));
                        tree.forget(left.inode, 1);
                        model.kinds.insert(left.inode, libc::S_IFCHR);
                        model.set(at, &called, left.inode);
                    }
                }
                _ => {
                    let inode = any(&mut random);
                    let known = model.known.entry(inode).or_default();
                    if inode != ROOT && *known > 0 {
                        let times = random.u64(1..=*known);
                        *known -= times;
                        tree.forget(inode, times);
                    }
                }
            }
            model.reclaim();
            same(&tree, &model);
        }
    }
}

#[test]
fn the_group_and_the_set_group_id_bit_are_inherited() {
    let tree = Tree::new(10, 0o755, ME, 1);
    let shared = tree
        .make(ROOT, b"shared", DIRECTORY | 0o2775, 0, ME, 1)
        .unwrap();
    let change = AttributeChange {
        group: Some(99),
        mode: Some(0o2775),
        ..AttributeChange::default()
    };
    tree.change(shared.inode, &change, 2).unwrap();
    let inner = tree
        .make(shared.inode, b"inner", DIRECTORY | 0o755, 0, ME, 3)
        .unwrap();
    let file = tree
        .make(shared.inode, b"file", FILE | 0o644, 0, ME, 3)
        .unwrap();
    assert_eq!((inner.group, inner.mode), (99, DIRECTORY | 0o2755));
    assert_eq!((file.group, file.mode), (99, FILE | 0o644));
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let tree = Tree::new(10, 0o755, ME, 1);
    let set = |name: &[u8], value: &[u8], must| tree.set_xattr(ROOT, name, value, must, ME, 2);
    assert_eq!(tree.xattr(ROOT, b"user.a"), Err(Errno::NODATA));
    assert_eq!(set(b"user.a", b"1", Some(true)), Err(Errno::NODATA));
    assert_eq!(set(b"user.a", b"1", Some(false)), Ok(()));
    assert_eq!(set(b"user.a", b"2", Some(false)), Err(Errno::EXIST));
    assert_eq!(set(b"user.b", b"", None), Ok(()));
    assert_eq!(tree.xattr(ROOT, b"user.a").unwrap(), b"1");
    assert_eq!(tree.xattr_names(ROOT).unwrap(), b"user.a\0user.b\0");
    assert_eq!(
        set(b"user.c", &vec![0; XATTR_MAX + 1], None),
        Err(Errno::TOOBIG)
    );
    assert_eq!(set(&[b'x'; 256], b"", None), Err(Errno::RANGE));
    assert_eq!(tree.remove_xattr(ROOT, b"user.a", 3), Ok(()));
    assert_eq!(tree.remove_xattr(ROOT, b"user.a", 3), Err(Errno::NODATA));
    assert_eq!(tree.attributes(ROOT).unwrap().changed, 3);
}

#[test]
fn a_default_list_is_inherited_instead_of_the_umask_and_a_mode_changes_it() {
    let entry = |tag: u16, may: u16, id: u32| {
        let head = tag.to_le_bytes().into_iter().chain(may.to_le_bytes());
        head.chain(id.to_le_bytes()).collect::<Vec<u8>>()
    };
    let list = |owner, named, mask, others| {
        let all = [
            entry(1, owner, !0),
            entry(2, named, 99),
            entry(4, 5, !0),
            entry(16, mask, !0),
            entry(32, others, !0),
        ];
        [vec![2, 0, 0, 0], all.concat()].concat()
    };
    let tree = Tree::new(20, 0o755, ME, 1);
    let me = Credentials { umask: 0o77, ..ME };
    let plain = tree.make(ROOT, b"plain", FILE | 0o666, 0, me, 2).unwrap();
    assert_eq!(plain.mode, FILE | 0o600);
    let default = list(7, 6, 7, 4);
    tree.set_xattr(ROOT, acl::DEFAULT, &default, None, ME, 3)
        .unwrap();
    let file = tree.make(ROOT, b"file", FILE | 0o640, 0, me, 4).unwrap();
    assert_eq!(file.mode, FILE | 0o640);
    let access = |inode| tree.xattr(inode, acl::ACCESS);
    assert_eq!(access(file.inode), Ok(list(6, 6, 4, 0)));
    assert_eq!(tree.xattr(file.inode, acl::DEFAULT), Err(Errno::NODATA));
    let inner = tree.make(ROOT, b"inner", DIRECTORY | 0o777, 0, me, 4);
    let inner = inner.unwrap();
    assert_eq!(inner.mode, DIRECTORY | 0o774);
    assert_eq!(tree.xattr(inner.inode, acl::DEFAULT), Ok(default));
    let change = AttributeChange {
        mode: Some(0o711),
        ..AttributeChange::default()
    };
    tree.change(file.inode, &change, 5).unwrap();
    assert_eq!(access(file.inode), Ok(list(7, 6, 1, 1)));
    // A list that is equivalent to a mode becomes that mode.
    let mode = [
        vec![2, 0, 0, 0],
        entry(1, 6, !0),
        entry(4, 4, !0),
        entry(32, 0, !0),
    ]
    .concat();
    tree.set_xattr(file.inode, acl::ACCESS, &mode, None, ME, 6)
        .unwrap();
    assert_eq!(access(file.inode), Err(Errno::NODATA));
    assert_eq!(tree.attributes(file.inode).unwrap().mode, FILE | 0o640);
    let bad = tree.set_xattr(file.inode, acl::ACCESS, b"x", None, ME, 6);
    assert_eq!(bad, Err(Errno::INVAL));
}

#[test]
fn listed_inodes_are_referenced_until_they_are_forgotten() {
    let tree = Tree::new(10, 0o755, ME, 1);
    let made = tree.make(ROOT, b"file", FILE | 0o644, 0, ME, 2).unwrap();
    let read = |with_attributes: bool, takes: bool| {
        let visit = |number: u64, _: &[u8], _: &InodeAttributes| number <= 2 || takes;
        tree.read_directory(ROOT, 0, with_attributes, visit)
            .unwrap();
    };
    // Referenced once by its creation, then by each listing that took it with attributes, and by
    // nothing else.
    read(true, true);
    read(true, false);
    read(false, true);
    tree.forget(made.inode, 1);
    tree.unlink(ROOT, b"file", 3).unwrap();
    assert_eq!((tree.orphans(), tree.inodes().0), (1, 2));
    assert_eq!(tree.attributes(made.inode).unwrap().links, 0);
    tree.forget(made.inode, 1);
    assert_eq!((tree.orphans(), tree.inodes().0), (0, 1));
    assert_eq!(tree.attributes(made.inode), Err(Errno::STALE));
}

#[test]
fn each_further_name_counts_as_an_inode() {
    let tree = Tree::new(10, 0o755, ME, 1);
    let file = tree.make(ROOT, b"0", FILE | 0o644, 0, ME, 2).unwrap().inode;
    let link = |name: &str| tree.link(file, ROOT, name.as_bytes(), 3).map(drop);
    for name in 1..9 {
        assert_eq!(link(&name.to_string()), Ok(()));
    }
    assert_eq!(tree.inodes(), (10, 10));
    assert_eq!(link("more"), Err(Errno::NOSPC));
    assert_eq!(link("0"), Err(Errno::EXIST));
    let made = tree.make(ROOT, b"more", FILE | 0o644, 0, ME, 4);
    assert_eq!(made, Err(Errno::NOSPC));
    tree.unlink(ROOT, b"0", 5).unwrap();
    assert_eq!(link("more"), Ok(()));
    for name in ["1", "2", "3", "4", "5", "6", "7", "8", "more"] {
        tree.unlink(ROOT, name.as_bytes(), 6).unwrap();
    }
    // It is still referenced, and counts as one.
    assert_eq!(tree.inodes().0, 2);
    tree.forget(file, 100);
    assert_eq!((tree.inodes().0, tree.metadata_bytes().0), (1, 0));
}

#[test]
fn names_and_values_are_limited_on_every_path() {
    let tree = Tree::new(100, 0o755, ME, 1);
    let value = vec![1; XATTR_MAX];
    let name = |at: u32| format!("user.{at}").into_bytes();
    let set = |inode, at, value: &[u8]| tree.set_xattr(inode, &name(at), value, None, ME, 2);
    let fits = (XATTRS_MAX / (XATTR_MAX + 100)) as u32;
    // A value that replaces a small one is counted with its own length.
    for at in 0..2 * fits {
        assert_eq!(set(ROOT, at, b""), Ok(()));
    }
    let long = (0..2 * fits).filter(|at| set(ROOT, *at, &value).is_ok());
    assert_eq!(long.count() as u32, fits);
    assert_eq!(set(ROOT, fits + 1, &value), Err(Errno::NOSPC));
    assert_eq!(tree.xattr(ROOT, &name(fits + 1)), Ok(vec![]));
    // The limit for all inodes together is lower than the sum of their own limits.
    let mut inodes = vec![];
    let full = 'all: loop {
        let called = inodes.len().to_string().into_bytes();
        let made = tree.make(ROOT, &called, FILE | 0o644, 0, ME, 3).unwrap();
        inodes.push(made.inode);
        for at in 0..fits {
            if set(made.inode, at, &value).is_err() {
                break 'all made.inode;
            }
        }
    };
    let (used, most) = tree.metadata_bytes();
    assert!(
        used <= most && most - used < XATTR_MAX as u64 + 100,
        "{used} of {most}"
    );
    let target = vec![b'x'; 4000];
    let links = (0..40).map(|at| tree.make_link(ROOT, &name(at), &target, ME, 4));
    assert!(links.into_iter().any(|made| made == Err(Errno::NOSPC)));
    // What is removed is released completely.
    tree.remove_xattr(full, &name(0), 5).unwrap();
    assert_eq!(set(full, 0, &value), Ok(()));
    for at in 0..40 {
        tree.unlink(ROOT, &name(at), 6).unwrap_or_default();
    }
    for (at, inode) in inodes.iter().enumerate() {
        tree.unlink(ROOT, at.to_string().as_bytes(), 6).unwrap();
        tree.forget(*inode, 1);
    }
    for at in 0..2 * fits {
        tree.remove_xattr(ROOT, &name(at), 7).unwrap();
    }
    let left = (2..=100).filter_map(|it| tree.attributes(it).ok());
    left.for_each(|it| tree.forget(it.inode, 1));
    assert_eq!((tree.inodes().0, tree.metadata_bytes().0), (1, 0));
}

#[test]
fn a_rename_works_without_space_for_another_name() {
    let tree = Tree::new(100, 0o755, ME, 1);
    let make = |name: &[u8]| tree.make(ROOT, name, FILE | 0o600, 0, ME, 2).unwrap().inode;
    let set = |inode: u32, len: usize| {
        let name = tree.metadata_bytes().0.to_string();
        tree.set_xattr(inode, name.as_bytes(), &vec![0; len], None, ME, 3)
    };
    make(b"first");
    make(b"second");
    for at in 0..97u32 {
        let inode = make(&at.to_le_bytes());
        while set(inode, XATTR_MAX).is_ok() {}
    }
    // Fills what is left, except for a hundred bytes.
    let left = tree.metadata_bytes().1 - tree.metadata_bytes().0;
    set(2, left as usize - 200).unwrap();
    let full = tree.metadata_bytes();
    let rename = |from: &[u8], to: &[u8]| {
        tree.rename((ROOT, from), (ROOT, to), RenameMode::Replace, None, 4)
    };
    let long = vec![b'n'; NAME_MAX];
    assert_eq!(rename(b"second", &long), Err(Errno::NOSPC), "{full:?}");
    assert_eq!(tree.metadata_bytes(), full);
    assert_eq!(rename(b"first", b"fifth"), Ok(()));
    assert_eq!(tree.metadata_bytes(), full);
    assert_eq!(rename(b"second", b"2"), Ok(()));
    assert!(tree.metadata_bytes().0 < full.0);
}

#[test]
fn attribute_names_are_limited_to_what_can_be_listed() {
    let tree = Tree::new(10, 0o755, ME, 1);
    let set = |at: u32| {
        let name = format!("user.{at:0250}");
        tree.set_xattr(ROOT, name.as_bytes(), b"", None, ME, 2)
    };
    let fit = (0..400).take_while(|at| set(*at).is_ok()).count();
    assert_eq!(fit, (64 << 10) / 256);
    assert_eq!(set(399), Err(Errno::NOSPC));
    assert_eq!(set(0), Ok(()));
    assert_eq!(tree.xattr_names(ROOT).unwrap().len(), 64 << 10);
}

#[test]
fn a_rejected_access_list_leaves_the_mode_unchanged() {
    let tree = Tree::new(10, 0o755, ME, 1);
    let file = tree.make(ROOT, b"file", FILE | 0o600, 0, ME, 2).unwrap();
    let list = |entries: &[(u16, u16, u32)]| {
        let mut value = vec![2, 0, 0, 0];
        for (tag, may, id) in entries {
            value.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    };
    let all = list(&[(1, 7, !0), (2, 7, 99), (4, 7, !0), (16, 7, !0), (32, 7, !0)]);
    let set = |must| tree.set_xattr(file.inode, acl::ACCESS, &all, must, ME, 3);
    assert_eq!(set(Some(true)), Err(Errno::NODATA));
    for at in 0..100 {
        let name = format!("user.{at}");
        let room = XATTRS_MAX / 16 - 200;
        let full = tree.set_xattr(file.inode, name.as_bytes(), &vec![1; room], None, ME, 3);
        assert!(full.is_ok() || at >= 16);
    }
    while tree
        .set_xattr(
            file.inode,
            format!("user.x{}", tree.metadata_bytes().0).as_bytes(),
            b"",
            None,
            ME,
            3,
        )
        .is_ok()
    {}
    assert_eq!(set(None), Err(Errno::NOSPC));
    let is = tree.attributes(file.inode).unwrap();
    assert_eq!((is.mode, is.changed), (file.mode, 3));
    assert_eq!(tree.xattr(file.inode, acl::ACCESS), Err(Errno::NODATA));
    tree.remove_xattr(file.inode, b"user.0", 4).unwrap();
    assert_eq!(set(None), Ok(()));
    assert_eq!(tree.attributes(file.inode).unwrap().mode, FILE | 0o777);
}

#[test]
fn a_caller_outside_the_group_clears_its_bit_by_an_access_list_and_by_writing() {
    let tree = Tree::new(10, 0o755, ME, 1);
    let outsider = Credentials { group: 99, ..ME };
    let root = Credentials {
        user: SUPERUSER,
        ..outsider
    };
    // A list that is equivalent to a mode.
    let mut list = vec![2, 0, 0, 0];
    for (tag, may) in [(1u16, 7u16), (4, 5), (32, 5)] {
        list.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        list.extend([0xFF; 4]);
    }
    let set = |inode, caller| tree.set_xattr(inode, acl::ACCESS, &list, None, caller, 3);
    for (caller, mode) in [(ME, 0o2755), (root, 0o2755), (outsider, 0o755)] {
        let file = tree.make(ROOT, b"file", FILE | 0o2755, 0, ME, 2).unwrap();
        set(file.inode, caller).unwrap();
        let is = tree.attributes(file.inode).unwrap().mode;
        assert_eq!(is, FILE | mode, "{caller:?}");
        tree.unlink(ROOT, b"file", 4).unwrap();
    }
    for (mode, taker, after) in [
        (0o2767, None, 0o2767),
        (0o2767, Some(ME), 0o2767),
        (0o2767, Some(outsider), 0o767),
        (0o2777, Some(ME), 0o777),
        (0o6767, Some(ME), 0o2767),
    ] {
        let file = tree.make(ROOT, b"file", FILE | mode, 0, ME, 5).unwrap();
        let is_changed = tree.note_written(file.inode, taker, 6).unwrap();
        let is = tree.attributes(file.inode).unwrap().mode;
        assert_eq!((is, is_changed), (FILE | after, mode != after), "{mode:o}");
        tree.unlink(ROOT, b"file", 7).unwrap();
    }
}
