//! Members of a snapshot: names, extended header records and maps of sparse files.

use std::io::{BufRead, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::Timespec;
use tar::EntryType;

use super::format::{SPARSE_MAJOR, SPARSE_NAME, SPARSE_SIZE, XATTR_PREFIX};

/// Maximum size of a member's records; a saved member has at most 1 MiB of attributes.
const RECORDS_MAX_BYTES: u64 = 64 << 20;
/// Maximum digits of a number.
const MAX_DIGITS: u64 = 20;

/// Calls `see` for each member before the manifest, with its name and its records.
pub(super) fn for_each_member<'a, R: Read + 'a>(
    entries: tar::Entries<'a, R>,
    end: u64,
    mut see: impl FnMut(&mut tar::Entry<'a, R>, &Path, PaxRecords) -> Result<()>,
) -> Result<()> {
    let mut records = PaxRecords::default();
    for entry in entries {
        let mut entry = entry?;
        if entry.raw_header_position() >= end {
            break;
        }
        if entry.header().entry_type() == EntryType::XHeader {
            let mut text = Vec::new();
            entry
                .by_ref()
                .take(RECORDS_MAX_BYTES)
                .read_to_end(&mut text)?;
            records = PaxRecords::read(&text).context("a member has invalid records")?;
            continue;
        }
        let records = std::mem::take(&mut records);
        let name = [SPARSE_NAME, "path"]
            .iter()
            .find_map(|key| records.get(key));
        let name = match name {
            Some(name) => name.to_vec(),
            None => entry.path_bytes().into_owned(),
        };
        let name = PathBuf::from(std::ffi::OsStr::from_bytes(&name));
        see(&mut entry, &name, records)
            .with_context(|| format!("its member {}", name.display()))?;
    }
    Ok(())
}

/// Target of a link.
pub(super) fn link_target(
    entry: &tar::Entry<'_, impl Read>,
    records: &PaxRecords,
) -> Option<Vec<u8>> {
    match records.get("linkpath") {
        Some(target) => Some(target.to_vec()),
        None => entry.link_name_bytes().map(std::borrow::Cow::into_owned),
    }
}

/// Whether the caller may set an attribute (access control lists included).
pub(super) fn may_set(key: &str) -> bool {
    rustix::process::geteuid().is_root() || key.starts_with("user.") || key.starts_with("system.")
}

/// Extended header records of a member, which hold what its header cannot.
#[derive(Default)]
pub(super) struct PaxRecords(Vec<(String, Vec<u8>)>);

impl PaxRecords {
    /// Parses records, each of which is its length, a blank, a key, an equals sign, a value and a
    /// newline.
    fn read(mut text: &[u8]) -> Option<Self> {
        let mut all = Vec::new();
        while !text.is_empty() {
            let blank = text.iter().position(|byte| *byte == b' ')?;
            let len: usize = std::str::from_utf8(&text[..blank]).ok()?.parse().ok()?;
            let record = text.get(blank + 1..len)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let key = std::str::from_utf8(&record[..equals]).ok()?;
            all.push((key.to_owned(), record[equals + 1..].to_vec()));
            text = &text[len..];
        }
        Some(Self(all))
    }

    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        let it = self.0.iter().find(|(it, _)| it == key);
        it.map(|(_, value)| &**value)
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        std::str::from_utf8(self.get(key)?).ok()?.parse().ok()
    }

    /// Parses a time: seconds with a fraction.
    pub(super) fn time(&self, key: &str) -> Option<Timespec> {
        let text = std::str::from_utf8(self.get(key)?).ok()?;
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let (sign, whole) = match whole.strip_prefix('-') {
            Some(whole) => (-1, whole),
            None => (1, whole),
        };
        let rest: i128 = format!("{rest:0<9}").get(..9)?.parse().ok()?;
        let all = sign * (whole.parse::<i64>().ok()? as i128 * 1_000_000_000 + rest);
        Some(Timespec {
            tv_sec: i64::try_from(all.div_euclid(1_000_000_000)).ok()?,
            tv_nsec: all.rem_euclid(1_000_000_000) as _,
        })
    }

    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let named = |(key, value): &'_ (String, Vec<u8>)| -> Option<(usize, usize)> {
            key.starts_with(XATTR_PREFIX)
                .then_some((XATTR_PREFIX.len(), value.len()))
        };
        self.0
            .iter()
            .filter(move |it| named(it).is_some())
            .map(|(key, value)| (&key[XATTR_PREFIX.len()..], &**value))
    }
}

/// Size and extents of a sparse file.
pub(super) struct SparseExtents {
    pub(super) size: u64,
    /// Offset and length of each extent of data.
    pub(super) extents: Vec<(u64, u64)>,
}

/// Reads the map that precedes a sparse file's data; `None` for another file.
pub(super) fn read_sparse_map(
    source: impl BufRead,
    records: &PaxRecords,
) -> Result<Option<SparseExtents>> {
    if records.get(SPARSE_MAJOR).is_none() {
        return Ok(None);
    }
    let size = records.number(SPARSE_SIZE).context("it has no size")?;
    let mut map = SparseMapReader {
        source,
        line: Vec::new(),
        read: 0,
    };
    let mut extents = Vec::new();
    for _ in 0..map.number()? {
        let (at, len) = (map.number()?, map.number()?);
        if at.checked_add(len).is_none_or(|end| end > size) {
            bail!("its map has data beyond its end");
        }
        extents.push((at, len));
    }
    map.end()?;
    Ok(Some(SparseExtents { size, extents }))
}

/// Reader of a sparse map: one number per line, padded to a multiple of 512 bytes. Its length is
/// bounded only by its member, as a file may have any number of extents.
struct SparseMapReader<R> {
    source: R,
    line: Vec<u8>,
    read: u64,
}

impl<R: BufRead> SparseMapReader<R> {
    fn number(&mut self) -> Result<u64> {
        self.line.clear();
        let mut source = self.source.by_ref().take(MAX_DIGITS + 1);
        let got = source.read_until(b'\n', &mut self.line)? as u64;
        self.read += got;
        if got <= MAX_DIGITS && !self.line.ends_with(b"\n") {
            bail!("it ends within its map");
        }
        let text = std::str::from_utf8(&self.line).unwrap_or("no text");
        let text = text.trim_end_matches('\n');
        if text.bytes().any(|byte| !byte.is_ascii_digit()) {
            bail!("its map has text that is not a number");
        }
        let number = text.parse();
        number.with_context(|| format!("its map has a number out of range: {text}"))
    }

    fn end(mut self) -> Result<()> {
        let left = self.read.next_multiple_of(512) - self.read;
        let mut rest = [0; 512];
        let rest = self.source.read_exact(&mut rest[..left as usize]);
        rest.context("it ends within its map")
    }
}
