//! C interface of the runtime, `libfercuda.so`, for C, C++ and other languages. See the README.
//!
//! Defines the types and functions of the interface; `cargo xtask headers` generates
//! `include/fercuda` from it, so the documentation of a public item is the documentation of the
//! header.
//!
//! Invariants: no panic unwinds into C. A number or pointer from C is validated before it is used.
#![expect(non_camel_case_types, reason = "types have their C names")]
#![expect(
    clippy::missing_safety_doc,
    reason = "one contract for all functions, stated in the README and the header: pointers are NULL or valid for their documented use"
)]

mod c_api;
mod contract;
mod handles;
mod pointers;
mod status;
mod telemetry;

pub use c_api::allocators::*;
pub use c_api::arenas::*;
pub use c_api::buffers::*;
pub use c_api::dispatchers::*;
pub use c_api::expressions::*;
pub use c_api::graphs::*;
pub use c_api::jobs::*;
pub use c_api::launches::*;
pub use c_api::ops::*;
pub use c_api::requests::*;
pub use c_api::runtimes::*;
pub use c_api::types::*;
pub use contract::*;
pub use status::{fer_last_error_message, fer_status, fer_status_name};
pub use telemetry::*;
