//! Locking of a mutex that other threads may have poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `m`, also if a thread panicked while it held it: the data are consistent between calls.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
