//! Declarations of `c_api.h`.

pub(crate) mod allocators;
pub(crate) mod arenas;
pub(crate) mod buffers;
mod closing;
pub(crate) mod dispatchers;
pub(crate) mod expressions;
pub(crate) mod graphs;
pub(crate) mod jobs;
pub(crate) mod launches;
pub(crate) mod ops;
pub(crate) mod requests;
pub(crate) mod runtimes;
pub(crate) mod types;
mod unkept;
