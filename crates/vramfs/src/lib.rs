//! Filesystem in device memory with an error-correcting code. See the README.
#![deny(unsafe_code)]

mod acl;
pub mod array;
mod blocks;
mod clock;
pub mod code;
pub mod control;
mod crc;
pub mod directory;
mod engine;
mod error;
mod export;
mod extents;
pub mod file;
mod fuse;
pub mod gf;
pub mod import;
pub mod layout;
pub mod medium;
mod meter;
pub mod mount;
mod network;
mod pieces;
mod place;
mod shipped;
mod source;
pub mod space;
#[cfg(test)]
#[path = "space/tests.rs"]
mod space_tests;
pub mod store;
mod tools;
pub mod tree;

/// Primitives of `space` and `fuse/workers`; loom's where they are model-checked
/// (`tests/orders.rs`).
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::{Thread, current, park, yield_now};
}

pub use blocks::{Blocks, SharedPiece};
pub use crc::crc32c;
pub use engine::{
    BlockOutcome, BlockWork, Copier, Identity, KernelTarget, Kernels, Mover, PendingUpdate,
    RowLocation, Worker,
};
pub use error::{Error, Result};
pub use shipped::{SHIPPED_KERNELS, ShippedError, read_shipped, write_shipped};
