//! What a graph is kept under.

use std::hash::Hash;

use fercuda_tensor::Dtype;

/// What tells graphs apart. [`GraphKey`] is one; a program may have its own.
///
/// Equality and hash are looked at in every replay, so a key is best a few numbers.
pub trait Key: Eq + Hash + Clone {
    /// The generation of the model whose memory the graph refers to, by which
    /// [`GraphCache::invalidate_generation`](crate::GraphCache::invalidate_generation)
    /// finds it.
    fn generation(&self) -> u64;
}

/// The key of a language model's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Which load of which model: another number each time its weights or caches
    /// move.
    pub generation: u64,
    /// What the step does.
    pub kind: GraphKind,
    /// Sequences, or tokens, that it has room for.
    pub batch: u32,
    /// Positions that it has room for.
    pub context: u32,
    /// What it computes in.
    pub dtype: Dtype,
    /// How its weights are stored.
    pub quantization: Quantization,
}

impl Key for GraphKey {
    fn generation(&self) -> u64 {
        self.generation
    }
}

/// What a step of a language model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GraphKind {
    /// One more token for each sequence.
    Decode,
    /// A piece of a prompt.
    Prefill,
    /// Something of the model's own, by its number.
    Other(u32),
}

/// How weights are stored, by a number of the model's own; 0 is as they are computed
/// with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Quantization(pub u32);
