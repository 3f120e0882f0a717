//! The safe layer on a device: the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod callbacks;
mod devices;
mod launches;
mod memory;
mod numbers;
mod nvrtc;
mod queued_resources;
mod support;
mod transfers;
mod virtual_memory;
