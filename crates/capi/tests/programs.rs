//! C and C++ programs over the library as cargo built it: compiled with the system's compiler, with
//! warnings as errors, and run on the software device with its checks, or on a GPU with
//! `FERCUDA_DEVICE=gpu`; again with sanitizers, and under valgrind. Each program checks at its end
//! that no tenant holds memory.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test reports by panicking, and says what it could not try"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fercuda_ledger::{Folder, LedgerSnapshot, OwnerState, Progress, RebootOutcome, RequestError};

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];
const SANITIZERS: [&str; 3] = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-g",
];
/// Exit status of a program with a kernel that faulted.
const FINDINGS: i32 = 99;

/// A program, its language standard, and whether it takes a seed.
struct Program {
    source: &'static str,
    standard: &'static str,
    has_seed: bool,
    /// Whether the device's checks must find nothing. After a fault a driver does not report that
    /// it will never call a registered callback, so the callback's data are not freed, and leaks
    /// are not checked.
    is_sound: bool,
}

const fn program(source: &'static str, standard: &'static str, has_seed: bool) -> Program {
    Program {
        source,
        standard,
        has_seed,
        is_sound: true,
    }
}

const VECTOR_ADD: Program = program("examples/c/vector_add.c", "c99", false);
const JOBS: Program = program("examples/c/jobs.c", "c99", false);
const DISPATCHER: Program = program("examples/c/dispatcher.c", "c99", false);
const OP_EXAMPLE: Program = program("examples/c/ops.c", "c99", false);
const SESSION: Program = program("examples/cpp/session.cpp", "c++17", false);
const REFUSALS: Program = program("crates/capi/tests/programs/refusals.c", "c99", true);
const LIFETIMES: Program = program("crates/capi/tests/programs/lifetimes.c", "c11", true);
const DISPATCHERS: Program = program("crates/capi/tests/programs/dispatchers.c", "c11", true);
const REQUESTS: Program = program("crates/capi/tests/programs/requests.c", "c11", false);
const GRAPHS: Program = program("crates/capi/tests/programs/graphs.c", "c11", true);
const EXPRESSIONS: Program = program("crates/capi/tests/programs/expressions.c", "c11", true);
const OPS: Program = program("crates/capi/tests/programs/ops.c", "c11", true);
const ALLOCATORS: Program = program("crates/capi/tests/programs/allocators.c", "c11", false);
const FAULT: Program = Program {
    is_sound: false,
    ..program("crates/capi/tests/programs/fault.c", "c11", false)
};
const NAMES: Program = program("crates/capi/tests/programs/names.c", "c99", false);
const ALL: [&Program; 14] = [
    &VECTOR_ADD,
    &JOBS,
    &DISPATCHER,
    &OP_EXAMPLE,
    &SESSION,
    &REFUSALS,
    &LIFETIMES,
    &DISPATCHERS,
    &ALLOCATORS,
    &GRAPHS,
    &EXPRESSIONS,
    &OPS,
    &NAMES,
    &FAULT,
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// `libfercuda.so`.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let deps = exe.parent().unwrap();
        let name = "libfercuda.so";
        let places = [deps.join(name), deps.parent().unwrap().join(name)];
        let found = places.into_iter().find(|path| path.exists());
        found.unwrap_or_else(|| panic!("cargo builds {name} before this test"))
    })
}

/// A temporary folder of this test program.
fn made() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        fs::create_dir_all(&made).unwrap();
        made
    })
}

/// The system's compiler for a source file's extension.
fn compiler(source: &str) -> Command {
    let (variable, usual) = match source.ends_with(".cpp") {
        true => ("CXX", "c++"),
        false => ("CC", "cc"),
    };
    let name = std::env::var(variable).unwrap_or_else(|_| usual.to_owned());
    let mut command = Command::new(name);
    command.args(WARNINGS).arg("-I").arg(root().join("include"));
    command
}

fn run(mut command: Command) -> Output {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}",
        output.status
    );
    output
}

/// Compiles a program; `kind` is part of its name.
fn compiled(program: &Program, kind: &str, options: &[&str]) -> PathBuf {
    let stem = Path::new(program.source).file_stem().unwrap();
    let place = made().join(format!("{}-{kind}", stem.to_str().unwrap()));
    let mut command = compiler(program.source);
    command.arg(format!("-std={}", program.standard));
    command.args(["-O1", "-pthread"]).args(options);
    command.arg(root().join(program.source)).arg(library());
    let folder = library().parent().unwrap().display();
    command.arg(format!("-Wl,-rpath,{folder}"));
    made_by(command, &place);
    place
}

/// Has a compiler make a file, which appears at once and whole: other tests compile the same
/// program, each in a process of its own, and one may be running it.
fn made_by(mut compiler: Command, place: &Path) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    let draft = place.with_extension(format!("{}-{number}", std::process::id()));
    compiler.arg("-o").arg(&draft);
    run(compiler);
    fs::rename(&draft, place).unwrap();
}

/// `command` with a program's arguments and environment.
fn ready(mut command: Command, program: &Program) -> Command {
    if program.has_seed {
        let seed = match std::env::var("FERCUDA_SEED") {
            Ok(seed) => seed,
            Err(_) => fastrand::u32(..).to_string(),
        };
        eprintln!("FERCUDA_SEED={seed}");
        command.arg(seed);
    }
    if std::env::var_os("FERCUDA_DEVICE").is_none() {
        command.env("FERCUDA_DEVICE", "soft");
    }
    if std::env::var_os("FERCUDA_SOFT_CHECK").is_none() {
        command.env("FERCUDA_SOFT_CHECK", "1");
    }
    match program.is_sound {
        true => command.env("FERCUDA_SOFT_CHECK_EXIT", FINDINGS.to_string()),
        false => command.env("ASAN_OPTIONS", "detect_leaks=0"),
    };
    command.env("UBSAN_OPTIONS", "print_stacktrace=1");
    // Cargo's path has the folder of the last `cargo build`; that library may be older.
    command.env("LD_LIBRARY_PATH", library().parent().unwrap());
    command
}

fn runs(program: &Program) {
    let place = compiled(program, "plain", &[]);
    run(ready(Command::new(place), program));
}

#[test]
fn vector_is_added_from_c() {
    runs(&VECTOR_ADD);
}

#[test]
fn jobs_are_waited_for_from_c() {
    runs(&JOBS);
}

#[test]
fn tasks_are_run_from_c_without_launches() {
    runs(&DISPATCHER);
}

#[test]
fn dispatcher_takes_tasks_and_ends_behind_them() {
    runs(&DISPATCHERS);
}

#[test]
fn cpp_closes_what_it_opens() {
    runs(&SESSION);
}

#[test]
fn null_and_garbage_are_refused_with_advice() {
    runs(&REFUSALS);
}

#[test]
fn objects_live_as_long_as_their_owners() {
    runs(&LIFETIMES);
}

#[test]
fn program_allocator_is_called_in_order() {
    runs(&ALLOCATORS);
}

#[test]
fn graphs_are_captured_replayed_and_invalidated() {
    runs(&GRAPHS);
}

#[test]
fn expressions_are_evaluated_from_c() {
    runs(&EXPRESSIONS);
}

#[test]
fn op_is_planned_and_run_from_c() {
    runs(&OP_EXAMPLE);
}

#[test]
fn ops_are_run_over_any_layout_and_checked_from_c() {
    runs(&OPS);
}

#[test]
fn documented_names_work_as_shown() {
    runs(&NAMES);
}

#[test]
fn fault_is_reported_and_reset_recovers() {
    runs(&FAULT);
}

#[test]
fn sanitizers_find_nothing() {
    for program in ALL {
        let place = compiled(program, "sanitized", &SANITIZERS);
        run(ready(Command::new(place), program));
    }
}

#[test]
fn leak_would_be_found() {
    let source = made().join("leak.c");
    fs::write(
        &source,
        "#include <stdlib.h>\nint main(void) { return malloc(7) == 0; }\n",
    )
    .unwrap();
    let place = made().join("leak");
    let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    command.args(SANITIZERS).arg(&source);
    made_by(command, &place);
    let output = Command::new(place).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("LeakSanitizer"));
}

/// A program under valgrind, if that is installed.
fn under_valgrind(program: &Program) -> Option<Command> {
    let is_there = Command::new("valgrind").arg("--version").output();
    if is_there.is_err() {
        eprintln!("NOT TRIED: valgrind is not installed here");
        return None;
    }
    let place = compiled(program, "plain", &[]);
    let mut command = Command::new("valgrind");
    command.args(["--error-exitcode=98", "--quiet"]);
    command.arg("--leak-check=full");
    // Without this option a polling thread may starve all others, if there are fewer processors
    // than threads.
    command.arg("--fair-sched=try");
    // Memory that the process keeps for ever is reachable, not leaked.
    command.args([
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
    ]);
    command.arg(place);
    let mut command = ready(command, program);
    // The shadow of the device's memory exceeds what valgrind allows a program.
    command.env("FERCUDA_SOFT_CHECK", "0");
    Some(command)
}

#[test]
fn valgrind_finds_nothing() {
    // It takes seconds per program; these programs call every function.
    for program in [&REFUSALS, &LIFETIMES, &DISPATCHERS, &ALLOCATORS, &GRAPHS] {
        let Some(command) = under_valgrind(program) else {
            return;
        };
        run(command);
    }
}

/// A program that this one sends requests to, as `fercuda reboot` does.
struct Asked {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Asked {
    fn begin(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    /// Waits until it prints a word.
    fn until(&mut self, word: &str) {
        let said = self.said.next();
        assert_eq!(said.unwrap().unwrap(), word);
    }

    /// Lets it continue.
    fn go_on(&mut self) {
        let to = self.child.stdin.as_mut().unwrap();
        to.write_all(b"\n").unwrap();
    }

    fn ask(&mut self) -> Result<RebootOutcome, RequestError> {
        let folder = Folder::from_env().unwrap();
        let pid = u64::from(self.child.id());
        let mut ledgers = folder.ledgers().unwrap().into_iter().flatten();
        let is_its = |it: LedgerSnapshot| it.pid == pid && it.owner == OwnerState::Alive;
        let ledger = ledgers.find(|it| it.snapshot().is_ok_and(is_its));
        let limit = Duration::from_secs(60);
        let asked = ledger.unwrap().request_reboot(0, limit)?;
        let begun = Instant::now();
        loop {
            match asked.progress().unwrap() {
                Progress::Over(outcome) => return Ok(outcome),
                _ if begun.elapsed() > limit => panic!("it does not answer"),
                _ if self.child.try_wait().unwrap().is_some() => panic!("it has ended"),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

#[test]
fn requests_are_accepted_as_long_as_the_program_allows() {
    let plain = ready(Command::new(compiled(&REQUESTS, "plain", &[])), &REQUESTS);
    let sanitized = compiled(&REQUESTS, "sanitized", &SANITIZERS);
    let sanitized = ready(Command::new(sanitized), &REQUESTS);
    let commands = [Some(plain), Some(sanitized), under_valgrind(&REQUESTS)];
    for command in commands.into_iter().flatten() {
        let mut program = Asked::begin(command);
        program.until("opened");
        assert!(matches!(program.ask(), Err(RequestError::TakesNone { .. })));
        program.go_on();
        program.until("serves");
        assert_eq!(program.ask().unwrap(), RebootOutcome::Refused);
        let rebooted = program.ask().unwrap();
        assert!(
            matches!(rebooted, RebootOutcome::Rebooted { sessions: 1, .. }),
            "{rebooted:?}"
        );
        program.until("ended by itself");
        assert!(matches!(program.ask(), Err(RequestError::TakesNone { .. })));
        program.go_on();
        program.until("serves again");
        // It ends the registration inside the consent being requested.
        assert_eq!(program.ask().unwrap(), RebootOutcome::Refused);
        program.until("ended in consent");
        assert!(matches!(program.ask(), Err(RequestError::TakesNone { .. })));
        program.go_on();
        program.until("serves slowly");
        assert_eq!(program.ask().unwrap(), RebootOutcome::Refused);
        program.until("ended in a free");
        program.go_on();
        let status = program.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// The names of headers, from the include folder.
const HEADERS: [&str; 7] = [
    "fercuda/fercuda.h",
    "fercuda/c_api.h",
    "fercuda/intercept_telemetry.h",
    "fercuda/execution_contract.h",
    "fercuda/api/c_api.h",
    "fercuda/api/intercept_telemetry.h",
    "fercuda/api/execution_contract.h",
];

#[test]
fn each_header_compiles_alone_in_every_language() {
    let languages = [
        ("c99", "c"),
        ("c11", "c"),
        ("c++11", "cpp"),
        ("c++17", "cpp"),
    ];
    for (standard, ending) in languages {
        for (number, header) in HEADERS.iter().enumerate() {
            let name = format!("alone-{number}-{}.{ending}", standard.replace('+', "p"));
            let source = made().join(name);
            let text = format!(
                "#include <{header}>\n#include <{header}>\nfer_status f(void);\n\
                 fer_status f(void) {{ return FER_OK; }}\n"
            );
            fs::write(&source, text).unwrap();
            let mut command = compiler(source.to_str().unwrap());
            command.arg(format!("-std={standard}")).arg("-fsyntax-only");
            run({
                command.arg(&source);
                command
            });
        }
    }
}

/// Functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for header in HEADERS {
        let text = fs::read_to_string(root().join("include").join(header)).unwrap();
        for line in text.lines().filter(|line| !line.starts_with("//")) {
            let Some((before, _)) = line.split_once('(') else {
                continue;
            };
            let is_function = ["fer_status ", "const char *"]
                .iter()
                .any(|begin| before.starts_with(begin));
            if is_function {
                let name = before.rsplit([' ', '*']).next().unwrap();
                all.insert(name.to_owned());
            }
        }
    }
    all
}

/// The names that documents about the interface show: functions and numbers, headers, entry points
/// and clients. `names.c` uses each as they do.
const DOCUMENTED: [&str; 25] = [
    "fer_alloc_buffer",
    "fer_free_buffer",
    "fer_upload_bytes",
    "fer_export_buffer_device_ptr",
    "fer_ptxlaunch_submit",
    "fer_persistent_dispatcher_boot",
    "fer_stream_sync",
    "fercuda_ignite",
    "fercuda/api/c_api.h",
    "fercuda/api/execution_contract.h",
    "fercuda/api/intercept_telemetry.h",
    "FER_ABI_MAJOR",
    "FER_ABI_MINOR",
    "tensor",
    "jit_intent",
    "jit_launch",
    "resident_daemon",
    "framework_allocator",
    "c",
    "cpp",
    "python",
    "rust",
    "rust_ferrite_torch",
    "fer_entrypoint_name",
    "fer_frontend_entrypoint",
];

#[test]
fn each_documented_name_is_used() {
    let text = fs::read_to_string(root().join(NAMES.source)).unwrap();
    for name in DOCUMENTED {
        let used = [
            format!("{name}("),
            format!("<{name}>"),
            format!("{name})"),
            format!("\"{name}\""),
        ];
        assert!(
            used.iter().any(|used| text.contains(used)),
            "names.c does not use {name}"
        );
    }
    // Those that the package has too.
    let package = root().join("python/src/fercuda_runtime/execution_contract.py");
    let package = fs::read_to_string(package).unwrap();
    for name in &DOCUMENTED[13..23] {
        let defined = format!("{} = \"{name}\"", name.to_uppercase());
        assert!(
            package.contains(&defined),
            "the Python package lacks {name}"
        );
    }
    let header = root().join("include/fercuda/execution_contract.h");
    let header = fs::read_to_string(header).unwrap();
    let number = |name: &str| {
        let after = header.split(&format!("#define {name} ")).nth(1).unwrap();
        after.lines().next().unwrap().to_owned()
    };
    let (major, minor) = (number("FER_ABI_MAJOR"), number("FER_ABI_MINOR"));
    let version = format!("ABI_VERSION = ({major}, {minor})");
    assert!(package.contains(&version), "the Python package: {version}");
}

#[test]
fn declared_functions_are_exported_and_all_called_by_refusals() {
    let declared = declared();
    assert!(declared.len() > 50, "{declared:?}");
    let text = fs::read_to_string(root().join(REFUSALS.source)).unwrap();
    let check = fs::read_to_string(root().join("crates/capi/tests/programs/check.h")).unwrap();
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only", "-P"]).arg(library());
    let listed = String::from_utf8(run(command).stdout).unwrap();
    let exported: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("fer"))
        .map(str::to_owned)
        .collect();
    for name in &declared {
        let call = format!("{name}(");
        assert!(
            text.contains(&call) || check.contains(&call),
            "{name} is never refused"
        );
        assert!(exported.contains(name), "{name} is not exported");
    }
    // The symbol by which our other libraries find the pool; it is not part of the interface. Built
    // together with the hook's tests it also has their test hooks, which no release build has.
    let knobs = ["fercuda_break_rule", "fercuda_fail"];
    let mut more: Vec<&str> = exported.difference(&declared).map(String::as_str).collect();
    more.retain(|name| !knobs.contains(name));
    assert_eq!(more, ["fercuda_regime_4"]);
}
