//! Llama 2 and 3, Mistral, SmolLM2. Files have queries and keys with neighbours turned together.

use super::spec::DecoderSpec;

pub(super) const SPEC: DecoderSpec = DecoderSpec {
    pairs: "adjacent",
    has_biases: false,
    has_head_norms: false,
    has_window: true,
    unit: "swiglu",
};
