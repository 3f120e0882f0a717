//! End-to-end tests of `fercuda vram`, on a private mount on the software device, through the
//! system calls that programs make.
//!
//! Needs /dev/fuse and root, and fails with an explanation without them; no test is skipped. A
//! separate process serves each mount: a process that serves itself could deadlock, as with its
//! mappings.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod arrays;
mod bytes;
mod export;
mod limits;
mod mounting;
mod names;
mod permissions;
mod shutdown;
mod snapshot;
mod tools;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// An unprivileged user.
const OTHER_USER: u32 = 4321;

fn fercuda() -> Command {
    on_software_device(Command::new(env!("CARGO_BIN_EXE_fercuda")))
}

/// The same with default signal dispositions, also if the tests run with signals ignored, as by
/// `nohup`.
fn fercuda_with_default_signals() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,TERM");
    command.arg(env!("CARGO_BIN_EXE_fercuda"));
    on_software_device(command)
}

fn on_software_device(mut command: Command) -> Command {
    // Findings of its checks determine its exit status.
    command
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "1")
        .env("FERCUDA_SOFT_CHECK_EXIT", "97");
    command
}

fn vram(words: &[&str]) -> Output {
    fercuda().arg("vram").args(words).output().unwrap()
}

/// Runs a command that has to fail with status 1; returns its standard error.
fn expect_failure(words: &[&str]) -> String {
    expect_status(words, 1)
}

/// Runs a command that has to be refused for its arguments, with status 2; returns its standard
/// error.
fn expect_usage_error(words: &[&str]) -> String {
    expect_status(words, 2)
}

fn expect_status(words: &[&str], status: i32) -> String {
    let done = vram(words);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(status), "{said}");
    said
}

fn needs_fuse() {
    assert!(
        Path::new("/dev/fuse").exists(),
        "these tests mount filesystems, and the kernel has no FUSE: there is no /dev/fuse\ntry: modprobe fuse"
    );
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests mount filesystems and create devices and files of other users, which requires root\ntry: as root"
    );
}

/// Whether a directory is a mount point.
fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = at.to_str().unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == Some(at))
}

/// A mounted filesystem, unmounted on drop, also if the test fails.
struct TestMount {
    daemon: Child,
    dir: TempDir,
    /// Expected exit status of the daemon; `None` if a signal kills it.
    code: Option<i32>,
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if self.daemon.try_wait().unwrap().is_none() {
            kill_process(self.pid(), Signal::TERM).unwrap();
        }
        let code = self.daemon.wait().unwrap().code();
        let is_left = is_mounted(self.path());
        if !std::thread::panicking() {
            assert_eq!((code, is_left), (self.code, false), "{}", self.stderr());
        }
    }
}

impl TestMount {
    fn new(words: &[&str]) -> Self {
        Self::with(&[], words)
    }

    /// With these environment variables for the software device.
    fn with(variables: &[(&str, &str)], words: &[&str]) -> Self {
        needs_fuse();
        let dir = tempfile::tempdir().unwrap();
        // Other users need access.
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let mut daemon = fercuda_with_default_signals()
            .envs(variables.iter().copied())
            .args(["vram", "mount", "--foreground", "--allow-other"])
            .args(["--threads", "4"])
            .args(words)
            .arg(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(daemon.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        if !said.starts_with("mounted at ") {
            let mut errors = String::new();
            let from = daemon.stderr.as_mut().unwrap();
            from.read_to_string(&mut errors).unwrap();
            panic!("{said}{errors}");
        }
        Self {
            daemon,
            dir,
            code: Some(0),
        }
    }

    /// Without ECC, as its kernels are slow on this device.
    fn plain() -> Self {
        Self::new(&["--size=32MiB", "--ecc=off"])
    }

    /// Waits until the daemon exits with status 0.
    fn wait_for_exit(&mut self) {
        let code = self.daemon.wait().unwrap().code();
        assert_eq!(code, Some(0), "{}", self.stderr());
    }

    /// Kills the daemon, leaving a dead mount that has to be unmounted before this is dropped.
    fn kill(&mut self) {
        self.code = None;
        kill_process(self.pid(), Signal::KILL).unwrap();
        self.daemon.wait().unwrap();
    }

    /// The daemon's standard error, after its exit.
    fn stderr(&mut self) -> String {
        let mut said = String::new();
        if let Some(mut errors) = self.daemon.stderr.take() {
            errors.read_to_string(&mut said).unwrap();
        }
        said
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.daemon)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Opens a file for reading and writing, and creates it if necessary.
    fn file(&self, name: &str) -> File {
        open(&self.at(name))
    }

    fn counter(&self, name: &str) -> u64 {
        let done = vram(&["stat", "--json", self.path().to_str().unwrap()]);
        let all: Value = serde_json::from_slice(&done.stdout).unwrap();
        all[0][name].as_u64().unwrap()
    }
}

fn open(path: &Path) -> File {
    let mut how = File::options();
    how.read(true).write(true).create(true).truncate(false);
    how.open(path).unwrap()
}

fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xCC; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], at + done as u64).unwrap() {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    bytes
}

/// Whether a shell command succeeds as an unprivileged user.
fn other_user_can(line: &str) -> bool {
    use std::os::unix::process::CommandExt as _;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).uid(OTHER_USER).gid(OTHER_USER);
    shell.output().unwrap().status.success()
}

/// Runs a shell script in its own mount namespace, in which its mounts vanish at exit; `$AT` is
/// `at`.
fn run_in_mount_namespace(line: &str, at: &Path) -> Output {
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-ec", line]);
    shell
        .env("FERCUDA", fercuda().get_program())
        .env("FERCUDA_DEVICE", "soft")
        .env("AT", at);
    shell.output().unwrap()
}

/// Copies a program that is to be executed. A child process does it: with a copy by this process, a
/// child that another test forks meanwhile would hold the file open for writing (ETXTBSY).
fn copy_program(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

fn seed() -> u64 {
    fercuda_trials::seed()
}
