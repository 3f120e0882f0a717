//! A Python that has libraries of CUDA's, if the machine has one.
//!
//! Looked for are the packages that can be tenants; none is imported to find
//! out. Python runs what lies in its folders, so a `build/venv` that a stranger
//! can write to is passed over.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fercuda_cuda::nvrtc::find::is_trusted;
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

/// The Python that has most of `packages`, or none if no Python has any.
pub(super) fn find(packages: &[&str]) -> Option<Python> {
    let mut best: Option<Python> = None;
    for candidate in candidates() {
        let Some(python) = ask(&candidate, packages) else {
            continue;
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
    best
}

/// The checkout's own, the active environment's, the first in `PATH`.
fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(current) = std::env::current_dir() {
        let environments = current.ancestors().map(|folder| folder.join("build/venv"));
        found.extend(environments.filter(|folder| is_trusted(folder)));
    }
    found.extend(std::env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    let mut found: Vec<PathBuf> = found.iter().map(|it| it.join("bin/python")).collect();
    found.push(PathBuf::from("python3"));
    found
}

fn ask(python: &PathBuf, packages: &[&str]) -> Option<Python> {
    let mut child = Command::new(python)
        .args(["-c", PROBE])
        .args(packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let begun = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if begun.elapsed() > PATIENCE {
            // It may have ended meanwhile.
            child.kill().ok();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // What it says fits a pipe.
    let output = child.wait_with_output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}
