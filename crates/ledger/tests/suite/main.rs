//! One process: what threads charge, where files may lie, what readers make of
//! any bytes, and what exports look like.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]
#![expect(clippy::print_stdout, reason = "a failing test shows its seed")]

mod exports;
mod files;
mod format;
mod requests;
mod shares;
mod support;
mod threads;
