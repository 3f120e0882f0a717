//! Doors before the CUDA driver, which let every library of a process share one
//! governed pool for each device. See the README.
//!
//! Invariant: what is not governed reaches the driver unchanged; with
//! `FERCUDA_DISABLE=1`, without a driver and in the child of a fork nothing is.

#![deny(unsafe_op_in_unsafe_fn)]

mod below;
#[cfg(feature = "broken-rules")]
mod broken;
mod caller;
mod doors;
mod exchange;
pub mod interface;
mod process;
mod recent;
mod say;
mod settings;
mod table;
pub mod trace;

pub use below::{Below, place, placed};
pub use caller::tenant;
pub use exchange::{UNTOLD, door, is_disabled, may_have_other_contexts};
pub use fercuda_governor::answer;
pub use process::{already_seated, begun, governor, guarded};
pub use recent::Recent;
pub use say::say;
pub use settings::config;
pub use table::{Elsewhere, stand_before, table};
