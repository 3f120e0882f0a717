//! The CUDA driver's and NVRTC's C interfaces, bound by hand.
//!
//! [`types`] has the types of the interface, [`for_each_driver_fn!`] is the one table of functions,
//! and [`Driver`] is that table filled by a library or by another implementation, each symbol when
//! it is first called.
//!
//! Invariant: nothing here needs the CUDA toolkit to build or a driver to load; a missing library
//! or function is an error value. Elsewhere: ownership and safety (`fercuda-cuda`), an
//! implementation on the CPU (`fercuda-softgpu`).

mod driver;
mod entry;
mod enums;
mod layout;
mod library;
mod library_search;
pub mod nvrtc;
mod table;
pub mod types;

pub use driver::{Driver, DriverOrigin, Missing, Symbol, signatures};
pub use entry::{ENTRIES, FunctionEntry, PER_THREAD, Resolution, UNTYPED, resolve};
pub use library::{Attempt, OpenError, SharedLibrary};
pub use library_search::{files_of_library, names_of_library};
