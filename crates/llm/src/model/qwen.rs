//! Qwen2 and 2.5, which have biases, and Qwen3, which has norms of heads.

use super::spec::DecoderSpec;

pub(super) const SECOND: DecoderSpec = DecoderSpec {
    pairs: "halves",
    has_biases: true,
    has_head_norms: false,
    has_window: false,
    unit: "swiglu",
};

pub(super) const THIRD: DecoderSpec = DecoderSpec {
    has_biases: false,
    has_head_norms: true,
    ..SECOND
};
