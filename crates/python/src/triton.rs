//! Triton kernels, loaded from Triton's cache or from a compiled kernel object.
//!
//! Invariant: a launch fits the device, and has one argument of the right size for each
//! remaining parameter of the signature. Elsewhere: finding a folder's file, and reading a
//! kernel object (`guest_hooks`, in Python).

use std::path::PathBuf;

use fercuda_cuda::{Error as CudaError, Image};
use fercuda_runtime::{LaunchArgument, TritonError, TritonKernel, TritonMetadata};
use pyo3::prelude::*;

use crate::alive::{self, DetachedDrop};
use crate::job::PyJob;
use crate::kernels::{self, KernelParameters};
use crate::session::PySession;
use crate::{errors, exceptions};

/// A Triton kernel. See the stubs.
#[pyclass(frozen, name = "TritonKernel", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyTritonKernel {
    kernel: DetachedDrop<TritonKernel>,
}

/// Like `errors::run`, for work with Triton kernels.
fn run<R: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<R, TritonError> + Send,
) -> PyResult<R> {
    alive::check_process(py)?;
    py.detach(work)
        .map_err(|error| errors::of_triton(py, &error))
}

#[pymethods]
impl PyTritonKernel {
    #[staticmethod]
    fn open(py: Python<'_>, session: &PySession, path: PathBuf) -> PyResult<Self> {
        // SAFETY: the caller guarantees that Triton wrote the files, and that they are
        // unmodified, as the stubs say.
        let kernel = run(py, || unsafe {
            TritonKernel::open_in(session.session(), &path)
        })?;
        Ok(Self {
            kernel: DetachedDrop::new(kernel),
        })
    }

    #[staticmethod]
    fn load(
        py: Python<'_>,
        session: &PySession,
        metadata: &str,
        code: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let code: Vec<u8> = match code.extract::<String>() {
            Ok(text) => text.into_bytes(),
            Err(_) => code.extract().map_err(|_| {
                exceptions::plain(
                    py,
                    "ModuleError",
                    "code must be PTX as str, or a CUBIN as bytes",
                )
            })?,
        };
        let kernel = run(py, || {
            let metadata = TritonMetadata::parse(metadata)?;
            // SAFETY: as for `open`, of the code.
            let image = unsafe { Image::binary(code) }.map_err(CudaError::from)?;
            TritonKernel::load_in(session.session(), metadata, &image)
        })?;
        Ok(Self {
            kernel: DetachedDrop::new(kernel),
        })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.kernel.metadata().name
    }

    #[getter]
    fn arch(&self) -> u32 {
        self.kernel.metadata().arch
    }

    #[getter]
    fn warps(&self) -> u32 {
        self.kernel.metadata().warps
    }

    #[getter]
    fn shared_bytes(&self) -> u32 {
        self.kernel.metadata().shared_bytes
    }

    #[getter]
    fn scratch_bytes(&self) -> u64 {
        self.kernel.metadata().scratch_bytes.unwrap_or(0)
    }

    #[getter]
    fn cluster(&self) -> (u32, u32, u32) {
        self.kernel.metadata().cluster.into()
    }

    #[getter]
    fn argument_bytes(&self) -> Option<Vec<usize>> {
        self.kernel.argument_bytes().map(<[usize]>::to_vec)
    }

    #[pyo3(signature = (session, grid, arguments=None))]
    fn launch(
        &self,
        session: &PySession,
        grid: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (blocks, arguments) = self.given(session, grid, arguments)?;
        // SAFETY: the caller vouches for the kernel's accesses, as the stubs say.
        let launch = || unsafe { self.kernel.launch_in(session.session(), blocks, &arguments) };
        run(grid.py(), launch)
    }

    #[pyo3(signature = (session, grid, arguments=None))]
    fn launch_async(
        &self,
        session: &PySession,
        grid: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyJob> {
        let (blocks, arguments) = self.given(session, grid, arguments)?;
        run(grid.py(), || {
            let session = session.session();
            // SAFETY: as for `launch`.
            let job = unsafe { self.kernel.launch_in_async(session, blocks, &arguments) }?;
            Ok(PyJob::runs(job))
        })
    }

    fn __repr__(&self) -> String {
        let metadata = self.kernel.metadata();
        format!("<TritonKernel {} for sm_{}>", metadata.name, metadata.arch)
    }
}

impl PyTritonKernel {
    fn given(
        &self,
        session: &PySession,
        grid: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<([u32; 3], Vec<LaunchArgument>)> {
        let parameters = KernelParameters {
            name: &self.kernel.metadata().name,
            sizes: self.kernel.argument_bytes(),
            declared: None,
        };
        let arguments = parameters.read(grid.py(), session.session(), arguments)?;
        let grid = kernels::dim(grid)?;
        Ok(([grid.x, grid.y, grid.z], arguments))
    }
}
