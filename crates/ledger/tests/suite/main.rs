//! Tests within one process: charging threads, allowed file locations, readers of arbitrary bytes,
//! and exports.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod exports;
mod files;
mod format;
mod property;
mod requests;
mod shares;
mod support;
mod threads;
