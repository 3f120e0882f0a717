//! Search for the Python that has most of the packages that can be tenants.
//!
//! No package is imported to find out. Python runs the code in its folders, so only a Python
//! that the user named in the environment is asked, never one of the current directory.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

const PROBE: &str = include_str!("probe.py");
/// A Python that takes longer to say what it has is not used.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a Python has.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Python {
    /// Itself, behind whatever name or script it was found by.
    pub(super) executable: PathBuf,
    pub(super) version: String,
    /// Those packages of the ones asked for that it has.
    pub(super) has: Vec<String>,
}

/// The Python that has most of `packages`, or none if no Python has any; and
/// which ones did not say what they have, and why.
pub(super) fn find(packages: &[&str]) -> (Option<Python>, Vec<String>) {
    let mut best: Option<Python> = None;
    let mut silent = Vec::new();
    for candidate in candidates() {
        let python = match ask(&candidate, packages) {
            Ok(Some(python)) => python,
            Ok(None) => continue,
            Err(error) => {
                silent.push(format!("{}: {error:#}", candidate.display()));
                continue;
            }
        };
        let more = best.as_ref().map_or(0, |best| best.has.len());
        if python.has.len() > more {
            best = Some(python);
        }
        if best
            .as_ref()
            .is_some_and(|best| best.has.len() == packages.len())
        {
            break;
        }
    }
    (best, silent)
}

/// That of `FERCUDA_WHEELS` if it names an environment, the active environment's, the first in
/// `PATH`.
fn candidates() -> Vec<PathBuf> {
    let names = ["FERCUDA_WHEELS", "VIRTUAL_ENV", "CONDA_PREFIX"];
    let named = names.into_iter().filter_map(std::env::var_os);
    let environments = named.filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut found: Vec<PathBuf> = environments.map(|it| it.join("bin/python")).collect();
    found.push(PathBuf::from("python3"));
    found
}

/// What a Python has; none if there is no such Python.
fn ask(python: &PathBuf, packages: &[&str]) -> Result<Option<Python>> {
    let child = Command::new(python)
        .args(["-c", PROBE])
        .args(packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        child => child?,
    };
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > PATIENCE {
            // It may have ended meanwhile.
            child.kill().ok();
            child.wait()?;
            bail!("it did not answer in {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // What it says fits a pipe.
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("it ended with {}", output.status);
    }
    let python = serde_json::from_slice(&output.stdout);
    python.context("it did not say what it has").map(Some)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_python_that_does_not_answer_is_told_from_one_that_is_not_there() {
        let asked = |program: &str| ask(&PathBuf::from(program), &["json"]);
        assert_eq!(asked("python3").unwrap().unwrap().has, ["json"]);
        assert_eq!(asked("no-python-of-this-name").unwrap(), None);
        let error = asked("false").unwrap_err();
        assert_eq!(error.to_string(), "it ended with exit status: 1");
        let error = asked("echo").unwrap_err();
        assert_eq!(error.to_string(), "it did not say what it has");
    }

    #[test]
    fn builds_for_the_processor_alone_are_no_tenants() {
        let folder = tempfile::tempdir().unwrap();
        let packages = ["cuda.core", "torch", "jax", "cupy", "triton", "json"];
        let has = || {
            let mut command = Command::new("python3");
            command.args(["-c", PROBE]).args(packages);
            // Nothing that is installed here.
            let command = command
                .arg("nothing-of-this-name")
                .env("PYTHONNOUSERSITE", "1");
            let output = command.env("PYTHONPATH", folder.path()).output().unwrap();
            let python: Python = serde_json::from_slice(&output.stdout).unwrap();
            python.has
        };
        let make = |name: &str| {
            let place = folder.path().join(name);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            // Were it imported, it would fail.
            fs::write(place, "raise SystemExit(9)").unwrap();
        };
        make("torch/__init__.py");
        make("triton/__init__.py");
        make("jax/__init__.py");
        make("cuda/core/__init__.py");
        assert_eq!(has(), ["cuda.core", "json"]);
        make("torch/lib/libtorch_cuda.so");
        make("jax_cuda13_plugin/__init__.py");
        let found = has();
        assert_eq!(found[..3], ["cuda.core", "torch", "jax"]);
        let compiles = ["gcc", "clang", "cc"].iter().any(|name| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(name).exists())
        });
        assert_eq!(found.contains(&"triton".to_owned()), compiles, "{found:?}");
    }
}
