//! Captures and graphs on a device: the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`.
//!
//! In a process of their own, since some calls of other tests break every
//! capture of a context.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod graphs;
#[path = "../suite/support.rs"]
mod support;
