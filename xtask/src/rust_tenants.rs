//! Rust programs that know nothing of feRcuda (`tests/gpu/rust-tenants`), built outside the
//! workspace.
//!
//! Each is built once and kept with what chores install. The one over cudarc opens the driver at
//! run time and has its kernels as PTX: it runs over the software device too. The one over candle
//! links NVIDIA's libraries, which are not here: it is linked with libraries of the same names that
//! have nothing but the names of functions. Its kernels are compiled by the nvcc of NVIDIA's wheel.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::installed::{self, Wanted};
use crate::setup::Venv;
use crate::{cargo, shell};

const FOLDER: &str = "tests/gpu/rust-tenants";
/// What is compared with the lines of the program over cudarc.
pub(crate) const EXPECTED: &str = "tests/gpu/rust-tenants/cudarc/expected.txt";
/// The compute capability of candle's kernels, as PTX: they run on it and on later ones.
const CANDLE_CAPABILITY: &str = "90";

/// Libraries that candle's program links: name, the name that the loader looks for, and the part
/// of cudarc that declares its functions.
const LINKED: [(&str, &str, &str); 5] = [
    ("cuda", "libcuda.so.1", "driver"),
    ("cublas", "libcublas.so.13", "cublas"),
    ("cublasLt", "libcublasLt.so.13", "cublaslt"),
    ("curand", "libcurand.so.10", "curand"),
    ("nvrtc", "libnvrtc.so.13", "nvrtc"),
];

/// The program over cudarc.
pub(crate) fn cudarc() -> Result<PathBuf> {
    built("cudarc", "", |_, build| Ok(build))
}

/// The program over candle; an error where its kernels cannot be compiled. `cudarc` is the folder
/// of cudarc's source.
pub(crate) fn candle(venv: &Venv, cudarc: &Path) -> Result<PathBuf> {
    let toolkit = venv.wheels.join("cu13");
    let nvcc = toolkit.join("bin/nvcc");
    if !nvcc.is_file() {
        bail!("there is no {}\ntry: cargo xtask setup", nvcc.display());
    }
    built("candle", CANDLE_CAPABILITY, |to, mut build| {
        let linked = to.join("linked");
        fs::create_dir_all(&linked)?;
        for (name, wanted, part) in LINKED {
            let declared = cudarc.join("src").join(part).join("sys/mod.rs");
            named_library(&linked, name, wanted, &declared)?;
        }
        symlink(
            toolkit.join("lib/libcudart.so.13"),
            linked.join("libcudart.so"),
        )?;
        let mut search = toolkit.join("bin").into_os_string();
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap_or_default());
        build
            .env("PATH", search)
            .env("CUDA_HOME", &toolkit)
            .env("CUDA_COMPUTE_CAP", CANDLE_CAPABILITY)
            .env("REAL_NVCC", &nvcc)
            .env("NVCC", shell::root().join(FOLDER).join("candle/nvcc"));
        let mut flags = std::ffi::OsString::from("-L native=");
        flags.push(&linked);
        build.env("RUSTFLAGS", flags);
        Ok(build)
    })
}

/// A library with nothing but the functions that a file declares, for a linker.
fn named_library(folder: &Path, name: &str, wanted: &str, declared: &Path) -> Result<()> {
    let text = fs::read_to_string(declared)
        .with_context(|| format!("cannot read {}", declared.display()))?;
    // Some are declared once for each version of CUDA.
    let functions: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pub unsafe fn "))
        .filter_map(|rest| rest.split_once(['(', '<']))
        .map(|(function, _)| function)
        .collect();
    if functions.is_empty() {
        bail!("{} declares no function", declared.display());
    }
    let mut source = String::new();
    for function in functions {
        // Writing to a String cannot fail.
        let _infallible = writeln!(source, "void {function}(void) {{}}");
    }
    let file = folder.join(format!("{name}.c"));
    fs::write(&file, source)?;
    let mut compile = shell::command("cc");
    compile
        .args(["-shared", "-fPIC", "-w"])
        .arg(format!("-Wl,-soname,{wanted}"));
    compile
        .arg("-o")
        .arg(folder.join(format!("lib{name}.so")))
        .arg(&file);
    shell::run(compile)
}

/// Builds the program of a folder unless that was done; `prepare` is given a folder and the build.
fn built(
    name: &str,
    more: &str,
    prepare: impl FnOnce(&Path, Command) -> Result<Command>,
) -> Result<PathBuf> {
    let folder = shell::root().join(FOLDER).join(name);
    let mut key = shell::capture({
        let mut ask = shell::command("rustc");
        ask.arg("-vV");
        ask
    })?;
    key.push_str(more);
    for file in ["Cargo.toml", "Cargo.lock", "src/main.rs"] {
        let path = folder.join(file);
        let text = fs::read_to_string(&path);
        key.push_str(&text.with_context(|| format!("cannot read {}", path.display()))?);
    }
    let link = format!("{name}-tenant");
    let wanted = Wanted {
        name: &link,
        key: key.as_bytes(),
        what: &format!("a program over {name}"),
        force: false,
    };
    let (place, _) = installed::folder(&wanted, |to| {
        let mut build = cargo::command("build");
        build.args(["--release", "--locked"]);
        build.arg("--manifest-path").arg(folder.join("Cargo.toml"));
        let target = to.join("target");
        build.arg("--target-dir").arg(&target);
        let made = cargo::artifacts_of(prepare(to, build)?)?;
        let program = made.into_iter().find_map(|made| made.executable);
        let program = program.with_context(|| format!("{name}'s build made no program"))?;
        let place = to.join(&link);
        fs::copy(&program, &place).with_context(|| format!("cannot write {}", place.display()))?;
        fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))
    })?;
    Ok(place.join(link))
}

/// Compares a program's lines with those that it has to print; the names of those that differ.
pub(crate) fn differing(expected: &str, printed: &str) -> (u64, Vec<String>) {
    let mut printed: Vec<&str> = printed.lines().collect();
    let (mut passed, mut differing) = (0, Vec::new());
    for line in expected.lines() {
        if let Some(at) = printed.iter().position(|it| *it == line) {
            printed.swap_remove(at);
            passed += 1;
        } else {
            differing.push(line.split(':').next().unwrap_or(line).to_owned());
        }
    }
    (passed, differing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_whole_and_once_each() {
        let expected = "a: 1\nb: 2 3\nc: 4\n";
        assert_eq!(differing(expected, expected), (3, Vec::new()));
        let (passed, names) = differing(expected, "b: 2\nc: 4\nd: 5\n");
        assert_eq!((passed, names), (1, vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(differing("a: 1\na: 1\n", "a: 1\n").0, 1);
    }

    #[test]
    fn a_library_of_names_has_the_functions_that_are_declared() {
        let folder = tempfile::tempdir().unwrap();
        let declared = folder.path().join("mod.rs");
        fs::write(
            &declared,
            "pub unsafe fn cuFirst(a: i32) -> i32 {\n}\npub unsafe fn cuSecond<T>() {\n}\npub unsafe fn cuFirst() {\n}\nfn other() {}\n",
        )
        .unwrap();
        named_library(folder.path(), "few", "libfew.so.1", &declared).unwrap();
        let mut list = Command::new("nm");
        list.args(["-D", "--defined-only"])
            .arg(folder.path().join("libfew.so"));
        let listed = shell::capture(list).unwrap();
        assert!(listed.contains(" cuFirst\n") && listed.contains(" cuSecond\n"));
        fs::write(&declared, "fn other() {}\n").unwrap();
        assert!(named_library(folder.path(), "none", "libnone.so.1", &declared).is_err());
    }
}
