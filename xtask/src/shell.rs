//! Starting other programs from the repository's root.
//!
//! Invariant: a program that cannot start or that fails is an error naming
//! its command line; nothing is ignored.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The repository's root, wherever the chore was started from.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable for `cargo run`; a bare binary falls back on
    // the directory it was built from.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map_or(xtask.clone(), Path::to_path_buf)
}

/// A command that runs in the root.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Runs to the end, its output going where ours goes.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let line = describe(&command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs to the end and returns what it wrote to stdout.
pub(crate) fn capture(mut command: Command) -> Result<String> {
    let line = describe(&command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no text"))
}

/// Runs to the end, handing each line of stdout to `see` as it comes.
/// Returns whether the program succeeded.
pub(crate) fn watch(mut command: Command, mut see: impl FnMut(&str)) -> Result<bool> {
    let line = describe(&command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while lines.read_until(b'\n', &mut bytes)? > 0 {
            see(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
            bytes.clear();
        }
    }
    Ok(child.wait()?.success())
}

/// A heading between the steps of a long chore.
pub(crate) fn step(text: &str) {
    println!("\n== {text}");
}

/// The command line as one would type it, without its environment.
pub(crate) fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}
