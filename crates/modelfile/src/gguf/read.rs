//! Reader of GGUF files that keeps the places of records.
//!
//! A file is checked once, from front to end. What is kept of a key is 12 bytes and of a tensor 16,
//! fewer than either has in the file; a record is read again when it is asked for.
//!
//! Invariant: of a parsed file every record can be read, and every tensor's data are within it.

use std::borrow::Cow;

use super::layout::{ALIGNMENT, ALIGNMENT_KEY, MAGIC, RANK, VERSIONS};
use super::value::{GgufCursor, GgufValue};
use crate::error::{Error, Result, shown};
use crate::kinds::{TensorType, elements_of};

/// The least bytes of a metadata record: length of the key, type, value.
const KEY_BYTES: usize = 13;
/// The least bytes of a tensor's record: length of the name, rank, type, offset.
const TENSOR_BYTES: usize = 24;

/// A parsed file over its bytes: a slice, or a map.
#[derive(Debug)]
pub struct Gguf<B> {
    bytes: B,
    version: u32,
    alignment: u64,
    data_at: u64,
    keys: RecordIndex,
    tensors: RecordIndex,
}

/// Offsets of records in the file's order, and their order by name.
#[derive(Debug, Default)]
struct RecordIndex {
    places: Vec<u64>,
    by_name: Vec<u32>,
}

impl RecordIndex {
    /// Of records whose name comes first. Fails if two have one name.
    fn new(bytes: &[u8], places: Vec<u64>, what: &str) -> Result<RecordIndex> {
        let mut by_name: Vec<u32> = (0..places.len() as u32).collect();
        let name = |at: &u32| name_at(bytes, places[*at as usize]);
        by_name.sort_unstable_by(|a, b| name(a).cmp(name(b)).then(a.cmp(b)));
        for pair in by_name.windows(2) {
            if name(&pair[0]) == name(&pair[1]) {
                let text = shown(name(&pair[1]));
                let at = places[pair[1] as usize] as usize;
                return Err(Error::malformed(
                    at,
                    format!("{what} {text} for the second time"),
                ));
            }
        }
        Ok(RecordIndex { places, by_name })
    }

    /// The place of the record of this name.
    fn find(&self, bytes: &[u8], wanted: &[u8]) -> Option<u64> {
        let place = |at: u32| self.places[at as usize];
        let found = self
            .by_name
            .binary_search_by(|at| name_at(bytes, place(*at)).cmp(wanted));
        found.ok().map(|at| place(self.by_name[at]))
    }
}

/// The text that a checked record begins with.
fn name_at(bytes: &[u8], at: u64) -> &[u8] {
    let mut cursor = GgufCursor::new(bytes, at as usize);
    cursor.text("a name").unwrap_or_default()
}

/// A tensor of a file.
#[derive(Clone, Copy, Debug)]
pub struct GgufTensor<'a> {
    name: &'a [u8],
    kind: TensorType,
    rank: u32,
    /// As in the file: the innermost first. The rest are 1.
    extents: [u64; RANK as usize],
    at: u64,
    bytes: &'a [u8],
}

impl<'a> GgufTensor<'a> {
    /// Its name as the file has it.
    pub fn name_bytes(&self) -> &'a [u8] {
        self.name
    }

    /// Its name, with a replacement for what is no UTF-8.
    pub fn name(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.name)
    }

    /// The type of its elements.
    pub fn kind(&self) -> TensorType {
        self.kind
    }

    /// Its shape, the outermost dimension first, as of every tensor here; the file has the reverse.
    pub fn shape(&self) -> Vec<u64> {
        let extents = self.extents[..self.rank as usize].iter();
        extents.rev().copied().collect()
    }

    /// Number of its elements.
    pub fn elements(&self) -> u64 {
        self.extents.iter().product()
    }

    /// Offset of its data in the file.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its data.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<B: AsRef<[u8]>> Gguf<B> {
    /// Checks a file. Takes less memory than the file has bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the place, [`Error::Unsupported`] for other versions, byte orders
    /// and types.
    pub fn parse(file: B) -> Result<Self> {
        let bytes = file.as_ref();
        let mut cursor = GgufCursor::new(bytes, 0);
        check_magic(cursor.take(4, "the magic number")?)?;
        let version = checked_version(cursor.u32("the version")?)?;
        let tensor_count_at = cursor.at();
        let tensor_count = cursor.count(TENSOR_BYTES, "tensors")?;
        let key_count = cursor.count(KEY_BYTES, "metadata keys")?;
        if tensor_count.max(key_count) > u64::from(u32::MAX) {
            let what = format!("{tensor_count} tensors and {key_count} keys");
            return Err(Error::malformed(tensor_count_at, what));
        }
        let mut places = Vec::with_capacity(key_count as usize);
        for _ in 0..key_count {
            places.push(cursor.at() as u64);
            cursor.text("a metadata key")?;
            let kind = cursor.kind()?;
            cursor.value(kind)?;
        }
        let keys = RecordIndex::new(bytes, places, "the metadata key")?;
        let alignment = match keys.find(bytes, ALIGNMENT_KEY.as_bytes()) {
            Some(at) => alignment_at(bytes, at)?,
            None => ALIGNMENT,
        };
        // Each has to be there, also behind the metadata.
        let left = cursor.left();
        if tensor_count > (left / TENSOR_BYTES) as u64 {
            let what = format!("{tensor_count} tensors, whose records do not fit in {left} bytes");
            return Err(Error::malformed(tensor_count_at, what));
        }
        let mut places = Vec::with_capacity(tensor_count as usize);
        for _ in 0..tensor_count {
            places.push(cursor.at() as u64);
            TensorRecord::read(&mut cursor)?;
        }
        let data_at = (cursor.at() as u64).next_multiple_of(alignment);
        check_places(bytes, &places, data_at)?;
        let tensors = RecordIndex::new(bytes, places, "the tensor")?;
        Ok(Gguf {
            version,
            alignment,
            data_at,
            keys,
            tensors,
            bytes: file,
        })
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensors' data, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Offset of the data.
    pub fn data_at(&self) -> u64 {
        self.data_at
    }

    /// The bytes of the file.
    pub fn file(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    pub(crate) fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Keys and values in the file's order. Keys are mostly UTF-8.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&[u8], GgufValue<'_>)> {
        self.keys.places.iter().map(|at| self.record(*at))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<GgufValue<'_>> {
        let at = self.keys.find(self.file(), key.as_bytes())?;
        Some(self.record(at).1)
    }

    fn record(&self, at: u64) -> (&[u8], GgufValue<'_>) {
        let mut cursor = GgufCursor::new(self.file(), at as usize);
        let mut read = || {
            let key = cursor.text("a metadata key")?;
            let kind = cursor.kind()?;
            Ok::<_, Error>((key, cursor.value(kind)?))
        };
        // It was read when the file was parsed: only a file that another process has changed since
        // then gives something else.
        read().unwrap_or((&[], GgufValue::String(&[])))
    }

    /// The tensors in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = GgufTensor<'_>> {
        self.tensors.places.iter().map(|at| self.tensor_at(*at))
    }

    /// The tensor of this place in the file's order.
    pub fn nth_tensor(&self, index: usize) -> Option<GgufTensor<'_>> {
        let at = self.tensors.places.get(index)?;
        Some(self.tensor_at(*at))
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &[u8]) -> Option<GgufTensor<'_>> {
        let at = self.tensors.find(self.file(), name)?;
        Some(self.tensor_at(at))
    }

    fn tensor_at(&self, at: u64) -> GgufTensor<'_> {
        let file = self.file();
        let mut cursor = GgufCursor::new(file, at as usize);
        // As of `record`.
        let record = TensorRecord::read(&mut cursor).unwrap_or_default();
        let from = self.data_at.saturating_add(record.offset);
        let to = from.saturating_add(record.bytes);
        let bytes = file.get(from as usize..to as usize).unwrap_or_default();
        GgufTensor {
            name: name_at(file, at),
            kind: record.kind,
            rank: record.rank,
            extents: record.extents,
            at: from,
            bytes,
        }
    }
}

fn check_magic(magic: &[u8]) -> Result<()> {
    if magic == MAGIC {
        return Ok(());
    }
    if [b"lmgg", b"fmgg", b"tjgg", b"algg"]
        .iter()
        .any(|old| *old == magic)
    {
        let what = "a model file of llama.cpp from before GGUF";
        return Err(Error::unsupported(what, "a GGUF file of the model"));
    }
    let what = format!("the file begins with {magic:02x?}, not with \"GGUF\"");
    Err(Error::malformed(0, what))
}

fn checked_version(version: u32) -> Result<u32> {
    if VERSIONS.contains(&version) {
        return Ok(version);
    }
    if VERSIONS.contains(&version.swap_bytes()) {
        let what = "a big-endian GGUF file; little-endian ones are read";
        return Err(Error::unsupported(
            what,
            "a conversion with gguf-py's gguf_convert_endian",
        ));
    }
    let (first, last) = (VERSIONS.start(), VERSIONS.end());
    let what = format!("GGUF version {version}; versions {first} to {last} are read");
    Err(Error::unsupported(
        what,
        "a file converted by a current llama.cpp",
    ))
}

fn alignment_at(bytes: &[u8], at: u64) -> Result<u64> {
    let mut cursor = GgufCursor::new(bytes, at as usize);
    cursor.text("a metadata key")?;
    let kind = cursor.kind()?;
    let value = cursor.value(kind)?;
    let alignment = value
        .as_u64()
        .filter(|it| it.is_power_of_two() && *it <= 1 << 31);
    alignment.ok_or_else(|| {
        let value = value
            .as_u64()
            .map_or("no number".to_owned(), |it| it.to_string());
        let what = format!("{ALIGNMENT_KEY} is {value}, not a power of two up to 2^31");
        Error::malformed(at as usize, what)
    })
}

/// A record of the table of tensors.
struct TensorRecord {
    kind: TensorType,
    rank: u32,
    extents: [u64; RANK as usize],
    offset: u64,
    bytes: u64,
}

impl Default for TensorRecord {
    fn default() -> TensorRecord {
        TensorRecord {
            kind: TensorType::Scalar(fercuda_tensor::Dtype::U8),
            rank: 1,
            extents: [0, 1, 1, 1],
            offset: 0,
            bytes: 0,
        }
    }
}

impl TensorRecord {
    fn read(cursor: &mut GgufCursor<'_>) -> Result<TensorRecord> {
        let at = cursor.at();
        let name = cursor.text("a tensor's name")?;
        let named = || shown(name);
        let rank = cursor.u32("a tensor's rank")?;
        if rank > RANK {
            let what = format!(
                "tensor {} has {rank} dimensions, at most {RANK} are read",
                named()
            );
            return Err(Error::malformed(at, what));
        }
        let mut extents = [1; RANK as usize];
        for extent in &mut extents[..rank as usize] {
            *extent = cursor.u64("a tensor's extent")?;
        }
        let type_at = cursor.at();
        let number = cursor.u32("a tensor's type")?;
        let Some(kind) = TensorType::of_gguf(number) else {
            let what = format!("tensor {} at byte {type_at} has type {number}", named());
            return Err(Error::unsupported(
                what,
                "a type from 0 to 42 that llama.cpp has not removed",
            ));
        };
        let offset = cursor.u64("a tensor's offset")?;
        let elements = elements_of(&extents);
        let is_whole = extents[0].is_multiple_of(kind.block_elements());
        let bytes = elements
            .filter(|_| is_whole)
            .and_then(|it| kind.bytes_of(it));
        match bytes {
            Some(bytes) => Ok(TensorRecord {
                kind,
                rank,
                extents,
                offset,
                bytes,
            }),
            None => {
                let what = format!("tensor {} is {extents:?} of {kind}", named());
                let what = match is_whole {
                    true => format!("{what}, more bytes than any file"),
                    false => format!(
                        "{what}, whose rows are multiples of {}",
                        kind.block_elements()
                    ),
                };
                Err(Error::malformed(at, what))
            }
        }
    }
}

/// Data are within the file, and no tensor's overlap another's.
fn check_places(file: &[u8], places: &[u64], data_at: u64) -> Result<()> {
    let record = |place: u64| {
        let mut cursor = GgufCursor::new(file, place as usize);
        TensorRecord::read(&mut cursor)
    };
    let said = |place: u64, what: String| {
        let name = shown(name_at(file, place));
        Error::malformed(place as usize, format!("tensor {name} {what}"))
    };
    let room = (file.len() as u64).saturating_sub(data_at);
    let mut order = Vec::with_capacity(places.len());
    for (at, place) in places.iter().enumerate() {
        let TensorRecord { offset, bytes, .. } = record(*place)?;
        if offset.checked_add(bytes).is_none_or(|end| end > room) && bytes > 0 {
            let what = format!("has {bytes} bytes at {offset} of {room} bytes of data");
            return Err(said(*place, what));
        }
        order.push((offset, at as u32));
    }
    order.sort_unstable();
    let mut reached = (0, 0);
    for (offset, at) in order {
        let place = places[at as usize];
        let bytes = record(place)?.bytes;
        if bytes > 0 && offset < reached.0 {
            let other = shown(name_at(file, places[reached.1 as usize]));
            return Err(said(place, format!("overlaps {other}")));
        }
        if bytes > 0 {
            reached = (offset + bytes, at);
        }
    }
    Ok(())
}
