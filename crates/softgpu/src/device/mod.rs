//! Device model: the driver's state between calls.
//!
//! One [`Machine`] per process, created by `cuInit`. Every object with a handle is in a table here:
//! its data in [`objects`], below the machine, and its operations above, in a file for each kind.
//! Work runs on streams' threads ([`stream`]); memory is cut by [`heap`] out of [`crate::mem`].
//!
//! Invariant: no lock here is held while work runs or while a host function of the program runs.
//!
//! Elsewhere: the C functions ([`crate::abi`]), executing kernels ([`crate::exec`]).

pub(crate) mod allocation;
pub(crate) mod array;
pub(crate) mod attributes;
mod board;
pub(crate) mod capture;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod event;
pub(crate) mod exec_graph;
pub(crate) mod fatbin;
mod frees;
pub(crate) mod graph;
pub(crate) mod graph_memory;
mod graph_pool;
pub(crate) mod handle;
pub(crate) mod heap;
pub(crate) mod image;
pub(crate) mod image_objects;
pub(crate) mod ipc;
pub(crate) mod launch;
mod leaks;
pub(crate) mod link;
mod machine;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod objects;
mod output;
mod placement;
pub(crate) mod pool;
pub(crate) mod range;
pub(crate) mod release;
mod report_file;
pub(crate) mod site;
mod status;
pub(crate) mod stream;
pub(crate) mod texture;
pub(crate) mod texture_reference;
pub(crate) mod vmm;

pub(crate) use machine::{Machine, SoftDevice, configure, init, machine};
pub(crate) use output::{print_sink, say, set_print};
pub(crate) use status::{CuResult, err};

pub(crate) use crate::lock::lock;
