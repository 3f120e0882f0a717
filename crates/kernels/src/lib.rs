//! Kernels in CUDA C++, and the launches that they need. See the README.
#![deny(unsafe_code)]

mod epilogue;
mod error;
mod loader;
mod loops;
mod program;
mod rows;
mod text;
mod view;
mod warpgroup;

pub mod algebra;
pub mod attention;
pub mod block;
pub mod boxes;
pub mod choice;
pub mod convolution;
pub mod copy;
pub mod ctc;
pub mod draw;
pub mod eigen;
pub mod expert;
pub mod fft;
pub mod head_inputs;
pub mod index;
pub mod jacobi;
pub mod linear_loss;
pub mod loss;
pub mod maths;
pub mod multiply;
pub mod norm;
pub mod optimise;
pub mod pairs;
pub mod patch;
pub mod place;
pub mod quantise;
pub mod random;
pub mod recurrence;
pub mod sample;
pub mod scan;
pub mod segment;
pub mod select;
pub mod sequence_attention;
pub mod sort;
pub mod sparse;
pub mod token_attention;
pub mod token_product;
pub mod window;

pub use error::KernelError;
pub use loader::{LoadedProgram, NativeLoader};
pub use loops::along;
pub use program::{NativeProgram, ProgramForm};
pub use text::fingerprint;
pub use view::MemoryView;
