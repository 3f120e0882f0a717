//! Kernels of Triton's, from its cache or from an object of its own.
//!
//! Invariant: what is launched fits the device, and has as many arguments as its
//! signature has parameters left, each of its size. Elsewhere: which file of a folder, and
//! what an object of Triton's has (`guest_hooks`, in Python).

use std::path::PathBuf;

use fercuda_cuda::{Error as CudaError, Image};
use fercuda_runtime::{Argument, TritonError, TritonKernel, TritonMetadata};
use pyo3::prelude::*;

use crate::alive::{self, Kept};
use crate::errors;
use crate::job::PyJob;
use crate::kernels::{self, Parameters};
use crate::session::PySession;

/// A kernel of Triton's. See the stubs.
#[pyclass(frozen, name = "TritonKernel", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyTritonKernel {
    kernel: Kept<TritonKernel>,
}

/// As `errors::run`, of work with Triton's kernels.
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
        // SAFETY: that the files are as Triton wrote them is who names them to say, as the
        // stubs do.
        let kernel = run(py, || unsafe {
            TritonKernel::open_in(session.session(), &path)
        })?;
        Ok(Self {
            kernel: Kept::new(kernel),
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
                errors::plain(py, "ModuleError", "code is PTX as str, or a CUBIN as bytes")
            })?,
        };
        let kernel = run(py, || {
            let metadata = TritonMetadata::parse(metadata)?;
            // SAFETY: as for `open`, of the code.
            let image = unsafe { Image::binary(code) }.map_err(CudaError::from)?;
            TritonKernel::load_in(session.session(), metadata, &image)
        })?;
        Ok(Self {
            kernel: Kept::new(kernel),
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
        // SAFETY: what a kernel touches is for who launches it to know, as the stubs say.
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
    ) -> PyResult<([u32; 3], Vec<Argument>)> {
        let parameters = Parameters {
            name: &self.kernel.metadata().name,
            sizes: self.kernel.argument_bytes(),
        };
        let arguments = parameters.read(grid.py(), session.session(), arguments)?;
        let grid = kernels::dim(grid)?;
        Ok(([grid.x, grid.y, grid.z], arguments))
    }
}
