//! Writer of GGUF files as strict as llama.cpp's reader.
//!
//! Metadata and tensors are named first, then the data follow in that order, without gaps but for
//! the alignment.

use std::collections::HashSet;
use std::io::{self, Write};

use super::layout::{ALIGNMENT, ALIGNMENT_KEY, MAGIC, NAME_BYTES, RANK, VERSIONS};
use super::value::{GgufKind, GgufValue};
use crate::error::{Error, Result};
use crate::kinds::{TensorType, elements_of};

/// Metadata and the table of tensors of a file to be written.
#[derive(Debug)]
pub struct GgufBuilder {
    keys: HashSet<Vec<u8>>,
    metadata: Vec<u8>,
    names: HashSet<String>,
    table: Vec<u8>,
    /// Bytes of each tensor.
    sizes: Vec<u64>,
    /// Bytes of all before the next one, aligned.
    offset: u64,
    alignment: u64,
}

impl Default for GgufBuilder {
    fn default() -> GgufBuilder {
        GgufBuilder {
            keys: HashSet::new(),
            metadata: Vec::new(),
            names: HashSet::new(),
            table: Vec::new(),
            sizes: Vec::new(),
            offset: 0,
            alignment: ALIGNMENT,
        }
    }
}

impl GgufBuilder {
    /// A file without metadata and tensors.
    pub fn new() -> GgufBuilder {
        GgufBuilder::default()
    }

    /// Adds a key. `general.alignment` comes before any tensor.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a key that is empty, longer than 65535 bytes or there already, and
    /// for an alignment that is no multiple of 8, as llama.cpp requires, and no power of two.
    pub fn set(&mut self, key: &[u8], value: &GgufValue<'_>) -> Result<()> {
        self.add_key(key)?;
        if key == ALIGNMENT_KEY.as_bytes() {
            let alignment = value
                .as_u64()
                .filter(|it| value.kind() == GgufKind::U32 && it.is_power_of_two() && *it >= 8);
            let refused = || {
                let what = format!("{ALIGNMENT_KEY} of {value} {:?}", value.kind());
                Error::mismatch(what, "a u32 that is a power of two from 8 on")
            };
            self.alignment = alignment
                .filter(|_| self.sizes.is_empty())
                .ok_or_else(refused)?;
        }
        self.metadata.extend((value.kind() as u32).to_le_bytes());
        value.put(&mut self.metadata);
        Ok(())
    }

    /// Adds a key with an array.
    ///
    /// # Errors
    /// As of [`GgufBuilder::set`]; also for values of other types than `kind`, and for arrays of
    /// arrays.
    pub fn set_array<'a>(
        &mut self,
        key: &[u8],
        kind: GgufKind,
        values: impl IntoIterator<Item = GgufValue<'a>>,
    ) -> Result<()> {
        if kind == GgufKind::Array {
            let what = "an array of arrays";
            return Err(Error::mismatch(
                what,
                "several keys, or one array and its shape",
            ));
        }
        let (mut bytes, mut len) = (Vec::new(), 0u64);
        for value in values {
            if value.kind() != kind {
                let what = format!("{:?} in an array of {kind:?}", value.kind());
                return Err(Error::mismatch(what, "values of one type"));
            }
            value.put(&mut bytes);
            len += 1;
        }
        self.add_key(key)?;
        self.metadata.extend((GgufKind::Array as u32).to_le_bytes());
        self.metadata.extend((kind as u32).to_le_bytes());
        self.metadata.extend(len.to_le_bytes());
        self.metadata.extend(bytes);
        Ok(())
    }

    fn add_key(&mut self, key: &[u8]) -> Result<()> {
        let named = || String::from_utf8_lossy(key);
        if key.is_empty() || key.len() > usize::from(u16::MAX) {
            let what = format!("a key of {} bytes", key.len());
            return Err(Error::mismatch(what, "one of 1 to 65535 bytes"));
        }
        if !self.keys.insert(key.to_owned()) {
            let what = format!("the key {:?} for the second time", named());
            return Err(Error::mismatch(what, "each key once"));
        }
        self.metadata.extend((key.len() as u64).to_le_bytes());
        self.metadata.extend(key);
        Ok(())
    }

    /// Adds a tensor; the outermost dimension comes first in `shape`.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a name that is longer than 63 bytes or there already, for more than
    /// four dimensions, rows that are no whole blocks, more bytes than 2^63, and types that GGUF
    /// does not have.
    pub fn add_tensor(&mut self, name: &str, kind: TensorType, shape: &[u64]) -> Result<()> {
        let refused = |what: String, hint| {
            let what = format!("tensor {name:?}, {shape:?} of {kind}: {what}");
            Err(Error::mismatch(what, hint))
        };
        if name.len() > NAME_BYTES {
            let what = format!("its name has {} bytes", name.len());
            return refused(what, "a name of at most 63 bytes, as llama.cpp reads");
        }
        if shape.len() > RANK as usize {
            let what = format!("it has {} dimensions", shape.len());
            return refused(what, "at most four dimensions, as llama.cpp reads");
        }
        let Some(number) = kind.gguf_number() else {
            return refused("GGUF does not have its type".to_owned(), "F16 or BF16");
        };
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(kind.block_elements()) {
            let what = format!("its rows of {row} are no whole blocks");
            return refused(what, "a type with smaller blocks, as Q8_0 or F16");
        }
        let elements = elements_of(shape);
        let bytes = elements.and_then(|it| kind.bytes_of(it));
        let next = bytes.and_then(|bytes| {
            let end = self.offset.checked_add(bytes)?;
            end.checked_next_multiple_of(self.alignment)
        });
        let next = next.filter(|it| i64::try_from(*it).is_ok());
        let (Some(bytes), Some(next)) = (bytes, next) else {
            return refused(
                "it has more bytes than any file".to_owned(),
                "a smaller shape",
            );
        };
        if !self.names.insert(name.to_owned()) {
            return refused("it is there already".to_owned(), "each name once");
        }
        self.table.extend((name.len() as u64).to_le_bytes());
        self.table.extend(name.as_bytes());
        self.table.extend((shape.len() as u32).to_le_bytes());
        for extent in shape.iter().rev() {
            self.table.extend(extent.to_le_bytes());
        }
        self.table.extend(number.to_le_bytes());
        self.table.extend(self.offset.to_le_bytes());
        self.sizes.push(bytes);
        self.offset = next;
        Ok(())
    }

    /// Bytes of the file that this makes.
    pub fn file_bytes(&self) -> u64 {
        let head = 24 + (self.metadata.len() + self.table.len()) as u64;
        head.next_multiple_of(self.alignment) + self.offset
    }

    /// Writes the head; the data follow.
    ///
    /// # Errors
    /// The writer's.
    pub fn start<W: Write>(self, mut to: W) -> io::Result<GgufWriter<W>> {
        let mut head = Vec::with_capacity(24);
        head.extend(MAGIC);
        head.extend(VERSIONS.end().to_le_bytes());
        head.extend((self.sizes.len() as u64).to_le_bytes());
        head.extend((self.keys.len() as u64).to_le_bytes());
        to.write_all(&head)?;
        to.write_all(&self.metadata)?;
        to.write_all(&self.table)?;
        let written = (head.len() + self.metadata.len() + self.table.len()) as u64;
        let mut writer = GgufWriter {
            to,
            sizes: self.sizes.into_iter(),
            left: 0,
            written,
            alignment: self.alignment,
        };
        writer.pad()?;
        writer.left = writer.sizes.next().unwrap_or(0);
        Ok(writer)
    }
}

/// A file whose head is written and whose data follow.
#[derive(Debug)]
pub struct GgufWriter<W> {
    to: W,
    /// Bytes of the tensors after the current one.
    sizes: std::vec::IntoIter<u64>,
    /// Bytes that are left of the current one.
    left: u64,
    written: u64,
    alignment: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the next bytes of the tensors' data, in the order in which they were added; the
    /// padding between two comes by itself.
    ///
    /// # Errors
    /// The writer's; `InvalidInput` if there are more than the tensors have.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            while self.left == 0 {
                let Some(next) = self.sizes.next() else {
                    let what = format!("{} bytes behind the last tensor", bytes.len());
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                };
                self.left = next;
            }
            let len = (bytes.len() as u64).min(self.left);
            let (part, rest) = bytes.split_at(len as usize);
            self.to.write_all(part)?;
            self.written += len;
            self.left -= len;
            bytes = rest;
            if self.left == 0 {
                self.pad()?;
            }
        }
        Ok(())
    }

    fn pad(&mut self) -> io::Result<()> {
        let end = self.written.next_multiple_of(self.alignment);
        while self.written < end {
            let zeros = [0; 64];
            let len = (end - self.written).min(zeros.len() as u64);
            self.to.write_all(&zeros[..len as usize])?;
            self.written += len;
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The writer's; `InvalidInput` if bytes of a tensor are missing.
    pub fn finish(mut self) -> io::Result<W> {
        let missing = self.left + self.sizes.sum::<u64>();
        if missing > 0 {
            let what = format!("{missing} bytes of tensors were not written");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.to.flush()?;
        Ok(self.to)
    }
}
