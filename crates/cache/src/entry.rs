//! One file of the cache: its lines, its hash and its fields.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// A program from the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedProgram {
    /// Text or machine code.
    pub code: Vec<u8>,
    /// The log of its compiler.
    pub log: String,
    /// Requested names, and the names they have in the code.
    pub names: Vec<(String, String)>,
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file that [`read_entry`] reads.
pub(crate) fn write_entry(
    path: &Path,
    header: &str,
    code: &[u8],
    log: &str,
    names: &[(String, String)],
) -> io::Result<()> {
    let mut file: File = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    // The umask may have taken the owner's own rights.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(&entry_bytes(header, &fields(code, log, names)))
}

/// The fields of a file, each preceded by its length.
pub(crate) fn fields(code: &[u8], log: &str, names: &[(String, String)]) -> Vec<u8> {
    let mut all = Vec::with_capacity(code.len() + log.len() + 64);
    let mut field = |bytes: &[u8]| {
        all.extend((bytes.len() as u64).to_le_bytes());
        all.extend(bytes);
    };
    field(code);
    field(log.as_bytes());
    for (expression, lowered) in names {
        field(expression.as_bytes());
        field(lowered.as_bytes());
    }
    all
}

/// What a file with these fields contains.
pub(crate) fn entry_bytes(header: &str, fields: &[u8]) -> Vec<u8> {
    let hash = hex(&Sha256::digest(fields));
    [header.as_bytes(), hash.as_bytes(), b"\n", fields].concat()
}

/// Reads a file of `len` bytes; `None` if it is corrupt. What its first lengths contradict is not
/// read further: a file of zeros, or one that was cut, costs a few bytes.
pub(crate) fn read_entry(
    header: &str,
    len: u64,
    mut file: impl Read,
) -> io::Result<Option<CachedProgram>> {
    // Header, hash and line end; the length of the code.
    let mut head = vec![0; header.len() + 65 + 8];
    match file.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let Some(hash) = head.strip_prefix(header.as_bytes()) else {
        return Ok(None);
    };
    let (hash, code_len) = hash.split_at(65);
    let code_len = code_len.try_into().map_or(u64::MAX, u64::from_le_bytes);
    let left = len.saturating_sub(head.len() as u64);
    if hash[64] != b'\n' || code_len > left {
        return Ok(None);
    }
    let mut rest = head[head.len() - 8..].to_vec();
    file.take(left).read_to_end(&mut rest)?;
    if hash[..64] != *hex(&Sha256::digest(&rest)).as_bytes() {
        return Ok(None);
    }
    Ok(read_fields(&rest))
}

/// Parses the fields of a file; `None` if they are corrupt.
fn read_fields(mut rest: &[u8]) -> Option<CachedProgram> {
    let mut field = || -> Option<Option<&[u8]>> {
        if rest.is_empty() {
            return Some(None);
        }
        let (len, after) = rest.split_first_chunk::<8>()?;
        let (bytes, after) =
            after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        rest = after;
        Some(Some(bytes))
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let code = field()??.to_vec();
    let log = text(field()??)?;
    let mut names = Vec::new();
    while let Some(expression) = field()? {
        names.push((text(expression)?, text(field()??)?));
    }
    Some(CachedProgram { code, log, names })
}
