//! Expressions over a session's buffers, as text.
//!
//! Invariant: errors in the text or in its inputs are raised before memory is allocated for the
//! outputs. Elsewhere: the syntax (`fercuda_jit::text`), compiling and caching
//! (`fercuda_jit`).

use fercuda_runtime::jit::{ExprGraph, text};
use fercuda_runtime::{BufferId, Layout, Regime, Session};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::PyBuffer;
use crate::{errors, exceptions};

/// A parsed and validated expression with its input buffers.
pub(crate) struct Expression {
    pub(crate) graph: ExprGraph,
    pub(crate) inputs: Vec<BufferId>,
    /// Existing buffers for outputs.
    into: Vec<Option<Py<PyBuffer>>>,
}

impl Expression {
    /// # Errors
    /// `ExpressionError`; `ArgumentsError` for a value that is not a buffer.
    pub(crate) fn read(
        py: Python<'_>,
        text: &str,
        into: Option<&Bound<'_, PyAny>>,
        inputs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let refused = |error| errors::graph(py, &error);
        let mut graph = ExprGraph::new();
        let mut bound = Vec::new();
        for (name, buffer) in named("input", inputs)? {
            let buffer = buffer.get();
            graph.input(&name, *buffer.layout()).map_err(refused)?;
            bound.push(buffer.id());
        }
        let parsed = py.detach(|| text::parse(&mut graph, text));
        parsed.map_err(|error| errors::text(py, &error))?;
        let into = into.map(|into| py.get_type::<PyDict>().call1((into,)));
        let into = into.transpose()?;
        let into = into
            .as_ref()
            .map(|into| into.cast::<PyDict>())
            .transpose()?;
        let into = named("output", into)?;
        for (name, buffer) in &into {
            if !graph
                .lay_out(name, *buffer.get().layout())
                .map_err(refused)?
            {
                let outputs: Vec<&str> = graph.outputs().map(|(name, _)| name).collect();
                let there = outputs.join(" ");
                let what = format!("there is no output {name:?}\ntry: one of: {there}");
                return Err(errors::expression(py, what));
            }
        }
        let given = |name: &str| into.iter().find(|(other, _)| other == name);
        let into = graph.outputs().map(|(name, _)| given(name));
        let into = into
            .map(|it| it.map(|(_, buffer)| buffer.clone().unbind()))
            .collect();
        Ok(Self {
            graph,
            inputs: bound,
            into,
        })
    }

    /// Calls `work` with a buffer for each output, in order, new ones where none is given; returns
    /// all of them by name.
    pub(crate) fn evaluate<'py>(
        self,
        py: Python<'py>,
        session: &Session,
        work: impl FnOnce(&ExprGraph, &[BufferId], &[BufferId]) -> fercuda_runtime::Result<()> + Send,
    ) -> PyResult<Bound<'py, PyDict>> {
        let Self {
            graph,
            inputs,
            into,
        } = self;
        let there: Vec<Option<BufferId>> = into
            .iter()
            .map(|it| it.as_ref().map(|buffer| buffer.get().id()))
            .collect();
        let made = errors::run(py, || {
            for id in &inputs {
                // Before any memory is allocated.
                session.layout(*id)?;
            }
            let (mut made, mut outputs) = (Vec::new(), Vec::new());
            for ((_, layout), there) in graph.outputs().zip(there) {
                let new = match there {
                    Some(_) => None,
                    None => Some(made_for(session, *layout)?),
                };
                let id = there.or_else(|| new.as_ref().map(PyBuffer::id));
                outputs.extend(id);
                made.push(new);
            }
            work(&graph, &inputs, &outputs)?;
            Ok(made)
        })?;
        let all = PyDict::new(py);
        for (((name, _), made), there) in graph.outputs().zip(made).zip(into) {
            match (made, there) {
                (Some(made), _) => all.set_item(name, Bound::new(py, made)?)?,
                (None, there) => all.set_item(name, there)?,
            }
        }
        Ok(all)
    }
}

fn made_for(session: &Session, layout: Layout) -> fercuda_runtime::Result<PyBuffer> {
    PyBuffer::new(session, session.alloc(layout, Regime::Pool)?, None)
}

/// Buffers by name.
fn named<'py>(
    what: &str,
    given: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<(String, Bound<'py, PyBuffer>)>> {
    let Some(given) = given else {
        return Ok(Vec::new());
    };
    let mut all = Vec::with_capacity(given.len());
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        let buffer = value.cast_into::<PyBuffer>().map_err(|error| {
            let class = error.into_inner().get_type();
            let hint = "a Buffer; a number is written in the text";
            let message = format!("{what} {name:?} is {class}\ntry: {hint}");
            exceptions::plain(given.py(), "ArgumentsError", message)
        })?;
        all.push((name, buffer));
    }
    Ok(all)
}
