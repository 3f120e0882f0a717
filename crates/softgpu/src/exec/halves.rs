//! Fast conversions between f16, bf16 and f32.
//!
//! Elsewhere: all other formats and roundings ([`super::scalar::half`]).

/// The value; NaN becomes the canonical one.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let e = u32::from(bits >> 10) & 31;
    let f = u32::from(bits) & 1023;
    match e {
        0 => {
            let v = f as f32 * (1.0 / 16_777_216.0);
            f32::from_bits(v.to_bits() | sign)
        }
        31 if f != 0 => f32::from_bits(0x7fff_ffff),
        31 => f32::from_bits(sign | 0x7f80_0000),
        _ => f32::from_bits(sign | ((e + 112) << 23) | (f << 13)),
    }
}

/// Round to nearest even; NaN to the canonical one.
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let b = x.to_bits();
    let sign = (b >> 16) as u16 & 0x8000;
    let a = b & 0x7fff_ffff;
    if a > 0x7f80_0000 {
        return 0x7fff;
    }
    if a >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if a < 0x3880_0000 {
        // Subnormal: adding 2^-1 * 2^-13... aligns the last bit with the processor's own rounding.
        let v = f32::from_bits(a) + 0.5;
        return sign | (v.to_bits() - 0.5f32.to_bits()) as u16;
    }
    let r = a + 0xfff + ((a >> 13) & 1);
    sign | ((r - 0x3800_0000) >> 13) as u16
}

/// Round to nearest even; NaN to the canonical one.
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let b = x.to_bits();
    if b & 0x7fff_ffff > 0x7f80_0000 {
        return 0x7fff;
    }
    ((b + 0x7fff + ((b >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_as_the_half_crate_rounds_them() {
        for bits in 0..=u16::MAX {
            let h = half::f16::from_bits(bits);
            if !h.is_nan() {
                assert_eq!(f16_to_f32(bits).to_bits(), h.to_f32().to_bits());
            }
        }
        let mut s = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64;
        let start = s;
        for _ in 0..2_000_000 {
            s = s
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let x = f32::from_bits((s >> 32) as u32);
            if !x.is_nan() {
                assert_eq!(
                    f32_to_f16(x),
                    half::f16::from_f32(x).to_bits(),
                    "seed {start}: {x:e}"
                );
                assert_eq!(
                    f32_to_bf16(x),
                    half::bf16::from_f32(x).to_bits(),
                    "seed {start}: {x:e}"
                );
            }
        }
    }
}
