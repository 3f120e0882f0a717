//! `libfercuda.so`: the runtime for C, C++ and whatever calls C. See the README.
//!
//! Holds the shape of the interface; `cargo xtask headers` makes `include/fercuda`
//! of it, so what is written of a public item here is what a C programmer reads.
//!
//! Invariants: nothing unwinds into C. A number or pointer of C's is looked at before
//! it means anything.
#![expect(
    non_camel_case_types,
    reason = "types are called here what they are called in C"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "one promise for all functions, which the README and the header have: pointers are NULL or good for what is said of them"
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
pub use c_api::requests::*;
pub use c_api::runtimes::*;
pub use c_api::types::*;
pub use contract::*;
pub use status::{fer_last_error_message, fer_status, fer_status_name};
pub use telemetry::*;
