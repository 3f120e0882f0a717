//! Device memory for blocks: a range of addresses, and memory under as much of it as there are
//! blocks, which can grow and shrink while it is used.
//!
//! Invariants: blocks lie side by side from the range's first address on; memory goes only
//! when whoever shrinks says that nobody uses what lies beyond.
//! Elsewhere: what is done with blocks (`engine`), whose they are (`space`).

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use fercuda_cuda::sys::types::CUdevice_attribute;
use fercuda_cuda::{Context, DeviceBuffer, PhysicalMemory, Stream, VirtualRange};

use crate::error::{Error, Result};
use crate::layout::{BLOCK_BYTES, DATA_BYTES};

/// Memory comes in pieces of so many blocks at most: 2048 with a code are 274 MiB.
const PIECE_BLOCKS: usize = 2048;

/// Memory, and where it is mapped.
#[derive(Debug)]
struct Piece {
    memory: PhysicalMemory,
    mapped: DeviceBuffer<u8>,
}

/// Part of the blocks' memory as another process can map it.
#[derive(Debug)]
pub struct Shared {
    /// Where it begins, in bytes from the first block's first.
    pub at: u64,
    /// So many there are.
    pub bytes: u64,
    /// What names it.
    pub memory: OwnedFd,
}

/// Memory for blocks, with or without their code. See the module.
#[derive(Debug)]
pub struct Blocks {
    context: Context,
    range: VirtualRange,
    /// Side by side, from the range's start.
    pieces: Mutex<Vec<Piece>>,
    count: AtomicUsize,
    /// Shared by whoever has the device at work on them.
    at_work: RwLock<()>,
    most: usize,
    block_bytes: usize,
    granularity_bytes: usize,
    /// Other processes can map it: not all drivers know how.
    is_shareable: bool,
}

impl Blocks {
    /// Memory for `count` blocks, and addresses for `most`. A block of the code takes 137 KiB, one
    /// of data alone 128.
    ///
    /// # Errors
    /// [`Error::Size`] for more than there can be; [`Error::Cuda`] where the device has not as much.
    pub fn new(context: &Context, count: usize, most: usize, has_code: bool) -> Result<Self> {
        let block_bytes = match has_code {
            true => BLOCK_BYTES,
            false => DATA_BYTES,
        };
        let granularity_bytes = PhysicalMemory::granularity_bytes(context)?;
        let bytes = most
            .max(1)
            .checked_mul(block_bytes)
            .and_then(|bytes| bytes.checked_next_multiple_of(granularity_bytes))
            .filter(|bytes| isize::try_from(*bytes).is_ok() && count <= most)
            .ok_or(Error::Size { blocks: most })?;
        let shares =
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        let it = Self {
            is_shareable: context.device().attribute(shares)? != 0,
            context: context.clone(),
            range: VirtualRange::reserve(context, bytes)?,
            pieces: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
            at_work: RwLock::new(()),
            most,
            block_bytes,
            granularity_bytes,
        };
        it.grow(count)?;
        Ok(it)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count.load(Acquire)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there can be.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Bytes that each takes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of device memory that they take.
    pub fn bytes(&self) -> usize {
        self.pieces().iter().map(|it| it.mapped.len()).sum()
    }

    /// The context that they are in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Bytes of device memory that so many take: the driver gives it out in parts of its own size.
    pub(crate) fn bytes_of(&self, count: usize) -> usize {
        let bytes = count.saturating_mul(self.block_bytes);
        let whole = bytes.checked_next_multiple_of(self.granularity_bytes);
        whole.unwrap_or(usize::MAX)
    }

    /// Adds memory until there are so many.
    ///
    /// # Errors
    /// As [`Blocks::new`]; then there are as many as before.
    pub fn grow(&self, count: usize) -> Result<()> {
        if count > self.most {
            return Err(Error::Size { blocks: count });
        }
        let mut pieces = self.pieces();
        let before = pieces.len();
        let mut end: usize = pieces.iter().map(|it| it.mapped.len()).sum();
        let needed = self.bytes_of(count);
        let piece = (PIECE_BLOCKS * self.block_bytes).next_multiple_of(self.granularity_bytes);
        while end < needed {
            let bytes = piece.min(needed - end);
            let made = match self.is_shareable {
                true => PhysicalMemory::shareable(&self.context, bytes),
                false => PhysicalMemory::new(&self.context, bytes),
            };
            let made = made.and_then(|memory| {
                let mapped = self.range.map(end, &memory, &[self.context.device()])?;
                Ok(Piece { memory, mapped })
            });
            match made {
                Ok(made) => pieces.push(made),
                Err(error) => {
                    pieces.truncate(before);
                    return Err(error.into());
                }
            }
            end += bytes;
        }
        self.count.fetch_max(count, Release);
        Ok(())
    }

    /// Gives memory back that is not needed for so many. Waits until the device is done with what it was told to do there; blocks
    /// beyond are refused from then on.
    pub(crate) fn shrink(&self, count: usize) {
        let _nobody = self.at_work.write();
        let mut pieces = self.pieces();
        self.count.fetch_min(count, Release);
        let mut end: usize = pieces.iter().map(|it| it.mapped.len()).sum();
        while let Some(last) = pieces.last() {
            end -= last.mapped.len();
            if end < count * self.block_bytes {
                return;
            }
            pieces.pop();
        }
    }

    /// Bytes from `offset` on, counted from the first block's first, as they are in the memory: for who
    /// looks at them or moves them without the code.
    ///
    /// # Errors
    /// Those of the driver, and for bytes beyond the last.
    pub fn peek(&self, offset: usize, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        let end = bytes.len();
        let mut done = 0;
        self.each(offset, end, |piece, range| {
            let part = &mut bytes[done..done + range.len()];
            done += range.len();
            Ok(piece.slice(range)?.copy_to_host(part, stream)?)
        })
    }

    /// Changes bytes without the code: for who injects faults.
    ///
    /// # Errors
    /// As [`Blocks::peek`].
    pub fn poke(&self, offset: usize, bytes: &[u8], stream: &Stream) -> Result<()> {
        let mut done = 0;
        self.each(offset, bytes.len(), |piece, range| {
            let part = &bytes[done..done + range.len()];
            done += range.len();
            Ok(piece.slice_mut(range)?.copy_from_host(part, stream)?)
        })
    }

    fn each(
        &self,
        offset: usize,
        len: usize,
        mut work: impl FnMut(&mut DeviceBuffer<u8>, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let blocks = self.len();
        let end = offset.saturating_add(len);
        if end > blocks * self.block_bytes {
            let block = end.saturating_sub(1) / self.block_bytes;
            return Err(Error::NoBlock { block, blocks });
        }
        let mut first = 0;
        for piece in self.pieces().iter_mut() {
            let last = first + piece.mapped.len();
            let part = offset.max(first)..end.min(last);
            if part.start < part.end {
                work(&mut piece.mapped, part.start - first..part.end - first)?;
            }
            first = last;
        }
        Ok(())
    }

    /// The memory that these blocks lie in, in its order, as other processes can map it; who has it can read and change all that
    /// lies there, other blocks too. `None` where the driver shares none.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn share(&self, blocks: &[u32]) -> Result<Option<Vec<Shared>>> {
        if !self.is_shareable {
            return Ok(None);
        }
        let mut wanted = blocks.to_vec();
        wanted.sort_unstable();
        let mut all = Vec::new();
        let mut first = 0;
        for piece in self.pieces().iter() {
            let last = first + piece.mapped.len();
            // The first block that reaches into it.
            let at = wanted.partition_point(|it| (*it as usize + 1) * self.block_bytes <= first);
            let is_wanted = |it: &u32| (*it as usize) * self.block_bytes < last;
            if wanted.get(at).is_some_and(is_wanted) {
                all.push(Shared {
                    at: first as u64,
                    bytes: piece.mapped.len() as u64,
                    memory: piece.memory.export()?,
                });
            }
            first = last;
        }
        Ok(Some(all))
    }

    /// Where a block begins, for kernels: the next one lies behind it. Whoever has them change it has it alone.
    ///
    /// # Errors
    /// [`Error::NoBlock`].
    pub fn address(&self, block: usize) -> Result<u64> {
        match block < self.len() {
            true => Ok(self.range.address().0 + (block * self.block_bytes) as u64),
            false => Err(Error::NoBlock {
                block,
                blocks: self.len(),
            }),
        }
    }

    /// Memory that is there stays while this is had.
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.at_work.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn pieces(&self) -> MutexGuard<'_, Vec<Piece>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
