//! Where bundles go: the active Python environment, or one of our own.
//!
//! Invariant: a folder is ours if it has [`MARKER`], which is written before anything else is
//! made there; one that is there without is left as it is. While somebody works in one of
//! ours he holds the marker's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use fercuda_nvrtc::find::{check_trusted, of_user};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::terminal;

/// The file by which a folder is known as ours.
pub(super) const MARKER: &str = "fercuda-setup.json";

/// Pythons for which the pinned wheels exist.
const PYTHONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];

/// What a folder of ours says of itself.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    /// What was begun and is not done: `venv`, bundles.
    pub(super) unfinished: BTreeSet<String>,
    /// What was installed, by bundle, as pip was told.
    pub(super) bundles: BTreeMap<String, Vec<String>>,
}

/// Where it goes.
#[derive(Debug)]
pub(super) enum Target {
    /// The user's, who has activated it.
    Active(PathBuf),
    /// Ours, or to be.
    Own(PathBuf),
}

/// What is at a place of our own.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing.
    Absent,
    /// What we made.
    Ours(Marker),
}

impl Target {
    /// `into` if it is given, else the active environment, else the user's data folder.
    pub(super) fn choose(into: Option<&Path>) -> Result<Target> {
        if let Some(into) = into {
            let path = std::path::absolute(into).context("cannot tell where --into is")?;
            return Ok(Target::Own(path));
        }
        let active = std::env::var_os("VIRTUAL_ENV").filter(|value| !value.is_empty());
        if let Some(active) = active.map(PathBuf::from) {
            if !active.join("bin/python").exists() {
                bail!(
                    "VIRTUAL_ENV is {}, which has no bin/python\n\
                     try: deactivate, or --into a folder that fercuda makes",
                    active.display()
                );
            }
            return Ok(Target::Active(active));
        }
        match of_user() {
            Some(path) => Ok(Target::Own(path)),
            None => bail!("there is no folder for data: HOME is not set\ntry: --into FOLDER"),
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

    /// What is there; what is active is not asked whose it is.
    ///
    /// # Errors
    /// If it is there and not ours.
    pub(super) fn state(&self) -> Result<State> {
        let Self::Own(path) = self else {
            return Ok(State::Ours(Marker::default()));
        };
        if fs::symlink_metadata(path).is_err() {
            return Ok(State::Absent);
        }
        let marker = path.join(MARKER);
        let trouble = match check_trusted(&marker) {
            _ if !marker.is_file() => Some(format!("it has no {MARKER}")),
            trusted => trusted.err().map(|untrusted| untrusted.to_string()),
        };
        if let Some(trouble) = trouble {
            bail!(
                "{} exists, and fercuda setup did not make it for you alone: {trouble}\n\
                 try: --into another folder; to install into an environment of your own, \
                 activate it first",
                path.display()
            );
        }
        let text = fs::read_to_string(&marker)
            .with_context(|| format!("cannot read {}", marker.display()))?;
        Ok(State::Ours(Marker::of(&text)))
    }

    /// Which of these packages it has, in which version. None has the one that is not there.
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
    # Who was interrupted may have left a folder that does not say it.
    if version:
        found[name] = version
print(json.dumps(found))";
        let python = self.python();
        if !python.exists() {
            // Nothing that makes an environment replaces such a link.
            if python.is_symlink() {
                bail!(
                    "{} leads to a Python that is not there any more\n\
                     try: rm -r {}; then the same command again, which makes it anew",
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
            // One that was half made is made again.
            if let Ok(State::Ours(marker)) = self.state()
                && !marker.unfinished.is_empty()
            {
                return Ok(BTreeMap::new());
            }
            bail!(
                "{} does not say what it has: {}\ntry: --into another folder",
                python.display(),
                said.lines().last().unwrap_or("it gave no reason")
            );
        }
        serde_json::from_slice(&asked.stdout).context("its list of packages cannot be read")
    }
}

impl Marker {
    /// One that was cut short says that something is unfinished.
    fn of(text: &str) -> Marker {
        serde_json::from_str(text).unwrap_or_else(|_| Marker {
            unfinished: BTreeSet::from(["venv".to_owned()]),
            bundles: BTreeMap::new(),
        })
    }
}

/// A place of our own at which we work alone.
#[derive(Debug)]
pub(super) struct Work {
    file: File,
    pub(super) marker: Marker,
}

impl Work {
    /// Begins or goes on: makes the folder with its marker, unless it is there.
    pub(super) fn begin(path: &Path) -> Result<Work> {
        let marker = path.join(MARKER);
        if let Some(parent) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
            made.with_context(|| format!("cannot make {}", parent.display()))?;
        }
        // Whoever makes it knows that nobody else has.
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
            .open(&marker);
        let file = opened.with_context(|| format!("cannot write {}", marker.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => bail!(
                "another fercuda setup is at work in {}\ntry: again when it is done",
                path.display()
            ),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock {}", marker.display()));
            }
        }
        let mut work = Work {
            file,
            marker: Marker::default(),
        };
        if is_new {
            work.note("venv", true)?;
        } else {
            let mut text = String::new();
            // What is no text is a marker that was cut short.
            work.file.read_to_string(&mut text).ok();
            work.marker = Marker::of(&text);
        }
        Ok(work)
    }

    /// Writes that something was begun, or is done.
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

/// A Python that the pinned wheels exist for, by its name in `PATH`.
pub(super) fn python() -> Result<OsString> {
    let mut tried = Vec::new();
    let others = PYTHONS
        .iter()
        .rev()
        .map(|version| format!("python{version}"));
    for name in std::iter::once("python3".to_owned()).chain(others) {
        let asked = Command::new(&name)
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
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tried.push(format!("{name}: not in PATH"));
                continue;
            }
            Err(error) => {
                tried.push(format!("{name}: {error}"));
                continue;
            }
        };
        if PYTHONS.contains(&said.as_str()) {
            return Ok(name.into());
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
    fn a_marker_that_was_cut_short_is_ours_and_unfinished() {
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
    fn one_works_in_a_folder_at_a_time_and_the_next_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/venv");
        let target = Target::Own(path.clone());
        assert!(matches!(target.state().unwrap(), State::Absent));
        let mut work = Work::begin(&path).unwrap();
        let unfinished = |marker: &Marker| marker.unfinished.iter().cloned().collect::<Vec<_>>();
        assert_eq!(unfinished(&work.marker), ["venv"]);
        let busy = Work::begin(&path).unwrap_err().to_string();
        assert!(busy.contains("another fercuda setup"), "{busy}");
        work.marker.bundles.insert("hf".to_owned(), Vec::new());
        work.note("venv", false).unwrap();
        work.note("hf", true).unwrap();
        drop(work);
        let State::Ours(marker) = target.state().unwrap() else {
            panic!("not ours");
        };
        assert_eq!(unfinished(&marker), ["hf"]);
        let mut work = Work::begin(&path).unwrap();
        assert_eq!(work.marker, marker);
        // That another one is done says nothing of the first.
        work.note("gguf", true).unwrap();
        work.note("gguf", false).unwrap();
        assert_eq!(unfinished(&work.marker), ["hf"]);
        work.note("hf", false).unwrap();
        assert_eq!(unfinished(&work.marker), [""; 0]);
    }

    #[test]
    fn what_we_did_not_make_is_refused_and_left() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_folder) in [("folder", true), ("file", false)] {
            let path = folder.path().join(name);
            if is_folder {
                fs::create_dir(&path).unwrap();
            } else {
                fs::write(&path, "mine").unwrap();
            }
            let refused = Target::Own(path.clone()).state().unwrap_err().to_string();
            assert!(refused.contains("\ntry: --into"), "{refused}");
            // Nor between the look and the work.
            assert!(Work::begin(&path).is_err());
            assert!(!path.join(MARKER).exists());
        }
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        assert!(Target::Own(folder.path().join("link")).state().is_err());
    }
}
