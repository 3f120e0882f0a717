//! Sparse tables as large as the address space, backed lazily.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64};

use super::error::{MemError, os_error};

/// Lazily backed zeroed memory.
pub(crate) struct ShadowTable<T> {
    at: *mut T,
    len: usize,
}

// SAFETY: the table is memory like a boxed slice of atomics; access is through shared references to
// `T: Sync`.
unsafe impl<T: Sync + Send> Send for ShadowTable<T> {}
// SAFETY: as above.
unsafe impl<T: Sync + Send> Sync for ShadowTable<T> {}

impl<T> fmt::Debug for ShadowTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShadowTable")
            .field("len", &self.len)
            .finish()
    }
}

/// Types for which all-zero bytes are a value.
pub(crate) trait ZeroValid {}
impl ZeroValid for AtomicU8 {}
impl ZeroValid for AtomicU64 {}

impl<T: ZeroValid> ShadowTable<T> {
    pub(crate) fn new(len: usize) -> Result<Self, MemError> {
        let bytes = len * size_of::<T>();
        // SAFETY: a fresh anonymous mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(os_error("reserve the shadow", bytes as u64));
        }
        Ok(ShadowTable { at: at.cast(), len })
    }
}

impl<T> std::ops::Deref for ShadowTable<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were mapped zeroed at `at`, zero is a valid `T` (bound of `new`),
        // and the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T> Drop for ShadowTable<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this length.
        unsafe { libc::munmap(self.at.cast(), self.len * size_of::<T>()) };
    }
}
