//! Physical memory: pieces of memfds, which may be mapped at several addresses.
//!
//! A piece of the process's heap is exported as a file description of its own: the description's
//! position tells where the piece lies, and its lock marks it as in use. So memory that can be
//! exported costs no descriptor until it is, and a piece is reused only when no process has a
//! descriptor of it any more.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::error::{MemError, check_os};
use super::granule::GRANULE;
use super::ranges::FreeRanges;
use super::shared_file;
use crate::lock::lock;

const MEMORY_NAME: &CStr = c"fercuda-device-memory";

/// Physical memory. Dropping the last clone releases it.
#[derive(Debug, Clone)]
pub struct Backing(pub(super) Arc<BackingInner>);

#[derive(Debug)]
pub(super) struct BackingInner {
    pub(super) file: Arc<OwnedFd>,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The heap to which the piece is released; `None` for another file.
    pub(super) heap: Option<Arc<Heap>>,
    /// Set once a descriptor of the piece was made.
    pub(super) exported: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Heap {
    pub(super) file: Arc<OwnedFd>,
    pub(super) free: Mutex<FreeRanges>,
    pub(super) used: AtomicU64,
    /// Released pieces, with their lengths, of which descriptors were left.
    pub(super) exported: Mutex<Vec<(u64, u64)>>,
}

/// The bits of a position that are the offset in granules; those above are the length.
const OFFSET_BITS: u32 = 24;

impl Heap {
    /// Empties a piece and makes it available again.
    fn give(&self, offset: u64, len: u64) {
        // SAFETY: plain system call on a descriptor that `self.file` keeps open.
        let rc = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as i64,
                len as i64,
            )
        };
        // A piece that could not be emptied is not handed out again: its bytes are another's.
        if rc == 0 {
            self.used.fetch_sub(len, Ordering::Relaxed);
            lock(&self.free).give(offset, len);
        }
    }

    /// Whether a descriptor of a piece is left in any process; so if that cannot be determined.
    fn is_held(&self, offset: u64, len: u64) -> bool {
        let mut held = piece_lock(libc::F_WRLCK, offset, len);
        // SAFETY: the record outlives the call.
        let rc = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut held) };
        rc != 0 || i32::from(held.l_type) != libc::F_UNLCK
    }

    /// Makes exported pieces available again of which no descriptor is left.
    pub(super) fn collect(&self) {
        let over: Vec<(u64, u64)> = {
            let mut exported = lock(&self.exported);
            exported
                .extract_if(.., |(offset, len)| !self.is_held(*offset, *len))
                .collect()
        };
        for (offset, len) in over {
            self.give(offset, len);
        }
    }
}

fn piece_lock(kind: libc::c_int, offset: u64, len: u64) -> libc::flock {
    // SAFETY: all fields are integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = len as libc::off_t;
    lock
}

impl Backing {
    /// From a descriptor that another process exported.
    ///
    /// # Errors
    /// [`MemError::BadRange`] if it is not a file of device memory, whose size is sealed, with
    /// these bytes.
    pub fn from_fd(file: OwnedFd, offset: u64, len: u64) -> Result<Self, MemError> {
        let bad = |what| MemError::BadRange {
            start: offset,
            len,
            what,
        };
        if !shared_file::is_ours(&file, MEMORY_NAME) {
            return Err(bad("in a file that is no device memory"));
        }
        let size = file_len(&file, len)?;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(bad("outside the shared file"));
        }
        Ok(Backing(Arc::new(BackingInner {
            file: Arc::new(file),
            offset,
            len,
            heap: None,
            exported: AtomicBool::new(false),
        })))
    }

    /// From `(process, descriptor, offset)` as another process published it.
    ///
    /// # Errors
    /// [`MemError::BadRange`] when that process is gone or is another user's, or the descriptor
    /// is of something else, or has not these bytes.
    pub fn open_foreign(pid: u32, fd: RawFd, offset: u64, len: u64) -> Result<Self, MemError> {
        let file = shared_file::open_of(pid, fd, MEMORY_NAME);
        let file = file.ok_or(MemError::BadRange {
            start: offset,
            len,
            what: "in no memory of that process",
        })?;
        Self::from_fd(file, offset, len)
    }

    /// The file's descriptor in this process.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }

    /// A descriptor of this memory for another process, which keeps it from being reused until all
    /// its copies are closed.
    ///
    /// # Errors
    /// [`MemError::System`].
    pub fn export(&self) -> Result<OwnedFd, MemError> {
        let system = |source| MemError::System {
            what: "make a descriptor of memory",
            len: self.0.len,
            source,
        };
        let BackingInner { offset, len, .. } = *self.0;
        if self.0.heap.is_none() {
            // Another process's: the same description.
            return self.0.file.try_clone().map_err(system);
        }
        let path = format!("/proc/self/fd/{}", self.fd());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path);
        let file = OwnedFd::from(file.map_err(system)?);
        let position = (offset / GRANULE) | ((len / GRANULE) << OFFSET_BITS);
        let mut held = piece_lock(libc::F_RDLCK, offset, len);
        // SAFETY: plain system calls on our descriptor; the record outlives them.
        unsafe {
            let at = libc::lseek(file.as_raw_fd(), position as i64, libc::SEEK_SET);
            check_os(if at < 0 { -1 } else { 0 }, "mark a descriptor", len)?;
            let locked = libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut held);
            check_os(locked, "mark a descriptor", len)?;
        }
        self.0.exported.store(true, Ordering::Release);
        Ok(file)
    }

    /// From a descriptor that [`Backing::export`] made, of a file that holds device memory.
    ///
    /// # Errors
    /// [`MemError::System`], [`MemError::BadRange`] if it denotes no part of the file.
    pub fn import(file: OwnedFd) -> Result<Self, MemError> {
        // SAFETY: plain system call on our descriptor.
        let position = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_CUR) };
        check_os(
            if position < 0 { -1 } else { 0 },
            "inspect a shared file",
            0,
        )?;
        let position = position as u64;
        let offset = (position % (1 << OFFSET_BITS)) * GRANULE;
        let len = (position >> OFFSET_BITS).checked_mul(GRANULE);
        let len = len.filter(|len| *len > 0).ok_or(MemError::BadRange {
            start: offset,
            len: 0,
            what: "of no exported memory",
        })?;
        Self::from_fd(file, offset, len)
    }

    /// Where in the file it begins.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Bytes, a multiple of [`GRANULE`] unless it came from elsewhere.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Never: backings have bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }
}

impl Drop for BackingInner {
    fn drop(&mut self) {
        let Some(heap) = &self.heap else { return };
        if *self.exported.get_mut() && heap.is_held(self.offset, self.len) {
            lock(&heap.exported).push((self.offset, self.len));
        } else {
            heap.give(self.offset, self.len);
        }
    }
}

/// A file of device memory, whose size is final.
pub(super) fn memory_file(len: u64) -> Result<OwnedFd, MemError> {
    shared_file::create(MEMORY_NAME, len).map_err(|source| MemError::System {
        what: "create device memory",
        len,
        source,
    })
}

fn file_len(file: &OwnedFd, len: u64) -> Result<u64, MemError> {
    shared_file::len_bytes(file).map_err(|source| MemError::System {
        what: "inspect a shared file",
        len,
        source,
    })
}
