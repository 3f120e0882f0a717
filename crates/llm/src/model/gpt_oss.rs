//! gpt-oss: experts with biases and a clamped unit, sinks, and a window in every second layer.

use super::spec::{BiasedProducts, DecoderSpec, PLAIN, WindowPattern};

pub(super) const SPEC: DecoderSpec = DecoderSpec {
    biases: BiasedProducts::All,
    windows: WindowPattern::Period {
        layers: 2,
        positions: 0,
    },
    has_sinks: true,
    unit: "swiglu_clamped",
    unit_norm: "post_attention_norm",
    // As the model's own code has it; llama.cpp rounds.
    has_whole_yarn: false,
    ..PLAIN
};
