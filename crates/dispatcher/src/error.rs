//! Errors of dispatchers and of their tasks.

/// Error of submitting a task, or of starting or stopping a dispatcher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The ring of its priority is full.
    #[error(
        "all {capacity} slots of priority {priority} are in use\ntry: to wait for an earlier task first, or a larger capacity"
    )]
    Full {
        /// The priority.
        priority: u32,
        /// Its number of slots.
        capacity: u32,
    },
    /// The dispatcher refuses new tasks.
    #[error("the dispatcher has been stopped\ntry: another one")]
    Stopped,
    /// The dispatcher was requested to stop, and still has tasks to run.
    #[error("the dispatcher still has {waiting} tasks to run\ntry: to wait longer")]
    Running {
        /// Number of these tasks.
        waiting: u64,
    },
    /// A buffer that cannot be registered.
    #[error("buffer {id} cannot be registered: {why}")]
    Buffer {
        /// Its name.
        id: String,
        /// The cause, and what to try.
        why: String,
    },
    /// A task does not end, and cannot be cancelled.
    #[error(
        "the resident kernel does not respond: a task runs for ever\ntry: `for_each` and `repeat` for loops in tasks; this kernel ends with the process"
    )]
    Lost,
    /// This process is a forked child of the dispatcher's process.
    #[error(
        "the dispatcher belongs to process {process}, from which this one was forked\ntry: to start another one here"
    )]
    Forked {
        /// The dispatcher's process.
        process: u32,
    },
    /// Invalid options or arguments.
    #[error("{why}")]
    Value {
        /// The cause.
        why: String,
    },
    /// The kernel could not be built.
    #[error(transparent)]
    Build(#[from] fercuda_ptx::build::BuildError),
    /// The driver's error.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
}

/// Error of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// Its function reported failure.
    #[error("the task failed")]
    Failed,
    /// A span was not inside its buffer or not whole elements, or an index not inside its span.
    /// Nothing outside was accessed.
    #[error(
        "the task accessed memory outside its spans or buffers\ntry: spans within the registered buffers"
    )]
    OutOfBounds,
    /// A thread exhausted its steps.
    #[error("the task used up its {steps} steps\ntry: a larger budget, or smaller tasks")]
    OverBudget {
        /// The limit.
        steps: u32,
    },
    /// It was cancelled, by [`TaskJob::cancel`](crate::TaskJob::cancel) or the watchdog.
    #[error("the task was cancelled")]
    Cancelled,
    /// There is no function of that number.
    #[error("there is no task {number}\ntry: a number from this dispatcher's task set")]
    Unknown {
        /// The number.
        number: u32,
    },
    /// The dispatcher ended before the task was begun.
    #[error("the dispatcher ended before it began this task")]
    Stopped,
    /// The wait timed out; the task goes on.
    #[error("the task was not done in time, and goes on\ntry: to wait longer, or to cancel it")]
    TimedOut,
    /// The task runs for ever, and cannot be cancelled.
    #[error("the task does not end, and neither does its dispatcher")]
    Lost,
    /// This process is a forked child of the task's process.
    #[error("the task belongs to process {process}, from which this one was forked")]
    Forked {
        /// The task's process.
        process: u32,
    },
    /// The device failed.
    #[error("the device failed: {why}")]
    Device {
        /// The driver's error.
        why: String,
    },
}
