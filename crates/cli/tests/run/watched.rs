//! `fercuda top`: printed once, for machines, and on a terminal.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::ends::{signal, terminal};
use crate::reported::owner;
use crate::{Installed, assert_contains, ended};

/// A governed process, and its PID.
fn governed(it: &Installed) -> (Child, String) {
    let mut words = vec!["--".to_owned()];
    words.extend(owner());
    words.push("--nocapture".to_owned());
    let mut child = it
        .run(&words)
        .env("FERCUDA_TEST_OWNER", "waits")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut numbers = lines.filter_map(|line| {
        let line = line.unwrap();
        let (_, number) = line.split_once("its number is ")?;
        Some(number.trim().to_owned())
    });
    let number = numbers.next().unwrap();
    (child, number)
}

#[test]
fn without_a_governed_process_it_shows_how_to_start_one() {
    let it = Installed::new();
    let none = ended(it.fercuda().args(["top", "--once"]));
    assert_eq!((none.code, none.err.as_str()), (Some(0), ""));
    assert_eq!(
        none.out,
        "No process is governed now.\ntry: fercuda run -- PROGRAM\n"
    );
    assert_eq!(ended(it.fercuda().args(["top", "--json"])).out, "[]\n");
    let absent = ended(it.fercuda().args(["top", "1"]));
    assert_eq!((absent.code, absent.out.as_str()), (Some(1), ""));
    assert_contains(
        &absent.err,
        &["process 1 is not governed", "try: fercuda top --once"],
    );
    for once in [["top", "--json", "--once"], ["top", "--once", "--json"]] {
        let both = ended(it.fercuda().args(once));
        assert_eq!((both.code, both.out.as_str()), (Some(0), "[]\n"));
    }
    let both = ended(it.fercuda().args(["top", "--json", "--prometheus"]));
    assert_eq!(both.code, Some(2));
}

#[test]
fn a_governed_process_is_shown_while_it_runs() {
    let it = Installed::new();
    let (mut child, number) = governed(&it);
    // In a pipe it prints a table, with or without --once.
    for words in [&["top"][..], &["top", "--once"], &["top", &number]] {
        let shown = ended(it.fercuda().args(words));
        assert_eq!(shown.code, Some(0), "{}", shown.err);
        assert!(!shown.out.contains('\x1b'));
        assert!(
            shown.out.lines().all(|line| line.chars().count() <= 80),
            "{}",
            shown.out
        );
        assert_contains(
            &shown.out,
            &[&number, "torch ", "cublas ", "events: out of memory 1"],
        );
    }
    for (by, rows) in [
        ("tenant", &["TENANT ", "torch "][..]),
        ("stream", &["STREAM ", "\n7 ", "LIVE    ALLOCS\n"]),
        ("thread", &["THREAD ", "\n1 ", "LIVE    ALLOCS\n"]),
    ] {
        let shown = ended(it.fercuda().args(["top", "--once", "--by", by]));
        assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
        assert!(shown.out.lines().all(|line| line.chars().count() <= 80));
        assert_contains(&shown.out, &[&[number.as_str()], rows].concat());
    }
    let refused = ended(it.fercuda().args(["top", "--json", "--by", "stream"]));
    assert_eq!(refused.code, Some(2));
    let json = ended(it.fercuda().args(["top", "--json"])).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["pid"].to_string(), number);
    assert_eq!(json[0]["devices"][0]["live_bytes"], (1 << 30) + (64 << 20));
    assert_eq!(
        json[0]["devices"][0]["allocated_bytes"],
        (4_u64 << 30) + (64 << 20)
    );
    let text = ended(it.fercuda().args(["top", "--prometheus"])).out;
    assert_contains(
        &text,
        &["# TYPE fercuda_up gauge", &format!("pid=\"{number}\"")],
    );

    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
    // It is no longer shown, except by its PID.
    assert_contains(
        &ended(it.fercuda().args(["top", "--once"])).out,
        &["No process is governed"],
    );
    assert_contains(
        &ended(it.fercuda().args(["top", &number])).out,
        &["(gone)", "torch "],
    );
}

#[test]
fn processes_are_sorted_and_filtered_and_gpus_have_their_figures() {
    let it = Installed::new();
    // Two GPUs; the second one reports neither use nor power.
    it.compile(
        "libnvidia-ml.so.1",
        &["-shared", "-fPIC", "-x", "c"],
        "#include <string.h>
        static char devices[2];
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        const char *nvmlErrorString(int code) { return \"an error\"; }
        int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned at, char **device) { return *device = devices + at, 0; }
        struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };
        int nvmlDeviceGetPciInfo_v3(char *device, struct pci *pci)
        {
            memset(pci, 0, sizeof *pci);
            strcpy(pci->text, device == devices ? \"00000000:3B:00.0\" : \"00000000:AF:00.0\");
            return 0;
        }
        int nvmlDeviceGetName(char *device, char *name, unsigned size) { return strcpy(name, \"NVIDIA Test\"), 0; }
        int nvmlDeviceGetUtilizationRates(char *device, unsigned *rates)
        {
            return device == devices ? rates[0] = 87, rates[1] = 12, 0 : 3;
        }
        int nvmlDeviceGetTemperature(char *device, int sensor, unsigned *celsius) { return *celsius = 61, 0; }
        int nvmlDeviceGetPowerUsage(char *device, unsigned *milliwatts)
        {
            return device == devices ? *milliwatts = 311500, 0 : 3;
        }
        ",
    );
    let (mut child, number) = governed(&it);
    let top = |words: &[&str]| {
        let mut command = it.fercuda();
        command.args(["top", "--once"]).args(words);
        ended(command.env("LD_LIBRARY_PATH", it.path("")))
    };
    let shown = top(&["--sort", "live", "--filter", "TORCH"]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    assert!(shown.out.lines().all(|line| line.chars().count() <= 80));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = shown.out.lines().map(words).collect();
    assert_eq!(lines[0], "GPU NAME USE TEMP POWER");
    assert_eq!(lines[1], "3b:00.0 NVIDIA Test 87% 61 C 312 W");
    assert_eq!(lines[2], "af:00.0 NVIDIA Test - 61 C -");
    assert_contains(&shown.out, &[&number, "torch "]);
    let none = top(&["--filter", "no such thing"]);
    assert_eq!(none.code, Some(0));
    assert_contains(
        &none.out,
        &[
            "No process or tenant has \"no such thing\"",
            "try: another filter",
        ],
    );
    let json = ended(
        it.fercuda()
            .args(["top", "--json", "--filter", "no such thing"]),
    );
    assert_eq!(json.out, "[]\n");
    for refused in [&["--sort", "size"][..], &["--json", "--sort", "live"]] {
        assert_eq!(top(refused).code, Some(2), "{refused:?}");
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
}

const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";
/// Makes the cursor visible.
const SHOWN: &str = "\x1b[?25h";

/// `fercuda top` on a terminal, and the terminal's master side.
fn top_on_a_terminal(it: &Installed, words: &[&str]) -> (Child, File) {
    let (master, slave) = terminal();
    let mut command = it.fercuda();
    command
        .arg("top")
        .args(words)
        .env("TERM", "xterm-256color")
        .stdin(slave.try_clone().unwrap())
        .stdout(slave.try_clone().unwrap())
        .stderr(slave);
    // Only the program has the terminal open when this returns.
    (command.spawn().unwrap(), master)
}

/// Its output, until `end` has made it exit.
fn on_a_terminal(
    it: &Installed,
    end: impl FnOnce(&Child, &mut File),
) -> (Option<i32>, Option<i32>, String) {
    let (mut child, mut master) = top_on_a_terminal(it, &[]);
    let mut said = String::new();
    let mut bytes = [0; 4096];
    let mut read = |master: &mut File, said: &mut String| match master.read(&mut bytes) {
        Ok(len) => said.push_str(&String::from_utf8_lossy(&bytes[..len])),
        // The slave side was closed.
        Err(_) => said.push('\0'),
    };
    while !said.contains("PROGRAM") {
        assert!(!said.contains('\0'), "{said}");
        read(&mut master, &mut said);
    }
    assert!(said.contains(ENTERED) && !said.contains(LEFT), "{said:?}");
    end(&child, &mut master);
    while !said.contains('\0') {
        read(&mut master, &mut said);
    }
    let status = child.wait().unwrap();
    (status.code(), status.signal(), said)
}

#[test]
fn the_terminal_is_restored_after_a_key_and_after_a_signal() {
    let it = Installed::new();
    for key in ["q", "\x03", "\x1b"] {
        let (code, _, said) = on_a_terminal(&it, |_, master| {
            master.write_all(key.as_bytes()).unwrap();
        });
        assert_eq!(code, Some(0), "{key:?}");
        assert!(said.contains(LEFT) && said.contains(SHOWN), "{said:?}");
    }
    for number in [libc::SIGTERM, libc::SIGHUP] {
        let (_, by, said) = on_a_terminal(&it, |child, _| signal(child, number));
        assert_eq!(by, Some(number));
        assert!(said.contains(LEFT) && said.contains(SHOWN), "{said:?}");
    }
}

#[test]
fn a_key_switches_from_tenants_to_streams() {
    let it = Installed::new();
    let (mut governed, _) = governed(&it);
    let (mut child, mut master) = top_on_a_terminal(&it, &["--by", "tenant"]);
    let mut bytes = [0; 4096];
    // Only differences are drawn: no letter of these words is in the same place.
    for (word, key) in [("TENANT", "v"), ("STREAM", "q")] {
        let mut said = String::new();
        while !said.contains(word) {
            let len = master.read(&mut bytes).unwrap();
            assert_ne!(len, 0, "{said}");
            said.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
        master.write_all(key.as_bytes()).unwrap();
    }
    // It restores the terminal.
    while master.read(&mut bytes).is_ok_and(|len| len > 0) {}
    assert_eq!(child.wait().unwrap().code(), Some(0));
    governed.stdin.take().unwrap().write_all(b"\n").unwrap();
    governed.wait().unwrap();
}
