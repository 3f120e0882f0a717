//! Plain copies of rows between blocks and page-locked memory.
//!
//! Invariant: when a call returns, the device no longer uses what it was given, or the copier has
//! failed for good, and its memory is leaked.

use std::mem::ManuallyDrop;

use bytemuck::{Pod, Zeroable};
use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{Context, Function, Image, Launch, Module, PinnedBuffer, Stream};

use super::kernels::THREADS;
use super::work::{AccessMode, BlockWork, RowLocation};
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, DATA_ROWS, ROW_BYTES};
use crate::source;

/// Kernel that moves rows of many blocks in one launch, where each driver copy would take as long
/// as the bytes do.
#[derive(Clone, Debug)]
pub struct Mover {
    function: Function,
    context: Context,
}

/// Bytes that a thread block moves: 16 a thread, four times.
const MOVED_BYTES: u32 = 4 * 16 * THREADS;

/// An entry of the move list, as the kernel reads it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct MoveEntry {
    from: u64,
    to: u64,
    bytes: u64,
    reserved: u64,
}

impl Mover {
    /// Loads the kernel, which needs no compiler but the driver's.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn load(context: &Context) -> Result<Self> {
        let text = source::mover(THREADS);
        let module = Module::load(context, &Image::ptx(&text))?;
        Ok(Self {
            function: module.function(source::MOVER)?,
            context: context.clone(),
        })
    }
}

/// A stream, and page-locked memory that the device accesses: plain copies of rows. For one thread
/// at a time.
#[derive(Debug)]
pub struct Copier {
    pub(super) stream: Stream,
    /// Leaked if the device may still be using it.
    pub(super) data: ManuallyDrop<PinnedBuffer<u8>>,
    /// Moves several pieces in one launch, with its list. Leaked likewise.
    mover: Option<(Mover, ManuallyDrop<PinnedBuffer<MoveEntry>>)>,
    pub(super) slots: usize,
    /// The device may be using the staging buffer for ever.
    pub(super) has_failed: bool,
}

impl Drop for Copier {
    fn drop(&mut self) {
        if !self.has_failed {
            // SAFETY: it is dropped once, here; the device is done with it.
            unsafe { ManuallyDrop::drop(&mut self.data) };
            if let Some((_, list)) = &mut self.mover {
                // SAFETY: as before.
                unsafe { ManuallyDrop::drop(list) };
            }
        }
    }
}

impl Copier {
    /// Creates a copier with 128 KiB of page-locked memory for each slot, in this stream; with a
    /// mover, several pieces take one launch.
    ///
    /// # Errors
    /// Those of the driver; [`Error::OtherDevice`] for a mover of another context.
    pub fn new(slots: usize, stream: Stream, mover: Option<&Mover>) -> Result<Self> {
        let bytes = slots
            .checked_mul(DATA_BYTES)
            .ok_or(Error::Size { blocks: slots })?;
        let data = PinnedBuffer::new(stream.context(), bytes)?;
        Self::with(data, stream, mover)
    }

    /// As [`Copier::new`], with this page-locked memory.
    pub(crate) fn with(
        data: PinnedBuffer<u8>,
        stream: Stream,
        mover: Option<&Mover>,
    ) -> Result<Self> {
        let mut it = Self::unstaged(data.len() / DATA_BYTES, stream, mover)?;
        it.data = ManuallyDrop::new(data);
        Ok(it)
    }

    /// Creates a copier without page-locked memory of its own: it is lent another's
    /// ([`Copier::exchange`]).
    pub(crate) fn unstaged(slots: usize, stream: Stream, mover: Option<&Mover>) -> Result<Self> {
        let context = stream.context();
        let mover = mover.map(|mover| {
            if mover.context != *context {
                return Err(Error::OtherDevice);
            }
            let list = PinnedBuffer::new(context, slots)?;
            Ok((mover.clone(), ManuallyDrop::new(list)))
        });
        let mover = mover.transpose()?;
        Ok(Self {
            data: ManuallyDrop::new(PinnedBuffer::new(context, 0)?),
            mover,
            stream,
            slots,
            has_failed: false,
        })
    }

    /// Returns the page-locked memory.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the page-locked memory, to be written.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Swaps the page-locked memory with another copier's, which may be of another device: it is
    /// page-locked for all contexts, and a copier returns only when its device is done with it.
    ///
    /// # Errors
    /// [`Error::Failed`] if a device may be using one of them for ever; nothing was swapped.
    pub(crate) fn exchange(&mut self, other: &mut Self) -> Result<()> {
        if self.has_failed || other.has_failed {
            return Err(Error::Failed);
        }
        std::mem::swap(&mut self.data, &mut other.data);
        Ok(())
    }

    /// Allocates page-locked memory of its own, with these bytes.
    ///
    /// # Errors
    /// Those of the driver; the copier is unchanged. [`Error::Failed`].
    pub(crate) fn restage(&mut self, bytes: &[u8]) -> Result<()> {
        if self.has_failed {
            return Err(Error::Failed);
        }
        let data = PinnedBuffer::from_slice(self.stream.context(), bytes)?;
        let before = std::mem::replace(&mut self.data, ManuallyDrop::new(data));
        drop(ManuallyDrop::into_inner(before));
        Ok(())
    }

    /// Returns whether it is unusable.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Copies rows to their locations, unverified.
    ///
    /// # Errors
    /// [`Error::NoBlock`], [`Error::Rows`], [`Error::Staging`], [`Error::Into`], those of the
    /// driver.
    pub fn fetch(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<()> {
        self.copy(blocks, work, AccessMode::Reads)
    }

    /// Overwrites rows with those at their locations; the others of the block are unchanged.
    ///
    /// # Errors
    /// As [`Copier::fetch`]; [`Error::Twice`], [`Error::Changing`].
    pub fn put(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<()> {
        self.copy(blocks, work, AccessMode::Changes)
    }

    /// As [`Copier::put`], and the block's other rows become zeros.
    ///
    /// # Errors
    /// As [`Copier::put`].
    pub fn put_anew(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<()> {
        self.copy(blocks, work, AccessMode::Clears)
    }

    fn copy(&mut self, blocks: &Blocks, work: &[BlockWork<'_>], how: AccessMode) -> Result<()> {
        let _held = blocks.pin();
        self.check(blocks, work, how)?;
        let staging = self.data.device_address_in(self.stream.context())?.0;
        let driver = blocks.context().bind()?;
        let stream = self.stream.raw();
        let answered =
            |answer: std::result::Result<CUresult, fercuda_cuda::sys::Missing>| match answer {
                Ok(CUresult::CUDA_SUCCESS) => Ok(()),
                other => Err(Error::Copy(format!("{other:?}"))),
            };
        let mut all = Ok(());
        // All addresses before the first copy: an early return has then given the device nothing.
        let places = work.iter().map(|it| {
            let there = match it.place {
                RowLocation::Staging(at) => staging + at as u64,
                RowLocation::Block(block, row) => blocks.address(block)? + (row * ROW_BYTES) as u64,
                // Nothing is verified here.
                RowLocation::Nowhere => 0,
            };
            Ok((blocks.address(it.block)?, there))
        });
        let places: Vec<(u64, u64)> = places.collect::<Result<_>>()?;
        let moved = |it: &BlockWork<'_>, (block, there): (u64, u64)| {
            let rows = block + (it.rows.start * ROW_BYTES) as u64;
            let (to, from) = match how {
                AccessMode::Reads => (there, rows),
                _ => (rows, there),
            };
            let bytes = match there {
                0 => 0,
                _ => it.rows.len() * ROW_BYTES,
            };
            (to, from, bytes)
        };
        let is_launched = match &mut self.mover {
            Some((mover, list)) if work.len() > 1 && work.len() <= list.len() => {
                for (slot, (it, place)) in list.iter_mut().zip(work.iter().zip(&places)) {
                    let (to, from, bytes) = moved(it, *place);
                    *slot = MoveEntry {
                        from,
                        to,
                        bytes: bytes as u64,
                        reserved: 0,
                    };
                }
                let parts = (DATA_BYTES as u32).div_ceil(MOVED_BYTES);
                let launch = Launch::new((parts, work.len() as u32), THREADS);
                let list = list.device_address()?;
                // SAFETY: the kernel reads the list and moves the bytes that it names, which lie
                // within allocated blocks, or within the page-locked memory; this returns when the
                // kernel has ended, or leaks that memory.
                unsafe { launch.run(&mover.function, &self.stream, (list,)) }?;
                true
            }
            _ => false,
        };
        for (it, place) in work.iter().zip(places) {
            let (to, from, bytes) = moved(it, place);
            let (block, rows) = (place.0, &it.rows);
            let ends = [
                (block, rows.start * ROW_BYTES),
                (
                    block + (rows.end * ROW_BYTES) as u64,
                    DATA_BYTES - rows.end * ROW_BYTES,
                ),
            ];
            // SAFETY: both lie within allocated blocks, or within the page-locked memory, which
            // stays until the stream is done with it; `check` has validated their lengths.
            all = unsafe {
                let copied = match bytes {
                    _ if is_launched => Ok(()),
                    0 => Ok(()),
                    _ => answered(driver.cuMemcpyAsync(to, from, bytes, stream)),
                };
                ends.into_iter()
                    .filter(|it| how == AccessMode::Clears && it.1 > 0)
                    .fold(copied, |before, (at, bytes)| {
                        before.and_then(|()| answered(driver.cuMemsetD8Async(at, 0, bytes, stream)))
                    })
            };
            if all.is_err() {
                break;
            }
        }
        self.wait()?;
        all
    }

    /// Validates that all named rows and locations exist; and, for calls that change blocks, that
    /// no block is named twice, as two works would change it concurrently, and that no block that
    /// changes is a source of another.
    pub(super) fn check(
        &self,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        how: AccessMode,
    ) -> Result<()> {
        if self.has_failed {
            return Err(Error::Failed);
        }
        if blocks.context() != self.stream.context() {
            return Err(Error::OtherDevice);
        }
        for it in work {
            if it.rows.start > it.rows.end || it.rows.end > DATA_ROWS {
                return Err(Error::Rows {
                    rows: it.rows.clone(),
                });
            }
            match it.place {
                RowLocation::Staging(at) => {
                    let end = at.checked_add(it.rows.len() * ROW_BYTES);
                    if !at.is_multiple_of(16) || end.is_none_or(|end| end > self.data.len()) {
                        return Err(Error::Staging {
                            at,
                            rows: it.rows.len(),
                            bytes: self.data.len(),
                        });
                    }
                }
                // The block's parity would not be updated.
                RowLocation::Block(block, _) if how == AccessMode::Reads && !it.rows.is_empty() => {
                    return Err(Error::Into { block });
                }
                RowLocation::Block(block, row) => {
                    let rows = row..row.saturating_add(it.rows.len());
                    let is_beside = rows.end <= it.rows.start || rows.start >= it.rows.end;
                    if rows.end > DATA_ROWS || block == it.block && !is_beside {
                        return Err(Error::Rows { rows });
                    }
                }
                RowLocation::Nowhere if how != AccessMode::Reads && !it.rows.is_empty() => {
                    return Err(Error::Rows {
                        rows: it.rows.clone(),
                    });
                }
                RowLocation::Nowhere => {}
            }
        }
        if how == AccessMode::Reads {
            return Ok(());
        }
        let mut all: Vec<usize> = work.iter().map(|it| it.block).collect();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Twice { block: pair[0] });
        }
        let changed_source = |it: &BlockWork<'_>| match it.place {
            _ if it.rows.is_empty() => None,
            // Its other rows are unchanged.
            RowLocation::Block(block, _) if block == it.block && how == AccessMode::Changes => None,
            RowLocation::Block(block, _) => all.binary_search(&block).ok().map(|_| block),
            RowLocation::Staging(_) | RowLocation::Nowhere => None,
        };
        match work.iter().find_map(changed_source) {
            Some(block) => Err(Error::Changing { block }),
            None => Ok(()),
        }
    }

    /// Waits until the device is done with the stream's work.
    pub(super) fn wait(&mut self) -> Result<()> {
        loop {
            match self.stream.synchronize() {
                Ok(()) => return Ok(()),
                // The call did not wait: a capture is active, or there was no memory for it.
                Err(error) if error.is_refusal() && !is_permanent(&error) => {
                    std::thread::yield_now();
                }
                Err(error) => {
                    self.has_failed = true;
                    return Err(error.into());
                }
            }
        }
    }
}

/// Returns whether no further wait of this thread can succeed.
fn is_permanent(error: &fercuda_cuda::Error) -> bool {
    matches!(
        error,
        fercuda_cuda::Error::InCallback | fercuda_cuda::Error::Missing(_)
    )
}

const _: () = assert!(DATA_BYTES.is_multiple_of(16) && ROW_BYTES.is_multiple_of(16));
