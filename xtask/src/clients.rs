//! Programs that know nothing of feRcuda, run over the drop-in `libcuda.so.1`,
//! and once more with the hook in front of it.
//!
//! The loader finds our library through LD_LIBRARY_PATH, or the hook through
//! LD_PRELOAD; nothing else about the programs changes.
//!
//! Invariant: a client that does not report its counts counts as one failure;
//! so does one under the hook of which no ledger says that it was governed.
//! Elsewhere: the Python clients (`tests/clients`); cudarc's tests are its own,
//! taken from the registry's copy of its source; suites of other projects (`projects`); the
//! document (`conformance`).

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use fercuda_ledger::Folder;

use crate::cargo::Artifact;
use crate::count::Count;
use crate::installed::{self, Wanted};
use crate::setup::Venv;
use crate::{cargo, rust_tenants, shell};

/// What a client finds in the driver's place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Front {
    /// The drop-in library.
    DropIn,
    /// The hook, before it.
    Hook,
}

impl Front {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Front::DropIn => "drop-in",
            Front::Hook => "hook",
        }
    }
}

/// What is built for the clients.
pub(crate) struct Built {
    /// The drop-in library's folder.
    drop_in: PathBuf,
    /// The hook.
    hook: PathBuf,
    /// The hook's own tests.
    pub suite: PathBuf,
    /// The program `fercuda`.
    pub program: PathBuf,
    /// Ledgers of governed clients, a folder for each.
    ledgers: PathBuf,
}

/// One foreign client and what it came to.
pub(crate) struct Suite {
    /// What the client is called in the document.
    pub name: &'static str,
    /// What it found in the driver's place.
    pub front: Front,
    /// What it exercises.
    pub about: &'static str,
    /// Its version, as installed.
    pub version: String,
    /// Its tests.
    pub count: Count,
    /// How many of them `cargo xtask test` runs; none: all.
    pub selected: Option<u64>,
    /// Tests that did not pass, by name.
    pub failures: Vec<String>,
}

/// A Python client: a test file, and the wheel whose version names it.
struct PythonClient {
    name: &'static str,
    file: &'static str,
    wheel: &'static str,
    about: &'static str,
}

const PYTHON_CLIENTS: [PythonClient; 5] = [
    PythonClient {
        name: "cuda.bindings.driver",
        file: "test_bindings_driver.py",
        wheel: "cuda-bindings",
        about: "NVRTC to PTX to launch, memory, streams, graphs",
    },
    PythonClient {
        name: "cuda.core",
        file: "test_cuda_core.py",
        wheel: "cuda-core",
        about: "NVIDIA's object layer: programs, buffers, launches",
    },
    PythonClient {
        name: "numba-cuda",
        file: "test_numba.py",
        wheel: "numba-cuda",
        about: "kernels compiled from Python, linked by the driver",
    },
    PythonClient {
        name: "driver rules",
        file: "test_driver_rules.py",
        wheel: "cuda-bindings",
        about: "answers at the edges, as a real driver gives them",
    },
    PythonClient {
        name: "captures",
        file: "test_captures.py",
        wheel: "cuda-bindings",
        about: "calls while a stream captures, as an H200 answered them",
    },
];

/// Runs a program over cudarc, whose lines have to be the same everywhere.
fn run_tenant(venv: &Venv, built: &Built, front: Front) -> Result<Suite> {
    println!("\n-- a program over cudarc ({})", front.name());
    let mut command = shell::command(rust_tenants::cudarc()?);
    let client = "cudarc-tenant";
    built.environment(&mut command, venv, front, client)?;
    let mut printed = String::new();
    let succeeded = shell::watch(command, |line| {
        println!("{line}");
        printed.push_str(line);
        printed.push('\n');
    })?;
    let expected = fs::read_to_string(shell::root().join(rust_tenants::EXPECTED))?;
    let (passed, mut failures) = rust_tenants::differing(&expected, &printed);
    if !succeeded && failures.is_empty() {
        failures.push("its exit status".to_owned());
    }
    let mut suite = Suite {
        name: "a program over cudarc",
        front,
        about: "memory, kernels, streams, a graph, refusals: lines of results",
        version: cudarc_source()?.0,
        count: Count {
            passed,
            failed: failures.len() as u64,
            ignored: 0,
        },
        selected: None,
        failures,
    };
    suite.judge(built, client)?;
    Ok(suite)
}

impl Suite {
    /// What it is called where both kinds of runs are listed.
    pub(crate) fn title(&self) -> String {
        match self.front {
            Front::DropIn => self.name.to_owned(),
            Front::Hook => format!("{}, governed", self.name),
        }
    }
}

/// Runs every client over the drop-in library, alone and under the hook.
pub(crate) fn run_clients(venv: &Venv, built: &Built) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for front in [Front::DropIn, Front::Hook] {
        for client in &PYTHON_CLIENTS {
            suites.push(run_python(client, venv, built, front)?);
        }
        suites.push(run_cudarc(venv, built, front)?);
        suites.push(run_tenant(venv, built, front)?);
    }
    Ok(suites)
}

/// What the workspace's tests are made of. Alone, the libraries' dependencies
/// would have other features and be compiled once more.
fn made(profile: &str) -> Result<Vec<Artifact>> {
    cargo::artifacts(
        "test",
        &["--locked", "--workspace", "--no-run", "--profile", profile],
    )
}

/// The program `fercuda` among what was built.
fn program(made: &[Artifact]) -> Result<PathBuf> {
    let mut programs = made
        .iter()
        .filter(|it| it.package == "cli" && it.target == "fercuda" && !it.is_test);
    let program = programs.find_map(|it| it.executable.clone());
    program.context("fercuda-cli built no program `fercuda`")
}

/// Builds the program `fercuda` alone, optimised.
pub(crate) fn build_program() -> Result<PathBuf> {
    let package = ["--locked", "--release", "--package", "fercuda-cli"];
    program(&cargo::artifacts("build", &package)?)
}

/// Builds what the clients run over.
pub(crate) fn build() -> Result<Built> {
    // As the tests were built: nothing is compiled twice, and their assertions hold.
    let made = made("test")?;
    let suite = made
        .iter()
        .find(|made| made.package == "hook" && made.target == "suite")
        .and_then(|made| made.executable.clone())
        .context("fercuda-hook built no test program `suite`")?;
    let ledgers = shell::root().join("target/ledgers");
    if ledgers.exists() {
        fs::remove_dir_all(&ledgers)?;
    }
    Ok(Built {
        drop_in: place_drop_in(cargo::library(&made, "dropin")?)?,
        hook: cargo::library(&made, "hook")?.to_owned(),
        suite,
        program: program(&made)?,
        ledgers,
    })
}

impl Built {
    /// The folder of the drop-in library.
    pub(crate) fn drop_in(&self) -> &Path {
        &self.drop_in
    }

    /// Lets a client find the driver. `client` names its ledgers' folder.
    fn environment(
        &self,
        command: &mut Command,
        venv: &Venv,
        front: Front,
        client: &str,
    ) -> Result<()> {
        let wheels = venv.wheels.join("cu13/lib");
        crate::setup::environment(command, venv);
        // Clients judge the driver's answers; a finding of the checker is no answer.
        command.env("FERCUDA_SOFT_CHECK", "0");
        match front {
            Front::DropIn => {
                let mut search = self.drop_in.clone().into_os_string();
                search.push(":");
                search.push(wheels);
                command.env("LD_LIBRARY_PATH", search);
            }
            Front::Hook => {
                command
                    .env("LD_LIBRARY_PATH", wheels)
                    .env("LD_PRELOAD", &self.hook)
                    .env("FERCUDA_DRIVER", self.drop_in.join("libcuda.so.1"))
                    .env("XDG_RUNTIME_DIR", self.private(client)?);
            }
        }
        Ok(())
    }

    /// The folder that a client's ledgers are in.
    fn private(&self, client: &str) -> Result<PathBuf> {
        let folder = self.ledgers.join(client);
        private_folder(&folder)?;
        Ok(folder)
    }

    /// Whether the last processes of a client were governed, by their ledgers.
    fn was_governed(&self, client: &str) -> Result<bool> {
        Ok(governed_allocations(&self.private(client)?)? > 0)
    }
}

/// Makes a folder that is this user's alone, as ledgers ask for.
pub(crate) fn private_folder(folder: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("cannot make {}", folder.display()))
}

/// Allocations of the last processes that had this folder for their ledgers.
pub(crate) fn governed_allocations(folder: &Path) -> Result<u64> {
    let folder = Folder::at(&folder.join("fercuda"))?;
    let mut allocations = 0;
    for ledger in folder.ledgers()? {
        let snapshot = ledger?.snapshot()?;
        allocations += snapshot.devices.iter().map(|row| row.allocs).sum::<u64>();
    }
    Ok(allocations)
}

/// Builds the library and puts it where the loader expects it. `profile` is
/// cargo's.
pub(crate) fn build_drop_in(profile: &str) -> Result<PathBuf> {
    place_drop_in(cargo::library(&made(profile)?, "dropin")?)
}

/// The same where nothing else was built. What the Python package is made of comes with it,
/// or the two would have other features of what both use, and compile that twice.
pub(crate) fn build_drop_in_alone() -> Result<PathBuf> {
    let made = cargo::artifacts(
        "build",
        &[
            "--locked",
            "--package",
            "fercuda-dropin",
            "--package",
            "fercuda-python",
            // Its tests have the program ask them.
            "--package",
            "fercuda-cli",
        ],
    )?;
    place_drop_in(cargo::library(&made, "dropin")?)
}

/// Puts the library in a folder of its own, under the name `libcuda.so.1`.
fn place_drop_in(library: &Path) -> Result<PathBuf> {
    let folder = shell::root().join("target/dropin");
    fs::create_dir_all(&folder)?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        // A new file each time: the old one may be mapped by a running client.
        let to = folder.join(name);
        if to.exists() {
            fs::remove_file(&to)?;
        }
        fs::copy(library, &to).with_context(|| format!("cannot copy to {}", to.display()))?;
    }
    Ok(folder)
}

fn run_python(client: &PythonClient, venv: &Venv, built: &Built, front: Front) -> Result<Suite> {
    println!("\n-- {} ({})", client.name, front.name());
    let report = format!("build/conformance/{}-{}.xml", client.file, front.name());
    let report = shell::root().join(report);
    if let Some(folder) = report.parent() {
        fs::create_dir_all(folder)?;
    }
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let mut command = shell::command(&venv.python);
    command
        .args([
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
        ])
        .arg(format!("--junitxml={}", report.display()))
        .arg(format!("tests/clients/{}", client.file))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    built.environment(&mut command, venv, front, client.file)?;
    let succeeded = shell::watch(command, |line| println!("{line}"))?;
    let (mut count, failures) = fs::read_to_string(&report)
        .ok()
        .and_then(|text| junit(&text))
        .unwrap_or_default();
    if (!succeeded && count.failed == 0) || count.passed + count.failed == 0 {
        // It died before its report.
        count.failed += 1;
    }
    let version = format!(
        "import importlib.metadata as m; print(m.version('{}'))",
        client.wheel
    );
    let mut ask = shell::command(&venv.python);
    ask.args(["-c", &version]);
    let mut suite = Suite {
        name: client.name,
        front,
        about: client.about,
        version: shell::capture(ask)?.trim().to_owned(),
        count,
        selected: None,
        failures,
    };
    suite.judge(built, client.file)?;
    Ok(suite)
}

/// Reads the counts and the names of failed tests from pytest's JUnit report.
/// A skipped test counts as failed: a client skips when the driver cannot do
/// what it asks.
pub(crate) fn junit(text: &str) -> Option<(Count, Vec<String>)> {
    let suite = text.split("<testsuite ").nth(1)?;
    let number = |name: &str| attribute(suite, name)?.parse::<u64>().ok();
    let failed = number("failures")? + number("errors")? + number("skipped")?;
    let count = Count {
        passed: number("tests")?.saturating_sub(failed),
        failed,
        ignored: 0,
    };
    let failures = text
        .split("<testcase ")
        .skip(1)
        .filter(|case| {
            ["<failure", "<error", "<skipped"]
                .iter()
                .any(|tag| case.contains(tag))
        })
        .filter_map(|case| attribute(case, "name").map(str::to_owned))
        .collect();
    Some((count, failures))
}

fn attribute<'t>(element: &'t str, name: &str) -> Option<&'t str> {
    // With the space before it: `classname` ends in `name`.
    let value = element.split_once(&format!(" {name}=\""))?.1;
    Some(value.split_once('"')?.0)
}

/// Tests of cudarc's that are not about a driver's answers, and why.
pub(crate) const NOT_RUN: [(&str, &str); 5] = [
    (
        "driver::safe::core::tests::test_pinned_copy_is_faster",
        "measures the bus of a real machine",
    ),
    (
        "driver::safe::core::tests::test_default_pinned_host_reads_are_faster_than_write_combined",
        "measures the bus of a real machine",
    ),
    (
        "driver::safe::launch::tests::test_par_launch",
        "compares two wall times, which needs processors of its own; \
         `fercuda demo` proves overlap by the device's clock",
    ),
    (
        "driver::safe::launch::tests::test_device_side_assert",
        "wants the launch to return before its kernel has failed; \
         the tests of `fercuda check` have an assertion that fails",
    ),
    (
        "driver::safe::launch::tests::test_launch_with_half",
        "compiles for sm_53, which NVRTC 13.0 does not do",
    ),
];

/// Runs the tests that cudarc has in its own source for its `driver` module.
fn run_cudarc(venv: &Venv, built: &Built, front: Front) -> Result<Suite> {
    println!("\n-- cudarc ({})", front.name());
    let (version, program) = cudarc()?;
    let start = |args: &[&str]| -> Result<Command> {
        let mut command = shell::command(&program);
        built.environment(&mut command, venv, front, "cudarc")?;
        // Some of them copy between two devices.
        command.args(args).env("FERCUDA_SOFT_DEVICES", "2");
        Ok(command)
    };
    let mut suite = Suite {
        name: "cudarc",
        front,
        about: "its own tests of its module `driver`",
        version,
        count: Count::default(),
        selected: None,
        failures: Vec::new(),
    };
    let mut args = vec!["driver::", "--test-threads=1"];
    args.extend(NOT_RUN.iter().flat_map(|(name, _)| ["--skip", name]));
    suite.add(start(&args)?)?;
    suite.judge(built, "cudarc")?;
    // It marks as ignored what wants a process, or a second device, to itself.
    let list = shell::capture(start(&["driver::", "--list", "--ignored"])?)?;
    let alone = list.lines().filter_map(|line| line.strip_suffix(": test"));
    for name in alone.filter(|name| NOT_RUN.iter().all(|(not_run, _)| not_run != name)) {
        suite.add(start(&["--exact", name, "--ignored"])?)?;
    }
    Ok(suite)
}

impl Suite {
    /// Counts a failure if it should have been governed and was not.
    fn judge(&mut self, built: &Built, client: &str) -> Result<()> {
        if self.front == Front::Hook && !built.was_governed(client)? {
            self.count.failed += 1;
            self.failures.push("nothing of it was governed".to_owned());
        }
        Ok(())
    }

    /// Runs a program of libtest's and counts its tests.
    fn add(&mut self, command: std::process::Command) -> Result<()> {
        let (mut passed, mut failures) = (0, Vec::new());
        let mut running = String::new();
        let succeeded = shell::watch(command, |line| {
            println!("{line}");
            if let Some((name, _)) = line
                .strip_prefix("test ")
                .and_then(|rest| rest.split_once(" ... "))
            {
                name.clone_into(&mut running);
            }
            // What a test prints may stand between its name and its outcome.
            if running.is_empty() {
            } else if line.ends_with("ok") {
                passed += 1;
                running.clear();
            } else if line.ends_with("FAILED") {
                failures.push(std::mem::take(&mut running));
            } else if line.ends_with("ignored") || line.contains("... ignored, ") {
                running.clear();
            }
        })?;
        if !running.is_empty() {
            // It ended the process.
            failures.push(running);
        } else if (!succeeded && failures.is_empty()) || (passed == 0 && failures.is_empty()) {
            failures.push("the test program itself".to_owned());
        }
        self.count.passed += passed;
        self.count.failed += failures.len() as u64;
        self.failures.append(&mut failures);
        Ok(())
    }
}

/// cudarc's version, and its tests, built from the registry's copy of its source.
fn cudarc() -> Result<(String, PathBuf)> {
    let (version, source) = cudarc_source()?;
    let compiler = shell::capture({
        let mut ask = shell::command("rustc");
        ask.arg("-vV");
        ask
    })?;
    let key = format!("cudarc {version}, {CUDARC_FEATURES}\n{compiler}");
    let wanted = Wanted {
        name: "cudarc",
        key: key.as_bytes(),
        what: "the tests of cudarc",
        force: false,
    };
    let (folder, _) = installed::folder(&wanted, |to| build_cudarc(&source, to))?;
    Ok((version, folder.join(CUDARC_TESTS)))
}

const CUDARC_FEATURES: &str = "std,driver,nvrtc,f16,dynamic-loading,cuda-13000";
/// The program with cudarc's tests.
const CUDARC_TESTS: &str = "tests";

/// Builds cudarc's tests in a folder, where only the program stays.
fn build_cudarc(source: &Path, to: &Path) -> Result<()> {
    let build = to.join("build");
    copy_tree(source, &build)?;
    // It must not take a workspace around it for its own.
    let manifest = build.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    if !text.contains("[workspace]") {
        fs::write(&manifest, format!("{text}\n[workspace]\n"))?;
    }
    let mut command = cargo::command("test");
    command
        .current_dir(&build)
        .args(["--lib", "--no-run", "--no-default-features", "--features"])
        .arg(CUDARC_FEATURES)
        .arg("--target-dir")
        .arg(build.join("target"))
        // Our lints are not its lints.
        .env("RUSTFLAGS", "--cap-lints allow");
    let made = cargo::artifacts_of(command)?;
    let program = made
        .into_iter()
        .filter(|made| made.is_test && made.target == "cudarc")
        .find_map(|made| made.executable)
        .context("cudarc built no test program")?;
    let tests = to.join(CUDARC_TESTS);
    fs::copy(&program, &tests).with_context(|| format!("cannot write {}", tests.display()))?;
    fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))
}

/// cudarc's version, and the folder of its source as the registry has it.
pub(crate) fn cudarc_source() -> Result<(String, PathBuf)> {
    let mut metadata = cargo::command("metadata");
    metadata.args([
        "--format-version",
        "1",
        "--locked",
        "--manifest-path",
        "tests/clients/cudarc/Cargo.toml",
    ]);
    let metadata: serde_json::Value = serde_json::from_str(&shell::capture(metadata)?)?;
    let package = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "cudarc")
        .context("tests/clients/cudarc does not depend on cudarc")?;
    let version = package["version"].as_str().unwrap_or_default().to_owned();
    let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
    let source = manifest
        .parent()
        .context("cudarc's manifest has no folder")?;
    Ok((version, source.to_owned()))
}

pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("cannot copy to {}", target.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_failed_names_come_from_the_report() {
        let text = r#"<testsuites><testsuite name="pytest" errors="0" failures="1" skipped="1" tests="5">
            <testcase classname="t" name="test_a" time="0.1"/>
            <testcase classname="t" name="test_b" time="0.1"><failure message="no"/></testcase>
            <testcase classname="t" name="test_c" time="0.1"><skipped/></testcase>"#;
        let (count, failures) = junit(text).expect("a report");
        assert_eq!((count.passed, count.failed), (3, 2));
        assert_eq!(failures, ["test_b", "test_c"]);
    }

    #[test]
    fn a_report_cut_short_is_no_report() {
        assert_eq!(
            junit("<testsuites><testsuite name=\"pytest\" errors=\"0\""),
            None
        );
    }
}
