//! Streams: queues of work that a device executes in order.
//!
//! A stream is a [`StreamCore`], to which resources used in it hold weak references, and a
//! [`StreamOwner`], shared by all handles that may queue work. Dropping the owner waits for the
//! work; only then may the core be dropped.
//!
//! Invariant: the work of a dropped core has finished. Elsewhere: capturing a stream's work
//! (`graph`), ordering between streams (`event`), host callbacks
//! (`host_callback`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use fercuda_cuda_sys::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream, CUstream_flags,
    CUstreamCaptureStatus,
};
use fercuda_cuda_sys::{Driver, Symbol, signatures};

use crate::callback::{self, PanicMessage};
use crate::capture_mode::{RelaxedCaptureMode, check_blocking_captures, is_capture_running};
use crate::capture_state::{CAPTURE_ENDING, CaptureState};
use crate::context::{Context, ResetObserver};
use crate::deferred::{self, NoResidentKernels};
use crate::error::{Error, Result, call, check};
use crate::ids::next_id;
use crate::lock::lock;
use crate::wait::WaitOutcome;

/// The capture that streams take part in.
pub(crate) type StreamCapture = CaptureState<Stream>;

/// A stream of a context. Clones are handles to the same stream; dropping the last one waits for
/// its work.
#[derive(Clone, Debug)]
pub struct Stream {
    core: Arc<StreamCore>,
    /// Waits when the last handle that may queue work is dropped. `None` for default streams, which
    /// outlive every value that names them, and for handles that only wait.
    _owner: Option<Arc<StreamOwner>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamHandleKind {
    /// Made by us, destroyed by us.
    Owned,
    /// The context's legacy default stream.
    Legacy,
    /// The default stream of this thread.
    PerThread(ThreadId),
    /// Another library's, which may destroy it once no handle of ours queues work there.
    Foreign,
}

/// How a stream takes part in captures.
#[derive(Debug)]
enum CaptureRole {
    /// In none: work queued is executed.
    None,
    /// Work queued becomes part of a graph.
    Capturing(Arc<StreamCapture>),
    /// The capture is ending; no work is accepted.
    Ending,
}

/// A stream to which work may be queued: while this lives, no capture of it
/// begins or ends.
#[derive(Debug)]
pub(crate) struct EnteredStream<'a> {
    stream: &'a Stream,
    role: RwLockReadGuard<'a, CaptureRole>,
}

impl<'a> EnteredStream<'a> {
    #[inline]
    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// The capture that work queued now becomes part of.
    #[inline]
    pub(crate) fn capture(&self) -> Option<&Arc<StreamCapture>> {
        match &*self.role {
            CaptureRole::Capturing(state) => Some(state),
            CaptureRole::None | CaptureRole::Ending => None,
        }
    }

    /// Waits until no work queued so far can access host memory any more, for as long as that
    /// takes. For a stream that is not captured.
    ///
    /// Other libraries may begin a capture that keeps this thread from waiting. Borrowed memory
    /// cannot be given back then, so this retries until the capture ends.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn wait_for_borrowed(&self) -> Result<()> {
        if self.stream.is_legacy() {
            // There, copies with host memory are done when they return.
            return Ok(());
        }
        let mut pause = Duration::from_micros(20);
        loop {
            let answer = self.stream.synchronize_raw();
            if WaitOutcome::of(&answer) != WaitOutcome::Refused {
                return answer;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }
}

// The fields that each launch reads come first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct StreamCore {
    raw: CUstream,
    id: u64,
    /// Even while `role` is `None`, and another number each time: it is incremented before a
    /// capture of the stream begins and after it has ended. Always odd for default streams.
    /// `CONTEXT_GONE` is set from a reset on.
    epoch: AtomicU64,
    /// The driver's function, if it has one.
    graph_launch: Option<signatures::cuGraphLaunch>,
    context: Context,
    kind: StreamHandleKind,
    /// Held for reading while work is queued, so that the work is captured if and only if the
    /// caller takes it to be. It is also held while work is waited for, so callbacks never wait for
    /// it.
    role: RwLock<CaptureRole>,
    /// The message of the first callback that panicked.
    panicked: PanicMessage,
}

/// In a core's epoch: the context was reset.
const CONTEXT_GONE: u64 = 1 << 63;

impl ResetObserver for StreamCore {
    /// The epoch is never that of an uncaptured stream again.
    fn mark_context_gone(&self) {
        self.epoch.fetch_or(CONTEXT_GONE, Ordering::AcqRel);
    }
}

fn graph_launch(driver: &Driver) -> Option<signatures::cuGraphLaunch> {
    let address = driver.address(Symbol::cuGraphLaunch).ok()?;
    // SAFETY: a filled slot of the table holds a function of its symbol's signature.
    Some(unsafe { std::mem::transmute::<NonNull<c_void>, signatures::cuGraphLaunch>(address) })
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        if self.kind != StreamHandleKind::Owned {
            return;
        }
        let (context, raw) = (self.context.clone(), self.raw);
        deferred::destroy_or_defer(move || {
            // SAFETY: `raw` came from cuStreamCreateWithPriority and this is
            // its only owner.
            context.destroy(|driver| unsafe { driver.cuStreamDestroy_v2(raw) })
        });
    }
}

/// Shared by all handles that may queue work.
#[derive(Debug)]
struct StreamOwner(Arc<StreamCore>);

impl Drop for StreamOwner {
    fn drop(&mut self) {
        // The core lives until the work is done, whichever thread waits for it.
        let stream = Stream {
            core: self.0.clone(),
            _owner: None,
        };
        deferred::destroy_or_defer(move || {
            let waited = stream.wait_to_destroy();
            if waited == WaitOutcome::Lost {
                // A callback may be running, and nothing tells when it ends. Holders of weak
                // references must still find the stream, and get the same outcome.
                std::mem::forget(stream.clone());
            }
            waited.destroy_outcome()
        });
    }
}

impl Context {
    /// The stream that waits for, and that is waited for by, every stream that was not made
    /// non-blocking. The CUDA runtime's null stream is this one.
    pub fn legacy_stream(&self) -> Stream {
        let (id, panicked) = self.legacy_stream_parts();
        Stream::legacy(self.clone(), id, panicked)
    }

    /// The calling thread's own default stream; an error in any other thread.
    pub fn per_thread_stream(&self) -> Stream {
        Stream::per_thread(self.clone(), self.per_thread_id())
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.core.id == other.core.id
    }
}

impl Eq for Stream {}

impl Stream {
    /// A stream that does not wait for the legacy default stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Context) -> Result<Self> {
        Self::create(context, CUstream_flags::CU_STREAM_NON_BLOCKING, 0)
    }

    /// As [`Stream::new`], with a priority. Values outside
    /// [`Context::stream_priorities`] are moved to the nearest.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn with_priority(context: &Context, priority: i32) -> Result<Self> {
        Self::create(context, CUstream_flags::CU_STREAM_NON_BLOCKING, priority)
    }

    /// A stream that waits for the legacy default stream and that the legacy stream waits for.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn blocking(context: &Context) -> Result<Self> {
        Self::create(context, CUstream_flags::CU_STREAM_DEFAULT, 0)
    }

    /// A stream of another library, for work in its order. It is not destroyed. What was used in
    /// it waits for all streams of the context before it is destroyed itself, as the handle may be
    /// gone by then.
    ///
    /// # Safety
    /// `raw` is a stream of the context, other than its default streams, and its owner does not
    /// destroy it before the caller has dropped the last clone of this value.
    pub unsafe fn foreign(context: &Context, raw: CUstream) -> Self {
        Self::from_parts(
            context.clone(),
            raw,
            next_id(),
            StreamHandleKind::Foreign,
            PanicMessage::default(),
        )
    }

    /// Whether the driver captures its work, for whichever library.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn is_captured_by_any(&self) -> Result<bool> {
        let driver = self.context().bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` outlives the call and the stream is alive.
        let answer = unsafe { driver.cuStreamIsCapturing(self.raw(), &mut status) };
        match answer {
            // The legacy stream, while another one that it waits for is captured.
            Ok(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => Ok(true),
            answer => check(answer, "cuStreamIsCapturing", || {
                "ask whether a stream is captured".into()
            })
            .map(|()| status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        }
    }

    fn create(context: &Context, flags: CUstream_flags, priority: i32) -> Result<Self> {
        let driver = context.bind()?;
        let mut raw = CUstream::NULL;
        // SAFETY: `raw` outlives the call.
        unsafe {
            call!(
                driver,
                cuStreamCreateWithPriority(&mut raw, flags.0, priority),
                "make a stream on {}",
                context.device()
            )?;
        }
        Ok(Self::from_parts(
            context.clone(),
            raw,
            next_id(),
            StreamHandleKind::Owned,
            PanicMessage::default(),
        ))
    }

    fn legacy(context: Context, id: u64, panicked: PanicMessage) -> Self {
        Self::from_parts(
            context,
            CU_STREAM_LEGACY,
            id,
            StreamHandleKind::Legacy,
            panicked,
        )
    }

    /// The calling thread's stream of `context`, which has the identifier `of_context`.
    fn per_thread(context: Context, of_context: u64) -> Self {
        thread_local! {
            /// Identifiers of this thread's streams and their callbacks' panic messages, by the
            /// identifier of their context.
            static STREAMS: RefCell<HashMap<u64, (u64, PanicMessage)>> = RefCell::default();
        }
        let (id, panicked) = STREAMS.with_borrow_mut(|streams| {
            streams
                .entry(of_context)
                .or_insert_with(|| (next_id(), PanicMessage::default()))
                .clone()
        });
        let kind = StreamHandleKind::PerThread(std::thread::current().id());
        Self::from_parts(context, CU_STREAM_PER_THREAD, id, kind, panicked)
    }

    fn from_parts(
        context: Context,
        raw: CUstream,
        id: u64,
        kind: StreamHandleKind,
        panicked: PanicMessage,
    ) -> Self {
        let core = Arc::new(StreamCore {
            raw,
            id,
            graph_launch: graph_launch(context.driver()),
            context,
            kind,
            role: RwLock::new(CaptureRole::None),
            epoch: AtomicU64::new(u64::from(kind != StreamHandleKind::Owned)),
            panicked,
        });
        let owner = (kind == StreamHandleKind::Owned).then(|| Arc::new(StreamOwner(core.clone())));
        if owner.is_some() {
            let observer: Weak<StreamCore> = Arc::downgrade(&core);
            core.context.observe_reset(observer);
        }
        Self {
            core,
            _owner: owner,
        }
    }

    /// The message of the first of its callbacks that panicked.
    pub(crate) fn panicked(&self) -> &PanicMessage {
        &self.core.panicked
    }

    /// Its context.
    #[inline]
    pub fn context(&self) -> &Context {
        &self.core.context
    }

    /// The driver's own handle.
    #[inline]
    pub fn raw(&self) -> CUstream {
        self.core.raw
    }

    /// The driver's cuGraphLaunch, by one load.
    #[inline]
    pub(crate) fn graph_launch(&self) -> Option<signatures::cuGraphLaunch> {
        self.core.graph_launch
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.core.id
    }

    /// Whether it is the legacy default stream.
    pub(crate) fn is_legacy(&self) -> bool {
        self.core.kind == StreamHandleKind::Legacy
    }

    /// Whether waiting for it means waiting for other streams too, which
    /// breaks their captures.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.is_legacy() || self.has_lost_handle()
    }

    /// Whether its handle is of no use later or elsewhere: the default stream of one thread, or
    /// another library's stream.
    pub(crate) fn is_handle_of_the_moment(&self) -> bool {
        let kind = self.core.kind;
        matches!(
            kind,
            StreamHandleKind::PerThread(_) | StreamHandleKind::Foreign
        )
    }

    /// Whether what has noted it has no handle that the driver knows.
    fn has_lost_handle(&self) -> bool {
        self.core.kind == StreamHandleKind::Foreign || self.is_of_another_thread()
    }

    /// Whether it is the default stream of another thread, for which the driver has no handle in
    /// this one.
    pub(crate) fn is_of_another_thread(&self) -> bool {
        match self.core.kind {
            StreamHandleKind::PerThread(owner) => owner != std::thread::current().id(),
            StreamHandleKind::Owned | StreamHandleKind::Legacy | StreamHandleKind::Foreign => false,
        }
    }

    fn refuse_other_thread(&self) -> Result<()> {
        if self.is_of_another_thread() {
            return Err(Error::Value {
                operation: "use a per-thread stream",
                reason: "it is that of another thread; ask the context for this thread's".into(),
            });
        }
        Ok(())
    }

    /// Whether it was made by this crate, so that it may be captured.
    pub(crate) fn is_owned(&self) -> bool {
        self.core.kind == StreamHandleKind::Owned
    }

    /// The priority that the driver gave it; a smaller number is a higher priority.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn priority(&self) -> Result<i32> {
        let driver = self.context().bind()?;
        let mut priority = 0;
        // SAFETY: `priority` outlives the call and the stream is alive.
        unsafe {
            call!(
                driver,
                cuStreamGetPriority(self.raw(), &mut priority),
                "ask a stream's priority"
            )?;
        }
        Ok(priority)
    }

    /// Waits until its work is done.
    ///
    /// # Errors
    /// The first error of that work; [`Error::CallbackPanicked`] once after a
    /// host callback panicked; [`Error::Capturing`].
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_other_thread()?;
        self.refuse_capture("wait for a stream")?;
        let waited = self.synchronize_raw();
        deferred::drain();
        waited?;
        match lock(&self.core.panicked).take() {
            Some(message) => Err(Error::CallbackPanicked { message }),
            None => Ok(()),
        }
    }

    /// Whether its work is done. Never waits.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        self.refuse_other_thread()?;
        self.refuse_capture("query a stream")?;
        let driver = self.context().bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        // SAFETY: the stream is alive and its context current.
        match unsafe { driver.cuStreamQuery(self.raw()) } {
            Ok(CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
            answer => check(answer, "cuStreamQuery", || "query a stream".into()).map(|()| true),
        }
    }

    /// Refuses objects of another driver: their handles mean nothing to this one.
    pub(crate) fn same_driver(&self, operation: &'static str, other: &Context) -> Result<()> {
        self.context().same_driver(operation, other)
    }

    /// Waits for the stream's work, even while other streams are captured. For a stream of this
    /// thread that is not captured itself.
    fn synchronize_raw(&self) -> Result<()> {
        let driver = self.context().bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        if self.is_legacy() {
            check_blocking_captures(driver)?;
        }
        // SAFETY: the stream is alive and its context current.
        let waited = unsafe { call!(driver, cuStreamSynchronize(self.raw()), "wait for a stream") };
        if waited.as_ref().is_err_and(Error::is_sticky) {
            Context::wait_for_lost_context(driver);
        }
        waited
    }

    /// Waits for the stream's work, so that what it used is free again. Returns at once for a
    /// stream that is being captured: its work was waited for when the capture began.
    ///
    /// # Errors
    /// The work's; [`Error::Capturing`] if captures keep it from waiting.
    pub(crate) fn wait_for_work(&self) -> Result<()> {
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        let role = self.role();
        if !matches!(*role, CaptureRole::None) {
            return Ok(());
        }
        if self.waits_for_others() && is_capture_running() {
            return Err(Error::Capturing {
                operation: "wait for a default stream",
                advice: "end the captures that run, or work in a stream made with Stream::new",
            });
        }
        if !self.has_lost_handle() {
            return self.synchronize_raw();
        }
        let driver = self.context().bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        // SAFETY: takes no arguments; the context is current. The stream has no handle in this
        // thread, so all streams are waited for.
        let waited = unsafe { call!(driver, cuCtxSynchronize(), "wait for all streams") };
        if waited.as_ref().is_err_and(Error::is_sticky) {
            Context::wait_for_lost_context(driver);
        }
        waited
    }

    /// Waits until no work queued so far can access host memory that a scope borrowed; see
    /// [`EnteredStream::wait_for_borrowed`].
    pub(crate) fn wait_for_borrowed(&self) {
        let role = self.role();
        // Copies in default streams are done already, and the work of a stream that is being
        // captured was waited for when the capture began.
        if matches!(*role, CaptureRole::None) && self.is_owned() {
            // Errors of the work are reported to the threads that wait for it.
            drop(EnteredStream { stream: self, role }.wait_for_borrowed());
        }
    }

    /// Waits before an object that its work uses is destroyed. Errors of the work are reported to
    /// the threads that wait for it.
    pub(crate) fn wait_to_destroy(&self) -> WaitOutcome {
        // All streams are waited for in that case.
        let _none = match self.has_lost_handle() {
            true => match NoResidentKernels::acquire() {
                Ok(none) => Some(none),
                Err(_) => return WaitOutcome::KernelResident,
            },
            false => None,
        };
        WaitOutcome::of(&self.wait_for_work())
    }

    /// Whether its work is being captured, or a capture of it is beginning or ending in another
    /// thread.
    pub fn is_capturing(&self) -> bool {
        // Callbacks call this too, and must not wait for a thread that waits for them.
        match self.core.role.try_read() {
            Ok(role) => !matches!(*role, CaptureRole::None),
            Err(TryLockError::Poisoned(role)) => !matches!(**role.get_ref(), CaptureRole::None),
            Err(TryLockError::WouldBlock) => true,
        }
    }

    fn role(&self) -> RwLockReadGuard<'_, CaptureRole> {
        self.core
            .role
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn role_mut(&self) -> RwLockWriteGuard<'_, CaptureRole> {
        self.core
            .role
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the stream to queue work; the guard is held until that is queued. A thread holds one
    /// at a time.
    ///
    /// # Errors
    /// [`Error::Capturing`] while another thread ends a capture of it;
    /// [`Error::InCallback`].
    #[inline]
    pub(crate) fn enter(&self) -> Result<EnteredStream<'_>> {
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        self.refuse_other_thread()?;
        let role = self.role();
        match *role {
            CaptureRole::None | CaptureRole::Capturing(_) => {
                Ok(EnteredStream { stream: self, role })
            }
            CaptureRole::Ending => Err(CAPTURE_ENDING),
        }
    }

    /// A number, if the stream is owned and not captured. If it is still the same after a driver
    /// call, no capture of the stream had begun before that call: a thread that begins one
    /// increments the number first. This relies on the driver ordering its calls for one stream
    /// among each other, as it does where they take a lock.
    #[inline]
    pub(crate) fn uncaptured_epoch(&self) -> Option<u64> {
        let epoch = self.epoch();
        (epoch & (CONTEXT_GONE | 1) == 0).then_some(epoch)
    }

    /// The number to compare with [`Stream::uncaptured_epoch`] after the call.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.core.epoch.load(Ordering::Acquire)
    }

    /// As [`Stream::enter`], for work that must not be captured.
    ///
    /// # Errors
    /// `refusal` if it would be captured.
    pub(crate) fn enter_uncaptured(&self, refusal: Error) -> Result<EnteredStream<'_>> {
        let entered = self.enter()?;
        match entered.capture() {
            None => Ok(entered),
            Some(_) => Err(refusal),
        }
    }

    pub(crate) fn capture_state(&self) -> Option<Arc<StreamCapture>> {
        match &*self.role() {
            CaptureRole::Capturing(state) => Some(state.clone()),
            CaptureRole::None | CaptureRole::Ending => None,
        }
    }

    /// Waits for its work and makes it part of the capture `state` by `join`, with no work in
    /// between.
    ///
    /// # Errors
    /// [`Error::Capturing`] if it takes part in a capture, or is a default
    /// stream; those of `join`.
    pub(crate) fn enter_capture(
        &self,
        state: &Arc<StreamCapture>,
        join: impl FnOnce(&Driver) -> Result<()>,
    ) -> Result<()> {
        if !self.is_owned() {
            return Err(Error::Capturing {
                operation: "capture a default stream",
                advice: "a stream made with Stream::new",
            });
        }
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        let mut role = self.role_mut();
        if !matches!(*role, CaptureRole::None) {
            return Err(Error::Capturing {
                operation: "capture a stream",
                advice: "end the capture that it takes part in first",
            });
        }
        // Launches read the number alone; see `uncaptured_epoch`.
        self.move_epoch_on();
        // Memory allocated in the order of this stream then exists before captured work uses it,
        // and code that waits for the stream may take its work to be done while it is captured.
        let joined = self.synchronize_raw().and_then(|()| {
            let driver = self.context().bind()?;
            state.join(self, || join(driver))
        });
        match joined {
            Ok(()) => *role = CaptureRole::Capturing(state.clone()),
            Err(_) => self.move_epoch_on(),
        }
        joined
    }

    fn move_epoch_on(&self) {
        self.core.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Refuses work until [`Stream::leave_capture`].
    pub(crate) fn stop_capturing(&self) {
        *self.role_mut() = CaptureRole::Ending;
    }

    pub(crate) fn leave_capture(&self) {
        let mut role = self.role_mut();
        *role = CaptureRole::None;
        self.move_epoch_on();
    }

    pub(crate) fn refuse_capture(&self, operation: &'static str) -> Result<()> {
        if self.is_capturing() {
            return Err(Error::Capturing {
                operation,
                advice: "do it before the capture begins or after it ends",
            });
        }
        Ok(())
    }

    pub(crate) fn downgrade(&self) -> WeakStream {
        match self.core.kind {
            StreamHandleKind::Owned => WeakStream::Owned(Arc::downgrade(&self.core)),
            // The default streams outlive every value that names them, and of another library's
            // the handle is not used any more.
            StreamHandleKind::Legacy
            | StreamHandleKind::PerThread(_)
            | StreamHandleKind::Foreign => WeakStream::Default(self.clone()),
        }
    }
}

/// A weak reference to a stream, which exists until its work is done.
#[derive(Debug)]
pub(crate) enum WeakStream {
    Owned(Weak<StreamCore>),
    Default(Stream),
}

/// Orders what follows after the wait of the thread that dropped the core, which seeing it gone
/// does not do by itself. Returns `false`: the stream is not alive.
fn acquire_finished() -> bool {
    fence(Ordering::Acquire);
    false
}

impl WeakStream {
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Owned(core) => core.strong_count() > 0 || acquire_finished(),
            Self::Default(_) => true,
        }
    }

    /// Whether it is another library's.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self, Self::Default(stream) if stream.core.kind == StreamHandleKind::Foreign)
    }

    /// Whether it is another library's, and of that context.
    pub(crate) fn is_foreign_of(&self, context: &Context) -> bool {
        self.is_foreign() && matches!(self, Self::Default(stream) if stream.context() == context)
    }

    pub(crate) fn upgrade(&self) -> Option<Stream> {
        match self {
            Self::Owned(core) => match core.upgrade() {
                Some(core) => Some(Stream { core, _owner: None }),
                None => {
                    acquire_finished();
                    None
                }
            },
            Self::Default(stream) => Some(stream.clone()),
        }
    }
}
