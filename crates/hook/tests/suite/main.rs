//! Conformance tests of the hook: every row of the conformance list, over the software
//! device's library. Clients are C programs that use nothing but the driver's interface
//! (`programs`).
//!
//! A row's tests are named by what they show; `cargo xtask conformance` writes them to
//! docs/conformance.md.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod calls;
mod checks;
mod defects;
mod differential;
mod ipc;
mod loader;
mod nvml;
mod process;
mod reclaim;
mod runtime;
mod slabs;
mod streams;
mod support;
