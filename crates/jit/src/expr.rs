//! Canonical expressions of elements, and the arrays that they load.

use std::fmt;

use fercuda_tensor::{Dtype, Layout};

use crate::dims::{Axes, Dims};
use crate::op::{self, Binary, Reduction, Unary};

/// Index of an expression in [`Canonical`](crate::Canonical).
pub(crate) type ExprId = u32;

/// An operation on elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Prim {
    Unary(Unary),
    Binary(Binary),
    Fma,
    Select,
    /// Conversion between two computation types.
    Convert(Dtype),
    /// Rounding to a narrow float's values; the result is still an f32.
    Round(Dtype),
}

impl fmt::Display for Prim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unary(op) => write!(f, "{op}"),
            Self::Binary(op) => write!(f, "{op}"),
            Self::Fma => write!(f, "fma"),
            Self::Select => write!(f, "select"),
            Self::Convert(to) => write!(f, "to {to}"),
            Self::Round(to) => write!(f, "round to {to}"),
        }
    }
}

/// Operand of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LoadSource {
    Input(u32),
    Array(u32),
}

impl fmt::Display for LoadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(n) => write!(f, "input {n}"),
            Self::Array(n) => write!(f, "a{n}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Expr {
    /// Bits of the constant, as in [`fold`].
    Const(u64),
    /// Loads an element of an array for each element, `offset` elements from its first.
    Load {
        source: LoadSource,
        layout: Layout,
        offset: i64,
    },
    Apply(Prim, [ExprId; 3]),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExprEntry {
    pub(crate) expr: Expr,
    /// Computation type.
    pub(crate) dtype: Dtype,
    /// `None` for a constant of any shape.
    pub(crate) shape: Option<Dims>,
    pub(crate) hash: StructuralHash,
}

/// Structural hash, independent of the position: first without extents, so that the order, and with
/// it the code, is the same for other shapes; then with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StructuralHash {
    form: u64,
    whole: u64,
}

impl StructuralHash {
    pub(crate) fn of(
        form: &[u64],
        rest: &[u64],
        below: impl Iterator<Item = StructuralHash> + Clone,
    ) -> Self {
        let forms: Vec<u64> = form
            .iter()
            .copied()
            .chain(below.clone().map(|h| h.form))
            .collect();
        let form = mixed(&forms);
        let wholes = [form].into_iter().chain(rest.iter().copied());
        let wholes: Vec<u64> = wholes.chain(below.map(|h| h.whole)).collect();
        Self {
            form,
            whole: mixed(&wholes),
        }
    }
}

impl ExprEntry {
    /// A load, to be added.
    pub(crate) fn load(source: LoadSource, layout: Layout) -> Self {
        Self {
            expr: Expr::Load {
                source,
                layout,
                offset: 0,
            },
            dtype: op::computed(layout.dtype()),
            shape: Dims::new(layout.shape()),
            hash: StructuralHash::default(),
        }
    }

    pub(crate) fn args(&self) -> &[ExprId] {
        match &self.expr {
            Expr::Apply(op, args) => &args[..arity(*op)],
            _ => &[],
        }
    }
}

pub(crate) fn arity(op: Prim) -> usize {
    match op {
        Prim::Unary(_) | Prim::Convert(_) | Prim::Round(_) => 1,
        Prim::Binary(_) => 2,
        Prim::Fma | Prim::Select => 3,
    }
}

/// How a contiguous array is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ArrayOrigin {
    Reduced(Reduction, Axes),
    /// Reduces parts of this many elements; the parts are the array's last dimension.
    Partial(Reduction, Axes, u64),
    Copied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CanonicalArray {
    pub(crate) made: ArrayOrigin,
    pub(crate) of: ExprId,
    /// Shape of the expression.
    pub(crate) from: Dims,
    /// Shape of the array.
    pub(crate) shape: Dims,
    pub(crate) dtype: Dtype,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CanonicalOutput {
    pub(crate) layout: Layout,
    pub(crate) of: ExprId,
}

/// A hash that is stable across platforms and versions.
fn mixed(words: &[u64]) -> u64 {
    let mut state: u64 = 0x243f_6a88_85a3_08d3 ^ words.len() as u64;
    for word in words {
        state = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 32;
    }
    state
}
