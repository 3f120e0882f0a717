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
