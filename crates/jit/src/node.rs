//! Nodes of an expression graph, and the numbers in them.

use std::fmt;

use fercuda_tensor::{Dtype, Layout, MAX_RANK};

use crate::dims::{Axes, Dims};
use crate::op::{self, Binary, Reduction, Unary};

/// A node of the graph that returned it. In another graph it names another node or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprNodeId(pub(crate) u32);

impl fmt::Display for ExprNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// A number without a type yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NumberLiteral {
    /// A float.
    Float(f64),
    /// An integer.
    Int(i128),
    /// A bool.
    Bool(bool),
}

impl From<f64> for NumberLiteral {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}
impl From<i64> for NumberLiteral {
    fn from(number: i64) -> Self {
        Self::Int(number.into())
    }
}
impl From<u64> for NumberLiteral {
    fn from(number: u64) -> Self {
        Self::Int(number.into())
    }
}
impl From<bool> for NumberLiteral {
    fn from(number: bool) -> Self {
        Self::Bool(number)
    }
}

impl fmt::Display for NumberLiteral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(number) => write!(f, "{number}"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bool(number) => write!(f, "{number}"),
        }
    }
}

impl NumberLiteral {
    /// Bits of the number in the computation type: for a float narrower than f32 those of an f32,
    /// to which it is rounded; for an integer 64 bits.
    pub(crate) fn bits(self, dtype: Dtype) -> Option<u64> {
        let fits = |bits: u32, signed: bool| {
            let number = match self {
                Self::Int(number) => number,
                Self::Float(number) if number.fract() == 0.0 && number.abs() < 2e19 => {
                    number as i128
                }
                _ => return None,
            };
            let (least, most) = match signed {
                true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                false => (0, (1i128 << bits) - 1),
            };
            (least..=most).contains(&number).then_some(number as u64)
        };
        let float = || match self {
            Self::Float(number) => Some(number),
            Self::Int(number) => Some(number as f64),
            Self::Bool(_) => None,
        };
        let bits = 8 * dtype.bytes() as u32;
        match (op::computed(dtype), self) {
            (Dtype::F64, _) => float().map(f64::to_bits),
            (Dtype::F32, _) => float().map(|number| u64::from((number as f32).to_bits())),
            (Dtype::Bool, Self::Bool(number)) => Some(u64::from(number)),
            (Dtype::Bool, _) => None,
            (integer, _) => fits(bits, integer.is_signed()),
        }
    }
}

/// Operation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeOp {
    Input(u32),
    /// Bits of the constant, of the computation type.
    Constant(u64),
    Unary(Unary, ExprNodeId),
    Binary(Binary, ExprNodeId, ExprNodeId),
    /// a * b + c
    Fma(ExprNodeId, ExprNodeId, ExprNodeId),
    Select(ExprNodeId, ExprNodeId, ExprNodeId),
    Cast(ExprNodeId),
    Reduce(Reduction, ExprNodeId, Axes),
    Softmax {
        of: ExprNodeId,
        axis: u8,
        log: bool,
    },
    Norm {
        of: ExprNodeId,
        axis: u8,
        /// Whether it is centred about the mean, as layer normalisation, or about zero.
        centred: bool,
        gamma: Option<ExprNodeId>,
        beta: Option<ExprNodeId>,
        /// Bits of an f64.
        eps: u64,
    },
    Reshape(ExprNodeId),
    Permute(ExprNodeId, [u8; MAX_RANK]),
    Broadcast(ExprNodeId),
    Slice {
        of: ExprNodeId,
        axis: u8,
        start: u64,
        step: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphNode {
    pub(crate) op: NodeOp,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Dims,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphInput {
    pub(crate) name: String,
    pub(crate) layout: Layout,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphOutput {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) node: ExprNodeId,
}
