//! Element types.

use std::fmt;
use std::str::FromStr;

/// The type of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// 8 bits: 4 of exponent, 3 of fraction; no infinities (OCP 8-bit
    /// floating point).
    F8E4m3,
    /// 8 bits: 5 of exponent, 2 of fraction (OCP 8-bit floating point).
    F8E5m2,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// A byte that is 0 or 1.
    Bool,
}

/// An unknown type name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no dtype {0:?}\ntry: one of f64 f32 f16 bf16 f8e4m3 f8e5m2 i8 i16 i32 i64 u8 u16 u32 u64 bool"
)]
pub struct UnknownDtype(pub String);

impl Dtype {
    /// All types.
    pub const ALL: [Self; 15] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4m3,
        Self::F8E5m2,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::Bool,
    ];

    /// Size of an element, which is also its alignment.
    #[inline]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4m3 | Self::F8E5m2 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Its name, here and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8e4m3",
            Self::F8E5m2 => "f8e5m2",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Bool => "bool",
        }
    }

    /// Whether it is a float.
    pub const fn is_float(self) -> bool {
        self.float_format().is_some()
    }

    /// Whether it is a signed integer.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Bits of a float's exponent and of its fraction; `None` for other types.
    pub const fn float_format(self) -> Option<(u32, u32)> {
        match self {
            Self::F64 => Some((11, 52)),
            Self::F32 => Some((8, 23)),
            Self::F16 => Some((5, 10)),
            Self::Bf16 => Some((8, 7)),
            Self::F8E4m3 => Some((4, 3)),
            Self::F8E5m2 => Some((5, 2)),
            _ => None,
        }
    }

    /// All bits of an element.
    const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }

    /// The value that the low bits of `bits` encode; integers beyond 2^53 are rounded.
    pub fn value(self, bits: u64) -> f64 {
        let bits = bits & self.mask();
        let Some((exponent_bits, fraction_bits)) = self.float_format() else {
            let shift = 64 - 8 * self.bytes();
            return match self {
                Self::Bool => f64::from(u8::from(bits != 0)),
                signed if signed.is_signed() => ((bits << shift).cast_signed() >> shift) as f64,
                _ => bits as f64,
            };
        };
        if self == Self::F64 {
            return f64::from_bits(bits);
        }
        let negative = bits >> (exponent_bits + fraction_bits) & 1 == 1;
        let exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
        let fraction = bits & ((1 << fraction_bits) - 1);
        let top = (1u64 << exponent_bits) - 1;
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let is_special = match self {
            Self::F8E4m3 => exponent == top && fraction == 7,
            _ => exponent == top,
        };
        let magnitude = if is_special {
            match fraction == 0 {
                true => f64::INFINITY,
                false => f64::NAN,
            }
        } else {
            let scale = exponent.max(1) as i32 - bias - fraction_bits as i32;
            let hidden = u64::from(exponent > 0) << fraction_bits;
            (hidden | fraction) as f64 * power_of_two(scale)
        };
        if negative { -magnitude } else { magnitude }
    }

    /// The nearest value that a float type has, ties to even. Eight-bit floats saturate, others
    /// overflow to infinity. Other types leave `value` as it is.
    pub fn nearest(self, value: f64) -> f64 {
        let Some((exponent_bits, fraction_bits)) = self.float_format() else {
            return value;
        };
        if self == Self::F64 || value == 0.0 || value.is_nan() {
            return value;
        }
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let (most, over) = match self {
            Self::F8E4m3 => (448.0, 448.0),
            Self::F8E5m2 => (57344.0, 57344.0),
            _ => {
                let most = (2.0 - power_of_two(-(fraction_bits as i32))) * power_of_two(bias);
                (most, f64::INFINITY)
            }
        };
        if value.is_infinite() {
            return over.copysign(value);
        }
        let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
        let unit = power_of_two(exponent.max(1 - bias) - fraction_bits as i32);
        let rounded = (value / unit).round_ties_even() * unit;
        match rounded.abs() > most {
            true => over.copysign(value),
            false => rounded,
        }
    }

    /// The bits of the element nearest to `value`: of floats as by [`Dtype::nearest`]; integers
    /// round half away from zero and saturate, and NaN is 0; a bool is whether it is not 0.
    pub fn encode(self, value: f64) -> u64 {
        let Some((exponent_bits, fraction_bits)) = self.float_format() else {
            let most = self.mask() >> u32::from(self.is_signed());
            return match self {
                Self::Bool => u64::from(value != 0.0),
                signed if signed.is_signed() => {
                    let most = most.cast_signed();
                    (value.round() as i64)
                        .clamp(-most - 1, most)
                        .cast_unsigned()
                        & self.mask()
                }
                _ => (value.round() as u64).min(most),
            };
        };
        if self == Self::F64 {
            return value.to_bits();
        }
        let sign = u64::from(value.is_sign_negative()) << (exponent_bits + fraction_bits);
        let top = ((1u64 << exponent_bits) - 1) << fraction_bits;
        if value.is_nan() {
            return top | ((1 << fraction_bits) - 1);
        }
        let rounded = self.nearest(value).abs();
        if rounded.is_infinite() {
            return sign | top;
        }
        if rounded == 0.0 {
            return sign;
        }
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let exponent = ((rounded.to_bits() >> 52) as i32 - 1023).max(1 - bias);
        let whole = rounded / power_of_two(exponent - fraction_bits as i32);
        // The hidden bit adds one to the exponent, or is absent.
        sign | ((((exponent + bias - 1) as u64) << fraction_bits) + whole as u64)
    }
}

/// Two to a power that is the exponent of a normal number. `f64::exp2` need not be exact.
const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        let mut all = Self::ALL.into_iter();
        all.find(|dtype| dtype.name() == name)
            .ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri takes some hundred times as long.
    const STRIDE: usize = if cfg!(miri) { 257 } else { 1 };

    #[test]
    fn bits_of_every_small_element_come_back() {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.bytes() < 4) {
            let all = match dtype {
                Dtype::Bool => 2,
                _ => 1u64 << (8 * dtype.bytes()),
            };
            let stride = if all > 256 { STRIDE } else { 1 };
            for bits in (0..all).step_by(stride) {
                let value = dtype.value(bits);
                if !value.is_nan() {
                    // An eight-bit float saturates, so infinity comes back as the largest number.
                    let is_infinite = dtype == Dtype::F8E5m2 && value.is_infinite();
                    let expected = if is_infinite { bits - 1 } else { bits };
                    assert_eq!(dtype.encode(value), expected, "{dtype} {bits:#x}");
                }
            }
        }
    }

    #[test]
    fn f32_rounds_as_the_processor_does_and_integers_saturate() {
        let numbers = (0..1u64 << 20).step_by(STRIDE);
        for bits in numbers.map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let value = f64::from_bits(bits);
            if !value.is_nan() {
                let expected = u64::from((value as f32).to_bits());
                assert_eq!(Dtype::F32.encode(value), expected, "{value:e}");
            }
            let low = Dtype::F32.value(bits);
            assert!(low.is_nan() || low == f64::from(f32::from_bits(bits as u32)));
        }
        assert_eq!(Dtype::I8.encode(-1e9), 0x80);
        assert_eq!(Dtype::I8.encode(1e9), 0x7f);
        assert_eq!(Dtype::I64.encode(-1e30), 1 << 63);
        assert_eq!(Dtype::U16.encode(-1.0), 0);
        assert_eq!(Dtype::U64.encode(1e30), u64::MAX);
        assert_eq!(Dtype::I32.value(0xffff_ffff_ffff_fffe), -2.0);
        assert_eq!(Dtype::U8.encode(2.5), 3);
        assert_eq!(Dtype::U32.encode(f64::NAN), 0);
    }

    #[test]
    fn name_round_trips_and_ends_in_the_size() {
        for dtype in Dtype::ALL {
            let name = dtype.name();
            assert_eq!(name.parse(), Ok(dtype));
            let digits: String = name
                .trim_start_matches(|c: char| !c.is_ascii_digit())
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            let bits = digits.parse().unwrap_or(8);
            assert_eq!(dtype.bytes() * 8, bits, "{name}");
        }
        let said = "f33".parse::<Dtype>().map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said.contains("no dtype \"f33\"") && said.contains("bf16")));
    }
}
