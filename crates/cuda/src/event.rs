//! Events: points in a stream's work that streams and the host can wait for.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CU_IPC_HANDLE_SIZE, CUevent, CUevent_flags, CUipcEventHandle, CUresult, c_char,
};

use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::deferred;
use crate::error::{Error, Result, call, check};
use crate::lock::lock;
use crate::stream::{EnteredStream, Stream, StreamCapture};

/// A point in a stream's work. Recording it again moves it; waits that began before are not
/// affected.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: CUevent,
    /// The capture that it was last recorded in, if any.
    captured: Mutex<Option<Weak<StreamCapture>>>,
}

impl Drop for Event {
    fn drop(&mut self) {
        let (context, raw) = (self.context.clone(), self.raw);
        deferred::destroy_or_defer(move || {
            // SAFETY: `raw` came from cuEventCreate or cuIpcOpenEventHandle
            // and this is its only owner. The driver destroys an event
            // that is still pending once it has completed.
            context.destroy(|driver| unsafe { driver.cuEventDestroy_v2(raw) })
        });
    }
}

impl Event {
    /// An event that stores the time at which it completes.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn timed(context: &Context) -> Result<Self> {
        Self::create(context, CUevent_flags::CU_EVENT_DEFAULT.0)
    }

    /// An event without timing, which is cheaper.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn untimed(context: &Context) -> Result<Self> {
        Self::create(context, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)
    }

    /// An untimed event that another process may open.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn shared(context: &Context) -> Result<Self> {
        let flags =
            CUevent_flags::CU_EVENT_DISABLE_TIMING.0 | CUevent_flags::CU_EVENT_INTERPROCESS.0;
        Self::create(context, flags)
    }

    fn create(context: &Context, flags: u32) -> Result<Self> {
        let driver = context.bind()?;
        let mut raw = CUevent::NULL;
        // SAFETY: `raw` outlives the call.
        unsafe {
            call!(
                driver,
                cuEventCreate(&mut raw, flags),
                "make an event on {}",
                context.device()
            )?;
        }
        Ok(Self {
            context: context.clone(),
            raw,
            captured: Mutex::new(None),
        })
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUevent {
        self.raw
    }

    /// Records the event after the work so far in `stream`.
    ///
    /// # Errors
    /// [`Error::Driver`], for instance if the stream is of another context.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.same_driver("record an event", &self.context)?;
        self.record_in(&stream.enter()?)
    }

    /// Records it unless `stream` is being captured, in which case the earlier work of that is
    /// done. Returns whether it was recorded.
    pub(crate) fn record_uncaptured(&self, stream: &Stream) -> Result<bool> {
        let entered = stream.enter()?;
        if entered.capture().is_some() {
            return Ok(false);
        }
        self.record_in(&entered).map(|()| true)
    }

    /// As [`Event::record`], in a stream of the same driver.
    pub(crate) fn record_in(&self, entered: &EnteredStream<'_>) -> Result<()> {
        let stream = entered.stream();
        let driver = stream.context().bind()?;
        // Held over the call, so that `captured` matches what the driver recorded.
        let mut captured = lock(&self.captured);
        // SAFETY: both are alive; the callers checked that they are of one driver.
        unsafe {
            call!(
                driver,
                cuEventRecord(self.raw, stream.raw()),
                "record an event"
            )?
        };
        *captured = entered.capture().map(Arc::downgrade);
        Ok(())
    }

    /// Where it was last recorded. It is not recorded elsewhere while the returned value lives.
    fn recorded_in(&self) -> RecordedIn<'_> {
        RecordedIn(lock(&self.captured))
    }

    fn refuse_capture(&self, operation: &'static str) -> Result<()> {
        if lock(&self.captured).is_some() {
            return Err(Error::Capturing {
                operation,
                advice: "an event recorded in a capture marks a place in the graph, not in time",
            });
        }
        Ok(())
    }

    /// Waits until the work before the event is done; returns at once if it was never recorded.
    ///
    /// # Errors
    /// The first error of that work.
    pub fn synchronize(&self) -> Result<()> {
        let driver = self.context.bind()?;
        self.refuse_capture("wait for a captured event")?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        // SAFETY: the event is alive.
        let waited = unsafe { call!(driver, cuEventSynchronize(self.raw), "wait for an event") };
        if waited.as_ref().is_err_and(Error::is_sticky) {
            Context::wait_for_lost_context(driver);
        }
        waited
    }

    /// Whether the work before the event is done. Never waits.
    ///
    /// # Errors
    /// The first error of that work.
    pub fn is_done(&self) -> Result<bool> {
        let driver = self.context.bind()?;
        self.refuse_capture("query a captured event")?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        // SAFETY: the event is alive.
        match unsafe { driver.cuEventQuery(self.raw) } {
            Ok(CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
            answer => check(answer, "cuEventQuery", || "query an event".into()).map(|()| true),
        }
    }

    /// The device's time from `earlier` to this event; both must be timed and done.
    ///
    /// # Errors
    /// [`Error::Driver`] if one is not.
    pub fn since(&self, earlier: &Event) -> Result<Duration> {
        self.context
            .same_driver("measure the time between two events", &earlier.context)?;
        let driver = self.context.bind()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are alive and `milliseconds` outlives the call.
        unsafe {
            call!(
                driver,
                cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw),
                "measure the time between two events"
            )?;
        }
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds.max(0.0)) / 1e3,
        ))
    }

    /// A handle under which another process can open this event.
    ///
    /// # Errors
    /// [`Error::Driver`] unless made by [`Event::shared`].
    pub fn ipc_handle(&self) -> Result<IpcEventHandle> {
        let driver = self.context.bind()?;
        let mut handle = CUipcEventHandle::default();
        // SAFETY: the event is alive and `handle` outlives the call.
        unsafe {
            call!(
                driver,
                cuIpcGetEventHandle(&mut handle, self.raw),
                "share an event"
            )?
        };
        Ok(IpcEventHandle::from_raw(handle))
    }

    /// Opens an event of another process.
    ///
    /// # Errors
    /// [`Error::Driver`] if the handle is not one, or that process is gone.
    ///
    /// # Safety
    /// The handle came from [`Event::ipc_handle`] of another process, byte for byte: NVIDIA's
    /// driver trusts its content. The event returned is dropped before that process destroys its
    /// own.
    pub unsafe fn open(context: &Context, handle: &IpcEventHandle) -> Result<Self> {
        let driver = context.bind()?;
        let mut raw = CUevent::NULL;
        // SAFETY: `raw` outlives the call; the caller vouches for the handle.
        unsafe {
            call!(
                driver,
                cuIpcOpenEventHandle(&mut raw, handle.to_raw()),
                "open a shared event"
            )?;
        }
        Ok(Self {
            context: context.clone(),
            raw,
            captured: Mutex::new(None),
        })
    }
}

impl Stream {
    /// Records a new event, without timing, after the work so far.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&self) -> Result<Event> {
        let event = Event::untimed(self.context())?;
        event.record(self)?;
        Ok(event)
    }

    /// Makes later work of this stream wait for what was last recorded in `event`. The host does
    /// not wait.
    ///
    /// If that was recorded in a stream being captured, this stream joins the capture.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Capturing`] if a default stream would join.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.same_driver("let a stream wait for an event", &event.context)?;
        let wait = |driver: &Driver| {
            // SAFETY: both are alive and of this driver.
            unsafe {
                call!(
                    driver,
                    cuStreamWaitEvent(self.raw(), event.raw, 0),
                    "let a stream wait for an event"
                )
            }
        };
        let entered = self.enter()?;
        // Held over the call, so that the event is not moved into a capture, or out of one,
        // meanwhile.
        let recorded_in = event.recorded_in();
        match (recorded_in.capture(), entered.capture()) {
            (Some(state), None) => {
                drop((recorded_in, entered));
                self.enter_capture(&state, |driver| {
                    let recorded_in = event.recorded_in();
                    match recorded_in.capture() {
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
}

/// Handle by which other processes open an event of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcEventHandle {
    bytes: [u8; CU_IPC_HANDLE_SIZE],
}

impl IpcEventHandle {
    fn from_raw(raw: CUipcEventHandle) -> Self {
        Self {
            bytes: raw.reserved.map(|byte| byte as u8),
        }
    }

    fn to_raw(self) -> CUipcEventHandle {
        CUipcEventHandle {
            reserved: self.bytes.map(|byte| byte as c_char),
        }
    }

    /// The handle as bytes.
    pub fn to_bytes(self) -> [u8; CU_IPC_HANDLE_SIZE] {
        self.bytes
    }

    /// The handle another process sent.
    pub fn from_bytes(bytes: [u8; CU_IPC_HANDLE_SIZE]) -> Self {
        Self { bytes }
    }
}

/// Where an event was last recorded.
#[derive(Debug)]
struct RecordedIn<'a>(MutexGuard<'a, Option<Weak<StreamCapture>>>);

impl RecordedIn<'_> {
    /// The running capture, if it was recorded in one.
    fn capture(&self) -> Option<Arc<StreamCapture>> {
        let state = self.0.as_ref().and_then(Weak::upgrade)?;
        (!state.is_over()).then_some(state)
    }
}
