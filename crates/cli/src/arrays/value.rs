//! Elements as text: parsed from a command line or a file, and printed.

use anyhow::{Result, bail};
use fercuda_tensor::Dtype;

/// Bytes of one element.
pub(crate) fn element_size(dtype: Dtype) -> usize {
    dtype.bytes() as usize
}

/// Parses a value: decimal, or hexadecimal bits for integers.
pub(crate) fn parse_value(dtype: Dtype, text: &str) -> Result<Vec<u8>> {
    if dtype.is_float() {
        let Ok(value) = text.parse::<f64>() else {
            bail!("{text:?} is not a valid {dtype}\ntry: {dtype}:2.5, {dtype}:1e-3 or {dtype}:inf");
        };
        return Ok(element(dtype, dtype.encode(value)));
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let magnitude = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse::<u64>(),
    };
    // A bool is a byte, of which only one bit may be set.
    let bits = match dtype {
        Dtype::Bool => 1,
        _ => 8 * element_size(dtype) as u32,
    };
    let signed = dtype.is_signed();
    let Ok(magnitude) = magnitude else {
        bail!("{text:?} is not a valid {dtype}\ntry: {dtype}:1 or {dtype}:0x1");
    };
    let most = if negative && !signed {
        0
    } else if negative {
        1u64 << (bits - 1)
    } else if signed && !digits.starts_with("0x") {
        (1u64 << (bits - 1)) - 1
    } else {
        u64::MAX >> (64 - bits)
    };
    if magnitude > most {
        let least = if signed { 1i128 << (bits - 1) } else { 0 };
        let upper = u64::MAX >> (64 - bits + u32::from(signed));
        bail!(
            "{text} does not fit {dtype}: it holds {} to {upper}",
            -least
        );
    }
    let value = if negative {
        magnitude.wrapping_neg()
    } else {
        magnitude
    };
    Ok(element(dtype, value))
}

/// The element of which these are the low bits; of a bool, the lowest.
pub(super) fn element(dtype: Dtype, bits: u64) -> Vec<u8> {
    let bits = match dtype {
        Dtype::Bool => bits & 1,
        _ => bits,
    };
    bits.to_le_bytes()[..element_size(dtype)].to_vec()
}

/// The element in `bytes` as text; `bytes` is one element long.
pub(crate) fn show_element(dtype: Dtype, bytes: &[u8]) -> String {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    let shift = 64 - 8 * bytes.len() as u32;
    match dtype {
        Dtype::F64 => f64::from_bits(bits).to_string(),
        // As many digits as an f32 needs, which holds every value of the smaller ones.
        _ if dtype.is_float() => (dtype.value(bits) as f32).to_string(),
        _ if dtype.is_signed() => ((bits << shift).cast_signed() >> shift).to_string(),
        _ => bits.to_string(),
    }
}
