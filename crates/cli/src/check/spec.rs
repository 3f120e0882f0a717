//! Parser for `--arg`: a scalar, or a buffer with its initial contents.
//!
//! ```text
//! f32:2.5   u32:1024   u64:0xff   bytes:0a0b0c0d
//! buf:f32[1024]=iota|zeros|random:SEED|VALUE|@FILE
//! out:f32[1024][=...][@FILE]
//! ```
//!
//! Invariant: a parsed [`ArgSpec`] is complete except for files, which [`BufferFill::bytes`]
//! reads; every error quotes the text it is about.
//! Elsewhere: matching against a kernel's parameters (`params`).

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use half::{bf16, f16};

/// An element type of scalars and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementType {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

const ELEMENTS: [(&str, ElementType); 20] = [
    ("u8", ElementType::U8),
    ("u16", ElementType::U16),
    ("u32", ElementType::U32),
    ("u64", ElementType::U64),
    ("s8", ElementType::S8),
    ("s16", ElementType::S16),
    ("s32", ElementType::S32),
    ("s64", ElementType::S64),
    ("f16", ElementType::F16),
    ("bf16", ElementType::Bf16),
    ("f32", ElementType::F32),
    ("f64", ElementType::F64),
    // Aliases from Rust and PTX.
    ("i8", ElementType::S8),
    ("i16", ElementType::S16),
    ("i32", ElementType::S32),
    ("i64", ElementType::S64),
    ("b8", ElementType::U8),
    ("b16", ElementType::U16),
    ("b32", ElementType::U32),
    ("b64", ElementType::U64),
];

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ELEMENTS.iter().find(|(_, element)| element == self);
        f.write_str(name.map_or("?", |(name, _)| name))
    }
}

impl ElementType {
    fn parse(name: &str) -> Result<ElementType> {
        match ELEMENTS.iter().find(|(known, _)| *known == name) {
            Some((_, element)) => Ok(*element),
            None => {
                bail!("unknown type {name:?}\ntry: u8 u16 u32 u64 s8 s16 s32 s64 f16 bf16 f32 f64")
            }
        }
    }

    /// Bytes of one element.
    pub(crate) fn size(self) -> usize {
        match self {
            ElementType::U8 | ElementType::S8 => 1,
            ElementType::U16 | ElementType::S16 | ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::U32 | ElementType::S32 | ElementType::F32 => 4,
            ElementType::U64 | ElementType::S64 | ElementType::F64 => 8,
        }
    }

    fn is_float(self) -> bool {
        matches!(
            self,
            ElementType::F16 | ElementType::Bf16 | ElementType::F32 | ElementType::F64
        )
    }

    /// Parses a value: decimal, or hexadecimal bits for integers.
    fn value(self, text: &str) -> Result<Vec<u8>> {
        if self.is_float() {
            let Ok(value) = text.parse::<f64>() else {
                bail!("{text:?} is not a valid {self}\ntry: {self}:2.5, {self}:1e-3 or {self}:inf");
            };
            return Ok(self.float(value));
        }
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let magnitude = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse::<u64>(),
        };
        let bits = 8 * self.size() as u32;
        let signed = matches!(
            self,
            ElementType::S8 | ElementType::S16 | ElementType::S32 | ElementType::S64
        );
        let Ok(magnitude) = magnitude else {
            bail!("{text:?} is not a valid {self}\ntry: {self}:1024 or {self}:0x400");
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
            bail!("{text} does not fit {self}: it holds {} to {upper}", -least);
        }
        let value = if negative {
            magnitude.wrapping_neg()
        } else {
            magnitude
        };
        Ok(value.to_le_bytes()[..self.size()].to_vec())
    }

    fn float(self, value: f64) -> Vec<u8> {
        match self {
            ElementType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            ElementType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            ElementType::F32 => (value as f32).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        }
    }

    /// The element in `bytes` as text; `bytes` is one element long.
    pub(crate) fn show(self, bytes: &[u8]) -> String {
        let mut wide = [0u8; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let shift = 64 - 8 * bytes.len() as u32;
        let signed = ((unsigned << shift) as i64) >> shift;
        match self {
            ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64 => {
                unsigned.to_string()
            }
            ElementType::S8 | ElementType::S16 | ElementType::S32 | ElementType::S64 => {
                signed.to_string()
            }
            ElementType::F16 => f16::from_bits(unsigned as u16).to_string(),
            ElementType::Bf16 => bf16::from_bits(unsigned as u16).to_string(),
            ElementType::F32 => f32::from_bits(unsigned as u32).to_string(),
            ElementType::F64 => f64::from_bits(unsigned).to_string(),
        }
    }
}

/// Initial contents of a buffer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BufferFill {
    /// Uninitialised: reading it before writing it is a finding.
    Uninitialised,
    /// 0, 1, 2, ...
    Iota,
    /// Every element the same.
    Value(Vec<u8>),
    /// Floats in [-1, 1), integers with all bits random.
    Random(u64),
    /// The file's bytes; `.txt` is parsed as numbers.
    File(PathBuf),
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
    pub element: ElementType,
    pub count: usize,
    pub fill: BufferFill,
    pub output: Option<BufferOutput>,
}

/// One `--arg`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ArgSpec {
    Scalar {
        element: ElementType,
        bytes: Vec<u8>,
    },
    /// A parameter passed by value that is not a number, such as a struct.
    Bytes(Vec<u8>),
    Buffer(BufferSpec),
}

impl fmt::Display for ArgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArgSpec::Scalar { element, bytes } => write!(f, "{element}:{}", element.show(bytes)),
            ArgSpec::Bytes(bytes) => write!(f, "bytes of length {}", bytes.len()),
            ArgSpec::Buffer(buffer) => {
                let word = if buffer.output.is_some() {
                    "out"
                } else {
                    "buf"
                };
                write!(f, "{word}:{}[{}]", buffer.element, buffer.count)
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
                let element = ElementType::parse(word)?;
                Ok(ArgSpec::Scalar {
                    element,
                    bytes: element.value(rest)?,
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
    let parts = text
        .split_once('[')
        .and_then(|(element, rest)| Some((element, rest.split_once(']')?)));
    let Some((element, (count, rest))) = parts else {
        bail!("{word}:{text} has no length\ntry: {word}:{text}[1024]");
    };
    let element = ElementType::parse(element)?;
    let count = length(count).with_context(|| format!("in {word}:{text}"))?;
    if count.checked_mul(element.size()).is_none() {
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
            "cannot read {rest:?} after {word}:{element}[{count}]\ntry: =zeros, =iota, =random:7, =@FILE{}",
            if out { " or @FILE to write to" } else { "" }
        ),
    };
    Ok(BufferSpec {
        element,
        count,
        fill: fill.map_or(Ok(BufferFill::Uninitialised), |fill| {
            parse_fill(fill, element)
        })?,
        output,
    })
}

/// A number, or a product of numbers: `64*64`.
fn length(text: &str) -> Result<usize> {
    let mut product = 1usize;
    for factor in text.split('*') {
        let Ok(number) = factor.trim().parse::<usize>() else {
            bail!("{text:?} is not a length\ntry: 1024 or 32*32");
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

fn parse_fill(text: &str, element: ElementType) -> Result<BufferFill> {
    if let Some(file) = text.strip_prefix('@') {
        return Ok(BufferFill::File(PathBuf::from(file)));
    }
    if let Some(seed) = text.strip_prefix("random:") {
        return match seed.parse() {
            Ok(seed) => Ok(BufferFill::Random(seed)),
            Err(_) => bail!("{seed:?} is not a seed\ntry: random:7"),
        };
    }
    match text {
        "iota" => Ok(BufferFill::Iota),
        "zeros" => Ok(BufferFill::Value(vec![0; element.size()])),
        "ones" => Ok(BufferFill::Value(element.value("1")?)),
        "random" => bail!("random needs a seed, so that a run can be repeated\ntry: random:7"),
        _ => match element.value(text) {
            Ok(value) => Ok(BufferFill::Value(value)),
            Err(_) => {
                bail!("unknown content {text:?}\ntry: iota, zeros, random:SEED, a number or @FILE")
            }
        },
    }
}

impl BufferSpec {
    /// Size of the buffer in bytes.
    pub(crate) fn size(&self) -> usize {
        self.count * self.element.size()
    }

    /// Its initial contents; `None` if it stays uninitialised.
    pub(crate) fn bytes(&self) -> Result<Option<Vec<u8>>> {
        let element = self.element;
        let mut bytes = Vec::with_capacity(self.size());
        match &self.fill {
            BufferFill::Uninitialised => return Ok(None),
            BufferFill::Value(value) => bytes = value.repeat(self.count),
            BufferFill::Iota => {
                for i in 0..self.count {
                    if element.is_float() {
                        bytes.extend(element.float(i as f64));
                    } else {
                        bytes.extend(&(i as u64).to_le_bytes()[..element.size()]);
                    }
                }
            }
            BufferFill::Random(seed) => {
                let mut state = *seed;
                for _ in 0..self.count {
                    let word = splitmix64(&mut state);
                    if element.is_float() {
                        let unit = (word >> 11) as f64 / (1u64 << 53) as f64;
                        bytes.extend(element.float(2.0 * unit - 1.0));
                    } else {
                        bytes.extend(&word.to_le_bytes()[..element.size()]);
                    }
                }
            }
            BufferFill::File(path) => bytes = self.read(path)?,
        }
        Ok(Some(bytes))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let read = || format!("cannot read {}", path.display());
        let bytes = if is_text(path) {
            let text = std::fs::read_to_string(path).with_context(read)?;
            let mut bytes = Vec::with_capacity(self.size());
            for (number, word) in text.split_whitespace().enumerate() {
                let value = self.element.value(word);
                bytes
                    .extend(value.with_context(|| format!("{}: number {number}", path.display()))?);
            }
            bytes
        } else {
            std::fs::read(path).with_context(read)?
        };
        if bytes.len() != self.size() {
            bail!(
                "{} holds {} bytes; {}[{}] is {} bytes\ntry: {}[{}]",
                path.display(),
                bytes.len(),
                self.element,
                self.count,
                self.size(),
                self.element,
                bytes.len() / self.element.size()
            );
        }
        Ok(bytes)
    }

    /// Writes the final contents in the format that [`BufferFill::File`] reads.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let written = if is_text(path) {
            let mut text = String::new();
            for element in bytes.chunks(self.element.size()) {
                text.push_str(&self.element.show(element));
                text.push('\n');
            }
            std::fs::write(path, text)
        } else {
            std::fs::write(path, bytes)
        };
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "txt")
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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
