//! Random operands of updates of parameters.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Operand, layout};
use crate::native::random_choice;
use crate::parity::shape;

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let state = match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let mut op = random_choice(random, op);
    for (number, _) in op.row().numbers {
        let value = match *number {
            _ if random.bool() => continue,
            "interval" => f64::from(random.u32(1..4)),
            "eps" => 1e-3,
            _ => f64::from(random.u32(1..8)) / 8.0,
        };
        op = op.number(number, value).unwrap();
    }
    let mut own = shape(random, 0);
    if op.name() == "adafactor" {
        own = vec![random.u64(1..40), random.u64(1..40)];
    }
    let mut operands = Vec::new();
    let row = op.row();
    let groups = if row.repeated > 1 {
        random.usize(1..12)
    } else {
        row.repeated
    };
    let is_plain = random.bool();
    for at in 0..row.singles() + groups * row.repeated {
        let operand = &row.operand(at);
        if at >= row.operands.len() && *operand == "x" {
            own = shape(random, 0);
        }
        let (dtype, shape) = match *operand {
            "x" | "gradient" => (dtype, own.clone()),
            "rows" => (state, own[..1].to_vec()),
            "columns" => (state, own[1..].to_vec()),
            "velocity" | "mean" | "square" => (state, own.clone()),
            "step" | "streak" => (Dtype::I32, Vec::new()),
            "found" => (Dtype::Bool, Vec::new()),
            _ => (state, Vec::new()),
        };
        let tame = op.name() != "unscale" || random.bool();
        let mut it = Operand::random(random, dtype, &shape, tame);
        if is_plain && row.repeated > 1 {
            // Many tensors in one launch are contiguous.
            let contiguous = Layout::contiguous(dtype, &shape).unwrap();
            it = Operand::of(random, contiguous, it.bits);
        }
        match *operand {
            // Means of squares, and scales, are positive.
            "square" | "rows" | "columns" | "norm" => {
                for bits in &mut it.bits {
                    *bits = dtype.encode(dtype.value(*bits).abs());
                }
            }
            "rate" => it.bits[0] = dtype.encode(f64::from(random.u32(1..9)) / 16.0),
            "scale" => it.bits[0] = dtype.encode(f64::from(random.u32(1..9)) * 4.0),
            "step" | "streak" => {
                let own = layout(random, dtype, &[], true);
                let value = random.u64(1..5);
                it = Operand::of(random, own, vec![value]);
            }
            _ => {}
        }
        operands.push(it);
    }
    for _ in 0..random.usize(..4) {
        if op.name() == "gradient_norm" {
            let more = shape(random, 0);
            operands.push(Operand::random(random, dtype, &more, true));
        }
    }
    (op, operands)
}
