//! A program over the hook itself, on the software device.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Installed, assert_contains, ended};

#[test]
fn a_program_that_finds_the_driver_by_name_is_governed_and_reported() {
    let it = Installed::new();
    let source = include_str!("../../../dropin/tests/vector.c");
    let program = it.compile("vector", &["-x", "c"], source);
    let (trace, json) = (it.path("trace.csv"), it.path("report.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    command
        .args([
            "run", "--device", "soft", "--limit", "1GiB", "--report", "--trace",
        ])
        .arg(&trace)
        .arg("--json")
        .arg(&json)
        .arg(program)
        .env("XDG_RUNTIME_DIR", it.path("run"));
    let ended = ended(&mut command);
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(0), "sum 4950\n"),
        "{}",
        ended.err
    );
    assert_contains(
        &ended.err,
        &[
            "vector (gone)",
            "events: growth 1",
            "ungoverned = 0 B, fallback = 0 allocations",
        ],
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let device = &report["processes"][0]["devices"][0];
    assert_eq!(device["limit_bytes"], 1 << 30);
    assert!(device["allocs"].as_u64() >= Some(1), "{device}");
    let trace = fs::read_to_string(trace).unwrap();
    let allocations = trace
        .lines()
        .filter(|line| line.contains(",allocate,"))
        .count() as u64;
    assert_eq!(Some(allocations), device["allocs"].as_u64(), "{trace}");
}

#[test]
fn a_trace_of_a_run_becomes_a_timeline_with_its_tenants_and_refusals() {
    let it = Installed::new();
    let source = include_str!("../programs/tenants.c");
    let library = it.compile(
        "libworker.so",
        &["-shared", "-fPIC", "-DLIBRARY", "-x", "c"],
        source,
    );
    let folder = library.parent().unwrap().display().to_string();
    // The source is named before the libraries.
    let main = it.compile("tenants.o", &["-c", "-x", "c"], source);
    let link = [
        main.to_str().unwrap(),
        &format!("-L{folder}"),
        "-Wl,--no-as-needed",
    ];
    let rest = [&format!("-Wl,-rpath,{folder}"), "-lworker", "-x", "c"];
    let program = it.compile("tenants", &[&link[..], &rest[..]].concat(), "int unused;\n");
    let (trace, page) = (it.path("trace.csv"), it.path("timeline.html"));
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
        command.args(words).env("XDG_RUNTIME_DIR", it.path("run"));
        ended(&mut command)
    };
    let (trace, page) = (trace.to_str().unwrap(), page.to_str().unwrap());
    let words = [
        "run", "--device", "soft", "--limit", "1GiB", "--trace", trace,
    ];
    let words = [&words[..], &[program.to_str().unwrap()]].concat();
    let first = run(&words);
    assert_contains(
        &first.err,
        &[&format!("feRcuda: trace of this process: {trace}\n")],
    );
    assert_eq!(fs::metadata(trace).unwrap().mode() & 0o777, 0o600);
    assert_eq!(
        (first.code, first.out.as_str()),
        (Some(0), "0 0 0 0 2 0 0 0 0\n"),
        "{}",
        first.err
    );
    let rows = fs::read_to_string(trace).unwrap();
    // Action, size, device and tenant.
    let cells: Vec<String> = rows
        .lines()
        .map(|line| line.split(',').collect::<Vec<_>>())
        .map(|cells| [cells[2], cells[4], cells[6], cells[7]].join(" "))
        .collect();
    let expected = [
        "Action Size Device Tenant",
        "allocate 3145728 0 tenants",
        "allocate 5242880 0 worker",
        "allocate failure 3221225472 0 worker",
        "free 3145728 0 tenants",
        "allocate 2097152 0 worker",
        // With its context.
        "free 2097152 0 worker",
    ];
    assert_eq!(cells, expected, "{rows}");

    // A second run does not replace it, nor write elsewhere.
    let second = run(&words);
    assert_eq!((second.code, second.out.as_str()), (Some(2), ""));
    assert_contains(&second.err, &["trace.csv exists"]);
    assert_eq!(fs::read_to_string(trace).unwrap(), rows);
    let folder = fs::read_dir(Path::new(trace).parent().unwrap()).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let traces: Vec<String> = names.filter(|name| name.starts_with("trace.csv")).collect();
    assert_eq!(traces, ["trace.csv"]);

    let drawn = run(&["replay", trace, "--html", page]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.err);
    let page = fs::read_to_string(page).unwrap();
    // Tenant, device, peak, live at the end, blocks, allocations, frees, failures.
    let row = |tenant: &str| {
        let (_, row) = page
            .split_once(&format!("<bdi>{tenant}</bdi></th>"))
            .unwrap();
        let (row, _) = row.split_once("</tr>").unwrap();
        let cells = row.split("<td").skip(1);
        let cells = cells.map(|cell| cell.split('>').nth(1).unwrap().split('<').next().unwrap());
        cells.collect::<Vec<_>>().join("|")
    };
    assert_eq!(row("tenants"), "0|3.0 MiB|0 B|0|1|1|0");
    assert_eq!(row("worker"), "0|7.0 MiB|5.0 MiB|1|2|1|1");
    let replayed = run(&["replay", trace, "--device", "soft", "--json"]);
    let outcome: Value = serde_json::from_str(&replayed.out).unwrap();
    let outcome = &outcome["traces"][0];
    assert_eq!(outcome["trace_failures"], 1);
    assert_eq!(outcome["peak_live_bytes"], 8 << 20);
}
