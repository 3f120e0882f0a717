//! Forks, shells, many programs and many threads.

use crate::support::{Client, compiled, counts, first, hooked};

const USED: &str = "code 0, holds 42\n";

fn loaded(args: &[&str]) -> Client {
    Client::new(compiled("loader.c", false), args).hooked()
}

#[test]
fn a_child_of_a_process_that_has_not_used_the_driver_is_governed_by_itself() {
    let run = loaded(&["fork_first"]).run().succeeds();
    assert_eq!(run.stdout, format!("{USED}{USED}child 0\n"));
    assert_eq!(run.stderr, "");
    assert_eq!(run.ledgers.len(), 2);
    for ledger in &run.ledgers {
        assert_eq!(counts(ledger), (1, 1));
    }
}

#[test]
fn a_child_of_a_process_that_has_used_the_driver_is_left_alone() {
    let plain = Client::new(compiled("loader.c", false), &["fork_later"]);
    let plain = plain.plain().run().succeeds();
    let run = loaded(&["fork_later"]).run().succeeds();
    assert_eq!(run.stdout, plain.stdout);
    assert!(run.stdout.contains("child 7\nparent 0\n"), "{}", run.stdout);
    // The parent's three allocations and frees; nothing of the child's.
    assert_eq!(counts(run.ledger()), (3, 3));
    assert_eq!(first(run.ledger()).live_bytes, 0);
}

#[test]
fn a_child_that_ends_as_programs_do_leaves_its_parents_ledger_and_shares_alone() {
    for (case, code) in [
        ("ends_by_exit", 7),
        ("ends_with_its_thread", 0),
        ("is_forked_at_exit", 0),
    ] {
        let run = hooked("forks.c", &[case]).env("FERCUDA_BACKING", "slabs");
        let run = run.run().succeeds();
        let message = format!("child {code} 0, 1 shared\n");
        assert_eq!(
            run.stdout.matches(&message).count(),
            1,
            "{case}: {}",
            run.stdout
        );
        assert_eq!(run.stderr, "", "{case}");
        let after = run.at("after");
        let freed = if case == "ends_with_its_thread" {
            101
        } else {
            100
        };
        assert_eq!(counts(&after), (freed + 1, freed), "{case}");
        assert!(!after.racing);
        // The last figures are the parent's, which removes what it shared.
        let row = first(run.ledger());
        assert_eq!((row.live_bytes, row.ungoverned_bytes), (1 << 20, 0));
        assert!(row.driver_total_bytes > 0, "{case}");
        assert_eq!(run.left(".share"), 0, "{case}");
    }
}

#[test]
fn a_program_started_by_a_governed_one_is_governed_by_itself() {
    let run = loaded(&["fork_and_exec"]).run().succeeds();
    assert_eq!(run.stdout, format!("{USED}{USED}child 0\n"));
    assert_eq!(run.ledgers.len(), 2);
    for ledger in &run.ledgers {
        assert_eq!(counts(ledger), (1, 1));
    }
}

#[test]
fn a_shell_and_what_it_starts_are_untouched() {
    let script = "echo a | sed s/a/b/; (exit 5); echo $?; ls / > /dev/null && expr 1 + 2; exit 3";
    let shell = || Client::new("/bin/sh", &["-c", script]);
    let (alone, run) = (shell().run(), shell().hooked().run());
    assert_eq!((alone.code, alone.stdout.as_str()), (3, "b\n5\n3\n"));
    assert_eq!((run.code, run.stdout.as_str()), (3, "b\n5\n3\n"));
    assert_eq!(run.stderr, "");
    assert!(run.ledgers.is_empty(), "no driver, no ledger");
}

#[test]
fn a_storm_of_short_programs_is_untouched() {
    let run = loaded(&["storm"]).run().succeeds();
    assert_eq!(
        (run.stdout.as_str(), run.stderr.as_str()),
        ("0 failed\n", "")
    );
    assert!(run.ledgers.is_empty());
}

#[test]
fn ten_thousand_threads_leave_nothing_behind() {
    let run = hooked("streams.c", &["ten_thousand_threads"])
        .run()
        .succeeds();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("end\n", ""));
    let end = run.at("end");
    assert_eq!(counts(&end), (20_000, 20_000));
    assert_eq!(first(&end).live_bytes, 0);
    assert!(!end.racing);
}
