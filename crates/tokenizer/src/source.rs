//! The two kinds of tokenizers, and what a stream of tokens to text asks of them.

use crate::gguf::GgufTokenizer;
use crate::hf::HfTokenizer;

/// Where a tokenizer comes from.
#[derive(Debug)]
pub(crate) enum TokenizerSource {
    Gguf(Box<GgufTokenizer>),
    Hf(Box<HfTokenizer>),
}

impl TokenizerSource {
    /// The bytes that a token stands for within a text.
    pub(crate) fn token_bytes(&self, token: u32) -> Vec<u8> {
        match self {
            TokenizerSource::Gguf(it) => it.token_bytes(token),
            TokenizerSource::Hf(it) => it.token_bytes(token),
        }
    }

    /// Whether a token is structure, not text.
    pub(crate) fn is_control(&self, token: u32) -> bool {
        match self {
            TokenizerSource::Gguf(it) => {
                let kind = it.vocabulary.kind(token);
                kind.is_some_and(|it| it.is_control())
            }
            TokenizerSource::Hf(it) => it.is_control(token),
        }
    }

    /// Whether a token is a single byte beside tokens of text.
    pub(crate) fn is_byte_token(&self, token: u32) -> bool {
        match self {
            TokenizerSource::Gguf(it) => it.is_byte_token(token),
            TokenizerSource::Hf(it) => it.is_byte_token(token),
        }
    }
}
