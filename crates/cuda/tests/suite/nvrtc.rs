//! The compiler, from source to a kernel that ran.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fercuda_cuda::nvrtc::cache::Cache;
use fercuda_cuda::nvrtc::{Arch, CompileError, Nvrtc, Output, Program};
use fercuda_cuda::{DeviceBuffer, Launch, Module, Stream};

use crate::support::context;

fn nvrtc() -> Nvrtc {
    Nvrtc::find()
        .expect("NVRTC is installed by `cargo xtask setup`")
        .with_cache(None)
}

const AXPY: &str = r#"
#include "scale.h"
template <typename T> __global__ void axpy(T* y, const T* x, T a, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += SCALE * a * x[i];
}
"#;

fn axpy() -> Program {
    Program::new("axpy.cu", AXPY, Arch::new(8, 0))
        .header("scale.h", "#define SCALE 2")
        .expression("axpy<float>")
        .option("--std=c++17")
}

#[test]
fn a_template_is_compiled_and_run_under_its_lowered_name() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let compiled = nvrtc().compile(&axpy()).unwrap();
    assert!(compiled.ptx().unwrap().contains(".target sm_80"));
    let name = compiled.lowered("axpy<float>").unwrap();
    let axpy = Module::load(&context, &compiled.image())
        .unwrap()
        .function(name)
        .unwrap();
    let x = DeviceBuffer::from_host(&[1.0f32, 2.0, 3.0], &stream).unwrap();
    let mut y = DeviceBuffer::from_host(&[10.0f32; 3], &stream).unwrap();
    // SAFETY: `axpy` touches the three values of each.
    unsafe { Launch::new(1, 32).run(&axpy, &stream, (&mut y, &x, 5.0f32, 3u32)) }.unwrap();
    assert_eq!(y.to_vec(&stream).unwrap(), [20.0, 30.0, 40.0]);
}

#[test]
fn cudas_own_headers_are_found() {
    let source = "#include <cuda_fp16.h>\nextern \"C\" __global__ void k(__half* x) { *x = __hadd(*x, *x); }";
    let compiled = nvrtc()
        .compile(&Program::new("k.cu", source, Arch::new(8, 0)))
        .unwrap();
    assert!(compiled.ptx().unwrap().contains("add"));
}

#[test]
fn machine_code_is_an_elf_file_that_passes_validation() {
    let program = axpy().output(Output::Cubin);
    let compiled = nvrtc().compile(&program).unwrap();
    assert!(compiled.code().starts_with(b"\x7fELF"));
    assert_eq!(compiled.ptx(), None);
    let context = context();
    // A cubin for 8.0 runs on no other major version: an error of the load is the driver's, not of
    // corruption. Truncated, it never reaches the driver.
    for len in [
        4,
        10,
        63,
        64,
        200,
        compiled.code().len() / 2,
        compiled.code().len() - 1,
    ] {
        // SAFETY: a prefix of NVRTC's output, which is refused.
        let error = unsafe { fercuda_cuda::Image::binary(&compiled.code()[..len]) }
            .map(drop)
            .expect_err("it was truncated");
        assert!(error.to_string().contains("truncated"), "{len}: {error}");
    }
    if let Err(error) = Module::load(&context, &compiled.image()) {
        assert!(!matches!(error, fercuda_cuda::Error::Image(_)), "{error}");
    }
}

#[test]
fn an_error_has_the_first_of_the_log_in_its_first_line() {
    let source = "__global__ void k(int* x) {\n  int unused;\n  *x = nonsense;\n}\n";
    let error = nvrtc()
        .compile(&Program::new("k.cu", source, Arch::new(8, 0)))
        .unwrap_err();
    assert!(matches!(error, CompileError::Refused { .. }), "{error}");
    let text = error.to_string();
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with("cannot compile `k.cu` for compute_80: k.cu(3): error"),
        "{text}"
    );
    let error = nvrtc()
        .compile(&axpy().option("--no-such-option"))
        .unwrap_err();
    assert!(matches!(error, CompileError::Call { .. }), "{error}");
    let error = nvrtc().compile(&axpy().option("a\0b")).unwrap_err();
    assert!(matches!(error, CompileError::ZeroByte { .. }), "{error}");
}

#[test]
fn the_second_compilation_comes_from_the_cache_and_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let nvrtc = nvrtc().with_cache(Some(Cache::at(folder.path().join("cache"))));
    let first = nvrtc.compile(&axpy()).unwrap();
    let second = nvrtc.compile(&axpy()).unwrap();
    assert_eq!((first.is_cached(), second.is_cached()), (false, true));
    assert_eq!(first.code(), second.code());
    assert_eq!(first.lowered("axpy<float>"), second.lowered("axpy<float>"));
    assert!(first.cache_warnings().is_empty() && second.cache_warnings().is_empty());
    let changes = [
        axpy().option("-DX"),
        axpy().header("other.h", ""),
        axpy().output(Output::Cubin),
        Program::new("axpy.cu", AXPY.replace("+=", "-="), Arch::new(8, 0))
            .header("scale.h", "#define SCALE 2"),
        Program::new("axpy.cu", AXPY, Arch::new(9, 0)).header("scale.h", "#define SCALE 2"),
        Program::new("axpy.cu", AXPY, Arch::new(8, 0)).header("scale.h", "#define SCALE 3"),
    ];
    for (index, program) in changes.iter().enumerate() {
        assert!(
            !nvrtc.compile(program).unwrap().is_cached(),
            "change {index}"
        );
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("blocked");
    fs::write(&blocked, "").unwrap();
    let nvrtc = nvrtc().with_cache(Some(Cache::at(blocked.join("cache"))));
    let compiled = nvrtc.compile(&axpy()).unwrap();
    assert!(!compiled.is_cached());
    assert!(!compiled.cache_warnings().is_empty());
}

#[test]
fn a_corrupt_entry_is_compiled_again_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let nvrtc = nvrtc().with_cache(Some(cache));
    nvrtc.compile(&axpy()).unwrap();
    let entry = fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(
        entry.metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    fs::write(entry.path(), "garbage").unwrap();
    let compiled = nvrtc.compile(&axpy()).unwrap();
    assert!(!compiled.is_cached());
    assert_eq!(compiled.cache_warnings().len(), 1);
    assert!(nvrtc.compile(&axpy()).unwrap().is_cached());
}

#[test]
fn the_compiler_reports_its_capabilities() {
    let nvrtc = nvrtc();
    assert!(nvrtc.version().0 >= 12);
    assert!(nvrtc.architectures().unwrap().contains(&90));
    assert!(nvrtc.file().is_file());
    assert!(!nvrtc.include_directories().is_empty());
}

#[test]
fn a_missing_compiler_is_an_error_with_how_to_install_it() {
    // SAFETY: there is no such file.
    let error = unsafe { Nvrtc::open("/nonexistent/libnvrtc.so.13".as_ref()) }.unwrap_err();
    assert!(
        error.to_string().contains("/nonexistent/libnvrtc.so.13"),
        "{error}"
    );
    assert!(
        error.to_string().contains("pip install nvidia-cuda-nvrtc"),
        "{error}"
    );
}
