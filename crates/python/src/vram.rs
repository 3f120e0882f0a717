//! Files of a VRAM filesystem, mapped in place (`fercuda_vramfs::import`).
//!
//! Invariant: a file stays borrowed while any part of it is a buffer or a borrower's tensor, and
//! until all work on those is done; the last owner returns it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use fercuda_cuda::DeviceAddr;
use fercuda_runtime::{Dtype, Layout, Regime, Session};
use fercuda_vramfs::Error;
use fercuda_vramfs::import::Import;
use fercuda_vramfs::layout::DATA_BYTES;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::alive::{self, DetachedDrop, lock};
use crate::buffer::PyBuffer;
use crate::dlpack::TensorDevice;
use crate::{errors, exceptions};

/// A mapped file. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "VramFile",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyVramFile {
    session: DetachedDrop<Session>,
    path: PathBuf,
    size: u64,
    writes: bool,
    segments: Vec<(u64, u64, u64)>,
    chunks: Option<Vec<u64>>,
    stride_bytes: Option<u64>,
    /// `None` once it is closed.
    import: Mutex<Option<DetachedDrop<Arc<Import>>>>,
}

fn raise(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Cuda(error) => errors::of_cuda(py, error),
        error => exceptions::plain(py, "VramError", error),
    }
}

impl PyVramFile {
    pub(crate) fn open(
        py: Python<'_>,
        session: &Session,
        path: PathBuf,
        writes: bool,
    ) -> PyResult<Self> {
        alive::check_process(py)?;
        let context = session.stream().context().clone();
        let import = py.detach(|| Import::open(&path, &context, writes));
        let import = import.map_err(|error| raise(py, &error))?;
        Ok(Self {
            session: DetachedDrop::new(session.clone()),
            size: import.size(),
            writes,
            segments: import
                .segments()
                .iter()
                .map(|it| (it.offset, it.bytes, it.at))
                .collect(),
            chunks: import.chunks(),
            stride_bytes: import.stride_bytes(),
            path,
            import: Mutex::new(Some(DetachedDrop::new(Arc::new(import)))),
        })
    }

    fn import(&self, py: Python<'_>) -> PyResult<Arc<Import>> {
        let import = lock(&self.import);
        let open = import.as_ref().map(|it| Arc::clone(it));
        open.ok_or_else(|| {
            let message = format!(
                "{} was closed\ntry: map it again, or use it within its `with`",
                self.path.display()
            );
            exceptions::plain(py, "VramError", message)
        })
    }

    fn buffer_at(&self, py: Python<'_>, address: u64, layout: Layout) -> PyResult<PyBuffer> {
        let import = self.import(py)?;
        let session = &*self.session;
        errors::run(py, || {
            if layout.is_empty() {
                return PyBuffer::new(session, session.alloc(layout, Regime::Pool)?, None);
            }
            // SAFETY: the layout's bytes are the file's, which are mapped until the last of
            // `import` is dropped.
            let id = unsafe { session.import(DeviceAddr(address), layout, move || drop(import)) }?;
            PyBuffer::new(session, id, Some(TensorDevice::Cuda))
        })
    }
}

#[pymethods]
impl PyVramFile {
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    #[getter]
    fn is_writable(&self) -> bool {
        self.writes
    }

    #[getter]
    fn is_closed(&self) -> bool {
        lock(&self.import).is_none()
    }

    #[getter]
    fn segments(&self) -> Vec<(u64, u64, u64)> {
        self.segments.clone()
    }

    #[getter]
    fn chunks(&self) -> Option<Vec<u64>> {
        self.chunks.clone()
    }

    #[getter]
    fn stride_bytes(&self) -> Option<u64> {
        self.stride_bytes
    }

    #[pyo3(signature = (offset=0, nbytes=None))]
    fn buffer(&self, py: Python<'_>, offset: u64, nbytes: Option<u64>) -> PyResult<PyBuffer> {
        let nbytes = nbytes.unwrap_or_else(|| self.size.saturating_sub(offset));
        let layout = Layout::contiguous(Dtype::U8, &[nbytes]);
        let layout = layout.map_err(|error| errors::layout(py, error))?;
        if nbytes == 0 && offset <= self.size {
            return self.buffer_at(py, 0, layout);
        }
        let end = offset.checked_add(nbytes);
        let holds =
            |it: &&(u64, u64, u64)| it.0 <= offset && end.is_some_and(|end| end <= it.0 + it.1);
        let Some((first, _, at)) = self.segments.iter().find(holds) else {
            let message = format!(
                "{nbytes} bytes at offset {offset} of {} are not contiguous in device memory\n\
                 try: rows(), or a buffer for each of its segments",
                self.path.display()
            );
            return Err(errors::layout(py, message));
        };
        self.buffer_at(py, at + (offset - first), layout)
    }

    fn rows(&self, py: Python<'_>) -> PyResult<PyBuffer> {
        let chunk = DATA_BYTES as u64;
        let stride = self
            .stride_bytes
            .filter(|_| self.size.is_multiple_of(chunk));
        let Some(stride) = stride else {
            let message = format!(
                "{} is not an array of rows of {chunk} bytes: it has holes, is fragmented, or has no whole number of rows\n\
                 try: its segments, or a copy of the file that was written sequentially in one go",
                self.path.display()
            );
            return Err(errors::layout(py, message));
        };
        let (shape, strides) = ([self.size / chunk, chunk], [stride as i64, 1]);
        let layout = Layout::strided(Dtype::U8, &shape, &strides);
        let layout = layout.map_err(|error| errors::layout(py, error))?;
        let at = self.segments.first().map_or(0, |it| it.2);
        self.buffer_at(py, at, layout)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        alive::check_process(py)?;
        let Some(import) = lock(&self.import).take() else {
            return Ok(());
        };
        let import = import.into_inner();
        // A buffer that remains returns the file when it is dropped.
        let closed = py.detach(|| Arc::into_inner(import).map_or(Ok(()), Import::close));
        closed.map_err(|error| raise(py, &error))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!(
            "<VramFile {:?}, {} B in {} segments{}>",
            self.path,
            self.size,
            self.segments.len(),
            if self.is_closed() { ", closed" } else { "" }
        )
    }
}
