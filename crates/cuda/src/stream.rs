//! Streams: queues of work that a device does in order.
//!
//! A stream is a [`Core`], which things that were used in it know weakly, and
//! an [`Owner`], which everybody who may queue work shares. When the owner
//! goes, the work is waited for, and only then may the core go.
//!
//! Invariant: a core that is gone has finished its work. Elsewhere: capturing
//! a stream's work (`graph`), ordering between streams (`event`).

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{
    Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak,
};
use std::thread::ThreadId;
use std::time::Duration;

use fercuda_cuda_sys::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream, CUstream_flags,
    CUstreamCaptureStatus,
};
use fercuda_cuda_sys::{Driver, Symbol, signatures};

use crate::callback::{self, Destroyed, NoneStays};
use crate::context::{Context, Relaxed};
use crate::error::{Error, Result, call, check};
use crate::event::Event;
use crate::graph::CaptureState;
use crate::uses::lock;

/// An identifier no other stream of this process has or had.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Waiting for the legacy stream, or for all, while a blocking stream is captured ends
/// that capture; this question does not. In the current context.
///
/// # Errors
/// The driver's, if one is.
pub(crate) fn ask_for_blocking_captures(driver: &Driver) -> Result<()> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: `status` outlives the call.
    match unsafe { driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &mut status) } {
        Ok(answer) => check(Ok(answer), "cuStreamIsCapturing", || {
            "wait for the legacy stream".into()
        }),
        // A driver that lacks it captures nothing.
        Err(_) => Ok(()),
    }
}

/// A stream of a context. Cloning gives another name for the same stream; the
/// last one dropped waits for its work.
#[derive(Clone, Debug)]
pub struct Stream {
    core: Arc<Core>,
    /// Waits when the last of those who may queue work is gone. Default
    /// streams outlive every value that names them, and what only waits has
    /// nothing to wait for when it goes.
    _owner: Option<Arc<Owner>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Made by us, destroyed by us.
    Owned,
    /// The context's legacy default stream.
    Legacy,
    /// The default stream of this thread.
    PerThread(ThreadId),
}

/// What part a stream takes in captures.
#[derive(Debug)]
enum Part {
    /// None: work given to it is done.
    Free,
    /// Work given to it becomes part of a graph.
    Capturing(Arc<CaptureState>),
    /// The capture is being ended; no work is taken.
    Ending,
}

/// A stream to which work may be queued: while this lives, no capture of it
/// begins or ends.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    stream: &'a Stream,
    part: RwLockReadGuard<'a, Part>,
}

impl<'a> Entered<'a> {
    #[inline]
    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// The capture that work queued now becomes part of.
    #[inline]
    pub(crate) fn capture(&self) -> Option<&Arc<CaptureState>> {
        match &*self.part {
            Part::Capturing(state) => Some(state),
            Part::Free | Part::Ending => None,
        }
    }

    /// Waits until no work queued so far can touch host memory any more, for
    /// as long as that takes. For a stream that is not captured.
    ///
    /// Other libraries may begin a capture that keeps this thread from
    /// waiting. Memory that is only borrowed cannot be given back then, so
    /// this asks again until it ends.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn wait_for_borrowed(&self) -> Result<()> {
        if self.stream.is_legacy() {
            // Copies with host memory there are done when they return.
            return Ok(());
        }
        let mut pause = Duration::from_micros(20);
        loop {
            let answer = self.stream.settle();
            if Waited::of(&answer) != Waited::Refused {
                return answer;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }
}

/// What a wait has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub(crate) enum Waited {
    /// The work is done.
    Done,
    /// The context is lost. The device does nothing more in it; a callback of
    /// another stream may still be running.
    Lost,
    /// The driver did not wait, because of a capture in the way.
    Refused,
    /// It was not asked: it would have waited for a kernel that stays.
    Stays,
}

impl Waited {
    pub(crate) fn of(answer: &Result<()>) -> Self {
        match answer {
            Ok(()) => Self::Done,
            Err(error) if error.is_refusal() => Self::Refused,
            // Errors that are no refusal are of the work or of the context;
            // either way it is not there any more.
            Err(_) => Self::Lost,
        }
    }

    /// Whether what was to be destroyed behind that can be now.
    pub(crate) fn so_far(self) -> Destroyed {
        match self {
            Self::Done | Self::Lost => Destroyed::Yes,
            Self::Refused => Destroyed::NotYet,
            Self::Stays => Destroyed::WhileOneStays,
        }
    }

    /// The same where the whole device is waited for: no kernel stays as long as what is
    /// returned is there.
    pub(crate) fn and_none_stays(self) -> std::result::Result<NoneStays, Destroyed> {
        match self.so_far() {
            Destroyed::Yes => NoneStays::now(),
            not_yet => Err(not_yet),
        }
    }
}

// What each launch looks at lies first, in one line of the core's cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Core {
    raw: CUstream,
    id: u64,
    /// Even while `part` is free, and another number each time: it moves on
    /// before a capture of the stream begins and after it has ended. Always
    /// odd for default streams. With `CONTEXT_GONE` from a reset on.
    epoch: AtomicU64,
    /// The driver's function, if it has it.
    graph_launch: Option<signatures::cuGraphLaunch>,
    context: Context,
    kind: Kind,
    /// Held for reading while work is queued, so that what the work is taken
    /// for, captured or not, is what it is. It is also held while work is
    /// waited for, so callbacks never wait for it.
    part: RwLock<Part>,
    /// What the first callback that panicked said.
    panicked: Panicked,
}

/// In a core's epoch: its context was reset.
const CONTEXT_GONE: u64 = 1 << 63;

impl Core {
    /// Its context was reset: it is never free any more.
    pub(crate) fn end(&self) {
        self.epoch.fetch_or(CONTEXT_GONE, Ordering::AcqRel);
    }
}

fn graph_launch(driver: &Driver) -> Option<signatures::cuGraphLaunch> {
    let address = driver.address(Symbol::cuGraphLaunch).ok()?;
    // SAFETY: a filled slot of the table holds a function of its symbol's signature.
    Some(unsafe { std::mem::transmute::<NonNull<c_void>, signatures::cuGraphLaunch>(address) })
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.kind != Kind::Owned {
            return;
        }
        let (context, raw) = (self.context.clone(), self.raw);
        callback::outside(move || {
            // SAFETY: `raw` came from cuStreamCreateWithPriority and this is
            // its only owner.
            context.destroy(|driver| unsafe { driver.cuStreamDestroy_v2(raw) })
        });
    }
}

/// Shared by everybody who may queue work in a stream.
#[derive(Debug)]
struct Owner(Arc<Core>);

impl Drop for Owner {
    fn drop(&mut self) {
        // The core stays until the work is done, whoever waits for it.
        let stream = Stream {
            core: self.0.clone(),
            _owner: None,
        };
        callback::outside(move || {
            let waited = stream.wait_to_destroy();
            if waited == Waited::Lost {
                // A callback may be running and nothing tells when it ends.
                // Those who know the stream weakly are to find it, and learn
                // the same.
                std::mem::forget(stream.clone());
            }
            waited.so_far()
        });
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

    /// A stream that waits for the legacy default stream and is waited for by
    /// it.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn blocking(context: &Context) -> Result<Self> {
        Self::create(context, CUstream_flags::CU_STREAM_DEFAULT, 0)
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
            Kind::Owned,
            Panicked::default(),
        ))
    }

    pub(crate) fn legacy(context: Context, id: u64, panicked: Panicked) -> Self {
        Self::from_parts(context, CU_STREAM_LEGACY, id, Kind::Legacy, panicked)
    }

    /// The calling thread's, in `context`, whose own identifier is `of_context`.
    pub(crate) fn per_thread(context: Context, of_context: u64) -> Self {
        thread_local! {
            /// Identifiers of this thread's streams and what their callbacks
            /// said, by the identifier of their context.
            static STREAMS: RefCell<HashMap<u64, (u64, Panicked)>> = RefCell::default();
        }
        let (id, panicked) = STREAMS.with_borrow_mut(|streams| {
            streams
                .entry(of_context)
                .or_insert_with(|| (next_id(), Panicked::default()))
                .clone()
        });
        let kind = Kind::PerThread(std::thread::current().id());
        Self::from_parts(context, CU_STREAM_PER_THREAD, id, kind, panicked)
    }

    fn from_parts(
        context: Context,
        raw: CUstream,
        id: u64,
        kind: Kind,
        panicked: Panicked,
    ) -> Self {
        let core = Arc::new(Core {
            raw,
            id,
            graph_launch: graph_launch(context.driver()),
            context,
            kind,
            part: RwLock::new(Part::Free),
            epoch: AtomicU64::new(u64::from(kind != Kind::Owned)),
            panicked,
        });
        let owner = (kind == Kind::Owned).then(|| Arc::new(Owner(core.clone())));
        if owner.is_some() {
            core.context.note_stream(&core);
        }
        Self {
            core,
            _owner: owner,
        }
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

    /// The driver's cuGraphLaunch, at one look.
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
        self.core.kind == Kind::Legacy
    }

    /// Whether waiting for it means waiting for other streams too, which
    /// breaks their captures.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.is_legacy() || self.is_of_another_thread()
    }

    /// Whether it is the default stream of one thread.
    pub(crate) fn is_per_thread(&self) -> bool {
        matches!(self.core.kind, Kind::PerThread(_))
    }

    /// Whether it is the default stream of another thread, which the driver
    /// has no name for in this one.
    pub(crate) fn is_of_another_thread(&self) -> bool {
        match self.core.kind {
            Kind::PerThread(owner) => owner != std::thread::current().id(),
            Kind::Owned | Kind::Legacy => false,
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
        self.core.kind == Kind::Owned
    }

    /// The priority the driver gave it; a smaller number is the higher one.
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
        let waited = self.settle();
        callback::drain();
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
        let _relaxed = Relaxed::enter(driver);
        // SAFETY: the stream is alive and its context current.
        match unsafe { driver.cuStreamQuery(self.raw()) } {
            Ok(CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
            answer => check(answer, "cuStreamQuery", || "query a stream".into()).map(|()| true),
        }
    }

    /// Records a new event, without timing, behind the work so far.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&self) -> Result<Event> {
        let event = Event::untimed(self.context())?;
        event.record(self)?;
        Ok(event)
    }

    /// Lets later work of this stream wait for what was last recorded in
    /// `event`. The host does not wait.
    ///
    /// If that was recorded in a stream being captured, this stream joins the
    /// capture.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Capturing`] if a default stream would join.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.same_driver("let a stream wait for an event", event.context())?;
        let wait = |driver: &Driver| {
            // SAFETY: both are alive and of this driver.
            unsafe {
                call!(
                    driver,
                    cuStreamWaitEvent(self.raw(), event.raw(), 0),
                    "let a stream wait for an event"
                )
            }
        };
        let entered = self.enter()?;
        // Held over the call, so that the event is not moved into a capture,
        // or out of it, in between.
        let place = event.place();
        match (place.capture(), entered.capture()) {
            (Some(state), None) => {
                drop((place, entered));
                self.take_part(&state, |driver| {
                    let place = event.place();
                    match place.capture() {
                        Some(now) if Arc::ptr_eq(&now, &state) => wait(driver),
                        _ => Err(Error::Capturing {
                            operation: "wait for an event that another thread records",
                            advice: "record and wait in one thread, or order the two",
                        }),
                    }
                })
            }
            _ => wait(self.context().bind()?),
        }
    }

    /// Refuses what belongs to another driver, whose handles mean nothing to
    /// this one.
    pub(crate) fn same_driver(&self, operation: &'static str, other: &Context) -> Result<()> {
        self.context().same_driver(operation, other)
    }

    /// Waits for the stream's work, whatever other streams capture. For a
    /// stream that is not captured itself, of this thread.
    fn settle(&self) -> Result<()> {
        let driver = self.context().bind()?;
        let _relaxed = Relaxed::enter(driver);
        if self.is_legacy() {
            ask_for_blocking_captures(driver)?;
        }
        // SAFETY: the stream is alive and its context current.
        let waited = unsafe { call!(driver, cuStreamSynchronize(self.raw()), "wait for a stream") };
        if waited.as_ref().is_err_and(Error::is_sticky) {
            Context::settle_lost(driver);
        }
        waited
    }

    /// Waits for the stream's work, so that what it used is free again. A
    /// stream that is being captured settled when that began.
    ///
    /// # Errors
    /// The work's; [`Error::Capturing`] if captures keep it from waiting.
    pub(crate) fn settle_all(&self) -> Result<()> {
        if callback::inside() {
            return Err(Error::InCallback);
        }
        let part = self.part();
        if !matches!(*part, Part::Free) {
            return Ok(());
        }
        if self.waits_for_others() && callback::captures_run() {
            return Err(Error::Capturing {
                operation: "wait for a default stream",
                advice: "end the captures that run, or work in a stream made with Stream::new",
            });
        }
        if !self.is_of_another_thread() {
            return self.settle();
        }
        let driver = self.context().bind()?;
        let _relaxed = Relaxed::enter(driver);
        // SAFETY: takes no arguments; the context is current. The stream has
        // no name in this thread, so all are waited for.
        let waited = unsafe { call!(driver, cuCtxSynchronize(), "wait for all streams") };
        if waited.as_ref().is_err_and(Error::is_sticky) {
            Context::settle_lost(driver);
        }
        waited
    }

    /// Waits until no work queued so far can touch host memory that a scope
    /// borrowed; see [`Entered::wait_for_borrowed`].
    pub(crate) fn wait_for_borrowed(&self) {
        let part = self.part();
        // Copies in default streams are done already, and a stream that is
        // being captured has settled before.
        if matches!(*part, Part::Free) && self.is_owned() {
            // The work's errors are for its waiters.
            drop(Entered { stream: self, part }.wait_for_borrowed());
        }
    }

    /// Waits before something its work uses is destroyed. The work's errors
    /// are for its waiters.
    pub(crate) fn wait_to_destroy(&self) -> Waited {
        // All streams are waited for then.
        let _none = match self.is_of_another_thread() {
            true => match NoneStays::now() {
                Ok(none) => Some(none),
                Err(_) => return Waited::Stays,
            },
            false => None,
        };
        Waited::of(&self.settle_all())
    }

    /// Runs `body` on a thread of the driver's when the work so far is done;
    /// later work waits for it. A panic is caught and reported by the next
    /// [`Stream::synchronize`]. If the context is lost before its turn comes,
    /// `body` is neither run nor dropped.
    ///
    /// `body` must not call CUDA; through this crate it gets
    /// [`Error::InCallback`], and what it drops is destroyed later.
    ///
    /// # Errors
    /// [`Error::Capturing`]: a graph runs its callbacks many times, see
    /// [`Capture::host_callback`](crate::Capture::host_callback).
    pub fn host_callback(&self, body: impl FnOnce() + Send + 'static) -> Result<()> {
        struct Once<F> {
            body: F,
            panicked: Arc<Mutex<Option<String>>>,
        }
        unsafe extern "C" fn run<F: FnOnce()>(data: *mut c_void) {
            // SAFETY: `data` is the box leaked below, given to the driver for
            // exactly one call.
            let once = unsafe { Box::from_raw(data.cast::<Once<F>>()) };
            let Once { body, panicked } = *once;
            run_guarded(body, &panicked);
        }
        fn pointer_to<F: FnOnce()>(_: &Once<F>) -> unsafe extern "C" fn(*mut c_void) {
            run::<F>
        }

        let entered = self.enter_uncaptured(Error::Capturing {
            operation: "run a callback once",
            advice: "a graph runs its callbacks in every launch: Capture::host_callback",
        })?;
        let driver = self.context().bind()?;
        let once = Box::new(Once {
            body,
            panicked: self.core.panicked.clone(),
        });
        let function = pointer_to(&once);
        let data = Box::into_raw(once);
        // SAFETY: `function` takes `data` back, once; both stay valid until
        // then whatever happens to `self`.
        let launched = unsafe {
            call!(
                driver,
                cuLaunchHostFunc(self.raw(), Some(function), data.cast()),
                "queue a host callback"
            )
        };
        // What the body drops may ask for the stream in its turn.
        drop(entered);
        if launched.is_err() {
            // SAFETY: the driver refused it, so it will not call `function`.
            drop(unsafe { Box::from_raw(data) });
        }
        launched
    }

    /// Whether its work is being captured, or a capture of it begins or ends
    /// in another thread just now.
    pub fn is_capturing(&self) -> bool {
        // Callbacks ask too, and must not wait for who waits for them.
        match self.core.part.try_read() {
            Ok(part) => !matches!(*part, Part::Free),
            Err(TryLockError::Poisoned(part)) => !matches!(**part.get_ref(), Part::Free),
            Err(TryLockError::WouldBlock) => true,
        }
    }

    fn part(&self) -> RwLockReadGuard<'_, Part> {
        self.core
            .part
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn part_mut(&self) -> RwLockWriteGuard<'_, Part> {
        self.core
            .part
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held while work is queued. A thread holds one at a time.
    ///
    /// # Errors
    /// [`Error::Capturing`] while another thread ends a capture of it;
    /// [`Error::InCallback`].
    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        if callback::inside() {
            return Err(Error::InCallback);
        }
        self.refuse_other_thread()?;
        let part = self.part();
        match *part {
            Part::Free | Part::Capturing(_) => Ok(Entered { stream: self, part }),
            Part::Ending => Err(ENDING),
        }
    }

    /// A number while the stream is one of ours and free. If it is still the
    /// same after a call of the driver's, no capture of the stream had begun
    /// before that call: who begins one moves the number on first. That rests
    /// on the driver ordering its calls for one stream among each other, as it
    /// does where they take a lock.
    #[inline]
    pub(crate) fn free_epoch(&self) -> Option<u64> {
        let epoch = self.epoch();
        (epoch & (CONTEXT_GONE | 1) == 0).then_some(epoch)
    }

    /// What to compare a [`Stream::free_epoch`] with after the call.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.core.epoch.load(Ordering::Acquire)
    }

    /// As [`Stream::enter`], for work that must not be captured.
    ///
    /// # Errors
    /// `refusal` if it would be.
    pub(crate) fn enter_uncaptured(&self, refusal: Error) -> Result<Entered<'_>> {
        let entered = self.enter()?;
        match entered.capture() {
            None => Ok(entered),
            Some(_) => Err(refusal),
        }
    }

    pub(crate) fn capture_state(&self) -> Option<Arc<CaptureState>> {
        match &*self.part() {
            Part::Capturing(state) => Some(state.clone()),
            Part::Free | Part::Ending => None,
        }
    }

    /// Waits for its work and makes it take part in `state` by `join`, with no
    /// work in between.
    ///
    /// # Errors
    /// [`Error::Capturing`] if it takes part in a capture, or is a default
    /// stream; those of `join`.
    pub(crate) fn take_part(
        &self,
        state: &Arc<CaptureState>,
        join: impl FnOnce(&Driver) -> Result<()>,
    ) -> Result<()> {
        if !self.is_owned() {
            return Err(Error::Capturing {
                operation: "capture a default stream",
                advice: "a stream made with Stream::new",
            });
        }
        if callback::inside() {
            return Err(Error::InCallback);
        }
        let mut part = self.part_mut();
        if !matches!(*part, Part::Free) {
            return Err(Error::Capturing {
                operation: "capture a stream",
                advice: "end the capture that it takes part in first",
            });
        }
        // Launches look at the number alone; see `free_epoch`.
        self.move_epoch_on();
        // Memory allocated in this stream's order is then there before
        // anything captured uses it, and whatever waits for the stream may
        // take it for done while it is captured.
        let joined = self.settle().and_then(|()| {
            let driver = self.context().bind()?;
            state.join(self, || join(driver))
        });
        match joined {
            Ok(()) => *part = Part::Capturing(state.clone()),
            Err(_) => self.move_epoch_on(),
        }
        joined
    }

    fn move_epoch_on(&self) {
        self.core.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes no more work until [`Stream::leave_capture`].
    pub(crate) fn stop_capturing(&self) {
        *self.part_mut() = Part::Ending;
    }

    pub(crate) fn leave_capture(&self) {
        let mut part = self.part_mut();
        *part = Part::Free;
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
            Kind::Owned => WeakStream::Owned(Arc::downgrade(&self.core)),
            // The default streams outlive every value that names them.
            Kind::Legacy | Kind::PerThread(_) => WeakStream::Default(self.clone()),
        }
    }
}

pub(crate) const ENDING: Error = Error::Capturing {
    operation: "queue work",
    advice: "wait until the thread that ends the capture has done so",
};

/// A stream that does not keep it from being dropped; it is there until the
/// work is done.
#[derive(Debug)]
pub(crate) enum WeakStream {
    Owned(Weak<Core>),
    Default(Stream),
}

/// Orders what follows behind the wait of the thread that let the core go, of
/// which seeing it gone says nothing by itself. Answers that it is gone.
fn finished() -> bool {
    fence(Ordering::Acquire);
    false
}

impl WeakStream {
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Owned(core) => core.strong_count() > 0 || finished(),
            Self::Default(_) => true,
        }
    }

    pub(crate) fn upgrade(&self) -> Option<Stream> {
        match self {
            Self::Owned(core) => match core.upgrade() {
                Some(core) => Some(Stream { core, _owner: None }),
                None => {
                    finished();
                    None
                }
            },
            Self::Default(stream) => Some(stream.clone()),
        }
    }
}

/// What the first callback that panicked said.
pub(crate) type Panicked = Arc<Mutex<Option<String>>>;

/// Runs a callback's body so that no panic reaches the driver's frames.
pub(crate) fn run_guarded(body: impl FnOnce(), panicked: &Mutex<Option<String>>) {
    callback::enter(|| {
        let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else {
            return;
        };
        let message = message_of(&*payload);
        // Dropping the payload may panic in its turn; that one is forgotten.
        if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            std::mem::forget(second);
        }
        lock(panicked).get_or_insert(message);
    });
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(message) = payload.downcast_ref::<&str>() {
        (*message).to_owned()
    } else if let Some(message) = payload.downcast_ref::<String>() {
        message.clone()
    } else {
        "it gave no message".to_owned()
    }
}
