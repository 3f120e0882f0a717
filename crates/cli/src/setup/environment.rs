//! Installation targets: the active Python environment, or one that `fercuda setup` owns.
//!
//! Invariant: a folder is ours if it has [`MARKER`], which is written before anything else is
//! created there; an existing folder without it is not modified. While a process works in one
//! of ours, it holds a lock on the marker.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use fercuda_nvrtc::find::{check_trusted, of_user, program_of_path};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::terminal;

/// The file that marks a folder as ours.
pub(super) const MARKER: &str = "fercuda-setup.json";

/// Python versions for which the pinned wheels exist.
const PYTHONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];

/// Contents of the marker file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    /// Parts that were started and are not finished: `venv`, bundles.
    pub(super) unfinished: BTreeSet<String>,
    /// Installed bundles, with their pip requirements.
    pub(super) bundles: BTreeMap<String, Vec<String>>,
}

/// An installation target.
#[derive(Debug)]
pub(super) enum InstallTarget {
    /// The user's environment, which is active.
    Active(PathBuf),
    /// Ours; it may not exist yet.
    Own(PathBuf),
}

/// State of a target of our own.
#[derive(Debug)]
pub(super) enum TargetState {
    /// It does not exist.
    Absent,
    /// `fercuda setup` made it.
    Ours(Marker),
}

impl InstallTarget {
    /// `into` if given, else the active environment, else the user's data folder.
    pub(super) fn choose(into: Option<&Path>) -> Result<InstallTarget> {
        if let Some(into) = into {
            let path = std::path::absolute(into).context("cannot resolve the path of --into")?;
            return Ok(InstallTarget::Own(path));
        }
        let active = std::env::var_os("VIRTUAL_ENV").filter(|value| !value.is_empty());
        if let Some(active) = active.map(PathBuf::from) {
            if !active.join("bin/python").exists() {
                bail!(
                    "VIRTUAL_ENV is {}, which has no bin/python\n\
                     try: deactivate, or --into with a folder for fercuda to create",
                    active.display()
                );
            }
            return Ok(InstallTarget::Active(active));
        }
        match of_user() {
            Some(path) => Ok(InstallTarget::Own(path)),
            None => {
                bail!("cannot find the user's data folder: HOME is not set\ntry: --into FOLDER")
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Active(path) | Self::Own(path) => path,
        }
    }

    pub(super) fn python(&self) -> PathBuf {
        self.path().join("bin/python")
    }

    /// Its state; the owner of an active environment is not checked.
    ///
    /// # Errors
    /// If it exists and is not ours.
    pub(super) fn state(&self) -> Result<TargetState> {
        let Self::Own(path) = self else {
            return Ok(TargetState::Ours(Marker::default()));
        };
        if fs::symlink_metadata(path).is_err() {
            return Ok(TargetState::Absent);
        }
        let marker = path.join(MARKER);
        let trouble = match check_trusted(&marker) {
            _ if !marker.is_file() => Some(format!("it has no {MARKER}")),
            trusted => trusted.err().map(|untrusted| untrusted.to_string()),
        };
        if let Some(trouble) = trouble {
            bail!(
                "{} exists, but fercuda setup did not make it for you alone: {trouble}\n\
                 try: --into another folder; to install into an environment of your own, \
                 activate it first",
                path.display()
            );
        }
        let text = fs::read_to_string(&marker)
            .with_context(|| format!("cannot read {}", marker.display()))?;
        Ok(TargetState::Ours(Marker::of(&text)))
    }

    /// The installed versions of these packages. A package that is missing has no entry.
    pub(super) fn versions(&self, names: &[&str]) -> Result<BTreeMap<String, String>> {
        const ASK: &str = "\
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        version = metadata.version(name)
    except Exception:
        continue
    # An interrupted pip may have left a folder without a name or version.
    if version:
        found[name] = version
print(json.dumps(found))";
        let python = self.python();
        if !python.exists() {
            // Creating a virtual environment does not replace such a link.
            if python.is_symlink() {
                bail!(
                    "{} is a link to a Python that no longer exists\n\
                     try: rm -r {}; then the same command again, which creates it again",
                    python.display(),
                    self.path().display()
                );
            }
            return Ok(BTreeMap::new());
        }
        let asked = Command::new(&python)
            .args(["-I", "-c", ASK])
            .args(names)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", python.display()))?;
        let said = String::from_utf8_lossy(&asked.stderr);
        if !asked.status.success() {
            // A half-made environment is made again.
            if let Ok(TargetState::Ours(marker)) = self.state()
                && !marker.unfinished.is_empty()
            {
                return Ok(BTreeMap::new());
            }
            bail!(
                "{} failed to list its packages: {}\ntry: --into another folder",
                python.display(),
                said.lines().last().unwrap_or("no error message")
            );
        }
        serde_json::from_slice(&asked.stdout).context("its list of packages cannot be read")
    }
}

impl Marker {
    /// A truncated marker means that something is unfinished.
    fn of(text: &str) -> Marker {
        serde_json::from_str(text).unwrap_or_else(|_| Marker {
            unfinished: BTreeSet::from(["venv".to_owned()]),
            bundles: BTreeMap::new(),
        })
    }
}

/// A target of our own that this process alone works on.
#[derive(Debug)]
pub(super) struct LockedTarget {
    file: File,
    pub(super) marker: Marker,
}

impl LockedTarget {
    /// Begins or goes on: makes the folder with its marker, unless it exists.
    pub(super) fn begin(path: &Path) -> Result<LockedTarget> {
        let marker = path.join(MARKER);
        if let Some(parent) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
            made.with_context(|| format!("cannot make {}", parent.display()))?;
        }
        // Whichever process creates the folder knows that no other did.
        let is_new = match DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        };
        if let Err(untrusted) = check_trusted(path) {
            if is_new {
                fs::remove_dir(path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
            bail!(
                "{} is no place to run code from, as another user could change it: {untrusted}\n\
                 try: --into another folder",
                path.display()
            );
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(is_new)
            .mode(0o600)
            .open(&marker);
        let file = opened.with_context(|| format!("cannot write {}", marker.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => bail!(
                "another fercuda setup is running in {}\ntry: again when it has finished",
                path.display()
            ),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock {}", marker.display()));
            }
        }
        let mut work = LockedTarget {
            file,
            marker: Marker::default(),
        };
        if is_new {
            work.note("venv", true)?;
        } else {
            let mut text = String::new();
            // A marker that is not UTF-8 was truncated.
            work.file.read_to_string(&mut text).ok();
            work.marker = Marker::of(&text);
        }
        Ok(work)
    }

    /// Records that a part was started, or is finished.
    pub(super) fn note(&mut self, part: &str, is_unfinished: bool) -> Result<()> {
        match is_unfinished {
            true => self.marker.unfinished.insert(part.to_owned()),
            false => self.marker.unfinished.remove(part),
        };
        let text = serde_json::to_string_pretty(&self.marker)? + "\n";
        let mut write = || -> std::io::Result<()> {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(text.as_bytes())
        };
        write().with_context(|| format!("cannot write {MARKER}"))
    }
}

/// A Python that the pinned wheels support, in an absolute folder of `PATH`.
pub(super) fn python() -> Result<OsString> {
    let mut tried = Vec::new();
    let others = PYTHONS
        .iter()
        .rev()
        .map(|version| format!("python{version}"));
    for name in std::iter::once("python3".to_owned()).chain(others) {
        let Some(program) = program_of_path(&name) else {
            tried.push(format!("{name}: not in PATH"));
            continue;
        };
        let asked = Command::new(&program)
            .args([
                "-I",
                "-c",
                "import sys; print(*sys.version_info[:2], sep='.')",
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let said = match asked {
            Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            Err(error) => {
                tried.push(format!("{name}: {error}"));
                continue;
            }
        };
        if PYTHONS.contains(&said.as_str()) {
            return Ok(program.into());
        }
        tried.push(format!("{name}: version {said:?}"));
    }
    bail!(
        "cannot find a Python from {} to {}\n{}\n\
         try: install python3 with venv and pip (apt install python3-venv python3-pip), or \
         activate an environment of your own",
        PYTHONS[0],
        PYTHONS[PYTHONS.len() - 1],
        terminal::wrapped(&tried.join(", "), 76).join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_marker_is_ours_and_unfinished() {
        let whole = Marker {
            unfinished: BTreeSet::from(["hf".to_owned()]),
            bundles: BTreeMap::from([("gguf".to_owned(), vec!["gguf==1".to_owned()])]),
        };
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(Marker::of(&text), whole);
        for len in 0..text.len() {
            let unfinished = Marker::of(&text[..len]).unfinished;
            assert_eq!(Vec::from_iter(unfinished), ["venv"]);
        }
    }

    #[test]
    fn one_process_works_in_a_folder_at_a_time_and_the_next_resumes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/venv");
        let target = InstallTarget::Own(path.clone());
        assert!(matches!(target.state().unwrap(), TargetState::Absent));
        let mut work = LockedTarget::begin(&path).unwrap();
        let unfinished = |marker: &Marker| marker.unfinished.iter().cloned().collect::<Vec<_>>();
        assert_eq!(unfinished(&work.marker), ["venv"]);
        let busy = LockedTarget::begin(&path).unwrap_err().to_string();
        assert!(busy.contains("another fercuda setup"), "{busy}");
        work.marker.bundles.insert("hf".to_owned(), Vec::new());
        work.note("venv", false).unwrap();
        work.note("hf", true).unwrap();
        drop(work);
        let TargetState::Ours(marker) = target.state().unwrap() else {
            panic!("not ours");
        };
        assert_eq!(unfinished(&marker), ["hf"]);
        let mut work = LockedTarget::begin(&path).unwrap();
        assert_eq!(work.marker, marker);
        // Finishing another bundle does not finish the first.
        work.note("gguf", true).unwrap();
        work.note("gguf", false).unwrap();
        assert_eq!(unfinished(&work.marker), ["hf"]);
        work.note("hf", false).unwrap();
        assert_eq!(unfinished(&work.marker), [""; 0]);
    }

    #[test]
    fn a_folder_that_setup_did_not_make_is_refused_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_folder) in [("folder", true), ("file", false)] {
            let path = folder.path().join(name);
            if is_folder {
                fs::create_dir(&path).unwrap();
            } else {
                fs::write(&path, "mine").unwrap();
            }
            let refused = InstallTarget::Own(path.clone())
                .state()
                .unwrap_err()
                .to_string();
            assert!(refused.contains("\ntry: --into"), "{refused}");
            // Nor if it appears between the check and the work.
            assert!(LockedTarget::begin(&path).is_err());
            assert!(!path.join(MARKER).exists());
        }
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        assert!(
            InstallTarget::Own(folder.path().join("link"))
                .state()
                .is_err()
        );
    }
}
