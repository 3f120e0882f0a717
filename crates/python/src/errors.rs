//! Conversion of errors to Python exceptions: the classes are `fercuda_runtime.errors`', their
//! attributes the numbers.

use std::time::Duration;

use fercuda_cuda as cuda;
use fercuda_ops::{KernelError, OpError};
use fercuda_runtime::jit;
use fercuda_runtime::{
    DispatchError, EndReason, Error, GraphError, Holder, IgnitionError, LimitExceeded,
    StandardTask, TaskError, TritonError,
};
use pyo3::prelude::*;

use crate::exceptions::{ExceptionBuilder, plain};
use crate::{alive, raised};

pub(crate) fn layout(py: Python<'_>, message: impl ToString) -> PyErr {
    plain(py, "LayoutError", message)
}

pub(crate) fn dtype(py: Python<'_>, message: impl ToString) -> PyErr {
    plain(py, "DtypeError", message)
}

/// The exception of an invalid plan.
pub(crate) fn plan(py: Python<'_>, error: &IgnitionError) -> PyErr {
    plain(py, "PlanError", error)
}

/// The exception of an invalid expression, without a position in its text.
pub(crate) fn expression(py: Python<'_>, message: impl ToString) -> PyErr {
    ExceptionBuilder::new(py, "ExpressionError", message).raise()
}

/// The exception of an expression that the compiler does not accept.
pub(crate) fn graph(py: Python<'_>, error: &jit::ExprError) -> PyErr {
    expression(py, error)
}

/// The exception of a syntax error.
pub(crate) fn text(py: Python<'_>, error: &jit::text::TextError) -> PyErr {
    let made = ExceptionBuilder::new(py, "ExpressionError", error);
    made.with("line", error.line)
        .with("column", error.column)
        .raise()
}

/// A time limit in seconds.
///
/// # Errors
/// `ConfigError` for an invalid one.
pub(crate) fn time_limit(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let limit = |seconds| {
        Duration::try_from_secs_f64(seconds).map_err(|error| {
            let message = format!("a time limit of {seconds} s: {error}");
            plain(py, "ConfigError", message)
        })
    };
    seconds.map(limit).transpose()
}

/// Runs a dispatcher's work without the GIL.
///
/// # Errors
/// `ForkedError`; the error of the work.
pub(crate) fn dispatch<R: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<R, DispatchError> + Send,
) -> PyResult<R> {
    alive::check_process(py)?;
    py.detach(work).map_err(|error| of_dispatch(py, &error))
}

/// Runs work without the GIL.
///
/// # Errors
/// `ForkedError`; the error of the work.
pub(crate) fn run<R: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> fercuda_runtime::Result<R> + Send,
) -> PyResult<R> {
    alive::check_process(py)?;
    py.detach(work).map_err(|error| raise(py, &error))
}

type HolderRow = (String, u64, u64);

pub(crate) fn held(holders: &[Holder]) -> Vec<HolderRow> {
    let one = |it: &Holder| (it.tenant.clone(), it.pooled_bytes, it.governed_bytes);
    holders.iter().map(one).collect()
}

/// The exception of an error of the runtime.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let made = |class| ExceptionBuilder::new(py, class, error);
    let made = match error {
        Error::Cuda(error) => return of_cuda(py, error),
        Error::Stale(_) => made("StaleHandleError"),
        Error::Layout(_) | Error::Overlap { .. } | Error::Strewn { .. } => made("LayoutError"),
        Error::Limit(it) => return of_limit(py, it),
        Error::OutOfMemory { source, holders } => {
            figures_of_memory(made("OutOfMemoryError"), source).with("holders", held(holders))
        }
        Error::Allocator {
            session,
            asked_bytes,
            ..
        } => {
            let made = made("AllocatorError").with("session", &**session);
            let raised = made.with("asked_bytes", *asked_bytes).raise();
            raised.set_cause(py, raised::take_raised());
            return raised;
        }
        Error::NoAllocator { .. } => made("ConfigError"),
        Error::Ended { session, why } => {
            made("SessionEndedError").with("session", &**session).with(
                "epoch",
                match why {
                    EndReason::Rebooted(epoch) => Some(*epoch),
                    EndReason::Closed => None,
                },
            )
        }
        Error::Name { name } => made("SessionNameError").with("session", &**name),
        Error::Forked { process, .. } => made("ForkedError").with("process", *process),
        Error::Length {
            given, expected, ..
        } => made("LayoutError")
            .with("given_bytes", *given)
            .with("expected_bytes", *expected),
        Error::Type { dtype, given, .. } => made("DtypeError")
            .with("dtype", dtype.name())
            .with("given", given.name()),
        Error::Unlike { from, to, .. } if from != to => made("DtypeError")
            .with("dtype", to.name())
            .with("given", from.name()),
        Error::Unlike { .. } | Error::Alignment { .. } => made("LayoutError"),
        Error::Reach {
            from, until, bytes, ..
        } => made("LayoutError")
            .with("from_byte", *from)
            .with("until_byte", *until)
            .with("expected_bytes", *bytes),
        Error::Dispatch(error) => return of_dispatch(py, error),
        Error::Graph(error) => return of_graph(py, error),
        Error::Expression(_) | Error::Operand { .. } => made("ExpressionError"),
        Error::NotABool { at, value } => made("ValuesError").with("at", *at).with("value", *value),
        Error::Cancelled { job } => made("JobCancelledError").with("job", *job),
        Error::NotRun { job, by, source } => {
            let made = made("JobNotRunError").with("job", *job).with("by", *by);
            let raised = made.raise();
            raised.set_cause(py, Some(raise(py, source)));
            return raised;
        }
        Error::Panicked { job, .. } | Error::GivenUp { job } | Error::WithinJob { job } => {
            made("JobError").with("job", *job)
        }
        Error::Timeout { waited, .. } => {
            made("JobTimeoutError").with("waited_s", waited.as_secs_f64())
        }
        Error::Failed { device } | Error::Lost { device, .. } => {
            made("DeviceFaultError").with("device", *device)
        }
        Error::Served { device } => made("ServedError").with("device", *device),
        Error::Ungoverned => made("ConfigError"),
        Error::Occupied { device, holders } => made("OccupiedError")
            .with("device", *device)
            .with("holders", held(holders)),
        _ => made("FercudaError"),
    };
    made.raise()
}

fn figures_of_memory<'py>(
    made: ExceptionBuilder<'py>,
    error: &cuda::Error,
) -> ExceptionBuilder<'py> {
    let cuda::Error::OutOfMemory(figures) = error else {
        return made;
    };
    let (free, total) = figures.free_and_total_bytes.unzip();
    made.with("asked_bytes", figures.asked_bytes)
        .with("free_bytes", free)
        .with("total_bytes", total)
        .with("parked_bytes", figures.deferred_free_bytes)
}

/// The exception of an error of the driver, or of the layer above it.
pub(crate) fn of_cuda(py: Python<'_>, error: &cuda::Error) -> PyErr {
    let made = |class| ExceptionBuilder::new(py, class, error);
    let code = error.code().map(|code| code.0);
    let name = error.code().and_then(|code| code.name());
    let answered = |class| made(class).with("code", code).with("code_name", name);
    let made = match error {
        _ if error.is_sticky() => answered("DeviceFaultError"),
        cuda::Error::NoDriver(_) | cuda::Error::NoDevice { .. } => made("NoDeviceError"),
        cuda::Error::OutOfMemory(_) => figures_of_memory(made("OutOfMemoryError"), error)
            .with("holders", Vec::<HolderRow>::new()),
        cuda::Error::Load(load) => answered("ModuleError").with("log", &*load.log),
        cuda::Error::Image(_) => made("ModuleError"),
        cuda::Error::Arguments(given) => made("ArgumentsError")
            .with("expected", given.expected.clone())
            .with("given", given.given.clone()),
        cuda::Error::LaunchLimit { asked, limit, .. } => made("LaunchLimitError")
            .with("asked", *asked)
            .with("limit", *limit),
        cuda::Error::Selection { .. } => made("ConfigError"),
        _ => answered("DriverError"),
    };
    made.raise()
}

/// The exception of an allocation beyond a session's limit.
fn of_limit(py: Python<'_>, error: &LimitExceeded) -> PyErr {
    ExceptionBuilder::new(py, "LimitError", error)
        .with("session", &*error.session)
        .with("limit_bytes", error.limit_bytes)
        .with("held_bytes", error.held_bytes)
        .with("freed_bytes", error.freed_bytes)
        .with("asked_bytes", error.asked_bytes)
        .raise()
}

/// The exception of a graph that failed to be captured, kept or replayed.
fn of_graph(py: Python<'_>, error: &GraphError) -> PyErr {
    let made = |class| ExceptionBuilder::new(py, class, error);
    let made = match error {
        GraphError::Cuda(error) => return of_cuda(py, error),
        GraphError::Limit(it) => return of_limit(py, it),
        GraphError::TooLarge {
            bytes,
            budget_bytes,
            nodes,
            ..
        } => made("GraphBudgetError")
            .with("bytes", *bytes)
            .with("budget_bytes", *budget_bytes)
            .with("nodes", *nodes),
        GraphError::Invalidated => made("GraphInvalidatedError"),
        _ => made("GraphError"),
    };
    made.raise()
}

/// The exception of a dispatcher that failed to start, accept a task or stop.
fn of_dispatch(py: Python<'_>, error: &DispatchError) -> PyErr {
    let made = |class| ExceptionBuilder::new(py, class, error);
    let made = match error {
        DispatchError::Cuda(error) => return of_cuda(py, error),
        DispatchError::Full { priority, capacity } => made("DispatcherFullError")
            .with("priority", *priority)
            .with("capacity", *capacity),
        DispatchError::Running { waiting } => {
            made("DispatcherRunningError").with("waiting", *waiting)
        }
        DispatchError::Stopped => made("DispatcherStoppedError"),
        DispatchError::Lost => made("DispatcherLostError"),
        DispatchError::Buffer { .. } => made("LayoutError"),
        DispatchError::Value { .. } => made("ConfigError"),
        _ => made("DispatcherError"),
    };
    made.raise()
}

/// The exception of a failed task.
pub(crate) fn task(
    py: Python<'_>,
    task: StandardTask,
    error: &TaskError,
    waited: Duration,
) -> PyErr {
    let name = task.name();
    let message = match error {
        TaskError::Failed => format!("task {name}: its spans do not fit\ntry: {}", task.asks()),
        error => format!("task {name}: {error}"),
    };
    let made = |class| ExceptionBuilder::new(py, class, &message);
    let made = match error {
        TaskError::Cancelled => made("TaskCancelledError"),
        TaskError::Stopped => made("DispatcherStoppedError"),
        TaskError::Lost => made("DispatcherLostError"),
        TaskError::TimedOut => made("JobTimeoutError").with("waited_s", waited.as_secs_f64()),
        TaskError::Device { .. } => made("DeviceFaultError"),
        _ => made("TaskError"),
    };
    made.with("task", name).raise()
}

/// The exception of a Triton kernel that failed to load or launch.
pub(crate) fn of_triton(py: Python<'_>, error: &TritonError) -> PyErr {
    let made = |class| ExceptionBuilder::new(py, class, error);
    let made = match error {
        TritonError::Cuda(error) => return of_cuda(py, error),
        TritonError::Session(error) => return raise(py, error),
        TritonError::Shared { asked, limit, .. } => made("LaunchLimitError")
            .with("asked", *asked)
            .with("limit", *limit),
        TritonError::Grid { grid, cluster, .. } => {
            let asked = grid
                .iter()
                .zip(cluster)
                .map(|(n, of)| u64::from(*n) * u64::from(*of));
            made("LaunchLimitError")
                .with("asked", asked.max().unwrap_or(0))
                .with("limit", u32::MAX)
        }
        TritonError::Arguments { .. } => made("ArgumentsError"),
        _ => made("TritonError"),
    };
    made.raise()
}

/// The exception of an op that was not planned or run.
pub(crate) fn op(py: Python<'_>, name: &str, error: &OpError) -> PyErr {
    let made = |class| ExceptionBuilder::new(py, class, error);
    let made = match error {
        OpError::Dtype { dtype, .. } => made("DtypeError").with("given", dtype.name()),
        OpError::Mixed { dtype, first, .. } => made("DtypeError")
            .with("dtype", first.name())
            .with("given", dtype.name()),
        OpError::Operands { .. } => made("ArgumentsError"),
        OpError::Shape { .. } | OpError::Output { .. } => made("LayoutError"),
        OpError::Index { index, place, .. } => made("OpIndexError")
            .with("index", *index)
            .with("place", *place),
        OpError::Kernel {
            op, reasons, hint, ..
        } => {
            let hint = match &**hint {
                "KernelPolicy::Auto" => "without sku=",
                hint => hint,
            };
            let what = format!("{op}: no kernel for it: {reasons}\ntry: {hint}");
            ExceptionBuilder::new(py, "OpError", what)
        }
        OpError::Device(cause) => match cause_in_driver(cause) {
            Some(cause) => return of_cuda(py, cause),
            None => made("OpError"),
        },
        OpError::Run { error: cause, .. } => match (cause_in_driver(cause), &**cause) {
            (Some(cause), _) => return of_cuda(py, cause),
            (None, KernelError::Bound(jit::Error::Program(_))) => made("OpError"),
            (None, KernelError::Bound(_) | KernelError::Layout(_)) => made("LayoutError"),
            _ => made("OpError"),
        },
        _ => made("OpError"),
    };
    made.with("op", name).raise()
}

/// The driver's error, if a kernel failed for it.
fn cause_in_driver(error: &KernelError) -> Option<&cuda::Error> {
    match error {
        KernelError::Cuda(error) | KernelError::Bound(jit::Error::Cuda(error)) => Some(error),
        _ => None,
    }
}
