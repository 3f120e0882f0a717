//! Expression graph, as its author builds it: nodes, each an operation on earlier ones.
//!
//! Invariant: every node's type and shape are known and valid when it is created; an invalid node
//! is an error then, and the graph is unchanged. Nodes are in topological order.
//!
//! Elsewhere: simplification (`canonical`), fusion into kernels (`fused`).

use std::fmt;
use std::ops::Range;

use fercuda_tensor::{Dtype, Layout, LayoutError, MAX_RANK};

use crate::dims::{Axes, Dims};
use crate::node::{ExprNodeId, GraphInput, GraphNode, GraphOutput, NodeOp, NumberLiteral};
use crate::op::{self, Binary, Reduction, TypeClass, Unary};

/// Maximum number of nodes of a graph.
pub const MAX_NODES: usize = 4096;
/// Maximum number of inputs of a graph, and of outputs.
pub const MAX_ARRAYS: usize = 32;

/// Error of adding a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExprError {
    /// An operation does not accept the type.
    #[error("{op} of {dtype}: it takes {wants}\ntry: cast it to such a type first")]
    Dtype {
        /// The operation.
        op: String,
        /// The operand's type.
        dtype: Dtype,
        /// The accepted types.
        wants: TypeClass,
    },
    /// Operands differ in type.
    #[error("{op} of {left} and {right}: operands have one type\ntry: cast one of them")]
    Dtypes {
        /// The operation.
        op: String,
        /// The first operand's type.
        left: Dtype,
        /// The other operand's type.
        right: Dtype,
    },
    /// Incompatible shapes, or an invalid view.
    #[error("{op}: {error}")]
    Layout {
        /// The operation.
        op: String,
        /// The cause.
        #[source]
        error: LayoutError,
    },
    /// An axis out of range.
    #[error("{op} over axis {axis} of {shape}: no such axis\ntry: an axis below {}", shape.len())]
    Axis {
        /// The operation.
        op: String,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: Dims,
    },
    /// A reduction over no elements that is undefined.
    #[error(
        "{op} over {axes} of {shape}: undefined for an empty axis\ntry: sum or prod, which are defined"
    )]
    Empty {
        /// The operation.
        op: String,
        /// The axes.
        axes: Axes,
        /// The shape.
        shape: Dims,
    },
    /// A number that the type cannot represent.
    #[error("{dtype} cannot represent {number}\ntry: another number or another type")]
    NumberLiteral {
        /// The number.
        number: String,
        /// The type.
        dtype: Dtype,
    },
    /// The expression is too large.
    #[error(
        "the expression has more than {limit} {what}\ntry: two expressions, one on the result of the other"
    )]
    TooLarge {
        /// The counted items.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The node belongs to another graph.
    #[error("{node} is not a node of this expression, which has {nodes}")]
    NoNode {
        /// The node.
        node: ExprNodeId,
        /// Number of nodes.
        nodes: usize,
    },
    /// Two inputs, or two outputs, have one name.
    #[error("there are two {what}s {name:?}\ntry: another name for one of them")]
    Name {
        /// `input` or `output`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Elements of an output may overlap.
    #[error(
        "output {name:?} as {layout}: two elements may overlap\ntry: a layout with strides that are not 0 and do not interleave"
    )]
    Overlap {
        /// The output's name.
        name: String,
        /// Its layout.
        layout: Box<Layout>,
    },
}

type Result<T> = std::result::Result<T, ExprError>;

/// An expression. See the README for the semantics of narrow types.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExprGraph {
    pub(crate) nodes: Vec<GraphNode>,
    pub(crate) inputs: Vec<GraphInput>,
    pub(crate) outputs: Vec<GraphOutput>,
}

impl ExprGraph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Type of a node.
    ///
    /// # Errors
    /// [`ExprError::NoNode`].
    pub fn dtype(&self, node: ExprNodeId) -> Result<Dtype> {
        Ok(self.node(node)?.dtype)
    }

    /// Shape of a node.
    ///
    /// # Errors
    /// [`ExprError::NoNode`].
    pub fn shape(&self, node: ExprNodeId) -> Result<Dims> {
        Ok(self.node(node)?.shape)
    }

    /// Names and layouts of the inputs, in the order in which they are bound.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, &Layout)> {
        self.inputs
            .iter()
            .map(|input| (input.name.as_str(), &input.layout))
    }

    /// Names and layouts of the outputs, in the order in which they are bound.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = (&str, &Layout)> {
        self.outputs
            .iter()
            .map(|output| (output.name.as_str(), &output.layout))
    }

    /// Names and nodes of the inputs.
    pub(crate) fn input_nodes(&self) -> impl Iterator<Item = (&str, ExprNodeId)> {
        let nodes = (0..).zip(&self.nodes);
        nodes.filter_map(|(at, node)| match node.op {
            NodeOp::Input(input) => Some((&*self.inputs[input as usize].name, ExprNodeId(at))),
            _ => None,
        })
    }

    fn node(&self, node: ExprNodeId) -> Result<GraphNode> {
        let found = self.nodes.get(node.0 as usize).copied();
        found.ok_or(ExprError::NoNode {
            node,
            nodes: self.nodes.len(),
        })
    }

    fn add(&mut self, op: NodeOp, dtype: Dtype, shape: Dims) -> Result<ExprNodeId> {
        if self.nodes.len() == MAX_NODES {
            return Err(too_large("nodes", MAX_NODES));
        }
        self.nodes.push(GraphNode { op, dtype, shape });
        Ok(ExprNodeId(self.nodes.len() as u32 - 1))
    }

    /// Adds an input, which is bound by `name` when the expression runs, with a layout.
    ///
    /// # Errors
    /// [`ExprError::Name`], [`ExprError::TooLarge`].
    pub fn input(&mut self, name: &str, layout: Layout) -> Result<ExprNodeId> {
        if self.inputs.len() == MAX_ARRAYS {
            return Err(too_large("inputs", MAX_ARRAYS));
        }
        if self.inputs.iter().any(|input| input.name == name) {
            let (what, name) = ("input", name.to_owned());
            return Err(ExprError::Name { what, name });
        }
        let shape = Dims::new(layout.shape()).unwrap_or_default();
        let id = self.add(
            NodeOp::Input(self.inputs.len() as u32),
            layout.dtype(),
            shape,
        )?;
        self.inputs.push(GraphInput {
            name: name.to_owned(),
            layout,
        });
        Ok(id)
    }

    /// Adds a constant of no dimensions.
    ///
    /// # Errors
    /// [`ExprError::NumberLiteral`] if the type cannot represent it. Floats are rounded.
    pub fn constant(
        &mut self,
        dtype: Dtype,
        number: impl Into<NumberLiteral>,
    ) -> Result<ExprNodeId> {
        let number = number.into();
        let bits = number.bits(dtype).ok_or_else(|| ExprError::NumberLiteral {
            number: number.to_string(),
            dtype,
        })?;
        self.add(NodeOp::Constant(bits), dtype, Dims::default())
    }

    /// Adds an output: writes `node` to the memory bound to `name`, contiguously.
    ///
    /// # Errors
    /// As for [`ExprGraph::output_as`].
    pub fn output(&mut self, name: &str, node: ExprNodeId) -> Result<()> {
        let GraphNode { dtype, shape, .. } = self.node(node)?;
        let layout =
            Layout::contiguous(dtype, &shape).map_err(|error| layout_error(name, error))?;
        self.output_as(name, node, layout)
    }

    /// Adds an output: writes `node` to the memory bound to `name` with a layout, which has its
    /// type and shape.
    ///
    /// # Errors
    /// [`ExprError::Name`], [`ExprError::TooLarge`], [`ExprError::Overlap`];
    /// [`ExprError::Dtypes`] or [`ExprError::Layout`] for another type or shape.
    pub fn output_as(&mut self, name: &str, node: ExprNodeId, layout: Layout) -> Result<()> {
        if self.outputs.len() == MAX_ARRAYS {
            return Err(too_large("outputs", MAX_ARRAYS));
        }
        if self.outputs.iter().any(|output| output.name == name) {
            let (what, name) = ("output", name.to_owned());
            return Err(ExprError::Name { what, name });
        }
        self.check_output(name, node, &layout)?;
        self.outputs.push(GraphOutput {
            name: name.to_owned(),
            layout,
            node,
        });
        Ok(())
    }

    /// Changes the layout of output `name`; returns whether there is such an output.
    ///
    /// # Errors
    /// As for [`ExprGraph::output_as`].
    pub fn lay_out(&mut self, name: &str, layout: Layout) -> Result<bool> {
        let found = self.outputs.iter().position(|output| output.name == name);
        let Some(at) = found else { return Ok(false) };
        self.check_output(name, self.outputs[at].node, &layout)?;
        self.outputs[at].layout = layout;
        Ok(true)
    }

    fn check_output(&self, name: &str, node: ExprNodeId, layout: &Layout) -> Result<()> {
        let GraphNode { dtype, shape, .. } = self.node(node)?;
        if layout.dtype() != dtype {
            return Err(ExprError::Dtypes {
                op: format!("output {name}"),
                left: dtype,
                right: layout.dtype(),
            });
        }
        if layout.shape() != &*shape {
            let error = LayoutError::Elements {
                from: shape.to_vec(),
                elements: shape.count(),
                to: layout.shape().to_vec(),
            };
            return Err(layout_error(&format!("output {name}"), error));
        }
        if layout.may_overlap() {
            return Err(ExprError::Overlap {
                name: name.to_owned(),
                layout: Box::new(*layout),
            });
        }
        Ok(())
    }

    fn takes(
        &self,
        op: impl fmt::Display,
        class: TypeClass,
        node: ExprNodeId,
    ) -> Result<GraphNode> {
        let found = self.node(node)?;
        match class.has(found.dtype) {
            true => Ok(found),
            false => Err(ExprError::Dtype {
                op: op.to_string(),
                dtype: found.dtype,
                wants: class,
            }),
        }
    }

    /// Broadcasts operands to their common shape.
    fn together<const N: usize>(
        &mut self,
        op: &str,
        nodes: [ExprNodeId; N],
    ) -> Result<([ExprNodeId; N], Dims)> {
        let mut shape = Dims::default();
        for node in nodes {
            let other = self.node(node)?.shape;
            shape = broadcast(shape, other).ok_or_else(|| {
                layout_error(
                    op,
                    LayoutError::Broadcast {
                        from: other.to_vec(),
                        to: shape.to_vec(),
                    },
                )
            })?;
        }
        let mut same = nodes;
        for node in &mut same {
            *node = self.broadcast(*node, &shape)?;
        }
        Ok((same, shape))
    }

    /// Applies a unary operation to each element.
    ///
    /// # Errors
    /// [`ExprError::Dtype`].
    pub fn unary(&mut self, op: Unary, x: ExprNodeId) -> Result<ExprNodeId> {
        let GraphNode { dtype, shape, .. } = self.takes(op, op.class(), x)?;
        let dtype = match op {
            Unary::IsNan => Dtype::Bool,
            _ => dtype,
        };
        self.add(NodeOp::Unary(op, x), dtype, shape)
    }

    /// Applies a binary operation to each pair of elements; shapes are broadcast.
    ///
    /// # Errors
    /// [`ExprError::Dtype`], [`ExprError::Dtypes`], [`ExprError::Layout`].
    pub fn binary(&mut self, op: Binary, a: ExprNodeId, b: ExprNodeId) -> Result<ExprNodeId> {
        let dtype = self.takes(op, op.class(), a)?.dtype;
        self.same(op.name(), dtype, b)?;
        let ([a, b], shape) = self.together(op.name(), [a, b])?;
        let dtype = if op.compares() { Dtype::Bool } else { dtype };
        self.add(NodeOp::Binary(op, a, b), dtype, shape)
    }

    fn same(&self, op: &str, left: Dtype, b: ExprNodeId) -> Result<()> {
        let right = self.node(b)?.dtype;
        match left == right {
            true => Ok(()),
            false => Err(ExprError::Dtypes {
                op: op.to_owned(),
                left,
                right,
            }),
        }
    }

    /// `a * b + c`, of floats rounded once; shapes are broadcast.
    ///
    /// # Errors
    /// As for [`ExprGraph::binary`].
    pub fn fma(&mut self, a: ExprNodeId, b: ExprNodeId, c: ExprNodeId) -> Result<ExprNodeId> {
        let dtype = self.takes("fma", TypeClass::Numbers, a)?.dtype;
        self.same("fma", dtype, b)?;
        self.same("fma", dtype, c)?;
        let ([a, b, c], shape) = self.together("fma", [a, b, c])?;
        self.add(NodeOp::Fma(a, b, c), dtype, shape)
    }

    /// `a` where `condition` holds, `b` elsewhere; shapes are broadcast.
    ///
    /// # Errors
    /// As for [`ExprGraph::binary`].
    pub fn select(
        &mut self,
        condition: ExprNodeId,
        a: ExprNodeId,
        b: ExprNodeId,
    ) -> Result<ExprNodeId> {
        self.takes("select", TypeClass::Bool, condition)?;
        let dtype = self.node(a)?.dtype;
        self.same("select", dtype, b)?;
        let ([condition, a, b], shape) = self.together("select", [condition, a, b])?;
        self.add(NodeOp::Select(condition, a, b), dtype, shape)
    }

    /// Converts to another type. Floats to integers round towards zero and saturate, NaN to 0;
    /// integers to narrower ones keep their low bits; anything but 0 becomes true.
    ///
    /// # Errors
    /// [`ExprError::NoNode`].
    pub fn cast(&mut self, x: ExprNodeId, to: Dtype) -> Result<ExprNodeId> {
        let shape = self.node(x)?.shape;
        self.add(NodeOp::Cast(x), to, shape)
    }

    /// Reduces over some axes, which are removed from the result, or kept with extent 1.
    ///
    /// # Errors
    /// [`ExprError::Dtype`], [`ExprError::Axis`], [`ExprError::Empty`].
    pub fn reduce(
        &mut self,
        op: Reduction,
        x: ExprNodeId,
        over: &[usize],
        keep: bool,
    ) -> Result<ExprNodeId> {
        let GraphNode { dtype, shape, .. } = self.takes(op, op.class(), x)?;
        let mut axes = Axes::default();
        for axis in over {
            axes = axes.with(self.axis(op, shape, *axis)?);
        }
        let has_none = !matches!(op, Reduction::Sum | Reduction::Prod | Reduction::Mean);
        if axes.reduced(&shape) == 0 && axes.kept(&shape).count() > 0 && has_none {
            let op = op.to_string();
            return Err(ExprError::Empty { op, axes, shape });
        }
        let dtype = op.result(dtype);
        let reduced = self.add(NodeOp::Reduce(op, x, axes), dtype, axes.kept(&shape))?;
        match keep {
            true => {
                let ones = axes.iter().fold(shape, |shape, axis| shape.with(axis, 1));
                self.reshape(reduced, &ones)
            }
            false => Ok(reduced),
        }
    }

    fn axis(&self, op: impl fmt::Display, shape: Dims, axis: usize) -> Result<usize> {
        match axis < shape.len() {
            true => Ok(axis),
            false => Err(ExprError::Axis {
                op: op.to_string(),
                axis,
                shape,
            }),
        }
    }

    /// `exp(x - max) / sum(exp(x - max))` over an axis. -inf gives 0; nothing but -inf, NaN
    /// and inf give NaN.
    ///
    /// # Errors
    /// [`ExprError::Dtype`], [`ExprError::Axis`].
    pub fn softmax(&mut self, x: ExprNodeId, axis: usize) -> Result<ExprNodeId> {
        self.softmax_of(x, axis, false)
    }

    /// `x - max - ln(sum(exp(x - max)))` over an axis.
    ///
    /// # Errors
    /// As for [`ExprGraph::softmax`].
    pub fn log_softmax(&mut self, x: ExprNodeId, axis: usize) -> Result<ExprNodeId> {
        self.softmax_of(x, axis, true)
    }

    fn softmax_of(&mut self, of: ExprNodeId, axis: usize, log: bool) -> Result<ExprNodeId> {
        let name = if log { "log_softmax" } else { "softmax" };
        let GraphNode { dtype, shape, .. } = self.takes(name, TypeClass::Floats, of)?;
        let axis = self.axis(name, shape, axis)? as u8;
        self.add(NodeOp::Softmax { of, axis, log }, dtype, shape)
    }

    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` over an axis; `gamma` and `beta` have one
    /// element for each of its.
    ///
    /// # Errors
    /// [`ExprError::Dtype`], [`ExprError::Dtypes`], [`ExprError::Axis`],
    /// [`ExprError::Layout`].
    pub fn layer_norm(
        &mut self,
        x: ExprNodeId,
        axis: usize,
        gamma: Option<ExprNodeId>,
        beta: Option<ExprNodeId>,
        eps: f64,
    ) -> Result<ExprNodeId> {
        self.norm(x, axis, true, [gamma, beta], eps)
    }

    /// `x / sqrt(mean(x^2) + eps) * gamma` over an axis.
    ///
    /// # Errors
    /// As for [`ExprGraph::layer_norm`].
    pub fn rms_norm(
        &mut self,
        x: ExprNodeId,
        axis: usize,
        gamma: Option<ExprNodeId>,
        eps: f64,
    ) -> Result<ExprNodeId> {
        self.norm(x, axis, false, [gamma, None], eps)
    }

    fn norm(
        &mut self,
        of: ExprNodeId,
        axis: usize,
        centred: bool,
        [gamma, beta]: [Option<ExprNodeId>; 2],
        eps: f64,
    ) -> Result<ExprNodeId> {
        let name = if centred { "layer_norm" } else { "rms_norm" };
        let GraphNode { dtype, shape, .. } = self.takes(name, TypeClass::Floats, of)?;
        let axis = self.axis(name, shape, axis)?;
        let mut along = |vector: Option<ExprNodeId>| -> Result<Option<ExprNodeId>> {
            let Some(vector) = vector else {
                return Ok(None);
            };
            self.same(name, dtype, vector)?;
            let extent = shape[axis];
            if *self.node(vector)?.shape != [extent] {
                let from = self.node(vector)?.shape.to_vec();
                let to = vec![extent];
                return Err(layout_error(name, LayoutError::Broadcast { from, to }));
            }
            let mut ones = vec![1; shape.len() - axis];
            ones[0] = extent;
            let turned = self.reshape(vector, &ones)?;
            self.broadcast(turned, &shape).map(Some)
        };
        let (gamma, beta) = (along(gamma)?, along(beta)?);
        let norm = NodeOp::Norm {
            of,
            axis: axis as u8,
            centred,
            gamma,
            beta,
            eps: eps.to_bits(),
        };
        self.add(norm, dtype, shape)
    }

    /// `x * scale + shift`, rounded once; shapes are broadcast.
    ///
    /// # Errors
    /// As for [`ExprGraph::fma`].
    pub fn affine(
        &mut self,
        x: ExprNodeId,
        scale: ExprNodeId,
        shift: ExprNodeId,
    ) -> Result<ExprNodeId> {
        self.fma(x, scale, shift)
    }

    /// The larger of `x` and 0.
    ///
    /// # Errors
    /// As for [`ExprGraph::binary`].
    pub fn relu(&mut self, x: ExprNodeId) -> Result<ExprNodeId> {
        let dtype = self.takes("relu", TypeClass::Numbers, x)?.dtype;
        let zero = self.constant(dtype, 0i64)?;
        self.binary(Binary::Max, x, zero)
    }

    /// `x / (1 + e^-x)`.
    ///
    /// # Errors
    /// As for [`ExprGraph::unary`].
    pub fn silu(&mut self, x: ExprNodeId) -> Result<ExprNodeId> {
        let gate = self.unary(Unary::Sigmoid, x)?;
        self.binary(Binary::Mul, x, gate)
    }

    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    ///
    /// # Errors
    /// As for [`ExprGraph::unary`].
    pub fn gelu(&mut self, x: ExprNodeId) -> Result<ExprNodeId> {
        let dtype = self.takes("gelu", TypeClass::NotF64, x)?.dtype;
        let constant = |graph: &mut Self, value: f64| graph.constant(dtype, value);
        let root = constant(self, std::f64::consts::FRAC_1_SQRT_2)?;
        let scaled = self.binary(Binary::Mul, x, root)?;
        let erf = self.unary(Unary::Erf, scaled)?;
        let half = constant(self, 0.5)?;
        let gate = self.fma(erf, half, half)?;
        self.binary(Binary::Mul, x, gate)
    }

    /// Reshapes: the same elements in the same order in another shape.
    ///
    /// # Errors
    /// [`ExprError::Layout`] for another number of elements, or too many dimensions.
    pub fn reshape(&mut self, x: ExprNodeId, shape: &[u64]) -> Result<ExprNodeId> {
        let node = self.node(x)?;
        let error = |error| layout_error("reshape", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        layout.reshape(shape).map_err(error)?;
        let to = dims(shape)?;
        match to == node.shape {
            true => Ok(x),
            false => self.add(NodeOp::Reshape(x), node.dtype, to),
        }
    }

    /// Permutes the dimensions: the first one will be `order[0]`.
    ///
    /// # Errors
    /// [`ExprError::Layout`] if that is not a permutation.
    pub fn permute(&mut self, x: ExprNodeId, order: &[usize]) -> Result<ExprNodeId> {
        let node = self.node(x)?;
        let error = |error| layout_error("permute", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        let turned = layout.permute(order).map_err(error)?;
        let mut small = [0; MAX_RANK];
        for (to, from) in small.iter_mut().zip(order) {
            *to = *from as u8;
        }
        self.add(NodeOp::Permute(x, small), node.dtype, dims(turned.shape())?)
    }

    /// Broadcasts to a larger shape; dimensions are aligned from the last on.
    ///
    /// # Errors
    /// [`ExprError::Layout`] if the shapes are incompatible.
    pub fn broadcast(&mut self, x: ExprNodeId, shape: &[u64]) -> Result<ExprNodeId> {
        let node = self.node(x)?;
        let error = |error| layout_error("broadcast", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        layout.broadcast(shape).map_err(error)?;
        let to = dims(shape)?;
        match to == node.shape {
            true => Ok(x),
            false => self.add(NodeOp::Broadcast(x), node.dtype, to),
        }
    }

    /// Takes every `step`th element of a range of a dimension.
    ///
    /// # Errors
    /// [`ExprError::Layout`] for a range out of bounds.
    pub fn slice(
        &mut self,
        x: ExprNodeId,
        axis: usize,
        range: Range<u64>,
        step: u64,
    ) -> Result<ExprNodeId> {
        let node = self.node(x)?;
        let error = |error| layout_error("slice", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        let start = range.start;
        let (cut, _) = layout.slice(axis, range, step).map_err(error)?;
        let op = NodeOp::Slice {
            of: x,
            axis: axis as u8,
            start,
            step,
        };
        self.add(op, node.dtype, dims(cut.shape())?)
    }
}

fn too_large(what: &'static str, limit: usize) -> ExprError {
    ExprError::TooLarge { what, limit }
}

fn layout_error(op: &str, error: LayoutError) -> ExprError {
    ExprError::Layout {
        op: op.to_owned(),
        error,
    }
}

fn dims(shape: &[u64]) -> Result<Dims> {
    let rank = shape.len();
    Dims::new(shape).ok_or_else(|| layout_error("a shape", LayoutError::Rank { rank }))
}

/// The common shape that both can be broadcast to.
fn broadcast(a: Dims, b: Dims) -> Option<Dims> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut shape = long;
    let new = long.len() - short.len();
    for (at, extent) in short.iter().enumerate() {
        shape = match (long[new + at], *extent) {
            (same, other) if same == other => shape,
            (1, other) => shape.with(new + at, other),
            (_, 1) => shape,
            _ => return None,
        };
    }
    Some(shape)
}

/// Prints a line for each node: `%2 f16[8, 128] = mul %0 %1`.
impl fmt::Display for ExprGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, GraphNode { op, dtype, shape }) in self.nodes.iter().enumerate() {
            write!(f, "%{at} {dtype}{shape} = ")?;
            match op {
                NodeOp::Input(n) => {
                    let GraphInput { name, layout } = &self.inputs[*n as usize];
                    write!(f, "input {name}: {layout}")
                }
                NodeOp::Constant(bits) => {
                    write!(f, "{}", crate::fold::show(op::computed(*dtype), *bits))
                }
                NodeOp::Unary(op, x) => write!(f, "{op} {x}"),
                NodeOp::Binary(op, a, b) => write!(f, "{op} {a} {b}"),
                NodeOp::Fma(a, b, c) => write!(f, "fma {a} {b} {c}"),
                NodeOp::Select(c, a, b) => write!(f, "select {c} {a} {b}"),
                NodeOp::Cast(x) => write!(f, "cast {x}"),
                NodeOp::Reduce(op, x, axes) => write!(f, "{op} {x} over {axes}"),
                NodeOp::Softmax { of, axis, log } => {
                    let name = if *log { "log_softmax" } else { "softmax" };
                    write!(f, "{name} {of} over {axis}")
                }
                NodeOp::Norm {
                    of,
                    axis,
                    centred,
                    gamma,
                    beta,
                    eps,
                } => {
                    let name = if *centred { "layer_norm" } else { "rms_norm" };
                    write!(f, "{name} {of} over {axis}")?;
                    for (what, vector) in [("gamma", gamma), ("beta", beta)] {
                        if let Some(vector) = vector {
                            write!(f, " {what} {vector}")?;
                        }
                    }
                    write!(f, " eps {}", f64::from_bits(*eps))
                }
                NodeOp::Reshape(x) => write!(f, "reshape {x}"),
                NodeOp::Permute(x, order) => write!(f, "permute {x} {:?}", &order[..shape.len()]),
                NodeOp::Broadcast(x) => write!(f, "broadcast {x}"),
                NodeOp::Slice {
                    of,
                    axis,
                    start,
                    step,
                } => write!(f, "slice {of} axis {axis} from {start} by {step}"),
            }?;
            writeln!(f)?;
        }
        for GraphOutput { name, layout, node } in &self.outputs {
            writeln!(f, "output {name}: {layout} = {node}")?;
        }
        Ok(())
    }
}
