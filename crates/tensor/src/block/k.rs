//! K-quants, decoded: 256 elements in groups of 16 or 32, each with a scale, and perhaps a minimum,
//! in units of the block's own.

use super::bits::{half_at, u16_at};

/// Scale and minimum, of six bits each, of group `group` of Q4_K and Q5_K.
pub(super) fn scale_and_min(scales: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (scales[group] & 63, scales[group + 4] & 63),
        _ => (
            scales[group + 4] & 15 | scales[group - 4] >> 6 << 4,
            scales[group + 4] >> 4 | scales[group] >> 6 << 4,
        ),
    }
}

/// The scale, of six bits with an offset of 32, of group `group` of Q3_K.
pub(super) fn q3_scale(scales: &[u8], group: usize) -> i8 {
    let low = scales[group % 8] >> (4 * (group / 8)) & 15;
    let high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    (low | high << 4).cast_signed() - 32
}

pub(super) fn decode_q2_k(block: &[u8], to: &mut [f32]) {
    let (scales, codes) = block[..80].split_at(16);
    let (scale, min) = (half_at(block, 80), half_at(block, 82));
    for (group, to) in to.chunks_exact_mut(16).enumerate() {
        let factor = scale * f32::from(scales[group] & 15);
        let offset = min * f32::from(scales[group] >> 4);
        let (codes, shift) = (&codes[two_bits_from(group)..], group % 8 / 2 * 2);
        for (value, byte) in to.iter_mut().zip(codes) {
            *value = factor * f32::from(byte >> shift & 3) - offset;
        }
    }
}

/// The first byte of a group of 16 codes of two bits: a byte has those of four elements that are 32
/// apart.
fn two_bits_from(group: usize) -> usize {
    group / 8 * 32 + group % 2 * 16
}

pub(super) fn decode_q3_k(block: &[u8], to: &mut [f32]) {
    let (high, rest) = block.split_at(32);
    let (codes, scales) = rest.split_at(64);
    let scale = half_at(block, 108);
    for (group, to) in to.chunks_exact_mut(16).enumerate() {
        let factor = scale * f32::from(q3_scale(scales, group));
        let (codes, shift) = (&codes[two_bits_from(group)..], group % 8 / 2 * 2);
        let high = &high[group % 2 * 16..];
        for (at, value) in to.iter_mut().enumerate() {
            let code = codes[at] >> shift & 3 | (high[at] >> (group / 2) & 1) << 2;
            *value = factor * (f32::from(code) - 4.0);
        }
    }
}

pub(super) fn decode_q4_k(block: &[u8], to: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let (scales, codes) = block[4..].split_at(12);
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let (of_scale, of_min) = scale_and_min(scales, group);
        let (factor, offset) = (scale * f32::from(of_scale), min * f32::from(of_min));
        let codes = &codes[group / 2 * 32..];
        for (value, byte) in to.iter_mut().zip(codes) {
            *value = factor * f32::from(byte >> (group % 2 * 4) & 15) - offset;
        }
    }
}

pub(super) fn decode_q5_k(block: &[u8], to: &mut [f32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let (scales, rest) = block[4..].split_at(12);
    let (high, codes) = rest.split_at(32);
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let (of_scale, of_min) = scale_and_min(scales, group);
        let (factor, offset) = (scale * f32::from(of_scale), min * f32::from(of_min));
        let codes = &codes[group / 2 * 32..];
        for (at, value) in to.iter_mut().enumerate() {
            let code = codes[at] >> (group % 2 * 4) & 15 | (high[at] >> group & 1) << 4;
            *value = factor * f32::from(code) - offset;
        }
    }
}

pub(super) fn decode_q6_k(block: &[u8], to: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, scales) = rest.split_at(64);
    let scale = half_at(block, 208);
    for (group, to) in to.chunks_exact_mut(16).enumerate() {
        let factor = scale * f32::from(scales[group].cast_signed());
        let (half, row, first) = (group / 8, group % 8 / 2, group % 2 * 16);
        let low = &low[half * 64 + row % 2 * 32 + first..];
        let high = &high[half * 32 + first..];
        for (at, value) in to.iter_mut().enumerate() {
            let code = low[at] >> (row / 2 * 4) & 15 | (high[at] >> (row * 2) & 3) << 4;
            *value = factor * (f32::from(code) - 32.0);
        }
    }
}

/// The sums of 16 codes, behind them, are for products alone.
pub(super) fn decode_q8_k(block: &[u8], to: &mut [f32]) {
    let scale = f32::from_bits(u32::from(u16_at(block, 0)) | u32::from(u16_at(block, 2)) << 16);
    for (value, code) in to.iter_mut().zip(&block[4..]) {
        *value = scale * f32::from(code.cast_signed());
    }
}
