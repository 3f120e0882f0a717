//! NVRTC, NVIDIA's run-time compiler: CUDA C++ to PTX or machine code.
//!
//! The library is NVIDIA's and is searched for where a toolkit, a Python environment or the user
//! has installed it ([`find`]). Compiled programs are cached on disk (`fercuda-cache`); an unusable
//! cache is a warning, never a failure.
//!
//! Invariant: a program from the cache is byte for byte the output of NVRTC for the same input.
//! Elsewhere: the C interface (`fercuda-cuda-sys`), loading what was compiled (`fercuda-cuda`).

mod compile;
mod error;
pub mod find;
mod source;
mod trust;

pub use compile::{CompiledProgram, Nvrtc};
pub use error::NvrtcError;
pub use source::{CodeFormat, CudaSource, GpuArch};
