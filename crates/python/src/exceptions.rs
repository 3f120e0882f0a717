//! Exceptions by the names of their classes in `fercuda_runtime.errors`, with their figures.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

/// Builder of an exception.
pub(crate) struct ExceptionBuilder<'py> {
    class: &'static str,
    message: String,
    figures: Vec<(&'static str, Bound<'py, PyAny>)>,
    py: Python<'py>,
}

impl<'py> ExceptionBuilder<'py> {
    pub(crate) fn new(py: Python<'py>, class: &'static str, message: impl ToString) -> Self {
        Self {
            class,
            message: message.to_string(),
            figures: Vec::new(),
            py,
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl IntoPyObjectExt<'py>) -> Self {
        if let Ok(value) = value.into_bound_py_any(self.py) {
            self.figures.push((name, value));
        }
        self
    }

    pub(crate) fn raise(self) -> PyErr {
        let made = || -> PyResult<Bound<'py, PyAny>> {
            let classes = self.py.import("fercuda_runtime.errors")?;
            let error = classes.getattr(self.class)?.call1((&*self.message,))?;
            for (name, value) in &self.figures {
                error.setattr(*name, value)?;
            }
            Ok(error)
        };
        made().map_or_else(|error| error, PyErr::from_value)
    }
}

/// An exception of a class that only has a message.
pub(crate) fn plain(py: Python<'_>, class: &'static str, message: impl ToString) -> PyErr {
    ExceptionBuilder::new(py, class, message).raise()
}

/// The exception of a call in the child of a fork of `process`.
pub(crate) fn forked(py: Python<'_>, process: u32) -> PyErr {
    let here = std::process::id();
    let message = format!(
        "process {here} was forked from {process}, which uses the device\n\
         try: multiprocessing's \"spawn\", or import fercuda_runtime only after the fork"
    );
    let made = ExceptionBuilder::new(py, "ForkedError", message);
    made.with("process", process).raise()
}
