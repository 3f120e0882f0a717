//! Buffers: a session's handle with a memory layout.
//!
//! Invariants: each Python object has its own handle, which ends with it or before. Once its
//! address was handed out, the object keeps the memory until it is gone, even if the handle was
//! freed or the session closed.

use std::sync::Mutex;

use fercuda_cuda::DeviceBuffer;
use fercuda_runtime::{BufferId, Layout, LayoutError, Regime, Result, Session};
use pyo3::exceptions::{PyAttributeError, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyEllipsis, PySlice, PyTuple};

use crate::alive::{DetachedDrop, lock};
use crate::dlpack::{LentMemory, TensorDevice, TensorLoan};
use crate::extents;
use crate::host;
use crate::html::{ByteCount, HtmlTable};
use crate::interrupt;
use crate::job::PyJob;
use crate::numpy::ArraySource;
use crate::stream;
use crate::{errors, exceptions};

/// A handle that is freed on drop.
pub(crate) struct BufferHandle {
    pub(crate) session: Session,
    pub(crate) id: BufferId,
}

impl Drop for BufferHandle {
    fn drop(&mut self) {
        // It may be freed already, or the session has ended.
        drop(self.session.free(self.id));
    }
}

/// Elements on a device. See the stubs.
#[pyclass(frozen, weakref, name = "Buffer", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyBuffer {
    handle: DetachedDrop<BufferHandle>,
    layout: Layout,
    regime: Regime,
    place: TensorDevice,
    /// Keeps the memory once its address was handed out.
    exported: Mutex<Option<DetachedDrop<DeviceBuffer<u8>>>>,
}

impl PyBuffer {
    /// Takes ownership of a handle.
    pub(crate) fn new(
        session: &Session,
        id: BufferId,
        place: Option<TensorDevice>,
    ) -> Result<Self> {
        let handle = BufferHandle {
            session: session.clone(),
            id,
        };
        let (layout, regime) = (session.layout(id)?, session.regime(id)?);
        Ok(Self {
            handle: DetachedDrop::new(handle),
            layout,
            regime,
            place: place.unwrap_or(match regime {
                Regime::Pinned => TensorDevice::CudaHost,
                Regime::Managed => TensorDevice::CudaManaged,
                Regime::Pool | Regime::Driver | Regime::Foreign | Regime::Callbacks => {
                    TensorDevice::Cuda
                }
            }),
            exported: Mutex::new(None),
        })
    }

    pub(crate) fn session(&self) -> &Session {
        &self.handle.session
    }

    pub(crate) fn id(&self) -> BufferId {
        self.handle.id
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `this` as a NumPy array.
    fn array<'py>(
        &self,
        this: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let source = ArraySource {
            lender: this,
            dtype: self.layout.dtype(),
            is_host_readable: self.place.is_of_host(),
        };
        source.array(dtype, copy, || self.loan_of_host(this.py()))
    }

    fn viewed(
        &self,
        py: Python<'_>,
        view: impl FnOnce(&Layout) -> std::result::Result<(Layout, i64), LayoutError> + Send,
    ) -> PyResult<Self> {
        errors::run(py, || {
            let id = self.session().view(self.id(), |layout| Ok(view(layout)?))?;
            Self::new(self.session(), id, Some(self.place))
        })
    }

    fn device(&self) -> u32 {
        self.session().stream().context().device().ordinal()
    }

    /// Its address; its memory is kept from now on.
    fn export(&self, py: Python<'_>) -> PyResult<u64> {
        errors::run(py, || {
            let exported = self.session().export(self.id())?;
            let memory = self.session().memory(self.id())?;
            let before = lock(&self.exported).replace(DetachedDrop::new(memory));
            drop(before);
            Ok(exported.address.0)
        })
    }

    fn loan(&self, py: Python<'_>, place: TensorDevice, is_copy: bool) -> PyResult<TensorLoan> {
        errors::run(py, || {
            let address = self.session().export(self.id())?.address.0;
            Ok(TensorLoan {
                memory: LentMemory::Device(self.session().memory(self.id())?),
                address: if self.layout.is_empty() { 0 } else { address },
                layout: self.layout,
                place,
                device: if place.is_of_device() {
                    self.device()
                } else {
                    0
                },
                is_copy,
            })
        })
    }

    fn downloaded(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let id = self.id();
        interrupt::wait(py, self.session(), move |session| {
            session.download_bytes(id)
        })
    }

    /// Its elements, copied to host memory.
    fn loan_of_host(&self, py: Python<'_>) -> PyResult<TensorLoan> {
        let bytes = self.downloaded(py)?;
        errors::run(py, || {
            Ok(TensorLoan {
                address: bytes.as_ptr().expose_provenance() as u64,
                memory: LentMemory::Host { _bytes: bytes },
                layout: Layout::contiguous(self.layout.dtype(), self.layout.shape())?,
                place: TensorDevice::Cpu,
                device: 0,
                is_copy: true,
            })
        })
    }

    /// A contiguous copy in the same kind of memory.
    pub(crate) fn copied(&self, py: Python<'_>) -> PyResult<Self> {
        errors::run(py, || {
            let layout = Layout::contiguous(self.layout.dtype(), self.layout.shape())?;
            let regime = match self.regime {
                Regime::Foreign => Regime::Pool,
                regime => regime,
            };
            let session = self.session();
            let copy = Self::new(session, session.alloc(layout, regime)?, None)?;
            session.copy(copy.id(), session, self.id())?;
            Ok(copy)
        })
    }
}

/// Resolves a Python index along a dimension of `len`.
fn place_of(index: isize, dimension: usize, len: u64) -> PyResult<i64> {
    let from = if index < 0 { len as i64 } else { 0 };
    let at = from + index as i64;
    if at < 0 || at as u64 >= len {
        return Err(PyIndexError::new_err(format!(
            "index {index} is out of range for dimension {dimension} of length {len}\ntry: {} to {}",
            -(len as i64),
            len as i64 - 1
        )));
    }
    Ok(at)
}

/// Applies an index of integers, slices and an ellipsis to a layout; returns the new layout and
/// its offset in bytes.
fn indexed(layout: &Layout, key: &Bound<'_, PyAny>) -> PyResult<(Layout, i64)> {
    let py = key.py();
    let keys: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(keys) => keys.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let rank = layout.shape().len();
    let dots = |key: &Bound<'_, PyAny>| key.is_instance_of::<PyEllipsis>();
    let given = keys.iter().filter(|key| !dots(key)).count();
    if given > rank || keys.len() > given + 1 {
        return Err(PyIndexError::new_err(format!(
            "{given} indices and {} ellipses for {rank} dimensions\ntry: at most one index per dimension, and one ellipsis",
            keys.len() - given
        )));
    }
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    let mut first: i64 = 0;
    let mut dimension = 0;
    let rest =
        |dimension: &mut usize, count: usize, shape: &mut Vec<u64>, strides: &mut Vec<i64>| {
            for _ in 0..count {
                shape.push(layout.shape()[*dimension]);
                strides.push(layout.strides()[*dimension]);
                *dimension += 1;
            }
        };
    for key in &keys {
        if dots(key) {
            rest(&mut dimension, rank - given, &mut shape, &mut strides);
            continue;
        }
        let (len, stride) = (layout.shape()[dimension], layout.strides()[dimension]);
        if let Ok(slice) = key.cast::<PySlice>() {
            let part = slice.indices(len as isize)?;
            shape.push(part.slicelength as u64);
            if part.slicelength > 0 {
                first += part.start as i64 * stride;
            }
            let step = if part.slicelength > 1 {
                part.step as i64
            } else {
                1
            };
            strides.push(stride * step);
        } else {
            first += place_of(key.extract()?, dimension, len)? * stride;
        }
        dimension += 1;
    }
    let left = rank - dimension;
    rest(&mut dimension, left, &mut shape, &mut strides);
    let cut = Layout::strided(layout.dtype(), &shape, &strides);
    let cut = cut.map_err(|error| errors::layout(py, error))?;
    Ok((cut, first * layout.dtype().bytes() as i64))
}

/// Resolves a shape in which one length may be -1, from the number of elements.
fn resolved(py: Python<'_>, shape: &[i64], elements: u64) -> PyResult<Vec<u64>> {
    let open = shape.iter().filter(|len| **len == -1).count();
    // Too large a product is no divisor of the number of elements either.
    let known = shape.iter().filter(|len| **len > 0);
    let known = known.fold(1_u64, |known, len| known.saturating_mul(*len as u64));
    let has_none = shape.contains(&0);
    if open > 1
        || shape.iter().any(|len| *len < -1)
        || (open == 1 && (has_none || !elements.is_multiple_of(known)))
    {
        return Err(errors::layout(
            py,
            format!(
                "{shape:?} is not a shape of {elements} elements\ntry: lengths, one of which may be -1"
            ),
        ));
    }
    Ok(shape
        .iter()
        .map(|len| {
            if *len == -1 {
                elements / known
            } else {
                *len as u64
            }
        })
        .collect())
}

#[pymethods]
impl PyBuffer {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.shape())
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.strides())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.layout.dtype().name()
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape().len()
    }

    #[getter]
    fn size(&self) -> u64 {
        self.layout.len()
    }

    #[getter]
    fn itemsize(&self) -> u64 {
        self.layout.dtype().bytes()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.layout.bytes()
    }

    #[getter]
    fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    #[getter]
    fn regime(&self) -> String {
        self.regime.to_string()
    }

    #[getter(device)]
    fn ordinal(&self) -> u32 {
        self.device()
    }

    #[getter]
    fn handle(&self) -> u64 {
        self.id().to_bits()
    }

    #[getter]
    fn session_name(&self) -> &str {
        self.session().name()
    }

    #[getter]
    fn is_exported(&self, py: Python<'_>) -> PyResult<bool> {
        errors::run(py, || self.session().is_exported(self.id()))
    }

    #[getter]
    fn is_freed(&self, py: Python<'_>) -> PyResult<bool> {
        errors::run(py, || Ok(self.session().layout(self.id()).is_err()))
    }

    fn free(&self, py: Python<'_>) -> PyResult<()> {
        errors::run(py, || self.session().free(self.id()))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        errors::run(py, || match self.session().layout(self.id()) {
            Ok(_) => self.session().free(self.id()),
            // Already freed, or its session has ended: nothing is left to do.
            Err(_) => Ok(()),
        })
    }

    // ---- views --------------------------------------------------------------

    fn __len__(&self) -> PyResult<usize> {
        match self.layout.shape().first() {
            Some(len) => Ok(*len as usize),
            None => Err(pyo3::exceptions::PyTypeError::new_err(
                "a buffer without dimensions has no len()",
            )),
        }
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        let cut = indexed(&self.layout, key)?;
        self.viewed(key.py(), move |_| Ok(cut))
    }

    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let py = shape.py();
        let shape = resolved(py, &extents::numbers(shape)?, self.layout.len())?;
        self.viewed(py, move |layout| Ok((layout.reshape(&shape)?, 0)))
    }

    #[pyo3(signature = (*order))]
    fn transpose(&self, order: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let py = order.py();
        let rank = self.layout.shape().len();
        let given = extents::numbers(order)?;
        let order: Vec<usize> = match given.is_empty() {
            true => (0..rank).rev().collect(),
            false => {
                let from_end = |at: &i64| if *at < 0 { at + rank as i64 } else { *at };
                let order = given.iter().map(from_end);
                order
                    .map(|at| usize::try_from(at).unwrap_or(usize::MAX))
                    .collect()
            }
        };
        self.viewed(py, move |layout| Ok((layout.permute(&order)?, 0)))
    }

    #[getter(T)]
    fn transposed(&self, py: Python<'_>) -> PyResult<Self> {
        let order: Vec<usize> = (0..self.layout.shape().len()).rev().collect();
        self.viewed(py, move |layout| Ok((layout.permute(&order)?, 0)))
    }

    #[pyo3(signature = (*shape))]
    fn broadcast_to(&self, shape: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let py = shape.py();
        let shape = resolved(py, &extents::numbers(shape)?, self.layout.len())?;
        self.viewed(py, move |layout| Ok((layout.broadcast(&shape)?, 0)))
    }

    #[pyo3(signature = (dtype, shape, offset_bytes=0))]
    fn view(
        &self,
        py: Python<'_>,
        dtype: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
        offset_bytes: i64,
    ) -> PyResult<Self> {
        let (dtype, shape) = (host::dtype_of(dtype)?, extents::shape_of(shape)?);
        self.viewed(py, move |_| {
            Ok((Layout::contiguous(dtype, &shape)?, offset_bytes))
        })
    }

    // ---- values -------------------------------------------------------------

    fn upload(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = host::bytes_for(data, &self.layout)?;
        let id = self.id();
        interrupt::wait(data.py(), self.session(), move |session| {
            session.upload_bytes(id, &bytes)
        })
    }

    fn upload_async(&self, data: &Bound<'_, PyAny>) -> PyResult<PyJob> {
        let bytes = host::bytes_for(data, &self.layout)?;
        errors::run(data.py(), || {
            let job = self.session().upload_async(self.id(), bytes)?;
            Ok(PyJob::sends(job))
        })
    }

    fn download<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.downloaded(py)?))
    }

    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().array(slf.as_any(), None, Some(true))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().array(slf.as_any(), dtype, copy)
    }

    fn download_async(&self, py: Python<'_>) -> PyResult<PyJob> {
        errors::run(py, || {
            let job = self.session().download_async(self.id())?;
            Ok(PyJob::fetches(job))
        })
    }

    fn copy_from(&self, py: Python<'_>, source: &Self) -> PyResult<()> {
        errors::run(py, || {
            self.session()
                .copy(self.id(), source.session(), source.id())
        })
    }

    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        self.copied(py)
    }

    fn fill_bytes(&self, py: Python<'_>, byte: u8) -> PyResult<()> {
        errors::run(py, || self.session().fill_bytes(self.id(), byte))
    }

    // ---- interoperability ---------------------------------------------------

    fn export_device_ptr(&self, py: Python<'_>) -> PyResult<u64> {
        self.export(py)
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, u32)> {
        crate::alive::check_process(py)?;
        let device = if self.place.is_of_device() {
            self.device()
        } else {
            0
        };
        Ok((self.place.code(), device))
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i64)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let versioned = max_version.is_some_and(|(major, _)| major >= crate::dlpack::VERSION.0);
        let own = self.place;
        let wanted = match dl_device {
            None => own,
            Some((code, number)) => {
                let place = TensorDevice::of_code(code).filter(|place| {
                    *place == own && (!place.is_of_device() || number == i64::from(self.device()))
                        || *place == TensorDevice::Cpu
                });
                place.ok_or_else(|| {
                    pyo3::exceptions::PyBufferError::new_err(format!(
                        "a buffer in {} memory on device {} cannot be lent to DLPack device ({code}, {number})\n\
                         try: its own device, {:?}, or the host, (1, 0)",
                        self.regime,
                        self.device(),
                        (own.code(), self.device())
                    ))
                })?
            }
        };
        if wanted == TensorDevice::Cpu && (!own.is_of_host() || copy == Some(true)) {
            if copy == Some(false) {
                return Err(pyo3::exceptions::PyBufferError::new_err(format!(
                    "the host cannot read {} memory without a copy\ntry: copy=None, or a buffer in pinned or managed memory",
                    self.regime
                )));
            }
            return self.loan_of_host(py)?.capsule(py, versioned);
        }
        let copied = match copy {
            Some(true) => Some(self.copied(py)?),
            _ => None,
        };
        let lender = copied.as_ref().unwrap_or(self);
        match stream {
            Some(-1) => {}
            Some(0) => {
                return Err(exceptions::plain(
                    py,
                    "ConfigError",
                    "stream 0 is ambiguous\ntry: 1 for the legacy default stream, 2 for the per-thread default stream",
                ));
            }
            Some(number) if number < 0 => {
                return Err(exceptions::plain(
                    py,
                    "ConfigError",
                    format!(
                        "{number} is not a stream\ntry: -1 for no ordering, 1, 2, or a stream's handle"
                    ),
                ));
            }
            // The host reads the memory, so no stream is involved.
            None if wanted.is_of_host() => {
                interrupt::wait(py, self.session(), Session::synchronize)?
            }
            number => {
                let number = number.map_or(stream::LEGACY, i64::unsigned_abs);
                errors::run(py, || stream::follow(self.session(), number))?;
            }
        }
        lender
            .loan(py, wanted, copied.is_some())?
            .capsule(py, versioned)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some(typestr) = host::typestr(self.layout.dtype()) else {
            // AttributeError means that there is no such interface.
            return Err(PyAttributeError::new_err(format!(
                "{} has no type code in __cuda_array_interface__\ntry: DLPack, or a view as u8 or u16",
                self.layout.dtype()
            )));
        };
        let address = self.export(py)?;
        let size = self.layout.dtype().bytes() as i64;
        let interface = PyDict::new(py);
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", typestr)?;
        let address = if self.layout.is_empty() { 0 } else { address };
        interface.set_item("data", (address, false))?;
        if self.layout.is_contiguous() {
            interface.set_item("strides", py.None())?;
        } else {
            let strides = self.layout.strides().iter().map(|stride| stride * size);
            interface.set_item("strides", PyTuple::new(py, strides.collect::<Vec<i64>>())?)?;
        }
        // Jobs that wait on the host are queued on the stream after this.
        errors::run(py, || self.session().record())?;
        let stream = self.session().stream().raw();
        interface.set_item("stream", stream.0.expose_provenance())?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let layout = &self.layout;
        let state = if self.is_freed(py)? { "freed" } else { "live" };
        Ok(HtmlTable::new("Buffer")
            .row("shape", format!("{:?}", layout.shape()))
            .row("dtype", layout.dtype())
            .row("size", ByteCount(layout.bytes()))
            .row("memory", self.regime)
            .row("device", self.device())
            .row("session", self.session().name())
            .row("state", state)
            .finish())
    }

    fn __repr__(&self) -> String {
        format!(
            "<Buffer {} {} of {} memory in session {:?}>",
            self.id(),
            self.layout,
            self.regime,
            self.session().name()
        )
    }
}
