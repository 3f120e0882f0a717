//! Architectures: what a decoder of each has of its own.

mod checkpoint;
mod checkpoint_names;
mod checkpoint_spec;
mod gemma;
mod gpt_oss;
mod llama;
mod llama4;
mod mamba;
mod phi;
mod qwen;
mod qwen35;
mod spec;

use crate::error::{LlmError, unsupported};
pub(crate) use checkpoint::CHECKPOINTS;
pub(crate) use checkpoint_spec::{
    AttentionBiases, CheckpointSpec, ExpertNames, ExpertOrder, ExpertPart, WindowKeys,
};
pub(crate) use spec::{
    BiasedProducts, DecoderSpec, ExpertWeighting, HeadNorms, RecurrenceRule, WindowPattern,
};

/// Names in files, with what is special.
const ALL: [(&str, DecoderSpec); 13] = [
    ("gemma", gemma::FIRST),
    ("gemma2", gemma::SECOND),
    ("gemma3", gemma::THIRD),
    ("gpt-oss", gpt_oss::SPEC),
    ("llama", llama::SPEC),
    ("llama4", llama4::SPEC),
    ("mamba2", mamba::SECOND),
    ("phi3", phi::THIRD),
    ("qwen2", qwen::SECOND),
    ("qwen3", qwen::THIRD),
    ("qwen35", qwen35::SPEC),
    ("qwen35moe", qwen35::SPEC),
    ("qwen3moe", qwen::THIRD),
];

/// The architecture of that name.
pub(crate) fn spec(name: &str) -> Result<DecoderSpec, LlmError> {
    let found = ALL.iter().find(|(own, _)| *own == name);
    found.map(|(_, spec)| *spec).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        unsupported(
            format!("the architecture {name:?} is not supported"),
            format!("a model of one of: {}", names.join(", ")),
        )
    })
}
