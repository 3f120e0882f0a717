//! Memory plans of arenas.

use fercuda_runtime::{IgnitionPlan, TensorSpec};
use pyo3::prelude::*;

use crate::errors;
use crate::extents;
use crate::host;

/// (name, dtype, shape, first step, end step)
type TensorRow<'py> = (String, String, Bound<'py, PyAny>, u32, u32);
/// (name, dtype, shape, first step, end step, offset in bytes)
type PlacedTensorRow = (String, String, Vec<u64>, u32, u32, u64);

/// Tensors with their offsets in one arena. See the stubs.
#[pyclass(frozen, name = "Plan", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyPlan {
    plan: IgnitionPlan,
}

#[pymethods]
impl PyPlan {
    #[new]
    fn new(py: Python<'_>, tensors: Vec<TensorRow<'_>>) -> PyResult<Self> {
        let spec = |(name, dtype, shape, from, until): TensorRow<'_>| -> PyResult<TensorSpec> {
            let dtype = host::dtype_of(dtype.into_pyobject(py)?.as_any())?;
            Ok(TensorSpec {
                name,
                dtype,
                shape: extents::shape_of(&shape)?,
                from,
                until,
            })
        };
        let tensors = tensors.into_iter().map(spec).collect::<PyResult<_>>()?;
        let plan = py.detach(|| IgnitionPlan::new(tensors));
        Ok(Self {
            plan: plan.map_err(|error| errors::plan(py, &error))?,
        })
    }

    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let plan = py.detach(|| IgnitionPlan::from_json(text));
        Ok(Self {
            plan: plan.map_err(|error| errors::plan(py, &error))?,
        })
    }

    fn to_json(&self) -> String {
        self.plan.to_json()
    }

    #[getter]
    fn arena_bytes(&self) -> u64 {
        self.plan.arena_bytes()
    }

    #[getter]
    fn tensors(&self) -> Vec<PlacedTensorRow> {
        let placed = |(tensor, begin): (&TensorSpec, u64)| {
            (
                tensor.name.clone(),
                tensor.dtype.name().to_owned(),
                tensor.shape.clone(),
                tensor.from,
                tensor.until,
                begin,
            )
        };
        self.plan.tensors().map(placed).collect()
    }
}
