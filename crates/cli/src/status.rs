//! Exit statuses of `fercuda`, and the errors that lead to each.
//!
//! Invariant: a status means the same in every command; `run` ends with its program's status.

use std::fmt;
use std::process::ExitCode;

use fercuda_cuda::sys::Missing;
use fercuda_cuda::sys::types::CUresult;

/// The exit status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    Success = 0,
    /// Something was found, or failed.
    Failure = 1,
    /// The command could not be run: invalid arguments or variables, or something that is not
    /// implemented.
    Usage = 2,
    /// A device of an array has failed (`vram df`, `stat`).
    Degraded = 3,
    /// The program to run cannot be executed, as in a shell.
    NotExecutable = 126,
    /// The program to run was not found, as in a shell.
    NotFound = 127,
    /// Ctrl-C ended the work, as a shell reports SIGINT.
    Interrupted = 130,
    /// The reader of standard output has closed it, as a shell reports SIGPIPE.
    PipeClosed = 141,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> ExitCode {
        ExitCode::from(status as u8)
    }
}

impl ExitStatus {
    /// Success, or failure if something was found.
    pub(crate) fn of_findings(any: bool) -> ExitStatus {
        match any {
            true => ExitStatus::Failure,
            false => ExitStatus::Success,
        }
    }

    /// The status for an error: `Usage` if it is one, also below a context; else `otherwise`.
    pub(crate) fn of_error(error: &anyhow::Error, otherwise: ExitStatus) -> ExitStatus {
        let is_usage = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<UsageError>()
                || cause.is::<Missing>()
                || cause.downcast_ref().is_some_and(is_usage_of_cuda)
        };
        match error.chain().any(is_usage) {
            true => ExitStatus::Usage,
            false => otherwise,
        }
    }
}

/// Whether an error of the driver is about a variable or about what is not implemented.
fn is_usage_of_cuda(error: &fercuda_cuda::Error) -> bool {
    use fercuda_cuda::Error;
    let not_implemented = Some(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    matches!(error, Error::Selection { .. } | Error::Missing(_)) || error.code() == not_implemented
}

/// An error of the command line: arguments that do not go together, or a file that is not written.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Returns a [`UsageError`] from the function, as `anyhow::bail!` does another error.
macro_rules! bail_usage {
    ($($arguments:tt)*) => {
        return Err($crate::status::UsageError(format!($($arguments)*)).into())
    };
}
pub(crate) use bail_usage;

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn a_usage_error_keeps_its_status_below_contexts() {
        let usage = || -> anyhow::Result<()> { bail_usage!("--a requires --b\ntry: {}", "--b") };
        let error = usage().context("cannot do it").unwrap_err();
        let status = |error: &anyhow::Error| ExitStatus::of_error(error, ExitStatus::Failure);
        assert_eq!(status(&error), ExitStatus::Usage);
        assert_eq!(
            format!("{error:#}"),
            "cannot do it: --a requires --b\ntry: --b"
        );
        assert_eq!(status(&anyhow!("another")), ExitStatus::Failure);
        let selection = fercuda_cuda::Error::Selection {
            value: "tpu".to_owned(),
        };
        assert_eq!(status(&selection.into()), ExitStatus::Usage);
    }
}
