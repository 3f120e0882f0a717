//! The Python package: built as a wheel, put into a venv of its own, tested there.
//!
//! Invariants: what is tested is the installed wheel, in a venv made for it, which has
//! nothing else but what the tests need, by a path to build/venv; the program that it brings
//! also in a venv without even that, outside of the checkout (`trial`). A package that finds
//! something only in the checkout fails. A test that is skipped counts as failed: what
//! needs a framework is not collected here but in the bundle for a GPU machine, which
//! says what it did not run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::clients;
use crate::count::Count;
use crate::setup::{self, Venv};
use crate::shell;
use crate::trial;

/// Its findings, as the exit status of a process over the software device.
const FINDINGS: &str = "77";

/// Tests that need a driver's library, which others use as well.
const OVER_A_LIBRARY: &str = "tests/test_cuda_core.py";

/// Builds the wheel; `profile` is cargo's. In the workspace's target folder: what the
/// workspace's build has made with the same features is taken.
pub(crate) fn wheel(profile: &str, out: &Path) -> Result<PathBuf> {
    let mut build = wheel_builder(&setup::tools()?, out)?;
    build.env(
        "MATURIN_PEP517_ARGS",
        format!("--locked --profile {profile}"),
    );
    shell::run(build)?;
    wheel_in(out)
}

/// What builds a wheel into the emptied folder `out`, as `pip install ./python` does, but
/// for the place of maturin: a Python that has it.
pub(crate) fn wheel_builder(tools: &Path, out: &Path) -> Result<Command> {
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    let mut build = shell::command(tools);
    build
        .args([
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args(["--no-build-isolation", "--no-deps", "--no-index"])
        .arg("--wheel-dir")
        .arg(out)
        .arg("./python");
    let mut search = tools
        .parent()
        .unwrap_or(Path::new("/"))
        .as_os_str()
        .to_owned();
    search.push(":");
    search.push(std::env::var_os("PATH").unwrap_or_default());
    build.env("PATH", search);
    Ok(build)
}

/// The wheel in a folder.
pub(crate) fn wheel_in(folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    let mut files = files?.flatten().map(|file| file.path());
    let wheel = files.find(|file| file.extension().is_some_and(|it| it == "whl"));
    wheel.with_context(|| format!("there is no wheel in {}", folder.display()))
}

/// Builds, installs and tests the package over the software device, linked in and as
/// the driver's library in `drop_in`; and checks its types.
pub(crate) fn test(venv: &Venv, drop_in: &Path) -> Result<Vec<(String, Count)>> {
    let target = shell::root().join("target/python");
    let wheel = wheel("dev", &target.join("wheels"))?;
    let (version, installed, demo) = trial::wheel(&venv.python, &wheel)
        .context("the wheel's program does not work where it is installed")?;
    println!("{version}: installed in {installed:.1?}, demo in {demo:.1?}");
    let python = install(venv, &wheel, &target.join("venv"))?;
    let mut soft = pytest(venv, &python, "soft")?;
    soft.arg(format!("--ignore={OVER_A_LIBRARY}"));
    let mut library = pytest(venv, &python, "drop-in")?;
    let mut search = drop_in.as_os_str().to_owned();
    search.push(":");
    search.push(venv.wheels.join("cu13/lib"));
    library
        .env("LD_LIBRARY_PATH", search)
        .env("FERCUDA_DEVICE", "gpu");
    let mut counts = Vec::new();
    for (name, command) in [("soft", soft), ("drop-in", library)] {
        counts.push((format!("python, {name}"), run(command, name)?));
    }
    counts.push(("python, types".to_owned(), types()?));
    Ok(counts)
}

/// A venv with the wheel alone, which must do so; then with what tests need beside it.
fn install(venv: &Venv, wheel: &Path, folder: &Path) -> Result<PathBuf> {
    let mut make = shell::command(&venv.python);
    make.args(["-m", "venv", "--clear"]).arg(folder);
    shell::run(make)?;
    let python = folder.join("bin/python");
    let mut install = shell::command(&python);
    install
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args(["--no-index", "--no-deps"])
        .arg(wheel);
    shell::run(install)?;
    let mut alone = shell::command(&python);
    alone.current_dir(folder).args([
        "-I",
        "-c",
        "import fercuda_runtime as f; print(f.RuntimeConfig(select='soft').open(), f.__version__)",
    ]);
    shell::run(alone).context("the wheel does not work alone")?;
    // Its packages come after the venv's own.
    let beside = venv
        .wheels
        .parent()
        .context("NVIDIA's wheels lie in no folder")?;
    let mut where_to = shell::command(&python);
    where_to.args([
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
    ]);
    let packages = PathBuf::from(shell::capture(where_to)?.trim());
    fs::write(
        packages.join("tests.pth"),
        format!("{}\n", beside.display()),
    )?;
    Ok(python)
}

fn report(name: &str) -> PathBuf {
    shell::root().join(format!("target/python/{name}.xml"))
}

fn pytest(venv: &Venv, python: &Path, name: &str) -> Result<Command> {
    let mut command = shell::command(python);
    // In its folder, but not with it in the search path: the wheel is tested.
    command
        .current_dir(shell::root().join("python"))
        .args(["-m", "pytest", "-q", "--no-header"])
        .arg(format!("--junitxml={}", report(name).display()))
        .args(["--ignore=tests/frameworks", "tests"]);
    crate::setup::environment(&mut command, venv);
    // Where the program lies, which asks the tests for something: beside this one, wherever cargo's
    // target folder is.
    let mut search = std::env::current_exe()?.with_file_name("").into_os_string();
    search.push(":");
    search.push(std::env::var_os("PATH").unwrap_or_default());
    command.env("PATH", search);
    command
        .env("FERCUDA_SOFT_CHECK_EXIT", FINDINGS)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONSAFEPATH", "1");
    Ok(command)
}

fn run(command: Command, name: &str) -> Result<Count> {
    println!("\n-- {}", shell::describe(&command));
    let report = report(name);
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let succeeded = shell::watch(command, |line| println!("{line}"))?;
    let read = fs::read_to_string(&report).ok();
    let (mut count, _) = read
        .and_then(|text| clients::junit(&text))
        .unwrap_or_default();
    if (!succeeded && count.failed == 0) || count.passed + count.failed == 0 {
        // It died before its report, or the device found something at its end.
        count.failed += 1;
    }
    Ok(count)
}

/// The package's own types, the stubs', and a program's that uses them.
fn types() -> Result<Count> {
    let mut check = shell::command(setup::tools()?);
    check.current_dir(shell::root().join("python")).args([
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        "../target/python/mypy",
    ]);
    println!("\n-- {}", shell::describe(&check));
    let passed = shell::watch(check, |line| println!("{line}"))?;
    Ok(Count {
        passed: u64::from(passed),
        failed: u64::from(!passed),
        ignored: 0,
    })
}

/// Frameworks whose tests run where they are.
pub(crate) const FRAMEWORKS: [&str; 4] = ["torch", "jax", "cupy", "triton"];

/// Puts the wheel, optimised, and the tests into a bundle.
pub(crate) fn bundle(out: &Path) -> Result<()> {
    let wheel = wheel("release", &shell::root().join("target/python/release"))?;
    let name = wheel.file_name().context("a wheel without a name")?;
    let folder = out.join("python");
    fs::create_dir_all(&folder)?;
    fs::copy(&wheel, folder.join(name))?;
    for framework in FRAMEWORKS {
        let test = format!("python/tests/frameworks/test_{framework}.py");
        if !shell::root().join(&test).is_file() {
            bail!("there is no {test}");
        }
    }
    Ok(())
}
