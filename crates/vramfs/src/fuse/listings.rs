//! Open directories, and where each listing ends.
//!
//! A new or renamed entry is appended behind all others, so a program that creates or renames
//! entries while it lists the directory would never reach the end. A listing therefore ends with
//! the entry that was the last one when the listing started or was rewound (`rewinddir`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    open: Mutex<OpenDirectories>,
}

#[derive(Debug, Default)]
struct OpenDirectories {
    /// The number of the last entry to list, by directory handle.
    last: HashMap<u64, u64>,
    next: u64,
}

impl Listings {
    /// A handle for a directory that is opened.
    pub(super) fn open_directory(&self) -> u64 {
        let mut open = self.open();
        open.next += 1;
        let handle = open.next;
        // Until the listing starts; a listing that resumes another handle's has no end.
        open.last.insert(handle, u64::MAX);
        handle
    }

    /// Starts or rewinds the listing of a handle, in a directory with the last entry `last`.
    pub(super) fn rewind(&self, handle: u64, last: u64) {
        if let Some(known) = self.open().last.get_mut(&handle) {
            *known = last;
        }
    }

    /// The last entry to list for a handle. An unknown handle's listing has no end.
    pub(super) fn last(&self, handle: u64) -> u64 {
        self.open().last.get(&handle).copied().unwrap_or(u64::MAX)
    }

    /// Closes a handle.
    pub(super) fn close(&self, handle: u64) {
        self.open().last.remove(&handle);
    }

    fn open(&self) -> MutexGuard<'_, OpenDirectories> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
