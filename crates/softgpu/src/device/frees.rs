//! Frees that are queued in streams of a device, counted, and the wait for one of them to run.
//!
//! A host that queues faster than the streams' threads run finds a full heap although it has freed
//! enough. A GPU's pool does not fail then, so an allocation waits.
//!
//! Invariant: the wait ends, within [`PATIENCE`], also if no stream ever gets to a free: one may
//! stand behind a word that the waiting thread would write next, or behind a callback that waits.
//!
//! Elsewhere: which allocation waits, and what it may take without (`pool`).

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;

/// How long an allocation waits at most, all its waits together.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct FreeCounts {
    queued: u64,
    bytes: u64,
    ran: u64,
}

/// The frees queued in streams of a device.
#[derive(Debug, Default)]
pub(crate) struct QueuedFrees {
    counts: Mutex<FreeCounts>,
    changed: Condvar,
}

impl QueuedFrees {
    /// A free of `len` bytes is about to be queued.
    pub(super) fn queue(&self, len: u64) {
        let mut counts = lock(&self.counts);
        counts.queued += 1;
        counts.bytes += len;
    }

    /// It ran: its bytes are in their heap, or had a new owner before.
    pub(super) fn ran(&self, len: u64) {
        let mut counts = lock(&self.counts);
        counts.queued -= 1;
        counts.bytes -= len;
        counts.ran += 1;
        drop(counts);
        self.changed.notify_all();
    }

    /// The bytes of the queued frees.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.counts).bytes
    }

    /// The number of frees that ran.
    pub(super) fn count(&self) -> u64 {
        lock(&self.counts).ran
    }

    /// Waits until more than `seen` frees ran. Returns whether they did: not by `deadline`, nor if
    /// none is queued.
    pub(super) fn wait(&self, seen: u64, deadline: Instant) -> bool {
        let mut counts = lock(&self.counts);
        while counts.ran == seen && counts.queued > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            counts = self
                .changed
                .wait_timeout(counts, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        counts.ran != seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_next_free_that_runs_and_without_one_at_its_deadline() {
        let frees = QueuedFrees::default();
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(!frees.wait(0, Instant::now() + PATIENCE), "none is queued");
        frees.queue(100);
        frees.queue(20);
        assert!(!frees.wait(0, soon()));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| frees.wait(0, Instant::now() + PATIENCE));
            frees.ran(100);
            assert!(waiting.join().unwrap());
        });
        assert_eq!((frees.count(), frees.bytes()), (1, 20));
        assert!(!frees.wait(1, soon()));
    }
}
