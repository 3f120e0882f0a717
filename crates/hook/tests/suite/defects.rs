//! A defect of ours is not the program's: what it asked the driver answers.

use std::fmt::Write as _;

use fercuda_cuda_sys::ENTRIES;

use crate::support::{Client, Listener, compiled_as, hook, hooked, plain};

/// Cases of single calls, of which together every door is a part.
const CASES: [&str; 16] = [
    "size_zero",
    "null_outputs",
    "wrong_frees",
    "crossed_frees",
    "pitches",
    "impossible_sizes",
    "other_contexts",
    "host_node",
    "reset",
    "destroy",
    "physical_memory",
    "ranges_and_attributes",
    "pools",
    "peer_access",
    "captured_frees",
    "many_contexts",
];

/// Lets every so many a door fail of those that a program goes through.
pub(crate) fn failing(client: Client, every: u32) -> Client {
    let library = compiled_as("libdefect.so", "defect.c", &["-shared", "-fPIC"]);
    let both = format!("{}:{}", hook().display(), library.display());
    client
        .env("LD_PRELOAD", both)
        .env("EVERY", every.to_string())
        .env("FERCUDA_SOFT_DEVICES", "2")
}

#[test]
fn a_door_that_fails_leaves_the_call_to_the_driver() {
    let programs = CASES.map(|case| ("calls.c", case));
    for (source, case) in programs.into_iter().chain([("differential.c", "7")]) {
        let args = &[case, "500"];
        let alone = plain(source, args).env("FERCUDA_SOFT_DEVICES", "2").run();
        let run = failing(hooked(source, args), 1).run();
        assert_eq!(
            alone.succeeds().said,
            run.said,
            "{case}: {}",
            run.complained
        );
        assert_eq!(run.code, 0, "{case}");
        let told = "a call could not be governed because of a defect";
        assert_eq!(run.complained.matches(told).count(), 1);
    }
}

#[test]
fn whichever_door_fails_the_program_is_not_ended() {
    for case in CASES {
        for every in [2, 3, 5, 11] {
            // Half of a case may be ours and half the driver's; so the case may
            // hear an error that it did not expect, and end itself.
            let run = failing(hooked("calls.c", &[case]), every).run();
            assert!(
                matches!(run.code, 0 | 3),
                "{case}, {every}: {}",
                run.complained
            );
        }
    }
}

#[test]
fn every_function_answers_a_call_with_nothing_as_the_driver_does() {
    let mut names = String::new();
    for entry in ENTRIES {
        writeln!(names, "{}", entry.name).unwrap();
    }
    let alone = plain("every.c", &[]).run_with(&names).succeeds();
    assert_eq!(alone.said.lines().count(), names.lines().count());
    let run = hooked("every.c", &[]).run_with(&names).succeeds();
    assert_eq!(alone.said, run.said);
    let run = failing(hooked("every.c", &[]), 1).run_with(&names);
    assert_eq!(alone.said, run.succeeds().said);
}

#[test]
fn a_program_that_nobody_listens_to_is_told_things_without_harm() {
    // What is said cannot be written; what the program says can.
    for listener in [Listener::Full, Listener::Gone] {
        let run = hooked("calls.c", &["one"])
            .env("FERCUDA_LIMIT", "much")
            .complaining_to(listener)
            .run()
            .succeeds();
        assert_eq!(run.said, "holds 3\nend\n");
    }
}
