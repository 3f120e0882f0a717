//! Try-lock with a contention flag.
//!
//! A plain try-lock does not notify anyone when it is released, so a thread that failed to acquire
//! it would have to poll, or the owner would have to check a second flag after each release. Here
//! both are one atomic operation: acquiring is one exchange, and releasing is another, which fails
//! if [`ContendedLock::mark_contended`] came in between.
//!
//! Invariant: at most one [`ContendedGuard`] of a lock exists at any time, and the value is
//! reached through it alone.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
#[cfg(not(test))]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(test)]
use loom::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const LOCKED: u32 = 1;
const CONTENDED: u32 = 2;

/// A value behind a try-lock. No method waits: a thread that finds it locked marks it contended,
/// and the owner of the lock wakes that thread by a mechanism of its own.
// Hot field first.
#[repr(C)]
pub struct ContendedLock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: through a shared `ContendedLock` its value is reached by one thread at a time, which
// sees all writes of the previous one (acquire and release of `state`). No two threads reach
// the value at once, so `T` need not be `Sync`.
unsafe impl<T: Send> Sync for ContendedLock<T> {}

impl<T> fmt::Debug for ContendedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContendedLock").finish_non_exhaustive()
    }
}

impl<T> ContendedLock<T> {
    /// An unlocked value.
    pub fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Acquires the lock; `None` if another thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<ContendedGuard<'_, T>> {
        self.state
            .compare_exchange(FREE, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| ContendedGuard(self, PhantomData))
    }

    /// Makes the holder's [`ContendedGuard::release`] fail. Returns whether the lock is held.
    pub fn mark_contended(&self) -> bool {
        let contended = |state| (state != FREE).then_some(CONTENDED);
        self.state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, contended)
            .is_ok()
    }
}

/// Exclusive access to the value. Dropping it unlocks, contended or not.
// The marker gives it the `Send` and `Sync` of the `&mut T` that it stands for.
#[derive(Debug)]
pub struct ContendedGuard<'t, T>(&'t ContendedLock<T>, PhantomData<&'t mut T>);

impl<T> ContendedGuard<'_, T> {
    /// Unlocks, unless another thread has marked the lock contended since it was acquired.
    ///
    /// # Errors
    /// The guard, still locked, if it was marked: the holder then wakes the waiting threads.
    #[inline]
    pub fn release(self) -> Result<(), Self> {
        let state = &self.0.state;
        let freed = state.compare_exchange(LOCKED, FREE, Ordering::Release, Ordering::Relaxed);
        if freed.is_err() {
            return Err(self);
        }
        std::mem::forget(self);
        Ok(())
    }
}

impl<T> Deref for ContendedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the lock's only guard, and the value is borrowed for as long as it is.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ContendedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ContendedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// Each thread adds one to a value that loom watches; a thread that finds it locked sleeps
    /// until it is notified. No thread sleeps for ever, and no two hold the lock at once.
    #[test]
    fn contending_thread_is_notified_and_one_thread_at_a_time_holds_the_lock() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let shared = Arc::new((
                ContendedLock::new(loom::cell::UnsafeCell::new(0_u32)),
                Mutex::new(()),
                Condvar::new(),
            ));
            let add = |(value, lock, released): &(ContendedLock<_>, Mutex<()>, Condvar)| {
                let guard = value.try_lock().unwrap_or_else(|| {
                    let mut held = lock.lock().unwrap();
                    loop {
                        match value.try_lock() {
                            Some(guard) => break guard,
                            None if value.mark_contended() => held = released.wait(held).unwrap(),
                            None => {}
                        }
                    }
                });
                let cell: &loom::cell::UnsafeCell<u32> = &guard;
                // SAFETY: `guard` is the only one; loom checks that.
                cell.with_mut(|value| unsafe { *value += 1 });
                if let Err(guard) = guard.release() {
                    let held = lock.lock().unwrap();
                    drop(guard);
                    drop(held);
                    released.notify_all();
                }
            };
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || add(&shared))
                })
                .collect();
            add(&shared);
            for thread in threads {
                thread.join().unwrap();
            }
            let guard = shared.0.try_lock().unwrap();
            // SAFETY: the other threads have been joined.
            assert_eq!(guard.with(|value| unsafe { *value }), 3);
        });
    }
}
