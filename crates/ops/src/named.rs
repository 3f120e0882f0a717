//! Parameters by name, with values as files and other languages have them.
//!
//! Invariant: a value is taken as it is, or it is an error that says what the parameter takes;
//! nothing is rounded. Elsewhere: setting parameters by their kinds (`descriptor`).

use std::fmt;

use fercuda_tensor::{Dtype, Layout};

use crate::descriptor::OpDescriptor;
use crate::error::OpError;
use crate::row::OpRow;

/// Kind of a parameter, with its default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OpParameterKind {
    /// A number.
    Number(f64),
    /// A list of whole numbers.
    List(&'static [i64]),
    /// One of these texts; the first is the default.
    Choice(&'static [&'static str]),
    /// The axis that it goes along; the last one by default.
    Axis,
    /// The axes that it reduces; all by default.
    Axes,
    /// The order of dimensions; reversed by default.
    Order,
    /// Whether reduced axes are kept, with extent 1; false by default.
    Keep,
    /// A type, by its name.
    Type {
        /// Whether there is no default.
        is_required: bool,
    },
    /// A shape, which has no default.
    Shape,
}

impl fmt::Display for OpParameterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(_) => f.write_str("a number"),
            Self::List(_) => f.write_str("a list of whole numbers"),
            Self::Choice(values) => write!(f, "one of {}", values.join(", ")),
            Self::Axis => f.write_str("an axis, negative ones from the last on"),
            Self::Axes => f.write_str("a list of axes, negative ones from the last on"),
            Self::Order => f.write_str("each dimension once"),
            Self::Keep => f.write_str("true or false"),
            Self::Type { .. } => {
                let names = Dtype::ALL.map(Dtype::name);
                write!(f, "a type: {}", names.join(", "))
            }
            Self::Shape => f.write_str("a list of extents, 0 or more"),
        }
    }
}

/// A value of any kind of parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum OpParameterValue {
    /// True or false.
    Bool(bool),
    /// A number that need not be whole.
    Number(f64),
    /// A whole number; where a list is wanted, one of one element.
    Integer(i64),
    /// A list of whole numbers.
    Integers(Vec<i64>),
    /// A choice, or the name of a type.
    Text(String),
}

impl fmt::Display for OpParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Integers(values) => write!(f, "{values:?}"),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

impl OpParameterValue {
    /// A number, if it is one that f64 has.
    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(value) => Some(*value),
            // 2^53 and below in magnitude.
            Self::Integer(value) if value.unsigned_abs() <= 1 << 53 => Some(*value as f64),
            _ => None,
        }
    }

    fn integers(&self) -> Option<&[i64]> {
        match self {
            Self::Integer(value) => Some(std::slice::from_ref(value)),
            Self::Integers(values) => Some(values),
            _ => None,
        }
    }

    fn truth(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            Self::Integer(0) => Some(false),
            Self::Integer(1) => Some(true),
            _ => None,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(value) => Some(value),
            _ => None,
        }
    }
}

impl OpRow {
    /// Its parameters by name, as its signature has them.
    pub fn named_parameters(&self) -> Vec<(&'static str, OpParameterKind)> {
        let numbers = self.numbers.iter();
        let mut all: Vec<(&'static str, OpParameterKind)> = numbers
            .map(|(name, default)| (*name, OpParameterKind::Number(*default)))
            .collect();
        let lists = self.lists.iter();
        all.extend(lists.map(|(name, default)| (*name, OpParameterKind::List(default))));
        let choices = self.choices.iter();
        all.extend(choices.map(|(name, values)| (*name, OpParameterKind::Choice(values))));
        // `full` has no type of its own either.
        let is_required = self.is_expression() || self.name == "full";
        let others = [
            ("axes", OpParameterKind::Axes),
            ("axis", OpParameterKind::Axis),
            ("keep", OpParameterKind::Keep),
            ("order", OpParameterKind::Order),
            ("to", OpParameterKind::Type { is_required }),
            ("shape", OpParameterKind::Shape),
        ];
        all.extend(others.into_iter().filter(|(name, _)| self.has(name)));
        all
    }
}

impl OpDescriptor {
    /// Sets the parameter of that name. Axes may be negative: they are counted from the last
    /// dimension of the operands on, of `stack` from that of the result.
    ///
    /// # Errors
    /// [`OpError::Parameter`] if the op has no such parameter, or the value is none of it.
    pub fn named(
        self,
        name: &str,
        value: &OpParameterValue,
        operands: &[Layout],
    ) -> Result<Self, OpError> {
        let row = self.row();
        let all = row.named_parameters();
        let Some((_, kind)) = all.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
            let hint = match known.is_empty() {
                true => "it has no parameters".to_owned(),
                false => known.join(", "),
            };
            let what = format!("it has no parameter {name:?}");
            let op = row.name;
            return Err(OpError::Parameter { op, what, hint });
        };
        let unfit = || OpError::Parameter {
            op: row.name,
            what: format!("{name} is {value}"),
            hint: kind.to_string(),
        };
        match kind {
            OpParameterKind::Number(_) => self.number(name, value.number().ok_or_else(unfit)?),
            OpParameterKind::List(_) => self.list(name, value.integers().ok_or_else(unfit)?),
            OpParameterKind::Choice(_) => self.choice(name, value.text().ok_or_else(unfit)?),
            OpParameterKind::Keep => self.keep(value.truth().ok_or_else(unfit)?),
            OpParameterKind::Axis | OpParameterKind::Axes | OpParameterKind::Order => {
                let axes = value.integers().ok_or_else(unfit)?;
                self.axes(&counted(row, axes, operands)?)
            }
            OpParameterKind::Type { .. } => {
                let dtype = value.text().and_then(|name| name.parse().ok());
                self.to(dtype.ok_or_else(unfit)?)
            }
            OpParameterKind::Shape => {
                let extents = value.integers().ok_or_else(unfit)?.iter();
                let shape: Result<Vec<u64>, _> = extents.map(|it| u64::try_from(*it)).collect();
                self.shape(&shape.map_err(|_| unfit())?)
            }
        }
    }
}

/// Axes from the first dimension on.
fn counted(row: &OpRow, axes: &[i64], operands: &[Layout]) -> Result<Vec<usize>, OpError> {
    let ranks = operands.iter().map(|layout| layout.shape().len());
    let rank = ranks.max().unwrap_or_default() + usize::from(row.name == "stack");
    let count = |axis: &i64| {
        let at = if *axis < 0 {
            *axis + rank as i64
        } else {
            *axis
        };
        usize::try_from(at).map_err(|_| OpError::Parameter {
            op: row.name,
            what: format!("there is no axis {axis} in {rank} dimensions"),
            hint: match rank {
                0 => "an operand of at least one dimension".to_owned(),
                rank => format!("-{rank} to {}", rank - 1),
            },
        })
    };
    axes.iter().map(count).collect()
}
