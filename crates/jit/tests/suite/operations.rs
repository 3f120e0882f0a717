//! Every operation on every type that accepts it.

use fercuda_jit::{Binary, ExprGraph, Unary};
use fercuda_tensor::Dtype;

use crate::bench::{Bench, between, elements, of, random};

/// Odd, so that there is a remainder.
const COUNT: u64 = 77;

#[test]
fn every_operation_on_one_operand_is_within_its_bound() {
    let (bench, mut random) = (Bench::shared(), random());
    for dtype in Dtype::ALL {
        let mut graph = ExprGraph::new();
        let x = graph.input("x", of(dtype, &[COUNT])).unwrap();
        for op in Unary::ALL.iter().filter(|op| op.class().has(dtype)) {
            let y = graph.unary(*op, x).unwrap();
            graph.output(op.name(), y).unwrap();
        }
        if graph.outputs().len() > 0 {
            bench.check(&graph, &[elements(&mut random, dtype, COUNT)]);
        }
    }
}

#[test]
fn every_operation_on_two_operands_is_within_its_bound() {
    let (bench, mut random) = (Bench::shared(), random());
    for dtype in Dtype::ALL {
        let mut graph = ExprGraph::new();
        let a = graph.input("a", of(dtype, &[COUNT])).unwrap();
        let b = graph.input("b", of(dtype, &[COUNT])).unwrap();
        for op in Binary::ALL.iter().filter(|op| op.class().has(dtype)) {
            let y = graph.binary(*op, a, b).unwrap();
            graph.output(op.name(), y).unwrap();
        }
        let mut inputs = [
            elements(&mut random, dtype, COUNT),
            elements(&mut random, dtype, COUNT),
        ];
        // Some that are equal.
        for at in (0..COUNT as usize).step_by(7) {
            inputs[1][at] = inputs[0][at];
        }
        bench.check(&graph, &inputs);
    }
}

#[test]
fn operations_on_three_operands_are_within_their_bound() {
    let (bench, mut random) = (Bench::shared(), random());
    for dtype in Dtype::ALL {
        let mut graph = ExprGraph::new();
        let a = graph.input("a", of(dtype, &[COUNT])).unwrap();
        let b = graph.input("b", of(dtype, &[COUNT])).unwrap();
        let c = graph.input("c", of(Dtype::Bool, &[COUNT])).unwrap();
        let chosen = graph.select(c, a, b).unwrap();
        graph.output("select", chosen).unwrap();
        if dtype != Dtype::Bool {
            let y = graph.fma(a, b, a).unwrap();
            graph.output("fma", y).unwrap();
            let y = graph.relu(a).unwrap();
            graph.output("relu", y).unwrap();
        }
        let inputs = [
            elements(&mut random, dtype, COUNT),
            elements(&mut random, dtype, COUNT),
            elements(&mut random, Dtype::Bool, COUNT),
        ];
        bench.check(&graph, &inputs);
    }
}

#[test]
fn every_type_is_cast_to_every_other_as_the_reference_does() {
    let (bench, mut random) = (Bench::shared(), random());
    for from in Dtype::ALL {
        let mut graph = ExprGraph::new();
        let x = graph.input("x", of(from, &[COUNT])).unwrap();
        for to in Dtype::ALL {
            let y = graph.cast(x, to).unwrap();
            graph.output(to.name(), y).unwrap();
            if to != Dtype::Bool && to != from {
                // And back, which must not undo the rounding.
                let back = graph.cast(y, from).unwrap();
                graph.output(&format!("{to}_back"), back).unwrap();
            }
        }
        bench.check(&graph, &[elements(&mut random, from, COUNT)]);
    }
}

#[test]
fn functions_are_within_their_bound_over_all_their_range() {
    let (bench, mut random) = (Bench::shared(), random());
    for dtype in [Dtype::F32, Dtype::F64] {
        let far = if dtype == Dtype::F64 { 705.0 } else { 87.0 };
        for (op, range) in [
            (Unary::Exp, (-far, far)),
            (Unary::Ln, (1e-30, 8.0)),
            (Unary::Ln, (0.5, 1.5)),
            (Unary::Tanh, (-1.0, 1.0)),
            (Unary::Tanh, (-30.0, 30.0)),
            (Unary::Sigmoid, (-far, far)),
            (Unary::Erf, (-5.0, 5.0)),
            (Unary::Rsqrt, (1e-6, 100.0)),
        ] {
            if !op.class().has(dtype) {
                continue;
            }
            let mut graph = ExprGraph::new();
            let x = graph.input("x", of(dtype, &[1024])).unwrap();
            let y = graph.unary(op, x).unwrap();
            graph.output("y", y).unwrap();
            bench.check(&graph, &[between(&mut random, dtype, 1024, range)]);
        }
    }
}

#[test]
fn activations_are_within_their_bound() {
    let (bench, mut random) = (Bench::shared(), random());
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let mut graph = ExprGraph::new();
        let x = graph.input("x", of(dtype, &[300])).unwrap();
        let (gelu, silu) = (graph.gelu(x).unwrap(), graph.silu(x).unwrap());
        graph.output("gelu", gelu).unwrap();
        graph.output("silu", silu).unwrap();
        bench.check(&graph, &[between(&mut random, dtype, 300, (-6.0, 6.0))]);
    }
}
