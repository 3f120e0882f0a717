//! Tests of model files.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod allocations;
mod folders;
mod gguf;
mod hostile;
mod packed;
mod property;
mod rewrite;
mod safetensors;
mod support;
