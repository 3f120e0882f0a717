//! Random operands of grids and boxes.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::Dtype;

use crate::bench::{Operand, layout};
use crate::native::index_operand;

/// Elements between two numbers.
fn between(
    random: &mut fastrand::Rng,
    dtype: Dtype,
    shape: &[u64],
    [low, high]: [f64; 2],
) -> Operand {
    let own = layout(random, dtype, shape, true);
    let bits = (0..own.len()).map(|_| dtype.encode(low + (high - low) * random.f64()));
    let bits = bits.collect();
    Operand::of(random, own, bits)
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let mut op = op;
    for (choice, values) in op.row().choices {
        op = op
            .choice(choice, values[random.usize(..values.len())])
            .unwrap();
    }
    let size = [random.u64(1..6), random.u64(1..6)];
    if !op.row().lists.is_empty() {
        op = op.list("size", &size.map(|it| it as i64)).unwrap();
    }
    let [batch, channels] = [random.u64(1..4), random.u64(..4)];
    let own = [batch, channels, random.u64(1..9), random.u64(1..9)];
    let number = random.u64(..7);
    match op.name() {
        "grid_sample" => {
            let x = Operand::random(random, dtype, &own, true);
            let grid = between(random, dtype, &[batch, size[0], size[1], 2], [-2.5, 2.5]);
            (op, vec![x, grid])
        }
        "grid_sample_backward" => {
            let [x, g] = [own, [batch, channels, size[0], size[1]]]
                .map(|shape| Operand::random(random, dtype, &shape, true));
            let grid = between(random, dtype, &[batch, size[0], size[1], 2], [-2.5, 2.5]);
            (op, vec![g, x, grid])
        }
        "affine_grid" => (
            op,
            vec![Operand::random(random, dtype, &[batch, 2, 3], true)],
        ),
        "roi_align" => {
            let x = Operand::random(random, dtype, &own, true);
            let boxes = between(random, dtype, &[number, 4], [-2.0, 11.0]);
            let index = index_operand(random, &[number], 0, batch, false);
            let scale = [0.5, 1.0][random.usize(..2)];
            let op = op.number("scale", scale).unwrap();
            let samples = random.u32(1..4).into();
            (
                op.number("samples", samples).unwrap(),
                vec![x, boxes, index],
            )
        }
        _ => {
            let number = random.u64(..50);
            let mut boxes = between(random, dtype, &[number, 4], [0.0, 8.0]);
            for sides in boxes.bits.chunks_mut(4) {
                for k in 0..2 {
                    // An end is not before the beginning.
                    let [a, b] = [sides[k], sides[k + 2]].map(|bits| dtype.value(bits));
                    sides[k] = dtype.encode(a.min(b));
                    sides[k + 2] = dtype.encode(a.max(b));
                }
            }
            let tame = random.bool();
            let scores = Operand::random(random, dtype, &[number], tame);
            let threshold = [0.1, 0.3, 0.7][random.usize(..3)];
            (
                op.number("threshold", threshold).unwrap(),
                vec![boxes, scores],
            )
        }
    }
}
