//! Random operands of norms over groups of elements, and of the gradients of norms.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::Dtype;

use crate::bench::Operand;
use crate::parity::shape;

/// A random shape of an op with its groups, and how many channels that has.
fn shaped(random: &mut fastrand::Rng, op: OpDescriptor) -> (OpDescriptor, Vec<u64>, u64) {
    let mut own = shape(random, 1);
    if op.row().has("axis") {
        let axis = random.usize(..own.len());
        let channels = own[axis];
        return (op.axes(&[axis]).unwrap(), own, channels);
    }
    if own.len() == 1 {
        own.push(random.u64(1..7));
    }
    let has_groups = op.row().numbers.iter().any(|(name, _)| *name == "groups");
    let op = match has_groups {
        true => {
            let groups = random.u64(1..4);
            own[1] = groups * own[1].min(9);
            op.number("groups", groups as f64).unwrap()
        }
        false => op,
    };
    let channels = own[1];
    (op, own, channels)
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let (mut op, own, channels) = shaped(random, op);
    if random.bool() {
        op = op.number("eps", f64::from(random.u32(1..9)) / 8.0).unwrap();
    }
    let row = op.row();
    let given = row.operands.len() - random.usize(..=row.optional);
    let operands = row.operands[..given].iter().map(|operand| match *operand {
        "g" | "x" => Operand::random(random, dtype, &own, true),
        "variance" => {
            let mut variance = Operand::random(random, dtype, &[channels], true);
            let positive = |bits: &mut u64| {
                *bits = dtype.encode(dtype.value(*bits).abs() + 0.25);
            };
            variance.bits.iter_mut().for_each(positive);
            variance
        }
        _ => Operand::random(random, dtype, &[channels], true),
    });
    let operands = operands.collect();
    (op, operands)
}
