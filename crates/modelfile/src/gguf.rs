//! GGUF files: a header, metadata, a table of tensors, and their data.
//!
//! Reading is as lenient as files in use need, writing as strict as llama.cpp's reader is.

mod layout;
mod read;
mod value;
mod write;

pub use read::{Gguf, GgufTensor};
pub use value::{GgufArray, GgufKind, GgufValue};
pub use write::{GgufBuilder, GgufWriter};
