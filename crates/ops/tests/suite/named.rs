//! Parameters by their names.

use fercuda_ops::{OpDescriptor, OpError, OpParameterKind, OpParameterValue, registry};
use fercuda_tensor::{Dtype, Layout};

fn layouts(ranks: &[usize]) -> Vec<Layout> {
    let of = |rank: &usize| Layout::contiguous(Dtype::F32, &vec![2; *rank]).unwrap();
    ranks.iter().map(of).collect()
}

fn named(
    op: &str,
    name: &str,
    value: &OpParameterValue,
    ranks: &[usize],
) -> Result<OpDescriptor, OpError> {
    OpDescriptor::new(op)?.named(name, value, &layouts(ranks))
}

/// A value of that kind, and the descriptor that its own setter makes with it.
fn with(op: OpDescriptor, name: &str, kind: OpParameterKind) -> (OpParameterValue, OpDescriptor) {
    let integers = |all: &[i64]| OpParameterValue::Integers(all.to_vec());
    match kind {
        OpParameterKind::Number(_) => (
            OpParameterValue::Number(0.25),
            op.number(name, 0.25).unwrap(),
        ),
        OpParameterKind::List(_) => (integers(&[3, -1]), op.list(name, &[3, -1]).unwrap()),
        OpParameterKind::Choice(values) => {
            let last = values.last().unwrap();
            let value = OpParameterValue::Text((*last).to_owned());
            (value, op.choice(name, last).unwrap())
        }
        OpParameterKind::Axis => (OpParameterValue::Integer(1), op.axes(&[1]).unwrap()),
        OpParameterKind::Axes | OpParameterKind::Order => {
            (integers(&[1, 0]), op.axes(&[1, 0]).unwrap())
        }
        OpParameterKind::Keep => (OpParameterValue::Bool(true), op.keep(true).unwrap()),
        OpParameterKind::Type { .. } => {
            let value = OpParameterValue::Text("bf16".to_owned());
            (value, op.to(Dtype::Bf16).unwrap())
        }
        OpParameterKind::Shape => (integers(&[0, 7]), op.shape(&[0, 7]).unwrap()),
    }
}

#[test]
fn each_parameter_of_each_op_is_set_by_its_name() {
    let mut seen = 0;
    for row in registry::rows() {
        let signature = row.signature();
        for (name, kind) in row.named_parameters() {
            assert!(signature.contains(&format!("{name}=")), "{signature}");
            let (value, wanted) = with(OpDescriptor::new(row.name).unwrap(), name, kind);
            let got = named(row.name, name, &value, &[2, 2]).unwrap();
            assert_eq!(got, wanted, "{} {name}", row.name);
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen}");
}

#[test]
fn negative_axes_are_counted_from_the_last_dimension() {
    let minus = OpParameterValue::Integer(-1);
    let axes = |op: &str, ranks: &[usize]| named(op, axis_name(op), &minus, ranks).unwrap();
    fn axis_name(op: &str) -> &'static str {
        if op == "sum" { "axes" } else { "axis" }
    }
    assert_eq!(axes("softmax", &[3]).axes_of(3), [2]);
    assert_eq!(axes("sum", &[4]).axes_of(4), [3]);
    // The new axis of the result.
    assert_eq!(axes("stack", &[2, 2]).axes_of(3), [2]);
    let least = OpParameterValue::Integers(vec![-3, 1]);
    assert_eq!(
        named("sum", "axes", &least, &[3]).unwrap().axes_of(3),
        [0, 1]
    );
    let error = named("sum", "axes", &least, &[2]).unwrap_err().to_string();
    assert!(
        error.contains("no axis -3 in 2 dimensions\ntry: -2 to 1"),
        "{error}"
    );
    let error = named("softmax", "axis", &minus, &[0])
        .unwrap_err()
        .to_string();
    assert!(error.contains("at least one dimension"), "{error}");
}

#[test]
fn value_of_another_kind_is_refused_with_what_the_parameter_takes() {
    let text = OpParameterValue::Text("up".to_owned());
    let large = OpParameterValue::Integer((1 << 53) + 1);
    let negative = OpParameterValue::Integers(vec![2, -1]);
    for (op, name, value, wanted) in [
        ("elu", "alpha", &text, "elu: alpha is \"up\"\ntry: a number"),
        (
            "elu",
            "alpha",
            &large,
            "alpha is 9007199254740993\ntry: a number",
        ),
        ("elu", "slope", &large, "no parameter \"slope\"\ntry: alpha"),
        (
            "exp",
            "alpha",
            &large,
            "no parameter \"alpha\"\ntry: it has no parameters",
        ),
        (
            "sum",
            "keep",
            &negative,
            "keep is [2, -1]\ntry: true or false",
        ),
        ("sum", "axes", &text, "axes is \"up\"\ntry: a list of axes"),
        (
            "topk",
            "order",
            &text,
            "order is never \"up\"\ntry: largest",
        ),
        ("topk", "order", &large, "try: one of largest, smallest"),
        ("cast", "to", &text, "to is \"up\"\ntry: a type: "),
        (
            "full",
            "shape",
            &negative,
            "shape is [2, -1]\ntry: a list of extents",
        ),
        (
            "tile",
            "repeats",
            &text,
            "repeats is \"up\"\ntry: a list of whole numbers",
        ),
    ] {
        let error = named(op, name, value, &[2]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}\nwanted: {wanted}");
    }
}
