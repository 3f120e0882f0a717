//! Asynchronous jobs, as Python objects.
//!
//! Invariant: a job's outcome is taken once, by the thread that is first notified of its
//! completion, and kept for all callers. Waiting threads sleep on a condition variable, without
//! the GIL; an event loop is notified by a callback. Nothing polls.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use fercuda_runtime::{Error, Job, Result, Status};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::alive::{self, lock};
use crate::errors;

/// The result of a job.
pub(crate) enum JobValue {
    Nothing,
    Bytes(Vec<u8>),
}

enum SessionJob {
    /// An upload; its bytes are the host's copy of the data.
    Sends(Job<Vec<u8>>),
    Fetches(Job<Vec<u8>>),
    Runs(Job<()>),
}

impl SessionJob {
    fn status(&self) -> Status {
        match self {
            Self::Sends(job) | Self::Fetches(job) => job.status(),
            Self::Runs(job) => job.status(),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Sends(job) | Self::Fetches(job) => job.number(),
            Self::Runs(job) => job.number(),
        }
    }

    fn wait(&self) -> Result<JobValue> {
        match self {
            Self::Sends(job) => job.wait().map(|_| JobValue::Nothing),
            Self::Fetches(job) => job.wait().map(JobValue::Bytes),
            Self::Runs(job) => job.wait().map(|()| JobValue::Nothing),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<JobValue>> {
        match self {
            Self::Sends(job) => Pin::new(job).poll(context).map_ok(|_| JobValue::Nothing),
            Self::Fetches(job) => Pin::new(job).poll(context).map_ok(JobValue::Bytes),
            Self::Runs(job) => Pin::new(job).poll(context).map_ok(|()| JobValue::Nothing),
        }
    }
}

#[derive(Default)]
struct AwaitedJob {
    work: OnceLock<SessionJob>,
    state: Mutex<JobOutcomeSlot>,
    changed: Condvar,
}

#[derive(Default)]
struct JobOutcomeSlot {
    outcome: Option<Result<JobValue>>,
    callbacks: Vec<Py<PyAny>>,
}

impl AwaitedJob {
    /// Takes the outcome if the job has finished and it was not taken.
    fn take_outcome(&self) {
        let over = |work: &&SessionJob| !matches!(work.status(), Status::Waiting | Status::Running);
        if let Some(work) = self.work.get().filter(over) {
            let mut state = lock(&self.state);
            if state.outcome.is_none() {
                state.outcome = Some(work.wait());
            }
            drop(state);
            self.notify();
        }
    }

    /// Notifies waiting threads and callbacks of completion.
    fn notify(&self) {
        self.changed.notify_all();
        let callbacks = std::mem::take(&mut lock(&self.state).callbacks);
        if callbacks.is_empty() {
            return;
        }
        alive::with_python(|py| {
            for callback in callbacks {
                if let Err(error) = callback.call0(py) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            }
        });
    }

    fn wait(&self, limit: Option<Duration>) -> Result<()> {
        let begun = Instant::now();
        let mut state = lock(&self.state);
        while state.outcome.is_none() {
            let waited = begun.elapsed();
            let left = match limit {
                None => Duration::from_secs(3600),
                Some(limit) => limit.saturating_sub(waited),
            };
            if left.is_zero() {
                let number = self.work.get().map_or(0, SessionJob::number);
                return Err(Error::Timeout {
                    what: format!("job {number}"),
                    waited,
                });
            }
            let changed = self.changed.wait_timeout(state, left);
            state = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Wake for AwaitedJob {
    fn wake(self: Arc<Self>) {
        self.take_outcome();
    }
}

/// Work of a session, in submission order. See the stubs.
#[pyclass(frozen, name = "Job", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyJob {
    shared: Arc<AwaitedJob>,
}

impl PyJob {
    pub(crate) fn sends(job: Job<Vec<u8>>) -> Self {
        Self::new(SessionJob::Sends(job))
    }

    pub(crate) fn fetches(job: Job<Vec<u8>>) -> Self {
        Self::new(SessionJob::Fetches(job))
    }

    pub(crate) fn runs(job: Job<()>) -> Self {
        Self::new(SessionJob::Runs(job))
    }

    fn new(mut work: SessionJob) -> Self {
        let shared = Arc::new(AwaitedJob::default());
        let waker = Waker::from(shared.clone());
        if let Poll::Ready(outcome) = work.poll(&mut Context::from_waker(&waker)) {
            lock(&shared.state).outcome = Some(outcome);
        }
        // Nothing else has set it. A wake-up in the meantime found nothing to take.
        drop(shared.work.set(work));
        shared.take_outcome();
        Self { shared }
    }

    fn work(&self) -> &SessionJob {
        match self.shared.work.get() {
            Some(work) => work,
            None => unreachable!("`new` has set it"),
        }
    }
}

#[pymethods]
impl PyJob {
    #[getter]
    fn number(&self) -> u64 {
        self.work().number()
    }

    #[getter]
    fn status(&self) -> &'static str {
        match self.work().status() {
            Status::Waiting => "waiting",
            Status::Running => "running",
            Status::Done => "done",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        }
    }

    fn done(&self) -> bool {
        lock(&self.shared.state).outcome.is_some()
    }

    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let limit = errors::time_limit(py, timeout)?;
        let begun = Instant::now();
        // Signals, such as Ctrl-C, are handled between the steps of a long wait.
        loop {
            let nap = Duration::from_millis(200);
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            let last = left.is_some_and(|left| left <= nap);
            let nap = if last { left } else { Some(nap) };
            match errors::run(py, || Ok(self.shared.wait(nap)))? {
                Ok(()) => break,
                Err(Error::Timeout { what, .. }) if last => {
                    let waited = begun.elapsed();
                    return Err(errors::raise(py, &Error::Timeout { what, waited }));
                }
                Err(_) => py.check_signals()?,
            }
        }
        match &lock(&self.shared.state).outcome {
            Some(Ok(JobValue::Bytes(bytes))) => Ok(Some(PyBytes::new(py, bytes))),
            Some(Ok(JobValue::Nothing)) | None => Ok(None),
            Some(Err(error)) => Err(errors::raise(py, error)),
        }
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        errors::run(py, || {
            Ok(match self.work() {
                SessionJob::Sends(job) | SessionJob::Fetches(job) => job.cancel(),
                SessionJob::Runs(job) => job.cancel(),
            })
        })
    }

    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        alive::check_process(py)?;
        lock(&self.shared.state).callbacks.push(callback);
        py.detach(|| {
            if lock(&self.shared.state).outcome.is_some() {
                self.shared.notify();
            }
        });
        Ok(())
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        alive::check_process(py)?;
        py.import("fercuda_runtime._awaiting")?
            .call_method1("outcome", (slf,))
    }

    fn __repr__(&self) -> String {
        format!("<Job {}: {}>", self.number(), self.status())
    }
}
