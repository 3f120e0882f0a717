//! Constants of the format of snapshots, and its checksums.

use sha2::{Digest as _, Sha256};

/// Name of the last member, the manifest.
pub(super) const MANIFEST: &str = ".fercuda-vram-snapshot";
/// First line of the manifest: format and version.
pub(super) const MANIFEST_HEADER: &str = "fercuda vram snapshot 1";
/// Buffer size of reads and writes.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Key prefix of a record with an extended attribute.
pub(super) const XATTR_PREFIX: &str = "SCHILY.xattr.";
/// Keys of the records of sparse files.
pub(super) const SPARSE_MAJOR: &str = "GNU.sparse.major";
pub(super) const SPARSE_MINOR: &str = "GNU.sparse.minor";
pub(super) const SPARSE_NAME: &str = "GNU.sparse.name";
pub(super) const SPARSE_SIZE: &str = "GNU.sparse.realsize";

/// Hexadecimal digits.
pub(super) fn hex(digest: impl AsRef<[u8]>) -> String {
    let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// The SHA-256 of `bytes`, in hexadecimal digits.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}
