//! The order of a device's work, by events of the driver.
//!
//! Invariants: no call here is made while a stream captures, since recording or
//! asking would end the capture; `gate` is held for reading during every call,
//! and for writing by whoever begins a capture. A stream is recorded in only
//! while `streams` is held, and leaves it before it is destroyed. A context's
//! number is never given to another, though its handle may be; events belong
//! to the number.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use fercuda_cuda_sys::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUevent, CUevent_flags, CUresult, CUstream,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_pool::{Clock, Place, StreamId};
use rustc_hash::FxHashMap;

/// How long the host sleeps between two looks at most.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// What a stream is to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The legacy default stream of a context.
    Legacy,
    /// The default stream of one thread in a context.
    OfThread(ThreadId),
    /// One that was created.
    Created(CUstream),
}

/// A context, by a number that no other context ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context {
    raw: CUcontext,
    id: ContextId,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    context: Context,
    kind: Kind,
}

#[derive(Debug, Default)]
struct Events {
    /// Idle ones, by the context that they were made in.
    idle: Mutex<FxHashMap<ContextId, Vec<CUevent>>>,
}

/// Recorded events: passed when all are. They are used again afterwards.
#[derive(Debug)]
pub struct Point {
    recorded: Vec<(ContextId, CUevent)>,
    events: Arc<Events>,
}

impl Drop for Point {
    fn drop(&mut self) {
        let mut idle = lock(&self.events.idle);
        for (context, event) in self.recorded.drain(..) {
            // A context that is gone took its events along.
            if let Some(idle) = idle.get_mut(&context) {
                idle.push(event);
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct DriverClock {
    driver: &'static Driver,
    /// How many streams capture.
    gate: RwLock<usize>,
    /// The same number, for who may not wait.
    captures: AtomicUsize,
    streams: RwLock<FxHashMap<StreamId, Known>>,
    contexts: RwLock<Vec<Context>>,
    next_context: AtomicU32,
    events: Arc<Events>,
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

fn is_there(contexts: &[Context], id: ContextId) -> bool {
    contexts.iter().any(|context| context.id == id)
}

/// What is gone.
#[derive(Debug)]
pub struct Gone<R> {
    /// Contexts.
    pub contexts: Vec<ContextId>,
    /// Their streams.
    pub streams: Vec<StreamId>,
    /// What destroying them answered.
    pub result: R,
}

/// A context, current in this thread for a while.
pub(crate) struct Current(&'static Driver);

impl Current {
    pub(crate) fn push(driver: &'static Driver, context: CUcontext) -> Option<Self> {
        // SAFETY: the context is one that the clock was told of, and not yet
        // that it is gone.
        done(unsafe { driver.cuCtxPushCurrent_v2(context) }).then_some(Self(driver))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = CUcontext::NULL;
        // SAFETY: `context` outlives the call, which undoes the push.
        let _it_was_pushed = unsafe { self.0.cuCtxPopCurrent_v2(&mut context) };
    }
}

impl DriverClock {
    /// For the work of contexts and streams that it is told of.
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

    /// A context is there: its work counts.
    pub fn add_context(&self, raw: CUcontext) -> ContextId {
        let mut contexts = write(&self.contexts);
        if let Some(known) = contexts.iter().find(|known| known.raw == raw) {
            return known.id;
        }
        let id = ContextId(self.next_context.fetch_add(1, Relaxed));
        contexts.push(Context { raw, id });
        lock(&self.events.idle).insert(id, Vec::new());
        id
    }

    /// The number of a context that is there.
    pub fn context(&self, raw: CUcontext) -> Option<ContextId> {
        let contexts = read(&self.contexts);
        let known = contexts.iter().find(|known| known.raw == raw)?;
        Some(known.id)
    }

    /// How many contexts there are.
    pub fn contexts(&self) -> usize {
        read(&self.contexts).len()
    }

    /// Runs `destroy`, which may destroy contexts, while nothing is asked of
    /// any. Its answer says which are gone, with their streams.
    pub fn while_destroying<R>(&self, destroy: impl FnOnce() -> (Vec<CUcontext>, R)) -> Gone<R> {
        let _gate = read(&self.gate);
        let mut streams = write(&self.streams);
        let mut contexts = write(&self.contexts);
        let (raw, result) = destroy();
        let mut gone = Gone {
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

    /// A context is about to be destroyed, with its streams.
    pub fn remove_context(&self, raw: CUcontext) {
        self.while_destroying(|| (vec![raw], ()));
    }

    /// A stream is there.
    ///
    /// # Safety
    /// It is a stream of the context, which was added, until
    /// [`DriverClock::remove_stream`] or [`DriverClock::remove_context`].
    pub unsafe fn add_stream(&self, id: StreamId, raw: CUcontext, kind: Kind) {
        let mut streams = write(&self.streams);
        let contexts = read(&self.contexts);
        if let Some(context) = contexts.iter().find(|known| known.raw == raw).copied() {
            streams.insert(id, Known { context, kind });
        }
    }

    /// A stream is about to be destroyed.
    pub fn remove_stream(&self, id: StreamId) {
        write(&self.streams).remove(&id);
    }

    /// Begins or ends captures by `change`, during which nothing is asked of
    /// the driver; it is given how many streams capture.
    pub fn change_captures<R>(&self, change: impl FnOnce(&mut usize) -> R) -> R {
        let mut gate = write(&self.gate);
        let result = change(&mut gate);
        self.captures.store(*gate, Relaxed);
        result
    }

    /// How many streams capture, or did a moment ago.
    #[inline]
    pub fn captures(&self) -> usize {
        self.captures.load(Relaxed)
    }

    /// Held while the driver may be asked; none while a stream captures.
    fn may_ask(&self) -> Option<RwLockReadGuard<'_, usize>> {
        let gate = read(&self.gate);
        (*gate == 0).then_some(gate)
    }

    /// An event of a context, new or idle.
    fn event(&self, context: Context) -> Option<CUevent> {
        if let Some(event) = lock(&self.events.idle).get_mut(&context.id)?.pop() {
            return Some(event);
        }
        let _current = Current::push(self.driver, context.raw)?;
        let mut event = CUevent::NULL;
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0 as _;
        // SAFETY: `event` outlives the call.
        done(unsafe { self.driver.cuEventCreate(&mut event, flags) }).then_some(event)
    }

    /// A point of one event that `record` records in `context`.
    fn point(&self, context: Context, record: impl FnOnce(CUevent) -> bool) -> Option<Point> {
        let event = self.event(context)?;
        let point = Point {
            recorded: vec![(context.id, event)],
            events: self.events.clone(),
        };
        record(event).then_some(point)
    }

    fn mark_context(&self, context: Context) -> Option<Point> {
        self.point(context, |event| {
            // SAFETY: the event is of this context, which is there.
            done(unsafe { self.driver.cuCtxRecordEvent(context.raw, event) })
        })
    }

    /// Records in a default stream, which is one of the current context.
    fn mark_default(&self, context: Context, stream: CUstream) -> Option<Point> {
        let _current = Current::push(self.driver, context.raw)?;
        self.point(context, |event| {
            // SAFETY: the event is of the current context.
            done(unsafe { self.driver.cuEventRecord(event, stream) })
        })
    }
}

impl Clock for DriverClock {
    type Point = Point;

    fn mark(&self, place: Place) -> Option<Point> {
        let _gate = self.may_ask()?;
        let streams = read(&self.streams);
        let known = match place {
            Place::Stream(id) => streams.get(&id).copied(),
            Place::Anywhere => None,
        };
        // What a stream that is gone had to do is work of some context.
        let Some(Known { context, kind }) = known else {
            let contexts = read(&self.contexts);
            let mut all = Point {
                recorded: Vec::new(),
                events: self.events.clone(),
            };
            for context in contexts.iter() {
                let mut point = self.mark_context(*context)?;
                all.recorded.append(&mut point.recorded);
            }
            return Some(all);
        };
        match kind {
            Kind::Legacy => self.mark_default(context, CU_STREAM_LEGACY),
            Kind::OfThread(thread) if thread == std::thread::current().id() => {
                self.mark_default(context, CU_STREAM_PER_THREAD)
            }
            // Only its own thread can name it; the context's work includes its.
            Kind::OfThread(_) => self.mark_context(context),
            Kind::Created(stream) => self.point(context, |event| {
                // SAFETY: the stream is there as long as `streams` is held.
                done(unsafe { self.driver.cuEventRecord(event, stream) })
            }),
        }
    }

    fn passed(&self, point: &Point) -> bool {
        let Some(_gate) = self.may_ask() else {
            return false;
        };
        let contexts = read(&self.contexts);
        point.recorded.iter().all(|(context, event)| {
            // What a destroyed context had to do is over.
            !is_there(&contexts, *context)
                // SAFETY: the event is of a context that is there.
                || done(unsafe { self.driver.cuEventQuery(*event) })
        })
    }

    fn wait(&self, stream: StreamId, point: &Point) -> bool {
        let Some(_gate) = self.may_ask() else {
            return false;
        };
        let (streams, contexts) = (read(&self.streams), read(&self.contexts));
        let Some(Known { context, kind }) = streams.get(&stream).copied() else {
            return false;
        };
        let (_current, raw) = match kind {
            Kind::Created(raw) => (None, raw),
            Kind::Legacy => (Current::push(self.driver, context.raw), CU_STREAM_LEGACY),
            Kind::OfThread(thread) if thread == std::thread::current().id() => (
                Current::push(self.driver, context.raw),
                CU_STREAM_PER_THREAD,
            ),
            Kind::OfThread(_) => return false,
        };
        point.recorded.iter().all(|(context, event)| {
            !is_there(&contexts, *context)
                // SAFETY: stream and event are there as long as the locks are held.
                || done(unsafe { self.driver.cuStreamWaitEvent(raw, *event, 0) })
        })
    }

    fn join(&self, point: &Point, patience: Duration) -> bool {
        let begun = Instant::now();
        let mut sleep = Duration::from_micros(5);
        loop {
            if self.passed(point) {
                return true;
            }
            // Somebody captures, who may wait for this very thread.
            if self.may_ask().is_none() || begun.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(sleep);
            sleep = (2 * sleep).min(LONGEST_SLEEP);
        }
    }
}
