//! Errors of models and their texts as exceptions.

use fercuda_hub::{HubError, SourceError};
use fercuda_llm::LlmError;
use fercuda_tokenizer::TokenizerError;
use pyo3::prelude::*;

use crate::errors;
use crate::exceptions::{ExceptionBuilder, plain};

/// The exception of a model that was not found or opened.
pub(crate) fn of_source(py: Python<'_>, error: &SourceError) -> PyErr {
    match error {
        SourceError::Hub(error) => of_hub(py, error),
        error => plain(py, "ModelError", error),
    }
}

fn of_hub(py: Python<'_>, error: &HubError) -> PyErr {
    let status = match error {
        HubError::Denied { status, .. } => Some(*status),
        _ => None,
    };
    let is_reachable = !matches!(error, HubError::Unreachable { .. });
    ExceptionBuilder::new(py, "HubError", error)
        .with("status", status)
        .with("is_reachable", is_reachable)
        .raise()
}

/// The exception of a text that was not encoded, or a conversation that was not rendered.
pub(crate) fn of_tokenizer(py: Python<'_>, error: &TokenizerError) -> PyErr {
    let class = match error {
        TokenizerError::Template { .. } | TokenizerError::Messages { .. } => "ChatTemplateError",
        TokenizerError::Text { .. } => "RequestError",
        _ => "ModelError",
    };
    plain(py, class, error)
}

/// The exception of a model that was not loaded, or a request that was not computed.
pub(crate) fn of_llm(py: Python<'_>, error: &LlmError) -> PyErr {
    match error {
        LlmError::Request { .. } | LlmError::GrammarStuck => plain(py, "RequestError", error),
        LlmError::Memory {
            needed_bytes,
            free_bytes,
            ..
        } => ExceptionBuilder::new(py, "OutOfMemoryError", error)
            .with("asked_bytes", *needed_bytes)
            .with("free_bytes", Some(*free_bytes))
            .with("total_bytes", None::<u64>)
            .with("parked_bytes", 0u64)
            .with("holders", Vec::<(String, u64, u64)>::new())
            .raise(),
        LlmError::Runtime(error) => errors::raise(py, error),
        LlmError::Op(error) => errors::op(py, "a step of a model", error),
        LlmError::Layout(error) => errors::layout(py, error),
        error => plain(py, "ModelError", error),
    }
}
