//! Failures of ops, as exceptions; and work of ops without the GIL.

use fercuda_ops::{OpError, OpRow};
use pyo3::prelude::*;

use crate::{alive, errors};

/// Why an op was not run.
pub(crate) enum OpFailure {
    Op(OpError),
    Session(fercuda_runtime::Error),
}

impl From<OpError> for OpFailure {
    fn from(error: OpError) -> Self {
        Self::Op(error)
    }
}

impl From<fercuda_runtime::Error> for OpFailure {
    fn from(error: fercuda_runtime::Error) -> Self {
        Self::Session(error)
    }
}

impl OpFailure {
    /// The exception for an op's failure.
    pub(crate) fn raise(&self, py: Python<'_>, row: &OpRow) -> PyErr {
        match self {
            Self::Op(error) => errors::op(py, row.name, error),
            Self::Session(error) => errors::raise(py, error),
        }
    }
}

/// Runs work of an op without the GIL.
///
/// # Errors
/// `ForkedError`; the error of the work.
pub(crate) fn detached<R: Send>(
    py: Python<'_>,
    row: &OpRow,
    work: impl FnOnce() -> std::result::Result<R, OpFailure> + Send,
) -> PyResult<R> {
    alive::check_process(py)?;
    py.detach(work).map_err(|failure| failure.raise(py, row))
}
