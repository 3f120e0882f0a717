//! Directories that are open, and where each listing ends.
//!
//! What is made or gets another name comes behind all other entries, so who does that to what he meets would never come to
//! the end. A listing ends with the entry that was the last when it began, or began anew (`rewinddir`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// The last entry's number, by the handle of who has the directory open.
    last: HashMap<u64, u64>,
    next: u64,
}

impl Listings {
    /// A handle for who opens a directory.
    pub(super) fn begin(&self) -> u64 {
        let mut open = self.open();
        open.next += 1;
        let handle = open.next;
        // Until it begins; one that goes on where another was has no end.
        open.last.insert(handle, u64::MAX);
        handle
    }

    /// The listing of this handle begins, in a directory whose last entry this is.
    pub(super) fn begin_anew(&self, handle: u64, last: u64) {
        if let Some(known) = self.open().last.get_mut(&handle) {
            *known = last;
        }
    }

    /// The last entry of the listing of this handle. One without a handle has no end.
    pub(super) fn last(&self, handle: u64) -> u64 {
        self.open().last.get(&handle).copied().unwrap_or(u64::MAX)
    }

    /// Nobody has that one open any more.
    pub(super) fn end(&self, handle: u64) {
        self.open().last.remove(&handle);
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
