//! The report at the end of a run.

use std::num::NonZeroU64;

use fercuda_ledger::{EventKind, Folder, Gauge, Governed, Ledger, LedgerDevice, LedgerEvent};
use serde_json::Value;

use crate::{Installed, assert_contains, ended};

/// Not a test by itself: with the variable it is a process that uses device memory, according
/// to its ledger, and then ends as the variable says.
#[test]
fn process_with_a_ledger() {
    let Ok(end) = std::env::var("FERCUDA_TEST_OWNER") else {
        return;
    };
    let run = std::env::var("FERCUDA_RUN").ok();
    let run = run
        .and_then(|run| run.parse().ok())
        .and_then(NonZeroU64::new);
    assert!(run.is_some());
    let folder = Folder::from_env().unwrap();
    let (ledger, warning) = Ledger::open_in(&folder, run);
    assert!(warning.is_none(), "{warning:?}");
    let device = LedgerDevice::new(0);
    let torch = ledger.tenant("torch");
    let kept = ledger.charge(device, torch, 3 << 30);
    let mut local = ledger.local(1);
    local.charge(device, torch, 7, 1 << 30);
    ledger.charge(device, ledger.tenant("cublas"), 64 << 20);
    ledger.discharge(kept, 3 << 30);
    ledger.govern(device, torch, Governed::Context, 512 << 20);
    ledger.set(device, Gauge::Mapped, 5 << 30);
    ledger.set_tenant_limit(device, torch, 6 << 30);
    ledger.record(LedgerEvent {
        kind: EventKind::OutOfMemory,
        device,
        tenant: torch,
        bytes: 6 << 30,
        address: 0,
        detail: 5 << 29,
        stream: 0,
        thread: 0,
    });
    if end == "waits" {
        println!("its number is {}", std::process::id());
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
    if end == "killed" {
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// The command line that runs this program as [`process_with_a_ledger`].
pub(crate) fn owner() -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let words = [
        program.to_str().unwrap(),
        "--exact",
        "reported::process_with_a_ledger",
    ];
    words.map(str::to_owned).to_vec()
}

#[test]
fn a_report_of_a_killed_program_shows_its_tenants_and_peaks() {
    let it = Installed::new();
    let json = it.path("report.json");
    let mut words = ["--report", "--json", json.to_str().unwrap(), "--"]
        .map(str::to_owned)
        .to_vec();
    words.extend(owner());
    let ended = ended(it.run(&words).env("FERCUDA_TEST_OWNER", "killed"));
    assert_eq!(ended.signal, Some(libc::SIGKILL));
    let lines: Vec<&str> = ended.err.lines().collect();
    assert!(
        lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80),
        "{}",
        ended.err
    );
    assert_contains(
        &ended.err,
        &[
            "was ended by signal 9 after ",
            "(gone)",
            "torch ",
            "cublas ",
            "1.0 GiB   4.0 GiB 512.0 MiB         2   6.0 GiB",
            "governed: context 512.0 MiB\n",
            "events: out of memory 1\n",
            "live at exit: torch 1.0 GiB in 1 block, cublas 64.0 MiB in 1 block\n",
            "last: out of memory: torch asked for 6.0 GiB, largest block 2.5 GiB\n",
            "ungoverned = 0 B, fallback = 0 allocations\n",
        ],
    );
    assert!(!ended.err.contains('\x1b'));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["signal"], 9);
    assert_eq!(report["processes"][0]["owner"], "gone");
    let leaked = &report["live_at_exit"];
    assert_eq!(leaked.as_array().map(Vec::len), Some(2), "{leaked}");
    assert_eq!(leaked[0]["tenant"], "torch", "{leaked}");
    assert_eq!(
        (&leaked[0]["blocks"], &leaked[0]["bytes"]),
        (&1.into(), &(1_u64 << 30).into())
    );
    assert_eq!(
        report["processes"][0]["devices"][0]["peak_bytes"],
        (4_u64 << 30) + (64 << 20)
    );
}

#[test]
fn child_processes_are_in_the_report_and_other_runs_are_not() {
    let it = Installed::new();
    let words = owner();
    let twice = format!("{0} >&2; {0} >&2", words.join(" "));
    let ended = ended(
        it.run(&["--report", "--", "sh", "-c", &twice])
            .env("FERCUDA_TEST_OWNER", "ends"),
    );
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(
        ended
            .err
            .lines()
            .filter(|line| line.starts_with("torch "))
            .count(),
        2,
        "{}",
        ended.err
    );
    // Another run sweeps ledgers without an owner, and does not show them.
    let next = crate::ended(&mut it.run(&["--report", "--", "true"]));
    assert_contains(&next.err, &["No process of this run used device memory."]);
    assert!(!next.err.contains("torch"), "{}", next.err);
    let left = std::fs::read_dir(it.path("run/fercuda")).unwrap();
    let names: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        names
            .iter()
            .all(|name| name.to_str().unwrap().ends_with(".ledger")),
        "{names:?}"
    );
}
