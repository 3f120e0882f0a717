//! Form of a row of the table of ops.
//!
//! Invariant: a row has everything that is known of its op. Elsewhere: the rows (`table`), their
//! look-up (`registry`).

use std::fmt;

use fercuda_jit::TypeClass;
use fercuda_tensor::Dtype;

/// Group of ops, a section of the coverage table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpFamily {
    /// Arithmetic of each element.
    Arithmetic,
    /// Comparisons and predicates; the result is bool.
    Comparison,
    /// Activations, their derivatives and gated units.
    Activation,
    /// Copies, views and conversions.
    Shape,
    /// Many elements to one.
    Reduction,
    /// Softmax and norms of rows.
    Normalisation,
    /// Losses.
    Loss,
}

impl OpFamily {
    /// All families.
    pub const ALL: [Self; 7] = [
        Self::Arithmetic,
        Self::Comparison,
        Self::Activation,
        Self::Shape,
        Self::Reduction,
        Self::Normalisation,
        Self::Loss,
    ];

    /// Its name, here and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arithmetic => "arithmetic",
            Self::Comparison => "comparison",
            Self::Activation => "activation",
            Self::Shape => "shape",
            Self::Reduction => "reduction",
            Self::Normalisation => "normalisation",
            Self::Loss => "loss",
        }
    }
}

impl fmt::Display for OpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reference in f64, by the way it goes over elements. The last argument has the values of the
/// row's numbers, in their order.
#[derive(Clone, Copy, Debug)]
pub enum OpOracle {
    /// One element of each operand, broadcast to one shape.
    Each(fn(&[f64], &[f64]) -> f64),
    /// The elements of each operand that are reduced to one, operands broadcast to one shape.
    Fold(fn(&[Vec<f64>], &[f64]) -> f64),
    /// The elements of each operand along one axis; later operands may be vectors along it.
    Rows(fn(&[Vec<f64>], &[f64]) -> Vec<f64>),
    /// The operand's elements with its dimensions in another order.
    Permute,
    /// The operand's elements, repeated along new dimensions and those of extent 1.
    Broadcast,
}

/// One op: everything that is known of it.
#[derive(Debug)]
pub struct OpRow {
    /// Its name.
    pub name: &'static str,
    /// Its family.
    pub family: OpFamily,
    /// One line of documentation.
    pub doc: &'static str,
    /// Names of the operands; if the first is `condition`, it is bool.
    pub operands: &'static [&'static str],
    /// Number of operands at the end that may be left out.
    pub optional: usize,
    /// Types of the operands, which have one.
    pub types: TypeClass,
    /// Names of its numbers, with their defaults.
    pub numbers: &'static [(&'static str, f64)],
    /// Expression in the text form of `fercuda-jit`, over the operands' names. Replaced in it:
    /// `{NAME}` by that number, `{axes}`, `{axis}`, `{keep}`, `{order}`, `{shape}` and `{to}` by
    /// the parameters, `{operands}` by the names of those given, `{dof}` by the number of elements
    /// reduced to one, less `correction`.
    pub text: &'static str,
    /// Its reference.
    pub oracle: OpOracle,
}

impl OpRow {
    /// Whether its expression has that parameter.
    pub fn has(&self, parameter: &str) -> bool {
        self.text.contains(&format!("{{{parameter}}}"))
    }

    /// The types that it accepts.
    pub fn dtypes(&self) -> impl Iterator<Item = Dtype> {
        let types = self.types;
        Dtype::ALL
            .into_iter()
            .filter(move |dtype| types.has(*dtype))
    }

    /// Its operands, numbers with their defaults, and other parameters: `elu(x, alpha=1.0)`. `?`
    /// marks an operand that may be left out.
    pub fn signature(&self) -> String {
        let firsts = self.operands.len() - self.optional;
        let mut all: Vec<String> = Vec::new();
        for (at, operand) in self.operands.iter().enumerate() {
            let mark = if at >= firsts { "?" } else { "" };
            all.push(format!("{operand}{mark}"));
        }
        for (number, default) in self.numbers {
            all.push(format!("{number}={default:?}"));
        }
        for parameter in ["axes", "axis", "keep", "order", "to", "shape"] {
            if self.has(parameter) {
                all.push(format!("{parameter}="));
            }
        }
        format!("{}({})", self.name, all.join(", "))
    }

    /// Whether the first operand is a condition.
    pub fn has_condition(&self) -> bool {
        self.operands.first() == Some(&"condition")
    }
}

/// A row without optional operands.
macro_rules! op {
    ($family:ident $name:literal ($($operand:literal),+) $types:ident
        { $($number:literal: $default:expr),* } $text:literal, $oracle:expr, $doc:literal) => {
        $crate::row::OpRow {
            name: $name,
            family: $crate::row::OpFamily::$family,
            doc: $doc,
            operands: &[$($operand),+],
            optional: 0,
            types: fercuda_jit::TypeClass::$types,
            numbers: &[$(($number, $default)),*],
            text: $text,
            oracle: $oracle,
        }
    };
}
pub(crate) use op;
