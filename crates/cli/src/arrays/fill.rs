//! Initial contents of arrays: given in a few words, as numbers, or in a file.
//!
//! Invariant: contents repeat: random ones have a seed. Elsewhere: elements as text (`value`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fercuda_tensor::Dtype;

use super::value::{element, element_size, parse_value};
use crate::input::read_at_most;
use crate::terminal::count;

/// Initial contents of a buffer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BufferFill {
    /// Uninitialised: reading it before writing it is a finding.
    Uninitialised,
    /// 0, 1, 2, ...
    Iota,
    /// Every element the same.
    Value(Vec<u8>),
    /// The elements in order, as their bytes.
    Values(Vec<u8>),
    /// Floats in [-1, 1), integers with all bits random.
    Random(u64),
    /// The file's bytes; `.txt` is parsed as numbers.
    File(PathBuf),
}

impl BufferFill {
    /// Parses `iota`, `zeros`, `ones`, `random:SEED`, one number, several as `1,2.5`, or `@FILE`.
    ///
    /// # Errors
    /// Quotes the text, with the accepted forms.
    pub(crate) fn parse(text: &str, dtype: Dtype) -> Result<Self> {
        if let Some(file) = text.strip_prefix('@') {
            return Ok(Self::File(PathBuf::from(file)));
        }
        if let Some(seed) = text.strip_prefix("random:") {
            return match seed.parse() {
                Ok(seed) => Ok(Self::Random(seed)),
                Err(_) => bail!("{seed:?} is not a seed\ntry: random:7"),
            };
        }
        match text {
            "iota" => return Ok(Self::Iota),
            "zeros" => return Ok(Self::Value(vec![0; element_size(dtype)])),
            "ones" => return Ok(Self::Value(parse_value(dtype, "1")?)),
            "random" => bail!("random needs a seed, so that a run can be repeated\ntry: random:7"),
            _ => {}
        }
        if text.contains(',') {
            let mut bytes = Vec::new();
            for part in text.split(',') {
                let value = parse_value(dtype, part.trim());
                bytes.extend(value.with_context(|| format!("in the values {text:?}"))?);
            }
            return Ok(Self::Values(bytes));
        }
        match parse_value(dtype, text) {
            Ok(value) => Ok(Self::Value(value)),
            // A number that the type does not have.
            Err(error) if text.parse::<f64>().is_ok() => Err(error),
            Err(_) => bail!(
                "unknown content {text:?}\n\
                 try: iota, zeros, random:SEED, a number, numbers as 1,2,3, or @FILE"
            ),
        }
    }

    /// The bytes of `len` elements; `None` if they stay uninitialised.
    ///
    /// # Errors
    /// A file cannot be read, or it or the values are of another number.
    pub(crate) fn bytes(&self, dtype: Dtype, len: usize) -> Result<Option<Vec<u8>>> {
        let size = len * element_size(dtype);
        let mut bytes = Vec::with_capacity(size);
        match self {
            Self::Uninitialised => return Ok(None),
            Self::Value(value) => bytes = value.repeat(len),
            Self::Values(values) if values.len() == size => bytes.clone_from(values),
            Self::Values(values) => bail!(
                "{} given for {dtype}[{len}]\ntry: {}, or one for all",
                count(values.len() / element_size(dtype), "value"),
                count(len, "value")
            ),
            Self::Iota => {
                for i in 0..len as u64 {
                    bytes.extend(match dtype.is_float() {
                        true => element(dtype, dtype.encode(i as f64)),
                        false => element(dtype, i),
                    });
                }
            }
            Self::Random(seed) => {
                let mut state = *seed;
                for _ in 0..len {
                    let word = splitmix64(&mut state);
                    let unit = (word >> 11) as f64 / (1u64 << 53) as f64;
                    bytes.extend(match dtype.is_float() {
                        true => element(dtype, dtype.encode(2.0 * unit - 1.0)),
                        false => element(dtype, word),
                    });
                }
            }
            Self::File(path) => bytes = read(path, dtype, len)?,
        }
        Ok(Some(bytes))
    }
}

fn read(path: &Path, dtype: Dtype, len: usize) -> Result<Vec<u8>> {
    let size = len * element_size(dtype);
    let failed = || format!("cannot read {}", path.display());
    let bytes = if is_text(path) {
        let most = (len as u64).saturating_mul(256).max(1 << 20);
        let text = read_at_most(path, most)?;
        if text.len() as u64 > most {
            bail!(
                "{} has more than {most} bytes, for {len} numbers\ntry: a file with these numbers alone",
                path.display(),
            );
        }
        let text = String::from_utf8(text).with_context(failed)?;
        let mut bytes = Vec::with_capacity(size);
        for (number, word) in text.split_whitespace().enumerate() {
            let value = parse_value(dtype, word);
            bytes.extend(value.with_context(|| format!("{}: number {number}", path.display()))?);
        }
        bytes
    } else {
        read_at_most(path, size as u64)?
    };
    if bytes.len() > size && !is_text(path) {
        bail!(
            "{} holds more than the {size} bytes of {dtype}[{len}]\ntry: a larger length",
            path.display(),
        );
    }
    if bytes.len() != size {
        bail!(
            "{} holds {} bytes; {dtype}[{len}] is {size} bytes\ntry: {dtype}[{}]",
            path.display(),
            bytes.len(),
            bytes.len() / element_size(dtype)
        );
    }
    Ok(bytes)
}

/// Whether a file holds numbers as text.
pub(crate) fn is_text(path: &Path) -> bool {
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

    #[test]
    fn values_are_taken_in_order_and_in_the_number_of_elements() {
        let fill = BufferFill::parse("1, -2,3", Dtype::I16).unwrap();
        let bytes: Vec<u8> = [1i16, -2, 3]
            .iter()
            .flat_map(|it| it.to_le_bytes())
            .collect();
        assert_eq!(fill.bytes(Dtype::I16, 3).unwrap(), Some(bytes));
        let refused = format!("{:#}", fill.bytes(Dtype::I16, 4).unwrap_err());
        assert_eq!(
            refused,
            "3 values given for i16[4]\ntry: 4 values, or one for all"
        );
        for (text, wanted) in [("1,x", "\"x\" is not a valid u8"), ("300", "0 to 255")] {
            let refused = format!("{:#}", BufferFill::parse(text, Dtype::U8).unwrap_err());
            assert!(refused.contains(wanted), "{refused}");
        }
    }
}
