//! The property of any file that is given as a snapshot; mutations and cargo-fuzz both call it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::verified::{compute_needs, verify};

/// A file for inputs, one after the other.
pub(crate) struct SnapshotInput(File);

impl SnapshotInput {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempfile().expect("a temporary file"))
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// Replaces what the file has; returns its length.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> u64 {
        self.0.set_len(0).expect("a file of our own");
        self.0.write_all_at(bytes, 0).expect("space for an input");
        bytes.len() as u64
    }

    /// Verifies `bytes`. Most are refused by their checksums, so the members are read without them
    /// too: what is verified has members that can be read.
    pub(crate) fn holds_for(&mut self, bytes: &[u8]) {
        let len = self.put(bytes);
        let mut last = 0;
        let verified = verify(&self.0, len, &mut |done, all| {
            assert!(last < done && done <= all && all <= len, "{done} of {all}");
            last = done;
        });
        let needs = compute_needs(&self.0, len);
        assert!(verified.is_err() || needs.is_ok());
    }
}
