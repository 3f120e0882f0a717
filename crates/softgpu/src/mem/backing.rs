//! Physical memory: pieces of memfds, which may be mapped at several addresses.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::error::MemError;
use super::granule::{GRANULE, round_up};
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
        let file = memory_file(len)?;
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
        })))
    }

    /// All of a file that another process exported.
    ///
    /// # Errors
    /// As for [`Backing::from_fd`]; also for a file without bytes, or not in granules.
    pub fn whole_from_fd(file: OwnedFd) -> Result<Self, MemError> {
        let len = file_len(&file, 0)?;
        if len == 0 || !len.is_multiple_of(GRANULE) {
            return Err(MemError::BadRange {
                start: 0,
                len,
                what: "not in whole granules",
            });
        }
        Self::from_fd(file, 0, len)
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
