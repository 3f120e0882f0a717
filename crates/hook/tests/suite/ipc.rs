//! Tests of pool memory shared between two processes by legacy IPC handles.

use fercuda_ledger::{Governed, LedgerSnapshot};

use crate::support::{Run, device, first, governed, hooked, plain, seed};

const MIB: u64 = 1 << 20;

/// The memory that both processes pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    Mapped,
    Slabs,
}

const BOTH: [Backing; 2] = [Backing::Mapped, Backing::Slabs];

/// Runs a case with both processes over memory of this kind.
#[track_caller]
fn shared(case: &str, seed: &str, backing: Backing) -> Run {
    let name = match backing {
        Backing::Mapped => "vmm",
        Backing::Slabs => "slabs",
    };
    let client = hooked("ipc.c", &[case, seed]).env("FERCUDA_BACKING", name);
    let run = client.run().succeeds();
    let (stdout, stderr) = (&run.stdout, &run.stderr);
    assert!(stdout.ends_with("end\n"), "{backing:?}: {stdout}\n{stderr}");
    for end in [".share", ".socket"] {
        let left = run.left(end);
        let ended = case.ends_with("dies") || case.ends_with("forks") || case == "replaced";
        assert!(left == 0 || ended, "{backing:?}: {left} of {end}");
    }
    run
}

/// Runs a case over mapped memory, and over slabs.
#[track_caller]
fn both(case: &str) -> [(Backing, Run); 2] {
    let seed = seed().to_string();
    BOTH.map(|backing| (backing, shared(case, &seed, backing)))
}

/// The same, with the output compared with that over the driver alone.
#[track_caller]
fn same(case: &str) -> [(Backing, Run); 2] {
    let seed = seed().to_string();
    let alone = plain("ipc.c", &[case, &seed]).run().succeeds();
    BOTH.map(|backing| {
        let run = shared(case, &seed, backing);
        assert_eq!(alone.stdout, run.stdout, "{backing:?}: {}", run.stderr);
        (backing, run)
    })
}

/// The bytes that a process has imported.
fn imported(ledger: &LedgerSnapshot) -> u64 {
    device(ledger, 0).map_or(0, |row| governed(row, Governed::IpcImport))
}

#[test]
fn a_process_reads_and_changes_what_another_wrote_at_an_offset() {
    for (backing, run) in same("both_ways") {
        assert!(
            run.stdout
                .contains("block 5: 0, one handle 1, wrong there 0\n")
        );
        assert!(run.stdout.contains("changed 5: wrong here 0\n"));
        assert!(run.stdout.contains("buffers differ 1\n"));
        let open = imported(&run.at("open"));
        match backing {
            // Three blocks of the small slab, and three of others: each slab counts once.
            Backing::Slabs => {
                let whole = first(&run.at("end")).pooled_bytes;
                assert_eq!(open, whole);
                assert!(whole >= 8 * MIB, "{whole}");
            }
            Backing::Mapped => {
                let words = [
                    100,
                    375,
                    16 << 10,
                    (33 << 10) + 1,
                    128 << 10,
                    (700 << 10) + 3,
                ];
                assert_eq!(open, 8 * words.iter().sum::<u64>());
            }
        }
        assert_eq!(imported(&run.at("closed")), 0);
        assert_eq!(first(&run.at("end")).live_bytes, 0);
    }
}

#[test]
fn blocks_of_any_size_are_opened_at_their_own_start_and_kept_while_they_are_open() {
    for (backing, run) in both("any_size") {
        let expected = "refused 0, elsewhere 0, wrong 0\nrefused 0, wrong 0\n";
        assert!(run.stdout.starts_with(expected), "{}", run.stdout);
        let open = imported(&run.at("open"));
        assert!(open > 122 * MIB, "{backing:?}: {open}");
        assert_eq!(imported(&run.at("closed")), 0);
        assert_eq!(first(&run.at("end")).live_bytes, 0);
    }
}

#[test]
fn a_block_is_open_once_and_a_slab_until_its_last_block_is_closed() {
    for (backing, run) in both("close_order") {
        let expected = "opened 0 0 0, the same again 1\n\
            close 0, wrong 0\nclose inside refused 1\nclose 0, wrong 0\nonce more refused 1\n\
            closed, it is in a range: 0\nclose 0\nonce more refused 1\nagain 0, wrong 0\n\
            strange flags refused 1\nclose 0\n";
        assert!(run.stdout.starts_with(expected), "{}", run.stdout);
        let open = match backing {
            Backing::Slabs => [2 * MIB, 2 * MIB, 0],
            Backing::Mapped => [16_000, 8_000, 0],
        };
        for (mark, bytes) in ["three", "one", "none"].into_iter().zip(open) {
            assert_eq!(imported(&run.at(mark)), bytes, "{backing:?}: {mark}");
        }
        assert_eq!(first(&run.at("end")).live_bytes, 0);
    }
}

#[test]
fn a_block_is_closed_behind_the_work_that_reads_it() {
    for (_, run) in both("closed_while_read") {
        let expected = "open 0, close 0, its work 0\n".repeat(2);
        assert!(run.stdout.starts_with(&expected), "{}", run.stdout);
    }
}

#[test]
fn memory_freed_while_another_process_has_it_open_is_not_reused() {
    for (_, run) in both("freed_while_open") {
        let expected = "open 0\ncuMemFree_v2(kept) = 0\ncuMemFree_v2(kept) = 1\n\
            cuMemFreeAsync(kept, 0) = 1\ncuMemGetAddressRange_v2(&base, 0, kept) = 500\n\
            cuIpcGetMemHandle(&handle, kept) = 1\ngiven again 0, wrong there 0\n\
            open what was freed: 1\nwrong here 0\nclose 0\n";
        assert!(run.stdout.starts_with(expected), "{}", run.stdout);
        // Held until it is closed there, and free then.
        let block = 128 << 10;
        assert_eq!(first(&run.at("lingers")).live_bytes, 65 * block);
        assert_eq!(first(&run.at("closed")).live_bytes, 0);
    }
}

#[test]
fn memory_that_a_killed_process_had_open_is_reused() {
    for (_, run) in both("importer_dies") {
        assert!(run.stdout.contains("given again 1\n"), "{}", run.stdout);
        assert_eq!(first(&run.at("end")).live_bytes, 64 * (128 << 10));
    }
}

#[test]
fn memory_of_a_killed_process_can_be_closed_and_not_opened() {
    for (_, run) in same("exporter_dies") {
        assert!(run.stdout.contains("wrong 0\n"), "{}", run.stdout);
        assert!(run.stdout.contains("open again: 1\n"));
        assert_eq!(imported(&run.at("end")), 0);
    }
}

#[test]
fn an_owner_that_is_stopped_is_waited_for_a_bounded_time() {
    let run = shared("owner_stops", &seed().to_string(), Backing::Mapped);
    let expected = "refused 1, late 0\nopen 0\nwrong 0\ncuIpcCloseMemHandle(p) = 0\nleft open 0\n";
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
    let said = "a block is not mapped: its owner does not answer";
    assert_eq!(run.stderr.matches(said).count(), 1, "{}", run.stderr);
    assert_eq!(imported(&run.at("end")), 0);
}

#[test]
fn without_free_descriptors_a_block_is_refused_and_nothing_is_left_open() {
    for (_, run) in both("few_descriptors") {
        let expected = "some are refused 1, some not 1\nopen 0\nwrong 0\n";
        assert!(run.stdout.starts_with(expected), "{}", run.stdout);
        assert_eq!(imported(&run.at("end")), 0);
    }
}

#[test]
fn children_of_an_owner_neither_export_nor_answer_nor_end_what_it_shares() {
    for (_, run) in both("owner_forks") {
        let expected = "a child exports nothing 1\nopen 0, wrong 0\nclose 0\nopen 0\n\
            cuIpcCloseMemHandle(its) = 0\nrefused 1, late 0\n";
        assert!(run.stdout.starts_with(expected), "{}", run.stdout);
        assert_eq!(imported(&run.at("end")), 0);
    }
}

#[test]
fn a_process_without_the_hook_gets_an_error_and_can_share_its_own_memory() {
    for (_, run) in both("without_hook") {
        let expected = "refused 1\nexported 0, open 0\nwrong 0\ncuIpcCloseMemHandle(its) = 0\n";
        assert!(run.stdout.starts_with(expected), "{}", run.stdout);
        assert!(imported(&run.at("open")) >= 40_000);
        assert_eq!(imported(&run.at("closed")), 0);
    }
}

#[test]
fn blocks_are_closed_with_the_context_that_opened_them_and_with_their_own() {
    for (backing, run) in same("context_ends") {
        assert!(run.stdout.contains("open what ended: 1\nopen 0, wrong 0\n"));
        assert_eq!(imported(&run.at("ended")), 0);
        // Slabs end with their context; mapped memory is kept while it is open elsewhere.
        let kept = match backing {
            Backing::Slabs => 0,
            Backing::Mapped => 8192,
        };
        assert_eq!(first(&run.at("end")).live_bytes, 8192 + kept, "{backing:?}");
    }
}

#[test]
fn only_memory_reported_as_ipc_capable_can_be_shared() {
    for (_, run) in same("capable") {
        assert!(
            run.stdout
                .starts_with("0: attribute 0 says 1, list 0 says 1 of 8000, handle 0\n"),
            "{}",
            run.stdout
        );
    }
}

#[test]
fn handles_and_shares_that_were_tampered_with_open_nothing() {
    for (_, run) in both("forged") {
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
}

#[test]
fn a_share_that_was_replaced_by_its_copy_opens_nothing() {
    let run = shared("replaced", &seed().to_string(), Backing::Mapped);
    let expected = "replaced: refused 1\nas it was: 0\n";
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
}

#[test]
fn blocks_shared_in_random_order_hold_what_either_side_wrote() {
    for _ in 0..3 {
        for (_, run) in both("random_order") {
            assert!(
                run.stdout
                    .starts_with("wrong 0, refused 0, stale 0, left 0\nenough 1\n"),
                "{}",
                run.stdout
            );
            assert_eq!(first(&run.at("end")).live_bytes, 0);
            assert_eq!(imported(&run.at("closed")), 0);
        }
    }
}
