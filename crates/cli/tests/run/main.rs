//! `fercuda run` as a user runs it: environment, exit, refusals, reports.
//!
//! A stub library is preloaded in place of the hook; it records in a file which processes
//! loaded it. A process with a ledger is this program again, selected by a variable.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod given;
mod governed;
mod refused;
mod reported;
mod watched;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::remove_variables;

/// `fercuda` in a folder of its own, with a hook and a driver beside it.
struct Installed {
    folder: tempfile::TempDir,
}

impl Installed {
    fn new() -> Installed {
        // On the file system of cargo's own files, so that hard links work.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let it = Installed { folder };
        let built = Path::new(env!("CARGO_BIN_EXE_fercuda"));
        fs::hard_link(built, it.path("fercuda")).unwrap();
        it.compile(
            "libfercuda_hook.so",
            &["-shared", "-fPIC", "-x", "c"],
            "#include <stdio.h>\n#include <stdlib.h>\n\
             __attribute__((constructor)) static void loaded(void) {\n\
               const char *name = getenv(\"FERCUDA_TEST_LOADED\");\n\
               FILE *file = name ? fopen(name, \"a\") : 0;\n\
               if (file) { fputs(\"loaded\\n\", file); fclose(file); }\n\
             }\n",
        );
        fs::write(it.path("libcuda.so"), "").unwrap();
        for name in ["home", "run"] {
            fs::create_dir(it.path(name)).unwrap();
        }
        fs::set_permissions(
            it.path("run"),
            std::os::unix::fs::PermissionsExt::from_mode(0o700),
        )
        .unwrap();
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    /// Compiles C, or assembler with other options, to a file of that name.
    fn compile(&self, name: &str, options: &[&str], source: &str) -> PathBuf {
        let text = self.path(&format!("{name}.source"));
        fs::write(&text, source).unwrap();
        let out = self.path(name);
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let status = Command::new(cc)
            .args(options)
            .arg(&text)
            .arg("-o")
            .arg(&out)
            .status();
        assert!(status.unwrap().success());
        out
    }

    /// An executable file with this text.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// A statically linked program that exits with 5.
    fn static_program(&self) -> PathBuf {
        self.compile(
            "static",
            &["-nostdlib", "-static", "-x", "assembler"],
            ".globl _start\n_start: mov $60, %eax\n mov $5, %edi\n syscall\n",
        )
    }

    /// `fercuda run`.
    fn run<W: AsRef<OsStr>>(&self, words: &[W]) -> Command {
        let mut command = self.fercuda();
        command.arg("run").args(words);
        command
    }

    /// `fercuda`, without variables of ours or of a framework in its environment, and with no
    /// signal ignored because the tests run under `nohup` or behind a shell's `&`.
    fn fercuda(&self) -> Command {
        let mut command = Command::new(self.path("fercuda"));
        let ours = ["FERCUDA_", "PYTORCH_", "XLA_", "LD_PRELOAD", "NO_COLOR"];
        remove_variables(&mut command, &ours);
        command
            .env("FERCUDA_DEVICE", "soft")
            .env("FERCUDA_TEST_LOADED", self.path("loaded"))
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"));
        let hears_all = || {
            for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                // SAFETY: sets what the signal does in this process to what it does by default.
                if unsafe { libc::signal(number, libc::SIG_DFL) } == libc::SIG_ERR {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: what runs between fork and exec calls `signal` alone, which may be called there.
        unsafe { command.pre_exec(hears_all) };
        command
    }

    /// How many processes have loaded the stub.
    fn loaded(&self) -> usize {
        let text = fs::read_to_string(self.path("loaded")).unwrap_or_default();
        text.lines().count()
    }
}

struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
    out: String,
    err: String,
}

fn ended(command: &mut Command) -> Ended {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Ended {
        code: status.code(),
        signal: status.signal(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}
