//! `fercuda replay` and `fercuda bench alloc` on the software device: counts are compared with
//! the trace, timings are only checked for plausibility.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::process::Command;

use serde_json::Value;

/// Exit status, stdout, stderr.
fn fercuda(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(words)
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_MEMORY", "1GiB")
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
    let outcome: Value = serde_json::from_str(&out).unwrap();
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
    let again: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&again["allocations"], &again["frees"]),
        (&3.into(), &2.into())
    );
    assert_eq!(again["peak_live_bytes"], 32 << 20);

    let (code, _, err) = replay_only(SMALL, &["--snapshot", "/no/such/folder/x"]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("cannot write the snapshot /no/such/folder/x"),
        "{err}"
    );
    let (code, ..) = replay_only(SMALL, &["--snapshot", "x", "--json"]);
    assert_eq!(code, Some(2));
}

#[test]
fn an_allocation_too_large_for_the_device_fails_everywhere_and_the_rest_continues() {
    let rows =
        "1,0,allocate,0x1000,2147483648,0x0\n1,0,free,0x1000,2147483648,0x0\n".to_owned() + SMALL;
    let (code, out, err) = replay(&rows, &["--json"]);
    assert_eq!(code, Some(0), "{err}");
    let outcome: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(outcome["peak_live_bytes"], 2_u64 << 30);
    for row in outcome["allocators"].as_array().unwrap() {
        assert_eq!(row["failures"], 1, "{row}");
        assert!(row["first_failure"].is_string(), "{row}");
        assert_eq!(row["peak_live_bytes"], 32 << 20, "{row}");
    }
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
