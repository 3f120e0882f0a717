//! Errors, each with the operation, its arguments and limits, and what to try.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fercuda_dispatcher::DispatchError;
use fercuda_tensor::{Dtype, Layout, LayoutError};

use crate::account::LimitExceeded;
use crate::graphs::GraphError;
use crate::handles::{HandlesExhausted, StaleHandle};
use crate::human_bytes::HumanBytes;

/// Result of this crate's fallible functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of this crate. Cloning is cheap: several threads may wait for one job.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver, or the layer above it, refused.
    #[error(transparent)]
    Cuda(Arc<fercuda_cuda::Error>),
    /// A graph was not captured, kept or replayed.
    #[error(transparent)]
    Graph(Arc<GraphError>),
    /// An expression was not compiled or run.
    #[error(transparent)]
    Expression(Arc<fercuda_jit::Error>),
    /// A dispatcher did not shut down normally.
    #[error(transparent)]
    Dispatch(Arc<DispatchError>),
    /// A buffer does not match an expression's input or output.
    #[error(
        "{what} {name:?} is {layout}, and {id} is {given}\ntry: a view of that shape, or an expression for these strides"
    )]
    Operand {
        /// `input` or `output`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The layout it requires.
        layout: Box<Layout>,
        /// The buffer.
        id: String,
        /// The buffer's layout.
        given: Box<Layout>,
    },
    /// A stale handle.
    #[error(transparent)]
    Stale(#[from] StaleHandle),
    /// The session has no handle left.
    #[error(transparent)]
    Full(#[from] HandlesExhausted),
    /// An invalid layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Another library of this process governs another driver.
    #[error(
        "this process's pool governs {before}, but {driver} was selected\n\
         try: one device for the whole process (FERCUDA_DEVICE), or a session of the library that opened the pool"
    )]
    OtherDriver {
        /// The driver that is governed.
        before: String,
        /// The one that was selected.
        driver: String,
    },
    /// An allocation would exceed the session's limit.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// The device is out of memory.
    #[error("{source}\nheld: {}", HolderList(holders))]
    OutOfMemory {
        /// The driver's call and its answer.
        source: Arc<fercuda_cuda::Error>,
        /// Tenants that hold the device's memory.
        holders: Vec<Holder>,
    },
    /// The session's allocator returned no usable memory.
    #[error(
        "session {session:?} requested {} from its allocator: {why}\ntry: {advice}",
        HumanBytes(*asked_bytes)
    )]
    Allocator {
        /// The session's name.
        session: String,
        /// Bytes that were requested.
        asked_bytes: u64,
        /// The allocator's error, or why its memory is unusable.
        why: String,
        /// What to try.
        advice: &'static str,
    },
    /// The session has no allocator.
    #[error(
        "session {session:?} has no allocator\n\
         try: another regime, or a session that was opened with one"
    )]
    NoAllocator {
        /// Its name.
        session: String,
    },
    /// The session has ended.
    #[error("session {session:?} has ended: {why}\ntry: another session of the runtime")]
    Ended {
        /// Its name.
        session: String,
        /// The reason.
        why: EndReason,
    },
    /// A session of this name exists.
    #[error("a session {name:?} exists already\ntry: another name, or to close that one")]
    Name {
        /// The name.
        name: String,
    },
    /// This process is a forked child of the one that opened the session.
    #[error(
        "session {session:?} belongs to process {process}, from which this one was forked\n\
         try: a new process (spawn), or to begin only after the fork"
    )]
    Forked {
        /// Its name.
        session: String,
        /// The process that opened it.
        process: u32,
    },
    /// The length does not fit the buffer.
    #[error(
        "{doing} {id}: got {given} bytes, but {shape:?} of {dtype} takes {expected}\ntry: as many values as the buffer has elements"
    )]
    Length {
        /// The operation.
        doing: &'static str,
        /// The buffer.
        id: String,
        /// Bytes of the argument.
        given: u64,
        /// Bytes of the buffer.
        expected: u64,
        /// The buffer's shape.
        shape: Vec<u64>,
        /// Its type.
        dtype: Dtype,
    },
    /// The values have another type.
    #[error(
        "{doing} {id}: the buffer is of {dtype}, the values are of {given}\ntry: values of {dtype}, or its bytes"
    )]
    Type {
        /// The operation.
        doing: &'static str,
        /// The buffer.
        id: String,
        /// Its type.
        dtype: Dtype,
        /// The values' type.
        given: Dtype,
    },
    /// Two buffers differ in shape or type.
    #[error(
        "cannot copy {from_shape:?} of {from} to {to_shape:?} of {to}\ntry: a view of the same shape; to cast, run a kernel"
    )]
    Unlike {
        /// The source's type.
        from: Dtype,
        /// Its shape.
        from_shape: Vec<u64>,
        /// The target's type.
        to: Dtype,
        /// Its shape.
        to_shape: Vec<u64>,
    },
    /// A layout reaches outside the memory.
    #[error(
        "a view of {id} reaches from byte {from} to {until} of {bytes}\ntry: a view that is inside the buffer"
    )]
    Reach {
        /// The buffer.
        id: String,
        /// The first byte that it reaches.
        from: i64,
        /// The byte behind the last.
        until: i64,
        /// Size of the memory.
        bytes: u64,
    },
    /// Elements would be misaligned.
    #[error(
        "a view of {id} begins at byte {at}, which is no multiple of the {size} bytes of {dtype}"
    )]
    Alignment {
        /// The buffer.
        id: String,
        /// Offset of the view, in bytes.
        at: i64,
        /// The type.
        dtype: Dtype,
        /// Its size in bytes.
        size: u64,
    },
    /// Two elements to be written may overlap.
    #[error(
        "{doing}: elements of {shape:?} with strides {strides:?} may overlap\ntry: a layout without overlap"
    )]
    Overlap {
        /// The operation.
        doing: &'static str,
        /// The shape.
        shape: Vec<u64>,
        /// The strides, in elements.
        strides: Vec<i64>,
    },
    /// A copy has too many contiguous runs.
    #[error(
        "the elements are {pieces} contiguous runs, more than the {most} copies of one call\ntry: contiguous buffers, or a kernel that gathers them"
    )]
    Strewn {
        /// Number of runs.
        pieces: u64,
        /// Maximum number of copies of one call.
        most: u64,
    },
    /// A byte that is neither 0 nor 1 is not a bool.
    #[error("byte {at} is {value}, and a bool is 0 or 1")]
    NotABool {
        /// Its index.
        at: usize,
        /// Its value.
        value: u8,
    },
    /// The job was cancelled before it was submitted to the device.
    #[error("job {job} was cancelled before it was submitted to the device")]
    Cancelled {
        /// The job.
        job: u64,
    },
    /// An earlier job failed, and the context does not recover from that.
    #[error("job {job} did not run: the earlier job {by} failed\n{source}")]
    NotRun {
        /// The job.
        job: u64,
        /// The job that failed.
        by: u64,
        /// Its error.
        source: Box<Error>,
    },
    /// A job waits for a later job of its own session, which would be a deadlock.
    #[error(
        "job {job} cannot be waited for in a job of the same session: a deadlock\ntry: to wait outside, or in a job of another session"
    )]
    WithinJob {
        /// The job that is not over.
        job: u64,
    },
    /// A job was dropped: its session had ended when it was submitted.
    #[error("job {job} was dropped: its session had ended\ntry: another session")]
    GivenUp {
        /// The job.
        job: u64,
    },
    /// No thread could be started for a session's jobs, or for requests.
    #[error("cannot start a thread: {why}\ntry: fewer threads, or a larger limit (ulimit -u)")]
    NoThread {
        /// The system's error.
        why: String,
    },
    /// Nothing is governed, so there is no ledger through which requests arrive.
    #[error(
        "nothing is governed in this process, so it cannot receive requests\ntry: without FERCUDA_DISABLE=1"
    )]
    Ungoverned,
    /// Another runtime of the process accepts the device's requests.
    #[error(
        "another runtime of this process accepts requests for device {device}\n\
         try: to use that one, or to drop its request guard first"
    )]
    Served {
        /// The device.
        device: u32,
    },
    /// The runtime is being rebooted.
    #[error("the runtime is being rebooted\ntry: again when that is done")]
    Rebooting,
    /// An operation that would wait for the calling thread.
    #[error(
        "cannot {doing} in a job, a host callback, or a deleter of lent memory: it would wait for itself\n\
         try: another thread"
    )]
    Within {
        /// The operation.
        doing: &'static str,
    },
    /// The host code of a job panicked.
    #[error("job {job} panicked: {message}")]
    Panicked {
        /// The job.
        job: u64,
        /// The panic's message.
        message: String,
    },
    /// The job's result was taken already.
    #[error("the result of job {job} was taken already\ntry: to keep it, or to wait once")]
    Taken {
        /// The job.
        job: u64,
    },
    /// A time limit has passed.
    #[error("{what} is not done after {waited:?}\ntry: to wait longer, or to cancel it")]
    Timeout {
        /// The operation that was waited for.
        what: String,
        /// The time waited.
        waited: Duration,
    },
    /// The context was reset, but the driver still returns the earlier error.
    #[error(
        "device {device} was reset, and the driver still returns the earlier error:\n{source}\n\
         try: another process; NVIDIA's driver does not recover from it in the process that caused it"
    )]
    Lost {
        /// The device.
        device: u32,
        /// The driver's answer.
        source: Arc<fercuda_cuda::Error>,
    },
    /// The context has failed, and every call in it fails.
    #[error("the context of device {device} has failed\ntry: a reboot that resets it")]
    Failed {
        /// The device.
        device: u32,
    },
    /// A reboot would wait for a resident kernel.
    #[error(
        "a resident kernel runs on device {device}, and a wait for the device would wait for it\n\
         try: to stop its dispatcher first; or another process, if that is lost"
    )]
    Resident {
        /// The device.
        device: u32,
    },
    /// A reset would free memory of other tenants.
    #[error(
        "cannot reset device {device}: other tenants hold memory there: {}\ntry: to end them first; nothing was reset",
        HolderList(holders)
    )]
    Occupied {
        /// The device.
        device: u32,
        /// The tenants.
        holders: Vec<Holder>,
    },
}

/// Reason why a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It was closed.
    Closed,
    /// The runtime was rebooted; the epoch that began.
    Rebooted(u64),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it was closed"),
            Self::Rebooted(epoch) => write!(f, "the runtime was rebooted (epoch {epoch})"),
        }
    }
}

/// A tenant that holds memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The tenant's name.
    pub tenant: String,
    /// Live blocks of the pool, in bytes.
    pub pooled_bytes: u64,
    /// Memory that the driver allocated itself, also of the host, in bytes.
    pub governed_bytes: u64,
}

struct HolderList<'a>(&'a [Holder]);

impl fmt::Display for HolderList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing in this process");
        }
        for (at, holder) in self.0.iter().enumerate() {
            let between = if at > 0 { ", " } else { "" };
            write!(
                f,
                "{between}{} {}",
                holder.tenant,
                HumanBytes(holder.pooled_bytes)
            )?;
            if holder.governed_bytes > 0 {
                write!(
                    f,
                    " and {} allocated by the driver",
                    HumanBytes(holder.governed_bytes)
                )?;
            }
        }
        Ok(())
    }
}

impl From<fercuda_cuda::Error> for Error {
    fn from(error: fercuda_cuda::Error) -> Self {
        Self::Cuda(Arc::new(error))
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Cuda(error) => error.into(),
            GraphError::Limit(error) => error.into(),
            error => Self::Graph(Arc::new(error)),
        }
    }
}

impl From<DispatchError> for Error {
    fn from(error: DispatchError) -> Self {
        match error {
            DispatchError::Cuda(error) => error.into(),
            error => Self::Dispatch(Arc::new(error)),
        }
    }
}

impl From<fercuda_jit::Error> for Error {
    fn from(error: fercuda_jit::Error) -> Self {
        match error {
            fercuda_jit::Error::Cuda(error) => error.into(),
            error => Self::Expression(Arc::new(error)),
        }
    }
}

impl Error {
    /// Whether the device's context has failed: every call in it fails until it is reset.
    pub fn is_sticky(&self) -> bool {
        match self {
            Self::Cuda(error) => error.is_sticky(),
            Self::Lost { .. } | Self::Failed { .. } => true,
            Self::NotRun { source, .. } => source.is_sticky(),
            _ => false,
        }
    }
}
