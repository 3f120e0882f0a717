//! Random operands of ops whose state goes from token to token.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Operand, layout};
use crate::native::random_choice;

/// Runs in the order of tokens, with tokens of none between them; no slot that is written is
/// another one that is read or written.
fn runs_operand(random: &mut fastrand::Rng, tokens: u64, slots: u64) -> Operand {
    let dtype = [Dtype::I32, Dtype::I64][random.usize(..2)];
    let count = random.u64(..5);
    let mut free: Vec<u64> = (0..slots).collect();
    random.shuffle(&mut free);
    // Those that are read alone may be read by many.
    let shared = free.split_off(free.len().min(3 * slots as usize / 4));
    let none = |random: &mut fastrand::Rng| [u64::MAX, slots, slots + 70][random.usize(..3)];
    let (mut rows, mut next) = (Vec::new(), random.u64(..3).min(tokens));
    for _ in 0..count {
        let left = tokens - next;
        let own = match random.u32(..6) {
            0 => 0,
            1 => left,
            _ => random.u64(..=left.min(9)),
        };
        let mut own_slot = || free.pop();
        let to = own_slot();
        let kept = own_slot();
        let from = match random.u32(..4) {
            0 => none(random),
            1 if !shared.is_empty() => shared[random.usize(..shared.len())],
            _ => to.unwrap_or_else(|| none(random)),
        };
        let to = to.filter(|_| random.u32(..6) > 0);
        let to = to.unwrap_or_else(|| none(random));
        let kept = kept.unwrap_or_else(|| none(random));
        // Also behind the run, which is never.
        let mark = random.u64(..own + 2);
        rows.extend([next, own, from, to, mark, kept]);
        next = (next + own + random.u64(..2)).min(tokens);
    }
    let mask = u64::MAX >> (64 - 8 * dtype.bytes());
    let own: Layout = layout(random, dtype, &[count, 6], true);
    let bits = rows.into_iter().map(|it| it & mask).collect();
    Operand::of(random, own, bits)
}

fn floats(random: &mut fastrand::Rng, dtype: Dtype, shape: &[u64]) -> Operand {
    Operand::random(random, dtype, shape, true)
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let kept = match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let (tokens, slots) = ([0, 1, 5, 14, 70][random.usize(..5)], random.u64(..8));
    if op.name() == "causal_convolution" {
        let (channels, taps) = ([1, 7, 150][random.usize(..3)], random.u64(1..6));
        let x = floats(random, dtype, &[tokens, channels]);
        let weight = floats(random, dtype, &[channels, taps]);
        let state = floats(random, kept, &[slots, taps - 1, channels]);
        let bias = floats(random, dtype, &[channels]);
        let runs = runs_operand(random, tokens, slots);
        let mut operands = vec![x, weight, state, runs];
        operands.extend(random.bool().then_some(bias));
        return (random_choice(random, op), operands);
    }
    let tokens = tokens.min(14);
    let (keys, times) = (random.u64(1..4), random.u64(1..4));
    let heads = keys * times;
    let lengths = [1, 3, 8, 16, 20, 33];
    let length = lengths[random.usize(..lengths.len())];
    let values = [1, 5, 16, 19][random.usize(..4)];
    let columns = 2 * keys * length + heads * values;
    let x = floats(random, dtype, &[tokens, columns]);
    let step = floats(random, dtype, &[tokens, heads]);
    let beta = floats(random, dtype, &[tokens, heads]);
    let [mut rate, bias, skip] = [0; 3].map(|_| floats(random, dtype, &[heads]));
    // States fall.
    for bits in &mut rate.bits {
        *bits = dtype.encode(-dtype.value(*bits).abs().min(4.0));
    }
    let state = floats(random, kept, &[slots, heads, values, length]);
    let runs = runs_operand(random, tokens, slots);
    let mut operands = match op.name() {
        "gated_delta_rule" => vec![x, step, beta, rate, bias, state, runs],
        _ => vec![x, step, rate, bias, state, runs],
    };
    if op.name() == "selective_scan" && random.bool() {
        operands.push(skip);
    }
    let op = match op.name() {
        // Of short vectors the bound is finite.
        "gated_delta_rule" => op.number("eps", 0.25).unwrap(),
        _ if random.bool() => op.number("most", 0.5).unwrap(),
        _ => op,
    };
    (random_choice(random, op), operands)
}
