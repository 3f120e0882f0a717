//! Device memory for blocks: a reserved address range, and memory mapped into it.
//!
//! The memory can grow and shrink while it is used.
//!
//! Invariants: blocks are contiguous from the range's first address on; memory is freed only by
//! `shrink`, for which no thread uses the blocks beyond the new end.
//! Elsewhere: operations on blocks (`engine`), their allocation (`space`).

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use fercuda_cuda::sys::types::CUdevice_attribute;
use fercuda_cuda::{Context, DeviceBuffer, PhysicalMemory, Stream, VirtualRange};

use crate::error::{Error, Result};
use crate::layout::{BLOCK_BYTES, DATA_BYTES};

/// Blocks in one allocation of memory at most: 2048 with a code are 274 MiB.
const PIECE_BLOCKS: usize = 2048;

/// One allocation of memory, and its mapping.
#[derive(Debug)]
struct MappedPiece {
    memory: PhysicalMemory,
    mapped: DeviceBuffer<u8>,
}

/// A piece of the blocks' memory, as another process can map it.
#[derive(Debug)]
pub struct SharedPiece {
    /// Its offset from the first block, in bytes.
    pub at: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its descriptor.
    pub memory: OwnedFd,
}

/// Memory for blocks, with or without their code.
#[derive(Debug)]
pub struct Blocks {
    context: Context,
    range: VirtualRange,
    /// Contiguous, from the range's start.
    pieces: Mutex<Vec<MappedPiece>>,
    count: AtomicUsize,
    /// Shared while the device works on the blocks; exclusive while memory is freed.
    at_work: RwLock<()>,
    /// Work that the device was given and that no thread waits for yet.
    in_flight: AtomicUsize,
    most: usize,
    block_bytes: usize,
    granularity_bytes: usize,
    /// Other processes can map the memory: not all drivers support that.
    is_shareable: bool,
}

impl Blocks {
    /// Allocates memory for `count` blocks, and reserves addresses for `most`. A block of the code
    /// takes 137 KiB, one of data alone 128.
    ///
    /// # Errors
    /// [`Error::Size`] for more than there are addresses for; [`Error::Cuda`] if the device has not
    /// enough memory.
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
            in_flight: AtomicUsize::new(0),
            most,
            block_bytes,
            granularity_bytes,
        };
        it.grow(count)?;
        Ok(it)
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.count.load(Acquire)
    }

    /// Returns whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns for how many blocks there are addresses.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns the bytes that each block takes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the bytes of device memory allocated.
    pub fn bytes(&self) -> usize {
        self.pieces().iter().map(|it| it.mapped.len()).sum()
    }

    /// Returns the context of the memory.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the bytes of device memory that `count` blocks take: the driver has a granularity of
    /// its own.
    pub(crate) fn bytes_of(&self, count: usize) -> usize {
        let bytes = count.saturating_mul(self.block_bytes);
        let whole = bytes.checked_next_multiple_of(self.granularity_bytes);
        whole.unwrap_or(usize::MAX)
    }

    /// Allocates memory until there are `count` blocks.
    ///
    /// # Errors
    /// As [`Blocks::new`]; the memory is unchanged then.
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
                Ok(MappedPiece { memory, mapped })
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

    /// Frees memory that `count` blocks do not need. Waits until the device is done with the work
    /// that it was given there, and for updates in flight, of which the calling thread has none;
    /// blocks beyond are refused from then on.
    pub(crate) fn shrink(&self, count: usize) {
        let _exclusive = self.at_work.write();
        while self.in_flight.load(Acquire) != 0 {
            std::thread::yield_now();
        }
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

    /// Copies bytes from `offset` on, counted from the first block, as they are in memory: for
    /// callers that inspect or move them without the code.
    ///
    /// # Errors
    /// Those of the driver, and [`Error::NoBlock`] for bytes beyond the last.
    pub fn peek(&self, offset: usize, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        let end = bytes.len();
        let mut done = 0;
        self.each(offset, end, |piece, range| {
            let part = &mut bytes[done..done + range.len()];
            done += range.len();
            Ok(piece.slice(range)?.copy_to_host(part, stream)?)
        })
    }

    /// Overwrites bytes without the code: for fault injection.
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

    /// Returns the memory that contains these blocks, in order, as other processes can map it; a
    /// process that maps it can read and change all in it, other blocks too. `None` where the
    /// driver shares none.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn share(&self, blocks: &[u32]) -> Result<Option<Vec<SharedPiece>>> {
        if !self.is_shareable {
            return Ok(None);
        }
        let mut wanted = blocks.to_vec();
        wanted.sort_unstable();
        let mut all = Vec::new();
        let mut first = 0;
        for piece in self.pieces().iter() {
            let last = first + piece.mapped.len();
            // The first block that extends into it.
            let at = wanted.partition_point(|it| (*it as usize + 1) * self.block_bytes <= first);
            let is_wanted = |it: &u32| (*it as usize) * self.block_bytes < last;
            if wanted.get(at).is_some_and(is_wanted) {
                all.push(SharedPiece {
                    at: first as u64,
                    bytes: piece.mapped.len() as u64,
                    memory: piece.memory.export()?,
                });
            }
            first = last;
        }
        Ok(Some(all))
    }

    /// Returns the address of a block, for kernels: the next block follows it. A caller that has a
    /// kernel change it has locked it exclusively.
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

    /// Keeps the memory allocated while the guard exists.
    pub(crate) fn pin(&self) -> RwLockReadGuard<'_, ()> {
        self.at_work.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Blocks::pin`], for work that outlives the call that starts it.
    pub(crate) fn pin_in_flight(self: &Arc<Self>) -> BlocksPin {
        // Counted before the lock is released: a thread that frees memory afterwards sees it.
        let _reading = self.pin();
        self.in_flight.fetch_add(1, Relaxed);
        BlocksPin(self.clone())
    }

    fn pieces(&self) -> MutexGuard<'_, Vec<MappedPiece>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps blocks and their memory while work on them is in flight.
#[derive(Debug)]
pub(crate) struct BlocksPin(Arc<Blocks>);

impl Drop for BlocksPin {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Release);
    }
}
