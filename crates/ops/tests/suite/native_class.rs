//! Random operands of losses by a class's index.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::Dtype;

use crate::bench::Operand;
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
    let operands = match op.row().operands[0] {
        "g" => vec![Operand::random(random, dtype, &losses, true), x, index],
        _ => vec![x, index],
    };
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
