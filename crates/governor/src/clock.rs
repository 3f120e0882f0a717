//! The order of a device's work, by events of the driver.
//!
//! Invariants: no call here is made while a stream captures, since recording or
//! asking would end the capture; `gate` is held for reading during every call,
//! and for writing by whoever begins a capture. A stream is recorded in only
//! while `streams` is held, and leaves it before it is destroyed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::ThreadId;
use std::time::Duration;

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

#[derive(Clone, Copy, Debug)]
struct Known {
    context: CUcontext,
    kind: Kind,
}

#[derive(Debug, Default)]
struct Events {
    /// Idle ones, by the context that they were made in.
    idle: Mutex<FxHashMap<CUcontext, Vec<CUevent>>>,
}

/// Recorded events: passed when all are. They are used again afterwards.
#[derive(Debug)]
pub struct Point {
    recorded: Vec<(CUcontext, CUevent)>,
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
    streams: RwLock<FxHashMap<StreamId, Known>>,
    contexts: RwLock<Vec<CUcontext>>,
    events: Arc<Events>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn done(answer: Result<CUresult, Missing>) -> bool {
    matches!(answer, Ok(CUresult::CUDA_SUCCESS))
}

/// A context, current in this thread for a while.
struct Current(&'static Driver);

impl Current {
    fn push(driver: &'static Driver, context: CUcontext) -> Option<Self> {
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
            streams: RwLock::default(),
            contexts: RwLock::default(),
            events: Arc::default(),
        }
    }

    /// A context is there: its work counts.
    pub fn add_context(&self, context: CUcontext) {
        let mut contexts = write(&self.contexts);
        if !contexts.contains(&context) {
            contexts.push(context);
            lock(&self.events.idle).insert(context, Vec::new());
        }
    }

    /// A context is about to be destroyed, with its streams.
    pub fn remove_context(&self, context: CUcontext) {
        write(&self.contexts).retain(|known| *known != context);
        write(&self.streams).retain(|_, known| known.context != context);
        lock(&self.events.idle).remove(&context);
    }

    /// A stream is there.
    ///
    /// # Safety
    /// It is a stream of the context, until [`DriverClock::remove_stream`] or
    /// [`DriverClock::remove_context`].
    pub unsafe fn add_stream(&self, id: StreamId, context: CUcontext, kind: Kind) {
        write(&self.streams).insert(id, Known { context, kind });
    }

    /// A stream is about to be destroyed.
    pub fn remove_stream(&self, id: StreamId) {
        write(&self.streams).remove(&id);
    }

    /// Begins or ends captures by `change`, during which nothing is asked of
    /// the driver; it is given how many streams capture.
    pub fn change_captures<R>(&self, change: impl FnOnce(&mut usize) -> R) -> R {
        change(&mut write(&self.gate))
    }

    /// Held while the driver may be asked; none while a stream captures.
    fn may_ask(&self) -> Option<RwLockReadGuard<'_, usize>> {
        let gate = read(&self.gate);
        (*gate == 0).then_some(gate)
    }

    /// An event of a context, new or idle.
    fn event(&self, context: CUcontext) -> Option<CUevent> {
        if let Some(event) = lock(&self.events.idle).get_mut(&context)?.pop() {
            return Some(event);
        }
        let _current = Current::push(self.driver, context)?;
        let mut event = CUevent::NULL;
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0 as _;
        // SAFETY: `event` outlives the call.
        done(unsafe { self.driver.cuEventCreate(&mut event, flags) }).then_some(event)
    }

    /// A point of one event that `record` records in `context`.
    fn point(&self, context: CUcontext, record: impl FnOnce(CUevent) -> bool) -> Option<Point> {
        let event = self.event(context)?;
        let point = Point {
            recorded: vec![(context, event)],
            events: self.events.clone(),
        };
        record(event).then_some(point)
    }

    fn mark_context(&self, context: CUcontext) -> Option<Point> {
        self.point(context, |event| {
            // SAFETY: the event is of this context, which is there.
            done(unsafe { self.driver.cuCtxRecordEvent(context, event) })
        })
    }

    /// Records in a default stream, which is one of the current context.
    fn mark_default(&self, context: CUcontext, stream: CUstream) -> Option<Point> {
        let _current = Current::push(self.driver, context)?;
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
            !contexts.contains(context)
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
            Kind::Legacy => (Current::push(self.driver, context), CU_STREAM_LEGACY),
            Kind::OfThread(thread) if thread == std::thread::current().id() => {
                (Current::push(self.driver, context), CU_STREAM_PER_THREAD)
            }
            Kind::OfThread(_) => return false,
        };
        point.recorded.iter().all(|(context, event)| {
            !contexts.contains(context)
                // SAFETY: stream and event are there as long as the locks are held.
                || done(unsafe { self.driver.cuStreamWaitEvent(raw, *event, 0) })
        })
    }

    fn join(&self, point: &Point) -> bool {
        let mut sleep = Duration::from_micros(5);
        loop {
            if self.passed(point) {
                return true;
            }
            // Somebody captures, who may wait for this very thread.
            if self.may_ask().is_none() {
                return false;
            }
            std::thread::sleep(sleep);
            sleep = (2 * sleep).min(LONGEST_SLEEP);
        }
    }
}
