//! Fields of blocks, and the conversions that llama.cpp's reference makes of floats.
//!
//! Where C leaves a conversion undefined, these do what the reference does on x86-64: blocks whose
//! values are so small that the inverse of their scale is infinite depend on it.

use half::f16;

pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_bits(u16_at(block, at)).to_f32()
}

pub(super) fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from(u16_at(block, at)) | u32::from(u16_at(block, at + 2)) << 16
}

/// Towards zero; `i32::MIN` for what is no `i32`.
pub(super) fn truncated(value: f32) -> i32 {
    match (-2_147_483_648.0..2_147_483_648.0).contains(&value) {
        true => value as i32,
        false => i32::MIN,
    }
}

/// The low half of the nearest 64-bit number, half away from zero.
pub(super) fn rounded(value: f32) -> i32 {
    match value.abs() < 9_223_372_036_854_775_808.0 {
        true => value.round() as i64 as i32,
        false => 0,
    }
}

/// The nearest number, ties to even, by adding 1.5 * 2^23: beyond 22 bits it is a number without a
/// meaning, and always the same one.
pub(super) fn nearest(value: f32) -> i32 {
    ((value + 12_582_912.0).to_bits() & 0x007f_ffff).cast_signed() - 0x0040_0000
}

/// The inverse, of 0 too.
pub(super) fn inverse(scale: f32) -> f32 {
    match scale == 0.0 {
        true => 0.0,
        false => 1.0 / scale,
    }
}

/// The first of the values of the largest magnitude; 0 of none.
pub(super) fn extreme(values: &[f32]) -> f32 {
    let mut found = 0.0f32;
    for value in values {
        if value.abs() > found.abs() {
            found = *value;
        }
    }
    found
}

/// The largest magnitude.
pub(super) fn magnitude(values: &[f32]) -> f32 {
    extreme(values).abs()
}
