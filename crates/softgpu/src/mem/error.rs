//! Errors of memory.

use std::io;

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The operating system refused.
    #[error("cannot {what} ({len} bytes): {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Bytes.
        len: u64,
        /// Why.
        source: io::Error,
    },
    /// No run of addresses is that long.
    #[error("no free range of {len} bytes of addresses")]
    NoAddresses {
        /// Bytes asked for.
        len: u64,
    },
    /// The range is invalid for this operation.
    #[error("range {start:#x}+{len:#x} is {what}")]
    BadRange {
        /// First address.
        start: u64,
        /// Bytes.
        len: u64,
        /// What is wrong.
        what: &'static str,
    },
}

pub(super) fn check_os(rc: i32, what: &'static str, len: u64) -> Result<i32, MemError> {
    if rc < 0 {
        Err(os_error(what, len))
    } else {
        Ok(rc)
    }
}

pub(super) fn os_error(what: &'static str, len: u64) -> MemError {
    MemError::System {
        what,
        len,
        source: io::Error::last_os_error(),
    }
}
