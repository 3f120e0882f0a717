//! Arrays given as `NAME:TYPE[SHAPE]@[STRIDES]=CONTENT`: their layouts, elements and memory.
//!
//! Elsewhere: contents (`fill`).

use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_jit::reference::{self, ExactValue};
use fercuda_tensor::{Dtype, Layout};

use super::fill::BufferFill;
use super::value::element_size;

/// An array, whose elements are random if it has no content.
#[derive(Debug)]
pub(crate) struct ArrayInput {
    pub name: String,
    pub layout: Layout,
    pub fill: Option<BufferFill>,
}

impl FromStr for ArrayInput {
    type Err = anyhow::Error;

    fn from_str(spec: &str) -> Result<Self> {
        let shape =
            || anyhow!("it has no type and shape\ntry: x:f16[8,128], or x:f16[] for one element");
        let (shaped, fill) = match spec.split_once('=') {
            Some((shaped, fill)) => (shaped, Some(fill)),
            None => (spec, None),
        };
        let (name, rest) = shaped.split_once(':').ok_or_else(shape)?;
        let is = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !name.chars().all(is) {
            bail!(
                "{name:?} is not a valid name\ntry: letters, digits and _, starting with a letter"
            );
        }
        let (dtype, rest) = rest.split_once('[').ok_or_else(shape)?;
        let dtype: Dtype = dtype.trim().parse()?;
        let (extents, rest) = rest.split_once(']').ok_or_else(shape)?;
        let extents: Vec<u64> = list(extents, "x:f16[8,128]")?;
        let layout = match rest.trim() {
            "" => Layout::contiguous(dtype, &extents)?,
            rest => {
                let strides = rest
                    .strip_prefix("@[")
                    .and_then(|rest| rest.strip_suffix(']'));
                let strides: Vec<i64> = list(strides.ok_or_else(shape)?, "x:f16[8,128]")?;
                Layout::strided(dtype, &extents, &strides)?
            }
        };
        let fill = fill
            .map(|fill| BufferFill::parse(fill, dtype))
            .transpose()?;
        Ok(Self {
            name: name.to_owned(),
            layout,
            fill,
        })
    }
}

impl ArrayInput {
    /// Bits of its elements, in order.
    ///
    /// # Errors
    /// Its content is not of its length, or in a file that cannot be read.
    pub(crate) fn elements(&self, random: &mut fastrand::Rng) -> Result<Vec<u64>> {
        let (dtype, len) = (self.layout.dtype(), self.layout.len());
        let Some(fill) = &self.fill else {
            return Ok(random_elements(random, dtype, len));
        };
        let bytes = fill.bytes(dtype, usize::try_from(len)?);
        let bytes =
            bytes.with_context(|| format!("the content of {} cannot be used", self.name))?;
        Ok(bits_of(dtype, &bytes.unwrap_or_default()))
    }
}

/// Integers separated by commas, as in `example`.
///
/// # Errors
/// Quotes the part that is no integer.
pub(crate) fn list<T: FromStr>(text: &str, example: &str) -> Result<Vec<T>> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let number = part.parse();
            number.map_err(|_| anyhow!("{part:?} is not an integer\ntry: {example}"))
        })
        .collect()
}

/// A seed below 2^53: readers of JSON may take it for a double.
pub(crate) fn random_seed() -> u64 {
    fastrand::u64(..1 << 53)
}

/// Random elements of useful size: floats from -4 to 4, small integers.
pub(crate) fn random_elements(random: &mut fastrand::Rng, dtype: Dtype, count: u64) -> Vec<u64> {
    let float = !matches!(reference::decode(dtype, 0), ExactValue::Int(_));
    let all = (0..count).map(|_| match (float, dtype) {
        (true, _) => ExactValue::Float(random.f64() * 8.0 - 4.0),
        (_, Dtype::Bool) => ExactValue::Int(random.i128(0..2)),
        (_, Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64) => {
            ExactValue::Int(random.i128(0..100))
        }
        _ => ExactValue::Int(random.i128(-50..50)),
    });
    all.map(|value| reference::encode(dtype, value)).collect()
}

/// Memory in which the elements lie as the layout prescribes, and the offset of the first one in
/// bytes. Where elements share a place, as by a stride of 0, `bits` become those of the last.
pub(crate) fn scattered(layout: &Layout, bits: &mut [u64]) -> (Vec<u8>, u64) {
    let size = element_size(layout.dtype());
    let reach = layout.reach_bytes();
    let mut bytes = vec![0; (reach.end - reach.start) as usize];
    let place = |at: usize| {
        let (mut rest, mut place) = (at as u64, -reach.start);
        for (len, stride) in layout.shape().iter().zip(layout.strides()).rev() {
            place += (rest % len) as i64 * stride * size as i64;
            rest /= len;
        }
        place as usize..place as usize + size
    };
    for (at, bits) in bits.iter().enumerate() {
        bytes[place(at)].copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    if layout.may_overlap() {
        for (at, bits) in bits.iter_mut().enumerate() {
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(&bytes[place(at)]);
            *bits = u64::from_le_bytes(wide);
        }
    }
    (bytes, reach.start.unsigned_abs())
}

/// Bits of the elements that lie in `bytes` one after the other.
pub(crate) fn bits_of(dtype: Dtype, bytes: &[u8]) -> Vec<u64> {
    let elements = bytes.chunks_exact(element_size(dtype));
    elements
        .map(|bytes| {
            let mut bits = [0; 8];
            bits[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(bits)
        })
        .collect()
}
