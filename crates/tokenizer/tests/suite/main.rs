//! Tests of tokenizers and chat templates.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod hostile;
mod prompts;
mod property;
mod support;
mod templates;
mod vocabularies;
