//! Tests of the interposed functions of CUDA's runtime library: calls that the pool can
//! serve, and queries of a known device, do not reach that library; every other call
//! reaches the one that the caller is linked to.

use std::path::{Path, PathBuf};

use fercuda_ledger::{EventKind, LedgerSnapshot};

use crate::defects::failing;
use crate::support::{Client, Run, compiled_as, counts, driver, first, tenant_live};

const MIB: u64 = 1 << 20;

/// The runtime library stub; a process may have several. Its symbols have its name as their
/// version, as NVIDIA's do.
fn runtime(number: u32) -> PathBuf {
    runtime_as(&format!("libcudart-{number}.so.13"), number, &[])
}

fn runtime_as(name: &str, number: u32, options: &[&str]) -> PathBuf {
    let number = format!("-DNUMBER={number}");
    let named = format!("-Wl,--default-symver,-soname,{name}");
    let own = ["-shared", "-fPIC", &number, &named];
    compiled_as(name, "runtime.c", &[&own, options].concat())
}

/// The compiler option for programs linked to these libraries: the loader searches their
/// folders.
fn beside(linked: &[&Path]) -> String {
    let folders = linked.iter().map(|path| path.parent().unwrap().display());
    folders.fold("-Wl".to_owned(), |option, folder| {
        format!("{option},-rpath,{folder}")
    })
}

/// A library that calls the two functions, and is linked to others in this order.
fn user(name: &str, linked: &[&Path]) -> String {
    let beside = beside(linked);
    let mut options = vec!["-shared", "-fPIC", "-Wl,--no-as-needed"];
    options.extend((!linked.is_empty()).then_some(beside.as_str()));
    options.extend(linked.iter().map(|path| path.to_str().unwrap()));
    let library = compiled_as(&format!("lib{name}.so"), "linked_to.c", &options);
    library.to_str().unwrap().to_owned()
}

/// The program that calls them: linked to the first of those libraries, with
/// pointers from there, or linked to none.
fn program(way: &str, args: &[&str]) -> Client {
    let library = match way {
        "late" => runtime_as("libcudart-1.so.11.0", 1, &["-DLATE"]),
        _ => runtime(1),
    };
    let path = library.to_str().unwrap();
    let beside = beside(&[&library]);
    let through = format!("-DTHROUGH=\"{path}\"");
    let program = match way {
        "late" => compiled_as("late", "linked.c", &["-lcuda", path, &beside]),
        "linked" => compiled_as("linked", "linked.c", &["-lcuda", path, &beside]),
        "through" => {
            let options = ["-lcuda", &through, path, &beside];
            compiled_as("through", "linked.c", &options)
        }
        _ => compiled_as("alone", "linked.c", &["-lcuda", "-DALONE"]),
    };
    Client::new(program, args)
}

/// The output without the lines about calls that reached the library.
fn answers(run: &Run) -> Vec<&str> {
    let lines = run.stdout.lines();
    lines.filter(|line| !line.starts_with("  ")).collect()
}

/// The number of calls that reached the library, at each step.
fn reached(run: &Run) -> Vec<(&str, u32)> {
    let lines = run
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("  "));
    let split = lines.map(|line| line.split_once(": reached ").unwrap());
    split
        .map(|(what, count)| (what, count.parse().unwrap()))
        .collect()
}

/// Runs the program under the hook and over the driver alone; asserts equal answers.
#[track_caller]
fn alike(case: &str) -> (Run, Run) {
    let run = program("linked", &[case]).hooked().run().succeeds();
    let alone = program("linked", &[case]).plain().run().succeeds();
    assert_eq!(answers(&run), answers(&alone));
    (run, alone)
}

/// The calls that reach the library in a case that makes pairs everywhere.
const OF_PAIRS: [(&str, u32); 15] = [
    ("null", 200),
    ("legacy", 200),
    ("per thread", 200),
    ("blocking", 200),
    ("non-blocking", 200),
    ("first", 1),
    ("second", 1),
    ("pairs", 200),
    ("pairs in the thread's own", 200),
    ("first", 1),
    ("second", 1),
    ("pairs", 200),
    ("pairs in the thread's own", 200),
    ("frees", 2),
    ("crossed", 4),
];

#[test]
fn calls_that_the_pool_can_serve_do_not_reach_the_runtime_library() {
    let (run, alone) = alike("pairs");
    assert_eq!(run.stderr, "");
    assert_eq!(reached(&alone), OF_PAIRS);
    let firsts = OF_PAIRS.map(|(what, _)| (what, u32::from(what == "first")));
    assert_eq!(reached(&run), firsts);
}

#[test]
fn ledger_and_trace_are_the_same_whether_calls_reach_the_runtime_library_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let all = ["linked", "through"].map(|way| {
        let trace = folder.path().join(way);
        let client = program(way, &["pairs"]).hooked();
        let run = client.env("FERCUDA_TRACE", &trace).run().succeeds();
        let trace = std::fs::read_to_string(trace).unwrap();
        // Action, size and stream.
        let words = trace
            .lines()
            .map(|line| line.split(',').collect::<Vec<_>>());
        let traced: Vec<String> = words
            .map(|words| [words[2], words[4], words[5]].join(" "))
            .collect();
        let comes = if way == "through" { 200 } else { 0 };
        assert_eq!(reached(&run)[0], ("null", comes));
        let end = run.at("end");
        // A thread's leftovers: its first allocation, and one more.
        assert_eq!(tenant_live(&end, way, 0), Some(3 * MIB));
        let tenant = end.tenants.iter().find(|it| it.name == way).unwrap();
        let account = &tenant.accounts[0];
        let row = first(&end);
        let governed: Vec<_> = row.governed.iter().map(|it| (it.kind, it.bytes)).collect();
        let of_row = (row.live_bytes, row.peak_bytes, governed);
        let of_tenant = (account.live_bytes, account.peak_bytes);
        (counts(&end), of_row, of_tenant, traced)
    });
    assert_eq!(all[0], all[1]);
    let ((allocs, frees), .., traced) = &all[0];
    assert_eq!(allocs - frees, 2);
    assert!(*allocs > 900, "{allocs}");
    // Besides the header line.
    assert_eq!(traced.len() as u64, allocs + frees + 1);
}

/// Kinds and sizes of the allocations denied since `before`.
fn refused(before: &LedgerSnapshot, after: &LedgerSnapshot) -> Vec<(EventKind, u64)> {
    let new = after.events_written - before.events_written;
    let events = after.events.iter().rev().take(new as usize);
    let events = events.map(|event| (event.kind, event.bytes));
    events
        .filter(|(kind, _)| matches!(kind, EventKind::OutOfMemory | EventKind::Refused))
        .collect()
}

#[test]
fn a_denied_allocation_reaches_the_runtime_library_and_is_reported_once() {
    let (run, alone) = alike("reaching");
    assert!(
        run.stdout.contains("1 << 45, 0) = 1002\n"),
        "{}",
        run.stdout
    );
    let served = ["a pair", "the block itself"];
    let expected: Vec<_> = reached(&alone)
        .into_iter()
        .map(|(what, count)| (what, if served.contains(&what) { 0 } else { count }))
        .collect();
    assert_eq!(reached(&run), expected);
    assert!(expected.iter().filter(|(_, count)| *count == 1).count() == 7);
    let message = "GPU 0: no memory for 32.0 TiB";
    assert_eq!(run.stderr.matches(message).count(), 1);
    assert_eq!(run.stderr.lines().count(), 1);
    let events = refused(&run.at("before"), &run.at("after"));
    assert_eq!(events, [(EventKind::OutOfMemory, 1 << 45)]);
    let limited = program("linked", &["reaching"]).hooked();
    let limited = limited.env("FERCUDA_LIMIT", "64MiB").run().succeeds();
    assert_eq!(answers(&limited), answers(&run));
    let events = refused(&limited.at("before"), &limited.at("after"));
    assert_eq!(events, [(EventKind::Refused, 1 << 45)]);
}

#[test]
fn captured_calls_reach_the_runtime_library() {
    let (run, _) = alike("captures");
    let mut expected = Vec::new();
    for beside in [0, 0, 2] {
        expected.extend([("before", 0), ("captured", 1), ("captured", 1)]);
        expected.extend([("beside", 0)].repeat(beside));
        expected.push(("after", 0));
    }
    assert_eq!(reached(&run), expected);
}

#[test]
fn without_a_live_current_context_the_runtime_library_handles_the_call() {
    let (run, _) = alike("without_context");
    assert_eq!(run.stdout.matches("a context is current: 1\n").count(), 3);
    let round = [("with a context", 0), ("without", 1), ("no call", 0)];
    assert_eq!(reached(&run)[0], ("before", 1));
    assert_eq!(reached(&run)[1..], round.repeat(3));
    let (run, _) = alike("ended");
    // Stream-ordered memory belongs to no context; the one made current meanwhile frees it.
    let ended = [("before", 1), ("of one that has ended", 1), ("ended", 1)];
    let expected = [ended.as_slice(), &[("again", 0), ("elsewhere", 1)]];
    assert_eq!(reached(&run), expected.concat());
}

/// A program under the hook and over the driver alone, on two devices.
#[track_caller]
fn alike_on_two(way: &str, case: &str) -> (Run, Run) {
    let client = || program(way, &[case]).env("FERCUDA_SOFT_DEVICES", "2");
    let run = client().hooked().run().succeeds();
    let alone = client().plain().run().succeeds();
    assert_eq!(answers(&run), answers(&alone));
    assert_eq!(run.stderr, "");
    (run, alone)
}

#[test]
fn the_current_device_is_returned_without_the_runtime_library() {
    let (run, alone) = alike_on_two("linked", "devices");
    let in_thread = [("in a thread", 1), ("with a seat", 0), ("again", 0)];
    let expected = [
        [("a block", 0), ("the context that there is", 0)].as_slice(),
        &[("a hundred more", 0), ("it", 1)],
        &[("while a stream captures", 0)],
        &in_thread,
        &[("none is current", 1), ("the first, chosen", 1)],
        &[("chosen", 1), ("the second, chosen", 0), ("again", 0)],
        &[("none", 1), ("one that is not there, chosen", 0)],
        &in_thread,
        &[("the driver's call", 0), ("pushed", 0), ("popped", 0)],
        &[("one of its own", 0), ("without it", 0)],
        &[("after a reset", 1), ("chosen", 1), ("the first again", 0)],
        &[("one that has ended, pushed", 1), ("no block", 1)],
        &[("without it", 0)],
        &[("one that has ended, set", 1), ("no block", 1)],
        &[("at last", 0)],
    ];
    assert_eq!(reached(&run), expected.concat());
    assert_eq!(reached(&alone)[2], ("a hundred more", 100));
}

#[test]
fn if_a_device_is_set_before_its_context_is_current_the_runtime_library_handles_the_call() {
    for way in ["linked", "late"] {
        let (run, alone) = alike_on_two(way, "chosen");
        for device in [0, 1] {
            let block = format!("a block of device {device}\n");
            assert_eq!(run.stdout.matches(&block).count(), 3, "{way}");
        }
        let is_late = way == "late";
        let comes = |run: &Run| reached(run).iter().map(|(_, count)| count).sum::<u32>();
        assert_eq!(comes(&run) == comes(&alone), is_late, "{}", run.stdout);
    }
}

#[test]
fn in_an_exiting_thread_and_in_the_child_of_a_fork_the_runtime_library_handles_the_call() {
    let (run, _) = alike("threads_end");
    let ended = ("at the thread's end", 1);
    let expected = [("before", 1), ("it", 1), ("it", 1), ("it", 1), ended];
    assert_eq!(reached(&run), expected);
    assert_eq!(counts(&run.at("end")), (3, 3));
    assert_eq!(first(&run.at("end")).live_bytes, 0);
    let (run, _) = alike("forks");
    let child = [("it", 1), ("it", 1), ("child", 1)];
    let expected = [[("parent", 0)].as_slice(), &child, &[("parent", 0)]].concat();
    assert_eq!(reached(&run), expected);
    assert!(run.stdout.contains("child 7\n"), "{}", run.stdout);
    assert_eq!(counts(run.ledger()), (1, 1));
}

#[test]
fn with_the_kill_switch_every_call_reaches_the_runtime_library() {
    let client = program("linked", &["pairs"]).hooked();
    let client = client.env("FERCUDA_DISABLE", "1");
    let run = client.env("LD_LIBRARY_PATH", driver().parent().unwrap());
    let run = run.run().succeeds();
    assert_eq!(reached(&run), OF_PAIRS);
    assert!(run.ledgers.is_empty());
    assert_eq!(run.stderr, "");
    let client = || program("linked", &["devices"]).env("FERCUDA_SOFT_DEVICES", "2");
    let killed = client().hooked().env("FERCUDA_DISABLE", "1");
    let killed = killed.env("LD_LIBRARY_PATH", driver().parent().unwrap());
    assert_eq!(
        killed.run().succeeds().stdout,
        client().plain().run().stdout
    );
}

#[test]
fn a_panicking_interposed_function_leaves_the_call_to_the_runtime_library() {
    let alone = program("linked", &["pairs"]).plain();
    let alone = alone.env("FERCUDA_SOFT_DEVICES", "2").run().succeeds();
    for every in [1, 2, 3, 5, 11] {
        let run = failing(program("linked", &["pairs"]).hooked(), every).run();
        let message = "a call could not be governed because of a defect";
        assert_eq!(run.stderr.matches(message).count(), 1);
        // All fail; or some, and then the program may get an error and exit.
        match (every, run.code) {
            (1, _) => assert_eq!(run.succeeds().stdout, alone.stdout),
            (_, 3) => {}
            _ => assert_eq!(answers(&run.succeeds()), answers(&alone), "{every}"),
        }
    }
}

#[test]
fn each_caller_gets_the_runtime_library_that_it_is_linked_to() {
    let (two, three) = (runtime(2), runtime(3));
    let after_two = user("after_two", &[&two]);
    // The loader finds the driver's name first, which is the hook.
    let after_three = user("after_three", &[&driver(), &three]);
    let args = ["several", &after_two, &after_three];
    for way in ["linked", "alone"] {
        let run = program(way, &args).hooked().run().succeeds();
        let alone = program(way, &args).plain().run().succeeds();
        let codes = |run: &Run| -> Vec<String> {
            let lines = run.stdout.lines().filter(|line| line.starts_with("code "));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(codes(&run), codes(&alone));
        assert_eq!(codes(&run).len(), if way == "linked" { 7 } else { 6 });
        let calls = |run: &Run| -> Vec<String> {
            let lines = run
                .stdout
                .lines()
                .filter_map(|line| line.strip_prefix("calls "));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(calls(&alone), ["20 20", "26 26", "1 2"]);
        // None of the pairs; each call that has to; in another thread its first.
        assert_eq!(calls(&run), ["0 0", "6 6", "1 0"]);
        let end = run.at("end");
        assert_eq!(tenant_live(&end, "after_two", 0), Some(MIB));
        assert_eq!(tenant_live(&end, "after_three", 0), Some(2 * MIB));
        assert_eq!(run.stderr, "");
    }
}

#[test]
fn a_caller_gets_the_runtime_library_of_the_library_that_depends_on_it() {
    let (nothing, two) = (user("user_of_none", &[]), runtime(2));
    let (beside, all) = (beside(&[&two]), "-Wl,--no-as-needed");
    let two = two.to_str().unwrap();
    let options = ["-shared", "-fPIC", all, &beside, "-lcuda", &nothing, two];
    let root = compiled_as("libroot.so", "plugin.c", &options);
    let args = ["in_turn", root.to_str().unwrap()];
    let run = program("alone", &args).hooked().run().succeeds();
    let alone = program("alone", &args).plain().run().succeeds();
    assert_eq!(run.stdout, "code 2001 2001, calls 2\nend\n");
    assert_eq!(alone.stdout, "code 2001 2001, calls 12\nend\n");
}

#[test]
fn a_caller_that_was_unloaded_is_not_taken_for_the_one_in_its_place() {
    let (two, three) = (runtime(2), runtime(3));
    let args = [user("user_two", &[&two]), user("user_three", &[&three])];
    let args = ["in_turn", &args[0], &args[1]];
    let run = program("alone", &args).hooked().run().succeeds();
    let turn = "code 2001 2001, calls 2\ncode 3001 3001, calls 2\n";
    let expected = turn.repeat(5);
    // Ten were loaded, each but the first at the address of the one before.
    assert_eq!(
        run.stdout,
        format!("{expected}in another's place: 9\nend\n")
    );
}

#[test]
fn a_caller_without_a_runtime_library_gets_symbol_not_found() {
    let nothing = user("user_of_none", &[]);
    let run = program("alone", &["none", &nothing]).hooked().run();
    let expected = "served: 0\nnot there: 500 500\nerror: none\nend\n";
    assert_eq!(run.succeeds().stdout, expected);
}
