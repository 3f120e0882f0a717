//! Errors of readers, and the one warning a writer can give.
//!
//! Invariant: a message says what failed, where, and what to try.

use std::io;
use std::path::PathBuf;

use crate::format::{FILE_BYTES, VERSION};

/// The result of finding or reading ledgers.
pub type Result<T> = std::result::Result<T, Error>;

/// Why ledgers cannot be found or one cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No usable folder for ledgers exists.
    #[error(
        "no folder for ledgers: XDG_RUNTIME_DIR is not a private folder, \
         /run/user/{uid} neither, and HOME is not set\n\
         try: set HOME, or XDG_RUNTIME_DIR to a folder of yours with mode 0700"
    )]
    NoFolder {
        /// The user's id.
        uid: u32,
    },
    /// Other users could read or write the folder; nothing was read.
    #[error(
        "{} is not private: it belongs to user {owner} and has mode {mode:04o}, \
         but has to belong to user {uid} with mode 0700\n\
         try: chown {uid} and chmod 700 if you know what is in it, else remove it", path.display()
    )]
    NotPrivate {
        /// The folder or file.
        path: PathBuf,
        /// The user that owns it.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The current user's id.
        uid: u32,
    },
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// The attempted operation.
        doing: &'static str,
        /// The path it was attempted on.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not a ledger, or one this program cannot read.
    #[error("cannot read {}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
}

impl Error {
    pub(crate) fn system(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::System {
            doing,
            path,
            source,
        }
    }
}

/// Why bytes are not a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes are too few or do not begin with the magic number.
    #[error("it is not a ledger\ntry: remove it, if nothing else put it there")]
    NotALedger,
    /// The bytes are a ledger of another version.
    #[error(
        "its format is version {found}, this program reads version {VERSION}\n\
         try: the fercuda that the process runs under"
    )]
    Version {
        /// Its version.
        found: u64,
    },
    /// The bytes are too many or too few.
    #[error(
        "it is damaged: {found} B long, version {VERSION} has {FILE_BYTES} B\n\
         try: remove it"
    )]
    Damaged {
        /// The actual or declared size, in bytes.
        found: u64,
    },
    /// The tables have other numbers of rows.
    #[error(
        "it is damaged: its tables have other sizes than those of version {VERSION}\ntry: remove it"
    )]
    Rows,
}

/// Why a ledger is in memory that no reader can see. The writer works all the same.
#[derive(Debug, thiserror::Error)]
#[error(
    "this process's memory ledger is not visible to readers: {reason}{}",
    advice(reason)
)]
pub struct LedgerWarning {
    /// The error on the file.
    #[source]
    pub reason: Error,
}

/// What to try, for reasons that suggest nothing themselves.
fn advice(reason: &Error) -> &'static str {
    match reason {
        Error::System { .. } => {
            "\ntry: a private folder with space for 1 MiB, named by XDG_RUNTIME_DIR"
        }
        _ => "",
    }
}
