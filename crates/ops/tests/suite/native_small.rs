//! Random operands of quantisation.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::Dtype;

use crate::bench::{Operand, layout};
use crate::native::random_choice;
use crate::parity::{narrower, shape};

fn one_of<T: Copy>(random: &mut fastrand::Rng, all: &[T]) -> T {
    all[random.usize(..all.len())]
}

/// Positive scales.
fn scales(random: &mut fastrand::Rng, dtype: Dtype, shape: &[u64]) -> Operand {
    let own = layout(random, dtype, shape, true);
    let bits = (0..own.len()).map(|_| dtype.encode(f64::from(random.u32(1..40)) / 256.0));
    let bits = bits.collect();
    Operand::of(random, own, bits)
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let name = op.name();
    let mut op = random_choice(random, op);
    let own = shape(random, usize::from(!name.contains("quantise")));
    let row = op.row();
    if row.has("axes") && random.u32(..4) > 0 {
        let axes: Vec<usize> = (0..own.len()).filter(|_| random.bool()).collect();
        op = op.axes(&axes).unwrap();
    }
    let floats = [Dtype::F8E4m3, Dtype::F8E5m2];
    let to = match name {
        "quantise_asymmetric" => Some(one_of(random, &[Dtype::I8, Dtype::U8])),
        "quantise_f8" | "f8_scales" => Some(one_of(random, &floats)),
        "quantise_with" => Some(one_of(
            random,
            &[Dtype::I8, Dtype::U8, floats[0], floats[1]],
        )),
        "dequantise" => Some(one_of(random, &[Dtype::F32, Dtype::F16, Dtype::F64])),
        "unpack_int4" => Some(one_of(random, &[Dtype::I8, Dtype::U8, Dtype::I32])),
        _ => None,
    };
    if let Some(to) = to.filter(|_| random.bool()) {
        op = op.to(to).unwrap();
    }
    for (number, _) in row.numbers {
        let value = match *number {
            "bits" => random.u32(2..9).into(),
            _ => f64::from(random.i32(-2..3)),
        };
        op = op.number(number, value).unwrap();
    }
    let state = match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let tame = random.u32(..4) > 0;
    let x = Operand::random(random, dtype, &own, tame);
    match name {
        "quantise_with" | "dequantise" => {
            let state = match name {
                "dequantise" => one_of(random, &[Dtype::F32, Dtype::F64]),
                _ => state,
            };
            let of_scale = narrower(random, &own);
            let mut all = vec![x, scales(random, state, &of_scale)];
            let to_float = op.target().is_some_and(Dtype::is_float) && name == "quantise_with";
            if random.bool() && !to_float {
                let of_zero = narrower(random, &own);
                let own = layout(random, Dtype::I32, &of_zero, true);
                let bits = (0..own.len()).map(|_| random.u64(..9)).collect();
                all.push(Operand::of(random, own, bits));
            }
            (op, all)
        }
        "f8_scales" => {
            let latest = Operand::random(random, dtype, &own[1..], tame);
            let scale = scales(random, dtype, &own[1..]);
            (op, vec![x, latest, scale])
        }
        _ => (op, vec![x]),
    }
}
