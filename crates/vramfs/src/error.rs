//! Errors of the filesystem and its device memory.

use std::ops::Range;
use std::path::PathBuf;

use fercuda_cuda::ByteSize;
use fercuda_cuda::sys::types::CUresult;
use rustix::io::Errno;

use crate::layout::DATA_ROWS;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the driver.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// The kernels could not be compiled.
    #[error(
        "cannot compile the kernels of the error correction: {0}\ntry: --ecc off, which needs none"
    )]
    Compile(#[from] fercuda_nvrtc::NvrtcError),
    /// The kernels of the release cannot be used.
    #[error(transparent)]
    Shipped(#[from] crate::shipped::ShippedError),
    /// The compiler returned no code.
    #[error(
        "the compiler returned no code for the error correction's kernels\ntry: another NVRTC, or --ecc off"
    )]
    NoCode,
    /// The device is too old.
    #[error(
        "the device has compute capability {}.{}, and the kernels need {}.{}\ntry: --ecc off",
        capability.0, capability.1, oldest.0, oldest.1
    )]
    Device {
        /// The device's compute capability.
        capability: (u32, u32),
        /// The lowest supported one.
        oldest: (u32, u32),
    },
    /// The block does not exist.
    #[error("block {block} is beyond the last of {blocks}")]
    NoBlock {
        /// The one that was named.
        block: usize,
        /// How many blocks there are.
        blocks: usize,
    },
    /// Blocks without a code, for a worker that needs parity and records.
    #[error("the blocks have no parity and no records, which the kernels need")]
    Uncoded,
    /// The rows do not exist.
    #[error("rows {} to {} are not within the {DATA_ROWS} rows of data", rows.start, rows.end)]
    Rows {
        /// The one that was named.
        rows: Range<usize>,
    },
    /// Rows reach beyond the page-locked memory.
    #[error(
        "{rows} rows at byte {at} are not within the {bytes} bytes of page-locked memory, or not at a multiple of 16"
    )]
    Staging {
        /// The first byte.
        at: usize,
        /// The number of rows.
        rows: usize,
        /// Bytes of the page-locked memory.
        bytes: usize,
    },
    /// A block has more errors than can be corrected.
    #[error("block {block} has more errors than can be corrected")]
    Lost {
        /// The block.
        block: u32,
    },
    /// Rows of a block, to be copied, fail their checksums.
    #[error("rows of block {block} fail their checksums\ntry: to read them, which corrects them")]
    Source {
        /// The block.
        block: u32,
    },
    /// The driver refused a copy.
    #[error("the driver refused to copy rows: {0}")]
    Copy(String),
    /// More blocks than a worker takes at once.
    #[error("{given} blocks in one call, of which the worker takes {slots}")]
    TooMuch {
        /// Blocks in the call.
        given: usize,
        /// Blocks that a call takes.
        slots: usize,
    },
    /// A block is named twice in one call.
    #[error("block {block} is named twice, and both would change it at the same time")]
    Twice {
        /// The one that was named.
        block: usize,
    },
    /// Rows to be copied are of a block that the same call changes.
    #[error("rows to be copied are of block {block}, which the same call changes")]
    Changing {
        /// The one that was named.
        block: usize,
    },
    /// Rows to be read have a block as their destination.
    #[error("rows cannot be read into block {block}: its parity would not include them")]
    Into {
        /// The one that was named.
        block: usize,
    },
    /// The blocks are of another context than the worker.
    #[error("the blocks are of another device than the worker")]
    OtherDevice,
    /// The worker is unusable.
    #[error(
        "the worker's context failed during a wait\ntry: a new worker, when the context is reset"
    )]
    Failed,
    /// All of several devices have failed.
    #[error(
        "none of the filesystem's devices is left: all of them have failed\ntry: fercuda vram umount, and mount it again where one works"
    )]
    NoDevice,
    /// The device has not enough free memory.
    #[error(
        "{} of files need {} of {device}, where {} of {} are free\ntry: a smaller --size, or --ecc off",
        ByteSize(*size_bytes), ByteSize(*needed_bytes), ByteSize(*free_bytes), ByteSize(*total_bytes)
    )]
    Room {
        /// The device.
        device: String,
        /// What was asked for.
        size_bytes: u64,
        /// Bytes of device memory that this takes.
        needed_bytes: u64,
        /// Free device memory.
        free_bytes: u64,
        /// What there is.
        total_bytes: u64,
    },
    /// It cannot be mounted there, or unmounted.
    #[error("{}: {why}", at.display())]
    Mount {
        /// Where.
        at: PathBuf,
        /// Why, and what to try.
        why: String,
    },
    /// The bytes of a borrowed file are in several pieces.
    #[error(
        "the {len} bytes from byte {offset} on are not contiguous in the device's memory\ntry: the file's segments, one at a time"
    )]
    Apart {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// The file was borrowed read-only.
    #[error("the file was borrowed read-only\ntry: to borrow it for writing")]
    ReadOnly,
    /// More blocks than there are addresses for.
    #[error("{blocks} blocks are more than there are addresses for")]
    Size {
        /// What was asked for.
        blocks: usize,
    },
}

impl Error {
    /// The errno that a system call returns for it. Lost data and a failed device are both `EIO`;
    /// `ENOMEM` if the host or the device has no memory for what a request needs besides the
    /// file's, where a retry may succeed.
    pub(crate) fn to_errno(&self) -> Errno {
        match self {
            Self::Cuda(error) if error.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                Errno::NOMEM
            }
            _ => Errno::IO,
        }
    }
}
