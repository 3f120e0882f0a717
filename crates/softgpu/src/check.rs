//! Checking: what each byte has been through, and who touched it last.
//!
//! [`Shadow`] belongs to an address space and outlives kernels; [`shared`] belongs to a block.
//!
//! Invariant: with checks off nothing in here exists at run time, and no kernel tests whether it does.

use std::sync::Arc;

use crate::order::{OpId, Order};
use crate::report::FindingSink;

pub(crate) mod clock;
mod global;
pub(crate) mod shared;
mod states;
pub use global::Shadow;
pub(crate) use global::{Launch, Owner, Record};
pub(crate) use states::{FREED, INITIALISED};

/// What an operation needs to be checked: who it is, what it follows, where findings go.
#[derive(Debug, Clone)]
pub struct CheckContext {
    /// This operation.
    pub op: OpId,
    /// The program's order.
    pub order: Arc<Order>,
    /// Where findings go.
    pub sink: Arc<FindingSink>,
}
