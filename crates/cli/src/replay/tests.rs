//! Mutated traces and pickles: read or refused, by every consumer of rows.

use fercuda_trials::{Work, try_corpus};

use super::property::{holds_for_pickle, holds_for_trace};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn mutated_traces_are_read_or_refused() {
    const WORK: Work = Work {
        name: "traces",
        least: 300,
        ci_seconds: 2,
        soak: 4_000_000,
    };
    try_corpus(ROOT, WORK, holds_for_trace);
}

#[test]
fn mutated_pickles_are_read_or_refused() {
    const WORK: Work = Work {
        name: "pickles",
        least: 300,
        ci_seconds: 2,
        soak: 4_000_000,
    };
    try_corpus(ROOT, WORK, holds_for_pickle);
}
