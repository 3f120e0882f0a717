//! Environment of a governed program.

use std::collections::BTreeMap;
use std::fs;

use crate::{Installed, ended};

/// The environment of a program started with these options and variables.
fn environment(
    it: &Installed,
    options: &[&str],
    variables: &[(&str, &str)],
) -> BTreeMap<String, String> {
    let words = [options, &["--", "env"]].concat();
    let ended = ended(it.run(&words).envs(variables.iter().copied()));
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(ended.err, "");
    let lines = ended.out.lines();
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn a_program_gets_the_hook_the_driver_the_limits_and_framework_settings() {
    let it = Installed::new();
    let options = [
        "--limit",
        "1.5GiB",
        "--tenant",
        "torch=1GiB",
        "--tenant",
        "jax=512MB",
    ];
    let given = environment(&it, &options, &[]);
    let path = |name: &str| it.path(name).display().to_string();
    for (name, value) in [
        ("LD_PRELOAD", path("libfercuda_hook.so").as_str()),
        ("FERCUDA_DRIVER", &path("libcuda.so")),
        ("FERCUDA_LIMIT", "1536MiB"),
        ("FERCUDA_TENANT_LIMITS", "torch=1GiB,jax=500000KiB"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    ] {
        assert_eq!(given.get(name).map(String::as_str), Some(value), "{name}");
    }
    for name in [
        "FERCUDA_TRACE",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    ] {
        assert_eq!(given.get(name), None, "{name}");
    }
    let run: u64 = given["FERCUDA_RUN"].parse().unwrap();
    assert_ne!(run, 0);
    assert_eq!(it.loaded(), 1);
    // Each run has its own ID, shared by all its processes.
    let ended = ended(&mut it.run(&[
        "--",
        "sh",
        "-c",
        "echo $FERCUDA_RUN; sh -c 'echo $FERCUDA_RUN'",
    ]));
    let numbers: Vec<&str> = ended.out.lines().collect();
    assert_eq!(numbers.len(), 2);
    assert_eq!(numbers[0], numbers[1]);
    assert_ne!(numbers[0], run.to_string());
}

#[test]
fn pytorch_allocates_each_tensor_if_asked_to() {
    let it = Installed::new();
    let given = environment(&it, &["--pytorch", "async"], &[]);
    for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
        assert_eq!(given[name], "backend:cudaMallocAsync");
    }
}

#[test]
fn the_former_option_for_sharing_memory_is_accepted_and_changes_no_backing() {
    let it = Installed::new();
    let given = environment(&it, &["--ipc"], &[]);
    assert_eq!(given.get("FERCUDA_BACKING"), None);
    assert_eq!(given["XLA_PYTHON_CLIENT_PREALLOCATE"], "false");
    let help = ended(&mut it.run(&["--help"]));
    assert!(!help.out.contains("--ipc"), "{}", help.out);
}

#[test]
fn user_settings_are_kept() {
    let it = Installed::new();
    let other = it.compile("other.so", &["-shared", "-fPIC", "-x", "c"], "");
    let other = other.to_str().unwrap();
    let variables = [
        ("LD_PRELOAD", other),
        ("FERCUDA_DRIVER", "/somewhere/libcuda.so.1"),
        ("FERCUDA_LIMIT", "3GiB"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"),
    ];
    let given = environment(&it, &[], &variables);
    for (name, value) in &variables[1..] {
        assert_eq!(&given[*name], value, "{name}");
    }
    assert_eq!(given.get("PYTORCH_CUDA_ALLOC_CONF"), None);
    let hook = it.path("libfercuda_hook.so").display().to_string();
    assert_eq!(given["LD_PRELOAD"], format!("{hook}:{other}"));
    // An option takes precedence over a variable.
    let given = environment(&it, &["--limit", "1GiB", "--device", "soft"], &variables);
    assert_eq!(given["FERCUDA_LIMIT"], "1GiB");
    assert_eq!(
        given["FERCUDA_DRIVER"],
        it.path("libcuda.so").display().to_string()
    );
    // A nested run preloads the hook once.
    let fercuda = it.path("fercuda").display().to_string();
    let ended = ended(&mut it.run(&["--", &fercuda, "run", "--", "env"]));
    assert!(
        ended.out.contains(&format!("LD_PRELOAD={hook}\n")),
        "{}",
        ended.out
    );
}

#[test]
fn a_program_without_cuda_runs_unchanged_and_nothing_is_printed() {
    let it = Installed::new();
    let script = "read line; echo \"$0 $* $line\"; echo complaint >&2; exit 3";
    let input = it.path("input");
    std::fs::write(&input, "a line\n").unwrap();
    let mut command = it.run(&["sh", "-c", script, "--odd", "--limit", "x y"]);
    let ended = ended(command.stdin(std::fs::File::open(input).unwrap()));
    assert_eq!(ended.code, Some(3));
    assert_eq!(ended.out, "--odd --limit x y a line\n");
    assert_eq!(ended.err, "complaint\n");
}

#[test]
fn disabled_or_ungoverned_it_changes_nothing() {
    let it = Installed::new();
    for (options, variables) in [
        (&["--ungoverned"][..], &[][..]),
        (&[], &[("FERCUDA_DISABLE", "1")]),
    ] {
        let given = environment(&it, options, variables);
        for name in [
            "LD_PRELOAD",
            "FERCUDA_RUN",
            "FERCUDA_DRIVER",
            "PYTORCH_ALLOC_CONF",
        ] {
            assert_eq!(given.get(name), None, "{name}");
        }
    }
    assert_eq!(it.loaded(), 0);
}

#[test]
fn a_trace_path_is_relative_to_the_launchers_folder() {
    let it = Installed::new();
    let words = ["--trace", "trace.csv", "--", "env"];
    let given = ended(it.run(&words).current_dir(it.path("home"))).out;
    let line = format!("FERCUDA_TRACE={}\n", it.path("home/trace.csv").display());
    assert!(given.contains(&line), "{given}");
    let refused = ended(&mut it.run(&["--trace", "/nowhere/trace.csv", "--", "env"]));
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    let said = refused.err;
    assert!(
        said.contains("cannot write a trace to /nowhere/trace.csv"),
        "{said}"
    );
}

#[test]
fn disabled_it_keeps_the_device_and_refuses_what_needs_governing() {
    let it = Installed::new();
    it.compile("libcuda.so", &["-shared", "-fPIC", "-x", "c"], "");
    let off = [("FERCUDA_DISABLE", "1")];
    let given = environment(&it, &["--device", "soft"], &off);
    let driver = it.path("libcuda.so").display().to_string();
    assert_eq!(given.get("LD_PRELOAD"), Some(&driver));
    assert_eq!(given.get("FERCUDA_RUN"), None);
    for words in [
        &["--limit", "1G"][..],
        &["--tenant", "torch=1G"],
        &["--trace", "trace.csv"],
        &["--report"],
        &["--json", "report.json"],
    ] {
        let words = [words, &["--", "env"]].concat();
        let refused = ended(it.run(&words).env("FERCUDA_DISABLE", "1"));
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
        let said = refused.err;
        assert!(
            said.contains(words[0]) && said.contains("FERCUDA_DISABLE"),
            "{said}"
        );
        assert!(said.contains("\ntry: "), "{said}");
    }
}

#[test]
fn existing_files_are_kept_and_a_report_that_cannot_be_written_stops_the_run() {
    let it = Installed::new();
    for (option, name) in [("--trace", "old.csv"), ("--json", "old.json")] {
        let file = it.path(name);
        std::fs::write(&file, "old").unwrap();
        let path = file.to_str().unwrap();
        let refused = ended(&mut it.run(&[option, path, "--", "echo", "ran"]));
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
        let said = refused.err;
        assert!(
            said.contains("exists\ntry: --force, or another name"),
            "{said}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
        let forced = ended(&mut it.run(&[option, path, "--force", "--", "echo", "ran"]));
        assert_eq!(forced.out, "ran\n", "{}", forced.err);
        // The stub of the hook writes no trace.
        let now = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(!now.contains("old"), "{now}");
    }
    // Nor are the traces of further processes of an earlier run left beside the new one.
    let (trace, further, other) = (
        it.path("new.csv"),
        it.path("new.csv.77"),
        it.path("new.csv.78"),
    );
    std::fs::write(
        &further,
        "Thread,Time,Action,Pointer,Size,Stream,Device,Tenant\n",
    )
    .unwrap();
    std::fs::write(&other, "something else").unwrap();
    let words = ["--trace", trace.to_str().unwrap(), "--", "echo", "ran"];
    let refused = ended(&mut it.run(&words));
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    assert!(
        refused
            .err
            .contains("new.csv.77 is a trace of an earlier run"),
        "{}",
        refused.err
    );
    let forced = ended(&mut it.run(&[&["--force"], &words[..]].concat()));
    assert_eq!(forced.out, "ran\n", "{}", forced.err);
    assert!(!further.exists() && other.exists());
    // A link or a pipe is not removed for a trace, whatever is asked.
    let (link, target) = (it.path("link.csv"), it.path("target.csv"));
    std::fs::write(&target, "old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let pipe = it.path("pipe.csv");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for special in [&link, &pipe] {
        for force in [&[][..], &["--force"]] {
            let words = [
                &["--trace", special.to_str().unwrap()],
                force,
                &["--", "echo", "ran"],
            ];
            let refused = ended(&mut it.run(&words.concat()));
            assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
            assert!(
                refused.err.contains("is no regular file"),
                "{}",
                refused.err
            );
            assert!(!special.symlink_metadata().unwrap().is_file());
        }
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
    for file in ["/nowhere/report.json", "/"] {
        let refused = ended(&mut it.run(&["--json", file, "--", "echo", "ran"]));
        assert_eq!(
            (refused.code, refused.out.as_str()),
            (Some(2), ""),
            "{file}"
        );
    }
    let piped = ended(&mut it.run(&["--json", "-", "--", "echo", "ran"]));
    let report = piped.out.strip_prefix("ran\n").unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["status"], 0);
    // A double holds it exactly.
    assert!(report["run"].as_u64() < Some(1 << 53), "{report}");
    // The program itself is an input.
    let program = it.script("program", "#!/bin/sh\necho ran\n");
    let path = program.to_str().unwrap();
    let refused = ended(&mut it.run(&["--json", path, "--force", "--", path]));
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.err.contains("overwritten while it is read"),
        "{}",
        refused.err
    );
}

#[test]
fn a_program_of_transformers_gets_the_start_up_folder_first() {
    let it = Installed::new();
    let startup = it
        .path("packages")
        .join("fercuda_runtime/guest_hooks/startup");
    fs::create_dir_all(&startup).unwrap();
    fs::write(startup.join("sitecustomize.py"), "").unwrap();
    let package = it.path("packages");
    let variables = [("PYTHONPATH", package.to_str().unwrap())];
    let given = environment(&it, &["--hf"], &variables);
    let expected = format!("{}:{}", startup.display(), package.display());
    assert_eq!(given["PYTHONPATH"], expected);
    let given = environment(&it, &["--hf", "--ungoverned"], &variables);
    assert_eq!(given["PYTHONPATH"], expected);
    assert_eq!(given.get("FERCUDA_RUN"), None);
}

#[test]
fn a_python_without_the_package_is_refused_before_the_program_starts() {
    let it = Installed::new();
    let words = ["--hf", "--", "sh", "-c", "echo started"];
    let folder = it.path("none");
    fs::create_dir(&folder).unwrap();
    // A package of that name without the folder is not this one.
    fs::create_dir(folder.join("fercuda_runtime")).unwrap();
    let ended = ended(it.run(&words).env("PYTHONPATH", &folder));
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert_eq!(ended.out, "");
    assert!(
        ended
            .err
            .contains("--hf needs the package fercuda_runtime, which ")
    );
    assert!(ended.err.contains("try: "), "{}", ended.err);
}
