//! Tests that each class of race is reported, and that synchronised kernels give no finding.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod clean;
mod machine;
mod planted;
mod spin;
mod uses;
