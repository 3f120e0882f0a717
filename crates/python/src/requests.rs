//! Reboot requests from other processes, and the program's consent.
//!
//! Invariant: a consent callback that raises, that can no longer be called because the
//! interpreter exits, or that returns anything but true, refuses. Elsewhere: permissions and
//! protocol (`fercuda_runtime`).

use std::sync::Mutex;

use fercuda_runtime::{Requests, Result, Runtime};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::alive::{self, DetachedDrop, SharedPyObject, lock};
use crate::errors;

/// While it is open, a runtime accepts requests. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "Requests",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyRequests {
    open: Mutex<Option<DetachedDrop<Requests>>>,
}

impl PyRequests {
    pub(crate) fn new(runtime: &Runtime, consent: SharedPyObject) -> Result<Self> {
        let requests = runtime.serve_requests(move || asked(&consent))?;
        Ok(Self {
            open: Mutex::new(Some(DetachedDrop::new(requests))),
        })
    }
}

fn asked(consent: &SharedPyObject) -> bool {
    let mut agrees = false;
    alive::with_python(|py| {
        let Some(consent) = consent.get() else { return };
        let said = consent.bind(py).call0();
        match said.and_then(|said| said.is_truthy()) {
            Ok(said) => agrees = said,
            // There is no caller to raise in, as in a `__del__`.
            Err(error) => error.write_unraisable(py, Some(consent.bind(py))),
        }
    });
    agrees
}

#[pymethods]
impl PyRequests {
    #[getter]
    fn is_open(&self) -> bool {
        lock(&self.open).is_some()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        errors::run(py, || {
            let open = lock(&self.open).take();
            drop(open);
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> &'static str {
        match self.is_open() {
            true => "<Requests open>",
            false => "<Requests closed>",
        }
    }
}
