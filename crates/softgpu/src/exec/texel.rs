//! Texel formats: the components of a texel, and their conversion to and from 32-bit values.

use super::halves::{f16_to_f32, f32_to_f16};

/// The type of a texel's components in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComponentType {
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit unsigned integer.
    U16,
    /// 32-bit unsigned integer.
    U32,
    /// 8-bit signed integer.
    S8,
    /// 16-bit signed integer.
    S16,
    /// 32-bit signed integer.
    S32,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl ComponentType {
    /// Bytes in memory.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            ComponentType::U8 | ComponentType::S8 => 1,
            ComponentType::U16 | ComponentType::S16 | ComponentType::F16 => 2,
            ComponentType::U32 | ComponentType::S32 | ComponentType::F32 => 4,
        }
    }

    /// Whether its values are floating-point numbers.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, ComponentType::F16 | ComponentType::F32)
    }

    fn is_signed(self) -> bool {
        matches!(
            self,
            ComponentType::S8 | ComponentType::S16 | ComponentType::S32
        )
    }

    /// Whether integers of it can be read as numbers from -1 or 0 to 1.
    #[must_use]
    pub fn is_narrow_integer(self) -> bool {
        !self.is_float() && self.bytes() < 4
    }
}

/// What a texel consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TexelFormat {
    /// Of each component.
    pub component: ComponentType,
    /// Components: 1, 2 or 4.
    pub channels: u32,
    /// The integers stand for numbers from -1 or 0 to 1, however they are read.
    pub fraction: bool,
}

/// A texel's bytes, in the low ones.
pub(crate) type TexelBits = [u64; 2];

impl TexelFormat {
    /// Bytes of a texel.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.component.bytes() * self.channels
    }

    /// Component `k` as it is in memory, extended to 32 bits by its sign; half stays half.
    pub(crate) fn bits(self, texel: TexelBits, k: u32) -> u32 {
        let bits = 8 * self.component.bytes();
        let at = bits * k;
        let word = (texel[(at / 64) as usize & 1] >> (at % 64)) as u32;
        let unused = 32 - bits;
        if self.component.is_signed() {
            ((word << unused) as i32 >> unused) as u32
        } else {
            word << unused >> unused
        }
    }

    /// Component `k` as a number; of integers, the fraction of the largest one that it stands for.
    pub(crate) fn number(self, texel: TexelBits, k: u32) -> f64 {
        let bits = self.bits(texel, k);
        match self.component {
            ComponentType::F32 => f64::from(f32::from_bits(bits)),
            ComponentType::F16 => f64::from(f16_to_f32(bits as u16)),
            ComponentType::U8 => f64::from(bits) / 255.0,
            ComponentType::U16 => f64::from(bits) / 65535.0,
            ComponentType::U32 => f64::from(bits) / f64::from(u32::MAX),
            ComponentType::S8 => (f64::from(bits as i32) / 127.0).max(-1.0),
            ComponentType::S16 => (f64::from(bits as i32) / 32767.0).max(-1.0),
            ComponentType::S32 => (f64::from(bits as i32) / f64::from(i32::MAX)).max(-1.0),
        }
    }

    /// What a formatted store writes of 32-bit `values`: floats for floats and fractions, else
    /// integers of the format's sign. A value that does not fit becomes the nearest that does.
    pub(crate) fn pack(self, values: [u32; 4]) -> TexelBits {
        let bits = 8 * self.component.bytes();
        let mut out = [0; 2];
        for (k, &value) in values.iter().enumerate().take(self.channels as usize) {
            let (word, at) = (self.narrow(value), bits as usize * k);
            out[at / 64] |= u64::from(word) << (at % 64);
        }
        out
    }

    /// One component's bits, the others zero.
    fn narrow(self, value: u32) -> u32 {
        let bits = 8 * self.component.bytes();
        let (low, high) = match self.component.is_signed() {
            true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
            false => (0, (1i64 << bits) - 1),
        };
        let mask = u32::MAX >> (32 - bits);
        match self.component {
            ComponentType::F32 => value,
            ComponentType::F16 => u32::from(f32_to_f16(f32::from_bits(value))),
            _ if self.fraction => {
                let least = if low < 0 { -1.0 } else { 0.0 };
                let number = f64::from(f32::from_bits(value)).clamp(least, 1.0);
                ((number * high as f64).round_ties_even() as i64) as u32 & mask
            }
            ty if ty.is_signed() => i64::from(value as i32).clamp(low, high) as u32 & mask,
            _ => i64::from(value).clamp(low, high) as u32 & mask,
        }
    }
}

/// The light that a component of an sRGB image stands for.
pub(crate) fn linear_of_srgb(value: f64) -> f64 {
    if value <= 0.040_45 {
        value / 12.92
    } else {
        ((value + 0.055) / 1.055).powf(2.4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ComponentType; 8] = [
        ComponentType::U8,
        ComponentType::U16,
        ComponentType::U32,
        ComponentType::S8,
        ComponentType::S16,
        ComponentType::S32,
        ComponentType::F16,
        ComponentType::F32,
    ];

    #[test]
    fn what_is_packed_comes_back_component_by_component() {
        for component in ALL {
            for channels in [1, 2, 4] {
                let format = TexelFormat {
                    component,
                    channels,
                    fraction: false,
                };
                let values = match component {
                    ComponentType::F16 | ComponentType::F32 => {
                        [1.0f32, -0.5, 3.25, -7.0].map(f32::to_bits)
                    }
                    _ if component.is_signed() => [1, -5i32 as u32, 100, -128i32 as u32],
                    _ => [1, 5, 100, 255],
                };
                let texel = format.pack(values);
                for k in 0..channels {
                    let got = format.bits(texel, k);
                    let got = match component {
                        ComponentType::F16 => f16_to_f32(got as u16).to_bits(),
                        _ => got,
                    };
                    assert_eq!(got, values[k as usize], "{component:?} {channels} {k}");
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_integers_are_the_ends_of_the_fractions() {
        let number = |component, raw: u64| {
            let format = TexelFormat {
                component,
                channels: 1,
                fraction: false,
            };
            format.number([raw, 0], 0)
        };
        assert_eq!(number(ComponentType::U8, 255), 1.0);
        assert_eq!(number(ComponentType::U16, 0), 0.0);
        // The least integer and the one above are both -1.
        assert_eq!(number(ComponentType::S8, 0x80), -1.0);
        assert_eq!(number(ComponentType::S8, 0x81), -1.0);
        assert_eq!(number(ComponentType::S16, 0x7fff), 1.0);
    }

    #[test]
    fn what_does_not_fit_a_component_becomes_the_nearest_that_does() {
        let format = |component, fraction| TexelFormat {
            component,
            channels: 1,
            fraction,
        };
        let packed = |format: TexelFormat, value| format.pack([value, 0, 0, 0])[0];
        assert_eq!(packed(format(ComponentType::U8, false), 1000), 255);
        assert_eq!(
            packed(format(ComponentType::S8, false), -1000i32 as u32),
            0x80
        );
        let unit = format(ComponentType::U8, true);
        assert_eq!(packed(unit, 2.0f32.to_bits()), 255);
        assert_eq!(packed(unit, (-1.0f32).to_bits()), 0);
        assert_eq!(packed(unit, f32::NAN.to_bits()), 0);
    }
}
