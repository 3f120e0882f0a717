//! One thread's worker, which launches the code's kernels over batches of blocks.
//!
//! Invariant: a worker that has failed is unusable, and its memory is leaked.
//! Elsewhere: kernels over many blocks (`sweep`), verification on the host (`host_verify`).

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Zeroable as _;
use fercuda_cuda::{ByValue, DeviceAddr, Launch, PinnedBuffer, SharedWords, Stream};

use super::copier::Copier;
use super::kernels::{JobKernel, JobThreads, Kernels, THREADS, WARPS};
use super::lists::SweepLists;
use super::mailbox::{BlockJob, InlineJob, LaunchMailbox};
use super::outcome::{BlockOutcome, OUTCOME_WORDS};
use super::verifiers::HOST_VERIFY_BYTES;
use super::work::{AccessMode, BlockWork, RowLocation};
use crate::blocks::{Blocks, BlocksPin};
use crate::error::{Error, Result};
use crate::layout::{
    BLOCK_BYTES, DATA_ROWS, IDENTITY_WORDS, INLINE_JOBS_MAX, RECORD_OFFSET, ROW_BYTES, SUMS_OFFSET,
};

/// Rows of a thread block at most where several share a job: all are loaded at once.
const PART_ROWS: usize = 4 * WARPS;
/// Thread blocks for all rows of a block.
const PARTS: usize = DATA_ROWS.div_ceil(PART_ROWS);

/// How long a worker polls for results before it synchronizes, and how long of that without
/// yielding the processor.
const POLL_DURATION: Duration = Duration::from_millis(2);
const SPIN_DURATION: Duration = Duration::from_micros(50);

/// Runs kernels over blocks. For one thread at a time.
#[derive(Debug)]
pub struct Worker {
    pub(super) kernels: Kernels,
    pub(super) copier: Copier,
    /// Thread blocks of kernels that loop over many blocks of memory.
    pub(super) sweepers: u32,
    /// Leaked if the device may still be using it.
    pub(super) mailbox: ManuallyDrop<LaunchMailbox>,
    /// Leaked likewise.
    pub(super) lists: ManuallyDrop<SweepLists>,
    /// Outcomes of the last call.
    pub(super) outcomes: Vec<BlockOutcome>,
    /// The update that was started and is not finished.
    in_flight: Option<UpdateInFlight>,
}

/// An update that the device was given and that was not waited for.
#[derive(Debug)]
struct UpdateInFlight {
    jobs: usize,
    parts: usize,
    /// When it was launched.
    begin: Instant,
    is_committed: bool,
    _pin: BlocksPin,
}

/// An update that the device was given ([`Worker::start_update`]). Dropped, it waits for the
/// device, and its outcomes are lost.
#[must_use = "its outcomes are lost unless it is finished"]
#[derive(Debug)]
pub struct PendingUpdate<'w>(&'w mut Worker);

impl<'w> PendingUpdate<'w> {
    /// Waits for as long as a worker spins, and returns whether it is certain that all blocks get
    /// their rows: everything is verified, and only a failure of the device can prevent it. They
    /// may not have them yet. On `false` nothing is known before [`PendingUpdate::finish`]; the
    /// software device always returns that.
    pub fn wait_committed(&mut self) -> bool {
        self.0.wait_committed()
    }

    /// Waits until the device is done, and returns the outcomes, as [`Worker::update`] does.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn finish(self) -> Result<Vec<BlockOutcome>> {
        self.0.finish_update().map(<[BlockOutcome]>::to_vec)
    }
}

impl Drop for PendingUpdate<'_> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.settle();
        if !self.copier.has_failed {
            // SAFETY: they are dropped once, here; the device is done with them.
            unsafe {
                ManuallyDrop::drop(&mut self.mailbox);
                ManuallyDrop::drop(&mut self.lists);
            }
        }
    }
}

impl Worker {
    /// Creates a worker that takes up to `slots` blocks at once, with 128 KiB of page-locked memory
    /// for each, in this stream.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a stream of another context; those of the driver.
    pub fn new(kernels: &Kernels, slots: usize, stream: Stream) -> Result<Self> {
        Self::with(kernels, Copier::new(slots, stream, None)?)
    }

    /// As [`Worker::new`], with this copier and its page-locked memory.
    pub(crate) fn with(kernels: &Kernels, copier: Copier) -> Result<Self> {
        let (context, slots) = (&kernels.context, copier.slots);
        if copier.stream.context() != context {
            return Err(Error::OtherDevice);
        }
        let mailbox = LaunchMailbox {
            jobs: PinnedBuffer::new(context, slots)?,
            outcomes: SharedWords::new(context, slots * PARTS * OUTCOME_WORDS)?,
            identities: PinnedBuffer::new(context, slots * IDENTITY_WORDS)?,
            host_rows: PinnedBuffer::new(context, HOST_VERIFY_BYTES)?,
        };
        let lists = SweepLists::new(context, SweepLists::SOME)?;
        // Nothing fails from here on that would leak them.
        Ok(Self {
            kernels: kernels.clone(),
            copier,
            sweepers: kernels.at_once,
            mailbox: ManuallyDrop::new(mailbox),
            lists: ManuallyDrop::new(lists),
            outcomes: vec![BlockOutcome::LOST; slots],
            in_flight: None,
        })
    }

    /// Limits [`Worker::scan`] and [`Worker::refresh`] to half of the multiprocessors: a kernel on
    /// all of them delays other launches until it ends, whatever its priority.
    pub(crate) fn use_half_of_device(&mut self) {
        self.sweepers = (self.kernels.at_once / 2).max(1);
    }

    /// Returns how many blocks it takes at once.
    pub fn slots(&self) -> usize {
        self.copier.slots
    }

    /// Returns whether it is unusable.
    pub(crate) fn has_failed(&self) -> bool {
        self.copier.has_failed
    }

    /// Returns its stream and page-locked memory. They stay the worker's, which waits for the
    /// device there.
    pub(crate) fn copier(&mut self) -> &mut Copier {
        self.settle();
        &mut self.copier
    }

    /// Returns the page-locked memory.
    pub fn data(&self) -> &[u8] {
        self.copier.data()
    }

    /// Returns the page-locked memory, to be written; waits for an update that was started.
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.settle();
        self.copier.data_mut()
    }

    /// Encodes blocks: stores the rows of data that the work names, leaves the others, and computes
    /// parity and record from all of them. A caller that names less than all rows has to know that
    /// the others are right. Without an identity the block keeps its own.
    ///
    /// # Errors
    /// [`Error::NoBlock`], [`Error::Uncoded`], [`Error::Rows`], [`Error::Staging`],
    /// [`Error::TooMuch`], [`Error::Twice`], [`Error::Changing`], those of the driver.
    pub fn encode(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.encode.clone();
        self.run(&kernel, blocks, work, AccessMode::Makes)
    }

    /// As [`Worker::encode`], and rows that no work names become zeros. A block that was to get
    /// wrong rows of another is invalid then.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn encode_anew(
        &mut self,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
    ) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.encode.clone();
        self.run(&kernel, blocks, work, AccessMode::Clears)
    }

    /// Verifies that each block is a word of the code, and its record right; with an identity, that
    /// it is the block's. The named rows go to their locations, as they were verified.
    ///
    /// # Errors
    /// As [`Worker::encode`], but a block may be named any number of times; [`Error::Into`].
    pub fn verify(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.verify.clone();
        self.run(&kernel, blocks, work, AccessMode::Reads)
    }

    /// Verifies that the named rows match their checksums, and the record is right. They go to
    /// their locations.
    ///
    /// # Errors
    /// As [`Worker::verify`].
    pub fn check(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.check.clone();
        self.run(&kernel, blocks, work, AccessMode::Reads)
    }

    /// Overwrites the named rows with those at their locations. A block with errors in what the
    /// update depends on is not changed, and its outcome not clean; wrong rows of another block are
    /// not copied.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn update(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.update.clone();
        self.run(&kernel, blocks, work, AccessMode::Changes)
    }

    /// As [`Worker::update`], but returns as soon as the device was given the update. The caller
    /// keeps other threads from the blocks until it is finished.
    ///
    /// # Errors
    /// As [`Worker::update`]; nothing is in flight then.
    pub fn start_update(
        &mut self,
        blocks: &Arc<Blocks>,
        work: &[BlockWork<'_>],
    ) -> Result<PendingUpdate<'_>> {
        self.launch_update(blocks, work)?;
        Ok(PendingUpdate(self))
    }

    /// As [`Worker::start_update`], for a caller that finishes it later. Any other call waits for
    /// it first.
    ///
    /// # Errors
    /// As [`Worker::start_update`].
    pub(crate) fn launch_update(
        &mut self,
        blocks: &Arc<Blocks>,
        work: &[BlockWork<'_>],
    ) -> Result<()> {
        self.settle();
        let pin = blocks.pin_in_flight();
        let kernel = self.kernels.update.clone();
        let parts = self.submit(&kernel, blocks, work, AccessMode::Changes)?;
        self.in_flight = Some(UpdateInFlight {
            jobs: work.len(),
            parts,
            begin: Instant::now(),
            is_committed: false,
            _pin: pin,
        });
        Ok(())
    }

    /// See [`PendingUpdate::wait_committed`]; `false` if nothing is in flight.
    pub(crate) fn wait_committed(&mut self) -> bool {
        let Some(it) = &mut self.in_flight else {
            return false;
        };
        // The software device's race detector does not see a host that polls.
        if self.kernels.is_software || it.jobs == 0 {
            return false;
        }
        let count = it.jobs * it.parts;
        while !self.mailbox.are_committed(count)
            && !self.mailbox.are_answered(count)
            && it.begin.elapsed() < SPIN_DURATION
        {
            std::hint::spin_loop();
        }
        it.is_committed = self.mailbox.are_committed(count);
        it.is_committed
    }

    /// Waits for the update that was started, and returns its outcomes; none if nothing is in
    /// flight.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn finish_update(&mut self) -> Result<&[BlockOutcome]> {
        let Some(it) = self.in_flight.take() else {
            return Ok(&[]);
        };
        // The wait of a committed update begins anew: it was not idle before.
        let begin = match it.is_committed {
            true => Instant::now(),
            false => it.begin,
        };
        let outcomes = self.complete(it.jobs, it.parts, begin)?;
        debug_assert!(
            !it.is_committed || outcomes.iter().all(BlockOutcome::is_clean),
            "an update was reported as committed that failed"
        );
        Ok(outcomes)
    }

    /// Waits for an update that was started and not finished: from then on the device touches
    /// nothing, or the worker has failed.
    pub(super) fn settle(&mut self) {
        if let Some(it) = self.in_flight.take() {
            // A failed wait marks the worker as failed, which the next call reports.
            self.wait_for(it.jobs * it.parts, it.begin)
                .unwrap_or_default();
        }
    }

    /// Corrects errors, as far as possible. No rows are returned.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn correct(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.correct.clone();
        self.run(&kernel, blocks, work, AccessMode::Changes)
    }

    fn run(
        &mut self,
        kernel: &JobKernel,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        how: AccessMode,
    ) -> Result<&[BlockOutcome]> {
        self.settle();
        let _held = blocks.pin();
        let parts = self.submit(kernel, blocks, work, how)?;
        self.complete(work.len(), parts, Instant::now())
    }

    /// Validates that blocks have a code and the named rows, and that there are slots and room at
    /// the locations. Whether blocks exist is checked with their addresses.
    pub(super) fn validate(
        &self,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        how: AccessMode,
    ) -> Result<()> {
        if blocks.block_bytes() != BLOCK_BYTES {
            return Err(Error::Uncoded);
        }
        self.copier.check(blocks, work, how)?;
        let (given, slots) = (work.len(), self.copier.slots);
        match given > slots {
            true => Err(Error::TooMuch { given, slots }),
            false => Ok(()),
        }
    }

    /// Launches a kernel over these blocks, and returns the parts of each job. The caller has
    /// pinned the blocks until the kernel was waited for.
    fn submit(
        &mut self,
        kernel: &JobKernel,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        how: AccessMode,
    ) -> Result<usize> {
        self.validate(blocks, work, how)?;
        let context = self.copier.stream.context();
        let data = self.copier.data.device_address_in(context)?.0;
        let identities = self.mailbox.identities.device_address()?.0;
        let rows = work.iter().map(|it| it.rows.len()).max().unwrap_or(0);
        let parts = match kernel.threads {
            JobThreads::Parts => rows.div_ceil(PART_ROWS).max(1),
            JobThreads::Block | JobThreads::Persistent => 1,
        };
        for (slot, it) in work.iter().enumerate() {
            let at = slot * IDENTITY_WORDS;
            let identity = match it.identity {
                None => 0,
                Some(identity) => {
                    self.mailbox.identities[at..at + IDENTITY_WORDS].copy_from_slice(identity);
                    identities + 8 * at as u64
                }
            };
            let place = match it.place {
                _ if it.rows.is_empty() => 0,
                RowLocation::Staging(at) => data + at as u64,
                RowLocation::Block(block, row) => blocks.address(block)? + (row * ROW_BYTES) as u64,
                RowLocation::Nowhere => 0,
            };
            let sums = match it.place {
                RowLocation::Block(block, row) if how != AccessMode::Reads => {
                    blocks.address(block)? + (RECORD_OFFSET + SUMS_OFFSET + 4 * row) as u64
                }
                _ => 0,
            };
            self.mailbox.jobs[slot] = BlockJob {
                block: blocks.address(it.block)?,
                data: place,
                identity,
                sums,
                first: it.rows.start as u32,
                rows: it.rows.len() as u32,
                clears: u32::from(how == AccessMode::Clears),
                reserved: 0,
            };
        }
        if work.is_empty() {
            return Ok(parts);
        }
        self.mailbox.reset(work.len() * parts);
        if let Err(error) = self.launch(kernel, work.len(), parts) {
            // Launches before a refused one have to end all the same.
            self.copier.wait()?;
            return Err(error);
        }
        Ok(parts)
    }

    /// Waits for the jobs of the first slots, launched at `begin`, and returns their outcomes.
    fn complete(&mut self, jobs: usize, parts: usize, begin: Instant) -> Result<&[BlockOutcome]> {
        if jobs == 0 {
            return Ok(&[]);
        }
        self.wait_for(jobs * parts, begin)?;
        let outcomes = &mut self.outcomes[..jobs];
        self.mailbox.read(parts, outcomes);
        Ok(outcomes)
    }

    /// Launches a kernel for the jobs of the first slots, each in `parts` parts.
    fn launch(&self, kernel: &JobKernel, jobs: usize, parts: usize) -> Result<()> {
        let jobs_address = self.mailbox.jobs.device_address()?;
        let outcomes = self.mailbox.outcomes.device_address()?;
        let stream = &self.copier.stream;
        let at_once = match &kernel.single {
            Some(_) => INLINE_JOBS_MAX,
            None => jobs,
        };
        for first in (0..jobs).step_by(at_once) {
            let count = at_once.min(jobs - first);
            let all = match kernel.threads {
                JobThreads::Persistent => count.min(self.kernels.at_once as usize),
                JobThreads::Block | JobThreads::Parts => count,
            };
            let launch = Launch::new((all as u32, parts as u32), THREADS)
                .shared_bytes(kernel.shared_bytes as u32);
            let to = DeviceAddr(outcomes.0 + (first * parts * size_of::<BlockOutcome>()) as u64);
            // SAFETY: the kernels touch the blocks of their jobs, which were validated and stay
            // allocated until the kernels were waited for, and our page-locked memory, which has an
            // outcome for each part.
            unsafe {
                match (&kernel.single, kernel.threads) {
                    (Some(single), _) if count == 1 => launch.run(
                        single,
                        stream,
                        (ByValue([self.mailbox.inline_job(first)]), to),
                    ),
                    (Some(_), _) => {
                        let mut orders = [InlineJob::zeroed(); INLINE_JOBS_MAX];
                        for (slot, order) in orders[..count].iter_mut().enumerate() {
                            *order = self.mailbox.inline_job(first + slot);
                        }
                        launch.run(&kernel.function, stream, (ByValue(orders), to))
                    }
                    (None, JobThreads::Persistent) => {
                        launch.run(&kernel.function, stream, (jobs_address, to, count as u32))
                    }
                    (None, _) => launch.run(&kernel.function, stream, (jobs_address, to)),
                }
            }?;
        }
        Ok(())
    }

    /// Waits for `count` results of kernels launched at `begin`: from then on no kernel touches
    /// anything. After a while it synchronizes with the driver, which detects kernels that never
    /// end.
    fn wait_for(&mut self, count: usize, begin: Instant) -> Result<()> {
        if self.kernels.is_software {
            return self.copier.wait();
        }
        while !self.mailbox.are_answered(count) {
            let since = begin.elapsed();
            if since >= POLL_DURATION {
                return self.copier.wait();
            } else if since >= SPIN_DURATION {
                // Other threads may have work for this processor.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
}
