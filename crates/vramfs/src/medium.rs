//! What the store needs of memory: blocks whose rows are read, changed and made anew.
//!
//! On a device: with the code's kernels, or plain copies where there is none (`--ecc=off`). For
//! tests of what lies above there is a medium in host memory that fails when it is told to.
//!
//! Invariant: what [`BlockAccess::read`] calls clean is what was written last, with a code; else it is what the memory has.
//! Elsewhere: kernels and copies (`engine`), who may touch a block (`store`).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::blocks::{Blocks, Shared};
use crate::engine::{BlockOutcome, BlockWork, Copier, Kernels, Mover, Worker};
use fercuda_cuda::{PinnedBuffer, Stream};

use crate::error::{Error, Result};
use crate::layout::{DATA_BYTES, INLINE_JOBS_MAX};

/// Memory for blocks.
pub trait Medium: Send + Sync {
    /// What one thread at a time uses it by.
    type Access: BlockAccess;

    /// A way to it.
    ///
    /// # Errors
    /// Without memory for it.
    fn access(&self) -> Result<Self::Access>;

    /// A way for what can wait: it has one slot, and the memory does others' work first.
    ///
    /// # Errors
    /// As [`Medium::access`].
    fn background(&self) -> Result<Self::Access>;

    /// Whether what becomes wrong is noticed.
    fn has_code(&self) -> bool;

    /// Bytes that it takes.
    fn bytes(&self) -> u64;

    /// Adds memory until there are so many blocks.
    ///
    /// # Errors
    /// Without as much; then there is as much as before.
    fn grow(&self, blocks: usize) -> Result<()>;

    /// Gives memory back that is not needed for so many. Nobody may use others.
    fn shrink(&self, blocks: usize);

    /// The memory that these blocks lie in, for other processes; `None` where it cannot be theirs.
    ///
    /// # Errors
    /// The memory's.
    fn share(&self, _blocks: &[u32]) -> Result<Option<SharedBlocks>> {
        Ok(None)
    }

    /// Whether rows of one block can be taken for another ([`RowLocation::Block`]); else they go by the staging.
    ///
    /// [`RowLocation::Block`]: crate::Place::Block
    fn can_copy_rows(&self, _from: usize, _to: usize) -> bool {
        true
    }

    /// How many of several devices have failed.
    fn failed_devices(&self) -> u32 {
        0
    }

    /// A block was found to have what cannot be corrected, for the first time.
    fn note_lost(&self, _block: usize) {}

    /// Whether a block went with a device that has failed, for ever.
    fn is_lost(&self, _block: usize) -> bool {
        false
    }

    /// What it says of itself beside that: names and values, a line each.
    fn figures(&self) -> String {
        String::new()
    }
}

/// Memory of blocks, as another process maps it.
#[derive(Debug)]
pub struct SharedBlocks {
    /// Which device's it is, by its UUID.
    pub device: [u8; 16],
    /// Bytes from one block's first to the next one's.
    pub block_bytes: u64,
    /// It, in its order.
    pub parts: Vec<Shared>,
}

/// One of several that are used as one ([`Array`]).
///
/// [`Array`]: crate::array::Array
pub trait ArrayMember: Medium<Access: LendStaging> {
    /// A way to it that has no staging of its own.
    ///
    /// # Errors
    /// As [`Medium::access`].
    fn access_unstaged(&self) -> Result<Self::Access>;

    /// As [`ArrayMember::access_unstaged`], for what can wait.
    ///
    /// # Errors
    /// As [`Medium::access`].
    fn background_unstaged(&self) -> Result<Self::Access>;

    /// Whether it is lost, by what it said last and by what it says to be asked; else it has but refused something.
    fn has_failed(&self, error: &Error) -> bool;
}

/// Ways that use one staging in turn.
pub trait LendStaging: BlockAccess {
    /// Exchanges the staging for another's.
    ///
    /// # Errors
    /// [`Error::Failed`] if one of them may be in use for ever; nothing was exchanged.
    fn exchange(&mut self, other: &mut Self) -> Result<()>;

    /// Has a staging of its own from now on, with these bytes.
    ///
    /// # Errors
    /// Without memory for it; it has what it had.
    fn restage(&mut self, bytes: &[u8]) -> Result<()>;
}

/// One thread's way to the memory, with staging for rows that come and go.
pub trait BlockAccess: Send {
    /// How many blocks a call takes at once.
    fn slots(&self) -> usize;

    /// The staging: 128 KiB for each slot.
    fn data(&self) -> &[u8];

    /// The same, to be written.
    fn data_mut(&mut self) -> &mut [u8];

    /// Rows come to their places, and were looked at. A block may be named more than once.
    ///
    /// # Errors
    /// The memory's.
    fn read(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// As [`BlockAccess::read`], for who only shows them to somebody: they may not have been looked at, if that was asked for
    /// ([`Verify::Scrub`]). Nothing may be made of them that says that they are right.
    ///
    /// # Errors
    /// The memory's.
    fn read_by_policy(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.read(work)
    }

    /// Rows are looked at where they are, whenever they are read or not.
    ///
    /// # Errors
    /// The memory's.
    fn check(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Rows become those at their places. A block in which something is wrong is left; rows of another are taken only if
    /// they are what was last written there.
    ///
    /// # Errors
    /// The memory's.
    fn update(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// As [`BlockAccess::update`], and calls `taken` if all blocks take their rows, as soon as that is sure: only the memory's end keeps them from
    /// it, and it may be before they have them.
    ///
    /// # Errors
    /// As [`BlockAccess::update`]; behind `taken`, those of memory that has failed.
    fn update_with_ack(
        &mut self,
        work: &[BlockWork<'_>],
        taken: &mut dyn FnMut(),
    ) -> Result<&[BlockOutcome]> {
        let outcomes = self.update(work)?;
        if outcomes.iter().all(BlockOutcome::is_clean) {
            taken();
        }
        Ok(outcomes)
    }

    /// Makes blocks anew: rows that are named from their places, the others zeros.
    ///
    /// # Errors
    /// The memory's.
    fn format(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Looks at whole blocks.
    ///
    /// # Errors
    /// The memory's.
    fn verify(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Corrects what is wrong.
    ///
    /// # Errors
    /// The memory's.
    fn correct(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]>;

    /// Which of these blocks, which nobody changes meanwhile, may not be right: all that are not, and perhaps others.
    ///
    /// # Errors
    /// The memory's.
    fn scan(&mut self, blocks: &[u32]) -> Result<Vec<u32>>;

    /// Makes parity, sums and record of what these blocks hold now, which somebody else has changed where it is; each in a work
    /// without rows, with whose it is. Nobody else uses them meanwhile.
    ///
    /// # Errors
    /// The memory's.
    fn refresh(&mut self, work: &[BlockWork<'_>]) -> Result<()>;

    /// Makes something wrong: bits of a block that the mask has, from a byte on, become what they were not.
    ///
    /// # Errors
    /// The memory's.
    fn flip_bits(&mut self, block: usize, at: usize, mask: &[u8]) -> Result<()>;

    /// Whether it is of no use any more, where another may be.
    fn is_spent(&self) -> bool;
}

/// When rows are compared with their sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Whenever they are read: nobody gets any that are wrong.
    Read,
    /// When the scrubber comes by.
    Scrub,
}

/// Blocks of a device.
#[derive(Clone, Debug)]
pub struct DeviceMedium {
    blocks: Arc<Blocks>,
    /// None without a code.
    kernels: Option<Kernels>,
    /// Where it is quicker than copies of the driver's.
    mover: Option<Mover>,
    verify: Verify,
    slots: usize,
    stagings: Arc<Stagings>,
}

/// Page-locked memory of ways that are to be made. The driver gives it in parts of 2 MiB, so that of all of them comes at once.
#[derive(Debug)]
struct Stagings {
    /// How many come at once, the first time.
    count: AtomicUsize,
    idle: Mutex<Vec<PinnedBuffer<u8>>>,
}

impl DeviceMedium {
    /// Blocks, and the kernels if they have the code, or what moves their rows. Each access has so many slots, but no more than
    /// one launch has room for: a call that is refused has changed nothing then.
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
            stagings: Arc::new(Stagings {
                count: AtomicUsize::new(1),
                idle: Mutex::default(),
            }),
        }
    }

    /// The same, where so many accesses are to come.
    pub fn expecting(mut self, accesses: usize) -> Self {
        self.stagings = Arc::new(Stagings {
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
            // More than were expected, or some whose access came to nothing, come by themselves.
            let count = self.stagings.count.swap(1, Relaxed);
            let made = PinnedBuffer::several(context, count, bytes);
            idle.extend(made.inspect_err(|_| self.stagings.count.store(count, Relaxed))?);
        }
        idle.pop().ok_or(Error::Failed)
    }

    /// The blocks.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    fn by(&self, copier: Copier) -> Result<DeviceAccess> {
        let by = match &self.kernels {
            Some(kernels) => By::Kernels(Box::new(Worker::with(kernels, copier)?)),
            None => By::Copies(copier),
        };
        Ok(DeviceAccess {
            blocks: self.blocks.clone(),
            by,
            verify: self.verify,
            clean: Vec::new(),
        })
    }
}

impl DeviceMedium {
    /// A stream for what can wait: the driver has few priorities, and takes the lowest for this.
    fn patient(&self) -> Result<Stream> {
        Ok(Stream::with_priority(self.blocks.context(), i32::MAX)?)
    }
}

impl Medium for DeviceMedium {
    type Access = DeviceAccess;

    fn access(&self) -> Result<DeviceAccess> {
        let stream = Stream::new(self.blocks.context())?;
        self.by(Copier::with(self.staging()?, stream, self.mover.as_ref())?)
    }

    fn background(&self) -> Result<DeviceAccess> {
        self.by(Copier::new(1, self.patient()?, self.mover.as_ref())?)
            .map(DeviceAccess::patient)
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
        // Before any is taken: what others have to do without for a moment may be all that they need.
        let known = context.memory_info()?;
        if needed_bytes > known.0 {
            return Err(refused(known));
        }
        match self.blocks.grow(blocks) {
            // Somebody was quicker.
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
        self.by(Copier::unstaged(self.slots, stream, self.mover.as_ref())?)
    }

    fn background_unstaged(&self) -> Result<DeviceAccess> {
        self.by(Copier::unstaged(1, self.patient()?, self.mover.as_ref())?)
            .map(DeviceAccess::patient)
    }

    fn has_failed(&self, error: &Error) -> bool {
        use fercuda_cuda::Error as Driver;
        match error {
            Error::Failed | Error::Cuda(Driver::ContextReset) => true,
            Error::Cuda(error) if error.is_sticky() => true,
            // Some of what a card answers that is off the bus is what one answers for a single call, too.
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
enum By {
    Kernels(Box<Worker>),
    Copies(Copier),
}

/// One thread's way to a device's blocks.
#[derive(Debug)]
pub struct DeviceAccess {
    blocks: Arc<Blocks>,
    by: By,
    verify: Verify,
    clean: Vec<BlockOutcome>,
}

impl DeviceAccess {
    /// For what can wait.
    fn patient(mut self) -> Self {
        if let By::Kernels(worker) = &mut self.by {
            worker.use_half_of_device();
        }
        self
    }

    fn copier_mut(&mut self) -> &mut Copier {
        match &mut self.by {
            By::Kernels(worker) => worker.copier(),
            By::Copies(copier) => copier,
        }
    }
}

/// As many outcomes of what has nothing that could be wrong.
fn clean(all: &mut Vec<BlockOutcome>, count: usize) -> &[BlockOutcome] {
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
        match &self.by {
            By::Kernels(worker) => worker.data(),
            By::Copies(copier) => copier.data(),
        }
    }

    fn data_mut(&mut self) -> &mut [u8] {
        match &mut self.by {
            By::Kernels(worker) => worker.data_mut(),
            By::Copies(copier) => copier.data_mut(),
        }
    }

    fn read(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.by {
            By::Kernels(worker) => worker.read(&self.blocks, work),
            By::Copies(copier) => {
                copier.fetch(&self.blocks, work)?;
                Ok(clean(&mut self.clean, work.len()))
            }
        }
    }

    fn read_by_policy(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        // To look at several costs a launch, which takes less than copies of as many.
        let looks = self.verify == Verify::Read || work.len() > 1;
        if looks {
            return self.read(work);
        }
        match &mut self.by {
            By::Kernels(worker) => worker.copier().fetch(&self.blocks, work)?,
            By::Copies(copier) => copier.fetch(&self.blocks, work)?,
        }
        Ok(clean(&mut self.clean, work.len()))
    }

    fn check(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.by {
            By::Kernels(worker) => worker.check(&self.blocks, work),
            By::Copies(_) => Ok(clean(&mut self.clean, work.len())),
        }
    }

    fn update(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.by {
            By::Kernels(worker) => worker.update(&self.blocks, work),
            By::Copies(copier) => {
                copier.put(&self.blocks, work)?;
                Ok(clean(&mut self.clean, work.len()))
            }
        }
    }

    fn update_with_ack(
        &mut self,
        work: &[BlockWork<'_>],
        taken: &mut dyn FnMut(),
    ) -> Result<&[BlockOutcome]> {
        match &mut self.by {
            By::Kernels(worker) => worker.update_with_ack(&self.blocks, work, taken),
            By::Copies(copier) => {
                copier.put(&self.blocks, work)?;
                taken();
                Ok(clean(&mut self.clean, work.len()))
            }
        }
    }

    fn format(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.by {
            By::Kernels(worker) => worker.encode_anew(&self.blocks, work),
            By::Copies(copier) => {
                copier.put_anew(&self.blocks, work)?;
                Ok(clean(&mut self.clean, work.len()))
            }
        }
    }

    fn verify(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.by {
            By::Kernels(worker) => worker.verify(&self.blocks, work),
            By::Copies(_) => Ok(clean(&mut self.clean, work.len())),
        }
    }

    fn correct(&mut self, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        match &mut self.by {
            By::Kernels(worker) => worker.correct(&self.blocks, work),
            By::Copies(_) => Ok(clean(&mut self.clean, work.len())),
        }
    }

    fn scan(&mut self, blocks: &[u32]) -> Result<Vec<u32>> {
        match &mut self.by {
            By::Kernels(worker) => worker.scan(&self.blocks, blocks),
            By::Copies(_) => Ok(Vec::new()),
        }
    }

    fn refresh(&mut self, work: &[BlockWork<'_>]) -> Result<()> {
        let By::Kernels(worker) = &mut self.by else {
            return Ok(());
        };
        let blocks: Vec<u32> = work.iter().map(|it| it.block as u32).collect();
        let left = match worker.refresh(&self.blocks, &blocks) {
            // Those whose record is not right. It is made of what is known.
            Ok(left) => left,
            Err(error) if worker.has_failed() => return Err(error),
            // What was changed and is not coded anew would be taken for errors.
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
        match &self.by {
            By::Kernels(worker) => worker.has_failed(),
            By::Copies(copier) => copier.has_failed(),
        }
    }
}
