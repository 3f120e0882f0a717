//! Random operands of segments, bags and gradients of tables.

use fercuda_ops::OpDescriptor;
use fercuda_tensor::Dtype;

use crate::bench::{Operand, layout};
use crate::native::{index_operand, random_choice};
use crate::parity::shape;

/// Offsets of segments of so many rows: mostly in order, and a few outside.
fn offsets(random: &mut fastrand::Rng, segments: u64, rows: u64, ascending: bool) -> Operand {
    let dtype = if random.bool() {
        Dtype::I64
    } else {
        Dtype::U16
    };
    let own = layout(random, dtype, &[segments + 1], true);
    let mut all: Vec<u64> = (0..=segments).map(|_| random.u64(..=rows)).collect();
    if ascending || random.u32(..8) > 0 {
        all.sort_unstable();
    }
    let mask = u64::MAX >> (64 - 8 * dtype.bytes());
    for it in &mut all {
        if random.u32(..20) == 0 {
            *it = [rows + 1, u64::MAX, 60_000][random.usize(..3)] & mask;
        }
    }
    Operand::of(random, own, all)
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let name = op.name();
    let op = random_choice(random, op);
    let segments = random.u64(..7);
    if name == "segment_reduce" {
        let mut own = shape(random, 1);
        if random.u32(..4) == 0 {
            own = vec![random.u64(1..40), random.u64(60..140)];
        }
        let x = Operand::random(random, dtype, &own, true);
        return (op, vec![x, offsets(random, segments, own[0], false)]);
    }
    let (rows, width) = (random.u64(..30), random.u64(..70));
    if name == "embedding_backward" {
        let of = shape(random, 0);
        let index = index_operand(random, &of, 0, rows, false);
        let g = Operand::random(random, dtype, &[&of[..], &[width]].concat(), true);
        return (op.number("rows", rows as f64).unwrap(), vec![g, index]);
    }
    let places = random.u64(..60);
    let index = index_operand(random, &[places], 0, rows, false);
    let of_bags = offsets(random, segments, places, false);
    let (op, first) = match name {
        "embedding_bag" => (op, [rows, width]),
        _ => (op.number("rows", rows as f64).unwrap(), [segments, width]),
    };
    let first = Operand::random(random, dtype, &first, true);
    let mut all = vec![first, index, of_bags];
    if op.choice_of("reduce") == "sum" && random.bool() {
        all.push(Operand::random(random, dtype, &[places], true));
    }
    (op, all)
}

/// Weights, some of which are 0 or below, and random parameters of draws.
pub(crate) fn weights(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let mut own = shape(random, 1);
    if let Some(last) = own.last_mut() {
        *last = if random.u32(..4) == 0 {
            random.u64(200..900)
        } else {
            (*last).max(1)
        };
    }
    let most = match op.name() {
        "multinomial_different" => own[own.len() - 1].min(8),
        _ => 8,
    };
    let mut op = op.number("samples", random.u64(..=most) as f64).unwrap();
    for list in ["seed", "subsequence"] {
        op = op.list(list, &[random.i64(..)]).unwrap();
    }
    (op, vec![Operand::random(random, dtype, &own, true)])
}

/// Rows, and settings by which one element of each is chosen.
pub(crate) fn choices(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let rows = random.u64(..4);
    let lengths = [1, 2, 33, 500, 1500, 5000];
    let len = lengths[random.usize(..lengths.len())];
    let mut x = Operand::random(random, dtype, &[rows, len], true);
    let wide = [0.1, 1.0, 8.0][random.usize(..3)];
    for bits in &mut x.bits {
        // Many near the largest one, or few.
        *bits = dtype.encode(dtype.value(*bits) * wide);
        if random.usize(..900) == 0 {
            *bits = dtype.encode(f64::NEG_INFINITY);
        }
        if random.usize(..9000) == 0 {
            *bits = dtype.encode(f64::NAN);
        }
    }
    let layout = crate::bench::layout(random, Dtype::I32, &[rows, 6], true);
    let float = |value: f32| u64::from(value.to_bits());
    let mut bits = Vec::new();
    for _ in 0..rows {
        let temperature = [0.0, -1.0, 0.3, 1.0, 2.5][random.usize(..5)];
        let top_k = [0, 0, 1, 5, 40, 900, 4000, u64::from(u32::MAX)][random.usize(..8)];
        let top_p = [1.0, 1.0, 0.0, 0.5, 0.95, 0.9999][random.usize(..6)];
        let min_p = [0.0, 0.0, 0.03, 0.5, 1.0][random.usize(..5)];
        let place = [0.0, 1.0, random.f64(), random.f64(), random.f64()][random.usize(..5)];
        let place = place.to_bits();
        bits.extend([float(temperature), top_k, float(top_p), float(min_p)]);
        bits.extend([place & 0xffff_ffff, place >> 32]);
    }
    (op, vec![x, Operand::of(random, layout, bits)])
}

/// A matrix in compressed rows, and what it is multiplied by.
pub(crate) fn sparse(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let (rows, columns) = (random.u64(..9), random.u64(..30));
    let elements = if random.bool() {
        random.u64(..30)
    } else {
        random.u64(100..300)
    };
    let index = index_operand(random, &[elements], 0, columns, false);
    // A value in two rows of a sampled product would be either one.
    let offsets = offsets(random, rows, elements, op.name() == "sddmm");
    let values = Operand::random(random, dtype, &[elements], true);
    let width = if random.u32(..4) == 0 {
        random.u64(32..60)
    } else {
        random.u64(..8)
    };
    let dense: Vec<Vec<u64>> = match op.name() {
        "csr_matvec" => vec![vec![columns]],
        "csr_matmul" => vec![vec![columns, width]],
        _ => vec![vec![rows, width], vec![width, columns]],
    };
    let mut all = vec![values, index, offsets];
    all.extend(
        dense
            .iter()
            .map(|shape| Operand::random(random, dtype, shape, true)),
    );
    (op, all)
}
