//! Descriptor of an op: its row and the values of its parameters.
//!
//! Invariant: a descriptor names an op of the registry and has only parameters that the op has.
//! Elsewhere: whether operands fit it (`OpDescriptor::graph`, called by `plan`).

use std::fmt::Write;

use fercuda_jit::{ExprGraph, text};
use fercuda_tensor::{Dtype, Layout};

use crate::error::OpError;
use crate::parameters::{DefaultAxes, Misfit, OpParameters, joined};
use crate::registry;
use crate::row::OpRow;

/// Largest number of operands.
const MAX_OPERANDS: usize = 128;

type Result<T> = std::result::Result<T, OpError>;

/// An op with its parameters. Equal descriptors compute the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpDescriptor {
    parameters: OpParameters,
    is_checked: bool,
}

impl std::ops::Deref for OpDescriptor {
    type Target = OpParameters;

    fn deref(&self) -> &OpParameters {
        &self.parameters
    }
}

impl OpDescriptor {
    /// The op of that name, with its numbers' defaults.
    ///
    /// # Errors
    /// [`OpError::Unknown`].
    pub fn new(name: &str) -> Result<Self> {
        let row = registry::find(name)?;
        let default_axes = match row {
            row if row.has("axis") => DefaultAxes::Last,
            row if row.has("order") => DefaultAxes::Reversed,
            _ => DefaultAxes::All,
        };
        let numbers = row.numbers.iter();
        let lists = row.lists.iter();
        let choices = row.choices.iter();
        Ok(Self {
            parameters: OpParameters {
                name: row.name,
                numbers: numbers.map(|(name, n)| (*name, n.to_bits())).collect(),
                lists: lists.map(|(name, list)| (*name, list.to_vec())).collect(),
                choices: choices
                    .map(|(name, values)| (*name, values.first().copied().unwrap_or_default()))
                    .collect(),
                axes: None,
                default_axes,
                keep: false,
                to: None,
                shape: None,
            },
            is_checked: false,
        })
    }

    /// Sets one of its numbers.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op has no such number.
    pub fn number(mut self, name: &str, value: f64) -> Result<Self> {
        let row = self.row();
        let found = row.numbers.iter().position(|(known, _)| *known == name);
        let Some(at) = found else {
            let known: Vec<&str> = row.numbers.iter().map(|(known, _)| *known).collect();
            let hint = match known.is_empty() {
                true => "it has no numbers".to_owned(),
                false => known.join(", "),
            };
            return Err(self.parameter(format!("it has no number {name:?}"), hint));
        };
        self.parameters.numbers[at].1 = value.to_bits();
        Ok(self)
    }

    /// Sets one of its lists of whole numbers.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op has no such list.
    pub fn list(mut self, name: &str, values: &[i64]) -> Result<Self> {
        let row = self.row();
        let Some(at) = row.lists.iter().position(|(known, _)| *known == name) else {
            let known: Vec<&str> = row.lists.iter().map(|(known, _)| *known).collect();
            let hint = match known.is_empty() {
                true => "it has no lists".to_owned(),
                false => known.join(", "),
            };
            return Err(self.parameter(format!("it has no list {name:?}"), hint));
        };
        self.parameters.lists[at].1 = values.to_vec();
        Ok(self)
    }

    /// Sets one of its choices.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op has no such choice, or the choice no such value.
    pub fn choice(mut self, name: &str, value: &str) -> Result<Self> {
        let row = self.row();
        let Some(at) = row.choices.iter().position(|(known, _)| *known == name) else {
            let known: Vec<&str> = row.choices.iter().map(|(known, _)| *known).collect();
            let hint = match known.is_empty() {
                true => "it has no choices".to_owned(),
                false => known.join(", "),
            };
            return Err(self.parameter(format!("it has no choice {name:?}"), hint));
        };
        let values = row.choices[at].1;
        let Some(known) = values.iter().find(|known| **known == value) else {
            let what = format!("{name} is never {value:?}");
            return Err(self.parameter(what, values.join(", ")));
        };
        self.parameters.choices[at].1 = known;
        Ok(self)
    }

    /// Sets the axes that it reduces, the one axis that it goes along, or the order of dimensions
    /// of `permute`. Without this it reduces all axes, and goes along the last one.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op has no axes, or a wrong number of them.
    pub fn axes(mut self, axes: &[usize]) -> Result<Self> {
        let row = self.row();
        let has_one = row.has("axis");
        if !has_one && !row.has("axes") && !row.has("order") {
            return Err(self.parameter("it has no axes".to_owned(), "none".to_owned()));
        }
        if has_one && axes.len() != 1 {
            let what = format!("it goes along one axis, not {}", axes.len());
            return Err(self.parameter(what, "one axis".to_owned()));
        }
        self.parameters.axes = Some(axes.to_vec());
        Ok(self)
    }

    /// Keeps reduced axes, with extent 1.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op reduces none.
    pub fn keep(mut self, keep: bool) -> Result<Self> {
        if keep && !self.row().has("keep") {
            let hint = "the result as it is".to_owned();
            return Err(self.parameter("it keeps no axes".to_owned(), hint));
        }
        self.parameters.keep = keep;
        Ok(self)
    }

    /// Sets the type that `cast` converts to.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op converts nothing.
    pub fn to(mut self, dtype: Dtype) -> Result<Self> {
        if !self.row().has("to") {
            let what = "it converts to no other type".to_owned();
            return Err(self.parameter(what, "the op `cast`".to_owned()));
        }
        self.parameters.to = Some(dtype);
        Ok(self)
    }

    /// Sets the shape that `broadcast_to` gives.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op has no shape.
    pub fn shape(mut self, shape: &[u64]) -> Result<Self> {
        if !self.row().has("shape") {
            let what = "its shape follows from its operands".to_owned();
            return Err(self.parameter(what, "the op `broadcast_to`".to_owned()));
        }
        self.parameters.shape = Some(shape.to_vec());
        Ok(self)
    }

    /// Has plans record the first index outside of its axis, for
    /// [`OpPlan::check`](crate::OpPlan::check).
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op has no indices.
    pub fn checked(mut self) -> Result<Self> {
        if !self.row().has_indices() {
            let what = "it has no indices to check".to_owned();
            return Err(self.parameter(what, "the op as it is".to_owned()));
        }
        self.is_checked = true;
        Ok(self)
    }

    /// Whether its plans record the first index outside of its axis.
    pub fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Its row of the registry.
    pub fn row(&self) -> &'static OpRow {
        registry::row(self.name())
    }

    fn parameter(&self, what: String, hint: String) -> OpError {
        let op = self.name();
        OpError::Parameter { op, what, hint }
    }

    /// Its expression over operands of these layouts, with one output, laid out contiguously.
    ///
    /// # Errors
    /// [`OpError::Operands`], [`OpError::Dtype`], [`OpError::Mixed`], [`OpError::Parameter`],
    /// [`OpError::Shape`].
    pub fn graph(&self, operands: &[Layout]) -> Result<ExprGraph> {
        if !self.row().is_expression() {
            let what = "it is no expression".to_owned();
            return Err(self.misfit(operands, what, "a plan of it".to_owned()));
        }
        self.check_operands(operands)?;
        let shape = self.common_shape(operands)?;
        let text = self.text(operands.len(), &shape)?;
        let mut graph = ExprGraph::new();
        for (name, layout) in self.row().operands.iter().zip(operands) {
            let added = graph.input(name, *layout);
            added.map_err(|error| self.misfit(operands, error.to_string(), String::new()))?;
        }
        let parsed = text::parse(&mut graph, &text);
        parsed.map_err(|error| self.misfit(operands, error.what, error.hint))?;
        Ok(graph)
    }

    /// Layouts of its results for operands of these layouts, contiguous; nothing is compiled.
    ///
    /// # Errors
    /// As for [`OpDescriptor::graph`].
    pub fn result_layouts(&self, operands: &[Layout]) -> Result<Vec<Layout>> {
        let graph = self.row().is_expression().then(|| self.graph(operands));
        self.results(operands, graph.transpose()?.as_ref())
    }

    /// As [`OpDescriptor::result_layouts`], of a graph of its own.
    pub(crate) fn results(
        &self,
        operands: &[Layout],
        graph: Option<&ExprGraph>,
    ) -> Result<Vec<Layout>> {
        let row = self.row();
        if let Some(graph) = graph {
            return Ok(vec![self.result(graph)?.1]);
        }
        self.check_operands(operands)?;
        let misfit = |problem: Misfit| self.misfit(operands, problem.what, problem.hint);
        let rule = row.native.as_ref().and_then(|rule| rule.results);
        let rule = rule.ok_or_else(|| misfit(Misfit::new("it has no rule of results", "")))?;
        let results = rule(self, operands).map_err(misfit)?;
        let layouts = results.iter().map(|(dtype, shape)| {
            let layout = Layout::contiguous(*dtype, shape);
            layout.map_err(|error| misfit(Misfit::new(error.to_string(), "a smaller result")))
        });
        layouts.collect()
    }

    /// Name and layout of the one output of its expression.
    pub(crate) fn result(&self, graph: &ExprGraph) -> Result<(String, Layout)> {
        let (name, layout) = graph.outputs().next().ok_or_else(|| {
            let what = "its expression has no result".to_owned();
            self.parameter(what, "another op".to_owned())
        })?;
        Ok((name.to_owned(), *layout))
    }

    pub(crate) fn misfit(&self, operands: &[Layout], what: String, hint: String) -> OpError {
        let mut all = String::new();
        for layout in operands {
            let comma = if all.is_empty() { "" } else { " and " };
            write!(all, "{comma}{layout}").unwrap_or_default();
        }
        if operands.is_empty() {
            all.push_str("no operands");
        }
        let hint = match hint.is_empty() {
            true => "other operands, see docs/ops.md".to_owned(),
            false => hint,
        };
        OpError::Shape {
            op: self.name(),
            operands: all,
            what,
            hint,
        }
    }

    pub(crate) fn check_operands(&self, operands: &[Layout]) -> Result<()> {
        let (row, op) = (self.row(), self.name());
        let least = row.operands.len() - row.optional;
        let most = match row.repeated {
            0 => row.operands.len(),
            _ => MAX_OPERANDS,
        };
        let beyond = operands.len().saturating_sub(row.singles());
        let are_whole = row.repeated == 0 || beyond.is_multiple_of(row.repeated);
        if !(least..=most).contains(&operands.len()) || !are_whole {
            let mut wanted = row.operands.join(", ");
            if let Some(times) = (most - row.singles()).checked_div(row.repeated) {
                let last = match row.repeated {
                    1 => "one".to_owned(),
                    number => format!("{number} together"),
                };
                write!(wanted, "; the last {last} 1 to {times} times").unwrap_or_default();
            } else if row.optional > 0 {
                write!(wanted, "; the last {} may be left out", row.optional).unwrap_or_default();
            } else if row.operands.is_empty() {
                wanted.push_str("none");
            }
            let given = operands.len();
            return Err(OpError::Operands { op, given, wanted });
        }
        let mut first = None;
        for (at, layout) in operands.iter().enumerate() {
            let (operand, dtype) = (row.operand(at), layout.dtype());
            let wants = row.types_of(operand);
            if !wants.has(dtype) {
                return Err(OpError::Dtype {
                    op,
                    operand,
                    dtype,
                    wants,
                });
            }
            if row.has_own_type(operand) {
                continue;
            }
            let before = *first.get_or_insert(dtype);
            if before != dtype {
                return Err(OpError::Mixed {
                    op,
                    operand,
                    dtype,
                    first: before,
                });
            }
        }
        Ok(())
    }

    /// The shape that the operands are broadcast to; of ops along an axis the first one's.
    fn common_shape(&self, operands: &[Layout]) -> Result<Vec<u64>> {
        let mut shape = operands[0].shape().to_vec();
        if self.row().has("operands") {
            return Ok(shape);
        }
        for layout in operands {
            let other = layout.shape();
            let Some(joined) = joined(&shape, other) else {
                let what = format!("{other:?} and {shape:?} are no shapes to broadcast");
                let hint = "extents that are equal or 1, from the last one on".to_owned();
                return Err(self.misfit(operands, what, hint));
            };
            shape = joined;
        }
        Ok(shape)
    }

    /// The row's text with the parameters in it, for operands of a common shape.
    fn text(&self, given: usize, shape: &[u64]) -> Result<String> {
        let row = self.row();
        let mut text = row.text.to_owned();
        let axes = self.axes_of(shape.len());
        let has_axes = row.has("axes") || row.has("axis");
        if let Some(axis) = axes.iter().find(|axis| has_axes && **axis >= shape.len()) {
            let what = format!("there is no axis {axis} in {shape:?}");
            let hint = match shape.len() {
                0 => "an operand of at least one dimension, or no axes".to_owned(),
                rank => format!("an axis below {rank}"),
            };
            return Err(self.parameter(what, hint));
        }
        for (at, axis) in axes.iter().enumerate() {
            if has_axes && axes[..at].contains(axis) {
                let what = format!("axis {axis} is there twice");
                return Err(self.parameter(what, "each axis once".to_owned()));
            }
        }
        let mut put = |name: &str, value: String| {
            text = text.replace(&format!("{{{name}}}"), &value);
        };
        let reduced: u64 = axes.iter().filter_map(|axis| shape.get(*axis)).product();
        for ((name, _), number) in row.numbers.iter().zip(self.numbers()) {
            put(name, format!("({number})").to_lowercase());
            if *name == "correction" {
                put("dof", (reduced as f64 - number).max(0.0).to_string());
            }
        }
        put("axes", format!("{axes:?}"));
        put("order", format!("{axes:?}"));
        put(
            "axis",
            axes.first().copied().unwrap_or_default().to_string(),
        );
        put("keep", self.parameters.keep.to_string());
        put("operands", row.operands[..given].join(", "));
        if row.has("to") {
            let to = self.target().ok_or_else(|| {
                self.parameter("it has no type to convert to".to_owned(), "`to`".to_owned())
            })?;
            put("to", to.name().to_owned());
        }
        if row.has("shape") {
            let to = self.target_shape().ok_or_else(|| {
                self.parameter("it has no shape to give".to_owned(), "`shape`".to_owned())
            })?;
            put("shape", format!("{to:?}"));
        }
        Ok(text)
    }
}
