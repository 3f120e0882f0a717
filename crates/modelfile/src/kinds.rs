//! Element types of tensors in files, and their decoding to f32.

use std::fmt;
use std::str::FromStr;

use fercuda_tensor::{BlockFormat, Dtype};
use half::{bf16, f16};

use crate::error::{Error, Result};

/// The type of a tensor's elements in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// One element after the other.
    Scalar(Dtype),
    /// Quantised blocks.
    Block(BlockFormat),
    /// A type that safetensors files have and kernels do not.
    Narrow(NarrowType),
}

/// Types of safetensors files that are no [`Dtype`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NarrowType {
    /// E2M1, two elements a byte, the first in the low half.
    F4,
    /// E2M3, four elements in three bytes; their order there is not defined.
    F6E2m3,
    /// E3M2, four elements in three bytes; their order there is not defined.
    F6E3m2,
    /// A power of two with a bias of 127; 0xff is no number.
    F8E8m0,
    /// E4M3 with a bias of 8; 0x80 is the only one that is no number.
    F8E4m3Fnuz,
    /// E5M2 with a bias of 16; 0x80 is the only one that is no number.
    F8E5m2Fnuz,
    /// Two f32, the second the imaginary part.
    C64,
}

/// Number in GGUF files, type.
const OF_GGUF: [(u32, TensorType); 35] = {
    use BlockFormat as F;
    use TensorType::{Block, Scalar};
    [
        (0, Scalar(Dtype::F32)),
        (1, Scalar(Dtype::F16)),
        (2, Block(F::Q4_0)),
        (3, Block(F::Q4_1)),
        (6, Block(F::Q5_0)),
        (7, Block(F::Q5_1)),
        (8, Block(F::Q8_0)),
        (9, Block(F::Q8_1)),
        (10, Block(F::Q2_K)),
        (11, Block(F::Q3_K)),
        (12, Block(F::Q4_K)),
        (13, Block(F::Q5_K)),
        (14, Block(F::Q6_K)),
        (15, Block(F::Q8_K)),
        (16, Block(F::IQ2_XXS)),
        (17, Block(F::IQ2_XS)),
        (18, Block(F::IQ3_XXS)),
        (19, Block(F::IQ1_S)),
        (20, Block(F::IQ4_NL)),
        (21, Block(F::IQ3_S)),
        (22, Block(F::IQ2_S)),
        (23, Block(F::IQ4_XS)),
        (24, Scalar(Dtype::I8)),
        (25, Scalar(Dtype::I16)),
        (26, Scalar(Dtype::I32)),
        (27, Scalar(Dtype::I64)),
        (28, Scalar(Dtype::F64)),
        (29, Block(F::IQ1_M)),
        (30, Scalar(Dtype::Bf16)),
        (34, Block(F::TQ1_0)),
        (35, Block(F::TQ2_0)),
        (39, Block(F::MXFP4)),
        (40, Block(F::NVFP4)),
        (41, Block(F::Q1_0)),
        (42, Block(F::Q2_0)),
    ]
};

/// Name in safetensors files, type.
const OF_SAFETENSORS: [(&str, TensorType); 22] = {
    use NarrowType as N;
    use TensorType::{Narrow, Scalar};
    [
        ("BOOL", Scalar(Dtype::Bool)),
        ("U8", Scalar(Dtype::U8)),
        ("I8", Scalar(Dtype::I8)),
        ("U16", Scalar(Dtype::U16)),
        ("I16", Scalar(Dtype::I16)),
        ("U32", Scalar(Dtype::U32)),
        ("I32", Scalar(Dtype::I32)),
        ("U64", Scalar(Dtype::U64)),
        ("I64", Scalar(Dtype::I64)),
        ("F16", Scalar(Dtype::F16)),
        ("BF16", Scalar(Dtype::Bf16)),
        ("F32", Scalar(Dtype::F32)),
        ("F64", Scalar(Dtype::F64)),
        ("F8_E4M3", Scalar(Dtype::F8E4m3)),
        ("F8_E5M2", Scalar(Dtype::F8E5m2)),
        ("F4", Narrow(N::F4)),
        ("F6_E2M3", Narrow(N::F6E2m3)),
        ("F6_E3M2", Narrow(N::F6E3m2)),
        ("F8_E8M0", Narrow(N::F8E8m0)),
        ("F8_E4M3FNUZ", Narrow(N::F8E4m3Fnuz)),
        ("F8_E5M2FNUZ", Narrow(N::F8E5m2Fnuz)),
        ("C64", Narrow(N::C64)),
    ]
};

/// Number of elements; `None` if the product of the extents that are not 0 is too large, so that
/// the product of any of them fits.
pub(crate) fn elements_of(shape: &[u64]) -> Option<u64> {
    let all = shape
        .iter()
        .try_fold(1u64, |all, it| all.checked_mul((*it).max(1)))?;
    Some(if shape.contains(&0) { 0 } else { all })
}

impl TensorType {
    /// The type of this number in GGUF files.
    pub fn of_gguf(number: u32) -> Option<TensorType> {
        let mut all = OF_GGUF.iter();
        all.find(|(of, _)| *of == number).map(|(_, kind)| *kind)
    }

    /// Its number in GGUF files, which do not have all types.
    pub fn gguf_number(self) -> Option<u32> {
        let mut all = OF_GGUF.iter();
        all.find(|(_, kind)| *kind == self).map(|(of, _)| *of)
    }

    /// The type of this name in safetensors files.
    pub fn of_safetensors(name: &str) -> Option<TensorType> {
        let mut all = OF_SAFETENSORS.iter();
        all.find(|(of, _)| *of == name).map(|(_, kind)| *kind)
    }

    /// Its name: llama.cpp's of blocks, safetensors' of other types.
    pub fn name(self) -> &'static str {
        match self {
            TensorType::Block(format) => format.name(),
            _ => {
                let mut all = OF_SAFETENSORS.iter();
                all.find(|(_, kind)| *kind == self)
                    .map_or("?", |(name, _)| name)
            }
        }
    }

    /// The smallest number of elements that are whole bytes.
    pub fn block_elements(self) -> u64 {
        match self {
            TensorType::Block(format) => format.elements() as u64,
            TensorType::Narrow(NarrowType::F4) => 2,
            TensorType::Narrow(NarrowType::F6E2m3 | NarrowType::F6E3m2) => 4,
            _ => 1,
        }
    }

    /// Bytes of [`TensorType::block_elements`].
    pub fn block_bytes(self) -> u64 {
        match self {
            TensorType::Scalar(dtype) => dtype.bytes(),
            TensorType::Block(format) => format.bytes() as u64,
            TensorType::Narrow(narrow) => match narrow {
                NarrowType::F6E2m3 | NarrowType::F6E3m2 => 3,
                NarrowType::C64 => 8,
                _ => 1,
            },
        }
    }

    /// Bytes of so many elements; `None` if they are no whole number, or too many.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let blocks = elements / self.block_elements();
        match elements.is_multiple_of(self.block_elements()) {
            true => blocks.checked_mul(self.block_bytes()),
            false => None,
        }
    }

    /// Decodes elements. Integers and F64 are rounded to the nearest f32.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the sizes do not belong together; [`Error::Unsupported`] for complex
    /// numbers, and for F6, whose packing the format does not define; [`Error::Block`].
    pub fn decode(self, bytes: &[u8], to: &mut [f32]) -> Result<()> {
        if self.bytes_of(to.len() as u64) != Some(bytes.len() as u64) {
            let what = format!("{} bytes of {self} for {} elements", bytes.len(), to.len());
            return Err(Error::mismatch(what, "as many as the tensor has"));
        }
        match self {
            TensorType::Block(format) => format.decode(bytes, to)?,
            TensorType::Scalar(dtype) => decode_scalars(dtype, bytes, to),
            TensorType::Narrow(NarrowType::C64 | NarrowType::F6E2m3 | NarrowType::F6E3m2) => {
                let what = format!("{self} has no decoder to f32");
                return Err(Error::unsupported(what, "the tensor's bytes"));
            }
            TensorType::Narrow(narrow) => decode_narrow(narrow, bytes, to),
        }
        Ok(())
    }

    /// Encodes elements: floats with ties to even, blocks as their format says.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type that is neither a float nor a block; [`Error::Mismatch`]
    /// and [`Error::Block`] as of [`TensorType::decode`].
    pub fn encode(self, values: &[f32], to: &mut [u8]) -> Result<()> {
        if self.bytes_of(values.len() as u64) != Some(to.len() as u64) {
            let what = format!("{} bytes of {self} for {} elements", to.len(), values.len());
            return Err(Error::mismatch(what, "as many as the tensor has"));
        }
        match self {
            TensorType::Block(format) => format.encode(values, to)?,
            TensorType::Scalar(dtype) if dtype.is_float() => {
                for (value, to) in values
                    .iter()
                    .zip(to.chunks_exact_mut(dtype.bytes() as usize))
                {
                    match dtype {
                        Dtype::F32 => to.copy_from_slice(&value.to_le_bytes()),
                        Dtype::F16 => to.copy_from_slice(&f16::from_f32(*value).to_le_bytes()),
                        Dtype::Bf16 => to.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()),
                        _ => {
                            let bits = dtype.encode(f64::from(*value)).to_le_bytes();
                            to.copy_from_slice(&bits[..to.len()]);
                        }
                    }
                }
            }
            _ => {
                let what = format!("floats are not encoded as {self}");
                return Err(Error::unsupported(what, "F32, F16, BF16 or a block format"));
            }
        }
        Ok(())
    }
}

fn decode_scalars(dtype: Dtype, bytes: &[u8], to: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            let (elements, _) = bytes.as_chunks();
            for (to, element) in to.iter_mut().zip(elements) {
                *to = f32::from_le_bytes(*element);
            }
        }
        Dtype::F16 => {
            let (elements, _) = bytes.as_chunks();
            for (to, element) in to.iter_mut().zip(elements) {
                *to = f16::from_le_bytes(*element).to_f32();
            }
        }
        Dtype::Bf16 => {
            let (elements, _) = bytes.as_chunks();
            for (to, element) in to.iter_mut().zip(elements) {
                *to = f32::from_bits(u32::from(u16::from_le_bytes(*element)) << 16);
            }
        }
        _ => {
            let size = dtype.bytes() as usize;
            for (to, element) in to.iter_mut().zip(bytes.chunks_exact(size)) {
                let mut bits = [0; 8];
                bits[..size].copy_from_slice(element);
                *to = dtype.value(u64::from_le_bytes(bits)) as f32;
            }
        }
    }
}

/// The value of a small float without infinities; subnormal numbers if the exponent is 0.
fn small_float(code: u8, fraction_bits: u32, exponent_bits: u32, bias: i32) -> f32 {
    let exponent = i32::from(code >> fraction_bits & ((1 << exponent_bits) - 1));
    let fraction = code & ((1 << fraction_bits) - 1);
    let whole = u8::from(exponent > 0) << fraction_bits | fraction;
    let power = exponent.max(1) - bias - fraction_bits as i32;
    let magnitude = f32::from(whole) * f32::from_bits(((power + 127) as u32) << 23);
    match code >> (fraction_bits + exponent_bits) & 1 {
        0 => magnitude,
        _ => -magnitude,
    }
}

/// The value of an E2M1 code; its upper half is ignored.
pub(crate) fn e2m1(code: u8) -> f32 {
    small_float(code & 15, 1, 2, 1)
}

/// The value of an E8M0 code.
pub(crate) fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        0xff => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

fn decode_narrow(narrow: NarrowType, bytes: &[u8], to: &mut [f32]) {
    for (at, to) in to.iter_mut().enumerate() {
        *to = match narrow {
            NarrowType::F4 => e2m1(bytes[at / 2] >> (4 * (at % 2))),
            NarrowType::F8E8m0 => e8m0(bytes[at]),
            NarrowType::F8E4m3Fnuz | NarrowType::F8E5m2Fnuz if bytes[at] == 0x80 => f32::NAN,
            NarrowType::F8E4m3Fnuz => small_float(bytes[at], 3, 4, 8),
            NarrowType::F8E5m2Fnuz => small_float(bytes[at], 2, 5, 16),
            // Refused before.
            NarrowType::C64 | NarrowType::F6E2m3 | NarrowType::F6E3m2 => 0.0,
        };
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// By its name, in letters of either case.
impl FromStr for TensorType {
    type Err = Error;

    fn from_str(name: &str) -> Result<TensorType> {
        let scalar = OF_SAFETENSORS.iter();
        let mut scalar = scalar.filter(|(of, _)| of.eq_ignore_ascii_case(name));
        match (scalar.next(), name.parse::<BlockFormat>()) {
            (Some((_, kind)), _) => Ok(*kind),
            (None, Ok(format)) => Ok(TensorType::Block(format)),
            (None, Err(error)) => Err(Error::unsupported(
                format!("there is no type {:?}", error.0),
                "F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q4_0 or another block format",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_have_the_values_of_their_definitions() {
        let decoded = |narrow: NarrowType, bytes: &[u8], count: usize| {
            let mut to = vec![0.0; count];
            TensorType::Narrow(narrow).decode(bytes, &mut to).unwrap();
            to
        };
        let four = decoded(NarrowType::F4, &[0x10, 0x32, 0x54, 0x76, 0xf9], 10);
        assert_eq!(four, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -6.0]);
        let powers = decoded(NarrowType::F8E8m0, &[0, 1, 127, 254], 4);
        let expected = [-127, -126, 0, 127].map(|power| 2f64.powi(power) as f32);
        assert_eq!(powers, expected);
        assert!(decoded(NarrowType::F8E8m0, &[255], 1)[0].is_nan());
        let fnuz = decoded(NarrowType::F8E4m3Fnuz, &[0x7f, 0x01, 0xff, 0x40], 4);
        assert_eq!(fnuz, [240.0, 2f32.powi(-10), -240.0, 1.0]);
        let fnuz = decoded(NarrowType::F8E5m2Fnuz, &[0x7f, 0x01, 0x40], 3);
        assert_eq!(fnuz, [57344.0, 2f32.powi(-17), 1.0]);
        assert!(decoded(NarrowType::F8E5m2Fnuz, &[0x80], 1)[0].is_nan());
    }

    #[test]
    fn every_type_has_one_name_and_one_number() {
        for (number, kind) in OF_GGUF {
            assert_eq!(TensorType::of_gguf(number), Some(kind));
            assert_eq!(kind.gguf_number(), Some(number));
            assert_eq!(
                kind.name().to_lowercase().parse::<TensorType>().unwrap(),
                kind
            );
        }
        for (name, kind) in OF_SAFETENSORS {
            assert_eq!(
                (kind.name(), TensorType::of_safetensors(name)),
                (name, Some(kind))
            );
        }
        assert_eq!(TensorType::of_gguf(31), None);
    }
}
