//! A block of device memory and its end.
//!
//! Every view of device memory shares one of these. Work that uses it notes
//! its stream first; freeing waits for those streams, or is queued behind them
//! where the memory was allocated in stream order. What a capture uses, the
//! graph keeps.
//!
//! Invariant: memory is given back exactly once, after all work that was given
//! it. Elsewhere: typed views (`buffer`).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::{CUdeviceptr, CUmemAttach_flags, CUresult};

use crate::callback::{self, Destroyed, NoneStays};
use crate::context::{Context, Relaxed};
use crate::error::{Error, OutOfMemory, Result, check, is_refusal};
use crate::event::Event;
use crate::module::ModuleInner;
use crate::parked::ParkedBytes;
use crate::pool::MemoryPool;
use crate::stream::{Entered, Stream, Waited};
use crate::uses::{Uses, lock};
use crate::vmm::Mapping;

/// A block of device memory; freed behind its last use when dropped.
#[derive(Debug)]
pub struct Allocation {
    /// `None` only while being dropped.
    block: Option<Block>,
    pub(crate) address: CUdeviceptr,
    bytes: usize,
    uses: Uses,
}

struct Block {
    context: Context,
    address: CUdeviceptr,
    origin: Origin,
    /// What goes when the memory has; behind `origin`, of which some goes by itself.
    kept: Mutex<Vec<Box<dyn Send>>>,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address))
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// How the memory came to be, which says how it goes.
#[derive(Debug)]
enum Origin {
    /// No bytes, no memory.
    Empty,
    /// From cuMemAlloc.
    Plain,
    /// From cuMemAllocAsync in this stream; from this pool, if it is not the
    /// device's own.
    Ordered {
        home: Stream,
        _pool: Option<MemoryPool>,
    },
    /// A module's variable.
    Global { _module: Arc<ModuleInner> },
    /// Mapped by hand.
    Mapped { mapping: Mapping },
    /// Opened from another process.
    Imported,
    /// Inside another one, which goes when the last of its parts has.
    Part { whole: Arc<Allocation> },
    /// From cuMemAllocManaged.
    Managed,
    /// Somebody else's.
    Foreign { _end: Ending },
    /// Somebody else's, who takes it back in the order of a stream.
    Lent { home: Stream, taker: Taker },
}

impl Origin {
    /// The stream in whose order the memory comes and goes.
    fn home(&self) -> Option<&Stream> {
        match self {
            Self::Ordered { home, .. } | Self::Lent { home, .. } => Some(home),
            _ => None,
        }
    }
}

/// What somebody who lent memory wants to hear when it is not used any more.
pub(crate) struct Ending(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Ending {
    pub(crate) fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ending")
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            contained(end);
        }
    }
}

/// Does what is not ours, wherever this may run.
fn contained(work: impl FnOnce()) {
    // What was thrown may throw again when it is dropped.
    std::mem::forget(catch_unwind(AssertUnwindSafe(work)));
}

/// Who takes lent memory back: behind what a stream has, or with none where there is
/// nothing to be behind, as its context is lost. He hears of it once, whatever happens.
pub(crate) struct Taker(Option<Box<Take>>);

type Take = dyn FnOnce(Option<&Stream>) + Send + Sync;

impl Taker {
    pub(crate) fn new(taker: impl FnOnce(Option<&Stream>) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(taker)))
    }

    pub(crate) fn take(&mut self, behind: Option<&Stream>) {
        if let Some(taker) = self.0.take() {
            contained(|| taker(behind));
        }
    }
}

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taker")
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.take(None);
    }
}

impl Allocation {
    fn new(context: &Context, address: CUdeviceptr, bytes: usize, origin: Origin) -> Arc<Self> {
        let block = Some(Block {
            context: context.clone(),
            address,
            origin,
            kept: Mutex::default(),
        });
        Arc::new(Self {
            block,
            address,
            bytes,
            uses: Uses::default(),
        })
    }

    /// Allocates now; for any stream.
    pub(crate) fn plain(context: &Context, bytes: usize) -> Result<Arc<Self>> {
        if bytes == 0 {
            return Ok(Self::new(context, 0, 0, Origin::Empty));
        }
        callback::drain();
        let driver = context.bind()?;
        let mut address = 0;
        let answer = {
            let _relaxed = Relaxed::enter(driver);
            // SAFETY: `address` outlives the call.
            unsafe { driver.cuMemAlloc_v2(&mut address, bytes) }
        };
        allocated(context, answer, "cuMemAlloc_v2", bytes)?;
        Ok(Self::new(context, address, bytes, Origin::Plain))
    }

    /// Allocates in the order of `stream`.
    pub(crate) fn ordered(
        stream: &Stream,
        pool: Option<&MemoryPool>,
        bytes: usize,
    ) -> Result<Arc<Self>> {
        let context = stream.context();
        if bytes == 0 {
            return Ok(Self::new(context, 0, 0, Origin::Empty));
        }
        if stream.is_per_thread() {
            return Err(Error::Value {
                operation: "allocate in stream order",
                reason: "the per-thread stream is another one in the thread that frees".into(),
            });
        }
        if let Some(pool) = pool {
            stream.same_driver("allocate from a pool", pool.context())?;
        }
        callback::drain();
        let entered = stream.enter_uncaptured(Error::Capturing {
            operation: "allocate in stream order",
            advice: "allocate before the capture begins",
        })?;
        let driver = context.bind()?;
        let mut address = 0;
        let (answer, function) = {
            let _relaxed = Relaxed::enter(driver);
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
        allocated(context, answer, function, bytes)?;
        let origin = Origin::Ordered {
            home: stream.clone(),
            _pool: pool.cloned(),
        };
        let allocation = Self::new(context, address, bytes, origin);
        allocation.uses.note(stream);
        Ok(allocation)
    }

    /// A variable of a module.
    pub(crate) fn global(
        module: &Arc<ModuleInner>,
        address: CUdeviceptr,
        bytes: usize,
    ) -> Arc<Self> {
        Self::new(
            module.context(),
            address,
            bytes,
            Origin::Global {
                _module: module.clone(),
            },
        )
    }

    /// Memory mapped by hand; unmapped when dropped.
    pub(crate) fn mapped(
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
        mapping: Mapping,
    ) -> Arc<Self> {
        Self::new(context, address, bytes, Origin::Mapped { mapping })
    }

    /// Managed memory, for any stream.
    pub(crate) fn managed(context: &Context, bytes: usize) -> Result<Arc<Self>> {
        if bytes == 0 {
            return Ok(Self::new(context, 0, 0, Origin::Empty));
        }
        callback::drain();
        let driver = context.bind()?;
        let mut address = 0;
        let answer = {
            let _relaxed = Relaxed::enter(driver);
            let global = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
            // SAFETY: `address` outlives the call.
            unsafe { driver.cuMemAllocManaged(&mut address, bytes, global) }
        };
        allocated(context, answer, "cuMemAllocManaged", bytes)?;
        Ok(Self::new(context, address, bytes, Origin::Managed))
    }

    /// Memory of somebody who hears of its end.
    pub(crate) fn foreign(
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
        _end: Ending,
    ) -> Arc<Self> {
        Self::new(context, address, bytes, Origin::Foreign { _end })
    }

    /// Memory of somebody who takes it back in the order of `home`.
    pub(crate) fn lent(
        home: &Stream,
        address: CUdeviceptr,
        bytes: usize,
        taker: Taker,
    ) -> Arc<Self> {
        let home = home.clone();
        let context = home.context().clone();
        let allocation = Self::new(&context, address, bytes, Origin::Lent { home, taker });
        if let Some(home) = allocation.block.as_ref().and_then(|it| it.origin.home()) {
            allocation.uses.note(home);
        }
        allocation
    }

    /// Memory of another process, from cuIpcOpenMemHandle.
    pub(crate) fn imported(context: &Context, address: CUdeviceptr, bytes: usize) -> Arc<Self> {
        Self::new(context, address, bytes, Origin::Imported)
    }

    /// `bytes` of this one, from `offset_bytes` on; the caller saw that they are
    /// inside.
    pub(crate) fn part(self: &Arc<Self>, offset_bytes: usize, bytes: usize) -> Arc<Self> {
        debug_assert!(offset_bytes + bytes <= self.bytes);
        let address = match bytes {
            0 => 0,
            _ => self.address + offset_bytes as u64,
        };
        let whole = self.clone();
        Self::new(self.context(), address, bytes, Origin::Part { whole })
    }

    /// Whether nobody else has it, nor the rest of what it is a part of.
    pub(crate) fn is_last(self: &Arc<Self>) -> bool {
        let rest = match self.block.as_ref().map(|block| &block.origin) {
            Some(Origin::Part { whole }) => whole.is_last(),
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

    /// The streams that [`Allocation::note`] has noted.
    #[inline]
    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    /// To be called before `stream` is entered to queue work with this memory.
    ///
    /// # Errors
    /// [`Error::OtherContext`] for a stream of another driver; those of making
    /// `stream` wait for the allocation.
    #[inline]
    pub(crate) fn note(&self, stream: &Stream) -> Result<()> {
        if self.uses.has_recent(stream) {
            Ok(())
        } else {
            self.note_slowly(stream)
        }
    }

    #[cold]
    fn note_slowly(&self, stream: &Stream) -> Result<()> {
        let Some(block) = &self.block else {
            return Ok(());
        };
        stream.same_driver("use memory in a stream", &block.context)?;
        // What keeps the whole from going too early is the whole's own list.
        if let Origin::Part { whole } = &block.origin {
            whole.note(stream)?;
        }
        // A stream that is noted is behind the allocation, and what has been
        // captured is behind all that was in its streams.
        if let Some(home) = block.origin.home()
            && home != stream
            && !self.uses.has(stream)
        {
            if stream.is_capturing() {
                home.settle_all()?;
            } else {
                order_after(home, stream)?;
            }
        }
        self.uses.note(stream);
        Ok(())
    }

    /// Drops `thing` when the driver has the memory back, or the lender.
    pub(crate) fn keep_until_returned(&self, thing: Box<dyn Send>) {
        match &self.block {
            Some(Block {
                origin: Origin::Part { whole },
                ..
            }) => whole.keep_until_returned(thing),
            Some(block) => lock(&block.kept).push(thing),
            None => unreachable!("only `drop` takes the block"),
        }
    }

    /// To be called when work with this memory is queued: what is captured,
    /// its graph keeps.
    #[inline]
    pub(crate) fn keep_in(self: &Arc<Self>, entered: &Entered<'_>) {
        if let Some(state) = entered.capture() {
            state.keep(Arc::as_ptr(self) as usize, self.clone());
        }
    }
}

/// Turns running out of memory into an error with the numbers.
fn allocated(
    context: &Context,
    answer: std::result::Result<CUresult, fercuda_cuda_sys::Missing>,
    call: &'static str,
    bytes: usize,
) -> Result<()> {
    if let Ok(CUresult::CUDA_ERROR_OUT_OF_MEMORY) = answer {
        return Err(Error::OutOfMemory(Box::new(OutOfMemory {
            call,
            asked_bytes: bytes as u64,
            free_and_total_bytes: context.memory_info().ok(),
            parked_bytes: context.parked_bytes(),
            device: context.device().to_string(),
        })));
    }
    check(answer, call, || {
        format!(
            "allocate {} on {}",
            crate::error::Bytes(bytes as u64),
            context.device()
        )
    })
}

/// Lets later work of `after` wait for the work of `before` so far. For an
/// `after` that is not captured.
fn order_after(before: &Stream, after: &Stream) -> Result<()> {
    let _relaxed = Relaxed::enter(before.context().bind()?);
    let event = Event::untimed(before.context())?;
    if event.record_uncaptured(before)? {
        after.wait_for(&event)?;
    }
    Ok(())
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return;
        };
        // What is freed in stream order is not parked for a kernel that stays, unless
        // another thread's default stream has used it.
        let may_park = matches!(
            block.origin,
            Origin::Plain | Origin::Managed | Origin::Mapped { .. }
        );
        if may_park {
            let parked = ParkedBytes::count(&block.context, self.bytes as u64);
            lock(&block.kept).push(Box::new(parked));
        }
        give_back_outside(block, std::mem::take(&mut self.uses));
    }
}

/// Memory whose stream was being captured when it was dropped: it goes when
/// the capture is over. The graph does not use it, or would hold it.
struct Parked(Option<(Block, Uses)>);

impl Drop for Parked {
    fn drop(&mut self) {
        if let Some((block, uses)) = self.0.take() {
            give_back_outside(block, uses);
        }
    }
}

fn give_back_outside(block: Block, uses: Uses) {
    if matches!(block.origin, Origin::Empty | Origin::Part { .. }) {
        return;
    }
    let mut parts = Some((block, uses));
    callback::outside(move || {
        let Some((block, uses)) = parts.take() else {
            return Destroyed::Yes;
        };
        let Some((not_yet, block, uses)) = give_back(block, uses) else {
            return Destroyed::Yes;
        };
        parts = Some((block, uses));
        not_yet
    });
}

/// Gives the memory back, or returns it if that cannot be done now.
fn give_back(mut block: Block, uses: Uses) -> Option<(Destroyed, Block, Uses)> {
    let streams = uses.streams();
    if let Some(state) = streams.iter().find_map(Stream::capture_state) {
        state.park_until_over(Parked(Some((block, uses))));
        return None;
    }
    match try_to_give_back(&mut block, &uses, &streams) {
        Destroyed::Yes => None,
        not_yet => Some((not_yet, block, uses)),
    }
}

fn try_to_give_back(block: &mut Block, uses: &Uses, streams: &[Stream]) -> Destroyed {
    let (context, address) = (&block.context, block.address);
    let driver = match context.bind_to_destroy() {
        Ok(Some(driver)) => driver,
        // The memory is gone with its context. But what is no context's.
        Ok(None) => match &block.origin {
            Origin::Ordered { .. } => return context.give_back_orphan(address),
            Origin::Mapped { mapping } => {
                return match NoneStays::now() {
                    Ok(_none_stays) => mapping.unmap(),
                    Err(not_yet) => not_yet,
                };
            }
            _ => return Destroyed::Yes,
        },
        Err(not_yet) => return not_yet,
    };
    let _relaxed = Relaxed::enter(driver);
    // The driver's answers below are not passed on: a failure is that of
    // earlier work, which its waiters are told, or of a lost context, whose
    // memory is gone already.
    match &mut block.origin {
        Origin::Ordered { home, .. } => {
            let entered = enter_behind(home, streams);
            if entered.is_some() && context.bind().is_ok() {
                // SAFETY: from cuMemAllocAsync and given back once, in its home
                // stream behind all work that uses it.
                let answer = unsafe { driver.cuMemFreeAsync(address, home.raw()) };
                drop(entered);
                return match answer {
                    Ok(CUresult::CUDA_SUCCESS) => Destroyed::Yes,
                    Ok(code) if is_refusal(code) => Destroyed::NotYet,
                    _ => context.give_back_orphan(address),
                };
            }
            drop(entered);
            let waited = uses.wait();
            if waited == Waited::Lost {
                return context.give_back_orphan(address);
            }
            let _none_stays = match waited.and_none_stays() {
                Ok(none_stays) => none_stays,
                Err(not_yet) => return not_yet,
            };
            // SAFETY: from cuMemAllocAsync, given back once, and no work uses it.
            context.destroy(|driver| unsafe { driver.cuMemFree_v2(address) })
        }
        Origin::Lent { home, taker } => {
            // Let go of before it is taken: who takes it may give the stream work.
            let is_behind = enter_behind(home, streams).is_some();
            let waited = match is_behind {
                // Of a context that has failed a stream takes nothing any more.
                true => Waited::of(&home.is_idle().map(drop)),
                false => uses.wait(),
            };
            match waited {
                Waited::Refused | Waited::Stays => {}
                Waited::Done => taker.take(Some(home)),
                Waited::Lost => taker.take(None),
            }
            waited.so_far()
        }
        // The module goes with `block`, when nothing uses the variable; and what is
        // somebody's, of which he hears then.
        Origin::Empty | Origin::Global { .. } | Origin::Part { .. } | Origin::Foreign { .. } => {
            uses.wait().so_far()
        }
        origin => {
            let _none_stays = match uses.wait_for_all() {
                Ok(none_stays) => none_stays,
                Err(not_yet) => return not_yet,
            };
            match origin {
                Origin::Mapped { mapping } => mapping.unmap(),
                Origin::Imported => {
                    // SAFETY: from cuIpcOpenMemHandle, given back once, unused.
                    context.destroy(|driver| unsafe { driver.cuIpcCloseMemHandle(address) })
                }
                // SAFETY: from cuMemAlloc or cuMemAllocManaged, given back once, and no
                // work uses it.
                _ => context.destroy(|driver| unsafe { driver.cuMemFree_v2(address) }),
            }
        }
    }
}

/// Enters `home` for work behind all that `streams` have, if they can be told apart from
/// others and `home` is not captured.
fn enter_behind<'h>(home: &'h Stream, streams: &[Stream]) -> Option<Entered<'h>> {
    // Work in the legacy stream ends the captures of blocking streams.
    let breaks = |stream: &Stream| stream.is_legacy() && callback::captures_run();
    let mut others = streams.iter().filter(|stream| *stream != home);
    let behind = others.all(|stream| {
        !stream.is_per_thread() && !breaks(stream) && order_after(stream, home).is_ok()
    });
    let entered = home.enter().ok()?;
    (behind && !breaks(home) && entered.capture().is_none()).then_some(entered)
}
