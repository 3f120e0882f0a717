//! Tokenizers and chat templates of language models. See the README.
#![forbid(unsafe_code)]

mod alphabet;
mod chat;
mod detokenizer;
mod ends;
mod error;
mod gguf;
mod hf;
mod prompt;
mod source;
mod special;
mod stop_text;
mod tokenizer;
mod vocabulary;

pub use chat::{ChatRequest, ChatTemplate, ChatValue};
pub use detokenizer::Detokenizer;
pub use error::{Result, TokenizerError};
pub use prompt::{Prompt, Special};
pub use stop_text::StopMatcher;
pub use tokenizer::Tokenizer;
