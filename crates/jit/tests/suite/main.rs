//! Expressions on whichever device there is, against the reference.
//!
//! Data are random; each test prints its seed, and `FERCUDA_SEED` repeats it. On the software
//! device its checks must find nothing. Bounds are the reference's, derived from sizes and from the
//! errors that operations guarantee.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod assembled;
mod bench;
mod binding;
mod forms;
mod mutations;
mod operations;
mod property;
#[path = "../../../ptx/tests/ptxas/mod.rs"]
mod ptxas;
mod random;
mod rows;
