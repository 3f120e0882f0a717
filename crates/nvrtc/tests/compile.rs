//! The compiler and its cache; no device is needed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fercuda_cache::ProgramCache;
use fercuda_nvrtc::{CodeFormat, CudaSource, GpuArch, Nvrtc, NvrtcError};

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

fn axpy() -> CudaSource {
    CudaSource::new("axpy.cu", AXPY, GpuArch::new(8, 0))
        .header("scale.h", "#define SCALE 2")
        .expression("axpy<float>")
        .option("--std=c++17")
}

#[test]
fn cudas_own_headers_are_found() {
    let source = "#include <cuda_fp16.h>\nextern \"C\" __global__ void k(__half* x) { *x = __hadd(*x, *x); }";
    let compiled = nvrtc()
        .compile(&CudaSource::new("k.cu", source, GpuArch::new(8, 0)))
        .unwrap();
    assert!(compiled.ptx().unwrap().contains("add"));
}

#[test]
fn bytes_of_another_encoding_reach_the_compiler_in_comments_and_literals() {
    let source = b"// caf\xe9\n__device__ char drink[] = \"caf\xe9\";\n";
    let source = CudaSource::from_bytes("k.cu", source.to_vec(), GpuArch::new(8, 0));
    let compiled = nvrtc().compile(&source).unwrap();
    // Latin-1 for an e with an acute accent, 0xe9, behind `caf`.
    let ptx = compiled.ptx().unwrap();
    assert!(ptx.contains("{99, 97, 102, 233}"), "{ptx}");
}

#[test]
fn an_error_has_the_first_of_the_log_in_its_first_line() {
    let source = "__global__ void k(int* x) {\n  int unused;\n  *x = nonsense;\n}\n";
    let error = nvrtc()
        .compile(&CudaSource::new("k.cu", source, GpuArch::new(8, 0)))
        .unwrap_err();
    assert!(matches!(error, NvrtcError::Refused { .. }), "{error}");
    let text = error.to_string();
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with("cannot compile `k.cu` for compute_80: k.cu(3): error"),
        "{text}"
    );
    let error = nvrtc()
        .compile(&axpy().option("--no-such-option"))
        .unwrap_err();
    assert!(matches!(error, NvrtcError::Call { .. }), "{error}");
    let error = nvrtc().compile(&axpy().option("a\0b")).unwrap_err();
    assert!(matches!(error, NvrtcError::ZeroByte { .. }), "{error}");
}

#[test]
fn the_second_compilation_comes_from_the_cache_and_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let nvrtc = nvrtc().with_cache(Some(ProgramCache::at(folder.path().join("cache"))));
    let first = nvrtc.compile(&axpy()).unwrap();
    let second = nvrtc.compile(&axpy()).unwrap();
    assert_eq!((first.is_cached(), second.is_cached()), (false, true));
    assert_eq!(first.code(), second.code());
    assert_eq!(first.lowered("axpy<float>"), second.lowered("axpy<float>"));
    assert!(first.cache_warnings().is_empty() && second.cache_warnings().is_empty());
    let changes = [
        axpy().option("-DX"),
        axpy().header("other.h", ""),
        axpy().output(CodeFormat::Cubin),
        CudaSource::new("axpy.cu", AXPY.replace("+=", "-="), GpuArch::new(8, 0))
            .header("scale.h", "#define SCALE 2"),
        CudaSource::new("axpy.cu", AXPY, GpuArch::new(9, 0)).header("scale.h", "#define SCALE 2"),
        CudaSource::new("axpy.cu", AXPY, GpuArch::new(8, 0)).header("scale.h", "#define SCALE 3"),
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
    let nvrtc = nvrtc().with_cache(Some(ProgramCache::at(blocked.join("cache"))));
    let compiled = nvrtc.compile(&axpy()).unwrap();
    assert!(!compiled.is_cached());
    assert!(!compiled.cache_warnings().is_empty());
}

#[test]
fn a_corrupt_entry_is_compiled_again_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ProgramCache::at(folder.path());
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

/// A library that compiles anything and returns no result: not its size, if `SIZE` is a status of
/// failure, else not the code itself.
const FAILING: &str = r#"
#include <stddef.h>
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count,
                       const char *const *texts, const char *const *names) {
    *program = program;
    return 0;
}
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcCompileProgram(void *program, int count, const char *const *options) { return 0; }
int nvrtcGetPTXSize(void *program, size_t *size) { *size = 8; return SIZE; }
int nvrtcGetCUBINSize(void *program, size_t *size) { *size = 8; return SIZE; }
int nvrtcGetPTX(void *program, char *code) { return 4; }
int nvrtcGetCUBIN(void *program, char *code) { return 4; }
"#;

#[test]
fn a_failure_to_read_the_code_names_the_function_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("failing.c");
    fs::write(&source, FAILING).unwrap();
    let library = |size: &str| {
        let library = folder.path().join(format!("libnvrtc{size}.so"));
        let built = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", size, "-o"])
            .args([&library, &source])
            .status();
        assert!(built.unwrap().success());
        // SAFETY: the library above, which has NVRTC's signatures and keeps no state.
        unsafe { Nvrtc::open(&library) }.unwrap().with_cache(None)
    };
    let cases = [
        ("-DSIZE=4", CodeFormat::Ptx, "nvrtcGetPTXSize"),
        ("-DSIZE=4", CodeFormat::Cubin, "nvrtcGetCUBINSize"),
        ("-DSIZE=0", CodeFormat::Ptx, "nvrtcGetPTX"),
        ("-DSIZE=0", CodeFormat::Cubin, "nvrtcGetCUBIN"),
    ];
    for (size, format, function) in cases {
        let program = CudaSource::new("k.cu", "", GpuArch::new(9, 0)).output(format);
        match library(size).compile(&program).unwrap_err() {
            NvrtcError::Call { call, .. } => assert_eq!(call, function),
            other => panic!("{function}: {other}"),
        }
    }
}
