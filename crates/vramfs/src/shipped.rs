//! Kernels that a release brings along, compiled to PTX when it was made.
//!
//! A file holds one line of its own before the PTX: a hash of the kernels' source and options, and
//! one of the PTX. Invariant: what is read is the PTX that was written for this very source; a
//! file of another version, or one that was damaged, is an error and is never loaded.
//! Elsewhere: compiling them (`engine`), the folder of the release (the program).

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::source;

/// The file's name, in the folder of the release's libraries.
pub const SHIPPED_KERNELS: &str = "vramfs.ptx";

/// Larger files are not of ours.
const LEN_MAX: u64 = 16 << 20;
/// What the first line begins with.
const MARK: &str = "// feRcuda kernels ";

/// Why shipped kernels are not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShippedError {
    /// The file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Not a file of kernels, or one that was changed.
    #[error(
        "{} is damaged, or no file of kernels\ntry: install the release again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Made of another version's source.
    #[error(
        "{} has the kernels of another version of feRcuda\n\
         try: install program and libraries of one release",
        path.display()
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
    },
}

/// Writes `ptx`, compiled by [`Kernels::compile`](crate::Kernels::compile) of this version, to
/// `file`, which is replaced.
///
/// # Errors
/// [`ShippedError::Io`].
pub fn write_shipped(file: &Path, ptx: &[u8]) -> Result<(), ShippedError> {
    let written = File::create(file).and_then(|mut to| {
        writeln!(to, "{MARK}{} {}", of_source(), hash(&[ptx]))?;
        to.write_all(ptx)
    });
    written.map_err(|source| ShippedError::Io {
        path: file.to_owned(),
        source,
    })
}

/// Reads the PTX of this version's kernels; `None` if there is no such file.
///
/// # Errors
/// [`ShippedError`]: nothing of the file is to be loaded.
pub fn read_shipped(file: &Path) -> Result<Option<Vec<u8>>, ShippedError> {
    let failed = |source| ShippedError::Io {
        path: file.to_owned(),
        source,
    };
    let damaged = || ShippedError::Damaged {
        path: file.to_owned(),
    };
    let from = match File::open(file) {
        Ok(from) => from,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    from.take(LEN_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > LEN_MAX {
        return Err(damaged());
    }
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(damaged)?;
    let ptx = bytes.split_off(end + 1);
    let line = std::str::from_utf8(&bytes).ok();
    let hashes = line.and_then(|line| line.trim_end().strip_prefix(MARK)?.split_once(' '));
    let (source, content) = hashes.ok_or_else(damaged)?;
    if content != hash(&[&ptx]) {
        return Err(damaged());
    }
    match source == of_source() {
        true => Ok(Some(ptx)),
        false => Err(ShippedError::OtherVersion {
            path: file.to_owned(),
        }),
    }
}

/// Of everything that the kernels are compiled from.
fn of_source() -> String {
    let version = env!("CARGO_PKG_VERSION");
    hash(&[
        version.as_bytes(),
        source::KERNELS.as_bytes(),
        source::header().as_bytes(),
    ])
}

/// SHA-256 of the parts, each after its length, in hexadecimal digits.
fn hash(parts: &[&[u8]]) -> String {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update((part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    let digits = sum.finalize();
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(SHIPPED_KERNELS);
        assert!(read_shipped(&file).unwrap().is_none());
        for ptx in [&b".version 8.0\n"[..], b""] {
            write_shipped(&file, ptx).unwrap();
            assert_eq!(read_shipped(&file).unwrap().as_deref(), Some(ptx));
        }
    }

    #[test]
    fn any_changed_byte_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(SHIPPED_KERNELS);
        write_shipped(&file, b".version 8.0\n.target sm_80\n").unwrap();
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&file, &changed).unwrap();
            read_shipped(&file).unwrap_err();
            fs::write(&file, &whole[..at]).unwrap();
            read_shipped(&file).unwrap_err();
        }
    }

    #[test]
    fn kernels_of_another_source_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(SHIPPED_KERNELS);
        let other = "0".repeat(64);
        fs::write(&file, format!("{MARK}{other} {}\nx", hash(&[b"x"]))).unwrap();
        let error = read_shipped(&file).unwrap_err();
        assert!(
            matches!(error, ShippedError::OtherVersion { .. }),
            "{error}"
        );
    }
}
