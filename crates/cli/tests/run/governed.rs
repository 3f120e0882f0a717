//! A program over the hook itself, on the software device.

use std::fs;
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
