//! Qwen2 and 2.5, which have biases, and Qwen3, which has norms of heads, with experts or without.

use super::spec::{BiasedProducts, DecoderSpec, HeadNorms, PLAIN};

pub(super) const SECOND: DecoderSpec = DecoderSpec {
    biases: BiasedProducts::Attention,
    ..PLAIN
};

pub(super) const THIRD: DecoderSpec = DecoderSpec {
    head_norms: HeadNorms::Weighted,
    ..PLAIN
};
