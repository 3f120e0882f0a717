//! Random operands of attention, and what its cache keeps.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::Dtype;

use crate::bench::{Operand, layout};
use crate::native::{index_operand, random_choice};

/// A float that a cache may have beside those queries.
fn beside(random: &mut fastrand::Rng, dtype: Dtype) -> Dtype {
    let others = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8E4m3];
    match dtype {
        Dtype::F64 => dtype,
        _ => others[random.usize(..others.len())],
    }
}

/// Positions of tokens: mostly within the room, some behind it, and some below 0.
fn positions(random: &mut fastrand::Rng, tokens: u64, room: u64) -> Operand {
    let dtype = [Dtype::I32, Dtype::I64][random.usize(..2)];
    let own = layout(random, dtype, &[tokens], true);
    let position = |random: &mut fastrand::Rng| match random.u32(..10) {
        0 => u64::MAX,
        1 => room + random.u64(..9),
        _ => random.u64(..room.max(1)),
    };
    let all = (0..tokens).map(|_| position(random) & (u64::MAX >> (64 - 8 * dtype.bytes())));
    let all = all.collect();
    Operand::of(random, own, all)
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let tokens = random.u64(..5);
    let (blocks, places) = (random.u64(1..9), [1, 2, 16, 80][random.usize(..4)]);
    let (shared, length) = (random.u64(1..4), [1, 5, 16, 48, 64, 136][random.usize(..6)]);
    match op.name() {
        "rope" => {
            let pairs = random.u64(..=length / 2);
            let x = Operand::random(random, dtype, &[tokens, shared, length], true);
            let position = positions(random, tokens, 3000);
            let frequency = Operand::random(random, Dtype::F32, &[pairs], true);
            let op = random_choice(random, op).number("magnitude", 0.75).unwrap();
            (op, vec![x, position, frequency])
        }
        "cache_append" => {
            let cache = Operand::random(random, dtype, &[blocks, places, shared, length], true);
            let from = beside(random, dtype);
            let rows = Operand::random(random, from, &[tokens, shared, length], true);
            // One token a place: which of two is stored is not defined.
            let index = index_operand(random, &[tokens], 0, blocks * places, true);
            (op, vec![cache, rows, index])
        }
        _ => {
            let heads = shared * [1, 1, 3, 4, 12][random.usize(..5)];
            let value_length = [length, 7, 130][random.usize(..3)];
            let (sequences, own) = (random.u64(1..4), random.u64(1..7));
            let cached = beside(random, dtype);
            let q = Operand::random(random, dtype, &[tokens, heads, length], true);
            let k = Operand::random(random, cached, &[blocks, places, shared, length], true);
            let v = Operand::random(
                random,
                cached,
                &[blocks, places, shared, value_length],
                true,
            );
            let table = index_operand(random, &[sequences, own], 0, blocks, false);
            let sequence = index_operand(random, &[tokens], 0, sequences, false);
            let position = positions(random, tokens, own * places);
            let mut operands = vec![q, k, v, table, sequence, position];
            let mut op = op;
            if random.bool() {
                operands.push(Operand::random(random, Dtype::F32, &[heads], true));
            }
            for (name, value) in [("limit", 3.0), ("max_bias", 8.0), ("window", 40.0)] {
                if random.u32(..3) == 0 {
                    op = op.number(name, value).unwrap();
                }
            }
            // Small enough that weights differ by little, so that bounds are finite.
            (op.number("scale", 0.05).unwrap(), operands)
        }
    }
}
