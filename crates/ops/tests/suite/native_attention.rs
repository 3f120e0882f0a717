//! Random operands of attention, and what its cache keeps.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::{Dtype, Layout};

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
        "attention_inputs" => {
            let (heads, value_length) = (shared * random.u64(0..4), [length, 7][random.usize(..2)]);
            let cached = beside(random, dtype);
            let columns = heads * length + shared * (length + value_length);
            let x = Operand::random(random, dtype, &[tokens, columns], true);
            let position = positions(random, tokens, 3000);
            let pairs = random.u64(..=length / 2);
            let frequency = Operand::random(random, Dtype::F32, &[pairs], true);
            let index = index_operand(random, &[tokens], 0, blocks * places, true);
            let k = Operand::random(random, cached, &[blocks, places, shared, length], true);
            let values = [blocks, places, shared, value_length];
            let v = Operand::random(random, cached, &values, true);
            let mut operands = vec![x, position, frequency, index, k, v];
            if random.bool() {
                for _ in 0..2 {
                    operands.push(Operand::random(random, dtype, &[length], true));
                }
            }
            let op = random_choice(random, op).number("magnitude", 0.75).unwrap();
            (op, operands)
        }
        "token_attention" => token_operands(random, op, dtype),
        "attention" => sequence_operands(random, op, dtype),
        _ => attention_operands(random, op, dtype),
    }
}

/// Whole sequences, of layouts with tensor maps or any.
fn sequence_operands(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let lengths = [1, 7, 8, 40, 64, 72, 128, 200, 256];
    let mut length = || lengths[random.usize(..lengths.len())];
    let (length, other) = (length(), length());
    let value_length = [length, other][random.usize(..2)];
    let shared = random.u64(1..3);
    let heads = shared * [1, 2, 3][random.usize(..3)];
    let batches = random.u64(0..3);
    let keys = [random.u64(0..9), random.u64(1..300)][random.usize(..2)];
    // What is expected is computed one product after another.
    let of_query = batches * heads * (length + value_length) * keys;
    let tokens = random.u64(0..(400_000 / of_query.max(1)).clamp(2, 200));
    let is_dense = random.u32(..3) > 0;
    let floats = |random: &mut fastrand::Rng, shape: &[u64]| match is_dense {
        true => dense_floats(random, dtype, shape),
        false => Operand::random(random, dtype, shape, true),
    };
    let mut operands = vec![
        floats(random, &[batches, tokens, heads, length]),
        floats(random, &[batches, keys, shared, length]),
        floats(random, &[batches, keys, shared, value_length]),
    ];
    if random.u32(..3) == 0 {
        operands.push(Operand::random(random, Dtype::F32, &[heads], true));
    }
    let scale = [0.05, -0.05][usize::from(random.u32(..6) == 0)];
    let mut op = op.number("scale", scale).unwrap();
    if random.u32(..3) == 0 {
        op = op.number("limit", 3.0).unwrap();
    }
    if random.bool() {
        op = op.choice("mask", "causal").unwrap();
        if random.bool() {
            op = op.number("window", f64::from(random.u32(1..90))).unwrap();
        }
    }
    (op, operands)
}

/// Tokens of sequences with blocks of their own, each the last one of its sequence, or padding.
fn token_operands(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let narrow = [Dtype::F16, Dtype::Bf16, Dtype::F8E4m3, Dtype::F8E5m2];
    let cached = [&narrow[..], &[Dtype::F32]].concat()[random.usize(..5)];
    let width = 16 / cached.bytes();
    // Of multiples of 32 there are forms for tensor cores.
    let length = match random.bool() {
        true => 32 * random.u64(1..=4),
        false => width * random.u64(1..=(96 / width).min(32)),
    };
    let (shared, places) = (random.u64(1..3), [1, 3, 16][random.usize(..3)]);
    let heads = shared * [1, 2, 3, 4, 7, 8, 12][random.usize(..7)];
    // What is expected is computed one product after another.
    let most = (150_000 / (heads * length)).clamp(4, 700);
    let (tokens, own) = (random.u64(1..4), 1 + random.u64(..most / places + 1));
    let blocks = tokens * own + random.u64(..3);
    let mut order: Vec<u64> = (0..blocks).collect();
    random.shuffle(&mut order);
    let table: Vec<u64> = order[..(tokens * own) as usize].to_vec();
    let (mut position, mut slot, mut sequence) = (Vec::new(), Vec::new(), Vec::new());
    for token in 0..tokens {
        let at = random.u64(..own * places);
        let is_padding = random.u32(..6) == 0;
        let block = table[(token * own + at / places) as usize];
        position.push(if is_padding { u64::MAX } else { at });
        slot.push(match is_padding {
            true => blocks * places,
            false => block * places + at % places,
        });
        sequence.push(token);
    }
    let columns = (heads + 2 * shared) * length;
    let is_dense = random.u32(..3) > 0;
    let floats = |random: &mut fastrand::Rng, dtype, shape: &[u64]| match is_dense {
        true => dense_floats(random, dtype, shape),
        false => Operand::random(random, dtype, shape, true),
    };
    let x = floats(random, dtype, &[tokens, columns]);
    let pairs = random.u64(..=length / 2);
    let frequency = Operand::random(random, Dtype::F32, &[pairs], true);
    let cache = [blocks, places, shared, length];
    let (k, v) = (
        floats(random, cached, &cache),
        floats(random, cached, &cache),
    );
    let mut operands = vec![
        x,
        dense_numbers(Dtype::I32, &[tokens], position),
        frequency,
        dense_numbers(Dtype::I64, &[tokens], slot),
        k,
        v,
        dense_numbers(Dtype::I32, &[tokens, own], table),
        dense_numbers(Dtype::I32, &[tokens], sequence),
        dense_numbers(
            Dtype::U32,
            &[tokens * heads],
            vec![0; (tokens * heads) as usize],
        ),
    ];
    if random.bool() {
        for _ in 0..2 {
            operands.push(Operand::random(random, dtype, &[length], true));
        }
    }
    let mut op = random_choice(random, op).number("magnitude", 0.75).unwrap();
    for (name, value) in [("limit", 3.0), ("window", 40.0)] {
        if random.u32(..3) == 0 {
            op = op.number(name, value).unwrap();
        }
    }
    (op.number("scale", 0.05).unwrap(), operands)
}

/// Whole numbers in order at an aligned place.
fn dense_numbers(dtype: Dtype, shape: &[u64], values: Vec<u64>) -> Operand {
    let mask = u64::MAX >> (64 - 8 * dtype.bytes());
    Operand {
        layout: Layout::contiguous(dtype, shape).unwrap(),
        bits: values.into_iter().map(|it| it & mask).collect(),
        first: 0,
    }
}

/// Random floats in order at an aligned place.
fn dense_floats(random: &mut fastrand::Rng, dtype: Dtype, shape: &[u64]) -> Operand {
    let operand = Operand::random(random, dtype, shape, true);
    Operand {
        layout: Layout::contiguous(dtype, shape).unwrap(),
        first: 0,
        ..operand
    }
}

/// Operands for which there are tensor cores: tokens of several sequences, some of which follow one
/// another, over a cache of floats of 16 or 8 bits.
fn tile_operands(random: &mut fastrand::Rng, op: OpDescriptor) -> (OpDescriptor, Vec<Operand>) {
    let lengths = [16, 32, 64, 80, 128, 144, 192, 256];
    let length = lengths[random.usize(..lengths.len())];
    let value_length = [length, lengths[random.usize(..lengths.len())]][random.usize(..2)];
    let (shared, places) = (random.u64(1..3), [1, 3, 16, 64][random.usize(..4)]);
    let heads = shared * [1, 2, 3, 7, 8, 12][random.usize(..6)];
    let (sequences, own) = (random.u64(1..4), random.u64(1..400_u64.div_ceil(places)));
    // What is expected is computed one product after another.
    let most = (200_000 / (heads * (length + value_length) * own * places)).clamp(1, 70);
    let (tokens, blocks) = (random.u64(1..=most), random.u64(1..9) + sequences * own / 2);
    let cached = [Dtype::F16, Dtype::Bf16, Dtype::F8E4m3, Dtype::F8E5m2][random.usize(..4)];
    let narrow = if cached.bytes() == 2 {
        cached
    } else {
        Dtype::F16
    };
    let dtype = [Dtype::F32, narrow][random.usize(..2)];
    let q = dense_floats(random, dtype, &[tokens, heads, length]);
    let k = dense_floats(random, cached, &[blocks, places, shared, length]);
    let v = dense_floats(random, cached, &[blocks, places, shared, value_length]);
    let table = (0..sequences * own).map(|_| match random.u32(..30) {
        0 => blocks,
        1 => u64::MAX,
        _ => random.u64(..blocks),
    });
    let table = dense_numbers(Dtype::I32, &[sequences, own], table.collect());
    let (mut of_sequence, mut position) = (Vec::new(), Vec::new());
    let (mut sequence, mut next) = (0, random.u64(..own * places));
    for _ in 0..tokens {
        match random.u32(..12) {
            0 => (sequence, next) = (random.u64(..=sequences), random.u64(..own * places)),
            1 => next = random.u64(..own * places + 2),
            2 => next = u64::MAX,
            _ => next = next.wrapping_add(1),
        }
        of_sequence.push(sequence);
        position.push(next);
    }
    let numbers = [Dtype::I32, Dtype::I64][random.usize(..2)];
    let of_sequence = dense_numbers(numbers, &[tokens], of_sequence);
    let position = dense_numbers(Dtype::I64, &[tokens], position);
    let op = op.choice("products", "cached").unwrap();
    let run = [1.0, 2.0, 64.0][random.usize(..3)];
    let op = op.number("run", run).unwrap();
    (op, vec![q, k, v, table, of_sequence, position])
}

fn attention_operands(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let is_tiled = dtype != Dtype::F64 && random.bool();
    let (mut op, mut operands) = match is_tiled {
        true => tile_operands(random, op),
        false => any_operands(random, op, dtype),
    };
    let heads = operands[0].layout.shape()[1];
    if random.bool() {
        operands.push(match is_tiled {
            true => dense_floats(random, Dtype::F32, &[heads]),
            false => Operand::random(random, Dtype::F32, &[heads], true),
        });
    }
    for (name, value) in [("limit", 3.0), ("max_bias", 8.0), ("window", 40.0)] {
        if random.u32(..3) == 0 {
            op = op.number(name, value).unwrap();
        }
    }
    // Small enough that weights differ by little, so that bounds are finite.
    (op.number("scale", 0.05).unwrap(), operands)
}

fn any_operands(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let tokens = random.u64(..5);
    let (blocks, places) = (random.u64(1..9), [1, 2, 16, 80][random.usize(..4)]);
    let (shared, length) = (random.u64(1..4), [1, 5, 16, 48, 64, 136][random.usize(..6)]);
    let heads = shared * [1, 1, 3, 4, 12][random.usize(..5)];
    let value_length = [length, 7, 130][random.usize(..3)];
    let (sequences, own) = (random.u64(1..4), random.u64(1..7));
    let cached = beside(random, dtype);
    let q = Operand::random(random, dtype, &[tokens, heads, length], true);
    let k = Operand::random(random, cached, &[blocks, places, shared, length], true);
    let values = [blocks, places, shared, value_length];
    let v = Operand::random(random, cached, &values, true);
    let table = index_operand(random, &[sequences, own], 0, blocks, false);
    let sequence = index_operand(random, &[tokens], 0, sequences, false);
    let position = positions(random, tokens, own * places);
    (op, vec![q, k, v, table, sequence, position])
}
