//! Codes, messages, and the guard that every function of the interface runs behind.
//!
//! Invariants: a code's number never changes. A thread's message is its own, and
//! stays where it is until the thread calls again.

use core::cell::RefCell;
use core::ffi::{CStr, c_char};
use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fercuda_cuda_sys::types::CUresult;
use fercuda_runtime::{DispatchError, Error, GraphError, IgnitionError, LayoutError};

/// What a function answers. Numbers keep their meaning for good.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_status {
    /// It was done.
    FER_OK = 0,
    /// A pointer is NULL, a handle is 0, a number is none of those that there are, or a
    /// text is no UTF-8. The message names the parameter.
    FER_ERROR_INVALID_ARGUMENT = 1,
    /// A handle names nothing: it was closed or freed, is of another kind or session, or
    /// was never given out.
    FER_ERROR_STALE_HANDLE = 2,
    /// Layouts, buffers and bytes do not fit each other.
    FER_ERROR_LAYOUT = 3,
    /// The session, or its graphs, may not hold so much; or the system gives no more threads.
    FER_ERROR_LIMIT = 4,
    /// The device has no memory left; the message says who holds it.
    FER_ERROR_OUT_OF_MEMORY = 5,
    /// The session was closed, or ended by a reboot, or its context was reset.
    FER_ERROR_ENDED = 6,
    /// A session of that name is open.
    FER_ERROR_NAME_TAKEN = 7,
    /// There is no such device, or no driver, or another one is governed already.
    FER_ERROR_NO_DEVICE = 8,
    /// The driver refused.
    FER_ERROR_DRIVER = 9,
    /// A module was refused, or has no such kernel. The message has the compiler's log.
    FER_ERROR_MODULE = 10,
    /// A launch does not fit its kernel or the device; nothing was launched.
    FER_ERROR_LAUNCH = 11,
    /// The device's context has failed, as after an illegal address. fer_reset helps.
    FER_ERROR_CONTEXT_LOST = 12,
    /// Others hold memory of the device, so that it was not reset; or have a kernel that
    /// stays there, for which the reboot would wait.
    FER_ERROR_OCCUPIED = 13,
    /// The job was cancelled.
    FER_ERROR_CANCELLED = 14,
    /// It is not done in the time that was given, and goes on.
    FER_ERROR_TIMEOUT = 15,
    /// Host work of the caller's own said that it failed.
    FER_ERROR_HOST_WORK = 16,
    /// This process was forked from the one that opened the runtime.
    FER_ERROR_FORKED = 17,
    /// No memory is governed in this process, so there is nothing to tell of it.
    FER_ERROR_NOT_GOVERNED = 18,
    /// Tensors that cannot be planned, or a text that is no plan.
    FER_ERROR_PLAN = 19,
    /// A defect of feRcuda's own.
    FER_ERROR_INTERNAL = 20,
    /// A task does not fit: there is none of that number, a span is not within its buffer,
    /// or it has used up its steps. Other tasks do not notice.
    FER_ERROR_TASK = 21,
    /// All slots of the task's priority are taken.
    FER_ERROR_FULL = 22,
    /// A task runs for ever, and the dispatcher with it. It ends with the process.
    FER_ERROR_DISPATCHER_LOST = 23,
    /// The session's own allocator gave no memory, or none that can be used.
    FER_ERROR_ALLOCATOR = 24,
    /// What others ask of the device's runtime is taken already in this process.
    FER_ERROR_SERVED = 25,
    /// A graph was not kept: its key was invalidated while it was captured.
    FER_ERROR_GRAPH = 26,
    /// A text says no expression that can be computed, or buffers do not fit it. The message
    /// has line and column.
    FER_ERROR_EXPRESSION = 27,
    /// Not here: in a job, in host work, or where lent memory is given back, which the call
    /// would wait for. Another thread may.
    FER_ERROR_WITHIN = 28,
    /// The runtime is being rebooted. When it has been, the call may be made again.
    FER_ERROR_REBOOTING = 29,
}

impl fer_status {
    const ALL: [(Self, &CStr); 30] = [
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
    ];
}

/// What went wrong, as C hears of it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: fer_status,
    pub(crate) message: String,
}

pub(crate) type Result<T> = core::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: fer_status, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// Something is wrong with a parameter.
    pub(crate) fn argument(name: &str, what: impl AsRef<str>) -> Self {
        Self::new(
            fer_status::FER_ERROR_INVALID_ARGUMENT,
            format!("{name}: {}", what.as_ref()),
        )
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), error.to_string())
    }
}

impl From<LayoutError> for Failure {
    fn from(error: LayoutError) -> Self {
        Error::from(error).into()
    }
}

impl From<IgnitionError> for Failure {
    fn from(error: IgnitionError) -> Self {
        Self::new(fer_status::FER_ERROR_PLAN, error.to_string())
    }
}

impl From<DispatchError> for Failure {
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
        DispatchError::Session(error) => status_of(error),
        _ => fer_status::FER_ERROR_INTERNAL,
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
        Error::Limit { .. } | Error::Full(_) | Error::NoThread { .. } => {
            fer_status::FER_ERROR_LIMIT
        }
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
        // Also of another library's, of which only the driver knows.
        error if error.is_in_callback() => fer_status::FER_ERROR_WITHIN,
        error if error.is_sticky() => fer_status::FER_ERROR_CONTEXT_LOST,
        // Nothing but a kernel is looked up by name.
        error if error.code() == Some(CUresult::CUDA_ERROR_NOT_FOUND) => {
            fer_status::FER_ERROR_MODULE
        }
        _ => fer_status::FER_ERROR_DRIVER,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs what a function does; keeps its message if it fails, and panics from C.
pub(crate) fn guarded(work: impl FnOnce() -> Result<()>) -> fer_status {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return fer_status::FER_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let said = said(panic.as_ref()).to_owned();
            // What was thrown may throw again when it is dropped.
            core::mem::forget(panic);
            let message = format!("a defect of feRcuda: {said}\ntry: to report it, with this text");
            Failure::new(fer_status::FER_ERROR_INTERNAL, message)
        }
    };
    remember(failure.message);
    failure.status
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it panicked with something that is no text")
}

fn remember(message: String) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // At a thread's end there is nobody left to ask.
    drop(LAST.try_with(|last| last.replace(text)));
}

/// The message of the calling thread's last error: what, where, with numbers, and what
/// to try. Empty if there was none. Good until the thread's next call of a function of
/// this library.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn fer_last_error_message() -> *const c_char {
    let kept = LAST.try_with(|last| last.borrow().as_ptr());
    kept.unwrap_or(c"".as_ptr())
}

/// A code's name, as "FER_ERROR_LIMIT"; "unknown" for a number that is none. Good for
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
    fn a_panic_is_an_answer() {
        let status = guarded(|| panic!("on purpose {}", 3));
        assert_eq!(status, fer_status::FER_ERROR_INTERNAL);
        assert!(message().contains("on purpose 3"), "{}", message());
        let status = guarded(|| std::panic::panic_any(7));
        assert_eq!(status, fer_status::FER_ERROR_INTERNAL);
        assert!(message().contains("no text"));
    }

    #[test]
    fn what_is_asked_in_host_work_says_so_whoevers_that_is() {
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
    fn a_message_is_a_threads_own_and_lasts_until_its_next_error() {
        let fail = |text: &str| guarded(|| Err(Failure::argument("it", text)));
        assert_eq!(fail("a\0b"), fer_status::FER_ERROR_INVALID_ARGUMENT);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                assert_eq!(message(), "");
                fail("elsewhere");
            });
        });
        assert_eq!(guarded(|| Ok(())), fer_status::FER_OK);
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
