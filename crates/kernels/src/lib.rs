//! Kernels in CUDA C++, and the launches that they need. See the README.
#![deny(unsafe_code)]

mod error;
mod loader;
mod program;
mod rows;
mod text;
mod view;

pub mod copy;
pub mod scan;
pub mod select;
pub mod sort;

pub use error::KernelError;
pub use loader::{KernelLoader, LoadedProgram};
pub use program::NativeProgram;
pub use view::MemoryView;
