//! Streams: queues of work that a device does in order.
//!
//! Invariant: a stream that was dropped has finished its work. Elsewhere:
//! capturing a stream's work (`graph`), ordering between streams (`event`).

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::ThreadId;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream, CUstream_flags,
};

use crate::callback;
use crate::context::{Context, Relaxed};
use crate::error::{Error, Result, call, check, is_sticky};
use crate::event::Event;
use crate::graph::CaptureState;
use crate::uses::lock;

/// An identifier no other stream of this process has or had.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A stream of a context. Cloning gives another name for the same stream; the
/// last one dropped waits for its work.
#[derive(Clone, Debug)]
pub struct Stream {
    inner: Arc<Inner>,
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
pub struct Entered<'a> {
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
}

#[derive(Debug)]
pub(crate) struct Inner {
    context: Context,
    raw: CUstream,
    id: u64,
    kind: Kind,
    /// Held for reading while work is queued, so that what the work is taken
    /// for, captured or not, is what it is.
    part: RwLock<Part>,
    /// What the first callback that panicked said.
    panicked: Arc<Mutex<Option<String>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.kind != Kind::Owned {
            return;
        }
        let (context, raw) = (self.context.clone(), self.raw);
        callback::outside(move || {
            let Ok(driver) = context.bind() else { return };
            let _relaxed = Relaxed::enter(driver);
            // SAFETY: `raw` came from cuStreamCreateWithPriority and this is
            // its only owner. Errors are of the work, which its waiters were
            // told, or of a lost context, which has nothing left to destroy.
            unsafe {
                if driver.cuStreamSynchronize(raw).is_ok_and(is_sticky) {
                    wait_for_lost(driver);
                }
                drop(driver.cuStreamDestroy_v2(raw));
            }
        });
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.inner.id == other.inner.id
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
        ))
    }

    pub(crate) fn legacy(context: Context, id: u64) -> Self {
        Self::from_parts(context, CU_STREAM_LEGACY, id, Kind::Legacy)
    }

    /// The calling thread's, in `context`, whose own identifier is `of_context`.
    pub(crate) fn per_thread(context: Context, of_context: u64) -> Self {
        thread_local! {
            /// Identifiers of this thread's streams, by that of their context.
            static IDS: RefCell<HashMap<u64, u64>> = RefCell::default();
        }
        let id = IDS.with_borrow_mut(|ids| *ids.entry(of_context).or_insert_with(next_id));
        let kind = Kind::PerThread(std::thread::current().id());
        Self::from_parts(context, CU_STREAM_PER_THREAD, id, kind)
    }

    fn from_parts(context: Context, raw: CUstream, id: u64, kind: Kind) -> Self {
        Self {
            inner: Arc::new(Inner {
                context,
                raw,
                id,
                kind,
                part: RwLock::new(Part::Free),
                panicked: Arc::default(),
            }),
        }
    }

    /// Its context.
    #[inline]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's own handle.
    #[inline]
    pub fn raw(&self) -> CUstream {
        self.inner.raw
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    /// Whether it is the default stream of one thread.
    pub(crate) fn is_per_thread(&self) -> bool {
        matches!(self.inner.kind, Kind::PerThread(_))
    }

    /// Whether it is the default stream of another thread, which the driver
    /// has no name for in this one.
    pub(crate) fn is_of_another_thread(&self) -> bool {
        match self.inner.kind {
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
        self.inner.kind == Kind::Owned
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
        let driver = self.context().bind()?;
        let waited = {
            let _relaxed = Relaxed::enter(driver);
            // SAFETY: the stream is alive and its context current.
            unsafe { call!(driver, cuStreamSynchronize(self.raw()), "wait for a stream") }
        };
        callback::drain();
        waited?;
        match lock(&self.inner.panicked).take() {
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
        match (event.capture(), entered.capture()) {
            (Some(state), None) => {
                drop(entered);
                self.take_part(&state, wait)
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
    /// stream that is not captured itself.
    pub(crate) fn settle(&self) -> Result<()> {
        let driver = self.context().bind()?;
        let _relaxed = Relaxed::enter(driver);
        // SAFETY: the stream is alive and its context current.
        let waited = unsafe { call!(driver, cuStreamSynchronize(self.raw()), "wait for a stream") };
        if waited.as_ref().is_err_and(Error::is_sticky) {
            wait_for_lost(driver);
        }
        waited
    }

    /// Waits for the stream's work, so that host memory it used is the host's
    /// again. A stream that is being captured settled when that began.
    ///
    /// # Errors
    /// The work's. It runs no more in either case.
    pub(crate) fn settle_or_lost(&self) -> Result<()> {
        let part = self.part();
        if !matches!(*part, Part::Free) {
            return Ok(());
        }
        if self.is_of_another_thread() {
            let driver = self.context().bind()?;
            let _relaxed = Relaxed::enter(driver);
            // SAFETY: the context is current.
            return unsafe { call!(driver, cuCtxSynchronize(), "wait for all streams") };
        }
        self.settle()
    }

    /// Waits before something its work uses is destroyed. Errors are those of
    /// the work, or of a lost context; in either case nothing runs any more.
    pub(crate) fn wait_to_destroy(&self) {
        let part = self.part();
        if !matches!(*part, Part::Free) {
            // It settled when it was captured, and has done nothing since.
            return;
        }
        let Ok(driver) = self.context().bind() else {
            return;
        };
        let _relaxed = Relaxed::enter(driver);
        // SAFETY: the stream is alive and its context current. One of another
        // thread has no name here, so all streams are waited for.
        unsafe {
            if self.is_of_another_thread() {
                drop(driver.cuCtxSynchronize());
            } else if driver.cuStreamSynchronize(self.raw()).is_ok_and(is_sticky) {
                wait_for_lost(driver);
            }
        }
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

        let _entered = self.enter_uncaptured(Error::Capturing {
            operation: "run a callback once",
            advice: "a graph runs its callbacks in every launch: Capture::host_callback",
        })?;
        let driver = self.context().bind()?;
        let once = Box::new(Once {
            body,
            panicked: self.inner.panicked.clone(),
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
        if launched.is_err() {
            // SAFETY: the driver refused it, so it will not call `function`.
            drop(unsafe { Box::from_raw(data) });
        }
        launched
    }

    /// Whether its work is being captured.
    pub fn is_capturing(&self) -> bool {
        !matches!(*self.part(), Part::Free)
    }

    fn part(&self) -> RwLockReadGuard<'_, Part> {
        self.inner
            .part
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn part_mut(&self) -> RwLockWriteGuard<'_, Part> {
        self.inner
            .part
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held while work is queued. A thread holds one at a time.
    ///
    /// # Errors
    /// [`Error::Capturing`] while another thread ends a capture of it.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.refuse_other_thread()?;
        let part = self.part();
        if let Part::Ending = *part {
            return Err(ENDING);
        }
        Ok(Entered { stream: self, part })
    }

    /// As [`Stream::enter`], for work that must not be captured.
    ///
    /// # Errors
    /// `refusal` if it would be.
    pub(crate) fn enter_uncaptured(&self, refusal: Error) -> Result<Entered<'_>> {
        self.refuse_other_thread()?;
        let part = self.part();
        match *part {
            Part::Free => Ok(Entered { stream: self, part }),
            Part::Capturing(_) | Part::Ending => Err(refusal),
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
        let mut part = self.part_mut();
        if !matches!(*part, Part::Free) {
            return Err(Error::Capturing {
                operation: "capture a stream",
                advice: "end the capture that it takes part in first",
            });
        }
        // Memory allocated in this stream's order is then there before
        // anything captured uses it, and whatever waits for the stream may
        // take it for done while it is captured.
        self.settle()?;
        join(self.context().bind()?)?;
        if !state.joined(self) {
            return Err(ENDING);
        }
        *part = Part::Capturing(state.clone());
        Ok(())
    }

    /// Takes no more work until [`Stream::leave_capture`].
    pub(crate) fn stop_capturing(&self) {
        *self.part_mut() = Part::Ending;
    }

    pub(crate) fn leave_capture(&self) {
        *self.part_mut() = Part::Free;
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
        match self.inner.kind {
            Kind::Owned => WeakStream::Owned(Arc::downgrade(&self.inner)),
            // The default streams outlive every value that names them.
            Kind::Legacy | Kind::PerThread(_) => WeakStream::Default(self.clone()),
        }
    }
}

const ENDING: Error = Error::Capturing {
    operation: "queue work",
    advice: "wait until the thread that ends the capture has done so",
};

/// A stream that does not keep it from being dropped.
#[derive(Debug)]
pub(crate) enum WeakStream {
    Owned(Weak<Inner>),
    Default(Stream),
}

impl WeakStream {
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Owned(stream) => stream.strong_count() > 0,
            Self::Default(_) => true,
        }
    }

    pub(crate) fn upgrade(&self) -> Option<Stream> {
        match self {
            Self::Owned(stream) => stream.upgrade().map(|inner| Stream { inner }),
            Self::Default(stream) => Some(stream.clone()),
        }
    }
}

/// A lost context answers at once, while work of it may be on its way out of
/// the software device's threads; only waiting for all of it waits for that.
fn wait_for_lost(driver: &Driver) {
    // SAFETY: takes no arguments. It answers the error that is known.
    drop(unsafe { driver.cuCtxSynchronize() });
}

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
