//! Tests of pool memory shared between two processes by legacy IPC handles.

use fercuda_ledger::{Governed, LedgerSnapshot};

use crate::support::{Run, device, first, governed, hooked, plain, seed};

const MIB: u64 = 1 << 20;

/// Runs a case with both processes over slabs.
#[track_caller]
fn shared(case: &str, seed: &str) -> Run {
    let client = hooked("ipc.c", &[case, seed]).env("FERCUDA_BACKING", "slabs");
    let run = client.run().succeeds();
    assert!(run.stdout.ends_with("end\n"), "{}", run.stdout);
    run
}

/// The same, with the output compared with that over the driver alone.
#[track_caller]
fn same(case: &str) -> Run {
    let seed = seed().to_string();
    let alone = plain("ipc.c", &[case, &seed]).run().succeeds();
    let run = shared(case, &seed);
    assert_eq!(alone.stdout, run.stdout);
    run
}

/// The bytes that a process has imported.
fn imported(ledger: &LedgerSnapshot) -> u64 {
    device(ledger, 0).map_or(0, |row| governed(row, Governed::IpcImport))
}

#[test]
fn a_process_reads_and_changes_what_another_wrote_at_an_offset() {
    let run = same("both_ways");
    assert!(
        run.stdout
            .contains("block 5: 0, one handle 1, wrong there 0\n")
    );
    assert!(run.stdout.contains("changed 5: wrong here 0\n"));
    assert!(run.stdout.contains("buffers differ 1\n"));
    // Three blocks of the small slab, and three of others: each slab counts once.
    let whole = first(&run.at("end")).pooled_bytes;
    assert_eq!(imported(&run.at("open")), whole);
    assert!(whole >= 8 * MIB, "{whole}");
    assert_eq!(imported(&run.at("closed")), 0);
    assert_eq!(first(&run.at("end")).live_bytes, 0);
    assert_eq!(run.left(".share"), 0);
}

#[test]
fn a_slab_is_open_once_and_until_its_last_block_is_closed() {
    let run = shared("close_order", &seed().to_string());
    let expected = "opened 0 0 0, the same again 1\n\
        close 0, wrong 0\nclose inside refused 1\nclose 0, wrong 0\nonce more refused 1\n\
        closed, it is in a range: 0\nclose 0\nonce more refused 1\nagain 0, wrong 0\n\
        strange flags refused 1\nclose 0\n";
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
    for (mark, slabs) in [("three", 1), ("one", 1), ("none", 0)] {
        assert_eq!(imported(&run.at(mark)), slabs * 2 * MIB, "{mark}");
    }
    assert_eq!(first(&run.at("end")).live_bytes, 0);
}

#[test]
fn a_block_is_closed_behind_the_work_that_reads_it() {
    let run = shared("closed_while_read", &seed().to_string());
    let expected = "open 0, close 0, its work 0\n".repeat(2);
    assert!(run.stdout.starts_with(&expected), "{}", run.stdout);
}

#[test]
fn memory_freed_while_another_process_has_it_open_is_not_reused() {
    let run = shared("freed_while_open", &seed().to_string());
    let expected = "open 0\ncuMemFree_v2(kept) = 0\ncuMemFree_v2(kept) = 1\ncuMemFreeAsync(kept, 0) = 1\n\
        cuMemGetAddressRange_v2(&base, 0, kept) = 500\ncuIpcGetMemHandle(&handle, kept) = 1\n\
        given again 0, wrong there 0\nopen what was freed: 1\nwrong here 0\nclose 0\n";
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
    // Held until it is closed there, and free then.
    let block = 128 << 10;
    assert_eq!(first(&run.at("lingers")).live_bytes, 65 * block);
    assert_eq!(first(&run.at("closed")).live_bytes, 0);
}

#[test]
fn memory_that_a_killed_process_had_open_is_reused() {
    let run = shared("importer_dies", &seed().to_string());
    assert!(run.stdout.contains("given again 1\n"), "{}", run.stdout);
    assert_eq!(first(&run.at("end")).live_bytes, 64 * (128 << 10));
}

#[test]
fn memory_of_a_killed_process_can_be_closed_and_not_opened() {
    let run = same("exporter_dies");
    assert!(run.stdout.contains("wrong 0\n"), "{}", run.stdout);
    assert!(run.stdout.contains("open again: 1\n"));
    assert_eq!(imported(&run.at("end")), 0);
}

#[test]
fn a_process_without_the_hook_gets_an_error_and_can_share_its_own_memory() {
    let run = shared("without_hook", &seed().to_string());
    let expected = "refused 1\nexported 0, open 0\nwrong 0\ncuIpcCloseMemHandle(its) = 0\n";
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
    assert!(imported(&run.at("open")) >= 40_000);
    assert_eq!(imported(&run.at("closed")), 0);
}

#[test]
fn blocks_are_closed_with_the_context_that_opened_them_and_with_their_own() {
    let run = same("context_ends");
    assert!(run.stdout.contains("open what ended: 1\nopen 0, wrong 0\n"));
    assert_eq!(imported(&run.at("ended")), 0);
    assert_eq!(first(&run.at("end")).live_bytes, 8192);
}

#[test]
fn only_memory_reported_as_ipc_capable_can_be_shared() {
    let run = same("capable");
    assert!(
        run.stdout
            .starts_with("0: attribute 0 says 1, list 0 says 1 of 8000, handle 0\n"),
        "{}",
        run.stdout
    );
    // Mapped memory cannot: the same program over the other backing.
    let run = hooked("ipc.c", &["capable"]).run();
    assert!(
        run.stdout
            .starts_with("0: attribute 0 says 0, list 0 says 0 of 8000, handle 1\n"),
        "{}",
        run.stdout
    );
    let advice = "try: fercuda run --ipc";
    assert_eq!(run.stderr.matches(advice).count(), 1, "{}", run.stderr);
}

#[test]
fn handles_and_shares_that_were_tampered_with_open_nothing() {
    let run = shared("forged", &seed().to_string());
    let stdout = &run.stdout;
    assert!(
        stdout.starts_with("made up: 0 opened, 0 answered otherwise\n"),
        "{stdout}"
    );
    assert!(stdout.contains("the share is private: 1, 1 links\n"));
    for kind in 0..9 {
        assert!(
            stdout.contains(&format!("share {kind}: opened 0, answered otherwise 0\n")),
            "{stdout}"
        );
    }
    assert!(!stdout.contains("another's: opened 1\n"));
    assert!(stdout.contains("as it was: 0, wrong 0\n"), "{stdout}");
}

#[test]
fn blocks_shared_in_random_order_hold_what_either_side_wrote() {
    for _ in 0..3 {
        let run = shared("random_order", &seed().to_string());
        assert!(
            run.stdout
                .starts_with("wrong 0, refused 0, stale 0, left 0\nenough 1\n"),
            "{}",
            run.stdout
        );
        assert_eq!(first(&run.at("end")).live_bytes, 0);
        assert_eq!(imported(&run.at("closed")), 0);
        assert_eq!(run.left(".share"), 0);
    }
}
