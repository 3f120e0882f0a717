//! Epochs of the process's libraries: what is cached by code addresses is valid within one.
//!
//! An epoch ends when a library has been unloaded, since another may be loaded at its addresses.
//! It does not end before: destructors run within `dlclose`, under the loader's lock, and may wait
//! for a thread of their library. Its calls have to find what is cached, as looking a caller up
//! takes that lock too. Only a call between the unloading and the end of the epoch, in the few
//! instructions that `dlclose` takes to return, can be attributed to the wrong library.
//!
//! Elsewhere: noticing a `dlclose` (`fercuda-hook`).

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of calls that have unloaded a library.
static UNLOADINGS: AtomicU64 = AtomicU64::new(0);

/// What is cached in one epoch is not valid in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LibraryEpoch(u64);

impl LibraryEpoch {
    /// The epoch of a process that has unloaded nothing.
    pub(crate) const FIRST: Self = Self(0);

    /// The current one.
    #[inline]
    pub(crate) fn now() -> Self {
        Self(UNLOADINGS.load(Ordering::Acquire))
    }
}

/// Runs `close`, which may unload libraries, and ends the epoch if it did; `unloaded` counts the
/// libraries that the loader has unloaded so far.
pub fn while_unloading<R>(unloaded: impl Fn() -> u64, close: impl FnOnce() -> R) -> R {
    let before = unloaded();
    let closed = close();
    // Where others refer to the library, it stays.
    if unloaded() != before {
        UNLOADINGS.fetch_add(1, Ordering::AcqRel);
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The only test of this process that ends epochs: the others of the crate ask for none.
    #[test]
    fn an_epoch_ends_where_a_library_is_unloaded_and_not_where_it_stays() {
        let count = Cell::new(7);
        let first = LibraryEpoch::now();
        let during = || assert_eq!(LibraryEpoch::now(), first);
        while_unloading(|| count.get(), during);
        assert_eq!(LibraryEpoch::now(), first);
        let unloads = || {
            count.set(8);
            during();
        };
        while_unloading(|| count.get(), unloads);
        let second = LibraryEpoch::now();
        assert!(second != first);
        while_unloading(|| count.get(), || count.set(9));
        assert!(LibraryEpoch::now() != second && LibraryEpoch::now() != first);
    }
}
