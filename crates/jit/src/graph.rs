//! An expression as its author says it: nodes, each an operation on earlier ones.
//!
//! Invariant: every node's type and shape are known and possible when it is made; what
//! cannot be is an error then, and the graph is as before. Nodes are in an order in which
//! each comes after those that it is made of.
//!
//! Elsewhere: what is simplified (`canonical`), what is computed together (`fused`).

use std::fmt;
use std::ops::Range;

use fercuda_tensor::{Dtype, Layout, LayoutError, MAX_RANK};

use crate::dims::{Axes, Dims};
use crate::op::{self, Binary, Class, Reduction, Unary};

/// A graph has at most so many nodes.
pub const MAX_NODES: usize = 4096;
/// A graph has at most so many inputs, and so many outputs.
pub const MAX_ARRAYS: usize = 32;

/// A node of the graph that gave it. Of another graph it means another node or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(crate) u32);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Why a node cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An operation does not take that type.
    #[error("{op} of {dtype}: it takes {wants}\ntry: cast it to such a type first")]
    Dtype {
        /// The operation.
        op: String,
        /// What it was given.
        dtype: Dtype,
        /// What it takes.
        wants: Class,
    },
    /// Operands have several types.
    #[error("{op} of {left} and {right}: operands have one type\ntry: cast one of them")]
    Dtypes {
        /// The operation.
        op: String,
        /// The first one's.
        left: Dtype,
        /// Another one's.
        right: Dtype,
    },
    /// Shapes that do not go together, or no view.
    #[error("{op}: {error}")]
    Layout {
        /// The operation.
        op: String,
        /// What is wrong.
        #[source]
        error: LayoutError,
    },
    /// There is no such axis.
    #[error("{op} over axis {axis} of {shape}: there is none\ntry: an axis below {}", shape.len())]
    Axis {
        /// The operation.
        op: String,
        /// The one that was asked for.
        axis: usize,
        /// The shape.
        shape: Dims,
    },
    /// Of no elements there is no such thing.
    #[error(
        "{op} over {axes} of {shape}: of no elements there is none\ntry: sum or prod, which have one"
    )]
    Empty {
        /// The operation.
        op: String,
        /// The axes.
        axes: Axes,
        /// The shape.
        shape: Dims,
    },
    /// A number that is none of the type's.
    #[error("{number} is no {dtype}\ntry: another number or another type")]
    Number {
        /// The number.
        number: String,
        /// The type.
        dtype: Dtype,
    },
    /// There is too much of it.
    #[error(
        "the expression has more than {limit} {what}\ntry: two expressions, one on the result of the other"
    )]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// The node is of another graph.
    #[error("{node} is no node of this expression, which has {nodes}")]
    NoNode {
        /// The node.
        node: Id,
        /// How many there are.
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
    /// Elements of an output lie on each other.
    #[error(
        "output {name:?} as {layout}: two elements may lie in one place\ntry: a layout whose strides are not 0 and do not interleave"
    )]
    Overlap {
        /// The output's name.
        name: String,
        /// How it was to lie.
        layout: Box<Layout>,
    },
}

type Result<T> = std::result::Result<T, GraphError>;

/// A number before it has a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// With a fraction.
    Float(f64),
    /// Without.
    Int(i128),
    /// Yes or no.
    Bool(bool),
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}
impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Self::Int(number.into())
    }
}
impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Int(number.into())
    }
}
impl From<bool> for Number {
    fn from(number: bool) -> Self {
        Self::Bool(number)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(number) => write!(f, "{number}"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bool(number) => write!(f, "{number}"),
        }
    }
}

impl Number {
    /// Its bits as it is computed with: of a float narrower than f32 those of an f32,
    /// which it is rounded to; of an integer 64 bits.
    fn bits(self, dtype: Dtype) -> Option<u64> {
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
            (integer, _) => fits(bits, op::is_signed(integer)),
        }
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Input(u32),
    /// Its bits, of the type that it is computed in.
    Constant(u64),
    Unary(Unary, Id),
    Binary(Binary, Id, Id),
    /// a * b + c
    Fma(Id, Id, Id),
    Select(Id, Id, Id),
    Cast(Id),
    Reduce(Reduction, Id, Axes),
    Softmax {
        of: Id,
        axis: u8,
        log: bool,
    },
    Norm {
        of: Id,
        axis: u8,
        /// About the mean, as layer normalisation, or about zero.
        centred: bool,
        gamma: Option<Id>,
        beta: Option<Id>,
        /// Bits of an f64.
        eps: u64,
    },
    Reshape(Id),
    Permute(Id, [u8; MAX_RANK]),
    Broadcast(Id),
    Slice {
        of: Id,
        axis: u8,
        start: u64,
        step: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) op: Op,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Dims,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) layout: Layout,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) node: Id,
}

/// An expression. See the README for what narrow types mean in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
}

impl Graph {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The type of a node.
    ///
    /// # Errors
    /// [`GraphError::NoNode`].
    pub fn dtype(&self, node: Id) -> Result<Dtype> {
        Ok(self.node(node)?.dtype)
    }

    /// The shape of a node.
    ///
    /// # Errors
    /// [`GraphError::NoNode`].
    pub fn shape(&self, node: Id) -> Result<Dims> {
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
    pub(crate) fn input_nodes(&self) -> impl Iterator<Item = (&str, Id)> {
        let nodes = (0..).zip(&self.nodes);
        nodes.filter_map(|(at, node)| match node.op {
            Op::Input(input) => Some((&*self.inputs[input as usize].name, Id(at))),
            _ => None,
        })
    }

    fn node(&self, node: Id) -> Result<Node> {
        let found = self.nodes.get(node.0 as usize).copied();
        found.ok_or(GraphError::NoNode {
            node,
            nodes: self.nodes.len(),
        })
    }

    fn add(&mut self, op: Op, dtype: Dtype, shape: Dims) -> Result<Id> {
        if self.nodes.len() == MAX_NODES {
            return Err(too_large("nodes", MAX_NODES));
        }
        self.nodes.push(Node { op, dtype, shape });
        Ok(Id(self.nodes.len() as u32 - 1))
    }

    /// What is bound to `name` when it runs; elements lie as `layout` says.
    ///
    /// # Errors
    /// [`GraphError::Name`], [`GraphError::TooLarge`].
    pub fn input(&mut self, name: &str, layout: Layout) -> Result<Id> {
        if self.inputs.len() == MAX_ARRAYS {
            return Err(too_large("inputs", MAX_ARRAYS));
        }
        if self.inputs.iter().any(|input| input.name == name) {
            let (what, name) = ("input", name.to_owned());
            return Err(GraphError::Name { what, name });
        }
        let shape = Dims::new(layout.shape()).unwrap_or_default();
        let id = self.add(Op::Input(self.inputs.len() as u32), layout.dtype(), shape)?;
        self.inputs.push(Input {
            name: name.to_owned(),
            layout,
        });
        Ok(id)
    }

    /// One number, of no dimensions.
    ///
    /// # Errors
    /// [`GraphError::Number`] if the type does not have it. Floats are rounded.
    pub fn constant(&mut self, dtype: Dtype, number: impl Into<Number>) -> Result<Id> {
        let number = number.into();
        let bits = number.bits(dtype).ok_or_else(|| GraphError::Number {
            number: number.to_string(),
            dtype,
        })?;
        self.add(Op::Constant(bits), dtype, Dims::default())
    }

    /// Writes `node` to what is bound to `name`, side by side.
    ///
    /// # Errors
    /// As for [`Graph::output_as`].
    pub fn output(&mut self, name: &str, node: Id) -> Result<()> {
        let Node { dtype, shape, .. } = self.node(node)?;
        let layout =
            Layout::contiguous(dtype, &shape).map_err(|error| layout_error(name, error))?;
        self.output_as(name, node, layout)
    }

    /// Writes `node` to what is bound to `name`, as `layout` says, which has its type and
    /// shape.
    ///
    /// # Errors
    /// [`GraphError::Name`], [`GraphError::TooLarge`], [`GraphError::Overlap`];
    /// [`GraphError::Dtypes`] or [`GraphError::Layout`] of another type or shape.
    pub fn output_as(&mut self, name: &str, node: Id, layout: Layout) -> Result<()> {
        if self.outputs.len() == MAX_ARRAYS {
            return Err(too_large("outputs", MAX_ARRAYS));
        }
        if self.outputs.iter().any(|output| output.name == name) {
            let (what, name) = ("output", name.to_owned());
            return Err(GraphError::Name { what, name });
        }
        self.check_output(name, node, &layout)?;
        self.outputs.push(Output {
            name: name.to_owned(),
            layout,
            node,
        });
        Ok(())
    }

    /// Has what is written to `name` lie as `layout` says; says whether there is such an
    /// output.
    ///
    /// # Errors
    /// As for [`Graph::output_as`].
    pub fn lay_out(&mut self, name: &str, layout: Layout) -> Result<bool> {
        let found = self.outputs.iter().position(|output| output.name == name);
        let Some(at) = found else { return Ok(false) };
        self.check_output(name, self.outputs[at].node, &layout)?;
        self.outputs[at].layout = layout;
        Ok(true)
    }

    fn check_output(&self, name: &str, node: Id, layout: &Layout) -> Result<()> {
        let Node { dtype, shape, .. } = self.node(node)?;
        if layout.dtype() != dtype {
            return Err(GraphError::Dtypes {
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
            return Err(GraphError::Overlap {
                name: name.to_owned(),
                layout: Box::new(*layout),
            });
        }
        Ok(())
    }

    fn takes(&self, op: impl fmt::Display, class: Class, node: Id) -> Result<Node> {
        let found = self.node(node)?;
        match class.has(found.dtype) {
            true => Ok(found),
            false => Err(GraphError::Dtype {
                op: op.to_string(),
                dtype: found.dtype,
                wants: class,
            }),
        }
    }

    /// Operands in the shape that all can be broadcast to.
    fn together<const N: usize>(&mut self, op: &str, nodes: [Id; N]) -> Result<([Id; N], Dims)> {
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

    /// Of each element.
    ///
    /// # Errors
    /// [`GraphError::Dtype`].
    pub fn unary(&mut self, op: Unary, x: Id) -> Result<Id> {
        let Node { dtype, shape, .. } = self.takes(op, op.class(), x)?;
        let dtype = match op {
            Unary::IsNan => Dtype::Bool,
            _ => dtype,
        };
        self.add(Op::Unary(op, x), dtype, shape)
    }

    /// Of each pair of elements; shapes are broadcast.
    ///
    /// # Errors
    /// [`GraphError::Dtype`], [`GraphError::Dtypes`], [`GraphError::Layout`].
    pub fn binary(&mut self, op: Binary, a: Id, b: Id) -> Result<Id> {
        let dtype = self.takes(op, op.class(), a)?.dtype;
        self.same(op.name(), dtype, b)?;
        let ([a, b], shape) = self.together(op.name(), [a, b])?;
        let dtype = if op.compares() { Dtype::Bool } else { dtype };
        self.add(Op::Binary(op, a, b), dtype, shape)
    }

    fn same(&self, op: &str, left: Dtype, b: Id) -> Result<()> {
        let right = self.node(b)?.dtype;
        match left == right {
            true => Ok(()),
            false => Err(GraphError::Dtypes {
                op: op.to_owned(),
                left,
                right,
            }),
        }
    }

    /// `a * b + c`, of floats rounded once; shapes are broadcast.
    ///
    /// # Errors
    /// As for [`Graph::binary`].
    pub fn fma(&mut self, a: Id, b: Id, c: Id) -> Result<Id> {
        let dtype = self.takes("fma", Class::Numbers, a)?.dtype;
        self.same("fma", dtype, b)?;
        self.same("fma", dtype, c)?;
        let ([a, b, c], shape) = self.together("fma", [a, b, c])?;
        self.add(Op::Fma(a, b, c), dtype, shape)
    }

    /// `a` where `condition` holds, `b` elsewhere; shapes are broadcast.
    ///
    /// # Errors
    /// As for [`Graph::binary`].
    pub fn select(&mut self, condition: Id, a: Id, b: Id) -> Result<Id> {
        self.takes("select", Class::Bool, condition)?;
        let dtype = self.node(a)?.dtype;
        self.same("select", dtype, b)?;
        let ([condition, a, b], shape) = self.together("select", [condition, a, b])?;
        self.add(Op::Select(condition, a, b), dtype, shape)
    }

    /// As another type. Floats to integers towards zero, to the nearest that there is, NaN
    /// to 0; integers to narrower ones by their low bits; anything but 0 to true.
    ///
    /// # Errors
    /// [`GraphError::NoNode`].
    pub fn cast(&mut self, x: Id, to: Dtype) -> Result<Id> {
        let shape = self.node(x)?.shape;
        self.add(Op::Cast(x), to, shape)
    }

    /// Over some axes, which are left out of the result, or kept with 1 element.
    ///
    /// # Errors
    /// [`GraphError::Dtype`], [`GraphError::Axis`], [`GraphError::Empty`].
    pub fn reduce(&mut self, op: Reduction, x: Id, over: &[usize], keep: bool) -> Result<Id> {
        let Node { dtype, shape, .. } = self.takes(op, op.class(), x)?;
        let mut axes = Axes::default();
        for axis in over {
            axes = axes.with(self.axis(op, shape, *axis)?);
        }
        let has_none = !matches!(op, Reduction::Sum | Reduction::Prod | Reduction::Mean);
        if axes.reduced(&shape) == 0 && axes.kept(&shape).count() > 0 && has_none {
            let op = op.to_string();
            return Err(GraphError::Empty { op, axes, shape });
        }
        let dtype = op.result(dtype);
        let reduced = self.add(Op::Reduce(op, x, axes), dtype, axes.kept(&shape))?;
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
            false => Err(GraphError::Axis {
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
    /// [`GraphError::Dtype`], [`GraphError::Axis`].
    pub fn softmax(&mut self, x: Id, axis: usize) -> Result<Id> {
        self.softmax_of(x, axis, false)
    }

    /// `x - max - ln(sum(exp(x - max)))` over an axis.
    ///
    /// # Errors
    /// As for [`Graph::softmax`].
    pub fn log_softmax(&mut self, x: Id, axis: usize) -> Result<Id> {
        self.softmax_of(x, axis, true)
    }

    fn softmax_of(&mut self, of: Id, axis: usize, log: bool) -> Result<Id> {
        let name = if log { "log_softmax" } else { "softmax" };
        let Node { dtype, shape, .. } = self.takes(name, Class::Floats, of)?;
        let axis = self.axis(name, shape, axis)? as u8;
        self.add(Op::Softmax { of, axis, log }, dtype, shape)
    }

    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` over an axis; `gamma` and `beta`
    /// have one element for each of it.
    ///
    /// # Errors
    /// [`GraphError::Dtype`], [`GraphError::Dtypes`], [`GraphError::Axis`],
    /// [`GraphError::Layout`].
    pub fn layer_norm(
        &mut self,
        x: Id,
        axis: usize,
        gamma: Option<Id>,
        beta: Option<Id>,
        eps: f64,
    ) -> Result<Id> {
        self.norm(x, axis, true, [gamma, beta], eps)
    }

    /// `x / sqrt(mean(x^2) + eps) * gamma` over an axis.
    ///
    /// # Errors
    /// As for [`Graph::layer_norm`].
    pub fn rms_norm(&mut self, x: Id, axis: usize, gamma: Option<Id>, eps: f64) -> Result<Id> {
        self.norm(x, axis, false, [gamma, None], eps)
    }

    fn norm(
        &mut self,
        of: Id,
        axis: usize,
        centred: bool,
        [gamma, beta]: [Option<Id>; 2],
        eps: f64,
    ) -> Result<Id> {
        let name = if centred { "layer_norm" } else { "rms_norm" };
        let Node { dtype, shape, .. } = self.takes(name, Class::Floats, of)?;
        let axis = self.axis(name, shape, axis)?;
        let mut along = |vector: Option<Id>| -> Result<Option<Id>> {
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
        let norm = Op::Norm {
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
    /// As for [`Graph::fma`].
    pub fn affine(&mut self, x: Id, scale: Id, shift: Id) -> Result<Id> {
        self.fma(x, scale, shift)
    }

    /// The larger of `x` and 0.
    ///
    /// # Errors
    /// As for [`Graph::binary`].
    pub fn relu(&mut self, x: Id) -> Result<Id> {
        let dtype = self.takes("relu", Class::Numbers, x)?.dtype;
        let zero = self.constant(dtype, 0i64)?;
        self.binary(Binary::Max, x, zero)
    }

    /// `x / (1 + e^-x)`.
    ///
    /// # Errors
    /// As for [`Graph::unary`].
    pub fn silu(&mut self, x: Id) -> Result<Id> {
        let gate = self.unary(Unary::Sigmoid, x)?;
        self.binary(Binary::Mul, x, gate)
    }

    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    ///
    /// # Errors
    /// As for [`Graph::unary`].
    pub fn gelu(&mut self, x: Id) -> Result<Id> {
        let dtype = self.takes("gelu", Class::NotF64, x)?.dtype;
        let constant = |graph: &mut Self, value: f64| graph.constant(dtype, value);
        let root = constant(self, std::f64::consts::FRAC_1_SQRT_2)?;
        let scaled = self.binary(Binary::Mul, x, root)?;
        let erf = self.unary(Unary::Erf, scaled)?;
        let half = constant(self, 0.5)?;
        let gate = self.fma(erf, half, half)?;
        self.binary(Binary::Mul, x, gate)
    }

    /// The same elements in the same order in another shape.
    ///
    /// # Errors
    /// [`GraphError::Layout`] of another number of elements, or too many dimensions.
    pub fn reshape(&mut self, x: Id, shape: &[u64]) -> Result<Id> {
        let node = self.node(x)?;
        let error = |error| layout_error("reshape", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        layout.reshape(shape).map_err(error)?;
        let to = dims(shape)?;
        match to == node.shape {
            true => Ok(x),
            false => self.add(Op::Reshape(x), node.dtype, to),
        }
    }

    /// Its dimensions in another order: the first one will be `order[0]`.
    ///
    /// # Errors
    /// [`GraphError::Layout`] if that is no order of them.
    pub fn permute(&mut self, x: Id, order: &[usize]) -> Result<Id> {
        let node = self.node(x)?;
        let error = |error| layout_error("permute", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        let turned = layout.permute(order).map_err(error)?;
        let mut small = [0; MAX_RANK];
        for (to, from) in small.iter_mut().zip(order) {
            *to = *from as u8;
        }
        self.add(Op::Permute(x, small), node.dtype, dims(turned.shape())?)
    }

    /// As if it had the larger shape, dimensions meeting from the last on.
    ///
    /// # Errors
    /// [`GraphError::Layout`] if it cannot be stretched to it.
    pub fn broadcast(&mut self, x: Id, shape: &[u64]) -> Result<Id> {
        let node = self.node(x)?;
        let error = |error| layout_error("broadcast", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        layout.broadcast(shape).map_err(error)?;
        let to = dims(shape)?;
        match to == node.shape {
            true => Ok(x),
            false => self.add(Op::Broadcast(x), node.dtype, to),
        }
    }

    /// Every `step`th element of a range of a dimension.
    ///
    /// # Errors
    /// [`GraphError::Layout`] of a range that is not within it.
    pub fn slice(&mut self, x: Id, axis: usize, range: Range<u64>, step: u64) -> Result<Id> {
        let node = self.node(x)?;
        let error = |error| layout_error("slice", error);
        let layout = Layout::contiguous(node.dtype, &node.shape).map_err(error)?;
        let start = range.start;
        let (cut, _) = layout.slice(axis, range, step).map_err(error)?;
        let op = Op::Slice {
            of: x,
            axis: axis as u8,
            start,
            step,
        };
        self.add(op, node.dtype, dims(cut.shape())?)
    }
}

fn too_large(what: &'static str, limit: usize) -> GraphError {
    GraphError::TooLarge { what, limit }
}

fn layout_error(op: &str, error: LayoutError) -> GraphError {
    GraphError::Layout {
        op: op.to_owned(),
        error,
    }
}

fn dims(shape: &[u64]) -> Result<Dims> {
    let rank = shape.len();
    Dims::new(shape).ok_or_else(|| layout_error("a shape", LayoutError::Rank { rank }))
}

/// The shape that both can be broadcast to.
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

/// A line for each node: `%2 f16[8, 128] = mul %0 %1`.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Node { op, dtype, shape }) in self.nodes.iter().enumerate() {
            write!(f, "%{at} {dtype}{shape} = ")?;
            match op {
                Op::Input(n) => {
                    let Input { name, layout } = &self.inputs[*n as usize];
                    write!(f, "input {name}: {layout}")
                }
                Op::Constant(bits) => {
                    write!(f, "{}", crate::fold::show(op::computed(*dtype), *bits))
                }
                Op::Unary(op, x) => write!(f, "{op} {x}"),
                Op::Binary(op, a, b) => write!(f, "{op} {a} {b}"),
                Op::Fma(a, b, c) => write!(f, "fma {a} {b} {c}"),
                Op::Select(c, a, b) => write!(f, "select {c} {a} {b}"),
                Op::Cast(x) => write!(f, "cast {x}"),
                Op::Reduce(op, x, axes) => write!(f, "{op} {x} over {axes}"),
                Op::Softmax { of, axis, log } => {
                    let name = if *log { "log_softmax" } else { "softmax" };
                    write!(f, "{name} {of} over {axis}")
                }
                Op::Norm {
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
                Op::Reshape(x) => write!(f, "reshape {x}"),
                Op::Permute(x, order) => write!(f, "permute {x} {:?}", &order[..shape.len()]),
                Op::Broadcast(x) => write!(f, "broadcast {x}"),
                Op::Slice {
                    of,
                    axis,
                    start,
                    step,
                } => write!(f, "slice {of} axis {axis} from {start} by {step}"),
            }?;
            writeln!(f)?;
        }
        for Output { name, layout, node } in &self.outputs {
            writeln!(f, "output {name}: {layout} = {node}")?;
        }
        Ok(())
    }
}
