//! Physical memory: pieces of memfds, which may be mapped at several addresses.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::error::{MemError, check_os};
use super::granule::round_up;
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
    /// The heap to which the piece is released; `None` for a file of its own.
    pub(super) heap: Option<Arc<Heap>>,
}

#[derive(Debug)]
pub(super) struct Heap {
    pub(super) file: Arc<OwnedFd>,
    pub(super) free: Mutex<FreeRanges>,
    pub(super) used: AtomicU64,
}

impl Backing {
    /// A file of its own, which can be exported as a descriptor.
    ///
    /// # Errors
    /// [`MemError::System`].
    pub fn dedicated(len: u64) -> Result<Self, MemError> {
        let len = round_up(len);
        let file = memfd(len)?;
        Ok(Backing(Arc::new(BackingInner {
            file: Arc::new(file),
            offset: 0,
            len,
            heap: None,
        })))
    }

    /// From a descriptor that another process exported.
    ///
    /// # Errors
    /// [`MemError::System`] if it is not a file of at least `len` bytes.
    pub fn from_fd(file: OwnedFd, offset: u64, len: u64) -> Result<Self, MemError> {
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

    /// A new descriptor of the same file.
    ///
    /// # Errors
    /// [`MemError::System`].
    pub fn duplicate_fd(&self) -> Result<OwnedFd, MemError> {
        self.0.file.try_clone().map_err(|source| MemError::System {
            what: "duplicate a descriptor",
            len: self.0.len,
            source,
        })
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
        if let Some(heap) = &self.heap {
            // SAFETY: plain system call on a descriptor that `self.file` keeps open.
            let rc = unsafe {
                libc::fallocate(
                    self.file.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    self.offset as i64,
                    self.len as i64,
                )
            };
            // A piece that could not be emptied is not handed out again: its bytes are another's.
            if rc == 0 {
                heap.used.fetch_sub(self.len, Ordering::Relaxed);
                lock(&heap.free).give(self.offset, self.len);
            }
        }
    }
}

pub(super) fn memfd(len: u64) -> Result<OwnedFd, MemError> {
    // SAFETY: the name is a C string; the descriptor is fresh and not shared.
    let file = unsafe {
        let fd = libc::memfd_create(c"fercuda-device-memory".as_ptr(), libc::MFD_CLOEXEC);
        check_os(fd, "create device memory", len)?;
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: plain system call on our descriptor.
    let rc = unsafe { libc::ftruncate(file.as_raw_fd(), len as i64) };
    check_os(rc, "size device memory", len)?;
    Ok(file)
}
