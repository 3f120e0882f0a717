//! Which of the threads that answer look for the next request, and which rest.
//!
//! Leaders and followers (Schmidt, Stal, Rohnert and Buschmann, Pattern-Oriented Software Architecture 2): who finds a request
//! leaves the look-out, and wakes one who rests if nobody is left there; who has answered looks again, and rests where others do. So
//! no more threads are at work than have to, each with its memory in its core's caches, and one that works without a
//! break is woken by nobody.
//!
//! Invariant: somebody looks, or nobody rests.
//! Elsewhere: how one looks (`serve`). The words are the standard library's, but where `tests/orders.rs` runs this in every order that
//! they allow.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::words::{AtomicUsize, Mutex, MutexGuard, Thread, current, park};

/// The threads that answer one connection's requests.
#[derive(Debug)]
pub(crate) struct Crew {
    looking: AtomicUsize,
    /// The last to come is the first to be woken, and none of them looks.
    resting: Mutex<Vec<Thread>>,
}

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

    /// One more looks.
    pub(crate) fn look(&self) {
        self.looking.fetch_add(1, AcqRel);
    }

    /// So many look.
    pub(crate) fn looking(&self) -> usize {
        self.looking.load(Acquire)
    }

    /// Who calls this looks no more: it has found something, or goes.
    pub(crate) fn leave(&self) {
        if self.looking.fetch_sub(1, AcqRel) == 1
            && let Some(next) = self.resting().pop()
        {
            // Until it is awake it counts all the same.
            self.look();
            next.unpark();
        }
    }

    /// Who looks rests until it is to look again, unless nobody else looks. Whether it has.
    pub(crate) fn rest(&self) -> bool {
        let me = current();
        let mut resting = self.resting();
        // Whoever is the last to leave behind that waits for the list, and finds me there.
        let others = |looking: usize| (looking > 1).then(|| looking - 1);
        if self.looking.fetch_update(AcqRel, Acquire, others).is_err() {
            return false;
        }
        resting.push(me.clone());
        drop(resting);
        loop {
            park();
            if self.resting().iter().all(|it| it.id() != me.id()) {
                return true;
            }
        }
    }
}
