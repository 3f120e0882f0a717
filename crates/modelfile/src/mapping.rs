//! Read-only memory map of a file.
#![expect(
    unsafe_code,
    reason = "a map is of memory that another process may change"
)]

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Result};

/// The bytes of a file, read as they are used; or bytes that are in memory already.
///
/// Of a map: a process that writes to the file changes them, and one that truncates it ends this
/// process by SIGBUS where they are read; programs replace model files and do not write into them.
#[derive(Debug)]
pub struct FileMapping(MappedBytes);

#[derive(Debug)]
enum MappedBytes {
    Map(memmap2::Mmap),
    /// Also of an empty file, of which there is no map.
    Owned(Vec<u8>),
}

impl FileMapping {
    /// Maps a regular file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Unsupported`] if it is a pipe, a device or another file without a
    /// length.
    pub fn open(path: &Path) -> Result<FileMapping> {
        let failed = |action| {
            move |source| Error::Io {
                action,
                path: path.to_owned(),
                source,
            }
        };
        // Before it is opened: opening a pipe waits for its other end.
        let kind = std::fs::metadata(path).map_err(failed("open"))?;
        if !kind.is_file() {
            let what = format!("{} is no regular file", path.display());
            return Err(Error::unsupported(what, "a copy of it in a file"));
        }
        let file = File::open(path).map_err(failed("open"))?;
        let len = file.metadata().map_err(failed("open"))?.len();
        if len == 0 {
            return Ok(FileMapping::from(Vec::new()));
        }
        // SAFETY: the map is read only, and only as bytes: every value of them is valid, so a
        // change by another process can make a result wrong and nothing else. Offsets that were
        // checked are checked again wherever a slice is taken.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed("map"))?;
        Ok(FileMapping(MappedBytes::Map(map)))
    }
}

impl FileMapping {
    /// Begins to read bytes from the disk, which does not wait for them. A system that cannot reads
    /// them when they are used.
    pub(crate) fn prefetch(&self, bytes: std::ops::Range<usize>) {
        if let MappedBytes::Map(map) = &self.0
            && bytes.start < bytes.end
            && bytes.end <= map.len()
        {
            let advised = map.advise_range(memmap2::Advice::WillNeed, bytes.start, bytes.len());
            // It is advice.
            advised.unwrap_or_default();
        }
    }
}

impl AsRef<[u8]> for FileMapping {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            MappedBytes::Map(map) => map,
            MappedBytes::Owned(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for FileMapping {
    fn from(bytes: Vec<u8>) -> FileMapping {
        FileMapping(MappedBytes::Owned(bytes))
    }
}
