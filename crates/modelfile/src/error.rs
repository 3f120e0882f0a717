//! Errors of reading and writing model files.

use std::io;
use std::path::PathBuf;

use fercuda_tensor::BlockError;

/// The result of an operation on model files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the system failed.
    #[error("cannot {action} {path}: {source}{}", advice(.source), path = .path.display())]
    Io {
        /// What was tried, as `open`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The bytes contradict their format: the file is damaged, or was never of it.
    #[error("byte {at}: {what}\ntry: {hint}")]
    Malformed {
        /// Offset of what is wrong.
        at: u64,
        /// What is wrong, with numbers.
        what: String,
        /// What to try.
        hint: &'static str,
    },
    /// A format, version or type that is not known here.
    #[error("{what}\ntry: {hint}")]
    Unsupported {
        /// What it is.
        what: String,
        /// What to try.
        hint: &'static str,
    },
    /// A tensor that the model does not have.
    #[error("there is no tensor {name:?} among {count}{near}\ntry: a name that the model lists")]
    NoTensor {
        /// The name.
        name: String,
        /// How many there are.
        count: usize,
        /// `; one is "..."`, or empty.
        near: String,
    },
    /// Tensors or metadata that do not belong together, or that a format does not take.
    #[error("{what}\ntry: {hint}")]
    Mismatch {
        /// What does not fit, with numbers.
        what: String,
        /// What to try.
        hint: &'static str,
    },
    /// An error of one file of several.
    #[error("{path}: {source}", path = .path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A conversion of blocks.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// The hint for files that are shorter than they say, or say nonsense.
pub(crate) const DAMAGED: &str = "get the file again: it is cut short, damaged, or of another kind";

impl Error {
    pub(crate) fn malformed(at: usize, what: impl Into<String>) -> Error {
        Error::Malformed {
            at: at as u64,
            what: what.into(),
            hint: DAMAGED,
        }
    }

    pub(crate) fn unsupported(what: impl Into<String>, hint: &'static str) -> Error {
        Error::Unsupported {
            what: what.into(),
            hint,
        }
    }

    pub(crate) fn mismatch(what: impl Into<String>, hint: &'static str) -> Error {
        Error::Mismatch {
            what: what.into(),
            hint,
        }
    }

    /// The error with the file's name before it.
    pub(crate) fn in_file(self, path: &std::path::Path) -> Error {
        match self {
            Error::Io { .. } | Error::InFile { .. } => self,
            _ => Error::InFile {
                path: path.to_owned(),
                source: Box::new(self),
            },
        }
    }
}

/// A name in quotes, cut where it is long: a file may claim a whole part of it as one.
pub(crate) fn shown(name: impl AsRef<[u8]>) -> String {
    const MOST: usize = 100;
    let name = name.as_ref();
    let text = String::from_utf8_lossy(&name[..name.len().min(MOST)]);
    match name.len() > MOST {
        true => format!("{text:?}... ({} bytes)", name.len()),
        false => format!("{text:?}"),
    }
}

/// What to try where a file cannot be reached.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "\ntry: the path of a file or a folder that is there",
        io::ErrorKind::PermissionDenied => "\ntry: a file that this user may open",
        _ => "",
    }
}
