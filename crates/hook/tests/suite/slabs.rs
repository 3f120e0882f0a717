//! Tests with the pool's memory in slabs: edge cases of calls, random programs, many
//! streams; and the slabs' owning context.

use fercuda_ledger::{EventKind, Governed};

use crate::calls::{all_is_back, same_answers_of};
use crate::differential::compare;
use crate::streams::is_safe_with;
use crate::support::{counts, device, first, governed, hooked, seed};

const MIB: u64 = 1 << 20;
const SLABS: (&str, &str) = ("FERCUDA_BACKING", "slabs");

#[test]
fn calls_are_answered_over_slabs_as_by_the_driver() {
    for case in [
        "size_zero",
        "null_outputs",
        "wrong_frees",
        "crossed_frees",
        "pitches",
        "impossible_sizes",
        "other_contexts",
        "reset",
        "destroy",
        "buffer_ids",
        "ranges_and_attributes",
        "pools",
        "before_init",
        "peers",
    ] {
        let environment = [SLABS, ("FERCUDA_SOFT_DEVICES", "2")];
        let run = same_answers_of("calls.c", case, &environment);
        let (allocs, frees) = counts(run.ledger());
        assert!(frees <= allocs, "{case}");
        if ["reset", "destroy", "wrong_frees", "crossed_frees"].contains(&case) {
            assert!(allocs > 0, "{case}");
            all_is_back(&run);
        }
    }
}

#[test]
fn the_limit_holds_over_slabs_and_freed_memory_is_reused() {
    let run = hooked("calls.c", &["out_of_memory"])
        .env(SLABS.0, SLABS.1)
        .env("FERCUDA_LIMIT", "32MiB")
        .run()
        .succeeds();
    assert!(
        run.stdout
            .starts_with("got 32, then 2\nhalf again: 16 of 16\n"),
        "{}",
        run.stdout
    );
    // All small slabs were released for one large one.
    assert!(
        run.stdout
            .contains("cuMemAlloc_v2(&large, (size_t)count * MiB) = 0\n")
    );
    let full = run.at("full");
    assert_eq!(first(&full).live_bytes, 32 * MIB);
    assert_eq!(first(&full).pooled_bytes, 32 * MIB);
    let end = run.at("end");
    assert!(first(&end).event_counts.contains_key(&EventKind::Trim));
    all_is_back(&run);
}

#[test]
fn the_drivers_figures_are_those_of_slabs() {
    let run = hooked("calls.c", &["leak"]).env(SLABS.0, SLABS.1);
    let run = run.run().succeeds();
    let row = first(run.ledger());
    let known: u64 = row.governed.iter().map(|it| it.bytes).sum();
    let used = row.driver_total_bytes - row.driver_free_bytes;
    assert_eq!(used, known + row.pooled_bytes, "{row:?}");
    assert_eq!((row.live_bytes, row.pooled_bytes), (10 * MIB, 10 * MIB));
    assert_eq!(row.ungoverned_bytes, 0);
}

#[test]
fn random_programs_are_answered_over_slabs_as_by_the_driver_alone() {
    let mut random = fastrand::Rng::new();
    let pooled: u64 = (0..6)
        .map(|_| compare(random.u64(..1 << 32), &[SLABS]))
        .sum();
    assert!(pooled > 300, "{pooled} allocations were pooled");
}

#[test]
fn programs_of_several_streams_have_no_hazard_over_slabs() {
    let seed = seed().to_string();
    for args in [
        &["legacy"][..],
        &["per_thread"],
        &["non_blocking"],
        &["across_streams"],
        &["recycled"],
        &["threads"],
        &["random", &seed, "2000"],
    ] {
        let run = is_safe_with(args, &[SLABS, ("FERCUDA_LIMIT", "48MiB")]);
        assert!(counts(&run.at("end")).0 >= 12, "{args:?}");
    }
}

#[test]
fn captures_continue_while_slabs_are_allocated_and_freed() {
    for case in ["capture_global", "capture_thread_local", "capture_relaxed"] {
        let run = is_safe_with(&[case], &[SLABS, ("FERCUDA_LIMIT", "128MiB")]);
        assert!(run.stdout.contains("beside: 0\n"), "{}", run.stdout);
        let (before, end) = (run.at("before"), run.at("end"));
        assert_eq!(counts(&end).0 - counts(&before).0, 41);
        assert_eq!(first(&end).live_bytes, 0);
        // The pool grew during the capture.
        assert!(first(&end).pooled_bytes > first(&before).pooled_bytes);
    }
}

#[test]
fn destroying_a_context_frees_its_slabs_and_no_other_contexts_memory() {
    let run = same_answers_of("slabs.c", "owners", &[SLABS]);
    let held = |mark: &str| {
        let at = run.at(mark);
        let row = first(&at);
        (row.live_bytes, governed(row, Governed::Linear))
    };
    // The first context's are pooled; the second's are the driver's own.
    assert_eq!(held("both"), (MIB, MIB));
    assert_eq!(held("one"), (0, MIB));
    assert_eq!(first(&run.at("one")).pooled_bytes, 0);
    // The third context has the pool.
    assert_eq!(held("three"), (MIB, MIB));
    all_is_back(&run);
}

#[test]
fn stream_ordered_memory_is_freed_with_its_slabs_and_a_diagnostic_reports_it() {
    let run = hooked("slabs.c", &["ordered"])
        .env(SLABS.0, SLABS.1)
        .run()
        .succeeds();
    // The slab owner's is gone; the other context's is the driver's own.
    assert_eq!(
        run.stdout,
        "its owner ends: 0\nof the owner: 1\nof the other: 22, 0\nend\n"
    );
    assert_eq!(
        run.stderr
            .matches("2097152 bytes of stream-ordered memory were freed")
            .count(),
        1,
        "{}",
        run.stderr
    );
    let both = run.at("both");
    assert_eq!(first(&both).live_bytes, 2 * MIB);
    assert_eq!(governed(first(&both), Governed::DriverPool), MIB);
    assert_eq!(first(&run.at("one")).live_bytes, 0);
    assert!(governed(first(&run.at("one")), Governed::DriverPool) >= MIB);
    all_is_back(&run);
    // Without a loss there is no diagnostic.
    let owners = same_answers_of("slabs.c", "owners", &[SLABS]);
    assert_eq!(owners.stderr, "");
}

#[test]
fn a_double_free_of_a_slabs_first_block_does_not_free_the_slab() {
    let run = same_answers_of("slabs.c", "freed_twice", &[SLABS]);
    assert_eq!(counts(run.ledger()), (12, 12));
    all_is_back(&run);
    assert_eq!(first(run.ledger()).ungoverned_bytes, 0);
}

#[test]
fn a_devices_slabs_belong_to_its_own_contexts_whichever_thread_allocates_first() {
    let environment = [SLABS, ("FERCUDA_SOFT_DEVICES", "2")];
    let run = same_answers_of("slabs.c", "other_device", &environment);
    assert_eq!(run.stdout.matches("of device 1\n").count(), 2);
    // The stream's block is from the driver's pool, the context's is the first of ours.
    let both = run.at("both");
    let rows = || both.devices.iter();
    assert_eq!(device(&both, 1).map(|row| row.live_bytes), Some(MIB));
    assert_eq!(rows().map(|row| row.live_bytes).sum::<u64>(), MIB);
    let passed = rows().map(|row| governed(row, Governed::DriverPool));
    assert_eq!(passed.sum::<u64>(), MIB);
    all_is_back(&run);
}
