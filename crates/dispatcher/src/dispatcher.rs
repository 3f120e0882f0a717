//! A dispatcher of the caller's own context.

use std::sync::Arc;
use std::time::Duration;

use fercuda_cuda::Context;

use crate::arguments::TaskArgs;
use crate::buffers::TaskBuffers;
use crate::error::DispatchError;
#[cfg(doc)]
use crate::error::TaskError;
use crate::job::TaskJob;
use crate::kernel_state::DispatchStats;
use crate::options::DispatchOptions;
use crate::queue::TaskQueue;
use crate::task_set::{TaskId, TaskSet};

/// A resident kernel and its queue.
///
/// While it lives, every wait for the whole device waits for it: synchronising the context, the
/// legacy default stream, loading code, which a kernel's first launch may do. Stop it before such
/// calls. Resources dropped meanwhile that would wait, such as code and memory that
/// was not allocated in stream order, are destroyed once no kernel is resident (deferred free).
#[derive(Debug)]
pub struct Dispatcher {
    queue: Arc<TaskQueue>,
}

impl Dispatcher {
    /// Builds the kernel of these functions, and launches it in its own stream.
    ///
    /// # Errors
    /// [`DispatchError::Value`], [`DispatchError::Build`], [`DispatchError::Cuda`].
    pub fn start(
        context: &Context,
        set: &TaskSet,
        buffers: TaskBuffers,
        options: DispatchOptions,
    ) -> Result<Self, DispatchError> {
        let kernel = set.kernel(context, &options)?;
        let queue = TaskQueue::start(None, context, kernel, buffers, options)?;
        Ok(Self { queue })
    }

    /// Submits a task at a priority; 0 is the highest. Tasks of one priority are begun in order;
    /// those of a lower one only when there are none of a higher. Never waits.
    ///
    /// # Errors
    /// [`DispatchError::Full`]; [`DispatchError::Stopped`]; [`DispatchError::Lost`];
    /// [`DispatchError::Forked`]; [`DispatchError::Value`] for a priority that does not exist, or
    /// too many arguments.
    pub fn submit(
        &self,
        priority: u32,
        task: TaskId,
        arguments: &TaskArgs,
    ) -> Result<TaskJob, DispatchError> {
        self.queue.submit(priority, task, arguments)
    }

    /// Counters of the dispatcher; all 0 in the child of a fork.
    pub fn stats(&self) -> DispatchStats {
        self.queue.stats()
    }

    /// Refuses new tasks, lets the kernel run those already submitted, and waits up to `longest`
    /// until it has exited.
    ///
    /// # Errors
    /// [`DispatchError::Running`] if it has not: it goes on as if this had been dropped;
    /// [`DispatchError::Lost`]; [`DispatchError::Forked`]; [`DispatchError::Cuda`], the kernel's
    /// error.
    pub fn stop(self, longest: Duration) -> Result<(), DispatchError> {
        self.queue.drain(longest)
    }
}

impl Drop for Dispatcher {
    /// Shuts the kernel down after the tasks that are running; those not begun get
    /// [`TaskError::Stopped`]. Waits for that, but not in a host callback, nor longer than twice
    /// the watchdog for a kernel that is still queued. In the child of a fork it does nothing.
    fn drop(&mut self) {
        // Errors have been reported to the waiters of the tasks.
        drop(self.queue.abandon());
    }
}

#[cfg(test)]
mod tests {
    use fercuda_cuda::Cuda;

    use super::*;

    #[test]
    fn a_loop_to_the_largest_number_ends_there() {
        let mut set = TaskSet::new();
        // SAFETY: it touches nothing.
        #[expect(unsafe_code, reason = "a device function of the test's")]
        let last = unsafe {
            set.add("last", |t| {
                let k = t.kernel();
                t.for_each_from(k.tid_x() + (u32::MAX - 100), u32::MAX, |_| {});
            })
        };
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let options = DispatchOptions {
            threads: 64,
            ..DispatchOptions::default()
        };
        let dispatcher = Dispatcher::start(&context, &set, TaskBuffers::new(), options).unwrap();
        let job = dispatcher.submit(0, last, &TaskArgs::new().steps(1000));
        let done = job.unwrap().wait(Duration::from_secs(30)).unwrap();
        assert_eq!(done.steps, 2);
    }
}
