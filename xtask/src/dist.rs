//! Puts the program and the libraries that it looks for where they find each
//! other: `bin` and `lib/fercuda` of one folder, as under `/usr/local`.
//!
//! Invariant: what is there afterwards was tried there, where nothing of the
//! build can be found in its stead.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{cargo, shell};

/// Libraries by package, and the file of each.
const LIBRARIES: [(&str, &str); 3] = [
    ("hook", "libfercuda_hook.so"),
    ("dropin", "libcuda.so"),
    ("guest", "libfercuda_guest.so"),
];

/// The program's place in the folder.
const PROGRAM: &str = "bin/fercuda";

/// Builds, copies and tries it.
pub(crate) fn run(out: &Path) -> Result<()> {
    let out = shell::root().join(out);
    for (built, place) in parts()? {
        put(&built, &out.join(place))?;
    }
    let program = out.join(PROGRAM);
    let mut demo = shell::command(&program);
    demo.arg("demo");
    shell::run(demo).context("it was put there, and its demo fails")?;
    println!("\nwritten: {} and what it needs", program.display());
    Ok(())
}

/// Builds what belongs together; each file with its place in the folder.
pub(crate) fn parts() -> Result<Vec<(PathBuf, PathBuf)>> {
    // By itself: built with the tests, the hook has a knob that breaks rules.
    let made = cargo::artifacts(
        "build",
        &["--locked", "--release", "--package", "fercuda-cli"],
    )?;
    let mut programs = made.iter().filter(|it| it.package == "cli");
    let program = programs.find_map(|it| it.executable.clone());
    let program = program.context("fercuda-cli built no program")?;
    let mut parts = vec![(program, PathBuf::from(PROGRAM))];
    for (package, name) in LIBRARIES {
        let files = made.iter().filter(|it| it.package == package);
        let mut files = files.flat_map(|it| &it.files);
        let library = files.find(|file| file.extension().is_some_and(|it| it == "so"));
        let library = library.with_context(|| format!("fercuda-{package} built no library"))?;
        parts.push((library.clone(), Path::new("lib/fercuda").join(name)));
    }
    Ok(parts)
}

/// A copy in place of an older one at once: that may be running.
fn put(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file is in a folder")?;
    let draft = to.with_extension(format!("draft-{}", std::process::id()));
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, &draft).map(drop))
        .and_then(|()| fs::rename(&draft, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
