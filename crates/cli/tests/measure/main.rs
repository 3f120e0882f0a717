//! `fercuda replay` and `fercuda bench alloc` on the software device: counts are compared with
//! the trace, timings are only checked for plausibility.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod viewer;

use std::process::Command;

use serde_json::Value;

/// Exit status, stdout, stderr.
fn fercuda(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(words)
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_MEMORY", "1GiB")
        // Nothing here judges accesses, and a measurement is of a device that does not either.
        .env_remove("FERCUDA_SOFT_CHECK")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn replay(rows: &str, words: &[&str]) -> (Option<i32>, String, String) {
    replay_only(rows, &[&["--device", "soft"], words].concat())
}

/// With only these options.
fn replay_only(rows: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    std::fs::write(&file, format!("{HEAD}{rows}")).unwrap();
    fercuda(&[&["replay", file.to_str().unwrap()], words].concat())
}

/// What was replayed, by device of the trace.
fn traces(json: &str) -> Vec<Value> {
    let outcome: Value = serde_json::from_str(json).unwrap();
    outcome["traces"].as_array().unwrap().clone()
}

/// Of a trace with one device.
fn only_trace(json: &str) -> Value {
    let [trace] = traces(json).try_into().unwrap();
    trace
}

#[test]
fn the_variable_selects_the_device_without_an_option() {
    let unknown = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
        let output = command.args(words).env("FERCUDA_DEVICE", "tpu").output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("try: soft, gpu or auto"), "{said}");
    };
    unknown(&["bench", "alloc", "--samples", "10", "--threads", "1"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    std::fs::write(&file, format!("{HEAD}{SMALL}")).unwrap();
    unknown(&["replay", file.to_str().unwrap()]);
}

const HEAD: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// 32 MiB live at most, in two streams.
const SMALL: &str = "\
1,0,allocate,0x1000,16777216,0x0
1,0,allocate,0x2000,16777216,0xa
1,0,free,0x1000,16777216,0x0
1,0,allocate,0x3000,8388608,0x0
1,0,free,0x2000,16777216,0xa
";

#[test]
fn a_trace_is_replayed_on_each_allocator_and_counted() {
    let (code, out, err) = replay(SMALL, &["--json"]);
    assert_eq!(code, Some(0), "{err}");
    let outcome = only_trace(&out);
    assert_eq!(outcome["allocations"], 3);
    assert_eq!(outcome["frees"], 2);
    assert_eq!(outcome["streams"], 2);
    assert_eq!(outcome["peak_live_bytes"], 32 << 20);
    let rows = outcome["allocators"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["pool", "cuMemAlloc", "cuMemAllocAsync"]);
    for row in rows {
        let number = |name: &str| row[name].as_u64().unwrap();
        assert_eq!(number("failures"), 0, "{row}");
        assert_eq!(number("peak_live_bytes"), 32 << 20, "{row}");
        assert!(number("peak_physical_bytes") >= 32 << 20, "{row}");
        assert!(row["allocate_p50_ns"].as_f64() > Some(0.0), "{row}");
        assert!(row["free_p999_ns"].as_f64() > Some(0.0), "{row}");
    }
    let (code, out, _) = replay(SMALL, &[]);
    assert_eq!(code, Some(0));
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(
        out.contains("3 allocations, 2 frees, 2 streams\npeak live 32.0 MiB on "),
        "{out}"
    );
}

#[test]
fn a_trace_becomes_a_snapshot_that_python_and_replay_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("memory.pickle");
    let out = out.to_str().unwrap();
    let (code, said, err) = replay_only(SMALL, &["--snapshot", out]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        said.ends_with("1 block live in 1 segment, 8.0 MiB in all; 5 events\n"),
        "{said}"
    );
    // What PyTorch's viewer reads, summed by Python.
    let script = "import json, pickle, sys\n\
        it = pickle.load(open(sys.argv[1], 'rb'))\n\
        trace, = it['device_traces']\n\
        for segment in it['segments']:\n\
        \x20   assert segment['total_size'] == sum(b['size'] for b in segment['blocks'])\n\
        \x20   assert segment['segment_type'] in ('small', 'large') and segment['segment_pool_id'] == (0, 0)\n\
        \x20   assert all(b['state'] == 'active_allocated' and b['frames'] == [] for b in segment['blocks'])\n\
        \x20   assert segment['active_size'] == segment['allocated_size'] == segment['total_size']\n\
        \x20   assert segment['is_expandable'] is False\n\
        print(json.dumps([[[s['address'], s['stream'], s['total_size']] for s in it['segments']],\n\
        \x20   [[e['action'], e['addr'], e['size'], e['stream']] for e in trace]]))";
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let loaded = Command::new(python)
        .args(["-c", script, out])
        .output()
        .unwrap();
    let err = String::from_utf8(loaded.stderr).unwrap();
    let read_back: Value = serde_json::from_slice(&loaded.stdout).expect(&err);
    let (a, b) = ((4096, 16 << 20), (8192, 16 << 20));
    let expected = serde_json::json!([
        [[12288, 0, 8 << 20]],
        [
            ["alloc", a.0, a.1, 0],
            ["alloc", b.0, b.1, 10],
            ["free_requested", a.0, a.1, 0],
            ["free_completed", a.0, a.1, 0],
            ["alloc", 12288, 8 << 20, 0],
            ["free_requested", b.0, b.1, 10],
            ["free_completed", b.0, b.1, 10],
        ]
    ]);
    assert_eq!(read_back, expected);

    // The snapshot is a valid trace, with the same operations.
    let (code, out, err) = fercuda(&["replay", out, "--device", "soft", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let again = only_trace(&out);
    assert_eq!(
        (&again["allocations"], &again["frees"]),
        (&3.into(), &2.into())
    );
    assert_eq!(again["peak_live_bytes"], 32 << 20);

    let (code, _, err) = replay_only(SMALL, &["--snapshot", "/no/such/folder/x"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("cannot write /no/such/folder/x"), "{err}");
    let (code, ..) = replay_only(SMALL, &["--snapshot", "x", "--json"]);
    assert_eq!(code, Some(2));
}

#[test]
fn pytorchs_viewer_can_read_a_snapshot_with_numbers_of_every_length() {
    let values: Vec<u64> = (0..64)
        .flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])
        .chain([u64::MAX - 1, u64::MAX])
        .filter(|value| *value > 0)
        .collect();
    let mut rows = String::new();
    for value in &values {
        rows += &format!("7,10:00:00.000001,allocate,{value:#x},{value},{value:#x}\n");
        rows += &format!("7,10:00:00.000001,allocate failure,(nil),{value},{value:#x}\n");
        rows += &format!("7,10:00:00.000001,free,{value:#x},{value},{value:#x}\n");
    }
    rows += "7,10:00:00.000001,allocate,0xffffff,300,0x0\n";
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("memory.pickle");
    let (code, _, err) = replay_only(&rows, &["--snapshot", out.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    let snapshot = viewer::unpickled(&std::fs::read(&out).unwrap());
    let [trace] = snapshot.at("device_traces").list() else {
        panic!("{snapshot:?}");
    };
    let read: Vec<(&str, i64, i64, i64)> = trace
        .list()
        .iter()
        .map(|event| {
            let action = event.at("action").text();
            let place = if action == "oom" {
                "device_free"
            } else {
                "addr"
            };
            let number = |name| event.at(name).number();
            assert_eq!(event.at("frames").list(), []);
            (action, number(place), number("size"), number("stream"))
        })
        .collect();
    let mut expected = Vec::new();
    for value in values {
        // Addresses and streams keep their 64 bits; a size is at most 2^63 - 1.
        let size = i64::try_from(value).unwrap_or(i64::MAX);
        let bits = value as i64;
        expected.extend([("alloc", bits, size, bits), ("oom", 0, size, bits)]);
        expected.extend(["free_requested", "free_completed"].map(|it| (it, bits, size, bits)));
    }
    expected.push(("alloc", 0xff_ffff, 300, 0));
    assert_eq!(read, expected);
    let [segment] = snapshot.at("segments").list() else {
        panic!("{snapshot:?}");
    };
    let [block] = segment.at("blocks").list() else {
        panic!("{segment:?}");
    };
    assert_eq!(block.at("requested_size").number(), 300);
    assert_eq!(segment.at("total_size"), block.at("size"));
    assert_eq!(segment.at("address").number(), 0xff_ffff);
    assert_eq!(segment.at("is_expandable"), &viewer::ViewerValue::False);
}

#[test]
fn outputs_are_their_users_alone_under_any_umask() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, format!("{HEAD}{SMALL}")).unwrap();
    for mask in ["000", "022", "077", "777"] {
        for (option, name) in [("--snapshot", "a.pickle"), ("--html", "a.html")] {
            let out = folder.path().join(format!("{mask}-{name}"));
            let made = Command::new("sh")
                .args(["-c", "umask $0 && exec \"$@\"", mask])
                .args([env!("CARGO_BIN_EXE_fercuda"), "replay"])
                .args([trace.as_os_str(), option.as_ref(), out.as_os_str()])
                .output()
                .unwrap();
            assert!(made.status.success(), "{mask}: {made:?}");
            let mode = std::fs::metadata(&out).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o600, "{mask}: {option}");
        }
    }
}

#[test]
fn an_allocation_too_large_for_the_device_fails_everywhere_and_the_rest_continues() {
    let rows =
        "1,0,allocate,0x1000,2147483648,0x0\n1,0,free,0x1000,2147483648,0x0\n".to_owned() + SMALL;
    let (code, out, err) = replay(&rows, &["--json"]);
    assert_eq!(code, Some(0), "{err}");
    let outcome = only_trace(&out);
    assert_eq!(outcome["peak_live_bytes"], 2_u64 << 30);
    for row in outcome["allocators"].as_array().unwrap() {
        assert_eq!(row["failures"], 1, "{row}");
        assert!(row["first_failure"].is_string(), "{row}");
        assert_eq!(row["peak_live_bytes"], 32 << 20, "{row}");
    }
}

#[test]
fn an_allocation_beyond_all_addresses_is_a_failed_step() {
    for bytes in [u64::MAX, u64::MAX - (1 << 22), 1 << 63] {
        let rows = format!("1,0,allocate,0x100,{bytes},0\n{SMALL}");
        let (code, out, err) = replay(&rows, &["--json"]);
        assert_eq!(code, Some(0), "{bytes}: {err}");
        let outcome = only_trace(&out);
        for row in outcome["allocators"].as_array().unwrap() {
            assert_eq!(row["failures"], 1, "{bytes}: {row}");
            assert_eq!(row["peak_live_bytes"], 32 << 20, "{bytes}: {row}");
        }
    }
}

#[test]
fn a_timeline_is_one_file_that_replaces_nothing_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("timeline.html");
    let out = out.to_str().unwrap();
    let (code, said, err) = replay_only(SMALL, &["--html", out]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(said, format!("{out}: open it in a browser\n"));
    let page = std::fs::read_to_string(out).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("title=\"33554432 bytes\""), "{page}");
    let (code, _, err) = replay_only(SMALL, &["--html", out]);
    assert_eq!(code, Some(2));
    assert!(err.contains("exists\ntry: --force"), "{err}");
    let (code, said, _) = replay_only(SMALL, &["--html", "-"]);
    assert_eq!((code, said), (Some(0), page));
    // Nothing is left of a page whose trace cannot be read.
    std::fs::remove_file(out).unwrap();
    let (code, ..) = replay_only("1,0,allocate,0x1000,much,0x0\n", &["--html", out]);
    assert_eq!(code, Some(2));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let file = folder.path().join("trace.csv");
    std::fs::write(&file, format!("{HEAD}{SMALL}")).unwrap();
    let file = file.to_str().unwrap();
    let (code, _, err) = fercuda(&["replay", file, "--html", file, "--force"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("overwritten while it is read"), "{err}");
}

/// Writes snapshots as PyTorch does: a block from before the recording, a block of 2 MiB that is
/// freed, a failed allocation, and another device with a block of 5 MiB.
const SNAPSHOTS: &str = "import collections, pickle, sys
A, MIB = 0x7f1000000000, 1 << 20
frames = [dict(name='forward', filename='net.py', line=12), dict(name='<module>', filename='</script>', line=3)]
def block(address, size, state):
    return dict(address=address, size=size, requested_size=size - 12, state=state, frames=frames)
def event(action, address, size, **more):
    it = dict(action=action, addr=address, size=size, stream=0, time_us=1700000000000000, frames=frames)
    it.update(more)
    return it
segment = dict(device=0, address=A, total_size=20 * MIB, stream=0, segment_type='large', blocks=[
    block(A, MIB, 'active_allocated'), block(A + MIB, 19 * MIB, 'inactive')])
first = [event('segment_map', A, 20 * MIB), event('alloc', A + MIB, 2 * MIB),
    event('free_requested', A + MIB, 2 * MIB), event('free_completed', A + MIB, 2 * MIB),
    event('oom', 0x1234, 99 << 30, device_free=5), event('snapshot', 0, 0)]
second = [event('alloc', A, 5 * MIB)]
it = dict(segments=[segment], device_traces=[first, second])
for protocol in range(6):
    pickle.dump(it, open(f'{sys.argv[1]}/{protocol}.pickle', 'wb'), protocol=protocol)
pickle.dump(collections.OrderedDict(it), open(f'{sys.argv[1]}/ordered.pickle', 'wb'))
";

#[test]
fn a_snapshot_is_read_with_what_was_live_before_it_and_other_devices() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let made = Command::new(python).args(["-c", SNAPSHOTS, at]).status();
    assert!(made.unwrap().success());
    for name in ["2", "3", "4", "5", "ordered"] {
        let file = format!("{at}/{name}.pickle");
        let (code, out, err) = fercuda(&["replay", &file, "--device", "soft", "--json"]);
        assert_eq!(code, Some(0), "{name}: {err}");
        let [outcome, second] = traces(&out).try_into().unwrap();
        for (part, expected) in [
            ("trace_device", 0),
            ("allocations", 2),
            ("frees", 1),
            ("held_blocks", 1),
            ("trace_failures", 1),
            ("peak_live_bytes", 3 << 20),
        ] {
            assert_eq!(outcome[part], expected, "{name}: {part}");
        }
        for (part, expected) in [
            ("trace_device", 1),
            ("allocations", 1),
            ("frees", 0),
            ("peak_live_bytes", 5 << 20),
        ] {
            assert_eq!(second[part], expected, "{name}: {part}");
        }
        for row in second["allocators"].as_array().unwrap() {
            assert_eq!(row["peak_live_bytes"], 5 << 20, "{name}: {row}");
        }
        let (_, table, _) = fercuda(&["replay", &file, "--device", "soft"]);
        for part in [
            "device 0 of the trace\n2 allocations",
            "\n\ndevice 1 of the trace\n1 allocation",
        ] {
            assert!(table.contains(part), "{name}: {table}");
        }
        let (code, page, err) = fercuda(&["replay", &file, "--html", "-"]);
        assert_eq!(code, Some(0), "{name}: {err}");
        for (part, times) in [
            (
                "<li>device 0: 1 block of 1.0 MiB live before the trace began</li>",
                1,
            ),
            ("title=\"3145728 bytes\"", 2),
            ("title=\"5242880 bytes\"", 4),
            // Stored once, with the innermost frame first.
            ("forward (net.py:12)\\n", 1),
            ("</script", 2),
        ] {
            assert_eq!(page.matches(part).count(), times, "{name}: {part}\n{page}");
        }
    }
    for name in ["0", "1"] {
        let (code, _, err) = fercuda(&["replay", &format!("{at}/{name}.pickle")]);
        assert_eq!(code, Some(2));
        assert!(
            err.contains("try: pickle.dump(snapshot, file, protocol=4)"),
            "{err}"
        );
    }
}

/// Snapshots with a part missing: no history, the list of segments alone, a segment of a device
/// without a history, an action that PyTorch does not have.
const PARTS: &str = "import pickle, sys
A, MIB = 0x7f1000000000, 1 << 20
def segment(device):
    blocks = [dict(address=A, size=MIB, state='active_allocated'),
        dict(address=A + MIB, size=2 * MIB, state='active_pending_free'),
        dict(address=A + 3 * MIB, size=MIB, state='inactive')]
    return dict(device=device, address=A, total_size=4 * MIB, stream=0, blocks=blocks)
def event(action, address, size):
    return dict(action=action, addr=address, size=size, stream=0)
first = [event('alloc', A, MIB), event('defragment', A, MIB), event('segment_map', A, MIB)]
for name, it in dict(
    silent=dict(segments=[segment(0)], device_traces=[[]]),
    list=[segment(0)],
    second=dict(segments=[segment(0), segment(1), segment(64)], device_traces=[first]),
    empty=dict(segments=[], device_traces=[]),
).items():
    pickle.dump(it, open(f'{sys.argv[1]}/{name}', 'wb'))
";

#[test]
fn parts_of_a_snapshot_are_kept_or_counted() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let made = Command::new(python).args(["-c", PARTS, at]).status();
    assert!(made.unwrap().success());
    let replayed = |name: &str| {
        let file = format!("{at}/{name}");
        fercuda(&["replay", &file, "--device", "soft", "--json"])
    };
    let without = "the snapshot has no history of allocations: only the blocks live in it are read";
    for (name, notes, held) in [
        ("silent", &[without][..], &[2][..]),
        ("list", &[without], &[2]),
        (
            "second",
            &[
                "1 event of unknown actions left out",
                "3 blocks of devices above 63 left out",
            ],
            &[1, 2],
        ),
    ] {
        let (code, out, err) = replayed(name);
        assert_eq!(code, Some(0), "{name}: {err}");
        let outcome: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(outcome["notes"], serde_json::json!(notes), "{name}");
        let read: Vec<Value> = traces(&out)
            .iter()
            .map(|trace| trace["held_blocks"].clone())
            .collect();
        assert_eq!(serde_json::json!(read), serde_json::json!(held), "{name}");
        assert!(
            traces(&out)
                .iter()
                .all(|it| it["peak_live_bytes"] == 3 << 20)
        );
    }
    let (code, _, err) = replayed("empty");
    assert_eq!(code, Some(2));
    assert!(err.contains("try: call torch.cuda.memory._record"), "{err}");
}

#[test]
fn a_trace_is_read_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    let run = |text: &str, words: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
        let stdin = std::fs::File::open(&file).unwrap();
        let command = command.args(["replay", "-"]).args(words).stdin(stdin);
        command.env("FERCUDA_DEVICE", "soft").output().unwrap()
    };
    // With the mark that spreadsheets put first.
    let text = format!("\u{feff}{HEAD}1,0,allocate,0x1000,4096,0x0\n1,0,free,0x1000,4096,0x0\n");
    let done = run(&text, &["--json"]);
    let trace = only_trace(std::str::from_utf8(&done.stdout).unwrap());
    assert_eq!(
        (&trace["allocations"], &trace["frees"]),
        (&1.into(), &1.into())
    );
    let done = run(&text, &["--snapshot", "-"]);
    assert!(done.stdout.starts_with(b"\x80"), "{done:?}");
    let done = run("no,log\n", &[]);
    assert_eq!(done.status.code(), Some(2));
    let err = String::from_utf8(done.stderr).unwrap();
    assert!(
        err.contains("cannot read the trace on standard input"),
        "{err}"
    );
}

#[test]
fn a_trace_that_cannot_be_read_is_refused_with_the_line() {
    let (code, out, err) = replay("1,0,allocate,0x1000,much,0x0\n", &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(
        err.contains("line 2") && err.contains("\"much\" is not a size"),
        "{err}"
    );
    let (code, _, err) = fercuda(&["replay", "/no/such/trace"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("cannot read the trace /no/such/trace"),
        "{err}"
    );
}

#[test]
fn the_benchmark_has_all_rows() {
    let words = [
        "bench",
        "alloc",
        "--device",
        "soft",
        "--samples",
        "10",
        "--threads",
        "2",
    ];
    let (code, out, err) = fercuda(&[&words[..], &["--json"]].concat());
    assert_eq!(code, Some(0), "{err}");
    let outcome: Value = serde_json::from_str(&out).unwrap();
    let rows = outcome["rows"].as_array().unwrap();
    for what in [
        "core: take and give, 4k holes",
        "core: take and give, 64k holes",
        "pool: pair in a stream",
        "pool: pair in no stream",
        "pool: 2 threads",
        "cuMemAllocAsync + cuMemFreeAsync",
        "cuMemAllocAsync: 2 threads",
        "cuMemAlloc + cuMemFree",
        "pool: growth by 32 MiB, and back",
    ] {
        let row = rows.iter().find(|row| row["what"] == what);
        let row = row.unwrap_or_else(|| panic!("no {what} in {out}"));
        let at = |part: &str| row[part].as_f64().unwrap();
        assert!(0.0 < at("p50_ns") && at("p50_ns") <= at("p99_ns"), "{row}");
        assert!(at("p99_ns") <= at("p999_ns"), "{row}");
        assert_eq!(row["pairs_per_second"].is_f64(), what.contains("threads"));
    }
    let (code, out, _) = fercuda(&words);
    assert_eq!(code, Some(0));
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn other_programs_calls_are_measured_bare_and_governed() {
    let words = [
        "bench",
        "frameworks",
        "mechanics",
        "throughput",
        "mechanics",
    ];
    let short = ["--rounds", "1", "--seconds", "0.005", "--json"];
    let (status, out, error) = fercuda(&[&words[..], &short[..]].concat());
    assert_eq!(status, Some(0), "{error}");
    let outcome: Value = serde_json::from_str(&out).unwrap();
    let workloads = outcome["workloads"].as_array().unwrap();
    let names: Vec<&str> = workloads
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["mechanics", "throughput"], "each once, as asked");
    for workload in workloads {
        assert_eq!(workload["ungoverned_bytes"], 0);
        assert_eq!(workload["fallbacks"], 0);
        assert_eq!(workload["skipped"], serde_json::json!({}));
        let rows = workload["rows"].as_array().unwrap();
        assert!(rows.len() >= 5, "{workload}");
        for row in rows {
            for side in ["bare", "governed"] {
                let [figure] = row[side].as_array().unwrap().as_slice() else {
                    panic!("{row}");
                };
                assert!(figure.as_f64().unwrap() > 0.0, "{row}");
            }
            assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn a_python_that_fails_is_a_failure_and_no_figure() {
    let words = ["bench", "frameworks", "mechanics", "--rounds", "1"];
    let with = |python: &str| fercuda(&[&words[..], &["--python", python]].concat());
    let (status, out, _) = with("false");
    assert_eq!(status, Some(1));
    assert!(
        out.contains("FAILED: the bare process ended with exit status: 1"),
        "{out}"
    );
    let (status, _, error) = with("no-python-of-this-name");
    assert_eq!(status, Some(1));
    assert!(
        error.contains("cannot start no-python-of-this-name"),
        "{error}"
    );
}
