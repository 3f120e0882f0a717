//! Trial of an installed `fercuda`: what a user types first, where nothing of the checkout
//! can stand in for a part that is missing.
//!
//! Invariant: the program gets an environment of its own: an empty home, a search path of
//! the installation and the system alone, the software device. A command that prints
//! something else than what its trial expects fails it, and the error shows all of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// Memory by the driver's own symbols, from a program that knows nothing of feRcuda.
const ALLOCATES: &str = "\
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
context, address, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(3 << 20)
for code in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(address), size),
    cuda.cuMemsetD8_v2(address, 7, size),
    cuda.cuMemFree_v2(address),
):
    assert code == 0, code
print('allocated and freed')
";

/// A kernel that does the 16-byte atomics, and its numbers of blocks and threads a block.
const ATOMICS: (&str, u64, u64) = (include_str!("trial/atomics16.ptx"), 8, 64);

/// An installation, and a folder in which its commands run.
pub(crate) struct Trial {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Trial {
    /// Of the program at that place, which is absolute.
    pub(crate) fn of(program: PathBuf) -> Result<Trial> {
        let folder = tempfile::tempdir().context("cannot make a folder for the trial")?;
        for empty in ["home", "work"] {
            fs::create_dir(folder.path().join(empty))?;
        }
        Ok(Trial { program, folder })
    }

    /// A command in the trial's environment, the installation's folder first in its path.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let beside = self.program.parent().unwrap_or(Path::new("/"));
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path().join("work"))
            .env_clear()
            .env("HOME", self.folder.path().join("home"))
            .env("PATH", format!("{}:/usr/bin:/bin", beside.display()))
            .env("LC_ALL", "C.UTF-8")
            .env("FERCUDA_DEVICE", "soft");
        command
    }

    /// Runs the program with `words`; what it wrote to both streams, if it succeeded and each
    /// of `expected` is in it.
    fn output(&self, words: &[&str], expected: &[&str]) -> Result<String> {
        let mut command = self.command(&self.program);
        command.args(words);
        let line = shell::describe(&command);
        let output = command
            .output()
            .with_context(|| format!("cannot start `{line}`"))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            bail!("`{line}` failed: {}\n{text}", output.status);
        }
        for expected in expected {
            if !text.contains(expected) {
                bail!("`{line}` printed no {expected:?}\n{text}");
            }
        }
        Ok(text)
    }

    /// `fercuda --version`: its first line.
    pub(crate) fn version(&self) -> Result<String> {
        let head = format!("fercuda {} (", env!("CARGO_PKG_VERSION"));
        let text = self.output(&["--version"], &[&head, "target: x86_64"])?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// `fercuda demo`, and how long it took.
    pub(crate) fn demo(&self) -> Result<Duration> {
        let begun = Instant::now();
        let expected = ["One pool for ", "ungoverned = 0 B, reconciled"];
        self.output(&["demo"], &expected)?;
        Ok(begun.elapsed())
    }

    /// `fercuda run --report -- PYTHON -c ...`, of a program that allocates.
    pub(crate) fn run(&self, python: &str) -> Result<()> {
        let words = ["run", "--report", "--", python, "-c", ALLOCATES];
        // The report's peak of the tenant, which the hook alone can know.
        let expected = [
            "allocated and freed",
            "TENANT",
            "3.0 MiB",
            "ungoverned = 0 B",
        ];
        self.output(&words, &expected).map(drop)
    }

    /// A mount, a file in it, and its end, by the kernels of the release: no compiler is here.
    pub(crate) fn mount(&self) -> Result<()> {
        let place = self.folder.path().join("mount");
        fs::create_dir(&place)?;
        let at = place.to_string_lossy();
        self.output(&["vram", "mount", "--size", "4MiB", &at], &["mounted at "])?;
        let file = place.join("file");
        let written = fs::write(&file, "kept").and_then(|()| fs::read_to_string(&file));
        self.output(&["vram", "umount", &at], &[])?;
        match written? == "kept" {
            true => Ok(()),
            false => bail!("a file of a mount was read otherwise than it was written"),
        }
    }

    /// `fercuda check` of a kernel that does the 16-byte atomics, which an optimised build
    /// may do otherwise than the tests' one.
    pub(crate) fn atomics(&self) -> Result<()> {
        let (kernel, blocks, threads) = ATOMICS;
        let work = self.folder.path().join("work");
        fs::write(work.join("atomics16.ptx"), kernel)?;
        let numbers = blocks * threads;
        // The counter's low half overflows at half of the additions.
        let counter = [(numbers / 2).wrapping_neg(), 6];
        let before = [counter[0], counter[1], 0, !0, 0, 0].map(|word| word.to_string());
        fs::write(work.join("before.txt"), before.join("\n"))?;
        let text = self.output(
            &[
                "check",
                "atomics16.ptx",
                &format!("--grid={blocks}"),
                &format!("--block={threads}"),
                "--arg=out:u64[6]=@before.txt",
            ],
            &["no findings"],
        )?;
        if !are_right(&text, numbers) {
            bail!("the 16-byte atomics of {numbers} threads are wrong:\n{text}");
        }
        Ok(())
    }
}

/// Whether the kernel's memory is as `threads` additions and exchanges leave it.
fn are_right(text: &str, threads: u64) -> bool {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("out:u64[6] = "));
    let words = line.map(|line| line.split(' ').map(str::parse).collect());
    let Some(Ok::<Vec<u64>, _>(words)) = words else {
        return false;
    };
    let [low, high, cell, not_cell, sum, torn] = words[..] else {
        return false;
    };
    let all = threads * (threads + 1) / 2;
    [low, high] == [threads / 2, 7] && cell == !not_cell && sum + cell == all && torn == 0
}

/// A venv with the wheel alone in it, outside of the checkout, tried; `python` makes it.
/// Returns what `fercuda --version` says, and how long installation and demo took.
pub(crate) fn wheel(python: &Path, wheel: &Path) -> Result<(String, Duration, Duration)> {
    let place = tempfile::tempdir().context("cannot make a folder for a venv")?;
    let venv = place.path().join("venv");
    let mut make = shell::command(python);
    make.args(["-m", "venv"]).arg(&venv);
    shell::run(make)?;
    let begun = Instant::now();
    let mut install = shell::command(venv.join("bin/python"));
    install
        .args(["-m", "pip", "install", "--quiet"])
        .args(["--disable-pip-version-check", "--no-index", "--no-deps"])
        .arg(wheel);
    shell::run(install)?;
    let installed = begun.elapsed();
    let trial = Trial::of(venv.join("bin/fercuda"))?;
    let version = trial.version()?;
    let demo = trial.demo()?;
    trial.run("python")?;
    trial.atomics()?;
    Ok((version, installed, demo))
}

#[cfg(test)]
mod tests {
    use super::are_right;

    #[test]
    fn a_lost_addition_and_a_torn_pair_are_seen() {
        let right = "no findings\nout:u64[6] = 256 7 512 18446744073709551103 130816 0\n";
        assert!(are_right(right, 512));
        for (from, to) in [
            ("256 7", "255 7"),
            ("256 7", "256 6"),
            ("130816 0", "130815 0"),
            ("130816 0", "130816 1"),
            ("512 1844", "511 1844"),
            (" 0\n", "\n"),
            ("out:u64", "out:u32"),
        ] {
            let wrong = right.replace(from, to);
            assert_ne!(wrong, right, "{from}");
            assert!(!are_right(&wrong, 512), "{wrong}");
        }
    }
}
