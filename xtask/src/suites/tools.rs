//! Installation of the suites: crates built here, and packages of the distribution.
//!
//! Elsewhere: where they are kept ([`crate::installed`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::installed::{self, Wanted};
use crate::{cargo, debian, shell};

/// Name and version; the expected numbers of passes in `judge` depend on the version.
pub(super) const PJDFSTEST: (&str, &str) = ("pjdfstest", "0.2.2");
pub(super) const FSX: (&str, &str) = ("fsx", "0.3.2");
const STRESS_NG: &str = "stress-ng";
const FUSERMOUNT: &str = "fusermount3";

/// Installed programs, with the libraries that they need.
pub(super) struct SuiteTools {
    bin: PathBuf,
    /// Programs of unpacked packages, by name.
    unpacked: Vec<(&'static str, PathBuf)>,
    /// Libraries of an unpacked stress-ng.
    libraries: Vec<PathBuf>,
}

impl SuiteTools {
    /// Layout of the bundle: programs in one folder, libraries in `lib` beside them.
    pub(super) fn in_folder(folder: &Path) -> Self {
        let bin = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let libraries = vec![bin.join("lib")];
        Self {
            bin,
            unpacked: Vec::new(),
            libraries,
        }
    }

    /// A program that was installed here.
    fn own(&self, name: &str) -> Option<PathBuf> {
        let built = Some(self.bin.join(name)).filter(|program| program.exists());
        let mut unpacked = self.unpacked.iter();
        built.or_else(|| Some(unpacked.find(|(its, _)| *its == name)?.1.clone()))
    }

    /// Command for a program: the folder's, else the system's.
    pub(super) fn command(&self, name: &str) -> Command {
        let Some(own) = self.own(name) else {
            return Command::new(name);
        };
        let mut command = Command::new(own);
        if name == STRESS_NG
            && let Ok(search) = std::env::join_paths(&self.libraries)
        {
            command.env("LD_LIBRARY_PATH", search);
        }
        command
    }

    /// stress-ng and its libraries, to be copied into a folder for [`SuiteTools::in_folder`].
    pub(super) fn stress_ng(&self) -> Result<(PathBuf, Vec<PathBuf>)> {
        let program = self.own(STRESS_NG).or_else(|| find(STRESS_NG));
        let program = program.context("stress-ng is not on PATH")?;
        let mut ask = Command::new("ldd");
        ask.arg(&program);
        if let Ok(search) = std::env::join_paths(&self.libraries) {
            ask.env("LD_LIBRARY_PATH", search);
        }
        let output = shell::capture(ask)?;
        let paths = output.lines().filter_map(|line| {
            let path = line.split_once("=> ")?.1.split(' ').next()?;
            path.starts_with('/').then(|| PathBuf::from(path))
        });
        Ok((program, paths.filter(|path| !is_of_glibc(path)).collect()))
    }

    /// Path of fusermount3.
    pub(super) fn fusermount(&self) -> Result<PathBuf> {
        let program = self.own(FUSERMOUNT).or_else(|| find(FUSERMOUNT));
        program.context("fusermount3 is not on PATH\ntry: apt-get install fuse3")
    }

    /// Folder of the programs built here.
    pub(super) fn bin(&self) -> &Path {
        &self.bin
    }
}

/// Libraries of glibc, which every system has, in a version that matches its loader.
fn is_of_glibc(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').next().unwrap_or_default();
    [
        "libc",
        "libm",
        "libpthread",
        "libdl",
        "librt",
        "ld-linux-x86-64",
    ]
    .contains(&stem)
}

/// Installs missing programs.
pub(super) fn install(with_stress_ng: bool, with_fusermount: bool) -> Result<SuiteTools> {
    let crates = [PJDFSTEST, FSX];
    let named = crates.map(|(name, version)| format!("{name} {version}"));
    let key = named.join(", ");
    let wanted = Wanted {
        name: "suites",
        key: key.as_bytes(),
        what: &key,
        force: false,
    };
    let (root, _) = installed::folder(&wanted, |root| {
        for (name, version) in crates {
            install_crate(root, name, version)?;
        }
        // What only the build needed.
        let target = root.join("target");
        fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))
    })?;
    let mut tools = SuiteTools {
        bin: root.join("bin"),
        unpacked: Vec::new(),
        libraries: Vec::new(),
    };
    for (is_wanted, package, program) in [
        (with_stress_ng, STRESS_NG, STRESS_NG),
        (with_fusermount, "fuse3", FUSERMOUNT),
    ] {
        if is_wanted && find(program).is_none() {
            let unpacked = debian::unpacked(package, program)?;
            let file = find_in_package(&unpacked, program);
            let file = file.with_context(|| format!("Debian's {package} has no {program}"))?;
            tools.unpacked.push((program, file));
            if program == STRESS_NG {
                let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
                tools.libraries = folders.map(|folder| unpacked.join(folder)).into();
            }
        }
    }
    if with_stress_ng && !reports_version(tools.command(STRESS_NG), "stress-ng") {
        bail!("stress-ng does not start\ntry: apt-get install stress-ng");
    }
    Ok(tools)
}

/// Builds `fercuda` of this checkout: with the test profile, to reuse its artifacts, or as users
/// build it.
pub(super) fn fercuda(is_fast: bool) -> Result<PathBuf> {
    // With the Python module: its dependencies have more features, and the tests have those too.
    let mut asked = vec!["--locked", "--package", "fercuda-python"];
    asked.extend(["--package", "fercuda-cli", "--bin", "fercuda"]);
    if is_fast {
        asked.push("--release");
    }
    let made = cargo::artifacts("build", &asked)?;
    let program = made.into_iter().find_map(|made| made.executable);
    program.context("fercuda-cli built no program")
}

/// Installs a crate's program with little optimisation, as what it tests is slower.
fn install_crate(root: &Path, name: &str, version: &str) -> Result<()> {
    let mut install = cargo::command("install");
    install.args([
        "--locked",
        "--quiet",
        "--force",
        "--version",
        version,
        "--root",
    ]);
    install.arg(root).arg(name);
    install
        .env("CARGO_TARGET_DIR", root.join("target"))
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    shell::run(install).context("try: check that cargo reaches its registry")
}

/// Whether a program starts and reports the expected name and version.
fn reports_version(mut command: Command, expected: &str) -> bool {
    let output = command.arg("--version").stderr(Stdio::null()).output();
    output.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).starts_with(expected))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Path of a program in an unpacked package.
fn find_in_package(unpacked: &Path, program: &str) -> Option<PathBuf> {
    let folders = ["usr/bin", "bin"].map(|folder| unpacked.join(folder).join(program));
    folders.into_iter().find(|file| file.exists())
}
