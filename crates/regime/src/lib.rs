//! Interposed CUDA driver functions that give all libraries of a process one governed
//! pool per device. See the README.
//!
//! Invariant: a call that is not governed reaches the driver unchanged. With
//! `FERCUDA_DISABLE=1`, without a driver and in the child of a fork no call is governed.

#![deny(unsafe_op_in_unsafe_fn)]

mod caller;
mod caller_cache;
mod diagnostics;
#[cfg(debug_assertions)]
mod fault_injection;
#[cfg(debug_assertions)]
mod injected_panic;
pub mod interface;
mod interposed;
mod process;
mod real_driver;
mod reclaim;
mod settings;
mod substitute;
mod table;
pub mod trace;
mod unloading;

pub use caller::tenant;
pub use caller_cache::CallerCache;
pub use diagnostics::print_diagnostic;
pub use fercuda_governor::answer;
pub use process::{catch_panic, governor, governor_if_started, with_existing_thread_context};
pub use real_driver::{RealDriver, real_driver, set_real_driver};
pub use settings::config;
pub use substitute::{CONTEXT_CREATORS, interposed_function, is_disabled, mark_unseen_contexts};
pub use table::{AlreadyInterposed, interpose, interposed_driver};
pub use unloading::while_unloading;
