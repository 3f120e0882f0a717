//! Form of a row of the table of ops.
//!
//! Invariant: a row has everything that is known of its op. Elsewhere: the rows (`table`), their
//! look-up (`registry`).

use std::fmt;

use fercuda_jit::TypeClass;
use fercuda_kernels::{KernelError, NativeProgram};
use fercuda_tensor::{Dtype, Layout};

use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};

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
    /// Updates of parameters by their gradients.
    Optimiser,
    /// Elements as small numbers by scales.
    Quantisation,
    /// Elements chosen by indices.
    Indexing,
    /// Segments of rows, and bags of a table's rows.
    Segment,
    /// Numbers of a seed, by counter.
    Random,
    /// Products of matrices.
    Product,
    /// Attention over cached keys, rotary positions.
    Attention,
    /// States that go from token to token.
    Recurrence,
    /// Products of sparse matrices.
    Sparse,
    /// Convolutions, pools, interpolation.
    Window,
    /// Scans, sorting and selection.
    Order,
    /// Fourier transforms.
    Transform,
    /// Factorisations of matrices, systems of equations.
    Algebra,
}

impl OpFamily {
    /// All families.
    pub const ALL: [Self; 20] = [
        Self::Arithmetic,
        Self::Comparison,
        Self::Activation,
        Self::Shape,
        Self::Reduction,
        Self::Normalisation,
        Self::Loss,
        Self::Optimiser,
        Self::Quantisation,
        Self::Indexing,
        Self::Segment,
        Self::Random,
        Self::Product,
        Self::Attention,
        Self::Recurrence,
        Self::Sparse,
        Self::Window,
        Self::Order,
        Self::Transform,
        Self::Algebra,
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
            Self::Optimiser => "optimiser",
            Self::Quantisation => "quantisation",
            Self::Indexing => "indexing",
            Self::Segment => "segment",
            Self::Random => "random",
            Self::Product => "product",
            Self::Attention => "attention",
            Self::Recurrence => "recurrence",
            Self::Sparse => "sparse",
            Self::Window => "window",
            Self::Order => "order",
            Self::Transform => "transform",
            Self::Algebra => "algebra",
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
    /// The elements of all results, with their bounds, of all operands and the results' layouts.
    Whole(WholeReference),
}

/// An expected element, and the bound of a device's error.
pub type ExpectedElement = (f64, f64);

/// An op by kernels of `fercuda-kernels`.
#[derive(Debug)]
pub struct NativeRule {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Types and shapes of the results. Absent for an op that is also an expression.
    pub results: Option<ResultRule>,
    /// Adds the launches for the layouts of a program.
    pub lower: fn(&OpParameters, &mut NativeProgram) -> RowLowering,
}

/// Reference of all results of an op, of its operands and the results' layouts.
pub type WholeReference = fn(&OpParameters, &[HostArray], &[Layout]) -> Vec<Vec<ExpectedElement>>;

/// Types and shapes of results, or why there are none.
pub type RowResults = Result<Vec<(Dtype, Vec<u64>)>, Misfit>;

/// The launches of an op were added, or why they cannot be.
pub type RowLowering = Result<(), KernelError>;

/// Rule of an op's results for operands of these layouts.
pub type ResultRule = fn(&OpParameters, &[Layout]) -> RowResults;

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
    /// Number of operands at the end that may be given many times, one after another.
    pub repeated: usize,
    /// Names of the results.
    pub results: &'static [&'static str],
    /// Types of the operands, which have one.
    pub types: TypeClass,
    /// Operands that need not have the type of the others, with the types that they may have.
    pub typed: &'static [(&'static str, TypeClass)],
    /// Names of its numbers, with their defaults.
    pub numbers: &'static [(&'static str, f64)],
    /// Names of its lists of whole numbers, with their defaults.
    pub lists: &'static [(&'static str, &'static [i64])],
    /// Names of its choices, each with the values that it has; the first is the default.
    pub choices: &'static [(&'static str, &'static [&'static str])],
    /// Expression in the text form of `fercuda-jit`, over the operands' names. Replaced in it:
    /// `{NAME}` by that number, `{axes}`, `{axis}`, `{keep}`, `{order}`, `{shape}` and `{to}` by
    /// the parameters, `{operands}` by the names of those given, `{dof}` by the number of elements
    /// reduced to one, less `correction`. Empty for an op that is no expression.
    pub text: &'static str,
    /// The parameters among `axes`, `axis`, `keep`, `shape` and `to` that its kernels have.
    pub parameters: &'static [&'static str],
    /// Its kernels apart from the expression.
    pub native: Option<NativeRule>,
    /// Its reference.
    pub oracle: OpOracle,
}

impl OpRow {
    /// Whether it has that parameter.
    pub fn has(&self, parameter: &str) -> bool {
        self.parameters.contains(&parameter) || self.text.contains(&format!("{{{parameter}}}"))
    }

    /// Whether it is an expression.
    pub fn is_expression(&self) -> bool {
        !self.text.is_empty()
    }

    /// The types that an operand may have: those of the op, but for indices and conditions.
    pub fn types_of(&self, operand: &str) -> TypeClass {
        let own = self.typed.iter().find(|(name, _)| *name == operand);
        match (own, operand) {
            (Some((_, types)), _) => *types,
            (_, "condition" | "mask") => TypeClass::Bool,
            (_, "index" | "offsets") => TypeClass::Integers,
            _ => self.types,
        }
    }

    /// Whether an operand need not have the type of the others.
    pub fn has_own_type(&self, operand: &str) -> bool {
        let is_typed = self.typed.iter().any(|(name, _)| *name == operand);
        is_typed || self.types_of(operand) != self.types || matches!(operand, "index" | "offsets")
    }

    /// Whether it has operands with elements that are compared with extents when it is run.
    pub fn has_indices(&self) -> bool {
        let mut operands = self.operands.iter();
        operands.any(|operand| matches!(*operand, "index" | "offsets"))
    }

    /// Number of operands that are given once.
    pub fn singles(&self) -> usize {
        self.operands.len().saturating_sub(self.repeated)
    }

    /// Name of an operand, by its number.
    pub fn operand(&self, at: usize) -> &'static str {
        let singles = self.singles();
        let own = match at.checked_sub(singles) {
            Some(beyond) if self.repeated > 0 => singles + beyond % self.repeated,
            _ => at.min(self.operands.len().saturating_sub(1)),
        };
        self.operands.get(own).copied().unwrap_or_default()
    }

    /// Name of a result, by its number.
    pub fn result(&self, at: usize) -> &'static str {
        let own = match self.repeated {
            0 => at,
            _ => at % self.results.len().max(1),
        };
        self.results.get(own).copied().unwrap_or("out")
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
            let mark = match self.repeated > 0 && at >= self.singles() {
                true => "...",
                false => mark,
            };
            all.push(format!("{operand}{mark}"));
        }
        for (number, default) in self.numbers {
            all.push(format!("{number}={default:?}"));
        }
        for (list, default) in self.lists {
            let mut values = String::new();
            for (at, value) in default.iter().enumerate() {
                let comma = if at == 0 { "" } else { ", " };
                values.push_str(&format!("{comma}{value}"));
            }
            all.push(format!("{list}=[{values}]"));
        }
        for (choice, values) in self.choices {
            all.push(format!("{choice}={}", values.first().unwrap_or(&"")));
        }
        for parameter in ["axes", "axis", "keep", "order", "to", "shape"] {
            if self.has(parameter) {
                all.push(format!("{parameter}="));
            }
        }
        format!("{}({})", self.name, all.join(", "))
    }
}

/// A row of an op that is no expression: its kernels compute it.
macro_rules! native {
    ($family:ident $name:literal ($($operand:literal),*) $types:ident
        { $($number:literal: $default:expr),* }
        [$($parameter:literal),*] { $($field:ident: $value:expr),* }
        $kernel:literal, $results:expr, $lower:expr, $oracle:expr, $doc:literal) => {
        $crate::row::OpRow {
            name: $name,
            family: $crate::row::OpFamily::$family,
            doc: $doc,
            operands: &[$($operand),*],
            types: fercuda_jit::TypeClass::$types,
            numbers: &[$(($number, $default)),*],
            text: "",
            parameters: &[$($parameter),*],
            native: Some($crate::row::NativeRule {
                kernel: $kernel,
                results: Some($results),
                lower: $lower,
            }),
            oracle: $crate::row::OpOracle::Whole($oracle),
            $($field: $value,)*
            ..$crate::row::BLANK
        }
    };
}
pub(crate) use native;

/// The fields that most rows of kernels do not set.
pub(crate) const BLANK: OpRow = OpRow {
    name: "",
    family: OpFamily::Shape,
    doc: "",
    operands: &[],
    optional: 0,
    repeated: 0,
    results: &["out"],
    types: TypeClass::All,
    typed: &[],
    numbers: &[],
    lists: &[],
    choices: &[],
    text: "",
    parameters: &[],
    native: None,
    oracle: OpOracle::Permute,
};

/// A row without optional operands.
macro_rules! op {
    ($family:ident $name:literal ($($operand:literal),+) $types:ident
        { $($number:literal: $default:expr),* } $text:literal, $oracle:expr, $doc:literal) => {
        $crate::row::OpRow {
            name: $name,
            family: $crate::row::OpFamily::$family,
            doc: $doc,
            operands: &[$($operand),+],
            types: fercuda_jit::TypeClass::$types,
            numbers: &[$(($number, $default)),*],
            text: $text,
            oracle: $oracle,
            ..$crate::row::BLANK
        }
    };
}
pub(crate) use op;
