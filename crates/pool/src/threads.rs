//! Locks, words and numbers of threads, the former two abstracted for loom.
//!
//! Elsewhere: what they protect ([`crate::held`], [`crate::arenas`], [`crate::pool`]).

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock around a value; abstracted for loom.
pub(crate) trait Lock<T> {
    fn new(value: T) -> Self;
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// A word that threads share with relaxed ordering; abstracted for loom.
pub(crate) trait SharedWord: Default {
    fn get(&self) -> u64;
    fn set(&self, value: u64);
    /// Sets these bits, or clears them.
    fn change(&self, bits: u64, there: bool);
    /// Adds, wrapping around.
    fn add(&self, value: u64);
    /// As [`SharedWord::add`], for a word that no other thread writes.
    #[inline]
    fn add_own(&self, value: u64) {
        self.set(self.get().wrapping_add(value));
    }
}

impl<T> Lock<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Mutex::new(value)
    }
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // The protected state is changed in steps that do not panic.
        f(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        self.load(Relaxed)
    }
    #[inline]
    fn set(&self, value: u64) {
        self.store(value, Relaxed);
    }
    fn change(&self, bits: u64, there: bool) {
        match there {
            true => self.fetch_or(bits, Relaxed),
            false => self.fetch_and(!bits, Relaxed),
        };
    }
    #[inline]
    fn add(&self, value: u64) {
        self.fetch_add(value, Relaxed);
    }
}

/// Padded to cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state behind these locks is changed in steps that do not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread's unique number.
#[inline]
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // The thread-local variable is gone while a thread is being torn down.
    let thread_number = MINE.try_with(|thread_number| {
        if thread_number.get() == usize::MAX {
            thread_number.set(NEXT.fetch_add(1, Relaxed));
        }
        thread_number.get()
    });
    thread_number.unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T> Lock<T> for loom::sync::Mutex<T> {
        fn new(value: T) -> Self {
            loom::sync::Mutex::new(value)
        }
        fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            f(&mut self.lock().expect("no test panics while it holds this"))
        }
    }

    impl SharedWord for loom::sync::atomic::AtomicU64 {
        fn get(&self) -> u64 {
            self.load(Relaxed)
        }
        fn set(&self, value: u64) {
            self.store(value, Relaxed);
        }
        fn change(&self, bits: u64, there: bool) {
            match there {
                true => self.fetch_or(bits, Relaxed),
                false => self.fetch_and(!bits, Relaxed),
            };
        }
        fn add(&self, value: u64) {
            self.fetch_add(value, Relaxed);
        }
    }
}
