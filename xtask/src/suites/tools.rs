//! Where the suites come from: crates of others, built here, and a package of the distribution.
//!
//! Invariant: nothing is installed outside build/.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, shell};

/// Name and version, on which the numbers of `judge` are founded.
pub(super) const PJDFSTEST: (&str, &str) = ("pjdfstest", "0.2.2");
pub(super) const FSX: (&str, &str) = ("fsx", "0.3.2");
const STRESS_NG: &str = "stress-ng";
const FUSERMOUNT: &str = "fusermount3";

/// Programs by name, with the libraries that they brought.
pub(super) struct Tools {
    bin: PathBuf,
    /// Of a stress-ng that is not the system's.
    libraries: Vec<PathBuf>,
}

impl Tools {
    /// As the bundle has them: all in one folder, libraries in `lib` beside them.
    pub(super) fn in_folder(folder: &Path) -> Self {
        let bin = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let libraries = vec![bin.join("lib")];
        Self { bin, libraries }
    }

    /// One of them; what is not in the folder is the system's.
    pub(super) fn command(&self, name: &str) -> Command {
        let own = self.bin.join(name);
        if !own.exists() {
            return Command::new(name);
        }
        let mut command = Command::new(own);
        if name == STRESS_NG
            && let Ok(search) = std::env::join_paths(&self.libraries)
        {
            command.env("LD_LIBRARY_PATH", search);
        }
        command
    }

    /// stress-ng and its libraries, for a folder that [`Tools::in_folder`] takes.
    pub(super) fn stress_ng(&self) -> Result<(PathBuf, Vec<PathBuf>)> {
        let own = self.bin.join(STRESS_NG);
        let program = match own.exists() {
            true => own,
            false => find(STRESS_NG).context("stress-ng is not on PATH")?,
        };
        let mut ask = Command::new("ldd");
        ask.arg(&program);
        if let Ok(search) = std::env::join_paths(&self.libraries) {
            ask.env("LD_LIBRARY_PATH", search);
        }
        let said = shell::capture(ask)?;
        let paths = said.lines().filter_map(|line| {
            let path = line.split_once("=> ")?.1.split(' ').next()?;
            path.starts_with('/').then(|| PathBuf::from(path))
        });
        Ok((program, paths.filter(|path| !is_of_glibc(path)).collect()))
    }

    /// fusermount3.
    pub(super) fn fusermount(&self) -> Result<PathBuf> {
        let own = self.bin.join(FUSERMOUNT);
        match own.exists() {
            true => Ok(own),
            false => {
                find(FUSERMOUNT).context("fusermount3 is not on PATH\ntry: apt-get install fuse3")
            }
        }
    }

    /// The folder of what was built here.
    pub(super) fn bin(&self) -> &Path {
        &self.bin
    }
}

/// Whatever system there is has these, of one version with its loader.
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

/// Installs what is not there.
pub(super) fn install(with_stress_ng: bool, with_fusermount: bool) -> Result<Tools> {
    let root = shell::root().join("build/suites");
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    // Cargo wants no links on the way.
    let root = root.canonicalize()?;
    for (name, version) in [PJDFSTEST, FSX] {
        crate_of(&root, name, version)?;
    }
    let unpacked = root.join(STRESS_NG);
    let tools = Tools {
        bin: root.join("bin"),
        libraries: ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
            .map(|folder| unpacked.join(folder))
            .into(),
    };
    for (is_wanted, package, program) in [
        (with_stress_ng, STRESS_NG, STRESS_NG),
        (with_fusermount, "fuse3", FUSERMOUNT),
    ] {
        if is_wanted && find(program).is_none() {
            let link = tools.bin.join(program);
            let program = unpack(package, program, &root.join(package))?;
            let _none_before = fs::remove_file(&link);
            std::os::unix::fs::symlink(program, &link)?;
        }
    }
    if with_stress_ng && !answers(tools.command(STRESS_NG), "stress-ng") {
        bail!("stress-ng does not start\ntry: apt-get install stress-ng");
    }
    Ok(tools)
}

/// The program of this checkout, built as tests are: what they built is taken as it is. Or as users build it.
pub(super) fn fercuda(is_fast: bool) -> Result<PathBuf> {
    let mut asked = vec!["--locked", "--package", "fercuda-cli", "--bin", "fercuda"];
    if is_fast {
        asked.push("--release");
    }
    let made = cargo::artifacts("build", &asked)?;
    let program = made.into_iter().find_map(|made| made.executable);
    program.context("fercuda-cli built no program")
}

/// A crate's program, with little optimisation: what it tests is slower.
fn crate_of(root: &Path, name: &str, version: &str) -> Result<()> {
    let there = Command::new(root.join("bin").join(name));
    if answers(there, &format!("{name} {version}")) {
        return Ok(());
    }
    shell::step(&format!("set-up: {name} {version}, once"));
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

/// Whether a program can be started and says so of itself.
fn answers(mut command: Command, expected: &str) -> bool {
    let output = command.arg("--version").stderr(Stdio::null()).output();
    output.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).starts_with(expected))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// A program of a package that was unpacked.
fn in_bin(unpacked: &Path, program: &str) -> Option<PathBuf> {
    let folders = ["usr/bin", "bin"].map(|folder| unpacked.join(folder).join(program));
    folders.into_iter().find(|file| file.exists())
}

/// A program of a package of Debian's, which is taken unless it is there.
fn unpack(package: &str, program: &str, to: &Path) -> Result<PathBuf> {
    if let Some(there) = in_bin(to, program) {
        return Ok(there);
    }
    shell::step(&format!(
        "set-up: {program}, unpacked from Debian's package {package}"
    ));
    unpack_debians(package, to).with_context(|| {
        format!("there is no {program}, nor could Debian's be unpacked into build/\ntry: apt-get install {package}")
    })?;
    in_bin(to, program).with_context(|| format!("Debian's {package} has no {program}"))
}

/// Takes Debian's package and those that it needs and the system has not, with lists of our own, and installs none.
fn unpack_debians(package: &str, to: &Path) -> Result<()> {
    let packages = to.join("packages");
    fs::create_dir_all(packages.join("lists/partial"))?;
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.current_dir(&packages).arg("--quiet=2");
        for (option, value) in [
            ("Dir::State::lists", packages.join("lists")),
            ("Dir::Cache", packages.clone()),
            ("APT::Sandbox::User", "root".into()),
        ] {
            command
                .arg("-o")
                .arg(format!("{option}={}", value.display()));
        }
        command.args(words);
        command
    };
    shell::run(apt(&["update"]))?;
    let wanted = [
        "install",
        "--print-uris",
        "--no-install-recommends",
        package,
    ];
    let said = shell::capture(apt(&wanted))?;
    // 'URI' FILE SIZE SUM; a file is NAME_VERSION_ARCHITECTURE.deb.
    let files = said.lines().filter_map(|line| line.split(' ').nth(1));
    let names: Vec<&str> = files.filter_map(|file| file.split('_').next()).collect();
    shell::run(apt(&[&["download"], &names[..]].concat()))?;
    for package in fs::read_dir(&packages)?.flatten() {
        if package.path().extension().is_some_and(|it| it == "deb") {
            let mut unpack = Command::new("dpkg");
            unpack.arg("--extract").arg(package.path()).arg(to);
            shell::run(unpack)?;
        }
    }
    Ok(fs::remove_dir_all(&packages)?)
}
