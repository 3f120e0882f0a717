//! Cargo of the nightly toolchain, and whether the tools are there that only it has.

use std::process::{Command, Stdio};

use crate::shell;

/// The nightly cargo with a subcommand, in the root.
pub(super) fn command(subcommand: &str) -> Command {
    let mut command = shell::command("rustup");
    command.args(["run", "nightly", "cargo", subcommand]);
    // Those of the toolchain that runs us.
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}

/// What to install before `subcommand` can be run; `None` if it can.
pub(super) fn missing(subcommand: &str, hint: &'static str) -> Option<&'static str> {
    let asked = command(subcommand)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    (!asked.is_ok_and(|status| status.success())).then_some(hint)
}
