//! Limit on the callers that verify rows on the host at the same time.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::layout::ROW_BYTES;

/// The most rows to verify this way.
pub(super) const HOST_VERIFY_ROWS: usize = 8;
/// Bytes that the copy brings: the rows, and as many again, the last of which is the record.
pub(super) const HOST_VERIFY_BYTES: usize = 2 * HOST_VERIFY_ROWS * ROW_BYTES;
/// Concurrent callers of one device at most. Sixteen threads that read pages without a break get
/// 103 % of the throughput of plain copies this way, and 96 if all of them verified on the host;
/// four get 94, and 92 or less if none or one did (docs/bench-log/history.md).
pub(super) const HOST_VERIFIERS_MAX: u32 = 6;

/// Number of workers of the same kernels that are verifying on the host.
#[derive(Debug, Default)]
pub(super) struct HostVerifiers(pub(super) AtomicU32);

impl HostVerifiers {
    /// Admits one more, until the slot is dropped, unless the limit is reached.
    pub(super) fn enter(&self) -> Option<HostVerifySlot<'_>> {
        let caller = HostVerifySlot(&self.0);
        (self.0.fetch_add(1, Relaxed) < HOST_VERIFIERS_MAX).then_some(caller)
    }
}

/// Slot of [`HostVerifiers::enter`].
pub(super) struct HostVerifySlot<'a>(&'a AtomicU32);

impl Drop for HostVerifySlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
