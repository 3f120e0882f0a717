//! Gemma 1 to 3. Files have 1 added to the weights of norms.

use super::spec::{DecoderSpec, HeadNorms, PLAIN, WindowPattern};

pub(super) const FIRST: DecoderSpec = DecoderSpec {
    unit: "geglu_tanh",
    is_scaled: true,
    ..PLAIN
};

pub(super) const SECOND: DecoderSpec = DecoderSpec {
    has_post_norms: true,
    windows: WindowPattern::Period {
        layers: 2,
        positions: 4096,
    },
    limits: [50.0, 30.0],
    wide_scale_layers: Some(46),
    ..FIRST
};

/// Five layers with a window, whose angles have a smaller base, then one with all positions.
pub(super) const THIRD: DecoderSpec = DecoderSpec {
    head_norms: HeadNorms::Weighted,
    windows: WindowPattern::Period {
        layers: 6,
        positions: 0,
    },
    window_base: Some(10_000.0),
    limits: [0.0, 0.0],
    wide_scale_layers: Some(62),
    ..SECOND
};
