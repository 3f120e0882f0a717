//! Random expressions, against the reference.

use fercuda_jit::{Binary, ExprGraph, ExprNodeId, Reduction, Unary};
use fercuda_tensor::{Dtype, Layout, MAX_RANK};

use crate::bench::{Bench, elements, of, random};

fn pick<T: Copy>(random: &mut fastrand::Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

/// A random layout of a shape: contiguous, permuted, with gaps, reversed, or broadcast.
fn layout(random: &mut fastrand::Rng, dtype: Dtype, shape: &[u64]) -> Layout {
    match random.u32(..6) {
        0 => {
            let mut order: Vec<usize> = (0..shape.len()).collect();
            random.shuffle(&mut order);
            let mut turned = vec![0; shape.len()];
            for (to, from) in order.iter().enumerate() {
                turned[*from] = shape[to];
            }
            of(dtype, &turned).permute(&order).unwrap()
        }
        1 => {
            let wider: Vec<u64> = shape.iter().map(|len| len * 2 + 1).collect();
            let mut layout = of(dtype, &wider);
            for (axis, len) in shape.iter().enumerate() {
                let step = pick(random, &[1, 2]);
                let end = if *len == 0 { 0 } else { (len - 1) * step + 1 };
                layout = layout.slice(axis, 0..end, step).unwrap().0;
            }
            layout
        }
        2 => {
            let plain = of(dtype, shape);
            let strides: Vec<i64> = plain
                .strides()
                .iter()
                .map(|stride| if random.bool() { -stride } else { *stride })
                .collect();
            Layout::strided(dtype, shape, &strides).unwrap()
        }
        _ => of(dtype, shape),
    }
}

/// A random expression, with the layouts of its inputs.
pub(crate) fn expression(random: &mut fastrand::Rng) -> ExprGraph {
    let mut graph = ExprGraph::new();
    let mut nodes: Vec<ExprNodeId> = Vec::new();
    let base: Vec<u64> = (0..random.usize(1..4))
        .map(|_| pick(random, &[1, 2, 3, 4, 8, 17, 32]))
        .collect();
    let dtypes = [
        pick(random, &Dtype::ALL),
        pick(random, &[Dtype::F32, Dtype::F16, Dtype::I32]),
    ];
    for n in 0..random.usize(1..4) {
        // Some have extent 1 where others have more, or lack a dimension.
        let shape: Vec<u64> = base
            .iter()
            .map(|len| if random.u32(..4) == 0 { 1 } else { *len })
            .collect();
        let shape = &shape[if random.u32(..4) == 0 {
            random.usize(..shape.len())
        } else {
            0
        }..];
        let dtype = pick(random, &dtypes);
        let layout = layout(random, dtype, shape);
        nodes.push(graph.input(&format!("x{n}"), layout).unwrap());
    }
    for _ in 0..random.usize(1..14) {
        if let Some(node) = grow(random, &mut graph, &nodes, &dtypes) {
            nodes.push(node);
        }
    }
    for n in 0..random.usize(1..4) {
        // The last ones are the deepest.
        let back = random.usize(..nodes.len().min(4));
        let node = nodes[nodes.len() - 1 - back];
        let (dtype, shape) = (graph.dtype(node).unwrap(), graph.shape(node).unwrap());
        let layout = layout(random, dtype, &shape);
        let layout = if layout.may_overlap() {
            of(dtype, &shape)
        } else {
            layout
        };
        graph.output_as(&format!("y{n}"), node, layout).unwrap();
    }
    graph
}

/// Adds a random node; `None` if it is invalid.
fn grow(
    random: &mut fastrand::Rng,
    graph: &mut ExprGraph,
    nodes: &[ExprNodeId],
    dtypes: &[Dtype],
) -> Option<ExprNodeId> {
    let x = pick(random, nodes);
    let y = pick(random, nodes);
    let (dtype, shape) = (graph.dtype(x).unwrap(), graph.shape(x).unwrap());
    if shape.count() > 5000 {
        return None;
    }
    let axis = random.usize(..shape.len().max(1));
    let made = match random.u32(..20) {
        0..3 => graph.unary(pick(random, Unary::ALL), x),
        3..9 => {
            let y = match graph.dtype(y).unwrap() == dtype {
                true => y,
                false => graph.cast(y, dtype).ok()?,
            };
            graph.binary(pick(random, Binary::ALL), x, y)
        }
        9 => {
            let number = random.i64(-3..4);
            let constant = match dtype {
                Dtype::Bool => graph.constant(dtype, number > 0).ok()?,
                _ => graph.constant(dtype, number).ok()?,
            };
            graph.binary(pick(random, Binary::ALL), constant, x)
        }
        10 => graph.cast(
            x,
            pick(random, &[dtypes[0], dtypes[1], Dtype::Bool, Dtype::F32]),
        ),
        11 => {
            let condition = graph.cast(y, Dtype::Bool).ok()?;
            graph.select(condition, x, pick(random, nodes))
        }
        12..15 => {
            let axes: Vec<usize> = (0..shape.len()).filter(|_| random.bool()).collect();
            graph.reduce(pick(random, Reduction::ALL), x, &axes, random.bool())
        }
        15 => graph.softmax(x, axis),
        16 => graph.layer_norm(x, axis, None, None, 1e-3),
        17 => {
            let mut order: Vec<usize> = (0..shape.len()).collect();
            random.shuffle(&mut order);
            graph.permute(x, &order)
        }
        18 => {
            let mut parts = vec![shape.count()];
            if shape.count() % 2 == 0 && shape.count() > 0 {
                parts = vec![2, shape.count() / 2];
                random.shuffle(&mut parts);
            }
            graph.reshape(x, &parts)
        }
        _ if shape.is_empty() => graph.broadcast(x, &[3]),
        _ if random.bool() && shape.len() < MAX_RANK => {
            let mut wider = vec![pick(random, &[1, 2, 3])];
            wider.extend(shape.iter());
            graph.broadcast(x, &wider)
        }
        _ => {
            let end = random.u64(..=shape[axis]);
            let start = random.u64(..=end);
            graph.slice(x, axis, start..end, pick(random, &[1, 2]))
        }
    };
    made.ok()
}

#[test]
fn random_expressions_are_within_their_bounds() {
    let (bench, mut random) = (Bench::shared(), random());
    let cases = std::env::var("PROPTEST_CASES").map_or(150, |cases| cases.parse().unwrap());
    for _ in 0..cases {
        let seed = random.u64(..);
        println!("case {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let graph = expression(&mut random);
        let inputs: Vec<Vec<u64>> = graph
            .inputs()
            .map(|(_, layout)| elements(&mut random, layout.dtype(), layout.len()))
            .collect();
        bench.check(&graph, &inputs);
    }
}
