//! The error enum of the crate: operation, numbers and a remedy in each variant.
//!
//! Invariant: an error of the driver keeps its status, so CUDA's sticky errors stay recognisable
//! however often they are returned.

use std::fmt;

use fercuda_cuda_sys::types::CUresult;
use fercuda_cuda_sys::{Missing, OpenError};

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The result of one driver call: its status, unless the driver lacks the function.
pub(crate) type CallResult = std::result::Result<CUresult, Missing>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver library.
    #[error(transparent)]
    NoDriver(#[from] OpenError),
    /// The driver has no device, or none of that ordinal.
    #[error("there is no device {ordinal}: {driver} has {count}\ntry: {advice}")]
    NoDevice {
        /// The requested ordinal.
        ordinal: u32,
        /// How many there are.
        count: u32,
        /// The driver.
        driver: String,
        /// What the user can do.
        advice: &'static str,
    },
    /// `FERCUDA_DEVICE` is none of `soft`, `gpu` or `auto`.
    #[error("FERCUDA_DEVICE is {value:?}\ntry: soft, gpu or auto")]
    Selection {
        /// Its value.
        value: String,
    },
    /// The driver lacks a function; nothing was called.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The driver returned an error.
    #[error("{0}")]
    Driver(Box<DriverFailure>),
    /// Out of device memory; nothing was allocated.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The driver refused a module.
    #[error("{0}")]
    Load(Box<LoadFailure>),
    /// A module's bytes are corrupt; the driver was not called.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The arguments of a launch do not fit the kernel; nothing was launched.
    #[error("{0}")]
    Arguments(Box<ArgumentError>),
    /// A launch exceeds a limit; nothing was launched.
    #[error("cannot launch `{kernel}`: {what} is {asked}, the limit is {limit}\ntry: {advice}")]
    LaunchLimit {
        /// The kernel's name.
        kernel: String,
        /// The quantity.
        what: &'static str,
        /// The requested value.
        asked: u64,
        /// The largest that is possible.
        limit: u64,
        /// What the user can do.
        advice: &'static str,
    },
    /// Two lengths that must be equal are not, or a range is outside its buffer.
    #[error("cannot {operation}: {left_name} has {left} elements, {right_name} has {right}")]
    Length {
        /// The operation.
        operation: &'static str,
        /// The first of the two.
        left_name: &'static str,
        /// Its length in elements.
        left: usize,
        /// The second of the two.
        right_name: &'static str,
        /// Its length in elements.
        right: usize,
    },
    /// An object of one context was used in another.
    #[error(
        "cannot {operation}: it belongs to {left} and the stream to {right}\ntry: a stream of the same device"
    )]
    OtherContext {
        /// The operation.
        operation: &'static str,
        /// The device of the object.
        left: String,
        /// The device of the stream.
        right: String,
    },
    /// The stream is being captured, and this cannot be part of a graph.
    #[error("cannot {operation} while its stream is being captured\ntry: {advice}")]
    Capturing {
        /// The operation.
        operation: &'static str,
        /// What the user can do.
        advice: &'static str,
    },
    /// The host is reading or writing host memory of a graph.
    #[error(
        "cannot launch the graph: the host holds one of its host slots\ntry: return from `with` first"
    )]
    SlotHeld,
    /// The context was reset, and the objects made in it were destroyed.
    #[error(
        "the device's context was reset, and what was made in it was destroyed\ntry: create it again in another context"
    )]
    ContextReset,
    /// A host callback called into CUDA, which CUDA forbids.
    #[error("a host callback must not call CUDA\ntry: hand the work to another thread")]
    InCallback,
    /// A host callback panicked; its stream continued.
    #[error("a host callback panicked: {message}")]
    CallbackPanicked {
        /// The panic's message.
        message: String,
    },
    /// A value is not acceptable.
    #[error("cannot {operation}: {reason}")]
    Value {
        /// The operation.
        operation: &'static str,
        /// Why not.
        reason: String,
    },
}

/// A driver call that returned an error.
#[derive(Debug)]
pub struct DriverFailure {
    /// The function called.
    pub call: &'static str,
    /// The status it returned.
    pub code: CUresult,
    /// The operation, for instance `copy 16 B to device 0`.
    pub doing: String,
}

/// An allocation that did not fit.
#[derive(Debug)]
pub struct OutOfMemory {
    /// The function called.
    pub call: &'static str,
    /// Requested bytes.
    pub asked_bytes: u64,
    /// Free and total bytes of the device right after, if the driver reported them.
    pub free_and_total_bytes: Option<(u64, u64)>,
    /// Bytes that were released and are not free yet
    /// ([`Context::deferred_free_bytes`](crate::Context::deferred_free_bytes)).
    pub deferred_free_bytes: u64,
    /// The device, for instance `device 0 (NVIDIA H200)`.
    pub device: String,
}

/// Why an image cannot be passed to the driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {kind} is corrupt: {reason}\ntry: build it again; it may have been truncated or is another kind of file"
)]
pub struct ImageError {
    /// `PTX`, `cubin` or `fatbin`.
    pub kind: &'static str,
    /// What is wrong, with positions in bytes.
    pub reason: String,
}

/// A module that the driver rejected, with its compiler's log.
#[derive(Debug)]
pub struct LoadFailure {
    /// The status the driver returned.
    pub code: CUresult,
    /// The image, for instance `PTX, 1.2 KiB`.
    pub what: String,
    /// The compiler's error log; empty if it wrote none.
    pub log: String,
}

/// Arguments that do not fit a kernel.
#[derive(Debug)]
pub struct ArgumentError {
    /// The kernel's name.
    pub kernel: String,
    /// The sizes in bytes that the kernel declares.
    pub expected: Vec<usize>,
    /// The sizes in bytes that were passed.
    pub given: Vec<usize>,
}

impl Error {
    /// The driver's status, if the error came from the driver.
    pub fn code(&self) -> Option<CUresult> {
        match self {
            Self::Driver(failure) => Some(failure.code),
            Self::OutOfMemory(_) => Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            Self::Load(failure) => Some(failure.code),
            _ => None,
        }
    }

    /// Whether the context is lost: every later call that uses it returns the same error, and only
    /// a new process (or resetting the device) helps.
    pub fn is_sticky(&self) -> bool {
        self.code().is_some_and(is_sticky)
    }

    /// Whether the call was made in a host callback, of this crate's or of another library's, where
    /// the driver refuses calls.
    pub fn is_in_callback(&self) -> bool {
        matches!(self, Self::InCallback) || self.code() == Some(CUresult::CUDA_ERROR_NOT_PERMITTED)
    }

    /// Whether a call about work was refused before the work was looked at: in a host callback,
    /// because of a capture, or for lack of host memory. It implies nothing about the work.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Driver(failure) => is_refusal(failure.code),
            Self::Capturing { .. } | Self::InCallback | Self::Missing(_) => true,
            _ => false,
        }
    }
}

/// Whether a status means that nothing was waited for: a capture is in progress, the thread runs
/// another library's host callback, or there was no memory for the call.
pub(crate) fn is_refusal(code: CUresult) -> bool {
    let capturing = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0
        ..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0;
    capturing.contains(&code.0)
        || matches!(
            code,
            CUresult::CUDA_ERROR_NOT_PERMITTED | CUresult::CUDA_ERROR_OUT_OF_MEMORY
        )
}

/// Whether a status means that the context is lost.
pub fn is_sticky(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
    )
}

/// A status as its name and number.
struct NamedStatus(CUresult);

impl fmt::Display for NamedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.name() {
            Some(name) => write!(f, "{name} ({})", self.0.0),
            None => write!(f, "error {}", self.0.0),
        }
    }
}

/// A remedy for a status.
fn advice(code: CUresult) -> Option<&'static str> {
    Some(match code {
        code if is_sticky(code) => {
            "the context is lost and returns this until the process exits; \
             `fercuda check` runs the kernel on the software device and reports where it failed"
        }
        CUresult::CUDA_ERROR_NOT_FOUND => {
            "look for a spelling mistake; C++ names are mangled unless extern \"C\""
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            "compile for this device's architecture, or ship PTX"
        }
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "a newer driver, or an older compiler",
        CUresult::CUDA_ERROR_NOT_SUPPORTED => "ask the device's attributes first",
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
            "end the capture first, or capture in relaxed mode"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => "reboot, or reload the NVIDIA kernel module",
        CUresult::CUDA_ERROR_NO_DEVICE => {
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or set FERCUDA_DEVICE=soft"
        }
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
            "fewer threads a block, or less dynamic shared memory"
        }
        _ => return None,
    })
}

impl fmt::Display for DriverFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot {}: {} returned {}",
            self.doing,
            self.call,
            NamedStatus(self.code)
        )?;
        match advice(self.code) {
            Some(advice) => write!(f, "\ntry: {advice}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot allocate {} on {}",
            ByteSize(self.asked_bytes),
            self.device
        )?;
        match self.free_and_total_bytes {
            Some((free, total)) => {
                write!(f, ": {} of {} are free", ByteSize(free), ByteSize(total))?
            }
            None => write!(f, ": {} returned CUDA_ERROR_OUT_OF_MEMORY (2)", self.call)?,
        }
        if self.deferred_free_bytes > 0 {
            write!(
                f,
                "\n{} were released, and are freed when no kernel is resident on the device and no capture runs\n\
                 try: stop the dispatchers, synchronize, then allocate again; this call changed nothing",
                ByteSize(self.deferred_free_bytes)
            )
        } else {
            write!(
                f,
                "\ntry: free buffers or trim pools, then allocate again; this call changed nothing"
            )
        }
    }
}

impl fmt::Display for LoadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log.trim_end();
        let first = log
            .lines()
            .find(|line| line.contains("error"))
            .or_else(|| log.lines().next());
        match first {
            Some(line) => write!(f, "cannot load the module ({}): {}", self.what, line.trim())?,
            None => write!(f, "cannot load the module ({})", self.what)?,
        }
        write!(f, "\n  the driver returned {}", NamedStatus(self.code))?;
        if log.lines().count() > 1 {
            for line in log.lines() {
                write!(f, "\n  | {line}")?;
            }
        }
        match advice(self.code) {
            Some(advice) => write!(f, "\ntry: {advice}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            expected,
            given,
        } = self;
        if expected.len() != given.len() {
            return write!(
                f,
                "cannot launch `{kernel}`: it takes {} arguments and {} were passed\n  \
                 sizes it declares: {expected:?} bytes, sizes passed: {given:?} bytes",
                expected.len(),
                given.len()
            );
        }
        for (index, (expected, given)) in expected.iter().zip(given).enumerate() {
            if expected != given {
                return write!(
                    f,
                    "cannot launch `{kernel}`: argument {index} is {expected} bytes wide \
                     in the kernel and {given} as passed"
                );
            }
        }
        write!(f, "cannot launch `{kernel}`: its arguments do not fit")
    }
}

/// A size in a readable unit, such as `2.5 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// Turns the status of a driver call into a [`Result`]. `doing` is only called on an error.
#[inline]
pub(crate) fn check(
    result: CallResult,
    call: &'static str,
    doing: impl FnOnce() -> String,
) -> Result<()> {
    match result {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        other => Err(failed(other, call, doing)),
    }
}

#[cold]
fn failed(result: CallResult, call: &'static str, doing: impl FnOnce() -> String) -> Error {
    match result {
        Ok(code) => Error::Driver(Box::new(DriverFailure {
            call,
            code,
            doing: doing(),
        })),
        Err(missing) => Error::Missing(missing),
    }
}

/// Calls one function of the table and checks its status: `call!(driver, cuInit(0), "initialise the
/// driver")?`. Needs `unsafe`.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?), $($doing:tt)+) => {
        $crate::error::check(
            $driver.$name($($arg),*),
            stringify!($name),
            || format!($($doing)+),
        )
    };
}
pub(crate) use call;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_context_is_recognisable_and_a_bad_value_is_not() {
        let error = |code| {
            Error::Driver(Box::new(DriverFailure {
                call: "cuStreamSynchronize",
                code,
                doing: "wait".into(),
            }))
        };
        assert!(error(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).is_sticky());
        assert!(error(CUresult::CUDA_ERROR_LAUNCH_FAILED).is_sticky());
        assert!(!error(CUresult::CUDA_ERROR_INVALID_VALUE).is_sticky());
        assert!(!error(CUresult::CUDA_ERROR_OUT_OF_MEMORY).is_sticky());
    }

    #[test]
    fn a_message_has_operation_device_numbers_and_remedy() {
        let error = |deferred_free_bytes| {
            Error::OutOfMemory(Box::new(OutOfMemory {
                call: "cuMemAlloc_v2",
                asked_bytes: 6 << 30,
                free_and_total_bytes: Some((5 << 29, 8 << 30)),
                deferred_free_bytes,
                device: "device 0 (feRcuda software device)".into(),
            }))
        };
        assert_eq!(
            error(3 << 30).to_string(),
            "cannot allocate 6.0 GiB on device 0 (feRcuda software device): 2.5 GiB of 8.0 GiB are free\n\
             3.0 GiB were released, and are freed when no kernel is resident on the device and no capture runs\n\
             try: stop the dispatchers, synchronize, then allocate again; this call changed nothing"
        );
        assert_eq!(
            error(0).to_string(),
            "cannot allocate 6.0 GiB on device 0 (feRcuda software device): 2.5 GiB of 8.0 GiB are free\n\
             try: free buffers or trim pools, then allocate again; this call changed nothing"
        );
    }

    #[test]
    fn the_first_error_of_a_rejected_module_comes_first() {
        let failure = LoadFailure {
            code: CUresult::CUDA_ERROR_INVALID_PTX,
            what: "PTX, 80 B".into(),
            log: "ptxas info: hello\nptxas application ptx input, line 3; fatal : error near 'addd'\n".into(),
        };
        let text = failure.to_string();
        let first = text.lines().next().unwrap();
        assert_eq!(
            first,
            "cannot load the module (PTX, 80 B): ptxas application ptx input, line 3; fatal : error near 'addd'"
        );
        assert!(text.contains("CUDA_ERROR_INVALID_PTX (218)"), "{text}");
    }

    #[test]
    fn argument_errors_name_the_argument_and_both_sizes() {
        let error = |expected: &[usize], given: &[usize]| {
            ArgumentError {
                kernel: "k".into(),
                expected: expected.into(),
                given: given.into(),
            }
            .to_string()
        };
        assert!(error(&[8, 4], &[8]).contains("takes 2 arguments and 1 were passed"));
        assert!(
            error(&[8, 4], &[8, 8])
                .contains("argument 1 is 4 bytes wide in the kernel and 8 as passed")
        );
    }

    #[test]
    fn sizes_are_shown_in_readable_units() {
        let shown = |bytes| ByteSize(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1536), "1.5 KiB");
        assert_eq!(shown(8 << 30), "8.0 GiB");
    }
}
