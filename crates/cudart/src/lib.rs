//! The CUDA runtime API as a `libcudart.so.13` over the driver API.
//!
//! For programs that were compiled by `nvcc -cudart shared`. Written from NVIDIA's public headers;
//! it opens `libcuda.so.1` at run time, which is the software device under `fercuda check`, or
//! NVIDIA's driver.
//!
//! Invariants: nothing unwinds out of an exported function; nothing happens when the library is
//! loaded; NVIDIA's undocumented tables are neither used nor imitated.

#[macro_use]
mod call;
mod array;
mod copy;
mod device;
mod error;
mod graph;
mod graph_nodes;
mod launch;
mod layout;
mod library;
mod memory;
mod refused;
mod registry;
mod stream;
mod texture;
mod types;
