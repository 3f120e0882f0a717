//! Test suites of other projects, over the drop-in `libcuda.so.1`.
//!
//! PyCUDA's own tests, tinygrad's of its operations, and Triton's compiler with kernels of ours,
//! which the checks of the software device must find nothing in. Projects come from the package
//! index, pinned, their tests from their source packages; nothing of them is in the repository.
//!
//! Invariant: a test that does not run is listed with its reason ([`not_run`]), or counts as
//! failed. Elsewhere: programs whose tests are in the repository (`clients`); the document
//! (`conformance`).

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

/// How much of a suite is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    /// What every run of all tests has time for.
    Selection,
    Whole,
}

/// A suite, as pytest runs it.
struct Project {
    name: &'static str,
    /// The package whose version is its version.
    package: &'static str,
    about: &'static str,
    /// Whether its tests are its own, in its source package, or ours, in tests/clients.
    has_own_tests: bool,
    /// The file or folder of tests.
    tests: &'static [&'static str],
    /// What of it has time to run every time; none: all.
    selection: &'static [&'static str],
    /// Tests that are not run, by pytest's name, and why.
    not_run: &'static [(&'static str, &'static str)],
    /// Sets what the suite needs; `folder` is the suite's, in target.
    environment: fn(&Installed<'_>, &mut Command, &Path) -> Result<()>,
}

/// What is installed.
struct Installed<'a> {
    /// The environment with the projects' packages and sources.
    root: PathBuf,
    venv: &'a Venv,
    /// The folder of the drop-in library.
    drop_in: &'a Path,
}

/// Requirements of the wheels, and of the source packages.
const REQUIREMENTS: [&str; 2] = [
    "tests/clients/projects/requirements.txt",
    "tests/clients/projects/sources.txt",
];
/// The folder with what is ours.
const OURS: &str = "tests/clients/projects";

const PROJECTS: [Project; 3] = [
    Project {
        name: "PyCUDA",
        package: "pycuda",
        about: "its own tests, kernels compiled by nvcc to PTX",
        has_own_tests: true,
        tests: &["test"],
        selection: &["test/test_driver.py"],
        not_run: PYCUDA_NOT_RUN,
        environment: pycuda_environment,
    },
    Project {
        name: "tinygrad",
        package: "tinygrad",
        about: "its own tests of operations, by NVRTC, against PyTorch",
        has_own_tests: true,
        tests: &["test/test_ops.py"],
        selection: &["test/test_ops.py", "-k", TINYGRAD_SELECTION],
        not_run: TINYGRAD_NOT_RUN,
        environment: tinygrad_environment,
    },
    Project {
        name: "Triton",
        package: "triton",
        about: "kernels that it compiles for sm_80, with the checks on and no finding",
        has_own_tests: false,
        tests: &["projects/test_triton.py"],
        selection: &[],
        not_run: &[],
        environment: triton_environment,
    },
];

const TEXTURES: &str = "texture references, which are not in CUDA 12 and later";
const SURFACES: &str = "surface references, which are not in CUDA 12 and later";
const DEVICE_RUNTIME: &str =
    "launches from kernels, by a device library that exists as machine code only";
const MEMORY: &str = "takes more than 4 GiB of memory";

const EXPECTED: &str = "its authors expect it to fail, with any driver";
const SKIPPED: &str = "its authors leave it out, with any driver";

const PYCUDA_NOT_RUN: &[(&str, &str)] = &[
    ("test/test_driver.py::TestDriver::test_2d_texture", TEXTURES),
    (
        "test/test_driver.py::TestDriver::test_multiple_2d_textures",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_multichannel_2d_texture",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_multichannel_linear_texture",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_2d_fp_textures",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_2d_fp_textures_layered",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_3d_fp_textures",
        TEXTURES,
    ),
    ("test/test_driver.py::TestDriver::test_3d_texture", TEXTURES),
    (
        "test/test_driver.py::TestDriver::test_fp_textures",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_3d_fp_surfaces",
        SURFACES,
    ),
    (
        "test/test_driver.py::TestDriver::test_2d_fp_surfaces",
        SURFACES,
    ),
    ("test/test_gpuarray.py::TestGPUArray::test_take", TEXTURES),
    (
        "test/test_gpuarray.py::TestGPUArray::test_take_put",
        TEXTURES,
    ),
    (
        "test/test_driver.py::TestDriver::test_recursive_launch",
        DEVICE_RUNTIME,
    ),
    (
        "test/test_driver.py::TestDriver::test_jit_link_module",
        DEVICE_RUNTIME,
    ),
    (
        "test/test_driver.py::TestDriver::test_register_host_memory",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int32-int32]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int32-int64]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int64-int32]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_binary_ops_with_unequal_dtypes[truediv-int64-int64]",
        EXPECTED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_sum_allocator",
        SKIPPED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_dot_allocator",
        SKIPPED,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_curand_wrappers_8gb",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_curand_wrappers_16gb",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_big_array_elementwise",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_big_array_reduction",
        MEMORY,
    ),
    (
        "test/test_gpuarray.py::TestGPUArray::test_big_array_scan",
        MEMORY,
    ),
];

const HALF_REFERENCE: &str =
    "PyTorch 1.13, its reference here, has no product of f16 matrices on a processor";
const NOT_CUDA: &str = "its authors leave it out with CUDA";
const REFERENCE: &str = "PyTorch 1.13, its reference here, has no such call or another answer; \
    fails over its CPU backend too";

/// One test of each kind of kernel: short ones.
const TINYGRAD_SELECTION: &str = "\
    test_add3 or test_broadcast_simple or test_mul_const or test_exp2 or \
    test_sigmoid_alt or test_sum_simple or test_softmax_other or test_small_gemm or \
    test_dot_1d or test_simple_conv2d or test_max_pool2d_simple or \
    test_avg_pool2d_simple or test_gather or test_simple_cumsum or test_sort or \
    test_argmax or test_where_permute or test_pad_reflect or test_slice_in_bounds_1dim or \
    test_tril or test_roll or test_einsum or test_scatter_add or test_relu_exact or \
    test_idiv or test_log_softmax or test_var_one or test_bitwise or test_cast or test_fold";

const TINYGRAD_NOT_RUN: &[(&str, &str)] = &[
    ("test/test_ops.py::TestOps::test_gemm_fp16", HALF_REFERENCE),
    ("test/test_ops.py::TestOps::test_all_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_all_zero_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_any_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_any_zero_axis", REFERENCE),
    ("test/test_ops.py::TestOps::test_cummax", REFERENCE),
    ("test/test_ops.py::TestOps::test_linspace", REFERENCE),
    (
        "test/test_ops.py::TestOps::test_max_pool2d_padding_int",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_max_pool2d_return_indices",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_causal",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_gqa",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_gqa_errors",
        REFERENCE,
    ),
    (
        "test/test_ops.py::TestOps::test_scaled_dot_product_attention_mismatch_ls",
        REFERENCE,
    ),
    ("test/test_ops.py::TestOps::test_std", REFERENCE),
    ("test/test_ops.py::TestOps::test_std_keepdim", REFERENCE),
    ("test/test_ops.py::TestOps::test_std_mean", REFERENCE),
    ("test/test_ops.py::TestOps::test_var", REFERENCE),
    ("test/test_ops.py::TestOps::test_var_keepdim", REFERENCE),
    (
        "test/test_ops.py::TestOpsUint8::test_interpolate_bilinear",
        REFERENCE,
    ),
    ("test/test_ops.py::TestOps::test_large_bs_conv", SKIPPED),
    ("test/test_ops.py::TestOps::test_large_ic_conv", SKIPPED),
    ("test/test_ops.py::TestOps::test_sd_big_conv", SKIPPED),
    ("test/test_ops.py::TestOps::test_max_nan", SKIPPED),
    ("test/test_ops.py::TestOps::test_pow_int", SKIPPED),
    ("test/test_ops.py::TestOps::test_svd", SKIPPED),
    (
        "test/test_ops.py::TestOps::test_max_pool2d_unit_stride",
        NOT_CUDA,
    ),
    (
        "test/test_ops.py::TestOps::test_strided_conv2d_simple_vec",
        NOT_CUDA,
    ),
];

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

fn run_these(
    projects: &[&Project],
    venv: &Venv,
    drop_in: &Path,
    amount: Amount,
) -> Result<Vec<Suite>> {
    let installed = Installed {
        root: setup::projects(REQUIREMENTS, |root| install_sources(root, venv))?,
        venv,
        drop_in,
    };
    let run = |project: &&Project| run_project(project, &installed, amount);
    projects.iter().map(run).collect()
}

fn run_project(project: &Project, installed: &Installed<'_>, amount: Amount) -> Result<Suite> {
    println!("\n-- {} ({})", project.name, Front::DropIn.name());
    let folder = shell::root().join("target/projects").join(project.package);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let report = folder.join("report.xml");
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let python = installed.root.join("bin/python");
    let is_whole = amount == Amount::Whole || project.selection.is_empty();
    let tests = if is_whole {
        project.tests
    } else {
        project.selection
    };
    let not_run: Vec<&str> = project.not_run.iter().map(|(test, _)| *test).collect();
    let mut command = Command::new(&python);
    // Names of tests are relative to it.
    let base = match project.has_own_tests {
        true => installed.root.join("sources").join(project.package),
        false => shell::root().join("tests/clients"),
    };
    command.current_dir(&base);
    command.args([
        "-P",
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "--disable-warnings",
    ]);
    command.args(["-p", "no:cacheprovider", "--tb=short"]);
    command.arg(format!("--rootdir={}", base.display()));
    command.arg(format!("--junitxml={}", report.display()));
    command.args(["-p", "not_run"]);
    command.args(tests);
    setup::environment(&mut command, installed.venv);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", shell::root().join(OURS))
        .env("PROJECT_NOT_RUN", not_run.join("\n"))
        .env("PROJECT_IS_WHOLE", if is_whole { "1" } else { "0" })
        .env("FERCUDA_SOFT_MEMORY", "4GiB")
        // Answers are judged here; Triton's suite turns the checks on.
        .env("FERCUDA_SOFT_CHECK", "0");
    (project.environment)(installed, &mut command, &folder)?;
    let succeeded = shell::watch(command, |line| println!("{line}"))?;
    let read = fs::read_to_string(&report).ok();
    let (mut count, failures) = read
        .and_then(|text| clients::junit(&text))
        .unwrap_or_default();
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
        failures,
    })
}

/// The version of a package, as it is pinned.
fn version(package: &str) -> Result<String> {
    for file in REQUIREMENTS {
        let text = fs::read_to_string(shell::root().join(file))?;
        let pin = text.lines().find_map(|line| {
            let (name, version) = line.split_once("==")?;
            (name == package).then(|| version.trim_end_matches([' ', '\\']).to_owned())
        });
        if let Some(version) = pin {
            return Ok(version);
        }
    }
    bail!("no file of {REQUIREMENTS:?} names {package}")
}

impl Installed<'_> {
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

fn pycuda_environment(it: &Installed<'_>, command: &mut Command, _: &Path) -> Result<()> {
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

/// tinygrad looks for the libraries in one folder, and compares with PyTorch, of which Debian has
/// a package without CUDA.
fn tinygrad_environment(it: &Installed<'_>, command: &mut Command, folder: &Path) -> Result<()> {
    let debian = debian::unpacked("python3-torch", "PyTorch")?;
    let toolkit = folder.join("toolkit");
    if toolkit.exists() {
        fs::remove_dir_all(&toolkit)?;
    }
    fs::create_dir_all(&toolkit)?;
    symlink(
        it.drop_in.join("libcuda.so.1"),
        toolkit.join("libcuda.so.1"),
    )?;
    symlink(it.venv.wheels.join("cu13/include"), toolkit.join("include"))?;
    let libraries = [
        "usr/lib",
        "usr/lib/x86_64-linux-gnu",
        "lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/blas",
        "usr/lib/x86_64-linux-gnu/lapack",
    ];
    let python = [
        shell::root().join(OURS),
        it.root.join("sources/tinygrad"),
        debian.join("usr/lib/python3/dist-packages"),
    ];
    command
        // It comes with PyTorch, and is none of the suite's.
        .args(["-p", "no:hypothesispytest"])
        .env("CUDA", "1")
        .env("CUDA_PATH", toolkit)
        .env("NVRTC_PATH", it.venv.wheels.join("cu13/lib/libnvrtc.so.13"))
        .env("PYTHONPATH", std::env::join_paths(python)?)
        .env(
            "LD_LIBRARY_PATH",
            it.libraries(&libraries.map(|it| debian.join(it)))?,
        )
        .env("OMP_NUM_THREADS", "1")
        .env("CACHEDB", it.root.join("compiled/tinygrad.db"));
    Ok(fs::create_dir_all(it.root.join("compiled"))?)
}

fn triton_environment(it: &Installed<'_>, command: &mut Command, folder: &Path) -> Result<()> {
    let report = folder.join("findings");
    fs::write(&report, "").with_context(|| format!("cannot write {}", report.display()))?;
    command
        .env("LD_LIBRARY_PATH", it.libraries(&[])?)
        .env("TRITON_CACHE_DIR", it.root.join("compiled/triton"))
        .env("FERCUDA_SOFT_CHECK", "1")
        .env("FERCUDA_SOFT_CHECK_REPORT", &report);
    Ok(())
}

/// Unpacks the projects' sources into `sources/NAME`, and builds what has a compiled part.
fn install_sources(root: &Path, venv: &Venv) -> Result<()> {
    let python = root.join("bin/python");
    let sources = root.join("sources");
    fs::create_dir_all(&sources).with_context(|| format!("cannot make {}", sources.display()))?;
    let mut download = shell::command(&python);
    download
        .args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--require-hashes"])
        // With the setuptools of this environment, not with another one.
        .args(["--no-binary=:all:", "--no-build-isolation"])
        .args(["-r", REQUIREMENTS[1], "--dest"])
        .arg(&sources);
    shell::run(download).context(
        "cannot download the sources of other projects\n\
         try: check that pip reaches its package index",
    )?;
    let archives = fs::read_dir(&sources)?.flatten().map(|it| it.path());
    for archive in archives.collect::<Vec<_>>() {
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('-').next().unwrap_or_default().to_owned();
        let folder = sources.join(&name);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut unpack = Command::new("tar");
        unpack.args(["-xzf"]).arg(&archive);
        unpack.args(["--strip-components=1", "-C"]).arg(&folder);
        shell::run(unpack)?;
        fs::remove_file(&archive)?;
    }
    build_pycuda(root, &sources.join("pycuda"), venv)
}

/// Builds PyCUDA with little optimisation, as its wrappers are compiled once a checkout at most,
/// and puts it among the environment's packages.
fn build_pycuda(root: &Path, source: &Path, venv: &Venv) -> Result<()> {
    let packages = packages(root)?;
    let own = packages.join("nvidia/cu13");
    // Only the names of the libraries are needed to link: the loader finds them when it is run.
    let stubs = source.join("stubs");
    fs::create_dir_all(&stubs)?;
    for (name, soname) in [("cuda", "libcuda.so.1"), ("curand", "libcurand.so.10")] {
        let mut stub = Command::new("cc");
        stub.args(["-shared", "-x", "c", "/dev/null", "-o"])
            .arg(stubs.join(format!("lib{name}.so")))
            .arg(format!("-Wl,-soname,{soname}"));
        shell::run(stub).context("try: install a C and C++ compiler")?;
    }
    let list = |option: &str, paths: &[PathBuf]| {
        let paths: Vec<_> = paths.iter().map(|it| it.display().to_string()).collect();
        format!("--{option}={}", paths.join(","))
    };
    let headers = [venv.wheels.join("cu13/include"), own.join("include")];
    let python = root.join("bin/python");
    let start = |words: &[&str]| {
        let mut command = Command::new(&python);
        command
            .current_dir(source)
            .args(words)
            .env("LDFLAGS", "-Wl,--no-as-needed");
        command
    };
    let mut configure = start(&["configure.py"]);
    configure
        .arg("--cxxflags=-O0,-g0,-w")
        .arg(list("cuda-inc-dir", &headers))
        .arg(list("cudadrv-lib-dir", std::slice::from_ref(&stubs)))
        .arg(list("curand-lib-dir", std::slice::from_ref(&stubs)));
    shell::capture(configure)?;
    shell::capture(start(&["setup.py", "--quiet", "build_ext", "-j2"]))?;
    let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"];
    let mut install = start(&install);
    install.args(["--disable-pip-version-check", "--no-build-isolation", "."]);
    shell::capture(install)?;
    let build = source.join("build");
    fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))
}
