//! Blocks with one scale, and perhaps one minimum, for all their elements: Q1_0 to Q8_1, IQ4_NL.

use super::bits::{extreme, half_at, inverse, magnitude, put_half, rounded, truncated, u32_at};

/// Levels of IQ4_NL and IQ4_XS.
pub(super) const NONLINEAR: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

pub(super) fn decode_q1_0(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (at, value) in to.iter_mut().enumerate() {
        let is_positive = block[2 + at / 8] >> (at % 8) & 1 == 1;
        *value = if is_positive { scale } else { -scale };
    }
}

pub(super) fn encode_q1_0(values: &[f32], block: &mut [u8]) {
    let sum = values.iter().fold(0.0f32, |sum, value| sum + value.abs());
    put_half(block, 0, sum / values.len() as f32);
    block[2..].fill(0);
    for (at, value) in values.iter().enumerate() {
        block[2 + at / 8] |= u8::from(*value >= 0.0) << (at % 8);
    }
}

pub(super) fn decode_q2_0(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (at, value) in to.iter_mut().enumerate() {
        let code = block[2 + at / 4] >> (2 * (at % 4)) & 3;
        *value = (f32::from(code) - 1.0) * scale;
    }
}

pub(super) fn encode_q2_0(values: &[f32], block: &mut [u8]) {
    let scale = magnitude(values);
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    put_half(block, 0, scale);
    block[2..].fill(0);
    for (at, value) in values.iter().enumerate() {
        let code = (truncated((value * inverse).round()) + 1).clamp(0, 3);
        block[2 + at / 4] |= (code as u8) << (2 * (at % 4));
    }
}

/// The two elements of byte `at` lie half a block apart.
fn nibbles(packed: &[u8], to: &mut [f32], value_of: impl Fn(usize, u8) -> f32) {
    let half = packed.len();
    for (at, byte) in packed.iter().enumerate() {
        to[at] = value_of(at, byte & 15);
        to[at + half] = value_of(at + half, byte >> 4);
    }
}

/// Codes as nibbles, each byte with two elements half a block apart.
fn put_nibbles(values: &[f32], packed: &mut [u8], code_of: impl Fn(f32) -> u8) {
    let half = packed.len();
    for (at, byte) in packed.iter_mut().enumerate() {
        *byte = code_of(values[at]) | code_of(values[at + half]) << 4;
    }
}

pub(super) fn decode_q4_0(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    nibbles(&block[2..], to, |_, code| (f32::from(code) - 8.0) * scale);
}

pub(super) fn encode_q4_0(values: &[f32], block: &mut [u8]) {
    let scale = extreme(values) / -8.0;
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    put_nibbles(values, &mut block[2..], |value| {
        i32::from(truncated(value * inverse + 8.5) as i8).min(15) as u8
    });
}

pub(super) fn decode_q4_1(block: &[u8], to: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    nibbles(&block[4..], to, |_, code| f32::from(code) * scale + min);
}

fn min_and_max(values: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = (f32::MAX, f32::MIN);
    for value in values {
        if *value < min {
            min = *value;
        }
        if *value > max {
            max = *value;
        }
    }
    (min, max)
}

pub(super) fn encode_q4_1(values: &[f32], block: &mut [u8]) {
    let (min, max) = min_and_max(values);
    let scale = (max - min) / 15.0;
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    put_half(block, 2, min);
    put_nibbles(values, &mut block[4..], |value| {
        i32::from(truncated((value - min) * inverse + 0.5) as i8).min(15) as u8
    });
}

/// A fifth bit of element `at`.
fn high_bit(bits: u32, at: usize) -> u8 {
    ((bits >> at & 1) << 4) as u8
}

pub(super) fn decode_q5_0(block: &[u8], to: &mut [f32]) {
    let (scale, high) = (half_at(block, 0), u32_at(block, 2));
    nibbles(&block[6..], to, |at, code| {
        (f32::from(code | high_bit(high, at)) - 16.0) * scale
    });
}

pub(super) fn decode_q5_1(block: &[u8], to: &mut [f32]) {
    let (scale, min, high) = (half_at(block, 0), half_at(block, 2), u32_at(block, 4));
    nibbles(&block[8..], to, |at, code| {
        f32::from(code | high_bit(high, at)) * scale + min
    });
}

/// Codes of five bits: the fifth ones in four bytes, then the nibbles.
fn put_five_bits(values: &[f32], packed: &mut [u8], code_of: impl Fn(f32) -> u8) {
    let mut high = 0u32;
    for (at, value) in values.iter().enumerate() {
        high |= u32::from(code_of(*value) >> 4 & 1) << at;
    }
    packed[..4].copy_from_slice(&high.to_le_bytes());
    put_nibbles(values, &mut packed[4..], |value| code_of(value) & 15);
}

pub(super) fn encode_q5_0(values: &[f32], block: &mut [u8]) {
    let scale = extreme(values) / -16.0;
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    put_five_bits(values, &mut block[2..], |value| {
        i32::from(truncated(value * inverse + 16.5) as i8).min(31) as u8
    });
}

pub(super) fn encode_q5_1(values: &[f32], block: &mut [u8]) {
    let (min, max) = min_and_max(values);
    let scale = (max - min) / 31.0;
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    put_half(block, 2, min);
    put_five_bits(values, &mut block[4..], |value| {
        truncated((value - min) * inverse + 0.5) as u8
    });
}

pub(super) fn decode_q8_0(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (value, code) in to.iter_mut().zip(&block[2..]) {
        *value = f32::from(code.cast_signed()) * scale;
    }
}

/// The scale, and the codes into the end of the block.
fn put_eight_bits(values: &[f32], block: &mut [u8], codes_at: usize) -> f32 {
    let scale = magnitude(values) / 127.0;
    let inverse = inverse(scale);
    put_half(block, 0, scale);
    for (code, value) in block[codes_at..].iter_mut().zip(values) {
        *code = truncated((value * inverse).round()) as u8;
    }
    scale
}

pub(super) fn encode_q8_0(values: &[f32], block: &mut [u8]) {
    put_eight_bits(values, block, 2);
}

/// The sum beside the scale is for products alone.
pub(super) fn decode_q8_1(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (value, code) in to.iter_mut().zip(&block[4..]) {
        *value = f32::from(code.cast_signed()) * scale;
    }
}

pub(super) fn encode_q8_1(values: &[f32], block: &mut [u8]) {
    let scale = put_eight_bits(values, block, 4);
    let codes = block[4..].iter();
    let sum: i32 = codes.map(|code| i32::from(code.cast_signed())).sum();
    put_half(block, 2, sum as f32 * scale);
}

pub(super) fn decode_iq4_nl(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    nibbles(&block[2..], to, |_, code| {
        scale * f32::from(NONLINEAR[usize::from(code)])
    });
}

/// Elements and bytes of the three parts of a TQ1_0 block: a byte has one element of each of five
/// rows, and of four in the last part.
const TRITS: [(usize, usize, usize); 3] = [(0, 32, 5), (32, 16, 5), (48, 4, 4)];

pub(super) fn decode_tq1_0(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 52);
    let mut first = 0;
    for (from, columns, rows) in TRITS {
        let mut power = 1u8;
        for _ in 0..rows {
            for column in 0..columns {
                let digit = (u16::from(block[from + column].wrapping_mul(power)) * 3) >> 8;
                to[first + column] = (f32::from(digit) - 1.0) * scale;
            }
            first += columns;
            power = power.wrapping_mul(3);
        }
    }
}

pub(super) fn encode_tq1_0(values: &[f32], block: &mut [u8]) {
    let scale = magnitude(values);
    let inverse = inverse(scale);
    let mut first = 0;
    for (from, columns, rows) in TRITS {
        for column in 0..columns {
            let mut digits = 0u8;
            for row in 0..rows {
                let code = rounded(values[first + row * columns + column] * inverse) + 1;
                digits = digits.wrapping_mul(3).wrapping_add(code as u8);
            }
            if rows == 4 {
                digits = digits.wrapping_mul(3);
            }
            // As a fraction of 256, rounded up, whose leading digit is the first element.
            block[from + column] = (u32::from(digits) * 256).div_ceil(243) as u8;
        }
        first += columns * rows;
    }
    put_half(block, 52, scale);
}

pub(super) fn decode_tq2_0(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 64);
    for (at, value) in to.iter_mut().enumerate() {
        let code = block[at / 128 * 32 + at % 32] >> (2 * (at % 128 / 32)) & 3;
        *value = (f32::from(code) - 1.0) * scale;
    }
}

pub(super) fn encode_tq2_0(values: &[f32], block: &mut [u8]) {
    let scale = magnitude(values);
    let inverse = inverse(scale);
    block.fill(0);
    for (at, value) in values.iter().enumerate() {
        let code = rounded(value * inverse) + 1;
        block[at / 128 * 32 + at % 32] |= ((code & 3) as u8) << (2 * (at % 128 / 32));
    }
    put_half(block, 64, scale);
}
