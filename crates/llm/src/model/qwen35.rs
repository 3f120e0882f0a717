//! Qwen3.5: three layers with the gated delta rule, then one with gated attention, in which a
//! quarter of each head is turned.
//!
//! Its rotation has three positions for images and videos; those of text are one. Files have 1
//! added to the weights of norms but that of states, and heads of values in another order than
//! checkpoints.

use super::spec::{DecoderSpec, HeadNorms, PLAIN, RecurrenceRule};

pub(super) const SPEC: DecoderSpec = DecoderSpec {
    head_norms: HeadNorms::Weighted,
    unit_norm: "post_attention_norm",
    recurrence: Some(RecurrenceRule::Delta { period: 4 }),
    has_attention_gate: true,
    ..PLAIN
};
