//! Puts the program and the libraries that it looks for where they find each
//! other: `bin` and `lib/fercuda` of one folder, as under `/usr/local`.
//!
//! Invariant: what is there afterwards was tried there, where nothing of the
//! build can be found in its stead. Elsewhere: the hook's profile (`profile`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::profile::Hook;
use crate::{cargo, profile, shell};

/// Libraries by package, and the file of each.
const LIBRARIES: [(&str, &str); 3] = [
    ("hook", "libfercuda_hook.so"),
    ("dropin", "libcuda.so"),
    ("guest", "libfercuda_guest.so"),
];

/// The program's place in the folder.
const PROGRAM: &str = "bin/fercuda";

/// What belongs together.
pub(crate) struct Parts {
    /// Each file, with its place in the folder.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Whether the hook is built by a profile, as a sentence.
    pub profile: String,
}

/// Builds, copies and tries it. `profiled`: the hook by a profile.
pub(crate) fn run(out: &Path, profiled: bool) -> Result<()> {
    let out = shell::root().join(out);
    let parts = parts(profiled)?;
    for (built, place) in &parts.files {
        put(built, &out.join(place))?;
    }
    let program = out.join(PROGRAM);
    let mut demo = shell::command(&program);
    demo.arg("demo");
    shell::run(demo).context("it was put there, and its demo fails")?;
    println!("\n{}", parts.profile);
    println!("written: {} and what it needs", program.display());
    Ok(())
}

/// Builds what belongs together.
pub(crate) fn parts(profiled: bool) -> Result<Parts> {
    // By itself: built with the tests, the hook has a knob that breaks rules.
    let made = cargo::artifacts(
        "build",
        &["--locked", "--release", "--package", "fercuda-cli"],
    )?;
    let mut programs = made.iter().filter(|it| it.package == "cli");
    let program = programs.find_map(|it| it.executable.clone());
    let program = program.context("fercuda-cli built no program")?;
    let hook = match profiled {
        true => profile::hook(cargo::library(&made, "dropin")?)?,
        false => Hook::Without("as was asked for".to_owned()),
    };
    let mut files = vec![(program, PathBuf::from(PROGRAM))];
    for (package, name) in LIBRARIES {
        let library = match &hook {
            Hook::Profiled(hook) if package == "hook" => hook,
            _ => cargo::library(&made, package)?,
        };
        files.push((library.to_owned(), Path::new("lib/fercuda").join(name)));
    }
    let profile = match hook {
        Hook::Profiled(_) => "the hook is built by a profile".to_owned(),
        Hook::Without(reason) => format!(
            "the hook is built WITHOUT a profile, and takes about half as long again\n  {reason}"
        ),
    };
    Ok(Parts { files, profile })
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
