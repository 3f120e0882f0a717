//! K-quants, encoded as by llama.cpp's reference: without an importance matrix, each sum in f32 and
//! in the order of the elements.

use super::bits::{extreme, half_at, inverse, magnitude, nearest, put_half};
use super::k::{q3_scale, scale_and_min};

/// Groups of a smaller magnitude are zero.
const SMALLEST: f32 = 1e-15;

/// A search for the scale and the minimum of a group.
#[derive(Clone, Copy)]
struct AffineSearch {
    /// The largest code.
    most: i32,
    /// What is added to it in the first try, a tenth more in each of the next.
    first: f32,
    /// Tries after the first.
    steps: u8,
    /// Whether errors count by their magnitude, not by their square.
    is_absolute: bool,
}

impl AffineSearch {
    fn error(self, difference: f32) -> f32 {
        match self.is_absolute {
            true => difference.abs(),
            false => difference * difference,
        }
    }

    fn code(self, inverse: f32, above: f32) -> i32 {
        nearest(inverse * above).clamp(0, self.most)
    }

    /// Finds scale and negated minimum by weighted least squares around several roundings, and
    /// writes the codes of the best.
    fn run(self, values: &[f32], weights: &[f32], codes: &mut [u8]) -> (f32, f32) {
        let (mut min, mut max) = (values[0], values[0]);
        let mut sum_w = weights[0];
        let mut sum_x = sum_w * values[0];
        for (value, weight) in values.iter().zip(weights).skip(1) {
            if *value < min {
                min = *value;
            }
            if *value > max {
                max = *value;
            }
            sum_w += weight;
            sum_x += weight * value;
        }
        if min > 0.0 {
            min = 0.0;
        }
        if max == min {
            codes.fill(0);
            return (0.0, -min);
        }
        let mut inverse = self.most as f32 / (max - min);
        let mut scale = 1.0 / inverse;
        let mut least = 0.0f32;
        for ((value, weight), code) in values.iter().zip(weights).zip(codes.iter_mut()) {
            *code = self.code(inverse, value - min) as u8;
            least += weight * self.error(scale * f32::from(*code) + min - value);
        }
        let mut tried = [0u8; 32];
        let tried = &mut tried[..values.len()];
        for step in 0..=self.steps {
            // From the best minimum so far, which is no more that of the elements.
            inverse = (self.first + 0.1 * f32::from(step) + self.most as f32) / (max - min);
            let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
            for ((value, weight), code) in values.iter().zip(weights).zip(tried.iter_mut()) {
                *code = self.code(inverse, value - min) as u8;
                let level = f32::from(*code);
                sum_l += weight * level;
                sum_l2 += weight * level * level;
                sum_xl += weight * level * value;
            }
            let determinant = sum_w * sum_l2 - sum_l * sum_l;
            if determinant.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
                continue;
            }
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if this_min > 0.0 {
                this_min = 0.0;
                this_scale = sum_xl / sum_l2;
            }
            let mut sum = 0.0f32;
            for ((value, weight), code) in values.iter().zip(weights).zip(tried.iter()) {
                sum += weight * self.error(this_scale * f32::from(*code) + this_min - value);
            }
            if sum < least {
                codes.copy_from_slice(tried);
                least = sum;
                scale = this_scale;
                min = this_min;
            }
        }
        (scale, -min)
    }
}

/// Finds a scale for codes from `-most` to `most - 1`, which are written with that offset, by least
/// squares weighted by the squares.
fn symmetric(values: &[f32], most: i32, codes: &mut [u8]) -> f32 {
    let largest = extreme(values);
    if largest.abs() < SMALLEST {
        codes.fill(0);
        return 0.0;
    }
    let code = |inverse: f32, value: f32| nearest(inverse * value).clamp(-most, most - 1);
    let sums = |inverse: f32| {
        let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
        for value in values {
            let level = code(inverse, *value) as f32;
            let weight = value * value;
            sum_lx += weight * value * level;
            sum_l2 += weight * level * level;
        }
        (sum_lx, sum_l2)
    };
    let mut best_inverse = -most as f32 / largest;
    let (sum_lx, sum_l2) = sums(best_inverse);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for step in (-9..=9).filter(|step| *step != 0) {
        let inverse = -(most as f32 + 0.1 * step as f32) / largest;
        let (sum_lx, sum_l2) = sums(inverse);
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            best_inverse = inverse;
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    for (to, value) in codes.iter_mut().zip(values) {
        *to = (code(best_inverse, *value) + most) as u8;
    }
    scale
}

/// Finds a scale for codes from -4 to 3, which are written with an offset of 4: rounds, then moves
/// single codes while the weighted squares shrink.
fn moved(values: &[f32], codes: &mut [u8]) -> f32 {
    const MOST: i32 = 4;
    let largest = extreme(values);
    if largest.abs() < SMALLEST {
        codes.fill(0);
        return 0.0;
    }
    let inverse = -MOST as f32 / largest;
    let mut levels = [0i32; 16];
    let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
    for (value, level) in values.iter().zip(&mut levels) {
        *level = nearest(inverse * value).clamp(-MOST, MOST - 1);
        let weight = value * value;
        sum_lx += weight * value * *level as f32;
        sum_l2 += weight * *level as f32 * *level as f32;
    }
    for _ in 0..5 {
        let mut is_changed = false;
        for (value, level) in values.iter().zip(&mut levels) {
            let weight = value * value;
            let mut without_lx = sum_lx - weight * value * *level as f32;
            if without_lx > 0.0 {
                let mut without_l2 = sum_l2 - weight * *level as f32 * *level as f32;
                let new = nearest(value * without_l2 / without_lx).clamp(-MOST, MOST - 1);
                if new != *level {
                    without_lx += weight * value * new as f32;
                    without_l2 += weight * new as f32 * new as f32;
                    if without_l2 > 0.0
                        && without_lx * without_lx * sum_l2 > sum_lx * sum_lx * without_l2
                    {
                        (*level, sum_lx, sum_l2) = (new, without_lx, without_l2);
                        is_changed = true;
                    }
                }
            }
        }
        if !is_changed {
            break;
        }
    }
    for (code, level) in codes.iter_mut().zip(levels) {
        *code = (level + MOST) as u8;
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

/// Four codes of two bits a byte, of elements that are 32 apart.
fn put_two_bits(codes: &[u8; 256], packed: &mut [u8]) {
    for (at, byte) in packed.iter_mut().enumerate() {
        let first = at / 32 * 128 + at % 32;
        *byte =
            codes[first] | codes[first + 32] << 2 | codes[first + 64] << 4 | codes[first + 96] << 6;
    }
}

pub(super) fn encode_q2_k(values: &[f32], block: &mut [u8]) {
    const SEARCH: AffineSearch = AffineSearch {
        most: 3,
        first: -0.5,
        steps: 15,
        is_absolute: true,
    };
    let mut codes = [0u8; 256];
    let (mut scales, mut mins) = ([0f32; 16], [0f32; 16]);
    let groups = values.chunks_exact(16).zip(codes.chunks_exact_mut(16));
    for (group, (values, codes)) in groups.enumerate() {
        let mut weights = [0f32; 16];
        for (weight, value) in weights.iter_mut().zip(values) {
            *weight = value.abs();
        }
        (scales[group], mins[group]) = SEARCH.run(values, &weights, codes);
    }
    block[..16].fill(0);
    for (shift, parts, at) in [(0, &scales, 80), (4, &mins, 82)] {
        let most = parts
            .iter()
            .fold(0.0f32, |most, it| if *it > most { *it } else { most });
        let inverse = 15.0 / most;
        if most > 0.0 {
            for (byte, part) in block.iter_mut().zip(parts) {
                *byte |= (nearest(inverse * part) << shift) as u8;
            }
        }
        put_half(block, at, if most > 0.0 { most / 15.0 } else { 0.0 });
    }
    for (group, (values, codes)) in values.chunks(16).zip(codes.chunks_mut(16)).enumerate() {
        let scale = half_at(block, 80) * f32::from(block[group] & 15);
        let min = half_at(block, 82) * f32::from(block[group] >> 4);
        requantise(values, scale, min, 3, codes);
    }
    put_two_bits(&codes, &mut block[16..80]);
}

/// Codes for the scale and the minimum as they were stored; unchanged if the scale is 0.
fn requantise(values: &[f32], scale: f32, min: f32, most: i32, codes: &mut [u8]) {
    if scale != 0.0 {
        for (code, value) in codes.iter_mut().zip(values) {
            *code = nearest((value + min) / scale).clamp(0, most) as u8;
        }
    }
}

/// As [`requantise`], for codes from `-most` to `most - 1` with that offset.
fn requantise_symmetric(values: &[f32], scale: f32, most: i32, codes: &mut [u8]) {
    if scale != 0.0 {
        for (code, value) in codes.iter_mut().zip(values) {
            *code = (nearest(value / scale).clamp(-most, most - 1) + most) as u8;
        }
    }
}

pub(super) fn encode_q3_k(values: &[f32], block: &mut [u8]) {
    let mut codes = [0u8; 256];
    let mut parts = [0f32; 16];
    for ((values, codes), part) in (values.chunks(16).zip(codes.chunks_mut(16))).zip(&mut parts) {
        *part = moved(values, codes);
    }
    let largest = extreme(&parts);
    let scales = &mut block[96..108];
    scales.fill(0);
    let mut scale = 0.0;
    if largest != 0.0 {
        let inverse = -32.0 / largest;
        for (group, part) in parts.iter().enumerate() {
            let code = (i32::from(nearest(inverse * part) as i8).clamp(-32, 31) + 32) as u8;
            scales[group % 8] |= (code & 15) << (4 * (group / 8));
            scales[8 + group % 4] |= code >> 4 << (2 * (group / 4));
        }
        scale = 1.0 / inverse;
    }
    put_half(block, 108, scale);
    let scale = half_at(block, 108);
    for (group, (values, codes)) in values.chunks(16).zip(codes.chunks_mut(16)).enumerate() {
        let scale = scale * f32::from(q3_scale(&block[96..108], group));
        requantise_symmetric(values, scale, 4, codes);
    }
    block[..32].fill(0);
    for (at, code) in codes.iter_mut().enumerate() {
        block[at % 32] |= (*code >> 2) << (at / 32);
        *code &= 3;
    }
    put_two_bits(&codes, &mut block[32..96]);
}

/// The head of Q4_K and Q5_K: scale, minimum and those of the groups. Returns the codes.
fn affine_head(values: &[f32], search: AffineSearch, block: &mut [u8]) -> [u8; 256] {
    let mut codes = [0u8; 256];
    let (mut scales, mut mins) = ([0f32; 8], [0f32; 8]);
    let (mut most_scale, mut most_min) = (0.0f32, 0.0f32);
    let groups = values.chunks_exact(32).zip(codes.chunks_exact_mut(32));
    for (group, (values, codes)) in groups.enumerate() {
        let squares = values.iter().fold(0.0f32, |sum, value| sum + value * value);
        let mean = (squares / 32.0).sqrt();
        let mut weights = [0f32; 32];
        for (weight, value) in weights.iter_mut().zip(values) {
            *weight = mean + value.abs();
        }
        let (scale, min) = search.run(values, &weights, codes);
        (scales[group], mins[group]) = (scale, min);
        if scale > most_scale {
            most_scale = scale;
        }
        if min > most_min {
            most_min = min;
        }
    }
    let inverse = |most: f32| if most > 0.0 { 63.0 / most } else { 0.0 };
    let (inverse_scale, inverse_min) = (inverse(most_scale), inverse(most_min));
    put_half(block, 0, most_scale / 63.0);
    put_half(block, 2, most_min / 63.0);
    let packed = &mut block[4..16];
    for group in 0..8 {
        let scale = (nearest(inverse_scale * scales[group]) as u8).min(63);
        let min = (nearest(inverse_min * mins[group]) as u8).min(63);
        if group < 4 {
            packed[group] = scale;
            packed[group + 4] = min;
        } else {
            packed[group + 4] = scale & 15 | (min & 15) << 4;
            packed[group - 4] |= scale >> 4 << 6;
            packed[group] |= min >> 4 << 6;
        }
    }
    for (group, (values, codes)) in values.chunks(32).zip(codes.chunks_mut(32)).enumerate() {
        let (of_scale, of_min) = scale_and_min(&block[4..16], group);
        let scale = half_at(block, 0) * f32::from(of_scale);
        let min = half_at(block, 2) * f32::from(of_min);
        requantise(values, scale, min, search.most, codes);
    }
    codes
}

/// Two codes a byte, of elements that are 32 apart.
fn put_four_bits(codes: &[u8; 256], packed: &mut [u8]) {
    for (at, byte) in packed.iter_mut().enumerate() {
        let first = at / 32 * 64 + at % 32;
        *byte = codes[first] & 15 | codes[first + 32] << 4;
    }
}

pub(super) fn encode_q4_k(values: &[f32], block: &mut [u8]) {
    const SEARCH: AffineSearch = AffineSearch {
        most: 15,
        first: -1.0,
        steps: 20,
        is_absolute: false,
    };
    let codes = affine_head(values, SEARCH, block);
    put_four_bits(&codes, &mut block[16..]);
}

pub(super) fn encode_q5_k(values: &[f32], block: &mut [u8]) {
    const SEARCH: AffineSearch = AffineSearch {
        most: 31,
        first: -0.5,
        steps: 15,
        is_absolute: false,
    };
    let codes = affine_head(values, SEARCH, block);
    let (high, low) = block[16..].split_at_mut(32);
    high.fill(0);
    for (at, code) in codes.iter().enumerate() {
        high[at % 32] |= (code >> 4) << (at / 32);
    }
    put_four_bits(&codes, low);
}

pub(super) fn encode_q6_k(values: &[f32], block: &mut [u8]) {
    let mut codes = [0u8; 256];
    let mut parts = [0f32; 16];
    for ((values, codes), part) in (values.chunks(16).zip(codes.chunks_mut(16))).zip(&mut parts) {
        *part = symmetric(values, 32, codes);
    }
    block.fill(0);
    if magnitude(&parts) < SMALLEST {
        return;
    }
    let inverse = -128.0 / extreme(&parts);
    put_half(block, 208, 1.0 / inverse);
    let scale = half_at(block, 208);
    for (group, (values, codes)) in values.chunks(16).zip(codes.chunks_mut(16)).enumerate() {
        let part = nearest(inverse * parts[group]).min(127) as i8;
        block[192 + group] = part.cast_unsigned();
        requantise_symmetric(values, scale * f32::from(part), 32, codes);
    }
    for (at, code) in codes.iter().enumerate() {
        let (half, row, column) = (at / 128, at % 128 / 32, at % 32);
        block[half * 64 + row % 2 * 32 + column] |= (code & 15) << (row / 2 * 4);
        block[128 + half * 32 + column] |= (code >> 4) << (row * 2);
    }
}

pub(super) fn encode_q8_k(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    let largest = extreme(values);
    if largest == 0.0 {
        return;
    }
    let factor = -127.0 / largest;
    for (code, value) in block[4..].iter_mut().zip(values) {
        *code = nearest(factor * value).min(127) as u8;
    }
    block[..4].copy_from_slice(&inverse(factor).to_le_bytes());
    for group in 0..16 {
        let codes = block[4 + group * 16..].iter().take(16);
        let sum: i16 = codes.map(|code| i16::from(code.cast_signed())).sum();
        block[260 + group * 2..262 + group * 2].copy_from_slice(&sum.to_le_bytes());
    }
}
