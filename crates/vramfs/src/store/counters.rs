//! Counts of errors, scrubbing and failures.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::engine::BlockOutcome;

/// Counts of errors, scrubbing and failures.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks with errors that were corrected.
    pub corrected_blocks: AtomicU64,
    /// Symbols that were corrected.
    pub corrected_symbols: AtomicU64,
    /// Corrected rows that had failed their checksums.
    pub corrected_rows: AtomicU64,
    /// Corrected records, with all checksums of a block, that had failed their own checksums.
    pub corrected_records: AtomicU64,
    /// Blocks with errors that cannot be corrected.
    pub lost_blocks: AtomicU64,
    /// Blocks that the scrubber has checked.
    pub scrubbed_blocks: AtomicU64,
    /// Rounds that the scrubber has completed.
    pub scrub_rounds: AtomicU64,
    /// Rounds that failed.
    pub scrub_failures: AtomicU64,
    /// Writes that were acknowledged before the device failed without having stored their bytes.
    pub unkept_writes: AtomicU64,
}

impl Counters {
    pub(super) fn note(&self, outcome: BlockOutcome) {
        if outcome.is_corrected() {
            self.corrected_blocks.fetch_add(1, Relaxed);
            self.corrected_symbols
                .fetch_add(u64::from(outcome.symbols()), Relaxed);
            self.corrected_rows
                .fetch_add(u64::from(outcome.wrong_rows()), Relaxed);
            self.corrected_records
                .fetch_add(u64::from(outcome.has_wrong_record()), Relaxed);
        }
    }
}
