//! Cargo's own tables: what packages there are and what a build produced.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::shell;

/// The cargo that runs us, in the root.
pub(crate) fn command(subcommand: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = shell::command(cargo);
    command.arg(subcommand);
    command
}

/// `cargo metadata` of the workspace.
pub(crate) fn metadata() -> Result<Value> {
    let mut command = command("metadata");
    command.args(["--format-version", "1", "--locked"]);
    serde_json::from_str(&shell::capture(command)?).context("cargo metadata printed no JSON")
}

/// One thing that a build made.
#[derive(Debug)]
pub(crate) struct Artifact {
    /// Package it belongs to.
    pub package: String,
    /// Name of the library, program, test or bench.
    pub target: String,
    /// `lib`, `cdylib`, `bin`, `test`, `bench`...
    pub kinds: Vec<String>,
    /// The program, for what can be run.
    pub executable: Option<PathBuf>,
    /// Every file.
    pub files: Vec<PathBuf>,
    /// Built with the test harness.
    pub is_test: bool,
}

/// Builds with the given arguments and lists what came out.
pub(crate) fn artifacts(subcommand: &str, args: &[&str]) -> Result<Vec<Artifact>> {
    let mut command = command(subcommand);
    command.args(args);
    artifacts_of(command)
}

/// The same for a build that is more than arguments.
pub(crate) fn artifacts_of(mut command: Command) -> Result<Vec<Artifact>> {
    command.arg("--message-format=json-render-diagnostics");
    let line = shell::describe(&command);
    let mut made = Vec::new();
    let succeeded = shell::watch(command, |line| {
        if let Ok(message) = serde_json::from_str::<Value>(line)
            && message["reason"] == "compiler-artifact"
        {
            made.push(artifact(&message));
        }
    })?;
    if !succeeded {
        bail!("`{line}` failed");
    }
    Ok(made)
}

/// A package's shared library among what was built.
pub(crate) fn library<'m>(made: &'m [Artifact], package: &str) -> Result<&'m Path> {
    let mut files = made
        .iter()
        .filter(|made| made.package == package && made.kinds.iter().any(|kind| kind == "cdylib"))
        .flat_map(|made| &made.files);
    let shared = files.find(|file| file.extension().is_some_and(|extension| extension == "so"));
    let shared = shared.map(PathBuf::as_path);
    shared.with_context(|| format!("fercuda-{package} built no shared library"))
}

fn artifact(message: &Value) -> Artifact {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<String> {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(text).collect()
    };
    let manifest = PathBuf::from(text(&message["manifest_path"]));
    Artifact {
        package: manifest
            .parent()
            .and_then(|folder| folder.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        target: text(&message["target"]["name"]),
        kinds: list(&message["target"]["kind"]),
        executable: message["executable"].as_str().map(PathBuf::from),
        files: list(&message["filenames"])
            .into_iter()
            .map(PathBuf::from)
            .collect(),
        is_test: message["profile"]["test"] == true,
    }
}
