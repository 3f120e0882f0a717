//! Tests under Miri, which runs them step by step and stops at undefined behaviour.
//!
//! Random work does its least amount only, a hundredth of it where that is a number of steps:
//! Miri takes some hundred times as long. What it cannot run (other processes, the software
//! device's library, maps of files) is left out by `cfg(miri)` beside each test, with the reason.

use anyhow::Result;

use super::nightly;
use crate::shell;

/// Tests of a package that Miri runs.
pub(super) struct MiriTests {
    /// The package without `fercuda-`.
    pub(super) name: &'static str,
    /// Arguments of `cargo miri test`, for one run after the other.
    runs: &'static [&'static [&'static str]],
}

pub(super) static TESTS: [MiriTests; 6] = [
    MiriTests {
        name: "jit",
        runs: &[&["--lib"], &["--test", "suite", "mutations"]],
    },
    MiriTests {
        name: "ledger",
        runs: &[&["--lib"]],
    },
    MiriTests {
        name: "pool",
        // A random program takes minutes.
        runs: &[&["--lib"], &["--test", "order"]],
    },
    MiriTests {
        name: "ptx",
        // Of the others some start ptxas or a shell, and the rest read the forms in whole.
        runs: &[&[
            "--lib", "--test", "any_text", "--test", "any_tree", "--test", "errors",
        ]],
    },
    MiriTests {
        name: "tensor",
        runs: &[&["--lib", "--tests"]],
    },
    MiriTests {
        name: "trials",
        runs: &[&["--lib"]],
    },
];

/// What to install before tests can be run; `None` if they can.
pub(super) fn missing() -> Option<&'static str> {
    nightly::missing(
        "miri",
        "rustup toolchain install nightly --component miri,rust-src",
    )
}

/// Runs the tests of a package; false if one fails.
pub(super) fn run(tests: &MiriTests) -> Result<bool> {
    for arguments in tests.runs {
        let mut command = nightly::command("miri");
        command
            .args(["test", "--package", &format!("fercuda-{}", tests.name)])
            .args(*arguments)
            // Tests read kept inputs, and measure time.
            .env("MIRIFLAGS", "-Zmiri-disable-isolation")
            .env("FERCUDA_BUDGET", "0");
        if shell::run(command).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}
