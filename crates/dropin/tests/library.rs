//! Tests of the library as a client sees it: its symbols, its SONAME, and a C program over it.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use fercuda_cuda_sys::{ENTRIES, UNTYPED};

/// `libcuda.so` as cargo built it for this profile.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    let places = [
        deps.join("libcuda.so"),
        deps.parent().unwrap().join("libcuda.so"),
    ];
    places
        .into_iter()
        .find(|p| p.exists())
        .expect("cargo builds the library before this test")
}

fn u(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len]
        .iter()
        .rev()
        .fold(0, |n, &b| (n << 8) | b as usize)
}

/// (exported names, SONAME) of a 64-bit ELF library.
fn dynamic(path: &Path) -> (BTreeSet<String>, String) {
    let elf = std::fs::read(path).unwrap();
    let sections = u(&elf, 0x28, 8);
    let header = |i: usize| sections + i * u(&elf, 0x3A, 2);
    let text = |table: usize, at: usize| {
        let start = u(&elf, header(table) + 0x18, 8) + at;
        let end = start + elf[start..].iter().position(|&b| b == 0).unwrap();
        String::from_utf8(elf[start..end].to_vec()).unwrap()
    };
    let (mut names, mut soname) = (BTreeSet::new(), String::new());
    for i in 0..u(&elf, 0x3C, 2) {
        let h = header(i);
        let (kind, at, len, link) = (
            u(&elf, h + 4, 4),
            u(&elf, h + 0x18, 8),
            u(&elf, h + 0x20, 8),
            u(&elf, h + 0x28, 4),
        );
        match kind {
            11 => {
                for symbol in (at..at + len).step_by(24) {
                    // Defined, and global or weak.
                    if u(&elf, symbol + 6, 2) != 0 && u(&elf, symbol + 4, 1) >> 4 != 0 {
                        names.insert(text(link, u(&elf, symbol, 4)));
                    }
                }
            }
            6 => {
                for entry in (at..at + len).step_by(16) {
                    if u(&elf, entry, 8) == 14 {
                        soname = text(link, u(&elf, entry + 8, 8));
                    }
                }
            }
            _ => {}
        }
    }
    (names, soname)
}

#[test]
fn exactly_the_public_symbols_are_exported() {
    let (names, soname) = dynamic(&library());
    let mut wanted: BTreeSet<String> = UNTYPED.iter().map(|n| (*n).to_owned()).collect();
    for entry in ENTRIES {
        wanted.insert(entry.name.to_owned());
        wanted.extend(entry.per_thread.map(|t| t.0.to_owned()));
    }
    let missing: Vec<_> = wanted.difference(&names).collect();
    let extra: Vec<_> = names.difference(&wanted).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:?}, extra {extra:?}"
    );
    assert_eq!(soname, "libcuda.so.1");
}

/// Compiles and runs a C program against the library by its installed name.
fn run(name: &str, environment: &[(&str, &str)]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(library(), folder.path().join("libcuda.so.1")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name);
    let program = folder.path().join("program");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(cc)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(built.success());
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", folder.path())
        .env_remove("FERCUDA_SOFT_CHECK");
    command.envs(environment.iter().copied());
    command.output().unwrap()
}

#[test]
fn a_c_program_finds_launches_and_copies() {
    let out = run("vector.c", &[]);
    let (said, complained) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{said}\n{complained}");
    assert_eq!(said.trim(), "sum 4950");
}

#[test]
fn findings_are_printed_and_set_the_exit_code_if_configured() {
    let quiet = run("overrun.c", &[]);
    assert!(quiet.status.success());
    let out = run(
        "overrun.c",
        &[
            ("FERCUDA_SOFT_CHECK", "1"),
            ("FERCUDA_SOFT_CHECK_EXIT", "77"),
        ],
    );
    let complained = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(77), "{complained}");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("sum "), "what the program printed: {said}");
    assert!(
        complained.contains("out of bounds") && complained.contains("1 finding"),
        "{complained}"
    );
}

#[test]
fn a_report_file_receives_findings_in_place_of_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    std::fs::write(&file, "").unwrap();
    let out = run(
        "overrun.c",
        &[
            ("FERCUDA_SOFT_CHECK", "1"),
            ("FERCUDA_SOFT_CHECK_REPORT", file.to_str().unwrap()),
        ],
    );
    assert!(out.status.success());
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    // The second is of the running kernel, the last one replaces it.
    let [start, launches, running, finding] = lines[..] else {
        panic!("not four lines: {text}");
    };
    assert!(start.starts_with("{\"event\":\"start\","), "{start}");
    assert!(launches.ends_with("\"count\":1}"), "{launches}");
    for part in [
        "{\"event\":\"finding\",",
        "\"kind\":\"out of bounds\"",
        "\"kernel\":\"iota\"",
        "\"id\":0",
        "out of bounds: 4-byte global write",
    ] {
        assert!(running.contains(part), "{part} is not in {running}");
        assert!(finding.contains(part), "{part} is not in {finding}");
    }
    assert!(finding.contains("\"thread\":[100,0,0]"), "{finding}");
}
