//! build/venv: a Python with NVIDIA's wheels and the foreign clients; build/python:
//! one with what builds and checks our own package; build/release: one with what builds a
//! release.
//!
//! Invariant: a venv holds exactly what its requirements.txt names, or it is
//! made again; a copy of that file inside the venv, written last, is the proof.
//! Nothing is installed outside build/.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

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
    let what = "build/venv and NVIDIA's wheels (about 1 GB on disk, once)";
    let (venv, fresh) = installed("build/venv", "requirements.txt", what, force)?;
    let wheels = nvidia_folder(&venv)?;
    if !fresh {
        make_runnable(&wheels)?;
        println!("ready: {}", venv.display());
    }
    Ok(Venv {
        python: venv.join("bin/python"),
        wheels,
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
    let what = "build/python: maturin and mypy";
    let (venv, _) = installed("build/python", "python/requirements.txt", what, false)?;
    Ok(venv.join("bin/python"))
}

/// The Python that has what builds a release: maturin, zig and cargo-zigbuild.
pub(crate) fn release_tools() -> Result<PathBuf> {
    let what = "build/release: maturin, zig and cargo-zigbuild (about 400 MB on disk, once)";
    let (venv, _) = installed(
        "build/release",
        "python/requirements-release.txt",
        what,
        false,
    )?;
    Ok(venv.join("bin/python"))
}

/// A venv as a file of requirements says; whether it was so before.
fn installed(venv: &str, file: &str, what: &str, force: bool) -> Result<(PathBuf, bool)> {
    let root = shell::root();
    let venv = root.join(venv);
    let stamp = venv.join("fercuda-requirements.txt");
    let wanted = fs::read(root.join(file)).with_context(|| format!("cannot read {file}"))?;
    let fresh = !force && fs::read(&stamp).is_ok_and(|had| had == wanted);
    if !fresh {
        shell::step(&format!("set-up: {what}"));
        make(&venv, file)?;
        fs::write(&stamp, &wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    }
    Ok((venv, fresh))
}

fn make(venv: &Path, file: &str) -> Result<()> {
    let python = find_python()?;
    let mut create = shell::command(&python);
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

/// A Python that the pinned wheels exist for: 3.11 to 3.14.
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
            .args(["-c", "import sys; print(*sys.version_info[:2], sep='.')"])
            .stderr(Stdio::null())
            .output();
        let Ok(output) = version else {
            tried.push(format!("{}: not found", python.display()));
            continue;
        };
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if matches!(version.as_str(), "3.11" | "3.12" | "3.13" | "3.14") {
            return Ok(python);
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
