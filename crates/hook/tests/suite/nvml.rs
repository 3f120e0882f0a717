//! Tests with an NVML stub: governed memory is reported as by `cuMemGetInfo`, all other by
//! NVML's own figures.

use std::collections::BTreeMap;

use fercuda_ledger::Governed;

use crate::support::{Client, Run, compiled_as, counts, driver, first, nvml, sources};

const MIB: u64 = 1 << 20;

/// The figures that the stub returns for any device: total, free.
const ITS_OWN: (u64, u64) = (1000 * MIB, 700 * MIB);

/// A server that is linked to NVML or opens it.
fn server(way: &str, args: &[&str]) -> Client {
    let folder = nvml();
    let program = match way {
        "linked" => compiled_as("server_linked", "server.c", &["-lcuda", "-lnvidia-ml"]),
        _ => compiled_as("server_opened", "server.c", &["-lcuda", "-DOPENED"]),
    };
    let search = format!(
        "{}:{}",
        folder.display(),
        driver().parent().unwrap().display()
    );
    Client::new(program, args)
        .env("LD_LIBRARY_PATH", search)
        .env("FERCUDA_SOFT_DEVICES", "2")
        .env("FERCUDA_SOFT_MEMORY", "128MiB")
}

fn governed(way: &str, args: &[&str]) -> Client {
    server(way, args)
        .preloaded()
        .env("FERCUDA_DRIVER", driver())
}

/// The figures in a line of the server's output.
#[track_caller]
fn figures(run: &Run, line: &str) -> BTreeMap<String, u64> {
    let found = run.stdout.lines().find_map(|text| text.strip_prefix(line));
    let text = found.unwrap_or_else(|| panic!("no {line:?} in {}", run.stdout));
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap()))
        .collect()
}

/// NVML's figures of a device: total and free, the same in both versions.
#[track_caller]
fn nvml_figures(run: &Run, when: &str, device: u32) -> (u64, u64) {
    let all = figures(run, &format!("{when} device {device} "));
    let of = |name: &str| all[name];
    let known = (of("total"), of("free"));
    assert_eq!(known, (of("total2"), of("free2")), "{all:?}");
    assert_eq!(of("used"), known.0 - known.1, "{all:?}");
    assert_eq!(
        of("total2"),
        of("used2") + of("free2") + of("reserved2"),
        "{all:?}"
    );
    known
}

#[track_caller]
fn drivers_figures(run: &Run, when: &str) -> (u64, u64) {
    let all = figures(run, &format!("{when} driver "));
    (all["total"], all["free"])
}

#[test]
fn nvml_reports_the_drivers_figures_of_governed_memory() {
    for way in ["linked", "opened"] {
        for limit in [None, Some(64 * MIB)] {
            let mut client = governed(way, &[]);
            if let Some(limit) = limit {
                client = client.env("FERCUDA_LIMIT", limit.to_string());
            }
            let run = client.run().succeeds();
            assert_eq!(run.stderr, "");
            let total = limit.unwrap_or(128 * MIB);
            for when in ["made", "held", "freed"] {
                assert_eq!(
                    nvml_figures(&run, when, 0),
                    drivers_figures(&run, when),
                    "{way} {when}"
                );
                assert_eq!(nvml_figures(&run, when, 0).0, total, "{way} {when}");
            }
            // Also without a current context.
            assert_eq!(
                nvml_figures(&run, "outside", 0),
                nvml_figures(&run, "held", 0),
                "{way}"
            );
            // And they agree with the ledger.
            let at = run.at("held");
            let kinds = first(&at).governed.iter();
            let kinds = kinds.filter(|it| it.kind != Governed::Module);
            let held = first(&at).live_bytes + kinds.map(|it| it.bytes).sum::<u64>();
            let (all, free) = nvml_figures(&run, "held", 0);
            assert_eq!(
                (all - free, first(&at).live_bytes),
                (held, 13 * MIB),
                "{way}"
            );
            assert_eq!(counts(run.ledger()), (2, 2));
        }
    }
}

#[test]
fn nvml_reports_its_own_figures_of_all_other_memory() {
    for way in ["linked", "opened"] {
        let run = governed(way, &[]).run().succeeds();
        for device in 0..3 {
            // Before the driver is used nothing is governed.
            assert_eq!(nvml_figures(&run, "early", device), ITS_OWN);
        }
        // A device without memory of the process, and one that the driver does not show it.
        assert_eq!(nvml_figures(&run, "held", 1), ITS_OWN);
        assert_eq!(nvml_figures(&run, "held", 2), ITS_OWN);
        let limited = governed(way, &[])
            .env("FERCUDA_LIMIT", "64MiB")
            .run()
            .succeeds();
        // A limit holds from the first allocation on, so it is reported before.
        for device in 0..3 {
            assert_eq!(
                nvml_figures(&limited, "early", device),
                (64 * MIB, 64 * MIB)
            );
        }
        assert_eq!(nvml_figures(&limited, "held", 1), (64 * MIB, 64 * MIB));
        assert_eq!(nvml_figures(&limited, "held", 2), ITS_OWN);
    }
}

#[test]
fn nvml_errors_and_all_its_other_names_are_as_without_the_hook() {
    for way in ["linked", "opened"] {
        let (bare, hooked) = (
            server(way, &[]).run().succeeds(),
            governed(way, &[]).run().succeeds(),
        );
        let plain = |run: &Run| -> Vec<String> {
            let lines = run
                .stdout
                .lines()
                .take_while(|line| !line.starts_with("made "));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(plain(&bare), plain(&hooked));
        assert!(plain(&bare).len() > 8, "{}", bare.stdout);
        assert!(
            bare.stdout
                .contains("nvmlDeviceGetMemoryInfo(0, &one) = 1\n")
        );
        assert!(
            bare.stdout
                .contains("nvmlDeviceGetMemoryInfo_v2(device[0], &old) = 25\n")
        );
        let off = governed(way, &[])
            .env("FERCUDA_DISABLE", "1")
            .run()
            .succeeds();
        assert_eq!(off.stdout, bare.stdout);
        assert!(off.ledgers.is_empty());
    }
}

#[test]
fn nvml_queries_do_not_start_the_governor_and_children_are_governed_on_their_own() {
    let run = governed("opened", &["fork_early"]).run().succeeds();
    assert!(run.stdout.contains("child 0\n"), "{}", run.stdout);
    assert_eq!(nvml_figures(&run, "held", 0), drivers_figures(&run, "held"));
    assert_eq!(counts(run.ledger()), (2, 2));
    let run = governed("opened", &["fork_late"]).run().succeeds();
    assert_eq!(nvml_figures(&run, "child", 0), ITS_OWN);
    assert_eq!(
        nvml_figures(&run, "freed", 0),
        drivers_figures(&run, "freed")
    );
}

#[test]
fn nvml_by_ctypes_reports_the_drivers_figures() {
    let script = sources().join("server.py");
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let run = Client::new(python, &[script.to_str().unwrap()])
        .hooked()
        .env("LD_LIBRARY_PATH", nvml())
        .env("FERCUDA_LIMIT", "64MiB")
        .run()
        .succeeds();
    let lines: Vec<&str> = run.stdout.lines().collect();
    let expected = format!("total {} free {} used {}", 64 * MIB, 59 * MIB, 5 * MIB);
    assert_eq!(lines, [expected.as_str(), &expected]);
}
