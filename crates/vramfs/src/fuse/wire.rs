//! What the kernel asks of a filesystem and how it is answered, byte by byte: `linux/fuse.h`, from protocol 7.31 on.
//!
//! A request is a [`Header`], what belongs to its operation, and names that end with a zero. An answer is a header and what
//! the operation has to say; or an error and nothing else. Some have no answer.
//!
//! Elsewhere: what is answered (`calls`), by whom (`serve`). What both speak of first is fuser's business.

use std::fs::File;
use std::io::{IoSlice, Write as _};

use bytemuck::{AnyBitPattern, NoUninit, Pod, Zeroable};
use rustix::io::Errno;

use crate::fuse::KEPT;
use crate::tree::{Answer, Attributes, KIND, Time};

/// The operations that are answered; the kernel does without others.
pub(super) mod operation {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
}

/// Structures of the protocol, with its names.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? } = $bytes:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        #[repr(C)]
        pub(super) struct $name {
            $(pub(super) $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

structures! {
    /// What every request begins with.
    Header { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extlen: u32 } = 40;
    /// What every answer begins with.
    OutHeader { len: u32, error: i32, unique: u64 } = 16;

    ForgetIn { nlookup: u64 } = 8;
    BatchForgetIn { count: u32, dummy: u32 } = 8;
    ForgetOne { nodeid: u64, nlookup: u64 } = 16;
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    } = 88;
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 } = 16;
    MkdirIn { mode: u32, umask: u32 } = 8;
    RenameIn { newdir: u64 } = 8;
    /// What `RENAME2` says behind that.
    Rename2More { flags: u32, padding: u32 } = 8;
    LinkIn { oldnodeid: u64 } = 8;
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 } = 16;
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 } = 24;
    /// Also what `READDIR` and `READDIRPLUS` say.
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 } = 40;
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 } = 40;
    SetxattrIn { size: u32, flags: u32 } = 8;
    /// Also what `LISTXATTR` says.
    GetxattrIn { size: u32, padding: u32 } = 8;
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 } = 32;
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 } = 32;
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 } = 24;
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    } = 56;

    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    } = 88;
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    } = 128;
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr } = 104;
    OpenOut { fh: u64, open_flags: u32, backing_id: u32 } = 16;
    /// Also what `COPY_FILE_RANGE`, `GETXATTR` and `LISTXATTR` answer.
    WriteOut { size: u32, padding: u32 } = 8;
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    } = 80;
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 } = 16;
    LseekOut { offset: u64 } = 8;
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32 } = 24;
}

/// Fields of [`SetattrIn`] that count.
pub(super) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

/// Of [`OpenOut`].
pub(super) mod open {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Of [`WriteIn`]: the writer takes what the file may do for others than its owner.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

const SECOND: Time = 1_000_000_000;

/// A request, and what of it was not taken yet.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) header: Header,
    rest: &'a [u8],
}

impl<'a> Call<'a> {
    /// The request that these bytes are, if they are one. What it says of its length is not believed.
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(size_of::<Header>())?;
        let header = bytemuck::pod_read_unaligned(header);
        Some(Self { header, rest })
    }

    /// The inode that it is about.
    pub(super) fn inode(&self) -> u32 {
        number(self.header.nodeid)
    }

    /// A structure that comes next.
    ///
    /// # Errors
    /// `IO` where there is less than that.
    pub(super) fn take<T: AnyBitPattern>(&mut self) -> Answer<T> {
        let (taken, rest) = self
            .rest
            .split_at_checked(size_of::<T>())
            .ok_or(Errno::IO)?;
        self.rest = rest;
        Ok(bytemuck::pod_read_unaligned(taken))
    }

    /// A name that comes next, without its end.
    ///
    /// # Errors
    /// `IO` if it has none.
    pub(super) fn name(&mut self) -> Answer<&'a [u8]> {
        let end = self.rest.iter().position(|byte| *byte == 0);
        let (name, rest) = self.rest.split_at(end.ok_or(Errno::IO)?);
        self.rest = &rest[1..];
        Ok(name)
    }

    /// So many bytes that come next.
    ///
    /// # Errors
    /// `IO` where there are fewer.
    pub(super) fn bytes(&mut self, len: u32) -> Answer<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len as usize).ok_or(Errno::IO)?;
        self.rest = rest;
        Ok(bytes)
    }
}

/// There is no inode 0, so what cannot be one is answered with `STALE`.
pub(super) fn number(node: u64) -> u32 {
    u32::try_from(node).unwrap_or(0)
}

/// Nanoseconds since 1970, as near as they can be told.
pub(super) fn time(seconds: i64, nanoseconds: u32) -> Time {
    seconds
        .saturating_mul(SECOND)
        .saturating_add(Time::from(nanoseconds))
}

fn parts(time: Time) -> (i64, u32) {
    // Nanoseconds count from whole seconds on, also before 1970.
    (time.div_euclid(SECOND), time.rem_euclid(SECOND) as u32)
}

/// What the answer to one request says, until it is sent.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    device: &'a File,
    unique: u64,
    /// What is behind the header.
    body: &'a mut Vec<u8>,
    is_over: bool,
}

impl<'a> Reply<'a> {
    /// One that says nothing yet, and has this memory to say it in.
    pub(super) fn new(device: &'a File, unique: u64, body: &'a mut Vec<u8>) -> Self {
        body.clear();
        Self {
            device,
            unique,
            body,
            is_over: false,
        }
    }

    /// Says a structure.
    pub(super) fn add(&mut self, it: &impl NoUninit) {
        self.add_bytes(bytemuck::bytes_of(it));
    }

    /// Says bytes.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }

    /// The kernel does not wait for an answer.
    pub(super) fn is_not_awaited(&mut self) {
        self.is_over = true;
    }

    /// Sends these bytes from where they are; that is the answer.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.body.clear();
        self.finish(0, bytes);
    }

    /// Sends how much of something there is; that is the answer.
    pub(super) fn send_count(&mut self, size: u32) {
        self.body.clear();
        self.count(size);
        self.finish(0, &[]);
    }

    /// Sends what was said, or the error, if nothing was sent yet.
    pub(super) fn end(mut self, answer: Answer<()>) {
        let error = answer.map_or_else(|error| -error.raw_os_error(), |()| 0);
        if error != 0 {
            self.body.clear();
        }
        self.finish(error, &[]);
    }

    fn finish(&mut self, error: i32, bytes: &[u8]) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let header = OutHeader {
            len: (size_of::<OutHeader>() + self.body.len() + bytes.len()) as u32,
            error,
            unique: self.unique,
        };
        let parts = [bytemuck::bytes_of(&header), self.body, bytes].map(IoSlice::new);
        let mut device = self.device;
        // All at once or not at all. It fails where nobody waits any more: the caller was killed, or the connection cut.
        let _sent = device.write_vectored(&parts);
    }

    /// Says an inode that has a name.
    pub(super) fn entry(&mut self, it: &Attributes) {
        self.add(&entry(it));
    }

    /// Says what is known of an inode.
    pub(super) fn attributes(&mut self, it: &Attributes) {
        self.add(&AttrOut {
            attr_valid: KEPT.as_secs(),
            attr_valid_nsec: 0,
            dummy: 0,
            attr: attr(it),
        });
    }

    /// Says how much of something there is.
    pub(super) fn count(&mut self, size: u32) {
        self.add(&WriteOut { size, padding: 0 });
    }

    /// Says a value if there is room for it, and its length if that was asked for.
    ///
    /// # Errors
    /// `RANGE` without room.
    pub(super) fn value(&mut self, room: u32, value: &[u8]) -> Answer<()> {
        match room as usize {
            0 => self.count(value.len() as u32),
            room if value.len() <= room => self.add_bytes(value),
            _ => return Err(Errno::RANGE),
        }
        Ok(())
    }

    /// Says an entry of a directory, with what is known of it or without, if there is room: all together may have so
    /// many bytes. Whether there was.
    pub(super) fn listed(
        &mut self,
        room: u32,
        number: u64,
        name: &[u8],
        it: &Attributes,
        is_told: bool,
    ) -> bool {
        let known = if is_told { size_of::<EntryOut>() } else { 0 };
        let len = (known + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        let end = self.body.len() + len;
        if end > room as usize {
            return false;
        }
        if is_told {
            self.entry(it);
        }
        self.add(&Dirent {
            ino: u64::from(it.inode),
            off: number,
            namelen: name.len() as u32,
            // As `d_type` has it.
            kind: (it.mode & KIND) >> 12,
        });
        self.add_bytes(name);
        self.body.resize(end, 0);
        true
    }
}

fn entry(it: &Attributes) -> EntryOut {
    EntryOut {
        nodeid: u64::from(it.inode),
        generation: u64::from(it.generation),
        entry_valid: KEPT.as_secs(),
        attr_valid: KEPT.as_secs(),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr(it),
    }
}

fn attr(it: &Attributes) -> Attr {
    let [accessed, modified, changed] = [it.accessed, it.modified, it.changed].map(parts);
    Attr {
        ino: u64::from(it.inode),
        size: it.size,
        blocks: it.pages * (crate::layout::PAGE_BYTES / 512) as u64,
        atime: accessed.0,
        mtime: modified.0,
        ctime: changed.0,
        atimensec: accessed.1,
        mtimensec: modified.1,
        ctimensec: changed.1,
        mode: it.mode,
        nlink: it.links,
        uid: it.user,
        gid: it.group,
        rdev: it.device,
        blksize: crate::layout::DATA_BYTES as u32,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds_and_nanoseconds_behind_them_also_before_1970() {
        for (said, nanoseconds) in [
            ((0, 0), 0),
            ((1, 5), SECOND + 5),
            ((-1, 0), -SECOND),
            // A quarter of a second before 1970 is three quarters behind the second before.
            ((-1, 750_000_000), -SECOND / 4),
        ] {
            assert_eq!(time(said.0, said.1), nanoseconds);
            assert_eq!(parts(nanoseconds), said);
        }
        assert_eq!(time(i64::MAX, 0), Time::MAX);
        assert_eq!(time(i64::MIN, 999_999_999), Time::MIN + 999_999_999);
        for far in [Time::MIN, Time::MAX] {
            let (seconds, nanoseconds) = parts(far);
            let exact = i128::from(seconds) * i128::from(SECOND) + i128::from(nanoseconds);
            assert_eq!(exact, i128::from(far));
        }
    }

    #[test]
    fn what_is_shorter_than_it_says_or_has_no_end_is_refused() {
        let header = Header {
            len: 44,
            nodeid: u64::from(u32::MAX) + 1,
            ..Zeroable::zeroed()
        };
        let bytes = [bytemuck::bytes_of(&header), b"ab\0c"].concat();
        assert!(Call::new(&bytes[..39]).is_none() && Call::new(&bytes[..40]).is_some());
        let mut call = Call::new(&bytes).unwrap();
        assert_eq!(call.inode(), 0);
        assert_eq!(call.take::<ForgetIn>().unwrap_err(), Errno::IO);
        assert_eq!(call.bytes(5), Err(Errno::IO));
        assert_eq!(call.name(), Ok(&b"ab"[..]));
        assert_eq!(call.name(), Err(Errno::IO));
        assert_eq!(call.bytes(1), Ok(&b"c"[..]));
        assert_eq!(call.bytes(1), Err(Errno::IO));
    }
}
