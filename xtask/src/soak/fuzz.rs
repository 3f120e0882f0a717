//! Fuzz targets: readers of untrusted bytes under libFuzzer, by its own search for new paths.
//!
//! Each begins with the inputs that its crate keeps (`tests/corpora`), and keeps what it finds in
//! `fuzz/corpus`, which is not committed. An input that fails becomes one of the crate's, so that
//! its tests try it from then on with a stable compiler.
//!
//! No sanitizer: the readers have no unsafe code, so it would find nothing and take half of the
//! time. Debug assertions and checks of overflow are on.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::nightly;
use crate::shell;

/// Seconds of one target in a round.
const SECONDS: u64 = 600;
/// Longer inputs are not tried, as mutations' are not.
const LONGEST: usize = 1 << 16;

/// A target of `fuzz/Cargo.toml`.
pub(super) struct FuzzTarget {
    /// Its name, which is that of the mutations' work and of the folder of inputs.
    pub(super) name: &'static str,
    /// The folder of the crate that keeps the inputs.
    pub(super) home: &'static str,
    /// Inputs from elsewhere.
    more: Option<&'static str>,
}

const fn target(name: &'static str, home: &'static str) -> FuzzTarget {
    let more = None;
    FuzzTarget { name, home, more }
}

pub(super) static TARGETS: [FuzzTarget; 14] = [
    target("cache-entries", "crates/cache"),
    target("expressions", "crates/jit"),
    target("images", "crates/softgpu"),
    target("ledgers", "crates/ledger"),
    FuzzTarget {
        name: "model-files",
        home: "crates/modelfile",
        more: Some("crates/modelfile/tests/references"),
    },
    FuzzTarget {
        name: "modules",
        home: "crates/softgpu",
        more: Some("crates/ptx/tests/forms"),
    },
    target("pickles", "crates/cli"),
    target("plans", "crates/runtime"),
    target("pool-programs", "crates/pool"),
    FuzzTarget {
        name: "ptx-texts",
        home: "crates/ptx",
        more: Some("crates/ptx/tests/forms"),
    },
    target("snapshots", "crates/cli"),
    target("tokenizers", "crates/tokenizer"),
    target("traces", "crates/cli"),
    target("triton-metadata", "crates/runtime"),
];

impl FuzzTarget {
    /// Where the crate keeps inputs, from the root.
    pub(super) fn corpus(&self) -> PathBuf {
        Path::new(self.home).join("tests/corpora").join(self.name)
    }
}

/// What to install before targets can be run; `None` if they can.
pub(super) fn missing() -> Option<&'static str> {
    nightly::missing(
        "fuzz",
        "rustup toolchain install nightly && cargo install cargo-fuzz --locked",
    )
}

/// Runs a target for its time. Returns the file of an input that fails.
pub(super) fn run(target: &FuzzTarget) -> Result<Option<PathBuf>> {
    let place = shell::root().join("fuzz");
    let (found, failed) = (
        place.join("corpus").join(target.name),
        place.join("artifacts").join(target.name),
    );
    seed(target, &found)?;
    let before = files(&failed)?;
    let mut command = nightly::command("fuzz");
    command
        .args(["run", "--fuzz-dir", "fuzz", "--sanitizer", "none"])
        .arg(target.name)
        .arg("--")
        .arg(format!("-max_total_time={SECONDS}"))
        .arg(format!("-max_len={LONGEST}"))
        .args(["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]);
    if shell::run(command).is_ok() {
        return Ok(None);
    }
    let new = files(&failed)?.into_iter().find(|it| !before.contains(it));
    let Some(new) = new else {
        bail!("{} failed, and left no input", target.name);
    };
    keep(target, &new).map(Some)
}

/// Puts the inputs that crates keep among those that the fuzzer has found.
fn seed(target: &FuzzTarget, found: &Path) -> Result<()> {
    fs::create_dir_all(found).with_context(|| format!("cannot create {}", found.display()))?;
    let more = target.more.map(PathBuf::from);
    for (at, folder) in [Some(target.corpus()), more]
        .into_iter()
        .flatten()
        .enumerate()
    {
        for file in files(&shell::root().join(folder))? {
            let kept = fercuda_trials::read_input(&file);
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let seed = found.join(format!("kept-{at}-{name}"));
            fs::write(&seed, kept).with_context(|| format!("cannot write {}", seed.display()))?;
        }
    }
    Ok(())
}

/// Writes an input that fails, in hexadecimal digits, to where the crate's tests find it.
fn keep(target: &FuzzTarget, input: &Path) -> Result<PathBuf> {
    let bytes = fs::read(input).with_context(|| format!("cannot read {}", input.display()))?;
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let file = target.corpus().join(format!("{name}.hex"));
    let full = shell::root().join(&file);
    fs::write(&full, hex(&bytes)).with_context(|| format!("cannot write {}", full.display()))?;
    Ok(file)
}

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(48).map(|line| {
        let digits = line.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>() + "\n"
    });
    lines.collect()
}

/// The files of a folder, sorted; none if there is no folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let files: std::io::Result<Vec<PathBuf>> = entries.map(|it| Ok(it?.path())).collect();
    let mut files = files.with_context(|| format!("cannot list {}", folder.display()))?;
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_of_the_manifest_and_have_inputs() {
        let manifest = fs::read_to_string(shell::root().join("fuzz/Cargo.toml")).unwrap();
        let names = manifest.split("[[bin]]\nname = \"").skip(1);
        let names: Vec<&str> = names.filter_map(|it| it.split('"').next()).collect();
        assert_eq!(names, TARGETS.each_ref().map(|target| target.name));
        for target in &TARGETS {
            let kept = files(&shell::root().join(target.corpus())).unwrap();
            assert!(!kept.is_empty(), "{}", target.corpus().display());
        }
    }

    /// So that what is fuzzed is what is used, and cargo-deny has examined it.
    #[test]
    fn versions_are_those_of_the_workspace() {
        let versions = |file: &str| {
            let text = fs::read_to_string(shell::root().join(file)).unwrap();
            let packages = text.split("[[package]]\nname = \"").skip(1);
            let of_package = |it: &str| {
                let (name, rest) = it.split_once("\"\nversion = \"").unwrap();
                (name.to_owned(), rest.split('"').next().unwrap().to_owned())
            };
            packages.map(of_package).collect::<Vec<_>>()
        };
        let ours = versions("Cargo.lock");
        let mut others = versions("fuzz/Cargo.lock");
        others.retain(|it| !ours.contains(it));
        let names: Vec<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
        let wanted = ["arbitrary", "fercuda-fuzz", "jobserver", "libfuzzer-sys"];
        let hint = "try: cp Cargo.lock fuzz/ && cargo metadata --manifest-path fuzz/Cargo.toml";
        assert_eq!(names, wanted, "{hint}");
    }

    #[test]
    fn an_input_that_failed_is_kept_as_it_is() {
        let bytes: Vec<u8> = (0..=255).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("crash-1.hex");
        fs::write(&file, hex(&bytes)).unwrap();
        assert_eq!(fercuda_trials::read_input(&file), bytes);
    }
}
