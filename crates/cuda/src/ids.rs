//! Identifiers unique in the process.

use std::sync::atomic::{AtomicU64, Ordering};

/// An identifier that nothing else of this process has or had: of a stream or a resident kernel.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
