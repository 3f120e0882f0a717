//! The Python package's start-up folder for a program: `--hf`.
//!
//! With that folder first in `PYTHONPATH`, a Python calls `guest_hooks.hf_hook` before it imports
//! PyTorch or Transformers. The folder is part of the package, so the package's own Python is
//! asked where it is: the program's, if it is one or is run by one, else that of the active
//! environment, else the first in `PATH`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use fercuda_nvrtc::find::program_of_path;

use super::program;
use crate::status::bail_usage;

/// Prints the start-up folder of the installed package, without importing it; nothing is imported
/// from the current folder.
const PROBE: &str = "\
import sys
sys.path[:] = [place for place in sys.path if place]
import importlib.util, os
spec = importlib.util.find_spec('fercuda_runtime')
for place in (spec.submodule_search_locations or []) if spec else []:
    folder = os.path.join(os.path.abspath(place), 'guest_hooks', 'startup')
    if os.path.isfile(os.path.join(folder, 'sitecustomize.py')):
        sys.stdout.write(folder)
        break
";

/// The value of `PYTHONPATH` for `program`: the start-up folder, then what is there now.
pub(super) fn python_path(program: &Path) -> Result<OsString> {
    let Some(python) = python_of(program) else {
        bail_usage!(
            "--hf needs a Python with the package fercuda_runtime, and there is no python3 in PATH\n\
             try: activate the environment that has both"
        );
    };
    let asked = Command::new(&python)
        .args(["-c", PROBE])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let folder = match asked {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => bail_usage!(
            "{} did not say where its packages are: it ended with {}\n\
             try: that program, to see why",
            python.display(),
            output.status
        ),
        Err(error) => bail_usage!("cannot start {}: {error}", python.display()),
    };
    if folder.is_empty() {
        bail_usage!(
            "--hf needs the package fercuda_runtime, which {0} does not have\n\
             try: {0} -m pip install with the wheel of a release, or \
             activate the environment that has it",
            python.display()
        );
    }
    Ok(in_front(
        OsString::from_vec(folder),
        std::env::var_os("PYTHONPATH"),
    ))
}

/// `folder` in front of the entries of `rest`, once.
fn in_front(folder: OsString, rest: Option<OsString>) -> OsString {
    let mut list = folder.clone();
    let rest = rest.unwrap_or_default();
    let others = rest.as_bytes().split(|byte| *byte == b':');
    // An empty entry is the current folder, but no entries at all are none.
    for other in others.filter(|other| !rest.is_empty() && *other != folder.as_bytes()) {
        list.push(":");
        list.push(OsStr::from_bytes(other));
    }
    list
}

/// The Python to ask.
fn python_of(program: &Path) -> Option<PathBuf> {
    let runs = program::runs_on(program);
    let is_python = runs.file_name().is_some_and(|name| {
        let name = name.as_bytes();
        name.starts_with(b"python") || name.starts_with(b"pypy")
    });
    if is_python {
        return Some(runs);
    }
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(std::env::var_os)
        .filter(|value| !value.is_empty())
        .map(|value| Path::new(&value).join("bin/python"))
        .find(|python| python.exists());
    active.or_else(|| program_of_path("python3"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_stands_first_and_once() {
        let joined = |rest: Option<&str>| in_front("/a".into(), rest.map(OsString::from));
        assert_eq!(joined(None), "/a");
        assert_eq!(joined(Some("")), "/a");
        assert_eq!(joined(Some("/b:/a:/c")), "/a:/b:/c");
        assert_eq!(joined(Some(":/b")), "/a::/b");
    }

    #[test]
    fn a_script_is_asked_by_its_own_python() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python3.99");
        std::fs::write(&python, "\x7fELF").unwrap();
        let script = folder.path().join("tool");
        std::fs::write(&script, format!("#!{}\n", python.display())).unwrap();
        assert_eq!(python_of(&script), Some(python.clone()));
        assert_eq!(python_of(&python), Some(python));
    }
}
