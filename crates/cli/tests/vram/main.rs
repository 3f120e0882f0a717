//! `fercuda vram`: a filesystem that is mounted in a private directory on the software device, and used by the calls
//! that programs make.
//!
//! Needs /dev/fuse and root, and fails with these words where it has not: nothing is passed over. What serves a mount is
//! a process of its own: one that served itself could wait for itself, as with its mappings.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test reports by panicking, and its seeds are for people"
)]

mod bytes;
mod ends;
mod export;
mod limits;
mod names;
mod place;
mod rights;
mod several;
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

/// Somebody who is not root.
const SOMEBODY: u32 = 4321;

fn fercuda() -> Command {
    on_a_software_device(Command::new(env!("CARGO_BIN_EXE_fercuda")))
}

/// The same, ended by signals also where whoever started the tests has them ignored, as `nohup` has.
fn heedful() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,TERM");
    command.arg(env!("CARGO_BIN_EXE_fercuda"));
    on_a_software_device(command)
}

fn on_a_software_device(mut command: Command) -> Command {
    // What its checks find is its status.
    command
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "1")
        .env("FERCUDA_SOFT_CHECK_EXIT", "97");
    command
}

fn vram(words: &[&str]) -> Output {
    fercuda().arg("vram").args(words).output().unwrap()
}

/// What a command said as it failed.
fn refused(words: &[&str]) -> String {
    let done = vram(words);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    said
}

fn needs_fuse() {
    assert!(
        Path::new("/dev/fuse").exists(),
        "these tests mount, and the kernel has no FUSE here: there is no /dev/fuse\ntry: modprobe fuse"
    );
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests mount, and make devices and files of others, which only root may\ntry: as root"
    );
}

/// Whether something is mounted there.
fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = at.to_str().unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == Some(at))
}

/// A mounted filesystem, which is unmounted at the end, whatever that is.
struct Here {
    daemon: Child,
    dir: TempDir,
    /// How it has to end: None, by a signal.
    code: Option<i32>,
}

impl Drop for Here {
    fn drop(&mut self) {
        if self.daemon.try_wait().unwrap().is_none() {
            kill_process(self.pid(), Signal::TERM).unwrap();
        }
        let code = self.daemon.wait().unwrap().code();
        let is_left = is_mounted(self.path());
        if !std::thread::panicking() {
            assert_eq!((code, is_left), (self.code, false), "{}", self.errors());
        }
    }
}

impl Here {
    fn new(words: &[&str]) -> Self {
        Self::with(&[], words)
    }

    /// On a software device that is told this.
    fn with(told: &[(&str, &str)], words: &[&str]) -> Self {
        needs_fuse();
        let dir = tempfile::tempdir().unwrap();
        // Others have to come by.
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let mut daemon = heedful()
            .envs(told.iter().copied())
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

    /// Without the code, whose kernels take their time on this device.
    fn plain() -> Self {
        Self::new(&["--size=32MiB", "--ecc=off"])
    }

    /// Waits for it to end well by itself.
    fn ends(&mut self) {
        let code = self.daemon.wait().unwrap().code();
        assert_eq!(code, Some(0), "{}", self.errors());
    }

    /// Kills it, which leaves a dead mount there: to be unmounted before this goes.
    fn killed(&mut self) {
        self.code = None;
        kill_process(self.pid(), Signal::KILL).unwrap();
        self.daemon.wait().unwrap();
    }

    /// What it has said of errors, when it has ended.
    fn errors(&mut self) -> String {
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

    /// A file that is there from now on, open for all.
    fn file(&self, name: &str) -> File {
        open(&self.at(name))
    }

    fn figure(&self, name: &str) -> u64 {
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

/// Whether a line of shell comes to its end well when somebody else says it.
fn somebody_may(line: &str) -> bool {
    use std::os::unix::process::CommandExt as _;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).uid(SOMEBODY).gid(SOMEBODY);
    shell.output().unwrap().status.success()
}

/// A line of shell in a mount namespace of its own, where what is mounted is gone at the end; `$AT` is this place.
fn apart(line: &str, at: &Path) -> Output {
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-ec", line]);
    shell
        .env("FERCUDA", fercuda().get_program())
        .env("FERCUDA_DEVICE", "soft")
        .env("AT", at);
    shell.output().unwrap()
}

/// Copies a program that is to be run. Not by this process: a child that another test starts meanwhile would have
/// the copy open for writing, and what is may not be run.
fn copy_program(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

fn seed() -> u64 {
    let seed = match std::env::var("FERCUDA_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    };
    println!("FERCUDA_SEED={seed}");
    seed
}
