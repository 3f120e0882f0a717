//! What can go wrong, with what was asked, the numbers, and what to try.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fercuda_tensor::{Dtype, Layout, LayoutError};

use crate::handles::{Full, Stale};

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Cloning is cheap: several may wait for one job.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver, or the layer above it, refused.
    #[error(transparent)]
    Cuda(Arc<fercuda_cuda::Error>),
    /// A graph was not captured, kept or replayed.
    #[error(transparent)]
    Graph(Arc<crate::GraphError>),
    /// An expression was not compiled or run.
    #[error(transparent)]
    Expression(Arc<fercuda_jit::Error>),
    /// A dispatcher did not end as it should.
    #[error(transparent)]
    Dispatch(Arc<crate::DispatchError>),
    /// A buffer is not what an expression's input or output is.
    #[error(
        "{what} {name:?} is {layout}, and {id} is {given}\ntry: a view of that shape, or an expression for these strides"
    )]
    Operand {
        /// `input` or `output`.
        what: &'static str,
        /// Its name.
        name: String,
        /// What it is.
        layout: Box<Layout>,
        /// The buffer.
        id: String,
        /// What that is.
        given: Box<Layout>,
    },
    /// A handle names nothing here.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// There is no handle left.
    #[error(transparent)]
    Full(#[from] Full),
    /// There cannot be such a layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Another library of this process governs another driver.
    #[error(
        "this process's pool stands before {before}, and {driver} was chosen\n\
         try: one device for the whole process (FERCUDA_DEVICE), or the session of who came first"
    )]
    OtherDriver {
        /// The driver that is governed.
        before: String,
        /// The one that was chosen.
        driver: String,
    },
    /// A session has not so much left.
    #[error(
        "session {session:?} may hold {}, holds {}{} and was asked for {}\ntry: {}free some, or a larger limit",
        Bytes(*limit_bytes), Bytes(*held_bytes), Freed(*freed_bytes), Bytes(*asked_bytes),
        if *freed_bytes == 0 { "" } else { "let go of graphs that have it, stop dispatchers, " }
    )]
    Limit {
        /// Its name.
        session: String,
        /// What it may hold.
        limit_bytes: u64,
        /// What it holds.
        held_bytes: u64,
        /// Of that, what was freed and is held: graphs have it, or others that were given it,
        /// or the driver gets it when no kernel stays on the device.
        freed_bytes: u64,
        /// What was asked for.
        asked_bytes: u64,
    },
    /// The device has no memory left.
    #[error("{source}\nheld: {}", Holders(holders))]
    OutOfMemory {
        /// What the driver was asked and answered.
        source: Arc<fercuda_cuda::Error>,
        /// Who holds what of the device.
        holders: Vec<Holder>,
    },
    /// The session's allocator gave no memory that can be used.
    #[error(
        "session {session:?} asked its allocator for {}: {why}\ntry: {advice}",
        Bytes(*asked_bytes)
    )]
    Allocator {
        /// The session's name.
        session: String,
        /// What it was asked for.
        asked_bytes: u64,
        /// What it said, or what is wrong with what it gave.
        why: String,
        /// What to try.
        advice: &'static str,
    },
    /// The session has no allocator.
    #[error(
        "session {session:?} has no allocator of the program's own\n\
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
        /// Why.
        why: Why,
    },
    /// A session of this name is there.
    #[error("there is a session {name:?} already\ntry: another name, or to close that one")]
    Name {
        /// The name.
        name: String,
    },
    /// This is the child of a fork of the process that made the session.
    #[error(
        "session {session:?} is of process {process}, from which this one was forked\n\
         try: a new process (spawn), or to begin only after the fork"
    )]
    Forked {
        /// Its name.
        session: String,
        /// The process that made it.
        process: u32,
    },
    /// Values do not fit the buffer.
    #[error(
        "{doing} {id}: {given} bytes, and {shape:?} of {dtype} are {expected}\ntry: as many values as it has elements"
    )]
    Length {
        /// What was to be done.
        doing: &'static str,
        /// The buffer.
        id: String,
        /// Bytes that were given.
        given: u64,
        /// Bytes that the elements take.
        expected: u64,
        /// The buffer's shape.
        shape: Vec<u64>,
        /// Its type.
        dtype: Dtype,
    },
    /// The values are of another type.
    #[error(
        "{doing} {id}: it is of {dtype}, and the values of {given}\ntry: values of {dtype}, or its bytes"
    )]
    Type {
        /// What was to be done.
        doing: &'static str,
        /// The buffer.
        id: String,
        /// Its type.
        dtype: Dtype,
        /// The values'.
        given: Dtype,
    },
    /// Two buffers have not one shape and type.
    #[error(
        "cannot copy {from_shape:?} of {from} to {to_shape:?} of {to}\ntry: a view of the same shape; a cast is a kernel's work"
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
        "a view of {id} reaches from byte {from} to {until} of {bytes}\ntry: a view that lies within the buffer"
    )]
    Reach {
        /// The buffer.
        id: String,
        /// The first byte that it reaches.
        from: i64,
        /// The one behind the last.
        until: i64,
        /// Bytes of the memory.
        bytes: u64,
    },
    /// Elements would lie where their type cannot.
    #[error(
        "a view of {id} begins at byte {at}, which is no multiple of the {size} bytes of {dtype}"
    )]
    Alignment {
        /// The buffer.
        id: String,
        /// Where it would begin.
        at: i64,
        /// The type.
        dtype: Dtype,
        /// Its size in bytes.
        size: u64,
    },
    /// Two elements to be written lie in one place.
    #[error(
        "{doing}: two elements of {shape:?} with strides {strides:?} may lie in one place\ntry: a layout without"
    )]
    Overlap {
        /// What was to be done.
        doing: &'static str,
        /// The shape.
        shape: Vec<u64>,
        /// The strides, in elements.
        strides: Vec<i64>,
    },
    /// A copy comes in too many pieces.
    #[error(
        "the elements lie in {pieces} pieces, which is more than {most} copies\ntry: contiguous buffers; a kernel gathers what is strewn"
    )]
    Strewn {
        /// How many pieces.
        pieces: u64,
        /// How many copies one call makes at most.
        most: u64,
    },
    /// A byte that is neither 0 nor 1 is no bool.
    #[error("byte {at} is {value}, and a bool is 0 or 1")]
    NotABool {
        /// Where it is.
        at: usize,
        /// What it is.
        value: u8,
    },
    /// The job was cancelled before the device had it.
    #[error("job {job} was cancelled before the device had it")]
    Cancelled {
        /// The job.
        job: u64,
    },
    /// Work before it failed in a way from which the context does not recover.
    #[error("job {job} did not run: job {by} before it failed\n{source}")]
    NotRun {
        /// The job.
        job: u64,
        /// The one that failed.
        by: u64,
        /// How.
        source: Box<Error>,
    },
    /// A job waits for one of its own session, which comes only after it.
    #[error(
        "job {job} cannot be waited for in a job of the same session\ntry: to wait outside, or a session of its own"
    )]
    WithinJob {
        /// The job that is not over.
        job: u64,
    },
    /// A job was given up: its session had ended when it came.
    #[error("job {job} was given up: its session had ended\ntry: another session")]
    GivenUp {
        /// The job.
        job: u64,
    },
    /// There is no thread for a session's jobs, or for requests.
    #[error("no thread: {why}\ntry: fewer threads, or a larger limit of them (ulimit -u)")]
    NoThread {
        /// What the system said.
        why: String,
    },
    /// Nothing is governed, so there is no ledger by which a process can be asked.
    #[error(
        "nothing is governed in this process, and so nobody can ask it\ntry: without FERCUDA_DISABLE=1"
    )]
    Ungoverned,
    /// Another runtime of the process takes the device's requests.
    #[error(
        "another runtime of this process takes requests for device {device}\n\
         try: one that does, or to drop what its serve_requests gave first"
    )]
    Served {
        /// The device.
        device: u32,
    },
    /// The runtime is being rebooted.
    #[error("the runtime is being rebooted\ntry: again when it has")]
    Rebooting,
    /// Something that would wait for the thread that asks for it.
    #[error(
        "cannot {doing} in a job, a host callback, or where lent memory is given back: that is waited for\n\
         try: another thread"
    )]
    Within {
        /// What was to be done.
        doing: &'static str,
    },
    /// The work of a job panicked on the host.
    #[error("job {job} panicked: {message}")]
    Panicked {
        /// The job.
        job: u64,
        /// What it said.
        message: String,
    },
    /// What a job had to give was taken already.
    #[error("what job {job} has to give was taken already\ntry: to keep it, or to ask once")]
    Taken {
        /// The job.
        job: u64,
    },
    /// A time limit has passed.
    #[error("{what} is not done after {waited:?}\ntry: to wait longer, or to cancel it")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The context was reset, and the driver answers with the error of before all the same.
    #[error(
        "device {device} was reset, and the driver still answers with the error of before:\n{source}\n\
         try: another process; NVIDIA's driver does not recover from such an error in the one that made it"
    )]
    Lost {
        /// The device.
        device: u32,
        /// What the driver answered.
        source: Arc<fercuda_cuda::Error>,
    },
    /// The context has failed, and nothing works in it.
    #[error("the context of device {device} has failed\ntry: a reboot that resets it")]
    Failed {
        /// The device.
        device: u32,
    },
    /// A reboot that would wait for a kernel that stays.
    #[error(
        "a kernel stays on device {device}, and what waits for the device would wait for it\n\
         try: to end its dispatcher first; or another process, if that is lost"
    )]
    Resident {
        /// The device.
        device: u32,
    },
    /// A reboot that would take others' memory away.
    #[error(
        "cannot reset device {device}: others hold memory there: {}\ntry: to let them end first; nothing was reset",
        Holders(holders)
    )]
    Occupied {
        /// The device.
        device: u32,
        /// Who.
        holders: Vec<Holder>,
    },
}

/// Why a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was closed.
    Closed,
    /// The runtime was rebooted; which time that was.
    Rebooted(u64),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it was closed"),
            Self::Rebooted(epoch) => write!(f, "the runtime was rebooted (epoch {epoch})"),
        }
    }
}

/// Who holds memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The tenant's name.
    pub tenant: String,
    /// Live blocks of the pool, in bytes.
    pub pooled_bytes: u64,
    /// What the driver gave by itself, also of the host, in bytes.
    pub governed_bytes: u64,
}

struct Holders<'a>(&'a [Holder]);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing by anybody in this process");
        }
        for (at, holder) in self.0.iter().enumerate() {
            let between = if at > 0 { ", " } else { "" };
            write!(
                f,
                "{between}{} {}",
                holder.tenant,
                Bytes(holder.pooled_bytes)
            )?;
            if holder.governed_bytes > 0 {
                write!(f, " and {} of the driver's", Bytes(holder.governed_bytes))?;
            }
        }
        Ok(())
    }
}

/// A number of bytes as a person reads it.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in UNITS {
            if value < 1024.0 {
                break;
            }
            (value, unit) = (value / 1024.0, next);
        }
        match unit {
            "B" => write!(f, "{} B", self.0),
            unit => write!(f, "{value:.1} {unit}"),
        }
    }
}

/// What was freed of what is held.
struct Freed(u64);

impl fmt::Display for Freed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            bytes => write!(f, " ({} of it freed, and not back yet)", Bytes(bytes)),
        }
    }
}

impl From<fercuda_cuda::Error> for Error {
    fn from(error: fercuda_cuda::Error) -> Self {
        Self::Cuda(Arc::new(error))
    }
}

impl From<crate::GraphError> for Error {
    fn from(error: crate::GraphError) -> Self {
        match error {
            crate::GraphError::Cuda(error) => error.into(),
            crate::GraphError::Limit(error) => *error,
            error => Self::Graph(Arc::new(error)),
        }
    }
}

impl From<crate::DispatchError> for Error {
    fn from(error: crate::DispatchError) -> Self {
        match error {
            crate::DispatchError::Cuda(error) => error.into(),
            crate::DispatchError::Session(error) => error,
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
    /// Whether the device's context is lost: everything in it fails until it is reset.
    pub fn is_sticky(&self) -> bool {
        match self {
            Self::Cuda(error) => error.is_sticky(),
            Self::Lost { .. } | Self::Failed { .. } => true,
            Self::NotRun { source, .. } => source.is_sticky(),
            _ => false,
        }
    }
}
