//! Calls that read and change bytes of files, on the filesystem and in the model.

use super::*;

impl World {
    pub(super) fn truncate(&mut self, inode: u32, size: u64) -> Done {
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

    pub(super) fn write(
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

    pub(super) fn look(&mut self, inode: u32, at: u64, len: usize, is_noted: bool) -> Done {
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

    pub(super) fn allocate(&mut self, inode: u32, at: u64, len: u64, mode: u8) -> Done {
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

    pub(super) fn copy(&mut self, from: (u32, u64), to: (u32, u64), len: u64) -> Done {
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
    pub(super) fn copied(&mut self, from: (u32, u64), to: (u32, u64), len: u64) {
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
}

/// The byte that a write puts at an offset; differs between offsets.
fn byte_at(byte: u8, at: u64) -> u8 {
    let mixed = (at + u64::from(byte) * 0x1_0001).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u8 | 1
}
