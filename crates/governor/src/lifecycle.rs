//! Lock that serialises the creation and destruction of contexts.
//!
//! A driver reuses a handle as soon as its context is destroyed. So a driver call that creates or
//! destroys contexts, and the bookkeeping of the handles it affects, are one step: no other thread
//! creates or destroys a context in between, nor uses a handle taken from the records.
//!
//! Invariant: this is the outermost of all locks but the loader's, for which a driver may wait in
//! such a call, as it may for locks of its own; that it waits for it when a thread first uses its
//! state there happens before this lock is taken (`Governor::lock_lifecycle`). The lock is
//! reentrant: a thread that holds it, and that the driver calls back, holds it still.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

use crate::clock::lock;

#[derive(Debug, Default)]
pub(crate) struct LifecycleLock {
    lock: Mutex<()>,
    holder: Mutex<Option<ThreadId>>,
}

/// A guard of the lock; empty if this thread already held the lock.
pub(crate) struct LifecycleGuard<'a> {
    _held: Option<LifecycleHolder<'a>>,
}

struct LifecycleHolder<'a> {
    holder: &'a Mutex<Option<ThreadId>>,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for LifecycleHolder<'_> {
    fn drop(&mut self) {
        *lock(self.holder) = None;
    }
}

impl LifecycleLock {
    /// Takes the lock, waiting for it.
    pub(crate) fn acquire(&self) -> LifecycleGuard<'_> {
        if self.is_held_here() {
            return LifecycleGuard { _held: None };
        }
        let _held = Some(self.hold(lock(&self.lock)));
        LifecycleGuard { _held }
    }

    /// Takes the lock, unless another thread holds it.
    pub(crate) fn try_acquire(&self) -> Option<LifecycleGuard<'_>> {
        if self.is_held_here() {
            return Some(LifecycleGuard { _held: None });
        }
        let guard = match self.lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => PoisonError::into_inner(guard),
            Err(TryLockError::WouldBlock) => return None,
        };
        let _held = Some(self.hold(guard));
        Some(LifecycleGuard { _held })
    }

    fn is_held_here(&self) -> bool {
        // Before the lock is taken: a thread's first use of its identity may take the loader's
        // lock.
        let this = std::thread::current().id();
        *lock(&self.holder) == Some(this)
    }

    fn hold<'a>(&'a self, guard: MutexGuard<'a, ()>) -> LifecycleHolder<'a> {
        *lock(&self.holder) = Some(std::thread::current().id());
        LifecycleHolder {
            holder: &self.holder,
            _guard: guard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lifecycle_lock_is_reentrant() {
        let lifecycle = LifecycleLock::default();
        let elsewhere = || {
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| lifecycle.try_acquire().is_some());
                asked.join().is_ok_and(|is_free| is_free)
            })
        };
        let outer = lifecycle.acquire();
        drop(lifecycle.acquire());
        assert!(lifecycle.try_acquire().is_some());
        assert!(!elsewhere());
        drop(outer);
        assert!(elsewhere());
    }
}
