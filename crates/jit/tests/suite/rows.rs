//! Reductions, softmax and norms, over rows of every algorithm.

use fercuda_jit::{Binary, ExprGraph, Reduction};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, between, elements, of, random};

/// Rows shorter than a team, about as long, odd, kept, read again, and in parts.
const SHAPES: [[u64; 2]; 18] = [
    [1, 1],
    [3, 1],
    [5, 2],
    [9, 3],
    [33, 16],
    [7, 31],
    [4, 77],
    [3, 512],
    [2, 513],
    [3, 1000],
    [1, 4096],
    [2, 8191],
    [1, 16384],
    [1, 20000],
    [5, 2048],
    [3, 3001],
    [1, 65536],
    [2, 70003],
];

fn tame(random: &mut fastrand::Rng, dtype: Dtype, count: u64) -> Vec<u64> {
    match dtype {
        Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4m3 | Dtype::F8E5m2 => {
            between(random, dtype, count, (-2.0, 2.0))
        }
        _ => elements(random, dtype, count),
    }
}

#[test]
fn every_reduction_of_every_type_is_within_its_bound() {
    let (bench, mut random) = (Bench::shared(), random());
    for dtype in Dtype::ALL {
        for axes in [&[1][..], &[0], &[0, 1]] {
            let shape = [6, 19];
            let mut graph = ExprGraph::new();
            let x = graph.input("x", of(dtype, &shape)).unwrap();
            for op in Reduction::ALL.iter().filter(|op| op.class().has(dtype)) {
                let y = graph.reduce(*op, x, axes, false).unwrap();
                graph.output(op.name(), y).unwrap();
            }
            bench.check(&graph, &[elements(&mut random, dtype, 6 * 19)]);
            bench.check(&graph, &[tame(&mut random, dtype, 6 * 19)]);
        }
    }
}

#[test]
fn rows_of_all_lengths_are_reduced_within_their_bound() {
    let (bench, mut random) = (Bench::shared(), random());
    for shape in SHAPES {
        let dtype = [
            Dtype::F32,
            Dtype::F16,
            Dtype::F64,
            Dtype::U8,
            Dtype::I32,
            Dtype::Bf16,
        ];
        let dtype = dtype[random.usize(..dtype.len())];
        // Along rows, and across them.
        for (axis, shape) in [(1, shape), (0, [shape[1], shape[0]])] {
            let mut graph = ExprGraph::new();
            let x = graph.input("x", of(dtype, &shape)).unwrap();
            for op in [Reduction::Sum, Reduction::Max, Reduction::ArgMin] {
                let y = graph.reduce(op, x, &[axis], true).unwrap();
                graph.output(op.name(), y).unwrap();
            }
            bench.check(&graph, &[tame(&mut random, dtype, shape[0] * shape[1])]);
        }
    }
}

#[test]
fn softmax_and_norms_are_within_their_bound() {
    let (bench, mut random) = (Bench::shared(), random());
    for shape in SHAPES {
        let dtype = [Dtype::F32, Dtype::F16, Dtype::F64, Dtype::Bf16];
        let dtype = dtype[random.usize(..dtype.len())];
        let axis = random.usize(..2);
        let shape = if axis == 1 {
            shape
        } else {
            [shape[1], shape[0]]
        };
        let mut graph = ExprGraph::new();
        let x = graph.input("x", of(dtype, &shape)).unwrap();
        let gamma = graph.input("gamma", of(dtype, &[shape[axis]])).unwrap();
        let beta = graph.input("beta", of(dtype, &[shape[axis]])).unwrap();
        let made = [
            ("softmax", graph.softmax(x, axis)),
            ("log_softmax", graph.log_softmax(x, axis)),
            (
                "layer_norm",
                graph.layer_norm(x, axis, Some(gamma), Some(beta), 1e-5),
            ),
            ("rms_norm", graph.rms_norm(x, axis, Some(gamma), 1e-6)),
        ];
        for (name, made) in made {
            graph.output(name, made.unwrap()).unwrap();
        }
        let count = shape[0] * shape[1];
        let inputs = [
            between(&mut random, dtype, count, (-8.0, 8.0)),
            between(&mut random, dtype, shape[axis], (0.5, 2.0)),
            between(&mut random, dtype, shape[axis], (-1.0, 1.0)),
        ];
        bench.check(&graph, &inputs);
        // NaN and infinity propagate as specified.
        bench.check(
            &graph,
            &[
                elements(&mut random, dtype, count),
                inputs[1].clone(),
                inputs[2].clone(),
            ],
        );
    }
}

#[test]
fn softmax_of_only_minus_infinity_is_nan() {
    let bench = Bench::shared();
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[2, 4])).unwrap();
    let y = graph.softmax(x, 1).unwrap();
    graph.output("y", y).unwrap();
    let least = u64::from(f32::NEG_INFINITY.to_bits());
    let mut bits = vec![least; 8];
    bits[5] = 1f32.to_bits().into();
    let got = bench.run(&graph, &[bits]);
    let got: Vec<f32> = got[0]
        .iter()
        .map(|bits| f32::from_bits(*bits as u32))
        .collect();
    assert!(got[..4].iter().all(|x| x.is_nan()), "{got:?}");
    assert_eq!(got[4..], [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn elementwise_neighbours_are_fused_with_a_reduction() {
    let (bench, mut random) = (Bench::shared(), random());
    let shape = [5, 300];
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F16, &shape)).unwrap();
    let mask = graph.input("mask", of(Dtype::F16, &[300])).unwrap();
    let scale = graph.constant(Dtype::F16, 0.125).unwrap();
    let scaled = graph.affine(x, scale, mask).unwrap();
    let y = graph.softmax(scaled, 1).unwrap();
    let two = graph.constant(Dtype::F16, 2.0).unwrap();
    let y = graph.binary(Binary::Mul, y, two).unwrap();
    graph.output("y", y).unwrap();
    let most = graph.reduce(Reduction::Max, scaled, &[1], false).unwrap();
    graph.output("most", most).unwrap();
    let compiled = bench.compiler.compile(&graph).unwrap();
    assert_eq!(
        compiled.program().launches.len(),
        1,
        "{}",
        compiled.program().fused()
    );
    let inputs = [
        between(&mut random, Dtype::F16, 1500, (-8.0, 8.0)),
        between(&mut random, Dtype::F16, 300, (-8.0, 8.0)),
    ];
    bench.check(&graph, &inputs);
}

#[test]
fn results_do_not_depend_on_the_number_of_rows() {
    let (bench, mut random) = (Bench::shared(), random());
    for len in [37, 640, 20000, 66000] {
        let row = between(&mut random, Dtype::F32, len, (-1.0, 1.0));
        let mut sums = Vec::new();
        let mut codes = Vec::new();
        for rows in [2, 5, 40_u64] {
            if rows * len > 200_000 {
                continue;
            }
            let mut graph = ExprGraph::new();
            let x = graph.input("x", of(Dtype::F32, &[rows, len])).unwrap();
            let y = graph.reduce(Reduction::Sum, x, &[1], false).unwrap();
            graph.output("y", y).unwrap();
            let all: Vec<u64> = (0..rows).flat_map(|_| row.clone()).collect();
            sums.extend(bench.run(&graph, &[all]).remove(0));
            codes.push(bench.compiler.compile(&graph).unwrap().program().code);
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
        // And the code is the same.
        assert!(codes.iter().all(|code| *code == codes[0]), "{codes:?}");
    }
}

#[test]
fn empty_sum_is_zero_and_empty_product_one() {
    let bench = Bench::shared();
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[3, 0])).unwrap();
    for op in [Reduction::Sum, Reduction::Prod, Reduction::Mean] {
        let y = graph.reduce(op, x, &[1], false).unwrap();
        graph.output(op.name(), y).unwrap();
    }
    let soft = graph.softmax(x, 1).unwrap();
    graph.output("soft", soft).unwrap();
    let refused = graph.reduce(Reduction::Max, x, &[1], false).unwrap_err();
    assert!(
        refused.to_string().contains("max over {1} of [3, 0]"),
        "{refused}"
    );
    let got = bench.run(&graph, &[Vec::new()]);
    let value = |bits: u64| f32::from_bits(bits as u32);
    assert_eq!(
        got[0].iter().map(|x| value(*x)).collect::<Vec<_>>(),
        [0.0; 3]
    );
    assert_eq!(
        got[1].iter().map(|x| value(*x)).collect::<Vec<_>>(),
        [1.0; 3]
    );
    assert!(got[2].iter().all(|x| value(*x).is_nan()));
    assert!(got[3].is_empty());
}

#[test]
fn strided_rows_are_reduced() {
    let (bench, mut random) = (Bench::shared(), random());
    for strides in [[200, 2], [-40, 1], [1, 9], [64, -1], [3, 40]] {
        let layout = Layout::strided(Dtype::F32, &[8, 33], &strides).unwrap();
        let mut graph = ExprGraph::new();
        let x = graph.input("x", layout).unwrap();
        let y = graph.softmax(x, 1).unwrap();
        graph.output("y", y).unwrap();
        let sum = graph.reduce(Reduction::Sum, x, &[0], false).unwrap();
        graph.output("sum", sum).unwrap();
        bench.check(
            &graph,
            &[between(&mut random, Dtype::F32, 8 * 33, (-4.0, 4.0))],
        );
    }
}
