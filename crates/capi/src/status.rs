//! Status codes, messages, and the panic guard around every function of the interface.
//!
//! Invariants: a code's number never changes. A thread's message is its own, and stays at its
//! address until the thread's next call.

use core::cell::RefCell;
use core::ffi::{CStr, c_char};
use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fercuda_cuda_sys::types::CUresult;
use fercuda_ops::{KernelError, OpError};
use fercuda_runtime::{DispatchError, Error, GraphError, IgnitionError, LayoutError, jit};

/// Status that a function returns. Numbers keep their meaning for ever.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_status {
    /// Success.
    FER_OK = 0,
    /// A pointer is NULL, a handle is 0, a number is out of range, or a text is not UTF-8. The
    /// message names the parameter.
    FER_ERROR_INVALID_ARGUMENT = 1,
    /// A stale handle: it was closed or freed, is of another kind or session, or was never
    /// returned.
    FER_ERROR_STALE_HANDLE = 2,
    /// Layouts, buffers and lengths do not match.
    FER_ERROR_LAYOUT = 3,
    /// The limit of the session, or of its graphs, is exceeded; or no more threads can be started.
    FER_ERROR_LIMIT = 4,
    /// The device is out of memory; the message lists the holders.
    FER_ERROR_OUT_OF_MEMORY = 5,
    /// The session was closed, or ended by a reboot, or its context was reset.
    FER_ERROR_ENDED = 6,
    /// A session of that name is open.
    FER_ERROR_NAME_TAKEN = 7,
    /// No such device, or no driver, or another driver is governed already.
    FER_ERROR_NO_DEVICE = 8,
    /// The driver refused.
    FER_ERROR_DRIVER = 9,
    /// A module was refused, or has no such kernel. The message has the compiler's log.
    FER_ERROR_MODULE = 10,
    /// A launch does not fit its kernel or the device; nothing was launched.
    FER_ERROR_LAUNCH = 11,
    /// The device's context has failed, as after an illegal address. Try fer_reset.
    FER_ERROR_CONTEXT_LOST = 12,
    /// Other tenants hold memory of the device, so that it was not reset; or a kernel is resident,
    /// for which the reboot would wait.
    FER_ERROR_OCCUPIED = 13,
    /// The job was cancelled.
    FER_ERROR_CANCELLED = 14,
    /// The time limit has passed; the operation goes on.
    FER_ERROR_TIMEOUT = 15,
    /// The caller's host work reported failure.
    FER_ERROR_HOST_WORK = 16,
    /// This process was forked from the one that opened the runtime.
    FER_ERROR_FORKED = 17,
    /// No memory is governed in this process, so there are no figures.
    FER_ERROR_NOT_GOVERNED = 18,
    /// Tensors that cannot be planned, or a text that is not a plan.
    FER_ERROR_PLAN = 19,
    /// A defect of feRcuda.
    FER_ERROR_INTERNAL = 20,
    /// An invalid task: an unknown number, a span outside its buffer, or its steps are exhausted.
    /// Other tasks are not affected.
    FER_ERROR_TASK = 21,
    /// All slots of the task's priority are in use.
    FER_ERROR_FULL = 22,
    /// A task runs for ever, and its dispatcher with it, until the process ends.
    FER_ERROR_DISPATCHER_LOST = 23,
    /// The session's allocator returned no memory, or unusable memory.
    FER_ERROR_ALLOCATOR = 24,
    /// Another object of this process accepts the device's requests already.
    FER_ERROR_SERVED = 25,
    /// A graph was not kept: its key was invalidated while it was captured.
    FER_ERROR_GRAPH = 26,
    /// An invalid expression, or buffers that do not match it. The message has line and column.
    FER_ERROR_EXPRESSION = 27,
    /// Not allowed here: in a job, in host work, or in a deleter of lent memory, which the call
    /// would wait for. Call it from another thread.
    FER_ERROR_WITHIN = 28,
    /// The runtime is being rebooted. Retry afterwards.
    FER_ERROR_REBOOTING = 29,
    /// An op that does not exist, an invalid parameter, or operands that do not fit. Nothing was
    /// written.
    FER_ERROR_OP = 30,
    /// An index of an operand is outside of its axis; the message has the index and its place. The
    /// result has 0 there, or what it had before.
    FER_ERROR_INDEX = 31,
}

impl fer_status {
    const ALL: [(Self, &CStr); 32] = [
        (Self::FER_OK, c"FER_OK"),
        (
            Self::FER_ERROR_INVALID_ARGUMENT,
            c"FER_ERROR_INVALID_ARGUMENT",
        ),
        (Self::FER_ERROR_STALE_HANDLE, c"FER_ERROR_STALE_HANDLE"),
        (Self::FER_ERROR_LAYOUT, c"FER_ERROR_LAYOUT"),
        (Self::FER_ERROR_LIMIT, c"FER_ERROR_LIMIT"),
        (Self::FER_ERROR_OUT_OF_MEMORY, c"FER_ERROR_OUT_OF_MEMORY"),
        (Self::FER_ERROR_ENDED, c"FER_ERROR_ENDED"),
        (Self::FER_ERROR_NAME_TAKEN, c"FER_ERROR_NAME_TAKEN"),
        (Self::FER_ERROR_NO_DEVICE, c"FER_ERROR_NO_DEVICE"),
        (Self::FER_ERROR_DRIVER, c"FER_ERROR_DRIVER"),
        (Self::FER_ERROR_MODULE, c"FER_ERROR_MODULE"),
        (Self::FER_ERROR_LAUNCH, c"FER_ERROR_LAUNCH"),
        (Self::FER_ERROR_CONTEXT_LOST, c"FER_ERROR_CONTEXT_LOST"),
        (Self::FER_ERROR_OCCUPIED, c"FER_ERROR_OCCUPIED"),
        (Self::FER_ERROR_CANCELLED, c"FER_ERROR_CANCELLED"),
        (Self::FER_ERROR_TIMEOUT, c"FER_ERROR_TIMEOUT"),
        (Self::FER_ERROR_HOST_WORK, c"FER_ERROR_HOST_WORK"),
        (Self::FER_ERROR_FORKED, c"FER_ERROR_FORKED"),
        (Self::FER_ERROR_NOT_GOVERNED, c"FER_ERROR_NOT_GOVERNED"),
        (Self::FER_ERROR_PLAN, c"FER_ERROR_PLAN"),
        (Self::FER_ERROR_INTERNAL, c"FER_ERROR_INTERNAL"),
        (Self::FER_ERROR_TASK, c"FER_ERROR_TASK"),
        (Self::FER_ERROR_FULL, c"FER_ERROR_FULL"),
        (
            Self::FER_ERROR_DISPATCHER_LOST,
            c"FER_ERROR_DISPATCHER_LOST",
        ),
        (Self::FER_ERROR_ALLOCATOR, c"FER_ERROR_ALLOCATOR"),
        (Self::FER_ERROR_SERVED, c"FER_ERROR_SERVED"),
        (Self::FER_ERROR_GRAPH, c"FER_ERROR_GRAPH"),
        (Self::FER_ERROR_EXPRESSION, c"FER_ERROR_EXPRESSION"),
        (Self::FER_ERROR_WITHIN, c"FER_ERROR_WITHIN"),
        (Self::FER_ERROR_REBOOTING, c"FER_ERROR_REBOOTING"),
        (Self::FER_ERROR_OP, c"FER_ERROR_OP"),
        (Self::FER_ERROR_INDEX, c"FER_ERROR_INDEX"),
    ];
}

/// An error, as reported to C.
#[derive(Clone, Debug)]
pub(crate) struct CallFailure {
    pub(crate) status: fer_status,
    pub(crate) message: String,
}

pub(crate) type Result<T> = core::result::Result<T, CallFailure>;

impl CallFailure {
    pub(crate) fn new(status: fer_status, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// An invalid parameter.
    pub(crate) fn argument(name: &str, what: impl AsRef<str>) -> Self {
        Self::new(
            fer_status::FER_ERROR_INVALID_ARGUMENT,
            format!("{name}: {}", what.as_ref()),
        )
    }
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), error.to_string())
    }
}

impl From<LayoutError> for CallFailure {
    fn from(error: LayoutError) -> Self {
        Error::from(error).into()
    }
}

impl From<IgnitionError> for CallFailure {
    fn from(error: IgnitionError) -> Self {
        Self::new(fer_status::FER_ERROR_PLAN, error.to_string())
    }
}

impl From<OpError> for CallFailure {
    fn from(error: OpError) -> Self {
        Self::new(status_of_op(&error), error.to_string())
    }
}

impl From<DispatchError> for CallFailure {
    fn from(error: DispatchError) -> Self {
        Error::from(error).into()
    }
}

fn status_of_dispatch(error: &DispatchError) -> fer_status {
    match error {
        DispatchError::Full { .. } => fer_status::FER_ERROR_FULL,
        DispatchError::Stopped => fer_status::FER_ERROR_ENDED,
        DispatchError::Running { .. } => fer_status::FER_ERROR_TIMEOUT,
        DispatchError::Lost => fer_status::FER_ERROR_DISPATCHER_LOST,
        DispatchError::Forked { .. } => fer_status::FER_ERROR_FORKED,
        DispatchError::Value { .. } => fer_status::FER_ERROR_INVALID_ARGUMENT,
        DispatchError::Buffer { .. } => fer_status::FER_ERROR_LAYOUT,
        DispatchError::Cuda(error) => status_of_driver(error),
        _ => fer_status::FER_ERROR_INTERNAL,
    }
}

fn status_of_op(error: &OpError) -> fer_status {
    let of_kernel = |error: &KernelError| match error {
        KernelError::Cuda(error) | KernelError::Bound(jit::Error::Cuda(error)) => {
            status_of_driver(error)
        }
        KernelError::Bound(jit::Error::Program(_)) => fer_status::FER_ERROR_OP,
        KernelError::Bound(_) | KernelError::Layout(_) => fer_status::FER_ERROR_LAYOUT,
        _ => fer_status::FER_ERROR_OP,
    };
    match error {
        OpError::Device(error) => of_kernel(error),
        OpError::Run { error, .. } => of_kernel(error),
        OpError::Index { .. } => fer_status::FER_ERROR_INDEX,
        OpError::Library { .. } => fer_status::FER_ERROR_DRIVER,
        _ => fer_status::FER_ERROR_OP,
    }
}

fn status_of(error: &Error) -> fer_status {
    match error {
        Error::Dispatch(error) => status_of_dispatch(error),
        Error::Graph(error) => match &**error {
            GraphError::TooLarge { .. } => fer_status::FER_ERROR_LIMIT,
            GraphError::Ended => fer_status::FER_ERROR_ENDED,
            GraphError::Invalidated => fer_status::FER_ERROR_GRAPH,
            _ => fer_status::FER_ERROR_INTERNAL,
        },
        Error::Cuda(error) => status_of_driver(error),
        Error::Stale(_) => fer_status::FER_ERROR_STALE_HANDLE,
        Error::Layout(_)
        | Error::Length { .. }
        | Error::Type { .. }
        | Error::Unlike { .. }
        | Error::Reach { .. }
        | Error::Alignment { .. }
        | Error::Overlap { .. }
        | Error::Strewn { .. }
        | Error::NotABool { .. } => fer_status::FER_ERROR_LAYOUT,
        Error::Limit(_) | Error::Full(_) | Error::NoThread { .. } => fer_status::FER_ERROR_LIMIT,
        Error::Served { .. } => fer_status::FER_ERROR_SERVED,
        Error::Expression(_) | Error::Operand { .. } => fer_status::FER_ERROR_EXPRESSION,
        Error::Within { .. } | Error::WithinJob { .. } => fer_status::FER_ERROR_WITHIN,
        Error::Rebooting => fer_status::FER_ERROR_REBOOTING,
        Error::Ungoverned => fer_status::FER_ERROR_NOT_GOVERNED,
        Error::OutOfMemory { .. } => fer_status::FER_ERROR_OUT_OF_MEMORY,
        Error::Allocator { .. } => fer_status::FER_ERROR_ALLOCATOR,
        Error::Ended { .. } => fer_status::FER_ERROR_ENDED,
        Error::Name { .. } => fer_status::FER_ERROR_NAME_TAKEN,
        Error::OtherDriver { .. } => fer_status::FER_ERROR_NO_DEVICE,
        Error::Failed { .. } => fer_status::FER_ERROR_CONTEXT_LOST,
        Error::Occupied { .. } | Error::Resident { .. } => fer_status::FER_ERROR_OCCUPIED,
        Error::Cancelled { .. } => fer_status::FER_ERROR_CANCELLED,
        Error::Timeout { .. } => fer_status::FER_ERROR_TIMEOUT,
        Error::Forked { .. } => fer_status::FER_ERROR_FORKED,
        Error::NotRun { source, .. } => status_of(source),
        _ => fer_status::FER_ERROR_INTERNAL,
    }
}

fn status_of_driver(error: &fercuda_cuda::Error) -> fer_status {
    use fercuda_cuda::Error;
    match error {
        Error::NoDriver(_) | Error::NoDevice { .. } | Error::Selection { .. } => {
            fer_status::FER_ERROR_NO_DEVICE
        }
        Error::OutOfMemory(_) => fer_status::FER_ERROR_OUT_OF_MEMORY,
        Error::Load(_) | Error::Image(_) => fer_status::FER_ERROR_MODULE,
        Error::Arguments(_) | Error::LaunchLimit { .. } => fer_status::FER_ERROR_LAUNCH,
        Error::ContextReset => fer_status::FER_ERROR_ENDED,
        // Also inside a callback of another library, of which only the driver knows.
        error if error.is_in_callback() => fer_status::FER_ERROR_WITHIN,
        error if error.is_sticky() => fer_status::FER_ERROR_CONTEXT_LOST,
        // Only kernels are looked up by name.
        error if error.code() == Some(CUresult::CUDA_ERROR_NOT_FOUND) => {
            fer_status::FER_ERROR_MODULE
        }
        _ => fer_status::FER_ERROR_DRIVER,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function; records its message if it fails, and catches panics.
pub(crate) fn catch_panics(work: impl FnOnce() -> Result<()>) -> fer_status {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return fer_status::FER_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let panic_message = panic_message(panic.as_ref()).to_owned();
            // A payload's destructor may panic too.
            core::mem::forget(panic);
            let message =
                format!("a defect of feRcuda: {panic_message}\ntry: to report it, with this text");
            CallFailure::new(fer_status::FER_ERROR_INTERNAL, message)
        }
    };
    remember(failure.message);
    failure.status
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it panicked with a payload that is not a string")
}

fn remember(message: String) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // The thread-local is gone only when the thread ends.
    drop(LAST.try_with(|last| last.replace(text)));
}

/// Returns the message of the calling thread's last error: the operation, its arguments, numbers,
/// and what to try. Empty if there was none. Valid until the thread's next call of a function of
/// this library.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn fer_last_error_message() -> *const c_char {
    let kept = LAST.try_with(|last| last.borrow().as_ptr());
    kept.unwrap_or(c"".as_ptr())
}

/// Returns a code's name, such as "FER_ERROR_LIMIT"; "unknown" for an invalid number. Valid for
/// ever.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_status_name(status: i32) -> *const c_char {
    let mut all = fer_status::ALL.iter();
    let named = all.find(|(code, _)| *code as i32 == status);
    named.map_or(c"unknown", |(_, name)| name).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: a text of this thread's, which calls nothing meanwhile.
        let text = unsafe { CStr::from_ptr(fer_last_error_message()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn panic_becomes_a_status() {
        let status = catch_panics(|| panic!("on purpose {}", 3));
        assert_eq!(status, fer_status::FER_ERROR_INTERNAL);
        assert!(message().contains("on purpose 3"), "{}", message());
        let status = catch_panics(|| std::panic::panic_any(7));
        assert_eq!(status, fer_status::FER_ERROR_INTERNAL);
        assert!(message().contains("not a string"));
    }

    #[test]
    fn call_in_host_work_is_refused_also_in_another_librarys() {
        let refused = |code| {
            status_of_driver(&fercuda_cuda::Error::Driver(Box::new(
                fercuda_cuda::DriverFailure {
                    call: "cuStreamQuery",
                    code,
                    doing: "query a stream".to_owned(),
                },
            )))
        };
        let within = fer_status::FER_ERROR_WITHIN;
        assert_eq!(status_of_driver(&fercuda_cuda::Error::InCallback), within);
        assert_eq!(refused(CUresult::CUDA_ERROR_NOT_PERMITTED), within);
        let other = refused(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(other, fer_status::FER_ERROR_DRIVER);
    }

    #[test]
    fn message_is_per_thread_and_lasts_until_the_next_error() {
        let fail = |text: &str| catch_panics(|| Err(CallFailure::argument("it", text)));
        assert_eq!(fail("a\0b"), fer_status::FER_ERROR_INVALID_ARGUMENT);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                assert_eq!(message(), "");
                fail("elsewhere");
            });
        });
        assert_eq!(catch_panics(|| Ok(())), fer_status::FER_OK);
        assert_eq!(message(), "it: a b");
    }

    #[test]
    fn codes_have_their_names_and_their_numbers_are_in_order() {
        for (number, (status, name)) in (0..).zip(fer_status::ALL) {
            assert_eq!(status as i32, number);
            assert_eq!(name.to_str().unwrap(), format!("{status:?}"));
            assert_eq!(fer_status_name(number), name.as_ptr());
        }
        let beyond = fer_status_name(fer_status::ALL.len() as i32);
        assert_eq!(beyond, c"unknown".as_ptr());
        assert_eq!(fer_status_name(-1), c"unknown".as_ptr());
    }
}
