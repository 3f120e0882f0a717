//! A value that one thread at a time has, and whose release says whether somebody
//! asked for it meanwhile.
//!
//! A lock says nothing when it is let go, so who found it held would have to come
//! again, or its owner to look somewhere else each time. Here both are one
//! operation: taking is one exchange, and releasing another, which fails if
//! [`Turn::call`] came in between.
//!
//! Invariant: at most one [`Taken`] of a turn is there at any time, and it alone
//! reaches the value.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
#[cfg(not(test))]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(test)]
use loom::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CALLED: u32 = 2;

/// A value that one thread at a time has. Nobody waits here: who finds it taken
/// calls, and is woken in whatever way its owner has for that.
// What is looked at first lies first.
#[repr(C)]
pub struct Turn<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: through a shared `Turn` its value is reached by one thread at a time,
// which gets all that the last one did (acquire and release of `state`). Nothing
// of it is reached by two at once, so `T` need not be `Sync`.
unsafe impl<T: Send> Sync for Turn<T> {}

impl<T> fmt::Debug for Turn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl<T> Turn<T> {
    /// A value that nobody has.
    pub fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, if nobody has it.
    #[inline]
    pub fn take(&self) -> Option<Taken<'_, T>> {
        self.state
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Taken(self, PhantomData))
    }

    /// Has the [`Taken::release`] of who has it fail; says whether anybody has it.
    pub fn call(&self) -> bool {
        let called = |state| (state != FREE).then_some(CALLED);
        self.state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, called)
            .is_ok()
    }
}

/// A value that is had. Dropping it lets it go, whoever has called.
// Between threads it goes, and is lent, as what it stands for does.
#[derive(Debug)]
pub struct Taken<'t, T>(&'t Turn<T>, PhantomData<&'t mut T>);

impl<T> Taken<'_, T> {
    /// Lets it go, if nobody has called since it was taken.
    ///
    /// # Errors
    /// Itself, still taken, if somebody has: for who has it to do what they want.
    #[inline]
    pub fn release(self) -> Result<(), Self> {
        let state = &self.0.state;
        let freed = state.compare_exchange(TAKEN, FREE, Ordering::Release, Ordering::Relaxed);
        if freed.is_err() {
            return Err(self);
        }
        std::mem::forget(self);
        Ok(())
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the turn's only `Taken`, and lends it out as itself is lent.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
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

    /// Each thread adds one to a value that loom watches, and who finds it taken
    /// sleeps until it is told: nobody sleeps for ever, and no two have it at once.
    #[test]
    fn who_calls_is_told_and_one_at_a_time_has_it() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let shared = Arc::new((
                Turn::new(loom::cell::UnsafeCell::new(0_u32)),
                Mutex::new(()),
                Condvar::new(),
            ));
            let add = |(turn, lock, told): &(Turn<_>, Mutex<()>, Condvar)| {
                let taken = turn.take().unwrap_or_else(|| {
                    let mut held = lock.lock().unwrap();
                    loop {
                        match turn.take() {
                            Some(taken) => break taken,
                            None if turn.call() => held = told.wait(held).unwrap(),
                            None => {}
                        }
                    }
                });
                let cell: &loom::cell::UnsafeCell<u32> = &taken;
                // SAFETY: `taken` is the only one, which loom is here to deny.
                cell.with_mut(|value| unsafe { *value += 1 });
                if let Err(taken) = taken.release() {
                    let held = lock.lock().unwrap();
                    drop(taken);
                    drop(held);
                    told.notify_all();
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
            let taken = shared.0.take().unwrap();
            // SAFETY: nobody else is there.
            assert_eq!(taken.with(|value| unsafe { *value }), 3);
        });
    }
}
