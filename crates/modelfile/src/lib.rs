//! Model files: GGUF and safetensors, read without trust. See the README.
#![deny(unsafe_code)]

mod error;
mod gguf;
mod json;
mod kinds;
mod mapping;
mod model;
mod packed;
mod rewrite;
mod safetensors;

pub use error::{Error, Result};
pub use gguf::{Gguf, GgufArray, GgufBuilder, GgufKind, GgufTensor, GgufValue, GgufWriter};
pub use kinds::{NarrowType, TensorType};
pub use mapping::FileMapping;
pub use model::{ModelFile, ModelPart, PartContent, StoredTensor};
pub use packed::{WeightFormat, WeightValues};
pub use rewrite::{PlannedTensor, RewritePlan};
pub use safetensors::{SafeTensor, Safetensors};
