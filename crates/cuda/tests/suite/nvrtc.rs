//! Programs that NVRTC compiled, from source to a kernel that ran.

use fercuda_cuda::{DeviceBuffer, Image, Launch, Module, Stream};
use fercuda_nvrtc::{CodeFormat, CudaSource, GpuArch, Nvrtc};

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

fn axpy() -> CudaSource {
    CudaSource::new("axpy.cu", AXPY, GpuArch::new(8, 0))
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
    let axpy = Module::load(&context, &Image::from(&compiled))
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
fn machine_code_is_an_elf_file_that_passes_validation() {
    let program = axpy().output(CodeFormat::Cubin);
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
        let error = unsafe { Image::binary(&compiled.code()[..len]) }
            .map(drop)
            .expect_err("it was truncated");
        assert!(error.to_string().contains("truncated"), "{len}: {error}");
    }
    if let Err(error) = Module::load(&context, &Image::from(&compiled)) {
        assert!(!matches!(error, fercuda_cuda::Error::Image(_)), "{error}");
    }
}
