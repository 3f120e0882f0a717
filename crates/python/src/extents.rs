//! Shapes and byte counts that callers pass.
//!
//! Invariant: a number that is out of range is a `ValueError` that names it, never an
//! `OverflowError`.

use fercuda_governor::parse_byte_count;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::{errors, exceptions};

/// An integer; `None` if it has more than 64 bits.
///
/// # Errors
/// `TypeError` for anything else.
fn integer(given: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    match given.extract::<i64>() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The lengths of a shape, which are at least `least`.
///
/// # Errors
/// `LayoutError` that names the axis and the value; `TypeError` for anything but integers.
fn lengths(given: &Bound<'_, PyAny>, least: i64) -> PyResult<Vec<i64>> {
    let py = given.py();
    let mut lengths = Vec::new();
    for (axis, length) in given.try_iter()?.enumerate() {
        let length = length?;
        match integer(&length)? {
            Some(number) if number >= least => lengths.push(number),
            _ if length.lt(0)? => {
                return Err(errors::layout(
                    py,
                    format!("axis {axis} of shape {given} has the length {length}\ntry: 0 or more"),
                ));
            }
            _ => {
                return Err(errors::layout(
                    py,
                    format!(
                        "axis {axis} of shape {given} has the length {length}\ntry: less than 2^63"
                    ),
                ));
            }
        }
    }
    Ok(lengths)
}

/// A shape.
///
/// # Errors
/// `LayoutError` that names the axis and the value; `TypeError` for anything but integers.
pub(crate) fn shape_of(given: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let lengths = lengths(given, 0)?;
    Ok(lengths.into_iter().map(i64::unsigned_abs).collect())
}

/// Arguments that are integers, or one sequence of integers; -1 is among the valid ones.
///
/// # Errors
/// As for [`shape_of`].
pub(crate) fn numbers(given: &Bound<'_, PyTuple>) -> PyResult<Vec<i64>> {
    if given.len() == 1 {
        let only = given.get_item(0)?;
        if only.try_iter().is_ok() {
            return lengths(&only, i64::MIN);
        }
    }
    lengths(given.as_any(), i64::MIN)
}

/// Number of bytes: an integer, or text in the forms of the command line, such as "1GiB".
///
/// # Errors
/// `ConfigError` that names the parameter and the value; `TypeError` for another type.
pub(crate) fn bytes_of(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(given) = given.filter(|given| !given.is_none()) else {
        return Ok(None);
    };
    let py = given.py();
    if let Ok(text) = given.cast::<PyString>() {
        let text = text.to_str()?;
        return parse_byte_count(text).map(Some).map_err(|error| {
            exceptions::plain(py, "ConfigError", format!("{name} is {text:?}: {error}"))
        });
    }
    match given.extract::<u64>() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => Err(exceptions::plain(
            py,
            "ConfigError",
            format!(
                "{name} is {given}\ntry: 0 or more bytes, less than 2^64, or text such as \"1GiB\""
            ),
        )),
        Err(error) => Err(error),
    }
}

/// Number of bytes below 4 GiB, as [`bytes_of`]; 0 if none is given.
///
/// # Errors
/// As for [`bytes_of`].
pub(crate) fn u32_bytes_of(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<u32> {
    let Some((given, bytes)) = given.zip(bytes_of(name, given)?) else {
        return Ok(0);
    };
    u32::try_from(bytes).map_err(|_| {
        exceptions::plain(
            given.py(),
            "ConfigError",
            format!("{name} is {given}\ntry: less than 4 GiB"),
        )
    })
}
