//! Clock of the device's progress, implemented with driver events.
//!
//! Invariants: no driver call is made here during a stream capture, since recording or querying an
//! event would end the capture; `gate` is held for reading during every call, and for writing by a
//! thread that begins a capture. Events are recorded in a stream only while `streams` is held, and
//! the stream is removed from it before it is destroyed. A context's number is never reused, though
//! its handle may be; events belong to the number.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use fercuda_cuda_sys::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUevent, CUevent_flags, CUresult, CUstream,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_pool::{DeviceClock, PoolPlace, StreamId};
use rustc_hash::FxHashMap;

/// The longest time the host sleeps between two polls.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// How the driver refers to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamOrigin {
    /// The legacy default stream of a context.
    Legacy,
    /// The default stream of one thread in a context.
    OfThread(ThreadId),
    /// A created stream.
    Created(CUstream),
}

/// A context, by a number that is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownContext {
    raw: CUcontext,
    id: ContextId,
}

#[derive(Clone, Copy, Debug)]
struct KnownStream {
    context: KnownContext,
    kind: StreamOrigin,
}

#[derive(Debug, Default)]
struct EventPool {
    /// Idle events, by the context that they were created in.
    idle: Mutex<FxHashMap<ContextId, Vec<CUevent>>>,
}

/// A set of recorded events, passed when all are. The events are reused afterwards.
#[derive(Debug)]
pub struct DevicePoint {
    recorded: Vec<(ContextId, CUevent)>,
    events: Arc<EventPool>,
}

impl Drop for DevicePoint {
    fn drop(&mut self) {
        let mut idle = lock(&self.events.idle);
        for (context, event) in self.recorded.drain(..) {
            // A destroyed context took its events along.
            if let Some(idle) = idle.get_mut(&context) {
                idle.push(event);
            }
        }
    }
}

/// The clock; see the module.
#[derive(Debug)]
pub struct DriverClock {
    driver: &'static Driver,
    /// How many streams are capturing.
    gate: RwLock<usize>,
    /// The same number, for threads that may not wait.
    captures: AtomicUsize,
    streams: RwLock<FxHashMap<StreamId, KnownStream>>,
    contexts: RwLock<Vec<KnownContext>>,
    next_context: AtomicU32,
    events: Arc<EventPool>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn done(answer: Result<CUresult, Missing>) -> bool {
    matches!(answer, Ok(CUresult::CUDA_SUCCESS))
}

fn is_there(contexts: &[KnownContext], id: ContextId) -> bool {
    contexts.iter().any(|context| context.id == id)
}

/// The result of a call that destroyed contexts.
#[derive(Debug)]
pub struct DestroyedContexts<R> {
    /// The destroyed contexts.
    pub contexts: Vec<ContextId>,
    /// Their streams.
    pub streams: Vec<StreamId>,
    /// The result of the call.
    pub result: R,
}

/// Guard that makes a context current in this thread.
pub(crate) struct CurrentContext(&'static Driver);

impl CurrentContext {
    pub(crate) fn push(driver: &'static Driver, context: CUcontext) -> Option<Self> {
        // SAFETY: the context was registered with the clock, and not yet removed.
        done(unsafe { driver.cuCtxPushCurrent_v2(context) }).then_some(Self(driver))
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        let mut context = CUcontext::NULL;
        // SAFETY: `context` outlives the call, which undoes the push.
        let _it_was_pushed = unsafe { self.0.cuCtxPopCurrent_v2(&mut context) };
    }
}

impl DriverClock {
    /// A clock for the registered contexts and streams.
    pub fn new(driver: &'static Driver) -> Self {
        Self {
            driver,
            gate: RwLock::new(0),
            captures: AtomicUsize::new(0),
            streams: RwLock::default(),
            contexts: RwLock::default(),
            next_context: AtomicU32::new(0),
            events: Arc::default(),
        }
    }

    /// Registers a context: fences then cover its work.
    pub fn add_context(&self, raw: CUcontext) -> ContextId {
        let mut contexts = write(&self.contexts);
        if let Some(known) = contexts.iter().find(|known| known.raw == raw) {
            return known.id;
        }
        let id = ContextId(self.next_context.fetch_add(1, Relaxed));
        contexts.push(KnownContext { raw, id });
        lock(&self.events.idle).insert(id, Vec::new());
        id
    }

    /// The number of a registered context.
    pub fn context(&self, raw: CUcontext) -> Option<ContextId> {
        let contexts = read(&self.contexts);
        let known = contexts.iter().find(|known| known.raw == raw)?;
        Some(known.id)
    }

    /// The number of registered contexts.
    pub fn contexts(&self) -> usize {
        read(&self.contexts).len()
    }

    /// Runs `destroy`, which may destroy contexts, while no event is queried or recorded. It
    /// returns the contexts destroyed, which are removed with their streams.
    pub fn while_destroying<R>(
        &self,
        destroy: impl FnOnce() -> (Vec<CUcontext>, R),
    ) -> DestroyedContexts<R> {
        let _gate = read(&self.gate);
        let mut streams = write(&self.streams);
        let mut contexts = write(&self.contexts);
        let (raw, result) = destroy();
        let mut gone = DestroyedContexts {
            contexts: Vec::new(),
            streams: Vec::new(),
            result,
        };
        contexts.retain(|known| {
            let is_gone = raw.contains(&known.raw);
            if is_gone {
                gone.contexts.push(known.id);
            }
            !is_gone
        });
        streams.retain(|id, known| {
            let is_gone = gone.contexts.contains(&known.context.id);
            if is_gone {
                gone.streams.push(*id);
            }
            !is_gone
        });
        let mut idle = lock(&self.events.idle);
        for context in &gone.contexts {
            // The driver has destroyed these events with their context.
            idle.remove(context);
        }
        drop(idle);
        gone
    }

    /// Removes a context that is about to be destroyed, with its streams.
    pub fn remove_context(&self, raw: CUcontext) {
        self.while_destroying(|| (vec![raw], ()));
    }

    /// Registers a stream.
    ///
    /// # Safety
    /// It is a stream of `raw`, which is registered, until [`DriverClock::remove_stream`] or
    /// [`DriverClock::remove_context`].
    pub unsafe fn add_stream(&self, id: StreamId, raw: CUcontext, kind: StreamOrigin) {
        let mut streams = write(&self.streams);
        let contexts = read(&self.contexts);
        if let Some(context) = contexts.iter().find(|known| known.raw == raw).copied() {
            streams.insert(id, KnownStream { context, kind });
        }
    }

    /// Removes a stream that is about to be destroyed.
    pub fn remove_stream(&self, id: StreamId) {
        write(&self.streams).remove(&id);
    }

    /// Begins or ends captures by `change`, during which no driver call is made here; it receives
    /// the number of capturing streams.
    pub fn change_captures<R>(&self, change: impl FnOnce(&mut usize) -> R) -> R {
        let mut gate = write(&self.gate);
        let result = change(&mut gate);
        self.captures.store(*gate, Relaxed);
        result
    }

    /// The number of capturing streams, now or a moment ago.
    #[inline]
    pub fn captures(&self) -> usize {
        self.captures.load(Relaxed)
    }

    /// Held while the driver may be called; `None` during a stream capture.
    fn may_ask(&self) -> Option<RwLockReadGuard<'_, usize>> {
        let gate = read(&self.gate);
        (*gate == 0).then_some(gate)
    }

    /// An event of a context, new or idle.
    fn event(&self, context: KnownContext) -> Option<CUevent> {
        if let Some(event) = lock(&self.events.idle).get_mut(&context.id)?.pop() {
            return Some(event);
        }
        let _current = CurrentContext::push(self.driver, context.raw)?;
        let mut event = CUevent::NULL;
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0 as _;
        // SAFETY: `event` outlives the call.
        done(unsafe { self.driver.cuEventCreate(&mut event, flags) }).then_some(event)
    }

    /// A point of one event, which `record` records in `context`.
    fn point(
        &self,
        context: KnownContext,
        record: impl FnOnce(CUevent) -> bool,
    ) -> Option<DevicePoint> {
        let event = self.event(context)?;
        let point = DevicePoint {
            recorded: vec![(context.id, event)],
            events: self.events.clone(),
        };
        record(event).then_some(point)
    }

    fn record_context(&self, context: KnownContext) -> Option<DevicePoint> {
        self.point(context, |event| {
            // SAFETY: the event is of this context, which is there.
            done(unsafe { self.driver.cuCtxRecordEvent(context.raw, event) })
        })
    }

    /// Records in a default stream of the current context.
    fn record_default(&self, context: KnownContext, stream: CUstream) -> Option<DevicePoint> {
        let _current = CurrentContext::push(self.driver, context.raw)?;
        self.point(context, |event| {
            // SAFETY: the event is of the current context.
            done(unsafe { self.driver.cuEventRecord(event, stream) })
        })
    }
}

impl DeviceClock for DriverClock {
    type Point = DevicePoint;

    fn record_fence(&self, place: PoolPlace) -> Option<DevicePoint> {
        let _gate = self.may_ask()?;
        let streams = read(&self.streams);
        let known = match place {
            PoolPlace::Stream(id) => streams.get(&id).copied(),
            PoolPlace::Anywhere => None,
        };
        // The work of a destroyed stream is work of some context.
        let Some(KnownStream { context, kind }) = known else {
            let contexts = read(&self.contexts);
            let mut all = DevicePoint {
                recorded: Vec::new(),
                events: self.events.clone(),
            };
            for context in contexts.iter() {
                let mut point = self.record_context(*context)?;
                all.recorded.append(&mut point.recorded);
            }
            return Some(all);
        };
        match kind {
            StreamOrigin::Legacy => self.record_default(context, CU_STREAM_LEGACY),
            StreamOrigin::OfThread(thread) if thread == std::thread::current().id() => {
                self.record_default(context, CU_STREAM_PER_THREAD)
            }
            // Only the stream's own thread can name it; the context's work includes it.
            StreamOrigin::OfThread(_) => self.record_context(context),
            StreamOrigin::Created(stream) => self.point(context, |event| {
                // SAFETY: the stream exists as long as `streams` is held.
                done(unsafe { self.driver.cuEventRecord(event, stream) })
            }),
        }
    }

    fn passed(&self, point: &DevicePoint) -> bool {
        let Some(_gate) = self.may_ask() else {
            return false;
        };
        let contexts = read(&self.contexts);
        point.recorded.iter().all(|(context, event)| {
            // The work of a destroyed context is complete.
            !is_there(&contexts, *context)
                // SAFETY: the event belongs to a context that exists.
                || done(unsafe { self.driver.cuEventQuery(*event) })
        })
    }

    fn wait(&self, stream: StreamId, point: &DevicePoint) -> bool {
        let Some(_gate) = self.may_ask() else {
            return false;
        };
        let (streams, contexts) = (read(&self.streams), read(&self.contexts));
        let Some(KnownStream { context, kind }) = streams.get(&stream).copied() else {
            return false;
        };
        let (_current, raw) = match kind {
            StreamOrigin::Created(raw) => (None, raw),
            StreamOrigin::Legacy => (
                CurrentContext::push(self.driver, context.raw),
                CU_STREAM_LEGACY,
            ),
            StreamOrigin::OfThread(thread) if thread == std::thread::current().id() => (
                CurrentContext::push(self.driver, context.raw),
                CU_STREAM_PER_THREAD,
            ),
            StreamOrigin::OfThread(_) => return false,
        };
        point.recorded.iter().all(|(context, event)| {
            !is_there(&contexts, *context)
                // SAFETY: stream and event exist as long as the locks are held.
                || done(unsafe { self.driver.cuStreamWaitEvent(raw, *event, 0) })
        })
    }

    fn join(&self, point: &DevicePoint, timeout: Duration) -> bool {
        let begun = Instant::now();
        let mut sleep = Duration::from_micros(5);
        loop {
            if self.passed(point) {
                return true;
            }
            // A capturing thread may be waiting for this very thread.
            if self.may_ask().is_none() || begun.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(sleep);
            sleep = (2 * sleep).min(LONGEST_SLEEP);
        }
    }
}
