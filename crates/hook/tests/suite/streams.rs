//! Tests that reused memory is never in use: programs with many streams on the software
//! device with its checks, which report every unordered access. With a reuse rule broken
//! they report that.

use fercuda_ledger::Governed;

use crate::support::{Run, counts, first, governed, hooked, seed};

/// Little memory, so that it is reused all the time.
const LIMIT: &str = "32MiB";

/// Enough memory that a capture can continue without any wait.
const MUCH: &str = "128MiB";

#[track_caller]
fn is_safe(args: &[&str]) -> Run {
    is_safe_within(LIMIT, args)
}

#[track_caller]
fn is_safe_within(limit: &str, args: &[&str]) -> Run {
    is_safe_with(args, &[("FERCUDA_LIMIT", limit)])
}

/// Runs a program; asserts that every word was as written and that the checks report
/// nothing.
#[track_caller]
pub(crate) fn is_safe_with(args: &[&str], environment: &[(&str, &str)]) -> Run {
    let mut client = hooked("streams.c", args).checked();
    for (name, value) in environment {
        client = client.env(name, value);
    }
    let run = client.run().succeeds();
    assert!(run.stdout.contains("wrong 0\n"), "{}", run.stdout);
    assert!(!run.stdout.contains("wrong 1"), "{}", run.stdout);
    assert!(run.stderr.contains(" 0 findings"), "{}", run.stderr);
    run
}

/// Asserts that at least `least` blocks of a case were pooled.
#[track_caller]
fn pooled(run: &Run, least: u64) {
    let (allocs, _) = counts(&run.at("end"));
    assert!(allocs >= least, "{allocs} allocations");
}

macro_rules! late_readers {
    ($($test:ident = $case:literal, $least:literal;)*) => {
        $(
            #[test]
            fn $test() {
                pooled(&is_safe(&[$case]), $least);
            }
        )*
    };
}

late_readers! {
    memory_read_late_in_the_legacy_stream_is_not_given_away = "legacy", 24;
    memory_read_late_in_the_legacy_stream_by_its_name_is_not_given_away = "legacy_by_name", 24;
    memory_read_late_in_a_threads_default_stream_is_not_given_away = "per_thread", 24;
    memory_read_late_in_a_default_stream_of_the_twins_is_not_given_away = "per_thread_null", 24;
    memory_read_late_in_a_blocking_stream_is_not_given_away = "blocking", 12;
    memory_read_late_in_a_non_blocking_stream_is_not_given_away = "non_blocking", 12;
    memory_read_late_in_a_stream_of_high_priority_is_not_given_away = "high_priority", 12;
    memory_that_goes_from_stream_to_stream_is_ordered = "across_streams", 60;
    destroyed_streams_keep_what_they_still_read = "recycled", 80;
    destroyed_contexts_leave_what_others_still_use = "contexts", 48;
    threads_with_default_streams_of_their_own_share_nothing_unordered = "threads", 240;
    graphs_read_what_they_captured_while_the_pool_changes = "replay", 400;
}

#[test]
fn a_streams_own_block_is_used_again_at_once() {
    let run = is_safe(&["per_thread"]);
    assert!(
        run.stdout.contains("the stream's own block again: yes"),
        "{}",
        run.stdout
    );
}

/// Allocations, frees and growth beside a capture, which continues; captured allocations
/// belong to the graph.
#[track_caller]
fn capture_goes_on(case: &str) {
    let run = is_safe_within(MUCH, &[case]);
    assert!(run.stdout.contains("beside: 0\n"), "{}", run.stdout);
    let (before, end) = (run.at("before"), run.at("end"));
    // Forty beside the capture, one after it; the captured one is not pooled.
    assert_eq!(counts(&end).0 - counts(&before).0, 41);
    assert_eq!(first(&end).live_bytes, 0);
}

#[test]
fn a_global_capture_goes_on_while_others_allocate_free_and_grow() {
    capture_goes_on("capture_global");
}

#[test]
fn a_thread_local_capture_goes_on_while_others_allocate_free_and_grow() {
    capture_goes_on("capture_thread_local");
}

#[test]
fn a_relaxed_capture_goes_on_while_others_allocate_free_and_grow() {
    capture_goes_on("capture_relaxed");
}

#[test]
fn memory_that_a_graph_allocates_is_the_graphs_and_freed_with_it() {
    let run = is_safe(&["auto_free"]);
    assert!(
        run.stdout.contains("cuMemFreeAsync(inner, stream) = 0\n"),
        "{}",
        run.stdout
    );
    // Only the counter was pooled.
    assert_eq!(counts(&run.at("end")), (1, 0));
    assert_eq!(governed(first(run.ledger()), Governed::DriverPool), 0);
}

const RANDOM_PROGRAMS: u64 = 6;
const STEPS: &str = "2000";

#[test]
fn random_programs_of_several_streams_have_no_hazard() {
    let seed = seed();
    for n in 0..RANDOM_PROGRAMS {
        let run = is_safe(&["random", &(seed + n).to_string(), STEPS]);
        let end = run.at("end");
        assert!(counts(&end).0 > 800);
        assert_eq!(counts(&end).0, counts(&end).1);
        assert_eq!((first(&end).live_bytes, first(&end).mapped_bytes), (0, 0));
    }
}

/// Memory for one block of `lent`, and little for random programs.
const ONE_BLOCK: &str = "16MiB";

#[test]
fn memory_reused_behind_a_wait_is_waited_for_again() {
    let run = is_safe_within(ONE_BLOCK, &["lent"]);
    // One of them is the counter.
    assert_eq!(counts(&run.at("end")).0, 41);
}

/// Whether the checks report a hazard in a program with a broken rule.
fn is_seen(args: &[&str]) -> bool {
    let client = hooked("streams.c", args).checked();
    let run = client.env("FERCUDA_LIMIT", ONE_BLOCK).run();
    let (stdout, stderr) = (&run.stdout, &run.stderr);
    assert!(matches!(run.code, 0 | 77), "{stdout}\n{stderr}");
    run.code == 77 && stderr.contains("hazard")
}

/// Rules, as `fercuda_break_rule` numbers them, that random programs depend on all
/// the time.
const RULES: [(&str, &str); 3] = [
    ("a stream takes another's blocks only after a wait", "0"),
    ("a mark covers what was freed before it was begun", "2"),
    ("what was freed in no stream waits for all", "3"),
];

#[test]
fn a_broken_rule_of_reuse_is_detected() {
    let seed = seed();
    for (what, rule) in RULES {
        let seen = (0..20).find(|n| is_seen(&["random", &(seed + n).to_string(), STEPS, rule]));
        let seen = seen.unwrap_or_else(|| panic!("it is broken that {what}, and nothing was seen"));
        println!("{what}: seen in program {seen}");
    }
}

/// A wait covers only memory freed before its event; random programs seldom depend on that.
#[test]
fn a_wait_that_covers_too_much_is_detected() {
    assert!(is_seen(&["lent", "1"]));
}
