//! Every test there is, after set-up, with one honest count at the end.
//!
//! Invariant: a test program that fails, crashes before its summary or ignores
//! a test makes the whole run fail.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;

use crate::count::Count;
use crate::projects::{self, Amount};
use crate::setup::{Venv, environment};
use crate::{cargo, clients, packages, python, real_model, setup, shell};

/// Tokens of a real model that are generated behind each prompt.
const FEW_TOKENS: usize = 4;
/// What the package in `python/` is called here.
const PYTHON: &str = "python";

/// Runs the tests of `packages`. Empty: all, with what would be published, the foreign clients and
/// the Python package, whose own are the only ones if it is named alone.
pub(crate) fn run(packages: &[String], rest: &[String]) -> Result<()> {
    let mut suites = BTreeMap::new();
    let all = packages.is_empty();
    let only_python = packages == [PYTHON];
    let venv = match all && has_nextest() {
        true => prepare(rest)?,
        false => setup::run(false)?,
    };
    if !only_python {
        shell::step("tests of the workspace");
        let begun = Instant::now();
        suites.insert("workspace".to_owned(), workspace(&venv, packages, rest)?);
        println!("-- tests of the workspace: {} s", begun.elapsed().as_secs());
    }
    if all {
        shell::step("packages of the published crates");
        suites.insert("packages".to_owned(), packages::test()?);
        // Each is one process after another: at the same time they use two processors.
        shell::step(
            "foreign clients over the drop-in library, alone and under the hook, \
             and beside them the Python package, as a wheel",
        );
        let built = clients::build()?;
        let begun = Instant::now();
        let (python, foreign) = std::thread::scope(|scope| {
            let foreign = scope.spawn(|| {
                let mut suites = clients::run_clients(&venv, &built)?;
                let selection = projects::run_all(&venv, built.drop_in(), Amount::Selection);
                suites.extend(selection?);
                let model = real_model::test(&venv, &built.program, FEW_TOKENS)?;
                anyhow::Ok((suites, model))
            });
            (python::test(&venv, built.drop_in()), foreign.join())
        });
        let foreign = foreign.map_err(|_| anyhow!("the foreign clients' thread panicked"))?;
        let (foreign, model) = foreign?;
        for suite in foreign {
            suites.insert(suite.title(), suite.count);
        }
        suites.insert("SmolLM2 beside llama.cpp".to_owned(), model);
        suites.extend(python?);
        println!(
            "-- foreign clients and Python package: {} s",
            begun.elapsed().as_secs()
        );
    } else if only_python {
        shell::step("the Python package, as a wheel");
        let begun = Instant::now();
        suites.extend(python::test(&venv, &clients::build_drop_in_alone()?)?);
        println!("-- the Python package: {} s", begun.elapsed().as_secs());
    }

    shell::step("summary");
    let mut total = Count::default();
    for (name, count) in &suites {
        let Count { passed, failed, .. } = count;
        println!("{name:<32} {passed:>6} passed {failed:>6} failed");
        total.add(count);
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.ignored > 0 {
        bail!("{} tests are ignored; none may be", total.ignored);
    }
    if total.failed > 0 {
        bail!("{} tests failed", total.failed);
    }
    if total.passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// Set-up of everything that all tests need, while these are compiled: one waits for downloads,
/// the other computes.
fn prepare(rest: &[String]) -> Result<Venv> {
    std::thread::scope(|scope| {
        let set_up = scope.spawn(|| {
            let venv = setup::run(false)?;
            setup::tools()?;
            projects::install(&venv, Amount::Selection)?;
            anyhow::Ok(venv)
        });
        let begun = Instant::now();
        let compile = nextest(&["--no-run"], &[], rest);
        // What does not compile is counted by the run that follows.
        let _reported_then = shell::run(compile);
        println!("-- compiling the tests: {} s", begun.elapsed().as_secs());
        let set_up = set_up.join();
        let venv = set_up.map_err(|_| anyhow!("the set-up's thread panicked"))??;
        println!("-- with the set-up: {} s", begun.elapsed().as_secs());
        Ok(venv)
    })
}

/// The workspace's tests by cargo-nextest where it is installed, which runs tests of several
/// programs at once, and examples in documents by cargo; everything by cargo where it is not.
fn workspace(venv: &Venv, packages: &[String], rest: &[String]) -> Result<Count> {
    if !has_nextest() {
        return by_cargo(venv, packages, rest, &[]);
    }
    let mut count = by_nextest(venv, packages, rest)?;
    let begun = Instant::now();
    let libraries = with_a_library(packages, &cargo::metadata()?);
    if packages.is_empty() || !libraries.is_empty() {
        count.add(&by_cargo(venv, &libraries, rest, &["--doc"])?);
    }
    println!("-- examples in documents: {} s", begun.elapsed().as_secs());
    Ok(count)
}

/// Those of `packages` that have a library, in whose documents alone examples are tested: named a
/// package without one, cargo fails.
fn with_a_library(packages: &[String], metadata: &Value) -> Vec<String> {
    let known = metadata["packages"].as_array();
    let is_library = |target: &Value| {
        let kinds = target["kind"].as_array();
        let mut kinds = kinds.into_iter().flatten();
        kinds.any(|kind| kind.as_str().is_some_and(|kind| kind.ends_with("lib")))
    };
    let has_one = |name: &&String| {
        let named = known.into_iter().flatten();
        let mut named = named.filter(|package| package["name"] == name.as_str());
        // What is not known is named all the same, for cargo to refuse it.
        named.next().is_none_or(|package| {
            let targets = package["targets"].as_array();
            targets.into_iter().flatten().any(is_library)
        })
    };
    packages.iter().filter(has_one).cloned().collect()
}

fn has_nextest() -> bool {
    let mut version = cargo::command("nextest");
    version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

fn select(command: &mut Command, packages: &[String]) {
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
}

/// A run of the tests of `packages`, of those that `rest` selects.
fn nextest(options: &[&str], packages: &[String], rest: &[String]) -> Command {
    let mut command = cargo::command("nextest");
    command.args(["run", "--locked", "--no-tests=pass"]);
    command.args(options);
    select(&mut command, packages);
    command.arg("--").args(rest);
    command
}

fn by_nextest(venv: &Venv, packages: &[String], rest: &[String]) -> Result<Count> {
    let report = shell::root().join("target/nextest/default/junit.xml");
    if report.exists() {
        fs::remove_file(&report).with_context(|| format!("cannot remove {}", report.display()))?;
    }
    let mut command = nextest(&[], packages, rest);
    environment(&mut command, venv);
    let line = shell::describe(&command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    let read = fs::read_to_string(&report);
    let total = read.ok().and_then(|text| junit_total(&text));
    // Without a report it did not build, or nextest itself failed: nothing is known to have passed.
    let is_known = total.is_some();
    let mut count = total.unwrap_or_default();
    if count.failed == 0 && !(is_known && status.success()) {
        count.failed = 1;
    }
    Ok(count)
}

/// The sums of all programs, in the head of nextest's report.
fn junit_total(text: &str) -> Option<Count> {
    let head = text.split_once("<testsuites ")?.1;
    let head = head.split_once('>')?.0;
    let number = |name: &str| -> Option<u64> {
        let value = head.split_once(&format!("{name}=\""))?.1;
        value.split_once('"')?.0.parse().ok()
    };
    let failed = number("failures")? + number("errors")?;
    Some(Count {
        passed: number("tests")?.saturating_sub(failed),
        failed,
        ignored: 0,
    })
}

fn by_cargo(venv: &Venv, packages: &[String], rest: &[String], what: &[&str]) -> Result<Count> {
    let mut command = cargo::command("test");
    command.args(["--locked", "--no-fail-fast"]).args(what);
    select(&mut command, packages);
    command.arg("--").args(rest);
    environment(&mut command, venv);
    let mut count = Count::default();
    let mut running = false;
    let succeeded = shell::watch(command, |line| {
        println!("{line}");
        if line.starts_with("running ") && line.contains(" test") {
            // The program before died without a summary.
            count.failed += u64::from(running);
            running = true;
        } else if let Some(one) = summary(line) {
            count.add(&one);
            running = false;
        }
    })?;
    count.failed += u64::from(running);
    if !succeeded && count.failed == 0 {
        // It did not build.
        count.failed = 1;
    }
    Ok(count)
}

/// Reads libtest's `test result: ok. 3 passed; 0 failed; 0 ignored; ...`.
fn summary(line: &str) -> Option<Count> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let mut count = Count::default();
    for part in counts.split("; ") {
        let Some((number, what)) = part.split_once(' ') else {
            continue;
        };
        match what {
            "passed" => count.passed = number.parse().ok()?,
            "failed" => count.failed = number.parse().ok()?,
            "ignored" => count.ignored = number.parse().ok()?,
            _ => {}
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_line_of_the_harness_is_counted() {
        let line = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; \
                    4 filtered out; finished in 0.01s";
        let expected = Count {
            passed: 3,
            failed: 2,
            ignored: 1,
        };
        assert_eq!(summary(line), Some(expected));
    }

    #[test]
    fn nextests_report_is_counted_by_its_head() {
        let text = "<?xml version=\"1.0\"?>\n<testsuites name=\"nextest-run\" tests=\"7\" \
                    failures=\"2\" errors=\"1\" uuid=\"x\">\n<testsuite name=\"a\" tests=\"3\">";
        let expected = Count {
            passed: 4,
            failed: 3,
            ignored: 0,
        };
        assert_eq!(junit_total(text), Some(expected));
        assert_eq!(
            junit_total("<testsuite tests=\"3\" failures=\"0\" errors=\"0\">"),
            None
        );
    }

    #[test]
    fn a_program_alone_has_no_examples_in_documents() {
        let metadata = serde_json::json!({"packages": [
            {"name": "program", "targets": [{"kind": ["bin"]}, {"kind": ["test"]}]},
            {"name": "both", "targets": [{"kind": ["bin"]}, {"kind": ["cdylib", "rlib"]}]},
            {"name": "macros", "targets": [{"kind": ["proc-macro"]}]},
            {"name": "library", "targets": [{"kind": ["lib"]}]},
        ]});
        let packages = ["program", "library", "both", "unknown"].map(str::to_owned);
        let expected = ["library", "both", "unknown"].map(str::to_owned);
        assert_eq!(with_a_library(&packages, &metadata), expected);
        assert_eq!(with_a_library(&[], &metadata), [""; 0]);
    }

    #[test]
    fn other_lines_are_not_counted() {
        assert_eq!(summary("test a ... ok"), None);
        assert_eq!(summary("test result: "), None);
    }
}
