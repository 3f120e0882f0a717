//! `fercuda demo` with several libraries in one process: passing runs and failures.
//!
//! Runs over the libraries that cargo built for this test, on the software device. One test
//! needs a Python with cuda.core (`cargo xtask test` brings it), another a C compiler.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use common::remove_variables;

/// `fercuda demo` in a folder from which no Python is found.
struct Demo {
    folder: TempDir,
    command: Command,
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Demo {
    fn new() -> Demo {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
        let ours = [
            "FERCUDA_",
            "LD_PRELOAD",
            "NO_COLOR",
            "VIRTUAL_ENV",
            "PYTHON",
        ];
        remove_variables(&mut command, &ours);
        command
            .arg("demo")
            .current_dir(folder.path())
            .env("PATH", folder.path())
            .env("FERCUDA_DEVICE", "soft")
            .env("XDG_RUNTIME_DIR", run);
        Demo { folder, command }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&mut self) -> Ended {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command.output().unwrap();
        Ended {
            code: status.code(),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }
}

/// The environment of the Python with the test wheels.
fn environment() -> PathBuf {
    let named = std::env::var_os("FERCUDA_PYTHON").map(PathBuf::from);
    let environment = named.and_then(|python| Some(python.parent()?.parent()?.to_owned()));
    environment.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/venv"))
}

/// A library that cargo built for this test.
fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().join(name).canonicalize().unwrap()
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// The two figures in the last line, which shows that they are equal.
#[track_caller]
fn proof(out: &str) -> (u64, u64) {
    let line = out.lines().last().unwrap();
    let figures = line.strip_prefix("ungoverned = 0 B, reconciled with the driver: ");
    let figures = figures.unwrap_or_else(|| panic!("no proof in\n{out}"));
    let (ledger, driver) = figures.split_once(" = ").unwrap();
    let number = |text: &str| text.strip_suffix(" B").unwrap().parse().unwrap();
    (number(ledger), number(driver))
}

#[test]
fn without_python_our_two_libraries_are_tenants_and_the_last_line_reconciles() {
    let ended = Demo::new().run();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_contains(
        &ended.out,
        &[
            "One pool for 2 tenants in a process of our own",
            "fercuda      fercuda         2 steps of the tour right",
            "our runtime  fercuda_guest   ",
            "No Python here has cuda.core",
            "0 B live, fallback 0",
        ],
    );
    let (ledger, driver) = proof(&ended.out);
    assert_eq!(ledger, driver);
    // At least what both keep.
    assert!(ledger > 4 * 500_009, "{ledger}");
    let widest = ended.out.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{}", ended.out);
}

#[test]
fn with_python_cuda_core_our_runtime_and_ctypes_are_tenants() {
    let mut demo = Demo::new();
    demo.command.env("VIRTUAL_ENV", environment());
    let ended = demo.run();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_contains(
        &ended.out,
        &[
            "One pool for 3 tenants in a process of Python 3",
            "ctypes       python          8 copies right",
            "our runtime  fercuda_guest   ",
            "cuda.core    cuda.",
        ],
    );
    let (ledger, driver) = proof(&ended.out);
    assert_eq!(ledger, driver);

    demo.command.args(["--json", "--seed", "7"]);
    let ended = demo.run();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    let together = &report["together"];
    assert_eq!(report["passed"], true);
    assert_eq!(together["parts"].as_array().unwrap().len(), 3);
    assert_eq!(together["accounted_bytes"], together["driver_used_bytes"]);
    // The ledger itself is in the report, so its sums can be checked.
    let device = &together["holding"]["devices"][0];
    let governed = device["governed"].as_array().unwrap().iter();
    let governed: u64 = governed.map(|part| part["bytes"].as_u64().unwrap()).sum();
    let sum = device["pooled_bytes"].as_u64().unwrap() + governed;
    assert_eq!(together["driver_used_bytes"], sum);
    assert_eq!(together["ended"]["devices"][0]["live_bytes"], 0);
}

#[test]
fn a_program_without_its_libraries_names_what_is_missing_and_where_it_looked() {
    // As `cargo install` leaves it.
    let demo = Demo::new();
    let bin = demo.path("bin");
    fs::create_dir(&bin).unwrap();
    let alone = bin.join("fercuda");
    fs::copy(env!("CARGO_BIN_EXE_fercuda"), &alone).unwrap();
    let started = || {
        let mut command = Command::new(&alone);
        command.arg("demo").current_dir(demo.folder.path());
        command.env_clear().env("FERCUDA_DEVICE", "soft");
        command
            .env("XDG_RUNTIME_DIR", demo.path("run"))
            .output()
            .unwrap()
    };
    // In this order it reports what is missing.
    for (name, place) in [
        ("libfercuda_hook.so", "bin"),
        ("libfercuda_guest.so", "lib/fercuda"),
        ("libcuda.so", "lib/fercuda"),
    ] {
        let Output {
            status,
            stdout,
            stderr,
        } = started();
        let (out, err) = (
            String::from_utf8(stdout).unwrap(),
            String::from_utf8(stderr).unwrap(),
        );
        assert_eq!(status.code(), Some(1), "{err}");
        assert_contains(&out, &["All results are within their error bounds."]);
        let bin = bin.canonicalize().unwrap();
        assert_contains(
            &err,
            &[
                &format!("cannot find {name}, which is installed beside fercuda"),
                &format!("not at {}", bin.join(name).display()),
                &format!("not at {}", bin.join("../lib/fercuda").join(name).display()),
                "try: cargo xtask dist",
            ],
        );
        let folder = demo.path(place);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(built(name), folder.join(name)).unwrap();
    }
    assert!(started().status.success());
}

#[test]
fn memory_allocated_behind_the_hook_fails_the_demo() {
    for (mib, said) in [
        (
            "16",
            "16.0 MiB are charged as code, which uses none on this device",
        ),
        // More than code could take on any device.
        (
            "512",
            "ungoverned: 256.0 MiB are used and not accounted for",
        ),
    ] {
        let mut demo = Demo::new();
        let library = demo.path("behind.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/behind.c");
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut compile = Command::new(cc);
        compile
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl");
        assert!(compile.status().unwrap().success());
        // The driver under another name.
        symlink(built("libcuda.so"), demo.path("innocent.so")).unwrap();
        let innocent = demo.path("innocent.so");
        demo.command
            .env("LD_PRELOAD", library)
            .env("BEHIND_DRIVER", innocent)
            .env("BEHIND_MIB", mib);
        let ended = demo.run();
        assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
        assert_contains(&ended.out, &["ungoverned = ", said]);
    }
}

#[test]
fn a_process_that_fails_or_prints_garbage_fails_the_demo_with_its_output() {
    for (script, said) in [
        (
            "echo 'a dreadful complaint' >&2; exit 3",
            &[
                "failed with status 3",
                "a dreadful complaint",
                "it ended too early",
            ][..],
        ),
        ("echo what; read line", &["unexpected message \"what\""]),
        (
            "echo '\"holding\"'; read line; echo '\"done\"'",
            &["it left 0 ledgers for the device, not 1"],
        ),
    ] {
        let mut demo = Demo::new();
        fs::create_dir(demo.path("bin")).unwrap();
        let python = demo.path("bin/python");
        let answer = format!(
            "{{\"executable\": \"{}\", \"version\": \"3.99\", \"has\": [\"cuda.core\"]}}",
            python.display()
        );
        // Without FERCUDA_RUN it lists its packages; the process with the tenants is
        // started with FERCUDA_RUN set.
        let text = format!(
            "#!/bin/sh\nif [ -z \"$FERCUDA_RUN\" ]; then echo '{answer}'; exit; fi\n{script}\n"
        );
        fs::write(&python, text).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let here = demo.folder.path().to_owned();
        let ended = demo.command.env("VIRTUAL_ENV", here);
        let Output { status, stderr, .. } = ended.output().unwrap();
        let err = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{err}");
        assert_contains(&err, said);
        assert_contains(&err, &["several libraries in one process"]);
    }
}
