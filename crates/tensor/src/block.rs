//! Block formats: quantised elements in blocks of a fixed size, as GGUF files have them.
//!
//! A block of 32 to 256 elements has its scales within it. Decoding gives the bits that llama.cpp's
//! C code gives, encoding the bytes of its reference quantiser without an importance matrix, on
//! x86-64 (on processors for which C compilers fuse products and sums, its results differ).
//!
//! Elsewhere: scalar elements (`dtype`).

mod bits;
mod fp4;
mod grids;
mod iq;
mod k;
mod k_encode;
mod simple;

use std::fmt;
use std::str::FromStr;

/// A format of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "the formats' names, each with its own definition"
)]
#[expect(non_camel_case_types, reason = "the formats' names have them")]
pub enum BlockFormat {
    Q1_0,
    Q2_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
}

/// A conversion of blocks that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The sizes of both sides do not belong together.
    #[error(
        "{bytes} bytes of {format} for {elements} elements\ntry: {} bytes for each {}",
        .format.bytes(), .format.elements()
    )]
    Size {
        /// The format.
        format: BlockFormat,
        /// Bytes of the blocks.
        bytes: usize,
        /// Elements.
        elements: usize,
    },
    /// The format can be decoded only.
    #[error(
        "{format} cannot be encoded: its codebook is searched with an importance matrix\ntry: {}",
        encodable()
    )]
    NoEncoder {
        /// The format.
        format: BlockFormat,
    },
}

/// The names of the formats that can be encoded.
fn encodable() -> String {
    let names = BlockFormat::ALL.into_iter();
    let names = names.filter(|format| format.has_encoder());
    names.map(BlockFormat::name).collect::<Vec<_>>().join(" ")
}

/// An unknown name of a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no block format {0:?}\ntry: one of {names}", names = encodable())]
pub struct UnknownBlockFormat(pub String);

type Decoder = fn(&[u8], &mut [f32]);
type Encoder = fn(&[f32], &mut [u8]);

/// What a format is.
struct BlockRow {
    name: &'static str,
    elements: usize,
    bytes: usize,
    decode: Decoder,
    encode: Option<Encoder>,
}

const fn row(
    name: &'static str,
    elements: usize,
    bytes: usize,
    decode: Decoder,
    encode: Option<Encoder>,
) -> BlockRow {
    BlockRow {
        name,
        elements,
        bytes,
        decode,
        encode,
    }
}

#[rustfmt::skip]
static ROWS: [BlockRow; 27] = [
    row("Q1_0", 128, 18, simple::decode_q1_0, Some(simple::encode_q1_0)),
    row("Q2_0", 64, 18, simple::decode_q2_0, Some(simple::encode_q2_0)),
    row("Q4_0", 32, 18, simple::decode_q4_0, Some(simple::encode_q4_0)),
    row("Q4_1", 32, 20, simple::decode_q4_1, Some(simple::encode_q4_1)),
    row("Q5_0", 32, 22, simple::decode_q5_0, Some(simple::encode_q5_0)),
    row("Q5_1", 32, 24, simple::decode_q5_1, Some(simple::encode_q5_1)),
    row("Q8_0", 32, 34, simple::decode_q8_0, Some(simple::encode_q8_0)),
    row("Q8_1", 32, 36, simple::decode_q8_1, Some(simple::encode_q8_1)),
    row("Q2_K", 256, 84, k::decode_q2_k, Some(k_encode::encode_q2_k)),
    row("Q3_K", 256, 110, k::decode_q3_k, Some(k_encode::encode_q3_k)),
    row("Q4_K", 256, 144, k::decode_q4_k, Some(k_encode::encode_q4_k)),
    row("Q5_K", 256, 176, k::decode_q5_k, Some(k_encode::encode_q5_k)),
    row("Q6_K", 256, 210, k::decode_q6_k, Some(k_encode::encode_q6_k)),
    row("Q8_K", 256, 292, k::decode_q8_k, Some(k_encode::encode_q8_k)),
    row("IQ1_S", 256, 50, iq::decode_iq1_s, None),
    row("IQ1_M", 256, 56, iq::decode_iq1_m, None),
    row("IQ2_XXS", 256, 66, iq::decode_iq2_xxs, None),
    row("IQ2_XS", 256, 74, iq::decode_iq2_xs, None),
    row("IQ2_S", 256, 82, iq::decode_iq2_s, None),
    row("IQ3_XXS", 256, 98, iq::decode_iq3_xxs, None),
    row("IQ3_S", 256, 110, iq::decode_iq3_s, None),
    row("IQ4_NL", 32, 18, simple::decode_iq4_nl, None),
    row("IQ4_XS", 256, 136, iq::decode_iq4_xs, None),
    row("TQ1_0", 256, 54, simple::decode_tq1_0, Some(simple::encode_tq1_0)),
    row("TQ2_0", 256, 66, simple::decode_tq2_0, Some(simple::encode_tq2_0)),
    row("MXFP4", 32, 17, fp4::decode_mxfp4, Some(fp4::encode_mxfp4)),
    row("NVFP4", 64, 36, fp4::decode_nvfp4, Some(fp4::encode_nvfp4)),
];

impl BlockFormat {
    /// All formats.
    pub const ALL: [Self; 27] = [
        Self::Q1_0,
        Self::Q2_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::Q8_K,
        Self::IQ1_S,
        Self::IQ1_M,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::MXFP4,
        Self::NVFP4,
    ];

    fn row(self) -> &'static BlockRow {
        &ROWS[self as usize]
    }

    /// Its name in llama.cpp, as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements of a block.
    pub fn elements(self) -> usize {
        self.row().elements
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.row().bytes
    }

    /// Whether [`BlockFormat::encode`] knows it.
    pub fn has_encoder(self) -> bool {
        self.row().encode.is_some()
    }

    /// The codebook that its codes choose rows of, if it has one: eight elements of two bits, or
    /// for IQ3 four of three bits, the first element lowest.
    pub fn codebook(self) -> Option<&'static [u16]> {
        match self {
            Self::IQ1_S | Self::IQ1_M => Some(&grids::IQ1),
            Self::IQ2_XXS => Some(&grids::IQ2_XXS),
            Self::IQ2_XS => Some(&grids::IQ2_XS),
            Self::IQ2_S => Some(&grids::IQ2_S),
            Self::IQ3_XXS => Some(&grids::IQ3_XXS),
            Self::IQ3_S => Some(&grids::IQ3_S),
            _ => None,
        }
    }

    /// Decodes blocks into their elements. Every pattern of bytes is a block; a scale that is
    /// infinite or no number gives elements that are.
    ///
    /// # Errors
    /// [`BlockError::Size`]; nothing is written.
    pub fn decode(self, blocks: &[u8], to: &mut [f32]) -> Result<(), BlockError> {
        let row = self.row();
        self.check_sizes(blocks.len(), to.len())?;
        let blocks = blocks.chunks_exact(row.bytes);
        for (block, to) in blocks.zip(to.chunks_exact_mut(row.elements)) {
            (row.decode)(block, to);
        }
        Ok(())
    }

    /// Encodes elements into blocks. A block with an element that is infinite or no number has
    /// bytes without a meaning, and always the same ones.
    ///
    /// # Errors
    /// [`BlockError::Size`], [`BlockError::NoEncoder`]; nothing is written.
    pub fn encode(self, values: &[f32], to: &mut [u8]) -> Result<(), BlockError> {
        let row = self.row();
        let encode = row.encode.ok_or(BlockError::NoEncoder { format: self })?;
        self.check_sizes(to.len(), values.len())?;
        let blocks = to.chunks_exact_mut(row.bytes);
        for (values, block) in values.chunks_exact(row.elements).zip(blocks) {
            encode(values, block);
        }
        Ok(())
    }

    fn check_sizes(self, bytes: usize, elements: usize) -> Result<(), BlockError> {
        let row = self.row();
        let is_whole = bytes.is_multiple_of(row.bytes) && elements.is_multiple_of(row.elements);
        match is_whole && bytes / row.bytes == elements / row.elements {
            true => Ok(()),
            false => Err(BlockError::Size {
                format: self,
                bytes,
                elements,
            }),
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// By its name, in letters of either case.
impl FromStr for BlockFormat {
    type Err = UnknownBlockFormat;

    fn from_str(name: &str) -> Result<Self, UnknownBlockFormat> {
        let mut all = Self::ALL.into_iter();
        all.find(|format| format.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownBlockFormat(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_formats() {
        for format in BlockFormat::ALL {
            assert_eq!(format!("{format:?}"), format.name());
            assert_eq!(format.name().to_lowercase().parse(), Ok(format));
        }
    }

    #[test]
    fn sizes_are_those_of_files_and_of_no_library() {
        for (format, elements, bytes) in [
            // gguf-py has 40 bytes of it.
            (BlockFormat::Q8_1, 32, 36),
            (BlockFormat::NVFP4, 64, 36),
            (BlockFormat::Q1_0, 128, 18),
            (BlockFormat::Q2_0, 64, 18),
            (BlockFormat::MXFP4, 32, 17),
        ] {
            assert_eq!(
                (format.elements(), format.bytes()),
                (elements, bytes),
                "{format}"
            );
        }
    }

    /// The first element of a block with this byte as its scale, of code 2: 1.0.
    fn one_at_scale(format: BlockFormat, scale: u8) -> f32 {
        let mut block = vec![0x22; format.bytes()];
        block[0] = scale;
        let mut values = vec![0.0; format.elements()];
        format.decode(&block, &mut values).unwrap();
        values[0]
    }

    #[test]
    fn scales_of_four_bit_floats_have_their_limits() {
        for (scale, value) in [(0, 2f32.powi(-127)), (127, 1.0), (254, 2f32.powi(127))] {
            assert_eq!(one_at_scale(BlockFormat::MXFP4, scale), value, "{scale}");
        }
        let mut block = vec![0x77; 17];
        block[0] = 255;
        let mut values = [0.0; 32];
        BlockFormat::MXFP4.decode(&block, &mut values).unwrap();
        assert_eq!(values, [f32::INFINITY; 32]);
        for (scale, value) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0x7f, 0.0),
            (0x80, 0.0),
            (0xb8, 1.0),
            (0xff, 480.0),
        ] {
            assert_eq!(one_at_scale(BlockFormat::NVFP4, scale), value, "{scale:#x}");
        }
    }

    #[test]
    fn ties_of_four_bit_floats_go_to_zero_and_scales_are_floored() {
        let values = [6.0, 2.5, -2.5, 5.0, 3.5, 0.25, -0.25, 7.9];
        let expected = [6.0, 2.0, -2.0, 4.0, 3.0, 0.0, 0.0, 6.0];
        let mut elements = [0.0; 32];
        elements[..8].copy_from_slice(&values);
        let mut block = [0; 17];
        BlockFormat::MXFP4.encode(&elements, &mut block).unwrap();
        BlockFormat::MXFP4.decode(&block, &mut elements).unwrap();
        assert_eq!((block[0], &elements[..8]), (127, &expected[..]));
        // Byte j has elements j and j + 16.
        assert_eq!((block[1] & 15, block[1] >> 4), (7, 0));
    }

    #[test]
    fn an_eight_bit_block_below_the_least_scale_decodes_to_zero() {
        // Half of the smallest f16, times 127, is 3.79e-6.
        for (largest, is_zero) in [(3.7e-6, true), (3.9e-6, false)] {
            let mut values = [largest; 32];
            let mut block = [0; 34];
            BlockFormat::Q8_0.encode(&values, &mut block).unwrap();
            BlockFormat::Q8_0.decode(&block, &mut values).unwrap();
            assert_eq!(values == [0.0; 32], is_zero, "{largest}");
        }
        // Ties of codes go away from zero: 63.5 of 127.
        let mut values = [0.0; 32];
        values[..3].copy_from_slice(&[127.0, 63.5, -63.5]);
        let mut block = [0; 34];
        BlockFormat::Q8_0.encode(&values, &mut block).unwrap();
        assert_eq!(block[2..5].to_vec(), [127, 64, (-64i8).cast_unsigned()]);
    }

    #[test]
    fn sizes_that_do_not_belong_together_are_refused() {
        let refused = BlockFormat::Q4_K.decode(&[0; 144], &mut [0.0; 255]);
        let said = refused.map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said.contains("144 bytes of Q4_K for 255 elements")));
        let refused = BlockFormat::IQ2_S.encode(&[0.0; 256], &mut [0; 82]);
        let said = refused.map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said.contains("Q8_0") && !said.contains("IQ3_S")));
    }
}
