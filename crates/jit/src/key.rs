//! Content hashes that identify expressions and code.

use std::fmt;

use sha2::{Digest, Sha256};

/// The first 128 bits of the SHA-256 of a text that determines its subject completely.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeKey(u128);

impl CodeKey {
    pub(crate) fn of(text: &str) -> Self {
        let hash = Sha256::digest(text.as_bytes());
        let mut first = [0; 16];
        first.copy_from_slice(&hash[..16]);
        Self(u128::from_be_bytes(first))
    }
}

impl fmt::Display for CodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for CodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
