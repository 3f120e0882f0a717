//! Source packages of other projects, unpacked, and built where they have a compiled part.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::setup::{self, Venv};
use crate::shell;

/// Unpacks the source packages of a file of requirements into `sources/NAME` of an environment.
pub(super) fn unpack(root: &Path, requirements: &str) -> Result<()> {
    let python = root.join("bin/python");
    let sources = root.join("sources");
    fs::create_dir_all(&sources).with_context(|| format!("cannot make {}", sources.display()))?;
    // With the setuptools of this environment, not with another one.
    let kind = ["--no-binary=:all:", "--no-build-isolation"];
    setup::download(&python, requirements, &kind, &sources).context(
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
    Ok(())
}

/// Builds PyCUDA with little optimisation, as its wrappers are compiled once a checkout at most,
/// and puts it among the environment's packages.
pub(super) fn build_pycuda(root: &Path, packages: &Path, venv: &Venv) -> Result<()> {
    let source = &root.join("sources/pycuda");
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
