//! What can go wrong.

use std::ops::Range;
use std::path::PathBuf;

use fercuda_cuda::ByteSize;

use crate::layout::DATA_ROWS;

/// A result here.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// The kernels could not be compiled.
    #[error("the kernels of the error correction: {0}\ntry: --ecc off, which has none")]
    Compile(#[from] fercuda_nvrtc::NvrtcError),
    /// The compiler has given no code.
    #[error(
        "the compiler of the error correction's kernels gave nothing\ntry: another NVRTC, or --ecc off"
    )]
    NoCode,
    /// The device is too old.
    #[error(
        "the device has compute capability {}.{}, and the kernels need {}.{}\ntry: --ecc off",
        capability.0, capability.1, oldest.0, oldest.1
    )]
    Device {
        /// What it has.
        capability: (u32, u32),
        /// What is needed.
        oldest: (u32, u32),
    },
    /// There is no such block.
    #[error("block {block} is beyond the last of {blocks}")]
    NoBlock {
        /// What was named.
        block: usize,
        /// How many there are.
        blocks: usize,
    },
    /// Blocks of data alone, and a worker that looks at parity and records.
    #[error("the blocks have no parity and no records, which the kernels need")]
    Uncoded,
    /// There are no such rows.
    #[error("rows {} to {} are not within the {DATA_ROWS} rows of data", rows.start, rows.end)]
    Rows {
        /// What was named.
        rows: Range<usize>,
    },
    /// Rows reach beyond the page-locked memory.
    #[error(
        "{rows} rows at byte {at} are not within the {bytes} bytes of page-locked memory, or not at a multiple of 16"
    )]
    Staging {
        /// From here on.
        at: usize,
        /// So many.
        rows: usize,
        /// What there is.
        bytes: usize,
    },
    /// More is wrong in a block than can be corrected.
    #[error("block {block} has more wrong than can be corrected")]
    Lost {
        /// Which.
        block: u32,
    },
    /// Rows of a block were to be copied, and are not what it says of them.
    #[error(
        "rows of block {block} are not what their sums say\ntry: to read them, which corrects them"
    )]
    Source {
        /// Which.
        block: u32,
    },
    /// The driver refused a copy.
    #[error("the driver refused to copy rows: {0}")]
    Copy(String),
    /// More blocks than a worker takes at once.
    #[error("{given} blocks at once, where the worker takes {slots}")]
    TooMuch {
        /// What was given.
        given: usize,
        /// What it takes.
        slots: usize,
    },
    /// One block in two works of one call.
    #[error("block {block} is named twice, and both would change it at the same time")]
    Twice {
        /// What was named.
        block: usize,
    },
    /// Rows of a block that the same call changes.
    #[error("rows of block {block} were to be taken, which the same call changes")]
    Changing {
        /// What was named.
        block: usize,
    },
    /// Rows that are read were to go into a block.
    #[error("rows that are read were to go into block {block}, whose parity they would not be in")]
    Into {
        /// What was named.
        block: usize,
    },
    /// Blocks of one context, and a worker of another.
    #[error("the blocks are another device's than the worker")]
    OtherDevice,
    /// The worker is of no use any more.
    #[error(
        "the worker's context has failed while it was waited for\ntry: a new worker, when that is reset"
    )]
    Failed,
    /// All of several devices have failed.
    #[error(
        "none of the filesystem's devices is left: all of them have failed\ntry: fercuda vram umount, and mount it again where one works"
    )]
    NoDevice,
    /// The device has not as much memory.
    #[error(
        "{} of files need {} of {device}, where {} of {} are free\ntry: a smaller --size, or --ecc off",
        ByteSize(*size_bytes), ByteSize(*needed_bytes), ByteSize(*free_bytes), ByteSize(*total_bytes)
    )]
    Room {
        /// Which.
        device: String,
        /// What was asked for.
        size_bytes: u64,
        /// What that takes.
        needed_bytes: u64,
        /// What is free.
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
    /// Bytes of a borrowed file that are in several pieces.
    #[error(
        "the {len} bytes from byte {offset} on do not lie side by side in the device's memory\ntry: each of the file's segments by itself"
    )]
    Apart {
        /// The first.
        offset: u64,
        /// So many.
        len: u64,
    },
    /// A file was borrowed to be read.
    #[error("the file was borrowed to be read\ntry: to borrow it to write there")]
    ReadOnly,
    /// More than there can be.
    #[error("{blocks} blocks are more than there are addresses for")]
    Size {
        /// What was asked for.
        blocks: usize,
    },
}
