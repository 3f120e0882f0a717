//! Manners of the command line that all commands share: exit statuses, verbosity, files, variables,
//! completions and manual pages.

mod common;

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use common::remove_variables;

fn fercuda(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    remove_variables(&mut command, &["FERCUDA_"]);
    command.args(words).stdin(Stdio::null());
    command
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_CACHE", "");
    command
}

fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("fercuda starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn every_shell_has_a_completion_script_with_all_commands() {
    for (shell, mark) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef fercuda"),
        ("fish", "complete -c fercuda"),
        ("elvish", "edit:completion:arg-completer[fercuda]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let (status, out, err) = ended(&mut fercuda(&["completions", shell]));
        assert_eq!((status, err.as_str()), (Some(0), ""), "{shell}");
        assert!(out.contains(mark), "{shell}");
        for word in [
            "doctor",
            "replay",
            "umount",
            "tenant",
            "max-values",
            "show-plan",
        ] {
            assert!(out.contains(word), "{shell}: {word}");
        }
    }
    let bash = ended(&mut fercuda(&["completions", "bash"])).1;
    let mut shell = Command::new("bash");
    let mut shell = shell
        .args(["-n", "/dev/stdin"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("bash starts");
    let mut input = shell.stdin.take().expect("it has a standard input");
    input.write_all(bash.as_bytes()).expect("bash reads");
    drop(input);
    assert!(shell.wait().expect("bash ends").success());
    assert_eq!(ended(&mut fercuda(&["completions", "tcsh"])).0, Some(2));
}

#[test]
fn manual_pages_are_written_and_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("man1");
    let write = |words: &[&str]| {
        let mut command = fercuda(&["man", "--out"]);
        ended(command.arg(&out).args(words))
    };
    assert_eq!(write(&[]).0, Some(0));
    let page = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
    assert!(
        page("fercuda.1").starts_with(".ie "),
        "{}",
        page("fercuda.1")
    );
    let run = page("fercuda-run.1");
    for part in [
        ".TH",
        "limit",
        "Exit status: the program",
        "\\-\\-tenant torch=4GiB",
    ] {
        assert!(run.contains(part), "{part} in {run}");
    }
    assert!(page("fercuda-vram-mount.1").contains("scrub"));
    assert!(page("fercuda-ops-run.1").contains("gamma:bf16[1024]=ones"));
    // What a user never calls has no page.
    assert!(!out.join("fercuda-vram-kernels.1").exists());
    let (status, _, err) = write(&[]);
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("exists\ntry: --force"), "{err}");
    assert_eq!(
        write(&["--force", "-q"]),
        (Some(0), String::new(), String::new())
    );
}

#[test]
fn quiet_suppresses_notes_and_verbose_shows_steps() {
    let words = ["jit", "x + 1", "-i", "x:f32[8]", "--run"];
    let run = |more: &[&str]| ended(fercuda(more).args(words));
    let (status, plain, none) = run(&[]);
    assert_eq!((status, none.as_str()), (Some(0), ""));
    let (_, out, steps) = run(&["-v"]);
    assert!(out.contains("ran on"), "{out}");
    assert!(steps.contains("fercuda: device "), "{steps}");
    assert!(steps.contains("fercuda: code compiled"), "{steps}");
    assert!(plain.contains("ran on"), "{plain}");
    // After the command too, and not together.
    let (_, _, behind) = ended(fercuda(&words).arg("--verbose"));
    assert!(behind.contains("fercuda: device "), "{behind}");
    assert_eq!(run(&["-v", "-q"]).0, Some(2));
    // Errors and results stay.
    let (status, _, err) = run(&["-q", "--no-such-option"]);
    assert_eq!(status, Some(2), "{err}");
    let (status, _, err) = ended(&mut fercuda(&["-q", "jit", "x +", "-i", "x:f32[8]"]));
    assert_eq!(status, Some(2));
    assert!(err.contains("error: "), "{err}");
    // A program's own options are its own.
    let echo = ["run", "--ungoverned", "echo", "-v", "-q"];
    assert_eq!(ended(&mut fercuda(&echo)).1, "-v -q\n");
}

#[test]
fn a_misspelt_variable_is_reported_early_with_the_closest_name() {
    for words in [
        &["top", "--json"][..],
        &["doctor"],
        &["completions", "bash"],
    ] {
        // In halves, since the repository has no variable of that name.
        let slip = concat!("FERCUDA_", "DEVCIE");
        let (status, _, err) = ended(fercuda(words).env(slip, "soft"));
        assert_eq!(status, Some(0), "{err}");
        let first = err.lines().next().unwrap_or_default();
        assert!(first.starts_with("warning: "), "{err}");
        assert!(first.contains("try: FERCUDA_DEVICE"), "{err}");
        assert_eq!(err.matches(slip).count(), 1, "{err}");
    }
}

#[test]
fn an_invalid_setting_of_the_software_device_is_refused() {
    for (name, value, valid) in [
        ("FERCUDA_SOFT_MEMORY", "1MiB", "at least 2 MiB"),
        ("FERCUDA_SOFT_DEVICES", "17", "1 to 16"),
    ] {
        let (status, out, err) = ended(fercuda(&["demo"]).env(name, value));
        assert_eq!((status, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains(&format!("{name}={value}")), "{err}");
        assert!(err.contains(valid) && err.contains("\ntry: "), "{err}");
    }
    let (status, _, err) = ended(fercuda(&["doctor"]).env("FERCUDA_SOFT_MEMORY", "1MiB"));
    assert_eq!(status, Some(0), "{err}");
}

#[test]
fn usage_errors_end_with_2_in_every_command() {
    for words in [
        &["demo", "--no-such"][..],
        &["bench", "alloc", "--threads", "0"],
        &["vram", "mount", "/tmp", "--size", "lots"],
        &[
            "vram",
            "mount",
            "/tmp",
            "--size",
            "1G",
            "--uid",
            "no such user",
        ],
        &[
            "vram",
            "mount",
            "/tmp",
            "--foreground",
            "--size",
            "1G",
            "--ecc",
            "off",
            "--verify",
            "read",
        ],
        &["top", "--json", "--prometheus"],
        &["completions"],
        &["man"],
    ] {
        let (status, _, err) = ended(&mut fercuda(words));
        assert_eq!(status, Some(2), "{words:?}: {err}");
    }
    for words in [
        &["demo"][..],
        &["bench", "alloc"],
        &["jit", "--run", "x", "-i", "x:f32[1]"],
    ] {
        let (status, _, err) = ended(fercuda(words).env("FERCUDA_DEVICE", "tpu"));
        assert_eq!(status, Some(2), "{words:?}: {err}");
        assert!(err.contains("try: soft, gpu or auto"), "{err}");
    }
}

#[test]
fn a_size_error_names_the_accepted_forms() {
    for size in ["", "-1G", "8X", "17179869184G", "0"] {
        let size = format!("--limit={size}");
        let (status, _, err) = ended(&mut fercuda(&["run", &size, "--", "true"]));
        assert_eq!(status, Some(2), "{size}");
        assert!(err.contains("8GiB or 8G"), "{size}: {err}");
    }
}

/// A `python3` that has a folder of packages, with a wheel's library in it.
#[test]
fn what_the_hint_of_a_missing_library_installs_is_found() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let packages = folder.path().join("site-packages");
    let script = format!("#!/bin/sh\necho '{}'\n", packages.display());
    let python = folder.path().join("python3");
    fs::write(&python, script).expect("it is written");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("it is executable");
    let doctor = || {
        let mut command = fercuda(&["doctor", "--json"]);
        for name in [
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "LD_LIBRARY_PATH",
            "CUDA_HOME",
            "CUDA_PATH",
        ] {
            command.env_remove(name);
        }
        command
            .env("HOME", folder.path())
            .env_remove("XDG_DATA_HOME");
        let (status, out, err) = ended(command.env("PATH", folder.path()));
        assert_eq!(status, Some(0), "{err}");
        let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let items = report["items"].as_array().cloned().unwrap_or_default();
        let nccl = items.into_iter().find(|item| item["name"] == "NCCL");
        nccl.expect("it is listed")
    };
    let missing = doctor();
    if missing["found"] == false {
        assert_eq!(missing["hint"], "python3 -m pip install nvidia-nccl-cu13");
    }
    let lib = packages.join("nvidia/nccl/lib");
    fs::create_dir_all(&lib).expect("a folder");
    fs::write(lib.join("libnccl.so.2"), "").expect("a file");
    let found = doctor();
    assert_eq!(found["found"], true, "{found}");
    if missing["found"] == false {
        let place = lib.join("libnccl.so.2").display().to_string();
        assert_eq!(found["place"], place);
    }
}
