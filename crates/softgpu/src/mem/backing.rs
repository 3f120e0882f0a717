//! Physical memory: pieces of memfds, which may be mapped at several addresses.
//!
//! A piece of the process's heap is exported as a file description of its own: the description's
//! position tells where the piece lies, and its lock marks it as in use. So memory that can be
//! exported costs no descriptor until it is, and a piece is reused only when no process has a
//! descriptor of it any more.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::error::{MemError, check_os};
use super::granule::GRANULE;
use super::ranges::FreeRanges;
use crate::lock::lock;

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
    /// [`MemError::System`], [`MemError::BadRange`] if it is not a file of at least `len` bytes
    /// whose size is sealed.
    pub fn from_fd(file: OwnedFd, offset: u64, len: u64) -> Result<Self, MemError> {
        // SAFETY: plain system call on a descriptor of ours; other files have no seals.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(MemError::BadRange {
                start: offset,
                len,
                what: "in a file that others may cut",
            });
        }
        // SAFETY: an all-zero `stat` is a valid value, and `fstat` writes only into it.
        let size = unsafe {
            let mut st: libc::stat = std::mem::zeroed();
            check_os(
                libc::fstat(file.as_raw_fd(), &raw mut st),
                "inspect a shared file",
                len,
            )?;
            st.st_size as u64
        };
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(MemError::BadRange {
                start: offset,
                len,
                what: "outside the shared file",
            });
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
    /// [`MemError::System`] when that process is gone or is another user's.
    pub fn open_foreign(pid: u32, fd: RawFd, offset: u64, len: u64) -> Result<Self, MemError> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/fd/{fd}"))
            .map_err(|source| MemError::System {
                what: "open another process's memory",
                len,
                source,
            })?;
        Self::from_fd(file.into(), offset, len)
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

/// What keeps other processes from cutting off memory that is mapped here.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

pub(super) fn memfd(len: u64) -> Result<OwnedFd, MemError> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the descriptor is fresh and not shared.
    let file = unsafe {
        let fd = libc::memfd_create(c"fercuda-device-memory".as_ptr(), flags);
        check_os(fd, "create device memory", len)?;
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: plain system call on our descriptor.
    let rc = unsafe { libc::ftruncate(file.as_raw_fd(), len as i64) };
    check_os(rc, "size device memory", len)?;
    // SAFETY: plain system call on our descriptor.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
    check_os(rc, "seal device memory", len)?;
    Ok(file)
}
