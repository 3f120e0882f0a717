//! Ops on whichever device there is, against their references.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod named;
mod native;
mod native_algebra;
mod native_fourier;
mod native_sort;
mod page;
mod parity;
mod plans;
mod views;
