//! Edge cases of single calls: the program gets the results of the driver alone, and the
//! ledger agrees to the byte.

use fercuda_ledger::{EventKind, Governed};

use crate::support::{
    Run, compiled_as, counting_driver, counts, device, first, governed, hooked, plain, tenant_live,
};

const MIB: u64 = 1 << 20;

/// Runs a case both ways and compares every line.
#[track_caller]
fn same_answers(case: &str, environment: &[(&str, &str)]) -> Run {
    same_answers_of("calls.c", case, environment)
}

/// The same of another program.
#[track_caller]
pub(crate) fn same_answers_of(source: &str, case: &str, environment: &[(&str, &str)]) -> Run {
    let (mut alone, mut client) = (plain(source, &[case]), hooked(source, &[case]));
    for (name, value) in environment {
        alone = alone.env(name, value);
        client = client.env(name, value);
    }
    let (alone, run) = (alone.run().succeeds(), client.run().succeeds());
    assert_eq!(alone.stdout, run.stdout);
    assert!(run.stdout.ends_with("end\n"));
    run
}

/// Asserts that no pooled memory is live.
#[track_caller]
pub(crate) fn all_is_back(run: &Run) {
    let end = run.at("end");
    for row in &end.devices {
        assert_eq!(row.live_bytes, 0, "{row:?}");
        for kind in [
            Governed::Linear,
            Governed::Managed,
            Governed::Vmm,
            Governed::Array,
            Governed::Host,
        ] {
            assert_eq!(governed(row, kind), 0, "{kind:?} of {row:?}");
        }
    }
}

#[test]
fn size_zero_is_answered_as_by_the_driver() {
    let run = same_answers("size_zero", &[]);
    assert!(run.stdout.contains("cuMemAlloc_v2(&p, 0) = 1"));
    assert_eq!(counts(run.ledger()), (0, 0));
}

#[test]
fn null_outputs_are_answered_as_by_the_driver() {
    let run = same_answers("null_outputs", &[]);
    assert!(run.stdout.contains("cuMemAlloc_v2(0, 100) = 1"));
    assert_eq!(counts(run.ledger()), (1, 1));
}

#[test]
fn calls_before_init_and_without_a_context_are_answered_as_by_the_driver() {
    let run = same_answers("before_init", &[]);
    assert!(
        run.stdout.starts_with("cuMemAlloc_v2(&p, 100) = 3\n"),
        "{}",
        run.stdout
    );
}

#[test]
fn double_foreign_and_interior_frees_get_the_drivers_own_error() {
    let run = same_answers("wrong_frees", &[]);
    assert!(run.stdout.contains("stranger 3: 1 1"), "{}", run.stdout);
    assert_eq!(counts(run.ledger()), (4, 4));
    all_is_back(&run);
}

#[test]
fn each_kind_of_free_takes_memory_of_the_other_kind() {
    let run = same_answers("crossed_frees", &[]);
    assert_eq!(counts(run.ledger()), (100, 100));
    all_is_back(&run);
}

#[test]
fn pitches_are_the_drivers() {
    let run = same_answers("pitches", &[]);
    assert!(run.stdout.lines().count() > 100);
    assert!(counts(run.ledger()).0 > 50);
    all_is_back(&run);
}

#[test]
fn sizes_that_no_device_has_are_refused_as_by_the_driver() {
    let run = same_answers("impossible_sizes", &[]);
    let (allocs, frees) = counts(run.ledger());
    assert!(allocs == frees && allocs >= 1, "{allocs} and {frees}");
    all_is_back(&run);
}

#[test]
fn out_of_memory_reports_the_holders_and_freed_memory_is_reused() {
    let run = hooked("calls.c", &["out_of_memory"])
        .env("FERCUDA_LIMIT", "32MiB")
        .run()
        .succeeds();
    let expected = "got 32, then 2\nhalf again: 16 of 16\n\
        cuMemAlloc_v2(&large, (size_t)count * MiB) = 0\ncuMemFree_v2(large) = 0\n\
        cuMemAllocAsync(&large, (size_t)(count - 2) * MiB, 0) = 0\ncuMemFreeAsync(large, 0) = 0\nend\n";
    assert_eq!(run.stdout, expected);
    let report = &run.stderr;
    assert!(
        report.contains("GPU 0: no memory for 1.0 MiB: 32.0 MiB in use, 0 B ready"),
        "{report}"
    );
    assert!(
        report.contains("32.0 MiB of 32.0 MiB granted; 2.0 MiB more are above the limit"),
        "{report}"
    );
    let hint = "try: a higher limit (fercuda run --limit or FERCUDA_LIMIT)";
    assert!(report.contains(hint), "{report}");
    assert!(report.contains("calls holds 32.0 MiB"), "{report}");
    let full = run.at("full");
    assert_eq!(first(&full).live_bytes, 32 * MIB);
    assert_eq!(first(&full).limit_bytes, Some(32 * MIB));
    // The denied request is an event and no allocation.
    assert_eq!(counts(&full), (32, 0));
    assert_eq!(first(&full).peak_bytes, 32 * MIB);
    assert_eq!(first(&full).event_counts[&EventKind::Refused], 1);
    let end = run.at("end");
    assert_eq!(counts(&end), (50, 50));
    assert_eq!(first(&end).peak_bytes, 32 * MIB);
    all_is_back(&run);
}

#[test]
fn a_full_device_is_out_of_memory_too() {
    let run = hooked("calls.c", &["out_of_memory"])
        .env("FERCUDA_SOFT_MEMORY", "48MiB")
        .run()
        .succeeds();
    let got = run.figure("got", "got");
    // The rest of the device may be no multiple of the driver's granule.
    assert!((46..=48).contains(&got), "{}", run.stdout);
    assert!(
        run.stdout
            .contains(&format!("half again: {0} of {0}", got.div_ceil(2))),
        "{}",
        run.stdout
    );
    all_is_back(&run);
}

#[test]
fn memory_that_is_not_pooled_counts_against_each_limit() {
    for (variable, limit) in [
        ("FERCUDA_LIMIT", "32MiB"),
        ("FERCUDA_TENANT_LIMITS", "calls=32MiB"),
    ] {
        governed_out_of_memory(variable, limit);
    }
}

fn governed_out_of_memory(variable: &str, limit: &str) {
    let run = hooked("calls.c", &["governed_out_of_memory"])
        .env(variable, limit)
        .run()
        .succeeds();
    let expected = "got 16, then 2\nbeside it 2\ncuMemAlloc_v2(&p, 10 * MiB) = 0\ncuMemFree_v2(p) = 0\n\
        cuMemCreate(&h[0], 10 * MiB, &kind, 0) = 0\ncuMemRelease(h[0]) = 0\nend\n";
    assert_eq!(run.stdout, expected);
    all_is_back(&run);
}

#[test]
fn a_tenant_has_no_more_than_its_limit_and_others_go_on() {
    let run = hooked("calls.c", &["out_of_memory"])
        .env("FERCUDA_TENANT_LIMITS", "calls=8MiB,another=1MiB")
        .run()
        .succeeds();
    assert!(
        run.stdout
            .starts_with("got 8, then 2\nhalf again: 4 of 4\n"),
        "{}",
        run.stdout
    );
    let report = &run.stderr;
    assert!(
        report.contains("no memory for 1.0 MiB: the tenant uses 8.0 MiB of its limit of 8.0 MiB"),
        "{report}"
    );
    let hint = "try: a higher limit of its own (fercuda run --tenant or FERCUDA_TENANT_LIMITS)";
    assert!(report.contains(hint), "{report}");
    let full = run.at("full");
    assert_eq!(tenant_live(&full, "calls", 0), Some(8 * MIB));
    assert_eq!(counts(&full), (8, 0));
    assert_eq!(first(&full).peak_bytes, 8 * MIB);
    assert_eq!(first(&full).event_counts[&EventKind::TenantLimit], 1);
    let run = hooked("calls.c", &["one"])
        .env("FERCUDA_TENANT_LIMITS", "another=1KiB")
        .run()
        .succeeds();
    assert_eq!(counts(run.ledger()), (1, 1));
}

#[test]
fn a_limit_below_the_minimum_is_an_error_and_no_crash() {
    let run = hooked("calls.c", &["one"])
        .env("FERCUDA_LIMIT", "4KiB")
        .run();
    assert_eq!(run.code, 3);
    assert!(
        run.stdout.contains("cuMemAlloc_v2(&p, MiB) answered 2"),
        "{}",
        run.stdout
    );
    assert!(
        run.stderr.contains("no memory for 1.0 MiB"),
        "{}",
        run.stderr
    );
}

#[test]
fn mem_get_info_agrees_with_the_ledger() {
    for limit in [None, Some("64MiB")] {
        let mut client = hooked("calls.c", &["info"]).env("FERCUDA_SOFT_MEMORY", "128MiB");
        let mut total = 128 * MIB;
        if let Some(limit) = limit {
            client = client.env("FERCUDA_LIMIT", limit);
            total = 64 * MIB;
        }
        let run = client.run().succeeds();
        for mark in ["before", "blocks", "physical", "after"] {
            let (free, shown) = (run.figure(mark, "free"), run.figure(mark, "total"));
            let at = run.at(mark);
            let row = first(&at);
            let kinds = row.governed.iter().filter(|it| it.kind != Governed::Module);
            let held: u64 = row.live_bytes + kinds.map(|it| it.bytes).sum::<u64>();
            assert_eq!(shown, total, "{mark}");
            assert_eq!(shown - free, held, "{mark}: {row:?}");
            assert_eq!(row.ungoverned_bytes, 0, "{mark}");
        }
        let blocks = [1000u64, 10 * MIB + 5, 777_777].map(|it| it.next_multiple_of(512));
        assert_eq!(
            first(&run.at("blocks")).live_bytes,
            blocks.iter().sum::<u64>()
        );
        assert_eq!(governed(first(&run.at("physical")), Governed::Vmm), 4 * MIB);
    }
}

#[test]
fn the_final_figures_are_taken_at_exit_and_leave_nothing_ungoverned() {
    let run = hooked("calls.c", &["leak"]).run().succeeds();
    let row = first(run.ledger());
    assert!(row.driver_total_bytes > 0, "{row:?}");
    let known: u64 = row.governed.iter().map(|it| it.bytes).sum();
    let used = row.driver_total_bytes - row.driver_free_bytes;
    assert_eq!(used, known + row.pooled_bytes, "{row:?}");
    assert_eq!(row.ungoverned_bytes, 0);
}

#[test]
fn memory_is_freed_under_any_context_and_charged_to_its_own_device() {
    let run = same_answers("other_contexts", &[("FERCUDA_SOFT_DEVICES", "2")]);
    let both = run.at("both");
    assert_eq!(device(&both, 0).unwrap().live_bytes, 4 * MIB);
    assert_eq!(device(&both, 1).unwrap().live_bytes, 2 * MIB);
    let freed = run.at("freed");
    assert_eq!(device(&freed, 0).unwrap().live_bytes, MIB);
    assert_eq!(device(&freed, 1).unwrap().live_bytes, 0);
}

#[test]
fn the_null_stream_is_the_current_contexts_however_that_became_current() {
    for devices in ["1", "2"] {
        let run = same_answers("current", &[("FERCUDA_SOFT_DEVICES", devices)]);
        let count = |line: &str| run.stdout.lines().filter(|it| *it == line).count();
        assert_eq!(count("taken away: 201, device -1"), 2);
        assert_eq!(count("popped: 201, device -1"), 2);
        assert_eq!(count("pushed by the old name: 0, device 0"), 4);
        let on_another = if devices == "2" { 4 } else { 0 };
        assert_eq!(count("of two: 0, device 1"), on_another);
        all_is_back(&run);
    }
}

#[test]
fn a_context_that_no_interposed_function_has_seen_is_current_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["graphics_asked_for", "graphics_exported"] {
        let trace = folder.path().join(case);
        let run = hooked("calls.c", &[case])
            .env("FERCUDA_DRIVER", counting_driver())
            .env("FERCUDA_TRACE", &trace)
            .run()
            .succeeds();
        assert_eq!(run.stdout.matches(": 0, device 0\n").count(), 3);
        assert!(run.stdout.contains("the driver was asked 0 times\n"));
        assert!(!run.stdout.contains("from nowhere"));
        let trace = std::fs::read_to_string(trace).unwrap();
        let allocated = trace.lines().filter(|line| line.contains(",allocate,"));
        let streams: Vec<_> = allocated.map(|line| line.split(',').nth(5)).collect();
        let Some((other, first)) = streams.split_last() else {
            panic!("{trace}");
        };
        assert_eq!(first.len(), 12);
        let alike = first.iter().all(|it| *it == first[0]);
        assert!(alike && *other != first[0], "{case}: {trace}");
    }
}

#[test]
fn memory_of_the_host_made_by_mem_create_is_not_refused() {
    let run = same_answers("host_node", &[]);
    assert!(run.stdout.contains("node 0: 0"), "{}", run.stdout);
    let made = run.at("made");
    assert_eq!(governed(first(&made), Governed::Host), 2 * MIB);
    assert_eq!(governed(first(&made), Governed::Vmm), 0);
    all_is_back(&run);
}

#[test]
fn resetting_a_context_frees_everything_to_the_byte() {
    let run = same_answers("reset", &[]);
    assert!(run.stdout.contains("lost 0"));
    assert!(first(&run.at("full")).live_bytes > 8 * MIB);
    assert_eq!(first(&run.at("reset")).live_bytes, 0);
    assert_eq!(first(&run.at("reset")).mapped_bytes, 0);
    all_is_back(&run);
}

#[test]
fn destroying_a_context_frees_everything_to_the_byte() {
    let run = same_answers("destroy", &[]);
    all_is_back(&run);
    let row = &run.at("end");
    assert_eq!(first(row).mapped_bytes, 0);
    assert_eq!(first(row).allocs, 20 * 5);
}

#[test]
fn memory_in_a_streams_order_outlives_its_context_and_stays_its_tenants() {
    let run = same_answers("outlive", &[]);
    assert_eq!(
        run.stdout.matches("wrong 0, ").count(),
        12,
        "{}",
        run.stdout
    );
    let kept: u64 = [3 * MIB, 1000, 5 * MIB, 777]
        .map(|it: u64| it.next_multiple_of(512))
        .iter()
        .sum();
    for way in 0..4 {
        let (held, ended) = (
            run.at(&format!("held {way}")),
            run.at(&format!("ended {way}")),
        );
        assert_eq!(first(&held).live_bytes, kept + MIB);
        assert_eq!(first(&ended).live_bytes, kept);
        assert_eq!(tenant_live(&ended, "calls", 0), Some(kept));
        // Memory that was waiting for the context's work is the driver's again.
        assert!(first(&held).mapped_bytes >= kept + 8 * MIB);
        assert!(first(&ended).mapped_bytes < kept + 4 * MIB);
    }
    all_is_back(&run);
    assert_eq!(first(&run.at("end")).mapped_bytes, 0);
    assert_eq!(first(&run.at("end")).ungoverned_bytes, 0);
    // The frees that are refused are found, and nothing else.
    let checked = hooked("calls.c", &["outlive"]).checked().run();
    assert_eq!(checked.stdout, run.stdout);
    let mut found = checked.stderr.lines();
    let is_of_a_free = |line: &str| line.contains("invalid free: ") || line.contains(" findings");
    assert!(
        found.all(|line| !line.starts_with("feRcuda: ") || is_of_a_free(line)),
        "{}",
        checked.stderr
    );
}

#[test]
fn the_last_detach_destroys_a_context() {
    let run = hooked("calls.c", &["detach"])
        .env("FERCUDA_DRIVER", counting_driver())
        .run()
        .succeeds();
    let once = "cuCtxAttach(&again, 0) = 0\nthe same: 1\ncuCtxDetach(own) = 0\n\
        cuMemGetAddressRange_v2(&base, 0, p + 1000) = 0\nwhere it begins: 1\n\
        cuCtxDetach(own) = 0\n";
    assert_eq!(run.stdout.matches(once).count(), 3, "{}", run.stdout);
    assert_eq!(run.stdout.matches("cuMemFree_v2(p) = 1\n").count(), 3);
    assert_eq!(counts(&run.at("attached")), (2, 0));
    all_is_back(&run);
    let end = run.at("end");
    assert_eq!(first(&end).mapped_bytes, 0);
    assert_eq!(counts(&end), (6, 6));
}

#[test]
fn contexts_created_and_destroyed_in_several_threads_keep_their_own_blocks() {
    let run = same_answers("many_contexts", &[]);
    all_is_back(&run);
    let row = &run.at("end");
    assert_eq!(first(row).mapped_bytes, 0);
    assert_eq!(first(row).allocs, 6 * 60 * 3);
}

#[test]
fn physical_memory_is_charged_until_its_last_handle_and_mapping_are_gone() {
    let run = same_answers("physical_memory", &[]);
    assert!(
        run.stdout.contains("the other view holds 5"),
        "{}",
        run.stdout
    );
    let vmm = |mark| device(&run.at(mark), 0).map_or(0, |row| governed(row, Governed::Vmm));
    let both = vmm("made");
    assert!(both > 0);
    assert_eq!(
        (vmm("released"), vmm("one view"), vmm("end")),
        (both, both, 0)
    );
}

#[test]
fn buffer_ids_are_never_used_again() {
    let run = same_answers("buffer_ids", &[]);
    assert_eq!(run.stdout, "300 stable, 0 same\nend\n");
    assert_eq!(counts(run.ledger()).0, 600);
}

#[test]
fn ranges_and_attributes_are_those_of_the_allocation() {
    let run = same_answers("ranges_and_attributes", &[]);
    assert!(run.stdout.lines().count() > 300);
    assert_eq!(counts(run.ledger()), (3, 1));
}

#[test]
fn frees_of_other_memory_in_a_capture_are_answered_as_by_the_driver() {
    let run = same_answers("captured_frees", &[]);
    assert_eq!(counts(run.ledger()), (2, 2));
    all_is_back(&run);
}

#[test]
fn copies_between_devices_find_blocks_of_both() {
    let run = same_answers("peers", &[("FERCUDA_SOFT_DEVICES", "2")]);
    assert!(
        run.stdout
            .contains("first 11, last 11\n0 is on 0\n1 is on 1\n"),
        "{}",
        run.stdout
    );
    assert_eq!(counts(run.ledger()), (2, 2));
    all_is_back(&run);
}

const TWO: [(&str, &str); 1] = [("FERCUDA_SOFT_DEVICES", "2")];

#[test]
fn a_device_uses_the_memory_of_a_peer_whenever_that_was_allocated() {
    let run = same_answers("peer_access", &TWO);
    assert!(
        run.stdout.contains("before: 0, access 3\n"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("enabled: 0, access 3\n"),
        "{}",
        run.stdout
    );
    let good = run
        .stdout
        .matches(": 0, wrong 0, then it holds 1 1\n")
        .count();
    assert_eq!(good, 9, "{}", run.stdout);
    // The pool grew after access was enabled.
    let physical = |mark| device(&run.at(mark), 1).unwrap().pooled_bytes;
    assert!(physical("later") >= physical("before") + 60 * MIB);
    all_is_back(&run);
    // Slabs are allocations of the driver, with their access.
    let slabs = same_answers("peer_access", &[TWO[0], ("FERCUDA_BACKING", "slabs")]);
    assert_eq!(slabs.stdout, run.stdout);
    assert_eq!(counts(slabs.ledger()), counts(run.ledger()));
}

#[test]
fn slabs_cannot_be_granted_as_a_pool_and_the_program_gets_an_error() {
    let run = hooked("calls.c", &["pool_access"])
        .env("FERCUDA_SOFT_DEVICES", "2")
        .env("FERCUDA_BACKING", "slabs")
        .run();
    let stdout = &run.stdout;
    assert!(
        stdout.contains("cuMemPoolSetAccess(one, &first, 1) = 801\n"),
        "{stdout}"
    );
    assert!(stdout.contains("it has 0\nset: 0, access 3\n"), "{stdout}");
}

#[test]
fn a_device_uses_the_memory_of_a_pool_that_was_opened_to_it() {
    let run = same_answers("pool_access", &TWO);
    let good = run
        .stdout
        .matches(": 0, wrong 0, then it holds 1 1\n")
        .count();
    assert_eq!(good, 4, "{}", run.stdout);
    assert!(device(&run.at("end"), 1).unwrap().allocs >= 4);
    all_is_back(&run);
}

#[test]
fn a_kernel_that_has_no_access_to_another_device_fails() {
    let run = same_answers("no_access", &TWO);
    assert!(
        run.stdout.contains("never enabled: 0, access 3\n"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("without access: 7"), "{}", run.stdout);
}

#[test]
fn a_block_has_no_handle_to_foreign_memory() {
    let run = hooked("calls.c", &["shared"]).run().succeeds();
    assert_eq!(
        run.stdout,
        "cuIpcGetMemHandle(id, p) = 0\ncuIpcGetMemHandle(id, p + 4) = 0\n\
         of the block alone 1\ncuIpcGetMemHandle(id, p) = 1\nend\n"
    );
}

#[test]
fn the_drivers_pools_are_answered_for_as_by_the_driver() {
    let run = same_answers("pools", &[]);
    assert_eq!(
        run.stdout.matches(": 0, 1; 0, 1\n").count(),
        5,
        "{}",
        run.stdout
    );
    assert_eq!(counts(run.ledger()), (4, 4));
}

#[test]
fn each_of_the_drivers_pools_has_its_own_figures() {
    let run = same_answers("pool_figures", &[]);
    let stdout = &run.stdout;
    assert!(
        stdout.contains("all: of pool 1 14 MiB, at most 14"),
        "{stdout}"
    );
    assert_eq!(counts(run.ledger()), (8, 8));
    all_is_back(&run);
}

#[test]
fn a_leak_is_in_the_ledger_when_the_process_is_gone() {
    let run = hooked("calls.c", &["leak"]).run().succeeds();
    assert_eq!(tenant_live(run.ledger(), "calls", 0), Some(10 * MIB));
    assert_eq!(run.ledger().owner, fercuda_ledger::OwnerState::Gone);
}

#[test]
fn a_caller_on_a_small_stack_is_attributed_without_reading_beyond_it() {
    let bridge = compiled_as(
        "libcudart-bridge.so",
        "bridge.c",
        &["-shared", "-fPIC", "-lcuda"],
    );
    let run = hooked("stacks.c", &[bridge.to_str().unwrap()])
        .run()
        .succeeds();
    assert_eq!(run.stdout.lines().count(), 3, "{}", run.stdout);
    // Nine blocks, each charged to the program, whatever lies between.
    assert_eq!(tenant_live(run.ledger(), "stacks", 0), Some(9 * MIB));
    assert_eq!(counts(run.ledger()), (9, 0));
}

#[test]
fn descriptors_of_address_ranges_are_answered_as_by_the_driver() {
    for backing in ["vmm", "slabs"] {
        let run = same_answers_of("dmabuf.c", "ranges", &[("FERCUDA_BACKING", backing)]);
        assert!(run.stdout.contains("a block: "), "{}", run.stdout);
        assert!(!run.stdout.contains("wrong: "), "{}", run.stdout);
        assert!(counts(run.ledger()).0 > 24);
    }
}
