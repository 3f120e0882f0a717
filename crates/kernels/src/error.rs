//! Errors of compiling and running kernels.

use std::sync::Arc;

use fercuda_nvrtc::NvrtcError;
use fercuda_tensor::LayoutError;

/// Error of a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// NVRTC is not there, or refuses the kernel.
    #[error("kernel {kernel}: {error}")]
    Compile {
        /// The kernel's file.
        kernel: &'static str,
        /// The cause.
        #[source]
        error: Arc<NvrtcError>,
    },
    /// The bound memory does not fit.
    #[error(transparent)]
    Bound(#[from] fercuda_jit::Error),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// A part of a layout, or a layout of memory between kernels, that cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Views that a kernel cannot have together.
    #[error("a kernel's views do not go together: {what}")]
    Views {
        /// The problem.
        what: String,
    },
    /// More work than a grid of blocks can have.
    #[error("{what} are {count}, one launch has at most {most}\ntry: parts of the operands")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        count: u64,
        /// The largest number.
        most: u64,
    },
}
