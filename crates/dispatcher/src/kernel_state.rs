//! State of a resident kernel, as the driver and the results show it.

use std::sync::atomic::Ordering;

use crate::error::TaskError;
use crate::lock::lock;
use crate::queue::TaskQueue;

/// Interval at which a thread that does not wait queries the driver, in milliseconds.
const QUERY_INTERVAL_MS: u64 = 5;

/// Counters of a dispatcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchStats {
    /// Tasks submitted.
    pub submitted: u64,
    /// Tasks waiting or running.
    pub waiting: u64,
    /// Tasks that the device has completed, with or without success.
    pub done: u64,
    /// Tasks dropped: the dispatcher ended before they did.
    pub dropped: u64,
    /// Whether it refuses new tasks.
    pub is_stopped: bool,
    /// Whether a task runs for ever.
    pub is_lost: bool,
}

/// State of a resident kernel.
#[derive(Debug)]
pub(crate) enum ResidentKernelState {
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

impl TaskQueue {
    /// Queries the state of the kernel. Never waits.
    pub(crate) fn query_kernel(&self) -> ResidentKernelState {
        if self.lost.load(Ordering::Acquire) {
            self.fail_tasks(&TaskError::Lost);
            return ResidentKernelState::Lost;
        }
        let (is_well, why) = match self.stream.is_idle() {
            Ok(false) => return ResidentKernelState::Runs,
            Ok(true) => (true, TaskError::Stopped),
            Err(error) if error.is_refusal() => return ResidentKernelState::Unknown(error),
            Err(error) => {
                let why = error.to_string();
                (false, TaskError::Device { why })
            }
        };
        self.fail_tasks(&why);
        ResidentKernelState::Ended { is_well }
    }

    /// Queries the kernel at most once per [`QUERY_INTERVAL_MS`], for callers that poll often.
    pub(crate) fn query_kernel_rarely(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        let before = self.last_query_ms.load(Ordering::Relaxed);
        let is_time = now >= before + QUERY_INTERVAL_MS;
        if is_time && self.last_query_ms.swap(now, Ordering::Relaxed) == before {
            self.query_kernel();
        }
    }

    /// Whether no more tasks will run.
    pub(crate) fn is_over(&self) -> bool {
        matches!(
            self.query_kernel(),
            ResidentKernelState::Ended { .. } | ResidentKernelState::Lost
        )
    }

    /// Fails the open tasks, once the kernel has exited or its state is unknown.
    pub(crate) fn fail_tasks(&self, error: &TaskError) {
        for ring in &self.rings {
            let ring = &mut *lock(ring);
            for task in self.waiting(ring) {
                ring.dropped += u64::from(task.outcome.set(Err(error.clone())).is_ok());
            }
        }
    }

    /// Marks the kernel as lost: it may run for ever.
    pub(crate) fn mark_lost(&self) {
        self.lost.store(true, Ordering::Release);
        self.fail_tasks(&TaskError::Lost);
    }

    /// Counters; all 0 in the child of a fork.
    pub fn stats(&self) -> DispatchStats {
        if self.check_process().is_err() {
            return DispatchStats::default();
        }
        self.query_kernel_rarely();
        let mut stats = DispatchStats {
            is_stopped: self.stopped.load(Ordering::Acquire),
            is_lost: self.lost.load(Ordering::Acquire),
            ..DispatchStats::default()
        };
        for ring in &self.rings {
            let ring = lock(ring);
            stats.submitted += ring.submitted;
            stats.dropped += ring.dropped;
            stats.waiting += self.waiting(&ring).len() as u64;
        }
        stats.done = stats.submitted - stats.dropped - stats.waiting;
        stats
    }
}
