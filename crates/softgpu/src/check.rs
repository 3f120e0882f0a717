//! Access checking: shadow memory with each byte's state and each word's last accesses.
//!
//! [`Shadow`] belongs to an address space and outlives kernels; `shared` belongs to a block.
//!
//! Invariant: with checks off no shadow exists at run time, and no kernel tests whether it does.

use std::sync::Arc;

use crate::order::{OpId, Order};
use crate::report::FindingSink;

pub(crate) mod clock;
mod global;
pub(crate) mod shared;
mod states;
pub use global::Shadow;
pub(crate) use global::{AccessRecord, LaunchNaming, SegmentOwner};
pub(crate) use states::{FREED, INITIALISED};

/// The check context of an operation: its identity, the order, the sink of findings.
#[derive(Debug, Clone)]
pub struct CheckContext {
    /// This operation.
    pub op: OpId,
    /// The program's order.
    pub order: Arc<Order>,
    /// Where findings go.
    pub sink: Arc<FindingSink>,
}
