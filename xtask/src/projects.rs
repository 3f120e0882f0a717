//! Test suites of other projects, over the drop-in `libcuda.so.1`.
//!
//! PyCUDA's own tests, tinygrad's of its operations and its compiler, Taichi's samples, and
//! Triton's compiler with kernels of ours, which the checks of the software device must find
//! nothing in. Projects come from the package index, pinned, their tests from their source
//! packages; nothing of them is in the repository.
//!
//! `cargo xtask test` runs what needs tinygrad's source package alone; all the rest is installed
//! when whole suites are run, by `cargo xtask projects` and `cargo xtask soak`.
//!
//! Invariant: a test that does not run is listed with its reason ([`not_run`]), or counts as
//! failed. Elsewhere: programs whose tests are in the repository (`clients`); the document
//! (`conformance`).

mod not_run;
mod sources;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::clients::{self, Front, Suite};
use crate::count::Count;
use crate::setup::Venv;
use crate::{debian, setup, shell};
use not_run::NotRun;

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    /// What every run of all tests has time for: the selections of suites that have one.
    Selection,
    /// Whole suites.
    Whole,
}

/// A suite, as pytest runs it.
struct Project {
    name: &'static str,
    /// The package whose version is its version.
    package: &'static str,
    about: &'static str,
    /// Whether it needs the wheels of [`WHEELS`], or nothing but its source package.
    needs_wheels: bool,
    /// Whether its tests are its own, in its source package, or ours, in tests/clients.
    has_own_tests: bool,
    /// Files or folders of tests, which only whole suites have.
    tests: &'static [&'static str],
    /// Files of tests that have time to run every time, and need its source package alone.
    selection: &'static [&'static str],
    /// Tests that are not run, by pytest's name, and why.
    not_run: &'static [NotRun],
    /// Sets what its tests need.
    environment: fn(&Place<'_>, &mut Command) -> Result<()>,
}

/// Where a suite runs.
struct Place<'a> {
    venv: &'a Venv,
    /// The folder of the drop-in library.
    drop_in: &'a Path,
    /// The environment with the project's packages and its sources.
    root: PathBuf,
    /// The suite's own folder, in target.
    folder: PathBuf,
    amount: Amount,
}

/// Requirements of the wheels, and of PyCUDA's source package.
const WHEELS: [&str; 2] = [
    "tests/clients/projects/requirements.txt",
    "tests/clients/projects/pycuda.txt",
];
/// Requirements of what unpacks tinygrad's source package, and of that.
const TINYGRAD: [&str; 2] = [
    "tests/clients/projects/build.txt",
    "tests/clients/projects/tinygrad.txt",
];
/// The folder with what is ours.
const OURS: &str = "tests/clients/projects";

const PROJECTS: [Project; 4] = [
    Project {
        name: "PyCUDA",
        package: "pycuda",
        about: "its own tests, kernels compiled by nvcc to PTX",
        needs_wheels: true,
        has_own_tests: true,
        tests: &["test"],
        selection: &[],
        not_run: not_run::PYCUDA,
        environment: pycuda_environment,
    },
    Project {
        name: "tinygrad",
        package: "tinygrad",
        about: "its own tests: operations by NVRTC against PyTorch, indexing, fusion, replays",
        needs_wheels: false,
        has_own_tests: true,
        tests: TINYGRAD_TESTS,
        selection: TINYGRAD_SELECTION,
        not_run: not_run::TINYGRAD,
        environment: tinygrad_environment,
    },
    Project {
        name: "Taichi",
        package: "taichi",
        about: "its samples, against its own backend for processors",
        needs_wheels: true,
        has_own_tests: false,
        tests: &["projects/test_taichi.py"],
        selection: &[],
        not_run: not_run::TAICHI,
        environment: taichi_environment,
    },
    Project {
        name: "Triton",
        package: "triton",
        about: "kernels that it compiles for sm_80, with the checks on and no finding",
        needs_wheels: true,
        has_own_tests: false,
        tests: &["projects/test_triton.py"],
        selection: &[],
        not_run: &[],
        environment: triton_environment,
    },
];

/// Kernels of all kinds that need neither PyTorch nor a compiler for processors.
const TINYGRAD_SELECTION: &[&str] = &[
    "test/test_tiny.py",
    "test/test_setitem.py",
    "test/test_tensor_variable.py",
    "test/test_fusion_op.py",
    "test/test_softmax_fusion.py",
    "test/test_jit_footguns.py",
    "test/test_jit_cases.py",
];
/// What whole suites have more.
const TINYGRAD_TESTS: &[&str] = &[
    "test/test_ops.py",
    "test/test_arange.py",
    "test/test_assign.py",
    "test/test_custom_kernel.py",
    "test/test_gc.py",
    "test/test_linearizer.py",
    "test/test_opt_gemm.py",
    "test/test_outerworld.py",
    "test/test_outerworld_range.py",
    "test/test_pickle.py",
    "test/test_rangeify.py",
];

impl Project {
    /// Whether any of its tests are run in that amount.
    fn is_in(&self, amount: Amount) -> bool {
        amount == Amount::Whole || !self.selection.is_empty()
    }
}

/// Runs the whole suites of projects whose name contains `filter`.
pub(crate) fn run(filter: Option<&str>) -> Result<()> {
    let venv = setup::run(false)?;
    let filter = filter.unwrap_or_default().to_lowercase();
    let chosen = |it: &&Project| it.name.to_lowercase().contains(&filter);
    let projects: Vec<&Project> = PROJECTS.iter().filter(chosen).collect();
    if projects.is_empty() {
        let names = PROJECTS.map(|it| it.name).join(", ");
        bail!("no project's name contains {filter:?}\ntry: {names}");
    }
    let drop_in = clients::build_drop_in_alone()?;
    let suites = run_these(&projects, &venv, &drop_in, Amount::Whole)?;
    shell::step("summary");
    for suite in &suites {
        let Count { passed, failed, .. } = suite.count;
        println!("{:<32} {passed:>6} passed {failed:>6} failed", suite.name);
        for failure in &suite.failures {
            println!("  {failure}");
        }
    }
    let failed: u64 = suites.iter().map(|suite| suite.count.failed).sum();
    if failed > 0 {
        bail!("{failed} tests of other projects failed");
    }
    Ok(())
}

/// Runs all projects' suites.
pub(crate) fn run_all(venv: &Venv, drop_in: &Path, amount: Amount) -> Result<Vec<Suite>> {
    let projects: Vec<&Project> = PROJECTS.iter().collect();
    run_these(&projects, venv, drop_in, amount)
}

/// Tests that are not run, for the document: project, test, reason.
pub(crate) fn not_run() -> Vec<(&'static str, &'static str, &'static str)> {
    let of_project = |project: &'static Project| {
        let each = project.not_run.iter();
        each.map(|(test, why)| (project.name, test.rsplit("::").next().unwrap_or(test), *why))
    };
    PROJECTS.iter().flat_map(of_project).collect()
}

/// Installs what the projects need of which so much is run.
pub(crate) fn install(venv: &Venv, amount: Amount) -> Result<()> {
    for project in PROJECTS.iter().filter(|it| it.is_in(amount)) {
        root(project, venv)?;
    }
    Ok(())
}

fn run_these(
    projects: &[&Project],
    venv: &Venv,
    drop_in: &Path,
    amount: Amount,
) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for project in projects {
        if !project.is_in(amount) {
            continue;
        }
        let folder = shell::root().join("target/projects").join(project.package);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let place = Place {
            venv,
            drop_in,
            root: root(project, venv)?,
            folder,
            amount,
        };
        suites.push(run_project(project, &place)?);
    }
    Ok(suites)
}

/// The environment with a project's packages and sources, installed if necessary.
fn root(project: &Project, venv: &Venv) -> Result<PathBuf> {
    if project.needs_wheels {
        let what = "projects of which the tests are run (about 1.4 GB on disk, once)";
        let finish = |root: &Path| {
            sources::unpack(root, WHEELS[1])?;
            sources::build_pycuda(root, &packages(root)?, venv)
        };
        setup::projects("projects", what, WHEELS, finish)
    } else {
        let what = "tinygrad, of which the tests are run (about 50 MB on disk, once)";
        let finish = |root: &Path| sources::unpack(root, TINYGRAD[1]);
        setup::projects("tinygrad", what, TINYGRAD, finish)
    }
}

fn run_project(project: &Project, place: &Place<'_>) -> Result<Suite> {
    println!("\n-- {} ({})", project.name, Front::DropIn.name());
    let report = place.folder.join("report.xml");
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let succeeded = shell::watch(pytest(project, place, &report)?, |line| println!("{line}"))?;
    // Without a report it died.
    let text = fs::read_to_string(&report).unwrap_or_default();
    let (mut count, failures) = clients::junit(&text).unwrap_or_default();
    // Among all are parts of tests, which have no cases of their own.
    count.passed = count.passed.min(text.matches("<testcase ").count() as u64);
    if (!succeeded && count.failed == 0) || count.passed + count.failed == 0 {
        // It died before its report.
        count.failed += 1;
    }
    Ok(Suite {
        name: project.name,
        front: Front::DropIn,
        about: project.about,
        version: version(project.package)?,
        count,
        selected: Some(selected(project, &text)),
        failures,
    })
}

/// How many of the tests in a report every run of all tests has.
fn selected(project: &Project, report: &str) -> u64 {
    // Names of classes are those of modules: test/test_a.py is test.test_a.
    let modules = project.selection.iter();
    let classes = modules.map(|file| {
        let module = file.trim_end_matches(".py").replace('/', ".");
        format!(" classname=\"{module}.")
    });
    classes
        .map(|class| report.matches(class.as_str()).count() as u64)
        .sum()
}

fn pytest(project: &Project, place: &Place<'_>, report: &Path) -> Result<Command> {
    let python = match project.needs_wheels {
        true => place.root.join("bin/python"),
        false => place.venv.python.clone(),
    };
    let mut command = Command::new(python);
    // Names of tests are relative to it.
    let base = match project.has_own_tests {
        true => place.root.join("sources").join(project.package),
        false => shell::root().join("tests/clients"),
    };
    command.current_dir(&base);
    command.args(["-P", "-m", "pytest", "-q", "--no-header"]);
    command.args(["--disable-warnings", "--tb=short"]);
    command.args(["-p", "no:cacheprovider"]);
    command.arg(format!("--rootdir={}", base.display()));
    command.arg(format!("--junitxml={}", report.display()));
    command.args(["-p", "not_run"]);
    command.args(project.selection);
    let is_whole = place.amount == Amount::Whole;
    if is_whole {
        command.args(project.tests);
    }
    let not_run: Vec<&str> = project.not_run.iter().map(|(test, _)| *test).collect();
    setup::environment(&mut command, place.venv);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", shell::root().join(OURS))
        .env("PROJECT_NOT_RUN", not_run.join("\n"))
        .env("PROJECT_IS_WHOLE", if is_whole { "1" } else { "0" })
        .env("FERCUDA_SOFT_MEMORY", "4GiB")
        // Answers are judged here; Triton's suite turns the checks on.
        .env("FERCUDA_SOFT_CHECK", "0");
    (project.environment)(place, &mut command)?;
    Ok(command)
}

/// The version of a package, as it is pinned.
fn version(package: &str) -> Result<String> {
    for file in WHEELS.into_iter().chain(TINYGRAD) {
        let text = fs::read_to_string(shell::root().join(file))?;
        let pin = text.lines().find_map(|line| {
            let (name, version) = line.split_once("==")?;
            (name == package).then(|| version.trim_end_matches([' ', '\\']).to_owned())
        });
        if let Some(version) = pin {
            return Ok(version);
        }
    }
    bail!("no file of requirements in {OURS} names {package}")
}

impl Place<'_> {
    /// Where the loader looks: the drop-in library, then the compilers' libraries, then `more`.
    fn libraries(&self, more: &[PathBuf]) -> Result<OsString> {
        let first = [self.drop_in.to_owned(), self.venv.wheels.join("cu13/lib")];
        let all = first.iter().chain(more);
        std::env::join_paths(all).context("a folder's name has a colon")
    }

    /// The folder of the projects' own NVIDIA wheels.
    fn wheels(&self) -> Result<PathBuf> {
        Ok(packages(&self.root)?.join("nvidia/cu13"))
    }
}

/// The folder of an environment's packages.
fn packages(root: &Path) -> Result<PathBuf> {
    let lib = root.join("lib");
    let pythons = fs::read_dir(&lib).with_context(|| format!("cannot read {}", lib.display()))?;
    let mut found = pythons.flatten().map(|it| it.path().join("site-packages"));
    found
        .find(|packages| packages.is_dir())
        .with_context(|| format!("no packages under {}", lib.display()))
}

fn pycuda_environment(it: &Place<'_>, command: &mut Command) -> Result<()> {
    let wheels = it.wheels()?;
    let mut path = vec![shell::root().join(OURS)];
    path.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    let headers = format!("-I{}", wheels.join("include").display());
    command
        .env("PATH", std::env::join_paths(path)?)
        .env("LD_LIBRARY_PATH", it.libraries(&[wheels.join("lib")])?)
        .env("PYCUDA_DEFAULT_NVCC_FLAGS", headers)
        .env("PYCUDA_CACHE_DIR", it.root.join("compiled/pycuda"));
    Ok(fs::create_dir_all(it.root.join("compiled/pycuda"))?)
}

/// tinygrad looks for the libraries in one folder; whole, its tests compare with PyTorch, of which
/// Debian has a package without CUDA.
fn tinygrad_environment(it: &Place<'_>, command: &mut Command) -> Result<()> {
    let toolkit = it.folder.join("toolkit");
    if toolkit.exists() {
        fs::remove_dir_all(&toolkit)?;
    }
    fs::create_dir_all(&toolkit)?;
    symlink(
        it.drop_in.join("libcuda.so.1"),
        toolkit.join("libcuda.so.1"),
    )?;
    symlink(it.venv.wheels.join("cu13/include"), toolkit.join("include"))?;
    let mut python = vec![shell::root().join(OURS), it.root.join("sources/tinygrad")];
    let mut libraries = Vec::new();
    if it.amount == Amount::Whole {
        let debian = debian::unpacked("python3-torch", "PyTorch")?;
        python.push(debian.join("usr/lib/python3/dist-packages"));
        libraries = [
            "usr/lib",
            "usr/lib/x86_64-linux-gnu",
            "lib/x86_64-linux-gnu",
            "usr/lib/x86_64-linux-gnu/blas",
            "usr/lib/x86_64-linux-gnu/lapack",
        ]
        .map(|library| debian.join(library))
        .to_vec();
        // It comes with PyTorch, and is none of the suite's.
        command.args(["-p", "no:hypothesispytest"]);
    }
    command
        .env("CUDA", "1")
        .env("CUDA_PATH", toolkit)
        .env("NVRTC_PATH", it.venv.wheels.join("cu13/lib/libnvrtc.so.13"))
        .env("PYTHONPATH", std::env::join_paths(python)?)
        .env("LD_LIBRARY_PATH", it.libraries(&libraries)?)
        .env("OMP_NUM_THREADS", "1")
        .env("CACHEDB", it.root.join("compiled/tinygrad.db"));
    Ok(fs::create_dir_all(it.root.join("compiled"))?)
}

fn taichi_environment(it: &Place<'_>, command: &mut Command) -> Result<()> {
    command.env("LD_LIBRARY_PATH", it.libraries(&[])?);
    Ok(())
}

fn triton_environment(it: &Place<'_>, command: &mut Command) -> Result<()> {
    let report = it.folder.join("findings");
    fs::write(&report, "").with_context(|| format!("cannot write {}", report.display()))?;
    command
        .env("LD_LIBRARY_PATH", it.libraries(&[])?)
        .env("TRITON_CACHE_DIR", it.root.join("compiled/triton"))
        .env("FERCUDA_SOFT_CHECK", "1")
        .env("FERCUDA_SOFT_CHECK_REPORT", &report);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_run_has_needs_a_source_package_alone() {
        let mut selecting = PROJECTS.iter().filter(|it| !it.selection.is_empty());
        assert!(selecting.clone().count() > 0);
        assert!(selecting.all(|it| !it.needs_wheels && it.has_own_tests));
    }

    #[test]
    fn a_test_that_is_not_run_is_of_its_suite_and_listed_once() {
        for project in &PROJECTS {
            let mut seen = std::collections::BTreeSet::new();
            for (test, _) in project.not_run {
                let suite = project.tests.iter().chain(project.selection);
                assert!(suite.clone().any(|file| test.starts_with(file)), "{test}");
                assert!(seen.insert(test), "{test}");
            }
        }
    }

    #[test]
    fn tests_of_a_selection_are_counted_in_a_report_of_the_whole() {
        let project = PROJECTS.iter().find(|it| it.name == "tinygrad").unwrap();
        let report = r#"<testsuite name="pytest" tests="3">
            <testcase classname="test.test_tiny.TestTiny" name="test_plus" time="0.1"/>
            <testcase classname="test.test_ops.TestOps" name="test_tiny.py" time="0.1"/>
            <testcase classname="test.test_setitem.TestSetitem" name="a" time="0.1"/>"#;
        assert_eq!(selected(project, report), 2);
        assert_eq!(selected(&PROJECTS[0], report), 0);
    }
}
