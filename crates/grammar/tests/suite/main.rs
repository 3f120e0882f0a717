//! Tests of grammars.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod gbnf;
mod refusals;
mod support;
mod walks;
