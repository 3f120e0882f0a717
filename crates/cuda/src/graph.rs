//! Graphs: work recorded once from streams, and launched many times.
//!
//! While a stream is captured, what its work refers to is kept: memory,
//! modules, callbacks, host slots. The keeping goes from the capture to the
//! graph and from there to everything instantiated from it.
//!
//! Invariant: a capture that began has ended or been discarded when its guard
//! is gone; what a graph refers to lives until the last launch of it is done.
//! Elsewhere: which streams take part (`stream`, `event`), launching
//! (`graph_exec`).

use std::collections::HashSet;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use bytemuck::Pod;
use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUgraph, CUgraphExec, CUgraphNode, CUstreamCaptureMode};

use crate::buffer::{DeviceSlice, DeviceSliceMut};
use crate::callback;
use crate::context::{Context, Relaxed};
use crate::error::{Error, Result, call};
use crate::graph_exec::GraphExec;
use crate::pinned::PinnedBuffer;
use crate::stream::{ENDING, Entered, Stream, run_guarded};
use crate::uses::{Uses, lock};

/// What a capture forbids elsewhere while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Calls of any thread that might not be meant for the graph.
    Global,
    /// Such calls of the capturing thread.
    #[default]
    ThreadLocal,
    /// Nothing.
    Relaxed,
}

impl CaptureMode {
    fn raw(self) -> CUstreamCaptureMode {
        match self {
            Self::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Self::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Self::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// Something kept only so that it is dropped later.
trait Kept: Send + Sync {}

impl<T: Send + Sync> Kept for T {}

impl fmt::Debug for dyn Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// What a graph refers to.
#[derive(Default)]
pub(crate) struct Keep {
    /// Addresses of what is kept already.
    keys: HashSet<usize>,
    things: Vec<Box<dyn Kept>>,
    pub(crate) slots: Vec<Arc<Gate>>,
    pub(crate) panicked: Arc<Mutex<Option<String>>>,
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keep")
            .field("things", &self.things.len())
            .finish_non_exhaustive()
    }
}

impl Keep {
    /// Keeps `thing` unless `key` is kept already; says whether it is new.
    fn add(&mut self, key: usize, thing: impl Kept + 'static) -> bool {
        let new = self.keys.insert(key);
        if new {
            self.things.push(Box::new(thing));
        }
        new
    }

    fn add_slot(&mut self, slot: &Arc<Gate>) {
        if self.keys.insert(Arc::as_ptr(slot) as usize) {
            self.slots.push(slot.clone());
        }
    }
}

/// A capture while it runs, shared by the streams that take part.
#[derive(Debug, Default)]
pub(crate) struct CaptureState {
    /// No stream joins any more.
    ended: AtomicBool,
    over: AtomicBool,
    keep: Mutex<Keep>,
    /// What could not go while the capture ran, and is no part of it.
    until_over: Mutex<Vec<Box<dyn Kept>>>,
    streams: Mutex<Vec<Stream>>,
}

impl CaptureState {
    /// Whether the driver has ended it too. Until then an event recorded in
    /// it draws other streams in.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Keeps `thing`, whose address is `key`, once; says whether it is new.
    pub(crate) fn keep(&self, key: usize, thing: impl Send + Sync + 'static) -> bool {
        lock(&self.keep).add(key, thing)
    }

    /// Keeps something that has no address of its own.
    pub(crate) fn park(&self, thing: impl Send + Sync + 'static) {
        lock(&self.keep).things.push(Box::new(thing));
    }

    /// Keeps something that its graph does not use until the streams are free
    /// again.
    pub(crate) fn park_until_over(&self, thing: impl Send + Sync + 'static) {
        let mut until_over = lock(&self.until_over);
        // Whoever ends the capture empties the list once, behind this.
        if !self.is_over() {
            until_over.push(Box::new(thing));
        } else {
            drop(until_over);
            drop(thing);
        }
    }

    /// Lets `stream` into the driver's capture by `join` and counts it in,
    /// unless the capture is being ended.
    ///
    /// # Errors
    /// [`Error::Capturing`]; those of `join`.
    pub(crate) fn join(&self, stream: &Stream, join: impl FnOnce() -> Result<()>) -> Result<()> {
        // Held over both, so that who ends the capture waits for it.
        let mut streams = lock(&self.streams);
        if self.ended.load(Ordering::Acquire) {
            return Err(ENDING);
        }
        join()?;
        streams.push(stream.clone());
        Ok(())
    }

    /// Ends the capture that began in `origin`, lets every stream go, and
    /// returns the graph and what was kept for it.
    fn finish(&self, origin: &Stream) -> (Result<CUgraph>, Keep) {
        let streams = {
            let mut streams = lock(&self.streams);
            self.ended.store(true, Ordering::Release);
            std::mem::take(&mut *streams)
        };
        // No work comes in between that one side takes for captured and the
        // other does not.
        for stream in &streams {
            stream.stop_capturing();
        }
        let graph = end_capture(origin);
        self.over.store(true, Ordering::Release);
        for stream in &streams {
            stream.leave_capture();
        }
        callback::capture_ended();
        let until_over = std::mem::take(&mut *lock(&self.until_over));
        drop(until_over);
        (graph, std::mem::take(&mut *lock(&self.keep)))
    }
}

impl Stream {
    /// Begins to capture: until the guard returned ends, work given to this
    /// stream becomes a graph and is not done. Waits for earlier work of the
    /// stream first, so that the graph finds its memory whatever stream it is
    /// launched in.
    ///
    /// Another stream takes part from when it waits for an event recorded in
    /// this one, and must be waited for in its turn before the capture ends.
    ///
    /// # Errors
    /// [`Error::Capturing`] if the stream is being captured, or is a default
    /// stream; [`Error::Driver`].
    pub fn begin_capture(&self, mode: CaptureMode) -> Result<Capture> {
        let state = Arc::new(CaptureState::default());
        callback::capture_begins();
        let begun = self.take_part(&state, |driver| {
            // SAFETY: the stream is alive and its context current.
            unsafe {
                call!(
                    driver,
                    cuStreamBeginCapture_v2(self.raw(), mode.raw()),
                    "capture a stream"
                )
            }
        });
        if let Err(error) = begun {
            callback::capture_ended();
            return Err(error);
        }
        Ok(Capture {
            stream: self.clone(),
            state,
            running: true,
            one_thread: PhantomData,
        })
    }
}

/// A capture that runs. [`Capture::end`] makes the graph; dropping it discards
/// what was captured.
///
/// A capture ends in the thread it began in:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<fercuda_cuda::Capture>();
/// ```
#[derive(Debug)]
#[must_use = "dropping a capture discards it"]
pub struct Capture {
    stream: Stream,
    state: Arc<CaptureState>,
    running: bool,
    one_thread: PhantomData<*const ()>,
}

impl Capture {
    /// Ends the capture.
    ///
    /// # Errors
    /// [`Error::Driver`] if it was lost through a call that it forbids, or if
    /// a stream that takes part was not waited for. The streams are usable
    /// again.
    pub fn end(mut self) -> Result<Graph> {
        self.running = false;
        let context = self.stream.context().clone();
        let (raw, keep) = self.state.finish(&self.stream);
        let raw = raw?;
        Ok(Graph {
            inner: Arc::new(GraphInner {
                context,
                raw: Mutex::new(raw),
                keep: Arc::new(keep),
            }),
        })
    }

    /// The stream that is captured.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Lets the graph hold something until its last launch is done: for what
    /// its work refers to and this crate does not see, such as the workspace
    /// of a library.
    pub fn keep(&self, thing: impl Send + Sync + 'static) {
        self.state.park(thing);
    }

    /// Whether other streams have taken part so far.
    pub fn has_forked(&self) -> bool {
        lock(&self.state.streams).len() > 1
    }

    /// Captures a copy of all of `slot`, which must be as long, in `stream`.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`] if `stream` takes no part.
    pub fn upload<T: Pod + Send>(
        &self,
        to: &mut DeviceSliceMut<'_, T>,
        slot: &HostSlot<T>,
        stream: &Stream,
    ) -> Result<()> {
        slot.fits(to.len())?;
        to.allocation().note(stream)?;
        let entered = self.enter(stream)?;
        lock(&self.state.keep).add_slot(&slot.gate);
        self.state
            .keep(Arc::as_ptr(&slot.memory) as usize, slot.memory.clone());
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is as long; the graph keeps it, and its gate
        // keeps the host away while a launch may read it.
        unsafe { to.queue_from_host(slot.memory.pointer(), &entered) }
    }

    /// Captures a copy to all of `slot`, which must be as long, in `stream`.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Capturing`] if `stream` takes no part.
    pub fn download<T: Pod + Send>(
        &self,
        from: DeviceSlice<'_, T>,
        slot: &HostSlot<T>,
        stream: &Stream,
    ) -> Result<()> {
        slot.fits(from.len())?;
        from.allocation().note(stream)?;
        let entered = self.enter(stream)?;
        lock(&self.state.keep).add_slot(&slot.gate);
        self.state
            .keep(Arc::as_ptr(&slot.memory) as usize, slot.memory.clone());
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is as long; the graph keeps it, and its gate
        // keeps the host away while a launch may write it.
        unsafe { from.queue_to_host(slot.memory.pointer(), &entered) }
    }

    /// Captures a call of `body` in `stream`: it runs on a thread of the
    /// driver's in every launch. It must not call CUDA; see
    /// [`Stream::host_callback`]. A panic is caught and told by
    /// [`GraphExec::callback_panic`].
    ///
    /// # Errors
    /// [`Error::Capturing`] if `stream` takes no part.
    pub fn host_callback(
        &self,
        stream: &Stream,
        body: impl Fn() + Send + Sync + 'static,
    ) -> Result<()> {
        struct Many<F> {
            body: F,
            panicked: Arc<Mutex<Option<String>>>,
        }
        unsafe extern "C" fn run<F: Fn()>(data: *mut c_void) {
            // SAFETY: `data` is the value the graph keeps; launches of the
            // graph end before it goes. It is only shared.
            let many = unsafe { &*data.cast::<Many<F>>() };
            run_guarded(&many.body, &many.panicked);
        }
        fn pointer_to<F: Fn()>(_: &Many<F>) -> unsafe extern "C" fn(*mut c_void) {
            run::<F>
        }

        let _entered = self.enter(stream)?;
        let driver = stream.context().bind()?;
        let panicked = lock(&self.state.keep).panicked.clone();
        let many = Arc::new(Many { body, panicked });
        let function = pointer_to(&many);
        let data = Arc::as_ptr(&many).cast_mut().cast::<c_void>();
        self.state.park(many);
        // SAFETY: `function` takes `data`, which the graph keeps.
        unsafe {
            call!(
                driver,
                cuLaunchHostFunc(stream.raw(), Some(function), data),
                "capture a host callback"
            )
        }
    }

    fn enter<'a>(&self, stream: &'a Stream) -> Result<Entered<'a>> {
        let entered = stream.enter()?;
        match entered.capture() {
            Some(state) if Arc::ptr_eq(state, &self.state) => Ok(entered),
            _ => Err(Error::Capturing {
                operation: "capture work of a stream that takes no part",
                advice: "let it wait for an event recorded in the captured stream first",
            }),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.running {
            let (raw, keep) = self.state.finish(&self.stream);
            if let Ok(raw) = raw {
                destroy_graph(self.stream.context(), raw);
            }
            drop(keep);
        }
    }
}

fn end_capture(stream: &Stream) -> Result<CUgraph> {
    let driver = stream.context().bind()?;
    let mut raw = CUgraph::NULL;
    // SAFETY: the stream is alive and `raw` outlives the call.
    unsafe {
        call!(
            driver,
            cuStreamEndCapture(stream.raw(), &mut raw),
            "end a capture"
        )?
    };
    Ok(raw)
}

fn destroy_graph(context: &Context, raw: CUgraph) {
    let context = context.clone();
    // SAFETY: from cuStreamEndCapture, destroyed once.
    let destroy = move |driver: &Driver| unsafe { driver.cuGraphDestroy(raw) };
    callback::outside(move || context.destroy(destroy));
}

/// Captured work. Cloning gives another name for it.
#[derive(Clone, Debug)]
pub struct Graph {
    inner: Arc<GraphInner>,
}

#[derive(Debug)]
struct GraphInner {
    context: Context,
    /// The driver's graphs are not to be used by two threads at a time.
    raw: Mutex<CUgraph>,
    keep: Arc<Keep>,
}

impl Drop for GraphInner {
    fn drop(&mut self) {
        destroy_graph(&self.context, *lock(&self.raw));
    }
}

impl Graph {
    pub(crate) fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's own, to be used by one thread at a time.
    pub(crate) fn raw(&self) -> MutexGuard<'_, CUgraph> {
        lock(&self.inner.raw)
    }

    /// What it refers to.
    pub(crate) fn kept(&self) -> &Arc<Keep> {
        &self.inner.keep
    }

    /// How many pieces of work it has.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn node_count(&self) -> Result<usize> {
        let driver = self.inner.context.bind()?;
        let raw = lock(&self.inner.raw);
        let mut count = 0;
        // SAFETY: the graph is alive and used by this thread alone; without
        // an array only the number is written.
        unsafe {
            call!(
                driver,
                cuGraphGetNodes(*raw, std::ptr::null_mut::<CUgraphNode>(), &mut count),
                "count the nodes of a graph"
            )?;
        }
        Ok(count)
    }

    /// Makes it launchable.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn instantiate(&self) -> Result<GraphExec> {
        let driver = self.inner.context.bind()?;
        let _relaxed = Relaxed::enter(driver);
        let graph = lock(&self.inner.raw);
        let mut raw = CUgraphExec::NULL;
        // SAFETY: the graph is alive and used by this thread alone.
        unsafe {
            call!(
                driver,
                cuGraphInstantiateWithFlags(&mut raw, *graph, 0),
                "instantiate a graph"
            )?
        };
        Ok(GraphExec::new(
            self.inner.context.clone(),
            raw,
            self.inner.keep.clone(),
        ))
    }
}

/// Keeps the host and launches of graphs apart in one host slot.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Held by the host while it uses the memory, and by a launch while it is
    /// being queued.
    gate: Mutex<()>,
    /// The streams in which launches may use the memory.
    pub(crate) uses: Uses,
}

impl Gate {
    pub(crate) fn close(&self) -> Option<MutexGuard<'_, ()>> {
        match self.gate.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Pinned memory that a graph copies from or to. The host uses it through
/// [`HostSlot::with`], which waits for the launches that do.
#[derive(Debug)]
pub struct HostSlot<T> {
    context: Context,
    gate: Arc<Gate>,
    memory: Arc<SlotMemory<T>>,
}

/// The memory of a slot. Its values are reached by address only, and only by
/// launches and by who has closed the gate.
struct SlotMemory<T>(PinnedBuffer<T>);

impl<T> fmt::Debug for SlotMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotMemory")
    }
}

// SAFETY: sharing it shares the address; the values are one thread's at a
// time, that which has closed the gate.
unsafe impl<T: Send> Sync for SlotMemory<T> {}

impl<T> SlotMemory<T> {
    /// The address of the first value.
    fn pointer(&self) -> *mut T {
        self.0.address()
    }

    /// How many values there are.
    fn len(&self) -> usize {
        self.0.capacity()
    }
}

impl<T: Pod> HostSlot<T> {
    /// Memory for `len` values, all bytes zero at first.
    ///
    /// # Errors
    /// As [`PinnedBuffer::new`].
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        let memory = PinnedBuffer::new(context, len)?;
        Ok(Self {
            context: context.clone(),
            gate: Arc::default(),
            memory: Arc::new(SlotMemory(memory)),
        })
    }

    /// How many values it holds.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the launches that use the memory, and gives it to `body`.
    /// Until that returns, launching such a graph is [`Error::SlotHeld`].
    ///
    /// # Errors
    /// [`Error::SlotHeld`] if another thread, or `body` itself, is at it;
    /// [`Error::InCallback`]; [`Error::Capturing`] if a launch was in a default
    /// stream and captures keep it from being waited for; the first error of
    /// the launches.
    pub fn with<R>(&self, body: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        // Inside a callback nothing below could wait.
        self.context.bind()?;
        let _closed = self.gate.close().ok_or(Error::SlotHeld)?;
        for stream in self.gate.uses.streams() {
            stream.settle_all()?;
        }
        // SAFETY: memory for as many values, initialised when it was made. The
        // gate is closed, so no launch can be queued and nobody else is here;
        // those queued before are done.
        let values =
            unsafe { std::slice::from_raw_parts_mut(self.memory.pointer(), self.memory.len()) };
        Ok(body(values))
    }

    fn fits(&self, len: usize) -> Result<()> {
        if self.len() == len {
            return Ok(());
        }
        Err(Error::Length {
            operation: "capture a copy",
            left_name: "the host slot",
            left: self.len(),
            right_name: "the buffer",
            right: len,
        })
    }
}
