//! The hook as programs meet it: what each row of the conformance list asks,
//! over the software device's library. Clients are C programs that know the
//! driver's interface and nothing else (`programs`).
//!
//! A row's tests are named by what they show; `cargo xtask conformance` writes
//! them to docs/conformance.md.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod calls;
mod defects;
mod differential;
mod ipc;
mod loader;
mod nvml;
mod process;
mod runtime;
mod slabs;
mod streams;
mod support;
