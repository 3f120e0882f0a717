//! Intermediate forms between an expression and its code.

use fercuda_jit::reference::{ExactValue, decode};
use fercuda_jit::{Binary, Canonical, ExprGraph, ExprNodeId, NumberLiteral, Reduction, Unary};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, elements, of, random};

fn two() -> (ExprGraph, ExprNodeId, ExprNodeId) {
    let mut graph = ExprGraph::new();
    let a = graph.input("a", of(Dtype::F32, &[8, 16])).unwrap();
    let b = graph.input("b", of(Dtype::F32, &[8, 16])).unwrap();
    (graph, a, b)
}

#[test]
fn equivalent_expressions_have_one_key() {
    let (mut one, a, b) = two();
    let sum = one.binary(Binary::Add, a, b).unwrap();
    let more = one.binary(Binary::Gt, sum, a).unwrap();
    let y = one.select(more, sum, b).unwrap();
    one.output("y", y).unwrap();

    let (mut other, a, b) = two();
    // Dead code, duplicates, swapped operands, and views that cancel out.
    other.unary(Unary::Exp, a).unwrap();
    let turned = other.permute(a, &[1, 0]).unwrap();
    let back = other.permute(turned, &[1, 0]).unwrap();
    let sum = other.binary(Binary::Add, b, back).unwrap();
    let again = other.binary(Binary::Add, a, b).unwrap();
    let more = other.binary(Binary::Lt, a, again).unwrap();
    let y = other.select(more, sum, b).unwrap();
    other.output("z", y).unwrap();

    let [one, other] = [one, other].map(|graph| Canonical::of(&graph).unwrap());
    assert_eq!(one.to_string(), other.to_string());
    assert_eq!(one.key(), other.key());
}

#[test]
fn key_depends_on_all_relevant_properties() {
    let mut keys = Vec::new();
    let mut note = |graph: ExprGraph| keys.push(Canonical::of(&graph).unwrap().key());
    for (dtype, shape, number) in [
        (Dtype::F32, [4, 6], 1.5),
        (Dtype::F16, [4, 6], 1.5),
        (Dtype::F32, [6, 4], 1.5),
        (Dtype::F32, [4, 6], 2.5),
        (Dtype::F32, [4, 6], -0.0),
    ] {
        for op in [Binary::Mul, Binary::Sub, Binary::Div] {
            for turned in [false, true] {
                let mut graph = ExprGraph::new();
                let layout = match turned {
                    true => of(dtype, &[shape[1], shape[0]]).permute(&[1, 0]).unwrap(),
                    false => of(dtype, &shape),
                };
                let x = graph.input("x", layout).unwrap();
                let c = graph.constant(dtype, number).unwrap();
                let y = graph.binary(op, x, c).unwrap();
                graph.output("y", y).unwrap();
                note(graph);
            }
        }
    }
    for axis in [0, 1] {
        let mut graph = ExprGraph::new();
        let x = graph.input("x", of(Dtype::F32, &[4, 6])).unwrap();
        let y = graph.reduce(Reduction::Max, x, &[axis], false).unwrap();
        graph.output("y", y).unwrap();
        note(graph);
    }
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count);
}

/// The canonical form of an operation on constants.
fn folded(dtype: Dtype, make: impl FnOnce(&mut ExprGraph) -> ExprNodeId) -> (String, ExprGraph) {
    let mut graph = ExprGraph::new();
    let made = make(&mut graph);
    let y = graph.broadcast(made, &[3]).unwrap();
    graph.output("y", y).unwrap();
    let text = Canonical::of(&graph).unwrap().to_string();
    assert!(graph.dtype(made).unwrap() == dtype || dtype == Dtype::Bool);
    (text, graph)
}

#[test]
fn constants_are_folded_to_the_devices_bits() {
    let (bench, mut random) = (Bench::shared(), random());
    for dtype in Dtype::ALL {
        // Once as constants, which are folded where possible, and once as inputs.
        let (mut folded, mut plain) = (ExprGraph::new(), ExprGraph::new());
        let mut bound = Vec::new();
        let ops: Vec<Binary> = Binary::ALL
            .iter()
            .copied()
            .filter(|op| op.class().has(dtype))
            .take(15)
            .collect();
        for (at, op) in ops.iter().enumerate() {
            let both = elements(&mut random, dtype, 2);
            let number = |bits: u64| match decode(dtype, bits) {
                ExactValue::Float(value) => NumberLiteral::Float(value),
                ExactValue::Int(value) if dtype == Dtype::Bool => NumberLiteral::Bool(value != 0),
                ExactValue::Int(value) => NumberLiteral::Int(value),
            };
            let [a, b] = [both[0], both[1]].map(|bits| folded.constant(dtype, number(bits)));
            let y = folded.binary(*op, a.unwrap(), b.unwrap()).unwrap();
            folded.output(&format!("y{at}"), y).unwrap();
            let [a, b] = ["a", "b"].map(|name| plain.input(&format!("{name}{at}"), of(dtype, &[])));
            let y = plain.binary(*op, a.unwrap(), b.unwrap()).unwrap();
            plain.output(&format!("y{at}"), y).unwrap();
            bound.extend(both.into_iter().map(|bits| vec![bits]));
        }
        let (got, wanted) = (bench.run(&folded, &[]), bench.run(&plain, &bound));
        for (((_, layout), got), wanted) in folded.outputs().zip(got).zip(wanted) {
            let [x, y] = [&got, &wanted].map(|bits| decode(layout.dtype(), bits[0]));
            let nan = |x: ExactValue| matches!(x, ExactValue::Float(x) if x.is_nan());
            assert!(
                got == wanted || nan(x) && nan(y),
                "{x:?} and {y:?}\n{folded}\n{bound:?}"
            );
        }
    }
}

#[test]
fn exact_operations_are_folded_and_approximated_ones_are_not() {
    let constant = |graph: &mut ExprGraph, value: f64| graph.constant(Dtype::F32, value).unwrap();
    let (text, _) = folded(Dtype::F32, |graph| {
        let x = constant(graph, 2.0);
        graph.unary(Unary::Exp, x).unwrap()
    });
    assert!(text.contains("exp"), "{text}");
    let (text, _) = folded(Dtype::F32, |graph| {
        let (x, y) = (constant(graph, 0.1), constant(graph, 0.2));
        graph.binary(Binary::Add, x, y).unwrap()
    });
    assert!(text.contains(&format!("{:?}", 0.1f32 + 0.2f32)), "{text}");
    // Zero times infinity is NaN, with device-dependent bits.
    let (text, _) = folded(Dtype::F32, |graph| {
        let (x, y) = (constant(graph, 0.0), constant(graph, f64::INFINITY));
        graph.binary(Binary::Mul, x, y).unwrap()
    });
    assert!(text.contains("mul"), "{text}");
}

#[test]
fn view_needs_a_copy_only_where_strides_cannot_express_it() {
    let kernels = |make: &dyn Fn(&mut ExprGraph, ExprNodeId) -> ExprNodeId| {
        let mut graph = ExprGraph::new();
        let x = graph.input("x", of(Dtype::F32, &[6, 8])).unwrap();
        let y = make(&mut graph, x);
        graph.output("y", y).unwrap();
        let (bench, mut random) = (Bench::shared(), random());
        bench.check(&graph, &[elements(&mut random, Dtype::F32, 48)]);
        let compiled = bench.compiler.compile(&graph).unwrap();
        compiled.program().launches.len()
    };
    // A permuted slice of a result: loaded that way.
    assert_eq!(
        kernels(&|graph, x| {
            let y = graph.unary(Unary::Neg, x).unwrap();
            let y = graph.permute(y, &[1, 0]).unwrap();
            graph.slice(y, 0, 1..7, 2).unwrap()
        }),
        1
    );
    // A reshape that no strides express, as an output: stored that way.
    assert_eq!(
        kernels(&|graph, x| {
            let y = graph.permute(x, &[1, 0]).unwrap();
            let y = graph.unary(Unary::Neg, y).unwrap();
            graph.reshape(y, &[48]).unwrap()
        }),
        1
    );
    // The same as an intermediate value: copied first.
    assert_eq!(
        kernels(&|graph, x| {
            let y = graph.permute(x, &[1, 0]).unwrap();
            let y = graph.reshape(y, &[3, 16]).unwrap();
            let y = graph.unary(Unary::Neg, y).unwrap();
            graph.reduce(Reduction::Sum, y, &[0], false).unwrap()
        }),
        2
    );
}

#[test]
fn dependent_reductions_over_one_axis_are_one_kernel_and_over_two_axes_two() {
    let bench = Bench::shared();
    let mut graph = ExprGraph::new();
    let x = graph.input("x", of(Dtype::F32, &[6, 40])).unwrap();
    let y = graph.layer_norm(x, 1, None, None, 1e-5).unwrap();
    let y = graph.softmax(y, 1).unwrap();
    graph.output("y", y).unwrap();
    let program = bench.compiler.compile(&graph).unwrap();
    assert_eq!(program.program().launches.len(), 1);
    assert_eq!(program.program().scratch_bytes, 0);
    let z = graph.softmax(y, 0).unwrap();
    graph.output("z", z).unwrap();
    let program = bench.compiler.compile(&graph).unwrap();
    let program = program.program();
    assert_eq!(program.launches.len(), 2, "{}", program.fused());
    assert!(!program.temporaries.is_empty());
    let mut random = random();
    let inputs = [crate::bench::between(
        &mut random,
        Dtype::F32,
        240,
        (-2.0, 2.0),
    )];
    bench.check(&graph, &inputs);
}

#[test]
fn invalid_nodes_are_refused_with_the_cause() {
    let mut graph = ExprGraph::new();
    let f = graph.input("f", of(Dtype::F32, &[4, 6])).unwrap();
    let i = graph.input("i", of(Dtype::I32, &[4])).unwrap();
    let d = graph.input("d", of(Dtype::F64, &[4, 6])).unwrap();
    let said = [
        (graph.unary(Unary::Exp, i), "exp of i32: it takes a float"),
        (graph.unary(Unary::Erf, d), "a float other than f64"),
        (graph.binary(Binary::Add, f, d), "add of f32 and f64"),
        (graph.binary(Binary::And, f, f), "and of f32"),
        (graph.select(f, f, f), "select of f32: it takes bool"),
        (graph.softmax(f, 2), "softmax over axis 2 of [4, 6]"),
        (graph.reduce(Reduction::Mean, i, &[0], false), "mean of i32"),
        (graph.reshape(f, &[5, 5]), "reshape: [4, 6] has 24 elements"),
        (
            graph.permute(f, &[0, 0]),
            "permute: [0, 0] is not a permutation",
        ),
        (graph.broadcast(f, &[4, 7]), "broadcast"),
        (graph.slice(f, 1, 2..9, 1), "slice: elements 2 to 9"),
        (graph.constant(Dtype::U8, 300i64), "u8 cannot represent 300"),
        (graph.constant(Dtype::I32, 1.5), "i32 cannot represent 1.5"),
        (graph.input("f", of(Dtype::F32, &[1])), "two inputs \"f\""),
        (graph.layer_norm(f, 1, Some(f), None, 1e-5), "layer_norm"),
    ];
    for (result, wanted) in said {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error:?} should say {wanted:?}");
    }
    let c = graph.binary(Binary::Add, f, f).unwrap();
    let overlapping = Layout::strided(Dtype::F32, &[4, 6], &[1, 1]).unwrap();
    let error = graph.output_as("y", c, overlapping).unwrap_err();
    assert!(error.to_string().contains("two elements"), "{error}");
    let other = ExprGraph::new();
    assert!(other.dtype(c).is_err());
}
