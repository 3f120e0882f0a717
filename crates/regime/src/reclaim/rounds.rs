//! Rounds of one helper thread that requests wait for, each for a bounded time.
//!
//! A request is served by a round that begins after it, so that what was cached by then is
//! released. In a round the owners of caches are asked one after another.
//!
//! Invariants: no request waits longer than its patience. An owner is not asked while one of its
//! own threads waits here: that thread may hold the owner's lock. A thread of an owner that is
//! being asked does not wait here. A helper that did not end its round in time is not waited for
//! again until it has.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Owners of caches, at most.
pub(super) const MAX_OWNERS: usize = 8;

/// Rounds of requests; see the module.
#[derive(Debug)]
pub(super) struct Rounds {
    state: Mutex<RoundState>,
    changed: Condvar,
}

#[derive(Debug)]
struct RoundState {
    /// Rounds that requests wait for, that have begun, and that have ended.
    requested: u64,
    begun: u64,
    ended: u64,
    /// A round that a request has stopped waiting for; 0 for none.
    overdue: u64,
    has_helper: bool,
    /// Threads of each owner that wait.
    waiting: [u32; MAX_OWNERS],
    /// Threads that ask each owner.
    asking: [u32; MAX_OWNERS],
}

impl Rounds {
    pub(super) const fn new() -> Rounds {
        Rounds {
            state: Mutex::new(RoundState {
                requested: 0,
                begun: 0,
                ended: 0,
                overdue: 0,
                has_helper: false,
                waiting: [0; MAX_OWNERS],
                asking: [0; MAX_OWNERS],
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RoundState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a round, and waits until it has ended. Returns false if it did not in time, or if
    /// it would be useless to wait. `caller`: the owner that the calling thread belongs to.
    /// `start_helper` starts the helper, once for all requests; it returns false if it cannot.
    pub(super) fn wait(
        &self,
        caller: Option<usize>,
        patience: Duration,
        start_helper: impl FnOnce() -> bool,
    ) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        let is_asked = caller.is_some_and(|owner| state.asking[owner] > 0);
        if is_asked || state.overdue > state.ended {
            return false;
        }
        if !state.has_helper {
            state.has_helper = start_helper();
            if !state.has_helper {
                return false;
            }
        }
        let round = state.begun + 1;
        state.requested = state.requested.max(round);
        if let Some(owner) = caller {
            state.waiting[owner] += 1;
        }
        self.changed.notify_all();
        while state.ended < round {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.overdue = state.overdue.max(state.begun);
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(owner) = caller {
            state.waiting[owner] -= 1;
        }
        state.ended >= round
    }

    /// The helper's: waits for a request, without a bound, and begins its round.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        while state.requested <= state.begun {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.begun += 1;
    }

    /// The helper's: ends the round.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.ended = state.begun;
        self.changed.notify_all();
    }

    /// Whether an owner may be asked now; if so, [`Rounds::asked`] has to follow.
    pub(super) fn may_ask(&self, owner: usize) -> bool {
        let mut state = self.state();
        let may = state.waiting[owner] == 0;
        state.asking[owner] += u32::from(may);
        may
    }

    /// An owner was asked.
    pub(super) fn asked(&self, owner: usize) {
        self.state().asking[owner] -= 1;
    }
}
