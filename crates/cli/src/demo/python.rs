//! Search for the Python that has most of the packages that can be tenants.
//!
//! No package is imported to find out. Python runs the code in its folders, so only a Python
//! that the user named in the environment is asked, never one of the current directory.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fercuda_nvrtc::find::program_of_path;
use serde::Deserialize;

const PROBE: &str = include_str!("probe.py");
/// A Python that takes longer to list its packages is not used.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A Python installation and its relevant packages.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Python {
    /// Path of the interpreter itself, not of a link or script that starts it.
    pub(crate) executable: PathBuf,
    pub(crate) version: String,
    /// The requested packages that it has.
    pub(crate) has: Vec<String>,
}

/// The Python with the most of `packages`, or `None` if no Python has any; and the Pythons that
/// did not answer, with the reason.
pub(crate) fn find(packages: &[&str]) -> (Option<Python>, Vec<String>) {
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
    found.extend(program_of_path("python3"));
    found
}

/// The packages of a Python; `None` if there is no such Python.
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
        if begun.elapsed() > TIMEOUT {
            // It may have ended in the meantime.
            child.kill().ok();
            child.wait()?;
            bail!("it did not answer in {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // Its output fits into the pipe's buffer.
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("it ended with {}", output.status);
    }
    let python = serde_json::from_slice(&output.stdout);
    python.context("it did not list its packages").map(Some)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_python_that_fails_is_distinguished_from_a_missing_one() {
        let asked = |program: &str| ask(&PathBuf::from(program), &["json"]);
        assert_eq!(asked("python3").unwrap().unwrap().has, ["json"]);
        assert_eq!(asked("no-python-of-this-name").unwrap(), None);
        let error = asked("false").unwrap_err();
        assert_eq!(error.to_string(), "it ended with exit status: 1");
        let error = asked("echo").unwrap_err();
        assert_eq!(error.to_string(), "it did not list its packages");
    }

    #[test]
    fn cpu_only_builds_are_not_tenants() {
        let folder = tempfile::tempdir().unwrap();
        let packages = ["cuda.core", "torch", "jax", "cupy", "triton", "json"];
        let has = || {
            let mut command = Command::new("python3");
            command.args(["-c", PROBE]).args(packages);
            // No locally installed packages.
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
            // Importing it would fail.
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
