//! Dispatch of FUSE operations: decodes a request, calls [`RequestHandler`], encodes the reply.

use std::time::Instant;

use rustix::io::Errno;

use super::wire::{self, KernelRequest, Reply, number, operation, valid};
use super::{FIGURES, PageCache, RequestHandler};
use crate::clock::now;
use crate::control::{COMMAND, ControlMessage, ControlRequest};
use crate::directory::NAME_MAX;
use crate::layout::PAGE_BYTES;
use crate::medium::Medium;
use crate::tree::{
    AttributeChange, Credentials, InodeAttributes, KIND, ROOT, SUPERUSER, SysResult,
};

impl KernelRequest<'_> {
    /// The credentials of the caller, with the permissions to mask out of what it creates.
    fn caller(&self, umask: u32) -> Credentials {
        Credentials {
            user: self.header.uid,
            group: self.header.gid,
            umask,
        }
    }
}

impl<M: Medium + 'static> RequestHandler<M> {
    /// Answers a request: by the end `reply` holds the answer or has sent it, or the result is an
    /// error.
    pub(super) fn answer(
        &self,
        request: &mut KernelRequest<'_>,
        reply: &mut Reply<'_>,
    ) -> SysResult<()> {
        let inode = request.inode();
        match request.header.opcode {
            operation::LOOKUP => reply.entry(&self.tree.look_up(inode, request.name()?)?),
            operation::FORGET => {
                reply.suppress_reply();
                let it: wire::ForgetIn = request.take()?;
                self.forget_inode(inode, it.nlookup);
            }
            operation::BATCH_FORGET => {
                reply.suppress_reply();
                let all: wire::BatchForgetIn = request.take()?;
                for _ in 0..all.count {
                    let it: wire::ForgetOne = request.take()?;
                    self.tree.forget(number(it.nodeid), it.nlookup);
                }
                self.reclaim();
            }
            operation::GETATTR => reply.attributes(&self.tree.attributes(inode)?),
            operation::SETATTR => reply.attributes(&self.change(inode, &request.take()?)?),
            operation::READLINK => reply.add_bytes(&self.read_link(inode)?),
            operation::SYMLINK => {
                let (name, target) = (request.name()?, request.name()?);
                reply.entry(&self.make_link(inode, name, target, request.caller(0))?);
            }
            operation::MKNOD => {
                let it: wire::MknodIn = request.take()?;
                let (name, caller) = (request.name()?, request.caller(it.umask));
                reply.entry(&self.make(inode, name, it.mode, it.rdev, caller)?);
            }
            operation::MKDIR => {
                let it: wire::MkdirIn = request.take()?;
                let (name, caller) = (request.name()?, request.caller(it.umask));
                let mode = libc::S_IFDIR | it.mode & !KIND;
                reply.entry(&self.make(inode, name, mode, 0, caller)?);
            }
            operation::UNLINK => self.remove_name(inode, request.name()?)?,
            operation::RMDIR => self.tree.remove_directory(inode, request.name()?, now())?,
            operation::RENAME | operation::RENAME2 => {
                let it: wire::RenameIn = request.take()?;
                let flags = match request.header.opcode {
                    operation::RENAME2 => request.take::<wire::Rename2Flags>()?.flags,
                    _ => 0,
                };
                let (from, to) = (
                    (inode, request.name()?),
                    (number(it.newdir), request.name()?),
                );
                self.move_name(from, to, flags, request.caller(0))?;
            }
            operation::LINK => {
                let it: wire::LinkIn = request.take()?;
                reply.entry(&self.add_name(number(it.oldnodeid), inode, request.name()?)?);
            }
            operation::OPEN => {
                self.tree.file(inode)?;
                reply.add(&self.open_flags());
            }
            operation::CREATE => {
                let it: wire::CreateIn = request.take()?;
                let (name, caller) = (request.name()?, request.caller(it.umask));
                let mode = libc::S_IFREG | it.mode & !KIND;
                reply.entry(&self.make(inode, name, mode, 0, caller)?);
                reply.add(&self.open_flags());
            }
            // The name that comes with it is not used.
            operation::TMPFILE => {
                let it: wire::CreateIn = request.take()?;
                let (mode, caller) = (libc::S_IFREG | it.mode & !KIND, request.caller(it.umask));
                reply.entry(&self.make_unnamed(inode, mode, caller)?);
                reply.add(&self.open_flags());
            }
            operation::OPENDIR => reply.add(&wire::OpenOut {
                fh: self.listings.open_directory(),
                ..open(0)
            }),
            operation::RELEASEDIR => {
                let it: wire::ReleaseIn = request.take()?;
                self.listings.close(it.fh);
            }
            // Open files have no state.
            operation::RELEASE | operation::DESTROY => {}
            operation::READ => {
                let begin = Instant::now();
                let it: wire::ReadIn = request.take()?;
                let is_noted = it.flags as i32 & libc::O_NOATIME == 0;
                // Sent from the staging buffer to the kernel: fewer bytes than requested mean the
                // end of the file.
                self.read(inode, it.offset, it.size as usize, is_noted, |bytes| {
                    reply.send(bytes);
                    self.reads.note(bytes.len(), begin);
                })?;
            }
            operation::WRITE => {
                let begin = Instant::now();
                let it: wire::WriteIn = request.take()?;
                let clears_suid = it.write_flags & wire::WRITE_KILL_SUIDGID != 0;
                let clears_suid_for = clears_suid.then(|| request.caller(0));
                // The kernel sends no fsync request after a direct write.
                let is_sync = it.flags as i32 & libc::O_DSYNC != 0;
                let file = self.tree.file(inode)?;
                let (written, pending) = self.write(
                    (inode, &file),
                    it.offset,
                    request.bytes(it.size)?,
                    clears_suid_for,
                    is_sync,
                )?;
                self.writes.note(written, begin);
                reply.send_count(written as u32);
                pending.finish()?;
            }
            // Nothing is buffered, but a failed write may have to be reported.
            operation::FSYNC => self.store.sync_file(&*self.tree.file(inode)?)?,
            operation::READDIR | operation::READDIRPLUS => {
                let it: wire::ReadIn = request.take()?;
                let with_attributes = request.header.opcode == operation::READDIRPLUS;
                if it.offset == 0 {
                    let last = self.tree.last_entry(inode)?;
                    self.listings.rewind(it.fh, last);
                }
                let last = self.listings.last(it.fh);
                let visit = |number: u64, name: &[u8], known: &InodeAttributes| {
                    number <= last
                        && reply.directory_entry(it.size, number, name, known, with_attributes)
                };
                self.list(inode, it.offset, with_attributes, visit)?;
            }
            operation::STATFS => reply.add(&self.statfs()),
            operation::SETXATTR => {
                let it: wire::SetxattrIn = request.take()?;
                let (name, value) = (request.name()?, request.bytes(it.size)?);
                self.set_xattr(inode, name, value, it.flags as i32, request.caller(0))?;
            }
            operation::GETXATTR => {
                let it: wire::GetxattrIn = request.take()?;
                let name = request.name()?;
                let value = match inode == ROOT && name == FIGURES.as_bytes() {
                    true => self.figures().into_bytes(),
                    false => self.tree.xattr(inode, name)?,
                };
                reply.value(it.size, &value)?;
            }
            operation::LISTXATTR => {
                let it: wire::GetxattrIn = request.take()?;
                reply.value(it.size, &self.xattr_names(inode, request.header.uid)?)?;
            }
            operation::REMOVEXATTR => self.tree.remove_xattr(inode, request.name()?, now())?,
            operation::FALLOCATE => {
                let it: wire::FallocateIn = request.take()?;
                self.allocate(inode, it.offset, it.length, it.mode as i32)?;
            }
            operation::LSEEK => {
                let it: wire::LseekIn = request.take()?;
                let offset = self.seek(inode, it.offset as i64, it.whence as i32)?;
                reply.add(&wire::LseekOut { offset });
            }
            operation::COPY_FILE_RANGE => {
                let it: wire::CopyFileRangeIn = request.take()?;
                let to = (number(it.nodeid_out), it.off_out);
                // A request copies less than 4 GiB.
                reply.count(self.copy((inode, it.off_in), to, it.len)? as u32);
            }
            operation::IOCTL => self.command(request, reply)?,
            // `FLUSH` and `FSYNCDIR` too: no other thread can observe an acknowledged operation
            // before it is done. The kernel does not ask again.
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// Changes an inode's attributes and a file's size.
    fn change(&self, inode: u32, it: &wire::SetattrIn) -> SysResult<InodeAttributes> {
        let now = now();
        let is_set = |which: u32| it.valid & which != 0;
        let time = |is_given, is_now, seconds, nanoseconds| {
            let explicit = || wire::time(seconds, nanoseconds);
            is_set(is_given).then(|| if is_set(is_now) { now } else { explicit() })
        };
        let mut change = AttributeChange {
            mode: is_set(valid::MODE).then_some(it.mode),
            user: is_set(valid::UID).then_some(it.uid),
            group: is_set(valid::GID).then_some(it.gid),
            accessed: time(valid::ATIME, valid::ATIME_NOW, it.atime, it.atimensec),
            modified: time(valid::MTIME, valid::MTIME_NOW, it.mtime, it.mtimensec),
        };
        let size = is_set(valid::SIZE).then_some(it.size);
        self.set(inode, &mut change, size, now)
    }

    /// The open flags of a file.
    fn open_flags(&self) -> wire::OpenOut {
        open(match self.cache {
            PageCache::None => wire::open::DIRECT_IO | wire::open::PARALLEL_DIRECT_WRITES,
            PageCache::Keep => wire::open::KEEP_CACHE,
        })
    }

    /// The size of the filesystem, and how much of it is free.
    fn statfs(&self) -> wire::StatfsOut {
        self.wait_for_forgets();
        let space = self.store.space();
        let (inodes, max_inodes) = self.tree.inodes();
        wire::StatfsOut {
            blocks: space.pages(),
            bfree: space.free_pages(),
            bavail: space.free_pages(),
            files: max_inodes,
            ffree: max_inodes - inodes,
            bsize: PAGE_BYTES as u32,
            namelen: NAME_MAX as u32,
            frsize: PAGE_BYTES as u32,
            padding: 0,
            spare: [0; _],
        }
    }

    /// The names of an inode's extended attributes that a user may see.
    fn xattr_names(&self, inode: u32, user: u32) -> SysResult<Vec<u8>> {
        let names = self.tree.xattr_names(inode)?;
        if user == SUPERUSER {
            return Ok(names);
        }
        let all = names.split_inclusive(|byte| *byte == 0);
        let shown = all.filter(|it| !it.starts_with(b"trusted."));
        Ok(shown.collect::<Vec<_>>().concat())
    }

    /// Runs a step of an administrative command.
    fn command(&self, request: &mut KernelRequest<'_>, reply: &mut Reply<'_>) -> SysResult<()> {
        let it: wire::IoctlIn = request.take()?;
        let is_ours = it.cmd == COMMAND && it.out_size as usize == size_of::<ControlMessage>();
        let step = ControlRequest::decode(request.bytes(it.in_size)?).filter(|_| is_ours);
        let step = step.ok_or(Errno::NOTTY)?;
        let user = request.header.uid;
        if ![SUPERUSER, self.owner].contains(&user) {
            return Err(Errno::PERM);
        }
        let mut message: ControlMessage = [0; _];
        match self.step(request.inode(), user, step) {
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
