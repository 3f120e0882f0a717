//! Submission of tasks, and waiting for them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::arguments::TaskArgs;
use crate::backoff::Backoff;
use crate::error::{DispatchError, TaskError};
use crate::lock::lock;
use crate::queue::{PendingTask, TaskDone, TaskQueue};
use crate::task_set::TaskId;
use crate::watchdog::{WatchdogTimer, WatchdogVerdict};
use crate::words::{ARGUMENTS, BUDGET, CANCEL, NUMBER, READY, SPANS, TASK_SPANS, TASK_WORDS};

/// A submitted task. Dropping it does not cancel the task. The queue's own memory, some kilobytes
/// on the host, is freed with the last one.
#[derive(Debug)]
pub struct TaskJob {
    queue: Arc<TaskQueue>,
    task: Arc<PendingTask>,
}

impl TaskJob {
    /// The task's result, if it is done. Never waits.
    pub fn poll(&self) -> Option<Result<TaskDone, TaskError>> {
        if let Err(process) = self.queue.check_process() {
            return Some(Err(TaskError::Forked { process }));
        }
        if self.queue.take_result(&self.task).is_none() {
            self.queue.query_kernel_rarely();
        }
        self.queue.take_result(&self.task).cloned()
    }

    /// Waits until the task is done, up to `longest`.
    ///
    /// # Errors
    /// The task's error; [`TaskError::TimedOut`], after which it may be waited for again.
    pub fn wait(&self, longest: Duration) -> Result<TaskDone, TaskError> {
        let queue = &*self.queue;
        queue
            .check_process()
            .map_err(|process| TaskError::Forked { process })?;
        let mut backoff = Backoff(0);
        // Read the clock only if the wait is long.
        let mut since: Option<Instant> = None;
        let mut timer = WatchdogTimer::default();
        loop {
            if let Some(outcome) = queue.take_result(&self.task) {
                return outcome.clone();
            }
            if longest.is_zero() && !queue.is_over() {
                return Err(TaskError::TimedOut);
            }
            backoff.wait();
            if !backoff.is_long() {
                continue;
            }
            let now = Instant::now();
            let since = *since.get_or_insert(now);
            if queue.is_over() {
                continue;
            }
            if queue.has_begun(&self.task) {
                match timer.check(now, queue.options.watchdog) {
                    WatchdogVerdict::Runs => {}
                    WatchdogVerdict::Late => queue.cancel(&self.task),
                    WatchdogVerdict::Lost => queue.mark_lost(),
                }
            }
            if now - since > longest {
                return Err(TaskError::TimedOut);
            }
        }
    }

    /// Whether the kernel has begun the task. Never waits.
    pub fn has_begun(&self) -> bool {
        // A slot is reused only after this task's outcome was taken.
        self.task.outcome.get().is_some()
            || (self.queue.check_process().is_ok() && self.queue.has_begun(&self.task))
    }

    /// Requests cancellation. A task not begun will not be; a running one notices in its steps.
    /// Poll or wait to learn when it is done.
    pub fn cancel(&self) {
        if self.queue.check_process().is_ok() {
            self.queue.cancel(&self.task);
        }
    }
}

impl Drop for TaskJob {
    fn drop(&mut self) {
        if self.queue.check_process().is_err() {
            std::mem::forget(self.queue.clone());
        }
    }
}

impl TaskQueue {
    /// Submits a task at a priority; 0 is the highest. See
    /// [`Dispatcher::submit`](crate::Dispatcher::submit).
    ///
    /// # Errors
    /// As there.
    pub fn submit(
        self: &Arc<Self>,
        priority: u32,
        task: TaskId,
        arguments: &TaskArgs,
    ) -> Result<TaskJob, DispatchError> {
        self.check_process()
            .map_err(|process| DispatchError::Forked { process })?;
        let options = &self.options;
        let (words, spans) = arguments.used;
        let Some(ring) = self.rings.get(priority as usize) else {
            let why = format!("there is no priority {priority} of {}", options.priorities);
            return Err(DispatchError::Value { why });
        };
        if words > TASK_WORDS || spans > TASK_SPANS {
            let why = format!(
                "{words} words and {spans} spans: a task has at most {TASK_WORDS} and {TASK_SPANS}"
            );
            return Err(DispatchError::Value { why });
        }
        let mut ring = lock(ring);
        // Under the lock, so that a stop or a failure sees every submitted task.
        if self.lost.load(Ordering::Acquire) {
            return Err(DispatchError::Lost);
        }
        if self.stopped.load(Ordering::Acquire) {
            return Err(DispatchError::Stopped);
        }
        let at = (ring.last & (options.capacity - 1)) as usize;
        if let Some(before) = &ring.taken[at]
            && self.take_result(before).is_none()
        {
            return Err(DispatchError::Full {
                priority,
                capacity: options.capacity,
            });
        }
        let pending = Arc::new(PendingTask {
            priority,
            slot: priority as usize * options.capacity as usize + at,
            ticket: ring.last.wrapping_add(1),
            number: task.0,
            steps: arguments.steps.unwrap_or(options.steps),
            outcome: OnceLock::new(),
        });
        let slot = self.slot(pending.slot);
        let write = |at: usize, value: u32| slot[at].store(value, Ordering::Relaxed);
        let wide = |at: usize, value: u64| {
            write(at, value as u32);
            write(at + 1, (value >> 32) as u32);
        };
        write(NUMBER, task.0);
        // The step counter must be able to exceed the limit.
        write(BUDGET, pending.steps.min(u32::MAX - 1));
        write(CANCEL, 0);
        for (at, word) in arguments.words.iter().enumerate() {
            wide(ARGUMENTS + 2 * at, *word);
        }
        for (at, (buffer, begin, bytes)) in arguments.spans.iter().enumerate() {
            let at = SPANS + 6 * at;
            write(at, *buffer);
            wide(at + 2, *begin);
            wide(at + 4, *bytes);
        }
        slot[READY].store(pending.ticket, Ordering::Release);
        ring.last = pending.ticket;
        ring.submitted += 1;
        ring.taken[at] = Some(pending.clone());
        Ok(TaskJob {
            queue: self.clone(),
            task: pending,
        })
    }
}
