//! What the kernel says, as [`Requests`] takes it, and what that answers as the kernel takes it.

use std::time::Instant;

use rustix::io::Errno;

use super::wire::{self, Call, Reply, number, operation, valid};
use super::{Cache, FIGURES, Requests, now};
use crate::control::{COMMAND, Message, Step};
use crate::directory::NAME_MAX;
use crate::layout::PAGE_BYTES;
use crate::medium::Medium;
use crate::tree::{Answer, Attributes, Caller, Change, KIND, ROOT, SUPERUSER};

impl Call<'_> {
    /// Who asks, with permissions that what he makes does not have.
    fn caller(&self, umask: u32) -> Caller {
        Caller {
            user: self.header.uid,
            group: self.header.gid,
            umask,
        }
    }
}

impl<M: Medium + 'static> Requests<M> {
    /// Answers a request: with what was said or sent by the end, or with an error.
    pub(super) fn answer(&self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let inode = call.inode();
        match call.header.opcode {
            operation::LOOKUP => reply.entry(&self.tree.look_up(inode, call.name()?)?),
            operation::FORGET => {
                reply.is_not_awaited();
                let it: wire::ForgetIn = call.take()?;
                self.forget_inode(inode, it.nlookup);
            }
            operation::BATCH_FORGET => {
                reply.is_not_awaited();
                let all: wire::BatchForgetIn = call.take()?;
                for _ in 0..all.count {
                    let it: wire::ForgetOne = call.take()?;
                    self.tree.forget(number(it.nodeid), it.nlookup);
                }
                self.sweep();
            }
            operation::GETATTR => reply.attributes(&self.tree.attributes(inode)?),
            operation::SETATTR => reply.attributes(&self.change(inode, &call.take()?)?),
            operation::READLINK => reply.add_bytes(&self.follow(inode)?),
            operation::SYMLINK => {
                let (name, target) = (call.name()?, call.name()?);
                reply.entry(&self.make_link(inode, name, target, call.caller(0))?);
            }
            operation::MKNOD => {
                let it: wire::MknodIn = call.take()?;
                let (name, caller) = (call.name()?, call.caller(it.umask));
                reply.entry(&self.make(inode, name, it.mode, it.rdev, caller)?);
            }
            operation::MKDIR => {
                let it: wire::MkdirIn = call.take()?;
                let (name, caller) = (call.name()?, call.caller(it.umask));
                let mode = libc::S_IFDIR | it.mode & !KIND;
                reply.entry(&self.make(inode, name, mode, 0, caller)?);
            }
            operation::UNLINK => self.remove_name(inode, call.name()?)?,
            operation::RMDIR => self.tree.remove_directory(inode, call.name()?, now())?,
            operation::RENAME | operation::RENAME2 => {
                let it: wire::RenameIn = call.take()?;
                let flags = match call.header.opcode {
                    operation::RENAME2 => call.take::<wire::Rename2More>()?.flags,
                    _ => 0,
                };
                let (from, to) = ((inode, call.name()?), (number(it.newdir), call.name()?));
                self.move_name(from, to, flags, call.caller(0))?;
            }
            operation::LINK => {
                let it: wire::LinkIn = call.take()?;
                reply.entry(&self.add_name(number(it.oldnodeid), inode, call.name()?)?);
            }
            operation::OPEN => {
                self.tree.file(inode)?;
                reply.add(&self.opened());
            }
            operation::CREATE => {
                let it: wire::CreateIn = call.take()?;
                let (name, caller) = (call.name()?, call.caller(it.umask));
                let mode = libc::S_IFREG | it.mode & !KIND;
                reply.entry(&self.make(inode, name, mode, 0, caller)?);
                reply.add(&self.opened());
            }
            // The name that comes with it is none.
            operation::TMPFILE => {
                let it: wire::CreateIn = call.take()?;
                let (mode, caller) = (libc::S_IFREG | it.mode & !KIND, call.caller(it.umask));
                reply.entry(&self.make_nameless(inode, mode, caller)?);
                reply.add(&self.opened());
            }
            operation::OPENDIR => reply.add(&wire::OpenOut {
                fh: self.listings.begin(),
                ..open(0)
            }),
            operation::RELEASEDIR => {
                let it: wire::ReleaseIn = call.take()?;
                self.listings.end(it.fh);
            }
            // Nothing is kept of who has which file open.
            operation::RELEASE | operation::DESTROY => {}
            operation::READ => {
                let begin = Instant::now();
                let it: wire::ReadIn = call.take()?;
                let is_noted = it.flags as i32 & libc::O_NOATIME == 0;
                // It goes from the staging to the kernel: fewer bytes than asked for are the file's end.
                self.bring(inode, it.offset, it.size as usize, is_noted, |bytes| {
                    reply.send(bytes);
                    self.reads.note(bytes.len(), begin);
                })?;
            }
            operation::WRITE => {
                let begin = Instant::now();
                let it: wire::WriteIn = call.take()?;
                let takes = it.write_flags & wire::WRITE_KILL_SUIDGID != 0;
                let taker = takes.then(|| call.caller(0));
                // No request for it follows a direct write.
                let waits = it.flags as i32 & libc::O_DSYNC != 0;
                self.put(
                    inode,
                    it.offset,
                    call.bytes(it.size)?,
                    taker,
                    waits,
                    &mut |written| {
                        self.writes.note(written, begin);
                        reply.send_count(written as u32);
                    },
                )?;
            }
            // There is nothing to be written, but something to be said.
            operation::FSYNC => self.store.sync_file(&*self.tree.file(inode)?)?,
            operation::READDIR | operation::READDIRPLUS => {
                let it: wire::ReadIn = call.take()?;
                let is_told = call.header.opcode == operation::READDIRPLUS;
                if it.offset == 0 {
                    let last = self.tree.last_entry(inode)?;
                    self.listings.begin_anew(it.fh, last);
                }
                let last = self.listings.last(it.fh);
                let visit = |number: u64, name: &[u8], known: &Attributes| {
                    number <= last && reply.listed(it.size, number, name, known, is_told)
                };
                self.list(inode, it.offset, is_told, visit)?;
            }
            operation::STATFS => reply.add(&self.room()),
            operation::SETXATTR => {
                let it: wire::SetxattrIn = call.take()?;
                let (name, value) = (call.name()?, call.bytes(it.size)?);
                self.set_value(inode, name, value, it.flags as i32, call.caller(0))?;
            }
            operation::GETXATTR => {
                let it: wire::GetxattrIn = call.take()?;
                let name = call.name()?;
                let value = match inode == ROOT && name == FIGURES.as_bytes() {
                    true => self.figures().into_bytes(),
                    false => self.tree.value(inode, name)?,
                };
                reply.value(it.size, &value)?;
            }
            operation::LISTXATTR => {
                let it: wire::GetxattrIn = call.take()?;
                reply.value(it.size, &self.value_names(inode, call.header.uid)?)?;
            }
            operation::REMOVEXATTR => self.tree.remove_value(inode, call.name()?, now())?,
            operation::FALLOCATE => {
                let it: wire::FallocateIn = call.take()?;
                self.allocate(inode, it.offset, it.length, it.mode as i32)?;
            }
            operation::LSEEK => {
                let it: wire::LseekIn = call.take()?;
                let offset = self.find(inode, it.offset as i64, it.whence as i32)?;
                reply.add(&wire::LseekOut { offset });
            }
            operation::COPY_FILE_RANGE => {
                let it: wire::CopyFileRangeIn = call.take()?;
                let to = (number(it.nodeid_out), it.off_out);
                // A request copies less than 4 GiB.
                reply.count(self.copy((inode, it.off_in), to, it.len)? as u32);
            }
            operation::IOCTL => self.command(call, reply)?,
            // Also `FLUSH` and `FSYNCDIR`: nobody comes to what was answered before it is done. The kernel does not ask again.
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// Changes what is known of an inode, and a file's size.
    fn change(&self, inode: u32, it: &wire::SetattrIn) -> Answer<Attributes> {
        let now = now();
        let given = |which: u32| it.valid & which != 0;
        let time = |is_given, is_now, seconds, nanoseconds| {
            let said = || wire::time(seconds, nanoseconds);
            given(is_given).then(|| if given(is_now) { now } else { said() })
        };
        let mut change = Change {
            mode: given(valid::MODE).then_some(it.mode),
            user: given(valid::UID).then_some(it.uid),
            group: given(valid::GID).then_some(it.gid),
            accessed: time(valid::ATIME, valid::ATIME_NOW, it.atime, it.atimensec),
            modified: time(valid::MTIME, valid::MTIME_NOW, it.mtime, it.mtimensec),
        };
        let size = given(valid::SIZE).then_some(it.size);
        self.set(inode, &mut change, size, now)
    }

    /// What a file that is opened is like.
    fn opened(&self) -> wire::OpenOut {
        open(match self.cache {
            Cache::None => wire::open::DIRECT_IO | wire::open::PARALLEL_DIRECT_WRITES,
            Cache::Keep => wire::open::KEEP_CACHE,
        })
    }

    /// How much there is, and how much of it is free.
    fn room(&self) -> wire::StatfsOut {
        self.settle();
        let space = self.store.space();
        let (inodes, most) = self.tree.inodes();
        wire::StatfsOut {
            blocks: space.pages(),
            bfree: space.free_pages(),
            bavail: space.free_pages(),
            files: most,
            ffree: most - inodes,
            bsize: PAGE_BYTES as u32,
            namelen: NAME_MAX as u32,
            frsize: PAGE_BYTES as u32,
            padding: 0,
            spare: [0; _],
        }
    }

    /// Names of an inode's extended attributes that somebody may know of.
    fn value_names(&self, inode: u32, user: u32) -> Answer<Vec<u8>> {
        let names = self.tree.value_names(inode)?;
        if user == SUPERUSER {
            return Ok(names);
        }
        let all = names.split_inclusive(|byte| *byte == 0);
        let shown = all.filter(|it| !it.starts_with(b"trusted."));
        Ok(shown.collect::<Vec<_>>().concat())
    }

    /// What a tool asks.
    fn command(&self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let it: wire::IoctlIn = call.take()?;
        let is_ours = it.cmd == COMMAND && it.out_size as usize == size_of::<Message>();
        let asked = Step::read(call.bytes(it.in_size)?).filter(|_| is_ours);
        let step = asked.ok_or(Errno::NOTTY)?;
        let user = call.header.uid;
        if ![SUPERUSER, self.owner].contains(&user) {
            return Err(Errno::PERM);
        }
        let mut message: Message = [0; _];
        match self.step(call.inode(), user, step) {
            Ok(answer) => message[1..5].copy_from_slice(&answer),
            Err((error, figures)) => {
                message[0] = error.raw_os_error() as u64;
                message[1..3].copy_from_slice(&figures);
            }
        }
        reply.add(&wire::IoctlOut {
            result: 0,
            flags: 0,
            in_iovs: 0,
            out_iovs: 0,
        });
        reply.add(&message);
        Ok(())
    }
}

fn open(open_flags: u32) -> wire::OpenOut {
    wire::OpenOut {
        fh: 0,
        open_flags,
        backing_id: 0,
    }
}
