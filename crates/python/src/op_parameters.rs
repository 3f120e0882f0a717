//! Parameters and operands of ops, as Python passes them; and what the registry says of an op.
//!
//! Invariant: a keyword is an operand or a parameter of the op, or it is refused by its name.
//! Elsewhere: kinds of parameters (`fercuda_ops`), memory of operands (`op_operands`).

use fercuda_ops::{OpDescriptor, OpFamily, OpParameterKind, OpParameterValue, OpRow, registry};
use fercuda_runtime::Layout;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyString, PyTuple};

use crate::{errors, exceptions, host};

/// The op of that name.
///
/// # Errors
/// `OpError`.
pub(crate) fn find(py: Python<'_>, name: &str) -> PyResult<&'static OpRow> {
    registry::find(name).map_err(|error| errors::op(py, name, &error))
}

/// What a call names: operands in the order of the op, and parameters.
pub(crate) struct OpArguments<'py> {
    pub(crate) operands: Vec<Bound<'py, PyAny>>,
    parameters: Vec<(&'static str, OpParameterValue)>,
}

impl<'py> OpArguments<'py> {
    /// # Errors
    /// `ArgumentsError` for a keyword that the op does not have, and for an operand that is given
    /// twice or left out before another one; `OpError` for a value of no kind that a parameter has;
    /// `DtypeError` for an unknown type.
    pub(crate) fn read(
        row: &'static OpRow,
        operands: &Bound<'py, PyTuple>,
        keywords: &Bound<'py, PyDict>,
    ) -> PyResult<Self> {
        let py = keywords.py();
        let refused = |what: String| Err(exceptions::plain(py, "ArgumentsError", what));
        let name = row.name;
        let mut given: Vec<Option<Bound<'py, PyAny>>> = operands.iter().map(Some).collect();
        let mut parameters = Vec::new();
        if !keywords.is_empty() {
            let known = row.named_parameters();
            for (keyword, value) in keywords.iter() {
                let keyword: String = keyword.extract()?;
                if let Some((parameter, kind)) = known.iter().find(|(it, _)| *it == keyword) {
                    // As for Python's own functions, None is the default.
                    if !value.is_none() {
                        parameters.push((*parameter, read(row, parameter, kind, &value)?));
                    }
                    continue;
                }
                let Some(at) = row.operands.iter().position(|it| *it == keyword) else {
                    let all = row.operands.iter().copied();
                    let all = all.chain(known.iter().map(|(it, _)| *it));
                    let all: Vec<&str> = all.chain(CALL_KEYWORDS).collect();
                    return refused(format!(
                        "{name} has no parameter {keyword:?}\ntry: one of {}",
                        all.join(", ")
                    ));
                };
                if given.get(at).is_some_and(Option::is_some) {
                    return refused(format!(
                        "operand {keyword} of {name} is given twice\ntry: {}",
                        row.signature()
                    ));
                }
                given.resize(given.len().max(at + 1), None);
                given[at] = Some(value);
            }
        }
        // An operand at the end may be None, as one that is left out.
        let is_absent = |it: &Option<Bound<'py, PyAny>>| it.as_ref().is_none_or(|it| it.is_none());
        while given.len() > row.operands.len() - row.optional && given.last().is_some_and(is_absent)
        {
            given.pop();
        }
        if let Some(at) = given.iter().position(is_absent) {
            return refused(format!(
                "operand {} of {name} is left out before others\ntry: {}",
                row.operand(at),
                row.signature()
            ));
        }
        Ok(Self {
            operands: given.into_iter().flatten().collect(),
            parameters,
        })
    }

    /// The op with these parameters, for operands of these layouts.
    ///
    /// # Errors
    /// `OpError`.
    pub(crate) fn describe(
        &self,
        row: &'static OpRow,
        operands: &[Layout],
        is_checked: bool,
    ) -> Result<OpDescriptor, fercuda_ops::OpError> {
        let mut op = OpDescriptor::new(row.name)?;
        for (name, value) in &self.parameters {
            op = op.named(name, value, operands)?;
        }
        if is_checked { op.checked() } else { Ok(op) }
    }
}

/// The keywords that every op has.
const CALL_KEYWORDS: [&str; 5] = ["out", "stream", "session", "sku", "check"];

/// The value of a parameter.
fn read(
    row: &OpRow,
    name: &str,
    kind: &OpParameterKind,
    value: &Bound<'_, PyAny>,
) -> PyResult<OpParameterValue> {
    if let OpParameterKind::Type { .. } = kind {
        let dtype = host::dtype_of(value)?;
        return Ok(OpParameterValue::Text(dtype.name().to_owned()));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(OpParameterValue::Text(value.extract()?));
    }
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(OpParameterValue::Bool(value.is_true()));
    }
    if let Ok(value) = value.extract::<i64>() {
        return Ok(OpParameterValue::Integer(value));
    }
    if let Ok(values) = value.extract::<Vec<i64>>() {
        return Ok(OpParameterValue::Integers(values));
    }
    // Not an int beyond 64 bits, which would be rounded.
    let is_number = value.is_instance_of::<PyFloat>()
        || (!value.hasattr("__index__")? && value.hasattr("__float__")?);
    if is_number && let Ok(value) = value.extract::<f64>() {
        return Ok(OpParameterValue::Number(value));
    }
    if let Ok(value) = value.extract::<bool>() {
        return Ok(OpParameterValue::Bool(value));
    }
    let what = format!("{}: {name} is {}\ntry: {kind}", row.name, value.repr()?);
    let made = exceptions::ExceptionBuilder::new(value.py(), "OpError", what);
    Err(made.with("op", row.name).raise())
}

/// The names of all ops, by families.
#[pyfunction]
pub(crate) fn op_names() -> Vec<&'static str> {
    registry::rows().map(|row| row.name).collect()
}

/// (name, kind, default, choices or None)
type ParameterRow = (&'static str, &'static str, Py<PyAny>, Vec<&'static str>);
/// (name, family, documentation, signature)
type OpTexts = (&'static str, &'static str, &'static str, String);
/// (names, number that may be left out, number at the end that may be repeated, types of each)
type OperandRow = (Vec<&'static str>, usize, usize, Vec<Vec<&'static str>>);

/// What the registry has of an op: texts, operands, names of the results, parameters.
#[pyfunction]
pub(crate) fn op_row(
    py: Python<'_>,
    name: &str,
) -> PyResult<(OpTexts, OperandRow, Vec<&'static str>, Vec<ParameterRow>)> {
    let row = find(py, name)?;
    let dtypes = |operand: &&'static str| {
        let types = row.types_of(operand);
        let all = fercuda_runtime::Dtype::ALL.into_iter();
        let all = all.filter(|dtype| types.has(*dtype));
        all.map(|dtype| dtype.name()).collect()
    };
    let mut parameters: Vec<ParameterRow> = Vec::new();
    for (name, kind) in row.named_parameters() {
        let none = || Ok::<_, PyErr>(py.None());
        let (kind, default, choices): (_, Py<PyAny>, Vec<&'static str>) = match kind {
            OpParameterKind::Number(it) => ("number", PyFloat::new(py, it).into(), Vec::new()),
            OpParameterKind::List(it) => ("integers", PyTuple::new(py, it)?.into(), Vec::new()),
            OpParameterKind::Choice(it) => {
                let first = it.first().copied().unwrap_or_default();
                ("choice", PyString::new(py, first).into(), it.to_vec())
            }
            OpParameterKind::Axis => ("axis", none()?, Vec::new()),
            OpParameterKind::Axes => ("axes", none()?, Vec::new()),
            OpParameterKind::Order => ("order", none()?, Vec::new()),
            OpParameterKind::Keep => ("bool", PyBool::new(py, false).to_owned().into(), Vec::new()),
            OpParameterKind::Type { is_required: true } => ("required dtype", none()?, Vec::new()),
            OpParameterKind::Type { .. } => ("dtype", none()?, Vec::new()),
            OpParameterKind::Shape => ("shape", none()?, Vec::new()),
        };
        parameters.push((name, kind, default, choices));
    }
    let family: OpFamily = row.family;
    Ok((
        (row.name, family.name(), row.doc, row.signature()),
        (
            row.operands.to_vec(),
            row.optional,
            row.repeated,
            row.operands.iter().map(dtypes).collect(),
        ),
        row.results.to_vec(),
        parameters,
    ))
}
