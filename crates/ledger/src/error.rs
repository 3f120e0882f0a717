//! What can go wrong: to a reader as errors, to a writer as one warning.
//!
//! Invariant: a message says what, where, and what to try.

use std::io;
use std::path::PathBuf;

use crate::format::{FILE_BYTES, VERSION};

/// The result of what looks for ledgers or reads them.
pub type Result<T> = std::result::Result<T, Error>;

/// Why ledgers cannot be found or one cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nowhere to put ledgers.
    #[error(
        "no folder for ledgers: XDG_RUNTIME_DIR is not a private folder, \
         /run/user/{uid} neither, and HOME is not set\n\
         try: set HOME, or XDG_RUNTIME_DIR to a folder of yours with mode 0700"
    )]
    NoFolder {
        /// The user.
        uid: u32,
    },
    /// The folder could be read or written by others; nothing was read.
    #[error(
        "{} is not private: it belongs to user {owner} and has mode {mode:04o}, \
         but has to belong to user {uid} with mode 0700\n\
         try: chown {uid} and chmod 700 if you know what is in it, else remove it", path.display()
    )]
    NotPrivate {
        /// The folder or file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// The user.
        uid: u32,
    },
    /// The system refused something.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// What was to be done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is no ledger, or one this program cannot read.
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

/// Why bytes are no ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// They are too few or do not begin as a ledger does.
    #[error("it is no ledger\ntry: remove it, if nothing else put it there")]
    NotALedger,
    /// They are a ledger of another version.
    #[error(
        "its format is version {found}, this program reads version {VERSION}\n\
         try: the fercuda that the process runs under"
    )]
    Version {
        /// Its version.
        found: u64,
    },
    /// They are too many or too few.
    #[error(
        "it is damaged: {found} B long, version {VERSION} has {FILE_BYTES} B\n\
         try: remove it"
    )]
    Damaged {
        /// The size that it has or gives, in bytes.
        found: u64,
    },
    /// Their tables have other numbers of rows.
    #[error(
        "it is damaged: its tables have other sizes than those of version {VERSION}\ntry: remove it"
    )]
    Rows,
}

/// Why a ledger is in memory that no reader can see. The writer works all the
/// same.
#[derive(Debug, thiserror::Error)]
#[error(
    "nobody can watch this process's memory ledger: {reason}{}",
    advice(reason)
)]
pub struct Warning {
    /// What was wrong with the file.
    #[source]
    pub reason: Error,
}

/// What to try where the reason itself has nothing to say.
fn advice(reason: &Error) -> &'static str {
    match reason {
        Error::System { .. } => {
            "\ntry: a private folder with space for 1 MiB, named by XDG_RUNTIME_DIR"
        }
        _ => "",
    }
}
