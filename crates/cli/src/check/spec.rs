//! The words after `--arg`: a scalar, or a buffer with what it starts with.
//!
//! ```text
//! f32:2.5   u32:1024   u64:0xff   bytes:0a0b0c0d
//! buf:f32[1024]=iota|zeros|random:SEED|VALUE|@FILE
//! out:f32[1024][=...][@FILE]
//! ```
//!
//! Invariant: a parsed [`Spec`] is complete but for files, which
//! [`Fill::bytes`] reads; every error quotes what was typed.
//! Elsewhere: matching against a kernel's parameters (`params`).

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use half::{bf16, f16};

/// An element type of scalars and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
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

const ELEMENTS: [(&str, Element); 20] = [
    ("u8", Element::U8),
    ("u16", Element::U16),
    ("u32", Element::U32),
    ("u64", Element::U64),
    ("s8", Element::S8),
    ("s16", Element::S16),
    ("s32", Element::S32),
    ("s64", Element::S64),
    ("f16", Element::F16),
    ("bf16", Element::Bf16),
    ("f32", Element::F32),
    ("f64", Element::F64),
    // Spellings of other houses.
    ("i8", Element::S8),
    ("i16", Element::S16),
    ("i32", Element::S32),
    ("i64", Element::S64),
    ("b8", Element::U8),
    ("b16", Element::U16),
    ("b32", Element::U32),
    ("b64", Element::U64),
];

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ELEMENTS.iter().find(|(_, element)| element == self);
        f.write_str(name.map_or("?", |(name, _)| name))
    }
}

impl Element {
    fn parse(name: &str) -> Result<Element> {
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
            Element::U8 | Element::S8 => 1,
            Element::U16 | Element::S16 | Element::F16 | Element::Bf16 => 2,
            Element::U32 | Element::S32 | Element::F32 => 4,
            Element::U64 | Element::S64 | Element::F64 => 8,
        }
    }

    fn is_float(self) -> bool {
        matches!(
            self,
            Element::F16 | Element::Bf16 | Element::F32 | Element::F64
        )
    }

    /// One value as typed: decimal, or hexadecimal bits for integers.
    fn value(self, text: &str) -> Result<Vec<u8>> {
        if self.is_float() {
            let Ok(value) = text.parse::<f64>() else {
                bail!("{text:?} is no {self}\ntry: {self}:2.5, {self}:1e-3 or {self}:inf");
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
            Element::S8 | Element::S16 | Element::S32 | Element::S64
        );
        let Ok(magnitude) = magnitude else {
            bail!("{text:?} is no {self}\ntry: {self}:1024 or {self}:0x400");
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
            Element::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            Element::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            Element::F32 => (value as f32).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        }
    }

    /// The element in `bytes`, for a person; `bytes` is one element long.
    pub(crate) fn show(self, bytes: &[u8]) -> String {
        let mut wide = [0u8; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let shift = 64 - 8 * bytes.len() as u32;
        let signed = ((unsigned << shift) as i64) >> shift;
        match self {
            Element::U8 | Element::U16 | Element::U32 | Element::U64 => unsigned.to_string(),
            Element::S8 | Element::S16 | Element::S32 | Element::S64 => signed.to_string(),
            Element::F16 => f16::from_bits(unsigned as u16).to_string(),
            Element::Bf16 => bf16::from_bits(unsigned as u16).to_string(),
            Element::F32 => f32::from_bits(unsigned as u32).to_string(),
            Element::F64 => f64::from_bits(unsigned).to_string(),
        }
    }
}

/// What a buffer holds before the launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fill {
    /// Nothing: reading it before writing it is a finding.
    Uninitialised,
    /// 0, 1, 2, ...
    Iota,
    /// All the same element.
    Value(Vec<u8>),
    /// Floats in [-1, 1), integers over all their bits.
    Random(u64),
    /// The file's bytes; `.txt` is read as numbers.
    File(PathBuf),
}

/// Where a buffer goes after the launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    /// To the terminal.
    Print,
    /// To a file, as bytes; `.txt` as numbers.
    File(PathBuf),
}

/// A buffer in device memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Buffer {
    pub element: Element,
    pub count: usize,
    pub fill: Fill,
    pub output: Option<Output>,
}

/// One `--arg`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Spec {
    Scalar {
        element: Element,
        bytes: Vec<u8>,
    },
    /// A parameter passed by value that is no number, such as a struct.
    Bytes(Vec<u8>),
    Buffer(Buffer),
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Scalar { element, bytes } => write!(f, "{element}:{}", element.show(bytes)),
            Spec::Bytes(bytes) => write!(f, "bytes of length {}", bytes.len()),
            Spec::Buffer(buffer) => {
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

impl std::str::FromStr for Spec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Spec> {
        let Some((word, rest)) = text.split_once(':') else {
            bail!(
                "{text:?} has no type\ntry: f32:2.5, u32:1024, buf:f32[1024]=iota or out:f32[1024]"
            );
        };
        match word {
            "buf" => Ok(Spec::Buffer(buffer(rest, false)?)),
            "out" => Ok(Spec::Buffer(buffer(rest, true)?)),
            "bytes" => Ok(Spec::Bytes(hexadecimal(rest)?)),
            _ => {
                let element = Element::parse(word)?;
                Ok(Spec::Scalar {
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
        _ => bail!("{text:?} is no row of bytes\ntry: bytes:0a0b0c0d, two digits a byte"),
    }
}

fn buffer(text: &str, out: bool) -> Result<Buffer> {
    let word = if out { "out" } else { "buf" };
    let parts = text
        .split_once('[')
        .and_then(|(element, rest)| Some((element, rest.split_once(']')?)));
    let Some((element, (count, rest))) = parts else {
        bail!("{word}:{text} has no length\ntry: {word}:{text}[1024]");
    };
    let element = Element::parse(element)?;
    let count = length(count).with_context(|| format!("in {word}:{text}"))?;
    if count.checked_mul(element.size()).is_none() {
        bail!("{word}:{text} has more bytes than can be counted");
    }
    // In `out:` an `@` after the fill starts the name of the file written.
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
        Some(file) if out && !file.is_empty() => Some(Output::File(PathBuf::from(file))),
        None if output.is_empty() => out.then_some(Output::Print),
        _ => bail!(
            "cannot read {rest:?} after {word}:{element}[{count}]\ntry: =zeros, =iota, =random:7, =@FILE{}",
            if out { " or @FILE to write to" } else { "" }
        ),
    };
    Ok(Buffer {
        element,
        count,
        fill: fill.map_or(Ok(Fill::Uninitialised), |fill| parse_fill(fill, element))?,
        output,
    })
}

/// A number, or a product of numbers: `64*64`.
fn length(text: &str) -> Result<usize> {
    let mut product = 1usize;
    for factor in text.split('*') {
        let Ok(number) = factor.trim().parse::<usize>() else {
            bail!("{text:?} is no length\ntry: 1024 or 32*32");
        };
        product = product
            .checked_mul(number)
            .with_context(|| format!("the length {text} is too large"))?;
    }
    if product == 0 {
        bail!("a buffer of length 0 has no address\ntry: a length of at least 1");
    }
    Ok(product)
}

fn parse_fill(text: &str, element: Element) -> Result<Fill> {
    if let Some(file) = text.strip_prefix('@') {
        return Ok(Fill::File(PathBuf::from(file)));
    }
    if let Some(seed) = text.strip_prefix("random:") {
        return match seed.parse() {
            Ok(seed) => Ok(Fill::Random(seed)),
            Err(_) => bail!("{seed:?} is no seed\ntry: random:7"),
        };
    }
    match text {
        "iota" => Ok(Fill::Iota),
        "zeros" => Ok(Fill::Value(vec![0; element.size()])),
        "ones" => Ok(Fill::Value(element.value("1")?)),
        "random" => bail!("random needs a seed, so that a run can be repeated\ntry: random:7"),
        _ => match element.value(text) {
            Ok(value) => Ok(Fill::Value(value)),
            Err(_) => {
                bail!("unknown content {text:?}\ntry: iota, zeros, random:SEED, a number or @FILE")
            }
        },
    }
}

impl Buffer {
    /// Bytes of the buffer.
    pub(crate) fn size(&self) -> usize {
        self.count * self.element.size()
    }

    /// What it starts with; `None` if it is to stay uninitialised.
    pub(crate) fn bytes(&self) -> Result<Option<Vec<u8>>> {
        let element = self.element;
        let mut bytes = Vec::with_capacity(self.size());
        match &self.fill {
            Fill::Uninitialised => return Ok(None),
            Fill::Value(value) => bytes = value.repeat(self.count),
            Fill::Iota => {
                for i in 0..self.count {
                    if element.is_float() {
                        bytes.extend(element.float(i as f64));
                    } else {
                        bytes.extend(&(i as u64).to_le_bytes()[..element.size()]);
                    }
                }
            }
            Fill::Random(seed) => {
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
            Fill::File(path) => bytes = self.read(path)?,
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

    /// Writes what the kernel left, the way [`Fill::File`] reads it.
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

    fn parsed(text: &str) -> Spec {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", text.parse::<Spec>().unwrap_err())
    }

    #[test]
    fn scalars_become_their_little_endian_bytes() {
        let bytes = |text| match parsed(text) {
            Spec::Scalar { bytes, .. } => bytes,
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
    fn what_cannot_be_read_is_quoted_with_a_suggestion() {
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
    fn buffers_carry_their_content_and_destination() {
        let Spec::Buffer(buffer) = parsed("out:f32[4*2]=@in.bin@out.txt") else {
            panic!("no buffer");
        };
        assert_eq!(buffer.count, 8);
        assert_eq!(buffer.fill, Fill::File("in.bin".into()));
        assert_eq!(buffer.output, Some(Output::File("out.txt".into())));
        let Spec::Buffer(buffer) = parsed("out:u8[3]@r.bin") else {
            panic!("no buffer");
        };
        assert_eq!(buffer.fill, Fill::Uninitialised);
        assert_eq!(buffer.output, Some(Output::File("r.bin".into())));
        let Spec::Buffer(buffer) = parsed("out:u8[3]=7") else {
            panic!("no buffer");
        };
        assert_eq!(buffer.bytes().unwrap(), Some(vec![7; 3]));
        assert_eq!(buffer.output, Some(Output::Print));
    }

    #[test]
    fn random_content_repeats_with_its_seed_and_differs_without() {
        let content = |text| match parsed(text) {
            Spec::Buffer(buffer) => buffer.bytes().unwrap().unwrap(),
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
    fn iota_counts_in_the_type_of_the_buffer() {
        let Spec::Buffer(buffer) = parsed("buf:u16[300]=iota") else {
            panic!("no buffer");
        };
        let bytes = buffer.bytes().unwrap().unwrap();
        assert_eq!(bytes[598..], 299u16.to_le_bytes());
    }
}
