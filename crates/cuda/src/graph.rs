//! Graphs: work captured once from streams, and launched many times.
//!
//! While a stream is captured, the capture keeps the resources of its work: memory, modules,
//! callbacks, host slots. They are passed on from the capture to the graph and from there to every
//! instance of it.
//!
//! Invariant: when the guard of a capture is gone, the capture has ended or been discarded; the
//! resources of a graph live until its last launch is done. Elsewhere: which streams take part
//! (`stream`, `event`), launching (`graph_exec`).

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use bytemuck::Pod;
use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUgraph, CUgraphNode, CUstreamCaptureMode};

use crate::callback::run_catching_panic;
use crate::capture_mode;
use crate::context::Context;
use crate::deferred;
use crate::error::{Error, Result, call};
use crate::keep_alive::KeptResources;
use crate::lock::lock;
use crate::pinned::PinnedBuffer;
use crate::slice::{DeviceSlice, DeviceSliceMut};
use crate::stream::{EnteredStream, Stream, StreamCapture};
use crate::uses::StreamUses;

/// Which calls a capture forbids elsewhere while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Calls, in any thread, that might not be meant for the graph.
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

/// The resources that the work of a graph refers to.
#[derive(Debug, Default)]
pub(crate) struct GraphResources {
    kept: KeptResources,
    pub(crate) slots: Vec<Arc<SlotLock>>,
}

impl GraphResources {
    /// The message of a host callback that panicked; each is returned once.
    pub(crate) fn take_callback_panic(&self) -> Option<String> {
        lock(self.kept.panicked()).take()
    }
}

/// Ends the capture that began in `origin`, releases its streams, and returns the graph and the
/// resources kept for it.
fn finish_capture(state: &StreamCapture, origin: &Stream) -> (Result<CUgraph>, KeptResources) {
    let streams = state.close();
    // So that no work is queued meanwhile that this crate takes to be captured and the driver
    // does not, or the reverse.
    for stream in &streams {
        stream.stop_capturing();
    }
    let graph = end_capture(origin);
    state.mark_over();
    for stream in &streams {
        stream.leave_capture();
    }
    capture_mode::count_capture_end();
    state.release_until_over();
    (graph, state.take_kept())
}

impl Stream {
    /// Begins to capture: until the returned guard ends, work queued in this stream becomes part of
    /// a graph and is not executed. Waits for earlier work of the stream first, so that the graph's
    /// memory exists whichever stream it is launched in.
    ///
    /// Another stream joins when it waits for an event recorded in this one, and this one must wait
    /// for it before the capture ends.
    ///
    /// # Errors
    /// [`Error::Capturing`] if the stream is being captured, or is a default
    /// stream; [`Error::Driver`].
    pub fn begin_capture(&self, mode: CaptureMode) -> Result<Capture> {
        let state = Arc::new(StreamCapture::default());
        capture_mode::count_capture_begin();
        let begun = self.enter_capture(&state, |driver| {
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
            capture_mode::count_capture_end();
            return Err(error);
        }
        Ok(Capture {
            stream: self.clone(),
            state,
            slots: Mutex::default(),
            running: true,
            one_thread: PhantomData,
        })
    }
}

/// A capture in progress. [`Capture::end`] makes the graph; dropping it discards what was captured.
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
    state: Arc<StreamCapture>,
    /// The host slots that its copies use.
    slots: Mutex<Vec<Arc<SlotLock>>>,
    running: bool,
    one_thread: PhantomData<*const ()>,
}

impl Capture {
    /// Ends the capture.
    ///
    /// # Errors
    /// [`Error::Driver`] if a call that it forbids has invalidated it, or if a stream that takes
    /// part was not waited for. The streams are usable again.
    pub fn end(mut self) -> Result<Graph> {
        self.running = false;
        let context = self.stream.context().clone();
        let (raw, kept) = finish_capture(&self.state, &self.stream);
        let raw = raw?;
        let slots = std::mem::take(&mut *lock(&self.slots));
        Ok(Graph {
            inner: Arc::new(GraphInner {
                context,
                raw: Mutex::new(raw),
                keep: Arc::new(GraphResources { kept, slots }),
            }),
        })
    }

    /// The stream that is captured.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes the graph keep a value until its last launch is done: for resources of its work that
    /// this crate does not see, such as the workspace of a library.
    pub fn keep(&self, thing: impl Send + Sync + 'static) {
        self.state.keep_anonymous(thing);
    }

    /// Whether other streams have taken part so far.
    pub fn has_forked(&self) -> bool {
        self.state.stream_count() > 1
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
        self.keep_slot(slot);
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is as long; the graph keeps it, and its lock
        // excludes the host while a launch may read it.
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
        self.keep_slot(slot);
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is as long; the graph keeps it, and its lock
        // excludes the host while a launch may write it.
        unsafe { from.queue_to_host(slot.memory.pointer(), &entered) }
    }

    /// Captures a call of `body` in `stream`: it runs on a thread of the driver's in every launch.
    /// It must not call CUDA; see [`Stream::host_callback`]. A panic is caught and returned by
    /// [`GraphExec::take_callback_panic`](crate::GraphExec::take_callback_panic).
    ///
    /// # Errors
    /// [`Error::Capturing`] if `stream` takes no part.
    pub fn host_callback(
        &self,
        stream: &Stream,
        body: impl Fn() + Send + Sync + 'static,
    ) -> Result<()> {
        struct RepeatedCallback<F> {
            body: F,
            panicked: Arc<Mutex<Option<String>>>,
        }
        unsafe extern "C" fn run<F: Fn()>(data: *mut c_void) {
            // SAFETY: `data` is the value that the graph keeps; launches of the graph are done
            // before it is dropped. It is only shared.
            let many = unsafe { &*data.cast::<RepeatedCallback<F>>() };
            run_catching_panic(&many.body, &many.panicked);
        }
        fn pointer_to<F: Fn()>(_: &RepeatedCallback<F>) -> unsafe extern "C" fn(*mut c_void) {
            run::<F>
        }

        let _entered = self.enter(stream)?;
        let driver = stream.context().bind()?;
        let panicked = self.state.panicked();
        let many = Arc::new(RepeatedCallback { body, panicked });
        let function = pointer_to(&many);
        let data = Arc::as_ptr(&many).cast_mut().cast::<c_void>();
        self.state.keep_anonymous(many);
        // SAFETY: `function` takes `data`, which the graph keeps.
        unsafe {
            call!(
                driver,
                cuLaunchHostFunc(stream.raw(), Some(function), data),
                "capture a host callback"
            )
        }
    }

    /// Makes the graph keep a slot, once.
    fn keep_slot<T: Pod + Send>(&self, slot: &HostSlot<T>) {
        let key = Arc::as_ptr(&slot.memory) as usize;
        if self.state.keep(key, slot.memory.clone()) {
            lock(&self.slots).push(slot.lock.clone());
        }
    }

    fn enter<'a>(&self, stream: &'a Stream) -> Result<EnteredStream<'a>> {
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
            let (raw, kept) = finish_capture(&self.state, &self.stream);
            if let Ok(raw) = raw {
                destroy_graph(self.stream.context(), raw);
            }
            drop(kept);
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
    deferred::destroy_or_defer(move || context.destroy(destroy));
}

/// Captured work. Clones are handles to the same graph.
#[derive(Clone, Debug)]
pub struct Graph {
    inner: Arc<GraphInner>,
}

#[derive(Debug)]
struct GraphInner {
    context: Context,
    /// The driver's graphs must not be used by two threads at a time.
    raw: Mutex<CUgraph>,
    keep: Arc<GraphResources>,
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

    /// The driver's own handle, to be used by one thread at a time.
    pub(crate) fn raw(&self) -> MutexGuard<'_, CUgraph> {
        lock(&self.inner.raw)
    }

    /// The resources of its work.
    pub(crate) fn resources(&self) -> &Arc<GraphResources> {
        &self.inner.keep
    }

    /// How many nodes it has.
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
}

/// Mutual exclusion between the host and graph launches for one host slot.
#[derive(Debug, Default)]
pub(crate) struct SlotLock {
    /// Held by the host while it uses the memory, and by a launch while it is
    /// being queued.
    lock: Mutex<()>,
    /// The streams in which launches may use the memory.
    pub(crate) uses: StreamUses,
}

impl SlotLock {
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.lock.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Pinned memory that a graph copies from or to. The host accesses it through [`HostSlot::with`],
/// which waits for the launches that use it.
#[derive(Debug)]
pub struct HostSlot<T> {
    context: Context,
    lock: Arc<SlotLock>,
    memory: Arc<SlotMemory<T>>,
}

/// The memory of a slot. Its values are reached by address only, by launches and by the thread that
/// holds the lock.
struct SlotMemory<T>(PinnedBuffer<T>);

impl<T> fmt::Debug for SlotMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotMemory")
    }
}

// SAFETY: sharing it shares the address; the values are accessed by one thread at a time, which
// holds the lock.
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
            lock: Arc::default(),
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

    /// Waits for the launches that use the memory, and passes it to `body`. Until that returns,
    /// launching a graph of this slot is [`Error::SlotHeld`].
    ///
    /// # Errors
    /// [`Error::SlotHeld`] if another thread, or `body` itself, holds it; [`Error::InCallback`];
    /// [`Error::Capturing`] if a launch was in a default stream and captures keep it from being
    /// waited for; the first error of the launches.
    pub fn with<R>(&self, body: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        // Fails inside a callback, where nothing below could wait.
        self.context.bind()?;
        let _locked = self.lock.try_lock().ok_or(Error::SlotHeld)?;
        for stream in self.lock.uses.streams() {
            stream.wait_for_work()?;
        }
        // SAFETY: memory for as many values, initialised when it was made. The lock is held, so no
        // launch can be queued and no other thread is here; launches queued before are done.
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
