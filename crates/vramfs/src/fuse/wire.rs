//! FUSE wire format: requests and replies as in `linux/fuse.h`, from protocol 7.31 on.
//!
//! A request is a [`Header`], a structure of its operation, and zero-terminated names. A reply is a
//! header and the operation's result, or an error and nothing else. Some requests have no reply.
//!
//! Elsewhere: what is answered (`calls`), the threads that answer (`serve`). fuser handles the
//! initial negotiation.

use std::fs::File;
use std::io::{IoSlice, Write as _};

use bytemuck::{AnyBitPattern, NoUninit, Pod, Zeroable};
use rustix::io::Errno;

use crate::fuse::CACHE_TTL;
use crate::tree::{InodeAttributes, KIND, SysResult, Time};

/// The operations that are supported; the kernel works without the others.
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

/// Structures of the protocol, under their names there.
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
    /// The header of every request.
    Header { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extlen: u32 } = 40;
    /// The header of every reply.
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
    /// Follows in a `RENAME2`.
    Rename2Flags { flags: u32, padding: u32 } = 8;
    LinkIn { oldnodeid: u64 } = 8;
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 } = 16;
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 } = 24;
    /// Also for `READDIR` and `READDIRPLUS`.
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 } = 40;
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 } = 40;
    SetxattrIn { size: u32, flags: u32 } = 8;
    /// Also for `LISTXATTR`.
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
    /// Also for `COPY_FILE_RANGE`, `GETXATTR` and `LISTXATTR`.
    WriteOut { size: u32, padding: u32 } = 8;
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    } = 80;
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 } = 16;
    LseekOut { offset: u64 } = 8;
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32 } = 24;
}

/// Bits for the fields of [`SetattrIn`] that are set.
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

/// Flags of [`OpenOut`].
pub(super) mod open {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Flag of [`WriteIn`]: the write clears the file's set-user-ID and set-group-ID bits.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

const SECOND: Time = 1_000_000_000;

/// A request, and the part of it that was not decoded yet.
#[derive(Debug)]
pub(super) struct KernelRequest<'a> {
    pub(super) header: Header,
    rest: &'a [u8],
}

impl<'a> KernelRequest<'a> {
    /// Decodes a header. The length that it states is not trusted.
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(size_of::<Header>())?;
        let header = bytemuck::pod_read_unaligned(header);
        Some(Self { header, rest })
    }

    /// The inode that the request is about.
    pub(super) fn inode(&self) -> u32 {
        number(self.header.nodeid)
    }

    /// Decodes the next structure.
    ///
    /// # Errors
    /// `IO` if fewer bytes are left.
    pub(super) fn take<T: AnyBitPattern>(&mut self) -> SysResult<T> {
        let (taken, rest) = self
            .rest
            .split_at_checked(size_of::<T>())
            .ok_or(Errno::IO)?;
        self.rest = rest;
        Ok(bytemuck::pod_read_unaligned(taken))
    }

    /// Decodes the next name, without its terminator.
    ///
    /// # Errors
    /// `IO` if it has none.
    pub(super) fn name(&mut self) -> SysResult<&'a [u8]> {
        let end = self.rest.iter().position(|byte| *byte == 0);
        let (name, rest) = self.rest.split_at(end.ok_or(Errno::IO)?);
        self.rest = &rest[1..];
        Ok(name)
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    /// `IO` if fewer are left.
    pub(super) fn bytes(&mut self, len: u32) -> SysResult<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len as usize).ok_or(Errno::IO)?;
        self.rest = rest;
        Ok(bytes)
    }
}

/// An inode's number. There is no inode 0, so an invalid number results in `STALE`.
pub(super) fn number(node: u64) -> u32 {
    u32::try_from(node).unwrap_or(0)
}

/// Nanoseconds since 1970, saturating.
pub(super) fn time(seconds: i64, nanoseconds: u32) -> Time {
    seconds
        .saturating_mul(SECOND)
        .saturating_add(Time::from(nanoseconds))
}

fn parts(time: Time) -> (i64, u32) {
    // Nanoseconds are never negative, also before 1970.
    (time.div_euclid(SECOND), time.rem_euclid(SECOND) as u32)
}

/// The reply to one request, until it is sent.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    device: &'a File,
    unique: u64,
    /// The bytes behind the header.
    body: &'a mut Vec<u8>,
    is_complete: bool,
}

impl<'a> Reply<'a> {
    /// An empty reply that uses the memory of `body`.
    pub(super) fn new(device: &'a File, unique: u64, body: &'a mut Vec<u8>) -> Self {
        body.clear();
        Self {
            device,
            unique,
            body,
            is_complete: false,
        }
    }

    /// Appends a structure.
    pub(super) fn add(&mut self, it: &impl NoUninit) {
        self.add_bytes(bytemuck::bytes_of(it));
    }

    /// Appends bytes.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }

    /// Sends no reply: the kernel does not expect one.
    pub(super) fn suppress_reply(&mut self) {
        self.is_complete = true;
    }

    /// Sends these bytes in place; that completes the reply.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.body.clear();
        self.send_reply(0, bytes);
    }

    /// Sends a count of bytes; that completes the reply.
    pub(super) fn send_count(&mut self, size: u32) {
        self.body.clear();
        self.count(size);
        self.send_reply(0, &[]);
    }

    /// Sends what was appended, or the error, unless the reply was sent already.
    pub(super) fn complete(mut self, answer: SysResult<()>) {
        let error = answer.map_or_else(|error| -error.raw_os_error(), |()| 0);
        if error != 0 {
            self.body.clear();
        }
        self.send_reply(error, &[]);
    }

    fn send_reply(&mut self, error: i32, bytes: &[u8]) {
        if std::mem::replace(&mut self.is_complete, true) {
            return;
        }
        let header = OutHeader {
            len: (size_of::<OutHeader>() + self.body.len() + bytes.len()) as u32,
            error,
            unique: self.unique,
        };
        let parts = [bytemuck::bytes_of(&header), self.body, bytes].map(IoSlice::new);
        let mut device = self.device;
        // Atomic: all or nothing. Fails if the request is gone: the caller was killed, or the
        // connection aborted.
        let _sent = device.write_vectored(&parts);
    }

    /// Appends an inode that was looked up or created.
    pub(super) fn entry(&mut self, it: &InodeAttributes) {
        self.add(&entry(it));
    }

    /// Appends an inode's attributes.
    pub(super) fn attributes(&mut self, it: &InodeAttributes) {
        self.add(&AttrOut {
            attr_valid: CACHE_TTL.as_secs(),
            attr_valid_nsec: 0,
            dummy: 0,
            attr: attr(it),
        });
    }

    /// Appends a count of bytes.
    pub(super) fn count(&mut self, size: u32) {
        self.add(&WriteOut { size, padding: 0 });
    }

    /// Appends a value if it fits, or its length if `room` is 0.
    ///
    /// # Errors
    /// `RANGE` if it does not fit.
    pub(super) fn value(&mut self, room: u32, value: &[u8]) -> SysResult<()> {
        match room as usize {
            0 => self.count(value.len() as u32),
            room if value.len() <= room => self.add_bytes(value),
            _ => return Err(Errno::RANGE),
        }
        Ok(())
    }

    /// Appends a directory entry, with or without attributes, if the reply stays within `room`
    /// bytes; returns whether it does.
    pub(super) fn directory_entry(
        &mut self,
        room: u32,
        number: u64,
        name: &[u8],
        it: &InodeAttributes,
        with_attributes: bool,
    ) -> bool {
        let attributes_len = if with_attributes {
            size_of::<EntryOut>()
        } else {
            0
        };
        let len = (attributes_len + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        let end = self.body.len() + len;
        if end > room as usize {
            return false;
        }
        if with_attributes {
            self.entry(it);
        }
        self.add(&Dirent {
            ino: u64::from(it.inode),
            off: number,
            namelen: name.len() as u32,
            // The format of `d_type`.
            kind: (it.mode & KIND) >> 12,
        });
        self.add_bytes(name);
        self.body.resize(end, 0);
        true
    }
}

fn entry(it: &InodeAttributes) -> EntryOut {
    EntryOut {
        nodeid: u64::from(it.inode),
        generation: u64::from(it.generation),
        entry_valid: CACHE_TTL.as_secs(),
        attr_valid: CACHE_TTL.as_secs(),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr(it),
    }
}

fn attr(it: &InodeAttributes) -> Attr {
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
    fn times_before_1970_have_non_negative_nanoseconds() {
        for (encoded, nanoseconds) in [
            ((0, 0), 0),
            ((1, 5), SECOND + 5),
            ((-1, 0), -SECOND),
            // A quarter of a second before 1970 is three quarters after the second before.
            ((-1, 750_000_000), -SECOND / 4),
        ] {
            assert_eq!(time(encoded.0, encoded.1), nanoseconds);
            assert_eq!(parts(nanoseconds), encoded);
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
    fn truncated_and_unterminated_requests_are_rejected() {
        let header = Header {
            len: 44,
            nodeid: u64::from(u32::MAX) + 1,
            ..Zeroable::zeroed()
        };
        let bytes = [bytemuck::bytes_of(&header), b"ab\0c"].concat();
        assert!(
            KernelRequest::new(&bytes[..39]).is_none()
                && KernelRequest::new(&bytes[..40]).is_some()
        );
        let mut request = KernelRequest::new(&bytes).unwrap();
        assert_eq!(request.inode(), 0);
        assert_eq!(request.take::<ForgetIn>().unwrap_err(), Errno::IO);
        assert_eq!(request.bytes(5), Err(Errno::IO));
        assert_eq!(request.name(), Ok(&b"ab"[..]));
        assert_eq!(request.name(), Err(Errno::IO));
        assert_eq!(request.bytes(1), Ok(&b"c"[..]));
        assert_eq!(request.bytes(1), Err(Errno::IO));
    }
}
