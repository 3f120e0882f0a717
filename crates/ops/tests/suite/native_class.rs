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
