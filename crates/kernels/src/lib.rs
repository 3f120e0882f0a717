//! Kernels in CUDA C++, and the launches that they need. See the README.
#![deny(unsafe_code)]

mod error;
mod loader;
mod loops;
mod program;
mod rows;
mod text;
mod view;

pub mod algebra;
pub mod copy;
pub mod fft;
pub mod index;
pub mod jacobi;
pub mod multiply;
pub mod place;
pub mod random;
pub mod scan;
pub mod select;
pub mod sort;
pub mod window;

pub use error::KernelError;
pub use loader::{LoadedProgram, NativeLoader};
pub use loops::along;
pub use program::NativeProgram;
pub use text::fingerprint;
pub use view::MemoryView;
