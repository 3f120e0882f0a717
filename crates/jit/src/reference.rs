//! Reference evaluation on the host, in f64 and i128, with an error bound for each value.
//!
//! It follows the graph node by node, and shares no code with the passes. Each value has a bound of
//! the device's error: the propagated bounds of its operands, and the operation's own rounding (`u`
//! is half of a unit in the last place of 1). An infinite bound means that nothing is known, as for
//! a comparison of values closer to each other than their bounds.
//!
//! Invariant: a bound is derived from sizes and from the errors that operations guarantee, never
//! from a device's results.

use fercuda_tensor::Dtype;

use crate::dims::{Axes, Dims};
use crate::graph::ExprGraph;
use crate::near::width;
use crate::node::{ExprNodeId, GraphNode, NodeOp};
use crate::op::{self, Binary, Reduction, Unary};

pub use crate::near::{ExactValue, Near, decode, encode};

/// The number of values that [`evaluate`] keeps, each of `size_of::<Near>()` bytes: the elements of
/// all nodes and outputs. `u64::MAX` if there are more.
pub fn value_count(graph: &ExprGraph) -> u64 {
    let nodes = graph.nodes.iter().map(|node| node.shape.count());
    let outputs = graph.outputs.iter().map(|output| output.layout.len());
    nodes.chain(outputs).fold(0, u64::saturating_add)
}

/// Evaluates the outputs, elements in the order of their indices; `inputs` are the bits of the
/// inputs' elements, in the same order.
pub fn evaluate(graph: &ExprGraph, inputs: &[Vec<u64>]) -> Vec<Vec<Near>> {
    let mut values: Vec<Vec<Near>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let new = Evaluating {
            graph,
            values: &values,
        }
        .node(node, inputs);
        values.push(new);
    }
    let outputs = graph.outputs.iter().map(|output| {
        let values = values[output.node.0 as usize].iter();
        let dtype = output.layout.dtype();
        values.map(|value| stored(dtype, *value)).collect()
    });
    outputs.collect()
}

struct Evaluating<'a> {
    graph: &'a ExprGraph,
    values: &'a [Vec<Near>],
}

/// Iterates over the indices of a shape's elements, in order.
fn every(shape: &Dims) -> impl Iterator<Item = Vec<u64>> {
    let shape = *shape;
    (0..shape.count()).map(move |mut at| {
        let mut index = vec![0; shape.len()];
        for (place, extent) in index.iter_mut().zip(shape.iter()).rev() {
            *place = at % extent;
            at /= extent;
        }
        index
    })
}

fn place(shape: &Dims, index: &[u64]) -> usize {
    let along = shape.iter().zip(index);
    along.fold(0, |at, (extent, index)| at * extent + index) as usize
}

impl Evaluating<'_> {
    fn of(&self, id: ExprNodeId) -> &[Near] {
        &self.values[id.0 as usize]
    }

    fn about(&self, id: ExprNodeId) -> &GraphNode {
        &self.graph.nodes[id.0 as usize]
    }

    fn node(&self, node: &GraphNode, inputs: &[Vec<u64>]) -> Vec<Near> {
        let GraphNode { op, dtype, shape } = *node;
        let each =
            |id: ExprNodeId, f: &dyn Fn(Near) -> Near| self.of(id).iter().map(|x| f(*x)).collect();
        match op {
            NodeOp::Input(n) => inputs[n as usize]
                .iter()
                .map(|bits| Near {
                    value: decode(dtype, *bits),
                    error: 0.0,
                })
                .collect(),
            NodeOp::Constant(bits) => vec![Near {
                value: decode(op::computed(dtype), bits),
                error: 0.0,
            }],
            NodeOp::Unary(op, x) => {
                let from = self.about(x).dtype;
                each(x, &|x| unary(op, from, x))
            }
            NodeOp::Binary(op, a, b) => {
                let from = self.about(a).dtype;
                let pairs = self.of(a).iter().zip(self.of(b));
                pairs.map(|(a, b)| binary(op, from, *a, *b)).collect()
            }
            NodeOp::Fma(a, b, c) => {
                let all = self.of(a).iter().zip(self.of(b)).zip(self.of(c));
                all.map(|((a, b), c)| fma(dtype, *a, *b, *c)).collect()
            }
            NodeOp::Select(c, a, b) => {
                let all = self.of(c).iter().zip(self.of(a)).zip(self.of(b));
                all.map(|((c, a), b)| match (c.error == 0.0, c.i() != 0) {
                    (false, _) => unknown(*a),
                    (true, true) => *a,
                    (true, false) => *b,
                })
                .collect()
            }
            NodeOp::Cast(x) => {
                let from = self.about(x).dtype;
                each(x, &|x| cast(from, dtype, x))
            }
            NodeOp::Reduce(op, x, axes) => {
                let GraphNode {
                    dtype: from,
                    shape: whole,
                    ..
                } = *self.about(x);
                let rows = rows(self.of(x), &whole, axes);
                rows.iter().map(|row| reduce(op, from, row)).collect()
            }
            NodeOp::Softmax { of, axis, log } => {
                let axes = Axes::default().with(axis.into());
                self.by_rows(of, axes, |row, _| softmax(dtype, row, log))
            }
            NodeOp::Norm {
                of,
                axis,
                centred,
                gamma,
                beta,
                eps,
            } => {
                let axes = Axes::default().with(axis.into());
                let eps = f64::from_bits(eps);
                let y = self.by_rows(of, axes, |row, _| norm(dtype, row, centred, eps));
                let along = y.into_iter().enumerate().map(|(at, y)| {
                    let [gamma, beta] = [gamma, beta].map(|id| id.map(|id| self.of(id)[at]));
                    match (gamma, beta) {
                        (Some(gamma), Some(beta)) => fma(dtype, y, gamma, beta),
                        (Some(gamma), None) => binary(Binary::Mul, dtype, y, gamma),
                        (None, Some(beta)) => binary(Binary::Add, dtype, y, beta),
                        (None, None) => y,
                    }
                });
                along.collect()
            }
            NodeOp::Reshape(x) => self.of(x).to_vec(),
            NodeOp::Permute(x, order) => {
                let from = self.about(x).shape;
                let turned = every(&shape).map(|index| {
                    let mut back = vec![0; index.len()];
                    for (to, from) in order[..index.len()].iter().enumerate() {
                        back[usize::from(*from)] = index[to];
                    }
                    self.of(x)[place(&from, &back)]
                });
                turned.collect()
            }
            NodeOp::Broadcast(x) => {
                let from = self.about(x).shape;
                let new = shape.len() - from.len();
                let spread = every(&shape).map(|index| {
                    let own = index[new..].iter().zip(from.iter());
                    let own: Vec<u64> = own.map(|(index, extent)| index % extent).collect();
                    self.of(x)[place(&from, &own)]
                });
                spread.collect()
            }
            NodeOp::Slice {
                of,
                axis,
                start,
                step,
            } => {
                let from = self.about(of).shape;
                let cut = every(&shape).map(|mut index| {
                    let along = &mut index[usize::from(axis)];
                    *along = start + *along * step;
                    self.of(of)[place(&from, &index)]
                });
                cut.collect()
            }
        }
    }

    /// Applies `f` to each row, and puts the results back in place.
    fn by_rows(
        &self,
        of: ExprNodeId,
        axes: Axes,
        f: impl Fn(&[Near], usize) -> Vec<Near>,
    ) -> Vec<Near> {
        let shape = self.about(of).shape;
        let rows: Vec<Vec<Near>> = rows(self.of(of), &shape, axes)
            .iter()
            .enumerate()
            .map(|(at, row)| f(row, at))
            .collect();
        let mut taken = vec![0; rows.len()];
        let kept = axes.kept(&shape);
        every(&shape)
            .map(|index| {
                let of_row: Vec<u64> = (0..index.len())
                    .filter(|axis| !axes.has(*axis))
                    .map(|axis| index[axis])
                    .collect();
                let row = place(&kept, &of_row);
                taken[row] += 1;
                rows[row][taken[row] - 1]
            })
            .collect()
    }
}

/// The elements reduced to one, for each element of the result.
fn rows(values: &[Near], shape: &Dims, axes: Axes) -> Vec<Vec<Near>> {
    let kept = axes.kept(shape);
    let mut rows = vec![Vec::new(); kept.count() as usize];
    for (index, value) in every(shape).zip(values) {
        let of_row: Vec<u64> = (0..index.len())
            .filter(|axis| !axes.has(*axis))
            .map(|axis| index[axis])
            .collect();
        rows[place(&kept, &of_row)].push(*value);
    }
    rows
}

/// Half a unit in the last place of 1, and the smallest number.
fn unit(dtype: Dtype) -> (f64, f64) {
    match op::computed(dtype) {
        Dtype::F64 => (f64::exp2(-53.0), f64::from_bits(1)),
        _ => (f64::exp2(-24.0), f64::exp2(-149.0)),
    }
}

fn unknown(like: Near) -> Near {
    Near {
        error: f64::INFINITY,
        ..like
    }
}

/// A result with its operands' errors and `units` roundings of half a unit. The reference's own
/// arithmetic is f64's, so it adds one.
fn result(dtype: Dtype, value: f64, from_operands: f64, units: f64) -> Near {
    let (u, least) = unit(dtype);
    if from_operands == 0.0 && units == 0.0 {
        return Near::float(value, 0.0);
    }
    if value.is_nan() {
        let error = if from_operands == 0.0 {
            0.0
        } else {
            f64::INFINITY
        };
        return Near::float(value, error);
    }
    let own = units * u + 2.0 * f64::exp2(-53.0);
    let error = from_operands + own * (value.abs() + from_operands) + least;
    let most = match op::computed(dtype) {
        Dtype::F64 => f64::MAX,
        _ => f32::MAX.into(),
    };
    if value.is_infinite() {
        let error = if from_operands == 0.0 {
            0.0
        } else {
            f64::INFINITY
        };
        return Near::float(value, error);
    }
    if value.abs() > most * 1.000_001 && value.abs() - error > most * 1.000_001 {
        return Near::float(f64::INFINITY.copysign(value), 0.0);
    }
    let error = if error.is_nan() || value.abs() + error > most {
        f64::INFINITY
    } else {
        error
    };
    Near::float(value, error)
}

/// Error of a monotone function within a bound.
fn spread(x: Near, f: impl Fn(f64) -> f64) -> f64 {
    if x.error == 0.0 || x.error == f64::INFINITY {
        return x.error;
    }
    let (low, mid, high) = (f(x.f() - x.error), f(x.f()), f(x.f() + x.error));
    let (up, down) = ((high - mid).abs(), (mid - low).abs());
    match up.is_nan() || down.is_nan() {
        true => f64::INFINITY,
        false => up.max(down),
    }
}

/// The error function, by the series of positive terms `e^(-x^2) 2 x / sqrt(pi) (1 + 2x^2/3 +
/// ...)`.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() > 6.0 {
        return 1f64.copysign(x);
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    for _ in 0..400 {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

fn unary(op: Unary, from: Dtype, x: Near) -> Near {
    if let ExactValue::Int(value) = x.value {
        if x.error != 0.0 {
            return unknown(x);
        }
        return Near::int(match op {
            Unary::Neg => wrap(from, -value),
            Unary::Abs => wrap(from, value.abs()),
            _ if from == Dtype::Bool => 1 - value,
            _ => wrap(from, !value),
        });
    }
    let v = x.f();
    let whole = |f: fn(f64) -> f64| result(from, f(v), spread(x, f), 0.0);
    let monotone = |f: fn(f64) -> f64, units: f64| result(from, f(v), spread(x, f), units);
    match op {
        Unary::Neg => Near::float(-v, x.error),
        Unary::Abs => Near::float(v.abs(), x.error),
        Unary::Recip if x.error > 0.0 && v.abs() <= x.error => unknown(x),
        Unary::Recip => monotone(|v| 1.0 / v, 2.0),
        Unary::Sqrt => monotone(f64::sqrt, 1.0),
        Unary::Rsqrt => monotone(|v| 1.0 / v.sqrt(), 4.0),
        Unary::Exp => monotone(f64::exp, 8.0),
        Unary::Ln => monotone(f64::ln, 6.0),
        Unary::Tanh => monotone(f64::tanh, 10.0),
        Unary::Sigmoid => {
            // Below -87 in f32 the error is that of an exponential that may be 0.
            let y = monotone(|v| 1.0 / (1.0 + (-v).exp()), 10.0);
            let least = match op::computed(from) {
                Dtype::F64 => 0.0,
                _ => f64::exp2(-125.0),
            };
            Near::float(y.f(), y.error + least)
        }
        Unary::Erf => monotone(erf, 8.0),
        Unary::Floor => whole(f64::floor),
        Unary::Ceil => whole(f64::ceil),
        Unary::Trunc => whole(f64::trunc),
        Unary::Round => whole(f64::round_ties_even),
        Unary::IsNan if x.error == f64::INFINITY => unknown(Near::int(0)),
        Unary::IsNan => Near::int(v.is_nan().into()),
        Unary::Not => x,
    }
}

/// Wraps an integer to its type's width.
fn wrap(dtype: Dtype, value: i128) -> i128 {
    match decode(dtype, value as u64) {
        ExactValue::Int(value) => value,
        ExactValue::Float(_) => value,
    }
}

fn binary(op: Binary, from: Dtype, a: Near, b: Near) -> Near {
    if !from.is_float() {
        return match a.error == 0.0 && b.error == 0.0 {
            true => integers(op, from, a.i(), b.i()),
            false => unknown(Near::int(0)),
        };
    }
    let (x, y) = (a.f(), b.f());
    let errors = a.error + b.error;
    let exact = errors == 0.0;
    let none = |error: f64| {
        if exact {
            0.0
        } else if error.is_nan() {
            f64::INFINITY
        } else {
            error
        }
    };
    let product = x.abs() * b.error + y.abs() * a.error + a.error * b.error;
    let compared = |holds: bool| match exact || (x - y).abs() > errors || x.is_nan() || y.is_nan() {
        true if errors.is_finite() => Near::int(holds.into()),
        _ => unknown(Near::int(0)),
    };
    match op {
        Binary::Add => result(from, x + y, none(errors), 1.0),
        Binary::Sub => result(from, x - y, none(errors), 1.0),
        Binary::Mul => result(from, x * y, none(product), 1.0),
        Binary::Div if b.error > 0.0 && y.abs() <= b.error => unknown(a),
        Binary::Div => {
            let error = (a.error + (x / y).abs() * b.error) / (y.abs() - b.error);
            result(from, x / y, none(error), 1.0)
        }
        Binary::Min | Binary::Max => {
            let error = if errors == 0.0 {
                0.0
            } else {
                a.error.max(b.error)
            };
            let value = match op {
                _ if x.is_nan() || y.is_nan() => f64::NAN,
                // Of two zeros -0 is the smaller.
                _ if x == 0.0 && y == 0.0 => {
                    let [x, y] = [x, y].map(f64::is_sign_negative);
                    let negative = if op == Binary::Min { x | y } else { x & y };
                    if negative { -0.0 } else { 0.0 }
                }
                Binary::Min => x.min(y),
                _ => x.max(y),
            };
            Near::float(value, error)
        }
        Binary::Eq => compared(x == y),
        Binary::Ne => compared(x != y),
        Binary::Lt => compared(x < y),
        Binary::Le => compared(x <= y),
        Binary::Gt => compared(x > y),
        Binary::Ge => compared(x >= y),
        // For integers only.
        Binary::Rem | Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => a,
    }
}

fn integers(op: Binary, dtype: Dtype, a: i128, b: i128) -> Near {
    let bits: i128 = width(dtype).into();
    let within = (0..bits).contains(&b);
    Near::int(match op {
        Binary::Eq => (a == b).into(),
        Binary::Ne => (a != b).into(),
        Binary::Lt => (a < b).into(),
        Binary::Le => (a <= b).into(),
        Binary::Gt => (a > b).into(),
        Binary::Ge => (a >= b).into(),
        Binary::Add => wrap(dtype, a + b),
        Binary::Sub => wrap(dtype, a - b),
        Binary::Mul => wrap(dtype, a.wrapping_mul(b)),
        Binary::Div if b == 0 => 0,
        Binary::Div => wrap(dtype, a / b),
        Binary::Rem if b == 0 => 0,
        Binary::Rem => wrap(dtype, a % b),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => wrap(dtype, a & b),
        Binary::Or => wrap(dtype, a | b),
        Binary::Xor => wrap(dtype, a ^ b),
        Binary::Shl if within => wrap(dtype, a << b),
        Binary::Shl => 0,
        Binary::Shr if within => wrap(dtype, a >> b),
        Binary::Shr => -i128::from(a < 0),
    })
}

fn fma(dtype: Dtype, a: Near, b: Near, c: Near) -> Near {
    if !dtype.is_float() {
        let product = binary(Binary::Mul, dtype, a, b);
        return binary(Binary::Add, dtype, product, c);
    }
    let (x, y) = (a.f(), b.f());
    let error = match a.error == 0.0 && b.error == 0.0 && c.error == 0.0 {
        true => 0.0,
        false => x.abs() * b.error + y.abs() * a.error + a.error * b.error + c.error,
    };
    let error = if error.is_nan() { f64::INFINITY } else { error };
    result(dtype, x.mul_add(y, c.f()), error, 1.0)
}

fn cast(from: Dtype, to: Dtype, x: Near) -> Near {
    let into = op::computed(to);
    let value = match (x.value, to.is_float()) {
        (ExactValue::Float(v), true) => {
            let narrower = op::computed(from) == Dtype::F64 && into == Dtype::F32;
            match narrower {
                true => rounded(Dtype::F32, Near::float(v, x.error)),
                false => x,
            }
        }
        (ExactValue::Int(v), true) if x.error == 0.0 => match into {
            Dtype::F64 => Near::float(v as f64, 0.0),
            _ => Near::float((v as f32).into(), 0.0),
        },
        (ExactValue::Int(_), true) => Near::float(0.0, f64::INFINITY),
        (ExactValue::Float(v), false) => {
            let whole = |v: f64| saturated(to, v);
            let far = match x.error == 0.0 {
                true => false,
                // Only zero is false.
                false if to == Dtype::Bool => v.abs() <= x.error,
                false => whole(v - x.error) != whole(v + x.error) || x.error == f64::INFINITY,
            };
            match far {
                true => unknown(Near::int(0)),
                false => Near::int(whole(v)),
            }
        }
        (ExactValue::Int(v), false) if to == Dtype::Bool => Near {
            value: ExactValue::Int((v != 0).into()),
            ..x
        },
        (ExactValue::Int(v), false) => Near {
            value: ExactValue::Int(wrap(to, v)),
            ..x
        },
    };
    match into == to {
        true => value,
        false => rounded(to, value),
    }
}

fn saturated(to: Dtype, v: f64) -> i128 {
    let bits = width(to);
    match to {
        Dtype::Bool => (v != 0.0).into(),
        _ if to.is_signed() => (v as i128).clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (v as i128).clamp(0, (1 << bits) - 1),
    }
}

fn rounded(to: Dtype, x: Near) -> Near {
    let value = to.nearest(x.f());
    let far = spread(x, |v| to.nearest(v));
    // Rounded once more where it is not exact: the end of the bound may round away.
    let error = match x.error == 0.0 {
        true => 0.0,
        false => far,
    };
    Near::float(value, error)
}

/// Rounds to the stored type.
fn stored(dtype: Dtype, x: Near) -> Near {
    match op::computed(dtype) == dtype {
        true => x,
        false => rounded(dtype, x),
    }
}

/// Depth of the additions in a sum of `n`: those of a thread, then of lanes or of a column's
/// threads.
fn depth(n: usize) -> f64 {
    (n.saturating_sub(1) as f64).min(n as f64 / 32.0 + 48.0)
}

fn sum(dtype: Dtype, row: &[Near]) -> Near {
    let total: f64 = row.iter().map(|x| x.f()).sum();
    let sizes: f64 = row.iter().map(|x| x.f().abs()).sum();
    let errors: f64 = row.iter().map(|x| x.error).sum();
    let (u, least) = unit(dtype);
    if total.is_nan() || total.is_infinite() {
        // If intermediate sums overflow, the result depends on the order.
        let is_given = row.iter().any(|x| !x.f().is_finite());
        let error = if errors == 0.0 && is_given {
            0.0
        } else {
            f64::INFINITY
        };
        return Near::float(total, error);
    }
    let most = match op::computed(dtype) {
        Dtype::F64 => f64::MAX,
        _ => f32::MAX.into(),
    };
    // The reference sums sequentially, in f64.
    let own = depth(row.len()) * u + row.len() as f64 * f64::exp2(-53.0);
    let error = errors + own * (sizes + errors) * (1.0 + own) + least;
    match sizes + error >= most || error.is_nan() {
        true => Near::float(total, f64::INFINITY),
        false => Near::float(total, error),
    }
}

fn reduce(op: Reduction, from: Dtype, row: &[Near]) -> Near {
    let float = from.is_float();
    let into = op.result(from);
    let exact = row.iter().all(|x| x.error == 0.0);
    match op {
        Reduction::Sum if float => sum(from, row),
        Reduction::Mean => {
            let total = sum(from, row);
            let share = 1.0 / row.len() as f64;
            let share = match op::computed(from) {
                Dtype::F64 => share,
                _ => (share as f32).into(),
            };
            binary(Binary::Mul, from, total, Near::float(share, 0.0))
        }
        Reduction::Prod if float => {
            let (u, least) = unit(from);
            let product: f64 = row.iter().map(|x| x.f()).product();
            let most: f64 = row.iter().map(|x| x.f().abs() + x.error).product();
            let size: f64 = row.iter().map(|x| x.f().abs().log2().abs()).sum();
            let roundings = row.len() as f64 * (u + f64::exp2(-53.0));
            let error = most * (1.0 + 2.0 * roundings) - product.abs() + least;
            let known = row.is_empty() || exact && row.len() == 1 || size < 110.0;
            // If intermediate results overflow, the result depends on the order.
            let any = |is: fn(f64) -> bool| row.iter().any(|x| is(x.f()));
            let is_given = any(f64::is_nan) || any(f64::is_infinite) && any(|x| x == 0.0);
            match is_given && exact {
                true => Near::float(f64::NAN, 0.0),
                false if known => Near::float(product, error),
                false => Near::float(product, f64::INFINITY),
            }
        }
        Reduction::Sum | Reduction::Prod => {
            if !exact {
                return unknown(Near::int(0));
            }
            let all = row.iter().map(|x| x.i());
            Near::int(match op {
                Reduction::Sum => all.fold(0, |sum, x| wrap(into, sum + x)),
                _ => all.fold(1, |product, x| wrap(into, product.wrapping_mul(x))),
            })
        }
        Reduction::Min | Reduction::Max => {
            let by = if op == Reduction::Min {
                Binary::Min
            } else {
                Binary::Max
            };
            let by_bits = match (from, by) {
                (Dtype::Bool, Binary::Min) => Binary::And,
                (Dtype::Bool, _) => Binary::Or,
                (_, by) => by,
            };
            let rest = row.iter().skip(1);
            rest.fold(row[0], |most, x| binary(by_bits, from, most, *x))
        }
        Reduction::ArgMin | Reduction::ArgMax => {
            let better = |a: &Near, b: &Near| {
                let (x, y) = (a.value, b.value);
                match (x, y) {
                    (ExactValue::Float(x), ExactValue::Float(y)) => {
                        let above = if op == Reduction::ArgMax {
                            y > x
                        } else {
                            y < x
                        };
                        above || y.is_nan() && !x.is_nan()
                    }
                    _ if op == Reduction::ArgMax => b.i() > a.i(),
                    _ => b.i() < a.i(),
                }
            };
            let mut best = 0;
            for (at, x) in row.iter().enumerate() {
                if better(&row[best], x) {
                    best = at;
                }
            }
            let near = |x: &Near| (x.f() - row[best].f()).abs() <= x.error + row[best].error;
            let others = row.iter().enumerate().filter(|(at, _)| *at != best);
            let sure =
                exact || !row[best].f().is_nan() && !others.into_iter().any(|(_, x)| near(x));
            match sure {
                true => Near::int(best as i128),
                false => unknown(Near::int(0)),
            }
        }
    }
}

fn softmax(dtype: Dtype, row: &[Near], log: bool) -> Vec<Near> {
    if row.is_empty() {
        return Vec::new();
    }
    let max = reduce(Reduction::Max, dtype, row);
    let shift = match max.f() == f64::NEG_INFINITY {
        true => Near::float(0.0, max.error),
        false => max,
    };
    let shifted: Vec<Near> = row
        .iter()
        .map(|x| binary(Binary::Sub, dtype, *x, shift))
        .collect();
    let powers: Vec<Near> = shifted
        .iter()
        .map(|x| unary(Unary::Exp, dtype, *x))
        .collect();
    let total = sum(dtype, &powers);
    match log {
        true => {
            let log = unary(Unary::Ln, dtype, total);
            let all = shifted.iter();
            all.map(|x| binary(Binary::Sub, dtype, *x, log)).collect()
        }
        false => {
            let inverse = unary(Unary::Recip, dtype, total);
            let all = powers.iter();
            all.map(|x| binary(Binary::Mul, dtype, *x, inverse))
                .collect()
        }
    }
}

fn norm(dtype: Dtype, row: &[Near], centred: bool, eps: f64) -> Vec<Near> {
    let mut from_mean = row.to_vec();
    if centred {
        let mean = reduce(Reduction::Mean, dtype, row);
        for x in &mut from_mean {
            *x = binary(Binary::Sub, dtype, *x, mean);
        }
    }
    let squares: Vec<Near> = from_mean
        .iter()
        .map(|x| binary(Binary::Mul, dtype, *x, *x))
        .collect();
    let variance = reduce(Reduction::Mean, dtype, &squares);
    let eps = match op::computed(dtype) {
        Dtype::F64 => eps,
        _ => (eps as f32).into(),
    };
    let variance = binary(Binary::Add, dtype, variance, Near::float(eps, 0.0));
    let inverse = unary(Unary::Rsqrt, dtype, variance);
    let all = from_mean.iter();
    all.map(|x| binary(Binary::Mul, dtype, *x, inverse))
        .collect()
}
