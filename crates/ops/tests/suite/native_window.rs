//! Random operands of the gradients of pools and interpolation.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Operand, layout};

/// Parameters of the op over a random operand, and the shapes of that and of the result.
pub(crate) fn parameters(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
) -> (OpDescriptor, [Vec<u64>; 2]) {
    let space = random.usize(1..4);
    let draw = |random: &mut fastrand::Rng, from: u64, to: u64| -> Vec<u64> {
        (0..space).map(|_| random.u64(from..to)).collect()
    };
    let mut own = draw(random, 1, 9);
    let mut op = (0..op.row().choices.len()).fold(op, |op, at| {
        let (choice, values) = op.row().choices[at];
        op.choice(choice, values[random.usize(..values.len())])
            .unwrap()
    });
    let mut places = draw(random, 1, 12);
    let put = |op: OpDescriptor, name: &str, values: &[u64]| {
        let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        op.list(name, &values).unwrap()
    };
    let names: Vec<&str> = op.row().lists.iter().map(|(name, _)| *name).collect();
    if names.contains(&"kernel") {
        let (kernel, stride) = (draw(random, 1, 4), draw(random, 1, 4));
        let dilation = match names.contains(&"dilation") {
            true => draw(random, 1, 3),
            false => vec![1; space],
        };
        let padding: Vec<u64> = kernel.iter().map(|it| random.u64(0..=it / 2)).collect();
        for d in 0..space {
            let reach = dilation[d] * (kernel[d] - 1) + 1;
            own[d] = own[d].max(reach.saturating_sub(2 * padding[d]));
            places[d] = (own[d] + 2 * padding[d] - reach) / stride[d] + 1;
        }
        let lists = [
            ("kernel", &kernel),
            ("stride", &stride),
            ("padding", &padding),
        ];
        op = lists
            .iter()
            .fold(op, |op, (name, list)| put(op, name, list));
        if names.contains(&"dilation") {
            op = put(op, "dilation", &dilation);
        }
    }
    op = put(op, "size", &own);
    let first = [random.u64(0..3), random.u64(1..4)];
    (op, [own, places].map(|part| [&first[..], &part].concat()))
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let (op, [own, shape]) = parameters(random, op);
    let mut operands = vec![Operand::random(random, dtype, &shape, true)];
    if op.row().operands.len() > 1 {
        // Any place, or that in the middle of the operand, which many windows have.
        let count: u64 = own[2..].iter().product();
        let index: Layout = layout(random, Dtype::I64, &shape, true);
        let middle = own[2..]
            .iter()
            .fold(0, |at, extent| at * extent + extent / 2);
        let bits = (0..index.len()).map(|_| match random.u32(..4) {
            0 => u64::MAX,
            1 => middle,
            _ => random.u64(..count),
        });
        let bits = bits.collect();
        operands.push(Operand::of(random, index, bits));
    }
    (op, operands)
}
