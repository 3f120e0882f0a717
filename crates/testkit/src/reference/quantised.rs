//! Quantised weights: Q8_0 and Q4_K blocks, expanded one element at a time.

use half::f16;

use super::bounds::rounded;
use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};
use crate::rng::RecordedRng;

pub(super) const TABLE: &[Reference] = &[
    Reference::new("quantise_q8_0", quantise_q8_0),
    Reference::made("gemv_q8_0", make_q8_0, gemv_q8_0),
    Reference::made("dequantise_q4k", make_q4k, dequantise_q4k),
    Reference::made("gemv_q4k", make_q4k, gemv_q4k),
];

fn quantise_q8_0(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<f32> = c.get("x");
    let scales: Vec<f32> = x
        .chunks(32)
        .map(|b| b.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0)
        .collect();
    e.exact(
        "scale",
        &scales.iter().map(|d| f16::from_f32(*d)).collect::<Vec<_>>(),
    );
    e.exact(
        "q",
        &x.iter()
            .enumerate()
            .map(|(i, v)| (v / scales[i / 32]).round_ties_even() as i8)
            .collect::<Vec<i8>>(),
    );
}

fn some_scale(rng: &mut RecordedRng) -> [u8; 2] {
    f16::from_f64(0.002 + rng.unit() * 0.05).to_le_bytes()
}

fn make_q8_0(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    let mut bytes = Vec::new();
    for _ in 0..c.buffer("weights").len() / 34 {
        bytes.extend(some_scale(rng));
        bytes.extend((0..32).map(|_| rng.next() as u8));
    }
    c.put("weights", &bytes);
}

fn gemv_q8_0(c: &LaunchInputs, e: &mut Expected) {
    let (w, scale, q, blocks) = (
        c.get::<u8>("weights"),
        c.values("scale"),
        c.get::<i8>("q"),
        c.size("blocks"),
    );
    let rows = w.chunks(blocks * 34).map(|row| {
        let (mut sum, mut size) = (0.0, 0.0);
        for (b, block) in row.chunks(34).enumerate() {
            let d = f16::from_le_bytes([block[0], block[1]]).to_f64() * scale[b];
            let dot: i32 = block[2..]
                .iter()
                .zip(&q[b * 32..])
                .map(|(x, y)| i32::from(*x as i8) * i32::from(*y))
                .sum();
            sum += d * f64::from(dot);
            size += (d * f64::from(dot)).abs();
        }
        (sum, rounded(2 + blocks.div_ceil(32) + 5, size))
    });
    e.near("y", rows);
}

fn make_q4k(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    let mut bytes = Vec::new();
    for _ in 0..c.buffer("weights").len() / 144 {
        bytes.extend(some_scale(rng));
        bytes.extend(some_scale(rng));
        bytes.extend((0..140).map(|_| rng.next() as u8));
    }
    c.put("weights", &bytes);
}

/// Bits `from..from + 6` of the twelve bytes, which hold eight scales and eight minima of six bits.
///
/// Scale j < 4 is the low six bits of byte j, minimum j < 4 those of byte j + 4. For j >= 4 the low
/// four bits are the nibbles of byte j + 4 (scale low, minimum high) and the top two are the top
/// bits of bytes j - 4 and j.
fn six_bits(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] % 64, s[j + 4] % 64)
    } else {
        (
            s[j + 4] % 16 + s[j - 4] / 64 * 16,
            s[j + 4] / 16 + s[j] / 64 * 16,
        )
    }
}

/// (d * scale, dmin * minimum, the 32 nibbles) of sub-block `j`.
fn sub_block(block: &[u8], j: usize) -> (f64, f64, Vec<u8>) {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f64();
    let low = f16::from_le_bytes([block[2], block[3]]).to_f64();
    let (scale, minimum) = six_bits(&block[4..16], j);
    let nibbles = block[16 + j / 2 * 32..][..32]
        .iter()
        .map(|b| if j.is_multiple_of(2) { b % 16 } else { b / 16 })
        .collect();
    (d * f64::from(scale), low * f64::from(minimum), nibbles)
}

fn dequantise_q4k(c: &LaunchInputs, e: &mut Expected) {
    let w: Vec<u8> = c.get("weights");
    let mut y = Vec::new();
    for block in w.chunks(144) {
        for j in 0..8 {
            let (scale, low, nibbles) = sub_block(block, j);
            // Products of eleven, six and four bits are exact, so f64 rounds once where f32 does.
            y.extend(nibbles.iter().map(|n| (scale * f64::from(*n) - low) as f32));
        }
    }
    e.exact("y", &y);
}

fn gemv_q4k(c: &LaunchInputs, e: &mut Expected) {
    let (w, q, scale, blocks) = (
        c.get::<u8>("weights"),
        c.get::<i8>("q"),
        c.values("scale"),
        c.size("blocks"),
    );
    let rows = w.chunks(blocks * 144).map(|row| {
        let (mut sum, mut size) = (0.0, 0.0);
        for u in 0..blocks * 8 {
            let (s, low, nibbles) = sub_block(&row[u / 8 * 144..], u % 8);
            let v = &q[u * 32..][..32];
            let dot: i32 = nibbles
                .iter()
                .zip(v)
                .map(|(n, x)| i32::from(*n) * i32::from(*x))
                .sum();
            let ones: i32 = v.iter().map(|x| i32::from(*x)).sum();
            sum += scale[u] * (s * f64::from(dot) - low * f64::from(ones));
            size += scale[u] * ((s * f64::from(dot)).abs() + (low * f64::from(ones)).abs());
        }
        (sum, rounded(4 + blocks.div_ceil(8) + 6, size))
    });
    e.near("y", rows);
}
