//! Packages of Debian, downloaded and unpacked without installing them.
//!
//! Elsewhere: where they are kept ([`crate::installed`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::installed::{self, Wanted};
use crate::shell;

/// Folder with a Debian package, which is downloaded and unpacked if necessary.
pub(crate) fn unpacked(package: &str, program: &str) -> Result<PathBuf> {
    let what = format!("{program}, unpacked from Debian's package {package}");
    // The package of one release does not run on another.
    let system = fs::read("/etc/os-release").unwrap_or_default();
    let wanted = Wanted {
        name: package,
        key: &[package.as_bytes(), b"\n", &system].concat(),
        what: &what,
        force: false,
    };
    let (folder, _) = installed::folder(&wanted, |to| {
        download_and_unpack(package, to).with_context(|| {
            format!(
                "{program} is missing, and Debian's package could not be unpacked\n\
                 try: apt-get install {package}"
            )
        })
    })?;
    Ok(folder)
}

/// Downloads a Debian package and its missing dependencies, with separate package lists, and
/// unpacks them without installing.
fn download_and_unpack(package: &str, to: &Path) -> Result<()> {
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
    let output = shell::capture(apt(&wanted))?;
    // 'URI' FILE SIZE SUM; a file is NAME_VERSION_ARCHITECTURE.deb.
    let files = output.lines().filter_map(|line| line.split(' ').nth(1));
    let names: Vec<&str> = files.filter_map(|file| file.split('_').next()).collect();
    shell::run(apt(&[&["download"], &names[..]].concat()))?;
    for package in fs::read_dir(&packages)?.flatten() {
        if package.path().extension().is_some_and(|it| it == "deb") {
            let mut unpack = Command::new("dpkg");
            unpack.arg("--extract").arg(package.path()).arg(to);
            shell::run(unpack)?;
        }
    }
    // Documents and translations are most of the files, and no program needs them.
    for unneeded in [to.join("usr/share/doc"), to.join("usr/share/man"), packages] {
        if unneeded.exists() {
            fs::remove_dir_all(&unneeded)?;
        }
    }
    Ok(())
}
