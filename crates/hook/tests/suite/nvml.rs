//! NVML, by a library that stands in for it, says what `cuMemGetInfo` says of
//! memory that is governed, and its own of all other.

use std::collections::BTreeMap;

use fercuda_ledger::Governed;

use crate::support::{Client, Run, compiled_as, counts, driver, first, nvml, sources};

const MIB: u64 = 1 << 20;

/// The figures that the stand-in says of any device: total, free.
const ITS_OWN: (u64, u64) = (1000 * MIB, 700 * MIB);

/// A server that is linked to NVML, or opens it.
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

/// The figures of a line of the server's.
#[track_caller]
fn figures(run: &Run, line: &str) -> BTreeMap<String, u64> {
    let said = run.said.lines().find_map(|said| said.strip_prefix(line));
    let said = said.unwrap_or_else(|| panic!("no {line:?} in {}", run.said));
    let words: Vec<&str> = said.split_whitespace().collect();
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap()))
        .collect()
}

/// What NVML said of a device: total and free, alike in both versions.
#[track_caller]
fn said(run: &Run, when: &str, device: u32) -> (u64, u64) {
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
fn the_driver_said(run: &Run, when: &str) -> (u64, u64) {
    let all = figures(run, &format!("{when} driver "));
    (all["total"], all["free"])
}

#[test]
fn nvml_says_of_governed_memory_what_the_driver_says() {
    for way in ["linked", "opened"] {
        for limit in [None, Some(64 * MIB)] {
            let mut client = governed(way, &[]);
            if let Some(limit) = limit {
                client = client.env("FERCUDA_LIMIT", limit.to_string());
            }
            let run = client.run().succeeds();
            assert_eq!(run.complained, "");
            let total = limit.unwrap_or(128 * MIB);
            for when in ["made", "held", "freed"] {
                assert_eq!(
                    said(&run, when, 0),
                    the_driver_said(&run, when),
                    "{way} {when}"
                );
                assert_eq!(said(&run, when, 0).0, total, "{way} {when}");
            }
            // In no context too.
            assert_eq!(said(&run, "outside", 0), said(&run, "held", 0), "{way}");
            // And it is the ledger.
            let at = run.at("held");
            let kinds = first(&at).governed.iter();
            let kinds = kinds.filter(|it| it.kind != Governed::Module);
            let held = first(&at).live_bytes + kinds.map(|it| it.bytes).sum::<u64>();
            let (all, free) = said(&run, "held", 0);
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
fn nvml_says_its_own_of_all_other_memory() {
    for way in ["linked", "opened"] {
        let run = governed(way, &[]).run().succeeds();
        for device in 0..3 {
            // Before the driver is used nothing is governed.
            assert_eq!(said(&run, "early", device), ITS_OWN);
        }
        // A device that the process has no memory of, and one that the driver does not show it.
        assert_eq!(said(&run, "held", 1), ITS_OWN);
        assert_eq!(said(&run, "held", 2), ITS_OWN);
        let limited = governed(way, &[])
            .env("FERCUDA_LIMIT", "64MiB")
            .run()
            .succeeds();
        // A limit holds from the first allocation on, so it counts before.
        for device in 0..3 {
            assert_eq!(said(&limited, "early", device), (64 * MIB, 64 * MIB));
        }
        assert_eq!(said(&limited, "held", 1), (64 * MIB, 64 * MIB));
        assert_eq!(said(&limited, "held", 2), ITS_OWN);
    }
}

#[test]
fn what_nvml_refuses_and_all_its_other_names_are_as_without_the_hook() {
    for way in ["linked", "opened"] {
        let (bare, hooked) = (
            server(way, &[]).run().succeeds(),
            governed(way, &[]).run().succeeds(),
        );
        let plain = |run: &Run| -> Vec<String> {
            let lines = run
                .said
                .lines()
                .take_while(|line| !line.starts_with("made "));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(plain(&bare), plain(&hooked));
        assert!(plain(&bare).len() > 8, "{}", bare.said);
        assert!(bare.said.contains("nvmlDeviceGetMemoryInfo(0, &one) = 1\n"));
        assert!(
            bare.said
                .contains("nvmlDeviceGetMemoryInfo_v2(device[0], &old) = 25\n")
        );
        let off = governed(way, &[])
            .env("FERCUDA_DISABLE", "1")
            .run()
            .succeeds();
        assert_eq!(off.said, bare.said);
        assert!(off.ledgers.is_empty());
    }
}

#[test]
fn asking_nvml_begins_nothing_and_children_are_governed_by_themselves() {
    let run = governed("opened", &["fork_early"]).run().succeeds();
    assert!(run.said.contains("child 0\n"), "{}", run.said);
    assert_eq!(said(&run, "held", 0), the_driver_said(&run, "held"));
    assert_eq!(counts(run.ledger()), (2, 2));
    let run = governed("opened", &["fork_late"]).run().succeeds();
    assert_eq!(said(&run, "child", 0), ITS_OWN);
    assert_eq!(said(&run, "freed", 0), the_driver_said(&run, "freed"));
}

#[test]
fn nvml_by_ctypes_says_what_the_driver_says() {
    let script = sources().join("server.py");
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let run = Client::new(python, &[script.to_str().unwrap()])
        .hooked()
        .env("LD_LIBRARY_PATH", nvml())
        .env("FERCUDA_LIMIT", "64MiB")
        .run()
        .succeeds();
    let lines: Vec<&str> = run.said.lines().collect();
    let told = format!("total {} free {} used {}", 64 * MIB, 59 * MIB, 5 * MIB);
    assert_eq!(lines, [told.as_str(), &told]);
}
