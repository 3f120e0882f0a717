//! Watchdog of running tasks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock::lock;
use crate::queue::{PendingTask, TaskQueue};

/// Watchdog timer of a running task.
#[derive(Default)]
pub(crate) struct WatchdogTimer {
    since: Option<Instant>,
    cancelled: Option<Instant>,
}

/// WatchdogVerdict on a running task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchdogVerdict {
    /// Within its time.
    Runs,
    /// Over its time: cancel it.
    Late,
    /// Cancelled, and still running after as long again.
    Lost,
}

impl WatchdogTimer {
    /// Checks the timer at `now`. The observer may have been descheduled for any time, so the
    /// second period begins at the check that ordered the cancellation: no task is lost that was
    /// not cancelled.
    pub(crate) fn check(&mut self, now: Instant, watchdog: Duration) -> WatchdogVerdict {
        let since = *self.since.get_or_insert(now);
        if now - since <= watchdog {
            return WatchdogVerdict::Runs;
        }
        let cancelled = *self.cancelled.get_or_insert(now);
        match now - cancelled > watchdog {
            true => WatchdogVerdict::Lost,
            false => WatchdogVerdict::Late,
        }
    }
}

/// Watchdog for tasks that no thread may be waiting for.
#[derive(Default)]
pub(crate) struct StragglerWatchdog {
    /// The running tasks, and their timer since that list last changed.
    running: Vec<(usize, u32)>,
    timer: WatchdogTimer,
}

impl StragglerWatchdog {
    pub(crate) fn check(&mut self, queue: &TaskQueue) {
        let waiting = queue.rings.iter().map(|ring| queue.waiting(&lock(ring)));
        let mut running: Vec<Arc<PendingTask>> = waiting.flatten().collect();
        running.retain(|task| queue.has_begun(task));
        let names: Vec<_> = running.iter().map(|it| (it.slot, it.ticket)).collect();
        if names != self.running || names.is_empty() {
            (self.running, self.timer) = (names, WatchdogTimer::default());
        }
        match self.timer.check(Instant::now(), queue.options.watchdog) {
            WatchdogVerdict::Runs => {}
            WatchdogVerdict::Late => running.iter().for_each(|task| queue.cancel(task)),
            WatchdogVerdict::Lost => queue.mark_lost(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_cancelled_late_gets_its_full_grace_period() {
        let (begin, watchdog) = (Instant::now(), Duration::from_secs(2));
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut timer = WatchdogTimer::default();
        let mut check = |seconds| timer.check(after(seconds), watchdog);
        assert_eq!(check(0), WatchdogVerdict::Runs);
        assert_eq!(check(2), WatchdogVerdict::Runs);
        // The observer was descheduled for much longer than the task's limit.
        assert_eq!(check(60), WatchdogVerdict::Late);
        assert_eq!(check(62), WatchdogVerdict::Late);
        assert_eq!(check(63), WatchdogVerdict::Lost);
        let mut unwatched = WatchdogTimer::default();
        for seconds in [0, 1 << 20] {
            let verdict = unwatched.check(after(seconds), Duration::MAX);
            assert_eq!(verdict, WatchdogVerdict::Runs);
        }
    }
}
