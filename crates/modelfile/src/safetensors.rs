//! Safetensors files: a header in JSON, and the tensors' data behind it without gaps.
//!
//! As with GGUF, a file is checked once, and what is kept of a tensor is 12 bytes: the places of
//! its name and of its description in the header, which is read again when it is asked for.

use std::borrow::Cow;

use crate::error::{Error, Result, shown};
use crate::json::JsonCursor;
use crate::kinds::{TensorType, elements_of};

/// The longest header that is read, as in the reference implementation.
const HEADER_BYTES: u64 = 100_000_000;
/// The member of the header that is no tensor.
const METADATA: &str = "__metadata__";

/// A parsed file over its bytes: a slice, or a map.
#[derive(Debug)]
pub struct Safetensors<B> {
    bytes: B,
    header_bytes: usize,
    /// Places of the name and of the description of each tensor, in the header's order.
    places: Vec<(u32, u32)>,
    by_name: Vec<u32>,
    /// The place of the metadata's object.
    metadata_at: Option<u32>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct SafeTensor<'a> {
    name: Cow<'a, str>,
    kind: TensorType,
    shape: Vec<u64>,
    at: u64,
    bytes: &'a [u8],
}

impl<'a> SafeTensor<'a> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn kind(&self) -> TensorType {
        self.kind
    }

    /// Its shape, in elements, the outermost dimension first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Offset of its data in the file.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its data.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn into_parts(self) -> (Cow<'a, str>, Vec<u64>) {
        (self.name, self.shape)
    }
}

/// What the header says of a tensor.
struct Described {
    kind: TensorType,
    shape: Vec<u64>,
    from: u64,
    to: u64,
}

/// The header: its strings are checked to be UTF-8, and all else in it is ASCII.
fn header(bytes: &[u8]) -> Result<&[u8]> {
    let Some((len, rest)) = bytes.split_first_chunk() else {
        let what = format!(
            "{} bytes, of which the first 8 are the header's length",
            bytes.len()
        );
        return Err(Error::malformed(0, what));
    };
    let len = u64::from_le_bytes(*len);
    let most = HEADER_BYTES.min(rest.len() as u64);
    if len > most {
        let what = format!("a header of {len} bytes, at most {most} are possible");
        return Err(Error::malformed(0, what));
    }
    let header = &rest[..len as usize];
    if header.first() != Some(&b'{') {
        return Err(Error::malformed(8, "the header does not begin with `{`"));
    }
    Ok(header)
}

impl<B: AsRef<[u8]>> Safetensors<B> {
    /// Checks a file. Takes less memory than the file has bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the place, [`Error::Unsupported`] for types that are not known.
    pub fn parse(file: B) -> Result<Self> {
        let bytes = file.as_ref();
        let text = header(bytes)?;
        let mut metadata_at = None;
        let mut count = 0usize;
        let mut cursor = JsonCursor::new(text, 0, 8);
        cursor.members(|cursor, key_at| {
            if cursor.key(key_at) != METADATA {
                count += 1;
                return described(cursor).map(|_| ());
            }
            if metadata_at.replace(cursor.at() as u32).is_some() {
                return Err(cursor.malformed("__metadata__ for the second time"));
            }
            check_metadata(cursor)
        })?;
        cursor.expect_end()?;
        let mut places = Vec::with_capacity(count);
        let mut cursor = JsonCursor::new(text, 0, 8);
        cursor.members(|cursor, key_at| {
            if name_at(text, key_at) != METADATA {
                places.push((key_at as u32, cursor.at() as u32));
            }
            cursor.skip()
        })?;
        let by_name = order_by_name(text, &places)?;
        check_cover(text, &places, (bytes.len() - 8 - text.len()) as u64)?;
        Ok(Safetensors {
            header_bytes: text.len(),
            places,
            by_name,
            metadata_at,
            bytes: file,
        })
    }

    /// The bytes of the file.
    pub fn file(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    pub(crate) fn bytes(&self) -> &B {
        &self.bytes
    }

    fn header(&self) -> &[u8] {
        let header = self.file().get(8..8 + self.header_bytes);
        header.unwrap_or_default()
    }

    /// Keys and texts of the metadata, in the header's order.
    pub fn metadata(&self) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
        let text = self.header();
        let mut pairs = Vec::new();
        if let Some(at) = self.metadata_at
            && let mut cursor = JsonCursor::new(text, at as usize, 8)
            && cursor.peek() == Some(b'{')
        {
            // It was read when the file was parsed.
            let read = cursor.members(|cursor, key_at| {
                pairs.push((name_at(text, key_at), cursor.string()?));
                Ok(())
            });
            debug_assert!(read.is_ok());
        }
        pairs
    }

    /// The tensors in the header's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = SafeTensor<'_>> {
        self.places.iter().map(|places| self.at(*places))
    }

    /// The tensor of this place in the header's order.
    pub fn nth_tensor(&self, index: usize) -> Option<SafeTensor<'_>> {
        self.places.get(index).map(|places| self.at(*places))
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<SafeTensor<'_>> {
        let text = self.header();
        let places = |at: &u32| self.places[*at as usize];
        let found = self
            .by_name
            .binary_search_by(|at| name_at(text, places(at).0 as usize).as_ref().cmp(name));
        found.ok().map(|at| self.at(places(&self.by_name[at])))
    }

    fn at(&self, (name, description): (u32, u32)) -> SafeTensor<'_> {
        let text = self.header();
        let mut cursor = JsonCursor::new(text, description as usize, 8);
        // It was read when the file was parsed: only a file that another process has changed since
        // then gives something else.
        let described = described(&mut cursor).unwrap_or(Described {
            kind: TensorType::Scalar(fercuda_tensor::Dtype::U8),
            shape: vec![0],
            from: 0,
            to: 0,
        });
        let data = 8 + text.len() as u64;
        let (from, to) = (data + described.from, data + described.to);
        let bytes = self.file().get(from as usize..to as usize);
        SafeTensor {
            name: name_at(text, name as usize),
            kind: described.kind,
            shape: described.shape,
            at: from,
            bytes: bytes.unwrap_or_default(),
        }
    }
}

/// A key that was passed over before.
fn name_at(text: &[u8], at: usize) -> Cow<'_, str> {
    JsonCursor::new(text, at, 8).string().unwrap_or_default()
}

/// `null`, or an object of texts.
fn check_metadata(cursor: &mut JsonCursor<'_>) -> Result<()> {
    if cursor.peek() == Some(b'n') {
        return cursor.skip();
    }
    cursor.members(|cursor, _| cursor.string().map(|_| ()))
}

fn described(cursor: &mut JsonCursor<'_>) -> Result<Described> {
    let begin = cursor.clone();
    let (mut kind, mut shape, mut offsets) = (None, None, None);
    cursor.members(|cursor, key_at| {
        let key = cursor.key(key_at);
        let is_second = match key.as_ref() {
            "dtype" => {
                let name = cursor.string()?;
                let known = TensorType::of_safetensors(&name);
                let known = known.ok_or_else(|| {
                    let what = format!("a tensor has type {}", shown(name.as_bytes()));
                    Error::unsupported(what, "a type that safetensors 0.8 writes")
                })?;
                kind.replace(known).is_some()
            }
            "shape" => shape.replace(numbers(cursor)?).is_some(),
            "data_offsets" => offsets.replace(numbers(cursor)?).is_some(),
            _ => {
                cursor.skip()?;
                false
            }
        };
        match is_second {
            true => Err(cursor.malformed(format!("{} for the second time", shown(key.as_bytes())))),
            false => Ok(()),
        }
    })?;
    let (Some(kind), Some(shape), Some(offsets)) = (kind, shape, offsets) else {
        return Err(begin.malformed("a tensor without dtype, shape or data_offsets"));
    };
    let [from, to] = offsets[..] else {
        return Err(begin.malformed(format!("{} data_offsets, not 2", offsets.len())));
    };
    let elements = elements_of(&shape);
    let bytes = elements.and_then(|it| kind.bytes_of(it));
    if to < from || bytes != Some(to - from) {
        let what = format!("{shape:?} of {kind} in bytes {from} to {to}, which are not as many");
        return Err(begin.malformed(what));
    }
    Ok(Described {
        kind,
        shape,
        from,
        to,
    })
}

fn numbers(cursor: &mut JsonCursor<'_>) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    cursor.items(|cursor| {
        if numbers.len() == 64 {
            return Err(cursor.malformed("more than 64 numbers in an array"));
        }
        numbers.push(cursor.number()?);
        Ok(())
    })?;
    Ok(numbers)
}

/// Tensors' order by name. Fails if two have one.
fn order_by_name(text: &[u8], places: &[(u32, u32)]) -> Result<Vec<u32>> {
    let name = |at: u32| name_at(text, places[at as usize].0 as usize);
    let mut order: Vec<u32> = (0..places.len() as u32).collect();
    order.sort_unstable_by(|a, b| name(*a).cmp(&name(*b)).then(a.cmp(b)));
    for pair in order.windows(2) {
        if name(pair[0]) == name(pair[1]) {
            let at = places[pair[1] as usize].0 as usize;
            let what = format!(
                "tensor {} for the second time",
                shown(name(pair[1]).as_bytes())
            );
            return Err(Error::malformed(8 + at, what));
        }
    }
    Ok(order)
}

/// The tensors' data are all bytes behind the header, each byte once.
fn check_cover(text: &[u8], places: &[(u32, u32)], room: u64) -> Result<()> {
    let extent = |(at, place): (usize, &(u32, u32))| {
        let read = described(&mut JsonCursor::new(text, place.1 as usize, 8));
        read.map_or((0, 0, at as u32), |it| (it.from, it.to, at as u32))
    };
    let mut order: Vec<_> = places.iter().enumerate().map(extent).collect();
    order.sort_unstable();
    let mut reached = 0;
    for (from, to, at) in order {
        if from != reached || to > room {
            let (name, place) = places[at as usize];
            let name = shown(name_at(text, name as usize).as_bytes());
            let what = match to > room {
                true => format!("tensor {name} ends at {to} of {room} bytes of data"),
                false => {
                    format!("tensor {name} begins at {from}, the data before it end at {reached}")
                }
            };
            return Err(Error::malformed(8 + place as usize, what));
        }
        reached = to;
    }
    match reached == room {
        true => Ok(()),
        false => {
            let what = format!("{} bytes behind the last tensor", room - reached);
            Err(Error::malformed(8 + text.len() + reached as usize, what))
        }
    }
}
