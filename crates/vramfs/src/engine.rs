//! Operations on blocks: kernels of the code, and plain copies of rows.
//!
//! A worker has its own stream, and page-locked memory for rows, jobs and outcomes. It takes a
//! batch of blocks and returns when the device is done.
//!
//! Invariants: when a worker returns, the device no longer uses what it was given, or the context
//! has failed; a failed worker is unusable, and its memory is leaked. The caller guarantees that a
//! block is changed by one worker at a time, or only read: two concurrent changes leave it invalid.
//!
//! Elsewhere: kernels over many blocks (`sweep`), host-side verification of a few rows
//! (`host_verify`), kernel source (`source`), layout (`layout`), memory (`blocks`).
#![expect(
    unsafe_code,
    reason = "launching the kernels that are written here, and copies by address"
)]

mod host_verify;
mod outcome;
mod sweep;

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed},
};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{
    ByValue, Context, DeviceAddr, Function, Image, Launch, Module, PinnedBuffer, SharedWords,
    Stream,
};
use fercuda_nvrtc::{CodeFormat, CudaSource, GpuArch, Nvrtc};

use self::host_verify::HostVerifiers;
pub use self::outcome::BlockOutcome;
use self::outcome::{COMMITTED, OUTCOME_WORDS, PENDING};
use self::sweep::SweepLists;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::{
    BLOCK_BYTES, DATA_BYTES, DATA_ROWS, IDENTITY_WORDS, INLINE_JOBS_MAX, RECORD_OFFSET, ROW_BYTES,
    SHARED_BYTES, SHARED_WITH_JOBS_BYTES, SHARED_WITH_TABLES_BYTES, SUMS_OFFSET,
};
use crate::source;

/// Threads of a thread block.
const THREADS: u32 = 256;
const WARPS: usize = THREADS as usize / 32;
/// Rows of a thread block at most where several share a job: all are loaded at once.
const PART_ROWS: usize = 4 * WARPS;
/// Thread blocks for all rows of a block.
const PARTS: usize = DATA_ROWS.div_ceil(PART_ROWS);
/// The lowest compute capability with the instructions that the kernels use.
const OLDEST: (u32, u32) = (8, 0);

/// How long a worker polls for results before it synchronizes, and how long of that without
/// yielding the processor.
const POLL_DURATION: Duration = Duration::from_millis(2);
const SPIN_DURATION: Duration = Duration::from_micros(50);

/// A block's identity: its number, its generation, the owner of each page.
pub type Identity = [u64; IDENTITY_WORDS];

/// A job, as kernels read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct BlockJob {
    block: u64,
    data: u64,
    identity: u64,
    /// Address of the checksums that the rows at `data` must have, or 0.
    sums: u64,
    first: u32,
    rows: u32,
    /// Not 0 if rows that are not named become zeros.
    clears: u32,
    /// Pads to a multiple of 16 bytes, which kernels load at once.
    reserved: u32,
}

/// A job in the launch's parameters, with the block's identity, as kernels read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct InlineJob {
    job: BlockJob,
    identity: Identity,
}

/// One operation on a block.
#[derive(Clone, Debug)]
pub struct BlockWork<'a> {
    /// The block's index.
    pub block: usize,
    /// Rows of data.
    pub rows: Range<usize>,
    /// Where the rows come from or go to.
    pub place: RowLocation,
    /// The identity that the block gets, or must have.
    pub identity: Option<&'a Identity>,
}

/// Where rows come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLocation {
    /// The worker's page-locked memory from this byte on, a multiple of 16.
    Staging(usize),
    /// Rows of another block, or other rows of the same one, from this one on. With the code they
    /// are copied if they match their checksums; the caller keeps other threads from changing them
    /// meanwhile. Not of a block that the same call changes, except the same block where only some
    /// of its rows change.
    Block(usize, usize),
    /// Rows are verified, and not returned.
    Nowhere,
}

/// A kernel that executes jobs.
#[derive(Clone, Debug)]
struct JobKernel {
    function: Function,
    shared_bytes: usize,
    threads: JobThreads,
    /// The variant for one job, passed in the launch's parameters; then `function` takes up to
    /// [`INLINE_JOBS_MAX`] that way. Otherwise jobs are in page-locked memory.
    single: Option<Function>,
}

/// Distribution of jobs over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobThreads {
    /// A thread block for each job.
    Block,
    /// Thread blocks for parts of a job's rows; their outcomes are merged.
    Parts,
    /// A thread block executes one job after another, and prefetches the next one to shared memory.
    Persistent,
}

/// The code's kernels, loaded into a context.
#[derive(Clone, Debug)]
pub struct Kernels {
    encode: JobKernel,
    verify: JobKernel,
    check: JobKernel,
    update: JobKernel,
    correct: JobKernel,
    scan: Function,
    refresh: Function,
    /// Thread blocks that are resident at once, of kernels that loop over blocks of memory.
    at_once: u32,
    /// The device is the software one. Its race detector compares accesses with orderings that go
    /// through the driver, and does not see a host that polls.
    is_software: bool,
    host_verifiers: Arc<HostVerifiers>,
    context: Context,
}

impl Kernels {
    /// Compiles the kernels for the context's device, or loads them from a cache.
    ///
    /// # Errors
    /// [`Error::Compile`] without NVRTC; [`Error::Device`] for one before compute capability 8.0.
    pub fn load(context: &Context) -> Result<Self> {
        let code = Self::compile(KernelTarget::of(context)?)?;
        // SAFETY: it was compiled here, for this context's device.
        unsafe { Self::of(context, &code) }
    }

    /// Compiles the kernels. Needs no device, so another process can do it, which keeps the
    /// compiler's memory out of this one.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn compile(target: KernelTarget) -> Result<Vec<u8>> {
        let nvrtc = Nvrtc::find()?;
        let known = nvrtc.architectures()?;
        let (major, minor) = target.capability;
        let wanted = major * 10 + minor;
        let output = match !target.is_text && known.contains(&wanted) {
            // The driver's own compiler would leave as much memory behind as NVRTC does.
            true => CodeFormat::Cubin,
            false => CodeFormat::Ptx,
        };
        // PTX for an older architecture runs on a newer one.
        let number = known
            .into_iter()
            .filter(|it| *it <= wanted)
            .max()
            .unwrap_or(wanted);
        let arch = GpuArch::new(number / 10, number % 10);
        let program = CudaSource::new("vramfs.cu", source::KERNELS, arch)
            .output(output)
            .option("--std=c++17")
            .option("--device-int128")
            .option("--generate-line-info")
            .header(source::HEADER_NAME, source::header());
        let compiled = nvrtc.compile(&program)?;
        match compiled.code() {
            [] => Err(Error::NoCode),
            code => Ok(code.to_vec()),
        }
    }

    /// Loads compiled kernels.
    ///
    /// # Errors
    /// [`Error::Cuda`] if `code` is no module; those of the driver.
    ///
    /// # Safety
    /// `code` is what [`Kernels::compile`] of this very version has returned for this context's
    /// device: the kernels' memory accesses are sound only then.
    pub unsafe fn of(context: &Context, code: &[u8]) -> Result<Self> {
        // SAFETY: the caller guarantees that NVRTC has made it.
        let image = unsafe { Image::binary(code) }.map_err(fercuda_cuda::Error::from)?;
        let module = Module::load(context, &image)?;
        let kernel = |name: &str, shared_bytes, threads| {
            Ok::<_, Error>(JobKernel {
                function: module.function(name)?,
                shared_bytes,
                threads,
                single: None,
            })
        };
        let with_single = |name: &str, threads| {
            let single = Some(module.function(&format!("{name}_one"))?);
            let kernel = kernel(name, 0, threads)?;
            Ok::<_, Error>(JobKernel { single, ..kernel })
        };
        Ok(Self {
            encode: kernel(
                "vramfs_encode",
                SHARED_WITH_TABLES_BYTES,
                JobThreads::Persistent,
            )?,
            verify: kernel(
                "vramfs_verify",
                SHARED_WITH_JOBS_BYTES,
                JobThreads::Persistent,
            )?,
            check: with_single("vramfs_check", JobThreads::Parts)?,
            update: with_single("vramfs_update", JobThreads::Block)?,
            correct: kernel("vramfs_correct", SHARED_BYTES, JobThreads::Block)?,
            scan: module.function("vramfs_scan")?,
            refresh: module.function("vramfs_refresh")?,
            at_once: 2 * context.device().multiprocessors()?,
            is_software: context.device().is_software()?,
            host_verifiers: Arc::default(),
            context: context.clone(),
        })
    }
}

/// Target of the kernels' compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTarget {
    /// Compute capability of the device.
    pub capability: (u32, u32),
    /// Whether to compile to PTX, as for the software device; else to machine code if the compiler
    /// supports the device.
    pub is_text: bool,
}

impl KernelTarget {
    /// Returns the target of a context's device, if it supports the kernels.
    ///
    /// # Errors
    /// [`Error::Device`]; those of the driver.
    pub fn of(context: &Context) -> Result<Self> {
        let device = context.device();
        let capability = device.compute_capability()?;
        match capability < OLDEST {
            true => Err(Error::Device {
                capability,
                oldest: OLDEST,
            }),
            false => Ok(Self {
                capability,
                is_text: device.is_software()?,
            }),
        }
    }
}

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
    stream: Stream,
    /// Leaked if the device may still be using it.
    data: ManuallyDrop<PinnedBuffer<u8>>,
    /// Moves several pieces in one launch, with its list. Leaked likewise.
    mover: Option<(Mover, ManuallyDrop<PinnedBuffer<MoveEntry>>)>,
    slots: usize,
    /// The device may be using the staging buffer for ever.
    has_failed: bool,
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
    fn check(&self, blocks: &Blocks, work: &[BlockWork<'_>], how: AccessMode) -> Result<()> {
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
    fn wait(&mut self) -> Result<()> {
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

/// Arguments and results of kernels, in page-locked memory.
#[derive(Debug)]
struct LaunchMailbox {
    jobs: PinnedBuffer<BlockJob>,
    /// One outcome for each job, or for each of its parts. Kernels write them while the host polls.
    outcomes: SharedWords,
    identities: PinnedBuffer<u64>,
    /// Rows and a record that the host verifies.
    host_rows: PinnedBuffer<u8>,
}

impl LaunchMailbox {
    /// Returns the job of a slot, with the block's identity.
    fn inline_job(&self, slot: usize) -> InlineJob {
        let mut identity = [0; IDENTITY_WORDS];
        identity.copy_from_slice(&self.identities[slot * IDENTITY_WORDS..][..IDENTITY_WORDS]);
        InlineJob {
            job: self.jobs[slot],
            identity,
        }
    }

    /// Returns the words of the first `count` outcomes.
    fn outcomes(&self, count: usize) -> impl Iterator<Item = &[AtomicU32]> {
        self.outcomes
            .words()
            .chunks_exact(OUTCOME_WORDS)
            .take(count)
    }

    /// Marks the first `count` outcomes as pending.
    fn reset(&self, count: usize) {
        self.outcomes(count)
            .for_each(|it| it[0].store(PENDING, Relaxed));
    }

    /// Returns whether `count` results have been written. The first word is the last one that a
    /// kernel writes.
    fn are_answered(&self, count: usize) -> bool {
        self.outcomes(count)
            .all(|it| !matches!(it[0].load(Acquire), PENDING | COMMITTED))
    }

    /// Returns whether `count` blocks are changed, or verified and being changed.
    fn are_committed(&self, count: usize) -> bool {
        self.outcomes(count)
            .all(|it| matches!(it[0].load(Relaxed), COMMITTED | 0))
    }

    /// Reads the results, merging those of each job. A missing result is no success.
    fn read(&self, parts: usize, jobs: &mut [BlockOutcome]) {
        let read = |it: &[AtomicU32]| match it[0].load(Acquire) {
            PENDING | COMMITTED => BlockOutcome::LOST,
            state => BlockOutcome {
                state,
                symbols: it[1].load(Relaxed),
                rows: it[2].load(Relaxed),
                words: it[3].load(Relaxed),
            },
        };
        let mut all = self.outcomes(jobs.len() * parts).map(read);
        for job in jobs {
            let of_parts = all.by_ref().take(parts);
            *job = of_parts.fold(BlockOutcome::CLEAN, BlockOutcome::with);
        }
    }
}

/// Runs kernels over blocks. For one thread at a time.
#[derive(Debug)]
pub struct Worker {
    kernels: Kernels,
    copier: Copier,
    /// Thread blocks of kernels that loop over many blocks of memory.
    sweepers: u32,
    /// Leaked if the device may still be using it.
    mailbox: ManuallyDrop<LaunchMailbox>,
    /// Leaked likewise.
    lists: ManuallyDrop<SweepLists>,
    /// Outcomes of the last call.
    outcomes: Vec<BlockOutcome>,
}

impl Drop for Worker {
    fn drop(&mut self) {
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
            host_rows: PinnedBuffer::new(context, host_verify::HOST_VERIFY_BYTES)?,
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
        &mut self.copier
    }

    /// Returns the page-locked memory.
    pub fn data(&self) -> &[u8] {
        self.copier.data()
    }

    /// Returns the page-locked memory, to be written.
    pub fn data_mut(&mut self) -> &mut [u8] {
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
        self.update_with_ack(blocks, work, || {})
    }

    /// As [`Worker::update`], and calls `acknowledge`, once, if there are blocks and all get their
    /// rows: everything is verified, and only a failure of the device can prevent it. On a GPU that
    /// is as soon as it is certain, if this is within the time for which the worker spins; the
    /// blocks may not have their rows yet then, so the caller has to keep other threads from them
    /// until this returns. Otherwise it is when they have them.
    ///
    /// # Errors
    /// As [`Worker::update`]; after `acknowledge`, those of a device that has failed.
    pub fn update_with_ack(
        &mut self,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        acknowledge: impl FnOnce(),
    ) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.update.clone();
        let mut acknowledge = Some(acknowledge);
        let mut acknowledge_once = || {
            if let Some(acknowledge) = acknowledge.take() {
                acknowledge();
            }
        };
        self.run_with_ack(
            &kernel,
            blocks,
            work,
            AccessMode::Changes,
            Some(&mut acknowledge_once),
        )
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
        self.run_with_ack(kernel, blocks, work, how, None)
    }

    /// Validates that blocks have a code and the named rows, and that there are slots and room at
    /// the locations. Whether blocks exist is checked with their addresses.
    fn validate(&self, blocks: &Blocks, work: &[BlockWork<'_>], how: AccessMode) -> Result<()> {
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

    /// As [`Worker::run`], and calls `acknowledge` once all blocks are changed, or certainly will
    /// be.
    fn run_with_ack(
        &mut self,
        kernel: &JobKernel,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        how: AccessMode,
        mut acknowledge: Option<&mut dyn FnMut()>,
    ) -> Result<&[BlockOutcome]> {
        let _held = blocks.pin();
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
            return Ok(&[]);
        }
        let count = work.len() * parts;
        let acknowledges = acknowledge.is_some();
        self.mailbox.reset(count);
        if let Err(error) = self.launch(kernel, work.len(), parts) {
            // Launches before a refused one have to end all the same.
            self.copier.wait()?;
            return Err(error);
        }
        self.wait_for(count, &mut acknowledge)?;
        let outcomes = &mut self.outcomes[..work.len()];
        self.mailbox.read(parts, outcomes);
        let are_clean = outcomes.iter().all(BlockOutcome::is_clean);
        debug_assert!(
            are_clean || !acknowledges || acknowledge.is_some(),
            "an update was acknowledged that failed"
        );
        if let Some(acknowledge) = acknowledge
            && are_clean
        {
            acknowledge();
        }
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

    /// Waits for `count` results: from then on no kernel touches anything. After a while it
    /// synchronizes with the driver, which detects kernels that never end. May call `acknowledge`
    /// before, when the change is certain.
    fn wait_for(&mut self, count: usize, acknowledge: &mut Option<&mut dyn FnMut()>) -> Result<()> {
        if self.kernels.is_software {
            return self.copier.wait();
        }
        let begin = Instant::now();
        if acknowledge.is_some() {
            while !self.mailbox.are_committed(count)
                && !self.mailbox.are_answered(count)
                && begin.elapsed() < SPIN_DURATION
            {
                std::hint::spin_loop();
            }
            if self.mailbox.are_committed(count)
                && let Some(acknowledge) = acknowledge.take()
            {
                // Even if it panics, kernels are waited for.
                let called = catch_unwind(AssertUnwindSafe(acknowledge));
                let waited = self.wait_for(count, &mut None);
                called.unwrap_or_else(|panic| resume_unwind(panic));
                return waited;
            }
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

/// How a call accesses blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessMode {
    Reads,
    /// Changes some rows of each.
    Changes,
    /// Writes all of each.
    Makes,
    /// Writes all of each: zeros where no row is named.
    Clears,
}

/// Returns whether no further wait of this thread can succeed.
fn is_permanent(error: &fercuda_cuda::Error) -> bool {
    matches!(
        error,
        fercuda_cuda::Error::InCallback | fercuda_cuda::Error::Missing(_)
    )
}

const _: () = assert!(DATA_BYTES.is_multiple_of(16) && ROW_BYTES.is_multiple_of(16));
