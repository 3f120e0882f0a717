//! Block memory as the store uses it: rows of blocks that are read, changed and encoded again.
//!
//! A device's memory, with the code's kernels, or with plain copies where there is no code
//! (`--ecc=off`). For tests of the upper layers there is a medium in host memory with fault
//! injection.
//!
//! Invariant: with a code, rows that [`BlockAccess::read`] reports clean are those last written;
//! without, they are what the memory holds.
//! Elsewhere: kernels and copies (`engine`), locking of blocks (`store`).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::blocks::{Blocks, SharedPiece};
use crate::engine::{BlockOutcome, BlockWork, Copier, Kernels, Mover, Worker};
use fercuda_cuda::{PinnedBuffer, Stream};

use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, INLINE_JOBS_MAX};

/// Memory for blocks.
pub trait Medium: Send + Sync {
    /// A handle by which one thread at a time uses the memory.
    type Access: BlockAccess;

    /// Creates an access.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn access(&self) -> Result<Self::Access>;

    /// Creates an access for background work: it has one slot, and the device does other work
    /// first.
    ///
    /// # Errors
    /// As [`Medium::access`].
    fn background(&self) -> Result<Self::Access>;

    /// Returns whether errors are detected.
    fn has_code(&self) -> bool;

    /// Returns the bytes of memory allocated.
    fn bytes(&self) -> u64;

    /// Allocates memory until there are `blocks` blocks.
    ///
    /// # Errors
    /// If there is not enough memory; it is unchanged then.
    fn grow(&self, blocks: usize) -> Result<()>;

    /// Frees memory that `blocks` blocks do not need. No thread may use the blocks beyond.
    fn shrink(&self, blocks: usize);

    /// Returns the memory that contains these blocks, for another process to map; `None` where it
    /// cannot be shared.
    ///
    /// # Errors
    /// The memory's.
    fn share(&self, _blocks: &[u32]) -> Result<Option<SharedBlocks>> {
        Ok(None)
    }

    /// Returns whether rows of one block can be copied to another directly
    /// ([`RowLocation::Block`]); else they go through staging.
    ///
    /// [`RowLocation::Block`]: crate::RowLocation::Block
    fn can_copy_rows(&self, _from: usize, _to: usize) -> bool {
        true
    }

    /// Returns how many of several devices have failed.
    fn failed_devices(&self) -> u32 {
        0
    }

    /// Notes that a block was found uncorrectable, for the first time.
    fn note_lost(&self, _block: usize) {}

    /// Returns whether a block was lost with a failed device, for good.
    fn is_lost(&self, _block: usize) -> bool {
        false
    }

    /// Returns further statistics: names and values, a line each.
    fn figures(&self) -> String {
        String::new()
    }
}

/// Memory of blocks, as another process maps it.
#[derive(Debug)]
pub struct SharedBlocks {
    /// The device's UUID.
    pub device: [u8; 16],
    /// Distance from one block to the next, in bytes.
    pub block_bytes: u64,
    /// The pieces of memory, in order.
    pub parts: Vec<SharedPiece>,
}

/// One of several media that are combined into one ([`Array`]).
///
/// [`Array`]: crate::array::Array
pub trait ArrayMember: Medium<Access: LendStaging> {
    /// Creates an access without a staging buffer of its own.
    ///
    /// # Errors
    /// As [`Medium::access`].
    fn access_unstaged(&self) -> Result<Self::Access>;

    /// As [`ArrayMember::access_unstaged`], for background work.
    ///
    /// # Errors
    /// As [`Medium::access`].
    fn background_unstaged(&self) -> Result<Self::Access>;

    /// Returns whether the device has failed, judging by its last error and by a query; otherwise
    /// it has only refused a call.
    fn has_failed(&self, error: &Error) -> bool;
}

/// Accesses that use one staging buffer in turn.
pub trait LendStaging: BlockAccess {
    /// Swaps the staging buffers of two accesses.
    ///
    /// # Errors
    /// [`Error::Failed`] if one of them may be in use by a device for ever; nothing was swapped.
    fn exchange(&mut self, other: &mut Self) -> Result<()>;

    /// Allocates a staging buffer of its own, with these bytes.
    ///
    /// # Errors
    /// If there is no memory for it; the access is unchanged.
    fn restage(&mut self, bytes: &[u8]) -> Result<()>;
}

/// One thread's access to the memory, with a staging buffer for rows.
pub trait BlockAccess: Send {
    /// Returns how many blocks a call takes at once.
    fn slots(&self) -> usize;

    /// Returns the staging buffer: 128 KiB for each slot.
    fn data(&self) -> &[u8];

    /// Returns the staging buffer, to be written.
    fn data_mut(&mut self) -> &mut [u8];

    /// Reads rows to their locations, verified. A block may be named more than once.
    ///
    /// # Errors
    /// The memory's.
    fn read(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// As [`BlockAccess::read`], for rows that are only returned to a caller: they may be
    /// unverified, if that was configured ([`Verify::Scrub`]). Nothing may be computed from them
    /// that marks them as right.
    ///
    /// # Errors
    /// The memory's.
    fn read_by_policy(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.read(work)
    }

    /// Verifies rows in place, whatever the policy for reads.
    ///
    /// # Errors
    /// The memory's.
    fn check(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Overwrites rows with those at their locations. A block with errors is left unchanged; rows
    /// of another block are copied only if they are those last written there.
    ///
    /// # Errors
    /// The memory's.
    fn update(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.start_update(work)?;
        self.finish_update()
    }

    /// Starts an update as [`BlockAccess::update`] makes it. Until it is finished, the blocks are
    /// kept from other threads, and the staging buffer is not changed.
    ///
    /// # Errors
    /// The memory's; then there is nothing to finish.
    fn start_update(&mut self, work: &[BlockWork<'_>]) -> Result<()>;

    /// Waits for a moment, and returns whether all blocks of the update that was started get their
    /// rows, unless the memory fails: they may not have them yet.
    fn wait_committed(&mut self) -> bool {
        false
    }

    /// Waits until the update that was started is done.
    ///
    /// # Errors
    /// The memory's; after [`BlockAccess::wait_committed`] has returned `true`, those of memory
    /// that has failed.
    fn finish_update(&mut self) -> Result<&[BlockOutcome]>;

    /// Makes blocks anew: named rows from their locations, the others zeros.
    ///
    /// # Errors
    /// The memory's.
    fn format(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Verifies whole blocks.
    ///
    /// # Errors
    /// The memory's.
    fn verify(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Corrects errors.
    ///
    /// # Errors
    /// The memory's.
    fn correct(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Returns which of these blocks, which no thread changes meanwhile, may have errors: all that
    /// have, and perhaps others.
    ///
    /// # Errors
    /// The memory's.
    fn scan(&mut self, blocks: &[u32]) -> Result<Vec<u32>>;

    /// Recomputes parity, checksums and record of blocks that were changed in place from outside;
    /// each in a work without rows, with its identity. No other thread uses them meanwhile.
    ///
    /// # Errors
    /// The memory's.
    fn refresh(&mut self, work: &[BlockWork<'_>]) -> Result<()>;

    /// Injects an error: flips the bits of a block that the mask has, from a byte on.
    ///
    /// # Errors
    /// The memory's.
    fn flip_bits(&mut self, block: usize, at: usize, mask: &[u8]) -> Result<()>;

    /// Returns whether this access is unusable, although another may work.
    fn is_spent(&self) -> bool;
}

/// When rows are compared with their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// At each read: no caller gets wrong rows.
    Read,
    /// When the scrubber visits their block.
    Scrub,
}

/// Blocks of a device.
#[derive(Clone, Debug)]
pub struct DeviceMedium {
    blocks: Arc<Blocks>,
    /// `None` without a code.
    kernels: Option<Kernels>,
    /// Where it is faster than the driver's copies.
    mover: Option<Mover>,
    verify: Verify,
    slots: usize,
    stagings: Arc<StagingPool>,
}

/// Page-locked memory for accesses to come. The driver allocates it in units of 2 MiB, so all of
/// them get theirs at once.
#[derive(Debug)]
struct StagingPool {
    /// How many buffers the next allocation makes.
    count: AtomicUsize,
    idle: Mutex<Vec<PinnedBuffer<u8>>>,
}

impl DeviceMedium {
    /// Creates a medium of blocks, with the kernels if they have the code, or a mover for their
    /// rows. Each access has `slots` slots, but no more than one launch has room for: so a refused
    /// call has changed nothing.
    pub fn new(
        blocks: Arc<Blocks>,
        kernels: Option<Kernels>,
        mover: Option<Mover>,
        verify: Verify,
        slots: usize,
    ) -> Self {
        Self {
            blocks,
            kernels,
            mover,
            verify,
            slots: slots.min(INLINE_JOBS_MAX),
            stagings: Arc::new(StagingPool {
                count: AtomicUsize::new(1),
                idle: Mutex::default(),
            }),
        }
    }

    /// Sets how many accesses are expected.
    pub fn expecting(mut self, accesses: usize) -> Self {
        self.stagings = Arc::new(StagingPool {
            count: AtomicUsize::new(accesses.max(1)),
            idle: Mutex::default(),
        });
        self
    }

    fn staging(&self) -> Result<PinnedBuffer<u8>> {
        let mut idle = self
            .stagings
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if idle.is_empty() {
            let (context, bytes) = (self.blocks.context(), self.slots * DATA_BYTES);
            // Further buffers, or those for accesses that could not be created, are allocated one
            // by one.
            let count = self.stagings.count.swap(1, Relaxed);
            let made = PinnedBuffer::several(context, count, bytes);
            idle.extend(made.inspect_err(|_| self.stagings.count.store(count, Relaxed))?);
        }
        idle.pop().ok_or(Error::Failed)
    }

    /// Returns the blocks.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    fn build_access(&self, copier: Copier) -> Result<DeviceAccess> {
        let backend = match &self.kernels {
            Some(kernels) => DeviceBackend::Kernels(Box::new(Worker::with(kernels, copier)?)),
            None => DeviceBackend::Copies(copier),
        };
        Ok(DeviceAccess {
            blocks: self.blocks.clone(),
            backend,
            verify: self.verify,
            clean: Vec::new(),
            put_blocks: 0,
        })
    }
}

impl DeviceMedium {
    /// Creates a stream for background work: the driver has few priorities, and takes the lowest.
    fn background_stream(&self) -> Result<Stream> {
        Ok(Stream::with_priority(self.blocks.context(), i32::MAX)?)
    }
}

impl Medium for DeviceMedium {
    type Access = DeviceAccess;

    fn access(&self) -> Result<DeviceAccess> {
        let stream = Stream::new(self.blocks.context())?;
        self.build_access(Copier::with(self.staging()?, stream, self.mover.as_ref())?)
    }

    fn background(&self) -> Result<DeviceAccess> {
        self.build_access(Copier::new(
            1,
            self.background_stream()?,
            self.mover.as_ref(),
        )?)
        .map(DeviceAccess::into_background)
    }

    fn has_code(&self) -> bool {
        self.kernels.is_some()
    }

    fn bytes(&self) -> u64 {
        self.blocks.bytes() as u64
    }

    fn grow(&self, blocks: usize) -> Result<()> {
        let context = self.blocks.context();
        let needed_bytes = (self.blocks.bytes_of(blocks) as u64).saturating_sub(self.bytes());
        let more = blocks.saturating_sub(self.blocks.len()) as u64;
        let refused = |(free_bytes, total_bytes)| Error::Room {
            device: context.device().to_string(),
            size_bytes: more * DATA_BYTES as u64,
            needed_bytes,
            free_bytes,
            total_bytes,
        };
        // Before anything is allocated: memory that other processes miss for a moment may be all
        // that they need.
        let known = context.memory_info()?;
        if needed_bytes > known.0 {
            return Err(refused(known));
        }
        match self.blocks.grow(blocks) {
            // Another process allocated first.
            Err(Error::Cuda(fercuda_cuda::Error::OutOfMemory(_))) => {
                Err(refused(context.memory_info()?))
            }
            answer => answer,
        }
    }

    fn shrink(&self, blocks: usize) {
        self.blocks.shrink(blocks);
    }

    fn share(&self, blocks: &[u32]) -> Result<Option<SharedBlocks>> {
        let Some(parts) = self.blocks.share(blocks)? else {
            return Ok(None);
        };
        Ok(Some(SharedBlocks {
            device: self.blocks.context().device().uuid()?,
            block_bytes: self.blocks.block_bytes() as u64,
            parts,
        }))
    }
}

impl ArrayMember for DeviceMedium {
    fn access_unstaged(&self) -> Result<DeviceAccess> {
        let stream = Stream::new(self.blocks.context())?;
        self.build_access(Copier::unstaged(self.slots, stream, self.mover.as_ref())?)
    }

    fn background_unstaged(&self) -> Result<DeviceAccess> {
        self.build_access(Copier::unstaged(
            1,
            self.background_stream()?,
            self.mover.as_ref(),
        )?)
        .map(DeviceAccess::into_background)
    }

    fn has_failed(&self, error: &Error) -> bool {
        use fercuda_cuda::Error as Driver;
        match error {
            Error::Failed | Error::Cuda(Driver::ContextReset) => true,
            Error::Cuda(error) if error.is_sticky() => true,
            // Some errors of a card that is off the bus are also those of a single call.
            Error::Cuda(_) | Error::Copy(_) => match self.blocks.context().memory_info() {
                Ok(_) => false,
                Err(error) => !error.is_refusal(),
            },
            _ => false,
        }
    }
}

impl LendStaging for DeviceAccess {
    fn exchange(&mut self, other: &mut Self) -> Result<()> {
        self.copier_mut().exchange(other.copier_mut())
    }

    fn restage(&mut self, bytes: &[u8]) -> Result<()> {
        self.copier_mut().restage(bytes)
    }
}

#[derive(Debug)]
enum DeviceBackend {
    Kernels(Box<Worker>),
    Copies(Copier),
}

/// One thread's access to a device's blocks.
#[derive(Debug)]
pub struct DeviceAccess {
    blocks: Arc<Blocks>,
    backend: DeviceBackend,
    verify: Verify,
    clean: Vec<BlockOutcome>,
    /// Blocks of the last update, without a code.
    put_blocks: usize,
}

impl DeviceAccess {
    /// Configures this access for background work.
    fn into_background(mut self) -> Self {
        if let DeviceBackend::Kernels(worker) = &mut self.backend {
            worker.use_half_of_device();
        }
        self
    }

    fn copier_mut(&mut self) -> &mut Copier {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.copier(),
            DeviceBackend::Copies(copier) => copier,
        }
    }
}

/// Returns `count` outcomes of blocks without errors.
fn clean_outcomes(all: &mut Vec<BlockOutcome>, count: usize) -> &[BlockOutcome] {
    if all.len() < count {
        all.resize(count, BlockOutcome::CLEAN);
    }
    &all[..count]
}

impl BlockAccess for DeviceAccess {
    fn slots(&self) -> usize {
        self.data().len() / DATA_BYTES
    }

    fn data(&self) -> &[u8] {
        match &self.backend {
            DeviceBackend::Kernels(worker) => worker.data(),
            DeviceBackend::Copies(copier) => copier.data(),
        }
    }

    fn data_mut(&mut self) -> &mut [u8] {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.data_mut(),
            DeviceBackend::Copies(copier) => copier.data_mut(),
        }
    }

    fn read(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.read(&self.blocks, work),
            DeviceBackend::Copies(copier) => {
                copier.fetch(&self.blocks, work)?;
                Ok(clean_outcomes(&mut self.clean, work.len()))
            }
        }
    }

    fn read_by_policy(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        // Verifying several blocks costs one launch, which takes less than that many copies.
        let is_verified = self.verify == Verify::Read || work.len() > 1;
        if is_verified {
            return self.read(work);
        }
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.copier().fetch(&self.blocks, work)?,
            DeviceBackend::Copies(copier) => copier.fetch(&self.blocks, work)?,
        }
        Ok(clean_outcomes(&mut self.clean, work.len()))
    }

    fn check(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.check(&self.blocks, work),
            DeviceBackend::Copies(_) => Ok(clean_outcomes(&mut self.clean, work.len())),
        }
    }

    fn start_update(&mut self, work: &[BlockWork<'_>]) -> Result<()> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.launch_update(&self.blocks, work),
            DeviceBackend::Copies(copier) => {
                copier.put(&self.blocks, work)?;
                self.put_blocks = work.len();
                Ok(())
            }
        }
    }

    fn wait_committed(&mut self) -> bool {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.wait_committed(),
            DeviceBackend::Copies(_) => false,
        }
    }

    fn finish_update(&mut self) -> Result<&[BlockOutcome]> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.finish_update(),
            DeviceBackend::Copies(_) => Ok(clean_outcomes(&mut self.clean, self.put_blocks)),
        }
    }

    fn format(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.encode_anew(&self.blocks, work),
            DeviceBackend::Copies(copier) => {
                copier.put_anew(&self.blocks, work)?;
                Ok(clean_outcomes(&mut self.clean, work.len()))
            }
        }
    }

    fn verify(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.verify(&self.blocks, work),
            DeviceBackend::Copies(_) => Ok(clean_outcomes(&mut self.clean, work.len())),
        }
    }

    fn correct(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.correct(&self.blocks, work),
            DeviceBackend::Copies(_) => Ok(clean_outcomes(&mut self.clean, work.len())),
        }
    }

    fn scan(&mut self, blocks: &[u32]) -> Result<Vec<u32>> {
        match &mut self.backend {
            DeviceBackend::Kernels(worker) => worker.scan(&self.blocks, blocks),
            DeviceBackend::Copies(_) => Ok(Vec::new()),
        }
    }

    fn refresh(&mut self, work: &[BlockWork<'_>]) -> Result<()> {
        let DeviceBackend::Kernels(worker) = &mut self.backend else {
            return Ok(());
        };
        let blocks: Vec<u32> = work.iter().map(|it| it.block as u32).collect();
        let left = match worker.refresh(&self.blocks, &blocks) {
            // Blocks with wrong records, which are made from the known identities.
            Ok(left) => left,
            Err(error) if worker.has_failed() => return Err(error),
            // Changed blocks that are not encoded again would be taken for wrong ones.
            Err(_) => blocks,
        };
        let is_left = |it: &&BlockWork<'_>| left.contains(&(it.block as u32));
        let left: Vec<BlockWork<'_>> = work.iter().filter(is_left).cloned().collect();
        for some in left.chunks(worker.slots()) {
            worker.encode(&self.blocks, some)?;
        }
        Ok(())
    }

    fn flip_bits(&mut self, block: usize, at: usize, mask: &[u8]) -> Result<()> {
        let offset = block * self.blocks.block_bytes() + at;
        let mut bytes = vec![0; mask.len()];
        let blocks = self.blocks.clone();
        let stream = self.copier_mut().stream();
        blocks.peek(offset, &mut bytes, stream)?;
        for (byte, mask) in bytes.iter_mut().zip(mask) {
            *byte ^= mask;
        }
        blocks.poke(offset, &bytes, stream)
    }

    fn is_spent(&self) -> bool {
        match &self.backend {
            DeviceBackend::Kernels(worker) => worker.has_failed(),
            DeviceBackend::Copies(copier) => copier.has_failed(),
        }
    }
}
