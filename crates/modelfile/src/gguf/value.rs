//! Values of GGUF metadata, as views of the file.

use std::borrow::Cow;
use std::fmt;

use crate::error::{Error, Result};

/// The type of a metadata value; the numbers are the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as they are")]
pub enum GgufKind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl GgufKind {
    const ALL: [GgufKind; 13] = [
        GgufKind::U8,
        GgufKind::I8,
        GgufKind::U16,
        GgufKind::I16,
        GgufKind::U32,
        GgufKind::I32,
        GgufKind::F32,
        GgufKind::Bool,
        GgufKind::String,
        GgufKind::Array,
        GgufKind::U64,
        GgufKind::I64,
        GgufKind::F64,
    ];

    fn of_number(number: u32) -> Option<GgufKind> {
        Self::ALL.get(number as usize).copied()
    }

    /// Bytes of a value; `None` of strings and arrays.
    fn bytes(self) -> Option<usize> {
        match self {
            GgufKind::U8 | GgufKind::I8 | GgufKind::Bool => Some(1),
            GgufKind::U16 | GgufKind::I16 => Some(2),
            GgufKind::U32 | GgufKind::I32 | GgufKind::F32 => Some(4),
            GgufKind::U64 | GgufKind::I64 | GgufKind::F64 => Some(8),
            GgufKind::String | GgufKind::Array => None,
        }
    }

    /// The smallest size of a value in an array.
    fn least_bytes(self) -> usize {
        self.bytes().unwrap_or(8)
    }
}

/// A metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "named as they are")]
pub enum GgufValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Mostly UTF-8; some files' vocabularies are not.
    String(&'a [u8]),
    Array(GgufArray<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type, none of which are arrays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgufArray<'a> {
    kind: GgufKind,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> GgufArray<'a> {
    /// The type of its values.
    pub fn kind(&self) -> GgufKind {
        self.kind
    }

    /// Number of values.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values as they lie in the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = GgufValue<'a>> + use<'a> {
        let kind = self.kind;
        let mut cursor = GgufCursor::new(self.bytes, 0);
        // They were passed over when the file was parsed, so none fails.
        (0..self.len).map_while(move |_| cursor.value(kind).ok())
    }
}

impl<'a> GgufValue<'a> {
    /// Its type.
    pub fn kind(&self) -> GgufKind {
        match self {
            GgufValue::U8(_) => GgufKind::U8,
            GgufValue::I8(_) => GgufKind::I8,
            GgufValue::U16(_) => GgufKind::U16,
            GgufValue::I16(_) => GgufKind::I16,
            GgufValue::U32(_) => GgufKind::U32,
            GgufValue::I32(_) => GgufKind::I32,
            GgufValue::F32(_) => GgufKind::F32,
            GgufValue::Bool(_) => GgufKind::Bool,
            GgufValue::String(_) => GgufKind::String,
            GgufValue::Array(_) => GgufKind::Array,
            GgufValue::U64(_) => GgufKind::U64,
            GgufValue::I64(_) => GgufKind::I64,
            GgufValue::F64(_) => GgufKind::F64,
        }
    }

    /// An integer that is not negative, of any type.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            GgufValue::U8(it) => Some(it.into()),
            GgufValue::U16(it) => Some(it.into()),
            GgufValue::U32(it) => Some(it.into()),
            GgufValue::U64(it) => Some(it),
            GgufValue::I8(it) => it.try_into().ok(),
            GgufValue::I16(it) => it.try_into().ok(),
            GgufValue::I32(it) => it.try_into().ok(),
            GgufValue::I64(it) => it.try_into().ok(),
            _ => None,
        }
    }

    /// A float of either type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            GgufValue::F32(it) => Some(it.into()),
            GgufValue::F64(it) => Some(it),
            _ => None,
        }
    }

    /// A string that is UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            GgufValue::String(text) => str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<GgufArray<'a>> {
        match self {
            GgufValue::Array(array) => Some(*array),
            _ => None,
        }
    }

    /// Appends the value as a file has it, without its type.
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        match self {
            GgufValue::U8(it) => to.push(*it),
            GgufValue::I8(it) => to.extend(it.to_le_bytes()),
            GgufValue::U16(it) => to.extend(it.to_le_bytes()),
            GgufValue::I16(it) => to.extend(it.to_le_bytes()),
            GgufValue::U32(it) => to.extend(it.to_le_bytes()),
            GgufValue::I32(it) => to.extend(it.to_le_bytes()),
            GgufValue::F32(it) => to.extend(it.to_le_bytes()),
            GgufValue::Bool(it) => to.push(u8::from(*it)),
            GgufValue::String(text) => {
                to.extend((text.len() as u64).to_le_bytes());
                to.extend(*text);
            }
            GgufValue::Array(array) => {
                to.extend((array.kind as u32).to_le_bytes());
                to.extend(array.len.to_le_bytes());
                to.extend(array.bytes);
            }
            GgufValue::U64(it) => to.extend(it.to_le_bytes()),
            GgufValue::I64(it) => to.extend(it.to_le_bytes()),
            GgufValue::F64(it) => to.extend(it.to_le_bytes()),
        }
    }
}

/// Numbers and texts as they are; of an array its type and length.
impl fmt::Display for GgufValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufValue::U8(it) => it.fmt(f),
            GgufValue::I8(it) => it.fmt(f),
            GgufValue::U16(it) => it.fmt(f),
            GgufValue::I16(it) => it.fmt(f),
            GgufValue::U32(it) => it.fmt(f),
            GgufValue::I32(it) => it.fmt(f),
            GgufValue::F32(it) => it.fmt(f),
            GgufValue::Bool(it) => it.fmt(f),
            GgufValue::String(text) => {
                let text: Cow<'_, str> = String::from_utf8_lossy(text);
                f.pad(&text)
            }
            GgufValue::Array(array) => write!(f, "{} of {:?}", array.len, array.kind),
            GgufValue::U64(it) => it.fmt(f),
            GgufValue::I64(it) => it.fmt(f),
            GgufValue::F64(it) => it.fmt(f),
        }
    }
}

/// A place in a file, little-endian.
#[derive(Clone)]
pub(super) struct GgufCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> GgufCursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> GgufCursor<'a> {
        GgufCursor { bytes, at }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        let left = self.left();
        let len = usize::try_from(len).ok().filter(|len| *len <= left);
        let Some(len) = len else {
            return Err(Error::malformed(
                self.at,
                format!("{what} does not fit in the {left} bytes that are left"),
            ));
        };
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let taken = self.take(N as u64, what)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things of at least `each` bytes, which have to be there.
    pub(super) fn count(&mut self, each: usize, what: &str) -> Result<u64> {
        let at = self.at;
        let count = self.u64("a count")?;
        let left = self.left();
        let most = (left / each) as u64;
        match count <= most {
            true => Ok(count),
            false => Err(Error::malformed(
                at,
                format!("{count} {what}, but the {left} bytes that are left hold at most {most}"),
            )),
        }
    }

    /// A text with its length before it.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a [u8]> {
        let at = self.at;
        let len = self.u64("the length of a text")?;
        let left = self.left();
        if len > left as u64 {
            let said = format!("{what} of {len} bytes, of which {left} are left");
            return Err(Error::malformed(at, said));
        }
        self.take(len, what)
    }

    /// The type of a value.
    pub(super) fn kind(&mut self) -> Result<GgufKind> {
        let at = self.at;
        let number = self.u32("a value's type")?;
        GgufKind::of_number(number).ok_or_else(|| {
            Error::malformed(at, format!("a value of type {number}, the last is 12"))
        })
    }

    /// A value of this type.
    pub(super) fn value(&mut self, kind: GgufKind) -> Result<GgufValue<'a>> {
        const VALUE: &str = "a value";
        Ok(match kind {
            GgufKind::U8 => GgufValue::U8(self.array::<1>(VALUE)?[0]),
            GgufKind::I8 => GgufValue::I8(i8::from_le_bytes(self.array(VALUE)?)),
            GgufKind::U16 => GgufValue::U16(u16::from_le_bytes(self.array(VALUE)?)),
            GgufKind::I16 => GgufValue::I16(i16::from_le_bytes(self.array(VALUE)?)),
            GgufKind::U32 => GgufValue::U32(self.u32(VALUE)?),
            GgufKind::I32 => GgufValue::I32(i32::from_le_bytes(self.array(VALUE)?)),
            GgufKind::F32 => GgufValue::F32(f32::from_le_bytes(self.array(VALUE)?)),
            GgufKind::Bool => GgufValue::Bool(self.array::<1>(VALUE)?[0] != 0),
            GgufKind::String => GgufValue::String(self.text("a string")?),
            GgufKind::Array => GgufValue::Array(self.values()?),
            GgufKind::U64 => GgufValue::U64(self.u64(VALUE)?),
            GgufKind::I64 => GgufValue::I64(i64::from_le_bytes(self.array(VALUE)?)),
            GgufKind::F64 => GgufValue::F64(f64::from_le_bytes(self.array(VALUE)?)),
        })
    }

    fn values(&mut self) -> Result<GgufArray<'a>> {
        let at = self.at;
        let kind = self.kind()?;
        if kind == GgufKind::Array {
            return Err(Error::malformed(
                at,
                "an array of arrays, which llama.cpp does not read either",
            ));
        }
        let len = self.count(kind.least_bytes(), "values of an array")?;
        let from = self.at;
        match kind.bytes() {
            // No overflow: so many are there.
            Some(bytes) => {
                self.take(len * bytes as u64, "an array")?;
            }
            None => {
                for _ in 0..len {
                    self.text("a string of an array")?;
                }
            }
        }
        let bytes = &self.bytes[from..self.at];
        Ok(GgufArray { kind, len, bytes })
    }
}
