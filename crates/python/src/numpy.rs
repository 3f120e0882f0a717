//! Tensors as NumPy arrays.

use std::sync::Mutex;

use fercuda_runtime::Dtype;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::alive::lock;
use crate::dlpack::{self, TensorDevice, TensorLoan};
use crate::errors;

/// Lender of a host copy, by DLPack: the array owns the copied bytes.
#[pyclass(frozen, name = "_HostCopy", module = "fercuda_runtime._fercuda")]
struct HostCopyLender {
    loan: Mutex<Option<TensorLoan>>,
}

#[pymethods]
impl HostCopyLender {
    fn __dlpack_device__(&self) -> (i32, i32) {
        (TensorDevice::Cpu.code(), 0)
    }

    #[pyo3(signature = (*, max_version=None, **_options))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        max_version: Option<(u32, u32)>,
        _options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let loan = lock(&self.loan).take();
        let loan = loan.ok_or_else(|| PyBufferError::new_err("a host copy is lent once"))?;
        let versioned = max_version.is_some_and(|(major, _)| major >= dlpack::VERSION.0);
        loan.capsule(py, versioned)
    }
}

/// A lender of memory that is wanted as an array.
pub(crate) struct ArraySource<'a, 'py> {
    /// Lends its memory by DLPack.
    pub(crate) lender: &'a Bound<'py, PyAny>,
    pub(crate) dtype: Dtype,
    /// Whether the host can read the memory in place.
    pub(crate) is_host_readable: bool,
}

impl<'py> ArraySource<'_, 'py> {
    /// An array, by NumPy's protocol: without `copy`, only memory that the host cannot read is
    /// copied. `host_copy` makes a copy in host memory.
    ///
    /// # Errors
    /// `ValueError` if a copy is needed and `copy` is `Some(false)`; `DtypeError` for a type that
    /// NumPy does not have; the error of `host_copy`.
    pub(crate) fn array(
        &self,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
        host_copy: impl FnOnce() -> PyResult<TensorLoan>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, own) = (self.lender.py(), self.dtype);
        if matches!(own, Dtype::Bf16 | Dtype::F8E4m3 | Dtype::F8E5m2) {
            return Err(errors::dtype(
                py,
                format!("NumPy has no type {own}\ntry: a view as u8 or u16, or a cast to f32"),
            ));
        }
        let numpy = py.import("numpy")?;
        let dtype = match dtype.filter(|dtype| !dtype.is_none()) {
            Some(dtype) => Some(numpy.call_method1("dtype", (dtype,))?),
            None => None,
        };
        let array = if self.is_host_readable && copy != Some(true) {
            numpy.call_method1("from_dlpack", (self.lender,))?
        } else if copy == Some(false) {
            return Err(PyValueError::new_err(
                "an array of memory that the host cannot read needs a copy, but copy=False\n\
                 try: copy=None, or a buffer in pinned or managed memory",
            ));
        } else {
            let lender = HostCopyLender {
                loan: Mutex::new(Some(host_copy()?)),
            };
            numpy.call_method1("from_dlpack", (lender,))?
        };
        match dtype {
            Some(dtype) if !array.getattr("dtype")?.eq(&dtype)? => {
                if copy == Some(false) {
                    return Err(PyValueError::new_err(format!(
                        "a cast from {own} to {dtype} needs a copy, but copy=False\n\
                         try: copy=None"
                    )));
                }
                array.call_method1("astype", (dtype,))
            }
            _ => Ok(array),
        }
    }
}
