//! CUDA C++ to PTX, by NVIDIA's run-time compiler.
//!
//! `cargo run -p fercuda-nvrtc --example compile`
//!
//! Prints the compiler's version and file, and the PTX of a templated kernel; no GPU is needed. If
//! the compiler is not installed, it prints every path that was tried and what to install. The
//! second time the program comes from the cache on disk.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use fercuda_nvrtc::{CudaSource, GpuArch, Nvrtc, NvrtcError};

const SOURCE: &str = r#"
template <typename T>
__global__ void scale(T* values, T factor, unsigned len) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < len) values[i] *= factor;
}
"#;

fn main() -> Result<(), NvrtcError> {
    let nvrtc = match Nvrtc::find() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("{error}");
            return Ok(());
        }
    };
    let (major, minor) = nvrtc.version();
    println!("// NVRTC {major}.{minor}: {}", nvrtc.file().display());

    // A template is compiled for the instances that are named; each is a kernel by a mangled name.
    let instance = "scale<float>";
    let source = CudaSource::new("scale.cu", SOURCE, GpuArch::new(8, 0)).expression(instance);
    let compiled = nvrtc.compile(&source)?;
    let entry = compiled.lowered(instance).unwrap_or(instance);
    let from = if compiled.is_cached() {
        "the cache"
    } else {
        "the compiler"
    };
    println!("// {instance} is {entry}, from {from}");
    println!("{}", compiled.ptx().unwrap_or_default());
    Ok(())
}
