//! Each call, executed by the filesystem and by the model.

use super::*;

/// Six names that are used, and some that are invalid.
fn name(at: u8) -> Vec<u8> {
    match at {
        255 => Vec::new(),
        254 => vec![b'l'; NAME_MAX],
        253 => vec![b'l'; NAME_MAX + 1],
        _ => vec![b'a' + at % 6],
    }
}

/// The same, and the two that each directory has.
fn any_name(at: u8) -> Vec<u8> {
    match at {
        252 => b".".to_vec(),
        251 => b"..".to_vec(),
        _ => name(at),
    }
}

fn value_name(at: u8) -> Vec<u8> {
    match at % 8 {
        0 | 1 => b"user.a".to_vec(),
        2 => b"user.b".to_vec(),
        3 => b"trusted.t".to_vec(),
        4 => CAPABILITY.to_vec(),
        5 => acl::ACCESS.to_vec(),
        6 => b"other.x".to_vec(),
        _ => [&b"user."[..], &[b'n'; NAME_MAX]].concat(),
    }
}

/// The byte that a write puts at an offset; differs between offsets.
fn byte_at(byte: u8, at: u64) -> u8 {
    let mixed = (at + u64::from(byte) * 0x1_0001).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u8 | 1
}

impl World {
    pub(super) fn call(&mut self, op: Op) -> Done {
        match op {
            Op::Make {
                at,
                name: called,
                kind,
                mode,
                credentials,
            } => {
                let (at, called, caller) = (
                    self.directory(at),
                    any_name(called),
                    of(&CALLERS, credentials),
                );
                let kinds = [
                    libc::S_IFREG,
                    libc::S_IFREG,
                    libc::S_IFDIR,
                    libc::S_IFIFO,
                    libc::S_IFCHR,
                ];
                let mode = of(&kinds, kind) | u32::from(mode) & 0o7777;
                let expected = self.model.may_make(at, &called, mode, caller);
                let got = self.handler.make(at, &called, mode, 5, caller);
                let is_device = mode & KIND == libc::S_IFCHR;
                let device = if is_device { 5 } else { 0 };
                let expected = expected.map(|it| Node { device, ..it });
                self.made(at, &called, got, expected)
            }
            Op::MakeUnnamed {
                at,
                mode,
                credentials,
            } => {
                let (at, caller) = (self.directory(at), of(&CALLERS, credentials));
                let mode = libc::S_IFREG | u32::from(mode) & 0o7777;
                let expected = self.model.may_make_unnamed(at, mode, caller);
                match (self.handler.make_unnamed(at, mode, caller), expected) {
                    (Ok(it), Ok(node)) => {
                        self.is_new(&it)?;
                        self.model.made_nameless(it.inode, node);
                        Ok(())
                    }
                    (got, expected) => same("tmpfile", got.map(drop), expected.map(drop)),
                }
            }
            Op::MakeLink {
                at,
                name: called,
                len,
            } => {
                let (at, called) = (self.directory(at), any_name(called));
                let target = vec![b't'; len.into()];
                let mode = libc::S_IFLNK | 0o777;
                let expected = match target.len() {
                    0 => Err(Errno::NOENT),
                    1..4096 => self.model.may_make(at, &called, mode, CALLERS[1]),
                    _ => Err(Errno::NAMETOOLONG),
                };
                let got = self.handler.make_link(at, &called, &target, CALLERS[1]);
                let body = Body::Link(target);
                self.made(at, &called, got, expected.map(|it| Node { body, ..it }))
            }
            Op::AddName {
                node,
                at,
                name: called,
            } => {
                let (inode, at, called) = (self.node(node), self.directory(at), any_name(called));
                let got = self.handler.add_name(inode, at, &called);
                let expected = self.model.link(inode, at, &called).map(|()| inode);
                same("link", got.map(|it| it.inode), expected)
            }
            Op::RemoveName { at, name: called } => {
                let (at, called) = (self.directory(at), name(called));
                let got = self.handler.remove_name(at, &called);
                same("unlink", got, self.model.unlink(at, &called))
            }
            Op::RemoveDirectory { at, name: called } => {
                let (at, called) = (self.directory(at), name(called));
                let got = self.handler.tree.remove_directory(at, &called, now());
                same("rmdir", got, self.model.remove_directory(at, &called))
            }
            Op::MoveName { from, to, how } => {
                let (from, called) = (self.directory(from.0), name(from.1));
                let (to, new) = (self.directory(to.0), name(to.1));
                let (whiteout, caller) = (libc::RENAME_WHITEOUT, CALLERS[1]);
                let (flags, how) = of(
                    &[
                        (0, Some(RenameMode::Replace)),
                        (libc::RENAME_NOREPLACE, Some(RenameMode::NoReplace)),
                        (libc::RENAME_EXCHANGE, Some(RenameMode::Exchange)),
                        (whiteout, Some(RenameMode::Replace)),
                        (
                            whiteout | libc::RENAME_NOREPLACE,
                            Some(RenameMode::NoReplace),
                        ),
                        (whiteout | libc::RENAME_EXCHANGE, None),
                    ],
                    how,
                );
                let leaves = flags & whiteout != 0;
                let names = ((from, &called[..]), (to, &new[..]));
                let got = self.handler.move_name(names.0, names.1, flags, caller);
                let expected = match how {
                    Some(how) => self.model.rename(names.0, names.1, how, leaves),
                    None => Err(Errno::INVAL),
                };
                if got.is_ok() && expected == Ok(true) {
                    let left = self.handler.tree.look_up(from, &called);
                    let left = left.map_err(|error| format!("whiteout: {error}"))?;
                    self.is_new(&left)?;
                    self.model.add_whiteout(from, &called, left.inode, caller);
                }
                same("rename", got, expected.map(drop))
            }
            Op::LookUp { at, name: called } => {
                let (at, called) = (self.directory(at), any_name(called));
                let got = self.handler.tree.look_up(at, &called);
                let expected = self.model.get(at, &called);
                // The parent of a removed directory may be gone.
                let expected = expected.and_then(|it| self.model.node(it).map(|_| it));
                if let Ok(inode) = expected {
                    self.model.node_mut(inode).unwrap().known += 1;
                }
                same("lookup", got.map(|it| it.inode), expected)
            }
            Op::ReadLink { node } => {
                let inode = self.node(node);
                let got = self.handler.read_link(inode);
                let expected = self.model.node_mut(inode).and_then(|it| {
                    it.note_read(now());
                    match &it.body {
                        Body::Link(target) => Ok(target.clone()),
                        _ => Err(Errno::INVAL),
                    }
                });
                same("readlink", got, expected)
            }
            Op::Forget { node, times } => {
                let inode = self.node(node);
                let known = self.model.node(inode).map_or(0, |it| it.known);
                let times = u64::from(times).min(known);
                if inode == ROOT || times == 0 {
                    return Ok(());
                }
                self.handler.forget_inode(inode, times);
                self.model.node_mut(inode).unwrap().known -= times;
                Ok(())
            }
            Op::List {
                at,
                count,
                with_attributes,
                rewinds,
            } => {
                let inode = self.directory(at);
                self.list(inode, count.into(), with_attributes, rewinds)
            }
            Op::Change {
                node,
                mode,
                owner,
                times,
            } => {
                let inode = self.node(node);
                let owner = owner.map(|it| of(&CALLERS, it));
                let second = |it: i32| Time::from(it) * 1_000_000_000;
                let mut change = AttributeChange {
                    mode: mode.map(u32::from),
                    user: owner.map(|it| it.user),
                    group: owner.map(|it| it.group),
                    accessed: times.0.map(second),
                    modified: times.1.map(second),
                };
                let expected = self.model.node_mut(inode).map(|it| it.change(&change));
                let got = self.handler.set(inode, &mut change, None, now());
                same("setattr", got.map(drop), expected)
            }
            Op::Truncate { node, to } => {
                let inode = self.file(node);
                let size = self.place(inode, to);
                self.truncate(inode, size)
            }
            Op::Write {
                node,
                at,
                len,
                byte,
                credentials,
            } => {
                let inode = self.file(node);
                let at = self.place(inode, at);
                let clears_suid_for = (credentials > 3).then(|| of(&CALLERS, credentials));
                self.write(inode, at, len, byte, clears_suid_for)
            }
            Op::Append { node, len, byte } => {
                let inode = self.file(node);
                let at = self.place(inode, Place::End(0));
                self.write(inode, at, len, byte, None)
            }
            Op::Read {
                node,
                at,
                len,
                is_noted,
            } => {
                let inode = self.file(node);
                let at = self.place(inode, at);
                self.look(inode, at, len as usize, is_noted)
            }
            Op::Allocate {
                node,
                at,
                len,
                mode,
            } => {
                let inode = self.file(node);
                let at = self.place(inode, at);
                self.allocate(inode, at, len.into(), mode)
            }
            Op::Copy {
                from,
                to,
                len,
                in_rows,
            } => {
                let (source, target) = (self.file(from.0), self.file(to.0));
                let places = (self.place(source, from.1), self.place(target, to.1));
                let (from, to) = match in_rows {
                    true => (places.0 & !1023, places.1 & !1023),
                    false => places,
                };
                self.copy((source, from), (target, to), len.into())
            }
            Op::Seek { node, at, is_data } => {
                let inode = self.file(node);
                let at = self.place(inode, at);
                let whence = if is_data {
                    libc::SEEK_DATA
                } else {
                    libc::SEEK_HOLE
                };
                let got = self.handler.seek(inode, at as i64, whence);
                let expected = self.model.file(inode).and_then(|it| it.find(at, is_data));
                same("lseek", got, expected)
            }
            Op::SetXattr {
                node,
                name,
                len,
                how,
                credentials,
            } => {
                let (inode, name, caller) =
                    (self.node(node), value_name(name), of(&CALLERS, credentials));
                let list = [
                    &[
                        2,
                        0,
                        0,
                        0,
                        1,
                        0,
                        (len >> 6) as u8 & 7,
                        0,
                        255,
                        255,
                        255,
                        255,
                        4,
                        0,
                    ][..],
                    &[
                        (len >> 3) as u8 & 7,
                        0,
                        255,
                        255,
                        255,
                        255,
                        32,
                        0,
                        len as u8 & 7,
                        0,
                    ],
                    &[255; 4],
                ];
                let value = match name == acl::ACCESS && len % 8 != 0 {
                    true => list.concat(),
                    false => vec![7; (len as usize).min((64 << 10) + 1)],
                };
                let flags = of(&[0, libc::XATTR_CREATE, libc::XATTR_REPLACE], how);
                let must_be = of(&[None, Some(false), Some(true)], how);
                let got = self.handler.set_xattr(inode, &name, &value, flags, caller);
                let expected = match self.model.node_mut(inode) {
                    Ok(it) => it.set_xattr(&name, &value, must_be, caller),
                    // Checked before any lookup.
                    Err(error) => {
                        let mut any = self.model.nodes[&ROOT].clone();
                        match any.set_xattr(&name, &value, None, caller) {
                            Err(other) if other != Errno::NOSPC => Err(other),
                            _ => Err(error),
                        }
                    }
                };
                same("setxattr", got, expected)
            }
            Op::GetXattr { node, name } => {
                let (inode, name) = (self.node(node), value_name(name));
                let got = self.handler.tree.xattr(inode, &name);
                let node = self.model.node(inode);
                let value = |it: &Node| it.values.get(&name).cloned().ok_or(Errno::NODATA);
                same("getxattr", got, node.and_then(value))?;
                let names = |it: &Node| {
                    let names = it.values.keys();
                    names
                        .flat_map(|it| it.iter().copied().chain([0]))
                        .collect::<Vec<u8>>()
                };
                let got = self.handler.tree.xattr_names(inode);
                same("listxattr", got, self.model.node(inode).map(names))
            }
            Op::RemoveXattr { node, name } => {
                let (inode, name) = (self.node(node), value_name(name));
                let got = self.handler.tree.remove_xattr(inode, &name, now());
                let expected = self.model.node_mut(inode).and_then(|it| {
                    it.values.remove(&name).ok_or(Errno::NODATA)?;
                    it.changed = NOW;
                    Ok(())
                });
                same("removexattr", got, expected)
            }
            Op::Resize { blocks } => self.resize(blocks.into()),
            Op::Scrub => self.scrub(),
            Op::Inject {
                node,
                fault,
                count,
                seed,
            } => self.inject(node, fault, count, seed),
            Op::Refuse { after, count } => {
                self.memory.fails_after.store(after.into(), Relaxed);
                self.memory.fails_then.store(count.into(), Relaxed);
                Ok(())
            }
            Op::Starve { on } => {
                self.memory.refuses_accesses.store(on, Relaxed);
                Ok(())
            }
        }
    }

    /// Checks that a new inode has a number not in use, with a generation not used before.
    fn is_new(&mut self, it: &InodeAttributes) -> Done {
        let is_free = !self.model.nodes.contains_key(&it.inode);
        holds("a number that is in use", is_free)?;
        let is_new = self.all_generations.insert((it.inode, it.generation));
        holds("a number of the same generation", is_new)?;
        self.generations.insert(it.inode, it.generation);
        Ok(())
    }

    fn made(
        &mut self,
        at: u32,
        called: &[u8],
        got: SysResult<InodeAttributes>,
        expected: SysResult<Node>,
    ) -> Done {
        match (got, expected) {
            (Ok(it), Ok(node)) => {
                self.is_new(&it)?;
                self.model.made(at, called, it.inode, node);
                Ok(())
            }
            (got, expected) => same("make", got.map(drop), expected.map(drop)),
        }
    }

    fn list(&mut self, inode: u32, count: usize, with_attributes: bool, rewinds: bool) -> Done {
        let noted = self.model.node_mut(inode).map(|it| it.note_read(now()));
        let (behind, parent, entries) = match self.model.node(inode).map(|it| &it.body) {
            Ok(Body::Directory {
                entries,
                cursor,
                parent,
                ..
            }) => {
                let behind = if rewinds { 0 } else { *cursor };
                (behind, *parent, entries.clone())
            }
            other => {
                let got = self.handler.list(inode, 0, with_attributes, |_, _, _| true);
                return same("list", got, other.and(Err(Errno::NOTDIR)));
            }
        };
        noted.unwrap();
        let mut got = Vec::new();
        let answer = self
            .handler
            .list(inode, behind, with_attributes, |number, name, it| {
                let takes = got.len() < count;
                if takes {
                    got.push((number, name.to_vec(), it.inode, it.mode & KIND));
                }
                takes
            });
        same("list", answer, Ok(()))?;
        let dots = [(1, b".".to_vec(), inode), (2, b"..".to_vec(), parent)];
        let entries = entries
            .into_iter()
            .map(|it| (it.number + 2, it.name, it.inode));
        let all = dots.into_iter().chain(entries);
        let part = all.filter(|it| it.0 > behind).take(count);
        let kind = |inode: u32| match self.model.node(inode) {
            Ok(it) => it.mode & KIND,
            // The parent of a removed directory.
            Err(_) => libc::S_IFDIR,
        };
        let expected: Vec<_> = part.map(|it| (it.0, it.1, it.2, kind(it.2))).collect();
        // Its number may have been reused.
        if let Some(it) = got.iter_mut().find(|it| it.0 == 2) {
            it.3 = kind(parent);
        }
        same("entries", &got, &expected)?;
        for (number, _, inode, _) in &expected {
            if with_attributes && *number > 2 {
                self.model.node_mut(*inode).unwrap().known += 1;
            }
        }
        if let Ok(Node {
            body: Body::Directory { cursor, .. },
            ..
        }) = self.model.node_mut(inode)
        {
            *cursor = expected.last().map_or(behind, |it| it.0);
        }
        Ok(())
    }

    fn truncate(&mut self, inode: u32, size: u64) -> Done {
        let got = self
            .handler
            .set(inode, &mut AttributeChange::default(), Some(size), now());
        let expected = match self.model.file(inode) {
            Ok(_) if size > SIZE_MAX => Err(Errno::FBIG),
            other => other.map(drop),
        };
        match (got.map(drop), expected) {
            (Ok(()), Ok(())) => {
                let before = self.model.file(inode).unwrap().size;
                self.model.file_mut(inode).truncate(size);
                let node = self.model.node_mut(inode).unwrap();
                (node.modified, node.changed) = (NOW, NOW);
                self.compare_file(inode, &(before.min(size)..before.max(size)))
            }
            (Err(got), Ok(())) => {
                self.excuse(got, None)?;
                let before = self.model.file(inode).unwrap().size;
                let may = May {
                    sizes: &[before],
                    zeros: true,
                    go: true,
                    ..May::default()
                };
                self.settle(inode, size..SIZE_MAX, &may)
            }
            (got, expected) => same("truncate", got, expected),
        }
    }

    fn write(
        &mut self,
        inode: u32,
        at: u64,
        len: u32,
        byte: u8,
        clears_suid_for: Option<Credentials>,
    ) -> Done {
        let len = u64::from(len);
        let bytes: Vec<u8> = (at..at + len).map(|at| byte_at(byte, at)).collect();
        let before = self.model.file(inode).map(|it| it.size);
        let fits = len.min(SIZE_MAX.saturating_sub(at));
        let mut expected = before.map(|_| fits);
        let free = self.free_pages();
        if expected.is_ok() {
            let missing = self.missing(inode, &(at..at + fits));
            // The part that fits, from the start on.
            if let Some(first) = missing.get(free as usize) {
                expected = Ok((first * PAGE).saturating_sub(at));
            }
            expected = match expected {
                Ok(0) if fits == 0 => Err(Errno::FBIG),
                Ok(0) => Err(Errno::NOSPC),
                other => other,
            };
        }
        let got = self
            .handler
            .write_all(inode, at, &bytes, clears_suid_for)
            .map(|it| it as u64);
        let done = got.unwrap_or(0);
        self.tally.full += u64::from(expected.is_ok_and(|it| it < fits));
        self.tally.full += u64::from(expected == Err(Errno::NOSPC));
        if done > 0 {
            self.tally.nameless += u64::from(self.attributes(inode).links == 0);
            let file = self.model.file_mut(inode);
            file.write(at, &bytes[..done as usize]);
            self.model
                .node_mut(inode)
                .unwrap()
                .note_written(clears_suid_for);
        }
        if got != expected {
            match (got, expected) {
                (Ok(done), Ok(more)) if done < more => {
                    holds(
                        &format!("{done} instead of {more} bytes"),
                        self.is_exposed(),
                    )?;
                }
                (Err(got), _) => self.excuse(got, expected.err())?,
                // Replacing the last pages of a lost block frees space.
                (Ok(_), Ok(_) | Err(Errno::NOSPC)) if self.has_met_loss() => {}
                _ => return same("write", got, expected),
            }
            let size = self.model.file(inode).unwrap().size;
            let may = May {
                bytes: &bytes[done as usize..],
                sizes: &[size],
                gain: true,
                ..May::default()
            };
            self.settle(inode, at + done..at + fits, &may)?;
        }
        match before {
            Ok(_) => self.compare_file(inode, &(at..at.saturating_add(len))),
            Err(_) => Ok(()),
        }
    }

    fn look(&mut self, inode: u32, at: u64, len: usize, is_noted: bool) -> Done {
        let expected = self.model.file(inode).map(|it| it.read(at, len));
        if expected.is_ok() && is_noted {
            self.model.node_mut(inode).unwrap().note_read(now());
        }
        let mut bytes = Vec::new();
        let take = |some: &[u8]| bytes.extend_from_slice(some);
        let got = self.handler.read(inode, at, len, is_noted, take);
        let is_same = got.is_ok() && expected.as_ref() == Ok(&bytes);
        if is_same || got.err() == expected.as_ref().err().copied() {
            return holds("other bytes", is_same || got.is_err());
        }
        match got {
            Ok(()) => holds("other bytes", false),
            Err(error) => self.excuse(error, None),
        }
    }

    fn allocate(&mut self, inode: u32, at: u64, len: u64, mode: u8) -> Done {
        let keeps = libc::FALLOC_FL_KEEP_SIZE;
        let (mode, what) = of(
            &[
                (0, 'a'),
                (keeps, 'a'),
                (keeps | libc::FALLOC_FL_PUNCH_HOLE, 'p'),
                (keeps | libc::FALLOC_FL_PUNCH_HOLE, 'p'),
                (libc::FALLOC_FL_ZERO_RANGE, 'z'),
                (keeps | libc::FALLOC_FL_ZERO_RANGE, 'z'),
                (libc::FALLOC_FL_COLLAPSE_RANGE, 'n'),
                (libc::FALLOC_FL_PUNCH_HOLE, 'n'),
            ],
            mode,
        );
        let bytes = at..at + len;
        let before = self.model.file(inode).map(|it| it.size);
        let mut expected = before.map(drop);
        if expected.is_ok() {
            let missing = self.missing(inode, &bytes).len() as u64;
            expected = match what {
                'n' => Err(Errno::OPNOTSUPP),
                'p' => Ok(()),
                _ if bytes.end > SIZE_MAX => Err(Errno::FBIG),
                _ if missing > self.handler.store.space().free_pages() => Err(Errno::NOSPC),
                _ => Ok(()),
            };
        }
        let got = self.handler.allocate(inode, at, len, mode);
        let size = before.unwrap_or(0);
        let longer = match mode & keeps {
            0 => size.max(bytes.end),
            _ => size,
        };
        match (got, expected) {
            (Ok(()), Ok(())) => {
                let file = self.model.file_mut(inode);
                match what {
                    'p' => file.punch(&bytes),
                    _ => file.reserve(&bytes),
                }
                if what == 'z' {
                    file.blank(&bytes);
                }
                file.size = longer;
                self.model.node_mut(inode).unwrap().note_written(None);
                self.compare_file(inode, &bytes)
            }
            (Err(got), _) if Err(got) != expected => {
                self.excuse(got, expected.err())?;
                let may = May {
                    sizes: if what == 'z' {
                        &[size, longer]
                    } else {
                        &[size]
                    },
                    zeros: what != 'a',
                    go: what == 'p',
                    gain: what != 'p',
                    ..May::default()
                };
                self.settle(inode, bytes.clone(), &may)?;
                self.compare_file(inode, &bytes)
            }
            (got, expected) => same("fallocate", got, expected),
        }
    }

    fn copy(&mut self, from: (u32, u64), to: (u32, u64), len: u64) -> Done {
        let mut len = len;
        if from.0 == to.0 {
            // The kernel rejects overlapping ranges.
            len = len.min(from.1.abs_diff(to.1));
        }
        let size = self.model.file(from.0).map(|it| it.size);
        let target = self.model.file(to.0).cloned();
        let mut expected = size.and_then(|size| {
            let target = target.as_ref().map_err(|it| *it)?;
            let len = len.min(size.saturating_sub(from.1));
            match to.1.checked_add(len).filter(|end| *end <= SIZE_MAX) {
                Some(_) => Ok((len, target.size)),
                None => Err(Errno::FBIG),
            }
        });
        let mut is_tight = false;
        if let Ok((len, _)) = expected {
            let bytes = to.1..to.1 + len;
            let chunks =
                bytes.end.div_ceil(PAGE * PAGES as u64) - bytes.start / (PAGE * PAGES as u64);
            let free = self.free_pages();
            let missing = self.missing(to.0, &bytes).len() as u64;
            // A hole of the source frees space in the target, unless it is lost.
            let is_missing = missing > 0 || self.has_lost();
            is_tight = len > 0 && is_missing && free < chunks * PAGES as u64;
        }
        let got = self.handler.copy(from, to, len);
        let done = got.unwrap_or(0);
        if let (Ok((all, before)), true) = (expected, Ok(done) != expected.map(|it| it.0)) {
            let intended = self.model.file(from.0).unwrap().read(from.1, all as usize);
            self.copied(from, to, done);
            let is_short = match got {
                Ok(done) => done < all,
                Err(error) => error == Errno::NOSPC,
            };
            if !(is_short && is_tight && !self.is_exposed()) {
                match got {
                    Ok(_) => holds(
                        &format!("{done} of {all} bytes"),
                        is_short && self.is_exposed(),
                    )?,
                    Err(error) if is_tight && error == Errno::NOSPC => {}
                    Err(error) => self.excuse(error, None)?,
                }
                let size = if done > 0 {
                    before.max(to.1 + done)
                } else {
                    before
                };
                let may = May {
                    bytes: &intended[done as usize..],
                    sizes: &[size],
                    zeros: true,
                    go: true,
                    gain: true,
                };
                self.settle(to.0, to.1 + done..to.1 + all, &may)?;
            }
            expected = Ok((done, before));
        } else if expected.is_ok() {
            self.copied(from, to, done);
        } else {
            same("copy", got, expected.map(|it| it.0))?;
        }
        match expected {
            Ok((_, before)) => self.compare_file(
                to.0,
                &(to.1.min(before)..to.1.max(before).saturating_add(len)),
            ),
            Err(_) => Ok(()),
        }
    }

    /// Applies a copy of `len` bytes to the model.
    fn copied(&mut self, from: (u32, u64), to: (u32, u64), len: u64) {
        let mut done = 0;
        while done < len {
            let (at, place) = (from.1 + done, to.1 + done);
            let source = self.model.file(from.0).unwrap();
            let data = source.find(at, true).unwrap_or(u64::MAX).min(source.size);
            if data > at {
                let hole = (data - at).min(len - done);
                let target = self.model.file_mut(to.0);
                target.punch(&(place..place + hole));
                target.size = target.size.max(place + hole);
                done += hole;
            } else {
                let hole = source.find(at, false).unwrap();
                let part = (hole - at).min(len - done);
                let bytes = source.read(at, part as usize);
                self.model.file_mut(to.0).write(place, &bytes);
                done += part;
            }
        }
        if len > 0 {
            self.model.node_mut(from.0).unwrap().note_read(now());
            self.model.node_mut(to.0).unwrap().note_written(None);
        }
    }

    fn tool(&self, inode: u32, step: ControlRequest) -> Result<[u64; 4], (Errno, [u64; 2])> {
        self.handler.step(inode, 0, step)
    }

    fn is_starved(&self) -> bool {
        self.memory.refuses_accesses.load(Relaxed)
    }

    /// As [`crate::control::Control::resize`] does.
    pub(super) fn resize(&mut self, blocks: u32) -> Done {
        let blocks = blocks % (MOST + 2);
        let used = self.handler.store.space().used_pages();
        let there = self.handler.store.extent().backed;
        let got = self.tool(
            ROOT,
            ControlRequest::Resize {
                blocks: blocks.into(),
            },
        );
        let expected = match blocks {
            _ if blocks > MOST => Err((Errno::FBIG, [MOST.into(), 0])),
            _ if blocks < self.offered && used > u64::from(blocks) * PAGES as u64 => {
                Err((Errno::NOSPC, [used, 0]))
            }
            _ if blocks > there && self.is_starved() => Err((Errno::NOMEM, [0; 2])),
            _ => Ok([0; 4]),
        };
        same("resize", got, expected)?;
        if got.is_err() {
            return Ok(());
        }
        self.offered = blocks;
        for _ in 0..3 {
            let [left, bytes, ..] = self.tool(ROOT, ControlRequest::Trim).unwrap();
            if left == 0 {
                let there = self.handler.store.extent().backed;
                same("blocks with memory", there, blocks)?;
                return holds("no memory", bytes > 0);
            }
            let mut from = 0;
            loop {
                match self.tool(ROOT, ControlRequest::Move { from }) {
                    Ok([0, pages, ..]) => {
                        self.tally.moved += pages;
                        break;
                    }
                    Ok([next, pages, ..]) => {
                        from = next;
                        self.tally.moved += pages;
                    }
                    Err((error, _)) => {
                        // Files have grown meanwhile, or lost blocks take space.
                        let pages = u64::from(blocks) * PAGES as u64;
                        let is_full = self.handler.store.space().used_pages() > pages;
                        let is_full = error == Errno::NOSPC && (is_full || self.has_lost());
                        return if is_full {
                            Ok(())
                        } else {
                            self.excuse(error, None)
                        };
                    }
                }
            }
        }
        holds(
            "nothing failed, and something is left",
            self.is_exposed() || self.has_lost(),
        )
    }

    pub(super) fn scrub(&mut self) -> Done {
        let used = self.handler.store.used_blocks();
        let states: Vec<_> = used.iter().map(|it| self.memory.state(*it)).collect();
        let lost = states.iter().filter(|it| it.1).count() as u64;
        let wrong = states.iter().filter(|it| it.0 && !it.1).count() as u64;
        let mut found = [0; 3];
        let mut from = 0;
        loop {
            match self.tool(ROOT, ControlRequest::Scrub { from }) {
                Ok([next, looked, corrected, lost]) => {
                    found = [found[0] + looked, found[1] + corrected, found[2] + lost];
                    from = next;
                    if next == 0 {
                        break;
                    }
                }
                Err((Errno::NOMEM, _)) if self.is_starved() => return Ok(()),
                Err((error, _)) => return self.excuse(error, None),
            }
        }
        same("scrubbed", found, [used.len() as u64, wrong, lost])?;
        let is_left = |it: &&u32| self.memory.state(**it).0 && !self.memory.state(**it).1;
        same("wrong behind scrubbing", used.iter().find(is_left), None)
    }

    fn inject(&mut self, node: Option<u8>, fault: u8, count: u8, seed: u8) -> Done {
        let faults = [
            InjectedFault::Symbol,
            InjectedFault::Row,
            InjectedFault::Burst,
            InjectedFault::Metadata,
        ];
        let mut count = u64::from(count);
        if !self.loses {
            // That many can always be corrected.
            count = count.min(1);
            self.calmly(|| self.tool(ROOT, ControlRequest::Scrub { from: 0 }))
                .unwrap_or_default();
            if (0..MOST).any(|block| self.memory.state(block).0) {
                return Ok(());
            }
        }
        let inode = node.map_or(ROOT, |it| self.file(it));
        let blocks = match self.model.file(inode) {
            Ok(_) => Ok(self.handler.store.blocks_of(&self.data(inode))),
            Err(_) if inode == ROOT => Ok(self.handler.store.used_blocks()),
            Err(error) => Err(error),
        };
        let step = ControlRequest::Inject {
            fault: of(&faults, fault),
            count,
            seed: seed.into(),
        };
        let got = self.tool(inode, step);
        let expected =
            blocks.map(|it| [if it.is_empty() { 0 } else { count }, it.len() as u64, 0, 0]);
        if got != expected.map_err(|error| (error, [0; 2])) {
            let error = got
                .err()
                .ok_or_else(|| format!("{got:?} instead of {expected:?}"))?;
            return self.excuse(error.0, None);
        }
        Ok(())
    }

    /// Removes all names and references: then nothing is left.
    pub(super) fn remove_all(&mut self) -> Done {
        self.memory.fails_then.store(0, Relaxed);
        self.memory.refuses_accesses.store(false, Relaxed);
        loop {
            let mut is_done = true;
            let all: Vec<u32> = self.model.nodes.keys().copied().collect();
            for inode in all {
                let entries = match self.model.node(inode).map(|it| &it.body) {
                    Ok(Body::Directory { entries, .. }) => entries.clone(),
                    _ => continue,
                };
                for entry in entries {
                    is_done = false;
                    self.begin = now();
                    let got = self.handler.remove_name(inode, &entry.name);
                    same("unlink", got, self.model.unlink(inode, &entry.name))?;
                    if got.is_err() {
                        let tree = &self.handler.tree;
                        let got = tree.remove_directory(inode, &entry.name, now());
                        let expected = self.model.remove_directory(inode, &entry.name);
                        same("rmdir", got, expected)?;
                    }
                    self.compare()?;
                }
            }
            if is_done {
                break;
            }
        }
        self.compare_files()?;
        for (inode, node) in self.model.nodes.clone() {
            if inode != ROOT {
                self.handler.forget_inode(inode, node.known);
                self.model.node_mut(inode).unwrap().known = 0;
            }
        }
        self.compare()?;
        same("inodes", self.handler.tree.inodes().0, 1)?;
        let space = self.handler.store.space();
        let pages = u64::from(self.offered) * PAGES as u64;
        same("pages", (space.used_pages(), space.pages()), (0, pages))?;
        let lost = self.handler.store.counters().lost_blocks.load(Relaxed);
        same(
            "anything lost",
            lost > 0,
            self.memory.losses.load(Relaxed) > 0,
        )?;
        // The whole space is usable, with its blocks formatted again.
        if pages > 0 {
            self.memory.fails_after.store(0, Relaxed);
            self.begin = now();
            let made = self
                .handler
                .make(ROOT, b"last", libc::S_IFREG | 0o600, 0, CALLERS[0]);
            let made = made.map_err(|error| format!("the last file: {error}"))?;
            let all = vec![3; (pages * PAGE) as usize];
            let done = self.handler.write_all(made.inode, 0, &all, None);
            same("all of the room", done, Ok(all.len()))?;
        }
        Ok(())
    }
}
