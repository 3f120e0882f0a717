//! Programs that know nothing of feRcuda, run over the drop-in `libcuda.so.1`.
//!
//! The loader finds our library through LD_LIBRARY_PATH; nothing else about
//! the programs changes. docs/conformance.md is written from what they report.
//!
//! Invariant: a client that does not report its counts counts as one failure.
//! Elsewhere: the Python clients (`tests/clients`); cudarc's tests are its own,
//! taken from the registry's copy of its source.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::setup::Venv;
use crate::test::Count;
use crate::{cargo, setup, shell};

/// One foreign client and what it came to.
pub(crate) struct Suite {
    /// What the client is called in the document.
    pub name: &'static str,
    /// What it exercises.
    about: &'static str,
    /// Its version, as installed.
    version: String,
    /// Its tests.
    pub count: Count,
    /// Tests that did not pass, by name.
    failures: Vec<String>,
}

/// A Python client: a test file, and the wheel whose version names it.
struct PythonClient {
    name: &'static str,
    file: &'static str,
    wheel: &'static str,
    about: &'static str,
}

const PYTHON_CLIENTS: [PythonClient; 4] = [
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
];

/// Runs all clients and writes docs/conformance.md.
pub(crate) fn run(dry_run: bool) -> Result<()> {
    let venv = setup::run(false)?;
    let suites = run_all(&venv)?;
    let document = document(&suites);
    if dry_run {
        println!("\n{document}");
    } else {
        let path = shell::root().join("docs/conformance.md");
        fs::write(&path, &document).with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nwrote docs/conformance.md");
    }
    let failed: u64 = suites.iter().map(|suite| suite.count.failed).sum();
    if failed > 0 {
        bail!("{failed} tests of foreign clients failed");
    }
    Ok(())
}

/// Builds the drop-in library and runs every client over it.
pub(crate) fn run_all(venv: &Venv) -> Result<Vec<Suite>> {
    // As the tests were built: nothing is compiled twice, and its assertions hold.
    let folder = build_drop_in("test")?;
    let mut search = folder.into_os_string();
    search.push(":");
    search.push(venv.wheels.join("cu13/lib"));
    let mut suites = Vec::new();
    for client in &PYTHON_CLIENTS {
        suites.push(run_python(client, venv, &search)?);
    }
    suites.push(run_cudarc(venv, &search)?);
    Ok(suites)
}

/// Builds the library and puts it where the loader expects it: in a folder of
/// its own, under the name `libcuda.so.1`. `profile` is cargo's.
pub(crate) fn build_drop_in(profile: &str) -> Result<PathBuf> {
    // As the workspace's tests build it: alone, its dependencies would have
    // other features and be compiled once more.
    let made = cargo::artifacts(
        "test",
        &["--locked", "--workspace", "--no-run", "--profile", profile],
    )?;
    let library = made
        .iter()
        .filter(|made| made.package == "dropin" && made.kinds.iter().any(|kind| kind == "cdylib"))
        .flat_map(|made| &made.files)
        .find(|file| file.extension().is_some_and(|extension| extension == "so"))
        .context("fercuda-dropin built no shared library")?;
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

fn run_python(client: &PythonClient, venv: &Venv, search: &OsString) -> Result<Suite> {
    println!("\n-- {}", client.name);
    let report = shell::root().join(format!("build/conformance/{}.xml", client.file));
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
        .env("LD_LIBRARY_PATH", search)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    crate::test::environment(&mut command, venv);
    // Clients judge the driver's answers; a finding of the checker is no answer.
    command.env("FERCUDA_SOFT_CHECK", "0");
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
    Ok(Suite {
        name: client.name,
        about: client.about,
        version: shell::capture(ask)?.trim().to_owned(),
        count,
        failures,
    })
}

/// Reads the counts and the names of failed tests from pytest's JUnit report.
/// A skipped test counts as failed: a client skips when the driver cannot do
/// what it asks.
fn junit(text: &str) -> Option<(Count, Vec<String>)> {
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
const NOT_RUN: [(&str, &str); 5] = [
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
fn run_cudarc(venv: &Venv, search: &OsString) -> Result<Suite> {
    println!("\n-- cudarc");
    let (version, program) = build_cudarc()?;
    let start = |args: &[&str]| {
        let mut command = shell::command(&program);
        command.args(args).env("LD_LIBRARY_PATH", search);
        crate::test::environment(&mut command, venv);
        // Some of them copy between two devices.
        command
            .env("FERCUDA_SOFT_CHECK", "0")
            .env("FERCUDA_SOFT_DEVICES", "2");
        command
    };
    let mut suite = Suite {
        name: "cudarc",
        about: "its own tests of its module `driver`",
        version,
        count: Count::default(),
        failures: Vec::new(),
    };
    let mut args = vec!["driver::", "--test-threads=1"];
    args.extend(NOT_RUN.iter().flat_map(|(name, _)| ["--skip", name]));
    suite.add(start(&args))?;
    // It marks as ignored what wants a process, or a second device, to itself.
    let list = shell::capture(start(&["driver::", "--list", "--ignored"]))?;
    let alone = list.lines().filter_map(|line| line.strip_suffix(": test"));
    for name in alone.filter(|name| NOT_RUN.iter().all(|(not_run, _)| not_run != name)) {
        suite.add(start(&["--exact", name, "--ignored"]))?;
    }
    Ok(suite)
}

impl Suite {
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

/// Builds cudarc's tests from the registry's copy of its source.
fn build_cudarc() -> Result<(String, PathBuf)> {
    let (version, source) = unpack_cudarc()?;
    let target = shell::root().join("target/cudarc");
    let mut command = cargo::command("test");
    command
        .current_dir(&source)
        .args(["--lib", "--no-run", "--no-default-features", "--features"])
        .arg(CUDARC_FEATURES)
        .arg("--target-dir")
        .arg(&target)
        // Our lints are not its lints.
        .env("RUSTFLAGS", "--cap-lints allow");
    let made = cargo::artifacts_of(command)?;
    let program = made
        .into_iter()
        .filter(|made| made.is_test && made.target == "cudarc")
        .find_map(|made| made.executable)
        .context("cudarc built no test program")?;
    Ok((version, program))
}

const CUDARC_FEATURES: &str = "std,driver,nvrtc,f16,dynamic-loading,cuda-13000";

/// Copies cudarc's source, as the registry has it, to where it can be built.
fn unpack_cudarc() -> Result<(String, PathBuf)> {
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
    let from = manifest
        .parent()
        .context("cudarc's manifest has no folder")?;
    let to = shell::root().join(format!("build/cudarc-{version}"));
    if !to.join("Cargo.toml").is_file() {
        copy_tree(from, &to)?;
        // It must not take the workspace around it for its own.
        let own = to.join("Cargo.toml");
        let text = fs::read_to_string(&own)?;
        if !text.contains("[workspace]") {
            fs::write(&own, format!("{text}\n[workspace]\n"))?;
        }
    }
    Ok((version, to))
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
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

fn document(suites: &[Suite]) -> String {
    let mut text = String::from(
        "# Conformance\n\n\
         Programs that know nothing of feRcuda, run over its drop-in `libcuda.so.1`\n\
         on a machine without a GPU. This file is written by `cargo xtask conformance`.\n\n\
         | client | version | what it exercises | passed | failed |\n\
         |---|---|---|---:|---:|\n",
    );
    let mut total = Count::default();
    for suite in suites {
        let Count { passed, failed, .. } = suite.count;
        // Writing to a String cannot fail.
        let _infallible = writeln!(
            text,
            "| {} | {} | {} | {passed} | {failed} |",
            suite.name, suite.version, suite.about
        );
        total.passed += passed;
        total.failed += failed;
    }
    let _infallible = writeln!(
        text,
        "| **all** | | | **{}** | **{}** |",
        total.passed, total.failed
    );
    if total.failed > 0 {
        text.push_str("\n## What does not pass\n\n");
        for suite in suites {
            for failure in &suite.failures {
                let _infallible = writeln!(text, "- {}: `{failure}`", suite.name);
            }
        }
    }
    text.push_str("\n## What is not run\n\n");
    for (name, why) in NOT_RUN {
        let _infallible = writeln!(text, "- cudarc: `{name}`: {why}");
    }
    text.push_str(
        "\n## What is not here\n\n\
         NVIDIA's own `libcudart`, and all that embeds it (PyTorch, CuPy,\n\
         `cuda.bindings.runtime`), asks the driver for an undocumented table before its\n\
         first call. Only the documented driver API is implemented here, so those\n\
         programs run on a real GPU only.\n",
    );
    text
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
