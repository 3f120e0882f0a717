//! Blocks of four-bit floats (E2M1): MXFP4, whose scale is a power of two, and NVFP4.

/// Twice the values of E2M1.
const DOUBLED: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

/// Half of 2 to the power of an exponent with a bias of 127.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

/// The nearest value's code; of equally near ones the first.
fn nearest_code(value: f32, scale: f32) -> u8 {
    let mut best = (0, (DOUBLED[0] * scale - value).abs());
    for (code, level) in DOUBLED.iter().enumerate().skip(1) {
        let error = (level * scale - value).abs();
        if error < best.1 {
            best = (code, error);
        }
    }
    best.0 as u8
}

fn decode_nibbles(packed: &[u8], scale: f32, to: &mut [f32]) {
    let half = packed.len();
    for (at, byte) in packed.iter().enumerate() {
        to[at] = DOUBLED[usize::from(byte & 15)] * scale;
        to[at + half] = DOUBLED[usize::from(byte >> 4)] * scale;
    }
}

fn encode_nibbles(values: &[f32], scale: f32, packed: &mut [u8]) {
    let half = packed.len();
    for (at, byte) in packed.iter_mut().enumerate() {
        *byte = nearest_code(values[at], scale) | nearest_code(values[at + half], scale) << 4;
    }
}

pub(super) fn decode_mxfp4(block: &[u8], to: &mut [f32]) {
    decode_nibbles(&block[1..], half_power(block[0]), to);
}

pub(super) fn encode_mxfp4(values: &[f32], block: &mut [u8]) {
    let largest = super::bits::magnitude(values);
    // The logarithm is rounded to f32 before it is floored: just below a large power of two it is
    // that of the power.
    let exponent = match largest > 0.0 {
        true => super::bits::truncated((f64::from(largest).log2() as f32).floor() - 2.0 + 127.0),
        false => 0,
    };
    block[0] = exponent as u8;
    encode_nibbles(values, half_power(block[0]), &mut block[1..]);
}

/// Half of an E4M3 scale, whose sign is ignored; 0x7f is 0.
fn half_scale(code: u8) -> f32 {
    if code == 0x7f {
        return 0.0;
    }
    let (exponent, fraction) = (code >> 3 & 15, f32::from(code & 7));
    // Both factors are exact.
    let value = match exponent {
        0 => fraction / 512.0,
        _ => (1.0 + fraction / 8.0) * f32::from_bits((u32::from(exponent) + 120) << 23),
    };
    value * 0.5
}

/// The nearest E4M3 scale, half up, at most 0x7e.
fn scale_code(value: f32) -> u8 {
    // Not for NaN either.
    if !matches!(value.partial_cmp(&0.0), Some(std::cmp::Ordering::Greater)) {
        return 0;
    }
    let bits = value.min(448.0).to_bits();
    let exponent = (bits >> 23).cast_signed() - 120;
    if exponent <= 0 {
        return ((value * 512.0 + 0.5) as i32).min(7) as u8;
    }
    let code = (exponent << 3 | (bits >> 20 & 7).cast_signed()) + (bits >> 19 & 1).cast_signed();
    // The codes of the topmost exponent are not used, the limit of the others excepted.
    if code >= 15 << 3 { 0x7e } else { code as u8 }
}

pub(super) fn decode_nvfp4(block: &[u8], to: &mut [f32]) {
    let (scales, codes) = block.split_at(4);
    for ((scale, codes), to) in
        (scales.iter().zip(codes.chunks_exact(8))).zip(to.chunks_exact_mut(16))
    {
        decode_nibbles(codes, half_scale(*scale), to);
    }
}

pub(super) fn encode_nvfp4(values: &[f32], block: &mut [u8]) {
    let (scales, codes) = block.split_at_mut(4);
    for ((scale, codes), values) in
        (scales.iter_mut().zip(codes.chunks_exact_mut(8))).zip(values.chunks_exact(16))
    {
        *scale = scale_code(super::bits::magnitude(values) / 6.0);
        encode_nibbles(values, half_scale(*scale), codes);
    }
}
