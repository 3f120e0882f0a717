//! Errors of the compiler, its log formatted under the message.

use fercuda_cuda_sys::OpenError;
use fercuda_cuda_sys::nvrtc::MissingNvrtc;

pub(crate) type Result<T> = std::result::Result<T, NvrtcError>;

/// Why there is no compiled program.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// NVRTC was not found.
    #[error(transparent)]
    NotFound(#[from] OpenError),
    /// The library lacks a function.
    #[error(transparent)]
    Missing(#[from] MissingNvrtc),
    /// The program has errors.
    #[error("{}", refused(name, target, log))]
    Refused {
        /// The program's name.
        name: String,
        /// The target of the compilation, for instance `compute_90`.
        target: String,
        /// The compiler's log.
        log: String,
    },
    /// NVRTC returned another error.
    #[error("cannot compile `{name}`: {call} returned {status}{}", under(log))]
    Call {
        /// The program's name.
        name: String,
        /// The function called.
        call: &'static str,
        /// The status it returned.
        status: String,
        /// The compiler's log, if it wrote one.
        log: String,
    },
    /// Source, name or option contains a zero byte.
    #[error("cannot compile `{name}`: {what} contains a zero byte")]
    ZeroByte {
        /// The program's name.
        name: String,
        /// The part that contains it.
        what: String,
    },
    /// An architecture in an unknown format.
    #[error("{text:?} is no architecture\ntry: sm_90, compute_90, 90 or 90a")]
    Architecture {
        /// The input.
        text: String,
    },
}

fn refused(name: &str, target: &str, log: &str) -> String {
    let first = first_error(log).unwrap_or("the compiler wrote no log");
    format!(
        "cannot compile `{name}` for {target}: {first}{}",
        under(log)
    )
}

/// The first line of a log that is an error.
fn first_error(log: &str) -> Option<&str> {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    lines()
        .find(|line| line.contains(": error") || line.contains("error:") || line.contains("fatal"))
        .or_else(|| lines().next())
}

/// A log formatted for display under a message; empty if it has one line only.
fn under(log: &str) -> String {
    let log = log.trim_end();
    if log.lines().count() < 2 {
        return String::new();
    }
    log.lines().map(|line| format!("\n  | {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_of_a_log_comes_first() {
        let log = "k.cu(1): warning #177-D: unused\n\nk.cu(3): error: identifier \"x\" is undefined\n1 error detected\n";
        let error = NvrtcError::Refused {
            name: "k.cu".into(),
            target: "compute_90".into(),
            log: log.into(),
        };
        let text = error.to_string();
        assert_eq!(
            text.lines().next().unwrap(),
            "cannot compile `k.cu` for compute_90: k.cu(3): error: identifier \"x\" is undefined"
        );
        assert!(text.contains("\n  | k.cu(1): warning"), "{text}");
    }
}
