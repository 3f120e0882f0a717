//! Keys of the graph cache.

use std::hash::Hash;

use fercuda_tensor::Dtype;

/// Key of a cached graph. [`GraphKey`] is one; a program may define its own.
///
/// Every replay hashes and compares a key, so a key is best a few numbers.
pub trait Key: Eq + Hash + Clone {
    /// Generation of the model that owns the memory the graph refers to;
    /// [`GraphCache::invalidate_generation`](crate::GraphCache::invalidate_generation) selects by
    /// it.
    fn generation(&self) -> u64;
}

/// Key of one step of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Number of the model's load: it changes each time the weights or caches move.
    pub generation: u64,
    /// Kind of the step.
    pub kind: GraphKind,
    /// Capacity in sequences, or in tokens.
    pub batch: u32,
    /// Capacity in positions.
    pub context: u32,
    /// Type of the arithmetic.
    pub dtype: Dtype,
    /// Storage format of the weights.
    pub quantization: Quantization,
}

impl Key for GraphKey {
    fn generation(&self) -> u64 {
        self.generation
    }
}

/// Kind of a language model's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GraphKind {
    /// One more token for each sequence.
    Decode,
    /// A chunk of a prompt.
    Prefill,
    /// A kind that the model defines, by its number.
    Other(u32),
}

/// Storage format of weights, as a number that the model defines; 0 means not quantized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Quantization(pub u32);
