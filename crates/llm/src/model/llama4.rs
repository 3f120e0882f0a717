//! Text of Llama 4: experts weighted by sigmoids beside one of all tokens, in each layer or in
//! every second one, and every fourth layer without rotation.
//!
//! Its attention goes over chunks of 8192 positions, and queries of layers without rotation grow
//! from position 8191 on: contexts are shorter here.

use super::spec::{DecoderSpec, ExpertWeighting, HeadNorms, PLAIN};

pub(super) const SPEC: DecoderSpec = DecoderSpec {
    pairs: "adjacent",
    head_norms: HeadNorms::Plain {
        unless_experts: 128,
    },
    unturned: Some(4),
    most_context: Some(8191),
    weighting: ExpertWeighting::SigmoidBefore,
    ..PLAIN
};
