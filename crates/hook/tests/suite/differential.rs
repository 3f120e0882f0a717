//! Differential test: random programs print the same with the hook as with the driver alone.

use crate::support::{counts, hooked, plain};

const PROGRAMS: u64 = 20;
const STEPS: &str = "3000";

/// Runs one program both ways; returns the number of its pooled allocations.
pub(crate) fn compare(seed: u64, environment: &[(&str, &str)]) -> u64 {
    let seed = seed.to_string();
    let args = [seed.as_str(), STEPS];
    let alone = plain("differential.c", &args).run().succeeds();
    let mut client = hooked("differential.c", &args);
    for (name, value) in environment {
        client = client.env(name, value);
    }
    let run = client.run().succeeds();
    assert!(alone.stdout.ends_with("end\n"));
    let pairs = alone.stdout.lines().zip(run.stdout.lines());
    for (number, (alone, hooked)) in pairs.enumerate() {
        assert_eq!(alone, hooked, "FERCUDA_SEED={seed}, line {number}");
    }
    assert_eq!(alone.stdout.len(), run.stdout.len(), "FERCUDA_SEED={seed}");
    assert!(!run.stdout.contains("OVERLAPS"), "FERCUDA_SEED={seed}");
    let (allocs, frees) = counts(run.ledger());
    assert!(frees <= allocs, "FERCUDA_SEED={seed}");
    allocs
}

#[test]
fn random_programs_are_answered_as_by_the_driver_alone() {
    let seed = std::env::var("FERCUDA_SEED")
        .ok()
        .and_then(|it| it.parse().ok());
    if let Some(seed) = seed {
        compare(seed, &[]);
        return;
    }
    let mut random = fastrand::Rng::new();
    let pooled: u64 = (0..PROGRAMS)
        .map(|_| compare(random.u64(..1 << 32), &[]))
        .sum();
    assert!(pooled > 50 * PROGRAMS, "{pooled} allocations were pooled");
}
