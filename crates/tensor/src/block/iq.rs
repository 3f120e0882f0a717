//! Blocks whose codes choose rows of a codebook: IQ1 to IQ3, and IQ4_XS.
//!
//! They can be decoded only: a choice of rows is a search that needs an importance matrix.

use super::bits::{half_at, u16_at, u32_at};
use super::grids;
use super::simple::NONLINEAR;

/// Levels of IQ2's codebooks, of IQ3_XXS's, and the offset of IQ1's.
const TWO: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
const THREE: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const OFFSET: f32 = 0.125;

/// Seven signs, and an eighth that makes their number even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

fn sign(signs: u8, at: usize) -> f32 {
    match signs >> at & 1 {
        0 => 1.0,
        _ => -1.0,
    }
}

/// Eight elements of two bits each.
fn put_two(row: u16, signs: u8, factor: f32, to: &mut [f32]) {
    for (at, value) in to.iter_mut().enumerate() {
        *value = factor * TWO[usize::from(row >> (2 * at) & 3)] * sign(signs, at);
    }
}

pub(super) fn decode_iq2_xxs(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let first = 2 + group * 8;
        let word = u32_at(block, first + 4);
        let factor = scale * (0.5 + (word >> 28) as f32) * 0.25;
        for (part, to) in to.chunks_exact_mut(8).enumerate() {
            let row = grids::IQ2_XXS[usize::from(block[first + part])];
            put_two(row, even_signs(word >> (7 * part)), factor, to);
        }
    }
}

/// The factor of 16 elements: four bits each.
fn nibble_factor(scale: f32, scales: &[u8], group: usize) -> f32 {
    let nibble = scales[group / 2] >> (group % 2 * 4) & 15;
    scale * (0.5 + f32::from(nibble)) * 0.25
}

pub(super) fn decode_iq2_xs(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (part, to) in to.chunks_exact_mut(8).enumerate() {
        let word = u16_at(block, 2 + part * 2);
        let factor = nibble_factor(scale, &block[66..], part / 2);
        let row = grids::IQ2_XS[usize::from(word & 511)];
        put_two(row, even_signs(u32::from(word >> 9)), factor, to);
    }
}

pub(super) fn decode_iq2_s(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (part, to) in to.chunks_exact_mut(8).enumerate() {
        let high = u16::from(block[66 + part / 4] >> (part % 4 * 2) & 3) << 8;
        let row = grids::IQ2_S[usize::from(u16::from(block[2 + part]) | high)];
        let factor = nibble_factor(scale, &block[74..], part / 2);
        put_two(row, block[34 + part], factor, to);
    }
}

/// Eight elements of three bits each, from two rows.
fn put_three(rows: [u16; 2], signs: u8, factor: f32, level: fn(u16) -> f32, to: &mut [f32]) {
    for (at, value) in to.iter_mut().enumerate() {
        let code = rows[at / 4] >> (at % 4 * 3) & 7;
        *value = factor * level(code) * sign(signs, at);
    }
}

pub(super) fn decode_iq3_xxs(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let word = u32_at(block, 66 + group * 4);
        let factor = scale * (0.5 + (word >> 28) as f32) * 0.5;
        for (part, to) in to.chunks_exact_mut(8).enumerate() {
            let codes = &block[2 + group * 8 + part * 2..];
            let rows = [codes[0], codes[1]].map(|code| grids::IQ3_XXS[usize::from(code)]);
            let signs = even_signs(word >> (7 * part));
            put_three(rows, signs, factor, |code| THREE[usize::from(code)], to);
        }
    }
}

pub(super) fn decode_iq3_s(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    let (codes, high) = (&block[2..66], &block[66..74]);
    let (signs, scales) = (&block[74..106], &block[106..]);
    for (part, to) in to.chunks_exact_mut(8).enumerate() {
        let group = part / 4;
        let nibble = scales[group / 2] >> (group % 2 * 4) & 15;
        let factor = scale * (1.0 + 2.0 * f32::from(nibble));
        let row = |at: usize| {
            let high = u16::from(high[at / 8] >> (at % 8) & 1) << 8;
            grids::IQ3_S[usize::from(u16::from(codes[at]) | high)]
        };
        let rows = [row(part * 2), row(part * 2 + 1)];
        let level = |code: u16| f32::from(2 * code + 1);
        put_three(rows, signs[part], factor, level, to);
    }
}

/// Eight elements of -1, 0 and 1, all shifted.
fn put_one(row: u16, is_below: bool, factor: f32, to: &mut [f32]) {
    let offset = if is_below { -OFFSET } else { OFFSET };
    for (at, value) in to.iter_mut().enumerate() {
        let level = f32::from(row >> (2 * at) & 3) - 1.0;
        *value = factor * (level + offset);
    }
}

pub(super) fn decode_iq1_s(block: &[u8], to: &mut [f32]) {
    let scale = half_at(block, 0);
    for (part, to) in to.chunks_exact_mut(8).enumerate() {
        let word = u16_at(block, 34 + part / 4 * 2);
        let factor = scale * f32::from(2 * (word >> 12 & 7) + 1);
        let high = (word >> (3 * (part % 4)) & 7) << 8;
        let row = grids::IQ1[usize::from(u16::from(block[2 + part]) | high)];
        put_one(row, word & 0x8000 != 0, factor, to);
    }
}

pub(super) fn decode_iq1_m(block: &[u8], to: &mut [f32]) {
    let words: [u16; 4] = std::array::from_fn(|at| u16_at(block, 48 + at * 2));
    // The block's scale is in the topmost bits of the groups' ones.
    let scale = words
        .iter()
        .enumerate()
        .fold(0, |all, (at, word)| all | word >> 12 << (4 * at));
    let scale = half::f16::from_bits(scale).to_f32();
    for (part, to) in to.chunks_exact_mut(8).enumerate() {
        let group = part / 2;
        let bits = words[group / 4] >> (group % 4 * 3) & 7;
        let factor = scale * f32::from(2 * bits + 1);
        let high = block[32 + group] >> (part % 2 * 4) & 15;
        let row = u16::from(block[part]) | u16::from(high & 7) << 8;
        put_one(grids::IQ1[usize::from(row)], high & 8 != 0, factor, to);
    }
}

pub(super) fn decode_iq4_xs(block: &[u8], to: &mut [f32]) {
    let (scale, high) = (half_at(block, 0), u16_at(block, 2));
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
        let six_bits = u16::from(low) | (high >> (2 * group) & 3) << 4;
        let factor = scale * (f32::from(six_bits) - 32.0);
        for (at, byte) in block[8 + group * 16..].iter().take(16).enumerate() {
            to[at] = factor * f32::from(NONLINEAR[usize::from(byte & 15)]);
            to[at + 16] = factor * f32::from(NONLINEAR[usize::from(byte >> 4)]);
        }
    }
}
