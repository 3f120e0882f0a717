//! Resident-kernel dispatcher, and its tasks.
//!
//! Invariants: every buffer of a task lies within a registered buffer, or the task is refused
//! when it is submitted. Between two checks for signals a wait lasts longer than the watchdog
//! needs, since the waiting thread is the watchdog. Elsewhere: the queue and the kernel
//! (`fercuda_runtime`).

use std::time::{Duration, Instant};

use fercuda_runtime::{
    BufferId, DispatchError, DispatchOptions, Dtype, Resident, Session, StandardTask, TaskArgs,
    TaskBuffer, TaskDone, TaskError, TaskJob, TaskSet,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::alive::{self, DetachedDrop};
use crate::buffer::PyBuffer;
use crate::{errors, exceptions};

/// Minimum time between two checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(200);

/// A resident kernel. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "Dispatcher",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyDispatcher {
    session: DetachedDrop<Session>,
    resident: DetachedDrop<Resident>,
    /// Address range of each registered buffer: first byte, and one past the last.
    registered: Vec<(u64, u64)>,
    watchdog: Duration,
}

/// Remaining time limit, divided into steps; signals are handled between steps.
struct WaitSteps {
    begun: Instant,
    limit: Option<Duration>,
    step: Duration,
}

impl WaitSteps {
    fn new(py: Python<'_>, timeout: Option<f64>, watchdog: Duration) -> PyResult<Self> {
        Ok(Self {
            begun: Instant::now(),
            limit: errors::time_limit(py, timeout)?,
            // A task is cancelled after one watchdog period, and considered lost after two.
            step: SIGNAL_INTERVAL + watchdog.saturating_mul(3),
        })
    }

    /// The next step, and whether it is the last.
    fn step(&self) -> (Duration, bool) {
        let left = self.limit.map(|it| it.saturating_sub(self.begun.elapsed()));
        match left {
            Some(left) if left <= self.step => (left, true),
            _ => (self.step, false),
        }
    }
}

pub(crate) struct DispatcherOptions {
    pub(crate) capacity: u32,
    pub(crate) priorities: u32,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) idle_ns: u32,
    pub(crate) steps: u32,
    pub(crate) watchdog_s: f64,
}

impl PyDispatcher {
    pub(crate) fn new(
        py: Python<'_>,
        session: &Session,
        buffers: &[Bound<'_, PyBuffer>],
        options: &DispatcherOptions,
    ) -> PyResult<Self> {
        let watchdog = errors::time_limit(py, Some(options.watchdog_s))?.unwrap_or_default();
        if watchdog.is_zero() || options.steps == 0 {
            let what = "watchdog_s and steps must not be 0\ntry: their defaults";
            return Err(exceptions::plain(py, "ConfigError", what));
        }
        let options = DispatchOptions {
            capacity: options.capacity,
            priorities: options.priorities,
            blocks: options.blocks,
            threads: options.threads,
            idle_ns: options.idle_ns,
            steps: options.steps,
            watchdog,
        };
        let ids: Vec<BufferId> = buffers.iter().map(|it| it.get().id()).collect();
        let booted = errors::run(py, || {
            let mut registered = Vec::with_capacity(ids.len());
            for id in &ids {
                let first = session.memory(*id)?.address().0;
                registered.push((first, first + session.layout(*id)?.bytes()));
            }
            let set = TaskSet::standard();
            Ok((session.dispatcher(&set, &ids, options)?, registered))
        })?;
        Ok(Self {
            session: DetachedDrop::new(session.clone()),
            resident: DetachedDrop::new(booted.0),
            registered: booted.1,
            watchdog,
        })
    }

    /// The registered buffer that contains a buffer's elements, and their range in it.
    fn span(&self, py: Python<'_>, buffer: &PyBuffer) -> PyResult<(TaskBuffer, u64, u64)> {
        let layout = buffer.layout();
        let refused = |why: String| Err(exceptions::plain(py, "ArgumentsError", why));
        if !layout.is_contiguous() || !layout.bytes().is_multiple_of(4) {
            return refused(format!(
                "{layout}: a task needs contiguous four-byte words\ntry: a contiguous buffer or a copy"
            ));
        }
        let first = errors::run(py, || Ok(self.session.memory(buffer.id())?.address().0))?;
        let end = first + layout.bytes();
        let within = |(from, until): &(u64, u64)| *from <= first && end <= *until;
        let Some(at) = self.registered.iter().position(within) else {
            return refused(format!(
                "{} is not within any of the dispatcher's {} buffers\ntry: one of those, or a view of it",
                buffer.id(),
                self.registered.len()
            ));
        };
        let begin = first - self.registered[at].0;
        Ok((TaskBuffer(at as u32), begin, begin + layout.bytes()))
    }

    fn submit(
        &self,
        py: Python<'_>,
        task: StandardTask,
        spans: &[&PyBuffer],
        word: u32,
        given: TaskOptions,
    ) -> PyResult<PyTicket> {
        alive::check_process(py)?;
        let mut arguments = TaskArgs::new().word(word.into());
        for buffer in spans {
            let (place, begin, end) = self.span(py, buffer)?;
            arguments = arguments.span(place, begin..end);
        }
        if let Some(steps) = given.steps {
            arguments = arguments.steps(steps);
        }
        let submit = || self.resident.submit(given.priority, task.id(), &arguments);
        let job = errors::dispatch(py, submit)?;
        Ok(PyTicket {
            job: DetachedDrop::new(job),
            task,
            gives: spans.first().map_or(Dtype::U32, |it| it.layout().dtype()),
            watchdog: self.watchdog,
        })
    }
}

/// Options that any task may have.
#[derive(Clone, Copy)]
struct TaskOptions {
    priority: u32,
    steps: Option<u32>,
}

/// The bits of a number as an element of four bytes.
fn bits(dtype: Dtype, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    Ok(match dtype {
        Dtype::F32 => value.extract::<f32>()?.to_bits(),
        Dtype::I32 => value.extract::<i32>()?.cast_unsigned(),
        Dtype::U32 => value.extract()?,
        other => return Err(unlike(value.py(), other, "u32, i32 or f32")),
    })
}

fn unlike(py: Python<'_>, dtype: Dtype, wanted: &str) -> PyErr {
    let what =
        format!("elements of {dtype}, but the task takes {wanted}\ntry: a view of that type");
    errors::dtype(py, what)
}

#[pymethods]
impl PyDispatcher {
    #[pyo3(signature = (to, value, *, priority=0, steps=None))]
    fn fill(
        &self,
        to: &PyBuffer,
        value: &Bound<'_, PyAny>,
        priority: u32,
        steps: Option<u32>,
    ) -> PyResult<PyTicket> {
        let word = bits(to.layout().dtype(), value)?;
        let given = TaskOptions { priority, steps };
        self.submit(value.py(), StandardTask::Fill, &[to], word, given)
    }

    #[pyo3(signature = (to, source, *, priority=0, steps=None))]
    fn copy(
        &self,
        py: Python<'_>,
        to: &PyBuffer,
        source: &PyBuffer,
        priority: u32,
        steps: Option<u32>,
    ) -> PyResult<PyTicket> {
        let (dtype, other) = (to.layout().dtype(), source.layout().dtype());
        if dtype != other {
            return Err(unlike(py, other, dtype.name()));
        }
        let given = TaskOptions { priority, steps };
        self.submit(py, StandardTask::Copy, &[to, source], 0, given)
    }

    #[pyo3(signature = (y, a, x, *, priority=0, steps=None))]
    fn axpy(
        &self,
        py: Python<'_>,
        y: &PyBuffer,
        a: f32,
        x: &PyBuffer,
        priority: u32,
        steps: Option<u32>,
    ) -> PyResult<PyTicket> {
        for it in [y, x] {
            let dtype = it.layout().dtype();
            if dtype != Dtype::F32 {
                return Err(unlike(py, dtype, "f32"));
            }
        }
        let given = TaskOptions { priority, steps };
        self.submit(py, StandardTask::AxpyF32, &[y, x], a.to_bits(), given)
    }

    #[pyo3(signature = (into, values, *, priority=0, steps=None))]
    fn sum(
        &self,
        py: Python<'_>,
        into: &PyBuffer,
        values: &PyBuffer,
        priority: u32,
        steps: Option<u32>,
    ) -> PyResult<PyTicket> {
        let (dtype, other) = (into.layout().dtype(), values.layout().dtype());
        let task = match dtype {
            Dtype::F32 => StandardTask::SumF32,
            // Modulo 2^32, signed and unsigned sums are the same.
            Dtype::U32 | Dtype::I32 => StandardTask::SumU32,
            other => return Err(unlike(py, other, "u32, i32 or f32")),
        };
        if dtype != other {
            return Err(unlike(py, other, dtype.name()));
        }
        let given = TaskOptions { priority, steps };
        self.submit(py, task, &[into, values], 0, given)
    }

    fn statistics(&self, py: Python<'_>) -> PyResult<PyDispatchStatistics> {
        let it = errors::run(py, || Ok(self.resident.stats()))?;
        Ok(PyDispatchStatistics {
            submitted: it.submitted,
            waiting: it.waiting,
            done: it.done,
            dropped: it.dropped,
            is_stopped: it.is_stopped,
            is_lost: it.is_lost,
        })
    }

    #[pyo3(signature = (timeout=None))]
    fn stop(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = WaitSteps::new(py, timeout, self.watchdog)?;
        loop {
            let (step, is_last) = patience.step();
            // A failed task is not an error of this call.
            let stopped = errors::dispatch(py, || match self.resident.stop(step) {
                Err(DispatchError::Running { .. }) if !is_last => Ok(false),
                stopped => stopped.map(|()| true),
            })?;
            if stopped {
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        errors::dispatch(py, || self.resident.abandon())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let is_well = error.is_empty() || error.get_item(0)?.is_none();
        match is_well {
            true => self.stop(py, None),
            false => self.abandon(py),
        }
    }

    fn __repr__(&self) -> String {
        format!("<Dispatcher of session {:?}>", self.session.name())
    }
}

/// Counters of a dispatcher. See the stubs.
#[pyclass(
    frozen,
    get_all,
    name = "DispatchStatistics",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyDispatchStatistics {
    submitted: u64,
    waiting: u64,
    done: u64,
    dropped: u64,
    is_stopped: bool,
    is_lost: bool,
}

#[pymethods]
impl PyDispatchStatistics {
    fn __repr__(&self) -> String {
        format!(
            "<DispatchStatistics {} submitted, {} waiting, {} done, {} dropped>",
            self.submitted, self.waiting, self.done, self.dropped
        )
    }
}

/// A submitted task. See the stubs.
#[pyclass(frozen, weakref, name = "Ticket", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyTicket {
    job: DetachedDrop<TaskJob>,
    task: StandardTask,
    /// The type of a sum's result.
    gives: Dtype,
    watchdog: Duration,
}

impl PyTicket {
    fn value<'py>(&self, py: Python<'py>, done: TaskDone) -> PyResult<Bound<'py, PyAny>> {
        let low = done.value as u32;
        Ok(match (self.task, self.gives) {
            (StandardTask::SumF32, _) => f32::from_bits(low).into_pyobject(py)?.into_any(),
            (StandardTask::SumU32, Dtype::I32) => low.cast_signed().into_pyobject(py)?.into_any(),
            _ => done.value.into_pyobject(py)?.into_any(),
        })
    }
}

#[pymethods]
impl PyTicket {
    #[getter]
    fn task(&self) -> &'static str {
        self.task.name()
    }

    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<&'static str> {
        errors::run(py, || {
            Ok(match self.job.poll() {
                None if self.job.has_begun() => "running",
                None => "waiting",
                Some(Ok(_)) => "done",
                Some(Err(TaskError::Cancelled)) => "cancelled",
                Some(Err(_)) => "failed",
            })
        })
    }

    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        errors::run(py, || Ok(self.job.poll().is_some()))
    }

    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let patience = WaitSteps::new(py, timeout, self.watchdog)?;
        loop {
            let (step, is_last) = patience.step();
            match errors::run(py, || Ok(self.job.wait(step)))? {
                Ok(done) => return self.value(py, done),
                Err(TaskError::TimedOut) if !is_last => py.check_signals()?,
                Err(error) => {
                    return Err(errors::task(
                        py,
                        self.task,
                        &error,
                        patience.begun.elapsed(),
                    ));
                }
            }
        }
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        errors::run(py, || {
            self.job.cancel();
            Ok(())
        })
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        alive::check_process(py)?;
        py.import("fercuda_runtime._awaiting")?
            .call_method1("task", (slf,))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "<Ticket {}: {}>",
            self.task.name(),
            self.status(py)?
        ))
    }
}
