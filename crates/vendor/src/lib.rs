//! NVIDIA's libraries in safe Rust, opened at run time: cuBLASLt and cuFFT. See the README.
#![deny(unsafe_code)]

pub mod cublaslt;
pub mod cufft;
mod error;
mod functions;
#[expect(unsafe_code, reason = "opens libraries, which runs their initialisers")]
mod library;
mod operand;
mod version;

pub use error::{Error, LibraryCallFailure, MissingFunction, Result};
pub use version::LibraryVersion;
