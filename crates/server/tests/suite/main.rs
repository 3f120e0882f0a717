//! Tests of the server over an engine that echoes.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod adapters;
mod anthropic;
mod embeddings;
mod grammars;
mod limits;
mod openai;
mod responses;
mod support;
mod tools;
mod traffic;
