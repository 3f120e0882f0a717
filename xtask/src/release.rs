//! Release: a tarball of program, libraries and headers, a wheel, debug information,
//! checksums.
//!
//! Everything is linked against the symbols of an old glibc, by zig. Paths of the machine are
//! remapped and dates are the commit's, so that two folders can be compared byte by byte. The
//! hook is built without a profile for that reason: a profile counts what threads did in one
//! run.
//!
//! Invariants: no file needs a symbol of a glibc later than `GLIBC`, or it is an error that
//! names the symbols; what `--try` tries are the files of the release, unpacked and
//! installed elsewhere.
//! Elsewhere: what a trial does (`trial`); what the wheel is made of (`python/build_backend.py`).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::dist::KernelCompiler;
use crate::profile::Rust;
use crate::trial::{self, Trial};
use crate::{cargo, dist, python, setup, shell};

/// What is built for, as rustc names it.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The C library's oldest version that will do: of RHEL 8, and of manylinux_2_28.
const GLIBC: (u32, u32) = (2, 28);
/// Of the tarball without debug information.
const LIMIT_BYTES: u64 = 40_000_000;
/// For a wheel's installation and the demo after it.
const LIMIT_INSTALL: Duration = Duration::from_secs(30);
/// Beside the program and the libraries, in `share/doc/fercuda`.
const DOCUMENTS: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// Names of the checksums' file.
const SUMS: &str = "SHA256SUMS";

/// Options of the chore.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the files of the release go; emptied first.
    #[arg(long, default_value = "target/release-files")]
    out: PathBuf,
    /// Build nothing: unpack and install the files of an earlier run, and try them.
    #[arg(long = "try")]
    trial: bool,
}

/// Builds a release, or tries one.
pub(crate) fn run(args: &Args) -> Result<()> {
    let out = shell::root().join(&args.out);
    match args.trial {
        true => try_files(&out),
        false => build(&out),
    }
}

/// `fercuda-VERSION-x86_64-linux`, as the tarball and the folder in it are called.
fn name() -> String {
    format!("fercuda-{}-x86_64-linux", env!("CARGO_PKG_VERSION"))
}

fn build(out: &Path) -> Result<()> {
    let builder = Builder::find()?;
    let staging = shell::root().join("target/release-staging");
    for folder in [out, &staging] {
        if folder.exists() {
            fs::remove_dir_all(folder)
                .with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(folder)?;
    }
    let (product, debug) = (staging.join("product"), staging.join("debug"));

    shell::step("program and libraries, optimised");
    let parts = dist::parts_by(builder.cargo(), false, KernelCompiler::OfSetUp)?;
    for (built, place) in parts.files.iter().chain(&parts.for_c) {
        let to = product.join(name()).join(place);
        let is_text =
            place.starts_with("include") || place.extension().is_some_and(|it| it == "ptx");
        if is_text {
            copy(built, &to)?;
        } else {
            strip(built, &to, &debug.join(name()).join(place))?;
            check_glibc(&to)?;
        }
    }
    for document in DOCUMENTS {
        let to = product
            .join(name())
            .join("share/doc/fercuda")
            .join(document);
        copy(&shell::root().join(document), &to)?;
    }

    shell::step("wheel");
    let mut wheel = python::wheel_builder(&builder.tools, &staging.join("wheel"))?;
    builder.environment(&mut wheel);
    let (major, minor) = GLIBC;
    let arguments = format!(
        "--locked --profile release --target {TARGET} --compatibility manylinux_{major}_{minor}"
    );
    wheel
        .env("FERCUDA_WHEEL_PARTS", product.join(name()))
        .env("MATURIN_PEP517_ARGS", arguments);
    shell::run(wheel)?;
    let wheel = python::wheel_in(&staging.join("wheel"))?;
    let file = wheel.file_name().context("a wheel without a name")?;
    copy(&wheel, &out.join(file))?;
    shell::run(unzip(&builder.tools, &wheel, &staging.join("unpacked")))?;
    check_glibc(&staging.join("unpacked/fercuda_runtime/_fercuda.abi3.so"))?;

    shell::step("tarballs and checksums");
    let tarball = out.join(format!("{}.tar.gz", name()));
    builder.pack(&product, &tarball)?;
    builder.pack(&debug, &out.join(format!("{}-debug.tar.gz", name())))?;
    let mut sums = shell::command("sha256sum");
    sums.current_dir(out).arg("--").args(files(out)?);
    let sums = shell::capture(sums)?;
    fs::write(out.join(SUMS), &sums)?;
    print!("{sums}");
    check_size(&tarball)?;
    println!("written: {}\ntry: cargo xtask release --try", out.display());
    Ok(())
}

/// Names of the files in a folder, in order.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}\ntry: cargo xtask release", folder.display()))?;
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// What each program of a build is given.
struct Builder {
    /// The Python that has maturin and zig.
    tools: PathBuf,
    linker: PathBuf,
    /// rustc's, as cargo takes them apart.
    flags: String,
    commit: String,
    /// The commit's time, in seconds since 1970: every date in the release.
    epoch_s: String,
}

impl Builder {
    fn find() -> Result<Builder> {
        let tools = setup::release_tools()?;
        let git = |words: &[&str]| {
            let mut git = shell::command("git");
            git.args(words);
            shell::capture(git).map(|text| text.trim().to_owned())
        };
        let mut commit = git(&["rev-parse", "--short=12", "HEAD"])?;
        if !git(&["status", "--porcelain"])?.is_empty() {
            commit.push_str("-changed");
            println!("the checkout has changes: this is a release of {commit}");
        }
        let epoch_s = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch_s) => epoch_s,
            Err(_) => git(&["log", "-1", "--format=%ct"])?,
        };
        Ok(Builder {
            linker: linker(&tools)?,
            flags: flags()?,
            tools,
            commit,
            epoch_s,
        })
    }

    /// `cargo build` for the target, also of the module for Python: its dependencies have
    /// more features, and maturin then finds them built.
    fn cargo(&self) -> Command {
        let mut cargo = cargo::command("build");
        cargo.args(["--target", TARGET, "--package", "fercuda-python"]);
        self.environment(&mut cargo);
        cargo
    }

    fn environment(&self, command: &mut Command) {
        let of_target = TARGET.to_uppercase().replace('-', "_");
        command
            .env(format!("CARGO_TARGET_{of_target}_LINKER"), &self.linker)
            .env("CARGO_ENCODED_RUSTFLAGS", &self.flags)
            .env("FERCUDA_COMMIT", &self.commit)
            .env("SOURCE_DATE_EPOCH", &self.epoch_s)
            // Of several units of a crate, names of private symbols carry a hash that two builds
            // do not share: the debug information would differ, and the checksum that points to it.
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            // Within the checkout, of which no path stays.
            .env_remove("CARGO_TARGET_DIR");
    }

    /// A tarball of the release's folder in `from`, of which each byte is given.
    fn pack(&self, from: &Path, to: &Path) -> Result<()> {
        let mut tar = shell::command("tar");
        tar.args(["--sort=name", "--format=gnu", "--numeric-owner"])
            .args(["--owner=0", "--group=0", "--mode=u=rwX,go=rX"])
            .arg(format!("--mtime=@{}", self.epoch_s))
            .arg("--use-compress-program=gzip -9n")
            .arg("-C")
            .arg(from)
            .arg("-cf")
            .arg(to)
            .arg(name());
        shell::run(tar)
    }
}

/// A program that takes rustc's options for the linker and has zig link, for the old glibc.
fn linker(tools: &Path) -> Result<PathBuf> {
    let bin = tools.parent().context("a Python lies in a folder")?;
    let linker = bin.join("zigcc");
    let mut version = shell::command(tools);
    version.args(["-m", "ziglang", "version"]);
    let version = shell::capture(version)?;
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let (major, minor) = GLIBC;
    let script = format!(
        "#!/bin/sh\n\
         export CARGO_ZIGBUILD_ZIG_VERSION={}\n\
         export CARGO_ZIGBUILD_ZIG_COMMAND={}\n\
         export CARGO_ZIGBUILD_ZIG_COMMAND_ARGS='-m ziglang'\n\
         exec {} zig cc -- -g -fno-sanitize=all -target x86_64-linux-gnu.{major}.{minor} \"$@\"\n",
        version.trim(),
        quoted(tools),
        quoted(&bin.join("cargo-zigbuild")),
    );
    // Not written where it is the same already: another build may be running it.
    if fs::read_to_string(&linker).ok().as_ref() != Some(&script) {
        fs::write(&linker, script)?;
        fs::set_permissions(&linker, fs::Permissions::from_mode(0o755))?;
    }
    Ok(linker)
}

/// Flags of rustc's, for names of files in place of this machine's: the checkout's, the
/// registry's, and the standard library's where its sources are installed.
fn flags() -> Result<String> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => Path::new(&std::env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    let rust = Rust::find()?;
    let commit = rust.commit.as_deref().unwrap_or("unknown");
    let remapped = [
        (shell::root(), "/fercuda".to_owned()),
        (home, "/cargo".to_owned()),
        (
            rust.sysroot.join("lib/rustlib/src/rust"),
            format!("/rustc/{commit}"),
        ),
    ];
    let flags = remapped.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    Ok(flags.join("\x1f"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, to).map(drop))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Puts what runs to `to` and its debug information to `.debug` beside `debug`, where
/// debuggers look for it once both tarballs are unpacked in one place.
fn strip(built: &Path, to: &Path, debug: &Path) -> Result<()> {
    let name = debug.file_name().context("a file has a name")?;
    let folder = debug.parent().context("a file is in a folder")?;
    let folder = folder.join(".debug");
    let mut name = name.to_owned();
    name.push(".debug");
    let debug = folder.join(name);
    for folder in [Some(folder.as_path()), to.parent()].into_iter().flatten() {
        fs::create_dir_all(folder)?;
    }
    let mut keep = shell::command("objcopy");
    keep.args(["--only-keep-debug", "--"])
        .arg(built)
        .arg(&debug);
    shell::run(keep)?;
    let mut strip = shell::command("objcopy");
    strip
        .arg("--strip-unneeded")
        .arg(format!("--add-gnu-debuglink={}", debug.display()))
        .arg("--")
        .arg(built)
        .arg(to);
    shell::run(strip)
}

fn unzip(python: &Path, wheel: &Path, to: &Path) -> Command {
    let mut unzip = shell::command(python);
    unzip.args(["-m", "zipfile", "-e"]).arg(wheel).arg(to);
    unzip
}

/// Fails if a file needs a symbol that the old glibc lacks.
fn check_glibc(file: &Path) -> Result<()> {
    let mut objdump = shell::command("objdump");
    objdump.args(["-T", "--"]).arg(file);
    let missing = too_new(&shell::capture(objdump)?);
    if !missing.is_empty() {
        let (major, minor) = GLIBC;
        bail!(
            "{} needs what glibc {major}.{minor} lacks: {}",
            file.display(),
            missing.join(", ")
        );
    }
    Ok(())
}

/// Symbols of `objdump -T` that are of a later glibc than `GLIBC`, or of no version: those it
/// lacks, and the linker left to the loader. Python's are in the process that loads a module,
/// and a weak one may be missing.
fn too_new(shown: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for line in shown.lines() {
        let Some((flags, rest)) = line.split_once("*UND*") else {
            continue;
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let [_, version, symbol] = words[..] else {
            continue;
        };
        let version = version.trim_matches(['(', ')']);
        let mut parts = version
            .strip_prefix("GLIBC_")
            .unwrap_or_default()
            .split('.');
        let numbers = (parts.next().map(str::parse), parts.next().map(str::parse));
        let is_there = match (version, numbers) {
            (_, (Some(Ok(major)), Some(Ok(minor)))) => (major, minor) <= GLIBC,
            ("Base", _) => {
                flags.contains(" w ") || symbol.trim_start_matches('_').starts_with("Py")
            }
            (other, _) => other.starts_with("GCC_"),
        };
        if !is_there {
            missing.push(format!("{symbol} ({version})"));
        }
    }
    missing
}

fn check_size(tarball: &Path) -> Result<u64> {
    let size = fs::metadata(tarball)
        .with_context(|| format!("there is no {}", tarball.display()))?
        .len();
    if size > LIMIT_BYTES {
        bail!(
            "{} has {size} bytes; the limit is {LIMIT_BYTES}",
            tarball.display()
        );
    }
    Ok(size)
}

/// Unpacks the tarball and installs the wheel, each in a folder of its own, and tries both.
fn try_files(out: &Path) -> Result<()> {
    let files = files(out)?;
    let mut sums = shell::command("sha256sum");
    sums.current_dir(out).args(["--check", "--strict", SUMS]);
    shell::run(sums)?;

    shell::step("the tarball");
    let tarball = out.join(format!("{}.tar.gz", name()));
    let size_bytes = check_size(&tarball)?;
    let place = tempfile::tempdir().context("cannot make a folder for the tarball")?;
    let begun = Instant::now();
    let mut tar = shell::command("tar");
    tar.arg("-C").arg(place.path()).arg("-xzf").arg(&tarball);
    shell::run(tar)?;
    let unpacked = begun.elapsed();
    let trial = Trial::of(place.path().join(name()).join("bin/fercuda"))?;
    println!("{}", trial.version()?);
    let demo = trial.demo()?;
    trial.run("python3")?;
    trial.atomics()?;
    trial.mount()?;
    report(&tarball, size_bytes, unpacked, demo);

    shell::step("the wheel");
    let wheel = python::wheel_in(out)?;
    let (version, installed, demo) = trial::wheel(&setup::release_tools()?, &wheel)?;
    println!("{version}");
    report(&wheel, fs::metadata(&wheel)?.len(), installed, demo);
    let taken = installed + demo;
    if taken > LIMIT_INSTALL {
        bail!(
            "the wheel's installation and the demo took {taken:.1?}; the limit is {LIMIT_INSTALL:?}"
        );
    }
    println!(
        "\ntried: version, demo, run --report, a mount and the 16-byte atomics, of {} files",
        files.len()
    );
    Ok(())
}

fn report(file: &Path, size_bytes: u64, installed: Duration, demo: Duration) {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    println!("{name}: {size_bytes} bytes, installed in {installed:.1?}, demo in {demo:.1?}");
}

#[cfg(test)]
mod tests {
    use super::too_new;

    #[test]
    fn symbols_of_a_later_glibc_are_found() {
        let shown = "\
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.2.5) memcpy
0000000000000000      DF *UND*\t0000000000000000  GLIBC_2.28  fcntl64
0000000000000000  w   DF *UND*\t0000000000000000 (GLIBC_2.30) gettid
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.34) dlsym
0000000000000000      DO *UND*\t0000000000000000 (GLIBC_PRIVATE) _rtld_global
0000000000000000  w   D  *UND*\t0000000000000000  Base        __gmon_start__
0000000000000000      D  *UND*\t0000000000000000  Base        PyErr_Print
0000000000000000      D  *UND*\t0000000000000000  Base        _Py_Dealloc
0000000000000000      D  *UND*\t0000000000000000  Base        sigabbrev_np
0000000000000000      DF *UND*\t0000000000000000 (GCC_3.0)    _Unwind_Resume
0000000000001000 g    DF .text\t0000000000000010 (GLIBC_2.99) own
";
        assert_eq!(
            too_new(shown),
            [
                "gettid (GLIBC_2.30)",
                "dlsym (GLIBC_2.34)",
                "_rtld_global (GLIBC_PRIVATE)",
                "sigabbrev_np (Base)",
            ]
        );
    }
}
