//! Ops: plans, and their runs over operands of a session's buffers and of other libraries' memory.
//!
//! Invariants: operands, parameters and given outputs are checked before memory is allocated; of an
//! op that is refused nothing is written. Elsewhere: which library gets the results, and its order
//! behind them (`python/src`, `_ops.py`).

use std::sync::Arc;

use fercuda_cuda::Stream;
use fercuda_ops::{OpDescriptor, OpPlan, OpRow};
use fercuda_runtime::{BoundBuffer, Dtype, Layout, Regime, Result, Session};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::alive::{self, DetachedDrop};
use crate::buffer::PyBuffer;
use crate::graphs::PyCapture;
use crate::op_devices::{self, OpContext, PlanKey};
use crate::op_failure::{OpFailure, detached};
use crate::op_operands::{ArrayUse, BoundArray, GivenArray, session_of};
use crate::op_parameters::{OpArguments, find};
use crate::session::PySession;
use crate::{dlpack, errors, exceptions, exchange, interrupt, stream};

/// How a call wants its op run.
struct OpCallOptions<'py> {
    out: Vec<Bound<'py, PyAny>>,
    stream: Option<u64>,
    sku: Option<String>,
    is_checked: bool,
}

/// Outputs as a caller gives them: none, one, or a tuple or list of all.
fn given_outputs<'py>(out: Option<&Bound<'py, PyAny>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let Some(out) = out.filter(|out| !out.is_none()) else {
        return Ok(Vec::new());
    };
    let is_list = out.is_instance_of::<PyTuple>() || out.is_instance_of::<pyo3::types::PyList>();
    match is_list {
        true => out.try_iter()?.collect(),
        false => Ok(vec![out.clone()]),
    }
}

/// The session for a call: the given one, that of the first buffer, or the default of the device.
fn chosen_session(
    py: Python<'_>,
    session: Option<&PySession>,
    operands: &[Bound<'_, PyAny>],
    out: &[Bound<'_, PyAny>],
) -> PyResult<Session> {
    if let Some(session) = session {
        return Ok(session.session().clone());
    }
    match session_of(operands.iter().chain(out))? {
        Ok(session) => Ok(session),
        Err(device) => errors::run(py, || op_devices::default_session(device)),
    }
}

/// Operands and outputs that were read.
struct GivenArrays {
    operands: Vec<GivenArray>,
    outputs: Vec<GivenArray>,
}

impl GivenArrays {
    fn read(
        session: &Session,
        row: &'static OpRow,
        operands: &[Bound<'_, PyAny>],
        options: &OpCallOptions<'_>,
    ) -> PyResult<Self> {
        let is_ordered = options.stream.is_some();
        let read = |what: &dyn Fn() -> String, given: &Bound<'_, PyAny>, used| {
            GivenArray::read(session, what, given, used, is_ordered)
        };
        let mut all = Self {
            operands: Vec::with_capacity(operands.len()),
            outputs: Vec::with_capacity(options.out.len()),
        };
        for (at, given) in operands.iter().enumerate() {
            let what = || format!("operand {} of {}", row.operand(at), row.name);
            all.operands.push(read(&what, given, ArrayUse::Read)?);
        }
        for given in &options.out {
            let what = || format!("out of {}", row.name);
            all.outputs.push(read(&what, given, ArrayUse::Written)?);
        }
        Ok(all)
    }

    fn layouts(&self) -> (Vec<Layout>, Vec<Layout>) {
        let of = |all: &[GivenArray]| all.iter().map(|it| *it.layout()).collect();
        (of(&self.operands), of(&self.outputs))
    }
}

/// What a run leaves: new buffers, none where outputs were given; and for a checked plan its
/// workspace.
struct FinishedRun {
    made: Vec<PyBuffer>,
    recorded: Option<BoundBuffer>,
}

/// Memory of the session that is freed when this is dropped, behind the work that uses it.
fn workspace_of(session: &Session, bytes: u64) -> Result<Option<BoundBuffer>> {
    if bytes == 0 {
        return Ok(None);
    }
    let layout = Layout::contiguous(Dtype::U8, &[bytes])?;
    let id = session.alloc(layout, Regime::Pool)?;
    let memory = session.bind(id);
    session.free(id)?;
    memory.map(Some)
}

/// Queues a plan in a session.
fn queue(
    session: &Session,
    plan: &Arc<OpPlan>,
    given: GivenArrays,
    stream: Option<u64>,
    is_checked: bool,
) -> std::result::Result<FinishedRun, OpFailure> {
    if let Some(stream) = stream {
        stream::lead(session, stream)?;
    }
    let bind = |all: Vec<GivenArray>| -> Result<Vec<BoundArray>> {
        all.into_iter().map(|it| it.bind(session)).collect()
    };
    let operands = bind(given.operands)?;
    let mut outputs = bind(given.outputs)?;
    let mut made = Vec::new();
    if outputs.is_empty() {
        for layout in plan.outputs() {
            let buffer = PyBuffer::new(session, session.alloc(*layout, Regime::Pool)?, None)?;
            outputs.push(BoundArray::of(session.bind(buffer.id())?));
            made.push(buffer);
        }
    }
    let workspace = workspace_of(session, plan.workspace_bytes())?;
    let recorded = workspace.clone().filter(|_| is_checked);
    let queued = plan.clone();
    let (done, arrays) = session.queue(move |stream| {
        let bound: Vec<_> = operands.iter().map(BoundArray::arg).collect();
        let written: Vec<_> = outputs.iter().map(BoundArray::arg).collect();
        let workspace = workspace.as_ref().map(BoundBuffer::arg);
        let done = queued.run(stream, &bound, &written, workspace);
        drop((bound, written));
        Ok((done, operands.into_iter().chain(outputs)))
    })?;
    let (owners, tensors): (Vec<_>, Vec<_>) = arrays.map(BoundArray::into_owner).unzip();
    // Also where a part of it was refused: the rest is queued.
    let tensors = tensors.into_iter().flatten().collect();
    dlpack::return_behind(session.stream().context(), tensors);
    done?;
    for owner in owners.into_iter().flatten() {
        owner.wait_for(session.record()?)?;
    }
    if let Some(stream) = stream {
        stream::follow(session, stream)?;
    }
    Ok(FinishedRun { made, recorded })
}

/// A plan with what it was made for. See the stubs.
#[pyclass(frozen, weakref, name = "OpPlan", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyOpPlan {
    session: DetachedDrop<Session>,
    plan: DetachedDrop<Arc<OpPlan>>,
    op: OpDescriptor,
    operands: Vec<Layout>,
}

impl PyOpPlan {
    fn row(&self) -> &'static OpRow {
        self.op.row()
    }

    /// The plan for a call, found or made.
    fn find(
        py: Python<'_>,
        session: Session,
        row: &'static OpRow,
        arguments: &OpArguments<'_>,
        given: &GivenArrays,
        options: &OpCallOptions<'_>,
    ) -> PyResult<Self> {
        let (operands, outputs) = given.layouts();
        let op = arguments.describe(row, &operands, options.is_checked);
        let op = op.map_err(|error| errors::op(py, row.name, &error))?;
        let key = PlanKey {
            op: op.clone(),
            operands: operands.clone(),
            outputs,
            sku: options.sku.clone(),
        };
        let plan = detached(py, row, || {
            Ok(OpContext::of(session.stream().context())?.plan(key)?)
        })?;
        Ok(Self {
            session: DetachedDrop::new(session),
            plan: DetachedDrop::new(plan),
            op,
            operands,
        })
    }

    /// Queues it, and waits only if it is checked; returns the new buffers, or the given outputs.
    fn run_over<'py>(
        &self,
        py: Python<'py>,
        given: GivenArrays,
        options: &OpCallOptions<'py>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (session, plan, row) = (&*self.session, &*self.plan, self.row());
        let (stream, is_checked) = (options.stream, self.op.is_checked());
        let done = detached(py, row, || queue(session, plan, given, stream, is_checked))?;
        if let Some(recorded) = done.recorded {
            let plan = Arc::clone(plan);
            let checked = interrupt::wait(py, session, move |session| {
                session.queue(move |stream| Ok(plan.check(stream, &recorded.arg())))
            })?;
            checked.map_err(|error| errors::op(py, row.name, &error))?;
        }
        if !options.out.is_empty() {
            return PyTuple::new(py, &options.out);
        }
        let made = done.made.into_iter();
        let made: Vec<Bound<'_, PyBuffer>> = made
            .map(|buffer| Bound::new(py, buffer))
            .collect::<PyResult<_>>()?;
        PyTuple::new(py, made)
    }

    fn check_number(&self, py: Python<'_>, given: usize) -> PyResult<()> {
        if given == self.operands.len() {
            return Ok(());
        }
        let what = format!(
            "the plan of {} is for {} operands, not {given}\ntry: {}",
            self.row().name,
            self.operands.len(),
            self.row().signature()
        );
        Err(exceptions::plain(py, "ArgumentsError", what))
    }

    /// Refuses operands or outputs of other layouts than the plan's.
    fn check_layouts(&self, py: Python<'_>, given: &GivenArrays) -> PyResult<()> {
        let name = self.row().name;
        let (operands, outputs) = given.layouts();
        let shown = |all: &[Layout]| {
            let all: Vec<String> = all.iter().map(Layout::to_string).collect();
            all.join(", ")
        };
        let refused = |what: &str, planned: &[Layout], given: &[Layout]| {
            errors::layout(
                py,
                format!(
                    "the plan of {name} is for {what} {}, but they are {}\ntry: another plan, or ops.{name}, which finds one",
                    shown(planned),
                    shown(given)
                ),
            )
        };
        if operands != self.operands {
            return Err(refused("operands", &self.operands, &operands));
        }
        if !outputs.is_empty() && outputs != self.plan.outputs() {
            return Err(refused("outputs", self.plan.outputs(), &outputs));
        }
        Ok(())
    }
}

/// A plan with its memory, for a graph of a session.
struct CapturedOp {
    plan: Arc<OpPlan>,
    operands: Vec<BoundBuffer>,
    outputs: Vec<BoundBuffer>,
    workspace: Option<BoundBuffer>,
}

impl CapturedOp {
    /// Queues it in a stream.
    ///
    /// # Errors
    /// The op's.
    fn record(&self, stream: &Stream) -> Result<()> {
        let workspace = self.workspace.as_ref().map(BoundBuffer::arg);
        let operands: Vec<_> = self.operands.iter().map(BoundBuffer::arg).collect();
        let outputs: Vec<_> = self.outputs.iter().map(BoundBuffer::arg).collect();
        let done = self.plan.run(stream, &operands, &outputs, workspace);
        done.map_err(|error| {
            let reason = error.to_string();
            let operation = "capture an op";
            fercuda_cuda::Error::Value { operation, reason }.into()
        })
    }
}

impl PyOpPlan {
    /// The plan over buffers of its session, with a workspace of its own.
    ///
    /// # Errors
    /// `ArgumentsError` for another number of operands, a checked plan, and arrays of another
    /// session or library; `LayoutError` for other layouts; those of allocating.
    fn captured(
        &self,
        py: Python<'_>,
        session: &Session,
        operands: &[Bound<'_, PyAny>],
        out: &Bound<'_, PyAny>,
    ) -> PyResult<CapturedOp> {
        let name = self.row().name;
        let refused = |what: String| exceptions::plain(py, "ArgumentsError", what);
        if self.session.name() != session.name() {
            return Err(refused(format!(
                "the plan of {name} is of session {:?}, the graph of {:?}\ntry: ops.plan(..., session=) with the graph's",
                self.session.name(),
                session.name()
            )));
        }
        if self.op.is_checked() {
            return Err(refused(format!(
                "the plan of {name} waits, to check indices\ntry: a plan without check"
            )));
        }
        self.check_number(py, operands.len())?;
        let options = OpCallOptions {
            out: given_outputs(Some(out))?,
            stream: None,
            sku: None,
            is_checked: false,
        };
        let given = GivenArrays::read(session, self.row(), operands, &options)?;
        self.check_layouts(py, &given)?;
        if given.outputs.len() != self.plan.outputs().len() {
            return Err(refused(format!(
                "{} outputs are given, the plan of {name} has {}\ntry: out= with all of them",
                given.outputs.len(),
                self.plan.outputs().len()
            )));
        }
        let bound = |all: Vec<GivenArray>| -> PyResult<Vec<BoundBuffer>> {
            let mut bound = Vec::with_capacity(all.len());
            for array in all {
                let Some(memory) = errors::run(py, || array.bind_own(session))? else {
                    return Err(refused(format!(
                        "an array of {name} is no buffer of session {:?}\ntry: session.from_dlpack(array) before the capture",
                        session.name()
                    )));
                };
                bound.push(memory);
            }
            Ok(bound)
        };
        let (operands, outputs) = (bound(given.operands)?, bound(given.outputs)?);
        let bytes = self.plan.workspace_bytes();
        let workspace = errors::run(py, || workspace_of(session, bytes))?;
        Ok(CapturedOp {
            plan: Arc::clone(&self.plan),
            operands,
            outputs,
            workspace,
        })
    }
}

/// (kernel, reason, others with their reasons, launches)
type SkuRow = (&'static str, String, Vec<(&'static str, String)>, usize);

#[pymethods]
impl PyOpPlan {
    #[pyo3(signature = (operands, out=None, stream=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        operands: Vec<Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        stream: Option<u64>,
    ) -> PyResult<(PySession, Bound<'py, PyTuple>)> {
        let options = OpCallOptions {
            out: given_outputs(out)?,
            stream,
            sku: None,
            is_checked: false,
        };
        self.check_number(py, operands.len())?;
        let given = GivenArrays::read(&self.session, self.row(), &operands, &options)?;
        self.check_layouts(py, &given)?;
        let results = self.run_over(py, given, &options)?;
        Ok((PySession::of(self.session.clone()), results))
    }

    fn capture(
        &self,
        py: Python<'_>,
        capture: &Bound<'_, PyCapture>,
        operands: &Bound<'_, PyTuple>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let operands: Vec<Bound<'_, PyAny>> = operands.iter().collect();
        let capture = capture.get();
        let captured = self.captured(py, capture.session(), &operands, out)?;
        capture.add_work(py, Box::new(move |stream| captured.record(stream)))
    }

    #[getter]
    fn op(&self) -> &'static str {
        self.row().name
    }

    #[getter]
    fn sku(&self) -> SkuRow {
        let sku = self.plan.sku();
        let others = sku.rejected.iter();
        let others = others.map(|it| (it.id, it.reason.clone())).collect();
        (sku.id, sku.reason.clone(), others, sku.launches)
    }

    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes()
    }

    #[getter]
    fn operands(&self) -> Vec<(&'static str, Vec<u64>, Vec<i64>)> {
        self.operands.iter().map(shown).collect()
    }

    #[getter]
    fn outputs(&self) -> Vec<(&'static str, Vec<u64>, Vec<i64>)> {
        self.plan.outputs().iter().map(shown).collect()
    }

    #[getter]
    fn session(&self) -> PySession {
        PySession::of(self.session.clone())
    }

    fn __repr__(&self) -> String {
        let operands: Vec<String> = self.operands.iter().map(Layout::to_string).collect();
        let (name, id) = (self.row().name, self.plan.sku().id);
        format!("<OpPlan {name} of {} by {id}>", operands.join(", "))
    }
}

/// (type, shape, strides)
fn shown(layout: &Layout) -> (&'static str, Vec<u64>, Vec<i64>) {
    let (shape, strides) = (layout.shape().to_vec(), layout.strides().to_vec());
    (layout.dtype().name(), shape, strides)
}

/// A call that was read: its plan, and what it runs over.
fn planned<'py>(
    py: Python<'py>,
    row: &'static OpRow,
    arguments: &OpArguments<'py>,
    session: Option<&PySession>,
    options: &OpCallOptions<'py>,
) -> PyResult<(PyOpPlan, GivenArrays)> {
    let session = chosen_session(py, session, &arguments.operands, &options.out)?;
    let given = GivenArrays::read(&session, row, &arguments.operands, options)?;
    let plan = PyOpPlan::find(py, session, row, arguments, &given, options)?;
    Ok((plan, given))
}

/// Runs an op; returns the session and the results. No session: they are in the current stream of
/// the library that all arrays are of, and nothing is left to be ordered.
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
#[pyfunction]
#[pyo3(signature = (name, operands, keywords, out=None, stream=None, session=None, sku=None, check=false))]
pub(crate) fn run_op<'py>(
    py: Python<'py>,
    name: &str,
    operands: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
    out: Option<&Bound<'py, PyAny>>,
    stream: Option<u64>,
    session: Option<&Bound<'py, PySession>>,
    sku: Option<String>,
    check: bool,
) -> PyResult<(Option<PySession>, Bound<'py, PyTuple>)> {
    alive::check_process(py)?;
    let is_of_library = session.is_none() && stream.is_none() && sku.is_none() && !check;
    let options = OpCallOptions {
        out: given_outputs(out)?,
        stream,
        sku,
        is_checked: check,
    };
    let row = find(py, name)?;
    let arguments = OpArguments::read(row, operands, keywords)?;
    if is_of_library && let Some(results) = exchange::run(py, row, &arguments, &options.out)? {
        return Ok((None, results));
    }
    let session = session.map(Bound::get);
    let (plan, given) = planned(py, row, &arguments, session, &options)?;
    let results = plan.run_over(py, given, &options)?;
    Ok((Some(PySession::of(plan.session.clone())), results))
}

/// Makes a plan of an op, or finds it.
#[pyfunction]
#[pyo3(signature = (name, operands, keywords, out=None, session=None, sku=None, check=false))]
pub(crate) fn plan_op<'py>(
    name: &str,
    operands: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
    out: Option<&Bound<'py, PyAny>>,
    session: Option<&Bound<'py, PySession>>,
    sku: Option<String>,
    check: bool,
) -> PyResult<PyOpPlan> {
    let py = operands.py();
    alive::check_process(py)?;
    let options = OpCallOptions {
        out: given_outputs(out)?,
        stream: None,
        sku,
        is_checked: check,
    };
    let row = find(py, name)?;
    let arguments = OpArguments::read(row, operands, keywords)?;
    let session = session.map(Bound::get);
    Ok(planned(py, row, &arguments, session, &options)?.0)
}

/// (look-ups that found a plan, those that made one, plans)
#[pyfunction]
pub(crate) fn op_plan_counters() -> (u64, u64, usize) {
    let counters = op_devices::counters();
    (counters.hits, counters.misses, counters.plans)
}

/// Drops all cached plans.
#[pyfunction]
pub(crate) fn clear_op_plans(py: Python<'_>) -> PyResult<()> {
    errors::run(py, || {
        op_devices::clear();
        Ok(())
    })
}

/// The session of a device for callers without one.
#[pyfunction]
pub(crate) fn default_op_session(py: Python<'_>, device: u32) -> PyResult<PySession> {
    let session = errors::run(py, || op_devices::default_session(device))?;
    Ok(PySession::of(session))
}
