//! The crate over libraries that the tests compile: no GPU and nothing of NVIDIA's is needed.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "a test reads what its child process prints"
)]

mod opening;
mod products;
mod refusals;
mod support;
mod transforms;
