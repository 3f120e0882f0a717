//! The error enum of the crate: library, operation, numbers and a remedy in each variant.

use std::fmt;
use std::path::PathBuf;

use fercuda_cuda_sys::OpenError;

use crate::version::LibraryVersion;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library was not found, or every one that was is unusable.
    #[error(transparent)]
    NotFound(#[from] OpenError),
    /// The library lacks a function; nothing was called.
    #[error("{0}")]
    MissingFunction(Box<MissingFunction>),
    /// A call of the library returned an error.
    #[error("{0}")]
    Call(Box<LibraryCallFailure>),
    /// An argument is not acceptable; the library was not called.
    #[error("cannot {operation}: {reason}")]
    Refused {
        /// The operation.
        operation: &'static str,
        /// Why not, with numbers, and what to try.
        reason: String,
    },
    /// The library has no algorithm for a product, within the given workspace and alignments.
    #[error(
        "{library} has no algorithm for {product} within {workspace_bytes} bytes of workspace\n\
         try: a larger workspace, leading dimensions that are multiples of 16 bytes, or (8-bit \
         types) A row-major and B column-major"
    )]
    NoAlgorithm {
        /// The library and its version.
        library: String,
        /// The product, with its types and extents.
        product: String,
        /// The largest workspace that was allowed.
        workspace_bytes: u64,
    },
    /// The context is of the software device, on which NVIDIA's libraries do not run.
    #[error(
        "{library} needs a GPU, and the context is of {device}\n\
         try: FERCUDA_DEVICE=gpu on a machine with NVIDIA's driver"
    )]
    SoftwareDevice {
        /// The library.
        library: &'static str,
        /// The context's device.
        device: String,
    },
    /// An error of the driver layer.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
}

/// A function that a library lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingFunction {
    /// The library.
    pub library: &'static str,
    /// The file that it was opened from.
    pub file: PathBuf,
    /// The symbol that was looked for.
    pub symbol: &'static str,
    /// The library's version.
    pub found: LibraryVersion,
    /// The first version that has the function.
    pub wanted: LibraryVersion,
}

impl fmt::Display for MissingFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            library,
            file,
            symbol,
            found,
            wanted,
        } = self;
        write!(
            f,
            "{library} {found} has no `{symbol}`, which is in {wanted} and later ({})\n\
             try: {library} {wanted} or later",
            file.display()
        )
    }
}

/// A call of a library that returned an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryCallFailure {
    /// The library.
    pub library: &'static str,
    /// The function called.
    pub call: &'static str,
    /// The number that it returned.
    pub code: i32,
    /// The name of that number.
    pub status: &'static str,
    /// The operation.
    pub doing: String,
}

impl fmt::Display for LibraryCallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            library,
            call,
            code,
            status,
            doing,
        } = self;
        write!(
            f,
            "cannot {doing}: {call} of {library} returned {status} ({code})"
        )
    }
}

impl Error {
    pub(crate) fn refused(operation: &'static str, reason: impl Into<String>) -> Self {
        Self::Refused {
            operation,
            reason: reason.into(),
        }
    }
}
