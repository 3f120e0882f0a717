//! Leader/follower pool that answers FUSE requests: which workers spin and which are parked.
//!
//! Pattern: leader/followers (Schmidt, Stal, Rohnert and Buschmann, Pattern-Oriented Software
//! Architecture 2). A worker that finds a request stops spinning, and unparks another one if no
//! worker is left spinning; a worker that has answered spins again, and parks if others spin. So no
//! more workers are active than needed, each with its memory in its core's caches, and a worker
//! that is busy without a break never causes a wake-up.
//!
//! Invariant: a worker is spinning, or no worker is parked, or the last worker that stopped
//! spinning is about to unpark one. (The last spinning worker may block in the kernel instead; it
//! still counts as spinning.)
//! Elsewhere: how a worker polls for requests (`serve`). The primitives are the standard library's,
//! except in `tests/orders.rs`, which runs this module under loom in the interleavings that threads
//! may take.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Thread, current, park};

/// The workers that answer one connection's requests.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    /// Just a count: whatever needs ordering is ordered by the lock of `parked`.
    spinning: AtomicUsize,
    /// A stack: the last worker to park is the first to be unparked. None of them is spinning.
    parked: Mutex<Vec<Thread>>,
}

/// Counts a worker as spinning. Dropped when the worker has found a request, or exits.
#[derive(Debug)]
pub(crate) struct SpinGuard<'a>(&'a WorkerPool);

impl WorkerPool {
    /// A pool without workers.
    pub(crate) fn new() -> Self {
        Self {
            spinning: AtomicUsize::new(0),
            parked: Mutex::new(Vec::new()),
        }
    }

    fn lock_parked(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the calling worker as spinning; also returns how many were spinning before.
    pub(crate) fn start_spinning(&self) -> (SpinGuard<'_>, usize) {
        let before = self.spinning.fetch_add(1, Relaxed);
        (SpinGuard(self), before)
    }

    /// Takes a parked worker off the stack, for the caller to unpark. It counts as spinning from
    /// here on, so the next worker that stops spinning is not the last.
    fn take_parked(&self) -> Option<Thread> {
        let mut parked = self.lock_parked();
        let next = parked.pop();
        if next.is_some() {
            // Under the lock: the worker may be awake, see itself off the stack and stop spinning.
            self.spinning.fetch_add(1, Relaxed);
        }
        next
    }
}

impl SpinGuard<'_> {
    /// Parks the worker until it is to spin again; returns `false` at once if no other is spinning.
    pub(crate) fn park_unless_last(&self) -> bool {
        let pool = self.0;
        let me = current();
        let mut parked = pool.lock_parked();
        // A worker that is the last to stop after this waits for the lock, and finds this one
        // there.
        let others = |spinning: usize| (spinning > 1).then(|| spinning - 1);
        let left = pool.spinning.fetch_update(Relaxed, Relaxed, others);
        if left.is_err() {
            return false;
        }
        parked.push(me.clone());
        drop(parked);
        loop {
            park();
            if pool.lock_parked().iter().all(|it| it.id() != me.id()) {
                return true;
            }
        }
    }
}

impl Drop for SpinGuard<'_> {
    fn drop(&mut self) {
        let is_last = self.0.spinning.fetch_sub(1, Relaxed) == 1;
        // Unparked after the lock is released, since the worker takes it.
        if let Some(next) = is_last.then(|| self.0.take_parked()).flatten() {
            next.unpark();
        }
    }
}
