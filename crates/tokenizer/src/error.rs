//! Errors of tokenizers and chat templates.

use fercuda_modelfile::GgufKind;

/// The result of an operation of this crate.
pub type Result<T, E = TokenizerError> = std::result::Result<T, E>;

/// A tokenizer that cannot be read, a text that cannot be encoded, or a template that fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key of a GGUF file that is needed is absent, or has a value of another type.
    #[error("the key {key} {what}\ntry: a GGUF file that llama.cpp's converter has written")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// A kind of tokenizer that is not known here.
    #[error("{what}\ntry: {hint}")]
    Unsupported {
        /// What it is, and what is known.
        what: String,
        /// What to try.
        hint: &'static str,
    },
    /// A file that contradicts its format, or is too large.
    #[error("{what}\ntry: {hint}")]
    Malformed {
        /// What is wrong, with numbers.
        what: String,
        /// What to try.
        hint: &'static str,
    },
    /// A text that could not be encoded, or tokens that could not be decoded.
    #[error("{what}\ntry: {hint}")]
    Text {
        /// What is wrong, with numbers.
        what: String,
        /// What to try.
        hint: &'static str,
    },
    /// A chat template that does not parse, or fails while it is rendered.
    #[error("chat template, line {line}: {what}\ntry: {hint}")]
    Template {
        /// The line of the template, from 1; 0 if it is not known.
        line: usize,
        /// What is wrong.
        what: String,
        /// What to try.
        hint: &'static str,
    },
    /// Messages that a template cannot be rendered for.
    #[error("{what}\ntry: {hint}")]
    Messages {
        /// What is wrong.
        what: String,
        /// What to try.
        hint: &'static str,
    },
}

impl TokenizerError {
    pub(crate) fn absent(key: &str) -> TokenizerError {
        TokenizerError::Key {
            key: key.to_owned(),
            what: "is absent".to_owned(),
        }
    }

    pub(crate) fn of_type(key: &str, found: GgufKind, wanted: &str) -> TokenizerError {
        TokenizerError::Key {
            key: key.to_owned(),
            what: format!("is of type {found:?}, not {wanted}"),
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, hint: &'static str) -> TokenizerError {
        TokenizerError::Malformed {
            what: what.into(),
            hint,
        }
    }
}
