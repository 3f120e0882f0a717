//! Which of the threads that answer look for the next request, and which rest.
//!
//! Leaders and followers (Schmidt, Stal, Rohnert and Buschmann, Pattern-Oriented Software Architecture 2): who finds a
//! request leaves the look-out, and wakes one who rests if nobody is left there; who has answered looks again, and
//! rests where others do. So no more threads are at work than have to, each with its memory in its core's caches, and
//! one that works without a break is woken by nobody.
//!
//! Invariant: somebody looks, or nobody rests, or whoever was the last to leave is about to wake one.
//! Elsewhere: how one looks (`serve`). The words are the standard library's, but where `tests/orders.rs` runs this in
//! the orders that threads may take.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use crate::words::{AtomicUsize, Mutex, MutexGuard, Thread, current, park};

/// The threads that answer one connection's requests.
#[derive(Debug)]
pub(crate) struct Crew {
    /// A count and nothing more: what has to be in order, the list's lock keeps so.
    looking: AtomicUsize,
    /// The last to come is the first to be woken, and none of them looks.
    resting: Mutex<Vec<Thread>>,
}

/// One who looks, until it is dropped: it has found something then, or goes.
#[derive(Debug)]
pub(crate) struct Looking<'a>(&'a Crew);

impl Crew {
    /// Nobody yet.
    pub(crate) fn new() -> Self {
        Self {
            looking: AtomicUsize::new(0),
            resting: Mutex::new(Vec::new()),
        }
    }

    fn resting(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more looks; and how many did before.
    pub(crate) fn look(&self) -> (Looking<'_>, usize) {
        let before = self.looking.fetch_add(1, Relaxed);
        (Looking(self), before)
    }

    /// One who rests, to be woken, and it looks already: so whoever leaves next is not the last.
    fn next(&self) -> Option<Thread> {
        let mut resting = self.resting();
        let next = resting.pop();
        if next.is_some() {
            // Under the lock, as it may be awake: then it finds itself gone from the list, and leaves.
            self.looking.fetch_add(1, Relaxed);
        }
        next
    }
}

impl Looking<'_> {
    /// Rests until it is to look again, or says `false` as nobody else looks.
    pub(crate) fn rest(&self) -> bool {
        let crew = self.0;
        let me = current();
        let mut resting = crew.resting();
        // Whoever is the last to leave after this waits for the list, and finds me there.
        let others = |looking: usize| (looking > 1).then(|| looking - 1);
        if crew.looking.fetch_update(Relaxed, Relaxed, others).is_err() {
            return false;
        }
        resting.push(me.clone());
        drop(resting);
        loop {
            park();
            if crew.resting().iter().all(|it| it.id() != me.id()) {
                return true;
            }
        }
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let is_last = self.0.looking.fetch_sub(1, Relaxed) == 1;
        // Woken without the list's lock, which it takes.
        if let Some(next) = is_last.then(|| self.0.next()).flatten() {
            next.unpark();
        }
    }
}
