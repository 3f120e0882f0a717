//! Shutdown of a resident kernel, and release of its resources.
//!
//! The host requests the shutdown through a word that only increases. The kernel has exited
//! when its stream is complete; an answer of the driver that is not about the stream says nothing
//! of the kernel.
//!
//! Invariants: the kernel's resources stay allocated as long as it may run, if need be for ever.
//! They are released once, by one thread, outside all locks: a deleter of lent memory may run
//! there, which may call anything. While the kernel may run, dropping an unrelated resource never
//! waits for it (the resident-kernel guard of `fercuda_cuda`).

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::{DeviceBuffer, Function, ResidentKernelGuard, destroy_later};

use super::task::{DRAIN, END};
use super::{Backoff, DispatchError, PendingTask, TaskBuffers, TaskError, TaskQueue, lock};
use crate::reentrancy::{TeardownScope, blocks_teardown};

/// Interval at which a thread that does not wait queries the driver, in milliseconds.
const QUERY_INTERVAL_MS: u64 = 5;

/// Upper bound of how long a kernel may take to exit after a shutdown request. Its remaining work
/// is unknown, so it is given as long as its watchdog allows a task, but no longer than this,
const MAX_SHUTDOWN: Duration = Duration::from_secs(60);
/// plus this.
const GRACE: Duration = Duration::from_secs(1);

/// State of a resident kernel.
#[derive(Debug)]
pub(super) enum KernelState {
    /// It is running, or queued.
    Runs,
    /// It has exited. `is_well` is false if it faulted. Tasks that were not done never will be, and
    /// fail.
    Ended { is_well: bool },
    /// It may run for ever.
    Lost,
    /// The driver could not be queried.
    Unknown(fercuda_cuda::Error),
}

/// Resources of a kernel.
#[derive(Debug)]
pub(super) enum ResourceState {
    Held(KernelResources),
    /// The kernel has exited, and a thread is releasing them.
    Releasing,
    /// They are released, or leaked.
    Released {
        is_well: bool,
    },
}

#[derive(Debug)]
pub(super) struct KernelResources {
    /// Dropped first: dropping the others waits for the device, which this kernel must not block.
    pub(super) stay: ResidentKernelGuard,
    pub(super) _function: Function,
    pub(super) _heads: DeviceBuffer<u32>,
    pub(super) _table: DeviceBuffer<u64>,
    pub(super) _buffers: TaskBuffers,
}

impl TaskQueue {
    /// Queries the state of the kernel. Never waits.
    pub(super) fn query_kernel(&self) -> KernelState {
        if self.lost.load(Ordering::Acquire) {
            self.fail_tasks(&TaskError::Lost);
            return KernelState::Lost;
        }
        let (is_well, why) = match self.stream.is_idle() {
            Ok(false) => return KernelState::Runs,
            Ok(true) => (true, TaskError::Stopped),
            Err(error) if error.is_refusal() => return KernelState::Unknown(error),
            Err(error) => {
                let why = error.to_string();
                (false, TaskError::Device { why })
            }
        };
        self.fail_tasks(&why);
        KernelState::Ended { is_well }
    }

    /// Refuses the child of a fork: the kernel is the parent's, the memory that it reads is shared
    /// or only the parent's, and a lock may be held for ever.
    ///
    /// # Errors
    /// The parent's process number.
    pub(crate) fn check_process(&self) -> Result<(), u32> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(self.process),
        }
    }

    /// Queries the kernel at most once per [`QUERY_INTERVAL_MS`], for callers that poll often.
    pub(super) fn query_kernel_rarely(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        let before = self.last_query_ms.load(Ordering::Relaxed);
        let is_time = now >= before + QUERY_INTERVAL_MS;
        if is_time && self.last_query_ms.swap(now, Ordering::Relaxed) == before {
            self.query_kernel();
        }
    }

    /// Whether no more tasks will run.
    pub(super) fn is_over(&self) -> bool {
        matches!(
            self.query_kernel(),
            KernelState::Ended { .. } | KernelState::Lost
        )
    }

    /// Fails the open tasks, once the kernel has exited or its state is unknown.
    fn fail_tasks(&self, error: &TaskError) {
        for ring in &self.rings {
            let ring = &mut *lock(ring);
            for task in self.waiting(ring) {
                ring.dropped += u64::from(task.outcome.set(Err(error.clone())).is_ok());
            }
        }
    }

    /// Marks the kernel as lost: it may run for ever.
    pub(super) fn mark_lost(&self) {
        self.lost.store(true, Ordering::Release);
        self.fail_tasks(&TaskError::Lost);
    }

    /// Refuses new tasks, and requests the kernel to exit once it has run the submitted ones.
    pub(crate) fn request_drain(&self) {
        self.request_stop(DRAIN);
    }

    fn request_stop(&self, order: u32) {
        for ring in &self.rings {
            // A submission holds this lock: it is complete, or will see the flag.
            let _ring = lock(ring);
            self.stopped.store(true, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        self.memory.control.words()[0].fetch_max(order, Ordering::Release);
        if let ResourceState::Held(used) = &*lock(&self.resources) {
            used.stay
                .note_stop_requested(twice(self.options.watchdog).min(MAX_SHUTDOWN) + GRACE);
        }
    }

    /// Lets the kernel run the submitted tasks, and waits until it has exited and its resources are
    /// released; but a job, or a deleter of lent memory, does not wait for another thread that
    /// releases them. May be called again.
    ///
    /// # Errors
    /// [`DispatchError::Running`]; [`DispatchError::Forked`]; the others of
    /// [`super::Dispatcher::stop`].
    pub(crate) fn drain(&self, longest: Duration) -> Result<(), DispatchError> {
        self.end(DRAIN, longest)
    }

    /// Shuts the kernel down after the tasks that are running; those not begun get
    /// [`TaskError::Stopped`]. If it has not exited within twice the watchdog, because it is
    /// queued, or if this is a host callback, it exits later by itself, and its resources are
    /// released after that.
    ///
    /// # Errors
    /// [`DispatchError::Lost`]; [`DispatchError::Cuda`], the kernel's error.
    pub(crate) fn abandon(self: &Arc<Self>) -> Result<(), DispatchError> {
        if self.check_process().is_err() {
            std::mem::forget(self.clone());
            return Ok(());
        }
        let ended = self.end(END, twice(self.options.watchdog));
        let goes_on = match &ended {
            Err(DispatchError::Running { .. }) => true,
            Err(DispatchError::Cuda(error)) => error.is_refusal(),
            _ => false,
        };
        if !goes_on {
            return ended;
        }
        self.release_later();
        Ok(())
    }

    /// Defers the release to a later allocation or wait of any thread, unless it can be done now.
    pub(crate) fn release_later(self: &Arc<Self>) {
        let (queue, mut watch) = (self.clone(), StragglerWatchdog::default());
        if !queue.try_release(&mut watch) {
            destroy_later(move || queue.try_release(&mut watch));
        }
    }

    /// Releases the resources of a kernel that has exited, unless another thread does; returns
    /// whether it has exited. Never waits for a running kernel; after the exit it waits for other
    /// work that uses the resources, and for deleters of lent memory.
    fn try_release(&self, watch: &mut StragglerWatchdog) -> bool {
        match self.query_kernel() {
            KernelState::Ended { is_well } => self.release(is_well),
            KernelState::Lost => self.leak(),
            KernelState::Runs | KernelState::Unknown(_) => {
                watch.check(self);
                return false;
            }
        }
        true
    }

    fn end(&self, order: u32, longest: Duration) -> Result<(), DispatchError> {
        self.check_process()
            .map_err(|process| DispatchError::Forked { process })?;
        self.request_stop(order);
        let released_state = match *lock(&self.resources) {
            ResourceState::Released { is_well } => Some(is_well),
            _ => None,
        };
        if let Some(is_well) = released_state.filter(|_| !self.lost.load(Ordering::Acquire)) {
            // The context returns the kernel's error until it is reset.
            return match is_well {
                true => Ok(()),
                false => Ok(self.stream.synchronize()?),
            };
        }
        let began = Instant::now();
        let mut backoff = Backoff(0);
        let mut watch = StragglerWatchdog::default();
        let is_well = loop {
            match self.query_kernel() {
                KernelState::Ended { is_well } => break is_well,
                KernelState::Lost => {
                    self.leak();
                    return Err(DispatchError::Lost);
                }
                // A host callback cannot wait for this.
                KernelState::Unknown(error) if error.is_in_callback() => return Err(error.into()),
                KernelState::Runs | KernelState::Unknown(_) => {}
            }
            backoff.wait();
            if backoff.is_long() {
                watch.check(self);
            }
            if began.elapsed() > longest {
                let waiting = self.stats().waiting;
                return Err(DispatchError::Running { waiting });
            }
        };
        self.release(is_well);
        self.wait_until_released();
        Ok(self.stream.synchronize()?)
    }

    /// Waits while another thread releases the resources.
    fn wait_until_released(&self) {
        let mut resources = lock(&self.resources);
        while matches!(*resources, ResourceState::Releasing) && !blocks_teardown() {
            let released = self.released.wait(resources);
            resources = released.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Releases the resources, unless another thread does or has.
    fn release(&self, is_well: bool) {
        let mut resources = lock(&self.resources);
        let used = match std::mem::replace(&mut *resources, ResourceState::Releasing) {
            ResourceState::Held(used) => used,
            other => {
                *resources = other;
                return;
            }
        };
        drop(resources);
        let _gone = OnDrop(|| {
            *lock(&self.resources) = ResourceState::Released { is_well };
            self.released.notify_all();
        });
        let _scope = TeardownScope::enter();
        drop(used);
    }

    /// The kernel may run for ever: its resources and the queue are leaked.
    fn leak(&self) {
        self.mark_lost();
        let released_state = ResourceState::Released { is_well: false };
        let used = std::mem::replace(&mut *lock(&self.resources), released_state);
        if let ResourceState::Held(it) = &used {
            it.stay.note_stop_requested(Duration::ZERO);
            std::mem::forget((used, self.memory.clone(), self.stream.clone()));
        }
    }
}

/// Runs a closure when dropped, also on a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// How long a task may run: the watchdog, and as long again to notice its cancellation.
fn twice(watchdog: Duration) -> Duration {
    watchdog.saturating_mul(2)
}

/// Watchdog timer of a running task.
#[derive(Default)]
pub(super) struct WatchdogTimer {
    since: Option<Instant>,
    cancelled: Option<Instant>,
}

/// WatchdogVerdict on a running task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchdogVerdict {
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
    pub(super) fn check(&mut self, now: Instant, watchdog: Duration) -> WatchdogVerdict {
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
struct StragglerWatchdog {
    /// The running tasks, and their timer since that list last changed.
    running: Vec<(usize, u32)>,
    timer: WatchdogTimer,
}

impl StragglerWatchdog {
    fn check(&mut self, queue: &TaskQueue) {
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
