//! Device allocations and how they are freed.
//!
//! All views of device memory share one of these. Work that uses it notes its stream first; the
//! free waits for those streams, or is queued after them where the memory was allocated in stream
//! order. Memory that a capture uses is kept by the graph.
//!
//! Invariant: memory is freed exactly once, after all work that was queued with it. Elsewhere:
//! typed views (`buffer`).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::{CUdeviceptr, CUmemAttach_flags, CUresult};

use crate::capture_mode::{RelaxedCaptureMode, is_capture_running};
use crate::context::Context;
use crate::deferred::{self, DestroyOutcome, NoResidentKernels};
use crate::error::{ByteSize, CallResult, Error, OutOfMemory, Result, check, is_refusal};
use crate::event::Event;
use crate::keep_alive::KeepAlive;
use crate::lock::lock;
use crate::pool::MemoryPool;
use crate::stream::{EnteredStream, Stream};
use crate::uses::StreamUses;
use crate::vmm::VirtualMapping;
use crate::wait::WaitOutcome;

/// A block of device memory; freed after its last use when dropped.
#[derive(Debug)]
pub struct DeviceAllocation {
    /// `None` only while being dropped.
    block: Option<AllocationBlock>,
    pub(crate) address: CUdeviceptr,
    bytes: usize,
    uses: StreamUses,
}

struct AllocationBlock {
    context: Context,
    address: CUdeviceptr,
    origin: AllocationOrigin,
    /// Dropped once the memory is freed; declared after `origin`, part of which frees memory by its
    /// own drop.
    on_return: Mutex<Vec<Box<dyn Send>>>,
}

impl fmt::Debug for AllocationBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocationBlock")
            .field("address", &format_args!("{:#x}", self.address))
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// How the memory was allocated, which determines how it is freed.
#[derive(Debug)]
enum AllocationOrigin {
    /// No bytes, no memory.
    Empty,
    /// From cuMemAlloc.
    Plain,
    /// From cuMemAllocAsync in this stream; from this pool, if it is not the device's own.
    Ordered {
        home: Stream,
        _pool: Option<MemoryPool>,
    },
    /// A module's variable.
    Global { _module: Arc<dyn KeepAlive> },
    /// Mapped by hand.
    Mapped { mapping: VirtualMapping },
    /// Opened from another process.
    Imported,
    /// A part of another allocation, which is freed after the last of its parts.
    Part { whole: Arc<DeviceAllocation> },
    /// From cuMemAllocManaged.
    Managed,
    /// Memory of another owner.
    Foreign { _end: ReleaseCallback },
    /// Memory of another owner, which knows by itself when no work uses it.
    Borrowed,
    /// Memory of another owner, returned to it in the order of a stream.
    Lent { home: Stream, taker: ReturnCallback },
}

impl AllocationOrigin {
    /// The stream in the order of which the memory is allocated and freed.
    fn home(&self) -> Option<&Stream> {
        match self {
            Self::Ordered { home, .. } | Self::Lent { home, .. } => Some(home),
            _ => None,
        }
    }
}

/// Callback of the owner of foreign memory, run when the memory is not used any more.
pub(crate) struct ReleaseCallback(Option<Box<dyn FnOnce() + Send + Sync>>);

impl ReleaseCallback {
    pub(crate) fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl fmt::Debug for ReleaseCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReleaseCallback")
    }
}

impl Drop for ReleaseCallback {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            catch_panic(end);
        }
    }
}

/// Runs foreign code and stops its panics.
fn catch_panic(work: impl FnOnce()) {
    // The panic payload may panic again when it is dropped, so it is leaked.
    std::mem::forget(catch_unwind(AssertUnwindSafe(work)));
}

/// Callback that returns lent memory to its owner: with the stream after the work of which it may
/// be used, or `None` if there is no such work, as its context is lost. It is called exactly once.
pub(crate) struct ReturnCallback(Option<Box<ReturnFn>>);

type ReturnFn = dyn FnOnce(Option<&Stream>) + Send + Sync;

impl ReturnCallback {
    pub(crate) fn new(taker: impl FnOnce(Option<&Stream>) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(taker)))
    }

    pub(crate) fn take(&mut self, behind: Option<&Stream>) {
        if let Some(taker) = self.0.take() {
            catch_panic(|| taker(behind));
        }
    }
}

impl fmt::Debug for ReturnCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReturnCallback")
    }
}

impl Drop for ReturnCallback {
    fn drop(&mut self) {
        self.take(None);
    }
}

impl DeviceAllocation {
    fn new(
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
        origin: AllocationOrigin,
    ) -> Arc<Self> {
        let block = Some(AllocationBlock {
            context: context.clone(),
            address,
            origin,
            on_return: Mutex::default(),
        });
        Arc::new(Self {
            block,
            address,
            bytes,
            uses: StreamUses::default(),
        })
    }

    /// Allocates at once, for use in any stream.
    pub(crate) fn plain(context: &Context, bytes: usize) -> Result<Arc<Self>> {
        if bytes == 0 {
            return Ok(Self::new(context, 0, 0, AllocationOrigin::Empty));
        }
        deferred::drain();
        let driver = context.bind()?;
        let mut address = 0;
        let answer = {
            let _relaxed = RelaxedCaptureMode::enter(driver);
            // SAFETY: `address` outlives the call.
            unsafe { driver.cuMemAlloc_v2(&mut address, bytes) }
        };
        check_allocation(context, answer, "cuMemAlloc_v2", bytes)?;
        Ok(Self::new(context, address, bytes, AllocationOrigin::Plain))
    }

    /// Allocates in the order of `stream`.
    pub(crate) fn ordered(
        stream: &Stream,
        pool: Option<&MemoryPool>,
        bytes: usize,
    ) -> Result<Arc<Self>> {
        let context = stream.context();
        if bytes == 0 {
            return Ok(Self::new(context, 0, 0, AllocationOrigin::Empty));
        }
        if stream.is_handle_of_the_moment() {
            return Err(Error::Value {
                operation: "allocate in stream order",
                reason: "its handle may mean another stream, or none, when the memory is freed"
                    .into(),
            });
        }
        if let Some(pool) = pool {
            stream.same_driver("allocate from a pool", pool.context())?;
        }
        deferred::drain();
        let entered = stream.enter_uncaptured(Error::Capturing {
            operation: "allocate in stream order",
            advice: "allocate before the capture begins",
        })?;
        let driver = context.bind()?;
        let mut address = 0;
        let (answer, function) = {
            let _relaxed = RelaxedCaptureMode::enter(driver);
            // SAFETY: `address` outlives the calls; stream and pool are alive.
            unsafe {
                match pool {
                    Some(pool) => (
                        driver.cuMemAllocFromPoolAsync(
                            &mut address,
                            bytes,
                            pool.raw(),
                            stream.raw(),
                        ),
                        "cuMemAllocFromPoolAsync",
                    ),
                    None => (
                        driver.cuMemAllocAsync(&mut address, bytes, stream.raw()),
                        "cuMemAllocAsync",
                    ),
                }
            }
        };
        drop(entered);
        check_allocation(context, answer, function, bytes)?;
        let origin = AllocationOrigin::Ordered {
            home: stream.clone(),
            _pool: pool.cloned(),
        };
        let allocation = Self::new(context, address, bytes, origin);
        allocation.uses.note(stream);
        Ok(allocation)
    }

    /// A variable of a module, which it keeps loaded.
    pub(crate) fn global(
        context: &Context,
        module: Arc<dyn KeepAlive>,
        address: CUdeviceptr,
        bytes: usize,
    ) -> Arc<Self> {
        Self::new(
            context,
            address,
            bytes,
            AllocationOrigin::Global { _module: module },
        )
    }

    /// Memory mapped by hand; unmapped when dropped.
    pub(crate) fn mapped(
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
        mapping: VirtualMapping,
    ) -> Arc<Self> {
        Self::new(
            context,
            address,
            bytes,
            AllocationOrigin::Mapped { mapping },
        )
    }

    /// Managed memory, for any stream.
    pub(crate) fn managed(context: &Context, bytes: usize) -> Result<Arc<Self>> {
        if bytes == 0 {
            return Ok(Self::new(context, 0, 0, AllocationOrigin::Empty));
        }
        deferred::drain();
        let driver = context.bind()?;
        let mut address = 0;
        let answer = {
            let _relaxed = RelaxedCaptureMode::enter(driver);
            let global = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
            // SAFETY: `address` outlives the call.
            unsafe { driver.cuMemAllocManaged(&mut address, bytes, global) }
        };
        check_allocation(context, answer, "cuMemAllocManaged", bytes)?;
        Ok(Self::new(
            context,
            address,
            bytes,
            AllocationOrigin::Managed,
        ))
    }

    /// Memory of another owner, which gets a callback when it is not used any more.
    pub(crate) fn foreign(
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
        _end: ReleaseCallback,
    ) -> Arc<Self> {
        Self::new(context, address, bytes, AllocationOrigin::Foreign { _end })
    }

    /// Memory of another owner, of which no uses are noted.
    pub(crate) fn borrowed(context: &Context, address: CUdeviceptr, bytes: usize) -> Arc<Self> {
        Self::new(context, address, bytes, AllocationOrigin::Borrowed)
    }

    /// Memory of another owner, returned to it in the order of `home`.
    pub(crate) fn lent(
        home: &Stream,
        address: CUdeviceptr,
        bytes: usize,
        taker: ReturnCallback,
    ) -> Arc<Self> {
        let home = home.clone();
        let context = home.context().clone();
        let allocation = Self::new(
            &context,
            address,
            bytes,
            AllocationOrigin::Lent { home, taker },
        );
        if let Some(home) = allocation.block.as_ref().and_then(|it| it.origin.home()) {
            allocation.uses.note(home);
        }
        allocation
    }

    /// Memory of another process, from cuIpcOpenMemHandle.
    pub(crate) fn imported(context: &Context, address: CUdeviceptr, bytes: usize) -> Arc<Self> {
        Self::new(context, address, bytes, AllocationOrigin::Imported)
    }

    /// `bytes` of this one, from `offset_bytes` on; the caller has checked that they are inside.
    pub(crate) fn part(self: &Arc<Self>, offset_bytes: usize, bytes: usize) -> Arc<Self> {
        debug_assert!(offset_bytes + bytes <= self.bytes);
        let address = match bytes {
            0 => 0,
            _ => self.address + offset_bytes as u64,
        };
        let whole = self.clone();
        Self::new(
            self.context(),
            address,
            bytes,
            AllocationOrigin::Part { whole },
        )
    }

    /// Whether this is the only reference to it and to the allocation that it is a part of.
    pub(crate) fn is_last(self: &Arc<Self>) -> bool {
        let rest = match self.block.as_ref().map(|block| &block.origin) {
            Some(AllocationOrigin::Part { whole }) => whole.is_last(),
            _ => true,
        };
        rest && Arc::strong_count(self) == 1
    }

    #[inline]
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn context(&self) -> &Context {
        match &self.block {
            Some(block) => &block.context,
            None => unreachable!("only `drop` takes the block"),
        }
    }

    /// The streams noted by [`DeviceAllocation::note`].
    #[inline]
    pub(crate) fn uses(&self) -> &StreamUses {
        &self.uses
    }

    /// Notes a use. To be called before `stream` is entered to queue work with this memory.
    ///
    /// # Errors
    /// [`Error::OtherContext`] for a stream of another driver; those of making
    /// `stream` wait for the allocation.
    #[inline]
    pub(crate) fn note(&self, stream: &Stream) -> Result<()> {
        if self.uses.has_recent(stream) {
            Ok(())
        } else {
            self.note_slow(stream)
        }
    }

    #[cold]
    fn note_slow(&self, stream: &Stream) -> Result<()> {
        let Some(block) = &self.block else {
            return Ok(());
        };
        stream.same_driver("use memory in a stream", &block.context)?;
        if matches!(block.origin, AllocationOrigin::Borrowed) {
            return Ok(());
        }
        // The list of the whole keeps that from being freed too early.
        if let AllocationOrigin::Part { whole } = &block.origin {
            whole.note(stream)?;
        }
        // A noted stream is already ordered after the allocation, and captured work after all
        // earlier work of its streams.
        if let Some(home) = block.origin.home()
            && home != stream
            && !self.uses.has(stream)
        {
            if stream.is_capturing() {
                home.wait_for_work()?;
            } else {
                order_after(home, stream)?;
            }
        }
        self.uses.note(stream);
        Ok(())
    }

    /// Drops `thing` once the memory is freed, or returned to its lender.
    pub(crate) fn keep_until_returned(&self, thing: Box<dyn Send>) {
        match &self.block {
            Some(AllocationBlock {
                origin: AllocationOrigin::Part { whole },
                ..
            }) => whole.keep_until_returned(thing),
            Some(block) => lock(&block.on_return).push(thing),
            None => unreachable!("only `drop` takes the block"),
        }
    }

    /// To be called when work with this memory is queued: if that is captured, its graph keeps the
    /// memory.
    #[inline]
    pub(crate) fn keep_in(self: &Arc<Self>, entered: &EnteredStream<'_>) {
        if let Some(state) = entered.capture() {
            state.keep(Arc::as_ptr(self) as usize, self.clone());
        }
    }
}

/// Turns an out-of-memory status into an error with the numbers.
fn check_allocation(
    context: &Context,
    answer: CallResult,
    call: &'static str,
    bytes: usize,
) -> Result<()> {
    if let Ok(CUresult::CUDA_ERROR_OUT_OF_MEMORY) = answer {
        return Err(Error::OutOfMemory(Box::new(OutOfMemory {
            call,
            asked_bytes: bytes as u64,
            free_and_total_bytes: context.memory_info().ok(),
            deferred_free_bytes: context.deferred_free_bytes(),
            device: context.device().to_string(),
        })));
    }
    check(answer, call, || {
        format!(
            "allocate {} on {}",
            ByteSize(bytes as u64),
            context.device()
        )
    })
}

/// Makes later work of `after` wait for the work of `before` so far. `after` must not be captured.
fn order_after(before: &Stream, after: &Stream) -> Result<()> {
    let _relaxed = RelaxedCaptureMode::enter(before.context().bind()?);
    let event = Event::untimed(before.context())?;
    if event.record_uncaptured(before)? {
        after.wait_for(&event)?;
    }
    Ok(())
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return;
        };
        if matches!(block.origin, AllocationOrigin::Borrowed) {
            return;
        }
        // A stream-ordered free is not deferred because of a resident kernel, unless another
        // thread's default stream has used the memory.
        let may_be_deferred = matches!(
            block.origin,
            AllocationOrigin::Plain | AllocationOrigin::Managed | AllocationOrigin::Mapped { .. }
        );
        if may_be_deferred {
            let deferred = block.context.count_deferred_free(self.bytes as u64);
            lock(&block.on_return).push(Box::new(deferred));
        }
        free_or_defer(block, std::mem::take(&mut self.uses));
    }
}

/// Memory dropped while one of its streams was being captured: it is freed when the capture is
/// over. The graph does not use it, or would hold it.
struct FreeAfterCapture(Option<(AllocationBlock, StreamUses)>);

impl Drop for FreeAfterCapture {
    fn drop(&mut self) {
        if let Some((block, uses)) = self.0.take() {
            free_or_defer(block, uses);
        }
    }
}

fn free_or_defer(block: AllocationBlock, uses: StreamUses) {
    if matches!(
        block.origin,
        AllocationOrigin::Empty | AllocationOrigin::Part { .. }
    ) {
        return;
    }
    let mut parts = Some((block, uses));
    deferred::destroy_or_defer(move || {
        let Some((block, uses)) = parts.take() else {
            return DestroyOutcome::Done;
        };
        let Some((retry, block, uses)) = free_block(block, uses) else {
            return DestroyOutcome::Done;
        };
        parts = Some((block, uses));
        retry
    });
}

/// Frees the memory, or returns it if that is not possible now.
fn free_block(
    mut block: AllocationBlock,
    uses: StreamUses,
) -> Option<(DestroyOutcome, AllocationBlock, StreamUses)> {
    let streams = uses.streams();
    if let Some(state) = streams.iter().find_map(Stream::capture_state) {
        state.keep_until_over(FreeAfterCapture(Some((block, uses))));
        return None;
    }
    match try_free(&mut block, &uses, &streams) {
        DestroyOutcome::Done => None,
        retry => Some((retry, block, uses)),
    }
}

fn try_free(block: &mut AllocationBlock, uses: &StreamUses, streams: &[Stream]) -> DestroyOutcome {
    let (context, address) = (&block.context, block.address);
    let driver = match context.bind_to_destroy() {
        Ok(Some(driver)) => driver,
        // The memory was freed with its context, except memory that belongs to no context.
        Ok(None) => match &block.origin {
            AllocationOrigin::Ordered { .. } => return context.free_orphan(address),
            AllocationOrigin::Mapped { mapping } => {
                return match NoResidentKernels::acquire() {
                    Ok(_none_resident) => mapping.unmap(),
                    Err(retry) => retry,
                };
            }
            _ => return DestroyOutcome::Done,
        },
        Err(retry) => return retry,
    };
    let _relaxed = RelaxedCaptureMode::enter(driver);
    // The statuses below are not passed on: a failure is that of earlier work, which is reported to
    // the threads that wait for it, or of a lost context, the memory of which is freed already.
    match &mut block.origin {
        AllocationOrigin::Ordered { home, .. } => {
            let entered = enter_behind(home, streams);
            if entered.is_some() && context.bind().is_ok() {
                // SAFETY: from cuMemAllocAsync and freed once, in its home stream after all work
                // that uses it.
                let answer = unsafe { driver.cuMemFreeAsync(address, home.raw()) };
                drop(entered);
                return match answer {
                    Ok(CUresult::CUDA_SUCCESS) => DestroyOutcome::Done,
                    Ok(code) if is_refusal(code) => DestroyOutcome::Retry,
                    _ => context.free_orphan(address),
                };
            }
            drop(entered);
            let waited = uses.wait();
            if waited == WaitOutcome::Lost {
                return context.free_orphan(address);
            }
            let _none_resident = match waited.and_none_resident() {
                Ok(none_resident) => none_resident,
                Err(retry) => return retry,
            };
            // SAFETY: from cuMemAllocAsync, freed once, and no work uses it.
            context.destroy(|driver| unsafe { driver.cuMemFree_v2(address) })
        }
        AllocationOrigin::Lent { home, taker } => {
            // The stream is left before the callback, which may queue work in it.
            let is_behind = enter_behind(home, streams).is_some();
            let waited = match is_behind {
                // The streams of a failed context accept no more work.
                true => WaitOutcome::of(&home.is_idle().map(drop)),
                false => uses.wait(),
            };
            match waited {
                WaitOutcome::Refused | WaitOutcome::KernelResident => {}
                WaitOutcome::Done => taker.take(Some(home)),
                WaitOutcome::Lost => taker.take(None),
            }
            waited.destroy_outcome()
        }
        // The module is dropped with `block`, when no work uses the variable; and so is the release
        // callback of foreign memory.
        AllocationOrigin::Empty
        | AllocationOrigin::Borrowed
        | AllocationOrigin::Global { .. }
        | AllocationOrigin::Part { .. }
        | AllocationOrigin::Foreign { .. } => uses.wait().destroy_outcome(),
        origin => {
            let _none_resident = match uses.wait_for_all() {
                Ok(none_resident) => none_resident,
                Err(retry) => return retry,
            };
            match origin {
                AllocationOrigin::Mapped { mapping } => mapping.unmap(),
                AllocationOrigin::Imported => {
                    // SAFETY: from cuIpcOpenMemHandle, closed once, unused.
                    context.destroy(|driver| unsafe { driver.cuIpcCloseMemHandle(address) })
                }
                // SAFETY: from cuMemAlloc or cuMemAllocManaged, freed once, and no work uses it.
                _ => context.destroy(|driver| unsafe { driver.cuMemFree_v2(address) }),
            }
        }
    }
}

/// Enters `home` after ordering it behind all work of `streams`; `None` if one of those cannot be
/// waited for by itself, or `home` is captured.
fn enter_behind<'h>(home: &'h Stream, streams: &[Stream]) -> Option<EnteredStream<'h>> {
    // Work in the legacy stream ends the captures of blocking streams.
    let breaks = |stream: &Stream| stream.is_legacy() && is_capture_running();
    let mut others = streams.iter().filter(|stream| *stream != home);
    let behind = others.all(|stream| {
        !stream.is_handle_of_the_moment() && !breaks(stream) && order_after(stream, home).is_ok()
    });
    let entered = home.enter().ok()?;
    (behind && !breaks(home) && entered.capture().is_none()).then_some(entered)
}
