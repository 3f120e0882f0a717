//! `fercuda replay` and `fercuda bench alloc` on the software device: what they
//! count is held to the trace, what they time only to its shape.
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
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    std::fs::write(
        &file,
        format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}"),
    )
    .unwrap();
    fercuda(
        &[
            &["replay", file.to_str().unwrap(), "--device", "soft"],
            words,
        ]
        .concat(),
    )
}

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
fn what_a_device_has_no_room_for_fails_everywhere_and_the_rest_goes_on() {
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
        err.contains("line 2") && err.contains("\"much\" is no size"),
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
fn the_benchmark_has_all_rows_beside_each_other() {
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
