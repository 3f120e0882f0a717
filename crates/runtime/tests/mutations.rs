//! Mutated plans and Triton metadata: read or refused.

use fercuda_runtime::{Need, Plan, TritonMetadata};
use fercuda_trials::{Work, corpus, try_mutations};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A need a line: bytes, alignment, first step, step behind the last.
fn needs(text: &str) -> Vec<Need> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(Need {
            bytes: number()?,
            align_bytes: number()?,
            from: number()? as u32,
            until: number()? as u32,
        })
    });
    lines.take(300).collect()
}

#[test]
fn mutated_plans_are_refused_or_overlap_nowhere() {
    const WORK: Work = Work {
        name: "plans",
        least: 100,
        ci_seconds: 2,
        soak: 500_000,
    };
    try_mutations(ROOT, WORK, &corpus(ROOT, WORK.name), |bytes| {
        let needs = needs(&String::from_utf8_lossy(bytes));
        let Ok(plan) = Plan::of(&needs) else {
            return;
        };
        let placed: Vec<(&Need, u64)> = needs.iter().zip(plan.begins().iter().copied()).collect();
        for (at, (need, begin)) in placed.iter().enumerate() {
            assert!(begin.is_multiple_of(need.align_bytes));
            // What is live at no step takes nothing of the arena.
            let is_placed = need.bytes > 0 && need.from < need.until;
            assert!(!is_placed || begin + need.bytes <= plan.bytes());
            for (other, other_begin) in &placed[..at] {
                let meet = need.from.max(other.from) < need.until.min(other.until);
                let apart = begin + need.bytes <= *other_begin
                    || other_begin + other.bytes <= *begin
                    || need.bytes == 0
                    || other.bytes == 0;
                assert!(
                    !meet || apart,
                    "{need:?} at {begin} and {other:?} at {other_begin}"
                );
            }
        }
    });
}

#[test]
fn mutated_metadata_of_triton_is_read_or_refused() {
    const WORK: Work = Work {
        name: "triton-metadata",
        least: 1000,
        ci_seconds: 1,
        soak: 20_000_000,
    };
    try_mutations(ROOT, WORK, &corpus(ROOT, WORK.name), |bytes| {
        if let Err(error) = TritonMetadata::parse(&String::from_utf8_lossy(bytes)) {
            assert!(!error.to_string().is_empty());
        }
    });
}
