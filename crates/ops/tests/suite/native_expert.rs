//! Random operands of products by experts.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::{BlockFormat, Dtype, Layout};

use crate::bench::{Operand, layout};
use crate::native::index_operand;
use crate::native_quant::{blocks, some_type};

/// Tokens, choices of each, experts, and columns: at times more pairs than are computed one by one.
fn sizes(random: &mut fastrand::Rng) -> [u64; 4] {
    let slots = random.u64(1..4);
    let tokens = match random.u32(..4) {
        0 => random.u64(65..130) / slots + 1,
        1 => 1,
        _ => random.u64(..9),
    };
    [tokens, slots, random.u64(1..7), random.u64(1..20)]
}

/// x with a row for each token or each choice, and the choices.
fn of_tokens(
    random: &mut fastrand::Rng,
    dtype: Dtype,
    [tokens, slots, experts]: [u64; 3],
    depth: u64,
) -> [Operand; 2] {
    let tame = random.u32(..8) > 0;
    let shape = match random.bool() {
        true => vec![tokens, depth],
        false => vec![tokens, slots, depth],
    };
    let x = Operand::random(random, dtype, &shape, tame);
    [
        x,
        index_operand(random, &[tokens, slots], 1, experts, false),
    ]
}

/// Weights of experts, in any layout.
fn weight(
    random: &mut fastrand::Rng,
    format: BlockFormat,
    [experts, columns, across]: [u64; 3],
) -> Operand {
    let bytes = blocks(random, format, experts * columns * across);
    let own = [experts, columns, across * format.bytes() as u64];
    let layout = match random.u32(..4) {
        0 => layout(random, Dtype::U8, &own, true),
        _ => Layout::contiguous(Dtype::U8, &own).unwrap(),
    };
    Operand::of(random, layout, bytes.into_iter().map(u64::from).collect())
}

/// Operands of an op on weights in blocks.
pub(crate) fn of_blocks(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    format: BlockFormat,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let [tokens, slots, experts, columns] = sizes(random);
    let across = match format.elements() {
        256 => 1,
        _ => random.u64(1..4),
    };
    let depth = across * format.elements() as u64;
    let [x, index] = of_tokens(random, dtype, [tokens, slots, experts], depth);
    let own = [experts, columns, across];
    let mut all = vec![x, weight(random, format, own)];
    if op.name() == "quantised_expert_swiglu" {
        all.push(weight(random, format, own));
        all.push(index);
        return (some_type(random, op), all);
    }
    all.push(index);
    if random.bool() {
        all.push(Operand::random(random, dtype, &[experts, columns], true));
    }
    (some_type(random, op), all)
}

/// Operands of an op on weights of floats.
pub(crate) fn of_floats(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let [tokens, slots, experts, columns] = sizes(random);
    let depth = [0, 1, 7, 8, 40, 300][random.usize(..6)];
    let own = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8E4m3][random.usize(..4)];
    let [x, index] = of_tokens(random, dtype, [tokens, slots, experts], depth);
    let w = Operand::random(random, own, &[experts, columns, depth], true);
    let mut all = vec![x, w, index];
    if random.bool() {
        all.push(Operand::random(random, dtype, &[experts, columns], true));
    }
    (op, all)
}
