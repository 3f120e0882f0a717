//! Kernels over blocks, and the workers that run them.
//!
//! A worker has a stream and page-locked memory of its own: what it sends, and what comes
//! back. It is asked for some blocks at once and answers when the device is done.
//!
//! Invariants: a worker returns when the device no longer uses what it was given, or the
//! context has failed; then it is of no use, and its memory is leaked. Blocks are reached by
//! one worker at a time, or only read.
//!
//! Elsewhere: the kernels' text (`source`), where things lie (`layout`).
#![expect(unsafe_code, reason = "launching the kernels that are written here")]

use std::mem::ManuallyDrop;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use fercuda_cuda::nvrtc::{Arch, Nvrtc, Program};
use fercuda_cuda::{Context, DeviceBuffer, Function, Launch, Module, PinnedBuffer, Stream};

use crate::error::{Error, Result};
use crate::layout::{
    BLOCK_BYTES, DATA_BYTES, DATA_ROWS, IDENTITY_WORDS, ROW_BYTES, SHARED_BYTES,
    SHARED_WITH_TABLES_BYTES,
};
use crate::source;

/// Threads that take one block of memory.
const THREADS: u32 = 256;
/// The oldest architecture with what the kernels use.
const OLDEST: (u32, u32) = (8, 0);

/// [`Outcome::is_lost`], among the kernels' bits.
const LOST: u32 = 32;

/// What a block is, by whom it was made for: its number, its generation, the owner of each page.
pub type Identity = [u64; IDENTITY_WORDS];

/// A job as the kernels read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Job {
    block: u64,
    data: u64,
    identity: u64,
    first: u32,
    rows: u32,
}

/// What a kernel found in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Outcome {
    state: u32,
    symbols: u32,
    rows: u32,
    words: u32,
}

impl Outcome {
    /// Nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.state == 0
    }

    /// Words of the code were wrong.
    pub fn has_wrong_words(&self) -> bool {
        self.state & 1 != 0
    }

    /// The record was not what its own sum says.
    pub fn has_wrong_record(&self) -> bool {
        self.state & 2 != 0
    }

    /// It is another block than was expected.
    pub fn has_wrong_identity(&self) -> bool {
        self.state & 4 != 0
    }

    /// Rows were not what their sums say.
    pub fn has_wrong_rows(&self) -> bool {
        self.state & 8 != 0
    }

    /// Something was wrong, and is right now.
    pub fn is_corrected(&self) -> bool {
        self.state & 16 != 0
    }

    /// More was wrong than can be corrected; it was left as it was.
    pub fn is_lost(&self) -> bool {
        self.state & LOST != 0
    }

    /// So many symbols were corrected.
    pub fn symbols(&self) -> u32 {
        self.symbols
    }

    /// So many rows were not what their sums say.
    pub fn wrong_rows(&self) -> u32 {
        self.rows
    }

    /// So many words of the code were wrong.
    pub fn wrong_words(&self) -> u32 {
        self.words
    }
}

/// Something to do with one block.
#[derive(Clone, Debug)]
pub struct Work<'a> {
    /// The block, by its place.
    pub block: usize,
    /// Rows of data.
    pub rows: Range<usize>,
    /// Whose it is to be, or has to be.
    pub identity: Option<&'a Identity>,
}

/// Device memory for some blocks.
#[derive(Debug)]
pub struct Blocks {
    memory: DeviceBuffer<u8>,
}

impl Blocks {
    /// Memory for `count` blocks, all zeros, which is not yet a block of anything.
    ///
    /// # Errors
    /// That of the allocation.
    pub fn new(stream: &Stream, count: usize) -> Result<Self> {
        let bytes = count
            .checked_mul(BLOCK_BYTES)
            .ok_or(Error::Size { blocks: count })?;
        let memory = DeviceBuffer::zeroed(stream, bytes)?;
        stream.synchronize()?;
        Ok(Self { memory })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.memory.len() / BLOCK_BYTES
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All their bytes, for who injects faults or looks at them.
    pub fn memory(&mut self) -> &mut DeviceBuffer<u8> {
        &mut self.memory
    }

    fn address(&self, block: usize) -> Result<u64> {
        match block < self.len() {
            true => Ok(self.memory.address().0 + (block * BLOCK_BYTES) as u64),
            false => Err(Error::NoBlock {
                block,
                blocks: self.len(),
            }),
        }
    }
}

/// The kernels of a context.
#[derive(Clone, Debug)]
pub struct Kernels {
    encode: Function,
    verify: Function,
    check: Function,
    update: Function,
    correct: Function,
    context: Context,
}

impl Kernels {
    /// Compiles them for the context's device, or finds them compiled.
    ///
    /// # Errors
    /// [`Error::Compile`] without NVRTC; [`Error::Device`] for one before compute capability 8.0.
    pub fn load(context: &Context) -> Result<Self> {
        let (major, minor) = context.device().compute_capability()?;
        if (major, minor) < OLDEST {
            return Err(Error::Device {
                capability: (major, minor),
                oldest: OLDEST,
            });
        }
        let nvrtc = Nvrtc::find()?;
        let known = nvrtc.architectures()?;
        let wanted = major * 10 + minor;
        // Text for an older one does for a newer.
        let number = known
            .into_iter()
            .filter(|it| *it <= wanted)
            .max()
            .unwrap_or(wanted);
        let arch = Arch::new(number / 10, number % 10);
        let program = Program::new("vramfs.cu", source::KERNELS, arch)
            .option("--std=c++17")
            .option("--device-int128")
            .option("--generate-line-info")
            .header(source::HEADER_NAME, source::header());
        let compiled = nvrtc.compile(&program)?;
        let module = Module::load(context, &compiled.image())?;
        Ok(Self {
            encode: module.function("vramfs_encode")?,
            verify: module.function("vramfs_verify")?,
            check: module.function("vramfs_check")?,
            update: module.function("vramfs_update")?,
            correct: module.function("vramfs_correct")?,
            context: context.clone(),
        })
    }
}

/// Page-locked memory that the device reads and writes while it works for us.
#[derive(Debug)]
struct Staging {
    jobs: PinnedBuffer<Job>,
    outcomes: PinnedBuffer<Outcome>,
    identities: PinnedBuffer<u64>,
    data: PinnedBuffer<u8>,
}

/// Runs kernels over blocks. For one thread at a time.
#[derive(Debug)]
pub struct Worker {
    kernels: Kernels,
    stream: Stream,
    /// Dropped unless the device may still be using it.
    staging: ManuallyDrop<Staging>,
    slots: usize,
    /// The device may be using the staging for ever.
    has_failed: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.has_failed {
            // SAFETY: it is dropped once, here; the device is done with it.
            unsafe { ManuallyDrop::drop(&mut self.staging) };
        }
    }
}

impl Worker {
    /// One that takes up to `slots` blocks at once, with 128 KiB of page-locked memory for each.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(kernels: &Kernels, slots: usize) -> Result<Self> {
        let context = &kernels.context;
        let data = slots
            .checked_mul(DATA_BYTES)
            .ok_or(Error::Size { blocks: slots })?;
        let staging = Staging {
            jobs: PinnedBuffer::new(context, slots)?,
            outcomes: PinnedBuffer::new(context, slots)?,
            identities: PinnedBuffer::new(context, slots * IDENTITY_WORDS)?,
            data: PinnedBuffer::new(context, data)?,
        };
        Ok(Self {
            kernels: kernels.clone(),
            stream: Stream::new(context)?,
            staging: ManuallyDrop::new(staging),
            slots,
            has_failed: false,
        })
    }

    /// The rows of data of a slot: those of a work begin it.
    pub fn data(&self, slot: usize) -> &[u8] {
        &self.staging.data[slot * DATA_BYTES..(slot + 1) * DATA_BYTES]
    }

    /// The same, to be written.
    pub fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.staging.data[slot * DATA_BYTES..(slot + 1) * DATA_BYTES]
    }

    /// Makes each block one of the code: rows of data that the work names from its slot, the others
    /// as they are, parity and record from all of them. Who names less than all rows has to know that
    /// the others are right. Without an identity it keeps that which it has.
    ///
    /// # Errors
    /// [`Error::NoBlock`], [`Error::Rows`], [`Error::TooMuch`], those of the driver.
    pub fn encode(&mut self, blocks: &mut Blocks, work: &[Work<'_>]) -> Result<&[Outcome]> {
        let (kernel, shared) = (self.kernels.encode.clone(), SHARED_WITH_TABLES_BYTES as u32);
        self.run(&kernel, shared, blocks, work)
    }

    /// Whether each block is one of the code, and its record right; with an identity, whether it is
    /// that. The rows named come to the slot, as they were looked at.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn verify(&mut self, blocks: &Blocks, work: &[Work<'_>]) -> Result<&[Outcome]> {
        let (kernel, shared) = (self.kernels.verify.clone(), SHARED_BYTES as u32);
        self.run(&kernel, shared, blocks, work)
    }

    /// Whether the rows named are what their sums say, and the record right. They come to the slot.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn check(&mut self, blocks: &Blocks, work: &[Work<'_>]) -> Result<&[Outcome]> {
        let kernel = self.kernels.check.clone();
        self.run(&kernel, 0, blocks, work)
    }

    /// Exchanges the rows named for those of the slot. A block in which something that this rests on
    /// is wrong is not changed, and its outcome not clean.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn update(&mut self, blocks: &mut Blocks, work: &[Work<'_>]) -> Result<&[Outcome]> {
        let kernel = self.kernels.update.clone();
        self.run(&kernel, 0, blocks, work)
    }

    /// Corrects what is wrong, as far as it can be. No rows come.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn correct(&mut self, blocks: &mut Blocks, work: &[Work<'_>]) -> Result<&[Outcome]> {
        let (kernel, shared) = (self.kernels.correct.clone(), SHARED_BYTES as u32);
        self.run(&kernel, shared, blocks, work)
    }

    fn run(
        &mut self,
        kernel: &Function,
        shared: u32,
        blocks: &Blocks,
        work: &[Work<'_>],
    ) -> Result<&[Outcome]> {
        if self.has_failed {
            return Err(Error::Failed);
        }
        if blocks.memory.context() != &self.kernels.context {
            return Err(Error::OtherDevice);
        }
        if work.len() > self.slots {
            return Err(Error::TooMuch {
                given: work.len(),
                slots: self.slots,
            });
        }
        // Of one block there is one work: two would change it side by side.
        let mut all: Vec<usize> = work.iter().map(|it| it.block).collect();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Twice { block: pair[0] });
        }
        let data = self.staging.data.device_address()?.0;
        let identities = self.staging.identities.device_address()?.0;
        for (slot, it) in work.iter().enumerate() {
            if it.rows.start > it.rows.end || it.rows.end > DATA_ROWS {
                return Err(Error::Rows {
                    rows: it.rows.clone(),
                });
            }
            let at = slot * IDENTITY_WORDS;
            let identity = match it.identity {
                None => 0,
                Some(identity) => {
                    self.staging.identities[at..at + IDENTITY_WORDS].copy_from_slice(identity);
                    identities + 8 * at as u64
                }
            };
            self.staging.jobs[slot] = Job {
                block: blocks.address(it.block)?,
                data: match it.rows.is_empty() {
                    true => 0,
                    false => data + (slot * DATA_BYTES) as u64,
                },
                identity,
                first: it.rows.start as u32,
                rows: it.rows.len() as u32,
            };
            // What no kernel has written is no success.
            self.staging.outcomes[slot] = Outcome {
                state: LOST,
                ..Outcome::zeroed()
            };
        }
        if work.is_empty() {
            return Ok(&[]);
        }
        let jobs = self.staging.jobs.device_address()?;
        let outcomes = self.staging.outcomes.device_address()?;
        blocks.memory.note_use(&self.stream)?;
        let launch = Launch::new(work.len() as u32, THREADS).shared_bytes(shared);
        // SAFETY: the kernels touch the blocks of their jobs, whose places were looked at, of which
        // each is in one job, which nobody else has meanwhile; and the slots of our page-locked
        // memory. This returns when they have ended, or leaves the staging to them.
        unsafe { launch.run(kernel, &self.stream, (jobs, outcomes)) }?;
        loop {
            match self.stream.synchronize() {
                Ok(()) => return Ok(&self.staging.outcomes[..work.len()]),
                // It was not waited for: something is captured, or there was no memory to ask.
                Err(error) if error.is_refusal() && !is_for_ever(&error) => {
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

/// Whether no wait of this thread's can come to anything.
fn is_for_ever(error: &fercuda_cuda::Error) -> bool {
    matches!(
        error,
        fercuda_cuda::Error::InCallback | fercuda_cuda::Error::Missing(_)
    )
}

const _: () = assert!(DATA_BYTES.is_multiple_of(16) && ROW_BYTES.is_multiple_of(16));
