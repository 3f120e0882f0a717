//! Random operands of losses by a class's index.

use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, Operand};
use crate::native::{index_operand, random_choice};
use crate::parity::shape;

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    if op.name() == "ctc_loss" {
        return alignments(random, op, dtype);
    }
    if op.name().starts_with("linear") {
        return of_linear_layers(random, op, dtype);
    }
    let own = shape(random, 1);
    let axis = random.usize(..own.len());
    let mut op = random_choice(random, op.axes(&[axis]).unwrap());
    for (number, _) in op.row().numbers {
        let value = match *number {
            "ignore" if random.bool() => continue,
            "ignore" => f64::from(random.u32(..4)),
            _ => f64::from(random.u32(..4)) / 8.0,
        };
        op = op.number(number, value).unwrap();
    }
    let mut rows = own.clone();
    let classes = rows.remove(axis);
    let losses = match op.choice_of("reduce") {
        "none" => rows.clone(),
        _ => Vec::new(),
    };
    let x = Operand::random(random, dtype, &own, true);
    let index = index_operand(random, &rows, 0, classes, false);
    let mut operands = match op.row().operands[0] {
        "g" => vec![Operand::random(random, dtype, &losses, true), x, index],
        _ => vec![x, index],
    };
    if random.bool() {
        operands.push(Operand::random(random, dtype, &[classes], true));
    }
    (op, operands)
}

/// Labels of samples, with lengths of both, a few of which are outside.
fn alignments(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let (steps, samples, classes) = (random.u64(..14), random.u64(..4), random.u64(1..5));
    let labels = random.u64(..5);
    let x = Operand::random(random, dtype, &[steps, samples, classes], true);
    let mut index = index_operand(random, &[samples, labels], 0, classes, false);
    if random.bool() {
        // Without labels outside.
        index.bits.iter_mut().for_each(|bits| *bits %= classes);
    }
    let lengths = index_operand(random, &[samples], 0, steps + 1, false);
    let of_labels = index_operand(random, &[samples], 0, labels + 1, false);
    let op = op.number("blank", random.u64(..classes) as f64).unwrap();
    (op, vec![x, index, lengths, of_labels])
}

/// A linear layer and the classes of its rows, by parts of a few classes.
fn of_linear_layers(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let rows = shape(random, 0);
    let rows: Vec<u64> = rows.iter().map(|extent| (*extent).min(9)).collect();
    let (inputs, classes) = (random.u64(1..20), random.u64(1..50));
    let mut op = random_choice(random, op);
    for (number, _) in op.row().numbers {
        let value = match *number {
            "chunk" => f64::from(random.u32(..30)),
            "ignore" if random.bool() => continue,
            "ignore" => f64::from(random.u32(..4)),
            _ => f64::from(random.u32(..4)) / 8.0,
        };
        op = op.number(number, value).unwrap();
    }
    let losses = match op.choice_of("reduce") {
        "none" => rows.clone(),
        _ => Vec::new(),
    };
    let of_x = [&rows[..], &[inputs]].concat();
    let mut operands = Vec::new();
    for name in op.row().operands {
        let shape: &[u64] = match *name {
            "g" => &losses,
            "logarithms" => &rows,
            "x" => &of_x,
            "weight" => &[classes, inputs],
            "bias" if random.bool() => break,
            "bias" => &[classes],
            _ => {
                operands.push(index_operand(random, &rows, 0, classes, false));
                continue;
            }
        };
        let dtype = match (*name, dtype) {
            ("logarithms", Dtype::F64) => Dtype::F64,
            ("logarithms", _) => Dtype::F32,
            _ => dtype,
        };
        let mut operand = Operand::random(random, dtype, shape, true);
        if *name == "logarithms" {
            // About as large as those of so many classes.
            let mut near = || dtype.encode(2.0 + 6.0 * random.f64());
            operand.bits.iter_mut().for_each(|bits| *bits = near());
        }
        operands.push(operand);
    }
    (op, operands)
}

#[test]
fn linear_losses_need_a_tenth_of_their_logits() {
    let bench = Bench::shared();
    let (rows, classes, inputs) = (16 << 10, 128 << 10, 4096);
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let of = |dtype, shape: &[u64]| Layout::contiguous(dtype, shape).unwrap();
        let operands = [
            of(dtype, &[rows, inputs]),
            of(dtype, &[classes, inputs]),
            of(Dtype::I64, &[rows]),
        ];
        let given = [of(dtype, &[]), of(Dtype::F32, &[rows])];
        let logits = rows * classes * dtype.bytes();
        let name = "linear_cross_entropy";
        for (name, operands) in [
            (name.to_owned(), operands.to_vec()),
            (format!("{name}_backward"), [&given[..], &operands].concat()),
        ] {
            let op = OpDescriptor::new(&name).unwrap();
            let plan = OpPlan::new(&bench.device, &op, &operands, &[], KernelPolicy::Auto);
            let bytes = plan.unwrap().workspace_bytes();
            println!("{name} of {dtype}: {bytes} of {logits} bytes of logits");
            assert!(10 * bytes <= logits, "{name}: {bytes} of {logits}");
        }
    }
}
