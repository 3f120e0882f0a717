//! What is done with blocks: kernels over them, and plain copies of their rows.
//!
//! A worker has a stream and page-locked memory of its own: what it sends, and what comes
//! back. It is asked for some blocks at once and answers when the device is done.
//!
//! Invariants: a worker returns when the device no longer uses what it was given, or the
//! context has failed; then it is of no use, and its memory is leaked. Blocks are changed by
//! one worker at a time, or only read, which is the caller's care: two that change one
//! at once leave it as none of them says.
//!
//! Elsewhere: looking at many blocks at once (`sweep`), looking at a few rows without a kernel (`few`), the kernels' text (`source`), where things lie (`layout`), the memory (`blocks`).
#![expect(
    unsafe_code,
    reason = "launching the kernels that are written here, and copies by address"
)]

mod host_verify;
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
use self::sweep::SweepLists;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::{
    BLOCK_BYTES, DATA_BYTES, DATA_ROWS, IDENTITY_WORDS, INLINE_JOBS_MAX, RECORD_OFFSET, ROW_BYTES,
    SHARED_BYTES, SHARED_WITH_DESK_BYTES, SHARED_WITH_TABLES_BYTES, SUMS_OFFSET,
};
use crate::source;

/// JobThreads of a block of them.
const THREADS: u32 = 256;
const WARPS: usize = THREADS as usize / 32;
/// Rows that a block of threads is given at most where several share a job: all are asked for at once.
const PART_ROWS: usize = 4 * WARPS;
/// So many of them have a whole block.
const PARTS: usize = DATA_ROWS.div_ceil(PART_ROWS);
/// The oldest architecture with what the kernels use.
const OLDEST: (u32, u32) = (8, 0);

/// [`BlockOutcome::is_corrected`], among the kernels' bits.
const CORRECTED: u32 = 16;
/// [`BlockOutcome::is_lost`], among the kernels' bits.
const LOST: u32 = 32;
/// [`BlockOutcome::has_wrong_source`], among the kernels' bits.
const WRONG_SOURCE: u32 = 64;
/// Instead of such bits: no kernel has answered yet.
const PENDING: u32 = u32::MAX;
/// As well, but the block is being changed, and nothing is in the way any more.
const COMMITTED: u32 = u32::MAX - 1;

/// AccessMode long a worker looks for its kernels' answers itself, and before it lets others have the processor between.
const POLL_DURATION: Duration = Duration::from_millis(2);
const SPIN_DURATION: Duration = Duration::from_micros(50);

/// What a block is, by whom it was made for: its number, its generation, the owner of each page.
pub type Identity = [u64; IDENTITY_WORDS];

/// A job as the kernels read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct BlockJob {
    block: u64,
    data: u64,
    identity: u64,
    /// What the sums of the rows at `data` have to be, or 0.
    sums: u64,
    first: u32,
    rows: u32,
    /// Not 0 if rows that are not named become zeros.
    clears: u32,
    /// To a multiple of 16 bytes, by which kernels fetch it.
    reserved: u32,
}

/// A job that comes with the launch, and whose its block is to be, as the kernels read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct InlineJob {
    job: BlockJob,
    identity: Identity,
}

/// What a kernel found in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockOutcome {
    state: u32,
    symbols: u32,
    rows: u32,
    words: u32,
}

impl BlockOutcome {
    /// Of what has nothing that could be wrong.
    pub(crate) const CLEAN: Self = Self {
        state: 0,
        symbols: 0,
        rows: 0,
        words: 0,
    };

    /// Of what cannot be corrected.
    pub(crate) const LOST: Self = Self {
        state: LOST,
        ..Self::CLEAN
    };

    /// Of what was to have rows that are wrong.
    #[cfg(test)]
    pub(crate) const WRONG_SOURCE: Self = Self {
        state: WRONG_SOURCE,
        ..Self::CLEAN
    };

    /// Of what has wrong rows.
    #[cfg(test)]
    pub(crate) const WRONG: Self = Self {
        state: 8,
        symbols: 1,
        rows: 1,
        words: 1,
    };

    /// Of one block in two places, what was found in either.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            state: self.state | other.state,
            symbols: self.symbols + other.symbols,
            rows: self.rows + other.rows,
            words: self.words + other.words,
        }
    }

    /// Whatever was wrong, and could not be corrected where it was, is right now.
    pub(crate) fn marked_corrected(self) -> Self {
        Self {
            state: self.state & !LOST | CORRECTED,
            ..self
        }
    }

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
        self.state & CORRECTED != 0
    }

    /// More was wrong than can be corrected; it was left as it was.
    pub fn is_lost(&self) -> bool {
        self.state & LOST != 0
    }

    /// Rows of another block, which were to be taken, are not what that says of them.
    pub fn has_wrong_source(&self) -> bool {
        self.state & WRONG_SOURCE != 0
    }

    /// So many symbols were corrected.
    pub fn symbols(&self) -> u32 {
        self.symbols
    }

    /// So many rows were not what their sums say; of an update that was refused, those that were seen until then.
    pub fn wrong_rows(&self) -> u32 {
        self.rows
    }

    /// So many words of the code were wrong.
    pub fn wrong_words(&self) -> u32 {
        self.words
    }
}

/// Of as many words it is, the state before the others.
const OUTCOME_WORDS: usize = size_of::<BlockOutcome>() / 4;

/// Something to do with one block.
#[derive(Clone, Debug)]
pub struct BlockWork<'a> {
    /// The block, by its place.
    pub block: usize,
    /// Rows of data.
    pub rows: Range<usize>,
    /// Where the rows are or go.
    pub place: RowLocation,
    /// Whose it is to be, or has to be.
    pub identity: Option<&'a Identity>,
}

/// Where rows come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLocation {
    /// The worker's page-locked memory from this byte on, a multiple of 16.
    Staging(usize),
    /// Rows of another block, or of the same one that are not these, from this one on. With the code they are taken if they are what
    /// their sums say; who changes them at the same time has to be kept away. No block that the same call changes, but for the same one where
    /// only some of its rows change.
    Block(usize, usize),
    /// Rows are looked at, and come nowhere.
    Nowhere,
}

/// A kernel that takes jobs.
#[derive(Clone, Debug)]
struct JobKernel {
    function: Function,
    shared_bytes: usize,
    threads: JobThreads,
    /// The same for one job, which comes with the launch; then `function` has room for as many as [`INLINE_JOBS_MAX`]. Else jobs lie in
    /// page-locked memory.
    single: Option<Function>,
}

/// Which threads a job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobThreads {
    /// A block of its own.
    Block,
    /// Blocks for parts of its rows; what they find is joined.
    Parts,
    /// It has a desk: a block takes one job after another.
    Desk,
}

/// The kernels of a context.
#[derive(Clone, Debug)]
pub struct Kernels {
    encode: JobKernel,
    verify: JobKernel,
    check: JobKernel,
    update: JobKernel,
    correct: JobKernel,
    scan: Function,
    refresh: Function,
    /// Blocks of threads that the device has room for at once, of those that take one block of memory after another.
    at_once: u32,
    /// Their device is the software one, which compares accesses with what the driver was asked to wait for, and sees nothing of
    /// who looks himself.
    is_software: bool,
    host_verifiers: Arc<HostVerifiers>,
    context: Context,
}

impl Kernels {
    /// Compiles them for the context's device, or finds them compiled.
    ///
    /// # Errors
    /// [`Error::Compile`] without NVRTC; [`Error::Device`] for one before compute capability 8.0.
    pub fn load(context: &Context) -> Result<Self> {
        let code = Self::compile(KernelTarget::of(context)?)?;
        // SAFETY: it was compiled here.
        unsafe { Self::of(context, &code) }
    }

    /// The kernels compiled. Needs no device, so another process can do it, which does not keep what the compiler leaves in memory.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn compile(target: KernelTarget) -> Result<Vec<u8>> {
        let nvrtc = Nvrtc::find()?;
        let known = nvrtc.architectures()?;
        let (major, minor) = target.capability;
        let wanted = major * 10 + minor;
        let output = match !target.is_text && known.contains(&wanted) {
            // The driver's own compiler would leave as much memory as ours.
            true => CodeFormat::Cubin,
            false => CodeFormat::Ptx,
        };
        // Text for an older one does for a newer.
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

    /// Kernels of that code.
    ///
    /// # Errors
    /// [`Error::Cuda`] for what is no such code; those of the driver.
    ///
    /// # Safety
    /// It is what [`Kernels::compile`] of this very version has given for this context's device: what kernels do with memory is
    /// founded on that.
    pub unsafe fn of(context: &Context, code: &[u8]) -> Result<Self> {
        // SAFETY: NVRTC has made it.
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
        let told = |name: &str, threads| {
            let single = Some(module.function(&format!("{name}_one"))?);
            let kernel = kernel(name, 0, threads)?;
            Ok::<_, Error>(JobKernel { single, ..kernel })
        };
        Ok(Self {
            encode: kernel("vramfs_encode", SHARED_WITH_TABLES_BYTES, JobThreads::Desk)?,
            verify: kernel("vramfs_verify", SHARED_WITH_DESK_BYTES, JobThreads::Desk)?,
            check: told("vramfs_check", JobThreads::Parts)?,
            update: told("vramfs_update", JobThreads::Block)?,
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

/// What kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTarget {
    /// Devices of this compute capability.
    pub capability: (u32, u32),
    /// To PTX, as the software device takes it; else to machine code if the compiler knows such devices.
    pub is_text: bool,
}

impl KernelTarget {
    /// A context's device, if the kernels do there.
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

/// Moves rows of many blocks by one launch, where each copy of the driver's would take as long as the bytes do.
#[derive(Clone, Debug)]
pub struct Mover {
    function: Function,
    context: Context,
}

/// Bytes that one block of threads moves, 16 a thread four times.
const MOVED_BYTES: u32 = 4 * 16 * THREADS;

/// Rows that are moved, as the kernel reads it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct MoveEntry {
    from: u64,
    to: u64,
    bytes: u64,
    reserved: u64,
}

impl Mover {
    /// The kernel, which needs no compiler but the driver's.
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

/// A stream, and page-locked memory that the device reads and writes: copies of rows, as they are. For
/// one thread at a time.
#[derive(Debug)]
pub struct Copier {
    stream: Stream,
    /// Dropped unless the device may still be using it.
    data: ManuallyDrop<PinnedBuffer<u8>>,
    /// What moves several pieces, and what it is told: as the data.
    mover: Option<(Mover, ManuallyDrop<PinnedBuffer<MoveEntry>>)>,
    slots: usize,
    /// The device may be using the staging for ever.
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
    /// One with 128 KiB of page-locked memory for each slot, that works in this stream; with a mover, for several pieces
    /// at once.
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

    /// One without page-locked memory of its own: it is lent another's ([`Copier::exchange`]).
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

    /// The page-locked memory.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The same, to be written.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Exchanges the page-locked memory for another's, which may be of another device: it is page-locked for all, and
    /// whoever has it returns when its device is done with it.
    ///
    /// # Errors
    /// [`Error::Failed`] if one of them never may be; nothing was exchanged.
    pub(crate) fn exchange(&mut self, other: &mut Self) -> Result<()> {
        if self.has_failed || other.has_failed {
            return Err(Error::Failed);
        }
        std::mem::swap(&mut self.data, &mut other.data);
        Ok(())
    }

    /// Has page-locked memory of its own from now on, with these bytes.
    ///
    /// # Errors
    /// Those of the driver; it has what it had. [`Error::Failed`].
    pub(crate) fn restage(&mut self, bytes: &[u8]) -> Result<()> {
        if self.has_failed {
            return Err(Error::Failed);
        }
        let data = PinnedBuffer::from_slice(self.stream.context(), bytes)?;
        let before = std::mem::replace(&mut self.data, ManuallyDrop::new(data));
        drop(ManuallyDrop::into_inner(before));
        Ok(())
    }

    /// Whether it is of no use any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The stream that it works in.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Rows come to their places as they are.
    ///
    /// # Errors
    /// [`Error::NoBlock`], [`Error::Rows`], [`Error::Staging`], [`Error::Into`], those of the driver.
    pub fn fetch(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<()> {
        self.copy(blocks, work, AccessMode::Reads)
    }

    /// Rows become what lies at their places; the others of the block are as they were.
    ///
    /// # Errors
    /// As [`Copier::fetch`]; [`Error::Twice`], [`Error::Changing`].
    pub fn put(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<()> {
        self.copy(blocks, work, AccessMode::Changes)
    }

    /// As [`Copier::put`], and the others become zeros.
    ///
    /// # Errors
    /// As [`Copier::put`].
    pub fn put_anew(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<()> {
        self.copy(blocks, work, AccessMode::Clears)
    }

    fn copy(&mut self, blocks: &Blocks, work: &[BlockWork<'_>], how: AccessMode) -> Result<()> {
        let _held = blocks.hold();
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
        // All of them before the first copy: who returns without waiting has given the device nothing.
        let places = work.iter().map(|it| {
            let there = match it.place {
                RowLocation::Staging(at) => staging + at as u64,
                RowLocation::Block(block, row) => blocks.address(block)? + (row * ROW_BYTES) as u64,
                // Nothing is looked at here.
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
                // SAFETY: the kernel reads the list and moves the bytes that it says, which lie within blocks that
                // are there, or within the page-locked memory; this returns when it has ended, or leaves that to it.
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
            // SAFETY: both lie within blocks that are there, or within the page-locked memory, which stays until
            // the stream is done with it; `check` has seen to their lengths.
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

    /// Whether there is all that is named; and, for what changes blocks, whether none is named twice, as two works
    /// would change it side by side, and none that changes is one that another takes rows of.
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
                // Whoever changes that would have its parity changed too.
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
        let taken = |it: &BlockWork<'_>| match it.place {
            _ if it.rows.is_empty() => None,
            // Its other rows stay as they are.
            RowLocation::Block(block, _) if block == it.block && how == AccessMode::Changes => None,
            RowLocation::Block(block, _) => all.binary_search(&block).ok().map(|_| block),
            RowLocation::Staging(_) | RowLocation::Nowhere => None,
        };
        match work.iter().find_map(taken) {
            Some(block) => Err(Error::Changing { block }),
            None => Ok(()),
        }
    }

    /// Until the device is done with what was given to the stream.
    fn wait(&mut self) -> Result<()> {
        loop {
            match self.stream.synchronize() {
                Ok(()) => return Ok(()),
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

/// What kernels are told, and what they answer, in page-locked memory.
#[derive(Debug)]
struct LaunchMailbox {
    jobs: PinnedBuffer<BlockJob>,
    /// Of each job one outcome, or one for each of its parts. Kernels write them while the host looks.
    outcomes: SharedWords,
    identities: PinnedBuffer<u64>,
    /// Rows and a record that are looked at here.
    host_rows: PinnedBuffer<u8>,
}

impl LaunchMailbox {
    /// The job of a slot, and whose its block is to be.
    fn inline_job(&self, slot: usize) -> InlineJob {
        let mut identity = [0; IDENTITY_WORDS];
        identity.copy_from_slice(&self.identities[slot * IDENTITY_WORDS..][..IDENTITY_WORDS]);
        InlineJob {
            job: self.jobs[slot],
            identity,
        }
    }

    /// The words of so many outcomes.
    fn outcomes(&self, count: usize) -> impl Iterator<Item = &[AtomicU32]> {
        self.outcomes
            .words()
            .chunks_exact(OUTCOME_WORDS)
            .take(count)
    }

    /// Nobody has answered from now on.
    fn reset(&self, count: usize) {
        self.outcomes(count)
            .for_each(|it| it[0].store(PENDING, Relaxed));
    }

    /// Whether kernels have answered so often. That in the first word is the last that they write.
    fn are_answered(&self, count: usize) -> bool {
        self.outcomes(count)
            .all(|it| !matches!(it[0].load(Acquire), PENDING | COMMITTED))
    }

    /// Whether so many blocks are changed, or are being, and nothing is in the way.
    fn are_committed(&self, count: usize) -> bool {
        self.outcomes(count)
            .all(|it| matches!(it[0].load(Relaxed), COMMITTED | 0))
    }

    /// What they have answered, and of each job one after another. What no kernel has written is no success.
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
    /// Blocks of threads that look at many blocks of memory, one after another.
    sweepers: u32,
    /// Dropped unless the device may still be using it.
    mailbox: ManuallyDrop<LaunchMailbox>,
    /// As the mailbox.
    lists: ManuallyDrop<SweepLists>,
    /// Of the jobs of the last call.
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
    /// One that takes up to `slots` blocks at once, with 128 KiB of page-locked memory for each, and works in this
    /// stream.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] for a stream of another context; those of the driver.
    pub fn new(kernels: &Kernels, slots: usize, stream: Stream) -> Result<Self> {
        Self::with(kernels, Copier::new(slots, stream, None)?)
    }

    /// As [`Worker::new`], with these copies and their page-locked memory.
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
        // From here on nothing fails that would leave them.
        Ok(Self {
            kernels: kernels.clone(),
            copier,
            sweepers: kernels.at_once,
            mailbox: ManuallyDrop::new(mailbox),
            lists: ManuallyDrop::new(lists),
            outcomes: vec![BlockOutcome::LOST; slots],
        })
    }

    /// Has [`Worker::scan`] and [`Worker::refresh`] leave half of the multiprocessors alone: a kernel that takes all of them has what others
    /// launch wait until it ends, whatever its priority.
    pub(crate) fn use_half_of_device(&mut self) {
        self.sweepers = (self.kernels.at_once / 2).max(1);
    }

    /// AccessMode many blocks it takes at once.
    pub fn slots(&self) -> usize {
        self.copier.slots
    }

    /// Whether it is of no use any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.copier.has_failed
    }

    /// Its stream and page-locked memory. It stays its own: whether the device is done is asked there.
    pub(crate) fn copier(&mut self) -> &mut Copier {
        &mut self.copier
    }

    /// The page-locked memory.
    pub fn data(&self) -> &[u8] {
        self.copier.data()
    }

    /// The same, to be written.
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.copier.data_mut()
    }

    /// Makes each block one of the code: the rows of data that the work names from their place, the others
    /// as they are, parity and record from all of them. Who names less than all rows has to know that
    /// the others are right. Without an identity it keeps that which it has.
    ///
    /// # Errors
    /// [`Error::NoBlock`], [`Error::Uncoded`], [`Error::Rows`], [`Error::Staging`], [`Error::TooMuch`], [`Error::Twice`], [`Error::Changing`], those of
    /// the driver.
    pub fn encode(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.encode.clone();
        self.run(&kernel, blocks, work, AccessMode::Makes)
    }

    /// As [`Worker::encode`], and rows that no work names become zeros. A block that was to have rows of another which are wrong
    /// is none then.
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

    /// Whether each block is one of the code, and its record right; with an identity, whether it is
    /// that. The rows named come to their place, as they were looked at.
    ///
    /// # Errors
    /// As [`Worker::encode`], but a block may be named as often as one likes; [`Error::Into`].
    pub fn verify(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.verify.clone();
        self.run(&kernel, blocks, work, AccessMode::Reads)
    }

    /// Whether the rows named are what their sums say, and the record right. They come to their place.
    ///
    /// # Errors
    /// As [`Worker::verify`].
    pub fn check(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.check.clone();
        self.run(&kernel, blocks, work, AccessMode::Reads)
    }

    /// Exchanges the rows named for those at their place. A block in which something that this rests on
    /// is wrong is not changed, and its outcome not clean; if rows of another block are, they are not taken.
    ///
    /// # Errors
    /// As [`Worker::encode`].
    pub fn update(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        self.update_with_ack(blocks, work, || {})
    }

    /// As [`Worker::update`], and calls `taken`, once, if there are blocks and all take their rows: what was to be looked at is right, and only the device's end
    /// keeps them from it. On a GPU that is as soon as it is sure, if that is within the time in which this looks for answers alone; they may not
    /// have their rows yet then, so who else may come to them has to be kept away until this returns. Else it is when they have them.
    ///
    /// # Errors
    /// As [`Worker::update`]; behind `taken`, those of a device that has failed.
    pub fn update_with_ack(
        &mut self,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        taken: impl FnOnce(),
    ) -> Result<&[BlockOutcome]> {
        let kernel = self.kernels.update.clone();
        let mut taken = Some(taken);
        let mut tell = || {
            if let Some(taken) = taken.take() {
                taken();
            }
        };
        self.run_with_ack(&kernel, blocks, work, AccessMode::Changes, Some(&mut tell))
    }

    /// Corrects what is wrong, as far as it can be. No rows come.
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

    /// Whether blocks are of the code, have the rows that are named, and there is room for so many and where they go. Whether they are there says their address.
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

    /// With what is called once all blocks are changed, or surely will be.
    fn run_with_ack(
        &mut self,
        kernel: &JobKernel,
        blocks: &Blocks,
        work: &[BlockWork<'_>],
        how: AccessMode,
        mut taken: Option<&mut dyn FnMut()>,
    ) -> Result<&[BlockOutcome]> {
        let _held = blocks.hold();
        self.validate(blocks, work, how)?;
        let context = self.copier.stream.context();
        let data = self.copier.data.device_address_in(context)?.0;
        let identities = self.mailbox.identities.device_address()?.0;
        let rows = work.iter().map(|it| it.rows.len()).max().unwrap_or(0);
        let parts = match kernel.threads {
            JobThreads::Parts => rows.div_ceil(PART_ROWS).max(1),
            JobThreads::Block | JobThreads::Desk => 1,
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
        let tells = taken.is_some();
        self.mailbox.reset(count);
        if let Err(error) = self.launch(kernel, work.len(), parts) {
            // What was launched before one that was refused has to end all the same.
            self.copier.wait()?;
            return Err(error);
        }
        self.wait_for(count, &mut taken)?;
        let outcomes = &mut self.outcomes[..work.len()];
        self.mailbox.read(parts, outcomes);
        let are_clean = outcomes.iter().all(BlockOutcome::is_clean);
        debug_assert!(
            are_clean || !tells || taken.is_some(),
            "who was told of it was told wrong"
        );
        if let Some(taken) = taken
            && are_clean
        {
            taken();
        }
        Ok(outcomes)
    }

    /// Launches a kernel for the jobs of so many slots, each in so many parts.
    fn launch(&self, kernel: &JobKernel, jobs: usize, parts: usize) -> Result<()> {
        let told = self.mailbox.jobs.device_address()?;
        let outcomes = self.mailbox.outcomes.device_address()?;
        let stream = &self.copier.stream;
        let at_once = match &kernel.single {
            Some(_) => INLINE_JOBS_MAX,
            None => jobs,
        };
        for first in (0..jobs).step_by(at_once) {
            let count = at_once.min(jobs - first);
            let all = match kernel.threads {
                JobThreads::Desk => count.min(self.kernels.at_once as usize),
                JobThreads::Block | JobThreads::Parts => count,
            };
            let launch = Launch::new((all as u32, parts as u32), THREADS)
                .shared_bytes(kernel.shared_bytes as u32);
            let to = DeviceAddr(outcomes.0 + (first * parts * size_of::<BlockOutcome>()) as u64);
            // SAFETY: the kernels touch the blocks of their jobs, whose places were looked at and which stay
            // until they were waited for, and our page-locked memory, which has an outcome for each part.
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
                    (None, JobThreads::Desk) => {
                        launch.run(&kernel.function, stream, (told, to, count as u32))
                    }
                    (None, _) => launch.run(&kernel.function, stream, (told, to)),
                }
            }?;
        }
        Ok(())
    }

    /// Until kernels have answered so often: from then on none touches anything. Where that takes long the driver is asked, who knows
    /// if none ever will. May call `taken` on the way, where that is sure before.
    fn wait_for(&mut self, count: usize, taken: &mut Option<&mut dyn FnMut()>) -> Result<()> {
        if self.kernels.is_software {
            return self.copier.wait();
        }
        let begin = Instant::now();
        if taken.is_some() {
            while !self.mailbox.are_committed(count)
                && !self.mailbox.are_answered(count)
                && begin.elapsed() < SPIN_DURATION
            {
                std::hint::spin_loop();
            }
            if self.mailbox.are_committed(count)
                && let Some(taken) = taken.take()
            {
                // Whatever comes of it, kernels are waited for.
                let called = catch_unwind(AssertUnwindSafe(taken));
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
                // Others may have something to do on this processor.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
}

/// What a kernel does with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessMode {
    Reads,
    /// Some rows of each.
    Changes,
    /// All of each.
    Makes,
    /// All of each, which is zeros where nothing is named.
    Clears,
}

/// Whether no wait of this thread's can come to anything.
fn is_for_ever(error: &fercuda_cuda::Error) -> bool {
    matches!(
        error,
        fercuda_cuda::Error::InCallback | fercuda_cuda::Error::Missing(_)
    )
}

const _: () = assert!(DATA_BYTES.is_multiple_of(16) && ROW_BYTES.is_multiple_of(16));
