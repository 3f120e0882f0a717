//! Parser for `--arg`: a scalar, or a buffer with its initial contents.
//!
//! ```text
//! f32:2.5   u32:1024   u64:0xff   bytes:0a0b0c0d
//! buf:f32[1024]=iota|zeros|random:SEED|VALUE|VALUE,VALUE,...|@FILE
//! out:f32[1024][=...][@FILE]
//! ```
//!
//! Invariant: a parsed [`ArgSpec`] is complete except for files, which [`BufferSpec::bytes`]
//! reads; every error quotes the text it is about.
//! Elsewhere: contents (`arrays::fill`), matching against a kernel's parameters (`params`).

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fercuda_tensor::Dtype;

use crate::arrays::fill::{BufferFill, is_text};
use crate::arrays::value::{element_size, parse_value, show_element};

/// An element type by its name, or by PTX's: `s32` is `i32`, and `b32` is `u32`.
fn parse_dtype(name: &str) -> Result<Dtype> {
    let (kind, bits) = name.split_at(name.len().min(1));
    let usual = match (kind, bits) {
        ("s", "8" | "16" | "32" | "64") => format!("i{bits}"),
        ("b", "8" | "16" | "32" | "64") => format!("u{bits}"),
        _ => name.to_owned(),
    };
    // The error quotes what was given.
    usual.parse().or_else(|_| Ok(name.parse()?))
}

/// Destination of a buffer after the launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BufferOutput {
    /// To the terminal.
    Print,
    /// To a file, as bytes; `.txt` as numbers.
    File(PathBuf),
}

/// A buffer in device memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BufferSpec {
    pub dtype: Dtype,
    pub count: usize,
    pub fill: BufferFill,
    pub output: Option<BufferOutput>,
}

/// One `--arg`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ArgSpec {
    Scalar {
        dtype: Dtype,
        bytes: Vec<u8>,
    },
    /// A parameter passed by value that is not a number, such as a struct.
    Bytes(Vec<u8>),
    Buffer(BufferSpec),
}

impl fmt::Display for ArgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArgSpec::Scalar { dtype, bytes } => {
                write!(f, "{dtype}:{}", show_element(*dtype, bytes))
            }
            ArgSpec::Bytes(bytes) => write!(f, "bytes of length {}", bytes.len()),
            ArgSpec::Buffer(buffer) => {
                let word = if buffer.output.is_some() {
                    "out"
                } else {
                    "buf"
                };
                write!(f, "{word}:{}[{}]", buffer.dtype, buffer.count)
            }
        }
    }
}

impl std::str::FromStr for ArgSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<ArgSpec> {
        let Some((word, rest)) = text.split_once(':') else {
            bail!(
                "{text:?} has no type\ntry: f32:2.5, u32:1024, buf:f32[1024]=iota or out:f32[1024]"
            );
        };
        match word {
            "buf" => Ok(ArgSpec::Buffer(buffer(rest, false)?)),
            "out" => Ok(ArgSpec::Buffer(buffer(rest, true)?)),
            "bytes" => Ok(ArgSpec::Bytes(hexadecimal(rest)?)),
            _ => {
                let dtype = parse_dtype(word)?;
                Ok(ArgSpec::Scalar {
                    dtype,
                    bytes: parse_value(dtype, rest)?,
                })
            }
        }
    }
}

fn hexadecimal(text: &str) -> Result<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    match digits {
        Some(digits) if digits.len() % 2 == 0 && !digits.is_empty() => Ok(digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()),
        _ => bail!(
            "{text:?} is not a sequence of bytes\ntry: bytes:0a0b0c0d, two hex digits per byte"
        ),
    }
}

fn buffer(text: &str, out: bool) -> Result<BufferSpec> {
    let word = if out { "out" } else { "buf" };
    let (name, rest) = text.split_at(text.find(['[', '=', '@']).unwrap_or(text.len()));
    let dtype = parse_dtype(name).with_context(|| format!("in {word}:{text}"))?;
    let Some(rest) = rest.strip_prefix('[') else {
        bail!("{word}:{text} has no length\ntry: {word}:{dtype}[1024]{rest}");
    };
    let Some((count, rest)) = rest.split_once(']') else {
        let (count, rest) = rest.split_at(rest.find(['=', '@']).unwrap_or(rest.len()));
        let count = match length(count) {
            Ok(_) => count,
            Err(_) => "1024",
        };
        bail!("{word}:{text} has no `]` after its length\ntry: {word}:{dtype}[{count}]{rest}");
    };
    let count = length(count).with_context(|| format!("in {word}:{text}"))?;
    if count.checked_mul(element_size(dtype)).is_none() {
        bail!("{word}:{text} is too large: its size in bytes overflows");
    }
    // In `out:`, an `@` after the fill begins the name of the output file.
    let (fill, output) = match rest.strip_prefix('=') {
        Some(fill) if out => {
            let from = usize::from(fill.starts_with('@'));
            match fill[from..].find('@') {
                Some(at) => (Some(&fill[..from + at]), &fill[from + at..]),
                None => (Some(fill), ""),
            }
        }
        Some(fill) => (Some(fill), ""),
        None => (None, rest),
    };
    let output = match output.strip_prefix('@') {
        Some(file) if out && !file.is_empty() => Some(BufferOutput::File(PathBuf::from(file))),
        None if output.is_empty() => out.then_some(BufferOutput::Print),
        _ => bail!(
            "cannot read {rest:?} after {word}:{dtype}[{count}]\ntry: =zeros, =iota, =random:7, =@FILE{}",
            if out { " or @FILE to write to" } else { "" }
        ),
    };
    Ok(BufferSpec {
        dtype,
        count,
        fill: fill.map_or(Ok(BufferFill::Uninitialised), |fill| {
            BufferFill::parse(fill, dtype)
        })?,
        output,
    })
}

/// A number, or a product of numbers: `64*64`, or `64,64`, as a shape is written.
fn length(text: &str) -> Result<usize> {
    let mut product = 1usize;
    for factor in text.split(['*', ',']) {
        let Ok(number) = factor.trim().parse::<usize>() else {
            bail!("{text:?} is not a length\ntry: 1024, 32*32 or 32,32");
        };
        product = product
            .checked_mul(number)
            .with_context(|| format!("the length {text} is too large"))?;
    }
    if product == 0 {
        bail!("a buffer of length 0 cannot be allocated\ntry: a length of at least 1");
    }
    Ok(product)
}

impl BufferSpec {
    /// Size of the buffer in bytes.
    pub(crate) fn size(&self) -> usize {
        self.count * element_size(self.dtype)
    }

    /// Its initial contents; `None` if it stays uninitialised.
    pub(crate) fn bytes(&self) -> Result<Option<Vec<u8>>> {
        self.fill.bytes(self.dtype, self.count)
    }

    /// The final contents in the format in which [`BufferFill::File`] reads them from `path`.
    pub(crate) fn file_contents(&self, path: &Path, bytes: &[u8]) -> Vec<u8> {
        if !is_text(path) {
            return bytes.to_vec();
        }
        let elements = bytes.chunks(element_size(self.dtype));
        let lines = elements.map(|element| show_element(self.dtype, element) + "\n");
        lines.collect::<String>().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ArgSpec {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", text.parse::<ArgSpec>().unwrap_err())
    }

    #[test]
    fn scalars_become_their_little_endian_bytes() {
        let bytes = |text| match parsed(text) {
            ArgSpec::Scalar { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(bytes("f32:2.5"), 2.5f32.to_le_bytes());
        assert_eq!(bytes("u32:1024"), 1024u32.to_le_bytes());
        assert_eq!(bytes("s16:-2"), (-2i16).to_le_bytes());
        assert_eq!(bytes("i8:-128"), [0x80]);
        assert_eq!(bytes("s32:0xffffffff"), [0xff; 4]);
        assert_eq!(bytes("f16:1"), [0, 0x3c]);
        assert_eq!(bytes("bf16:1"), [0x80, 0x3f]);
        assert_eq!(bytes("u64:18446744073709551615"), [0xff; 8]);
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused_with_the_range() {
        assert!(refusal("u8:256").contains("0 to 255"));
        assert!(refusal("s8:128").contains("-128 to 127"));
        assert!(refusal("u32:-1").contains("0 to 4294967295"));
        assert!(refusal("s64:9223372036854775808").contains("9223372036854775807"));
    }

    #[test]
    fn an_invalid_spec_is_quoted_with_a_suggestion() {
        for text in [
            "1024",
            "f33:1",
            "f32:two",
            "buf:f32",
            "buf:f32[x]",
            "buf:f32[0]",
            "buf:f32[8]=random",
            "buf:f32[8]=sin",
            "buf:f32[8]@file",
            "out:f32[8]@",
            "bytes:abc",
        ] {
            assert!(refusal(text).contains("try: "), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn every_dtype_is_an_element_type_and_ptx_names_are_others_for_them() {
        for dtype in Dtype::ALL {
            assert_eq!(parse_dtype(dtype.name()).unwrap(), dtype);
            let one = parse_value(dtype, "1").unwrap();
            assert_eq!(one.len(), element_size(dtype));
            assert_eq!(show_element(dtype, &one), "1", "{dtype}");
        }
        assert_eq!(parse_dtype("s32").unwrap(), Dtype::I32);
        assert_eq!(parse_dtype("b16").unwrap(), Dtype::U16);
        assert!(refusal("s33:1").contains("\"s33\""));
        assert!(refusal("bool:2").contains("0 to 1"));
        for (text, shown) in [
            ("f32:0.1", "0.1"),
            ("f16:0.1", "0.099975586"),
            ("bf16:-3", "-3"),
            ("f8e4m3:448", "448"),
            ("f64:1e300", &1e300f64.to_string()),
            ("f32:nan", "NaN"),
            ("f16:-inf", "-inf"),
        ] {
            assert!(
                parsed(text).to_string().ends_with(&format!(":{shown}")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_hint_for_an_incomplete_buffer_is_a_spec_with_the_same_parts() {
        for (text, hint) in [
            ("out:f32[32", "out:f32[32]"),
            ("out:f32[4*8=zeros@y.bin", "out:f32[4*8]=zeros@y.bin"),
            ("buf:f32[=iota", "buf:f32[1024]=iota"),
            ("buf:f32=iota", "buf:f32[1024]=iota"),
            ("out:u8@y.bin", "out:u8[1024]@y.bin"),
            ("buf:f32", "buf:f32[1024]"),
        ] {
            let refused = refusal(text);
            assert!(
                refused.ends_with(&format!("\ntry: {hint}")),
                "{text}: {refused}"
            );
            parsed(hint);
        }
    }

    #[test]
    fn buffers_keep_their_contents_and_destination() {
        let ArgSpec::Buffer(buffer) = parsed("out:f32[4*2]=@in.bin@out.txt") else {
            panic!("no buffer");
        };
        assert_eq!(buffer.count, 8);
        assert_eq!(buffer.fill, BufferFill::File("in.bin".into()));
        assert_eq!(buffer.output, Some(BufferOutput::File("out.txt".into())));
        let ArgSpec::Buffer(buffer) = parsed("out:u8[3]@r.bin") else {
            panic!("no buffer");
        };
        assert_eq!(buffer.fill, BufferFill::Uninitialised);
        assert_eq!(buffer.output, Some(BufferOutput::File("r.bin".into())));
        let ArgSpec::Buffer(buffer) = parsed("out:u8[3]=7") else {
            panic!("no buffer");
        };
        assert_eq!(buffer.bytes().unwrap(), Some(vec![7; 3]));
        assert_eq!(buffer.output, Some(BufferOutput::Print));
    }

    #[test]
    fn random_contents_repeat_with_their_seed_and_differ_without() {
        let content = |text| match parsed(text) {
            ArgSpec::Buffer(buffer) => buffer.bytes().unwrap().unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            content("buf:f32[64]=random:7"),
            content("buf:f32[64]=random:7")
        );
        assert_ne!(
            content("buf:f32[64]=random:7"),
            content("buf:f32[64]=random:8")
        );
        for element in content("buf:f32[64]=random:7").chunks(4) {
            let value = f32::from_le_bytes(element.try_into().unwrap());
            assert!((-1.0..=1.0).contains(&value));
        }
    }

    #[test]
    fn iota_counts_in_the_element_type_of_the_buffer() {
        let ArgSpec::Buffer(buffer) = parsed("buf:u16[300]=iota") else {
            panic!("no buffer");
        };
        let bytes = buffer.bytes().unwrap().unwrap();
        assert_eq!(bytes[598..], 299u16.to_le_bytes());
    }
}
