//! A session's graph cache, and captures.
//!
//! A CUDA capture belongs to the thread in which it began, but a `with` may end in another one.
//! So calls in its body are validated and held at once, and captured together at its end.
//!
//! Invariants: nothing is captured while a body runs, so whatever it raises, and whatever other
//! threads do, nothing has to be undone. A key that was invalidated since the body began keeps
//! no graph. Elsewhere: the cache (`fercuda_runtime`), launch arguments (`kernels`).

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fercuda_cuda::Stream;
use fercuda_runtime::{
    Evaluation, GraphBudget, GraphError, Graphs, Key, PreparedLaunch, RecordOptions, RecordedGraph,
    Result, Session,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::alive::{self, DetachedDrop, lock};
use crate::expression::Expression;
use crate::kernels::PyFunction;
use crate::{errors, exceptions};

/// The key of a graph. See the stubs.
#[pyclass(
    frozen,
    eq,
    hash,
    name = "GraphKey",
    module = "fercuda_runtime._fercuda"
)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PyGraphKey {
    generation: u64,
    parts: Arc<[KeyPart]>,
}

#[derive(PartialEq, Eq, Hash)]
enum KeyPart {
    Number(i128),
    Text(Box<str>),
}

impl Key for PyGraphKey {
    fn generation(&self) -> u64 {
        self.generation
    }
}

impl fmt::Debug for PyGraphKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GraphKey(")?;
        for part in &*self.parts {
            match part {
                KeyPart::Number(number) => write!(f, "{number}, ")?,
                KeyPart::Text(text) => write!(f, "{text:?}, ")?,
            }
        }
        write!(f, "generation={})", self.generation)
    }
}

impl PyGraphKey {
    fn of(generation: u64, parts: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let part = |part: Bound<'_, PyAny>| {
            if let Ok(text) = part.extract::<String>() {
                return Ok(KeyPart::Text(text.into()));
            }
            if let Ok(number) = part.extract::<i64>() {
                return Ok(KeyPart::Number(number.into()));
            }
            if let Ok(number) = part.extract::<u64>() {
                return Ok(KeyPart::Number(number.into()));
            }
            let what = format!(
                "{} cannot be part of a key\ntry: str, or int of 64 bits",
                part.repr()?
            );
            Err(exceptions::plain(part.py(), "ConfigError", what))
        };
        Ok(Self {
            generation,
            parts: parts.iter().map(part).collect::<PyResult<_>>()?,
        })
    }

    /// A key as it is, or built from its parts.
    fn read(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(key) = given.cast::<Self>() {
            return Ok(key.get().clone());
        }
        match given.cast::<PyTuple>() {
            Ok(parts) => Self::of(0, parts),
            Err(_) => Self::of(0, &PyTuple::new(given.py(), [given])?),
        }
    }
}

#[pymethods]
impl PyGraphKey {
    #[new]
    #[pyo3(signature = (*parts, generation=0))]
    fn new(parts: &Bound<'_, PyTuple>, generation: u64) -> PyResult<Self> {
        Self::of(generation, parts)
    }

    #[getter(generation)]
    fn number(&self) -> u64 {
        self.generation
    }

    #[getter]
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let part = |part: &KeyPart| match part {
            KeyPart::Number(number) => match i64::try_from(*number) {
                Ok(number) => Ok(number.into_pyobject(py)?.into_any()),
                Err(_) => Ok((*number as u64).into_pyobject(py)?.into_any()),
            },
            KeyPart::Text(text) => Ok(text.into_pyobject(py)?.into_any()),
        };
        let parts = self.parts.iter().map(part).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, parts)
    }

    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}

/// Result of a capture. See the stubs.
#[pyclass(
    frozen,
    get_all,
    name = "GraphRecord",
    module = "fercuda_runtime._fercuda"
)]
#[derive(Clone)]
pub(crate) struct PyGraphRecord {
    nodes: usize,
    bytes: u64,
    updated: bool,
    capture_s: f64,
    instantiate_s: f64,
    upload_s: f64,
}

impl From<RecordedGraph> for PyGraphRecord {
    fn from(it: RecordedGraph) -> Self {
        Self {
            nodes: it.nodes,
            bytes: it.bytes,
            updated: it.updated,
            capture_s: it.capture.as_secs_f64(),
            instantiate_s: it.instantiate.as_secs_f64(),
            upload_s: it.upload.as_secs_f64(),
        }
    }
}

#[pymethods]
impl PyGraphRecord {
    fn __repr__(&self) -> String {
        let how = if self.updated { "updated" } else { "new" };
        format!(
            "<GraphRecord {} nodes, {} B, {how}>",
            self.nodes, self.bytes
        )
    }
}

/// Timing of a replay. See the stubs.
#[pyclass(
    frozen,
    get_all,
    name = "GraphTimes",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyGraphTimes {
    upload_s: f64,
    launch_s: f64,
    device_s: f64,
    completion_s: f64,
}

#[pymethods]
impl PyGraphTimes {
    fn __repr__(&self) -> String {
        let shown = |seconds: f64| format!("{:?}", Duration::from_secs_f64(seconds));
        format!(
            "<GraphTimes upload {}, launch {}, device {}, completion {}>",
            shown(self.upload_s),
            shown(self.launch_s),
            shown(self.device_s),
            shown(self.completion_s)
        )
    }
}

/// Counters of a cache. See the stubs.
#[pyclass(
    frozen,
    get_all,
    name = "GraphStatistics",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyGraphStatistics {
    entries: usize,
    bytes: u64,
    retired: usize,
    replays: u64,
    absent: u64,
    instantiated: u64,
    updated: u64,
    evicted: u64,
}

#[pymethods]
impl PyGraphStatistics {
    fn __repr__(&self) -> String {
        format!(
            "<GraphStatistics {} entries, {} B, {} replays, {} evicted>",
            self.entries, self.bytes, self.replays, self.evicted
        )
    }
}

/// A cache of graphs. See the stubs.
#[pyclass(frozen, weakref, name = "Graphs", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyGraphs {
    session: DetachedDrop<Session>,
    graphs: DetachedDrop<Graphs<PyGraphKey>>,
    bodies: Mutex<OpenCaptures>,
}

/// Captures with a running body: number, key, and whether the key was invalidated.
#[derive(Default)]
struct OpenCaptures {
    last: u64,
    all: Vec<(u64, PyGraphKey, bool)>,
}

impl PyGraphs {
    pub(crate) fn new(session: &Session, budget: GraphBudget) -> Result<Self> {
        Ok(Self {
            graphs: DetachedDrop::new(session.graphs(budget)?),
            session: DetachedDrop::new(session.clone()),
            bodies: Mutex::default(),
        })
    }

    fn begin(&self, key: &PyGraphKey) -> u64 {
        let mut bodies = lock(&self.bodies);
        bodies.last += 1;
        let number = bodies.last;
        bodies.all.push((number, key.clone(), false));
        number
    }

    /// Whether the key of a running body was invalidated meanwhile.
    fn is_invalidated(&self, number: u64) -> bool {
        let bodies = lock(&self.bodies);
        bodies
            .all
            .iter()
            .any(|(it, _, gone)| *it == number && *gone)
    }

    fn forget(&self, number: u64) {
        lock(&self.bodies).all.retain(|(it, ..)| *it != number);
    }

    /// Must be called before the cache is invalidated: a capture that begins in between is found
    /// there.
    fn mark(&self, which: impl Fn(&PyGraphKey) -> bool) {
        for (_, key, gone) in &mut lock(&self.bodies).all {
            *gone |= which(key);
        }
    }
}

#[pymethods]
impl PyGraphs {
    fn capture(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<PyCapture> {
        alive::check_process(key.py())?;
        Ok(PyCapture {
            graphs: slf.clone().unbind(),
            key: PyGraphKey::read(key)?,
            phase: Mutex::new(CapturePhase::Fresh),
        })
    }

    fn replay(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = key.py();
        let key = PyGraphKey::read(key)?;
        errors::run(py, || self.graphs.replay(&key))
    }

    fn replay_timed(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<PyGraphTimes>> {
        let py = key.py();
        let key = PyGraphKey::read(key)?;
        let times = errors::run(py, || match self.graphs.replay_timed(&key)? {
            Some(timing) => Ok(Some(timing.wait()?)),
            None => Ok(None),
        })?;
        Ok(times.map(|times| PyGraphTimes {
            upload_s: times.upload.as_secs_f64(),
            launch_s: times.launch.as_secs_f64(),
            device_s: times.device.as_secs_f64(),
            completion_s: times.completion.as_secs_f64(),
        }))
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = key.py();
        let key = PyGraphKey::read(key)?;
        errors::run(py, || Ok(self.graphs.contains(&key)))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        errors::run(py, || Ok(self.graphs.stats().entries))
    }

    fn invalidate(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = key.py();
        let key = PyGraphKey::read(key)?;
        errors::run(py, || {
            self.mark(|other| *other == key);
            Ok(self.graphs.invalidate(&key))
        })
    }

    fn invalidate_generation(&self, py: Python<'_>, generation: u64) -> PyResult<usize> {
        errors::run(py, || {
            self.mark(|other| other.generation == generation);
            Ok(self.graphs.invalidate_generation(generation))
        })
    }

    fn invalidate_all(&self, py: Python<'_>) -> PyResult<usize> {
        errors::run(py, || {
            self.mark(|_| true);
            Ok(self.graphs.invalidate_all())
        })
    }

    fn statistics(&self, py: Python<'_>) -> PyResult<PyGraphStatistics> {
        let it = errors::run(py, || Ok(self.graphs.stats()))?;
        Ok(PyGraphStatistics {
            entries: it.entries,
            bytes: it.bytes,
            retired: it.retired,
            replays: it.replays,
            absent: it.absent,
            instantiated: it.instantiated,
            updated: it.updated,
            evicted: it.evicted,
        })
    }

    fn __repr__(&self) -> String {
        format!("<Graphs of session {:?}>", self.session.name())
    }
}

/// Work to be captured, with its arguments.
enum CapturedWork {
    Launch(PreparedLaunch),
    Evaluate(Evaluation),
    Other(RecordWork),
}

/// Queues work in a stream that is being captured.
pub(crate) type RecordWork = Box<dyn Fn(&Stream) -> fercuda_runtime::Result<()> + Send + Sync>;

enum CapturePhase {
    Fresh,
    /// The body runs, under this number.
    Open(u64, Vec<DetachedDrop<CapturedWork>>),
    Over(Option<PyGraphRecord>),
}

/// The body of a capture. See the stubs.
#[pyclass(frozen, name = "Capture", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyCapture {
    graphs: Py<PyGraphs>,
    key: PyGraphKey,
    phase: Mutex<CapturePhase>,
}

impl PyCapture {
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        let phase = lock(&self.phase);
        let what = match &*phase {
            CapturePhase::Open(..) => return Ok(()),
            CapturePhase::Fresh => "has not begun\ntry: `with graphs.capture(key) as capture:`",
            CapturePhase::Over(_) => "is over\ntry: a new capture",
        };
        let what = format!("the capture of {:?} {what}", self.key);
        Err(exceptions::plain(py, "GraphError", what))
    }

    fn add(&self, py: Python<'_>, step: CapturedWork) -> PyResult<()> {
        self.check_open(py)?;
        let step = DetachedDrop::new(step);
        if let CapturePhase::Open(_, steps) = &mut *lock(&self.phase) {
            steps.push(step);
        }
        Ok(())
    }
}

impl PyCapture {
    /// The session of its graph.
    pub(crate) fn session(&self) -> &Session {
        &self.graphs.get().session
    }

    /// Adds work of another module.
    ///
    /// # Errors
    /// `GraphError` outside of the body.
    pub(crate) fn add_work(&self, py: Python<'_>, record: RecordWork) -> PyResult<()> {
        self.add(py, CapturedWork::Other(record))
    }
}

#[pymethods]
impl PyCapture {
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (py, it) = (slf.py(), slf.get());
        alive::check_process(py)?;
        {
            let mut phase = lock(&it.phase);
            if !matches!(&*phase, CapturePhase::Fresh) {
                drop(phase);
                let what = format!(
                    "the capture of {:?} has already begun\ntry: a new capture",
                    it.key
                );
                return Err(exceptions::plain(py, "GraphError", what));
            }
            *phase = CapturePhase::Open(it.graphs.get().begin(&it.key), Vec::new());
        }
        Ok(slf)
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let phase = std::mem::replace(&mut *lock(&self.phase), CapturePhase::Over(None));
        let CapturePhase::Open(number, steps) = phase else {
            return Ok(());
        };
        let graphs = self.graphs.get();
        let is_discarded = !error.is_empty() && !error.get_item(0)?.is_none();
        let recorded = match is_discarded {
            true => Ok(None),
            false => errors::run(py, move || {
                let options = RecordOptions::default();
                let recorded = graphs
                    .graphs
                    .record(self.key.clone(), options, |recording| {
                        if graphs.is_invalidated(number) {
                            return Err(GraphError::Invalidated.into());
                        }
                        steps.iter().try_for_each(|step| match &**step {
                            // SAFETY: as for `KernelCall::launch`.
                            CapturedWork::Launch(launch) => unsafe {
                                launch.run(recording.stream())
                            },
                            CapturedWork::Evaluate(evaluation) => evaluation.record(recording),
                            CapturedWork::Other(record) => record(recording.stream()),
                        })
                    });
                Ok(Some(recorded?.1.into()))
            }),
        };
        graphs.forget(number);
        *lock(&self.phase) = CapturePhase::Over(recorded?);
        Ok(())
    }

    #[pyo3(signature = (function, grid, block, arguments=None, *, shared_bytes=None))]
    fn launch(
        &self,
        function: &PyFunction,
        grid: &Bound<'_, PyAny>,
        block: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyAny>>,
        shared_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = grid.py();
        self.check_open(py)?;
        let session = &*self.graphs.get().session;
        let call = function.call(session, grid, block, arguments, shared_bytes)?;
        let captured = errors::run(py, || call.capture(session))?;
        self.add(py, CapturedWork::Launch(captured))
    }

    #[pyo3(signature = (text, /, *, into=None, **inputs))]
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        into: Option<&Bound<'py, PyAny>>,
        inputs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        alive::check_process(py)?;
        self.check_open(py)?;
        let session = &*self.graphs.get().session;
        let expression = Expression::read(py, text, into, inputs)?;
        let mut ready = None;
        let outputs = expression.evaluate(py, session, |graph, inputs, outputs| {
            ready = Some(session.prepare(graph, inputs, outputs)?);
            Ok(())
        })?;
        if let Some(ready) = ready {
            self.add(py, CapturedWork::Evaluate(ready))?;
        }
        Ok(outputs)
    }

    #[pyo3(signature = (plan, /, *operands, out))]
    fn run(
        slf: &Bound<'_, Self>,
        plan: &Bound<'_, PyAny>,
        operands: &Bound<'_, PyTuple>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = slf.py();
        slf.get().check_open(py)?;
        let Ok(compiled) = plan.getattr("_plan") else {
            let what = format!("{plan} is no plan of an op\ntry: ops.plan(name, *operands)");
            return Err(exceptions::plain(py, "ArgumentsError", what));
        };
        compiled.call_method1("capture", (slf, operands, out))?;
        Ok(())
    }

    #[getter]
    fn key(&self) -> PyGraphKey {
        self.key.clone()
    }

    #[getter]
    fn record(&self) -> Option<PyGraphRecord> {
        match &*lock(&self.phase) {
            CapturePhase::Over(record) => record.clone(),
            CapturePhase::Fresh | CapturePhase::Open(..) => None,
        }
    }

    fn __repr__(&self) -> String {
        let phase = match &*lock(&self.phase) {
            CapturePhase::Fresh => "not begun",
            CapturePhase::Open(..) => "open",
            CapturePhase::Over(Some(_)) => "kept",
            CapturePhase::Over(None) => "discarded",
        };
        format!("<Capture of {:?}: {phase}>", self.key)
    }
}

impl Drop for PyCapture {
    fn drop(&mut self) {
        // An abandoned body, such as that of a generator.
        if let CapturePhase::Open(number, _) = &*lock(&self.phase) {
            self.graphs.get().forget(*number);
        }
    }
}
