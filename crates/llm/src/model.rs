//! Architectures: what a decoder of each has of its own.

mod checkpoint;
mod llama;
mod qwen;
mod spec;

use crate::error::{LlmError, unsupported};
pub(crate) use checkpoint::{CHECKPOINTS, CheckpointSpec};
pub(crate) use spec::DecoderSpec;

/// Names in files, with what is special.
const ALL: [(&str, DecoderSpec); 3] = [
    ("llama", llama::SPEC),
    ("qwen2", qwen::SECOND),
    ("qwen3", qwen::THIRD),
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
