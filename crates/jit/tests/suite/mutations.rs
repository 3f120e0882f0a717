//! Mutated expressions: parsed or refused, and what is parsed becomes PTX that reads back.

use fercuda_trials::{Work, try_corpus};

use crate::property::holds_for;

#[test]
fn mutated_expressions_are_parsed_or_refused() {
    const WORK: Work = Work {
        name: "expressions",
        least: 500,
        ci_seconds: 2,
        soak: 24_000_000,
    };
    try_corpus(env!("CARGO_MANIFEST_DIR"), WORK, holds_for);
}
