//! Programs and settings that are refused, and their error messages.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::{Installed, assert_contains, ended};

#[test]
fn a_static_program_is_refused_with_the_reason_and_runs_ungoverned() {
    let it = Installed::new();
    let program = it.static_program();
    let program = program.to_str().unwrap();
    let refused = ended(&mut it.run(&["--", program]));
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    assert_contains(
        &refused.err,
        &[
            &format!("error: cannot govern {program}: it is statically linked"),
            "try: --ungoverned",
        ],
    );
    assert_eq!(
        ended(&mut it.run(&["--ungoverned", "--", program])).code,
        Some(5)
    );

    let script = it.script("script", &format!("#!{program}\n"));
    let script = script.to_str().unwrap();
    let refused = ended(&mut it.run(&["--", script]));
    assert_eq!(refused.code, Some(2));
    assert_contains(
        &refused.err,
        &[&format!(
            "cannot govern {script}: it is run by {program}, which is statically"
        )],
    );
}

#[test]
fn a_set_user_id_program_of_another_user_is_refused() {
    let it = Installed::new();
    let root = fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
    // Root can make one; other users rely on the system's `su`.
    let program = if root.unwrap() == 0 {
        let copy = it.path("copy");
        fs::copy("/bin/true", &copy).unwrap();
        std::os::unix::fs::chown(&copy, Some(1), Some(1)).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
        copy.display().to_string()
    } else {
        "su".to_owned()
    };
    let refused = ended(&mut it.run(&["--", &program]));
    assert_eq!(refused.code, Some(2));
    assert_contains(&refused.err, &["it is set-user-ID", "try: run it as user "]);
}

#[test]
fn a_missing_or_non_executable_program_ends_as_in_a_shell() {
    let it = Installed::new();
    let plain = it.path("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    for options in [&[][..], &["--report"], &["--ungoverned"]] {
        for (program, code, why) in [
            ("no-such-program", 127, "it is not in PATH"),
            ("/no/such/program", 127, "No such file"),
            (plain.to_str().unwrap(), 126, "Permission denied"),
            ("/", 126, "it is a directory"),
        ] {
            let ended = ended(&mut it.run(&[options, &["--", program]].concat()));
            assert_eq!(ended.code, Some(code), "{program} {}", ended.err);
            let start = format!("error: cannot start {program}");
            assert_contains(&ended.err, &[&start, why]);
        }
    }
    // Only the system finds a missing interpreter.
    let script = it.script("orphan", "#!/no/such/interpreter\n");
    for options in [&[][..], &["--report"]] {
        let ended = ended(&mut it.run(&[options, &["--", script.to_str().unwrap()]].concat()));
        assert_eq!(ended.code, Some(127), "{}", ended.err);
    }
}

#[test]
fn an_invalid_value_is_refused_from_an_option_or_a_variable() {
    let it = Installed::new();
    for (words, said) in [
        (&["--limit", "8X"][..], "its unit is not one of B, K"),
        (&["--limit", "0"], "less than 1 byte"),
        (&["--tenant", "torch"], "is not NAME=SIZE"),
        (&["--device", "tpu"], "possible values: auto, gpu, soft"),
        (&["--ungoverned", "--limit", "1GiB"], "cannot be used with"),
    ] {
        let refused = ended(&mut it.run(&[words, &["--", "true"]].concat()));
        assert_eq!(refused.code, Some(2), "{words:?}");
        assert_contains(&refused.err, &[said]);
    }
    let twice = ["--tenant", "a=1GiB", "--tenant", "a=2GiB", "--", "true"];
    let refused = ended(&mut it.run(&twice));
    assert_eq!(refused.code, Some(2));
    assert_contains(
        &refused.err,
        &["a is limited twice, to 1GiB and to 2GiB", "try: one limit"],
    );
    for (name, value, said) in [
        (
            "FERCUDA_LIMIT",
            "lots",
            "FERCUDA_LIMIT=\"lots\": it does not begin with a number",
        ),
        // Split in two, since there is no such variable.
        (
            concat!("FERCUDA_", "LIMT"),
            "8GiB",
            "try: FERCUDA_LIMIT, or unset it",
        ),
    ] {
        let refused = ended(it.run(&["--", "true"]).env(name, value));
        assert_eq!(refused.code, Some(2), "{name}");
        assert_contains(&refused.err, &[said]);
    }
}

#[test]
fn without_its_hook_it_reports_where_it_looked() {
    let it = Installed::new();
    fs::remove_file(it.path("libfercuda_hook.so")).unwrap();
    // `deps` is a place in cargo's output folder alone, which has this one.
    fs::create_dir(it.path(".fingerprint")).unwrap();
    let refused = ended(&mut it.run(&["--", "true"]));
    assert_eq!(refused.code, Some(2));
    let deps = it.path("deps/libfercuda_hook.so").display().to_string();
    assert_contains(
        &refused.err,
        &[
            "cannot find libfercuda_hook.so",
            &deps,
            "lib/fercuda/libfercuda_hook.so",
            "try: cargo xtask dist",
            "cargo install leaves libraries out",
        ],
    );
    // The hook is found in each of these folders.
    for place in ["deps", "../lib/fercuda"] {
        let folder = it.path(place);
        let outside = place.starts_with("..");
        if outside {
            // The parent folder is shared, so this installation moves down.
            fs::create_dir_all(it.path("prefix/bin")).unwrap();
            fs::create_dir_all(it.path("prefix/lib/fercuda")).unwrap();
            fs::rename(it.path("fercuda"), it.path("prefix/bin/fercuda")).unwrap();
            fs::write(it.path("prefix/lib/fercuda/libcuda.so"), "").unwrap();
            let hook = it.path("prefix/lib/fercuda/libfercuda_hook.so");
            fs::copy(it.path("deps/libfercuda_hook.so"), hook).unwrap();
            let status = std::process::Command::new(it.path("prefix/bin/fercuda"))
                .args(["run", "--device", "soft", "--", "true"])
                .status();
            assert!(status.unwrap().success());
        } else {
            fs::create_dir(&folder).unwrap();
            it.compile(
                "deps/libfercuda_hook.so",
                &["-shared", "-fPIC", "-x", "c"],
                "",
            );
            // It is newer than the copy beside the program.
            fs::write(it.path("libfercuda_hook.so"), "old").unwrap();
            let given = ended(&mut it.run(&["--", "env"]));
            assert_contains(&given.out, &[&format!("LD_PRELOAD={deps}\n")]);
        }
    }
}
