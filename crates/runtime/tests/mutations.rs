//! Mutated plans and Triton metadata: read or refused.

mod property;

use fercuda_trials::{Work, try_corpus};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn mutated_plans_are_refused_or_overlap_nowhere() {
    const WORK: Work = Work {
        name: "plans",
        least: 100,
        ci_seconds: 2,
        soak: 500_000,
    };
    try_corpus(ROOT, WORK, property::holds_for_plan);
}

#[test]
fn mutated_metadata_of_triton_is_read_or_refused() {
    const WORK: Work = Work {
        name: "triton-metadata",
        least: 1000,
        ci_seconds: 1,
        soak: 20_000_000,
    };
    try_corpus(ROOT, WORK, property::holds_for_metadata);
}
