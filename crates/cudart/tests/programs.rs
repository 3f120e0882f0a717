//! Programs of our own, built by nvcc with `-cudart shared`, over this library and the software
//! device, with all checks on.
//!
//! Without `FERCUDA_WHEELS` (before `cargo xtask setup`) there is no nvcc, and nothing is built.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// What a run with findings ends with.
const FOUND: i32 = 9;

/// A library as cargo built it for this profile.
fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe.parent().unwrap().join(name);
    assert!(path.is_file(), "cargo built no {}", path.display());
    path
}

/// NVIDIA's compiler, and a folder in which programs find the libraries.
struct Toolkit {
    nvcc: PathBuf,
    folder: tempfile::TempDir,
}

fn toolkit() -> Option<&'static Toolkit> {
    static TOOLKIT: LazyLock<Option<Toolkit>> = LazyLock::new(|| {
        let named = PathBuf::from(std::env::var_os("FERCUDA_WHEELS")?);
        let pythons = named.join("lib").read_dir().into_iter().flatten().flatten();
        let of_environment = pythons.map(|it| it.path().join("site-packages/nvidia"));
        let wheels = of_environment.chain([named]).find(|it| it.is_dir())?;
        let root = wheels.join("cu13");
        let folder = tempfile::tempdir().unwrap();
        let nvcc = runnable(&root, folder.path());
        for (library, names) in [
            ("libcuda.so", ["libcuda.so.1", "libcuda.so"]),
            ("libcudart.so", ["libcudart.so.13", "libcudart.so"]),
        ] {
            for name in names {
                symlink(built(library), folder.path().join(name)).unwrap();
            }
        }
        let runtime = root.join("lib/libcudadevrt.a");
        symlink(runtime, folder.path().join("libcudadevrt.a")).unwrap();
        Some(Toolkit { nvcc, folder })
    });
    TOOLKIT.as_ref()
}

/// nvcc, in a copy if the wheels' programs lack the run bit.
fn runnable(root: &Path, folder: &Path) -> PathBuf {
    let nvcc = root.join("bin/nvcc");
    let mode = |path: &Path| fs::metadata(path).map_or(0, |it| it.permissions().mode());
    let programs = [&nvcc, &root.join("nvvm/bin/cicc"), &root.join("bin/ptxas")];
    if programs.iter().all(|it| mode(it) & 0o111 != 0) {
        return nvcc;
    }
    let copy = folder.join("toolkit");
    for part in ["bin", "bin/crt", "nvvm/bin", "nvvm/libdevice"] {
        fs::create_dir_all(copy.join(part)).unwrap();
        for entry in fs::read_dir(root.join(part)).unwrap() {
            let from = entry.unwrap().path();
            if from.is_file() {
                let to = copy.join(part).join(from.file_name().unwrap());
                let mut install = Command::new("install");
                install.args(["-m", "755"]).arg(from).arg(to);
                assert!(install.status().unwrap().success());
            }
        }
    }
    for part in ["include", "lib"] {
        symlink(root.join(part), copy.join(part)).unwrap();
    }
    copy.join("bin/nvcc")
}

impl Toolkit {
    /// Compiles sources of `tests/programs` to a program.
    fn build(&self, name: &str, sources: &[&str], options: &[&str]) -> PathBuf {
        let program = self.folder.path().join(name);
        let sources = sources.iter().map(|it| {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/programs")
                .join(it)
        });
        let mut nvcc = Command::new(&self.nvcc);
        nvcc.args(["-cudart", "shared", "-std=c++17", "-lineinfo", "-O1"])
            .args(["-gencode", "arch=compute_90,code=compute_90"])
            .arg("-L")
            .arg(self.folder.path())
            .args(options)
            .arg("-o")
            .arg(&program)
            .args(sources);
        let output = nvcc.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {log}");
        program
    }

    fn run(&self, program: &Path) -> Output {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FERCUDA_") {
                command.env_remove(name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("FERCUDA_SOFT_CHECK", "1")
            .env("FERCUDA_SOFT_CHECK_EXIT", FOUND.to_string())
            .output()
            .unwrap()
    }

    /// Builds and runs a program that has to be right, with no finding.
    #[track_caller]
    fn is_right(&self, name: &str, sources: &[&str], options: &[&str]) {
        let output = self.run(&self.build(name, sources, options));
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {text}\n{errors}");
        assert_eq!(text, "all right\n", "{errors}");
    }
}

#[test]
fn kernels_and_variables_of_compiled_programs_are_found_and_launched() {
    let Some(toolkit) = toolkit() else { return };
    let sources = ["registration.cu", "registration_other.cu"];
    // PTX as it is, and compressed in each way that nvcc has.
    for (name, options) in [
        ("registration-plain", &["-rdc=true", "--compress-mode=none"]),
        (
            "registration-quick",
            &["-rdc=true", "--compress-mode=speed"],
        ),
        ("registration-small", &["-rdc=true", "--compress-mode=size"]),
    ] {
        toolkit.is_right(name, &sources, options);
    }
}

#[test]
fn streams_events_and_graphs_do_what_the_reference_says() {
    let Some(toolkit) = toolkit() else { return };
    toolkit.is_right("streams", &["streams.cu"], &["--compress-mode=size"]);
}

#[test]
fn arrays_textures_and_memory_of_each_kind_hold_what_was_copied() {
    let Some(toolkit) = toolkit() else { return };
    toolkit.is_right("images", &["images.cu"], &["--compress-mode=none"]);
}

#[test]
fn the_twins_take_a_null_stream_as_the_threads_own() {
    let Some(toolkit) = toolkit() else { return };
    let options = ["--default-stream", "per-thread"];
    toolkit.is_right("per_thread", &["per_thread.cu"], &options);
}

#[test]
fn errors_have_the_references_codes_and_faults_stay_until_a_reset() {
    let Some(toolkit) = toolkit() else { return };
    let output = toolkit.run(&toolkit.build("errors", &["errors.cu"], &[]));
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text, "all right\n", "{errors}");
    // The store to an address that is nowhere is a finding.
    assert_eq!(output.status.code(), Some(FOUND), "{errors}");
    assert!(errors.contains("kernel: _Z5storePi"), "{errors}");
    let refusal = "cudaImportExternalMemory is not supported";
    assert_eq!(errors.matches(refusal).count(), 1, "{errors}");
}

#[test]
fn a_defect_of_a_compiled_program_is_reported_with_its_line() {
    let Some(toolkit) = toolkit() else { return };
    let output = toolkit.run(&toolkit.build("overrun", &["overrun.cu"], &[]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(FOUND), "{errors}");
    for part in [
        "out of bounds: 4-byte global read",
        "overrun.cu:5",
        "thread: (63,0,0)",
    ] {
        assert!(errors.contains(part), "no {part:?} in\n{errors}");
    }
}

#[test]
fn structures_have_the_sizes_that_a_c_compiler_gives_them() {
    let Some(toolkit) = toolkit() else { return };
    toolkit.is_right("layout", &["layout.cu"], &[]);
}

#[test]
fn a_program_with_nvidias_runtime_inside_is_explained() {
    let Some(toolkit) = toolkit() else { return };
    let nvidias = toolkit.nvcc.parent().unwrap().join("../lib");
    let nvidias = nvidias.to_str().unwrap();
    let options = ["-cudart", "static", "-L", nvidias];
    let program = toolkit.build("inside", &["overrun.cu"], &options);
    let output = toolkit.run(&program);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("nvcc -cudart shared"), "{errors}");
}
