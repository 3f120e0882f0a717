//! `fercuda reboot` as a user runs it: against processes with a runtime that agrees, that
//! refuses, with no runtime, that end meanwhile, and that cannot be reached.
//!
//! A process with a runtime is this program again, selected by a variable, on the software
//! device; one that is only hooked is compiled here.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fercuda_ledger::FIELDS;
use fercuda_runtime::{Error, Runtime, RuntimeConfig, SessionConfig};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use common::remove_variables;

/// Not a test by itself: with the variable it is a process with a runtime, which prints its
/// state when its stdin ends.
#[test]
fn process_with_a_runtime() {
    let Ok(kind) = std::env::var("FERCUDA_TEST_RUNTIME") else {
        return;
    };
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    let session = runtime.session("model", SessionConfig::default()).unwrap();
    let buffer = session.buffer(&[1 << 20], &vec![7u8; 1 << 20]).unwrap();
    let _requests = match kind.as_str() {
        "obeys" => Some(runtime.serve_requests(|| true).unwrap()),
        "refuses" => Some(runtime.serve_requests(|| false).unwrap()),
        "lingers" => {
            // Until it is killed.
            let lingers = || -> bool {
                loop {
                    std::thread::park();
                }
            };
            Some(runtime.serve_requests(lingers).unwrap())
        }
        "ends" => Some(runtime.serve_requests(|| std::process::exit(3)).unwrap()),
        _ => None,
    };
    println!("\nits number is {}", std::process::id());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let held = match session.download::<u8>(buffer) {
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(Error::Ended { why, .. }) => format!("nothing: {why}"),
        Err(other) => format!("nothing: {other}"),
    };
    println!("\nit has {held}, epoch {}", runtime.epoch());
}

/// A folder for ledgers, and other files of a test.
struct Place {
    folder: tempfile::TempDir,
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

/// A process that waits for a line.
struct Process {
    child: Child,
    pid: String,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("run")).unwrap();
        let it = Place { folder };
        fs::set_permissions(it.path("run"), fs::Permissions::from_mode(0o700)).unwrap();
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let ours = ["FERCUDA_", "LD_PRELOAD", "NO_COLOR"];
        remove_variables(&mut command, &ours);
        command
            .env("FERCUDA_DEVICE", "soft")
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    /// A process with a runtime of this kind.
    fn runtime(&self, kind: &str) -> Process {
        let mut command = self.command(std::env::current_exe().unwrap());
        command
            .args(["--exact", "process_with_a_runtime", "--nocapture"])
            .env("FERCUDA_TEST_RUNTIME", kind);
        Process::start(command)
    }

    /// `fercuda reboot` with these words.
    fn reboot(&self, words: &[&str]) -> Ended {
        let mut command = self.command(env!("CARGO_BIN_EXE_fercuda"));
        let Output {
            status,
            stdout,
            stderr,
        } = command.arg("reboot").args(words).output().unwrap();
        Ended {
            code: status.code(),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }

    /// The ledger of a process.
    fn ledger(&self, pid: &str) -> PathBuf {
        let ledgers = fs::read_dir(self.path("run/fercuda")).unwrap();
        let mut ledgers = ledgers.map(|it| it.unwrap().path());
        let is_own = |it: &PathBuf| {
            let name = it.file_name().unwrap().to_string_lossy();
            name.starts_with(&format!("{pid}-")) && name.ends_with(".ledger")
        };
        ledgers.find(is_own).unwrap()
    }

    /// The same, with the JSON output and the exit status.
    fn asked(&self, words: &[&str]) -> (Option<i32>, Value) {
        let ended = self.reboot(&[words, &["--json"]].concat());
        assert_eq!(ended.err, "");
        (ended.code, serde_json::from_str(&ended.out).unwrap())
    }
}

impl Process {
    fn start(mut command: Command) -> Process {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut it = Process {
            child,
            pid: String::new(),
            lines,
        };
        it.pid = it.says("its number is ");
        it
    }

    /// The text after these words in its further output.
    fn says(&mut self, words: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with(words));
        line.unwrap()[words.len()..].trim().to_owned()
    }

    /// Ends it, and returns what it reports to hold.
    fn end(mut self) -> String {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let has = self.says("it has ");
        assert!(self.child.wait().unwrap().success());
        has
    }

    fn signal(&self, name: &str) {
        send(name, &self.pid);
    }
}

fn send(signal: &str, pid: &str) {
    let words = format!("kill -{signal} {pid}");
    let sent = Command::new("sh").args(["-c", &words]).status().unwrap();
    assert!(sent.success());
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Offset of a field in the row of device 0.
fn at(name: &str) -> u64 {
    let mut fields = FIELDS.iter().filter(|it| it.record == "DeviceRow");
    let field = fields.find(|it| it.name == name).unwrap();
    512 + field.offset_bytes as u64
}

fn word(ledger: &Path, name: &str) -> u64 {
    let mut bytes = [0; 8];
    let file = fs::File::open(ledger).unwrap();
    file.read_exact_at(&mut bytes, at(name)).unwrap();
    u64::from_le_bytes(bytes)
}

fn set_word(ledger: &Path, name: &str, value: u64) {
    let file = fs::File::options().write(true).open(ledger).unwrap();
    file.write_all_at(&value.to_le_bytes(), at(name)).unwrap();
}

fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never is");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    for line in text.lines() {
        // A path may have any length.
        assert!(line.contains('/') || line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_runtime_that_agrees_is_rebooted_and_its_process_continues() {
    let place = Place::new();
    let process = place.runtime("obeys");
    let ended = place.reboot(&["--pid", &process.pid]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert_contains(
        &ended.out,
        &[
            "rebooted device 0 of reboot-",
            &process.pid,
            "1 session ended",
            "epoch 1",
        ],
    );
    let (code, json) = place.asked(&["--pid", &process.pid, "--device", "0"]);
    assert_eq!(code, Some(0));
    assert_eq!(json["outcome"], "rebooted");
    assert_eq!(json["pid"].to_string(), process.pid);
    assert_eq!(
        (&json["sessions"], &json["epoch"]),
        (&Value::from(0), &Value::from(2))
    );
    assert!(json["returned_bytes"].is_u64() && json["seconds"].as_f64() > Some(0.0));
    assert_eq!(
        process.end(),
        "nothing: the runtime was rebooted (epoch 1), epoch 2"
    );
}

#[test]
fn a_runtime_that_does_not_take_requests_or_refuses_keeps_its_memory() {
    let place = Place::new();
    let silent = place.runtime("silent");
    let ended = place.reboot(&["--pid", &silent.pid]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert_contains(
        &ended.err,
        &[
            "does not accept requests",
            "try: call Runtime::serve_requests",
        ],
    );
    let refuses = place.runtime("refuses");
    let ended = place.reboot(&["--pid", &refuses.pid]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert_contains(&ended.err, &["refused to reboot now", "try: again later"]);
    let (code, json) = place.asked(&["--pid", &refuses.pid]);
    assert_eq!((code, &json["outcome"]), (Some(1), &Value::from("refused")));
    assert_eq!(json.get("epoch"), None);
    for device in ["1", "4294967295"] {
        let ended = place.reboot(&["--pid", &refuses.pid, "--device", device]);
        assert_eq!(ended.code, Some(2));
        assert_contains(&ended.err, &["no feRcuda runtime for device", device]);
    }
    for process in [silent, refuses] {
        assert_eq!(process.end(), "1048576 bytes, epoch 0");
    }
}

#[test]
fn a_process_that_does_not_answer_is_distinguished_from_one_that_is_rebooting() {
    let place = Place::new();
    let stopped = place.runtime("obeys");
    stopped.signal("STOP");
    let (code, json) = place.asked(&["--pid", &stopped.pid, "--wait", "1"]);
    assert_eq!(
        (code, &json["outcome"]),
        (Some(1), &Value::from("not_taken"))
    );
    stopped.signal("CONT");
    // A withdrawn request is not executed later.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(stopped.end(), "1048576 bytes, epoch 0");
    let lingers = place.runtime("lingers");
    // It polls 20 times a second, if it is scheduled.
    let ended = place.reboot(&["--pid", &lingers.pid, "--wait", "5"]);
    assert_eq!(ended.code, Some(1));
    assert_contains(
        &ended.err,
        &["is still rebooting after ", "try: fercuda top"],
    );
    let busy = place.reboot(&["--pid", &lingers.pid, "--wait", "1"]);
    assert_eq!(busy.code, Some(2));
    assert_contains(&busy.err, &["already has a pending request"]);
    let ends = place.runtime("ends");
    let (code, json) = place.asked(&["--pid", &ends.pid]);
    assert_eq!(
        (code, &json["outcome"]),
        (Some(1), &Value::from("process_ended"))
    );
}

#[test]
fn a_signal_to_the_requester_withdraws_the_request_first() {
    let place = Place::new();
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let process = place.runtime("obeys");
        process.signal("STOP");
        let ledger = place.ledger(&process.pid);
        // The signals must arrive even if the test process ignores them; signals ignored at
        // the start stay ignored, as under nohup.
        let mut asker = place.command("env");
        asker.arg("--default-signal=INT,TERM,QUIT");
        asker.arg(match name {
            "HUP" => "--default-signal=HUP",
            _ => "--ignore-signal=HUP",
        });
        asker
            .arg(env!("CARGO_BIN_EXE_fercuda"))
            .args(["reboot", "--json", "--wait", "600", "--pid", &process.pid])
            .stdout(Stdio::piped());
        let mut asker = asker.spawn().unwrap();
        wait_until(|| word(&ledger, "request") != 0);
        if name != "HUP" {
            send("HUP", &asker.id().to_string());
            std::thread::sleep(Duration::from_millis(200));
        }
        send(name, &asker.id().to_string());
        let mut said = String::new();
        asker
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(asker.wait().unwrap().signal(), Some(number), "{said}");
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["outcome"], "interrupted");
        process.signal("CONT");
        // It polls 20 times a second.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(process.end(), "1048576 bytes, epoch 0", "{name}");
    }
}

#[test]
fn a_started_reboot_is_reported_as_unknown_when_another_request_ran_since() {
    let place = Place::new();
    const TAKEN: u64 = 1;
    let process = place.runtime("lingers");
    let ledger = place.ledger(&process.pid);
    let mut asker = place.command(env!("CARGO_BIN_EXE_fercuda"));
    asker
        .args(["reboot", "--json", "--wait", "600", "--pid", &process.pid])
        .stdout(Stdio::piped());
    let asker = asker.spawn().unwrap();
    wait_until(|| word(&ledger, "answer") & 0xff_ffff == TAKEN);
    // As if this request finished and the next was started between two polls.
    let next = 9 << 24 | TAKEN;
    set_word(&ledger, "request", 0);
    set_word(&ledger, "answer", next);
    let ended = asker.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(said["outcome"], "unknown");
}

#[test]
fn a_pid_means_the_process_in_this_namespace() {
    let place = Place::new();
    let process = place.runtime("silent");
    let ledger = place.ledger(&process.pid);
    // A live process in another PID namespace has the same PID and takes requests.
    let name = ledger.file_name().unwrap().to_string_lossy();
    let (pid_and_start, _) = name.rsplit_once('-').unwrap();
    let other = ledger.with_file_name(format!("{pid_and_start}-9.ledger"));
    fs::copy(&ledger, &other).unwrap();
    let file = fs::File::options().write(true).open(&other).unwrap();
    let namespace = FIELDS.iter().find(|it| it.name == "pid_namespace").unwrap();
    file.write_all_at(&1u64.to_le_bytes(), namespace.offset_bytes as u64)
        .unwrap();
    set_word(&other, "takes_requests", 1);
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let ended = place.reboot(&["--pid", &process.pid]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert_contains(&ended.err, &["does not accept requests"]);
    assert_eq!(process.end(), "1048576 bytes, epoch 0");
}

#[test]
fn a_process_that_is_only_hooked_has_no_runtime_to_reboot() {
    let place = Place::new();
    let source = "
        #include <dlfcn.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(void) {
            void *driver = dlopen(\"libcuda.so.1\", RTLD_NOW);
            int (*init)(unsigned) = dlsym(driver, \"cuInit\");
            int (*retain)(void **, int) = dlsym(driver, \"cuDevicePrimaryCtxRetain\");
            int (*use)(void *) = dlsym(driver, \"cuCtxSetCurrent\");
            int (*alloc)(void **, unsigned long) = dlsym(driver, \"cuMemAlloc_v2\");
            void *context, *block;
            if (init(0) || retain(&context, 0) || use(context) || alloc(&block, 1 << 20)) return 1;
            printf(\"its number is %d\\n\", getpid());
            fflush(stdout);
            getchar();
            return 0;
        }";
    fs::write(place.path("hooked.c"), source).unwrap();
    let program = place.path("hooked");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut compile = Command::new(cc);
    compile
        .arg(place.path("hooked.c"))
        .arg("-o")
        .arg(&program)
        .arg("-ldl");
    assert!(compile.status().unwrap().success());
    let mut command = place.command(env!("CARGO_BIN_EXE_fercuda"));
    command
        .args(["run", "--device", "soft", "--"])
        .arg(&program);
    let process = Process::start(command);
    let ended = place.reboot(&["--pid", &process.pid]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert_contains(
        &ended.err,
        &[
            &process.pid,
            "nothing to reboot",
            "try: restart the process",
        ],
    );
}

#[test]
fn a_dead_unknown_or_unprotected_process_gets_no_request() {
    let place = Place::new();
    let mut dead = place.runtime("obeys");
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    let ended = place.reboot(&["--pid", &dead.pid]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert_contains(
        &ended.err,
        &[&dead.pid, "has ended", "try: fercuda top --once"],
    );
    let ended = place.reboot(&["--pid", "1", "--json"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert_contains(&ended.err, &["process 1 is not governed"]);
    let open = place.runtime("obeys");
    let ledger = place.ledger(&open.pid);
    fs::set_permissions(&ledger, fs::Permissions::from_mode(0o666)).unwrap();
    let ended = place.reboot(&["--pid", &open.pid]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert_contains(&ended.err, &["is not private", "mode 0666"]);
    assert_eq!(open.end(), "1048576 bytes, epoch 0");
    let ended = place.reboot(&[]);
    assert_eq!(ended.code, Some(2));
    assert_contains(&ended.err, &["--pid"]);
}
