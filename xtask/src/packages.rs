//! Published crates, packed as crates.io would get them.
//!
//! Holds the list of published crates and the checks of their packages' contents: the README,
//! licences, sizes, and files that the source includes. Elsewhere: what their manifests say of them
//! (`tidy::packages`).

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::count::Count;
use crate::{cargo, shell};

/// The published crates. A crate that these depend on is one of them, or for their tests only.
pub(crate) const PUBLISHED: [&str; 14] = [
    "fercuda-cache",
    "fercuda-cuda",
    "fercuda-cuda-sys",
    "fercuda-dispatcher",
    "fercuda-governor",
    "fercuda-jit",
    "fercuda-ledger",
    "fercuda-nvrtc",
    "fercuda-pool",
    "fercuda-ptx",
    "fercuda-regime",
    "fercuda-runtime",
    "fercuda-softgpu",
    "fercuda-tensor",
];

/// Files with the same text in each package as in the root.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// Maximum size of a file in a package.
const FILE_LIMIT_BYTES: u64 = 1 << 20;

/// Documents of the repository that only tests include; tests are not run from a package.
const OF_TESTS: [&str; 2] = ["docs/environment.md", "docs/recipes/build-a-kernel.md"];

/// Packs the published crates and fails on any violation.
pub(crate) fn run() -> Result<()> {
    let count = test()?;
    println!("{} packages in target/package", count.passed);
    match count.failed {
        0 => Ok(()),
        failed => bail!("{failed} packages have violations"),
    }
}

/// Packs the published crates, without building them and without network; counts one test for each.
pub(crate) fn test() -> Result<Count> {
    let mut command = cargo::command("package");
    command.args(["--locked", "--offline", "--no-verify", "--allow-dirty"]);
    command.arg("--quiet");
    for name in PUBLISHED {
        command.args(["--package", name]);
    }
    shell::run(command)?;
    let metadata = cargo::metadata()?;
    let target = Path::new(metadata["target_directory"].as_str().unwrap_or("target"));
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut count = Count::default();
    for name in PUBLISHED {
        let stem = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let file = target.join("package").join(format!("{stem}.crate"));
        let mut unpack = shell::command("tar");
        unpack.arg("-xzf").arg(&file).arg("-C").arg(folder.path());
        shell::run(unpack)?;
        let violations = violations(&folder.path().join(&stem), &shell::root())?;
        for violation in &violations {
            println!("package {name}: {violation}");
        }
        match violations.is_empty() {
            true => count.passed += 1,
            false => count.failed += 1,
        }
    }
    Ok(count)
}

/// The violations in one unpacked package of the repository at `root`.
fn violations(package: &Path, root: &Path) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    if !package.join("README.md").is_file() {
        violations.push("README.md: missing".to_owned());
    }
    for name in LICENCES {
        // Absent in both is no equality.
        let own = fs::read(root.join(name)).with_context(|| format!("cannot read {name}"))?;
        if fs::read(package.join(name)).ok() != Some(own) {
            violations.push(format!(
                "{name}: missing, or not the root's; try: ln -s ../../{name} in the crate"
            ));
        }
    }
    let mut folders = vec![package.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path);
                continue;
            }
            let within = path.strip_prefix(package)?;
            let bytes = entry.metadata()?.len();
            if bytes > FILE_LIMIT_BYTES {
                violations.push(format!(
                    "{}: {bytes} bytes, the limit is {FILE_LIMIT_BYTES}; try: exclude it",
                    within.display()
                ));
            }
            let is_built = within.starts_with("src") || within.starts_with("examples");
            if is_built && path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(&path)?;
                let missing = included(&text).filter(|file| {
                    !OF_TESTS.iter().any(|it| file.ends_with(it)) && !folder.join(file).exists()
                });
                violations.extend(missing.map(|file| {
                    let within = within.display();
                    format!("{within}: includes {file}, which is not in the package")
                }));
            }
        }
    }
    violations.sort();
    Ok(violations)
}

/// The files that a source file names for the compiler, relative to its folder.
fn included(text: &str) -> impl Iterator<Item = &str> {
    [
        "include_str!(\"",
        "include_bytes!(\"",
        "include!(\"",
        "#[path = \"",
    ]
    .into_iter()
    .flat_map(|head| text.split(head).skip(1))
    .filter_map(|rest| rest.split_once('"'))
    .map(|(file, _)| file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository's root, and an unpacked package without violations in it.
    fn sample() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("package");
        fs::create_dir_all(package.join("src/inner")).unwrap();
        fs::write(package.join("README.md"), "# A crate").unwrap();
        for name in LICENCES {
            fs::write(folder.path().join(name), name).unwrap();
            fs::write(package.join(name), name).unwrap();
        }
        fs::write(package.join("src/table.txt"), "1 2 3").unwrap();
        let text = "const TABLE: &str = include_str!(\"../table.txt\");";
        fs::write(package.join("src/inner/lib.rs"), text).unwrap();
        folder
    }

    fn found(folder: &tempfile::TempDir) -> Vec<String> {
        violations(&folder.path().join("package"), folder.path()).unwrap()
    }

    #[test]
    fn package_with_everything_has_no_violations() {
        assert_eq!(found(&sample()), [""; 0]);
    }

    #[test]
    fn what_a_package_lacks_is_named() {
        let folder = sample();
        let package = folder.path().join("package");
        fs::remove_file(package.join("README.md")).unwrap();
        fs::write(package.join("LICENSE-MIT"), "another").unwrap();
        fs::remove_file(package.join("LICENSE-APACHE")).unwrap();
        fs::remove_file(package.join("src/table.txt")).unwrap();
        let found = found(&folder);
        let starts = [
            "LICENSE-APACHE: missing",
            "LICENSE-MIT: missing",
            "README.md: missing",
            "src/inner/lib.rs: includes ../table.txt",
        ];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        for (violation, start) in found.iter().zip(starts) {
            assert!(violation.starts_with(start), "{violation}");
        }
    }

    #[test]
    fn large_file_is_named_with_its_size() {
        let folder = sample();
        let path = folder.path().join("package/trace.bin");
        let file = fs::File::create(path).unwrap();
        file.set_len(FILE_LIMIT_BYTES).unwrap();
        assert_eq!(found(&folder), [""; 0]);
        file.set_len(FILE_LIMIT_BYTES + 1).unwrap();
        let found = found(&folder);
        assert!(
            found[0].starts_with("trace.bin: 1048577 bytes"),
            "{found:?}"
        );
    }
}
