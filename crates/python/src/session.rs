//! Devices and sessions.
//!
//! Invariant: whatever may wait for the device, or for a lock that a waiting thread holds, runs
//! without the GIL.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fercuda_cuda::{DeviceAddr, Error as CudaError, Image, Select};
use fercuda_runtime::{
    Dtype, GraphBudget, Layout, Regime, Runtime, RuntimeConfig, Session, SessionConfig,
};
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeWarning};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::alive::{self, DetachedDrop, SharedPyObject};
use crate::allocator::PythonAllocator;
use crate::arguments::PyArgumentBlock;
use crate::buffer::PyBuffer;
use crate::dispatcher::{DispatcherOptions, PyDispatcher};
use crate::dlpack::{self, BorrowedTensor, TensorDevice};
use crate::expression::Expression;
use crate::extents;
use crate::graphs::PyGraphs;
use crate::host;
use crate::html::{ByteCount, HtmlTable};
use crate::interrupt;
use crate::job::PyJob;
use crate::kernels::{PyFunction, PyModule};
use crate::requests::PyRequests;
use crate::stream;
use crate::vram::PyVramFile;
use crate::{errors, exceptions};

/// How long the end of a `with` that was interrupted waits for the session's work.
const INTERRUPTED_EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// A device and its pool. See the stubs.
#[pyclass(frozen, weakref, name = "Runtime", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyRuntime {
    runtime: DetachedDrop<Runtime>,
}

fn select(py: Python<'_>, name: Option<&str>) -> PyResult<Option<Select>> {
    Ok(Some(match name {
        None => return Ok(None),
        Some("auto") => Select::Auto,
        Some("gpu") => Select::Hardware,
        Some("soft") => Select::Software,
        Some(other) => {
            return Err(exceptions::plain(
                py,
                "ConfigError",
                format!(
                    "select is {other:?}\ntry: \"auto\", \"gpu\", \"soft\", or None for what FERCUDA_DEVICE says"
                ),
            ));
        }
    }))
}

impl PyRuntime {
    /// The runtime, for work in another thread.
    pub(crate) fn shared(&self) -> Runtime {
        (*self.runtime).clone()
    }
}

/// (epoch, sessions ended, bytes returned, was reset, others)
type RebootRow = (u64, usize, u64, bool, Vec<(String, u64, u64)>);

#[pymethods]
impl PyRuntime {
    #[new]
    #[pyo3(signature = (device=0, select=None))]
    fn new(py: Python<'_>, device: u32, select: Option<&str>) -> PyResult<Self> {
        let select = self::select(py, select)?;
        let runtime = errors::run(py, || Runtime::open(RuntimeConfig { select, device }))?;
        Ok(Self {
            runtime: DetachedDrop::new(runtime),
        })
    }

    #[getter]
    fn device(&self) -> u32 {
        self.runtime.device().ordinal()
    }

    #[getter]
    fn device_name(&self, py: Python<'_>) -> PyResult<String> {
        errors::run(py, || Ok(self.runtime.device().name()?))
    }

    #[getter]
    fn is_software(&self) -> bool {
        self.runtime.device().cuda().is_software()
    }

    #[getter]
    fn is_governed(&self) -> bool {
        self.runtime.is_governed()
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.runtime.epoch()
    }

    fn memory(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let memory = errors::run(py, || self.runtime.memory())?;
        Ok((memory.free_bytes, memory.total_bytes))
    }

    fn parked_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(errors::run(py, || self.runtime.memory())?.parked_bytes)
    }

    fn holders(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64)>> {
        errors::run(py, || Ok(errors::held(&self.runtime.holders())))
    }

    fn sessions(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        errors::run(py, || Ok(self.runtime.sessions()))
    }

    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        errors::run(py, || Ok(self.runtime.trim()))
    }

    #[pyo3(signature = (*, reset_failed=false))]
    fn reboot(&self, py: Python<'_>, reset_failed: bool) -> PyResult<RebootRow> {
        let done = errors::run(py, || match reset_failed {
            false => self.runtime.reboot(),
            // SAFETY: the caller that passes `reset_failed` guarantees what the stubs require.
            true => unsafe { self.runtime.reset_with(dlpack::pause_returns) },
        })?;
        Ok((
            done.epoch,
            done.sessions,
            done.returned_bytes,
            done.was_reset,
            errors::held(&done.others),
        ))
    }

    fn serve_requests(&self, py: Python<'_>, consent: Py<PyAny>) -> PyResult<PyRequests> {
        let consent = SharedPyObject::new(consent);
        errors::run(py, || PyRequests::new(&self.runtime, consent))
    }

    fn __repr__(&self) -> String {
        format!("<Runtime of {}>", self.runtime.device())
    }
}

/// A session. See the stubs.
#[pyclass(
    frozen,
    weakref,
    subclass,
    name = "Session",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PySession {
    session: DetachedDrop<Session>,
}

fn regime(py: Python<'_>, name: &str) -> PyResult<Regime> {
    Ok(match name {
        "pool" => Regime::Pool,
        "driver" => Regime::Driver,
        "managed" => Regime::Managed,
        "pinned" => Regime::Pinned,
        "callbacks" => Regime::Callbacks,
        other => {
            return Err(exceptions::plain(
                py,
                "ConfigError",
                format!(
                    "there is no regime {other:?}\ntry: pool, driver, managed, pinned or callbacks"
                ),
            ));
        }
    })
}

/// Checks that an object can be a session's allocator.
fn lender(allocator: &Bound<'_, PyAny>) -> PyResult<Arc<PythonAllocator>> {
    for name in ["allocate", "free"] {
        let method = allocator.getattr_opt(name)?;
        if !method.is_some_and(|method| method.is_callable()) {
            let class = allocator.get_type();
            let what = format!(
                "{class} is not an allocator: it has no method {name:?}\n\
                 try: an object with allocate(bytes, stream) and free(address, bytes, stream)"
            );
            return Err(exceptions::plain(allocator.py(), "ConfigError", what));
        }
    }
    Ok(Arc::new(PythonAllocator::new(allocator.clone().unbind())))
}

/// Memory of another owner as a buffer of a session, which keeps `lender` alive until its end.
///
/// # Errors
/// Those of allocating, for no elements; an address that the driver does not know.
pub(crate) fn import(
    session: &Session,
    address: u64,
    layout: Layout,
    place: TensorDevice,
    lender: impl Send + Sync + 'static,
) -> fercuda_runtime::Result<PyBuffer> {
    if layout.is_empty() {
        drop(lender);
        return PyBuffer::new(session, session.alloc(layout, Regime::Pool)?, None);
    }
    stream::check_address(session.stream().context(), address)?;
    // SAFETY: the driver has memory there; the lender guarantees that it covers the layout and
    // stays valid until `lender` is dropped.
    let id = unsafe { session.import(DeviceAddr(address), layout, move || drop(lender)) }?;
    PyBuffer::new(session, id, Some(place))
}

impl PySession {
    pub(crate) fn of(session: Session) -> Self {
        Self {
            session: DetachedDrop::new(session),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Foreign memory as a buffer, which keeps `lender` alive until its end.
    fn lent(
        &self,
        py: Python<'_>,
        address: u64,
        layout: Layout,
        place: TensorDevice,
        lender: impl Send + Sync + 'static,
    ) -> PyResult<PyBuffer> {
        errors::run(py, || import(&self.session, address, layout, place, lender))
    }

    fn ordinal(&self) -> u32 {
        self.session.stream().context().device().ordinal()
    }
}

#[pymethods]
impl PySession {
    #[new]
    #[pyo3(signature = (runtime, name, limit_bytes=None, *, allocator=None))]
    fn new(
        py: Python<'_>,
        runtime: &PyRuntime,
        name: &str,
        limit_bytes: Option<&Bound<'_, PyAny>>,
        allocator: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let limit_bytes = extents::bytes_of("limit_bytes", limit_bytes)?;
        let config = SessionConfig { limit_bytes };
        let lender = allocator.map(|allocator| lender(&allocator)).transpose()?;
        let runtime = &runtime.runtime;
        let session = errors::run(py, || match lender {
            Some(lender) => runtime.session_with_allocator(name, config, lender),
            None => runtime.session(name, config),
        })?;
        Ok(Self {
            session: DetachedDrop::new(session),
        })
    }

    #[getter]
    fn name(&self) -> &str {
        self.session.name()
    }

    #[getter]
    fn device(&self) -> u32 {
        self.ordinal()
    }

    #[getter]
    fn is_software(&self) -> bool {
        self.session
            .stream()
            .context()
            .device()
            .cuda()
            .is_software()
    }

    #[getter]
    fn limit_bytes(&self) -> Option<u64> {
        self.session.limit_bytes()
    }

    #[getter]
    fn held_bytes(&self) -> u64 {
        self.session.held_bytes()
    }

    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.session.peak_bytes()
    }

    #[getter]
    fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        errors::run(py, || Ok(self.session.buffers().is_ok()))
    }

    #[getter]
    fn stream_handle(&self, py: Python<'_>) -> PyResult<usize> {
        alive::check_process(py)?;
        Ok(self.session.stream().raw().0.expose_provenance())
    }

    fn count_buffers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(errors::run(py, || self.session.buffers())?.len())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        interrupt::wait(py, &self.session, Session::close)
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        interrupt::wait(py, &self.session, Session::synchronize)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let was_interrupted = match error.get_item(0) {
            Ok(kind) if !kind.is_none() => kind
                .cast::<PyType>()?
                .is_subclass_of::<PyKeyboardInterrupt>()?,
            _ => false,
        };
        if !was_interrupted {
            return self.close(py);
        }
        // The interrupted work may never finish.
        let session = &self.session;
        if interrupt::wait_at_most(py, session, INTERRUPTED_EXIT_TIMEOUT, Session::close)? {
            return Ok(());
        }
        let what = format!(
            "session {:?} was interrupted, and its work has not finished: it ends in the background",
            session.name()
        );
        let what =
            CString::new(what).map_err(|_| exceptions::plain(py, "FercudaError", "a name"))?;
        let category = py.get_type::<PyRuntimeWarning>();
        if let Err(error) = PyErr::warn(py, &category, &what, 1) {
            // The interrupt is what the program sees, even if warnings are errors.
            error.write_unraisable(py, None);
        }
        Ok(())
    }

    #[pyo3(signature = (shape, dtype=None, *, regime="pool"))]
    fn alloc(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        regime: &str,
    ) -> PyResult<PyBuffer> {
        let shape = extents::shape_of(shape)?;
        let dtype = dtype.map_or(Ok(Dtype::F32), host::dtype_of)?;
        let regime = self::regime(py, regime)?;
        errors::run(py, || {
            let layout = Layout::contiguous(dtype, &shape)?;
            let id = self.session.alloc(layout, regime)?;
            PyBuffer::new(&self.session, id, None)
        })
    }

    // ---- kernels ------------------------------------------------------------

    fn load(&self, image: &Bound<'_, PyAny>) -> PyResult<PyModule> {
        let py = image.py();
        let made = if let Ok(text) = image.extract::<String>() {
            let made = errors::run(py, || self.session.load(&Image::ptx(&*text)))?;
            return Ok(PyModule::of_ptx(made, self.session.stream(), text));
        } else {
            let bytes: Vec<u8> = image.extract().map_err(|_| {
                exceptions::plain(
                    py,
                    "ModuleError",
                    "a module must be PTX as str, or a CUBIN or fat binary as bytes",
                )
            })?;
            errors::run(py, || {
                // SAFETY: the caller guarantees that bytes are machine code for this device, as the
                // stubs say.
                let image = unsafe { Image::binary(bytes) }.map_err(CudaError::from)?;
                self.session.load(&image)
            })?
        };
        Ok(PyModule::new(made, self.session.stream()))
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
        let call = function.call(&self.session, grid, block, arguments, shared_bytes)?;
        errors::run(grid.py(), || call.launch(&self.session))
    }

    #[pyo3(signature = (function, grid, block, arguments=None, *, shared_bytes=None))]
    fn launch_async(
        &self,
        function: &PyFunction,
        grid: &Bound<'_, PyAny>,
        block: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyAny>>,
        shared_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyJob> {
        let call = function.call(&self.session, grid, block, arguments, shared_bytes)?;
        errors::run(grid.py(), || Ok(PyJob::runs(call.submit(&self.session)?)))
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
        let expression = Expression::read(py, text, into, inputs)?;
        let session = &*self.session;
        expression.evaluate(py, session, |graph, inputs, outputs| {
            session.evaluate_into(graph, inputs, outputs)
        })
    }

    #[pyo3(signature = (*, budget_bytes=None, node_bytes=None))]
    fn graphs(
        &self,
        py: Python<'_>,
        budget_bytes: Option<&Bound<'_, PyAny>>,
        node_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyGraphs> {
        let default = GraphBudget::default();
        let budget_bytes = extents::bytes_of("budget_bytes", budget_bytes)?;
        let node_bytes = extents::bytes_of("node_bytes", node_bytes)?;
        let budget = GraphBudget {
            bytes: budget_bytes.unwrap_or(default.bytes),
            node_bytes: node_bytes.unwrap_or(default.node_bytes),
        };
        errors::run(py, || PyGraphs::new(&self.session, budget))
    }

    #[pyo3(signature = (*, pushes=8, **fields))]
    fn argument_block(
        &self,
        py: Python<'_>,
        pushes: usize,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyArgumentBlock> {
        PyArgumentBlock::new(py, &self.session, pushes, fields)
    }

    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    #[pyo3(signature = (
        buffers, *, capacity=64, priorities=2, blocks=1, threads=128, idle_ns=100, steps=1 << 20, watchdog_s=2.0
    ))]
    fn dispatcher(
        &self,
        py: Python<'_>,
        buffers: Vec<Bound<'_, PyBuffer>>,
        capacity: u32,
        priorities: u32,
        blocks: u32,
        threads: u32,
        idle_ns: u32,
        steps: u32,
        watchdog_s: f64,
    ) -> PyResult<PyDispatcher> {
        let options = DispatcherOptions {
            capacity,
            priorities,
            blocks,
            threads,
            idle_ns,
            steps,
            watchdog_s,
        };
        PyDispatcher::new(py, &self.session, &buffers, &options)
    }

    // ---- interoperability ---------------------------------------------------

    fn follow_stream(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        errors::run(py, || stream::lead(&self.session, stream))
    }

    fn lead_stream(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        errors::run(py, || stream::follow(&self.session, stream))
    }

    #[pyo3(name = "from_dlpack", signature = (tensor, *, copy=None))]
    fn borrow_tensor(&self, tensor: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<PyBuffer> {
        let py = tensor.py();
        alive::check_process(py)?;
        let borrowed = dlpack::borrow(tensor, stream::number(&self.session))?;
        if borrowed.place.is_of_device() && borrowed.device != self.ordinal() {
            return Err(errors::layout(
                py,
                format!(
                    "the tensor is on device {}, but session {:?} is on device {}\ntry: a copy there, or a session on its device",
                    borrowed.device,
                    self.session.name(),
                    self.ordinal()
                ),
            ));
        }
        if borrowed.place == TensorDevice::Cpu {
            if copy == Some(false) {
                return Err(errors::layout(
                    py,
                    "the device cannot use host memory without a copy\ntry: copy=None",
                ));
            }
            return self.uploaded(py, borrowed);
        }
        if borrowed.is_read_only && copy != Some(true) {
            return Err(errors::layout(
                py,
                "the tensor is read-only, but a buffer is writable\ntry: copy=True",
            ));
        }
        let (address, layout, place) = (borrowed.address, borrowed.layout, borrowed.place);
        let buffer = self.lent(py, address, layout, place, borrowed)?;
        match copy {
            Some(true) => buffer.copied(py),
            _ => Ok(buffer),
        }
    }

    #[pyo3(name = "from_cuda_array_interface", signature = (array, *, copy=None))]
    fn borrow_array(&self, array: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<PyBuffer> {
        let py = array.py();
        let asked = array.getattr("__cuda_array_interface__");
        let asked = asked.map_err(|_| {
            let class = array.get_type();
            errors::dtype(
                py,
                format!("{class} has no __cuda_array_interface__\ntry: from_dlpack, or upload() of its bytes"),
            )
        })?;
        let shown = ArrayInterface::read(asked.cast::<PyDict>()?)?;
        if shown.is_read_only && copy != Some(true) {
            return Err(errors::layout(
                py,
                "the array is read-only, but a buffer is writable\ntry: copy=True",
            ));
        }
        if let Some(stream) = shown.stream {
            self.follow_stream(py, stream)?;
        }
        let lender = SharedPyObject::new(array.clone().unbind());
        let buffer = self.lent(py, shown.address, shown.layout, TensorDevice::Cuda, lender)?;
        match copy {
            Some(true) => buffer.copied(py),
            _ => Ok(buffer),
        }
    }

    #[pyo3(signature = (address, shape, dtype, *, strides=None, deleter=None))]
    fn import_memory(
        &self,
        py: Python<'_>,
        address: u64,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        strides: Option<Vec<i64>>,
        deleter: Option<Py<PyAny>>,
    ) -> PyResult<PyBuffer> {
        let (shape, dtype) = (extents::shape_of(shape)?, host::dtype_of(dtype)?);
        let layout = match strides {
            None => Layout::contiguous(dtype, &shape),
            Some(strides) => Layout::strided(dtype, &shape, &strides),
        };
        // From here on the deleter is called, whatever happens.
        let lender = deleter.map(|it| DeleterOnDrop(Some(it)));
        let layout = layout.map_err(|error| errors::layout(py, error))?;
        self.lent(py, address, layout, TensorDevice::Cuda, lender)
    }

    #[pyo3(signature = (path, *, writable=false))]
    fn map_vram(&self, py: Python<'_>, path: PathBuf, writable: bool) -> PyResult<PyVramFile> {
        PyVramFile::open(py, &self.session, path, writable)
    }

    fn __repr__(&self) -> String {
        format!(
            "<Session {:?} on device {}, {} B held>",
            self.session.name(),
            self.ordinal(),
            self.session.held_bytes()
        )
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let session = &*self.session;
        let state = if self.is_open(py)? { "open" } else { "ended" };
        let limit = session.limit_bytes();
        Ok(HtmlTable::new("Session")
            .row("name", session.name())
            .row("device", self.ordinal())
            .row("state", state)
            .row("held", ByteCount(session.held_bytes()))
            .row("peak", ByteCount(session.peak_bytes()))
            .row(
                "limit",
                limit.map_or("none".to_owned(), |it| ByteCount(it).to_string()),
            )
            .finish())
    }
}

impl PySession {
    /// A copy of a host tensor.
    fn uploaded(&self, py: Python<'_>, borrowed: BorrowedTensor) -> PyResult<PyBuffer> {
        let layout = &borrowed.layout;
        // Device memory first: a tensor with strides of 0 may claim any size, which the session's
        // limit decides about.
        let (id, buffer) = errors::run(py, || {
            let layout = Layout::contiguous(layout.dtype(), layout.shape())?;
            let id = self.session.alloc(layout, Regime::Pool)?;
            Ok((id, PyBuffer::new(&self.session, id, None)?))
        })?;
        let bytes = borrowed.gather();
        let bytes = bytes.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        drop(borrowed);
        errors::run(py, || self.session.upload_bytes(id, &bytes))?;
        Ok(buffer)
    }
}

/// Calls a deleter when the memory is no longer used.
struct DeleterOnDrop(Option<Py<PyAny>>);

impl Drop for DeleterOnDrop {
    fn drop(&mut self) {
        let Some(deleter) = self.0.take() else { return };
        alive::with_python(move |py| {
            if let Err(error) = deleter.call0(py) {
                // There is no caller to raise in, as in a `__del__`.
                error.write_unraisable(py, Some(deleter.bind(py)));
            }
        });
    }
}

/// The contents of `__cuda_array_interface__`.
struct ArrayInterface {
    address: u64,
    layout: Layout,
    is_read_only: bool,
    stream: Option<u64>,
}

impl ArrayInterface {
    fn read(shown: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = shown.py();
        let get = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            Ok(shown.get_item(name)?.filter(|it| !it.is_none()))
        };
        let need = |name: &str| {
            get(name)?.ok_or_else(|| {
                errors::layout(py, format!("__cuda_array_interface__ has no {name:?}"))
            })
        };
        if get("mask")?.is_some() {
            return Err(errors::layout(
                py,
                "masked arrays are not supported\ntry: its data without the mask",
            ));
        }
        let typestr: String = need("typestr")?.extract()?;
        let dtype = read_typestr(&typestr).ok_or_else(|| {
            errors::dtype(
                py,
                format!(
                    "unsupported type {typestr:?}\ntry: a cast to a supported dtype, in little endian"
                ),
            )
        })?;
        let shape: Vec<u64> = need("shape")?.extract()?;
        let (address, is_read_only): (u64, bool) = need("data")?.extract()?;
        let size = dtype.bytes() as i64;
        let layout = match get("strides")? {
            None => Layout::contiguous(dtype, &shape),
            Some(strides) => {
                let strides: Vec<i64> = strides.extract()?;
                if strides.iter().any(|stride| stride % size != 0) {
                    return Err(errors::layout(
                        py,
                        format!(
                            "strides of {strides:?} bytes are not multiples of the {size} bytes of {dtype}"
                        ),
                    ));
                }
                let strides: Vec<i64> = strides.iter().map(|stride| stride / size).collect();
                Layout::strided(dtype, &shape, &strides)
            }
        };
        let stream = match get("stream")? {
            None => None,
            Some(stream) => {
                let stream: u64 = stream.extract()?;
                if stream == 0 {
                    return Err(exceptions::plain(
                        py,
                        "ConfigError",
                        "stream 0 is ambiguous\ntry: 1 for the legacy default stream, 2 for the per-thread default stream",
                    ));
                }
                Some(stream)
            }
        };
        Ok(Self {
            address,
            layout: layout.map_err(|error| errors::layout(py, error))?,
            is_read_only,
            stream,
        })
    }
}

fn read_typestr(typestr: &str) -> Option<Dtype> {
    let mut chars = typestr.chars();
    let (order, kind) = (chars.next()?, chars.next()?);
    let bytes: u64 = chars.as_str().parse().ok()?;
    if order == '>' && bytes > 1 {
        return None;
    }
    host::of_kind(kind, bytes)
}
