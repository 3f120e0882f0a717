//! The safe layer on a device: the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test reports by panicking, and prints its figures"
)]

mod callbacks;
mod devices;
mod launches;
mod memory;
mod numbers;
mod nvrtc;
mod support;
mod transfers;
mod virtual_memory;
