//! Whose turn it is to make and destroy contexts.
//!
//! A driver gives a handle again as soon as its context is gone. So what a call
//! of the driver makes of handles, and what is noted of it, is one step: no
//! other thread makes or destroys a context in between, nor uses a handle that
//! it has from what is noted.
//!
//! Invariant: this is the outermost of all locks but the loader's, for which a
//! driver may wait in such a call, as it may with locks of its own. A thread that
//! holds it, and to which the driver calls back, holds it still.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

use crate::clock::lock;

#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    turn: Mutex<()>,
    holder: Mutex<Option<ThreadId>>,
}

/// A turn; none within one that this thread has already.
pub(crate) struct Turn<'a> {
    _held: Option<Held<'a>>,
}

struct Held<'a> {
    holder: &'a Mutex<Option<ThreadId>>,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *lock(self.holder) = None;
    }
}

impl Lifetimes {
    /// Waits for a turn.
    pub(crate) fn hold(&self) -> Turn<'_> {
        if self.is_held_here() {
            return Turn { _held: None };
        }
        let _held = Some(self.held(lock(&self.turn)));
        Turn { _held }
    }

    /// A turn, if no other thread has it.
    pub(crate) fn try_hold(&self) -> Option<Turn<'_>> {
        if self.is_held_here() {
            return Some(Turn { _held: None });
        }
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => PoisonError::into_inner(turn),
            Err(TryLockError::WouldBlock) => return None,
        };
        let _held = Some(self.held(turn));
        Some(Turn { _held })
    }

    fn is_held_here(&self) -> bool {
        // First: what a thread notes of itself, the loader is told once.
        let this = std::thread::current().id();
        *lock(&self.holder) == Some(this)
    }

    fn held<'a>(&'a self, turn: MutexGuard<'a, ()>) -> Held<'a> {
        *lock(&self.holder) = Some(std::thread::current().id());
        Held {
            holder: &self.holder,
            _turn: turn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_one_turn_however_often_it_asks() {
        let lifetimes = Lifetimes::default();
        let elsewhere = || {
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| lifetimes.try_hold().is_some());
                asked.join().is_ok_and(|is_free| is_free)
            })
        };
        let outer = lifetimes.hold();
        drop(lifetimes.hold());
        assert!(lifetimes.try_hold().is_some());
        assert!(!elsewhere());
        drop(outer);
        assert!(elsewhere());
    }
}
