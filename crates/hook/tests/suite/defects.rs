//! Tests that a panic of ours does not affect the program: the driver handles the call.

use std::fmt::Write as _;

use fercuda_cuda_sys::ENTRIES;

use crate::support::{BrokenStderr, Client, compiled_as, hook, hooked, plain};

/// Cases of single calls that together go through every interposed function.
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

/// Makes one in `every` interposed calls of a program fail.
pub(crate) fn failing(client: Client, every: u32) -> Client {
    let library = compiled_as("libdefect.so", "defect.c", &["-shared", "-fPIC"]);
    let both = format!("{}:{}", hook().display(), library.display());
    client
        .env("LD_PRELOAD", both)
        .env("EVERY", every.to_string())
        .env("FERCUDA_SOFT_DEVICES", "2")
}

#[test]
fn a_panicking_interposed_function_leaves_the_call_to_the_driver() {
    let programs = CASES.map(|case| ("calls.c", case));
    for (source, case) in programs.into_iter().chain([("differential.c", "7")]) {
        let args = &[case, "500"];
        let alone = plain(source, args).env("FERCUDA_SOFT_DEVICES", "2").run();
        let run = failing(hooked(source, args), 1).run();
        assert_eq!(
            alone.succeeds().stdout,
            run.stdout,
            "{case}: {}",
            run.stderr
        );
        assert_eq!(run.code, 0, "{case}");
        let message = "a call could not be governed because of a defect";
        assert_eq!(run.stderr.matches(message).count(), 1);
    }
}

#[test]
fn a_panic_in_any_interposed_function_does_not_end_the_program() {
    for case in CASES {
        for every in [2, 3, 5, 11] {
            // Half of a case may be served by us and half by the driver, so the case may
            // get an error that it does not expect, and exit.
            let run = failing(hooked("calls.c", &[case]), every).run();
            assert!(matches!(run.code, 0 | 3), "{case}, {every}: {}", run.stderr);
        }
    }
}

#[test]
fn every_function_called_with_zeros_returns_what_the_driver_returns() {
    let mut names = String::new();
    for entry in ENTRIES {
        writeln!(names, "{}", entry.name).unwrap();
    }
    let alone = plain("every.c", &[]).run_with(&names).succeeds();
    assert_eq!(alone.stdout.lines().count(), names.lines().count());
    let run = hooked("every.c", &[]).run_with(&names).succeeds();
    assert_eq!(alone.stdout, run.stdout);
    let run = failing(hooked("every.c", &[]), 1).run_with(&names);
    assert_eq!(alone.stdout, run.succeeds().stdout);
}

#[test]
fn diagnostics_that_cannot_be_written_do_no_harm() {
    // Only the diagnostics cannot be written.
    for broken_stderr in [BrokenStderr::Full, BrokenStderr::Gone] {
        let run = hooked("calls.c", &["one"])
            .env("FERCUDA_LIMIT", "much")
            .with_broken_stderr(broken_stderr)
            .run()
            .succeeds();
        assert_eq!(run.stdout, "holds 3\nend\n");
    }
}
