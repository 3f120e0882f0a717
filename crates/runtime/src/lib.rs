//! What a user of the library holds in the hand. See the README.
#![forbid(unsafe_code)]

mod dtype;
mod handles;
mod ignition;
mod layout;
mod plan;

pub use dtype::{Dtype, UnknownDtype};
pub use handles::{Full, Id, Stale, Table};
pub use ignition::{ALIGN_BYTES, IgnitionError, IgnitionPlan, TensorSpec};
pub use layout::{Layout, LayoutError, MAX_RANK};
pub use plan::{Need, Plan, PlanError};
