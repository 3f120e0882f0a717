//! Canonical form of an expression.
//!
//! Softmax, norms and means are lowered to reductions and element operations. Views are pushed down
//! to what they are views of: a [`Load`](Expr::Load) has strides, and nothing above it has. So
//! there are arrays (inputs, reductions, and copies where a view requires one) and, between them,
//! expressions of their elements. Equal expressions are one (common subexpression elimination),
//! operands of commutative operations are sorted, constants are folded where the device would
//! compute the same bits, and dead code is removed.
//!
//! Invariant: an expression refers to earlier ones only, an array to expressions of earlier arrays.
//! The printed form determines the code completely; the key is its hash.
//!
//! Elsewhere: which arrays are computed by one kernel (`fused`).

use std::collections::HashMap;
use std::fmt;

use fercuda_tensor::{Dtype, Layout, LayoutError};

use crate::dims::{Axes, Dims};
use crate::expr::{
    ArrayOrigin, CanonicalArray, CanonicalOutput, Expr, ExprEntry, ExprId, LoadSource, Prim,
    StructuralHash, arity,
};
use crate::fold;
use crate::graph::ExprGraph;
use crate::key::CodeKey;
use crate::node::{ExprNodeId, NodeOp};
use crate::op::{self, Binary, Reduction, Unary};

/// Changes whenever the meaning of the printed form below changes.
const VERSION: u32 = 1;

type Result<T> = std::result::Result<T, LayoutError>;

/// A canonical form. See the module.
#[derive(Clone, Debug)]
pub struct Canonical {
    pub(crate) inputs: Vec<Layout>,
    pub(crate) exprs: Vec<ExprEntry>,
    pub(crate) arrays: Vec<CanonicalArray>,
    pub(crate) outputs: Vec<CanonicalOutput>,
}

impl Canonical {
    /// Computes the canonical form of a graph.
    ///
    /// # Errors
    /// [`LayoutError`] if an intermediate shape is larger than any memory.
    pub fn of(graph: &ExprGraph) -> Result<Self> {
        let mut making = CanonicalBuilder::default();
        let mut made = Vec::with_capacity(graph.nodes.len());
        let live = live(graph);
        for (at, live) in live.into_iter().enumerate() {
            made.push(match live {
                true => making.node(graph, at, &made)?,
                false => ExprId::MAX,
            });
        }
        let mut outputs = Vec::new();
        for output in &graph.outputs {
            let (node, layout) = pulled(graph, output.node, output.layout);
            let mut of = made[node.0 as usize];
            // The store rounds anyway.
            while let Expr::Apply(Prim::Round(to), [x, ..]) = making.exprs[of as usize].expr
                && to == layout.dtype()
            {
                of = x;
            }
            outputs.push(CanonicalOutput { layout, of });
        }
        let inputs = graph.inputs.iter().map(|input| input.layout).collect();
        Ok(making.compact(inputs, outputs))
    }

    /// Hash of the printed form.
    pub fn key(&self) -> CodeKey {
        CodeKey::of(&self.to_string())
    }

    pub(crate) fn entry(&self, id: ExprId) -> &ExprEntry {
        &self.exprs[id as usize]
    }

    /// The expressions that `roots` depend on, including themselves, in order.
    pub(crate) fn reached(&self, roots: &[ExprId]) -> Vec<ExprId> {
        reached(&self.exprs, roots)
    }
}

fn reached(exprs: &[ExprEntry], roots: &[ExprId]) -> Vec<ExprId> {
    let Some(last) = roots.iter().max() else {
        return Vec::new();
    };
    let mut is = vec![false; *last as usize + 1];
    for root in roots {
        is[*root as usize] = true;
    }
    for at in (0..is.len()).rev() {
        if is[at] {
            exprs[at]
                .args()
                .iter()
                .for_each(|arg| is[*arg as usize] = true);
        }
    }
    (0..=*last).filter(|at| is[*at as usize]).collect()
}

/// The nodes that the outputs depend on.
fn live(graph: &ExprGraph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for output in &graph.outputs {
        live[pulled(graph, output.node, output.layout).0.0 as usize] = true;
    }
    for at in (0..graph.nodes.len()).rev() {
        if live[at] {
            each_operand(graph.nodes[at].op, |id| live[id.0 as usize] = true);
        }
    }
    live
}

fn each_operand(op: NodeOp, mut f: impl FnMut(ExprNodeId)) {
    match op {
        NodeOp::Input(_) | NodeOp::Constant(_) => {}
        NodeOp::Unary(_, x)
        | NodeOp::Cast(x)
        | NodeOp::Reduce(_, x, _)
        | NodeOp::Reshape(x)
        | NodeOp::Permute(x, _)
        | NodeOp::Broadcast(x) => f(x),
        NodeOp::Softmax { of, .. } | NodeOp::Slice { of, .. } => f(of),
        NodeOp::Binary(_, a, b) => [a, b].into_iter().for_each(f),
        NodeOp::Fma(a, b, c) | NodeOp::Select(a, b, c) => [a, b, c].into_iter().for_each(f),
        NodeOp::Norm {
            of, gamma, beta, ..
        } => [Some(of), gamma, beta].into_iter().flatten().for_each(f),
    }
}

/// Pulls a stored view into the output's layout: the node is stored through the inverse view.
fn pulled(graph: &ExprGraph, mut node: ExprNodeId, mut layout: Layout) -> (ExprNodeId, Layout) {
    loop {
        let (below, viewed) = match graph.nodes[node.0 as usize].op {
            NodeOp::Reshape(x) => (x, layout.reshape(&graph.nodes[x.0 as usize].shape)),
            NodeOp::Permute(x, order) => {
                let rank = layout.shape().len();
                let mut back = vec![0; rank];
                for (to, from) in order[..rank].iter().enumerate() {
                    back[usize::from(*from)] = to;
                }
                (x, layout.permute(&back))
            }
            _ => return (node, layout),
        };
        match viewed {
            Ok(viewed) => (node, layout) = (below, viewed),
            Err(_) => return (node, layout),
        }
    }
}

/// Builder of a canonical form.
#[derive(Default)]
struct CanonicalBuilder {
    exprs: Vec<ExprEntry>,
    ids: HashMap<(Expr, Dtype), ExprId>,
    arrays: Vec<CanonicalArray>,
    array_hashes: Vec<StructuralHash>,
    array_ids: HashMap<CanonicalArray, u32>,
}

impl CanonicalBuilder {
    fn node(&mut self, graph: &ExprGraph, at: usize, made: &[ExprId]) -> Result<ExprId> {
        let node = graph.nodes[at];
        let of = |id: ExprNodeId| made[id.0 as usize];
        let shape_of = |id: ExprNodeId| graph.nodes[id.0 as usize].shape;
        let dtype = op::computed(node.dtype);
        Ok(match node.op {
            NodeOp::Input(n) => {
                let layout = graph.inputs[n as usize].layout;
                let source = LoadSource::Input(n);
                self.load(source, layout, 0)
            }
            NodeOp::Constant(bits) => self.constant(dtype, bits),
            NodeOp::Unary(op, x) => self.apply(Prim::Unary(op), &[of(x)]),
            NodeOp::Binary(op, a, b) => self.apply(Prim::Binary(op), &[of(a), of(b)]),
            NodeOp::Fma(a, b, c) => self.apply(Prim::Fma, &[of(a), of(b), of(c)]),
            NodeOp::Select(c, a, b) => self.apply(Prim::Select, &[of(c), of(a), of(b)]),
            NodeOp::Cast(x) => {
                let x = self.apply(Prim::Convert(dtype), &[of(x)]);
                match node.dtype == dtype {
                    true => x,
                    false => self.apply(Prim::Round(node.dtype), &[x]),
                }
            }
            NodeOp::Reduce(op, x, axes) => self.reduce(op, of(x), shape_of(x), axes)?,
            NodeOp::Softmax { of: x, axis, log } => {
                let axes = Axes::default().with(axis.into());
                self.softmax(of(x), node.shape, axes, log)?
            }
            NodeOp::Norm {
                of: x,
                axis,
                centred,
                gamma,
                beta,
                eps,
            } => {
                let axes = Axes::default().with(axis.into());
                let eps = f64::from_bits(eps);
                let [gamma, beta] = [gamma, beta].map(|vector| vector.map(of));
                self.norm(of(x), node.shape, axes, centred, [gamma, beta], eps)?
            }
            NodeOp::Reshape(x) => self.viewed(of(x), &|layout| {
                layout.reshape(&node.shape).map(|layout| (layout, 0))
            })?,
            NodeOp::Permute(x, order) => {
                let order: Vec<usize> = order.map(usize::from).into();
                self.viewed(of(x), &|layout| {
                    let order = &order[..node.shape.len()];
                    layout.permute(order).map(|layout| (layout, 0))
                })?
            }
            NodeOp::Broadcast(x) => self.viewed(of(x), &|layout| {
                layout.broadcast(&node.shape).map(|layout| (layout, 0))
            })?,
            NodeOp::Slice {
                of: x,
                axis,
                start,
                step,
            } => {
                let axis = usize::from(axis);
                // The last element of the range, so that its length is the requested one.
                let end = match node.shape[axis] {
                    0 => start,
                    len => start + (len - 1) * step + 1,
                };
                self.viewed(of(x), &|layout| layout.slice(axis, start..end, step))?
            }
        })
    }

    fn add(&mut self, expr: Expr, dtype: Dtype, shape: Option<Dims>) -> ExprId {
        if let Some(known) = self.ids.get(&(expr, dtype)) {
            return *known;
        }
        let hash = self.hash(expr, dtype);
        let id = self.exprs.len() as ExprId;
        self.exprs.push(ExprEntry {
            expr,
            dtype,
            shape,
            hash,
        });
        self.ids.insert((expr, dtype), id);
        id
    }

    fn hash(&self, expr: Expr, dtype: Dtype) -> StructuralHash {
        let kind = u64::from(dtype as u8);
        match expr {
            Expr::Const(bits) => StructuralHash::of(&[kind, 1, bits], &[], [].into_iter()),
            Expr::Load {
                source,
                layout,
                offset,
            } => {
                let mut rest = vec![offset.cast_unsigned()];
                rest.extend(layout.shape());
                rest.extend(layout.strides().iter().map(|stride| stride.cast_unsigned()));
                let array = match source {
                    LoadSource::Input(_) => None,
                    LoadSource::Array(n) => Some(self.array_hashes[n as usize]),
                };
                let form = match source {
                    LoadSource::Input(n) => [kind, 2, n.into()],
                    LoadSource::Array(_) => [kind, 3, 0],
                };
                StructuralHash::of(&form, &rest, array.into_iter())
            }
            Expr::Apply(op, args) => {
                let mut form = vec![kind, 4];
                form.extend(op.to_string().bytes().map(u64::from));
                let args = args.iter().take(arity(op));
                StructuralHash::of(&form, &[], args.map(|arg| self.exprs[*arg as usize].hash))
            }
        }
    }

    fn constant(&mut self, dtype: Dtype, bits: u64) -> ExprId {
        self.add(Expr::Const(bits), dtype, None)
    }

    /// A float constant of the computation type.
    fn float(&mut self, dtype: Dtype, value: f64) -> ExprId {
        let bits = match dtype {
            Dtype::F64 => value.to_bits(),
            _ => (value as f32).to_bits().into(),
        };
        self.constant(dtype, bits)
    }

    fn load(&mut self, source: LoadSource, layout: Layout, offset: i64) -> ExprId {
        let shape = Dims::new(layout.shape());
        let load = Expr::Load {
            source,
            layout,
            offset,
        };
        self.add(load, op::computed(layout.dtype()), shape)
    }

    fn constant_bits(&self, id: ExprId) -> Option<u64> {
        match self.exprs[id as usize].expr {
            Expr::Const(bits) => Some(bits),
            _ => None,
        }
    }

    /// Adds an operation on elements, or a simpler equivalent.
    fn apply(&mut self, op: Prim, args: &[ExprId]) -> ExprId {
        let from = self.exprs[args[args.len() - 1] as usize].dtype;
        let consts: Option<Vec<u64>> = args.iter().map(|arg| self.constant_bits(*arg)).collect();
        let dtype = match op {
            Prim::Convert(to) => to,
            Prim::Unary(Unary::IsNan) => Dtype::Bool,
            Prim::Binary(op) if op.compares() => Dtype::Bool,
            _ => from,
        };
        let folded = consts.and_then(|bits| match op {
            Prim::Unary(op) => fold::unary(op, from, bits[0]),
            Prim::Binary(op) => fold::binary(op, from, bits[0], bits[1]),
            Prim::Fma => fold::fma(from, [bits[0], bits[1], bits[2]]),
            Prim::Convert(to) => fold::convert(from, to, bits[0]),
            Prim::Select | Prim::Round(_) => None,
        });
        if let Some(bits) = folded {
            return self.constant(dtype, bits);
        }
        if let Some(same) = self.same(op, from, args) {
            return same;
        }
        let mut all = [0; 3];
        all[..args.len()].copy_from_slice(args);
        let mut op = op;
        if let Prim::Binary(binary) = op {
            // One direction for each comparison, and a fixed order for commutative operands.
            let turned = match binary {
                Binary::Gt => Some(Binary::Lt),
                Binary::Ge => Some(Binary::Le),
                _ => None,
            };
            let [a, b] = [all[0], all[1]].map(|id| self.exprs[id as usize].hash);
            if let Some(turned) = turned {
                op = Prim::Binary(turned);
                all.swap(0, 1);
            } else if binary.commutes() && (a, all[0]) > (b, all[1]) {
                all.swap(0, 1);
            }
        }
        let shape = args.iter().find_map(|arg| self.exprs[*arg as usize].shape);
        self.add(Expr::Apply(op, all), dtype, shape)
    }

    /// The operand that an operation leaves unchanged, if any.
    fn same(&self, op: Prim, dtype: Dtype, args: &[ExprId]) -> Option<ExprId> {
        let inner = |id: ExprId| match self.exprs[id as usize].expr {
            Expr::Apply(op, args) => Some((op, args[0])),
            _ => None,
        };
        let right = args.get(1).and_then(|arg| self.constant_bits(*arg));
        let left = self.constant_bits(args[0]);
        let is = |bits: Option<u64>, test: fn(Dtype, u64) -> bool| {
            bits.is_some_and(|bits| test(dtype, bits))
        };
        match op {
            Prim::Convert(to) if to == dtype => Some(args[0]),
            Prim::Round(to) => match self.exprs[args[0] as usize].expr {
                Expr::Load { layout, .. } if layout.dtype() == to => Some(args[0]),
                Expr::Apply(Prim::Round(first), _) if first == to => Some(args[0]),
                _ => None,
            },
            Prim::Unary(op @ (Unary::Neg | Unary::Not)) => match inner(args[0]) {
                Some((Prim::Unary(first), x)) if first == op => Some(x),
                _ => None,
            },
            Prim::Binary(Binary::Add) if is(right, fold::adds_nothing) => Some(args[0]),
            Prim::Binary(Binary::Add) if is(left, fold::adds_nothing) => Some(args[1]),
            // For floats too, as x - 0 has the sign of x.
            Prim::Binary(Binary::Sub) if right == Some(0) => Some(args[0]),
            Prim::Binary(Binary::Mul | Binary::Div) if is(right, fold::is_one) => Some(args[0]),
            Prim::Binary(Binary::Mul) if is(left, fold::is_one) => Some(args[1]),
            Prim::Select if args[1] == args[2] => Some(args[1]),
            Prim::Select => left.map(|bits| if bits != 0 { args[1] } else { args[2] }),
            _ => None,
        }
    }

    fn unary(&mut self, op: Unary, x: ExprId) -> ExprId {
        self.apply(Prim::Unary(op), &[x])
    }

    fn binary(&mut self, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        self.apply(Prim::Binary(op), &[a, b])
    }

    /// Rewrites an expression as seen through a view of all its loads.
    fn viewed(
        &mut self,
        id: ExprId,
        view: &dyn Fn(&Layout) -> Result<(Layout, i64)>,
    ) -> Result<ExprId> {
        let mut seen: HashMap<ExprId, ExprId> = HashMap::new();
        for old in reached(&self.exprs, &[id]) {
            let entry = self.exprs[old as usize];
            let new = match entry.expr {
                Expr::Const(_) => old,
                Expr::Load {
                    source,
                    layout,
                    offset,
                } => match view(&layout) {
                    Ok((viewed, bytes)) => {
                        let elements = bytes / layout.dtype().bytes() as i64;
                        self.load(source, viewed, offset + elements)
                    }
                    // A contiguous array has every view.
                    Err(_) => {
                        let (source, layout) = self.copy(old)?;
                        let (viewed, bytes) = view(&layout)?;
                        self.load(source, viewed, bytes / layout.dtype().bytes() as i64)
                    }
                },
                Expr::Apply(op, args) => {
                    let args = args.map(|arg| seen.get(&arg).copied().unwrap_or(arg));
                    self.apply(op, &args[..arity(op)])
                }
            };
            seen.insert(old, new);
        }
        Ok(seen[&id])
    }

    fn copy(&mut self, of: ExprId) -> Result<(LoadSource, Layout)> {
        let ExprEntry { dtype, shape, .. } = self.exprs[of as usize];
        let shape = shape.unwrap_or_default();
        let array = CanonicalArray {
            made: ArrayOrigin::Copied,
            of,
            from: shape,
            shape,
            dtype,
        };
        Ok((
            LoadSource::Array(self.array(array)),
            Layout::contiguous(dtype, &shape)?,
        ))
    }

    fn array(&mut self, array: CanonicalArray) -> u32 {
        if let Some(known) = self.array_ids.get(&array) {
            return *known;
        }
        let made: Vec<u64> = format!("{:?}", array.made).bytes().map(u64::from).collect();
        let below = [self.exprs[array.of as usize].hash].into_iter();
        let hash = StructuralHash::of(&made, &array.from, below);
        let id = self.arrays.len() as u32;
        self.arrays.push(array);
        self.array_hashes.push(hash);
        self.array_ids.insert(array, id);
        id
    }

    /// A reduction with a result of its operand's type.
    fn reduced(&mut self, op: Reduction, of: ExprId, from: Dims, axes: Axes) -> Result<ExprId> {
        let dtype = match op {
            Reduction::ArgMin | Reduction::ArgMax => Dtype::I64,
            _ => self.exprs[of as usize].dtype,
        };
        let shape = axes.kept(&from);
        match (axes.reduced(&from), op) {
            (0, Reduction::Prod) => return self.one(dtype),
            (0, _) => return Ok(self.constant(dtype, 0)),
            (1, Reduction::ArgMin | Reduction::ArgMax) => return Ok(self.constant(dtype, 0)),
            (1, _) => {
                return self.viewed(of, &|layout| {
                    layout.reshape(&shape).map(|layout| (layout, 0))
                });
            }
            _ => {}
        }
        let array = CanonicalArray {
            made: ArrayOrigin::Reduced(op, axes),
            of,
            from,
            shape,
            dtype,
        };
        let source = LoadSource::Array(self.array(array));
        Ok(self.load(source, Layout::contiguous(dtype, &shape)?, 0))
    }

    fn one(&mut self, dtype: Dtype) -> Result<ExprId> {
        Ok(match dtype.is_float() {
            true => self.float(dtype, 1.0),
            false => self.constant(dtype, 1),
        })
    }

    fn reduce(&mut self, op: Reduction, of: ExprId, from: Dims, axes: Axes) -> Result<ExprId> {
        let dtype = self.exprs[of as usize].dtype;
        match op {
            Reduction::Mean => {
                let sum = self.reduced(Reduction::Sum, of, from, axes)?;
                // A division costs the driver's compiler more than everything else here.
                let share = 1.0 / axes.reduced(&from) as f64;
                let share = self.float(dtype, share);
                Ok(self.binary(Binary::Mul, sum, share))
            }
            Reduction::Sum | Reduction::Prod => {
                let of = self.apply(Prim::Convert(op.result(dtype)), &[of]);
                self.reduced(op, of, from, axes)
            }
            Reduction::Min | Reduction::Max if dtype == Dtype::Bool => {
                let of = self.apply(Prim::Convert(Dtype::U8), &[of]);
                let reduced = self.reduced(op, of, from, axes)?;
                Ok(self.apply(Prim::Convert(Dtype::Bool), &[reduced]))
            }
            _ => self.reduced(op, of, from, axes),
        }
    }

    /// Broadcasts a reduced value back to the elements it was computed from.
    fn spread(&mut self, reduced: ExprId, to: Dims, axes: Axes) -> Result<ExprId> {
        let ones = axes.iter().fold(to, |shape, axis| shape.with(axis, 1));
        self.viewed(reduced, &|layout| {
            let layout = layout.reshape(&ones)?.broadcast(&to)?;
            Ok((layout, 0))
        })
    }

    fn softmax(&mut self, x: ExprId, shape: Dims, axes: Axes, log: bool) -> Result<ExprId> {
        let dtype = self.exprs[x as usize].dtype;
        if shape.count() == 0 {
            return Ok(self.constant(dtype, 0));
        }
        let max = self.reduced(Reduction::Max, x, shape, axes)?;
        let max = self.spread(max, shape, axes)?;
        // -inf - -inf would be NaN.
        let least = self.float(dtype, f64::NEG_INFINITY);
        let zero = self.float(dtype, 0.0);
        let none = self.binary(Binary::Eq, max, least);
        let shift = self.apply(Prim::Select, &[none, zero, max]);
        let shifted = self.binary(Binary::Sub, x, shift);
        let power = self.unary(Unary::Exp, shifted);
        let sum = self.reduced(Reduction::Sum, power, shape, axes)?;
        let sum = self.spread(sum, shape, axes)?;
        Ok(match log {
            true => {
                let log = self.unary(Unary::Ln, sum);
                self.binary(Binary::Sub, shifted, log)
            }
            false => {
                let inverse = self.unary(Unary::Recip, sum);
                self.binary(Binary::Mul, power, inverse)
            }
        })
    }

    fn norm(
        &mut self,
        x: ExprId,
        shape: Dims,
        axes: Axes,
        centred: bool,
        [gamma, beta]: [Option<ExprId>; 2],
        eps: f64,
    ) -> Result<ExprId> {
        let dtype = self.exprs[x as usize].dtype;
        if shape.count() == 0 {
            return Ok(self.constant(dtype, 0));
        }
        let mut from_mean = x;
        if centred {
            let mean = self.reduce(Reduction::Mean, x, shape, axes)?;
            let mean = self.spread(mean, shape, axes)?;
            from_mean = self.binary(Binary::Sub, x, mean);
        }
        let square = self.binary(Binary::Mul, from_mean, from_mean);
        let variance = self.reduce(Reduction::Mean, square, shape, axes)?;
        let variance = self.spread(variance, shape, axes)?;
        let eps = self.float(dtype, eps);
        let variance = self.binary(Binary::Add, variance, eps);
        let inverse = self.unary(Unary::Rsqrt, variance);
        let y = self.binary(Binary::Mul, from_mean, inverse);
        Ok(match (gamma, beta) {
            (None, None) => y,
            (Some(gamma), None) => self.binary(Binary::Mul, y, gamma),
            (None, Some(beta)) => self.binary(Binary::Add, y, beta),
            (Some(gamma), Some(beta)) => self.apply(Prim::Fma, &[y, gamma, beta]),
        })
    }

    /// Keeps what the outputs depend on, in the order of a traversal from them.
    fn compact(&self, inputs: Vec<Layout>, outputs: Vec<CanonicalOutput>) -> Canonical {
        let mut exprs: HashMap<ExprId, ExprId> = HashMap::new();
        let mut arrays: HashMap<u32, u32> = HashMap::new();
        let mut new = Canonical {
            inputs,
            exprs: Vec::new(),
            arrays: Vec::new(),
            outputs,
        };
        for at in 0..new.outputs.len() {
            let mut stack = vec![new.outputs[at].of];
            while let Some(id) = stack.pop() {
                if exprs.contains_key(&id) {
                    continue;
                }
                let mut entry = self.exprs[id as usize];
                let mut wanted: Vec<ExprId> = entry.args().to_vec();
                if let Expr::Load {
                    source: LoadSource::Array(n),
                    ..
                } = entry.expr
                {
                    wanted.push(self.arrays[n as usize].of);
                }
                wanted.retain(|id| !exprs.contains_key(id));
                if !wanted.is_empty() {
                    stack.push(id);
                    stack.extend(wanted.into_iter().rev());
                    continue;
                }
                match &mut entry.expr {
                    Expr::Apply(op, args) => {
                        for arg in &mut args[..arity(*op)] {
                            *arg = exprs[arg];
                        }
                    }
                    Expr::Load {
                        source: LoadSource::Array(n),
                        ..
                    } => {
                        let old = self.arrays[*n as usize];
                        *n = *arrays.entry(*n).or_insert_with(|| {
                            let of = exprs[&old.of];
                            new.arrays.push(CanonicalArray { of, ..old });
                            new.arrays.len() as u32 - 1
                        });
                    }
                    _ => {}
                }
                exprs.insert(id, new.exprs.len() as ExprId);
                new.exprs.push(entry);
            }
            new.outputs[at].of = exprs[&new.outputs[at].of];
        }
        new
    }
}

impl fmt::Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "canonical {VERSION}")?;
        for (at, layout) in self.inputs.iter().enumerate() {
            writeln!(f, "input {at}: {layout}")?;
        }
        for (at, entry) in self.exprs.iter().enumerate() {
            write!(f, "e{at} {}", entry.dtype)?;
            if let Some(shape) = entry.shape {
                write!(f, "{shape}")?;
            }
            match entry.expr {
                Expr::Const(bits) => write!(f, " = {}", fold::show(entry.dtype, bits))?,
                Expr::Load {
                    source,
                    layout,
                    offset,
                } => {
                    write!(f, " = {source} by {:?}", layout.strides())?;
                    if offset != 0 {
                        write!(f, " from {offset}")?;
                    }
                }
                Expr::Apply(op, _) => {
                    write!(f, " = {op}")?;
                    for arg in entry.args() {
                        write!(f, " e{arg}")?;
                    }
                }
            }
            writeln!(f)?;
        }
        for (at, array) in self.arrays.iter().enumerate() {
            let CanonicalArray {
                of,
                from,
                shape,
                dtype,
                ..
            } = array;
            match array.made {
                ArrayOrigin::Reduced(op, axes) => {
                    writeln!(f, "a{at} {dtype}{shape} = {op} e{of} {from} over {axes}")?;
                }
                ArrayOrigin::Partial(op, axes, part) => writeln!(
                    f,
                    "a{at} {dtype}{shape} = {op} e{of} {from} over {axes} in parts of {part}"
                )?,
                ArrayOrigin::Copied => writeln!(f, "a{at} {dtype}{shape} = copy e{of}")?,
            }
        }
        for (at, out) in self.outputs.iter().enumerate() {
            let layout = out.layout;
            writeln!(
                f,
                "output {at}: {layout} by {:?} = e{}",
                layout.strides(),
                out.of
            )?;
        }
        Ok(())
    }
}
