//! `fercuda check -- PROGRAM`: C and Python programs over the software device, and the reports of
//! what their kernels did.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

use common::remove_variables;

/// A library as cargo built it for this profile.
fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().join(name)
}

/// `programs/checked.c`, linked to `libcuda.so.1`, which the loader does not find by itself.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/checked.c");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = folder.join("checked");
        let draft = folder.join(format!("checked.{}", std::process::id()));
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut compile = Command::new(cc);
        compile.args(["-O1", "-o"]).arg(&draft).arg(source);
        compile.arg(built("libcuda.so"));
        assert!(compile.status().unwrap().success());
        fs::rename(&draft, &program).unwrap();
        program
    });
    &PROGRAM
}

/// nvcc of the wheels that `FERCUDA_WHEELS` names, if there are any and it can be run.
fn nvcc() -> Option<PathBuf> {
    let named = PathBuf::from(std::env::var_os("FERCUDA_WHEELS")?);
    let pythons = named.join("lib").read_dir().into_iter().flatten().flatten();
    let of_environment = pythons.map(|it| it.path().join("site-packages/nvidia"));
    let mut wheels = of_environment.chain([named]);
    let nvcc = wheels.find(|it| it.is_dir())?.join("cu13/bin/nvcc");
    let mode = fs::metadata(&nvcc).ok()?.permissions().mode();
    (mode & 0o111 != 0).then_some(nvcc)
}

/// `overrun.cu` of the runtime library's tests, with the runtime library linked in this way.
fn program_of_nvcc(nvcc: &Path, runtime: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let links = folder.join(format!("nvcc-{runtime}.{}", std::process::id()));
    fs::create_dir_all(&links).unwrap();
    let nvidias = nvcc.parent().unwrap().join("../lib");
    for (name, target) in [
        ("libcudart.so", built("libcudart.so")),
        ("libcudart_static.a", nvidias.join("libcudart_static.a")),
        ("libcudadevrt.a", nvidias.join("libcudadevrt.a")),
    ] {
        std::os::unix::fs::symlink(target, links.join(name)).unwrap();
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cudart/tests/programs/overrun.cu");
    let program = links.join("program");
    let mut compile = Command::new(nvcc);
    compile.args(["-cudart", runtime, "-lineinfo", "-gencode"]);
    compile
        .arg("arch=compute_90,code=compute_90")
        .arg("-L")
        .arg(&links);
    compile.arg("-o").arg(&program).arg(source);
    assert!(compile.status().unwrap().success());
    program
}

struct CheckRun {
    code: Option<i32>,
    signal: Option<i32>,
    out: String,
    err: String,
}

/// `fercuda check` in a folder of its own, which is also the one for temporary files.
struct Checker {
    folder: tempfile::TempDir,
}

impl Checker {
    fn new() -> Checker {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        Checker { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command<W: AsRef<OsStr>>(&self, words: &[W]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
        let ours = ["FERCUDA_", "PYTORCH_", "XLA_", "LD_PRELOAD", "NO_COLOR"];
        remove_variables(&mut command, &ours);
        command
            .arg("check")
            .args(words)
            .env("TMPDIR", self.path("tmp"))
            .env("HOME", self.folder.path())
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn finish(&self, command: &mut Command) -> CheckRun {
        let output = command.output().unwrap();
        // However the program ended, nothing is left.
        assert_eq!(fs::read_dir(self.path("tmp")).unwrap().count(), 0);
        CheckRun {
            code: output.status.code(),
            signal: output.status.signal(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Checks the C program with these words.
    fn check(&self, words: &str) -> CheckRun {
        self.check_with(&[], words)
    }

    fn check_with(&self, options: &[&str], words: &str) -> CheckRun {
        let mut all: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        all.extend([OsStr::new("--"), program().as_os_str()]);
        all.extend(words.split_whitespace().map(OsStr::new));
        self.finish(&mut self.command(&all))
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn findings_are_reported_on_stderr_and_end_with_1() {
    let run = Checker::new().check("overruns a complain");
    assert_eq!(
        (run.code, run.out.as_str()),
        (Some(1), "[a]"),
        "{}",
        run.err
    );
    assert_contains(
        &run.err,
        &[
            "out of bounds: 4-byte global write",
            "kernel: iota, PTX line",
            "source: iota.cu:7",
            "thread: (100,0,0) of block (0,0,0)",
            "0 bytes past the end of device allocation",
            "a complaint\n",
            "checked: 1 finding in 1 kernel launch\n",
        ],
    );
    // The device prints none of it by itself.
    assert_eq!(run.err.matches("out of bounds").count(), 1, "{}", run.err);
    assert!(!run.err.contains("feRcuda: "), "{}", run.err);
}

#[test]
fn a_clean_program_has_its_own_streams_words_and_status() {
    let it = Checker::new();
    let words = ["--", "copy", "fits", "-v", "--json", "exit=5"].map(OsStr::new);
    let mut command = it.command(&[&words[..1], &[program().as_os_str()], &words[1..]].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"input\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "input\n[-v][--json]"
    );
    let err = String::from_utf8_lossy(&output.stderr);
    assert_contains(
        &err,
        &["no findings in 1 kernel launch; it ended with status 5\n"],
    );
    let run = it.check("fits");
    assert_eq!(run.code, Some(0));
    assert_contains(
        &run.err,
        &["ok: ", "checked: no findings in 1 kernel launch\n"],
    );
}

#[test]
fn findings_survive_any_end_of_the_program() {
    let it = Checker::new();
    for words in [
        "overruns exit=0",
        "overruns _exit=0",
        "overruns exit=7",
        "overruns abort",
        "overruns exec fits",
        "fork overruns",
        "fork overruns _exit=3",
        "fork overruns abort",
        "close overruns",
        // Nothing waits for the kernel.
        "endless kill",
        "endless sleep _exit=0",
        "endless sleep exit=0",
    ] {
        let run = it.check(words);
        assert_eq!(run.code, Some(1), "{words}: {}", run.err);
        let seen = run.err.matches("out of bounds: ").count();
        assert_eq!(seen, 1, "{words}: {}", run.err);
        assert_contains(&run.err, &["checked: 1 finding in "]);
    }
}

#[test]
fn leaks_are_named_by_their_place_and_change_no_status_unless_asked() {
    let it = Checker::new();
    let silent = it.check("leaks fits");
    assert_eq!(silent.code, Some(0), "{}", silent.err);
    assert!(!silent.err.contains("leaked"), "{}", silent.err);
    let run = it.check_with(&["--leaks"], "fits leaks");
    assert_eq!(run.code, Some(0), "{}", run.err);
    let calls = [
        "1 block, 2048 bytes in all, not freed before the program ended\n   driver: cuMemAllocPitch",
        "1 block, 5000 bytes in all, not freed before the program ended\n   driver: cuMemAllocManaged",
        "1 block, 6000 bytes in all, not freed before the program ended\n   driver: cuMemAllocAsync",
        "1 block, 7000 bytes in all, not freed before the program ended\n   driver: cuMemHostAlloc",
        "1 block, 2097152 bytes in all, not freed before the program ended\n   driver: cuMemCreate",
        "3 blocks, 3000 bytes in all, not freed before the program ended\n   driver: cuMemAlloc_v2, called from checked+0x",
        "1 block, 400 bytes in all, not freed before the program ended\n   driver: cuMemAlloc_v2, called from checked+0x",
        "checked: 7 leaks in 1 kernel launch",
    ];
    assert_contains(&run.err, &calls);
    let freed = it.check_with(&["--leaks=fail"], "frees");
    assert_eq!(freed.code, Some(0), "{}", freed.err);
    assert!(!freed.err.contains("leaked"), "{}", freed.err);
    let failed = it.check_with(&["--leaks=fail"], "fits");
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    assert_contains(
        &failed.err,
        &["found: ", "checked: 1 leak in 1 kernel launch"],
    );
}

#[test]
fn memory_that_goes_with_its_context_is_leaked_and_a_pool_s_is_not() {
    let it = Checker::new();
    let run = it.check_with(&["--leaks", "--json=leaks.json"], "leaks fits destroy");
    let report = it.json("leaks.json");
    assert_eq!((run.code, &report["passed"]), (Some(0), &true.into()));
    let findings = report["findings"].as_array().unwrap();
    let ended = |end: &str| {
        let texts = findings.iter().map(|it| it["text"].as_str().unwrap());
        texts.filter(|text| text.contains(end)).count()
    };
    assert_eq!(
        findings
            .iter()
            .filter(|it| it["kind"] == "leaked memory")
            .count(),
        7
    );
    assert_eq!(
        (ended("its context ended"), ended("the program ended")),
        (5, 2)
    );
}

#[test]
fn a_program_that_a_signal_ends_ends_fercuda_by_it() {
    let run = Checker::new().check("fits abort");
    assert_eq!((run.code, run.signal), (None, Some(libc::SIGABRT)));
    assert_contains(
        &run.err,
        &[
            "failed: ",
            "no findings in 1 kernel launch; it was ended by signal 6\n",
        ],
    );
}

#[test]
fn a_program_without_kernels_is_noted() {
    let it = Checker::new();
    for words in ["only words", "init"] {
        let run = it.check(words);
        assert_eq!(run.code, Some(0));
        assert_contains(
            &run.err,
            &["note: ", "no kernel ran, so nothing was checked\n"],
        );
        assert!(!run.err.contains("ok:"), "{}", run.err);
    }
    assert_eq!(it.check("exit=4").code, Some(4));
    let quiet = it.check_with(&["-q"], "init");
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
}

#[test]
fn equal_findings_of_all_processes_are_counted_once() {
    let it = Checker::new();
    let script = format!("p={}; $p often; $p overruns; $p fits", program().display());
    let run = it.finish(&mut it.command(&["--json=report.json", "--", "sh", "-c", &script]));
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert_contains(
        &run.err,
        &[
            "   seen 101 times\n   processes: ",
            "sh: 1 finding in 102 kernel launches\n",
        ],
    );
    let report = it.json("report.json");
    assert_eq!(report["processes"].as_array().unwrap().len(), 3);
    assert_eq!(report["processes"][0]["launches"], 100);
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
    let finding = &report["findings"][0];
    assert_eq!(finding["count"], 101);
    assert_eq!(finding["processes"].as_array().unwrap().len(), 2);
    assert_eq!(finding["kind"], "out of bounds");
    assert_eq!(finding["kernel"], "iota");
    assert_eq!(finding["source"], "kernels/iota.cu:7");
    assert_eq!(finding["thread"], serde_json::json!([100, 0, 0]));
    assert_eq!(
        (&report["passed"], &report["complete"]),
        (&false.into(), &true.into())
    );
    assert_eq!(report["status"], 0);
}

#[test]
fn a_fault_is_reported_once_and_a_kernel_that_is_not_implemented_is_no_finding() {
    let it = Checker::new();
    let run = it.check_with(&["--json=trap.json"], "trap");
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert_contains(
        &run.err,
        &[
            "trap\n   kernel: stop",
            "checked: 1 fault in 1 kernel launch",
        ],
    );
    assert_eq!(run.err.matches("kernel: stop").count(), 1, "{}", run.err);
    assert_eq!(it.json("trap.json")["faults"][0]["kind"], "trap");

    let run = it.check_with(&["--json=foreign.json", "--sarif=foreign.sarif"], "foreign");
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert_contains(
        &run.err,
        &[
            "not implemented on the software device: tex.2dms",
            "incomplete: ",
            "not all checked",
        ],
    );
    let report = it.json("foreign.json");
    assert_eq!(report["not_checked"].as_array().unwrap().len(), 1);
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    let sarif = it.json("foreign.sarif");
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 0);
    let invocation = &sarif["runs"][0]["invocations"][0];
    assert_eq!(invocation["executionSuccessful"], false);
    // A finding beside it is one.
    assert_eq!(it.check("overruns foreign").code, Some(1));
}

#[test]
fn a_kernel_that_does_not_end_is_stopped_after_the_timeout() {
    let run = Checker::new().check_with(&["--timeout=300ms"], "endless wait");
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert_contains(
        &run.err,
        &[
            "watchdog's 300 ms",
            "1 finding and 1 fault in 1 kernel launch",
        ],
    );
}

#[test]
fn a_process_that_outlives_the_program_is_named_and_prints_its_findings() {
    let run = Checker::new().check("leave fits go outlive overruns");
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert_contains(
        &run.err,
        &[
            "no findings in 1 kernel launch\n",
            "warning: processes of the program still run (",
            "feRcuda: out of bounds: 4-byte global write",
        ],
    );
    // One that has not called the driver before.
    let run = Checker::new().check("leave go outlive overruns");
    assert_contains(&run.err, &["no kernel ran", "feRcuda: out of bounds: "]);
}

#[test]
fn a_report_that_the_program_spoils_or_removes_is_no_success() {
    let it = Checker::new();
    let shell = |script: &str| {
        let script = script.replace("PROGRAM", program().to_str().unwrap());
        it.finish(&mut it.command(&["--", "sh", "-c", &script]))
    };
    let run = shell("echo garbage >> $FERCUDA_SOFT_CHECK_REPORT; PROGRAM fits");
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert_contains(
        &run.err,
        &[
            "incomplete: ",
            "no findings in 1 kernel launch, not all checked",
            "warning: 1 line of the processes' reports cannot be read",
        ],
    );
    // What was cut short spoils no other line.
    let run = shell("printf '{\"event\":' >> $FERCUDA_SOFT_CHECK_REPORT; PROGRAM overruns");
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert_contains(
        &run.err,
        &["1 finding in 1 kernel launch", "warning: 1 line"],
    );
    let run = shell("rm $FERCUDA_SOFT_CHECK_REPORT; PROGRAM overruns");
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert_contains(
        &run.err,
        &[
            "feRcuda: cannot write findings to ",
            "feRcuda: out of bounds: ",
            "error: cannot read the report",
        ],
    );
    // Nothing is written through a link, and a pipe without a reader is not waited for.
    let run = shell(
        "r=$FERCUDA_SOFT_CHECK_REPORT; rm $r; mkfifo $r; PROGRAM fits; \
         rm $r; : > kept; ln -s $PWD/kept $r; PROGRAM overruns; exit 7",
    );
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert_eq!(fs::read(it.path("kept")).unwrap(), b"");
}

#[test]
fn sarif_has_the_source_line_and_what_the_schema_requires() {
    let it = Checker::new();
    let run = it.check_with(&["--sarif", "out.sarif"], "overruns trap exit=3");
    assert_eq!(run.code, Some(1), "{}", run.err);
    // Text too.
    assert_contains(
        &run.err,
        &[
            "out of bounds: ",
            "1 finding and 1 fault in 2 kernel launches; it ended with status 3\n",
        ],
    );
    let log = it.json("out.sarif");
    assert_eq!(log["version"], "2.1.0");
    assert!(
        log["$schema"]
            .as_str()
            .unwrap()
            .ends_with("sarif-2.1.0.json")
    );
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "fercuda");
    assert_eq!(run["invocations"][0]["exitCode"], 3);
    assert_eq!(run["invocations"][0]["executionSuccessful"], true);
    let results = run["results"].as_array().unwrap();
    let ids: Vec<&str> = results
        .iter()
        .map(|it| it["ruleId"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["out-of-bounds", "trap"]);
    for result in results {
        let rule = &driver["rules"][result["ruleIndex"].as_u64().unwrap() as usize];
        assert_eq!(rule["id"], result["ruleId"]);
        assert_eq!(result["level"], "error");
        assert!(!result["message"]["text"].as_str().unwrap().is_empty());
    }
    let location = &results[0]["locations"][0];
    let physical = &location["physicalLocation"];
    assert_eq!(physical["artifactLocation"]["uri"], "kernels/iota.cu");
    assert_eq!(physical["region"]["startLine"], 7);
    let names = |result: &Value| {
        let location = &result["locations"][0]["logicalLocations"][0];
        location["fullyQualifiedName"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (names(&results[0]), names(&results[1])),
        ("iota".into(), "stop".into())
    );
}

#[test]
fn a_report_on_stdout_takes_the_place_of_text() {
    let it = Checker::new();
    let run = it.check_with(&["--json"], "overruns");
    assert_eq!((run.code, run.err.as_str()), (Some(1), ""));
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
    let run = it.check_with(&["--sarif", "-"], "fits");
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let log: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(log["runs"][0]["results"].as_array().unwrap().len(), 0);
}

#[test]
fn existing_files_stay_without_force_and_the_program_is_never_replaced() {
    let it = Checker::new();
    fs::write(it.path("kept"), "kept").unwrap();
    for option in ["--json=kept", "--sarif=kept"] {
        let run = it.check_with(&[option], "a");
        // Refused before the program starts.
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
        assert_contains(&run.err, &["kept exists", "try: --force, or another name"]);
    }
    assert_eq!(fs::read_to_string(it.path("kept")).unwrap(), "kept");
    assert_eq!(
        it.check_with(&["--json=kept", "--force"], "a").code,
        Some(0)
    );
    assert_eq!(it.json("kept")["passed"], true);
    let same = it.check_with(&["--json=x", "--sarif=./x"], "a");
    assert_contains(&same.err, &["x and ./x are one file"]);
    let copy = it.path("copy");
    fs::copy(program(), &copy).unwrap();
    let run = it.finish(&mut it.command(&["--sarif=copy", "--force", "--", "./copy"]));
    assert_eq!(run.code, Some(2));
    assert_contains(&run.err, &["copy would be overwritten while it is read"]);
}

#[test]
fn a_program_that_cannot_be_started_ends_as_in_a_shell() {
    let it = Checker::new();
    for (name, code, said) in [
        ("./nowhere", 127, "cannot start ./nowhere: No such file"),
        ("no-such-program", 127, "it is not in PATH"),
        ("/", 126, "it is a directory"),
    ] {
        let run = it.finish(&mut it.command(&["--", name]));
        assert_eq!(run.code, Some(code), "{}", run.err);
        assert_contains(&run.err, &[said]);
    }
    let text = it.path("text");
    fs::write(&text, "neither").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    let run = it.finish(&mut it.command(&["--", "./text"]));
    assert_eq!(run.code, Some(2));
    assert_contains(
        &run.err,
        &[
            "cannot check ./text: it is neither",
            "fercuda check -- sh FILE",
        ],
    );
}

#[test]
fn a_program_without_two_hyphens_is_answered_with_them() {
    let it = Checker::new();
    let name = program().to_str().unwrap();
    for words in [
        &[name][..],
        &[name, "a", "b"],
        &["--json", name, "--epochs", "3"],
        &[name, "--grid", "1", "--block", "1"],
        &["sh", "-c", "true"],
    ] {
        let run = it.finish(&mut it.command(words));
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{words:?}");
        assert_contains(&run.err, &["is a program", "try: fercuda check -- "]);
    }
    // Options of a kernel do not go with a program.
    let run = it.finish(&mut it.command(&["--grid", "1", "--", name]));
    assert_eq!(run.code, Some(2));
    assert_contains(&run.err, &["cannot be used with"]);
}

#[test]
fn settings_of_the_user_do_not_change_the_check() {
    let it = Checker::new();
    let words = [
        OsStr::new("--"),
        program().as_os_str(),
        OsStr::new("overruns"),
    ];
    let run = it.finish(
        it.command(&words)
            .env("FERCUDA_SOFT_CHECK", "0")
            .env("FERCUDA_SOFT_CHECK_EXIT", "77")
            .env("FERCUDA_DEVICE", "gpu")
            .env("FERCUDA_DRIVER", "/nowhere/libcuda.so.1"),
    );
    assert_eq!(run.code, Some(1), "{}", run.err);
    let json = [OsStr::new("--json")];
    let run = it.finish(
        it.command(&[&json[..], &words].concat())
            .env("FERCUDA_SOFT_CHECK_EXIT", "77"),
    );
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["status"], 0);
}

#[test]
fn a_path_for_temporary_files_need_not_be_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let it = Checker::new();
    let odd = it.folder.path().join(OsStr::from_bytes(b"odd \xff"));
    fs::create_dir(&odd).unwrap();
    let words = [
        OsStr::new("--"),
        program().as_os_str(),
        OsStr::new("overruns"),
    ];
    let run = it.finish(it.command(&words).env("TMPDIR", &odd));
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert_contains(&run.err, &["checked: 1 finding in 1 kernel launch"]);
    assert_eq!(fs::read_dir(&odd).unwrap().count(), 0);
}

#[test]
fn a_program_under_the_pool_is_checked_too() {
    let it = Checker::new();
    let fercuda = Path::new(env!("CARGO_BIN_EXE_fercuda")).as_os_str();
    let inner = ["run", "--"].map(OsStr::new);
    let mut words = vec![OsStr::new("--"), fercuda];
    words.extend(inner);
    words.extend([program().as_os_str(), OsStr::new("trap")]);
    let run = it.finish(&mut it.command(&words));
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert_contains(
        &run.err,
        &[
            "trap\n   kernel: stop",
            "fercuda: 1 fault in 1 kernel launch",
        ],
    );
}

/// A Python program over the driver, by ctypes.
const PYTHON: &str = r#"
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
memory = ctypes.c_uint64()
ptx = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry read(.param .u64 p)
{
  .reg .b64 %a; .reg .b32 %v;
  ld.param.u64 %a, [p];
  ld.global.u32 %v, [%a];
  st.global.u32 [%a], %v;
  ret;
}
"""
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuModuleLoadData", ctypes.byref(module), ptx)
call("cuModuleGetFunction", ctypes.byref(function), module, b"read")
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64))
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
call("cuCtxSynchronize")
print("done", *sys.argv[1:])
"#;

#[test]
fn a_python_program_is_checked() {
    let it = Checker::new();
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    fs::write(it.path("read.py"), PYTHON).unwrap();
    let run = it.finish(&mut it.command(&["--", &python, "read.py", "--epochs", "3"]));
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert_eq!(run.out, "done --epochs 3\n");
    assert_contains(
        &run.err,
        &["uninitialised read: 4-byte global read", "1 finding in 1"],
    );
}

#[test]
fn a_kernel_s_sarif_has_lines_of_its_ptx() {
    let it = Checker::new();
    let text = "\
        .version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry w(.param .u64 p)\n{\n  .reg .b64 %a;\n  ld.param.u64 %a, [p];\n\
        st.global.u32 [%a+400], 1;\n  ret;\n}\n";
    fs::write(it.path("w.ptx"), text).unwrap();
    let words = ["w.ptx", "--grid=1", "--block=1", "--arg=buf:u32[100]"];
    let run =
        it.finish(&mut it.command(&[&words[..], &["--sarif=w.sarif", "--json=w.json"]].concat()));
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert_contains(&run.out, &["out of bounds: ", "found: w, grid 1x1x1"]);
    let log = it.json("w.sarif");
    let result = &log["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "out-of-bounds");
    assert_contains(
        result["message"]["text"].as_str().unwrap(),
        &["(argument 1: 400 bytes"],
    );
    let physical = &result["locations"][0]["physicalLocation"];
    assert_eq!(physical["artifactLocation"]["uri"], "w.ptx");
    assert_eq!(physical["region"]["startLine"], 8);
    assert_eq!(it.json("w.json")["findings"].as_array().unwrap().len(), 1);
    // An input is not replaced, and an existing file only with --force.
    for (option, said) in [
        ("--sarif=w.ptx", "overwritten while it is read"),
        ("--sarif=w.sarif", "w.sarif exists"),
    ] {
        let run = it.finish(&mut it.command(&[&words[..], &[option]].concat()));
        assert_eq!(run.code, Some(2), "{}", run.err);
        assert_contains(&run.err, &[said]);
    }
}

#[test]
fn programs_of_nvcc_run_over_a_runtime_library_of_our_own() {
    let Some(nvcc) = nvcc() else { return };
    let it = Checker::new();
    let program = program_of_nvcc(&nvcc, "shared");
    let run = it.finish(&mut it.command(&[OsStr::new("--"), program.as_os_str()]));
    assert_eq!(
        (run.code, run.out.as_str()),
        (Some(1), "ended\n"),
        "{}",
        run.err
    );
    let parts = [
        "out of bounds: 4-byte global read",
        "overrun.cu:5",
        "thread: (63,0,0) of block (0,0,0)",
        "findings in 1 kernel launch",
    ];
    assert_contains(&run.err, &parts);
    let program = program_of_nvcc(&nvcc, "static");
    let run = it.finish(&mut it.command(&[OsStr::new("--"), program.as_os_str()]));
    assert_contains(&run.err, &["nvcc -cudart shared"]);
    assert_eq!(run.code, Some(1), "{}", run.err);
}
