//! The property of any entry; mutations and cargo-fuzz both call it.

use crate::entry::{entry_bytes, fields, read_entry};

/// The line that begins an entry.
const HEADER: &str = "fercuda nvrtc 1\n";

/// Reads `bytes` as a file, and as the fields of one whose hash is right: what is read is written
/// as the same bytes again.
pub(crate) fn holds_for(bytes: &[u8]) {
    let read = |file: &[u8]| {
        let read = read_entry(HEADER, file.len() as u64, file);
        let entry = read.expect("memory has no errors")?;
        let again = fields(&entry.code, &entry.log, &entry.names);
        assert_eq!(entry_bytes(HEADER, &again), file);
        Some(())
    };
    read(bytes);
    let head = HEADER.len() + 65;
    read(&entry_bytes(HEADER, bytes.get(head..).unwrap_or(bytes)));
}
