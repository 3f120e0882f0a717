//! Tokens that end a generation, known by their texts where a file does not name them.

use std::collections::BTreeSet;

/// Texts of tokens that end a turn or a generation, whatever kind the file gives them.
const GENERATION_ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
];
/// Texts of tokens that end the generation of a part of a file.
const FILL_ENDS: [&str; 11] = [
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Texts of tokens that end a generation.
pub(crate) fn generation_end_texts() -> impl Iterator<Item = &'static str> {
    GENERATION_ENDS.into_iter().chain(FILL_ENDS)
}

/// Whether a token of this text ends a generation.
pub(crate) fn is_generation_end(text: &str) -> bool {
    generation_end_texts().any(|it| it == text)
}

/// Takes out `</s>` where a model has it as text beside ends of its own.
pub(crate) fn without_text_ends(ends: &mut BTreeSet<u32>, find: impl Fn(&str) -> Option<u32>) {
    if find("<|tool_response>").is_some()
        && let Some(id) = find("</s>")
    {
        ends.remove(&id);
    }
}

/// Takes out what ends a message of several: `<|end|>`, where calls and answers end otherwise.
pub(crate) fn without_inner_ends(ends: &mut BTreeSet<u32>, find: impl Fn(&str) -> Option<u32>) {
    let is_there = |text: &str| find(text).is_some();
    let has_calls = is_there("<|return|>") && is_there("<|call|>");
    let has_flush = is_there("<|flush|>") && (is_there("<|call|>") || is_there("<|calls|>"));
    if (has_calls || has_flush)
        && let Some(id) = find("<|end|>")
    {
        ends.remove(&id);
    }
}
